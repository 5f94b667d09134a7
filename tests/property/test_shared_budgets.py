"""Budgets that shards share: whoever asks when, is killed, comes back or never does, what all spend together never
passes the cap; and what is given back can be spent by others."""

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.soak import campaign

from agac.core.types import Shard
from agac.data.object_store import ObjectStore
from agac.engine.ask.limits import Amount, BudgetBalance, BudgetLimiter, Reservation
from agac.engine.sharding.folder import ShardFolder
from agac.engine.sharding.leases import SharedLimits
from agac.engine.sharding.shard_lease import ShardLease
from agac.engine.stop_rules import RunStopped, StopReason, StopRules, StopSignal
from agac.spec.rules import Budget


class Holder:
    """A shard: what its store knows that it spent outlives its processes, but not its disk."""

    def __init__(self, root: Path, number: int, of: int, budgets: dict[str, Budget]) -> None:
        self.root, self.number, self.of, self.budgets, self.disk = root, number, of, budgets, 0
        self.stored = self.billed = Amount()

    async def begin(self) -> None:
        self.stop_signal, self.calls = StopSignal(), list[Reservation]()
        self.balances = [BudgetBalance(name, budget, spent=self.stored) for name, budget in self.budgets.items()]
        self.limiter = BudgetLimiter(self.stop_signal, self.balances, None)
        folder = ShardFolder(ObjectStore(str(self.root), self.root), "reviews", "key", {"me"})
        lease = ShardLease(folder, Shard(self.number, self.of), "me")
        stops = StopRules(self.stop_signal, {}, stop_loss=True, max_errors=None)
        self.lender = SharedLimits(lease, str(self.disk), self.balances, (), self.stop_signal, stops)
        await self.lender.begin()
        self.limiter.lender = self.lender

    async def call(self, worst: Amount) -> bool:
        """A call is sent, if there is room: from now on it may have been billed."""
        try:
            self.calls.append(await self.limiter.reserve("a", None, worst))
        except RunStopped:
            return False
        return True

    def answer(self, share: float) -> None:
        reservation = self.calls.pop(0)
        real = Amount(reservation.worst.usd * share, int(reservation.worst.tokens * share), 1)
        self.limiter.settle(reservation, real)
        self.stored, self.billed = self.stored.plus(real), self.billed.plus(real)

    def kill(self, *, loses_disk: bool) -> None:
        """What was under way is billed in full; the store counts it as lost."""
        for one in self.calls:
            self.stored, self.billed = self.stored.plus(one.worst), self.billed.plus(one.worst)
        if loses_disk:
            self.stored, self.disk = Amount(), self.disk + 1

    async def end(self) -> None:
        while self.calls:
            self.answer(0.5)
        await self.lender.end()


@campaign(test=12, soak=400)
@given(
    seed=st.integers(0, 2**32),
    of=st.integers(1, 5),
    usd=st.one_of(st.none(), st.floats(0.2, 10)),
    tokens=st.one_of(st.none(), st.integers(100, 5_000)),
    calls=st.one_of(st.none(), st.integers(1, 60)),
)
def test_what_all_shards_spend_never_passes_the_cap_whoever_is_killed(
    seed: int, of: int, usd: float | None, tokens: int | None, calls: int | None
) -> None:
    chance, budgets = random.Random(seed), {"run": Budget(usd, tokens, calls), "project": Budget(calls=50)}

    async def work(holder: Holder) -> None:
        for _ in range(chance.randrange(1, 4)):
            await holder.begin()
            for _ in range(chance.randrange(12)):
                if holder.calls and chance.random() < 0.4:
                    holder.answer(chance.choice([0.0, 0.1, 1.0]))
                elif len(holder.calls) < 3 and holder.stop_signal.stop is None:
                    waits = asyncio.ensure_future(
                        holder.call(Amount(chance.uniform(0.01, 0.4), chance.randrange(200), 1))
                    )
                    while not waits.done():  # what it waits for is an answer to another call
                        await asyncio.wait({waits}, timeout=0.02)
                        if not waits.done() and holder.calls:
                            holder.answer(1.0)
            if chance.random() < 0.5:
                holder.kill(loses_disk=chance.random() < 0.3)
            else:
                await holder.end()

    async def program() -> None:
        with tempfile.TemporaryDirectory() as root:
            holders = [Holder(Path(root), number, of, budgets) for number in range(1, of + 1)]
            await asyncio.gather(*map(work, holders))
            billed = [sum(unit) for unit in zip(*(one.billed for one in holders), strict=True)]
            assert usd is None or billed[0] <= usd + 1e-9
            assert tokens is None or billed[1] <= tokens
            assert billed[2] <= min(50, 50 if calls is None else calls)

    asyncio.run(asyncio.wait_for(program(), 60))


async def spend(holder: Holder, usd: float) -> int:
    """Calls of a dollar's part until there is no room; how many it were."""
    sent = 0
    while await holder.call(Amount(usd, 0, 1)):
        holder.answer(1.0)
        sent += 1
    return sent


async def test_what_a_shard_gives_back_is_spent_by_another_and_what_a_dead_one_held_is_not(tmp_path: Path) -> None:
    first, second, third = (Holder(tmp_path, number, 3, {"budget of the run": Budget(usd=1.0)}) for number in (1, 2, 3))
    for one in (first, second):
        await one.begin()
        assert await one.call(Amount(0.1, 0, 1))  # each has a block of a sixth of what was free
    first.answer(1.0)
    await first.end()
    second.kill(loses_disk=True)
    await third.begin()
    assert await spend(third, 0.05) == 15
    assert third.stop_signal.stop is StopReason.LIMIT
    assert third.stop_signal.reason.startswith("the budget of the run is used up: the next call might exceed it; other")


async def test_a_shard_that_comes_back_goes_on_with_what_it_held(tmp_path: Path) -> None:
    one = Holder(tmp_path, 1, 2, {"run": Budget(calls=10)})
    await one.begin()
    assert await one.call(Amount(0.1, 0, 1))
    one.kill(loses_disk=False)
    await one.begin()
    assert one.balances[0].spent.calls == 1
    assert await spend(one, 0.1) == 9


def log_entries(root: Path) -> list[Any]:
    return sorted(root.glob("v1/shards/reviews/key/budget/*"))


async def test_who_has_a_large_budget_writes_few_entries(tmp_path: Path) -> None:
    one = Holder(tmp_path, 1, 2, {"run": Budget(calls=1000)})
    await one.begin()
    assert await spend(one, 0.1) == 1000
    assert len(log_entries(tmp_path)) < 30
    await one.end()


async def test_what_is_set_aside_for_open_batches_is_not_given_back(tmp_path: Path) -> None:
    one, other = (Holder(tmp_path, number, 2, {"run": Budget(calls=10)}) for number in (1, 2))
    await one.begin()
    assert not one.limiter.has_room("a", Amount(0.1, 0, 4))
    assert await one.limiter.borrow("a", Amount(0.1, 0, 4))
    assert one.limiter.has_room("a", Amount(0.1, 0, 4))
    one.limiter.load(1, "a", Amount(0.1, 0, 4))
    await one.end()
    await other.begin()
    assert await spend(other, 0.1) == 6
    assert not await other.limiter.borrow("a", Amount(0.1, 0, 1))
