"""Problems whose reference does not pass its own tests, found and left out.

A reference that fails is a wrong oracle: every right solution would be punished for it. KodCode and
MBPP hold some such rows. Each reference is run twice with different hash seeds, because a value
that depends on the order of a set is no answer either.
"""

import dataclasses
from collections.abc import Sequence

from codea1_jax.data.record import Problem
from codea1_jax.eval.golden import (
    SERVICE_LIMITS,
    GoldenTest,
    golden_run,
    parse_golden,
    passed_tests,
)
from codea1_jax.eval.runner import Client, run_groups
from codea1_jax.sandbox.verdict import Limits, RunResult, RunStatus

SEEDS = (0, 1)


class VerificationError(RuntimeError):
    """The sandbox failed, so that nothing can be said about some references."""


@dataclasses.dataclass(frozen=True)
class Verified:
    """Problems to keep, and why each other one was left out (by question id)."""

    kept: tuple[Problem, ...]
    dropped: dict[str, str]


def verified_problems(
    problems: Sequence[Problem], client: Client, limits: Limits = SERVICE_LIMITS
) -> Verified:
    """Runs every reference on its own golden tests.

    A problem without golden tests stays when its reference loads and defines the entry point.
    """
    tests = [parse_golden(problem) for problem in problems]
    groups = (
        [dataclasses.replace(golden_run(p, own, p.reference, limits), seed=seed) for seed in SEEDS]
        for p, own in zip(problems, tests)
    )
    reasons: dict[int, str] = {}
    for index, results in run_groups(groups, client):
        reasons[index] = next(
            (reason for r in results if (reason := _failure(problems[index], tests[index], r))), ""
        )
    return Verified(
        kept=tuple(p for index, p in enumerate(problems) if not reasons[index]),
        dropped={p.question_id: reasons[i] for i, p in enumerate(problems) if reasons[i]},
    )


def _failure(problem: Problem, tests: Sequence[GoldenTest], result: RunResult) -> str:
    """Why the reference is not good; empty when it is."""
    passed = passed_tests(tests, result)
    if result.status is RunStatus.INTERNAL or any(p is None for p in passed):
        raise VerificationError(f"{problem.question_id}: the sandbox failed: {result.message}")
    if result.status is not RunStatus.OK:
        return f"{result.status.value}: {result.message}".removesuffix(": ")
    failed = [text for text, p in zip(problem.golden_tests, passed) if not p]
    return f"fails {failed[0]!r}" if failed else ""
