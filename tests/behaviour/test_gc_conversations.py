"""What is said in a conversation without an answer outlives the run that began it, as long as another one may go on
with it."""

from typing import Any

import pytest
from support.project import ProjectFolder

import agac
from agac.testing import simulator

TOOLS = '''
from pathlib import Path

def send(to: str) -> str:
    """Sends a letter."""
    with Path(__file__).with_name("sent").open("a") as file:
        file.write(to + "\\n")
    return "sent"
'''
SENDS = {"tools/t.py:send": {"side_effects": True}}
HELPER = "---\nname: helper\ndescription: Helps.\nfunction_tools: ../tools/t.py:send\n---\nHelp.\n"
BOSS = "---\nname: boss\nagents: [helper]\n---\nAsk the helper.\n"
SEND = [{"name": "send", "arguments": {"to": "a@b"}}]
ASK = [{"name": "agent__helper", "arguments": {"message": "do it"}}]
THEN = {"name": "then", "prompt": "Shorter: ${ask}"}
FAULTS = {by: [{"kind": "server_error", "match": said}] for by, said in (("function", "sent"), ("agent", "it is sent"))}
"""What the model says after a letter went out does not arrive."""


def asking(project: ProjectFolder, by: str, *then: dict[str, Any], prompt: str = "${text}") -> str:
    """A workflow of one agent that sends a letter, or whose helper does, and of stages after it."""
    project.write("tools/t.py", TOOLS)
    project.write("agentcards/helper.md", HELPER)
    project.write("agentcards/boss.md", BOSS)
    project.write("agac.yml", "defaults: {model: simulator/small}\ntools: {send: {side_effects: true}}\n")
    own = {"agent": "boss"} if by == "agent" else {"tools": SENDS}
    stage = {"name": "ask", "prompt": prompt, "retries": {"attempts": 1}, **own}
    return project.workflow(stages=[stage, *then], rows=1)


def script(by: str) -> list[dict[str, Any]]:
    helper = [{"match": "Help.", "turn": 1, "calls": SEND}, {"match": "Help.", "reply": "it is sent"}]
    first = [*(helper if by == "agent" else []), {"match": "Shorter: ", "reply": "short"}]
    return [*first, {"turn": 1, "calls": ASK if by == "agent" else SEND}, {"reply": "so"}]


def turns(project: ProjectFolder) -> list[tuple[Any, ...]]:
    return project.query("SELECT agent, number, conversation, ended FROM agent_turn ORDER BY agent, number")


@pytest.mark.parametrize("by", ["function", "agent"])
def test_a_conversation_that_a_kept_run_may_go_on_with_stays_without_its_run(project: ProjectFolder, by: str) -> None:
    with simulator(script=script(by), faults=FAULTS[by]):
        for then in ([], [THEN]):  # two runs whose requests are the same
            asking(project, by, *then)
            assert project.run().exit_code == 3
    before = turns(project)
    assert before[0] == ("", 1, 1, None)
    assert [doomed.line.id for doomed in agac.gc(1, project=project.root).cleared.dropped] == [1]
    assert turns(project) == before
    project.assert_sound()
    with simulator(script=script(by)) as model:
        assert project.run().exit_code == 0
    assert len(model.requests) == 2
    assert (project.root / "tools/sent").read_text() == "a@b\n"
    agac.gc(1, project=project.root)
    assert project.query("SELECT count(*) FROM agent_turn WHERE row_key < 0") == [(0,)]
    assert project.query("SELECT count(*) FROM tool_call WHERE row_key < 0") == [(0,)]
    project.assert_sound()


def test_a_conversation_that_no_kept_run_needs_goes_with_its_run(project: ProjectFolder) -> None:
    with simulator(script=script("function"), faults=FAULTS["function"]):
        asking(project, "function")
        assert project.run().exit_code == 3
    with simulator(script=[{"reply": "so"}]):
        asking(project, "function", prompt="Other: ${text}")
        assert project.run().exit_code == 0
    agac.gc(1, project=project.root)
    assert turns(project) == [("", 1, 1, "done")]
    assert project.query("SELECT count(*) FROM tool_call") == [(0,)]
