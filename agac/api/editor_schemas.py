"""`agac schema`: JSON Schemas of agac's own files, with which editors complete and check them.

They are made from the models, and are of draft 7, which every editor reads. What needs more than
one key or another file is checked by `agac validate` alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from agac.api.project import Project, open_project
from agac.core.arguments import typed
from agac.core.errors import UsageError
from agac.core.state_files import make_folder
from agac.core.types import Report
from agac.data.files import explained, write_whole
from agac.spec.card_checks import CAMEL_CASE
from agac.spec.card_models import CARD_MODELS
from agac.spec.file_model import FileModel
from agac.spec.models import WorkflowFile
from agac.spec.paths import YAML_SUFFIXES
from agac.spec.project_models import ProjectFile
from agac.spec.test_files import FOLDER as TESTS
from agac.spec.test_files import WorkflowTestFile

FOLDER = Path(".agac") / "schemas"
"""Where a project keeps them: agac makes them, so they are next to its database and not in git."""

_DRAFT = "http://json-schema.org/draft-07/schema#"
_REFERENCE = "#/definitions/"
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
"""pydantic leaves its own words if a choice of types has a bound."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of files."""

    models: tuple[type[FileModel], ...]
    """A file has the keys of one of them; the descriptions come from the first."""

    title: str
    """Title of the schema."""


_KINDS = {
    "workflow": _Kind((WorkflowFile,), "agac workflow"),
    "project": _Kind((ProjectFile,), "agac.yml"),
    "card": _Kind(tuple(CARD_MODELS.values()), "AgentCard"),
    "test": _Kind((WorkflowTestFile,), "agac test"),
}


@dataclass(frozen=True, slots=True)
class SchemasReport(Report):
    """Schemas that were written."""

    files: list[Path]
    """One for each kind of files."""

    settings: dict[str, Any]
    """The settings with which VS Code finds them from the folder of agac.yml."""


@typed
def write_schemas(*, project: Path | str | None = None) -> SchemasReport:
    """Writes all schemas into `.agac/schemas/` of the project, replacing older ones.

    Raises UsageError if there is no project, and AgacError if the folder cannot be written."""
    opened = open_project(project)
    folder = opened.root / FOLDER
    with explained(folder):
        make_folder(folder)
    patterns = _patterns(opened)
    for kind in patterns:
        text = json.dumps(file_schema(kind), ensure_ascii=False, indent=2)
        write_whole(folder / f"{kind}.json", f"{text}\n")
    schemas = {(FOLDER / f"{kind}.json").as_posix(): found for kind, found in patterns.items()}
    files = [folder / f"{kind}.json" for kind in patterns]
    return SchemasReport(files, {"yaml.schemas": schemas})


def _patterns(opened: Project) -> dict[str, list[str]]:
    """Gives for each kind the patterns of its files.

    AgentCards in Markdown are not YAML, so editors do not learn of them."""
    paths = opened.spec.paths
    folders = {
        "workflow": paths.workflows,
        "project": None,
        "card": paths.agentcards,
        "test": opened.root / TESTS,
    }
    return {
        kind: ["agac.yml"]
        if folder is None
        else [f"{opened.spec.shown(folder)}/*{suffix}" for suffix in YAML_SUFFIXES]
        for kind, folder in folders.items()
    }


@typed
def file_schema(kind: str) -> dict[str, Any]:
    """Makes the JSON Schema (draft 7) of a `workflow`, `project` (agac.yml), `card` or `test`.
    Raises UsageError for others."""
    if kind not in _KINDS:
        raise UsageError(f"no schema of {kind!r}", remedy=f"Choose {', '.join(_KINDS)}.")
    model, *others = _KINDS[kind].models
    schema = _model_schema(model)
    for other in map(_model_schema, others):
        for key, body in other["properties"].items():
            schema["properties"].setdefault(key, body)
    named = schema.pop("$defs", {}).items()
    definitions = dict(sorted((_plain(name), body) for name, body in named))
    if kind == "card":
        _spell_cards(schema, definitions)
    head = {
        "$schema": _DRAFT,
        "title": _KINDS[kind].title,
        "description": schema.pop("description", ""),
    }
    return {**head, **_renamed(schema), "definitions": _renamed(definitions)}


def _spell_cards(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Adds the spellings of AgentCards: `type` in any case of its letters, and parameters in
    camelCase."""
    schema["description"] = (
        "The front matter of an AgentCard. Which keys it may have follows from its type."
    )
    words = "|".join("".join(_any_case(name)) for name in CARD_MODELS)
    schema["properties"]["type"] = {
        "description": "Kind of the card.",
        "default": "agent",
        "anyOf": [
            {"type": "string", "enum": list(CARD_MODELS)},
            {"type": "string", "pattern": f"^({words})$"},
        ],
    }
    params = definitions["RequestParams"]["properties"]
    for camel, snake in CAMEL_CASE.items():
        params[camel] = {**params[snake], "description": f"Another spelling of `{snake}`."}


def _any_case(name: str) -> Iterator[str]:
    """Yields a pattern for each letter of a name."""
    for letter in name:
        if letter == "_":
            yield letter
        else:
            yield f"[{letter.upper()}{letter}]"


class _SchemaMaker(GenerateJsonSchema):
    """Makes schemas of what a file may say: no key takes null there, and only a default that
    somebody could write is shown."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if isinstance(schema.get("default"), (bool, int, float, str)):
            return super().default_schema(schema)
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _model_schema(model: type[FileModel]) -> dict[str, Any]:
    return model.model_json_schema(
        schema_generator=_SchemaMaker, ref_template=f"{_REFERENCE}{{model}}"
    )


def _plain(name: str) -> str:
    """Shortens the name of a model: `StageFile` is `Stage` in a schema."""
    return name.removesuffix("File").removesuffix("Spec")


def _renamed(value: Any) -> Any:
    """Gives the same schema in JSON Schema's own words.

    References have the short names of the definitions. The titles that pydantic makes of the names
    of models are left out."""
    if isinstance(value, list):
        return [_renamed(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    renamed: dict[str, Any] = {}
    for key, inner in value.items():
        if key == "title" and isinstance(inner, str):
            continue
        is_bound = key in _BOUNDS and isinstance(inner, (int, float))
        renamed[_BOUNDS[key] if is_bound else key] = _renamed(inner)
    reference = renamed.get("$ref")
    if isinstance(reference, str):
        renamed["$ref"] = _REFERENCE + _plain(reference.removeprefix(_REFERENCE))
    return renamed
