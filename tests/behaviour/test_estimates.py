"""What a plan says a run costs: both ways of asking, the range, what it rests on; and how it learns from what came."""

import sys
from dataclasses import replace
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import pytest
from scripted_server import run_at
from support.project import SENTIMENT, ProjectFolder
from support.server import Server
from support.soak import SOAK, few
from test_costs import served

import agac
from agac.engine.estimate import estimate
from agac.engine.past_usage import Z80, PastRun, PastUsage, usage_of
from agac.plan.stage import PlannedStage
from agac.store.runs import Count, KeptEstimate, UsageSpread

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
estimates = __import__("estimates")

PRICES = {"small": {"input": 1.0, "output": 10.0, "batch": 0.5, "flex": 0.6}}
SAY: dict[str, Any] = {"name": "say", "prompt": "Say ${text}", "output_schema": SENTIMENT}


def planned(project: ProjectFolder, **options: Any) -> agac.PlanReport:
    return agac.plan("reviews", agac.RunOptions(**options), project=project.root)


def test_both_ways_a_range_and_what_they_rest_on_stand_beside_each_other(
    project: ProjectFolder, server: Server
) -> None:
    project.configure(server.base_url, prices=PRICES, batch="openai")
    project.workflow(rows=40, stages=[SAY])
    first = project.agac("plan", "-a", "reviews", "--json").json
    usd = first["usd"]
    assert first["ways"] == {
        "sync": usd,
        "batch": pytest.approx(usd / 2, rel=0.01),
        "flex": pytest.approx(0.6 * usd, 0.01),
    }
    low, high = first["usd_range"]
    assert low < usd < high
    assert (first["seconds"], first["past_error"]) == (None, None)
    assert "(from 40 prompts and a guess of lengths), time unknown" in project.agac("plan", "-a", "reviews").out
    project.run(limit=20)
    project.run(limit=30)
    second = project.agac("plan", "-a", "reviews", "--json").json
    [stage] = second["stages"]
    assert (stage["sampled"], stage["estimate"]["past_tasks"], stage["estimate"]["basis"]) == (10, 30, "history")
    low, high = second["usd_range"]
    assert high - low < (first["usd_range"][1] - first["usd_range"][0]) / 4, "what was seen is surer than a guess"
    assert second["seconds"] > 0
    assert second["past_error"]["estimates"] == 1, "the guess before the first run does not count"
    shown = project.agac("plan", "-a", "reviews").out
    assert "(from 10 prompts and 30 earlier tasks), about 1s" in shown
    assert "  the last estimate was " in shown
    batched = planned(project, run_mode="batch")
    assert batched.usd == pytest.approx(second["ways"]["batch"], rel=0.01)
    assert batched.stages[0].estimate.seconds is None, "no batch has ended yet"


def test_a_price_that_is_not_known_gives_no_range(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url)
    project.workflow(rows=3, stages=[SAY])
    report = planned(project)
    assert (report.usd, report.usd_range, report.ways) == (None, None, {"sync": None, "batch": None, "flex": None})
    assert "8 in 10" not in project.agac("plan", "-a", "reviews").out


def test_a_run_keeps_its_estimate_once_and_a_run_without_calls_keeps_none(
    project: ProjectFolder, server: Server
) -> None:
    project.configure(server.base_url, prices=PRICES)
    project.workflow(rows=6, stages=[SAY])
    project.run()
    kept = project.query("SELECT run_id, stage, lane, basis, tasks, calls, low < usd AND usd < high FROM estimate")
    assert kept == [(1, "say", "local/small", "guess", 6, 6, 1)]
    project.numbered(8)
    project.run()
    assert project.query("SELECT count(*), max(tasks) FROM estimate") == [(1, 6)], "the same run went on"
    project.run(vars={}, limit=5)
    assert project.query("SELECT count(*) FROM estimate") == [(1,)], "every answer was there"


def test_characters_a_token_come_from_what_the_provider_counted(project: ProjectFolder) -> None:
    steps = [served("fine", given=60, made=5)] * 4  # 30 characters are 60 tokens here
    run_at(
        project, *steps, rows=4, provider={"prices": PRICES}, stages=[{"name": "say", "prompt": "x" * 28 + " ${id}"}]
    )
    for name in ("say", "tell"):  # an edited prompt, and a stage that nobody ever asked
        project.workflow(stages=[{"name": name, "prompt": "y" * 296 + " ${id}"}])
        report = planned(project)
        assert report.input_tokens == pytest.approx(4 * 300 * 60 / 32, rel=0.02)


def test_a_guard_that_waits_for_an_answer_passes_as_many_as_before(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices=PRICES)
    guarded = {"name": "more", "prompt": "On ${text}", "when": "say.sentiment == 'positive'"}
    project.workflow(rows=60, stages=[SAY, guarded])
    cold = planned(project).stages[1]
    assert (cold.run, cold.undecided, cold.estimate.calls) == (60, 60, 40), "two of three, as long as nobody knows"
    project.run(limit=30)
    [(asked,)] = project.query("SELECT count(*) FROM attempt WHERE stage = 1")
    assert planned(project).stages[1].estimate.calls == asked


def past(stage: str, *ratios: float) -> PastUsage:
    """Runs of 100 tasks that cost so many times what was expected, each within 5 % in eight of ten cases."""

    def run(ratio: float) -> PastRun:
        took = {"tasks": 100, "input_tokens": 1000, "output_tokens": 1000}
        call = Count(**took, cost=ratio, stage=stage, outcome="call", model="local/small")
        kept = KeptEstimate(stage, "local/small", "history", 100, 40.0, 1.0, exp(-0.05), exp(0.05))
        return PastRun([call], {stage: kept}, {})

    return PastUsage([run(ratio) for ratio in ratios])


def test_errors_move_an_estimate_only_where_they_all_say_the_same(project: ProjectFolder) -> None:
    project.workflow(rows=1, stages=[SAY])
    [stage] = project.plan().stages
    assert isinstance(stage, PlannedStage)
    assert stage.lane == "local/small"
    assert past("say").correction(stage) == past("say", 1.3).correction(stage) == (1.0, 0.0)
    factor, wider = past("say", 1.3, 1.3, 1.3).correction(stage)
    assert (factor, wider) == (pytest.approx(exp(log(1.3) * 3 / 4)), pytest.approx(0.00209, abs=0.0001))
    factor, wider = past("say", 1.02, 0.99, 1.01).correction(stage)
    assert (factor, wider) == (1.0, 0.0), "no more than chance does"
    factor, wider = past("say", 1.3, 0.7, 1.3, 0.7).correction(stage)
    assert factor == 1.0
    assert wider > 0.05, "they are off to both sides: the range is wider"
    error = past("say", 1.25, 1.25).error([stage])
    assert error is not None
    assert (error.estimates, error.off) == (2, pytest.approx(-0.2))


def test_lists_that_differ_in_length_make_a_range_wider(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices=PRICES)
    project.workflow(rows=1, stages=[SAY])
    [stage] = project.plan().stages
    assert isinstance(stage, PlannedStage)

    def width(together: float, tail: float = 1.0, *, exact: bool = False) -> float:
        known = replace(past("say", 1.0), spreads={"say": UsageSpread("say", 0.5, together, 3.0, tail)})
        found = estimate(stage, 100, 40.0, known, longer=1.0, exact=exact, each=3.0)
        assert found.usd_range is not None
        low, high = found.usd_range
        return log(high / low) / 2 / Z80

    assert width(9.0, exact=True) == pytest.approx(sqrt(0.5 * 2 / 100)), "how many there are is known"
    assert width(4.5) == pytest.approx(sqrt(1.5 * 2 / 100)), "no less than by chance"
    assert width(9.0) == pytest.approx(sqrt(6 * 2 / 100))
    assert width(9.0, 2.0) == pytest.approx(sqrt(12 * 2 / 100)), "a few of them decide it"


@pytest.mark.parametrize("workflow", few(list(estimates.CASES), 6, 1))
def test_shipped_workflows_cost_what_was_expected(tmp_path: Path, workflow: str) -> None:
    found = dict(estimates.shipped(tmp_path, workflow))
    assert abs(found["cold"].off) < 0.4
    assert abs(found["again"].off) < 0.15
    # the second half of its list has what the first one has, so most of what is made of it leaves
    assert workflow == "product_catalog" or abs(found["rest"].off) < 0.15


def test_ranges_of_heavy_tailed_answers_hold_about_as_often_as_they_say(tmp_path: Path) -> None:
    number, rows = (200, 100) if SOAK else (12, 20)
    found = [one for some in estimates.drawn_of_all(tmp_path, number, rows).values() for one in some]
    assert len(found) == number
    assert all(one.low < one.usd < one.high for one in found)
    held = sum(one.held for one in found) / number
    assert (0.75 <= held <= 0.85) if SOAK else held >= 0.5, estimates.summed(found)


def test_calls_whose_tokens_were_not_counted_do_not_make_the_others_cheaper(
    project: ProjectFolder, server: Server
) -> None:
    project.configure(server.base_url, prices=PRICES)
    project.workflow(rows=1, stages=[SAY])
    stage = project.plan().stages[0]
    assert isinstance(stage, PlannedStage)
    ten = Count(
        stage="say",
        outcome="call",
        model=stage.lane,
        tasks=10,
        unpriced=4,
        cost=0.6,
        input_tokens=600,
        output_tokens=60,
    )
    usage = usage_of([ten], stage)
    assert usage is not None
    assert usage[:2] == (100, 10)
