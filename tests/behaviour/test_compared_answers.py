"""The same two sets of answers are judged alike by every command that compares answers: `agac compare`, `agac try`,
`agac eval`, `agac process` with several models and, if they are rows of two inputs, `agac diff`."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scripted_server import Scripted, Step, deciding
from support.project import ProjectFolder

import agac
from agac.api.comparison import IN_BOTH, MAX_FIELDS, Agreement, NoAnswer, Relation, relation, relations
from agac.api.run_compare import FieldChange
from agac.core.keys import canonical

MISSING, FAILED = NoAnswer.MISSING, NoAnswer.FAILED
EQUAL, CHANGED, ONLY_FIRST, ONLY_SECOND = (
    Relation.EQUAL, Relation.CHANGED, Relation.ONLY_FIRST, Relation.ONLY_SECOND
)  # fmt: skip

DEEP = {"a": [{"b": None}, 2.5], "c": "x"}
ANSWERS: dict[str, tuple[Any, Any, Relation]] = {
    "same text": ("fine", "fine", EQUAL),
    "other text": ("good", "bad", CHANGED),
    "part of a text": ("a b c", "a c", CHANGED),
    "same number": (3, 3, EQUAL),
    "other number": (4, 4.5, CHANGED),
    "negative number": (5, -5, CHANGED),
    "same list": ([1, "x"], [1, "x"], EQUAL),
    "order of a list": ([1, 2], [2, 1], CHANGED),
    "same object": (DEEP, dict(DEEP), EQUAL),
    "keys in another order": (DEEP | {"d": 1}, {"d": 1, **DEEP}, EQUAL),
    "deep change": (DEEP | {"e": {"f": 1}}, DEEP | {"e": {"f": 2}}, CHANGED),
    "a key more": ({"a": 1}, {"a": 1, "b": 1}, CHANGED),
    "other kind": ({"a": 2}, "a", CHANGED),
    "other boolean": (True, False, CHANGED),
    "only the first": ("alone", MISSING, ONLY_FIRST),
    "only the second": (MISSING, "alone too", ONLY_SECOND),
}
"""Two answers by the row's id, and how they relate, wherever they are compared. A stage of which one is missing failed,
or the row is missing where rows are compared."""

FIRST = {name: first for name, (first, _, _) in ANSWERS.items()}
SECOND = {name: second for name, (_, second, _) in ANSWERS.items()}
RELATIONS = {name: how for name, (_, _, how) in ANSWERS.items()}
IN_FIRST = {name: how for name, how in RELATIONS.items() if how is not ONLY_SECOND}
OF_BOTH = {name: how for name, how in RELATIONS.items() if how in IN_BOTH}

SCHEMA = {"type": "object", "properties": {"it": {}}, "required": ["it"]}
STAGE = {
    "name": "judge", "prompt": "First: ${text}", "output_schema": SCHEMA, "expect": {"label": "truth", "field": "it"},
}  # fmt: skip


class Doors(NamedTuple):
    """A project whose model gives the first answers to a prompt that says First, or if it is `local/first`, and the
    second ones otherwise."""

    project: ProjectFolder
    server: Scripted


def answered(body: dict[str, Any]) -> Step:
    prompt = body["messages"][-1]["content"]
    answers = FIRST if prompt.startswith("First: ") or body["model"] == "first" else SECOND
    answer = answers[prompt.partition(": ")[2]]
    return Step("" if answer is MISSING else json.dumps({"it": answer}))


@pytest.fixture
def doors(project: ProjectFolder) -> Iterator[Doors]:
    labels = {name: {} if answer is MISSING else {"truth": answer} for name, answer in FIRST.items()}
    project.rows([{"id": name, "text": name, **label} for name, label in labels.items()], "data/rows.jsonl")
    with deciding(answered) as server:
        project.configure(server.base_url)
        project.workflow(path="data/rows.jsonl", stages=[STAGE])
        yield Doors(project, server)


def relations_in(report: agac.RunComparison, names: list[str]) -> dict[str, Relation]:
    """How the rows relate that a comparison of runs shows."""
    changed: dict[Any, list[FieldChange]] = {}
    for change in report.changed:
        changed.setdefault(change.id, []).append(change)
    found = dict.fromkeys(names, EQUAL)
    for name, changes in changed.items():
        (one,) = [change for change in changes if change.field in ("judge", "judge.it")]
        if one.field == "judge.it":
            found[name] = CHANGED
        else:
            found[name] = ONLY_FIRST if one.now is None else ONLY_SECOND
    return found


def test_two_runs_and_a_trial_judge_answers_alike(doors: Doors) -> None:
    project = doors.project
    project.run()
    project.write("second.md", "Second: ${text}\n")
    trial = agac.trial(
        "reviews", "judge", prompt=project.root / "second.md", sample=len(ANSWERS), limit=len(ANSWERS), yes=True,
        project=project.root,
    )  # fmt: skip
    assert relations_in(trial.comparison, list(OF_BOTH)) == OF_BOTH
    assert (trial.rows, trial.failed) == (len(IN_FIRST), 1)
    project.workflow(path="data/rows.jsonl", stages=[STAGE | {"prompt": "Second: ${text}"}])
    second = project.run().summary["run"]
    report = agac.compare_runs(1, second, limit=len(ANSWERS), project=project.root)
    assert relations_in(report, list(ANSWERS)) == RELATIONS
    counts = Counter(RELATIONS.values())
    (stage,) = report.stages
    assert (stage.agreement.rows, stage.agreement.equal) == (len(OF_BOTH), counts[EQUAL])
    assert stage.agreement.alone == counts[ONLY_FIRST] + counts[ONLY_SECOND]
    assert trial.comparison.rows["changed"] == counts[CHANGED] == report.rows["changed"] - stage.agreement.alone


def test_labels_and_answers_are_judged_as_two_answers_are(doors: Doors) -> None:
    project = doors.project
    project.workflow(path="data/rows.jsonl", stages=[STAGE | {"prompt": "Second: ${text}"}])
    report = agac.evaluate("reviews", yes=True, project=project.root)
    (model,) = report.models
    assert (report.rows, report.unlabelled) == (len(IN_FIRST), 1)
    equal = {name for name, how in IN_FIRST.items() if how is EQUAL}
    assert (model.judged, model.right, model.failed) == (len(IN_FIRST), len(equal), 1)
    labels = {name: FIRST[name] if isinstance(FIRST[name], str) else canonical(FIRST[name]) for name in IN_FIRST}
    rows = {name: model.confusion[label] for name, label in labels.items()}
    assert {name for name, row in rows.items() if row[labels[name]]} == equal
    assert [name for name, row in rows.items() if row["(failed)"]] == ["only the first"]


def test_several_models_agree_as_two_runs_do(doors: Doors) -> None:
    project = doors.project
    options = agac.ProcessOptions(prompt="Row: {text}", id_field="id", json_schema=SCHEMA)
    what = project.root / "data/rows.jsonl", project.root / "out.jsonl"
    models = ("local/first", "local/second")
    report = agac.compare(*what, options, models=models, project=project.root)
    _, second = report.summary["models"]
    share = round(Counter(OF_BOTH.values())[EQUAL] / len(OF_BOTH), 4)
    assert second["agreement"] == {"rows": len(OF_BOTH), "share": share, "fields": {"it": share}}


def test_rows_of_two_inputs_are_judged_as_answers_are(doors: Doors, tmp_path: Path) -> None:
    project, path = doors.project, "data/answers.jsonl"
    project.workflow("answers", path=path, stages=[{"name": "judge", "prompt": "${it}"}])
    for answers in (FIRST, SECOND):
        project.rows([{"id": name, "it": it} for name, it in answers.items() if it is not MISSING], path)
        if answers is FIRST:
            shutil.copytree(project.root, tmp_path / "before", ignore=shutil.ignore_patterns(".agac"))
    (workflow,) = agac.diff(str(tmp_path / "before"), ["answers"], project=project.root).workflows
    (change,) = [change for change in workflow.changes if change.what == "rows"]
    counts = Counter(RELATIONS.values())
    new, gone, different = counts[ONLY_SECOND], counts[ONLY_FIRST], counts[CHANGED]
    assert change.text == f"rows of {path}: {new} new, {gone} gone, {different} different"


def test_the_table_of_relations_is_the_one_that_decides() -> None:
    assert {name: relation(first, second) for name, (first, second, _) in ANSWERS.items()} == RELATIONS
    first, second = ({name: one for name, one in side.items() if one is not MISSING} for side in (FIRST, SECOND))
    assert dict(relations(first, second)) == RELATIONS
    assert list(dict(relations(first, second)))[-1] == "only the second"
    agreement = Agreement()
    for one, other in ((FIRST[name], SECOND[name]) for name in OF_BOTH):
        assert bool(agreement.add(one, other)) is (relation(one, other) is CHANGED)
    assert (agreement.rows, agreement.equal) == (len(OF_BOTH), Counter(OF_BOTH.values())[EQUAL])
    assert len(agreement.fields) < MAX_FIELDS


def test_null_is_an_answer_and_a_failure_is_none() -> None:
    assert relation(None, None) is EQUAL
    assert relation(None, MISSING) is ONLY_FIRST
    assert relation(MISSING, None) is ONLY_SECOND
    assert relation(MISSING, MISSING) is Relation.NEITHER
    assert [relation(one, FAILED) for one in ("x", None, MISSING)] == [Relation.FAILED] * 3
    assert relation("Fine ", "fine", lambda one, other: one.strip().lower() == other) is EQUAL
    assert relation(MISSING, "x", lambda _, __: True) is ONLY_SECOND
