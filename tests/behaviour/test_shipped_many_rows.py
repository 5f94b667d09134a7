"""The shipped workflows in which rows multiply and meet, each run in a copy of the project as its readers run it."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.project import ProjectFolder
from support.shipped import MANY_ROWS, ROOT, misfits, of_file, shipped_project

OUTCOMES = ("done", "failed", "skipped", "dropped")
Counts = tuple[int, int, int, int]


@dataclass(frozen=True)
class Shipped:
    """What a run has to give. `levels`: of the rows that each stage made (the input's under ""), how many are done,
    failed, skipped and dropped; `stages`: likewise of each stage; `schemas`: of what models answer, with how often they
    are asked."""

    levels: dict[str, Counts]
    stages: dict[str, Counts]
    schemas: dict[str, tuple[Any, int]]
    exit_code: int = 0

    @property
    def calls(self) -> dict[int, int]:
        """Calls of each stage that asks, by its place."""
        places = list(self.stages)
        return {places.index(stage): asked for stage, (_, asked) in self.schemas.items()}


ANSWER = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "minLength": 1},
        "sure": {"enum": ["high", "medium", "low"]},
        "ask_customers": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["answer", "sure", "ask_customers"],
    "additionalProperties": False,
}
OPINION = {"type": "object", "properties": {"opinion": {"type": "string", "minLength": 1}}, "required": ["opinion"]}
WORKFLOWS = {
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


@pytest.fixture
def shipped(tmp_path: Path) -> ProjectFolder:
    return shipped_project(tmp_path / "copy")


def run(project: ProjectFolder, name: str, code: int = 0) -> Any:
    return project.agac("run", "-a", name, "--json", code=code).json


def calls(project: ProjectFolder) -> dict[int, int]:
    """Calls of each stage so far, by its place."""
    return dict(project.query("SELECT stage, count(*) FROM attempt GROUP BY stage"))


def answers(project: ProjectFolder, stage: int) -> list[Any]:
    """All that was answered at a stage of the newest run, parts of groups too."""
    sql = (
        "SELECT result.value FROM task JOIN result ON result.id = task.result_id JOIN row ON row.key = row_key "
        "WHERE row.run_id = (SELECT max(id) FROM run) AND task.stage = ?"
    )
    return [json.loads(value) for (value,) in project.query(sql, stage)]


def changed(project: ProjectFolder, name: str, stage: int, **keys: Any) -> None:
    """Sets keys of a stage; None takes one away."""
    path = project.root / f"workflows/{name}.yml"
    body = yaml.safe_load(path.read_text("utf-8"))
    merged = {**body["stages"][stage], **keys}
    body["stages"][stage] = {key: value for key, value in merged.items() if value is not None}
    path.write_text(yaml.safe_dump(body, allow_unicode=True, sort_keys=False), encoding="utf-8")


def counts(told: Any) -> Counts:
    reused = told.get("reused", 0)
    done, failed, skipped, dropped = (told[outcome] for outcome in OUTCOMES)
    return done + reused, failed, skipped, dropped


def files(project: ProjectFolder, name: str) -> dict[str, bytes]:
    folder = project.root / "output" / name
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name.startswith(("results", "errors", "filtered"))
    }


def test_all_of_them_are_tested_here() -> None:
    assert set(WORKFLOWS) == set(MANY_ROWS)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_row_of_every_level_is_counted_and_only_what_changed_is_asked_again(
    name: str, shipped: ProjectFolder
) -> None:
    expected = WORKFLOWS[name]
    told = run(shipped, name, expected.exit_code)
    assert told["complete"]
    levels = {"": told["rows"], **{level["stage"]: level["rows"] for level in told["levels"]}}
    assert {stage: counts(rows) for stage, rows in levels.items()} == expected.levels
    assert [rows["total"] for rows in levels.values()] == [sum(one) for one in expected.levels.values()]
    assert {stage["name"]: counts(stage) for stage in told["stages"]} == expected.stages
    assert told["calls"]["cost_is_simulated"]
    for place, (stage, (schema, asked)) in zip(expected.calls, expected.schemas.items(), strict=True):
        found = answers(shipped, place)
        assert len(found) == asked, stage
        assert misfits(schema, found) == [], stage
    assert calls(shipped) == expected.calls
    written = files(shipped, name)

    again = run(shipped, name, expected.exit_code)
    assert calls(shipped) == expected.calls
    assert again["levels"] == told["levels"]
    assert files(shipped, name) == written
    shipped.assert_sound()

    last, asked = list(expected.calls.items())[-1]
    changed(shipped, name, last, instructions="Take your time.")
    run(shipped, name, expected.exit_code)
    assert calls(shipped) == {**expected.calls, last: 2 * asked}
    shipped.assert_sound()


def test_a_contract_is_judged_without_the_clause_that_failed_and_is_told_so(shipped: ProjectFolder) -> None:
    judge = list(WORKFLOWS["contract_risk"].stages).index("judge")
    changed(shipped, "contract_risk", judge, model="simulator/echo", output_schema=None)
    run(shipped, "contract_risk", 3)
    (error,) = shipped.envelopes("contract_risk", "errors.jsonl")
    assert (error["id"], error["row_number"], error["error"]["type"]) == ("C-104/1", 4, "MissingTemplateField")
    assert error["input"]["item"] == {"number": "8", "title": "Recalls"}

    asked = {one["result"]["contract"]: one["result"]["result"] for one in shipped.envelopes("contract_risk")}
    written = [json.loads(line) for line in (ROOT / "data/contracts.jsonl").read_text("utf-8").splitlines()]
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


def test_a_mended_clause_is_asked_and_its_contract_once_more(shipped: ProjectFolder) -> None:
    run(shipped, "contract_risk", 3)
    before, asked = shipped.output("contract_risk"), calls(shipped)
    path = shipped.root / "data/contracts.jsonl"
    text = path.read_text("utf-8").replace('"title": "Recalls"', '"title": "Recalls", "text": "The maker pays."')
    path.write_text(text, encoding="utf-8")
    told = run(shipped, "contract_risk")
    more = {stage: count - asked[stage] for stage, count in calls(shipped).items()}
    assert (more[0], more[2]) == (1, 1)
    assert more[1] <= 1
    assert told["levels"][0]["rows"] == {
        "total": 27, "done": 27, "skipped": 0, "failed": 0, "dropped": 0, "open": 0
    }  # fmt: skip
    assert shipped.envelopes("contract_risk", "errors.jsonl") == []
    after = shipped.output("contract_risk")
    assert [one["contract"] for one, other in zip(before, after, strict=True) if one != other] == ["C-104"]


def test_a_contract_may_be_refused_for_a_clause_that_failed(shipped: ProjectFolder) -> None:
    judge = list(WORKFLOWS["contract_risk"].stages).index("judge")
    changed(shipped, "contract_risk", judge, incomplete="fail")
    told = run(shipped, "contract_risk", 3)
    assert counts(told["levels"][1]["rows"]) == (7, 1, 0, 0)
    clause, contract = shipped.envelopes("contract_risk", "errors.jsonl")
    if clause["error"]["type"] == "InvalidRow":
        clause, contract = contract, clause
    assert clause["id"] == "C-104/1"
    assert (contract["id"], contract["row_number"]) == ('["C-104","Klettergurt AG"]', None)
    assert contract["error"]["type"] == "InvalidRow"
    assert "1 of the 4 rows of this group failed" in contract["error"]["message"]


def test_each_report_has_the_answers_to_its_own_question(shipped: ProjectFolder) -> None:
    changed(shipped, "research_survey", 2, model="simulator/echo", output_schema=None)
    run(shipped, "research_survey")
    written = [json.loads(line) for line in (ROOT / "data/survey_questions.jsonl").read_text("utf-8").splitlines()]
    found = {one["id"]: one["result"] for one in shipped.envelopes("research_survey")}
    assert list(found) == sorted(found)
    assert set(found) == {row["question"] for row in written}
    for question, prompt in found.items():
        assert f"team: {question}\n" in prompt
        members = json.loads(next(line for line in prompt.split("\n") if line.startswith("[")))
        assert [member["index"] for member in members] == [0, 1, 2]
        for member in members:
            assert member.keys() == {"question", "item", "index", "answer"}
            assert member["question"] == question
            assert misfits(ANSWER, [member["answer"]]) == []


def test_one_question_more_asks_what_is_about_it_and_the_overviews_above_it(shipped: ProjectFolder) -> None:
    run(shipped, "research_survey")
    asked = calls(shipped)
    path = shipped.root / "data/survey_questions.jsonl"
    row = {"id": "old", "question": "What would make people bring old gear back?", "asked_by": "shop team"}
    path.write_text(path.read_text("utf-8") + json.dumps(row) + "\n", encoding="utf-8")
    told = run(shipped, "research_survey")
    assert [counts(level["rows"]) for level in told["levels"]] == [(30, 0, 0, 0), (10, 0, 0, 0), (1, 0, 0, 0)]
    more = {stage: count - asked[stage] for stage, count in calls(shipped).items()}
    assert (more[0], more[2]) == (1, 1)
    assert 1 <= more[1] <= 3
    assert 2 <= more[3] < asked[3]
    shipped.assert_sound()


def test_a_catalogue_has_each_variant_once_and_says_why_lines_are_not_in_it(shipped: ProjectFolder) -> None:
    run(shipped, "product_catalog")
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
