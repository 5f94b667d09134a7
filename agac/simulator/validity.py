"""What the reference implementation says of a value, for schemas that shapes alone do not keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agac.simulator.merging import SchemaError


def validity(schema: Any) -> Callable[[Any], bool]:
    """Whether a value satisfies a schema, by the reference implementation."""
    from jsonschema import Draft202012Validator  # a tenth of a second, and most schemas do without
    from jsonschema.exceptions import SchemaError as Wrong
    from jsonschema.validators import validator_for

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except Wrong as error:
        raise SchemaError(error.message) from error
    validator = kind(schema)
    return lambda value: bool(validator.is_valid(value))
