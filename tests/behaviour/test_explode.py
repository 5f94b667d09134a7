"""A row for each item of a list: children, what they see, and what becomes of them when their parent changes."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from scripted_server import Step, answering
from support.made import asked, assert_all_sound, errors, made, outcomes, settled, tried, values
from support.project import ProjectFolder
from support.server import Faulty
from support.soak import SOAK

import agac
from agac.api import watched_run
from agac.api.watched_run import WatchedRun
from agac.engine.walk import derived_rows

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
    explode(project, {**SAY, "prompt": "${row_json}"}, input={"id_field": None})
    settled(project)
    found = {id_: json.loads(text) for id_, text in values(project, "say").items()}
    assert found == {f"1/{n}": {"id": "a", "item": item, "index": n} for n, item in enumerate(items)}
    explode(project, {**SAY, "when": "index == 5", "prompt": "${item.x.y} ${item.z.0}"})
    settled(project)
    assert values(project, "say") == {"a/5": "deep 1"}


LONE = {"name": "say", "needs": [], "explode": "items", "prompt": "s${item}"}
OTHER = {"name": "other", "needs": [], "explode": "others", "prompt": "o${item}"}
CHILDREN: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, str]]] = {
    "two stages explode one row": (
        {"a": ["x"], "b": []}, [LONE, OTHER], {"a/0": "ou", "a/1": "ov", "b/0": "ou", "b/1": "ov"},
    ),
    "ids that look like those of children": (
        {"a": ["x"], "a/0": ["y"], "a/0/0": []},
        [{**SAY, "name": "other"}], {"a/0": "a:0:x", "a/0/0": "a/0:0:y"},
    ),
    "branches of unequal depth": (
        {"a": ["x", "y"], "b": ["z"]},
        [{"name": "top", "needs": [], "prompt": "top ${id}"}, LONE,
         {"name": "deep", "needs": "say", "prompt": "d${say}"},
         {"name": "other", "needs": ["top", "deep"], "prompt": "${top}+${deep}+${index}"}],
        {"a/0": "top a+dsx+0", "a/1": "top a+dsy+1", "b/0": "top b+dsz+0"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHILDREN)
def test_children_see_their_item_and_what_their_row_came_to(case: str, project: ProjectFolder) -> None:
    rows, stages, expected = CHILDREN[case]
    lists(project, rows, others=["u", "v"])
    explode(project, *stages, output={"stages": "other"})
    settled(project)
    assert values(project, "other") == expected
    assert [line["id"] for line in project.envelopes()] == list(expected)


def test_a_guard_is_judged_for_each_child_which_does_not_see_the_list(project: ProjectFolder) -> None:
    """A long list would be in each of them. A guard that cannot be decided fails its child alone."""
    lists(project, {"a": ["keep", "skip", "drop", 1]}, number=1)
    explode(
        project,
        {**SAY, "when": 'item != "drop"', "otherwise": "drop"},
        {"name": "more", "prompt": "more ${say} ${items}", "when": 'item > "k" && item < "l"'},
    )
    assert settled(project).exit_code == 3
    assert made(project, "say") == {"a/0": "failed", "a/1": "skipped", "a/2": "dropped", "a/3": "failed"}
    found = errors(project, "say")
    assert (found["a/0"][0], found["a/3"][0]) == ("MissingTemplateField", "GuardError")
    assert found["a/0"][1].partition("visible are: ")[2].split(", ")[:3] == ["id", "number", "item"]
    (left,) = project.envelopes(file="filtered.jsonl")
    assert (left["id"], left["stage"], left["values"]) == ("a/2", "say", {"item": "drop"})


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
        assert settled(project, fresh=True).exit_code == 3
        assert made(project, "ask") == {"b/0": "done"}
        assert [line["id"] for line in project.envelopes()] == ["a", "b/0"]
        bad.clear()
        assert asked(project) == 3
        assert made(project, "ask") == {"b/0": "done", "a/0": "done", "a/1": "done"}


def test_an_edit_that_no_child_sees_costs_nothing_and_reaches_the_outputs(project: ProjectFolder) -> None:
    """Children stand in the order of their parents and of their places, of which the tenth comes after the second. A
    limit counts rows of the input."""
    rows = {f"r{n}": [f"{n} {place}" for place in range(n)] for n in (11, 2, 12, 0, 1)}
    explode(project, output={"include_input": True})
    lists(project, rows, note="old")
    assert asked(project, limit=2) == 13
    for order, note, calls in ((rows, "old", 13), (dict(reversed(rows.items())), "new", 0)):
        lists(project, order, note=note)
        assert asked(project) == calls
        expected = [(f"{id_}/{place}", note) for id_, items in order.items() for place in range(len(items))]
        assert [(line["id"], line["input"]["note"]) for line in project.envelopes()] == expected


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


def test_the_number_of_children_is_shown_once_all_parents_have_ended_and_never_before(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four children one fails at the first of their two stages. The second parent answers once children of the first
    were seen to end, and its own children once the total was seen. Then the failed one is tried again."""
    monkeypatch.setattr(watched_run, "LOOK_SECONDS", 0.01)
    go_on = {text: threading.Event() for text in ("plan b", "one:b1", "deep 22")}
    go_on["one:b2"] = go_on["one:b1"]
    shown: dict[str, list[tuple[int, int | None]]] = {"one": [], "two": [], "deep": []}

    def answer(text: str) -> Step:
        assert text not in go_on or go_on[text].wait(SLOW_WAIT)
        parts = json.dumps({"parts": [f"{text[-1]}1", f"{text[-1]}2"]})
        return Step(parts if text[:4] in ("plan", "two:") else text, finish="length" if text in bad else "stop")

    async def watch(run: WatchedRun) -> None:
        while True:
            for stage in run.snapshot().stages[1:]:
                shown[stage.name].append((stage.settled, stage.total.rows if stage.total else None))
            settled, total = shown["two"][-1] if shown["two"] else (0, None)
            if settled == 2:
                go_on["plan b"].set()
            if total is not None or len(shown["two"]) > looks:
                go_on["one:b1"].set()
            if shown["deep"] and (shown["deep"][-1][1] is not None or len(shown["two"]) > looks):
                go_on["deep 22"].set()
            await asyncio.sleep(0.01)

    plan = {"name": "plan", "prompt": "plan ${id}", "output_schema": {"parts": "string[]"}}
    one = {"name": "one", "explode": "plan.parts", "prompt": "one:${item}", "repair": 0}
    two = {"name": "two", "needs": "one", "prompt": "two:${item}", "output_schema": {"parts": "string[]"}}
    deep = {"name": "deep", "explode": "two.parts", "prompt": "deep ${item}"}
    project.workflow(rows=[{"id": "a"}, {"id": "b"}], stages=[plan, one, two, deep], stop_loss=False)
    with answering(answer, project):
        bad, looks = ["one:b1"], 1_000
        agac.run("reviews", project=project.root, progress=watch)
        assert {total for settled, total in shown["one"] if settled < 2} <= {None}
        assert {total for _, total in shown["one"]} == {None, 4}
        assert {total for _, total in shown["two"]} in ({None, 4}, {None, 4, 3})
        assert {total for _, total in shown["deep"]} == {None, 6}, "a child that failed has none"
        bad, looks, shown = [], 40, {"one": [], "two": [], "deep": []}
        go_on["one:b1"].clear()
        agac.run("reviews", project=project.root, progress=watch)
        assert {total for _, total in shown["two"]} <= {None, 4}
        assert {total for _, total in shown["deep"]} <= {None, 8}


def test_status_says_whether_more_children_may_come(project: ProjectFolder) -> None:
    """The run stops at the second parent, then comes to the end of its input, and the children are left."""
    refused = ["plan b"]

    def answer(text: str) -> Step:
        parts = json.dumps({"parts": ["x", "y"]})
        return Step(parts if "plan" in text else text, 401 if text in refused else 200)

    plan = {"name": "plan", "prompt": "plan ${id}", "output_schema": {"parts": "string[]"}}
    one = {"name": "one", "explode": "plan.parts", "prompt": "${id}:${item}"}
    project.workflow(rows=[{"id": "a"}, {"id": "b"}], stages=[plan, one])
    with answering(answer, project):
        project.run(concurrency=1)
        assert "  one: 2 child rows so far, " in project.agac("status", "last").out
        refused.clear()
        project.run(until="plan")
        assert "  one: 4 child rows, 0 done, 4 open\n" in project.agac("status", "last").out
        refused.append("b:y")
        project.run(concurrency=1, fresh=True)
        assert "  one: 4 child rows, 3 done, 1 open\n" in project.agac("status", "last").out, "while they are asked"


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
    # how many of the 400 come before it depends on how fast each side is; never all of them
    assert 0 < sum(text.startswith("many:") for text in called[:last]) < 400


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


def test_a_budget_that_ends_amid_children_is_kept_and_gone_on_with(project: ProjectFolder) -> None:
    with answering(Step, project) as server:
        lists(project, {f"r{n}": ["x", "y", "z"] for n in range(20)})
        stages = [{"name": "read", "prompt": "read ${id}"}, SAY]
        project.workflow(path=PATH, stages=stages, budget={"calls": 40})
        assert project.run().exit_code == 4
        assert len(server.asked) <= 40
        assert_all_sound(project)
        project.workflow(path=PATH, stages=stages)
        settled(project)
        assert len(server.asked) == 80
