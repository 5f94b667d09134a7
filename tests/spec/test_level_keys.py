"""Stages that make rows: explode, group_by and what goes with it, dedupe, on_empty; what is said before a run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tree import Tree

from agac.core.errors import Where
from agac.core.keys import canonical
from agac.plan.fields import check_placeholders
from agac.plan.plan import Selection, make_plan
from agac.plan.resolved_models import resolve_models
from agac.plan.stage import recorded_stages, written_of
from agac.providers.known_providers import SHIPPED
from agac.spec.operations import Dedupe, Group
from agac.spec.templates import default_prompt, group_prompt
from agac.spec.workflow import Stage, Workflow

HEAD = "input: {path: data/reviews.csv}\nstages:\n"
PLAN = """{"type": "object", "properties": {
  "questions": {"type": "array", "items": {"$ref": "#/$defs/question"}},
  "risks": {"type": "array", "items": {"type": "string"}},
  "summary": {"type": "string"}, "note": {"type": "string"},
  "source": {"anyOf": [{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
                       {"type": "null"}]}},
 "required": ["questions", "risks", "summary", "source"],
 "$defs": {"question": {"type": "object", "required": ["text", "kind"], "properties": {
    "text": {"type": "string"}, "kind": {"enum": ["open", "closed"]}, "hint": {"type": "string"}}}}}"""
PLANNED = "  - {name: plan, output_schema: schemas/plan.json}\n"
ANSWER = (
    '  - {name: answer, explode: plan.questions, prompt: "${item.text}", output_schema: {topic: "x|y", text: string}}\n'
)


@pytest.fixture
def planned(tree: Tree) -> Tree:
    tree.write("schemas/plan.json", PLAN)
    return tree


def loaded(tree: Tree, *lines: str, tail: str = "") -> Workflow:
    workflow, problems = tree.load(HEAD + "".join(lines) + tail)
    assert not problems, list(map(str, problems))
    assert workflow is not None
    return workflow


def stages_of(tree: Tree, *lines: str, tail: str = "") -> dict[str, Stage]:
    return {stage.name: stage for stage in loaded(tree, *lines, tail=tail).stages}


def cases() -> Iterator[tuple[str, str, list[str]]]:
    """The cases of fields.txt: stages before and columns (none: rows bring theirs), the stages, and all that is said
    of the fields, placeholders and conditions in them. `+` adds a stage, a deeper line goes on with the one before."""
    text = (
        Path(__file__).with_name("fields.txt").read_text("utf-8").replace("\n        ", " ").replace("\n+ ", "\n  - ")
    )
    for section in text.split("## ")[1:]:
        head, *lines = section.split("\n{")
        for line in lines:
            stages, *said = line.strip().split("\n    ")
            yield head.strip(), f"  - {{{stages}\n", said


@pytest.mark.parametrize(("head", "stages", "said"), list(cases()))
def test_words_of_fields(planned: Tree, head: str, stages: str, said: list[str]) -> None:
    before, _, columns = head.partition(" |")
    lines = [PLANNED if name == "plan" else ANSWER for name in before.split(", ")]
    workflow, found = planned.load(HEAD + "".join(lines) + stages)
    assert workflow is not None
    found += check_placeholders(workflow, tuple(columns.strip().split(", ")) if columns else None)
    shown = [("warning: " if one.severity == "warning" else "") + f"{one.path}: {one.message}" for one in found]
    assert shown == said


def test_the_keys_become_what_stages_do(planned: Tree) -> None:
    stages = stages_of(
        planned,
        PLANNED,
        ANSWER,
        "  - {name: unique, dedupe: answer.text, on_empty: warn}\n",
        "  - {name: report, group_by: [answer.topic, review], reduce: {max_rows: 20}, incomplete: fail, "
        "on_empty: error}\n",
    )
    assert [stage.makes for stage in stages.values()] == [None, "items", "kept", "groups"]
    assert stages["answer"].explode == ("plan", "questions")
    assert stages["unique"].operation == Dedupe((("answer", "text"),))
    assert stages["report"].group == Group((("answer", "topic"), ("review",)), 20, None, "fail")
    assert [stage.settings.on_empty for stage in stages.values()] == [None, None, "warn", "error"]
    assert stages["report"].prompt.text == group_prompt(Where("w")).text == "${rows_json}"
    assert stages["plan"].prompt.text == default_prompt((), Where("w")).text


def test_a_definition_has_the_keys_where_they_are_set_and_gives_them_back(planned: Tree) -> None:
    lines = [PLANNED, ANSWER, "  - {name: unique, dedupe: answer.text}\n"]
    report = "  - {name: report, group_by: [answer.topic], reduce: {max_tokens: 900}, on_empty: warn}\n"
    workflow = planned.workflow(HEAD + "".join([*lines, report, "  - {name: final}\n"]))
    models, problems = resolve_models(workflow, SHIPPED)
    assert not problems
    body = make_plan(workflow, models, planned.root, Selection(), None).body
    set_keys = ("explode", "group_by", "reduce", "incomplete")
    assert [{key: one[key] for key in set_keys if key in one} for one in body["stages"]] == [
        {},
        {"explode": "plan.questions"},
        {},
        {"group_by": ["answer.topic"], "reduce": {"max_tokens": 900}},
        {},
    ]
    assert (body["stages"][2]["operation"], body["rows"]) == ({"dedupe": ["answer.text"]}, "report")
    assert "on_empty" not in canonical(body)
    again = recorded_stages(body)
    assert written_of(body) == 3
    for written, known in zip(again, workflow.stages, strict=True):
        ways = ("name", "needs", "ancestors", "rows_of", "explode", "group", "makes")
        assert [getattr(written, way) for way in ways] == [getattr(known, way) for way in ways]


def test_a_group_sees_nothing_upstream_and_a_child_may_follow_what_was_said_of_its_parent(planned: Tree) -> None:
    stages = stages_of(
        planned, PLANNED, "  - {name: short, select: [review]}\n", "  - {name: all, group_by: []}\n",
        "  - {name: more}\n", "  - {name: kept, rename: {x: y}}\n", "  - {name: last}\n",
    )  # fmt: skip
    assert {name: stage.ancestors for name, stage in stages.items()} == {
        "plan": (),
        "short": ("plan",),
        "all": (),
        "more": ("all",),
        "kept": ("all", "more"),
        "last": ("all", "more", "kept"),
    }
    assert [stage.rows_of for stage in stages.values()] == [None, None, None, None, None, "kept"]
    lines = [PLANNED, "  - {name: tone, needs: plan}\n", ANSWER, "  - {name: both, needs: [answer, tone]}\n"]
    assert stages_of(planned, *lines)["both"].ancestors == ("plan", "tone", "answer")


@pytest.mark.parametrize(
    ("between", "needs"),
    [
        ("", ("plan",)),
        ("  - {name: good, filter: 'plan.summary != \"\"'}\n", ("good",)),
        ("  - {name: other}\n", ("other",)),
        ("  - {name: other, needs: []}\n", ("plan",)),
        ("  - {name: risk, explode: plan.risks}\n", ("plan",)),
        ("  - {name: all, group_by: []}\n", ("plan",)),
        ("  - {name: unique, dedupe: plan.summary}\n", ("unique",)),
        ("  - {name: risk, explode: plan.risks, enabled: false}\n", ("plan",)),
    ],
)
def test_what_explodes_follows_the_stage_before_if_that_is_on_the_same_rows(
    planned: Tree, between: str, needs: tuple[str, ...]
) -> None:
    stages = stages_of(planned, PLANNED, between, ANSWER, tail="output: {stages: answer}\n")
    assert stages["answer"].needs == needs


@pytest.mark.parametrize(
    ("stages", "rows", "results"),
    [
        ("tone", None, ("tone",)),
        ("[tone, plan]", None, ("plan", "tone")),
        ("answer", "answer", ("answer",)),
        ("all", "all", ("all",)),
        ("unique", "unique", ("answer",)),
    ],
)
def test_outputs_know_whose_rows_they_are_of(
    planned: Tree, stages: str, rows: str | None, results: tuple[str, ...]
) -> None:
    workflow = planned.workflow(
        f"{HEAD}{PLANNED}{ANSWER}"
        "  - {name: unique, dedupe: answer.text}\n"
        "  - {name: tone, needs: plan}\n"
        "  - {name: all, needs: unique, group_by: []}\n"
        f"output: {{stages: {stages}}}\n"
    )
    assert (workflow.output.rows, workflow.output.stages) == (rows, results)


def test_a_workflow_that_ends_with_dedupe_writes_what_it_follows_of_the_rows_kept(planned: Tree) -> None:
    last = "  - {name: good, filter: 'answer.topic == \"x\"'}\n"
    for tail in ("", last):
        workflow = planned.workflow(f"{HEAD}{PLANNED}{ANSWER}  - {{name: unique, dedupe: answer.text}}\n{tail}")
        assert (workflow.output.rows, workflow.output.stages) == ("unique", ("answer",))
