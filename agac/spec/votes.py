"""`vote` of a stage: whether its results have the field that decides among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agac.core.errors import Problem
from agac.spec.schemaplaces import alternatives, property_names, schemas_at
from agac.spec.schemavalues import kinds_of
from agac.spec.suggest import did_you_mean
from agac.spec.workflow import JsonSchema, SchemaSpec, field_shape

if TYPE_CHECKING:
    from agac.core.errors import Path_
    from agac.spec.models import StageFile
    from agac.spec.yamlfile import Document


def vote_problems(written: StageFile, schema: SchemaSpec | None, document: Document, path: Path_) -> list[Problem]:
    """What is wrong with a stage's `vote`, as far as files tell. `schema` None: it has none, or one with problems."""
    if written.vote is None:
        return []
    from agac.core.errors import key_path

    at = (*path, "vote")
    if written.output_schema is None and written.output_field is None:
        message = "vote names a field of the results, and these are plain text; add output_field or output_schema"
        return [Problem(document.where(at, key=True), message, key_path(at))]
    body = field_shape(written.output_field) if written.output_field is not None else None
    if isinstance(schema, JsonSchema):
        body = schema.schema.body
    fault = lacks_field(body, written.vote) if body is not None else None
    return [Problem(document.where(at), fault, key_path(at))] if fault else []


def lacks_field(body: dict[str, Any], vote: str) -> str | None:
    """Why results of this schema cannot have the field; None when they can."""
    parts = vote.split(".")
    for place, part in enumerate(parts):
        before = parts[:place]
        what = f"{'.'.join(before)} of the results" if before else "the results"
        if not _has_fields(body, before):
            return f"{what} {'has' if before else 'have'} no fields; vote for one that holds a value, such as `label`"
        names = property_names(body, before)
        if names is None:
            return None
        if part not in names:
            near = did_you_mean(part, sorted(names), "fields")
            return f"{what} {'has' if before else 'have'} no field {part!r}; {near}"
    return None


def _has_fields(body: dict[str, Any], path: list[str]) -> bool:
    """Whether the value at `path` may be an object."""
    at = schemas_at(body, path)
    for schema in at or ():
        branches = alternatives(body, schema)
        if branches is None or any("object" in kinds_of(one) or not kinds_of(one) for one in branches):
            return True
    return at is None
