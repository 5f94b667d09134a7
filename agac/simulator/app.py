"""The simulator as a web application: one road for every request, from its body to the account."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from random import Random
from weakref import WeakSet

from aiohttp import WSCloseCode, web

from agac.simulator.asks import ApiError, Ask
from agac.simulator.batches.rules import BatchRule
from agac.simulator.batches.site import BatchSite
from agac.simulator.batches.state import State
from agac.simulator.faults import ERROR_KINDS, FaultPlan, Rule
from agac.simulator.latency import Latency, RateLimits, parse_latency, read_limits
from agac.simulator.ledger import Ledger
from agac.simulator.messages import read_ask
from agac.simulator.outlets import CHAT, MARK, MESSAGES, RESPONSES, Api, HttpOutlet, Outlet, SocketOutlet
from agac.simulator.plain import check_key, json_response, model_object
from agac.simulator.replies import Author
from agac.simulator.responses import read_create
from agac.simulator.rulesfile import load_rules
from agac.simulator.settings import Settings, SimulatorError
from agac.simulator.spoiling import error_of, limit_error, spoiled, stream_error, unknown_model

LARGEST_BODY = 256 * 2**20
SOCKET_RESPONSES = replace(RESPONSES, read=read_create)


class Simulator:
    """One simulated provider: its limits, its faults, its account."""

    def __init__(self, settings: Settings) -> None:
        problems = settings.problems()
        latency = Latency(lambda _: 0.0, constant=0.0)
        rules: list[Rule | BatchRule] = []
        try:
            latency = parse_latency(settings.latency)
        except SimulatorError as error:
            problems += error.problems
        try:
            rules = load_rules(settings.faults) if settings.faults else []
        except SimulatorError as error:
            problems += error.problems
        state = State(settings.state)
        problems += state.problems()
        if problems:
            raise SimulatorError(problems)
        self.settings = settings
        self.latency = latency
        self.faults = FaultPlan([rule for rule in rules if isinstance(rule, Rule)], settings.seed)
        self.limits = RateLimits.of(settings.rpm, settings.tpm, settings.burst)
        self.slots = asyncio.Semaphore(settings.slots) if settings.slots else None
        self.ledger = Ledger()
        self.author = Author()
        self.batches = BatchSite(
            settings,
            state,
            self.faults,
            [rule for rule in rules if isinstance(rule, BatchRule)],
            self.ledger,
            json_response,
            check_key,
            lambda error: self.error_response(error, 0),
        )
        self.stopping = asyncio.Event()
        self.sockets: WeakSet[web.WebSocketResponse] = WeakSet()

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=LARGEST_BODY)
        for prefix in ("/v1", "/openai/v1"):  # Azure's is the second
            app.router.add_post(f"{prefix}/chat/completions", self.chat)
            app.router.add_post(f"{prefix}/responses", self.responses)
            app.router.add_get(f"{prefix}/responses", self.socket)
        app.router.add_post("/v1/messages", self.messages)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.model)
        self.batches.add_routes(app)
        app.router.add_get("/account", self.account)
        app.router.add_post("/account/reset", self.reset)
        app.router.add_post("/account/limits", self.set_limits)
        app.router.add_get("/health", self.health)
        app.router.add_route("*", "/{path:.*}", self.unknown)
        app.on_shutdown.append(self.stop)
        app.on_cleanup.append(self.close)
        return app

    async def stop(self, app: web.Application) -> None:
        """Lets go of the clients that were to get no answer."""
        self.stopping.set()
        for ws in list(self.sockets):
            await ws.close(code=WSCloseCode.GOING_AWAY)
        self.batches.stop()

    async def close(self, app: web.Application) -> None:
        """Closes what is kept, once nobody asks any more."""
        await asyncio.to_thread(self.batches.close)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self.post(CHAT, request)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/responses."""
        return await self.post(RESPONSES, request)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages: what may be asked depends on the API's version."""
        version = request.headers.get("anthropic-version", "")
        return await self.post(replace(MESSAGES, read=partial(read_ask, version=version)), request)

    async def post(self, api: Api, request: web.Request) -> web.StreamResponse:
        """One request, one reply."""
        number = self.ledger.receive(time.time())
        outlet = HttpOutlet(api, request, lambda: self.headers(number, api))
        await self.serve(outlet, api, await request.read(), request, number)
        return outlet.response

    async def socket(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/responses: a WebSocket that takes one request after the other."""
        ws = web.WebSocketResponse(max_msg_size=LARGEST_BODY)
        if not self.settings.websocket or not ws.can_prepare(request).ok:
            return await self.unknown(request)
        try:
            check_key(request)
        except ApiError as error:
            return self.error_response(error, 0)
        ws.headers.update(MARK)
        await ws.prepare(request)
        self.sockets.add(ws)
        self.ledger.sockets += 1
        async for message in ws:
            number = self.ledger.receive(time.time())
            body = message.data.encode() if isinstance(message.data, str) else bytes(message.data)
            await self.serve(SocketOutlet(request, ws), SOCKET_RESPONSES, body, request, number)
        return ws

    async def serve(self, outlet: Outlet, api: Api, body: bytes, request: web.Request, number: int) -> None:
        """Sends a reply, an error, or what a fault makes of them, and keeps the account."""
        try:
            await self.reply(outlet, api.read(body, self.settings.seed), request, number)
        except ApiError as error:
            self.ledger.answered += 1
            self.ledger.refused += 1
            await outlet.refuse(error)
        finally:
            self.ledger.release()

    async def reply(self, outlet: Outlet, ask: Ask, request: web.Request, number: int) -> None:
        """A reply, or what a fault makes of it; raises ApiError."""
        self.admit(request, ask)
        rule = self.faults.pick(number, ask) if self.faults.rules else None
        if rule is not None:
            self.ledger.faults[rule.kind] += 1
            if rule.kind in ERROR_KINDS:
                raise error_of(rule, ask)
            if rule.kind == "hang":
                return await outlet.hang(self.stopping)
        answer = self.author.answer(ask)
        await self.work(ask, rule)
        if rule is None:
            self.ledger.charge(ask.digest, ask.prompt_tokens, answer.tokens)
            self.ledger.answered += 1
            return await outlet.answer(ask, answer)
        answer = self.author.another(ask, answer) if rule.kind == "two_answers" else spoiled(rule, ask, answer)
        self.ledger.charge(ask.digest, ask.prompt_tokens, answer.tokens)
        if rule.kind == "cut":
            return await outlet.cut(ask, answer, rule.after_bytes)
        self.ledger.answered += 1
        if rule.kind == "invalid_body":
            return await outlet.garble()
        if rule.kind == "stream_error":
            return await outlet.fail(ask, answer, stream_error(rule), rule)
        return await outlet.answer(ask, answer)

    def admit(self, request: web.Request, ask: Ask) -> None:
        """Raises ApiError for a key, a model or a rate that is refused."""
        check_key(request)
        if "missing" in ask.model:
            raise unknown_model(ask.model)
        refusal = self.limits.take(ask.prompt_tokens + (ask.max_tokens or 0), time.monotonic())
        if refusal is not None:
            self.ledger.limited += 1
            raise limit_error(refusal, ask)

    async def work(self, ask: Ask, rule: Rule | None) -> None:
        """Takes as long as the model takes, in one of the slots."""
        seconds = self.latency.constant
        if seconds is None:
            seconds = self.latency.seconds(Random(int.from_bytes(ask.digest) ^ 1))  # noqa: S311 (nothing to guess)
        if rule is not None and rule.kind == "slow_first_byte":
            seconds += rule.seconds
        if self.slots is None:
            if seconds > 0:
                await asyncio.sleep(seconds)
            return
        async with self.slots:
            await asyncio.sleep(seconds)

    def headers(self, number: int, api: Api = CHAT) -> dict[str, str]:
        """What every reply is marked with."""
        return MARK | api.headers(number, self.limits)

    def error_response(self, error: ApiError, number: int) -> web.Response:
        """An error in OpenAI's form."""
        headers = self.headers(number) | error.headers
        body = CHAT.error(error)
        return web.Response(status=error.status, body=body, content_type="application/json", headers=headers)

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        listed = [model_object(name) for name in self.settings.model_ids]
        return json_response({"object": "list", "data": listed})

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/NAME: every name exists but those with `missing` in them."""
        name = request.match_info["model"]
        if "missing" in name:
            return self.error_response(unknown_model(name), 0)
        return json_response(model_object(name))

    async def account(self, request: web.Request) -> web.Response:
        """GET /account: what was asked and charged since the start or the last reset."""
        batches = {"batches": await self.batches.account()}
        return json_response(self.ledger.report(contents=request.query.get("contents") == "1") | batches)

    async def reset(self, request: web.Request) -> web.Response:
        """POST /account/reset: the account and the faults' memory start from nothing; answers with the old account."""
        before = self.ledger.report() | {"batches": await self.batches.account()}
        await self.batches.reset()
        self.ledger.reset()
        self.faults.reset()
        return json_response(before)

    async def set_limits(self, request: web.Request) -> web.Response:
        """POST /account/limits: a JSON object with `rpm`, `tpm`, `burst` in place of the limits that there were."""
        try:
            self.limits = read_limits(await request.read())
        except SimulatorError as error:
            return json_response({"error": {"message": "; ".join(error.problems)}}, 400)
        return json_response(self.limits.headers(time.monotonic()))

    async def health(self, request: web.Request) -> web.Response:
        """GET /health."""
        return json_response({"ok": True, "simulated": True})

    async def unknown(self, request: web.Request) -> web.Response:
        """Everything that is not simulated."""
        message = f"Unknown request URL: {request.method} {request.path}. The simulator does not serve it."
        return self.error_response(ApiError(404, message, code="unknown_url"), 0)
