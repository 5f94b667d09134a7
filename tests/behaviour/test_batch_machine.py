"""The machine beneath: a disk that is full, a folder that is none, a clock that is wrong."""

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from support.batched import store
from support.batchrun import BatchProject, Make, advance
from support.processes import is_explained
from support.server import Server
from support.soak import SOAK

from agac.core.errors import StoreError
from agac.engine.batch.enrol import BUFFER, Spool
from agac.engine.invocation import Clocks

SECONDS = 100
HOUR = 3600.0
SAY: dict[str, Any] = {"name": "say", "prompt": "Tell of ${text}", "model": "local/echo"}
MORE: dict[str, Any] = {"name": "more", "prompt": "More of ${say}", "model": "local/echo"}
FULL = Path("/dev/full")
"""A file that takes nothing, as a full disk."""

needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full on this system")


@pytest.fixture
def make(batches_at: Make) -> Make:
    """Makes a project at a server whose batches take a while; nothing is submitted yet."""

    def start(rows: int = 10, *faults: dict[str, Any], **options: Any) -> BatchProject:
        project = batches_at(*faults, rows=rows, seconds=SECONDS, **options)
        project.batched(SAY, MORE)
        return project

    return start


@needs_full
@pytest.mark.parametrize("rows", [10, 9000 if SOAK else 300])
def test_a_disk_that_is_full_while_a_batch_is_written(
    make: Make, server: Server, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the file, or in the middle of it: nothing was sent, and the same command goes on."""
    project = make(rows)
    begin = Spool.__init__

    def full(spool: Spool, path: Path) -> None:
        begin(spool, path)
        spool._file.close()
        spool._file = FULL.open("wb", buffering=BUFFER if SOAK else BUFFER // 64)

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "__init__", full)
        with pytest.raises(StoreError, match="cannot be written: No space left") as refused:
            project.run()
    assert "free some space" in str(refused.value.remedy)
    assert project.account["files"] == project.account["posts"] == 0
    again = project.agac("run", "-a", "reviews")
    assert (again.code, again.err) == (0, "")
    assert "did not finish" not in again.out
    assert project.query("SELECT sum(tasks) FROM batch WHERE state = 'SUBMITTED'") == [(rows,)]
    project.to_the_end(seconds=SECONDS)
    assert (project.charged(), project.doubles()) == ((2, 2 * rows), 0)
    if rows == 10:
        project.assert_as_sync(server)


@needs_full
def test_a_disk_that_is_full_while_results_are_fetched(make: Make, server: Server) -> None:
    project = make()
    project.run()
    advance(project.server, SECONDS)
    [(intent,)] = project.query("SELECT intent FROM batch")
    part = project.root / ".agac/batches" / f"{intent}.output.part"
    for _ in range(2):
        part.symlink_to(FULL)
        is_explained(project.agac("batch", "retrieve"), "cannot be written", "No space left", "free some space")
        assert project.steps() == ["TERMINAL"]
    part.unlink(missing_ok=True)
    project.agac("batch", "retrieve", code=0)
    project.assert_ends_as_sync(server, (2, 20), seconds=SECONDS)


def test_a_folder_that_is_a_file(make: Make, server: Server) -> None:
    project = make()
    project.write(".agac/batches", "not a folder")
    is_explained(project.agac("run", "-a", "reviews"), "cannot be written")
    assert project.account["files"] == 0
    (project.root / ".agac/batches").unlink()
    project.run()
    project.assert_ends_as_sync(server, (2, 20), seconds=SECONDS)


@pytest.mark.parametrize(
    ("which", "what"), [(".jsonl", "changed"), (".jsonl", "lost"), (".output", "cut"), (".output", "lost")]
)
def test_files_that_somebody_spoiled_are_made_again(make: Make, server: Server, which: str, what: str) -> None:
    """A spool that is not what was written is enrolled again; results that are not what was fetched are fetched
    again."""
    project = make(5)
    project.provider(limits={"enqueued_tokens": 1_000_000})
    project.run()
    if which == ".output":
        advance(project.server, SECONDS)
        [(intent,)] = project.query("SELECT intent FROM batch")
        project.agac("batch", "retrieve", env={"AGAC_TEST_KILL": "journal.ingested.before:1"})
    else:
        with store(project) as database:
            reset = "provider_id = NULL, submitted_at = NULL, file_id = NULL, status = NULL, created_after = NULL"
            database.execute(f"UPDATE batch SET state = 'BUILT', {reset}")
        [(intent,)] = project.query("SELECT intent FROM batch")
        project.server.reset()
    path = project.root / ".agac/batches" / f"{intent}{which}"
    data = path.read_bytes()
    if what == "lost":
        path.unlink()
    else:
        path.write_bytes(data[:-10] if what == "cut" else data[:-10] + b"x" * 10)
    assert project.run().exit_code == 0
    project.to_the_end(seconds=SECONDS)
    project.assert_as_sync(server)
    assert project.query("SELECT count(*) FROM row WHERE state <> 1") == [(0,)]
    if which == ".output":
        assert (project.charged(), project.doubles()) == ((2, 10), 0)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("hours", [-30, 30])
def test_a_clock_that_was_wrong_when_it_was_submitted(
    make: Make, server: Server, hours: int, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ahead, and set back later; or behind, and set forward. Where the answer to the create is lost, it is found by its
    name, not by its time."""
    project = make(10, *([{"kind": "batch_drop_after", "first": 1}] if is_lost else []))
    with monkeypatch.context() as patch:
        later = Clocks(wall=lambda: time.time() + hours * HOUR)
        patch.setattr(import_module("agac.api.prepare"), "Clocks", lambda: later)
        project.run()
    assert is_lost or project.retrieve().exit_code == 75
    project.agac("batch", "status", code=0)
    project.agac("batch", "list", code=0)
    project.to_the_end(seconds=SECONDS)
    assert project.account["posts"] == 2
    assert project.query("SELECT count(*) FROM attempt WHERE duration < 0") == [(0,)]
    project.assert_as_sync(server, charged=(2, 20))
