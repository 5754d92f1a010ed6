"""If the service fails, training waits for ever or learns from verdicts that are not facts."""

import concurrent.futures
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from codea1_jax.sandbox.client import SandboxClient
from codea1_jax.sandbox.local import local_service
from codea1_jax.sandbox.verdict import Call, CallStatus, Limits, Run, RunStatus
from sandbox_service import codec, launch, limits
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc

ADD = "def add(a, b):\n    return a + b\n"
ADD_RUN = Run(ADD, (Call("add", (1, 2)), Call("add", (-1, 1)), Call("add", ("a", "b"))))
SLEEP = "import time\ndef f(s):\n    time.sleep(s)\n    return s\n"


@contextlib.contextmanager
def _stub(address: str) -> Iterator[pb_grpc.SandboxStub]:
    options = (("grpc.max_send_message_length", 64 << 20),)
    with grpc.insecure_channel(address, options=options) as channel:
        yield pb_grpc.SandboxStub(channel)


@pytest.fixture(scope="module")
def stub(service: str) -> Iterator[pb_grpc.SandboxStub]:
    with _stub(service) as value:
        yield value


def _request(program: str, *texts: str, **fields: object) -> pb.RunRequest:
    request = pb.RunRequest(program=pb.Source(inline=program.encode()), **fields)  # type: ignore[arg-type]
    for text in texts:
        request.calls.add(text=text.encode())
    return request


def test_values_come_back_in_order(client: SandboxClient) -> None:
    """Every reward rests on this."""
    result = client.submit(ADD_RUN).result()
    assert result.status is RunStatus.OK
    assert [outcome.value for outcome in result.outcomes] == [3, 0, "ab"]
    assert result.tier == client.info()["tier"]


def test_arguments_are_fresh_and_keywords_pass(client: SandboxClient) -> None:
    """A program that mutates its argument would change the next test's input."""
    program = "def f(x, *, y=()):\n    x.append(len(y))\n    return x\n"
    shared: list[int] = [7]
    calls = tuple(Call("f", (shared,), {"y": (1, 2)}) for _ in range(2))
    result = client.submit(Run(program, calls)).result()
    assert [outcome.value for outcome in result.outcomes] == [[7, 2], [7, 2]]
    assert shared == [7]


def test_stdout_is_kept_apart(client: SandboxClient) -> None:
    """Printed text must neither disturb the values nor be lost."""
    run = Run("print('top \\udc80')\ndef f():\n    print('x' * 10**6)\n", (Call("f"),))
    result = client.submit(run).result()
    assert result.status is RunStatus.OK
    assert result.stdout.startswith("top \\udc80\nxxx")
    assert len(result.stdout) == limits.KEPT_OUTPUT_BYTES


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("def f(:", RunStatus.LOAD_ERROR),
        ("raise SystemExit(0)", RunStatus.LOAD_ERROR),
        ("import os\nos._exit(0)", RunStatus.NO_RESULT),
        ("import os\nos.abort()", RunStatus.CRASH),
        ("while True: pass", RunStatus.TIMEOUT),
        ("while True: print('x' * 9999)", RunStatus.OUTPUT_LIMIT),
    ],
)
def test_a_run_that_ends_before_its_calls(
    client: SandboxClient, program: str, status: RunStatus
) -> None:
    """The status says whose fault it is; the calls were not run."""
    run = Run(program, (Call("f"),) * 2, Limits(cpu_s=0.5))
    result = client.submit(run).result()
    assert result.status is status
    assert [outcome.status for outcome in result.outcomes] == [CallStatus.NOT_RUN] * 2


def test_entry_point_must_be_defined(client: SandboxClient) -> None:
    """A solution without the asked function would count as running."""
    for program in ("x = 1", "f = 1"):
        result = client.submit(Run(program, (), entry_point="f")).result()
        assert result.status is RunStatus.LOAD_ERROR
        assert "'f'" in result.message


def test_a_hanging_call_costs_only_itself(client: SandboxClient) -> None:
    """One hang would blind the judge to the rest of the suite."""
    program = (
        "import os, time\n"
        "def f(x):\n"
        "    if x == 1:\n        while True: pass\n"
        "    if x == 3: os._exit(0)\n"
        "    if x == 5: os.abort()\n"
        "    return x\n"
    )
    calls = tuple(Call("f", (i,)) for i in range(7))
    result = client.submit(Run(program, calls, Limits(cpu_s=2, call_cpu_s=0.2))).result()
    assert result.status is RunStatus.TIMEOUT
    value, timeout, error = CallStatus.VALUE, CallStatus.TIMEOUT, CallStatus.ERROR
    assert [outcome.status for outcome in result.outcomes] == [
        value, timeout, value, error, value, error, value,
    ]  # fmt: skip
    assert [outcome.value for outcome in result.outcomes] == [0, None, 2, None, 4, None, 6]


def test_restarts_are_bounded(client: SandboxClient) -> None:
    """A program that hangs on every call would hold a slot for the whole suite."""
    program = "def f(x):\n    while True: pass\n"
    calls = tuple(Call("f", (i,)) for i in range(9))
    result = client.submit(Run(program, calls, Limits(cpu_s=1, call_cpu_s=0.1))).result()
    statuses = [outcome.status for outcome in result.outcomes]
    assert statuses == [CallStatus.TIMEOUT] * 4 + [CallStatus.NOT_RUN] * 5


def test_cpu_time_is_the_judge_and_wall_time_the_backstop(client: SandboxClient) -> None:
    """A busy host would turn right answers into time-outs, a sleeper would hold its slot."""
    run = Run(SLEEP, (Call("f", (0.4,)), Call("f", (60,))), Limits(cpu_s=0.2, wall_s=1.0))
    result = client.submit(run).result()
    assert [o.status for o in result.outcomes] == [CallStatus.VALUE, CallStatus.TIMEOUT]


def test_memory_limit(client: SandboxClient) -> None:
    """Without it one program takes the host's memory."""
    program = "def f(n):\n    return len(bytearray(n))\n"
    run = Run(
        program, (Call("f", (1 << 20,)), Call("f", (300 << 20,))), Limits(memory_bytes=200 << 20)
    )
    small, large = client.submit(run).result().outcomes
    assert small.value == 1 << 20
    assert (large.status, large.error_type) == (CallStatus.ERROR, "MemoryError")


def test_seed_decides_random_and_hash(client: SandboxClient) -> None:
    """The oracle looks for unstable references under two seeds; equal seeds must repeat."""
    program = (
        "import random\ndef f():\n    return random.random(), list({'a', 'b', 'c', 'd', 'e'})\n"
    )
    results = [
        client.submit(Run(program, (Call("f"),), seed=seed)).result().outcomes[0].value
        for seed in (0, 1, 0, 1, 2)
    ]
    assert results[0] == results[2]
    assert results[1] == results[3]
    assert len({value[0] for value in results}) == 3
    assert results[0][1] == results[4][1]  # the hash seed is the parity of the seed
    assert results[0][1] != results[1][1]


def test_environment_and_working_folder_are_clean(client: SandboxClient) -> None:
    """Secrets of the host or files of an earlier run would be within reach."""
    program = (
        "import os\n"
        "def f():\n"
        "    here = sorted(os.listdir('.')), sorted(os.environ)\n"
        "    open('left-behind', 'w').close()\n"
        "    return here\n"
    )
    for _ in range(6):
        files, names = client.submit(Run(program, (Call("f"),))).result().outcomes[0].value
        assert files == []
        assert set(names) <= {"HOME", "LANG", "OPENBLAS_NUM_THREADS", "PATH"}


def test_earlier_programs_leave_no_trace_in_memory(client: SandboxClient) -> None:
    """A later program could read the reference solution that ran in the same slot before."""
    secret = "SECRET" + "-OF-THE-REFERENCE"
    for _ in range(4):
        client.submit(Run(f"x = {secret!r}\nprint(x)\ndef f(): return x", (Call("f"),))).result()
    program = (
        "import ctypes, gc\n"
        "def f(a, b):\n"
        "    word, hits = a + b, 0\n"
        "    for line in open('/proc/self/maps'):\n"
        "        span, mode = line.split()[:2]\n"
        "        low, high = (int(x, 16) for x in span.split('-'))\n"
        "        if mode[0] == 'r' and '[v' not in line and high - low < 64 << 20:\n"
        "            hits += ctypes.string_at(low, high - low).count(word.encode())\n"
        "    return hits\n"
    )
    run = Run(
        program, (Call("f", ("SECRET-OF-THE-RE", "FERENCE")),), Limits(cpu_s=20, call_cpu_s=20)
    )
    outcome = client.submit(run).result().outcomes[0]
    # The scan finds its own joined word, in one or two copies; or /proc is closed to it.
    assert outcome.status is CallStatus.ERROR or outcome.value <= 4


def test_thousands_of_calls(client: SandboxClient) -> None:
    """EvalPlus inputs come by the thousand."""
    calls = tuple(Call("add", (i, i)) for i in range(3000))
    result = client.submit(Run(ADD, calls)).result()
    assert [outcome.value for outcome in result.outcomes] == [2 * i for i in range(3000)]


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (pb.RunRequest(), "program.inline"),
        (_request("x" * (limits.MAX_PROGRAM_BYTES + 1)), "1048576 are run"),
        (_request("x", *["f()"] * (limits.MAX_CALLS + 1)), "split them"),
        (_request("x", "f" * (1 << 20)), "call 0"),
        (_request("x", entry_point="a b"), "not a Python name"),
        (_request("x", profile="none"), "core"),
        (_request("x", limits=pb.Limits(cpu_s=-1)), "cpu_s"),
        (_request("x", limits=pb.Limits(cpu_s=float("nan"))), "cpu_s"),
        (_request("x", limits=pb.Limits(memory_bytes=1 << 60)), "memory_bytes"),
        (pb.RunRequest(program=pb.Source(inline=b"x"), calls=[pb.Call()]), "empty"),
        (
            pb.RunRequest(
                program=pb.Source(inline=b"x"),
                calls=[pb.Call(invocation=pb.Invocation(entry_point="f", args=b"\xff"))],
            ),
            "args",
        ),
        (
            pb.RunRequest(
                program=pb.Source(inline=b"x"),
                calls=[pb.Call(invocation=pb.Invocation(entry_point="f", args=codec.encode([])))],
            ),
            "not a tuple",
        ),
        (
            pb.RunRequest(
                program=pb.Source(inline=b"x"), calls=[pb.Call(text=b"f()", expected=b"\x00")]
            ),
            "expected",
        ),
    ],
)
def test_bad_requests_are_refused_with_a_reason(
    stub: pb_grpc.SandboxStub, request_: pb.RunRequest, word: str
) -> None:
    """One bad request must cost one error, never the service."""
    with pytest.raises(grpc.RpcError) as caught:
        stub.Run(request_, timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert word in caught.value.details()
    runs = pb.RunRequests(runs=[request_, _request(ADD, "add(1, 1)", id=7)])
    messages = stub.Execute(iter([runs]), timeout=30)
    statuses = {reply.id: reply.status for message in messages for reply in message.replies}
    assert statuses == {0: pb.INVALID, 7: pb.OK}


def test_message_over_the_limit_leaves_the_service_alive(stub: pb_grpc.SandboxStub) -> None:
    """The largest messages are refused by gRPC itself."""
    with pytest.raises(grpc.RpcError) as caught:
        stub.Run(_request("x" * (33 << 20)), timeout=30)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stub.GetInfo(pb.InfoRequest(), timeout=10).slots == 2


def test_nested_parentheses_are_the_programs_problem(stub: pb_grpc.SandboxStub) -> None:
    """Untrusted text must not be parsed in the server."""
    bomb = "(" * 10_000 + "1" + ")" * 10_000
    reply = stub.Run(_request(ADD, bomb, "add(1, 1)"), timeout=30)
    assert reply.outcomes[0].status in (pb.CALL_ERROR, pb.CALL_CRASH)
    assert reply.outcomes[1].status == pb.CALL_VALUE


def test_expected_values_are_compared_outside(stub: pb_grpc.SandboxStub) -> None:
    """The verdict of tools that let the service compare."""
    request = _request(ADD)
    request.calls.add(text=b"add(1, 2)", expected=codec.encode(3.0))
    request.calls.add(text=b"add(0.1, 0.2)", expected=codec.encode(0.3))
    reply = stub.Run(request, timeout=30)
    assert (reply.verdict, reply.num_passed) == (pb.VERDICT_FAIL, 1)
    request.calls[1].comparator.CopyFrom(pb.Comparator(rel_tol=1e-6))
    reply = stub.Run(request, timeout=30)
    assert (reply.verdict, reply.num_passed) == (pb.VERDICT_PASS, 2)


def test_health_and_reflection(service: str) -> None:
    """Load balancers and tools find the service through these."""
    name = pb.DESCRIPTOR.services_by_name["Sandbox"].full_name
    with grpc.insecure_channel(service) as channel:
        checks = health_pb2_grpc.HealthStub(channel)
        for asked in ("", name):
            reply = checks.Check(health_pb2.HealthCheckRequest(service=asked), timeout=10)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(reflection.ServerReflectionInfo(iter([]), timeout=10))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with (
        launch.service_process(slots=1, options=["--reflection"]) as address,
        grpc.insecure_channel(address) as channel,
    ):
        listing = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=10
        )
        names = {entry.name for entry in next(listing).list_services_response.service}
    assert name in names


def test_cancel_and_deadline_free_the_slot(stub: pb_grpc.SandboxStub) -> None:
    """Abandoned runs would hold their slots until their own limits."""
    running = [
        stub.Run.future(_request(SLEEP, "f(600)", limits=pb.Limits(wall_s=600)), timeout=60)
        for _ in range(2)
    ]
    time.sleep(1.0)
    for call in running:
        call.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        stub.Run(_request(SLEEP, "f(600)", limits=pb.Limits(wall_s=600)), timeout=1.0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    for _ in range(4):
        assert stub.Run(_request(ADD, "add(1, 1)"), timeout=60).status == pb.OK


def test_queue_is_bounded(service: str) -> None:
    """A flood would take the server's memory and everyone's patience."""
    sleeper = _request(SLEEP, "f(20)", limits=pb.Limits(wall_s=60), no_cache=True)
    with _stub(service) as stub:
        calls = [stub.Run.future(sleeper, timeout=60) for _ in range(2 * limits.QUEUE_PER_SLOT + 9)]
        deadline = time.monotonic() + 30
        while not any(call.done() for call in calls) and time.monotonic() < deadline:
            time.sleep(0.05)
        refused = [call for call in calls if call.done()]
        for call in calls:
            call.cancel()
        assert stub.GetInfo(pb.InfoRequest(), timeout=10).slots == 2
    assert refused
    assert refused[0].code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(refused[0].trailing_metadata())["grpc-retry-pushback-ms"]


def _children(pid: int) -> list[int]:
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


def _service_pid(address: str) -> int:
    """The process that listens; every test service is a child of this one."""
    for pid in _children(os.getpid()):
        if address.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return pid
    raise AssertionError(f"no service process for {address}")


def test_killed_zygote_costs_no_run() -> None:
    """A fault of the sandbox must be repaired unseen, or be INTERNAL: never a wrong verdict."""
    with local_service(slots=2) as address, SandboxClient(address) as client:
        assert client.submit(ADD_RUN).result().status is RunStatus.OK
        pid = _service_pid(address)
        sleepers = [
            client.submit(Run(SLEEP, (Call("f", (1.0,)),), Limits(wall_s=30))) for _ in range(2)
        ]
        time.sleep(0.5)
        for zygote in _children(pid):
            os.kill(zygote, signal.SIGKILL)
        for future in sleepers:
            result = future.result(60)
            assert (result.status, result.outcomes[0].value) == (RunStatus.OK, 1.0)
        # Killed again and again while it runs: INTERNAL, and UNKNOWN for its calls.
        future = client.submit(Run(SLEEP, (Call("f", (20.0,)),), Limits(wall_s=60)))
        deadline = time.monotonic() + 60
        while not future.done() and time.monotonic() < deadline:
            for zygote in _children(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(zygote, signal.SIGKILL)
            time.sleep(0.2)
        result = future.result(1)
        assert result.status is RunStatus.INTERNAL
        assert [outcome.status for outcome in result.outcomes] == [CallStatus.UNKNOWN]
        assert client.submit(ADD_RUN).result().status is RunStatus.OK


def test_restarted_server_loses_no_run() -> None:
    """A server that dies and comes back must not cost the step."""
    with contextlib.ExitStack() as stack:
        port = _free_port()
        first = _serve(port)
        stack.callback(first.kill)
        client = stack.enter_context(SandboxClient(f"127.0.0.1:{port}", deadline_s=60))
        assert client.submit(ADD_RUN).result().status is RunStatus.OK
        futures = [client.submit(ADD_RUN) for _ in range(300)]
        first.kill()
        first.wait()
        second = _serve(port)
        stack.callback(second.wait)
        stack.callback(second.terminate)
        assert {future.result(60).status for future in futures} == {RunStatus.OK}
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 0


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(port: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "sandbox_service.cli", "serve"),
            *("--slots", "2", "--address", f"127.0.0.1:{port}"),
        ],
        stderr=subprocess.DEVNULL,
    )


def test_dead_server_is_unknown_within_the_deadline() -> None:
    """A trainer must mask what it cannot judge, and go on."""
    start = time.monotonic()
    with SandboxClient(f"127.0.0.1:{_free_port()}", deadline_s=1.0) as client:
        results = client.run_many([ADD_RUN] * 50)
        with pytest.raises(ConnectionError, match="no sandbox service"):
            client.info(timeout_s=0.2)
    assert time.monotonic() - start < 60
    for result in results:
        assert result.status is RunStatus.INTERNAL
        assert [outcome.status for outcome in result.outcomes] == [CallStatus.UNKNOWN] * 3


class _Liar(pb_grpc.SandboxServicer):
    """A service that answers nonsense, or nothing."""

    def GetInfo(self, request: pb.InfoRequest, context: grpc.ServicerContext) -> pb.Info:
        return pb.Info(window=8)

    def Execute(
        self, messages: Iterator[pb.RunRequests], context: grpc.ServicerContext
    ) -> Iterator[pb.RunReplies]:
        requests = (request for message in messages for request in message.runs)
        for number, request in enumerate(requests):
            yield pb.RunReplies(replies=self._lies(number, request))

    @staticmethod
    def _lies(number: int, request: pb.RunRequest) -> Iterator[pb.RunReply]:
        good = pb.RunReply(id=request.id, status=pb.OK)
        for _ in request.calls:
            good.outcomes.add(status=pb.CALL_VALUE, value=codec.encode(1))
        yield pb.RunReply(id=123456789, status=pb.OK)
        if number == 0:
            yield pb.RunReply(id=request.id, status=pb.OK)
        elif number == 1:
            good.status = 77  # type: ignore[assignment]
            yield good
        elif number == 2:
            good.outcomes[0].status = 99
            yield good
        elif number == 3:
            good.outcomes[0].value = b"\xff\xff"
            yield good
        elif number == 4:
            yield good
            yield good


def test_lying_and_silent_servers_are_unknown() -> None:
    """A broken service must not be able to stop or mislead training."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    pb_grpc.add_SandboxServicer_to_server(_Liar(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with SandboxClient(f"127.0.0.1:{port}", deadline_s=5.0) as client:
            results = client.run_many([ADD_RUN] * 6)
    finally:
        server.stop(0)
    assert [result.status for result in results] == [
        *[RunStatus.INTERNAL] * 3,
        RunStatus.OK,  # what the program wrote, not the service
        RunStatus.OK,
        RunStatus.INTERNAL,
    ]
    assert [outcome.status for outcome in results[3].outcomes] == [
        CallStatus.ERROR,
        CallStatus.VALUE,
        CallStatus.VALUE,
    ]


def test_what_cannot_be_sent_is_answered(client: SandboxClient) -> None:
    """Absurd model text must not raise in the trainer."""
    result = client.submit(Run("#" * (2 << 20), (Call("f"),))).result()
    assert result.status is RunStatus.LOAD_ERROR
    calls = (Call("add", (1, 2)), Call("add", (object(), 2)), Call("add", (2, 2)))
    result = client.submit(Run(ADD, calls)).result()
    assert [outcome.value for outcome in result.outcomes] == [3, None, 4]
    assert result.outcomes[1].error_type == "CodecError"


def test_closed_client_answers_unknown(service: str) -> None:
    """Ending a run with work in flight must not leave futures that never resolve."""
    client = SandboxClient(service)
    future = client.submit(Run(SLEEP, (Call("f", (30,)),), Limits(wall_s=60)))
    client.close()
    assert future.result(5).status is RunStatus.INTERNAL
    assert client.submit(ADD_RUN).result(5).status is RunStatus.INTERNAL


def test_many_threads_share_a_client(client: SandboxClient) -> None:
    """Judging streams from several threads at once."""
    results: list[int] = []

    def work(base: int) -> None:
        for i in range(20):
            run = Run(ADD, (Call("add", (base, i)),))
            results.append(client.submit(run).result().outcomes[0].value - base - i)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [0] * 120


def test_good_runs_behind_fork_bombs_pass(client: SandboxClient) -> None:
    """One hostile sample must not turn its neighbours' rewards."""
    bomb = (
        "import os\ndef f():\n    while True:\n"
        "        try: os.fork()\n        except OSError: pass\n"
    )
    limit = Limits(cpu_s=0.4, call_cpu_s=0.4)
    futures = [client.submit(Run(bomb, (Call("f"),), limit)) for _ in range(4)]
    good = [client.submit(ADD_RUN) for _ in range(40)]
    assert {future.result().status for future in good} == {RunStatus.OK}
    assert {future.result().status for future in futures} <= {
        RunStatus.TIMEOUT,
        RunStatus.CRASH,
        RunStatus.OK,  # where the tier allows no new process at all the bomb only sees errors
    }


def test_nothing_leaks() -> None:
    """A training run makes millions of runs on one service."""
    hang = Run("while True: pass", (), Limits(cpu_s=0.05))
    files = Run(
        "import os\nos.mkdir('d')\nopen('d/f', 'w').write('x' * 9999)\n"
        "if os.fork() == 0:\n    os.setsid()\n    import time\n    time.sleep(99)\n",
        (),
    )
    crash = Run("import os\nos.abort()", ())
    with local_service(slots=2) as address, SandboxClient(address) as client:
        pid = _service_pid(address)
        client.run_many([ADD_RUN] * 30 + [files] * 4 + [hang, crash])
        before = _footprint(pid)
        client.run_many(([ADD_RUN] * 20 + [files, hang, crash]) * 10)
        after = _footprint(pid)
    assert after == before


def _footprint(pid: int) -> dict[str, int]:
    """Descriptors of the server, processes below it, zombies among them, mounts of this machine."""
    family, todo = [], [pid]
    while todo:
        current = todo.pop()
        family.append(current)
        todo += _children(current)
    states = []
    for member in family:
        with contextlib.suppress(OSError):
            text = pathlib.Path(f"/proc/{member}/stat").read_text()
            states.append(text.rpartition(")")[2].split()[0])
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "processes": len(family),
        "zombies": states.count("Z"),
        "mounts": len(pathlib.Path(f"/proc/{pid}/mounts").read_text().splitlines()),
    }


def test_own_service_is_for_its_user(service: str) -> None:
    """Whoever can reach it without a token uses up the trainer's slots."""
    socket = pathlib.Path(service.removeprefix("unix:"))
    assert socket.is_socket()
    assert socket.parent.stat().st_mode & 0o077 == 0


def test_own_service_where_no_socket_can_be(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a socket has at most 107 bytes; folders of jobs on a cluster are often longer."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with local_service(slots=1) as address, SandboxClient(address) as client:
        assert address.startswith("127.0.0.1:")
        assert client.info()["slots"] == 1


def test_service_dies_with_its_parent() -> None:
    """A trainer that is killed would leave services behind on every restart."""
    code = (
        "import os, signal, sys\n"
        "from codea1_jax.sandbox.local import local_service\n"
        "with local_service(slots=1) as address:\n"
        "    print(address, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    address = output.strip()
    deadline = time.monotonic() + 20
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.SandboxStub(channel)
        while time.monotonic() < deadline:
            try:
                stub.GetInfo(pb.InfoRequest(), timeout=1)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    break
            time.sleep(0.1)
        else:
            pytest.fail("the service outlived its parent by 20 s")


def test_base_install_needs_neither_jax_nor_numpy() -> None:
    """`pip install` of the base must be enough to serve and to ask."""
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('jax', 'jaxlib', 'numpy', 'flax', 'optax'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import sandbox_service.cli, sandbox_service.server, sandbox_service.bench\n"
        "import codea1_jax.sandbox.client, codea1_jax.sandbox.local, codea1_jax.sandbox.verdict\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--address", "0.0.0.0:1"], "--insecure-remote"),
        (["--address", "127.0.0.1:1", "--tier", "D", "--min-tier", "A"], "tier"),
    ],
)
def test_serve_refuses_with_a_reason(arguments: list[str], word: str) -> None:
    """An open or weaker service than asked for must not start."""
    command = [sys.executable, "-m", "sandbox_service.cli", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr
