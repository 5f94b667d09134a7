"""Asks a simulator for files and batches over HTTP, as OpenAI, Azure and Anthropic spell them, without their SDKs."""

import io
import json
from typing import Any

import aiohttp

CHAT = "/v1/chat/completions"


def question(text: str, **more: Any) -> dict[str, Any]:
    """The body of a chat completion."""
    return {"model": "small", "messages": [{"role": "user", "content": text}], **more}


def line(custom_id: str, body: Any = None, *, url: str = CHAT, **more: Any) -> dict[str, Any]:
    """A request of a batch."""
    asked = question(f"What about {custom_id}?") if body is None else body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked, **more}


def rows(count: int) -> list[dict[str, Any]]:
    """So many requests: r-1, r-2, …"""
    return [line(f"r-{number}") for number in range(1, count + 1)]


def as_jsonl(lines: Any) -> bytes:
    """Lines as a file's bytes."""
    return lines if isinstance(lines, bytes) else b"".join(json.dumps(one).encode() + b"\n" for one in lines)


class BatchClient:
    """One simulator; `prefix` is /v1, or where Azure's API lies."""

    def __init__(self, session: aiohttp.ClientSession, root: str, prefix: str = "/v1") -> None:
        self.session, self.root, self.prefix = session, root, prefix

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        more = {"json": body, **more} if body is not None else more
        async with self.session.request(method, f"{self.root}{self.prefix}{path}", **more) as response:
            return response.status, await response.json()

    async def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The JSON of an answer that is a good one."""
        status, data = await self.call(method, path, body, **more)
        assert status == 200, data
        return data

    async def upload(self, lines: Any, *, name: str = "agac-x.jsonl", purpose: str = "batch", **fields: str) -> str:
        """The id of a new file."""
        status, data = await self.try_upload(lines, name=name, purpose=purpose, **fields)
        assert status == 200, data
        return str(data["id"])

    async def try_upload(self, lines: Any, *, name: str = "agac-x.jsonl", **fields: str) -> tuple[int, Any]:
        """Status and JSON of an upload; fields are sent as they are."""
        form = aiohttp.FormData(fields)
        form.add_field("file", io.BytesIO(as_jsonl(lines)), filename=name)
        return await self.call("POST", "/files", data=form)

    async def create(self, lines: Any = 4, **more: Any) -> dict[str, Any]:
        """A new batch of these lines, or of so many."""
        file_id = await self.upload(rows(lines) if isinstance(lines, int) else lines)
        asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h", **more}
        return dict(await self.ok("POST", "/batches", asked))

    async def look(self, batch: dict[str, Any] | str) -> dict[str, Any]:
        """A batch as it is now."""
        return dict(await self.ok("GET", f"/batches/{batch if isinstance(batch, str) else batch['id']}"))

    async def run(self, lines: Any = 4, **more: Any) -> dict[str, Any]:
        """A new batch, once it has ended."""
        return await self.look(await self.create(lines, **more))

    async def content(self, file_id: str | None) -> bytes:
        """The bytes of a file, none for a file that is none."""
        if not file_id:
            return b""
        async with self.session.get(f"{self.root}{self.prefix}/files/{file_id}/content") as response:
            assert response.status == 200, await response.text()
            body = await response.read()
            assert response.content_length == len(body)
            return body

    async def results(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Every line of a batch's files, by custom_id."""
        both = [await self.content(batch[name]) for name in ("output_file_id", "error_file_id")]
        lines = [json.loads(one) for one in b"".join(both).splitlines()]
        found = {one["custom_id"]: one for one in lines}
        assert len(found) == len(lines)
        return found

    async def advance(self, seconds: float) -> None:
        """Moves the simulator's clock."""
        async with self.session.post(f"{self.root}/account/clock", json={"advance": seconds}) as response:
            assert response.status == 200, await response.text()

    async def account(self) -> dict[str, Any]:
        """The whole account."""
        async with self.session.get(f"{self.root}/account") as response:
            return dict(await response.json())

    async def counted(self) -> dict[str, Any]:
        """The account of batches."""
        return dict((await self.account())["batches"])


def statuses(results: dict[str, Any]) -> dict[str, Any]:
    """What became of each request: a status, or the code of its error."""
    return {
        name: one["response"]["status_code"] if one["response"] else one["error"]["code"]
        for name, one in results.items()
    }
