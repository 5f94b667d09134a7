"""Stages that make rows: explode, group_by with what stands beside it, dedupe, on_empty. What is told before a run."""

import pytest
from support.tree import Tree

from agac.core.errors import Where
from agac.core.keys import canonical
from agac.plan.checks import resolve_models
from agac.plan.fields import check_placeholders
from agac.plan.plan import Selection, make_plan
from agac.plan.stage import recorded_stages, written_of
from agac.providers.table import SHIPPED
from agac.spec.graph import graph
from agac.spec.models import StageFile
from agac.spec.operations import Dedupe, Group
from agac.spec.templates import default_prompt, group_prompt
from agac.spec.workflow import Stage, Workflow
from agac.spec.yaml import parse_yaml

HEAD = "input: {path: data/reviews.csv}\nstages:\n"
PLAN = """{"type": "object", "properties": {
  "questions": {"type": "array", "items": {"$ref": "#/$defs/question"}},
  "risks": {"type": "array", "items": {"type": "string"}},
  "summary": {"type": "string"}},
 "$defs": {"question": {"type": "object", "properties": {
    "text": {"type": "string"}, "kind": {"enum": ["open", "closed"]}}}}}"""
PLANNED = "  - {name: plan, output_schema: schemas/plan.json}\n"
ANSWER = (
    '  - {name: answer, explode: plan.questions, prompt: "${item.text}", output_schema: {topic: "x|y", text: string}}\n'
)
COLUMNS = ("id", "review", "topic")


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


def told(tree: Tree, *lines: str, columns: tuple[str, ...] | None = COLUMNS, tail: str = "") -> list[str]:
    """What is wrong with the fields, placeholders and conditions of a workflow that can be loaded."""
    found = check_placeholders(loaded(tree, *lines, tail=tail), columns)
    return [("warning: " if one.severity == "warning" else "") + f"{one.path}: {one.message}" for one in found]


def refused(tree: Tree, *lines: str, tail: str = "") -> list[str]:
    """What loading the workflow says, without the places."""
    return [line.split(": ", 1)[1] for line in tree.problems(HEAD + "".join(lines) + tail)]


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
    assert [stage.on_empty for stage in stages.values()] == [None, None, "warn", "error"]
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


def test_a_group_sees_nothing_upstream_and_those_after_it_see_from_it_on(planned: Tree) -> None:
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


def test_stages_that_no_row_can_follow_both_are_told(planned: Tree) -> None:
    lines = [
        PLANNED, ANSWER, "  - {name: all, needs: plan, group_by: []}\n", "  - {name: both, needs: [answer, all]}\n",
    ]  # fmt: skip
    assert refused(planned, *lines) == [
        (
            "stages[3].needs: stage 'both' follows 'all', on the groups of 'all', and 'answer', on the rows that "
            "'answer' makes of items; no row has both: let it follow one of them"
        )
    ]


def test_a_child_may_follow_what_was_said_of_its_parent(planned: Tree) -> None:
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


def test_needs_that_are_written_hold_for_what_explodes(planned: Tree) -> None:
    assert told(
        planned, PLANNED, "  - {name: a, needs: [], explode: plan.questions, prompt: x}\n", tail="output: {stages: a}\n"
    ) == ["stages[1].explode: names the stage 'plan', which is not upstream of this one; add it to needs"]


def test_ends_of_different_rows_have_to_be_chosen_from(planned: Tree) -> None:
    lines = [PLANNED, ANSWER, "  - {name: tone, needs: plan}\n", "  - {name: all, needs: answer, group_by: []}\n"]
    assert refused(planned, *lines) == [
        (
            "output.stages: the results that no stage needs are of different rows: 'tone' of the input's rows; 'all' "
            "of the groups of 'all'; choose with `output: {stages: [all]}`"
        )
    ]
    assert refused(planned, *lines, tail="output: {stages: [tone, answer]}\n") == [
        (
            "output.stages: names results of different rows: 'answer' of the rows that 'answer' makes of items; 'tone' "
            "of the input's rows; name those of the same rows, as [tone]"
        )
    ]


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


def test_items_are_known_by_the_schema_of_what_is_exploded(planned: Tree) -> None:
    fine = (
        "  - {name: a, explode: plan.questions, when: \"item.kind == 'open' && index < 3 && row.item.text != review\", "
        'prompt: "${item.text} ${index} ${review} ${plan.summary} ${row_json}"}\n'
    )
    assert told(planned, PLANNED, fine) == []
    wrong = (
        "  - {name: a, explode: plan.questions, when: \"item.kind == 'oppen' || item.txt == '' || inde > 1\", "
        'prompt: "${item.txt} ${index.x} ${itm}"}\n'
    )
    assert told(planned, PLANNED, wrong) == [
        "stages[1].prompt: ${item.txt}: no such field; did you mean 'item.text'?",
        "stages[1].prompt: ${index.x}: no such field; index is a single value; write ${index}",
        "stages[1].prompt: ${itm}: no such field; did you mean 'item'?",
        "stages[1].when: at column 25: `item.txt`: no such field; did you mean 'item.text'?",
        "stages[1].when: at column 43: `inde`: no such field; did you mean 'index'?",
        (
            "stages[1].when: at column 1: `item.kind == 'oppen'` is never true: item.kind is one of \"open\", "
            '"closed"; did you mean "open"?'
        ),
    ]
    text = '  - {name: a, explode: plan.risks, prompt: "${item.text}"}\n'
    assert told(planned, PLANNED, text) == [
        "stages[1].prompt: ${item.text}: no such field; item is a single value; write ${item}"
    ]


def test_item_and_index_are_fields_from_the_stage_that_explodes_on(planned: Tree) -> None:
    lines = [PLANNED, '  - {name: a, prompt: "${item}"}\n', ANSWER.replace("answer,", "answer, needs: a,")]
    assert told(planned, *lines)[0].startswith("stages[1].prompt: ${item}: no such field; ")
    rename = '  - {name: b, rename: {item: question}}\n  - {name: c, prompt: "${question.txt} ${index} ${item}"}\n'
    assert told(planned, PLANNED, ANSWER, rename) == [
        "stages[3].prompt: ${question.txt}: no such field; did you mean 'question.text'?",
        (
            "stages[3].prompt: ${item}: no such field; known are: id, review, topic, question, index, plan, answer, "
            "b, row_json"
        ),
    ]
    select = "  - {name: b, explode: plan.questions, select: [item, review]}\n  - {name: c, explode: item.text}\n"
    assert told(planned, PLANNED, select) == ["stages[2].explode: item.text is text, not a list"]


def test_items_of_items_take_the_place_of_their_parents(planned: Tree) -> None:
    second = (
        '  - {name: b, output_schema: {words: "string[]"}}\n'
        '  - {name: c, explode: b.words, prompt: "${item} ${plan.summary}"}\n'
    )
    assert told(planned, PLANNED, ANSWER, second) == []
    clash = told(planned, PLANNED, ANSWER, columns=("id", "item"))
    assert clash == [
        (
            "stages[1].explode: rows have a field 'item', and those that are made of items get agac's own 'item'; "
            "rename the field first"
        )
    ]


@pytest.mark.parametrize(
    ("explode", "message"),
    [
        ("plan.summary", "plan.summary is text, not a list; did you mean 'plan.questions'?"),
        ("plan", "plan is an object, not a list; did you mean 'plan.questions'?"),
        ("plan.questons", "plan.questons: no such field; did you mean 'plan.questions'?"),
        ("plan.questions.text", "plan.questions is a list, which has no field 'text'; explode plan.questions, and"),
        ("free", "stage 'free' answers with plain text, which has no items; give it an output_schema with a field"),
        ("free.x", "stage 'free' answers with plain text, which has no field 'x'; give it an output_schema"),
        ("review", "the column 'review' holds text, not a list; make a list of it in a python stage"),
        ("review.x", "the column 'review' holds text, which has no field 'x'"),
        ("reviw", "names the field 'reviw', which rows do not have; did you mean 'review'?"),
        ("later.x", "names the stage 'later', which is not upstream of this one; add it to needs"),
        ("off.x", "names the stage 'off', which is not enabled"),
    ],
)
def test_what_is_exploded_has_to_be_a_list(planned: Tree, explode: str, message: str) -> None:
    stage = f"  - {{name: a, needs: [plan, free], explode: {explode}, prompt: x}}\n"
    others = "  - {name: free, needs: []}\n  - {name: off, enabled: false}\n"
    found = told(planned, PLANNED, others, stage, "  - {name: later}\n")
    assert [one for one in found if one.startswith(f"stages[3].explode: {message}")], found


def test_rows_that_bring_their_fields_may_bring_lists(planned: Tree) -> None:
    assert told(planned, '  - {name: a, explode: tags, prompt: "${item.x}"}\n', columns=None) == []
    near = "  - {name: a, explode: plann.questions, prompt: x, needs: plan}\n"
    assert told(planned, PLANNED, near, columns=None) == [
        "warning: stages[1].explode: 'plann' is no known name, unless rows have such a field; did you mean 'plan'?"
    ]


def test_a_group_has_its_fields_and_its_rows_and_nothing_of_a_single_row(planned: Tree) -> None:
    fine = (
        "  - {name: g, group_by: [answer.topic, review], "
        "when: \"answer.topic == 'x' && rows_count > 1 && rows_failed == 0\", "
        'prompt: "${answer.topic} ${review} ${rows_json} ${rows_count} ${rows_failed}"}\n'
        '  - {name: after, prompt: "${answer.topic} ${review} ${g} ${row_json}", when: "review != \'\'"}\n'
    )
    assert told(planned, PLANNED, ANSWER, fine) == []
    wrong = (
        "  - {name: g, group_by: [answer.topic], when: \"review == 'x'\", "
        'prompt: "${review} ${plan.summary} ${answer.text} ${item} ${row_json} ${rows_jsn}"}\n'
        '  - {name: after, prompt: "${rows_count} ${topic} ${plan}"}\n'
    )
    many = "a group has many rows; "
    assert told(planned, PLANNED, ANSWER, wrong) == [
        f"stages[2].prompt: ${{review}}: {many}'review' is in ${{rows_json}}, for each of them",
        f"stages[2].prompt: ${{plan.summary}}: {many}'plan' is in ${{rows_json}}, for each of them",
        "stages[2].prompt: ${answer.text}: no such field; known are: topic",
        f"stages[2].prompt: ${{item}}: {many}'item' is in ${{rows_json}}, for each of them",
        f"stages[2].prompt: ${{row_json}}: {many}what they have is in ${{rows_json}}, for each of them",
        "stages[2].prompt: ${rows_jsn}: no such field of a group; did you mean 'rows_json'?",
        (
            "stages[2].when: `review`: a group has many rows, each with its own 'review'; a guard of groups sees "
            "answer, rows_count and rows_failed"
        ),
        "stages[3].prompt: ${rows_count}: no such field; did you mean 'row_json'?",
        "stages[3].prompt: ${topic}: no such field; known are: answer, g, row_json",
        (
            "stages[3].prompt: ${plan} names a stage that is not upstream of 'after'; stages see only those that they "
            "need, and what those need"
        ),
    ]


def test_values_of_a_groups_fields_are_known_by_their_schema(planned: Tree) -> None:
    line = "  - {name: g, group_by: [answer.topic], when: \"answer.topic == 'z'\"}\n"
    assert told(planned, PLANNED, ANSWER, line) == [
        'stages[2].when: at column 1: `answer.topic == \'z\'` is never true: answer.topic is one of "x", "y"'
    ]


@pytest.mark.parametrize("key", ["group_by", "dedupe"])
def test_fields_that_rows_are_compared_by_have_to_be_there(planned: Tree, key: str) -> None:
    line = f"  - {{name: g, {key}: [topc, review.x, answer.topik, item.text, index, plan.summary]}}\n"
    assert told(planned, PLANNED, ANSWER, line) == [
        f"stages[2].{key}: names the field 'topc', which rows do not have; did you mean 'topic'?",
        f"stages[2].{key}: the column 'review' holds text, which has no field 'x'",
        f"stages[2].{key}: answer.topik: no such field; did you mean 'answer.topic'?",
    ]


def test_names_that_could_be_two_things_are_told(planned: Tree) -> None:
    line = "  - {name: g, group_by: [plan, rows_count, a.b]}\n"
    assert told(planned, PLANNED, line, columns=("plan", "rows_count", "a.b")) == [
        (
            "stages[1].group_by: 'plan' could be the field of that name or the result of stage 'plan'; rename the one "
            "or the other"
        ),
        "stages[1].group_by: the field 'a.b' cannot be named here, for its dot; rename it first",
        "stages[1].group_by: 'rows_count' is a name of agac's own in the prompt of a group; rename the field first",
    ]


def test_visible_of_a_group_is_about_its_rows(planned: Tree) -> None:
    line = '  - {name: g, group_by: [topic], visible: {only: [review], never: [plan]}, prompt: "${rows_json}"}\n'
    assert told(planned, PLANNED, line) == []
    slip = "  - {name: g, group_by: [topic], visible: {never: [reviw]}}\n"
    assert told(planned, PLANNED, slip) == [
        "stages[1].visible.never: names 'reviw', which does not exist; did you mean 'review'?"
    ]


def test_a_group_cuts_a_long_chain() -> None:
    files = [StageFile(name=f"s{n}") for n in range(1000)]
    files[700] = StageFile(name="s700", group_by=[])
    links, problems = graph(files, parse_yaml("stages: []\n", "w.yml"))
    assert not problems
    assert len(links[-1].ancestors) == 299


def test_what_makes_rows_follows_a_dedupe_or_stands_before_it(planned: Tree) -> None:
    """Else rows would be made of one that leaves."""
    unique = "  - {name: unique, needs: plan, dedupe: topic}\n"
    answer = ANSWER.replace("name: answer", "name: answer, needs: {}")
    tail = "output: {stages: answer}\n"
    said = "stage 'answer' makes rows of those that 'unique' may drop beside it; let one of them follow the other"
    found = refused(planned, PLANNED, unique, answer.replace("{}", "plan", 1), tail=tail)
    assert found == [f"stages[2].needs: {said}"]
    assert not refused(planned, PLANNED, unique, answer.replace("{}", "unique", 1), tail=tail)
