"""What comes in for batches: uploaded files, the requests that create batches, and Anthropic's large bodies."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from aiohttp import BodyPartReader, web

from agac.simulator.anthropic import bad
from agac.simulator.batch_formats import MAX_ID_LENGTH, OPENAI_ENDPOINTS
from agac.simulator.openai import missing
from agac.simulator.replies import ApiError

UPLOAD_PIECE = 2**18
MAX_FILE_BYTES = 512 * 2**20
MAX_FIELD_BYTES = 10_000
MAX_BODY_BYTES = 256_000_000
PURPOSES = ("batch", "assistants", "fine-tune", "vision", "user_data", "evals")
MIN_KEPT_S, MAX_KEPT_S = 3600, 2_592_000

CREATE_PARAMETERS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
MAX_PAIRS, MAX_KEY_LENGTH, MAX_VALUE_LENGTH = 16, 64, 512

MAX_MESSAGE_REQUESTS = 100_000
ID_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")

READ_PIECE = 2**20
BLANK = " \t\r\n"
NEAR_END = 16
"""An error so close to the end of what was read so far may be no error, once more is read."""


@dataclass(slots=True)
class Upload:
    """A file that came in: the path of its bytes, its name, and the form's other fields."""

    path: Path | None = None
    name: str = ""
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def kept_seconds(self) -> float | None:
        """For how many seconds the file is to be kept, None if nothing was said; raises ApiError."""
        anchor, seconds = self.fields.get("expires_after[anchor]"), self.fields.get("expires_after[seconds]")
        return None if anchor is None and seconds is None else read_kept_seconds(anchor, seconds, "expires_after")

    def checked_path(self) -> Path:
        """The path of the file; raises ApiError for an upload that OpenAI refuses."""
        if self.path is None:
            raise missing("file")
        purpose = self.fields.get("purpose")
        if not purpose:
            raise missing("purpose")
        if purpose not in PURPOSES:
            known = ", ".join(f"'{one}'" for one in PURPOSES)
            raise ApiError(400, f"'{purpose}' is not one of [{known}] - 'purpose'", param="purpose")
        if purpose == "batch" and not self.name.endswith(".jsonl"):
            message = f"Invalid file format for Batch API: '{self.name}'. Must be .jsonl"
            raise ApiError(400, message, param="file")
        if self.path.stat().st_size == 0:
            raise ApiError(400, "The file is empty.", param="file")
        return self.path

    def drop(self) -> None:
        """Deletes the file if it was not taken over."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


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


async def receive_upload(http: web.Request, folder: Path) -> Upload:
    """Reads a multipart body; the file goes to a temporary file in `folder`. Raises ApiError for another body."""
    upload = Upload()
    if not http.content_type.startswith("multipart/"):
        raise ApiError(400, "We expected a multipart/form-data body with 'file' and 'purpose'.")
    try:
        async for part in await http.multipart():
            if not isinstance(part, BodyPartReader):
                raise ApiError(400, "A part of the body has parts of its own.")
            if part.name == "file":
                folder.mkdir(parents=True, exist_ok=True)
                descriptor, name = tempfile.mkstemp(prefix=".upload-", dir=folder)
                upload.path, upload.name = Path(name), part.filename or "file"
                with open(descriptor, "wb") as file:  # noqa: PTH123, ASYNC230 (a descriptor, a local disk)
                    await copy_part(part, file)
            else:
                upload.fields[part.name or ""] = (await part.read_chunk(MAX_FIELD_BYTES)).decode(errors="replace")
    except ValueError as error:
        upload.drop()
        raise ApiError(400, f"We could not parse the multipart body: {error}") from error
    except BaseException:
        upload.drop()
        raise
    return upload


async def copy_part(part: BodyPartReader, file: IO[bytes]) -> None:
    """Writes the bytes of a part."""
    size = 0
    while piece := await part.read_chunk(UPLOAD_PIECE):
        size += len(piece)
        if size > MAX_FILE_BYTES:
            raise ApiError(413, f"The file is larger than {MAX_FILE_BYTES:,} bytes, the most.", code="file_too_large")
        file.write(piece)


async def receive_body(http: web.Request, folder: Path) -> Path:
    """The body of a large request on disk, in `folder`; raises ApiError for one that is too large."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".body-", dir=folder)
    size = 0
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123, ASYNC230 (a descriptor, a local disk)
            async for piece in http.content.iter_chunked(UPLOAD_PIECE):
                size += len(piece)
                if size <= MAX_BODY_BYTES:  # the rest is read too, so that the client gets the answer
                    file.write(piece)
        if size > MAX_BODY_BYTES:
            message = f"Request exceeds the maximum size of {MAX_BODY_BYTES:,} bytes."
            raise ApiError(413, message, code="request_too_large")
    except BaseException:
        Path(name).unlink()
        raise
    return Path(name)


class BatchOrder(NamedTuple):
    """A batch to create at OpenAI or Azure: `kept_seconds` is how long its results are to be kept."""

    input_id: str
    endpoint: str
    metadata: dict[str, str] | None
    kept_seconds: float | None


def read_order(data: dict[str, Any], family: str) -> BatchOrder:
    """Reads the body of a create; raises ApiError. Azure also takes endpoints without their version."""
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
    return BatchOrder(
        data["input_file_id"],
        endpoint,
        read_metadata(data.get("metadata")),
        None if kept is None else read_kept_seconds(kept.get("anchor"), kept.get("seconds"), "output_expires_after"),
    )


def read_metadata(metadata: Any) -> dict[str, str] | None:
    """Pairs of texts; raises ApiError for too many, or too long ones."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ApiError(400, "Invalid 'metadata': expected an object of strings.", param="metadata")
    if len(metadata) > MAX_PAIRS:
        message = f"Invalid 'metadata': too many properties: {len(metadata)}, at most {MAX_PAIRS}."
        raise ApiError(400, message, param="metadata")
    for key, value in metadata.items():
        if len(key) > MAX_KEY_LENGTH or len(value) > MAX_VALUE_LENGTH:
            message = f"keys have at most {MAX_KEY_LENGTH} characters, values at most {MAX_VALUE_LENGTH}."
            raise ApiError(400, f"Invalid 'metadata': {message}", param="metadata")
    return metadata


def split_requests(body: Path, requests: Path) -> int:
    """Writes each request of Anthropic's body as a line; gives their count. Raises ApiError for what it refuses."""
    seen: set[int] = set()
    count = -1
    try:
        with body.open(encoding="utf-8") as source, requests.open("wb") as lines:
            for count, (written, request) in enumerate(ArrayReader(source).elements("requests")):
                if count >= MAX_MESSAGE_REQUESTS:
                    raise bad("requests", f"List should have at most {MAX_MESSAGE_REQUESTS} items")
                check_request(count, request, seen)
                lines.write(written.replace("\n", " ").replace("\r", " ").encode() + b"\n")  # never within a string
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}") from error
    if count < 0:
        raise bad("requests", "List should have at least 1 item")
    return count + 1


def check_request(index: int, request: Any, seen: set[int]) -> None:
    """Raises ApiError for what Anthropic refuses at once; the `params` are checked only when the request is done."""
    place = f"requests.{index}"
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
    known = hash(custom_id)
    if known in seen:
        raise bad(f"{place}.custom_id", f"custom_id {json.dumps(custom_id)} is not unique in the batch")
    seen.add(known)


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
        self._take("{")
        if self._peek() != "}":
            while True:
                key, _ = self._value()
                self._take(":")
                if key == name:
                    yield from self._array()
                else:
                    self._value()
                if self._peek() != ",":
                    break
                self._take(",")
        self._take("}")
        if self._peek():
            raise ValueError("there is more after the object")

    def _array(self) -> Iterator[tuple[str, Any]]:
        self._take("[")
        if self._peek() != "]":
            while True:
                value, written = self._value()
                yield written, value
                if self._peek() != ",":
                    break
                self._take(",")
        self._take("]")

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
