"""Dynamo's hints in the simulator: what is taken and refused, what they change in an engine, and what they gain."""

import heapq
import math
from itertools import islice
from statistics import mean
from typing import Any, NamedTuple

import pytest

from agac.simulator.app import Simulator
from agac.simulator.dynamo_hints import take_hints
from agac.simulator.serving import EngineSpeed, ServedRequest, ServingEngine
from agac.simulator.settings import Settings, SimulatorError

PLAIN = EngineSpeed(prefill=1000, step=0.01, decode=0.001, overhead=0.0, budget=100, block=10)


def request(name: str, queued: float, prompt: int, tokens: int = 1, **more: Any) -> ServedRequest:
    blocks = tuple(b"%s-%d" % (name.encode(), n) for n in range(prompt // 10))
    return ServedRequest(name, queued, prompt, tokens, blocks, **more)


def run(engine: ServingEngine, *requests: ServedRequest) -> list[str]:
    """The names of requests in the order in which they got a slot."""
    engine.waiting.extend(requests)
    while engine.step():
        pass
    begun = sorted((one for one in requests if one.started is not None), key=lambda one: one.started or 0.0)
    return [one.conversation for one in begun]


@pytest.mark.parametrize(("ranked", "order"), [(False, "abcd"), (True, "cbad")])
def test_a_higher_priority_goes_first_among_those_that_wait(ranked: bool, order: str) -> None:
    late = request("d", 9.0, 20, priority=9)
    rows = [request("a", 0, 20), request("b", 0, 20, priority=1), request("c", 0, 20, priority=2), late]
    assert "".join(run(ServingEngine(PLAIN, 1, ranked=ranked), *rows)) == order


def test_a_prefill_of_the_next_turn_is_cached_when_it_comes() -> None:
    engine = ServingEngine(PLAIN, 4, ranked=True)
    then = request("x", 0, 80, priority=-1)
    run(engine, request("x", 0, 50, 30, then=then))
    run(engine, second := request("x", 5.0, 100))
    assert (then.cached_tokens, then.prompt_tokens - then.cached_tokens) == (50, 30)
    assert second.cached_tokens == 80


def test_a_prefill_that_waits_for_a_minute_is_given_up() -> None:
    engine = ServingEngine(PLAIN, 1, ranked=True)
    then = request("x", 0, 80, priority=-1)
    run(
        engine,
        request("x", 0, 50, priority=1, then=then),
        *(request(f"{n}", 0, 10, 700, priority=1) for n in range(10)),
    )
    assert then.started is None


def test_a_full_cache_gives_up_what_was_read_longest_ago_and_of_a_prompt_its_end() -> None:
    engine = ServingEngine(EngineSpeed(**{**vars_of(PLAIN), "cache": 60}), 1)
    run(engine, request("a", 0, 40), request("b", 1, 40))
    again = [request("b", 2, 40), request("a", 3, 40)]
    run(engine, *again)
    assert [one.cached_tokens for one in again] == [39, 20]
    assert len(engine.cache) == 6


def vars_of(speed: EngineSpeed) -> dict[str, float]:
    return {name: getattr(speed, name) for name in EngineSpeed.__slots__}


NV = b'{"model":"m","nvext":%s}'


@pytest.mark.parametrize(
    ("version", "nvext", "found"),
    [
        ("1.0", b'{"agent_hints":{"latency_sensitivity":5.0,"osl":9}}', {"latency_sensitivity": 5.0, "osl": 9}),
        ("1.1", b'{"agent_hints":{"priority":-1}}', {"priority": -1}),
        ("1.6", b'{"agent_hints":{"speculative_prefill":true}}', {"speculative_prefill": True}),
        ("1.2", b"{}", {}),
    ],
)
def test_hints_are_taken_by_version(version: str, nvext: bytes, found: dict[str, Any]) -> None:
    assert take_hints(NV % nvext, version) == (b'{"model": "m"}', found)
    assert take_hints(b'{"model":"m"}', version) == (b'{"model":"m"}', {})


@pytest.mark.parametrize(
    ("nvext", "message"),
    [
        ({"agent_hints": {"latency_sensitivity": 1.0}}, "nvext.agent_hints: unknown field `latency_sensitivity`"),
        ({"agent_hint": {}}, "nvext: unknown field `agent_hint`, expected one of agent_hints"),
        ({"agent_hints": {"priority": "high"}}, "Invalid 'nvext.agent_hints.priority': expected an integer."),
        ({"agent_hints": [1]}, "Invalid 'nvext.agent_hints': expected an object."),
        (1, "Invalid 'nvext': expected an object."),
    ],
)
async def test_what_a_dynamo_does_not_know_is_refused(served: Any, nvext: Any, message: str) -> None:
    async with served(dynamo="1.2") as client:
        status, _, data = await client.ask(nvext=nvext)
        assert (status, data["error"]["message"][: len(message)]) == (400, message)
        assert (await client.ask(nvext={"agent_hints": {"priority": 3, "osl": 5}}))[0] == 200
    async with served() as client:
        status, _, data = await client.ask(nvext={"agent_hints": {"priority": 3}})
        assert (status, data["error"]["message"]) == (400, "Unrecognized request argument supplied: nvext")


@pytest.mark.parametrize("version", ["1", "2.0", "new", "1.x"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(SimulatorError, match=r"write 1\.0 to 1\.6"):
        Simulator(Settings(dynamo=version))


async def test_hints_change_no_answer_and_warm_the_next_turn(served: Any) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    said = 'tool:look {"q": "%s"}' % ("word " * 200)
    cached, answers = [], []
    for hints in ({}, {"nvext": {"agent_hints": {"speculative_prefill": True, "priority": 1}}}):
        async with served(dynamo="1.2", serving="prefill=1000000,step=0.0001,overhead=0,decode=0") as client:
            messages: list[Any] = [{"role": "system", "content": "s" * 4000}, {"role": "user", "content": said}]
            _, _, first = await client.ask(messages=messages, tools=tools, **hints)
            message = first["choices"][0]["message"]
            text = ""
            while hints and "num_requests_waiting 0" not in text:  # until the prefill is over
                async with client.session.get(f"{client.root}/metrics") as metrics:
                    text = await metrics.text()
                text = text if "vllm:num_requests_running 0" in text else ""
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "found"}
            back = {name: value for name, value in message.items() if name != "refusal"}
            _, _, second = await client.ask(messages=[*messages, back, result], tools=tools, **hints)
            answers.append((message, second["choices"][0]["message"]))
            cached.append(second["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert answers[0] == answers[1]
    assert cached[1] - cached[0] > 200, "the calls of the first turn are in the cache, too"


class Took(NamedTuple):
    """What agents took: seconds of an engine's own clock until the last ended and, in the middle, each; the share of
    their prompts that was cached; tokens of prompts that the engine read, those of prefills too."""

    wall: float
    each: float
    cached: float
    read: int


def agents(
    *, priority: bool, prefill: bool = False, at_once: int = 100, cache: float = 120_000, rows: int = 100
) -> Took:
    """Agents of four turns with a tool of 0.8 s between them, on an H100 with eight slots that keeps so many tokens:
    3,000 tokens are shared by all, 1,500 a row's own, and each turn adds 420, of which the model writes 120."""
    engine, turns = ServingEngine(EngineSpeed(cache=cache), 8, ranked=priority or prefill), 4

    def names(row: int, size: int) -> tuple[bytes, ...]:
        return tuple(b"%d" % n if n < 3000 // 16 else b"%d-%d" % (row, n) for n in range(size // 16))

    def ask(row: int, turn: int, now: float) -> None:
        size = 4500 + 420 * turn
        one = ServedRequest(f"{row}", now, size, 120, names(row, size), priority=turn + 1 if priority else 0)
        if prefill and turn < turns - 1:
            one.then = ServedRequest("", 0.0, size + 120, 1, names(row, size + 120), priority=-1)
        asked[one] = row, turn
        engine.waiting.append(one)

    asked, waits, rows_left = dict[ServedRequest, tuple[int, int]](), list[tuple[float, int, int]](), iter(range(rows))
    begun, each, prompt, cached = dict[int, float](), list[float](), 0, 0
    for row in islice(rows_left, at_once):
        begun[row] = 0.0
        ask(row, 0, 0.0)
    while asked or waits:
        while waits and waits[0][0] <= engine.now:
            moment, row, turn = heapq.heappop(waits)
            ask(row, turn, moment)
        worked = engine.step()
        for one in (one for one in worked if one in asked and one.ended is not None):
            row, turn = asked.pop(one)
            prompt, cached = prompt + one.prompt_tokens, cached + one.cached_tokens
            if turn + 1 < turns:
                heapq.heappush(waits, (engine.now + 0.8, row, turn + 1))
                continue
            each.append(engine.now - begun[row])
            for new in islice(rows_left, 1):
                begun[new] = engine.now
                ask(new, 0, engine.now)
        if not worked:
            engine.now = max(engine.now, waits[0][0])
    return Took(engine.now, mean(each), cached / prompt, engine.prompt_tokens - engine.cached_tokens)


def test_more_agents_than_slots_and_a_cache_that_is_too_small_for_all_of_them() -> None:
    """Who has begun goes first, and finds what it said before: figures of docs/guide/providers.md."""
    without, hinted = agents(priority=False), agents(priority=True, prefill=True)
    assert (round(without.cached, 2), round(hinted.cached, 2)) == (0.58, 0.86)
    assert hinted.read < 0.34 * without.read
    assert hinted.wall < 0.83 * without.wall
    assert hinted.each < 0.52 * without.each


def test_as_many_agents_as_slots_gain_by_prefills_alone() -> None:
    without, hinted = agents(priority=False, at_once=8), agents(priority=True, at_once=8)
    assert hinted == without, "nobody waits"
    warmed = agents(priority=True, prefill=True, at_once=8)
    assert warmed.cached > without.cached + 0.017
    assert warmed.wall < 0.99 * without.wall
    assert warmed.read < 1.01 * without.read


def test_where_all_fits_into_the_cache_an_agent_ends_sooner_and_the_last_later() -> None:
    without, hinted = agents(priority=False, cache=math.inf), agents(priority=True, cache=math.inf)
    assert (hinted.cached, hinted.read) == (without.cached, without.read)
    assert hinted.each < 0.65 * without.each
    assert without.wall < hinted.wall < 1.05 * without.wall
