"""What runs are made of and what they come to: specifications, outcomes, statuses, verdicts.

Order of verdicts: INTERNAL > TIMEOUT, MEMORY, OUTPUT_LIMIT, CRASH, NO_RESULT > ERROR > FAIL > PASS.
"""

import enum
import marshal
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sandbox_service import limits, protocol
from sandbox_service.claims import Claims
from sandbox_service.compare import Comparator
from sandbox_service.pool import Attempt, AttemptEnd


class Mode(enum.IntEnum):
    """How the evidence is got; the numbers are those of sandbox.proto."""

    VALUES = 0
    JUDGED = 1
    IN_PROCESS = 2
    STDIO = 3


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


class Comparison(enum.IntEnum):
    """How standard output is compared; the numbers are those of sandbox.proto."""

    EXACT = 0
    TOKENS = 1
    FLOATS = 2


@dataclass(frozen=True)
class StdioCase:
    """One run of a script; without `expected` its output is only reported."""

    stdin: bytes
    expected: bytes | None = None
    comparison: Comparison = Comparison.EXACT
    rel_tol: float = 0.0
    abs_tol: float = 0.0


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
    mode: Mode = Mode.VALUES
    tests: bytes = b""
    stdio: tuple[StdioCase, ...] = ()
    stop_on_first_failure: bool = False
    num_reruns: int = 0


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
    mode: Mode = Mode.VALUES
    is_flaky: bool = False


ENDED_CALL = {
    Status.TIMEOUT: (CallStatus.TIMEOUT, "Timeout", "the call used up its time"),
    Status.MEMORY: (CallStatus.MEMORY, "OutOfMemory", "the call used up its memory"),
    Status.CRASH: (CallStatus.CRASH, "Crash", "the process was killed in this call"),
    Status.NO_RESULT: (CallStatus.CRASH, "Exit", "the process ended in this call"),
    Status.OUTPUT_LIMIT: (CallStatus.OVERSIZED, "OutputLimit", "the call printed too much"),
}
RESTARTED = (Status.TIMEOUT, Status.MEMORY, Status.CRASH, Status.NO_RESULT)
_TIME_SIGNALS = (signal.SIGPROF, signal.SIGXCPU)


def new_attempt(
    spec: RunSpec,
    mode: int,
    work: object,
    first: int,
    nonce: bytes,
    *,
    is_enough: Callable[[bytearray], bool] | None = None,
) -> Attempt:
    """An attempt for the program of `spec`; see `child.run_payload` for `mode` and `work`."""
    payload: bytes = marshal.dumps(
        (  # type: ignore[arg-type]
            mode,
            spec.program,
            spec.entry_point,
            work,
            first,
            spec.limits.call_cpu_s,
            spec.limits.value_bytes,
            spec.seed,
            nonce,
        )
    )
    attempt = Attempt(payload, spec.limits, spec.profile, spec.seed % 2, is_enough=is_enough)
    if mode == protocol.MODE_SCRIPT:
        return replace(attempt, kept_output_bytes=spec.limits.output_bytes)
    return attempt


def classify(end: AttemptEnd, claims: Claims, cpu_limit_s: float) -> Status:
    """How one attempt ended, from facts that the slot observed and then from the child's claims."""
    if end.is_output_over or end.is_result_over:
        return Status.OUTPUT_LIMIT
    if end.reason in (protocol.REASON_CPU, protocol.REASON_WALL):
        return Status.TIMEOUT
    if end.reason == protocol.REASON_MEMORY:
        return Status.MEMORY
    if os.WIFSIGNALED(end.wait_status):
        number = os.WTERMSIG(end.wait_status)
        if number in _TIME_SIGNALS or (number == signal.SIGKILL and end.cpu_s >= cpu_limit_s):
            return Status.TIMEOUT
        return Status.CRASH
    if claims.violation or not claims.is_finished or os.WEXITSTATUS(end.wait_status):
        return Status.NO_RESULT
    if claims.load_error is not None:
        return Status.LOAD_ERROR
    return Status.OK


def account(done: RunOutcome, end: AttemptEnd) -> None:
    """Adds what one process printed and used."""
    room = max(0, limits.KEPT_OUTPUT_BYTES - len(done.stdout))
    done.stdout += end.stdout[:room]
    done.stdout_total += end.stdout_total
    done.cpu_s += end.cpu_s
    done.peak_rss_bytes = max(done.peak_rss_bytes, end.peak_rss_bytes)


def note_status(done: RunOutcome, status: Status, end: AttemptEnd, message: str) -> None:
    """Sets the status of the run; the first bad one stays."""
    if done.status is not Status.OK or status is Status.OK:
        return
    done.status = status
    done.message = message
    if os.WIFSIGNALED(end.wait_status):
        done.signal = os.WTERMSIG(end.wait_status)
    else:
        done.exit_code = os.WEXITSTATUS(end.wait_status)


def trouble(claims: Claims) -> str:
    """Why the program did not load, or how it broke the protocol; "" if neither."""
    if claims.load_error is not None:
        return ": ".join(protocol.unpack_error(claims.load_error))
    if claims.violation:
        return f"the program broke the result protocol: {claims.violation}"
    return ""


def fail_internally(done: RunOutcome, num_calls: int, message: str) -> None:
    """The sandbox failed: calls without an outcome are UNKNOWN, and nothing counts."""
    done.status = Status.INTERNAL
    done.message = f"the sandbox failed twice: {message}"
    missing = num_calls - len(done.outcomes)
    done.outcomes += [Outcome(CallStatus.UNKNOWN) for _ in range(missing)]


def verdict_of(status: Status, judged: list[Outcome]) -> Verdict:
    """The verdict of a run from its status and the outcomes that count."""
    if status is Status.LOAD_ERROR:
        return Verdict.ERROR
    if status is not Status.OK:
        return Verdict[status.name]
    if any(outcome.status is CallStatus.OVERSIZED for outcome in judged):
        return Verdict.OUTPUT_LIMIT
    if any(outcome.status is CallStatus.ERROR for outcome in judged):
        return Verdict.ERROR
    if all(outcome.passed for outcome in judged):
        return Verdict.PASS
    return Verdict.FAIL
