"""What OpenAI's errors, and those of everyone who looks alike, mean for a run: one table.

Decided on status, `error.type` and `error.code`, never on the words of a message; the two exceptions are marked.
Sources: platform.openai.com/docs/guides/error-codes, the look-alikes' references, public bug reports; November 2026.
"""

from __future__ import annotations

from typing import Any

from agac.core.errors import ErrorType
from agac.core.types import FaultKind
from agac.providers.errorrules import (
    ANY,
    BY_STATUS,
    KEY,
    MODEL,
    MONEY,
    NOTHING,
    REQUEST,
    TOO_LONG,
    ErrorBody,
    Rule,
    codes,
)
from agac.providers.ratelimits import duration

RULES: tuple[Rule, ...] = (
    # money is gone: looks like a rate limit (429), but waiting does not help
    Rule(
        ANY,
        codes(
            """insufficient_quota credit_balance_exhausted organization_spend_limit_exceeded
            project_spend_limit_exceeded organization_usage_limit_exceeded billing_hard_limit_reached
            billing_not_active insufficient_balance
            daily_quota_exceeded"""
        ),
        FaultKind.FATAL,
        remedy=MONEY,
    ),
    Rule(ANY, codes("invalid_api_key API_KEY_INVALID account_deactivated"), FaultKind.FATAL, remedy=KEY),
    Rule(
        (400, 403, 404, 410),
        codes(
            """model_not_found model_not_available model_decommissioned invalid_model DeploymentNotFound
            unsupported_model"""
        ),
        FaultKind.FATAL,
        remedy=MODEL,
    ),
    Rule(
        (400, 413, 422),
        codes("context_length_exceeded string_above_max_length context_window_exceeded"),
        FaultKind.TASK,
        remedy=TOO_LONG,
    ),
    Rule(
        (400, 403, 422),
        codes(
            """content_filter content_policy_violation ResponsibleAIPolicyViolation moderation_flagged
            invalid_prompt bio_policy misalignment_policy_violation image_content_policy_violation"""
        ),
        FaultKind.TASK,
        ErrorType.FILTERED,
    ),
    # the request's frame is the same for every row
    Rule(
        (400, 422),
        codes("invalid_json_schema invalid_schema unsupported_parameter unsupported_value unknown_parameter"),
        FaultKind.FATAL,
        remedy=REQUEST,
    ),
    # a stream and a failed response have no status: there the code alone says that it was a rate
    Rule((429,), codes("rate_limit_exceeded"), FaultKind.PAUSE, ErrorType.RATE_LIMITED),
    # an hour is the most that OpenAI keeps a WebSocket: nothing was done yet
    Rule(ANY, codes("websocket_connection_limit_reached"), FaultKind.RETRY),
    Rule(ANY, codes("slow_down server_is_overloaded overloaded_error capacity_exceeded"), FaultKind.PAUSE),
    # Groq: the model's JSON did not pass its check; the next answer may
    Rule((400,), codes("json_validate_failed"), FaultKind.RETRY, ErrorType.INVALID_JSON, retries=2),
    # by their words, for want of a code: OpenAI says it of valid bodies now and then, xAI of a wrong key
    Rule((400,), NOTHING, FaultKind.RETRY, retries=1, says="could not parse the JSON body"),
    Rule((400,), NOTHING, FaultKind.FATAL, remedy=KEY, says="Incorrect API key"),
    *BY_STATUS,
)


def is_error(data: Any) -> bool:
    """Look-alikes report errors with status 200: OpenRouter at the top or in the choice, others by `object: error`."""
    if not isinstance(data, dict):
        return isinstance(data, list) and bool(data) and is_error(data[0])
    if data.get("error") or data.get("object") == "error":
        return True
    choices = data.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and isinstance(first.get("error"), dict)


def read_error(data: Any) -> ErrorBody:
    """The error within a body: OpenAI's object, a list of one (Gemini), a bare text, FastAPI's `detail`, a choice's."""
    if isinstance(data, list):
        data = data[0] if data else None
    if not isinstance(data, dict):
        return ErrorBody()
    error = data.get("error") or _choice_error(data)
    if isinstance(error, dict):
        return _read_object(error)
    if isinstance(error, str):
        return ErrorBody(message=error, code=_text(data.get("code")), type=_text(data.get("type")))
    # Mistral and vLLM put the error's fields at the top; FastAPI servers say `detail`
    detail = data.get("message") or data.get("detail")
    message = detail if isinstance(detail, str) else str(detail) if detail else ""
    return ErrorBody(message, _text(data.get("type")), _text(data.get("code")), _status(data.get("code")))


def _choice_error(data: dict[str, Any]) -> Any:
    choices = data.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first.get("error") if isinstance(first, dict) else None


def _read_object(error: dict[str, Any]) -> ErrorBody:
    code, kind = _text(error.get("code")), _text(error.get("type")) or _text(error.get("status"))
    if error.get("param") in ("response_format", "text.format.schema") and not code:
        code = "invalid_json_schema"  # OpenAI names a bad schema by its parameter, with or without a code
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and metadata.get("reasons"):
        code = "moderation_flagged"  # OpenRouter: 403, with the reasons for which the input was flagged
    delay = None
    for detail in error["details"] if isinstance(error.get("details"), list) else ():
        if isinstance(detail, dict):
            code = _google_code(detail) or code
            delay = duration(_text(detail.get("retryDelay"))) or delay
    return ErrorBody(_text(error.get("message")), kind, code, _status(error.get("code")), delay)


def _google_code(detail: dict[str, Any]) -> str:
    """Gemini's details: the reason of a refused key, or a quota of the day: waiting a minute does not help then."""
    if detail.get("reason") == "API_KEY_INVALID":
        return "API_KEY_INVALID"
    violations = detail.get("violations")
    for violation in violations if isinstance(violations, list) else ():
        if isinstance(violation, dict) and "PerDay" in _text(violation.get("quotaId")):
            return "daily_quota_exceeded"
    return ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _status(value: Any) -> int | None:
    """A code that is an HTTP status, as a number or as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    return value if type(value) is int and 400 <= value < 600 else None
