"""Replies of a stream, several in a message: to send a message costs more than to make a reply.

A reply waits for others at most `_LINGER_S`, and not at all when no other is expected.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

_LINGER_S = 0.004
_MAX_BATCH_BYTES = 4 << 20  # a reply that is larger goes alone


class Outbox:
    """For one event loop. `write` sends a list of replies as one message."""

    def __init__(self, write: Callable[[list[Any]], Awaitable[None]]) -> None:
        self._write = write
        self._writing = asyncio.Lock()
        self._num_expected = 0
        self._batch: _Batch | None = None  # that takes more

    @contextlib.contextmanager
    def expecting(self) -> Iterator[None]:
        """Around the making of a reply: others wait for it."""
        self._num_expected += 1
        try:
            yield
        finally:
            self._num_expected -= 1

    async def put(self, reply: Any) -> None:
        """Returns when the reply is sent: so a slow reader holds its stream back."""
        size = reply.ByteSize()
        batch = self._batch
        if batch is not None and batch.num_bytes + size > _MAX_BATCH_BYTES:
            batch.is_due.set()
            batch = None
        is_first = batch is None
        if batch is None:
            batch = self._batch = _Batch()
        batch.replies.append(reply)
        batch.num_bytes += size
        if not self._num_expected:
            batch.is_due.set()
        if not is_first:
            await batch.is_sent.wait()
            return
        timer = asyncio.get_running_loop().call_later(_LINGER_S, batch.is_due.set)
        try:
            await batch.is_due.wait()
        finally:
            timer.cancel()
        async with self._writing:
            if self._batch is batch:
                self._batch = None
            await self._write(batch.replies)
        batch.is_sent.set()


class _Batch:
    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.num_bytes = 0
        self.is_due, self.is_sent = asyncio.Event(), asyncio.Event()
