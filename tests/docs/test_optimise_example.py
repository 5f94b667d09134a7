"""docs/examples/optimise_prompt.py beyond what its page shows: its sum holds, and it may be killed."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT
from support.commands import clean_environment, start_forked
from support.processes import killed, processes, wait_until
from support.project import python
from support.server import Server, simulator

pytestmark = processes

SOURCE = ROOT / "docs/examples"


@pytest.fixture
def server() -> Iterator[Server]:
    with simulator("--script", str(SOURCE / "optimise-prompt/model.yml"), "--latency", "0.01") as found:
        yield found


def copied(folder: Path, server: Server) -> Path:
    """The project of the page, of which the models are those of this server."""
    shutil.copytree(SOURCE / "optimise-prompt", folder)
    settings = folder / "agac.yml"
    settings.write_text(f"{settings.read_text()}providers: {{simulator: {{base_url: {server.base_url}}}}}\n")
    return folder


def command(usd: float) -> list[str]:
    return [str(SOURCE / "optimise_prompt.py"), "--usd", str(usd)]


def told(project: Path, usd: float = 1.0) -> str:
    ran = python(project, *command(usd))
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def spent(text: str) -> float:
    return float(re.findall(r"^spent: \$([\d.]+) of", text, re.M)[0])


def test_the_loop_survives_being_killed_and_pays_once(tmp_path: Path, server: Server) -> None:
    unkilled = copied(tmp_path / "unkilled", server)
    first = told(unkilled)
    assert "100% of 12 rows" in first
    whole = server.account()["requests"]
    project = copied(tmp_path / "killed", server)
    server.reset()
    for share in (0.3, 0.7):
        process = start_forked(command(1.0), project, clean_environment(), "script")
        wait_until(lambda: server.account()["requests"] >= share * whole, f"{share:.0%} of the requests", process)  # noqa: B023
        killed(process)
    again = told(project)
    assert again.splitlines()[:-1] == first.splitlines()[:-1]
    assert (project / "winner.diff").read_bytes() == (unkilled / "winner.diff").read_bytes()
    account = server.account()
    assert account["requests"] - whole == account["duplicates"] <= 2 * 16, "what was in flight"
    assert told(project) == again
    assert server.account()["requests"] == account["requests"]


@pytest.mark.parametrize("usd", [0.0003, 0.0008, 0.0012])
def test_the_loop_spends_no_more_than_it_may(tmp_path: Path, server: Server, usd: float) -> None:
    project = copied(tmp_path / "project", server)
    text = told(project, usd)
    assert spent(text) <= usd
    assert "stopped: " in text or "not tried any further: " in text
    requests = server.account()["requests"]
    assert told(project, usd) == text
    assert server.account()["requests"] == requests
