"""Who runs next: a queue that is fair between tenants by weight; within one, by priority, then the
longest first (costs.py).

Fair means equal shares of slot time per weight, not equal numbers of runs: a tenant of hanging
programs must not starve one of quick ones (start-time fair queueing, Goyal et al. 1996; a run is
charged its tenant's mean at its start and the difference at its end).
"""

import asyncio
import heapq
import itertools
import time
from dataclasses import dataclass, field

from sandbox_service import costs

_COMPACT_ABOVE = 64
_IN_FLIGHT_RETRY_S = 0.1
_FIRST_MEAN_S = 0.01


@dataclass(frozen=True)
class Tenant:
    """Whoever a token stands for. A quota of 0 is none.

    Attributes:
      weight: share of the slots' time relative to the others.
      max_in_flight: runs that are unanswered at a time.
      runs_per_s: runs in a second; as many may come at once after a pause.
    """

    name: str
    weight: float = 1.0
    max_in_flight: int = 0
    runs_per_s: float = 0.0


ANYONE = Tenant("anyone")


class QuotaExceeded(Exception):
    """The tenant must wait `retry_s` seconds."""

    def __init__(self, message: str, retry_s: float) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class Grant:
    """A slot in use; given back with `Scheduler.release`."""

    __slots__ = ("charged_s", "share", "start_s")

    def __init__(self, share: "_Share") -> None:
        self.share = share
        self.start_s = time.monotonic()
        self.charged_s = share.mean_s


@dataclass(order=True)
class _Waiter:
    order: tuple[int, float, int]
    granted: "asyncio.Future[Grant]" = field(compare=False)


@dataclass
class _Share:
    """One tenant: what it has had, what waits, what its quota leaves."""

    weight: float
    credit: float
    credited_s: float
    virtual_s: float = 0.0
    mean_s: float = _FIRST_MEAN_S
    waiters: list[_Waiter] = field(default_factory=list)
    num_waiting: int = 0  # of `waiters`; the others were cancelled
    num_in_flight: int = 0


class Scheduler:
    """Hands out the pool's slots. For one event loop."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_waiting = 0
        self._num_free = num_slots
        self._virtual_s = 0.0
        self._shares: dict[str, _Share] = {}
        self._sequence = itertools.count()

    @property
    def num_running(self) -> int:
        return self.num_slots - self._num_free

    def enter(self, tenant: Tenant) -> None:
        """Counts a run against the tenant's quota until `leave`. Raises QuotaExceeded."""
        share = self._share(tenant)
        if tenant.max_in_flight and share.num_in_flight >= tenant.max_in_flight:
            raise QuotaExceeded(
                f"the token {tenant.name!r} has max_in_flight={tenant.max_in_flight} unanswered "
                f"runs; wait for some of them",
                _IN_FLIGHT_RETRY_S,
            )
        if tenant.runs_per_s:
            now = time.monotonic()
            earned = (now - share.credited_s) * tenant.runs_per_s
            share.credit = min(max(1.0, tenant.runs_per_s), share.credit + earned)
            share.credited_s = now
            if share.credit < 1.0:
                raise QuotaExceeded(
                    f"the token {tenant.name!r} is over its runs_per_s={tenant.runs_per_s:g}",
                    (1.0 - share.credit) / tenant.runs_per_s,
                )
            share.credit -= 1.0
        share.num_in_flight += 1

    def leave(self, tenant: Tenant) -> None:
        """The run that entered has been answered."""
        self._shares[tenant.name].num_in_flight -= 1

    async def acquire(self, tenant: Tenant, priority: int = 0, expected_s: float = 0.0) -> Grant:
        """Waits for a slot. Cancelling leaves the queue."""
        share = self._share(tenant)
        if self._num_free and not self.num_waiting:
            return self._grant(share)
        future: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        came_s = time.monotonic() - min(expected_s, costs.MAX_AHEAD_S)
        waiter = _Waiter((-priority, came_s, next(self._sequence)), future)
        heapq.heappush(share.waiters, waiter)
        share.num_waiting += 1
        self.num_waiting += 1
        self._dispatch()  # a slot may be free: those before in the queue may all be cancelled
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._forget(share)
            else:  # granted and cancelled in the same turn of the loop
                self.release(future.result())
            raise

    def release(self, grant: Grant) -> None:
        """Passes the slot on to whoever is next."""
        held_s = time.monotonic() - grant.start_s
        share = grant.share
        share.virtual_s += (held_s - grant.charged_s) / share.weight
        share.mean_s += 0.1 * (held_s - share.mean_s)
        self._num_free += 1
        self._dispatch()

    def _dispatch(self) -> None:
        while self._num_free:
            waiting = [share for share in self._shares.values() if share.waiters]
            if not waiting:
                return
            share = min(waiting, key=lambda share: max(share.virtual_s, self._virtual_s))
            waiter = heapq.heappop(share.waiters)
            if waiter.granted.cancelled():
                continue
            share.num_waiting -= 1
            self.num_waiting -= 1
            waiter.granted.set_result(self._grant(share))

    def _share(self, tenant: Tenant) -> _Share:
        share = self._shares.get(tenant.name)
        if share is None:
            share = _Share(tenant.weight, max(1.0, tenant.runs_per_s), time.monotonic())
            self._shares[tenant.name] = share
        share.weight = tenant.weight  # the file of tokens may have changed
        return share

    def _grant(self, share: _Share) -> Grant:
        self._num_free -= 1
        grant = Grant(share)
        # Nobody saves up time by being idle.
        self._virtual_s = max(self._virtual_s, share.virtual_s)
        share.virtual_s = self._virtual_s + grant.charged_s / share.weight
        return grant

    def _forget(self, share: _Share) -> None:
        """One waiter was cancelled; its entry goes when popped, or when there are too many."""
        share.num_waiting -= 1
        self.num_waiting -= 1
        if len(share.waiters) > max(_COMPACT_ABOVE, 2 * share.num_waiting):
            share.waiters = [w for w in share.waiters if not w.granted.cancelled()]
            heapq.heapify(share.waiters)
