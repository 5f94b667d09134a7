"""What the shards of a run share while they work: budgets, what accounts take, and failures that
stop all of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from functools import reduce
from typing import Any

from agac.core.errors import AgacError
from agac.core.types import dollars
from agac.data.shared_log import Count, Dollars, Line, SharedObject
from agac.engine.ask.limits import NOTHING, Amount, BudgetBalance
from agac.engine.ask.rate_limiter import Lane
from agac.engine.sharding.folder import ShardLease, ShardStatus
from agac.engine.stop_rules import RunStopped, StopReason, StopRules, StopSignal
from agac.spec.rules import Budget

# Budgets: one log a run, whose last entry says how much of each every holder (a shard's store) may
# spend. A holder spends nothing that the log does not grant it, so all together keep to the cap,
# whoever is killed. What one holds that never comes back stays counted: nobody knows what it spent.

LOG = "budget"
STOPPED = "stopped"
ASKED_AGAIN = (
    5.0  # seconds before a refused amount is asked for again, while calls under way may make room
)
# seconds after which all that were started together are heard: until then lanes are cut for all
SETTLED = 15.0

Shown = tuple[Dollars, Count, Count]  # dollars, tokens, calls

_log = logging.getLogger("agac.shard")


class Grants(SharedObject):
    """An entry: by the names of budgets and of holders what is granted, and what of it was spent
    at that time."""

    budgets: Mapping[Line, Mapping[Line, tuple[Shown, Shown]]] = {}


class SharedLimits:
    """What a shard shares with the others. It lends itself parts of the budgets in `balances`, and
    gives back at its end what it did not spend; `store` tells its store from others that the shard
    had. Its `lanes` are cut to its share of what accounts take, which is one of `processes`: all
    shards at first, those that live once they are heard."""

    def __init__(
        self,
        lease: ShardLease,
        store: str,
        balances: Iterable[BudgetBalance],
        lanes: Iterable[Lane],
        stop_signal: StopSignal,
        stops: StopRules,
    ) -> None:
        self._lease = lease
        self._folder = lease.folder
        self._owner = f"{lease.shard.name}-{store}"
        self._balances = tuple(balances)
        self._lanes = [*lanes]
        self._stop_signal = stop_signal
        self._stops = stops
        self._turn = asyncio.Lock()
        self._asked_at = 0.0
        self._granted = Grants.model_construct().budgets
        self._began = lease.clock()
        self._known = set[str]()
        self._told = False
        self.processes = lease.shard.of
        self._errors = dict[str, int]()

    async def begin(self) -> None:
        """What was spent before is granted, and what an invocation held that was killed still is,
        as far as today's budget goes. Who stopped before says nothing about this time."""
        self._share(self.processes)
        self._known = {*await self._folder.names(STOPPED)}
        await self._write(lambda: {one.name: self._kept(one) for one in self._balances})

    async def end(self) -> None:
        """Gives back what was not spent; what is set aside for open batches stays. Tells the
        others why it stops."""
        try:
            await self._tell()
            await self._write(lambda: {one.name: one.used for one in self._balances})
        except AgacError as error:
            _log.warning(
                "shard %s did not give back what it had left: %s", self._lease.shard, error.message
            )

    async def lend(self, over: Sequence[BudgetBalance], worst: Amount, *, urgent: bool) -> bool:
        """Whether there is more room in budgets into which a worst case does not fit. `urgent`:
        nothing under way here can make room. Where the remote cannot be reached the run stops with
        that, and RunStopped is raised."""
        async with self._turn:
            # by what the log said last
            refused = None in [self._wanted(one, worst) for one in over]
            if refused and not urgent and time.monotonic() < self._asked_at + ASKED_AGAIN:
                return False
            self._asked_at = time.monotonic()
            over = [one for one in over if one.would_exceed(worst)]
            try:
                return await self._write(lambda: self._asked(over, worst))
            except AgacError as error:
                self._stop_signal.lose_input(error)
                raise RunStopped from error

    def _asked(self, over: Sequence[BudgetBalance], worst: Amount) -> dict[str, Amount] | None:
        found = {
            one.name: wanted for one in over if (wanted := self._wanted(one, worst)) is not None
        }
        return found if len(found) == len(over) else None

    def _wanted(self, balance: BudgetBalance, worst: Amount) -> Amount | None:
        """What it takes to have room for a worst case, and some more: the less is free, the less.
        None: that is not free."""
        found = list[Any]()
        needs = balance.used.plus(worst)
        caps = astuple(balance.budget)
        all_have = _sum(granted for granted, _ in self._granted.get(balance.name, {}).values())
        for own, need, cap, granted in zip(
            self._own(balance.name), needs, caps, all_have, strict=True
        ):
            if cap is None or need <= own:
                found.append(own)
            elif need - own > (free := cap - granted):
                return None
            else:
                found.append(max(need, own + type(need)(free / (2 * self._lease.shard.of))))
        return Amount(*found)

    def _kept(self, balance: BudgetBalance) -> Amount:
        both: Any = zip(self._own(balance.name), astuple(balance.budget), strict=True)
        return _most(
            balance.used, Amount(*(own if cap is None else min(own, cap) for own, cap in both))
        )

    def _own(self, name: str) -> Amount:
        return Amount(*self._granted.get(name, {}).get(self._owner, (NOTHING,))[0])

    async def _write(self, make: Callable[[], Mapping[str, Amount] | None]) -> bool:
        """Makes the grants of this shard what `make` says by the last entry; False: it says
        None."""
        made = True

        def entry(last: bytes | None) -> bytes | None:
            nonlocal made
            known = self._folder.sure(Grants, LOG, last)
            self._granted = known.budgets if known is not None else {}
            new = make()
            made = new is not None
            changed = False
            budgets = {name: dict(held) for name, held in self._granted.items()}
            for balance in self._balances:
                held = budgets.setdefault(balance.name, {})
                amount = (new or {}).get(balance.name)
                if amount is not None and (
                    (now := (amount, balance.spent)) != held.get(self._owner, (NOTHING, NOTHING))
                ):
                    held[self._owner], changed = now, True
            self._granted = budgets
            if changed:
                return Grants(**self._lease.about(), budgets=budgets).model_dump_json().encode()
            return None

        if self._balances:
            await self._folder.append(LOG, entry)
        for one in self._balances:
            lent: Any = zip(astuple(one.budget), self._own(one.name), strict=True)
            one.lent = Budget(*(None if cap is None else own for cap, own in lent))
        return made

    def elsewhere(self, balance: BudgetBalance) -> tuple[Amount, Amount]:
        """What other shards hold of a budget, and what they spent of that."""
        held = self._granted.get(balance.name, {})
        both = [share for owner, share in held.items() if owner != self._owner]
        return _sum(granted for granted, _ in both), _sum(spent for _, spent in both)

    def of_others(self, balance: BudgetBalance) -> str:
        """What other shards have of a budget, as the end of a sentence."""
        held, spent = self.elsewhere(balance)
        told = {
            "spent {} of it": spent,
            "hold up to {} of it that they did not spend": held.plus(spent, -1),
        }
        found = []
        for text, some in told.items():
            words = dollars(some.usd), f"{some.tokens:,} tokens", f"{some.calls:,} calls"
            known = zip(words, some, astuple(balance.budget), strict=True)
            shown = " and ".join(
                word for word, amount, cap in known if cap is not None and amount > 0
            )
            if shown:
                found.append(text.format(shown))
        return f"; other shards {', and '.join(found)}" if found else ""

    def _share(self, processes: int) -> None:
        self.processes = processes
        for lane in self._lanes:
            lane.share(processes)

    async def heard(self, alive: Mapping[int, ShardStatus]) -> None:
        """How the other shards are. Stops where one of them stopped for all, or too many rows
        failed in all."""
        others = [one for one in alive.values() if one.number != self._lease.shard.number]
        if self._lease.clock() >= self._began + SETTLED:
            self._share(1 + sum(one.state == "running" for one in others))
        self._errors |= {one.mark: one.errors for one in others if one.at >= self._began}
        self._stops.failed_elsewhere(sum(self._errors.values()))
        await self._tell()
        for name in sorted({*await self._folder.names(STOPPED)} - self._known):
            told = self._folder.believed(ShardStatus, name, await self._folder.read(name))
            self._known.add(name)
            if told is not None and self._stop_signal.stop is None:
                self._told = True
                self._stop_signal.end(
                    StopReason.LOSS, f"shard {told.number}/{told.of} stopped: {told.why}"
                )

    async def _tell(self) -> None:
        """Tells the others once that this shard stopped since nearly everything fails alike."""
        if self._stop_signal.stop is StopReason.LOSS and not self._told:
            lease = self._lease
            about = {**lease.about(), **lease.shard._asdict()}
            told = ShardStatus(**about, state="stopped", why=self._stop_signal.reason)
            await self._folder.create(
                f"{STOPPED}/{lease.shard.name}-{lease.mark}", told.model_dump_json().encode()
            )
            self._told = True


def _sum(amounts: Iterable[Shown]) -> Amount:
    return reduce(Amount.plus, (Amount(*one) for one in amounts), NOTHING)


def _most(one: Amount, other: Amount) -> Amount:
    return Amount(
        max(one.usd, other.usd), max(one.tokens, other.tokens), max(one.calls, other.calls)
    )
