"""Reading model text. If this breaks, right solutions are paid 0 and wrong tests become facts."""

import ast
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codea1_jax.coevo import extract, statements, syntax
from codea1_jax.coevo.extract import extract_code, extract_suite

SOLUTION = "def f(x):\n    return x"


def read(response, entry_point="f", **options):
    """(text of call, text of answer) per statement, or its reason."""
    suite = extract_suite(response, entry_point, **options)
    return [
        s.reason or (ast.unparse(s.call), None if s.answer is None else ast.unparse(s.answer))
        for s in suite.statements
    ]


def block(text, tag="python"):
    return f"Some prose.\n```{tag}\n{text}\n```\nMore prose."


class TestCode:
    """If this breaks, the coder is paid for its formatting instead of its program."""

    @pytest.mark.parametrize("tag", ["python", "Python", "py", "python3", "", "PYTHON ", "text"])
    def test_any_fence_tag(self, tag):
        code = extract_code(block(SOLUTION, tag), "f")
        assert code == extract.ExtractedCode(SOLUTION, True, True, False)

    def test_last_block_that_defines_the_entry_point_wins(self):
        response = block("def f(x):\n    return 1") + block(SOLUTION) + block("print(f(2))")
        assert extract_code(response, "f").text == SOLUTION

    def test_unterminated_block_is_used_and_flagged(self):
        code = extract_code("```python\n" + SOLUTION, "f")
        assert (code.text, code.is_truncated, code.defines_entry_point) == (SOLUTION, True, True)

    def test_complete_block_is_preferred_to_an_unterminated_one(self):
        code = extract_code(block(SOLUTION) + "\n```python\ndef f(x):\n    return 2", "f")
        assert (code.text, code.is_truncated) == (SOLUTION, False)

    def test_cut_inside_the_program_is_not_python(self):
        code = extract_code("```python\ndef f(x):\n    return (x +", "f")
        assert (code.is_parsed, code.is_truncated) == (False, True)

    def test_no_fence(self):
        assert extract_code(SOLUTION, "f").defines_entry_point

    def test_fence_inside_a_string(self):
        inner = 'def f(x):\n    """Example:\n```\nf(1)\n```\n    """\n    return x'
        assert extract_code(block(inner), "f").text == inner

    def test_one_line_block(self):
        assert extract_code("Here: ```python f = lambda x: x``` done", "f").defines_entry_point

    @pytest.mark.parametrize(
        "text",
        ["f = lambda x: x", "from m import g as f", "class f: pass", "f: object = len",
         "try:\n    from m import f\nexcept ImportError:\n    def f(x): pass"],
    )  # fmt: skip
    def test_ways_to_define_the_entry_point(self, text):
        assert extract_code(block(text), "f").defines_entry_point

    @pytest.mark.parametrize(
        "text", ["def g(f): pass", "def g():\n    f = 1", "f(1)", "import f.g"]
    )
    def test_entry_point_not_defined(self, text):
        code = extract_code(block(text), "f")
        assert code.is_parsed
        assert not code.defines_entry_point

    def test_nothing_at_all(self):
        assert extract_code("", "f") == extract.ExtractedCode("", False, False, False)


class TestAcceptedForms:
    """If this breaks, tests the tester wrote well are thrown away, or changed in meaning."""

    @pytest.mark.parametrize(
        ("text", "call", "answer"),
        [
            ("assert f(1) == 2", "f(1)", "2"),
            ("assert 2 == f(1)", "f(1)", "2"),
            ("assert f(1) == 2, 'msg'", "f(1)", "2"),
            ("assert (f(1) == 2)", "f(1)", "2"),
            ("assert f(1) is None", "f(1)", "None"),
            ("assert f(1) is True", "f(1)", "True"),
            ("assert f(1) == \\\n  2", "f(1)", "2"),
            ("assert f([1,\n  2]) == [\n  2, 1]", "f([1, 2])", "[2, 1]"),
            ('assert f("""a\nassert x\n""") == 1', "f('a\\nassert x\\n')", "1"),
            ("x = [1]\nassert f(x) == x", "f([1])", "[1]"),
            ("x = [1]\ny = x\nassert f([y], *x, k=y) == 1", "f([[1]], *[1], k=[1])", "1"),
            ("expected = 4\nassert f(2) == expected", "f(2)", "4"),
            ("r = f(1)\nassert r == 1", "f(1)", "1"),
            ("a, b = 1, [2]\nassert f(a) == b", "f(1)", "[2]"),
            ("x = 1\nx = [x]\nassert f(x) == 1", "f([1])", "1"),
            ("def test_it():\n    x = 3\n    assert f(x) == 1", "f(3)", "1"),
            ("class T:\n    def test(self):\n        assert f(3) == 1", "f(3)", "1"),
            ("if True:\n    assert f(3) == 1", "f(3)", "1"),
            ("assert f(1) == set([1])", "f(1)", "set([1])"),
            ("assert set([1]) == f(1)", "f(1)", "set([1])"),
            ("a = 1; assert f(a) == 2; b = 3", "f(1)", "2"),
        ],
    )
    def test_one_statement(self, text, call, answer):
        assert read(block(text)) == [(call, answer)]

    def test_bare_asserts_are_an_option(self):
        text = block("assert f(1)\nassert not f(2)")
        assert read(text) == [statements.NOT_EQUALITY] * 2
        assert read(text, accept_bare_asserts=True) == [("f(1)", "True"), ("f(2)", "False")]

    def test_calls_without_answers(self):
        text = block("f(1)\nx = 2\nf(x)\nassert f(3) == 1\nassert x == 2")
        assert read(text, predicted_answer=False) == [
            ("f(1)", None), ("f(2)", None), ("f(3)", None), statements.NOT_A_CALL,
        ]  # fmt: skip
        assert read("f(1)\nbroken (\nf(2)", predicted_answer=False) == [
            ("f(1)", None),
            ("f(2)", None),
        ]

    def test_all_blocks_share_names(self):
        assert read(block("x = 5") + block("assert f(x) == 1")) == [("f(5)", "1")]


class TestDroppedForms:
    """If this breaks, a dropped assert is free again, or becomes a test nobody wrote."""

    @pytest.mark.parametrize(
        "text",
        [
            "assert f(1) > 2",
            "assert f(1) != 2",
            "assert f(1) in [1, 2]",
            "assert f(1) == 2 == 2",
            "assert f(1) == 2 and f(2) == 3",
            "assert abs(f(1) - 2) < 1e-6",
            "assert f(1)[0] == 2",
            "assert (f(1) == 2) == True",
            "assert f(1) is 5",
            "assert 1 == 1",
            "assert",
            "assert f(",
        ],
    )
    def test_counted_once_and_dropped(self, text):
        (statement,) = extract_suite(block(text), "f").statements
        assert statement.call is None
        assert statement.reason
        assert statement.text.startswith("assert")

    @pytest.mark.parametrize(
        "text",
        [
            "for x in [1, 2]:\n    assert f(x) == 1",
            "x = [1]\nx.append(2)\nassert f(x) == 1",
            "x = [1]\nx[0] = 2\nassert f(x) == 1",
            "x = 1\nx += 1\nassert f(x) == 1",
            "x = 1\nif y:\n    x = 2\nassert f(x) == 1",
            "x = 1\ndel x\nassert f(x) == 1",
            "x = 1\nfrom m import x\nassert f(x) == 1",
            "def t():\n    x = 1\nassert f(x) == 1",
            "assert f(x) == 1",
            "x = y\nx = [x]\nx, z = y, 1\nassert f(x) == 1",
        ],
    )
    def test_names_that_may_have_changed_stay_names(self, text):
        for variant in (text, text + "\n)broken"):
            (statement,) = extract_suite(block(variant), "f").statements
            assert any(isinstance(n, ast.Name) for n in ast.walk(statement.call.args[0]))

    def test_loop_variables_are_unknown_before_they_are_bound(self):
        text = "x = 1\nfor i in y:\n    assert f(x) == 1\n    x = 2"
        assert read(block(text)) == [("f(x)", "1")]

    def test_exponential_names_are_not_expanded(self):
        lines = ["x = [1]"] + ["x = [x, x]"] * 60 + ["assert f(x) == 1"]
        (statement,) = extract_suite(block("\n".join(lines)), "f").statements
        assert sum(1 for _ in ast.walk(statement.call)) <= 20_000

    def test_deep_chain_of_names(self):
        lines = ["x = [1]"] + ["x = [x]"] * 2000 + ["assert f(x) == 1"]
        (statement,) = extract_suite(block("\n".join(lines)), "f").statements
        assert ast.unparse(statement.call).count("[") <= 120


class TestLineScanner:
    """If this breaks, one syntax error costs the tester its whole suite."""

    def test_broken_lines_do_not_take_others_along(self):
        text = (
            "assert f(1) == 1\nassert f(2) == (\nassert f(3) == 3\n"
            "assert f(4 == 4\nassert f(5) == [\n5]"
        )
        bad = statements.NOT_PYTHON
        assert read(block(text)) == [("f(1)", "1"), bad, ("f(3)", "3"), bad, ("f(5)", "[5]")]

    def test_list_markers_backticks_and_prose(self):
        text = "Tests:\n1. assert f(1) == 1\n- assert f(2) == 2\n`assert f(3) == 3`\nassertions end"
        assert read(text) == [("f(1)", "1"), ("f(2)", "2"), ("f(3)", "3")]

    def test_truncated_last_statement_counts(self):
        suite = extract_suite("```python\nassert f(1) == 1\nassert f([1, 2", "f")
        assert suite.is_truncated
        assert [s.reason for s in suite.statements] == ["", statements.NOT_PYTHON]

    def test_names_and_multi_line_values(self):
        text = "x = [\n 1,\n 2]\nassert f(x) == 1\n)"
        assert read(text) == [("f([1, 2])", "1")]

    def test_brackets_and_hashes_in_strings(self):
        text = "assert f('(#', \"'\") == '['  # ) note\nassert f(2) == 2\n)"
        assert read(text) == [("f('(#', \"'\")", "'['"), ("f(2)", "2")]


HOSTILE = [
    "", "\0", "```", "```python", "```python\n", "```python\n```", "```" * 3000, "~~~\n" * 500,
    "```python\nassert f(" + "(" * 5000, "```python\nassert f(" + "[" * 150 + "]" * 150 + ") == 1",
    "```python\nassert f(" + "-" * 20000 + "1) == 1", "assert f(" + "1+" * 20000 + "1) == 1",
    "```python\nassert f(" + "9" * 10000 + ") == 1", "assert f('\\d\\q') == '\\w'\n```",
    "```python\nassert f(1) == 1\0\n```", "assert f('\ud800') == 1", "x = (\n" * 20000,
    "if x:\n " * 200, "def f(x): return x\n" * 20000, "assert" * 10000,
    "assert f(x := 1) == (yield)",
    "```python\nlambda: " + "lambda: " * 3000 + "0", "{" * 90 + "}" * 90 + "\nassert f(1) is 1",
    "f" * 1_000_000, "assert f(\\\n" * 5000, "x = [x, x]\n" * 5000 + "assert f(x) == x",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda t: repr(t[:20]))
def test_hostile_text_never_raises_nor_warns(text):
    """A single absurd answer would end the training run."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extract_code(text, "f")
        for predicted in (True, False):
            suite = extract_suite(text, "f", predicted_answer=predicted, accept_bare_asserts=True)
            assert all(len(s.text) <= statements.MAX_STATEMENT_CHARS for s in suite.statements)


PIECES = st.sampled_from(
    ["assert ", "f(", ")", "[", "]", "{", "}", "==", "1", "x", " = ", "\n", "    ", "```", "~~~\n",
     "```python\n", "'", '"""', "\\", "#", "def t():\n", "for x in y:\n", "lambda: ", "*", ":", ",",
     "\0", "é", "match x:\n", "class A:\n", "if x:\n", "x[0] = 1\n", "is None", "not ", "await ",
     "with a as x:\n", "-", "1. "]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.lists(PIECES, max_size=60).map("".join), st.text(max_size=300)))
def test_extraction_never_raises(text):
    """A single absurd answer would end the training run."""
    extract_code(text, "f")
    for predicted in (True, False):
        extract_suite(text, "f", predicted_answer=predicted)


def test_every_assert_of_a_parsable_text_is_counted():
    """Uncounted statements are free tries for the tester."""
    source = "\n".join(
        ["def t():", "    assert f(1) == 1", "    for i in []:", "        assert f(i)", "try:",
         "    assert 1", "except E:", "    assert 2 == f(2)", "finally:", "    assert f(3) < 3",
         "match 1:", "    case 1:", "        assert f(4) == 4", "with a:", "    assert f(5) == 5"]
    )  # fmt: skip
    tree = syntax.parse_python(source)
    num_asserts = sum(isinstance(n, ast.Assert) for n in ast.walk(tree))
    assert len(extract_suite(block(source), "f").statements) == num_asserts == 7
