"""The simulator as a web application: every request goes one way, from its body to the account.

A channel sends the reply to one request, over HTTP or over a WebSocket; the API says how it is written.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from random import Random
from typing import Any
from weakref import WeakSet

from aiohttp import WSCloseCode, web

from agac.simulator.anthropic import MESSAGES
from agac.simulator.batch_api import MessageBatchRoutes, OpenAiBatchRoutes
from agac.simulator.batch_store import BatchStore, short_digest
from agac.simulator.batch_worker import BatchModel, BatchThreads
from agac.simulator.faults import (
    SINGLE_PHASES,
    BatchFaults,
    FaultPlan,
    FaultRule,
    changed_answer,
    error_of,
    load_rules,
    stream_error,
)
from agac.simulator.limits import Latency, RateLimits, parse_latency, read_limits
from agac.simulator.openai import (
    CHAT,
    RESPONSES,
    failing_response_events,
    read_socket_message,
    response_events,
    socket_error,
)
from agac.simulator.replies import (
    CREATED,
    FINGERPRINT,
    MARK,
    AnswerWriter,
    ApiError,
    Event,
    ModelAnswer,
    ModelApi,
    ModelCall,
    invalid_key,
    limit_error,
    server_sent,
    unknown_model,
)
from agac.simulator.settings import Settings, SimulatorError

MAX_BODY_BYTES = 256 * 2**20
SOCKET_RESPONSES = replace(RESPONSES, read=read_socket_message)
BAD_KEY = "sk-invalid"
"""The key that is refused."""

HANG_INTERVAL_S = 0.1
"""Seconds between looks at whether a client that gets no answer is still there."""

GARBAGE = b"<html><body>upstream sent too much</body></html>"
LISTED_CONTENTS = 10_000
"""How many contents an account lists at most; the rest is counted."""


@dataclass(slots=True)
class SimulatorAccount:
    """Counts by what a provider would bill, in memory. Times are epoch seconds; contents are kept as 16-byte digests
    only, so that a million requests fit. The fields are in the order of `GET /account`.

    `elsewhere` says whether a content was charged in a batch, which keeps its own account.
    """

    requests: int = 0
    answered: int = 0
    charged: int = 0
    refused: int = 0
    limited: int = 0
    duplicates: int = 0
    contents: dict[bytes, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sockets: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    max_in_flight: int = 0
    first_request_at: float | None = None
    last_request_at: float | None = None
    elsewhere: Callable[[bytes], bool] = field(default=lambda digest: False)

    def receive(self, now: float) -> int:
        """A request came in: its number, from 1."""
        self.requests += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        if self.first_request_at is None:
            self.first_request_at = now
        self.last_request_at = now
        return self.requests

    def release(self) -> None:
        """A request left, whatever became of it."""
        self.in_flight = max(0, self.in_flight - 1)

    def charge(self, call: ModelCall, answer: ModelAnswer) -> None:
        """The model did its work: this is billed even if the reply is never read."""
        self.charged += 1
        self.prompt_tokens += call.prompt_tokens
        self.completion_tokens += answer.tokens
        before = self.contents.get(call.digest, 0)
        self.duplicates += before > 0 or self.elsewhere(call.digest)
        self.contents[call.digest] = before + 1

    def reset(self) -> None:
        """Starts from nothing; requests that are in flight stay so."""
        fresh = SimulatorAccount(in_flight=self.in_flight, max_in_flight=self.in_flight, elsewhere=self.elsewhere)
        for one in fields(self):
            setattr(self, one.name, getattr(fresh, one.name))

    def report(self, *, contents: bool = False) -> dict[str, Any]:
        """The account as `GET /account` shows it."""
        account = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "elsewhere"}
        account = {"distinct" if name == "contents" else name: value for name, value in account.items()}
        account |= {"distinct": len(self.contents), "faults": dict(sorted(self.faults.items())), "simulated": True}
        if contents:
            listed = {digest.hex(): n for digest, n in list(self.contents.items())[:LISTED_CONTENTS]}
            account |= {"contents": listed, "contents_left_out": len(self.contents) - len(listed)}
        return account


class HttpChannel:
    """Answers a POST; `response` is what the application gives back. `headers` are made when they are sent. A client
    that has left is no error."""

    def __init__(self, api: ModelApi, http: web.Request, headers: Callable[[], dict[str, str]]) -> None:
        self._api, self._http, self._headers = api, http, headers
        self.response: web.StreamResponse = web.Response(status=503)

    async def answer(self, call: ModelCall, answer: ModelAnswer) -> None:
        """The whole answer, or its pieces."""
        if call.stream:
            await self._stream(self._api.events(call, answer))
        else:
            self._whole(self._api.body(call, answer))

    async def fail(self, call: ModelCall, answer: ModelAnswer, error: ApiError, *, as_response: bool) -> None:
        """An answer that turns into an error on its way: the status says by then that all is well."""
        if call.stream:
            await self._stream(self._api.failing_events(call, answer, error, as_response))
        else:
            self._whole(json.dumps(self._api.failed(call, error)).encode())

    async def cut(self, call: ModelCall, answer: ModelAnswer, after_bytes: int | None) -> None:
        """Drops the connection: at once, or after `after_bytes` of the body."""
        whole = b"".join(self._api.chunks(call, answer)) if call.stream else self._api.body(call, answer)
        response = web.StreamResponse(headers=MARK)
        response.content_type = "text/event-stream" if call.stream else "application/json"
        if after_bytes is not None and self._http.transport is not None:
            if not call.stream:
                response.content_length = len(whole)
            await response.prepare(self._http)
            await response.write(whole[: min(after_bytes, len(whole) - 1)])
        if self._http.transport is not None:
            self._http.transport.close()
        self.response = response

    async def garble(self) -> None:
        """A page where JSON belongs."""
        self._whole(GARBAGE)

    async def hang(self, stopping: asyncio.Event) -> None:
        """No answer, until the client has left or the simulator stops."""
        await client_gone(self._http, stopping)
        self.response = web.Response(status=503)

    async def refuse(self, error: ApiError) -> None:
        """An error in the provider's form."""
        self._whole(json.dumps(self._api.error(error)).encode(), error.status, error.headers)

    def _whole(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        sent = self._headers() | (headers or {})
        self.response = web.Response(status=status, body=body, content_type="application/json", headers=sent)

    async def _stream(self, events: Iterable[Event]) -> None:
        """Server-sent events, one write each. A client that leaves early has been charged anyway."""
        response = web.StreamResponse(headers=self._headers() | {"cache-control": "no-cache"})
        response.content_type = "text/event-stream"
        self.response = response
        with suppress(ConnectionError):
            await response.prepare(self._http)
            for event in events:
                await response.write(server_sent(event))
            await response.write_eof()


class SocketChannel:
    """Answers one `response.create` message of a WebSocket, as HttpChannel answers a POST."""

    def __init__(self, http: web.Request, ws: web.WebSocketResponse) -> None:
        self._http, self._ws = http, ws

    async def answer(self, call: ModelCall, answer: ModelAnswer) -> None:
        """The events of the answer."""
        await self._send(response_events(call, answer))

    async def fail(self, call: ModelCall, answer: ModelAnswer, error: ApiError, *, as_response: bool) -> None:
        """Some events, then the error: in the form of a socket, but without a status, for the model was at work."""
        *events, last = failing_response_events(call, answer, error, as_response)
        if last["type"] == "error":
            about = socket_error(error)["error"]
            last = {"type": "error", "error": about, "sequence_number": last["sequence_number"]}
        await self._send([*events, last])

    async def cut(self, call: ModelCall, answer: ModelAnswer, after_bytes: int | None) -> None:
        """Drops the connection: at once, or after as many events as fit into `after_bytes`."""
        sent = 0
        for event in response_events(call, answer) if after_bytes is not None else ():
            sent += len(json.dumps(event))
            if after_bytes is None or sent > after_bytes or event["type"].endswith(("completed", "incomplete")):
                break
            await self._send([event])
        if self._http.transport is not None:
            self._http.transport.close()

    async def garble(self) -> None:
        """A page where an event belongs."""
        with suppress(ConnectionError):
            await self._ws.send_str(GARBAGE.decode())

    async def hang(self, stopping: asyncio.Event) -> None:
        """No answer, until the client has left or the simulator stops."""
        await client_gone(self._http, stopping)

    async def refuse(self, error: ApiError) -> None:
        """An `error` event, with the status and the headers that HTTP would have."""
        await self._send([socket_error(error)])

    async def _send(self, events: Iterable[Event]) -> None:
        with suppress(ConnectionError):
            for event in events:
                await self._ws.send_str(json.dumps(event))


async def client_gone(http: web.Request, stopping: asyncio.Event) -> None:
    """Returns when the client has left or the simulator stops."""
    while http.transport is not None and not http.transport.is_closing() and not stopping.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), HANG_INTERVAL_S)


def model_object(name: str) -> dict[str, object]:
    """A model as the API lists it."""
    return {"id": name, "object": "model", "created": CREATED, "owned_by": FINGERPRINT}


def check_key(http: web.Request) -> None:
    """Raises ApiError for the key that is refused: as a bearer token, or as Anthropic or Azure has it."""
    headers = http.headers
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    if (headers.get("x-api-key") or headers.get("api-key") or bearer) == BAD_KEY:
        raise invalid_key()


def json_response(data: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Any JSON, marked as simulated."""
    body = json.dumps(data).encode()
    return web.Response(status=status, body=body, content_type="application/json", headers=MARK | (headers or {}))


def loaded(load: Callable[[], Any], otherwise: Any, problems: list[str]) -> Any:
    """The result of a function, or another value, with the reasons among the problems."""
    try:
        return load()
    except SimulatorError as error:
        problems += error.problems
        return otherwise


class Simulator:
    """One simulated provider: its limits, its faults, its account, its batches."""

    def __init__(self, settings: Settings) -> None:
        problems = settings.problems()
        self.settings = settings
        self.latency: Latency = loaded(lambda: parse_latency(settings.latency), None, problems)
        rules: list[FaultRule] = loaded(lambda: load_rules(settings.faults) if settings.faults else [], [], problems)
        store = BatchStore(settings.state)
        problems += store.problems()
        if problems:
            raise SimulatorError(problems)
        self.faults = FaultPlan([rule for rule in rules if rule.phase in SINGLE_PHASES], settings.seed)
        self.limits = RateLimits.of(settings.rpm, settings.tpm, settings.burst)
        self.slots = asyncio.Semaphore(settings.slots) if settings.slots else None
        self.writer = AnswerWriter()
        self.account = SimulatorAccount(elsewhere=lambda digest: store.was_charged(short_digest(digest)))
        batch_faults = BatchFaults([rule for rule in rules if rule.phase not in SINGLE_PHASES], settings.seed)
        model = BatchModel(settings.seed, self.faults, lambda digest: digest in self.account.contents)
        self.batches = BatchThreads(store, model, batch_faults, settings.batch_seconds)
        self.stopping = asyncio.Event()
        self.sockets: WeakSet[web.WebSocketResponse] = WeakSet()

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for prefix in ("/v1", "/openai/v1"):  # Azure's is the second
            app.router.add_post(f"{prefix}/chat/completions", partial(self.post, CHAT))
            app.router.add_post(f"{prefix}/responses", partial(self.post, RESPONSES))
            app.router.add_get(f"{prefix}/responses", self.socket)
        app.router.add_post("/v1/messages", partial(self.post, MESSAGES))
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.model)
        self.add_batch_routes(app.router)
        app.router.add_get("/account", self.get_account)
        app.router.add_post("/account/reset", self.reset)
        app.router.add_post("/account/limits", self.set_limits)
        app.router.add_post("/account/clock", self.clock)
        app.router.add_get("/health", self.health)
        app.router.add_route("*", "/{path:.*}", self.unknown)
        app.on_shutdown.append(self.stop)
        app.on_cleanup.append(self.close)
        return app

    def add_batch_routes(self, router: web.UrlDispatcher) -> None:
        """The routes of files and batches of every provider."""
        for family, prefixes in (("openai", ("/v1",)), ("azure", ("/openai/v1", "/openai"))):
            routes = OpenAiBatchRoutes(family, self.batches, check_key, json_response, self.error_response)
            for prefix in prefixes:
                routes.add_routes(router, prefix)
        MessageBatchRoutes(self.batches, check_key, json_response).add_routes(router)

    async def stop(self, app: web.Application) -> None:
        """Lets go of the clients that were to get no answer."""
        self.stopping.set()
        for ws in list(self.sockets):
            await ws.close(code=WSCloseCode.GOING_AWAY)
        self.batches.stop()

    async def close(self, app: web.Application) -> None:
        """Closes the store of batches, once there are no more requests."""
        await asyncio.to_thread(self.batches.close)

    async def post(self, api: ModelApi, http: web.Request) -> web.StreamResponse:
        """One request, one reply."""
        number = self.account.receive(time.time())
        channel = HttpChannel(api, http, lambda: MARK | api.headers(number, self.limits))
        await self.serve(channel, api, await http.read(), http, number)
        return channel.response

    async def socket(self, http: web.Request) -> web.StreamResponse:
        """GET /v1/responses: a WebSocket that takes one request after the other."""
        ws = web.WebSocketResponse(max_msg_size=MAX_BODY_BYTES)
        if not self.settings.websocket or not ws.can_prepare(http).ok:
            return await self.unknown(http)
        try:
            check_key(http)
        except ApiError as error:
            return self.error_response(error)
        ws.headers.update(MARK)
        await ws.prepare(http)
        self.sockets.add(ws)
        self.account.sockets += 1
        async for message in ws:
            number = self.account.receive(time.time())
            body = message.data.encode() if isinstance(message.data, str) else bytes(message.data)
            await self.serve(SocketChannel(http, ws), SOCKET_RESPONSES, body, http, number)
        return ws

    async def serve(
        self, channel: HttpChannel | SocketChannel, api: ModelApi, body: bytes, http: web.Request, number: int
    ) -> None:
        """Sends a reply, an error, or what a fault makes of them, and keeps the account."""
        try:
            await self.reply(channel, api.read(body, self.settings.seed, http.headers), http, number)
        except ApiError as error:
            self.account.answered += 1
            self.account.refused += 1
            await channel.refuse(error)
        finally:
            self.account.release()

    async def reply(
        self, channel: HttpChannel | SocketChannel, call: ModelCall, http: web.Request, number: int
    ) -> None:
        """A reply, or what a fault makes of it; raises ApiError."""
        self.admit(http, call)
        rule = self.faults.pick(number, call) if self.faults.rules else None
        if rule is not None:
            self.account.faults[rule.kind] += 1
            if rule.phase == "error":
                raise error_of(rule, call)
            if rule.kind == "hang":
                return await channel.hang(self.stopping)
        answer = self.writer.answer(call)
        await self.work(call, rule)
        if rule is not None:
            answer = changed_answer(rule, call, answer, self.writer)
        self.account.charge(call, answer)
        if rule is not None and rule.kind == "cut":
            return await channel.cut(call, answer, rule.value("after_bytes"))
        self.account.answered += 1
        if rule is not None and rule.kind == "invalid_body":
            return await channel.garble()
        if rule is not None and rule.kind == "stream_error":
            return await channel.fail(call, answer, stream_error(rule), as_response=rule.value("failed"))
        return await channel.answer(call, answer)

    def admit(self, http: web.Request, call: ModelCall) -> None:
        """Raises ApiError for a key, a model or a rate that is refused."""
        check_key(http)
        if "missing" in call.model:
            raise unknown_model(call.model)
        refusal = self.limits.take(call.prompt_tokens + (call.max_tokens or 0), time.monotonic())
        if refusal is not None:
            self.account.limited += 1
            raise limit_error(refusal, call.model)

    async def work(self, call: ModelCall, rule: FaultRule | None) -> None:
        """Takes as long as the model takes, in one of the slots."""
        seconds = self.latency.constant
        if seconds is None:
            seconds = self.latency.seconds(Random(int.from_bytes(call.digest) ^ 1))  # noqa: S311 (nothing to guess)
        if rule is not None and rule.kind == "slow_first_byte":
            seconds += rule.value("seconds")
        if self.slots is None:
            if seconds > 0:
                await asyncio.sleep(seconds)
            return
        async with self.slots:
            await asyncio.sleep(seconds)

    def error_response(self, error: ApiError) -> web.Response:
        """An error in OpenAI's form, of a request without a number."""
        return json_response(CHAT.error(error), error.status, CHAT.headers(0, self.limits) | error.headers)

    async def models(self, http: web.Request) -> web.Response:
        """GET /v1/models."""
        listed = [model_object(name) for name in self.settings.model_ids]
        return json_response({"object": "list", "data": listed})

    async def model(self, http: web.Request) -> web.Response:
        """GET /v1/models/NAME: every name exists but those with `missing` in them."""
        name = http.match_info["model"]
        return self.error_response(unknown_model(name)) if "missing" in name else json_response(model_object(name))

    async def report(self, *, contents: bool = False) -> dict[str, Any]:
        """The account, with its part about batches."""
        batches = {"batches": await self.batches.account()}
        return self.account.report(contents=contents) | batches

    async def get_account(self, http: web.Request) -> web.Response:
        """GET /account: requests and charges since the start or the last reset."""
        return json_response(await self.report(contents=http.query.get("contents") == "1"))

    async def reset(self, http: web.Request) -> web.Response:
        """POST /account/reset: the account and the faults' memory start from nothing; answers with the old account."""
        before = await self.report()
        await self.batches.reset()
        self.account.reset()
        self.faults.reset()
        return json_response(before)

    async def set_limits(self, http: web.Request) -> web.Response:
        """POST /account/limits: a JSON object with `rpm`, `tpm`, `burst` in place of the earlier limits."""
        try:
            self.limits = read_limits(await http.read())
        except SimulatorError as error:
            return json_response({"error": {"message": "; ".join(error.problems)}}, 400)
        return json_response(self.limits.headers(time.monotonic()))

    async def clock(self, http: web.Request) -> web.Response:
        """POST /account/clock: `{"advance": SECONDS}` moves the clock of batches; answers with the time it shows."""
        try:
            data = json.loads(await http.read())
        except ValueError:
            data = None
        seconds = data.get("advance") if isinstance(data, dict) else None
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            message = 'the clock is moved by a JSON object such as {"advance": 3600}, in seconds; it never goes back'
            return json_response({"error": {"message": message}}, 400)
        return json_response({"now": await self.batches.do(self.batches.store.advance, seconds)})

    async def health(self, http: web.Request) -> web.Response:
        """GET /health."""
        return json_response({"ok": True, "simulated": True})

    async def unknown(self, http: web.Request) -> web.Response:
        """Every address that is not simulated."""
        message = f"Unknown request URL: {http.method} {http.path}. The simulator does not serve it."
        return self.error_response(ApiError(404, message, code="unknown_url"))
