"""Which run starts next, and where: long ones first, none starved, equal programs together."""

import asyncio
import collections
from typing import Any

import pytest

from codea1_jax.sandbox import client as client_module
from codea1_jax.sandbox.client import SandboxClient
from codea1_jax.sandbox.verdict import Call, Limits, Run
from codea1_jax.sandbox.wire import Job
from sandbox_service import costs
from sandbox_service.proto import sandbox_pb2 as pb
from sandbox_service.scheduler import ANYONE, Scheduler


def _request(text: str, **limits: float) -> pb.RunRequest:
    return pb.RunRequest(calls=[pb.Call(text=text.encode())], limits=pb.Limits(**limits))  # type: ignore[arg-type]


def test_expectation_is_of_the_tests_and_not_of_the_program() -> None:
    """A new program for old tests must be ordered by what others took."""
    table = costs.CostTable()
    assert table.expected_s(_request("f(1)")) == 0
    assert table.expected_s(_request("f(1)", cpu_s=2.5)) == 2.5
    request = _request("f(1)", cpu_s=2.5)
    request.program.inline = b"def f(x): return x"
    table.note(request, 1.0)
    table.note(request, 2.0)
    assert table.expected_s(_request("f(1)", cpu_s=2.5)) == pytest.approx(1.3)
    assert table.expected_s(_request("f(2)")) == 0


def test_the_table_stays_bounded() -> None:
    """Months of new tests must not fill the memory of a service."""
    table = costs.CostTable()
    for number in range(costs._MAX_ENTRIES + 10):
        table.note(_request(f"f({number})"), 1.0)
    assert len(table._seconds) == costs._MAX_ENTRIES
    assert table.expected_s(_request("f(9)")) == 0
    assert table.expected_s(_request("f(10)")) == 1.0


def _service_order(came: list[tuple[float, float, int]], monkeypatch: Any) -> list[int]:
    """In what order a queue lets runs go that came at (seconds, expected seconds, priority)."""
    clock = [0.0]
    monkeypatch.setattr("sandbox_service.scheduler.time.monotonic", lambda: clock[0])

    async def main() -> list[int]:
        scheduler, order = Scheduler(1), []
        grant = await scheduler.acquire(ANYONE)

        async def wait(number: int, expected_s: float, priority: int) -> None:
            held = await scheduler.acquire(ANYONE, priority, expected_s)
            order.append(number)
            scheduler.release(held)

        tasks = []
        for number, (at_s, expected_s, priority) in enumerate(came):
            clock[0] = at_s
            tasks.append(asyncio.create_task(wait(number, expected_s, priority)))
            await asyncio.sleep(0)
        scheduler.release(grant)
        await asyncio.gather(*tasks)
        return order

    return asyncio.run(main())


def test_the_service_starts_long_runs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that hangs must not be the last of a step to start."""
    came = [(0.0, 0.1, 0), (0.1, 3.0, 0), (0.2, 1.0, 0), (0.3, 0.1, 5)]
    assert _service_order(came, monkeypatch) == [3, 1, 2, 0]


def test_nothing_starves_in_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the others, what came `MAX_AHEAD_S` before them goes first."""
    late = [(costs.MAX_AHEAD_S + 0.1 * i, 1000.0, 0) for i in range(1, 20)]
    order = _service_order([(0.0, 0.0, 0), *late], monkeypatch)
    assert order == list(range(20))


class _Host:
    """Takes runs without sending them anywhere."""

    def __init__(self, address: str, *unused: Any) -> None:
        self.address, self.window = address, 0
        self.waiting: list[Job] = []
        self.sent: list[Job] = []
        self.last_sign_s = float("inf")
        self.trouble = ""

    @property
    def has_room(self) -> bool:
        return len(self.sent) < self.window

    @property
    def load(self) -> float:
        return len(self.sent) / self.window

    def send(self, job: Job) -> None:
        self.sent.append(job)

    def start(self) -> None: ...
    def close(self) -> None: ...
    def look_after(self, now_s: float) -> None: ...
    def unanswered(self) -> list[Any]:
        return []


def _client(monkeypatch: pytest.MonkeyPatch, num_hosts: int) -> tuple[SandboxClient, list[_Host]]:
    monkeypatch.setattr(client_module, "Host", _Host)
    client = SandboxClient([f"host-{i}:1" for i in range(num_hosts)])
    return client, client._hosts  # type: ignore[return-value]


def _open(client: SandboxClient, hosts: list[_Host], window: int) -> None:
    with client._lock:
        for host in hosts:
            host.window = window
        client.dispatch()


def _run(number: int, **limits: float) -> Run:
    return Run(f"def f(x): return {number}", (Call("f", (number,)),), limits=Limits(**limits))  # type: ignore[arg-type]


def test_the_client_sends_long_runs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a step waits in the client: its order decides when the step ends."""
    client, hosts = _client(monkeypatch, 1)
    with client:
        for number, cpu_s in enumerate((1.0, 9.0, 2.0, 5.0)):
            client.submit(_run(number, cpu_s=cpu_s))
        _open(client, hosts, 3)
        assert [job.request.limits.cpu_s for job in hosts[0].sent] == [9.0, 5.0, 2.0]


def test_equal_programs_go_to_one_host_and_the_rest_is_even(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four hosts must not each run what one of them knows, and none may idle for it."""
    client, hosts = _client(monkeypatch, 4)
    with client:
        for _ in range(3):
            for number in range(200):
                client.submit(_run(number))
        _open(client, hosts, 150)
        assert [len(host.sent) for host in hosts] == [150] * 4
        places = collections.defaultdict(set)
        for host in hosts:
            for job in host.sent:
                places[bytes(job.request.program.inline)].add(host.address)
        # 200 if all had found home; without homes three runs would have 2.3 places on the average.
        assert sum(len(found) for found in places.values()) < 300


def test_a_host_with_nothing_at_home_takes_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of one program, many times, must use all hosts."""
    client, hosts = _client(monkeypatch, 3)
    with client:
        for _ in range(60):
            client.submit(_run(7))
        _open(client, hosts, 20)
        assert [len(host.sent) for host in hosts] == [20] * 3


def test_homes_of_most_programs_stay_when_a_host_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one lost host would empty the caches of all."""
    client, _ = _client(monkeypatch, 4)
    smaller, _ = _client(monkeypatch, 3)
    with client, smaller:
        programs = [f"def f(x): return {i}" for i in range(300)]
        kept = [p for p in programs if client._home(p).address != "host-3:1"]
        assert 180 < len(kept) < 270
        assert all(client._home(p).address == smaller._home(p).address for p in kept)
