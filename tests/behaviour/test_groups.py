"""Stages that are asked once a group of rows: what a group is, what is in its prompt, and what changes it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from scripted_server import Step, answering
from support.made import asked, errors, made, outcomes, settled, tried, values
from support.project import ProjectFolder
from support.server import Faulty
from support.soak import SOAK

from agac.engine.walk import groups

ECHO = {"model": "local/echo"}
PATH = "data/rows.jsonl"
SUM = {"name": "sum", "group_by": ["topic"], "prompt": "${topic} ${rows_count}/${rows_failed}: ${rows_json}"}


def texts(project: ProjectFolder, rows: list[tuple[str, str, str]]) -> None:
    """Rows of id, topic and text."""
    project.rows([{"id": id_, "topic": topic, "text": text} for id_, topic, text in rows], PATH)


def workflow(project: ProjectFolder, *stages: dict[str, Any], **keys: Any) -> None:
    project.workflow(path=PATH, defaults=ECHO, stages=list(stages) or [SUM], stop_loss=False, **keys)


def read_prompt(text: str) -> tuple[str, list[Any]]:
    """The head of a group's prompt, and its members."""
    head, _, rows = text.partition(": ")
    return head, json.loads(rows)


def members(project: ProjectFolder, stage: str = "sum") -> dict[Any, list[Any]]:
    """The ids of each group's members, as its prompt has them."""
    return {id_: [row["id"] for row in read_prompt(text)[1]] for id_, text in values(project, stage).items()}


def heads(project: ProjectFolder) -> dict[Any, str]:
    """The head of each group's prompt."""
    return {id_: read_prompt(text)[0] for id_, text in values(project, "sum").items()}


THREE = [("1", "tea", "x"), ("2", "ink", "y"), ("3", "tea", "z")]


def test_a_group_is_asked_once_with_all_of_its_rows(project: ProjectFolder) -> None:
    texts(project, THREE)
    workflow(project)
    report = settled(project)
    assert (report.exit_code, report.invocation["calls"], report.summary["rows"]["total"]) == (0, 2, 3)
    assert values(project, "sum") == {
        "tea": 'tea 2/0: [{"id":"1","topic":"tea","text":"x"},{"id":"3","topic":"tea","text":"z"}]',
        "ink": 'ink 1/0: [{"id":"2","topic":"ink","text":"y"}]',
    }
    assert [(line["id"], line["row_number"], line["ok"]) for line in project.envelopes()] == [
        ("ink", None, True), ("tea", None, True),
    ]  # fmt: skip
    workflow(project, {"name": "sum", "group_by": []})  # all rows are one, and the prompt is the rows
    settled(project)
    ((id_, text),) = values(project, "sum").items()
    assert (id_, json.loads(text)) == ("all", [{"id": i, "topic": topic, "text": text} for i, topic, text in THREE])


def test_members_come_in_the_order_of_their_ids_whatever_the_input_says(project: ProjectFolder) -> None:
    rows = [(f"r{n}", "tea", f"t{n}") for n in range(30)]
    texts(project, rows)
    workflow(project)
    settled(project)
    assert len(members(project)["tea"]) == 30
    order = members(project)["tea"]
    assert sorted(order) == sorted(id_ for id_, _, _ in rows)
    texts(project, rows[::-1])
    assert asked(project) == 0
    assert members(project)["tea"] == order


def test_results_upstream_are_shown_and_hidden_ones_are_not(project: ProjectFolder) -> None:
    texts(project, THREE[:1])
    first, last = {"name": "first", "prompt": "f${text}"}, {"name": "last", "prompt": "l${first}", "needs": "first"}
    for keys, shown in (({}, {"text": "x"}), ({"visible": {"never": ["text"]}}, {})):
        workflow(project, first, last, {**SUM, "needs": "last", **keys})
        settled(project)
        assert read_prompt(values(project, "sum")["tea"]) == (
            "tea 1/0",
            [{"id": "1", "topic": "tea", **shown, "last": "lfx"}],
        )
    workflow(project, {**SUM, "visible": {"never": ["text"]}})
    for text, calls in (("x", 1), ("other", 0)):
        texts(project, [("1", "tea", text)])
        assert asked(project) == calls


def test_a_stage_after_it_runs_once_a_group_and_sees_its_fields_and_results(project: ProjectFolder) -> None:
    texts(project, THREE)
    workflow(
        project,
        {"name": "say", "prompt": "s${text}"},
        {**SUM, "prompt": "sum of ${topic}"},
        {"name": "title", "prompt": "T ${sum} ${topic}", "when": 'topic == "tea"'},
        {"name": "end", "prompt": "${row_json} ${title}"},
    )
    report = settled(project)
    assert report.invocation["calls"] == 3 + 2 + 1 + 2
    counts = [(stage["name"], stage["done"], stage["failed"]) for stage in report.summary["stages"]]
    assert counts == [("say", 3, 0), ("sum", 2, 0), ("title", 1, 0), ("end", 2, 0)]
    assert values(project, "title") == {"tea": "T sum of tea tea"}
    assert outcomes(project, "title") == {"tea": "done", "ink": "skipped"}
    assert json.loads(values(project, "end")["tea"].split("} ")[0] + "}") == {"topic": "tea"}


def test_the_names_of_members_are_not_the_groups(project: ProjectFolder) -> None:
    texts(project, THREE)
    workflow(project, {"name": "say", "prompt": "s"}, {**SUM, "prompt": "${text} ${say}"})
    refused = project.agac("validate", "-a", "reviews", code=2)
    assert "text" in refused.out + refused.err


def test_values_of_each_kind_are_groups_of_their_own(project: ProjectFolder) -> None:
    large = 1 << 62
    kinds: list[Any] = [None, True, False, 1, "1", 1.5, "", "true", "null", {"a": 1}, [1], "[1]", '["1"]', 0, "all"]
    kinds += [2**53, 2**53 + 1, large, large + 1, -large, 10**30]
    project.rows([{"id": f"{n}{twice}", "topic": kind} for n, kind in enumerate(kinds) for twice in "ab"], PATH)
    workflow(project, {**SUM, "prompt": ": ${rows_json}"})
    settled(project)
    groups = [sorted(row["id"] for row in read_prompt(text)[1]) for text in values(project, "sum").values()]
    assert sorted(groups) == sorted([f"{n}a", f"{n}b"] for n in range(len(kinds)))
    assert len(made(project, "sum")) == len(kinds)
    assert len({(type(line["id"]) is int, line["id"]) for line in project.envelopes()}) == len(kinds)


def test_several_fields_and_fields_inside(project: ProjectFolder) -> None:
    rows = [{"id": str(n), "at": {"town": "AB"[n % 2], "zip": n % 3}, "kind": "k"} for n in range(12)]
    project.rows([*rows, {"id": "lone", "at": {"town": "A"}, "kind": "k"}], PATH)
    workflow(
        project,
        {
            "name": "sum",
            "group_by": ["at.town", "at.zip", "kind"],
            "prompt": "${at.town}${at.zip}${kind}: ${rows_json}",
        },
        {"name": "after", "prompt": "${at.town} ${kind} ${row_json}"},
    )
    report = settled(project)
    assert (report.exit_code, report.summary["rows"]["failed"]) == (3, 1)
    assert [line["id"] for line in project.envelopes(file="errors.jsonl")] == ["lone"], "it lacks a field"
    assert sorted(heads(project).values()) == [f"{t}{z}k" for t in "AB" for z in range(3)]
    assert set(map(str, made(project, "sum"))) == {f'["{t}",{z},"k"]' for t in "AB" for z in range(3)}


def classed(kinds: dict[str, str], bad: list[str]) -> Callable[[str], Step]:
    """Classifies as the dictionary says; cuts off what has one of the bad words; says back everything else."""

    def answer(text: str) -> Step:
        if any(word in text for word in bad):
            return Step(text, finish="length")
        if text.startswith("class "):
            return Step(json.dumps({"kind": kinds[text.split()[1]]}))
        return Step(text)

    return answer


CLASS = {"name": "class", "prompt": "class ${text}", "output_schema": {"kind": "string"}}
BY_KIND = {
    "name": "sum",
    "group_by": ["class.kind"],
    "prompt": "${class.kind} ${rows_count}/${rows_failed}: ${rows_json}",
}
SAID = {"name": "say", "prompt": "say ${text}"}


@contextmanager
def by_kind(project: ProjectFolder, bad: list[str], *stages: dict[str, Any]) -> Iterator[None]:
    """The three rows are classified: 1 and 3 are good, 2 is bad."""
    with answering(classed({"x": "good", "y": "bad", "z": "good", "w": "bad"}, bad), project):
        texts(project, THREE)
        project.workflow(path=PATH, stages=[CLASS, *stages], stop_loss=False)
        yield


EDITS = [
    ("the start", THREE, 4),
    ("a member changes", [THREE[0], ("2", "ink", "new"), THREE[2]], 2),
    ("another member", [*THREE, ("4", "ink", "w")], 2),
    ("it leaves", THREE, 0),
    ("one of the others does", THREE[1:], 2),
    ("the last one of a group", [THREE[0], THREE[2]], 0),
    ("it comes back", THREE, 0),
    ("one moves to another group", [("1", "ink", "x"), *THREE[1:]], 2),
    ("nothing is left", [], 0),
]


def test_after_each_edit_the_groups_that_changed_are_asked(project: ProjectFolder) -> None:
    workflow(project, SUM, {"name": "more", "prompt": "m ${sum}"}, input={"allow_empty": True})
    for edit, rows, calls in EDITS:
        texts(project, rows)
        assert asked(project) == calls, edit
        expected = {topic: [id_ for id_, its, _ in rows if its == topic] for topic in sorted({row[1] for row in rows})}
        assert {id_: sorted(ids) for id_, ids in members(project).items()} == expected, edit
        assert made(project, "sum") == dict.fromkeys(expected, "done"), edit
        assert sorted(line["id"] for line in project.envelopes()) == list(expected), edit


def test_a_group_without_a_failed_member_says_so_and_is_asked_anew_when_it_is_whole(project: ProjectFolder) -> None:
    bad = ["say z"]
    with by_kind(project, bad, SAID, {**BY_KIND, "needs": "say"}):
        report = settled(project)
        assert (report.exit_code, report.invocation["calls"]) == (3, 8)
        assert heads(project) == {"good": "good 1/1", "bad": "bad 1/0"}
        assert members(project) == {"good": ["1"], "bad": ["2"]}
        bad.clear()
        assert asked(project) == 2
        assert heads(project)["good"] == "good 2/0"
        bad.append("say z")
        assert settled(project, fresh=True).exit_code == 3
        assert heads(project)["good"] == "good 1/1"


def test_a_group_may_fail_for_a_member_that_failed_and_fails_for_all(project: ProjectFolder) -> None:
    bad = ["say z"]
    more = {"name": "more", "prompt": "m ${sum}"}
    with by_kind(project, bad, SAID, {**BY_KIND, "needs": "say", "incomplete": "fail"}, more):
        report = settled(project)
        assert (report.exit_code, report.invocation["calls"]) == (3, 8)
        assert made(project, "sum") == {"good": "failed", "bad": "done"}
        assert errors(project, "sum") == {"good": ("InvalidRow", "stage 'sum': 1 of the 2 rows of this group failed")}
        assert sorted(line["id"] for line in project.envelopes(file="errors.jsonl")) == ["3", "good"]
        bad.clear()
        assert asked(project) == 3
        assert made(project, "sum") == {"good": "done", "bad": "done"}
        bad += ["say x", "say z"]
        assert settled(project, fresh=True).exit_code == 3
        assert errors(project, "sum") == {"good": ("InvalidRow", "stage 'sum': all 2 rows of this group failed")}
        del bad[0]
        assert settled(project).exit_code == 3, "both failed rows are tried again"
        assert errors(project, "sum")["good"][1].endswith("1 of the 2 rows of this group failed")


def test_a_member_that_failed_before_its_group_is_known_is_in_none(project: ProjectFolder) -> None:
    bad = ["class z"]
    with by_kind(project, bad, BY_KIND):
        assert settled(project).exit_code == 3
        assert heads(project) == {"good": "good 1/0", "bad": "bad 1/0"}
        bad.clear()
        assert asked(project) == 2
        assert heads(project)["good"] == "good 2/0"


def test_a_guard_of_a_group_is_judged_by_what_the_group_has(project: ProjectFolder) -> None:
    workflow(project, {**SUM, "when": "rows_count > 1", "otherwise": "drop"}, {"name": "more", "prompt": "m ${sum}"})
    for rows, calls, ink in ((THREE, 2, "dropped"), ([*THREE, ("4", "ink", "w")], 2, "done"), (THREE, 0, "dropped")):
        texts(project, rows)
        assert asked(project) == calls
        assert made(project, "sum") == {"tea": "done", "ink": ink}
        assert sorted(values(project, "more")) == (["ink", "tea"] if ink == "done" else ["tea"])


def test_children_of_groups(project: ProjectFolder) -> None:
    kinds: dict[str, Any] = {"tea": ["p", "q"], "ink": []}

    def answer(text: str) -> Step:
        return Step(json.dumps({"ideas": kinds[text.split()[1]]})) if text.startswith("ideas ") else Step(text)

    with answering(answer, project):
        texts(project, THREE)
        ideas = {**SUM, "prompt": "ideas ${topic} ${rows_count}", "output_schema": {"ideas": "string[]"}}
        each = {"name": "each", "explode": "sum.ideas", "prompt": "${topic} ${item} ${index}"}
        project.workflow(path=PATH, stages=[ideas, each])
        assert asked(project) == 4
        assert values(project, "each") == {"tea/0": "tea p 0", "tea/1": "tea q 1"}
        assert [(line["id"], line["row_number"]) for line in project.envelopes()] == [("tea/0", None), ("tea/1", None)]
        texts(project, THREE[1:])
        assert asked(project) == 1
        texts(project, THREE[1:2])
        assert asked(project) == 0
        assert made(project, "each") == {}


def test_ids_of_groups_that_look_like_rows(project: ProjectFolder) -> None:
    """A group may be called as a row, and rows as children."""
    texts(project, [("1", "1", "x"), ("2", "1", "y"), ("all", "2", "z")])
    workflow(
        project, {"name": "one", "prompt": "${text}"}, SUM, {"name": "all", "group_by": [], "prompt": ": ${rows_json}"}
    )
    settled(project)
    assert members(project) == {"1": ["1", "2"], "2": ["all"]}
    assert list(values(project, "all")) == ["all"]


def test_failed_groups_are_tried_again_and_left_as_rows_are(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "tea 2/0"}]).base_url)
    texts(project, THREE)
    workflow(project)
    assert tried(project, 5) == [(2, 0), (1, 0), (1, 1), (0, 1), (0, 1)]
    (error,) = project.envelopes(file="errors.jsonl")
    assert (error["id"], error["error"]["type"]) == ("tea", "Refused")


def test_a_group_without_a_bound_takes_no_more_rows_than_are_held(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert groups.MAX_ROWS == 100_000
    most = groups.MAX_ROWS if SOAK else 1000
    monkeypatch.setattr(groups, "MAX_ROWS", most)
    project.rows([{"id": str(n), "topic": "x"} for n in range(most + 1)], PATH)
    workflow(project, {**SUM, "prompt": "${rows_count}"})
    report = project.run()
    assert (report.exit_code, report.invocation["calls"]) == (3, 0)
    assert errors(project, "sum")["x"][1] == (
        f"stage 'sum': this group has {most + 1:,} rows; add `reduce: {{max_rows: 50}}` to ask them in parts"
    )


@pytest.mark.parametrize("outer", [{}, {"incomplete": "fail"}], ids=["use", "fail"])
def test_a_group_that_cannot_be_asked_is_a_failed_row_of_the_group_that_it_is_in(
    project: ProjectFolder, outer: dict[str, Any]
) -> None:
    inner = {**SUM, "group_by": ["topic"], "incomplete": "fail"}
    every = {"name": "every", "group_by": [], "prompt": "${rows_count} and ${rows_failed}", **outer}
    stages = [{"name": "say", "prompt": "${text}"}, inner, every]
    project.rows(
        [
            {"id": "1", "topic": "tea"},
            {"id": "2", "topic": "tea", "text": "x"},
            {"id": "3", "topic": "ink", "text": "x"},
        ],
        PATH,
    )
    workflow(project, *stages)
    settled(project)
    assert made(project, "sum") == {"tea": "failed", "ink": "done"}
    if outer:
        message = "stage 'every': 1 of the 2 rows of this group failed"
        assert errors(project, "every") == {"all": ("InvalidRow", message)}
    else:
        assert values(project, "every") == {"all": "1 and 1"}
    planned = project.agac("plan", "-a", "reviews", "--json").json["stages"][-1]
    assert (planned["run"], planned["reuse"], planned["blocked"]) == ((0, 0, 1) if outer else (0, 1, 0))
    project.rows([{"id": n, "topic": "tea" if n < "3" else "ink", "text": "x"} for n in "123"], PATH)
    settled(project)
    assert values(project, "every") == {"all": "2 and 0"}
