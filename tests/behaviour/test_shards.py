"""Runs in shards: what all of them come to together is what one run comes to."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.project import SENTIMENT
from support.server import Server
from support.services import services, starts_service
from support.shards import FILES, Sharded

import agac
from agac.core.errors import LeaseLost
from agac.core.keys import shard_of
from agac.engine.sharding import row_packs, shard_lease, shard_run
from agac.engine.sharding.folder import ShardFolder

Make = Callable[..., Sharded]


@pytest.fixture
@starts_service
def make(tmp_path: Path, server: Server) -> Make:
    server.reset()
    return lambda name="first", **more: Sharded(tmp_path / name, server, **more)


def test_shards_together_are_one_run(make: Make, server: Server) -> None:
    project = make()
    project.workflow(rows=20)
    whole = project.unsharded()
    server.reset()
    project.shards(code=0)
    assert server.account()["requests"] == 20
    assert not (project.root / "output/reviews").exists()
    merged = project.merge(code=0)
    assert "Merged 3 shards of reviews: 20 done" in merged.out
    assert project.taken() == whole
    stores = sorted(one.name for one in (project.root / ".agac/shards").iterdir())
    assert stores == ["1-of-3", "2-of-3", "3-of-3", "merged"]
    project.shards(code=0)
    project.merge(code=0)
    assert server.account()["requests"] == 20
    assert project.taken() == whole
    assert "shard 1/3 of all rows" in project.agac("status", "last", "--shard", "1/3").out


def with_everything(project: Sharded, **more: Any) -> None:
    """Failed rows, ids that come again, and filtered rows."""
    rows = [{"id": f"r{n % 17}", "text": f"text {n}", "n": str(n % 4)} for n in range(40)]
    project.rows([*rows, {"id": "", "text": "no id", "n": "1"}, {"id": "r3#2", "text": "named alike", "n": "2"}])
    project.workflow(**{
        "stages": [{"name": "classify", "when": 'n != "3"', "otherwise": "drop", "prompt": "Review: ${text}"}],
        **more,
    })  # fmt: skip


@pytest.mark.parametrize("policy", ["error", "first", "last", "suffix"])
def test_ids_that_come_again_end_as_in_one_run(make: Make, policy: str) -> None:
    project = make()
    with_everything(project, input={"on_duplicate_id": policy}, output={"dir": "output/reviews", "include_input": True})
    whole = project.unsharded(names=(*FILES, "filtered.jsonl"))
    project.shards()
    assert project.merge().code == 3
    assert project.taken(*whole) == whole


def test_tables_have_the_columns_of_all_shards(make: Make) -> None:
    project = make()
    output = {"format": ["csv", "parquet"], "merge": "extend", "dir": "output/reviews"}
    with_everything(project, input={"on_duplicate_id": "suffix"}, output=output)
    names = (*FILES, "filtered.jsonl", "results.csv", "results.parquet")
    whole = project.unsharded(names=names)
    project.shards()
    assert project.merge().code == 3
    assert project.taken(*whole) == whole


def test_children_stand_where_their_rows_do(make: Make) -> None:
    project = make()
    rows = [{"id": f"r{n}", "items": [f"i{k}" for k in range(n % 4)]} for n in range(30)]
    rows[4]["items"] = rows[5]["items"] = "none"
    project.rows(rows, "data/rows.jsonl")
    stages = [
        {"name": "first", "prompt": "${id}", "output_schema": SENTIMENT},
        {"name": "say", "needs": "first", "explode": "items", "prompt": "${id} ${item} ${first.sentiment}"},
        {"name": "keep", "needs": "say", "when": "index != 1", "otherwise": "drop", "prompt": "${say}"},
    ]  # fmt: skip
    project.workflow(path="data/rows.jsonl", stages=stages, output={"dir": "output/reviews", "format": "csv"})
    names = (*FILES, "filtered.jsonl", "results.csv")
    whole = project.unsharded(names=names)
    assert b'"say"' not in whole["filtered.jsonl"]
    assert whole["filtered.jsonl"].count(b"\n") > 10
    assert whole["errors.jsonl"]
    project.shards()
    assert project.merge().code == 3
    assert project.taken(*whole) == whole


def test_packs_are_merged_a_page_at_a_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small packs and pages: their borders move nothing."""
    project = make(of=4)
    project.workflow(rows=60)
    whole = project.unsharded()
    monkeypatch.setattr(row_packs, "FULL_BYTES", 300)
    monkeypatch.setattr(row_packs, "LEAST_BYTES", 300)
    monkeypatch.setattr(row_packs, "PAGE", 7)
    for name, value in project.env.items():
        monkeypatch.setenv(name, value)
    for number in range(1, 5):
        monkeypatch.setenv("AGAC_SHARD", f"{number}/4")
        assert project.run().exit_code == 0
    monkeypatch.delenv("AGAC_SHARD")
    assert len(list((project.root.parent / "remote").rglob("rows/*.pack"))) > 8
    report = agac.merge("reviews", project=project.root)
    assert (report.exit_code, report.shards, report.summary["rows"]["done"]) == (0, 4, 60)
    assert project.taken() == whole


def test_a_summary_adds_up_those_of_the_shards(make: Make) -> None:
    project = make()
    with_everything(project)
    whole = json.loads(project.unsharded(names=("summary.json",))["summary.json"])
    project.shards()
    told = project.merge("--json").json
    assert told["shards"] == 3
    for key in ("rows", "tasks", "levels", "complete", "input", "selection", "output", "workflow"):
        assert told[key] == whole[key], key
    assert {key: told["calls"][key] for key in ("count", "input_tokens", "cost_usd")} == {
        key: whole["calls"][key] for key in ("count", "input_tokens", "cost_usd")
    }
    errors = [{(one["type"], one["rows"]) for one in summary["errors"]} for summary in (told, whole)]
    assert errors[0] == errors[1]
    (stage,) = told["stages"]
    assert (stage["done"], stage["dropped"]) == tuple(whole["stages"][0][key] for key in ("done", "dropped"))
    assert stage["timing_ms"]["duration"]["p50"] is None
    assert stage["timing_ms"]["duration"]["count"] == whole["stages"][0]["timing_ms"]["duration"]["count"]


def test_rows_that_come_move_no_row(make: Make, server: Server) -> None:
    project = make()
    project.workflow(rows=12)
    project.shards(code=0)
    server.reset()
    project.workflow(rows=20)
    project.shards(code=0)
    assert server.account()["requests"] == 8
    project.merge(code=0)
    files = project.taken()
    assert files == project.unsharded()


def test_merging_says_all_that_is_in_the_way(make: Make) -> None:
    project = make(of=4)
    project.workflow(rows=12)
    assert "reviews was never run in shards" in project.merge(code=2).err
    project.shard(1, code=0)
    project.workflow(rows=13)
    project.shard(2, code=0)
    project.shard(3, code=0)
    refused = project.merge(code=75).err
    other = "read another input (12 rows) than shard 3/4, which ended last (13)"
    assert f"shard 1/4 {other}; shard 4/4 has not been run" in refused
    shown = project.agac("status", "--shards", env=project.env).out
    assert f"Shard 1/4 is waiting ({other}). Go on with: agac run -a reviews --shard 1/4" in shown
    assert "agac run -a reviews --shard 1/4" in refused
    project.workflow(rows=13, stages=[{"name": "classify", "prompt": "Other: ${text}"}])
    assert "shard 3/4 ran another version of the workflow; shard 4/4 has not been run" in project.merge(code=75).err
    project.shards(code=0)
    project.merge(code=0)
    project.of = 2
    project.shards(code=0)
    assert "Add --of N" in project.merge(code=2).err
    project.merge("--of", "2", code=0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fresh"], "--fresh would ask again what other shards have"),
        (["--shard", "4/3"], "4/3 names no shard"),
        (["--shard", ""], "'' names no shard"),
    ],
)
def test_what_no_shard_can_do_is_refused(make: Make, words: list[str], said: str) -> None:
    project = make()
    project.workflow(rows=3)
    shard = [] if "--shard" in words else ["--shard", "1/3"]
    refused = project.agac("run", "-a", "reviews", *shard, *words, env=project.env, code=2)
    assert said in refused.err


def test_a_shard_says_which_it_is_and_what_comes_next(make: Make) -> None:
    project = make()
    project.workflow(rows=6)
    for ran in (project.shard(1), project.shard(1, command="status")):
        assert "once they are complete: agac merge -a reviews" in ran.out
        assert "agac export" not in ran.out
    limited = project.shard(2, "--limit", "4", "--model", "local/echo", "--concurrency", "2").out
    assert "once they are complete: agac merge -a reviews --limit 4 --model local/echo\n" in limited
    again = project.shard(1)
    assert "reviews, shard 1/3, run 1: " in again.out
    assert "are paid again" not in again.err


def test_answers_that_stay_on_the_machine_are_told(make: Make) -> None:
    project = make()
    project.workflow(rows=6)
    text = (project.root / "agac.yml").read_text("utf-8")
    (url,) = (line.split()[1] for line in text.splitlines() if "base_url" in line)
    project.write("agac.yml", text.replace(url, "${SERVER}"))
    assert project.shard(1, env={"SERVER": url}).err.count("are paid again if its disk is lost") == 1


def test_a_pack_of_answers_that_cannot_be_used_is_told(make: Make, server: Server) -> None:
    project = make(of=2)
    project.workflow(rows=8)
    project.shard(1, code=0)
    (pack,) = (project.root.parent / "remote/v1/ci").glob("*.pack")
    pack.unlink()
    shutil.rmtree(project.root / ".agac")
    assert f"{pack.name}: left out: " in project.shard(1, code=0).err


def test_who_was_taken_over_at_its_end_leaves_no_manifest(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make(of=2)
    project.workflow(rows=6)

    async def asleep(_: Any, __: Any, ___: Any, folder: ShardFolder, ____: int) -> dict[str, tuple[str, ...]]:
        number, _ = await folder.last("lease/1-of-2")
        await folder.create(f"lease/1-of-2/{number + 1:010d}", b"another machine")
        monkeypatch.setattr(shard_lease, "SURE_SECONDS", -1.0)
        return {}

    monkeypatch.setattr(shard_run, "put_rows", asleep)
    for name, value in {**project.env, "AGAC_SHARD": "1/2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LeaseLost):
        project.run()
    assert not [*(project.root.parent / "remote").rglob("ended/1-of-2/*")]


def test_stages_and_jobs_that_see_all_rows_are_refused(make: Make) -> None:
    project = make()
    project.workflow(rows=3, stages=[{"name": "one", "dedupe": "text"}, {"name": "say", "prompt": "${text}"}])
    assert "stage 'one' compares all rows" in project.shard(1, code=2).err
    job = ["process", "data/rows.csv", "out.jsonl", "--shard", "1/3", "--prompt", "${text}", "--yes"]
    assert "row runs have none" in project.agac(*job, env=project.env, code=2).err


def test_what_a_shard_says_is_about_its_own_store(make: Make) -> None:
    project = make(of=1)
    project.rows([{"id": f"r-{n}"} for n in range(4)] + [{"id": "r", "text": "x"}], "data/rows.jsonl")
    project.workflow(path="data/rows.jsonl")
    ran = project.shard(1, "--max-errors", "1", code=4)
    assert "Finished rows are stored. Fix the failures (`agac --shard 1/1 inspect 1`)" in ran.err
    assert project.agac("--shard", "1/1", "inspect", "1", "r-1", code=0).out


def test_a_remote_and_a_writer_are_needed(make: Make) -> None:
    project = make()
    project.workflow(rows=3)
    assert "AGAC_REMOTE_WRITER is not set" in project.agac("run", "-a", "reviews", "--shard", "1/3", code=2).err
    project.configure(None)
    refused = project.shard(1, code=2)
    assert "agac.yml names no remote" in refused.err
    assert not (project.root / ".agac/shards/1-of-3/agac.db").exists() or "Write `remote" in refused.err


def test_the_variable_is_the_option_and_stores_are_apart(make: Make) -> None:
    project = make()
    project.workflow(rows=9)
    ran = project.agac("run", "-a", "reviews", "--json", env={**project.env, "AGAC_SHARD": "2/3"}, code=0).json
    mine = [f"r-{n}" for n in range(1, 10) if shard_of(f"r-{n}", 3) == 2]
    assert (ran["rows"]["done"], ran["selection"]["shard"], ran["files"]) == (len(mine), [2, 3], [])
    shown = project.agac("sql", "SELECT id FROM row ORDER BY ordinal", "--shard", "2/3", code=0).out
    assert [line for line in shown.split() if line.startswith("r-")] == mine


def test_commands_without_a_shard_name_the_stores_of_shards(make: Make) -> None:
    project = make()
    project.workflow(rows=9)
    fresh = project.agac("inspect", "last", code=2).err
    assert "nothing was run in this project yet\n  Run `agac run -a reviews` first." in fresh
    project.shards(code=0)
    project.merge(code=0)
    remedy = "Each shard has a store of its own: add `--shard 1/3` to look into one."
    remedy += " `agac status` lists the runs in shards."
    for command in (["inspect", "last"], ["status", "1"], ["export"], ["show"], ["sql", "SELECT 1"]):
        refused = project.agac(*command, code=2).err
        assert refused == f"error: nothing was run in this project, except in shards\n  {remedy}\n", command
    counts = "reviews was run in 3 shards (all here): 9 rows, 9 done"
    assert project.agac("runs", code=0).out.startswith(counts)
    assert project.agac("inspect", "last", "--shard", "1/3", code=0).out
    project.agac("run", "-a", "reviews", "--limit", "1", code=0)
    assert counts in project.agac("runs", code=0).out
    (project.root / "workflows/other.yml").write_text((project.root / "workflows/reviews.yml").read_text())
    assert remedy in project.agac("show", "-a", "other", code=2).err


def test_a_selection_is_made_before_the_shards(make: Make) -> None:
    project = make()
    project.workflow(rows=20)
    whole = project.agac("run", "-a", "reviews", "--limit", "7", code=0)
    assert "7 rows" in whole.out
    before = (project.root / "output/reviews/preview/results.jsonl").read_bytes()
    shutil.rmtree(project.root / "output")
    project.shards("--limit", "7", code=0)
    project.merge("--limit", "7", code=0)
    assert (project.root / "output/reviews/preview/results.jsonl").read_bytes() == before


def test_a_bucket_will_do(make: Make, bucket: dict[str, str]) -> None:
    project = make(of=2, env=bucket)
    project.workflow(rows=6)
    whole = project.unsharded()
    project.shards(code=0)
    project.merge(code=0)
    assert project.taken() == whole


@services
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text("ab#2/", min_size=1, max_size=4), min_size=1, max_size=12), st.integers(1, 4), st.booleans())
def test_any_ids_come_to_the_same(tmp_path: Path, ids: list[str], of: int, suffix: bool) -> None:
    shutil.rmtree(tmp_path)
    project = Sharded(tmp_path / "first", Server("http://127.0.0.1:1/v1"), of=of)
    project.rows([{"id": one, "n": number} for number, one in enumerate(ids)], "data/rows.jsonl")
    project.write("tools/one.py", "def one(n: int) -> dict:\n    return {'twice': 2 * n}\n")
    policy = {"on_duplicate_id": "suffix" if suffix else "error"}
    project.workflow(path="data/rows.jsonl", input=policy, stages=[{"name": "one", "python": "tools/one.py:one"}])
    whole = project.unsharded()
    project.shards()
    assert project.merge().code in (0, 3)
    assert project.taken() == whole


def test_batches_and_retries_belong_to_their_shard(make: Make, server: Server) -> None:
    project = make(of=2)
    project.configure(server.base_url, batch="openai")
    keys = yaml.safe_load((project.root / "agac.yml").read_text("utf-8"))
    project.write("agac.yml", yaml.safe_dump({**keys, "remote": {"url": "../remote", "control": True}}))
    rows = [{"id": f"r{n}", "text": f"text {n}"} for n in range(8)]
    project.rows([*rows, {"id": "", "text": "without"}], "data/rows.jsonl")
    project.workflow(path="data/rows.jsonl", defaults={"run_mode": "batch"})
    for number in (1, 2):
        assert project.shard(number, "--wait").code in (0, 3)
    assert sorted(one.name for one in (project.root.parent / "remote/v1/control").iterdir()) == [
        "reviews@1-of-2", "reviews@2-of-2",
    ]  # fmt: skip
    assert project.shard(1, command="batch retrieve").code in (0, 3)
    merged = project.merge("--json", code=3).json
    assert (merged["rows"]["done"], merged["rows"]["failed"]) == (8, 1)


def test_what_every_store_of_a_shard_paid_is_counted(make: Make, server: Server) -> None:
    project = make(of=2)
    project.workflow(rows=16)
    project.shards(code=0)
    shutil.rmtree(project.root / ".agac/shards/1-of-2")
    for _ in range(2):  # a store that paid for nothing
        project.shard(1, code=0)
    project.workflow(rows=20)
    project.shards(code=0)
    assert server.account()["requests"] == 20
    told, billed = project.merge("--json").json["calls"], server.account()
    usd = (billed["prompt_tokens"] + billed["completion_tokens"]) / 1000
    assert (told["count"], told["cost_usd"]) == (20, pytest.approx(usd))
    (run,) = project.agac("status", "--shards", "--json", env=project.env).json["runs"]
    assert (run["calls"], run["usd"]) == (20, pytest.approx(told["cost_usd"]))


def test_a_whole_run_beside_shards_is_warned_of(make: Make) -> None:
    project = make(of=1)
    project.workflow(rows=3)
    project.shards(code=0)
    job = project.agac("process", "data/rows.csv", "out.jsonl", "-p", "Of ${text}", "--model", "local/echo", code=0)
    assert "no answer of theirs" not in job.err
    assert (
        "no answer of theirs is used here; `agac merge -a reviews`" in project.agac("run", "-a", "reviews", code=0).err
    )
    assert "no answer of theirs" not in project.agac("run", "-a", "reviews", code=0).err
