"""Who waits for whom: slots, exposure and lanes, by a clock that the test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agac.core.errors import ErrorType
from agac.core.types import Fault, FaultKind, RateState
from agac.engine.control import Control, Halted
from agac.engine.limits import Exposure, Lane, Slots
from agac.engine.policy import LONGEST_WAIT


class Clock(Control):
    """A clock that jumps to the end of every sleep, and notes how long each was."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.check()
        self.slept.append(round(seconds, 6))
        self.now += seconds
        await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def lane(clock: Clock, slots: int = 100, *, rpm: int | None = None, tpm: int | None = None) -> Lane:
    return Lane(slots, rpm=rpm, tpm=tpm, clock=clock, control=clock)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def sent_at(lane: Lane, clock: Clock, *tokens: int) -> list[float]:
    times = []
    for count in tokens:
        await lane.enter(count)
        times.append(round(clock() - 100, 6))
        lane.leave()
    return times


def test_a_lane_without_limits_never_waits() -> None:
    async def test() -> None:
        clock = Clock()
        assert await sent_at(lane(clock), clock, *[1000] * 5) == [0.0] * 5
        assert clock.slept == []

    run(test())


def test_requests_a_minute_are_spaced_out_evenly() -> None:
    async def test() -> None:
        clock = Clock()
        assert await sent_at(lane(clock, rpm=120), clock, 1, 1, 1, 1) == [0.0, 0.5, 1.0, 1.5]

    run(test())


def test_tokens_a_minute_space_out_by_size() -> None:
    async def test() -> None:
        clock = Clock()
        assert await sent_at(lane(clock, tpm=60_000), clock, 500, 2000, 1000, 1) == [0.0, 0.5, 2.5, 3.5]

    run(test())


def test_the_tighter_of_both_rates_counts() -> None:
    async def test() -> None:
        clock = Clock()
        assert await sent_at(lane(clock, rpm=60, tpm=60_000), clock, 10, 3000, 10) == [0.0, 1.0, 4.0]

    run(test())


def test_an_idle_minute_is_not_saved_up() -> None:
    async def test() -> None:
        clock = Clock()
        one = lane(clock, rpm=60)
        await sent_at(one, clock, 1)
        clock.now += 3600
        first, second, third = await sent_at(one, clock, 1, 1, 1)
        assert (second - first, third - second) == (1.0, 1.0)

    run(test())


def test_a_pause_holds_everyone_and_ends() -> None:
    async def test() -> None:
        clock = Clock()
        one = lane(clock)
        one.pause(7.0)
        assert await sent_at(one, clock, 1, 1) == [7.0, 7.0]

    run(test())


def test_the_longest_pause_counts() -> None:
    async def test() -> None:
        clock = Clock()
        one = lane(clock)
        one.pause(7.0)
        one.pause(2.0)
        assert await sent_at(one, clock, 1) == [7.0]
        one.pause(LONGEST_WAIT * 50)
        assert await sent_at(one, clock, 1) == [7.0 + LONGEST_WAIT]

    run(test())


@pytest.mark.parametrize(
    ("rates", "waits"),
    [
        (None, 0.0),
        (RateState(), 0.0),
        (RateState(remaining_requests=1, reset_requests=9.0), 0.0),
        (RateState(remaining_requests=0, reset_requests=9.0), 9.0),
        (RateState(remaining_requests=0), 0.0),
        (RateState(remaining_tokens=0, reset_tokens=3.0), 3.0),
        (RateState(0, 2.0, 0, 5.0), 5.0),
        (RateState(5, 2.0, 0, 5.0), 5.0),
    ],
)
def test_a_lane_pauses_when_headers_say_that_nothing_is_left(rates: RateState | None, waits: float) -> None:
    async def test() -> None:
        clock = Clock()
        one = lane(clock)
        one.observe(rates)
        assert await sent_at(one, clock, 1) == [waits]

    run(test())


def test_a_lane_that_stops_gives_its_slot_back() -> None:
    async def test() -> None:
        clock = Clock()
        one = lane(clock, 1)
        clock.fail(Fault(FaultKind.FATAL, ErrorType.PROVIDER_ERROR, "no"))
        for _ in range(3):
            with pytest.raises(Halted):
                await one.enter(1)
        other = lane(Clock(), 1)
        await other.enter(1)

    run(test())


def test_a_lane_holds_no_more_than_its_slots() -> None:
    async def test() -> None:
        clock = Clock()
        one = lane(clock, 2)
        inside, most = 0, 0

        async def call() -> None:
            nonlocal inside, most
            await one.enter(1)
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
            one.leave()

        await asyncio.gather(*(call() for _ in range(20)))
        assert most == 2

    run(test())


def test_slots_go_to_whoever_has_waited_longest() -> None:
    async def test() -> None:
        slots = Slots(1)
        order: list[int] = []

        async def user(number: int) -> None:
            await slots.take()
            order.append(number)
            await asyncio.sleep(0)
            slots.give()

        await slots.take()
        users = [asyncio.ensure_future(user(number)) for number in range(5)]
        await settle()
        slots.give()
        late = asyncio.ensure_future(user(99))  # asks in the very moment in which a slot is free
        await asyncio.gather(*users, late)
        assert order == [0, 1, 2, 3, 4, 99]

    run(test())


def test_one_who_gives_and_takes_at_once_does_not_overtake() -> None:
    async def test() -> None:
        slots = Slots(1)
        order: list[str] = []

        async def greedy() -> None:
            for _ in range(3):
                await slots.take()
                order.append("greedy")
                await asyncio.sleep(0)
                slots.give()

        async def patient() -> None:
            await slots.take()
            order.append("patient")
            slots.give()

        await asyncio.gather(greedy(), patient())
        assert order[:2] == ["greedy", "patient"]

    run(test())


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_cancelled_one_loses_no_slot(moment: str) -> None:
    async def test() -> None:
        slots = Slots(1)
        await slots.take()
        first = asyncio.ensure_future(slots.take())
        second = asyncio.ensure_future(slots.take())
        await settle()
        if moment == "before":
            first.cancel()
            slots.give()
        else:
            slots.give()
            first.cancel()
        await asyncio.wait_for(second, 5)
        assert first.cancelled()
        slots.give()
        await asyncio.wait_for(slots.take(), 5)

    run(test())


def entered(exposure: Exposure, calls: int) -> Callable[[], Coroutine[Any, Any, list[asyncio.Task[None]]]]:
    async def start() -> list[asyncio.Task[None]]:
        tasks = [asyncio.ensure_future(exposure.enter()) for _ in range(calls)]
        await settle()
        return tasks

    return start


def test_calls_wait_until_earlier_ones_are_durable() -> None:
    async def test() -> None:
        exposure = Exposure(4)
        tasks = await entered(exposure, 7)()
        assert [task.done() for task in tasks] == [True] * 4 + [False] * 3
        exposure.leave(2)
        await settle()
        assert [task.done() for task in tasks] == [True] * 6 + [False]
        exposure.leave(1)
        await settle()
        assert all(task.done() for task in tasks)

    run(test())


def test_a_commit_of_many_calls_lets_no_more_in_than_the_limit() -> None:
    async def test() -> None:
        exposure = Exposure(3)
        first = await entered(exposure, 3)()
        waiting = await entered(exposure, 10)()
        exposure.leave(3)
        await settle()
        assert all(task.done() for task in first)
        assert sum(task.done() for task in waiting) == 3
        for task in waiting:
            task.cancel()

    run(test())
