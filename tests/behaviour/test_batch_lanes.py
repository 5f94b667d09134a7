"""What fits into a batch and into a lane: requests, bytes, enqueued tokens. What does not fit waits; nothing fails."""

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.batchrun import BATCHES, BatchProject, Make, advance
from support.server import Server

from agac.providers.known_providers import GENERIC_BATCHES

SECONDS = 100
ECHO: dict[str, Any] = {"name": "say", "prompt": "${text}", "model": "local/echo"}


@pytest.fixture
def make(batches_at: Make) -> Make:
    """Makes a project at a server with faults whose batches take a while; nothing is submitted yet."""

    def start(*faults: dict[str, Any], rows: int = 20, batch: dict[str, Any] | None = None, **provider: Any) -> Any:
        project = batches_at(*faults, rows=rows, seconds=SECONDS, **provider)
        project.batched(ECHO, defaults={"batch": batch or {}})
        return project

    return start


def sizes(project: BatchProject) -> list[int]:
    """The requests of each batch that was submitted."""
    return [tasks for (tasks,) in project.query("SELECT tasks FROM batch WHERE submitted_at IS NOT NULL ORDER BY id")]


@pytest.mark.parametrize(
    ("rows", "most", "of_provider", "expected"),
    [(25, 10, 50, [10, 10, 5]), (20, 10, 50, [10, 10]), (3, 1, 50, [1, 1, 1]), (7, None, 3, [3, 3, 1])],
)
def test_split_by_requests(
    make: Make, server: Server, rows: int, most: int | None, of_provider: int, expected: list[int]
) -> None:
    """Case 1."""
    project = make(rows=rows, batch={"max_requests": most} if most else {})
    project.provider(batch={**BATCHES, "max_requests": of_provider})
    project.run()
    assert sizes(project) == expected
    project.assert_ends_as_sync(server, (len(expected), rows), seconds=SECONDS)


@pytest.mark.parametrize("most", [600, 1000, 3000])
def test_split_by_bytes(make: Make, server: Server, most: int) -> None:
    project = make(rows=23, batch={"max_bytes": most})
    project.run()
    found = project.query("SELECT max(bytes), min(tasks), sum(tasks) FROM batch")
    assert found[0][0] <= most
    assert found[0][1:] == (min(sizes(project)), 23)
    assert len(sizes(project)) > 1
    for file, size in project.query("SELECT file, bytes FROM batch"):
        assert (project.root / ".agac/batches" / file).stat().st_size == size
    project.to_the_end(seconds=SECONDS)
    project.assert_as_sync(server)


def test_a_cap_that_fits_one_batch_makes_the_other_wait(make: Make, server: Server) -> None:
    """Case 31: refused once, learned, shown; it waits in the store until the first has ended."""
    project = make({"kind": "batch_enqueued_cap", "tokens": 600}, batch={"max_requests": 10})
    project.run()
    advance(project.server, 1)
    assert project.agac("batch", "retrieve").code in (0, 75)
    assert project.account["rejected"] == 1
    assert "enqueued" in str(project.notes()[1]).lower()
    assert project.query("SELECT count(*) FROM batch_lane WHERE cap <= 600") == [(1,)]
    assert "Batch 2: Not submitted: " in project.agac("batch", "list").out
    for arguments in (["run", "-a", "reviews"], ["batch", "retrieve"], ["run", "-a", "reviews"]):
        assert project.agac(*arguments).code in (0, 75)
    assert project.account["posts"] == 2
    advance(project.server, SECONDS)
    assert "Submitted batch" in project.agac("batch", "retrieve").out
    project.to_the_end(seconds=SECONDS)
    account = project.account
    assert (account["posts"], account["rejected"], account["charged"], account["duplicates"]) == (3, 1, 20, 0)
    assert sizes(project) == [10, 10]
    project.assert_as_sync(server)


def test_a_cap_that_is_known_is_never_met(make: Make, server: Server) -> None:
    """`limits.enqueued_tokens`: nothing is sent that the account would refuse."""
    project = make(limits={"enqueued_tokens": 300}, batch={"max_requests": 10})
    report = project.run()
    assert report.exit_code == 0
    assert len(sizes(project)) == 1
    waiting = report.invocation["waiting_batches"]
    assert waiting
    assert all("tokens are enqueued" in one["waits"] for one in waiting)
    assert "Not submitted: " in project.agac("batch", "list").out
    rounds = 0
    while project.query("SELECT count(*) FROM row WHERE state = 0") != [(0,)]:
        open_ = project.query("SELECT coalesce(sum(tokens), 0) FROM batch WHERE state = 'SUBMITTED'")
        assert open_[0][0] <= 300
        advance(project.server, SECONDS)
        assert project.retrieve().exit_code == 0
        rounds += 1
    assert rounds >= 2
    assert project.account["rejected"] == 0
    project.assert_as_sync(server)
    assert (project.charged()[1], project.doubles()) == (20, 0)


def test_a_batch_larger_than_a_cap_that_shows_is_cut(make: Make, server: Server) -> None:
    project = make({"kind": "batch_enqueued_cap", "tokens": 250})
    project.run()
    project.to_the_end(seconds=SECONDS, most=25)
    assert project.query("SELECT count(*) FROM batch WHERE state = 'NOT_CREATED'")[0][0] >= 1
    assert (project.charged()[1], project.doubles()) == (20, 0)
    project.assert_as_sync(server)


def test_waiting_submits_what_waits_by_itself(tmp_path: Path, server: Server) -> None:
    """A batch that is larger than the known cap is cut."""
    project = BatchProject(tmp_path / "project", server, limits={"enqueued_tokens": 200})
    project.numbered(20)
    project.batched(ECHO, defaults={"batch": {"poll_interval": 0.01}})
    report = project.run(wait=True)
    assert (report.exit_code, report.summary["complete"]) == (0, True)
    assert project.query("SELECT max(tokens) <= 200, sum(tasks) FROM batch") == [(1, 20)]
    assert len(sizes(project)) >= 2
    assert project.charged()[1] == 20
    project.assert_sound()


def test_lanes_do_not_wait_for_one_another(make: Make) -> None:
    project = make(limits={"enqueued_tokens": 150})
    other = {"name": "more", "prompt": "M ${text}", "model": "local/small", "needs": []}
    project.submit(ECHO, other, defaults={"batch": {"max_requests": 5}})
    submitted = project.query("SELECT DISTINCT model FROM batch WHERE state = 'SUBMITTED' ORDER BY 1")
    assert submitted == [("echo",), ("small",)]


def test_no_more_open_than_the_account_takes(make: Make, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Azure, which takes 500 files in a resource, whatever models they are for."""
    monkeypatch.setitem(GENERIC_BATCHES, "openai", replace(GENERIC_BATCHES["openai"], max_open=3))
    project = make(rows=10)
    other = {"name": "more", "prompt": "M ${text}", "model": "local/small", "needs": []}
    project.batched(ECHO, other, defaults={"batch": {"max_requests": 5}})
    report = project.run()
    assert sizes(project) == [5, 5, 5]
    [waiting] = report.invocation["waiting_batches"]
    assert waiting["waits"] == "3 batches are open, and the account takes no more"
    advance(project.server, SECONDS)
    assert project.retrieve().exit_code == 0
    assert sizes(project) == [5] * 4
    project.assert_ends_as_sync(server, (4, 20), seconds=SECONDS)


def test_a_second_run_of_a_workflow_waits_for_the_same_room(make: Make) -> None:
    """Room is the account's: what another workflow has enqueued counts."""
    project = make(limits={"enqueued_tokens": 250}, rows=10)
    project.workflow("others", stages=[ECHO | {"prompt": "other ${text}"}], defaults={"run_mode": "batch"})
    project.run()
    report = project.run("others")
    assert report.exit_code == 0
    assert project.query("SELECT sum(tokens) FROM batch WHERE state = 'SUBMITTED'")[0][0] <= 250
    assert report.invocation["waiting_batches"]
    project.to_the_end(seconds=SECONDS)
    assert project.run("others").exit_code == 0


@pytest.mark.parametrize("retry_after", [0, 2, 3000])
def test_a_create_that_is_limited_is_made_later(make: Make, retry_after: int) -> None:
    """After a long time by a later command: it waits in the store."""
    project = make({"kind": "batch_status", "status": 429, "retry_after": retry_after, "first": 1})
    report = project.run()
    assert report.exit_code == 0, report.stopped
    if retry_after == 3000:
        [one] = report.invocation["waiting_batches"]
        assert (bool(one["waits"]), project.account["posts"]) == (True, 1)
        assert (project.retrieve().exit_code, project.run().exit_code, project.account["posts"]) == (75, 0, 1)
        project.set_batch(try_at=1.0)
        assert project.retrieve().exit_code == 0
    assert (project.account["posts"], project.account["created"]) == (2, 1)


def test_a_shard_enqueues_its_part_of_what_the_account_takes(make: Make) -> None:
    project = make(limits={"enqueued_tokens": 300}, rows=60)
    agac_yml = (project.root / "agac.yml").read_text("utf-8")
    project.write("agac.yml", f"{agac_yml}\nremote: {{url: ../remote, trust: [ci]}}\n")
    whole = "SELECT sum(tokens) FROM batch WHERE submitted_at IS NOT NULL"
    project.run()
    assert 150 < project.query(whole)[0][0] <= 300
    project.agac("run", "-a", "reviews", "--yes", "--shard", "1/2", env={"AGAC_REMOTE_WRITER": "ci"}, code=0)
    with sqlite3.connect(project.root / ".agac/shards/1-of-2/agac.db") as database:
        assert 75 < database.execute(whole).fetchone()[0] <= 150
