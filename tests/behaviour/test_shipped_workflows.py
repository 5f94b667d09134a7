"""The workflows that agac ships, each run from a copy of the project as their readers run them."""

import csv
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.project import ProjectFolder
from support.shipped import ROOT, misfits, of_file, shipped_project
from support.soak import few

OUTCOMES = ("done", "failed", "skipped", "dropped")
Counts = tuple[int, int, int, int]
TEXT = {"type": "string", "minLength": 1}
LIST = {"type": "array", "items": {"type": "string"}}


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
    """What a run has to give. `levels`: of the rows that each stage made (the input's under ""), how many are done,
    failed, skipped and dropped; `stages`: likewise of each stage; `asked`: what models answer, with how many answers
    there are, and how `often` for each a model is called, where that is not once. `looks` looks at a finished run."""

    levels: dict[str, Counts]
    stages: dict[str, Counts]
    asked: dict[str, tuple[Any, int]]
    looks: Callable[[ProjectFolder], None] = lambda project: None
    often: dict[str, int] = field(default_factory=dict)
    exit_code: int = 0

    @property
    def calls(self) -> dict[int, int]:
        """Calls of each stage that asks, by its place."""
        places = list(self.stages)
        return {places.index(name): many * self.often.get(name, 1) for name, (_, many) in self.asked.items()}


def plain(
    rows: int, *, dropped: int = 0, looks: Callable[[ProjectFolder], None] = lambda project: None, **schemas: Any
) -> Shipped:
    """A workflow in which each stage is asked of all rows that are not dropped before."""
    done = rows - dropped
    stages = dict.fromkeys(schemas, (done, 0, 0, 0))
    asked = {name: (schema, done) for name, schema in schemas.items()}
    return Shipped({"": (done, 0, 0, dropped)}, stages, asked, looks)


@pytest.fixture
def shipped(tmp_path: Path) -> ProjectFolder:
    """A copy of the repository's own project."""
    return shipped_project(tmp_path / "copy")


def run(project: ProjectFolder, name: str, *flags: str, code: int = 0) -> Any:
    return project.agac("run", "-a", name, "--json", *flags, code=code).json


def calls(project: ProjectFolder) -> dict[int, int]:
    """Calls of each stage so far, over all runs, by its place."""
    return dict(project.query("SELECT stage, count(*) FROM attempt GROUP BY stage"))


def answers(project: ProjectFolder, stage: int) -> list[Any]:
    """All that was answered at a stage of the newest run, parts of groups too."""
    sql = (
        "SELECT result.value FROM task JOIN result ON result.id = task.result_id JOIN row ON row.key = row_key "
        "WHERE row.run_id = (SELECT max(id) FROM run) AND task.stage = ? AND task.replica = 0"
    )
    return [json.loads(value) for (value,) in project.query(sql, stage)]


def changed(project: ProjectFolder, name: str, stage: int, **keys: Any) -> None:
    """Sets keys of a stage; None takes one away."""
    path = project.root / f"workflows/{name}.yml"
    body = yaml.safe_load(path.read_text("utf-8"))
    merged = {**body["stages"][stage], **keys}
    body["stages"][stage] = {key: value for key, value in merged.items() if value is not None}
    path.write_text(yaml.safe_dump(body, allow_unicode=True, sort_keys=False), encoding="utf-8")


def counts(report: Any) -> Counts:
    reused = report.get("reused", 0)
    done, failed, skipped, dropped = (report[outcome] for outcome in OUTCOMES)
    return done + reused, failed, skipped, dropped


def lines(project: ProjectFolder, name: str, file: str) -> list[str]:
    return (project.root / "output" / name / file).read_text("utf-8").split("\n")[:-1]


def files(project: ProjectFolder, name: str) -> dict[str, bytes]:
    folder = project.root / "output" / name
    names = ("results", "errors", "filtered")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.startswith(names)}


def table_for_a_spreadsheet(shipped: ProjectFolder) -> None:
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


def orders(project: ProjectFolder) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(project.root / "output/extraction/orders.db")) as connection:
        return connection.execute("SELECT line_number, buyer, items, currency, error FROM orders").fetchall()


def table_that_is_kept_up_to_date(shipped: ProjectFolder) -> None:
    assert [row[0] for row in orders(shipped)] == list(range(1, 29))
    for _, buyer, items, currency, error in orders(shipped):
        assert buyer
        assert all(isinstance(item["count"], int) for item in json.loads(items))
        assert currency in ("EUR", "CHF", "GBP", "SEK")
        assert error is None
    envelope = json.loads(lines(shipped, "extraction", "results.jsonl")[0])
    assert envelope["input"]["content"].startswith("Order 4711 by Berghaus Nord")


def shown_by_make_demo(shipped: ProjectFolder) -> None:
    assert "agac run -a product_reviews\n" in (ROOT / "Makefile").read_text("utf-8")


def line_per_file(shipped: ProjectFolder) -> None:
    found = lines(shipped, "summarization", "results.txt")
    files = sorted(path.name for path in (ROOT / "data/incidents").iterdir())
    assert len(found) == len(files) == 20
    assert all(found)
    ids = [json.loads(line)["id"] for line in lines(shipped, "summarization", "results.jsonl")]
    assert ids == [f"data/incidents/{name}" for name in files]


def each_mail_only_what_it_needs(shipped: ProjectFolder) -> None:
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


def each_variant_once(shipped: ProjectFolder) -> None:
    text = (shipped.root / "output/product_catalog/results.csv").read_text("utf-8")
    table = list(csv.DictReader(text.splitlines()))
    assert list(table[0]) == [
        "item", "supplier", "sku", "title", "size", "colour", "price", "category", "description", "error",
    ]  # fmt: skip
    skus = [row["sku"] for row in table]
    assert len(skus) == len(set(skus)) == 22
    assert skus[:3] == ["nordlicht-alpine-tent-2p-green", "nordlicht-alpine-tent-2p-sand", "lumen-headlamp-400"]
    assert {row["price"] for row in table if row["sku"].startswith("wollwerk-merino-shirt-m-")} == {"45.0", "44.0"}
    silent = {row["title"]: row for row in table if not row["description"]}
    assert set(silent) == {"Feuerstein Camp Stove Mini", "Klettergurt AG Carabiner"}

    envelopes = shipped.envelopes("product_catalog")
    assert [one["id"] for one in envelopes][:8] == ["A-1/0", "A-1/1", "A-2", *(f"A-3/{n}" for n in range(4)), "A-4/0"]
    assert {one["id"]: one["row_number"] for one in envelopes}["B-2/1"] == 10

    left = {one["id"]: one for one in shipped.envelopes("product_catalog", "filtered.jsonl")}
    assert {row: one["stage"] for row, one in left.items() if "first" not in one} == {
        "A-6": "variants", "A-8": "normalise", "B-6": "variants", "B-7": "variants", "B-8": "normalise",
    }  # fmt: skip
    assert {row: one["first"] for row, one in left.items() if one["stage"] == "once"} == {
        "B-1": "A-2",
        "B-2/0": "A-3/1",
        "B-2/2": "A-3/2",
    }


def searched_with_stubs(shipped: ProjectFolder) -> None:
    """Nothing is searched, and what a profile is made of stands in for what a search would find."""
    calls = shipped.query("SELECT state, how, result FROM tool_call ORDER BY result")
    assert [(state, how) for state, how, _ in calls] == [("done", "stub")] * 7
    assert [len(json.loads(result)) for *_, result in calls] == [0] + [1] * 6
    live = shipped.agac("run", "-a", "competitor_research", "--tools-mode", "live", code=2)
    assert "web_search needs the variable BRAVE_KEY" in live.err, "a stubbed answer serves no live run"
    rows = list(csv.DictReader(lines(shipped, "competitor_research", "results.csv")))
    assert list(rows[0]) == ["company", "site", "sells", "offer", "stronger_in", "sources", "error"]


def read_by_a_server_that_is_locked(shipped: ProjectFolder) -> None:
    """Its own files are read, and no others."""
    locked = shipped.agac("card", "lock", "repo_reader", "--check", "--json").json
    assert locked["servers"] == {"repo": ["find_text", "list_files", "read_file"]}
    assert (locked["changes"], locked["written"]) == ({}, False)
    found = [text for (text,) in shipped.query("SELECT result FROM tool_call WHERE state = 'done'")]
    assert len(found) == 8
    assert all(re.match(r"(agentcards|prompts|schemas|workflows)/[\w./-]+:\d+: ", text) for text in found)
    script = [sys.executable, "tools/repo_server.py", "prompts", "data"]
    asked = [("list_files", {}), *(("read_file", {"path": one}) for one in ("data/../agac.yml", "/etc/passwd", ".env"))]
    asked += [("read_file", {"path": "prompts/risk.md", "line": 2}), ("delete", {}), ("find_text", {"words": "xyzzy"})]
    shipped.write("data/.env", "KEY=1")
    (shipped.root / "data/out.md").symlink_to(shipped.root / "agac.yml")
    params = [{"name": name, "arguments": arguments} for name, arguments in asked]
    sent = [{"id": at, "method": "tools/call", "params": one} for at, one in enumerate(params)]
    ran = subprocess.run(
        script, input="".join(f"{json.dumps(one)}\n" for one in sent), cwd=shipped.root, capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    results = [json.loads(line)["result"] for line in ran.stdout.splitlines()]
    assert [one.get("isError", False) for one in results] == [False, True, True, True, False, True, False]
    listed = results[0]["content"][0]["text"].split("\n")
    assert "data/contracts.jsonl" in listed
    assert not {one for one in listed if ".env" in one or "out.md" in one or not one.startswith(("data/", "prompts/"))}
    text = (shipped.root / "prompts/risk.md").read_text("utf-8")
    assert results[4]["content"][0]["text"] == "\n".join(text.splitlines()[1:])


ANSWER = closed({"answer": TEXT, "sure": {"enum": ["high", "medium", "low"]}, "ask_customers": LIST})
OPINION = {"type": "object", "properties": {"opinion": TEXT}, "required": ["opinion"]}
REPLY = closed({"subject": TEXT, "body": TEXT, "escalate": {"type": "boolean"}})
WORKFLOWS = {
    "competitor_research": Shipped(
        {"": (7, 0, 0, 0), "overview": (1, 0, 0, 0)},
        {"profile": (7, 0, 0, 0), "overview": (1, 0, 0, 0)},
        {
            "profile": (of_file("company_profile.json"), 7),
            "overview": (closed({"summary": TEXT, "learn_from": LIST, "unknown": LIST}), 1),
        },
        searched_with_stubs,
        often={"profile": 2},  # a turn that searches, and the one that answers
    ),
    "repo_questions": Shipped(
        {"": (8, 0, 0, 0)},
        {"answer": (8, 0, 0, 0)},
        {"answer": (closed({"answer": TEXT, "files": LIST, "sure": {"type": "boolean"}}), 8)},
        read_by_a_server_that_is_locked,
        often={"answer": 2},
    ),
    "classification": plain(40, dropped=2, triage=of_file("ticket.json"), looks=table_for_a_spreadsheet),
    "extraction": plain(28, order=of_file("order.json"), looks=table_that_is_kept_up_to_date),
    "product_reviews": plain(60, classify=of_file("review.json"), reply=REPLY, looks=shown_by_make_demo),
    "summarization": plain(
        20,
        facts=closed(
            {"headline": TEXT, "cause": TEXT, "lessons": LIST},
            started={"type": "string"},
            customers_hit={"type": "integer"},
        ),
        sentence=TEXT,
        looks=line_per_file,
    ),
    "support_triage": Shipped(
        {"": (22, 0, 0, 8)},
        {
            "sort": (26, 0, 0, 4),
            "english": (7, 0, 19, 0),
            "facts": (22, 0, 0, 4),
            "risk": (14, 0, 12, 0),
            "reply": (14, 0, 8, 0),
        },
        {
            "sort": (of_file("sorted_mail.json"), 26),
            "english": (closed({"text": TEXT}), 7),
            "facts": (
                closed({"product": TEXT, "order": TEXT, "wants": {"enum": ["money", "exchange", "answer", "nothing"]}}),
                22,
            ),
            "risk": (closed({"danger": {"enum": ["none", "hurt", "lawyer"]}, "reason": TEXT}), 14),
            "reply": (REPLY, 14),
        },
        each_mail_only_what_it_needs,
        often={"risk": 3},
    ),
    "translation": plain(
        40,
        translate=closed({"translation": TEXT, "doubts": LIST}),
        check=closed({"verdict": {"enum": ["keep", "change"]}, "translation": TEXT}, reason={"type": "string"}),
    ),
    "contract_risk": Shipped(
        {"": (8, 0, 0, 0), "clause": (26, 1, 0, 0), "judge": (8, 0, 0, 0)},
        {"clause": (26, 1, 0, 0), "second": (7, 0, 19, 0), "judge": (8, 0, 0, 0)},
        {
            "clause": (of_file("clause_risk.json"), 26),
            "second": (OPINION, 7),
            "judge": (of_file("contract_report.json"), 8),
        },
        exit_code=3,
    ),
    "product_catalog": Shipped(
        {"": (10, 0, 0, 6), "variants": (18, 0, 0, 2), "once": (22, 0, 0, 0)},
        {
            "normalise": (14, 0, 0, 2),
            "variants": (11, 0, 0, 3),
            "once": (22, 0, 0, 3),
            "describe": (20, 0, 2, 0),
            "entry": (22, 0, 0, 0),
        },
        {"describe": (of_file("product_text.json"), 20)},
        each_variant_once,
    ),
    "research_survey": Shipped(
        {"": (9, 0, 0, 0), "answer": (27, 0, 0, 0), "report": (9, 0, 0, 0), "overview": (1, 0, 0, 0)},
        {"plan": (9, 0, 0, 0), "answer": (27, 0, 0, 0), "report": (9, 0, 0, 0), "overview": (1, 0, 0, 0)},
        {
            "plan": (of_file("survey_plan.json"), 9),
            "answer": (ANSWER, 27),
            "report": (of_file("survey_report.json"), 9),
            "overview": (of_file("survey_report.json"), 4),  # three parts of at most four reports, and the whole
        },
    ),
}


def test_the_whole_project_is_valid_without_a_warning(shipped: ProjectFolder) -> None:
    names = {*WORKFLOWS, "card_types"}  # of which test_card_examples.py tells
    assert names == {path.stem for path in (ROOT / "workflows").iterdir()}
    ran = shipped.agac("validate")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"{len(names)} workflows valid: {', '.join(sorted(names))}\n"


@pytest.mark.parametrize("name", few(list(WORKFLOWS), 2))
def test_every_row_of_every_level_is_counted_and_only_what_changed_is_asked_again(
    name: str, shipped: ProjectFolder
) -> None:
    expected = WORKFLOWS[name]
    first = run(shipped, name, code=expected.exit_code)
    assert first["complete"]
    levels = {"": first["rows"], **{level["stage"]: level["rows"] for level in first["levels"]}}
    assert {stage: counts(rows) for stage, rows in levels.items()} == expected.levels
    assert [rows["total"] for rows in levels.values()] == [sum(one) for one in expected.levels.values()]
    assert {stage["name"]: counts(stage) for stage in first["stages"]} == expected.stages
    assert first["calls"]["cost_is_simulated"]
    for place, (stage, (schema, many)) in zip(expected.calls, expected.asked.items(), strict=True):
        found = answers(shipped, place)
        assert len(found) == many, stage
        assert misfits(schema, found) == [], stage
    assert calls(shipped) == expected.calls
    written = files(shipped, name)
    expected.looks(shipped)

    again = run(shipped, name, code=expected.exit_code)
    assert calls(shipped) == expected.calls
    assert again["levels"] == first["levels"]
    assert files(shipped, name) == written
    shipped.assert_sound()

    last, many = list(expected.calls.items())[-1]
    changed(shipped, name, last, instructions="Take your time.")
    run(shipped, name, code=expected.exit_code)
    assert calls(shipped) == {**expected.calls, last: 2 * many}
    shipped.assert_sound()


def test_another_language_is_asked_for_and_the_first_one_kept(shipped: ProjectFolder) -> None:
    planned = shipped.agac("plan", "-a", "translation", "--show", "1").out
    assert '[assistant]\n{"translation":"{count} × Alpine Tent 2P","doubts":[]}\n[user]\nWhere: button' in planned
    assert "into German" in planned
    for flags, asked in ((), 40), (("--var", "language=French"), 80), ((), 80):
        run(shipped, "translation", *flags)
        assert calls(shipped) == {0: asked, 1: asked}
        language = "French" if flags else "German"
        assert language in json.dumps(shipped.agac("inspect", "last", "basket.add", "--json").json)
    result = json.loads(lines(shipped, "translation", "results.jsonl")[0])["result"]
    assert list(result) == ["key", "where", "text", "max_length", "check"]


def test_a_contract_is_judged_without_the_clause_that_failed_and_is_told_so(shipped: ProjectFolder) -> None:
    judge = list(WORKFLOWS["contract_risk"].stages).index("judge")
    changed(shipped, "contract_risk", judge, model="simulator/echo", output_schema=None)
    run(shipped, "contract_risk", code=3)
    (error,) = shipped.envelopes("contract_risk", "errors.jsonl")
    assert (error["id"], error["row_number"], error["error"]["type"]) == ("C-104/1", 4, "MissingTemplateField")
    assert error["input"]["item"] == {"number": "8", "title": "Recalls"}

    asked = {one["result"]["contract"]: one["result"]["result"] for one in shipped.envelopes("contract_risk")}
    written = [json.loads(line) for line in (ROOT / "data/contracts.jsonl").read_text("utf-8").split("\n") if line]
    assert list(asked) == [contract["contract"] for contract in written]
    for contract in written:
        prompt, lost = asked[contract["contract"]], 1 if contract["contract"] == "C-104" else 0
        clauses = [clause for clause in contract["clauses"] if "text" in clause]
        assert f"{len(clauses)} clauses were rated, {lost} could not be read." in prompt
        members = json.loads(next(line for line in prompt.split("\n") if line.startswith("[")))
        assert [member["item"] for member in members] == clauses
        assert {frozenset(member) for member in members} == {
            frozenset({"contract", "partner", "item", "index", "clause", "second"})
        }
        assert all((member["second"] is not None) == (member["clause"]["risk"] == "high") for member in members)
