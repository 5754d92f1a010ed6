"""What the sandbox says about a run, in plain Python (no gRPC types, no JAX).

A test's verdict is three-way. PASS and FAIL are facts about the program; UNKNOWN is a fact about
the infrastructure, never a reward of 0: it is masked out of statistics, loss and book, and counted.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any


class Verdict(enum.Enum):
    """Verdict of one program on one test."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"


class RunStatus(enum.Enum):
    """How a whole run ended. Order of precedence: sandbox_service/README.md."""

    OK = "ok"  # the program loaded, every call has an outcome, the run ended cleanly
    LOAD_ERROR = "load_error"  # the program did not compile or its top level raised
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    CRASH = "crash"  # killed by a signal
    NO_RESULT = "no_result"  # ended early or broke the result protocol
    INTERNAL = "internal"  # the sandbox failed, or could not be reached in time: unknown


class CallStatus(enum.Enum):
    """How one call ended."""

    VALUE = "value"
    ERROR = "error"  # the call raised (SystemExit included), or its value has no plain form
    TIMEOUT = "timeout"
    MEMORY = "memory"
    NOT_RUN = "not_run"  # the run ended before this call; RunStatus says who is to blame
    UNKNOWN = "unknown"  # the sandbox failed


@dataclasses.dataclass(frozen=True)
class Call:
    """A call as data: `entry_point(*args, **kwargs)`; arguments are values of the closed codec."""

    entry_point: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one run; durations in seconds, sizes in bytes. None: the service's default."""

    cpu_s: float | None = None  # CPU time of the whole run
    call_cpu_s: float | None = None  # CPU time of one call
    wall_s: float | None = None
    memory_bytes: int | None = None
    output_bytes: int | None = None
    value_bytes: int | None = None  # one returned value, encoded


@dataclasses.dataclass(frozen=True)
class Run:
    """One program and the calls to make in it, in one fresh process."""

    program: str
    calls: tuple[Call, ...]
    limits: Limits = Limits()
    seed: int = 0  # PYTHONHASHSEED and the `random` seed of the run
    entry_point: str = ""  # when set, the program must define this callable, else LOAD_ERROR


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one call did. `value` is set only for VALUE."""

    status: CallStatus
    value: Any = None
    error_type: str = ""
    message: str = ""
    cpu_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class RunResult:
    """One outcome per call, in order, whatever happened."""

    status: RunStatus
    outcomes: tuple[Outcome, ...]
    message: str = ""  # why the program did not load, or what the sandbox failed at
    stdout: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    tier: str = ""
