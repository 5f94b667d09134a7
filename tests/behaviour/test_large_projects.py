"""Projects with thousands of stages or workflows: what is done for each of them does not grow with their number, and
what grows by nature has a bound that is said. Work is counted, not timed."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from agac.api.project_check import validate
from agac.api.style import lint
from agac.core import errors
from agac.plan import renames
from agac.plan.changes import changes_of
from agac.spec import stage_order
from agac.spec.card_types import MOST_LEVELS
from agac.spec.field_shapes import FieldShape
from agac.spec.schema_checks import schema_faults
from agac.spec.stage_order import MAX_CIRCLES, MAX_REVIEWS, MAX_STAGES
from agac.spec.stages import MOST_AGENTS

FIRST, STEP = 20, 20  # things, and how many more twice

Line = Callable[[int], str]

CHAIN: Line = lambda i: f'{{name: s{i}, prompt: "${{text}} ${{s{i - 1}}}"}}'  # noqa: E731
SHAPES: dict[str, Line] = {
    "each uses the one before": CHAIN,
    "all need the first": lambda i: f'{{name: s{i}, needs: s{i - i % 1000}, prompt: "${{text}}"}}',
    "guards, schemas and examples": lambda i: (
        f'{{name: s{i}, agent: card, prompt: "${{vars.shop}} ${{s{i - 1}.a}}", output_schema: {{a: "x|y"}},'
        f" when: \"s{i - 1}.a == 'x' && text != ''\", checks: [{{check: \"s{i}.a != 'y'\", message: no}}],"
        " messages: [{role: user, content: one}, {role: assistant, content: {a: x}}]}"
    ),
    "one prompt file": lambda i: f"{{name: s{i}, needs: [], prompt: prompts/all.md}}",
    "stronger models": lambda i: (
        f'{{name: s{i}, prompt: "${{text}}", output_schema: {{a: number}},'
        f' escalate: {{model: simulator/large, when: "s{i}.a < 1.0"}}}}'
    ),
    "functions": lambda i: f"{{name: s{i}, python: 'tools/own.py:same'}}",
    "rows that are dropped": lambda i: f"{{name: s{i}, dedupe: text}}",
    "rows made of items": lambda i: f"{{name: s{i}, explode: text}}",
    "groups": lambda i: f'{{name: s{i}, group_by: [], prompt: "${{rows_json}}"}}',
    "needs that do not exist": lambda i: f'{{name: s{i}, needs: [ss{i - 1}], prompt: "${{text}}"}}',
    "placeholders that do not exist": lambda i: f'{{name: s{i}, prompt: "${{text}} ${{ss{i - 1}}}"}}',
    "guards with unknown names": lambda i: f'{{name: s{i}, prompt: "${{text}}", when: "ss{i - 1} == \'a\'"}}',
    "unknown keys": lambda i: f'{{name: s{i}, needs: [], prompt: "${{text}}", promt{i}: 1}}',
}


def project(folder: Path, lines: list[str], first: str = "s") -> Path:
    """A project with these stages, after a first one."""
    files = {
        "agac.yml": "defaults: {model: simulator/small}\n",
        "data/rows.csv": "id,text\n1,hello\n",
        "prompts/all.md": "Say ${text}\n",
        "agentcards/card.md": "---\nname: card\n---\nYou are kind.\n",
        "tools/own.py": "def same(row):\n    return row\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return workflow(folder, lines, first)


def workflow(folder: Path, lines: list[str], first: str, name: str = "w") -> Path:
    """Writes a workflow with these stages, after a first one."""
    head = "input: {path: data/rows.csv, id_field: id}\nvars: {shop: Ours}\nstages:\n"
    stage = f'{{name: {first}, prompt: "${{text}}", output_schema: {{a: "x|y"}}}}'
    (folder / "workflows").mkdir(exist_ok=True)
    (folder / f"workflows/{name}.yml").write_text(head + "".join(f"  - {line}\n" for line in [stage, *lines]))
    return folder


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, each step of a generator included, those of Python and those of C."""
    count = 0

    def note(_frame: FrameType, event: str, _what: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


ONE_CALL_A_PAIR = 1.0  # for each of n things, one call for each of those before it: n * n / 2


def growth(sized: Callable[[int], Callable[[], object]]) -> float:
    """How many calls there are for each pair of things. Where the work for each of them is the same, there are as many
    more calls at each step, and none is left."""
    few, some, many = (calls_of(sized(FIRST + STEP * step)) for step in range(3))
    return (many - 2 * some + few) / STEP**2


@pytest.fixture
def few_names_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done among thousands of names is done among a few."""
    monkeypatch.setattr(errors, "MAX_COMPARED", 5)


def checked(folder: Path) -> Callable[[], object]:
    return lambda: (validate(project=folder), lint(project=folder))


@pytest.mark.usefixtures("few_names_compared")
@pytest.mark.parametrize("shape", SHAPES)
def test_work_for_a_stage_does_not_grow_with_their_number(shape: str, tmp_path: Path) -> None:
    def sized(count: int) -> Callable[[], object]:
        first = count * 1000  # so that no name was looked for before
        lines = [SHAPES[shape](first + number) for number in range(1, count)]
        return checked(project(tmp_path / str(count), lines, f"s{first}"))

    sized(10)()  # imports what is needed
    assert abs(growth(sized)) < ONE_CALL_A_PAIR / 2


@pytest.mark.usefixtures("few_names_compared")
def test_work_for_a_workflow_does_not_grow_with_their_number(tmp_path: Path) -> None:
    def sized(count: int) -> Callable[[], object]:
        folder = project(tmp_path / str(count), [])
        for number in range(count):
            workflow(folder, [], "s", f"w{100 + number}")
        return checked(folder)

    sized(10)()
    assert abs(growth(sized)) < ONE_CALL_A_PAIR / 2


def definition(count: int, name: str, kind: str) -> dict[str, Any]:
    """The stored form of a workflow of which each stage reads the answer of the one before."""
    schema = {"type": "object", "properties": {"a": {"type": kind}}}
    stages = [
        {
            "name": f"{name}{100 + number}",
            "needs": f"{name}{99 + number}" if number else None,
            "prompt": f"${{{name}{99 + number}.a}}" if number else "",
            "when": f"{name}{99 + number}.a == 'x'" if number else "true",
            "schema": {"name": "own", "body": schema},
            "system": "",
            "model": "simulator/small",
            "params": {},
        }
        for number in range(count)
    ]
    return {"stages": stages, "vars": {}, "results": [stages[-1]["name"]]}


def test_work_for_a_changed_answer_does_not_grow_with_their_number() -> None:
    def sized(count: int) -> Callable[[], object]:
        return lambda: changes_of(definition(count, "s", "string"), definition(count, "s", "number"))

    sized(10)()
    assert abs(growth(sized)) < ONE_CALL_A_PAIR / 2


def test_where_very_many_stages_have_another_name_they_are_told_as_gone_and_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, now = definition(9, "s", "string"), definition(9, "t", "string")
    assert [one.what for one in changes_of(before, now)] == ["renamed"] * 9
    monkeypatch.setattr(renames, "_MAX_COMPARED", 10_000)
    assert Counter(one.what for one in changes_of(before, now)) == {"new": 9, "gone": 9, "output": 1}


def problems_of(folder: Path) -> list[str]:
    return [f"{one.where}: {one.path}: {one.message}" for one in validate(project=folder).problems]


def test_a_workflow_has_a_most_number_of_stages(tmp_path: Path) -> None:
    lines = ['{name: s, prompt: "${text}"}'] * MAX_STAGES
    said = "has 10,001 stages, and 10,000 are read; split it into several workflows"
    assert problems_of(project(tmp_path, lines)) == [f"workflows/w.yml:3:1: stages: {said}"]


def test_stages_that_others_become_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_order, "MAX_STAGES", 4)
    lines = [SHAPES["stronger models"](number) for number in (1, 2)]
    folder = project(tmp_path, lines)
    said = "with stage 's2' this has more than 4 stages, with those of cards and of `escalate`; "
    assert problems_of(folder) == [f"workflows/w.yml:6:5: stages[2].needs: {said}split it into several workflows"]


def test_circles_of_stages_are_reported_up_to_a_number(tmp_path: Path) -> None:
    pairs = ((f"a{number}", f"b{number}") for number in range(100, 100 + MAX_CIRCLES + 5))
    lines = [f"{{name: {one}, needs: {other}}}" for a, b in pairs for one, other in ((a, b), (b, a))]
    found = problems_of(project(tmp_path, lines))
    assert sum("these stages need each other in a circle" in one for one in found) == MAX_CIRCLES


def test_reviews_of_reviews_end_before_what_they_see_is_listed(tmp_path: Path) -> None:
    lines = [f"{{name: r{i}, review: {{edit: {f'r{i - 1}' if i else 's'}}}}}" for i in range(MAX_REVIEWS + 3)]
    said = "stage 'r10' is the last of more than 10 that review one another in a row; name the stage that gave it"
    assert any(said in one for one in problems_of(project(tmp_path, lines)))


def test_cards_that_name_cards_end_at_a_depth(tmp_path: Path) -> None:
    folder = project(tmp_path, ['{name: t, agent: c0, prompt: "${text}"}'])
    for number in range(MOST_LEVELS + 2):
        text = f"---\nname: c{number}\ntype: chain\nsequence: [card, c{number + 1}]\n---\n"
        (folder / f"agentcards/c{number}.md").write_text(text)
    said = "more than 50 cards name each other in a row; let one of them name fewer"
    assert problems_of(folder) == [
        f"agentcards/c49.md:4:12: sequence[0]: {said}", f"agentcards/c49.md:4:18: sequence[1]: {said}",
    ]  # fmt: skip


def test_agents_that_call_agents_end_at_a_number(tmp_path: Path) -> None:
    folder, width = project(tmp_path, ['{name: t, agent: a0_0, prompt: "${text}"}']), 9
    for level in range(4):
        agents = "" if level == 3 else f"agents: [{', '.join(f'a{level + 1}_{i}' for i in range(width))}]\n"
        for number in range(width):
            text = f"---\nname: a{level}_{number}\ndescription: helps\n{agents}---\nYou help.\n"
            (folder / f"agentcards/a{level}_{number}.md").write_text(text)
    found = problems_of(folder)
    assert found
    said = f"a stage may call more than {MOST_AGENTS} agents, with those that they call; name fewer"
    assert all(one.endswith(said) for one in found)


def test_definitions_that_double_leave_open_what_a_result_has() -> None:
    """Each names the next one twice, so that there are thousands of alternatives of one place."""
    definitions: dict[str, Any] = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(15)}
    end = {"type": "object", "properties": {"a": {"type": "string"}}}
    few = FieldShape({"$ref": "#/$defs/d12", "$defs": {**definitions, "d15": end}})
    assert few.names() == {"a"}
    assert calls_of(FieldShape({"$ref": "#/$defs/d0", "$defs": {**definitions, "d15": end}}).names) < 150_000


@pytest.mark.usefixtures("few_names_compared")
def test_references_of_a_schema_are_followed_without_searching_it_for_each() -> None:
    def sized(count: int) -> Callable[[], object]:
        numbers = range(1000, 1000 + count)
        properties = {f"p{i}": {"$ref": f"#a{i}"} for i in numbers} | {f"q{i}": {"$ref": "#/$defs/no"} for i in numbers}
        body = {"properties": properties, "$defs": {f"d{i}": {"$anchor": f"a{i}"} for i in numbers}}
        return lambda: schema_faults(body)

    sized(10)()
    assert abs(growth(sized)) < ONE_CALL_A_PAIR / 2


@pytest.mark.parametrize(
    ("name", "meant"),
    [("stge1234", "stage1234"), ("stgae1234", "stage1234"), ("sTage1234", "stage1234")],
)
def test_of_thousands_of_names_the_one_that_was_meant_is_found(name: str, meant: str) -> None:
    known = [f"stage{number}" for number in range(1000, 4000)]
    assert errors.nearest(name, known) == meant
    assert errors.nearest(name, known, among=["other"]) is None


def test_a_very_long_name_is_compared_with_none() -> None:
    assert errors.nearest("a" * (errors.MAX_NAME + 1), ["a" * errors.MAX_NAME]) is None
