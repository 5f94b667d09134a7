"""`output_schema` in its four forms: a file, JSON Schema, the short form, and a pydantic class of
the project."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from agac.core.errors import Path_, Problem, UsageError, Where, did_you_mean, nearest
from agac.core.types import JSONValue, Schema
from agac.spec.field_shapes import FieldShape
from agac.spec.json_schema import KEYWORDS, TYPES, Fault, compiled, field_shape
from agac.spec.paths import Refused, Unusable, home_of, inside, is_reference, is_there
from agac.spec.project import ProjectSpec
from agac.spec.project_files import files_in, read_bytes, read_text
from agac.spec.python_code import (
    EDITED,
    as_written,
    bound_names,
    import_file,
    python_tree,
    source_hash,
)
from agac.spec.schema_checks import schema_faults, schema_warnings
from agac.spec.workflow import JsonSchema, PythonSchema, SchemaSpec

if TYPE_CHECKING:
    from pydantic import BaseModel

    from agac.spec.models import StageFile
    from agac.spec.yaml import Document

PREFIX = "python:"
_SUFFIXES = (".json", ".yaml", ".yml")


def schema_name(text: str) -> str:
    """Returns a name that every provider takes: letters, digits, `_` and `-`, at most 64 of
    them."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:64] or "result"


def load_schema(
    value: str | dict[str, Any] | type,
    project: ProjectSpec,
    document: Document,
    path: Path_,
    *,
    name: str,
) -> tuple[SchemaSpec | None, list[Problem]]:
    """Returns the schema that stands at `path` of `document`; `name` is what an inline one is
    called."""
    if isinstance(value, dict):
        return _inline(value, document, path, name)
    if isinstance(value, type):
        try:
            return JsonSchema(
                _of_model(value, schema_name(value.__name__), value.__name__).schema, value
            ), []
        except UsageError as error:
            return None, [document.problem(path, f"{error.message}. {error.remedy}")]
    try:
        if value.startswith(PREFIX):
            return _python_schema(value, home_of(project.root)), []
        if is_reference(value):
            (found,) = project.fetch(value, f"schema of {name}")
            return _from_file(found.path, value, None)
        file = project.once((_find, value), lambda: _find(value, project))
        return project.once(
            (_from_file, file), lambda: _from_file(file, project.shown(file), project.root)
        )
    except Refused as error:
        return None, [document.problem(path, str(error))]
    except Unusable as error:
        return None, [error.problem]


def _inline(
    data: dict[str, Any], document: Document, at: Path_, name: str
) -> tuple[SchemaSpec | None, list[Problem]]:
    written_out = is_json_schema(data)
    body, faults = (data, schema_faults(data)) if written_out else expand_shorthand(data)
    problems = [document.problem((*at, *inner), message) for inner, message in faults]
    if problems:
        return None, problems
    doubts = schema_warnings(body) if written_out else ()
    warned = (document.problem((*at, *inner), message, key=True) for inner, message in doubts)
    return JsonSchema(Schema(schema_name(name), body)), [
        replace(one, severity="warning") for one in warned
    ]


def _find(text: str, project: ProjectSpec) -> Path:
    """From the project root, then from the folder of schemas; the suffix `.json` may be left out.
    Raises Refused."""
    folder = project.paths.schemas
    for base in (project.root, folder):
        for name in (text, f"{text}.json"):
            if is_there(path := inside(project.root, name, base=base)):
                return path
    hint = f'a result has named fields: write {{answer: "{text}"}}'
    if "|" not in text:
        files = project.once((_find,), lambda: files_in(folder, home_of(project.root), "**/*"))
        known = [project.shown(one) for one in files if one.suffix in _SUFFIXES]
        hint = did_you_mean(text, known, f"in {project.shown(folder)}/")
    raise Refused(f"no such file: {text!r}; {hint}")


def _from_file(
    path: Path, shown: str, root: Path | None
) -> tuple[SchemaSpec | None, list[Problem]]:
    # what only reads stored runs does without YAML
    from agac.spec.yaml import MAX_DEPTH, Document, parse_yaml

    text = read_text(path, shown, root)
    # JSON is (nearly) YAML: reading it so gives positions, and the file may be YAML as well
    document = parse_yaml(text, shown)
    body = document.data
    problems = document.problems
    if path.suffix == ".json":
        body = _json(text, shown, MAX_DEPTH)
        problems = []
        if document.problems:
            document = Document(shown, body, [])
    if not problems and not isinstance(body, dict):
        message = "expected a JSON Schema: a mapping with type, properties and the like"
        problems = [Problem(Where(shown, 1, 1), message)]
    if problems:
        return (None, problems)
    return _inline(body, document, (), path.stem)


def _json(text: str, shown: str, deepest: int) -> JSONValue:
    where = Where(shown)
    message = f"nested more than {deepest} levels deep"
    try:
        body = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_finite)
        if _depth(body) <= deepest:
            return body
    except json.JSONDecodeError as error:
        message = "is empty; write a JSON Schema"
        if text.strip():
            error = _in_plain_words(error)
            where = Where(shown, error.lineno, error.colno)
            message = f"not valid JSON: {error.msg}"
    except Refused as error:
        message = str(error)
    except RecursionError:
        pass
    raise Unusable(Problem(where, message))


def _in_plain_words(error: json.JSONDecodeError) -> json.JSONDecodeError:
    """Returns the commonest slip in plain words and at its comma: Python's versions name and place
    it differently."""
    before = error.doc[: error.pos].rstrip()
    after = error.doc[error.pos :].lstrip()
    if after[:1] == ",":
        rest = after[1:].lstrip()
    elif before[-1:] == ",":
        rest = after
    else:
        rest = ""
    if rest[:1] not in ("}", "]"):
        return error
    comma = len(error.doc) - len(after) if after[:1] == "," else len(before) - 1
    return json.JSONDecodeError(
        f"a comma before {rest[0]!r} is one too many; remove it", error.doc, comma
    )


def _depth(value: JSONValue) -> int:
    inner: Collection[JSONValue]
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    else:
        inner = ()
    return 1 + max(map(_depth, inner)) if inner else 0


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = next(name for name, number in times.items() if number > 1)
        raise Refused(f"duplicate key {twice!r}; keep one of them")
    return values


def _not_finite(text: str) -> NoReturn:
    raise Refused(f"{text} is not JSON; give a finite number")


# Classes of the project: checked by reading, imported only to run.


@dataclass(frozen=True, slots=True)
class Resolved:
    """A schema ready for use."""

    schema: Schema
    validate_extra: Callable[[JSONValue], list[str]] | None = None
    """Returns what the model's own validators say against a value that satisfies the schema; empty
    if nothing."""
    model: type[BaseModel] | None = None
    """The class that both were made of."""


def _python_schema(text: str, root: Path) -> PythonSchema:
    """Checks `python:module.Class` without importing anything. Raises Refused and Unusable."""
    module, _, cls = text.removeprefix(PREFIX).strip().rpartition(".")
    if not module or not all(part.isidentifier() for part in (*module.split("."), cls)):
        raise Refused(
            f"{text!r} is not python:module.Class, with the name of a file and of a class in it"
        )
    path = _module_file(root, module)
    if path is None:
        wanted = module.replace(".", "/") + ".py"
        raise Refused(f"no module {module!r} in the project; it would be the file {wanted}")
    shown = path.relative_to(root.resolve()).as_posix()
    tree = python_tree(read_bytes(path, shown, root), shown)
    names = {name for name, _ in bound_names(tree.body)}
    # may name anything
    branches = any(isinstance(node, ast.If | ast.Try | ast.With) for node in tree.body)
    if cls not in names and "*" not in names and not branches:
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        raise Refused(f"{shown} has no {cls!r}; {did_you_mean(cls, classes, 'classes')}")
    return PythonSchema(module, cls, cls[:64], source_hash(path, root)[0])


def _module_file(root: Path, module: str) -> Path | None:
    home = module.replace(".", "/")
    candidates = (inside(root, name) for name in (f"{home}.py", f"{home}/__init__.py"))
    return next((path for path in candidates if path.is_file()), None)


def same_schema(spec: PythonSchema, root: Path) -> None:
    """Raises UsageError when the text of a recorded schema is no longer what it was."""
    root = home_of(root)
    file = _module_file(root, spec.module)
    if file is None or source_hash(file, root)[0] != spec.source:
        name = f"{PREFIX}{spec.module}.{spec.cls}"
        raise UsageError(
            f"{name}, or a file that it imports, was edited since the run was made", remedy=EDITED
        )


def resolve_schema(spec: SchemaSpec, root: Path, *, untrusted: bool = False) -> Resolved:
    """Returns the schema behind `spec`; imports a `PythonSchema`'s module. Raises `UsageError`
    when that cannot be used. What is `untrusted` is not imported: of the class then no more is
    known than what stands for its source."""
    if isinstance(spec, JsonSchema):
        told = spec.schema.name
        if spec.model is None:
            return Resolved(spec.schema)
        return _of_model(spec.model, told, told)
    name = f"{PREFIX}{spec.module}.{spec.cls}"
    if untrusted:
        return Resolved(Schema(spec.name, {"$comment": f"{name}, source {spec.source.hex()}"}))
    with redirect_stdout(sys.stderr):  # stdout belongs to what agac itself says
        return _of_model(_imported(spec, name, home_of(root)), spec.name, name)


def _of_model(model: object, told: str, name: str) -> Resolved:
    """Returns what a Pydantic model asks of answers: providers know it by the name `told`, users by
    another. Raises UsageError."""
    # heavy, and most workflows have no such schema
    from pydantic import BaseModel, TypeAdapter, ValidationError

    with redirect_stdout(sys.stderr):
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise UsageError(
                f"{name} is not a pydantic model",
                remedy="Make it a subclass of pydantic.BaseModel.",
            )
        adapter: TypeAdapter[Any] = TypeAdapter(model)
        try:
            body = adapter.json_schema()
            compiled(body)
        except Exception as error:  # the user's types may bring code of their own
            reason = (
                str(getattr(error, "message", error)).partition("\n")[0] or type(error).__name__
            )
            remedy = "Give its fields types that JSON has, as str, int, list[str] or another model."
            raise UsageError(
                f"{name} cannot be told as JSON Schema: {reason}", remedy=remedy
            ) from error

    def validate_extra(value: JSONValue) -> list[str]:
        try:
            with redirect_stdout(sys.stderr):
                # JSON's rules: a strict model still takes dates as text
                adapter.validate_json(json.dumps(value))
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            return [f"{'.'.join(map(str, one['loc'])) or 'result'}: {one['msg']}" for one in found]
        except Exception as error:  # noqa: BLE001  (the user's validators run here and may raise anything)
            return [f"{name} raised {type(error).__name__}: {error}"]
        return []

    return Resolved(Schema(told, body), validate_extra, model)


def _imported(spec: PythonSchema, name: str, root: Path) -> object:
    """Imports the class from the module of the project."""
    file = _module_file(root, spec.module)
    if file is None:
        raise UsageError(
            f"{name}: the project has no module {spec.module!r}", remedy="Run agac validate."
        )
    try:
        return getattr(import_file(file, root), spec.cls, None)
    except KeyboardInterrupt:
        raise
    except (
        BaseException
    ) as error:  # the user's code runs here and may raise anything, SystemExit too
        reason = as_written(f"{type(error).__name__}: {error}")
        remedy = f"Try: python -c 'import {spec.module}'"
        raise UsageError(f"{name} cannot be imported: {reason}", remedy=remedy) from error


# `vote` names a field of the results.


def field_problems(
    written: StageFile, schema: SchemaSpec | None, document: Document, path: Path_
) -> Iterator[Problem]:
    """Yields what is wrong with the fields of results that a stage's `vote` and `expect` name, as
    far as files say. `schema` is None if there is none, or one with problems."""
    plain = (
        written.output_schema is None and written.output_field is None and written.reply == "text"
    )
    if written.output_field is not None:
        body = field_shape(written.output_field)
    else:
        body = None
    if isinstance(schema, JsonSchema):
        body = schema.schema.body
    labelled = written.expect.field if written.expect is not None else None
    for key, name in (("vote", written.vote.field if written.vote else None), ("expect", labelled)):
        if name is not None and plain:
            message = (
                f"{key} names a field of the results, and these are plain text; add "
                "output_field or output_schema"
            )
            yield document.problem((*path, key), message, key=True)
        elif name is not None and body is not None and (fault := lacks_field(body, name)):
            yield document.problem((*path, key), fault)


def lacks_field(body: dict[str, Any], way: str) -> str | None:
    """Says why results of this schema cannot have the field; None if they can."""
    shape = FieldShape(body)
    before = list[str]()
    for part in way.split("."):
        if before:
            what = f"{'.'.join(before)} of the results has"
        else:
            what = "the results have"
        kinds = shape.kinds(before)
        names = shape.names(before)
        if kinds is not None and "object" not in kinds:
            if before:
                remedy = f"write {'.'.join(before)!r}"
            else:
                remedy = "let output_schema be an object with that field"
            return f"{what} no fields; {remedy}"
        if names is None:
            return None
        if part not in names:
            return f"{what} no field {part!r}; {did_you_mean(part, sorted(names), 'fields')}"
        before.append(part)
    return None


# The short way to say what a result looks like: `{sentiment: "positive|neutral|negative", tags:
# "string[]?"}`.
#
# A type is `string`, `integer`, `number`, `boolean`, `object` or `array`; `a|b|c` is a choice of
# texts; `T[]` a list, `(a|b)[]` a list of choices; `list[T]` and `array<T>` are read as `T[]`; a
# trailing `?` makes the field optional. A mapping is an object, a list of one an array.

_SAME = {"str": "string", "text": "string", "int": "integer", "float": "number", "bool": "boolean"}
_SAME |= {"dict": "object", "map": "object", "list": "array"}
_ALIASES = {**_SAME, "date": "string", "enum": "a|b|c"}
_LIST = re.compile(r"(?:list|array|sequence)\s*(?:\[(.+)\]|<(.+)>)|\[([^][|]+)\]", re.IGNORECASE)
_GENERIC = re.compile(
    r"(list|array|sequence|set|optional|dict|map)\s*[\[<]([^\]>]+[\]>]*)[\]>]", re.IGNORECASE
)


def is_json_schema(body: dict[str, Any]) -> bool:
    """True if a mapping is JSON Schema rather than shorthand, where `type` may also be the name of
    a field."""
    if (
        isinstance(body.get("properties"), dict)
        or isinstance(body.get("$ref"), str)
        or "$schema" in body
    ):
        return True
    if any(isinstance(body.get(key), list) for key in ("anyOf", "oneOf", "allOf", "enum")):
        return True
    kind = body.get("type")
    names = kind if isinstance(kind, list) else [kind]
    return all(name in (*TYPES, "null") for name in names) and body.keys() <= KEYWORDS


def expand_shorthand(
    body: dict[str, Any], path: Path_ = ()
) -> tuple[dict[str, JSONValue], list[Fault]]:
    """Returns the JSON Schema of an object with these fields: closed, and with every field
    required that has no `?`."""
    faults: list[Fault] = []
    properties: dict[str, JSONValue] = {}
    required: list[str] = []
    for name, value in body.items():
        text = value.strip() if isinstance(value, str) else value
        if name.endswith("?"):
            meant = name.rstrip("? ")
            fault = (
                "a ? is not part of a field's name; make the whole a JSON Schema and "
                f"leave {meant!r} out of required"
            )
            if isinstance(text, str):
                fault = (
                    f"the ? of an optional field stands after its type; write {meant}: "
                    f'"{text.rstrip("?")}?"'
                )
            faults.append(((*path, name), fault))
            continue
        optional = isinstance(text, str) and text.endswith("?")
        if not optional:
            required.append(name)
        properties[name] = _field(text[:-1] if optional else text, (*path, name), faults)
    schema: dict[str, JSONValue] = {"type": "object", "properties": properties}
    return {**schema, "required": required, "additionalProperties": False}, faults


def _schema_inside(value: dict[str, Any], path: Path_) -> str | None:
    """Returns a sentence when the mapping of a field reads as JSON Schema: the shorthand has no
    such words."""
    kind = value.get("type")
    if kind not in TYPES or not value.keys() <= KEYWORDS:
        return None
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    field = f"[{kind}]" if path[-1:] == (0,) else kind
    says_it_all = len(value) == 1 or (kind not in ("object", "array") and "enum" not in value)
    short = f"write {name}: {field}, or " if says_it_all else ""
    message = f"this is the shorthand, in which {name!r} would be an object with a field 'type'"
    return f"{message}; {short}make the whole a JSON Schema with type: object and properties"


def _field(value: Any, path: Path_, faults: list[Fault]) -> JSONValue:
    if isinstance(value, str):
        return _type(value.strip(), path, faults)
    if isinstance(value, dict) and value:
        fault = _schema_inside(value, path)
        if fault is not None:
            faults.append((path, fault))
            return {}
        inner, inner_faults = expand_shorthand(value, path)
        faults += inner_faults
        return inner
    if isinstance(value, list) and len(value) == 1:
        return {"type": "array", "items": _field(value[0], (*path, 0), faults)}
    faults.append(
        (path, 'expected a type such as string, "a|b|c", "string[]", or a mapping of fields')
    )
    return {}


def _type(text: str, path: Path_, faults: list[Fault]) -> JSONValue:
    """Returns the JSON Schema of a type as the shorthand writes it; notes what is wrong with it."""
    if text.endswith("[]"):
        return {"type": "array", "items": _type(text[:-2].strip(), path, faults)}
    match = _LIST.fullmatch(text)
    if match:
        inner = (match[1] or match[2] or match[3]).strip()
        return {"type": "array", "items": _type(_SAME.get(inner.lower(), inner), path, faults)}
    if _GENERIC.fullmatch(text):
        faults.append((path, f"unknown type {text!r}; did you mean {_in_our_words(text)!r}?"))
        return {}
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    if "|" in text:
        return _choice(text, path, faults)
    if text in TYPES:
        return {"type": text}
    meant = _ALIASES.get(text.lower()) or nearest(text, TYPES)
    if meant:
        remedy = f"did you mean {meant!r}?"
    else:
        remedy = f"types: {', '.join(TYPES)}; a choice is written a|b|c"
    faults.append((path, f"unknown type {text!r}; {remedy}" if text else f"has no type; {remedy}"))
    return {}


def _choice(text: str, path: Path_, faults: list[Fault]) -> JSONValue:
    """Returns the JSON Schema of a choice of texts, `a|b|c`; notes what is wrong with it."""
    choices = [choice.strip() for choice in text.split("|")]
    if not all(choices):
        faults.append((path, f"{text!r} has an empty choice; write the choices as a|b|c"))
    types = [choice for choice in choices if _is_type(choice)]
    if types:
        remedy = "write a JSON Schema with anyOf"
        if "null" in types:
            remedy = f"write an optional field as '{choices[0]}?'"
        message = f"{text!r} mixes texts to choose from with the type {types[0]!r}; {remedy}"
        faults.append((path, message))
    repeated = next((choice for choice in choices if choices.count(choice) > 1), None)
    if repeated:
        faults.append((path, f"{text!r} names {repeated!r} twice"))
    return {"type": "string", "enum": choices}


def _is_type(choice: str) -> bool:
    """True if one of the texts to choose from is a type."""
    return choice in (*TYPES, "null") or choice.endswith(("[]", "?"))


def _in_our_words(text: str) -> str:
    """Returns a type as other languages write it, `list[str]` or `Array<string>`, in the words of
    the shorthand."""
    match = _GENERIC.fullmatch(text)
    if match is None:
        return _ALIASES.get(text.lower(), text)
    kind = _ALIASES.get(match[1].lower(), "array")
    inner = _in_our_words(match[2].strip()).removesuffix("?")
    if match[1].lower() == "optional":
        return f"{inner}?"
    if kind == "object":
        return "object"
    if "|" in inner:
        return f"({inner})[]"
    return f"{inner}[]"
