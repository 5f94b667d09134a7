"""What shards tell each other in a folder of a remote: leases, signs of life, logs."""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agac.core.errors import AgacError, LeaseHeld, LeaseLost
from agac.core.keys import shard_of
from agac.core.types import Row, Shard
from agac.data.object_store import ObjectStore
from agac.data.sources import InputDigest, rows_of_shard
from agac.engine.sharding.folder import (
    LeaseEntry,
    ShardFolder,
    ShardManifest,
    ShardStatus,
    folder_key,
)
from agac.engine.sharding.shard_lease import ShardLease
from agac.plan.plan import Selection

ELSEWHERE = "runner-7 0000-0000/pid:[1] 12 34"
"""A process of another machine."""
THIRD = Shard(3, 16)
Open = Callable[..., ShardFolder]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    return lambda *trust: ShardFolder(ObjectStore("remote", tmp_path), "my reviews/a", "k", trust or ("ci",))


def status(lease: ShardLease, **more: Any) -> ShardStatus:
    return ShardStatus(**{**lease.about(), **lease.shard._asdict(), "run": 1, **more})


def ended(lease: ShardLease, **more: Any) -> bytes:
    told = status(lease, state="ended")
    about: dict[str, Any] = {"exit_code": 0, "complete": True, "input": "i", "input_rows": 9}
    manifest = ShardManifest(**lease.about(), status=told, summary={"rows": {"done": 9}}, **about | more)
    return manifest.model_dump_json().encode()


def test_a_shard_is_written_in_words_and_in_names() -> None:
    assert (str(THIRD), THIRD.name) == ("3/16", "3-of-16")
    assert Shard.read("3/16") == THIRD == Shard.read("3-of-16", "-of-")
    assert [Shard.read(text) for text in ("", "3", "0/4", "5/4", "a/4", "1/0", "³/4", "-1/4", "1/1000000")] == [
        None
    ] * 9
    selection = Selection(5, shard=THIRD)
    assert selection.text() == '{"limit":5,"offset":0,"shard":[3,16]}'
    assert Selection(limit=5, shard=[3, 16]) == selection  # type: ignore[arg-type]
    assert Selection().text() == "{}"


@given(st.lists(st.text(max_size=8) | st.integers(1, 10**9), unique=True), st.integers(1, 20), st.booleans())
def test_each_row_is_in_one_shard_and_others_do_not_move_it(ids: list[str | int], of: int, suffixed: bool) -> None:
    rows = [Row(one, number, {"x": number}) for number, one in enumerate(ids, 1)]
    reads = [InputDigest() for _ in range(of)]
    parts = [list(rows_of_shard(rows, Shard(n + 1, of), suffixed, reads[n])) for n in range(of)]
    assert sorted(row.ordinal for part in parts for row in part) == [row.ordinal for row in rows]
    assert len({(read.text, read.rows) for read in reads}) == 1
    fewer = list(rows_of_shard(rows[::2], Shard(1, of), suffixed, None))
    assert fewer == [row for row in parts[0] if row.ordinal % 2]
    assert all(shard_of(row.id, of) == 1 for row in parts[0] if not suffixed)


def test_rows_whose_ids_are_numbered_stay_together() -> None:
    rows = [Row(one, number, {}) for number, one in enumerate(["a", "a#2", "a#2#7", "a"], 1)]
    home = Shard(shard_of("a", 50), 50)
    assert [row.ordinal for row in rows_of_shard(rows, home, True, None)] == [1, 2, 3, 4]


def test_the_digest_tells_order_ids_and_contents() -> None:
    def read(*rows: Row) -> str:
        found = InputDigest()
        assert list(rows_of_shard(rows, Shard(1, 1), False, found)) == list(rows)
        return found.text

    one, two = Row("a", 1, {"x": 1}), Row("b", 2, {"x": 2})
    found = [
        read(one, two),
        read(two, one),
        read(one),
        read(one, Row("b", 2, {"x": 3})),
        read(one, Row("c", 2, {"x": 2})),
    ]
    assert len(set(found)) == len(found)


async def test_objects_are_created_once_and_logs_grow(opened: Open) -> None:
    first, second = opened(), opened()
    assert await first.create("rows/a", b"1")
    assert not await second.create("rows/a", b"2")
    assert await second.read("rows/a") == b"1"
    assert await second.names("rows") == {"rows/a": 1}
    assert await first.append("budget", lambda last: b"one" if last is None else None) == b"one"
    assert await second.append("budget", lambda last: (last or b"") + b"+two") == b"one+two"
    assert await first.append("budget", lambda last: None) == b"one+two"
    assert await first.last("budget") == (2, b"one+two")


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(1, 5))
def test_a_log_loses_nothing_that_several_append(tmp_path_factory: Any, writers: int, times: int) -> None:
    root = tmp_path_factory.mktemp("remote")

    def opened() -> ShardFolder:
        return ShardFolder(ObjectStore("remote", root), "w", "k", ["ci"])

    async def write(who: int) -> None:
        own = opened()
        for number in range(times):
            await own.append("log", lambda last, number=number: (last or b"") + b"%d.%d " % (who, number))

    async def all_of_them() -> bytes:
        await asyncio.gather(*map(write, range(writers)))
        return (await opened().last("log"))[1] or b""

    content = asyncio.run(all_of_them())
    assert Counter(content.split()) == Counter(b"%d.%d" % (w, n) for w in range(writers) for n in range(times))


async def test_one_process_has_a_shard(opened: Open) -> None:
    lease = ShardLease(opened(), THIRD, "ci")
    async with lease.held():
        with pytest.raises(
            LeaseHeld, match=rf"shard 3/16 of workflow 'my reviews/a' is being run by ci .*{os.getpid()}"
        ):
            async with ShardLease(opened(), THIRD, "ci").held():
                raise AssertionError
        async with ShardLease(opened(), Shard(4, 16), "ci").held():
            assert {n: one.state for n, one in (await opened().statuses()).items()} == {3: "running", 4: "running"}
    async with ShardLease(opened(), THIRD, "ci").held():
        await lease.folder.append("ended/3-of-16", lambda _: b"{}")
    assert {one.state for one in (await opened().statuses()).values()} == {"stopped"}, "they said no end"


async def test_who_shows_no_sign_of_life_is_taken_over_and_stops(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agac.engine.sharding.shard_lease.this_process", lambda: ELSEWHERE)
    now = [time.time() - 400.0]
    slow = ShardLease(opened(), THIRD, "ci", lambda: now[0])
    async with slow.held():
        assert (await opened().statuses())[3].state == "silent"
        fast = ShardLease(opened(), THIRD, "ci")
        async with fast.held():
            await slow.prove()  # a moment ago it was ours, by its clock
            with pytest.raises(LeaseLost, match="another process took over shard 3/16"):
                await slow.beat(status(slow))
            with pytest.raises(LeaseLost):
                await slow.prove()
            await fast.beat(status(fast, rows={"done": 4}))
            found = (await opened().statuses())[3]
            assert (found.state, found.rows) == ("running", {"done": 4})
            with pytest.raises(LeaseHeld):
                async with ShardLease(opened(), THIRD, "ci").held():
                    raise AssertionError
        assert (await opened().statuses())[3].state == "stopped"


async def test_after_a_silence_the_lease_is_proved(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agac.engine.sharding.shard_lease.this_process", lambda: ELSEWHERE)
    now = [time.time() - 400.0]
    slow = ShardLease(opened(), THIRD, "ci", lambda: now[0])
    async with slow.held():
        now[0] += 100.0
        await slow.prove()
        assert (await opened().last("lease/3-of-16"))[0] == 2
        async with ShardLease(opened(), THIRD, "ci").held():
            now[0] = time.time()
            with pytest.raises(LeaseLost):
                await slow.prove()


async def test_signs_of_life_keep_a_shard_and_its_end_says_how_it_is(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agac.engine.sharding.shard_lease.this_process", lambda: ELSEWHERE)
    now = [time.time() - 400.0]
    lease, folder = ShardLease(opened(), THIRD, "ci", lambda: now[0]), opened()
    async with lease.held():
        for seconds in (380.0, 395.0):
            now[0] = time.time() - 400.0 + seconds
            await lease.beat(status(lease, calls=int(seconds)))
        assert (await folder.alive())[3].calls == 395
        assert (await folder.statuses())[3].state == "running"
        with pytest.raises(LeaseHeld):
            async with ShardLease(opened(), THIRD, "ci").held():
                raise AssertionError
        await folder.append("ended/3-of-16", lambda _: ended(lease))
    assert (await folder.statuses())[3].state == "ended"
    assert (await folder.manifests())[3].input_rows == 9


async def test_a_lease_that_was_made_without_our_hearing_of_it_is_ours(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = ShardLease(opened(), THIRD, "ci")

    async def cut_off(folder: ShardFolder, name: str, content: bytes) -> bool:
        monkeypatch.undo()
        await folder.create(name, content)
        return False  # as a bucket says to the second try

    monkeypatch.setattr(ShardFolder, "create", cut_off)
    async with lease.held():
        await lease.beat(status(lease))
    assert (await opened().statuses())[3].state == "stopped"


async def test_hundreds_of_shards_are_looked_at_in_few_requests(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = [ShardLease(opened(), Shard(number, 16), "ci") for number in range(1, 17)]
    for lease in leases:
        async with lease.held():
            await lease.beat(status(lease, calls=1))
            await lease.beat(status(lease, calls=2))
            await lease.folder.append(f"ended/{lease.shard.name}", lambda _, lease=lease: ended(lease))
    asked, folder = Counter[str](), opened()
    for name in ("sizes", "read"):
        known = getattr(ObjectStore, name)

        def counted(self: ObjectStore, *about: Any, known: Any = known, name: str = name) -> Any:
            asked[name] += 1
            return known(self, *about)

        monkeypatch.setattr(ObjectStore, name, counted)
    assert {one.state for one in (await folder.statuses()).values()} == {"ended"}
    assert asked == {"sizes": 7, "read": 3 * 16}  # leases, ends and minutes
    before = await folder.alive(in_full=False)
    await leases[0].folder.beat(status(leases[0], calls=3), 3)
    assert await folder.alive(in_full=False) == before
    await leases[0].beat(status(leases[0], state="ended", calls=4))
    assert (await folder.alive(in_full=False))[1].calls == 4
    assert asked["read"] == 3 * 16 + 1 + 1  # with the lease that it proved


async def test_what_others_wrote_is_not_believed(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    lease = ShardLease(opened("mallory"), THIRD, "mallory")
    async with lease.held():
        await lease.beat(status(lease))
        await lease.folder.append("ended/3-of-16", lambda _: ended(lease))
        assert await opened().statuses() == await opened().alive() == await opened().manifests() == {}
        assert "its writer 'mallory' is not trusted" in caplog.text
        with pytest.raises(AgacError, match="ends with what cannot be believed"):
            async with ShardLease(opened(), THIRD, "ci").held():
                raise AssertionError
    future = {**lease.about(), "at": time.time() + 1e6, "writer": "ci"}
    await opened().create("lease/3-of-16/0000000009", LeaseEntry(**future).model_dump_json().encode())
    assert await opened().statuses() == {}


def test_a_folder_is_named_after_definition_selection_and_number_of_shards() -> None:
    keys = {folder_key(*about) for about in ((b"a", "{}", 4), (b"b", "{}", 4), (b"a", "{}", 5), (b"a", "{1}", 4))}
    assert len(keys) == 4


def test_a_process_ends_after_the_threads_of_the_remote(tmp_path: Path) -> None:
    program = """
import _thread
from pathlib import Path
from agac.data import object_store

def foreign():
    began.release()
    held.acquire()

began, held, naps = _thread.allocate_lock(), _thread.allocate_lock(), []
began.acquire(), held.acquire()
object_store.ObjectStore("remote", Path("."))
_thread.start_new_thread(foreign, ())
began.acquire()
object_store.time.sleep = lambda seconds: (naps.append(seconds), len(naps) == 3 and held.release())
object_store._wait()
print(len(naps) >= 3)
"""
    done = [sys.executable, "-c", program]
    assert subprocess.run(done, cwd=tmp_path, stdout=subprocess.PIPE, check=True).stdout == b"True\n"
