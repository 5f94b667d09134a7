"""The engine's schedule, computed in no time and kept in real time, and what is cached of prompts."""

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import anthropic
import pytest

from agac.simulator.app import Simulator
from agac.simulator.model_calls import ModelCall
from agac.simulator.prompt_cache import PromptCache, prompt_ends
from agac.simulator.serving import EngineSpeed, FixedSlots, ServedRequest, ServingEngine, parse_speed
from agac.simulator.settings import Settings, SimulatorError

PLAIN = EngineSpeed(prefill=1000, step=0.01, decode=0.001, overhead=0.0, budget=100, block=10)


def request(row: int, queued: float, prompt: int, tokens: int = 1, shared: int = 0, block: int = 10) -> ServedRequest:
    """A prompt whose first `shared` tokens are those of all others."""
    names = [b"s%d" % n if n < shared // block else b"%d-%d" % (row, n) for n in range(prompt // block)]
    return ServedRequest(str(row), queued, prompt, tokens, tuple(names))


def served(engine: ServingEngine, requests: list[ServedRequest]) -> list[tuple[float | None, float | None, int]]:
    """First token, end and cached tokens of each, in virtual time."""
    engine.waiting.extend(requests)
    while engine.step():
        pass
    return [(at(one.first_token), at(one.ended), one.cached_tokens) for one in requests]


def at(moment: float | None) -> float | None:
    return None if moment is None else round(moment, 6)


@pytest.mark.parametrize(
    ("speed", "slots", "requests", "expected"),
    [
        # one step reads 50 tokens (0.01 + 0.05), two more write a token each (0.011)
        (PLAIN, 8, [request(1, 0, 50, 3)], [(0.06, 0.082, 0)]),
        # what is cached need not be read, but for the last token; not before the step that read it has ended
        (PLAIN, 8, [request(1, 0, 50, 1, 50), request(2, 0.0, 50, 1, 50), request(3, 1, 50, 1, 50)],
         [(0.11, 0.11, 0), (0.11, 0.11, 0), (1.011, 1.011, 49)]),
        # a step takes 100 tokens: the second prompt is read in two
        (PLAIN, 8, [request(1, 0, 60), request(2, 0, 60)], [(0.11, 0.11, 0), (0.14, 0.14, 0)]),
        # one slot: the second waits for the first to end
        (PLAIN, 1, [request(1, 0, 10, 2), request(2, 0, 10)], [(0.02, 0.031, 0), (0.051, 0.051, 0)]),
        (EngineSpeed(overhead=0.5), 8, [request(1, 1, 830)], [(1.633, 1.633, 0)]),
    ],
)  # fmt: skip
def test_a_step_takes_what_it_reads_and_writes(
    speed: EngineSpeed, slots: int, requests: list[ServedRequest], expected: Any
) -> None:
    assert served(ServingEngine(speed, slots), requests) == expected


def research_summary(*, hold: bool, leader: bool = False, slots: int = 8, rows: int = 20) -> float:
    """The wall of two turns a row with a tool of 0.4 s between them, at most so many at once: with `hold` a row keeps
    its place during its tool, with `leader` the first row's answer comes before the others are asked."""
    engine, ready, tools, turns = ServingEngine(EngineSpeed()), [(n, 0) for n in range(rows)], [], dict[Any, Any]()
    active, alone = 0, leader

    def ask(row: int, turn: int, now: float) -> None:
        turns[one := request(row, now, 5975 + 60 * turn, 8, 5900, 16)] = row, turn
        engine.waiting.append(one)

    def fill(now: float) -> None:
        nonlocal active
        while ready and active < (1 if alone else slots):
            ask(*ready.pop(0), now)
            active += 1

    fill(0.0)
    while turns or tools:
        if not turns:
            engine.now = max(engine.now, tools[0][0])
        while tools and tools[0][0] <= engine.now:
            moment, row = tools.pop(0)
            if hold:
                ask(row, 1, moment)
            else:
                ready.append((row, 1))
                fill(moment)
        for one in engine.step():
            alone = alone and one.first_token is None
            if one.ended is not None:
                row, turn = turns.pop(one)
                if turn == 0:
                    tools.append((one.ended + 0.4, row))
                active -= turn == 1 or not hold
            fill(engine.now)
    return engine.now


def test_the_engine_takes_as_long_as_the_published_runs() -> None:
    """Walls of the reference (published for one H100: 5.1 s held, 3.2 s released)."""
    held, released = research_summary(hold=True), research_summary(hold=False)
    led = research_summary(hold=False, leader=True)
    assert held == pytest.approx(5.17, rel=0.02)
    assert released == pytest.approx(3.60, rel=0.02)
    assert led == pytest.approx(2.95, rel=0.03)


def test_fixed_slots_serve_in_order_and_exactly() -> None:
    slots, requests = FixedSlots(2), [request(n, 0.0, 1) for n in range(5)]
    assert [slots.serve(one, 0.2) for one in requests] == pytest.approx([0.2, 0.2, 0.4, 0.4, 0.6])
    assert [one.slot for one in requests] == [0, 1, 0, 1, 0]
    assert FixedSlots(None).serve(request(1, 3.0, 1), 0.5) == 3.5


@pytest.mark.parametrize("text", ["", "fast", "prefill", "prefill=x", "prefill=0", "step=-1", "steps=1", "block=0.5"])
def test_other_engines_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(SimulatorError, match="h100, hosted, or prefill"):
        parse_speed(text)
    if text:
        with pytest.raises(SimulatorError) as caught:
            Simulator(Settings(serving=text, latency="soon"))
        assert [problem.split()[0] for problem in caught.value.problems] == ["serving", "latency"]


async def test_an_engine_serves_in_real_time_and_tells_of_it(served: Any) -> None:
    system = {"role": "system", "content": "word " * 1000}
    async with served(serving="prefill=20000,step=0.02,overhead=0,decode=0", slots=2) as client:

        async def ask(text: str, **more: Any) -> Any:
            messages = [system, {"role": "user", "content": text}]
            return await client.ask(messages=messages, model="echo", max_completion_tokens=9, **more)

        usages = [(await ask("one"))[2]["usage"]]
        usages += [reply["usage"] for _, _, reply in await asyncio.gather(*(ask(f"row {n}") for n in range(5)))]
        assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, *[1248] * 5]
        status, _, raw = await client.post({"model": "echo", "stream": True, "messages": [system]})
        assert (status, raw[-14:]) == (200, b"data: [DONE]\n\n")
        log = (await (await client.session.get(f"{client.root}/account/served")).json())["requests"]
        assert len(log) == 7
        assert {one["slot"] for one in log} == {0, 1}
        for one in log:
            assert one["queued"] <= one["started"] < one["first_token"] <= one["ended"]
        for one, other in ((one, other) for one in log for other in log if one is not other):
            assert one["slot"] != other["slot"] or one["ended"] <= other["started"] or other["ended"] <= one["started"]
        assert len({one["conversation"] for one in log}) == 7
        metrics = dict(line.split(" ") for line in (await get(client, "/metrics")).splitlines())
        prompt = sum(one["prompt_tokens"] for one in log)
        assert int(metrics["vllm:prefix_cache_queries_total"]) == int(metrics["sglang:prompt_tokens_total"]) == prompt
        assert int(metrics["vllm:prefix_cache_hits_total"]) == sum(one["cached_tokens"] for one in log)
        await client.session.post(f"{client.root}/account/reset")
        assert (await ask("one"))[2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    async with served(slots=1, latency="0.01") as client:
        await asyncio.gather(*(client.ask(f"row {n}") for n in range(3)))
        log = (await (await client.session.get(f"{client.root}/account/served")).json())["requests"]
        assert [round(one["ended"] - one["started"], 3) for one in log] == [0.01] * 3
        assert all(one["ended"] <= other["started"] for one, other in pairwise(log))
        assert '"unknown_url"' in await get(client, "/metrics")


async def get(client: Any, path: str) -> str:
    async with client.session.get(client.root + path) as response:
        return str(await response.text())


async def test_hosted_providers_cache_what_they_say(served: Any) -> None:
    long = "word " * 1200  # 1,500 tokens
    async with served(serving="hosted") as client:
        messages = [{"role": "system", "content": long}, {"role": "user", "content": "row"}]
        for expected in (0, 1408):
            _, _, reply = await client.ask(messages=messages)
            assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == expected
        _, _, reply = await client.ask(messages=messages, prompt_cache_key="other")
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        api = anthropic.AsyncAnthropic(api_key="k", base_url=client.root, max_retries=0)
        async with api:
            for mark, expected in (
                ({}, [(0, 0)] * 2), ({"type": "ephemeral"}, [(0, 1500), (1500, 0)]),
                ({"type": "ephemeral", "ttl": "1h"}, [(1500, 0)]),
            ):  # fmt: skip
                for counts in expected:
                    block = {"type": "text", "text": long, **({"cache_control": mark} if mark else {})}
                    usage = (await api.messages.create(
                        model="m", max_tokens=9, system=[block], messages=[{"role": "user", "content": "row"}]
                    )).usage  # fmt: skip
                    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == counts
                    assert usage.input_tokens + sum(counts) in (1500, 1501)
                    assert (usage.cache_creation is None) == (counts[1] == 0)


MARK = {"type": "ephemeral"}


def conversation(turns: int, *, marks: tuple[int, ...]) -> dict[str, Any]:
    texts = ["word " * 1000] + [f"turn {n} " * 100 for n in range(turns)]
    blocks = [{"type": "text", "text": text, **({"cache_control": MARK} if at in marks else {})}
              for at, text in enumerate(texts)]  # fmt: skip
    return {"model": "m", "messages": [{"role": "user", "content": [block]} for block in blocks]}


def test_breakpoints_are_read_once_the_first_answer_has_begun_and_for_their_lifetime() -> None:
    cache = PromptCache()

    def look(data: Any, now: float) -> tuple[int, Mapping[str, int], dict[bytes, str]]:
        call, entries = cache.look_up(
            ModelCall("m", (), b"", prompt_tokens=0, data=data), *prompt_ends(data, None), now
        )
        return call.cache.read, call.cache.written, entries

    read, written, entries = look(conversation(1, marks=(0, 1)), 0.0)
    assert (read, written) == (0, {"5m": 1425})
    assert look(conversation(1, marks=(0, 1)), 1.0)[:2] == (0, {"5m": 1425})  # the first has not begun
    cache.keep(entries, 2.0)
    assert look(conversation(2, marks=(0,)), 3.0)[:2] == (1250, {"5m": 0})
    assert look(conversation(3, marks=(0, 3)), 3.0)[0] == 1425  # an earlier end, before the breakpoint
    assert look(conversation(30, marks=(30,)), 3.0)[0] == 0  # too far before it
    assert look(conversation(2, marks=(0,)), 303.0)[0] == 0
    cache.keep(entries, 300.0)
    assert look(conversation(2, marks=(0,)), 303.0)[0] == 1250
    assert look(conversation(2, marks=(0,)) | {"model": "other"}, 303.0)[0] == 0
