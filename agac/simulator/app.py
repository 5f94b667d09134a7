"""The simulator as a web application: every request goes one way, from its body to the account."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from hmac import compare_digest
from pathlib import Path
from typing import Any
from weakref import WeakSet

from aiohttp import WSCloseCode, web
from aiohttp.typedefs import Handler

from agac.core.keys import SIMULATOR_KEY
from agac.simulator import batch_api, replies
from agac.simulator.anthropic import MESSAGES
from agac.simulator.api_errors import ApiError, limit_error, status_error, unknown_model
from agac.simulator.batch_api import BatchCall, Effect
from agac.simulator.batch_store import BatchStore
from agac.simulator.batch_worker import SimulatedBatches
from agac.simulator.channels import Channel, SocketChannel
from agac.simulator.chat import CHAT
from agac.simulator.dynamo_hints import take_hints
from agac.simulator.fault_effects import AnsweredCall
from agac.simulator.fault_files import load_rules, parse_rules, parse_script
from agac.simulator.fault_plan import FaultPlan
from agac.simulator.faults import FaultRule, changed_answer, error_of
from agac.simulator.kinds import JsonObject, is_number
from agac.simulator.model_calls import ModelCall, read_object
from agac.simulator.openai import RESPONSES
from agac.simulator.replies import AnswerWriter, ModelAnswer, ModelApi
from agac.simulator.serving import ModelServer
from agac.simulator.settings import RateLimits, Settings, SimulatorError, parse_latency, read_limits

MAX_MESSAGE_BYTES = 256 * 2**20
BAD_KEY = "sk-invalid"
MODELS = ("small", "large", "echo")  # those that are listed; every other name is answered too


@dataclass
class SimulatorAccount:
    """Counts by what a provider would bill, in the order of `GET /account`.

    Times are epoch seconds.
    """

    requests: int = 0
    answered: int = 0
    charged: int = 0
    refused: int = 0
    limited: int = 0
    duplicates: int = 0
    contents: set[bytes] = field(default_factory=set)
    """16-byte digests of what was charged: a million of them fit"""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sockets: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    max_in_flight: int = 0
    first_request_at: float | None = None
    last_request_at: float | None = None

    def receive(self) -> int:
        """Counts a request that came in; returns its number, from 1."""
        now = time.time()
        self.requests += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        if self.first_request_at is None:
            self.first_request_at = now
        self.last_request_at = now
        return self.requests

    def charge(
        self, call: ModelCall, answer: ModelAnswer, charged_in_batch: Callable[[bytes], bool]
    ) -> None:
        """Bills the work of the model, even if nobody reads the reply."""
        self.charged += 1
        self.prompt_tokens += call.prompt_tokens
        self.completion_tokens += answer.tokens
        self.duplicates += call.digest in self.contents or charged_in_batch(call.digest)
        self.contents.add(call.digest)

    def report(self) -> JsonObject:
        report = {
            "distinct" if name == "contents" else name: vars(self)[name] for name in vars(self)
        }
        report["distinct"] = len(self.contents)
        report["faults"] = dict(sorted(self.faults.items()))
        report["simulated"] = True
        return report


def check_key(http: web.Request) -> None:
    """Raises ApiError for the key that is refused, in the header of OpenAI, Anthropic or Azure."""
    headers = http.headers
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    if (headers.get("x-api-key") or headers.get("api-key") or bearer) == BAD_KEY:
        raise status_error(401)


class Simulator:
    """One simulated provider: its limits, its faults, its account, its batches."""

    def __init__(self, settings: Settings, key: str = "") -> None:
        """Checks the settings. With a `key`, only who sends it in SIMULATOR_KEY is answered."""
        self.key = key
        self.settings = settings
        store = BatchStore(settings.state)
        problems = settings.problems()

        def read(make: Callable[[], Any]) -> Any:
            try:
                return make()
            except SimulatorError as error:
                problems.extend(error.problems)

        self.server = read(lambda: ModelServer(settings.serving, settings.slots, settings.dynamo))
        self.latency = read(lambda: parse_latency(settings.latency))
        rules = read(lambda: load_optional(settings.faults, parse_rules))
        self.script = read(lambda: load_optional(settings.script, parse_script))
        read(store.check)
        if problems:
            raise SimulatorError(problems)
        self.faults = FaultPlan(rules, settings.seed)
        self.limits = RateLimits(settings.rpm, settings.tpm, settings.burst)
        self.writer = self.new_writer()
        self.account = SimulatorAccount()
        self.batches = SimulatedBatches(
            store,
            self.faults,
            settings.batch_seconds,
            lambda digest: digest in self.account.contents,
            self.new_writer(),  # each thread has its own
        )
        self.stopping = asyncio.Event()
        self.sockets: WeakSet[web.WebSocketResponse] = WeakSet()

    def new_writer(self) -> AnswerWriter:
        settings = self.settings
        return AnswerWriter(
            settings.tool_turns,
            settings.tool_calls,
            self.script,
            tools_with_schema=settings.tools_with_schema,
        )

    def app(self) -> web.Application:
        app = web.Application(client_max_size=batch_api.MAX_FILE_BYTES, middlewares=[self.refused])
        routes: list[tuple[str, str, Handler]] = []
        for prefix in ("/v1", "/openai/v1"):  # Azure's is the second
            routes += [
                ("POST", f"{prefix}/chat/completions", partial(self.post, CHAT)),
                ("POST", f"{prefix}/responses", partial(self.post, RESPONSES)),
                ("GET", f"{prefix}/responses", self.socket),
            ]
        for family, (prefix, calls) in batch_api.FAMILIES.items():
            for method, path, operation, effect in calls:
                call = partial(self.batch_call, family, operation, effect)
                routes.append((method, prefix + path, call))
        routes += [
            ("POST", "/v1/messages", partial(self.post, MESSAGES)),
            ("GET", "/v1/models", self.models),
            ("GET", "/account", self.report),
            ("GET", "/account/served", self.served),
            ("GET", "/metrics", self.metrics),
            ("POST", "/account/reset", self.reset),
            ("POST", "/account/limits", self.set_limits),
            ("POST", "/account/clock", self.clock),
            ("*", "/{path:.*}", self.unknown),
        ]
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        app.on_shutdown.append(self.stop)
        # once there are no more requests
        app.on_cleanup.append(lambda _: asyncio.to_thread(self.batches.close))
        return app

    async def stop(self, app: web.Application) -> None:
        """Lets go of the clients that were to get no answer."""
        self.stopping.set()
        for ws in list(self.sockets):
            await ws.close(code=WSCloseCode.GOING_AWAY)
        self.batches.stop()

    async def batch_call(
        self, family: str, operation: str, effect: Effect, http: web.Request
    ) -> web.StreamResponse:
        check_key(http)
        return await BatchCall(family, self.batches, operation, http).serve(effect)

    async def post(self, api: ModelApi, http: web.Request) -> web.StreamResponse:
        number = self.account.receive()
        channel = Channel(
            api,
            http,
            self.stopping,
            lambda: replies.MARK | api.headers(number, self.limits),
        )
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
            data = message.data
            body = data.encode() if isinstance(data, str) else bytes(data)
            await self.serve(SocketChannel(http, self.stopping, ws), body, number)
        return ws

    async def serve(self, channel: Channel, body: bytes, number: int) -> None:
        """Sends a reply, an error, or what a fault makes of them, and keeps the account."""
        try:
            channel.call = self.read_call(channel, body)
            await self.reply(channel, number)
        except ApiError as error:
            self.account.answered += 1
            self.account.refused += 1
            await channel.refuse(error)
        finally:
            self.account.in_flight = max(0, self.account.in_flight - 1)

    def read_call(self, channel: Channel, body: bytes) -> ModelCall:
        """Reads a request within the limits; raises ApiError."""
        hints: JsonObject = {}
        if self.settings.dynamo:
            body, hints = take_hints(body, self.settings.dynamo)
        call = channel.api.read(body, self.settings.seed, channel.http.headers)
        if hints:
            call = replace(call, hints=hints)
        check_key(channel.http)
        if "missing" in call.model:
            raise unknown_model(call.model)
        tokens = call.prompt_tokens + (call.max_tokens or 0)
        refusal = self.limits.take(tokens, time.monotonic())
        if refusal is not None:
            self.account.limited += 1
            raise limit_error(refusal, call.model)
        return call

    async def reply(self, channel: Channel, number: int) -> None:
        """Sends a reply, or what a fault makes of it; raises ApiError."""
        rule = self.faults.pick(number, channel.call) if self.faults.rules else None
        if rule is not None:
            self.account.faults[rule.kind] += 1
            if rule.phase == "error":
                raise error_of(rule, channel.call.model)
            if rule.phase == "wait" and rule.effect is not None:
                await rule.effect(rule, channel)
                return
        await self.answer(channel, rule)
        self.account.answered += rule is None or rule.kind != "cut"
        if rule is not None and rule.phase == "sending" and rule.effect is not None:
            await rule.effect(rule, channel)
        else:
            await channel.send_answer()

    async def answer(self, channel: Channel, rule: FaultRule | None) -> None:
        """Does the work of the model, in its time, and charges it."""
        call = channel.call
        answer = self.writer.answer(call)
        seconds = self.latency(int.from_bytes(call.digest) ^ 1)
        if rule is not None:
            seconds += rule.value("seconds") or 0.0
        is_marked = channel.api is MESSAGES
        call, channel.rest = await self.server.serve(call, answer, seconds, marked=is_marked)
        if rule is not None:
            answer = changed_answer(rule, AnsweredCall(call, answer, self.writer))
        self.account.charge(call, answer, self.batches.store.was_charged)
        channel.call = call
        channel.answer = answer

    @web.middleware
    async def refused(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers errors of requests without a number, in the provider's form."""
        try:
            self.check_program(request)
            return await handler(request)
        except SimulatorError as problem:
            error = ApiError(400, "; ".join(problem.problems))
        except ApiError as raised:
            error = raised
        api = CHAT
        headers = CHAT.headers(0, self.limits)
        if request.path.startswith("/v1/messages"):
            api = MESSAGES
            headers = {"request-id": "req_sim_batches"}
        return batch_api.json_response(api.error(error), error.status, headers | error.headers)

    def check_program(self, request: web.Request) -> None:
        """Raises ApiError for a program that is not the one that started the simulator."""
        sent = request.headers.get(SIMULATOR_KEY, "").encode("utf-8", "surrogateescape")
        if self.key and not compare_digest(sent, self.key.encode()):
            raise ApiError(401, "this simulator serves the program that started it")

    async def models(self, http: web.Request) -> web.Response:
        """GET /v1/models."""
        about = {"object": "model", "created": replies.CREATED, "owned_by": replies.FINGERPRINT}
        models = [{"id": name, **about} for name in MODELS]
        return batch_api.json_response({"object": "list", "data": models})

    async def report(self, http: web.Request) -> web.Response:
        """GET /account: requests and charges since the last reset, and those of batches."""
        batches = await self.batches.account()
        return batch_api.json_response(self.account.report() | {"batches": batches})

    async def reset(self, http: web.Request) -> web.Response:
        """POST /account/reset: forgets all but the requests in flight; sends the old account."""
        before = await self.report(http)
        await self.batches.reset()
        in_flight = self.account.in_flight
        self.account = SimulatorAccount(in_flight=in_flight, max_in_flight=in_flight)
        self.faults.sent.clear()
        self.server.forget()
        return before

    async def served(self, http: web.Request) -> web.Response:
        """GET /account/served: when requests were served, and in which slot."""
        return batch_api.json_response(self.server.report())

    async def metrics(self, http: web.Request) -> web.StreamResponse:
        """GET /metrics, of an engine."""
        if self.server.engine is None:
            return await self.unknown(http)
        return web.Response(text=self.server.engine.metrics())

    async def set_limits(self, http: web.Request) -> web.Response:
        """POST /account/limits: `rpm`, `tpm`, `burst` in place of the earlier limits."""
        self.limits = read_limits(read_object(await http.read()))
        return batch_api.json_response(self.limits.headers(time.monotonic()))

    async def clock(self, http: web.Request) -> web.Response:
        """POST /account/clock: `{"advance": SECONDS}` moves the clock of batches."""
        seconds = read_object(await http.read()).get("advance")
        if not is_number(seconds) or seconds < 0:
            example = 'an object such as {"advance": 3600}'
            raise ApiError(400, f"The clock is moved by {example}, in seconds, never back.")
        return batch_api.json_response({"now": self.batches.store.advance(seconds)})

    async def unknown(self, http: web.Request) -> web.Response:
        message = (
            f"Unknown request URL: {http.method} {http.path}. The simulator does not serve it."
        )
        raise ApiError(404, message, code="unknown_url")


def load_optional(path: Path | None, parse: Callable[[Any, str], list[Any]]) -> list[Any]:
    """Reads the rules of a file; none without a file."""
    return load_rules(path, parse) if path else []
