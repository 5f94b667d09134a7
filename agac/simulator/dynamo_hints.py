"""Dynamo's hints in a request: `nvext.agent_hints`."""

from __future__ import annotations

import json
from typing import Any

from agac.simulator.api_errors import ApiError, invalid
from agac.simulator.kinds import (
    COUNT,
    OBJECT,
    TRUTH,
    JsonObject,
    ValueKind,
    is_number,
    wrong_parameters,
)
from agac.simulator.model_calls import read_object

HINTS: dict[str, ValueKind] = {
    "osl": COUNT,
    "speculative_prefill": TRUTH,
    "latency_sensitivity": ValueKind(is_number, "a number"),
    "priority": ValueKind(lambda value: is_number(value, int), "an integer"),
}
"""The hints that Dynamo takes: `latency_sensitivity` in 1.0 alone, `priority` from 1.1 on."""


def take_hints(body: bytes, version: str) -> tuple[bytes, JsonObject]:
    """Returns a request without `nvext`, and the hints in it.

    Raises ApiError for what a Dynamo of this version refuses.
    """
    if b'"nvext"' not in body:
        return body, {}
    data = read_object(body)
    unknown = "priority" if version == "1.0" else "latency_sensitivity"
    kinds = {name: HINTS[name] for name in HINTS if name != unknown}
    extension = data.pop("nvext", {})
    check_fields(extension, "nvext", {"agent_hints": OBJECT})
    hints = extension.get("agent_hints", {})
    check_fields(hints, "nvext.agent_hints", kinds)
    return json.dumps(data).encode(), hints


def check_fields(fields: Any, place: str, kinds: dict[str, ValueKind]) -> None:
    """Raises ApiError for fields that are unknown, or of another kind."""
    if not isinstance(fields, dict):
        raise invalid(place, "an object")
    for name in sorted(fields.keys() - kinds.keys()):
        known = ", ".join(kinds)
        raise ApiError(400, f"{place}: unknown field `{name}`, expected one of {known}")
    for name, wanted in wrong_parameters(fields, kinds):
        raise invalid(f"{place}.{name}", wanted)
