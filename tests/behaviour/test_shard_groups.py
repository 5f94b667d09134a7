"""Groups in shards: rows of all shards come together in the one that a group is in, and what comes of them is what one
run of all rows makes of them."""

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.project import Ran
from support.server import Server
from support.services import services, starts_service
from support.shards import Sharded
from support.soak import SOAK
from zstandard import compress

from agac.core.keys import shard_of

PATH = "data/rows.jsonl"
READ = {"name": "read", "prompt": "read ${text}", "output_field": "short"}
SUM = {"name": "sum", "group_by": ["topic"], "prompt": "${topic} ${rows_count}/${rows_failed}: ${rows_json}"}
SAY = {"name": "say", "prompt": "say ${topic}: ${sum}", "when": "topic != 't1'"}
ALL = {"name": "all", "group_by": [], "prompt": "all ${rows_count}: ${rows_json}"}
FILES = ("results.jsonl", "results.json", "errors.jsonl")
LISTS = {"type": "object", "properties": {"parts": {"type": "array", "items": {"type": "string"}, "minItems": 12}}}
LISTED = {**SUM, "model": "local/small", "output_schema": {**LISTS, "required": ["parts"]}}
PARTS = {"name": "part", "explode": "sum.parts", "filter": "index != 11"}
TOTAL = """\
def total(rows):
    if len(rows) == 1:
        return None
    return {"topic": rows[0]["topic"], "rows": [[row["id"], row["read"]["short"]] for row in rows]}
"""
FUNCTION = {"name": "sum", "group_by": ["topic"], "python": "tools/sums.py:total"}
Make = Callable[..., Sharded]


def written(project: Sharded, rows: list[dict[str, Any]], *stages: dict[str, Any], **keys: Any) -> Sharded:
    project.rows(rows, PATH)
    project.write("tools/sums.py", TOTAL)
    project.workflow(path=PATH, stages=list(stages), defaults={"model": "local/echo"}, stop_loss=False, **keys)
    return project


@pytest.fixture
@starts_service
def make(tmp_path: Path, server: Server) -> Make:
    server.reset()
    return lambda *args, name="first", **more: written(Sharded(tmp_path / name, server, **more), *args)


def rows_of(count: int, topics: int = 4, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"r{n}", "topic": f"t{n % topics}", "text": f"x{n}", **more} for n in range(count)]


def merged(project: Sharded) -> dict[str, bytes]:
    ran = project.merge()
    assert ran.code in (0, 3), ran.err
    return project.taken(*FILES)


def charged(server: Server) -> int:
    return int(server.account()["requests"])


def same_as_one_run(project: Sharded, server: Server) -> None:
    """Shards pay for as many calls as one run, and come to the same."""
    server.reset()
    whole = project.unsharded(names=FILES)
    paid = charged(server)
    project.rounds()
    assert (charged(server), merged(project)) == (2 * paid, whole)


REDUCED = {**SUM, "reduce": {"max_rows": 3}}
SIZED = {**ALL, "reduce": {"max_tokens": 60}}


@pytest.mark.parametrize(
    "stages",
    [
        (SUM,),
        (READ, {**ALL, "group_by": ["read.short"]}),
        (READ, REDUCED, SAY),
        (READ, {**SUM, "group_by": ["kind", "topic"]}, {**ALL, "group_by": ["kind"]}),
        (READ, REDUCED, SAY, SIZED),
        ({"name": "each", "explode": "items", "prompt": "each ${id} ${item}"}, {**SUM, "group_by": ["item", "topic"]}),
        (LISTED, PARTS, {"name": "say", "prompt": "${item}"}),
        (READ, FUNCTION, {"name": "each", "explode": "rows", "prompt": "${item} of ${topic}"}, ALL),
    ],
    ids=[
        "fields", "results", "reduced", "groups-of-groups", "further-stages", "children", "children-of-groups",
        "function",
    ],
)  # fmt: skip
def test_shards_come_to_what_one_run_does(make: Make, server: Server, stages: Any) -> None:
    rows = [{**row, "items": [n % 3, n % 2], "kind": n % 2} for n, row in enumerate(rows_of(16))]
    del rows[5]["text"]
    rows[6]["topic"] = 7
    same_as_one_run(make(rows, *stages), server)


@pytest.mark.parametrize("incomplete", ["fail", "use"])
def test_a_group_lacks_rows_that_failed_elsewhere(make: Make, server: Server, incomplete: str) -> None:
    rows = rows_of(9, 2)
    for row in rows[::4]:
        del row["text"]
    same_as_one_run(make(rows, READ, {**SUM, "incomplete": incomplete}), server)


KEYS = st.sampled_from(["x", "y/0", "[", "ü"]) | st.integers(-2, 3)
IDS = st.dictionaries(st.text("ab/#é1", min_size=1, max_size=3), KEYS, min_size=1, max_size=9)


@services
@given(IDS, st.integers(2, 5), st.booleans())
@settings(max_examples=40 if SOAK else 4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_ids_and_keys_there_are(
    tmp_path: Path, server: Server, ids: dict[str, str | int], of: int, reduces: bool
) -> None:
    shutil.rmtree(tmp_path)
    rows = [{"id": id_, "topic": key, "text": f"x{n}"} for n, (id_, key) in enumerate(ids.items())]
    stages = [{**SUM, "reduce": {"max_rows": 2}} if reduces else SUM, ALL]
    same_as_one_run(written(Sharded(tmp_path / "first", server, of=of), rows, *stages), server)


def test_a_shard_says_for_whom_it_waits(make: Make, server: Server) -> None:
    project = make(rows_of(12), SUM, of=4)
    ran = project.shard(2, code=75)
    told = "Waiting for rows of shards 1/4, 3/4, 4/4 for the groups of stage 'sum'; once they have come so far, run: "
    assert f"{told}agac run -a reviews --shard 2/4" in ran.out
    project.shard(1, code=75)
    project.shard(3, code=75)
    ran = project.shard(1, "--json", code=75)
    assert ran.json["invocation"]["waits_for_shards"] == "rows of shard 4/4 for the groups of stage 'sum'"
    assert charged(server) == 0
    refused = project.merge(code=75)
    assert "shard 1/4 waits for rows of shard 4/4 for the groups" in refused.err
    project.shard(4)
    assert charged(server) == sum(shard_of(f"t{n}", 4) == 4 for n in range(4))


def test_with_wait_shards_meet(make: Make, server: Server) -> None:
    project = make(rows_of(12), READ, SUM)
    whole = project.unsharded(names=FILES)
    words = "run", "-a", "reviews", "--wait", "--shard"
    started = [project.start(*words, f"{number}/3", env=project.env) for number in (1, 2, 3)]
    ended = [Ran(one.wait(60), *map(str, one.communicate())) for one in started]
    assert [one.code for one in ended] == [0, 0, 0], ended
    assert merged(project) == whole


def test_what_changes_in_one_shard_is_asked_again_in_others_and_nothing_else(make: Make, server: Server) -> None:
    rows = rows_of(24, 8)
    project = make(rows, READ, SUM)
    project.rounds()
    before = charged(server)
    assert project.rounds() == [[0, 0, 0]]
    assert charged(server) == before
    rows[3]["text"] = "other"
    rows.append({"id": "new", "topic": "t5", "text": "new"})
    project.rows(rows, PATH)
    whole_before = charged(server)
    waits = "rows of shards 2/3, 3/3 for the groups of stage 'sum'; another input was read by shards 2/3, 3/3"
    assert waits in project.shard(1, code=75).out
    shown = project.agac("status", "--shards", env=project.env).out
    assert "Shard 3/3 is waiting (read another input (24 rows) than shard 1/3, which ended last (25))" in shown
    project.rounds()
    assert charged(server) == whole_before + 2 + 2  # the rows, and the groups that they are in
    rows = [row for row in rows if row["topic"] != "t3" and row["id"] != "r5"]  # a group, and a member of one
    project.rows(rows, PATH)
    project.rounds()
    assert charged(server) == whole_before + 5
    assert merged(project) == project.unsharded(names=FILES)


def test_a_row_moves_to_a_group_of_another_shard(make: Make) -> None:
    rows = rows_of(12, 4)
    project = make(rows, SUM)
    project.rounds()
    for row, topic in zip(rows, ["t3", "t2", "t1", "t0", "new", "t0"], strict=False):
        row["topic"] = topic
    project.rows(rows, PATH)
    project.rounds()
    assert merged(project) == project.unsharded(names=FILES)


READY = """\
from pathlib import Path

def ready(row):
    if row["text"] == "x4" and not Path("mended").exists():
        raise ValueError("not yet")
    return row
"""


def test_a_retry_in_one_shard_reaches_groups_of_others(make: Make, server: Server) -> None:
    project = make(rows_of(9, 3), {"name": "ready", "python": "tools/ready.py:ready"}, SUM)
    project.write("tools/ready.py", READY)
    project.rounds()
    assert b"t1 2/0" in merged(project)["results.jsonl"]
    before = charged(server)
    project.write("mended", "")
    number, group = shard_of("r4", 3), shard_of("t1", 3)
    assert number != group
    project.shard(number, "last", command="retry", code=0)
    told = f"made groups of rows that shard {number}/3 changed since"
    shown = project.agac("status", "--shards", env=project.env).out
    assert f"Shard {group}/3 is waiting ({told}). Go on with: agac run -a reviews --shard {group}/3" in shown
    refused = project.merge(code=75)
    assert f"shard {group}/3 {told}" in refused.err
    assert f"agac run -a reviews --shard {group}/3" in refused.err
    project.shard(group, code=0)
    assert charged(server) == before + 1
    assert merged(project) == project.unsharded(names=FILES)


def test_to_retrieve_nothing_more_forgets_no_members(make: Make, server: Server) -> None:
    project = make(rows_of(30), {**READ, "run_mode": "batch", "model": "local/small"}, SUM)
    project.configure(server.base_url, batch="openai")
    keys = yaml.safe_load((project.root / "agac.yml").read_text("utf-8"))
    project.write("agac.yml", yaml.safe_dump({**keys, "remote": {"url": "../remote", "trust": ["ci"]}}))
    project.shards(code=0)
    taken: list[dict[str, str]] = []
    for _ in range(20):
        for number in (1, 2, 3):
            assert project.shard(number, command="batch retrieve").code in (0, 75)
        if all(taken := [marks(project, number) for number in (1, 2, 3)]):
            break
    assert all(taken)
    for number in (1, 2, 3):
        project.shard(number, command="batch retrieve", code=0)
    assert [marks(project, number) for number in (1, 2, 3)] == taken


def marks(project: Sharded, number: int) -> dict[str, str]:
    """What a shard's last manifest says of members that came from others."""
    (log,) = (project.root.parent / "remote/v1/shards/reviews").glob(f"*/ended/{number}-of-3")
    found: dict[str, str] = json.loads(max(log.iterdir()).read_text("utf-8"))["taken"]
    return found


def test_packs_of_a_lost_shard_are_made_again_alike(make: Make, server: Server) -> None:
    project = make(rows_of(20), READ, SUM)
    project.rounds()
    packs, before = given_packs(project), charged(server)
    shutil.rmtree(project.root / ".agac/shards/2-of-3")
    assert project.rounds() == [[0, 0, 0]]
    assert (given_packs(project), charged(server)) == (packs, before)


def given_packs(project: Sharded) -> set[str]:
    return {one.name for one in (project.root.parent / "remote/v1/shards").rglob("groups/*/*-of-*/*.pack")}


def test_packs_are_not_believed_blindly(make: Make) -> None:
    project = make(rows_of(12), SUM)
    for number in (1, 2):
        project.shard(number, code=75)
    of_third = sorted((project.root.parent / "remote/v1/shards").rglob("groups/sum/3-of-3/*.pack"))
    content = of_third[0].read_bytes()
    of_third[0].write_bytes(compress(b"[]"))
    ran = project.shard(3, code=1)
    assert "cannot be used: it is not the content that its name stands for" in ran.err
    made_up = sha256(b'[["t1","{}","r1",-1]]').hexdigest()  # what no agac of now gives
    log = next((project.root.parent / "remote/v1/shards").rglob("groups/sum/from/1-of-3/*1"))
    told = json.loads(log.read_text("utf-8"))
    of_third[0].with_stem(made_up).write_bytes(compress(b'[["t1","{}","r1",-1]]'))
    log.with_name("0000000002").write_text(json.dumps({**told, "packs": {"3-of-3": [made_up]}}), "utf-8")
    assert "holds no members of groups" in project.shard(3, code=1).err
    log.with_name("0000000002").unlink()
    of_third[0].write_bytes(content)
    project.rounds()


def test_groups_of_other_shards_are_no_rows_of_this_one(make: Make) -> None:
    project = make(rows_of(12), SUM)
    project.rounds()
    ids = {f"t{n}" for n in range(4) if shard_of(f"t{n}", 3) == 2}
    counted = [one["rows"]["total"] for one in project.shard(2, "--json").json["levels"]]
    assert counted == [len(ids)]
    for n in range(4):
        ran = project.shard(2, "last", f"t{n}", command="inspect")
        assert (ran.code == 0) == (f"t{n}" in ids), ran.err
