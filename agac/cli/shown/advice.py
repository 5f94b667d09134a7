"""What to do about rows that failed, where the error itself cannot know."""

from __future__ import annotations

import shlex
from typing import Any

from agac.core.errors import ErrorType

ADVICE: dict[str, str] = {
    ErrorType.RATE_LIMITED: "Give the provider limits in agac.yml, as limits: {rpm: 60}, or lower --concurrency.",
    ErrorType.TRUNCATED: "Raise max_tokens, or ask for a shorter answer.",
    ErrorType.TIMEOUT: "Raise the time that is named, or ask for less.",
    ErrorType.REFUSED: "Change the prompt, or take these rows out of the input.",
    ErrorType.FILTERED: "Change the prompt, or take these rows out of the input.",
    ErrorType.EMPTY_RESPONSE: "Run again; with a reasoning model raise max_tokens.",
    ErrorType.INVALID_JSON: "Run again, or use a model with structured answers.",
    ErrorType.SCHEMA_MISMATCH: "Say the form in the prompt, loosen output_schema, or use a larger model.",
    ErrorType.BUDGET_EXCEEDED: "Raise row_budget, or lower max_tokens.",
}
"""By type of error; the others say in their message what is to be done."""

ANSWERED = frozenset({ErrorType.SCHEMA_MISMATCH, ErrorType.TRUNCATED, ErrorType.REFUSED, ErrorType.INVALID_JSON})
"""Errors of which a reply tells more."""


def advice(error: dict[str, Any], run: int) -> str | None:
    """One line for an error of a summary, None when there is nothing to add."""
    if error["stage"] is None:
        return None  # the input's own: no model was asked
    found = ADVICE.get(error["type"])
    if found is None or error["type"] not in ANSWERED:
        return found
    row = shlex.quote(str(error["example"]["id"]))
    return f"{found} See the reply with: agac inspect {run} {row}"
