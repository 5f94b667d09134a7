"""What a refusal is about: the rules, and one table for each dialect, for calls, batches and their
files alike."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.text import beginning
from agac.core.types import KIND_OF, About, Fault, FaultKind
from agac.providers.bodies import http_status, items, json_of, mapping, objects, text
from agac.providers.provider import Provider
from agac.providers.waits import asked_delay, headers_within, reset_delay, seconds_until, told_delay

# Decided on status, type and code, never on the words of a message, but for rules that say so.

MESSAGE_LENGTH = 500  # characters of a provider's own words that a Fault quotes at most

Operation = Literal["call", "upload", "create", "list", "known", "batch"]
"""What was refused: a call or a line of a batch, the upload of a file, the creation of a batch, a
list; a request about a file or a batch that was there before; a batch that was created and then
refused as a whole."""

EVERYTHING: frozenset[Operation] = frozenset({"call", "upload", "create", "list", "known", "batch"})
CALLS: frozenset[Operation] = frozenset({"call"})
MAKING: frozenset[Operation] = frozenset({"upload", "create", "list"})
SENDING: frozenset[Operation] = frozenset({"upload", "create", "batch"})
HOLDING: frozenset[Operation] = frozenset({"call", "upload", "create"})  # what holds texts of rows
FILES: frozenset[Operation] = frozenset({"upload", "create"})


@dataclass(frozen=True, slots=True)
class Rule:
    """What an error is about, which says what is done about it (`core.types.KIND_OF`). A dialect's
    table ends with BY_STATUS, whose last rule every error meets."""

    statuses: range | tuple[int, ...]
    """HTTP statuses. An error that came without one is known by its code and its words alone."""
    codes: frozenset[str]
    """Compared with an error's code, type and meaning; none: any."""
    about: About
    type: ErrorType = ErrorType.PROVIDER_ERROR
    remedy: str = ""
    """What to do, with the fields `{key} {provider} {model} {base_url}`."""
    retries: int | None = None
    """How often at most the same request is worth another try; None: as the policy says."""
    ambiguous: bool = False
    """Whether the work may have been done."""
    says: str = ""
    """A pattern that the message must hold, in any case, where a provider gives neither code nor
    type."""
    resets: bool = False
    """Whether it ends by itself, at a time that the server may tell."""
    of: frozenset[Operation] = EVERYTHING


ANY = range(1000)

NOTHING: frozenset[str] = frozenset()


def codes(names: str) -> frozenset[str]:
    """Returns names of errors as rules compare them."""
    return frozenset(_as_code(name) for name in names.split())


def _as_code(name: str) -> str:
    """Returns a code or type in one spelling: `INSUFFICIENT_QUOTA` and `insufficient-quota` are
    the same."""
    return name.lower().replace("-", "_")


MONEY = "Add credit or raise the limit at {provider}, then run again: what is finished is kept."
QUOTA = (
    "Add credit or raise the limit at {provider}, or wait until the quota is reset; then run again."
)
KEY = "Check {key}, then run again."
ACCESS = "{key} may not use this: check the model, and the project and region of the key."
NO_API = (
    "If a firewall or proxy refused it, change the text that it refuses, or have it let through. "
    "If not, {key} may not use this: check the model, and the project and region of the key."
)
BLOCKED = (
    "The key was accepted before, so a firewall or gateway in front of the provider seems to "
    "refuse this row's text; change it."
)
MODEL = "Check the model name `{model}` and the address {base_url}."
REQUEST = "Every row would meet it: change the model's parameters or the schema, or that of a tool."
TOO_LONG = "Shorten the prompt or the row's fields, or use a model with a larger context."
NO_ACCESS = (
    "The account's limit for `{model}` is 0: use another model, or have the limit raised "
    "at {provider}."
)
TOO_MUCH = (
    "Shorten the prompt or the row's fields, or raise the limit of the account at {provider}."
)
NO_BATCHES = (
    "Does {base_url} offer files and batches? If not, run it with --run-mode sync, or write "
    "run_mode: sync in the workflow (and batch: none for {provider} in agac.yml)."
)

NO_JSON = "(no json)"
OVER_LIMIT = "(over the limit)"
OVER_RATE = "(over the rate)"
NO_LIMIT = "(a limit of nothing)"
"""Meanings that are read out of an error, beside its code and type: what came is not JSON, as an
API's own errors are; it asks for more than a whole limit allows; for more than is left of one; the
limit is 0, so that nothing passes."""

_LATE_FILE = (
    r"(?:cannot|can't|could not|couldn't) find .{0,20}\bfile\b|no such file\b"
    r"|\bfile\b.{0,80}(?:not found|not be found|does not exist|doesn't exist|no access)"
)
"""Words for a file just uploaded that is nowhere yet
(github.com/bespokelabsai/curator/issues/116); it has no code."""

_TOO_LARGE_FILE = (
    r"\b(?:file|body|payload|batch|request entity)\b.{0,60}(?:too large|too "
    r"big|exceed.{0,30}\b(?:size|bytes|mb)\b)"
    r"|too many (?:requests|tasks|lines) in|maximum (?:file|body|content) (?:size|length)"
)

_FRAME_WORDS = (
    r"invalid schema for (?:response_format|function)|invalid (?:function|tool) "
    r"(?:schema|parameters|declaration)"
    r"|tools?(?:\.|\[)\d+(?:\.|\]).{0,40}(?:input_schema|parameters|name)|function_declarations\["
    r"|not supported (?:by|in|for|with) the batch api|does not support batch|invalid json schema"
    r"|\b(?:response_format|json_schema|tools?|tool_choice|function calling|structured outputs?)\b"
    r".{0,20}\bnot supported|response_format type is unavailable|tool choice requires"
    r"|does not support (?:tools?\b|tool use|thinking|function calling)"
    r"|does not support (?:response[_ ]format|structured output|json schema)"
    r"|schema contains features not supported|schema produces a constraint|requested exceeds? "
    r"the model limit"
)
"""Words for what is the same in every row's request, from OpenAI, Anthropic, Gemini and those who
look alike."""

_NO_MODEL = (
    r"(?:inputs?|outputs?|images?|audio|videos?|files?|access|vision|responses?|parameters?"
    r"|formats?)\b"
)
"""Words after `model` that make it speak of something else: a row's image may be a model's input.
"""

_MODEL_WORDS = (
    rf"(?<!for )\bmodel\b[\s:]{{0,2}}(?!{_NO_MODEL})[`'\"]?[\w./:@-]{{0,80}}[`'\"]?\s"
    r"(?:does not exist|(?:is |was )?not (?:found|available|supported))"
    rf"|\b(?:unknown|no such|invalid|unsupported) model\b(?!\s{{1,3}}{_NO_MODEL})"
    r"|no such deployment|not a valid model|no models? loaded"
    r"|with on-demand throughput|does not work with the specified model"
)
"""Words for a model that is not there, or not to be had. Nothing but its name stands between: a
row's image may be not found, too."""

_MONEY_WORDS = (
    r"used all available credits|monthly spending limit|in arrears|(?:budget has been|key "
    r"limit) exceeded|over budget"
    r"|usage limit for this billing cycle|monthly usage limit|limited to [\d,]+ API calls / month"
    r"|(?:insufficient|not enough) (?:balance|credits?|funds)"
)
"""Words for an account without money, from xAI, Z.ai, LiteLLM, OpenRouter, Moonshot and Cohere."""

_LENGTH_WORDS = (
    r"maximum (?:context|prompt) length|\bcontext (?:length|size|window)\b|exceed(?:s|ed)? "
    r"(?:the )?context limit"
    r"|exceeded model token limit|input token count|total message size|`inputs` tokens|^too "
    r"many tokens: "
    r"|(?:prompt|input) is too long|prompt exceeds max length|tokens too long|ContextWindowExceeded"
)
"""Words for a prompt that is longer than the model takes, from vLLM, SGLang, TGI, LM Studio,
Together and others."""

_KEY_WORDS = r"incorrect API key|API key (?:not valid|expired|not found)|invalid API key"

FIRST: tuple[Rule, ...] = (
    # limits with numbers: waiting helps only where the request alone fits within the limit
    Rule((413, 429), frozenset({NO_LIMIT}), About.ACCOUNT, remedy=NO_ACCESS, of=CALLS),
    Rule((413, 429), frozenset({OVER_LIMIT}), About.REQUEST, remedy=TOO_MUCH, of=CALLS),
    Rule((413,), frozenset({OVER_RATE}), About.LANE, ErrorType.RATE_LIMITED, of=CALLS),
    # what was there a minute ago, and is late to show (provider-batch.md 13, 17) or gone for good
    Rule((404,), NOTHING, About.SERVER, of=frozenset({"known"})),
    Rule((410,), NOTHING, About.REQUEST, of=frozenset({"known"})),
    # the account's limit on enqueued tokens: at once, or (Azure) with a batch that failed
    Rule(
        ANY,
        codes("""
        token_limit_exceeded enqueued_token_limit_exceeded batch_token_limit_exceeded
    """),
        About.QUEUE,
        ErrorType.RATE_LIMITED,
        of=SENDING,
    ),
    Rule(
        ANY,
        NOTHING,
        About.QUEUE,
        ErrorType.RATE_LIMITED,
        says="enqueued.*limit|limit.*enqueued",
        of=SENDING,
    ),
    # learn.microsoft.com/azure/ai-foundry/openai/how-to/batch lists Azure's codes
    Rule((413,), NOTHING, About.SIZE, of=SENDING),
    Rule(
        (400, 413, 422),
        codes("""
        file_too_large request_too_large payload_too_large too_many_tasks too_many_requests_in_batch
    """),
        About.SIZE,
        of=SENDING,
    ),
    Rule((400, 422), NOTHING, About.SIZE, says=_TOO_LARGE_FILE, of=SENDING),
    Rule((400, 404), codes("input_file_not_found"), About.INPUT, of=frozenset({"create"})),
    Rule((400, 404), NOTHING, About.INPUT, says=_LATE_FILE, of=frozenset({"create"})),
    Rule((404,), codes("not_found_error"), About.FRAME, remedy=NO_BATCHES, of=MAKING),
    Rule(
        (400, 404, 422),
        codes("""
        model_mismatch mismatched_model url_mismatch invalid_url invalid_method invalid_endpoint
    """),
        About.FRAME,
        remedy=REQUEST,
        of=SENDING,
    ),
    Rule(
        ANY,
        codes("""
        server_error internal_error internal_server_error
    """),
        About.SERVER,
        of=frozenset({"batch"}),
    ),
)
"""What is about a limit's numbers, a file or a batch, in any dialect: the beginning of every
dialect's table."""

OF_ALL: tuple[Rule, ...] = (
    Rule((400, 403, 429), NOTHING, About.ACCOUNT, remedy=MONEY, says=_MONEY_WORDS),
    Rule((400, 403), NOTHING, About.ACCOUNT, remedy=KEY, says=_KEY_WORDS),
    # LM Studio says it with a status of 200
    Rule(
        (200, 400, 403, 413, 422),
        NOTHING,
        About.REQUEST,
        remedy=TOO_LONG,
        says=_LENGTH_WORDS,
        of=CALLS,
    ),
    # a text that was refused, whoever filters it (xAI says it with 403 and names the key, too)
    Rule(
        (400, 403, 422, 451),
        NOTHING,
        About.CONTENT,
        ErrorType.FILTERED,
        of=HOLDING,
        says=(
            r"violates? .{0,40}(?:guideline|polic)|content "
            r"(?:polic|filter|moderation)|flagged|content exists risk"
            r"|safety (?:check|system|filter|policy)|considered high risk|sensitive "
            r"(?:content|words?|check)"
        ),
    ),
    # a page or a bare text where an API would send JSON: a firewall before it, unless the key was
    # never accepted
    Rule((403, 406, 415, 418, 451), frozenset({NO_JSON}), About.UNSURE, remedy=NO_API, of=HOLDING),
    Rule((405,), frozenset({NO_JSON}), About.UNSURE, remedy=MODEL, of=CALLS),
    Rule((405,), frozenset({NO_JSON}), About.UNSURE, remedy=NO_BATCHES, of=FILES),
    Rule((400, 422), frozenset({NO_JSON}), About.UNSURE, remedy=NO_API, of=FILES),
    Rule(
        (403,),
        codes("""
        permission_denied PERMISSION_DENIED permission_error access_denied AccessDenied
        AccessDeniedException
        access_terminated_error
        request_forbidden unsupported_country_region_territory insufficient_permissions
        not_authorized unauthorized
        account_suspended account_disabled
    """),
        About.ACCOUNT,
        remedy=ACCESS,
    ),
    Rule(
        (403,),
        NOTHING,
        About.ACCOUNT,
        remedy=ACCESS,
        says=(
            r"\b(?:api[ "
            r"-]?key|credential|permission|region|country|territory|project|organi[sz]ation|account)\b"
            r"|not authori[sz]ed|not allowed to|no access|access to (?:the |this )?model"
        ),
    ),
    Rule((400, 422), NOTHING, About.FRAME, remedy=REQUEST, says=_FRAME_WORDS),
    Rule((400, 422), NOTHING, About.FRAME, remedy=MODEL, says=_MODEL_WORDS),
    Rule((500,), NOTHING, About.FRAME, remedy=MODEL, says="requires more system memory"),  # Ollama
)
"""What has no code of its own in any dialect: it comes behind a dialect's codes."""

BY_STATUS: tuple[Rule, ...] = (
    Rule((404, 405), NOTHING, About.FRAME, remedy=NO_BATCHES, of=MAKING),
    Rule((401,), NOTHING, About.ACCOUNT, remedy=KEY),
    Rule((402,), NOTHING, About.ACCOUNT, remedy=MONEY),
    Rule((403,), NOTHING, About.UNSURE, remedy=ACCESS, of=CALLS),
    Rule((403,), NOTHING, About.ACCOUNT, remedy=ACCESS),
    Rule((404, 405, 410), NOTHING, About.FRAME, remedy=MODEL),
    Rule(
        (407,),
        NOTHING,
        About.ACCOUNT,
        remedy="The proxy wants credentials: write http://user:password@host.",
    ),
    Rule((408,), NOTHING, About.SERVER, ErrorType.TIMEOUT, ambiguous=True),
    # Fireworks: an account that is suspended, or a model that did not load
    Rule((412,), NOTHING, About.ACCOUNT, remedy=ACCESS),
    Rule((409, 425), NOTHING, About.SERVER),
    Rule((413,), NOTHING, About.SIZE, remedy=TOO_LONG),
    Rule((424,), NOTHING, About.SERVER, retries=2),
    Rule((429,), NOTHING, About.LANE, ErrorType.RATE_LIMITED),
    # 498: Groq's flex tier is full; 529: overloaded
    Rule((498, 503, 529), NOTHING, About.LANE),
    # a gateway gave up on a call that may have gone on behind it; 520 to 530 are Cloudflare's
    Rule((504, 522, 524), NOTHING, About.SERVER, ErrorType.TIMEOUT, ambiguous=True),
    Rule((502, *range(520, 531)), NOTHING, About.SERVER, ambiguous=True),
    Rule(range(400, 500), NOTHING, About.REQUEST),
    Rule(range(500, 600), NOTHING, About.SERVER),
    # a 2xx that says error without saying which, and statuses that HTTP does not know
    Rule(ANY, NOTHING, About.SERVER, ambiguous=True),
)
"""What HTTP itself says, where no code says more: the end of every dialect's table."""


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """What an error's JSON says, whatever its shape. `delay` in seconds; `status` where the body
    names one; `meaning` is one of those that the rules know beside codes."""

    message: str = ""
    type: str = ""
    code: str = ""
    status: int | None = None
    delay: float | None = None
    meaning: str = ""


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
    of: Operation = "call",
) -> Fault:
    """What an answer that is no reply means for the run: what the first of the rules says that it
    meets."""
    name = error.code or error.type
    if error.message:
        error = error
    else:
        error = replace(error, message=_plain_text(body))
    error = _with_meaning(error, status, body)
    rule = refusal(error, rules, status, of)
    kind = KIND_OF[rule.about]
    retries = rule.retries
    advice = headers.get("x-should-retry")
    if kind in (FaultKind.RETRY, FaultKind.PAUSE):
        # `x-should-retry` is the server's own word on whether the same call can succeed later
        retries = 0 if advice == "false" else retries
    elif kind is FaultKind.TASK and advice == "true" and not error.meaning:
        kind = FaultKind.RETRY
    message = (
        f"{provider.name} answered {status}{f' ({name})' if name else ''}: {_words(error, body)}"
    )
    request_id = headers.get("x-request-id") or headers.get("request-id") or headers.get("cf-ray")
    if request_id:
        message += f" [request {request_id[:80]}]"
    key = provider.key_variable or f"the key for {provider.name}"
    about = {"provider": provider.name, "model": model, "base_url": provider.base_url, "key": key}
    remedy = redactor.clean(re.sub("^the key", "The key", rule.remedy.format(**about)))
    is_unsure = rule.about is About.UNSURE
    message = redactor.clean(message)
    return Fault(
        kind=kind,
        type=rule.type,
        message=message if is_unsure else with_remedy(message, remedy),
        delay=_delay_of(error, headers)
        if rule.resets or kind in (FaultKind.RETRY, FaultKind.PAUSE)
        else None,
        status=status,
        ambiguous=rule.ambiguous,
        retries=retries,
        code=redactor.clean(name)[:80],  # an error's own name, of its sender's making
        about=rule.about,
        remedies=(remedy, BLOCKED) if is_unsure else ("", ""),
    )


def with_remedy(message: str, remedy: str) -> str:
    """A message and behind it what to do."""
    if remedy:
        return f"{message.removesuffix('.')}. {remedy}"
    return message


def refusal(error: ErrorBody, rules: Sequence[Rule], status: int | None, of: Operation) -> Rule:
    """The first rule that an error meets; `status` None: it came without one."""
    if status is None or 200 <= status < 300:
        status = error.status or status
    return next(rule for rule in rules if of in rule.of and _applies(rule, status, error))


def _applies(rule: Rule, status: int | None, error: ErrorBody) -> bool:
    if rule.says and re.search(rule.says, error.message, re.IGNORECASE | re.DOTALL) is None:
        return False
    if not rule.codes:
        return (400 if status is None else status) in rule.statuses
    # an error that came without a status, or with a good one, has only its code to go by
    only_code = status is None or 200 <= status < 300
    is_named = not rule.codes.isdisjoint(
        (_as_code(error.code), _as_code(error.type), error.meaning)
    )
    return is_named and (only_code or status in rule.statuses)


def _delay_of(error: ErrorBody, headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks us to wait: by its headers, its body, its words, or when a
    limit is reset."""
    asked = asked_delay(headers)
    if asked is not None:
        return asked
    if error.delay is not None:
        return error.delay
    told = told_delay(error.message, headers.get("date"))
    return reset_delay(headers) if told is None else told


_NUMBER = (
    r"(?P<digits>\d{1,3}(?:[,_ "
    r".'\u00a0\u202f]\d{3})+(?!\.?\d)|\d{1,15}(?![\d.]*[1-9]))(?P<unit>[kKM]\b)?"
)
"""A whole number, perhaps with its thousands apart, or in thousands or millions."""

_UNITS = {"k": 1_000, "m": 1_000_000}
_LIMIT = re.compile(rf"\blimit(?:ed)?\b(?:\s*(?:of|is|was|to|:|=))*\s*{_NUMBER}", re.IGNORECASE)
_USED = re.compile(rf"\bused\b(?:\s*(?::|=))*\s*{_NUMBER}", re.IGNORECASE)
_REQUESTED = re.compile(
    (
        rf"\b(?:requested|request "
        rf"(?:of|has|uses|needs|requires))\b(?:\s*(?:tokens|is|:|=|~|about))*\s*{_NUMBER}"
    ),
    re.IGNORECASE,
)
_TOO_LARGE_REQUEST = re.compile(
    r"request (?:is )?too large|must be reduced in order to run", re.IGNORECASE
)
_OF_REQUESTS = re.compile(r"\brequests? (?:per|a|in)\b|\d requests\b|\bRP[SMHD]\b")


def _with_meaning(error: ErrorBody, status: int, body: bytes) -> ErrorBody:
    """An error with what its words or its form say that has no code."""
    limit, requested = (_first_number(pattern, error.message) for pattern in (_LIMIT, _REQUESTED))
    if limit == 0:
        return replace(error, meaning=NO_LIMIT)
    counts_requests = _OF_REQUESTS.search(error.message) and "token" not in error.message.lower()
    if counts_requests:  # of these a call is one, and passes when those before it are past
        limit = requested = None
    if (
        limit is not None
        and requested is not None
        and (requested > limit or _USED.search(error.message))
    ):
        # one request that is larger than the limit is refused at any time: to wait does not help
        return replace(error, meaning=OVER_LIMIT if requested > limit else OVER_RATE)
    if requested is None and not counts_requests and _TOO_LARGE_REQUEST.search(error.message):
        return replace(error, meaning=OVER_LIMIT)
    is_json = isinstance(json_of(body), (dict, list))
    return error if is_json else replace(error, meaning=NO_JSON)


def _first_number(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    if found is None:
        return None
    return int(re.sub(r"\D", "", found["digits"])) * _UNITS.get((found["unit"] or "").lower(), 1)


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
    """What an HTML page is, with its title, or its first heading."""
    found = _TITLE.search(page)
    if found:
        title = " ".join(html.unescape(found[1] or found[2]).split())
    else:
        title = ""
    titled = f" titled {beginning(title, TITLE_LENGTH)!r}" if title else ""
    return f"an HTML page{titled}, perhaps of a firewall or proxy"


def _words(error: ErrorBody, body: bytes) -> str:
    """The provider's own words on one line, at most MESSAGE_LENGTH characters."""
    words = error.message
    if not words:
        words = body[: 4 * MESSAGE_LENGTH].decode("utf-8", "replace").strip() or "an empty body"
        words = _page_words(words) if words.startswith("<") else words
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
        project_spend_limit_exceeded
        organization_usage_limit_exceeded billing_hard_limit_reached billing_not_active
        insufficient_balance
        exceeded_current_quota_error budget_exceeded insufficient_user_quota NOT_ENOUGH_BALANCE
        Arrearage
        AllocationQuota.FreeTierOnly base_resp.1008 1113 1309
    """),
        About.ACCOUNT,
        remedy=MONEY,
    ),
    Rule(ANY, codes("daily_quota_exceeded"), About.ACCOUNT, remedy=QUOTA, resets=True),
    Rule(
        ANY,
        codes("""
        invalid_api_key API_KEY_INVALID account_deactivated base_resp.1004 base_resp.2049 1112 1121
    """),
        About.ACCOUNT,
        remedy=KEY,
    ),
    # Gemini: a country, Groq: terms or a project that do not allow it; Moonshot: a plan for another
    # kind of program
    Rule(
        (400, 403),
        codes("""
        FAILED_PRECONDITION model_terms_required model_permission_blocked_project permissions_error
    """),
        About.ACCOUNT,
        remedy=ACCESS,
    ),
    Rule(
        (400, 401, 403, 404, 410, 422),
        codes("""
        model_not_found model_not_available model_decommissioned invalid_model DeploymentNotFound
        unsupported_model
        model_not_supported OperationNotSupported key_model_access_denied 1211
    """),
        About.FRAME,
        remedy=MODEL,
    ),
    # llama.cpp says it with 500, too
    Rule(
        (400, 413, 422, 500),
        codes("""
        context_length_exceeded string_above_max_length context_window_exceeded
        exceed_context_size_error
        token_limit_exceeded tokens_too_long 1261 base_resp.1039
    """),
        About.REQUEST,
        remedy=TOO_LONG,
        of=CALLS,
    ),
    Rule(
        (400, 403, 422),
        codes("""
        content_filter content_policy_violation ResponsibleAIPolicyViolation moderation_flagged
        invalid_prompt
        bio_policy misalignment_policy_violation image_content_policy_violation
        data_inspection_failed
        sensitive_words_detected prompt_blocked sensitive_check_error safety_check_failed 1301
        base_resp.1026 base_resp.1027
    """),
        About.REQUEST,
        ErrorType.FILTERED,
    ),
    # the request's frame is the same for every row
    Rule(
        (400, 422),
        codes("""
        invalid_json_schema invalid_schema invalid_function_parameters invalid_tool_schema
        unsupported_parameter
        unsupported_value unknown_parameter
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


def is_error(data: Any) -> bool:
    """Look-alikes report errors with status 200: OpenRouter at the top or in the choice, others by
    `object: error`."""
    if isinstance(data, list):
        return bool(data) and is_error(data[0])
    if not isinstance(data, dict):
        return False
    if data.get("error") or data.get("object") == "error" or isinstance(_choice_error(data), dict):
        return True
    # MiniMax's
    return not data.get("choices") and bool(mapping(data.get("base_resp")).get("status_code"))


_FRAME_PARAMS = re.compile(
    r"(?:body\.)?(?:(?P<model>model)|response_format\b.*|text\.format\b.*|tools\b.*|tool_choice\b.*|functions\b.*)\Z"
)
"""Parameters of a request that are the same for every row."""


def read_openai_error(data: Any) -> ErrorBody:
    """The error within a body: OpenAI's object, a list of one (Gemini), a bare text, FastAPI's
    `detail`, a choice's, or what another server said to a gateway that quotes it."""
    data = mapping(data[0] if isinstance(data, list) and data else data)
    found = _read_error(data)
    for _ in range(_MOST_WITHIN):
        quoted = _quoted_error(data)
        if quoted is None:
            break
        data = quoted
        inner = _read_error(quoted)
        found = ErrorBody(
            inner.message or found.message, inner.type or found.type, inner.code or found.code,
            inner.status or found.status, found.delay if inner.delay is None else inner.delay,
        )  # fmt: skip
    return found


_MOST_WITHIN = 3
"""How many errors one within the other are read: a gateway before a gateway before a model's
server."""


def _quoted_error(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the body with the error of another server that an error quotes: as an object, in a
    list, or as a text."""
    error = data.get("error")
    if isinstance(error, dict) and isinstance(error.get("error"), (dict, str)):
        return error
    if not error and (listed := objects(data.get("errors"))):
        return {"error": listed[0]}
    said = (
        text(error, "message") or (error if isinstance(error, str) else "") or data.get("message")
    )
    if isinstance(said, str) and said.lstrip().startswith("{"):
        said = json_of(said.encode("utf-8", "replace"))
    if not isinstance(said, dict):
        return None
    if is_error(said):
        return said
    if "message" in said:
        return {"error": said}
    return said


def _read_error(data: dict[str, Any]) -> ErrorBody:
    error = data.get("error") or _choice_error(data)
    if isinstance(error, dict):
        return _read_object(error, data)
    refused = mapping(data.get("base_resp"))
    if refused:  # MiniMax: platform.minimax.io/docs/api-reference/errorcode
        return ErrorBody(
            text(refused, "status_msg"), code=f"base_resp.{refused.get('status_code')}"[:40]
        )
    code = _code(data) or text(data, "reason")  # TGI's
    kind = text(data, "type") or text(data, "error_type")
    if isinstance(error, str):
        return ErrorBody(error, kind, code, _status_in(data), _delay_in(data))
    details = data.get("detail")
    listed = objects(details)
    if listed and not data.get("message"):
        return _read_details(listed, kind, code)
    # Mistral and vLLM put the error's fields at the top; FastAPI servers say `detail`
    words = data.get("message") or details or ""
    return ErrorBody(
        words if isinstance(words, str) else str(words),
        kind,
        code,
        _status_in(data),
        _delay_in(data),
    )


def _read_details(details: list[dict[str, Any]], kind: str, code: str) -> ErrorBody:
    """What FastAPI says of a request that does not fit: for each place in it, what is wrong
    there."""
    words = []
    for detail in details:
        place = ".".join(str(part) for part in items(detail.get("loc")))
        said = text(detail, "msg") or text(detail, "message") or str(detail)
        words.append(f"{place}: {said}" if place else said)
        code = code or _code_of_param(place)
    return ErrorBody("; ".join(words), kind, code)


def _read_object(error: dict[str, Any], data: Mapping[str, Any]) -> ErrorBody:
    code = _code(error) or _code_of_param(text(error, "param"))
    delay = None
    metadata = mapping(error.get("metadata"))
    if metadata.get("reasons"):
        # OpenRouter: 403, with the reasons for which the input was flagged
        code = "moderation_flagged"
    quoted = headers_within(metadata.get("headers"))
    if quoted:
        delay = asked_delay(quoted) or reset_delay(quoted)  # OpenRouter: those of who answered
    # Gemini's details: the reason of a refused key, or a quota of the day: waiting a minute does
    # not help then
    for detail in objects(error.get("details")):
        if detail.get("reason") == "API_KEY_INVALID":
            code = "API_KEY_INVALID"
        elif any(
            "PerDay" in text(violation, "quotaId")
            for violation in objects(detail.get("violations"))
        ):
            code = "daily_quota_exceeded"
        delay = seconds_until(text(detail, "retryDelay")) or delay
    delay = delay or _delay_in(error) or _delay_in(metadata) or _delay_in(data)
    kind = text(error, "type") or text(error, "status")
    return ErrorBody(
        text(error, "message"), kind, code, _status_in(error) or _status_in(data), delay
    )


_STATUS_FIELDS = ("code", "status_code", "http_status_code", "status")
"""Where a body repeats its HTTP status, which a stream has no other place for: OpenRouter and
vLLM, Cerebras, Hugging Face, Mistral."""


_DELAY_FIELDS = (
    "retry_after",
    "retry_after_seconds",
    "resets_in_seconds",
    "resets_at",
    "estimated_time",
)
"""Where a body says when to come back: gateways; a plan's quota at OpenAI, as a wait or a moment;
Hugging Face."""


def _delay_in(error: Mapping[str, Any]) -> float | None:
    written = (error.get(name) for name in _DELAY_FIELDS)
    waits = (seconds_until(str(one)) for one in written if isinstance(one, (int, float, str)))
    return next((wait for wait in waits if wait is not None), None)


def _status_in(error: Mapping[str, Any]) -> int | None:
    return next(
        (found for name in _STATUS_FIELDS if (found := http_status(error.get(name), 400))), None
    )


def _code(of: Mapping[str, Any]) -> str:
    """Returns an error's code: a text, or a number of the provider's own that is no HTTP status."""
    code = of.get("code")
    if type(code) is int and 1000 <= code < 100_000:
        return str(code)
    return text(of, "code")


def _code_of_param(param: str) -> str:
    """Returns what is wrong with a request's frame, which some name by its parameter, with or
    without a code."""
    of_frame = _FRAME_PARAMS.match(param)
    if of_frame is None:
        return ""
    if of_frame["model"]:
        return "invalid_model"
    return "invalid_json_schema"


def _choice_error(data: dict[str, Any]) -> Any:
    return mapping(next(iter(items(data.get("choices"))), None)).get("error")


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
        linked_organization_spend_limit_reached
        linked_organization_billing_unavailable billing_error
    """),
        About.ACCOUNT,
        remedy=MONEY,
    ),
    Rule(
        ANY,
        codes("""
        organization_on_hold organization_type_not_supported sandbox_egress_restricted
        cmek_key_disabled
        cmek_key_network_blocked permission_error
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


def read_anthropic_error(data: Any) -> ErrorBody:
    """The error within a body. What look-alikes and gateways say in OpenAI's ways is understood
    too."""
    error = read_openai_error(data)
    code = text(mapping(mapping(data).get("error")).get("details"), "error_code")
    return replace(error, code=code) if code else error
