"""The supervisor's side of zygotes, slots and single attempts (asyncio, no gRPC, never forks).

    Pool --owns--> Zygote (one per profile and hash seed) --makes--> SlotProcess --runs--> Attempt

A position of the pool runs one attempt at a time and keeps a slot per (profile, hash seed) that it
has needed. Whatever dies is made anew at the next use; what was running in it raises `SlotDied`,
which is a failure of the sandbox and never the program's.
"""

import asyncio
import contextlib
import errno
import logging
import marshal
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from sandbox_service import cage, limits, protocol

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 20.0
_END_GRACE_S = 5.0
_RECYCLE_AFTER_RUNS = 2000
_READ_BYTES = 1 << 16
# Pipes are watched only from here on: what a short run writes fits into them and is read at its
# end, which saves the event loop half of its work.
_WATCH_AFTER_S = 0.02


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
        }
        if "LD_LIBRARY_PATH" in os.environ:  # some interpreters do not start without it
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        python = getattr(sys, "_base_executable", None) or sys.executable
        arguments = [python, "-s", "-P", "-S", "-B", "-X", "utf8", script, self.profile]
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)]
        with theirs:
            os.set_inheritable(theirs.fileno(), True)
            self.pid = os.posix_spawn(
                python, arguments, environment, file_actions=actions, setsid=True
            )
        self.control = ours

    def new_slot(self, config: dict[str, Any]) -> "SlotProcess":
        """Asks for a slot; it reports on its own socket. Starts the zygote if it is dead."""
        for _ in range(2):
            if self.control is None or not self._is_alive():
                self.start()
            assert self.control is not None
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    socket.send_fds(self.control, [marshal.dumps(config)], [theirs.fileno()])
                except OSError:
                    ours.close()
                    self.stop()
                    continue
            return SlotProcess(ours)
        raise SlotDied("the zygote does not start")

    def _is_alive(self) -> bool:
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == 0
        except ChildProcessError:
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

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        control.setblocking(False)
        self.num_runs = 0
        self.is_dead = False
        self.tier = ""
        self.notes: list[str] = []
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

    async def run(self, attempt: Attempt) -> AttemptEnd:
        """Runs one attempt. Cancelling ends the program at once and retires the slot."""
        self.num_runs += 1
        run_id = self.num_runs
        with _Channels(self._loop, attempt, lambda: self._stop_run(run_id)) as channels:
            limit = attempt.limits
            start = protocol.START.pack(
                protocol.MSG_START,
                run_id,
                limit.cpu_s,
                limit.wall_s,
                limit.memory_bytes,
                len(attempt.payload),
            )
            self._message = self._loop.create_future()
            try:
                socket.send_fds(self.control, [start], channels.child_fds)
            except OSError as error:
                self.close()
                raise SlotDied(f"the slot is gone: {error}") from None
            channels.close_child_fds()
            try:
                message = await self._next_message(6 * limit.wall_s + _END_GRACE_S)
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
            return end

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
            data = self.control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            future = self._message
            self.close()
            _fail(future, "the slot died")
        elif self._message is not None and not self._message.done():
            self._message.set_result(data)

    def close(self) -> None:
        """Ends the slot: it leaves when its socket closes and takes its cage along."""
        if not self.is_dead:
            self.is_dead = True
            self._loop.remove_reader(self.control.fileno())
            self.control.close()


def _fail(future: "asyncio.Future[bytes] | None", reason: str) -> None:
    if future is not None and not future.done():
        future.set_exception(SlotDied(reason))


class _Channels:
    """Descriptors of one run: payload file, result pipe, output pipe; drained as bytes come."""

    def __init__(self, loop: asyncio.AbstractEventLoop, attempt: Attempt, stop: Any) -> None:
        self._loop = loop
        self._stop = stop
        self._limits = attempt.limits
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
        return bool(data)

    def _read_output(self) -> bool:
        data = self._read(self._output_fd)
        room = limits.KEPT_OUTPUT_BYTES - len(self._stdout)
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


class Pool:
    """All slots of a service. `start` finds the tier; `run` waits for a free position."""

    def __init__(self, num_slots: int, min_tier: str, wanted_tier: str = "") -> None:
        self.num_slots = num_slots
        self.min_tier = min_tier
        self.wanted_tier = wanted_tier
        self.tier = ""
        self.notes: list[str] = []
        self.counts: Counter[str] = Counter()
        self._zygotes: dict[tuple[str, int], Zygote] = {}
        self._slots: dict[tuple[int, str, int], SlotProcess] = {}
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        self._scratch = ""
        # Processes are counted per uid over the whole machine: every slot has its own, and another
        # service on this machine starts elsewhere.
        self._uid_base = random.SystemRandom().randrange(1 << 20, 1 << 30)

    def prestart(self) -> None:
        """Starts the fork servers; call before importing gRPC."""
        for key in (("core", 0), ("std", 0)):
            self._zygote(key).start()

    async def start(self) -> None:
        """Finds the strongest tier that works here. Raises TierUnavailable below the minimum."""
        tiers = [self.wanted_tier] if self.wanted_tier else list(cage.TIERS)
        reasons = []
        for tier in tiers:
            if not cage.is_at_least(tier, self.min_tier):
                break
            if tier == "A-root" and os.getuid() != 0:
                continue
            self.tier = tier
            try:
                slot = await self._slot(0, "core", 0)
            except (TierUnavailable, SlotDied) as error:
                reasons.append(f"{tier}: {error}")
                continue
            self.notes = slot.notes
            for position in reversed(range(self.num_slots)):
                self._free.put_nowait(position)
            if not cage.is_at_least(tier, "A"):
                log.warning(
                    "isolation tier %s only (%s): do not run code of strangers here",
                    tier,
                    "; ".join(reasons) or "asked for",
                )
            return
        raise TierUnavailable(
            f"no isolation tier of at least {self.min_tier!r} works here; tried "
            f"{'; '.join(reasons) or 'none'}. Run as root or allow user namespaces, or pass a "
            f"weaker --min-tier"
        )

    async def run(self, attempt: Attempt) -> AttemptEnd:
        """Runs one attempt on a free position. Raises SlotDied when the sandbox failed."""
        position = await self._free.get()
        try:
            slot = await self._slot(position, attempt.profile, attempt.hash_seed)
            return await slot.run(attempt)
        except (TierUnavailable, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                log.error("out of file descriptors: raise `ulimit -n` or lower --slots")
            raise SlotDied(str(error)) from None
        finally:
            self._free.put_nowait(position)

    def _zygote(self, key: tuple[str, int]) -> Zygote:
        if key not in self._zygotes:
            self._zygotes[key] = Zygote(*key)
        return self._zygotes[key]

    async def _slot(self, position: int, profile: str, hash_seed: int) -> SlotProcess:
        key = (position, profile, hash_seed)
        slot = self._slots.get(key)
        if slot is not None and not slot.is_dead and slot.num_runs < _RECYCLE_AFTER_RUNS:
            return slot
        if slot is not None:
            self.counts["slot_died" if slot.is_dead else "slot_recycled"] += 1
            slot.close()
            del self._slots[key]
        if self.tier in ("B", "D") and not self._scratch:
            self._scratch = tempfile.mkdtemp(prefix="codea1-sandbox-")
            os.chmod(self._scratch, 0o711)  # slots with uids of their own pass through
        index = position * 8 + ("core", "std").index(profile) * 2 + hash_seed
        config = {
            "tier": self.tier,
            "uid": self._uid_base + index,
            "tmp_bytes": limits.TMP_BYTES,
            "tmp_inodes": limits.TMP_INODES,
            "scratch": os.path.join(self._scratch, str(index)),
            "rlimits": limits.SLOT_RLIMITS,
        }
        slot = self._zygote((profile, hash_seed)).new_slot(config)
        try:
            await slot.wait_ready()
        except BaseException:
            slot.close()
            raise
        self._slots[key] = slot
        return slot

    def close(self) -> None:
        """Ends every process and removes the scratch folder."""
        for slot in self._slots.values():
            slot.close()
        for zygote in self._zygotes.values():
            zygote.stop()
        if self._scratch:
            time.sleep(0.01)
            shutil.rmtree(self._scratch, ignore_errors=True)
