"""What a worker does with a chunk: in this process, as on any other machine."""

import asyncio
import os
import pickle
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.canned import Answer, Canned, completion
from support.canned import canned as served
from support.functions import Tools

from agac.core.errors import ErrorType, RowError, UsageError
from agac.engine.workers.pool import CallItem, Chunk, Ended, FunctionItem, WorkerSetup
from agac.engine.workers.work import ChunkWorker, unpacked_replies
from agac.spec.project_models import ProviderSpec
from agac.spec.rules import Timeout
from agac.tools.tool_functions import ToolFailed, ToolTimeout, describe

KEY = "sk-live-1234567890abcdef"
BODY = b'{"model": "small", "messages": []}'


@pytest.fixture
def canned() -> Iterator[Canned]:
    with served() as told:
        yield told


def setup(root: Path, base_url: str = "http://127.0.0.1:9", **keys: Any) -> WorkerSetup:
    provider = ProviderSpec(dialect="openai-chat", base_url=base_url, api_key="${LOCAL_KEY}")
    return WorkerSetup(str(root), {"local": provider}, **{"asked": ["local"], "token": "t0", **keys})


def call(number: int) -> CallItem:
    return CallItem(number, "local", "body", BODY, Timeout(total=30.0))


async def worked(worker: ChunkWorker, *items: Any, expires_at: float | None = None) -> dict[int, Ended]:
    """What came of these items."""
    ended: list[Ended] = []
    await worker.take(Chunk("c1", items, time.time() + 60 if expires_at is None else expires_at))
    while len(ended) < len(items):
        ended += await worker.collect()
    await worker.close()
    return {one.number: pickle.loads(pickle.dumps(one)) for one in ended}


def test_calls_are_sent_with_the_key_of_the_workers_own_environment(tmp_path: Path, canned: Canned) -> None:
    canned.answers("POST /chat/completions", Answer(completion(f"your key is {KEY}"), headers={"x-request-id": "r1"}))
    (tmp_path / "replies").mkdir()
    worker = ChunkWorker(setup(tmp_path, canned.base_url, remote="replies"), {"LOCAL_KEY": KEY})
    assert asyncio.run(worker.hello()).missing == ()
    done = asyncio.run(worked(worker, call(1), call(2)))
    assert [done[n].value.status for n in (1, 2)] == [200, 200]
    assert {one.headers["Authorization"] for one in canned.asked} == {f"Bearer {KEY}"}
    # what goes back, and what is kept in the remote, holds no secret
    assert all(b"your key is [redacted]" in one.value.body for one in done.values())
    files = sorted((tmp_path / "replies/v1/chunks/t0/c1").glob("*.replies"))
    kept = {number: one for file in files for number, one in unpacked_replies(file.read_bytes()).items()}
    assert {n: one._replace(headers={}) for n, one in kept.items()} == {
        n: one.value._replace(headers={}) for n, one in done.items()
    }
    assert kept[1].headers["X-Request-ID"] == "r1"


def test_a_key_comes_from_the_env_file_of_the_project_where_the_worker_has_one(
    tmp_path: Path, canned: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_KEY", raising=False)
    assert asyncio.run(ChunkWorker(setup(tmp_path)).hello()).missing == ("LOCAL_KEY",)
    (tmp_path / ".env").write_text(f"LOCAL_KEY={KEY}\n")
    assert asyncio.run(ChunkWorker(setup(tmp_path)).hello()).missing == ()


def test_a_call_whose_chunk_expired_is_not_sent(tmp_path: Path, canned: Canned) -> None:
    worker = ChunkWorker(setup(tmp_path, canned.base_url), {"LOCAL_KEY": KEY})
    done = asyncio.run(worked(worker, call(1), expires_at=time.time() - 1))
    assert done == {1: Ended(1, pytest.approx(time.time(), abs=60), unsent=True)}
    assert canned.asked == []


def test_refusals_and_faults_come_back_and_are_not_kept(tmp_path: Path, canned: Canned) -> None:
    (tmp_path / "replies").mkdir()
    refused = Answer({"error": {"message": "slow down"}}, 429, headers={"Retry-After": "7"})
    canned.answers("POST /chat/completions", refused, Answer(drop="unanswered"))
    worker = ChunkWorker(setup(tmp_path, canned.base_url, remote="replies"), {"LOCAL_KEY": KEY})
    values = sorted((one.value for one in asyncio.run(worked(worker, call(1), call(2))).values()), key=repr)
    fault, reply = values
    assert (fault.ambiguous, reply.status, reply.headers["retry-after"]) == (True, 429, "7")
    assert list((tmp_path / "replies").rglob("*.replies")) == []


def test_a_remote_that_cannot_be_written_is_said_once_and_replies_count(tmp_path: Path, canned: Canned) -> None:
    canned.answers("POST /chat/completions", Answer(completion("yes")))
    worker = ChunkWorker(setup(tmp_path, canned.base_url, remote="not/there"), {"LOCAL_KEY": KEY})

    async def two() -> list[Any]:
        await worker.take(Chunk("c1", (call(1),), time.time() + 60))
        first = await worker.collect()
        said.append(worker.said.pop())  # as the process does that hands it on
        return [*first, *(await worked(worker, call(2))).values()]

    said: list[str] = []
    assert [one.value.status for one in asyncio.run(two())] == [200, 200]
    assert "replies are not kept in the remote" in said[0]
    assert worker.said == []
    assert not (tmp_path / "not").exists()


def test_a_remote_that_does_not_answer_holds_replies_back_for_a_moment(
    tmp_path: Path, canned: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned.answers("POST /chat/completions", Answer(completion("yes")))
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setattr("agac.engine.workers.work.REMOTE", 0.2)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ALLOW_HTTP"):
            monkeypatch.setenv(name, "true")
        worker = ChunkWorker(setup(tmp_path, canned.base_url, remote="s3://answers"), {"LOCAL_KEY": KEY})
        began = time.monotonic()
        done = asyncio.run(worked(worker, call(1)))
    assert time.monotonic() - began < 10
    assert done[1].value.status == 200
    assert [text.partition(": ")[2] for text in worker.said] == [
        "replies are not kept in the remote: no answer in 0.2 s"
    ]


FUNCTIONS = """
import asyncio
import os

def size(row):
    if row["text"] == "die":
        os._exit(3)
    return {"size": len(row["text"]), "pid": os.getpid()}

def look(word: str, times: int = 1, idempotency_key: str = "") -> str:
    '''Looks a word up.'''
    if word == "bad":
        raise ValueError("no such word")
    return " ".join([word] * times) + " " + idempotency_key

async def rest(word: str) -> str:
    '''Rests.'''
    await asyncio.sleep(60)
"""


def test_functions_of_stages_and_tools_run_as_they_do_at_the_driver(tmp_path: Path) -> None:
    tools = Tools(tmp_path)
    tools.write("tools/clean.py", FUNCTIONS)
    stage = tools.ref("tools/clean.py:size")
    tool, rest = [describe(tools.ref(f"tools/clean.py:{name}"), tmp_path) for name in ("look", "rest")]
    items = [
        FunctionItem(1, stage, {"text": "four"}),
        FunctionItem(2, stage, {"text": "three"}, processes=1),
        FunctionItem(3, stage, {"text": "die"}, processes=1),
        FunctionItem(4, tool, {"word": "a", "times": 2}, timeout=30.0, key="k1"),
        FunctionItem(5, tool, {"word": "bad"}, timeout=30.0, key="k2"),
        FunctionItem(6, rest, {"word": "a"}, timeout=0.1),
    ]
    worker = ChunkWorker(setup(tmp_path, functions=[stage, tool, rest]), {"LOCAL_KEY": KEY})
    asyncio.run(worker.hello())
    done = {number: one.value for number, one in asyncio.run(worked(worker, *items)).items()}
    assert done[1] == {"size": 4, "pid": os.getpid()}
    assert done[2]["size"] == 5
    assert done[2]["pid"] != os.getpid()
    assert isinstance(done[3], RowError)
    assert done[3].type is ErrorType.PYTHON_ERROR
    assert "exit status 3" in done[3].message
    assert done[4].startswith("a a")
    assert isinstance(done[5], ToolFailed)
    assert "no such word" in str(done[5])
    assert isinstance(done[6], ToolTimeout)


def test_files_that_differ_from_the_drivers_are_refused_all_at_once(tmp_path: Path) -> None:
    tools = Tools(tmp_path)
    tools.write("tools/clean.py", FUNCTIONS)
    tools.write("tools/more.py", "def f(row):\n    return row\n")
    found = [tools.ref("tools/clean.py:size"), tools.ref("tools/more.py:f")]
    tools.write("tools/clean.py", FUNCTIONS + "\nX = 1\n")
    (tmp_path / "tools/more.py").unlink()
    with pytest.raises(UsageError, match=r"worker on .*another one.*is not there") as refused:
        asyncio.run(ChunkWorker(setup(tmp_path, functions=found), {"LOCAL_KEY": KEY}).hello())
    assert "same path" in str(refused.value.remedy)
    # a call that comes all the same fails its row, and no other
    items = FunctionItem(1, found[0], {"text": "x"}), FunctionItem(2, found[1], {"text": "x"})
    done = asyncio.run(worked(ChunkWorker(setup(tmp_path), {"LOCAL_KEY": KEY}), *items))
    assert all(isinstance(one.value, RowError) for one in done.values())


def test_what_ended_goes_to_who_asked_last(tmp_path: Path, canned: Canned) -> None:
    """The answer to an earlier question would reach nobody: its connection broke."""
    canned.answers("POST /chat/completions", Answer(completion("yes")))
    worker = ChunkWorker(setup(tmp_path, canned.base_url), {"LOCAL_KEY": KEY})

    async def both() -> tuple[list[Ended], list[Ended]]:
        earlier, later = [asyncio.create_task(worker.collect()) for _ in range(2)]
        await worker.take(Chunk("c1", (call(1),), time.time() + 60))
        found = await earlier, await later
        await worker.close()
        return found

    nobody, found = asyncio.run(both())
    assert (nobody, [one.number for one in found]) == ([], [1])


def test_an_empty_collect_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agac.engine.workers.work.BEAT", 0.01)
    assert asyncio.run(ChunkWorker(setup(tmp_path), {}).collect()) == []
