"""JUDGED and IN_PROCESS evidence: a source of tests, one outcome per test.

JUDGED: the tests run in a cage of their own and reach the program through a channel (proxy.py).
The tests never see the program's text, the program never sees what they expect. IN_PROCESS: both
share an interpreter, so a program can forge every outcome.

An outcome that passed has the status VALUE, one whose assertion failed as well, with `error_type`
"AssertionError"; any other exception is an ERROR. What is the tests' fault is named so
("TestTimeout", "TestExit" and the like) and the run is NO_RESULT, for it says nothing about the
program. A JUDGED test that passes without any program (a stub that raises) is reported as
"VacuousTest"; it never makes a verdict.
"""

import logging
import os
import time
from dataclasses import dataclass, replace

from sandbox_service import limits, protocol
from sandbox_service.claims import Claims, Record, parse_records
from sandbox_service.packages import profile_for
from sandbox_service.pool import Attempt, AttemptEnd, Pool, SlotDied
from sandbox_service.results import (
    ENDED_CALL,
    RESTARTED,
    CallStatus,
    Mode,
    Outcome,
    RunOutcome,
    RunSpec,
    Status,
    Verdict,
    account,
    classify,
    fail_internally,
    new_attempt,
    note_status,
    trouble,
    verdict_of,
)

log = logging.getLogger(__name__)

VACUOUS = "VacuousTest"
_TEST_PREFIX = "Test"  # of the error_type of what the tests are to blame for


@dataclass(frozen=True)
class _Step:
    """One attempt: what the process with the tests said, and how the attempt ended."""

    claims: Claims
    status: Status
    message: str
    is_tests_fault: bool
    end: AttemptEnd  # of the process that `status` speaks of


async def run(pool: Pool, spec: RunSpec) -> RunOutcome:
    """Runs the tests, restarting after those that end their process."""
    start = time.monotonic()
    done = RunOutcome()
    num_tests = 0
    has_retried = False
    while True:
        first = len(done.outcomes)
        try:
            if spec.mode is Mode.JUDGED:
                step = await _run_apart(pool, spec, first, done)
            else:
                step = await _run_together(pool, spec, first, done)
        except SlotDied as error:
            pool.counts["internal"] += 1
            log.warning("an attempt failed inside the sandbox: %s", error)
            if has_retried:
                fail_internally(done, num_tests, str(error))
                done.verdict = Verdict.INTERNAL
                return done
            has_retried = True
            continue
        claims = step.claims
        done.outcomes += [_outcome(record) for record in claims.outcomes]
        num_tests = max(num_tests, claims.num_tests)
        is_stopped = spec.stop_on_first_failure and any(not o.passed for o in done.outcomes)
        status, message = step.status, step.message
        if status is Status.OK and claims.tests_error is not None:
            words = ": ".join(protocol.unpack_error(claims.tests_error))
            status, message = Status.NO_RESULT, f"the tests do not load: {words}"
        elif status is Status.OK and not claims.num_tests:
            status, message = Status.NO_RESULT, "the tests hold no assert and no function test*"
        elif status is Status.OK and not is_stopped:
            if not claims.has_all_tests or len(done.outcomes) < num_tests:
                status, message = Status.NO_RESULT, "the tests ended early"
        elif status in ENDED_CALL and claims.is_loaded and not claims.violation:
            has_more = len(done.outcomes) < num_tests
            if has_more:
                done.outcomes.append(_ended(status, step.is_tests_fault))
            if step.is_tests_fault:
                status, message = Status.NO_RESULT, f"the tests failed: {done.outcomes[-1].message}"
            has_time = time.monotonic() - start < 2 * spec.limits.wall_s
            can_restart = spec.can_restart and done.num_restarts < limits.MAX_RESTARTS and has_time
            is_last = claims.has_all_tests and len(done.outcomes) >= num_tests
            may_go_on = has_more and not is_last and not spec.stop_on_first_failure
            if step.status in RESTARTED and may_go_on and can_restart:
                note_status(done, status, step.end, message)
                done.num_restarts += 1
                continue
        note_status(done, status, step.end, message)
        break
    missing = num_tests - len(done.outcomes)
    done.outcomes += [Outcome(CallStatus.NOT_RUN) for _ in range(missing)]
    if spec.mode is Mode.JUDGED and any(outcome.passed for outcome in done.outcomes):
        await _mark_vacuous(pool, spec, done)
    judged = [o for o in done.outcomes if o.error_type != VACUOUS]
    if spec.stop_on_first_failure:
        judged = [o for o in judged if o.status is not CallStatus.NOT_RUN]
    if judged or done.status is not Status.OK:
        done.verdict = verdict_of(done.status, judged)
    return done


def _outcome(record: Record) -> Outcome:
    if record.kind == protocol.VALUE:
        return Outcome(CallStatus.VALUE, cpu_us=record.cpu_us, passed=True)
    name, message = protocol.unpack_error(record.body)
    is_failure = record.kind == protocol.FAILED
    status = CallStatus.VALUE if is_failure else CallStatus.ERROR
    return Outcome(status, error_type=name, message=message, cpu_us=record.cpu_us)


def _ended(status: Status, is_tests_fault: bool) -> Outcome:
    call_status, name, message = ENDED_CALL[status]
    if is_tests_fault:
        name, message = _TEST_PREFIX + name, message.replace("call", "test")
    return Outcome(call_status, error_type=name, message=message)


async def _run_together(pool: Pool, spec: RunSpec, first: int, done: RunOutcome) -> _Step:
    nonce = os.urandom(protocol.NONCE_BYTES)
    work = (spec.tests, spec.stop_on_first_failure)
    end = await pool.run(new_attempt(spec, protocol.MODE_IN_PROCESS, work, first, nonce))
    claims = _suite_claims(end, nonce, first)
    account(done, end)
    status = classify(end, claims, spec.limits.cpu_s)
    return _Step(claims, status, trouble(claims), False, end)


async def _run_apart(pool: Pool, spec: RunSpec, first: int, done: RunOutcome) -> _Step:
    nonces = [os.urandom(protocol.NONCE_BYTES) for _ in range(2)]
    program = new_attempt(spec, protocol.MODE_SERVE, None, 0, nonces[0])
    # The clock on the wall is the tests': while the program sleeps, they wait for it.
    program = replace(program, limits=replace(spec.limits, wall_s=2 * spec.limits.wall_s + 5))
    program_end, end = await pool.run_pair(program, _tests_attempt(spec, first, nonces[1], False))
    account(done, program_end)
    done.cpu_s += end.cpu_s
    program_claims = parse_records(program_end.result, nonces[0], 0, 0)
    if not program_claims.is_started and program_end.reason in (0, protocol.REASON_STOPPED):
        raise SlotDied(f"the program did not start (wait status {program_end.wait_status})")
    claims = _suite_claims(end, nonces[1], first)
    program_status = Status.OK
    if program_end.reason != protocol.REASON_STOPPED or program_end.is_output_over:
        program_status = classify(program_end, program_claims, spec.limits.cpu_s)
    status = classify(end, claims, spec.limits.cpu_s)
    is_waiting = claims.num_calling > 0
    if program_claims.load_error is not None or program_status is Status.OUTPUT_LIMIT:
        pass
    elif status is Status.TIMEOUT and is_waiting and end.reason == protocol.REASON_WALL:
        program_status = Status.TIMEOUT
    elif not claims.is_gone:
        return _Step(claims, status, trouble(claims), status is not Status.OK, end)
    elif program_status is Status.OK:
        program_status = Status.NO_RESULT  # it left, or wrote what is no answer
    return _Step(claims, program_status, trouble(program_claims), False, program_end)


def _tests_attempt(spec: RunSpec, first: int, nonce: bytes, is_stub: bool) -> Attempt:
    tests_spec = replace(spec, program=spec.tests, profile=profile_for(spec.tests))
    work = (is_stub, spec.stop_on_first_failure and not is_stub)
    return new_attempt(tests_spec, protocol.MODE_TESTS, work, first, nonce)


def _suite_claims(end: AttemptEnd, nonce: bytes, first: int) -> Claims:
    claims = parse_records(end.result, nonce, first, protocol.MAX_TESTS, is_suite=True)
    if not claims.is_started and not end.reason:
        raise SlotDied(f"the tests did not start (wait status {end.wait_status})")
    return claims


async def _mark_vacuous(pool: Pool, spec: RunSpec, done: RunOutcome) -> None:
    """Runs the tests against a stub that raises; those that pass say nothing of the program."""
    num_seen = 0
    for _ in range(1 + limits.MAX_RESTARTS):
        nonce = os.urandom(protocol.NONCE_BYTES)
        try:
            end = await pool.run(_tests_attempt(spec, num_seen, nonce, True))
            claims = _suite_claims(end, nonce, num_seen)
        except SlotDied as error:
            log.warning("tests could not be run without the program: %s", error)
            return
        done.cpu_s += end.cpu_s
        for record in claims.outcomes:
            outcome = done.outcomes[record.call] if record.call < len(done.outcomes) else None
            if record.kind == protocol.VALUE and outcome is not None and outcome.passed:
                outcome.error_type = VACUOUS
                outcome.message = "the test passes also against a stub that raises"
        num_seen += len(claims.outcomes)
        if claims.is_finished or num_seen >= len(done.outcomes):
            return
        num_seen += 1  # the test that ended the process did not pass
