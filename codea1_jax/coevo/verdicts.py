"""What judging found out about one problem's codes and suites: plain data, no arithmetic.

A suite does not hold the verdicts of its tests: the code does, by test key, so that one suite can
be run against one code (Code-A1) or against all codes of the question (self-play).
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any

from codea1_jax.coevo.testcase import StoredTest, TestCase, short_repr
from codea1_jax.sandbox.verdict import Verdict


class StatementStatus(enum.Enum):
    """What a tester's statement turned out to be."""

    VALID = "valid"  # executable, unique in its suite, its answer (if asked for) is right
    WRONG_ANSWER = "wrong_answer"  # executable and unique, but the predicted answer is wrong
    DUPLICATE = "duplicate"  # the same call as an earlier test of the suite
    INVALID = "invalid"  # no test of this function, or the reference has no value for it
    NOT_EXECUTED = "not_executed"  # beyond the statements that are looked at
    UNKNOWN = "unknown"  # the sandbox could not tell


@dataclasses.dataclass(frozen=True)
class StatementVerdict:
    """One statement of a suite.

    Attributes:
      text: as written.
      status: see StatementStatus.
      reason: why it is not valid; empty otherwise.
      test: the test with the reference's answer; None unless VALID or WRONG_ANSWER.
      is_dropped: it was not of the accepted form (the released system does not count these).
      is_attacking: it is run against the codes.
    """

    text: str
    status: StatementStatus
    reason: str = ""
    test: StoredTest | None = None
    is_dropped: bool = False
    is_attacking: bool = False


@dataclasses.dataclass(frozen=True)
class SuiteVerdict:
    """One suite.

    Attributes:
      statements: in order of writing, every one that was written.
      targets: indices of the codes it is run against.
      is_truncated: the response ended inside the suite.
      penalty: share of the response's characters that the configured penalty counts.
    """

    statements: tuple[StatementVerdict, ...]
    targets: tuple[int, ...]
    is_truncated: bool = False
    penalty: float = 0.0

    @property
    def attacking(self) -> tuple[StoredTest, ...]:
        """Tests that are run against the targets, in order of writing."""
        return tuple(s.test for s in self.statements if s.is_attacking and s.test is not None)


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A code's verdict on one test.

    Attributes:
      is_own_doing: the verdict is UNKNOWN because the program used up its restarts by hanging or
        crashing on earlier calls. The test proves nothing (no reward for the tester, nothing for
        the book), but the coder does not get it excused.
    """

    verdict: Verdict
    reason: str = ""
    is_own_doing: bool = False


@dataclasses.dataclass(frozen=True)
class CodeVerdict:
    """One code.

    Attributes:
      text: the program as extracted.
      is_valid: it loads and its entry point is callable; None: the sandbox could not tell.
      is_truncated: the response ended inside the program.
      reason: why it is not valid, or what failed; empty otherwise.
      judgements: by test key, for every attacking test aimed at it and every remembered test.
    """

    text: str
    is_valid: bool | None
    is_truncated: bool = False
    reason: str = ""
    judgements: Mapping[bytes, Judgement] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ProblemVerdicts:
    """All that judging found out about one problem in one step.

    Attributes:
      codes: M codes.
      suites: groups of suites; a group is what the tester's advantages are normalised over. With
        one group per code (Code-A1) this is [M][N].
      history: remembered tests that every code was replayed on.
    """

    question_id: str
    codes: tuple[CodeVerdict, ...]
    suites: tuple[tuple[SuiteVerdict, ...], ...]
    history: tuple[StoredTest, ...] = ()

    def counts(self) -> dict[str, int]:
        """Statement statuses, verdicts and codes, for metrics."""
        counts: dict[str, int] = {f"statements/{s.value}": 0 for s in StatementStatus}
        counts |= {f"verdicts/{v.value}": 0 for v in Verdict}
        counts |= {"codes/valid": 0, "codes/invalid": 0, "codes/unknown": 0, "codes/truncated": 0}
        counts |= {"suites/total": 0, "suites/truncated": 0}
        for suite in (s for group in self.suites for s in group):
            counts["suites/total"] += 1
            counts["suites/truncated"] += suite.is_truncated
            for statement in suite.statements:
                counts[f"statements/{statement.status.value}"] += 1
        for code in self.codes:
            kind = {True: "valid", False: "invalid", None: "unknown"}[code.is_valid]
            counts[f"codes/{kind}"] += 1
            counts["codes/truncated"] += code.is_truncated
            for judgement in code.judgements.values():
                counts[f"verdicts/{judgement.verdict.value}"] += 1
        return counts

    def to_json(self) -> dict[str, Any]:
        """For the rollout log: values as short reprs."""
        return {
            "question_id": self.question_id,
            "history": [_test_json(stored) for stored in self.history],
            "codes": [
                {
                    "text": code.text,
                    "is_valid": code.is_valid,
                    "is_truncated": code.is_truncated,
                    "reason": code.reason,
                    "history": [_judgement_json(code, t.test) for t in self.history],
                }
                for code in self.codes
            ],
            "suites": [[self._suite_json(suite) for suite in group] for group in self.suites],
        }

    def _suite_json(self, suite: SuiteVerdict) -> dict[str, Any]:
        rows = []
        for statement in suite.statements:
            row: dict[str, Any] = {"text": statement.text, "status": statement.status.value}
            if statement.reason:
                row["reason"] = statement.reason
            if statement.test is not None:
                row |= _test_json(statement.test)
            if statement.is_attacking and statement.test is not None:
                test = statement.test.test
                row["verdicts"] = [_judgement_json(self.codes[m], test) for m in suite.targets]
            rows.append(row)
        return {
            "targets": list(suite.targets),
            "is_truncated": suite.is_truncated,
            "statements": rows,
        }


def unknown_share(problems: Iterable[ProblemVerdicts]) -> float:
    """Share of codes, or of executed statements, without a verdict: the larger, 0 to 1.

    Counts what the sandbox failed at, not tests that a program kept from running by its own hangs
    and crashes.
    """
    code_shares: list[bool] = []
    statement_shares: list[bool] = []
    for problem in problems:
        for code in problem.codes:
            is_unknown = code.is_valid is None or any(
                j.verdict is Verdict.UNKNOWN and not j.is_own_doing
                for j in code.judgements.values()
            )
            code_shares.append(is_unknown)
        for suite in (s for group in problem.suites for s in group):
            statuses = [s.status for s in suite.statements]
            statement_shares += [
                s is StatementStatus.UNKNOWN
                for s in statuses
                if s is not StatementStatus.NOT_EXECUTED
            ]
    return max(
        sum(found) / len(found) if found else 0.0 for found in (code_shares, statement_shares)
    )


def _test_json(stored: StoredTest) -> dict[str, str]:
    return {"call": stored.test.text, "expected": short_repr(stored.expected)}


def _judgement_json(code: CodeVerdict, test: TestCase) -> str:
    judgement = code.judgements.get(test.key)
    if judgement is None:
        return ""
    return f"{judgement.verdict.value}: {judgement.reason}".removesuffix(": ")
