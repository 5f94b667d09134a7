"""Of rows that are alike the first one goes on."""

import json
from typing import Any

import pytest
from scripted_server import Step, answering
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
    project.workflow(path=PATH, defaults=ECHO, stages=list(stages) or [UNIQ, SAY], stop_loss=False, **keys)


def left(project: ProjectFolder) -> dict[Any, Any]:
    """The rows that were dropped, each with the one that went on in its place."""
    return {line["id"]: line.get("first") for line in project.envelopes(file="filtered.jsonl")}


def test_the_first_of_equal_rows_goes_on(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project)
    report = settled(project)
    assert report.exit_code == 0
    assert report.invocation["calls"] == 2
    assert values(project, "say") == {"1": "1 a w", "2": "2 b x"}
    rows = report.summary["rows"]
    assert (rows["total"], rows["done"], rows["dropped"]) == (4, 2, 2)
    assert [(line["id"], line["row_number"], line["result"]) for line in project.envelopes()] == [
        ("1", 1, "1 a w"), ("2", 2, "2 b x"),
    ]  # fmt: skip
    assert left(project) == {"3": "1", "4": "1"}


def test_the_note_of_a_dropped_row_names_the_fields_and_the_first(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project)
    settled(project)
    notes = project.query("SELECT r.id, t.note FROM task t JOIN row r ON r.key = t.row_key WHERE t.outcome = 'dropped'")
    assert {id_: json.loads(note) for id_, note in notes} == {
        id_: {"dedupe": ["mail"], "first": "1", "values": {}} for id_ in ("3", "4")
    }
    lines = project.envelopes(file="filtered.jsonl")
    assert [(line["id"], line["stage"], line["dedupe"]) for line in lines] == [
        ("3", "uniq", ["mail"]), ("4", "uniq", ["mail"]),
    ]  # fmt: skip


@pytest.mark.parametrize("concurrency", [1, 8])
def test_which_one_is_first_is_said_by_the_input_not_by_who_was_fast(project: ProjectFolder, concurrency: int) -> None:
    rows = [(f"r{n}", f"m{n % 37}", "t") for n in range(600)]
    mails(project, rows)
    workflow(project, {"name": "before", "prompt": "b${id}"}, UNIQ, {"name": "say", "prompt": "${id}"})
    report = settled(project, concurrency=concurrency)
    assert report.invocation["calls"] == 600 + 37
    assert set(values(project, "say")) == {f"r{n}" for n in range(37)}


def test_a_removed_winner_is_followed_by_the_next(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project)
    assert asked(project) == 2
    mails(project, FOUR[1:])
    assert asked(project) == 1
    assert values(project, "say") == {"2": "2 b x", "3": "3 a y"}
    assert left(project) == {"4": "3"}
    mails(project, FOUR)
    assert asked(project) == 0
    assert values(project, "say") == {"1": "1 a w", "2": "2 b x"}
    assert left(project) == {"3": "1", "4": "1"}
    mails(project, FOUR[1:2])
    assert asked(project) == 0
    assert values(project, "say") == {"2": "2 b x"}


def test_a_winner_whose_field_changes_is_followed_by_the_next(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project)
    asked(project)
    mails(project, [("1", "c", "w"), *FOUR[1:]])
    assert asked(project) == 2
    assert values(project, "say") == {"1": "1 c w", "2": "2 b x", "3": "3 a y"}
    mails(project, [("1", "b", "w"), *FOUR[1:]])
    assert asked(project) == 1
    assert values(project, "say") == {"1": "1 b w", "3": "3 a y"}
    mails(project, FOUR)
    assert asked(project) == 0
    assert values(project, "say") == {"1": "1 a w", "2": "2 b x"}


def test_a_winner_that_changes_otherwise_is_asked_again(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project)
    asked(project)
    mails(project, [("1", "a", "new"), *FOUR[1:]])
    assert asked(project) == 1
    assert values(project, "say")["1"] == "1 a new"
    mails(project, [("1", "a", "new"), FOUR[1], ("3", "a", "changed"), FOUR[3]])
    assert asked(project) == 0, "nobody sees a row that was dropped"


def test_a_reordered_input_changes_who_is_first(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project)
    asked(project)
    mails(project, FOUR[::-1])
    assert asked(project) == 1
    assert [line["id"] for line in project.envelopes()] == ["4", "2"]
    assert left(project) == {"3": "4", "1": "4"}
    mails(project, FOUR)
    assert asked(project) == 0
    assert [line["id"] for line in project.envelopes()] == ["1", "2"]


def test_a_row_that_comes_before_takes_the_place(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project)
    asked(project)
    mails(project, [("0", "a", "v"), *FOUR])
    assert asked(project) == 1
    assert values(project, "say") == {"2": "2 b x", "0": "0 a v"}
    mails(project, [*FOUR, ("0", "a", "v")])
    assert asked(project) == 0
    assert values(project, "say") == {"1": "1 a w", "2": "2 b x"}


def test_values_of_each_kind_are_different(project: ProjectFolder) -> None:
    kinds: list[Any] = [None, True, False, 1, "1", 1.5, "", "true", {"a": 1, "b": 2}, [1], "[1]", 0]
    mails(project, [(f"{twice}{n}", kind, "t") for twice in "ab" for n, kind in enumerate(kinds)])
    workflow(project, UNIQ, {"name": "say", "prompt": "${id}"})
    assert asked(project) == len(kinds)
    assert set(values(project, "say")) == {f"a{n}" for n in range(len(kinds))}


def test_several_fields_and_those_of_results(project: ProjectFolder) -> None:
    def answer(text: str) -> Step:
        return Step(json.dumps({"kind": text[-1]})) if text.startswith("class") else Step(text)

    with answering(answer) as server:
        project.configure(server.base_url)
        mails(project, [("1", "a", "1x"), ("2", "a", "2x"), ("3", "a", "3y"), ("4", "b", "4x")])
        stages = [
            {"name": "class", "prompt": "class ${text}", "output_schema": {"kind": "string"}},
            {"name": "uniq", "dedupe": ["mail", "class.kind"]},
            {"name": "say", "prompt": "${id} ${class.kind} ${mail}"},
        ]
        project.workflow(path=PATH, stages=stages)
        assert asked(project) == 4 + 3
        assert values(project, "say") == {"1": "1 x a", "3": "3 y a", "4": "4 x b"}


def test_a_failed_winner_leaves_its_place_until_it_is_done(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([{"kind": "refusal", "match": "b1!", "first": 2}])
    project.configure(server.base_url)
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
    server = faulty([{"kind": "refusal", "match": "1 a w"}])
    project.configure(server.base_url)
    mails(project, FOUR)
    workflow(project)
    report = settled(project)
    assert report.exit_code == 3
    assert values(project, "say") == {"2": "2 b x"}
    assert [line["id"] for line in project.envelopes(file="errors.jsonl")] == ["1"]
    assert report.summary["rows"]["dropped"] == 2


def test_dropped_rows_are_not_compared_and_skipped_ones_are(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(
        project, {"name": "some", "filter": 'id != "1"'}, {"name": "before", "prompt": "b${id}", "when": 'id != "3"'},
        UNIQ, {"name": "say", "prompt": "${id}[${before}]"},
    )  # fmt: skip
    settled(project)
    assert values(project, "say") == {"2": "2[b2]", "3": "3[]"}


def test_a_guard_of_a_dedupe_lets_rows_pass_by(project: ProjectFolder) -> None:
    mails(project, [*FOUR, ("5", "", "u"), ("6", "", "v")])
    workflow(project, {**UNIQ, "when": 'mail != ""'}, {"name": "say", "prompt": "${id}"})
    refused = project.agac("validate", "-a", "reviews")
    if refused.code == 2:
        assert "when" in refused.out + refused.err
        return
    settled(project)
    assert set(values(project, "say")) == {"1", "2", "5", "6"}


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


def test_a_dedupe_after_a_dedupe(project: ProjectFolder) -> None:
    rows = [("1", "a", "x"), ("2", "a", "y"), ("3", "b", "x"), ("4", "c", "z")]
    mails(project, rows)
    workflow(project, UNIQ, {"name": "again", "dedupe": ["text"]}, {"name": "say", "prompt": "${id}"})
    assert asked(project) == 2
    assert list(values(project, "say")) == ["1", "4"]
    mails(project, rows[1:])
    assert asked(project) == 2
    assert set(values(project, "say")) == {"2", "3", "4"}
    mails(project, rows)
    assert asked(project) == 0
    assert set(values(project, "say")) == {"1", "4"}


def test_groups_of_kept_rows(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project, UNIQ, {"name": "sum", "group_by": [], "prompt": "${rows_count}: ${rows_json}"})
    assert asked(project) == 1
    assert values(project, "sum")["all"].startswith("2: ")
    mails(project, FOUR[1:])
    assert asked(project) == 1
    assert '"text":"y"' in values(project, "sum")["all"]
    mails(project, FOUR[2:])
    assert asked(project) == 1
    assert values(project, "sum")["all"].startswith("1: ")


def test_a_kept_row_is_exploded(project: ProjectFolder) -> None:
    project.rows([{"id": str(n), "mail": "ab"[n % 2], "tags": ["x", "y"][: n % 3]} for n in range(6)], PATH)
    workflow(project, UNIQ, {"name": "say", "explode": "tags", "prompt": "${id}${item}${index}"})
    settled(project)
    assert values(project, "say") == {"1/0": "1x0"}


def test_a_workflow_may_end_in_a_dedupe(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project, {"name": "before", "prompt": "b${id}"}, UNIQ)
    report = settled(project)
    assert report.exit_code == 0
    assert [(line["id"], line["result"]) for line in project.envelopes()] == [("1", "b1"), ("2", "b2")]
    assert report.summary["rows"]["dropped"] == 2


def test_more_alike_than_are_held_at_once(project: ProjectFolder) -> None:
    rows = [(f"r{n}", "same" if n % 10 else f"m{n}", "t") for n in range(3000)]
    mails(project, rows)
    workflow(project, UNIQ, {"name": "say", "prompt": "${id}"})
    assert asked(project) == 301
    assert "r1" in values(project, "say")
    mails(project, [row for row in rows if row[0] != "r1"])
    assert asked(project) == 1
    assert "r2" in values(project, "say")
    mails(project, rows)
    assert asked(project) == 0
    assert "r2" not in values(project, "say")


def test_everybody_leaves(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project)
    asked(project)
    project.write(PATH, "")
    assert asked(project) == 0
    assert (made(project, "uniq"), project.envelopes()) == ({}, [])
    assert project.query("SELECT count(*) FROM alike") == [(0,)]


def test_an_edited_field_list_makes_a_run_of_its_own(project: ProjectFolder) -> None:
    mails(project, FOUR)
    workflow(project)
    assert asked(project) == 2
    workflow(project, {**UNIQ, "dedupe": ["mail", "text"]}, SAY)
    assert asked(project) == 2
    assert len(values(project, "say")) == 4
    workflow(project)
    assert asked(project) == 0
