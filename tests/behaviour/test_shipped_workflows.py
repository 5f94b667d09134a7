"""The workflows that agac ships, each run from a copy of the project as their readers run them."""

import csv
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.project import ProjectFolder
from support.shipped import MANY_ROWS, ROOT, misfits, of_file, shipped_project

TEXT = {"type": "string", "minLength": 1}


def closed(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class Shipped:
    """What a run of a workflow has to give. `schemas`: of its stages, in their order. `dropped` rows came twice, or a
    guard made them leave. `asked`: of how many rows each stage is asked, where that is not all that are
    left, and how `often`, by its place, where that is not once."""

    rows: int
    schemas: dict[str, Any]
    dropped: int = 0
    asked: tuple[int, ...] = ()
    often: Mapping[int, int] = field(default_factory=dict)

    @property
    def tasks(self) -> dict[int, int]:
        """Tasks of each stage, which is known by its place."""
        return dict(enumerate(self.asked or [self.rows - self.dropped] * len(self.schemas)))

    @property
    def calls(self) -> dict[int, int]:
        """Calls of each stage."""
        return {place: tasks * self.often.get(place, 1) for place, tasks in self.tasks.items()}


LIST = {"type": "array", "items": {"type": "string"}}
WORKFLOWS = {
    "classification": Shipped(40, {"triage": of_file("ticket.json")}, dropped=2),
    "extraction": Shipped(28, {"order": of_file("order.json")}),
    "product_reviews": Shipped(
        60,
        {
            "classify": of_file("review.json"),
            "reply": closed({"subject": TEXT, "body": TEXT, "escalate": {"type": "boolean"}}),
        },
    ),
    "summarization": Shipped(
        20,
        {
            "facts": closed(
                {"headline": TEXT, "cause": TEXT, "lessons": LIST},
                started={"type": "string"},
                customers_hit={"type": "integer"},
            ),
            "sentence": TEXT,
        },
    ),
    "support_triage": Shipped(
        30,
        {
            "sort": of_file("sorted_mail.json"),
            "english": closed({"text": TEXT}),
            "facts": closed(
                {"product": TEXT, "order": TEXT, "wants": {"enum": ["money", "exchange", "answer", "nothing"]}}
            ),
            "risk": closed({"danger": {"enum": ["none", "hurt", "lawyer"]}, "reason": TEXT}),
            "reply": closed({"subject": TEXT, "body": TEXT, "escalate": {"type": "boolean"}}),
        },
        dropped=8,
        asked=(26, 7, 22, 14, 14),
        often={3: 3},
    ),
    "translation": Shipped(
        40,
        {
            "translate": closed({"translation": TEXT, "doubts": LIST}),
            "check": closed({"verdict": {"enum": ["keep", "change"]}, "translation": TEXT}, reason={"type": "string"}),
        },
    ),
}


@pytest.fixture
def shipped(tmp_path: Path) -> ProjectFolder:
    """A copy of the repository's own project."""
    return shipped_project(tmp_path / "copy")


def run(project: ProjectFolder, name: str, *flags: str) -> Any:
    return project.agac("run", "-a", name, "--json", *flags, code=0).json


def calls(project: ProjectFolder) -> dict[int, int]:
    """Calls of each stage so far, over all runs; a stage is known by its place."""
    return dict(project.query("SELECT stage, count(*) FROM attempt GROUP BY stage"))


def results(project: ProjectFolder, stage: int) -> list[Any]:
    """What the newest run has of a stage, a row each."""
    sql = (
        "SELECT result.value FROM task JOIN result ON result.id = task.result_id JOIN row ON row.key = row_key "
        "WHERE row.run_id = (SELECT max(id) FROM run) AND task.stage = ? "
        "AND task.replica = 0"
    )
    return [json.loads(value) for (value,) in project.query(sql, stage)]


def reworded(project: ProjectFolder, name: str, stage: int) -> str:
    """Adds a sentence to the prompt of a stage; gives the stage's name."""
    path = project.root / f"workflows/{name}.yml"
    body = yaml.safe_load(path.read_text("utf-8"))
    body["stages"][stage]["prompt"] += "\nTake your time."
    path.write_text(yaml.safe_dump(body, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return str(body["stages"][stage]["name"])


def test_every_workflow_is_tested_here() -> None:
    assert {*WORKFLOWS, *MANY_ROWS} == {path.stem for path in (ROOT / "workflows").iterdir()}
    assert {"product_reviews", "translation", "summarization", "classification", "extraction"} <= set(WORKFLOWS)


def test_the_whole_project_is_valid_without_a_warning(shipped: ProjectFolder) -> None:
    ran = shipped.agac("validate")
    assert (ran.code, ran.err) == (0, "")
    names = sorted([*WORKFLOWS, *MANY_ROWS])
    assert ran.out == f"{len(names)} workflows valid: {', '.join(names)}\n"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_it_runs_is_not_asked_twice_and_asks_again_what_changed(name: str, shipped: ProjectFolder) -> None:
    expected = WORKFLOWS[name]
    told = run(shipped, name)
    rows = expected.rows - expected.dropped
    assert told["rows"] == {
        "total": expected.rows, "done": rows, "failed": 0, "skipped": 0, "dropped": expected.dropped, "open": 0
    }  # fmt: skip
    assert told["complete"]
    assert told["calls"]["cost_is_simulated"]
    assert [stage["name"] for stage in told["stages"]] == list(expected.schemas)
    for place, schema in enumerate(expected.schemas.values()):
        found = results(shipped, place)
        assert len(found) == expected.tasks[place]
        assert misfits(schema, found) == []
    asked = calls(shipped)
    assert asked == expected.calls

    run(shipped, name)
    assert calls(shipped) == asked

    last = len(expected.schemas) - 1
    changed = reworded(shipped, name, last)
    told = run(shipped, name)
    assert calls(shipped) == {**asked, last: 2 * asked[last]}
    assert [stage["name"] for stage in told["stages"] if stage["done"]] == [changed]
    assert told["rows"]["done"] == rows
    shipped.assert_sound()


def lines(project: ProjectFolder, name: str, file: str) -> list[str]:
    return (project.root / "output" / name / file).read_text("utf-8").split("\n")[:-1]


def test_classification_gives_a_table_for_a_spreadsheet(shipped: ProjectFolder) -> None:
    run(shipped, "classification")
    table = list(csv.DictReader(lines(shipped, "classification", "results.csv")))
    assert list(table[0]) == [
        "ticket", "received", "channel", "subject", "message",
        "team", "urgency", "wants", "confidence", "reason", "error",
    ]  # fmt: skip
    written = list(csv.DictReader((ROOT / "data/support_tickets.csv").read_text("utf-8").split("\n")))
    newest = {row["ticket"]: row for row in written}
    assert {row["ticket"] for row in table} == newest.keys()
    for row in table:
        assert row["received"] == newest[row["ticket"]]["received"]
        assert row["team"] in of_file("ticket.json")["properties"]["team"]["enum"]
        assert not any((cell or " ")[0] in "=+-@" for cell in row.values())
    assert [row["subject"] for row in table if row["ticket"] == "T-1036"] == ["'=HYPERLINK"]


def test_extraction_keeps_a_table_up_to_date(shipped: ProjectFolder) -> None:
    run(shipped, "extraction")

    def table() -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(shipped.root / "output/extraction/orders.db")
        try:
            return connection.execute("SELECT line_number, buyer, items, currency, error FROM orders").fetchall()
        finally:
            connection.close()

    before = table()
    assert [row[0] for row in before] == list(range(1, 29))
    for _, buyer, items, currency, error in before:
        assert buyer
        assert all(isinstance(item["count"], int) for item in json.loads(items))
        assert currency in ("EUR", "CHF", "GBP", "SEK")
        assert error is None
    path = shipped.root / "data/orders.txt"
    path.write_text(path.read_text("utf-8") + "Order X-1 of 1 April 2026: 1 x Rope at 139.00 EUR. Hans Gruber.\n")
    run(shipped, "extraction")
    after = table()
    assert after[:28] == before
    assert [row[0] for row in after[28:]] == [29]
    assert calls(shipped) == {0: 29}
    envelope = json.loads(lines(shipped, "extraction", "results.jsonl")[0])
    assert envelope["input"]["content"].startswith("Order 4711 by Berghaus Nord")


def test_summarization_gives_a_line_a_file(shipped: ProjectFolder) -> None:
    run(shipped, "summarization")
    found = lines(shipped, "summarization", "results.txt")
    files = sorted(path.name for path in (ROOT / "data/incidents").iterdir())
    assert len(found) == len(files) == 20
    assert all(found)
    ids = [json.loads(line)["id"] for line in lines(shipped, "summarization", "results.jsonl")]
    assert ids == [f"data/incidents/{name}" for name in files]


def test_translation_asks_anew_for_another_language_and_keeps_the_first(shipped: ProjectFolder) -> None:
    planned = shipped.agac("plan", "-a", "translation", "--show", "1").out
    assert '[assistant]\n{"translation":"{count} × Alpine Tent 2P","doubts":[]}\n[user]\nWhere: button' in planned
    assert "into German" in planned
    run(shipped, "translation")
    first = json.loads(lines(shipped, "translation", "results.jsonl")[0])["result"]
    assert list(first) == ["key", "where", "text", "max_length", "check"]
    assert "German" in json.dumps(shipped.agac("inspect", "last", "basket.add", "--json").json)
    run(shipped, "translation", "--var", "language=French")
    assert calls(shipped) == {0: 80, 1: 80}
    assert "French" in json.dumps(shipped.agac("inspect", "last", "basket.add", "--json").json)
    run(shipped, "translation")
    assert calls(shipped) == {0: 80, 1: 80}


def test_support_triage_asks_of_each_mail_only_what_it_needs(shipped: ProjectFolder) -> None:
    told = run(shipped, "support_triage")
    rows = told["rows"]
    assert rows["total"] == rows["done"] + rows["failed"] + rows["skipped"] + rows["dropped"] == 30
    written = csv.DictReader((ROOT / "data/support_mail.csv").read_text("utf-8").splitlines())
    mails = {row["mail"]: row for row in written}
    left = {one["id"]: one for one in map(json.loads, lines(shipped, "support_triage", "filtered.jsonl"))}
    machines = {mail for mail, row in mails.items() if row["kind"] == "machine"}
    assert {mail for mail, one in left.items() if one["stage"] == "sort"} == machines
    assert {tuple(one["values"].items()) for one in left.values() if one["stage"] == "facts"} == {
        (("sort.topic", "advertisement"),)
    }

    kept = {one["id"]: one["result"] for one in map(json.loads, lines(shipped, "support_triage", "results.jsonl"))}
    assert kept.keys() == mails.keys() - left.keys()
    for mail, result in kept.items():
        sorted_as, risk, total = result["sort"], result["risk"], mails[mail]["order_total"]
        matters = sorted_as["topic"] == "fault" or sorted_as["mood"] == "angry" or float(total or 0) >= 200
        assert (risk is not None) == matters
        assert (result["reply"] is not None) == (risk is None or risk["danger"] == "none")
    assert {result["reply"] is None for result in kept.values() if result["risk"]} == {True, False}

    votes = "SELECT agreement, count(*) FROM v_results WHERE stage = 'risk' AND agreement IS NOT NULL GROUP BY 1"
    agreed = dict(shipped.query(votes))
    assert agreed.keys() <= {"1/3", "2/3", "3/3"}
    assert sum(agreed.values()) == 14

    translated = "SELECT row_id FROM v_results WHERE stage = 'english' AND outcome = 'done'"
    foreign = {mail for mail, row in mails.items() if row["kind"] == "person" and row["language"] != "en"}
    assert {mail for (mail,) in shipped.query(translated)} == foreign

    shown = shipped.agac("inspect", "last", "M-001", "--json").json
    prompts = json.dumps([stage["prompt"] for stage in shown["rows"][0]["stages"] if stage["prompt"]])
    assert "The zip of the tent broke" in prompts
    assert "Rosa Lindt" not in prompts, "whose mail it is, is not sent"
    assert "rosa.lindt@mail.example" not in prompts


def test_make_demo_runs_product_reviews() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "agac run -a product_reviews\n" in makefile
