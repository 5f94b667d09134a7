"""`output_schema` in its four forms, each to a `SchemaSpec`: a file, inline JSON Schema, shorthand, `python:…`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

from agac.core.errors import Path_, Problem, Where, key_path
from agac.core.types import JSONValue, Schema
from agac.spec.filetext import read_text
from agac.spec.paths import OutsideProject, inside
from agac.spec.pythonschema import PREFIX, python_schema
from agac.spec.schemabody import Fault, schema_faults
from agac.spec.shorthand import expand_shorthand, is_json_schema
from agac.spec.suggest import did_you_mean
from agac.spec.workflow import JsonSchema, ProjectSpec, SchemaSpec
from agac.spec.yamlfile import MAX_DEPTH, Document, parse_yaml

_NAME_BREAK = re.compile(r"[^A-Za-z0-9_-]+")
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_SUFFIXES = (".json", ".yaml", ".yml")


def schema_name(text: str) -> str:
    """A name that every provider takes: letters, digits, `_` and `-`, at most 64 of them."""
    return _NAME_BREAK.sub("_", text).strip("_")[:64] or "result"


def load_schema(
    value: str | dict[str, Any], project: ProjectSpec, document: Document, path: Path_, *, name: str
) -> tuple[SchemaSpec | None, list[Problem]]:
    """The schema that stands at `path` of `document`; `name` is what an inline one is called."""
    if isinstance(value, dict):
        return _inline(value, document, path, name)
    if value.startswith(PREFIX):
        return python_schema(value, project.root, document.where(path), key_path(path))
    return _from_file(value, project, document.where(path), key_path(path))


def _inline(
    value: dict[str, Any], document: Document, path: Path_, name: str
) -> tuple[SchemaSpec | None, list[Problem]]:
    body, faults = (value, schema_faults(value)) if is_json_schema(value) else expand_shorthand(value)
    problems = [_at(document, (*path, *inner), message) for inner, message in faults]
    return (None, problems) if problems else (JsonSchema(Schema(schema_name(name), body)), [])


def _at(document: Document, path: Path_, message: str) -> Problem:
    return Problem(document.where(path), message, key_path(path))


def _from_file(text: str, project: ProjectSpec, where: Where, key: str) -> tuple[SchemaSpec | None, list[Problem]]:
    try:
        path = _find(text, project)
    except OutsideProject as error:
        return None, [Problem(where, str(error), key)]
    if path is None:
        return None, [Problem(where, f"no such file: {text!r}; {_what_there_is(text, project)}", key)]
    shown = project.shown(path)
    raw, problem = read_text(path, shown)
    if problem is not None:
        return None, [problem]
    return _parsed(raw, shown, path)


def _find(text: str, project: ProjectSpec) -> Path | None:
    """From the project root, then from the folder of schemas; the suffix `.json` may be left out."""
    for base in (project.root, project.paths.schemas):
        for candidate in (text, f"{text}.json"):
            path = inside(project.root, candidate, base=base)
            if path.is_file():
                return path
    return None


def _what_there_is(text: str, project: ProjectSpec) -> str:
    if "|" in text:
        return 'a result has named fields: write {answer: "' + text + '"}'
    folder = project.paths.schemas
    files = sorted(folder.rglob("*")) if folder.is_dir() else []
    known = [project.shown(file) for file in files if file.suffix in _SUFFIXES]
    return did_you_mean(text, known, f"in {project.shown(folder)}/")


def _parsed(text: str, shown: str, path: Path) -> tuple[SchemaSpec | None, list[Problem]]:
    # JSON is (nearly) YAML: reading it so gives positions, and the file may be YAML as well
    document = parse_yaml(text, shown)
    body, problems = document.data, document.problems
    if path.suffix == ".json":
        body, problems = _json(text, shown)
        if document.problems:
            document = Document(shown, body, [])
    if problems:
        return None, problems
    if not isinstance(body, dict):
        return None, [
            Problem(Where(shown, 1, 1), "expected a JSON Schema: a mapping with type, properties and the like")
        ]
    faults: list[Fault]
    body, faults = (body, schema_faults(body)) if is_json_schema(body) else expand_shorthand(body)
    problems = [_at(document, inner, message) for inner, message in faults]
    return (None, problems) if problems else (JsonSchema(Schema(schema_name(path.stem), body)), [])


def _json(text: str, shown: str) -> tuple[JSONValue, list[Problem]]:
    if not text.strip():
        return None, [Problem(Where(shown), "is empty; write a JSON Schema")]
    try:
        body = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite)
    except json.JSONDecodeError as error:
        return None, [Problem(Where(shown, error.lineno, error.colno), f"not valid JSON: {_json_words(error)}")]
    except (_Refused, RecursionError) as error:
        message = str(error) if isinstance(error, _Refused) else _TOO_DEEP
        return None, [Problem(Where(shown), message)]
    return (body, []) if _depth(body) <= MAX_DEPTH else (None, [Problem(Where(shown), _TOO_DEEP)])


def _json_words(error: json.JSONDecodeError) -> str:
    """The commonest slip in plain words, which Python's own versions call by different names."""
    before, after = error.doc[: error.pos].rstrip(), error.doc[error.pos :].lstrip()
    rest = after[1:].lstrip() if after[:1] == "," else after if before[-1:] == "," else ""
    return f"a comma before {rest[0]!r} is one too many; remove it" if rest[:1] in ("}", "]") and rest else error.msg


def _depth(value: JSONValue) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner for v in level for inner in (v.values() if isinstance(v, dict) else v if isinstance(v, list) else ())
        ]
    return depth - 1


class _Refused(ValueError):
    """JSON that Python reads and we do not."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Refused(f"duplicate key {twice!r}; keep one of them")
    return values


def _not_finite(text: str) -> NoReturn:
    raise _Refused(f"{text} is not JSON; give a finite number")
