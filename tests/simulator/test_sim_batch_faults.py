"""Every fault of batches over real HTTP: what a client sees of it, and what the account says."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.batchclient import CHAT, BatchClient, as_jsonl, line, question, rows, statuses

from agac.simulator.faults import FAULTS, JUNK_BODIES, OPERATIONS, SINGLE_PHASES

ASKED = {"endpoint": CHAT, "completion_window": "24h"}


async def counted(api: BatchClient) -> dict[str, int]:
    """How often each fault came to pass."""
    return dict((await api.counted())["faults"])


DROPS = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)


@pytest.mark.parametrize(("kind", "made"), [("batch_drop_before", 0), ("batch_drop_after", 1)])
async def test_a_create_whose_answer_is_lost_has_made_a_batch_or_not(batches: Any, kind: str, made: int) -> None:
    async with batches(faults=[{"kind": kind, "first": 1}]) as api:
        with pytest.raises(DROPS):
            await api.create(3)
        assert len((await api.ok("GET", "/batches"))["data"]) == made
        account = await api.counted()
        assert (account["posts"], account["created"], account["charged"]) == (1, made, 3 * made)
        assert account["faults"] == {kind: 1}
        assert (await api.run(3))["status"] == "completed"


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_every_operation_can_be_refused_before_and_after_its_effect(batches: Any, op: str, when: str) -> None:
    rule = {
        "kind": "batch_status", "op": op, "status": 429, "when": when, "retry_after": 3, "code": "slow_down", "at": 1,
    }  # fmt: skip
    async with batches(faults=[rule], batch_seconds=100) as api:
        calls = {"upload": lambda: api.try_upload(rows(1), purpose="batch"), "files": lambda: api.call("GET", "/files")}
        if op in calls:
            status, data = await calls[op]()
        else:
            file_id = await api.upload(rows(2))
            asked = ASKED | {"input_file_id": file_id}
            later = {} if op == "create" else await api.ok("POST", "/batches", asked)
            paths = {
                "create": ("POST", "/batches", asked),
                "poll": ("GET", f"/batches/{later.get('id')}", None),
                "list": ("GET", "/batches", None),
                "cancel": ("POST", f"/batches/{later.get('id')}/cancel", None),
                "download": ("GET", f"/files/{file_id}/content", None),
                "delete": ("DELETE", f"/files/{file_id}", None),
            }
            method, path, body = paths[op]
            status, data = await api.call(method, path, body)
            again = await api.call("GET", f"/files/{file_id}")
            assert again[0] == (404 if (op, when) == ("delete", "after") else 200)
        assert (status, data["error"]["code"], data["error"]["type"]) == (429, "slow_down", "requests")
        account = await api.counted()
        assert (account["faults"], account["calls"][op]) == ({"batch_status": 1}, 1)
        done = when == "after"
        assert account["cancelled"] == (op == "cancel" and done)
        assert account["created"] == (done if op == "create" else op not in calls)
        assert account["files"] == (done if op == "upload" else op != "files")


async def test_a_status_says_what_its_code_is_about_and_comes_after_slowness(batches: Any) -> None:
    rules = [
        {"kind": "batch_status", "status": 429, "code": "credit_balance_exhausted", "message": "Top up."},
        {"kind": "batch_slow", "seconds": 0.05},
    ]
    async with batches(faults=rules) as api:
        asked = ASKED | {"input_file_id": await api.upload(rows(1))}
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with api.session.post(f"{api.root}/v1/batches", json=asked) as response:
            error = (await response.json())["error"]
            assert (error["type"], error["message"]) == ("insufficient_quota", "Top up.")
            assert "retry-after" not in response.headers
        assert loop.time() - began >= 0.05


async def test_an_upload_of_too_many_bytes_is_refused_and_a_smaller_one_is_taken(batches: Any) -> None:
    async with batches(faults=[{"kind": "batch_too_large", "bytes": 2000}]) as api:
        status, data = await api.try_upload(rows(20), purpose="batch")
        assert (status, data["error"]["code"]) == (413, "request_too_large")
        assert await api.upload(rows(2))
        assert (await api.counted())["files"] == 1


async def test_an_upload_that_holds_a_text_gets_a_page_and_others_are_taken(batches: Any) -> None:
    async with batches(faults=[{"kind": "batch_blocked", "match": "<script>", "status": 451}]) as api:
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", as_jsonl([line("a", question("<script>"))]), filename="agac-x.jsonl")
        async with api.session.post(f"{api.root}/v1/files", data=form) as response:
            assert (response.status, response.content_type) == (451, "text/html")
            assert b"<title>451 Request refused</title>" in await response.read()
        assert await api.upload(rows(2))
        assert (await api.counted())["files"] == 1


@pytest.mark.parametrize("after_bytes", [0, 10, None])
async def test_a_download_ends_before_it_should(batches: Any, after_bytes: int | None) -> None:
    async with batches(faults=[{"kind": "batch_truncate", "after_bytes": after_bytes, "first": 1}]) as api:
        batch = await api.run(3)
        url = f"{api.root}/v1/files/{batch['output_file_id']}/content"
        async with api.session.get(url) as response:
            assert response.status == 200
            got = bytearray()
            with pytest.raises(aiohttp.ClientPayloadError):  # noqa: PT012 (what came before it counts)
                async for piece in response.content.iter_any():
                    got += piece
        whole = await api.content(batch["output_file_id"])
        assert whole.startswith(bytes(got))
        assert len(got) == (len(whole) // 2 if after_bytes is None else after_bytes)
        assert await counted(api) == {"batch_truncate": 1}


@pytest.mark.parametrize("body", JUNK_BODIES)
async def test_a_download_that_is_no_whole_file_of_results_and_one_that_begins_later(batches: Any, body: str) -> None:
    async with batches(faults=[{"kind": "batch_junk", "body": body, "first": 1}]) as api:
        batch = await api.run(4)
        url = f"{api.root}/v1/files/{batch['output_file_id']}/content"
        async with api.session.get(url) as response:
            junk = await response.content.read(1 << 20 if body == "endless" else -1)
            assert response.status == 200
        async with api.session.get(url) as response:
            whole = await response.read()
            assert (response.headers["accept-ranges"], len(whole.splitlines())) == ("bytes", 4)
        assert (
            junk
            == {
                "error": b'{"error": {"message": "The results cannot be read now.", "type": "server_error"}}',
                "array": b"[" + whole.strip().replace(b"\n", b",") + b"]",
                "half": b"\n".join(whole.splitlines()[:2]),
                "empty": b"",
                "page": b"<html><head><title>200 OK</title></head><body>Log in to go on.</body></html>",
                "endless": junk and b"x" * len(junk),
            }[body]
        )
        async with api.session.get(url, headers={"Range": "bytes=100-"}) as response:
            assert (response.status, await response.read()) == (206, whole[100:])
            assert response.headers["content-range"] == f"bytes 100-{len(whole) - 1}/{len(whole)}"
        async with api.session.get(url, headers={"Range": f"bytes={len(whole)}-"}) as response:
            assert response.status == 416
        assert await counted(api) == {"batch_junk": 1}


async def test_a_batch_shows_up_late_in_the_list_and_is_not_found_for_a_while(batches: Any) -> None:
    rules = [{"kind": "batch_list_lag", "seconds": 90, "at": 2}, {"kind": "batch_get_404", "seconds": 60, "at": 3}]
    async with batches(faults=rules) as api:
        first, late, last = [(await api.create(1))["id"] for _ in range(3)]
        assert [one["id"] for one in (await api.ok("GET", "/batches?limit=2"))["data"]] == [last, first]
        assert (await api.look(late))["status"] == "completed"
        assert (await api.call("GET", f"/batches/{last}"))[0] == 404
        await api.advance(61)
        assert (await api.look(last))["status"] == "completed"
        await api.advance(30)
        assert [one["id"] for one in (await api.ok("GET", "/batches"))["data"]] == [last, late, first]
        assert await counted(api) == {"batch_list_lag": 1, "batch_get_404": 1}


async def test_a_new_file_is_not_found_at_first(batches: Any) -> None:
    async with batches(faults=[{"kind": "batch_file_lag", "times": 2, "at": 1}]) as api:
        asked = ASKED | {"input_file_id": await api.upload(rows(2))}
        for _ in range(2):
            status, data = await api.call("POST", "/batches", asked)
            assert (status, data["error"]["param"]) == (400, "input_file_id")
            assert "Cannot find file" in data["error"]["message"]
        assert (await api.look(await api.ok("POST", "/batches", asked)))["status"] == "completed"
        account = await api.counted()
        assert (account["posts"], account["created"], account["faults"]) == (3, 1, {"batch_file_lag": 2})


async def test_a_batch_is_rejected(batches: Any) -> None:
    rule = {
        "kind": "batch_reject", "code": "invalid_json_line", "line": 3, "message": "Line 3 is odd.",
        "match": "about r-3?",
    }  # fmt: skip
    async with batches(faults=[rule]) as api:
        batch = await api.run(4)
        assert batch["status"] == "failed"
        assert batch["errors"]["data"] == [
            {"code": "invalid_json_line", "line": 3, "message": "Line 3 is odd.", "param": None}
        ]
        assert (await api.run(2))["status"] == "completed"
        account = await api.counted()
        assert (account["rejected"], account["charged"], account["faults"]) == (1, 2, {"batch_reject": 1})


async def test_only_so_many_tokens_may_wait(batches: Any) -> None:
    rule = {"kind": "batch_enqueued_cap", "tokens": 400}
    async with batches(faults=[rule], batch_seconds=100) as api:
        first = await api.create(6)
        assert (await api.look(first))["status"] == "in_progress"
        second = await api.run(6)
        assert (second["status"], second["errors"]["data"][0]["code"]) == ("failed", "token_limit_exceeded")
        await api.advance(101)
        assert ((await api.look(first))["status"], (await api.run(6))["status"]) == ("completed", "in_progress")
        assert await counted(api) == {"batch_enqueued_cap": 1}


@pytest.mark.parametrize(
    ("keys", "word", "done"),
    [
        ({}, "finalizing", 4),
        ({"word": "in_progress"}, "in_progress", 0),
        ({"word": "in_progress", "after": 3}, "in_progress", 3),
        ({"word": "validating"}, "validating", 0),
    ],
)
async def test_a_batch_gets_stuck_until_it_is_cancelled(batches: Any, keys: Any, word: str, done: int) -> None:
    async with batches(faults=[{"kind": "batch_stuck", **keys}]) as api:
        batch = await api.create(4)
        for _ in range(2):
            stuck = await api.look(batch)
            assert (stuck["status"], stuck["output_file_id"]) == (word, None)
            assert stuck["request_counts"]["completed"] == done
            await api.advance(30 * 3600)
        assert (await api.counted())["charged"] == done
        assert (await api.ok("POST", f"/batches/{batch['id']}/cancel"))["status"] == "cancelling"
        ended = await api.look(batch)
        assert ended["status"] == "cancelled"
        found = list(statuses(await api.results(ended)).values())
        assert (found.count(200), found.count("batch_cancelled")) == (done, 4 - done)
        assert await counted(api) == {"batch_stuck": 1}


async def test_a_state_has_a_word_that_nobody_knows(batches: Any) -> None:
    async with batches(faults=[{"kind": "batch_unknown_status", "word": "paused", "seconds": 3600}]) as api:
        batch = await api.create(2)
        assert batch["status"] == "paused"
        seen = await api.look(batch)
        assert (seen["status"], seen["output_file_id"], seen["completed_at"]) == ("paused", None, None)
        await api.advance(3601)
        assert len(await api.results(await api.look(batch))) == 2
        assert await counted(api) == {"batch_unknown_status": 1}


DONE = {"status": "completed"}
REFUSED_LINES = {"kind": "batch_line_status", "status": 400, "lines": [1, 2], "code": "content_filter"}
ENDS: list[tuple[list[dict[str, Any]], dict[str, Any], list[Any], int, dict[str, int]]] = [
    ([{"kind": "batch_expire", "after": 7}], {"status": "expired"}, [200] * 7 + ["batch_expired"] * 3, 7, {}),
    ([{"kind": "batch_expire"}], {"status": "expired"}, [200, 200, "batch_expired", "batch_expired"], 2, {}),
    ([{"kind": "batch_expire", "after": 0}], {"status": "expired"}, ["batch_expired"], 0, {}),
    (
        [{"kind": "batch_counts_lie"}, REFUSED_LINES],
        {"request_counts": {"total": 4, "completed": 4, "failed": 0}, **DONE},
        [400, 400, 200, 200], 2, {"batch_line_status": 2},
    ),
    (
        [{"kind": "batch_counts_short"}],
        {"request_counts": {"total": 2, "completed": 3, "failed": 0}, **DONE},
        [200, 200, 200], 3, {},
    ),
    ([{"kind": "batch_null_output"}], {"output_file_id": None, "error_file_id": None, **DONE}, [], 2, {}),
    ([{"kind": "batch_empty_output_id"}], {"output_file_id": "", "error_file_id": None, **DONE}, [], 2, {}),
    ([{"kind": "batch_no_metadata"}], {"metadata": None, **DONE}, [200], 1, {}),
    ([{"kind": "batch_zero_error_file"}], DONE, [200, 200], 2, {}),
]  # fmt: skip
"""Rules, what the batch says, what becomes of each request, how many are charged, faults that count more than once."""


@pytest.mark.parametrize(("rules", "says", "found", "charged", "more"), ENDS, ids=[str(rules[0]) for rules, *_ in ENDS])
async def test_how_a_batch_ends(
    batches: Any, rules: Any, says: dict[str, Any], found: list[Any], charged: int, more: dict[str, int]
) -> None:
    async with batches(faults=rules) as api:
        batch = await api.run(len(found) or 2, metadata={"agac_intent": "k"})
        assert says.items() <= batch.items()
        assert (await api.ok("GET", "/batches"))["data"] == [batch]
        results = await api.results(batch)
        assert statuses(results) == {f"r-{number}": status for number, status in enumerate(found, start=1)}
        account = await api.counted()
        assert (account["charged"], account["faults"]) == (charged, {rule["kind"]: 1 for rule in rules} | more)
        assert all(one["error"] is None for one in results.values() if one["response"])
        if rules[0]["kind"] == "batch_zero_error_file":
            assert batch["error_file_id"]
            assert await api.content(batch["error_file_id"]) == b""
        if REFUSED_LINES in rules:
            assert results["r-1"]["response"]["body"]["error"]["code"] == "content_filter"


async def test_results_are_gone(batches: Any) -> None:
    async with batches(faults=[{"kind": "batch_gone"}]) as api:
        batch = await api.run(2)
        assert batch["status"] == "completed"
        assert (await api.call("GET", f"/files/{batch['output_file_id']}/content"))[0] == 404
        account = await api.counted()
        assert (account["charged"], account["faults"]) == (2, {"batch_gone": 1})


async def test_results_come_in_another_order_with_a_mark_and_empty_lines(batches: Any) -> None:
    rules = [{"kind": "batch_shuffle"}, {"kind": "batch_bom"}, {"kind": "batch_blank_lines"}]

    async def results() -> bytes:
        async with batches(faults=rules) as api:
            found: bytes = await api.content((await api.run(20))["output_file_id"])
            assert await counted(api) == {rule["kind"]: 1 for rule in rules}
            return found

    raw = await results()
    assert raw.startswith(b"\xef\xbb\xbf{")
    lines = raw.decode("utf-8-sig").split("\n")
    assert lines[1::2] == [""] * 20
    order = [json.loads(one)["custom_id"] for one in lines[:-1:2]]
    assert sorted(order) == sorted(f"r-{number}" for number in range(1, 21))
    assert order != sorted(order, key=lambda name: int(name[2:]))
    assert [json.loads(one)["custom_id"] for one in (await results()).decode("utf-8-sig").split("\n")[:-1:2]] == order


@pytest.mark.parametrize("form", ["unknown", "null", "list", "no_custom_id", "not_utf8"])
async def test_a_line_does_not_belong(batches: Any, form: str) -> None:
    async with batches(faults=[{"kind": "batch_foreign_line", "form": form}]) as api:
        lines = (await api.content((await api.run(2))["output_file_id"])).splitlines()
        assert len(lines) == 3
        told = {
            "unknown": b'"nobody-asked-this"', "null": b"null", "list": b"[1, 2]", "no_custom_id": b'"id"',
            "not_utf8": b"\xff",
        }  # fmt: skip
        assert told[form] in lines[0]
        assert [json.loads(one)["custom_id"] for one in lines[1:]] == ["r-1", "r-2"]
        assert await counted(api) == {"batch_foreign_line": 1}


async def test_lines_are_missing_doubled_broken_and_told_as_text(batches: Any) -> None:
    rules = [
        {"kind": "batch_omit", "lines": [1]},
        {"kind": "batch_dup_line", "lines": [2]},
        {"kind": "batch_corrupt_line", "match": "about r-3?"},
        {"kind": "batch_body_text", "lines": [4]},
    ]
    async with batches(faults=rules) as api:
        batch = await api.run(5)
        lines = (await api.content(batch["output_file_id"])).splitlines()
        assert lines[0] == lines[1]
        with pytest.raises(ValueError):
            json.loads(lines[2])
        assert b'"r-3"' in lines[2]
        assert [json.loads(one)["custom_id"] for one in (lines[0], lines[3], lines[4])] == ["r-2", "r-4", "r-5"]
        assert json.loads(json.loads(lines[3])["response"]["body"])["object"] == "chat.completion"
        account = await api.counted()
        assert (account["charged"], account["faults"]) == (5, {rule["kind"]: 1 for rule in rules})


async def test_requests_end_without_an_answer(batches: Any) -> None:
    rules = [
        {"kind": "batch_line_zero", "lines": [1]},
        {"kind": "batch_line_error", "lines": [2]},
        {"kind": "batch_line_status", "match": "about r-3?", "at": 1},
        {"kind": "batch_line_status", "lines": [1], "status": 400},
    ]
    async with batches(faults=rules) as api:
        batch = await api.run(4)
        assert batch["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
        results = await api.results(batch)
        assert results["r-1"]["response"] == {"status_code": 0, "request_id": "", "body": {}}
        assert results["r-1"]["error"] is None
        assert (results["r-2"]["response"], results["r-2"]["error"]["code"]) == (None, "request_timeout")
        assert results["r-3"]["response"]["body"]["error"]["type"] == "server_error"
        account = await api.counted()
        assert account["charged"] == 1
        assert account["faults"] == {"batch_line_zero": 1, "batch_line_error": 1, "batch_line_status": 1}
        assert statuses(await api.results(await api.run(4)))["r-3"] == 200


async def test_pages_are_small_however_large_they_should_be(batches: Any) -> None:
    async with batches(faults=[{"kind": "batch_paged", "size": 1}]) as api:
        made = [(await api.create(1))["id"] for _ in range(3)][::-1]
        for place, after in enumerate(("", f"&after={made[0]}", f"&after={made[1]}")):
            page = await api.ok("GET", f"/batches?limit=100{after}")
            assert ([one["id"] for one in page["data"]], page["has_more"]) == ([made[place]], place < 2)


async def test_requests_are_chosen_by_their_texts_and_a_share_is_the_same_each_time(batches: Any) -> None:
    by_text = {"kind": "batch_line_status", "match": 'Zoë said "no"', "status": 400}
    share = {"kind": "batch_line_status", "rate": 0.3, "status": 503}
    body = question('Well, Zoë said "no" again')
    written = json.dumps(line("raw", body), ensure_ascii=False).encode() + b"\n"
    found = []
    for _ in range(2):
        async with batches(faults=[by_text, share]) as api:
            batch = await api.run(written + as_jsonl([line("escaped", body), *rows(200)]))
            found.append(statuses(await api.results(batch)))
    assert found[1] == found[0]
    assert (found[0].pop("raw"), found[0].pop("escaped")) == (400, 400)
    assert 30 < list(found[0].values()).count(503) < 90


def test_every_kind_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    kinds = [kind for kind, spec in FAULTS.items() if spec.phase not in SINGLE_PHASES]
    assert all(FAULTS[kind].meaning for kind in FAULTS)
    assert [kind for kind in kinds if f'"{kind}"' not in text] == []
