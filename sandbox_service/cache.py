"""Answers that are already known, and equal requests that are on their way (single flight).

The key is a digest of the runtime and of everything in the request that can change the answer.
PASS, FAIL and ERROR stay until room is needed; what ended by a limit or a crash stays for ten
minutes, since a busy machine may have had a part in it; INTERNAL and flaky runs are never kept.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from sandbox_service.proto import sandbox_pb2 as pb

_LIMIT_TTL_S = 600.0
_ENTRY_OVERHEAD_BYTES = 300  # the key, the entry and its place in the dictionary
_LIMIT_STATUSES = (pb.TIMEOUT, pb.MEMORY, pb.OUTPUT_LIMIT, pb.CRASH, pb.NO_RESULT)


class Cache:
    """Replies by key, the least recently used ones dropped first. For one event loop."""

    def __init__(self, max_bytes: int, runtime_digest: bytes) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_hits = 0
        self.num_joined = 0
        self._runtime_digest = runtime_digest
        self._entries: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self._flights: dict[bytes, asyncio.Future[pb.RunReply]] = {}

    def key(self, request: pb.RunRequest) -> bytes:
        """Digest of a request whose `id`, `task_id` and `priority` the caller has cleared."""
        text = request.SerializeToString(deterministic=True)
        return hashlib.sha256(self._runtime_digest + text).digest()

    def get(self, key: bytes) -> pb.RunReply | None:
        """A copy of the reply, marked as a hit."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        data, expires_s = entry
        if expires_s and expires_s < time.monotonic():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        self.num_hits += 1
        return _hit(data)

    def put(self, key: bytes, reply: pb.RunReply) -> None:
        """Keeps the reply if it is a fact about the program."""
        expires_s = 0.0
        if reply.status in _LIMIT_STATUSES:
            expires_s = time.monotonic() + _LIMIT_TTL_S
        elif reply.status not in (pb.OK, pb.LOAD_ERROR):
            return
        if reply.is_flaky:
            return
        data = reply.SerializeToString()
        size = len(data) + _ENTRY_OVERHEAD_BYTES
        if size > self.max_bytes:
            return
        self._drop(key)
        self._entries[key] = data, expires_s
        self.num_bytes += size
        while self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._entries)))

    async def get_or_run(
        self, key: bytes, run: Callable[[], Awaitable[pb.RunReply]]
    ) -> pb.RunReply:
        """The known reply, that of an equal run in flight, or that of `run`.

        Whoever comes first runs. If its client goes away, the next of those that wait runs instead.
        """
        while (flight := self._flights.get(key)) is not None:
            try:
                reply = await asyncio.shield(flight)
            except _Abandoned:
                continue
            self.num_joined += 1
            return _hit(reply.SerializeToString())
        if (known := self.get(key)) is not None:
            return known
        flight = asyncio.get_running_loop().create_future()
        self._flights[key] = flight
        try:
            reply = await run()
            self.put(key, reply)
            flight.set_result(reply)
            return reply
        finally:
            del self._flights[key]
            if not flight.done():
                flight.set_exception(_Abandoned())
                flight.exception()  # retrieved: nobody may be waiting

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= len(entry[0]) + _ENTRY_OVERHEAD_BYTES


class _Abandoned(Exception):
    """The run in flight ended without a reply."""


def _hit(data: bytes) -> pb.RunReply:
    reply = pb.RunReply.FromString(data)
    reply.cache_hit = True
    reply.queue_us = 0
    return reply
