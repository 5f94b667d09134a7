"""OpenAI's strict mode: which schemas it refuses before any model is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agac.simulator.asks import ApiError


def check_strict(schema: Any, name: str) -> None:
    """Refuses, as OpenAI does in strict mode, objects that are open or have properties that are not required."""
    problem = next(problems_of(schema, ()), None)
    if not (isinstance(schema, dict) and schema.get("type") == "object"):
        problem = "schema must be a JSON Schema of 'type: \"object\"'"
    if problem is not None:
        message = f"Invalid schema for response_format '{name}': {problem}."
        raise ApiError(400, message, code="invalid_json_schema", param="response_format")


def problems_of(schema: Any, path: tuple[str, ...]) -> Iterator[str]:
    """What strict mode does not allow, in this schema and in those within it."""
    if not isinstance(schema, dict):
        return
    types = schema.get("type")
    if "object" in (types if isinstance(types, list) else [types]) or "properties" in schema:
        yield from object_problems(schema, path)
    for keyword in ("properties", "$defs", "definitions"):
        parts = schema.get(keyword)
        for key, part in parts.items() if isinstance(parts, dict) else ():
            yield from problems_of(part, (*path, keyword, key))
    yield from problems_of(schema.get("items"), (*path, "items"))
    for keyword in ("anyOf", "prefixItems"):
        parts = schema.get(keyword)
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            yield from problems_of(part, (*path, keyword, str(place)))


def object_problems(schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """What strict mode does not allow in one object."""
    if schema.get("additionalProperties") is not False:
        yield f"In context={path}, 'additionalProperties' is required to be supplied and to be false"
    required, properties = schema.get("required"), schema.get("properties")
    for key in properties if isinstance(properties, dict) else ():
        if not isinstance(required, list) or key not in required:
            yield (
                f"In context={path}, 'required' is required to be supplied and to be an array including every key in "
                f"properties. Missing '{key}'"
            )
