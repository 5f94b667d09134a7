"""Every figure of every page of the monitor is what the tables of the store come to, and what `agac status` says."""

import csv
import io
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.monitor import Watched, monitor
from support.project import ProjectFolder
from support.server import simulator
from support.shop import FAULTS, NAME, run_shop

RUNS = (1, 2)


class Reading(HTMLParser):
    """A page as people read it. `figures`: values by their titles; `tables`: by name, their rows, each a value by the
    column's title; `text`: all of it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.figures, self.tables, self.words = dict[str, str](), dict[str, list[dict[str, str]]](), list[str]()
        self._open, self._header, self._cells, self._name, self._title = "", list[str](), list[str](), "", ""
        self.feed(page)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("role") == "region":
            self._name = given.get("aria-label") or ""
        elif tag == "table":
            self._header, self.tables[self._name] = [], []
        elif tag == "tr":
            self._cells = []
        elif tag in ("td", "th", "dt", "dd"):
            self._open = ""

    def handle_data(self, data: str) -> None:
        self._open += data
        self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        text = " ".join(self._open.split())
        if tag in ("td", "th"):
            self._cells.append(text)
        elif tag == "tr" and not self._header:
            self._header = self._cells
        elif tag == "tr" and len(self._cells) == len(self._header):
            self.tables[self._name].append(dict(zip(self._header, self._cells, strict=True)))
        elif tag == "dt":
            self._title = text
        elif tag == "dd":
            self.figures[self._title] = text


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectFolder]:
    folder = tmp_path_factory.mktemp("shop")
    with simulator(faults=FAULTS, folder=folder / "faults") as server:
        yield run_shop(ProjectFolder(folder / "project"), server.base_url, rows=28)


@pytest.fixture(scope="module")
def watched(shop: ProjectFolder) -> Iterator[Watched]:
    with monitor(shop, "--write") as started:
        yield started


@pytest.fixture(scope="module")
def status(shop: ProjectFolder) -> dict[int, Any]:
    """What `agac status RUN --json` says of each run."""
    return {run: shop.agac("status", str(run), "--json", code=0).json["runs"][0] for run in RUNS}


def one(project: ProjectFolder, text: str, *values: Any) -> Any:
    ((value,),) = project.query(text, *values)
    return value


def by_state(project: ProjectFolder, run: int) -> dict[str, int]:
    names = {0: "open", 1: "done", 2: "failed", 5: "skipped"}
    found = dict.fromkeys(("open", "done", "failed", "skipped", "dropped"), 0)
    for state, count in project.query("SELECT state, count(*) FROM row WHERE run_id = ? GROUP BY 1", run):
        found[names.get(state, "dropped")] += count
    return found


CALLS = "FROM attempt a JOIN row r ON r.key = a.row_key WHERE r.run_id = ?"


def simulated(cost: float) -> str:
    return f"simulated ${cost:.4f}"


@pytest.mark.parametrize("run", RUNS)
def test_a_run_and_its_line_in_the_list(run: int, shop: ProjectFolder, watched: Watched, status: Any) -> None:
    states = by_state(shop, run)
    assert all(states[name] for name in ("open", "done", "failed", "skipped")), "the example shows all of it"
    calls, cost, given, made = shop.query(
        f"SELECT count(*), sum(cost), sum(input_tokens), sum(output_tokens) {CALLS}", run
    )[0]
    failed = one(shop, f"SELECT count(*) {CALLS} AND a.error_type IS NOT NULL", run)
    told = status[run]
    assert told["calls"]["cost_usd"] == pytest.approx(cost, abs=1e-6)
    page = Reading(watched.get(f"/run/{run}").text)
    expected = {
        "Rows": str(told["rows"]["total"]), "Done": str(states["done"]), "Failed": str(states["failed"]),
        "Skipped or dropped": str(states["skipped"] + states["dropped"]), "Open": str(states["open"]),
        "Cost": simulated(cost), "Calls": str(calls), "Tokens in": f"{given:,}", "Tokens out": f"{made:,}",
        "Failed calls": str(failed), "Started": told["started_at"], "Last worked on": told["last_worked_at"],
    }  # fmt: skip
    assert {name: page.figures[name] for name in expected} == expected
    (line,) = (one for one in Reading(watched.get("/").text).tables["Runs"] if one["Run"] == str(run))
    assert (line["Workflow"], line["State"], line["Started"]) == (NAME, told["state"], told["started_at"])
    assert [line[name] for name in ("Done", "Failed", "Calls", "Cost")] == [
        expected[name] for name in ("Done", "Failed", "Calls", "Cost")
    ]


@pytest.mark.parametrize("run", RUNS)
def test_stages_batches_budgets_and_curves(run: int, shop: ProjectFolder, watched: Watched, status: Any) -> None:
    page = Reading(watched.get(f"/run/{run}").text)
    assert len(page.tables["Stages"]) == 4
    for place, (line, told) in enumerate(zip(page.tables["Stages"], status[run]["stages"], strict=True)):
        outcomes = dict(shop.query(
            "SELECT t.outcome, count(*) FROM task t JOIN row r ON r.key = t.row_key WHERE r.run_id = ? AND t.stage = ? "
            "GROUP BY 1", run, place,
        ))  # fmt: skip
        assert line["Stage"].split()[0] == told["name"]
        for name in ("done", "reused", "failed", "skipped", "dropped"):
            assert line[name.capitalize()] == str(told[name]) == str(outcomes.get(name, 0)), (told["name"], name)
        calls, cost, given, made = shop.query(
            f"SELECT count(*), sum(cost), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0) {CALLS} "
            "AND a.stage = ?", run, place,
        )[0]  # fmt: skip
        assert [line[name] for name in ("Calls", "Tokens in", "Out")] == [f"{n:,}" for n in (calls, given, made)]
        assert line["Cost"] == (simulated(cost) if calls else "")
        p95 = told["timing_ms"]["duration"]["p95"]
        assert line["p95"] == ("" if p95 is None else f"{p95:,.0f} ms")
    batches = page.tables["Batches"]
    stored = shop.query("SELECT id, done, failed FROM batch WHERE run_id = ? ORDER BY id DESC", run)
    assert [(line["Batch"], line["Done"], line["Failed"]) for line in batches] == [
        tuple(map(str, one)) for one in stored
    ]
    cost = one(shop, f"SELECT sum(cost) {CALLS} AND a.stage = 3", run)
    assert sum(float(line["Cost"].removeprefix("simulated $")) for line in batches) == pytest.approx(cost, abs=1e-4)
    assert {line["Action"] for line in page.tables["Batches"]} == {""}, "they have ended"
    calls, cost = shop.query(f"SELECT count(*), sum(cost) {CALLS}", run)[0]
    assert f"Budget of the run: {calls} calls of 300 calls" in page.text
    assert f"Budget of the run: {simulated(cost)} of $0.1000" in page.text
    curves = json.loads(watched.get(f"/run/{run}/curves.json").text)
    assert (sum(curves["lines"]["calls"]), sum(curves["lines"]["cost_usd"])) == (calls, pytest.approx(cost))
    assert curves["more"]["Budget of the run, calls"]["lines"]["spent"][-1] == calls
    states = by_state(shop, run)
    assert [sum(curves["lines"][name]) for name in ("done", "failed", "skipped", "dropped")] == [
        states[name] for name in ("done", "failed", "skipped", "dropped")
    ]


@pytest.mark.parametrize(
    "query", ["", "?state=failed", "?state=done&sort=id", "?state=open", "?error=Refused", "?text=zip", "?id=r-01",
              "?stage=classify/escalate&state=done", "?stage=approve&state=dropped"],
)  # fmt: skip
def test_rows_and_the_same_as_csv(query: str, shop: ProjectFolder, watched: Watched) -> None:
    shown = Reading(watched.get(f"/run/1/rows{query}").text).tables["Rows"]
    lines = list(csv.DictReader(io.StringIO(watched.get(f"/run/1/rows.csv{query}").text)))
    assert 0 < len(shown) <= 28
    assert [line["Row"] for line in shown] == [line["id"] for line in lines]
    for line, stored in zip(shown, lines, strict=True):
        state, error, calls, cost, took = shop.query(
            "SELECT r.state, r.error_type, count(a.id), sum(a.cost), sum(a.duration) FROM row r "
            "LEFT JOIN attempt a ON a.row_key = r.key WHERE r.run_id = 1 AND r.id = ?", line["Row"],
        )[0]  # fmt: skip
        names = {0: "open", 1: "done", 2: "failed", 5: "skipped"}
        assert line["State"] == stored["state"] == names.get(state, "dropped")
        assert line["Calls"] == stored["calls"] == str(calls)
        assert line["Result or error"].startswith(error or "")
        assert stored["error"] == (error or "")
        assert line["Cost"] == simulated(cost or 0)
        assert float(line["Seconds"]) == pytest.approx(took, abs=0.0051)  # of a figure that is rounded already
        assert (float(stored["cost_usd"]), float(stored["duration_s"])) == pytest.approx((cost or 0, took), abs=1e-4)
        assert stored["cost_is_simulated"] == "true"


def test_a_row_its_errors_and_why(shop: ProjectFolder, watched: Watched) -> None:
    ((row, key, prompted),) = shop.query(
        "SELECT r.id, r.key, count(*) FROM row r JOIN attempt a ON a.row_key = r.key WHERE r.run_id = 1 "
        "AND r.state = 1 GROUP BY r.key HAVING max(a.stage = 1) ORDER BY 3 DESC, 1 LIMIT 1"
    )  # fmt: skip
    page = Reading(watched.get(f"/run/1/row?id={quote(row)}").text)
    attempts = [line for name, table in page.tables.items() if name.startswith("Attempts of ") for line in table]
    spans = [line for name, table in page.tables.items() if name.startswith("Calls of ") for line in table]
    costs = [
        "" if cost is None else simulated(cost)
        for (cost,) in shop.query("SELECT cost FROM attempt WHERE row_key = ? ORDER BY id", key)
    ]
    assert len(attempts) == len(spans) == len(costs) == prompted
    assert sorted(line["Cost"] for line in attempts) == sorted(line["Cost"] for line in spans) == sorted(costs)
    errors = Reading(watched.get("/run/1/errors").text)
    failed = shop.query(
        "SELECT error_type, error_stage, count(*) FROM row WHERE run_id = 1 AND state = 2 GROUP BY 1, 2"
    )
    for kind, stage, count in failed:
        assert f"{kind} in {stage}: {count} row" in errors.text
        assert sum(int(line["Rows"]) for line in errors.tables[f"Messages of {kind}"]) == count
    assert "Compared with run 1" in watched.get(f"/run/2/why?id={quote(row)}&stage=classify").text


def test_two_runs_beside_one_another(shop: ProjectFolder, watched: Watched) -> None:
    page = Reading(watched.get("/compare?first=1&second=2").text)
    lines = {line[""]: (line["Run 1"], line["Run 2"]) for line in page.tables["The two runs"]}
    for name in ("done", "failed", "skipped", "dropped", "open"):
        assert lines[f"Rows {name}"] == tuple(str(by_state(shop, run)[name]) for run in RUNS)
    assert lines["Calls"] == tuple(str(one(shop, f"SELECT count(*) {CALLS}", run)) for run in RUNS)
    assert lines["Cost"] == tuple(simulated(one(shop, f"SELECT sum(cost) {CALLS}", run)) for run in RUNS)
    both = dict(shop.query(
        "SELECT stage, count(*) FROM v_results a JOIN v_results b USING (stage, row_id) "
        "WHERE a.run = 1 AND b.run = 2 AND a.result IS NOT NULL AND b.result IS NOT NULL GROUP BY 1"
    ))  # fmt: skip
    agreed = {line["Result"]: int(line["Rows"]) for line in page.tables["How far results of this page agree"]}
    assert agreed["reply"] == both["reply"]


def test_what_waits_and_the_workflow(shop: ProjectFolder, watched: Watched) -> None:
    waiting = one(shop, "SELECT count(*) FROM review WHERE state = 'waiting'")
    assert f"{waiting} wait for a decision" in Reading(watched.get("/review").text).text
    assert waiting == shop.agac("review", "status", "--json", code=0).json["stages"][0]["states"]["waiting"]
    (line,) = Reading(watched.get("/workflows").text).tables["Workflows"]
    assert (line["Workflow"], line["Last run"]) == (NAME, "2")
    planned = shop.agac("plan", "-a", NAME, "--json", code=0).json
    page = Reading(watched.get(f"/workflow?name={NAME}&plan=1").text)
    assert [(line["Stage"], line["Run"], line["Reused"]) for line in page.tables["Plan"]] == [
        (stage["name"], str(stage["run"]), str(stage["reuse"])) for stage in planned["stages"]
    ]
    assert [line["Run"] for line in page.tables["Last runs"]] == ["2", "1"]


def test_an_exported_run_has_the_same_figures(shop: ProjectFolder, watched: Watched, tmp_path: Path) -> None:
    shop.agac("ui", "--export", str(tmp_path / "pages"), "--run", "1", code=0)
    exported, served = (
        Reading(text) for text in ((tmp_path / "pages/index.html").read_text("utf-8"), watched.get("/run/1").text)
    )
    assert exported.figures == served.figures
    assert exported.tables["Stages"] == served.tables["Stages"]
    for name in ("Throughput", "Lane local/small", "Budget of the run, USD"):
        assert exported.tables[name] == served.tables[name] != []
    rows = Reading((tmp_path / "pages/rows-1.html").read_text("utf-8")).tables["Rows"]
    assert rows == Reading(watched.get("/run/1/rows").text).tables["Rows"]
