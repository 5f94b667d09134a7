"""A store that is lost, or was replaced by an older copy, is noticed before its answers are paid again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import ended, is_explained, listening, quiet_account, row_count, wait_until
from support.project import ProjectFolder
from support.server import Faulty, Server

SAY = [{"name": "say", "prompt": "${text}"}]
ECHO = {"model": "local/echo"}
STORE = ".agac/agac.db"
LOGS = ("summary.edited.json", "telemetry.edited.jsonl")


def workflow(project: ProjectFolder, prompt: str = "${text}", name: str = "reviews") -> str:
    return project.workflow(name, defaults=ECHO, stages=[{**SAY[0], "prompt": prompt}])


@pytest.fixture
def copied(project: ProjectFolder, server: Server) -> ProjectFolder:
    """A project with results of 4 rows, of which a copy of the store knows 2."""
    project.numbered(2)
    project.run(workflow(project))
    project.agac("backup", "copy.db", code=0)
    project.numbered(4)
    project.run()
    server.reset()
    return project


def remove(project: ProjectFolder) -> None:
    shutil.rmtree(project.root / ".agac")


def empty(project: ProjectFolder) -> None:
    (project.root / STORE).write_bytes(b"")


def put_back(project: ProjectFolder) -> None:
    shutil.copyfile(project.root / "copy.db", project.root / STORE)


HARMS: dict[str, Callable[[ProjectFolder], None]] = {"removed": remove, "emptied": empty, "older": put_back}


def mark(project: ProjectFolder) -> tuple[str, int]:
    told = project.output(file="summary.json")["store"]
    return told["id"], told["generation"]


@pytest.mark.parametrize("harm", HARMS)
def test_a_lost_store_stops_a_run_that_would_pay_again(harm: str, copied: ProjectFolder, server: Server) -> None:
    before = mark(copied)
    results = copied.output()
    shutil.copyfile(copied.root / STORE, copied.root / "whole.db")
    HARMS[harm](copied)
    calls, said = (2, "an older copy of the one") if harm == "older" else (4, "deleted, emptied or replaced")
    assert said in copied.agac("plan", "-a", "reviews", code=0).err
    for _ in range(2):  # it says so each time
        ran = copied.agac("run", "-a", "reviews", code=2)
        assert said in ran.err
        assert f"With this store {calls} calls would be made" in ran.err
        assert "--accept-store" in ran.err
        assert "--fresh" in ran.err
    copied.write("workflows/more/reviews.yml", "stages: []")  # of the same name: no store is told of, and none hidden
    assert copied.agac("doctor", code=0).out
    (copied.root / "workflows/more/reviews.yml").unlink()
    assert said in copied.agac("doctor", code=75).out
    assert server.account()["requests"] == 0
    # the choices: the store is put back
    shutil.copyfile(copied.root / STORE, copied.root / "harmed.db")
    shutil.copyfile(copied.root / "whole.db", copied.root / STORE)
    copied.agac("run", "-a", "reviews", code=0)
    assert (mark(copied), server.account()["requests"]) == (before, 0)
    # it is accepted, also where the run does not come to its end, and is then what results tell of
    shutil.copyfile(copied.root / "harmed.db", copied.root / STORE)
    ran = copied.agac("run", "-a", "reviews", "--accept-store", "--budget", "calls=1", "--concurrency", "1", code=4)
    assert [name for name in LOGS if name in ran.out + ran.err] == []
    copied.agac("run", "-a", "reviews", code=0)
    assert (server.account()["requests"], copied.output()) == (calls, results)
    assert (mark(copied)[0] == before[0]) == (harm == "older")
    kept = {file.name for file in (copied.root / "output/reviews").iterdir()}
    assert not kept & set(LOGS), "agac wrote them: they are not said to be edited"
    assert "summary" not in copied.agac("plan", "-a", "reviews", code=0).err


def test_an_interrupted_acceptance_is_remembered(copied: ProjectFolder, server: Server) -> None:
    remove(copied)
    assert copied.agac("run", "-a", "reviews", "--accept-store", kill="os.rename:1").code == -9
    copied.agac("run", "-a", "reviews", code=0)
    assert len(copied.envelopes()) == 4


def test_fresh_goes_on_with_a_lost_store(copied: ProjectFolder, server: Server) -> None:
    remove(copied)
    copied.agac("run", "-a", "reviews", "--fresh", code=0)
    copied.agac("run", "-a", "reviews", code=0)
    assert server.account()["requests"] == 4


def test_results_of_a_lost_store_that_others_replace_are_kept(copied: ProjectFolder) -> None:
    copied.write("output/reviews/results.json", "edited")
    copied.write("output/reviews/telemetry.jsonl", "edited")
    remove(copied)
    workflow(copied, "again ${text}")
    copied.agac("run", "-a", "reviews", "--accept-store", code=0)
    assert (copied.root / "output/reviews/results.edited.json").read_text() == "edited"
    assert len(copied.envelopes(file="results.edited.jsonl")) == 4
    assert [(copied.root / "output/reviews" / name).exists() for name in LOGS] == [False, True]


def test_a_lost_store_stops_a_retry_too(copied: ProjectFolder, server: Server) -> None:
    put_back(copied)
    ran = copied.agac("retry", "last", "--from", "say", "--yes", code=2)
    assert "`agac run -a reviews` with --accept-store" in ran.err
    assert server.account()["requests"] == 0
    copied.agac("run", "-a", "reviews", "--accept-store", code=0)
    copied.agac("retry", "last", "--from", "say", "--yes", code=0)


def test_a_store_that_lacks_nothing_is_no_alarm(copied: ProjectFolder, server: Server) -> None:
    copied.numbered(2)
    put_back(copied)
    copied.agac("run", "-a", "reviews", code=0)
    assert server.account()["requests"] == 0


def test_what_tells_of_no_loss_is_no_alarm(copied: ProjectFolder, server: Server, tmp_path: Path) -> None:
    shutil.copytree(copied.root, tmp_path / "checkout", ignore=shutil.ignore_patterns(".agac"))
    copied.agac("run", "-a", "reviews", cwd=tmp_path / "checkout", code=0)
    # results copied over those of a project that lost its own with its store: a cold cache
    remove(copied)
    shutil.rmtree(copied.root / "output")
    copied.agac("run", "-a", "reviews", code=0)
    shutil.rmtree(copied.root / "output/reviews")
    remove(copied)
    shutil.copytree(tmp_path / "checkout/output/reviews", copied.root / "output/reviews")
    copied.agac("run", "-a", "reviews", code=0)
    # previews, and the results of another workflow, or copied to another folder
    remove(copied)
    copied.agac("run", "-a", "reviews", "--limit", "1", code=0)
    assert "store" not in json.loads((copied.root / "output/reviews/preview/summary.json").read_text())
    remove(copied)
    copied.agac("run", "-a", "reviews", "--limit", "1", code=0)
    copied.agac("run", "-a", workflow(copied, name="other"), "--output", "output/reviews", code=0)
    shutil.copytree(copied.root / "output/reviews", copied.root / "output/third")
    copied.agac("run", "-a", "reviews", "--output", "output/third", code=0)
    assert server.account()["requests"] == 3 * 4 + 1 + 1 + 3


def test_runs_that_were_dropped_and_results_of_an_older_run_are_no_alarm(copied: ProjectFolder) -> None:
    workflow(copied, "again ${text}")
    copied.run()
    copied.agac("export", "--run", "1", code=0)
    copied.agac("gc", "--keep-runs", "1", code=0)
    copied.numbered(5)
    again = copied.agac("run", "-a", "reviews", code=0)
    assert "store" not in again.err, again.err
    assert len(copied.envelopes()) == 5


@pytest.mark.parametrize("harm", ["removed", "moved", "emptied", "replaced"])
def test_a_store_that_vanishes_under_a_run_stops_it(harm: str, project: ProjectFolder, faulty: Faulty) -> None:
    server, store = project.asks(faulty([], "--latency", "0.05")), project.root / STORE
    project.run(project.workflow(rows=2))
    project.agac("backup", "copy.db", code=0)
    project.numbered(400)
    process = listening(project.start("run", "-a", "reviews", "--concurrency", "8"))
    wait_until(lambda: row_count(project) >= 40, "some rows", process)
    if harm == "removed":
        shutil.rmtree(store.parent)
    elif harm == "moved":
        store.rename(store.with_suffix(".old"))
    elif harm == "emptied":
        store.write_bytes(b"")
    else:
        (project.root / "copy.db").replace(store)
    ran = ended(process)
    is_explained(ran, "was removed or replaced while this process worked with it", "`agac backup` makes them")
    assert quiet_account(server)["charged"] < 200
    assert len(project.envelopes()) == 2
