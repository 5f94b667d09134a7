"""Files and batches as OpenAI has them: uploads, validation, progress by the clock, results, what is charged."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from support.batchclient import BatchClient, as_jsonl, line, question, rows, statuses

from agac.simulator import openai_batches
from agac.simulator.batch_store import BatchStore


async def test_the_sdk_uploads_creates_follows_and_downloads(served: Any, tmp_path: Path) -> None:
    path = tmp_path / "agac-key.jsonl"
    path.write_bytes(as_jsonl(rows(3)))
    async with served() as client, openai.AsyncOpenAI(base_url=client.base_url, api_key="k", max_retries=0) as sdk:
        with path.open("rb") as file:
            made = await sdk.files.create(file=(path.name, file), purpose="batch")
        assert (made.filename, made.bytes, made.purpose) == (path.name, path.stat().st_size, "batch")
        assert made.expires_at == made.created_at + 30 * 86_400
        batch = await sdk.batches.create(
            input_file_id=made.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"agac_intent": "key"},
        )
        assert (batch.status, batch.metadata, batch.output_file_id) == ("validating", {"agac_intent": "key"}, None)
        assert batch.expires_at == batch.created_at + 86_400
        batch = await sdk.batches.retrieve(batch.id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 3, "completed": 3, "failed": 0}
        assert (batch.error_file_id, batch.errors, batch.model) == (None, None, "small")
        output = await sdk.files.content(batch.output_file_id or "")
        lines = [json.loads(one) for one in output.text.splitlines()]
        assert [one["custom_id"] for one in lines] == ["r-1", "r-2", "r-3"]
        assert batch.usage is not None
        told = [one["response"]["body"]["usage"]["total_tokens"] for one in lines]
        assert batch.usage.total_tokens == sum(told) > 0
        assert [one.id async for one in sdk.batches.list()] == [batch.id]
        assert [one.id async for one in sdk.files.list(purpose="batch")] == [made.id]
        assert (await sdk.files.retrieve(made.id)).id == made.id
        assert (await sdk.files.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await sdk.files.content(made.id)


async def test_an_answer_is_the_one_that_a_single_request_gets(served: Any) -> None:
    body = question("What is it about? " + "Zoë ☃ \u2028 end", max_tokens=50)
    asked = {"model": "small", "input": "Say it", "instructions": "Be brief"}
    async with served(seed=7) as client:
        batch = await client.batches.run([line("a", body)])
        (result,) = (await client.batches.results(batch)).values()
        _, _, raw = await client.post(body)
        assert (result["response"]["body"], result["error"]) == (json.loads(raw), None)
        assert set(result) == {"id", "custom_id", "response", "error"}
        assert result["response"]["status_code"] == 200
        assert result["response"]["request_id"].startswith("req_")
        account = await client.account()
        assert (account["charged"], account["duplicates"]) == (1, 1)
        assert (account["batches"]["charged"], account["batches"]["duplicates"]) == (1, 0)
        batch = await client.batches.run([line("b", asked, url="/v1/responses")], endpoint="/v1/responses")
        (result,) = (await client.batches.results(batch)).values()
        async with client.session.post(f"{client.base_url}/responses", json=asked) as response:
            assert result["response"]["body"] == await response.json()


async def test_what_a_single_request_was_charged_for_is_a_duplicate_in_a_batch(client: Any) -> None:
    await client.post(question("Again?"))
    lines = [line("a", question("Again?")), line("b", question("Again?")), line("c", question("New?"))]
    await client.batches.run(lines)
    counted = await client.batches.counted()
    assert (counted["charged"], counted["duplicates"], counted["requests"]) == (3, 2, 3)
    await client.batches.run(lines)
    counted = await client.batches.counted()
    assert (counted["charged"], counted["duplicates"]) == (6, 5)


async def test_letters_stand_in_results_as_they_are(api: BatchClient) -> None:
    text = "Zoë ☃ \u2028 \U0001f600\r\nend"
    halved = b'{"custom_id": "half", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "echo", '
    halved += b'"messages": [{"role": "user", "content": "a \\ud83d b"}]}}\n'
    lines = as_jsonl([line("a", question(text, model="echo"))]) + halved
    batch = await api.run(lines)
    raw = await api.content(batch["output_file_id"])
    assert "Zoë ☃ \u2028 \U0001f600\\r\\nend" in raw.decode()
    assert raw.count(b"\n") == 2
    half = json.loads(raw.split(b"\n")[1])
    assert half["response"]["body"]["choices"][0]["message"]["content"] == "a \ud83d b"


INVALID = [
    ([line("a"), b"{no json}"], [("invalid_json_line", 2)]),
    ([b"[1, 2]"], [("invalid_json_line", 1)]),
    ([line("a"), line("b"), line("a")], [("duplicate_custom_id", 3)]),
    ([line("a"), line("b", url="/v1/responses")], [("url_mismatch", 2)]),
    ([line("a"), line("b", question("x", model="large"))], [("model_mismatch", 2)]),
    ([line("a", question("x", model="is-missing"))], [("model_not_found", 1)]),
    ([{**line("a"), "custom_id": "x" * 65}], [("invalid_custom_id", 1)]),
    ([{**line("a"), "method": "GET"}], [("invalid_method", 1)]),
    ([{"custom_id": "a"}], [("missing_required_parameter", 1)]),
    ([line("a", {"messages": []})], [("invalid_request", 1)]),
    ([b"\xef\xbb\xbf" + json.dumps(line("a")).encode()], [("invalid_json_line", 1)]),
    ([line("a"), b"", line("b"), b"x"], [("invalid_json_line", 2), ("invalid_json_line", 4)]),
    ([b"\xff"], [("invalid_json_line", 1)]),
]


@pytest.mark.parametrize(("lines", "expected"), INVALID)
async def test_a_batch_whose_input_is_wrong_fails_and_nothing_of_it_runs(
    api: BatchClient, lines: Any, expected: Any
) -> None:
    raw = b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines)
    created = await api.create(raw)
    assert created["status"] == "validating"
    batch = await api.look(created)
    assert batch["status"] == "failed"
    assert batch["failed_at"]
    assert [(error["code"], error["line"]) for error in batch["errors"]["data"]] == expected
    assert all(error["message"] for error in batch["errors"]["data"])
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    counted = await api.counted()
    assert (counted["rejected"], counted["charged"], counted["requests"]) == (1, 0, 0)


async def test_files_of_nothing_and_of_too_much_are_refused(api: BatchClient, monkeypatch: pytest.MonkeyPatch) -> None:
    status, data = await api.try_upload(b"", purpose="batch")
    assert (status, data["error"]["message"]) == (400, "The file is empty.")
    monkeypatch.setattr(openai_batches, "MAX_INPUT_BYTES", 100)
    for lines, code in ((as_jsonl(rows(2)), "file_too_large"), (b"\n \n", "empty_file")):
        assert [error["code"] for error in (await api.run(lines))["errors"]["data"]] == [code]
    monkeypatch.undo()
    batch = await api.run(as_jsonl(rows(50_001)))
    assert [error["code"] for error in batch["errors"]["data"]] == ["too_many_tasks"]
    assert len((await api.run(b"\n".join([b"x"] * 500)))["errors"]["data"]) == 100


@pytest.mark.parametrize(
    ("name", "fields", "param"),
    [
        ("a.txt", {"purpose": "batch"}, "file"),
        ("a.jsonl", {"purpose": "fun"}, "purpose"),
        ("a.jsonl", {}, "purpose"),
    ],
)
async def test_uploads_that_openai_refuses_are_refused(api: BatchClient, name: str, fields: Any, param: str) -> None:
    status, data = await api.try_upload(rows(1), name=name, **fields)
    assert (status, data["error"]["param"]) == (400, param)
    status, data = await api.call("POST", "/files", {"purpose": "batch"})
    assert status == 400
    empty = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert await api.ok("GET", "/files") == empty


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"input_file_id": None}, "input_file_id"),
        ({"endpoint": "/v1/other"}, "endpoint"),
        ({"endpoint": "/chat/completions"}, "endpoint"),
        ({"completion_window": "48h"}, "completion_window"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 7200}}, "output_expires_after"),
        ({"priority": 1}, "priority"),
    ],
)
async def test_creates_that_openai_refuses_are_refused(api: BatchClient, more: Any, param: str) -> None:
    file_id = await api.upload(rows(1))
    asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"} | more
    status, data = await api.call("POST", "/batches", asked)
    assert (status, data["error"]["param"]) == (400, param), data
    counted = await api.counted()
    assert (counted["posts"], counted["created"], counted["calls"]["create"]) == (1, 0, 1)
    assert (await api.ok("GET", "/batches"))["data"] == []


async def test_requests_that_fail_stand_in_the_error_file_and_cost_nothing(api: BatchClient) -> None:
    lines = [line("good"), line("bad", question("x", temperature=9)), line("streamed", question("x", stream=True))]
    batch = await api.run(lines)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    results = await api.results(batch)
    assert statuses(results) == {"good": 200, "bad": 400, "streamed": 400}
    assert results["bad"]["error"] is None
    assert results["bad"]["response"]["body"]["error"]["param"] == "temperature"
    assert len((await api.content(batch["error_file_id"])).splitlines()) == 2
    assert (await api.counted())["charged"] == 1
    batch = await api.run(lines[1:])
    assert (batch["status"], batch["output_file_id"]) == ("completed", None)


async def test_progress_follows_the_clock_while_nobody_looks(batches: Any) -> None:
    async with batches(batch_seconds=1000) as api:
        batch = await api.create(10)
        assert (await api.look(batch))["status"] == "in_progress"
        assert (await api.look(batch))["request_counts"] == {"total": 10, "completed": 0, "failed": 0}
        await api.advance(450)
        counted = await api.counted()
        assert (counted["charged"], counted["open"]) == (4, 1)
        assert (await api.look(batch))["request_counts"] == {"total": 10, "completed": 4, "failed": 0}
        await api.advance(600)
        ended = await api.look(batch)
        assert (ended["status"], ended["completed_at"]) == ("completed", ended["created_at"] + 1000)
        counted = await api.counted()
        assert (counted["charged"], counted["duplicates"], counted["open"]) == (10, 0, 0)


async def test_a_batch_that_ends_early_keeps_what_was_done(batches: Any) -> None:
    async with batches(batch_seconds=2 * 86_400) as api:
        late, batch = await api.create(10), await api.create(10)
        await api.advance(0.7 * 86_400)
        cancelling = await api.ok("POST", f"/batches/{batch['id']}/cancel")
        assert cancelling["status"] == "cancelling"
        assert cancelling["cancelling_at"]
        ended = await api.look(batch)
        assert (ended["status"], ended["request_counts"]["completed"]) == ("cancelled", 3)
        found = list(statuses(await api.results(ended)).values())
        assert (found.count(200), found.count("batch_cancelled")) == (3, 7)
        await api.advance(3 * 86_400)
        expired = await api.look(late)
        assert (expired["status"], expired["expired_at"]) == ("expired", expired["expires_at"])
        found = list(statuses(await api.results(expired)).values())
        assert (found.count(200), found.count("batch_expired")) == (5, 5)
        counted = await api.counted()
        assert (counted["charged"], counted["cancelled"]) == (8, 1)
        status, data = await api.call("POST", f"/batches/{batch['id']}/cancel")
        assert status == 400
        assert "'cancelled'" in data["error"]["message"]


async def test_lists_have_pages_the_newest_first(api: BatchClient) -> None:
    made = [(await api.create(1))["id"] for _ in range(5)][::-1]
    page = await api.ok("GET", "/batches?limit=2")
    assert [one["id"] for one in page["data"]] == made[:2]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (True, made[0], made[1])
    page = await api.ok("GET", f"/batches?limit=3&after={made[1]}")
    assert [one["id"] for one in page["data"]] == made[2:]
    assert page["has_more"] is False
    assert (await api.call("GET", "/batches?limit=0"))[0] == 400
    assert (await api.call("GET", "/batches?after=batch_none"))[0] == 400
    assert (await api.call("GET", "/batches/batch_none"))[0] == 404
    assert (await api.call("POST", "/batches/batch_none/cancel"))[0] == 404
    files = (await api.ok("GET", "/files?purpose=batch"))["data"]
    assert len(files) == 5
    page = await api.ok("GET", f"/files?purpose=batch&limit=2&after={files[0]['id']}")
    assert [one["id"] for one in page["data"]] == [files[1]["id"], files[2]["id"]]
    assert page["has_more"] is True
    page = await api.ok("GET", f"/files?purpose=batch&after={files[3]['id']}")
    assert [one["id"] for one in page["data"]] == [files[4]["id"]]


async def test_files_and_results_are_kept_for_as_long_as_they_should(api: BatchClient) -> None:
    usual = await api.run(1)
    await api.advance(8000)
    assert (await api.call("GET", f"/files/{usual['output_file_id']}"))[0] == 200
    await api.advance(30 * 86_400)
    for name in ("input_file_id", "output_file_id"):
        assert (await api.call("GET", f"/files/{usual[name]}/content"))[0] == 404
    assert ((await api.look(usual))["status"], (await api.counted())["kept"]) == ("completed", 0)


async def test_an_input_that_is_deleted_while_it_is_worked_at_is_done_all_the_same(batches: Any) -> None:
    async with batches(batch_seconds=100) as api:
        batch = await api.create(4)
        await api.look(batch)
        await api.ok("DELETE", f"/files/{batch['input_file_id']}")
        assert (await api.call("GET", f"/files/{batch['input_file_id']}"))[0] == 404
        await api.advance(100)
        assert statuses(await api.results(await api.look(batch))) == dict.fromkeys(("r-1", "r-2", "r-3", "r-4"), 200)


async def test_a_wrong_key_is_refused_and_the_clock_goes_forward_only(api: BatchClient) -> None:
    for headers in ({"authorization": "Bearer sk-invalid"}, {"api-key": "sk-invalid"}):
        status, data = await api.call("GET", "/batches", headers=headers)
        assert (status, data["error"]["code"]) == (401, "invalid_api_key")
    for asked in ({"advance": -1}, {"advance": "1"}, {"back": 1}, [], {"advance": True}):
        async with api.session.post(f"{api.root}/account/clock", json=asked) as response:
            assert response.status == 400
            assert "object" in (await response.json())["error"]["message"]


async def test_a_reset_empties_the_account_and_leaves_the_batches(api: BatchClient) -> None:
    batch = await api.create(3)
    async with api.session.post(f"{api.root}/account/reset") as response:
        before = (await response.json())["batches"]
    assert (before["charged"], before["created"], before["posts"], before["files"]) == (3, 1, 1, 1)
    counted = await api.counted()
    assert (counted["charged"], counted["created"], counted["posts"], counted["calls"]) == (0, 0, 0, {})
    assert (await api.look(batch))["status"] == "completed"
    await api.run(3)
    counted = await api.counted()
    assert (counted["charged"], counted["duplicates"]) == (3, 0)


async def test_rules_about_answers_are_about_those_of_batches_too(batches: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "r", "schema": schema}}
    faults = [
        {"kind": "malformed_json", "match": "broken", "first": 1},
        {"kind": "server_error", "match": "down", "status": 503},
        {"kind": "hang", "match": "slow"},
        {"kind": "refusal", "at": 1},
    ]
    lines = [line(name, question(f"It is {name}", response_format=form)) for name in ("broken", "down", "slow", "good")]
    async with batches(faults=faults) as api:
        results = await api.results(await api.run(lines))
        assert statuses(results) == {"broken": 200, "down": 503, "slow": 200, "good": 200}
        with pytest.raises(ValueError):
            json.loads(results["broken"]["response"]["body"]["choices"][0]["message"]["content"])
        json.loads(results["good"]["response"]["body"]["choices"][0]["message"]["content"])
        counted = await api.counted()
        assert (counted["charged"], counted["faults"]) == (3, {"malformed_json": 1, "server_error": 1})
        again = await api.results(await api.run(lines[:1]))
        json.loads(again["broken"]["response"]["body"]["choices"][0]["message"]["content"])


async def test_bytes_go_with_their_files(batches: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sim.db-files"

    def kept() -> list[str]:
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))

    async with batches(state=tmp_path / "sim.db", faults=[{"kind": "batch_bom", "at": 1}]) as api:
        first = await api.run([line("a"), line("b", question("x", temperature=9))])
        assert kept() == sorted(first[name] for name in ("input_file_id", "output_file_id", "error_file_id"))
        await api.ok("DELETE", f"/files/{first['output_file_id']}")
        assert first["output_file_id"] not in kept()
        await api.advance(31 * 86_400)
        second = await api.run(1)
        assert kept() == sorted(second[name] for name in ("input_file_id", "output_file_id"))


async def test_a_batch_whose_files_somebody_deleted_has_failed(batches: Any, tmp_path: Path) -> None:
    async with batches(state=tmp_path / "sim.db", batch_seconds=100) as api:
        batch, other = await api.create(4), await api.create(4)
        await api.look(batch)
        (tmp_path / "sim.db-files" / batch["input_file_id"]).unlink()
        await api.advance(101)
        listed = {one["id"]: one for one in (await api.ok("GET", "/batches"))["data"]}
        assert listed[other["id"]]["status"] == "completed"
        failed = listed[batch["id"]]
        assert (failed["status"], failed["errors"]["data"][0]["code"]) == ("failed", "input_file_gone")
        (tmp_path / "sim.db-files" / other["input_file_id"]).unlink()
        assert (await api.call("GET", f"/files/{other['input_file_id']}/content"))[0] == 404


@pytest.mark.parametrize("faults", [[], [{"kind": "batch_shuffle"}]])
async def test_an_end_that_breaks_off_before_it_is_written_down_is_made_again(
    batches: Any, faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(store: BatchStore, batch: Any) -> None:
        if not batch.ended:
            return saved(store, batch)
        monkeypatch.setattr(BatchStore, "save", saved)
        raise OSError("the disk is full")

    saved = BatchStore.save
    monkeypatch.setattr(BatchStore, "save", broken)
    lines = [line("a"), line("b"), line("c", question("x", temperature=9))]
    async with batches(faults=faults) as api:
        created = await api.create(lines)
        url = f"{api.root}/v1/batches/{created['id']}"
        async with api.session.get(url) as response:
            broke_off = response.status == 500
        batch = await api.look(created)
        assert BatchStore.save is saved
        assert broke_off or batch["status"] == "completed"
        assert statuses(await api.results(batch)) == {"a": 200, "b": 200, "c": 400}
        assert (await api.counted())["charged"] == 2
