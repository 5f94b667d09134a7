"""The connection of a stage to each of its models: everything about a call that is fixed for the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import NamedTuple

from agac.core.errors import ErrorType, storable
from agac.core.redact import Redactor
from agac.core.types import Fault, Reply, Request
from agac.engine.budget import NOTHING, Amount, RunBudgets, WorstCase
from agac.engine.invocation import Work
from agac.engine.rate_limiter import FifoSemaphore, Lane, LanePermit, UncommittedCallLimit
from agac.engine.retry_policy import RowDeadline
from agac.engine.stop_rules import StopSignal
from agac.engine.validate import Checker
from agac.plan.plan import Plan
from agac.plan.render import seeded
from agac.plan.stage import PlannedModel, PlannedStage
from agac.providers.dialects import DIALECTS, STREAMS
from agac.providers.http import HttpReply, Sender, Sending
from agac.providers.prices import price_of
from agac.providers.provider import Price
from agac.providers.websocket import SocketSender
from agac.providers.wire import Dialect, Encoder
from agac.spec.workflow import Timeout
from agac.store.records import Endpoint

CHARACTERS_A_TOKEN = 4
"""A rough guess, used only to space calls out under a limit of tokens a minute."""


@dataclass(frozen=True, slots=True)
class Route:
    """A stage and one of its models. `most` knows what a request can cost, where there is a budget; `price` looks a
    price up by service tier, None when it is unknown; `base_url` is the provider's as it may be shown and stored."""

    stage: PlannedStage
    model: PlannedModel
    dialect: Dialect
    checker: Checker
    most: WorstCase | None
    price: Callable[[str | None], Price | None]
    redactor: Redactor
    base_url: str
    encoder: Encoder = field(default_factory=Encoder, kw_only=True)

    def body(self, request: Request) -> bytes:
        """The request in the provider's words: the same bytes for a call and for a line of a batch."""
        return self.encoder.encode(self.dialect.build(request, self.model.model, self.model.provider))

    def worst_case(self, body: bytes) -> Amount:
        """What sending a request can cost at most."""
        return self.most.of(body) if self.most else NOTHING

    def parse(self, status: int, headers: Mapping[str, str], body: bytes) -> Reply | Fault:
        """What an answer means."""
        model = self.model
        return self.dialect.parse(
            status, headers, body, provider=model.provider, model=model.model, redactor=self.redactor
        )

    def endpoint(self, reply: Reply | None) -> Endpoint:
        """Who answered, or who was asked and did not."""
        provider = self.model.provider
        if reply is None:
            return Endpoint(provider.name, self.base_url, self.model.model, provider.simulated)
        return Endpoint(provider.name, self.base_url, storable(reply.model), reply.simulated or provider.simulated)


def price_by_tier(model: PlannedModel) -> Callable[[str | None], Price | None]:
    """The model's price, looked up with the first reply: the price library takes a third of a second to load."""
    known: dict[str | None, Price | None] = {}

    def price(tier: str | None) -> Price | None:
        if tier not in known:
            known[tier] = price_of(model.provider, model.model, tier)
        return known[tier]

    return price


def request_for_model(model: PlannedModel, request: Request, replica: int) -> Request:
    """The request as a model gets it: with its own parameters, and the seed of a replica."""
    return replace(request, params=seeded(model.params, model.provider, replica))


class EncodedRequest(NamedTuple):
    """A request as it is sent, and the tokens that it is expected to use."""

    body: bytes
    tokens: int


class CallResult(NamedTuple):
    """What came of a call: when it was sent, in seconds since 1970, how many seconds it took, its turn in the lane.

    `cut_by_us`: `row_timeout` ended it, which says nothing about the server.
    """

    answer: HttpReply | Fault
    at: float
    duration: float
    turn: LanePermit
    cut_by_us: bool = False


@dataclass(frozen=True, slots=True)
class ModelConnection(Route):
    """A stage's connection to one of its models: stages on one model share its lane, those on one provider its sender.

    `slots` is the stage's own bound where it has one.
    """

    sender: Sending
    timeout: Timeout
    lane: Lane
    slots: FifoSemaphore | None
    exposure: UncommittedCallLimit
    wall: Callable[[], float]

    def write(self, request: Request) -> EncodedRequest:
        """The request in the provider's words."""
        body = self.body(request)
        return EncodedRequest(body, len(body) // CHARACTERS_A_TOKEN + (self.model.params.max_tokens or 0))

    async def send(self, wire: EncodedRequest, deadline: RowDeadline, cut_off: Callable[[], None]) -> CallResult:
        """Waits for its turn, then for the answer. What comes back holds no secret: a server may quote what we sent.

        The call counts against the exposure until its attempt is durable; when none comes of it, it is taken off here.
        `cut_off` is called when the call was sent and its answer is no longer awaited. Raises RunStopped when the run
        stops before the call is sent, RowDeadlineExceeded when the row's time is over before that.
        """
        if self.slots and not self.slots.take_now():
            await deadline.wait(self.slots.take())
        try:
            if not self.exposure.enter_now():
                await deadline.wait(self.exposure.enter())
            try:
                return await self._in_lane(wire, deadline, cut_off)
            except BaseException:
                self.exposure.leave(1)
                raise
        finally:
            if self.slots:
                self.slots.give()

    async def _in_lane(self, wire: EncodedRequest, deadline: RowDeadline, cut_off: Callable[[], None]) -> CallResult:
        turn = self.lane.enter_now(wire.tokens)
        if turn is None:
            turn = await deadline.wait(self.lane.enter(wire.tokens))
        at = self.wall()
        try:
            http = await self.sender.send(wire.body, self.timeout, within=deadline.left())
        except asyncio.CancelledError:
            cut_off()
            raise
        finally:
            self.lane.leave()
        if isinstance(http, Fault):
            cut = http.type is ErrorType.TIMEOUT and deadline.over
            if cut:
                http = replace(http, message=str(deadline))
            return CallResult(http, at, self.wall() - at, turn, cut_by_us=cut)
        if (rates := self.dialect.rates(http.headers)) is not None:
            self.lane.observe(turn, rates)
        clean = self.redactor.clean_bytes(http.body)
        answer = http if clean is http.body else replace(http, body=clean)
        return CallResult(answer, at, http.ended - http.started, turn)

    def read(self, sent: CallResult) -> Reply | Fault:
        """What an answer means. The lane learns of it."""
        http = sent.answer
        answer: Reply | Fault
        if isinstance(http, Fault):
            answer = http
        else:
            answer = self.parse(http.status, http.headers, http.body)
            if http.ttft is not None and isinstance(answer, Reply):
                answer = replace(answer, ttft=http.ttft, time_to_response=http.time_to_response)
        if not sent.cut_by_us:
            self.lane.heard(sent.turn, answer)
        return answer


@asynccontextmanager
async def open_connections(
    work: Work, exposure: UncommittedCallLimit, stop_signal: StopSignal
) -> AsyncIterator[dict[int, tuple[ModelConnection, ...]]]:
    """Each stage's connections, its model's first, by the stage's index.

    Calls to one model share its lane, those of stages and of fallbacks; calls to one provider share its sender.
    """
    async with AsyncExitStack() as stack:
        senders: dict[tuple[str, str], Sending] = {}
        lanes: dict[str, Lane] = {}
        connections: dict[int, tuple[ModelConnection, ...]] = {}
        run_budgets = RunBudgets.of(work.plan)
        for stage in work.plan.asking:
            for model in stage.models:
                if (carrier := _carrier(model, work.plan)) not in senders:
                    senders[carrier] = _sender(model, carrier[1], work)
                    stack.push_async_callback(senders[carrier].close)
                if model.lane not in lanes:
                    lanes[model.lane] = _lane(model, work, stop_signal)
            slots, checker = _own_slots(stage, work.plan), Checker(stage)
            connections[stage.index] = tuple(
                ModelConnection(
                    stage=stage,
                    model=model,
                    dialect=DIALECTS[model.provider.dialect],
                    sender=senders[_carrier(model, work.plan)],
                    timeout=_timeout(model),
                    lane=lanes[model.lane],
                    slots=slots,
                    most=WorstCase(model, in_dollars=run_budgets.in_dollars) if run_budgets else None,
                    exposure=exposure,
                    checker=checker,
                    price=price_by_tier(model),
                    redactor=work.redactor,
                    base_url=work.redactor.clean(model.provider.base_url),
                    wall=work.clocks.wall,
                )
                for model in stage.models
            )
        yield connections


def _carrier(model: PlannedModel, plan: Plan) -> tuple[str, str]:
    """Who shares connections: the provider's name and the transport, where `body` is one that does not stream.

    Silences are bounded within a stream only, so whoever bounds them is streamed to.
    """
    watched = plan.rules.ttft or (model.idle_timeout is not None and isfinite(model.idle_timeout))
    return model.provider.name, model.transport or ("sse" if watched else "body")


def _sender(model: PlannedModel, transport: str, work: Work) -> Sending:
    sender = Sender(model.provider, work.redactor, limit=0, env=work.env, stream=transport != "body")
    streaming = STREAMS[model.provider.dialect]
    if transport in ("ws", "auto") and streaming.socket_asks is not None:
        return SocketSender(sender, streaming, fallback=transport == "auto")
    return sender


def _timeout(model: PlannedModel) -> Timeout:
    """The model's time-outs, with what its string says about silences."""
    if model.idle_timeout is None:
        return model.timeout
    return replace(model.timeout, first_byte=model.idle_timeout if isfinite(model.idle_timeout) else None)


def _lane(model: PlannedModel, work: Work, stop_signal: StopSignal) -> Lane:
    limits = model.provider.limits
    return Lane(
        limits.concurrency or work.plan.concurrency,
        rpm=limits.rpm,
        tpm=limits.tpm,
        clock=work.clocks.monotonic,
        stop_signal=stop_signal,
    )


def _own_slots(stage: PlannedStage, plan: Plan) -> FifoSemaphore | None:
    """A stage's own bound, where it is tighter than the number of rows that walk at a time."""
    return FifoSemaphore(stage.concurrency) if stage.concurrency and stage.concurrency < plan.concurrency else None
