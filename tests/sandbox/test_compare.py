"""If the comparator fails, wrong answers are rewarded or right ones are not."""

import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_service import compare
from sandbox_service.arrays import from_numpy
from sandbox_service.compare import PYTHON_EQ, Comparator, equal

_NAN = float("nan")


@pytest.mark.parametrize(
    ("actual", "expected", "is_equal", "is_python_equal"),
    [
        (3, 3, True, True),
        (3.0, 3, True, True),
        (3.0000001, 3, True, False),
        (3.1, 3, False, False),
        (1, True, False, True),
        (0.0, False, False, True),
        (True, True, True, True),
        (True, False, False, False),
        ([1, 2], (1, 2), True, False),
        ([1, [2]], (1, (2,)), True, False),
        ([1, 2], [2, 1], False, False),
        ([1], [1, 1], False, False),
        ("1", 1, False, False),
        ("a", b"a", False, False),
        (None, 0, False, False),
        (None, None, True, True),
        (_NAN, _NAN, True, True),
        ([_NAN], [_NAN], True, True),
        (_NAN, 1.0, False, False),
        (float("inf"), float("inf"), True, True),
        (float("inf"), 1e308, False, False),
        (float("inf"), -float("inf"), False, False),
        (10**400, 10**400, True, True),
        (10**400, 1.0, False, False),
        (10**400, float("inf"), False, False),
        (1e-12, 0.0, True, False),
        ({1: "a"}, {1: "a"}, True, True),
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}, True, True),
        ({True: "a"}, {1: "a"}, False, True),
        ({1: 0.1 + 0.2}, {1: 0.3}, True, False),
        ({0.1 + 0.2: 1}, {0.3: 1}, True, False),
        ({1: 2}, {1: 3}, False, False),
        ({1: 2}, {2: 2}, False, False),
        ({1, 2}, {2, 1}, True, True),
        ({1, 2}, frozenset({2, 1}), True, True),
        ({0.1 + 0.2}, {0.3}, True, False),
        ({1, 2}, [1, 2], False, False),
        ({True}, {1}, False, True),
        ({1, 2}, {1, 3}, False, False),
        (1 + 2j, 1 + 2j, True, True),
        (1 + 1e-9j, 1, True, False),
        (Decimal("0.5"), 0.5, True, True),
        (Decimal("0.5"), Fraction(1, 2), True, True),
        (Fraction(1, 2), 0.5, True, True),
        (Decimal("sNaN"), Decimal(1), False, False),
        (datetime.date(2020, 1, 1), datetime.date(2020, 1, 1), True, True),
        (datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1), False, False),
        (object(), object(), False, False),
    ],
)
def test_table(actual: Any, expected: Any, is_equal: bool, is_python_equal: bool) -> None:
    """One row per rule; symmetric."""
    for a, b in ((actual, expected), (expected, actual)):
        assert equal(a, b) is is_equal
        assert equal(a, b, PYTHON_EQ) is is_python_equal


def test_deep_values_end() -> None:
    """A deep answer must not exhaust the stack of the trainer."""
    a: list[Any] = []
    b: list[Any] = []
    for _ in range(100_000):
        a, b = [a], [b]
    assert equal(a, b) is False


def test_options() -> None:
    """Per-suite tolerances (EvalPlus `atol`) must reach the floats."""
    assert equal(1.05, 1.0, Comparator(rel_tol=0, abs_tol=0.1))
    assert equal(True, 1, Comparator(bool_is_int=True))
    assert not equal([1], (1,), Comparator(list_is_tuple=False))
    assert not equal(_NAN, _NAN, Comparator(nan_equal=False))


_plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda x: st.one_of(
        st.lists(x, max_size=3),
        st.tuples(x, x),
        st.dictionaries(st.integers(0, 3), x, max_size=3),
        st.frozensets(st.one_of(st.integers(0, 3), st.booleans()), max_size=3),
    ),
    max_leaves=8,
)


@given(_plain, _plain)
@settings(max_examples=300, deadline=None)
def test_symmetric_and_python_mode_is_python(a: Any, b: Any) -> None:
    """The judge's mode would differ from what the assert in a test means."""
    assert equal(a, a)
    assert equal(a, b) == equal(b, a)
    if "nan" not in repr((a, b)):
        assert equal(a, b, PYTHON_EQ) == (a == b)


ROUGH = Comparator(rel_tol=1e-6, abs_tol=0.0)
NAN_ARRAY = numpy.array([1.0, numpy.nan])


@pytest.mark.parametrize(
    ("a", "b", "same", "close"),
    [
        (numpy.array([1, 2]), numpy.array([1.0, 2.0]), True, True),
        (numpy.array([1, 2]), numpy.array([1, 3]), False, False),
        (numpy.array([1.0]), numpy.array([1.0 + 1e-9]), False, True),
        (numpy.array([1, 2]), numpy.array([[1, 2]]), False, False),
        (numpy.array([1, 2]), [1, 2], False, False),
        (numpy.array([1, 2]), (1, 2), False, False),
        (numpy.array([]), None, False, False),
        (NAN_ARRAY, NAN_ARRAY.copy(), True, True),
        (NAN_ARRAY, numpy.array([numpy.nan, 1.0]), False, False),
        (numpy.array(["a", "b"]), numpy.array(["a", "b"], "U9"), True, True),
        (numpy.array(["1"]), numpy.array([1]), False, False),
        (numpy.array([b"a"]), numpy.array(["a"]), False, False),
        (numpy.array([1, 2], "M8[s]"), numpy.array([1, 2]), False, False),
        (numpy.array([1, 2], "M8[s]"), numpy.array([1, 2], "M8[s]"), True, True),
        (numpy.array([1 + 2j]), numpy.array([1 + 2j], "c8"), True, True),
        (numpy.array(3), 3, True, True),
        (numpy.int64(3), 3, True, True),
        (numpy.float64(1 + 1e-9), 1, False, True),
        (numpy.float32(0.1), 0.1, True, True),
        (numpy.bool_(True), [True], False, False),
        (numpy.array([3]), 3, False, False),
        (numpy.array(0.1, "f4"), 0.1, True, True),
        ([numpy.eye(2), {"k": numpy.eye(1)}], [numpy.eye(2), {"k": numpy.eye(1)}], True, True),
    ],
)
def test_arrays(a: Any, b: Any, same: bool, close: bool) -> None:
    """Judged as arrays in the trainer and as data in the server: the answers must be one."""
    for left, right in ((a, b), (b, a)):
        assert equal(left, right, PYTHON_EQ) is same
        assert equal(left, right, ROUGH) is close
    if isinstance(a, numpy.ndarray) and isinstance(b, numpy.ndarray):
        assert equal(from_numpy(a), from_numpy(b), PYTHON_EQ) is same
        assert equal(from_numpy(a), b, ROUGH) is close


def test_arrays_where_nan_is_unequal() -> None:
    comparator = Comparator(nan_equal=False)
    assert not equal(NAN_ARRAY, NAN_ARRAY.copy(), comparator)
    assert equal(numpy.eye(2), numpy.eye(2), comparator)


def test_sets_made_to_be_compared_for_hours_are_unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that holds the service's interpreter stops everybody else's runs."""
    calls = []
    numbers_equal = compare._numbers_equal
    monkeypatch.setattr(compare, "_numbers_equal", lambda *a: calls.append(1) or numbers_equal(*a))
    monkeypatch.setattr(compare, "MAX_COMPARISONS", 20_000)

    def members(end: float) -> frozenset[object]:
        return frozenset((*[1.5] * 400, i + end) for i in range(200))

    assert not equal(members(0.0), members(0.3))
    assert 10_000 < len(calls) <= 20_000
    small = frozenset({frozenset({0.1 + 0.2, 1.0}), frozenset({0.7})})
    assert equal(small, frozenset({frozenset({0.3, 1.0}), frozenset({0.1 + 0.6})}))
