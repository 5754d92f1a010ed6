"""Processes as the supervisor sees them: fork servers, slots, and the descriptors of one run.

    Zygote (one per profile and hash seed) --makes--> SlotProcess --runs--> Attempt

asyncio, no gRPC, never forks. Whatever dies raises `SlotDied`: a failure of the sandbox, never of
the program.
"""

import asyncio
import contextlib
import marshal
import os
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sandbox_service import cgroup, limits, packages, protocol
from sandbox_service.limits import KEPT_OUTPUT_BYTES

_START_TIMEOUT_S = 20.0
_END_GRACE_S = 5.0
_LEAVE_S = 0.25  # what a slot has to leave by itself before it is killed
_READ_BYTES = 1 << 16
# Pipes are watched only from here on: what a short run writes fits into them and is read at its
# end, which saves the event loop half of its work.
_WATCH_AFTER_S = 0.02
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of SCM_CREDENTIALS


class SlotDied(Exception):
    """The slot or its zygote ended, or did not answer."""


class TierUnavailable(Exception):
    """No tier that is strong enough can be had on this machine."""


@dataclass(frozen=True)
class Attempt:
    """One process to start: its payload and what ends it."""

    payload: bytes
    limits: limits.RunLimits
    profile: str
    hash_seed: int
    kept_output_bytes: int = KEPT_OUTPUT_BYTES
    # Called with all result bytes so far whenever some have come late; True ends the run.
    is_enough: Callable[[bytearray], bool] | None = None


@dataclass
class AttemptEnd:
    """How a process ended and the bytes that it left."""

    wait_status: int = 0
    reason: int = protocol.REASON_NONE
    is_output_over: bool = False
    is_result_over: bool = False
    cpu_s: float = 0.0
    peak_rss_bytes: int = 0
    result: bytes = b""
    stdout: bytes = b""
    stdout_total: int = 0


class Zygote:
    """A fork server process for one profile and one hash seed."""

    def __init__(self, profile: str, hash_seed: int) -> None:
        self.profile = profile
        self.hash_seed = hash_seed
        self.pid = 0
        self.control: socket.socket | None = None

    def start(self) -> None:
        """Starts the process, again if need be. posix_spawn runs no fork handler of gRPC."""
        self.stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zygote.py")
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "PYTHONHASHSEED": str(self.hash_seed),
            "MALLOC_ARENA_MAX": "2",  # threads reserve 64 MiB of address space per arena
            "OPENBLAS_NUM_THREADS": "1",
            "LD_BIND_NOW": "1",  # else every child looks up for itself what it calls
        }
        if "LD_LIBRARY_PATH" in os.environ:  # some interpreters do not start without it
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        python = packages.interpreter()
        arguments = [python, "-s", "-P", "-S", "-B", "-X", "utf8", script, self.profile]
        if self.profile == "numpy":
            arguments.append(packages.find().folder)
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)]
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            self.pid = os.posix_spawn(
                python, arguments, environment, file_actions=actions, setsid=True
            )
        self.control = ours

    def new_slot(
        self, config: dict[str, Any], groups: cgroup.Groups, group: cgroup.Group | None
    ) -> "SlotProcess":
        """Asks for a slot; it reports on its own socket. Starts the zygote if it is dead."""
        for _ in range(2):
            if self.control is None or not self._is_alive():
                self.start()
            assert self.control is not None
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # whose first word it is
            with theirs:
                try:
                    socket.send_fds(self.control, [marshal.dumps(config)], [theirs.fileno()])
                except OSError:
                    ours.close()
                    self.stop()
                    continue
            return SlotProcess(ours, groups, group)
        raise SlotDied("the zygote does not start")

    def _is_alive(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
                return True
        self.pid = 0  # the number may be another process's by now
        return False

    def stop(self) -> None:
        """Kills the process; its slots die with it."""
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self.pid = 0


class SlotProcess:
    """A slot as the supervisor sees it: a control socket and the run in progress."""

    def __init__(
        self, control: socket.socket, groups: cgroup.Groups, group: cgroup.Group | None
    ) -> None:
        self.control = control
        control.setblocking(False)
        self.num_runs = 0
        self.num_oom_kills = 0
        self.is_dead = False
        self.pid = 0  # in the supervisor's view; 0 before the slot is ready
        self.tier = ""
        self.notes: list[str] = []
        self._groups = groups
        self._group = group
        self._pidfd = -1
        self._killer: asyncio.TimerHandle | None = None
        self._on_asleep: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._message: asyncio.Future[bytes] | None = None
        self._loop.add_reader(control.fileno(), self._on_message)

    async def wait_ready(self) -> None:
        """Waits for the slot's report. Raises TierUnavailable with the slot's own words."""
        message = await self._next_message(_START_TIMEOUT_S)
        report = marshal.loads(message[1:])
        if report["error"]:
            self.close()
            raise TierUnavailable(report["error"])
        self.tier, self.notes = report["tier"], report["notes"]

    async def run(
        self,
        attempt: Attempt,
        channel_fd: int = -1,
        on_asleep: Callable[[], None] | None = None,
    ) -> AttemptEnd:
        """Runs one attempt. Cancelling ends the program at once and retires the slot.

        `channel_fd`, if any, becomes the child's descriptor 5 and is closed here. `on_asleep` is
        called at most once, when the program turns out to leave its processor idle. A run in which
        the kernel killed for want of memory ends with REASON_MEMORY and retires the slot.
        """
        self.num_runs += 1
        run_id = self.num_runs
        with _Channels(self._loop, attempt, lambda: self._stop_run(run_id)) as channels:
            if channel_fd >= 0:
                channels.child_fds.append(channel_fd)
            limit = attempt.limits
            memory_sum = limits.MEMORY_SUM_FACTOR * limit.memory_bytes
            start = protocol.START.pack(
                protocol.MSG_START,
                run_id,
                limit.cpu_s,
                limit.wall_s,
                limit.memory_bytes,
                memory_sum,
                len(attempt.payload),
            )
            self._on_asleep = on_asleep
            self._message = self._loop.create_future()
            try:
                if self._group is not None:
                    self._group.set_memory(memory_sum + limits.SLOT_MEMORY_BYTES)
                socket.send_fds(self.control, [start], channels.child_fds)
            except OSError as error:
                self.close()
                raise SlotDied(f"the slot is gone: {error}") from None
            channels.close_child_fds()
            try:
                message = await self._next_message(6 * limit.wall_s + _END_GRACE_S)
            except SlotDied:
                has_oom_kill = self._has_oom_kill()
                self.close()
                if not has_oom_kill:
                    raise
                end = channels.finish()  # the kernel took the slot for the program
                end.wait_status, end.reason = signal.SIGKILL, protocol.REASON_MEMORY
                return end
            except BaseException:
                self.close()
                raise
            kind, end_id, status, reason, cpu_s, rss = protocol.END.unpack(message)
            if kind != protocol.MSG_END or end_id != run_id:
                self.close()
                raise SlotDied("the slot answered out of turn")
            end = channels.finish()
            end.wait_status, end.reason = status, reason
            end.cpu_s, end.peak_rss_bytes = cpu_s, rss
            if self._has_oom_kill():
                end.reason = protocol.REASON_MEMORY
                self.close()
            return end

    def _has_oom_kill(self) -> bool:
        if self._group is None or not self._group.has_new_oom_kill():
            return False
        self.num_oom_kills += 1
        return True

    def stop(self) -> None:
        """Ends the run in progress; it counts as stopped and the slot stays."""
        self._stop_run(self.num_runs)

    def _stop_run(self, run_id: int) -> None:
        with contextlib.suppress(OSError):
            self.control.send(protocol.STOP.pack(protocol.MSG_STOP, run_id))

    async def _next_message(self, timeout_s: float) -> bytes:
        if self.is_dead:
            raise SlotDied("the slot is gone")
        if self._message is None:
            self._message = self._loop.create_future()
        future = self._message
        timer = self._loop.call_later(timeout_s, _fail, future, "the slot does not answer")
        try:
            return await future
        finally:
            timer.cancel()
            self._message = None

    def _on_message(self) -> None:
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if self._message is None:
                self.close()
            else:
                _fail(self._message, "the slot died")  # whoever waits looks why, then closes
        elif data[0] == protocol.MSG_ASLEEP:
            if self._on_asleep is not None and protocol.STOP.unpack(data)[1] == self.num_runs:
                self._on_asleep()
        elif self._message is not None and not self._message.done():
            self._message.set_result(data)

    def _receive(self) -> bytes:
        if self.pid:
            return self.control.recv(1 << 16)
        data, ancillary, _, _ = self.control.recvmsg(1 << 16, socket.CMSG_SPACE(_CREDENTIALS.size))
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                self.pid = _CREDENTIALS.unpack(content)[0]
                self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
                with contextlib.suppress(OSError):  # no pidfd here: the slot leaves by itself
                    self._pidfd = os.pidfd_open(self.pid)
        return data

    def close(self) -> None:
        """Ends the slot: it leaves when its socket closes and takes its cage along.

        It is killed if it does not leave by itself. Its control group goes when it is gone.
        """
        if self.is_dead:
            return
        self.is_dead = True
        if self._loop.is_closed():
            self.control.close()
            return
        self._loop.remove_reader(self.control.fileno())
        self.control.close()
        self._killer = self._loop.call_later(_LEAVE_S, self._kill)
        if self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._on_gone)

    def _kill(self) -> None:
        if self._pidfd < 0:
            self._on_gone()
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _on_gone(self) -> None:
        assert self._killer is not None
        self._killer.cancel()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._group is not None:
            self._groups.leave(self._group)


def _fail(future: "asyncio.Future[bytes] | None", reason: str) -> None:
    if future is not None and not future.done():
        future.set_exception(SlotDied(reason))


class _Channels:
    """Descriptors of one run: payload file, result pipe, output pipe; drained as bytes come."""

    def __init__(self, loop: asyncio.AbstractEventLoop, attempt: Attempt, stop: Any) -> None:
        self._loop = loop
        self._stop = stop
        self._limits = attempt.limits
        self._kept_output_bytes = attempt.kept_output_bytes
        self._is_enough = attempt.is_enough
        self._end = AttemptEnd()
        self._result = bytearray()
        self._stdout = bytearray()
        self._is_stopped = False
        self._is_watching = False
        self._timer: asyncio.TimerHandle | None = None
        self._fds: list[int] = []
        self.child_fds: list[int] = []
        try:
            self.child_fds.append(_sealed_file(attempt.payload))
            self._result_fd = self._pipe()
            self._output_fd = self._pipe()
        except OSError:
            self.__exit__()
            raise
        self._timer = loop.call_later(_WATCH_AFTER_S, self._watch)

    def _watch(self) -> None:
        self._is_watching = True
        self._loop.add_reader(self._result_fd, self._read_result)
        self._loop.add_reader(self._output_fd, self._read_output)

    def _pipe(self) -> int:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_fd, False)
        self._fds.append(read_fd)
        self.child_fds.append(write_fd)
        return read_fd

    def __enter__(self) -> "_Channels":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close_child_fds()
        if self._timer is not None:
            self._timer.cancel()
        for fd in self._fds:
            if self._is_watching:
                self._loop.remove_reader(fd)
            os.close(fd)
        self._fds = []

    def close_child_fds(self) -> None:
        for fd in self.child_fds:
            os.close(fd)
        self.child_fds = []

    def finish(self) -> AttemptEnd:
        """Reads what is left without waiting: a stranger might still hold the other end."""
        while self._read_result():
            pass
        while self._read_output():
            pass
        self._end.result, self._end.stdout = bytes(self._result), bytes(self._stdout)
        return self._end

    def _read(self, fd: int) -> bytes:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return b""
        if not data and self._is_watching:
            self._loop.remove_reader(fd)
        return data

    def _read_result(self) -> bool:
        data = self._read(self._result_fd)
        if len(self._result) + len(data) > limits.MAX_RESULT_BYTES:
            self._end.is_result_over = True
            self._stop_once()
        else:
            self._result += data
            if data and self._is_enough is not None and self._is_enough(self._result):
                self._stop_once()
        return bool(data)

    def _read_output(self) -> bool:
        data = self._read(self._output_fd)
        room = self._kept_output_bytes - len(self._stdout)
        if room > 0:
            self._stdout += data[:room]
        self._end.stdout_total += len(data)
        if self._end.stdout_total > self._limits.output_bytes:
            self._end.is_output_over = True
            self._stop_once()
        return bool(data)

    def _stop_once(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self._stop()


def _sealed_file(data: bytes) -> int:
    fd = os.memfd_create("payload", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return fd
