"""What the monitor shows is what the tables say, page by page, within bounds."""

import itertools
import json
from collections import Counter
from typing import Any

import pytest
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server

from agac.api import monitor, monitored_rows, run_curves
from agac.api.monitored_rows import RowFilters
from agac.core.errors import TookTooLong, UsageError
from agac.store import db, roll_ups

STAGES: list[dict[str, Any]] = [
    {"name": "split", "prompt": "Split: ${text}", "output_schema": {"parts": ["string"], "kind": "string"}},
    {"name": "judge", "explode": "split.parts", "needs": "split", "prompt": "${item}", "output_schema": SENTIMENT},
]
PRICES = {"small": {"input": 1.0, "output": 2.0}}
WORDS = ("fine", "unlucky", "100%", 'a "quote"', "café_au")


@pytest.fixture
def reviewed(project: ProjectFolder, faulty: Faulty) -> ProjectFolder:
    """A run of 40 rows with two stages: some fail at the first one, some were passed over, some repeat an id."""
    project.asks(
        faulty([{"kind": "bad_request", "match": "unlucky"}, {"kind": "wrong_schema", "match": "café"}]), prices=PRICES
    )
    rows = [{"id": f"r-{n}", "text": f"{WORDS[n % 5]} number {n}", "skip": str(n % 7 == 0)} for n in range(40)]
    rows += [{"id": "r-3", "text": "again", "skip": "False"}]
    stages = [
        {"name": "first", "prompt": "Review: ${text}", "output_schema": SENTIMENT, "when": 'skip != "True"'},
        {"name": "second", "prompt": "Once more: ${first}", "output_schema": SENTIMENT, "when": "first != null"},
    ]
    project.run(project.workflow(rows=rows, stages=stages, stop_loss=False, defaults={"repair": 0}))
    return project


async def pages(project: ProjectFolder, filters: RowFilters, limit: int) -> list[dict[str, Any]]:
    """All rows that the pages show."""
    found: list[dict[str, Any]] = []
    after = None
    for _ in range(1000):
        page = await monitored_rows.arows(1, filters, after, limit, project=project.root)
        assert len(page.rows) <= limit
        found += page.rows
        after = page.next
        if after is None:
            return found
    raise AssertionError("no end")


def stored(project: ProjectFolder, where: str = "true") -> set[int]:
    """The keys of the input's rows for which a condition holds."""
    text = f"SELECT key FROM row r WHERE ordinal IS NOT NULL AND {where}"
    return {key for (key,) in project.query(text)}


def at(stage: int, outcome: str) -> str:
    return f"EXISTS (SELECT 1 FROM task t WHERE t.row_key = r.key AND stage = {stage} AND outcome = '{outcome}')"


CASES = {
    "true": RowFilters(),
    "state = 1": RowFilters(state="done"),
    "state = 2": RowFilters(state="failed"),
    "state = 5": RowFilters(state="skipped"),
    "state = 2 ": RowFilters(state="failed", sort="id"),
    "error_type = 'DuplicateId'": RowFilters(error="DuplicateId"),
    "error_type = 'SchemaMismatch' AND error_stage = 'first'": RowFilters(error="SchemaMismatch", stage="first"),
    at(0, "skipped"): RowFilters(stage="first", state="skipped"),
    at(1, "done"): RowFilters(stage="second", state="done"),
    at(0, "failed"): RowFilters(stage="first", state="failed"),
    at(0, "failed") + " ": RowFilters(stage="first", state="failed", sort="id"),
    "id LIKE 'r-1%'": RowFilters(id="r-1"),
    "id LIKE 'r-1%' AND state = 1": RowFilters(id="r-1", state="done"),
    "data LIKE '%100\\%%' ESCAPE '\\'": RowFilters(text="100%"),
    "data LIKE '%quote%'": RowFilters(text='"quote"'),
    "data LIKE '%café%'": RowFilters(text="café_a"),
    "false": RowFilters(text="nowhere"),
}


@pytest.mark.parametrize("where", CASES)
async def test_pages_of_rows_are_complete_and_without_repeats(reviewed: ProjectFolder, where: str) -> None:
    there = stored(reviewed, where)
    for limit in (1, 3, 50):
        found = [row["key"] for row in await pages(reviewed, CASES[where], limit)]
        assert len(found) == len(set(found)), limit
        assert set(found) == there, limit


async def test_rows_have_the_order_that_is_told(reviewed: ProjectFolder) -> None:
    by_place = [row["number"] for row in await pages(reviewed, RowFilters(), 7)]
    assert by_place == sorted(by_place)
    by_id = [row["id"] for row in await pages(reviewed, RowFilters(sort="id"), 7)]
    assert by_id == sorted(by_id)
    by_error = [
        (row["error"], row["stage"] or "", row["number"])
        for row in await pages(reviewed, RowFilters(state="failed"), 2)
    ]
    assert by_error == sorted(by_error)
    page = await monitored_rows.arows(1, project=reviewed.root)
    assert (page.sorted_by, page.sorts) == ("place", ("place", "id"))
    with pytest.raises(UsageError, match="cannot be sorted by cost"):
        await monitored_rows.arows(1, RowFilters(sort="cost"), project=reviewed.root)
    with pytest.raises(UsageError, match="no place in this list"):
        await monitored_rows.arows(1, after="[1", project=reviewed.root)


async def test_a_row_in_a_list_says_what_its_calls_took(reviewed: ProjectFolder) -> None:
    for row in await pages(reviewed, RowFilters(), 50):
        ((calls, cost, tokens),) = reviewed.query(
            "SELECT count(*), round(sum(cost), 9), sum(input_tokens) FROM attempt WHERE row_key = ?", row["key"]
        )
        assert (row["calls"], row["cost_usd"], row["input_tokens"]) == (calls, cost, tokens)
        assert len(row["input"]) <= 160
        assert row["state"] in ("done", "failed", "skipped")


async def test_pages_go_on_while_rows_are_added(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=30), limit=10)
    first = await monitored_rows.arows(1, None, None, 4, project=project.root)
    with project.changed() as change:
        change(
            "INSERT INTO row (key, run_id, id, occurrence, ordinal, hash, data, state, seen) "
            "SELECT key + 1000, run_id, id || 'x', 0, ordinal + 1000, hash, data, 0, seen FROM row WHERE run_id = 1"
        )
    rest: list[Any] = [*first.rows]
    after = first.next
    while after is not None:
        page = await monitored_rows.arows(1, None, after, 4, project=project.root)
        rest, after = [*rest, *page.rows], page.next
    assert [row["number"] for row in rest] == [*range(1, 11), *range(1001, 1011)]


async def test_rows_that_stages_made_are_listed_by_stage(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "bad_request", "match": "unlucky"}]))
    project.run(project.workflow(rows=6, stages=STAGES, stop_loss=False))
    found = await pages(project, RowFilters(made_by="judge"), 2)
    assert {row["key"] for row in found} == {key for (key,) in project.query("SELECT key FROM row WHERE origin = 1")}
    assert all(row["number"] is None for row in found)


async def test_looking_is_bounded_and_goes_on(reviewed: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_ups, "MOST_LOOKED", 5)
    monkeypatch.setattr(roll_ups, "AT_ONCE", 2)
    page = await monitored_rows.arows(1, RowFilters(text="number 39"), project=reviewed.root)
    assert (page.rows, page.next is not None) == ((), True)
    assert 5 <= page.looked <= 6
    (row,) = await pages(reviewed, RowFilters(text="number 39"), 50)
    assert row["id"] == "r-39"


async def test_failures_are_grouped_with_examples_and_what_tries_them_again(reviewed: ProjectFolder) -> None:
    groups = await monitored_rows.aerrors(1, project=reviewed.root)
    told = Counter({(one.stage, one.type): one.rows for one in groups})
    text = "SELECT error_stage, error_type, count(*) FROM row WHERE state = 2 GROUP BY 1, 2"
    assert told == Counter({(stage, kind): count for stage, kind, count in reviewed.query(text)})
    assert [one.rows for one in groups] == sorted((one.rows for one in groups), reverse=True)
    for one in groups:
        assert sum(alike.rows for alike in one.messages) == one.looked == one.rows
    commands = {one.type: one.advice.command for one in groups}
    assert commands["SchemaMismatch"] == "agac retry 1 --stage first --error SchemaMismatch"
    assert commands["DuplicateId"].startswith("agac run -a reviews")


async def test_curves_come_to_the_counts_of_the_run(reviewed: ProjectFolder) -> None:
    reviewed.agac("retry", "1")
    curves, seen = (
        await run_curves.acurves(1, project=reviewed.root),
        (await monitor.arun(1, project=reviewed.root)).report,
    )
    for outcome in ("done", "failed", "skipped", "dropped"):
        assert sum(curves.lines[outcome]) == seen["rows"][outcome], outcome
    assert sum(curves.lines["calls"]) == seen["calls"]["count"]
    assert sum(curves.lines["failed_calls"]) == seen["calls"]["failed"]
    assert round(sum(curves.lines["cost_usd"]), 6) == seen["calls"]["cost_usd"]
    whole, slow = seen["timing_ms"]["duration"]["p50"], max(filter(None, curves.lines["p95_ms"]))
    assert 0 < whole <= slow * 1.2
    assert (len(curves.at), curves.step_s) == (len(curves.lines["p50_ms"]), 60)


async def test_a_run_says_what_may_be_done_now(reviewed: ProjectFolder) -> None:
    seen = await monitor.arun(project=reviewed.root)
    assert seen.report["state"] == "finished"
    assert [one.command for one in seen.advice] == ["agac retry 1", "agac export --run 1 --to results.csv"]
    assert (seen.lanes, seen.budgets, seen.batches, seen.asked) == ((), (), (), ())
    assert seen.report["pace"] == {"expected": 41, "exact": True, "rate": None, "eta_s": None}
    json.dumps(seen.as_json())


async def test_while_the_input_is_read_its_file_tells_how_many_rows_there_are_to_be(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=12), limit=10)
    with project.changed() as change:
        change("UPDATE run SET read_at = NULL")
    pace = (await monitor.arun(1, project=project.root)).report["pace"]
    assert (pace["expected"], pace["exact"]) == (10, False)
    (project.root / "data/rows.csv").unlink()
    assert (await monitor.aruns(project=project.root)).runs[0]["pace"]["expected"] is None


async def test_budgets_show_what_is_spent_of_them(project: ProjectFolder, server: Server) -> None:
    project.asks(server, prices=PRICES)
    stages = [{"name": "classify", "prompt": "${text}", "max_tokens": 500, "budget": {"calls": 50}}]
    project.run(project.workflow(rows=4, stages=stages, budget={"usd": 5, "tokens": 1_000_000}))
    seen = await monitor.arun(1, project=project.root)
    assert [(one.name, one.unit, one.limit) for one in seen.budgets] == [
        ("budget of the run", "usd", 5), ("budget of the run", "tokens", 1_000_000),
        ("budget of stage 'classify'", "calls", 50),
    ]  # fmt: skip
    assert seen.budgets[2].spent == 4
    assert 0 < seen.budgets[0].spent < 1
    curves = (await run_curves.acurves(1, project=project.root)).budgets
    assert {name: (line["spent"][-1], line["limit"][-1]) for name, line in curves.items()} == {
        f"{one.name}, {one.unit}": (one.spent, one.limit) for one in seen.budgets
    }
    assert all(line["spent"] == sorted(line["spent"]) for line in curves.values())


async def test_runs_come_page_by_page(project: ProjectFolder) -> None:
    for model in ("simulator/small", "simulator/large", "simulator/small?temperature=1"):
        project.configure()
        project.run(project.workflow(rows=1), model=model)
    found, after = [], None
    for _ in itertools.count():
        page = await monitor.aruns(after, 2, project=project.root)
        found += [one["run"] for one in page.runs]
        assert page.total == 3
        after = page.next
        if after is None:
            break
    assert found == [3, 2, 1]
    empty = ProjectFolder(project.root / "empty")
    assert (await monitor.aruns(project=empty.root)).runs == ()


async def test_a_look_that_takes_too_long_is_cut_and_says_so(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=1))
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    async with db.open_for_reading(project.root / ".agac/agac.db", 0.05) as database:
        assert database is not None
        with pytest.raises(TookTooLong, match="took longer than it may"), db.translated(database.path):
            await database.reader.at_once(lambda reader: reader.execute(endless).fetchall())


async def test_open_rows_come_last_first_since_they_are_the_last_ones(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=20))
    with project.changed() as change:
        change("UPDATE row SET state = 0 WHERE ordinal > 13")
    assert [row["number"] for row in await pages(project, RowFilters(state="open"), 3)] == [*range(20, 13, -1)]


async def test_what_the_monitor_reads_goes_with_its_run_and_lanes_after_a_week(project: ProjectFolder) -> None:
    project.configure()
    for model in ("simulator/small", "simulator/large"):
        project.run(project.workflow(rows=2), model=model)
    with project.changed() as change:
        for run, days in ((1, 0), (2, 0), (2, 8)):
            at = f"unixepoch() - {days} * 86400"
            change(f"INSERT INTO lane_sample VALUES ({run}, {at}, 'l', 0, 1, 1, 0, '', NULL, 0, 0)")
            change(
                f"INSERT INTO inbox (workflow, run_id, kind, body, at) VALUES ('reviews', {run}, 'stop', '{{}}', {at})"
            )
    project.agac("gc", "--keep-runs", "1", code=0)
    for table in ("minute", "minute_timing", "lane_sample", "inbox"):
        assert project.query(f"SELECT DISTINCT run_id FROM {table}") == [(2,)], table
    assert project.query("SELECT count(*) FROM lane_sample") == [(1,)]
