"""What a plan says a run costs: both ways of asking, what it rests on; and how it learns from what came."""

import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_server import run_at
from support.project import SENTIMENT, ProjectFolder
from support.server import Server
from support.soak import SOAK, few
from test_costs import served

import agac
from agac.engine.forecast.past_usage import usage_of
from agac.plan.stage import PlannedStage
from agac.store.runs import Count

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
estimates = __import__("estimates")

PRICES = {"small": {"input": 1.0, "output": 10.0, "batch": 0.5, "flex": 0.6}}
SAY: dict[str, Any] = {"name": "say", "prompt": "Say ${text}", "output_schema": SENTIMENT}


def planned(project: ProjectFolder, **options: Any) -> agac.PlanReport:
    return agac.plan("reviews", agac.RunOptions(**options), project=project.root)


def test_both_ways_and_what_they_rest_on_are_shown_together(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices=PRICES, batch="openai")
    project.workflow(rows=40, stages=[SAY])
    first = project.agac("plan", "-a", "reviews", "--json").json
    usd = first["usd"]
    assert first["ways"] == {
        "sync": usd,
        "batch": pytest.approx(usd / 2, rel=0.01),
        "flex": pytest.approx(0.6 * usd, 0.01),
    }
    assert first["seconds"] is None
    assert "(from 40 prompts and a guess of lengths), time unknown" in project.agac("plan", "-a", "reviews").out
    project.run(limit=20)
    project.run(limit=30)
    second = project.agac("plan", "-a", "reviews", "--json").json
    [stage] = second["stages"]
    assert (stage["sampled"], stage["estimate"]["past_tasks"], stage["estimate"]["basis"]) == (10, 30, "history")
    assert second["seconds"] > 0
    shown = project.agac("plan", "-a", "reviews").out
    assert "(from 10 prompts and 30 earlier tasks), about 1s" in shown
    batched = planned(project, run_mode="batch")
    assert batched.usd == pytest.approx(second["ways"]["batch"], rel=0.01)
    assert batched.stages[0].estimate.seconds is None, "no batch has ended yet"


def test_a_price_that_is_not_known_is_not_guessed(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url)
    project.workflow(rows=3, stages=[SAY])
    report = planned(project)
    assert (report.usd, report.ways) == (None, {"sync": None, "batch": None, "flex": None})


def test_a_run_keeps_its_estimate_once_and_a_run_without_calls_keeps_none(
    project: ProjectFolder, server: Server
) -> None:
    project.configure(server.base_url, prices=PRICES)
    project.workflow(rows=6, stages=[SAY])
    project.run()
    kept = project.query("SELECT run_id, stage, lane, basis, tasks, calls, usd > 0 FROM estimate")
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


@pytest.mark.parametrize("workflow", few(list(estimates.CASES), 6, 1))
def test_shipped_workflows_cost_what_was_expected(tmp_path: Path, workflow: str) -> None:
    found = dict(estimates.shipped(tmp_path, workflow))
    assert abs(found["cold"].off) < 0.4
    assert abs(found["again"].off) < 0.15
    # the second half of its list has what the first one has, so most of what is made of it leaves
    assert workflow == "product_catalog" or abs(found["rest"].off) < 0.15


def test_estimates_of_heavy_tailed_answers_are_right_in_the_mean(tmp_path: Path) -> None:
    number, rows = (200, 100) if SOAK else (12, 20)
    found = [one for some in estimates.drawn_of_all(tmp_path, number, rows).values() for one in some]
    assert len(found) == number
    mean = sum(one.off for one in found) / number
    assert abs(mean) < (0.1 if SOAK else 0.35), estimates.summed(found)


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
