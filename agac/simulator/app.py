"""The simulator as a web application: one road for every request, from its body to the account."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from contextlib import suppress
from random import Random

from aiohttp import web

from agac.simulator import chat
from agac.simulator.asks import Answer, ApiError, Ask
from agac.simulator.faults import ERROR_KINDS, FaultPlan, Rule
from agac.simulator.latency import Latency, RateLimits, parse_latency, read_limits
from agac.simulator.ledger import Ledger
from agac.simulator.replies import Author
from agac.simulator.rulesfile import load_rules
from agac.simulator.settings import Settings, SimulatorError
from agac.simulator.spoiling import error_of, invalid_key, limit_error, spoiled, unknown_model

LARGEST_BODY = 256 * 2**20
MARK = {"x-agac-simulated": "true"}
HANG_LOOKS = 0.1
"""Seconds between looks at whether a client that gets no answer is still there."""


class Simulator:
    """One simulated provider: its limits, its faults, its account."""

    def __init__(self, settings: Settings) -> None:
        problems = settings.problems()
        latency = Latency(lambda _: 0.0, constant=0.0)
        rules: list[Rule] = []
        try:
            latency = parse_latency(settings.latency)
        except SimulatorError as error:
            problems += error.problems
        try:
            rules = load_rules(settings.faults) if settings.faults else []
        except SimulatorError as error:
            problems += error.problems
        if problems:
            raise SimulatorError(problems)
        self.settings = settings
        self.latency = latency
        self.faults = FaultPlan(rules, settings.seed)
        self.limits = RateLimits.of(settings.rpm, settings.tpm, settings.burst)
        self.slots = asyncio.Semaphore(settings.slots) if settings.slots else None
        self.ledger = Ledger()
        self.author = Author()
        self.stopping = asyncio.Event()

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.model)
        app.router.add_get("/account", self.account)
        app.router.add_post("/account/reset", self.reset)
        app.router.add_post("/account/limits", self.set_limits)
        app.router.add_get("/health", self.health)
        app.router.add_route("*", "/{path:.*}", self.unknown)
        app.on_shutdown.append(self.stop)
        return app

    async def stop(self, app: web.Application) -> None:
        """Lets go of the clients that were to get no answer."""
        self.stopping.set()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        number = self.ledger.receive(time.time())
        try:
            response = await self.reply(request, number)
        except ApiError as error:
            self.ledger.answered += 1
            self.ledger.refused += 1
            response = self.error_response(error, number)
        finally:
            self.ledger.release()
        return response

    async def reply(self, request: web.Request, number: int) -> web.StreamResponse:
        """A reply, or what a fault makes of it; raises ApiError."""
        ask = chat.read_ask(await request.read(), self.settings.seed)
        self.admit(request, ask)
        rule = self.faults.pick(number, ask) if self.faults.rules else None
        if rule is not None:
            self.ledger.faults[rule.kind] += 1
            if rule.kind in ERROR_KINDS:
                raise error_of(rule, ask)
            if rule.kind == "hang":
                return await self.hang(request)
        answer = self.author.answer(ask)
        await self.work(ask, rule)
        if rule is not None:
            answer = spoiled(rule, ask, answer)
        self.ledger.charge(ask.digest, ask.prompt_tokens, answer.tokens)
        if rule is not None and rule.kind == "cut":
            return await self.cut(request, ask, answer, rule)
        self.ledger.answered += 1
        if rule is not None and rule.kind == "invalid_body":
            return self.response(b"<html><body>upstream sent too much</body></html>", number)
        if ask.stream:
            return await self.stream(request, chat.completion_chunks(ask, answer), number)
        return self.response(chat.completion_body(ask, answer), number)

    def admit(self, request: web.Request, ask: Ask) -> None:
        """Raises ApiError for a key, a model or a rate that is refused."""
        if request.headers.get("authorization", "").removeprefix("Bearer ") == "sk-invalid":
            raise invalid_key()
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

    async def hang(self, request: web.Request) -> web.StreamResponse:
        """Waits until the client has gone or the simulator stops."""
        while request.transport is not None and not request.transport.is_closing() and not self.stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), HANG_LOOKS)
        return web.Response(status=503)

    async def cut(self, request: web.Request, ask: Ask, answer: Answer, rule: Rule) -> web.StreamResponse:
        """Drops the connection: at once, or after so many bytes of the body. The model's work is charged."""
        whole = b"".join(chat.completion_chunks(ask, answer)) if ask.stream else chat.completion_body(ask, answer)
        response = web.StreamResponse(headers=MARK)
        response.content_type = "text/event-stream" if ask.stream else "application/json"
        if rule.after_bytes is not None and request.transport is not None:
            if not ask.stream:
                response.content_length = len(whole)
            await response.prepare(request)
            await response.write(whole[: min(rule.after_bytes, len(whole) - 1)])
        if request.transport is not None:
            request.transport.close()
        return response

    async def stream(self, request: web.Request, chunks: Iterable[bytes], number: int) -> web.StreamResponse:
        """Server-sent events, one write each. A client that leaves early has been charged all the same."""
        response = web.StreamResponse(headers=self.headers(number) | {"cache-control": "no-cache"})
        response.content_type = "text/event-stream"
        try:
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()
        except ConnectionError:
            pass
        return response

    def headers(self, number: int) -> dict[str, str]:
        """What every reply is marked with."""
        return MARK | {"x-request-id": f"req-sim-{number}"} | self.limits.headers(time.monotonic())

    def response(self, body: bytes, number: int) -> web.Response:
        """A whole reply."""
        return web.Response(body=body, content_type="application/json", headers=self.headers(number))

    def error_response(self, error: ApiError, number: int) -> web.Response:
        """An error in the provider's form."""
        headers = self.headers(number) | error.headers
        body = chat.error_body(error)
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
        return json_response(self.ledger.report(contents=request.query.get("contents") == "1"))

    async def reset(self, request: web.Request) -> web.Response:
        """POST /account/reset: the account and the faults' memory start from nothing; answers with the old account."""
        before = self.ledger.report()
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


def model_object(name: str) -> dict[str, object]:
    """A model as the API lists it."""
    return {"id": name, "object": "model", "created": chat.CREATED, "owned_by": chat.FINGERPRINT}


def json_response(data: object, status: int = 200) -> web.Response:
    """Any JSON, marked as simulated."""
    body = json.dumps(data).encode()
    return web.Response(status=status, body=body, content_type="application/json", headers=MARK)
