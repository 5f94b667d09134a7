"""Parquet files, written by duckdb: rows are spooled as lines of JSON beside their place, and converted as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from agac.core.errors import AgacError
from agac.core.types import JSONValue
from agac.data.atomic import AtomicFile, explained
from agac.data.jsontext import encode
from agac.data.outputs.kinds import Kind
from agac.data.outputs.layout import Layout, distinct
from agac.data.outputs.records import OutputRow

if TYPE_CHECKING:
    import duckdb

INSTALL = "pip install 'agac[data]'"

_TYPES = {
    Kind.TEXT: "VARCHAR", Kind.NESTED: "VARCHAR", Kind.MIXED: "VARCHAR", Kind.NOTHING: "VARCHAR",
    Kind.BOOLEAN: "BOOLEAN", Kind.INTEGER: "BIGINT", Kind.NUMBER: "DOUBLE",
}  # fmt: skip
_AS_JSON = (Kind.NESTED, Kind.MIXED)
_MIN_LINE = 1 << 20
_OPTIONS = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
_VECTOR = 2048  # duckdb takes so many rows at a time
_GROUP, _GROUP_CHARACTERS = 10 * _VECTOR, 1 << 26


class ParquetSink:
    """Rows as a parquet file, in their order, with a type a column. Lists, objects and mixed values are JSON text."""

    def __init__(self, path: Path, layout: Layout) -> None:
        """Raises AgacError when duckdb is not installed."""
        self._path = path
        self._names = distinct([column.name for column in layout.columns])
        self._kinds = [column.kind for column in layout.columns]
        self._json = [place for place, kind in enumerate(self._kinds) if kind in _AS_JSON]
        self._connection = _connected(path)
        self._longest = self._characters = self._rows = 0
        self._finished = False
        self._file = AtomicFile(path)
        try:
            self._spool = AtomicFile(path.with_name(f"{path.name}.rows"))
        except AgacError:
            self._file.abort()
            raise

    def write(self, rows: Sequence[OutputRow]) -> None:
        """Appends rows. Raises AgacError, with a remedy, when the disk refuses them."""
        lines = [self._line(row.cells) for row in rows]
        text = "".join(lines)
        self._rows += len(lines)
        self._characters += len(text)
        self._longest = max([self._longest, *map(len, lines)])
        self._spool.write(text)

    def finish(self) -> None:
        """Makes the parquet file of what was written, durably, without showing it yet."""
        if self._finished:
            return
        self._spool.finish()
        with explained(self._path):
            self._convert()
        self._spool.abort()
        self._file.finish()
        self._finished = True

    def commit(self) -> None:
        """Puts the file in its place."""
        self.finish()
        self._file.commit()

    def abort(self) -> None:
        """Forgets what was written; after `commit` it does nothing but to let go of memory."""
        self._connection.close()
        self._spool.abort()
        self._file.abort()

    def _line(self, cells: list[JSONValue]) -> str:
        values = list(cells)
        for place in self._json:
            values[place] = None if _is_null(values[place]) else encode(values[place])
        return encode({f"c{place}": value for place, value in enumerate(values) if value is not None}) + "\n"

    def _group(self) -> int:
        """Rows that are held in memory until they are written: fewer where they are long."""
        return _GROUP if self._characters * _GROUP <= _GROUP_CHARACTERS * max(self._rows, 1) else _VECTOR

    def _convert(self) -> None:
        import duckdb

        types = ", ".join(f"c{place}: '{_TYPES[kind]}'" for place, kind in enumerate(self._kinds))
        columns = ", ".join(f"c{place} AS {_identifier(name)}" for place, name in enumerate(self._names))
        # a character has at most four bytes; the reader holds some buffers of this size
        bound = max(_MIN_LINE, 4 * self._longest)
        spool = _literal(_no_pattern(self._spool.temporary))
        rows = (
            f"read_json({spool}, columns = {{{types}}}, format = 'newline_delimited', compression = 'none', "
            f"hive_partitioning = false, maximum_object_size = {bound})"
        )
        query = f"SELECT {columns} FROM {rows}"  # noqa: S608 - names and paths are quoted
        target = _literal(str(self._file.temporary))
        statement = f"COPY ({query}) TO {target} ({_OPTIONS}, ROW_GROUP_SIZE {self._group()})"
        try:
            self._connection.execute(statement)
        except duckdb.IOException as error:
            raise OSError(None, str(error).splitlines()[0]) from error
        except duckdb.Error as error:
            raise AgacError(
                f"{self._path}: cannot be written: {str(error).splitlines()[0]}",
                remedy="Remove parquet from output.format, then run again: all results are safe in the store.",
            ) from error


def _connected(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise AgacError(f"{path}: parquet needs duckdb, which is not installed", remedy=f"Run {INSTALL}.") from error
    # one thread keeps the memory flat, and nothing is spilled into the current folder
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": "1",
        "temp_directory": "",
        "autoinstall_known_extensions": "false",
    }
    return duckdb.connect(":memory:", config=config)


def _is_null(value: JSONValue) -> bool:
    return value is None or (isinstance(value, float) and not isfinite(value))


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _no_pattern(path: Path) -> str:
    """A path whose stars and brackets are only themselves to duckdb, which reads patterns of files."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in str(path))
