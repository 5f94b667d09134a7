"""Where rows come from and where results go, as values: paths are absolute, with links followed;
what users are shown is relative to the project root. The keys of files are in `data_models`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agac.core.errors import Where

InputFormat = Literal[
    "csv", "tsv", "json", "jsonl", "txt", "parquet", "xlsx", "files", "sqlite", "postgres"
]
OnDuplicateId = Literal["error", "first", "last", "suffix"]
OnShortRecord = Literal["fail", "null"]
OutputFormat = Literal["csv", "tsv", "txt", "parquet"]
Merge = Literal["replace", "extend", "update", "append"]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """Where rows come from, and how they are read."""

    path: Path
    """The file; with `patterns` the folder that they are relative to; with `piped` the folder in
    which standard input will be kept."""
    shown: str
    """The path as its author wrote it."""
    format: InputFormat | None
    """None only with `piped`: the first bytes of standard input will tell."""
    id_field: str | None
    on_duplicate_id: OnDuplicateId
    where: Where
    patterns: tuple[str, ...] = ()
    skipped: tuple[Path, ...] = ()
    """Folders from which no file is taken."""
    statement: str | None = None
    """The statement that reads a database."""
    ordered: bool = True
    """True if the rows of a database keep their order."""
    piped: bool = False
    """True if rows come from standard input, which was not read yet."""
    delimiter: str | None = None
    """None: that of the format."""
    encoding: str | None = None
    """None: UTF-8, or what a byte order mark says."""
    allow_empty: bool = False
    """True if the input may lose all its rows."""
    sql: str | None = None
    """A statement over the rows."""
    sql_at: Where = field(default=Where("--sql"), compare=False)
    scratch: Path | None = field(default=None, compare=False)
    """Where `sql` keeps the rows."""
    sheet: str | int | None = None
    """The sheet of an xlsx file."""
    header_row: int | None = None
    """The row with the names of the columns in an xlsx file."""
    on_short_record: OnShortRecord | None = None
    """What happens to a csv record that lacks fields; None: it fails."""
    hive: bool | None = None
    """True if folders of parquet files are fields; otherwise None."""


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A table of a database to which results are written."""

    path: Path | None
    """The SQLite file; None for PostgreSQL."""
    shown: str
    """The SQLite file within the project, or the address of the PostgreSQL server."""
    table: str
    where: Where = field(default=Where(""), compare=False)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Where results go, and in which form."""

    dir: Path
    """A folder inside the project that holds none of the project's own files. For a row run the
    file with the results, or a stand-in for standard output."""
    include_input: bool
    formats: tuple[OutputFormat, ...] = ()
    """What is written next to the JSON files."""
    to: TableTarget | None = None
    merge: Merge | None = None
    """None: JSON files hold results alone, tables the row's columns with the result's."""
    csv_safe: bool = False
    bom: bool = False
    """True if csv and tsv files begin with a byte order mark."""
    where: Where = field(default=Where(""), compare=False)
    """The place of `format`, or else of the output."""
    stages: tuple[str, ...] = ()
    """The stages whose results are written, in the order in which a row meets them."""
    rows: str | None = None
    """The stage that made the rows with these results; None: they are the input's."""
    places: Mapping[str, str] | None = None
    """The only files that a row run writes, by their names in an output folder; relative to the
    project if they are inside."""
    how: bool = False
    """True if each result says how people were involved."""
    one_value: bool = False
    """True if a row run's JSON file holds one result instead of a list, as its input does."""
    sources: bool = False
    """True if each result has the sources of the searches that providers ran for it."""
