"""A remote in which somebody whom the team trusts is wrong: what no agac writes is refused with a word, within bounds,
and the rest goes on."""

import json
import math
import os
import socket
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support.machines import Machine, edit
from support.packs import answer
from support.server import Server
from support.services import services
from support.shards import Sharded

from agac.core.errors import AgacError
from agac.core.json_text import strict_json
from agac.core.keys import definition_hash
from agac.data import object_store
from agac.data.object_store import ObjectStore
from agac.data.remote import kept_here
from agac.data.shared_log import MAX_SMALL, entry_name, read_record
from agac.engine.batch import control
from agac.engine.batch.control import LogEntry
from agac.engine.sharding import group_packs, row_packs
from agac.engine.sharding.folder import LeaseEntry, PaidCalls, ShardFolder, ShardManifest, ShardStatus
from agac.engine.sharding.leases import Grants
from agac.engine.summary import added
from agac.engine.workers import work
from agac.providers.http import HttpReply
from agac.spec.paths import RemoteContent
from agac.store import packs, snapshot
from agac.store.packs import Damaged, KnownAnswers, PackedAnswer
from agac.store.writer import migrate

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and links are POSIX's")


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Fails a test that waits for ever, as one does that opens a pipe without another end."""
    over = threading.Timer(100.0, lambda: os._exit(70))
    over.start()
    yield
    over.cancel()


# What is in a folder remote besides objects.


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(path.parents[2] / "secret")


def link_within(path: Path) -> None:
    path.symlink_to(path.parent / "good")


def loop(path: Path) -> None:
    path.symlink_to(path)


def bound_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


SPECIAL = {
    pipe: "a named pipe", link: "a link", link_within: "a link", loop: "a link", bound_socket: "a socket",
}  # fmt: skip


@posix
@pytest.mark.parametrize("make", SPECIAL, ids=lambda make: make.__name__)
async def test_what_is_no_file_is_no_object(
    make: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    remote = ObjectStore("remote", tmp_path)
    await remote.create("v1/good", b"1")
    make(tmp_path / "remote/v1/bad")
    assert await remote.read("v1/bad", 100) is None
    assert await remote.sizes("v1") == {"v1/good": 1}
    assert not await remote.create("v1/bad", b"2")
    assert caplog.text.count(f"remote/v1/bad is left out: it is {SPECIAL[make]}") == 1, "it is reported once"


@posix
async def test_a_folder_that_is_a_link_leads_nowhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a").write_bytes(b"1")
    remote = ObjectStore("remote", tmp_path)
    (tmp_path / "remote/v1").mkdir()
    (tmp_path / "remote/v1/ci").symlink_to(elsewhere)
    (tmp_path / "remote/v1/loop").symlink_to(tmp_path / "remote")
    assert await remote.sizes("v1") == await remote.sizes("v1/ci") == {}
    assert await remote.folders("v1") == []
    assert await remote.read("v1/ci/a", 100) is None
    with pytest.raises(AgacError, match=r"v1/ci/b cannot be written: .*ci is a link"):
        await remote.create("v1/ci/b", b"2")
    assert [one.name for one in elsewhere.iterdir()] == ["a"]


@pytest.mark.parametrize(
    "name", ["../x", "v1/../../x", "/x", "v1//x", "v1/.", "v1/a\0b", "v1/a\nb", "v1/a\\b", "v1/C:x"]
)
async def test_names_that_lead_elsewhere_are_none(name: str, tmp_path: Path) -> None:
    remote = ObjectStore("remote", tmp_path)
    for asked in (remote.read(name, 9), remote.create(name, b""), remote.sizes(name)):
        with pytest.raises(AgacError, match="is not a name of an object"):
            await asked


@posix
async def test_odd_names_in_the_folder_are_left_out(tmp_path: Path) -> None:
    remote = ObjectStore("remote", tmp_path)
    await remote.create("v1/good", b"1")
    for name in ("a\nb", "a\x1b[2J", "a:b", "a\\b", "good#123"):
        (tmp_path / "remote/v1" / name).write_bytes(b"x")
    assert await remote.sizes("v1") == {"v1/good": 1}


async def test_objects_are_bounded_in_number_and_in_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = ObjectStore("remote", tmp_path)
    for number in range(4):
        await remote.create(f"v1/{number}", b"1234")
    assert await remote.read("v1/1", 4) == b"1234"
    assert await remote.read("v1/1", 3) is None
    monkeypatch.setattr(object_store, "MAX_OBJECTS", 3)
    with pytest.raises(AgacError, match="v1 has more than 3 objects"):
        await remote.sizes("v1")


# JSON from elsewhere, and records.

NO_JSON = {
    '{"a": 1, "a": 2}': "given twice", '[{"b": {"a": 1, "a": 1}}]': "given twice", "[NaN]": "not JSON",
    "[-Infinity]": "not JSON", "[1e999]": "larger than any", "[1, 2, 3, 4, 5, 6]": "more than 5 values",
    '["[[[[[[[", {"a": {"b": {"c": {"d": 1}}}}, 2, 3]': "more than 5 values",
}  # fmt: skip


@pytest.mark.parametrize("text", NO_JSON)
def test_json_from_elsewhere_is_strict(text: str) -> None:
    with pytest.raises(ValueError, match=NO_JSON[text]):
        strict_json(text, 5)


def test_commas_in_texts_are_no_values() -> None:
    assert strict_json(json.dumps([",[{" * 100, 1]), 5) == [",[{" * 100, 1]


HERE = "host boot/space 12 34"
ABOUT: dict[str, Any] = {"writer": "ci", "at": 1000.0, "holder": HERE, "mark": "ab"}
ENTRY = {**ABOUT, "number": 1, "workflow": "w", "free": False, "snapshot": "0" * 64, "batches": {}}
STATUS = {**ABOUT, "number": 1, "of": 2}
MANIFEST = {
    **ABOUT, "status": STATUS, "exit_code": 0, "complete": True, "input": "i", "input_rows": 1, "summary": {},
}  # fmt: skip
GOOD: dict[Any, dict[str, Any]] = {
    LogEntry: ENTRY, LeaseEntry: ABOUT, ShardStatus: STATUS, ShardManifest: MANIFEST, PaidCalls: {**ABOUT, "calls": {}},
    Grants: {**ABOUT, "budgets": {"run": {"1-of-2-x": [[0.5, 1, 1], [0.0, 0, 0]]}}},
    group_packs.GivenMembers: {**ABOUT, "store": "s", "input": "i", "packs": {"1-of-2": ["0" * 64]}},
}  # fmt: skip

BAD = [
    (LeaseEntry, {"at": "now"}), (LeaseEntry, {"at": -1.0}), (LeaseEntry, {"at": 1e300}), (LeaseEntry, {"at": True}),
    (LeaseEntry, {"holder": "x"}), (LeaseEntry, {"holder": "host boot/space -1 34"}),
    (LeaseEntry, {"holder": f"host boot/space {1 << 32} 34"}), (LeaseEntry, {"holder": "host boot/space one 34"}),
    (LeaseEntry, {"holder": f"{'h' * 600} boot/space 1 34"}), (LeaseEntry, {"mark": "../x"}),
    (LeaseEntry, {"mark": "ab\n"}), (LeaseEntry, {"writer": ""}), (LeaseEntry, {"writer": "x" * 65}),
    (LeaseEntry, {"free": 1}), (LeaseEntry, {"format": 2}), (LeaseEntry, {"more": 1}),
    (LogEntry, {"number": 0}), (LogEntry, {"number": 1 << 40}), (LogEntry, {"snapshot": "../../x"}),
    (LogEntry, {"snapshot": f"{'0' * 64}\n"}), (LogEntry, {"workflow": "w" * 2000}),
    (ShardStatus, {"number": 3}), (ShardStatus, {"number": 0}), (ShardStatus, {"of": 1 << 40}),
    (ShardStatus, {"state": "paused"}), (ShardStatus, {"usd": -1.0}), (ShardStatus, {"usd": 1e300}),
    (ShardStatus, {"calls": 1 << 64}), (ShardStatus, {"calls": -1}), (ShardStatus, {"rows": {"done": 1 << 64}}),
    (ShardStatus, {"rows": {"done": 1.5}}), (ShardStatus, {"why": "x" * 30_000}),
    (ShardStatus, {"command": "echo hello"}), (ShardStatus, {"command": "agac run -a w; echo hello"}),
    (ShardStatus, {"command": "agac run -a $(echo w)"}), (ShardStatus, {"command": "agac gc --all"}),
    (ShardManifest, {"exit_code": 1 << 20}), (ShardManifest, {"packs": {"rows": ["../../x"]}}),
    (ShardManifest, {"packs": {"others": []}}), (ShardManifest, {"taken": {"1 1 ../x": "ab"}}),
    (ShardManifest, {"taken": {"one 1 groups/sum": "ab"}}), (ShardManifest, {"summary": {"rows": 1 << 70}}),
    (PaidCalls, {"calls": {"count": "7"}}), (PaidCalls, {"calls": {"count": -7}}),
    (PaidCalls, {"calls": {"count": [1]}}),
    (PaidCalls, {"calls": {"cost_is_simulated": 1}}), (PaidCalls, {"calls": {"count": True}}),
    (Grants, {"budgets": {"run": {"x": [[-1.0, 0, 0], [0.0, 0, 0]]}}}),
    (Grants, {"budgets": {"run": {"x": [[1e300, 0, 0], [0.0, 0, 0]]}}}),
    (Grants, {"budgets": {"run": {"x": [[0.0, 1 << 64, 0], [0.0, 0, 0]]}}}),
    (group_packs.GivenMembers, {"packs": {"../x": []}}), (group_packs.GivenMembers, {"packs": {"1-of-2": ["x"]}}),
]  # fmt: skip


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_a_record_is_read_as_it_was_written(kind: Any) -> None:
    written = read_record(kind, json.dumps(GOOD[kind]).encode())
    assert read_record(kind, written.model_dump_json().encode()) == written


@pytest.mark.parametrize(("kind", "keys"), BAD, ids=lambda one: getattr(one, "__name__", None) or str(one)[:50])
def test_a_record_with_a_value_that_no_agac_writes_is_none(kind: Any, keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        read_record(kind, json.dumps({**GOOD[kind], **keys}).encode())


def test_a_record_with_a_key_twice_is_none() -> None:
    twice = json.dumps(ABOUT).replace('"writer": "ci"', '"writer": "mallory", "writer": "ci"')
    with pytest.raises(ValueError, match="a key is given twice"):
        read_record(LeaseEntry, twice.encode())


def test_commands_of_agac_are_commands() -> None:
    for command in ("agac run -a w --shard 1/2 --var 'a=b; c'", "agac resume job_1", "agac.run(agac.Workflow('w', …))"):
        assert read_record(ShardStatus, json.dumps({**STATUS, "command": command}).encode()).command == command


# Logs.


@pytest.fixture
def folder(tmp_path: Path) -> ShardFolder:
    return ShardFolder(ObjectStore("remote", tmp_path), "w", "k", ["ci"])


async def test_nothing_is_appended_to_a_log_that_lacks_an_entry(
    folder: ShardFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2, 5):
        await folder.create(f"lease/1-of-2/{entry_name(number)}", json.dumps(ABOUT).encode())
    await folder.create(f"lease/2-of-2/{entry_name(7)}", json.dumps(ABOUT).encode())  # the oldest may be removed
    fresh = ShardFolder(folder.remote, "w", "k", ["ci"])
    with pytest.raises(AgacError, match="lease/1-of-2 lacks the entry 0000000003") as refused:
        await fresh.append("lease/1-of-2", lambda last: b"next")
    assert "move the later entries away" in (refused.value.remedy or "")
    assert list(await fresh.newest("lease")) == ["lease/2-of-2"]
    assert "lease/1-of-2 lacks the entry" in caplog.text
    assert [*await fresh.statuses()] == [2]


async def test_numbers_that_no_log_comes_to_are_no_entries(folder: ShardFolder, tmp_path: Path) -> None:
    await folder.create(f"log/{entry_name(1)}", b"one")
    for name in ("9999999999", "00000000002", "2", "-000000003", "٠٠٠٠٠٠٠٠٠٢"):
        await folder.create(f"log/{name}", b"other")
    fresh = ShardFolder(folder.remote, "w", "k", ["ci"])
    assert await fresh.last("log") == (1, b"one")
    assert await fresh.append("log", lambda last: (last or b"") + b"+two") == b"one+two"


@posix
async def test_a_pipe_in_the_place_of_the_next_entry_ends_the_command(folder: ShardFolder, tmp_path: Path) -> None:
    await folder.create(f"log/{entry_name(1)}", b"one")
    pipe(tmp_path / "remote" / folder.path / "log" / entry_name(2))
    with pytest.raises(AgacError, match="log/0000000002 is there, and is no entry of its log"):
        await folder.append("log", lambda last: b"two")


async def test_a_sign_of_life_is_of_the_shard_that_its_name_says(
    folder: ShardFolder, caplog: pytest.LogCaptureFixture
) -> None:
    minute = int(time.time() / 60)
    now = {**STATUS, "at": time.time()}
    await folder.create(f"minutes/{minute}/2-of-2-ab-00000001", json.dumps(now).encode())
    await folder.create(f"minutes/{minute}/1-of-2-cd-00000001", json.dumps(now).encode())
    await folder.create(f"minutes/{minute}/1-of-2-ab-00000002", json.dumps(now).encode())
    await folder.create(f"ended/2-of-2/{entry_name(1)}", json.dumps(MANIFEST).encode())
    assert [*await folder.alive()] == [1]
    assert await folder.manifests() == {}
    assert caplog.text.count("it is about shard 1/2, or of another process") == 3


async def test_small_entries_are_small(folder: ShardFolder) -> None:
    await folder.create(f"lease/1-of-2/{entry_name(1)}", b" " * (MAX_SMALL + 1))
    assert await folder.newest("lease") == {"lease/1-of-2": (1, b"")}


# Packs of answers.


def read(content: bytes) -> list[PackedAnswer]:
    return list(packs.unpacked("ci", sha256(content).hexdigest(), content, now=2000.0))


UNSOUND = [
    {"how": "manual"}, {"how": "repair,manual"}, {"how": "adopted"}, {"how": "by hand"}, {"how": None},
    {"cost": -0.1}, {"cost": 1e12}, {"cost": math.inf}, {"cost": "1"}, {"cost": True}, {"input_tokens": 1 << 64},
    {"input_tokens": 1.5}, {"output_tokens": True}, {"at": math.inf}, {"at": -1.0}, {"at": True},
    {"value": '{"a": 1, "a": 2}'}, {"value": "[NaN]"}, {"value": "[1e999]"}, {"model": "m" * 20_000}, {"base_url": 7},
]  # fmt: skip


@pytest.mark.parametrize("keys", UNSOUND, ids=lambda keys: str(keys)[:40])
def test_an_answer_with_a_value_that_none_has_damages_its_pack(keys: dict[str, Any]) -> None:
    with pytest.raises(Damaged, match="a line is no answer"):
        read(zstandard.compress(answer().line() + answer(**keys).line()))


def test_packs_are_bounded_before_they_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Damaged, match="more than 20,000 answers"):
        read(zstandard.compress(answer().line() + b"\n" * 20_001))
    monkeypatch.setattr(packs, "MAX_LINE", 1000)
    with pytest.raises(Damaged, match="a line of more than 1,000 bytes"):
        read(zstandard.compress(answer(value=f'"{"x" * (1 << 19)}"').line()))
    monkeypatch.setattr(packs, "MAX_VALUES", 3)
    assert packs.may_travel(answer(value="[1, 2]"))
    assert not packs.may_travel(answer(value="[1, 2, 3, 4]"))
    with pytest.raises(Damaged, match="more than 3 values"):
        read(zstandard.compress(answer(value="[1, 2, 3, 4]").line()))
    monkeypatch.setattr(packs, "MAX_BYTES", 100)
    with pytest.raises(Damaged, match="more than 100 bytes"):
        read(zstandard.compress(answer().line() * 3))


def test_an_index_has_no_more_entries_than_a_pack_has_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "FULL_ANSWERS", 2)
    entry = struct.Struct("<16s8sd")
    with closing(KnownAnswers()) as known:
        known.add("ci", "good", zstandard.compress(entry.pack(b"f" * 16, b"m" * 8, 5.0) * 2))
        with pytest.raises(Damaged, match="more than 64 bytes"):
            known.add("ci", "long", zstandard.compress(entry.pack(b"f" * 16, b"m" * 8, 5.0) * 3))
        for at in (math.nan, math.inf, -1.0, 0.0, 1e12):
            with pytest.raises(Damaged, match="times that no answer has"):
                known.add("ci", "time", zstandard.compress(entry.pack(b"f" * 16, b"m" * 8, at)))
        assert len(known.find([b"f" * 16], [b"m" * 8])) == 1


@services
@posix
def test_a_pack_that_is_a_pipe_is_left_out_and_the_others_count(tmp_path: Path, server: Server) -> None:
    first, second = (Sharded(tmp_path / name, server, of=2) for name in ("first", "second"))
    for one in (first, second):
        one.workflow(rows=3)
    first.agac("run", "-a", "reviews", env=first.env, code=0)
    first.agac("push", env=first.env, code=0)
    ci = tmp_path / "remote/v1/ci"
    (index,) = ci.glob("*.index")
    bad = ci / f"{'1' * 64}.index"
    bad.write_bytes(index.read_bytes())
    pipe(bad.with_suffix(".pack"))
    pipe(ci / f"{'2' * 64}.index")
    told = second.agac("pull", env=second.env, code=0)
    assert "3 answers" in told.out
    assert f"{'1' * 64}.pack is left out: it is a named pipe" in told.err
    server.reset()
    second.agac("run", "-a", "reviews", env=second.env, code=0)
    assert server.account()["requests"] == 0, "nothing is paid twice"


# Rows of shards, members of groups, replies of workers.

KEY = [0, 1]
ROW = [1, "r-1", 1, "{}", '"x"', None, None, 7, None, False, None]
NO_ROWS = {
    "no list": {}, "no key": [ROW], "a key of words": [["a", "b"], ROW], "a long key": [[0, True, "a", "b"], ROW],
    "too many fields": [KEY, [*ROW, 1, 2]], "a state": [KEY, [1, "r-1", 99, *ROW[3:]]],
    "an error": [KEY, [*ROW[:5], "Made up", *ROW[6:]]], "data that is no JSON": [KEY, [*ROW[:3], "{", *ROW[4:]]],
    "a value with a line of its own": [KEY, [*ROW[:4], '1}\n{"id": "r-2"', *ROW[5:]]],
    "a value twice": [KEY, [*ROW[:4], '{"a": 1, "a": 2}', *ROW[5:]]],
    "a number beyond": [KEY, [1 << 70, *ROW[1:]]], "how": [KEY, [*ROW[:10], {"s": "by\nhand"}]],
    "an id": [KEY, [1, ["r"], *ROW[2:]]],
}  # fmt: skip


@pytest.mark.parametrize("line", NO_ROWS.values(), ids=NO_ROWS)
async def test_a_line_that_is_no_row_stops_merging_with_a_word(line: Any, folder: ShardFolder) -> None:
    manifests = []
    for told in ([KEY, ROW], line):
        name = await folder.put_pack("rows", json.dumps(told).encode())
        found = read_record(ShardManifest, json.dumps({**MANIFEST, "packs": {"rows": [name]}}).encode())
        manifests.append(found)
    good = row_packs.ShardRows(folder, manifests[:1])
    assert [[row.id for row in rows] async for rows in good.rows(None, 0)] == [["r-1"]]  # type: ignore[arg-type]
    with pytest.raises(AgacError, match="a line is no row") as refused:
        [rows async for rows in row_packs.ShardRows(folder, manifests[1:]).rows(None, 0)]  # type: ignore[arg-type]
    assert "run shard 1/2 again" in (refused.value.remedy or "")


@pytest.mark.parametrize("line", ["{", "[1]", '{"a": 1}\n{"b": 2}', '{"a": 1, "a": 2}'])
async def test_a_line_of_filtered_rows_is_one_object(line: str, folder: ShardFolder) -> None:
    name = await folder.put_pack("rows", json.dumps([KEY, [KEY, line]]).encode())
    found = read_record(ShardManifest, json.dumps({**MANIFEST, "packs": {"filtered": [name]}}).encode())
    with pytest.raises(AgacError, match="a line is no row"):
        [some async for some in row_packs.ShardRows(folder, [found]).filtered()]


MEMBER = ["g", "{}", "r-1", -1, 5, "text"]


def test_members_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    good = b"[" + b",\n".join([json.dumps(MEMBER).encode()] * 3) + b"]"
    assert group_packs._members_in(good) == [tuple(MEMBER)] * 3
    for bad in (b"{}", b'["g", "{}"]', good.replace(b"-1", b"1e3"), good.replace(b"5", b"%d" % (1 << 70)), b"[[[[]]]]"):
        with pytest.raises(ValueError, match=r"."):
            group_packs._members_in(bad)
    monkeypatch.setattr(group_packs, "MOST_MEMBERS", 2)
    with pytest.raises(ValueError, match="more than 2 members"):
        group_packs._members_in(good)


def test_summaries_that_are_not_alike_are_not_added_up() -> None:
    for other in ({"rows": [1]}, {"rows": "x"}, {"rows": {"done": "7"}}, {"rows": {"done": {}}}):
        with pytest.raises(ValueError, match="kind"):
            added([{"rows": {"done": 1}}, other])
    with pytest.raises(ValueError, match="several kinds"):
        added([{"levels": [{"a": 1}]}, {"levels": ["x"]}])


REPLY = [3, 200, {"a": "b"}, "eHl6", 1.5, None, None]
NO_REPLIES = {
    "a number": ["3", *REPLY[1:]], "below 0": [-1, *REPLY[1:]], "beyond": [1 << 64, *REPLY[1:]],
    "a status": [3, 9000, *REPLY[2:]], "headers": [3, 200, {"a": ["b"]}, *REPLY[3:]],
    "a body": [3, 200, {}, "%%%", *REPLY[4:]], "a time": [*REPLY[:4], -1.0], "no end": [*REPLY[:4], 1e300],
    "more": [*REPLY, 1], "less": REPLY[:3],
}  # fmt: skip


@pytest.mark.parametrize("line", NO_REPLIES.values(), ids=NO_REPLIES)
def test_a_line_that_is_no_reply_leaves_its_object_out(line: Any) -> None:
    good = json.dumps(REPLY).encode()
    assert work.unpacked_replies(zstandard.compress(good))[3].body == b"xyz"
    with pytest.raises((ValueError, Damaged)):
        work.unpacked_replies(zstandard.compress(good + b"\n" + json.dumps(line).encode()))


def test_replies_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    content = work.packed_replies((number, HttpReply(200, {}, b"x", 1.0)) for number in range(3))
    assert len(work.unpacked_replies(content)) == 3
    monkeypatch.setattr(work, "MOST_REPLIES", 2)
    with pytest.raises(Damaged, match="more than 2 replies"):
        work.unpacked_replies(content)


# The control state, and its snapshots.


@pytest.fixture
def machine(server: Server, tmp_path: Path) -> Callable[[str], Machine]:
    server.reset()
    return lambda name: Machine(tmp_path / name, server)


def test_a_log_with_a_gap_stops_before_anything_is_paid(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.submit()
    last = first.log[-1]
    number = int(last.name)
    later = last.with_name(entry_name(number + 3))
    later.write_bytes(last.read_bytes())
    edit(later, number=number + 3, free=True)
    asked = first.account()["posts"]
    for command in (["run", "-a", "reviews"], ["batch", "retrieve"]):
        refused = machine("second").agac(*command, code=1)
        assert f"v1/control/reviews lacks the entry {entry_name(number + 1)}" in refused.err
        assert "move the later entries away" in refused.err
    assert first.account()["posts"] == asked
    later.rename(last.with_name("9999999999"))  # no log comes to that: it is no entry
    machine("second").retrieve(code=0)


@posix
def test_a_pipe_in_the_place_of_the_next_entry_is_said(machine: Callable[[str], Machine]) -> None:
    first = machine("first")
    first.submit()
    blocked = first.log[-1].with_name(entry_name(int(first.log[-1].name) + 1))
    pipe(blocked)
    refused = machine("second").retrieve(code=1)
    assert f"v1/control/reviews/{blocked.name} is there, and is no entry of its log" in refused.err


SNAPSHOTS: dict[str, tuple[str, str]] = {
    "a view": ("CREATE VIEW v AS SELECT 1", "more than tables"),
    "a trigger": ("CREATE TRIGGER t AFTER INSERT ON run BEGIN SELECT 1; END", "more than tables"),
    "an index": ("CREATE INDEX i ON run (id)", "more than tables"),
    "a virtual table": ("CREATE VIRTUAL TABLE more USING fts5(x)", "more than tables"),
    "another table": ("CREATE TABLE lease AS SELECT 1 AS x", "more than tables"),
    "a computed column": ("ALTER TABLE run ADD COLUMN x AS (id + 1)", "more than tables"),
    "a default": ("ALTER TABLE run ADD COLUMN x DEFAULT (1)", "more than tables"),
    "a column of later": ("ALTER TABLE run ADD COLUMN later INT", "a newer agac"),
    "no rows": ("DROP TABLE row", "no table row"),
    "another workflow": ("UPDATE run SET workflow = 'others'", "another workflow"),
    "rows of another run": ("UPDATE row SET run_id = -1", "table row has a run_id"),
    "tasks of other rows": ("UPDATE task SET row_key = row_key - 1000", "table task has a row_key"),
    "tasks with other results": ("UPDATE task SET result_id = 99999", "table task has a result_id"),
    "batches of another run": ("UPDATE batch SET run_id = 77", "table batch has a run_id"),
    "a number that is a text": ("UPDATE row SET ordinal = 'one'", "table row has a ordinal"),
    "a number beyond": ("UPDATE row SET ordinal = 9007199254740993", "table row has a ordinal"),
    "a time without end": ("UPDATE run SET created_at = 9e999", "table run has a created_at"),
    "a text that is none": ("UPDATE row SET error_message = CAST(x'ff' AS TEXT)", "table row has a error_message"),
    "data that is no JSON": ("UPDATE row SET data = '{'", "table row has a data"),
    "a state": ("UPDATE row SET state = 77", "table row has a state"),
    "an outcome": ("UPDATE task SET outcome = 'won'", "table task has a outcome"),
    "a step of batches": ("UPDATE batch SET state = 'LOST'", "table batch has a state"),
    "money that comes back": ("UPDATE counter SET cost = -5.0", "table counter has a cost"),
    "a short fingerprint": ("UPDATE task SET fingerprint = x'00'", "table task has a fingerprint"),
    "a definition": ("UPDATE definition SET body = json_set(body, '$.x', 1)", "not what its hash stands for"),
    "a file elsewhere": ("UPDATE batch SET file = '../../x'", "a batch has a name"),
    "an intent elsewhere": ("UPDATE batch SET intent = 'a/b'", "a batch has a name"),
    "results elsewhere": ('UPDATE batch SET outputs = \'[["../x", 1, "y"]]\'', "a batch has a name"),
    "an id with a way": ("UPDATE batch SET provider_id = '../files?x'", "a batch has a name"),
    "an output elsewhere": ("UPDATE run SET output_dir = '../../x'", "outside of the project"),
    "an absolute output": ("UPDATE run SET output_dir = '/x'", "outside of the project"),
    "an output in the state": ("UPDATE run SET output_dir = '.agac'", "outside of the project"),
    "a table elsewhere": ('UPDATE run SET outputs = \'{"to": {"path": "../x.db"}}\'', "outside of the project"),
    "data of a row that are a list": ("UPDATE row SET data = '[1]'", "table row has a data"),
    "a number that is not finite": ("UPDATE row SET data = '{\"text\": 1e999}'", "table row has a data"),
    "a number of many digits": (f"UPDATE row SET data = '{{\"text\": {'1' * 5000}}}'", "table row has a data"),
    "data that are deep": (f"UPDATE row SET data = '{{\"text\": {'[' * 900}{']' * 900}}}'", "table row has a data"),
    "a key twice": ('UPDATE result SET value = \'{"a": 1, "a": 2}\'', "table result has a value"),
    "a selection that is a number": ("UPDATE run SET selection = '5'", "table run has a selection"),
    "no selection": ("UPDATE run SET selection = ''", "table run has a selection"),
    "an event that is a list": ("UPDATE event SET body = '[]'", "table event has a body"),
    "a note that is a number": ("UPDATE task SET note = '7'", "table task has a note"),
    "settings that write elsewhere": (
        "UPDATE run SET manner = json_set(manner, '$.output.dir', '../x')",
        "outside of the project",
    ),
    "settings with a table elsewhere": (
        "UPDATE run SET manner = json_set(manner, '$.output.to', json('{\"path\": \"../x.db\"}'))",
        "outside of the project",
    ),
    "a result that nobody needs": (
        "INSERT INTO result SELECT id + 99, zeroblob(16), value, endpoint_id, 1e9, how, pack_id, sources FROM result",
        "results that its runs do not need",
    ),
    "a result by hand": ("UPDATE result SET how = 'manual'", "came about by 'manual', which nobody decided"),
    "sources that are none": ("UPDATE result SET sources = '[{}]'", "table result has a sources"),
    "a result by chance": ("UPDATE result SET how = 'luck'", "came about by 'luck'"),
}


def snapshot_of(store: Path, change: str, folder: Path) -> bytes:
    """What the store has of its runs, after a statement."""
    _, content = snapshot.make_snapshot(store, [1])
    file = folder / "changed"
    file.write_bytes(packs.unzipped(content))
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(change)
    return zstandard.compress(file.read_bytes())


def take(content: bytes, states: Any, writer: sqlite3.Connection) -> None:
    snapshot.take_snapshot(content, "reviews", 5, sha256(content).hexdigest(), states, writer)


def dumped(connection: sqlite3.Connection) -> list[str]:
    return [*connection.iterdump()]


@pytest.fixture(scope="module")
def batched(_shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run in batches, of which some tasks have results."""
    case = Machine(tmp_path_factory.mktemp("batched") / "first", _shared_server)
    case.submit()
    case.retrieve(code=0)
    return case.project.root / ".agac/agac.db"


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A store with a run of another workflow."""
    with closing(sqlite3.connect(f"{(tmp_path / 'own.db').as_uri()}?mode=rwc", uri=True, isolation_level=None)) as made:
        migrate(made)
        made.execute("INSERT INTO definition VALUES (x'01', 'others', '{}', 1.0)")
        made.execute(
            "INSERT INTO run (id, workflow, definition_hash, selection, output_dir, include_input, created_at) "
            "VALUES (1, 'others', x'01', '{}', 'output/others', 0, 1.0)"
        )
        yield made


@pytest.mark.parametrize("poison", SNAPSHOTS)
def test_a_snapshot_with_more_than_its_runs_is_refused_as_a_whole(
    poison: str, batched: Path, writer: sqlite3.Connection, tmp_path: Path
) -> None:
    change, said = SNAPSHOTS[poison]
    before = dumped(writer)
    with pytest.raises(Damaged, match=said):
        take(snapshot_of(batched, change, tmp_path), {}, writer)
    assert dumped(writer) == before


def test_a_snapshot_changes_nothing_of_other_workflows(
    batched: Path, writer: sqlite3.Connection, tmp_path: Path
) -> None:
    take(snapshot_of(batched, "SELECT 1", tmp_path), {}, writer)
    assert writer.execute("SELECT id, workflow FROM run").fetchall() == [(1, "others"), (2, "reviews")]
    assert writer.execute("SELECT count(*) FROM row WHERE run_id = 2").fetchone()[0] >= 6


REACHING: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a function": (
        "the function made.py:made", {"name": "reply", "operation": {"python": "made.py:made", "source": "00"}},
        {"processes": None, "is_async": False},
    ),
    "a tool": ("the tool read_file", {"agent": {"tools": [{"kind": "builtin", "source": "read_file"}]}}, {}),
    "a runtime": ("the runtime opencode", {"runtime": {"name": "opencode"}}, {}),
    "a program": ("the program made", {}, {"tooling": {"program": {"command": "made"}}}),
    "a server": ("the MCP server docs", {}, {"tooling": {"servers": [{"name": "docs", "target": "no-such-program"}]}}),
    "a schema": ("the schema made.Made", {}, {"python_schema": {"module": "made", "cls": "Made", "name": "Made"}}),
    "an address": (
        "the address vllm=http://127.0.0.1:1", {}, {"models": [{"provider": "local", "backend": "vllm=http://127.0.0.1:1"}]},
    ),
    "a server of an agent": (
        "the MCP server docs", {"children": [{}]},
        {"children": [{"tooling": {"servers": [{"name": "docs", "target": "no-such-program"}]}}]},
    ),
    "settings of no form": ("is not stored as agac stores runs", {}, {"tooling": {"servers": [7]}}),
    "a stage of no form": ("is not stored as agac stores runs", {"needs": 7}, {}),
}  # fmt: skip
"""What a stage of a run can name in its definition and in its settings, and what is said of it."""


@pytest.mark.parametrize("what", REACHING)
def test_a_run_of_the_remote_reaches_no_further_than_the_files_of_the_project(
    what: str, machine: Callable[[str], Machine], tmp_path: Path
) -> None:
    said, body, how = REACHING[what]
    first = machine("first")
    first.submit()
    replace_snapshot(first, lambda connection: change_stage(connection, body, how), tmp_path)
    second, asked = machine("second"), first.account()["posts"]
    refused = second.retrieve(code=1 if "no form" in what else 2)
    assert said in refused.err
    assert "find out who wrote" in refused.err
    assert first.account()["posts"] == asked
    assert not (second.project.root / "output").exists()


def change_stage(connection: sqlite3.Connection, body: dict[str, Any], how: dict[str, Any]) -> None:
    """Gives the last stage of the run other keys, in its definition and in its settings."""
    ((manner, text),) = connection.execute("SELECT manner, body FROM run JOIN definition ON hash = definition_hash")
    settings, definition = json.loads(manner), json.loads(text)
    settings["stages"][-1] |= how
    definition["stages"][-1] |= body
    made = definition_hash(definition)
    connection.execute("UPDATE definition SET hash = ?, body = ?", (made, json.dumps(definition)))
    connection.execute("UPDATE run SET definition_hash = ?, manner = ?", (made, json.dumps(settings)))


def replace_snapshot(case: Machine, change: Callable[[sqlite3.Connection], None], folder: Path) -> None:
    """Writes another snapshot into the remote, which the last entry of the log names."""
    entry = json.loads(case.log[-1].read_text("utf-8"))
    snapshots, file = case.log[-1].parents[2] / "snapshots/reviews", folder / "changed"
    file.write_bytes(packs.unzipped((snapshots / entry["snapshot"]).read_bytes()))
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        change(connection)
    content = zstandard.compress(file.read_bytes())
    name = sha256(content).hexdigest()
    (snapshots / name).write_bytes(content)
    edit(case.log[-1], snapshot=name, free=True)


def test_a_run_of_the_remote_tells_no_target_that_the_files_do_not_name(
    machine: Callable[[str], Machine], tmp_path: Path
) -> None:
    def change(connection: sqlite3.Connection) -> None:
        told = json.dumps({"rules": {"notify": [{"command": ["no-such-program"]}]}})
        connection.execute("UPDATE run SET manner = json_patch(manner, ?)", (told,))
        connection.execute("UPDATE event SET body = json_set(body, '$.given', json('{\"in_python\": true}'))")

    first = machine("first")
    first.submit()
    replace_snapshot(first, change, tmp_path)
    ran = machine("second").retrieve(code=0)
    assert "command no-such-program is not told of this run" in ran.err


def test_content_that_a_run_of_the_remote_names_is_read_from_its_folder_alone(tmp_path: Path) -> None:
    folder = tmp_path / ".agac/remote"
    (folder / "abc").mkdir(parents=True)
    for path, kept in (
        (folder / "abc/x.md", folder / "abc/x.md"), (folder / "../../secret", Path()), (tmp_path / "secret", Path()),
    ):  # fmt: skip
        assert kept_here(RemoteContent("https://example.invalid/x.md", "x.md", "abc", path=path), folder).path == kept


STATES = {
    "another run": {"run_id": 1}, "another number": {"id": 1}, "another intent": {"intent": "x"},
    "a file": {"file": "../../x"}, "no column": {"later": 1}, "a step": {"state": "LOST"},
    "outputs": {"outputs": "{"}, "a provider": {"provider_id": "../x"}, "counts": {"counts": '{"a": "b"}'},
}  # fmt: skip


@pytest.mark.parametrize("poison", STATES)
def test_the_state_of_a_batch_says_how_it_is_and_not_whose(
    poison: str, batched: Path, writer: sqlite3.Connection, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(batched)) as connection:
        (intent,) = connection.execute("SELECT intent FROM batch LIMIT 1").fetchone()
    content, before = snapshot_of(batched, "SELECT 1", tmp_path), dumped(writer)
    with pytest.raises(Damaged):
        take(content, {intent: STATES[poison]}, writer)
    assert dumped(writer) == before
    take(content, {intent: {"note": "as it was"}, "of-nobody": {"note": "x"}}, writer)
    assert writer.execute("SELECT note FROM batch WHERE intent = ?", (intent,)).fetchone() == ("as it was",)


def test_a_snapshot_unpacks_to_a_bounded_length(
    batched: Path, writer: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = snapshot_of(batched, "SELECT 1", tmp_path)
    monkeypatch.setattr(snapshot, "_most_unpacked", lambda packed: 10_000)
    with pytest.raises(Damaged, match="more than 10,000 bytes"):
        take(content, {}, writer)


async def test_the_log_of_a_workflow_is_read_strictly(tmp_path: Path) -> None:
    remote = ObjectStore("remote", tmp_path)
    twice = json.dumps(ENTRY).replace('"writer": "ci"', '"writer": "mallory", "writer": "ci"')
    await remote.create(f"v1/control/w/{entry_name(1)}", json.dumps(ENTRY).encode())
    await remote.create(f"v1/control/w/{entry_name(2)}", twice.replace('"number": 1', '"number": 2').encode())
    found = await control.Control(remote, "w", "ci", []).last()
    assert found is not None
    assert found.number == 1
