"""Runs whose calls and functions are carried out by other processes."""

import sys
from types import ModuleType

import pytest
from support.project import ProjectFolder
from support.server import Faulty
from support.workers import Crew

from agac.engine.workers import pool


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Crew:
    """Two workers in the place of a cluster."""
    own = Crew()
    ray = ModuleType("agac.engine.workers.ray")
    ray.open_workers = own  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agac.engine.workers.ray", ray)
    import agac.engine.workers

    monkeypatch.setattr(agac.engine.workers, "ray", ray, raising=False)
    return own


def test_a_run_by_workers_writes_what_a_run_here_writes(project: ProjectFolder, crew: Crew) -> None:
    project.workflow(rows=40)
    here = project.run()
    local = [file.read_bytes() for file in here.files if file.name.startswith("results")]
    there = project.run(fresh=True, executor="ray")
    assert there.exit_code == 0
    assert [file.read_bytes() for file in there.files if file.name.startswith("results")] == local
    assert len(crew.items) == 40
    assert project.query("SELECT count(*) FROM chunk_call") == [(0,)]
    project.assert_sound()


POISON = """
import os, signal

def check(row):
    if row["id"] == "r-7":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"size": len(row["text"])}
"""


def test_the_row_that_kills_its_worker_stands_alone_at_last(
    project: ProjectFolder, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "BENCH", 0.01)
    project.write("tools/checks.py", POISON)
    project.workflow(rows=30, stages=[{"name": "size", "python": "tools/checks.py:check"}])
    report = project.run(executor="ray", concurrency=30)
    assert report.exit_code == 3
    (failed,) = [one for one in project.envelopes() if not one["ok"]]
    assert (failed["id"], failed["error"]["type"]) == ("r-7", "WorkerLost")
    assert sum(worker.starts for worker in crew.workers) - 2 <= 6


def test_calls_of_a_killed_worker_are_asked_again_and_none_is_lost(
    project: ProjectFolder, faulty: Faulty, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "BENCH", 0.01)
    server = project.asks(faulty([], "--latency", "0.2"))
    project.workflow(rows=60)
    crew.strike(server, 20)
    report = project.run(executor="ray", concurrency=40)
    assert report.exit_code == 0
    calls, lost = project.query("SELECT count(*), sum(ambiguous) FROM attempt")[0]
    assert 0 < lost <= 40
    assert server.account()["requests"] == calls == 60 + lost
    project.assert_sound()
    assert project.query("SELECT count(*) FROM task WHERE outcome = 'done'") == [(60,)]
