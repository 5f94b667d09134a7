"""Batches in the words of each provider: how requests are read, and how batches, files and result lines are written.

OpenAI and Azure have the same format; Anthropic has another one. The life cycle of a batch is the same for all three.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from agac.simulator import anthropic, openai
from agac.simulator.anthropic import message_error, utc_text
from agac.simulator.batch_store import DAY, RESULTS_KEPT, Batch, StoredFile
from agac.simulator.replies import ApiError, ModelAnswer, ModelCall, unknown_model

MAX_ERRORS = 100
MAX_ID_LENGTH = 64
MAX_INPUT_BYTES = 200_000_000
MAX_REQUESTS = {"openai": 50_000, "azure": 100_000}

EXPIRED = "This request could not be executed before the completion window expired."
CANCELLED = "This request was cancelled before it was executed."

dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
json_string = json.encoder.encode_basestring_ascii


def encoded(value: Any) -> bytes:
    """JSON as providers write results: letters as they are, but for halves of pairs, which UTF-8 does not have."""
    try:
        return dump(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def request_mark(batch: Batch, number: int) -> str:
    """A name for one request of a batch."""
    return blake2b(f"{batch.id}/{number}".encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class BatchEndpoint:
    """An API whose requests a batch may hold: how a body is read, how an answer is written."""

    read: Callable[[dict[str, Any], int], ModelCall]
    reply: Callable[[ModelCall, ModelAnswer], dict[str, Any]]


OPENAI_ENDPOINTS = {
    "/v1/chat/completions": BatchEndpoint(openai.read_chat, openai.chat_completion),
    "/v1/responses": BatchEndpoint(openai.read_response, openai.response),
}
"""What batches of OpenAI and Azure may request."""


class OpenAiBatchFamily:
    """OpenAI's batches, and Azure's: good results and others are in files of their own (not `one_file`).

    Result lines are bytes with their line end: of a request that was answered (`good_line`), got an error with a status
    (`error_line`), got no answer (`failed_line`), or was not done when its batch ended (`unfinished_line`). `body_key`
    is the key of a request's body, `foreign_line` a result line of a request that was never sent.
    """

    one_file = False
    foreign_line = (
        b'{"id":"batch_req_0","custom_id":"nobody-asked-this","response":{"status_code":200,"request_id":"req_0",'
        b'"body":{}},"error":null}\n'
    )
    body_key = "body"

    def endpoint(self, batch: Batch) -> BatchEndpoint:
        """What its requests call."""
        return OPENAI_ENDPOINTS.get(batch.endpoint) or OPENAI_ENDPOINTS[f"/v1{batch.endpoint}"]

    def good_line(self, batch: Batch, number: int, custom_id: str, body: bytes) -> bytes:
        return self._answered(batch, number, custom_id, 200, body)

    def _answered(self, batch: Batch, number: int, custom_id: str, status: int, body: bytes) -> bytes:
        name = request_mark(batch, number)
        head = (
            f'{{"id":"batch_req_{name}","custom_id":{json_string(custom_id)},"response":{{"status_code":{status},'
            f'"request_id":"req_{name}","body":'
        )
        return head.encode() + body + b'},"error":null}\n'

    def error_line(self, batch: Batch, number: int, custom_id: str, error: ApiError) -> bytes:
        return self._answered(batch, number, custom_id, error.status, json.dumps(openai.error_object(error)).encode())

    def _line(self, batch: Batch, number: int, custom_id: str, response: Any, error: Any) -> bytes:
        line = {"id": f"batch_req_{request_mark(batch, number)}", "custom_id": custom_id}
        return encoded(line | {"response": response, "error": error}) + b"\n"

    def failed_line(self, batch: Batch, number: int, custom_id: str, code: str, message: str) -> bytes:
        return self._line(batch, number, custom_id, None, {"code": code, "message": message})

    def zero_line(self, batch: Batch, number: int, custom_id: str) -> bytes:
        """A request about which the result says nothing: OpenAI's batches have had such lines."""
        return self._line(batch, number, custom_id, {"status_code": 0, "request_id": "", "body": {}}, None)

    def unfinished_line(self, batch: Batch, number: int, custom_id: str) -> bytes:
        expired = batch.ended == "expired"
        code, message = ("batch_expired", EXPIRED) if expired else ("batch_cancelled", CANCELLED)
        return self.failed_line(batch, number, custom_id, code, message)

    def batch_object(self, batch: Batch, now: float, address: str) -> dict[str, Any]:
        """A batch as it is, but for its faults; `address` is where the simulator is served."""
        hidden = bool(batch.masked_status(now))
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
            "status": batch.status(now),
            "output_file_id": None if hidden else batch.output_id,
            "error_file_id": None if hidden else batch.error_id,
            "created_at": int(batch.created_at),
            "in_progress_at": int(batch.created_at) if batch.validated and batch.ended != "failed" else None,
            "expires_at": whole(batch.expires_at or batch.created_at + DAY),
            "finalizing_at": whole(batch.ended_at) if closed and not hidden else None,
            **ended,
            "cancelling_at": whole(batch.cancel_at),
            "request_counts": request_counts(batch),
            "metadata": None if batch.fault("batch_no_metadata") else batch.metadata,
            "usage": batch_usage(batch) if batch.ended and not hidden else None,
        }

    def not_found(self, batch_id: str) -> ApiError:
        return ApiError(404, f"No batch found with id '{batch_id}'.", param="id")

    def not_open(self, batch: Batch) -> ApiError:
        return ApiError(400, f"Cannot cancel a batch with status '{batch.ended}'.")


def whole(seconds: float | None) -> int | None:
    """A time as OpenAI writes it."""
    return None if seconds is None else int(seconds)


def request_counts(batch: Batch) -> dict[str, int | None]:
    """How many requests are done: Azure does not say it of a batch that failed."""
    if batch.ended == "failed" and batch.family == "azure":
        return {"total": None, "completed": None, "failed": None}
    if batch.fault("batch_counts_lie") and batch.ended:
        return {"total": batch.total, "completed": batch.total, "failed": 0}
    return {"total": batch.total, "completed": batch.good, "failed": batch.bad}


def batch_usage(batch: Batch) -> dict[str, Any]:
    """The charged tokens."""
    return {
        "input_tokens": batch.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": batch.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": batch.prompt_tokens + batch.completion_tokens,
    }


def file_object(file: StoredFile) -> dict[str, Any]:
    """A file as OpenAI and Azure write it."""
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


MESSAGE_STATUSES = {
    "validating": "in_progress",
    "finalizing": "in_progress",
    "cancelling": "canceling",
    **dict.fromkeys(("completed", "expired", "cancelled", "failed"), "ended"),
}
"""Anthropic's words for OpenAI's statuses."""


class MessageBatchFamily:
    """Anthropic's batches, with the same members: all results are in one file."""

    one_file = True
    foreign_line = b'{"custom_id":"nobody-asked-this","result":{"type":"expired"}}\n'
    body_key = "params"

    def endpoint(self, batch: Batch) -> BatchEndpoint:
        """The Messages API: what may be requested depends on the version that the batch was created with."""

        def read(params: dict[str, Any], seed: int) -> ModelCall:
            call = anthropic.read_message_request(params, seed, batch.endpoint)
            call.extras["service_tier"] = "batch"
            return call

        return BatchEndpoint(read, anthropic.message_object)

    def good_line(self, batch: Batch, number: int, custom_id: str, body: bytes) -> bytes:
        head = f'{{"custom_id":{json_string(custom_id)},"result":{{"type":"succeeded","message":'
        return head.encode() + body + b"}}\n"

    def _line(self, custom_id: str, result: dict[str, Any]) -> bytes:
        return encoded({"custom_id": custom_id, "result": result}) + b"\n"

    def error_line(self, batch: Batch, number: int, custom_id: str, error: ApiError) -> bytes:
        about = message_error(error) | {"request_id": f"req_{request_mark(batch, number)}"}
        return self._line(custom_id, {"type": "errored", "error": about})

    def failed_line(self, batch: Batch, number: int, custom_id: str, code: str, message: str) -> bytes:
        kind = code if code in anthropic.ERROR_TYPES.values() else "timeout_error"
        return self.error_line(batch, number, custom_id, ApiError(408, message, code=kind))

    def zero_line(self, batch: Batch, number: int, custom_id: str) -> bytes:
        """A request about which the result says nothing, as near to it as Anthropic comes."""
        return self.error_line(batch, number, custom_id, ApiError(500, "Internal server error"))

    def unfinished_line(self, batch: Batch, number: int, custom_id: str) -> bytes:
        return self._line(custom_id, {"type": "expired" if batch.ended == "expired" else "canceled"})

    def batch_object(self, batch: Batch, now: float, address: str) -> dict[str, Any]:
        hidden = bool(batch.masked_status(now))
        status = batch.status(now)
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": MESSAGE_STATUSES.get(status, status),
            "request_counts": message_counts(batch, hidden=hidden),
            "created_at": moment(batch.created_at),
            "expires_at": moment(batch.expires_at),
            "ended_at": None if hidden else moment(batch.ended_at),
            "cancel_initiated_at": moment(batch.cancel_at),
            "archived_at": moment(archived_at(batch, now)),
            "results_url": None if hidden else results_url(batch, now, address),
        }

    def not_found(self, batch_id: str) -> ApiError:
        return ApiError(404, f"Message Batch {batch_id} not found.")

    def not_open(self, batch: Batch) -> ApiError:
        return ApiError(400, f"Message Batch {batch.id} has ended: it cannot be canceled.")


def message_counts(batch: Batch, *, hidden: bool) -> dict[str, int]:
    """How many requests came to what: all of them are processing until the whole batch has ended."""
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if not batch.ended or hidden:
        return counts | {"processing": batch.total}
    if batch.fault("batch_counts_lie"):
        return counts | {"succeeded": batch.total}
    left = "expired" if batch.ended == "expired" else "canceled"
    return counts | {"succeeded": batch.good, "errored": batch.bad, left: batch.total - batch.executed}


def archived_at(batch: Batch, now: float) -> float | None:
    """When its results were deleted, None as long as they exist."""
    if batch.ended and batch.fault("batch_gone"):
        return batch.ended_at
    return batch.created_at + RESULTS_KEPT if now >= batch.created_at + RESULTS_KEPT else None


def results_url(batch: Batch, now: float, address: str) -> str | None:
    """The address of its results, None if there are none."""
    if not batch.ended or archived_at(batch, now) is not None or batch.fault("batch_null_output"):
        return None
    return "" if batch.fault("batch_empty_output_id") else f"{address}/v1/messages/batches/{batch.id}/results"


def moment(seconds: float | None) -> str | None:
    """A time as Anthropic writes it."""
    return None if seconds is None else utc_text(seconds, "microseconds")


BatchFamily = OpenAiBatchFamily | MessageBatchFamily
OPENAI_FAMILY = OpenAiBatchFamily()
FAMILIES: dict[str, BatchFamily] = {
    "openai": OPENAI_FAMILY,
    "azure": OPENAI_FAMILY,
    "anthropic": MessageBatchFamily(),
}
"""The format of each family of batches."""


class CheckedInput(NamedTuple):
    """What a check found: errors as a batch lists them, or the count of requests, their model and their tokens."""

    errors: list[dict[str, Any]]
    total: int = 0
    model: str = ""
    tokens: int = 0


def input_problem(code: str, message: str, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    """An error as a batch lists it."""
    return {"code": code, "line": line, "message": message, "param": param}


def check_input(path: Path, batch: Batch) -> CheckedInput:
    """Reads the whole input of OpenAI's or Azure's batch in one pass, as these do once they have accepted the batch.
    Only the ids of its requests are held."""
    limit = MAX_REQUESTS[batch.family]
    if path.stat().st_size > MAX_INPUT_BYTES:
        message = f"The batch input file is larger than {MAX_INPUT_BYTES:,} bytes."
        return CheckedInput([input_problem("file_too_large", message)])
    errors: list[dict[str, Any]] = []
    checker = InputChecker(batch.endpoint)
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            if number > limit:
                message = f"The file holds more than {limit:,} requests, the most."
                return CheckedInput([input_problem("too_many_tasks", message)])
            errors += checker.line_problems(number, raw)
            if len(errors) >= MAX_ERRORS:
                break
    if not checker.written:
        errors = [input_problem("empty_file", "The batch input file is empty.")]
    if not errors and "missing" in checker.model:
        errors = [input_problem("model_not_found", unknown_model(checker.model).message, 1, "body.model")]
    return CheckedInput(errors) if errors else CheckedInput([], len(checker.ids), checker.model, checker.tokens)


class InputChecker:
    """One pass over an input: what was seen so far."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.ids: set[int] = set()
        self.written = False
        self.model = ""
        self.tokens = 0

    def line_problems(self, number: int, raw: bytes) -> Iterator[dict[str, Any]]:
        """What is wrong with a line, nothing for a good one."""
        self.written = self.written or not raw.isspace()
        try:
            line = json.loads(raw.decode())  # a byte order mark is not JSON
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            yield input_problem("invalid_json_line", "This line is not parseable as valid JSON.", number)
            return
        for name in ("custom_id", "method", "url", "body"):
            if not line.get(name):
                yield input_problem(
                    "missing_required_parameter", f"Missing required parameter: '{name}'.", number, name
                )
                return
        yield from self._id_problems(number, line["custom_id"])
        if line["method"] != "POST":
            yield input_problem("invalid_method", "Invalid 'method': expected 'POST'.", number, "method")
        if line["url"] != self.endpoint:
            message = f"The URL provided for this request does not match the batch endpoint {self.endpoint}."
            yield input_problem("url_mismatch", message, number, "url")
        yield from self._body_problems(number, line["body"])
        self.tokens += len(raw) // 4

    def _id_problems(self, number: int, custom_id: Any) -> Iterator[dict[str, Any]]:
        if not isinstance(custom_id, str) or len(custom_id) > MAX_ID_LENGTH:
            message = f"Invalid 'custom_id': expected a string of at most {MAX_ID_LENGTH} characters."
            yield input_problem("invalid_custom_id", message, number, "custom_id")
            return
        known = hash(custom_id)
        if known in self.ids:
            message = f"The custom_id '{custom_id}' for this request is a duplicate of another request. "
            yield input_problem("duplicate_custom_id", message + "Every custom_id must be unique.", number, "custom_id")
        self.ids.add(known)

    def _body_problems(self, number: int, body: Any) -> Iterator[dict[str, Any]]:
        model = body.get("model") if isinstance(body, dict) else None
        if not isinstance(model, str) or not model:
            yield input_problem("invalid_request", "Invalid 'body': expected an object with a 'model'.", number, "body")
            return
        self.model = self.model or model
        if model != self.model:
            message = f"The model '{model}' does not match '{self.model}': all requests of a batch ask the same model."
            yield input_problem("model_mismatch", message, number, "body.model")
