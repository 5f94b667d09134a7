"""The input of a workflow: a file, several, a database or standard input, and the format of
each."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote_plus, urlsplit
from urllib.request import url2pathname

from pydantic import ValidationError

from agac.core.errors import Problem, UsageError, Where, did_you_mean, listed, sentence
from agac.spec import paths
from agac.spec.data_models import InputFile
from agac.spec.models import WorkflowFile
from agac.spec.paths import Refused
from agac.spec.project_files import files_in
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
_REGROUPS = re.compile(
    r"\b(?:GROUP|DISTINCT|JOIN|UNION|INTERSECT|EXCEPT|PIVOT|UNNEST)\b", re.IGNORECASE
)
"""Words of a statement whose rows need not be in the order of those that it reads."""


class DatabaseUrl(NamedTuple):
    """The path as it was written, the one statement that reads it, and whether its rows surely
    keep their order."""

    path: str
    statement: str
    ordered: bool


def parse_database(text: str) -> DatabaseUrl:
    """The parts of `text`. Raises Refused. What follows `?query=` is the statement as it stands,
    to the end: `%` and `&` are its own. Only one without any white space is taken to be
    percent-encoded."""
    server = paths.POSTGRES.match(text)
    form = FORM
    if server:
        (path, key, value), form = paths.server_parts(text, *KEYS), POSTGRES_FORM
    else:
        path, _, rest = text.removeprefix(SCHEME).partition("?")
        key, equals, value = rest.partition("=")
        key = key if equals else ""
    if not path:
        raise Refused(f"names no database; {form}")
    if not key:
        raise Refused(f"does not say what to read; {form}")
    if key not in KEYS:
        raise Refused(f"unknown parameter {key!r}; {did_you_mean(key, KEYS)}")
    if not any(map(str.isspace, value.strip())):
        value = unquote_plus(value)
    if not value.strip():
        raise Refused(f"{key} is empty; {form}")
    if key == "table":
        if server:
            name = paths.server_table(value.strip())
        else:
            name = '"' + value.strip().replace('"', '""') + '"'
        return DatabaseUrl(path, f"SELECT * FROM {name}", ordered=not server)  # noqa: S608 - quoted; or read by rowid
    start = _COMMENTS.match(value)
    if not _READS.match(value, start.end() if start else 0):
        raise Refused("the query is no SELECT; a source only reads: begin it with SELECT or WITH")
    return DatabaseUrl(path, value, _ORDERED.search(value) is not None)


POSTGRES_FORM = "write postgres://USER:${PGPASSWORD}@HOST/DATABASE?query=SELECT … or …?table=NAME"


def named(text: str) -> str:
    """An input in a message that refuses it: of a server's without who reads it, and without what
    is read."""
    if paths.POSTGRES.match(text):
        return re.sub("(?s)://.*@", "://…@", text).partition("?")[0]
    return text


def input_spec(
    file: WorkflowFile, document: Document, project: ProjectSpec, name: str, overrides: Overrides
) -> tuple[InputSpec | None, list[Problem]]:
    """Where the rows of the workflow `name` come from. Raises `UsageError` when the command line's
    cannot be used."""
    if file.input is not None and file.inputs is not None:
        message = "input and inputs are two spellings of one key; keep input"
        return None, [document.problem(("inputs",), message, key=True)]
    key = "inputs" if file.inputs is not None else "input"
    keys = file.inputs or file.input or InputFile()
    at = document.where((key, "path"))
    sql_at = document.where((key, "sql"))
    if overrides.sql is not None:
        keys = keys.model_copy(update={"sql": overrides.sql})
        sql_at = Where("--sql")
    beside: dict[str, Any] = (
        {"sql_at": sql_at, "scratch": project.root / STATEMENTS} if keys.sql is not None else {}
    )
    own_output = project.paths.output / name
    output = overrides.output or file.output.dir
    with suppress(paths.OutsideProject):  # said where outputs are checked
        own_output = paths.inside(project.root, output) if output else own_output
    if overrides.input is not None:
        flag = f"{document.places[key]}: " if key in document.places else "--input "
        spec = _typed(
            [str(overrides.input)], _Resolver(project, keys, at, own_output, typed=True), flag
        )
        left = f"what --input names is {spec.format}, and read without it"
        spec = replace(spec, **beside)
        unused = [((key, name), f"{said}; {left}") for name, said in unused_keys(spec).items()]
        return spec, [
            replace(document.problem(*one, key=True), severity="warning") for one in unused
        ]
    if keys.path is None:
        here = (
            path for path in files_in(project.root / "data", project.root) if format_of(path.name)
        )
        shown = next((path.relative_to(project.root).as_posix() for path in here), "FILE")
        message = (
            f"missing key 'path'; name the file with the rows, as input: {{path: "
            f"{shown}}}, or use --input"
        )
        return None, [document.problem((key,), message)]
    try:
        spec = _Resolver(project, keys, at, own_output).spec(keys.path)
        spec = replace(spec, **beside)
    except Refused as error:
        other = project.elsewhere()
        if other is not None:
            return input_spec(file, document, other, name, overrides)
        return None, [Problem(at, str(error))]
    for name, text in unused_keys(spec).items():
        message = f"{text}; remove it, or say what the input is with format"
        return None, [document.problem((key, name), message, key=True)]
    if spec.id_field is not None:
        return spec, []
    # they may be others next time
    if spec.statement is not None and not spec.ordered:
        places = [spec.where]
    else:
        places = []
    places += (
        [sql_at]
        if spec.sql and _REGROUPS.search(spec.sql) and not _ORDERED.search(spec.sql)
        else []
    )
    message = (
        "rows are known by their numbers, and the query does not order them; add ORDER BY, "
        "or name an id_field"
    )
    return spec, [Problem(at, message, "warning") for at in places]


def unused_keys(spec: InputSpec) -> dict[str, str]:
    """Keys of an input that mean nothing for its format, each with a sentence that says for which
    they do."""
    wrong = [
        (name, formats) for name, formats in WRITTEN.items() if spec.format not in (*formats, None)
    ]
    return {
        name: f"{name} is for {listed(formats)}"
        for name, formats in wrong
        if getattr(spec, name) is not None
    }


def free_input(texts: Sequence[str], project: ProjectSpec, **how: str | int | None) -> InputSpec:
    """An input that no workflow names. `how` has the keys of an input that say how it is to be
    read: its format where its name does not tell it, its delimiter, its encoding. Raises
    `UsageError`."""
    try:
        keys = InputFile.model_validate(
            {key: value for key, value in how.items() if value is not None}
        )
    except ValidationError as error:
        one = error.errors()[0]
        raise UsageError(f"--{one['loc'][0]}: {one['msg']}") from None
    where = Where(texts[0])
    output = project.paths.output
    return _typed(
        texts, _Resolver(project, keys, where, output, typed=True, says_format="--format csv"), ""
    )


def _typed(texts: Sequence[str], resolver: _Resolver, flag: str) -> InputSpec:
    # a flag's path is the same for both
    shown = "'' or ." if flag and texts[0] == "." else texts[0] or "''"
    if Path(shown).parent == resolver.project.root / INPUTS:
        flag = ""
        shown = "standard input"
    try:
        return resolver.spec(texts)
    except Refused as error:
        what, _, todo = str(error).removeprefix(shown).lstrip(": ").partition("; ")
        which = (
            f"a {KNOWN_FILES} file, a pattern in quotes, sqlite://DATABASE?query=SELECT …, "
            "or - for standard input"
        )
        raise UsageError(
            f"{flag}{named(shown)}: {what}", remedy=sentence(todo) if todo else f"Name {which}."
        ) from None


@dataclass(frozen=True, slots=True)
class _Resolver:
    """From paths to an InputSpec: what is known next to the paths, and whether they were typed on
    the command line; `says_format` is how a format would be said. What a file names stays inside
    the project; what is typed is relative to the current folder and may lie anywhere. All methods
    raise Refused."""

    project: ProjectSpec
    keys: InputFile
    where: Where
    own_output: Path
    typed: bool = False
    says_format: str = "`format: csv` to the workflow's input (`agac process`: --read format=csv)"

    def spec(self, texts: Sequence[str]) -> InputSpec:
        """The input that these paths name."""
        text = texts[0]
        if len(texts) == 1 and text == PIPED:
            return replace(
                self._made(self.project.root / INPUTS, PIPED, self._piped_format()), piped=True
            )
        if len(texts) == 1 and (text.startswith(SCHEME) or paths.POSTGRES.match(text)):
            declared = self.keys.format
            found: InputFormat = "postgres" if paths.POSTGRES.match(text) else "sqlite"
            if declared not in (None, found) and not self.typed:
                kind = "PostgreSQL" if found == "postgres" else "SQLite"
                raise Refused(
                    f"the path names a {kind} database, and format says {declared}; remove format"
                )
            try:
                url = parse_database(text)
            except Refused as error:
                raise Refused(
                    str(error) if self.typed else f"{named(text).partition('?')[0]!r}: {error}"
                ) from None
            if found == "postgres":
                made = self._made(self.project.root / INPUTS, text, found)
                return replace(made, statement=url.statement, ordered=url.ordered)
            path = self._place(url.path)
            if not path.is_file():
                raise Refused(f"no such database: {url.path!r}")
            return replace(
                self._made(path, text, "sqlite"), statement=url.statement, ordered=url.ordered
            )
        if len(texts) == 1 and paths.is_reference(text):
            return self._fetched(text)
        if len(texts) == 1 and text.startswith(paths.SCHEMES):
            todo = "percent-encode it, and put what logs in into `headers` of `remote` in agac.yml"
            raise Refused(f"an address holds no white space and no ${{…}}; {todo}")
        if len(texts) == 1 and "://" in text:
            raise Refused(
                f"{text.split('://')[0]}:// is not supported yet; name a {KNOWN_FILES} file"
            )
        if len(texts) > 1 or self.keys.format == "files":
            return self._several(texts)
        path = self._place(text)
        if paths.is_pattern(text) and not path.is_file():
            return self._several(texts)
        return self._file(text, path)

    def _fetched(self, text: str) -> InputSpec:
        """What a reference names; a typed `file://` is a typed path."""
        if self.typed and text.startswith("file://"):
            return self.spec([url2pathname(urlsplit(text).path)])
        fetched = [one.path for one in self.project.fetch(text, "input")]
        for path in fetched:
            if suffix_of(path.name) in DATABASES:
                raise Refused(
                    f"{text} is a database; download it, and say what to read with "
                    f"{SCHEME}FILE?query=…"
                )
            self._refuse_no_file(text, path)
        found = {self._format_of(path.name) for path in fetched}
        if None in found or len(found) > 1:
            raise Refused(f"{text}: its name does not tell the format; add {self.says_format}")
        made = self._made(fetched[0], text, found.pop())
        if len(fetched) == 1:
            return made
        # the hub's library keeps links: files with the same content lead to one, and are as many
        # all the same
        files = [path.parent.resolve() / path.name for path in fetched]
        folder = Path(
            os.path.commonpath([one.parent for path in files for one in (path, path.resolve())])
        )
        return replace(
            made, path=folder, patterns=tuple(path.relative_to(folder).as_posix() for path in files)
        )

    def _made(self, path: Path, shown: str, found: InputFormat | None) -> InputSpec:
        keys = self.keys
        if "on_short_record" in keys.model_fields_set:
            short = keys.on_short_record
        else:
            short = None
        return InputSpec(
            path,
            shown,
            found,
            keys.id_field,
            keys.on_duplicate_id,
            self.where,
            delimiter=keys.delimiter,
            encoding=keys.encoding,
            allow_empty=keys.allow_empty,
            sql=keys.sql,
            sheet=keys.sheet,
            header_row=keys.header_row,
            on_short_record=short,
            hive=keys.hive or None,
        )

    def _place(self, text: str) -> Path:
        if self.typed:
            return Path(text).resolve()
        root = self.project.root
        try:
            path = paths.inside(root, text)
        except paths.OutsideProject as error:
            raise Refused(f"{error}, or use --input") from None
        if path.is_file() and path.parent != root / INPUTS:
            why = paths.secret_kind(path, root)
        else:
            why = None
        if why is not None:
            raise Refused(f"{text!r} {why}, and is not read as rows; name another file")
        return path

    def _format_of(self, name: str) -> InputFormat | None:
        """A typed file is what its suffix says, before what the workflow says of its own; .txt may
        be anything."""
        declared = self.keys.format if self.keys.format not in NO_FILES else None
        by_name = format_of(name)
        if self.typed and by_name not in (None, "txt"):
            return by_name
        return declared or by_name

    def _file(self, text: str, path: Path) -> InputSpec:
        self._refuse_no_file(text, path)
        formats = dict.fromkeys(SUFFIXES.values())
        add_format = f"add {self.says_format}, or another of {listed(formats)}"
        # standard input as it was kept: the same run goes on
        if path.parent == self.project.root / INPUTS:
            if not self.typed:
                raise Refused("is what was piped into an earlier run; write '-'")
            if path.name.startswith(GIVEN_PREFIX):
                return replace(self._made(path, GIVEN, "jsonl"), delimiter=None, encoding=None)
            own = format_of(self.keys.path[0]) if self.keys.path else None
            text = PIPED
            found = self._piped_format() or format_of(path.name) or own
            unknown = f"cannot tell the format of what is piped in; {add_format}"
        else:
            found = self._format_of(path.name)
            unknown = f"its name does not tell the format; {add_format}"
            if not self.typed:
                unknown = f"cannot tell the format of {text!r}; {add_format}"
        if found is None:
            raise Refused(unknown)
        return self._made(path, text, found)

    def _refuse_no_file(self, text: str, path: Path) -> None:
        suffix = suffix_of(path.name)
        named = "" if self.typed else f"{text!r} "
        if suffix in TABLES_LATER:
            raise Refused(f"{suffix[1:]} is not supported yet; convert it to csv or jsonl")
        if path.is_dir():
            end = next((inner.suffix for inner in sorted(path.glob("*.*")) if inner.suffix), ".csv")
            remedy = (
                f"name a file in it, or several as '{text.rstrip('/')}/*{end}'; with "
                "format: files each is a row"
            )
            raise Refused(f"{named}is a folder; {remedy}")
        if not path.exists():
            if self.typed:
                near = ""
            else:
                near = f": {text!r}; {paths.near_files(path, self.project.root)}"
            raise Refused(f"no such file{near}")
        if not path.is_file():
            raise Refused(f"{named}is not a file")
        if self.keys.format == "sqlite" or (
            suffix in DATABASES and self._format_of(path.name) is None
        ):
            forms = f"{SCHEME}{text}?query=SELECT … or {SCHEME}{text}?table=…"
            raise Refused(f"a database is named with what to read: {forms}")
        packed = path.suffix.lower()
        if SUFFIXES.get(suffix) in ("parquet", "xlsx") and packed in PACKED:
            raise Refused(f"{suffix[1:]} is compressed inside; unpack the {packed} around it")

    def _piped_format(self) -> InputFormat | None:
        if self.keys.format in NO_FILES:
            raise Refused(f"format: {self.keys.format} cannot be piped in")
        return self.keys.format

    def _several(self, texts: Sequence[str]) -> InputSpec:
        """Files and patterns. With the format files each file is a row with its path as id, and a
        folder all in it."""
        whole = self.keys.format == "files"
        named = list(texts)
        if whole:
            named = [
                f"{one.rstrip('/')}/{paths.ANY_FOLDERS}" if self._place(one).is_dir() else one
                for one in texts
            ]
        root, patterns = self._patterns(named)
        output = self.project.paths.output
        # never state, nor the workflow's own results; those of others where a pattern begins among
        # them
        skipped = [*(self.project.root / name for name in paths.STATE_FOLDERS), self.own_output]
        if not any(
            (self.project.root / paths.fixed_part(pattern)).is_relative_to(output)
            for pattern in patterns
        ):
            skipped.append(output)
        made = self._made(root, ", ".join(texts), "files" if whole else None)
        spec = replace(made, patterns=patterns, skipped=tuple(skipped))
        names = _first_matches(spec, texts)
        if whole:
            return replace(spec, id_field=self.keys.id_field or "path")
        formats: dict[InputFormat, str] = {}
        for name in names:
            found = self._format_of(name)
            if found is None:
                remedy = "name files of one format, or say it with format"
                raise Refused(f"cannot tell the format of {name!r}; {remedy}")
            formats.setdefault(found, name)
        if len(formats) > 1:
            (first, name), (second, other) = list(formats.items())[:2]
            raise Refused(
                f"{name!r} is {first}, {other!r} is {second}; name files of one format, or "
                "add format"
            )
        return replace(spec, format=next(iter(formats)))

    def _patterns(self, texts: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
        """The folder that patterns are relative to, and the patterns. All that is wrong with them
        is said at once."""
        refused = []
        found = []
        for text in texts:
            try:
                found.append(self._pattern(text))
            except Refused as error:
                refused.append(str(error))
        if refused:
            raise Refused("; ".join(refused))
        root = self.project.root
        if not all(path.is_relative_to(root) for path in found):
            root = Path(os.path.commonpath([paths.fixed_part(path.as_posix()) for path in found]))
        return root, tuple(path.relative_to(root).as_posix() for path in found)

    def _pattern(self, text: str) -> Path:
        if text == PIPED or "://" in text:
            raise Refused(f"{named(text)!r} cannot stand in a list; a list names files")
        path = self._place(text)
        if path.is_file():
            if self.typed:
                return path
            return self.project.root / PurePosixPath(text)
        if not paths.is_pattern(text):
            raise Refused(f"{text!r} is a folder" if path.is_dir() else f"no such file: {text!r}")
        if ".." in PurePosixPath(text).parts and not self.typed:
            raise Refused(
                f"{text!r}: a pattern goes down only; begin it below the folder that '..' leads to"
            )
        fixed = paths.fixed_part(text)
        return self._place(str(fixed)) / PurePosixPath(text).relative_to(fixed)


def _first_matches(spec: InputSpec, texts: Sequence[str]) -> list[str]:
    """The first files of all patterns. Raises Refused when one of them matches none."""
    firsts = [
        next(paths.matching_rows(spec.path, (pattern,), spec.skipped), None)
        for pattern in spec.patterns
    ]
    empty = [text for text, first in zip(texts, firsts, strict=True) if first is None]
    if not empty:
        return list(islice(paths.matching_rows(spec.path, spec.patterns, spec.skipped), LOOKED_AT))
    hidden = next(paths.matching(spec.path, spec.patterns), None) is not None
    hint = "what it matches are results or agac's own files"
    if not hidden:
        path = spec.path / (spec.patterns[0] if len(spec.patterns) == 1 else empty[0])
        if path.is_relative_to(spec.path):
            hint = paths.near_files(path, spec.path)
        else:
            hint = "check the folder"
    raise Refused(f"{', '.join(map(repr, empty))} matches no file; {hint}")
