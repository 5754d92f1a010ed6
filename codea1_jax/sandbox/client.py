"""Client of the sandbox service: plain `Run`s in, plain `RunResult`s out, whatever happens.

    with local_service() as address, SandboxClient(address) as client:
        result = client.submit(Run("def f(x): return x + 1", (Call("f", (1,)),))).result()
        assert result.outcomes[0].value == 2

All runs share one bidirectional stream. At most `window` of them are with the service at a time,
the others wait here, so any number may be submitted at once. When the stream breaks it is opened
again, with growing pauses, and what was unanswered is sent again (runs have no side effects). A run
gives up as INTERNAL, with UNKNOWN outcomes, `deadline_s` after it was sent without an answer, or
when the service has shown no sign of life for that long. Trouble with the infrastructure is never
an exception.
"""

import collections
import contextlib
import itertools
import logging
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Self

import grpc

from codea1_jax.sandbox.verdict import CallStatus, Limits, Outcome, Run, RunResult, RunStatus
from sandbox_service import codec, limits
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 2.0
_TICK_S = 0.1
_MAX_INTERNAL_RETRIES = 1
_OPTIONS = (
    ("grpc.max_receive_message_length", limits.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", limits.MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
_STATUS = {
    pb.OK: RunStatus.OK,
    pb.LOAD_ERROR: RunStatus.LOAD_ERROR,
    pb.TIMEOUT: RunStatus.TIMEOUT,
    pb.MEMORY: RunStatus.MEMORY,
    pb.OUTPUT_LIMIT: RunStatus.OUTPUT_LIMIT,
    pb.CRASH: RunStatus.CRASH,
    pb.NO_RESULT: RunStatus.NO_RESULT,
    pb.INTERNAL: RunStatus.INTERNAL,
}
_CALL_STATUS = {
    pb.CALL_VALUE: CallStatus.VALUE,
    pb.CALL_ERROR: CallStatus.ERROR,
    pb.CALL_OPAQUE: CallStatus.ERROR,
    pb.CALL_OVERSIZED: CallStatus.ERROR,
    pb.CALL_TIMEOUT: CallStatus.TIMEOUT,
    pb.CALL_MEMORY: CallStatus.MEMORY,
    pb.CALL_CRASH: CallStatus.ERROR,
    pb.CALL_NOT_RUN: CallStatus.NOT_RUN,
    pb.CALL_UNKNOWN: CallStatus.UNKNOWN,
}


class MalformedReply(ValueError):
    """The service answered something that is no answer to the request."""


@dataclass
class _Job:
    """One run on its way. `bad_calls` were not sent: their arguments have no plain form."""

    request: pb.RunRequest
    num_calls: int
    bad_calls: dict[int, str]
    future: "Future[RunResult]" = field(default_factory=Future)
    submitted_s: float = field(default_factory=time.monotonic)
    sent_s: float = 0.0
    num_retries: int = 0


class SandboxClient:
    """A thread-safe connection to one service. Close it, or use it as a context manager."""

    def __init__(
        self,
        address: str,
        *,
        deadline_s: float = 180.0,
        window: int | None = None,
        default_limits: Limits | None = None,
    ) -> None:
        """Connects in the background: an unreachable service shows in the results, not here.

        Args:
          address: HOST:PORT of the service.
          deadline_s: see the module's text. Should exceed what the longest run may take.
          window: runs with the service at a time; None: what the service announces.
          default_limits: limits for runs that leave a limit at None.
        """
        self._address = address
        self._deadline_s = deadline_s
        self._window = window
        self._default_limits = default_limits or Limits()
        self._ids = itertools.count(1)
        self._lock = threading.Condition()
        self._waiting: collections.deque[_Job] = collections.deque()
        self._sent: dict[int, _Job] = {}
        self._last_sign_s = time.monotonic()
        self._is_closed = False
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._stub = pb_grpc.SandboxStub(self._channel)
        self._threads = [
            threading.Thread(target=target, name=f"sandbox-{name}", daemon=True)
            for name, target in (("stream", self._keep_streaming), ("deadlines", self._expire))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, run: Run) -> "Future[RunResult]":
        """Sends a run; the future resolves to its result and never to an exception."""
        job = self._job(run)
        if isinstance(job, RunResult):
            done: Future[RunResult] = Future()
            done.set_result(job)
            return done
        # Running futures cannot be cancelled, so nobody else resolves them.
        job.future.set_running_or_notify_cancel()
        with self._lock:
            if self._is_closed:
                job.future.set_result(_unknown(len(run.calls), "the client is closed"))
                return job.future
            if not self._waiting and not self._sent:
                self._last_sign_s = time.monotonic()  # an idle service owes no sign of life
            self._waiting.append(job)
            self._lock.notify_all()
        return job.future

    def run_many(self, runs: Sequence[Run]) -> list[RunResult]:
        """Submits all and waits for all; results in the order of the runs."""
        return [future.result() for future in [self.submit(run) for run in runs]]

    def info(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """What the service says about itself. Raises ConnectionError if it does not answer."""
        try:
            message = self._stub.GetInfo(pb.InfoRequest(), timeout=timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            raise ConnectionError(
                f"no sandbox service at {self._address}: {error.code().name}: {error.details()}"
            ) from None
        return {
            "tier": message.tier,
            "notes": list(message.notes),
            "python": message.python,
            "slots": message.slots,
            "window": message.window,
            "version": message.version,
            "codec_version": message.codec_version,
            "max_program_bytes": message.max_program_bytes,
            "max_calls": message.max_calls,
        }

    def close(self) -> None:
        """Ends the stream; unanswered runs become INTERNAL."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            jobs = [*self._sent.values(), *self._waiting]
            self._sent.clear()
            self._waiting.clear()
            self._lock.notify_all()
        self._channel.close()
        _give_up(jobs, "the client was closed")
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _job(self, run: Run) -> "_Job | RunResult":
        """Encodes a run. What cannot be sent is answered at once, as the program's own fault."""
        program = run.program.encode("utf-8", "surrogatepass")
        if len(program) > limits.MAX_PROGRAM_BYTES:
            message = f"a program of {len(program)} bytes is over {limits.MAX_PROGRAM_BYTES}"
            outcomes = tuple(Outcome(CallStatus.NOT_RUN) for _ in run.calls)
            return RunResult(RunStatus.LOAD_ERROR, outcomes, message=message)
        request = pb.RunRequest(
            program=pb.Source(inline=program),
            entry_point=run.entry_point,
            seed=run.seed,
            limits=_wire_limits(run.limits, self._default_limits),
        )
        bad_calls = {}
        for index, call in enumerate(run.calls):
            try:
                args = codec.encode(tuple(call.args), max_bytes=limits.MAX_CALL_BYTES // 2)
                kwargs = codec.encode(dict(call.kwargs), max_bytes=limits.MAX_CALL_BYTES // 4)
            except codec.CodecError as error:
                bad_calls[index] = str(error)
                continue
            invocation = pb.Invocation(entry_point=call.entry_point, args=args, kwargs=kwargs)
            request.calls.add(invocation=invocation)
        return _Job(request, len(run.calls), bad_calls)

    # The stream: one thread reads replies; gRPC's own thread pulls requests from `_requests`.

    def _keep_streaming(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._is_closed:
            with self._lock:
                while not (self._waiting or self._sent or self._is_closed):
                    self._lock.wait()
                if self._is_closed:
                    return
            got_reply = False
            try:
                if self._window is None:
                    self._window = max(1, self.info(timeout_s=5.0)["window"])
                stop = threading.Event()
                try:
                    for reply in self._stub.Execute(self._requests(stop), wait_for_ready=False):
                        got_reply = True
                        self._receive(reply)
                finally:
                    stop.set()
                reason = "the stream ended"
            except (grpc.RpcError, ConnectionError, ValueError) as error:
                reason = error.details() if isinstance(error, grpc.RpcError) else str(error)
            if self._is_closed:
                return
            pause_s = _FIRST_PAUSE_S if got_reply else min(2 * pause_s, _MAX_PAUSE_S)
            log.warning("sandbox stream to %s broke (%s); trying again", self._address, reason)
            self._take_back()
            time.sleep(pause_s * random.uniform(0.5, 1.5))

    def _take_back(self) -> None:
        """After a break: unanswered runs go to the front of the queue and keep their clocks."""
        with self._lock:
            for job in reversed(self._sent.values()):
                self._waiting.appendleft(job)
            self._sent.clear()

    def _requests(self, stop: threading.Event) -> Iterator[pb.RunRequest]:
        window = self._window or 1
        while True:
            with self._lock:
                while not stop.is_set() and not self._is_closed:
                    if self._waiting and len(self._sent) < window:
                        break
                    self._lock.wait(1.0)
                else:
                    return
                job = self._waiting.popleft()
                if job.future.done():
                    continue
                job.request.id = next(self._ids)
                job.sent_s = job.sent_s or time.monotonic()
                self._sent[job.request.id] = job
            yield job.request

    def _receive(self, reply: pb.RunReply) -> None:
        with self._lock:
            self._last_sign_s = time.monotonic()
            job = self._sent.pop(reply.id, None)
            self._lock.notify_all()
            is_retried = (
                job is not None
                and reply.status == pb.INTERNAL
                and job.num_retries < _MAX_INTERNAL_RETRIES
            )
            if job is not None and is_retried:
                job.num_retries += 1
                self._waiting.append(job)
        if job is None or is_retried or job.future.done():
            return
        try:
            result = _result(reply, job)
        except MalformedReply as error:
            log.warning("malformed reply from the sandbox: %s", error)
            result = _unknown(job.num_calls, f"malformed reply: {error}")
        _resolve(job, result)

    def _expire(self) -> None:
        """Gives up on runs whose time is over."""
        while True:
            with self._lock:
                if self._is_closed:
                    return
                self._lock.wait(_TICK_S if self._sent or self._waiting else 1.0)
                now = time.monotonic()
                is_silent = now - self._last_sign_s > self._deadline_s
                late = [
                    job
                    for job in (*self._sent.values(), *self._waiting)
                    if (job.sent_s and now - job.sent_s > self._deadline_s)
                    or (is_silent and now - job.submitted_s > self._deadline_s)
                ]
                for job in late:
                    self._sent.pop(job.request.id, None)
                    with contextlib.suppress(ValueError):
                        self._waiting.remove(job)
                if late:
                    self._lock.notify_all()
            _give_up(late, f"no answer from {self._address} within {self._deadline_s:g} s")


def _wire_limits(wanted: Limits, default: Limits) -> pb.Limits:
    wire = pb.Limits()
    for name in ("cpu_s", "call_cpu_s", "wall_s", "memory_bytes", "output_bytes", "value_bytes"):
        value = getattr(wanted, name)
        if value is None:
            value = getattr(default, name)
        if value is not None:
            setattr(wire, name, value)
    return wire


def _result(reply: pb.RunReply, job: _Job) -> RunResult:
    """Checks and decodes a reply. Raises MalformedReply."""
    if reply.status == pb.INVALID:
        return _unknown(job.num_calls, f"the service refused the request: {reply.message}")
    status = _STATUS.get(reply.status)
    if status is None:
        raise MalformedReply(f"unknown status {reply.status}")
    if len(reply.outcomes) != job.num_calls - len(job.bad_calls):
        raise MalformedReply(
            f"{len(reply.outcomes)} outcomes for {job.num_calls - len(job.bad_calls)} calls"
        )
    answered = iter(reply.outcomes)
    outcomes = tuple(
        Outcome(CallStatus.ERROR, error_type="CodecError", message=job.bad_calls[index])
        if index in job.bad_calls
        else _outcome(next(answered))
        for index in range(job.num_calls)
    )
    return RunResult(
        status=status,
        outcomes=outcomes,
        message=reply.message,
        stdout=reply.stdout.decode("utf-8", "replace"),
        cpu_s=reply.cpu_us / 1e6,
        wall_s=reply.wall_us / 1e6,
        tier=reply.tier,
    )


def _outcome(wire: pb.Outcome) -> Outcome:
    status = _CALL_STATUS.get(wire.status)
    if status is None:
        raise MalformedReply(f"unknown call status {wire.status}")
    value = None
    error_type, message = wire.error_type, wire.error_message.decode("utf-8", "replace")
    if status is CallStatus.VALUE:
        try:
            value = codec.decode(wire.value, max_bytes=limits.MAX_LIMITS.value_bytes)
        except codec.CodecError as error:
            # The service passes values on as they come: only a program that wrote to the result
            # pipe itself can have made these bytes.
            status, error_type, message = CallStatus.ERROR, "CodecError", str(error)
    return Outcome(status, value, error_type, message, wire.cpu_us / 1e6)


def _unknown(num_calls: int, message: str) -> RunResult:
    outcomes = tuple(Outcome(CallStatus.UNKNOWN) for _ in range(num_calls))
    return RunResult(RunStatus.INTERNAL, outcomes, message=message)


def _give_up(jobs: Sequence[_Job], message: str) -> None:
    for job in jobs:
        _resolve(job, _unknown(job.num_calls, message))


def _resolve(job: _Job, result: RunResult) -> None:
    # The reader and the deadline watch may both come to the end of a run: the first one counts.
    with contextlib.suppress(Exception):
        job.future.set_result(result)
