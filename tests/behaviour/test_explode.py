"""A row for each item of a list: children, what they see, and what becomes of them when their parent changes."""

import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from scripted_server import Step, answering
from support.made import asked, assert_all_sound, errors, made, outcomes, ran, settled, tried, values
from support.project import ProjectFolder
from support.server import Faulty
from support.soak import SOAK

from agac.engine import derived_rows

ECHO = {"model": "local/echo"}
PATH = "data/rows.jsonl"
SAY = {"name": "say", "explode": "items", "prompt": "${id}:${index}:${item}"}


def lists(project: ProjectFolder, rows: dict[str, Any], **columns: Any) -> None:
    """Rows with a list each."""
    project.rows([{"id": id_, "items": items, **columns} for id_, items in rows.items()], PATH)


def explode(project: ProjectFolder, *stages: dict[str, Any], **keys: Any) -> None:
    project.workflow(path=PATH, defaults=ECHO, stages=list(stages) or [SAY], stop_loss=False, **keys)


def test_a_list_makes_a_row_for_each_item(project: ProjectFolder) -> None:
    lists(project, {"a": ["x", "y"], "none": [], "b": ["z"]})
    explode(project)
    report = settled(project)
    assert (report.exit_code, report.invocation["calls"], report.summary["rows"]["done"]) == (0, 3, 3)
    assert values(project, "say") == {"a/0": "a:0:x", "a/1": "a:1:y", "b/0": "b:0:z"}
    assert made(project, "say") == {"a/0": "done", "a/1": "done", "b/0": "done"}
    assert [(line["id"], line["row_number"], line["result"]) for line in project.envelopes()] == [
        ("a/0", 1, "a:0:x"), ("a/1", 1, "a:1:y"), ("b/0", 3, "b:0:z"),
    ]  # fmt: skip


def test_items_of_every_kind_are_seen_by_their_names(project: ProjectFolder) -> None:
    items = ["text", 7, 1.5, True, None, {"x": {"y": "deep"}, "z": [1]}, ["in", "ner"], "ä\n\"'"]
    lists(project, {"a": items})
    explode(project, {**SAY, "prompt": "${row_json}"})
    settled(project)
    found = {id_: json.loads(text) for id_, text in values(project, "say").items()}
    assert found == {f"a/{n}": {"id": "a", "item": item, "index": n} for n, item in enumerate(items)}
    explode(project, {**SAY, "when": "index == 5", "prompt": "${item.x.y} ${item.z.0}"})
    settled(project)
    assert values(project, "say") == {"a/5": "deep 1"}


def test_the_list_itself_is_not_in_its_children(project: ProjectFolder) -> None:
    """A long list would be in each of them."""
    lists(project, {"a": ["x"]})
    explode(project, {**SAY, "prompt": "${items}"})
    assert settled(project).exit_code == 3
    kind, message = errors(project, "say")["a/0"]
    assert kind == "MissingTemplateField"
    assert message.partition("visible are: ")[2].split(", ")[:3] == ["id", "item", "index"]


def test_what_is_no_list_fails_its_row_alone(project: ProjectFolder) -> None:
    wrong = {"null": None, "text": "ab", "a number": 7, "true or false": True, "an object": {"0": 1}}
    kinds: dict[str, Any] = {**{kind: {"items": value} for kind, value in wrong.items()}, "gone": {}, "none": None}
    project.rows([{"id": id_, "deep": deep} for id_, deep in {**kinds, "b": {"items": ["x"]}}.items()], PATH)
    explode(project, {**SAY, "explode": "deep.items"})
    report = settled(project)
    assert (report.exit_code, report.summary["rows"]["failed"]) == (3, 7)
    found = project.envelopes(file="errors.jsonl")
    assert {line["error"]["type"] for line in found} == {"InvalidRow"}
    assert {line["id"]: line["error"]["message"] for line in found} == {
        **{kind: f"stage 'say': deep.items is {kind}, not a list" for kind in wrong},
        **dict.fromkeys(["gone", "none"], "stage 'say': deep.items: there is no 'items'"),
    }
    assert made(project, "say") == {"b/0": "done"}


PLAN = {"name": "plan", "prompt": "plan ${id}", "output_schema": {"questions": "string[]", "title": "string"}}


def planned(lists_: dict[str, Any], bad: Iterable[str] = ()) -> Callable[[str], Step]:
    """Plans as the dictionary says, which may be changed meanwhile; everything else is said back."""

    def answer(text: str) -> Step:
        if any(word in text for word in bad):
            return Step(text, finish="length")
        if text.startswith("plan "):
            return Step(json.dumps({"questions": lists_[text.split()[1]], "title": f"T {text}"}))
        return Step(text)

    return answer


def test_a_result_is_exploded_and_the_children_see_it_and_the_row(project: ProjectFolder) -> None:
    """Where the stage was skipped there are none."""
    with answering(planned({"a": ["p", "q"], "b": []}), project):
        project.rows([{"id": id_, "text": id_.upper()} for id_ in "abc"])
        ask = {"name": "ask", "explode": "plan.questions", "prompt": "${text}|${plan.title}|${item}"}
        check = {"name": "check", "prompt": "${ask}|${item}|${index}|${plan.questions.1}"}
        project.workflow(stages=[{**PLAN, "when": 'id != "c"'}, ask, check])
        report = settled(project)
    assert (report.exit_code, report.invocation["calls"], report.summary["rows"]["failed"]) == (0, 2 + 2 + 2, 0)
    assert values(project, "check") == {"a/0": "A|T plan a|p|p|0|q", "a/1": "A|T plan a|q|q|1|q"}
    assert outcomes(project, "plan") == {"a": "done", "b": "done", "c": "skipped"}
    assert outcomes(project, "ask") == {"a/0": "done", "a/1": "done"}


def test_a_guard_is_judged_for_each_child(project: ProjectFolder) -> None:
    lists(project, {"a": ["keep", "skip", "drop"]})
    explode(
        project,
        {**SAY, "when": 'item != "drop"', "otherwise": "drop"},
        {"name": "more", "prompt": "more ${say}", "when": 'item == "keep" && index == 0'},
    )
    settled(project)
    assert made(project, "say") == {"a/0": "done", "a/1": "skipped", "a/2": "dropped"}
    assert values(project, "more") == {"a/0": "more a:0:keep"}
    (left,) = project.envelopes(file="filtered.jsonl")
    assert (left["id"], left["stage"], left["values"]) == ("a/2", "say", {"item": "drop"})


def test_a_guard_that_cannot_be_told_fails_its_child_alone(project: ProjectFolder) -> None:
    lists(project, {"a": [1, "x"]})
    explode(project, {**SAY, "when": "item > 0"})
    report = settled(project)
    assert report.exit_code == 3
    assert made(project, "say") == {"a/0": "done", "a/1": "failed"}
    assert errors(project, "say")["a/1"][0] == "GuardError"


def test_failing_children_leave_their_parent_and_the_others_alone(project: ProjectFolder, faulty: Faulty) -> None:
    """Two further runs try them, and later ones leave them."""
    project.configure(faulty([{"kind": "refusal", "match": "bad"}]).base_url)
    lists(project, {"a": ["bad", "good"], "b": ["fine"]})
    explode(project, SAY, {"name": "more", "prompt": "more ${say}"})
    report = settled(project)
    assert (report.exit_code, report.summary["rows"]["done"]) == (3, 2)
    assert made(project, "say") == {"a/0": "failed", "a/1": "done", "b/0": "done"}
    assert values(project, "more") == {"a/1": "more a:1:good", "b/0": "more b:0:fine"}
    (error,) = project.envelopes(file="errors.jsonl")
    assert (error["id"], error["error"]["type"]) == ("a/0", "Refused")
    assert error["input"] == {"id": "a", "item": "bad", "index": 0}
    assert tried(project, 4) == [(1, 0), (1, 1), (0, 1), (0, 1)]


def test_nested_lists_are_exploded_in_turn(project: ProjectFolder) -> None:
    lists(project, {"a": [{"k": "p", "sub": [1, 2]}, {"k": "q", "sub": []}], "b": [{"k": "r", "sub": [3]}]})
    explode(
        project,
        {"name": "outer", "explode": "items", "prompt": "${item.k}"},
        {"name": "inner", "explode": "item.sub", "prompt": "${outer}-${item}-${index}-${id}"},
    )
    settled(project)
    assert values(project, "inner") == {"a/0/0": "p-1-0-a", "a/0/1": "p-2-1-a", "b/0/0": "r-3-0-b"}
    assert made(project, "outer") == {"a/0": "done", "a/1": "done", "b/0": "done"}
    lists(project, {"a": [{"k": "p", "sub": [1]}, {"k": "q", "sub": [4]}], "b": [{"k": "r", "sub": [3]}]})
    assert asked(project) == 1
    assert values(project, "inner") == {"a/0/0": "p-1-0-a", "a/1/0": "q-4-0-a", "b/0/0": "r-3-0-b"}


def test_two_stages_may_explode_one_row(project: ProjectFolder) -> None:
    lists(project, {"a": ["x", "y"]}, other=["u", "v", "w"])
    explode(
        project, SAY, {"name": "too", "needs": [], "explode": "other", "prompt": "o${item}"}, output={"stages": "say"}
    )
    settled(project)
    assert values(project, "say") == {"a/0": "a:0:x", "a/1": "a:1:y"}
    assert values(project, "too") == {"a/0": "ou", "a/1": "ov", "a/2": "ow"}
    assert [line["id"] for line in project.envelopes()] == ["a/0", "a/1"]


def test_a_local_stage_may_explode(project: ProjectFolder) -> None:
    lists(project, {"a": ["x", "y"], "b": ["z"]})
    project.write("tools/clean.py", "def shout(row):\n    return {**row, 'loud': row['item'].upper()}\n")
    explode(
        project,
        {"name": "shout", "explode": "items", "python": "tools/clean.py:shout"},
        {"name": "some", "filter": 'item != "y"'},
        {"name": "say", "prompt": "${loud}${id}${index}"},
    )
    assert asked(project) == 2
    assert values(project, "say") == {"a/0": "Xa0", "b/0": "Zb0"}


EDITS = [
    ("the start", {"a": "wxy", "b": "z"}, 8),
    ("another item", {"a": "wXy", "b": "z"}, 2),
    ("it was had before", {"a": "wxy", "b": "z"}, 0),
    ("fewer", {"a": "w", "b": "z"}, 0),
    ("more", {"a": "wxyv", "b": "z"}, 2),
    ("in another order", {"b": "z", "a": "wxyv"}, 0),
    ("a parent leaves", {"b": "z"}, 0),
    ("and comes back", {"a": "wxyv", "b": "z"}, 0),
    ("leaves again", {"b": "z"}, 0),
    ("and comes back with other items", {"a": "wYu", "b": "z"}, 4),
    ("no items", {"a": "", "b": ""}, 0),
    ("no rows", {}, 0),
]


def test_after_each_edit_the_items_that_are_new_are_asked(project: ProjectFolder) -> None:
    explode(project, SAY, {"name": "more", "prompt": "m ${say}"})
    written: dict[str, bytes] = {}
    for edit, rows, calls in EDITS:
        lists(project, {id_: list(items) for id_, items in rows.items()})
        assert asked(project) == calls, edit
        expected = {f"{id_}/{n}": f"{id_}:{n}:{item}" for id_, items in rows.items() for n, item in enumerate(items)}
        assert values(project, "say") == expected, edit
        assert made(project, "say") == dict.fromkeys(expected, "done"), edit
        assert [(line["id"], line["result"][2:]) for line in project.envelopes()] == list(expected.items()), edit
        file = (project.root / "output/reviews/results.jsonl").read_bytes()
        assert written.setdefault(str(rows), file) == file, edit


def test_children_of_a_parent_that_fails_later_leave(project: ProjectFolder) -> None:
    questions: dict[str, Any] = {"a": ["p", "q"], "b": ["r"]}
    bad: list[str] = []
    with answering(planned(questions, bad), project):
        project.rows([{"id": "a"}, {"id": "b"}])
        stages = [PLAN, {"name": "ask", "explode": "plan.questions", "prompt": "ask ${item} ${plan.title}"}]
        project.workflow(stages=stages)
        assert asked(project) == 5
        bad.append("plan a")
        project.workflow(stages=stages, stop_loss=False)
        report = settled(project, fresh=True)
        assert report.exit_code == 3
        assert made(project, "ask") == {"b/0": "done"}
        assert [line["id"] for line in project.envelopes()] == ["a", "b/0"]
        bad.clear()
        assert asked(project) == 3
        assert made(project, "ask") == {"b/0": "done", "a/0": "done", "a/1": "done"}


def test_children_of_a_parent_that_is_edited_to_fail_leave_and_come_back(project: ProjectFolder) -> None:
    questions: dict[str, Any] = {"a": ["p", "q"], "bad": [], "b": ["r"]}
    with answering(planned(questions, ["plan bad"]), project):
        plan = {**PLAN, "prompt": "plan ${word}"}
        ask = {"name": "ask", "explode": "plan.questions", "prompt": "ask ${item}"}
        project.workflow(stages=[plan, ask, {"name": "more", "prompt": "more ${ask} ${index}"}], stop_loss=False)
        project.rows([{"id": "1", "word": "a"}, {"id": "2", "word": "b"}])
        assert asked(project) == 8
        project.rows([{"id": "1", "word": "bad"}, {"id": "2", "word": "b"}])
        report = settled(project)
        assert (report.exit_code, report.invocation["calls"]) == (3, 1)
        assert made(project, "ask") == {"2/0": "done"}
        project.rows([{"id": "1", "word": "a"}, {"id": "2", "word": "b"}])
        assert asked(project) == 0
        assert made(project, "ask") == {"1/0": "done", "1/1": "done", "2/0": "done"}
        assert values(project, "more") == {"1/0": "more ask p 0", "1/1": "more ask q 1", "2/0": "more ask r 0"}


def test_a_cell_that_no_child_shows_costs_nothing_and_reaches_the_outputs(project: ProjectFolder) -> None:
    lists(project, {"a": ["w", "x"], "b": ["z"]}, note="old")
    explode(project, output={"include_input": True})
    assert asked(project) == 3
    lists(project, {"a": ["w", "x"], "b": ["z"]}, note="new")
    assert asked(project) == 0
    assert [line["input"]["note"] for line in project.envelopes()] == ["new"] * 3


def test_a_reordered_input_costs_nothing_and_gives_results_in_the_new_order(project: ProjectFolder) -> None:
    """Children stand in the order of their parents and of their places, of which the tenth comes after the second."""
    rows = {f"r{n}": [f"{n} {place}" for place in range(n)] for n in (11, 2, 12, 0, 1)}
    explode(project)
    for order, calls in ((rows, 26), (dict(reversed(rows.items())), 0)):
        lists(project, order)
        assert asked(project) == calls
        expected = [f"{id_}/{place}" for id_, items in order.items() for place in range(len(items))]
        assert [line["id"] for line in project.envelopes()] == expected


def test_equal_prompts_of_children_are_asked_once(project: ProjectFolder) -> None:
    lists(project, {"a": ["same"] * 5, "b": ["same"]})
    explode(project, {**SAY, "prompt": "${item}"})
    assert asked(project) == 1
    assert set(values(project, "say").values()) == {"same"}


def test_an_edited_prompt_makes_a_run_that_asks_that_stage_alone(project: ProjectFolder) -> None:
    lists(project, {"a": ["w", "x"], "b": ["z"]})
    for word, calls in (("m", 6), ("M", 3), ("m", 0)):
        explode(project, SAY, {"name": "more", "prompt": f"{word} ${{say}}"})
        assert asked(project) == calls


def test_ids_that_look_like_children_are_rows_of_their_own(project: ProjectFolder) -> None:
    lists(project, {"a": ["x"], "a/0": ["y"], "a/0/0": []})
    explode(project)
    settled(project)
    assert values(project, "say") == {"a/0": "a:0:x", "a/0/0": "a/0:0:y"}


def test_numbers_as_ids(project: ProjectFolder) -> None:
    lists(project, {"z": ["x"], "y": ["w"]})
    explode(project, {**SAY, "prompt": "${index}${item}"}, input={"id_field": None})
    settled(project)
    assert values(project, "say") == {"1/0": "0x", "2/0": "0w"}


def test_joins_of_branches_of_unequal_depth(project: ProjectFolder) -> None:
    """What is above a row is seen by it: results of a short branch of its parent, and of its own long one."""
    lists(project, {"a": ["x", "y"], "b": ["z"]})
    explode(
        project,
        {"name": "top", "needs": [], "prompt": "top ${id}"},
        {"name": "deep1", "needs": [], "explode": "items", "prompt": "d${item}"},
        {"name": "deep2", "needs": "deep1", "prompt": "e${deep1}"},
        {"name": "join", "needs": ["top", "deep2"], "prompt": "${top}+${deep2}+${index}"},
    )
    settled(project)
    assert values(project, "join") == {"a/0": "top a+edx+0", "a/1": "top a+edy+1", "b/0": "top b+edz+0"}


def test_a_stage_above_that_failed_keeps_children_from_being_made(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "top a", "first": 2}]).base_url)
    lists(project, {"a": ["x", "y"], "b": ["z"]})
    explode(
        project,
        {"name": "top", "needs": [], "prompt": "top ${id}"},
        {"name": "deep", "needs": [], "explode": "items", "prompt": "d${item}"},
        {"name": "join", "needs": ["top", "deep"], "prompt": "join ${deep}"},
    )
    report = settled(project)
    assert report.exit_code == 3
    assert values(project, "join") == {"b/0": "join dz"}
    assert ran(project).exit_code == 3
    report = settled(project)
    assert report.exit_code == 0
    assert values(project, "join") == {"b/0": "join dz", "a/0": "join dx", "a/1": "join dy"}


def test_a_stage_cannot_need_two_lines_of_descent(project: ProjectFolder) -> None:
    lists(project, {"a": ["x"]}, other=["y"])
    explode(
        project,
        {"name": "one", "needs": [], "explode": "items", "prompt": "${item}"},
        {"name": "two", "needs": [], "explode": "other", "prompt": "${item}"},
        {"name": "both", "needs": ["one", "two"], "prompt": "${one}${two}"},
    )
    refused = project.agac("validate", "-a", "reviews", code=2)
    assert "both" in refused.err + refused.out
    assert "'one'" in refused.err + refused.out
    assert "'two'" in refused.err + refused.out


def test_as_many_children_as_a_row_may_have_and_one_more(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The children of one row are stored in one commit; one more is an error."""
    assert derived_rows.MAX_CHILDREN == 100_000
    most = derived_rows.MAX_CHILDREN if SOAK else 1000
    monkeypatch.setattr(derived_rows, "MAX_CHILDREN", most)
    lists(project, {"a": [n % 10 for n in range(most)], "b": [n % 10 for n in range(most + 1)], "c": [1]})
    explode(project, {**SAY, "prompt": "${item}", "when": "index < 20"})
    report = project.run()
    assert (report.exit_code, report.invocation["calls"]) == (3, 10)
    assert project.query("SELECT state, count(*) FROM row WHERE origin = 0 GROUP BY state ORDER BY state") == [
        (1, 21), (5, most - 20),
    ]  # fmt: skip
    (error,) = project.envelopes(file="errors.jsonl")
    assert (error["id"], error["error"]["type"]) == ("b", "InvalidRow")
    assert f"{most + 1:,}" in error["error"]["message"]
    assert f"{most:,}" in error["error"]["message"]
    assert_all_sound(project)
    assert project.run(retry_failed=False).invocation["calls"] == 0


SLOW_WAIT = 30.0
"""Seconds after which a held answer comes all the same, so that a test fails and does not hang."""


def test_children_of_others_do_not_wait_for_a_slow_row(project: ProjectFolder) -> None:
    """The slow row's answer is held until the children of the 34 others were called, and theirs in turn: also where
    all of them were made before, of rows that were edited since."""
    called: list[str] = []
    all_came, lock = threading.Event(), threading.Lock()

    def answer(text: str) -> Step:
        kind, _, what = text.partition(" ")
        if kind == "plan" and what.endswith("-0"):
            all_came.wait(SLOW_WAIT)
        with lock:
            called.append(text)
            if sum(text.startswith("deep") for text in called) == 34 * 4:
                all_came.set()
        return Step(json.dumps({"questions": [f"{what}a", f"{what}b"]}) if kind != "deep" else text)

    schema = {"questions": "string[]"}
    with answering(answer, project):
        project.workflow(
            defaults={"concurrency": 4},
            stages=[
                {"name": "plan", "prompt": "plan ${word}", "output_schema": schema},
                {"name": "ask", "explode": "plan.questions", "prompt": "ask ${item}", "output_schema": schema},
                {"name": "deep", "explode": "ask.questions", "prompt": "deep ${item}"},
            ],
        )
        for word in ("first", "edited"):
            project.rows([{"id": str(n), "word": f"{word}-{n}"} for n in range(35)])
            assert asked(project) == 35 + 70 + 140
            assert sum(text.startswith("deep") for text in called[: called.index(f"plan {word}-0")]) == 34 * 4
            called.clear()
            all_came.clear()
    assert [line["id"] for line in project.envelopes()] == [
        f"{n}/{one}/{other}" for n in range(35) for one in range(2) for other in range(2)
    ]


def test_children_of_others_do_not_wait_for_a_row_of_many(project: ProjectFolder) -> None:
    """Rows of the input, and children of different parents, take turns."""
    called: list[str] = []

    def answer(text: str) -> Step:
        called.append(text)
        return Step(text)

    with answering(answer, project):
        lists(project, {"many": list(range(400)), **{f"r{n}": ["x"] for n in range(40)}})
        read = {"name": "read", "prompt": "read ${id}"}
        project.workflow(path=PATH, defaults={"concurrency": 4}, stages=[read, SAY])
        assert asked(project) == 41 + 440
    last = max(place for place, text in enumerate(called) if text.startswith(("read", "r")))
    many = sum(text.startswith("many:") for text in called[:last])
    assert 0 < many < 300


def test_a_child_that_fails_while_the_input_is_read_is_tried_once_in_a_run(project: ProjectFolder) -> None:
    bad = ["b:0:x"]

    def answer(text: str) -> Step:
        return Step(text, finish="length" if text in bad else "stop")

    with answering(answer, project):
        lists(project, {"a": ["x"], "b": ["x", "y"], "c": ["x"]})
        project.workflow(path=PATH, stages=[{**SAY, "repair": 0}], stop_loss=False)
        report = settled(project)
        assert (report.exit_code, report.invocation["calls"]) == (3, 4)
        bad.clear()
        assert asked(project) == 1


def test_a_limit_counts_rows_of_the_input_and_takes_all_their_children(project: ProjectFolder) -> None:
    lists(project, {f"r{n}": list(range(n)) for n in range(1, 8)})
    explode(project, SAY, {"name": "more", "prompt": "more ${say}"})
    assert asked(project, limit=3) == 2 * (1 + 2 + 3)
    assert set(values(project, "more")) == {f"r{n}/{place}" for n in range(1, 4) for place in range(n)}
    assert asked(project) == 2 * (4 + 5 + 6 + 7)


def test_a_budget_that_ends_amid_children_is_kept_and_gone_on_with(project: ProjectFolder) -> None:
    with answering(Step, project) as server:
        lists(project, {f"r{n}": ["x", "y", "z"] for n in range(20)})
        stages = [{"name": "read", "prompt": "read ${id}"}, SAY]
        project.workflow(path=PATH, stages=stages, budget={"calls": 40})
        report = project.run()
        assert report.exit_code == 4
        assert len(server.asked) <= 40
        assert_all_sound(project)
        project.workflow(path=PATH, stages=stages)
        settled(project)
        assert len(server.asked) == 80
