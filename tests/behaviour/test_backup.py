"""A copy of the database that works, made at any time, whole or not at all."""

import os
import re
import shutil
import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from support.processes import kill_at, killed, listening, little_room, row_count, wait_until
from support.project import ProjectFolder, clean_environment
from support.server import Faulty, Server

import agac
from agac.store import gc as copying


@pytest.fixture
def finished(project: ProjectFolder) -> ProjectFolder:
    project.numbered(40)
    assert project.run(project.workflow()).exit_code == 0
    return project


def files_of(project: ProjectFolder) -> set[str]:
    """What stands beside agac.yml, for leftovers."""
    return {path.name for path in project.root.iterdir()}


def restored(out: str, folder: Path) -> None:
    """Runs the command that a backup printed to put its copy back."""
    (line,) = [line for line in out.split("\n") if "with: " in line]
    command = line.partition("with: ")[2]
    subprocess.run(["bash", "-c", command], cwd=folder, env=clean_environment(None), check=True)


def test_a_copy_that_is_put_back_asks_nothing_again(finished: ProjectFolder, server: Server) -> None:
    ran = finished.agac("backup", "copies of agac.db", code=0)
    copy = finished.root / "copies of agac.db"
    with closing(sqlite3.connect(f"file:{copy}?mode=ro&immutable=1", uri=True)) as alone:  # it needs nothing beside it
        assert alone.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert alone.execute("PRAGMA auto_vacuum").fetchall() == [(2,)], "space can be given back there too"
        assert alone.execute("PRAGMA application_id").fetchall() == finished.query("PRAGMA application_id")
    assert ran.out.startswith(f"'copies of agac.db': {copy.stat().st_size / 1e6:,.1f} MB\n".replace("'", ""))
    shutil.rmtree(finished.root / ".agac")
    (finished.root / ".agac").mkdir()
    shutil.rmtree(finished.root / "output")
    restored(ran.out, finished.root)
    server.reset()
    again = finished.run()
    assert (again.summary["run"], again.invocation["rows_unchanged"]) == (1, 40)
    assert len(finished.envelopes()) == 40
    assert server.account()["requests"] == 0
    finished.assert_sound()


def test_a_copy_of_a_run_at_work_is_of_a_killed_one_that_nobody_holds(project: ProjectFolder, faulty: Faulty) -> None:
    """Twenty answers are there, eight calls in flight: the copy has the twenty, and the run does not notice, nor that
    the copy is put to work elsewhere on the same machine."""
    server = project.asks(faulty([{"kind": "hang", "at": list(range(21, 29))}]))
    project.workflow(rows=60)
    process = listening(project.start("run", "-a", "reviews", "--concurrency", "8"))
    wait_until(lambda: server.account()["in_flight"] == 8 and row_count(project) >= 20, "its work", process)
    other = ProjectFolder(project.root.parent / "elsewhere")
    shutil.copytree(project.root, other.root, ignore=shutil.ignore_patterns(".agac"), dirs_exist_ok=True)
    (other.root / ".agac").mkdir()
    project.agac("backup", str(other.root / ".agac/agac.db"), "--json", code=0)
    assert agac.status(project=other.root).runs[0]["state"] == "killed"
    other.assert_sound()
    invocation = other.agac("run", "-a", "reviews", "--concurrency", "8", "--json", code=0).json["invocation"]
    assert [invocation[key] for key in ("rows_unchanged", "calls", "lost_calls_at_most")] == [20, 40, 16]
    other.assert_sound()
    assert project.query("SELECT holder <> '' FROM lease") == [(1,)]
    assert process.poll() is None
    killed(process)


def test_a_busy_run_does_not_keep_a_copy_from_being_made(
    finished: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody commits after every single page: the copy is not begun anew, and is of the moment when it began."""
    monkeypatch.setattr(copying, "STEP_PAGES", 1)
    (pages,) = finished.query("PRAGMA page_count")[0]
    steps = 0
    with closing(sqlite3.connect(finished.root / ".agac/agac.db", isolation_level=None)) as busy:

        def commit() -> None:
            nonlocal steps
            steps += 1
            assert steps <= pages
            busy.execute("INSERT INTO event (run_id, kind, at, body) VALUES (1, 'noise', 0, '{}')")
            busy.execute("UPDATE row SET state = 0")

        target = finished.root / "copy.db"
        target.touch()
        copying.copy_database(finished.root / ".agac/agac.db", target, commit)
    assert steps == pages
    with closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT count(*) FROM event WHERE kind = 'noise'").fetchall() == [(0,)]
        assert copy.execute("SELECT count(*) FROM row WHERE state = 1").fetchall() == [(40,)]


def test_what_was_written_after_the_copy_does_not_get_into_it_by_an_old_log(
    project: ProjectFolder, faulty: Faulty
) -> None:
    """A killed run leaves a write-ahead log: put back as printed, the copy is what it was."""
    server = project.asks(faulty([{"kind": "hang", "at": list(range(31, 39))}]))
    project.workflow(rows=60)
    assert project.run(limit=10).exit_code == 0
    ran = project.agac("backup", "copy.db")
    process = listening(project.start("run", "-a", "reviews", "--concurrency", "8"))
    wait_until(lambda: server.account()["in_flight"] == 8, "its work", process)
    killed(process)
    assert (project.root / ".agac/agac.db-wal").stat().st_size > 0
    restored(ran.out, project.root)
    assert row_count(project) == 10
    project.assert_sound()
    server.reset()
    assert project.run(limit=10).invocation["calls"] == 0


def test_nothing_is_overwritten_but_a_file_by_force(finished: ProjectFolder) -> None:
    root = finished.root
    finished.write("notes.txt", "mine")
    (root / "link.db").symlink_to(root / "notes.txt")
    os.link(root / ".agac/agac.db", root / "same.db")
    before = files_of(finished)
    for target, said, flags in (
        ("notes.txt", "notes.txt exists\n  Name another file, or replace it with --force.", [""]),
        ("data", "data is a folder\n  Name a file in it: ", ["", "--force"]),
        ("link.db", "link.db: is a link", ["", "--force"]),
        (".agac/agac.db", "is the database itself", ["", "--force"]),
        (".agac/agac.db-wal", "is the database itself", ["", "--force"]),
        ("same.db", "is the database itself", ["", "--force"]),
        ("copies/agac.db", "there is no folder", ["", "--force"]),
    ):
        for flag in flags:
            ran = finished.agac("backup", target, *filter(None, [flag]))
            assert (ran.code, ran.out) == (2, ""), (target, flag)
            assert said in ran.err
            assert files_of(finished) == before
    assert (root / "notes.txt").read_text("utf-8") == "mine"
    finished.assert_sound()
    (root / ".agac/agac.db").chmod(0o600)
    finished.agac("backup", "notes.txt", "--force", code=0)
    assert (root / "notes.txt").read_bytes().startswith(b"SQLite format 3\0")
    mode = stat.S_IMODE((root / "notes.txt").stat().st_mode)
    assert mode == 0o600, "who may read the database may read the copy"
    assert files_of(finished) == before


def test_a_project_without_a_database_says_so(project: ProjectFolder) -> None:
    ran = project.agac("backup", "copy.db", code=2)
    assert ran.err.startswith("error: nothing was run in this project yet")
    assert not (project.root / "copy.db").exists()
    (project.root / ".agac").mkdir()
    (project.root / ".agac/agac.db").touch()
    assert "agac.db is empty" in project.agac("backup", "copy.db").err
    assert files_of(project) == {"agac.yml", ".agac"}


def test_a_full_disk_and_a_damaged_database_leave_the_older_copy(finished: ProjectFolder) -> None:
    finished.write("copy.db", "older")
    before = files_of(finished)
    full = finished.agac("backup", "copy.db", "--force", env=little_room(4), code=1)
    assert re.search("no space left on the disk of .*copy.db", full.err)
    assert "Traceback" not in full.err
    file = finished.root / ".agac/agac.db"
    content = bytearray(file.read_bytes())
    (page,) = finished.query("SELECT rootpage FROM sqlite_master WHERE name = 'result_fingerprint'")[0]
    content[(page - 1) * 4096 : (page - 1) * 4096 + 200] = b"\xff" * 200
    file.write_bytes(content)
    damaged = finished.agac("backup", "copy.db", "--force", code=1)
    assert "agac.db is damaged" in damaged.err
    assert "no copy was made" in damaged.err
    assert files_of(finished) == before
    assert (finished.root / "copy.db").read_text("utf-8") == "older"


def test_too_little_space_is_said_before_anything_is_written(
    finished: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(finished.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(agac.AgacError, match=r"no space for .*copy.db: the copy needs 0\.\d MB, 0\.0 MB are free"):
        agac.backup(finished.root / "copy.db", project=finished.root)
    assert not (finished.root / "copy.db").exists()


@pytest.mark.parametrize("moment", ["statement:4", "statement:5", "os.rename:1"])
def test_a_kill_leaves_the_older_copy_and_the_next_one_cleans_up(moment: str, finished: ProjectFolder) -> None:
    finished.write("copy.db", "older")
    before = files_of(finished)
    assert finished.agac("backup", "copy.db", "--force", env=kill_at(moment)).code == -9
    assert (finished.root / "copy.db").read_text("utf-8") == "older"
    assert files_of(finished) > before
    finished.assert_sound()
    assert finished.agac("backup", "copy.db", "--force").code == 0
    assert files_of(finished) == before


def test_a_database_can_be_copied_before_it_is_brought_up_to_date(finished: ProjectFolder) -> None:
    with closing(sqlite3.connect(finished.root / ".agac/agac.db")) as connection, connection:
        connection.execute("PRAGMA user_version = 10")
    finished.agac("backup", "copy.db", code=0)
    assert (finished.root / "copy.db").exists()


def test_a_path_is_meant_from_the_current_folder(finished: ProjectFolder, tmp_path: Path) -> None:
    ran = finished.agac("--project-dir", str(finished.root), "backup", "copy.db", cwd=tmp_path, code=0)
    assert (tmp_path / "copy.db").is_file()
    shutil.copy(finished.root / ".agac/agac.db", tmp_path / "kept.db")
    restored(ran.out, tmp_path)
    finished.assert_sound()
