from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_VALUES: _ClassVar[Mode]
    MODE_JUDGED: _ClassVar[Mode]
    MODE_IN_PROCESS: _ClassVar[Mode]
    MODE_STDIO: _ClassVar[Mode]

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNSPECIFIED: _ClassVar[Status]
    OK: _ClassVar[Status]
    LOAD_ERROR: _ClassVar[Status]
    TIMEOUT: _ClassVar[Status]
    MEMORY: _ClassVar[Status]
    OUTPUT_LIMIT: _ClassVar[Status]
    CRASH: _ClassVar[Status]
    NO_RESULT: _ClassVar[Status]
    INTERNAL: _ClassVar[Status]
    INVALID: _ClassVar[Status]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_PASS: _ClassVar[Verdict]
    VERDICT_FAIL: _ClassVar[Verdict]
    VERDICT_ERROR: _ClassVar[Verdict]
    VERDICT_NO_RESULT: _ClassVar[Verdict]
    VERDICT_CRASH: _ClassVar[Verdict]
    VERDICT_OUTPUT_LIMIT: _ClassVar[Verdict]
    VERDICT_MEMORY: _ClassVar[Verdict]
    VERDICT_TIMEOUT: _ClassVar[Verdict]
    VERDICT_INTERNAL: _ClassVar[Verdict]

class CallStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CALL_STATUS_UNSPECIFIED: _ClassVar[CallStatus]
    CALL_VALUE: _ClassVar[CallStatus]
    CALL_ERROR: _ClassVar[CallStatus]
    CALL_OPAQUE: _ClassVar[CallStatus]
    CALL_OVERSIZED: _ClassVar[CallStatus]
    CALL_TIMEOUT: _ClassVar[CallStatus]
    CALL_MEMORY: _ClassVar[CallStatus]
    CALL_CRASH: _ClassVar[CallStatus]
    CALL_NOT_RUN: _ClassVar[CallStatus]
    CALL_UNKNOWN: _ClassVar[CallStatus]

class Evidence(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVIDENCE_UNSPECIFIED: _ClassVar[Evidence]
    VALUES: _ClassVar[Evidence]
    JUDGED: _ClassVar[Evidence]
    IN_PROCESS: _ClassVar[Evidence]
    STDIO: _ClassVar[Evidence]
MODE_VALUES: Mode
MODE_JUDGED: Mode
MODE_IN_PROCESS: Mode
MODE_STDIO: Mode
STATUS_UNSPECIFIED: Status
OK: Status
LOAD_ERROR: Status
TIMEOUT: Status
MEMORY: Status
OUTPUT_LIMIT: Status
CRASH: Status
NO_RESULT: Status
INTERNAL: Status
INVALID: Status
VERDICT_UNSPECIFIED: Verdict
VERDICT_PASS: Verdict
VERDICT_FAIL: Verdict
VERDICT_ERROR: Verdict
VERDICT_NO_RESULT: Verdict
VERDICT_CRASH: Verdict
VERDICT_OUTPUT_LIMIT: Verdict
VERDICT_MEMORY: Verdict
VERDICT_TIMEOUT: Verdict
VERDICT_INTERNAL: Verdict
CALL_STATUS_UNSPECIFIED: CallStatus
CALL_VALUE: CallStatus
CALL_ERROR: CallStatus
CALL_OPAQUE: CallStatus
CALL_OVERSIZED: CallStatus
CALL_TIMEOUT: CallStatus
CALL_MEMORY: CallStatus
CALL_CRASH: CallStatus
CALL_NOT_RUN: CallStatus
CALL_UNKNOWN: CallStatus
EVIDENCE_UNSPECIFIED: Evidence
VALUES: Evidence
JUDGED: Evidence
IN_PROCESS: Evidence
STDIO: Evidence

class Source(_message.Message):
    __slots__ = ("inline", "digest")
    INLINE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    inline: bytes
    digest: bytes
    def __init__(self, inline: _Optional[bytes] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Invocation(_message.Message):
    __slots__ = ("entry_point", "args", "kwargs")
    ENTRY_POINT_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    KWARGS_FIELD_NUMBER: _ClassVar[int]
    entry_point: str
    args: bytes
    kwargs: bytes
    def __init__(self, entry_point: _Optional[str] = ..., args: _Optional[bytes] = ..., kwargs: _Optional[bytes] = ...) -> None: ...

class Comparator(_message.Message):
    __slots__ = ("rel_tol", "abs_tol", "bool_is_int", "list_is_tuple", "nan_equal")
    REL_TOL_FIELD_NUMBER: _ClassVar[int]
    ABS_TOL_FIELD_NUMBER: _ClassVar[int]
    BOOL_IS_INT_FIELD_NUMBER: _ClassVar[int]
    LIST_IS_TUPLE_FIELD_NUMBER: _ClassVar[int]
    NAN_EQUAL_FIELD_NUMBER: _ClassVar[int]
    rel_tol: float
    abs_tol: float
    bool_is_int: bool
    list_is_tuple: bool
    nan_equal: bool
    def __init__(self, rel_tol: _Optional[float] = ..., abs_tol: _Optional[float] = ..., bool_is_int: _Optional[bool] = ..., list_is_tuple: _Optional[bool] = ..., nan_equal: _Optional[bool] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("text", "invocation", "expected", "comparator")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    COMPARATOR_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    invocation: Invocation
    expected: bytes
    comparator: Comparator
    def __init__(self, text: _Optional[bytes] = ..., invocation: _Optional[_Union[Invocation, _Mapping]] = ..., expected: _Optional[bytes] = ..., comparator: _Optional[_Union[Comparator, _Mapping]] = ...) -> None: ...

class StdioCase(_message.Message):
    __slots__ = ("stdin", "expected_stdout", "comparison", "rel_tol", "abs_tol")
    class Comparison(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        EXACT: _ClassVar[StdioCase.Comparison]
        TOKENS: _ClassVar[StdioCase.Comparison]
        FLOATS: _ClassVar[StdioCase.Comparison]
    EXACT: StdioCase.Comparison
    TOKENS: StdioCase.Comparison
    FLOATS: StdioCase.Comparison
    STDIN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_STDOUT_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    REL_TOL_FIELD_NUMBER: _ClassVar[int]
    ABS_TOL_FIELD_NUMBER: _ClassVar[int]
    stdin: bytes
    expected_stdout: bytes
    comparison: StdioCase.Comparison
    rel_tol: float
    abs_tol: float
    def __init__(self, stdin: _Optional[bytes] = ..., expected_stdout: _Optional[bytes] = ..., comparison: _Optional[_Union[StdioCase.Comparison, str]] = ..., rel_tol: _Optional[float] = ..., abs_tol: _Optional[float] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("cpu_s", "call_cpu_s", "wall_s", "memory_bytes", "output_bytes", "value_bytes")
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    CALL_CPU_S_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    cpu_s: float
    call_cpu_s: float
    wall_s: float
    memory_bytes: int
    output_bytes: int
    value_bytes: int
    def __init__(self, cpu_s: _Optional[float] = ..., call_cpu_s: _Optional[float] = ..., wall_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., value_bytes: _Optional[int] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("id", "task_id", "program", "calls", "entry_point", "profile", "limits", "seed", "no_restart", "mode", "tests", "stdio", "stop_on_first_failure", "no_cache", "priority", "num_reruns")
    ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_POINT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NO_RESTART_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TESTS_FIELD_NUMBER: _ClassVar[int]
    STDIO_FIELD_NUMBER: _ClassVar[int]
    STOP_ON_FIRST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    NO_CACHE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NUM_RERUNS_FIELD_NUMBER: _ClassVar[int]
    id: int
    task_id: str
    program: Source
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    entry_point: str
    profile: str
    limits: Limits
    seed: int
    no_restart: bool
    mode: Mode
    tests: Source
    stdio: _containers.RepeatedCompositeFieldContainer[StdioCase]
    stop_on_first_failure: bool
    no_cache: bool
    priority: int
    num_reruns: int
    def __init__(self, id: _Optional[int] = ..., task_id: _Optional[str] = ..., program: _Optional[_Union[Source, _Mapping]] = ..., calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ..., entry_point: _Optional[str] = ..., profile: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., seed: _Optional[int] = ..., no_restart: _Optional[bool] = ..., mode: _Optional[_Union[Mode, str]] = ..., tests: _Optional[_Union[Source, _Mapping]] = ..., stdio: _Optional[_Iterable[_Union[StdioCase, _Mapping]]] = ..., stop_on_first_failure: _Optional[bool] = ..., no_cache: _Optional[bool] = ..., priority: _Optional[int] = ..., num_reruns: _Optional[int] = ...) -> None: ...

class RunRequests(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunRequest]
    def __init__(self, runs: _Optional[_Iterable[_Union[RunRequest, _Mapping]]] = ...) -> None: ...

class Suite(_message.Message):
    __slots__ = ("calls", "entry_point")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_POINT_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    entry_point: str
    def __init__(self, calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ..., entry_point: _Optional[str] = ...) -> None: ...

class MatrixRequest(_message.Message):
    __slots__ = ("programs", "suites", "template", "cells")
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    SUITES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    programs: _containers.RepeatedCompositeFieldContainer[Source]
    suites: _containers.RepeatedCompositeFieldContainer[Suite]
    template: RunRequest
    cells: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, programs: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., suites: _Optional[_Iterable[_Union[Suite, _Mapping]]] = ..., template: _Optional[_Union[RunRequest, _Mapping]] = ..., cells: _Optional[_Iterable[int]] = ...) -> None: ...

class MatrixCell(_message.Message):
    __slots__ = ("program", "suite", "reply")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    SUITE_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    program: int
    suite: int
    reply: RunReply
    def __init__(self, program: _Optional[int] = ..., suite: _Optional[int] = ..., reply: _Optional[_Union[RunReply, _Mapping]] = ...) -> None: ...

class MatrixCells(_message.Message):
    __slots__ = ("cells",)
    CELLS_FIELD_NUMBER: _ClassVar[int]
    cells: _containers.RepeatedCompositeFieldContainer[MatrixCell]
    def __init__(self, cells: _Optional[_Iterable[_Union[MatrixCell, _Mapping]]] = ...) -> None: ...

class Blob(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class PutBlobsReply(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("index", "status", "value", "error_type", "error_message", "cpu_us", "passed")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CPU_US_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    index: int
    status: CallStatus
    value: bytes
    error_type: str
    error_message: bytes
    cpu_us: int
    passed: bool
    def __init__(self, index: _Optional[int] = ..., status: _Optional[_Union[CallStatus, str]] = ..., value: _Optional[bytes] = ..., error_type: _Optional[str] = ..., error_message: _Optional[bytes] = ..., cpu_us: _Optional[int] = ..., passed: _Optional[bool] = ...) -> None: ...

class RunReply(_message.Message):
    __slots__ = ("id", "status", "verdict", "evidence", "outcomes", "num_passed", "message", "stdout", "stdout_total", "signal", "exit_code", "cpu_us", "wall_us", "queue_us", "peak_rss_bytes", "num_restarts", "tier", "cache_hit", "host", "runtime_digest", "is_flaky")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    NUM_PASSED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDOUT_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    CPU_US_FIELD_NUMBER: _ClassVar[int]
    WALL_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PEAK_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_DIGEST_FIELD_NUMBER: _ClassVar[int]
    IS_FLAKY_FIELD_NUMBER: _ClassVar[int]
    id: int
    status: Status
    verdict: Verdict
    evidence: Evidence
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    num_passed: int
    message: str
    stdout: bytes
    stdout_total: int
    signal: int
    exit_code: int
    cpu_us: int
    wall_us: int
    queue_us: int
    peak_rss_bytes: int
    num_restarts: int
    tier: str
    cache_hit: bool
    host: str
    runtime_digest: bytes
    is_flaky: bool
    def __init__(self, id: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., evidence: _Optional[_Union[Evidence, str]] = ..., outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ..., num_passed: _Optional[int] = ..., message: _Optional[str] = ..., stdout: _Optional[bytes] = ..., stdout_total: _Optional[int] = ..., signal: _Optional[int] = ..., exit_code: _Optional[int] = ..., cpu_us: _Optional[int] = ..., wall_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., peak_rss_bytes: _Optional[int] = ..., num_restarts: _Optional[int] = ..., tier: _Optional[str] = ..., cache_hit: _Optional[bool] = ..., host: _Optional[str] = ..., runtime_digest: _Optional[bytes] = ..., is_flaky: _Optional[bool] = ...) -> None: ...

class RunReplies(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[RunReply]
    def __init__(self, replies: _Optional[_Iterable[_Union[RunReply, _Mapping]]] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Info(_message.Message):
    __slots__ = ("version", "tier", "notes", "python", "codec_version", "slots", "window", "profiles", "default_limits", "max_limits", "max_program_bytes", "max_calls", "max_request_bytes", "host", "runtime_digest", "packages")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    CODEC_VERSION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_LIMITS_FIELD_NUMBER: _ClassVar[int]
    MAX_LIMITS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROGRAM_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CALLS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PACKAGES_FIELD_NUMBER: _ClassVar[int]
    version: str
    tier: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    python: str
    codec_version: int
    slots: int
    window: int
    profiles: _containers.RepeatedScalarFieldContainer[str]
    default_limits: Limits
    max_limits: Limits
    max_program_bytes: int
    max_calls: int
    max_request_bytes: int
    host: str
    runtime_digest: bytes
    packages: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., tier: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ..., python: _Optional[str] = ..., codec_version: _Optional[int] = ..., slots: _Optional[int] = ..., window: _Optional[int] = ..., profiles: _Optional[_Iterable[str]] = ..., default_limits: _Optional[_Union[Limits, _Mapping]] = ..., max_limits: _Optional[_Union[Limits, _Mapping]] = ..., max_program_bytes: _Optional[int] = ..., max_calls: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., host: _Optional[str] = ..., runtime_digest: _Optional[bytes] = ..., packages: _Optional[_Iterable[str]] = ...) -> None: ...
