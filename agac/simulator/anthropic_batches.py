"""Anthropic's message batches: how they are requested, and how they and their results read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, ClassVar

from agac.simulator import replies
from agac.simulator.anthropic import (
    ERROR_TYPES,
    MESSAGES,
    bad,
    check_version,
    message_error,
    moment,
    read_message_request,
)
from agac.simulator.api_errors import ApiError
from agac.simulator.batch_state import RESULTS_KEPT, Batch, BatchOrder, BatchRequest
from agac.simulator.kinds import Headers, JsonObject
from agac.simulator.model_calls import ModelCall, encoded, read_object
from agac.simulator.openai_batches import OpenAiBatches

MAX_BODY_BYTES = 256_000_000
MAX_REQUESTS = 100_000
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")

STATUSES = {
    "validating": "in_progress",
    "finalizing": "in_progress",
    "cancelling": "canceling",
    **dict.fromkeys(("completed", "expired", "cancelled", "failed"), "ended"),
}
"""Anthropic's words for OpenAI's statuses."""


def read_batched_request(params: JsonObject, seed: int) -> ModelCall:
    """Reads a request, in the service tier of batches."""
    call = read_message_request(params, seed)
    call.extras["service_tier"] = "batch"
    return call


class MessageBatches(OpenAiBatches):
    """Anthropic's batches: all results are in one file."""

    apis: ClassVar[dict[str, replies.ModelApi]] = {
        "/v1/messages": replace(MESSAGES, read_data=read_batched_request)
    }
    body_key = "params"
    bad_results = "output"
    foreign_line = b'{"custom_id":"nobody-asked-this","result":{"type":"expired"}}\n'
    results_purpose = "message_batch"
    id_prefix = "msgbatch_"
    page_parameter = "after_id"
    max_page = 1000
    page_frame: ClassVar[JsonObject] = {}
    headers = replies.MARK | {"request-id": "req_sim_batches"}

    def check_headers(self, headers: Headers) -> None:
        check_version(headers)

    def read_order(self, body: bytes) -> BatchOrder:
        return BatchOrder("/v1/messages", requests=split_requests(body))

    def good_line(self, request: BatchRequest, body: Any) -> bytes:
        return result_line(request, {"type": "succeeded", "message": body})

    def error_line(self, request: BatchRequest, error: ApiError) -> bytes:
        about = message_error(error) | {"request_id": f"req_{request.mark}"}
        return result_line(request, {"type": "errored", "error": about})

    def failed_line(self, request: BatchRequest, code: str, message: str) -> bytes:
        kind = code if code in ERROR_TYPES.values() else "timeout_error"
        return self.error_line(request, ApiError(408, message, code=kind))

    def zero_line(self, request: BatchRequest) -> bytes:
        # as near to saying nothing as Anthropic comes
        return self.error_line(request, ApiError(500, "Internal server error"))

    def unfinished_line(self, request: BatchRequest, ended: str) -> bytes:
        return result_line(request, {"type": left_over(ended)})

    def batch_object(self, batch: Batch, now: float, address: str) -> JsonObject:
        is_hidden = bool(batch.masked_status(now))
        status = batch.status(now)
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": STATUSES.get(status, status),
            "request_counts": request_counts(batch, is_open=is_hidden or not batch.ended),
            "created_at": moment(batch.created_at),
            "expires_at": moment(batch.expires_at),
            "ended_at": None if is_hidden else moment(batch.ended_at),
            "cancel_initiated_at": moment(batch.cancel_at),
            "archived_at": moment(archived_at(batch, now)),
            "results_url": None if is_hidden else results_url(batch, now, address),
        }

    def not_found(self, batch_id: str) -> ApiError:
        return ApiError(404, f"Message Batch {batch_id} not found.")

    def not_listed(self, batch_id: str) -> ApiError:
        return self.not_found(batch_id)

    def not_open(self, batch: Batch) -> ApiError:
        return ApiError(400, f"Message Batch {batch.id} has ended: it cannot be canceled.")

    def rejected(self, rule: JsonObject) -> ApiError:
        message = rule.get("message") or "The batch was rejected."
        return ApiError(400, message, code=rule.get("code"))

    def over_cap(self, model: str, max_tokens: int) -> ApiError:
        message = "Too many batch requests wait to be processed."
        return ApiError(429, message, code="rate_limit_exceeded")


def result_line(request: BatchRequest, result: JsonObject) -> bytes:
    return encoded({"custom_id": request.custom_id, "result": result}) + b"\n"


def left_over(ended: str) -> str:
    """Returns the word for requests that were not done when their batch ended."""
    return "expired" if ended == "expired" else "canceled"


def request_counts(batch: Batch, *, is_open: bool) -> dict[str, int]:
    """Returns how many requests are done, as Anthropic or a fault says."""
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    total = batch.total
    if batch.fault("batch_counts_short"):
        total = batch.total * 2 // 3
    if is_open:
        counts["processing"] = total  # all of them, until the whole batch has ended
    elif batch.fault("batch_counts_lie"):
        counts["succeeded"] = batch.total
    else:
        counts["succeeded"] = min(batch.good, total)
        counts["errored"] = batch.bad
        counts[left_over(batch.ended)] = batch.total - batch.executed
    return counts


def archived_at(batch: Batch, now: float) -> float | None:
    """Returns when the results were deleted, None as long as they exist."""
    if batch.ended and batch.fault("batch_gone"):
        return batch.ended_at
    kept_until = batch.created_at + RESULTS_KEPT
    return kept_until if now >= kept_until else None


def results_url(batch: Batch, now: float, address: str) -> str | None:
    """Returns the address of the results, None if there are none."""
    if not batch.ended or archived_at(batch, now) is not None or batch.fault("batch_null_output"):
        return None
    if batch.fault("batch_empty_output_id"):
        return ""
    return f"{address}/v1/messages/batches/{batch.id}/results"


def split_requests(body: bytes) -> list[bytes]:
    """Returns each request of a create's body as a line; raises ApiError for what is refused."""
    if len(body) > MAX_BODY_BYTES:
        message = f"Request exceeds the maximum size of {MAX_BODY_BYTES:,} bytes."
        raise ApiError(413, message, code="request_too_large")
    requests = read_object(body).get("requests")
    if requests is not None and not isinstance(requests, list):
        raise bad("requests", "Input should be a valid list")
    if not requests:
        raise bad("requests", "List should have at least 1 item")
    if len(requests) > MAX_REQUESTS:
        raise bad("requests", f"List should have at most {MAX_REQUESTS} items")
    seen: set[str] = set()
    for number, request in enumerate(requests):
        check_request(f"requests.{number}", request, seen)
    return [encoded(request) + b"\n" for request in requests]


def check_request(place: str, request: Any, seen: set[str]) -> None:
    """Raises ApiError for what Anthropic refuses at once.

    The `params` are checked when the request is done.
    """
    if not isinstance(request, dict):
        raise bad(place, "Input should be an object")
    for name in sorted(set(request) - {"custom_id", "params"}):
        raise bad(f"{place}.{name}", "Extra inputs are not permitted")
    for name in ("custom_id", "params"):
        if request.get(name) is None:
            raise bad(f"{place}.{name}", "Field required")
    custom_id = request["custom_id"]
    if not isinstance(custom_id, str) or not CUSTOM_ID.fullmatch(custom_id):
        raise bad(f"{place}.custom_id", f"String should match pattern '^{CUSTOM_ID.pattern}$'")
    if not isinstance(request["params"], dict):
        raise bad(f"{place}.params", "Input should be an object")
    if custom_id in seen:
        problem = f"custom_id {json.dumps(custom_id)} is not unique in the batch"
        raise bad(f"{place}.custom_id", problem)
    seen.add(custom_id)
