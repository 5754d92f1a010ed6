"""Hold-out evaluation by golden tests: the figure that shows whether training works at all."""

import pytest

from codea1_jax.data.location import DataError
from codea1_jax.data.record import Problem
from codea1_jax.data.verify import verified_problems
from codea1_jax.eval.golden import evaluate_embedded, parse_golden
from codea1_jax.eval.samples import EvalSample
from codea1_jax.sandbox.verdict import Limits


def _problem(question_id: str, reference: str, *tests: str) -> Problem:
    return Problem(question_id, "f", "q", "d", reference, golden_tests=tests, split="test")


DOUBLE = _problem(
    "double",
    "def f(x, y=2):\n    return x * y\n",
    "assert f(3) == 6",
    "assert f(x=0.1, y=3) == 0.3",
    "assert f([1], 2) == [1, 1]",
)
NEGATE = _problem("negate", "def f(x):\n    return -x\n", "assert f(-1) == 1", "assert f(0) == 0")


def _statuses(problem: Problem, codes: list[str], client, **options) -> list[str]:
    samples = [EvalSample(problem.question_id, code) for code in codes]
    result = evaluate_embedded(samples, [problem], client, **options)
    return [row["base_status"] for row in result["eval"][problem.question_id]]


def test_every_golden_test_counts(client):
    """One wrong verdict and the curve of the run says something untrue."""
    codes = [DOUBLE.reference, "def f(x, y=2):\n    return x + y\n", "def g(): pass\n"]
    assert _statuses(DOUBLE, codes, client) == ["pass", "fail", "fail"]
    codes = ["def f(x):\n    return 0 - x\n", "def f(x):\n    return 1\n", "not python"]
    assert _statuses(NEGATE, codes, client) == ["pass", "fail", "fail"]


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    while True: pass\n",
        "import os\ndef f(x):\n    os._exit(0)\n",
        "def f(x):\n    raise SystemExit(0)\n",
        "class A:\n    def __eq__(self, other): return True\ndef f(x):\n    return A()\n",
        "def f(x):\n    print('x' * 10**8)\n    return -x\n",
        "",
    ],
)
def test_hostile_programs_fail(client, code):
    """A program that escapes judgement would look like progress."""
    assert _statuses(NEGATE, [code], client, limits=Limits(cpu_s=1.0, call_cpu_s=0.3)) == ["fail"]


def test_result_json(client):
    """`codea1 eval --suite=embedded` reports verdicts by problem."""
    samples = [
        EvalSample("double", DOUBLE.reference),
        EvalSample("double", ""),
        EvalSample("negate", NEGATE.reference),
        EvalSample("negate", NEGATE.reference),
    ]
    result = evaluate_embedded(samples, [DOUBLE, NEGATE], client)
    assert result["pass_at_k"]["base"] == {"pass@1": 0.75, "pass@2": 1.0}
    assert result["avg_at_k"]["base"] == {"avg@1": 1.0, "avg@2": 0.75}
    statuses = [row["base_status"] for row in result["eval"]["double"]]
    assert statuses == ["pass", "fail"]
    assert result["missing"] == []


def test_unreachable_sandbox_is_unknown():
    """An outage must show as unknown, never as a pass rate of 0."""
    from codea1_jax.sandbox.client import SandboxClient

    with SandboxClient("127.0.0.1:1", deadline_s=0.5) as lost:
        result = evaluate_embedded([EvalSample("negate", NEGATE.reference)], [NEGATE], lost)
    assert result["num_unknown"] == 1
    assert result["pass_at_k"]["base"] == {}


@pytest.mark.parametrize(
    "test",
    ["assert f(g(1)) == 1", "assert f(1) > 1", "assert g(1) == 1", "f(1)", "assert f(*a) == 1"],
)
def test_golden_tests_must_be_data(test):
    """A test that is left out silently makes the hold-out easier."""
    with pytest.raises(DataError, match="p: golden test"):
        parse_golden(_problem("p", "", test))


def test_references_that_fail_their_tests_are_dropped(client):
    """A wrong reference is a wrong oracle for every answer to its question."""
    problems = [
        DOUBLE,
        _problem("wrong", "def f(x):\n    return x\n", "assert f(1) == 1", "assert f(1) == 2"),
        _problem(
            "unstable",
            "def f(x):\n    return list({'a', 'b', 'c', 'd', 'e', 'f'})\n",
            "assert f(1) == ['a', 'b', 'c', 'd', 'e', 'f']",
        ),
        _problem("broken", "def f(x):\n    return x +\n", "assert f(1) == 1"),
        _problem("untested", "def f(x):\n    return x\n"),
        _problem("unnamed", "def g(x):\n    return x\n"),
    ]
    verified = verified_problems(problems, client)
    assert [p.question_id for p in verified.kept] == ["double", "untested"]
    assert verified.dropped["wrong"] == "fails 'assert f(1) == 2'"
    assert set(verified.dropped) == {"wrong", "unstable", "broken", "unnamed"}
