"""`output_schema` in its four forms: a file, JSON Schema, the short form, and a pydantic class of the project."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agac.core.errors import Problem, UsageError, Where, did_you_mean
from agac.core.types import JSONValue, Schema
from agac.spec.json_schema import alternatives, compiled, kinds_of, property_names, schemas_at
from agac.spec.paths import OutsideProject, inside
from agac.spec.python_code import EDITED, as_written, import_file, in_file, python_source, python_tree, source_hash
from agac.spec.workflow import JsonSchema, PythonSchema, SchemaSpec, field_shape

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from agac.core.errors import Path_
    from agac.spec.models import StageFile
    from agac.spec.yaml import Document

PREFIX = "python:"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A schema ready for use. `validate_extra` gives what the model's own validators say against a value that already
    satisfies the schema: an empty list when nothing."""

    schema: Schema
    validate_extra: Callable[[JSONValue], list[str]] | None = None


def python_schema(text: str, root: Path, where: Where, key: str) -> tuple[PythonSchema | None, list[Problem]]:
    """Checks `python:module.Class` without importing anything: the module is a file of the project and has the name."""
    module, _, cls = text.removeprefix(PREFIX).strip().rpartition(".")
    parts = [*module.split("."), cls]
    if not module or not all(part.isidentifier() for part in parts):
        return None, [Problem(where, f"{text!r} is not python:module.Class, as python:tools.models.Review", key)]
    try:
        path = _module_file(root, module)
    except OutsideProject as error:
        return None, [Problem(where, str(error), key)]
    if path is None:
        wanted = module.replace(".", "/") + ".py"
        return None, [Problem(where, f"no module {module!r} in the project; it would be the file {wanted}", key)]
    problem = _name_problem(path, path.relative_to(root.resolve()).as_posix(), cls, where, key)
    return (None, [problem]) if problem else (PythonSchema(module, cls, cls[:64], source_hash(path, root)[0]), [])


def _module_file(root: Path, module: str) -> Path | None:
    home = module.replace(".", "/")
    for candidate in (f"{home}.py", f"{home}/__init__.py"):
        path = inside(root, candidate)
        if path.is_file():
            return path
    return None


def _name_problem(path: Path, shown: str, cls: str, where: Where, key: str) -> Problem | None:
    source = python_source(path, shown)
    tree = source if isinstance(source, Problem) else python_tree(source)
    if isinstance(tree, Problem):
        return in_file(tree, shown)
    names = set(_bound_names(tree.body))
    if cls in names or "*" in names:
        return None
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return Problem(where, f"{shown} has no {cls!r}; {did_you_mean(cls, classes, 'classes')}", key)


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that a module's top level defines; `*` when it imports everything of another or decides in branches."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield "*"


def same_schema(spec: PythonSchema, root: Path) -> None:
    """Raises UsageError when the text of a recorded schema is no longer what it was."""
    file = _module_file(root, spec.module)
    if file is None or source_hash(file, root)[0] != spec.source:
        name = f"{PREFIX}{spec.module}.{spec.cls}"
        raise UsageError(f"{name}, or a file that it imports, was edited since the run was made", remedy=EDITED)


def resolve_schema(spec: SchemaSpec, root: Path) -> Resolved:
    """The schema behind `spec`; imports the project's module for a `PythonSchema`, so it is called only to run.

    Raises `UsageError` when that module cannot be used.
    """
    return Resolved(spec.schema) if isinstance(spec, JsonSchema) else _imported(spec, root)


def _imported(spec: PythonSchema, root: Path) -> Resolved:
    from pydantic import BaseModel, TypeAdapter, ValidationError  # heavy, and most workflows have no such schema

    name = f"{PREFIX}{spec.module}.{spec.cls}"
    with redirect_stdout(sys.stderr):  # stdout belongs to what agac itself says
        model = getattr(_import(spec.module, name, root), spec.cls, None)
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise UsageError(f"{name} is not a pydantic model", remedy="Make it a subclass of pydantic.BaseModel.")
        adapter: TypeAdapter[Any] = TypeAdapter(model)
        schema = Schema(spec.name, _json_schema(adapter, name))

    def validate_extra(value: JSONValue) -> list[str]:
        try:
            adapter.validate_json(json.dumps(value))  # JSON's rules: a strict model still takes dates as text
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            return [f"{'.'.join(map(str, one['loc'])) or 'result'}: {one['msg']}" for one in found]
        except Exception as error:  # noqa: BLE001  (the user's validators run here and may raise anything)
            return [f"{name} raised {type(error).__name__}: {error}"]
        return []

    return Resolved(schema, validate_extra)


def _json_schema(adapter: TypeAdapter[Any], name: str) -> dict[str, Any]:
    try:
        body = adapter.json_schema()
        compiled(body)
    except Exception as error:  # the user's types may bring code of their own
        reason = str(getattr(error, "message", error)).partition("\n")[0] or type(error).__name__
        remedy = "Give its fields types that JSON has, as str, int, list[str] or another model."
        raise UsageError(f"{name} cannot be told as JSON Schema: {reason}", remedy=remedy) from error
    return body


def _import(module: str, name: str, root: Path) -> ModuleType:
    file = _module_file(root, module)
    if file is None:
        raise UsageError(f"{name}: the project has no module {module!r}", remedy="Run agac validate.")
    try:
        return import_file(file, root)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code runs here and may raise anything, SystemExit too
        reason = as_written(f"{type(error).__name__}: {error}")
        raise UsageError(f"{name} cannot be imported: {reason}", remedy=f"Try: python -c 'import {module}'") from error


def vote_problems(written: StageFile, schema: SchemaSpec | None, document: Document, path: Path_) -> list[Problem]:
    """What is wrong with a stage's `vote`, as far as files tell. `schema` None: it has none, or one with problems."""
    if written.vote is None:
        return []
    at = (*path, "vote")
    if written.output_schema is None and written.output_field is None:
        message = "vote names a field of the results, and these are plain text; add output_field or output_schema"
        return [document.problem(at, message, key=True)]
    body = field_shape(written.output_field) if written.output_field is not None else None
    if isinstance(schema, JsonSchema):
        body = schema.schema.body
    fault = lacks_field(body, written.vote) if body is not None else None
    return [document.problem(at, fault)] if fault else []


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
