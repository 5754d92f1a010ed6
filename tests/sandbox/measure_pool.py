"""Measures the process side alone, without gRPC: `python measure_pool.py [--tier T] [--runs N]`.

Prints one JSON line: what a run costs in CPU time of all processes, how fast runs and calls go, and
how late time-outs, cancellations and repairs are (milliseconds).
"""

import argparse
import asyncio
import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from pool_runs import ADD, HANG, SLEEP, descendants, run, started_pool

from sandbox_service import launch
from sandbox_service.pool import Pool

_IN_FLIGHT = 4
NAP = "import time\ndef f():\n    time.sleep(60)\n"


def _cpu_s() -> float:
    """CPU time of this process and of all below it, ended ones included."""
    ticks = 0
    for pid in [os.getpid(), *descendants(os.getpid())]:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


async def _runs(pool: Pool, number: int, *calls: str) -> tuple[float, float]:
    """Seconds of wall clock and of CPU time for each run."""

    async def worker(share: int) -> None:
        for _ in range(share):
            await run(pool, ADD, *calls)

    start, cpu = time.perf_counter(), _cpu_s()
    await asyncio.gather(*(worker(number // _IN_FLIGHT) for _ in range(_IN_FLIGHT)))
    return (time.perf_counter() - start) / number, (_cpu_s() - cpu) / number


async def _overshoot_ms(pool: Pool, program: str, **limits: float) -> float:
    """How far a run went beyond 0.2 s of its processor, or of wall clock if it sleeps."""
    start = time.perf_counter()
    done = await run(pool, program, "f()", call_cpu_s=9, **limits)
    used_s = time.perf_counter() - start if "wall_s" in limits else done.cpu_s
    return (used_s - 0.2) * 1e3


async def _cancel_ms(pool: Pool) -> float:
    task = asyncio.create_task(run(pool, SLEEP, "f(60)", wall_s=90))
    await asyncio.sleep(0.1)
    task.cancel()
    start = time.perf_counter()
    await run(pool, ADD, "add(1, 2)")
    return (time.perf_counter() - start) * 1e3


async def _repair_ms(pool: Pool, *, kills_zygote: bool = False) -> float:
    """From the kill to the start of the next child, by what the run took longer."""
    start = time.perf_counter()
    task = asyncio.create_task(run(pool, SLEEP, "f(0.2)"))
    await asyncio.sleep(0.1)
    for key, slot in pool._slots.items():
        if descendants(slot.pid):
            os.kill(pool._zygotes[key[1:3]].pid if kills_zygote else slot.pid, signal.SIGKILL)
            start = time.perf_counter()
    await task
    return (time.perf_counter() - start - 0.2) * 1e3


def _start_ms() -> float:
    """From nothing to a healthy service, as after its death."""
    start = time.perf_counter()
    with launch.service_process():
        return (time.perf_counter() - start) * 1e3


def _percentiles(values: list[float]) -> dict[str, float]:
    values = sorted(values)
    return {
        name: round(values[min(len(values) - 1, int(share * len(values)))], 1)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


async def measure(tier: str, num_runs: int) -> dict[str, object]:
    async with started_pool(os.cpu_count() or 1, tier) as pool:
        await _runs(pool, 100, "add(1, 2)")
        wall, cpu = await _runs(pool, num_runs, "add(1, 2)", "add(-1, 1)", "add(0, 0)")
        many_wall, many_cpu = await _runs(pool, num_runs // 4, *["add(1, 2)"] * 50)
        result: dict[str, object] = {
            "tier": pool.tier,
            "notes": pool.notes,
            "load": round(os.getloadavg()[0], 1),
            "cpu_ms_per_run": round(cpu * 1e3, 2),
            "runs_per_s": round(1 / wall),
            "calls_per_s_at_50": round(50 / many_wall),
            "calls_per_cpu_s_at_50": round(50 / many_cpu),
            "cpu_overshoot_ms": _percentiles(
                [await _overshoot_ms(pool, HANG, cpu_s=0.2) for _ in range(30)]
            ),
            "wall_overshoot_ms": _percentiles(
                [await _overshoot_ms(pool, NAP, cpu_s=0.2, wall_s=0.2) for _ in range(30)]
            ),
        }
    async with started_pool(1, tier) as pool:
        await _cancel_ms(pool)
        result["cancel_to_next_ms"] = _percentiles([await _cancel_ms(pool) for _ in range(30)])
        result["repair_ms"] = _percentiles([await _repair_ms(pool) for _ in range(30)])
        result["zygote_repair_ms"] = _percentiles(
            [await _repair_ms(pool, kills_zygote=True) for _ in range(30)]
        )
    result["service_start_ms"] = _percentiles([_start_ms() for _ in range(5)])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tier", default="", help="the strongest of this machine")
    parser.add_argument("--runs", type=int, default=1000)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(measure(arguments.tier, arguments.runs))))


if __name__ == "__main__":
    main()
