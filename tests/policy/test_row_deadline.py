"""How long a row may take, told in virtual time."""

import asyncio

import pytest
from support.virtual import loop_time

from agac.engine.rate_limiter import CallLimit
from agac.engine.retry_policy import RowDeadline, RowDeadlineExceeded

pytestmark = pytest.mark.virtual_time


async def test_the_time_begins_with_the_first_call() -> None:
    deadline = RowDeadline(10.0, loop_time)
    await asyncio.sleep(100)
    assert not deadline.over
    assert deadline.left() == 10.0
    await asyncio.sleep(4)
    assert deadline.left() == 6.0
    assert deadline.outlasts(5.9)
    assert not deadline.outlasts(6.0)
    await asyncio.sleep(6)
    assert deadline.over
    with pytest.raises(RowDeadlineExceeded):
        deadline.left()


async def test_waiting_for_a_turn_is_unbounded_before_the_first_call_and_bounded_after_it() -> None:
    deadline = RowDeadline(10.0, loop_time)
    began = loop_time()
    assert await deadline.wait(asyncio.sleep(1000, "mine")) == "mine"
    deadline.left()
    assert await deadline.wait(asyncio.sleep(9, "mine")) == "mine"
    with pytest.raises(RowDeadlineExceeded):
        await deadline.wait(asyncio.sleep(1000))
    assert loop_time() == began + 1010


async def test_who_gives_up_waiting_takes_nobodys_turn() -> None:
    slots, deadline = CallLimit(1), RowDeadline(10.0, loop_time)
    deadline.left()
    await slots.enter()
    with pytest.raises(RowDeadlineExceeded):
        await deadline.wait(slots.enter())
    slots.leave()
    await asyncio.wait_for(slots.enter(), 1)


async def test_without_a_bound_nothing_is_ever_over() -> None:
    deadline = RowDeadline(None, loop_time)
    assert deadline.left() is None
    await deadline.wait(asyncio.sleep(1e6))
    assert deadline.left() is None
    assert deadline.outlasts(1e9)
    assert not deadline.over
