"""Calls in threads: the event loop goes on, nobody waits for a call that hangs, and there are not too many of them."""

import asyncio
import threading
from typing import Any

import pytest

from agac.tools.processes import THREADS, open_function
from agac.tools.threads import IN_TIME, LATE, MIN_THREADS, Threads


def test_the_event_loop_goes_on_while_a_function_waits_for_it(tools: Any) -> None:
    tools.write(
        "tools/clean.py",
        "import threading\ngates = [threading.Event(), threading.Event()]\ndef f(row):\n"
        "    gates[row['mine']].set()\n    gates[row['other']].wait()\n    return row\n",
    )
    rows = [{"mine": 0, "other": 1}, {"mine": 1, "other": 0}]
    assert tools.calls(rows) == rows


async def test_a_call_that_hangs_can_be_cancelled_and_its_place_is_taken_by_another() -> None:
    gate = threading.Event()

    def function(number: int) -> int:
        if number < 0:
            gate.wait()
        return number

    threads = Threads(function, 2)
    hanging = [asyncio.create_task(threads.call(-1)) for _ in range(2)]
    waiting = asyncio.create_task(threads.call(5))
    await asyncio.sleep(0)
    while threads._waiting.qsize() > 1:  # until both are taken
        await asyncio.sleep(0.001)
    for call in hanging:
        call.cancel()
    done = await asyncio.gather(*hanging, return_exceptions=True)
    assert [type(one) for one in done] == [asyncio.CancelledError] * 2
    assert await asyncio.gather(waiting, *(threads.call(n) for n in range(20))) == [5, *range(20)]
    gate.set()
    while threads._left:
        await asyncio.sleep(0.001)
    threads.close()


async def test_a_call_that_is_cancelled_before_it_began_is_never_made() -> None:
    gate, made = threading.Event(), []

    def function(number: int) -> None:
        made.append(number)
        gate.wait()

    threads = Threads(function, 1)
    calls = [asyncio.create_task(threads.call(number)) for number in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    gate.set()
    await asyncio.gather(*calls, return_exceptions=True)
    threads.close()
    assert made == [0, 2]


async def test_no_more_calls_at_once_than_there_are_places() -> None:
    now, most = 0, 0
    lock = threading.Lock()

    def function(number: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1
        return number

    threads = Threads(function, 3)
    assert await asyncio.gather(*(threads.call(n) for n in range(500))) == list(range(500))
    threads.close()
    assert 1 <= most <= 3


async def test_threads_that_keep_the_loop_waiting_become_fewer_and_more_again() -> None:
    threads = Threads(lambda number: number, THREADS)
    for _ in range(30):
        threads._adapt(LATE * 2)
    assert threads._now_most == MIN_THREADS
    for _ in range(300):
        threads._adapt(IN_TIME / 2)
    assert threads._now_most == THREADS


def test_no_thread_is_left_when_a_function_is_closed(tools: Any) -> None:
    tools.write("tools/clean.py", "def f(row): return row\n")
    assert tools.gives({"a": 1}) == {"a": 1}
    for thread in threading.enumerate():
        if thread.name == "agac python stage":
            thread.join()


async def test_an_async_function_is_cancelled_with_its_call(tools: Any) -> None:
    tools.write(
        "tools/clean.py",
        "import asyncio\nseen = []\nasync def f(row):\n    try:\n        await asyncio.Event().wait()\n"
        "    finally:\n        seen.append(1)\nasync def g(row): return {'seen': len(seen)}\n",
    )
    async with open_function(tools.ref(), tools.root) as call:
        running = asyncio.create_task(call({}))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    async with open_function(tools.ref("tools/clean.py:g"), tools.root) as call:
        assert await call({}) == {"seen": 1}
