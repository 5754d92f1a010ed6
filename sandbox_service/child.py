"""Runs one program and its calls inside the sandboxed process, and claims what they returned.

Also the other things that such a process may be asked to do (`protocol.MODE_*`): run a script, run
tests in the program's interpreter, and the two halves of JUDGED: serve calls of a program, run
tests that make them.

Everything in this process belongs to the candidate once its first line runs. So nothing here is
trusted later: there is no expected value, no verdict and no secret to find, and what is written to
the result pipe counts as the candidate's word. The care taken below is for honest programs: that
one which patches builtins, prints, raises strange exceptions or leaves threads behind still gets
the outcome it deserves.

Imported by the zygote before it forks; standard library only.
"""

from __future__ import annotations

import builtins
import io
import marshal
import os
import sys
import time
from types import ModuleType

from sandbox_service import codec, protocol, proxy, suites
from sandbox_service.lean import Any, NoReturn, signal, suppress

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
CHANNEL_FD = 5


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
    module.__dict__.update(exit=sys.exit, quit=sys.exit)  # what `site` adds, and scripts use
    return module


_CANDIDATE_BUILTINS = candidate_builtins()  # made once: the copy costs every child 0.1 ms


def new_stdout() -> io.TextIOWrapper:
    """Text output over descriptor 1 that can print any string."""
    raw = io.FileIO(1, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw, 1 << 16), encoding="utf-8", errors="backslashreplace", newline="\n"
    )


def run_payload(payload: bytes, result_fd: int) -> NoReturn:
    """Runs a payload of `results.new_attempt` and leaves the process; never returns."""
    status = 70
    try:
        status = run(payload, result_fd)
    finally:
        _exit(status)


def run(payload: bytes, result_fd: int) -> int:
    """Runs a payload; returns the exit status."""
    status = 0
    mode, program, entry_point, work, first_index, call_cpu_s, value_bytes, seed, nonce = (
        marshal.loads(payload)
    )
    _seed_random(payload, seed)
    del payload
    stdout = sys.stdout
    reporter = Reporter(result_fd, nonce)
    reporter.send(protocol.STARTED)
    if mode == protocol.MODE_SCRIPT:
        status = _run_script(reporter, program, work)
    elif mode == protocol.MODE_SERVE:
        _serve(reporter, program, entry_point, call_cpu_s, value_bytes)
    elif mode == protocol.MODE_TESTS:
        _run_tests(reporter, program, entry_point, work, first_index, call_cpu_s, value_bytes)
    elif mode == protocol.MODE_IN_PROCESS:
        _run_in_process(reporter, program, entry_point, work, first_index, call_cpu_s)
    else:
        _execute(reporter, program, entry_point, work, first_index, call_cpu_s, value_bytes)
    # Its own file: a program may have put another one in the place of sys.stdout.
    io.TextIOWrapper.flush(stdout)  # type: ignore[arg-type]
    reporter.send(protocol.FINISHED)
    return status


def _seed_random(payload: bytes, seed: int) -> None:
    """Makes `random` and `numpy.random` repeatable (but not a `default_rng()` without a seed).

    Programs that never name it do not pay for the import.
    """
    if b"random" not in payload:
        return
    import random

    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


def _new_module(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__dict__["__builtins__"] = sys.modules["builtins"] = _CANDIDATE_BUILTINS
    sys.modules[name] = module
    return module


def _load(reporter: Reporter, program: bytes, entry_point: str) -> dict[str, Any] | None:
    """Runs the program's top level; None, and a record of why, if it fails."""
    namespace = _new_module(MODULE_NAME).__dict__
    try:
        text = program.decode("utf-8", "surrogatepass")
        exec(compile(text, "<program>", "exec", dont_inherit=True), namespace)
        if entry_point and not callable(namespace.get(entry_point)):
            raise NameError(f"the program defines no callable {entry_point!r}")
    except BaseException as error:
        reporter.send(protocol.LOAD_ERROR, body=_describe(error))
        return None
    reporter.send(protocol.LOADED)
    return namespace


def _execute(
    reporter: Reporter,
    program: bytes,
    entry_point: str,
    calls: tuple[Any, ...],
    first_index: int,
    call_cpu_s: float,
    value_bytes: int,
) -> None:
    namespace = _load(reporter, program, entry_point)
    if namespace is None:
        return
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


def _run_script(reporter: Reporter, program: bytes, stdin: bytes) -> int:
    """The program as `__main__` with `stdin`; returns the exit status that Python would give.

    What it printed is the evidence, so it may leave as it likes (`os._exit` as well).
    """
    fd = os.open(".stdin", os.O_RDWR | os.O_CREAT | os.O_EXCL)  # a pipe would hold 64 KiB
    os.unlink(".stdin")
    os.write(fd, stdin)
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)
    namespace = _new_module("__main__").__dict__
    error: BaseException
    try:
        text = program.decode("utf-8", "surrogatepass")
        exec(compile(text, "<program>", "exec", dont_inherit=True), namespace)
        _finish_script()
        return 0
    except SystemExit as exit_error:
        if exit_error.code in (None, 0):
            with suppress(BaseException):
                _finish_script()
            return 0
        error = exit_error
    except BaseException as other:
        error = other
    reporter.send(protocol.LOAD_ERROR, body=_describe(error))
    return 1


def _finish_script() -> None:
    """What the interpreter does at its end: joins threads, calls exit handlers, flushes."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush()


def _run_in_process(
    reporter: Reporter,
    program: bytes,
    entry_point: str,
    work: tuple[bytes, bool],
    first_index: int,
    call_cpu_s: float,
) -> None:
    tests, stop_on_first_failure = work
    suite = suites.Suite(reporter, _describe, tests, first_index, call_cpu_s, stop_on_first_failure)
    if suite.prepare():
        namespace = _load(reporter, program, entry_point)
        if namespace is not None:
            suite.run(namespace)


def _serve(
    reporter: Reporter, program: bytes, entry_point: str, call_cpu_s: float, value_bytes: int
) -> None:
    """The program's half of JUDGED: answers what the tests ask until they are gone."""
    namespace = _load(reporter, program, entry_point)
    if namespace is None:
        return
    peer = proxy.Peer(CHANNEL_FD, value_bytes)
    try:
        peer.send("loaded")
        peer.serve(namespace, lambda: _setitimer(_ITIMER_PROF, call_cpu_s))
    except proxy.Gone:
        _setitimer(_ITIMER_PROF, 0)


def _run_tests(
    reporter: Reporter,
    tests: bytes,
    entry_point: str,
    work: tuple[bool, bool],
    first_index: int,
    call_cpu_s: float,
    value_bytes: int,
) -> None:
    """The tests' half of JUDGED. The program appears under its names, as handles.

    With `is_stub` there is no program: whatever the tests use of it raises. A test that passes even
    so says nothing.
    """
    is_stub, stop_on_first_failure = work

    def on_wait(is_waiting: bool) -> None:
        reporter.send(protocol.CALLING if is_waiting else protocol.RETURNED)

    def on_gone() -> NoReturn:
        reporter.send(protocol.GONE)  # at once: a test could catch any exception
        _exit(0)

    peer = proxy.Peer(CHANNEL_FD, value_bytes, on_wait, on_gone, is_tests=True)

    def find(name: str) -> Any:
        return _stub(name) if is_stub else peer.ask("name", name)

    def attribute(name: str) -> Any:
        if name == "__all__":
            return suite.found
        if name.startswith("__"):
            raise AttributeError(name)
        return find(name)

    suite = suites.Suite(
        reporter,
        _describe,
        tests,
        first_index,
        call_cpu_s,
        stop_on_first_failure,
        lambda error: error is peer.last_error,
    )
    namespace = _new_module("tests").__dict__
    _new_module(MODULE_NAME).__dict__["__getattr__"] = attribute
    if suite.prepare():
        if not is_stub:
            peer.wait_for_load()
        reporter.send(protocol.LOADED)
        suite.run(namespace, (entry_point.partition(".")[0],) if entry_point else None, find)


class StubError(Exception):
    """What a stub of the program raises whenever it is used."""


def _stub(name: str) -> Any:
    def stub(*args: Any, **kwargs: Any) -> Any:
        raise StubError(name)

    return stub


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


def _describe(error: BaseException, place: str = "") -> bytes:
    """Type name and message of an exception; its `__str__` is the candidate's code and may fail."""
    _strip_traceback(error, None)  # frees the frames, and with them the memory of a MemoryError
    try:
        message = str(error)
        if type(message) is not str:
            message = ""
    except BaseException:
        message = "<the exception's message could not be rendered>"
    if place:
        message = f"{place}: {message}" if message else place
    return protocol.pack_error(_type_name(type(error)), message)
