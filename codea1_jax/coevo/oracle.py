"""The oracle: what the reference solution answers, if its answer can be trusted.

Every new call runs in two fresh processes with different hash seeds and in opposite order; both
answers must be plain data and equal. So outputs that depend on set order, on `random`, on time, on
identity or on earlier calls do not become facts. Known answers are kept in a bounded cache, which
makes repeated tests free.

The reference runs alone: neither candidates nor predicted answers are ever in its process.
"""

import collections
import dataclasses
import hashlib
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal, Protocol

from codea1_jax.coevo.testcase import StoredTest, TestCase
from codea1_jax.data.record import Problem
from codea1_jax.sandbox.verdict import CallStatus, Limits, Outcome, Run, RunResult, RunStatus
from sandbox_service import codec
from sandbox_service.compare import Comparator, equal

# Different parity: the service keeps processes of both, so the string hashes differ as well.
SEEDS = (0, 1)
_ENTRY_OVERHEAD_BYTES = 300

DEFAULT_COMPARATOR = Comparator()


class RunSubmitter(Protocol):
    """What is needed of a sandbox client."""

    def submit(self, run: Run) -> Future[RunResult]: ...


@dataclasses.dataclass(frozen=True)
class OracleAnswer:
    """The reference's answer to one test.

    Attributes:
      status: "valid"; "invalid" (it raised, was too slow, or the answer is no stable plain value);
        "unknown" (the sandbox failed, or the reference does not even load).
      expected: the value, when valid.
      cpu_s: CPU seconds the reference needed, the slower of its runs, as `coarse_s` rounds them.
      reason: why it is not valid.
    """

    status: Literal["valid", "invalid", "unknown"]
    expected: Any = None
    cpu_s: float = 0.0
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class OracleLimits:
    """Limits of the reference's runs.

    Attributes:
      call_cpu_s: CPU seconds per call.
      value_bytes: largest encoded answer.
      calls_per_run: calls made in one process.
      memory_bytes: memory of one process; None for the service's default.
    """

    call_cpu_s: float = 2.0
    value_bytes: int = 65_536
    calls_per_run: int = 16
    memory_bytes: int | None = None

    def of_run(self, num_calls: int) -> Limits:
        cpu_s = min(300.0, 3.0 + self.call_cpu_s * num_calls)
        return Limits(
            cpu_s=cpu_s,
            call_cpu_s=self.call_cpu_s,
            wall_s=max(20.0, 3 * cpu_s),
            memory_bytes=self.memory_bytes,
        )


_Key = tuple[str, bytes, bytes]  # question id, digest of the reference, test key


class Oracle:
    """Answers tests by running reference solutions; safe to use from several threads."""

    def __init__(
        self,
        client: RunSubmitter,
        comparator: Comparator = DEFAULT_COMPARATOR,
        limits: OracleLimits = OracleLimits(),
        cache_bytes: int = 256 << 20,
    ):
        """`cache_bytes` bounds the memory of kept answers; the least recently used go first."""
        self._client = client
        self._comparator = comparator
        self._limits = limits
        self._cache_bytes = cache_bytes
        self._cache: collections.OrderedDict[_Key, tuple[OracleAnswer, int]] = (
            collections.OrderedDict()
        )
        self._used_bytes = 0
        self._lock = threading.Lock()
        self.num_hits = 0
        self.num_misses = 0

    def answers(
        self, items: Sequence[tuple[Problem, Sequence[TestCase]]]
    ) -> list[dict[bytes, OracleAnswer]]:
        """Answers by test key, one mapping per item, whatever happens in the sandbox."""
        results: list[dict[bytes, OracleAnswer]] = []
        new: list[list[TestCase]] = []
        for problem, tests in items:
            known, missing = self._look_up(problem, tests)
            results.append(known)
            new.append(missing)
        problems = [problem for problem, _ in items]
        for index, found in enumerate(self._ask(problems, new)):
            for key, answer in found.items():
                results[index][key] = answer
                self._remember(problems[index], key, answer)
        return results

    def check(
        self, items: Sequence[tuple[Problem, Sequence[StoredTest]]]
    ) -> list[dict[bytes, bool | None]]:
        """By test key: whether a remembered answer still is the reference's; None: cannot tell."""
        answers = self.answers([(p, [stored.test for stored in tests]) for p, tests in items])
        return [
            {stored.key: self._agrees(stored, found[stored.key]) for stored in tests}
            for (_, tests), found in zip(items, answers)
        ]

    def timed(
        self, items: Sequence[tuple[Problem, Sequence[StoredTest]]]
    ) -> list[tuple[StoredTest, ...]]:
        """The tests whose answer is the reference's, with the time the reference needs.

        For tests that come with their answers (golden tests): without the time, a code that is as
        slow as the reference would fail. Tests the sandbox could not check stay as they are.
        """
        answers = self.answers([(p, [stored.test for stored in tests]) for p, tests in items])
        return [
            tuple(
                dataclasses.replace(stored, reference_cpu_s=found[stored.key].cpu_s)
                for stored in tests
                if self._agrees(stored, found[stored.key]) is not False
            )
            for (_, tests), found in zip(items, answers)
        ]

    def _agrees(self, stored: StoredTest, answer: OracleAnswer) -> bool | None:
        if answer.status == "unknown":
            return None
        return answer.status == "valid" and equal(
            answer.expected, stored.expected, self._comparator
        )

    def _look_up(
        self, problem: Problem, tests: Sequence[TestCase]
    ) -> tuple[dict[bytes, OracleAnswer], list[TestCase]]:
        known: dict[bytes, OracleAnswer] = {}
        missing: dict[bytes, TestCase] = {}
        with self._lock:
            for test in tests:
                cache_key = _cache_key(problem, test.key)
                entry = self._cache.get(cache_key)
                if entry is None:
                    self.num_misses += test.key not in missing
                    missing[test.key] = test
                else:
                    self.num_hits += 1
                    self._cache.move_to_end(cache_key)
                    known[test.key] = entry[0]
        return known, list(missing.values())

    def _remember(self, problem: Problem, key: bytes, answer: OracleAnswer) -> None:
        if answer.status == "unknown":
            return
        size = len(key) + _ENTRY_OVERHEAD_BYTES
        if answer.status == "valid":
            size += len(codec.encode(answer.expected))
        with self._lock:
            cache_key = _cache_key(problem, key)
            previous = self._cache.pop(cache_key, None)
            self._used_bytes += size - (previous[1] if previous else 0)
            self._cache[cache_key] = (answer, size)
            while self._used_bytes > self._cache_bytes and self._cache:
                _, (_, freed) = self._cache.popitem(last=False)
                self._used_bytes -= freed

    def _ask(
        self, problems: Sequence[Problem], tests: Sequence[Sequence[TestCase]]
    ) -> list[dict[bytes, OracleAnswer]]:
        """Two rounds of runs; the second only for calls that returned a value in the first."""
        first = self._run_all(problems, tests, SEEDS[0])
        repeated = [
            [t for t in reversed(group) if found[t.key][0].status is CallStatus.VALUE]
            for group, found in zip(tests, first)
        ]
        second = self._run_all(problems, repeated, SEEDS[1])
        return [
            {test.key: self._combine(one[test.key], two.get(test.key)) for test in group}
            for group, one, two in zip(tests, first, second)
        ]

    def _run_all(
        self, problems: Sequence[Problem], tests: Sequence[Sequence[TestCase]], seed: int
    ) -> list[dict[bytes, tuple[Outcome, str]]]:
        """The outcome of every call with the run's message.

        A reference that hangs or crashes ends its run; the calls after it go into new runs as long
        as each run gets further.
        """
        outcomes: list[dict[bytes, tuple[Outcome, str]]] = [{} for _ in problems]
        pending = [
            (index, chunk)
            for index, group in enumerate(tests)
            for chunk in _chunks(group, self._limits.calls_per_run)
        ]
        while pending:
            submitted = [
                (index, chunk, self._client.submit(self._run(problems[index], chunk, seed)))
                for index, chunk in pending
            ]
            pending = []
            for index, chunk, future in submitted:
                result = future.result()
                left = []
                for test, outcome in zip(chunk, result.outcomes):
                    outcomes[index][test.key] = (outcome, result.message)
                    if outcome.status is CallStatus.NOT_RUN:
                        left.append(test)
                if left and len(left) < len(chunk) and result.status is not RunStatus.INTERNAL:
                    pending.append((index, left))
        return outcomes

    def _run(self, problem: Problem, tests: Sequence[TestCase], seed: int) -> Run:
        return Run(
            program=problem.reference,
            calls=tuple(test.call for test in tests),
            limits=self._limits.of_run(len(tests)),
            seed=seed,
            entry_point=problem.entry_point,
        )

    def _combine(
        self, first: tuple[Outcome, str], second: tuple[Outcome, str] | None
    ) -> OracleAnswer:
        """One answer from the outcomes of both rounds."""
        for outcome, message in (first, second) if second is not None else (first,):
            if outcome.status is CallStatus.UNKNOWN:
                return OracleAnswer("unknown", reason=f"sandbox: {outcome.message or message}")
            if outcome.status is CallStatus.NOT_RUN:
                return OracleAnswer("unknown", reason=f"the reference does not run: {message}")
            if outcome.status is not CallStatus.VALUE:
                return OracleAnswer("invalid", reason=f"reference: {_failure(outcome)}")
        assert second is not None  # the first round returned a value, so there was a second
        value, again = first[0].value, second[0].value
        try:
            codec.encode(value, max_bytes=self._limits.value_bytes)
            # Exactly equal: within the tolerance for answers, the time of day is stable.
            is_stable = codec.canonical_key(value) == codec.canonical_key(again)
        except codec.CodecError as error:
            return OracleAnswer("invalid", reason=f"the reference's answer: {error}")
        if not is_stable:
            return OracleAnswer("invalid", reason="the reference's answer is not stable")
        return OracleAnswer("valid", value, coarse_s(max(first[0].cpu_s, second[0].cpu_s)))


def _failure(outcome: Outcome) -> str:
    if outcome.status is CallStatus.ERROR:
        return f"{outcome.error_type}: {outcome.message}"[:200]
    return outcome.status.value


def _cache_key(problem: Problem, test_key: bytes) -> _Key:
    # The digest keeps data sets that share question ids, or an edited reference, apart.
    source = f"{problem.entry_point}\0{problem.reference}".encode("utf-8", "surrogatepass")
    return problem.question_id, hashlib.sha256(source).digest()[:16], test_key


def _chunks(tests: Sequence[TestCase], size: int) -> list[Sequence[TestCase]]:
    return [tests[start : start + size] for start in range(0, len(tests), size)]


def coarse_s(cpu_s: float) -> float:
    """A measured time that does not change from run to run: 0 up to 0.1 s, else the next 0.1 s.

    Remembered tests carry it, and a resumed run must remember what an uninterrupted one does. No
    limit depends on times below 0.1 s.
    """
    return 0.0 if cpu_s <= 0.1 else math.ceil(cpu_s * 10) / 10


def stored_test(test: TestCase, answers: Mapping[bytes, OracleAnswer]) -> StoredTest:
    """`test` with the oracle's answer, which must be valid."""
    answer = answers[test.key]
    if answer.status != "valid":
        raise ValueError(f"{test.text} has no valid answer: {answer.reason}")
    return StoredTest(test, answer.expected, answer.cpu_s)
