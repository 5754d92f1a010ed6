"""If a part dies and stays dead, or leaves something behind, long training runs stop or drown.

Times are checked with generous factors, because machines are noisy; `measure_pool.py` has figures.
"""

import asyncio
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import pytest
from pool_runs import (
    ADD,
    BOMB,
    FLOOD,
    GREEDY,
    HANG,
    SLEEP,
    descendants,
    is_alive,
    run,
    started_pool,
)

from sandbox_service import cgroup, folders
from sandbox_service.pool import Pool
from sandbox_service.runner import RunOutcome, Status

DAEMON = (
    "import os, time\ndef f():\n    if os.fork() == 0:\n        os.setsid()\n"
    "        if os.fork() == 0:\n            time.sleep(99)\n        os._exit(0)\n    return 1\n"
)
LITTER = (
    "import os\ndef f():\n    os.makedirs('a/b')\n    os.symlink('/', 'link')\n"
    "    for i in range(50): open(f'a/{i}', 'w').write('x' * 9999)\n    os.chmod('a', 0)\n"
)


async def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    return condition()


def _slot_pids(pool: Pool) -> list[int]:
    return [slot.pid for slot in pool._slots.values() if not slot.is_dead]


async def _start_sleeper(pool: Pool, seconds: float) -> "asyncio.Task[RunOutcome]":
    """A run that has come as far as its sleep."""
    await run(pool, SLEEP, "f(0)")
    task = asyncio.create_task(run(pool, SLEEP, f"f({seconds})", wall_s=90))
    assert await _until(lambda: any(len(descendants(pid)) == 1 for pid in _slot_pids(pool)), 10)
    await asyncio.sleep(0.1)
    return task


def test_killed_slot_costs_no_run() -> None:
    """Its run is tried again in a new slot; the old cage is gone with all that ran in it."""

    async def check() -> None:
        async with started_pool(1) as pool:
            task = await _start_sleeper(pool, 2.0)
            slot = next(pid for pid in _slot_pids(pool) if descendants(pid))
            inside = list(descendants(slot))
            os.kill(slot, signal.SIGKILL)
            done = await task
            assert (done.status, len(done.outcomes)) == (Status.OK, 1)
            assert await _until(lambda: not any(map(is_alive, [slot, *inside])), 2)
            assert pool.counts["internal"] == 1
            assert pool.counts["slot_died"] == 1

    asyncio.run(check())


def test_killed_fork_server_costs_no_queued_run() -> None:
    """All slots die with it; those in flight are tried again, those in the queue never notice."""

    async def check() -> None:
        async with started_pool(2) as pool:
            sleeper = await _start_sleeper(pool, 2.0)
            queued = [asyncio.create_task(run(pool, ADD, f"add({i}, 1)")) for i in range(60)]
            await asyncio.sleep(0.02)
            for zygote in list(pool._zygotes.values()):
                os.kill(zygote.pid, signal.SIGKILL)
            done = await asyncio.gather(sleeper, *queued)
            assert {outcome.status for outcome in done} == {Status.OK}

    asyncio.run(check())


def test_slot_that_hangs_is_killed() -> None:
    """A cage that does not leave by itself would hold memory and processes for ever."""

    async def check() -> None:
        async with started_pool(1) as pool:
            task = await _start_sleeper(pool, 60)
            slot = next(pid for pid in _slot_pids(pool) if descendants(pid))
            inside = list(descendants(slot))
            os.kill(slot, signal.SIGSTOP)
            task.cancel()
            assert (await run(pool, ADD, "add(1, 1)")).status is Status.OK
            assert await _until(lambda: not any(map(is_alive, [slot, *inside])), 5)

    asyncio.run(check())


def test_cancel_frees_the_slot() -> None:
    """Abandoned runs would hold processors that others wait for."""

    async def check() -> None:
        async with started_pool(1) as pool:
            for program, call in ((SLEEP, "f(60)"), (HANG, "f()")):
                task = asyncio.create_task(run(pool, program, call, cpu_s=60, wall_s=90))
                await asyncio.sleep(0.5)
                before = list(descendants(os.getpid()))
                task.cancel()
                done = await asyncio.wait_for(run(pool, ADD, "add(1, 1)"), 40)
                assert done.status is Status.OK
                slots = {slot.pid for slot in pool._slots.values()}
                kept = {zygote.pid for zygote in pool._zygotes.values()} | slots
                gone = [pid for pid in before if pid not in kept]
                assert gone
                assert await _until(lambda pids=gone: not any(map(_is_program, pids)), 5)

    asyncio.run(check())


def _is_program(pid: int) -> bool:
    """Whether a process is a program: what runs below a slot, two levels under a fork server."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    return is_alive(pid) and len(numbers) > 1 and numbers[-1] != "1"


def test_limits_of_a_run_hold_whatever_its_calls_may_take() -> None:
    """What overshoots its limit takes time from all others."""

    async def check() -> None:
        async with started_pool(1) as pool:
            await run(pool, ADD, "add(1, 1)")
            for program, limits in (
                (HANG, {"cpu_s": 0.2, "call_cpu_s": 10.0}),
                ("import time\ndef f():\n    time.sleep(90)\n", {"wall_s": 0.2}),
            ):
                done = await asyncio.wait_for(run(pool, program, "f()", **limits), 40)
                assert done.status is Status.TIMEOUT
                assert done.cpu_s < 5

    asyncio.run(check())


def test_sleepers_make_room() -> None:
    """A program that waits for nothing would leave a processor idle for its whole wall limit."""

    async def check() -> None:
        async with started_pool(1) as pool:
            sleeper = await _start_sleeper(pool, 30)
            assert (await run(pool, ADD, "add(1, 1)")).status is Status.OK
            assert not sleeper.done()
            sleeper.cancel()

    asyncio.run(check())


def test_memory_of_all_processes_together() -> None:
    """Processes below the limit each would take the host's memory together."""

    async def check() -> None:
        async with started_pool(1) as pool:
            done = await run(pool, GREEDY, "f()", memory_bytes=100 << 20, cpu_s=30, call_cpu_s=30)
            assert done.status is Status.MEMORY
            assert (await run(pool, ADD, "add(1, 1)")).status is Status.OK

    asyncio.run(check())


class _KernelKilledOnce:
    """A control group in which the kernel has killed a process."""

    def __init__(self) -> None:
        self.is_new = True

    def set_memory(self, num_bytes: int) -> None:
        assert num_bytes > 0

    def has_new_oom_kill(self) -> bool:
        is_new, self.is_new = self.is_new, False
        return is_new

    def remove(self) -> bool:
        return True


def test_kernel_that_kills_for_memory_is_heard() -> None:
    """The verdict would be CRASH, or the slot would go on with half of its processes."""
    groups = cgroup.Groups()
    if groups.version == "none":
        pytest.skip(groups.note)
    try:
        group = groups.make("test", 8)
        assert group is not None
        group.set_memory(64 << 20)
        code = "import os, sys\nfor path in sys.argv[1:]:\n    open(path, 'w').write('0')\n"
        paths = [os.path.join(path, "cgroup.procs") for path in group.paths]
        command = [sys.executable, "-S", "-c", code + "b'x' * (200 << 20)", *paths]
        assert subprocess.run(command).returncode == -signal.SIGKILL
        assert group.has_new_oom_kill()
        assert not group.has_new_oom_kill()
        groups.leave(group)
    finally:
        groups.close()

    async def check() -> None:
        async with started_pool(1) as pool:
            await run(pool, ADD, "add(1, 1)")
            for slot in pool._slots.values():
                slot._group = _KernelKilledOnce()  # type: ignore[assignment]
            done = await run(pool, ADD, "add(1, 1)")
            assert done.status is Status.MEMORY
            assert pool.counts["oom"] == 1
            assert (await run(pool, ADD, "add(1, 1)")).status is Status.OK

    asyncio.run(check())


def test_folders_of_the_dead_are_swept(tmp_path: pathlib.Path) -> None:
    """A lock outlives no process, and the folder of a living one is left alone."""
    mine = folders.make_locked(str(tmp_path), "x-")
    code = (
        "import os, sys\nfrom sandbox_service import folders\n"
        "print(folders.make_locked(sys.argv[1], 'x-').path, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    dead = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    (tmp_path / "other").mkdir()
    found = list(folders.abandoned(str(tmp_path), "x-"))
    assert [lock.path for lock in found] == [dead]
    assert list(folders.abandoned(str(tmp_path), "x-")) == []  # the sweeper holds it now
    for lock in (mine, *found):
        lock.release()


@pytest.mark.parametrize("tier", ["", "C"])
def test_killed_server_leaves_nothing(tier: str) -> None:
    """Every crash would leave processes, control groups and files for good."""
    command = [sys.executable, "-m", "sandbox_service.cli", "serve", "--slots", "2"]
    command += ["--address", "127.0.0.1:0", "--min-tier", "C", *(["--tier", tier] if tier else [])]

    def start() -> "subprocess.Popen[bytes]":
        with tempfile.TemporaryDirectory() as folder:
            port_file = pathlib.Path(folder) / "port"
            process = subprocess.Popen(
                [*command, "--port-file", str(port_file)], stderr=subprocess.PIPE
            )
            deadline = time.monotonic() + 60
            while not port_file.exists() and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        if process.poll() is not None:
            assert process.stderr is not None
            pytest.skip(process.stderr.read().decode())
        return process

    def held(process: "subprocess.Popen[bytes]") -> set[str]:
        """Folders that a service keeps locked: of its control groups and of its scratch files."""
        paths = set()
        for name in os.listdir(f"/proc/{process.pid}/fd"):
            with contextlib.suppress(OSError):
                paths.add(os.readlink(f"/proc/{process.pid}/fd/{name}"))
        return {path for path in paths if os.path.basename(path).startswith("codea1-sandbox-")}

    first = start()
    below = list(descendants(first.pid))
    assert len(below) >= 3  # fork servers and a slot at least
    own = held(first)
    assert own or not tier
    first.kill()
    first.wait()
    deadline = time.monotonic() + 5
    while any(map(is_alive, below)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_alive, below))
    second = start()
    try:
        assert not any(map(os.path.exists, own))
        own = held(second)
    finally:
        second.terminate()
        assert second.wait(40) == 0
    for process in (first, second):
        assert process.stderr is not None
        process.stderr.close()
    assert not any(map(os.path.exists, own))


def _footprint(pool: Pool) -> dict[str, int]:
    groups = pool._open_groups()
    groups.remove_left()
    below = descendants(os.getpid())
    return {
        "zombies": list(below.values()).count("Z"),
        "processes": len(below),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mounts": len(pathlib.Path("/proc/self/mounts").read_text().splitlines()),
        "groups": sum(len(os.listdir(lock.path)) for lock in groups._locks),
        "files": sum(_is_ours(entry) for entry in os.scandir(tempfile.gettempdir())),
    }


def _is_ours(entry: "os.DirEntry[str]") -> bool:
    """Whether a program could have written a file: the uids of slots start there."""
    with contextlib.suppress(OSError):
        is_scratch = entry.name.startswith("codea1-sandbox-scratch-")
        return is_scratch or entry.stat(follow_symlinks=False).st_uid >= 1 << 20
    return False


def _resident_bytes() -> tuple[int, int]:
    """Of this process, which supervises, and of the largest below it."""
    sizes = {}
    for pid in [os.getpid(), *descendants(os.getpid())]:
        with contextlib.suppress(OSError):
            pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
            sizes[pid] = pages * os.sysconf("SC_PAGE_SIZE")
    return sizes.pop(os.getpid()), max(sizes.values())


@pytest.mark.parametrize(
    "num_runs",
    [300, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_mixed_runs_leave_nothing(num_runs: int) -> None:
    """A training run makes millions of runs on one service; a leak per thousand would end it."""
    bad = {
        BOMB: {Status.TIMEOUT, Status.CRASH, Status.MEMORY, Status.OK},
        FLOOD: {Status.OUTPUT_LIMIT},
        HANG: {Status.TIMEOUT},
        DAEMON: {Status.OK},
        LITTER: {Status.OK},
    }
    chooser = random.Random(0)

    async def one(pool: Pool, program: str) -> None:
        if program == ADD:
            done = await run(pool, ADD, "add(1, 2)", "add(2, 2)", "add('a', 'b')")
            assert done.status is Status.OK
        else:
            done = await run(pool, program, "f()", cpu_s=0.05, call_cpu_s=0.05)
            assert done.status in bad[program], program

    async def batch(pool: Pool, number: int) -> None:
        programs = [chooser.choice(list(bad)) for _ in range(number // 20)]
        programs += [ADD] * (number - len(programs))
        chooser.shuffle(programs)
        todo = iter(programs)

        async def worker() -> None:
            for program in todo:
                await one(pool, program)

        await asyncio.gather(*(worker() for _ in range(4)))

    async def check() -> None:
        async with started_pool(2) as pool:
            for program in (*bad, ADD):  # every kind of slot exists before the first count
                await asyncio.gather(*(one(pool, program) for _ in range(8)))
            await batch(pool, 200)
            await asyncio.sleep(0.5)
            before, memory = _footprint(pool), _resident_bytes()
            await batch(pool, num_runs)
            await asyncio.sleep(0.5)
            after, memory_after = _footprint(pool), _resident_bytes()
            # A slot that was recycled at the end is made anew at the next use.
            assert after["processes"] <= before["processes"] + 4
            assert after["descriptors"] <= before["descriptors"] + 8
            assert after["groups"] <= before["groups"] + 8
            for name in ("zombies", "mounts", "files"):
                assert after[name] <= before[name], name
            assert memory_after[0] < memory[0] + (16 << 20)
            assert memory_after[1] < memory[1] + (8 << 20)
            assert pool.counts["internal"] == 0

    asyncio.run(check())


@pytest.mark.parametrize(
    ("num_bombs", "num_good"),
    [(6, 100), pytest.param(64, 1000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_good_runs_behind_bombs(num_bombs: int, num_good: int) -> None:
    """One hostile sample must not turn its neighbours' rewards."""

    async def check() -> None:
        async with started_pool(2) as pool:
            bombs = [
                asyncio.create_task(run(pool, BOMB, "f()", cpu_s=0.5, call_cpu_s=0.5))
                for _ in range(num_bombs)
            ]
            good = [asyncio.create_task(run(pool, ADD, "add(1, 2)")) for _ in range(num_good)]
            assert {done.status for done in await asyncio.gather(*good)} == {Status.OK}
            # MEMORY: what failed forks leave in the kernel until its next grace period is charged.
            wanted = {Status.TIMEOUT, Status.CRASH, Status.MEMORY}
            if not pool.tier.startswith(("A", "C")):
                wanted.add(Status.OK)  # no new process at all: the bomb only sees errors
            assert {done.status for done in await asyncio.gather(*bombs)} <= wanted
            assert pool.counts["internal"] == 0

    asyncio.run(check())


def test_reason_of_the_kernel_outlives_a_killed_slot() -> None:
    """The kernel may take the slot in the program's stead: still the program's fault."""

    async def check() -> None:
        async with started_pool(1) as pool:
            await run(pool, SLEEP, "f(0)")
            for slot in pool._slots.values():
                slot._group = _KernelKilledOnce()  # type: ignore[assignment]
            task = asyncio.create_task(run(pool, SLEEP, "f(60)", wall_s=90))
            assert await _until(lambda: any(descendants(pid) for pid in _slot_pids(pool)), 10)
            os.kill(next(pid for pid in _slot_pids(pool) if descendants(pid)), signal.SIGKILL)
            assert (await task).status is Status.MEMORY

    asyncio.run(check())


def test_a_service_whose_parent_died_while_it_started_ends() -> None:
    """A killed test or trainer must not leave services behind that nobody knows of."""
    command = [sys.executable, "-m", "sandbox_service.cli", "serve", "--address", "127.0.0.1:0"]
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = subprocess.run(
        [*command, "--slots", "1", "--exit-with-parent", str(gone.pid)], timeout=60, check=False
    )
    assert done.returncode == 0
