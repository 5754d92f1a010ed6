"""From one request to one answer: attempts, restarts, status, comparison and verdict.

    spec -> payload -> attempt -> claims of the child -> outcomes (-> restart) -> verdict

A call that ends its process (hang, crash, `os._exit`) is charged to that call; the calls after it
run in a new process, at most `MAX_RESTARTS` times. A failure of the sandbox is retried once and
then reported as INTERNAL, with UNKNOWN outcomes: it says nothing about the program.
"""

import asyncio
import enum
import logging
import marshal
import os
import signal
import time
from dataclasses import dataclass, field

from sandbox_service import codec, limits, protocol
from sandbox_service.compare import Comparator, equal
from sandbox_service.pool import Attempt, AttemptEnd, Pool, SlotDied

log = logging.getLogger(__name__)

_COMPARE_ON_LOOP_BYTES = 16 * 1024  # larger values are compared in a thread


class Status(enum.IntEnum):
    """How a run ended; the numbers are those of sandbox.proto."""

    OK = 1
    LOAD_ERROR = 2
    TIMEOUT = 3
    MEMORY = 4
    OUTPUT_LIMIT = 5
    CRASH = 6
    NO_RESULT = 7
    INTERNAL = 8


class Verdict(enum.IntEnum):
    """What a run is worth; the numbers are those of sandbox.proto."""

    UNSPECIFIED = 0
    PASS = 1
    FAIL = 2
    ERROR = 3
    NO_RESULT = 4
    CRASH = 5
    OUTPUT_LIMIT = 6
    MEMORY = 7
    TIMEOUT = 8
    INTERNAL = 9


class CallStatus(enum.IntEnum):
    """How one call ended; the numbers are those of sandbox.proto."""

    VALUE = 1
    ERROR = 2
    OPAQUE = 3
    OVERSIZED = 4
    TIMEOUT = 5
    MEMORY = 6
    CRASH = 7
    NOT_RUN = 8
    UNKNOWN = 9


@dataclass(frozen=True)
class Expectation:
    """The encoded right answer of a call and how to compare with it."""

    value: bytes
    comparator: Comparator


@dataclass(frozen=True)
class RunSpec:
    """A checked request. `calls` are the tuples that the child reads (see child.py)."""

    program: bytes
    calls: list[tuple[int | bytes, ...]]
    expectations: list[Expectation | None]
    entry_point: str
    profile: str
    limits: limits.RunLimits
    seed: int
    can_restart: bool = True


@dataclass
class Outcome:
    """What one call did; `value` is the candidate's claim in the codec."""

    status: CallStatus
    value: bytes = b""
    error_type: str = ""
    message: str = ""
    cpu_us: int = 0
    passed: bool = False


@dataclass
class RunOutcome:
    """One outcome per call, in order, and the account of the run."""

    status: Status = Status.OK
    verdict: Verdict = Verdict.UNSPECIFIED
    outcomes: list[Outcome] = field(default_factory=list)
    message: str = ""
    stdout: bytes = b""
    stdout_total: int = 0
    signal: int = 0
    exit_code: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_rss_bytes: int = 0
    num_restarts: int = 0


_RECORD_STATUS = {
    protocol.VALUE: CallStatus.VALUE,
    protocol.ERROR: CallStatus.ERROR,
    protocol.OPAQUE: CallStatus.OPAQUE,
    protocol.OVERSIZED: CallStatus.OVERSIZED,
}
_ENDED_CALL = {
    Status.TIMEOUT: (CallStatus.TIMEOUT, "Timeout", "the call used up its time"),
    Status.MEMORY: (CallStatus.MEMORY, "OutOfMemory", "the call used up its memory"),
    Status.CRASH: (CallStatus.CRASH, "Crash", "the process was killed in this call"),
    Status.NO_RESULT: (CallStatus.CRASH, "Exit", "the process ended in this call"),
    Status.OUTPUT_LIMIT: (CallStatus.OVERSIZED, "OutputLimit", "the call printed too much"),
}
_RESTARTED = (Status.TIMEOUT, Status.MEMORY, Status.CRASH, Status.NO_RESULT)
_TIME_SIGNALS = (signal.SIGPROF, signal.SIGXCPU)


async def run(pool: Pool, spec: RunSpec) -> RunOutcome:
    """Runs a request to its end. Raises nothing but cancellation."""
    start = time.monotonic()
    done = RunOutcome()
    has_retried = False
    while True:
        first = len(done.outcomes)
        nonce = os.urandom(protocol.NONCE_BYTES)
        try:
            end = await pool.run(_attempt(spec, first, nonce))
            claims = protocol.parse_records(end.result, nonce, first, len(spec.calls))
            if not claims.is_started and not end.reason:
                raise SlotDied(f"the process did not start (wait status {end.wait_status})")
        except SlotDied as error:
            pool.counts["internal"] += 1
            log.warning("an attempt failed inside the sandbox: %s", error)
            if has_retried:
                _fail_internally(done, spec, str(error))
                break
            has_retried = True
            continue
        status = _classify(end, claims, spec)
        _account(done, end, claims, status)
        is_last = len(done.outcomes) >= len(spec.calls)
        if status in _ENDED_CALL and claims.is_loaded and not is_last and not claims.violation:
            call_status, name, message = _ENDED_CALL[status]
            done.outcomes.append(Outcome(call_status, error_type=name, message=message))
            is_last = len(done.outcomes) >= len(spec.calls)
            has_time = time.monotonic() - start < 2 * spec.limits.wall_s
            can_restart = spec.can_restart and done.num_restarts < limits.MAX_RESTARTS and has_time
            if status in _RESTARTED and not is_last and can_restart:
                done.num_restarts += 1
                continue
        break
    missing = len(spec.calls) - len(done.outcomes)
    done.outcomes += [Outcome(CallStatus.NOT_RUN) for _ in range(missing)]
    done.wall_s = time.monotonic() - start
    await _judge(done, spec)
    return done


def _attempt(spec: RunSpec, first: int, nonce: bytes) -> Attempt:
    payload = marshal.dumps(
        (
            spec.program,
            spec.entry_point,
            tuple(spec.calls[first:]),  # not a list: programs walk frames and empty lists
            first,
            spec.limits.call_cpu_s,
            spec.limits.value_bytes,
            spec.seed,
            nonce,
        )
    )
    return Attempt(payload, spec.limits, spec.profile, spec.seed % 2)


def _fail_internally(done: RunOutcome, spec: RunSpec, message: str) -> None:
    done.status = Status.INTERNAL
    done.message = f"the sandbox failed twice: {message}"
    missing = len(spec.calls) - len(done.outcomes)
    done.outcomes += [Outcome(CallStatus.UNKNOWN) for _ in range(missing)]


def _account(done: RunOutcome, end: AttemptEnd, claims: protocol.Claims, status: Status) -> None:
    """Adds one attempt to the account of the run; the first bad status stays."""
    for record in claims.outcomes:
        outcome = Outcome(_RECORD_STATUS[record.kind], cpu_us=record.cpu_us)
        if record.kind == protocol.VALUE:
            outcome.value = record.body
        else:
            outcome.error_type, outcome.message = protocol.unpack_error(record.body)
        done.outcomes.append(outcome)
    if done.status is Status.OK and status is not Status.OK:
        done.status = status
        if claims.load_error is not None:
            done.message = ": ".join(protocol.unpack_error(claims.load_error))
        elif claims.violation:
            done.message = f"the program broke the result protocol: {claims.violation}"
        if os.WIFSIGNALED(end.wait_status):
            done.signal = os.WTERMSIG(end.wait_status)
        else:
            done.exit_code = os.WEXITSTATUS(end.wait_status)
    room = limits.KEPT_OUTPUT_BYTES - len(done.stdout)
    done.stdout += end.stdout[:room]
    done.stdout_total += end.stdout_total
    done.cpu_s += end.cpu_s
    done.peak_rss_bytes = max(done.peak_rss_bytes, end.peak_rss_bytes)


def _classify(end: AttemptEnd, claims: protocol.Claims, spec: RunSpec) -> Status:
    """How one attempt ended, from facts that the slot observed and then from the child's claims."""
    if end.is_output_over or end.is_result_over:
        return Status.OUTPUT_LIMIT
    if end.reason in (protocol.REASON_CPU, protocol.REASON_WALL):
        return Status.TIMEOUT
    if end.reason == protocol.REASON_MEMORY:
        return Status.MEMORY
    if os.WIFSIGNALED(end.wait_status):
        number = os.WTERMSIG(end.wait_status)
        if number in _TIME_SIGNALS or (number == signal.SIGKILL and end.cpu_s >= spec.limits.cpu_s):
            return Status.TIMEOUT
        return Status.CRASH
    if claims.violation or not claims.is_finished or os.WEXITSTATUS(end.wait_status):
        return Status.NO_RESULT
    if claims.load_error is not None:
        return Status.LOAD_ERROR
    if not claims.outcomes or claims.outcomes[-1].call + 1 < len(spec.calls):
        return Status.OK if not spec.calls else Status.NO_RESULT
    return Status.OK


async def _judge(done: RunOutcome, spec: RunSpec) -> None:
    """Compares values with expected ones and sets the verdict, if any call has an expectation."""
    pairs = [
        (outcome, expectation)
        for outcome, expectation in zip(done.outcomes, spec.expectations)
        if expectation is not None
    ]
    if not pairs:
        return
    size = sum(len(outcome.value) + len(expected.value) for outcome, expected in pairs)
    if size <= _COMPARE_ON_LOOP_BYTES:
        _compare(pairs)
    else:
        await asyncio.get_running_loop().run_in_executor(None, _compare, pairs)
    done.verdict = _verdict(done, [outcome for outcome, _ in pairs])


def _compare(pairs: list[tuple[Outcome, Expectation]]) -> None:
    for outcome, expected in pairs:
        if outcome.status is not CallStatus.VALUE:
            continue
        try:
            value = codec.decode(outcome.value, max_bytes=limits.MAX_LIMITS.value_bytes)
        except codec.CodecError:
            continue  # bytes that no value of ours has: the candidate wrote them itself
        right = codec.decode(expected.value, max_bytes=limits.MAX_LIMITS.value_bytes)
        outcome.passed = equal(value, right, expected.comparator)


def _verdict(done: RunOutcome, judged: list[Outcome]) -> Verdict:
    if done.status is Status.LOAD_ERROR:
        return Verdict.ERROR
    if done.status is not Status.OK:
        return Verdict[done.status.name]
    if any(outcome.status is CallStatus.OVERSIZED for outcome in judged):
        return Verdict.OUTPUT_LIMIT
    if any(outcome.status is CallStatus.ERROR for outcome in judged):
        return Verdict.ERROR
    if all(outcome.passed for outcome in judged):
        return Verdict.PASS
    return Verdict.FAIL
