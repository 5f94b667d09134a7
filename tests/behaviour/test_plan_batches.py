"""`agac plan` of stages that are asked in batches: how many of them, at what price, and what is under way already."""

from typing import Any

import pytest
from support.batched import put_batch, put_task, store
from support.batchrun import Make, advance
from support.processes import kill_at
from support.project import ProjectFolder
from support.server import Server

import agac
from agac.api.project import open_project
from agac.plan.render import Prepared, Preparer

PRICES = {"small": {"input": 1.0, "output": 10.0, "batch": 0.5}}
SAY: dict[str, Any] = {"name": "say", "prompt": "Say ${text}", "max_tokens": 50}


@pytest.fixture
def batching(project: ProjectFolder, server: Server) -> ProjectFolder:
    """A project of ten rows whose provider has batches."""
    project.configure(server.base_url, batch="openai", prices=PRICES)
    project.workflow(rows=10, stages=[SAY], defaults={"run_mode": "batch"})
    return project


def planned(project: ProjectFolder, **options: Any) -> dict[str, Any]:
    report: dict[str, Any] = agac.plan("reviews", agac.RunOptions(**options), project=project.root).as_json()
    return report


def stage_of(project: ProjectFolder, place: int = 0, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = planned(project, **options)["stages"][place]
    return found


def counts(project: ProjectFolder, place: int = 0, **options: Any) -> tuple[int, int, int]:
    stage = stage_of(project, place, **options)
    return stage["run"], stage["in_flight"], stage["reuse"]


def ran(project: ProjectFolder, then: int, rows: int = 2, **keys: Any) -> None:
    """Some rows have run, by calls; `then` are there now."""
    project.workflow(rows=rows, **{"stages": [SAY], "defaults": {"run_mode": "batch"}} | keys)
    assert project.run(run_mode="sync").exit_code == 0
    project.numbered(then)


def prints(project: ProjectFolder, *numbers: int) -> list[bytes]:
    """The fingerprints of the first stage for the rows of these numbers."""
    plan = project.plan()
    preparer, found = Preparer(plan.stages, plan.vars, 1), []
    for number in numbers:
        data: dict[str, Any] = {"id": f"r-{number}", "text": f"I love number {number}"}
        made = preparer.prepare(plan.asking[0], preparer.view(data), data["id"])
        assert isinstance(made, Prepared)
        found += made.replicas or [made.fingerprint]
    return found


def batch(project: ProjectFolder, state: str = "SUBMITTED", **columns: Any) -> int:
    """Puts a batch of run 1 into the store, as the engine leaves it."""
    provider = open_project(project.root).providers["local"]
    own = {"base_url": provider.base_url, "account": provider.account, "state": state, "held_usd": 0.0}
    return put_batch(project, **own | columns)


def enrol(project: ProjectFolder, number: int, fingerprints: list[bytes]) -> None:
    for place, one in enumerate(fingerprints):
        put_task(project, 1000 + place, batch_id=number, place=place, fingerprint=one)


def test_batches_cost_the_price_of_batches_and_at_most_that_of_calls_that_take_over(batching: ProjectFolder) -> None:
    cheap, full = stage_of(batching)["estimate"], stage_of(batching, run_mode="sync")["estimate"]
    assert full["usd"] > 0
    assert (cheap["calls"], cheap["input_tokens"]) == (full["calls"], full["input_tokens"])
    rules: list[tuple[dict[str, Any], int]] = [
        ({}, 2),
        ({"deadline": "8h"}, 1),
        ({"deadline": "07:30", "on_deadline": "wait"}, 2),
        ({"retry": "fail"}, 2),
    ]
    for some, divided_by in rules:
        batching.workflow(stages=[{**SAY, "run_mode": "batch", "batch": some}])
        found = stage_of(batching)["estimate"]
        assert found["usd"] == pytest.approx(full["usd"] / 2, abs=1e-6)
        assert found["usd_at_most"] == pytest.approx(full["usd_at_most"] / divided_by, abs=2e-6)
    batching.workflow(stages=[{**SAY, "run_mode": "batch", "batch": {"retry": "sync"}}])
    assert cheap["usd_at_most"] < stage_of(batching)["estimate"]["usd_at_most"] < full["usd_at_most"]


def test_how_many_batches_there_will_be(batching: ProjectFolder, server: Server) -> None:
    rules: list[tuple[dict[str, Any], int, int]] = [
        ({}, 1, 10),
        ({"max_requests": 4}, 3, 4),
        ({"max_requests": 10}, 1, 10),
        ({"max_bytes": "1kB"}, 5, 2),
        ({"max_bytes": 1}, 10, 1),
    ]
    for some, count, most in rules:
        batching.workflow(stages=[{**SAY, "run_mode": "batch", "batch": some}])
        stage = stage_of(batching)
        assert stage["run_mode"] == "batch"
        assert stage["batches"] == {
            "count": count, "requests_at_most": most, "completion_window": "24h",
            "ended_before": 0, "p50_s": None, "p95_s": None,
        }  # fmt: skip
    batching.workflow(stages=[SAY], defaults={"run_mode": "batch"})
    batching.configure(server.base_url, batch={"api": "openai", "max_requests": 7})  # the provider's own bound
    report = planned(batching)
    found = report["stages"][0]
    assert (found["batches"]["count"], found["batches"]["requests_at_most"]) == (2, 7)
    assert (report["usd"], found["estimate"]["usd"]) == (None, None), "a price that is not known stays unknown"


def test_a_plan_in_words_says_which_stage_is_asked_how(batching: ProjectFolder) -> None:
    stages = [{**SAY, "batch": {"max_requests": 4}}, {"name": "more", "prompt": "x ${say}", "run_mode": "sync"}]
    stages.insert(0, {"name": "keep", "filter": "true"})
    batching.workflow(stages=stages, defaults={"run_mode": "batch"})
    shown = batching.agac("plan", "-a", "reviews").out
    lines = shown.splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith("stage "))
    head, keep, say, more = lines[place : place + 4]
    assert head.split()[:3] == ["stage", "model", "mode"]
    assert (keep.split()[:2], say.split()[2], more.split()[2]) == (["keep", "filter"], "batch", "sync")
    assert "in batch" not in head
    expected = (
        "say: 3 batches of up to 4 requests each, at batch price; no batch of this model has ended yet, and the "
        "provider takes up to 24h"
    )
    assert expected in shown
    report = planned(batching)
    assert report["segments"] == [["keep", "say"], ["more"]]
    assert [stage["run_mode"] for stage in report["stages"]] == [None, "batch", "sync"]
    assert report["stages"][2]["batches"] is None
    shown = batching.agac("plan", "-a", "reviews", "--run-mode", "sync").out
    assert (" mode " in shown, "at batch price" in shown) == (False, False)
    assert "Run it with: agac run -a reviews --run-mode sync" in shown
    assert planned(batching, run_mode="sync")["segments"] == [["keep", "say", "more"]]


def test_what_is_in_flight_is_neither_asked_nor_paid_again(batching: ProjectFolder) -> None:
    ran(batching, then=10)
    before = stage_of(batching)
    assert counts(batching) == (8, 0, 2)
    enrol(batching, batch(batching, tasks=3), prints(batching, 3, 4, 5))
    assert counts(batching) == (5, 3, 2)
    stage = stage_of(batching)
    assert (stage["reasons"][0]["tasks"], stage["estimate"]["calls"], stage["batches"]["count"]) == (5, 5, 1)
    assert stage["estimate"]["usd"] == pytest.approx(before["estimate"]["usd"] * 5 / 8, abs=2e-6)
    # whichever mode the stage has now: the question is asked already
    assert counts(batching, run_mode="sync") == (5, 3, 2)
    assert counts(batching, fresh=True)[:2] == (10, 0)
    shown = batching.agac("plan", "-a", "reviews").out
    assert "  in batch  " in shown
    assert "say: 3 in open batches: not sent or paid again" in shown
    with store(batching) as database:
        database.execute("UPDATE batch SET state = 'INGESTED'")
        database.execute("UPDATE batch_task SET state = 3")
    assert counts(batching) == (8, 0, 2), "what an ended batch held is not in flight"


def test_what_follows_a_task_in_flight_is_still_to_be_asked(batching: ProjectFolder) -> None:
    ran(batching, then=4, stages=[SAY, {"name": "more", "prompt": "x ${say}", "max_tokens": 500}])
    enrol(batching, batch(batching, tasks=2), prints(batching, 3, 4))
    assert [counts(batching, place) for place in (0, 1)] == [(0, 2, 2), (2, 0, 2)]


def test_replicas_are_in_flight_one_by_one(batching: ProjectFolder) -> None:
    ran(batching, rows=1, then=3, stages=[{**SAY, "replicas": 3}])
    enrol(batching, batch(batching, tasks=5), prints(batching, 2)[:2] + prints(batching, 3))
    assert counts(batching) == (1, 1, 1)
    assert stage_of(batching)["estimate"]["calls"] == 1


def test_parts_of_a_large_group_are_in_flight_one_by_one(batching: ProjectFolder) -> None:
    stage = {"name": "all", "group_by": [], "reduce": {"max_rows": 2}, "prompt": "${rows_json}"}
    ran(batching, rows=4, then=4, stages=[stage])
    asked = [one for (one,) in batching.query("SELECT t.fingerprint FROM task t JOIN row r ON r.key = t.row_key "
                                              "WHERE r.id LIKE '%/%' ORDER BY r.key")]  # fmt: skip
    assert len(asked) >= 2
    with store(batching) as database:
        database.execute("DELETE FROM task")
        database.execute("DELETE FROM result")
    before = stage_of(batching)
    assert (before["run"], before["parts"], before["in_flight"]) == (1, len(asked), 0)
    enrol(batching, batch(batching), asked[:1])
    found = stage_of(batching)
    assert (found["run"], found["parts"], found["in_flight"]) == (1, len(asked) - 1, 1)
    assert found["estimate"]["calls"] == before["estimate"]["calls"] - 1


def test_how_long_batches_of_the_lane_took_is_said(batching: ProjectFolder) -> None:
    ran(batching, rows=1, then=2)
    batch(batching, "CLEANED", submitted_at=100.0, ended_at=160.0)
    batch(batching, "CLEANED", submitted_at=0.0, ended_at=9.0, model="other")
    batch(batching, "CLEANED", submitted_at=0.0, ended_at=9.0, account="another")
    assert "1 request, at batch price; the previous one took 1m 00s\n" in batching.agac("plan", "-a", "reviews").out
    for minutes in range(2, 21):
        batch(batching, "CLEANED", submitted_at=0.0, ended_at=60.0 * minutes)
    found = stage_of(batching)["batches"]
    assert (found["ended_before"], found["p50_s"], found["p95_s"]) == (20, 600.0, 1140.0)
    said = "1 batch of 1 request, at batch price; of 20 earlier ones, half took 10m 00s or less, 95 % within 19m 00s"
    assert said in batching.agac("plan", "-a", "reviews").out


def test_what_open_batches_may_cost_counts_against_budgets(batching: ProjectFolder) -> None:
    ran(batching, rows=1, then=3, stages=[{**SAY, "budget": {"usd": 5}}], budget={"usd": 9})
    assert [one["enough"] for one in planned(batching)["budgets"]] == [True, True]
    batch(batching, held_usd=4.9999, held_tokens=10)
    assert [one["enough"] for one in planned(batching)["budgets"]] == [True, False]
    batch(batching, held_usd=4.0)
    assert [one["enough"] for one in planned(batching)["budgets"]] == [False, False]


@pytest.mark.parametrize("commit", range(1, 7))
def test_a_refusal_that_a_batch_brought_is_not_planned_again(batches_at: Make, commit: int) -> None:
    """Also where the command that took it was killed before the row had it."""
    project = batches_at({"kind": "refusal", "match": "number 1"}, seconds=100, rows=2)
    project.submit(SAY)
    advance(project.server, 100)
    project.agac("run", "-a", "reviews", env=kill_at(f"committed:{commit}"))
    plan, account = planned(project), project.account
    project.run()
    submitted = project.account["created"] - account["created"]
    assert (plan["calls"], plan["exact"]) == (submitted, True)
