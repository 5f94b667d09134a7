"""What errors and rate-limit headers mean for a run: the rules, and one table for each dialect."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, RateState
from agac.providers.bodies import MAX_COUNT, date, http_status, items, mapping, number, objects, text
from agac.providers.provider import Provider

# Names are looked up in lower case: aiohttp's header mapping does not mind, a plain dict must be made so.

_PIECE = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|d|h|m|s)")
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

MAX_ASKED_S = 86_400.0
"""Seconds. A server that asks for more, or for nonsense such as 1e308, is taken to ask for a day."""


def asked_delay(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks us to wait; `retry-after-ms` wins over `retry-after`. None: it asked for nothing."""
    if (milliseconds := _delay(headers.get("retry-after-ms"))) is not None:
        return min(milliseconds / 1000, MAX_ASKED_S)
    after = headers.get("retry-after")
    seconds = _delay(after)
    return _until(after, headers.get("date")) if seconds is None else min(seconds, MAX_ASKED_S)


def duration(written: str | None) -> float | None:
    """Seconds of a Go-style duration (`6m0s`, `120ms`, `7.66s`) or of a bare number; None for anything else."""
    if not written:
        return None
    pieces = _PIECE.findall(written)
    if pieces and "".join(amount + unit for amount, unit in pieces) == written:
        return min(sum(float(amount) * _UNITS[unit] for amount, unit in pieces), MAX_ASKED_S)
    seconds = _delay(written)
    return None if seconds is None else min(seconds, MAX_ASKED_S)


_OPENAI_RATES = tuple(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("remaining", "reset"))


def rate_state(headers: Mapping[str, str]) -> RateState | None:
    """OpenAI's four `x-ratelimit-*` headers; None when the response has none of them."""
    return _rates(headers, _OPENAI_RATES, duration)


def dated_rate_state(headers: Mapping[str, str]) -> RateState | None:
    """Anthropic's `anthropic-ratelimit-*` headers, which name the moment of a reset (RFC 3339); None when the response
    has none of them. `tokens` is whichever of its limits on tokens is the nearest."""
    unit = "tokens" if "anthropic-ratelimit-tokens-remaining" in headers else "input-tokens"
    names = [f"anthropic-ratelimit-{of}-{what}" for of in ("requests", unit) for what in ("remaining", "reset")]
    return _rates(headers, names, lambda reset: _until(reset, headers.get("date")))


def _rates(
    headers: Mapping[str, str], names: Sequence[str], seconds: Callable[[str | None], float | None]
) -> RateState | None:
    requests, tokens = headers.get(names[0]), headers.get(names[2])
    if requests is None and tokens is None:
        return None
    resets = seconds(headers.get(names[1])), seconds(headers.get(names[3]))
    return RateState(_whole(requests), resets[0], _whole(tokens), resets[1])


def _delay(written: str | None) -> float | None:
    value = None if written is None else number(written)
    return None if value is None else max(value, 0.0)


def _whole(written: str | None) -> int | None:
    value = _delay(written)
    return None if value is None else int(min(value, MAX_COUNT))


def _until(written: str | None, server_now: str | None) -> float | None:
    """Seconds until a moment, by the server's own clock where it gave one: ours may be wrong."""
    then, now = (date(moment) if moment else None for moment in (written, server_now))
    if then is None:
        return None
    return min(max(then - (time.time() if now is None else now), 0.0), MAX_ASKED_S)


# Decided on status, type and code, never on the words of a message, but for rules that say so.

MESSAGE_LENGTH = 500  # characters of a provider's own words that a Fault quotes at most


@dataclass(frozen=True, slots=True)
class Rule:
    """What an error means. `codes` are compared with an error's code and type; none: any. `remedy` has `{…}` fields. A
    dialect's table ends with BY_STATUS, whose last rule every error meets."""

    statuses: range | tuple[int, ...]
    codes: frozenset[str]
    kind: FaultKind
    type: ErrorType = ErrorType.PROVIDER_ERROR
    remedy: str = ""
    retries: int | None = None
    ambiguous: bool = False
    says: str = ""  # words that the message must hold, where a provider gives neither code nor type


ANY = range(1000)

NOTHING: frozenset[str] = frozenset()


def codes(names: str) -> frozenset[str]:
    return frozenset(names.split())


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
    rule = next(rule for rule in rules if _applies(rule, meant, error))
    kind, retries, delay, advice = rule.kind, rule.retries, None, headers.get("x-should-retry")
    if kind in (FaultKind.RETRY, FaultKind.PAUSE):
        asked = asked_delay(headers)
        delay = error.delay if asked is None else asked
        # `x-should-retry` is the server's own word on whether the same call can succeed later
        retries = 0 if advice == "false" else retries
    elif kind is FaultKind.TASK and advice == "true":
        kind = FaultKind.RETRY
    name = error.code or error.type
    message = f"{provider.name} answered {status}{f' ({name})' if name else ''}: {_words(error, body)}"
    if request_id := headers.get("x-request-id") or headers.get("request-id") or headers.get("cf-ray"):
        message += f" [request {request_id[:80]}]"
    if rule.remedy:
        key = provider.key_variable or f"the key of {provider.name}"
        remedy = rule.remedy.format(provider=provider.name, model=model, base_url=provider.base_url, key=key)
        message = f"{message.removesuffix('.')}. {remedy}"
    return Fault(
        kind=kind,
        type=rule.type,
        message=redactor.clean(message),
        delay=delay,
        status=status,
        ambiguous=rule.ambiguous,
        retries=retries,
        code=redactor.clean(name)[:80],  # an error's own name, of its sender's making
    )


def _applies(rule: Rule, status: int, error: ErrorBody) -> bool:
    if rule.says not in error.message:
        return False
    if not rule.codes:
        return status in rule.statuses
    # an error that came with a good status has only its code to go by
    return not rule.codes.isdisjoint((error.code, error.type)) and (status in rule.statuses or 200 <= status < 300)


def _words(error: ErrorBody, body: bytes) -> str:
    """The provider's own words on one line, at most MESSAGE_LENGTH characters."""
    words = error.message
    if not words:
        words = body[: 4 * MESSAGE_LENGTH].decode("utf-8", "replace").strip() or "an empty body"
        words = "an HTML page; something between us and the provider?" if words.startswith("<") else words
    words = " ".join(words.split())
    return words if len(words) <= MESSAGE_LENGTH else words[: MESSAGE_LENGTH - 1] + "…"


# Decided on status, `error.type` and `error.code`, never on the words of a message; the two exceptions are marked.
# Sources: platform.openai.com/docs/guides/error-codes, the look-alikes' references, public bug reports; November 2026.

OPENAI_RULES: tuple[Rule, ...] = (
    # money is gone: looks like a rate limit (429), but waiting does not help
    Rule(ANY, codes("""
        insufficient_quota credit_balance_exhausted organization_spend_limit_exceeded project_spend_limit_exceeded
        organization_usage_limit_exceeded billing_hard_limit_reached billing_not_active insufficient_balance
        daily_quota_exceeded
    """), FaultKind.FATAL, remedy=MONEY),
    Rule(ANY, codes("invalid_api_key API_KEY_INVALID account_deactivated"), FaultKind.FATAL, remedy=KEY),
    Rule((400, 403, 404, 410), codes("""
        model_not_found model_not_available model_decommissioned invalid_model DeploymentNotFound unsupported_model
    """), FaultKind.FATAL, remedy=MODEL),
    Rule((400, 413, 422), codes("""
        context_length_exceeded string_above_max_length context_window_exceeded
    """), FaultKind.TASK, remedy=TOO_LONG),
    Rule((400, 403, 422), codes("""
        content_filter content_policy_violation ResponsibleAIPolicyViolation moderation_flagged invalid_prompt
        bio_policy misalignment_policy_violation image_content_policy_violation
    """), FaultKind.TASK, ErrorType.FILTERED),
    # the request's frame is the same for every row
    Rule((400, 422), codes("""
        invalid_json_schema invalid_schema unsupported_parameter unsupported_value unknown_parameter
    """), FaultKind.FATAL, remedy=REQUEST),
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
)  # fmt: skip


def is_error(data: Any) -> bool:
    """Look-alikes report errors with status 200: OpenRouter at the top or in the choice, others by `object: error`."""
    if isinstance(data, list):
        return bool(data) and is_error(data[0])
    if not isinstance(data, dict):
        return False
    return bool(data.get("error")) or data.get("object") == "error" or isinstance(_choice_error(data), dict)


def read_openai_error(data: Any) -> ErrorBody:
    """The error within a body: OpenAI's object, a list of one (Gemini), a bare text, FastAPI's `detail`, a choice's."""
    data = mapping(data[0] if isinstance(data, list) and data else data)
    error = data.get("error") or _choice_error(data)
    if isinstance(error, dict):
        code, delay = text(error, "code"), None
        if error.get("param") in ("response_format", "text.format.schema") and not code:
            code = "invalid_json_schema"  # OpenAI names a bad schema by its parameter, with or without a code
        if mapping(error.get("metadata")).get("reasons"):
            code = "moderation_flagged"  # OpenRouter: 403, with the reasons for which the input was flagged
        # Gemini's details: the reason of a refused key, or a quota of the day: waiting a minute does not help then
        for detail in objects(error.get("details")):
            if detail.get("reason") == "API_KEY_INVALID":
                code = "API_KEY_INVALID"
            elif any("PerDay" in text(violation, "quotaId") for violation in objects(detail.get("violations"))):
                code = "daily_quota_exceeded"
            delay = duration(text(detail, "retryDelay")) or delay
        kind, status = text(error, "type") or text(error, "status"), http_status(error.get("code"), 400)
        return ErrorBody(text(error, "message"), kind, code, status, delay)
    code, kind = text(data, "code"), text(data, "type")
    if isinstance(error, str):
        return ErrorBody(error, kind, code)
    # Mistral and vLLM put the error's fields at the top; FastAPI servers say `detail`
    return ErrorBody(
        str(data.get("message") or data.get("detail") or ""), kind, code, http_status(data.get("code"), 400)
    )


def _choice_error(data: dict[str, Any]) -> Any:
    return mapping(next(iter(items(data.get("choices"))), None)).get("error")


# Decided on status, `error.type` and `error.details.error_code`; by their words only where nothing else says it.
# Sources: platform.claude.com/docs/en/api/errors, the types of the anthropic SDK 2.12, public bug reports; November
# 2026.

ANTHROPIC_RULES: tuple[Rule, ...] = (
    # money is gone: the first two look like a rate limit (429), but waiting does not help
    Rule(ANY, codes("""
        enforced_spend_limit_reached contract_spend_limit_reached linked_organization_spend_limit_reached
        linked_organization_billing_unavailable billing_error
    """), FaultKind.FATAL, remedy=MONEY),
    Rule(ANY, codes("""
        organization_on_hold organization_type_not_supported sandbox_egress_restricted cmek_key_disabled
        cmek_key_network_blocked permission_error
    """), FaultKind.FATAL, remedy=ACCESS),
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
            "output_config", "compiled grammar is too large", "for this model", "on this model",
            "Extra inputs are not permitted", "max_tokens: ", "temperature: ",
        )
    ),
    Rule((400,), NOTHING, FaultKind.TASK, remedy=TOO_LONG, says="prompt is too long"),
    Rule((400,), NOTHING, FaultKind.TASK, remedy=TOO_LONG, says="exceed context limit"),
    *BY_STATUS,
)  # fmt: skip


def read_anthropic_error(data: Any) -> ErrorBody:
    """The error within a body. What look-alikes and gateways say in OpenAI's ways is understood too."""
    error = read_openai_error(data)
    code = text(mapping(mapping(data).get("error")).get("details"), "error_code")
    return replace(error, code=code) if code else error
