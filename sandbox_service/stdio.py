"""STDIO evidence: a script, one process per case, its standard output compared here.

A case ends with an error if the script does (exception, exit status), and passes if its output is
right; how the script leaves is its own affair (`sys.exit()`, `os._exit(0)`). After `MAX_RESTARTS`
cases that ended their process by force the others are not run.
"""

import asyncio
import logging
import math
import os
import re

from sandbox_service import codec, limits, protocol
from sandbox_service.claims import Claims, parse_records
from sandbox_service.pool import AttemptEnd, Pool, SlotDied
from sandbox_service.results import (
    ENDED_CALL,
    CallStatus,
    Comparison,
    Outcome,
    RunOutcome,
    RunSpec,
    Status,
    StdioCase,
    account,
    classify,
    fail_internally,
    new_attempt,
    note_status,
    verdict_of,
)

log = logging.getLogger(__name__)

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MAX_NUMBER_CHARS = 400
_COMPARE_ON_LOOP_BYTES = 16 * 1024


async def run(pool: Pool, spec: RunSpec) -> RunOutcome:
    """Runs the cases one after the other. Raises nothing but cancellation."""
    done = RunOutcome()
    kept_bytes = 0
    for case in spec.stdio:
        try:
            end, claims = await _run_case(pool, spec, case)
        except SlotDied as error:
            fail_internally(done, len(spec.stdio), str(error))
            break
        account(done, end)
        outcome, status = _outcome(end, claims, spec)
        note_status(done, status, end, outcome.message)
        if outcome.status is CallStatus.VALUE:
            if case.expected is not None:
                size = len(end.stdout) + len(case.expected)
                if size <= _COMPARE_ON_LOOP_BYTES:
                    outcome.passed = is_same_output(end.stdout, case)
                else:
                    outcome.passed = await asyncio.to_thread(is_same_output, end.stdout, case)
            value = codec.encode(end.stdout[: limits.KEPT_OUTPUT_BYTES])
            kept_bytes += len(value)
            if kept_bytes <= limits.MAX_RESULT_BYTES:
                outcome.value = value
        done.outcomes.append(outcome)
        is_failure = not outcome.passed and case.expected is not None
        if spec.stop_on_first_failure and (is_failure or outcome.status is not CallStatus.VALUE):
            break
        if status is not Status.OK and len(done.outcomes) < len(spec.stdio):
            if not spec.can_restart or done.num_restarts >= limits.MAX_RESTARTS:
                break
            done.num_restarts += 1
    missing = len(spec.stdio) - len(done.outcomes)
    done.outcomes += [Outcome(CallStatus.NOT_RUN) for _ in range(missing)]
    judged = [o for o, case in zip(done.outcomes, spec.stdio) if case.expected is not None]
    if spec.stop_on_first_failure:
        judged = [o for o in judged if o.status is not CallStatus.NOT_RUN]
    if judged:
        done.verdict = verdict_of(done.status, judged)
    return done


async def _run_case(pool: Pool, spec: RunSpec, case: StdioCase) -> tuple[AttemptEnd, Claims]:
    """One process, tried twice. Raises SlotDied when the sandbox failed both times."""
    for is_second in (False, True):
        nonce = os.urandom(protocol.NONCE_BYTES)
        try:
            end = await pool.run(new_attempt(spec, protocol.MODE_SCRIPT, case.stdin, 0, nonce))
            claims = parse_records(end.result, nonce, 0, 0)
            if not claims.is_started and not end.reason:
                raise SlotDied(f"the process did not start (wait status {end.wait_status})")
            return end, claims
        except SlotDied as error:
            pool.counts["internal"] += 1
            log.warning("a case failed inside the sandbox: %s", error)
            if is_second:
                raise
    raise AssertionError("unreachable")


def _outcome(end: AttemptEnd, claims: Claims, spec: RunSpec) -> tuple[Outcome, Status]:
    status = classify(end, claims, spec.limits.cpu_s)
    cpu_us = int(end.cpu_s * 1e6)
    if status in (Status.TIMEOUT, Status.MEMORY, Status.CRASH, Status.OUTPUT_LIMIT):
        call_status, name, message = ENDED_CALL[status]
        return Outcome(call_status, error_type=name, message=message, cpu_us=cpu_us), status
    exit_code = os.WEXITSTATUS(end.wait_status)
    if exit_code == 0:
        return Outcome(CallStatus.VALUE, cpu_us=cpu_us), Status.OK
    name, message = "Exit", f"exit status {exit_code}"
    if claims.load_error is not None:
        name, message = protocol.unpack_error(claims.load_error)
    return Outcome(CallStatus.ERROR, error_type=name, message=message, cpu_us=cpu_us), Status.OK


def is_same_output(actual: bytes, case: StdioCase) -> bool:
    """Whether `actual` is the expected output of `case`; never raises."""
    expected = case.expected or b""
    if case.comparison is Comparison.EXACT:
        return _lines(actual) == _lines(expected)
    left, right = actual.split(), expected.split()
    if case.comparison is Comparison.TOKENS or len(left) != len(right):
        return left == right
    return all(_is_same_token(a, b, case) for a, b in zip(left, right))


def _lines(output: bytes) -> list[bytes]:
    lines = [line.rstrip() for line in output.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _is_same_token(a: bytes, b: bytes, case: StdioCase) -> bool:
    if a == b:
        return True
    if max(len(a), len(b)) > _MAX_NUMBER_CHARS or not (
        _NUMBER.fullmatch(a) and _NUMBER.fullmatch(b)
    ):
        return False
    return math.isclose(float(a), float(b), rel_tol=case.rel_tol, abs_tol=case.abs_tol)
