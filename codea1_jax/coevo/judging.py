"""Judges codes and suites: extraction, oracle, execution, comparison.

    responses -> codes, statements -> tests -> oracle -> one run per code -> verdicts

A code runs all remembered tests and all tests aimed at it in one fresh process (in several when
there are very many), equal tests once. It never receives an expected value: calls go in, values
come out, and the comparison is made here.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

from codea1_jax.coevo.config import CoEvolutionConfig
from codea1_jax.coevo.extract import (
    ExtractedCode,
    ExtractedSuite,
    extract_code,
    extract_suite,
    penalised_share,
)
from codea1_jax.coevo.golden import golden_tests
from codea1_jax.coevo.oracle import (
    DEFAULT_COMPARATOR,
    Oracle,
    OracleAnswer,
    RunSubmitter,
    stored_test,
)
from codea1_jax.coevo.testcase import (
    InvalidTestError,
    ParsedTest,
    StoredTest,
    TestCase,
    parse_test,
    positional_parameters,
)
from codea1_jax.coevo.verdicts import (
    CodeVerdict,
    Judgement,
    ProblemVerdicts,
    StatementStatus,
    StatementVerdict,
    SuiteVerdict,
)
from codea1_jax.data.record import Problem
from codea1_jax.sandbox.verdict import (
    CallStatus,
    Limits,
    Outcome,
    Run,
    RunResult,
    RunStatus,
    Verdict,
)
from sandbox_service.compare import Comparator, equal


@dataclasses.dataclass(frozen=True)
class JudgeRequest:
    """One problem's model responses.

    Attributes:
      problem: the problem with its reference.
      code_responses: M responses of the coder.
      suite_responses: groups of responses of the tester; with one group per code, group m attacks
        code m. Empty for the golden-tests baseline (golden tests are then the history).
      history: remembered tests that every code is replayed on.
      targets: codes that each group attacks; None: group m attacks code m.
    """

    problem: Problem
    code_responses: Sequence[str]
    suite_responses: Sequence[Sequence[str]] = ()
    history: Sequence[StoredTest] = ()
    targets: Sequence[Sequence[int]] | None = None

    def group_targets(self) -> tuple[tuple[int, ...], ...]:
        num_codes, num_groups = len(self.code_responses), len(self.suite_responses)
        if self.targets is None:
            if num_groups not in (0, num_codes):
                raise ValueError(
                    f"{self.problem.question_id}: {num_groups} groups of suites for {num_codes} "
                    "codes; give one per code, or say in `targets` which codes each group attacks"
                )
            return tuple((m,) for m in range(num_groups))
        if len(self.targets) != num_groups:
            raise ValueError(f"{len(self.targets)} targets for {num_groups} groups of suites")
        if any(not 0 <= m < num_codes for group in self.targets for m in group):
            raise ValueError(f"targets {self.targets} name codes outside 0 to {num_codes - 1}")
        return tuple(tuple(group) for group in self.targets)


@dataclasses.dataclass(frozen=True)
class JudgeLimits:
    """Limits of the candidates' runs, in seconds of CPU time and bytes.

    A candidate that needs more time than allowed fails a test only if it had `time_factor` times
    what the reference needed (and at least `min_call_s`); otherwise its verdict is unknown. The
    limit of a run is chosen so that this holds for all its tests, up to `max_call_s`.
    """

    min_call_s: float = 1.0
    max_call_s: float = 5.0
    time_factor: float = 10.0
    load_s: float = 3.0
    memory_bytes: int | None = None
    calls_per_run: int = 256

    def call_s(self, tests: Iterable[StoredTest]) -> float:
        slowest = max((test.reference_cpu_s for test in tests), default=0.0)
        return min(max(self.min_call_s, self.time_factor * slowest), self.max_call_s)

    def of_run(self, call_s: float, num_calls: int) -> Limits:
        cpu_s = min(300.0, self.load_s + call_s * max(num_calls, 1))
        wall_s = 10.0 + 4 * call_s  # for programs that sleep; a hang in CPU ends long before
        return Limits(cpu_s, call_s, wall_s, self.memory_bytes)

    def is_fair(self, call_s: float, reference_cpu_s: float) -> bool:
        return call_s >= max(self.min_call_s, self.time_factor * reference_cpu_s)


@dataclasses.dataclass(frozen=True)
class _Statement:
    """A statement on its way: already settled, or a parsed test that waits for the oracle."""

    text: str
    status: StatementStatus | None
    reason: str = ""
    parsed: ParsedTest | None = None
    is_dropped: bool = False


@dataclasses.dataclass(frozen=True)
class _CodeRun:
    """One submitted run of one code."""

    request_index: int
    code_index: int
    tests: tuple[StoredTest, ...]
    call_s: float
    future: Future[RunResult]


class Judge:
    """Judges requests with one oracle and one sandbox; safe to use from several threads."""

    def __init__(
        self,
        client: RunSubmitter,
        oracle: Oracle,
        config: CoEvolutionConfig,
        comparator: Comparator = DEFAULT_COMPARATOR,
        limits: JudgeLimits = JudgeLimits(),
    ):
        self._client = client
        self._oracle = oracle
        self._config = config
        self._comparator = comparator
        self._limits = limits

    def judge_problem(self, request: JudgeRequest) -> ProblemVerdicts:
        """Judges one problem; for callers that stream problems from several threads."""
        return self.judge_batch([request])[0]

    def judge_batch(self, requests: Sequence[JudgeRequest]) -> list[ProblemVerdicts]:
        """Judges many problems at once; all runs of a phase are in flight together.

        Model text and sandbox trouble never raise. ValueError: a request is malformed.
        """
        targets = [request.group_targets() for request in requests]
        codes = [
            [extract_code(text, r.problem.entry_point) for text in r.code_responses]
            for r in requests
        ]
        read = [
            [[self._read_suite(text, r.problem) for text in group] for group in r.suite_responses]
            for r in requests
        ]
        answers = self._oracle.answers(
            [(request.problem, _waiting_tests(groups)) for request, groups in zip(requests, read)]
        )
        suites = [
            tuple(
                tuple(self._settle(*suite, found, group_targets) for suite in group)
                for group, group_targets in zip(groups, request_targets)
            )
            for groups, found, request_targets in zip(read, answers, targets)
        ]
        verdicts = self._run_codes(requests, codes, suites)
        return [
            ProblemVerdicts(r.problem.question_id, tuple(found), groups, tuple(r.history))
            for r, found, groups in zip(requests, verdicts, suites)
        ]

    def judge_golden(self, problem: Problem, code_responses: Sequence[str]) -> ProblemVerdicts:
        """Judges codes on the problem's golden tests that its reference passes."""
        (history,) = self._oracle.timed([(problem, golden_tests(problem))])
        return self.judge_problem(JudgeRequest(problem, code_responses, history=history))

    # Suites.

    def _read_suite(
        self, response: str, problem: Problem
    ) -> tuple[tuple[_Statement, ...], bool, float]:
        """(statements, is truncated, penalty) of one response."""
        suite: ExtractedSuite = extract_suite(
            response,
            problem.entry_point,
            self._config.predicted_answer,
            self._config.accept_bare_asserts,
        )
        parameters = positional_parameters(problem.reference, problem.entry_point)
        rows: list[_Statement] = []
        seen: set[bytes] = set()
        num_counted = 0
        for statement in suite.statements:
            is_dropped = statement.call is None
            num_counted += self._config.count_dropped or not is_dropped
            if num_counted > self._config.num_executed and not is_dropped:
                rows.append(_Statement(statement.text, StatementStatus.NOT_EXECUTED))
                continue
            try:
                parsed = parse_test(statement, problem.entry_point, parameters)
            except InvalidTestError as error:
                invalid = StatementStatus.INVALID
                rows.append(_Statement(statement.text, invalid, str(error)[:200], None, is_dropped))
                continue
            if parsed.test.key in seen:
                duplicate = StatementStatus.DUPLICATE
                rows.append(_Statement(statement.text, duplicate, "repeats an earlier test"))
                continue
            seen.add(parsed.test.key)
            rows.append(_Statement(statement.text, None, parsed=parsed))
        penalty = penalised_share(response, self._config.non_printable_penalty)
        return tuple(rows), suite.is_truncated, penalty

    def _settle(
        self,
        rows: Sequence[_Statement],
        is_truncated: bool,
        penalty: float,
        answers: Mapping[bytes, OracleAnswer],
        targets: tuple[int, ...],
    ) -> SuiteVerdict:
        statements = tuple(self._settle_statement(row, answers) for row in rows)
        return SuiteVerdict(statements, targets, is_truncated, penalty)

    def _settle_statement(
        self, row: _Statement, answers: Mapping[bytes, OracleAnswer]
    ) -> StatementVerdict:
        if row.parsed is None:
            assert row.status is not None
            return StatementVerdict(row.text, row.status, row.reason, None, row.is_dropped)
        answer = answers[row.parsed.test.key]
        if answer.status != "valid":
            unknown, invalid = StatementStatus.UNKNOWN, StatementStatus.INVALID
            status = unknown if answer.status == "unknown" else invalid
            return StatementVerdict(row.text, status, answer.reason)
        stored = stored_test(row.parsed.test, answers)
        is_right = not row.parsed.has_answer or equal(
            row.parsed.answer, answer.expected, self._comparator
        )
        if is_right:
            return StatementVerdict(row.text, StatementStatus.VALID, test=stored, is_attacking=True)
        return StatementVerdict(
            row.text,
            StatementStatus.WRONG_ANSWER,
            "the reference answers otherwise",
            stored,
            is_attacking=self._config.keep_wrong_answer,
        )

    # Codes.

    def _run_codes(
        self,
        requests: Sequence[JudgeRequest],
        codes: Sequence[Sequence[ExtractedCode]],
        suites: Sequence[Sequence[Sequence[SuiteVerdict]]],
    ) -> list[list[CodeVerdict]]:
        runs: list[_CodeRun] = []
        for q, request in enumerate(requests):
            for m, code in enumerate(codes[q]):
                if code.is_parsed:
                    tests = _tests_of_code(m, request.history, suites[q])
                    runs += self._submit(q, m, request.problem, code.text, tests)
        results: dict[tuple[int, int], list[tuple[_CodeRun, RunResult]]] = {}
        for run in runs:
            found = results.setdefault((run.request_index, run.code_index), [])
            found.append((run, run.future.result()))
        return [
            [self._code_verdict(code, results.get((q, m), [])) for m, code in enumerate(codes[q])]
            for q in range(len(requests))
        ]

    def _submit(
        self, q: int, m: int, problem: Problem, program: str, tests: Sequence[StoredTest]
    ) -> list[_CodeRun]:
        size = self._limits.calls_per_run
        # A code without tests still runs, without calls: it must be known whether it loads.
        starts = range(0, max(len(tests), 1), size)
        runs = []
        for chunk in (tuple(tests[start : start + size]) for start in starts):
            call_s = self._limits.call_s(chunk)
            run = Run(
                program=program,
                calls=tuple(stored.test.call for stored in chunk),
                limits=self._limits.of_run(call_s, len(chunk)),
                entry_point=problem.entry_point,
            )
            runs.append(_CodeRun(q, m, chunk, call_s, self._client.submit(run)))
        return runs

    def _code_verdict(
        self, code: ExtractedCode, results: Sequence[tuple[_CodeRun, RunResult]]
    ) -> CodeVerdict:
        if not results:
            return CodeVerdict(code.text, False, code.is_truncated, "not Python")
        loads = [_has_loaded(result) for _, result in results]
        message = next((r.message or r.status.value for _, r in results if _is_bad(r)), "")
        if False in loads:
            return CodeVerdict(code.text, False, code.is_truncated, message[:400])
        if None in loads:
            return CodeVerdict(code.text, None, code.is_truncated, message[:400])
        judgements = {
            stored.key: self._judgement(stored, outcome, result.status, run.call_s)
            for run, result in results
            for stored, outcome in zip(run.tests, result.outcomes)
        }
        return CodeVerdict(code.text, True, code.is_truncated, message[:400], judgements)

    def _judgement(
        self, stored: StoredTest, outcome: Outcome, run_status: RunStatus, call_s: float
    ) -> Judgement:
        match outcome.status:
            case CallStatus.VALUE:
                if equal(outcome.value, stored.expected, self._comparator):
                    return Judgement(Verdict.PASS)
                return Judgement(Verdict.FAIL, "wrong value")
            case CallStatus.ERROR:
                return Judgement(Verdict.FAIL, outcome.error_type[:80] or "error")
            case CallStatus.MEMORY:
                return Judgement(Verdict.FAIL, "memory")
            case CallStatus.TIMEOUT:
                if self._limits.is_fair(call_s, stored.reference_cpu_s):
                    return Judgement(Verdict.FAIL, "timeout")
                return Judgement(Verdict.UNKNOWN, "slow for the reference as well")
            case CallStatus.NOT_RUN if run_status is not RunStatus.INTERNAL:
                return Judgement(Verdict.UNKNOWN, "not run", is_own_doing=True)
        return Judgement(Verdict.UNKNOWN, "sandbox")


def _is_bad(result: RunResult) -> bool:
    return result.status is not RunStatus.OK


def _has_loaded(result: RunResult) -> bool | None:
    """Whether the program's top level ran and bound its entry point; None if unknown."""
    if result.status is RunStatus.OK:
        return True
    answered = (CallStatus.NOT_RUN, CallStatus.UNKNOWN)
    if any(outcome.status not in answered for outcome in result.outcomes):
        return True  # a call was made, so it had loaded
    return None if result.status is RunStatus.INTERNAL else False


def _waiting_tests(
    groups: Sequence[Sequence[tuple[tuple[_Statement, ...], bool, float]]],
) -> list[TestCase]:
    """Unique tests that wait for the oracle, in order of writing."""
    tests: dict[bytes, TestCase] = {}
    for rows, _, _ in (suite for group in groups for suite in group):
        for row in rows:
            if row.parsed is not None:
                tests.setdefault(row.parsed.test.key, row.parsed.test)
    return list(tests.values())


def _tests_of_code(
    code_index: int,
    history: Sequence[StoredTest],
    groups: Sequence[Sequence[SuiteVerdict]],
) -> list[StoredTest]:
    """Unique tests that a code is run on: remembered ones, then those aimed at it."""
    tests = {stored.key: stored for stored in history}
    for suite in (s for group in groups for s in group):
        if code_index in suite.targets:
            for stored in suite.attacking:
                tests.setdefault(stored.key, stored)
    return list(tests.values())
