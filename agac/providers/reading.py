"""What every dialect reads alike: a body's JSON, counts of tokens, and what an answer that is no reply means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agac.core.errors import ErrorType
from agac.core.types import Fault, FaultKind, Finish, Reply, Usage
from agac.providers.provider import Provider

MOST_TOKENS = 1 << 53
"""A count beyond that is none: nothing bills so much, and no database column holds more than 2^63."""

SIMULATOR_MARK = "agac-simulator"
"""The `system_fingerprint` by which the simulator marks what it answers."""


def json_of(body: bytes) -> Any:
    """The body's JSON; None when it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def count(of: Any, name: str) -> int | None:
    """A number of tokens within a usage object; None when it says none, or none that can be."""
    value = of.get(name) if isinstance(of, dict) else None
    return value if type(value) is int and 0 <= value < MOST_TOKENS else None


def unreadable(provider: Provider, status: int, what: str) -> Fault:
    """A good status with something that is neither a reply nor an error: `what` came is said."""
    message = f"{provider.name} answered {status} with {what}"
    return Fault(FaultKind.RETRY, ErrorType.PROVIDER_ERROR, message, status=status, ambiguous=True)


def reply_of(
    data: Mapping[str, Any],
    texts: list[str],
    finish: Finish,
    *,
    usage: Usage,
    refusal: str | None,
    provider: Provider,
    model: str,
) -> Reply:
    """A reply of these messages. A refusal says why the model stopped, but for a filter that cut it off."""
    named, tier = data.get("model"), data.get("service_tier")
    return Reply(
        text=texts[0] if texts else "",
        finish=finish if refusal is None or finish is Finish.FILTER else Finish.REFUSAL,
        usage=usage,
        model=named if isinstance(named, str) and named else model,
        refusal=refusal,
        simulated=provider.simulated or data.get("system_fingerprint") == SIMULATOR_MARK,
        service_tier=tier if isinstance(tier, str) else None,
        others=tuple(texts[1:]),
    )
