"""Stages whose results take the place of those of others (`StageNode.amends`): what is seen downstream and written."""

import json
from dataclasses import replace
from typing import Any

import pytest
from scripted_server import Step, deciding
from support.project import ProjectFolder

import agac
from agac.api.project import open_project
from agac.core.errors import SpecError
from agac.core.keys import canonical, snapshot
from agac.plan.plan import restored_plan, run_settings
from agac.plan.render import RowView
from agac.spec import graph
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
    made = graph._in_order

    def in_order(*given: Any) -> list[StageNode]:
        return [replace(node, amends=amends.get(node.name)) for node in made(*given)]

    monkeypatch.setattr(graph, "_in_order", in_order)


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
    for given, seen in (((1, 2, 3), (3, 3, 3)), ((1, 2, SKIPPED), (2, 2, SKIPPED)), ((1, SKIPPED, 3), (3, 3, 3))):
        view = RowView({}, {})
        view.results.update(zip("abc", given, strict=True))
        assert tuple(view.known(last).values()) == seen
        assert view.known(by_name["c"]) == {"a": given[0], "b": given[1]}, "upstream all is as it was"
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
