"""Arguments of tool calls: parsing, checking against the tool's schema, and filling in defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agac.core.text import beginning
from agac.core.types import JSONValue
from agac.spec.json_schema import compiled, schema_cost
from agac.spec.schema_errors import TOO_MANY, some_errors
from agac.spec.tool_schemas import SentParameters
from agac.spec.tools import ToolSpec

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

Arguments = dict[str, JSONValue]
MAX_TEXTS = 1_000
"""Texts that the arguments of a call are expected to hold, for the bound on the time of patterns.
"""
MAX_PROBLEMS = 5
"""Problems of one call's arguments that a model is shown."""
MAX_CHARS = 300
"""Characters of each problem, and of a name or of arguments quoted in one."""


def validator_of(parameters: SentParameters) -> Draft202012Validator | None:
    """Compiles the schema of arguments; None for a server's schema that only the server can
    read."""
    try:
        return compiled(dict(parameters.schema), texts=MAX_TEXTS)
    except ValueError:
        return None


def as_written(arguments: str) -> str:
    """Quotes the beginning of arguments that are not an object.

    The model's next request shows such arguments as an empty object, so the model cannot see them.
    """
    return f". They were: {beginning(arguments, MAX_CHARS)}"


def parse_number(text: str) -> float:
    """Reads a number, a whole one as an int, so that 3.0 and 3 make the same call."""
    value = float(text)
    if value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def schema_faults(
    validator: Draft202012Validator, parameters: SentParameters, arguments: Arguments
) -> list[str]:
    """Lists why arguments do not satisfy the schema of their tool."""
    if validator.is_valid(arguments):
        return []
    errors = some_errors(validator, schema_cost(parameters.schema), arguments, MAX_PROBLEMS)
    if errors is None:
        return [TOO_MANY]
    faults = []
    for error in errors:
        path = ".".join(map(str, error.instance_path))
        faults.append(f"{path or 'the object'}: {error.message}")
    return faults


def with_defaults(spec: ToolSpec, arguments: Arguments) -> Arguments:
    """Adds the defaults from the schema of a function or a built-in tool."""
    if spec.kind not in ("function", "builtin"):
        return arguments
    properties: Any = spec.parameters["properties"]
    defaults = {name: part["default"] for name, part in properties.items() if "default" in part}
    return defaults | arguments
