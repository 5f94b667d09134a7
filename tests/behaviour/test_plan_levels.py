"""`agac plan` of workflows whose stages make rows: what it says is what the run does, and what is a guess is marked."""

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest
from support.batched import store
from support.made import outcomes, ran
from support.project import ProjectFolder
from support.server import Faulty, Server
from test_plan import calls_by_stage

import agac
from agac.api.plan import planned as what_is_left
from agac.api.status import database_path
from agac.core.errors import UsageError
from agac.engine.forecast.baseline import InvocationChoice
from agac.engine.forecast.forecasts import PlanReport
from agac.engine.invocation import Retry, Scope
from agac.store.db import open_for_reading

ECHO = {"model": "local/echo"}
PATH = "data/rows.jsonl"
SAY = {"name": "say", "explode": "items", "prompt": "${id}:${index}:${item}"}
SUM = {"name": "sum", "group_by": ["id"], "prompt": "${id} ${rows_count}: ${rows_json}"}
ALL = {"name": "all", "needs": "sum", "group_by": [], "reduce": {"max_rows": 3}, "prompt": "All: ${rows_json}"}
PLAN = {"name": "plan", "prompt": "Plan ${id}", "model": "local/small",
        "output_schema": {"topic": "a|b", "asks": ["string"]}}  # fmt: skip
SMALL = {"model": "local/small"}
ASK = {"name": "ask", "explode": "plan.asks", "prompt": "Ask ${item}, ${index} of ${id}"}
CUT = """\
def cut(row):
    words = row["text"].split()
    if row["text"] == "none":
        return None
    if len(words) == 1:
        return {"id": row["id"], "word": words[0]}
    return [{"id": row["id"], "word": word} for word in words]
"""


def lists(project: ProjectFolder, rows: dict[str, Any], **columns: Any) -> None:
    project.rows([{"id": id_, "items": items, **columns} for id_, items in rows.items()], PATH)


def workflow(project: ProjectFolder, *stages: dict[str, Any], **keys: Any) -> None:
    project.workflow(path=PATH, defaults=ECHO, stages=list(stages), stop_loss=False, **keys)


def planned(project: ProjectFolder, **options: Any) -> PlanReport:
    return agac.plan("reviews", agac.RunOptions(**options), project=project.root)


def counts(report: PlanReport) -> dict[str, tuple[int, int]]:
    """Each stage's (run, reuse)."""
    return {one.name: (one.run, one.reuse) for one in report.stages}


def as_planned(project: ProjectFolder, *guessed: str, **options: Any) -> PlanReport:
    """Plans, runs, compares: all but the `guessed` stages do what was said, and ask as often; then all is had."""
    report = planned(project, **options)
    before = calls_by_stage(project) if (project.root / ".agac").exists() else {}
    assert ran(project, **options).exit_code in (0, 3)
    after = calls_by_stage(project)
    assert {one.name for one in report.stages if not one.exact} == set(guessed)
    for one in report.stages:
        if (name := one.name) not in guessed:
            assert (name, after.get(name, 0) - before.get(name, 0)) == (name, one.questions if one.stage.asks else 0)
            came = Counter(str(outcome) for outcome in outcomes(project, name).values())
            says = {"done": one.run + one.reuse, "dropped": one.dropped, "skipped": one.skipped}
            if one.guess is not None:  # a function that was not called yet may make rows leave
                says["done"], says["dropped"] = says["done"] - came["dropped"], came["dropped"]
            assert (name, {outcome: came[outcome] for outcome in says}) == (name, says)
    again = planned(project, **{key: value for key, value in options.items() if key != "fresh"})
    assert {one.name: one.run for one in again.stages} == dict.fromkeys(counts(report), 0)
    assert (again.calls, again.exact) == (0, True)
    return report


def test_items_of_the_input_their_groups_and_a_tree_are_known_and_one_more_row_costs_the_way_up(
    project: ProjectFolder,
) -> None:
    rows = {f"r{n}": [f"{n}.{i}" for i in range(n % 4)] for n in range(16)}
    lists(project, rows)
    workflow(project, SAY, SUM, ALL)
    report = as_planned(project)
    assert counts(report) == {"say": (24, 0), "sum": (12, 0), "all": (1, 0)}
    parts = report.stages[2].parts
    assert parts > 2
    assert not project.query("SELECT 1 FROM run WHERE id > 1")
    lists(project, {**rows, "new": ["x"]})
    report = as_planned(project)
    assert counts(report) == {"say": (1, 24), "sum": (1, 12), "all": (1, 0)}
    assert 0 < report.stages[2].parts < parts
    assert set(report.stages[2].reasons) == {"new row"}  # the group's one member that is not there yet is


def test_a_changed_item_and_a_reverted_one(project: ProjectFolder) -> None:
    lists(project, {"a": ["x", "y"], "b": ["z"]})
    workflow(project, SAY, SUM)
    as_planned(project)
    lists(project, {"a": ["x", "other"], "b": ["z"]})
    report = as_planned(project)
    assert counts(report) == {"say": (1, 2), "sum": (1, 1)}
    assert set(report.stages[0].reasons) == {"row changed"}
    assert set(report.stages[1].reasons) == {"upstream say changed"}
    lists(project, {"a": ["x", "y"], "b": ["z"]})
    assert planned(project).calls == 0


def test_a_group_whose_prompt_changed_is_asked_with_members_that_are_reused(project: ProjectFolder) -> None:
    lists(project, {f"r{n}": ["x", "y"] for n in range(5)})
    workflow(project, SAY, SUM)
    as_planned(project)
    workflow(project, SAY, {**SUM, "prompt": "Other: ${rows_json}"})
    report = planned(project)
    assert counts(report) == {"say": (0, 10), "sum": (5, 0)}
    assert report.stages[1].reasons["prompt changed"].count == 5
    shown = agac.plan("reviews", show=1, project=project.root).prompts[0]
    assert (shown.row, shown.stage) == ("r0", "sum")
    text = shown.messages[-1].text
    assert [one["say"] for one in json.loads(text.removeprefix("Other: "))] == ["r0:0:x", "r0:1:y"]
    as_planned(project)


def test_a_changed_way_of_making_is_named_and_replicas_are_counted(project: ProjectFolder) -> None:
    project.rows([{"id": "a", "items": ["x"], "more": ["y"], "kind": 1}], PATH)
    workflow(project, SAY, SUM)
    as_planned(project)
    workflow(project, {**SAY, "explode": "more"}, {**SUM, "group_by": ["kind"], "prompt": "${rows_json}"})
    assert {one.name: set(one.reasons) for one in planned(project).stages}["say"] == {"explode changed"}
    workflow(project, SAY, {**SUM, "group_by": ["kind"], "prompt": "${rows_json}"})
    assert planned(project).stages[1].reasons.keys() == {"new row"}  # no group of this name was there
    lists(project, {"b": ["x", "y"], "c": ["z"]})
    workflow(project, {**SAY, "replicas": 3}, SUM)
    assert as_planned(project).stages[0].estimate.calls == 9


def test_what_an_answer_makes_is_a_guess_until_it_is_there(project: ProjectFolder) -> None:
    project.rows([{"id": f"r{n}"} for n in range(20)], PATH)
    workflow(project, PLAN, ASK, SUM)
    first = planned(project)
    assert [one.exact for one in first.stages] == [True, False, False]
    assert first.stages[1].guess == ("items", "plan", 2.0, None)
    assert counts(first) == {"plan": (20, 0), "ask": (40, 0), "sum": (20, 0)}
    shown = project.agac("plan", "-a", "reviews").out
    assert "ask: the number of rows it makes is not known before `plan` has answered; 2 of each is assumed" in shown
    assert "~40" in shown
    as_json = project.agac("plan", "-a", "reviews", "--json").json
    assert (as_json["exact"], [one["exact"] for one in as_json["stages"]]) == (False, [True, False, False])
    assert as_json["stages"][1]["guess"] == {"makes": "items", "waits_for": "plan", "number": 2.0, "run": None}
    as_planned(project, "ask", "sum")
    made = len(outcomes(project, "ask"))
    again = planned(project, fresh=True)
    assert again.stages[1].run == pytest.approx(made, abs=1)
    guess = again.stages[1].guess
    assert guess is not None
    assert (guess.number, guess.run) == (made / 20, 1)


@pytest.mark.parametrize(
    ("says", "number"),
    [
        ({}, 2),
        ({"minItems": 3, "maxItems": 5}, 4),
        ({"minItems": 7}, 7),
        ({"maxItems": 1}, 1),
        ({"maxItems": 500}, 2),
        ({"minItems": 2, "maxItems": 500}, 4),
    ],
)
def test_an_unknown_list_is_as_long_as_its_schema_says(
    project: ProjectFolder, says: dict[str, int], number: int
) -> None:
    project.rows([{"id": f"r{n}"} for n in range(3)], PATH)
    listed = {"$ref": "#/$defs/some"}
    schema = {
        "type": "object", "properties": {"asks": listed}, "required": ["asks"], "additionalProperties": False,
        "$defs": {"some": {"type": "array", "items": {"type": "string"}, **says}},
    }  # fmt: skip
    workflow(project, {**PLAN, "output_schema": schema}, ASK, SUM)
    report = planned(project)
    guess = report.stages[1].guess
    assert guess is not None
    assert (guess.number, report.stages[1].run) == (number, 3 * number)


@pytest.mark.parametrize(
    ("gives", "number"),
    [("list[dict]", 6), ("dict | list[dict] | None", 6), ("list", 6), ("dict[str, list[str]]", 3), ("dict", 3)],
)
def test_a_function_that_says_that_it_gives_lists_is_taken_to(project: ProjectFolder, gives: str, number: int) -> None:
    project.write("tools/cut.py", f"def cut(row) -> {gives}:\n    return row\n")
    project.rows([{"id": id_, "text": "x"} for id_ in "abc"], PATH)
    function = {"name": "cut", "python": "tools/cut.py:cut"}
    workflow(project, function, {"name": "say", "prompt": "Say ${text}"})
    [cut, say] = planned(project).stages
    assert (cut.guess, say.run) == (("rows", "cut", number / 3, None), number)
    ran(project)
    workflow(project, function, {"name": "say", "prompt": "Say again ${text}"})
    assert planned(project, fresh=True).stages[1].run == 3, "what it gave counts more than what it says"


def test_a_functions_lists_are_known_once_it_was_called(project: ProjectFolder) -> None:
    project.write("tools/cut.py", CUT)
    texts = {"a": "one", "b": "none", "c": "two words", "d": "and three words", "e": "one"}
    project.rows([{"id": id_, "text": text} for id_, text in texts.items()], PATH)
    function = {"name": "cut", "python": "tools/cut.py:cut"}
    unique, say = {"name": "uniq", "dedupe": ["word"]}, {"name": "say", "prompt": "${word}"}
    per = {"name": "per", "group_by": ["word"], "prompt": "${word}: ${rows_json}"}
    workflow(project, function, unique, say, per)
    assert as_planned(project, "uniq", "say", "per").stages[1].guess == ("kept", "cut", 1.0, None)
    workflow(project, function, unique, {**say, "prompt": "Say ${word}"}, per)
    report = planned(project)
    assert counts(report) == {"cut": (0, 4), "uniq": (0, 5), "say": (5, 0), "per": (5, 0)}
    assert [one.dropped for one in report.stages] == [1, 2, 0, 0]
    as_planned(project)
    workflow(project, {**function, "python": "tools/cut.py:cut"}, unique, say, per)
    fresh = planned(project, fresh=True)
    assert [one.exact for one in fresh.stages] == [True, False, False, False]
    assert counts(fresh)["say"][0] == pytest.approx(5, abs=1)


def test_the_first_of_equal_rows_is_the_one_that_the_run_keeps(project: ProjectFolder) -> None:
    project.write("tools/cut.py", CUT)
    texts = {"a": "x y", "b": "z", "c": "z q", "d": "y", "e": "q"}
    project.rows([{"id": id_, "text": text} for id_, text in texts.items()], PATH)
    stages: list[dict[str, Any]] = [{"name": "cut", "python": "tools/cut.py:cut"}, {"name": "uniq", "dedupe": ["word"]}]
    workflow(project, *stages, {"name": "say", "prompt": "${id} ${word}"})
    ran(project)
    workflow(project, *stages, {"name": "say", "prompt": "Say ${id} ${word}"})
    prompts = agac.plan("reviews", show=9, project=project.root).prompts
    ran(project)
    kept = [id_ for id_, outcome in outcomes(project, "say").items() if outcome == "done"]
    assert sorted(prompt.row for prompt in prompts) == sorted(kept) == ["a/0", "a/1", "b", "c/1"]


def test_rows_that_cannot_be_used_make_nothing_and_guards_look_at_children_and_groups(project: ProjectFolder) -> None:
    lists(project, {"a": ["x"], "b": "no list", "c": None})
    workflow(project, SAY, SUM)
    (say, summed) = as_planned(project).stages
    assert (say.run, say.blocked, set(say.blocked_reasons)) == (1, 2, {"list missing or not a list"})
    assert (summed.run, summed.blocked) == (1, 0)
    lists(project, {"a": [1, 2, 3], "b": [1], "c": []})
    only = {"name": "only", "needs": "say", "filter": "index < 2"}
    workflow(project, {**SAY, "when": "item > 1"}, only, {**SUM, "needs": "only", "when": "rows_count > 1"})
    assert [(one.skipped, one.dropped) for one in as_planned(project).stages] == [(2, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize("incomplete", ["use", "fail"])
def test_a_member_that_is_left_failed(incomplete: str, project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "a:1:bad"}]))
    lists(project, {"a": ["x", "bad"], "b": ["y"]})
    workflow(project, {**SAY, **SMALL}, {**SUM, **SMALL, "incomplete": incomplete})
    for _ in range(3):
        ran(project)
    report = planned(project)
    assert counts(report) == {"say": (0, 2), "sum": (0, 2 if incomplete == "use" else 1)}
    assert report.stages[0].blocked_reasons["failed too often"].example == "a/1"
    assert report.stages[1].blocked == (0 if incomplete == "use" else 1)
    assert report.calls == 0


def test_until_and_stage_say_what_is_not_asked(project: ProjectFolder) -> None:
    project.rows([{"id": f"r{n}"} for n in range(6)], PATH)
    workflow(project, PLAN, ASK, SUM, ALL)
    for options in ({"until": "plan"}, {"stage": "sum"}, {"stage": "ask"}, {"until": "sum"}):
        report = planned(project, **options)
        before = calls_by_stage(project) if (project.root / ".agac").exists() else {}
        project.run(**options)
        asked = Counter(calls_by_stage(project)) - Counter(before)
        assert {one.name: one.questions for one in report.stages if one.run} == asked
    assert as_planned(project).calls == sum(calls for name, calls in calls_by_stage(project).items() if name == "all")


def test_confirm_above_and_budgets_know_children_and_parts(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices={"small": {"input": 1000.0, "output": 2000.0}})
    lists(project, {f"r{n}": ["x", "y", "z"] for n in range(10)})
    stages = ({**one, **SMALL} for one in (SAY, SUM, ALL))
    workflow(project, *stages, confirm_above={"usd": 0.1}, budget={"calls": 40})
    report = planned(project)
    assert report.usd == pytest.approx(sum(one.estimate.usd or 0.0 for one in report.stages))
    assert report.wants_yes
    assert report.calls == 41 + report.stages[2].parts
    assert [budget["enough"] for budget in report.budgets] == [False]
    with pytest.raises(UsageError, match="expected to cost"):
        project.run()
    assert server.account()["requests"] == 0


def test_a_retry_counts_what_is_made_of_its_rows(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "a:1:bad"}]))
    lists(project, {"a": ["x", "bad"], "b": ["y", "z"]})
    workflow(project, {**SAY, **SMALL}, {**SUM, **SMALL})
    ran(project)
    assert retried(project, Retry()) == {"say": 1, "sum": 1}
    assert retried(project, Retry(from_stage="say", since=time.time())) == {"say": 4, "sum": 2}
    assert retried(project, Retry(rows=("b",))) == {"say": 0, "sum": 0}
    whole = Retry(from_stage="sum", since=time.time())
    assert retried(project, whole) == {"say": 1, "sum": 2}, "the failed child is tried again, too"
    before = Counter(calls_by_stage(project))
    agac.retry("last", whole, project=project.root)
    assert Counter(calls_by_stage(project)) - before == {"say": 1, "sum": 2}


def test_a_retry_in_a_graph_counts_only_what_follows(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "L a"}]).base_url)
    project.rows([{"id": "a"}, {"id": "b"}], PATH)
    left, right = {"name": "left", "prompt": "L ${id}"}, {"name": "right", "needs": [], "prompt": "R ${id}"}
    both = {"name": "both", "needs": ["left", "right"], "prompt": "${left} ${right}", **SMALL}
    workflow(project, {**left, **SMALL}, {**right, **SMALL}, both)
    ran(project)
    assert retried(project, Retry()) == {"left": 1, "right": 0, "both": 1}
    assert retried(project, Retry(stage="right")) == {"left": 0, "right": 0, "both": 0}
    with store(project) as database:
        database.execute("UPDATE row SET state = 0, error_stage = NULL, error_type = NULL WHERE state = 2")
    assert retried(project, Retry()) == {"left": 1, "right": 0, "both": 1}, "a row that the same retry opened"


def retried(project: ProjectFolder, retry: Retry) -> dict[str, int]:
    """How many tasks of each stage a retry would ask."""

    async def report() -> PlanReport:
        async with open_for_reading(database_path(project.root)) as database:
            choice = InvocationChoice(scope=Scope(), run=1, retry=retry)
            return await what_is_left(database, project.plan(), choice, None)

    return {one.name: one.questions for one in asyncio.run(report()).stages}


KIND = {"name": "kind", "prompt": "Kind of ${text}", "model": "simulator/small", "output_schema": {"kind": "a|b|c"}}
BY_KIND = {**KIND, "name": "sum", "needs": "kind", "group_by": ["kind.kind"], "prompt": "Sum ${rows_json}"}
AFTER = {"name": "more", "needs": "sum", "prompt": "More ${sum.kind}", "model": "simulator/small"}


@pytest.mark.parametrize("edited", range(0, 12, 3))
def test_what_comes_after_groups_that_hang_on_answers_is_no_certain_number(project: ProjectFolder, edited: int) -> None:
    texts = {f"r-{number}": f"text {number}" for number in range(12)}
    project.rows([{"id": name, "text": text} for name, text in texts.items()], PATH)
    workflow(project, KIND, BY_KIND, AFTER)
    before = project.run().invocation["calls"]
    texts[f"r-{edited}"] = f"another text, of {edited}"
    project.rows([{"id": name, "text": text} for name, text in texts.items()], PATH)
    report = planned(project)
    found = {one.name: one for one in report.stages}
    assert [found[name].exact for name in ("kind", "sum", "more")] == [True, False, False]
    assert [found[name].most for name in ("kind", "sum", "more")] == [1, None, None]
    assert (report.exact, report.most, report.usd_at_most) == (False, None, None)
    assert found["more"].run == found["sum"].run
    asked = project.run().invocation["calls"]
    assert report.least <= asked < before


def test_what_comes_after_rows_of_which_none_is_guessed_is_no_certain_number(project: ProjectFolder) -> None:
    """The last run made none of them, so that the guess is none."""
    project.write("tools/cut.py", CUT)
    listed = {"name": "cut", "python": "tools/cut.py:cut"}
    project.rows([{"id": name, "text": "none"} for name in ("a", "b")], PATH)
    workflow(project, listed, {"name": "ask", "prompt": "Ask ${id}", "model": "simulator/small"})
    project.run()
    project.rows([{"id": "c", "text": "one two"}], PATH)
    report = planned(project)
    assert report.stages[1].most is None
    assert report.usd_at_most is None
