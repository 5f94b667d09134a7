"""What is kept of a call that ended: one value for a reply, one for a fault."""

from __future__ import annotations

from typing import NamedTuple

from agac.core.errors import RowError, storable
from agac.core.types import Fault, FaultKind, Reply, Usage
from agac.engine.line import Line, Sent
from agac.providers.prices import cost
from agac.providers.sending import HttpReply
from agac.store.batch import Call

NO_USAGE = Usage()


class Replied(NamedTuple):
    """A reply on its way to be checked; `number` counts the task's attempts from 1."""

    reply: Reply
    sent: Sent
    number: int
    again: bool


def reply_call(line: Line, replied: Replied, purpose: str) -> Call:
    """The attempt that brought a reply, at the price of the tier that served it."""
    reply, sent = replied.reply, replied.sent
    price = line.price(reply.service_tier)
    return Call(
        number=replied.number,
        endpoint=line.endpoint(reply),
        purpose=purpose,
        started_at=sent.at,
        duration=sent.duration,
        status=sent.answer.status,
        error=None,
        ambiguous=False,
        usage=reply.usage,
        cost=cost(reply.usage, price) if price else None,
        body=_body(sent),
        again=replied.again,
        ttft=reply.ttft,
        time_to_response=reply.time_to_response,
        service_tier=None if reply.service_tier is None else storable(reply.service_tier),
    )


def fault_call(line: Line, sent: Sent, fault: Fault, number: int, purpose: str, *, again: bool) -> Call:
    """The attempt that brought no reply."""
    return Call(
        number=number,
        endpoint=line.endpoint(None),
        purpose=purpose,
        started_at=sent.at,
        duration=sent.duration,
        status=fault.status,
        error=RowError(fault.type, fault.message),
        ambiguous=fault.ambiguous,
        usage=NO_USAGE,
        cost=None,
        body=_body(sent),
        again=again,
        refused=fault.kind is FaultKind.PAUSE,
    )


def how_answered(purpose: str, position: int, *, mended: bool) -> str:
    """How an answer came about, as results remember it; `position` counts the stage's models from 0."""
    if purpose == "ask" and not mended:
        return ""
    ways = {"repair": purpose == "repair", "json_repair": mended, "fallback": position > 0}
    return ",".join(way for way, taken in ways.items() if taken)


def _body(sent: Sent) -> bytes | None:
    return sent.answer.body if isinstance(sent.answer, HttpReply) else None
