"""Runs whose calls and functions are carried out by other processes."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.processes import PATIENCE, processes, quiet_account
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server, simulator
from support.soak import campaign
from support.workers import Crew, PipedWorker, driver

from agac.core.errors import AgacError
from agac.engine.workers import pool, ray
from agac.engine.workers.pool import CallItem, FunctionItem
from agac.engine.workers.work import unpacked_replies

pytestmark = processes


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Crew:
    """Two workers in the place of a cluster."""
    own = Crew()
    monkeypatch.setattr(ray, "open_workers", own)
    monkeypatch.setattr(pool, "BENCH", 0.01)
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


def test_the_row_that_kills_its_worker_stands_alone_at_last(project: ProjectFolder, crew: Crew) -> None:
    project.write("tools/checks.py", POISON)
    project.workflow(rows=30, stages=[{"name": "size", "python": "tools/checks.py:check"}])
    report = project.run(executor="ray", concurrency=30)
    assert report.exit_code == 3
    (failed,) = [one for one in project.envelopes() if not one["ok"]]
    assert (failed["id"], failed["error"]["type"]) == ("r-7", "WorkerLost")
    assert sum(worker.starts for worker in crew.workers) - 2 <= 6


def test_calls_of_a_killed_worker_are_asked_again_and_none_is_lost(
    project: ProjectFolder, faulty: Faulty, crew: Crew
) -> None:
    server = project.asks(faulty([], "--latency", "0.2"))
    project.workflow(rows=60)
    crew.strike(server, 20)
    report = project.run(executor="ray", concurrency=40)
    assert report.exit_code == 0
    calls, lost = project.query("SELECT count(*), sum(ambiguous) FROM attempt")[0]
    assert 0 < lost <= 40
    assert calls == 60 + lost
    assert 60 <= quiet_account(server)["requests"] <= calls, "a call may be lost before it is sent"
    project.assert_sound()
    assert project.query("SELECT count(*) FROM task WHERE outcome = 'done'") == [(60,)]


def remembers(project: ProjectFolder, remote: Path) -> None:
    """The project keeps what its workers are told in a remote."""
    keys = yaml.safe_load((project.root / "agac.yml").read_text("utf-8"))
    project.write("agac.yml", yaml.safe_dump({**keys, "remote": {"url": str(remote)}}))


def replies_in(remote: Path) -> int:
    return sum(len(unpacked_replies(one.read_bytes())) for one in remote.rglob("*.replies"))


@pytest.mark.parametrize("again", ["ray", "local"])
@campaign(test=1, soak=40)
@given(data=st.data())
def test_a_killed_driver_pays_for_no_reply_twice_that_its_workers_kept(
    again: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, requests = tmp_path_factory.mktemp("killed"), data.draw(st.integers(1, 60), label="requests")
    with simulator("--latency", "0.05", folder=folder) as server:
        project = ProjectFolder(folder / "project")
        project.asks(server)
        remembers(project, folder / "remote")
        project.workflow(rows=60)
        words = ["run", "-a", "reviews", "--executor", "ray", "--concurrency", "20"]
        process = driver(project, *words)
        while server.account()["requests"] < requests and process.poll() is None:
            pass
        process.kill()
        process.communicate()
        kept = len(list((folder / "remote").rglob("*.replies")))
        quiet_account(server)
        report = project.run(executor=again) if again == "local" else None
        if report is None:
            process = driver(project, *words)
            out, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, out + err
        assert [one["ok"] for one in project.envelopes()] == [True] * 60
        lost = server.account()["requests"] - 60
        assert 0 <= lost <= 20
        assert project.query("SELECT count(*) FROM attempt WHERE cost IS NOT NULL OR input_tokens > 0")[0][0] >= 60
        assert project.query("SELECT count(*) FROM chunk_call") == [(0,)]
        assert kept or requests <= 20
        project.assert_sound()


@pytest.mark.parametrize("then", ["again", "edited", "fresh"])
def test_replies_that_were_not_stored_are_taken_from_the_remote(
    then: str, project: ProjectFolder, server: Server, tmp_path: Path
) -> None:
    """The driver dies as it is about to store them. A run of another version takes those to the same requests; a fresh
    one takes none."""
    remembers(project, tmp_path / "remote")
    project.workflow(rows=20)
    words = ["run", "-a", "reviews", "--executor", "ray", "--concurrency", "20"]
    process = driver(project, *words, env={"AGAC_TEST_DEAF": "1"})
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    paid, kept = quiet_account(server)["requests"], replies_in(tmp_path / "remote")
    ((stored, given),) = project.query("SELECT (SELECT count(*) FROM attempt), (SELECT count(*) FROM chunk_call)")
    assert stored == 0
    assert 0 < kept <= paid <= given <= 20
    if then == "edited":
        asked = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT}
        stages = [asked, {"name": "size", "when": 'id == "none"', "prompt": "Size: ${text}"}]
        project.workflow(stages=stages)
    assert project.run(fresh=then == "fresh").exit_code == 0
    assert server.account()["requests"] == paid + 20 - (0 if then == "fresh" else kept)
    assert project.query("SELECT count(*) FROM attempt") == [(20,)]
    assert project.query("SELECT count(*) FROM chunk_call") == [(0,)]
    project.assert_sound()


def test_late_replies_are_booked_as_paid_again(
    project: ProjectFolder, faulty: Faulty, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that slept wakes up after others did its work; what it brings counts, and takes nobody's place."""
    monkeypatch.setattr(pool, "SILENT", 1.0)
    server = project.asks(faulty([], "--latency", "0.3"), prices={"small": {"input": 1.0, "output": 1.0}})
    project.workflow(rows=40, budget={"usd": 1.0}, defaults={"max_tokens": 100})
    crew.strike(server, 20, signal.SIGSTOP)
    crew.strike(server, 41, signal.SIGCONT)  # its calls are made again by the other one
    report = project.run(executor="ray", concurrency=20)
    assert report.exit_code == 0
    found = project.query("SELECT purpose, ambiguous, count(*) FROM attempt GROUP BY purpose, ambiguous")
    lost = found[1][2]
    assert found == [("ask", 0, 40), ("ask", 1, lost), ("paid_again", 0, lost)]
    assert server.account()["charged"] == 40 + lost > 40
    account = server.account()
    billed = (account["prompt_tokens"] + account["completion_tokens"]) / 1e6
    sums = "SELECT sum(cost), sum(held_cost), sum(held_tokens) FROM counter WHERE outcome = 'call'"
    assert project.query(sums) == [(pytest.approx(billed), pytest.approx(0.0), 0)]
    project.assert_sound()


def test_where_the_cluster_is_gone_the_run_ends_and_goes_on_here(
    project: ProjectFolder, faulty: Faulty, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = project.asks(faulty([], "--latency", "0.1"))
    project.workflow(rows=60)
    crew.strike(server, 20)

    async def gone(worker: PipedWorker) -> None:
        raise AgacError("the head of the cluster is gone", remedy="Go on with --executor local.")

    real = PipedWorker.hello

    async def hello(worker: PipedWorker) -> object:
        return await (gone(worker) if worker.starts else real(worker))

    monkeypatch.setattr(PipedWorker, "hello", hello)
    with pytest.raises(AgacError, match="the head of the cluster is gone") as raised:
        project.run(executor="ray", concurrency=20)
    assert raised.value.exit_code == 1
    before = server.account()["requests"]
    report = project.run(executor="local")
    assert report.exit_code == 0
    assert [one["ok"] for one in project.envelopes()] == [True] * 60
    assert server.account()["requests"] - 60 <= 20
    assert before < server.account()["requests"]
    project.assert_sound()


TOOL = """
import os

def area(width: int, height: int) -> str:
    \"\"\"The area of a field.\"\"\"
    with open("pids.txt", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return str(width * height)
"""


def test_tools_of_files_run_in_workers(project: ProjectFolder, crew: Crew) -> None:
    project.write("tools/fields.py", TOOL.replace("pids.txt", str(project.root / "pids.txt")))
    stage = {"name": "ask", "prompt": "Field: ${text}", "tools": ["tools/fields.py:area"], "max_turns": 3}
    project.workflow(rows=6, stages=[stage])
    report = project.run(executor="ray")
    assert report.exit_code == 0
    pids = {int(line) for line in (project.root / "pids.txt").read_text().split()}
    assert pids
    assert os.getpid() not in pids
    assert {type(item) for item in crew.items} == {CallItem, FunctionItem}
    assert project.query("SELECT count(*) FROM chunk_call") == [(0,)]
    project.assert_sound()


def test_the_timeout_of_a_tool_begins_when_a_worker_does(
    project: ProjectFolder, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a worker has not begun: a model would hear of a failure that was none."""
    project.write("agac.yml", "defaults: {model: simulator/small}\ntools: {tools/fields.py:area: {timeout: 0.3}}\n")
    project.write("tools/fields.py", TOOL.replace("pids.txt", str(project.root / "pids.txt")))
    project.workflow(rows=3, stages=[{"name": "ask", "prompt": "${text}", "tools": ["tools/fields.py:area"]}])
    real = pool.WorkerPool.function

    async def function(own: pool.WorkerPool, item: FunctionItem, **how: Any) -> object:
        await asyncio.sleep(1.0)  # as where no worker is there
        return await real(own, item, **how)

    monkeypatch.setattr(pool.WorkerPool, "function", function)
    assert project.run(executor="ray").exit_code == 0
    assert project.query("SELECT state, count(*) FROM tool_call GROUP BY 1") == [("done", 3)]
