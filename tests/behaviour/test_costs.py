"""What each attempt costs: by the tier that really served it, with cached input at its own price, for every attempt."""

import json
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from scripted_server import Step, run_at, scripted
from support.project import SENTIMENT, ProjectFolder

from agac.engine.invocation import Clocks
from agac.providers.known_providers import OPENAI, SHIPPED
from agac.providers.prices import price_of

PRICES = {"m": {"input": 1.0, "cached_input": 0.1, "output": 10.0, "flex": 0.5, "priority": 2.0}}
GOOD = '{"sentiment":"positive","reason":"it is"}'
BAD = '{"sentiment":"excellent","reason":"r"}'
SAY = {"name": "say", "prompt": "${text}", "model": "local/m"}
MILLION = 1_000_000


def served(text: str = "ok", *, given: int = 1000, cached: int = 0, made: int = 100, **more: Any) -> Step:
    usage = {
        "prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return Step(body=json.dumps({"model": "m-2026", "choices": [choice], "usage": usage, **more}))


def openai(project: ProjectFolder, texts: str, *steps: Step, **provider: Any) -> list[float]:
    """What calls of a hosted model cost so far, the last ones for these texts."""
    with scripted(*steps) as server:
        providers = {"openai": {"base_url": server.base_url, **provider}}
        project.write("agac.yml", yaml.safe_dump({"providers": providers}))
        project.write(".env", "OPENAI_API_KEY=sk-1\n")
        project.workflow(
            rows=[{"id": text, "text": text} for text in texts], stages=[{**SAY, "model": "openai/gpt-5.4-mini"}]
        )
        assert project.run(concurrency=1).exit_code == 0
    return [cost for cost in costs(project) if cost is not None]


def costs(project: ProjectFolder) -> list[float | None]:
    return [cost for (cost,) in project.query("SELECT cost FROM attempt ORDER BY id")]


@pytest.mark.parametrize(
    ("asked", "answered", "dollars"),
    [
        ("", {}, 2000 / MILLION),
        ("?service_tier=flex", {"service_tier": "flex"}, 1000 / MILLION),
        ("?service_tier=flex", {"service_tier": "default"}, 2000 / MILLION),  # flex was full: the full price is paid
        ("?service_tier=auto", {"service_tier": "priority"}, 4000 / MILLION),
        ("?service_tier=priority", {"service_tier": "default"}, 2000 / MILLION),
    ],
)
def test_a_call_costs_what_the_tier_costs_that_served_it(
    project: ProjectFolder, asked: str, answered: dict[str, Any], dollars: float
) -> None:
    stages = [{**SAY, "model": f"local/m{asked}"}]
    report, (body,) = run_at(project, served(**answered), provider={"prices": PRICES}, stages=stages)
    assert body.get("service_tier", "") == asked.partition("=")[2]
    assert costs(project) == [pytest.approx(dollars)]
    assert report.summary["calls"]["cost_usd"] == pytest.approx(dollars, abs=1e-6)
    tier = answered.get("service_tier")
    [row] = project.agac("inspect", "last", "r-1", "--json").json["rows"]
    assert row["stages"][0]["attempts"][0]["service_tier"] == tier
    assert (f"HTTP 200, tier {tier}, " in project.agac("inspect", "last", "r-1").out) == (tier is not None)


def test_cached_input_has_its_own_price_in_every_tier(project: ProjectFolder) -> None:
    full = (200 * 1.0 + 800 * 0.1 + 100 * 10.0) / MILLION
    steps = [served(cached=800), served(cached=800, service_tier="flex")]
    report, _ = run_at(project, *steps, rows=2, provider={"prices": PRICES}, stages=[SAY])
    assert costs(project) == [pytest.approx(full), pytest.approx(full / 2)]
    assert report.summary["calls"]["cached_tokens"] == 1600


def test_the_price_library_knows_cached_input_and_flex_and_prices_in_agac_yml_win(project: ProjectFolder) -> None:
    found = openai(project, "ab", served(cached=800), served(cached=800, service_tier="flex"))
    for cost, tier in zip(found, (None, "flex"), strict=True):
        price = price_of(OPENAI, "gpt-5.4-mini", tier)
        assert price is not None
        assert price.cached_input is not None
        assert cost == pytest.approx((200 * price.input + 800 * price.cached_input + 100 * price.output) / MILLION)
    assert found[1] < found[0]
    own = openai(project, "c", served(), prices={"gpt-5.4-mini": {"input": 7.0, "output": 70.0}})
    assert own[2:] == [pytest.approx(14_000 / MILLION)]


def test_each_call_costs_what_its_hour_costs_and_a_plan_and_a_budget_take_the_dearest(project: ProjectFolder) -> None:
    model = "deepseek/deepseek-reasoner?max_tokens=100"
    night, morning = (datetime(2026, 12, 1, hour, tzinfo=UTC).timestamp() for hour in (20, 10))
    deepseek = SHIPPED["deepseek"]
    cheap, dear = (price_of(deepseek, "deepseek-reasoner", at=at) for at in (night, morning))
    assert cheap is not None
    assert dear is not None
    with scripted(served(), served()) as server:
        project.write("agac.yml", yaml.safe_dump({"providers": {"deepseek": {"base_url": server.base_url}}}))
        project.write(".env", "DEEPSEEK_API_KEY=sk-1\n")
        for at, rows in ((night, "a"), (morning, "ab")):  # one process, as a run that lasts for hours
            project.workflow(rows=[{"id": row, "text": row} for row in rows], stages=[{**SAY, "model": model}])
            with patch("agac.api.prepare.Clocks", lambda at=at: Clocks(wall=lambda: at)):
                assert project.run(concurrency=1, budget=1.0).exit_code == 0
        planned = project.agac("plan", "-a", "reviews", "--fresh")
        as_json = project.agac("plan", "-a", "reviews", "--fresh", "--json").json
    each = [(1000 * price.input + 100 * price.output) / MILLION for price in (cheap, dear)]
    assert costs(project) == [pytest.approx(usd) for usd in each]
    assert "the price depends on the hour (UTC): costs are those of the dearest, ~$" in planned.out
    estimate = as_json["stages"][0]["estimate"]
    assert estimate["usd"] == pytest.approx(2 * each[1], rel=0.1)
    assert estimate["usd_off_peak"] == pytest.approx(2 * each[0], rel=0.1)


def test_uses_of_a_providers_tools_are_priced_and_come_on_top_of_what_a_plan_expects(project: ProjectFolder) -> None:
    model = "simulator-responses/small?web_search=on&max_tokens=100"
    project.numbered(2)
    project.workflow(stages=[{**SAY, "model": model}], budget=1.0)
    planned = project.agac("plan", "-a", "reviews")
    assert "  What tools that providers run find and cost comes on top: say" in planned.out
    assert " at most" not in planned.out
    assert "what web_search of simulator-responses/small finds and costs is not known before a call" in planned.err
    report = project.run()
    assert all(cost is not None and 0.01 < cost < 0.011 for cost in costs(project))
    assert 0.02 < report.summary["calls"]["cost_usd"] < 0.021
    assert report.summary["calls"]["server_tools"] == 2
    assert "2 uses of providers' tools, simulated $0.02" in project.agac("run", "-a", "reviews", "--fresh").out


def claude(kind: str, text: str, searches: int) -> Step:
    usage = {"input_tokens": 1000, "output_tokens": 10, "server_tool_use": {"web_search_requests": searches}}
    said = [{"type": "text", "text": text}, *([SEARCHED] if kind == "pause_turn" else [])]
    return Step(body=json.dumps({"model": "m", "content": said, "stop_reason": kind, "usage": usage}))


SEARCHED = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "lamps"}}


def test_an_answer_that_a_provider_pauses_is_asked_for_until_it_ends(project: ProjectFolder) -> None:
    with scripted(claude("pause_turn", "I search.", 3), claude("end_turn", "Found.", 1)) as server:
        prices = {"claude-haiku-4-5": {"input": 1.0, "output": 1.0}}
        table = {"anthropic": {"base_url": server.base_url, "prices": prices}}
        project.write("agac.yml", yaml.safe_dump({"providers": table}))
        project.write(".env", "ANTHROPIC_API_KEY=sk-1\n")
        project.numbered(1)
        project.workflow(stages=[{**SAY, "model": "anthropic/claude-haiku-4-5?web_search=5"}])
        report = project.run()
    first, then = server.asked
    assert then["messages"] == [*first["messages"], {"role": "assistant", "content": [
        {"type": "text", "text": "I search."}, SEARCHED]}]  # fmt: skip
    assert "Found." in project.agac("inspect", "last", "r-1").out
    assert report.summary["calls"]["cost_usd"] == pytest.approx(2 * 1010 / MILLION + 0.04, abs=1e-6)


def test_every_attempt_of_a_task_has_its_cost_at_the_price_of_its_own_model(project: ProjectFolder) -> None:
    """Two wrong answers, a refused call that costs nothing, a fallback at a price of its own; one without any."""
    broken = Step(status=500, headers={"retry-after-ms": "1"}, body="{}")
    first = (served(BAD), broken, served(BAD), served(GOOD, given=10, made=10))
    with scripted(*first, served(BAD), served(BAD), served(GOOD)) as server:
        row = {"dialect": "openai-chat", "base_url": server.base_url, "structured": "json_schema"}
        table = {
            "local": {**row, "prices": PRICES},
            "dear": {**row, "prices": {"*": {"input": 100.0, "output": 100.0}}},
            "odd": row,
        }
        project.write("agac.yml", yaml.safe_dump({"providers": table}))
        project.numbered(1)
        stage = {**SAY, "model": ["local/m", "dear/x"], "output_schema": SENTIMENT}
        project.workflow(stages=[stage])
        report = project.run()
        project.workflow("others", stages=[{**stage, "prompt": "o ${text}", "model": ["local/m", "odd/x"]}])
        odd = project.run("others")
    wrong, fallback = 2000 / MILLION, 20 * 100 / MILLION
    assert costs(project)[:4] == [pytest.approx(wrong), None, pytest.approx(wrong), pytest.approx(fallback)]
    assert costs(project)[4:] == [pytest.approx(wrong), pytest.approx(wrong), None]
    assert odd.summary["calls"]["calls_without_price"] == 1
    calls = report.summary["calls"]
    assert calls["cost_usd"] == pytest.approx(2 * wrong + fallback, abs=1e-6)
    assert calls["calls_without_price"] == 0
    assert report.invocation["cost_usd"] == calls["cost_usd"]
