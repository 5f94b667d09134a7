"""Agents at a Dynamo: each turn says where it stands, a wrong version costs nothing, and no result hangs on hints."""

import json
from typing import Any

import pytest
from support.project import ProjectFolder

from agac.testing import ScriptedSimulator, simulator

TOOL = '''
def look(q: str) -> str:
    """Looks something up."""
    return "found"
'''
CALL = {"name": "look", "arguments": {"q": "x"}}
SAID = [{"turn": 1, "calls": [CALL]}, {"turn": 2, "calls": [{**CALL, "arguments": {"q": "y"}}]}, {"reply": "so it is"}]


@pytest.fixture
def agents(project: ProjectFolder) -> ProjectFolder:
    project.write("tools/mine.py", TOOL)
    return project


def ask(project: ProjectFolder, server: ScriptedSimulator, query: str, rows: int = 3, **keys: Any) -> Any:
    """Runs a stage at this server, one row after the other."""
    backend = f"{server.base_url.replace('http', 'dynamo', 1)}{query}"
    stage = {"name": "a", "prompt": "${text}", "backend": backend, "model": "small"}
    keys = keys or {"tools": {"tools/mine.py:look": {}}}
    return project.run(
        project.workflow(rows=rows, stages=[stage | keys]), concurrency=1, wait=keys.get("run_mode") == "batch"
    )


def hints(server: ScriptedSimulator) -> list[Any]:
    return [one.get("nvext", {}).get("agent_hints") for one in server.requests]


def test_turns_say_where_they_stand_and_no_result_hangs_on_it(agents: ProjectFolder) -> None:
    with simulator(script=SAID, dynamo="1.3", serving="prefill=1000000,step=0.0001,overhead=0") as server:
        report = ask(agents, server, "?version=1.3.0")
        assert (report.summary["rows"]["done"], report.invocation["calls"]) == (3, 9)
        by_turn = [[one for one in hints(server) if one["priority"] == n] for n in (1, 2, 3)]
        assert [len(one) for one in by_turn] == [3, 3, 3]
        assert [one[0] for one in by_turn] == [{"priority": n, "speculative_prefill": True} for n in (1, 2, 3)]
        assert all(one[-1]["osl"] > 0 for one in by_turn)
        assert ["speculative_prefill" in one[-1] for one in by_turn] == [True, True, False]  # the third never calls
        (counted,) = report.summary["serving"]["engines"]
        assert counted["prompt_tokens"] > 0
        again = ask(agents, server, "")
        assert again.invocation["calls"] == 0, "the fingerprints are the same without hints"
    agents.assert_sound()


def test_a_wrong_version_is_told_once_and_fails_no_row(agents: ProjectFolder, caplog: pytest.LogCaptureFixture) -> None:
    with simulator(script=SAID, dynamo="1.0") as server:
        report = ask(agents, server, "?version=1.2")
    assert (report.summary["rows"]["done"], report.invocation["calls"]) == (3, 9)
    assert ["priority" in json.dumps(one) for one in hints(server)] == [True] + [False] * 9
    assert [one.message for one in caplog.records if one.name == "agac.hints"] == [
        "dynamo refuses hints and gets none from now on; is `version` of its backend right?"
    ]


def test_batches_hold_no_hints(project: ProjectFolder) -> None:
    with simulator() as server:  # which refuses what it does not know
        own = {"batch": "openai", "base_url": server.base_url}
        project.write("agac.yml", json.dumps({"providers": {"dynamo": own}}))
        report = ask(project, server, "?version=1.2", run_mode="batch")
    assert (report.summary["rows"]["done"], server.requests) == (3, [])


def test_a_batch_goes_to_no_other_address_than_its_stage_names(project: ProjectFolder) -> None:
    project.write("agac.yml", json.dumps({"providers": {"dynamo": {"batch": "openai"}}}))
    stage = {"name": "a", "prompt": "${text}", "backend": "dynamo://gpu:81", "model": "m", "run_mode": "batch"}
    project.workflow(rows=1, stages=[stage])
    said = project.agac("validate", code=2)
    assert "write `providers: {dynamo: {base_url: http://gpu:81/v1}}` into agac.yml" in said.out


def test_a_version_that_is_none_is_found_before_anything_is_asked(agents: ProjectFolder) -> None:
    agents.workflow(
        rows=1, stages=[{"name": "a", "prompt": "${text}", "backend": "dynamo://gpu?version=12", "model": "m"}]
    )
    said = agents.agac("validate", code=2)
    assert "'version=12': agac knows the hints of Dynamo 1.x: write ?version=1.2, or nothing" in said.out
