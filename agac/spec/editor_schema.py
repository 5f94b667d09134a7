"""JSON Schemas of agac's own files, made from the models, for editors that complete and check while one types.

They are of draft 7, which every editor reads. What needs more than one key or another file is `agac validate`'s.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from agac.spec.models import CardFile, FileModel, ProjectFile, WorkflowFile
from agac.spec.value_checks import CAMEL_CASE, FIELDS_LATER

FileKind = Literal["workflow", "project", "card"]

DRAFT = "http://json-schema.org/draft-07/schema#"
_REFERENCE = "#/definitions/"
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
"""pydantic leaves its own words where a bound stands on a choice of types."""

_MODELS: dict[FileKind, tuple[type[FileModel], str]] = {
    "workflow": (WorkflowFile, "agac workflow"),
    "project": (ProjectFile, "agac.yml"),
    "card": (CardFile, "AgentCard"),
}


class _AsWritten(GenerateJsonSchema):
    """What may stand in a file: a key without a value is an error there, so no key takes null, and only a default that
    somebody could write is told."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if isinstance(schema.get("default"), (bool, int, float, str)):
            return super().default_schema(schema)
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def file_schema(kind: FileKind) -> dict[str, Any]:
    """The JSON Schema of files of this kind."""
    model, title = _MODELS[kind]
    made = model.model_json_schema(schema_generator=_AsWritten, ref_template=f"{_REFERENCE}{{model}}")
    definitions = dict(sorted((_plain(name), body) for name, body in made.pop("$defs", {}).items()))
    if kind == "card":
        _add_other_spellings(made, definitions)
    head = {"$schema": DRAFT, "title": title, "description": made.pop("description", "")}
    return {**head, **_renamed(made), "definitions": _renamed(definitions)}


def _plain(name: str) -> str:
    """`StageFile` is `Stage` in a schema."""
    return name.removesuffix("File").removesuffix("Spec")


def _renamed(value: Any) -> Any:
    """The same in JSON Schema's words alone, with references that name the definitions as they are called now, and
    without the titles that pydantic makes of the names of models."""
    if isinstance(value, list):
        return [_renamed(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    found = {
        _BOUNDS.get(key, key) if isinstance(inner, (int, float)) else key: _renamed(inner)
        for key, inner in value.items()
        if key != "title" or not isinstance(inner, str)
    }
    if isinstance(reference := found.get("$ref"), str):
        found["$ref"] = _REFERENCE + _plain(reference.removeprefix(_REFERENCE))
    return found


def _add_other_spellings(card: dict[str, Any], definitions: dict[str, Any]) -> None:
    """What a card may say beside the model's keys: camelCase, and no to what is not there yet."""
    params = definitions["RequestParams"]["properties"]
    for camel, snake in CAMEL_CASE.items():
        params[camel] = {**params[snake], "description": f"Another spelling of `{snake}`."}
    nothing = {"enum": [False, []], "description": "Not supported yet: only `false` and `[]` may stand here."}
    card["patternProperties"] = {f"^({'|'.join(sorted(FIELDS_LATER))})$": nothing}
