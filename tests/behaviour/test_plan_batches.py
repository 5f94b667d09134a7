"""`agac plan` of stages that are asked in batches: how many of them, at what price, and what is under way already."""

from collections.abc import Mapping
from typing import Any

import pytest
from support.batched import put_batch, put_task, store
from support.project import ProjectFolder
from support.server import Server

import agac
from agac.api.project import open_project, ready_workflow
from agac.plan.plan import make_plan
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
    report: dict[str, Any] = agac.plan_run("reviews", agac.RunOptions(**options), project=project.root).as_json()
    return report


def stage_of(project: ProjectFolder, place: int = 0, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = planned(project, **options)["stages"][place]
    return found


def prints(project: ProjectFolder, rows: Mapping[str, str]) -> list[bytes]:
    """The fingerprints of the first stage for rows with these texts, by id."""
    opened = open_project(project.root)
    checked, options = ready_workflow(opened, "reviews", agac.RunOptions())
    plan = make_plan(checked.workflow, checked.models, opened.root, options.selection(), None)
    preparer, found = Preparer(plan.stages, plan.vars, 1), []
    for row_id, text in rows.items():
        made = preparer.prepare(plan.asking[0], preparer.view({"id": row_id, "text": text}), row_id)
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


def test_a_price_that_is_not_known_stays_unknown(batching: ProjectFolder, server: Server) -> None:
    batching.configure(server.base_url, batch="openai")
    report = planned(batching)
    assert (report["usd"], report["stages"][0]["estimate"]["usd"]) == (None, None)


def test_how_many_batches_there_will_be(batching: ProjectFolder) -> None:
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


def test_the_providers_own_bound_cuts_batches(batching: ProjectFolder, server: Server) -> None:
    batching.configure(server.base_url, batch={"api": "openai", "max_requests": 7}, prices=PRICES)
    found = stage_of(batching)["batches"]
    assert (found["count"], found["requests_at_most"]) == (2, 7)


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


def test_a_plan_without_batches_has_no_column_for_them(batching: ProjectFolder) -> None:
    shown = batching.agac("plan", "-a", "reviews", "--run-mode", "sync").out
    assert " mode " not in shown
    assert "batch" not in shown
    assert "Run it with: agac run -a reviews --run-mode sync" in shown
    assert planned(batching, run_mode="sync")["segments"] == [["say"]]


def test_what_is_in_flight_is_neither_asked_nor_paid_again(batching: ProjectFolder) -> None:
    batching.numbered(2)
    assert batching.run(run_mode="sync").exit_code == 0
    batching.numbered(10)
    before = stage_of(batching)
    assert (before["run"], before["in_flight"], before["reuse"]) == (8, 0, 2)
    texts = {f"r-{i}": f"I love number {i}" for i in (3, 4, 5)}
    enrol(batching, batch(batching, tasks=3), prints(batching, texts))
    stage = stage_of(batching)
    assert (stage["run"], stage["in_flight"], stage["reuse"], stage["reasons"][0]["tasks"]) == (5, 3, 2, 5)
    assert stage["estimate"]["calls"] == 5
    assert stage["estimate"]["usd"] == pytest.approx(before["estimate"]["usd"] * 5 / 8, abs=2e-6)
    assert stage["batches"]["count"] == 1
    # whichever mode the stage has now: the question is asked already
    assert stage_of(batching, run_mode="sync")["in_flight"] == 3
    shown = batching.agac("plan", "-a", "reviews").out
    assert "  in batch  " in shown
    assert "say: 3 in open batches: not sent or paid again" in shown


def test_what_follows_a_task_in_flight_is_still_to_be_asked(batching: ProjectFolder) -> None:
    batching.numbered(2)
    stages = [SAY, {"name": "more", "prompt": "x ${say}", "max_tokens": 500}]
    batching.workflow(stages=stages, defaults={"run_mode": "batch"})
    assert batching.run(run_mode="sync").exit_code == 0
    batching.numbered(4)
    texts = {f"r-{i}": f"I love number {i}" for i in (3, 4)}
    enrol(batching, batch(batching, tasks=2), prints(batching, texts))
    say, more = planned(batching)["stages"]
    assert (say["run"], say["in_flight"], say["reuse"]) == (0, 2, 2)
    assert (more["run"], more["in_flight"], more["reuse"]) == (2, 0, 2)


def test_replicas_are_in_flight_one_by_one(batching: ProjectFolder) -> None:
    batching.workflow(rows=1, stages=[{**SAY, "replicas": 3}], defaults={"run_mode": "batch"})
    assert batching.run(run_mode="sync").exit_code == 0
    batching.numbered(3)
    [*second, _], third = prints(batching, {"r-2": "I love number 2"}), prints(batching, {"r-3": "I love number 3"})
    enrol(batching, batch(batching, tasks=5), [*second, *third])
    stage = stage_of(batching)
    assert (stage["run"], stage["in_flight"], stage["reuse"]) == (1, 1, 1)
    assert stage["estimate"]["calls"] == 1


def test_parts_of_a_large_group_are_in_flight_one_by_one(batching: ProjectFolder) -> None:
    batching.numbered(4)
    stage = {"name": "all", "group_by": [], "reduce": {"max_rows": 2}, "prompt": "${rows_json}"}
    batching.workflow(stages=[stage], defaults={"run_mode": "batch"})
    assert batching.run(run_mode="sync").exit_code == 0
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


def test_fresh_and_ended_batches_count_nothing_as_in_flight(batching: ProjectFolder) -> None:
    batching.numbered(2)
    assert batching.run(run_mode="sync").exit_code == 0
    batching.numbered(3)
    enrol(batching, batch(batching), prints(batching, {"r-3": "I love number 3"}))
    assert stage_of(batching)["in_flight"] == 1
    assert stage_of(batching, fresh=True)["in_flight"] == 0
    with store(batching) as database:
        database.execute("UPDATE batch SET state = 'INGESTED'")
        database.execute("UPDATE batch_task SET state = 3")
    assert (stage_of(batching)["run"], stage_of(batching)["in_flight"]) == (1, 0)


def test_how_long_batches_of_the_lane_took_is_told(batching: ProjectFolder) -> None:
    batching.numbered(1)
    assert batching.run(run_mode="sync").exit_code == 0
    batching.numbered(2)
    batch(batching, "CLEANED", submitted_at=100.0, ended_at=160.0)
    batch(batching, "CLEANED", submitted_at=0.0, ended_at=9.0, model="other")
    batch(batching, "CLEANED", submitted_at=0.0, ended_at=9.0, account="another")
    assert "1 request, at batch price; the previous one took 1m 00s\n" in batching.agac("plan", "-a", "reviews").out
    for minutes in range(2, 21):
        batch(batching, "CLEANED", submitted_at=0.0, ended_at=60.0 * minutes)
    found = stage_of(batching)["batches"]
    assert (found["ended_before"], found["p50_s"], found["p95_s"]) == (20, 600.0, 1140.0)
    shown = batching.agac("plan", "-a", "reviews").out
    assert (
        "1 batch of 1 request, at batch price; of 20 earlier ones, half took 10m 00s or less, 95 % within 19m 00s"
        in shown
    )


def test_what_open_batches_may_cost_counts_against_budgets(batching: ProjectFolder) -> None:
    stages = [{**SAY, "budget": {"usd": 5}}]
    batching.workflow(rows=1, stages=stages, defaults={"run_mode": "batch"}, budget={"usd": 9})
    assert batching.run(run_mode="sync").exit_code == 0
    batching.numbered(3)
    assert [one["enough"] for one in planned(batching)["budgets"]] == [True, True]
    batch(batching, held_usd=4.9999, held_tokens=10)
    assert [one["enough"] for one in planned(batching)["budgets"]] == [True, False]
    batch(batching, held_usd=4.0)
    assert [one["enough"] for one in planned(batching)["budgets"]] == [False, False]
