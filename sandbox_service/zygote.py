"""The fork server: `python -s -P -S -B zygote.py PROFILE [FOLDER]`, control socket on descriptor 3.

Started by exec before the server imports grpc, because forking a process that runs gRPC loses
threads for good. It warms the compiler, imports what programs often import, freezes the garbage
collector, and then forks slots on request. It never reads a program.

The options replace `-I`, which would also ignore PYTHONHASHSEED; the environment is the caller's
and holds nothing else that Python reads.
"""

from __future__ import annotations

import gc
import marshal
import os
import sys
from _socket import socket as Socket

_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if __name__ == "__main__":
    sys.path.insert(0, _PACKAGE_PARENT)

from sandbox_service import cage, child, linux, protocol, slot  # noqa: E402
from sandbox_service.lean import signal  # noqa: E402

CONTROL_FD = 3

# "core" is the cheapest child; "std" has the modules that programs import most, since importing
# `typing` alone costs a child more than the whole fork. "numpy" finds packages in FOLDER.
_STD = (
        "typing", "re", "collections", "collections.abc", "functools", "itertools", "math",
        "heapq", "bisect", "string", "copy", "operator", "random", "datetime", "enum",
        "dataclasses", "statistics", "json", "contextlib",
)  # fmt: skip
PROFILES = {
    "core": (),
    "std": _STD,
    "numpy": (*_STD, "numpy", "numpy.linalg", "numpy.random", "unittest", "unittest.mock"),
}

_WARM_PROGRAM = b"""
def warm(a, b=(), *c, **d):
    '''A sample of what programs use.'''
    total = [x * 2 for x in (1, 2, 3) if x > 1]
    for i, (k, v) in enumerate({'a': 1.5}.items()):
        total += [f"{k}:{v}", i]
    while total and len(total) < 3:
        total.append(None)
    class Warm:
        def method(self):
            return lambda y: y + 1
    try:
        return sorted({*total[:1]}), Warm().method()(1), -1 if a else 0
    except (KeyError, ValueError) as error:
        raise RuntimeError("warm") from error
"""


def warm_up() -> None:
    """Runs a program the way a child does, so that children find every page already touched."""
    calls = (
        (protocol.CALL_TEXT, b"warm(1)"),
        (protocol.CALL_TEXT, b"warm(undefined)"),
        (protocol.CALL_INVOCATION, b"warm", b"t\x01i\x01\x01", b"d\x00"),
    )
    payload = marshal.dumps(
        (
            protocol.MODE_CALLS, _WARM_PROGRAM, "warm", calls, 0, 10.0, 1 << 20, 0,
            bytes(protocol.NONCE_BYTES),
        )
    )  # fmt: skip
    sink = os.open(os.devnull, os.O_WRONLY)
    stdlib_builtins = sys.modules["builtins"]
    for _ in range(4):
        child.run(payload, sink)
        del sys.modules[child.MODULE_NAME]
        sys.modules["builtins"] = stdlib_builtins
    os.close(sink)


def main() -> None:
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path += sys.argv[2:]
    for name in PROFILES[sys.argv[1]]:
        __import__(name)
    warm_up()
    sys.path.remove(_PACKAGE_PARENT)
    sys.argv[:] = [""]
    for name in ("PYTHONHASHSEED", "MALLOC_ARENA_MAX", "LD_BIND_NOW", "LD_LIBRARY_PATH"):
        os.environ.pop(name, None)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(  # noqa: SIM115 - reads whatever a child has as descriptor 0
        0, encoding="utf-8", errors="surrogateescape", closefd=False
    )
    sys.stdout = child.new_stdout()
    sys.__stdin__, sys.__stdout__ = sys.stdin, sys.stdout  # type: ignore[misc]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead slots leave no zombies
    os.set_inheritable(CONTROL_FD, False)
    control = Socket(fileno=CONTROL_FD)
    gc.collect()
    linux.make_immortal()
    linux.use_large_pages()
    linux.trim_heap()
    gc.freeze()
    serve(control)


def serve(control: Socket) -> None:
    """Forks one slot per message until the supervisor goes away."""
    while True:
        message, fds = linux.receive(control, 1, 1 << 16)
        if not message:
            os._exit(0)
        config = marshal.loads(message)
        pid = os.fork()
        if pid == 0:
            control.close()
            start_slot(config, fds[0])
        os.close(fds[0])


def start_slot(config: dict[str, object], control_fd: int) -> None:
    """In the first child: unshares what must be unshared before the slot is forked, then waits."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)
    os.setsid()
    control = Socket(fileno=control_fd)
    place = cage.Cage(config)
    try:
        place.unshare()
    except OSError as error:
        control.send(bytes([protocol.MSG_READY]) + marshal.dumps({"error": str(error)}))
        os._exit(1)
    if place.has_pid_namespace:
        pid = os.fork()
        if pid:
            control.close()
            os.waitpid(pid, 0)
            os._exit(0)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    slot.run(control, place, config)


if __name__ == "__main__":
    main()
