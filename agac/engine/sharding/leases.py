"""Shares budgets, what accounts take, and failures that stop all, among the shards of a run while
they work."""

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
from agac.engine.sharding.folder import ShardStatus
from agac.engine.sharding.shard_lease import ShardLease
from agac.engine.stop_rules import RunStopped, StopReason, StopRules, StopSignal
from agac.spec.rules import Budget

# Budgets: each run has one log, whose last entry says how much of each budget every holder (a
# shard's store) may spend. A holder spends only what the log grants it, so that all together keep
# to the cap, even if one is killed. If a holder never comes back, its grant stays counted, since
# what it spent is unknown.

LOG = "budget"
STOPPED = "stopped"

ASKED_AGAIN = 5.0
"""Seconds until a refused amount is asked for again, while calls in flight may make room."""

SETTLED = 15.0
"""Seconds after which all shards that were started together are heard. Until then lanes are cut as
if all were at work."""

Shown = tuple[Dollars, Count, Count]
"""Dollars, tokens and calls."""

_log = logging.getLogger("agac.shard")


class Grants(SharedObject):
    """An entry of the log of budgets."""

    budgets: Mapping[Line, Mapping[Line, tuple[Shown, Shown]]] = {}
    """By the names of budgets and of holders: what is granted, and what of it was spent at that
    time."""


class SharedLimits:
    """Shares budgets and lanes of a shard with the other shards.

    It lends itself parts of the budgets, and gives back at its end what it did not spend. Its lanes
    are cut to its share of what accounts take."""

    def __init__(
        self,
        lease: ShardLease,
        store: str,
        balances: Iterable[BudgetBalance],
        lanes: Iterable[Lane],
        stop_signal: StopSignal,
        stops: StopRules,
    ) -> None:
        """`store` is the token of the shard's store, which tells it from others that the shard
        had."""
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
        """The names of messages of shards that stopped, which were read or are of earlier
        times."""
        self._told = False
        """True if the other shards know that this one stopped, or the other way round."""
        self.processes = lease.shard.of
        """How many processes share what accounts take: at first all shards, then those at work."""
        self._errors = dict[str, int]()
        """The failed rows of other processes, by their marks."""

    async def begin(self) -> None:
        """Grants itself what was spent before, and what a killed invocation held, as far as the
        present budgets allow.

        Shards that stopped before say nothing about this time."""
        self._share(self.processes)
        self._known = {*await self._folder.names(STOPPED)}
        await self._write(lambda: {each.name: self._kept(each) for each in self._balances})

    async def end(self) -> None:
        """Gives back what was not spent, and tells the others why it stops. What is set aside for
        open batches stays."""
        try:
            await self._tell()
            await self._write(lambda: {each.name: each.used for each in self._balances})
        except AgacError as error:
            _log.warning(
                "shard %s did not give back what it had left: %s", self._lease.shard, error.message
            )

    async def lend(self, over: Sequence[BudgetBalance], worst: Amount, *, urgent: bool) -> bool:
        """Takes more of budgets into which a worst case does not fit; False: there is no more.

        `urgent`: no call in flight here can make room. If the remote cannot be reached, the run
        stops for that, and RunStopped is raised."""
        async with self._turn:
            # by what the log said last
            refused = None in [self._wanted(balance, worst) for balance in over]
            if refused and not urgent and time.monotonic() < self._asked_at + ASKED_AGAIN:
                return False
            self._asked_at = time.monotonic()
            over = [balance for balance in over if balance.would_exceed(worst)]
            try:
                return await self._write(lambda: self._all_wanted(over, worst))
            except AgacError as error:
                self._stop_signal.lose_input(error)
                raise RunStopped from error

    def _all_wanted(self, over: Sequence[BudgetBalance], worst: Amount) -> dict[str, Amount] | None:
        """Returns by budget what it takes to have room for a worst case; None: one has no room."""
        amounts = {}
        for balance in over:
            wanted = self._wanted(balance, worst)
            if wanted is None:
                return None
            amounts[balance.name] = wanted
        return amounts

    def _wanted(self, balance: BudgetBalance, worst: Amount) -> Amount | None:
        """Returns what it takes to have room for a worst case, and some more, as far as much is
        free; None: that is not free."""
        wanted = list[Any]()
        needs = balance.used.plus(worst)
        caps = astuple(balance.budget)
        all_have = _sum(granted for granted, _ in self._granted.get(balance.name, {}).values())
        for own, need, cap, granted in zip(
            self._own(balance.name), needs, caps, all_have, strict=True
        ):
            if cap is None or need <= own:
                wanted.append(own)
                continue
            free = cap - granted
            if need - own > free:
                return None
            reserve = type(need)(free / (2 * self._lease.shard.of))
            wanted.append(max(need, own + reserve))
        return Amount(*wanted)

    def _kept(self, balance: BudgetBalance) -> Amount:
        """Returns what this shard holds of a budget, within its present cap, and no less than it
        used."""
        both: Any = zip(self._own(balance.name), astuple(balance.budget), strict=True)
        within_cap = Amount(*(own if cap is None else min(own, cap) for own, cap in both))
        return _most(balance.used, within_cap)

    def _own(self, name: str) -> Amount:
        """Returns what is granted to this shard of a budget."""
        return Amount(*self._granted.get(name, {}).get(self._owner, (NOTHING,))[0])

    async def _write(self, make: Callable[[], Mapping[str, Amount] | None]) -> bool:
        """Grants this shard what `make` returns, which is called once the last entry is read;
        False: it returns None."""
        has_room = True

        def entry(last: bytes | None) -> bytes | None:
            nonlocal has_room
            known = self._folder.sure(Grants, LOG, last)
            self._granted = known.budgets if known is not None else {}
            amounts = make()
            has_room = amounts is not None
            return self._with_grants(amounts or {})

        if self._balances:
            await self._folder.append(LOG, entry)
        for balance in self._balances:
            lent: Any = zip(astuple(balance.budget), self._own(balance.name), strict=True)
            balance.lent = Budget(*(None if cap is None else own for cap, own in lent))
        return has_room

    def _with_grants(self, amounts: Mapping[str, Amount]) -> bytes | None:
        """Makes the entry that grants this shard these amounts, by budget; None: it has them."""
        changed = False
        budgets = {name: dict(held) for name, held in self._granted.items()}
        for balance in self._balances:
            held = budgets.setdefault(balance.name, {})
            amount = amounts.get(balance.name)
            if amount is None:
                continue
            grant = (amount, balance.spent)
            if grant != held.get(self._owner, (NOTHING, NOTHING)):
                held[self._owner] = grant
                changed = True
        self._granted = budgets
        if not changed:
            return None
        return Grants(**self._lease.about(), budgets=budgets).model_dump_json().encode()

    def elsewhere(self, balance: BudgetBalance) -> tuple[Amount, Amount]:
        """Returns what other shards hold of a budget, and what they spent of that."""
        held = self._granted.get(balance.name, {})
        grants = [grant for owner, grant in held.items() if owner != self._owner]
        return _sum(granted for granted, _ in grants), _sum(spent for _, spent in grants)

    def of_others(self, balance: BudgetBalance) -> str:
        """Says what other shards have of a budget, as the end of a sentence."""
        held, spent = self.elsewhere(balance)
        amounts = {
            "spent {} of it": spent,
            "hold up to {} of it that they did not spend": held.plus(spent, -1),
        }
        parts = []
        for text, amount in amounts.items():
            words = dollars(amount.usd), f"{amount.tokens:,} tokens", f"{amount.calls:,} calls"
            units = zip(words, amount, astuple(balance.budget), strict=True)
            shown = " and ".join(
                word for word, number, cap in units if cap is not None and number > 0
            )
            if shown:
                parts.append(text.format(shown))
        return f"; other shards {', and '.join(parts)}" if parts else ""

    def _share(self, processes: int) -> None:
        """Cuts the lanes to the share of one of so many processes."""
        self.processes = processes
        for lane in self._lanes:
            lane.share(processes)

    async def heard(self, alive: Mapping[int, ShardStatus]) -> None:
        """Takes in how the other shards are. The run stops if one of them stopped for all, or too
        many rows failed in all."""
        own = self._lease.shard.number
        others = [status for status in alive.values() if status.number != own]
        if self._lease.clock() >= self._began + SETTLED:
            self._share(1 + sum(status.state == "running" for status in others))
        self._errors |= {
            status.mark: status.errors for status in others if status.at >= self._began
        }
        self._stops.failed_elsewhere(sum(self._errors.values()))
        await self._tell()
        for name in sorted({*await self._folder.names(STOPPED)} - self._known):
            status = self._folder.believed(ShardStatus, name, await self._folder.read(name))
            self._known.add(name)
            if status is not None and self._stop_signal.stop is None:
                self._told = True
                self._stop_signal.end(
                    StopReason.LOSS, f"shard {status.number}/{status.of} stopped: {status.why}"
                )

    async def _tell(self) -> None:
        """Tells the others once that this shard stopped, since nearly everything fails in the same
        way."""
        if self._stop_signal.stop is StopReason.LOSS and not self._told:
            lease = self._lease
            about = {**lease.about(), **lease.shard._asdict()}
            status = ShardStatus(**about, state="stopped", why=self._stop_signal.reason)
            await self._folder.create(
                f"{STOPPED}/{lease.shard.name}-{lease.mark}", status.model_dump_json().encode()
            )
            self._told = True


def _sum(amounts: Iterable[Shown]) -> Amount:
    """Adds up amounts."""
    return reduce(Amount.plus, (Amount(*amount) for amount in amounts), NOTHING)


def _most(one: Amount, other: Amount) -> Amount:
    """Returns the larger of two amounts, unit by unit."""
    return Amount(
        max(one.usd, other.usd), max(one.tokens, other.tokens), max(one.calls, other.calls)
    )
