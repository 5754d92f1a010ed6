"""From one request to one answer: attempts, restarts, comparison and verdict.

    spec -> payload -> attempt -> claims of the child -> outcomes (-> restart) -> verdict

A call that ends its process (hang, crash, `os._exit`) is charged to that call; the calls after it
run in a new process, at most `MAX_RESTARTS` times. A failure of the sandbox is retried once and
then reported as INTERNAL, with UNKNOWN outcomes: it says nothing about the program.

Here: calls and values. Scripts are in stdio.py, tests in judged.py.
"""

import asyncio
import logging
import os
import time

from sandbox_service import codec, judged, limits, protocol, stdio
from sandbox_service.claims import Record, parse_records
from sandbox_service.compare import equal
from sandbox_service.pool import Attempt, Pool, SlotDied
from sandbox_service.results import (
    ENDED_CALL,
    RESTARTED,
    CallStatus,
    Expectation,
    Mode,
    Outcome,
    RunOutcome,
    RunSpec,
    Status,
    account,
    classify,
    fail_internally,
    new_attempt,
    note_status,
    trouble,
    verdict_of,
)
from sandbox_service.results import Verdict as Verdict

log = logging.getLogger(__name__)

_COMPARE_ON_LOOP_BYTES = 16 * 1024  # larger values are compared in a thread

_RECORD_STATUS = {
    protocol.VALUE: CallStatus.VALUE,
    protocol.ERROR: CallStatus.ERROR,
    protocol.OPAQUE: CallStatus.OPAQUE,
    protocol.OVERSIZED: CallStatus.OVERSIZED,
}


async def run(pool: Pool, spec: RunSpec) -> RunOutcome:
    """Runs a request to its end, and again if reruns are asked for. Raises only cancellation."""
    done = await _run_once(pool, spec)
    for _ in range(spec.num_reruns):
        again = await _run_once(pool, spec)
        if Status.INTERNAL in (done.status, again.status):
            break  # says nothing about the program
        if _essence(again) != _essence(done):
            done.is_flaky = True
            break
    return done


def _essence(done: RunOutcome) -> list[object]:
    """What must be the same in every run of a program that is not flaky."""
    return [done.status, [(o.status, o.value, o.error_type, o.passed) for o in done.outcomes]]


async def _run_once(pool: Pool, spec: RunSpec) -> RunOutcome:
    start = time.monotonic()
    if spec.mode is Mode.STDIO:
        done = await stdio.run(pool, spec)
    elif spec.mode is Mode.VALUES:
        done = await _run_calls(pool, spec)
    else:
        done = await judged.run(pool, spec)
    done.mode = spec.mode
    done.wall_s = time.monotonic() - start
    return done


async def _run_calls(pool: Pool, spec: RunSpec) -> RunOutcome:
    start = time.monotonic()
    done = RunOutcome()
    has_retried = False
    while True:
        first = len(done.outcomes)
        nonce = os.urandom(protocol.NONCE_BYTES)
        try:
            end = await pool.run(_attempt(spec, first, nonce))
            claims = parse_records(end.result, nonce, first, len(spec.calls))
            if not claims.is_started and not end.reason:
                raise SlotDied(f"the process did not start (wait status {end.wait_status})")
        except SlotDied as error:
            pool.counts["internal"] += 1
            log.warning("an attempt failed inside the sandbox: %s", error)
            if has_retried:
                fail_internally(done, len(spec.calls), str(error))
                break
            has_retried = True
            continue
        account(done, end)
        done.outcomes += [_outcome(record) for record in claims.outcomes]
        if spec.stop_on_first_failure and await _ends_at_failure(done, spec, first):
            break
        status = classify(end, claims, spec.limits.cpu_s)
        is_last = len(done.outcomes) >= len(spec.calls)
        if status is Status.OK and not is_last:
            status = Status.NO_RESULT
        note_status(done, status, end, trouble(claims))
        if status in ENDED_CALL and claims.is_loaded and not is_last and not claims.violation:
            call_status, name, message = ENDED_CALL[status]
            done.outcomes.append(Outcome(call_status, error_type=name, message=message))
            is_last = len(done.outcomes) >= len(spec.calls)
            has_time = time.monotonic() - start < 2 * spec.limits.wall_s
            can_restart = spec.can_restart and done.num_restarts < limits.MAX_RESTARTS and has_time
            can_restart = can_restart and not spec.stop_on_first_failure
            if status in RESTARTED and not is_last and can_restart:
                done.num_restarts += 1
                continue
        break
    missing = len(spec.calls) - len(done.outcomes)
    done.outcomes += [Outcome(CallStatus.NOT_RUN) for _ in range(missing)]
    await _judge(done, spec)
    return done


def _attempt(spec: RunSpec, first: int, nonce: bytes) -> Attempt:
    work = tuple(spec.calls[first:])  # not a list: programs walk frames and empty lists
    is_enough = None
    if spec.stop_on_first_failure:
        is_enough = _FailureWatch(spec.expectations[first:])
    return new_attempt(spec, protocol.MODE_CALLS, work, first, nonce, is_enough=is_enough)


class _FailureWatch:
    """Reads outcomes as they come, to end a run at the first that does not pass."""

    def __init__(self, expectations: list[Expectation | None]) -> None:
        self._expectations = expectations
        self._index = 0
        self._at = 0

    def __call__(self, data: bytearray) -> bool:
        size = protocol.RECORD.size
        while self._at + size <= len(data) and self._index < len(self._expectations):
            _, kind, _, _, length = protocol.RECORD.unpack_from(data, self._at)
            end = self._at + size + length
            if end > len(data):
                return False
            if kind in _RECORD_STATUS:
                expected = self._expectations[self._index]
                if not _passes(kind, bytes(data[end - length : end]), expected):
                    return True
                self._index += 1
            self._at = end
        return False


def _passes(kind: int, value: bytes, expected: Expectation | None) -> bool:
    if kind != protocol.VALUE:
        return False
    if expected is None:
        return True
    outcome = Outcome(CallStatus.VALUE, value)
    _compare([(outcome, expected)])
    return outcome.passed


async def _ends_at_failure(done: RunOutcome, spec: RunSpec, first: int) -> bool:
    """Forgets what came after the first outcome that does not pass, if there is one."""
    for index in range(first, len(done.outcomes)):
        outcome, expected = done.outcomes[index], spec.expectations[index]
        kind = protocol.VALUE if outcome.status is CallStatus.VALUE else protocol.ERROR
        if not await asyncio.to_thread(_passes, kind, outcome.value, expected):
            del done.outcomes[index + 1 :]
            return True
    return False


def _outcome(record: Record) -> Outcome:
    outcome = Outcome(_RECORD_STATUS[record.kind], cpu_us=record.cpu_us)
    if record.kind == protocol.VALUE:
        outcome.value = record.body
    else:
        outcome.error_type, outcome.message = protocol.unpack_error(record.body)
    return outcome


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
    done.verdict = verdict_of(done.status, [outcome for outcome, _ in pairs])


def _compare(pairs: list[tuple[Outcome, Expectation]]) -> None:
    for outcome, expected in pairs:
        if outcome.status is not CallStatus.VALUE:
            continue
        if outcome.value == expected.value and expected.comparator.nan_equal:
            outcome.passed = True  # the usual case; only NaN could be unlike itself
            continue
        try:
            value = codec.decode(outcome.value, max_bytes=limits.MAX_LIMITS.value_bytes)
        except codec.CodecError:
            continue  # bytes that no value of ours has: the candidate wrote them itself
        right = codec.decode(expected.value, max_bytes=limits.MAX_LIMITS.value_bytes)
        outcome.passed = equal(value, right, expected.comparator)
