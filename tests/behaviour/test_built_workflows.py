"""Workflows made in Python: the same as their YAML, with and without a project around them."""

import inspect
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, field_validator
from support.project import SENTIMENT, ProjectFolder
from support.server import Server

import agac

KEYS: dict[str, Any] = {
    "input": {"path": "data/rows.csv", "id_field": "id"},
    "defaults": {"timeout": 30},
    "stages": [{"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT}],
}


class Opinion(BaseModel):
    sentiment: str
    reason: str

    @field_validator("reason")
    @classmethod
    def _said(cls, reason: str) -> str:
        if "Apples" in reason:
            raise ValueError("not of apples")
        return reason


def test_it_is_the_same_run_as_its_yaml_by_name_or_path(project: ProjectFolder, server: Server) -> None:
    project.numbered(3)
    project.write("workflows/reviews.yml", yaml.safe_dump(KEYS, sort_keys=False))
    built, path = agac.Workflow("reviews", **KEYS), project.root / "workflows/reviews.yml"
    assert agac.plan(built, project=project.root).calls == 3
    reports = [agac.run(which, project=project.root) for which in (built, "reviews", path)]
    assert [(one.exit_code, one.summary["run"], one.invocation["calls"]) for one in reports] == [
        (0, 1, 3), (0, 1, 0), (0, 1, 0),
    ]  # fmt: skip
    drawn = {agac.graph(which, run=run, project=project.root).mermaid() for which in (built, path) for run in (None, 1)}
    assert drawn == {agac.graph("reviews", project=project.root).mermaid()}
    assert agac.status(built, project=project.root).runs == agac.status(path, project=project.root).runs
    assert agac.validate(built, project=project.root).as_json() == {
        "ok": True,
        "workflows": ["reviews"],
        "problems": [],
    }


def test_what_is_wrong_with_it_is_said_as_of_a_file(project: ProjectFolder) -> None:
    with pytest.raises(agac.SpecError) as refused:
        agac.Workflow("a/b", stages=[{"name": "one", "promt": "x"}], inputt="x")
    assert [str(problem) for problem in refused.value.problems] == [
        "Workflow('a/b'): name: has more in it than letters, digits, _ and -",
        "Workflow('a/b'): stages[0].promt: unknown key; did you mean 'prompt'?",
        "Workflow('a/b'): inputt: unknown key; did you mean 'input'?",
    ]
    broken = agac.Workflow("reviews", input="no.csv", stages=[{"name": "one", "prompt": "x ${a}", "needs": "two"}])
    with pytest.raises(agac.SpecError) as refused:
        agac.run(broken, project=project.root)
    assert {str(problem.where) for problem in refused.value.problems} == {"Workflow('reviews')"}
    assert {problem.path for problem in refused.value.problems} == {"input.path", "stages[0].needs"}


def test_a_workflow_of_a_file_needs_the_file_of_its_project(project: ProjectFolder) -> None:
    """Which has budgets and providers; and a store of another folder below it is not taken for the project's."""
    project.write("workflows/reviews.yml", yaml.safe_dump(KEYS, sort_keys=False))
    project.numbered(1)
    below = project.root / "data/.agac"
    assert project.run().exit_code == 0
    shutil.copytree(project.root / ".agac", below)
    assert project.agac("plan", "-a", "reviews", cwd=below.parent).code == 0
    (project.root / "agac.yml").unlink()
    for words in ("run -a reviews", "plan -a reviews", "validate reviews", "retry last --from classify"):
        ran = project.agac(*words.split(), code=2)
        assert f"{project.root} has a store, but no agac.yml any more" in ran.out + ran.err, words


def test_it_needs_no_project_and_commands_find_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stage = KEYS["stages"][0] | {"model": "simulator/small"}
    workflow = agac.Workflow("reviews", input={"id_field": "id"}, stages=[stage])
    options = agac.RunOptions(input=[{"id": "a", "text": "I love it"}, {"id": "b"}])
    report = agac.run(workflow, options)
    assert report.files[0] == tmp_path / "output/reviews/results.jsonl"
    assert (report.exit_code, report.summary["rows"]["done"]) == (3, 1)
    [run] = agac.status(project=tmp_path).runs
    assert (run["workflow"], run["go_on"]) == ("reviews", "agac.run(agac.Workflow('reviews', …))")
    folder = ProjectFolder(tmp_path)
    (tmp_path / "agac.yml").unlink()
    for words in (["status", "-a", "reviews"], ["inspect", "1", "b"], ["export", "-a", "reviews"], ["validate"]):
        assert folder.agac(*words).code == (2 if words == ["validate"] else 0), words
    assert "Run it from there, which asks failed rows again: agac.run(" in folder.agac("retry", "last", code=2).err
    assert agac.run(workflow, options, project=tmp_path).invocation["calls"] == 0
    with pytest.raises(agac.UsageError, match="no workflow 'reviews'"):
        agac.run("reviews")


def test_its_project_is_that_of_the_nearest_agac_yml_and_no_store_further_up(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of what somebody once ran in a folder above, as the home folder, is not taken for a project's."""
    above, below = project.root, project.root / "work/below"
    below.mkdir(parents=True)
    given: dict[str, Any] = {"model": "simulator/small"}
    workflow = agac.Workflow("reviews", stages=[{"name": "classify", "prompt": "${input}", **given}])

    def once() -> None:
        agac.run(task="Of {input}", inputs=["a tent"], **given)
        list(agac.stream(task="So {input}", inputs=["a tent"], **given))
        agac.map_reduce(map="{item}", reduce="All", inputs=["a tent"], **given)
        agac.run(workflow, input=[{"input": "a tent"}])
        agac.process([{"input": "a tent"}], "out.jsonl", agac.ProcessOptions(prompt="Of ${input}", **given))

    monkeypatch.chdir(above)
    once()
    (above / "agac.yml").unlink()
    runs = len(agac.runs().runs)
    assert runs == 5
    monkeypatch.chdir(below)
    assert agac.status().project == above  # what was run there can be looked at from below
    assert agac.plan(workflow, input=[{"input": "a tent"}]).calls == 1
    with pytest.raises(agac.UsageError, match="no workflow 'reviews'"):
        agac.status(workflow)
    once()
    assert (agac.status().project, len(agac.runs().runs), len(agac.runs(project=above).runs)) == (below, runs, runs)
    (above / "agac.yml").write_text("")
    assert agac.status().project == above
    assert agac.run(task="Of {input}", inputs=["a tent"], **given).report.invocation["calls"] == 0


def test_a_pydantic_model_is_its_schema_and_its_checks(project: ProjectFolder, server: Server) -> None:
    project.rows([{"id": "1", "text": "pears"}, {"id": "2", "text": "apples"}])
    project.write("tools/models.py", "from pydantic import BaseModel\n" + inspect.getsource(Opinion).split("\n\n")[0])
    for schema, calls in ((Opinion, 3), ("python:tools.models.Opinion", 0)):
        stage = {"name": "a", "prompt": "${text}", "output_schema": schema, "model": "local/echo"}
        report = agac.run(agac.Workflow("reviews", **KEYS | {"stages": [stage]}), project=project.root)
        assert (report.summary["run"], report.invocation["calls"]) == (1, calls)
    assert report.summary["stages"][0]["repaired"] == 1
    for wrong in (dict, int):
        with pytest.raises(agac.SpecError) as refused:
            agac.run(agac.Workflow("w", stages=[{"name": "a", "output_schema": wrong}]), project=project.root)
        assert "is not a pydantic model" in str(refused.value.problems[0])
