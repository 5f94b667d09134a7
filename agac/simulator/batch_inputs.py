"""What comes in for batches: uploaded files and what is wrong in them, the requests that create batches, and
Anthropic's large bodies."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from aiohttp import BodyPartReader, web

from agac.simulator.anthropic import bad
from agac.simulator.batch_store import Batch
from agac.simulator.openai import OPENAI_ENDPOINTS, missing
from agac.simulator.replies import ApiError, unknown_model

UPLOAD_PIECE = 2**18
MAX_FILE_BYTES = 512 * 2**20
MAX_FIELD_BYTES = 10_000
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

READ_PIECE = 2**20
BLANK = " \t\r\n"
NEAR_END = 16
"""An error so close to the end of what was read so far may be no error, once more is read."""


class Upload(NamedTuple):
    """A file that came in: the path of its bytes, its name and purpose, and for how many seconds it is to be kept, None
    if nothing was said."""

    path: Path
    name: str
    purpose: str
    kept_seconds: float | None


@asynccontextmanager
async def receive_upload(http: web.Request, folder: Path) -> AsyncIterator[Upload]:
    """The file of a multipart body, in `folder`; deleted at the end if it was not taken over. Raises ApiError for an
    upload that OpenAI refuses."""
    if not http.content_type.startswith("multipart/"):
        raise ApiError(400, "We expected a multipart/form-data body with 'file' and 'purpose'.")
    path, name, fields = None, "", dict[str, str]()
    too_large = f"The file is larger than {MAX_FILE_BYTES:,} bytes, the most."
    try:
        try:
            async for part in await http.multipart():
                if not isinstance(part, BodyPartReader):
                    raise ApiError(400, "A part of the body has parts of its own.")
                if part.name == "file":
                    error = ApiError(413, too_large, code="file_too_large")
                    path = await on_disk(pieces(part), folder, ".upload-", MAX_FILE_BYTES, error)
                    name = part.filename or "file"
                else:
                    fields[part.name or ""] = (await part.read_chunk(MAX_FIELD_BYTES)).decode(errors="replace")
        except ValueError as wrong:
            raise ApiError(400, f"We could not parse the multipart body: {wrong}") from wrong
        yield checked_upload(path, name, fields)
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


async def pieces(part: BodyPartReader) -> AsyncIterator[bytes]:
    """The bytes of a part."""
    while piece := await part.read_chunk(UPLOAD_PIECE):
        yield piece


def checked_upload(path: Path | None, name: str, fields: dict[str, str]) -> Upload:
    """An upload; raises ApiError."""
    if path is None:
        raise missing("file")
    purpose = fields.get("purpose")
    if not purpose:
        raise missing("purpose")
    if purpose not in PURPOSES:
        known = ", ".join(f"'{one}'" for one in PURPOSES)
        raise ApiError(400, f"'{purpose}' is not one of [{known}] - 'purpose'", param="purpose")
    if purpose == "batch" and not name.endswith(".jsonl"):
        raise ApiError(400, f"Invalid file format for Batch API: '{name}'. Must be .jsonl", param="file")
    if path.stat().st_size == 0:
        raise ApiError(400, "The file is empty.", param="file")
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    unsaid = anchor is None and seconds is None
    return Upload(path, name, purpose, None if unsaid else read_kept_seconds(anchor, seconds, "expires_after"))


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


async def on_disk(body: AsyncIterable[bytes], folder: Path, prefix: str, most: int, too_large: ApiError) -> Path:
    """A new file in `folder` with what comes in; raises `too_large` for more than so many bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=prefix, dir=folder)
    size = 0
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123, ASYNC230 (a descriptor, a local disk)
            async for piece in body:
                size += len(piece)
                if size <= most:  # the rest is read too, so that the client gets the answer
                    file.write(piece)
        if size > most:
            raise too_large
    except BaseException:  # a client that goes away, too, leaves no half file
        Path(name).unlink()
        raise
    return Path(name)


async def receive_body(http: web.Request, folder: Path) -> Path:
    """The body of a large request on disk, in `folder`; raises ApiError for one that is too large."""
    message = f"Request exceeds the maximum size of {MAX_BODY_BYTES:,} bytes."
    error = ApiError(413, message, code="request_too_large")
    return await on_disk(http.content.iter_chunked(UPLOAD_PIECE), folder, ".body-", MAX_BODY_BYTES, error)


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


def split_requests(body: Path, requests: Path) -> int:
    """Writes each request of Anthropic's body as a line; gives their count. Raises ApiError for what it refuses."""
    seen: set[int] = set()
    count = -1
    try:
        with body.open(encoding="utf-8") as source, requests.open("wb") as lines:
            for count, (written, request) in enumerate(ArrayReader(source).elements("requests")):
                if count >= MAX_MESSAGE_REQUESTS:
                    raise bad("requests", f"List should have at most {MAX_MESSAGE_REQUESTS} items")
                check_request(f"requests.{count}", request, seen)
                lines.write(written.replace("\n", " ").replace("\r", " ").encode() + b"\n")  # never within a string
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}") from error
    if count < 0:
        raise bad("requests", "List should have at least 1 item")
    return count + 1


def check_request(place: str, request: Any, seen: set[int]) -> None:
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
    if hash(custom_id) in seen:
        raise bad(f"{place}.custom_id", f"custom_id {json.dumps(custom_id)} is not unique in the batch")
    seen.add(hash(custom_id))


class ArrayReader:
    """Reads a JSON object from a text file, element by element where one of its values is an array: no more of it is in
    memory than the longest element needs."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._text = ""
        self._at = 0
        self._ended = False
        self._decoder = json.JSONDecoder()

    def elements(self, name: str) -> Iterator[tuple[str, Any]]:
        """The elements of the array `name` of the object, as written and as read; what else the object says is passed
        over. Raises ValueError for what is no such object."""
        for _ in self._members("{", "}"):
            key, _ = self._value()
            self._take(":")
            if key != name:
                self._value()
                continue
            for _ in self._members("[", "]"):
                value, written = self._value()
                yield written, value
        if self._peek():
            raise ValueError("there is more after the object")

    def _members(self, opening: str, closing: str) -> Iterator[None]:
        """Stands before each member of an object or an array in turn, which the caller reads."""
        self._take(opening)
        more = self._peek() != closing
        while more:
            yield
            if more := self._peek() == ",":
                self._take(",")
        self._take(closing)

    def _value(self) -> tuple[Any, str]:
        """The next value, and how it is written."""
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or error.pos > len(self._text) - NEAR_END
                if self._ended or not unfinished:
                    raise
            else:
                if end < len(self._text) or self._ended:
                    break
            self._more()
        written, self._at = self._text[self._at : end], end
        return value, written

    def _peek(self) -> str:
        """The next character that is not blank, empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in BLANK:
                    return self._text[self._at]
                self._at += 1
            if self._ended:
                return ""
            self._more()

    def _take(self, expected: str) -> None:
        found = self._peek()
        if found != expected:
            raise ValueError(f"expected {expected!r}, not {found!r}" if found else f"expected {expected!r} at its end")
        self._at += 1

    def _more(self) -> None:
        """Reads on, twice as much as is held, so that long elements are not read again too often."""
        rest = self._text[self._at :]
        piece = self._file.read(max(READ_PIECE, len(rest)))
        self._ended = not piece
        self._text, self._at = rest + piece, 0
