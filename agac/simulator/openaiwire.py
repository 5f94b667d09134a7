"""What OpenAI's two APIs, chat completions and responses, have in common: reading bodies, writing errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from agac.simulator.asks import ApiError, canonical

SCHEMA_MARK = "JSON Schema:\n"
"""In a system message, the text after the last of these is the schema that the reply must conform to."""

ROLES = ("assistant", "developer", "system", "user")
FORMATS = ("text", "json_object", "json_schema")

Kind = tuple[Callable[[Any], bool], str]
"""What a parameter must be when it is there, and the words for it."""


def between(low: float, high: float) -> Kind:
    """A number; true and false are none."""
    return (
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high,
        f"a number from {low} to {high}",
    )


COUNT: Kind = (
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
    "an integer of at least 1",
)
TRUTH: Kind = (lambda value: isinstance(value, bool), "true or false")
TEXT: Kind = (lambda value: isinstance(value, str), "a string")
OBJECT: Kind = (lambda value: isinstance(value, dict), "an object")


def read_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"We could not parse the JSON body of your request: {error}") from error
    if not isinstance(data, dict):
        raise ApiError(400, "We expected a JSON object as the body of your request.")
    return data


def check_parameters(
    data: Mapping[str, Any], unsupported: Mapping[str, Any], kinds: Mapping[str, Kind], *, code: str | None = None
) -> None:
    """Refuses parameters that are not simulated, but for the one value that changes nothing. Values of a wrong kind are
    refused with `code`."""
    for name, harmless in unsupported.items():
        if data.get(name) not in (None, harmless):
            raise ApiError(400, f"{name} is not supported by the simulator: leave it out.", param=name)
    for name, (fits, wanted) in kinds.items():
        if data.get(name) is not None and not fits(data[name]):
            raise ApiError(400, f"Invalid '{name}': expected {wanted}.", code=code, param=name)


def read_list(data: Mapping[str, Any], name: str) -> list[Any]:
    """A parameter that must be a list with something in it."""
    value = data.get(name)
    if not isinstance(value, list) or not value:
        raise ApiError(400, f"Invalid '{name}': expected an array with at least one element.", param=name)
    return value


def read_text(content: Any, kinds: tuple[str, ...], param: str) -> str:
    """A message's text; parts of a text are joined. Parts of other kinds are not simulated."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise ApiError(400, f"Invalid '{param}.content': expected a string or an array of text parts.", param=param)


class Form(NamedTuple):
    """Which form of answer is asked for. `schema`, `schema_key` and `strict_name` are an Ask's."""

    kind: str
    schema: Any = None
    schema_key: str = ""
    strict_name: str | None = None


def read_form(
    form: Any,
    place: str,
    messages: tuple[tuple[str, str], ...],
    *,
    within: str = "",
    needed: tuple[str, ...] = ("name",),
) -> Form:
    """What the parameter `place` asks for. A schema is described in it, or in its key `within`, by what is `needed`."""
    if form is None:
        return Form("text", *prompted_schema(messages))
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in FORMATS:
        param = f"{place}.type"
        raise ApiError(400, f"Invalid '{param}': expected one of {', '.join(FORMATS)}.", param=param)
    if kind != "json_schema":
        return Form(kind, *prompted_schema(messages))
    described, place = (form.get(within), f"{place}.{within}") if within else (form, place)
    for name in needed:
        if not isinstance(described, dict) or described.get(name) is None:
            raise missing(f"{place}.{name}")
    schema = described.get("schema", {})
    strict_name = str(described["name"]) if described.get("strict") else None
    return Form(kind, schema, f"{strict_name or ''}:{canonical(schema)}", strict_name)


def missing(param: str) -> ApiError:
    """A parameter that must be there."""
    message = f"Missing required parameter: '{param}'."
    return ApiError(400, message, code="missing_required_parameter", param=param)


def prompted_schema(messages: tuple[tuple[str, str], ...]) -> tuple[Any, str]:
    """The schema that a system message ends with, where there is one."""
    for role, text in reversed(messages):
        if role in ("system", "developer") and SCHEMA_MARK in text:
            written = text.rpartition(SCHEMA_MARK)[2].strip()
            try:
                return json.JSONDecoder().raw_decode(written)[0], written
            except ValueError:
                return None, ""
    return None, ""


def error_body(error: ApiError) -> bytes:
    """An error as OpenAI writes it."""
    about = {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}
    return json.dumps({"error": about}).encode()
