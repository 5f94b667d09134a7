"""Batches from the command line: submitted, followed, taken, ended, and what each command says and ends with."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.batchrun import advance
from support.project import SENTIMENT, ProjectFolder, Ran
from support.server import Faulty, Server

import agac
from agac.api.watched_run import RowCount, WatchedRun
from agac.store.batches import BatchCount

THREE: list[dict[str, Any]] = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT, "run_mode": "batch"},
    {"name": "reply", "prompt": "Answer ${text}, which is ${classify.sentiment}"},
    {"name": "judge", "prompt": "Judge ${text}: ${reply}", "run_mode": "batch"},
]
PRICES = {"small": {"input": 2.0, "output": 8.0, "batch": 0.5}}


@pytest.fixture
def slow(tmp_path: Path, faulty: Faulty) -> Server:
    """A provider whose batches take a hundred seconds of its own clock, which stands still."""
    return faulty([], "--batch-seconds", "100")


@pytest.fixture
def shop(tmp_path: Path, slow: Server) -> ProjectFolder:
    """A project whose batches hold four requests each, of five rows."""
    project = ProjectFolder(tmp_path / "shop")
    project.configure(slow.base_url, batch="openai", prices=PRICES)
    project.numbered(5)
    project.workflow(stages=THREE, defaults={"max_tokens": 200, "batch": {"max_requests": 4}})
    return project


def lines_with(ran: Ran, start: str) -> list[str]:
    return [line for line in ran.out.split("\n") if line.startswith(start)]


def test_run_submits_says_so_and_ends(shop: ProjectFolder, slow: Server) -> None:
    ran = shop.agac("run", "-a", "reviews")
    assert (ran.code, ran.err) == (0, "")
    first, second = lines_with(ran, "Submitted batch ")
    ids = [batch["provider_id"] for batch in shop.agac("batch", "list", "--json").json["batches"]]
    assert first.startswith(f"Submitted batch {ids[0]}: 4 requests, 1 of 2, local/small, up to $")
    assert second.startswith(f"Submitted batch {ids[1]}: 1 request, 2 of 2, local/small, up to $")
    assert first.endswith(" at batch price")
    assert ran.out.endswith(
        "No row is finished yet. `agac batch status` shows progress, `agac batch retrieve` collects results; "
        "`agac run -a reviews --wait` waits until every stage is done.\n"
    )
    assert "Open: " not in ran.out, "the rows wait for no stage that was left out"
    account = slow.account()["batches"]
    assert (account["created"], account["charged"], (shop.root / "output").exists()) == (2, 0, False)
    early = shop.agac("batch", "retrieve")
    assert (early.code, early.out) == (75, "")
    assert early.err == "Nothing is ready yet: 2 batches are open, with 0 of 5 requests done\n"
    early = shop.agac("batch", "retrieve", "--json")
    assert (early.code, early.json["ready"], early.json["exit_code"], len(early.json["batches"])) == (75, False, 75, 2)
    early = shop.agac("batch", "wait", "--timeout", "0s", code=75)
    assert len(lines_with(early, "Batch job status: ")) == 2


def test_status_follows_and_keeps_what_the_provider_says(shop: ProjectFolder, slow: Server) -> None:
    shop.agac("run", "-a", "reviews")
    advance(slow, 60)
    (one, two) = shop.agac("batch", "status", "--json").json["batches"]
    assert (one["status"], one["step"]) == ("in_progress", "SUBMITTED")
    assert 0 < one["done"] < 4
    assert shop.query("SELECT status, done FROM batch WHERE id = 1") == [("in_progress", one["done"])]
    advance(slow, 60)
    for named in ("1", one["provider_id"]):
        ran = shop.agac("batch", "status", "--batch-id", named)
        assert ran.out.startswith("Batch job status: completed\nBatch 1 (")
        assert "\nRequests: 4 done, 0 failed of 4\n" in ran.out
    shop.agac("batch", "wait", two["provider_id"], code=0)
    assert shop.query("SELECT DISTINCT state FROM batch") == [("SUBMITTED",)], "looking takes nothing"


def test_a_batch_whose_results_are_gone_waits_for_a_decision(tmp_path: Path, faulty: Faulty) -> None:
    server = faulty([{"kind": "batch_gone", "at": [1]}])
    project = ProjectFolder(tmp_path / "gone")
    project.configure(server.base_url, batch={"api": "openai", "results_kept": 0.001}, prices=PRICES)
    project.numbered(6)
    project.workflow(stages=THREE[:1], defaults={"max_tokens": 200, "batch": {"max_requests": 3}})
    project.agac("run", "-a", "reviews", code=0)
    for command in (["batch", "retrieve"], ["run", "-a", "reviews"]):
        ran = project.agac(*command)
        assert ran.code == 75, "the other batch went on, this one waits"
        assert "Batch 1 (batch_" in ran.err
        assert ") needs your decision" in ran.err
        assert "with: agac doctor --resubmit --batch-id 1\n" in ran.err
    assert ") needs your decision" in project.agac("--quiet", "batch", "retrieve").err
    assert "Batch job status: needs a decision\n" in project.agac("batch", "status").out
    assert "agac doctor --resubmit --batch-id 1" in project.agac("doctor", code=75).out
    wrong = project.agac("doctor", "--resubmit", "--batch-id", "2")
    assert (wrong.code, wrong.out) == (2, "")
    assert project.agac("doctor", "--resubmit", code=0).out.startswith("did: ")
    project.agac("run", "-a", "reviews", "--wait", code=0)
    assert [one["ok"] for one in project.envelopes()] == [True] * 6


def test_a_row_in_a_batch_is_shown_with_its_batch(shop: ProjectFolder) -> None:
    shop.agac("run", "-a", "reviews")
    (line, *_) = agac.batch_list(project=shop.root).batches
    why, inspect = shop.agac("why", "last", "r-1", "classify"), shop.agac("inspect", "last", "r-1")
    told = f"in batch 1 ({line.batch.provider_id}) of run 1, submitted "
    assert f"\n{told}" in why.out
    assert "\noutcome: none yet\n" in why.out
    assert f"\n  {told}" in inspect.out
    report = agac.why("last", "r-1", "classify", project=shop.root).as_json()
    (asked,) = shop.query("SELECT lower(hex(fingerprint)) FROM batch_task WHERE batch_id = 1 AND place = 0")
    assert (report["fingerprint"], report["in_batch"]["batch"]) == (asked[0], 1)
    (row,) = agac.inspect("last", "r-1", project=shop.root).rows or ()
    assert [[one["batch"] for one in stage["in_batches"]] for stage in row["stages"]] == [[1], [], []]
    shop.workflow(stages=[THREE[0]], defaults={"max_tokens": 200, "batch": {"max_requests": 4}})
    ran = shop.agac("run", "-a", "reviews")
    assert (
        "\nRows wait for batches 1, 2 of an earlier run, which have the same requests (`agac batch list`). " in ran.out
    )
    assert "Open: " not in ran.out
    assert "\nwaits for the same request in batch 1 (" in shop.agac("why", "last", "r-1", "classify").out


def test_who_watches_sees_how_the_batches_stand(shop: ProjectFolder, slow: Server) -> None:
    shop.workflow(stages=THREE[:1], defaults={"max_tokens": 200, "batch": {"max_requests": 4, "poll_interval": "0.2s"}})
    seen: list[tuple[BatchCount, ...]] = []

    async def watch(watched: WatchedRun) -> None:
        while not seen:
            await asyncio.sleep(0.02)
            batches = watched.snapshot().batches
            seen.extend([batches] if sum(one.batches for one in batches if one.status != "not submitted") == 2 else [])
        assert [stage.total for stage in watched.snapshot().stages] == [RowCount(5, exact=True)]
        await asyncio.to_thread(advance, slow, 200)

    assert agac.run("reviews", agac.RunOptions(wait=True), project=shop.root, progress=watch).exit_code == 0
    assert {one.stage for one in seen[0]} == {"classify"}
    assert sum(one.requests for one in seen[0]) == 5


def test_the_embedded_simulator_remembers_its_batches(tmp_path: Path) -> None:
    """Of two workflows in one command, taken one after the other from a folder of the project."""
    project = ProjectFolder(tmp_path / "embedded")
    project.numbered(3)
    project.workflow()
    project.workflow("others", stages=[{"name": "say", "prompt": "Opinion: ${text}"}])
    deep = project.root / "a/b"
    deep.mkdir(parents=True)
    project.agac("run", "-a", "reviews", "-a", "others", "--run-mode", "batch", code=0)
    named = [agac.batch_list(name, project=project.root).batches[0].batch for name in ("reviews", "others")]
    assert [batch.id for batch in named] == [1, 2]
    assert "Batch job status: completed\n" in project.agac("batch", "status", cwd=deep).out
    project.agac("batch", "retrieve", cwd=deep, code=0)
    project.agac("batch", "retrieve", "--batch-id", str(named[0].provider_id), cwd=deep, code=0)
    for name in ("reviews", "others"):
        assert [one["ok"] for one in project.envelopes(name)] == [True] * 3
    project.agac("doctor", code=0)
