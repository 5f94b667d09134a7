"""One process at a time works on a workflow, and a dead or sleeping one is no obstacle."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.batched import store
from support.processes import (
    Process,
    ended,
    interrupt,
    killed,
    listening,
    processes,
    quiet_account,
    row_count,
    stopped,
    wait_until,
)
from support.project import ProjectFolder
from support.server import Faulty, Server

import agac
from agac.api.status import run_report
from agac.core.errors import LeaseHeld
from agac.store.db import open_for_reading
from agac.store.lease import this_process
from agac.store.runs import run_record

pytestmark = processes

WIDE = 8
FIRST = 20
"""Rows that the first process gets answers for; then all its calls hang."""


@pytest.fixture
def server(faulty: Faulty) -> Server:
    """Answers twenty calls, lets the next eight hang, answers all that follow."""
    return faulty([{"kind": "hang", "at": list(range(FIRST + 1, FIRST + WIDE + 1))}])


@pytest.fixture
def holder(project: ProjectFolder, server: Server) -> Iterator[Process]:
    """A process in the middle of the workflow, with nothing to commit and all its calls in flight."""
    project.workflow(rows=60)
    process = listening(project.start("run", "-a", "reviews", "--concurrency", str(WIDE)))
    wait_until(lambda: server.account()["in_flight"] == WIDE and row_count(project) == FIRST, "its work", process)
    yield process
    assert process.stdout is not None
    if not process.stdout.closed:
        process.kill()
        process.communicate()


def content(project: ProjectFolder) -> dict[str, list[tuple[Any, ...]]]:
    """All that the database holds, but for signs of life."""
    tables = [name for (name,) in project.query("SELECT name FROM sqlite_master WHERE type = 'table'")]
    held = {table: project.query(f"SELECT * FROM {table}") for table in tables if table not in ("lease", "lane_sample")}
    return held | {"lease": project.query("SELECT workflow, token, holder FROM lease")}


def edit(project: ProjectFolder, sql: str, *values: Any) -> None:
    with store(project) as database:
        database.execute(sql, values)


def takes_over(project: ProjectFolder, server: Server) -> None:
    """Another process goes on at once, with nothing that is stored asked again."""
    ran = project.agac("run", "-a", "reviews", "--concurrency", str(WIDE), "--json", code=0)
    assert ran.json["rows"]["done"] == 60
    assert ran.json["invocation"]["rows_unchanged"] == FIRST
    assert WIDE <= ran.json["invocation"]["lost_calls_at_most"] <= 2 * WIDE
    assert server.account()["duplicates"] == 0
    project.assert_sound()


def test_a_second_process_is_refused_and_changes_nothing(
    project: ProjectFolder, server: Server, holder: Process
) -> None:
    before = content(project)
    for options in ([], ["--fresh"], ["--limit", "3"], ["--model", "local/other"], ["--output", "output/elsewhere"]):
        ran = project.agac("run", "-a", "reviews", *options, code=1)
        assert f"workflow 'reviews' is being run by another process (process {holder.pid}" in ran.err
        assert "wait for it to end, or stop it" in ran.err
        assert "Traceback" not in ran.err
    assert content(project) == before
    assert server.account()["requests"] == FIRST + WIDE
    assert not (project.root / "output").exists()
    assert project.agac("status", "--json", code=0).json["runs"][0]["last_invocation"]["state"] == "running"
    assert project.agac("export", "-a", "reviews", "--partial").code == 0
    assert len(project.envelopes()) == FIRST
    project.workflow("others", stages=[{"name": "one", "prompt": "Other: ${text}"}])
    assert project.agac("run", "-a", "others", "--json", code=0).json["rows"]["done"] == 60, "it is another workflow"
    edit(project, "UPDATE lease SET heartbeat_at = 0 WHERE workflow = 'reviews'")
    alive = "SELECT heartbeat_at > 0 FROM lease WHERE workflow = 'reviews'"
    wait_until(lambda: project.query(alive) == [(1,)], "a heartbeat, though nothing is to be committed", holder)
    assert "process" in project.agac("run", "-a", "reviews", code=1).err
    assert holder.poll() is None
    project.assert_sound()


@pytest.mark.parametrize("already", [True, False], ids=["an old database", "a new database"])
def test_two_workflows_that_start_at_the_same_time_both_finish(
    already: bool, project: ProjectFolder, faulty: Faulty
) -> None:
    server = project.asks(faulty([]))
    project.numbered(300)
    names = ["one", "two", "three"]
    for name in names:
        project.workflow(name, stages=[{"name": "say", "prompt": f"{name}: ${{text}}"}])
    if already:
        assert project.run("one", limit=1).exit_code == 0
    processes = [project.start("run", "-a", name) for name in names]
    for process in processes:
        ran = ended(process)
        assert ran.code == 0, ran.err
    for name in names:
        assert [e["ok"] for e in project.envelopes(name)] == [True] * 300
    assert server.account()["duplicates"] == 0
    rows = project.query("SELECT count(*) FROM row WHERE run_id IN (SELECT id FROM run WHERE selection = '{}')")
    assert rows == [(900,)]
    project.assert_sound()


def test_of_two_that_start_at_the_same_time_one_works(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([], "--latency", "0.3"))
    project.workflow(rows=40)
    processes = [project.start("run", "-a", "reviews", "--concurrency", str(WIDE)) for _ in range(3)]
    runs = [ended(process) for process in processes]
    assert sorted({ran.code for ran in runs}) in ([0], [0, 1])  # a late one may find everything done
    for ran in runs:
        assert ran.code == 0 or "is being run by another process" in ran.err
    assert server.account()["duplicates"] == 0
    assert len(project.envelopes()) == 40
    project.assert_sound()


@pytest.mark.parametrize("who", ["gone", "a zombie", "of another boot", "started at another time"])
def test_a_dead_holder_is_taken_over_at_once(who: str, project: ProjectFolder, server: Server, holder: Process) -> None:
    killed(holder)
    quiet_account(server)
    ((name,),) = project.query("SELECT holder FROM lease")
    host, boot, number, started = name.split(" ")
    with subprocess.Popen(["true"]) as zombie:  # until its end is fetched, when the block is left

        def stat() -> list[str]:
            return Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2].split()

        wait_until(lambda: stat()[0] == "Z", "a zombie")
        holders = {
            "gone": (boot, number, started), "a zombie": (boot, zombie.pid, stat()[19]),
            "of another boot": ("another-boot", 1, started), "started at another time": (boot, 1, started),
        }  # fmt: skip
        edit(project, "UPDATE lease SET holder = ?", " ".join(map(str, (host, *holders[who]))))
        takes_over(project, server)


def test_a_holder_on_another_machine_is_believed_until_it_falls_silent(
    project: ProjectFolder, server: Server, holder: Process
) -> None:
    killed(holder)
    edit(project, "UPDATE lease SET holder = 'elsewhere boot 4711 1', heartbeat_at = ?", time.time())
    assert "process 4711 on elsewhere" in project.agac("run", "-a", "reviews", code=1).err
    edit(project, "UPDATE lease SET holder = ?", this_process())
    with pytest.raises(LeaseHeld, match=f"is being run by this process already \\(process {os.getpid()}"):
        project.run()
    edit(project, "UPDATE lease SET heartbeat_at = heartbeat_at - 3600")
    takes_over(project, server)


@pytest.mark.parametrize("signals", [(), (signal.SIGINT, signal.SIGTERM)], ids=["left alone", "interrupted"])
def test_a_sleeping_holder_is_taken_over_and_writes_nothing_when_it_wakes(
    signals: tuple[signal.Signals, ...], project: ProjectFolder, server: Server, holder: Process
) -> None:
    """Its last words, how the invocation ended, are fenced off like everything else."""
    stopped(holder)
    edit(project, "UPDATE lease SET heartbeat_at = heartbeat_at - 3600")
    takes_over(project, server)
    before = content(project)
    files = {path: path.read_bytes() for path in (project.root / "output").rglob("*") if path.is_file()}
    for number in (*signals, signal.SIGCONT):
        holder.send_signal(number)
    ran = ended(holder)
    assert ran.code == 1
    assert "another process took over workflow 'reviews'" in ran.err
    assert signals or "while this one was asleep" in ran.err
    assert signals or "nothing was overwritten" in ran.err
    assert "Traceback" not in ran.err
    assert content(project) == before
    assert {path: path.read_bytes() for path in (project.root / "output").rglob("*") if path.is_file()} == files
    project.assert_sound()
    assert project.agac("run", "-a", "reviews", "--json").json["invocation"]["calls"] == 0


def test_a_clock_that_was_set_back_is_no_licence_to_steal(
    project: ProjectFolder, server: Server, holder: Process
) -> None:
    """The last sign of life seems to come from the future: the holder is alive all the same."""
    stopped(holder)
    edit(project, "UPDATE lease SET heartbeat_at = heartbeat_at + 86400")
    before = content(project)
    assert "is being run by another process" in project.agac("run", "-a", "reviews", code=1).err
    assert content(project) == before
    holder.send_signal(signal.SIGCONT)
    interrupt(holder)
    interrupt(holder)
    assert ended(holder).code == 130


async def test_a_run_is_running_before_its_first_invocation_and_never_seems_killed_at_its_end(
    project: ProjectFolder,
) -> None:
    project.workflow(rows=1)
    project.run()
    async with open_for_reading(project.root / ".agac/agac.db") as database:
        assert database is not None
        with project.changed() as change:
            change("UPDATE event SET ended_at = NULL WHERE kind = 'invocation'")
        before = await run_record(database, 1)  # read by somebody just before the end
        with project.changed() as change:
            change("UPDATE event SET ended_at = at WHERE kind = 'invocation'")
        assert (await run_report(database, before))["state"] == "finished"
        with project.changed() as change:
            change("DELETE FROM event WHERE kind = 'invocation'")
            change("UPDATE run SET finished_at = NULL")
        assert (await run_report(database, before))["state"] == "stopped"
        with project.changed() as change:
            change("UPDATE lease SET holder = ?", this_process())
        assert (await run_report(database, before))["state"] == "running"
    assert [one["state"] for one in (await agac.aruns(project=project.root)).runs] == ["running"]
