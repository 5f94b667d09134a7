"""The input of a workflow: a file, several, a database or standard input, and the format of
each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pydantic import ValidationError

from agac.core.errors import Problem, UsageError, Where, listed, sentence
from agac.spec import paths
from agac.spec.data_models import InputFile
from agac.spec.data_specs import InputFormat, InputSpec
from agac.spec.database_urls import (
    ORDERED,
    SCHEME,
    named,
    parse_database,
)
from agac.spec.models import WorkflowFile
from agac.spec.paths import Refused
from agac.spec.project import Overrides, ProjectSpec
from agac.spec.project_files import files_in
from agac.spec.yaml import Document

SUFFIXES: Mapping[str, InputFormat] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "txt",
    ".parquet": "parquet",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
}
"""The format of a file that says none, by its suffix."""

PACKED = (".gz", ".zst")  # suffixes of compressed files; the format's own stands before them
DELIMITED: tuple[InputFormat, ...] = ("csv", "tsv")
SHEETS: tuple[InputFormat, ...] = ("xlsx",)
IN_FOLDERS: tuple[InputFormat, ...] = ("parquet",)
WRITTEN: Mapping[str, tuple[InputFormat, ...]] = {
    "delimiter": DELIMITED, "encoding": (*DELIMITED, "json", "jsonl", "txt", "files"),
    "on_short_record": DELIMITED, "sheet": SHEETS, "header_row": SHEETS, "hive": IN_FOLDERS,
}  # fmt: skip
"""Keys that say how a file is written, with the formats of which they may be said."""

NO_FILES = ("files", "sqlite", "postgres")  # formats that no single file has
DATABASES = frozenset({".db", ".sqlite", ".sqlite3"})
TABLES_LATER = frozenset({".xls", ".ods", ".arrow", ".feather"})
KNOWN_FILES = "csv, tsv, json, jsonl, txt, parquet or xlsx"
PIPED = "-"  # standard input, as a path

INPUTS = Path(".agac") / "inputs"
"""Where standard input is kept, relative to the project: a run reads its input more than once."""

# where statements over rows keep what they work on, while a command runs
STATEMENTS = Path(".agac") / "sql"

GIVEN = "rows from Python"
GIVEN_PREFIX = "rows-"
"""Rows that a program gave, in messages and definitions, and how the files begin in which they are
kept as well."""

LOOKED_AT = 1_000
"""So many files of a pattern are looked at before a run; what is wrong with later ones is found
when they are read."""


def suffix_of(name: str) -> str:
    """Returns the suffix that tells what a file holds, in small letters: `.csv` of
    `Rows.CSV.gz`."""
    path = PurePath(name)
    if path.suffix.lower() in PACKED:
        path = path.with_suffix("")
    return path.suffix.lower()


def format_of(name: str) -> InputFormat | None:
    """Returns the format that a file's name tells, if it tells one."""
    return SUFFIXES.get(suffix_of(name))


_REGROUPS = re.compile(
    r"\b(?:GROUP|DISTINCT|JOIN|UNION|INTERSECT|EXCEPT|PIVOT|UNNEST)\b", re.IGNORECASE
)
"""Words of a statement whose rows need not be in the order of those that it reads."""


def input_spec(
    file: WorkflowFile, document: Document, project: ProjectSpec, name: str, overrides: Overrides
) -> tuple[InputSpec | None, list[Problem]]:
    """Resolves where the rows of the workflow `name` come from. Raises `UsageError` when the
    command line's input cannot be used."""
    if file.input is not None and file.inputs is not None:
        message = "input and inputs are two spellings of one key; keep input"
        return None, [document.problem(("inputs",), message, key=True)]
    key = "input" if file.inputs is None else "inputs"
    keys = file.inputs or file.input or InputFile()
    at = document.where((key, "path"))
    sql_at = document.where((key, "sql"))
    if overrides.sql is not None:
        keys = keys.model_copy(update={"sql": overrides.sql})
        sql_at = Where("--sql")
    statement: dict[str, Any] = {}
    if keys.sql is not None:
        statement = {"sql_at": sql_at, "scratch": project.root / STATEMENTS}
    output = _own_output(project, name, overrides.output or file.output.dir)
    resolver = _Resolver(project, keys, at, output)
    if overrides.input is not None:
        flag = f"{document.places[key]}: " if key in document.places else "--input "
        spec = _typed([str(overrides.input)], replace(resolver, typed=True), flag)
        spec = replace(spec, **statement)
        return spec, _unused_warnings(spec, document, key)
    if keys.path is None:
        return None, [document.problem((key,), _missing_path(project))]
    try:
        spec = replace(resolver.spec(keys.path), **statement)
    except Refused as error:
        other = project.elsewhere()
        if other is not None:
            return input_spec(file, document, other, name, overrides)
        return None, [Problem(at, str(error))]
    for name, fault in unused_keys(spec).items():
        message = f"{fault}; remove it, or say what the input is with format"
        return None, [document.problem((key, name), message, key=True)]
    return spec, list(_order_warnings(spec, sql_at))


def _unused_warnings(spec: InputSpec, document: Document, key: str) -> list[Problem]:
    """Returns a warning for each key of the file's input that `--input` makes useless."""
    remark = f"what --input names is {spec.format}, and read without it"
    problems = [
        document.problem((key, name), f"{fault}; {remark}", key=True)
        for name, fault in unused_keys(spec).items()
    ]
    return [replace(problem, severity="warning") for problem in problems]


def _own_output(project: ProjectSpec, name: str, folder: str | None) -> Path:
    """Returns the folder for the results of the workflow `name`, from which no rows are read."""
    if folder:
        with suppress(paths.OutsideProject):  # said where outputs are checked
            return paths.inside(project.root, folder)
    return project.paths.output / name


def _missing_path(project: ProjectSpec) -> str:
    """Returns the message for an input without a path, with a file that may be meant."""
    files = files_in(project.root / "data", project.root)
    names = (path.relative_to(project.root).as_posix() for path in files if format_of(path.name))
    return (
        f"missing key 'path'; name the file with the rows, as input: {{path: "
        f"{next(names, 'FILE')}}}, or use --input"
    )


def _order_warnings(spec: InputSpec, sql_at: Where) -> Iterator[Problem]:
    """Yields a warning for each query that may give rows in another order the next time, where
    rows are known by their numbers."""
    if spec.id_field is not None:
        return
    message = (
        "rows are known by their numbers, and the query does not order them; add ORDER BY, "
        "or name an id_field"
    )
    if spec.statement is not None and not spec.ordered:
        yield Problem(spec.where, message, "warning")
    if spec.sql and _REGROUPS.search(spec.sql) and not ORDERED.search(spec.sql):
        yield Problem(sql_at, message, "warning")


def unused_keys(spec: InputSpec) -> dict[str, str]:
    """Keys of an input that mean nothing for its format, each with a sentence that says for which
    formats they are."""
    return {
        name: f"{name} is for {listed(formats)}"
        for name, formats in WRITTEN.items()
        if spec.format not in (*formats, None) and getattr(spec, name) is not None
    }


def free_input(texts: Sequence[str], project: ProjectSpec, **how: str | int | None) -> InputSpec:
    """Resolves an input that no workflow names. `how` has the keys of an input that say how to
    read it: its format where its name does not tell it, its delimiter, its encoding. Raises
    `UsageError`."""
    try:
        keys = InputFile.model_validate(
            {key: value for key, value in how.items() if value is not None}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"--{first['loc'][0]}: {first['msg']}") from None
    resolver = _Resolver(
        project,
        keys,
        Where(texts[0]),
        project.paths.output,
        typed=True,
        says_format="--format csv",
    )
    return _typed(texts, resolver, "")


def _typed(texts: Sequence[str], resolver: _Resolver, flag: str) -> InputSpec:
    """Resolves an input that was typed. Raises UsageError, which begins with `flag`."""
    # a flag's path is the same for both
    shown = "'' or ." if flag and texts[0] == "." else texts[0] or "''"
    if Path(shown).parent == resolver.project.root / INPUTS:
        flag = ""
        shown = "standard input"
    try:
        return resolver.spec(texts)
    except Refused as error:
        what, _, todo = str(error).removeprefix(shown).lstrip(": ").partition("; ")
        remedy = (
            f"Name a {KNOWN_FILES} file, a pattern in quotes, sqlite://DATABASE?query=SELECT …, "
            "or - for standard input."
        )
        if todo:
            remedy = sentence(todo)
        raise UsageError(f"{flag}{named(shown)}: {what}", remedy=remedy) from None


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Makes an InputSpec of paths. What a file names stays inside the project; what is typed is
    relative to the current folder and may lie anywhere. All methods raise Refused."""

    project: ProjectSpec
    keys: InputFile
    where: Where
    """The place of the path."""
    own_output: Path
    """The workflow's folder of results, from which no rows are read."""
    typed: bool = False
    """True for paths that were typed on the command line."""
    says_format: str = "`format: csv` to the workflow's input (`agac process`: --read format=csv)"
    """How a format would be given."""

    def spec(self, texts: Sequence[str]) -> InputSpec:
        """Resolves the input that these paths name."""
        if len(texts) > 1:
            return self._several(texts)
        text = texts[0]
        if text == PIPED:
            piped = self._made(self.project.root / INPUTS, PIPED, self._piped_format())
            return replace(piped, piped=True)
        if text.startswith(SCHEME) or paths.POSTGRES.match(text):
            return self._database(text)
        if paths.is_reference(text):
            return self._fetched(text)
        _refuse_address(text)
        if self.keys.format == "files":
            return self._several(texts)
        path = self._place(text)
        if paths.is_pattern(text) and not path.is_file():
            return self._several(texts)
        return self._file(text, path)

    def _database(self, text: str) -> InputSpec:
        """Resolves a statement over a database."""
        on_server = paths.POSTGRES.match(text) is not None
        database: InputFormat = "postgres" if on_server else "sqlite"
        declared = self.keys.format
        if declared not in (None, database) and not self.typed:
            kind = "PostgreSQL" if on_server else "SQLite"
            raise Refused(
                f"the path names a {kind} database, and format says {declared}; remove format"
            )
        try:
            url = parse_database(text)
        except Refused as error:
            if self.typed:
                raise Refused(str(error)) from None
            raise Refused(f"{named(text).partition('?')[0]!r}: {error}") from None
        if on_server:
            path = self.project.root / INPUTS
        else:
            path = self._place(url.path)
            if not path.is_file():
                raise Refused(f"no such database: {url.path!r}")
        spec = self._made(path, text, database)
        return replace(spec, statement=url.statement, ordered=url.ordered)

    def _fetched(self, text: str) -> InputSpec:
        """Resolves what a reference names; a typed `file://` is a typed path."""
        if self.typed and text.startswith("file://"):
            return self.spec([url2pathname(urlsplit(text).path)])
        fetched = [content.path for content in self.project.fetch(text, "input")]
        for path in fetched:
            if suffix_of(path.name) in DATABASES:
                raise Refused(
                    f"{text} is a database; download it, and say what to read with "
                    f"{SCHEME}FILE?query=…"
                )
            self._refuse_no_file(text, path)
        formats = {self._format_of(path.name) for path in fetched}
        if None in formats or len(formats) > 1:
            raise Refused(f"{text}: its name does not tell the format; add {self.says_format}")
        spec = self._made(fetched[0], text, formats.pop())
        if len(fetched) == 1:
            return spec
        # the hub's library keeps links: files with the same content lead to one, and are as many
        # all the same
        files = [path.parent.resolve() / path.name for path in fetched]
        folders = [place.parent for path in files for place in (path, path.resolve())]
        folder = Path(os.path.commonpath(folders))
        patterns = tuple(path.relative_to(folder).as_posix() for path in files)
        return replace(spec, path=folder, patterns=patterns)

    def _made(self, path: Path, shown: str, file_format: InputFormat | None) -> InputSpec:
        """Returns the input with the keys of the file."""
        keys = self.keys
        says_short = "on_short_record" in keys.model_fields_set
        return InputSpec(
            path,
            shown,
            file_format,
            keys.id_field,
            keys.on_duplicate_id,
            self.where,
            delimiter=keys.delimiter,
            encoding=keys.encoding,
            allow_empty=keys.allow_empty,
            sql=keys.sql,
            sheet=keys.sheet,
            header_row=keys.header_row,
            on_short_record=keys.on_short_record if says_short else None,
            hive=keys.hive or None,
        )

    def _place(self, text: str) -> Path:
        """Returns the absolute path of a file that the paths name."""
        if self.typed:
            return Path(text).resolve()
        root = self.project.root
        try:
            path = paths.inside(root, text)
        except paths.OutsideProject as error:
            raise Refused(f"{error}, or use --input") from None
        if path.is_file() and path.parent != root / INPUTS:
            why = paths.secret_kind(path, root)
            if why is not None:
                raise Refused(f"{text!r} {why}, and is not read as rows; name another file")
        return path

    def _format_of(self, name: str) -> InputFormat | None:
        """Returns the format of a file: a typed file has that of its suffix before that of the
        workflow's own input; .txt may be anything."""
        declared = self.keys.format if self.keys.format not in NO_FILES else None
        by_name = format_of(name)
        if self.typed and by_name not in (None, "txt"):
            return by_name
        return declared or by_name

    def _file(self, text: str, path: Path) -> InputSpec:
        """Resolves a single file."""
        self._refuse_no_file(text, path)
        if path.parent == self.project.root / INPUTS:
            return self._kept(path)
        file_format = self._format_of(path.name)
        if file_format is None:
            what = f"cannot tell the format of {text!r}"
            if self.typed:
                what = "its name does not tell the format"
            raise Refused(f"{what}; {self._add_format()}")
        return self._made(path, text, file_format)

    def _kept(self, path: Path) -> InputSpec:
        """Resolves standard input as it was kept: the same run continues."""
        if not self.typed:
            raise Refused("is what was piped into an earlier run; write '-'")
        if path.name.startswith(GIVEN_PREFIX):
            return replace(self._made(path, GIVEN, "jsonl"), delimiter=None, encoding=None)
        declared = format_of(self.keys.path[0]) if self.keys.path else None
        file_format = self._piped_format() or format_of(path.name) or declared
        if file_format is None:
            raise Refused(f"cannot tell the format of what is piped in; {self._add_format()}")
        return self._made(path, PIPED, file_format)

    def _add_format(self) -> str:
        """Returns the remedy where no name tells the format."""
        formats = dict.fromkeys(SUFFIXES.values())
        return f"add {self.says_format}, or another of {listed(formats)}"

    def _refuse_no_file(self, text: str, path: Path) -> None:
        """Refuses what is no file with rows."""
        suffix = suffix_of(path.name)
        shown = "" if self.typed else f"{text!r} "
        if suffix in TABLES_LATER:
            raise Refused(f"{suffix[1:]} is not supported yet; convert it to csv or jsonl")
        if path.is_dir():
            end = next((inner.suffix for inner in sorted(path.glob("*.*")) if inner.suffix), ".csv")
            remedy = (
                f"name a file in it, or several as '{text.rstrip('/')}/*{end}'; with "
                "format: files each is a row"
            )
            raise Refused(f"{shown}is a folder; {remedy}")
        if not path.exists():
            near = ""
            if not self.typed:
                near = f": {text!r}; {paths.near_files(path, self.project.root)}"
            raise Refused(f"no such file{near}")
        if not path.is_file():
            raise Refused(f"{shown}is not a file")
        is_database = suffix in DATABASES and self._format_of(path.name) is None
        if self.keys.format == "sqlite" or is_database:
            forms = f"{SCHEME}{text}?query=SELECT … or {SCHEME}{text}?table=…"
            raise Refused(f"a database is named with what to read: {forms}")
        packed = path.suffix.lower()
        if SUFFIXES.get(suffix) in ("parquet", "xlsx") and packed in PACKED:
            raise Refused(f"{suffix[1:]} is compressed inside; unpack the {packed} around it")

    def _piped_format(self) -> InputFormat | None:
        """Returns the format of standard input."""
        if self.keys.format in NO_FILES:
            raise Refused(f"format: {self.keys.format} cannot be piped in")
        return self.keys.format

    def _several(self, texts: Sequence[str]) -> InputSpec:
        """Resolves files and patterns. With the format `files` each file is a row with its path as
        id, and a folder all files in it."""
        whole_files = self.keys.format == "files"
        named_texts = list(texts)
        if whole_files:
            named_texts = [self._with_all_files(text) for text in texts]
        root, patterns = self._patterns(named_texts)
        spec = self._made(root, ", ".join(texts), "files" if whole_files else None)
        spec = replace(spec, patterns=patterns, skipped=self._skipped(patterns))
        names = _first_matches(spec, texts)
        if whole_files:
            return replace(spec, id_field=self.keys.id_field or "path")
        return replace(spec, format=self._one_format(names))

    def _with_all_files(self, text: str) -> str:
        """Returns a path; of a folder the pattern for all files in it."""
        if self._place(text).is_dir():
            return f"{text.rstrip('/')}/{paths.ANY_FOLDERS}"
        return text

    def _skipped(self, patterns: Sequence[str]) -> tuple[Path, ...]:
        """Folders from which patterns take nothing: state, and the workflow's own results; those of
        other workflows, too, unless a pattern begins among them."""
        root = self.project.root
        output = self.project.paths.output
        skipped = [*(root / name for name in paths.STATE_FOLDERS), self.own_output]
        begins = [root / paths.fixed_part(pattern) for pattern in patterns]
        if not any(folder.is_relative_to(output) for folder in begins):
            skipped.append(output)
        return tuple(skipped)

    def _one_format(self, names: Iterable[str]) -> InputFormat:
        """Returns the one format that files with these names have."""
        formats: dict[InputFormat, str] = {}
        for name in names:
            file_format = self._format_of(name)
            if file_format is None:
                remedy = "name files of one format, or say it with format"
                raise Refused(f"cannot tell the format of {name!r}; {remedy}")
            formats.setdefault(file_format, name)
        if len(formats) > 1:
            (first, name), (second, other) = list(formats.items())[:2]
            raise Refused(
                f"{name!r} is {first}, {other!r} is {second}; name files of one format, or "
                "add format"
            )
        return next(iter(formats))

    def _patterns(self, texts: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
        """Returns the folder that patterns are relative to, and the patterns. Everything that is
        wrong with them is said at once."""
        refused = []
        patterns = []
        for text in texts:
            try:
                patterns.append(self._pattern(text))
            except Refused as error:
                refused.append(str(error))
        if refused:
            raise Refused("; ".join(refused))
        root = self.project.root
        if not all(path.is_relative_to(root) for path in patterns):
            fixed = [paths.fixed_part(path.as_posix()) for path in patterns]
            root = Path(os.path.commonpath(fixed))
        return root, tuple(path.relative_to(root).as_posix() for path in patterns)

    def _pattern(self, text: str) -> Path:
        """Returns the absolute path of a file or pattern in a list."""
        if text == PIPED or "://" in text:
            raise Refused(f"{named(text)!r} cannot stand in a list; a list names files")
        path = self._place(text)
        if path.is_file():
            return path if self.typed else self.project.root / PurePosixPath(text)
        if not paths.is_pattern(text):
            raise Refused(f"{text!r} is a folder" if path.is_dir() else f"no such file: {text!r}")
        if ".." in PurePosixPath(text).parts and not self.typed:
            raise Refused(
                f"{text!r}: a pattern goes down only; begin it below the folder that '..' leads to"
            )
        fixed = paths.fixed_part(text)
        return self._place(str(fixed)) / PurePosixPath(text).relative_to(fixed)


def _refuse_address(text: str) -> None:
    """Refuses an address that is none of which rows can be read."""
    if text.startswith(paths.SCHEMES):
        todo = "percent-encode it, and put what logs in into `headers` of `remote` in agac.yml"
        raise Refused(f"an address holds no white space and no ${{…}}; {todo}")
    scheme, separator, _ = text.partition("://")
    if separator:
        raise Refused(f"{scheme}:// is not supported yet; name a {KNOWN_FILES} file")


def _first_matches(spec: InputSpec, texts: Sequence[str]) -> list[str]:
    """Returns the first files of all patterns. Raises Refused when one of them matches none."""
    firsts = [
        next(paths.matching_rows(spec.path, (pattern,), spec.skipped), None)
        for pattern in spec.patterns
    ]
    empty = [text for text, first in zip(texts, firsts, strict=True) if first is None]
    if not empty:
        return list(islice(paths.matching_rows(spec.path, spec.patterns, spec.skipped), LOOKED_AT))
    matches_others = next(paths.matching(spec.path, spec.patterns), None) is not None
    hint = "what it matches are results or agac's own files"
    if not matches_others:
        path = spec.path / (spec.patterns[0] if len(spec.patterns) == 1 else empty[0])
        hint = "check the folder"
        if path.is_relative_to(spec.path):
            hint = paths.near_files(path, spec.path)
    raise Refused(f"{', '.join(map(repr, empty))} matches no file; {hint}")
