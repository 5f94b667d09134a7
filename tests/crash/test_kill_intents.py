"""kill -9 around calls of tools that must not be repeated: only a call that its tool may have got is in doubt, and no
call that waits for a server, a slot, or the answer of an agent."""

from __future__ import annotations

import json
import random
import shlex
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.processes import killed, wait_until
from support.project import ProjectFolder
from support.server import simulator
from support.soak import only_in_soak

import agac

SCRIPT = Path(__file__).parents[1] / "support" / "mcp_server.py"
DOUBTS = "SELECT count(*) FROM tool_call WHERE state = 'intent'"
ROWS = 6


class Clerk:
    """A project whose rows each have a note taken by a server, which starts when it is let."""

    def __init__(self, folder: Path, rows: int = ROWS, *, hang: bool = False) -> None:
        self.project, self.notes = ProjectFolder(folder / "project"), folder / "notes"
        self.gate, self.reached = folder / "gate", folder / "gate.reached"
        words = [sys.executable, "-ISE", str(SCRIPT), "--tools", "note", "--starting", str(self.gate)]
        connected = json.dumps({"raw": {"target": shlex.join(words)}})
        self.project.configure()
        self.project.write("agentcards/clerk.md", f"---\nmcp_connect: {connected}\n---\nBe brief.\n")
        agac.lock_card("clerk", project=self.project.root)
        call = {"file": str(self.notes), "hang": hang}
        texts = [{"id": f"r-{n}", "call": f"tool:note {json.dumps(call | {'words': f'r-{n}'})}"} for n in range(rows)]
        self.project.workflow(stages=[{"name": "ask", "agent": "clerk", "prompt": "${call}"}], rows=texts)

    def taken(self) -> Counter[str]:
        """How often each row's note was taken."""
        return Counter(self.notes.read_text().split() if self.notes.exists() else [])

    def doubts(self) -> int:
        """How many calls are left for a person to decide."""
        return int(self.project.query(DOUBTS)[0][0])

    def killed_while_it_starts(self, turns: int = ROWS) -> None:
        """Kills a run whose server has said that it starts, and has got nothing, once so many rows wait for it."""
        self.gate.touch()
        run = self.project.start("run", "-a", "reviews")
        wait_until(self.reached.exists, "a server that starts", run)
        stored = "SELECT count(*) FROM agent_turn"
        wait_until(lambda: self.project.query(stored)[0][0] >= turns, f"{turns} rows that wait for it", run)
        killed(run)
        self.gate.unlink()
        self.reached.unlink()

    def assert_goes_on_by_itself(self) -> None:
        """Nothing is in doubt, and the next run has each note taken once."""
        assert self.doubts() == 0
        self.project.agac("run", "-a", "reviews", code=0)
        assert self.taken() == Counter(row["id"] for row in self.project.envelopes())
        self.project.assert_sound()


def test_a_kill_while_a_server_starts_leaves_no_call_in_doubt(tmp_path: Path) -> None:
    clerk = Clerk(tmp_path)
    clerk.killed_while_it_starts()
    assert clerk.taken() == Counter()
    clerk.assert_goes_on_by_itself()


@only_in_soak
@pytest.mark.parametrize("seed", range(40))
def test_kills_at_random_while_a_server_starts_leave_no_call_in_doubt(seed: int, tmp_path: Path) -> None:
    chance, clerk = random.Random(seed), Clerk(tmp_path, rows=30)
    for _ in range(2):
        clerk.killed_while_it_starts(chance.randint(1, 16))
    clerk.assert_goes_on_by_itself()


def test_a_kill_after_the_request_reached_the_server_leaves_that_call_in_doubt(tmp_path: Path) -> None:
    clerk = Clerk(tmp_path, rows=1, hang=True)
    run = clerk.project.start("run", "-a", "reviews")
    wait_until(lambda: bool(clerk.taken()), "the note", run)
    killed(run)
    assert clerk.doubts() == 1
    clerk.project.agac("run", "-a", "reviews", code=3)
    assert clerk.project.envelopes()[0]["error"]["type"] == "ToolOutcomeUnknown"
    agac.retry("last", agac.Retry(calls="skip"), project=clerk.project.root)
    assert clerk.project.envelopes()[0]["ok"]
    assert clerk.taken() == Counter(["r-0"])


SEND = """
import os, time
from pathlib import Path

def send(to: str) -> str:
    'Sends a letter, and waits while there is a gate.'
    with Path(__file__).with_name("sent").open("a") as file:
        file.write(f"{to}\\n")
    while Path(__file__).with_name("gate").exists():
        time.sleep(0.01)
    return "sent"
"""


def test_a_kill_leaves_in_doubt_the_call_that_has_the_slot_alone(project: ProjectFolder) -> None:
    project.configure()
    project.write("tools/t.py", SEND)
    gate, sent = project.write("tools/gate", ""), project.root / "tools/sent"
    tools = {"tools/t.py:send": {"side_effects": True, "concurrency": 1}}
    rows = [{"id": f"r-{n}", "text": f'tool:send {{"to": "r-{n}"}}'} for n in range(ROWS)]
    project.workflow(stages=[{"name": "ask", "tools": tools, "prompt": "${text}"}], rows=rows)
    run = project.start("run", "-a", "reviews")
    wait_until(lambda: sent.exists() and bool(sent.read_text()), "the first letter", run)
    turns = "SELECT count(*) FROM agent_turn"
    wait_until(lambda: project.query(turns) == [(ROWS,)], "all rows that wait for their turn", run)
    killed(run)
    gate.unlink()
    assert project.query(DOUBTS) == [(1,)]
    project.agac("run", "-a", "reviews", code=3)
    assert Counter(sent.read_text().split()) == Counter(row["id"] for row in rows)
    failed = [one["error"]["type"] for one in project.envelopes() if not one["ok"]]
    assert failed == ["ToolOutcomeUnknown"]


HELPER = "---\nname: helper\ndescription: Helps.\nfunction_tools: tools/t.py:send\n---\nHelp.\n"


def test_a_kill_while_an_agent_is_asked_that_could_change_something_leaves_no_doubt(project: ProjectFolder) -> None:
    def call(name: str, **arguments: str) -> dict[str, object]:
        return {"name": name, "arguments": arguments}

    script = [
        {"match": "Help.", "turn": 1, "calls": [call("send", to="r-0")]}, {"match": "Help.", "reply": "it is sent"},
        {"turn": 1, "calls": [call("agent__helper", message="send it")]}, {"reply": "so"},
    ]  # fmt: skip
    told = project.write("script.json", json.dumps(script))
    with simulator("--latency", "2", "--script", str(told)) as model:
        project.asks(model)
        project.write("tools/t.py", SEND)
        project.write("agentcards/helper.md", HELPER)
        project.write("agentcards/boss.md", "---\nname: boss\nagents: [helper]\n---\nAsk the helper.\n")
        with (project.root / "agac.yml").open("a") as file:
            file.write("\ntools: {send: {side_effects: true}}\n")
        project.workflow(stages=[{"name": "ask", "agent": "boss", "prompt": "${text}"}], rows=1)
        run = project.start("run", "-a", "reviews")
        wait_until(lambda: model.account()["requests"] == 2, "the question to the helper", run)
        killed(run)
        assert project.query("SELECT count(*) FROM tool_call") == [(0,)]
        project.agac("run", "-a", "reviews", code=0)
    assert (project.root / "tools/sent").read_text() == "r-0\n"
    calls = project.query("SELECT name, state FROM tool_call ORDER BY name")
    assert calls == [("agent__helper", "done"), ("send", "done")]
