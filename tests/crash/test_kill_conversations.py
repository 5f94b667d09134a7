"""kill -9 before and after each commit of a conversation: no turn is paid twice but the one that was under way, and no
call with side effects is repeated without being asked."""

from pathlib import Path

from support.project import ProjectFolder
from support.server import Server

import agac

TOOLS = '''
from pathlib import Path

def look(q: str) -> str:
    """Looks something up."""
    return f"found {q}"

def send(to: str) -> str:
    """Sends a letter."""
    with Path(__file__).with_name("sent").open("a") as file:
        file.write(to)
    return "sent"
'''
STAGE = {
    "name": "ask",
    "prompt": "${text}",
    "tools": {"tools/t.py:look": {}, "tools/t.py:send": {"side_effects": True}},
}
TURNS = 'tool:look {"q": "x"}\ntool:send {"to": "a"}\n\ntool:look {"q": "y"}\n\nThen answer.'
CALLS = 3
FIRST = 12
"""The moments before that come before the first call of the model."""


def test_a_conversation_survives_being_killed_at_any_moment(tmp_path: Path, server: Server) -> None:
    met = set()
    for moment in range(FIRST, 99):
        project = ProjectFolder(tmp_path / str(moment))
        project.asks(server)
        project.write("tools/t.py", TOOLS)
        project.workflow(stages=[STAGE], rows=[{"id": "r-1", "text": TURNS}])
        server.reset()
        killed = project.agac("run", "-a", "reviews", kill=f"any:{moment}").code
        sent = project.root / "tools/sent"
        met.add((server.account()["requests"], sent.exists()))
        whole = project.query("SELECT 1 FROM agent_turn WHERE ended = 'done'")
        report = project.run()
        assert report.invocation["lost_calls_at_most"] <= 4, "one row, one turn, with its retries"
        if report.exit_code:
            ((error,),) = project.query("SELECT error_type FROM task")
            assert error == "ToolOutcomeUnknown"
            met.add(error)
            assert project.run().exit_code == 3  # however often it is asked
            choice = agac.Retry(calls="skip" if sent.exists() else "repeat")
            assert agac.retry("last", choice, project=project.root).exit_code == 0
        account = server.account()
        assert sent.read_text() == "a"
        assert account["duplicates"] <= (killed != 0)
        assert account["requests"] == CALLS + account["duplicates"]
        assert project.query("SELECT number, ended FROM agent_turn") == [(1, None), (2, None), (3, "done")]
        project.assert_sound()
        if whole:
            break
    assert {(1, False), (1, True), (2, True), (3, True), "ToolOutcomeUnknown"} <= met
