"""Who on this host may read a project's state: its owner, whatever the umask is; outputs are as the umask says."""

import json
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from scripted_server import Step, scripted
from support.batchcase import BatchCase
from support.monitor import Watched
from support.processes import ended, wait_until
from support.project import ProjectFolder
from support.server import Server
from support.services import services
from support.shards import Sharded

from agac.core import state_files
from agac.data.files import create_temporary

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")

JUDGE = {"name": "judge", "prompt": "${text}", "output_schema": {"label": "a|b"}, "repair": 0}
OPEN = {"AGAC_TEST_UMASK": "0"}
"""Everything that a process makes may be read and written by all, unless it says otherwise."""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def wide(state: Path, away: int = 0o077) -> dict[str, str]:
    """What others may read or change in a folder that has something in it."""
    every = [state, *state.rglob("*")]
    assert len(every) > 1
    return {str(one): oct(mode(one)) for one in every if mode(one) & away and not one.is_symlink()}


def widen(state: Path) -> None:
    """As an older agac left it."""
    for one in (state, *state.rglob("*")):
        one.chmod(0o777 if one.is_dir() else 0o666)


def test_a_run_keeps_its_state_to_its_owner_and_its_outputs_follow_the_umask(project: ProjectFolder) -> None:
    project.workflow(
        rows=3, input={"sql": "SELECT * FROM input"}, output={"format": ["csv"], "to": "sqlite://out.db?table=t"}
    )
    project.agac("run", "-a", "reviews", "--model", "simulator/small", env=OPEN, code=0)
    project.agac("schema", "--write", env=OPEN, code=0)
    state = project.root / ".agac"
    assert {one.name for one in state.iterdir()} >= {"agac.db", "schemas"}
    assert wide(state) == {}
    folder = project.root / "output/reviews"
    assert {mode(one) for one in folder.iterdir()} == {0o666}
    assert (mode(folder), mode(project.root / "out.db")) == (0o777, 0o666 & ~0o022)
    project.agac("export", "--run", "last", "--to", "all.jsonl", env={"AGAC_TEST_UMASK": "27"}, code=0)
    assert mode(project.root / "all.jsonl") == 0o640
    project.agac("backup", "copy.db", env=OPEN, code=0)
    assert mode(project.root / "copy.db") == 0o600


@pytest.mark.parametrize("moment", ["commit:2", "committed:3", "os.rename:1"])
def test_a_killed_run_leaves_nothing_that_others_may_read(moment: str, project: ProjectFolder) -> None:
    project.workflow(rows=3)
    assert project.agac("run", "-a", "reviews", env=OPEN, kill=moment).code == -9
    assert wide(project.root / ".agac") == {}


def test_files_of_batches_are_their_owners_alone(tmp_path: Path, server: Server) -> None:
    case = BatchCase(tmp_path / "project", server)
    case.run(env=OPEN)
    state = case.project.root / ".agac"
    assert (state / "batches").is_dir()
    assert wide(state) == {}
    case.agac("batch", "retrieve", "--wait", env=OPEN)
    assert wide(state) == {}


@services
def test_shards_and_what_merges_them_are_their_owners_alone(tmp_path: Path, server: Server) -> None:
    project = Sharded(tmp_path / "project", server, of=2, env=OPEN)
    project.workflow(rows=4)
    project.shards()
    assert project.merge().code == 0
    state = project.root / ".agac"
    assert {one.name for one in (state / "shards").iterdir()} == {"1-of-2", "2-of-2", "merged"}
    assert wide(state) == {}
    remote = [one for one in (tmp_path / "remote").rglob("*") if one.is_file()]
    assert {mode(one) for one in remote} == {0o666}, "what a team shares is as the umask says"


def test_a_work_dir_and_standard_input_are_kept_to_their_owner(project: ProjectFolder, tmp_path: Path) -> None:
    project.numbered(3)
    work = tmp_path / "work"
    words = ("data/rows.csv", "out.jsonl", "--prompt", "${text}", "--work-dir", str(work))
    project.agac("process", *words, env=OPEN, code=0)
    assert wide(work / ".agac") == {}
    assert mode(project.root / "out.jsonl") == 0o666


def test_what_the_monitor_starts_writes_logs_for_its_owner(project: ProjectFolder) -> None:
    with scripted(Step("no"), Step('{"label": "a"}')) as server:
        project.configure(server.base_url)
        project.workflow(rows=1, stages=[JUDGE])
        project.agac("run", "-a", "reviews", env=OPEN)
        process = project.start("ui", "--no-open", "--json", "--write", env=OPEN)
        try:
            started = Watched(json.loads(process.stdout.readline())["url"], process)
            log = started.post("/run/1/retry", {"error": "SchemaMismatch"}).headers["location"]
            wait_until(lambda: "Results:" in started.get(log).text, "the end of the retry")
        finally:
            process.send_signal(15)
            ended(process, 20)
    assert list((project.root / ".agac/ui").iterdir())
    assert wide(project.root / ".agac") == {}


def test_an_older_state_is_narrowed_by_what_writes_and_left_by_what_reads(project: ProjectFolder) -> None:
    project.workflow(rows=2)
    project.agac("run", "-a", "reviews", code=0)
    state, outside = project.root / ".agac", project.write("data/other.txt", "mine")
    outside.chmod(0o666)
    (state / "link").symlink_to(outside)
    (state / "same").hardlink_to(project.write("data/shared.txt", "mine"))
    widen(state)
    before = wide(state)
    for words in (["status"], ["inspect", "last"], ["sql", "SELECT 1"]):
        project.agac(*words, code=0)
    assert before.items() <= wide(state).items()
    project.agac("run", "-a", "reviews", code=0)
    assert wide(state).keys() == {str(state / "same")}, "it has another name elsewhere"
    assert mode(outside) == 0o666


def test_a_state_that_is_a_link_is_used_and_its_modes_are_the_users_affair(
    project: ProjectFolder, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o755)
    (elsewhere / "own.txt").write_text("mine", "utf-8")
    (project.root / ".agac").symlink_to(elsewhere)
    project.workflow(rows=1)
    ran = project.agac("run", "-a", "reviews", env=OPEN, code=0)
    assert f"{project.root}/.agac is a link: other users of this host may read it" in ran.err
    assert mode(elsewhere) == 0o755
    assert mode(elsewhere / "agac.db") == 0o600
    elsewhere.chmod(0o700)
    assert "is a link" not in project.agac("run", "-a", "reviews", code=0).err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may give a folder away")
def test_a_state_of_another_user_is_left_as_it_is(project: ProjectFolder) -> None:
    project.workflow(rows=1)
    state = project.root / ".agac"
    state.mkdir()
    os.chown(state, 12345, 12345)
    state.chmod(0o755)
    ran = project.agac("run", "-a", "reviews", code=0)
    assert f"{state} belongs to another user" in ran.err
    assert mode(state) == 0o755


def test_a_group_may_share_a_state_that_says_so(project: ProjectFolder) -> None:
    state = project.root / ".agac"
    state.mkdir()
    state.chmod(0o2775)
    project.workflow(rows=2)
    project.agac("run", "-a", "reviews", env={"AGAC_TEST_UMASK": "77"}, code=0)
    project.agac("schema", "--write", env={"AGAC_TEST_UMASK": "77"}, code=0)
    assert wide(state, 0o007) == {}
    assert {mode(one) for one in state.iterdir() if one.is_file()} == {0o660}
    assert mode(state / "schemas") == 0o2770


def test_nothing_is_opened_to_narrow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To close a file would end the locks of a database that this process has open."""
    state = tmp_path / ".agac"
    state_files.make_folder(state)
    with closing(sqlite3.connect(state / "a.db")) as connection:
        connection.execute("CREATE TABLE t (x)")
        state.chmod(0o755)
        opened = list[str]()
        narrow: Callable[[Path], None] = state_files.make_folder
        monkeypatch.setattr(os, "open", lambda path, *_, **__: opened.append(path))
        narrow(state)
        monkeypatch.undo()
    assert opened == []
    assert mode(state / "a.db") == 0o600


def test_a_file_outside_of_any_state_is_as_the_umask_says(tmp_path: Path) -> None:
    assert state_files.file_mode(tmp_path / "results.jsonl") == 0o666
    assert state_files.file_mode(tmp_path / ".agac/ui/log") == 0o600
    assert state_files.state_folder(Path("p/.agac/ray/h/.agac/agac.db")) == Path("p/.agac")


def test_a_copy_of_the_state_is_its_owners_alone_from_the_start(tmp_path: Path) -> None:
    """Another user who opened it before its mode was taken from them would go on reading."""
    before = os.umask(0)
    try:
        temporary, descriptor = create_temporary(tmp_path / "copy.db", private=True)
        os.close(descriptor)
    finally:
        os.umask(before)
    assert mode(temporary) == 0o600
