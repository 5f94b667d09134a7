"""Runs with MCP servers: locked before, started at the first call, held to the lock, and what rows tell of them."""

import json
import shlex
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.processes import processes
from support.project import ProjectFolder

import agac
from agac import testing

pytestmark = processes

SCRIPT = Path(__file__).parents[1] / "support" / "mcp_server.py"


def target(*words: str) -> str:
    return shlex.join([sys.executable, "-ISE", str(SCRIPT), *words])


def card(project: ProjectFolder, **servers: str) -> None:
    connected = json.dumps({name: {"target": one} for name, one in servers.items()})
    project.write("agentcards/clerk.md", f"---\nmcp_connect: {connected}\n---\nBe brief.\n")


def asking(*tools: str) -> list[dict[str, str]]:
    """Rows whose models call a tool each."""
    return [{"id": tool, "call": f'tool:{tool} {{"words": "hallo"}}'} for tool in tools]


@pytest.fixture
def clerk(project: ProjectFolder) -> ProjectFolder:
    """A card with a server, locked, and a workflow whose row says what is called."""
    project.configure()
    card(project, raw=target("--tools", "echo,change,die"))
    agac.lock_card("clerk", project=project.root)
    project.workflow(stages=[{"name": "ask", "agent": "clerk", "prompt": "${call}"}], rows=asking("echo"))
    return project


def test_a_lock_is_written_and_compared(project: ProjectFolder) -> None:
    project.configure()
    card(project, raw=target("--tools", "echo"), other=target("--tools", "echo,count", "--instructions", "Ask."))
    ran = project.agac("card", "lock", "clerk", code=0)
    assert "raw: 1 tool: echo\nother: 2 tools: count, echo\n" in ran.out
    assert "agentcards/clerk.lock.json is written" in ran.out
    written = (project.root / "agentcards/clerk.lock.json").read_text()
    assert json.loads(written)["servers"]["other"]["instructions"] == "Ask."
    report = agac.lock_card("clerk", check=True, project=project.root)
    assert (report.changes, report.written, report.servers["raw"]) == ({}, False, ["echo"])
    card(project, raw=target("--tools", "echo,delete_all"))
    ran = project.agac("card", "lock", "clerk", "--check", code=1)
    assert "other is locked, and used no longer\n" in ran.out
    assert "  added: delete_all\n" in ran.out
    assert (project.root / "agentcards/clerk.lock.json").read_text() == written
    card(project)
    ran = project.agac("card", "lock", "clerk", code=2)
    assert "agentcards/clerk.md uses no MCP server" in ran.err


def test_a_server_of_agac_yml_has_a_lock_of_its_own(project: ProjectFolder) -> None:
    project.configure()
    with (project.root / "agac.yml").open("a") as file:
        file.write(f"mcp: {{raw: {{target: {json.dumps(target('--tools', 'echo'))}}}}}\n")
    project.workflow(stages=[{"name": "ask", "tools": ["raw"], "prompt": "${text}"}], rows=1)
    with pytest.raises(agac.SpecError, match=r"agentcards/raw\.lock\.json is not there.*`agac card lock raw`"):
        project.run()
    agac.lock_card("raw", project=project.root)
    assert agac.plan("reviews", project=project.root).calls > 0
    with pytest.raises(agac.UsageError, match="and no MCP server of agac"):
        agac.lock_card("rav", project=project.root)


def test_a_card_from_elsewhere_is_locked_in_the_project_where_it_is_trusted(project: ProjectFolder) -> None:
    connected = json.dumps({"raw": {"target": target("--tools", "echo")}})
    address = project.write("far/The clerk.md", f"---\nname: far\nmcp_connect: {connected}\n---\nX.\n").as_uri()
    project.workflow(stages=[{"name": "ask", "agent": address, "prompt": "${call}"}], rows=asking("echo"))
    with pytest.raises(agac.SpecError, match=r"a remote card brings no functions.*or give --trust-card"):
        agac.lock_card(address, project=project.root)
    with pytest.raises(agac.SpecError, match=rf"far.lock.json is not there.*`agac card lock {address}`"):
        project.run(trust_card=True)
    ran = project.agac("card", "lock", address, "--trust-card", code=0)
    assert "agentcards/far.lock.json is written" in ran.out
    assert project.run(trust_card=True).exit_code == 0
    with pytest.raises(agac.UsageError, match=r"none\.md is no file; check the path"):
        agac.lock_card(f"{(project.root / 'none.md').as_uri()}", project=project.root)


def test_a_plan_and_stand_ins_need_no_lock_and_reach_no_server(project: ProjectFolder) -> None:
    project.configure()
    connected = {"docs": {"target": "no-such-command --of-a-server"}}
    project.write("agentcards/c.md", f"---\nmcp_connect: {json.dumps(connected)}\n---\nFind.\n")
    stage = {"name": "ask", "agent": "c", "prompt": "${text}", "max_turns": 3}
    project.workflow(stages=[stage], rows=2)
    said = "c.lock.json is not there: what its MCP servers offer is not known"
    planned = agac.plan("reviews", project=project.root)
    assert planned.calls >= 2
    assert [said in str(one) for one in planned.warnings] == [True]
    assert said in (ran := project.agac("run", "-a", "reviews", "--dry-run", code=0)).out + ran.err
    words = ["data/rows.csv", "out.jsonl", "--prompt", "${text}", "--agent", "c", "--dry-run"]
    assert said in (ran := project.agac("process", *words, code=0)).out + ran.err
    with pytest.raises(agac.SpecError, match=r"c\.lock\.json is not there"):
        project.run()
    assert not agac.validate(project=project.root).ok
    script = [{"turn": 1, "calls": [{"name": "find", "arguments": {"what": "a tent"}}]}, {"reply": "Found."}]
    stubbed = agac.RunOptions(tools_mode="stub", tool_stubs={"find": "two tents"})
    with testing.simulator(script=script) as sim:
        assert agac.run("reviews", stubbed, project=project.root).rows.done == 2
        assert "two tents" in str(sim.requests[-1])
    assert {one["result"] for one in project.envelopes()} == {"Found."}


def test_a_variable_that_a_server_lacks_is_said_before_a_run(project: ProjectFolder) -> None:
    url, hub = "https://docs.example/mcp", "https://huggingface.co/mcp?login"
    connected = {"docs": {"target": url, "headers": {"X-Key": "${DOCS_KEY}"}}, "hub": {"target": hub}}
    project.write("agentcards/c.md", f"---\nmcp_connect: {json.dumps(connected)}\n---\nFind.\n")
    tools = {"find": {"description": "F", "input_schema": {"type": "object", "properties": {}}}}
    lock = {name: {"target": one["target"], "tools": tools} for name, one in connected.items()}
    project.write("agentcards/c.lock.json", json.dumps({"servers": lock}))
    project.workflow(stages=[{"name": "ask", "agent": "c", "prompt": "${text}"}], rows=1)
    said = [
        "MCP server 'docs' needs the environment variable DOCS_KEY. Set it, or add it to .env.",
        "MCP server 'hub' asks for a login at huggingface.co, and HF_TOKEN is not set. Set HF_TOKEN, or add it to",
    ]
    report = agac.validate(project=project.root)
    assert (report.ok, [one.message.partition(" .env: ")[0] for one in report.problems]) == (True, said)
    assert {one.file for one in (problem.where for problem in report.problems)} == {"agentcards/c.md"}
    assert agac.plan("reviews", project=project.root).warnings == report.problems
    stubbed = agac.RunOptions(tools_mode="stub")
    assert agac.plan("reviews", stubbed, project=project.root).warnings == []
    with pytest.raises(agac.UsageError, match=r"needs the environment variable DOCS_KEY|HF_TOKEN is not set"):
        project.run()
    project.write(".env", "DOCS_KEY=s3cr3t-s3cr3t\nHF_TOKEN=hf_12345678\n")
    report = agac.validate(project=project.root)
    assert report.problems == []


def test_rows_call_a_server(clerk: ProjectFolder) -> None:
    clerk.run()
    assert clerk.envelopes()[0]["error"] is None
    assert clerk.query("SELECT name, state, result FROM tool_call") == [("echo", "done", "hallo")]


ODD = "raw:odd[all]: its name as odd_all_, the property 'ids[]' as ids__, "
FILLED = "properties.ids[] with `items` of any kind, properties.filter with empty `properties`"


def test_what_providers_refuse_of_a_tool_is_told_otherwise_named_and_mapped_back(project: ProjectFolder) -> None:
    """Names with brackets, an array without items and an object without properties."""
    project.configure()
    card(project, raw=target("--tools", "odd[all]"))
    ran = project.agac("card", "lock", "clerk", code=0)
    assert f"models are told of {ODD}" in ran.out
    call = 'tool:odd_all_ {"ids__": [1, 2], "filter": {"ids": 3}}'
    project.workflow(stages=[{"name": "ask", "agent": "clerk", "prompt": "${call}"}], rows=[{"id": "a", "call": call}])
    [problem] = agac.validate(project=project.root).problems
    assert (problem.severity, problem.where.file) == ("warning", "agentcards/clerk.md")
    assert ODD in problem.message
    assert FILLED in problem.message
    project.run()
    assert project.envelopes()[0]["error"] is None
    [(name, state, result)] = project.query("SELECT name, state, result FROM tool_call")
    assert (name, state, json.loads(result)) == ("odd_all_", "done", {"ids[]": [1, 2], "filter": {"ids": 3}})


def test_a_server_that_changes_its_tools_ends_the_run(clerk: ProjectFolder) -> None:
    calls = "\n\n".join(row["call"] for row in asking("change", "echo"))  # in two turns
    clerk.rows([{"id": "both", "call": calls}])
    with pytest.raises(agac.UsageError, match=r"is not what agentcards/clerk\.lock\.json says of it:\n  added: delete"):
        clerk.run()
    card(clerk, raw=target("--tools", "echo,change"))
    with pytest.raises(agac.SpecError, match=r"clerk\.lock\.json has server 'raw' at .*agac card lock clerk"):
        clerk.run()


def test_a_call_that_was_never_made_is_made_by_the_next_run(clerk: ProjectFolder) -> None:
    tools = clerk.write("tools.txt", "echo")
    card(clerk, raw=target("--tools", f"@{tools}"))
    agac.lock_card("clerk", project=clerk.root)
    tools.write_text("echo,more")
    with pytest.raises(agac.UsageError, match="added: more"):
        clerk.run()
    tools.write_text("echo")
    clerk.run()
    assert clerk.envelopes()[0]["error"] is None
    assert len(clerk.query("SELECT 1 FROM agent_turn")) == 2  # the first turn of the first run served


@pytest.mark.parametrize("code", [-32098, -32099, -32000, -32603])
def test_a_server_cannot_say_that_it_did_not_get_a_call(code: int, clerk: ProjectFolder) -> None:
    """Its errors have any code, those included by which agac tells that a request was not sent."""
    card(clerk, raw=target("--tools", "note"))
    agac.lock_card("clerk", project=clerk.root)
    file = clerk.root / "effects"
    given = json.dumps({"file": str(file), "words": "made", "code": code})
    clerk.rows([{"id": "note", "call": f"tool:note {given}"}])
    for _ in range(2):
        clerk.run()
        assert file.read_text().splitlines() == ["made"]


def test_a_call_whose_end_is_not_known_asks(clerk: ProjectFolder) -> None:
    clerk.rows(asking("die"))
    died = "ended in the middle of a call of die: its process ended with exit status 3: its last words"
    for calls, why in (1, died), (0, "what came of it is not known"):
        assert clerk.run().invocation["calls"] == calls
        error = clerk.envelopes()[0]["error"]
        assert error["type"] == "ToolOutcomeUnknown"
        assert f"{why}, so it is not called again" in error["message"]
    report = agac.retry("last", agac.Retry(calls="skip"), project=clerk.root)
    assert (report.exit_code, report.invocation["calls"]) == (0, 1)


def test_a_conversation_whose_session_is_lost_begins_anew_where_it_changed_nothing(project: ProjectFolder) -> None:
    project.configure()
    raw = json.dumps({"target": target("--tools", "echo,die"), "state": True})
    with (project.root / "agac.yml").open("a") as file:
        file.write(f"mcp: {{raw: {raw}}}\n")
    agac.lock_card("raw", project=project.root)
    text = 'tool:echo {"words": "hallo"}\n\ntool:die {}\n\nThen answer.'
    ends = "SELECT number, conversation, ended FROM agent_turn WHERE event_id = ? ORDER BY number"
    for changes, error, turns in ((False, "ToolServerError", [(1, "lost"), (3, "lost"), (5, "lost")]),
                                  (True, "ToolOutcomeUnknown", [(7, None)])):  # fmt: skip
        stage = {"name": "ask", "tools": {"raw": {"side_effects": changes}}, "prompt": "${text}"}
        project.workflow(stages=[stage], rows=[{"id": "r-1", "text": text}])
        report = project.run(fresh=True)
        assert project.envelopes()[0]["error"]["type"] == error
        assert report.invocation["calls"] == 2 * len(turns)
        found = [one for first, end in turns for one in ((first, first, None), (first + 1, first, end))]
        assert project.query(ends, project.query("SELECT max(id) FROM event")[0][0]) == found
    assert "--skip-calls goes on with a new session" in project.envelopes()[0]["error"]["message"]
    assert project.run().invocation["calls"] == 0
    report = agac.retry("last", agac.Retry(calls="repeat"), project=project.root)  # once
    assert (project.envelopes()[0]["error"]["type"], report.invocation["calls"]) == ("ToolOutcomeUnknown", 2)
    report = agac.retry("last", agac.Retry(calls="skip"), project=project.root)
    assert (report.exit_code, report.invocation["calls"]) == (0, 1)
    assert project.query("SELECT name, state FROM tool_call WHERE turn > 8") == [("echo", "done"), ("die", "unknown")]
    project.assert_sound()


@pytest.mark.parametrize("state", [False, True])
def test_after_a_kill_a_server_with_a_state_begins_anew(project: ProjectFolder, state: bool) -> None:
    project.configure()
    keys = {"mcp": {"raw": {"target": target("--tools", "echo"), "state": state}}}
    keys |= {"defaults": {"model": "simulator/small"}, "tools": {"raw": {"side_effects": False}}}
    project.write("agac.yml", json.dumps(keys))
    agac.lock_card("raw", project=project.root)
    calls = "\n\n".join(f'tool:echo {{"words": "{turn}"}}' for turn in range(7))
    rows = [{"id": "r", "call": calls}]
    project.workflow(stages=[{"name": "ask", "tools": ["raw"], "prompt": "${call}"}], rows=rows)
    for commits in range(1, 20):
        assert project.agac("run", "-a", "reviews", kill=f"commit:{commits}").code < 0
        with suppress(sqlite3.OperationalError):  # there are no tables yet
            if project.query("SELECT 1 FROM tool_call"):
                break
    asked = len(project.query("SELECT 1 FROM agent_turn"))
    project.run()
    assert project.envelopes()[0]["error"] is None
    again = state and asked < 8  # else it had ended: that needs no session
    assert len(project.query("SELECT 1 FROM agent_turn")) == (asked + 8 if again else 8)


def test_a_server_with_a_state_is_not_asked_between_batches(clerk: ProjectFolder) -> None:
    lock = json.loads((clerk.root / "agentcards/clerk.lock.json").read_text())
    clerk.write("agentcards/raw.lock.json", json.dumps(lock))
    mcp = {"raw": {"target": target("--tools", "echo,change,die"), "state": True}}
    clerk.write("agac.yml", json.dumps({"mcp": mcp, "defaults": {"model": "simulator/small", "run_mode": "batch"}}))
    clerk.workflow(stages=[{"name": "ask", "tools": ["raw"], "prompt": "${call}"}], rows=asking("echo"))
    [problem] = agac.validate("reviews", project=clerk.root).problems
    assert "batches end a session with each turn, and server 'raw' keeps a state in it" in problem.message
