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
# others; if no call in flight could make room for it, the run stops at its limit.


class Amount(NamedTuple):
    """An amount of what budgets limit."""

    usd: float = 0.0
    """Dollars."""
    tokens: int = 0
    """Tokens of requests and replies together."""
    calls: int = 0
    """Calls."""

    def plus(self, other: Amount, sign: int = 1) -> Amount:
        """Returns the sum, or with `sign` -1 the difference."""
        return Amount(
            self.usd + sign * other.usd,
            self.tokens + sign * other.tokens,
            self.calls + sign * other.calls,
        )


NOTHING = Amount()


class BlockedByBatches(Exception):
    """A call does not fit next to open batches: there may be room once they are ingested."""


class RowBudgetExceeded(Exception):
    """A row's next call could cost more than the row has left."""


@dataclass(slots=True)
class BudgetBalance:
    """A budget, with what is spent of it and reserved."""

    name: str
    """Its name in messages."""
    budget: Budget
    """Its caps."""
    stage: str | None = None
    """The stage that it limits; None: the run."""
    spent: Amount = NOTHING
    """What is spent."""
    unconfirmed: Amount = NOTHING
    """The part of `spent` that may not be spent: calls that left no answer may have been billed."""
    unpriced: int = 0
    """Calls that were lost before the cost of any call was known. The first known cost counts for
    them too."""
    reserved: Amount = NOTHING
    """What is reserved for calls in flight and batches."""
    reservations: int = 0
    """How many reservations there are."""
    batches: int = 0
    """How many of them are those of batches, for which no call waits."""
    lent: Budget | None = None
    """What this process may spend of a budget that it shares with others; None: all of it."""

    @property
    def used(self) -> Amount:
        """The amount that is spent or reserved."""
        return self.spent.plus(self.reserved)

    def holds_for(self, stage: str) -> bool:
        """True if calls of the stage count. Its parts and the stages that it escalates to share
        its budget."""
        return self.stage is None or stage_of(stage) == self.stage

    def would_exceed(self, worst: Amount) -> bool:
        """True if spent + reserved + `worst` exceeds the budget."""
        usd, tokens, calls = self.spent.plus(self.reserved).plus(worst)
        cap = self.budget if self.lent is None else self.lent
        if cap.usd is not None and usd > cap.usd:
            return True
        if cap.tokens is not None and tokens > cap.tokens:
            return True
        return cap.calls is not None and calls > cap.calls

    def reserve(self, worst: Amount) -> None:
        """Reserves an amount."""
        self.reserved = self.reserved.plus(worst)
        self.reservations = self.reservations + 1

    def settle(self, worst: Amount, real: Amount, unconfirmed: Amount = NOTHING) -> None:
        """Replaces the reservation of `worst` by the `real` amount, of which `unconfirmed` is not
        known for sure."""
        self.reservations -= 1
        if self.reservations:
            self.reserved = self.reserved.plus(worst, -1)
        else:
            # exactly nothing: what rounding leaves would keep a waiter waiting
            self.reserved = NOTHING
        self.spent = self.spent.plus(real)
        if unconfirmed is not NOTHING:
            self.unconfirmed = self.unconfirmed.plus(unconfirmed)
        if self.unpriced and (real.usd or real.tokens):
            lost = Amount(real.usd * self.unpriced, real.tokens * self.unpriced)
            self.spent = self.spent.plus(lost)
            self.unconfirmed = self.unconfirmed.plus(lost)
            self.unpriced = 0


class Reservation(NamedTuple):
    """The amount that is reserved for one call."""

    worst: Amount
    """The most that the call can cost."""
    balances: tuple[BudgetBalance, ...]
    """The budgets in which it is reserved."""


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
    """All budgets of an invocation. At a limit `reached` is the budget that ended the run, `missed`
    the worst case that did not fit into it."""

    def __init__(
        self, stop_signal: StopSignal, balances: Iterable[BudgetBalance], row: Budget | None
    ) -> None:
        """`balances` are the budgets of the run and of stages, `row` is that of each row."""
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
        """Makes the balance of a row that begins."""
        if self._row is None:
            return None
        return BudgetBalance("row", self._row)

    async def reserve(self, stage: str, row: BudgetBalance | None, worst: Amount) -> Reservation:
        """Reserves the worst case of a call in every budget that it belongs to, waiting until it
        fits. A caller that waits here holds no slot of any lane, so that calls that can make room
        continue. Raises RowBudgetExceeded, BlockedByBatches if only open batches can make room, and
        RunStopped, also if it can never fit."""
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
                    if await self._lent(over, worst) or not _over(balances, worst):
                        continue
                    self._refuse_hopeless(over, worst)
                    self._changed.clear()
                    await self._changed.wait()
                self._stop_signal.check()
        finally:
            self._waiting -= 1

    async def _lent(self, over: Sequence[BudgetBalance], worst: Amount) -> bool:
        """True if a lender made room in these budgets, into which `worst` does not fit."""
        if self.lender is None:
            return False
        urgent = any(balance.reservations == balance.batches for balance in over)
        return await self.lender.lend(over, worst, urgent=urgent)

    def _refuse_hopeless(self, over: Sequence[BudgetBalance], worst: Amount) -> None:
        """Raises BlockedByBatches if only batches can make room in one of these budgets, and
        RunStopped if nothing can."""
        if any(0 < balance.reservations == balance.batches for balance in over):
            self.missed = worst
            self.reached = over[0]
            raise BlockedByBatches
        for balance in over:
            if not balance.reservations:
                self.reached = balance
                self.missed = worst
                self.stop_at_limit("call")
                raise RunStopped

    def settle(self, reservation: Reservation, real: Amount, unconfirmed: Amount = NOTHING) -> None:
        """Replaces the reservation of a call that ended by what it cost, or may have cost
        (`unconfirmed`)."""
        for balance in reservation.balances:
            balance.settle(reservation.worst, real, unconfirmed)
        self._changed.set()

    def correct(self, reservation: Reservation, real: Amount) -> None:
        """Counts what a call really cost that counted at its worst, since nothing was known of
        it."""
        worst = reservation.worst._replace(calls=real.calls)
        for balance in reservation.balances:
            balance.spent = balance.spent.plus(real).plus(worst, -1)
            balance.unconfirmed = balance.unconfirmed.plus(worst._replace(calls=0), -1)
        self._changed.set()

    def has_room(self, stage: str, worst: Amount) -> bool:
        """True if the worst case of a task in a batch would fit. If not, it is remembered in case
        the run ends so. The task does not wait for room: it is enrolled once other batches have
        shown what they really cost."""
        over = _over(self._balances_of(stage), worst)
        if over or self._waiting:
            self.missed = worst
            self.reached = over[0] if over else self.reached
        return not (over or self._waiting)

    async def borrow(self, stage: str, worst: Amount) -> bool:
        """True if the worst case of a task in a batch fits once a lender made room."""
        over = _over(self._balances_of(stage), worst)
        if self.lender is None or self._waiting:
            return False
        if over and not await self.lender.lend(over, worst, urgent=False):
            return False
        return self.has_room(stage, worst)

    def load(self, batch: int, stage: str, worst: Amount) -> None:
        """Reserves an amount until a batch is ingested, even if it does not fit: an earlier
        invocation may have submitted the batch."""
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
        """Returns the budgets in which calls of a stage count."""
        return tuple(balance for balance in self.balances if balance.holds_for(stage))

    def ingested(self, batch: int, real: Amount) -> None:
        """Replaces the reservation of a batch that ended by what it cost."""
        reservation = self._batches.pop(batch, None)
        if reservation is not None:
            for balance in reservation.balances:
                balance.batches -= 1
            self.settle(reservation, real)

    def elsewhere(self, balance: BudgetBalance) -> Amount:
        """Returns what other processes hold of a budget."""
        if self.lender is not None:
            return self.lender.elsewhere(balance)[0]
        return NOTHING

    def stop_at_limit(self, what: str) -> None:
        """Stops the run, as nothing can make room for what did not fit: a call, or a batch."""
        name = self.reached.name if self.reached is not None else "budget"
        if self.lender is not None and self.reached is not None:
            others = self.lender.of_others(self.reached)
        else:
            others = ""
        self._stop_signal.end(
            StopReason.LIMIT, f"the {name} is used up: the next {what} might exceed it{others}"
        )


def _over(balances: Iterable[BudgetBalance], worst: Amount) -> list[BudgetBalance]:
    """Returns the budgets into which so much more does not fit."""
    return [balance for balance in balances if balance.would_exceed(worst)]


def is_free(call: Call) -> bool:
    """True if a call costs nothing: it was refused, or never left. A time-out may have cost
    something, even that of a gateway (504)."""
    return (
        call.cost is None
        and call.usage.input_tokens is None
        and not call.answered
        and not call.ambiguous
    )


def counted(call: Call, worst: Amount) -> tuple[Amount, Amount]:
    """Returns the amount that a call which ended counts as, and the part of it that is not known
    for sure: its reported usage counts, and the worst case for what was not reported."""
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
    """Makes the budgets of a plan's run and of its stages, which count over all invocations of a
    run, each with what was spent of it before. `lost_calls`: calls of earlier invocations that may
    have been billed and left nothing. Each of them counts at the mean cost of known calls, and in
    every budget that it may belong to, since its stage is unknown."""
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
    """Adds what was spent of them to balances, and returns these."""
    calls = [count for count in counts if count.outcome == "call"]
    for balance in balances:
        _load(balance, [count for count in calls if balance.holds_for(count.stage)], lost_calls)
    return balances


def _load(balance: BudgetBalance, counts: Iterable[Count], lost_calls: int) -> None:
    """Sets what was spent of a budget, by the counts of the calls that belong to it."""
    known = unconfirmed = priced = NOTHING
    for count in counts:
        amount = Amount(count.cost, count.input_tokens + count.output_tokens, count.tasks)
        held = Amount(count.held_cost, count.held_tokens)
        known = known.plus(amount)
        unconfirmed = unconfirmed.plus(held)
        # refused calls cost nothing, and say nothing about the cost of others
        if count.cost or amount.tokens or held.usd or held.tokens:
            priced = priced.plus(amount).plus(held)
    lost = Amount(0.0, 0, lost_calls)
    if priced.calls:
        share = lost_calls / priced.calls
        lost = Amount(priced.usd * share, math.ceil(priced.tokens * share), lost_calls)
    balance.unconfirmed = unconfirmed.plus(lost)
    balance.spent = known.plus(balance.unconfirmed)
    balance.unpriced = 0 if priced.calls else lost_calls


def facts(balances: Iterable[BudgetBalance]) -> list[dict[str, object]]:
    """Reports budgets for summaries: what is spent of them, and as `held` what calls without an
    answer may have spent."""
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


# The most that one call can cost: what a budget reserves before it is sent.


class WorstCase:
    """The most that a call to one model can cost, at the dearest hour of the day. It is made once
    for each model. The price library is asked for dollars only, and once a day."""

    def __init__(
        self, model: PlannedModel, *, in_dollars: bool, batch: bool = False,
        session: tuple[int, int] | None = None, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """`batch`: for requests in batches. `session`: a call is an agent's session, of so many
        calls with so many tokens at most."""
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
        """Returns the worst case of sending `body`. Its bytes bound its tokens: byte-level
        tokenizers make no more tokens than bytes, and the JSON around a message is longer than the
        few marks that a chat template puts in its place. Nothing is taken as cached."""
        calls, size = self._session or (1, len(body))
        usd = 0.0
        for start, given, made in self._price_steps():
            if size >= start:
                usd = calls * (size * given + self._max_tokens * made) / 1_000_000
        return Amount(usd, calls * (size + self._max_tokens), 1)

    def _price_steps(self) -> tuple[tuple[int, float, float], ...]:
        """Returns the highest prices of today; a run may take days."""
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
    """Returns, for calls from so many input tokens on, the most that an input and an output token
    can cost, in USD per million. A call may turn out smaller than it could be, so a step that is
    cheaper does not count."""
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
