"""What a simulator keeps in its state file: over restarts, kills and several processes; Azure's address."""

import asyncio
import json
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from support.batchclient import BatchClient, as_jsonl, question, rows, statuses
from support.processes import processes
from support.server import started

from agac.simulator.app import Simulator
from agac.simulator.batch_store import BatchStore
from agac.simulator.settings import Settings, SimulatorError

pytestmark = processes


@asynccontextmanager
async def client_of(ready: dict[str, Any]) -> AsyncIterator[BatchClient]:
    async with aiohttp.ClientSession() as session:
        yield BatchClient(session, ready["base_url"].removesuffix("/v1"))


async def looked(api: BatchClient, batch_id: str) -> dict[str, Any]:
    """A batch once it has ended."""
    batch = await api.look(batch_id)
    while batch["status"] in ("validating", "in_progress", "finalizing"):
        batch = await api.look(batch_id)
    return batch


async def test_a_batch_goes_on_while_no_simulator_runs(served: Any, tmp_path: Path) -> None:
    settings = {"state": tmp_path / "state" / "sim.db", "batch_seconds": 1000}
    async with served(**settings) as client:
        batch = await client.batches.create(10, metadata={"agac_intent": "key"})
        await client.batches.advance(300)
        assert (await client.batches.look(batch))["request_counts"]["completed"] == 3
    async with served(**settings) as client:
        api: BatchClient = client.batches
        assert (await api.ok("GET", "/batches"))["data"][0]["id"] == batch["id"]
        await api.advance(800)
        ended = await api.look(batch)
        assert (ended["status"], ended["metadata"]) == ("completed", {"agac_intent": "key"})
        assert statuses(await api.results(ended)) == {f"r-{n}": 200 for n in range(1, 11)}
        counted = await api.counted()
        assert (counted["created"], counted["charged"], counted["duplicates"], counted["posts"]) == (1, 10, 0, 1)
        assert counted["requests"] == 10


async def test_a_kill_in_the_middle_charges_nothing_twice(tmp_path: Path) -> None:
    flags = ["--state", str(tmp_path / "sim.db")]
    count = 8000
    with started(*flags) as (child, ready):
        async with client_of(ready) as api:
            batch_id = (await api.create(as_jsonl(rows(count))))["id"]
        while not executed(tmp_path / "sim.db"):
            pass
        child.kill()
        child.wait(30)
    with started(*flags) as (_, ready):
        async with client_of(ready) as api:
            assert len(await api.results(await looked(api, batch_id))) == count
            counted = await api.counted()
            assert (counted["charged"], counted["duplicates"], counted["requests"]) == (count, 0, count)


def executed(path: Path) -> int:
    """How much of the only batch is done, by the state file."""
    with sqlite3.connect(path) as db:
        (told,) = db.execute("SELECT told FROM batch").fetchone()
    db.close()
    return int(json.loads(told)["executed"])


async def test_two_processes_share_a_state_file(tmp_path: Path) -> None:
    flags = ["--state", str(tmp_path / "sim.db")]
    count = 5000
    with started(*flags) as (_, first), started(*flags) as (_, second):
        async with client_of(first) as one, client_of(second) as other:
            made = await one.create(as_jsonl(rows(count)))
            seen = await asyncio.gather(*(looked(api, made["id"]) for api in (one, other, one, other)))
            assert all(batch == seen[0] for batch in seen)
            assert len(await other.results(seen[0])) == count
            assert (await one.counted())["charged"] == (await other.counted())["charged"] == count


async def test_single_requests_are_answered_while_a_batch_is_worked_at(api: BatchClient) -> None:
    batch = await api.create(as_jsonl(rows(8000)))
    look = asyncio.create_task(api.look(batch))
    answered = 0
    while not look.done():
        await api.ok("POST", "/chat/completions", question("Are you there?"))
        answered += 1
    assert (await look)["status"] in ("completed", "in_progress")
    assert answered >= 5


async def test_what_is_temporary_is_gone_at_the_end_and_looking_creates_nothing(
    batches: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for settings in ({}, {"state": tmp_path / "sim.db"}):
        async with batches(**settings) as api:
            assert ((await api.ok("GET", "/batches"))["data"], (await api.ok("GET", "/files"))["data"]) == ([], [])
            assert (await api.call("GET", "/batches/batch_x"))[0] == 404
            assert (await api.call("GET", "/files/file-x"))[0] == 404
            counted = await api.counted()
            assert (counted["created"], counted["calls"]) == (0, {"files": 2, "list": 1, "poll": 1})
            await api.ok("POST", "/chat/completions", question("x"))
            assert list(tmp_path.iterdir()) == []
            if not settings:
                await api.run(2)
                assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["agac"]
        assert list(tmp_path.iterdir()) == []


def other_program(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (a)")
    db.close()


def newer(path: Path) -> None:
    store = BatchStore(path)
    store.db()
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda path: path.write_text("not a database, but long enough to be taken for one" * 20), "not a database"),
        (Path.mkdir, "unable to open"),
        (other_program, "another program"),
        (newer, "another version"),
    ],
)
def test_state_files_that_are_none_are_said_with_all_else(
    tmp_path: Path, prepare: Callable[[Path], Any], words: str
) -> None:
    path = tmp_path / "sim.db"
    prepare(path)
    with pytest.raises(SimulatorError) as caught:
        Simulator(Settings(state=path, batch_seconds=-1))
    seconds, state = caught.value.problems
    assert seconds == "batch-seconds is -1; use 0 or more"
    assert state.startswith(f"state file {path} cannot be used: ")
    assert words in state
    assert state.endswith("; name another one")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_cannot_be_written_to_is_said_at_the_start(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SimulatorError, match="cannot be created in"):
        BatchStore(tmp_path / "sub" / "sim.db").check()
    tmp_path.chmod(0o700)


async def test_azure_is_served_at_its_own_address(api: BatchClient) -> None:
    azure = BatchClient(api.session, api.root, "/openai/v1")
    batch = await azure.run(3)
    assert batch["status"] == "completed"
    assert await azure.content(batch["error_file_id"]) == b""
    assert len(await azure.results(batch)) == 3
    assert (await azure.run(2))["status"] == "completed"
    failed = await azure.run(b"{}\n")
    assert failed["request_counts"] == {"total": None, "completed": None, "failed": None}
    assert failed["status"] == "failed"
    assert [len((await one.ok("GET", "/batches"))["data"]) for one in (api, azure)] == [0, 3]
    await azure.ok("POST", "/chat/completions", question("x"))


async def test_azure_gives_no_batch_up(served: Any) -> None:
    async with (
        served(batch_seconds=2 * 86_400) as client,
        openai.AsyncOpenAI(base_url=f"{client.root}/openai/v1", api_key="k", max_retries=0) as sdk,
    ):
        made = await sdk.files.create(file=("agac-key.jsonl", as_jsonl(rows(10))), purpose="batch")
        batch = await sdk.batches.create(
            input_file_id=made.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        for days, completed, status in ((1.5, 7, "in_progress"), (1, 10, "completed")):
            await client.batches.advance(86_400 * days)
            batch = await sdk.batches.retrieve(batch.id)
            assert batch.request_counts is not None
            assert (batch.request_counts.completed, batch.status) == (completed, status)
        assert batch.error_file_id is not None
        assert len((await sdk.files.content(batch.output_file_id or "")).text.splitlines()) == 10
        assert [one.id async for one in sdk.batches.list()] == [batch.id]
