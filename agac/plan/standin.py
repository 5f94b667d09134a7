"""A value of about the size and shape of an answer that is not there yet, so that what follows it can be rendered."""

from __future__ import annotations

from typing import Any

from agac.core.types import JSONValue
from agac.plan.stage import AnyStage

TEXT = "x" * 60
"""A field of text: a dozen words."""

FREE = "x" * 1000
"""An answer without a schema."""


def stand_in(stage: AnyStage) -> JSONValue:
    """What the stage might answer."""
    return FREE if stage.shape is None else _of_shape(stage.shape, 0)


def _of_shape(body: Any, depth: int) -> JSONValue:
    if not isinstance(body, dict) or depth > 8:
        return TEXT
    if body.get("enum"):
        return body["enum"][0]
    if isinstance(body.get("properties"), dict):
        return {name: _of_shape(inner, depth + 1) for name, inner in body["properties"].items()}
    match body.get("type"):
        case "array":
            return [_of_shape(body.get("items"), depth + 1)] * max(1, body.get("minItems", 1) if depth == 0 else 1)
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case _:
            return TEXT
