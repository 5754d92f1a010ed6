"""Hosts die, hang and fail in the middle of a step: no verdict may be wrong or lost by that."""

import concurrent.futures
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import grpc
import pytest

from codea1_jax.sandbox.client import SandboxClient
from codea1_jax.sandbox.verdict import Call, Run, RunResult, RunStatus
from sandbox_service import codec
from sandbox_service.channel import Security
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc


@contextlib.contextmanager
def _host(tmp_path: pathlib.Path, name: str) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """A service of its own, with its process for a test to mistreat."""
    port_file = tmp_path / name
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "sandbox_service.cli", "serve", "--slots", "2"),
            *("--address", "127.0.0.1:0", "--port-file", str(port_file), "--exit-with-parent"),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not port_file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        yield f"127.0.0.1:{port_file.read_text().strip()}", process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.wait()


def _runs(number: int, sleep_s: float = 0.0) -> list[Run]:
    """Programs that all differ, so that none is answered from a cache."""
    return [
        Run(
            f"import time\ndef f(x):\n    time.sleep({sleep_s})\n    return x + {i}\n",
            (Call("f", (1,)), Call("f", ("a",))),
        )
        for i in range(number)
    ]


def _check(results: list[RunResult]) -> None:
    """All right: none unknown, none mixed up."""
    assert {result.status for result in results} == {RunStatus.OK}
    assert [result.outcomes[0].value for result in results] == list(range(1, len(results) + 1))
    assert {result.outcomes[1].error_type for result in results} == {"TypeError"}


def test_one_host_hangs_and_the_other_dies(tmp_path: pathlib.Path) -> None:
    """A spot machine goes and another stalls within one step: the step ends with every verdict."""
    with (
        _host(tmp_path, "a") as (address_a, process_a),
        _host(tmp_path, "b") as (address_b, process_b),
        SandboxClient(f"{address_a}, {address_b}", deadline_s=120) as client,
    ):
        assert client.info()["num_hosts"] == 2
        futures = [client.submit(run) for run in _runs(500, sleep_s=0.02)]
        concurrent.futures.wait(futures[:40])
        os.kill(process_a.pid, signal.SIGSTOP)
        hung_s = time.monotonic()
        concurrent.futures.wait(futures[:300])
        # Found out by silence, long before the deadline.
        assert time.monotonic() - hung_s < 60
        os.kill(process_a.pid, signal.SIGCONT)
        process_b.kill()
        _check([future.result() for future in futures])
        _check(client.run_many(_runs(20)))


def test_work_goes_to_the_host_that_has_least(tmp_path: pathlib.Path) -> None:
    """A slow host must not get as much as a quick one."""
    counts = [0, 0]
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(_fake(_Fake(counts, i, (0.001, 0.1)[i]))) for i in range(2)]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        client = stack.enter_context(SandboxClient(addresses, deadline_s=60))
        assert client.info()["window"] == 8
        results = client.run_many(_runs(300))
    assert {result.status for result in results} == {RunStatus.OK}
    assert sum(counts) == 300
    assert counts[0] > 3 * counts[1] > 0


def test_a_host_that_fails_is_left_alone() -> None:
    """A host with a broken kernel or a full disk answers INTERNAL, and quickly: it would get
    the most work of all."""
    counts = [0, 0]
    with contextlib.ExitStack() as stack:
        sick = stack.enter_context(_fake(_Fake(counts, 0, 0.0, pb.INTERNAL)))
        good = stack.enter_context(_fake(_Fake(counts, 1, 0.005)))
        addresses = [f"127.0.0.1:{sick}", f"127.0.0.1:{good}"]
        client = stack.enter_context(SandboxClient(addresses, deadline_s=60))
        client.info()
        results = client.run_many(_runs(400))
    assert {result.status for result in results} == {RunStatus.OK}
    assert counts[1] == 400
    assert 0 < counts[0] < 100


def test_a_slow_run_is_tried_on_a_second_host() -> None:
    """A host that lives but never answers one run must not make its verdict unknown."""
    counts = [0, 0]
    with contextlib.ExitStack() as stack:
        stuck = stack.enter_context(_fake(_Fake(counts, 0, 30.0)))
        good = stack.enter_context(_fake(_Fake(counts, 1, 0.005)))
        addresses = [f"127.0.0.1:{stuck}", f"127.0.0.1:{good}"]
        client = stack.enter_context(SandboxClient(addresses, deadline_s=6))
        client.info()
        results = client.run_many(_runs(20))
    assert {result.status for result in results} == {RunStatus.OK}


def test_unknown_says_why(tmp_path: pathlib.Path) -> None:
    """Whoever reads the log must see which host did what."""
    with _fake(_Fake([0], 0, 0.0, refuses=True)) as port:
        client = SandboxClient([f"127.0.0.1:{port}"], deadline_s=1.0)
        with client, pytest.raises(ConnectionError, match="UNAUTHENTICATED: no token"):
            client.info()
        with SandboxClient(f"127.0.0.1:{port}", deadline_s=1.0) as client:
            (result,) = client.run_many(_runs(1))
    assert result.status is RunStatus.INTERNAL
    assert "UNAUTHENTICATED: no token" in result.message


@pytest.mark.parametrize(
    ("security", "word"),
    [
        (Security(ca_file="/nowhere/ca.pem"), "/nowhere/ca.pem"),
        (Security(ca_file="system", cert_file="x"), "key_file"),
        (Security(token_file="/nowhere/token"), "/nowhere/token"),
    ],
)
def test_files_that_cannot_be_used(security: Security, word: str) -> None:
    """A typing error in a path must show before a run starts, with the path."""
    with pytest.raises(ValueError, match=word):
        SandboxClient("127.0.0.1:1", security=security)
    with pytest.raises(ValueError, match="no address"):
        SandboxClient(" , ")


class _Fake(pb_grpc.SandboxServicer):
    """A service that answers every call with `x + i` of the tests' programs, after a while."""

    def __init__(
        self,
        counts: list[int],
        index: int,
        delay_s: float,
        status: pb.Status = pb.OK,
        refuses: bool = False,
    ) -> None:
        self._counts = counts
        self._index = index
        self._delay_s = delay_s
        self._status = status
        self._refuses = refuses

    def GetInfo(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> pb.Info:
        if self._refuses:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        return pb.Info(window=4, slots=2, tier="A-root")

    def Execute(
        self, messages: Iterator[pb.RunRequests], context: grpc.ServicerContext
    ) -> Iterator[pb.RunReplies]:
        for request in (request for message in messages for request in message.runs):
            deadline = time.monotonic() + self._delay_s
            while time.monotonic() < deadline and context.is_active():
                time.sleep(min(0.05, self._delay_s))
            self._counts[self._index] += 1
            reply = pb.RunReply(id=request.id, status=self._status)
            for _ in request.calls:
                reply.outcomes.add(status=pb.CALL_VALUE, value=codec.encode(1))
            yield pb.RunReplies(replies=[reply])


@contextlib.contextmanager
def _fake(servicer: _Fake) -> Iterator[int]:
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
    pb_grpc.add_SandboxServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(0)
