"""Every stage's lines to its models: who shares a lane, who shares connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from math import isfinite

from agac.engine.budget import WorstCase
from agac.engine.budgets import Budgets
from agac.engine.control import Control
from agac.engine.lane import Lane
from agac.engine.limits import Exposure, Slots
from agac.engine.line import Line
from agac.engine.validate import Checker
from agac.engine.work import Work
from agac.plan.plan import Plan
from agac.plan.stage import PlannedModel, PlannedStage
from agac.providers.dialects import DIALECTS
from agac.providers.http import Sender
from agac.providers.prices import price_of
from agac.providers.provider import Price
from agac.providers.sending import Sending
from agac.providers.streams import STREAMS
from agac.providers.websocket import SocketSender
from agac.spec.workflow import Timeout


@asynccontextmanager
async def open_lines(work: Work, exposure: Exposure, control: Control) -> AsyncIterator[dict[int, tuple[Line, ...]]]:
    """Each stage's lines, its model's first, by the stage's index.

    Whoever asks one model shares its lane, stages and fallbacks alike; whoever asks one provider its connections.
    """
    async with AsyncExitStack() as stack:
        senders: dict[tuple[str, str], Sending] = {}
        lanes: dict[str, Lane] = {}
        lines: dict[int, tuple[Line, ...]] = {}
        budgets = Budgets.of(work.plan)
        for stage in work.plan.asking:
            for model in stage.models:
                if (carrier := _carrier(model, work.plan)) not in senders:
                    senders[carrier] = _sender(model, carrier[1], work)
                    stack.push_async_callback(senders[carrier].close)
                if model.lane not in lanes:
                    lanes[model.lane] = _lane(model, work, control)
            slots, checker = _own_slots(stage, work.plan), Checker(stage)
            lines[stage.index] = tuple(
                Line(
                    stage=stage,
                    model=model,
                    dialect=DIALECTS[model.provider.dialect],
                    sender=senders[_carrier(model, work.plan)],
                    timeout=_timeout(model),
                    lane=lanes[model.lane],
                    slots=slots,
                    most=WorstCase(model, in_dollars=budgets.in_dollars) if budgets else None,
                    exposure=exposure,
                    checker=checker,
                    price=_price(model),
                    redactor=work.redactor,
                    base_url=work.redactor.clean(model.provider.base_url),
                    wall=work.clocks.wall,
                )
                for model in stage.models
            )
        yield lines


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


def _lane(model: PlannedModel, work: Work, control: Control) -> Lane:
    limits = model.provider.limits
    return Lane(
        limits.concurrency or work.plan.concurrency,
        rpm=limits.rpm,
        tpm=limits.tpm,
        clock=work.clocks.monotonic,
        control=control,
    )


def _own_slots(stage: PlannedStage, plan: Plan) -> Slots | None:
    """A stage's own bound, where it is tighter than the number of rows that walk at a time."""
    return Slots(stage.concurrency) if stage.concurrency and stage.concurrency < plan.concurrency else None


def _price(model: PlannedModel) -> Callable[[str | None], Price | None]:
    """The model's price, looked up with the first reply: the price library takes a third of a second to load."""
    known: dict[str | None, Price | None] = {}

    def price(tier: str | None) -> Price | None:
        if tier not in known:
            known[tier] = price_of(model.provider, model.model, tier)
        return known[tier]

    return price
