"""The methods of the service.

caller -> token, quota -> blobs by digest -> cache, single flight -> queue -> pool -> reply
"""

import asyncio
import collections
import contextlib
import hashlib
import logging
import platform
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from sandbox_service import auth, codec, limits, packages, request, runner
from sandbox_service.blobs import BlobStore, MissingBlob
from sandbox_service.cache import Cache
from sandbox_service.costs import CostTable
from sandbox_service.metrics import Metrics, verdict_name
from sandbox_service.outbox import Outbox
from sandbox_service.pool import Pool
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc
from sandbox_service.scheduler import ANYONE, Grant, QuotaExceeded, Scheduler, Tenant

log = logging.getLogger(__name__)

VERSION = "0.1.0"
_MAX_CELLS = 1_000_000
_MAX_OPEN_BYTES = 1 << 30  # of unary requests that are held
_PUSHBACK_S = 0.2


@dataclass(frozen=True)
class Settings:
    """How to serve. Sizes in bytes, durations in seconds.

    Attributes:
      address: HOST:PORT (port 0: a free one) or unix:PATH.
      port_file: gets the port once the service is healthy.
      parent: end when this process, the parent, ends; 0: whatever the parent does.
      metrics_address: HOST:PORT of /metrics; empty: none.
      cert_file, key_file: the service's certificate and key (PEM); empty: plain text.
      client_ca_file: callers must show a certificate from these; empty: they need none.
      token_file: see auth.py; empty: everybody may ask.
      has_reflection: answer which methods there are (for grpcurl and the like).
      connection_age_s: connections are renewed at this age, so that clients look at DNS again.
    """

    address: str
    port_file: str = ""
    parent: int = 0
    metrics_address: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    token_file: str = ""
    has_reflection: bool = False
    cache_bytes: int = 256 * limits.MIB
    blob_bytes: int = 256 * limits.MIB
    connection_age_s: float = 120.0


class SandboxServicer(pb_grpc.SandboxServicer):
    """Answers requests with the pool's runs."""

    def __init__(self, pool: Pool, settings: Settings) -> None:
        """Raises auth.AuthError if the file of tokens cannot be used."""
        self.pool = pool
        self.scheduler = Scheduler(pool.num_positions)
        self.runtime_digest = _runtime_digest(pool)
        self.cache = Cache(settings.cache_bytes, self.runtime_digest)
        self.costs = CostTable()
        self.blobs = BlobStore(settings.blob_bytes)
        self.metrics = Metrics(self) if settings.metrics_address else None
        self.window = max(8, 4 * pool.num_slots)
        self._host = socket.gethostname()
        self._tokens = auth.TokenFile(settings.token_file) if settings.token_file else None
        self._max_open = limits.QUEUE_PER_SLOT * pool.num_slots
        self._num_open = 0  # requests of Run, and their size
        self._open_bytes = 0
        self._is_draining = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._readers: set[asyncio.Task[Any]] = set()

    # The methods.

    async def Run(self, message: pb.RunRequest, context: Any) -> pb.RunReply:
        tenant = await self._tenant(context)
        size = message.ByteSize()
        if self._num_open >= self._max_open or self._open_bytes + size > _MAX_OPEN_BYTES:
            await _refuse(
                context,
                f"{self._num_open} runs are waiting for {self.pool.num_slots} slots; try later",
                _PUSHBACK_S,
            )
        self._num_open += 1
        self._open_bytes += size
        try:
            async with self._answering(context):
                return await self._answer(message, tenant)
        except QuotaExceeded as error:
            await _refuse(context, str(error), error.retry_s)
        except request.InvalidRequest as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except MissingBlob as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        finally:
            self._num_open -= 1
            self._open_bytes -= size
        raise AssertionError("abort raises")

    async def Execute(self, _: AsyncIterator[pb.RunRequests], context: Any) -> None:
        tenant = await self._tenant(context)
        runs: collections.deque[pb.RunRequest] = collections.deque()
        reading = asyncio.Lock()
        outbox = Outbox(lambda replies: context.write(pb.RunReplies(replies=replies)))

        async def next_run() -> pb.RunRequest | None:
            async with reading:
                while not runs:
                    message = await self._read(context)
                    if message is None:
                        return None
                    runs.extend(message.runs)
                return runs.popleft()

        async def work() -> None:
            while (run := await next_run()) is not None:
                with outbox.expecting():
                    reply = await self._answer_in_stream(run, tenant)
                await outbox.put(reply)

        async with self._answering(context):
            await _run_all(work() for _ in range(self.window))

    async def RunMatrix(self, message: pb.MatrixRequest, context: Any) -> None:
        tenant = await self._tenant(context)
        try:
            cells = _cells(message)
            for index, source in enumerate(message.programs):
                self.blobs.resolve(source, f"programs[{index}]")
            self.blobs.resolve(message.template.tests, "template.tests")
        except request.InvalidRequest as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except MissingBlob as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        outbox = Outbox(lambda cells: context.write(pb.MatrixCells(cells=cells)))

        async def work() -> None:
            for program, suite in cells:
                run = _cell_request(message, program, suite)
                with outbox.expecting():
                    reply = await self._answer_in_stream(run, tenant)
                await outbox.put(pb.MatrixCell(program=program, suite=suite, reply=reply))

        async with self._answering(context):
            await _run_all(work() for _ in range(self.window))

    async def PutBlobs(self, messages: AsyncIterator[pb.Blob], context: Any) -> pb.PutBlobsReply:
        await self._tenant(context)
        reply = pb.PutBlobsReply()
        async for message in messages:
            if len(message.data) > limits.MAX_REQUEST_BYTES:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"a blob of {len(message.data)} bytes; at most {limits.MAX_REQUEST_BYTES}",
                )
            try:
                reply.digests.append(self.blobs.put(message.data))
            except ValueError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return reply

    async def GetInfo(self, message: pb.InfoRequest, context: Any) -> pb.Info:
        await self._tenant(context)
        info = request.info(self.pool, self.window, VERSION, platform.python_version())
        info.host = self._host
        info.runtime_digest = self.runtime_digest
        return info

    # Starting and ending.

    def drain(self) -> None:
        """Streams read no further and end once what they have in hand is answered."""
        self._is_draining = True
        for task in list(self._readers):
            task.cancel()

    def stop(self) -> None:
        """Whatever is still unanswered gets UNAVAILABLE."""
        for task in list(self._tasks):
            task.cancel()

    @contextlib.asynccontextmanager
    async def _answering(self, context: Any) -> AsyncIterator[None]:
        """Marks the task as one that `stop` ends, with a word for its caller."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._is_draining and not context.cancelled():
                task.uncancel()
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "the service is shutting down; ask another host"
                )
            raise
        finally:
            self._tasks.discard(task)

    async def _tenant(self, context: Any) -> Tenant:
        if self._tokens is None:
            return ANYONE
        try:
            return self._tokens.tenant(context.invocation_metadata())
        except auth.Unauthenticated as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
            raise AssertionError("abort raises") from error

    async def _read(self, context: Any) -> pb.RunRequests | None:
        """The next message of a stream; None at its end or when draining."""
        task = asyncio.current_task()
        assert task is not None
        if self._is_draining:
            return None
        self._readers.add(task)
        try:
            message = await context.read()
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            task.uncancel()
            return None
        finally:
            self._readers.discard(task)
        return None if message is grpc.aio.EOF else message

    # One run.

    async def _answer_in_stream(self, message: pb.RunRequest, tenant: Tenant) -> pb.RunReply:
        """Like `_answer`; a bad request or a fault here must not end the others' stream."""
        request_id = message.id
        while True:
            try:
                return await self._answer(message, tenant)
            except QuotaExceeded as error:
                await asyncio.sleep(error.retry_s)
            except (request.InvalidRequest, MissingBlob) as error:
                return pb.RunReply(id=request_id, status=pb.INVALID, message=str(error))

    async def _answer(self, message: pb.RunRequest, tenant: Tenant) -> pb.RunReply:
        """Raises QuotaExceeded, InvalidRequest and MissingBlob."""
        self.scheduler.enter(tenant)
        try:
            reply = await self._cached(message, tenant)
        finally:
            self.scheduler.leave(tenant)
        if self.metrics is not None:
            self.metrics.count(reply)
        if log.isEnabledFor(logging.INFO):
            self._log(message, reply, tenant)
        return reply

    async def _cached(self, message: pb.RunRequest, tenant: Tenant) -> pb.RunReply:
        self.blobs.resolve(message.program, "program")
        if message.HasField("tests"):
            self.blobs.resolve(message.tests, "tests")
        if message.no_cache or message.num_reruns:
            return await self._execute(message, request.parse(message), tenant)
        request_id, task_id, priority = message.id, message.task_id, message.priority
        for name in ("id", "task_id", "priority"):
            message.ClearField(name)
        key = self.cache.key(message)
        message.id, message.task_id, message.priority = request_id, task_id, priority
        reply = self.cache.get(key)
        if reply is None:
            spec = request.parse(message)
            reply = await self.cache.get_or_run(key, lambda: self._execute(message, spec, tenant))
        reply.id = request_id
        return reply

    async def _execute(
        self, message: pb.RunRequest, spec: runner.RunSpec, tenant: Tenant
    ) -> pb.RunReply:
        start = time.monotonic()
        expected_s = self.costs.expected_s(message)
        grant: Grant = await self.scheduler.acquire(tenant, message.priority, expected_s)
        try:
            done = await runner.run(self.pool, spec)
            reply = request.reply(message.id, done, self.pool.tier, time.monotonic() - start)
            self.costs.note(message, done.wall_s)
        except Exception as error:
            log.exception("a run failed inside the server")
            reply = _internal_reply(message, error, self.pool.tier)
        finally:
            self.scheduler.release(grant)
        reply.host = self._host
        reply.runtime_digest = self.runtime_digest
        return reply

    def _log(self, message: pb.RunRequest, reply: pb.RunReply, tenant: Tenant) -> None:
        fields = {
            "task_id": hashlib.sha256(message.task_id.encode()).hexdigest()[:16],
            "program": hashlib.sha256(message.program.inline).hexdigest()[:16],
            "tenant": tenant.name,
            "verdict": verdict_name(reply),
            "cached": reply.cache_hit,
            "num_calls": len(message.calls),
            "num_passed": reply.num_passed,
            "cpu_ms": reply.cpu_us / 1e3,
            "wall_ms": reply.wall_us / 1e3,
            "queue_ms": reply.queue_us / 1e3,
        }
        log.info("run", extra={"fields": fields})


async def _refuse(context: Any, message: str, retry_s: float) -> None:
    """RESOURCE_EXHAUSTED, saying when to come again."""
    pushback_ms = max(1, int(1e3 * retry_s))
    context.set_trailing_metadata((("grpc-retry-pushback-ms", str(pushback_ms)),))
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message)


async def _run_all(workers: Iterator[Any]) -> None:
    """Runs coroutines at the same time; if one fails or the caller is cancelled, all end."""
    tasks = [asyncio.create_task(worker) for worker in workers]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _runtime_digest(pool: Pool) -> bytes:
    """Of everything beside the request that decides what a program returns."""
    parts = (
        VERSION,
        platform.python_version(),
        platform.machine(),
        codec.VERSION,
        pool.tier,
        packages.find().versions,
    )
    return hashlib.sha256(repr(parts).encode()).digest()


def _cells(message: pb.MatrixRequest) -> Iterator[tuple[int, int]]:
    """(program, suite) pairs; no suites: one, the template's. Raises InvalidRequest."""
    if message.template.HasField("program"):
        raise request.InvalidRequest("template.program is set: programs go into `programs`")
    if message.suites and message.template.calls:
        raise request.InvalidRequest("template.calls and suites are both set: use one of them")
    num_suites = len(message.suites) or 1
    num_cells = len(message.programs) * num_suites
    if max(num_cells, len(message.cells)) > _MAX_CELLS:
        raise request.InvalidRequest(f"{num_cells} cells; at most {_MAX_CELLS} in one request")
    wrong = next((cell for cell in message.cells if cell >= num_cells), None)
    if wrong is not None:
        raise request.InvalidRequest(
            f"cell {wrong} is outside the {num_cells} cells of {len(message.programs)} programs "
            f"and {num_suites} suites"
        )
    return (divmod(cell, num_suites) for cell in message.cells or range(num_cells))


def _cell_request(message: pb.MatrixRequest, program: int, suite: int) -> pb.RunRequest:
    run = pb.RunRequest()
    run.CopyFrom(message.template)
    run.program.CopyFrom(message.programs[program])
    if message.suites:
        run.calls.MergeFrom(message.suites[suite].calls)
        run.entry_point = message.suites[suite].entry_point or run.entry_point
    return run


def _internal_reply(message: pb.RunRequest, error: Exception, tier: str) -> pb.RunReply:
    return pb.RunReply(
        id=message.id,
        status=pb.INTERNAL,
        verdict=pb.VERDICT_INTERNAL,
        message=f"{type(error).__name__}: {error}",
        tier=tier,
        outcomes=[
            pb.Outcome(index=index, status=pb.CALL_UNKNOWN) for index in range(len(message.calls))
        ],
    )
