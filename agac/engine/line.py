"""The way from a stage to its provider and back: everything about it that is fixed for the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from agac.core.errors import ErrorType, storable
from agac.core.redact import Redactor
from agac.core.types import Fault, Reply, Request
from agac.engine.budget import Amount, WorstCase
from agac.engine.lane import Lane, Turn
from agac.engine.limits import Exposure, Slots
from agac.engine.patience import Patience
from agac.engine.validate import Checker
from agac.plan.stage import PlannedModel, PlannedStage
from agac.providers.base import Dialect, encode
from agac.providers.provider import Price
from agac.providers.sending import HttpReply, Sending
from agac.spec.workflow import Timeout
from agac.store.batch import Endpoint

CHARACTERS_A_TOKEN = 4
"""A rough guess, used only to space calls out under a limit of tokens a minute."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A request as it is sent, and the tokens that it is expected to use."""

    body: bytes
    tokens: int


class Sent(NamedTuple):
    """What came of a call: when it was sent, in seconds since 1970, how many seconds it took, its turn in the lane.

    `cut_by_us`: `row_timeout` ended it, which says nothing about the server.
    """

    answer: HttpReply | Fault
    at: float
    duration: float
    turn: Turn
    cut_by_us: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A stage's connection to one of its models: stages on one model share its lane, those on one provider its sender.

    `slots` is the stage's own bound where it has one; `most` knows what a call can cost, where there is a budget.
    `price` looks a price up by service tier, None when it is unknown. `base_url` is the provider's as it may be shown
    and stored.
    """

    stage: PlannedStage
    model: PlannedModel
    dialect: Dialect
    sender: Sending
    timeout: Timeout
    lane: Lane
    slots: Slots | None
    most: WorstCase | None
    exposure: Exposure
    checker: Checker
    price: Callable[[str | None], Price | None]
    redactor: Redactor
    base_url: str
    wall: Callable[[], float]

    def write(self, request: Request) -> Wire:
        """The request in the provider's words."""
        body = encode(self.dialect.build(request, self.model.model, self.model.provider))
        return Wire(body, len(body) // CHARACTERS_A_TOKEN + (self.model.params.max_tokens or 0))

    def worst_case(self, wire: Wire) -> Amount:
        """What sending it can cost at most."""
        return self.most.of(wire.body) if self.most else Amount()

    async def send(self, wire: Wire, patience: Patience, cut_off: Callable[[], None]) -> Sent:
        """Waits for its turn, then for the answer. What comes back holds no secret: a server may quote what we sent.

        The call counts against the exposure until its attempt is durable; when none comes of it, it is taken off here.
        `cut_off` is told when the call was sent and its answer is not waited for. Raises Halted when the run stops
        before it is sent, OutOfTime when the row's time is over before it is sent.
        """
        if self.slots:
            await patience.wait(self.slots.take())
        try:
            await patience.wait(self.exposure.enter())
            try:
                return await self._in_lane(wire, patience, cut_off)
            except BaseException:
                self.exposure.leave(1)
                raise
        finally:
            if self.slots:
                self.slots.give()

    async def _in_lane(self, wire: Wire, patience: Patience, cut_off: Callable[[], None]) -> Sent:
        turn = await patience.wait(self.lane.enter(wire.tokens))
        at = self.wall()
        try:
            http = await self.sender.send(wire.body, self.timeout, within=patience.left())
        except asyncio.CancelledError:
            cut_off()
            raise
        finally:
            self.lane.leave()
        if isinstance(http, Fault):
            cut = http.type is ErrorType.TIMEOUT and patience.over
            if cut:
                http = replace(http, message=str(patience))
            return Sent(http, at, self.wall() - at, turn, cut_by_us=cut)
        if (rates := self.dialect.rates(http.headers)) is not None:
            self.lane.observe(turn, rates)
        clean = self.redactor.clean_bytes(http.body)
        answer = http if clean is http.body else replace(http, body=clean)
        return Sent(answer, at, http.ended - http.started, turn)

    def read(self, sent: Sent) -> Reply | Fault:
        """What an answer means. The lane learns of it."""
        http, model = sent.answer, self.model
        answer: Reply | Fault
        if isinstance(http, Fault):
            answer = http
        else:
            answer = self.dialect.parse(
                http.status, http.headers, http.body, provider=model.provider, model=model.model, redactor=self.redactor
            )
            if http.ttft is not None and isinstance(answer, Reply):
                answer = replace(answer, ttft=http.ttft, time_to_response=http.time_to_response)
        if not sent.cut_by_us:
            self.lane.heard(sent.turn, answer)
        return answer

    def endpoint(self, reply: Reply | None) -> Endpoint:
        """Who answered, or who was asked and did not."""
        provider = self.model.provider
        if reply is None:
            return Endpoint(provider.name, self.base_url, self.model.model, provider.simulated)
        return Endpoint(provider.name, self.base_url, storable(reply.model), reply.simulated)
