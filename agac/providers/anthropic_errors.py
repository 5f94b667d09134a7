"""What Anthropic's errors mean for a run: one table.

Decided on status, `error.type` and `error.details.error_code`; by their words only where nothing else says it.
Sources: platform.claude.com/docs/en/api/errors, the types of the anthropic SDK 2.12, public bug reports; November 2026.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agac.core.errors import ErrorType
from agac.core.types import FaultKind
from agac.providers.errorrules import (
    ACCESS,
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
from agac.providers.openai_errors import read_error as read_like_openai

RULES: tuple[Rule, ...] = (
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


def read_error(data: Any) -> ErrorBody:
    """The error within a body. What look-alikes and gateways say in OpenAI's ways is understood too."""
    error = read_like_openai(data)
    details = data["error"].get("details") if isinstance(data, dict) and isinstance(data.get("error"), dict) else None
    code = details.get("error_code") if isinstance(details, dict) else None
    return replace(error, code=code) if isinstance(code, str) and code else error
