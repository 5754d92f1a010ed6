"""The gRPC server: listening, health, reflection, drain. One event loop, never forks.

Imported only after the fork servers have been started (see cli.py).
"""

import asyncio
import contextlib
import logging
import os
import signal
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sandbox_service import auth, limits
from sandbox_service.pool import Pool
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc
from sandbox_service.servicer import SandboxServicer, Settings

__all__ = ["Settings", "serve"]

log = logging.getLogger(__name__)

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Sandbox"].full_name
# After SIGTERM runs have this long to end; then their callers get UNAVAILABLE. Together with the
# end of the pool this stays below the 25 s that a spot machine leaves.
_DRAIN_S = 18.0
_STOP_GRACE_S = 2.0


def _server(servicer: SandboxServicer, settings: Settings) -> tuple[grpc.aio.Server, Any]:
    """The server with its services, not yet listening, and the health service."""
    max_open = 2 * limits.QUEUE_PER_SLOT * servicer.pool.num_slots + 256
    options = (
        ("grpc.max_receive_message_length", limits.MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", limits.MAX_MESSAGE_BYTES),
        ("grpc.max_concurrent_streams", max_open),
        # Beyond these gRPC itself refuses, some with CANCELLED, which nobody would retry.
        ("grpc.server.max_pending_requests", 20_000),
        ("grpc.server.max_pending_requests_hard_limit", 40_000),
        ("grpc.so_reuseport", 0),  # a second server on the port is a mistake and should fail
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ("grpc.max_connection_age_ms", int(1e3 * settings.connection_age_s)),
        # No run may need longer, or it could never end.
        ("grpc.max_connection_age_grace_ms", int(1e3 * (limits.MAX_LIMITS.wall_s + 60))),
    )
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=4 * max_open)
    pb_grpc.add_SandboxServicer_to_server(servicer, server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    if settings.has_reflection:
        reflection.enable_server_reflection(
            (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
    return server, checks


def _listen(server: grpc.aio.Server, settings: Settings) -> int:
    """Raises OSError and auth.AuthError."""
    try:
        if settings.cert_file:
            credentials = auth.server_credentials(
                settings.cert_file, settings.key_file, settings.client_ca_file
            )
            return server.add_secure_port(settings.address, credentials)
        return server.add_insecure_port(settings.address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {settings.address}: {error}") from None


def _serve_metrics(servicer: SandboxServicer, address: str) -> None:
    """Raises OSError."""
    assert servicer.metrics is not None
    host, _, port = address.rpartition(":")
    try:
        servicer.metrics.listen(host.strip("[]") or "127.0.0.1", int(port))
    except (OSError, OverflowError) as error:
        raise OSError(f"cannot serve metrics on {address}: {error}") from None


async def serve(pool: Pool, settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, or until the parent process is gone if one is named.

    Raises pool.TierUnavailable, auth.AuthError, and OSError if an address cannot be used.
    """
    await pool.start()
    servicer = SandboxServicer(pool, settings)
    server, checks = _server(servicer, settings)
    try:
        port = _listen(server, settings)
        if servicer.metrics is not None:
            _serve_metrics(servicer, settings.metrics_address)
    except BaseException:
        await server.stop(None)  # gRPC's threads would otherwise still use it at the exit
        raise
    await server.start()
    for name in ("", SERVICE_NAME):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    if settings.port_file:
        _write_port(settings.port_file, port)
    log.warning("serving on port %d, %d slots, tier %s", port, pool.num_slots, pool.tier)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 0.5)
        if settings.parent and os.getppid() != settings.parent:
            break
    await checks.enter_graceful_shutdown()
    servicer.drain()
    if not (settings.parent and os.getppid() != settings.parent):
        ending = asyncio.create_task(server.stop(_DRAIN_S + _STOP_GRACE_S))
        await asyncio.wait([ending], timeout=_DRAIN_S)
        servicer.stop()
        await ending
    await server.stop(0)
    pool.close()


def _write_port(path: str, port: int) -> None:
    """Atomically: whoever waits for the file never reads half of it."""
    with open(path + ".new", "w") as file:
        file.write(f"{port}\n")
    os.replace(path + ".new", path)
