"""The simulator as a web application: every request goes one way, from its body to the account. A channel sends the
reply to one request, over HTTP or over a WebSocket; the API says how it is written."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hmac import compare_digest
from typing import Any
from weakref import WeakSet

from aiohttp import WSCloseCode, web
from aiohttp.typedefs import Handler

from agac.core.keys import SIMULATOR_KEY
from agac.simulator import batch_api, faults, replies
from agac.simulator.anthropic import MESSAGES
from agac.simulator.batch_api import BatchCall, Effect, MessageCall, OpenAiCall
from agac.simulator.batch_store import BatchStore
from agac.simulator.batch_worker import SimulatedBatches
from agac.simulator.chat import CHAT
from agac.simulator.faults import FaultPlan
from agac.simulator.openai import RESPONSES, SOCKET_RESPONSES
from agac.simulator.replies import ApiError, Event, ModelAnswer, ModelApi, ModelCall
from agac.simulator.serving import ModelServer, take_hints
from agac.simulator.settings import RateLimits, Settings, SimulatorError, is_number, parse_latency, read_limits

MAX_MESSAGE_BYTES = 256 * 2**20
BAD_KEY = "sk-invalid"
HANG_INTERVAL_S = 0.1  # seconds between looks at whether a client that gets no answer is still there
MODELS = ("small", "large", "echo")  # the models that are listed; every other name is answered too
GARBAGE = b"<html><body>upstream sent too much</body></html>"


@dataclass
class SimulatorAccount:
    """Counts by what a provider would bill. Times are epoch seconds; contents are kept as 16-byte digests only, so that
    a million requests fit. The fields are in the order of `GET /account`."""

    requests: int = 0
    answered: int = 0
    charged: int = 0
    refused: int = 0
    limited: int = 0
    duplicates: int = 0
    contents: set[bytes] = field(default_factory=set)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sockets: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    max_in_flight: int = 0
    first_request_at: float | None = None
    last_request_at: float | None = None

    def receive(self) -> int:
        """A request came in: its number, from 1."""
        now = time.time()
        self.requests += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        if self.first_request_at is None:
            self.first_request_at = now
        self.last_request_at = now
        return self.requests

    def charge(self, call: ModelCall, answer: ModelAnswer, elsewhere: Callable[[bytes], bool]) -> None:
        """The model did its work: this is billed even if nobody reads the reply. Batches are charged `elsewhere`."""
        self.charged += 1
        self.prompt_tokens += call.prompt_tokens
        self.completion_tokens += answer.tokens
        self.duplicates += call.digest in self.contents or elsewhere(call.digest)
        self.contents.add(call.digest)

    def report(self) -> dict[str, Any]:
        account = {"distinct" if name == "contents" else name: value for name, value in vars(self).items()}
        return account | {
            "distinct": len(self.contents), "faults": dict(sorted(self.faults.items())), "simulated": True,
        }  # fmt: skip


class Channel:
    """Sends what becomes of a POST, whole or as events; `headers` are made then. A client that left is no error."""

    def __init__(self, api: ModelApi, http: web.Request, headers: Callable[[], dict[str, str]]) -> None:
        self.api, self.http, self._headers = api, http, headers
        self.response: web.StreamResponse = web.Response(status=503)
        self.rest: Callable[[], Awaitable[Any]] | None = None

    async def paced(self, events: Iterable[Event]) -> AsyncIterator[Event]:
        """Events in time: the first half now, and once there is the `rest` of the answer, the others."""
        for index, event in enumerate(listed := list(events)):
            if self.rest is not None and index == len(listed) // 2 + 1:
                await self.rest()
            yield event

    async def answer(self, call: ModelCall, answer: ModelAnswer) -> None:
        if call.stream:
            await self.send_events(self.api.events(call, answer))
        else:
            await self.send(self.api.body(call, answer))

    async def fail(self, call: ModelCall, answer: ModelAnswer, error: ApiError, *, as_response: bool) -> None:
        """An answer that turns into an error on its way: the status says by then that all is well."""
        if call.stream:
            await self.send_events(self.api.failing_events(call, answer, error, as_response=as_response))
        else:
            failed = self.api.error(error) if self.api.failed is None else self.api.failed(call, error)
            await self.send(json.dumps(failed).encode())

    async def hang(self, stopping: asyncio.Event) -> None:
        """No answer, until the client has left or the simulator stops."""
        while self.http.transport is not None and not self.http.transport.is_closing() and not stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(HANG_INTERVAL_S):
                    await stopping.wait()

    async def send(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        sent = self._headers() | (headers or {})
        self.response = web.Response(status=status, body=body, content_type="application/json", headers=sent)

    async def refuse(self, error: ApiError) -> None:
        """An error, or the page that comes in its place."""
        await self.send(json.dumps(self.api.error(error)).encode(), error.status, error.headers)
        if error.page is not None:
            self.response = web.Response(
                status=error.status, body=error.page, content_type="text/html", headers=replies.MARK
            )

    async def send_events(self, events: Iterable[Event]) -> None:
        self.response = response = web.StreamResponse(headers=self._headers() | {"cache-control": "no-cache"})
        response.content_type = "text/event-stream"
        with suppress(ConnectionError):
            await response.prepare(self.http)
            async for event in self.paced(events):
                await response.write(replies.server_sent(event))
            await response.write_eof()

    async def cut(self, call: ModelCall, answer: ModelAnswer, after_bytes: int | None) -> None:
        """Drops the connection: at once, or after `after_bytes` of the answer."""
        self.response = response = web.StreamResponse(headers=replies.MARK)
        response.content_type = "text/event-stream" if call.stream else "application/json"
        whole = self.api.body(call, answer)
        if call.stream:
            whole = b"".join(map(replies.server_sent, self.api.events(call, answer)))
        if after_bytes is not None and self.http.transport is not None:
            response.content_length = None if call.stream else len(whole)
            await response.prepare(self.http)
            await response.write(whole[: min(after_bytes, len(whole) - 1)])
        batch_api.drop_connection(self.http)


class SocketChannel(Channel):
    """Answers one `response.create` message of a WebSocket, always with events."""

    def __init__(self, http: web.Request, ws: web.WebSocketResponse) -> None:
        super().__init__(SOCKET_RESPONSES, http, dict)
        self._ws = ws

    async def send(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        with suppress(ConnectionError):
            await self._ws.send_str(body.decode())

    async def send_events(self, events: Iterable[Event]) -> None:
        async for event in self.paced(events):
            await self.send(json.dumps(event).encode())

    async def cut(self, call: ModelCall, answer: ModelAnswer, after_bytes: int | None) -> None:
        left = after_bytes or 0
        for event in self.api.events(call, answer):
            left -= len(json.dumps(event))
            if left < 0 or event["type"].endswith(("completed", "incomplete")):
                break
            await self.send_events([event])
        batch_api.drop_connection(self.http)


def check_key(http: web.Request) -> None:
    """Raises ApiError for the key that is refused: as a bearer token, or as Anthropic or Azure has it."""
    headers = http.headers
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    if (headers.get("x-api-key") or headers.get("api-key") or bearer) == BAD_KEY:
        raise replies.status_error(401)


class Simulator:
    """One simulated provider: its limits, its faults, its account, its batches."""

    def __init__(self, settings: Settings, key: str = "") -> None:
        """With a `key` it answers who sends that in the header SIMULATOR_KEY alone."""
        self.key = key
        self.settings, store = settings, BatchStore(settings.state)
        problems, found = settings.problems(), list[Any]()
        for read in (
            lambda: ModelServer(settings.serving, settings.slots, settings.dynamo),
            lambda: parse_latency(settings.latency),
            lambda: faults.load_rules(settings.faults) if settings.faults else [],
            lambda: faults.load_rules(settings.script, faults.parse_script) if settings.script else [],
            store.check,
        ):
            try:
                found.append(read())
            except SimulatorError as error:
                problems += error.problems
        if problems:
            raise SimulatorError(problems)
        self.server, self.latency, rules, script, _ = found
        self.faults = FaultPlan(rules, settings.seed)
        self.limits = RateLimits(settings.rpm, settings.tpm, settings.burst)
        self.writer, writer = (
            replies.AnswerWriter(
                settings.tool_turns, settings.tool_calls, script, tools_with_schema=settings.tools_with_schema
            )
            for _ in range(2)
        )  # each thread has its own
        self.account = SimulatorAccount()
        self.batches = SimulatedBatches(
            store, self.faults, settings.batch_seconds, lambda one: one in self.account.contents, writer
        )
        self.stopping = asyncio.Event()
        self.sockets: WeakSet[web.WebSocketResponse] = WeakSet()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=batch_api.MAX_FILE_BYTES, middlewares=[self.refused])
        for prefix in ("/v1", "/openai/v1"):  # Azure's is the second
            app.router.add_post(f"{prefix}/chat/completions", partial(self.post, CHAT))
            app.router.add_post(f"{prefix}/responses", partial(self.post, RESPONSES))
            app.router.add_get(f"{prefix}/responses", self.socket)
        app.router.add_post("/v1/messages", partial(self.post, MESSAGES))
        app.router.add_get("/v1/models", self.models)
        for prefix, family, kind, routes in (
            ("/v1", "openai", OpenAiCall, batch_api.OPENAI_ROUTES),
            ("/openai/v1", "azure", OpenAiCall, batch_api.OPENAI_ROUTES),
            ("/v1/messages/batches", "anthropic", MessageCall, batch_api.MESSAGE_ROUTES),
        ):
            for method, path, operation, effect in routes:
                make = partial(kind, family, self.batches, operation)
                app.router.add_route(method, prefix + path, partial(self.batch_call, make, effect))
        app.router.add_get("/account", self.report)
        app.router.add_get("/account/served", self.served)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/account/reset", self.reset)
        app.router.add_post("/account/limits", self.set_limits)
        app.router.add_post("/account/clock", self.clock)
        app.router.add_route("*", "/{path:.*}", self.unknown)
        app.on_shutdown.append(self.stop)
        app.on_cleanup.append(lambda _: asyncio.to_thread(self.batches.close))  # once there are no more requests
        return app

    async def stop(self, app: web.Application) -> None:
        """Lets go of the clients that were to get no answer."""
        self.stopping.set()
        for ws in list(self.sockets):
            await ws.close(code=WSCloseCode.GOING_AWAY)
        self.batches.stop()

    async def batch_call(
        self, make: Callable[[web.Request], BatchCall], effect: Effect, http: web.Request
    ) -> web.StreamResponse:
        check_key(http)
        return await make(http).serve(effect)

    async def post(self, api: ModelApi, http: web.Request) -> web.StreamResponse:
        number = self.account.receive()
        channel = Channel(api, http, lambda: replies.MARK | api.headers(number, self.limits))
        await self.serve(channel, await http.read(), number)
        return channel.response

    async def socket(self, http: web.Request) -> web.StreamResponse:
        """GET /v1/responses: a WebSocket that takes one request after the other."""
        ws = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES)
        if not self.settings.websocket or not ws.can_prepare(http).ok:
            return await self.unknown(http)
        check_key(http)
        ws.headers.update(replies.MARK)
        await ws.prepare(http)
        self.sockets.add(ws)
        self.account.sockets += 1
        async for message in ws:
            number = self.account.receive()
            body = message.data.encode() if isinstance(message.data, str) else bytes(message.data)
            await self.serve(SocketChannel(http, ws), body, number)
        return ws

    async def serve(self, channel: Channel, body: bytes, number: int) -> None:
        """Sends a reply, an error, or what a fault makes of them, and keeps the account."""
        try:
            body, hints = take_hints(body, self.settings.dynamo) if self.settings.dynamo else (body, {})
            call = channel.api.read(body, self.settings.seed, channel.http.headers)
            call = replace(call, hints=hints) if hints else call
            check_key(channel.http)
            if "missing" in call.model:
                raise replies.unknown_model(call.model)
            tokens = call.prompt_tokens + (call.max_tokens or 0)
            if (refusal := self.limits.take(tokens, time.monotonic())) is not None:
                self.account.limited += 1
                raise replies.limit_error(refusal, call.model)
            await self.reply(channel, call, number)
        except ApiError as error:
            self.account.answered += 1
            self.account.refused += 1
            await channel.refuse(error)
        finally:
            self.account.in_flight = max(0, self.account.in_flight - 1)

    async def reply(self, channel: Channel, call: ModelCall, number: int) -> None:
        """A reply, or what a fault makes of it; raises ApiError."""
        rule = self.faults.pick(number, call) if self.faults.rules else None
        kind = "" if rule is None else rule.kind
        if rule is not None:
            self.account.faults[kind] += 1
            if rule.phase == "error":
                raise faults.error_of(rule, call.model)
            if kind == "hang":
                return await channel.hang(self.stopping)
        answer = self.writer.answer(call)
        seconds = self.latency(int.from_bytes(call.digest) ^ 1)
        if rule is not None and kind == "slow_first_byte":
            seconds += rule.value("seconds")
        call, channel.rest = await self.server.serve(call, answer, seconds, marked=channel.api is MESSAGES)
        if rule is not None:
            answer = faults.changed_answer(rule, call, answer, self.writer)
        self.account.charge(call, answer, self.batches.store.was_charged)
        if rule is not None and kind == "cut":
            return await channel.cut(call, answer, rule.value("after_bytes"))
        self.account.answered += 1
        if rule is not None and kind == "stream_error":
            return await channel.fail(call, answer, faults.error_of(rule), as_response=rule.value("failed"))
        return await (channel.send(GARBAGE) if kind == "invalid_body" else channel.answer(call, answer))

    @web.middleware
    async def refused(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors of requests without a number, in the provider's form."""
        try:
            sent = request.headers.get(SIMULATOR_KEY, "").encode("utf-8", "surrogateescape")
            if self.key and not compare_digest(sent, self.key.encode()):
                raise ApiError(401, "this simulator serves the program that started it")
            return await handler(request)
        except SimulatorError as problem:
            error = ApiError(400, "; ".join(problem.problems))
        except ApiError as raised:
            error = raised
        api = MESSAGES if request.path.startswith("/v1/messages") else CHAT
        own = {"request-id": "req_sim_batches"} if api is MESSAGES else api.headers(0, self.limits)
        return batch_api.json_response(api.error(error), error.status, own | error.headers)

    async def models(self, http: web.Request) -> web.Response:
        """GET /v1/models."""
        about = {"object": "model", "created": replies.CREATED, "owned_by": replies.FINGERPRINT}
        return batch_api.json_response({"object": "list", "data": [{"id": name, **about} for name in MODELS]})

    async def report(self, http: web.Request) -> web.Response:
        """GET /account: requests and charges since the start or the last reset, also those of batches."""
        return batch_api.json_response(self.account.report() | {"batches": await self.batches.account()})

    async def reset(self, http: web.Request) -> web.Response:
        """POST /account/reset: all but the requests that are in flight is forgotten; answers with the old account."""
        before = await self.report(http)
        await self.batches.reset()
        self.account = SimulatorAccount(in_flight=self.account.in_flight, max_in_flight=self.account.in_flight)
        self.faults.sent.clear()
        self.server.forget()
        return before

    async def served(self, http: web.Request) -> web.Response:
        """GET /account/served: when each request was served and in which slot, since the start or the last reset."""
        return batch_api.json_response(self.server.report())

    async def metrics(self, http: web.Request) -> web.StreamResponse:
        return web.Response(text=self.server.engine.metrics()) if self.server.engine else await self.unknown(http)

    async def set_limits(self, http: web.Request) -> web.Response:
        """POST /account/limits: a JSON object with `rpm`, `tpm`, `burst` in place of the earlier limits."""
        self.limits = read_limits(replies.read_object(await http.read()))
        return batch_api.json_response(self.limits.headers(time.monotonic()))

    async def clock(self, http: web.Request) -> web.Response:
        """POST /account/clock: `{"advance": SECONDS}` moves the clock of batches; answers with the time it shows."""
        seconds = replies.read_object(await http.read()).get("advance")
        if not is_number(seconds) or seconds < 0:
            raise ApiError(400, 'The clock is moved by an object such as {"advance": 3600}, in seconds, never back.')
        return batch_api.json_response({"now": self.batches.store.advance(seconds)})

    async def unknown(self, http: web.Request) -> web.Response:
        message = f"Unknown request URL: {http.method} {http.path}. The simulator does not serve it."
        raise ApiError(404, message, code="unknown_url")
