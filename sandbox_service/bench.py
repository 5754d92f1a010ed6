"""`codea1-sandbox bench`: runs per second with the client on the same machine.

Every run is a program of its own, so that no answer comes from the cache. `--compare` has the same
tests done by one `python -I -S` process each, in turns with the service: only the ratio of the two
says much on a machine that others use as well.
"""

import asyncio
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc

from sandbox_service import codec
from sandbox_service.channel import Security, open_channel
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc

_WARM_UP_RUNS = 64
_BATCH = 256
_ROUNDS = 3
_SUBPROCESS_SHARE = 10  # subprocesses are this much fewer: they are slow
_RUN_TIMEOUT_S = 120.0


def main(
    address: str, security: Security, *, num_runs: int, mode: str, num_calls: int, compares: bool
) -> int:
    """Measures and prints one line of JSON; 1 if any run went wrong, else 0.

    Raises ConnectionError if the service cannot be asked, and channel's AuthError.
    """
    try:
        result = asyncio.run(_measure(address, security, num_runs, mode, num_calls, compares))
    except grpc.RpcError as error:
        raise ConnectionError(f"the service at {address} failed: {error.details()}") from None
    print(json.dumps(result), flush=True)
    return 1 if result["errors"] else 0


async def _measure(
    address: str, security: Security, num_runs: int, mode: str, num_calls: int, compares: bool
) -> dict[str, Any]:
    async with open_channel(address, security, is_async=True) as channel:
        bench = _Bench(pb_grpc.SandboxStub(channel), security.metadata(), num_calls)
        info = await bench.connect()
        run = {"unary": bench.unary, "stream": bench.stream, "batch": bench.batch}[mode]
        await run(_WARM_UP_RUNS)
        bench.latencies_s.clear()
        num_rounds = _ROUNDS if compares and num_runs >= _ROUNDS else 1
        spent_s = subprocess_s = 0.0
        num_subprocesses = 0
        for number in range(num_rounds):
            share = num_runs // num_rounds + (number < num_runs % num_rounds)
            spent_s += await _timed(run(share))
            _say(f"{len(bench.latencies_s)} of {num_runs} runs, {spent_s:.1f} s")
            if compares:
                few = max(info.slots, share // _SUBPROCESS_SHARE)
                subprocess_s += await _timed(_subprocesses(few, num_calls, info.slots))
                num_subprocesses += few
                _say(f"{num_subprocesses} subprocesses, {subprocess_s:.1f} s")
    result: dict[str, Any] = {
        "mode": mode,
        "runs": num_runs,
        "runs_per_s": round(num_runs / spent_s, 1),
        "calls_per_s": round(num_runs * num_calls / spent_s, 1),
        **{
            f"p{percent}_ms": round(1e3 * _percentile(bench.latencies_s, percent), 2)
            for percent in (50, 90, 99)
        },
        "errors": bench.num_errors,
        "tier": info.tier,
        "slots": info.slots,
    }
    if compares:
        result["subprocess_runs_per_s"] = round(num_subprocesses / subprocess_s, 1)
        result["ratio"] = round(num_runs / spent_s * subprocess_s / num_subprocesses, 2)
    return result


class _Bench:
    """The three ways to send runs; all keep as many in flight as the service asks for."""

    def __init__(self, stub: Any, metadata: Any, num_calls: int) -> None:
        self._stub = stub
        self._metadata = metadata
        self._calls = [
            pb.Call(text=f"add({i}, {i + 1})".encode(), expected=codec.encode(2 * i + 1))
            for i in range(num_calls)
        ]
        self._window = 1
        self._number = 0
        self.latencies_s: list[float] = []
        self.num_errors = 0

    async def connect(self) -> pb.Info:
        info = await self._stub.GetInfo(
            pb.InfoRequest(), timeout=10, wait_for_ready=True, metadata=self._metadata
        )
        self._window = info.window
        return info

    def _program(self) -> pb.Source:
        self._number += 1
        return pb.Source(inline=f"def add(a, b):\n    return a + b  # {self._number}\n".encode())

    def _request(self) -> pb.RunRequest:
        program = self._program()
        return pb.RunRequest(id=self._number, program=program, calls=self._calls, no_cache=True)

    def _finish(self, reply: pb.RunReply, start_s: float) -> None:
        self.latencies_s.append(time.perf_counter() - start_s)
        self.num_errors += reply.verdict != pb.VERDICT_PASS

    async def unary(self, num_runs: int) -> None:
        async def one() -> None:
            start_s = time.perf_counter()
            reply = await self._stub.Run(
                self._request(), timeout=_RUN_TIMEOUT_S, metadata=self._metadata
            )
            self._finish(reply, start_s)

        await _in_parallel(one, num_runs, self._window)

    async def stream(self, num_runs: int) -> None:
        room = asyncio.Semaphore(self._window)
        sent_s: dict[int, float] = {}

        async def requests() -> AsyncIterator[pb.RunRequests]:
            rest = num_runs
            while rest:
                await room.acquire()
                message = pb.RunRequests(runs=[self._request()])
                rest -= 1
                while rest and not room.locked():
                    await room.acquire()
                    message.runs.append(self._request())
                    rest -= 1
                now_s = time.perf_counter()
                sent_s.update((run.id, now_s) for run in message.runs)
                yield message

        async for message in self._stub.Execute(requests(), metadata=self._metadata):
            for reply in message.replies:
                self._finish(reply, sent_s.pop(reply.id))
                room.release()

    async def batch(self, num_runs: int) -> None:
        """Latencies are from the batch's start to the cell's arrival."""
        for first in range(0, num_runs, _BATCH):
            programs = [self._program() for _ in range(min(_BATCH, num_runs - first))]
            message = pb.MatrixRequest(
                programs=programs,
                suites=[pb.Suite(calls=self._calls)],
                template=pb.RunRequest(no_cache=True),
            )
            start_s = time.perf_counter()
            async for answer in self._stub.RunMatrix(message, metadata=self._metadata):
                for cell in answer.cells:
                    self._finish(cell.reply, start_s)


async def _subprocesses(num_runs: int, num_calls: int, num_parallel: int) -> None:
    tests = "\n".join(f"assert add({i}, {i + 1}) == {2 * i + 1}" for i in range(num_calls))
    program = f"def add(a, b):\n    return a + b\n{tests}\n"

    async def one() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", program, stdin=asyncio.subprocess.DEVNULL
        )
        if await process.wait():
            raise RuntimeError("a plain subprocess failed at the test")

    await _in_parallel(one, num_runs, num_parallel)


async def _in_parallel(
    one: Callable[[], Coroutine[Any, Any, None]], number: int, num_parallel: int
) -> None:
    turns = iter(range(number))

    async def work() -> None:
        for _ in turns:
            await one()

    async with asyncio.TaskGroup() as group:
        for _ in range(num_parallel):
            group.create_task(work())


async def _timed(work: Coroutine[Any, Any, None]) -> float:
    start_s = time.perf_counter()
    await work
    return time.perf_counter() - start_s


def _percentile(values: list[float], percent: int) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
