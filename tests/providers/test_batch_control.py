"""Files and batches over an SDK: one request a call, what every answer means, and bodies that never fill the memory."""

import asyncio
import gzip
import itertools
import json
import socket
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.canned import Answer, Canned, canned

from agac.core.errors import AgacError, ErrorType, UsageError
from agac.core.redact import Redactor
from agac.core.types import About, Fault, FaultKind, iso
from agac.providers import batch_calls
from agac.providers.batch import BatchError, BatchState, Order, ProviderBatch, Remote
from agac.providers.batch_apis import AnthropicBatches, OpenAIBatches, open_batch_api
from agac.providers.batch_calls import BatchApi
from agac.providers.known_providers import ANTHROPIC_BATCHES, AZURE_BATCHES, OPENAI_BATCHES, SHIPPED
from agac.providers.provider import BatchTraits, Provider
from agac.providers.transport import ConnectionSettings, lost

KEY = "sk-control-0123456789"
REDACTOR = Redactor([KEY])
NAMES = ("openai", "anthropic")
BATCHES = {"openai": "/batches", "anthropic": "/messages/batches"}
RESULTS = {"openai": "/files/r/content", "anthropic": "/messages/batches/r/results"}
BATCH = {
    "openai": {"id": "batch_1", "status": "validating", "metadata": {"agac_intent": "key"}},
    "anthropic": {"id": "msgbatch_1", "processing_status": "in_progress", "request_counts": {"processing": 2}},
}
both = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def server() -> Iterator[Canned]:
    with canned() as told:
        yield told


def row(name: str, base_url: str) -> Provider:
    return replace(SHIPPED[name], base_url=base_url, api_key=KEY, headers={"x-team": "data"})


def talk(name: str, base_url: str, do: Callable[[BatchApi], Awaitable[Any]], **traits: Any) -> Any:
    """What `do` gives with the batches of a provider at that address."""
    provider = row(name, base_url)
    assert provider.batch is not None
    provider = replace(provider, batch=replace(provider.batch, **traits))

    async def whole() -> Any:
        api = open_batch_api(provider, REDACTOR)
        try:
            return await do(api)
        finally:
            await api.close()

    return asyncio.run(whole())


def order(folder: Path, lines: bytes = b'{"custom_id":"a"}\n{"custom_id":"b"}\n') -> Order:
    path = folder / "key.jsonl"
    path.write_bytes(lines)
    return Order("key", path, "/v1/chat/completions", "the-model", 2, "file-1")


def create(name: str, base_url: str, folder: Path) -> Any:
    return talk(name, base_url, lambda api: api.create(order(folder)))


def json_error(kind: str, code: str | None = None, message: str = "why") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "code": code, "message": message}}


FAILED = {"x-should-retry": "true"}
ELSEWHERE = {"location": "http://127.0.0.1:9/v1/batches"}

ANSWERS = {
    # what a create comes to (kind, type, ambiguous), and the answers that mean it
    (FaultKind.TASK, ErrorType.PROVIDER_ERROR, False): [
        Answer(json_error("invalid_request_error"), 400),
        Answer(b"<html>nginx</html>", 413),
        Answer(json_error("request_too_large"), 413),
        Answer(json_error("invalid_request_error"), 422),
    ],
    (FaultKind.FATAL, ErrorType.PROVIDER_ERROR, True): [Answer(b"<html>bad request</html>", 400)],
    (FaultKind.FATAL, ErrorType.PROVIDER_ERROR, False): [
        Answer(json_error("authentication_error"), 401),
        Answer(json_error("billing_error"), 402),
        Answer(json_error("permission_error"), 403),
        Answer(b"<html>nginx</html>", 404),
        Answer({"detail": "Not Found"}, 404),
        Answer(json_error("not_found_error"), 404),
        Answer(b"", 307, ELSEWHERE),
    ],
    (FaultKind.RETRY, ErrorType.TIMEOUT, True): [Answer(json_error("timeout_error"), 408), Answer(b"", 504)],
    (FaultKind.PAUSE, ErrorType.RATE_LIMITED, False): [
        Answer(json_error("rate_limit_error"), 429, {"retry-after": "3", "x-should-retry": "true"}),
        Answer(json_error("token_limit_exceeded"), 400),
    ],
    (FaultKind.PAUSE, ErrorType.PROVIDER_ERROR, True): [
        Answer(b"", 503),
        Answer(json_error("overloaded_error"), 529),
        Answer(json_error("overloaded_error")),
    ],
    (FaultKind.RETRY, ErrorType.PROVIDER_ERROR, True): [
        Answer(json_error("conflict_error"), 409),
        Answer(json_error("api_error"), 500, FAILED),
        Answer(b"bad gateway", 502),
        *(Answer(body) for body in (b"ok", b"", [1], {"object": "batch"})),
        Answer(drop="unread"),
        Answer(drop="unanswered"),
        Answer(BATCH["openai"], drop="body"),
        Answer(json_error("api_error"), 500, drop="body"),
    ],
}


@both
@pytest.mark.parametrize(
    ("answer", "expected"),
    [(answer, expected) for expected, answers in ANSWERS.items() for answer in answers],
    ids=lambda value: repr(value)[:70],
)
def test_what_an_answer_to_a_create_means(
    name: str, answer: Answer, expected: Any, server: Canned, tmp_path: Path
) -> None:
    server.answers(f"POST {BATCHES[name]}", answer)
    found = create(name, server.base_url, tmp_path)
    assert isinstance(found, Fault)
    assert (found.kind, found.type, found.ambiguous) == expected, found
    assert len(server.asked) == 1, "an SDK sent it again"


BAD = [answer for answers in ANSWERS.values() for answer in answers if answer.status >= 400 or answer.drop]


@pytest.mark.parametrize("answer", BAD, ids=lambda answer: repr(answer)[:70])
def test_every_call_is_sent_once(answer: Answer, server: Canned, tmp_path: Path) -> None:
    """Test 45 of provider-batch.md: it fails when an SDK's retries are on again, whichever call they are for."""
    path, loaded = order(tmp_path).path, tmp_path / "loaded"
    ours: dict[str, Callable[[BatchApi], Awaitable[Any]]] = {
        "POST /files": lambda api: api.upload(path, "agac-key.jsonl"),
        "GET /files": lambda api: api.uploaded("agac-key.jsonl", 5),
        "GET /batches/b": lambda api: api.look("b"),
        "GET /files/f/content": lambda api: api.download(Remote("f", "output"), loaded),
        "POST /batches/b/cancel": lambda api: api.cancel("b"),
        "DELETE /files/f": lambda api: api.delete("f"),
    }
    theirs: dict[str, Callable[[BatchApi], Awaitable[Any]]] = {
        "GET /messages/batches/b": lambda api: api.look("b"),
        "GET /messages/batches/b/results": lambda api: api.download(Remote("b", "output"), loaded),
        "POST /messages/batches/b/cancel": lambda api: api.cancel("b"),
    }
    for name, calls in (("openai", ours), ("anthropic", theirs)):
        for call, do in calls.items():
            server.asked.clear()
            server.answers(call, answer)
            found = talk(name, server.base_url, do)
            method, where = call.split()
            asked = [one for one in server.asked if one.path.partition("?")[0] == f"/v1{where}"]
            assert {one.method for one in asked} == {method}, call
            # a list whose filter is refused is asked for once without it
            assert len(asked) == len({one.path for one in asked}) <= 1 + (call == "GET /files"), call
            assert found is None or name == "anthropic" or (isinstance(found, Fault) and asked == server.asked)
            assert found is None or not found.ambiguous or call == "POST /files"


@both
def test_an_answer_is_read_as_far_as_it_may_be_large(name: str, server: Canned, tmp_path: Path) -> None:
    bomb, path = gzip.compress(b'{"id": "' + bytes(200_000_000), 1), order(tmp_path).path
    calls: dict[str, Callable[[BatchApi], Awaitable[Any]]] = {
        f"POST {BATCHES[name]}": lambda api: api.create(order(tmp_path)),
        f"GET {BATCHES[name]}/b": lambda api: api.look("b"),
        f"GET {BATCHES[name]}": lambda api: anext(api.candidates(order(tmp_path), 0.0)),
        **({"POST /files": lambda api: api.upload(path, "agac-key.jsonl")} if name == "openai" else {}),
    }
    tracemalloc.start()
    try:
        for call, do in calls.items():
            faults = []
            for status in (200, 500):
                server.answers(call, Answer(bomb, status, {"Content-Encoding": "gzip"}))
                faults.append(talk(name, server.base_url, do))
            assert [one.kind for one in faults] == [FaultKind.FATAL, FaultKind.RETRY]
            assert (faults[0].type, faults[0].ambiguous) == (ErrorType.REPLY_TOO_LARGE, call.startswith("POST"))
            assert f"or raise `limits: {{reply_mb}}` of {name}" in faults[0].message
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()


@both
def test_silence_leaves_it_open(name: str, server: Canned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_calls, "CREATE", 0.2)
    server.answers(f"POST {BATCHES[name]}", Answer(drop="never"))
    found = create(name, server.base_url, tmp_path)
    assert (found.kind, found.type, found.ambiguous) == (FaultKind.RETRY, ErrorType.TIMEOUT, True)
    assert len(server.asked) == 1


@both
def test_a_request_that_never_left_created_nothing(name: str, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        found = create(name, address, tmp_path)
    assert (found.kind, found.ambiguous) == (FaultKind.RETRY, False)
    assert "cannot be reached: connection refused" in found.message
    assert address in found.message


@both
def test_the_name_of_an_error_is_kept_and_its_words_are_clean(name: str, server: Canned, tmp_path: Path) -> None:
    told = json_error("insufficient_quota", "credit_balance_exhausted", f"no money for {KEY}")
    server.answers(f"POST {BATCHES[name]}", Answer(told, 402))
    found = create(name, server.base_url, tmp_path)
    assert (found.kind, found.code, found.status) == (FaultKind.FATAL, "credit_balance_exhausted", 402)
    assert "[redacted]" in found.message
    assert KEY not in repr(found)


def test_a_file_that_is_not_there_yet(server: Canned, tmp_path: Path) -> None:
    for message in (
        "Cannot find file file-1, or the project does not have access to it.",
        "File file-1 not found",
        "No such File object: file-1 in file storage",
        "The input file could not be found",
    ):
        server.answers("POST /batches", Answer(json_error("invalid_request_error", None, message), 400))
        found = create("openai", server.base_url, tmp_path)
        assert (found.kind, found.ambiguous, found.about) == (FaultKind.RETRY, False, About.INPUT)


@both
def test_only_our_headers_are_sent(name: str, server: Canned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = "OPENAI_ORG_ID OPENAI_PROJECT_ID OPENAI_API_KEY ANTHROPIC_AUTH_TOKEN ANTHROPIC_API_KEY"
    for variable in keys.split():
        monkeypatch.setenv(variable, "sk-of-somebody-else")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-else: sk-of-somebody-else")
    for variable in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    server.answers(f"POST {BATCHES[name]}", Answer(BATCH[name]))
    assert isinstance(create(name, server.base_url, tmp_path), ProviderBatch)
    [asked] = server.asked
    assert "somebody" not in repr(asked.headers)
    sent = {header.lower(): value for header, value in asked.headers.items()}
    assert sent["x-team"] == "data"
    assert sent["user-agent"].startswith("agac/")
    assert not [header for header in sent if header.startswith("x-stainless")]
    if name == "anthropic":
        assert (sent["x-api-key"], sent["anthropic-version"]) == (KEY, "2023-06-01")
        assert "authorization" not in sent
    else:
        assert sent["authorization"] == f"Bearer {KEY}"


def test_what_a_create_holds(server: Canned, tmp_path: Path) -> None:
    for name in NAMES:
        server.answers(f"POST {BATCHES[name]}", Answer(BATCH[name]))
        create(name, server.base_url, tmp_path)
    ours, theirs = (asked.body for asked in server.asked)
    assert ours == (
        b'{"input_file_id":"file-1","endpoint":"/v1/chat/completions","completion_window":"24h",'
        b'"metadata":{"agac_intent":"key"}}'
    )
    assert theirs == b'{"requests":[{"custom_id":"a"},{"custom_id":"b"}]}'


LINE = b'{"custom_id":"key-0-abc","text":"' + b"x" * 990 + b'"}\n'


@both
def test_a_large_body_is_never_held_and_never_blocks(name: str, server: Canned, tmp_path: Path) -> None:
    """40 MB there, 30 MB back."""
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.writelines(itertools.repeat(LINE * 100, 400))
    large = Order("key", path, "/v1/chat/completions", "m", 40_000, None)
    content = LINE * 30_000
    server.answers("POST /files", Answer({"id": "file-1", "bytes": path.stat().st_size}))
    server.answers("POST /messages/batches", Answer(BATCH["anthropic"]))
    server.answers(f"GET {RESULTS[name]}", Answer(content))
    turns = 0

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def do(api: BatchApi) -> Any:
        other = asyncio.create_task(turning())
        tracemalloc.start()
        sent = await (api.upload(path, "agac-key.jsonl") if api.uploads else api.create(large))
        loaded = await api.download(Remote("r", "output"), tmp_path / "loaded")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        other.cancel()
        return sent, loaded, peak

    sent, loaded, peak = talk(name, server.base_url, do)
    assert not isinstance(sent, Fault)
    assert server.asked[0].size > path.stat().st_size
    assert loaded == len(content)
    assert (tmp_path / "loaded").read_bytes() == content
    assert peak < 16 << 20, f"{peak:,} bytes held"
    assert turns > 100


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        (Answer(b"{}\n{}\n"), 6),
        (Answer(b""), 0),
        (Answer(b"{}\n{}"), 5),  # its last line is whole, though no break ends it
        (Answer(b"{}\n{}\n", length="chunked"), 6),
        (Answer(b"{}\n{}\n", length="end"), 6),
        (Answer(b"{}\n{}\n" * 99, drop="body"), None),
        (Answer(b"{}\n{}\n" * 99, drop="body", length="chunked"), None),
        (Answer(b'{}\n{"a', length="end"), None),
        (Answer(b'{}\n{"a'), None),
        (Answer(b"<html>", 502), None),
    ],
    ids=lambda value: repr(value)[:60],
)
@both
def test_a_download_is_whole_or_a_fault(
    name: str, answer: Answer, size: int | None, server: Canned, tmp_path: Path
) -> None:
    server.answers(f"GET {RESULTS[name]}", answer)
    found = talk(name, server.base_url, lambda api: api.download(Remote("r", "output"), tmp_path / "loaded"))
    if size is None:
        assert isinstance(found, Fault)
        assert (found.kind, found.ambiguous) == (FaultKind.RETRY, False)
    else:
        assert found == size == (tmp_path / "loaded").stat().st_size


WHOLE = b'{"a": 1}\n' * 40
HALF = len(WHOLE) // 2
RANGES = {"Accept-Ranges": "bytes", "ETag": '"v1"'}
CUT = Answer(WHOLE, headers=RANGES, drop="body")
REST = Answer(WHOLE[HALF:], 206, {"Content-Range": f"bytes {HALF}-{len(WHOLE) - 1}/{len(WHOLE)}"})


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([CUT, REST], [None, f"bytes={HALF}-"]),
        ([CUT, Answer(WHOLE)], [None, f"bytes={HALF}-"]),
        ([CUT, Answer(b"", 416), Answer(WHOLE)], [None, f"bytes={HALF}-", None]),
        ([CUT, Answer(WHOLE[:HALF], 206, {"Content-Range": "bytes 0-9/10"}), Answer(WHOLE)],
         [None, f"bytes={HALF}-", None]),
        ([Answer(WHOLE, drop="body"), REST], [None, f"bytes={HALF}-"]),
        ([Answer(WHOLE, drop="body"), Answer(WHOLE)], [None, f"bytes={HALF}-"]),
        ([Answer(WHOLE, headers={"Accept-Ranges": "none"}, drop="body"), Answer(WHOLE)], [None, None]),
        ([Answer(WHOLE, headers={**RANGES, "Content-Encoding": "identity"}, drop="body"), REST],
         [None, f"bytes={HALF}-"]),
    ],
    ids=["continued", "another version", "refused", "another range", "not told", "none there", "none", "not encoded"],
)  # fmt: skip
@both
def test_a_download_that_was_cut_is_continued_unless_ranges_are_refused(
    name: str, answers: list[Answer], asked: list[str | None], server: Canned, tmp_path: Path
) -> None:
    server.answers(f"GET {RESULTS[name]}", *answers)

    async def do(api: BatchApi) -> list[Any]:
        return [await api.download(Remote("r", "output"), tmp_path / "loaded") for _ in answers]

    *cut, whole = talk(name, server.base_url, do)
    assert [one.kind for one in cut] == [FaultKind.RETRY] * len(cut)
    assert (whole, (tmp_path / "loaded").read_bytes()) == (len(WHOLE), WHOLE)
    sent = [{head.lower(): value for head, value in one.headers.items()} for one in server.asked]
    sent = [heads for heads, one in zip(sent, server.asked, strict=True) if "r" in one.path.split("/")]
    assert [heads.get("range") for heads in sent] == asked
    version = answers[0].headers.get("ETag")
    assert [heads.get("if-range") for heads in sent] == [range_ and version for range_ in asked]


def test_a_file_of_which_more_is_kept_than_came(server: Canned, tmp_path: Path) -> None:
    server.answers("GET /files/r/content", Answer(b"{}\n", length="chunked"))
    server.answers("GET /files/r", Answer({"id": "r", "bytes": 6}))

    async def do(api: BatchApi) -> list[Any]:
        return [await api.download(Remote("r", "output"), tmp_path / "loaded") for _ in range(2)]

    first, second = talk("openai", server.base_url, do)
    assert isinstance(first, Fault)
    assert first.kind is FaultKind.RETRY
    assert second == 3, "what comes twice alike is all that there is"


def test_results_that_are_kept_no_longer(server: Canned, tmp_path: Path) -> None:
    ended = {"id": "b", "processing_status": "ended", "archived_at": "2026-11-01T00:00:00Z"}
    server.answers("GET /messages/batches/b", Answer(ended))
    found = talk("anthropic", server.base_url, lambda api: api.download(Remote("b", "output"), tmp_path / "loaded"))
    assert (found.kind, found.code) == (FaultKind.TASK, "gone")
    assert not (tmp_path / "loaded").exists()


def test_a_disk_that_takes_no_more_is_no_fault_of_the_provider(server: Canned, tmp_path: Path) -> None:
    server.answers("GET /files/r/content", Answer(b"{}\n"))
    with pytest.raises(OSError, match="No such file"):
        talk("openai", server.base_url, lambda api: api.download(Remote("r", "output"), tmp_path / "none" / "loaded"))


@pytest.mark.parametrize(("status", "refused"), [(400, False), (409, False), (404, True), (500, True), (401, True)])
@both
def test_what_has_ended_cannot_be_cancelled_and_that_is_no_fault(
    name: str, status: int, refused: bool, server: Canned
) -> None:
    server.answers(f"POST {BATCHES[name]}/b/cancel", Answer(json_error("invalid_request_error"), status))
    assert isinstance(talk(name, server.base_url, lambda api: api.cancel("b")), Fault) == refused


def test_what_is_named_by_a_provider_stays_where_it_belongs(server: Canned) -> None:
    talk("openai", server.base_url, lambda api: api.look("../admin?x=1"))
    assert server.asked[0].path == "/v1/batches/..%2Fadmin%3Fx%3D1"


def listed(server: Canned, folder: Path, name: str = "openai", since: float = 8000.0, **traits: Any) -> list[Any]:
    async def do(api: BatchApi) -> list[Any]:
        return [one async for one in api.candidates(order(folder), since)]

    return list(talk(name, server.base_url, do, **traits))


def pages(times: list[int | None]) -> list[Answer]:
    """Pages of one batch each, which were created then."""
    batches = [{"id": f"b{place}", "created_at": at, "input_file_id": "file-1"} for place, at in enumerate(times)]
    return [Answer({"data": [batch], "has_more": batch is not batches[-1]}) for batch in batches]


@pytest.mark.parametrize(
    ("times", "read"),
    [
        ([9000, 8000, 7000, 6000, 5000, 4000], 4),  # from new to old: past 8000 - 5 minutes, and a page more
        ([4000, 5000, 6000, 7000, 8000, 9000], 6),
        ([9000, 4000, 8000, 5000, 4000, 9000], 6),
        ([5000, 5000, 5000, 5000, 5000, 9000], 6),
        ([None, None, None, None, None, None], 6),
        ([9000, 8000, None, 6000, 5000, 9000], 6),
    ],
)
def test_a_list_is_read_until_what_is_sought_is_surely_past(
    times: list[int | None], read: int, server: Canned, tmp_path: Path
) -> None:
    server.answers("GET /batches", *pages(times))
    assert [one.id for one in listed(server, tmp_path)] == [f"b{place}" for place in range(read)]
    assert len(server.asked) == read
    assert [one.path.partition("after=")[2] for one in server.asked] == ["", *(f"b{n}" for n in range(read - 1))]
    assert all("limit=100" in one.path for one in server.asked)


def test_a_circle_or_a_fault_ends_a_list(server: Canned, tmp_path: Path) -> None:
    first, _ = pages([9000, 8900])
    server.answers("GET /batches", first)
    assert [one.id for one in listed(server, tmp_path)] == ["b0"]
    assert len(server.asked) == 2
    server.answers("GET /batches", first, Answer(b"", 500))
    assert [type(one) for one in listed(server, tmp_path)] == [ProviderBatch, Fault]
    server.answers("GET /batches", Answer({"data": None}))
    [odd] = listed(server, tmp_path)
    assert isinstance(odd, Fault)


def test_a_list_without_pages_is_asked_without_them(server: Canned, tmp_path: Path) -> None:
    server.answers("GET /batches", Answer({"data": [{"id": "b0", "metadata": {"agac_intent": "key"}}]}))
    traits = {"pages": False, "filters": "metadata[agac_intent]"}
    [found] = listed(server, tmp_path, **traits)
    assert found.key == "key"
    [asked] = server.asked
    assert httpx2.URL(asked.path).params == httpx2.QueryParams({"metadata[agac_intent]": "key"})


def test_candidates_of_anthropic_are_those_of_the_time_whatever_their_count(server: Canned, tmp_path: Path) -> None:
    def batch(name: str, at: str, requests: int) -> dict[str, Any]:
        return {"id": name, "created_at": at, "request_counts": {"processing": requests, "succeeded": 0}}

    page = [
        batch("new", "2026-11-20T12:00:00Z", 2),
        batch("other", "2026-11-20T11:59:59.5+00:00", 3),
        batch("late", "2026-11-20T11:56:00Z", 2),
        batch("old", "2026-11-20T11:50:00Z", 2),
    ]
    server.answers("GET /messages/batches", Answer({"data": page, "has_more": True, "last_id": "old"}))
    got = listed(server, tmp_path, "anthropic", 1_795_175_700.0)
    assert [one.id for one in got] == ["new", "other", "late"]
    paths = ["/v1/messages/batches?limit=1000", "/v1/messages/batches?limit=1000&after_id=old"]
    assert [one.path for one in server.asked] == paths


def counts(**more: int) -> dict[str, Any]:
    return {"request_counts": {"processing": 0, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0} | more}


OUTPUT, ERRORS, DAY = Remote("o", "output"), Remote("e", "errors"), 86_400
NOON, AT_NOON = "2026-11-20T12:00:00Z", 1_795_176_000.0
TIMES = {"created_at": 100, "expired_at": 200, "completed_at": 150, "expires_at": 900}  # some fill all in at once
NOTHING_TOLD: list[Any] = [None, {}, {"total": None}, {"total": "5"}, {"total": -1}, [5], {"total": True}]
ENDS = ("completed", "failed", "expired", "cancelled")
TOLD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # what OpenAI and those who look alike tell of a batch, and how it is read
    *(({"status": state.value}, {"state": state, "known": True, "word": state.value}) for state in BatchState),
    ({"status": "COMPLETED"}, {"state": BatchState.COMPLETED, "known": True}),
    ({"status": "canceled"}, {"state": BatchState.CANCELLED, "known": True}),
    ({"status": "canceling"}, {"state": BatchState.CANCELLING, "known": True}),
    ({"status": "paused"}, {"state": BatchState.IN_PROGRESS, "known": False, "word": "paused"}),
    *(({"status": odd}, {"state": BatchState.IN_PROGRESS, "known": False, "word": ""}) for odd in ("", None, 5)),
    # either file may be missing
    *(({"status": word, "output_file_id": output, "error_file_id": errors}, {"results": results})
      for word in ENDS for output, errors, results in (
        ("o", "e", (OUTPUT, ERRORS)), (None, "e", (ERRORS,)), ("", "e", (ERRORS,)), ("o", None, (OUTPUT,)),
        ("o", "o", (OUTPUT,)), (["o"], None, ()), (None, None, ()))),
    ({"status": "in_progress", "output_file_id": "o"}, {"results": ()}),
    # why it was refused
    *(({"status": "failed", "errors": told}, {"errors": tuple(BatchError(*error) for error in errors)})
      for told, errors in (
        ({"object": "list", "data": [{"code": "bad_line", "line": 3, "message": "why"}]}, [("bad_line", "why", 3)]),
        ([{"code": "empty_file", "message": f"of {KEY}"}], [("empty_file", "of [redacted]")]),
        ("no space", [("", "no space")]), ({"type": "quota", "message": ""}, [("quota", "quota")]),
        ({"data": [{"code": "x", "line": "3", "message": "why"}]}, [("x", "why")]),
        ({"data": None}, []), ({"data": []}, []), ([None, "a"], [("", "a")]), (None, []))),
    ({"status": "completed", "errors": "no space"}, {"errors": ()}),
    # a moment however it is written
    *(({"created_at": told}, {"created_at": AT_NOON}) for told in (1_795_176_000, "1795176000", NOON, NOON[:-1])),
    ({"created_at": 1_795_176_000_123}, {"created_at": 1_795_176_000.123}),
    *(({"created_at": told}, {"created_at": None})
      for told in (0, -1, True, "soon", float("nan"), float("inf"), None, {})),
    ({"status": "in_progress", **TIMES}, {"ended_at": None}),
    ({"status": "completed", **TIMES}, {"ended_at": 150.0, "expires_at": 900.0, "results_until": 100 + 30 * DAY}),
    ({"request_counts": {"total": 5, "completed": 2, "failed": 1}}, {"total": 5, "done": 2, "failed": 1}),
    *(({"request_counts": told}, {"total": None, "done": None}) for told in NOTHING_TOLD),
]  # fmt: skip
TOLD_BY_ANTHROPIC: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"processing_status": "in_progress", "created_at": NOON, **counts(processing=5)},
     {"state": BatchState.IN_PROGRESS, "total": 5, "done": None, "failed": None, "results": (),
      "results_until": AT_NOON + 29 * DAY}),
    ({"processing_status": "canceling"}, {"state": BatchState.CANCELLING}),
    ({"processing_status": "paused"}, {"state": BatchState.IN_PROGRESS, "known": False}),
    ({"processing_status": "ended", **counts(succeeded=3, errored=2)},
     {"state": BatchState.COMPLETED, "total": 5, "done": 3, "failed": 2, "results": (Remote("b", "output"),)}),
    ({"processing_status": "ended", **counts(succeeded=3, expired=2)},
     {"state": BatchState.EXPIRED, "done": 3, "failed": 2}),
    ({"processing_status": "ended", "cancel_initiated_at": NOON, **counts(canceled=2)},
     {"state": BatchState.CANCELLED}),
    ({"processing_status": "ended", "archived_at": NOON}, {"results": (), "results_until": AT_NOON}),
]  # fmt: skip


READ = [
    *((OpenAIBatches, OPENAI_BATCHES, *case) for case in TOLD),
    *((AnthropicBatches, ANTHROPIC_BATCHES, *case) for case in TOLD_BY_ANTHROPIC),
    (OpenAIBatches, AZURE_BATCHES, TIMES, {"expires_at": None}),  # it goes on after its time
]


@pytest.mark.parametrize(("api", "traits", "told", "expected"), READ)
def test_how_a_batch_is_read(
    api: type[BatchApi], traits: BatchTraits, told: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = api.seen_of({"id": "b", **told}, traits, REDACTOR)
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_batch_without_an_id_is_none() -> None:
    for told in (None, [], {}, {"id": None}, {"id": ""}, {"id": 5}, "b"):
        assert OpenAIBatches.seen_of(told, OPENAI_BATCHES, REDACTOR) is None
        assert AnthropicBatches.seen_of(told, ANTHROPIC_BATCHES, REDACTOR) is None


def test_what_has_no_batches_no_address_or_no_sdk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider, words in (
        (SHIPPED["ollama"], "^ollama has no batches"),
        (row("openai", "nowhere"), "the base_url of openai is no address"),
    ):
        with pytest.raises(UsageError, match=words):
            open_batch_api(provider, REDACTOR)
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(AgacError) as raised:
        open_batch_api(row("anthropic", "http://127.0.0.1:9/v1"), REDACTOR)
    assert raised.value.message.startswith(
        "batch mode of Anthropic needs anthropic<3,>=2.11, which is not installed: pip"
    )
    assert raised.value.remedy == "Or write run_mode: sync."


def exceptions(of: type[BaseException]) -> list[type[BaseException]]:
    return [of, *(deeper for kind in of.__subclasses__() for deeper in exceptions(kind))]


SETTINGS = ConnectionSettings(row("openai", "http://127.0.0.1:9/v1"), "", {}, REDACTOR)
UNSENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError"}


@pytest.mark.parametrize("kind", exceptions(httpx2.RequestError), ids=lambda kind: kind.__name__)
def test_every_way_of_losing_a_request_has_its_fault(kind: type[BaseException]) -> None:
    """A class that is new is ambiguous: it fails here when it means that nothing was sent."""
    found = lost(kind("why"), SETTINGS, creates=True)
    assert found.ambiguous == (kind.__name__ not in UNSENT), found
    assert not lost(kind("why"), SETTINGS, creates=False).ambiguous
    assert found.message


def test_why_no_connection_came_about() -> None:
    problem = httpx2.ConnectError("no")
    for reason, words in (
        (socket.gaierror(-2, "Name or service not known"), "the host 127.0.0.1 cannot be found"),
        (ConnectionRefusedError(111, "Connection refused"), "openai (127.0.0.1) cannot be reached"),
    ):
        problem.__cause__ = reason
        found = lost(problem, SETTINGS, creates=True)
        assert (found.kind, found.ambiguous) == (FaultKind.RETRY, False)
        assert words in found.message


def test_what_went_wrong_before_says_nothing_of_this_request(server: Canned, tmp_path: Path) -> None:
    """An exception knows which other was being handled when it was raised: that one's request is another."""
    server.answers("POST /batches", Answer(drop="unanswered"))

    async def do(api: BatchApi) -> Any:
        try:
            raise httpx2.ConnectError("nobody listens")
        except httpx2.ConnectError:
            return await api.create(order(tmp_path))

    assert talk("openai", server.base_url, do).ambiguous


ODD = [2**70, -1, "9" * 5000, 10**400, 1e300, True, None, [], {"a": 1}, 2**53]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: str(odd)[:12])
@both
def test_no_number_of_a_provider_is_too_odd_to_be_stored_and_shown(name: str, odd: Any, server: Canned) -> None:
    """Numbers with thousands of digits are JSON, and one of them spoils no other."""
    dates = ("created_at", "expires_at", "ended_at", "completed_at", "failed_at", "archived_at")
    counts = ("total", "completed", "failed", "processing", "succeeded", "errored", "canceled", "expired")
    state = {"status": "failed"} if name == "openai" else {"processing_status": "ended"}
    told = BATCH[name] | state | dict.fromkeys(dates, odd) | {"request_counts": dict.fromkeys(counts, odd)}
    told["errors"] = {"data": [{"line": odd, "code": "no", "message": "x" * 9999}, {"line": 7, "message": "y"}]}
    body = json.dumps(told).replace(f'"{odd}"', str(odd)) if isinstance(odd, str) else json.dumps(told)
    server.answers(f"GET {BATCHES[name]}/b", Answer(body.encode()))
    seen = talk(name, server.base_url, lambda api: api.look("b"))
    assert isinstance(seen, ProviderBatch)
    stored = seen.stored()
    for key, value in stored.items():
        assert not isinstance(value, int) or 0 <= value < 2**63, key
        assert not isinstance(value, float) or iso(value), key
    if name == "openai":
        assert [error.line for error in seen.errors] == [None, 7]
        assert len(seen.reasons) < 600


def test_of_a_hundred_thousand_errors_the_first_hundred_are_quoted_and_every_line_counts(server: Canned) -> None:
    errors = [{"line": line, "code": "bad", "message": f"line {line} is bad"} for line in range(1, 100_001)]
    told = BATCH["openai"] | {"status": "failed", "errors": {"data": errors}}
    server.answers("GET /batches/b", Answer(told))
    seen = talk("openai", server.base_url, lambda api: api.look("b"))
    assert seen.reasons.endswith("; line 100 is bad (bad); and 99,900 more")
    assert [error.line for error in seen.errors] == list(range(1, 100_001))
