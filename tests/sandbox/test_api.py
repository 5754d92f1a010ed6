"""The service's promises to whoever calls it: matrix, deadlines, drain, tokens, TLS, metrics."""

import asyncio
import concurrent.futures
import contextlib
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from codea1_jax.sandbox.client import SandboxClient
from codea1_jax.sandbox.verdict import Call, Run, RunStatus
from sandbox_service import codec, limits
from sandbox_service.channel import Security, open_channel
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc

ADD = "def add(a, b):\n    return a + b\n"
SLEEP = "import time\ndef f(s):\n    time.sleep(s)\n    return s\n"
TOKEN = "0123456789abcdef-trainer"


def _request(program: str, *pairs: tuple[str, object], **fields: object) -> pb.RunRequest:
    request = pb.RunRequest(program=pb.Source(inline=program.encode()), **fields)  # type: ignore[arg-type]
    for text, expected in pairs:
        request.calls.add(text=text.encode(), expected=codec.encode(expected))
    return request


def _sleep(seconds: float, **fields: object) -> pb.RunRequest:
    long = pb.Limits(wall_s=60)
    return _request(SLEEP, (f"f({seconds})", seconds), limits=long, no_cache=True, **fields)


@pytest.fixture(scope="module")
def stub(service: str) -> Iterator[pb_grpc.SandboxStub]:
    with open_channel(service, retries=False) as channel:
        yield pb_grpc.SandboxStub(channel)


@contextlib.contextmanager
def _service(*options: str, slots: int = 1) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A service of its own with its process; yields once it is healthy."""
    command = [sys.executable, "-m", "sandbox_service.cli", "serve", "--slots", str(slots)]
    command += ["--exit-with-parent", *options]
    if "--address" not in options:
        command += ["--address", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "serving on port" in line:
                port = line.split("serving on port ")[1].split(",")[0]
                break
        else:
            pytest.fail("the service did not start")
        yield f"127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def _fails(call: object, code: grpc.StatusCode, word: str) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()  # type: ignore[operator]
    assert caught.value.code() is code, caught.value
    assert word in caught.value.details()
    return caught.value


# RunMatrix.


def _cells(stub: pb_grpc.SandboxStub, message: pb.MatrixRequest) -> list[pb.MatrixCell]:
    return [cell for answer in stub.RunMatrix(message, timeout=60) for cell in answer.cells]


def test_matrix_answers_every_cell(stub: pb_grpc.SandboxStub) -> None:
    """Codes x tests is what the trainer judges; a wrong cell is a wrong reward for two models."""
    programs = [ADD, "def add(a, b):\n    return a - b\n", "def add(:\n"]
    suites = [[("add(1, 2)", 3)], [("add(1, 0)", 1), ("add(0, 0)", 0)]]
    message = pb.MatrixRequest(
        programs=[pb.Source(inline=text.encode()) for text in programs],
        suites=[pb.Suite(calls=_request("", *pairs).calls, entry_point="add") for pairs in suites],
        template=pb.RunRequest(seed=1),
    )
    cells = _cells(stub, message)
    verdicts = {(cell.program, cell.suite): cell.reply.verdict for cell in cells}
    ok, fail, error = pb.VERDICT_PASS, pb.VERDICT_FAIL, pb.VERDICT_ERROR
    assert verdicts == {
        (0, 0): ok,
        (0, 1): ok,
        (1, 0): fail,
        (1, 1): ok,
        (2, 0): error,
        (2, 1): error,
    }
    message.cells.extend([3, 0])
    cells = _cells(stub, message)
    assert {(cell.program, cell.suite) for cell in cells} == {(1, 1), (0, 0)}
    assert all(cell.reply.cache_hit for cell in cells)


def test_matrix_streams_cells_as_they_finish(stub: pb_grpc.SandboxStub) -> None:
    """One slow program must not hold back the others' verdicts."""
    programs = [SLEEP.replace("sleep(s)", f"sleep({s})") for s in (90.0, 0.0, 0.0)]
    template = _sleep(0)
    template.ClearField("program")
    message = pb.MatrixRequest(
        programs=[pb.Source(inline=text.encode()) for text in programs], template=template
    )
    stream = stub.RunMatrix(message, timeout=60)
    cells = (cell.program for answer in stream for cell in answer.cells)
    assert {next(cells), next(cells)} == {1, 2}
    stream.cancel()


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (pb.MatrixRequest(cells=[0]), "cell 0 is outside the 0 cells"),
        (pb.MatrixRequest(template=_request(ADD)), "template.program is set"),
        (
            pb.MatrixRequest(
                suites=[pb.Suite()], template=pb.RunRequest(calls=[pb.Call(text=b"f()")])
            ),
            "both set",
        ),
        (
            pb.MatrixRequest(programs=[pb.Source()] * 2000, suites=[pb.Suite()] * 1000),
            "at most",
        ),
    ],
    ids=["cell", "program", "calls", "many"],
)
def test_bad_matrices_are_refused(
    stub: pb_grpc.SandboxStub, message: pb.MatrixRequest, word: str
) -> None:
    """A matrix that cannot be run must cost one error."""
    _fails(
        lambda: list(stub.RunMatrix(message, timeout=30)), grpc.StatusCode.INVALID_ARGUMENT, word
    )


# Deadlines, cancellation, floods, drain.


def test_a_run_that_expires_in_the_queue_does_not_run(tmp_path: pathlib.Path) -> None:
    """What nobody waits for any more must take no slot."""
    with _service() as (address, _), open_channel(address, retries=False) as channel:
        stub = pb_grpc.SandboxStub(channel)
        busy = stub.Run.future(_sleep(2.0), timeout=30)
        time.sleep(0.3)
        waiting = [stub.Run.future(_sleep(90.0, seed=i), timeout=0.5) for i in range(5)]
        assert {call.exception().code() for call in waiting} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert busy.result().verdict == pb.VERDICT_PASS
        assert stub.Run(_sleep(0.0), timeout=60).verdict == pb.VERDICT_PASS


def test_cancelling_frees_the_slot_at_once() -> None:
    """An aborted step would leave its sleepers in the slots."""
    with _service() as (address, _), open_channel(address, retries=False) as channel:
        stub = pb_grpc.SandboxStub(channel)
        for seed in range(5):
            running = stub.Run.future(_sleep(90.0, seed=seed), timeout=120)
            time.sleep(0.3)
            running.cancel()
            assert stub.Run(_sleep(0.0), timeout=60).verdict == pb.VERDICT_PASS


def test_a_flood_is_refused_and_retried() -> None:
    """Far more callers than the queue holds: refused with a hint, served when they heed it."""
    with _service() as (address, _):
        with open_channel(address, retries=False) as channel:
            stub = pb_grpc.SandboxStub(channel)
            number = limits.QUEUE_PER_SLOT + 40
            calls = [stub.Run.future(_sleep(0.01, seed=i), timeout=60) for i in range(number)]
            codes = [call.code() for call in calls]
            refused = [call for call in calls if call.code() is not grpc.StatusCode.OK]
            assert 0 < len(refused) < number
            assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
            metadata = dict(refused[0].trailing_metadata())
            assert int(metadata["grpc-retry-pushback-ms"]) > 0
        with open_channel(address) as channel:  # the service config's retries
            stub = pb_grpc.SandboxStub(channel)
            calls = [stub.Run.future(_sleep(0.001, seed=i), timeout=60) for i in range(number)]
            assert sum(call.code() is grpc.StatusCode.OK for call in calls) > len(codes) - len(
                refused
            )


def test_a_flood_does_not_grow_the_server() -> None:
    """One caller in a tight loop must not take the host's memory, nor the service with it."""

    async def flood(address: str, number: int) -> set[grpc.StatusCode]:
        async with open_channel(address, retries=False, is_async=True) as channel:
            stub = pb_grpc.SandboxStub(channel)

            async def one(index: int) -> grpc.StatusCode:
                program = f"#{'x' * 100_000}\n{ADD}# {index}\n"
                call = stub.Run(_request(program, ("add(1, 2)", 3)), timeout=120)
                return await call.code()

            return set(await asyncio.gather(*(one(index) for index in range(number))))

    with _service() as (address, process):
        codes = asyncio.run(flood(address, 3000))
        memory = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        peak_kib = int(memory.split("VmHWM:")[1].split()[0])
        with open_channel(address, retries=False) as channel:
            reply = pb_grpc.SandboxStub(channel).Run(_sleep(0.0), timeout=30)
    retried = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
    assert {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED} <= codes
    assert codes <= {grpc.StatusCode.OK, *retried}
    assert peak_kib < 250 * 1024  # the requests are 300 MB
    assert reply.verdict == pb.VERDICT_PASS


def test_renewed_connections_disturb_nobody() -> None:
    """Every two minutes, in real life: a verdict lost each time would be many."""
    with _service("--connection-age", "1") as (address, _):
        with SandboxClient(address, deadline_s=60) as client:
            runs = [Run(SLEEP + f"# {i}\n", (Call("f", (0.1,)),)) for i in range(30)]
            assert {result.status for result in client.run_many(runs)} == {RunStatus.OK}
        with open_channel(address, retries=False) as channel:
            stub = pb_grpc.SandboxStub(channel)
            for _ in range(20):
                assert stub.Run(_sleep(0.1), timeout=30).verdict == pb.VERDICT_PASS


def test_sigterm_drains() -> None:
    """A spot machine is taken: runs in hand end, the others go elsewhere, and it is over soon."""
    with _service(slots=2) as (address, process), open_channel(address, retries=False) as channel:
        stub = pb_grpc.SandboxStub(channel)
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        short, long = (stub.Run.future(_sleep(s), timeout=90) for s in (2.0, 55.0))

        def requests() -> Iterator[pb.RunRequests]:
            yield pb.RunRequests(runs=[_sleep(0.5, id=7)])
            time.sleep(1.5)
            yield pb.RunRequests(runs=[_sleep(0.5, id=8)])  # after the signal: not read any more
            time.sleep(60)

        stream = stub.Execute(requests(), timeout=90)
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        assert short.result().verdict == pb.VERDICT_PASS
        assert [reply.id for message in stream for reply in message.replies] == [7]
        assert long.exception().code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in long.exception().details()
        assert process.wait(60) == 0


# Who may ask.


def test_tokens_and_their_quotas(tmp_path: pathlib.Path) -> None:
    """Open to strangers, the service would run whatever the internet sends."""
    path = tmp_path / "tokens"
    path.write_text(
        f"# the trainer's\n{TOKEN} name=trainer weight=4\n"
        f"fedcba9876543210-tools name=tools max_in_flight=1\n"
    )
    with (
        _service("--token-file", str(path)) as (address, _),
        open_channel(address, retries=False) as channel,
    ):
        stub = pb_grpc.SandboxStub(channel)

        def run(token: str, request: pb.RunRequest | None = None) -> pb.RunReply:
            metadata = (("authorization", token),) if token else ()
            return stub.Run(request or _sleep(0.0), timeout=30, metadata=metadata)

        assert run(f"Bearer {TOKEN}").verdict == pb.VERDICT_PASS
        unauthenticated = grpc.StatusCode.UNAUTHENTICATED
        _fails(lambda: run(""), unauthenticated, "authorization: Bearer TOKEN")
        _fails(lambda: run(f"Basic {TOKEN}"), unauthenticated, "authorization: Bearer")
        _fails(lambda: run(f"Bearer {TOKEN}x"), unauthenticated, "not one of this service's")
        for call in (
            lambda: stub.GetInfo(pb.InfoRequest(), timeout=10),
            lambda: list(stub.Execute(iter([pb.RunRequests()]), timeout=10)),
            lambda: list(stub.RunMatrix(pb.MatrixRequest(), timeout=10)),
            lambda: stub.PutBlobs(iter([pb.Blob(data=b"x")]), timeout=10),
        ):
            _fails(call, unauthenticated, "wants a token")
        checks = health_pb2_grpc.HealthStub(channel)  # probes of the cluster have no token
        assert checks.Check(health_pb2.HealthCheckRequest(), timeout=10).status == 1

        tools = "Bearer fedcba9876543210-tools"
        busy = stub.Run.future(_sleep(1.5), timeout=30, metadata=(("authorization", tools),))
        time.sleep(0.5)
        error = _fails(lambda: run(tools), grpc.StatusCode.RESOURCE_EXHAUSTED, "max_in_flight=1")
        assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "100"
        assert busy.result().verdict == pb.VERDICT_PASS
        # On a stream the quota is back-pressure, not an error.
        runs = pb.RunRequests(runs=[_sleep(0.0, id=i) for i in range(5)])
        stream = stub.Execute(iter([runs]), timeout=30, metadata=(("authorization", tools),))
        ids = [reply.id for message in stream for reply in message.replies]
        assert sorted(ids) == list(range(5))

        token_file = tmp_path / "mine"
        token_file.write_text(TOKEN + "\n")
        with SandboxClient(address, security=Security(token_file=str(token_file))) as client:
            assert client.submit(Run(ADD, (Call("add", (1, 2)),))).result().status is RunStatus.OK
        # Read again when it changes; a broken file changes nothing.
        path.write_text("another-token-of-24-chars\n")
        time.sleep(1.2)
        assert run("Bearer another-token-of-24-chars").verdict == pb.VERDICT_PASS
        _fails(lambda: run(f"Bearer {TOKEN}"), unauthenticated, "not one of")
        path.write_text("short\n")
        time.sleep(1.2)
        assert run("Bearer another-token-of-24-chars").verdict == pb.VERDICT_PASS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return _new_certificates(tmp_path_factory.mktemp("certificates"))


def _new_certificates(folder: pathlib.Path) -> pathlib.Path:
    """ca.pem, and a certificate and key for a service and for a client; of two days' life."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new_key, "-days", "2", "-subj", "/CN=test-ca",
            "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    for name in ("server", "client"):
        openssl("req", *new_key, "-subj", f"/CN={name}", "-keyout", f"{name}.key",
                "-out", f"{name}.csr", "-addext", "subjectAltName=DNS:localhost")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-days", "2", "-copy_extensions", "copy", "-out", f"{name}.pem")  # fmt: skip
    return folder


def test_tls_and_mutual_tls(certificates: pathlib.Path) -> None:
    """On a network, programs and tokens must not be read and hosts not be played."""
    ca, cert, key, client_cert, client_key = (
        str(certificates / name)
        for name in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")
    )
    tls = ("--tls-cert", cert, "--tls-key", key)
    run = Run(ADD, (Call("add", (1, 2)),))
    for options in (tls, (*tls, "--tls-client-ca", ca)):
        with _service("--address", "0.0.0.0:0", *options) as (address, _):
            address = address.replace("127.0.0.1", "localhost")
            security = Security(ca_file=ca, cert_file=client_cert, key_file=client_key)
            with SandboxClient(address, security=security) as client:
                assert client.submit(run).result().status is RunStatus.OK
            strangers = [Security()]
            if "--tls-client-ca" in options:
                strangers.append(Security(ca_file=ca))
            for stranger in strangers:
                with SandboxClient(address, security=stranger, deadline_s=1.0) as client:
                    assert client.submit(run).result().status is RunStatus.INTERNAL


def test_certificates_are_read_again(tmp_path: pathlib.Path) -> None:
    """A certificate that is renewed every few weeks must not need a restart in a long training."""
    generations = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        generations.append(_new_certificates(tmp_path / name))
    current = tmp_path / "current"
    shutil.copytree(generations[0], current)
    files = [str(current / name) for name in ("server.pem", "server.key", "ca.pem")]
    options = [
        x for pair in zip(("--tls-cert", "--tls-key", "--tls-client-ca"), files) for x in pair
    ]
    with _service("--address", "0.0.0.0:0", *options) as (address, _):
        address = address.replace("127.0.0.1", "localhost")

        def is_trusted(folder: pathlib.Path) -> bool:
            security = Security(*(str(folder / n) for n in ("ca.pem", "client.pem", "client.key")))
            with open_channel(address, security, retries=False) as channel:
                stub = pb_grpc.SandboxStub(channel)
                try:
                    return bool(stub.GetInfo(pb.InfoRequest(), timeout=10).tier)
                except grpc.RpcError as error:
                    return error.code() is not grpc.StatusCode.UNAVAILABLE

        assert [is_trusted(folder) for folder in generations] == [True, False]
        # Half of a renewal, and then files that are none: the old ones stay in force.
        shutil.copy(generations[1] / "server.pem", current)
        assert [is_trusted(folder) for folder in generations] == [True, False]
        (current / "server.key").write_text("no key")
        assert [is_trusted(folder) for folder in generations] == [True, False]
        for name in ("server.key", "ca.pem"):
            shutil.copy(generations[1] / name, current)
        assert [is_trusted(folder) for folder in generations] == [False, True]
        # A client whose files are renewed while it cannot connect goes on with the new ones.
        own = tmp_path / "own"
        shutil.copytree(generations[0], own)
        security = Security(*(str(own / n) for n in ("ca.pem", "client.pem", "client.key")))
        with SandboxClient(address, security=security) as client:
            future = client.submit(Run(ADD, (Call("add", (1, 2)),)))
            with pytest.raises(concurrent.futures.TimeoutError):
                future.result(1.0)
            shutil.copytree(generations[1], own, dirs_exist_ok=True)
            assert future.result().status is RunStatus.OK


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--address", "0.0.0.0:0"], "--insecure-remote"),
        (["--address", "[::]:0"], "--insecure-remote"),
        (["--tls-cert", "x"], "--tls-key"),
        (["--tls-client-ca", "x"], "--tls-client-ca needs"),
        (["--tls-cert", "/nowhere/cert", "--tls-key", "/nowhere/key"], "/nowhere/key"),
        (["--token-file", "/nowhere/tokens"], "/nowhere/tokens"),
        (["--tls-cert", __file__, "--tls-key", __file__], "must be PEM"),
        (["--metrics-address", "localhost"], "not HOST:PORT"),
        (["--metrics-address", "192.0.2.1:1"], "cannot serve metrics on 192.0.2.1:1"),
        (["--metrics-address", "127.0.0.1:99999"], "cannot serve metrics"),
    ],
)
def test_serve_refuses_what_it_cannot_do(options: list[str], word: str) -> None:
    """A service that starts with less protection than was asked for is the worst of all."""
    command = [sys.executable, "-m", "sandbox_service.cli", "serve", "--slots", "1"]
    if "--address" not in options:
        command += ["--address", "127.0.0.1:0"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("short", "16 or more"),
        ("0123456789abcdef weight=x", "not a number"),
        ("0123456789abcdef weight=0", "above 0"),
        ("0123456789abcdef colour=red", "known: name"),
        ("# nothing", "no token"),
    ],
)
def test_token_files_are_checked(tmp_path: pathlib.Path, line: str, word: str) -> None:
    """A quota with a typing error would be no quota."""
    from sandbox_service import auth

    path = tmp_path / "tokens"
    path.write_text(line + "\n")
    with pytest.raises(auth.AuthError, match=word):
        auth.TokenFile(str(path))


def test_unix_socket(tmp_path: pathlib.Path) -> None:
    """Two processes of one pod need no port."""
    address = f"unix:{tmp_path}/socket"
    with _service("--address", address), SandboxClient(address) as client:
        result = client.submit(Run(ADD, (Call("add", (1, 2)),))).result()
        assert result.outcomes[0].value == 3


# What can be seen of it.


def test_metrics_and_logs_show_everything_but_programs(tmp_path: pathlib.Path) -> None:
    """The log of a service for strangers' code must not become a copy of it."""
    port_file = tmp_path / "port"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        metrics_port = probe.getsockname()[1]  # free in a moment
    options = ("--metrics-address", f"127.0.0.1:{metrics_port}", "--port-file", str(port_file))
    options += ("--log-level", "info", "--log-format", "json")
    with _service(*options) as (address, process):
        with open_channel(address) as channel:
            stub = pb_grpc.SandboxStub(channel)
            secret = _request("SECRET = 1\n" + ADD, ("add(1, 2)", 3), task_id="SECRET")
            for request in (secret, secret, _request(ADD, ("add(1, 2)", 4))):
                reply = stub.Run(request, timeout=30)
            info = stub.GetInfo(pb.InfoRequest(), timeout=10)
            assert (reply.host, reply.runtime_digest) == (info.host, info.runtime_digest)
            assert len(info.runtime_digest) == 32
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as response:
            text = response.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        log = process.stderr.read()
    for line in (
        'codea1_sandbox_runs_total{cached="false",evidence="values",verdict="pass"} 1.0',
        'codea1_sandbox_runs_total{cached="true",evidence="values",verdict="pass"} 1.0',
        'codea1_sandbox_runs_total{cached="false",evidence="values",verdict="fail"} 1.0',
        "codea1_sandbox_run_seconds_count 2.0",
        "codea1_sandbox_queue_seconds_count 2.0",
        "codea1_sandbox_cpu_seconds_count 2.0",
        "codea1_sandbox_slots_busy 0.0",
        "codea1_sandbox_cache_hits_total 1.0",
        "codea1_sandbox_internal_errors_total 0.0",
        "codea1_sandbox_oom_total 0.0",
        f'codea1_sandbox_tier{{tier="{info.tier}"}} 1.0',
    ):
        assert line in text, text
    assert "SECRET" not in text + log
    lines = [json.loads(line) for line in log.splitlines()]
    runs = [line for line in lines if line["message"] == "run"]
    assert [(run["verdict"], run["cached"]) for run in runs] == [
        ("pass", False), ("pass", True), ("fail", False),
    ]  # fmt: skip
    assert len(runs[0]["program"]) == 16


def test_threads_of_callers(stub: pb_grpc.SandboxStub) -> None:
    """Replies must reach the caller that asked."""
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        requests = [_request(ADD, (f"add({i}, 1)", i + 1), id=i) for i in range(100)]
        replies = list(threads.map(lambda request: stub.Run(request, timeout=60), requests))
    assert [reply.id for reply in replies] == list(range(100))
    assert {reply.verdict for reply in replies} == {pb.VERDICT_PASS}
