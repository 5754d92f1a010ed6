"""Client of the sandbox service: plain `Run`s in, plain `RunResult`s out, whatever happens.

    with local_service() as address, SandboxClient(address) as client:
        result = client.submit(Run("def f(x): return x + 1", (Call("f", (1,)),))).result()
        assert result.outcomes[0].value == 2

Any number of hosts, one bidirectional stream to each (`host.py`). At most `window` runs are with a
host at a time, the others wait here, so any number may be submitted at once. A run goes to the host
with the least outstanding work; of hosts that are about equal, to the one which gets all equal
programs and so may know the answer. Runs that are expected to take long go first. A host that is
unreachable, silent or failing is left alone for a while, and what it has not answered goes to the
others (runs have no side effects). A run that one host keeps for very long, or for long while
another has nothing to do, is sent to another as well; the first answer counts.

A run gives up as INTERNAL, with UNKNOWN outcomes, `deadline_s` after it was first sent without an
answer, or when no host has shown a sign of life for that long. Trouble with the infrastructure is
never an exception.
"""

import contextlib
import hashlib
import heapq
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

from codea1_jax.sandbox import wire
from codea1_jax.sandbox.host import Host
from codea1_jax.sandbox.verdict import Limits, Run, RunResult
from codea1_jax.sandbox.wire import Job
from sandbox_service.channel import Security
from sandbox_service.costs import MAX_AHEAD_S, CostTable
from sandbox_service.proto import sandbox_pb2 as pb

log = logging.getLogger(__name__)

_TICK_S, _TICK_PER_RUN_S = 0.1, 2e-5
# A run is sent to a second host after this part of the deadline, at most so many seconds; sooner
# when nothing waits, for then a slow host alone decides when a step ends.
_PATIENCE, _MAX_PATIENCE_S, _TAIL_PATIENCE_S = 1 / 3, 60.0, 10.0
# A run leaves its home for a host that has less to do by this share of its window, and is taken by
# any host when it should have been sent so much earlier than the next that is at home there.
_HOME_LOAD, _OVERDUE_S = 0.25, 1.0
_MAX_INTERNAL_RETRIES = 1  # on top of one for every further host


class SandboxClient:
    """A thread-safe connection to the hosts. Close it, or use it as a context manager."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        deadline_s: float = 180.0,
        window: int | None = None,
        default_limits: Limits | None = None,
        security: Security | None = None,
    ) -> None:
        """Connects in the background: an unreachable service shows in the results, not here.

        Args:
          addresses: HOST:PORT of the service; several as a list or separated by commas.
          deadline_s: see the module's text. Should exceed what the longest run may take.
          window: runs with one host at a time; None: what the host announces.
          default_limits: limits for runs that leave a limit at None.
          security: TLS and token, the same for all hosts; None: plain text.

        Raises:
          ValueError: there is no address, or a file that `security` names cannot be used.
        """
        if isinstance(addresses, str):
            addresses = addresses.split(",")
        self._addresses = list(dict.fromkeys(a.strip() for a in addresses if a.strip()))
        if not self._addresses:
            raise ValueError("no address of a sandbox service: give HOST:PORT, or several")
        self._deadline_s = deadline_s
        self._default_limits = default_limits or Limits()
        self._lock = threading.Condition()
        self._costs = CostTable()
        self._jobs: set[Job] = set()  # all that have no answer yet
        self._is_closed = False
        self._hosts = [
            Host(address, self, self._lock, window, security or Security())
            for address in self._addresses
        ]
        self._watcher = threading.Thread(target=self._watch, name="sandbox-watch", daemon=True)
        self._watcher.start()
        for host in self._hosts:
            host.start()

    def submit(self, run: Run) -> "Future[RunResult]":
        """Sends a run; the future resolves to its result and never to an exception."""
        job = wire.job(run, self._default_limits)
        if isinstance(job, RunResult):
            done: Future[RunResult] = Future()
            done.set_result(job)
            return done
        # Running futures cannot be cancelled, so nobody else resolves them.
        job.future.set_running_or_notify_cancel()
        with self._lock:
            if self._is_closed:
                job.future.set_result(wire.unknown(len(run.calls), "the client is closed"))
                return job.future
            if not self._jobs:
                for host in self._hosts:
                    host.last_sign_s = time.monotonic()  # an idle service owes no sign of life
                self._lock.notify_all()
            self._jobs.add(job)
            job.home = self._home(run.program)
            expected_s = min(self._costs.expected_s(job.request), MAX_AHEAD_S)
            job.order_s = job.submitted_s - expected_s
            heapq.heappush(job.home.waiting, job)
            self.dispatch()
        return job.future

    def run_many(self, runs: Sequence[Run]) -> list[RunResult]:
        """Submits all and waits for all; results in the order of the runs."""
        return [future.result() for future in [self.submit(run) for run in runs]]

    def info(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """What the service says about itself: of several hosts the first that answers.

        `slots` and `window` are sums over the hosts that answer. Raises ConnectionError if none
        does.
        """
        deadline = time.monotonic() + timeout_s
        found, reasons = [], []
        calls = [(host, host.ask(timeout_s)) for host in self._hosts]
        for host, call in calls:
            try:
                found.append(call.result(max(0.1, deadline - time.monotonic())))
            except Exception as error:  # gRPC's, and that of its futures
                reasons.append(f"{host.address}: {wire.reason(error)}")
        if not found:
            raise ConnectionError(f"no sandbox service at {'; '.join(reasons)}")
        first = found[0]
        return {
            "tier": max(info.tier for info in found),  # the weakest: tiers sort by letter
            "notes": list(first.notes),
            "python": first.python,
            "slots": sum(info.slots for info in found),
            "window": sum(info.window for info in found),
            "version": first.version,
            "codec_version": first.codec_version,
            "max_program_bytes": first.max_program_bytes,
            "max_calls": first.max_calls,
            "num_hosts": len(found),
        }

    def close(self) -> None:
        """Ends the streams; unanswered runs become INTERNAL."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            jobs = list(self._jobs)
            self._jobs.clear()
            for host in self._hosts:
                host.waiting.clear()
            self._lock.notify_all()
        for host in self._hosts:
            host.close()
        _give_up(jobs, "the client was closed")
        if self._watcher is not threading.current_thread():
            self._watcher.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    # What hosts call. `dispatch`, `has_work` and `take_back` want the lock to be held.

    @property
    def has_work(self) -> bool:
        return bool(self._jobs)

    @property
    def num_hosts(self) -> int:
        return len(self._hosts)

    def dispatch(self) -> None:
        """Gives waiting runs to the hosts with the least outstanding work."""
        while self._has_waiting:
            free = [host for host in self._hosts if host.has_room]
            if not free:
                return
            job = self._next_for(min(free, key=_load))
            if job in self._jobs:
                choice = [host for host in free if host not in job.failed_at] or free
                least = min(host.load for host in choice)
                choice = [host for host in choice if host.load <= least + _HOME_LOAD]
                (job.home if job.home in choice else min(choice, key=_load)).send(job)

    @property
    def _has_waiting(self) -> bool:
        return any(host.waiting for host in self._hosts)

    def _next_for(self, host: Host) -> Job:
        """A run at home with this host; the first of all if it has none or that is long overdue."""
        first = min(other.waiting[0] for other in self._hosts if other.waiting)
        own = host.waiting[0] if host.waiting else None
        if own is None or own.order_s > first.order_s + _OVERDUE_S:
            own = first
        return heapq.heappop(own.home.waiting)

    def _home(self, program: str) -> Host:
        """Where equal programs go, and find the answer (Thaler and Ravishankar 1998)."""
        if len(self._hosts) == 1:
            return self._hosts[0]
        digest = hashlib.sha256(program.encode("utf-8", "surrogatepass")).digest()
        return max(self._hosts, key=lambda host: _mix(digest, host.address))

    def take_back(self, jobs: Sequence[Job]) -> None:
        """What a host will not answer: to the front of the queue; the clocks of the runs go on."""
        lost = [job for job in jobs if job in self._jobs and not job.num_copies]
        for job in lost:
            heapq.heappush(job.home.waiting, job)
        self.dispatch()

    def receive(self, host: Host, job: Job, reply: pb.RunReply) -> None:
        """A reply to a run of ours: resolves the run, or has it tried elsewhere."""
        max_retries = _MAX_INTERNAL_RETRIES + len(self._hosts) - 1
        with self._lock:
            if job not in self._jobs:
                return  # too late, or another host was faster
            if reply.status == pb.INTERNAL and job.num_copies:
                return  # another host is at it
            if reply.status == pb.INTERNAL and job.num_retries < max_retries:
                job.num_retries += 1
                job.failed_at.add(host)
                job.order_s = time.monotonic()
                heapq.heappush(job.home.waiting, job)
                self.dispatch()
                return
            self._jobs.remove(job)
            if reply.status != pb.INTERNAL and not reply.cache_hit:
                self._costs.note(job.request, reply.wall_us / 1e6)
        try:
            result = wire.result(reply, job)
        except wire.MalformedReply as error:
            log.warning("malformed reply from the sandbox at %s: %s", host.address, error)
            result = wire.unknown(job.num_calls, f"malformed reply: {error}")
        job.future.set_result(result)

    def _watch(self) -> None:
        """Gives up on runs whose time is over; looks after silent hosts and slow runs."""
        while True:
            with self._lock:
                if self._is_closed:
                    return
                # Every run is looked at: with very many of them, less often.
                tick_s = max(_TICK_S, _TICK_PER_RUN_S * len(self._jobs))
                self._lock.wait(tick_s if self._jobs else 1.0)
                now = time.monotonic()
                last_sign_s = max(host.last_sign_s for host in self._hosts)
                is_silent = now - last_sign_s > self._deadline_s
                late = [
                    job
                    for job in self._jobs
                    if (job.sent_s and now - job.sent_s > self._deadline_s)
                    or (is_silent and now - job.submitted_s > self._deadline_s)
                ]
                self._jobs.difference_update(late)
                for host in self._hosts:
                    self._tidy(host, now)
                    host.look_after(now)
                self.dispatch()
            names = ", ".join(f"{host.address} ({host.trouble})" for host in self._hosts)
            _give_up(late, f"no answer within {self._deadline_s:g} s from {names}")

    def _tidy(self, host: Host, now_s: float) -> None:
        """Forgets what needs no answer any more; has a second host try what takes very long."""
        limit_s = _MAX_PATIENCE_S if self._has_waiting else _TAIL_PATIENCE_S
        patience_s = min(_PATIENCE * self._deadline_s, limit_s)
        for number, job, sent_s in host.unanswered():
            if job not in self._jobs:
                host.forget(number)
            elif now_s - sent_s > patience_s and job.num_copies == 1:
                others = [other for other in self._hosts if other is not host and other.has_room]
                if others:
                    min(others, key=_load).send(job)


def _load(host: Host) -> float:
    return host.load


def _mix(digest: bytes, address: str) -> bytes:
    return hashlib.sha256(digest + address.encode()).digest()


def _give_up(jobs: Sequence[Job], message: str) -> None:
    for job in jobs:
        with contextlib.suppress(Exception):  # the reader was faster
            job.future.set_result(wire.unknown(job.num_calls, message))
