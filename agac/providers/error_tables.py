"""What a refusal is about: the rules, and one table for each dialect, for calls, batches and their
files alike."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.text import beginning
from agac.core.types import KIND_OF, About, Fault, FaultKind
from agac.providers.bodies import json_of
from agac.providers.error_bodies import ErrorBody
from agac.providers.error_rules import (
    ACCESS,
    ANY,
    BLOCKED,
    BY_STATUS,
    CALLS,
    FIRST,
    KEY,
    MODEL,
    MONEY,
    NO_JSON,
    NO_LIMIT,
    NOTHING,
    OF_ALL,
    OVER_LIMIT,
    OVER_RATE,
    QUOTA,
    REQUEST,
    TOO_LONG,
    Operation,
    Rule,
    codes,
    spelling,
)
from agac.providers.provider import Provider
from agac.providers.waits import asked_delay, reset_delay, told_delay

MESSAGE_LENGTH = 500  # characters of a provider's own words that a Fault quotes at most


class ErrorAnswer(NamedTuple):
    """An answer that is no reply, as it came."""

    status: int
    """Its HTTP status."""
    headers: Mapping[str, str]
    """Its headers, which are looked up in lower case."""
    body: bytes
    """Its body."""


WORTH_ANOTHER_TRY = (FaultKind.RETRY, FaultKind.PAUSE)


def fault_of(
    error: ErrorBody,
    rules: Sequence[Rule],
    answer: ErrorAnswer,
    *,
    provider: Provider,
    model: str,
    redactor: Redactor,
    of: Operation = "call",
) -> Fault:
    """Returns the fault that an answer without a reply means: its error's first rule decides."""
    if not error.message:
        error = replace(error, message=_plain_text(answer.body))
    error = _with_meaning(error, answer)
    rule = refusal(error, rules, answer.status, of)
    kind = _kind_of(rule, error, answer.headers)
    retries = rule.retries
    if KIND_OF[rule.about] in WORTH_ANOTHER_TRY and _retry_advice(answer.headers) == "false":
        retries = 0
    delay = None
    if rule.resets or kind in WORTH_ANOTHER_TRY:
        delay = _delay_of(error, answer.headers)
    message = redactor.clean(_message_of(error, answer, provider))
    remedy = redactor.clean(_remedy_of(rule, provider, model))
    remedies = ("", "")
    if rule.about is About.UNSURE:
        remedies = (remedy, BLOCKED)
    else:
        message = with_remedy(message, remedy)
    return Fault(
        kind=kind,
        type=rule.type,
        message=message,
        delay=delay,
        status=answer.status,
        ambiguous=rule.ambiguous,
        retries=retries,
        code=redactor.clean(error.name)[:80],  # the sender of the error chose it
        about=rule.about,
        remedies=remedies,
    )


def _kind_of(rule: Rule, error: ErrorBody, headers: Mapping[str, str]) -> FaultKind:
    """Returns the kind of fault of a rule, or RETRY where the server says that a retry helps."""
    kind = KIND_OF[rule.about]
    if kind is FaultKind.TASK and _retry_advice(headers) == "true" and not error.meaning:
        return FaultKind.RETRY
    return kind


def _retry_advice(headers: Mapping[str, str]) -> str | None:
    """Returns the server's own word on whether the same call can succeed later, if it has one."""
    return headers.get("x-should-retry")


def _message_of(error: ErrorBody, answer: ErrorAnswer, provider: Provider) -> str:
    """Returns the message of a fault: status, the error's name, its words, the request's id."""
    headers = answer.headers
    named = f" ({error.name})" if error.name else ""
    words = _words(error, answer.body)
    message = f"{provider.name} answered {answer.status}{named}: {words}"
    request_id = headers.get("x-request-id") or headers.get("request-id") or headers.get("cf-ray")
    if request_id:
        message += f" [request {request_id[:80]}]"
    return message


def _remedy_of(rule: Rule, provider: Provider, model: str) -> str:
    """Returns what a rule says is to be done, for this provider and model."""
    key = provider.key_variable or f"the key for {provider.name}"
    remedy = rule.remedy.format(
        provider=provider.name, model=model, base_url=provider.base_url, key=key
    )
    return re.sub("^the key", "The key", remedy)


def with_remedy(message: str, remedy: str) -> str:
    """Returns a message, followed by what to do where there is something to do."""
    if remedy:
        return f"{message.removesuffix('.')}. {remedy}"
    return message


def refusal(error: ErrorBody, rules: Sequence[Rule], status: int | None, of: Operation) -> Rule:
    """Returns the first rule that an error meets. `status` None: it came without one."""
    if _is_good_or_missing(status):
        status = error.status or status
    return next(rule for rule in rules if of in rule.of and _applies(rule, status, error))


def _is_good_or_missing(status: int | None) -> bool:
    return status is None or 200 <= status < 300


def _applies(rule: Rule, status: int | None, error: ErrorBody) -> bool:
    """True if an error meets a rule: by its words, its name and its status."""
    if rule.says and re.search(rule.says, error.message, re.IGNORECASE | re.DOTALL) is None:
        return False
    if not rule.codes:
        return (400 if status is None else status) in rule.statuses
    names = (spelling(error.code), spelling(error.type), error.meaning)
    if rule.codes.isdisjoint(names):
        return False
    # an error that came without a status, or with a good one, has only its code to go by
    return _is_good_or_missing(status) or status in rule.statuses


def _delay_of(error: ErrorBody, headers: Mapping[str, str]) -> float | None:
    """Returns the seconds that the server asks us to wait: by its headers, its body, its words, or
    until a limit is reset."""
    asked = asked_delay(headers)
    if asked is not None:
        return asked
    if error.delay is not None:
        return error.delay
    in_words = told_delay(error.message, headers.get("date"))
    if in_words is not None:
        return in_words
    return reset_delay(headers)


_NUMBER = (
    r"(?P<digits>\d{1,3}(?:[,_ .'\u00a0\u202f]\d{3})+(?!\.?\d)|\d{1,15}(?![\d.]*[1-9]))"
    r"(?P<unit>[kKM]\b)?"
)
"""A whole number, perhaps with its thousands apart, or in thousands or millions."""

_UNITS = {"k": 1_000, "m": 1_000_000}
_LIMIT = re.compile(rf"\blimit(?:ed)?\b(?:\s*(?:of|is|was|to|:|=))*\s*{_NUMBER}", re.IGNORECASE)
_USED = re.compile(rf"\bused\b(?:\s*(?::|=))*\s*{_NUMBER}", re.IGNORECASE)
_REQUESTED = re.compile(
    r"\b(?:requested|request (?:of|has|uses|needs|requires))\b"
    rf"(?:\s*(?:tokens|is|:|=|~|about))*\s*{_NUMBER}",
    re.IGNORECASE,
)
_TOO_LARGE_REQUEST = re.compile(
    r"request (?:is )?too large|must be reduced in order to run", re.IGNORECASE
)
_OF_REQUESTS = re.compile(r"\brequests? (?:per|a|in)\b|\d requests\b|\bRP[SMHD]\b")


def _with_meaning(error: ErrorBody, answer: ErrorAnswer) -> ErrorBody:
    """Returns an error with the meaning that its words or its form have, where no code has it."""
    meaning = _meaning_of(error.message)
    if not meaning and not isinstance(json_of(answer.body), (dict, list)):
        meaning = NO_JSON
    return replace(error, meaning=meaning) if meaning else error


def _meaning_of(message: str) -> str:
    """Returns what a message says of a limit's numbers; empty where it says nothing of them."""
    limit = _first_number(_LIMIT, message)
    if limit == 0:
        return NO_LIMIT
    if _OF_REQUESTS.search(message) and "token" not in message.lower():
        return ""  # a call is one request, and passes when those before it are past
    requested = _first_number(_REQUESTED, message)
    if requested is None:
        return OVER_LIMIT if _TOO_LARGE_REQUEST.search(message) else ""
    if limit is not None:
        # one request that is larger than the limit is refused at any time: to wait does not help
        if requested > limit:
            return OVER_LIMIT
        if _USED.search(message):
            return OVER_RATE
    return ""


def _first_number(pattern: re.Pattern[str], message: str) -> int | None:
    """Returns the number that a pattern finds first; None: it finds none."""
    match = pattern.search(message)
    if match is None:
        return None
    digits = re.sub(r"\D", "", match["digits"])
    unit = (match["unit"] or "").lower()
    return int(digits) * _UNITS.get(unit, 1)


def _plain_text(body: bytes) -> str:
    """Returns a body that is a text and neither JSON nor a page; an empty text for any other."""
    written = body[: 4 * MESSAGE_LENGTH].decode("utf-8", "replace").strip()
    if written.startswith(("{", "[", '"', "<")):
        return ""
    return written


_TITLE = re.compile(
    r"<title[^<>]{0,200}>([^<]{1,500})|<h1[^<>]{0,200}>([^<]{1,500})", re.IGNORECASE
)
TITLE_LENGTH = 120  # characters of a page's title that are quoted at most


def _page_words(page: str) -> str:
    """Describes an HTML page by its title or its first heading."""
    match = _TITLE.search(page)
    title = ""
    if match:
        title = " ".join(html.unescape(match[1] or match[2]).split())
    titled = f" titled {beginning(title, TITLE_LENGTH)!r}" if title else ""
    return f"an HTML page{titled}, perhaps of a firewall or proxy"


def _words(error: ErrorBody, body: bytes) -> str:
    """Returns the provider's own words on one line, at most MESSAGE_LENGTH characters."""
    words = error.message
    if not words:
        words = body[: 4 * MESSAGE_LENGTH].decode("utf-8", "replace").strip() or "an empty body"
        if words.startswith("<"):
            words = _page_words(words)
    words = " ".join(words.split())
    if len(words) <= MESSAGE_LENGTH:
        return words
    return words[: MESSAGE_LENGTH - 1] + "…"


# Decided on status, `error.type` and `error.code`, never on the words of a message; the two
# exceptions are marked. Sources: platform.openai.com/docs/guides/error-codes, the look-alikes'
# references, public bug reports; November 2026.

OPENAI_RULES: tuple[Rule, ...] = (
    *FIRST,
    # money is gone: looks like a rate limit (429), but waiting does not help; 1113:
    # docs.bigmodel.cn/cn/faq/api-code
    Rule(
        ANY,
        codes("""
            insufficient_quota credit_balance_exhausted organization_spend_limit_exceeded
            project_spend_limit_exceeded organization_usage_limit_exceeded
            billing_hard_limit_reached billing_not_active insufficient_balance
            exceeded_current_quota_error budget_exceeded insufficient_user_quota
            NOT_ENOUGH_BALANCE Arrearage AllocationQuota.FreeTierOnly base_resp.1008 1113 1309
        """),
        About.ACCOUNT,
        remedy=MONEY,
    ),
    Rule(ANY, codes("daily_quota_exceeded"), About.ACCOUNT, remedy=QUOTA, resets=True),
    Rule(
        ANY,
        codes("""
            invalid_api_key API_KEY_INVALID account_deactivated base_resp.1004 base_resp.2049
            1112 1121
        """),
        About.ACCOUNT,
        remedy=KEY,
    ),
    # Gemini: a country, Groq: terms or a project that do not allow it; Moonshot: a plan for another
    # kind of program
    Rule(
        (400, 403),
        codes("""
            FAILED_PRECONDITION model_terms_required model_permission_blocked_project
            permissions_error
        """),
        About.ACCOUNT,
        remedy=ACCESS,
    ),
    Rule(
        (400, 401, 403, 404, 410, 422),
        codes("""
            model_not_found model_not_available model_decommissioned invalid_model
            DeploymentNotFound unsupported_model model_not_supported OperationNotSupported
            key_model_access_denied 1211
        """),
        About.FRAME,
        remedy=MODEL,
    ),
    # llama.cpp says it with 500, too
    Rule(
        (400, 413, 422, 500),
        codes("""
            context_length_exceeded string_above_max_length context_window_exceeded
            exceed_context_size_error token_limit_exceeded tokens_too_long 1261 base_resp.1039
        """),
        About.REQUEST,
        remedy=TOO_LONG,
        of=CALLS,
    ),
    Rule(
        (400, 403, 422),
        codes("""
            content_filter content_policy_violation ResponsibleAIPolicyViolation
            moderation_flagged invalid_prompt bio_policy misalignment_policy_violation
            image_content_policy_violation data_inspection_failed sensitive_words_detected
            prompt_blocked sensitive_check_error safety_check_failed 1301 base_resp.1026
            base_resp.1027
        """),
        About.REQUEST,
        ErrorType.FILTERED,
    ),
    # the request's frame is the same for every row
    Rule(
        (400, 422),
        codes("""
            invalid_json_schema invalid_schema invalid_function_parameters invalid_tool_schema
            unsupported_parameter unsupported_value unknown_parameter
        """),
        About.FRAME,
        remedy=REQUEST,
    ),
    # a stream and a failed response have no status: there the code alone says that it was a rate
    Rule((429,), codes("rate_limit_exceeded base_resp.1002"), About.LANE, ErrorType.RATE_LIMITED),
    # an hour is the most that OpenAI keeps a WebSocket: nothing was done yet
    Rule(ANY, codes("websocket_connection_limit_reached"), About.SERVER),
    Rule(
        ANY, codes("slow_down server_is_overloaded overloaded_error capacity_exceeded"), About.LANE
    ),
    # Groq: the model's JSON, or its call of a tool, did not pass its check; the next answer may
    Rule(
        (400,),
        codes("json_validate_failed tool_use_failed"),
        About.SERVER,
        ErrorType.INVALID_JSON,
        retries=2,
    ),
    Rule(ANY, codes("overloaded"), About.LANE),
    # by their words, for want of a code: OpenAI says it of valid bodies now and then, xAI of a
    # wrong key
    Rule((400,), NOTHING, About.SERVER, retries=1, says="could not parse the JSON body"),
    *OF_ALL,
    # TGI, whose streams have a status of 200 all the same
    Rule(ANY, codes("validation template_error"), About.REQUEST),
    *BY_STATUS,
)


# Decided on status, `error.type` and `error.details.error_code`; by their words only where nothing
# else says it. Sources: platform.claude.com/docs/en/api/errors, the types of the anthropic SDK
# 2.12, public bug reports; November 2026.

ANTHROPIC_RULES: tuple[Rule, ...] = (
    *FIRST,
    # money is gone: the first two look like a rate limit (429), but waiting does not help
    Rule(
        ANY,
        codes("""
            enforced_spend_limit_reached contract_spend_limit_reached
            linked_organization_spend_limit_reached linked_organization_billing_unavailable
            billing_error
        """),
        About.ACCOUNT,
        remedy=MONEY,
    ),
    Rule(
        ANY,
        codes("""
            organization_on_hold organization_type_not_supported sandbox_egress_restricted
            cmek_key_disabled cmek_key_network_blocked permission_error
        """),
        About.ACCOUNT,
        remedy=ACCESS,
    ),
    Rule((403,), codes("forbidden"), About.ACCOUNT, remedy=ACCESS),  # a country that is not served
    Rule(ANY, codes("authentication_error"), About.ACCOUNT, remedy=KEY),
    Rule(ANY, codes("not_found_error"), About.FRAME, remedy=MODEL),
    Rule(ANY, codes("request_too_large"), About.REQUEST, remedy=TOO_LONG),
    # a stream has no status: there the type alone says what it was
    Rule(ANY, codes("overloaded_error"), About.LANE),
    Rule(ANY, codes("rate_limit_error ramp_limit_exceeded"), About.LANE, ErrorType.RATE_LIMITED),
    Rule(ANY, codes("timeout_error"), About.SERVER, ErrorType.TIMEOUT, ambiguous=True),
    # by their words, for want of a code: a limit that the user set, an empty balance, a closed
    # account
    Rule((400,), NOTHING, About.ACCOUNT, remedy=MONEY, says="API usage limits", resets=True),
    Rule((400,), NOTHING, About.ACCOUNT, remedy=MONEY, says="credit balance is too low"),
    Rule((400,), NOTHING, About.ACCOUNT, remedy=ACCESS, says="organization has been disabled"),
    # by their words: the request's frame is the same for every row
    *(
        Rule((400,), NOTHING, About.FRAME, remedy=REQUEST, says=words)
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
    Rule((400,), NOTHING, About.REQUEST, remedy=TOO_LONG, says="prompt is too long"),
    Rule((400,), NOTHING, About.REQUEST, remedy=TOO_LONG, says="exceed context limit"),
    *OF_ALL,
    *BY_STATUS,
)
