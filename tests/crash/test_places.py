"""Where a project lies: a disk that is full for real, a folder that may not be written, locked, moved or copied."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.processes import impatient, is_explained, mounted, quiet_account
from support.project import ProjectFolder, Ran, fresh_command, to_its_end
from support.server import Server


@pytest.fixture
def small_disk(tmp_path: Path, server: Server) -> Iterator[ProjectFolder]:
    """A project on a disk of 4 MB."""
    place = tmp_path / "disk"
    if not mounted(place, "4m"):
        pytest.skip("no file system may be mounted here; test_disk.py fills disks by limits on files")
    try:
        project = ProjectFolder(place / "project")
        project.configure(server.base_url)
        yield project
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, capture_output=True)


def test_a_disk_that_fills_up_ends_the_run_and_loses_nothing(small_disk: ProjectFolder, server: Server) -> None:
    small_disk.rows({"id": f"r-{i}", "text": f"I love number {i}"} for i in range(4000))
    small_disk.workflow()
    ran = small_disk.agac("run", "-a", "reviews", "--concurrency", "8")
    is_explained(ran, "no space left", "free some space and run the same command again")
    stored = int(small_disk.query("SELECT count(*) FROM attempt")[0][0])
    lost = quiet_account(server)["charged"] - stored
    assert stored > 0
    assert lost <= 16
    assert not (small_disk.root / "output/reviews/results.jsonl").exists()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk.root.parent)], check=True, capture_output=True)
    again = small_disk.agac("run", "-a", "reviews", "--json")
    assert (again.code, again.json["rows"]["done"]) == (0, 4000), again.err
    assert again.json["invocation"]["calls"] == 4000 - stored
    assert len(small_disk.envelopes()) == 4000
    small_disk.assert_sound()


def test_a_backup_that_does_not_fit_leaves_nothing_behind(small_disk: ProjectFolder) -> None:
    small_disk.rows({"id": f"r-{i}", "text": f"I love number {i}"} for i in range(250))
    small_disk.workflow(telemetry={"file": False})
    assert small_disk.agac("run", "-a", "reviews").code == 0
    (small_disk.root / "ballast").write_bytes(b"x" * (_free(small_disk.root) - 60_000))
    is_explained(small_disk.agac("backup", "copy.db"))
    assert not list(small_disk.root.glob("copy.db*"))
    assert small_disk.agac("status").code == 0


def _free(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def as_nobody(project: ProjectFolder, *words: str) -> Ran:
    """The command as a user who owns nothing."""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    code = "import os, sys; os.setgid(65534); os.setuid(65534); os.execv(sys.executable, sys.argv[1:])"
    started = [sys.executable, "-c", code, *fresh_command(words)]
    return to_its_end(started, project.root)


@pytest.fixture
def foreign(project: ProjectFolder) -> Iterator[ProjectFolder]:
    """A finished project of another user; its folders can be looked into."""
    project.numbered(3)
    project.workflow()
    assert project.run().exit_code == 0
    folder, opened = project.root, []
    while folder != folder.parent and folder.stat().st_mode & 0o005 != 0o005:
        opened.append((folder, folder.stat().st_mode))
        folder.chmod(folder.stat().st_mode | 0o055)
        folder = folder.parent
    yield project
    for path, mode in opened:
        path.chmod(mode)


def test_a_folder_that_may_not_be_written_is_explained_and_can_be_read(foreign: ProjectFolder) -> None:
    if as_nobody(foreign, "version").code != 0:
        pytest.skip("Python itself cannot be read by others here")
    before = (foreign.root / ".agac/agac.db").read_bytes()
    refused = as_nobody(foreign, "run", "-a", "reviews")
    assert refused.code == 1, refused.err
    assert "cannot be opened for writing" in refused.err or "cannot be made" in refused.err
    assert "Traceback" not in refused.err
    status = as_nobody(foreign, "status")
    assert status.code == 0, status.err
    assert "reviews" in status.out
    assert (foreign.root / ".agac/agac.db").read_bytes() == before


def test_a_database_that_another_program_holds_is_explained(project: ProjectFolder, server: Server) -> None:
    """The program has it exclusively, so that not even its version can be read."""
    project.numbered(3)
    project.workflow()
    assert project.run().exit_code == 0
    code = (
        "import sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('PRAGMA locking_mode = EXCLUSIVE'); c.execute('BEGIN IMMEDIATE')\n"
        "c.execute('UPDATE run SET revision = revision'); print('held', flush=True); sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", code, str(project.root / ".agac/agac.db")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == b"held\n"
        ran = project.agac("run", "-a", "reviews", env=impatient())
        is_explained(ran, "was locked by another program", "run the same command again")
        is_explained(project.agac("status", env=impatient()), "was locked by another program")
        other.stdin.close()
    assert project.agac("run", "-a", "reviews").code == 0


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_project_in_another_place_asks_nothing_again(how: str, project: ProjectFolder, server: Server) -> None:
    project.numbered(5)
    project.workflow()
    assert project.run().exit_code == 0
    place = project.root.parent / "elsewhere" / "project"
    place.parent.mkdir()
    (shutil.move if how == "moved" else shutil.copytree)(project.root, place)
    there = ProjectFolder.__new__(ProjectFolder)
    there.root = place
    shutil.rmtree(place / "output")
    server.reset()
    report = there.run()
    assert (report.exit_code, report.invocation["calls"], server.account()["requests"]) == (0, 0, 0)
    assert len(there.envelopes()) == 5
    assert all(str(file).startswith(str(place)) for file in report.files)
    there.assert_sound()


def test_a_project_on_a_read_only_disk_can_be_read_and_copied(small_disk: ProjectFolder, tmp_path: Path) -> None:
    small_disk.numbered(5)
    small_disk.workflow()
    assert small_disk.run().exit_code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk.root.parent)], check=True, capture_output=True)
    copy = tmp_path / "copy.db"
    reading = (
        ["status"], ["runs"], ["inspect", "last"], ["why", "last", "r-1", "classify"], ["plan", "-a", "reviews"],
        ["gc", "--keep-runs", "1", "--dry-run"], ["backup", str(copy)],
    )  # fmt: skip
    for words in reading:
        ran = small_disk.agac(*words)
        assert ran.code == 0, (words, ran.err)
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("SELECT count(*) FROM result").fetchone() == (5,)
    is_explained(small_disk.agac("run", "-a", "reviews", "--fresh"), "read-only")
