"""`agac status --shards` and the monitor's page of shards: how all shards are, and what to type next."""

import asyncio
import re
from html import unescape

import pytest
from support.monitor import monitor
from support.project import ProjectFolder
from support.server import Server
from support.services import services
from support.sharded import four_shards, leave
from support.shards import Sharded

import agac
from agac.core.types import Shard


def test_all_shards_of_the_newest_run_are_shown_with_the_next_command(project: ProjectFolder) -> None:
    four_shards(project)
    ran = project.agac("status", "--shards", "-a", "reviews")
    assert ran.out.startswith("reviews in 4 shards: 1 finished, 1 waiting, 1 stopped, 1 missing\n")
    assert re.search(r"3/4 +stopped +10 +9 +1 +0 +11 +\$0\.5000 +20\S+ +ci, process \d+ on ", ran.out)
    assert re.search(r"all +30 +27 +3 +0 +33 +\$1\.5000", ran.out)
    assert [line for line in ran.out.splitlines() if line.startswith("Shard ")] == [
        "Shard 2/4 is waiting (its batches). Go on with: agac batch retrieve --shard 2/4",
        "Shard 3/4 is stopped (the budget <b>is</b> used up). Go on with: agac run -a reviews --shard 3/4",
        "Shard 4/4 is missing. Go on with: agac run -a reviews --shard 4/4",
    ]
    report = project.agac("status", "--shards", "--json").json
    (run,) = report["runs"]
    assert (report["remote"], run["workflow"], run["usd"], run["next"]) == ("../remote", "reviews", 1.5, None)
    assert run["shards"][0]["state"] == "finished"
    assert run["shards"][0]["next"] is None
    assert report == agac.shard_status(project=project.root).as_json()


def test_shards_that_have_all_finished_are_to_be_merged_and_a_silent_one_is_dead(project: ProjectFolder) -> None:
    project.write("agac.yml", "remote: {url: ../remote, trust: [ci]}\n")
    for number in (1, 2):
        asyncio.run(leave(project.root, Shard(number, 2), simulated=True))
    ran = project.agac("status", "--shards")
    assert ran.out.endswith("All have finished. Write their results with: agac merge -a reviews\n\n")
    assert "simulated $1.0000" in ran.out
    asyncio.run(leave(project.root, Shard(2, 2), dies=True, ago=200))
    asyncio.run(leave(project.root, Shard(1, 2), ago=-1, complete=False))
    assert [one["state"] for one in agac.shard_status(project=project.root).runs[0]["shards"]] == ["waiting", "dead"]


def test_commands_have_the_flags_that_say_which_run_is_meant(project: ProjectFolder) -> None:
    project.write("agac.yml", "remote: {url: ../remote, trust: [ci]}\n")
    command = "agac run -a reviews --shard 1/2 --limit 30 --model local/x --concurrency 4 --budget usd=2"
    asyncio.run(leave(project.root, Shard(1, 2), command=command))
    (run,) = agac.shard_status(project=project.root).runs
    assert run["shards"][1]["next"] == command.replace("1/2", "2/2")
    asyncio.run(leave(project.root, Shard(2, 2)))
    (run,) = agac.shard_status(project=project.root).runs
    assert run["next"] == "agac merge -a reviews --limit 30 --model local/x"


def test_what_is_not_there_is_said(project: ProjectFolder) -> None:
    lack = project.agac("status", "--shards", code=2)
    assert "agac.yml names no remote" in lack.err
    with monitor(project) as started:
        assert "agac.yml names no remote. Write remote: {url:" in text_of(started.get("/shards").text)
    project.write("agac.yml", "remote: {url: ../remote, trust: [ci]}\n")
    assert project.agac("status", "--shards").out.endswith("Start with: agac run -a WORKFLOW --shard 1/4\n")
    with pytest.raises(agac.UsageError, match=r"no run of workflow 'reviews' has shards in \.\./remote"):
        agac.shard_status("reviews", project=project.root)
    assert "Leave out 3, or --shards" in project.agac("status", "3", "--shards", code=2).err


def text_of(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_the_monitor_has_a_page_of_shards(project: ProjectFolder) -> None:
    four_shards(project)
    with monitor(project) as started:
        page = started.get("/shards").text
        assert "<b>is</b>" not in page, "what others wrote is text"
        assert "reviews in 4 shards 1 finished , 1 waiting , 1 stopped , 1 missing" in text_of(page)
        assert "agac run -a reviews --shard 3/4 Copy" in text_of(page)
        assert 'href="/shards"' in started.get("/").text


def test_a_shard_that_waits_for_a_stage_named_like_batches_is_run_again(project: ProjectFolder) -> None:
    project.write("agac.yml", "remote: {url: ../remote, trust: [ci]}\n")
    waits = "rows of shard 2/2 for the groups of stage 'batches'"
    asyncio.run(leave(project.root, Shard(1, 2), complete=False, waits=waits))
    first, _ = project.agac("status", "--shards", "--json", code=0).json["runs"][0]["shards"]
    assert (first["state"], first["next"]) == ("waiting", "agac run -a reviews --shard 1/2")


@services
def test_status_tells_of_shards_that_ran_here_and_of_what_was_merged(project: ProjectFolder, server: Server) -> None:
    sharded = Sharded(project.root, server, of=2)
    sharded.workflow(rows=6)
    sharded.shard(1)
    (one,) = agac.status(project=project.root).sharded
    half = one["rows"]["total"]
    assert (one["shards"], one["merged"]) == (["1/2"], None)
    told = f"reviews was run in 2 shards (1 of them here: 1/2): {half} row"
    ran = project.agac("status")
    assert (ran.out.startswith(told), "agac status --shards -a reviews" in ran.out) == (True, True)
    sharded.shard(2)
    assert sharded.merge().code == 0
    ran = project.agac("status")
    assert ran.out == (
        "reviews was run in 2 shards (all here): 6 rows, 6 done\n  Merged into output/reviews: 6 rows, 6 done\n"
    )
    assert "was run in this project yet" not in ran.out
    assert project.agac("status", "--json").json["sharded"][0]["merged"]["rows"]["done"] == 6
