"""Rules about refusals: what an error is about, and what every dialect has in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agac.core.errors import ErrorType
from agac.core.types import About

# Decided on status, type and code, never on the words of a message, but for rules that say so.

Operation = Literal["call", "upload", "create", "list", "known", "batch"]
"""What was refused: `call`: a call, or a line of a batch; `upload`: the upload of a file; `create`:
the creation of a batch; `list`: a list; `known`: a request about a file or a batch that was there
before; `batch`: a batch that was created and then refused as a whole."""

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
    """What the error is about."""
    type: ErrorType = ErrorType.PROVIDER_ERROR
    """The type under which the error is reported."""
    remedy: str = ""
    """What to do, with the fields `{key} {provider} {model} {base_url}`."""
    retries: int | None = None
    """How often at most the same request is worth another try; None: as the policy says."""
    ambiguous: bool = False
    """True if the work may have been done."""
    says: str = ""
    """A pattern that the message must match, in any case, where a provider gives neither code nor
    type."""
    resets: bool = False
    """True if it ends by itself, at a time that the server may tell."""
    of: frozenset[Operation] = EVERYTHING
    """What must have been refused for the rule to apply."""


ANY = range(1000)

NOTHING: frozenset[str] = frozenset()


def codes(names: str) -> frozenset[str]:
    """Returns names of errors as rules compare them."""
    return frozenset(spelling(name) for name in names.split())


def spelling(name: str) -> str:
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
"""A meaning that is read out of an error, in addition to its code and type: what came is not JSON,
as an API's own errors are."""
OVER_LIMIT = "(over the limit)"
"""The same: it asks for more than a whole limit allows."""
OVER_RATE = "(over the rate)"
"""The same: it asks for more than is left of a limit."""
NO_LIMIT = "(a limit of nothing)"
"""The same: the limit is 0, so that nothing passes."""

_LATE_FILE = (
    r"(?:cannot|can't|could not|couldn't) find .{0,20}\bfile\b|no such file\b"
    r"|\bfile\b.{0,80}(?:not found|not be found|does not exist|doesn't exist|no access)"
)
"""Words for a file just uploaded that is nowhere yet
(github.com/bespokelabsai/curator/issues/116); it has no code."""

_TOO_LARGE_FILE = (
    r"\b(?:file|body|payload|batch|request entity)\b"
    r".{0,60}(?:too large|too big|exceed.{0,30}\b(?:size|bytes|mb)\b)"
    r"|too many (?:requests|tasks|lines) in|maximum (?:file|body|content) (?:size|length)"
)
"""Words for the file of a batch that is larger than the provider takes."""

_FRAME_WORDS = (
    r"invalid schema for (?:response_format|function)"
    r"|invalid (?:function|tool) (?:schema|parameters|declaration)"
    r"|tools?(?:\.|\[)\d+(?:\.|\]).{0,40}(?:input_schema|parameters|name)|function_declarations\["
    r"|not supported (?:by|in|for|with) the batch api|does not support batch|invalid json schema"
    r"|\b(?:response_format|json_schema|tools?|tool_choice|function calling|structured outputs?)\b"
    r".{0,20}\bnot supported|response_format type is unavailable|tool choice requires"
    r"|does not support (?:tools?\b|tool use|thinking|function calling)"
    r"|does not support (?:response[_ ]format|structured output|json schema)"
    r"|schema contains features not supported|schema produces a constraint"
    r"|requested exceeds? the model limit"
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
"""Words for a model that is not there, or not available. Only its name may be between them: a
row's image may be not found, too."""

_MONEY_WORDS = (
    r"used all available credits|monthly spending limit|in arrears"
    r"|(?:budget has been|key limit) exceeded|over budget"
    r"|usage limit for this billing cycle|monthly usage limit|limited to [\d,]+ API calls / month"
    r"|(?:insufficient|not enough) (?:balance|credits?|funds)"
)
"""Words for an account without money, from xAI, Z.ai, LiteLLM, OpenRouter, Moonshot and Cohere."""

_LENGTH_WORDS = (
    r"maximum (?:context|prompt) length|\bcontext (?:length|size|window)\b"
    r"|exceed(?:s|ed)? (?:the )?context limit|exceeded model token limit|input token count"
    r"|total message size|`inputs` tokens|^too many tokens: "
    r"|(?:prompt|input) is too long|prompt exceeds max length|tokens too long|ContextWindowExceeded"
)
"""Words for a prompt that is longer than the model takes, from vLLM, SGLang, TGI, LM Studio,
Together and others."""

_FILTER_WORDS = (
    r"violates? .{0,40}(?:guideline|polic)|content (?:polic|filter|moderation)|flagged"
    r"|content exists risk|safety (?:check|system|filter|policy)|considered high risk"
    r"|sensitive (?:content|words?|check)"
)
"""Words for a text that was refused, by any filter."""

_ACCESS_WORDS = (
    r"\b(?:api[ -]?key|credential|permission|region|country|territory|project|organi[sz]ation"
    r"|account)\b"
    r"|not authori[sz]ed|not allowed to|no access|access to (?:the |this )?model"
)
"""Words for an account or a key that may not do this."""

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
            file_too_large request_too_large payload_too_large too_many_tasks
            too_many_requests_in_batch
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
            model_mismatch mismatched_model url_mismatch invalid_url invalid_method
            invalid_endpoint
        """),
        About.FRAME,
        remedy=REQUEST,
        of=SENDING,
    ),
    Rule(
        ANY,
        codes("server_error internal_error internal_server_error"),
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
        says=_FILTER_WORDS,
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
            AccessDeniedException access_terminated_error request_forbidden
            unsupported_country_region_territory insufficient_permissions not_authorized
            unauthorized account_suspended account_disabled
        """),
        About.ACCOUNT,
        remedy=ACCESS,
    ),
    Rule(
        (403,),
        NOTHING,
        About.ACCOUNT,
        remedy=ACCESS,
        says=_ACCESS_WORDS,
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
