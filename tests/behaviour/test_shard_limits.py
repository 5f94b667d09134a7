"""What shards hear from each other at their signs of life: how many share an account, failures that count for all."""

import time
from pathlib import Path
from typing import Any

import pytest

from agac.core.errors import AgacError, ErrorType, RowError
from agac.core.types import Shard
from agac.data.object_store import ObjectStore
from agac.engine.ask.limits import Amount, BudgetBalance
from agac.engine.ask.rate_limiter import Lane
from agac.engine.sharding.folder import ShardFolder, ShardStatus
from agac.engine.sharding.leases import SETTLED, SharedLimits
from agac.engine.sharding.shard_lease import ShardLease
from agac.engine.stop_rules import RunStopped, StopReason, StopRules, StopSignal
from agac.spec.rules import Budget

REFUSED = RowError(ErrorType.REFUSED, "no")


class One:
    """A shard of four as it is at work, with a clock of its own."""

    def __init__(self, root: Path, number: int, max_errors: int | None = None, trust: str = "me") -> None:
        self.folder = ShardFolder(ObjectStore(str(root), root), "reviews", "key", {trust})
        self.later = 0.0
        self.lease = ShardLease(self.folder, Shard(number, 4), "me", lambda: time.time() + self.later)
        self.stop_signal = StopSignal()
        self.stops = StopRules(self.stop_signal, {}, stop_loss=True, max_errors=max_errors)
        self.lane = Lane(8, rpm=600, tpm=None, clock=time.monotonic, stop_signal=self.stop_signal)
        self.balances = [BudgetBalance("budget of the run", Budget(usd=1.0))]
        self.limits = SharedLimits(self.lease, "s", self.balances, [self.lane], self.stop_signal, self.stops)

    async def beat(self, **more: Any) -> None:
        await self.folder.beat(ShardStatus(**self.lease.about(), **self.lease.shard._asdict(), **more), 1)

    async def hear(self) -> None:
        await self.limits.heard(await self.folder.alive())

    def fail(self, rows: int) -> None:
        for number in range(rows):
            self.stops.failed("judge", REFUSED, number, bytes([number]))


async def test_lanes_are_shared_with_all_at_first_and_then_with_those_who_live(tmp_path: Path) -> None:
    first, second, third = (One(tmp_path, number) for number in (1, 2, 3))
    await first.limits.begin()
    assert (first.lane.most, first.limits.processes) == (2, 4)
    await second.beat()
    await third.beat(state="ended")
    await first.hear()
    assert first.limits.processes == 4, "not all may have begun yet"
    first.later = SETTLED
    await first.hear()
    assert (first.lane.most, first.limits.processes) == (4, 2)


async def test_max_errors_counts_the_rows_of_all_shards_that_failed_since(tmp_path: Path) -> None:
    before, first, second = One(tmp_path, 4), One(tmp_path, 1, max_errors=6), One(tmp_path, 2)
    before.later = -60
    await before.beat(errors=100)
    await first.limits.begin()
    first.fail(3)
    await second.beat(errors=2)
    await first.hear()
    assert first.stop_signal.stop is None
    second.later = 1
    await second.folder.beat(
        ShardStatus(**second.lease.about(), **second.lease.shard._asdict(), errors=3), 2
    )  # fmt: skip
    await first.hear()
    assert first.stop_signal.stop is StopReason.LIMIT
    assert first.stop_signal.reason == "6 rows of all shards failed, and max_errors is 6"


async def test_a_shard_that_fails_alike_from_the_start_stops_the_others_once(tmp_path: Path) -> None:
    first, second, third = (One(tmp_path, number) for number in (1, 2, 3))
    for one in (first, second):
        await one.limits.begin()
    first.fail(17)
    await first.hear()
    await second.hear()
    assert second.stop_signal.stop is StopReason.LOSS
    assert second.stop_signal.reason.startswith("shard 1/4 stopped: 17 of the first 17 outcomes of stage 'judge'")
    await second.hear()
    await second.limits.end()
    assert len(await first.folder.names("stopped")) == 1, "what is heard is not told again"
    await third.limits.begin()  # it begins after that, and finds out by itself
    await third.hear()
    assert third.stop_signal.stop is None


async def test_what_a_stranger_grants_is_refused_and_what_cannot_be_read_stops_the_run(tmp_path: Path) -> None:
    one, stranger, third = One(tmp_path, 1), One(tmp_path, 2, trust="other"), One(tmp_path, 3)
    await one.limits.begin()
    assert await one.limits.lend(one.balances, Amount(0.1, 0, 1), urgent=True)
    with pytest.raises(AgacError, match="ends with what cannot be believed"):
        await stranger.limits.begin()
    (entry,) = tmp_path.glob("v1/shards/reviews/key/budget/*")
    entry.write_text("")  # nothing that can be read is not the same as nothing granted
    with pytest.raises(RunStopped):
        await third.limits.lend(third.balances, Amount(1, 0, 1), urgent=True)
    assert third.stop_signal.stop is StopReason.INPUT
    assert "ends with what cannot be believed" in str(third.stop_signal.error)


async def test_what_the_remote_refuses_once_is_told_and_heard_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (One(tmp_path, number) for number in (1, 2))
    for one in (first, second):
        await one.limits.begin()
    first.fail(17)
    with monkeypatch.context() as patched:
        patched.setattr(first.folder, "create", refused)
        with pytest.raises(AgacError):
            await first.hear()
    await first.limits.end()
    with monkeypatch.context() as patched:
        patched.setattr(second.folder, "read", refused)
        with pytest.raises(AgacError):
            await second.hear()
    await second.hear()
    assert second.stop_signal.stop is StopReason.LOSS


async def refused(*_: Any) -> None:
    raise AgacError("the remote is away")


async def test_a_smaller_budget_holds_for_what_a_killed_shard_was_granted(tmp_path: Path) -> None:
    killed = One(tmp_path, 1)
    await killed.limits.begin()
    assert await killed.limits.lend(killed.balances, Amount(0.6, 0, 1), urgent=True)
    same, smaller = (One(tmp_path, 1) for _ in range(2))
    smaller.balances[0].budget = Budget(usd=0.25)
    await same.limits.begin()
    assert not same.balances[0].would_exceed(Amount(0.6, 0, 1))
    await smaller.limits.begin()
    assert smaller.balances[0].would_exceed(Amount(0.3, 0, 1))
    assert not await smaller.limits.lend(smaller.balances, Amount(0.3, 0, 1), urgent=True)
    assert await smaller.limits.lend(smaller.balances, Amount(0.2, 0, 1), urgent=True)
