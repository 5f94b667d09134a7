"""`service_tier=flex`: more time, its own price, the tier that really served it, and room that is waited for."""

import json
from typing import Any

import pytest
from scripted_server import Step, run_at
from support.project import ProjectFolder

import agac
from agac.core.types import Params
from agac.plan.stage import DEFAULT_TIMEOUT, call_timeout
from agac.spec.rules import Timeout

PRICES = {"m": {"input": 1.0, "output": 10.0, "flex": 0.5}}
FULL = json.dumps(
    {"error": {"message": "Resource Unavailable", "type": "resource_unavailable", "code": "resource_unavailable"}}
)


def served(tier: str) -> Step:
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    return Step(body=json.dumps({"model": "m-1", "choices": [choice], "usage": usage, "service_tier": tier}))


def full(**headers: str) -> Step:
    return Step(status=429, headers={"retry-after-ms": "1", **headers}, body=FULL)


def run_flex(
    project: ProjectFolder, *steps: Step, model: Any = "local/m?service_tier=flex"
) -> tuple[agac.RunReport, list[dict[str, Any]]]:
    """One row, asked of this model at a server that gives these steps."""
    stage = {"name": "say", "prompt": "${text}", "model": model}
    return run_at(project, *steps, provider={"prices": PRICES}, stages=[stage])


def workflow(project: ProjectFolder, base_url: str, model: Any = "local/m?service_tier=flex", **keys: Any) -> None:
    project.configure(base_url, prices=PRICES)
    project.numbered(1)
    project.workflow(stages=[{"name": "say", "prompt": "${text}", "model": model, **keys}])


@pytest.mark.parametrize(
    ("written", "tier", "expected"),
    [
        (None, None, DEFAULT_TIMEOUT),
        (None, "auto", DEFAULT_TIMEOUT),
        (None, "priority", DEFAULT_TIMEOUT),
        (None, "flex", Timeout(10.0, None, 900.0)),
        (Timeout(total=60.0), None, Timeout(10.0, None, 60.0)),
        (Timeout(total=60.0), "flex", Timeout(10.0, None, 90.0)),
        (Timeout(3.0, 20.0, 60.0), "flex", Timeout(3.0, 30.0, 90.0)),
        (Timeout(first_byte=20.0), "flex", Timeout(10.0, 30.0, 900.0)),
    ],
)
def test_a_flex_call_may_take_half_as_long_again(written: Timeout | None, tier: str | None, expected: Timeout) -> None:
    assert call_timeout(written, Params(service_tier=tier)) == expected


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(("query", "seconds"), [("service_tier=flex", "0.45 s"), ("service_tier=default", "0.3 s")])
def test_a_call_is_given_up_at_its_own_bound(project: ProjectFolder, faulty: Any, query: str, seconds: str) -> None:
    workflow(project, faulty([{"kind": "hang"}]).base_url, f"local/m?{query}", timeout=0.3)
    [error] = project.run().summary["errors"]
    assert error["type"] == "Timeout"
    assert seconds in error["example"]["message"]


def test_a_fallback_has_the_bounds_of_its_own_tier(project: ProjectFolder) -> None:
    workflow(project, "http://127.0.0.1:9/v1", ["local/m?service_tier=flex", "local/m"], timeout=60)
    assert [model.timeout.total for model in project.plan().stages[0].models] == [90.0, 60.0]


def test_when_flex_has_no_room_the_call_waits_and_nothing_is_billed(project: ProjectFolder) -> None:
    report, _ = run_flex(project, full(), full(), served("flex"))
    assert report.exit_code == 0
    assert project.query("SELECT status, error_type, service_tier, cost FROM attempt ORDER BY id") == [
        (429, "RateLimited", None, None),
        (429, "RateLimited", None, None),
        (200, None, "flex", pytest.approx(0.001)),
    ]
    assert report.summary["calls"]["calls_without_price"] == 0


def test_a_list_goes_on_with_the_ordinary_tier_when_flex_stays_full(project: ProjectFolder) -> None:
    models = ["local/m?service_tier=flex", "local/m"]
    report, asked = run_flex(project, full(**{"retry-after-ms": "3600000"}), served("default"), model=models)
    assert report.exit_code == 0
    assert [body.get("service_tier") for body in asked] == ["flex", None]
    assert report.summary["calls"]["cost_usd"] == pytest.approx(0.002)


def test_the_plan_is_at_the_price_of_flex(project: ProjectFolder) -> None:
    def dollars(model: str) -> float:
        workflow(project, "http://127.0.0.1:9/v1", model, max_tokens=100)
        return float(project.agac("plan", "-a", "reviews", "--json").json["usd"])

    assert dollars("local/m?service_tier=flex") == pytest.approx(dollars("local/m") / 2, abs=1e-6)
