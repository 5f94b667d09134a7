"""Shards at work at the same time, as real processes against one simulator: what they spend, send and stop together."""

import asyncio
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.processes import ended, killed, wait_until
from support.server import Faulty, Server
from support.services import starts_service
from support.shards import WRITER, Sharded

import agac
from agac.core.keys import shard_of
from agac.engine.sharding import shard_run

Make = Callable[..., Sharded]


@pytest.fixture
@starts_service
def make(tmp_path: Path, server: Server) -> Make:
    server.reset()
    return lambda server=server, **more: Sharded(tmp_path / "first", server, **more)


def start(project: Sharded, number: int, *words: str) -> Any:
    return project.start("run", "-a", "reviews", "--shard", f"{number}/{project.of}", *words, env=project.env)


@pytest.mark.parametrize("of", [2, 4])
def test_what_shards_spend_together_keeps_to_the_budget(of: int, make: Make, server: Server) -> None:
    project = make(of=of)
    project.workflow(rows=60, budget={"calls": 24})
    ran = [ended(one) for one in [start(project, number, "--concurrency", "4") for number in range(1, of + 1)]]
    assert 4 in {one.code for one in ran} <= {0, 4}, ran
    said = [one.out + one.err for one in ran if one.code == 4]
    assert all("the budget of the run is used up: the next call might exceed it" in text for text in said)
    assert server.account()["charged"] <= 24
    for number in range(1, of + 1):  # what was given back is spent, and no more
        assert project.shard(number).code in (0, 4)
    assert server.account()["charged"] == 24
    project.workflow(rows=60, budget={"calls": 60})
    project.shards(code=0)
    assert (server.account()["charged"], server.account()["duplicates"]) == (60, 0)


def test_the_budget_that_is_named_is_enough_beside_what_others_spent(make: Make, server: Server) -> None:
    project = make(of=2)
    project.workflow(rows=30, budget={"calls": 8})
    project.shards(code=4)
    ran = project.shard(2, code=4)
    said = "the budget of the run is used up: the next call might exceed it; other shards spent 8 calls of it"
    assert said in ran.err
    named = re.search(r"Resume with: agac run -a reviews --shard 2/2 (--budget calls=\d+)", ran.err)
    assert named is not None, ran.err
    shown = project.agac("status", "--shards", env=project.env).out
    assert f"Shard 2/2 is stopped ({said}). Go on with: agac run -a reviews --shard 2/2 {named[1]}\n" in shown
    assert "--shard 1/2 --budget calls=" in project.merge(code=75).err
    project.shard(2, *named[1].split(), code=0)
    assert server.account()["duplicates"] == 0


def test_a_shard_that_is_killed_keeps_what_it_may_have_spent(make: Make, faulty: Faulty) -> None:
    slow = faulty([], "--latency", "0.2")
    project = make(slow, of=2)
    project.workflow(rows=60, budget={"calls": 30})
    first = start(project, 1, "--concurrency", "2")
    wait_until(lambda: slow.account()["requests"] > 3, "calls", first)
    killed(first)
    for number in (2, 1, 2):
        assert project.shard(number, "--concurrency", "8").code == 4
    assert slow.account()["charged"] <= 30


def test_shards_share_the_rate_of_their_account(make: Make, server: Server) -> None:
    project = make(of=2)
    keys = yaml.safe_load((project.root / "agac.yml").read_text("utf-8"))
    (provider,) = keys["providers"].values()
    provider["limits"] = {"rpm": 1200}
    project.write("agac.yml", yaml.safe_dump(keys))
    rows = [{"id": f"r{n}", "text": f"row {n}"} for n in range(16)]
    project.workflow(rows=rows)
    most = max(sum(shard_of(row["id"], 2) == number for row in rows) for number in (1, 2))
    assert [ended(one).code for one in [start(project, number) for number in (1, 2)]] == [0, 0]
    account = server.account()
    took = account["last_request_at"] - account["first_request_at"]
    assert account["requests"] == 16
    assert took >= 0.9 * (most - 1) * 2 * 60 / 1200, "as if each had the account for itself"


def test_a_shard_that_fails_alike_from_the_start_stops_the_others(
    make: Make, faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = faulty([{"kind": "refusal", "match": "bad"}], "--latency", "0.1")
    project = make(refusing, of=2)
    texts = ["good", "bad", "good"]
    project.workflow(rows=[{"id": f"r{n}", "text": f"{texts[shard_of(f'r{n}', 2)]} {n}"} for n in range(1000)])
    monkeypatch.setattr(shard_run, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(shard_run, "EVERY", 0.05)
    for name, value in {**WRITER, "AGAC_SHARD": "2/2"}.items():
        monkeypatch.setenv(name, value)
    stopped = []

    async def run_first(_: object) -> None:
        while refusing.account()["requests"] < 1:
            await asyncio.sleep(0.01)
        stopped.append(other.submit(project.shard, 1))  # it may end later than what it stops

    options = agac.RunOptions(concurrency=1, yes=True)
    with ThreadPoolExecutor(1) as other:
        report = agac.run("reviews", options, project=project.root, progress=run_first)
    assert (report.stop, stopped[0].result().code) == ("loss", 1)
    assert (report.stopped or "").startswith("shard 1/2 stopped: 17 of the first 17 outcomes of stage 'classify'")
    assert report.rows.failed == 0
    told = json.loads(project.agac("status", "--shards", "--json", env=WRITER).out)["runs"][0]["shards"]
    assert [one["state"] for one in told] == ["stopped", "stopped"]
