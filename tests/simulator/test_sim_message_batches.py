"""Message Batches as Anthropic has them, with its own SDK where that can say it."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest

from agac.simulator import anthropic_batches

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}


def params(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "small", "max_tokens": 100, "messages": [{"role": "user", "content": text}], **more}


def requests(count: int) -> list[Any]:
    return [{"custom_id": f"r-{n}", "params": params(f"What about r-{n}?")} for n in range(1, count + 1)]


@asynccontextmanager
async def opened(served: Any, **settings: Any) -> AsyncIterator[tuple[Any, anthropic.AsyncAnthropic]]:
    """A simulator and the SDK."""
    async with (
        served(**settings) as client,
        anthropic.AsyncAnthropic(base_url=client.root, api_key="k", max_retries=0) as sdk,
    ):
        yield client, sdk


async def post(client: Any, body: bytes) -> tuple[int, Any]:
    url = f"{client.root}/v1/messages/batches"
    async with client.session.post(url, data=body, headers=HEADERS) as response:
        return response.status, await response.json()


async def raw_results(client: Any, batch_id: str) -> list[Any]:
    url = f"{client.root}/v1/messages/batches/{batch_id}/results"
    async with client.session.get(url, headers=HEADERS) as response:
        body = await response.read()
        assert response.status == 200, body
        return [json.loads(one) for one in body.decode("utf-8-sig").splitlines() if one]


async def kinds(client: Any, batch_id: str) -> dict[str, str]:
    return {one["custom_id"]: one["result"]["type"] for one in await raw_results(client, batch_id)}


async def test_the_sdk_creates_follows_and_reads(served: Any) -> None:
    async with opened(served) as (client, sdk):
        batch = await sdk.messages.batches.create(requests=requests(3))
        assert (batch.processing_status, batch.results_url, batch.ended_at) == ("in_progress", None, None)
        assert batch.request_counts.to_dict() == {
            "processing": 3, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0,
        }  # fmt: skip
        assert (batch.expires_at - batch.created_at).total_seconds() == 86_400
        batch = await sdk.messages.batches.retrieve(batch.id)
        assert (batch.processing_status, batch.request_counts.succeeded) == ("ended", 3)
        found = [line async for line in await sdk.messages.batches.results(batch.id)]
        assert [line.custom_id for line in found] == ["r-1", "r-2", "r-3"]
        assert all(line.result.type == "succeeded" for line in found)
        single = await sdk.messages.create(**params("What about r-1?"))
        assert (found[0].result.type, found[0].result.message.content) == ("succeeded", single.content)
        assert found[0].result.message.usage.service_tier == "batch"
        account = await client.account()
        assert (account["charged"], account["duplicates"]) == (1, 1)
        assert account["batches"]["charged"] == account["batches"]["requests"] == 3
        assert [one.id async for one in sdk.messages.batches.list()] == [batch.id]
        async with client.session.get(f"{client.root}/v1/files") as files:
            assert (await files.json())["data"] == []


async def test_every_request_ends_for_itself(served: Any) -> None:
    asked = [
        {"custom_id": "good", "params": params("x")},
        {"custom_id": "hot", "params": params("x", temperature=9)},
        {"custom_id": "nothing", "params": {}},
        {"custom_id": "streamed", "params": params("x", stream=True)},
        {"custom_id": "absent", "params": params("x", model="missing")},
    ]
    async with opened(served) as (client, sdk):
        batch = await sdk.messages.batches.create(requests=asked)
        batch = await sdk.messages.batches.retrieve(batch.id)
        assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 4)
        lines = {one["custom_id"]: one["result"] for one in await raw_results(client, batch.id)}
        assert lines["good"]["message"]["content"][0]["type"] == "text"
        found = {name: line["error"]["error"]["type"] for name, line in lines.items() if line["type"] == "errored"}
        assert found == {
            "hot": "invalid_request_error",
            "nothing": "invalid_request_error",
            "streamed": "invalid_request_error",
            "absent": "not_found_error",
        }
        assert lines["hot"]["error"]["type"] == "error"
        assert lines["hot"]["error"]["request_id"].startswith("req_")
        assert (await client.account())["batches"]["charged"] == 1


async def test_counts_stay_zero_until_all_has_ended(served: Any) -> None:
    async with opened(served, batch_seconds=100) as (client, sdk):
        batch = await sdk.messages.batches.create(requests=requests(10))
        await client.batches.advance(45)
        seen = await sdk.messages.batches.retrieve(batch.id)
        assert (seen.request_counts.processing, seen.request_counts.succeeded) == (10, 0)
        assert (await client.account())["batches"]["charged"] == 4
        with pytest.raises(anthropic.BadRequestError):
            await results(sdk, batch.id)
        canceling = await sdk.messages.batches.cancel(batch.id)
        assert canceling.processing_status == "canceling"
        assert canceling.cancel_initiated_at is not None
        ended = await sdk.messages.batches.retrieve(batch.id)
        assert ended.processing_status == "ended"
        assert (ended.request_counts.succeeded, ended.request_counts.canceled) == (4, 6)
        assert sorted((await kinds(client, batch.id)).values()) == ["canceled"] * 6 + ["succeeded"] * 4
        with pytest.raises(anthropic.BadRequestError):
            await sdk.messages.batches.cancel(batch.id)


def results(sdk: anthropic.AsyncAnthropic, batch_id: str) -> Any:
    return sdk.get(f"/v1/messages/batches/{batch_id}/results", cast_to=object)


async def test_what_is_not_done_in_a_day_expires_and_results_are_kept_for_29(served: Any) -> None:
    async with opened(served, batch_seconds=2 * 86_400) as (client, sdk):
        batch = await sdk.messages.batches.create(requests=requests(4))
        await client.batches.advance(86_401)
        ended = await sdk.messages.batches.retrieve(batch.id)
        assert (ended.request_counts.succeeded, ended.request_counts.expired) == (2, 2)
        assert ended.ended_at == ended.expires_at
        assert sorted((await kinds(client, batch.id)).values()) == ["expired", "expired", "succeeded", "succeeded"]
        await client.batches.advance(28 * 86_400)
        ended = await sdk.messages.batches.retrieve(batch.id)
        assert ended.results_url is None
        assert ended.archived_at is not None
        assert (ended.archived_at - ended.created_at).days == 29
        with pytest.raises(anthropic.NotFoundError):
            await results(sdk, batch.id)


async def test_lists_have_pages_the_newest_message_batch_first(served: Any) -> None:
    async with opened(served) as (_, sdk):
        batches = sdk.messages.batches
        made = [(await batches.create(requests=requests(1))).id for _ in range(5)][::-1]
        page = await batches.list(limit=2)
        assert [one.id for one in page.data] == made[:2]
        assert (page.has_more, page.first_id, page.last_id) == (True, made[0], made[1])
        page = await batches.list(limit=3, after_id=made[1])
        assert ([one.id for one in page.data], page.has_more) == (made[2:], False)
        assert [one.id async for one in batches.list(limit=2)] == made
        with pytest.raises(anthropic.BadRequestError):
            await batches.list(limit=1001)
        with pytest.raises(anthropic.NotFoundError):
            await batches.list(after_id="msgbatch_none")


WRONG = [
    (b"{", "could not parse the JSON body"),
    (b"[]", "expected a JSON object"),
    (b"{}", "requests: List should have at least 1 item"),
    (b'{"requests": []}', "requests: List should have at least 1 item"),
    (b'{"requests": {}}', "requests: Input should be a valid list"),
    (b'{"requests": [1]}', "requests.0: Input should be an object"),
    (b'{"requests": [{"params": {}}]}', "requests.0.custom_id: Field required"),
    (b'{"requests": [{"custom_id": "a"}]}', "requests.0.params: Field required"),
    (b'{"requests": [{"custom_id": "a", "params": []}]}', "requests.0.params: Input should be an object"),
    (b'{"requests": [{"custom_id": "a", "params": {}, "more": 1}]}', "requests.0.more: Extra inputs"),
    (b'{"requests": [{"custom_id": "%s", "params": {}}]}' % (b"a" * 65), "should match pattern"),
    (b'{"requests": [{"custom_id": "", "params": {}}]}', "{1,64}$'"),
    (b'{"requests": [{"custom_id": "a b", "params": {}}]}', "should match pattern"),
    (b'{"requests": [{"custom_id": "a", "params": {}}, {"custom_id": "a", "params": {}}]}',
     'requests.1.custom_id: custom_id "a" is not unique'),
    (b'{"requests": [{"custom_id": "a", "params": {}}]} x', "Extra data"),
    (b'{"requests": [{"custom_id": "\xff", "params": {}}]}', "could not parse the JSON body"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "words"), WRONG)
async def test_bodies_that_anthropic_refuses_are_refused_at_once(client: Any, body: bytes, words: str) -> None:
    status, data = await post(client, body)
    assert (status, data["type"], data["error"]["type"]) == (400, "error", "invalid_request_error")
    assert words in data["error"]["message"]
    counted = (await client.account())["batches"]
    assert (counted["posts"], counted["created"]) == (1, 0)


async def test_too_large_a_body_and_missing_headers_are_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anthropic_batches, "MAX_BODY_BYTES", 1000)
    status, data = await post(client, json.dumps({"requests": requests(20)}).encode())
    assert (status, data["error"]["type"]) == (413, "request_too_large")
    url = f"{client.root}/v1/messages/batches"
    async with client.session.get(url, headers=HEADERS | {"x-api-key": "sk-invalid"}) as response:
        assert (response.status, (await response.json())["error"]["type"]) == (401, "authentication_error")
    async with client.session.get(url, headers={"x-api-key": "k"}) as response:
        assert response.status == 400
        assert "anthropic-version" in (await response.json())["error"]["message"]


FAULTS = [
    ([{"kind": "batch_shuffle"}, {"kind": "batch_bom"}, {"kind": "batch_blank_lines"}], 20, {"succeeded": 20}),
    ([{"kind": "batch_omit", "lines": [1]}, {"kind": "batch_dup_line", "lines": [2]}], 3, {"succeeded": 3}),
    ([{"kind": "batch_foreign_line"}], 2, {"succeeded": 2, "expired": 1}),
    ([{"kind": "batch_line_status", "lines": [1], "status": 529}], 3, {"succeeded": 2, "overloaded_error": 1}),
    ([{"kind": "batch_line_status", "lines": [1], "status": 400}], 3, {"succeeded": 2, "invalid_request_error": 1}),
    ([{"kind": "batch_line_error", "lines": [1]}], 3, {"succeeded": 2, "timeout_error": 1}),
    ([{"kind": "batch_line_error", "lines": [1], "code": "billing_error"}], 2, {"succeeded": 1, "billing_error": 1}),
    ([{"kind": "batch_line_zero", "lines": [1]}], 2, {"succeeded": 1, "api_error": 1}),
    ([{"kind": "batch_expire", "after": 1}], 3, {"succeeded": 1, "expired": 2}),
]


@pytest.mark.parametrize(("rules", "count", "expected"), FAULTS)
async def test_faults_of_results_are_told_in_its_words(served: Any, rules: Any, count: int, expected: Any) -> None:
    async with opened(served, faults=rules) as (client, sdk):
        batch = await sdk.messages.batches.create(requests=requests(count))
        assert (await sdk.messages.batches.retrieve(batch.id)).processing_status == "ended"
        found: Counter[str] = Counter()
        for line in await raw_results(client, batch.id):
            result = line["result"]
            found[result["error"]["error"]["type"] if result["type"] == "errored" else result["type"]] += 1
        assert found == expected
        assert (await client.account())["batches"]["faults"] == {rule["kind"]: 1 for rule in rules}


@pytest.mark.parametrize(
    ("rule", "url", "archived"),
    [
        ({"kind": "batch_null_output"}, None, False),
        ({"kind": "batch_empty_output_id"}, "", False),
        ({"kind": "batch_gone"}, None, True),
    ],
)
async def test_a_batch_that_has_ended_names_no_results(served: Any, rule: Any, url: str | None, archived: bool) -> None:
    async with opened(served, faults=[rule]) as (client, sdk):
        batch = await sdk.messages.batches.create(requests=requests(2))
        batch = await sdk.messages.batches.retrieve(batch.id)
        assert (batch.processing_status, batch.results_url, batch.archived_at is not None) == ("ended", url, archived)
        assert batch.request_counts.succeeded == 2
        assert (await client.account())["batches"]["charged"] == 2


async def test_faults_of_calls_and_of_batches(served: Any) -> None:
    rules = [
        {"kind": "batch_drop_after", "op": "create", "at": 1},
        {"kind": "batch_reject", "at": 2, "message": "No."},
        {"kind": "batch_enqueued_cap", "at": 3, "tokens": 1},
        {"kind": "batch_unknown_status", "at": 4, "word": "pausing"},
        {"kind": "batch_stuck", "at": 5},
        {"kind": "batch_status", "op": "poll", "at": 1, "status": 529},
        {"kind": "batch_list_lag", "at": 4, "seconds": 10},
        {"kind": "batch_paged", "size": 1},
    ]
    async with opened(served, faults=rules) as (client, sdk):
        batches = sdk.messages.batches
        with pytest.raises(anthropic.APIConnectionError):
            await batches.create(requests=requests(2))
        (lost,) = [one async for one in batches.list(limit=100)]
        assert lost.request_counts.succeeded == 2
        with pytest.raises(anthropic.BadRequestError, match=r"No\."):
            await batches.create(requests=requests(2))
        with pytest.raises(anthropic.RateLimitError):
            await batches.create(requests=requests(2))
        paused = await batches.create(requests=requests(2))
        assert (paused.processing_status, paused.results_url) == ("pausing", None)
        stuck = await batches.create(requests=requests(2))
        with pytest.raises(anthropic.APIStatusError) as caught:
            await batches.retrieve(stuck.id)
        assert caught.value.status_code == 529
        assert (await batches.retrieve(stuck.id)).processing_status == "in_progress"
        assert [one.id async for one in batches.list()] == [stuck.id, lost.id]
        counted = (await client.account())["batches"]
        assert (counted["posts"], counted["created"], counted["rejected"], counted["charged"]) == (5, 3, 2, 6)
        assert counted["faults"] == {rule["kind"]: 1 for rule in rules if rule["kind"] != "batch_paged"}


async def test_batches_have_a_cache_of_their_own_that_later_ones_read(served: Any) -> None:
    """A call fills another one; requests of one batch do not find each other's; each use keeps it for its lifetime."""
    async with opened(served, serving="hosted") as (client, sdk):

        def system(ttl: str) -> list[Any]:
            mark = {"type": "ephemeral", "ttl": ttl}
            return [{"type": "text", "text": f"{ttl:.<6000}", "cache_control": mark}]  # 1,500 tokens

        async def taken(ttl: str, count: int) -> list[tuple[int, int, int]]:
            asked: Any = [
                {"custom_id": f"r-{n}", "params": params(f"row {n}", system=system(ttl))} for n in range(count)
            ]
            batch = await sdk.messages.batches.create(requests=asked)
            usages = [one["result"]["message"]["usage"] for one in await raw_results(client, batch.id)]
            found = []
            for usage in usages:
                written = usage.get("cache_creation", {})
                kinds = [written.get(f"ephemeral_{one}_input_tokens", 0) for one in ("5m", "1h")]
                found.append((usage["cache_read_input_tokens"], *kinds))
            return found

        for ttl in ("5m", "1h"):
            await sdk.messages.create(**params("row", system=system(ttl)))
        assert await taken("1h", 2) == [(0, 0, 1500)] * 2
        assert await taken("5m", 2) == [(0, 1500, 0)] * 2
        for seconds, read in ((290, "5m"), (3200, "1h"), (3500, "1h")):
            await client.batches.advance(seconds)
            assert await taken(read, 1) == [(1500, 0, 0)]
        assert await taken("5m", 1) == [(0, 1500, 0)]
        await client.batches.advance(3601)
        assert await taken("1h", 1) == [(0, 0, 1500)]
