"""A wrong answer from the cache is a wrong reward; no cache at all is a slow step."""

import concurrent.futures
import itertools
import time
from collections.abc import Iterator

import grpc
import pytest

from sandbox_service import cache as cache_module
from sandbox_service import codec, limits
from sandbox_service.blobs import BlobStore, MissingBlob
from sandbox_service.cache import Cache
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.proto import sandbox_pb2_grpc as pb_grpc

_numbers = itertools.count()


@pytest.fixture(scope="module")
def stub(service: str) -> Iterator[pb_grpc.SandboxStub]:
    with grpc.insecure_channel(service) as channel:
        yield pb_grpc.SandboxStub(channel)


def _request(body: str = "return a + b", **fields: object) -> pb.RunRequest:
    """A request that no test has sent before."""
    program = f"# {next(_numbers)} of {__name__}\ndef add(a, b):\n    {body}\n"
    request = pb.RunRequest(program=pb.Source(inline=program.encode()), **fields)  # type: ignore[arg-type]
    request.calls.add(text=b"add(1, 2)", expected=codec.encode(3))
    return request


def _copy(request: pb.RunRequest, **fields: object) -> pb.RunRequest:
    copy = pb.RunRequest(**fields)  # type: ignore[arg-type]
    copy.MergeFrom(request)
    return copy


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("return a + b", pb.VERDICT_PASS),
        ("return a - b", pb.VERDICT_FAIL),
        ("raise ValueError", pb.VERDICT_ERROR),
    ],
)
def test_equal_requests_are_answered_alike(
    stub: pb_grpc.SandboxStub, body: str, verdict: pb.Verdict
) -> None:
    """The answer is the same but for the id, and who waited how long."""
    request = _request(body)
    first = stub.Run(_copy(request, id=1, task_id="x"), timeout=30)
    again = stub.Run(_copy(request, id=2, task_id="y", priority=3), timeout=30)
    assert (first.verdict, first.cache_hit, again.cache_hit) == (verdict, False, True)
    assert (first.id, again.id) == (1, 2)
    for reply in (first, again):
        reply.id, reply.cache_hit, reply.queue_us = 0, False, 0
    assert first == again


@pytest.mark.parametrize(
    "change",
    [
        pb.RunRequest(seed=1),
        pb.RunRequest(limits=pb.Limits(cpu_s=2.5)),
        pb.RunRequest(profile="std"),
        pb.RunRequest(entry_point="add"),
        pb.RunRequest(no_restart=True),
        pb.RunRequest(calls=[pb.Call(text=b"add(2, 2)")]),
    ],
    ids=lambda change: str(change).split("\n")[0],
)
def test_whatever_can_change_the_answer_is_in_the_key(
    stub: pb_grpc.SandboxStub, change: pb.RunRequest
) -> None:
    """A run under other limits or another seed is another run."""
    request = _request()
    stub.Run(request, timeout=30)
    changed = _copy(request)
    changed.MergeFrom(change)
    assert not stub.Run(changed, timeout=30).cache_hit
    assert stub.Run(changed, timeout=30).cache_hit


def test_no_cache_is_respected(stub: pb_grpc.SandboxStub) -> None:
    """Whoever looks for flaky programs needs new runs."""
    request = _request("import time; return time.monotonic_ns()")
    values = set()
    for _ in range(2):
        values.add(stub.Run(_copy(request, no_cache=True), timeout=30).outcomes[0].value)
    values.add(stub.Run(request, timeout=30).outcomes[0].value)
    values.add(stub.Run(_copy(request, num_reruns=1), timeout=30).outcomes[0].value)
    assert len(values) == 4


def test_equal_requests_in_flight_run_once(stub: pb_grpc.SandboxStub) -> None:
    """Groups of samples repeat themselves within milliseconds."""
    request = _request("import time; time.sleep(0.5); return time.monotonic_ns()")
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda i: stub.Run(_copy(request, id=i), timeout=30), range(8)))
    assert len({reply.outcomes[0].value for reply in replies}) == 1
    assert [reply.id for reply in replies] == list(range(8))
    assert sum(reply.cache_hit for reply in replies) == 7


def test_who_waits_takes_over_from_a_client_that_leaves(stub: pb_grpc.SandboxStub) -> None:
    """Another's cancelled request must not cost a verdict."""
    request = _request("import time; time.sleep(1.0); return 3")
    first = stub.Run.future(request, timeout=30)
    time.sleep(0.3)
    others = [stub.Run.future(request, timeout=30) for _ in range(3)]
    time.sleep(0.3)
    first.cancel()
    replies = [other.result(timeout=30) for other in others]
    assert {reply.verdict for reply in replies} == {pb.VERDICT_PASS}
    assert sorted(reply.cache_hit for reply in replies) == [False, True, True]


def _reply(status: pb.Status, size: int = 0, **fields: object) -> pb.RunReply:
    return pb.RunReply(status=status, stdout=b"x" * size, **fields)  # type: ignore[arg-type]


def test_what_is_kept_and_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time-out may be the machine's fault; a failure of the sandbox always is."""
    now = 1000.0
    monkeypatch.setattr(cache_module.time, "monotonic", lambda: now)
    cache = Cache(1 << 20, b"runtime")
    for name, status in pb.Status.items():
        cache.put(name.encode(), _reply(status))
    cache.put(b"flaky", _reply(pb.OK, is_flaky=True))
    kept = {name for name, _ in pb.Status.items() if cache.get(name.encode())}
    limited = {"TIMEOUT", "MEMORY", "OUTPUT_LIMIT", "CRASH", "NO_RESULT"}
    assert kept == {"OK", "LOAD_ERROR"} | limited
    assert cache.get(b"flaky") is None
    now += 601
    assert {name for name in kept if cache.get(name.encode())} == {"OK", "LOAD_ERROR"}


def test_the_cache_is_bounded_and_drops_what_was_not_asked_for() -> None:
    """Millions of replies must not become the server's memory."""
    cache = Cache(100_000, b"runtime")
    for number in range(1000):
        cache.put(b"%d" % number, _reply(pb.OK, 1000))
        assert cache.get(b"0") is not None
        assert cache.num_bytes <= 100_000
    assert cache.get(b"1") is None
    assert cache.get(b"999") is not None
    cache.put(b"huge", _reply(pb.OK, 200_000))
    assert cache.get(b"huge") is None
    nothing = Cache(0, b"runtime")
    nothing.put(b"a", _reply(pb.OK))
    assert nothing.get(b"a") is None


def test_the_key_names_the_runtime() -> None:
    """An answer of another interpreter is no answer."""
    request = _request()
    assert Cache(1, b"3.12").key(request) != Cache(1, b"3.13").key(request)


def test_blobs_are_bounded() -> None:
    """Sources by the gigabyte must not become the server's memory."""
    store = BlobStore(10_000)
    first = store.put(b"first")
    for number in range(100):
        store.put(b"%1000d" % number)
        assert store.num_bytes <= 10_000
    with pytest.raises(MissingBlob, match=first.hex()):
        store.resolve(pb.Source(digest=first), "program")
    with pytest.raises(ValueError, match="over the store's"):
        store.put(b"x" * 20_000)


def test_sources_by_digest(stub: pb_grpc.SandboxStub) -> None:
    """A program of a matrix crosses the network once."""
    request = _request()
    (digest,) = stub.PutBlobs(iter([pb.Blob(data=request.program.inline)]), timeout=30).digests
    by_digest = _copy(request)
    by_digest.program.digest = digest
    assert stub.Run(by_digest, timeout=30).verdict == pb.VERDICT_PASS
    assert stub.Run(request, timeout=30).cache_hit  # the same run, however it was sent
    by_digest.program.digest = b"\x17" * 32
    with pytest.raises(grpc.RpcError) as caught:
        stub.Run(by_digest, timeout=30)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "17" * 32 in caught.value.details()
    stream = stub.Execute(iter([pb.RunRequests(runs=[by_digest, request])]), timeout=30)
    statuses = [reply.status for message in stream for reply in message.replies]
    assert sorted(statuses) == [pb.OK, pb.INVALID]
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.RunMatrix(pb.MatrixRequest(programs=[by_digest.program]), timeout=30))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    too_large = [pb.Blob(data=b"x" * (limits.MAX_REQUEST_BYTES + 1))]
    with pytest.raises(grpc.RpcError) as caught:
        stub.PutBlobs(iter(too_large), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
