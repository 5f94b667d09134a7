"""What OpenAI's errors, and those of everyone who looks alike, mean for a run: one table.

Decided on status, `error.type` and `error.code`, never on the words of a message; the two exceptions are marked.
Sources: platform.openai.com/docs/guides/error-codes, the look-alikes' references, public bug reports; November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers.ratelimits import asked_delay, duration
from agac.providers.table import Provider

MESSAGE_LENGTH = 500
"""Characters of a provider's own words that a Fault quotes at most."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What an error means. `codes` are compared with an error's code and type; none: any. `remedy` has `{…}` fields."""

    statuses: range | tuple[int, ...]
    codes: frozenset[str]
    kind: FaultKind
    type: ErrorType = ErrorType.PROVIDER_ERROR
    remedy: str = ""
    retries: int | None = None
    ambiguous: bool = False
    says: str = ""
    """Words that the message must hold, where a provider gives neither code nor type."""


ANY = range(1000)
NOTHING: frozenset[str] = frozenset()


def _codes(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MONEY = "Add credit or raise the limit at {provider}, then run again: what is finished is kept."
_KEY = "Check {key}, then run again."
_ACCESS = "{key} may not use this: check the model, and the project and region of the key."
_MODEL = "Check the model name `{model}` and the address {base_url}."
_REQUEST = "Every row would meet it: change the model's parameters or the schema."
_TOO_LONG = "Shorten the prompt or the row's fields, or use a model with a larger context."

RULES: tuple[Rule, ...] = (
    # money is gone: looks like a rate limit (429), but waiting does not help
    Rule(
        ANY,
        _codes(
            """insufficient_quota credit_balance_exhausted organization_spend_limit_exceeded
            project_spend_limit_exceeded organization_usage_limit_exceeded billing_hard_limit_reached
            billing_not_active insufficient_balance
            daily_quota_exceeded"""
        ),
        FaultKind.FATAL,
        remedy=_MONEY,
    ),
    Rule(ANY, _codes("invalid_api_key API_KEY_INVALID account_deactivated"), FaultKind.FATAL, remedy=_KEY),
    Rule(
        (400, 403, 404, 410),
        _codes(
            """model_not_found model_not_available model_decommissioned invalid_model DeploymentNotFound
            unsupported_model"""
        ),
        FaultKind.FATAL,
        remedy=_MODEL,
    ),
    Rule(
        (400, 413, 422),
        _codes("context_length_exceeded string_above_max_length context_window_exceeded"),
        FaultKind.TASK,
        remedy=_TOO_LONG,
    ),
    Rule(
        (400, 403, 422),
        _codes(
            """content_filter content_policy_violation ResponsibleAIPolicyViolation moderation_flagged
            invalid_prompt bio_policy misalignment_policy_violation image_content_policy_violation"""
        ),
        FaultKind.TASK,
        ErrorType.FILTERED,
    ),
    # the request's frame is the same for every row
    Rule(
        (400, 422),
        _codes("invalid_json_schema invalid_schema unsupported_parameter unsupported_value unknown_parameter"),
        FaultKind.FATAL,
        remedy=_REQUEST,
    ),
    # a stream and a failed response have no status: there the code alone says that it was a rate
    Rule((429,), _codes("rate_limit_exceeded"), FaultKind.PAUSE, ErrorType.RATE_LIMITED),
    # an hour is the most that OpenAI keeps a WebSocket: nothing was done yet
    Rule(ANY, _codes("websocket_connection_limit_reached"), FaultKind.RETRY),
    Rule(ANY, _codes("slow_down server_is_overloaded overloaded_error capacity_exceeded"), FaultKind.PAUSE),
    # Groq: the model's JSON did not pass its check; the next answer may
    Rule((400,), _codes("json_validate_failed"), FaultKind.RETRY, ErrorType.INVALID_JSON, retries=2),
    # by their words, for want of a code: OpenAI says it of valid bodies now and then, xAI of a wrong key
    Rule((400,), NOTHING, FaultKind.RETRY, retries=1, says="could not parse the JSON body"),
    Rule((400,), NOTHING, FaultKind.FATAL, remedy=_KEY, says="Incorrect API key"),
    Rule((401,), NOTHING, FaultKind.FATAL, remedy=_KEY),
    Rule((402,), NOTHING, FaultKind.FATAL, remedy=_MONEY),
    Rule((403,), NOTHING, FaultKind.FATAL, remedy=_ACCESS),
    Rule((404, 405, 410), NOTHING, FaultKind.FATAL, remedy=_MODEL),
    Rule((407,), NOTHING, FaultKind.FATAL, remedy="The proxy wants credentials: write http://user:password@host."),
    Rule((408,), NOTHING, FaultKind.RETRY, ErrorType.TIMEOUT, ambiguous=True),
    Rule((409, 425), NOTHING, FaultKind.RETRY),
    Rule((413,), NOTHING, FaultKind.TASK, remedy=_TOO_LONG),
    Rule((424,), NOTHING, FaultKind.RETRY, retries=2),
    Rule((429,), NOTHING, FaultKind.PAUSE, ErrorType.RATE_LIMITED),
    # 498: Groq's flex tier is full; 529: overloaded
    Rule((498, 503, 529), NOTHING, FaultKind.PAUSE),
    # a gateway gave up on a call that may have gone on behind it; 520 to 530 are Cloudflare's
    Rule((504, 522, 524), NOTHING, FaultKind.RETRY, ErrorType.TIMEOUT, ambiguous=True),
    Rule((502, *range(520, 531)), NOTHING, FaultKind.RETRY, ambiguous=True),
    Rule(range(400, 500), NOTHING, FaultKind.TASK),
    Rule(range(500, 600), NOTHING, FaultKind.RETRY),
    # a 2xx that says error without saying which, and statuses that HTTP does not know
    Rule(ANY, NOTHING, FaultKind.RETRY, ambiguous=True),
)


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """What an error's JSON says, whatever its shape. `delay` in seconds; `status` where the body names one."""

    message: str = ""
    type: str = ""
    code: str = ""
    status: int | None = None
    delay: float | None = None


def is_error(data: Any) -> bool:
    """Look-alikes report errors with status 200: OpenRouter at the top or in the choice, others by `object: error`."""
    if not isinstance(data, dict):
        return isinstance(data, list) and bool(data) and is_error(data[0])
    if data.get("error") or data.get("object") == "error":
        return True
    choices = data.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and isinstance(first.get("error"), dict)


def fault_of(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    data: Any,
    *,
    provider: Provider,
    model: str,
    redactor: Redactor,
) -> Fault:
    """What an answer that is no completion means for the run; `data` is the body's JSON, None when it is none."""
    error = read_error(data)
    meant = error.status or status if 200 <= status < 300 else status
    rule = _rule(meant, error)
    message = _message(status, headers, error, _words(error, body), rule, provider, model)
    fault = Fault(
        kind=rule.kind,
        type=rule.type,
        message=redactor.clean(message),
        delay=_delay(rule, headers, error),
        status=status,
        ambiguous=rule.ambiguous,
        retries=rule.retries,
    )
    return _advised(fault, headers.get("x-should-retry"))


def _rule(status: int, error: ErrorBody) -> Rule:
    said = {error.code, error.type}
    return next(rule for rule in RULES if _applies(rule, status, said) and rule.says in error.message)


def _applies(rule: Rule, status: int, said: set[str]) -> bool:
    if not rule.codes:
        return status in rule.statuses
    # an error that came with a good status has only its code to go by
    return bool(rule.codes & said) and (status in rule.statuses or 200 <= status < 300)


def _delay(rule: Rule, headers: Mapping[str, str], error: ErrorBody) -> float | None:
    if rule.kind not in (FaultKind.RETRY, FaultKind.PAUSE):
        return None
    asked = asked_delay(headers)
    return error.delay if asked is None else asked


def _advised(fault: Fault, advice: str | None) -> Fault:
    """`x-should-retry` is the server's own word on whether the same call can succeed later."""
    if advice == "false" and fault.kind in (FaultKind.RETRY, FaultKind.PAUSE):
        return replace(fault, retries=0)
    if advice == "true" and fault.kind is FaultKind.TASK:
        return replace(fault, kind=FaultKind.RETRY)
    return fault


def _message(
    status: int,
    headers: Mapping[str, str],
    error: ErrorBody,
    words: str,
    rule: Rule,
    provider: Provider,
    model: str,
) -> str:
    name = error.code or error.type
    head = f"{provider.name} answered {status}" + (f" ({name})" if name else "")
    request_id = headers.get("x-request-id") or headers.get("request-id") or headers.get("cf-ray")
    tail = f" [request {request_id[:80]}]" if request_id else ""
    remedy = rule.remedy.format(
        provider=provider.name,
        model=model,
        base_url=provider.base_url,
        key=provider.key_variable or f"the key of {provider.name}",
    )
    return f"{head}: {words}{tail}" + (f" {remedy}" if remedy else "")


def _words(error: ErrorBody, body: bytes) -> str:
    """The provider's own words on one line, at most MESSAGE_LENGTH characters."""
    text = error.message or _page(body)
    text = " ".join(text.split())
    return text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 1] + "…"


def _page(body: bytes) -> str:
    text = body[: 4 * MESSAGE_LENGTH].decode("utf-8", "replace").strip()
    if not text:
        return "an empty body"
    return "an HTML page; something between us and the provider?" if text.startswith("<") else text


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
