"""One slot: pid 1 of its cage. Forks one child per run, watches it, and clears up after it.

The judge of time is CPU time, of all processes of the run together; the wall clock is a backstop
that does not count the time a program waited for a processor, so a busy host turns no right answer
into a time-out.
"""

import contextlib
import fcntl
import marshal
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from sandbox_service import child, protocol
from sandbox_service.cage import Cage

_TICK_S = 0.2
_MIN_TICK_S = 0.004
# rlimits are per process: the sum over the processes of a run may be this many times the limit.
_MEMORY_SUM_FACTOR = 4
_MAX_WALL_FACTOR = 6  # the wall limit is stretched to at most this by a busy host


def run(control: socket.socket, place: Cage, config: dict[str, Any]) -> NoReturn:
    """Enters the cage, reports, and serves runs until the supervisor goes away."""
    try:
        place.enter(config["rlimits"])
    except OSError as error:
        control.send(bytes([protocol.MSG_READY]) + marshal.dumps({"error": str(error)}))
        os._exit(1)
    ready = {"error": "", "tier": place.tier, "notes": place.notes, "pid": os.getpid()}
    control.send(bytes([protocol.MSG_READY]) + marshal.dumps(ready))
    try:
        while True:
            _serve_one(control, place)
    except BaseException as error:
        print(f"sandbox slot: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _serve_one(control: socket.socket, place: Cage) -> None:
    message, fds, _, _ = socket.recv_fds(control, 4096, 3)
    if not message:
        os._exit(0)
    if message[0] != protocol.MSG_START:
        return  # a STOP that came after the end of its run
    start = protocol.START.unpack(message)
    pid = os.fork()
    if pid == 0:
        _become_child(control, place, start, fds)
    for fd in fds:
        os.close(fd)
    _, run_id, cpu_s, wall_s, memory_bytes, _ = start
    pidfd = os.pidfd_open(pid)
    try:
        reason = _watch(control, place, (pid, pidfd, run_id), cpu_s, wall_s, memory_bytes)
        if reason:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
    _, status, usage = os.wait4(pid, 0)
    place.clean()
    cpu_s = usage.ru_utime + usage.ru_stime
    control.send(
        protocol.END.pack(protocol.MSG_END, run_id, status, reason, cpu_s, usage.ru_maxrss * 1024)
    )


def _become_child(
    control: socket.socket, place: Cage, start: tuple[Any, ...], fds: list[int]
) -> NoReturn:
    """In the child: descriptors 0 to 4 in place and nothing else open, then the program."""
    status = 71
    try:
        _, _, cpu_s, _, memory_bytes, payload_bytes = start
        control.detach()
        os.setsid()
        # First out of the way, then into place: the numbers may overlap.
        payload_fd, result_fd, output_fd = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in fds]
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(output_fd, 1)
        os.dup2(null, 2)
        os.dup2(result_fd, 3)
        os.dup2(payload_fd, 4)
        _set_limit(resource.RLIMIT_AS, memory_bytes)
        # A backstop with a resolution of one second; the slot itself is more exact.
        _set_limit(resource.RLIMIT_CPU, int(cpu_s) + 2)
        place.become_child()
        os.closerange(5, 256)
        payload = bytearray()
        while len(payload) < payload_bytes:
            part = os.pread(4, payload_bytes - len(payload), len(payload))
            if not part:
                break
            payload += part
        os.close(4)
        child.run_payload(bytes(payload), 3)
    finally:
        os._exit(status)


def _set_limit(which: int, wanted: int) -> None:
    hard = resource.getrlimit(which)[1]
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(which, (value, value))


def _watch(
    control: socket.socket,
    place: Cage,
    target: tuple[int, int, int],
    cpu_s: float,
    wall_s: float,
    memory_bytes: int,
) -> int:
    """Waits for the child to end or for a reason to end it; returns that reason."""
    pid, pidfd, run_id = target
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.register(control.fileno(), select.POLLIN)
    start = time.monotonic()
    clock = (~pid << 3) | 2  # the process's CPU clock, as clock_getcpuclockid(3) would name it
    wait_s = min(_TICK_S, cpu_s, wall_s)
    while True:
        events = dict(poller.poll(max(_MIN_TICK_S, wait_s) * 1000))
        if pidfd in events:
            return protocol.REASON_NONE
        if events:
            message = control.recv(4096)
            if not message:
                place.clean()
                os._exit(0)
            if message[0] == protocol.MSG_STOP and protocol.STOP.unpack(message)[1] == run_id:
                return protocol.REASON_STOPPED
        elapsed = time.monotonic() - start
        used_s = 0.0
        with contextlib.suppress(OSError):
            used_s = time.clock_gettime(clock)
        num_processes = 1
        with contextlib.suppress(OSError):
            all_s, resident, num_processes = place.usage()
            used_s = max(used_s, all_s)
            if resident > _MEMORY_SUM_FACTOR * memory_bytes:
                return protocol.REASON_MEMORY
        if used_s >= cpu_s:
            return protocol.REASON_CPU
        deadline = wall_s
        if elapsed >= wall_s and num_processes <= 1:
            deadline = min(wall_s + _waited_s(pid), _MAX_WALL_FACTOR * wall_s)
        if elapsed >= deadline:
            return protocol.REASON_WALL
        wait_s = min(_TICK_S, cpu_s - used_s, deadline - elapsed)


def _waited_s(pid: int) -> float:
    """How long a process was ready to run and had no processor."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
