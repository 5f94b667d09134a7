"""Runs by workers of Ray: a real cluster of this machine. (Kills, lost heads and the like are in the cluster tests.)"""

from __future__ import annotations

import socket
import sys

import pytest
from support.project import ProjectFolder
from support.server import Server

from agac.core.errors import UsageError

PYTHON = """
import os

def size(row):
    return {"text": row["text"], "size": len(row["text"])}

def where() -> str:
    '''Says where this is.'''
    return f"process {os.getpid()}"
"""


def test_a_run_by_ray_writes_what_a_run_here_writes(project: ProjectFolder, server: Server) -> None:
    project.asks(server, api_key="${SIMULATED_KEY}")
    project.write(".env", "SIMULATED_KEY=sk-simulated-1234567890\n")
    project.write("tools/sizes.py", PYTHON)
    project.workflow(rows=30, stages=[
        {"name": "size", "python": "tools/sizes.py:size"},
        {"name": "classify", "prompt": "Classify: ${text}", "output_schema": {"sentiment": "positive|negative"}},
    ])  # fmt: skip
    project.agac("run", "-a", "reviews", code=0)
    (here,) = (project.root / "output/reviews").glob("results.jsonl")
    local, before = here.read_bytes(), server.account()["requests"]
    ran = project.agac("run", "-a", "reviews", "--executor", "ray", "--fresh", env={"AGAC_REMOTE": "shared"}, code=0)
    assert "ray" not in ran.err.lower()
    assert here.read_bytes() == local
    assert server.account()["requests"] == 2 * before
    # the workers put every reply into the remote, and none holds the key
    kept = [one.read_bytes() for one in (project.root / "shared/v1/chunks").rglob("*.replies")]
    assert kept
    assert not any(b"sk-simulated" in one for one in kept)
    project.assert_sound()


@pytest.mark.parametrize("where", ["RAY_ADDRESS", "executor.ray"])
def test_a_cluster_that_is_not_there_is_said_at_once(where: str, project: ProjectFolder) -> None:
    project.workflow(rows=3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"ray://127.0.0.1:{taken.getsockname()[1]}"
        if where == "executor.ray":
            project.write("agac.yml", f'defaults: {{model: simulator/small}}\nexecutor: {{ray: "{address}"}}\n')
        env = {"RAY_ADDRESS": address.removeprefix("ray://")} if where == "RAY_ADDRESS" else {}
        ran = project.agac("run", "-a", "reviews", "--executor", "ray", env=env, code=1)
    assert f"{where}={env.get(where, address)}: nothing takes connections there" in ran.err
    assert "--executor local" in ran.err
    project.agac("run", "-a", "reviews", "--executor", "local", code=0)


def test_why_a_client_was_refused_is_said() -> None:
    pytest.importorskip("ray", reason="Ray does not install here")
    from agac.engine.workers import ray

    told = "Initialization failure from server:\nTraceback (most recent call last):\n  …\nRuntimeError: no room"
    assert ray._reason(ConnectionAbortedError(told)) == "Initialization failure from server: RuntimeError: no room"
    assert ray._reason(ConnectionError("\n")) == "ConnectionError"


def test_without_ray_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "agac.engine.workers.ray", raising=False)
    with pytest.raises(UsageError, match=r"executor: ray needs ray.*pip install 'ray"):
        import agac.engine.workers.ray  # noqa: F401
