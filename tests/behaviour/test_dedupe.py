"""Of rows that are alike the first one goes on."""

import json
from typing import Any

import pytest
from support.made import asked, made, ran, settled, values
from support.project import ProjectFolder
from support.server import Faulty

ECHO = {"model": "local/echo"}
PATH = "data/rows.jsonl"
UNIQ = {"name": "uniq", "dedupe": ["mail"]}
SAY = {"name": "say", "prompt": "${id} ${mail} ${text}"}

Row = tuple[str, Any, str]
FOUR: list[Row] = [("1", "a", "w"), ("2", "b", "x"), ("3", "a", "y"), ("4", "a", "z")]


def mails(project: ProjectFolder, rows: list[Row]) -> None:
    """Rows of id, mail and text."""
    project.rows([{"id": id_, "mail": mail, "text": text} for id_, mail, text in rows], PATH)


def workflow(project: ProjectFolder, *stages: dict[str, Any], **keys: Any) -> None:
    project.workflow(
        path=PATH,
        input={"allow_empty": True},
        defaults=ECHO,
        stages=list(stages) or [UNIQ, SAY],
        stop_loss=False,
        **keys,
    )


def results(project: ProjectFolder) -> list[str]:
    """What the rows that went on came to, in the order of the input."""
    return [line["result"] for line in project.envelopes()]


def test_the_first_of_equal_rows_goes_on(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project)
    report = settled(project)
    rows = report.summary["rows"]
    assert (report.exit_code, report.invocation["calls"]) == (0, 2)
    assert (rows["total"], rows["done"], rows["dropped"]) == (4, 2, 2)
    assert [(line["id"], line["row_number"], line["result"]) for line in project.envelopes()] == [
        ("1", 1, "1 a w"), ("2", 2, "2 b x"),
    ]  # fmt: skip
    lines = project.envelopes(file="filtered.jsonl")
    assert [(line["id"], line["stage"], line["dedupe"], line["first"]) for line in lines] == [
        ("3", "uniq", ["mail"], "1"), ("4", "uniq", ["mail"], "1"),
    ]  # fmt: skip
    notes = project.query("SELECT r.id, t.note FROM task t JOIN row r ON r.key = t.row_key WHERE t.outcome = 'dropped'")
    note = {"dedupe": ["mail"], "first": "1", "values": {}}
    assert {id_: json.loads(text) for id_, text in notes} == {"3": note, "4": note}
    for command in (["inspect", "last", "3"], ["why", "last", "3", "uniq"]):
        assert "the same mail as row '1', which went on" in project.agac(*command, code=0).out


@pytest.mark.parametrize("concurrency", [1, 8])
def test_which_one_is_first_is_said_by_the_input_not_by_who_was_fast(project: ProjectFolder, concurrency: int) -> None:
    """Dropped rows are not compared, and skipped ones are. The workflow ends there."""
    mails(project, [(f"r{n}", f"m{n % 37}", "t") for n in range(600)])
    some = {"name": "some", "filter": 'id != "r1"'}
    workflow(project, some, {"name": "before", "prompt": "b${id}", "when": 'id != "r2"'}, UNIQ)
    report = settled(project, concurrency=concurrency)
    assert report.invocation["calls"] == 598
    assert set(made(project, "uniq")) == {"r0", *(f"r{n}" for n in range(2, 37)), "r38"}
    assert report.summary["rows"]["dropped"] == 600 - 37


EDITS: list[tuple[str, list[Row], int, list[str], dict[str, str]]] = [
    ("the start", FOUR, 2, ["1 a w", "2 b x"], {"3": "1", "4": "1"}),
    ("the first is removed", FOUR[1:], 1, ["2 b x", "3 a y"], {"4": "3"}),
    ("it comes back", FOUR, 0, ["1 a w", "2 b x"], {"3": "1", "4": "1"}),
    ("all alike are removed", FOUR[1:2], 0, ["2 b x"], {}),
    ("the field of the first changes", [("1", "c", "w"), *FOUR[1:]], 1, ["1 c w", "2 b x", "3 a y"], {"4": "3"}),
    ("to that of another", [("1", "b", "w"), *FOUR[1:]], 1, ["1 b w", "3 a y"], {"2": "1", "4": "3"}),
    ("another field of it", [("1", "a", "v"), *FOUR[1:]], 1, ["1 a v", "2 b x"], {"3": "1", "4": "1"}),
    ("and one of a dropped row", [("1", "a", "v"), FOUR[1], ("3", "a", "u"), FOUR[3]], 0, ["1 a v", "2 b x"],
     {"3": "1", "4": "1"}),
    ("the other way round", FOUR[::-1], 1, ["4 a z", "2 b x"], {"3": "4", "1": "4"}),
    ("a row before it", [("0", "a", "v"), *FOUR], 1, ["0 a v", "2 b x"], {"1": "0", "3": "0", "4": "0"}),
    ("the same at the end", [*FOUR, ("0", "a", "v")], 0, ["1 a w", "2 b x"], {"3": "1", "4": "1", "0": "1"}),
    ("nothing", [], 0, [], {}),
]  # fmt: skip


def test_after_each_edit_that_row_goes_on_which_is_the_first_now(project: ProjectFolder) -> None:
    workflow(project)
    for edit, rows, calls, expected, dropped in EDITS:
        mails(project, rows)
        assert asked(project) == calls, edit
        assert results(project) == expected, edit
        assert sorted(values(project, "say").values()) == sorted(expected), edit
        assert {line["id"]: line["first"] for line in project.envelopes(file="filtered.jsonl")} == dropped, edit
    assert made(project, "uniq") == {}
    assert project.query("SELECT count(*) FROM alike") == [(0,)]


def test_values_of_each_kind_are_different(project: ProjectFolder) -> None:
    kinds: list[Any] = [None, True, False, 1, "1", 1.5, "", "true", {"a": 1, "b": 2}, [1], "[1]", 0]
    mails(project, [(f"{twice}{n}", kind, "t") for twice in "ab" for n, kind in enumerate(kinds)])
    workflow(project, UNIQ, {"name": "say", "prompt": "${id}"})
    assert asked(project) == len(kinds)
    assert set(values(project, "say")) == {f"a{n}" for n in range(len(kinds))}


def test_a_failed_winner_leaves_its_place_until_it_is_done(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "b1!", "first": 2}]).base_url)
    mails(project, FOUR)
    workflow(project, {"name": "before", "prompt": "b${id}!"}, UNIQ, SAY)
    report = settled(project)
    assert report.exit_code == 3
    assert values(project, "say") == {"2": "2 b x", "3": "3 a y"}
    assert ran(project).exit_code == 3
    report = settled(project)
    assert (report.exit_code, report.invocation["calls"]) == (0, 2)
    assert values(project, "say") == {"1": "1 a w", "2": "2 b x"}


def test_who_goes_on_and_fails_later_keeps_its_place(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "1 a w"}]).base_url)
    mails(project, FOUR)
    workflow(project)
    report = settled(project)
    assert report.exit_code == 3
    assert values(project, "say") == {"2": "2 b x"}
    assert [line["id"] for line in project.envelopes(file="errors.jsonl")] == ["1"]
    assert report.summary["rows"]["dropped"] == 2


def test_children_are_alike_across_their_parents_in_the_order_of_place(project: ProjectFolder) -> None:
    project.rows([{"id": f"r{n}", "tags": [f"t{(n * 7 + place) % 11}" for place in range(6)]} for n in range(12)], PATH)
    workflow(
        project,
        {"name": "each", "explode": "tags", "select": ["id", "item", "index"]},
        {"name": "uniq", "dedupe": ["item"]},
        {"name": "say", "prompt": "${item} ${index} ${id}"},
    )
    assert asked(project) == 11
    first: dict[str, str] = {}
    for n in range(12):
        for place in range(6):
            first.setdefault(f"t{(n * 7 + place) % 11}", f"r{n}/{place}")
    assert set(values(project, "say")) == set(first.values())
    assert [line["id"] for line in project.envelopes()] == sorted(
        first.values(), key=lambda id_: (int(id_[1:].split("/")[0]), int(id_.split("/")[1]))
    )


def test_more_alike_than_are_held_at_once(project: ProjectFolder) -> None:
    rows: list[Row] = [(f"r{n}", "same" if n % 10 else f"m{n}", "t") for n in range(3000)]
    workflow(project, UNIQ, {"name": "say", "prompt": "${id}"})
    for there, calls, first in ((rows, 301, "r1"), (rows[:1] + rows[2:], 1, "r2"), (rows, 0, "r1")):
        mails(project, there)
        assert asked(project) == calls
        assert {"r1", "r2"} & set(values(project, "say")) == {first}
