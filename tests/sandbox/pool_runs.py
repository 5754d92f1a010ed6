"""Runs on a pool without a server, for tests and measurements of the process side."""

import contextlib
import pathlib
from collections.abc import AsyncIterator

from sandbox_service import request, runner
from sandbox_service.pool import Pool
from sandbox_service.proto import sandbox_pb2 as pb

ADD = "def add(a, b):\n    return a + b\n"
SLEEP = "import time\ndef f(s):\n    time.sleep(s)\n    return s\n"
HANG = "def f():\n    while True: pass\n"
BOMB = (
    "import os\ndef f():\n    while True:\n        try: os.fork()\n        except OSError: pass\n"
)
FLOOD = "def f():\n    while True: print('x' * 65536)\n"
GREEDY = (
    "import os\ndef f():\n    for _ in range(12):\n        if os.fork() == 0:\n"
    "            block = b'x' * (60 << 20)\n            while True: pass\n    while True: pass\n"
)


@contextlib.asynccontextmanager
async def started_pool(num_slots: int = 2, tier: str = "") -> AsyncIterator[Pool]:
    """A pool at the strongest tier of this machine; raises TierUnavailable if that is D."""
    pool = Pool(num_slots, "C", tier)
    try:
        pool.prestart()
        await pool.start()
        yield pool
    finally:
        pool.close()


async def run(pool: Pool, program: str, *calls: str, **limits: float) -> runner.RunOutcome:
    """One request, parsed and run as the server does it."""
    message = pb.RunRequest(program=pb.Source(inline=program.encode()), limits=pb.Limits(**limits))  # type: ignore[arg-type]
    for text in calls:
        message.calls.add(text=text.encode())
    return await runner.run(pool, request.parse(message))


def descendants(pid: int) -> dict[int, str]:
    """Processes below `pid`: their numbers and states."""
    rows: dict[int, tuple[int, str]] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                rows[int(entry.name)] = (int(parent), state)
    found: dict[int, str] = {}
    todo = [pid]
    while todo:
        parent = todo.pop()
        for child, (its_parent, state) in rows.items():
            if its_parent == parent:
                found[child] = state
                todo.append(child)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"
