"""What the shards of a run share while they work: budgets, what accounts take, and failures that stop all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from agac.core.errors import AgacError
from agac.core.types import dollars
from agac.engine.limits import NOTHING, Amount, BudgetBalance, RunStopped, StopReason, StopRules, StopSignal
from agac.engine.rate_limiter import Lane
from agac.engine.sharding.folder import ShardLease, ShardStatus, SharedObject
from agac.spec.workflow import Budget

# Budgets: one log a run, whose last entry says how much of each every holder (a shard's store) may spend. A holder
# spends nothing that the log does not grant it, so all together keep to the cap, whoever is killed. What one holds that
# never comes back stays counted: nobody knows what it spent.

LOG = "budget"
ASKED_AGAIN = 5.0  # seconds before a refused amount is asked for again, while calls under way may make room

Shown = tuple[Annotated[float, Field(ge=0)], Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]


class Share(BaseModel):
    """What a holder may spend of a budget in dollars, tokens and calls, and what it had spent when it said so."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    granted: Shown
    spent: Shown


class Grants(SharedObject):
    """An entry: who holds what, by the names of budgets and of holders."""

    budgets: Mapping[str, Mapping[str, Share]] = {}


class SharedBudgets:
    """The `lender` of a shard: it grants itself parts of the budgets in `balances`, and gives back at its end what it
    did not spend. `store` tells its store from others that the shard had."""

    def __init__(
        self, lease: ShardLease, store: str, balances: Iterable[BudgetBalance], stop_signal: StopSignal
    ) -> None:
        self._lease, self._folder, self._owner = lease, lease.folder, f"{lease.shard.name}-{store}"
        self._balances, self._stop_signal, self._turn = tuple(balances), stop_signal, asyncio.Lock()
        self._granted: Mapping[str, Mapping[str, Share]] = {}
        self._asked_at = 0.0

    async def begin(self) -> None:
        """What was spent before is granted, and what an invocation held that was killed still is."""
        await self._write(lambda: {one.name: _most(one.used, self._own(one.name)) for one in self._balances})

    async def end(self) -> None:
        """Gives back what was not spent; what is set aside for open batches stays."""
        await self._write(lambda: {one.name: one.used for one in self._balances})

    async def lend(self, over: Sequence[BudgetBalance], worst: Amount, *, urgent: bool) -> bool:
        """As Lender has it. Where the remote cannot be reached the run stops with that, and RunStopped is raised."""
        async with self._turn:
            refused = None in [self._wanted(one, worst) for one in over]  # by what the log said last
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
        found = {one.name: wanted for one in over if (wanted := self._wanted(one, worst)) is not None}
        return found if len(found) == len(over) else None

    def _wanted(self, balance: BudgetBalance, worst: Amount) -> Amount | None:
        """What it takes to have room for a worst case, and some more: the less is free, the less. None: that is not
        free."""
        found, needs = list[Any](), balance.used.plus(worst)
        granted = _sum(one.granted for one in self._granted.get(balance.name, {}).values())
        for own, need, cap, all_have in zip(
            self._own(balance.name), needs, _caps(balance.budget), granted, strict=True
        ):
            if cap is None or need <= own:
                found.append(own)
            elif need - own > (free := cap - all_have):
                return None
            else:
                found.append(max(need, own + type(need)(free / (2 * self._lease.shard.of))))
        return Amount(*found)

    def _own(self, name: str) -> Amount:
        share = self._granted.get(name, {}).get(self._owner)
        return NOTHING if share is None else Amount(*share.granted)

    async def _write(self, make: Callable[[], Mapping[str, Amount] | None]) -> bool:
        """Makes the grants of this shard what `make` says by the last entry; False: it says None."""
        made = True

        def entry(last: bytes | None) -> bytes | None:
            nonlocal made
            self._granted = {} if last is None else self._read(last)
            new = make()
            made, changed = new is not None, {n: one for n, one in (new or {}).items() if one != self._own(n)}
            budgets = {name: dict(held) for name, held in self._granted.items()}
            for balance in self._balances:
                if (amount := changed.get(balance.name)) is not None:
                    budgets.setdefault(balance.name, {})[self._owner] = Share(granted=amount, spent=balance.spent)
            self._granted = budgets
            return Grants(**self._lease.about(), budgets=budgets).model_dump_json().encode() if changed else None

        await self._folder.append(LOG, entry)
        for one in self._balances:
            lent: Any = zip(_caps(one.budget), self._own(one.name), strict=True)
            one.lent = Budget(*(None if cap is None else own for cap, own in lent))
        return made

    def _read(self, content: bytes) -> Mapping[str, Mapping[str, Share]]:
        grants = self._folder.believed(Grants, LOG, content)
        if grants is None:
            what = f"{self._folder.remote.url}/{self._folder.path}/{LOG} ends with what cannot be believed"
            remedy = "name its writers at `remote: {trust: […]}` of agac.yml; without it nobody knows what is left"
            raise AgacError(what, remedy=remedy)
        return grants.budgets

    def unspent(self, name: str) -> str:
        """As Lender has it."""
        others = [one for owner, one in self._granted.get(name, {}).items() if owner != self._owner]
        left = _sum(one.granted for one in others).plus(_sum(one.spent for one in others), -1)
        caps = next((_caps(one.budget) for one in self._balances if one.name == name), (None, None, None))
        words = dollars(left.usd), f"{left.tokens:,} tokens", f"{left.calls:,} calls"
        known = [text for text, some, cap in zip(words, left, caps, strict=True) if cap is not None and some > 0]
        return f"; other shards hold up to {' and '.join(known)} of it that they did not spend" if known else ""


def _caps(budget: Budget) -> tuple[float | None, int | None, int | None]:
    return budget.usd, budget.tokens, budget.calls


def _sum(amounts: Iterable[Shown]) -> Amount:
    return reduce(Amount.plus, (Amount(*one) for one in amounts), NOTHING)


def _most(one: Amount, other: Amount) -> Amount:
    return Amount(max(one.usd, other.usd), max(one.tokens, other.tokens), max(one.calls, other.calls))


# What accounts take, and what stops all shards: heard at each sign of life.

STOPPED = "stopped"
SETTLED = 15.0  # seconds after which all that were started together are heard: until then lanes are cut for all


class Stopped(SharedObject):
    """A shard stopped since nearly everything fails alike from the start, and why."""

    number: int
    of: int
    why: str


class SharedLimits:
    """What a shard hears from the others at each of its signs of life, and tells them. `processes`: with how many it
    shares what accounts take, itself among them; at first all shards count."""

    def __init__(self, lease: ShardLease, stop_signal: StopSignal, stops: StopRules) -> None:
        self._lease, self._stop_signal, self._stops = lease, stop_signal, stops
        self._began, self._known, self._told = lease.clock(), set[str](), False
        self.processes, self._lanes = lease.shard.of, list[Lane]()

    async def begin(self, lanes: Iterable[Lane]) -> None:
        """Lanes keep to their part from now on. Who stopped before says nothing about this time."""
        self._lanes, self._known = list(lanes), set(await self._lease.folder.names(STOPPED))
        self._share(self.processes)

    def _share(self, processes: int) -> None:
        self.processes = processes
        for lane in self._lanes:
            lane.share(processes)

    async def heard(self, alive: Mapping[int, ShardStatus]) -> None:
        """How the other shards are. Stops where one of them did for all, or too many rows failed in all."""
        folder, own = self._lease.folder, self._lease.shard.number
        others = [one for one in alive.values() if one.number != own]
        if self._lease.clock() >= self._began + SETTLED:
            self._share(1 + sum(one.state == "running" for one in others))
        self._stops.failed_elsewhere(sum(one.errors for one in others if one.at >= self._began))
        await self.tell()
        for name in sorted({*await folder.names(STOPPED)} - self._known):
            self._known.add(name)
            told = folder.believed(Stopped, name, await folder.read(name))
            if told is not None and told.number != own and self._stop_signal.stop is None:
                self._told = True
                self._stop_signal.end(StopReason.LOSS, f"shard {told.number}/{told.of} stopped: {told.why}")

    async def tell(self) -> None:
        """Tells the others once that this shard stopped since nearly everything fails alike."""
        if self._stop_signal.stop is StopReason.LOSS and not self._told:
            self._told, lease = True, self._lease
            stopped = Stopped(**lease.about(), **lease.shard._asdict(), why=self._stop_signal.reason)
            await lease.folder.create(f"{STOPPED}/{lease.shard.name}-{lease.mark}", stopped.model_dump_json().encode())
