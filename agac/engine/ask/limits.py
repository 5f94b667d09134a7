"""The budgets of a run, kept by reservation: before a call its worst case is reserved, afterwards
corrected to its cost."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from agac.engine.stop_rules import RunStopped, StopReason, StopSignal
from agac.plan.plan import Plan
from agac.plan.stage import PlannedModel
from agac.providers.prices import BATCH, DAY, dearest_price
from agac.providers.provider import Price
from agac.spec.graph import stage_of
from agac.spec.rules import Budget
from agac.store.records import Call
from agac.store.runs import Count

# A run stops before a cap, never after it. A reservation that does not fit waits for corrections of
# others; when nothing that is under way could make room for it, the run stops at its limit.


class Amount(NamedTuple):
    """Dollars, tokens (of requests and replies together) and calls."""

    usd: float = 0.0
    tokens: int = 0
    calls: int = 0

    def plus(self, other: Amount, sign: int = 1) -> Amount:
        """The sum, or with `sign` -1 the difference."""
        return Amount(
            self.usd + sign * other.usd,
            self.tokens + sign * other.tokens,
            self.calls + sign * other.calls,
        )


NOTHING = Amount()


class BlockedByBatches(Exception):
    """A call does not fit beside open batches: there may be room once they are ingested."""


class RowBudgetExceeded(Exception):
    """A row's next call could cost more than the row has left."""


@dataclass(slots=True)
class BudgetBalance:
    """A budget under its name, what of it is spent, and what is set aside for calls under way.
    `unconfirmed` is the part of `spent` that may not be spent: calls that left no answer may have
    been billed. `unpriced` calls of them were lost before the cost of any call was known: the
    first known cost counts for them too. `stage`: the one that it bounds, None for the run's.
    `batches`: how many of the `reservations` are those of batches, for which nothing waits.
    `lent`: what this process may spend of a budget that it shares with others, None: all of it."""

    name: str
    budget: Budget
    stage: str | None = None
    spent: Amount = NOTHING
    unconfirmed: Amount = NOTHING
    unpriced: int = 0
    reserved: Amount = NOTHING
    reservations: int = 0
    batches: int = 0
    lent: Budget | None = None

    @property
    def used(self) -> Amount:
        """What is spent, and set aside."""
        return self.spent.plus(self.reserved)

    def holds_for(self, stage: str) -> bool:
        """Whether calls of the stage count: its parts and what escalates spend together."""
        return self.stage is None or stage_of(stage) == self.stage

    def would_exceed(self, worst: Amount) -> bool:
        """Whether so much more does not fit, beside what is set aside."""
        usd, tokens, calls = self.spent.plus(self.reserved).plus(worst)
        cap = self.budget if self.lent is None else self.lent
        if (cap.usd is not None and usd > cap.usd) or (
            cap.tokens is not None and tokens > cap.tokens
        ):
            return True
        return cap.calls is not None and calls > cap.calls

    def reserve(self, worst: Amount) -> None:
        """Sets an amount aside."""
        self.reserved = self.reserved.plus(worst)
        self.reservations = self.reservations + 1

    def settle(self, worst: Amount, real: Amount, unconfirmed: Amount = NOTHING) -> None:
        """Replaces what was set aside by what it came to; `unconfirmed` is the unknown part of
        it."""
        self.reservations -= 1
        # nothing is set aside any more: rounding leaves no crumbs that would keep a waiter waiting
        if self.reservations:
            self.reserved = self.reserved.plus(worst, -1)
        else:
            self.reserved = Amount()
        self.spent = self.spent.plus(real)
        if unconfirmed is not NOTHING:
            self.unconfirmed = self.unconfirmed.plus(unconfirmed)
        if self.unpriced and (real.usd or real.tokens):
            lost = Amount(real.usd * self.unpriced, real.tokens * self.unpriced)
            self.spent, self.unconfirmed, self.unpriced = (
                self.spent.plus(lost),
                self.unconfirmed.plus(lost),
                0,
            )


class Reservation(NamedTuple):
    """What is set aside for one call, and where."""

    worst: Amount
    balances: tuple[BudgetBalance, ...]


class Lender(Protocol):
    """Lends parts of budgets that several processes share."""

    async def lend(self, over: Sequence[BudgetBalance], worst: Amount, *, urgent: bool) -> bool:
        """True if the budgets `over`, into which `worst` does not fit, got more room. `urgent`:
        nothing under way in this process can make room. May raise RunStopped."""
        ...

    def elsewhere(self, balance: BudgetBalance) -> tuple[Amount, Amount]:
        """Returns what other processes hold of a budget, and what they spent of that."""
        ...

    def of_others(self, balance: BudgetBalance) -> str:
        """Returns what other processes have of a budget, as the end of a sentence."""
        ...


class BudgetLimiter:
    """All budgets of an invocation: `balances` of the run and of stages, and `row`, what each row
    may spend. At a limit `reached` is the budget that ended the run, `missed` the worst case that
    did not fit into it."""

    def __init__(
        self, stop_signal: StopSignal, balances: Iterable[BudgetBalance], row: Budget | None
    ) -> None:
        self._stop_signal = stop_signal
        self.balances = tuple(balances)
        self._row = row
        self.lender: Lender | None = None
        self._waiting = 0
        # in the order in which they came: a large amount is not overtaken forever
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._batches: dict[int, Reservation] = {}
        self.reached: BudgetBalance | None = None
        self.missed = NOTHING
        stop_signal.when_stopped(self._changed.set)

    def row_balance(self) -> BudgetBalance | None:
        """What one row may spend, for a row that begins."""
        if self._row is None:
            return None
        return BudgetBalance("row", self._row)

    async def reserve(self, stage: str, row: BudgetBalance | None, worst: Amount) -> Reservation:
        """Sets the worst case of a call aside in every budget that it belongs to, waiting until it
        fits. A caller that waits here holds no slot of any lane, so that calls that can make room
        continue. Raises RowBudgetExceeded, BlockedByBatches when only open batches can make room,
        RunStopped also when it can never fit."""
        self._stop_signal.check()
        # a row makes one call at a time: nothing of it comes back
        if row is not None and row.would_exceed(worst):
            raise RowBudgetExceeded
        balances = self._balances_of(stage)
        if self._waiting or _over(balances, worst):
            await self._room(balances, worst)
        reservation = Reservation(worst, balances if row is None else (*balances, row))
        for balance in reservation.balances:
            balance.reserve(worst)
        return reservation

    async def _room(self, balances: tuple[BudgetBalance, ...], worst: Amount) -> None:
        """Waits until it is this call's turn, and the amount fits."""
        self._waiting += 1
        try:
            async with self._turn:
                while over := _over(balances, worst):
                    self._stop_signal.check()
                    if self.lender is not None:
                        urgent = any(one.reservations == one.batches for one in over)
                        if await self.lender.lend(over, worst, urgent=urgent) or not _over(
                            balances, worst
                        ):
                            continue
                    hopeless = [one for one in over if not one.reservations]
                    if any(0 < one.reservations == one.batches for one in over):
                        self.missed = worst
                        self.reached = over[0]
                        raise BlockedByBatches
                    if hopeless:
                        self.reached = hopeless[0]
                        self.missed = worst
                        self.stop_at_limit("call")
                        raise RunStopped
                    self._changed.clear()
                    await self._changed.wait()
                self._stop_signal.check()
        finally:
            self._waiting -= 1

    def settle(self, reservation: Reservation, real: Amount, unconfirmed: Amount = NOTHING) -> None:
        """A call ended: what was set aside for it becomes what it cost, or may have cost
        (`unconfirmed`)."""
        for balance in reservation.balances:
            balance.settle(reservation.worst, real, unconfirmed)
        self._changed.set()

    def correct(self, reservation: Reservation, real: Amount) -> None:
        """It is known now what a call cost of which nothing was known, so that it counted at its
        worst."""
        worst = reservation.worst._replace(calls=real.calls)
        for balance in reservation.balances:
            balance.spent = balance.spent.plus(real).plus(worst, -1)
            balance.unconfirmed = balance.unconfirmed.plus(worst._replace(calls=0), -1)
        self._changed.set()

    def has_room(self, stage: str, worst: Amount) -> bool:
        """Whether the worst case of a task in a batch would fit; what does not is remembered, if
        the run ends so. Nobody waits for it: it is enrolled once other batches have shown what
        they really cost."""
        over = _over(self._balances_of(stage), worst)
        if over or self._waiting:
            self.missed = worst
            self.reached = over[0] if over else self.reached
        return not (over or self._waiting)

    async def borrow(self, stage: str, worst: Amount) -> bool:
        """The same, where a lender makes room."""
        over = _over(self._balances_of(stage), worst)
        if (
            self.lender is None
            or self._waiting
            or (over and not await self.lender.lend(over, worst, urgent=False))
        ):
            return False
        return self.has_room(stage, worst)

    def load(self, batch: int, stage: str, worst: Amount) -> None:
        """Sets an amount aside until a batch is ingested, whether it fits or not: an earlier
        invocation may have."""
        reservation = self._batches.get(batch)
        if reservation is None:
            reservation = Reservation(NOTHING, self._balances_of(stage))
            for balance in reservation.balances:
                balance.reservations += 1
                balance.batches += 1
        for balance in reservation.balances:
            balance.reserved = balance.reserved.plus(worst)
        self._batches[batch] = reservation._replace(worst=reservation.worst.plus(worst))

    def _balances_of(self, stage: str) -> tuple[BudgetBalance, ...]:
        return tuple(balance for balance in self.balances if balance.holds_for(stage))

    def ingested(self, batch: int, real: Amount) -> None:
        """A batch ended: what was set aside for it becomes what it cost."""
        reservation = self._batches.pop(batch, None)
        if reservation is not None:
            for balance in reservation.balances:
                balance.batches -= 1
            self.settle(reservation, real)

    def elsewhere(self, balance: BudgetBalance) -> Amount:
        """What of a budget others than this process hold."""
        if self.lender is not None:
            return self.lender.elsewhere(balance)[0]
        return NOTHING

    def stop_at_limit(self, what: str) -> None:
        """Nothing is under way that could make room for what did not fit: a call, or a batch."""
        name = self.reached.name if self.reached is not None else "budget"
        if self.lender is not None and self.reached is not None:
            others = self.lender.of_others(self.reached)
        else:
            others = ""
        self._stop_signal.end(
            StopReason.LIMIT, f"the {name} is used up: the next {what} might exceed it{others}"
        )


def _over(balances: Iterable[BudgetBalance], worst: Amount) -> list[BudgetBalance]:
    """The budgets into which so much more does not fit."""
    return [balance for balance in balances if balance.would_exceed(worst)]


def is_free(call: Call) -> bool:
    """A refused call, or one that never left, costs nothing; a time-out may have, also that of a
    gateway (504)."""
    return (
        call.cost is None
        and call.usage.input_tokens is None
        and not call.answered
        and not call.ambiguous
    )


def counted(call: Call, worst: Amount) -> tuple[Amount, Amount]:
    """What a call that ended is counted as: its reported usage, the worst case for the rest; if
    done at all."""
    if is_free(call):
        return Amount(0.0, 0, 1), NOTHING
    unknown = call.cost is None or call.ambiguous  # of a session that was ended a part is known
    usd = max(worst.usd, call.cost or 0.0) if unknown else call.cost or 0.0
    used = (call.usage.input_tokens, call.usage.output_tokens)
    reported = sum(n or 0 for n in used)
    if None in used or call.ambiguous:
        tokens = max(reported, worst.tokens)
    else:
        tokens = reported
    if tokens == reported and not unknown:
        return Amount(usd, tokens, 1), NOTHING
    return Amount(usd, tokens, 1), Amount(usd - (call.cost or 0.0), tokens - reported)


def balances_of(
    plan: Plan, counts: Iterable[Count] = (), lost_calls: int = 0
) -> list[BudgetBalance]:
    """The budgets of a plan's run and of its stages, which count over all invocations of a run,
    each with what was spent of it before. `lost_calls`: calls of earlier invocations that may have
    been billed and left nothing. Each of them counts at the mean cost of those that are known,
    and, since nobody knows of which stage it was, in every budget that it may belong to."""
    of_run = (
        ("budget of agac.yml", plan.rules.project),
        ("budget of the run", plan.rules.workflow),
    )
    balances = [BudgetBalance(name, budget) for name, budget in of_run if budget]
    balances += [
        BudgetBalance(f"budget of stage {s.name!r}", s.settings.budget, s.name)
        for s in plan.asking
        if s.settings.budget
    ]
    return loaded(balances, counts, lost_calls)


def loaded(
    balances: list[BudgetBalance], counts: Iterable[Count], lost_calls: int
) -> list[BudgetBalance]:
    """The same balances, with what was spent of them."""
    calls = [count for count in counts if count.outcome == "call"]
    for balance in balances:
        _load(balance, [count for count in calls if balance.holds_for(count.stage)], lost_calls)
    return balances


def _load(balance: BudgetBalance, counts: Iterable[Count], lost_calls: int) -> None:
    known = unconfirmed = priced = Amount()
    for c in counts:
        one = Amount(c.cost, c.input_tokens + c.output_tokens, c.tasks)
        held = Amount(c.held_cost, c.held_tokens)
        known = known.plus(one)
        unconfirmed = unconfirmed.plus(held)
        # refused calls cost nothing and tell nothing
        if c.cost or one.tokens or held.usd or held.tokens:
            priced = priced.plus(one).plus(held)
    lost = Amount(0.0, 0, lost_calls)
    if priced.calls:
        share = lost_calls / priced.calls
        lost = Amount(priced.usd * share, math.ceil(priced.tokens * share), lost_calls)
    balance.unconfirmed = unconfirmed.plus(lost)
    balance.spent = known.plus(balance.unconfirmed)
    balance.unpriced = 0 if priced.calls else lost_calls


def facts(balances: Iterable[BudgetBalance]) -> list[dict[str, object]]:
    """Budgets for summaries: what is spent of them, and `held` what may be, by calls that left no
    answer."""
    found = []
    for balance in balances:
        known = balance.spent.plus(balance.unconfirmed, -1)
        held = balance.unconfirmed
        facts = dict[str, object]()
        for unit, spent, may_be in zip(Amount._fields, known, held, strict=True):
            cap = getattr(balance.budget, unit)
            if cap is not None:
                facts[unit] = {"limit": cap, "spent": round(spent, 6), "held": round(may_be, 6)}
        found.append({"name": balance.name, **facts})
    return found


# What one call costs at most: what a budget sets aside before it is sent.


class WorstCase:
    """What a call to one model can cost at most, or a request in a `batch`, at the dearest hour of
    the day. Made once a model; the price library is only asked for dollars, and once a day.
    `session`: the call is an agent's session, of so many calls with so many tokens at most."""

    def __init__(
        self, model: PlannedModel, *, in_dollars: bool, batch: bool = False,
        session: tuple[int, int] | None = None, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._model = model
        self._max_tokens = model.params.max_tokens or 0
        self._session = session
        self._wall = wall
        # of all tiers that may serve it: the one asked for, the ordinary one, and `priority` where
        # the choice is left to the settings of an account; a batch is a tier of its own
        wanted = model.params.service_tier
        tiers: set[str | None]
        if batch:
            tiers = {BATCH}
        else:
            tiers = {None, wanted} | ({"priority"} if wanted in (None, "auto") else set())
        self._tiers = tiers if in_dollars else set()
        self._day: int | None = None
        self._steps: tuple[tuple[int, float, float], ...] = ()
        self._price_steps()  # now, since to load the price library takes a third of a second

    def of(self, body: bytes) -> Amount:
        """The worst case of sending `body`. Its bytes bound its tokens: byte-level tokenizers make
        no more tokens than bytes, and the JSON around a message is longer than the few marks that
        a chat template puts in its place. Nothing is taken as cached."""
        calls, size = self._session or (1, len(body))
        usd = 0.0
        for start, given, made in self._price_steps():
            if size >= start:
                usd = calls * (size * given + self._max_tokens * made) / 1_000_000
        return Amount(usd, calls * (size + self._max_tokens), 1)

    def _price_steps(self) -> tuple[tuple[int, float, float], ...]:
        """The highest prices of today; a run may take days."""
        now = self._wall()
        if self._day != now // DAY:
            self._day = int(now // DAY)
            prices = (
                dearest_price(self._model.provider, self._model.model, tier, now)
                for tier in self._tiers
            )
            known = (price for price in prices if price is not None)
            self._steps = max_price_steps(known)
        return self._steps


def max_price_steps(prices: Iterable[Price]) -> tuple[tuple[int, float, float], ...]:
    """For calls of up to so many input tokens: what a token costs at most, given and made, in $
    per million. A call may turn out smaller than it could be, so a step that is cheaper does not
    count."""
    columns = sorted(
        (
            start,
            max(price.input, price.cached_input or 0.0, price.cache_write or 0.0),
            price.output,
        )
        for one in prices
        for start, price in ((0, one), *one.above)
    )
    steps = []
    given = made = 0.0
    for start, input_price, output_price in columns:
        given = max(given, input_price)
        made = max(made, output_price)
        steps.append((start, given, made))
    return tuple(steps)
