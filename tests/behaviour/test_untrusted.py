"""Files of a pull request from elsewhere are looked at: none of their Python is imported, and they see no variable."""

import socket

import pytest
from support.project import ProjectFolder

import agac
from agac.api.checked_workflow import check_workflow
from agac.api.project import open_project
from agac.plan.plan import Plan, Selection, make_plan
from agac.spec.project import Overrides

EVIL = "import pathlib\npathlib.Path(__file__).with_name('was_here').touch()\n"


def untrusted_plan(project: ProjectFolder) -> Plan:
    opened = open_project(project.root, untrusted=True)
    checked, problems = check_workflow(opened, "reviews", Overrides())
    assert checked is not None, problems
    return make_plan(checked.workflow, checked.models, opened.root, Selection(), None, untrusted=True)


@pytest.fixture
def hostile(project: ProjectFolder) -> ProjectFolder:
    project.write(
        "tools/evil.py", f"{EVIL}def look(word: str) -> str:\n    return word\ndef change(row):\n    return row\n"
    )
    project.write("tools/shapes.py", f"{EVIL}from pydantic import BaseModel\nclass Shape(BaseModel):\n    text: str\n")
    card = "---\ninstruction: 'Key: ${MY_SECRET}'\nfunction_tools: [tools/evil.py:look]\n---\n"
    project.write("agentcards/helper.md", card)
    project.workflow(
        rows=2,
        stages=[
            {"name": "changed", "python": "tools/evil.py:change"},
            {"name": "asked", "agent": "helper", "prompt": "${text}"},
            {"name": "shaped", "prompt": "${text}", "output_schema": "python:tools.shapes.Shape"},
        ],
    )
    return project


def test_no_python_is_imported_and_sources_stand_for_it(
    hostile: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "value-of-the-secret")
    report = agac.validate(project=hostile.root, untrusted=True)
    assert report.ok, report.problems
    plan = untrusted_plan(hostile)
    assert not (hostile.root / "tools/was_here").exists()
    changed, asked, shaped = plan.body["stages"]
    assert asked["agent"]["tools"][0]["name"] == "look"
    assert "python:tools.shapes.Shape, source " in shaped["schema"]["body"]["$comment"]
    hostile.write("tools/shapes.py", (hostile.root / "tools/shapes.py").read_text() + "\n# another\n")
    assert untrusted_plan(hostile).body["stages"][2] != shaped
    assert untrusted_plan(hostile).body["stages"][:2] == [changed, asked]


def test_variables_stay_as_they_are_written(hostile: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "value-of-the-secret")
    hostile.write(".env", "OTHER=another-secret\n")
    assert "value-of-the-secret" in repr(hostile.plan().body)
    body = repr(untrusted_plan(hostile).body)
    assert "secret" not in body.replace("MY_SECRET", "")
    assert "Key: ${MY_SECRET}" in body.replace("$${", "${")
    hostile.write("agac.yml", "defaults: {model: '${MODEL:simulator/large}'}\n")
    assert untrusted_plan(hostile).body["stages"][2]["model"] == "simulator/large"


def test_no_server_is_asked_for_rows(project: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "secret")
    project.workflow(path="postgres://me@203.0.113.1/shop?table=rows")
    report = agac.validate(project=project.root, untrusted=True)
    assert "a server of rows is not asked" in str(report.problems[0])
    project.workflow(stages=[{"name": "far", "prompt": "https://example.org/prompt.md"}], rows=1)
    report = agac.validate(project=project.root, untrusted=True)
    assert "is not fetched here" in str(report.problems[0])


def test_no_server_is_asked_for_its_models(project: ProjectFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        project.write("agac.yml", f"defaults: {{backend: 'vllm://127.0.0.1:{server.getsockname()[1]}'}}\n")
        project.workflow(rows=1, stages=[{"name": "asked", "prompt": "${text}"}], defaults={})
        report = agac.validate(project=project.root, untrusted=True)
        assert "no model is named, and" in str(report.problems[0])
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
