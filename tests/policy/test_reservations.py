"""Reservations: whatever calls cost, fail or are cut off, no budget is ever exceeded and nobody waits for ever."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.soak import campaign

from agac.engine.ask.limits import Amount, BudgetBalance, BudgetLimiter, RowBudgetExceeded
from agac.engine.stop_rules import RunStopped, StopReason, StopSignal
from agac.spec.rules import Budget

CALLS = 256


def never_exceeded(balances: list[BudgetBalance]) -> None:
    for balance in balances:
        taken = balance.spent.plus(balance.reserved)
        cap = balance.budget
        assert cap.usd is None or taken.usd <= cap.usd + 1e-9
        assert cap.tokens is None or taken.tokens <= cap.tokens
        assert cap.calls is None or taken.calls <= cap.calls


def nothing_could_make_room(limiter: BudgetLimiter) -> None:
    """A run may stop at its limit only when nothing is under way, and what is spent alone leaves too little."""
    assert limiter.reached is not None
    assert limiter.reached.reservations == 0
    assert limiter.reached.would_exceed(limiter.missed)


@campaign(test=15, soak=500)
@given(
    seed=st.integers(0, 2**32),
    usd=st.one_of(st.none(), st.floats(0.5, 40)),
    tokens=st.one_of(st.none(), st.integers(100, 40_000)),
    calls=st.one_of(st.none(), st.integers(1, 400)),
    stage=st.one_of(st.none(), st.integers(1, 200)),
)
def test_256_calls_at_a_time_never_exceed_any_budget(
    seed: int, usd: float | None, tokens: int | None, calls: int | None, stage: int | None
) -> None:
    chance = random.Random(seed)

    async def program() -> None:
        stop_signal = StopSignal()
        run = [BudgetBalance("run", Budget(usd, tokens, calls)), BudgetBalance("project", Budget(calls=350))]
        balances = [*run, *([BudgetBalance("stage", Budget(calls=stage), "a")] if stage else [])]
        limiter = BudgetLimiter(stop_signal, balances, Budget(usd=0.8, calls=2))
        sent = 0
        stop_signal.when_stopped(lambda: nothing_could_make_room(limiter))

        async def call(index: int) -> None:
            nonlocal sent
            row = limiter.row_balance()
            for _ in range(chance.randrange(1, 4)):
                if chance.random() < 0.05:
                    chance.choice(tasks).cancel()
                worst = Amount(chance.uniform(0.01, 0.4), chance.randrange(10, 400), 1)
                try:
                    reservation = await limiter.reserve("ab"[index % 2], row, worst)
                except RowBudgetExceeded:
                    assert row is not None
                    assert row.would_exceed(worst)
                    return
                never_exceeded([*balances, *reservation.balances])
                sent += 1
                share = chance.choice([0.0, 0.1, 0.5, 1.0])  # refused, cheap, dear, ambiguous
                try:
                    for _ in range(chance.randrange(3)):
                        await asyncio.sleep(0)
                except asyncio.CancelledError:
                    limiter.settle(reservation, worst)
                    raise
                limiter.settle(reservation, Amount(worst.usd * share, int(worst.tokens * share), 1))
                never_exceeded(balances)

        tasks = [asyncio.ensure_future(call(index)) for index in range(CALLS)]
        for task in chance.sample(tasks, 8):
            asyncio.get_running_loop().call_soon(task.cancel)
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert {type(end) for end in ended} <= {type(None), RunStopped, asyncio.CancelledError}
        if any(isinstance(end, RunStopped) for end in ended):
            assert stop_signal.stop is StopReason.LIMIT
            assert limiter.reached is not None
        else:
            assert stop_signal.stop is None
        assert [(balance.reservations, balance.reserved) for balance in balances] == [(0, Amount())] * len(
            balances
        )  # nothing is left set aside
        assert {balance.spent.calls for balance in run} == {sent}

    asyncio.run(program())


def run_of(budget: Budget) -> tuple[StopSignal, BudgetBalance, BudgetLimiter]:
    stop_signal, balance = StopSignal(), BudgetBalance("run", budget)
    return stop_signal, balance, BudgetLimiter(stop_signal, [balance], Budget(calls=1))


async def asking(limiter: BudgetLimiter, usd: float) -> asyncio.Task[Any]:
    """A call that wants so much set aside, as soon as it may be."""
    task = asyncio.ensure_future(limiter.reserve("a", None, Amount(usd, 0, 1)))
    await asyncio.sleep(0)
    return task


async def test_a_call_waits_for_corrections_until_nothing_can_make_room_and_a_large_amount_is_not_overtaken() -> None:
    stop_signal, balance, limiter = run_of(Budget(usd=1.0))
    first = await limiter.reserve("a", None, Amount(0.9, 0, 1))
    second = await asking(limiter, 0.5)
    assert not second.done()
    limiter.settle(first, Amount(0.1, 0, 1))
    assert (await second).worst == Amount(0.5, 0, 1)
    assert stop_signal.stop is None
    third = await asking(limiter, 0.5)
    limiter.settle(await second, Amount(0.5, 0, 1))
    with pytest.raises(RunStopped):
        await third
    assert (stop_signal.stop, limiter.reached) == (StopReason.LIMIT, balance)
    assert balance.spent == Amount(0.6, 0, 2)
    _, _, limiter = run_of(Budget(usd=1.0))
    first = await limiter.reserve("a", None, Amount(0.5, 0, 1))
    large = await asking(limiter, 0.9)
    small = await asking(limiter, 0.1)
    assert not small.done()
    limiter.settle(first, Amount(0.0, 0, 1))
    await large
    await small


async def test_an_interrupt_wakes_who_waits() -> None:
    stop_signal, _, limiter = run_of(Budget(usd=1.0))
    await limiter.reserve("a", None, Amount(1.0, 0, 1))
    waiting = await asking(limiter, 0.1)
    stop_signal.interrupt()
    with pytest.raises(RunStopped):
        await waiting
