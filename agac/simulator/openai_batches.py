"""OpenAI's batches, and Azure's: how they are checked, and how they and their results read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from agac.simulator import chat, replies
from agac.simulator.api_errors import ApiError, invalid, missing, unknown_model
from agac.simulator.batch_state import DAY, Batch, BatchOrder, BatchRequest
from agac.simulator.batch_store import StoredFile
from agac.simulator.kinds import Headers, JsonObject, as_object
from agac.simulator.model_calls import encoded, read_object
from agac.simulator.openai import RESPONSES

CREATE_PARAMETERS = ("input_file_id", "endpoint", "completion_window", "metadata")
MAX_METADATA = 16
MAX_KEY_LENGTH = 64
MAX_VALUE_LENGTH = 512

MAX_ERRORS = 100
MAX_ID_LENGTH = 64
MAX_INPUT_BYTES = 200_000_000
MAX_REQUESTS = {"openai": 50_000, "azure": 100_000}


class OpenAiBatches:
    """OpenAI's batches, and Azure's. Lines of results are bytes with their line end."""

    apis: ClassVar[dict[str, replies.ModelApi]] = {
        "/v1/chat/completions": chat.CHAT,
        "/v1/responses": RESPONSES,
    }
    """the APIs that batches may request"""
    body_key = "body"
    """the key of a request's body in its line"""
    bad_results = "errors"
    """where results go that are not good: to errors, a file of their own, or to the output"""
    foreign_line = (
        b'{"id":"batch_req_0","custom_id":"nobody-asked-this",'
        b'"response":{"status_code":200,"request_id":"req_0","body":{}},"error":null}\n'
    )
    """the result line of a request that was never sent"""
    results_purpose = "batch_output"
    id_prefix = "batch_"
    page_parameter = "after"
    """the parameter of a list that names the last batch of the page before"""
    max_page = 100
    page_frame: ClassVar[JsonObject] = {"object": "list"}
    """what a list has besides its page"""
    headers = replies.MARK
    """headers of files and errors"""

    def check_headers(self, headers: Headers) -> None:
        """Raises ApiError for a call without a header that is required: here none is."""

    def read_order(self, body: bytes) -> BatchOrder:
        """Reads the body of a create; raises ApiError."""
        return read_order(read_object(body))

    def good_line(self, request: BatchRequest, body: Any) -> bytes:
        return answered_line(request, 200, body)

    def error_line(self, request: BatchRequest, error: ApiError) -> bytes:
        """Returns the line of a request that got an error with a status."""
        return answered_line(request, error.status, chat.error_object(error))

    def failed_line(self, request: BatchRequest, code: str, message: str) -> bytes:
        """Returns the line of a request that got no response."""
        return result_line(request, None, {"code": code, "message": message})

    def zero_line(self, request: BatchRequest) -> bytes:
        """Returns the line of a request about which the result says nothing."""
        # OpenAI's batches have had such lines
        return result_line(request, {"status_code": 0, "request_id": "", "body": {}})

    def unfinished_line(self, request: BatchRequest, ended: str) -> bytes:
        """Returns the line of a request that was not done when its batch ended."""
        message = "This request was cancelled before it was executed."
        if ended == "expired":
            message = "This request could not be executed before the completion window expired."
        return self.failed_line(request, f"batch_{ended}", message)

    def batch_object(self, batch: Batch, now: float, address: str) -> JsonObject:
        """Returns a batch as its faults show it; `address` is where the simulator is served."""
        is_running = batch.validated and batch.ended != "failed"
        unknown = (
            "errors output_file_id error_file_id finalizing_at completed_at failed_at expired_at "
            "cancelled_at usage"
        )
        return {
            **dict.fromkeys(unknown.split()),
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "model": batch.model or None,
            "input_file_id": batch.input_id,
            "completion_window": "24h",
            "status": batch.status(now),
            "created_at": int(batch.created_at),
            "in_progress_at": int(batch.created_at) if is_running else None,
            "expires_at": whole(batch.expires_at or batch.created_at + DAY),
            "cancelling_at": whole(batch.cancel_at),
            "request_counts": request_counts(batch),
            "metadata": None if batch.fault("batch_no_metadata") else batch.metadata,
            **({} if batch.masked_status(now) else end_fields(batch)),
        }

    def not_found(self, batch_id: str) -> ApiError:
        return ApiError(404, f"No batch found with id '{batch_id}'.", param="id")

    def not_listed(self, batch_id: str) -> ApiError:
        """Returns the refusal of a page that begins after a batch that does not exist."""
        return ApiError(400, f"Invalid 'after': no such batch: {batch_id}", param="after")

    def not_open(self, batch: Batch) -> ApiError:
        """Returns the refusal to cancel a batch that has ended."""
        return ApiError(400, f"Cannot cancel a batch with status '{batch.ended}'.")

    def rejected(self, rule: JsonObject) -> ApiError:
        """Returns the refusal of a batch by the fault `batch_reject`."""
        message = rule.get("message") or "The batch was rejected."
        return ApiError(400, message, code=rule.get("code") or "invalid_request")

    def over_cap(self, model: str, max_tokens: int) -> ApiError:
        """Returns the refusal of a batch for the tokens that wait in others."""
        message = (
            f"Enqueued token limit reached for {model}. Limit: {max_tokens:,} enqueued tokens. "
            "Please try again once some batches have completed."
        )
        return ApiError(429, message, code="token_limit_exceeded")


def answered_line(request: BatchRequest, status: int, body: Any) -> bytes:
    about = {"status_code": status, "request_id": f"req_{request.mark}", "body": body}
    return result_line(request, about)


def result_line(request: BatchRequest, answer: Any, error: Any = None) -> bytes:
    line = {
        "id": f"batch_req_{request.mark}",
        "custom_id": request.custom_id,
        "response": answer,
        "error": error,
    }
    return encoded(line) + b"\n"


def end_fields(batch: Batch) -> JsonObject:
    """Returns the fields of a batch that its end sets."""
    fields: JsonObject = {"output_file_id": batch.output_id, "error_file_id": batch.error_id}
    if batch.errors:
        fields["errors"] = {"object": "list", "data": batch.errors}
    if batch.ended:
        fields[f"{batch.ended}_at"] = whole(batch.ended_at)
        fields["usage"] = batch_usage(batch)
    if batch.ended in ("completed", "expired", "cancelled"):
        fields["finalizing_at"] = whole(batch.ended_at)
    return fields


def batch_usage(batch: Batch) -> JsonObject:
    return {
        "input_tokens": batch.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": batch.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": batch.prompt_tokens + batch.completion_tokens,
    }


def request_counts(batch: Batch) -> dict[str, int | None]:
    """Returns how many requests are done, as the provider or a fault says."""
    if batch.ended == "failed" and batch.family == "azure":
        return {"total": None, "completed": None, "failed": None}  # Azure says nothing of those
    counts: dict[str, int | None]
    counts = {"total": batch.total, "completed": batch.good, "failed": batch.bad}
    if batch.fault("batch_counts_lie") and batch.ended:
        counts |= {"completed": batch.total, "failed": 0}
    if batch.fault("batch_counts_short"):
        counts["total"] = batch.total * 2 // 3
    return counts


def whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)


def file_object(file: StoredFile) -> JsonObject:
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


def read_order(data: JsonObject) -> BatchOrder:
    """Reads the body of a create; raises ApiError."""
    for name in CREATE_PARAMETERS[:3]:
        if not isinstance(data.get(name), str) or not data[name]:
            raise missing(name)
    for name in sorted(set(data) - set(CREATE_PARAMETERS)):
        message = f"Unknown parameter: '{name}'."
        raise ApiError(400, message, code="unknown_parameter", param=name)
    endpoint = data["endpoint"]
    if endpoint not in OpenAiBatches.apis:
        raise invalid("endpoint", " or ".join(OpenAiBatches.apis), "invalid_value")
    if data["completion_window"] != "24h":
        raise invalid("completion_window", "'24h'", "invalid_value")
    metadata = data.get("metadata")
    if metadata is not None:
        check_metadata(metadata)
    return BatchOrder(endpoint, data["input_file_id"], metadata)


def check_metadata(metadata: Any) -> None:
    """Raises ApiError for metadata that OpenAI refuses."""
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise invalid("metadata", "an object of strings")
    fits = len(metadata) <= MAX_METADATA and all(
        len(key) <= MAX_KEY_LENGTH and len(value) <= MAX_VALUE_LENGTH
        for key, value in metadata.items()
    )
    if not fits:
        limits = (
            f"at most {MAX_METADATA} properties, with keys of at most {MAX_KEY_LENGTH} characters "
            f"and values of at most {MAX_VALUE_LENGTH}"
        )
        raise invalid("metadata", limits)


def input_problem(
    code: str | None, message: str, line: int | None = None, param: str | None = None
) -> JsonObject:
    """Returns one of a batch's `errors`."""
    return {"code": code, "line": line, "message": message, "param": param}


class CheckedInput:
    """The input of a batch, read in one pass."""

    def __init__(self, path: Path, batch: Batch) -> None:
        self.endpoint = batch.endpoint
        self.errors: list[JsonObject] = []
        self.model = ""
        self.tokens = 0
        self.ids: set[int] = set()
        """the hashes of its requests' ids"""
        if path.stat().st_size > MAX_INPUT_BYTES:
            message = f"The batch input file is larger than {MAX_INPUT_BYTES:,} bytes."
            self.errors = [input_problem("file_too_large", message)]
            return
        self._read(path, MAX_REQUESTS[batch.family])
        if not self.errors and "missing" in self.model:
            message = unknown_model(self.model).message
            self.errors = [input_problem("model_not_found", message, 1, "body.model")]

    def _read(self, path: Path, max_requests: int) -> None:
        is_empty = True
        with path.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                if number > max_requests:
                    message = f"The file holds more than {max_requests:,} requests, the most."
                    self.errors = [input_problem("too_many_tasks", message)]
                    return
                is_empty = is_empty and raw.isspace()
                self.errors += self._line_problems(number, raw)
                if len(self.errors) >= MAX_ERRORS:
                    break
        if is_empty:
            self.errors = [input_problem("empty_file", "The batch input file is empty.")]

    def _line_problems(self, number: int, raw: bytes) -> Iterator[JsonObject]:
        line = read_line(raw)
        if line is None:
            message = "This line is not parseable as valid JSON."
            yield input_problem("invalid_json_line", message, number)
            return
        for name in ("custom_id", "method", "url", "body"):
            if not line.get(name):
                message = f"Missing required parameter: '{name}'."
                yield input_problem("missing_required_parameter", message, number, name)
                return
        yield from (
            input_problem(code, message, number, param)
            for param, code, message in self._value_problems(**line)
        )
        self.tokens += len(raw) // 4

    def _value_problems(
        self, custom_id: Any, method: Any, url: Any, body: Any, **others: Any
    ) -> Iterator[tuple[str, str, str]]:
        """Gives what is wrong with a line: the parameter, the code, and the message."""
        if not isinstance(custom_id, str) or len(custom_id) > MAX_ID_LENGTH:
            message = (
                f"Invalid 'custom_id': expected a string of at most {MAX_ID_LENGTH} characters."
            )
            yield "custom_id", "invalid_custom_id", message
        elif hash(custom_id) in self.ids:
            message = (
                f"The custom_id '{custom_id}' for this request is a duplicate of another request. "
                "Every custom_id must be unique."
            )
            yield "custom_id", "duplicate_custom_id", message
        else:
            self.ids.add(hash(custom_id))
        if method != "POST":
            yield "method", "invalid_method", "Invalid 'method': expected 'POST'."
        if url != self.endpoint:
            message = (
                "The URL provided for this request does not match the batch endpoint "
                f"{self.endpoint}."
            )
            yield "url", "url_mismatch", message
        model = as_object(body).get("model")
        if not isinstance(model, str) or not model:
            yield "body", "invalid_request", "Invalid 'body': expected an object with a 'model'."
        elif self.model and model != self.model:
            message = (
                f"The model '{model}' does not match '{self.model}': "
                "all requests of a batch ask the same model."
            )
            yield "body.model", "model_mismatch", message
        else:
            self.model = model


def read_line(raw: bytes) -> JsonObject | None:
    """Returns the object in a line, None if there is none. A byte order mark is not JSON."""
    try:
        line = json.loads(raw.decode())
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None
