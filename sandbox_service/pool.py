"""All slots of a service: the tier, who runs where, and what is made anew after it died.

    Pool --owns--> Zygote, SlotProcess (slot_process.py), control groups (cgroup.py)

A position of the pool runs one attempt (or a pair) at a time and keeps a slot per (profile, hash
seed) that it has needed. There are more positions than runs that may compute at the same time: a
run that sleeps makes room. Whatever dies is made anew at the next use.
"""

import asyncio
import contextlib
import errno
import logging
import os
import random
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from sandbox_service import cage, cgroup, folders, limits, packages
from sandbox_service.slot_process import (
    Attempt,
    AttemptEnd,
    SlotDied,
    SlotProcess,
    TierUnavailable,
    Zygote,
)

__all__ = ["Attempt", "AttemptEnd", "Pool", "SlotDied", "TierUnavailable"]

log = logging.getLogger(__name__)

_RECYCLE_AFTER_RUNS = 2000
_START_TRIES = 3
_PAIR_GRACE_S = 0.2  # for the program of a pair to see that its tests have ended
_PROFILES = ("core", "std", "numpy")
_SCRATCH_PREFIX = "codea1-sandbox-scratch-"


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
        self._slots: dict[tuple[int, str, int, bool], SlotProcess] = {}
        # Runs that sleep need a position but no processor: there are half as many again.
        self.num_positions = num_slots + max(1, num_slots // 2)
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        self._processors = asyncio.Semaphore(num_slots)
        self._groups: cgroup.Groups | None = None
        self._scratch: folders.Lock | None = None
        self._num_started = 0
        # Processes are counted per uid over the whole machine: every slot has its own, and another
        # service on this machine starts elsewhere.
        self._uid_base = random.SystemRandom().randrange(1 << 20, 1 << 30)

    def prestart(self) -> None:
        """Starts the fork servers; call before importing gRPC."""
        packages.find()
        self._open_groups()
        for key in (("core", 0), ("std", 0)):
            self._zygote(key).start()

    def _open_groups(self) -> cgroup.Groups:
        """Before the fork servers start: a v2 group with processes gets no groups below it."""
        if self._groups is None:
            self._groups = cgroup.Groups()
        return self._groups

    async def start(self) -> None:
        """Finds the strongest tier that works here. Raises TierUnavailable below the minimum."""
        for lock in folders.abandoned(tempfile.gettempdir(), _SCRATCH_PREFIX):
            shutil.rmtree(lock.path, ignore_errors=True)  # what a killed service left
            lock.release()
        groups = self._open_groups()
        reasons = []
        for tier in [self.wanted_tier] if self.wanted_tier else cage.TIERS:
            if not cage.is_at_least(tier, self.min_tier):
                reasons.append(f"{tier}: weaker than the minimum")
                continue
            if tier == "A-root" and os.getuid() != 0:
                reasons.append(f"{tier}: not root")
                continue
            self.tier = tier
            try:
                slot = await self._slot(0, "core", 0)
            except (TierUnavailable, SlotDied, OSError) as error:
                reasons.append(f"{tier}: {error}")
                continue
            self.notes = [*slot.notes, groups.note or f"control groups: {groups.version}"]
            for position in reversed(range(self.num_positions)):
                self._free.put_nowait(position)
            if not cage.is_at_least(tier, "A"):
                why = "; ".join(reasons) or "it was asked for"
                self.notes.append(f"no stronger tier: {why}")
                log.warning(
                    "WEAK ISOLATION, tier %s: do not run code of strangers here (%s)", tier, why
                )
            return
        raise TierUnavailable(
            f"no isolation tier of at least {self.min_tier!r} works here; tried "
            f"{'; '.join(reasons)}. Run as root or allow user namespaces, or pass a weaker "
            f"--min-tier"
        )

    async def run(self, attempt: Attempt) -> AttemptEnd:
        """Runs one attempt on a free position. Raises SlotDied when the sandbox failed."""
        async with self._position() as (position, release_processor):
            slot = await self._slot(position, attempt.profile, attempt.hash_seed)
            return await self._counted(slot, slot.run(attempt, on_asleep=release_processor))

    @contextlib.asynccontextmanager
    async def _position(self) -> AsyncIterator[tuple[int, Callable[[], None]]]:
        """A free position and a processor, which can be given back before the end.

        Failures to start or reach a slot become SlotDied.
        """
        await self._processors.acquire()
        has_processor = True

        def release_processor() -> None:
            nonlocal has_processor
            if has_processor:
                has_processor = False
                self._processors.release()

        try:
            position = await self._free.get()
            try:
                yield position, release_processor
            except (TierUnavailable, OSError) as error:
                if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                    log.error("out of file descriptors: raise `ulimit -n` or lower --slots")
                raise SlotDied(str(error)) from None
            finally:
                self._free.put_nowait(position)
        finally:
            release_processor()

    async def _counted(self, slot: SlotProcess, run: Awaitable[AttemptEnd]) -> AttemptEnd:
        try:
            return await run
        finally:
            self.counts["oom"] += slot.num_oom_kills
            slot.num_oom_kills = 0

    async def run_pair(self, program: Attempt, tests: Attempt) -> tuple[AttemptEnd, AttemptEnd]:
        """Runs two attempts with a channel between them, each in a slot of its own.

        Both slots belong to one position, so pairs cannot wait for each other. The program is
        stopped soon after the tests have ended. Raises SlotDied when the sandbox failed.
        """
        async with self._position() as (position, _):
            program_slot = await self._slot(position, program.profile, program.hash_seed)
            tests_slot = await self._slot(position, tests.profile, tests.hash_seed, is_tests=True)
            ours, theirs = socket.socketpair()
            running = asyncio.ensure_future(
                self._counted(program_slot, program_slot.run(program, ours.detach()))
            )
            try:
                tests_end = await self._counted(tests_slot, tests_slot.run(tests, theirs.detach()))
                await asyncio.wait({running}, timeout=_PAIR_GRACE_S)
                if not running.done():
                    program_slot.stop()
                return await running, tests_end
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    def _zygote(self, key: tuple[str, int]) -> Zygote:
        if key not in self._zygotes:
            self._zygotes[key] = Zygote(*key)
        return self._zygotes[key]

    async def _slot(
        self, position: int, profile: str, hash_seed: int, *, is_tests: bool = False
    ) -> SlotProcess:
        key = (position, profile, hash_seed, is_tests)
        slot = self._slots.get(key)
        if slot is not None and not slot.is_dead and slot.num_runs < _RECYCLE_AFTER_RUNS:
            return slot
        if slot is not None:
            self.counts["slot_died" if slot.is_dead else "slot_recycled"] += 1
            slot.close()
            del self._slots[key]
        index = position * 16 + is_tests * 8 + _PROFILES.index(profile) * 2 + hash_seed
        for remaining in reversed(range(_START_TRIES)):
            try:
                self._slots[key] = await self._start_slot(index, profile, hash_seed)
                break
            except SlotDied:  # its zygote died meanwhile; no program has run
                if not remaining:
                    raise
        return self._slots[key]

    async def _start_slot(self, index: int, profile: str, hash_seed: int) -> SlotProcess:
        groups = self._open_groups()
        self._num_started += 1
        group = groups.make(f"slot-{index}-{self._num_started}", limits.SLOT_PROCESSES)
        config = {
            "tier": self.tier,
            "uid": self._uid_base + index,
            "groups": group.paths if group else [],
            "tmp_bytes": limits.TMP_BYTES,
            "tmp_inodes": limits.TMP_INODES,
            "scratch": self._scratch_folder(index),
            "rlimits": limits.SLOT_RLIMITS,
            "folders": [packages.find().folder] if profile == "numpy" else [],
        }
        try:
            slot = self._zygote((profile, hash_seed)).new_slot(config, groups, group)
        except BaseException:
            if group is not None:
                groups.leave(group)
            raise
        try:
            await slot.wait_ready()
        except BaseException:
            slot.close()
            raise
        return slot

    def _scratch_folder(self, index: int) -> str:
        """Where programs of a slot write that has no file system of its own."""
        if self.tier in ("A-root", "A-user"):
            return ""
        if self._scratch is None:
            # Slots with uids of their own pass through it.
            self._scratch = folders.make_locked(tempfile.gettempdir(), _SCRATCH_PREFIX)
        return os.path.join(self._scratch.path, str(index))

    def close(self) -> None:
        """Ends every process and removes the scratch folder."""
        for slot in self._slots.values():
            slot.close()
        for zygote in self._zygotes.values():
            zygote.stop()
        if self._groups is not None:
            self._groups.close()
        if self._scratch is not None:
            time.sleep(0.01)
            shutil.rmtree(self._scratch.path, ignore_errors=True)
            self._scratch.release()
            self._scratch = None
