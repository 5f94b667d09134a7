"""What comes in for batches: uploaded files and what is wrong in them, and the requests that create batches."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from aiohttp import web

from agac.simulator.anthropic import bad
from agac.simulator.batch_store import Batch
from agac.simulator.openai import OPENAI_ENDPOINTS, missing
from agac.simulator.replies import ApiError, encoded, read_object, unknown_model

MAX_FILE_BYTES = 512 * 2**20
MAX_BODY_BYTES = 256_000_000
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")
MIN_KEPT_S, MAX_KEPT_S = 3600, 2_592_000

CREATE_PARAMETERS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
MAX_PAIRS, MAX_KEY_LENGTH, MAX_VALUE_LENGTH = 16, 64, 512

MAX_ERRORS = 100
MAX_ID_LENGTH = 64
MAX_INPUT_BYTES = 200_000_000
MAX_REQUESTS = {"openai": 50_000, "azure": 100_000}
MAX_MESSAGE_REQUESTS = 100_000
ID_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class Upload(NamedTuple):
    """A file that came in: its bytes, its name and purpose, and for how many seconds it is to be kept, None if nothing
    was said."""

    content: IO[bytes]
    name: str
    purpose: str
    kept_seconds: float | None


async def read_upload(http: web.Request) -> Upload:
    """The file of a multipart body; raises ApiError for an upload that OpenAI refuses."""
    try:
        fields = await http.post()
    except web.HTTPRequestEntityTooLarge as wrong:
        message = f"The file is larger than {MAX_FILE_BYTES:,} bytes, the most."
        raise ApiError(413, message, code="file_too_large") from wrong
    except ValueError as wrong:
        raise ApiError(400, f"We could not parse the multipart body: {wrong}") from wrong
    file, purpose = fields.get("file"), fields.get("purpose")
    if not isinstance(file, web.FileField):
        raise missing("file")
    if not purpose:
        raise missing("purpose")
    if not isinstance(purpose, str) or purpose not in PURPOSES:
        known = ", ".join(f"'{one}'" for one in PURPOSES)
        raise ApiError(400, f"'{purpose!s}' is not one of [{known}] - 'purpose'", param="purpose")
    if purpose == "batch" and not file.filename.endswith(".jsonl"):
        raise ApiError(400, f"Invalid file format for Batch API: '{file.filename}'. Must be .jsonl", param="file")
    if not file.file.seek(0, os.SEEK_END):
        raise ApiError(400, "The file is empty.", param="file")
    file.file.seek(0)
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    unsaid = anchor is None and seconds is None
    kept_seconds = None if unsaid else read_kept_seconds(anchor, seconds, "expires_after")
    return Upload(file.file, file.filename, purpose, kept_seconds)


def read_kept_seconds(anchor: object, seconds: object, param: str) -> float:
    """How long something is kept after its creation; raises ApiError."""
    if anchor != "created_at":
        raise ApiError(400, f"Invalid '{param}.anchor': expected 'created_at'.", param=f"{param}.anchor")
    try:
        kept = int(str(seconds))
    except ValueError:
        kept = 0
    if not MIN_KEPT_S <= kept <= MAX_KEPT_S:
        message = f"Invalid '{param}.seconds': expected an integer from {MIN_KEPT_S} to {MAX_KEPT_S}."
        raise ApiError(400, message, param=f"{param}.seconds")
    return float(kept)


def read_order(data: dict[str, Any], family: str) -> dict[str, Any]:
    """The body of a create at OpenAI or Azure as fields of a Batch; raises ApiError. Azure also takes endpoints without
    their version."""
    for name in CREATE_PARAMETERS[:3]:
        if not isinstance(data.get(name), str) or not data[name]:
            raise missing(name)
    if unknown := sorted(set(data) - set(CREATE_PARAMETERS)):
        raise ApiError(400, f"Unknown parameter: '{unknown[0]}'.", code="unknown_parameter", param=unknown[0])
    endpoint = data["endpoint"]
    if endpoint not in OPENAI_ENDPOINTS and not (family == "azure" and f"/v1{endpoint}" in OPENAI_ENDPOINTS):
        known = " and ".join(f"'{one}'" for one in OPENAI_ENDPOINTS)
        message = f"Invalid value: '{endpoint}'. Supported values are: {known}."
        raise ApiError(400, message, code="invalid_value", param="endpoint")
    if data["completion_window"] != "24h":
        message = f"Invalid value: '{data['completion_window']}'. Value must be '24h'."
        raise ApiError(400, message, code="invalid_value", param="completion_window")
    kept = data.get("output_expires_after")
    if kept is not None and not isinstance(kept, dict):
        raise ApiError(400, "Invalid 'output_expires_after': expected an object.", param="output_expires_after")
    metadata = data.get("metadata")
    if (problem := metadata_problem(metadata)) is not None:
        raise ApiError(400, f"Invalid 'metadata': {problem}.", param="metadata")
    if kept is not None:
        kept = read_kept_seconds(kept.get("anchor"), kept.get("seconds"), "output_expires_after")
    return {"endpoint": endpoint, "input_id": data["input_file_id"], "metadata": metadata, "kept_seconds": kept}


def metadata_problem(metadata: Any) -> str | None:
    """What is wrong with metadata, which is pairs of texts."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        return "expected an object of strings"
    if len(metadata) > MAX_PAIRS:
        return f"too many properties: {len(metadata)}, at most {MAX_PAIRS}"
    if any(len(key) > MAX_KEY_LENGTH or len(value) > MAX_VALUE_LENGTH for key, value in metadata.items()):
        return f"keys have at most {MAX_KEY_LENGTH} characters, values at most {MAX_VALUE_LENGTH}"
    return None


def input_problem(code: str, message: str, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    """An error as a batch lists it."""
    return {"code": code, "line": line, "message": message, "param": param}


class CheckedInput:
    """The input of OpenAI's or Azure's batch, read in one pass, as these do once they have accepted the batch: `errors`
    as a batch lists them, the count of requests, their model and their tokens. Only the ids of its requests are held.
    """

    def __init__(self, path: Path, batch: Batch) -> None:
        self.endpoint = batch.endpoint
        self.errors: list[dict[str, Any]] = []
        self.model = ""
        self.tokens = 0
        self._ids: set[int] = set()
        if path.stat().st_size > MAX_INPUT_BYTES:
            message = f"The batch input file is larger than {MAX_INPUT_BYTES:,} bytes."
            self.errors = [input_problem("file_too_large", message)]
            return
        written, limit = False, MAX_REQUESTS[batch.family]
        with path.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                if number > limit:
                    message = f"The file holds more than {limit:,} requests, the most."
                    self.errors = [input_problem("too_many_tasks", message)]
                    return
                written = written or not raw.isspace()
                self.errors += self._line_problems(number, raw)
                if len(self.errors) >= MAX_ERRORS:
                    break
        if not written:
            self.errors = [input_problem("empty_file", "The batch input file is empty.")]
        if not self.errors and "missing" in self.model:
            self.errors = [input_problem("model_not_found", unknown_model(self.model).message, 1, "body.model")]

    @property
    def total(self) -> int:
        """How many requests there are."""
        return len(self._ids)

    def _line_problems(self, number: int, raw: bytes) -> Iterator[dict[str, Any]]:
        """What is wrong with a line, nothing for a good one."""
        try:
            line = json.loads(raw.decode())  # a byte order mark is not JSON
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            yield input_problem("invalid_json_line", "This line is not parseable as valid JSON.", number)
            return
        if lacking := [name for name in ("custom_id", "method", "url", "body") if not line.get(name)]:
            message = f"Missing required parameter: '{lacking[0]}'."
            yield input_problem("missing_required_parameter", message, number, lacking[0])
            return
        custom_id, body = line["custom_id"], line["body"]
        if not isinstance(custom_id, str) or len(custom_id) > MAX_ID_LENGTH:
            message = f"Invalid 'custom_id': expected a string of at most {MAX_ID_LENGTH} characters."
            yield input_problem("invalid_custom_id", message, number, "custom_id")
        elif hash(custom_id) in self._ids:
            message = f"The custom_id '{custom_id}' for this request is a duplicate of another request. "
            yield input_problem("duplicate_custom_id", message + "Every custom_id must be unique.", number, "custom_id")
        else:
            self._ids.add(hash(custom_id))
        if line["method"] != "POST":
            yield input_problem("invalid_method", "Invalid 'method': expected 'POST'.", number, "method")
        if line["url"] != self.endpoint:
            message = f"The URL provided for this request does not match the batch endpoint {self.endpoint}."
            yield input_problem("url_mismatch", message, number, "url")
        model = body.get("model") if isinstance(body, dict) else None
        if not isinstance(model, str) or not model:
            yield input_problem("invalid_request", "Invalid 'body': expected an object with a 'model'.", number, "body")
        elif model != (self.model or model):
            message = f"The model '{model}' does not match '{self.model}': all requests of a batch ask the same model."
            yield input_problem("model_mismatch", message, number, "body.model")
        else:
            self.model = model
        self.tokens += len(raw) // 4


def split_requests(body: bytes) -> list[bytes]:
    """Each request of Anthropic's body as a line. Raises ApiError for what it refuses."""
    if len(body) > MAX_BODY_BYTES:
        message = f"Request exceeds the maximum size of {MAX_BODY_BYTES:,} bytes."
        raise ApiError(413, message, code="request_too_large")
    requests = read_object(body).get("requests")
    if requests is not None and not isinstance(requests, list):
        raise bad("requests", "Input should be a valid list")
    if not requests:
        raise bad("requests", "List should have at least 1 item")
    if len(requests) > MAX_MESSAGE_REQUESTS:
        raise bad("requests", f"List should have at most {MAX_MESSAGE_REQUESTS} items")
    seen: set[str] = set()
    for number, request in enumerate(requests):
        check_request(f"requests.{number}", request, seen)
    return [encoded(request) + b"\n" for request in requests]


def check_request(place: str, request: Any, seen: set[str]) -> None:
    """Raises ApiError for what Anthropic refuses at once; the `params` are checked only when the request is done."""
    if not isinstance(request, dict):
        raise bad(place, "Input should be an object")
    for name in sorted(set(request) - {"custom_id", "params"}):
        raise bad(f"{place}.{name}", "Extra inputs are not permitted")
    for name in ("custom_id", "params"):
        if request.get(name) is None:
            raise bad(f"{place}.{name}", "Field required")
    custom_id = request["custom_id"]
    if not isinstance(custom_id, str) or not custom_id:
        raise bad(f"{place}.custom_id", "String should have at least 1 character")
    if len(custom_id) > MAX_ID_LENGTH:
        raise bad(f"{place}.custom_id", f"String should have at most {MAX_ID_LENGTH} characters")
    if not set(custom_id) <= ID_LETTERS:
        raise bad(f"{place}.custom_id", "String should match pattern '^[a-zA-Z0-9_-]{1,64}$'")
    if not isinstance(request["params"], dict):
        raise bad(f"{place}.params", "Input should be an object")
    if custom_id in seen:
        raise bad(f"{place}.custom_id", f"custom_id {json.dumps(custom_id)} is not unique in the batch")
    seen.add(custom_id)
