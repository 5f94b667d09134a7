"""Files and batches as OpenAI and Azure tell them."""

from __future__ import annotations

from typing import Any

from agac.simulator.batches import life
from agac.simulator.batches.records import Batch, File


def file_object(file: File) -> dict[str, Any]:
    """A file."""
    return {
        "object": "file",
        "id": file.id,
        "purpose": file.purpose,
        "filename": file.name,
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "expires_at": whole(file.expires_at),
        "status": "processed",
        "status_details": None,
    }


def batch_object(batch: Batch, now: float) -> dict[str, Any]:
    """A batch as it is, but for what its faults say of it."""
    state = life.word(batch, now)
    hidden = bool(life.masked(batch, now))
    ended: dict[str, int | None] = {f"{word}_at": None for word in ("completed", "failed", "expired", "cancelled")}
    if batch.ended and not hidden:
        ended[f"{batch.ended}_at"] = whole(batch.ended_at)
    closed = batch.ended in ("completed", "expired", "cancelled")
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": {"object": "list", "data": batch.errors} if batch.errors and not hidden else None,
        "input_file_id": batch.input_id,
        "completion_window": batch.window,
        "status": state,
        "output_file_id": None if hidden else batch.output_id,
        "error_file_id": None if hidden else batch.error_id,
        "created_at": int(batch.created_at),
        "in_progress_at": int(batch.created_at) if batch.validated and batch.ended != "failed" else None,
        "expires_at": whole(batch.expires_at or batch.created_at + 86_400),
        "finalizing_at": whole(batch.ended_at) if closed and not hidden else None,
        **ended,
        "cancelling_at": whole(batch.cancel_at),
        "request_counts": counts(batch),
        "metadata": None if batch.fault("batch_no_metadata") else batch.metadata,
        "usage": usage(batch) if batch.ended and not hidden else None,
    }


def counts(batch: Batch) -> dict[str, int | None]:
    """How many requests are done: what Azure does not say of a batch that failed."""
    if batch.ended == "failed" and batch.family == "azure":
        return {"total": None, "completed": None, "failed": None}
    if batch.fault("batch_counts_lie") and batch.ended:
        return {"total": batch.total, "completed": batch.total, "failed": 0}
    return {"total": batch.total, "completed": batch.good, "failed": batch.bad}


def usage(batch: Batch) -> dict[str, Any]:
    """What was charged."""
    return {
        "input_tokens": batch.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": batch.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": batch.prompt_tokens + batch.completion_tokens,
    }


def page(found: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page of a list, of which one more than fits was looked up."""
    data = found[:limit]
    ids = [item["id"] for item in data] or [None]
    return {"object": "list", "data": data, "first_id": ids[0], "last_id": ids[-1], "has_more": len(found) > limit}


def whole(seconds: float | None) -> int | None:
    """A time as the API tells it."""
    return None if seconds is None else int(seconds)
