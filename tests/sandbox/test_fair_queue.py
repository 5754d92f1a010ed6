"""If the queue is unfair, one user's hanging programs stop everybody else's training."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sandbox_service.scheduler import Grant, QuotaExceeded, Scheduler, Tenant

A, B = Tenant("a"), Tenant("b")


def _run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def _queue(scheduler: Scheduler, names: list[str], tenant: Tenant, name: str, **kw: int):
    """Waits for a slot, notes who got it and gives it back."""
    grant = await scheduler.acquire(tenant, **kw)
    names.append(name)
    scheduler.release(grant)


def _holding(grant: Grant, seconds: float) -> Grant:
    """As if the slot had been held for so long already."""
    grant.start_s -= seconds
    return grant


def test_higher_priority_goes_first_and_equals_in_order() -> None:
    """Validation runs must not wait behind a whole step's rollouts."""

    async def main() -> None:
        scheduler, order = Scheduler(1), []
        grant = await scheduler.acquire(A)
        tasks = [
            asyncio.create_task(_queue(scheduler, order, A, name, priority=priority))
            for name, priority in (("low", -1), ("first", 0), ("second", 0), ("high", 5))
        ]
        await asyncio.sleep(0)
        assert (scheduler.num_waiting, scheduler.num_running) == (4, 1)
        scheduler.release(grant)
        await asyncio.gather(*tasks)
        assert order == ["high", "first", "second", "low"]
        assert (scheduler.num_waiting, scheduler.num_running) == (0, 0)

    _run(main())


def test_a_tenant_of_long_runs_does_not_starve_the_other() -> None:
    """Shares are of time: after ten seconds of a's, many quick runs of b's come first."""

    async def main() -> None:
        scheduler, order = Scheduler(1), []
        grant = _holding(await scheduler.acquire(A), 10.0)
        tasks = [
            asyncio.create_task(_queue(scheduler, order, tenant, tenant.name))
            for tenant in [A] * 5 + [B] * 20
        ]
        await asyncio.sleep(0)
        scheduler.release(grant)
        await asyncio.gather(*tasks)
        assert order[:20] == ["b"] * 20

    _run(main())


def test_weights_share_the_time() -> None:
    """A token of weight 3 gets three quarters of the slots' time."""

    async def main() -> None:
        scheduler, order = Scheduler(1), []

        async def hold(tenant: Tenant) -> None:
            grant = _holding(await scheduler.acquire(tenant), 0.5)
            order.append(tenant.name)
            scheduler.release(grant)

        first = await scheduler.acquire(Tenant("first"))
        tenants = [Tenant("heavy", weight=3.0), Tenant("light")]
        tasks = [asyncio.create_task(hold(tenant)) for tenant in tenants for _ in range(40)]
        await asyncio.sleep(0)
        scheduler.release(first)
        await asyncio.gather(*tasks)
        assert 27 <= order[:40].count("heavy") <= 33

    _run(main())


def test_cancelled_waiters_lose_no_slot() -> None:
    """Every slot that leaks here is gone until the service is started again."""

    async def main() -> None:
        scheduler, order = Scheduler(1), []
        grant = await scheduler.acquire(A)
        tasks = [
            asyncio.create_task(_queue(scheduler, order, A, str(number))) for number in range(300)
        ]
        await asyncio.sleep(0)
        for task in tasks[:299]:
            task.cancel()
        # The first of them is cancelled and granted in the same turn of the loop.
        scheduler.release(grant)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == ["299"]
        assert (scheduler.num_waiting, scheduler.num_running) == (0, 0)
        granted = asyncio.create_task(scheduler.acquire(A))
        late = asyncio.create_task(_queue(scheduler, order, A, "late"))
        await asyncio.sleep(0)
        scheduler.release(granted.result())
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        assert (scheduler.num_waiting, scheduler.num_running) == (0, 0)

    _run(main())


def test_quotas() -> None:
    """One tool in a loop must not take the service from the trainer."""
    scheduler = Scheduler(4)
    few = Tenant("few", max_in_flight=2)
    scheduler.enter(few)
    scheduler.enter(few)
    with pytest.raises(QuotaExceeded, match="max_in_flight=2"):
        scheduler.enter(few)
    scheduler.leave(few)
    scheduler.enter(few)
    slow = Tenant("slow", runs_per_s=5.0)
    for _ in range(5):
        scheduler.enter(slow)
    with pytest.raises(QuotaExceeded, match="runs_per_s=5") as caught:
        scheduler.enter(slow)
    assert 0 < caught.value.retry_s <= 0.2
