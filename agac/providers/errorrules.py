"""What errors mean for a run: the rules that a dialect's table is made of, and the Fault that one of them gives.

Decided on status, type and code, never on the words of a message, but for rules that say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers.provider import Provider
from agac.providers.ratelimits import asked_delay

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
