"""One slot: pid 1 of its cage. Forks one child per run, watches it, and clears up after it.

The judge of time is CPU time, of all processes of the run together; the wall clock is a backstop
that does not count the time a program waited for a processor, so a busy host turns no right answer
into a time-out.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import sys
import time
from _socket import socket as Socket  # `socket` itself costs more than all of this

from sandbox_service import child, linux, protocol
from sandbox_service.cage import Cage
from sandbox_service.lean import Any, NoReturn, signal, suppress

_TICK_S = 0.2
_MIN_TICK_S = 0.004
_MAX_WALL_FACTOR = 6  # the wall limit is stretched to at most this by a busy host
_NUM_PROCESSORS = os.cpu_count() or 1
_ASLEEP_SHARE = 0.1  # of a processor: what uses less makes room for another run
# Descriptors below are taken while a slot waits, so those that arrive never overlap with the
# numbers that a child needs (0 to 5). The control socket is above what a child closes first.
_FIRST_FREE_FD = 8
_CONTROL_FD = 40


def run(control: Socket, place: Cage, config: dict[str, Any]) -> NoReturn:
    """Enters the cage, reports, and serves runs until the supervisor goes away."""
    try:
        place.enter(config["rlimits"])
    except OSError as error:
        control.send(bytes([protocol.MSG_READY]) + marshal.dumps({"error": str(error)}))
        os._exit(1)
    control = _arrange_descriptors(control)
    ends = _Ends(control)
    ready = {"error": "", "tier": place.tier, "notes": place.notes}
    try:
        control.send(bytes([protocol.MSG_READY]) + marshal.dumps(ready))
        while True:
            _serve_one(control, place, ends)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the supervisor gave this slot up; its cage goes with it
    except BaseException as error:
        print(f"sandbox slot: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _arrange_descriptors(control: Socket) -> Socket:
    moved = Socket(fileno=os.dup2(control.fileno(), _CONTROL_FD, inheritable=False))
    control.close()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(_FIRST_FREE_FD):
        if fd not in (null, 2):  # 2: the last words of a slot that fails
            os.dup2(null, fd)
    return moved


class _Ends:
    """Waits until a child ends: by pidfd, or by SIGCHLD where the kernel has none (gVisor)."""

    def __init__(self, control: Socket) -> None:
        self._poller = select.poll()
        self._poller.register(control.fileno(), select.POLLIN)
        self._pid = 0
        self._fd = -1
        self._has_pidfd = linux.has_pidfd()
        if not self._has_pidfd:
            self._fd, wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
            signal.signal(signal.SIGCHLD, _ignore_signal)
            self._poller.register(self._fd, select.POLLIN)

    def watch(self, pid: int) -> None:
        self._pid = pid
        if self._has_pidfd:
            self._fd = os.pidfd_open(pid)
            self._poller.register(self._fd, select.POLLIN)

    def wait(self, timeout_s: float) -> tuple[bool, bool]:
        """Whether the child has ended, and whether there is a message."""
        is_over = has_message = False
        for fd, _ in self._poller.poll(timeout_s * 1000):
            if fd == self._fd:
                is_over = True
            else:
                has_message = True
        if not self._has_pidfd:  # the signal may be another child's, or have come before `watch`
            if is_over:
                with suppress(BlockingIOError):
                    os.read(self._fd, 4096)
            flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
            is_over = os.waitid(os.P_PID, self._pid, flags) is not None
        return is_over, has_message

    def leave_child(self) -> None:
        """In a child: its own signals are not for the slot."""
        if not self._has_pidfd:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def close(self) -> None:
        if self._has_pidfd:
            self._poller.unregister(self._fd)
            os.close(self._fd)


def _ignore_signal(number: int, frame: object) -> None:
    """A handler of our own: the default for SIGCHLD would not wake anybody."""


def _serve_one(control: Socket, place: Cage, ends: _Ends) -> None:
    message, fds = linux.receive(control, 4)
    if not message:
        os._exit(0)
    if message[0] != protocol.MSG_START:
        return  # a STOP that came after the end of its run
    start = protocol.START.unpack(message)
    pid = linux.fork()
    if pid == 0:
        _become_child(place, ends, start, fds)
    for fd in fds:
        os.close(fd)
    _, run_id, cpu_s, wall_s, _, memory_sum, _ = start
    ends.watch(pid)
    try:
        reason = _watch(control, place, ends, (pid, run_id), (cpu_s, wall_s, memory_sum))
        if reason:
            os.kill(pid, signal.SIGKILL)
    finally:
        ends.close()
    _, status, usage = os.wait4(pid, 0)
    place.clean()
    cpu_s = usage.ru_utime + usage.ru_stime
    control.send(
        protocol.END.pack(protocol.MSG_END, run_id, status, reason, cpu_s, usage.ru_maxrss * 1024)
    )


def _become_child(place: Cage, ends: _Ends, start: tuple[Any, ...], fds: list[int]) -> NoReturn:
    """In the child: descriptors 0 to 4 (5: the channel) and nothing else open, then the program."""
    status = 71
    try:
        _, _, cpu_s, _, memory_bytes, _, payload_bytes = start
        os.setsid()
        ends.leave_child()
        os.dup2(0, 2)  # 0 is /dev/null
        for target, fd in zip((4, 3, 1, 5), fds):  # payload, results, output, channel
            os.dup2(fd, target)
        _set_limit(resource.RLIMIT_AS, memory_bytes)
        # A backstop with a resolution of one second; the slot itself is more exact.
        _set_limit(resource.RLIMIT_CPU, int(cpu_s) + 2)
        place.become_child()
        os.closerange(5 + (len(fds) > 3), 256)
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
    control: Socket,
    place: Cage,
    ends: _Ends,
    run: tuple[int, int],
    ends_at: tuple[float, float, int],
) -> int:
    """Waits for the child to end or for a reason to end it; returns that reason."""
    pid, run_id = run
    cpu_s, wall_s, memory_sum = ends_at
    start = time.monotonic()
    clock = linux.cpu_clock(pid)
    wait_s = min(_TICK_S, cpu_s, wall_s)
    is_asleep = False
    while True:
        is_over, has_message = ends.wait(max(_MIN_TICK_S, wait_s))
        if is_over:
            return protocol.REASON_NONE
        if has_message:
            message = control.recv(4096)
            if not message:
                place.clean()
                os._exit(0)
            if message[0] == protocol.MSG_STOP and protocol.STOP.unpack(message)[1] == run_id:
                return protocol.REASON_STOPPED
        elapsed = time.monotonic() - start
        used_s = 0.0
        with suppress(OSError):
            used_s = time.clock_gettime(clock)
        num_processes = 1
        with suppress(OSError):
            all_s, resident, num_processes = place.usage()
            used_s = max(used_s, all_s)
            if resident > memory_sum:
                return protocol.REASON_MEMORY
        if used_s >= cpu_s:
            return protocol.REASON_CPU
        deadline = wall_s
        if elapsed >= wall_s and num_processes <= 1:
            deadline = min(wall_s + _waited_s(pid), _MAX_WALL_FACTOR * wall_s)
        if elapsed >= deadline:
            return protocol.REASON_WALL
        is_busy = used_s + _waited_s(pid) >= _ASLEEP_SHARE * elapsed
        if not is_busy and not is_asleep and elapsed >= _TICK_S:
            is_asleep = True
            control.send(protocol.STOP.pack(protocol.MSG_ASLEEP, run_id))
        rest_s = (cpu_s - used_s) / max(1, min(num_processes, _NUM_PROCESSORS))
        wait_s = min(_TICK_S, rest_s, deadline - elapsed)


def _waited_s(pid: int) -> float:
    """How long a process was ready to run and had no processor."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
