"""Requests over WebSockets, against real servers on loopback: who has a socket, when it is left, what is named how."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import WSCloseCode, web
from wire_servers import BOUNDS, KEY, a_fault, a_reply, bounds, never, sending, serving

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers import http as sender_module
from agac.providers.http import HttpReply, Sending
from agac.providers.provider import Limits, Provider
from agac.providers.table import DIALECTS
from agac.spec.rules import Timeout

WIRE = b'{"model":"m"}'
DELTA = {"type": "response.output_text.delta", "delta": "Hi"}
COMPLETED = {"type": "response.completed", "response": {"status": "completed", "model": "m", "output": []}}


@dataclass
class Seen:
    """What a server met: keys of upgrades, messages as (socket, JSON), bodies of POSTs."""

    port: int = 0
    upgrades: list[str] = field(default_factory=list)
    messages: list[tuple[int, Any]] = field(default_factory=list)
    posts: list[Any] = field(default_factory=list)


Told = Callable[[web.WebSocketResponse, int], Awaitable[bool]]
"""Answers the message with this number, from 1; False ends the socket."""


async def well(ws: web.WebSocketResponse, _number: int) -> bool:
    await ws.send_json(DELTA)
    await ws.send_json(COMPLETED)
    return True


@asynccontextmanager
async def server(told: Told = well, refuse: int = 0, location: str = "") -> AsyncIterator[Seen]:
    """A server at /v1/responses; with `refuse` its upgrades get that status. POSTs get the same response as events."""
    seen = Seen()

    async def upgrade(request: web.Request) -> web.StreamResponse:
        seen.upgrades.append(request.headers.get("authorization", ""))
        if refuse:
            return web.Response(status=refuse, headers={"location": location} if location else {})
        number = len(seen.upgrades)
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        async for message in ws:
            seen.messages.append((number, json.loads(message.data)))
            if not await told(ws, len(seen.messages)):
                break
        return ws

    async def post(request: web.Request) -> web.Response:
        seen.posts.append(await request.json())
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in (DELTA, COMPLETED))
        return web.Response(text=text, content_type="text/event-stream")

    app = web.Application()
    app.router.add_get("/v1/responses", upgrade)
    app.router.add_post("/v1/responses", post)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    seen.port = runner.addresses[0][1]
    try:
        yield seen
    finally:
        await runner.cleanup()


def sockets(seen: Seen, socket: str = "ws", **row: Any) -> AbstractAsyncContextManager[Sending]:
    return sending(f"http://127.0.0.1:{seen.port}/v1", dialect="openai-responses", socket=socket, **row)


async def test_a_call_is_one_message_and_its_events_one_body() -> None:
    async with server() as seen, sockets(seen) as sender:
        reply = a_reply(await sender.send(WIRE, BOUNDS))
    assert (reply.status, json.loads(reply.body)) == (200, COMPLETED["response"])
    assert seen.upgrades == [f"Bearer {KEY}"]
    assert seen.messages == [(1, {"type": "response.create", "model": "m"})]
    assert reply.ttft is not None
    assert reply.ttft <= reply.duration


async def test_calls_in_turn_share_a_socket_and_calls_at_once_have_their_own() -> None:
    both = asyncio.Event()

    async def together(ws: web.WebSocketResponse, number: int) -> bool:
        if number > 3:
            both.set()
        if number > 2:
            await both.wait()
        return await well(ws, number)

    async with server(together) as seen, sockets(seen) as sender:
        await sender.send(WIRE, BOUNDS)
        await sender.send(WIRE, BOUNDS)
        await asyncio.gather(sender.send(WIRE, BOUNDS), sender.send(WIRE, BOUNDS))
        await sender.send(WIRE, BOUNDS)
    assert len(seen.upgrades) == 2
    assert [number for number, _ in seen.messages[:2]] == [1, 1]
    assert sorted(number for number, _ in seen.messages[2:4]) == [1, 2]


async def test_an_error_is_the_answer_and_the_next_call_has_a_new_socket() -> None:
    async def limited(ws: web.WebSocketResponse, number: int) -> bool:
        if number > 1:
            return await well(ws, number)
        error = {"code": "rate_limit_exceeded", "message": "Slow.", "headers": {"Retry-After": "3"}}
        await ws.send_json({"type": "error", "status": 429, "error": error})
        return True

    async with server(limited) as seen, sockets(seen) as sender:
        refused = a_reply(await sender.send(WIRE, BOUNDS))
        a_reply(await sender.send(WIRE, BOUNDS))
    assert (refused.status, refused.headers["retry-after"]) == (429, "3")
    assert [number for number, _ in seen.messages] == [1, 2]


async def drop(ws: web.WebSocketResponse, _number: int) -> bool:
    await ws.send_json(DELTA)
    return False


async def garble(ws: web.WebSocketResponse, _number: int) -> bool:
    await ws.send_str("<html>")
    return True


async def keep_silent(_ws: web.WebSocketResponse, _number: int) -> bool:
    return True


BROKEN: dict[str, tuple[Told, Timeout, str, ErrorType]] = {
    "closed amid the answer": (drop, BOUNDS, "lost before the answer was complete", ErrorType.PROVIDER_ERROR),
    "not JSON": (garble, BOUNDS, "streamed an event that is not JSON", ErrorType.PROVIDER_ERROR),
    "silence": (keep_silent, bounds(first_byte=0.05), "sent nothing for 0.05 s", ErrorType.TIMEOUT),
    "too long": (keep_silent, bounds(total=0.05), "did not finish within 0.05 s", ErrorType.TIMEOUT),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_breaks_after_sending_may_have_been_billed(name: str) -> None:
    told, timeout, words, kind = BROKEN[name]

    async def once(ws: web.WebSocketResponse, number: int) -> bool:
        return await (told if number == 1 else well)(ws, number)

    async with server(once) as seen, sockets(seen) as sender:
        fault = a_fault(await sender.send(WIRE, timeout))
        a_reply(await sender.send(WIRE, BOUNDS))
    assert words in fault.message
    assert (fault.kind, fault.type, fault.ambiguous) == (FaultKind.RETRY, kind, True)
    assert len(seen.messages) == 2  # nothing was sent twice by the sender
    assert len(seen.upgrades) == 2


async def test_a_call_is_bound_by_what_its_row_has_left() -> None:
    async with server(keep_silent) as seen, sockets(seen) as sender:
        assert a_fault(await sender.send(WIRE, BOUNDS, within=0.05)).type is ErrorType.TIMEOUT


async def test_a_socket_that_the_server_left_while_it_lay_idle_is_not_used() -> None:
    left = asyncio.Event()

    async def say_goodbye(ws: web.WebSocketResponse, number: int) -> bool:
        await well(ws, number)
        if number == 1:
            await ws.close(code=WSCloseCode.GOING_AWAY)
            left.set()
            return False
        return True

    async with server(say_goodbye) as seen, sockets(seen) as sender:
        a_reply(await sender.send(WIRE, BOUNDS))
        await asyncio.sleep(0)
        a_reply(await sender.send(WIRE, BOUNDS))
        await left.wait()
    assert [number for number, _ in seen.messages] == [1, 2]


async def test_an_old_socket_is_replaced_before_the_server_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sender_module.MAX_LIFETIME_S < 60 * 60
    async with server() as seen, sockets(seen) as sender:
        await sender.send(WIRE, BOUNDS)
        monkeypatch.setattr(sender_module, "MAX_LIFETIME_S", -1.0)
        await sender.send(WIRE, BOUNDS)
    assert len(seen.upgrades) == 2


@pytest.mark.parametrize("status", [200, 400, 404, 405, 426, 501])
async def test_without_websockets_auto_goes_on_by_events_and_ws_says_what_to_write(status: int) -> None:
    async with server(refuse=status) as seen, sockets(seen, "auto") as sender:
        replies = [await sender.send(WIRE, BOUNDS) for _ in range(3)]
    assert [reply.status for reply in replies if isinstance(reply, HttpReply)] == [200] * 3
    assert len(seen.upgrades) == 1
    assert seen.posts == [{"stream": True, "model": "m"}] * 3
    async with server(refuse=status) as seen, sockets(seen) as sender:
        fault = a_fault(await sender.send(WIRE, BOUNDS))
    assert fault.message == (
        f"local accepts no WebSocket at http://127.0.0.1:{seen.port}/v1 ({status}). "
        "Write transport=auto or transport=sse in the model."
    )
    assert (fault.kind, fault.ambiguous, seen.posts) == (FaultKind.FATAL, False, [])


@pytest.mark.parametrize(
    ("status", "kind"), [(401, FaultKind.FATAL), (429, FaultKind.PAUSE), (503, FaultKind.PAUSE), (502, FaultKind.RETRY)]
)
async def test_an_upgrade_refused_for_the_usual_reasons_means_what_it_always_means(
    status: int, kind: FaultKind
) -> None:
    async with server(refuse=status) as seen, sockets(seen) as sender:
        answer = a_reply(await sender.send(WIRE, BOUNDS))
    provider = Provider(name="local", dialect="openai-responses", base_url="http://127.0.0.1/v1")
    fault = DIALECTS["openai-responses"].parse(
        answer.status, answer.headers, answer.body, provider=provider, model="m", redactor=Redactor([])
    )
    assert isinstance(fault, Fault)
    assert fault.kind is kind


async def test_auto_gives_up_sockets_that_are_cut_again_and_again_and_not_those_of_a_busy_server() -> None:
    async with server(refuse=503) as seen, sockets(seen, "auto") as sender:
        for _ in range(sender_module.STRIKES + 2):
            a_reply(await sender.send(WIRE, BOUNDS))
    assert (len(seen.upgrades), len(seen.posts)) == (sender_module.STRIKES, sender_module.STRIKES + 2)

    async def hang_up(_ws: web.WebSocketResponse, _number: int) -> bool:
        return False

    async with server(hang_up) as seen, sockets(seen, "auto") as sender:
        for _ in range(sender_module.STRIKES):
            assert a_fault(await sender.send(WIRE, BOUNDS)).ambiguous
        a_reply(await sender.send(WIRE, BOUNDS))
    assert len(seen.posts) == 1


async def test_where_nobody_answers_or_listens_nothing_was_billed() -> None:
    async with serving(never) as silent, sockets(Seen(silent.port)) as sender:
        late = a_fault(await sender.send(WIRE, bounds(connect=0.05)))
    async with sockets(Seen(silent.port)) as sender:
        nobody = a_fault(await sender.send(WIRE, BOUNDS))
    assert "no connection to local" in late.message
    assert (late.type, late.ambiguous) == (ErrorType.TIMEOUT, False)
    assert "cannot be reached" in nobody.message
    assert not nobody.ambiguous


async def test_an_upgrade_is_not_followed_to_another_address() -> None:
    async with server() as elsewhere:
        at = f"http://localhost:{elsewhere.port}/v1/responses"
        async with server(refuse=307, location=at) as seen, sockets(seen) as sender:
            fault = a_fault(await sender.send(WIRE, BOUNDS))
    assert (fault.kind, fault.status) == (FaultKind.FATAL, 307)
    assert "points to localhost" in fault.message
    assert elsewhere.upgrades == []


async def test_a_call_that_is_given_up_leaves_its_socket() -> None:
    begun = asyncio.Event()

    async def wait(ws: web.WebSocketResponse, number: int) -> bool:
        if number == 1:
            begun.set()
            return True
        return await well(ws, number)

    async with server(wait) as seen, sockets(seen) as sender:
        call = asyncio.create_task(sender.send(WIRE, BOUNDS))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        a_reply(await sender.send(WIRE, BOUNDS))
    assert len(seen.upgrades) == 2


@pytest.mark.parametrize("size", [1_100_000, 400_000], ids=["one message", "many"])
async def test_an_answer_that_is_too_large_is_no_lost_connection(size: int) -> None:
    async def at_length(ws: web.WebSocketResponse, _number: int) -> bool:
        for _ in range(4):
            await ws.send_json({"type": "response.output_item.done", "item": {"text": "x" * size}})
        return True

    async with server(at_length) as seen, sockets(seen, limits=Limits(reply_mb=1)) as sender:
        assert a_fault(await sender.send(WIRE, BOUNDS)).type is ErrorType.REPLY_TOO_LARGE
