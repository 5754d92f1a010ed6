"""Replies of a stream that share messages (`outbox.py`)."""

import asyncio
import time

import pytest

from sandbox_service import outbox
from sandbox_service.outbox import Outbox
from sandbox_service.proto import sandbox_pb2 as pb


class _Wire:
    """Keeps the ids of each message; a `gate` that is closed stands for a slow reader."""

    def __init__(self) -> None:
        self.messages: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def write(self, replies: list[pb.RunReply]) -> None:
        await self.gate.wait()
        self.messages.append([reply.id for reply in replies])


async def _answer(box: Outbox, number: int, after_s: float = 0.0, stdout: bytes = b"") -> None:
    with box.expecting():
        await asyncio.sleep(after_s)
    await box.put(pb.RunReply(id=number, stdout=stdout))


def test_replies_share_messages_and_none_waits_for_a_slow_run() -> None:
    """A message for each reply costs a fifth of the throughput; waiting for all costs time."""

    async def scene() -> None:
        wire = _Wire()
        box = Outbox(wire.write)
        slow = asyncio.create_task(_answer(box, 9, 60.0))
        await asyncio.sleep(0)
        await asyncio.gather(*(_answer(box, number) for number in range(3)))
        assert wire.messages == [[0, 1, 2]]
        slow.cancel()

    asyncio.run(scene())


def test_last_reply_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends one run after the other must not wait for company that cannot come."""
    monkeypatch.setattr(outbox, "_LINGER_S", 60.0)

    async def scene() -> None:
        wire = _Wire()
        box = Outbox(wire.write)
        start = time.monotonic()
        await asyncio.gather(_answer(box, 0), _answer(box, 1, 0.05))
        assert wire.messages == [[0, 1]]
        assert time.monotonic() - start < 30

    asyncio.run(scene())


def test_large_replies_do_not_exceed_a_message() -> None:
    """gRPC refuses what is over its limit, and the stream would be lost with all of its runs."""

    async def scene() -> None:
        wire = _Wire()
        wire.gate.clear()
        box = Outbox(wire.write)
        large = bytes(outbox._MAX_BATCH_BYTES * 2 // 5)
        puts = [asyncio.create_task(_answer(box, number, 0.0, large)) for number in range(5)]
        await asyncio.sleep(0.05)
        assert not any(put.done() for put in puts)  # nobody reads: nobody goes on
        wire.gate.set()
        await asyncio.gather(*puts)
        assert sorted(wire.messages) == [[0, 1], [2, 3], [4]]

    asyncio.run(scene())
