"""Whether a batch's input is one: every line is read once, as a provider does after it has accepted the batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agac.simulator.batches.records import Batch

MOST_ERRORS = 100
LONGEST_ID = 64
LARGEST = 200_000_000
MOST_REQUESTS = {"openai": 50_000, "azure": 100_000}


class Checked(NamedTuple):
    """What was found: errors as a batch tells them, or the count of requests, their model and about their tokens."""

    errors: list[dict[str, Any]]
    total: int = 0
    model: str = ""
    tokens: int = 0


def problem(code: str, message: str, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    """An error as a batch lists it."""
    return {"code": code, "line": line, "message": message, "param": param}


def check(path: Path, batch: Batch) -> Checked:
    """Reads the whole input in one pass; only the ids of its requests are held."""
    most = MOST_REQUESTS[batch.family]
    if path.stat().st_size > LARGEST:
        return Checked([problem("file_too_large", f"The batch input file is larger than {LARGEST:,} bytes.")])
    errors: list[dict[str, Any]] = []
    reading = Reading(batch.endpoint)
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            if number > most:
                return Checked([problem("too_many_tasks", f"The file holds more than {most:,} requests, the most.")])
            errors += reading.line(number, raw)
            if len(errors) >= MOST_ERRORS:
                break
    if not reading.written:
        errors = [problem("empty_file", "The batch input file is empty.")]
    if errors:
        return Checked(errors)
    if "missing" in reading.model:
        told = f"The model `{reading.model}` does not exist or you do not have access to it."
        return Checked([problem("model_not_found", told, 1, "body.model")])
    return Checked([], len(reading.ids), reading.model, reading.tokens)


class Reading:
    """One pass over an input: what was seen so far."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.ids: set[int] = set()
        self.written = False
        self.model = ""
        self.tokens = 0

    def line(self, number: int, raw: bytes) -> Iterator[dict[str, Any]]:
        """What is wrong with a line, nothing for a good one."""
        self.written = self.written or not raw.isspace()
        try:
            line = json.loads(raw.decode())  # a byte order mark is no JSON
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            yield problem("invalid_json_line", "This line is not parseable as valid JSON.", number)
            return
        for name in ("custom_id", "method", "url", "body"):
            if not line.get(name):
                yield problem("missing_required_parameter", f"Missing required parameter: '{name}'.", number, name)
                return
        yield from self._id(number, line["custom_id"])
        yield from self._address(number, line)
        yield from self._body(number, line["body"])
        self.tokens += len(raw) // 4

    def _id(self, number: int, custom_id: Any) -> Iterator[dict[str, Any]]:
        if not isinstance(custom_id, str) or len(custom_id) > LONGEST_ID:
            told = f"Invalid 'custom_id': expected a string of at most {LONGEST_ID} characters."
            yield problem("invalid_custom_id", told, number, "custom_id")
            return
        known = hash(custom_id)
        if known in self.ids:
            told = f"The custom_id '{custom_id}' for this request is a duplicate of another request. "
            yield problem("duplicate_custom_id", told + "Every custom_id must be unique.", number, "custom_id")
        self.ids.add(known)

    def _address(self, number: int, line: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if line["method"] != "POST":
            yield problem("invalid_method", "Invalid 'method': expected 'POST'.", number, "method")
        if line["url"] != self.endpoint:
            told = f"The URL provided for this request does not match the batch endpoint {self.endpoint}."
            yield problem("url_mismatch", told, number, "url")

    def _body(self, number: int, body: Any) -> Iterator[dict[str, Any]]:
        model = body.get("model") if isinstance(body, dict) else None
        if not isinstance(model, str) or not model:
            yield problem("invalid_request", "Invalid 'body': expected an object with a 'model'.", number, "body")
            return
        self.model = self.model or model
        if model != self.model:
            told = f"The model '{model}' does not match '{self.model}': all requests of a batch ask the same model."
            yield problem("model_mismatch", told, number, "body.model")
