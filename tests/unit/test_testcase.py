"""Tests as data. If this breaks, a test's meaning changes between tester, oracle and candidate."""

import ast
import math

import pytest

from codea1_jax.coevo import literals, testcase
from codea1_jax.coevo.extract import extract_suite

ADD = "def f(a, b=0, *rest, c=1):\n    return a"


def parse(text, reference=ADD, entry_point="f", **options):
    (statement,) = extract_suite(f"```\n{text}\n```", entry_point, **options).statements
    parameters = testcase.positional_parameters(reference, entry_point)
    return testcase.parse_test(statement, entry_point, parameters)


def evaluate(text):
    return literals.evaluate(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    "text",
    ["1", "-1", "+1.5", "~3", "-1.5e3", "True", "None", "'a'", "b'a'", "1j", "dict()",
     "[1, (2,), {3}, {4: [5]}]", "set()", "set([1, 1])", "frozenset({1})", "list((1, 2))",
     "tuple('ab')", "dict(a=1)", "'ab' * 3", "3 * [0]", "[1] + [2]", "'a' + 'b'", "(1,) * 2",
     "2**10", "10**9 + 7", "-2**31", "7 // 2", "1 / 3", "7 % 4", "not True", "list(range(5))",
     "[*range(3), 9]", "set(range(2, 8, 3))", "[[0] * 3, [1]]", "float(1)", "float('1e3')",
     "list({1: 2})"],
)  # fmt: skip
def test_literals_have_python_s_value(text):
    value, expected = evaluate(text), eval(text)
    assert value == expected
    assert type(value) is type(expected)


def test_infinities_and_nan():
    assert evaluate("float('inf')") == math.inf
    assert evaluate("-float('Infinity')") == -math.inf
    assert math.isnan(evaluate("float('nan')"))
    assert evaluate("[math.inf, math.pi]") == [math.inf, math.pi]


@pytest.mark.parametrize(
    "text",
    ["x", "f(1)", "open('a')", "[x for x in y]", "lambda: 0", "'a'.upper()", "...", "{**a}", "a.b",
     "x[0]", "f'{1}'", "1 < 2", "1 if 2 else 3", "range(3)", "[1] * 10**9", "'a' * 10**9",
     "10**10**10", "2**99999", "list(range(10**12))", "list(range(10**99))", "set([[]])",
     "[[[0] * 100] * 100] * 100", "{[]: 1}", "1 / 0", "1 % 0", "'%s' % 1", "float('x')", "set(1)",
     "list(range(0.5))", "1 << 5", "[] + ()", "not 1", "-'a'", "int('3')", "math.exp", "9**9**9",
     "list(range(1, 2, 0))", "1e400 * 0 ** -1", "__import__('os')", "(1e308) ** 2"],
)  # fmt: skip
def test_not_literals(text):
    with pytest.raises(literals.LiteralError):
        evaluate(text)


def test_depth_cap():
    node: ast.expr = ast.Constant(1)
    for _ in range(50_000):
        node = ast.List([node], ast.Load())
    with pytest.raises(literals.LiteralError):
        literals.evaluate(node)
    while isinstance(
        node, ast.List
    ):  # taken apart by hand: freeing it at once needs deep recursion
        node = node.elts.pop()


def test_keys_distinguish_types_that_compare_equal():
    """Merged keys would replay a test on arguments nobody wrote."""
    values = [
        True,
        1,
        1.0,
        (1,),
        [1],
        "1",
        b"1",
        {1},
        frozenset({1}),
        {1: 1},
        1j,
        None,
        0,
        False,
        -0.0,
    ]
    keys = [testcase.make_test("f", (value,)).key for value in values]
    assert len(set(keys)) == len(values)
    assert testcase.make_test("g", (1,)).key != testcase.make_test("f", (1,)).key
    assert testcase.make_test("f", (1,), {"k": 2}) != testcase.make_test("f", (1, 2))


def test_keys_ignore_the_order_of_dicts_and_sets():
    assert testcase.make_test("f", ({1: 2, 3: 4},)) == testcase.make_test("f", ({3: 4, 1: 2},))
    assert testcase.make_test("f", ({"a", "b"},)) == testcase.make_test("f", ({"b", "a"},))
    assert testcase.make_test("f", (), {"a": 1, "b": 2}) == testcase.make_test(
        "f", (), {"b": 2, "a": 1}
    )


def test_keyword_and_positional_spelling_are_one_test():
    """Otherwise `f(1)` and `f(a=1)` count as two unique tests."""
    assert parse("assert f(a=1, b=2) == 3").test == parse("assert f(1, 2) == 3").test
    assert parse("assert f(1, b=2) == 3").test.args == (1, 2)
    assert parse("assert f(b=1) == 3").test.kwargs == {"b": 1}
    assert parse("assert f(1, c=5) == 3").test.kwargs == {"c": 5}
    assert parse("assert f(a=1) == 2", "def f(a, /): pass").test.kwargs == {"a": 1}


def test_answer_and_calls():
    parsed = parse("assert f([1, 2], *[3]) == {'k': (1, None)}")
    assert (parsed.test.args, parsed.answer, parsed.has_answer) == (
        ([1, 2], 3),
        {"k": (1, None)},
        True,
    )
    assert not parse("f(1)", predicted_answer=False).has_answer
    assert parsed.test.text == "f([1, 2], 3)"
    assert parsed.test.call.args == ([1, 2], 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("assert abs(-3) == 3", "does not call f"),
        ("assert g.f(1) == 3", "does not call f"),
        ("assert f(x) == 3", "name 'x'"),
        ("assert f(1) == g(2)", "a call of 'g'"),
        ("assert f(1) == f(1)", "a call of 'f'"),
        ("assert f(**{'a': 1}) == 1", r"\*\*"),
        ("assert f(f(1)) == 1", "a call of 'f'"),
        ("assert f(random()) == 1", "a call of 'random'"),
        ("assert f(exec('x=1')) == 1", "a call of 'exec'"),
        ("assert f.__code__ == 1", "no call"),
        ("assert f(1) < 2", "equality"),
        ("assert f(*5) == 2", "no list or tuple"),
        ("assert f(b'x' * 65000, b'y' * 600) == 2", "65536 bytes"),
    ],
)
def test_invalid_tests_have_a_reason(text, reason):
    with pytest.raises(testcase.InvalidTestError, match=reason):
        parse(text)


def test_logged_forms_are_short():
    assert len(testcase.short_repr([0] * 10_000)) <= 120
    assert testcase.short_repr(10**5000) == "<large integer>"
