"""`agac data`: looks at an input without a workflow: its format, its columns, its first rows."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import get_args

from agac.api.project import environment, remote_contents
from agac.core.arguments import typed
from agac.core.errors import UsageError, did_you_mean, sentence
from agac.core.types import JSONValue, Report
from agac.data.files import Source
from agac.data.sources import STANDARD_INPUT, Column, Columns, keep, open_input
from agac.data.sqlite import TABLES
from agac.data.text_formats import separator_hint
from agac.spec.data_specs import InputFormat, InputSpec
from agac.spec.database_urls import SCHEME
from agac.spec.inputs import DATABASES, DELIMITED, format_of, free_input, suffix_of, unused_keys
from agac.spec.loader import load_project
from agac.spec.paths import ProjectPaths, matching_rows, project_root
from agac.spec.project import ProjectSpec
from agac.spec.project_models import ProjectFile
from agac.spec.yaml import Document

MAX_PROBLEMS = 5
"""So many of the rows that cannot be used are explained."""


@dataclass(frozen=True, slots=True)
class DataReport(Report):
    """What was seen of an input."""

    JSON_KEYS = (
        "input",
        "format",
        "bytes=size",
        "files",
        "rows_looked_at=looked_at",
        "complete",
        "unusable",
        "problems",
        "columns",
        "rows",
        "hint",
    )

    input: str
    """The name of the input as messages show it."""

    format: str
    """The format that it was read as."""

    size: int
    """Bytes of all files."""

    files: int
    """How many files there are."""

    looked_at: int
    """How many rows were read."""

    complete: bool
    """True if these are all rows of the input."""

    unusable: int
    """How many of the rows that were read cannot be used."""

    problems: list[str]
    """Why the first of those cannot be used."""

    columns: list[Column]
    """The columns of the rows that were read, with their types."""

    rows: list[dict[str, JSONValue]]
    """The first rows."""

    @property
    def hint(self) -> str | None:
        """What to do if the only column looks like a header that was not split."""
        if self.format not in DELIMITED:
            return None
        hint = separator_hint([column.name for column in self.columns])
        if not hint:
            return None
        return f"The input has one column: {hint}, or look at it with --delimiter."


@typed
def show_data(
    inputs: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,  # noqa: A002 - it is the key's name
    rows: int = 5,
    look_at: int = 1_000,
    delimiter: str | None = None,
    encoding: str | None = None,
    sheet: str | int | None = None,
    hive: bool | None = None,
    sql: str | None = None,
    project: Path | str | None = None,
) -> DataReport:
    """Looks at an input: a path, several, a pattern, a database, or `-`; no project is needed.

    The first `rows` rows are in the report (of a database alone, its tables), and the types of
    columns come from the first `look_at`. `format` names a format that the file's name does not
    tell; `sql` is one SELECT over the rows, which are the table `input`. Raises UsageError."""
    texts = _input_texts(inputs)
    known_format = _known_format(format)
    database = None if format else _bare_database(texts)
    if database is not None:
        texts = [_tables_of(database)]
        rows = look_at
    surroundings = _surroundings(project)
    spec = free_input(
        texts,
        surroundings,
        format=known_format,
        delimiter=delimiter,
        encoding=encoding,
        sheet=sheet,
        hive=hive,
        sql=sql,
    )
    if database is not None:
        spec = replace(spec, shown=database)
    with _readable(spec) as (ready, shown):
        _refuse_unused_options(ready, shown)
        source = open_input(ready, surroundings.env)
        return _look(source, ready, shown, rows=rows, look_at=look_at)


def _input_texts(inputs: str | Path | Sequence[str | Path]) -> list[str]:
    """Gives the inputs as a list of texts. Raises UsageError if there is none."""
    if isinstance(inputs, str | Path):
        return [str(inputs)]
    texts = [str(each) for each in inputs]
    if not texts:
        raise UsageError(
            "no input is named",
            remedy="Name a file, a pattern, a database, or - for standard input.",
        )
    return texts


def _known_format(name: str | None) -> InputFormat | None:
    """Checks the name of a format. Raises UsageError for an unknown one."""
    if name is None:
        return None
    for known in get_args(InputFormat):
        if known == name:
            return known  # type: ignore[no-any-return]  # one of the literals
    remedy = sentence(did_you_mean(name, get_args(InputFormat)))
    raise UsageError(f"--format {name}: unknown format", remedy=remedy)


def _bare_database(texts: Sequence[str]) -> str | None:
    """Finds the path of a database that is named without a table or a query."""
    path = texts[0].removeprefix(SCHEME)
    if len(texts) == 1 and suffix_of(path) in DATABASES and Path(path).is_file():
        return path
    return None


def _tables_of(database: str) -> str:
    """Writes the input whose rows are the tables of a database."""
    name = database.replace("'", "''")
    select = f"SELECT name AS \"table\", '{SCHEME}{name}?table=' || name AS input FROM ({TABLES})"  # noqa: S608 - quoted
    return f"{SCHEME}{database}?query={select}"


def _surroundings(project: Path | str | None) -> ProjectSpec:
    """Loads the project; without a usable one, the current folder is treated as a project without
    settings."""
    root = project_root(project, bare=project is None)
    env, _ = environment(root)
    loaded, _ = load_project(root, env)
    if loaded is None:  # agac.yml cannot be read
        names = ("workflows", "agentcards", "schemas", "output")
        folders = ProjectPaths(*(root / name for name in names))
        loaded = ProjectSpec(root, ProjectFile(), folders, Document("", None, []), env)
    return replace(loaded, fetch=remote_contents(loaded).fetch)


@contextmanager
def _readable(spec: InputSpec) -> Iterator[tuple[InputSpec, str]]:
    """Gives the input so that it can be opened, and its name; standard input is kept in a file
    while the `with` lasts."""
    with tempfile.TemporaryDirectory(prefix="agac-data-") as folder:
        spec = replace(spec, scratch=Path(folder))
        if not spec.piped:
            yield spec, spec.shown
            return
        if sys.stdin is None or sys.stdin.isatty():
            remedy = "Pipe rows in, as `cat rows.csv | agac data -`."
            raise UsageError(f"{STANDARD_INPUT}: nothing is piped in", remedy=remedy)
        path = keep(sys.stdin.buffer, Path(folder))
        known_format = spec.format or format_of(path.name)
        if known_format is None:
            raise UsageError(
                f"{STANDARD_INPUT}: cannot tell the format of what is piped in",
                remedy="Add --format csv, or another of csv, tsv, json, jsonl, txt, parquet, xlsx.",
            )
        yield replace(spec, path=path, format=known_format, piped=False), STANDARD_INPUT


def _refuse_unused_options(spec: InputSpec, shown: str) -> None:
    """Raises UsageError for an option that means nothing for this format."""
    for name, text in unused_keys(spec).items():
        raise UsageError(
            f"--{name}: {text}; {shown} is {spec.format}", remedy=f"Leave --{name} out."
        )


def _look(source: Source, spec: InputSpec, shown: str, *, rows: int, look_at: int) -> DataReport:
    """Reads the first `look_at` rows and reports what they hold."""
    columns = Columns(source.columns())
    first: list[dict[str, JSONValue]] = []
    problems: list[str] = []
    looked_at = 0
    unusable = 0
    records = source.records()
    for record in islice(records, look_at):
        looked_at += 1
        if record.error is not None:
            unusable += 1
            if len(problems) < MAX_PROBLEMS:
                problems.append(record.error.message)
        elif record.data is not None:
            columns.see(record.data)
            if len(first) < rows:
                first.append(record.data)
    complete = looked_at < look_at or next(records, None) is None
    files = _files_of(spec)
    size = sum(path.stat().st_size for path in files if path.is_file())
    return DataReport(
        shown,
        str(spec.format),
        size,
        len(files),
        looked_at,
        complete,
        unusable,
        problems,
        columns.all(),
        first,
    )


def _files_of(spec: InputSpec) -> list[Path]:
    """Lists the files of an input."""
    if not spec.patterns:
        return [spec.path / ""]
    return [spec.path / name for name in matching_rows(spec.path, spec.patterns, spec.skipped)]
