"""Time, slots and rates."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.simulator.settings import RateLimits, Settings, SimulatorError, clock_text, parse_latency


@pytest.mark.parametrize(
    ("text", "low", "high", "middle"),
    [
        ("0.5", 0.5, 0.5, 0.5),
        ("constant:0.5", 0.5, 0.5, 0.5),
        ("uniform:0.1,0.3", 0.1, 0.3, 0.2),
        ("normal:1,0.1", 0, 2, 1),
        ("normal:0,5", 0, 100, 0),
        ("lognormal:2,0.3", 0, 100, 2),
        ("99999", 3600, 3600, 3600),
    ],
)
def test_latency_is_drawn_from_what_was_asked(text: str, low: float, high: float, middle: float) -> None:
    drawn = sorted(map(parse_latency(text), range(2001)))
    assert low <= drawn[0] <= drawn[-1] <= high
    assert drawn[1000] == pytest.approx(middle, rel=0.1, abs=0.2)


def test_other_latencies_are_refused_with_the_forms() -> None:
    for text in ("", "fast", "-1", "nan", "inf", "normal:1", "uniform:3,1", "lognormal:0,1", "gamma:1,2"):
        with pytest.raises(SimulatorError, match="lognormal:MEDIAN,SIGMA"):
            parse_latency(text)


async def test_latency_of_a_request_follows_from_seed_and_content(served: Any) -> None:
    async def finished(texts: list[str]) -> list[str]:
        order: list[str] = []
        async with served(latency="uniform:0,0.8") as client:

            async def one(text: str) -> None:
                await client.ask(text)
                order.append(text)

            await asyncio.gather(*(one(text) for text in texts))
        return order

    texts = [f"row {i}" for i in (1, 10, 11, 13)]  # some 0.2 s lie between any two of them
    assert await finished(texts) == await finished(texts[::-1])


async def test_reply_takes_as_long_as_said_and_those_beyond_the_slots_wait(served: Any) -> None:
    loop = asyncio.get_running_loop()
    for settings, requests, least in (({"latency": "0.2"}, 5, 0.19), ({"latency": "0.1", "slots": 2}, 6, 0.29)):
        async with served(**settings) as client:
            before = loop.time()
            await asyncio.gather(*(client.ask(f"row {i}") for i in range(requests)))
            assert loop.time() - before >= least
            assert (await client.account())["max_in_flight"] == requests


async def test_requests_and_tokens_over_the_rate_are_refused_with_openais_headers(served: Any) -> None:
    async with served() as client:
        _, headers, _ = await client.ask()
        assert not [name for name in headers if name.lower().startswith("x-ratelimit")]
    async with served(rpm=3) as client:
        replies = [await client.ask(f"row {i}") for i in range(4)]
        assert [status for status, _, _ in replies] == [200, 200, 200, 429]
        _, headers, data = replies[-1]
        assert (data["error"]["type"], data["error"]["code"]) == ("requests", "rate_limit_exceeded")
        assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("3", "0")
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        assert 0 < int(headers["retry-after-ms"]) <= 20_000
        assert int(headers["retry-after"]) == math.ceil(int(headers["retry-after-ms"]) / 1000)
        assert replies[0][1]["x-ratelimit-remaining-requests"] == "2"
        assert "x-ratelimit-limit-tokens" not in headers
        account = await client.account()
        assert (account["refused"], account["limited"], account["charged"]) == (1, 1, 3)
    async with served(tpm=100) as client:
        status, headers, _ = await client.ask("x" * 40, max_tokens=50)
        assert (status, headers["x-ratelimit-remaining-tokens"]) == (200, "40")
        status, headers, data = await client.ask("x" * 40, max_tokens=50)
        assert (status, data["error"]["type"]) == (429, "tokens")
        assert "Please try again in" in data["error"]["message"]
        status, headers, data = await client.ask("x" * 4000)
        assert status == 429
        assert "Request too large" in data["error"]["message"]
        assert "retry-after" not in headers


@given(st.integers(1, 600), st.lists(st.floats(0, 5), min_size=1, max_size=60))
def test_no_more_is_given_than_a_bucket_and_its_refill(per_minute: int, pauses: list[float]) -> None:
    limits = RateLimits(rpm=per_minute)
    now, taken = 0.0, 0
    for pause in pauses:
        now += pause
        while taken < 2000 and limits.take(0, now) is None:
            taken += 1
        assert taken <= per_minute + now * per_minute / 60 + 1e-6


def test_durations_are_written_as_openai_does() -> None:
    texts = {0: "0ms", 0.1201: "121ms", 1: "1s", 1.5: "1.5s", 60: "1m0s", 361.25: "6m1.25s"}
    assert {seconds: clock_text(seconds) for seconds in texts} == texts


def test_settings_that_make_no_sense_are_said_at_once() -> None:
    problems = Settings(port=70000, slots=0, rpm=-1, tpm=0).problems()
    assert [problem.split()[0] for problem in problems] == ["port", "slots", "rpm", "tpm"]


def test_another_process_is_told_every_setting(tmp_path: Any) -> None:
    settings = Settings(
        port=1, seed=-2, latency="normal:1,2", slots=3, rpm=4, tpm=5, burst=6, batch_seconds=0.25,
        state=tmp_path / "s.db", websocket=False, script=tmp_path / "r.yml", tool_turns=2, tool_calls=3, serving="h100",
        tools_with_schema="ignored",
        faults=tmp_path / "f.yml",
    )  # fmt: skip
    assert Settings.read(settings.written()) == settings
    assert Settings.read("{}") == Settings.read(Settings().written()) == Settings()


def test_a_burst_is_what_may_come_at_once_and_waiting_as_long_as_told_is_enough() -> None:
    limits = RateLimits(rpm=7, tpm=None)
    while (refusal := limits.take(0, 0.0)) is None:
        pass
    assert limits.take(0, refusal.wait) is None
    limits = RateLimits(rpm=1200, tpm=None, burst=20)
    taken = 0
    while (refusal := limits.take(0, 5.0)) is None:
        taken += 1
    assert (taken, refusal.wait) == (20, pytest.approx(0.05))
    assert limits.take(0, 5.0 + refusal.wait) is None
    assert limits.headers(6.5)["x-ratelimit-remaining-requests"] == "20"  # an idle second fills it, a minute no further
    assert limits.headers(60.0)["x-ratelimit-remaining-requests"] == "20"
    assert limits.headers(60.0)["x-ratelimit-reset-requests"] == "0ms"
    limits = RateLimits(rpm=60, tpm=None)
    assert [limits.take(0, 1.0) for _ in range(30)] == [None] * 30
    assert limits.headers(1.0)["x-ratelimit-remaining-requests"] == "30"
    assert limits.headers(11.0) == {
        "x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "40",
        "x-ratelimit-reset-requests": "20s",
    }  # fmt: skip


async def test_limits_are_changed_while_it_runs(served: Any) -> None:
    async with served(rpm=1) as client:

        async def limit(body: str) -> tuple[int, Any]:
            async with client.session.post(f"{client.root}/account/limits", data=body) as response:
                return response.status, await response.json()

        assert [(await client.ask(f"row {i}"))[0] for i in range(2)] == [200, 429]
        status, told = await limit('{"rpm": 600, "burst": 3}')
        assert (status, told["x-ratelimit-limit-requests"], told["x-ratelimit-remaining-requests"]) == (200, "600", "3")
        assert [(await client.ask(f"more {i}"))[0] for i in range(3)] == [200] * 3
        assert await limit("{}") == (200, {})
        assert [(await client.ask(f"all {i}"))[0] for i in range(20)] == [200] * 20
        status, told = await limit('{"rpm": 0, "tpm": true, "rps": 3}')
        assert status == 400
        assert told["error"]["message"] == (
            "'rps' is no limit; known: rpm, tpm, burst; rpm is 0; use 1 or more, or leave it out for no limit; "
            "tpm is True; use 1 or more, or leave it out for no limit"
        )
        assert (await limit("20 a second"))[0] == 400
        assert (await client.ask("still none"))[0] == 200
