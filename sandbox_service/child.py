"""Runs one program and its calls inside the sandboxed process, and claims what they returned.

Everything in this process belongs to the candidate once its first line runs. So nothing here is
trusted later: there is no expected value, no verdict and no secret to find, and what is written to
the result pipe counts as the candidate's word. The care taken below is for honest programs: that
one which patches builtins, prints, raises strange exceptions or leaves threads behind still gets
the outcome it deserves.

Imported by the zygote before it forks; standard library only.
"""

import builtins
import io
import marshal
import os
import signal
import sys
import time
from types import ModuleType
from typing import Any, NoReturn

from sandbox_service import codec, protocol

# Bound before any candidate code runs, because it may replace the attributes of these modules.
_write = os.write
_exit = os._exit
_getpid = os.getpid
_settrace = sys.settrace
_setprofile = sys.setprofile
_setitimer = signal.setitimer
_ITIMER_PROF = signal.ITIMER_PROF
_process_time_ns = time.process_time_ns
_strip_traceback = BaseException.with_traceback
_type_name = type.__dict__["__name__"].__get__
_pack_header = protocol.RECORD.pack

MODULE_NAME = "solution"  # not "__main__": guarded script parts must not run


class Reporter:
    """Writes tagged records to the result pipe."""

    __slots__ = ("fd", "nonce", "pid")

    def __init__(self, fd: int, nonce: bytes) -> None:
        self.fd = fd
        self.nonce = nonce
        self.pid = _getpid()

    def send(self, kind: int, index: int = 0, cpu_us: int = 0, body: bytes = b"") -> None:
        # The program's hooks would otherwise run inside the lines below.
        _settrace(None)
        _setprofile(None)
        if _getpid() != self.pid:
            _exit(0)  # a program that forks and lets both sides return has one outcome, not two
        data = _pack_header(self.nonce, kind, index, cpu_us, len(body)) + body
        while data:
            data = data[_write(self.fd, data) :]


def candidate_builtins() -> ModuleType:
    """A second `builtins` module for the candidate: patching it leaves the harness whole."""
    module = ModuleType("builtins", builtins.__doc__)
    module.__dict__.update(builtins.__dict__)
    return module


_CANDIDATE_BUILTINS = candidate_builtins()  # made once: the copy costs every child 0.1 ms


def new_stdout() -> io.TextIOWrapper:
    """Text output over descriptor 1 that can print any string."""
    raw = io.FileIO(1, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw, 1 << 16), encoding="utf-8", errors="backslashreplace", newline="\n"
    )


def run_payload(payload: bytes, result_fd: int) -> NoReturn:
    """Runs a payload of `pool.pack_payload` and leaves the process; never returns."""
    status = 70
    try:
        program, entry_point, calls, first_index, call_cpu_s, value_bytes, seed, nonce = (
            marshal.loads(payload)
        )
        del payload
        stdout = sys.stdout
        _seed_random(program, calls, seed)
        reporter = Reporter(result_fd, nonce)
        reporter.send(protocol.STARTED)
        if _execute(reporter, program, entry_point, calls, first_index, call_cpu_s, value_bytes):
            io.TextIOWrapper.flush(stdout)  # type: ignore[arg-type]
            reporter.send(protocol.FINISHED)
            status = 0
    finally:
        _exit(status)


def _seed_random(program: bytes, calls: tuple[Any, ...], seed: int) -> None:
    """Makes `random` repeatable; programs that never name it do not pay for the import."""
    if b"random" in program or any(b"random" in call[1] for call in calls):
        import random

        random.seed(seed)


def _execute(
    reporter: Reporter,
    program: bytes,
    entry_point: str,
    calls: tuple[Any, ...],
    first_index: int,
    call_cpu_s: float,
    value_bytes: int,
) -> bool:
    module = ModuleType(MODULE_NAME)
    namespace = module.__dict__
    namespace["__builtins__"] = sys.modules["builtins"] = _CANDIDATE_BUILTINS
    sys.modules[MODULE_NAME] = module
    try:
        text = program.decode("utf-8", "surrogatepass")
        exec(compile(text, "<program>", "exec", dont_inherit=True), namespace)
        if entry_point and not callable(namespace.get(entry_point)):
            raise NameError(f"the program defines no callable {entry_point!r}")
    except BaseException as error:
        reporter.send(protocol.LOAD_ERROR, body=_describe(error))
        return True
    reporter.send(protocol.LOADED)
    for index, call in enumerate(calls, first_index):
        # The kernel ends the process with SIGPROF when the call has used its CPU time, also inside
        # a loop written in C. A program that ignores the signal is still held by the run's limit.
        _setitimer(_ITIMER_PROF, call_cpu_s)
        start_ns = _process_time_ns()
        try:
            value = _evaluate(call, namespace)
            kind, body = _encode(value, value_bytes)
            del value
        except BaseException as error:
            kind, body = protocol.ERROR, _describe(error)
        cpu_us = (_process_time_ns() - start_ns) // 1000
        reporter.send(kind, index, cpu_us, body)
    _setitimer(_ITIMER_PROF, 0)
    return True


def _evaluate(call: tuple[Any, ...], namespace: dict[str, Any]) -> Any:
    if call[0] == protocol.CALL_TEXT:
        text = call[1].decode("utf-8", "surrogatepass")
        return eval(compile(text, "<call>", "eval", dont_inherit=True), namespace)
    names = tuple(call[1].decode("utf-8", "surrogatepass").split("."))
    if names[0] not in namespace:
        raise NameError(f"name {names[0]!r} is not defined")
    target = namespace[names[0]]
    for name in names[1:]:
        target = getattr(target, name)
    # Decoded afresh for every call: a program that mutates its arguments changes only its own.
    return target(*codec.decode(call[2]), **codec.decode(call[3]))


def _encode(value: Any, value_bytes: int) -> tuple[int, bytes]:
    try:
        return protocol.VALUE, codec.encode(value, max_bytes=value_bytes)
    except codec.OpaqueError as error:
        return protocol.OPAQUE, protocol.pack_error("OpaqueValue", str(error))
    except codec.BudgetError as error:
        return protocol.OVERSIZED, protocol.pack_error("ValueTooLarge", str(error))


def _describe(error: BaseException) -> bytes:
    """Type name and message of an exception; its `__str__` is the candidate's code and may fail."""
    _strip_traceback(error, None)  # frees the frames, and with them the memory of a MemoryError
    try:
        message = str(error)
        if type(message) is not str:
            message = ""
    except BaseException:
        message = "<the exception's message could not be rendered>"
    return protocol.pack_error(_type_name(type(error)), message)
