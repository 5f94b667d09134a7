"""From an input to rows: the format of each file, several files as one source, standard input, and
columns."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from agac.core.errors import AgacError, ErrorType, RowError, UsageError, nearest
from agac.core.keys import DIGEST_BYTES, canonical, shard_of, snapshot
from agac.core.state_files import make_folder
from agac.core.types import JSONValue, Row, RowId, Shard
from agac.data.compression import BUFFER
from agac.data.files import AtomicFile, Record, Source, explained, opened
from agac.data.frames import GivenRows, lines_of
from agac.data.json_formats import JsonLinesSource, JsonSource, encode, kind_of, quoted
from agac.data.parquet import ParquetSource
from agac.data.postgres import PostgresSource
from agac.data.sql import SqlSource
from agac.data.sqlite import SqliteSource
from agac.data.text_formats import DelimitedSource, TextSource, WholeFiles, matched_files
from agac.data.xlsx import XlsxSource
from agac.spec.data_specs import InputFormat, InputSpec
from agac.spec.database_urls import KEYS
from agac.spec.inputs import GIVEN_PREFIX, LOOKED_AT, PIPED, WRITTEN, unused_keys
from agac.spec.paths import server_parts


class SeveralFiles:
    """The files that an input's patterns match, whose headers name the same columns, in any order:
    one that is null in half of the rows is hardly ever meant. Raises UsageError for the first
    files that cannot be read together."""

    def __init__(self, spec: InputSpec) -> None:
        self._spec = spec
        self._first: str | None = None
        self._columns: tuple[str, ...] | None = None
        self._begun: tuple[list[int], list[str]] = ([], [])
        refused = []
        for relative in islice(matched_files(self._spec), LOOKED_AT):
            try:
                self._opened(relative)
            except UsageError as error:
                refused.append(error)
        if refused:
            more = f"\nand {len(refused) - 5} more files" if len(refused) > 5 else ""
            raise UsageError(
                "\n".join(error.message for error in refused[:5]) + more, remedy=refused[0].remedy
            )

    def columns(self) -> tuple[str, ...] | None:
        return self._columns

    def describe(self) -> str:
        return self._spec.shown

    def place(self, ordinal: int) -> str:
        """Returns the file of a row that the last reading met, and its number there."""
        befores, files = self._begun
        index = bisect_left(befores, ordinal) - 1
        return f"{files[index]}: row {ordinal - befores[index]}"

    def records(self, start: int = 0) -> Iterator[Record]:
        before = 0
        befores = list[int]()
        files = list[str]()
        self._begun = (befores, files)
        for relative in matched_files(self._spec):
            ordinal = 0
            befores.append(before)
            files.append(relative)
            for record in self._opened(relative).records():
                ordinal = record.ordinal
                if before + ordinal > start:
                    yield record._replace(ordinal=before + ordinal, file=record.file or relative)
            before += ordinal

    def _opened(self, relative: str) -> Source:
        assert self._spec.format is not None
        source = open_source(
            self._spec.path / relative, self._spec.format, relative, **_how(self._spec)
        )
        columns = source.columns()
        if self._first is None:
            self._first = relative
            self._columns = columns
        elif columns is not None and set(columns) != set(self._columns or ()):
            expected = self._columns or ()
            missing = [quoted(name) for name in expected if name not in columns]
            added = [quoted(name) for name in columns if name not in expected]
            parts = [f"lacks {', '.join(missing)}"] if missing else []
            parts += [f"has {', '.join(added)} besides"] if added else []
            problem = f"{relative}: its header {' and '.join(parts)}, compared with {self._first}"
            remedy = "Give all files the same columns, or read them with workflows of their own."
            raise UsageError(problem, remedy=remedy)
        return source


# Standard input: kept in a file before anything reads it, because a run reads its input more than
# once.

STANDARD_INPUT = "standard input"
_PIECE = 1 << 20


class Piped:
    """Standard input before it was read: all that can be checked without it is checked."""

    def columns(self) -> None:
        return None

    def describe(self) -> str:
        return STANDARD_INPUT

    def records(self, start: int = 0) -> Iterator[Record]:
        raise AgacError(
            f"{STANDARD_INPUT}: was not read", remedy="Pipe rows into agac run, or into agac plan."
        )


class KeptFile(AtomicFile):
    """What can be read only once, on its way into a file of `folder` that is named by its content:
    the same content is one file. Killed before its end it leaves a temporary file, which the next
    one removes."""

    remedy = "Make room, or write the rows to a file and name it as the input."

    def __init__(self, folder: Path) -> None:
        with explained(folder, self.remedy):
            make_folder(folder)
        super().__init__(folder / "piped")
        self._hasher = blake2b(digest_size=DIGEST_BYTES)

    def write(self, piece: bytes) -> None:
        """Appends a piece. Raises as `append` does."""
        self._hasher.update(piece)
        with explained(self.path, self.remedy):
            self._file.buffer.write(piece)

    @property
    def hash(self) -> str:
        """Stands for what was written."""
        return self._hasher.hexdigest()

    def placed(self, path: Path) -> Path:
        """Puts the file durably in its place, which is on the same disk, and returns that."""
        with explained(path, self.remedy):
            make_folder(path.parent)
        self.path = path
        self.commit()
        return path


def keep(stream: BinaryIO, folder: Path) -> Path:
    """Keeps all that comes from standard input. Raises UsageError when nothing comes, AgacError
    when this fails."""
    kept = KeptFile(folder)
    try:
        while piece := stream.read(_PIECE):
            kept.write(piece)
        kept.finish()
        if not kept.temporary.stat().st_size:
            remedy = "Pipe the rows in, as `cat rows.csv | agac … --input -`."
            raise UsageError(f"{STANDARD_INPUT}: nothing came", remedy=remedy)
        with opened(
            kept.temporary, STANDARD_INPUT
        ) as file:  # the format that the content begins with, if it shows
            head = file.peek(BUFFER).lstrip()[:4]
        if head == b"PAR1":
            suffix = ".parquet"
        else:
            suffix = {b"{": ".jsonl", b"[": ".json"}.get(head[:1], "")
        return kept.placed(folder / f"{kept.hash}{suffix}")
    except OSError as error:
        what = f"{STANDARD_INPUT}: cannot be read: {error.strerror or error}"
        remedy = "Name a file with --input."
        raise AgacError(what, remedy=remedy) from error
    finally:
        kept.abort()


async def keep_rows(rows: GivenRows, folder: Path) -> Path:
    """Keeps rows that a program gives, of which there may be none. Raises as `lines_of` and
    `AtomicFile` do."""
    kept = KeptFile(folder)
    try:
        async for line in lines_of(rows):
            # half of a surrogate pair is for the reader to refuse
            kept.write(line.encode(errors="backslashreplace"))
        return kept.placed(folder / f"{GIVEN_PREFIX}{kept.hash}.jsonl")
    finally:
        kept.abort()


def forget(folder: Path, needed: Collection[str]) -> None:
    """Removes what was kept of inputs, but the files of these names and the last one."""
    kept = sorted(folder.glob("[!.]*"), key=lambda path: path.stat().st_mtime)
    for path in kept[:-1]:
        if path.name not in needed:
            path.unlink(missing_ok=True)


FORMATS: Mapping[InputFormat, Callable[..., Source]] = {
    "csv": partial(DelimitedSource, delimiter=","),
    "tsv": partial(DelimitedSource, delimiter="\t"),
    "json": JsonSource,
    "jsonl": JsonLinesSource,
    "txt": TextSource,
    "parquet": ParquetSource,
    "xlsx": XlsxSource,
}
"""Every format of a file by the name that `input.format` takes. Called with the path and the name
for messages."""


def open_input(spec: InputSpec, env: Mapping[str, str] = MappingProxyType({})) -> Source:
    """Opens the source that an input names; `env` is what `${VAR}` in an address means. Raises as
    `open_source` does."""
    if spec.piped:
        return Piped()
    with _before_a_run():
        source = _opened(spec, env)
        if spec.sql is None:
            return source
        assert spec.scratch is not None
        names = matched_files(spec) if spec.patterns else [""]
        if spec.format == "parquet" and not spec.hive:
            files = [spec.path / name for name in names]
        else:
            files = []
        return SqlSource(source, spec.sql, spec.sql_at, spec.scratch, files)


@contextmanager
def _before_a_run() -> Iterator[None]:
    """Turns the error of a file that cannot be copied to where a run needs it into a UsageError."""
    try:
        yield
    except UsageError:
        raise
    except AgacError as error:
        raise UsageError(error.message, remedy=error.remedy) from error


def _opened(spec: InputSpec, env: Mapping[str, str]) -> Source:
    if spec.format == "files":
        return WholeFiles(spec)
    if spec.patterns:
        return SeveralFiles(spec)
    if spec.format == "postgres":
        assert spec.statement is not None
        return PostgresSource(server_parts(spec.shown, *KEYS)[0], spec.statement, env)
    if spec.statement is not None:
        return SqliteSource(spec.path, spec.statement, spec.shown.partition("?")[0])
    assert spec.format is not None
    return open_source(
        spec.path, spec.format, STANDARD_INPUT if spec.shown == PIPED else spec.shown, **_how(spec)
    )


def _how(spec: InputSpec) -> dict[str, Any]:
    unused = unused_keys(spec)
    return {
        name: value
        for name in WRITTEN
        if (value := getattr(spec, name)) is not None and name not in unused
    }


def open_source(path: Path, found: InputFormat, shown: str, **how: Any) -> Source:
    """Opens the file at `path`, read as the format `found`; `shown` is its name in messages; `how`
    has keys of `WRITTEN`.

    Raises UsageError if its beginning makes all of it unusable; the message begins with `shown`, or
    `shown:line` of the header."""
    with _before_a_run():
        return FORMATS[found](path, shown, **how)


def place_of(source: Source, ordinal: int) -> str:
    """Returns the place of a row of the last reading as messages name it: with its file, if there
    are several."""
    if isinstance(source, SeveralFiles):
        return source.place(ordinal)
    return f"row {ordinal}"


def read_rows(source: Source, id_field: str | None, start: int = 0) -> Iterator[Row]:
    """Yields the rows of a source after the first `start`.

    Without `id_field` a row's id is its ordinal, an integer. A record that lacks its id becomes a
    row with `MissingIdField` and its ordinal for an id; it keeps its data."""
    for record in source.records(start):
        ordinal, data, error, _, _, short = record
        if data is None or id_field is None:
            yield Row(ordinal, ordinal, data, error, short)
            continue
        value = data.get(id_field)
        if type(value) is str and value and not value.isspace():
            yield Row(value, ordinal, data, error, short)
        elif type(value) is int:
            yield Row(str(value), ordinal, data, error, short)
        else:
            what = "empty" if isinstance(value, str) else kind_of(value)
            problem = f"is {what}; an id is a string that is not empty, or an integer"
            if id_field not in data:
                near = nearest(id_field, data)
                problem = "is missing" + (f"; did you mean {quoted(near)}?" if near else "")
            message = (
                f"{record.place(source.describe())}: the id field {quoted(id_field)} {problem}"
            )
            yield Row(ordinal, ordinal, data, RowError(ErrorType.MISSING_ID_FIELD, message), short)


FIRST_CHARACTERS = 4_000_000
"""So much of an input is looked at before a run, beside `LOOKED_AT` records: some records are
large."""


class FirstRows(NamedTuple):
    """The first records of an input."""

    rows: list[dict[str, JSONValue]]
    """The data of those that can be used."""
    looked_at: int
    """The number of records that were looked at."""
    complete: bool
    """True if those are all records."""
    short: int = 0
    """The number of records with fewer fields than the header."""
    first_short: str = ""
    """The place of the first of these."""

    def lack(self, way: Sequence[str]) -> bool:
        """True if there are rows, and none of them has a field of this name, or a value at the end
        of this way."""
        return bool(self.rows) and not any(
            ".".join(way) in row or _leads(row, way) for row in self.rows
        )

    def names(self) -> tuple[str, ...]:
        """Returns the fields of all rows, in the order in which they are met."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    def words(self) -> str:
        """Returns the beginning of a sentence that denies something of these rows: `no row`."""
        if self.complete:
            return "no row"
        return f"none of the first {self.looked_at:,} rows"


def _leads(value: JSONValue, way: Sequence[str]) -> bool:
    """True if a way through objects and lists leads to a value, as placeholders go it."""
    for part in way:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return False
    return True


def first_rows(source: Source) -> FirstRows:
    """Looks at the beginning of an input. Raises AgacError when it cannot be read."""
    rows = list[dict[str, JSONValue]]()
    short = 0
    first_short = ""
    looked_at = characters = 0
    for record in source.records():
        if looked_at == LOOKED_AT or characters >= FIRST_CHARACTERS:
            return FirstRows(rows, looked_at, False, short, first_short)
        looked_at += 1
        if record.short:
            short += 1
            first_short = first_short or record.place(source.describe())
        if record.data is not None and record.error is None:
            rows.append(record.data)
            characters += len(encode(record.data))
    return FirstRows(rows, looked_at, True, short, first_short)


_KINDS = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "list",
    dict: "object",
}

_LOOKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("integer", re.compile(r"[+-]?\d+")),
    ("number", re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")),
    ("boolean", re.compile(r"true|false", re.IGNORECASE)),
    ("date", re.compile(r"\d{4}-\d\d-\d\d")),
    (
        "date and time",
        re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?"),
    ),
)
"""What texts may be written as, the narrowest first."""


@dataclass(slots=True)
class Column:
    """One field of the rows that were looked at."""

    JSON_KEYS = ("name", "type", "types=kinds", "nulls", "empty", "missing")

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    """The number of values by their JSON type, nulls excluded."""
    nulls: int = 0
    empty: int = 0
    missing: int = 0
    looks: set[str] | None = None
    """The kinds as which every text so far could be read; None before the first text."""

    @property
    def type(self) -> str:
        """`integer`, `string`, `integer as text`, `string or list`; `null` when there is no
        value."""
        look = next((name for name, _ in _LOOKS if name in (self.looks or ())), "")  # of all texts
        names = [f"{look} as text" if look and kind == "string" else kind for kind in self.kinds]
        if {"integer", "number"} <= set(names):
            names.remove("integer")
        return " or ".join(names) or "null"

    def see(self, value: JSONValue) -> None:
        """Counts a value."""
        if value is None:
            self.nulls += 1
            return
        self.kinds[_KINDS[type(value)]] += 1
        if isinstance(value, str):
            if not value.strip():
                self.empty += 1
            elif self.looks is None or self.looks:
                fitting = {name for name, pattern in _LOOKS if pattern.fullmatch(value.strip())}
                self.looks = fitting if self.looks is None else self.looks & fitting


class Columns:
    """The columns of some rows, in the order in which they were first met."""

    def __init__(self, declared: tuple[str, ...] | None) -> None:
        self._columns = {name: Column(name) for name in declared or ()}
        self._rows = 0

    def see(self, data: dict[str, JSONValue]) -> None:
        """Counts a row."""
        for name, value in data.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = Column(name, missing=self._rows)
            column.see(value)
        if len(data) < len(self._columns):
            for name, column in self._columns.items():
                column.missing += name not in data
        self._rows += 1

    def all(self) -> list[Column]:
        """Every column that was met or declared."""
        return list(self._columns.values())


def sampled(ordinals: Iterable[int], size: int, seed: int) -> list[int]:
    """At most `size` of the numbers, each as likely as any other, in ascending order; holds no
    more than it gives. The same numbers and seed give the same sample on every machine. Numbers
    added at the end change it only where one of them is taken. (Vitter's algorithm R; only
    `random()` is promised to stay the same over versions of Python.)"""
    draw = Random(seed).random  # noqa: S311 - chance, not secrecy
    taken: list[int] = []
    for count, ordinal in enumerate(ordinals):
        if count < size:
            taken.append(ordinal)
        elif (place := int(draw() * (count + 1))) < size:
            taken[place] = ordinal
    return sorted(taken)


class InputDigest:
    """How many rows a reading of all selected ones gave; a hash of their ids and contents, empty
    before the end."""

    def __init__(self) -> None:
        self.rows = 0
        self.text = ""


_SUFFIX = re.compile(r"(#\d+)+\Z")


def rows_of_shard(
    rows: Iterable[Row], shard: Shard, suffixed: bool, read: InputDigest | None
) -> Iterator[Row]:
    """Yields the rows of one shard. `suffixed`: ids that come again are numbered (`a#2`), and stay
    with the first."""
    seen = blake2b(digest_size=DIGEST_BYTES)
    for count, row in enumerate(rows, 1):
        if read is not None:
            content = str(row.error) if row.error else snapshot(row.data)
            seen.update(f"{canonical(row.id)}{content}\n".encode("utf-8", "surrogatepass"))
            read.rows = count
        row_id: RowId
        if suffixed and isinstance(row.id, str):
            row_id = _SUFFIX.sub("", row.id)
        else:
            row_id = row.id
        if shard_of(row_id, shard.of) == shard.number:
            yield row
    if read is not None:
        read.text = seen.hexdigest()


QUOTING = frozenset({".csv", ".tsv"})
# files in which a line end ends a row, unless it is quoted
LINES = QUOTING | {".jsonl", ".ndjson", ".txt"}


def estimated_rows(path: Path) -> int | None:
    """About how many rows a large file has, without reading all of it; None where its rows are not
    lines."""
    if path.suffix.lower() not in LINES:
        return None
    with path.open("rb") as file:
        sample = file.read(4 << 20)  # the rows are taken to be of even length
    # what is not within quotes
    if path.suffix.lower() in QUOTING:
        parts = sample.split(b'"')[::2]
    else:
        parts = [sample]
    return round(sum(part.count(b"\n") for part in parts) * path.stat().st_size / len(sample))
