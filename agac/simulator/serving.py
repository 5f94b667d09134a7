"""A model of an inference server: slots, how fast prompts are read and answers written, and what of them is cached.
Times are seconds of any clock: an engine can be stepped through in no time; `submit` runs it by the loop's clock."""

from __future__ import annotations

import asyncio
import heapq
import json
import math
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from agac.simulator import replies
from agac.simulator.chat import chat_completion, invalid
from agac.simulator.replies import ApiError, Kind, ModelAnswer, ModelCall, canonical
from agac.simulator.settings import SimulatorError, is_number

CHARACTERS = 4  # of a token
LIFETIMES = {
    "5m": 300.0,
    "1h": 3600.0,
}  # seconds that an entry of Anthropic's cache lives after its last use
LEAST_CACHED = 1024  # tokens of the shortest prompt that a hosted provider caches
HOSTED_BLOCK = 128
LOGGED = 20_000
LOOK_BACK = 20  # blocks before a breakpoint among which Anthropic looks for an entry


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """How fast an engine is: tokens of prompts a second (`prefill`); seconds that a `step` takes, that each sequence in
    it that is being written adds (`decode`), and that a request takes before it queues (`overhead`); tokens of a step
    (`budget`), of a `block` of the cache and of all of this (`cache`). As an H100 with a model of 32B."""

    prefill: float = 8300
    step: float = 0.033
    decode: float = 0.0006
    overhead: float = 0.06
    budget: float = 8192
    block: float = 16
    cache: float = math.inf


def parse_speed(text: str) -> EngineSpeed | None:
    """The engine that `--serving` describes, None for `hosted`; raises SimulatorError."""
    if text in ("h100", "hosted"):
        return EngineSpeed() if text == "h100" else None
    with suppress(TypeError, ValueError):
        pairs = [part.split("=") for part in text.split(",")]
        speed = EngineSpeed(**{name: float(number) for name, number in pairs})
        least = min(speed.step, speed.decode, speed.overhead)
        if least >= 0 and min(speed.prefill, speed.budget, speed.block, speed.cache) >= 1:
            return speed
    forms = "h100, hosted, or prefill, step, decode, overhead, budget, block and cache, as in prefill=4000,step=0.02"
    raise SimulatorError([f"serving {text!r} is none that the simulator knows; write {forms}"])


@dataclass(eq=False, slots=True)
class ServedRequest:
    """One request and what became of it; a time is None as long as it is not known. `blocks` name the prompt's
    beginnings; `unread` and `unwritten` are the tokens of the prompt and of the answer that are still to come. `then`
    is queued when it ends: a prefill of the next turn."""

    conversation: str
    queued: float
    prompt_tokens: int
    unwritten: int = 1
    blocks: tuple[bytes, ...] = ()
    slot: int = -1
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    cached_tokens: int = 0
    unread: int = 0
    priority: float = 0.0
    then: ServedRequest | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class FixedSlots:
    """Slots (None: no end of them) for requests that take as long as is said of each, first come first served."""

    def __init__(self, slots: int | None) -> None:
        self.slots = slots or math.inf
        self.free: list[tuple[float, int]] = []

    def serve(self, request: ServedRequest, seconds: float) -> float:
        """Gives a request a slot; the moment at which it ends."""
        at, request.slot = request.queued, len(self.free)
        if self.free and (self.free[0][0] <= at or request.slot >= self.slots):
            at, request.slot = heapq.heappop(self.free)
        request.started = max(at, request.queued)
        ended = request.first_token = request.ended = request.started + seconds
        heapq.heappush(self.free, (ended, request.slot))
        return ended


class ServingEngine:
    """An engine that works in steps: each sequence whose prompt is read gets a token, the rest of the step's tokens go
    to prompts, begun ones first; requests come in while some are left, with `ranked` those of a higher priority first.
    What a step has read can be hit once it has ended, until there is no room for it. Nothing is preempted."""

    def __init__(
        self, speed: EngineSpeed, slots: int | None = None, *, ranked: bool = False
    ) -> None:
        self.speed, self.block, self.now, self.ranked = speed, int(speed.block), 0.0, ranked
        self.cache: dict[bytes, None] = {}  # what was read last stands last
        self.waiting: deque[ServedRequest] = deque()
        self.running: list[ServedRequest] = []
        self.free = list(range(slots or 256))
        self.prompt_tokens = self.cached_tokens = self.written = 0
        self.task: asyncio.Task[None] | None = None

    def step(self) -> list[ServedRequest]:
        """Does the next step and moves `now` to its end; gives the requests that were worked on, none without work."""
        speed, ready = (
            self.speed,
            self.waiting[0].queued + self.speed.overhead if self.waiting else math.inf,
        )
        if not self.running and ready < math.inf:
            self.now = max(self.now, ready)
        writing = [one for one in self.running if not one.unread]
        budget, reading = int(speed.budget) - len(writing), list[tuple[ServedRequest, int]]()
        queue = (one for one in self.running if one.unread)
        while budget > 0 and (one := next(queue, None) or self.admit()) is not None:
            reading.append((one, min(budget, one.unread)))
            budget -= reading[-1][1]
        if writing or reading:
            self.now += (
                speed.step
                + sum(n for _, n in reading) / speed.prefill
                + speed.decode * len(writing)
            )
        for one, tokens in reading:
            one.unread -= tokens
            self.keep(one.blocks[: (one.prompt_tokens - one.unread) // self.block])
            if not one.unread:
                one.first_token, one.blocks = self.now, ()
                writing.append(one)
        for one in writing:
            one.unwritten -= 1
            self.written += 1
            if one.unwritten <= 0:
                one.ended = self.now
                self.running.remove(one)
                heapq.heappush(self.free, one.slot)
                if one.then is not None:
                    one.then.queued = self.now
                    self.waiting.append(one.then)
        return writing + [one for one, _ in reading if one.unread]

    def keep(self, blocks: tuple[bytes, ...]) -> None:
        """Caches blocks. Those that were not read for longest make room, of one prompt the last ones first."""
        if self.speed.cache < math.inf:
            for name in blocks:
                self.cache.pop(name, None)
        self.cache.update(dict.fromkeys(reversed(blocks)))
        while len(self.cache) * self.block > self.speed.cache:
            del self.cache[next(iter(self.cache))]

    def admit(self) -> ServedRequest | None:
        """Gives the next request a slot, if it is there by now; what is cached of its prompt need not be read."""
        if not (
            self.free and self.waiting and self.waiting[0].queued + self.speed.overhead <= self.now
        ):
            return None
        there = (
            [one for one in self.waiting if one.queued + self.speed.overhead <= self.now]
            if self.ranked
            else ()
        )
        one = max(there, key=lambda one: one.priority, default=self.waiting[0])
        self.waiting.remove(one)
        if (
            one.priority < 0 and self.now - one.queued > 60
        ):  # seconds until Dynamo gives up a next turn's prefill
            return self.admit()
        one.slot, one.started = heapq.heappop(self.free), self.now
        hit = (
            next(
                (i for i, name in enumerate(one.blocks) if name not in self.cache), len(one.blocks)
            )
            * self.block
        )
        one.cached_tokens = min(hit, one.prompt_tokens - 1)
        one.unread = one.prompt_tokens - one.cached_tokens
        self.prompt_tokens += one.prompt_tokens
        self.cached_tokens += one.cached_tokens
        self.running.append(one)
        return one

    def submit(self, request: ServedRequest) -> None:
        """Queues a request, to be served in real time: its events are set when it has begun and when it is done."""
        self.waiting.append(request)
        if self.task is None:
            self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while worked := self.step():
            await sleep_until(self.now)
            for request in worked:
                for event, at in (
                    (request.begun, request.first_token),
                    (request.done, request.ended),
                ):
                    if at is not None:
                        event.set()
        self.task = None

    def metrics(self) -> str:
        """What vLLM, SGLang and Dynamo tell of themselves, under the names of all."""
        prompt, cached, written = self.prompt_tokens, self.cached_tokens, self.written
        told = {
            "vllm:prefix_cache_queries_total": prompt, "vllm:prefix_cache_hits_total": cached,
            "vllm:prompt_tokens_total": prompt, "vllm:generation_tokens_total": written,
            "vllm:num_requests_running": len(self.running), "vllm:num_requests_waiting": len(self.waiting),
            "sglang:num_running_reqs": len(self.running), "sglang:num_queue_reqs": len(self.waiting),
            "sglang:prompt_tokens_total": prompt, "sglang:generation_tokens_total": written,
            "sglang:cached_tokens_total": cached, "dynamo_frontend_input_sequence_tokens_sum": prompt,
            "dynamo_frontend_cached_tokens_sum": cached,
            'sglang:realtime_tokens_total{mode="prefill_compute"}': prompt - cached,
        }  # fmt: skip
        return "".join(f"{name} {value}\n" for name, value in told.items())


async def sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))


def prompt_parts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of a prompt in a model's order, each with the lifetime of the cache entry to end there, or none."""
    for name in ("tools", "system", "instructions", "messages", "input"):
        value = data.get(name) or ()
        for item in [value] if isinstance(value, str) else value:
            content = item.get("content") if isinstance(item, dict) else None
            for block in content if isinstance(content, list) else [content or item]:
                text, mark = block, None
                if isinstance(block, dict):
                    rest = {key: one for key, one in block.items() if key != "cache_control"}
                    mark = block.get("cache_control")
                    text = block["text"] if block.get("type") == "text" else canonical(rest)
                yield f"{text}\n", mark.get("ttl", "5m") if isinstance(mark, dict) else ""


PromptEnds = list[tuple[bytes, int, str]]
"""Ends of prompts: the name of all that is before, its tokens, and the lifetime of an entry there, empty for none."""


def prompt_ends(data: Mapping[str, Any], block: int | None) -> tuple[int, PromptEnds]:
    """How many tokens a prompt is, and its ends: after each `block` of tokens, or else (None) after its parts."""
    parts = [(text.encode("utf-8", "replace"), ttl) for text, ttl in prompt_parts(data)]
    length, at, ends = sum(len(text) for text, _ in parts), 0, PromptEnds()
    if block is not None:
        whole, size = b"".join(text for text, _ in parts), block * CHARACTERS
        parts = [(whole[start : start + size], "5m") for start in range(0, length - size + 1, size)]
    digest = blake2b(f"{data['model']}/{data.get('prompt_cache_key')}/".encode(), digest_size=12)
    for text, ttl in parts:
        digest.update(text)
        at += len(text)
        ends.append((digest.digest(), at // CHARACTERS, ttl))
    return max(1, length // CHARACTERS), ends


def next_turn(call: ModelCall, answer: ModelAnswer, block: int) -> ServedRequest:
    """A prefill of what the next turn begins with: this request and its answer, as clients send it back."""
    said = chat_completion(call, answer)["choices"][0]["message"]
    said = {name: value for name, value in said.items() if value is not None or name == "content"}
    size, ends = prompt_ends({**call.data, "messages": [*call.data["messages"], said]}, block)
    return ServedRequest("", 0.0, size, 1, tuple(name for name, _, _ in ends), priority=-1)


class PromptCache:
    """A hosted provider's cache: an entry can be read once the first answer begins, until unused for its lifetime."""

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[float, float]] = {}

    def look_up(
        self, call: ModelCall, size: int, ends: PromptEnds, now: float
    ) -> tuple[ModelCall, dict[bytes, str]]:
        """The request, of so many tokens, with those read and written of them; entries to keep when it is answered."""
        marked = [
            index for index, (_, tokens, ttl) in enumerate(ends) if ttl and tokens >= LEAST_CACHED
        ]
        looked = (
            end
            for index in reversed(marked)
            for end in reversed(ends[max(0, index - LOOK_BACK) : index + 1])
        )
        since_until = (
            (tokens, *self.entries.get(name, (math.inf, 0.0))) for name, tokens, _ in looked
        )
        read = next((tokens for tokens, since, until in since_until if since <= now < until), 0)
        written, at = dict[str, int](), read
        for _, tokens, ttl in (ends[index] for index in marked):
            written[ttl] = written.get(ttl, 0) + max(0, tokens - at)
            at = max(at, tokens)
        call = replace(call, prompt_tokens=size, cached_tokens=read, cache_written=written)
        return call, {ends[index][0]: ends[index][2] for index in marked}

    def keep(self, entries: Mapping[bytes, str], now: float) -> None:
        """Makes entries readable, or live longer."""
        for name, ttl in entries.items():
            self.entries[name] = (
                min(now, self.entries.get(name, (now, 0))[0]),
                now + LIFETIMES.get(ttl, 300.0),
            )


HINTS: dict[str, Kind] = {
    "osl": replies.COUNT, "speculative_prefill": replies.TRUTH, "latency_sensitivity": (is_number, "a number"),
    "priority": (lambda value: is_number(value, int), "an integer"),
}  # fmt: skip
"""What Dynamo takes in `nvext.agent_hints`: `latency_sensitivity` in 1.0 alone, `priority` from 1.1 on."""


def take_hints(body: bytes, version: str) -> tuple[bytes, dict[str, Any]]:
    """A request without `nvext`, and the hints in it. Raises ApiError for what a Dynamo of this version refuses."""
    if b'"nvext"' not in body:
        return body, {}
    data, other = (
        replies.read_object(body),
        "priority" if version == "1.0" else "latency_sensitivity",
    )
    told = _checked(data.pop("nvext", {}), "nvext", {"agent_hints": replies.OBJECT})
    kinds = {name: kind for name, kind in HINTS.items() if name != other}
    return json.dumps(data).encode(), _checked(
        told.get("agent_hints", {}), "nvext.agent_hints", kinds
    )


def _checked(told: Any, place: str, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    if not isinstance(told, dict):
        raise invalid(place, "an object")
    if unknown := sorted(told.keys() - kinds.keys()):
        raise ApiError(
            400, f"{place}: unknown field `{unknown[0]}`, expected one of {', '.join(kinds)}"
        )
    for name, wanted in replies.wrong_parameters(told, {}, kinds):
        raise invalid(f"{place}.{name}", wanted)
    return told


class ModelServer:
    """What the model of a simulator takes: time, by an engine, in slots or neither, and tokens from a cache."""

    def __init__(self, serving: str | None, slots: int | None, dynamo: str | None = None) -> None:
        if dynamo is not None and not re.fullmatch(r"1\.\d{1,3}", dynamo):
            raise SimulatorError(
                [
                    f"dynamo {dynamo!r} is no version whose hints the simulator knows; write 1.0 to 1.6"
                ]
            )
        speed = parse_speed(serving) if serving else None
        self.engine = ServingEngine(speed, slots, ranked=dynamo is not None) if speed else None
        self.slots = FixedSlots(slots) if slots else None
        self.prompts = PromptCache() if serving else None
        self.log: deque[ServedRequest] = deque(maxlen=LOGGED)

    async def serve(
        self, call: ModelCall, answer: ModelAnswer, seconds: float, *, marked: bool
    ) -> tuple[ModelCall, Callable[[], Awaitable[Any]] | None]:
        """Serves a request that takes so many `seconds` besides; gives it with what was cached of its prompt, and what
        to wait for before the second half of a stream. `marked`: breakpoints say what is cached."""
        clock = asyncio.get_running_loop().time
        if seconds > 0 and (self.engine is not None or self.slots is None):
            await asyncio.sleep(seconds)
        if self.prompts is None and self.slots is None:
            return call, None
        request = ServedRequest(call.conversation.hex(), clock(), call.prompt_tokens, answer.tokens)
        if self.prompts is not None:
            request.prompt_tokens, ends = prompt_ends(
                call.data, self.engine.block if self.engine else HOSTED_BLOCK
            )
            request.blocks = tuple(name for name, _, _ in ends) if self.engine else ()
            request.priority = float(
                call.hints.get("priority", call.hints.get("latency_sensitivity", 0))
            )
            if self.engine and call.hints.get("speculative_prefill"):
                request.then = next_turn(call, answer, self.engine.block)
            ends = prompt_ends(call.data, None)[1] if marked else ends
            call, entries = self.prompts.look_up(call, request.prompt_tokens, ends, clock())
        self.log.append(request)
        if self.engine is not None:
            self.engine.submit(request)
            await (request.begun if call.stream else request.done).wait()
            call = call if marked else replace(call, cached_tokens=request.cached_tokens)
        elif self.slots is not None:
            await sleep_until(self.slots.serve(request, seconds))
        if self.prompts is not None:
            self.prompts.keep(entries, clock())
        return call, request.done.wait if self.engine is not None else None

    def report(self) -> dict[str, Any]:
        """The log, in the order in which the requests came in; times are epoch seconds."""
        offset = time.time() - asyncio.get_running_loop().time()
        found = []
        for one in self.log:
            at = {
                name: getattr(one, name) for name in ("queued", "started", "first_token", "ended")
            }
            shown = {
                name: getattr(one, name)
                for name in ("conversation", "slot", "prompt_tokens", "cached_tokens")
            }
            found.append(
                shown | {name: None if when is None else when + offset for name, when in at.items()}
            )
        return {"requests": found}

    def forget(self) -> None:
        self.log.clear()
        for cache in (self.prompts and self.prompts.entries, self.engine and self.engine.cache):
            if cache:
                cache.clear()
