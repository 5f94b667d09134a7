"""Batches as Anthropic tells them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from agac.simulator import anthropicwire
from agac.simulator.asks import ApiError
from agac.simulator.batches import life
from agac.simulator.batches.records import RESULTS_KEPT, Batch
from agac.simulator.outlets import MARK

WORDS = {"validating": "in_progress", "finalizing": "in_progress", "cancelling": "canceling"} | dict.fromkeys(
    ("completed", "expired", "cancelled", "failed"), "ended"
)
"""Anthropic's words for OpenAI's states."""


def batch_object(batch: Batch, now: float, address: str) -> dict[str, Any]:
    """A batch as it is, but for what its faults say of it; `address` is where it is served."""
    hidden = bool(life.masked(batch, now))
    word = life.word(batch, now)
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": WORDS.get(word, word),
        "request_counts": counts(batch, hidden=hidden),
        "created_at": moment(batch.created_at),
        "expires_at": moment(batch.expires_at),
        "ended_at": None if hidden else moment(batch.ended_at),
        "cancel_initiated_at": moment(batch.cancel_at),
        "archived_at": moment(archived(batch, now)),
        "results_url": None if hidden else results_url(batch, now, address),
    }


def counts(batch: Batch, *, hidden: bool) -> dict[str, int]:
    """How many requests came to what: all of them are processing until the whole batch has ended."""
    told = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if not batch.ended or hidden:
        return told | {"processing": batch.total}
    if batch.fault("batch_counts_lie"):
        return told | {"succeeded": batch.total}
    left = "expired" if batch.ended == "expired" else "canceled"
    return told | {"succeeded": batch.good, "errored": batch.bad, left: batch.total - batch.executed}


def archived(batch: Batch, now: float) -> float | None:
    """When its results were deleted, None while they are there."""
    if batch.ended and batch.fault("batch_gone"):
        return batch.ended_at
    return batch.created_at + RESULTS_KEPT if now >= batch.created_at + RESULTS_KEPT else None


def results_url(batch: Batch, now: float, address: str) -> str | None:
    """Where its results are, None where there are none."""
    if not batch.ended or archived(batch, now) is not None or batch.fault("batch_null_output"):
        return None
    return "" if batch.fault("batch_empty_output_id") else f"{address}/v1/messages/batches/{batch.id}/results"


def moment(seconds: float | None) -> str | None:
    """A time as RFC 3339 writes it."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def address(request: web.Request) -> str:
    """Where the simulator is served, as the client sees it."""
    return f"{request.scheme}://{request.host}"


def headers() -> dict[str, str]:
    """What every answer is marked with."""
    return MARK | {"request-id": "req_sim_batches"}


def refuse(error: ApiError) -> web.Response:
    """An error as Anthropic writes it."""
    told = headers() | error.headers
    return web.Response(
        status=error.status, body=anthropicwire.error_body(error), content_type="application/json", headers=told
    )
