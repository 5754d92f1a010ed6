"""EvalPlus' equality: one task judged by another rule shifts the published scores."""

import math

import pytest

from codea1_jax.data.evalplus import EvalProblem
from codea1_jax.eval.comparison import Comparison
from codea1_jax.eval.large_values import alike, is_digest, large_to_digest


def _comparison(suite="mbpp_plus", entry_point="f", atol=0.0) -> Comparison:
    return Comparison(EvalProblem("Mbpp/0", suite, "", entry_point, "", (), (), atol))


@pytest.mark.parametrize(
    ("value", "expected", "accepted"),
    [
        (1, True, True),
        (1.0, 1, True),
        ([1], (1,), False),
        ("a", "a", True),
        (None, None, True),
        (0.1 + 0.2, 0.3, True),
        (1.0 + 1e-5, 1.0, False),
        ([0.1 + 0.2], [0.3], True),
        ((0.1 + 0.2,), [0.3], False),  # another type
        ([0.1 + 0.2, 0.5], [0.3], False),  # another length
        ({"a": 0.1 + 0.2}, {"a": 0.3}, False),  # tolerance does not reach into dicts
        ([1, 0.1 + 0.2], [1, 0.3], False),  # nor into lists that are not floats alone
        (math.nan, math.nan, False),
        (math.inf, math.inf, True),
        ("0.3", 0.3, False),
        (10**400, 1.0, False),
        ([[1.0], [2.0, 3.0]], [1.0, 2.0], False),  # ragged
        (None, [1.0], False),
    ],
)
def test_default_rule(value, expected, accepted):
    """`==` first, then closeness where the expected value is made of floats."""
    assert _comparison().accepts((), True, value, expected) is accepted


def test_task_tolerance_reaches_everything_numpy_can_compare():
    """With a task's own tolerance, integers and nested lists are compared closely too."""
    assert _comparison(atol=0.5).accepts((), True, 3, 3)
    assert _comparison(atol=0.5).accepts((), True, [[1, 2]], [[1, 2]])
    assert _comparison(atol=1.5).accepts((), True, 4, 3)
    assert not _comparison(atol=1.5).accepts((), True, 4.0, 3)


def test_subclass_is_not_close():
    """numpy.float64 is no float for EvalPlus' type check, unless the values are equal."""
    assert not _comparison().accepts((), False, 0.1 + 0.2, 0.3)
    assert _comparison().accepts((), False, 0.3, 0.3)


def test_tolerance_stays_on_after_floats():
    """EvalPlus keeps the tolerance that the first floats switched on."""
    comparison = _comparison()
    assert not comparison.accepts((), True, 10**9 + 1, 10**9)
    assert comparison.accepts((), True, 0.5, 0.5)
    assert comparison.accepts((), True, 10**9 + 1, 10**9)


@pytest.mark.parametrize(
    ("entry_point", "args", "value", "expected", "accepted"),
    [
        ("similar_elements", (), [2, 1, 1], (1, 2), True),
        ("similar_elements", (), [1], (1, 2), False),
        ("similar_elements", (), 3, (1, 2), False),
        ("Diff", (), [[1]], [1], False),  # unhashable
        ("are_equivalent", (), "anything", True, True),
        ("sum_div", (4,), 0, 3, True),
        ("sum_div", (4,), 1, 3, False),
        ("surface_Area", (3, 4), 33, 30, False),
        ("surface_Area", (3, 4), 35, 30, True),  # perpendicular height: 9 + 6 * 4.272
        ("surface_Area", (3, 4), "35", 30, False),
        ("digit_distance_nums", (23, 156), 1 + 3 + 3, 0, True),
        ("digit_distance_nums", (23, 156), 5, 0, False),
    ],
)
def test_mbpp_oracles(entry_point, args, value, expected, accepted):
    """Tasks that accept a second reading or compare sets; without them right answers fail."""
    comparison = _comparison(entry_point=entry_point)
    assert comparison.accepts(args, True, value, expected) is accepted


def test_mbpp_oracles_are_not_for_humaneval():
    """A HumanEval+ task of the same name is compared plainly."""
    assert not _comparison("humaneval_plus", "sum_div").accepts((), True, 0, 3)


def test_root_of_a_polynomial_is_checked_not_compared():
    """HumanEval/32 has many right answers; comparing with one fails correct solutions."""
    comparison = _comparison("humaneval_plus", "find_zero", 1e-4)
    coefficients = [-6, 11, -6, 1]  # (x - 1)(x - 2)(x - 3)
    for root in (1.0, 2, 2.9999999):
        assert comparison.accepts((coefficients,), True, root, 3.0)
    for wrong in (1.5, math.nan, "1", None, 1e300, 1j):
        assert not comparison.accepts((coefficients,), True, wrong, 3.0)


def test_roots_that_no_double_hits():
    """Two plus inputs of HumanEval/32 have terms of 1e14: 1e-4 is below their rounding."""
    comparison = _comparison("humaneval_plus", "find_zero", 1e-4)
    coefficients = [9450000, 9, -7, 3, 2, 6, 1, -4, -10, 6, 17, -1]
    root = 17.3124550475086
    assert comparison.accepts((coefficients,), True, root, root)
    assert comparison.accepts((coefficients,), True, math.nextafter(root, 18), root)
    assert not comparison.accepts((coefficients,), True, root + 1e-9, root)


def test_a_root_as_good_as_the_canonical_one():
    """Where the canonical solution does not converge, a better answer is right, a worse one not."""
    comparison = _comparison("humaneval_plus", "find_zero", 1e-4)
    coefficients = [9, -6, 20999, 2, 8, -4, -10, 26, 6, 5, -1, 8]
    assert comparison.accepts((coefficients,), True, -0.0277, -0.02777033164296834)
    assert not comparison.accepts((coefficients,), True, -0.03, -0.02777033164296834)


LARGE = list(range(60_000))


@pytest.mark.parametrize(
    ("first", "second", "are_equal"),
    [
        ("x" * 60_000, "x" * 60_000, True),
        ("x" * 60_000, "x" * 59_999 + "y", False),
        (LARGE, [float(x) for x in LARGE], True),
        (LARGE, [True if x == 1 else x for x in LARGE], True),
        (LARGE, tuple(LARGE), False),
        (LARGE, LARGE[:-1], False),
        ([0.5, *LARGE], [0.5, *map(float, LARGE)], True),
        ([0.5, *LARGE], [0.25, *map(float, LARGE)], False),
        ([math.inf, *LARGE], [math.inf, *map(float, LARGE)], True),
        ([-1, *LARGE], [-2, *LARGE], False),  # equal hashes
        (LARGE, "x" * 60_000, False),
        (LARGE, 7, False),
        ([("a", 1)] * 60_000, [("a", 1)] * 60_000, True),
        ([("a", 1)] * 60_000, [("a", 1)] * 59_999 + [("a", 2)], False),
        ([("a", 1)] * 60_000, [["a", 1]] * 60_000, False),
        (["ab"] * 60_000, [("a", "b")] * 60_000, False),
        ([("a",) * 1000] * 60, [("a",) * 1000] * 60, True),
        ([(2, True)] * 60_000, [(2, 1)] * 60_000, True),
        ([["a", False]] * 60_000, [["a", True]] * 60_000, False),
        ([(0.5, 2.0)] * 60_000, [(0.5, 2)] * 60_000, True),
        ([(0.5, math.inf)] * 60_000, [(0.25, math.inf)] * 60_000, False),
        ([("a",) * 1000] * 60, [("a",) * 1000] * 59 + [("a",) * 999], False),
    ],
)
def test_digests_are_equal_exactly_where_values_are(first, second, are_equal):
    """A digest that takes 1 and 1.0 apart, or -1 and -2 together, gives wrong verdicts."""
    left, right = alike(large_to_digest(first), large_to_digest(second))
    assert (left == right) is are_equal
    assert (first == second) is are_equal


def test_what_is_not_digested():
    """Floats need their values for the tolerance; small values stay readable."""
    floats = [0.5] * 60_000
    assert large_to_digest(floats) is floats
    assert large_to_digest(LARGE[:100]) == LARGE[:100]
    nested = [[None] * 1000] * 60
    assert large_to_digest(nested) is nested
    huge = [10**5000] * 60_000
    assert large_to_digest(huge) is huge
    assert is_digest(large_to_digest(LARGE))
