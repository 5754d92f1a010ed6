"""Checks requests and turns them into run specifications, and outcomes into replies.

Program and call texts are never parsed here: only the sandboxed process reads them.
"""

import math

from sandbox_service import codec, limits, packages
from sandbox_service.compare import PYTHON_EQ, Comparator
from sandbox_service.pool import Pool
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.protocol import CALL_INVOCATION, CALL_TEXT
from sandbox_service.results import (
    Comparison,
    Expectation,
    Mode,
    RunOutcome,
    RunSpec,
    StdioCase,
)
from sandbox_service.zygote import PROFILES

_MAX_NAME_CHARS = 1000


class InvalidRequest(ValueError):
    """The request cannot be run; the message says what to change."""


def parse(request: pb.RunRequest) -> RunSpec:
    """Checks one request. Raises InvalidRequest."""
    if request.ByteSize() > limits.MAX_REQUEST_BYTES:
        raise InvalidRequest(
            f"the request takes {request.ByteSize()} bytes; at most {limits.MAX_REQUEST_BYTES}"
        )
    mode = _parse_mode(request)
    program = _source(request.program, "program")
    tests = b""
    if mode in (Mode.JUDGED, Mode.IN_PROCESS):
        tests = _source(request.tests, "tests")
    if len(request.calls) > limits.MAX_CALLS:
        raise InvalidRequest(
            f"{len(request.calls)} calls; at most {limits.MAX_CALLS} in one run, split them"
        )
    if request.num_reruns > limits.MAX_RERUNS:
        raise InvalidRequest(
            f"num_reruns = {request.num_reruns}; at most {limits.MAX_RERUNS} reruns are made"
        )
    _check_name(request.entry_point, "entry_point")
    calls: list[tuple[int | bytes, ...]] = []
    expectations: list[Expectation | None] = []
    for index, call in enumerate(request.calls):
        calls.append(_parse_call(call, index))
        expectations.append(_parse_expectation(call, index))
    texts = (program, tests, *(call.text for call in request.calls))
    profile = _parse_profile(request.profile, texts)
    return RunSpec(
        program=program,
        calls=calls,
        expectations=expectations,
        entry_point=request.entry_point,
        profile=profile,
        limits=_parse_limits(request.limits, limits.default_limits(profile)),
        seed=request.seed,
        can_restart=not request.no_restart,
        mode=mode,
        tests=tests,
        stdio=tuple(_parse_case(case, index) for index, case in enumerate(request.stdio)),
        stop_on_first_failure=request.stop_on_first_failure,
        num_reruns=request.num_reruns,
    )


def _parse_mode(request: pb.RunRequest) -> Mode:
    """The mode, and that the request holds what it needs and nothing that it would ignore."""
    if request.mode not in Mode._value2member_map_:
        known = ", ".join(f"{mode.value} {mode.name}" for mode in Mode)
        raise InvalidRequest(f"unknown mode {int(request.mode)}; known: {known}")
    mode = Mode(request.mode)
    name = f"MODE_{mode.name}"
    if request.calls and mode is not Mode.VALUES:
        raise InvalidRequest(f"{name} takes no calls: leave calls empty or use MODE_VALUES")
    if request.HasField("tests") and mode not in (Mode.JUDGED, Mode.IN_PROCESS):
        raise InvalidRequest(
            f"{name} takes no tests: leave tests empty or use MODE_JUDGED or MODE_IN_PROCESS"
        )
    if request.stdio and mode is not Mode.STDIO:
        raise InvalidRequest(f"{name} takes no stdio cases: leave stdio empty or use MODE_STDIO")
    if mode is Mode.STDIO and not request.stdio:
        raise InvalidRequest("MODE_STDIO needs at least one case in stdio")
    if mode is Mode.STDIO and request.entry_point:
        raise InvalidRequest("MODE_STDIO runs a script: leave entry_point empty")
    if len(request.stdio) > limits.MAX_STDIO_CASES:
        raise InvalidRequest(
            f"{len(request.stdio)} stdio cases; at most {limits.MAX_STDIO_CASES} in one run"
        )
    return mode


def _source(source: pb.Source, what: str) -> bytes:
    if source.WhichOneof("source") != "inline":
        raise InvalidRequest(f"{what}.inline is missing: send the source text of the {what}")
    if len(source.inline) > limits.MAX_PROGRAM_BYTES:
        raise InvalidRequest(
            f"{what}: {len(source.inline)} bytes; at most {limits.MAX_PROGRAM_BYTES} are run"
        )
    return source.inline


def _parse_case(case: pb.StdioCase, index: int) -> StdioCase:
    if case.comparison not in Comparison._value2member_map_:
        raise InvalidRequest(f"stdio {index}: unknown comparison {int(case.comparison)}")
    if not (0 <= case.rel_tol < math.inf and 0 <= case.abs_tol < math.inf):
        raise InvalidRequest(f"stdio {index}: tolerances must be finite and not negative")
    return StdioCase(
        case.stdin,
        case.expected_stdout if case.HasField("expected_stdout") else None,
        Comparison(case.comparison),
        case.rel_tol,
        case.abs_tol,
    )


def _check_name(name: str, what: str) -> None:
    if len(name) > _MAX_NAME_CHARS or (name and not all(n.isidentifier() for n in name.split("."))):
        raise InvalidRequest(f"{what} {name[:80]!r} is not a Python name")


def _parse_profile(profile: str, texts: tuple[bytes, ...]) -> str:
    if not profile:
        return packages.profile_for(*texts)
    known = _profiles()
    if profile not in known:
        raise InvalidRequest(f"unknown profile {profile[:80]!r}; known: {', '.join(known)}")
    return profile


def _profiles() -> list[str]:
    return [name for name in PROFILES if name != "numpy" or packages.find().folder]


def _parse_call(call: pb.Call, index: int) -> tuple[int | bytes, ...]:
    kind = call.WhichOneof("call")
    if call.ByteSize() > limits.MAX_CALL_BYTES + len(call.expected):
        raise InvalidRequest(
            f"call {index} takes more than the {limits.MAX_CALL_BYTES} bytes allowed"
        )
    if kind == "text":
        return CALL_TEXT, call.text
    if kind != "invocation":
        raise InvalidRequest(f"call {index} is empty: set its text or its invocation")
    invocation = call.invocation
    if not invocation.entry_point:
        raise InvalidRequest(f"call {index} names no entry_point")
    _check_name(invocation.entry_point, f"call {index}: entry_point")
    args = _decode(invocation.args or _NO_ARGS, f"call {index}: args")
    kwargs = _decode(invocation.kwargs or _NO_KWARGS, f"call {index}: kwargs")
    if type(args) is not tuple:
        raise InvalidRequest(f"call {index}: args is a {type(args).__name__}, not a tuple")
    if type(kwargs) is not dict or not all(type(key) is str for key in kwargs):
        raise InvalidRequest(f"call {index}: kwargs is not a dict with string keys")
    name = invocation.entry_point.encode("utf-8")
    return CALL_INVOCATION, name, invocation.args or _NO_ARGS, invocation.kwargs or _NO_KWARGS


_NO_ARGS = codec.encode(())
_NO_KWARGS = codec.encode({})


def _decode(data: bytes, what: str) -> object:
    try:
        return codec.decode(data)
    except codec.CodecError as error:
        raise InvalidRequest(f"{what}: {error}") from None


def _parse_expectation(call: pb.Call, index: int) -> Expectation | None:
    if not call.HasField("expected"):
        return None
    _decode(call.expected, f"call {index}: expected")
    if not call.HasField("comparator"):
        return Expectation(call.expected, PYTHON_EQ)
    wire = call.comparator
    if not (0 <= wire.rel_tol < math.inf and 0 <= wire.abs_tol < math.inf):
        raise InvalidRequest(f"call {index}: tolerances must be finite and not negative")
    comparator = Comparator(
        wire.rel_tol, wire.abs_tol, wire.bool_is_int, wire.list_is_tuple, wire.nan_equal
    )
    return Expectation(call.expected, comparator)


def _parse_limits(wire: pb.Limits, default: limits.RunLimits) -> limits.RunLimits:
    most = limits.MAX_LIMITS
    values = {}
    for name in ("cpu_s", "call_cpu_s", "wall_s", "memory_bytes", "output_bytes", "value_bytes"):
        value = getattr(wire, name)
        if not 0 <= value <= getattr(most, name):  # NaN fails as well
            raise InvalidRequest(
                f"limits.{name} = {value} is outside 0 to {getattr(most, name)} (0: the default)"
            )
        values[name] = value or getattr(default, name)
    if values["memory_bytes"] < limits.MIN_MEMORY_BYTES:
        raise InvalidRequest(
            f"limits.memory_bytes = {wire.memory_bytes} is below {limits.MIN_MEMORY_BYTES}"
        )
    if not wire.call_cpu_s:
        values["call_cpu_s"] = min(default.call_cpu_s, values["cpu_s"])
    if not wire.wall_s:
        values["wall_s"] = max(default.wall_s, 3 * values["cpu_s"])
    return limits.RunLimits(**values)


_EVIDENCE = {
    Mode.VALUES: pb.VALUES,
    Mode.JUDGED: pb.JUDGED,
    Mode.IN_PROCESS: pb.IN_PROCESS,
    Mode.STDIO: pb.STDIO,
}


def reply(request_id: int, done: RunOutcome, tier: str, total_s: float) -> pb.RunReply:
    """The reply to a run that took `total_s` seconds, waiting included."""
    message = pb.RunReply(
        id=request_id,
        status=int(done.status),  # type: ignore[arg-type]
        verdict=int(done.verdict),  # type: ignore[arg-type]
        evidence=_EVIDENCE[done.mode],
        num_passed=sum(outcome.passed for outcome in done.outcomes),
        message=done.message,
        stdout=done.stdout,
        stdout_total=done.stdout_total,
        signal=done.signal,
        exit_code=done.exit_code,
        cpu_us=int(done.cpu_s * 1e6),
        wall_us=int(done.wall_s * 1e6),
        queue_us=int(max(0.0, total_s - done.wall_s) * 1e6),
        peak_rss_bytes=done.peak_rss_bytes,
        num_restarts=done.num_restarts,
        tier=tier,
        is_flaky=done.is_flaky,
    )
    for index, outcome in enumerate(done.outcomes):
        message.outcomes.add(
            index=index,
            status=int(outcome.status),
            value=outcome.value,
            error_type=outcome.error_type,
            error_message=outcome.message.encode("utf-8", "backslashreplace"),
            cpu_us=min(outcome.cpu_us, (1 << 64) - 1),
            passed=outcome.passed,
        )
    return message


def info(pool: Pool, window: int, version: str, python: str) -> pb.Info:
    """What a client must know about this service."""
    return pb.Info(
        version=version,
        tier=pool.tier,
        notes=pool.notes,
        python=python,
        codec_version=codec.VERSION,
        slots=pool.num_slots,
        window=window,
        profiles=_profiles(),
        packages=packages.find().versions,
        default_limits=_wire_limits(limits.RunLimits()),
        max_limits=_wire_limits(limits.MAX_LIMITS),
        max_program_bytes=limits.MAX_PROGRAM_BYTES,
        max_calls=limits.MAX_CALLS,
        max_request_bytes=limits.MAX_REQUEST_BYTES,
    )


def _wire_limits(values: limits.RunLimits) -> pb.Limits:
    return pb.Limits(
        cpu_s=values.cpu_s,
        call_cpu_s=values.call_cpu_s,
        wall_s=values.wall_s,
        memory_bytes=values.memory_bytes,
        output_bytes=values.output_bytes,
        value_bytes=values.value_bytes,
    )
