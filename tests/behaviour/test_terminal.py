"""What a person at a terminal is asked, and how they answer. tests/behaviour/test_progress.py has what they see."""

import pytest
from support.project import ProjectFolder
from support.server import Server
from support.terminals import on_pty


@pytest.mark.parametrize(("keys", "code", "calls"), [(b"y\n", 0, 20), (b"n\n", 2, 0), (b"\n", 2, 0), (b"\x03", 130, 0)])
def test_a_run_above_confirm_above_is_asked_about_on_a_terminal(
    keys: bytes, code: int, calls: int, project: ProjectFolder, server: Server
) -> None:
    project.configure(server.base_url, prices={"small": {"input": 1000.0, "output": 2000.0}})
    project.workflow(rows=20, confirm_above={"usd": 0.1})
    with on_pty(project.root, "run", "-a", "reviews", columns=200) as terminal:
        asked = terminal.until(r"\[y/N\]")
        terminal.press(keys)
        assert (terminal.ended(), server.account()["requests"]) == (code, calls), terminal.seen
    assert "reviews is expected to cost $" in asked
    assert "confirm_above is $0.10. Continue? [y/N]" in asked
    assert "Traceback" not in terminal.seen
    if code == 2:
        assert terminal.seen.count("is expected to cost") == 1
        assert "no calls were made\r\n  Add --yes to continue; " in terminal.seen
