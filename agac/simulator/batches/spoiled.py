"""Faults of single requests of a batch: what comes of them instead of an answer, and what becomes of their lines."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from agac.simulator.asks import ApiError
from agac.simulator.batches.rules import LINE_KINDS
from agac.simulator.faults import chance

INSTEAD = frozenset({"batch_line_status", "batch_line_zero", "batch_line_error"})
"""Faults in whose place there is no answer, and no charge."""

WORDS = {
    400: ("invalid_request_error", None, "The request was not understood."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", None, "You may not use this."),
    404: ("invalid_request_error", None, "There is no such thing."),
    413: ("invalid_request_error", "request_too_large", "The request is too large."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached. Please slow down."),
    503: ("server_error", "server_is_overloaded", "The server is overloaded or not ready yet."),
}
SERVER_TROUBLE = ("server_error", None, "The server had an error while processing your request. Sorry about that!")
QUOTA_CODES = frozenset(
    {
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "insufficient_quota",
    }
)
"""Codes whose type is `insufficient_quota`."""


def error_of(values: dict[str, Any]) -> ApiError:
    """The error that a rule with a `status` describes, with what its status says where the rule says nothing."""
    status, code = int(values["status"]), values.get("code")
    kind, usual_code, message = WORDS.get(status, SERVER_TROUBLE)
    if code in QUOTA_CODES:
        kind = "insufficient_quota"
    return ApiError(
        status,
        values.get("message") or message,
        kind=values.get("type") or kind,
        code=code or (usual_code if kind != "insufficient_quota" else code),
    )


@dataclass(slots=True)
class LineFaults:
    """The rules of one batch about its requests."""

    rules: list[dict[str, Any]]
    seed: int
    places: list[frozenset[int] | None] = field(init=False)

    def __post_init__(self) -> None:
        self.rules = [rule for rule in self.rules if rule["kind"] in LINE_KINDS]
        self.places = [None if rule["lines"] is None else frozenset(rule["lines"]) for rule in self.rules]

    def of_line(self, number: int, raw: bytes, custom_id: str) -> list[dict[str, Any]]:
        """The rules that apply to a request: all about its line, and the first that stands in for an answer."""
        found: list[dict[str, Any]] = []
        for rule, lines in zip(self.rules, self.places, strict=True):
            if (
                (lines is None or number in lines)
                and (rule["match"] is None or mentions(raw, rule["match"]))
                and (rule["rate"] is None or chance(self.seed, rule["index"], custom_id.encode(), 1) < rule["rate"])
                and not (rule["kind"] in INSTEAD and any(other["kind"] in INSTEAD for other in found))
            ):
                found.append(rule)
        return found


def mentions(raw: bytes, text: str) -> bool:
    """Whether a text stands in JSON, in either way in which letters may be written."""
    return any(json.dumps(text, ensure_ascii=way)[1:-1].encode("utf-8", "replace") in raw for way in (True, False))


def written(line: bytes, kinds: list[str]) -> bytes:
    """A line of results as faults leave it: nothing, broken, or twice."""
    if "batch_omit" in kinds:
        return b""
    if "batch_corrupt_line" in kinds:
        line = line[: len(line) // 2] + b"\n"
    return line * 2 if "batch_dup_line" in kinds else line
