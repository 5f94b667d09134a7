"""A model of an inference server: slots, how fast it reads and writes, and what it caches.

Times are seconds of any clock: an engine can be stepped through in no time; `submit` runs it by
the loop's clock.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from agac.simulator.chat import chat_completion
from agac.simulator.kinds import JsonObject
from agac.simulator.model_calls import CacheUse, ModelCall
from agac.simulator.prompt_cache import PromptCache, PromptEnds, prompt_ends
from agac.simulator.replies import ModelAnswer
from agac.simulator.settings import SimulatorError

HOSTED_BLOCK = 128
MAX_LOGGED = 20_000
MAX_SEQUENCES = 256
PREFILL_PATIENCE_S = 60  # until Dynamo gives up a next turn's prefill


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """The speed of an engine: by default that of an H100 with a model of 32B."""

    prefill: float = 8300
    """tokens of prompts a second"""
    step: float = 0.033
    """seconds that a step takes"""
    decode: float = 0.0006
    """seconds that each sequence in it that is being written adds"""
    overhead: float = 0.06
    """seconds that a request takes before it queues"""
    budget: float = 8192
    """tokens of a step"""
    block: float = 16
    """tokens of a block of the cache"""
    cache: float = math.inf
    """tokens of the cache"""

    @property
    def is_possible(self) -> bool:
        times = (self.step, self.decode, self.overhead)
        amounts = (self.prefill, self.budget, self.block, self.cache)
        return min(times) >= 0 and min(amounts) >= 1


def parse_speed(text: str) -> EngineSpeed | None:
    """Returns the engine that `--serving` describes, None for `hosted`; raises SimulatorError."""
    if text == "h100":
        return EngineSpeed()
    if text == "hosted":
        return None
    with suppress(TypeError, ValueError):
        pairs = [part.split("=") for part in text.split(",")]
        speed = EngineSpeed(**{name: float(number) for name, number in pairs})
        if speed.is_possible:
            return speed
    forms = (
        "h100, hosted, or prefill, step, decode, overhead, budget, block and cache, "
        "as in prefill=4000,step=0.02"
    )
    raise SimulatorError([f"serving {text!r} is none that the simulator knows; write {forms}"])


@dataclass(eq=False, slots=True)
class ServedRequest:
    """One request and what became of it; a time is None as long as it is unknown."""

    conversation: str
    queued: float
    prompt_tokens: int
    unwritten: int = 1
    """tokens of the answer that are to come"""
    blocks: tuple[bytes, ...] = ()
    """names of the prompt's beginnings"""
    slot: int = -1
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    cached_tokens: int = 0
    unread: int = 0
    """tokens of the prompt that are to be read"""
    priority: float = 0.0
    then: ServedRequest | None = None
    """a prefill of the next turn, which is queued when this ends"""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class FixedSlots:
    """Slots for requests that take as long as is said of each, first come first served."""

    def __init__(self, slots: int | None) -> None:
        self.slots = slots or math.inf
        self.free: list[tuple[float, int]] = []
        """when each slot is free"""

    def serve(self, request: ServedRequest, seconds: float) -> float:
        """Gives a request a slot; returns the moment at which it ends."""
        free_at = request.queued
        request.slot = len(self.free)
        is_full = request.slot >= self.slots
        if self.free and (is_full or self.free[0][0] <= free_at):
            free_at, request.slot = heapq.heappop(self.free)
        request.started = max(free_at, request.queued)
        request.ended = request.started + seconds
        request.first_token = request.ended
        heapq.heappush(self.free, (request.ended, request.slot))
        return request.ended


class ServingEngine:
    """An engine that works in steps.

    Each sequence whose prompt is read gets a token; the rest of the step's tokens are read of
    prompts, begun ones first. Requests come in while some are left, with `ranked` those of a
    higher priority first. What a step has read can be hit once it has ended, until there is no
    room for it. Nothing is preempted.
    """

    def __init__(
        self, speed: EngineSpeed, slots: int | None = None, *, ranked: bool = False
    ) -> None:
        self.speed = speed
        self.block = int(speed.block)
        self.now = 0.0
        self.ranked = ranked
        self.cache: dict[bytes, None] = {}
        """names of blocks: the last one was read last"""
        self.waiting: deque[ServedRequest] = deque()
        self.running: list[ServedRequest] = []
        self.free = list(range(slots or MAX_SEQUENCES))
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.written = 0
        self.task: asyncio.Task[None] | None = None

    def step(self) -> list[ServedRequest]:
        """Does the next step and moves `now` to its end.

        Returns the requests that were worked on, none without work.
        """
        if not self.running and self.waiting:
            self.now = max(self.now, self.ready_at(self.waiting[0]))
        writing = [request for request in self.running if not request.unread]
        reading = self.plan_reading(int(self.speed.budget) - len(writing))
        if writing or reading:
            tokens = sum(count for _, count in reading)
            decoding = self.speed.decode * len(writing)
            self.now += self.speed.step + tokens / self.speed.prefill + decoding
        for request, count in reading:
            self.read(request, count)
            if not request.unread:
                writing.append(request)
        for request in writing:
            self.write(request)
        return writing + [request for request, _ in reading if request.unread]

    def ready_at(self, request: ServedRequest) -> float:
        return request.queued + self.speed.overhead

    def plan_reading(self, budget: int) -> list[tuple[ServedRequest, int]]:
        """Returns the prompts of a step, each with how many tokens of it are read."""
        reading: list[tuple[ServedRequest, int]] = []
        begun = iter([request for request in self.running if request.unread])
        while budget > 0:
            request = next(begun, None) or self.admit()
            if request is None:
                break
            count = min(budget, request.unread)
            reading.append((request, count))
            budget -= count
        return reading

    def read(self, request: ServedRequest, count: int) -> None:
        request.unread -= count
        self.keep(request.blocks[: (request.prompt_tokens - request.unread) // self.block])
        if not request.unread:
            request.first_token = self.now
            request.blocks = ()

    def write(self, request: ServedRequest) -> None:
        """Writes a token, which may be the last."""
        request.unwritten -= 1
        self.written += 1
        if request.unwritten > 0:
            return
        request.ended = self.now
        self.running.remove(request)
        heapq.heappush(self.free, request.slot)
        if request.then is not None:
            request.then.queued = self.now
            self.waiting.append(request.then)

    def keep(self, blocks: tuple[bytes, ...]) -> None:
        """Caches blocks.

        Those that were not read for longest make room, of one prompt the last ones first.
        """
        if self.speed.cache < math.inf:
            for name in blocks:
                self.cache.pop(name, None)
        self.cache.update(dict.fromkeys(reversed(blocks)))
        while len(self.cache) * self.block > self.speed.cache:
            del self.cache[next(iter(self.cache))]

    def admit(self) -> ServedRequest | None:
        """Gives the next request a slot, if it is there; cached tokens need not be read."""
        if not self.free or not self.waiting or self.ready_at(self.waiting[0]) > self.now:
            return None
        request = self.waiting[0]
        if self.ranked:
            ready = [other for other in self.waiting if self.ready_at(other) <= self.now]
            request = max(ready, key=lambda other: other.priority)
        self.waiting.remove(request)
        if request.priority < 0 and self.now - request.queued > PREFILL_PATIENCE_S:
            return self.admit()
        request.slot = heapq.heappop(self.free)
        request.started = self.now
        hits = 0
        while hits < len(request.blocks) and request.blocks[hits] in self.cache:
            hits += 1
        request.cached_tokens = min(hits * self.block, request.prompt_tokens - 1)
        request.unread = request.prompt_tokens - request.cached_tokens
        self.prompt_tokens += request.prompt_tokens
        self.cached_tokens += request.cached_tokens
        self.running.append(request)
        return request

    def submit(self, request: ServedRequest) -> None:
        """Queues a request, to be served in real time.

        Its events are set when it has begun and when it is done.
        """
        self.waiting.append(request)
        if self.task is None:
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while worked := self.step():
            await sleep_until(self.now)
            for request in worked:
                if request.first_token is not None:
                    request.begun.set()
                if request.ended is not None:
                    request.done.set()
        self.task = None

    def metrics(self) -> str:
        """Returns what vLLM, SGLang and Dynamo tell of themselves, under the names of all."""
        prompt = self.prompt_tokens
        cached = self.cached_tokens
        metrics = {
            "vllm:prefix_cache_queries_total": prompt,
            "vllm:prefix_cache_hits_total": cached,
            "vllm:prompt_tokens_total": prompt,
            "vllm:generation_tokens_total": self.written,
            "vllm:num_requests_running": len(self.running),
            "vllm:num_requests_waiting": len(self.waiting),
            "sglang:num_running_reqs": len(self.running),
            "sglang:num_queue_reqs": len(self.waiting),
            "sglang:prompt_tokens_total": prompt,
            "sglang:generation_tokens_total": self.written,
            "sglang:cached_tokens_total": cached,
            "dynamo_frontend_input_sequence_tokens_sum": prompt,
            "dynamo_frontend_cached_tokens_sum": cached,
            'sglang:realtime_tokens_total{mode="prefill_compute"}': prompt - cached,
        }
        return "".join(f"{name} {value}\n" for name, value in metrics.items())


async def sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))


def next_turn(call: ModelCall, answer: ModelAnswer, block: int) -> ServedRequest:
    """Returns a prefill of what the next turn begins with.

    That is this request and its answer, as clients send it back.
    """
    message = chat_completion(call, answer)["choices"][0]["message"]
    sent = {key: message[key] for key in message if message[key] is not None or key == "content"}
    size, ends = prompt_ends({**call.data, "messages": [*call.data["messages"], sent]}, block)
    return ServedRequest("", 0.0, size, 1, block_names(ends), priority=-1)


def block_names(ends: PromptEnds) -> tuple[bytes, ...]:
    return tuple(name for name, _, _ in ends)


Rest = Callable[[], Awaitable[Any]] | None
"""Waits for the second half of a stream."""


class ModelServer:
    """The time that the model of a simulator takes, and the tokens from its cache.

    The time is by an engine, in slots, or neither.
    """

    def __init__(self, serving: str | None, slots: int | None, dynamo: str | None = None) -> None:
        if dynamo is not None and not re.fullmatch(r"1\.\d{1,3}", dynamo):
            problem = f"dynamo {dynamo!r} is no version whose hints the simulator knows"
            raise SimulatorError([f"{problem}; write 1.0 to 1.6"])
        speed = parse_speed(serving) if serving else None
        self.engine: ServingEngine | None = None
        if speed is not None:
            self.engine = ServingEngine(speed, slots, ranked=dynamo is not None)
        self.slots = FixedSlots(slots) if slots else None
        self.prompts = PromptCache() if serving else None
        self.log: deque[ServedRequest] = deque(maxlen=MAX_LOGGED)

    async def serve(
        self, call: ModelCall, answer: ModelAnswer, seconds: float, *, marked: bool
    ) -> tuple[ModelCall, Rest]:
        """Serves a request that takes so many `seconds` besides.

        Returns it with what was cached of its prompt. `marked`: breakpoints say what is cached.
        """
        clock = asyncio.get_running_loop().time
        if seconds > 0 and (self.engine is not None or self.slots is None):
            await asyncio.sleep(seconds)
        if self.prompts is None and self.slots is None:
            return call, None
        request = ServedRequest(call.conversation.hex(), clock(), call.prompt_tokens, answer.tokens)
        self.log.append(request)
        entries: dict[bytes, str] = {}
        if self.prompts is not None:
            ends = self.read_prompt(request, call, answer)
            if marked:
                _, ends = prompt_ends(call.data, None)
            call, entries = self.prompts.look_up(call, request.prompt_tokens, ends, clock())
        rest: Rest = None
        if self.engine is not None:
            self.engine.submit(request)
            await (request.begun if call.stream else request.done).wait()
            if not marked:
                cache = CacheUse(request.cached_tokens, call.cache.written)
                call = replace(call, cache=cache)
            rest = request.done.wait
        elif self.slots is not None:
            await sleep_until(self.slots.serve(request, seconds))
        if self.prompts is not None:
            self.prompts.keep(entries, clock())
        return call, rest

    def read_prompt(
        self, request: ServedRequest, call: ModelCall, answer: ModelAnswer
    ) -> PromptEnds:
        """Fills in what a request's prompt is; returns the ends of its blocks."""
        block = self.engine.block if self.engine else HOSTED_BLOCK
        request.prompt_tokens, ends = prompt_ends(call.data, block)
        hints = call.hints
        request.priority = float(hints.get("priority") or hints.get("latency_sensitivity") or 0)
        if self.engine is not None:
            request.blocks = block_names(ends)
            if hints.get("speculative_prefill"):
                request.then = next_turn(call, answer, block)
        return ends

    def report(self) -> JsonObject:
        """Returns the log, in the order in which requests came in; times are epoch seconds."""
        offset = time.time() - asyncio.get_running_loop().time()

        def epoch(moment: float | None) -> float | None:
            return None if moment is None else moment + offset

        names = ("conversation", "slot", "prompt_tokens", "cached_tokens")
        times = ("queued", "started", "first_token", "ended")
        requests = [
            {name: getattr(request, name) for name in names}
            | {name: epoch(getattr(request, name)) for name in times}
            for request in self.log
        ]
        return {"requests": requests}

    def forget(self) -> None:
        """Empties the log and the caches."""
        self.log.clear()
        if self.prompts is not None:
            self.prompts.entries.clear()
        if self.engine is not None:
            self.engine.cache.clear()
