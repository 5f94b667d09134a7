"""The real OpenCode from npm against the simulator: it asks the stage's model through each of the three dialects, uses
its tools within its folder alone, goes on with a session, and is gone with all its processes when agac is killed."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.npm import Npm
from support.processes import killed, wait_until
from support.project import ProjectFolder
from support.soak import few, only_in_soak

import agac
from agac.providers import keeper
from agac.testing import simulator

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="OpenCode is run on POSIX systems")


@pytest.fixture(scope="session")
def opencode(npm: Npm) -> str:
    """The program's path; skips where npm cannot install it."""
    folder = npm(Path(__file__).with_name("package.json"))
    found = sorted((folder / "node_modules").glob("opencode-*/bin/opencode"), key=lambda path: -len(str(path)))
    if not found:
        pytest.skip("npm has no OpenCode for this machine")
    return str(found[0])  # the baseline build where there is one: it runs on every processor


def stage(opencode: str, model: str, prompt: str, **keys: Any) -> dict[str, Any]:
    program = {"command": opencode, "version": "1.18", "files": "given"}
    return {"name": "fix", "model": model, "prompt": prompt, "runtime": program, "instructions": "Be brief.", **keys}


PROVIDERS = ["simulator", "simulator-responses?reasoning=low", "simulator-anthropic"]


@pytest.mark.parametrize("provider", few(PROVIDERS, 2, first=1))
def test_a_session_uses_its_tools_in_its_folder_alone(project: ProjectFolder, opencode: str, provider: str) -> None:
    name, _, more = provider.partition("?")
    model = f"{name}/small?max_tokens=500{'&' + more if more else ''}"
    project.write("given/a.txt", "hello")
    prompt = "Read it.\n${one}\n\nThen:\n${two}\n\nand say what it holds."
    calls = {"one": 'tool:read {"filePath": "a.txt"}', "two": 'tool:read {"filePath": "/etc/hostname"}'}
    project.rows([{"id": "r", **calls}])
    report = project.run(project.workflow(stages=[stage(opencode, model, prompt)]))
    assert report.rows.done == 1, project.envelopes()
    (attempt,) = agac.inspect("last", "r", project=project.root).rows[0]["stages"][0]["attempts"]  # type: ignore[index]
    doc = json.loads(attempt["reply"])
    inside, outside = (one["part"]["state"] for one in doc["events"] if one["type"] == "tool_use")
    assert "hello" in inside["output"]
    assert outside["status"] == "error"
    assert (doc["exit"], doc["calls"]) == (0, 3)
    ((given, made, cost),) = project.query("SELECT input_tokens, output_tokens, cost FROM attempt")
    assert (given, made) == (doc["usage"]["input_tokens"], doc["usage"]["output_tokens"])
    assert given > 1_000
    assert cost > 0


@only_in_soak
def test_a_session_goes_on_and_nothing_else_is_asked(project: ProjectFolder, opencode: str) -> None:
    project.write("given/a.txt", "hello")
    form = {"output_schema": {"a": "string"}}
    with simulator(script=[{"turn": 1, "reply": "no JSON"}, {"turn": 2, "reply": {"a": "so"}}]) as model:
        project.run(project.workflow(stages=[stage(opencode, "simulator/small", "Say ${text}", **form)], rows=1))
    assert project.envelopes()[0]["result"] == {"a": "so"}
    first, second = model.requests
    assert "Be brief." in str(first["messages"][0])
    assert "JSON Schema:" in str(first["messages"][0])
    assert second["messages"][: len(first["messages"])] == first["messages"], "the same session, and its prefix"
    assert {tool["function"]["name"] for tool in first["tools"]} == {"read", "glob", "grep"}


@only_in_soak
def test_a_killed_run_leaves_no_process(project: ProjectFolder, opencode: str) -> None:
    project.write("given/a.txt", "hello")
    length = f"54321.{os.getpid()}"
    own = stage(opencode, "simulator/small", f'tool:bash {{"command": "sleep {length}", "description": "waits"}}')
    own["runtime"]["permission"] = {"bash": "allow"}
    project.workflow(stages=[own], rows=1)
    process = project.start("run", "-a", "reviews")
    wait_until(lambda: bool(_running(f"sleep\0{length}")), "the command of the session", process)
    (sleeps, *_) = _running(f"sleep\0{length}")
    words = Path(f"/proc/{sleeps}/environ").read_bytes().decode().split("\0")
    (base,) = [Path(one.partition("=")[2]).parent for one in words if one.startswith("AGAC_SESSION=")]
    assert len(keeper.marked(base)) >= 2, "the program itself, and its command"
    killed(process)
    wait_until(lambda: not keeper.marked(base) and not base.exists(), "the end of its processes and folders")
    assert not _running(f"sleep\0{length}")


def _running(words: str) -> list[int]:
    """The processes whose command line has these words."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            found += [int(place.name)] if words.encode() in (place / "cmdline").read_bytes() else []
        except OSError:
            continue
    return found
