"""What tests of the simulator share: one served in the test's own loop, and a way to ask it."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.batchclient import BatchClient

from agac.simulator.app import Simulator
from agac.simulator.settings import Settings


class Client:
    """Asks one simulator over HTTP; `base_url` ends in /v1."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self.session = session
        self.base_url = base_url

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")

    @property
    def batches(self) -> BatchClient:
        return BatchClient(self.session, self.root)

    async def post(self, body: Any, **headers: str) -> tuple[int, Any, bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = f"{self.base_url}/chat/completions"
        async with self.session.post(url, data=data, headers={"authorization": "Bearer any", **headers}) as response:
            return response.status, response.headers, await response.read()

    async def ask(self, text: str = "It works", **more: Any) -> tuple[int, Any, Any]:
        """Status, headers and JSON of a chat completion for one message of the user."""
        body = {"model": "small", "messages": [{"role": "user", "content": text}], **more}
        status, headers, raw = await self.post(body)
        return status, headers, json.loads(raw)

    async def content(self, text: str = "It works", **more: Any) -> Any:
        """What the model said."""
        status, _, data = await self.ask(text, **more)
        assert status == 200, data
        return data["choices"][0]["message"]["content"]

    async def account(self) -> dict[str, Any]:
        async with self.session.get(f"{self.root}/account") as response:
            return dict(await response.json())


Served = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def served(tmp_path: Path) -> Served:
    """`async with served(faults=[…], rpm=…) as client`."""

    @asynccontextmanager
    async def serve(faults: list[dict[str, Any]] | None = None, **settings: Any) -> AsyncIterator[Client]:
        if faults is not None:
            settings["faults"] = tmp_path / "faults.json"
            settings["faults"].write_text(json.dumps(faults))
        runner = web.AppRunner(Simulator(Settings(**settings)).app(), shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        try:
            async with aiohttp.ClientSession() as session:
                yield Client(session, f"http://{host}:{port}/v1")
        finally:
            await runner.cleanup()

    return serve


@pytest.fixture
def batches(served: Served) -> Callable[..., AbstractAsyncContextManager[BatchClient]]:
    """`async with batches(…) as api`: files and batches of one that is served so."""

    @asynccontextmanager
    async def serve(*arguments: Any, **settings: Any) -> AsyncIterator[BatchClient]:
        async with served(*arguments, **settings) as client:
            yield client.batches

    return serve


@pytest.fixture
def client(served: Served) -> AbstractAsyncContextManager[Client]:
    """One without faults or settings; a test gets it served."""
    return served()


@pytest.fixture
def api(batches: Callable[..., AbstractAsyncContextManager[BatchClient]]) -> AbstractAsyncContextManager[BatchClient]:
    """Files and batches of one without faults or settings."""
    return batches()


@pytest.fixture
def with_schema() -> Callable[..., dict[str, Any]]:
    """`response_format` for a schema."""
    return lambda schema, strict=False: {
        "type": "json_schema", "json_schema": {"name": "result", "schema": schema, "strict": strict}
    }  # fmt: skip
