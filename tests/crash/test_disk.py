"""What a disk can do to a run: fill up, refuse, lose the end of a file, hold something else in our place."""

import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.processes import (
    ended,
    is_explained,
    kill_at,
    listening,
    little_room,
    mounted,
    quiet_account,
    row_count,
    wait_until,
)
from support.project import ProjectFolder
from support.server import Faulty, Server
from support.soak import few


def limit_files(pid: int, most: int) -> None:
    """From now on the process can make no file larger than `most` bytes: writing fails as on a full disk."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


Mount = Callable[[Path, int], Path]


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Mounts a disk of so many KB over a folder, for those who may."""
    with ExitStack() as stack:

        def mount_at(folder: Path, kilobytes: int) -> Path:
            if not mounted(folder, f"{kilobytes}k"):
                pytest.skip("no file system may be mounted here")
            stack.callback(subprocess.run, ["umount", "-l", folder], check=True)
            return folder

        yield mount_at


def leave(disk: Path, kilobytes: int) -> Path:
    """Fills a disk until so much is free; gives the file that does it."""
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - kilobytes * 1024)))
    return ballast


def answers(project: ProjectFolder) -> int:
    """Answers that are stored; none in a database that was not even made."""
    if project.query("PRAGMA user_version") == [(0,)]:
        return 0
    return int(project.query("SELECT count(*) FROM attempt")[0][0])


def database(project: ProjectFolder) -> Path:
    return project.root / ".agac/agac.db"


@pytest.mark.unmeasured
@pytest.mark.parametrize("pages", [1, 8, 32, 40, 64])
def test_a_full_disk_ends_the_run_with_a_clear_error_and_loses_nothing(
    pages: int, project: ProjectFolder, server: Server
) -> None:
    """From a database that cannot even be made to one that takes no answer."""
    project.numbered(600)
    project.workflow()
    ran = project.agac("run", "-a", "reviews", "--concurrency", "8", env=little_room(pages))
    is_explained(ran, "no space left on the disk of", "free some space and run the same command again")
    lost = quiet_account(server)["charged"] - answers(project)
    assert lost <= 16
    again = project.agac("run", "-a", "reviews", "--json", code=0)
    assert again.json["rows"]["done"] == 600
    assert lost <= again.json["invocation"]["lost_calls_at_most"] <= 16
    assert server.account()["duplicates"] <= lost
    project.assert_sound()


@pytest.mark.parametrize("kilobytes", few([60, 900, 4000], 3, first=1))
def test_a_full_disk_is_paid_for_once_however_often_the_command_is_repeated(
    kilobytes: int, project: ProjectFolder, server: Server, mount: Mount
) -> None:
    disk = mount(project.root / ".agac", 16_000)
    project.numbered(3000, more="x" * 200)
    project.workflow()
    assert project.agac("run", "-a", "reviews", "--limit", "1").code == 0
    server.reset()
    ballast = leave(disk, kilobytes)
    charged = set()
    for _ in range(3):
        is_explained(project.agac("run", "-a", "reviews", "--concurrency", "8"), "space left", "run the same command")
        charged.add(quiet_account(server)["charged"])
    ballast.unlink()
    (paid,) = charged
    lost = paid - (answers(project) - 1)
    assert (paid > 0) == (kilobytes > 1000)
    assert lost <= 16
    again = project.agac("run", "-a", "reviews", "--json", code=0)
    assert lost <= again.json["invocation"]["lost_calls_at_most"] <= 16
    project.assert_sound()


@pytest.mark.parametrize(
    ("place", "mode", "harm"),
    [
        ("output", "sync", "full"),
        ("output/reviews", "batch", "read-only"),
        ("tables", "sync", "full"),
        (".agac/batches", "batch", "full"),
        (".agac/batches", "batch", "read-only"),
    ],
)
def test_a_folder_that_takes_nothing_is_found_before_anything_is_paid(
    place: str, mode: str, harm: str, project: ProjectFolder, server: Server, mount: Mount
) -> None:
    project.configure(server.base_url, batch="openai")
    disk = mount(project.root / place, 40)
    project.numbered(3)
    project.workflow(defaults={"run_mode": mode}, output={"to": "sqlite://tables/out.db?table=t"})
    if harm == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for _ in range(2):
        ran = project.agac("run", "-a", "reviews")
        is_explained(ran, f"{disk}: cannot be written", "Nothing was sent")
        assert "may be billed" not in ran.err
    assert server.account()["requests"] == 0


def test_a_disk_that_refuses_in_the_middle_of_the_work_is_explained(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([], "--latency", "0.05")
    project.configure(server.base_url)
    project.numbered(400)
    project.workflow()
    process = listening(project.start("run", "-a", "reviews", "--concurrency", "8"))
    wait_until(lambda: row_count(project) >= 40, "some rows", process)
    limit_files(process.pid, 65_536)  # what it has to write lies beyond
    is_explained(ended(process), "agac.db refused to read or write", "space left", "run the same command again")
    lost = quiet_account(server)["charged"] - answers(project)
    assert lost <= 16
    project.assert_sound()
    again = project.agac("run", "-a", "reviews", "--concurrency", "8", "--json", code=0)
    assert lost <= again.json["invocation"]["lost_calls_at_most"] <= 16
    assert len(project.envelopes()) == 400
    assert server.account()["duplicates"] <= lost


@pytest.mark.parametrize("command", ["run", "export"])
def test_outputs_that_do_not_fit_replace_nothing_and_cost_nothing(
    command: str, project: ProjectFolder, server: Server
) -> None:
    project.rows({"id": f"r-{i}", "text": f"I love number {i}", "more": "x" * 4000} for i in range(1, 101))
    project.workflow(output={"include_input": True})
    assert project.run().exit_code == 0
    whole = (project.root / "output/reviews/results.jsonl").read_bytes()
    assert len(whole) > 400_000
    torn = project.write("output/reviews/results.jsonl", "what an older run left\n")
    server.reset()
    process = project.start(command, "-a", "reviews")
    limit_files(process.pid, 100_000)
    is_explained(ended(process), "results.jsonl: cannot be written: File too large", "then run `agac export`")
    assert torn.read_text() == "what an older run left\n"
    assert {path.name[:5] for path in torn.parent.iterdir()} == {"resul", "error", "summa", "telem"}
    assert project.agac(command, "-a", "reviews").code == 0
    assert torn.read_bytes() == whole
    assert server.account()["requests"] == 0


def test_a_file_where_the_state_should_be_and_a_folder_where_the_database_should_be_are_explained(
    project: ProjectFolder, server: Server
) -> None:
    project.numbered(5)
    project.workflow()
    in_the_way = project.write(".agac", "a file in the way")
    is_explained(project.agac("run", "-a", "reviews"), ".agac cannot be made", "a file stands there; move it away")
    in_the_way.unlink()
    database(project).mkdir(parents=True)
    is_explained(project.agac("run", "-a", "reviews"), "agac.db cannot be opened", "check that")
    assert server.account()["requests"] == 0


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "garbage": lambda content: b"this is no database, and never was one\n" * 500,
    "cut": lambda content: content[: len(content) // 8],
    # the head is whole, so that only the work itself meets the damage
    "scribbled over": lambda content: content[:8192] + bytes(range(256)) * ((len(content) - 8192) // 256),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_database_is_reported_with_the_remedy_and_left_alone(
    harm: str, project: ProjectFolder, server: Server
) -> None:
    project.numbered(300)
    project.workflow()
    assert project.run().exit_code == 0
    output = (project.root / "output/reviews/results.jsonl").read_bytes()
    before = HARMS[harm](database(project).read_bytes())
    database(project).write_bytes(before)
    server.reset()
    for command in (["run", "-a", "reviews"], ["status"], ["export", "-a", "reviews"]):
        is_explained(project.agac(*command), "agac.db is damaged: ", "restore a backup", f"mv {database(project)}")
    assert database(project).read_bytes() == before
    assert (project.root / "output/reviews/results.jsonl").read_bytes() == output
    assert server.account()["requests"] == 0
    database(project).rename(database(project).with_suffix(".damaged"))
    project.agac("run", "-a", "reviews", "--accept-store", code=0)
    assert (project.root / "output/reviews/results.jsonl").read_bytes() == output


@pytest.mark.parametrize("moment", [*(f"statement:{n}" for n in range(1, 41, 5)), "commit:1", "committed:1"])
def test_a_database_whose_making_was_killed_is_made_by_the_next_command(
    moment: str, project: ProjectFolder, server: Server
) -> None:
    project.numbered(3)
    project.workflow()
    assert (project.agac("run", "-a", "reviews", env=kill_at(moment)).code, project.run().exit_code) == (-9, 0)
    assert len(project.envelopes()) == 3
    assert server.account()["duplicates"] == 0
    assert (project.query("PRAGMA journal_mode"), project.query("PRAGMA auto_vacuum")) == ([("wal",)], [(2,)])
    project.assert_sound()


def test_a_power_cut_that_takes_the_end_of_the_log_costs_calls_but_no_row(
    project: ProjectFolder, server: Server, tmp_path: Path
) -> None:
    """What was not on the disk yet is asked again; what the log's torn end says is not believed."""
    project.numbered(300)
    project.workflow()
    assert project.agac("run", "-a", "reviews", "--concurrency", "8", env=kill_at("committed:14")).code == -9
    quiet_account(server)
    rows, logged = row_count(project), database(project).with_name("agac.db-wal").read_bytes()
    assert rows
    kept = shutil.copytree(project.root, tmp_path / "kept")
    for number, end in enumerate((0, 20, len(logged) // 3, len(logged) // 2 + 1, len(logged) - 1)):
        torn = ProjectFolder(Path(shutil.copytree(kept, tmp_path / f"torn-{number}")))
        shutil.copy(kept / "agac.yml", torn.root)
        torn.root.joinpath(".agac/agac.db-shm").unlink()
        torn.root.joinpath(".agac/agac.db-wal").write_bytes(logged[:end] + b"\x5a" * 3000)
        assert torn.run().exit_code == 0
        assert [e["id"] for e in torn.envelopes()] == [f"r-{i}" for i in range(1, 301)]
        torn.assert_sound()
