"""The formats that agac reads, and the way from an input to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from agac.core.errors import AgacError, ErrorType, RowError, UsageError
from agac.core.types import JSONValue, Row
from agac.data.formats.delimited import DelimitedSource
from agac.data.formats.json_array import JsonSource
from agac.data.formats.jsonl import JsonLinesSource
from agac.data.formats.parquet import ParquetSource
from agac.data.formats.sqlite import SqliteSource
from agac.data.formats.text import TextSource
from agac.data.formats.whole_files import WholeFiles
from agac.data.jsontext import kind_of, quoted
from agac.data.piped import STANDARD_INPUT, Piped
from agac.data.records import Record, Source
from agac.data.several import SeveralFiles
from agac.spec.formats import SUFFIXES, format_of, suffix_of
from agac.spec.inputs import PIPED
from agac.spec.workflow import InputSpec

__all__ = [
    "FORMATS",
    "SUFFIXES",
    "Record",
    "Source",
    "open_input",
    "open_source",
    "place_of",
    "read_rows",
    "separator_hint",
]

FORMATS: Mapping[str, Callable[[Path, str], Source]] = {
    "csv": partial(DelimitedSource, delimiter=","),
    "tsv": partial(DelimitedSource, delimiter="\t"),
    "json": JsonSource,
    "jsonl": JsonLinesSource,
    "txt": TextSource,
    "parquet": ParquetSource,
}
"""Every format of a file by the name that `input.format` takes. Called with the path and the name for messages."""

_SEPARATORS = (";", "\t", "|", ",")


def open_input(spec: InputSpec) -> Source:
    """The source that a workflow's input, or the command line's, names. Raises UsageError as `open_source` does."""
    if spec.piped:
        return Piped()
    if spec.format == "files":
        return WholeFiles(spec)
    if spec.patterns:
        return SeveralFiles(spec, lambda relative: open_source(spec.path / relative, spec.format, relative))
    if spec.statement is not None:
        return SqliteSource(spec.path, spec.statement, spec.shown.partition("?")[0])
    return open_source(spec.path, spec.format, STANDARD_INPUT if spec.shown == PIPED else spec.shown)


def open_source(path: Path, format: str | None, shown: str) -> Source:  # noqa: A002 - it is the key's name
    """The file at `path`, read as `format` or, without one, by its suffix; `shown` is its name in messages.

    Raises UsageError when there is no such file or format, or when the file's beginning makes all of it unusable:
    its message begins with `shown`, and with `shown:line` when the trouble is in the header.
    """
    if format is not None and format not in FORMATS:
        near = get_close_matches(format, FORMATS, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise UsageError(f"{shown}: unknown format {quoted(format)}", remedy=f"{hint}Known formats: {_listed()}.")
    name = format or format_of(path.name)
    if name is None and path.is_file():
        suffix = suffix_of(path.name)
        what = f"the suffix {suffix} names no known format" if suffix else "the name has no suffix"
        raise UsageError(f"{shown}: {what}", remedy=f"Rename the file or set input.format to one of: {_listed()}.")
    # a path that is no file has a better message than its suffix: any format's own
    try:
        return FORMATS[name or "jsonl"](path, shown)
    except UsageError:
        raise
    except AgacError as error:  # it cannot even be begun: nothing was run yet
        raise UsageError(error.message, remedy=error.remedy) from error


def place_of(source: Source, ordinal: int) -> str:
    """A row of the last reading as messages name it: with its file, where there are several."""
    return source.place(ordinal) if isinstance(source, SeveralFiles) else f"row {ordinal}"


def read_rows(source: Source, id_field: str | None, start: int = 0) -> Iterator[Row]:
    """The rows of a source after the first `start`. Without `id_field` a row's id is its ordinal, an integer.

    A record that lacks its id becomes a row with `MissingIdField` and its ordinal for an id; it keeps its data.
    Raises UsageError when the source declares its columns and `id_field` is none of them.
    """
    if id_field is None:
        return _numbered(source.records(start))
    columns = source.columns()
    if columns is not None and id_field not in columns:
        listed = ", ".join(quoted(name) for name in columns)
        raise UsageError(
            f"{source.describe()}: has no column {quoted(id_field)}, which input.id_field names",
            remedy=f"{_column_hint(id_field, columns)}The columns are: {listed}.",
        )
    return _identified(source.records(start), id_field, source.describe())


def separator_hint(columns: tuple[str, ...]) -> str:
    """A question, without a full stop at its end, when the one column looks like a header that was not taken apart."""
    if len(columns) != 1:
        return ""
    found = next((sign for sign in _SEPARATORS if sign in columns[0]), None)
    if found is None:
        return ""
    name = "tabs" if found == "\t" else f"'{found}'"
    return f"is the file separated by {name}? agac reads commas (csv) and tabs (tsv)"


def _column_hint(id_field: str, columns: tuple[str, ...]) -> str:
    separated = separator_hint(columns)
    if separated:
        return f"{separated[0].upper()}{separated[1:]}. "
    near = get_close_matches(id_field, columns, n=1)
    return f"Did you mean {quoted(near[0])}? " if near else ""


def _listed() -> str:
    return ", ".join(FORMATS)


def _numbered(records: Iterator[Record]) -> Iterator[Row]:
    for ordinal, data, error, _, _ in records:
        yield Row(ordinal, ordinal, data, error)


def _identified(records: Iterator[Record], id_field: str, shown: str) -> Iterator[Row]:
    for record in records:
        ordinal, data, error, _, _ = record
        if data is None:
            yield Row(ordinal, ordinal, None, error)
            continue
        value = data.get(id_field)
        if type(value) is str and value and not value.isspace():
            yield Row(value, ordinal, data, error)
        elif type(value) is int:
            yield Row(str(value), ordinal, data, error)
        else:
            problem = _no_id(data, id_field, value)
            message = f"{record.place(shown)}: {problem}"
            yield Row(ordinal, ordinal, data, RowError(ErrorType.MISSING_ID_FIELD, message))


def _no_id(data: dict[str, JSONValue], id_field: str, value: JSONValue) -> str:
    name = quoted(id_field)
    if id_field not in data:
        near = get_close_matches(id_field, data, n=1)
        return f"the id field {name} is missing" + (f"; did you mean {quoted(near[0])}?" if near else "")
    what = "empty" if isinstance(value, str) else kind_of(value)
    return f"the id field {name} is {what}; an id is a string that is not empty, or an integer"
