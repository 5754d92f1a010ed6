"""`codea1-sandbox`: serve, judge, info.

    codea1-sandbox serve --address 127.0.0.1:50061 --slots 4
    codea1-sandbox judge --cases attacks.json
    codea1-sandbox info --address 127.0.0.1:50061

gRPC is imported only after the fork servers run: a process that has loaded it should not fork.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence

from sandbox_service import cage
from sandbox_service.pool import Pool, TierUnavailable

_MIN_TIERS = ("A", "B", "D")


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
    serve = commands.add_parser("serve", help="run the service")
    serve.add_argument("--address", default="127.0.0.1:50061", help="HOST:PORT; port 0: a free one")
    serve.add_argument("--port-file", default="", help="write the port here once healthy")
    serve.add_argument(
        "--insecure-remote",
        action="store_true",
        help="allow an address that is not loopback, without encryption or authentication",
    )
    serve.add_argument(
        "--exit-with-parent", action="store_true", help="end when the parent process ends"
    )
    _add_slots(serve)
    serve.set_defaults(command=_serve)
    judge = commands.add_parser("judge", help="judge a file of cases with a service of its own")
    judge.add_argument("--cases", required=True, help="JSON in the format of README.md")
    _add_slots(judge)
    judge.set_defaults(command=_judge)
    info = commands.add_parser("info", help="print what a running service says about itself")
    info.add_argument("--address", default="127.0.0.1:50061")
    info.set_defaults(command=_info)
    return parser


def _add_slots(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slots", type=_positive, default=os.cpu_count() or 1, help="runs at the same time"
    )
    parser.add_argument(
        "--min-tier", choices=_MIN_TIERS, default="B", help="refuse weaker isolation (README.md)"
    )
    parser.add_argument(
        "--tier", choices=cage.TIERS, default="", help="take this tier, not the strongest"
    )


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 4096:
        raise argparse.ArgumentTypeError(f"{value} is outside 1 to 4096")
    return value


def _serve(arguments: argparse.Namespace) -> int:
    host = arguments.address.rpartition(":")[0]
    is_local = host in ("127.0.0.1", "localhost", "[::1]") or arguments.address.startswith("unix:")
    if not is_local and not arguments.insecure_remote:
        return _fail(
            f"--address {arguments.address} is not loopback and the connection would be plain "
            f"text; listen on 127.0.0.1 or add --insecure-remote"
        )
    pool = Pool(arguments.slots, arguments.min_tier, arguments.tier)
    try:
        pool.prestart()
        from sandbox_service import server

        asyncio.run(
            server.serve(
                pool,
                arguments.address,
                port_file=arguments.port_file,
                is_child=arguments.exit_with_parent,
            )
        )
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


def _info(arguments: argparse.Namespace) -> int:
    import grpc

    from sandbox_service.proto import sandbox_pb2, sandbox_pb2_grpc

    with grpc.insecure_channel(arguments.address) as channel:
        stub = sandbox_pb2_grpc.SandboxStub(channel)
        try:
            print(stub.GetInfo(sandbox_pb2.InfoRequest(), timeout=10))
        except grpc.RpcError as error:
            return _fail(f"no sandbox service at {arguments.address}: {error.details()}")
    return 0


def _fail(message: str) -> int:
    print(f"codea1-sandbox: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
