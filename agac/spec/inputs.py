"""The input of a workflow: a file, several, a database or standard input, and the format of each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote_plus

from agac.core.errors import Problem, UsageError, Where, did_you_mean, key_path, listed, sentence
from agac.spec.models import InputFile, WorkflowFile
from agac.spec.paths import ANY_FOLDERS, OutsideProject, Unmatchable, fixed_part, inside, is_pattern, lies_in, matching
from agac.spec.templates import near_files
from agac.spec.workflow import InputFormat, InputSpec, Overrides, ProjectSpec
from agac.spec.yaml import Document

SUFFIXES: Mapping[str, InputFormat] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "txt",
    ".parquet": "parquet",
}
"""The format of a file that says none, by its suffix."""

PACKED = (".gz", ".zst")
"""Suffixes of compressed files; the format's own stands before them."""

DATABASES = frozenset({".db", ".sqlite", ".sqlite3"})
TABLES_LATER = frozenset({".xlsx", ".xls", ".ods", ".arrow", ".feather"})
KNOWN_FILES = "csv, tsv, json, jsonl, txt or parquet"


def suffix_of(name: str) -> str:
    """The suffix that tells what a file holds, in small letters: `.csv` of `Rows.CSV.gz`."""
    path = PurePath(name)
    if path.suffix.lower() in PACKED:
        path = path.with_suffix("")
    return path.suffix.lower()


def format_of(name: str) -> InputFormat | None:
    """The format that a file's name tells, if it tells one."""
    return SUFFIXES.get(suffix_of(name))


SCHEME = "sqlite://"
KEYS = ("query", "table")
FORM = "write sqlite://data.db?query=SELECT … or sqlite://data.db?table=NAME"
_COMMENTS = re.compile(r"\A(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)
_READS = re.compile(r"(?:SELECT|WITH|VALUES)\b", re.IGNORECASE)
_ORDERED = re.compile(r"\bORDER\s+BY\b", re.IGNORECASE)


class DatabaseUrl(NamedTuple):
    """The path as it was written, the one statement that reads it, and whether its rows surely keep their order."""

    path: str
    statement: str
    ordered: bool


class NoDatabase(ValueError):
    """What stands after `sqlite://` cannot be used; the message says why and what to write instead."""


def parse_database(text: str) -> DatabaseUrl:
    """The parts of `text`. Raises NoDatabase.

    What follows `?query=` is the statement as it stands, to the end: `%` and `&` are its own. Only one without any
    white space is taken to be percent-encoded.
    """
    path, sign, rest = text.removeprefix(SCHEME).partition("?")
    key, equals, value = rest.partition("=")
    if not path:
        raise NoDatabase(f"names no database; {FORM}")
    if not sign or not equals:
        raise NoDatabase(f"does not say what to read; {FORM}")
    if key not in KEYS:
        raise NoDatabase(f"unknown parameter {key!r}; {did_you_mean(key, KEYS)}")
    if not any(map(str.isspace, value.strip())):
        value = unquote_plus(value)
    if not value.strip():
        raise NoDatabase(f"{key} is empty; {FORM}")
    if key == "table":
        name = value.strip().replace('"', '""')
        return DatabaseUrl(path, f'SELECT * FROM "{name}"', ordered=True)  # noqa: S608 - quoted; read by rowid
    start = _COMMENTS.match(value)
    if not _READS.match(value, start.end() if start else 0):
        raise NoDatabase("the query is no SELECT; a source only reads: begin it with SELECT or WITH")
    return DatabaseUrl(path, value, _ORDERED.search(value) is not None)


PIPED = "-"
"""Standard input, as a path."""

INPUTS = Path(".agac") / "inputs"
"""Where standard input is kept, relative to the project: a run reads its input more than once."""

STATE_FOLDERS = (".agac", ".git")
LOOKED_AT = 1_000
"""So many files of a pattern are looked at before a run; what is wrong with later ones is found when they are read."""

_REMEDY = f"Name a {KNOWN_FILES} file, a pattern in quotes, sqlite://DATABASE?query=SELECT …, or - for standard input."


class _InputRefused(ValueError):
    """An input that cannot be used; the message says why and what to write instead."""


@dataclass(frozen=True, slots=True)
class _InputContext:
    """What is known next to a path: the input's keys, and whether it was typed on the command line; `says_format` is
    how a format would be said.

    What a file names stays inside the project; what is typed is relative to the current folder and may lie anywhere.
    """

    project: ProjectSpec
    keys: InputFile
    where: Where
    own_output: Path
    typed: bool = False
    says_format: str = "`format: csv` to the workflow's input"

    def spec(self, path: Path, shown: str, found: InputFormat | None) -> InputSpec:
        return InputSpec(path, shown, found, self.keys.id_field, self.keys.on_duplicate_id, self.where)

    def place(self, text: str) -> Path:
        if self.typed:
            return Path(text).resolve()
        try:
            return inside(self.project.root, text)
        except OutsideProject as error:
            raise _InputRefused(f"{error}, or use --input") from None

    def format_of(self, name: str) -> InputFormat | None:
        """A typed file is what its suffix says, before what the workflow says of its own; .txt may be anything."""
        declared = self.keys.format if self.keys.format not in ("files", "sqlite") else None
        by_name = format_of(name)
        if self.typed and by_name not in (None, "txt"):
            return by_name
        return declared or by_name


def input_spec(
    file: WorkflowFile, document: Document, project: ProjectSpec, name: str, overrides: Overrides
) -> tuple[InputSpec | None, list[Problem]]:
    """Where the rows of the workflow `name` come from: what it says itself, or what the command line does.

    Raises `UsageError` when the command line's cannot be used.
    """
    if file.input is not None and file.inputs is not None:
        message = "input and inputs are two spellings of one key; keep input"
        return None, [document.problem(("inputs",), message, key=True)]
    key = "inputs" if file.inputs is not None else "input"
    keys = file.inputs or file.input or InputFile()
    context = _InputContext(
        project, keys, document.where((key, "path")), _own_output(overrides.output or file.output.dir, project, name)
    )
    if overrides.input is not None:
        return _typed([str(overrides.input)], replace(context, typed=True), "--input "), []
    if keys.path is None:
        message = "missing key 'path'; name the file with the rows, as input: {path: data/reviews.csv}, or use --input"
        return None, [Problem(context.where, message, key)]
    try:
        spec = _one(keys.path[0], context) if len(keys.path) == 1 else _several(keys.path, context)
    except _InputRefused as error:
        return None, [Problem(context.where, str(error), key_path((key, "path")))]
    return spec, _unordered(spec, key)


def free_input(texts: Sequence[str], project: ProjectSpec, found: InputFormat | None) -> InputSpec:
    """An input that no workflow names, of the format `found` where its name does not tell. Raises `UsageError`."""
    keys = InputFile() if found is None else InputFile(format=found)
    context = _InputContext(
        project, keys, Where(texts[0]), project.paths.output, typed=True, says_format="--format csv"
    )
    return _typed(texts, context, "")


def _typed(texts: Sequence[str], context: _InputContext, flag: str) -> InputSpec:
    """The command line's input."""
    shown = "'' or ." if flag and texts[0] == "." else texts[0] or "''"  # a flag's path is the same for both
    if Path(shown).parent == context.project.root / INPUTS:
        flag, shown = "", "standard input"
    try:
        return _one(texts[0], context) if len(texts) == 1 else _several(texts, context)
    except _InputRefused as error:
        what, _, todo = str(error).partition("; ")
        raise UsageError(f"{flag}{shown}: {what}", remedy=sentence(todo) if todo else _REMEDY) from None


def _own_output(text: str | None, project: ProjectSpec, name: str) -> Path:
    try:
        return inside(project.root, text) if text else project.paths.output / name
    except OutsideProject:  # said where outputs are checked
        return project.paths.output / name


def _unordered(spec: InputSpec, key: str) -> list[Problem]:
    """A warning where rows are known by their numbers alone, and these may be others the next time."""
    if spec.statement is None or spec.id_field is not None or spec.ordered:
        return []
    message = "rows are known by their numbers, and the query does not order them; add ORDER BY, or name an id_field"
    return [Problem(spec.where, message, key_path((key, "path")), "warning")]


def _one(text: str, context: _InputContext) -> InputSpec:
    if text == PIPED:
        return _piped(context)
    if text.startswith(SCHEME):
        return _database(text, context)
    if "://" in text:
        raise _InputRefused(f"{text.split('://')[0]}:// is not supported yet; name a {KNOWN_FILES} file")
    path = context.place(text)
    if context.keys.format == "files":
        return _whole_files((text,), context)
    if is_pattern(text) and not path.is_file():
        return _several((text,), context)
    _refuse_no_file(text, path, context)
    if path.parent == context.project.root / INPUTS and not context.typed:
        raise _InputRefused("is what was piped into an earlier run; write '-'")
    return _file(text, path, context)


def _file(text: str, path: Path, context: _InputContext) -> InputSpec:
    if path.parent == context.project.root / INPUTS:  # standard input as it was kept: the same run goes on
        own = format_of(context.keys.path[0]) if context.keys.path else None
        found = _piped_format(context) or format_of(path.name) or own
        if found is None:
            raise _InputRefused(f"cannot tell the format of what is piped in; {_add_format(context)}")
        return context.spec(path, PIPED, found)
    found = context.format_of(path.name)
    if found is None:
        raise _InputRefused(_no_format(text, context))
    return context.spec(path, text, found)


def _refuse_no_file(text: str, path: Path, context: _InputContext) -> None:
    suffix = suffix_of(path.name)
    if suffix in TABLES_LATER:
        raise _InputRefused(f"{suffix[1:]} is not supported yet; convert it to csv or jsonl")
    if path.is_dir():
        what = "is a folder" if context.typed else f"{text!r} is a folder"
        raise _InputRefused(f"{what}; name a file in it, or several as 'data/*.csv'; with format: files each is a row")
    if not path.exists():
        if context.typed:
            raise _InputRefused("no such file")
        raise _InputRefused(f"no such file: {text!r}; {near_files(path, context.project.root)}")
    if not path.is_file():
        raise _InputRefused("is not a file" if context.typed else f"{text!r} is not a file")
    if context.keys.format == "sqlite" or (suffix in DATABASES and context.format_of(path.name) is None):
        raise _InputRefused(
            f"a database is named with what to read: {SCHEME}{text}?query=SELECT … or {SCHEME}{text}?table=…"
        )
    if suffix == ".parquet" and path.suffix.lower() in PACKED:
        raise _InputRefused(f"parquet is compressed inside; unpack the {path.suffix.lower()} around it")


def _no_format(text: str, context: _InputContext) -> str:
    if context.typed:
        return f"its name does not tell the format; {_add_format(context)}"
    formats = " or ".join(dict.fromkeys(SUFFIXES.values()))
    return f"cannot tell the format of {text!r}; add format: {formats}"


def _add_format(context: _InputContext) -> str:
    return f"add {context.says_format}, or another of {listed(dict.fromkeys(SUFFIXES.values()))}"


def _piped(context: _InputContext) -> InputSpec:
    spec = context.spec(context.project.root / INPUTS, PIPED, _piped_format(context))
    return replace(spec, piped=True)


def _piped_format(context: _InputContext) -> InputFormat | None:
    if context.keys.format in ("files", "sqlite"):
        raise _InputRefused(f"format: {context.keys.format} cannot be piped in")
    return context.keys.format


def _database(text: str, context: _InputContext) -> InputSpec:
    if context.keys.format not in (None, "sqlite") and not context.typed:
        raise _InputRefused(f"the path names a SQLite database, and format says {context.keys.format}; remove format")
    try:
        url = parse_database(text)
    except NoDatabase as error:
        raise _InputRefused(str(error) if context.typed else f"{text.partition('?')[0]!r}: {error}") from None
    path = context.place(url.path)
    if not path.is_file():
        raise _InputRefused(f"no such database: {url.path!r}")
    return replace(context.spec(path, text, "sqlite"), statement=url.statement, ordered=url.ordered)


def _several(texts: Sequence[str], context: _InputContext) -> InputSpec:
    if context.keys.format == "files":
        return _whole_files(texts, context)
    root, patterns = _patterns(texts, context)
    spec = replace(context.spec(root, ", ".join(texts), None), patterns=patterns, skipped=_skipped(patterns, context))
    return replace(spec, format=_common_format(_first_matches(spec, texts), context))


def _whole_files(texts: Sequence[str], context: _InputContext) -> InputSpec:
    """Each file a row; a folder stands for all that is in it, and the path is the id."""
    below = [f"{text.rstrip('/')}/{ANY_FOLDERS}" if context.place(text).is_dir() else text for text in texts]
    root, patterns = _patterns(below, context)
    spec = replace(
        context.spec(root, ", ".join(texts), "files"),
        id_field=context.keys.id_field or "path",
        patterns=patterns,
        skipped=_skipped(patterns, context),
    )
    _first_matches(spec, texts)
    return spec


def _patterns(texts: Sequence[str], context: _InputContext) -> tuple[Path, tuple[str, ...]]:
    """The folder that patterns are relative to, and the patterns. All that is wrong with them is said at once."""
    refused, found = [], []
    for text in texts:
        try:
            found.append(_pattern(text, context))
        except _InputRefused as error:
            refused.append(str(error))
    if refused:
        raise _InputRefused("; ".join(refused))
    root = context.project.root
    if not all(lies_in(path, root) for path in found):
        root = Path(os.path.commonpath([fixed_part(path.as_posix()) for path in found]))
    return root, tuple(path.relative_to(root).as_posix() for path in found)


def _pattern(text: str, context: _InputContext) -> Path:
    """A path or a pattern, absolute."""
    if text == PIPED or "://" in text:
        raise _InputRefused(f"{text!r} cannot stand in a list; a list names files")
    path = context.place(text)
    if path.is_file():
        return path if context.typed else context.project.root / PurePosixPath(text)
    if not is_pattern(text):
        raise _InputRefused(f"{text!r} is a folder" if path.is_dir() else f"no such file: {text!r}")
    if ".." in PurePosixPath(text).parts and not context.typed:
        raise _InputRefused(f"{text!r}: a pattern goes down only; begin it below the folder that '..' leads to")
    fixed = fixed_part(text)
    return context.place(str(fixed)) / PurePosixPath(text).relative_to(fixed)


def _skipped(patterns: Sequence[str], context: _InputContext) -> tuple[Path, ...]:
    """State, and results: the workflow's own always, all others unless a pattern begins among them."""
    root = context.project.root
    output = context.project.paths.output
    named = any(lies_in(root / fixed_part(pattern), output) for pattern in patterns)
    return (*(root / name for name in STATE_FOLDERS), context.own_output, *(() if named else (output,)))


def _first_matches(spec: InputSpec, texts: Sequence[str]) -> list[str]:
    """The first files of all patterns. Raises _Refused when one of them matches none."""
    try:
        empty = [
            text
            for text, pattern in zip(texts, spec.patterns, strict=True)
            if next(matching(spec.path, (pattern,), spec.skipped), None) is None
        ]
        if not empty:
            return list(islice(matching(spec.path, spec.patterns, spec.skipped), LOOKED_AT))
        hidden = next(matching(spec.path, spec.patterns), None) is not None
    except Unmatchable as error:
        raise _InputRefused(str(error)) from None
    where = "what it matches are results or agac's own files" if hidden else _near(spec, empty[0])
    raise _InputRefused(f"{', '.join(map(repr, empty))} matches no file; {where}")


def _near(spec: InputSpec, text: str) -> str:
    path = spec.path / spec.patterns[0] if len(spec.patterns) == 1 else spec.path / text
    return near_files(path, spec.path) if lies_in(path, spec.path) else "check the folder"


def _common_format(names: Sequence[str], context: _InputContext) -> InputFormat:
    formats: dict[InputFormat, str] = {}
    for name in names:
        found = context.format_of(name)
        if found is None:
            raise _InputRefused(f"cannot tell the format of {name!r}; name files of one format, or say it with format")
        formats.setdefault(found, name)
    if len(formats) > 1:
        (first, name), (second, other) = list(formats.items())[:2]
        raise _InputRefused(f"{name!r} is {first}, {other!r} is {second}; name files of one format, or add format")
    return next(iter(formats))
