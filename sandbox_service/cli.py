"""`codea1-sandbox`: serve, judge, bench, info.

    codea1-sandbox serve --address 127.0.0.1:50061 --slots 4
    codea1-sandbox judge --cases attacks.json
    codea1-sandbox bench --runs 5000 --mode stream
    codea1-sandbox info --address 127.0.0.1:50061

gRPC is imported only after the fork servers run: a process that has loaded it should not fork.
"""

import argparse
import asyncio
import ipaddress
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandbox_service import cage
from sandbox_service.pool import Pool, TierUnavailable

if TYPE_CHECKING:
    from sandbox_service.channel import Security

_MIN_TIERS = tuple(dict.fromkeys(tier[0] for tier in cage.TIERS))
_MIB = 1 << 20
_ADDRESS = "127.0.0.1:50061"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s codea1-sandbox %(levelname)s %(message)s"
    )
    return int(arguments.command(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="codea1-sandbox", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="run the service"))
    judge = commands.add_parser("judge", help="judge a file of cases with a service of its own")
    judge.add_argument("--cases", required=True, help="JSON in the format of README.md")
    _add_slots(judge)
    judge.set_defaults(command=_judge)
    _add_bench(commands.add_parser("bench", help="measure runs per second"))
    info = commands.add_parser("info", help="print what a running service says about itself")
    info.add_argument("--address", default=_ADDRESS)
    _add_security(info)
    info.set_defaults(command=_info)
    return parser


def _add_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--address", default=_ADDRESS, help="HOST:PORT or unix:PATH; port 0: a free one"
    )
    serve.add_argument("--port-file", default="", help="write the port here once healthy")
    serve.add_argument("--tls-cert", default="", help="PEM file with the service's certificate")
    serve.add_argument("--tls-key", default="", help="PEM file with the key of --tls-cert")
    serve.add_argument(
        "--tls-client-ca", default="", help="PEM file; clients must show a certificate from it"
    )
    serve.add_argument("--token-file", default="", help="tokens, one a line (README.md)")
    serve.add_argument(
        "--insecure-remote",
        action="store_true",
        help="allow plain text on an address that is not loopback",
    )
    serve.add_argument(
        "--metrics-address", default="", help="HOST:PORT of Prometheus metrics; default: none"
    )
    serve.add_argument("--reflection", action="store_true", help="answer gRPC reflection")
    serve.add_argument(
        "--cache-mib", type=_size, default=256, help="kept replies; 0: none are kept"
    )
    serve.add_argument("--blob-mib", type=_size, default=256, help="sources kept by digest")
    serve.add_argument(
        "--connection-age",
        type=_count,
        default=120,
        help="seconds after which connections are renewed, so that clients look at DNS again",
    )
    serve.add_argument(
        "--log-level", choices=("warning", "info"), default="warning", help="info: a line a run"
    )
    serve.add_argument("--log-format", choices=("text", "json"), default="text")
    serve.add_argument(
        "--exit-with-parent",
        metavar="PID",
        type=int,
        nargs="?",
        const=os.getppid(),
        default=0,
        help="end when the parent process ends",
    )
    _add_slots(serve)
    serve.set_defaults(command=_serve)


def _add_bench(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--runs", type=_count, default=2000)
    bench.add_argument("--mode", choices=("unary", "stream", "batch"), default="stream")
    bench.add_argument("--calls", type=_count, default=3, help="calls in each run")
    bench.add_argument("--address", default="", help="measure this service; default: one's own")
    bench.add_argument(
        "--compare",
        choices=("subprocess",),
        default="",
        help="in the same minutes, the same tests by one `python -I -S` each, without isolation",
    )
    _add_security(bench)
    _add_slots(bench)
    bench.set_defaults(command=_bench)


def _add_slots(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slots",
        type=_slots,
        # More than processors: while the server takes leave of one run, another computes.
        default=(os.cpu_count() or 1) + 2,
        help="runs that compute at the same time (default: processors + 2)",
    )
    parser.add_argument(
        "--min-tier", choices=_MIN_TIERS, default="B", help="refuse weaker isolation (README.md)"
    )
    parser.add_argument(
        "--tier", choices=cage.TIERS, default="", help="take this tier, not the strongest"
    )


def _add_security(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tls-ca", default="", help="PEM file, or `system`: connect with TLS")
    parser.add_argument("--tls-cert", default="", help="PEM file with the client's certificate")
    parser.add_argument("--tls-key", default="", help="PEM file with the key of --tls-cert")
    parser.add_argument("--token-file", default="", help="file with the token to show")


def _slots(text: str) -> int:
    return _between(text, 1, 4096)


def _count(text: str) -> int:
    return _between(text, 1, 10_000_000)


def _size(text: str) -> int:
    return _between(text, 0, 1 << 20)


def _between(text: str, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{value} is outside {least} to {most}")
    return value


def _is_local(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if address.startswith(("unix:", "unix-abstract:")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_serve(arguments: argparse.Namespace) -> str:
    """What is wrong with the arguments; empty: nothing."""
    if bool(arguments.tls_cert) != bool(arguments.tls_key):
        return "--tls-cert and --tls-key go together; give both or neither"
    if arguments.tls_client_ca and not arguments.tls_cert:
        return "--tls-client-ca needs --tls-cert and --tls-key"
    if arguments.metrics_address and not arguments.metrics_address.rpartition(":")[2].isdigit():
        return f"--metrics-address {arguments.metrics_address} is not HOST:PORT"
    if not (_is_local(arguments.address) or arguments.tls_cert or arguments.insecure_remote):
        return (
            f"--address {arguments.address} is not loopback and the connection would be plain "
            f"text; give --tls-cert and --tls-key, listen on 127.0.0.1, or add --insecure-remote"
        )
    return ""


def _serve(arguments: argparse.Namespace) -> int:
    if wrong := _check_serve(arguments):
        return _fail(wrong)
    logging.getLogger("sandbox_service").setLevel(arguments.log_level.upper())
    pool = Pool(arguments.slots, arguments.min_tier, arguments.tier)
    try:
        pool.prestart()
        from sandbox_service import auth, metrics, server

        if arguments.log_format == "json":
            for handler in logging.getLogger().handlers:
                handler.setFormatter(metrics.JsonFormatter())
        settings = server.Settings(
            address=arguments.address,
            port_file=arguments.port_file,
            parent=arguments.exit_with_parent,
            metrics_address=arguments.metrics_address,
            cert_file=arguments.tls_cert,
            key_file=arguments.tls_key,
            client_ca_file=arguments.tls_client_ca,
            token_file=arguments.token_file,
            has_reflection=arguments.reflection,
            cache_bytes=arguments.cache_mib * _MIB,
            blob_bytes=arguments.blob_mib * _MIB,
            connection_age_s=arguments.connection_age,
        )
        try:
            asyncio.run(server.serve(pool, settings))
        except auth.AuthError as error:
            return _fail(str(error))
    except (TierUnavailable, OSError) as error:
        return _fail(str(error))
    finally:
        pool.close()
    return 0


def _judge(arguments: argparse.Namespace) -> int:
    from sandbox_service import judge, launch

    try:
        cases = judge.load_cases(arguments.cases)
        with launch.service_process(
            slots=arguments.slots, min_tier=arguments.min_tier, tier=arguments.tier
        ) as address:
            return judge.judge_all(address, cases, num_parallel=arguments.slots)
    except (judge.CasesError, RuntimeError) as error:
        return _fail(str(error))


def _bench(arguments: argparse.Namespace) -> int:
    import contextlib

    from sandbox_service import auth, bench, launch

    service = (
        contextlib.nullcontext(arguments.address)
        if arguments.address
        else launch.service_process(
            slots=arguments.slots, min_tier=arguments.min_tier, tier=arguments.tier
        )
    )
    try:
        with service as address:
            return bench.main(
                address,
                _security(arguments),
                num_runs=arguments.runs,
                mode=arguments.mode,
                num_calls=arguments.calls,
                compares=bool(arguments.compare),
            )
    except (auth.AuthError, ConnectionError, RuntimeError) as error:
        return _fail(str(error))


def _info(arguments: argparse.Namespace) -> int:
    import grpc

    from sandbox_service import auth, channel
    from sandbox_service.proto import sandbox_pb2, sandbox_pb2_grpc

    security = _security(arguments)
    try:
        with channel.open_channel(arguments.address, security, retries=False) as connection:
            stub = sandbox_pb2_grpc.SandboxStub(connection)
            metadata = security.metadata()
            print(stub.GetInfo(sandbox_pb2.InfoRequest(), timeout=10, metadata=metadata))
    except auth.AuthError as error:
        return _fail(str(error))
    except grpc.RpcError as error:
        return _fail(f"no sandbox service at {arguments.address}: {error.details()}")
    return 0


def _security(arguments: argparse.Namespace) -> "Security":
    from sandbox_service.channel import Security

    return Security(
        ca_file=arguments.tls_ca,
        cert_file=arguments.tls_cert,
        key_file=arguments.tls_key,
        token_file=arguments.token_file,
    )


def _fail(message: str) -> int:
    print(f"codea1-sandbox: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
