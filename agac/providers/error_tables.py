"""What errors and rate-limit headers mean for a run: the rules, and one table for each dialect."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, RateState
from agac.providers.provider import Provider

# Names are looked up in lower case: aiohttp's header mapping does not mind, a plain dict must be made so.

_PIECE = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|d|h|m|s)")
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def asked_delay(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks us to wait; `retry-after-ms` wins over `retry-after`. None: it asked for nothing."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if (seconds := _number(text)) is not None:
        return seconds
    return _until(text, headers.get("date")) if text else None


def duration(text: str | None) -> float | None:
    """Seconds of a Go-style duration (`6m0s`, `120ms`, `7.66s`) or of a bare number; None for anything else."""
    if not text:
        return None
    pieces = _PIECE.findall(text)
    if pieces and "".join(number + unit for number, unit in pieces) == text:
        return sum(float(number) * _UNITS[unit] for number, unit in pieces)
    return _number(text)


def rate_state(headers: Mapping[str, str]) -> RateState | None:
    """OpenAI's four `x-ratelimit-*` headers; None when the response has none of them."""
    requests = headers.get("x-ratelimit-remaining-requests")
    tokens = headers.get("x-ratelimit-remaining-tokens")
    if requests is None and tokens is None:
        return None
    return RateState(
        remaining_requests=_whole(requests),
        reset_requests=duration(headers.get("x-ratelimit-reset-requests")),
        remaining_tokens=_whole(tokens),
        reset_tokens=duration(headers.get("x-ratelimit-reset-tokens")),
    )


def dated_rate_state(headers: Mapping[str, str]) -> RateState | None:
    """Anthropic's `anthropic-ratelimit-*` headers, which name the moment of a reset (RFC 3339); None when the response
    has none of them. `tokens` is whichever of its limits on tokens is the nearest."""
    requests = headers.get("anthropic-ratelimit-requests-remaining")
    unit = "tokens" if "anthropic-ratelimit-tokens-remaining" in headers else "input-tokens"
    tokens = headers.get(f"anthropic-ratelimit-{unit}-remaining")
    if requests is None and tokens is None:
        return None
    now = headers.get("date")
    resets = (headers.get(f"anthropic-ratelimit-{name}-reset") for name in ("requests", unit))
    reset_requests, reset_tokens = (_until(text, now) if text else None for text in resets)
    return RateState(_whole(requests), reset_requests, _whole(tokens), reset_tokens)


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return max(value, 0.0) if math.isfinite(value) else None


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return None if value is None else int(value)


def _moment(text: str) -> float | None:
    """A date of HTTP or of RFC 3339, in seconds since 1970."""
    from email.utils import parsedate_to_datetime  # 12 ms that only a date in a header is worth

    try:
        moment: datetime = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
    except ValueError:
        return None
    # a date without a zone is UTC in HTTP
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _until(text: str, server_now: str | None) -> float | None:
    """Seconds until a moment, by the server's own clock where it gave one: ours may be wrong."""
    then = _moment(text)
    if then is None:
        return None
    now = _moment(server_now) if server_now else None
    return max(then - (time.time() if now is None else now), 0.0)


# Decided on status, type and code, never on the words of a message, but for rules that say so.

MESSAGE_LENGTH = 500
"""Characters of a provider's own words that a Fault quotes at most."""

CODE_LENGTH = 80
"""Characters of an error's own name that a Fault keeps at most."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What an error means. `codes` are compared with an error's code and type; none: any. `remedy` has `{…}` fields.

    A dialect's table ends with BY_STATUS, whose last rule every error meets.
    """

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
"""Whatever the status."""

NOTHING: frozenset[str] = frozenset()
"""Whatever the code."""


def codes(text: str) -> frozenset[str]:
    """Codes, written one after the other."""
    return frozenset(text.split())


MONEY = "Add credit or raise the limit at {provider}, then run again: what is finished is kept."
KEY = "Check {key}, then run again."
ACCESS = "{key} may not use this: check the model, and the project and region of the key."
MODEL = "Check the model name `{model}` and the address {base_url}."
REQUEST = "Every row would meet it: change the model's parameters or the schema."
TOO_LONG = "Shorten the prompt or the row's fields, or use a model with a larger context."

BY_STATUS: tuple[Rule, ...] = (
    Rule((401,), NOTHING, FaultKind.FATAL, remedy=KEY),
    Rule((402,), NOTHING, FaultKind.FATAL, remedy=MONEY),
    Rule((403,), NOTHING, FaultKind.FATAL, remedy=ACCESS),
    Rule((404, 405, 410), NOTHING, FaultKind.FATAL, remedy=MODEL),
    Rule((407,), NOTHING, FaultKind.FATAL, remedy="The proxy wants credentials: write http://user:password@host."),
    Rule((408,), NOTHING, FaultKind.RETRY, ErrorType.TIMEOUT, ambiguous=True),
    Rule((409, 425), NOTHING, FaultKind.RETRY),
    Rule((413,), NOTHING, FaultKind.TASK, remedy=TOO_LONG),
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
"""What HTTP itself says, where no code says more: the end of every dialect's table."""


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """What an error's JSON says, whatever its shape. `delay` in seconds; `status` where the body names one."""

    message: str = ""
    type: str = ""
    code: str = ""
    status: int | None = None
    delay: float | None = None


def fault_of(
    error: ErrorBody,
    rules: Sequence[Rule],
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    provider: Provider,
    model: str,
    redactor: Redactor,
) -> Fault:
    """What an answer that is no reply means for the run: what the first of the rules says that it meets."""
    meant = error.status or status if 200 <= status < 300 else status
    rule = _rule(rules, meant, error)
    message = _message(status, headers, error, _words(error, body), rule, provider, model)
    fault = Fault(
        kind=rule.kind,
        type=rule.type,
        message=redactor.clean(message),
        delay=_delay(rule, headers, error),
        status=status,
        ambiguous=rule.ambiguous,
        retries=rule.retries,
        code=redactor.clean(error.code or error.type)[:CODE_LENGTH],
    )
    return _advised(fault, headers.get("x-should-retry"))


def _rule(rules: Sequence[Rule], status: int, error: ErrorBody) -> Rule:
    said = {error.code, error.type}
    return next(rule for rule in rules if _applies(rule, status, said) and rule.says in error.message)


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


# Decided on status, `error.type` and `error.code`, never on the words of a message; the two exceptions are marked.
# Sources: platform.openai.com/docs/guides/error-codes, the look-alikes' references, public bug reports; November 2026.

OPENAI_RULES: tuple[Rule, ...] = (
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


def read_openai_error(data: Any) -> ErrorBody:
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


# Decided on status, `error.type` and `error.details.error_code`; by their words only where nothing else says it.
# Sources: platform.claude.com/docs/en/api/errors, the types of the anthropic SDK 2.12, public bug reports; November
# 2026.

ANTHROPIC_RULES: tuple[Rule, ...] = (
    # money is gone: the first two look like a rate limit (429), but waiting does not help
    Rule(
        ANY,
        codes(
            """enforced_spend_limit_reached contract_spend_limit_reached linked_organization_spend_limit_reached
            linked_organization_billing_unavailable billing_error"""
        ),
        FaultKind.FATAL,
        remedy=MONEY,
    ),
    Rule(
        ANY,
        codes(
            """organization_on_hold organization_type_not_supported sandbox_egress_restricted cmek_key_disabled
            cmek_key_network_blocked permission_error"""
        ),
        FaultKind.FATAL,
        remedy=ACCESS,
    ),
    Rule(ANY, codes("authentication_error"), FaultKind.FATAL, remedy=KEY),
    Rule(ANY, codes("not_found_error"), FaultKind.FATAL, remedy=MODEL),
    Rule(ANY, codes("request_too_large"), FaultKind.TASK, remedy=TOO_LONG),
    # a stream has no status: there the type alone says what it was
    Rule(ANY, codes("overloaded_error"), FaultKind.PAUSE),
    Rule(ANY, codes("rate_limit_error ramp_limit_exceeded"), FaultKind.PAUSE, ErrorType.RATE_LIMITED),
    Rule(ANY, codes("timeout_error"), FaultKind.RETRY, ErrorType.TIMEOUT, ambiguous=True),
    # by their words, for want of a code: a limit that the user set, an empty balance, a closed account
    Rule((400,), NOTHING, FaultKind.FATAL, remedy=MONEY, says="API usage limits"),
    Rule((400,), NOTHING, FaultKind.FATAL, remedy=MONEY, says="credit balance is too low"),
    Rule((400,), NOTHING, FaultKind.FATAL, remedy=ACCESS, says="organization has been disabled"),
    # by their words: the request's frame is the same for every row
    *(
        Rule((400,), NOTHING, FaultKind.FATAL, remedy=REQUEST, says=words)
        for words in (
            "output_config",
            "compiled grammar is too large",
            "for this model",
            "on this model",
            "Extra inputs are not permitted",
            "max_tokens: ",
            "temperature: ",
        )
    ),
    Rule((400,), NOTHING, FaultKind.TASK, remedy=TOO_LONG, says="prompt is too long"),
    Rule((400,), NOTHING, FaultKind.TASK, remedy=TOO_LONG, says="exceed context limit"),
    *BY_STATUS,
)


def read_anthropic_error(data: Any) -> ErrorBody:
    """The error within a body. What look-alikes and gateways say in OpenAI's ways is understood too."""
    error = read_openai_error(data)
    details = data["error"].get("details") if isinstance(data, dict) and isinstance(data.get("error"), dict) else None
    code = details.get("error_code") if isinstance(details, dict) else None
    return replace(error, code=code) if isinstance(code, str) and code else error
