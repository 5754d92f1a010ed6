"""The gRPC server: Run, Execute, GetInfo, health, reflection, drain. One event loop, never forks.

Imported only after the fork servers have been started (see cli.py).
"""

import asyncio
import contextlib
import logging
import os
import platform
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sandbox_service import limits, request, runner
from sandbox_service.pool import Pool
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc

log = logging.getLogger(__name__)

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Sandbox"].full_name
VERSION = "0.1.0"
_DRAIN_S = 20.0
_PUSHBACK_MS = 200
_OPTIONS = (
    ("grpc.max_receive_message_length", limits.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", limits.MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second server on the port is a mistake and should fail
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
)


class SandboxServicer(pb_grpc.SandboxServicer):
    """Answers requests with the pool's runs."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._max_waiting = limits.QUEUE_PER_SLOT * pool.num_slots
        self._num_open = 0
        self._is_draining = asyncio.Event()
        self.window = max(4, 2 * pool.num_slots)

    async def _run(self, message: pb.RunRequest, spec: runner.RunSpec) -> pb.RunReply:
        start = time.monotonic()
        self._num_open += 1
        try:
            done = await runner.run(self._pool, spec)
        finally:
            self._num_open -= 1
        return request.reply(message.id, done, self._pool.tier, time.monotonic() - start)

    async def Run(self, message: pb.RunRequest, context: Any) -> pb.RunReply:
        if self._num_open >= self._max_waiting:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", str(_PUSHBACK_MS)),))
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._num_open} runs are waiting for {self._pool.num_slots} slots; try later",
            )
        try:
            spec = request.parse(message)
        except request.InvalidRequest as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await self._run(message, spec)

    async def Execute(
        self, messages: AsyncIterator[pb.RunRequest], context: Any
    ) -> AsyncIterator[pb.RunReply]:
        replies: asyncio.Queue[pb.RunReply | None] = asyncio.Queue()
        room = asyncio.Semaphore(self.window)
        tasks: set[asyncio.Task[None]] = set()

        async def answer(message: pb.RunRequest) -> None:
            try:
                replies.put_nowait(await self._answer(message))
            finally:
                room.release()

        async def read() -> None:
            async for message in messages:
                await room.acquire()
                task = asyncio.create_task(answer(message))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
            replies.put_nowait(None)

        async def drain() -> None:
            await self._is_draining.wait()
            reader.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            replies.put_nowait(None)

        reader = asyncio.create_task(read())
        drainer = asyncio.create_task(drain())
        reader.add_done_callback(
            lambda task: None if task.cancelled() else replies.put_nowait(None)
        )
        try:
            while (reply := await replies.get()) is not None:
                yield reply
        finally:
            for task in (reader, drainer, *tasks):
                task.cancel()
            await asyncio.gather(reader, drainer, *tasks, return_exceptions=True)

    def drain(self) -> None:
        """Streams end once what they have in hand is answered."""
        self._is_draining.set()

    async def _answer(self, message: pb.RunRequest) -> pb.RunReply:
        """One reply of a stream; a bad request or a fault here must not end the others."""
        try:
            return await self._run(message, request.parse(message))
        except request.InvalidRequest as error:
            return pb.RunReply(id=message.id, status=pb.INVALID, message=str(error))
        except Exception as error:
            log.exception("a run failed inside the server")
            return pb.RunReply(
                id=message.id,
                status=pb.INTERNAL,
                verdict=pb.VERDICT_INTERNAL,
                message=f"{type(error).__name__}: {error}",
                tier=self._pool.tier,
                outcomes=[
                    pb.Outcome(index=index, status=pb.CALL_UNKNOWN)
                    for index in range(len(message.calls))
                ],
            )

    async def GetInfo(self, message: pb.InfoRequest, context: Any) -> pb.Info:
        return request.info(self._pool, self.window, VERSION, platform.python_version())


async def serve(pool: Pool, address: str, *, port_file: str = "", is_child: bool = False) -> None:
    """Serves until SIGTERM or SIGINT, or until the parent process is gone if `is_child`.

    Raises pool.TierUnavailable, and OSError if the address cannot be used.
    """
    parent = os.getppid()
    await pool.start()
    server = grpc.aio.server(options=_OPTIONS)
    servicer = SandboxServicer(pool)
    pb_grpc.add_SandboxServicer_to_server(servicer, server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    reflection.enable_server_reflection(
        (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server
    )
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from None
    await server.start()
    for name in ("", SERVICE_NAME):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    if port_file:
        _write_port(port_file, port)
    log.warning("serving on port %d, %d slots, tier %s", port, pool.num_slots, pool.tier)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 0.5)
        if is_child and os.getppid() != parent:
            break
    await checks.enter_graceful_shutdown()
    servicer.drain()
    await server.stop(0.0 if is_child and os.getppid() != parent else _DRAIN_S)
    pool.close()


def _write_port(path: str, port: int) -> None:
    """Atomically: whoever waits for the file never reads half of it."""
    with open(path + ".new", "w") as file:
        file.write(f"{port}\n")
    os.replace(path + ".new", path)
