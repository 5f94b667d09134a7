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
from agac.core.types import Fault, Params, Reply, Request
from agac.engine.budget import NOTHING, Amount, RunBudgets
from agac.engine.estimate import WorstCase
from agac.engine.invocation import Work
from agac.engine.rate_limiter import CallLimit, Lane
from agac.engine.retry_policy import RowDeadline
from agac.engine.stop_rules import StopSignal
from agac.engine.validate import Checker
from agac.plan.plan import Plan
from agac.plan.stage import PlannedModel, PlannedStage
from agac.providers.bodies import Encoder
from agac.providers.dialect import Dialect
from agac.providers.http import Sender, Sending, SocketSender
from agac.providers.prices import price_of
from agac.providers.provider import Price, Provider
from agac.providers.table import DIALECTS, unsendable
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


def seeded(params: Params, provider: Provider, replica: int) -> Params:
    """The parameters of a replica's request: its number is its seed, where the provider takes one. 0: of a task
    that is run once."""
    return replace(params, seed=replica) if replica and not any(unsendable(("seed",), provider)) else params


def request_for_model(model: PlannedModel, request: Request, position: int, replica: int) -> Request:
    """The request as the stage's model at `position` gets it: the first one's is made already; others have parameters
    of their own, and each replica has its seed."""
    if not position and not replica:
        return request
    return replace(request, params=seeded(model.params, model.provider, replica))


class CallResult(NamedTuple):
    """What came of a call: its answer, the status and the body of that, when it was sent, in seconds since 1970, and
    how many seconds it took."""

    answer: Reply | Fault
    status: int | None
    body: bytes | None
    at: float
    duration: float


@dataclass(frozen=True, slots=True)
class ModelConnection(Route):
    """A stage's connection to one of its models: stages on one model share its lane, those on one provider its sender.

    `stage_limit` is the stage's own bound where it has one, `uncommitted` that on calls which are not durable yet.
    """

    sender: Sending
    timeout: Timeout
    lane: Lane
    stage_limit: CallLimit | None
    uncommitted: CallLimit
    wall: Callable[[], float]

    async def send(self, body: bytes, deadline: RowDeadline, cut_off: Callable[[], None]) -> CallResult:
        """Waits for its turn, then for the answer. What comes back holds no secret: a server may quote what we sent.

        The call counts as uncommitted until its attempt is durable; when none comes of it, it is taken off here.
        `cut_off` is called when the call was sent and its answer is no longer awaited. Raises RunStopped when the run
        stops before the call is sent, RowDeadlineExceeded when the row's time is over before that.
        """
        if self.stage_limit and not self.stage_limit.enter_now():
            await deadline.wait(self.stage_limit.enter())
        try:
            if not self.uncommitted.enter_now():
                await deadline.wait(self.uncommitted.enter())
            try:
                return await self._in_lane(body, deadline, cut_off)
            except BaseException:
                self.uncommitted.leave()
                raise
        finally:
            if self.stage_limit:
                self.stage_limit.leave()

    async def _in_lane(self, body: bytes, deadline: RowDeadline, cut_off: Callable[[], None]) -> CallResult:
        """Sends when it is the call's turn, and tells the lane what became of it."""
        tokens = len(body) // CHARACTERS_A_TOKEN + (self.model.params.max_tokens or 0)
        lane = self.lane
        turn = lane.enter_now(tokens)
        if turn is None:
            turn = await deadline.wait(lane.enter(tokens))
        at = self.wall()
        try:
            http = await self.sender.send(body, self.timeout, within=deadline.left())
        except asyncio.CancelledError:
            cut_off()
            raise
        finally:
            lane.leave()
        if isinstance(http, Fault):
            if http.type is ErrorType.TIMEOUT and deadline.over:  # which says nothing about the server
                http = replace(http, message=str(deadline))
            else:
                lane.heard(turn, http)
            return CallResult(http, http.status, None, at, self.wall() - at)
        if (rates := self.dialect.rates(http.headers)) is not None:
            lane.observe(turn, rates)
        clean = self.redactor.clean_bytes(http.body)
        answer = self.parse(http.status, http.headers, clean)
        if http.ttft is not None and isinstance(answer, Reply):
            answer = replace(answer, ttft=http.ttft, time_to_response=http.time_to_response)
        lane.heard(turn, answer)
        status = http.status if isinstance(answer, Reply) else answer.status
        return CallResult(answer, status, clean, at, http.ended - http.started)


@asynccontextmanager
async def open_connections(
    work: Work, uncommitted: CallLimit, stop_signal: StopSignal
) -> AsyncIterator[dict[int, tuple[ModelConnection, ...]]]:
    """Each stage's connections, its model's first, by the stage's index.

    Calls to one model share its lane, those of stages and of fallbacks; calls to one provider share its sender.
    """
    plan = work.plan
    async with AsyncExitStack() as stack:
        senders: dict[tuple[str, str], Sending] = {}
        lanes: dict[str, Lane] = {}
        connections: dict[int, tuple[ModelConnection, ...]] = {}
        budgets = RunBudgets.of(plan)
        for stage in plan.asking:
            # a stage's own bound, where it is tighter than the number of rows that walk at a time
            own = CallLimit(stage.concurrency) if stage.concurrency and stage.concurrency < plan.concurrency else None
            checker, found = Checker(stage), []
            for model in stage.models:
                carrier = model.provider.name, _transport(model, plan)
                if carrier not in senders:
                    senders[carrier] = _sender(model, carrier[1], work)
                    stack.push_async_callback(senders[carrier].close)
                if model.lane not in lanes:
                    limits, clock = model.provider.limits, work.clocks.monotonic
                    most = limits.concurrency or plan.concurrency
                    lanes[model.lane] = Lane(
                        most, rpm=limits.rpm, tpm=limits.tpm, clock=clock, stop_signal=stop_signal
                    )  # fmt: skip
                timeout = model.timeout
                if model.idle_timeout is not None:  # what its string says about silences
                    first_byte = model.idle_timeout if isfinite(model.idle_timeout) else None
                    timeout = replace(timeout, first_byte=first_byte)
                connection = ModelConnection(
                    stage=stage,
                    model=model,
                    dialect=DIALECTS[model.provider.dialect],
                    sender=senders[carrier],
                    timeout=timeout,
                    lane=lanes[model.lane],
                    stage_limit=own,
                    most=WorstCase(model, in_dollars=budgets.in_dollars) if budgets else None,
                    uncommitted=uncommitted,
                    checker=checker,
                    price=price_by_tier(model),
                    redactor=work.redactor,
                    base_url=work.redactor.clean(model.provider.base_url),
                    wall=work.clocks.wall,
                )
                found.append(connection)
            connections[stage.index] = tuple(found)
        yield connections


def _transport(model: PlannedModel, plan: Plan) -> str:
    """How a model is sent to; `body` is the transport that does not stream. Silences are bounded within a stream only,
    so whoever bounds them is streamed to."""
    watched = plan.rules.ttft or (model.idle_timeout is not None and isfinite(model.idle_timeout))
    return model.transport or ("sse" if watched else "body")


def _sender(model: PlannedModel, transport: str, work: Work) -> Sending:
    sender = Sender(model.provider, work.redactor, env=work.env, stream=transport != "body")
    dialect = DIALECTS[model.provider.dialect]
    if transport in ("ws", "auto") and dialect.socket_asks is not None:
        return SocketSender(sender, dialect, fallback=transport == "auto")
    return sender
