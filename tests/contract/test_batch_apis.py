"""What every batch API promises, against the simulator over real HTTP. A new one adds a line to MEMBERS."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.server import Faulty, Server, simulator

from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, Message, Reply, Request
from agac.providers.batch import BatchState, Order, ProviderBatch, Remote, RemoteFile, ResultLine
from agac.providers.batch_apis import BATCH_APIS, open_batch_api
from agac.providers.batch_calls import BatchApi
from agac.providers.bodies import encode
from agac.providers.known_providers import SHIPPED
from agac.providers.provider import Provider
from agac.providers.table import DIALECTS

KEY = "sk-contract-0123456789"
REDACTOR = Redactor([KEY])


@dataclass(frozen=True)
class Member:
    """A provider with batches, and where the simulator speaks for it below its root."""

    name: str
    path: str

    def row(self, server: Server) -> Provider:
        root = server.base_url.removesuffix("/v1")
        return replace(SHIPPED[self.name], base_url=root + self.path, api_key=KEY)


MEMBERS = [
    Member("openai", "/v1"),
    Member("responses", "/v1"),
    Member("azure", "/openai/v1"),
    Member("anthropic", "/v1"),
]

of_openai = pytest.mark.parametrize("member", MEMBERS[:1], ids=lambda member: member.name)
with_files = pytest.mark.parametrize("member", MEMBERS[:3], ids=lambda member: member.name)


class Account:
    """One member's batches at a simulator, and the files that go there."""

    def __init__(self, member: Member, server: Server, folder: Path) -> None:
        self.row, self.server, self.folder = member.row(server), server, folder
        assert self.row.batch is not None
        self.traits, self.dialect = self.row.batch, DIALECTS[self.row.dialect]
        self.lines = BATCH_APIS[self.traits.api]
        self.endpoint = self.traits.endpoint_prefix + self.dialect.path
        self.api: BatchApi = open_batch_api(self.row, REDACTOR)

    def spool(self, key: str, requests: int) -> Path:
        """An input of so many requests."""
        path = self.folder / f"{key}.jsonl"
        with path.open("wb") as file:
            for place in range(requests):
                asked = Request((Message("user", f"Say {place} of {key}."),))
                body = encode(self.dialect.build(asked, "small", self.row))
                file.write(self.lines.line(f"{key}-{place}-abc", body, self.endpoint) + b"\n")
        return path

    async def order(self, key: str, requests: int = 3) -> Order:
        """What is to be created, its input uploaded."""
        path, file_id = self.spool(key, requests), None
        if self.api.uploads:
            file_id = good(await self.api.upload(path, f"agac-{key}.jsonl"))
        return Order(key, path, self.endpoint, "small", requests, file_id)

    async def made(self, key: str, requests: int = 3) -> ProviderBatch:
        """A new batch."""
        return good(await self.api.create(await self.order(key, requests)))

    async def ended(self, batch: str) -> ProviderBatch:
        """The batch once nothing will happen to it any more. The simulator works through it at once."""
        while True:
            seen = good(await self.api.look(batch))
            if seen.state.is_terminal:
                return seen

    async def results(self, seen: ProviderBatch) -> dict[str, ResultLine]:
        """All results of a batch."""
        found: dict[str, ResultLine] = {}
        for number, remote in enumerate(seen.results):
            path = self.folder / f"results-{number}"
            size = good(await self.api.download(remote, path))
            assert path.stat().st_size == size
            for line in filter(bytes.strip, path.read_bytes().split(b"\n")):
                result = self.lines.result(line)
                found[result.custom_id] = result
        return found

    def counted(self, *names: str) -> tuple[int, ...]:
        """What the simulator counted of batches."""
        counts = self.server.account()["batches"]
        return tuple(counts[name] for name in names)


def good(value: Any) -> Any:
    assert not isinstance(value, Fault), value
    return value


def fault(value: Any) -> Fault:
    assert isinstance(value, Fault), value
    return value


async def all_of(found: AsyncIterator[Any]) -> list[Any]:
    return [good(one) async for one in found]


@pytest.fixture(params=MEMBERS, ids=lambda member: member.name)
def member(request: pytest.FixtureRequest) -> Member:
    found: Member = request.param
    return found


@pytest.fixture
def faults() -> list[dict[str, Any]]:
    return []


@asynccontextmanager
async def opened(member: Member, server: Server, folder: Path) -> AsyncIterator[Account]:
    account = Account(member, server, folder)
    try:
        yield account
    finally:
        await account.api.close()


@pytest.fixture
def account(
    member: Member, faults: list[dict[str, Any]], server: Server, faulty: Faulty, tmp_path: Path
) -> AbstractAsyncContextManager[Account]:
    """A member's account at a simulator."""
    return opened(member, faulty(faults) if faults else server, tmp_path)


def test_every_batch_api_is_under_contract() -> None:
    assert {SHIPPED[member.name].batch.api for member in MEMBERS} == BATCH_APIS.keys()
    rows = {name for name, row in SHIPPED.items() if row.batch is not None and not row.simulated}
    assert {member.name for member in MEMBERS} == rows


async def test_a_batch_from_its_input_to_its_end(account: Account) -> None:
    api, order = account.api, await account.order("life")
    created = good(await api.create(order))
    assert created.known
    seen = await account.ended(created.id)
    assert (seen.state, seen.known, seen.total, seen.done, seen.failed) == (BatchState.COMPLETED, True, 3, 3, 0)
    assert seen.created_at is not None
    assert seen.results_until is None or seen.results_until > seen.created_at + 20 * 86_400
    echoed = (None, None) if account.traits.finds_by == "count" else ("life", order.file_id)
    assert (created.key, created.file_id) == (seen.key, seen.file_id) == echoed
    results = await account.results(seen)
    assert results.keys() == {f"life-{place}-abc" for place in range(3)}
    for result in results.values():
        assert result.ended == "answered"
        reply = account.dialect.parse(
            result.status, {}, result.body, provider=account.row, model="small", redactor=REDACTOR
        )
        assert isinstance(reply, Reply)
        assert (bool(reply.text), reply.simulated, bool(reply.usage.input_tokens)) == (True, True, True)
    # an end is no fault, and what is deleted can be deleted again
    assert await api.cancel(created.id) is None
    for file in 2 * (order.file_id or "none", *(result.ref for result in seen.results)):
        assert await api.delete(file) is None
    assert account.counted("posts", "created", "charged", "duplicates") == (1, 1, 3, 0)


async def test_a_batch_is_found_by_what_it_carries(account: Account) -> None:
    orders = [await account.order(f"{account.row.name}-{requests}", requests) for requests in (2, 3, 4)]
    made = [good(await account.api.create(order)) for order in orders]
    for order, batch in zip(orders, made, strict=True):
        found = await all_of(account.api.candidates(order, made[0].created_at))
        by_time = account.api.uploads is False  # whatever it carries, counts may be wrong
        assert {one.id for one in found} == ({one.id for one in made} if by_time else {batch.id})
    other = replace(orders[0], key="other", file_id="file-other", requests=5)
    later = max(batch.created_at or 0.0 for batch in made) + 1
    assert await all_of(account.api.candidates(other, later)) == []


async def test_an_uploaded_input_is_found_again(account: Account) -> None:
    if not account.api.uploads:
        assert await account.api.uploaded("agac-none.jsonl", 5) is None
        assert await all_of(account.api.stale("agac-")) == []
        return
    order = await account.order("kept")
    size = order.path.stat().st_size
    assert await account.api.uploaded("agac-kept.jsonl", size) == order.file_id
    assert await account.api.uploaded("agac-kept.jsonl", size + 1) is None
    assert await account.api.uploaded("agac-other.jsonl", size) is None


@with_files
async def test_what_is_left_at_the_provider(account: Account, tmp_path: Path) -> None:
    order = await account.order(f"left-{account.row.name}")
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_bytes(order.path.read_bytes())
    assert isinstance(await account.api.upload(foreign, "report.jsonl"), str)
    seen = await account.ended(good(await account.api.create(order)).id)
    stale: list[RemoteFile] = [one for one in await all_of(account.api.stale("agac-")) if one.key == order.key]
    assert {file.id for file in stale} == {order.file_id, *(result.ref for result in seen.results)}
    for file in stale:
        assert await account.api.delete(file.id) is None
    left = await all_of(account.api.stale("agac-"))
    assert [one for one in left if one.key == order.key or one.name == "report.jsonl"] == []


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    """A simulator whose batches take an hour of its own clock."""
    with simulator("--batch-seconds", "3600") as server:
        yield server


async def test_a_batch_that_is_cancelled_ends(member: Member, slow: Server, tmp_path: Path) -> None:
    async with opened(member, slow, tmp_path) as account:
        seen = good(await account.api.look((await account.made("halt", 4)).id))
        assert (seen.state.is_terminal, seen.results) == (False, ())
        assert await account.api.cancel(seen.id) is None
        seen = await account.ended(seen.id)
        assert seen.state is BatchState.CANCELLED
        assert {result.ended for result in (await account.results(seen)).values()} == {"cancelled"}


async def test_what_is_not_there_may_show_up_yet(account: Account, tmp_path: Path) -> None:
    looked = fault(await account.api.look("batch_none"))
    assert (looked.kind, looked.status, looked.ambiguous) == (FaultKind.RETRY, 404, False)
    loaded = fault(await account.api.download(Remote("file-none", "output"), tmp_path / "none"))
    assert (loaded.kind, loaded.status) == (FaultKind.RETRY, 404)
    stopped = fault(await account.api.cancel("batch_none"))
    assert (stopped.kind, stopped.ambiguous) == (FaultKind.RETRY, False)


LOST = [
    # what went wrong with the one create; whether the batch is there; whether the Fault leaves that open
    ({"kind": "batch_drop_after"}, True, True),
    ({"kind": "batch_drop_before"}, False, True),
    ({"kind": "batch_status", "status": 500, "when": "after"}, True, True),
    ({"kind": "batch_status", "status": 500, "when": "before"}, False, True),
    ({"kind": "batch_status", "status": 429, "when": "before", "retry_after": 3}, False, False),
    ({"kind": "batch_status", "status": 408, "when": "after"}, True, True),
    ({"kind": "batch_status", "status": 409, "when": "before"}, False, True),
]


@pytest.mark.parametrize(("faults", "there", "open_"), [([{**rule, "at": [1]}], *rest) for rule, *rest in LOST])
async def test_a_create_is_sent_once_whatever_comes_back(
    account: Account, faults: list[dict[str, Any]], there: bool, open_: bool
) -> None:
    order = await account.order("once")
    lost = fault(await account.api.create(order))
    assert lost.ambiguous == open_
    if faults[0].get("retry_after"):
        assert (lost.kind, lost.delay) == (FaultKind.PAUSE, 3.0)
    assert len(await all_of(account.api.candidates(order, 0.0))) == there
    assert account.counted("posts", "created") == (1, int(there))


@of_openai
async def test_a_file_that_is_refused_says_where_and_shows_no_key(account: Account) -> None:
    path = account.spool("bad", 2)
    odd = json.dumps({"custom_id": KEY, "method": KEY, "url": KEY, "body": {}}).encode()
    for line in (b"{not json}\n", odd + b"\n"):
        path.write_bytes(path.read_bytes() + line)
        file_id = good(await account.api.upload(path, "agac-bad.jsonl"))
        created = await account.api.create(Order("bad", path, account.endpoint, "small", 3, file_id))
        seen = await account.ended(created.id) if isinstance(created, ProviderBatch) else created
        assert KEY not in repr(seen)
        assert isinstance(seen, ProviderBatch)
        assert (seen.state, seen.results) == (BatchState.FAILED, ())
        assert ("invalid_json_line", 3) in [(error.code, error.line) for error in seen.errors]
        assert all(error.message for error in seen.errors)
    assert account.counted("charged") == (0,)
