"""One SELECT over the rows of an input, through duckdb, which reaches nothing but these rows."""

from __future__ import annotations

import json
import re
import shutil
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agac.core.errors import (
    AgacError,
    ErrorType,
    Problem,
    RowError,
    SpecError,
    UsageError,
    Where,
    lack_of,
)
from agac.core.state_files import make_folder
from agac.core.types import JSONValue
from agac.data.duckdb_files import (
    literal,
    memory_database,
    no_pattern,
    read_json,
    read_parquet,
)
from agac.data.duckdb_values import TypedRows
from agac.data.files import AtomicFile, Record, Source, explained, remove_leftovers
from agac.data.json_formats import encode, quoted
from agac.data.parquet import have_same_types
from agac.data.sqlite import quoted as identifier
from agac.data.tables import distinct

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Parquet is read by duckdb where it lies, with its own types. The rows of all other sources are
# first written into a file of JSON lines as the source gives them: no format is read in two ways, a
# statement may read its input twice, and types are those of all values. A statement has to be one
# SELECT, and what it could reach is locked before it is seen.

MEMORY = "1GB"  # what a statement may hold in memory, and in a temporary folder beyond that
DISK = "100GB"
_LOCKED = (
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    # else the name of a table may be a variable of this process
    "SET python_enable_replacements = false",
    f"SET memory_limit = '{MEMORY}'",
    f"SET max_temp_directory_size = '{DISK}'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
_SPOT = re.compile(r"\n(LINE \d+: .*)\n( *)(\^+)")
_INTEGERS = {53: "EXACT", 63: "BIGINT", 127: "HUGEINT"}  # bits; a double holds the first


def _kind(value: JSONValue) -> str:
    """Returns the narrowest type for a value that is not null."""
    if type(value) is int:
        return next(
            (name for bits, name in _INTEGERS.items() if value.bit_length() <= bits), "JSON"
        )
    return {str: "VARCHAR", bool: "BOOLEAN", float: "DOUBLE"}.get(type(value), "JSON")


def _type(kinds: set[str]) -> str:
    """Returns the type in which nothing of a column is lost: JSON for lists, objects, and values of
    several types."""
    if kinds <= {"EXACT", "BIGINT"}:
        return "BIGINT" if kinds else "VARCHAR"
    if kinds <= {"EXACT", "DOUBLE"}:
        return "DOUBLE"
    if len(kinds) == 1:
        return next(iter(kinds))
    if kinds <= {*_INTEGERS.values()}:
        return "HUGEINT"
    return "JSON"


class _Spool(AtomicFile):
    """The rows of a source as JSON lines, fields by number. What a killed process leaves, the next
    one removes."""

    remedy = "Make room there: the rows that a statement reads are first written there."

    def __init__(self, folder: Path) -> None:
        with explained(folder, self.remedy):
            make_folder(folder)
        remove_leftovers(folder)
        for left in folder.glob(".*.spill-*"):
            if not left.with_name(left.name.rpartition(".spill-")[0]).exists():
                shutil.rmtree(left, ignore_errors=True)
        super().__init__(folder / "rows")
        self.unusable = 0
        self.longest = 0
        self._spills = count()
        self.fields: dict[str, tuple[str, set[str]]] = {}

    def fill(self, rows: Source) -> None:
        """Writes all rows. Raises as their source and the disk do; then nothing of them stays."""
        self.fields = {
            name: (f"c{place}", set()) for place, name in enumerate(rows.columns() or ())
        }
        try:
            for record in rows.records():
                self._add(record)
            with explained(self.path, self.remedy):
                self._file.flush()
        except BaseException:
            self.abort()
            raise

    def _add(self, record: Record) -> None:
        if record.data is None or record.error is not None:
            self.unusable += 1
            return
        values = {}
        for name, value in record.data.items():
            field, kinds = self.fields.get(name) or self.fields.setdefault(
                name, (f"c{len(self.fields)}", set())
            )
            if value is not None:
                kinds.add(_kind(value))
                values[field] = value
        text = encode(values)
        self.longest = max(self.longest, len(text))
        self.append(f"{text}\n")

    def spill(self) -> Path:
        """Returns a folder for what one statement puts aside, which duckdb makes when it needs
        it."""
        return self.temporary.with_name(f"{self.temporary.name}.spill-{next(self._spills)}")


def _tables(tree: Any) -> Iterator[str]:
    """Yields the names of the tables and of the functions that give tables, in duckdb's own tree of
    a statement."""
    if isinstance(tree, list):
        for inner in tree:
            yield from _tables(inner)
    elif isinstance(tree, dict):
        if tree.get("type") == "BASE_TABLE":
            yield tree["table_name"]
        elif tree.get("type") == "TABLE_FUNCTION":
            yield tree["function"]["function_name"]
        yield from _tables([*tree.values()])


class SqlSource:
    """The rows that `statement` makes of `rows`. Raises SpecError, with the place of the
    statement, when it does more than read or does not fit the rows; UsageError when duckdb is
    missing. The rows are kept in `folder` for as long as the source is needed. `files` are those
    that duckdb reads where they lie, all of them parquet."""

    def __init__(
        self, rows: Source, statement: str, where: Where, folder: Path, files: Sequence[Path] = ()
    ) -> None:
        self._rows = rows
        self._where = where
        self._columns = list(rows.columns() or ())
        lack = lack_of(f"{rows.describe()}: sql", "duckdb")
        if lack:
            raise UsageError(lack, remedy="Or leave the statement out.")
        self._files = files
        self._statement = self._checked(statement)
        self._spool = _Spool(folder)
        weakref.finalize(self, self._spool.abort)
        # a pattern is looked for in its folder, which a statement must not see; a column of several
        # types would be converted to the widest one
        where_they_lie = all(no_pattern(path) == str(path) for path in files) and have_same_types(
            files
        )
        self._files = files if where_they_lie else ()
        if not self._files:
            self._spool.fill(rows)
            self._columns = [
                f"{name} {_type(kinds)}" for name, (_, kinds) in self._spool.fields.items()
            ]
        # rows without any field fit whatever is said of them
        self._table = self._bound() if self._columns else None

    def columns(self) -> tuple[str, ...] | None:
        return self._table.columns if self._table else None

    def describe(self) -> str:
        return self._rows.describe()

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yields the rows that the statement gives; then, as rows that fail, the records that
        cannot be used and are in no table."""
        unusable = self._spool.unusable
        ordinal = skipped = 0 if unusable else start
        if self._table is not None:
            with self._connected() as connection:
                for data, problem in self._table.read(
                    connection, f"(\n{self._statement}\n)", skipped
                ):
                    ordinal += 1
                    if ordinal > start:
                        message = f"{self.describe()}: row {ordinal} of the statement: {problem}"
                        yield Record(
                            ordinal,
                            data,
                            RowError(ErrorType.INVALID_ROW, message) if problem else None,
                        )
        if unusable:
            broken = (record for record in self._rows.records() if record.error is not None)
            yield from (
                one._replace(ordinal=at) for at, one in enumerate(broken, ordinal + 1) if at > start
            )

    def _checked(self, statement: str) -> str:
        """Returns the statement without its end. Raises SpecError unless it is one SELECT."""
        import duckdb

        try:
            found = duckdb.extract_statements(statement)
        except duckdb.Error as error:
            raise self._refused(str(error)) from error
        kinds = [one.type.name for one in found]
        if kinds == ["SELECT"]:
            query = str(found[0].query).strip().removesuffix(";")
            self._refuse_files(query)
            return query
        what = kinds[0] if len(kinds) == 1 else f"{len(kinds)} statements"
        raise self._refused(
            f"is {what}; write one SELECT: it reads the table input and changes nothing"
        )

    def _refuse_files(self, query: str) -> None:
        """Raises SpecError for a statement that names the file of its input: duckdb would read it
        in its own way, with the names of folders in the place of the file's values. Other files
        are out of its reach."""
        with closing(memory_database()) as connection:
            tree = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0][0]
        for table in _tables(json.loads(tree)):
            is_input = any(
                Path(table) == path or Path(table).absolute() == path.absolute()
                for path in self._files
            )
            if is_input or table.lower().startswith(("read_", "parquet_", "query")):
                raise self._refused(
                    f"it reads {table!r}; write FROM input, the one table that there is"
                )

    def _bound(self) -> TypedRows:
        """Returns what the statement gives. Raises SpecError if it does not fit the rows."""
        with self._connected(binding=True) as connection:
            connection.execute(f"EXPLAIN\n{self._statement}")
            mixed = [
                name
                for name, (_, kinds) in self._spool.fields.items()
                if kinds == {"EXACT", "DOUBLE"}
            ]
            table = TypedRows(connection.sql(self._statement), json=not self._files, mixed=mixed)
        alike = Counter(name.lower() for name in table.columns)
        twice = [quoted(name) for name in table.columns if alike[name.lower()] > 1]
        if twice:
            raise self._refused(
                f"it gives {', '.join(twice)} in two columns; give each its own name, with AS"
            )
        return table

    @contextmanager
    def _connected(self, *, binding: bool = False) -> Iterator[DuckDBPyConnection]:
        """Opens a database in memory that holds the table input and reaches nothing else. Raises
        SpecError for what is wrong with the statement while it is looked at (`binding`), AgacError
        while it is run."""
        import duckdb

        spill = self._spool.spill()
        with explained(spill, self._spool.remedy):
            make_folder(spill)  # duckdb would make it as the umask says
        try:
            with closing(memory_database()) as connection:
                connection.execute(f"SET temp_directory = {literal(str(spill))}")
                for statement in (*self._opening(connection), *_LOCKED):
                    connection.execute(statement)
                yield connection
        except duckdb.OutOfMemoryException as error:
            message = (
                f"{self._where}: the statement needs more than {MEMORY} of memory and "
                f"{DISK} on the disk"
            )
            raise AgacError(
                message, remedy="Let it sort or group fewer rows or columns."
            ) from error
        except duckdb.Error as error:
            refused = self._refused(str(error))
            if binding:
                raise refused from error
            remedy = "Correct the statement: TRY_CAST(x AS INTEGER) is null where CAST fails."
            raise AgacError(str(refused.problems[0]), remedy=remedy) from error
        finally:
            shutil.rmtree(spill, ignore_errors=True)

    def _opening(self, connection: DuckDBPyConnection) -> Iterator[str]:
        """Yields the statements that make the table input, and let it read what it needs for
        that."""
        paths = ", ".join(literal(str(path)) for path in self._files or [self._spool.temporary])
        columns = "*"
        if self._files:
            rows = read_parquet(connection, self._files, self.describe())
        else:
            fields = self._spool.fields
            names = zip(fields.values(), distinct([*fields]), strict=True)
            columns = ", ".join(f"{field} AS {identifier(name)}" for (field, _), name in names)
            types = {field: _type(kinds) for field, kinds in fields.values()}
            rows = read_json(str(self._spool.temporary), types, self._spool.longest)
        yield f"SET allowed_paths = [{paths}]"
        yield f"CREATE VIEW input AS SELECT {columns} FROM {rows}"  # noqa: S608 - names and paths are quoted

    def _refused(self, said: str) -> SpecError:
        """Returns the error of the statement: what is wrong, at which part of it, and which columns
        there are."""
        first = said.partition("\n")[0]
        text = (first.partition(" Error: ")[2] or first).rstrip("!.")
        spot = _SPOT.search(said)
        if spot:
            text += f", at {spot[1][len(spot[2]) : len(spot[2]) + len(spot[3])]!r}"
        text += (
            f"; the columns of input are: {', '.join(self._columns)}"
            if self._columns and text != first
            else ""
        )
        return SpecError([Problem(self._where, text)])
