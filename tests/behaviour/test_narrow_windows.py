"""Moments that are hard to hit: a commit under way, a cancelled start, a Ctrl-C at the very end."""

import asyncio
import time
from typing import Any

import pytest
from support.project import ProjectFolder
from support.server import Server

import agac
from agac.core.errors import AgacError, ErrorType
from agac.core.types import Fault, FaultKind
from agac.engine import context
from agac.engine.stop_rules import StopReason, StopSignal
from agac.engine.walk import input_rows
from agac.store import lease
from agac.store.writer import Ledger


def test_rows_that_a_commit_is_just_placing_have_not_left(project: ProjectFolder, monkeypatch: Any) -> None:
    """A look-up that is slower than the writer lets a commit begin in the middle of a chunk."""
    monkeypatch.setattr(input_rows, "CHUNK_ROWS", 256)
    project.run(project.workflow(rows=300))
    moved = [{"id": "new", "text": "x"}, *({"id": f"r-{i}", "text": f"I love number {i}"} for i in range(1, 301))]
    project.rows(moved)
    look_up, write = context.prior_tasks, Ledger._write
    looked = {"times": 0}

    async def slow_look_up(database: Any, keys: Any) -> Any:
        looked["times"] += 1
        found = await look_up(database, keys)
        if looked["times"] == 2:
            await asyncio.sleep(0.2)
            looked["times"] = 3
        return found

    def slow_write(self: Ledger, batch: Any, *rest: Any) -> None:
        if batch.rows.places and looked["times"] == 2:
            time.sleep(0.6)
        write(self, batch, *rest)

    monkeypatch.setattr(context, "prior_tasks", slow_look_up)
    monkeypatch.setattr(Ledger, "_write", slow_write)
    report = project.run()
    assert looked["times"] == 3
    assert report.summary["rows"]["total"] == 301
    assert len(project.envelopes()) == 301
    project.assert_sound()


def test_a_run_that_is_cancelled_at_any_moment_gives_its_lease_back(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=3))

    async def cancelled(after: float) -> None:
        task = asyncio.ensure_future(agac.arun("reviews", project=project.root))
        await asyncio.sleep(after)
        task.cancel()
        await asyncio.wait({task})

    for step in range(25):
        asyncio.run(cancelled(0.001 * step))
        assert project.query("SELECT holder FROM lease WHERE workflow = 'reviews'") == [("",)]
    assert project.run().exit_code == 0


def test_an_input_that_breaks_off_lets_calls_in_flight_finish(
    project: ProjectFolder, server: Server, monkeypatch: Any
) -> None:
    project.workflow(rows=300)
    monkeypatch.setattr(input_rows, "CHUNK_ROWS", 256)
    read, chunks = input_rows.read_chunk, iter(range(10))

    def broken(rows: Any) -> Any:
        if next(chunks) == 1:
            raise AgacError("the disk is gone")
        return read(rows)

    monkeypatch.setattr(input_rows, "read_chunk", broken)
    with pytest.raises(AgacError, match="the disk is gone"):
        project.run(concurrency=4)
    monkeypatch.undo()
    assert project.query("SELECT count(*) FROM result")[0][0] == server.account()["charged"]
    assert project.run(concurrency=4).summary["rows"]["done"] == 300
    assert server.account()["duplicates"] == 0


async def test_ctrl_c_during_a_fatal_stop_gives_up_the_calls_in_flight() -> None:
    control = StopSignal()
    control.fail(Fault(FaultKind.FATAL, ErrorType.PROVIDER_ERROR, "bad key"))
    control.interrupt()
    assert (control.forced.is_set(), control.stop) == (True, StopReason.FATAL)


def test_ctrl_c_during_the_export_ends_it_and_the_next_run_writes_it(project: ProjectFolder, monkeypatch: Any) -> None:
    async def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    async def fails(_: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("agac.api.report.export_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        project.run(project.workflow(rows=4))
    monkeypatch.undo()
    assert not (project.root / "output/reviews/results.jsonl").exists()
    # a watcher that fails costs nothing but its words
    report = agac.run("reviews", project=project.root, progress=fails)
    assert (report.exit_code, report.invocation["calls"], len(project.envelopes())) == (0, 0, 4)


def test_a_holder_in_another_container_is_not_taken_for_dead() -> None:
    host, machine, pid, started = lease.this_process().split(" ")
    boot, _, namespace = machine.partition("/")
    assert lease.is_dead(f"{host} {boot}/{namespace} 999999999 {started}")
    assert not lease.is_dead(f"{host} {boot}/pid:[1] 999999999 {started}")
    assert lease.is_dead(f"{host} another-boot/{namespace} {pid} {started}")


def test_an_id_that_comes_a_thousand_times_is_not_read_as_a_whole_each_time(
    project: ProjectFolder, monkeypatch: Any
) -> None:
    read = 0
    by_id = input_rows.store.rows_by_id

    async def counted(*arguments: Any) -> Any:
        nonlocal read
        found = await by_id(*arguments)
        read += sum(map(len, found.values()))
        return found

    monkeypatch.setattr(input_rows.store, "rows_by_id", counted)
    monkeypatch.setattr(input_rows, "CHUNK_ROWS", 256)
    report = project.run(project.workflow(rows=({"id": "same", "text": f"{i}"} for i in range(1500))))
    assert report.summary["rows"] == {"total": 1500, "done": 1, "skipped": 0, "failed": 1499, "dropped": 0, "open": 0}
    assert read == 0  # the first chunk finds none, and after it the id is known
    project.assert_sound()
