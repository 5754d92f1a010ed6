"""The embedded hold-out evaluation: programs against golden tests (`assert f(args) == value`).

One run per program, in a fresh process; the tests go in as calls and the values are compared here,
by the same rule as in training. Fast enough to run between training steps.
"""

import ast
import dataclasses
import datetime
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codea1_jax.coevo import literals
from codea1_jax.coevo.syntax import parse_python
from codea1_jax.data.location import DataError
from codea1_jax.data.record import Problem
from codea1_jax.data.sources import dataset_fingerprint
from codea1_jax.eval import passk
from codea1_jax.eval.runner import Client, run_groups
from codea1_jax.eval.samples import EvalSample
from codea1_jax.sandbox.verdict import Call, CallStatus, Limits, Run, RunResult, RunStatus
from sandbox_service import compare

SERVICE_LIMITS = Limits()  # the service's defaults


@dataclasses.dataclass(frozen=True)
class GoldenTest:
    """A golden test as data."""

    call: Call
    expected: Any


def parse_golden(problem: Problem) -> tuple[GoldenTest, ...]:
    """The golden tests of a problem. Raises DataError when one is not `f(literals) == literal`."""
    return tuple(_parse(problem, text) for text in problem.golden_tests)


def _parse(problem: Problem, text: str) -> GoldenTest:
    tree = parse_python(text)
    statement = tree.body[0] if tree is not None and len(tree.body) == 1 else None
    test = statement.test if isinstance(statement, ast.Assert) else None
    if (
        isinstance(test, ast.Compare)
        and len(test.ops) == 1
        and isinstance(test.ops[0], ast.Eq)
        and isinstance(test.left, ast.Call)
        and isinstance(test.left.func, ast.Name)
        and test.left.func.id == problem.entry_point
    ):
        try:
            args = tuple(literals.evaluate(arg) for arg in test.left.args)
            kwargs = {k.arg: literals.evaluate(k.value) for k in test.left.keywords if k.arg}
            if len(kwargs) == len(test.left.keywords):
                expected = literals.evaluate(test.comparators[0])
                return GoldenTest(Call(problem.entry_point, args, kwargs), expected)
        except literals.LiteralError as error:
            raise DataError(f"{problem.question_id}: golden test {text!r}: {error}") from error
    raise DataError(
        f"{problem.question_id}: golden test {text!r} is not "
        f"'assert {problem.entry_point}(literals) == literal'"
    )


def passed_tests(tests: Sequence[GoldenTest], result: RunResult) -> list[bool | None]:
    """Per test: passed, failed, or None when the sandbox could not tell."""
    if result.status is RunStatus.INTERNAL:
        return [None] * len(tests)
    passed: list[bool | None] = []
    for test, outcome in zip(tests, result.outcomes, strict=True):
        if outcome.status is CallStatus.UNKNOWN:
            passed.append(None)
        elif outcome.status is CallStatus.VALUE:
            # A value before an unclean end (a crash, a flood of output) still is the call's value.
            passed.append(compare.equal(outcome.value, test.expected))
        else:
            passed.append(False)
    return passed


def golden_run(
    problem: Problem, tests: Sequence[GoldenTest], code: str, limits: Limits = SERVICE_LIMITS
) -> Run:
    return Run(
        program=code,
        calls=tuple(test.call for test in tests),
        limits=limits,
        entry_point=problem.entry_point,
    )


def _all_passed(passed: Sequence[bool | None], result: RunResult) -> float:
    if any(p is False for p in passed):
        return 0.0
    if any(p is None for p in passed):
        return np.nan
    return float(result.status is RunStatus.OK)


def evaluate_embedded(
    samples: Sequence[EvalSample],
    problems: Sequence[Problem],
    client: Client,
    progress: Callable[[int, int], None] | None = None,
    limits: Limits = SERVICE_LIMITS,
) -> dict[str, Any]:
    """Judges samples of the hold-out problems; the result has the shape of `runner.evaluate`'s.

    There is one part, called "base": all golden tests of the problem.
    """
    start = time.monotonic()
    by_id = {problem.question_id: problem for problem in problems}
    tests = {problem.question_id: parse_golden(problem) for problem in problems}
    groups = ([golden_run(by_id[s.task_id], tests[s.task_id], s.solution, limits)] for s in samples)
    found: list[float] = [np.nan] * len(samples)
    for done, (index, (result,)) in enumerate(run_groups(groups, client), start=1):
        found[index] = _all_passed(passed_tests(tests[samples[index].task_id], result), result)
        if progress:
            progress(done, len(samples))
    correct: dict[str, list[bool | None]] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for sample, value in zip(samples, found):
        verdict = None if np.isnan(value) else bool(value)
        status = {True: "pass", False: "fail", None: "unknown"}[verdict]
        correct.setdefault(sample.task_id, []).append(verdict)
        rows.setdefault(sample.task_id, []).append(sample.to_json() | {"base_status": status})
    summary = passk.summarize(correct)
    return {
        "suite": "embedded",
        "suite_sha256": dataset_fingerprint(problems),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "num_problems": len(rows),
        "num_samples": len(samples),
        "num_unknown": sum(v is None for of_task in correct.values() for v in of_task),
        "missing": [p.question_id for p in problems if p.question_id not in rows],
        "wall_s": round(time.monotonic() - start, 3),
        "pass_at_k": {"base": {k: v for k, v in summary.items() if k.startswith("pass@")}},
        "avg_at_k": {"base": {k: v for k, v in summary.items() if k.startswith("avg@")}},
        "eval": {p.question_id: rows[p.question_id] for p in problems if p.question_id in rows},
    }
