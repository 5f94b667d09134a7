"""Who waits for whom: slots, exposure and lanes, in virtual time."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.virtual import loop_time, run_virtually

from agac.core.errors import ErrorType
from agac.core.types import Fault, FaultKind, Finish, RateState, Reply, Usage
from agac.engine.ask.rate_limiter import CallLimit, Lane
from agac.engine.ask.retry_policy import MAX_RETRY_DELAY_S, RowDeadline, RowDeadlineExceeded
from agac.engine.stop_rules import RunStopped, StopSignal

FATAL = Fault(FaultKind.FATAL, ErrorType.PROVIDER_ERROR, "no")
REFUSED = Fault(FaultKind.PAUSE, ErrorType.RATE_LIMITED, "slow down", delay=0.1, status=429)
OVERLOADED = Fault(FaultKind.PAUSE, ErrorType.PROVIDER_ERROR, "overloaded", status=503)

pytestmark = pytest.mark.virtual_time
run = run_virtually


def lane(
    most: int = 100, *, rpm: int | None = None, tpm: int | None = None, stop_signal: StopSignal | None = None
) -> Lane:
    return Lane(most, rpm=rpm, tpm=tpm, clock=loop_time, stop_signal=stop_signal or StopSignal())


def reply(given: int | None, made: int | None) -> Reply:
    return Reply(text="", finish=Finish.STOP, usage=Usage(given, made), model="m")


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def sent_at(lane: Lane, *tokens: int) -> list[float]:
    start, times = loop_time(), []
    for count in tokens:
        await lane.enter(count)
        times.append(round(loop_time() - start, 6))
        lane.leave()
    return times


@pytest.mark.parametrize(
    ("limits", "tokens", "times"),
    [
        ({}, [1000] * 500, [0.0] * 500),
        ({"rpm": 120}, [1, 1, 1, 1], [0.0, 0.5, 1.0, 1.5]),
        ({"tpm": 60_000}, [500, 2000, 1000, 1], [0.0, 0.5, 2.5, 3.5]),
        ({"rpm": 60, "tpm": 60_000}, [10, 3000, 10], [0.0, 1.0, 4.0]),  # the tighter of both counts
    ],
    ids=["none", "requests", "tokens", "both"],
)
async def test_calls_are_spaced_out_by_the_limits_a_minute(limits: Any, tokens: list[int], times: list[float]) -> None:
    assert await sent_at(lane(**limits), *tokens) == times


async def test_a_lane_that_processes_share_keeps_to_its_part_and_gets_more_once_others_are_gone() -> None:
    shared = lane(8, rpm=600, tpm=60_000)
    shared.share(4)
    assert await sent_at(shared, 100, 100, 800, 0) == [0, 0.4, 0.8, 4.0]
    shared.share(1)
    assert await sent_at(shared, 0, 0, 0) == [0.38, 0.48, 0.58]  # the turn that was taken before stays


async def test_so_many_calls_at_once_as_a_lanes_part_is() -> None:
    shared = lane(8)
    shared.share(16)
    for expected in (1, 4):
        shared.share(8 // expected)
        waiting = [asyncio.ensure_future(shared.enter(0)) for _ in range(6)]
        await asyncio.sleep(5)
        assert (shared.in_flight, shared.most) == (expected, expected)
        shared.share(1)
        await asyncio.sleep(5)
        assert (shared.in_flight, [one.done() for one in waiting]) == (6, [True] * 6)
        for _ in waiting:
            shared.leave()


async def test_those_who_wait_together_are_spaced_out_too() -> None:
    one, start, times = lane(rpm=600), loop_time(), []

    async def call() -> None:
        await one.enter(1)
        times.append(round(loop_time() - start, 6))
        await asyncio.sleep(0.01)
        one.leave()

    await asyncio.gather(*(call() for _ in range(50)))
    assert times == [round(i / 10, 6) for i in range(50)]


async def test_an_idle_minute_is_not_saved_up() -> None:
    one = lane(rpm=60)
    await sent_at(one, 1)
    await asyncio.sleep(3600)
    assert await sent_at(one, 1, 1, 1) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("used", "third"),
    [((400, 600), 2.0), ((100, 100), 1.2), ((900, 2100), 4.0), ((None, 600), 2.0), ((400, None), 2.0)],
)
async def test_what_a_call_really_used_takes_the_place_of_what_was_expected(used: Any, third: float) -> None:
    one = lane(tpm=60_000)
    first = await one.enter(1000)
    one.leave()
    second = asyncio.ensure_future(one.enter(1000))
    await settle()
    one.heard(first, reply(*used))
    start = 1000.0
    assert round((await second).at - start, 6) == round(third - 1, 6)
    one.leave()
    assert round((await one.enter(1)).at - start, 6) == third


async def test_a_pause_holds_those_who_wait_already_and_the_longest_counts() -> None:
    one, start = lane(rpm=60), loop_time()
    await one.enter(1)
    waiting = asyncio.ensure_future(one.enter(1))
    await asyncio.sleep(0.5)
    one.pause(7.0)
    assert (await waiting).at - start == 7.5
    one = lane()
    one.pause(7.0)
    one.pause(2.0)
    assert await sent_at(one, 1, 1) == [7.0, 7.0]
    one.pause(MAX_RETRY_DELAY_S * 50)
    assert await sent_at(one, 1) == [MAX_RETRY_DELAY_S]


@pytest.mark.parametrize(
    ("rates", "waits"),
    [
        (RateState(), 0.0),
        (RateState(remaining_requests=1, reset_requests=9.0), 0.0),
        (RateState(remaining_requests=0, reset_requests=9.0), 9.0),
        (RateState(remaining_requests=0), 0.0),
        (RateState(remaining_tokens=0, reset_tokens=3.0), 3.0),
        (RateState(0, 2.0, 0, 5.0), 5.0),
        (RateState(5, 2.0, 0, 5.0), 5.0),
        (RateState(0, MAX_RETRY_DELAY_S * 2), MAX_RETRY_DELAY_S),
    ],
)
async def test_a_lane_pauses_when_headers_say_that_nothing_is_left(rates: RateState, waits: float) -> None:
    one = lane()
    turn = await one.enter(1)
    one.leave()
    one.observe(turn, rates)
    assert await sent_at(one, 1) == [waits]


async def test_no_more_is_sent_than_headers_say_is_left() -> None:
    one = lane()
    turns = [await one.enter(1) for _ in range(3)]
    one.leave()
    one.observe(turns[0], RateState(remaining_requests=4, reset_requests=9.0))
    assert await sent_at(one, 1, 1) == [0.0, 0.0]  # two of the four were sent before the answer came
    late = asyncio.ensure_future(one.enter(1))
    await asyncio.sleep(2.0)
    assert not late.done()
    one.observe(turns[1], RateState(remaining_requests=5, reset_requests=7.0))
    assert (await late).at == 1002.0
    assert await sent_at(one, 1, 1) == [0.0, 5.0]  # the reset of the last header


async def test_a_bucket_that_fills_is_not_waited_for_until_it_is_full() -> None:
    one = lane()
    for left, reset in ((40, 20.0), (20, 30.0), (1, 39.5)):  # one more every half second
        turn = await one.enter(1)
        one.leave()
        one.observe(turn, RateState(left, reset))
    assert (await sent_at(one, 1)) == [0.0]
    turn = await one.enter(1)
    one.leave()
    assert turn.at - 1000 == 0.5
    one.observe(turn, RateState(0, 40.0))
    assert await sent_at(one, 1) == [1.0]  # two more have come then
    one = lane()  # a header as old as its reset says nothing
    turn = await one.enter(1)
    await asyncio.sleep(5.0)
    one.leave()
    one.observe(turn, RateState(remaining_requests=0, reset_requests=1.0))
    assert await sent_at(one, 1, 1) == [0.0, 0.0]


async def test_a_run_that_stops_lets_nobody_in_any_more() -> None:
    stop_signal = StopSignal()
    one = lane(1, stop_signal=stop_signal)
    await one.enter(1)
    waiting = [asyncio.ensure_future(one.enter(1)) for _ in range(3)]
    await settle()
    stop_signal.fail(FATAL)
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in ended] == [RunStopped] * 3
    with pytest.raises(RunStopped):
        await one.enter(1)
    paused = lane(stop_signal=(interrupted := StopSignal()))
    paused.pause(600)
    waiting = [asyncio.ensure_future(paused.enter(1))]
    await asyncio.sleep(1)
    interrupted.interrupt()
    with pytest.raises(RunStopped):
        await waiting[0]
    assert loop_time() == 1001
    one = lane(1, stop_signal=(stop_signal := StopSignal()))
    await one.enter(1)
    waiting = [asyncio.ensure_future(one.enter(1))]
    await settle()
    one.leave()  # the place is handed over ...
    stop_signal.fail(FATAL)  # ... and the run stops before it is taken
    with pytest.raises(RunStopped):
        await waiting[0]
    assert one.in_flight == 0


async def test_calls_at_once_double_every_tenth_of_a_second_up_to_the_bound() -> None:
    one = lane(100)
    waiting = [asyncio.ensure_future(one.enter(1)) for _ in range(150)]
    inside = []
    for _ in range(6):
        await asyncio.sleep(0.0999)
        inside.append(one.in_flight)
        await asyncio.sleep(0.0001)
    assert inside[:4] == [pytest.approx(8 * 2 ** (i + 1), rel=0.15) for i in range(3)] + [100]
    assert inside[3:] == [100] * 3
    for task in waiting:
        task.cancel()


async def test_who_came_first_goes_first() -> None:
    one, order = lane(1), []

    async def call(number: int) -> None:
        await one.enter(1)
        order.append(number)
        await asyncio.sleep(0.01)
        one.leave()

    await asyncio.gather(*(call(number) for number in range(12)))
    assert order == list(range(12))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(1, 2000)),
        st.tuples(st.sampled_from(["leave", "cancel", "refuse", "overload"]), st.integers(0, 30)),
        st.tuples(st.sampled_from(["sleep", "pause"]), st.floats(0, 3)),
        st.tuples(st.just("header"), st.tuples(st.integers(0, 5), st.floats(0, 3))),
    ),
    max_size=80,
)


@given(most=st.integers(1, 40), rpm=st.sampled_from([None, 60, 6000]), tpm=st.sampled_from([None, 90_000]), steps=STEPS)
def test_nobody_is_lost_and_no_bound_is_passed(most: int, rpm: int | None, tpm: int | None, steps: Any) -> None:
    """Whatever happens in whatever order: a pause is kept, a bound is a bound, in the end everyone has had a turn."""

    async def test() -> None:
        one, tasks, inside, pauses = lane(most, rpm=rpm, tpm=tpm), [], [], []

        async def call(tokens: int) -> None:
            turn = await one.enter(tokens)
            assert not [1 for asked, over in pauses if asked < turn.at < over]
            inside.append(turn)
            assert len(inside) <= one.in_flight <= most

        for step, value in steps:
            match step:
                case "enter":
                    tasks.append(asyncio.ensure_future(call(value)))
                case "cancel" if tasks:
                    tasks[value % len(tasks)].cancel()
                    await asyncio.sleep(0) if value % 2 else None
                case "sleep":
                    await asyncio.sleep(value)
                case "pause":
                    one.pause(value)
                    pauses.append((loop_time(), loop_time() + value))
                case "leave" | "refuse" | "overload" | "header" if inside:
                    turn = inside.pop(0)
                    one.leave()
                    if step == "header":
                        one.observe(turn, RateState(*value))
                    elif step != "leave":
                        one.heard(turn, REFUSED if step == "refuse" else OVERLOADED)
            assert 0 <= one.in_flight <= most
        end = loop_time() + 3600
        while not all(task.done() for task in tasks) or inside:
            assert loop_time() < end, "somebody waits who is never let in"
            while inside:
                inside.pop()
                one.leave()
            await asyncio.sleep(0.05)
        assert one.in_flight == 0
        for task in tasks:
            assert task.cancelled() or task.exception() is None

    run(test())


async def test_slots_go_to_whoever_has_waited_longest() -> None:
    slots = CallLimit(1)
    order: list[int] = []

    async def user(number: int) -> None:
        await slots.enter()
        order.append(number)
        await asyncio.sleep(0)
        slots.leave()

    await slots.enter()
    users = [asyncio.ensure_future(user(number)) for number in range(5)]
    await settle()
    slots.leave()
    late = asyncio.ensure_future(user(99))  # asks in the very moment in which a slot is free
    await asyncio.gather(*users, late)
    assert order == [0, 1, 2, 3, 4, 99]


async def entered(exposure: CallLimit, calls: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(exposure.enter()) for _ in range(calls)]
    await settle()
    return tasks


async def test_calls_wait_until_earlier_ones_are_durable() -> None:
    exposure = CallLimit(4)
    tasks = await entered(exposure, 7)
    assert [task.done() for task in tasks] == [True] * 4 + [False] * 3
    exposure.leave(2)
    await settle()
    assert [task.done() for task in tasks] == [True] * 6 + [False]
    exposure.leave(1)
    await settle()
    assert all(task.done() for task in tasks)
    waiting = await entered(exposure, 10)
    exposure.leave(3)
    await settle()
    assert sum(task.done() for task in waiting) == 3, "no more than the commit made durable"
    for task in waiting:
        task.cancel()


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_cancelled_one_loses_no_place(moment: str) -> None:
    exposure = CallLimit(1)
    await exposure.enter()
    first, second = asyncio.ensure_future(exposure.enter()), asyncio.ensure_future(exposure.enter())
    await settle()
    if moment == "before":
        first.cancel()
        exposure.leave(1)
    else:
        exposure.leave(1)
        first.cancel()
    await asyncio.wait_for(second, 5)
    assert first.cancelled()
    exposure.leave(1)
    await asyncio.wait_for(exposure.enter(), 5)


async def test_long_pauses_are_reported_but_not_each_time() -> None:
    held = lane()
    assert [held.pause(seconds) for seconds in (1, 15, 30)] == [False, True, False]
    await asyncio.sleep(61)
    assert held.pause(15)


async def test_one_refusal_after_a_long_idle_time_does_not_hold_a_lane_for_hours() -> None:
    """What was sent in the hour before says nothing of what the server allows."""
    held = lane()
    for _ in range(3):
        turn = await held.enter(1)
        held.leave()
        held.heard(turn, reply(1, 1))
    await asyncio.sleep(3600)
    turn = await held.enter(1)
    held.leave()
    held.heard(turn, Fault(FaultKind.PAUSE, ErrorType.RATE_LIMITED, "slow down", status=429))
    before = loop_time()
    for _ in range(3):
        await held.enter(1)
        held.leave()
    assert loop_time() - before <= 3 / 0.4


async def test_a_row_waits_for_its_first_turn_as_long_as_it_takes_and_then_no_longer_than_its_time() -> None:
    deadline = RowDeadline(10.0, loop_time)
    began = loop_time()
    assert await deadline.wait(asyncio.sleep(1000, "mine")) == "mine"
    deadline.left()
    assert await deadline.wait(asyncio.sleep(9, "mine")) == "mine"
    with pytest.raises(RowDeadlineExceeded):
        await deadline.wait(asyncio.sleep(1000))
    assert loop_time() == began + 1010
    assert RowDeadline(None, loop_time).left() is None


def test_a_row_whose_timer_ends_a_moment_early_has_used_its_time_up() -> None:
    times = iter([100.0, 109.9, 109.998, 110.0])
    deadline = RowDeadline(10.0, lambda: next(times))
    assert deadline.left() == 10.0
    assert [deadline.over for _ in range(3)] == [False, True, True]
