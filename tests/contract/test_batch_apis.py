"""What every batch API promises, against the simulator over real HTTP. A new one adds a line to MEMBERS."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.server import Faulty, Server, simulator

from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, Message, Reply, Request
from agac.providers.batch import BatchState, Order, ProviderBatch, Remote, RemoteFile, ResultLine
from agac.providers.batch_apis import BATCH_APIS, open_batch_api
from agac.providers.bodies import encode
from agac.providers.control_plane import BatchApi
from agac.providers.provider import Provider
from agac.providers.table import DIALECTS, SHIPPED

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

members = pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)


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
                asked = Request((Message.of("user", f"Say {place} of {key}."),))
                body = encode(self.dialect.build(asked, "small", self.row))
                file.write(self.lines.line(f"{key}-{place}-abc", body, self.endpoint) + b"\n")
        return path

    async def order(self, key: str, requests: int = 3) -> Order:
        """What is to be created, its input uploaded."""
        path, file_id = self.spool(key, requests), None
        if self.api.uploads:
            file_id = good(await self.api.upload(path, f"agac-{key}.jsonl"))
        return Order(key, path, self.endpoint, "small", requests, file_id)

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
            for line in path.read_bytes().split(b"\n"):
                if line.strip():
                    result = self.lines.result(line)
                    found[result.custom_id] = result
        return found


def good(value: Any) -> Any:
    assert not isinstance(value, Fault), value
    return value


def fault(value: Any) -> Fault:
    assert isinstance(value, Fault), value
    return value


async def all_of(found: AsyncIterator[Any]) -> list[Any]:
    return [good(one) async for one in found]


@asynccontextmanager
async def opened(member: Member, server: Server, folder: Path) -> AsyncIterator[Account]:
    account = Account(member, server, folder)
    try:
        yield account
    finally:
        await account.api.close()


def over(member: Member, server: Server, folder: Path, talk: Callable[[Account], Awaitable[None]]) -> None:
    """Has a talk with a member's batches."""

    async def whole() -> None:
        async with opened(member, server, folder) as account:
            await talk(account)

    asyncio.run(whole())


def test_every_batch_api_is_under_contract() -> None:
    assert {SHIPPED[member.name].batch.api for member in MEMBERS} == BATCH_APIS.keys()
    rows = {name for name, row in SHIPPED.items() if row.batch is not None and not row.simulated}
    assert {member.name for member in MEMBERS} == rows


@members
def test_a_batch_from_its_input_to_its_end(member: Member, server: Server, tmp_path: Path) -> None:
    async def talk(account: Account) -> None:
        api = account.api
        order = await account.order("life")
        created = good(await api.create(order))
        assert created.known
        seen = await account.ended(created.id)
        assert (seen.state, seen.known, seen.total, seen.done, seen.failed) == (BatchState.COMPLETED, True, 3, 3, 0)
        assert seen.created_at is not None
        assert seen.results_until is None or seen.results_until > seen.created_at + 20 * 86_400
        results = await account.results(seen)
        assert results.keys() == {f"life-{place}-abc" for place in range(3)}
        for result in results.values():
            assert result.ended == "answered"
            reply = account.dialect.parse(
                result.status, {}, result.body, provider=account.row, model="small", redactor=REDACTOR
            )
            assert isinstance(reply, Reply)
            assert reply.text
            assert reply.simulated
            assert reply.usage.input_tokens
        # an end is no fault, and what is deleted can be deleted again
        assert await api.cancel(created.id) is None
        for _ in range(2):
            assert await api.delete(batch=created.id) is None
            for file in (order.file_id, *(result.ref for result in seen.results)):
                if api.uploads:
                    assert await api.delete(file=file) is None

    over(member, server, tmp_path, talk)
    account = server.account()["batches"]
    assert (account["posts"], account["created"], account["charged"], account["duplicates"]) == (1, 1, 3, 0)


@members
def test_a_batch_is_found_by_what_it_carries(member: Member, server: Server, tmp_path: Path) -> None:
    async def talk(account: Account) -> None:
        name = member.name
        orders = [await account.order(f"{name}-{requests}", requests) for requests in (2, 3, 4)]
        made = [good(await account.api.create(order)) for order in orders]
        for order, batch in zip(orders, made, strict=True):
            found = await all_of(account.api.candidates(order, batch.created_at))
            assert [one.id for one in found] == [batch.id]
        other = replace(orders[0], key="other", file_id="file-other", requests=5)
        assert await all_of(account.api.candidates(other, made[0].created_at)) == []

    over(member, server, tmp_path, talk)


@members
def test_a_batch_carries_its_key_or_its_file(member: Member, server: Server, tmp_path: Path) -> None:
    async def talk(account: Account) -> None:
        order = await account.order("echo")
        seen = good(await account.api.create(order))
        looked = good(await account.api.look(seen.id))
        echoed = (None, None) if account.traits.finds_by == "count" else ("echo", order.file_id)
        assert (seen.key, seen.file_id) == (looked.key, looked.file_id) == echoed

    over(member, server, tmp_path, talk)


@members
def test_an_uploaded_input_is_found_again(member: Member, server: Server, tmp_path: Path) -> None:
    async def talk(account: Account) -> None:
        if not account.api.uploads:
            assert await account.api.uploaded("agac-none.jsonl", 5) is None
            assert await all_of(account.api.stale("agac-")) == []
            return
        order = await account.order("kept")
        size = order.path.stat().st_size
        assert await account.api.uploaded("agac-kept.jsonl", size) == order.file_id
        assert await account.api.uploaded("agac-kept.jsonl", size + 1) is None
        assert await account.api.uploaded("agac-other.jsonl", size) is None

    over(member, server, tmp_path, talk)


@members
def test_what_is_left_at_the_provider(member: Member, server: Server, tmp_path: Path) -> None:
    async def talk(account: Account) -> None:
        if not account.api.uploads:
            return
        order = await account.order(f"left-{member.name}")
        foreign = tmp_path / "foreign.jsonl"
        foreign.write_bytes(order.path.read_bytes())
        assert isinstance(await account.api.upload(foreign, "report.jsonl"), str)
        seen = await account.ended(good(await account.api.create(order)).id)
        stale: list[RemoteFile] = [one for one in await all_of(account.api.stale("agac-")) if one.key == order.key]
        assert {file.id for file in stale} == {order.file_id, *(result.ref for result in seen.results)}
        for file in stale:
            assert await account.api.delete(file=file.id) is None
        left = await all_of(account.api.stale("agac-"))
        assert [one for one in left if one.key == order.key or one.name == "report.jsonl"] == []

    over(member, server, tmp_path, talk)


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    """A simulator whose batches take an hour of its own clock."""
    with simulator("--batch-seconds", "3600") as server:
        yield server


@members
def test_a_batch_that_is_cancelled_ends(member: Member, slow: Server, tmp_path: Path) -> None:
    async def talk(account: Account) -> None:
        order = await account.order("halt", 4)
        created = good(await account.api.create(order))
        seen = good(await account.api.look(created.id))
        assert not seen.state.is_terminal
        assert seen.results == ()
        assert await account.api.cancel(created.id) is None
        seen = await account.ended(created.id)
        assert seen.state is BatchState.CANCELLED
        results = await account.results(seen)
        assert {result.ended for result in results.values()} == {"cancelled"}

    over(member, slow, tmp_path, talk)


@members
def test_what_is_not_there_may_show_up_yet(member: Member, server: Server, tmp_path: Path) -> None:
    async def talk(account: Account) -> None:
        looked = fault(await account.api.look("batch_none"))
        assert (looked.kind, looked.status, looked.ambiguous) == (FaultKind.RETRY, 404, False)
        loaded = fault(await account.api.download(Remote("file-none", "output"), tmp_path / "none"))
        assert (loaded.kind, loaded.status) == (FaultKind.RETRY, 404)
        stopped = fault(await account.api.cancel("batch_none"))
        assert (stopped.kind, stopped.ambiguous) == (FaultKind.RETRY, False)

    over(member, server, tmp_path, talk)


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


@members
@pytest.mark.parametrize(("rule", "there", "open_"), LOST, ids=lambda value: str(value))
def test_a_create_is_sent_once_whatever_comes_back(
    member: Member, rule: dict[str, Any], there: bool, open_: bool, faulty: Faulty, tmp_path: Path
) -> None:
    server = faulty([{**rule, "at": [1]}])

    async def talk(account: Account) -> None:
        order = await account.order("once")
        lost = fault(await account.api.create(order))
        assert lost.ambiguous == open_
        if rule.get("retry_after"):
            assert (lost.kind, lost.delay) == (FaultKind.PAUSE, 3.0)
        found = await all_of(account.api.candidates(order, 0.0))
        assert len(found) == there

    over(member, server, tmp_path, talk)
    account = server.account()["batches"]
    assert (account["posts"], account["created"]) == (1, int(there))


@members
def test_an_upload_is_sent_once(member: Member, faulty: Faulty, tmp_path: Path) -> None:
    server = faulty([{"kind": "batch_drop_after", "op": "upload", "at": [1]}])

    async def talk(account: Account) -> None:
        if account.api.uploads:
            path = account.spool("twice", 2)
            assert fault(await account.api.upload(path, "agac-twice.jsonl")).ambiguous
            assert isinstance(await account.api.uploaded("agac-twice.jsonl", path.stat().st_size), str)

    over(member, server, tmp_path, talk)
    assert server.account()["batches"]["calls"].get("upload", 0) == (0 if member.name == "anthropic" else 1)


@members
def test_pages_are_read_to_the_end(member: Member, faulty: Faulty, tmp_path: Path) -> None:
    server = faulty([{"kind": "batch_paged", "size": 1}])

    async def talk(account: Account) -> None:
        orders = [await account.order(f"page{number}", number + 1) for number in range(4)]
        made = [good(await account.api.create(order)) for order in orders]
        [found] = await all_of(account.api.candidates(orders[0], made[0].created_at))
        assert found.id == made[0].id
        if account.api.uploads:
            size = orders[0].path.stat().st_size
            assert await account.api.uploaded("agac-page0.jsonl", size) == orders[0].file_id

    over(member, server, tmp_path, talk)


def test_a_file_that_is_late_is_no_refusal(faulty: Faulty, tmp_path: Path) -> None:
    server = faulty([{"kind": "batch_file_lag", "times": 2}])

    async def talk(account: Account) -> None:
        order = await account.order("late")
        for _ in range(2):
            late = fault(await account.api.create(order))
            assert (late.kind, late.ambiguous, late.code) == (FaultKind.RETRY, False, "input_file_not_found")
        assert isinstance(await account.api.create(order), ProviderBatch)

    over(MEMBERS[0], server, tmp_path, talk)


def test_a_batch_without_metadata_is_found_by_its_file(faulty: Faulty, tmp_path: Path) -> None:
    server = faulty([{"kind": "batch_no_metadata", "always": True}])

    async def talk(account: Account) -> None:
        order = await account.order("mute")
        seen = good(await account.api.create(order))
        assert seen.key is None
        [found] = await all_of(account.api.candidates(order, seen.created_at))
        assert found.id == seen.id

    over(MEMBERS[0], server, tmp_path, talk)


@members
def test_a_torn_download_is_no_result(member: Member, faulty: Faulty, tmp_path: Path) -> None:
    server = faulty([{"kind": "batch_truncate", "after_bytes": 100, "at": [1]}])

    async def talk(account: Account) -> None:
        seen = await account.ended(good(await account.api.create(await account.order("torn"))).id)
        torn = fault(await account.api.download(seen.results[0], tmp_path / "torn"))
        assert torn.kind is FaultKind.RETRY
        assert len(await account.results(seen)) == 3

    over(member, server, tmp_path, talk)


def test_a_file_that_is_refused_says_where(server: Server, tmp_path: Path) -> None:
    async def talk(account: Account) -> None:
        path = account.spool("bad", 2)
        path.write_bytes(path.read_bytes() + b"{not json}\n")
        file_id = good(await account.api.upload(path, "agac-bad.jsonl"))
        order = Order("bad", path, account.endpoint, "small", 3, file_id)
        seen = await account.ended(good(await account.api.create(order)).id)
        assert (seen.state, seen.results) == (BatchState.FAILED, ())
        [error] = seen.errors
        assert (error.code, error.line) == ("invalid_json_line", 3)
        assert error.message

    over(MEMBERS[0], server, tmp_path, talk)
    assert server.account()["batches"]["charged"] == 0


def test_no_key_is_shown(server: Server, tmp_path: Path) -> None:
    async def talk(account: Account) -> None:
        path = tmp_path / "key.jsonl"
        path.write_text(json.dumps({"custom_id": KEY, "method": KEY, "url": KEY, "body": {}}) + "\n")
        file_id = good(await account.api.upload(path, "agac-key.jsonl"))
        order = Order("key", path, account.endpoint, "small", 1, file_id)
        created = await account.api.create(order)
        seen = await account.ended(created.id) if isinstance(created, ProviderBatch) else created
        assert KEY not in repr(seen)

    over(MEMBERS[0], server, tmp_path, talk)
