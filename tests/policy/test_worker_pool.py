"""Who gets which calls and functions, and what becomes of them when a worker is lost or silent: in virtual time."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict
from support.virtual import loop_time, run_virtually

from agac.core.errors import AgacError, ErrorType, RowError
from agac.core.types import Fault, FaultKind
from agac.engine.stop_rules import RunStopped
from agac.engine.workers.pool import (
    BEAT,
    SILENT,
    CallItem,
    Chunk,
    Ended,
    FunctionItem,
    WorkerFacts,
    WorkerLost,
    WorkerPool,
)
from agac.providers.http import HttpReply
from agac.spec.python_code import FunctionRef
from agac.spec.rules import Timeout

REPLY = HttpReply(200, CIMultiDict(), b"{}", 1.0)
FUNCTION: Any = FunctionRef  # which nobody calls here


@dataclass(eq=False)
class Hand:
    """A worker that takes `seconds` for each item, dies of items in `poison`, and is silent while `stopped`."""

    name: str
    seconds: float = 1.0
    poison: set[int] = field(default_factory=set)
    taken: list[Chunk] = field(default_factory=list)
    stopped: bool = False
    gone: bool = False
    starts: int = 0
    cannot: AgacError | None = None

    def __post_init__(self) -> None:
        self.ended: list[Ended] = []
        self.news, self.death = asyncio.Event(), asyncio.Event()
        self.awake = asyncio.Event()
        self.awake.set()

    def stop(self) -> None:
        self.awake.clear()

    def die(self, *, forever: bool = False) -> None:
        self.gone = self.gone or forever
        self.death.set()

    async def hello(self) -> WorkerFacts:
        if self.cannot is not None:
            raise self.cannot
        if self.gone:
            raise WorkerLost("it is gone")
        await asyncio.sleep(0.1)
        self.starts += 1
        self.ended = []
        self.death = asyncio.Event()
        return WorkerFacts("here", 1, "", "", (), time.time())

    async def take(self, chunk: Chunk) -> None:
        if self.cannot is not None:
            raise self.cannot
        if self.death.is_set():
            raise WorkerLost("it is dead")
        await self.awake.wait()
        self.taken.append(chunk)
        for item in chunk.items:
            asyncio.get_running_loop().call_later(self.seconds, self._done, item, self.death)

    def _done(self, item: Any, death: asyncio.Event) -> None:
        if item.number in self.poison:
            death.set()
        elif not death.is_set():
            self.ended.append(Ended(item.number, REPLY if isinstance(item, CallItem) else {"n": item.number}))
            self.news.set()

    async def collect(self) -> list[Ended]:
        death = self.death
        waits = [asyncio.ensure_future(one.wait()) for one in (self.news, death)]
        await asyncio.wait(waits, timeout=BEAT, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        await self.awake.wait()
        if death.is_set():
            raise WorkerLost("it died")
        self.news.clear()
        found, self.ended = self.ended, []
        return found


@dataclass
class Seen:
    """What a pool told of itself."""

    pool: WorkerPool
    hands: Sequence[Hand]
    lines: list[tuple[str, str, int]]
    waits: list[float]
    stopped: list[AgacError]
    late: list[int] = field(default_factory=list)

    async def call(self, *, again: int = 20, total: float = 600.0) -> Any:
        """A call as the policy of retries makes it: what came at last, and how many were made."""
        mark = str(next(self.pool.numbers)).encode()
        tried, came = 0, None
        while tried < again:
            tried += 1
            number = next(self.pool.numbers)
            item = CallItem(number, "local", "body", b"{}", Timeout(total=total))
            came = await self.pool.call(item, mark, number, lambda _, number=number: self.late.append(number))
            if isinstance(came, HttpReply) or came.kind is FaultKind.TASK:
                break
        return came, tried

    async def function(self, **more: Any) -> Any:
        return await self.pool.function(FunctionItem(next(self.pool.numbers), FUNCTION, {}), **more)

    @property
    def sizes(self) -> list[int]:
        return [len(chunk.items) for hand in self.hands for chunk in hand.taken]


def working(
    scenario: Callable[[Seen], Coroutine[Any, Any, Any]], count: int = 2, *, chunk: int = 10, most: int = 40, **how: Any
) -> Seen:
    """Runs a scenario with so many workers."""

    async def whole() -> Seen:
        lines, waits, stopped = list[tuple[str, str, int]](), list[float](), list[AgacError]()
        hands = [Hand(f"w{number}", **how) for number in range(count)]

        async def write(chunk: str, worker: str, found: Sequence[tuple[int, int]]) -> None:
            await asyncio.sleep(0.001)
            lines.extend((chunk, worker, number) for number, _ in found)

        @asynccontextmanager
        async def start() -> AsyncIterator[Sequence[Hand]]:
            yield hands

        pool = WorkerPool(start, chunk=chunk, most=most, write=write, wait=waits.append, stop=stopped.append)
        seen = Seen(pool, hands, lines, waits, stopped)
        running = asyncio.create_task(pool.run())
        await scenario(seen)
        running.cancel()
        await asyncio.wait({running})
        return seen

    return run_virtually(whole())


def test_items_that_are_ready_go_together_and_are_shared_out() -> None:
    async def scenario(seen: Seen) -> None:
        await seen.call()  # so that all are there
        await asyncio.sleep(1)
        assert all(came is REPLY for came, _ in await asyncio.gather(*(seen.call() for _ in range(20))))

    seen = working(scenario)
    assert sorted(seen.sizes) == [1, 10, 10]
    assert len(seen.lines) == 21
    assert len({chunk for chunk, _, _ in seen.lines}) == 3


def test_no_worker_has_more_than_its_slots() -> None:
    async def scenario(seen: Seen) -> None:
        calls = [asyncio.create_task(seen.call()) for _ in range(100)]
        await asyncio.sleep(0.9)
        assert max(len(post.has) for post in seen.pool._posts) <= 20
        await asyncio.gather(*calls)

    assert sum(working(scenario, chunk=10, most=40).sizes) == 100


@given(st.integers(1, 30), st.integers(0, 29), st.integers(1, 3))
def test_the_item_that_ends_workers_stands_alone_at_last(items: int, which: int, count: int) -> None:
    """Whatever it is with, no other fails; and it costs no more workers than it takes to find it."""
    which %= items

    async def scenario(seen: Seen) -> None:
        for hand in seen.hands:
            hand.poison = {which + 1}
        ended = await asyncio.gather(*(seen.function() for _ in range(items)))
        failed = [number for number, one in enumerate(ended) if isinstance(one, RowError)]
        assert failed == [which]
        assert ended[which].type is ErrorType.WORKER_LOST
        assert sum(hand.starts for hand in seen.hands) <= count + 6

    working(scenario, count)


def test_the_call_that_ends_workers_fails_and_others_are_made_again() -> None:
    async def scenario(seen: Seen) -> None:
        async def deadly() -> Any:
            mark = b"deadly"
            for _ in range(20):
                number = next(seen.pool.numbers)
                for hand in seen.hands:
                    hand.poison.add(number)
                came = await seen.pool.call(
                    CallItem(number, "local", "body", b"", Timeout()), mark, number, lambda _: None
                )
                if came.kind is FaultKind.TASK:
                    return came
            return None

        lost, *others = await asyncio.gather(deadly(), *(seen.call() for _ in range(19)))
        assert lost.type is ErrorType.WORKER_LOST
        assert lost.ambiguous
        assert all(came is REPLY for came, _ in others)
        assert max(tried for _, tried in others) <= 6

    working(scenario)


def test_a_silent_worker_loses_its_items_and_its_late_replies_are_heard() -> None:
    async def scenario(seen: Seen) -> None:
        first, _ = seen.hands
        await seen.call()
        await asyncio.sleep(1)
        calls = [asyncio.create_task(seen.call()) for _ in range(20)]
        await asyncio.sleep(0.5)
        began = loop_time()
        first.stop()
        assert all(came is REPLY for came, _ in await asyncio.gather(*calls))
        assert SILENT <= loop_time() - began <= SILENT + BEAT + 10
        assert not seen.late
        first.awake.set()
        await asyncio.sleep(1)
        assert len(seen.late) == 10
        await asyncio.gather(*(seen.call() for _ in range(20)))
        assert sum(len(chunk.items) for chunk in first.taken) >= 20  # it is used again

    working(scenario)


def test_a_call_that_its_worker_forgot_is_given_up_after_its_bounds() -> None:
    async def scenario(seen: Seen) -> None:
        began = loop_time()
        came, tried = await seen.call(again=1, total=5.0)
        assert (came.type, came.ambiguous, tried) == (ErrorType.TIMEOUT, True, 1)
        assert 35 <= loop_time() - began <= 40

    working(scenario, seconds=1000.0)


def test_a_worker_that_forgot_what_it_had_for_itself_gets_work_again() -> None:
    async def scenario(seen: Seen) -> None:
        (hand,) = seen.hands
        call = asyncio.create_task(seen.call(again=3, total=5.0))
        for number in (1, 2):
            while len(hand.taken) < number:
                await asyncio.sleep(0.5)
            hand.die()
        came, tried = await call
        assert (came.type, tried) == (ErrorType.TIMEOUT, 3)
        hand.seconds = 1.0
        assert await asyncio.wait_for(seen.call(), 60) == (REPLY, 1)

    working(scenario, 1, seconds=1000.0)


def test_what_was_not_begun_in_time_is_given_out_again() -> None:
    async def scenario(seen: Seen) -> None:
        (hand,) = seen.hands
        call = asyncio.create_task(seen.call())
        await asyncio.sleep(0.5)
        number = hand.taken[0].items[0].number
        hand.ended.append(Ended(number, time.time() + 3600, unsent=True))
        hand.news.set()
        assert await call == (REPLY, 1)
        assert [item.number for chunk in hand.taken for item in chunk.items] == [number, number]
        assert [line[2] for line in seen.lines] == [number, number]
        until = [chunk.expires_at for chunk in hand.taken]
        assert until[1] - until[0] == pytest.approx(3600, abs=60), "the worker's clock was set"

    working(scenario, 1, seconds=2.0)


def test_a_function_that_may_not_be_called_again_is_lost_with_its_worker() -> None:
    async def scenario(seen: Seen) -> None:
        calls = [asyncio.create_task(seen.function(again=again)) for again in (True, False)]
        await asyncio.sleep(0.5)
        for hand in seen.hands:
            hand.die()
        repeated, lost = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(lost, WorkerLost)
        assert isinstance(repeated, dict)

    working(scenario)


def test_it_waits_for_workers_says_so_and_uses_those_that_come() -> None:
    async def scenario(seen: Seen) -> None:
        for hand in seen.hands:
            hand.gone = True
        call = asyncio.create_task(seen.call())
        began = loop_time()
        await asyncio.sleep(300)
        assert not call.done()
        assert len(seen.waits) == 5
        assert sum(hand.starts for hand in seen.hands) == 0
        seen.hands[1].gone = False
        assert (await call)[0] == REPLY
        assert loop_time() - began <= 300 + 61 + 2
        await asyncio.sleep(2)
        assert seen.waits[-1] == 0.0  # nobody is told any longer that it waits

    working(scenario)


def test_where_there_will_be_no_workers_nothing_waits() -> None:
    async def scenario(seen: Seen) -> None:
        calls = [asyncio.create_task(seen.call(again=1)) for _ in range(60)]
        await asyncio.sleep(0.5)
        for hand in seen.hands:
            hand.cannot = AgacError("the cluster is gone")
            hand.die()
        came = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(one) for one in came} <= {RunStopped, tuple}
        assert all(one[0].ambiguous for one in came if isinstance(one, tuple))
        assert seen.stopped
        with pytest.raises(RunStopped):
            await seen.call()

    working(scenario)


def test_where_the_cluster_goes_while_calls_are_given_out_nothing_waits() -> None:
    async def scenario(seen: Seen) -> None:
        await seen.call()
        for hand in seen.hands:
            hand.cannot = AgacError("the cluster is gone")
        came = await asyncio.gather(*(seen.call(again=1) for _ in range(60)), return_exceptions=True)
        assert {type(one) for one in came} <= {RunStopped, tuple}

    assert {str(error) for error in working(scenario).stopped} == {"the cluster is gone"}


def test_faults_come_back_as_they_are() -> None:
    refused = Fault(FaultKind.PAUSE, ErrorType.RATE_LIMITED, "slow down")

    async def scenario(seen: Seen) -> None:
        (hand,) = seen.hands
        call = asyncio.create_task(seen.pool.call(CallItem(1, "a", "body", b"", Timeout()), b"", 1, lambda _: None))
        await asyncio.sleep(0.5)
        hand.ended.append(Ended(1, refused))
        hand.news.set()
        assert await call == refused

    working(scenario, 1, seconds=5.0)


def test_a_function_is_begun_when_a_worker_is_there_and_before_it_has_it() -> None:
    async def scenario(seen: Seen) -> None:
        (hand,) = seen.hands
        hand.gone = True  # so that it has to be waited for
        begun = list[int]()

        async def begin() -> None:
            assert not hand.taken
            begun.append(1)

        async def refuse() -> None:
            raise AgacError("it was given up")

        refused = asyncio.create_task(seen.function(begin=refuse))
        called = asyncio.create_task(seen.function(begin=begin))
        await asyncio.sleep(1.0)
        assert not begun
        hand.gone = False
        assert await called == {"n": 2}
        with pytest.raises(AgacError, match="it was given up"):
            await refused
        assert begun == [1]
        assert [item.number for chunk in hand.taken for item in chunk.items] == [2]

    working(scenario, 1)


def test_what_no_worker_has_is_given_back_when_the_run_stops() -> None:
    async def scenario(seen: Seen) -> None:
        (hand,) = seen.hands
        hand.gone = True
        called = asyncio.create_task(seen.function())
        await asyncio.sleep(1.0)
        seen.pool.give_back()
        with pytest.raises(RunStopped):
            await called
        hand.gone = False
        await asyncio.sleep(10.0)
        assert not hand.taken

    working(scenario, 1)
