"""An MCP server over streamable HTTP, by the protocol's own package, in a thread; and answers that no server should
give, by the path that is asked."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

Headers = list[dict[str, str]]


def _served() -> MCPServer:
    server = MCPServer("shop", version="1.0", instructions="Ask once.", log_level="CRITICAL")

    @server.tool()
    async def price(name: str) -> str:
        """The price of an article."""
        return f"{name} costs 3"

    @server.tool()
    async def large(megabytes: int) -> str:
        """Much text."""
        return "x" * megabytes * 1_000_000

    @server.tool()
    async def hang() -> str:
        """Never answers."""
        await asyncio.Event().wait()
        return ""

    @server.tool()
    async def change(context: Context) -> str:
        """Adds a tool, once."""
        server.add_tool(price, name="price_again")
        await context.notify_tools_changed()
        return "changed"

    return server


@contextmanager
def serving() -> Iterator[tuple[str, Headers]]:
    """The address of the server, and the headers of every request that it got."""
    app, asked = _served().streamable_http_app(), Headers()

    async def front(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {key.decode(): value.decode() for key, value in scope["headers"]}
            asked.append(headers | {"path": scope["path"], "query": scope["query_string"].decode()})
            match scope["path"].split("/")[1]:
                case "redirect":
                    elsewhere = scope["path"].removeprefix("/redirect/").replace("_", "/")
                    return await _answer(send, 307, b"", location=f"http://{elsewhere}")
                case "broken":
                    return await _answer(send, 503, b"not now")
                case "private":
                    return await _answer(send, 401, b"who are you?")
                case "zipped":
                    return await _answer(send, 200, b"", **{"content-encoding": "gzip"})
                case "huge":
                    body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": "x" * 9_000_000}).encode()
                    return await _answer(send, 200, body, **{"content-type": "application/json"})
        return await app(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(front, port=0, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            threading.Event().wait(0.005)
        host, port = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{port}", asked
    finally:
        server.force_exit = server.should_exit = True
        thread.join()


async def _answer(send: Any, status: int, body: bytes, **headers: str) -> None:
    told = [(key.encode(), value.encode()) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": body})
