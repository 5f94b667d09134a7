"""Budgets over batches: reserved when a request is enrolled, corrected when its answer is in, never passed."""

from typing import Any

import pytest
from support.batchrun import BatchProject, Make, advance
from support.server import Server
from support.soak import few

from agac.spec.rules import Budget

SECONDS = 100
PRICES = {"small": {"input": 1.0, "output": 2.0, "batch": 0.5}, "echo": {"input": 1.0, "output": 2.0, "batch": 0.5}}
SAY: dict[str, Any] = {"name": "say", "prompt": "Tell of ${text}", "max_tokens": 200}


@pytest.fixture
def make(batches_at: Make) -> Make:
    """Makes a project with priced models whose batches take a while."""

    def start(*faults: dict[str, Any], rows: int = 50, stages: Any = None, seconds: int = SECONDS, **keys: Any) -> Any:
        project = batches_at(*faults, rows=rows, seconds=seconds, prices=PRICES)
        project.batched(*(stages or [SAY]), stop_loss=False, **keys)
        return project

    return start


def spent(project: BatchProject) -> float:
    """What the server took, in dollars: batches at half the price."""
    account = project.server.account()
    batches = account["batches"]
    return (
        float(
            (account["prompt_tokens"] + batches["prompt_tokens"] * 0.5) * 1.0
            + (account["completion_tokens"] + batches["completion_tokens"] * 0.5) * 2.0
        )
        / 1e6
    )


def held(project: BatchProject) -> float:
    """What is set aside for batches that are open."""
    states = "('INGESTED', 'CLEANED', 'NOT_CREATED', 'REJECTED')"
    [(usd,)] = project.query(f"SELECT coalesce(sum(held_usd), 0) FROM batch WHERE state NOT IN {states}")
    return float(usd)


@pytest.mark.parametrize("budget", few([{"usd": 0.0009}, {"tokens": 700}, {"calls": 17}], 3))
def test_it_stops_before_the_budget_and_only_when_nothing_is_open(make: Make, budget: dict[str, Any]) -> None:
    project = make(budget=budget)
    first = project.run()
    assert first.exit_code == 0, "what fits is submitted; what does not may find room when answers are in"
    [(tasks,)] = project.query("SELECT sum(tasks) FROM batch")
    assert 0 < tasks < 50
    most = {"usd": 1e9, "tokens": 1e9, "calls": 1e9} | budget
    assert held(project) <= most["usd"]
    assert tasks <= most["calls"]
    for _ in range(30):
        advance(project.server, SECONDS)
        report = project.retrieve()
        account = project.account
        assert spent(project) + held(project) <= most["usd"] * (1 + 1e-9)
        assert account["prompt_tokens"] + account["completion_tokens"] <= most["tokens"]
        assert account["charged"] <= most["calls"]
        if report.exit_code == 4:
            break
        assert report.exit_code in (0, 75), report.message
    assert (report.exit_code, report.run.stop, held(project)) == (4, "limit", 0)
    assert "budget" in str(report.run.stopped)
    # answers are cheaper than the worst case: a second batch finds room
    assert account["charged"] == 17 if "calls" in budget else account["created"] > 1
    assert project.query("SELECT count(*) FROM row WHERE state = 1") == [(account["charged"],)]
    assert project.output(file="summary.json")["complete"] is False


def test_waiting_goes_on_until_all_is_done_or_the_budget_is_spent(make: Make, server: Server) -> None:
    """The worst case of all of them does not fit; what they really cost may."""
    project = make(seconds=0, rows=30, stages=[SAY | {"model": "local/echo"}], budget={"usd": 0.003})
    assert project.run(wait=True).exit_code == 0
    assert project.query("SELECT max(tasks) < 30, count(*) > 1 FROM batch") == [(1, 1)]
    assert project.doubles() == 0
    project.assert_as_sync(server)
    before = spent(project)
    project.batched(SAY, stop_loss=False, budget={"usd": 0.0004})
    assert project.run(wait=True).exit_code == 4
    assert 0 < spent(project) - before <= 0.0004
    assert held(project) == 0


def test_more_budget_goes_on_with_the_rest(make: Make, server: Server) -> None:
    project = make(rows=12, budget={"calls": 5})
    project.run()
    advance(project.server, SECONDS)
    assert project.retrieve().exit_code == 4
    stopped = project.agac("run", "-a", "reviews", code=4)
    assert "budget" in stopped.err + stopped.out
    assert project.run(budget=Budget(calls=100)).exit_code == 0
    project.to_the_end(seconds=SECONDS)
    assert (project.charged(), project.doubles()) == ((2, 12), 0)
    project.batched(SAY, stop_loss=False)
    project.assert_as_sync(server)


def test_batches_are_reserved_at_their_own_price(make: Make) -> None:
    """Twice as many fit as at the price of calls."""
    project = make(budget={"usd": 0.004})
    project.run()
    [(tasks, usd)] = project.query("SELECT tasks, held_usd FROM batch")
    assert usd <= 0.004
    assert usd / tasks < (200 * 2.0 + 100) / 1e6
    assert usd / tasks > 200 * 2.0 * 0.5 / 1e6


@pytest.mark.parametrize("budget", [{"usd": 0.002}, {"tokens": 2_000}])
def test_answers_of_batches_that_count_no_tokens_are_not_free(make: Make, budget: dict[str, Any]) -> None:
    """What was set aside for them stays so: no further batch finds room in it."""
    project = make({"kind": "zero_usage", "always": True}, budget=budget)
    project.run()
    [(tasks, usd, tokens)] = project.query("SELECT tasks, held_usd, held_tokens FROM batch")
    advance(project.server, SECONDS)
    report = project.retrieve()
    assert (report.exit_code, report.run.stop) == (4, "limit")
    assert project.query("SELECT count(*) FROM row WHERE state = 1") == [(tasks,)]
    assert project.charged() == (1, tasks)
    [(held_usd, held_tokens)] = project.query("SELECT sum(held_cost), sum(held_tokens) FROM counter")
    assert held_usd == pytest.approx(usd)
    assert tokens - tasks < held_tokens <= tokens


def test_the_budget_of_a_stage(make: Make) -> None:
    stages = [
        SAY | {"model": "local/echo"},
        {**SAY, "name": "more", "prompt": "More of ${say}", "budget": {"calls": 4}},
    ]
    project = make(rows=10, stages=stages)
    project.run()
    advance(project.server, SECONDS)
    assert [one["requests"] for one in project.retrieve().submitted] == [4]
    advance(project.server, SECONDS)
    assert project.retrieve().exit_code == 4
    assert project.charged() == (2, 14)


def test_the_budget_of_a_row(make: Make) -> None:
    """A row whose requests could cost more than it may spend fails, as by calls."""
    project = make(rows=5, row_budget={"tokens": 100})
    assert project.run().exit_code == 3
    assert project.account["files"] == 0
    assert project.query("SELECT DISTINCT error_type FROM row") == [("BudgetExceeded",)]


def test_confirm_above_asks_before_anything_is_sent(make: Make) -> None:
    project = make(confirm_above={"usd": 0.0001})
    refused = project.agac("run", "-a", "reviews")
    assert (refused.code, refused.out) == (2, "")
    assert "no calls were made" in refused.err
    assert project.account["files"] == project.account["posts"] == 0
    project.agac("run", "-a", "reviews", "--yes", code=0)
    assert project.account["posts"] == 1
    advance(project.server, SECONDS)
    project.agac("batch", "retrieve", code=0)


@pytest.mark.parametrize("limit", [0, 3])
def test_max_errors_stops_when_the_answers_are_in(make: Make, limit: int) -> None:
    stages = [SAY | {"model": "local/echo"}, SAY | {"name": "more", "prompt": "M ${say}"}]
    fault = {"kind": "batch_line_status", "status": 400, "lines": [1, 2, 3, 4, 5], "at": [1]}
    project = make(fault, rows=20, stages=stages, max_errors=limit)
    project.run()
    advance(project.server, SECONDS)
    stopped = project.retrieve()
    assert stopped.exit_code == 4
    assert "errors" in str(stopped.run.stopped)
    assert project.account["charged"] == 15
    # nothing that was paid for is lost
    assert project.run(max_errors=100).exit_code == 0
    project.to_the_end(seconds=SECONDS)
    assert project.doubles() == 0


def test_stop_loss_submits_no_more_of_a_stage_that_fails(batches_at: Make) -> None:
    """Nobody pays for the second stage, nor for another round, when nearly all of the first failed alike."""
    project = batches_at({"kind": "batch_line_status", "status": 400, "at": [1]}, rows=60, seconds=SECONDS)
    project.submit(SAY, {"name": "more", "prompt": "M ${say}"}, defaults={"batch": {"max_requests": 30}})
    advance(project.server, SECONDS)
    report = project.retrieve(1)
    assert (report.run.stop, report.exit_code, project.charged()) == ("loss", 1, (2, 30))
    assert project.steps() == ["CLEANED", "SUBMITTED"]
    # what the other batch brought is taken in all the same by the next command
    project.retrieve()
    assert project.query("SELECT count(*) FROM attempt WHERE error_type IS NULL") == [(30,)]
    assert project.doubles() == 0
