"""Stages whose results take the place of those of others (`StageNode.amends`): what is seen downstream and written."""

import json
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Step, deciding
from support.project import ProjectFolder
from support.soak import campaign

import agac
from agac.api.project import open_project
from agac.core.errors import SpecError
from agac.core.keys import canonical, snapshot
from agac.plan.render import RowView
from agac.plan.restored_plan import restored_plan
from agac.plan.run_settings import run_settings
from agac.spec import graph, stage_order
from agac.spec.graph import StageNode
from agac.spec.templates import SKIPPED

SCHEMA = {"says": "string"}
CHAIN = [
    {"name": "first", "prompt": "first ${text}", "output_schema": SCHEMA},
    {"name": "second", "prompt": "second ${text}", "output_schema": SCHEMA, "when": 'first.says == "1?"'},
    {"name": "third", "prompt": "third ${first.says}", "output_schema": SCHEMA},
]


def amending(monkeypatch: pytest.MonkeyPatch, **amends: str) -> None:
    """Makes these stages of the workflows that are read from now on amend others."""
    made = stage_order._in_order

    def in_order(*given: Any) -> list[StageNode]:
        return [replace(node, amends=amends.get(node.name)) for node in made(*given)]

    monkeypatch.setattr(stage_order, "_in_order", in_order)


def answer(asked: dict[str, Any]) -> Step:
    """`2 b` to the prompt `second b` of a text; of the text `a` the first stage is not sure."""
    stage, *text = asked["messages"][-1]["content"].split(" ", 1)
    said = {"first": "1?" if text == ["a"] else "1", "second": "2", "third": "3"}.get(stage, stage)
    return Step(json.dumps({"says": said}))


def two_rows(project: ProjectFolder, **keys: Any) -> None:
    project.rows([{"id": "a", "text": "a"}, {"id": "b", "text": "b"}])
    project.workflow(stages=keys.pop("stages", CHAIN), **keys)


def results(project: ProjectFolder) -> dict[str, Any]:
    return {one["id"]: one["result"] for one in project.envelopes()}


def test_downstream_the_amended_result_is_seen_where_it_was_not_skipped(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    amending(monkeypatch, second="first")
    two_rows(project)
    with project.asking(deciding(answer)) as server:
        dry = agac.plan("reviews", project=project.root)
        assert [stage.run for stage in dry.stages] == [2, 2, 2]
        report = project.run()
    assert report.exit_code == 0
    prompts = sorted(asked["messages"][-1]["content"] for asked in server.asked)
    assert prompts == ["first a", "first b", "second a", "third 1", "third 2"]
    again = agac.plan("reviews", project=project.root)
    assert [(stage.run, stage.reuse, stage.skipped) for stage in again.stages] == [(0, 2, 0), (0, 1, 1), (0, 2, 0)]
    inspected = agac.inspect(row="a", project=project.root)
    assert "third 2" in json.dumps(inspected.as_json())


@pytest.mark.parametrize("ends", [None, ["first"], ["first", "other"]])
def test_an_amended_end_is_written_under_its_own_name(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch, ends: list[str] | None
) -> None:
    amending(monkeypatch, second="first")
    other = {"name": "other", "prompt": "other", "output_schema": SCHEMA, "needs": []}
    joined = ends is not None and "other" in ends
    output = {} if ends is None else {"stages": ends}
    two_rows(project, stages=[*([other] if joined else []), *CHAIN[:2]], output=output)
    with project.asking(deciding(answer)):
        assert project.run().exit_code == 0
    says = {"a": {"says": "2"}, "b": {"says": "1"}}
    found = results(project)
    assert found == ({row: {"other": {"says": "other"}, "first": one} for row, one in says.items()} if joined else says)
    agac.export("reviews", project=project.root)
    assert results(project) == found


def test_children_and_groups_see_the_amended_result(project: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    amending(monkeypatch, second="first")
    grouped = {"name": "all", "group_by": [], "prompt": "all ${rows_json}"}
    each = {"name": "each", "explode": "first.list", "prompt": "each ${item} ${first.says}", "needs": "second"}
    schema = {"says": "string", "list": ["string"]}
    stages = [{**one, "output_schema": schema} for one in CHAIN[:2]]

    def listing(asked: dict[str, Any]) -> Step:
        said = json.loads(answer(asked).text)
        return Step(json.dumps({**said, "list": [f"{said['says']}!"]}) if said["says"] in ("1", "1?", "2") else "ok")

    for last in (each, grouped):
        two_rows(project, stages=[*stages, last])
        with project.asking(deciding(listing)) as server:
            assert project.run().exit_code == 0
        prompts = {asked["messages"][-1]["content"] for asked in server.asked}
        if last is each:
            assert {"each 2! 2", "each 1! 1"} < prompts
        else:
            [members] = [prompt for prompt in prompts if prompt.startswith("all")]
            assert [row["first"]["says"] for row in json.loads(members.removeprefix("all "))] == ["2", "1"]
            assert "second" not in members


def node(name: str, *ancestors: str, **keys: Any) -> StageNode:
    return StageNode(name=name, index=len(ancestors), needs=ancestors[-1:], ancestors=ancestors, **keys)


def test_the_last_amending_ancestor_that_was_not_skipped_counts() -> None:
    by_name = {
        one.name: one
        for one in (node("a"), node("b", "a", amends="a"), node("c", "a", "b", amends="b"), node("d", "a", "b", "c"))
    }
    amended = graph.amended_by(by_name["d"].ancestors, by_name)
    assert amended == (("b", "a"), ("c", "b"), ("c", "a"))
    last = replace(by_name["d"], amended=amended)
    for held, seen in (((1, 2, 3), (3, 3, 3)), ((1, 2, SKIPPED), (2, 2, SKIPPED)), ((1, SKIPPED, 3), (3, 3, 3))):
        view = RowView({}, {})
        view.results.update(zip("abc", held, strict=True))
        assert tuple(view.known(last).values()) == seen
        assert view.known(by_name["c"]) == {"a": held[0], "b": held[1]}, "upstream all is as it was"
    view.unknown["c"] = "new"
    assert [view.unknown_of(last, name) for name in ("a", "b", "d")] == ["c", "c", None]


@pytest.mark.parametrize(
    ("amends", "problem"),
    [
        ({"third": "first", "second": "first"}, ""),
        ({"beside": "first", "second": "first"}, "stages 'second' and 'beside' both stand in for 'first'"),
        ({"first": "second"}, "stage 'first' works on the result of 'second', and other rows may come to it"),
    ],
)
def test_only_one_line_of_stages_amends_a_result(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch, amends: dict[str, str], problem: str
) -> None:
    amending(monkeypatch, **amends)
    two_rows(project, stages=[*CHAIN, {"name": "beside", "prompt": "x", "needs": "first"}], output={"stages": "third"})
    if not problem:
        project.plan()
        return
    with pytest.raises(SpecError, match=problem):
        project.plan()


def test_the_definition_keeps_it_where_it_is_set_and_gives_it_back(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_rows(project)
    assert all("amends" not in stage for stage in project.plan().body["stages"])
    amending(monkeypatch, second="first")
    plan = project.plan()
    assert [stage.get("amends") for stage in plan.body["stages"]] == [None, "first", None]
    body, settings = json.loads(canonical(plan.body)), json.loads(snapshot(run_settings(plan, project.root)))
    again = restored_plan(plan.workflow, body, settings, open_project(project.root).providers, project.root)
    assert [(one.amends, one.amended) for one in again.stages] == [(one.amends, one.amended) for one in plan.stages]
    assert again.stages[2].amended == (("second", "first"),)


class Doubt(NamedTuple):
    """A stage of a random workflow: the stages before it that it needs, and below which of 16 values it is in doubt."""

    needs: frozenset[int]
    below: int | None


def hashed(model: str, prompt: str) -> str:
    return sha256(f"{model} {prompt}".encode()).hexdigest()[:4]


def upstream(drawn: list[Doubt]) -> list[list[int]]:
    """The stages upstream of each."""
    found: list[list[int]] = []
    for place, one in enumerate(drawn):
        needs = {need % place for need in one.needs} if place else set()
        found.append(sorted(needs.union(*(found[need] for need in needs))))
    return found


def foretold(drawn: list[Doubt], text: str) -> tuple[list[str], list[tuple[str, str]]]:
    """What each stage comes to for a row, and what is asked for that: models and prompts."""
    values, asked = list[str](), list[tuple[str, str]]()
    for place, (one, above) in enumerate(zip(drawn, upstream(drawn), strict=True)):
        prompt = " ".join([f"s{place}", text, *(values[other] for other in above)])
        value = hashed("small", prompt)
        asked.append(("small", prompt))
        if one.below is not None and value < f"{one.below:x}":
            value = hashed("large", prompt)
            asked.append(("large", prompt))
        values.append(value)
    return values, asked


DOUBTS = st.builds(Doubt, st.frozensets(st.integers(0, 5), max_size=3), st.none() | st.integers(1, 15))


@campaign(test=8, soak=200)
@given(st.lists(DOUBTS, min_size=2, max_size=6), st.booleans())
def test_stages_see_what_a_plain_walk_comes_to(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[Doubt], chain: bool
) -> None:
    """In random graphs, or each stage after the one before it; again for nothing, and the same in outputs made anew."""
    drawn = [one._replace(needs=frozenset(range(place))) if chain else one for place, one in enumerate(drawn)]
    stages: list[dict[str, Any]] = []
    for place, (one, above) in enumerate(zip(drawn, upstream(drawn), strict=True)):
        prompt = " ".join([f"s{place}", "${text}", *(f"${{s{other}.v}}" for other in above)])
        needs = sorted({need % place for need in one.needs}) if place else []
        doubt = {"when": f's{place}.v < "{one.below:x}"', "model": "local/large"} if one.below else None
        stages.append({
            "name": f"s{place}", "prompt": prompt, "needs": [f"s{need}" for need in needs],
            "output_schema": {"v": "string"}, **({"escalate": doubt} if doubt else {}),
        })  # fmt: skip
    project = ProjectFolder(tmp_path_factory.mktemp("drawn") / "project")
    project.rows({"id": text, "text": text} for text in "abc")
    project.workflow(stages=stages, output={"stages": [one["name"] for one in stages]})
    with project.asking(
        deciding(lambda asked: Step(json.dumps({"v": hashed(asked["model"], asked["messages"][-1]["content"])})))
    ) as server:
        assert project.run().exit_code == 0
        told = {text: foretold(drawn, text) for text in "abc"}
        asked = Counter((one["model"], one["messages"][-1]["content"]) for one in server.asked)
        assert asked == Counter(one for _, all_asked in told.values() for one in all_asked)
        assert all(one.run == 0 for one in agac.plan("reviews", project=project.root).stages)
    found = {
        text: {f"s{place}": {"v": value} for place, value in enumerate(values)} for text, (values, _) in told.items()
    }
    assert results(project) == found
    agac.export("reviews", project=project.root)
    assert results(project) == found
    project.assert_sound()
