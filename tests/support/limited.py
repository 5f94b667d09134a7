"""Models of servers with limits, and workers that ask them through a real lane, both in virtual time."""

import asyncio
import math
from dataclasses import dataclass, field
from random import Random

from agac.core.errors import ErrorType
from agac.core.types import Fault, FaultKind, Finish, RateState, Reply, Usage
from agac.engine.ask.rate_limiter import Lane
from agac.engine.ask.retry_policy import RetryAfter, decide
from agac.engine.stop_rules import StopSignal
from support.virtual import loop_time

REPLY = Reply(text="", finish=Finish.STOP, usage=Usage(), model="m")


@dataclass
class Limited:
    """A server with a bucket of `burst` requests that gains `rate` a second, and room for `room` at once.

    It answers after `latency` seconds and refuses after `trip`. `headers`: "none", or as of the moment in which a call
    was let in ("early") or answered ("late"). `noise`: the share that is refused for no reason.
    """

    rate: float = math.inf
    burst: float = 20.0
    room: int | None = None
    latency: float = 0.5
    spread: float = 0.0
    trip: float = 0.002
    says_when: bool = True
    headers: str = "none"
    noise: float = 0.0
    noise_is_trouble: bool = False
    window: float = 0.0
    level: float = field(init=False)
    filled: float | None = None
    inside: int = 0
    most_inside: int = 0
    accepted: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.level = self.burst
        self.random = Random(1)

    def lift(self, rate: float, burst: float) -> None:
        self.fill()
        self.rate, self.burst = rate, burst

    def fill(self) -> None:
        now = loop_time()
        if self.filled is None:
            self.filled = now
        if self.window:
            if now // self.window > self.filled // self.window:
                self.level = self.burst
        elif not math.isinf(self.rate):
            self.level = min(self.burst, self.level + (now - self.filled) * self.rate)
        self.filled = now

    def rates(self) -> RateState | None:
        if self.headers == "none" or math.isinf(self.rate):
            return None
        self.fill()
        reset = self.window - loop_time() % self.window if self.window else (self.burst - self.level) / self.rate
        return RateState(int(self.level), math.ceil(reset * 1000) / 1000)

    async def ask(self) -> tuple[Reply | Fault, RateState | None]:
        await asyncio.sleep(self.trip * self.random.uniform(0.5, 1.5) / 2)
        self.fill()
        if self.noise and self.random.random() < self.noise:
            return await (self.give_up() if self.noise_is_trouble else self.refuse(0.1))
        if not math.isinf(self.rate) and self.level < 1 - 1e-9:
            if self.window:
                return await self.refuse(self.window - loop_time() % self.window)
            return await self.refuse((1 - self.level) / self.rate)
        if self.room is not None and self.inside >= self.room:
            return await self.give_up()
        if not math.isinf(self.rate):
            self.level -= 1
        self.accepted.append(loop_time())
        rates = self.rates()
        self.inside += 1
        self.most_inside = max(self.inside, self.most_inside)
        await asyncio.sleep(self.latency * self.random.lognormvariate(0, self.spread))
        self.inside -= 1
        if self.headers == "late":
            rates = self.rates()
        await asyncio.sleep(self.trip / 2)
        return REPLY, rates

    async def give_up(self) -> tuple[Fault, RateState | None]:
        self.refused.append(loop_time())
        await asyncio.sleep(self.trip / 2)
        return Fault(FaultKind.PAUSE, ErrorType.PROVIDER_ERROR, "overloaded", status=503), self.rates()

    async def refuse(self, delay: float) -> tuple[Fault, RateState | None]:
        self.refused.append(loop_time())
        rates = self.rates()
        await asyncio.sleep(self.trip / 2)
        asked = math.ceil(delay * 1000) / 1000 if self.says_when else None
        fault = Fault(FaultKind.PAUSE, ErrorType.RATE_LIMITED, "slow down", delay=asked, status=429)
        return fault, rates


@dataclass
class Crowd:
    """`workers` that ask `calls` questions through one lane, each until it is answered, as the engine does it."""

    lane: Lane
    stop_signal: StopSignal
    server: Limited
    calls: int
    most_tries: int = 0
    started: float = 0.0

    async def work(self, workers: int) -> None:
        self.started = loop_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while self.calls > 0:
            self.calls -= 1
            tries = 0
            while await self._call(tries := tries + 1):
                pass
            self.most_tries = max(tries, self.most_tries)

    async def _call(self, attempt: int) -> bool:
        turn = await self.lane.enter(100)
        try:
            answer, rates = await self.server.ask()
        finally:
            self.lane.leave()
        if rates is not None:
            self.lane.observe(turn, rates)
        self.lane.heard(turn, answer)
        if isinstance(answer, Reply):
            return False
        again = decide(answer, attempt, 0, self.server.random.random())
        assert isinstance(again, RetryAfter), "given up"
        self.lane.pause(again.delay)
        await self.stop_signal.sleep(again.delay)
        return True


def crowd(server: Limited, calls: int, most: int) -> Crowd:
    stop_signal = StopSignal()
    lane = Lane(most, rpm=None, tpm=None, clock=loop_time, stop_signal=stop_signal)
    return Crowd(lane, stop_signal, server, calls)


def per_second(times: list[float], since: float, until: float) -> float:
    """How many fell into that time, a second."""
    return sum(since <= at < until for at in times) / (until - since)
