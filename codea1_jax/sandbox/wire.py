"""Runs and results as messages of the service, and back. Nothing that comes in is trusted."""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc

from codea1_jax.sandbox.verdict import CallStatus, Limits, Outcome, Run, RunResult, RunStatus
from sandbox_service import codec, limits
from sandbox_service.proto import sandbox_pb2 as pb

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


@dataclass(eq=False)
class Job:
    """One run on its way. `bad_calls` were not sent: their arguments have no plain form."""

    request: pb.RunRequest
    num_calls: int
    bad_calls: dict[int, str]
    future: "Future[RunResult]" = field(default_factory=Future)
    submitted_s: float = field(default_factory=time.monotonic)
    sent_s: float = 0.0  # for the first time
    num_copies: int = 0  # hosts that have it now
    num_retries: int = 0
    failed_at: set[Any] = field(default_factory=set)  # hosts that answered INTERNAL
    order_s: float = 0.0  # the smaller, the sooner it is sent
    home: Any = None  # the host that gets equal programs

    def __lt__(self, other: "Job") -> bool:
        return self.order_s < other.order_s


def job(run: Run, default_limits: Limits) -> "Job | RunResult":
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
        limits=_wire_limits(run.limits, default_limits),
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
    return Job(request, len(run.calls), bad_calls)


def _wire_limits(wanted: Limits, default: Limits) -> pb.Limits:
    wire = pb.Limits()
    for name in ("cpu_s", "call_cpu_s", "wall_s", "memory_bytes", "output_bytes", "value_bytes"):
        value = getattr(wanted, name)
        if value is None:
            value = getattr(default, name)
        if value is not None:
            setattr(wire, name, value)
    return wire


def result(reply: pb.RunReply, job: Job) -> RunResult:
    """Checks and decodes a reply. Raises MalformedReply."""
    if reply.status == pb.INVALID:
        return unknown(job.num_calls, f"the service refused the request: {reply.message}")
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


def unknown(num_calls: int, message: str) -> RunResult:
    outcomes = tuple(Outcome(CallStatus.UNKNOWN) for _ in range(num_calls))
    return RunResult(RunStatus.INTERNAL, outcomes, message=message)


def reason(error: BaseException) -> str:
    """What to tell the user about a failed call."""
    if isinstance(error, grpc.RpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
