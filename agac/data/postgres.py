"""PostgreSQL: a database of a server, read as an input with one SELECT, and written as a table of
results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from functools import cache
from math import isfinite
from struct import pack, unpack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from agac.core.errors import AgacError, UsageError, lack_of
from agac.core.redact import Redactor
from agac.core.types import JSONValue
from agac.data import sqlite
from agac.data.duckdb_values import iso_moment
from agac.data.files import Record
from agac.data.json_formats import BY_AS, encode, json_column, refuse_repeated
from agac.data.json_formats import quoted as text_quoted
from agac.data.tables import Kind, TableColumn, TableLayout, shortest_real
from agac.spec.paths import MAX_NAME, POSTGRES, passwords, server_table

if TYPE_CHECKING:
    from psycopg import Connection, ServerCursor

CONNECT_SECONDS = (
    10  # how long a server is waited for, where its address says nothing of `connect_timeout`
)
LOCK_SECONDS = 30.0  # how long another program may hold the table
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")


class Server:
    """A database of a server at an `address` as libpq takes it, whose `${VAR}` are looked up in
    `env`; one may be all of it. The password is in none of its messages. Raises UsageError when a
    variable, or the library, is missing."""

    def __init__(self, address: str, env: Mapping[str, str]) -> None:
        from agac.spec.yaml import expand  # `agac runs` must not pay for the library of YAML

        lack = lack_of(f"{address}: PostgreSQL", "psycopg")
        if lack:
            raise UsageError(lack)
        try:
            import psycopg  # noqa: F401 - the package may be there without libpq
        except ImportError as error:
            what = f"{address}: psycopg cannot be loaded: {str(error).partition(chr(10))[0]}"
            raise UsageError(
                what, remedy="Install it with its libpq: pip install 'psycopg[binary]'"
            ) from error
        given = [name for name in _VARIABLE.findall(address) if name in env]
        whole = address[:1] == "$"
        self._address, missing = expand(
            address, {one: env[one] if whole else quote(env[one], "") for one in given}
        )
        if missing:
            what = f"{address}: the environment variable {missing[0]} is not set"
            raise UsageError(what, remedy="Set it or add it to .env.")
        if whole and not POSTGRES.match(self._address):
            what = f"{address}: the environment variable holds no address of a PostgreSQL server"
            raise UsageError(what, remedy="Set it to postgres://USER:PASSWORD@HOST/DATABASE.")
        self.shown = address
        secrets = passwords(self._address)
        self._redactor = Redactor(
            [*secrets, *map(unquote, secrets), *([self._address] if whole else [])]
        )

    def connect(self, settings: str) -> Connection[Any]:
        """Opens a connection whose transaction has begun, with these settings for it. Raises
        psycopg's errors."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        known: dict[str, Any] = {
            "connect_timeout": CONNECT_SECONDS,
            "fallback_application_name": "agac",
        }
        known |= conninfo_to_dict(self._address) | {"client_encoding": "utf8"}
        connection = psycopg.connect(**known, cursor_factory=psycopg.RawCursor)
        try:
            connection.execute(settings)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def explained(self, place: str = "") -> Iterator[None]:
        """Turns what psycopg says into an AgacError, whose message begins with the address and the
        `place` there."""
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            text = error.diag.message_primary or " ".join(str(error).split())
            problem, remedy = _explained(error, self._redactor.clean(text))
            raise AgacError(f"{self.shown}: {place}{problem}", remedy=remedy) from None

    @contextmanager
    def reading(self) -> Iterator[Connection[Any]]:
        """Opens a connection that can only read, usable from any thread, one at a time. Raises
        AgacError."""
        with (
            self.explained(),
            closing(self.connect(f"SET TRANSACTION READ ONLY; {_SETTINGS}")) as connection,
        ):
            for oid, loader in _loaders().items():
                connection.adapters.register_loader(oid, loader)
            yield connection


def _explained(error: Exception, message: str) -> tuple[str, str]:
    """Returns what is wrong, in words, and what to do about it."""
    state = getattr(error, "sqlstate", None) or ""
    if _is_change(state, message):
        return "the query does more than read", "Write one SELECT: a source changes nothing."
    if "multiple commands" in message:
        return "there is more than one statement", "Write one SELECT."
    if _is_refused(state, message):
        return (
            f"the server refuses to connect: {message}",
            "Check the user, and the variable with the password.",
        )
    if _is_disconnected(state):
        return (
            f"the server cannot be reached, or ended the connection: {message}",
            "Check the address, then run again.",
        )
    if state in ("55P03", "40P01"):
        return (
            f"another program holds the table: {message}",
            "Let it end: all results are safe in the store.",
        )
    if state == "42501":
        return message, "Let the owner GRANT it to the user, or name another table."
    if state == "54011":
        remedy = (
            "PostgreSQL takes 1600 columns: choose output.merge: replace or append, or write "
            "csv or parquet."
        )
        return message, remedy
    return (
        f"PostgreSQL says: {message}",
        "Correct the query, or the table; results are safe in the store.",
    )


def _is_change(state: str, message: str) -> bool:
    """True if the server refused a query because it would change something."""
    if state not in ("25006", "0A000", "42601"):
        return False
    return any(words in message for words in ("read-only", "must not", "INTO"))


def _is_refused(state: str, message: str) -> bool:
    """True if the server does not let the user in; some of these errors have no state."""
    if state:
        return state.startswith("28")
    return "authentication" in message or "password" in message


def _is_disconnected(state: str) -> bool:
    """True if there is no connection: without a state, nothing came from the server."""
    if not state:
        return True
    return state.startswith(("08", "57", "53")) and state != "08P01"


# Rows as they come from a server-side cursor: some at a time, in the order of the query, within one
# transaction. What the server's settings would change (time zones, forms of dates, a scan that
# begins in the middle) is set.

_SETTINGS = (
    "SET LOCAL datestyle = 'ISO'; SET LOCAL timezone = 'UTC'; SET LOCAL intervalstyle = "
    "'iso_8601'; "
    "SET LOCAL synchronize_seqscans = off; SET LOCAL idle_in_transaction_session_timeout = 0"
)
_ROWS_AT_A_TIME = 128


class _Json(str):
    """A value of a column of JSON, which is read when its row is."""

    __slots__ = ()


@cache
def _loaders() -> dict[int, type[Any]]:
    """Returns how values are read, by the number of their type: numbers, booleans and bytes as
    psycopg does it, all others as the text that the server makes of them, so that none can fail in
    the middle of a reading."""
    from psycopg import postgres
    from psycopg.adapt import Loader

    def loader(read: Callable[[str], Any]) -> type[Any]:
        load = {"load": lambda _, data: read(bytes(data).decode("utf-8", "surrogateescape"))}
        return type("Reading", (Loader,), load)

    kept = {"bool", "int2", "int4", "int8", "oid", "float4", "float8", "bytea"}
    special: dict[str, Callable[[str], Any]] = {"json": _Json, "jsonb": _Json}
    special["numeric"] = lambda text: (
        float(text) if text in ("NaN", "Infinity", "-Infinity") else text
    )
    special |= dict.fromkeys(("timestamp", "timestamptz"), iso_moment)
    found = {
        one.oid: loader(special.get(one.name, str))
        for one in postgres.types
        if one.name not in kept
    }
    return found | {0: loader(str)}


class PostgresSource:
    """The rows of one statement. Raises AgacError when the server or the statement cannot be
    used."""

    def __init__(self, address: str, statement: str, env: Mapping[str, str]) -> None:
        self._server = Server(address, env)
        self._statement = statement
        with self._cursor() as cursor:  # its permissions are looked at too, and no row
            self._columns = tuple(str(column.name) for column in cursor.description or ())
        refuse_repeated(f"{address}: the query gives", self._columns, BY_AS)

    def columns(self) -> tuple[str, ...]:
        return self._columns

    def describe(self) -> str:
        return self._server.shown

    def records(self, start: int = 0) -> Iterator[Record]:
        with self._cursor() as cursor:
            if start:
                cursor.scroll(start)
            for ordinal, values in enumerate(cursor, start=start + 1):
                yield sqlite.record_of(self.describe(), ordinal, self._columns, values, _plain)

    @contextmanager
    def _cursor(self) -> Iterator[ServerCursor[Any]]:
        with (
            self._server.reading() as connection,
            connection.cursor("agac", scrollable=False) as cursor,
        ):
            cursor.itersize = _ROWS_AT_A_TIME
            # declared by the extended protocol: it can be one statement only
            cursor.execute(self._statement)
            yield cursor


def _plain(value: Any) -> JSONValue:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, _Json):
        return json_column(value)
    return sqlite.plain(value, "encode(…, 'hex')")


def reads_table(server: Server, statement: str, target: Server, table: str) -> bool:
    """True if a statement that a source has read with reads this table of the `target`, perhaps by
    way of a view."""
    identity = "SELECT pg_postmaster_start_time()::text, current_database()"
    with server.reading() as connection, target.reading() as other:
        if connection.execute(identity).fetchone() != other.execute(identity).fetchone():
            return False
        plan = connection.execute(
            f"EXPLAIN (VERBOSE, FORMAT JSON) {statement}", prepare=True
        ).fetchone()
        relations = _relations(json.loads(plan[0]) if plan else None)
        names = [".".join(map(sqlite.quoted, relation)) for relation in relations]
        found = connection.execute(
            "SELECT 1 FROM unnest($1::text[]) AS name WHERE to_regclass($2) IN (to_regclass(name), "
            "pg_partition_root(to_regclass(name)))",
            [names, server_table(table)],
        )
        return found.fetchone() is not None


def _relations(plan: Any) -> Iterator[tuple[str, str]]:
    """Yields the schema and the name of each relation in a plan of the server's."""
    parts: Iterable[Any] = ()
    if isinstance(plan, dict):
        parts = plan.values()
    elif isinstance(plan, list):
        parts = plan
    for part in parts:
        yield from _relations(part)
    if isinstance(plan, dict) and "Relation Name" in plan:
        yield plan["Schema"], plan["Relation Name"]


# Whether a table that is there already can take a run's rows; looked at before anything is paid
# for, and again.

_COLUMNS = """
SELECT a.attname, format_type(t.oid, CASE WHEN t.oid = a.atttypid THEN a.atttypmod ELSE d.typtypmod END),
    a.attgenerated <> '' OR a.attidentity = 'a',
    CASE WHEN t.typname IN ('json', 'jsonb') THEN 'json' WHEN t.typname IN ('int2', 'int4', 'int8') THEN 'integer'
        WHEN t.typname IN ('float4', 'float8') THEN 'float' ELSE t.typcategory::text END,
    EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid
        AND i.indimmediate AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)
FROM pg_attribute a JOIN pg_type d ON d.oid = a.atttypid
JOIN pg_type t ON t.oid = CASE WHEN d.typtype = 'd' THEN d.typbasetype ELSE d.oid END
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""  # noqa: E501
_TABLE = """
SELECT c.relkind::text, pg_has_role(c.relowner, 'USAGE'), has_table_privilege(c.oid, 'SELECT')
    AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
FROM pg_class c WHERE c.oid = to_regclass($1)
"""
_SCHEMA = """
SELECT nspname, has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = coalesce($1, current_schema())
"""  # noqa: E501
_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "i": "an index",
    "S": "a sequence",
}


def _columns_of(connection: Connection[Any], table: str) -> dict[str, sqlite.Known]:
    """Returns the columns of a table by their names, and in lower case; empty if there is no such
    table. A family is `json`, `integer`, `float`, or PostgreSQL's category (N numeric, B boolean, S
    text, …). A domain counts as its own type."""
    found = [sqlite.Known(*row) for row in connection.execute(_COLUMNS, [table])]
    return {one.name.lower(): one for one in found} | {one.name: one for one in found}


def check_target(server: Server, table: str, columns: Sequence[TableColumn]) -> None:
    """Raises UsageError when rows cannot be written into the table, as far as their columns are
    known: the first, by which they are found, at least; AgacError when the server cannot be
    reached. Changes nothing."""
    with server.reading() as connection:
        _check_table(connection, table, columns, f"{server.shown}: table {table!r}")


def _check_table(
    connection: Connection[Any], table: str, columns: Sequence[TableColumn], shown: str
) -> None:
    """Raises UsageError if rows with these columns cannot be written into the table."""
    name = server_table(table)
    existing = connection.execute(_TABLE, [name]).fetchone()
    known: Mapping[str, sqlite.Known] = {}
    if existing is None:
        _check_schema(connection, table, shown)
    else:
        kind, is_owner, may_write = existing
        if kind not in "rp":
            problem = f"{shown} is {_KINDS.get(kind, 'no table')}"
            raise UsageError(problem, remedy=sqlite.OTHER_TABLE)
        known = _columns_of(connection, name)
        _check_key(known, name, columns[0].name, shown)
        if not may_write:
            problem = f"{shown}: the user may not SELECT, INSERT and UPDATE"
            raise UsageError(problem, remedy=_GRANT)
        if not is_owner:
            _refuse_new_columns(known, columns, shown)
    found = (_clash(column, sqlite.find_column(known, column.name)) for column in columns)
    clashes = [clash for clash in found if clash]
    if clashes:
        change = "Or change the type: ALTER TABLE … ALTER COLUMN … TYPE …"
        raise UsageError(f"{shown}: {'; '.join(clashes)}", remedy=f"{sqlite.OTHER_TABLE} {change}.")


def _refuse_new_columns(
    known: Mapping[str, sqlite.Known], columns: Sequence[TableColumn], shown: str
) -> None:
    """Raises UsageError if columns would have to be added."""
    lacking = [
        text_quoted(column.name)
        for column in columns
        if sqlite.find_column(known, column.name) is None
    ]
    if lacking:
        problem = f"{shown}: only its owner can add {', '.join(lacking)}"
        raise UsageError(problem, remedy=f"{sqlite.OTHER_TABLE} Or add them.")


def _check_schema(connection: Connection[Any], table: str, shown: str) -> None:
    """Raises UsageError if the user cannot make the table."""
    schema = table.rpartition(".")[0] or None
    home = connection.execute(_SCHEMA, [schema]).fetchone()
    if home is None:
        raise UsageError(
            f"{shown}: there is no schema {schema or 'to make it in'!r}", remedy="Create it first."
        )
    if not home[1]:
        raise UsageError(
            f"{shown}: the user may make no table in schema {home[0]!r}", remedy=_GRANT
        )


def _check_key(known: Mapping[str, sqlite.Known], table: str, wanted: str, shown: str) -> None:
    """Raises UsageError if rows cannot be found by the column `wanted`."""
    key = sqlite.find_column(known, wanted)
    name = wanted if key is None else key.name
    sqlite.check_key(shown, table, name, key, lambda: bool(key and key.unique))


_GRANT = "Let the owner GRANT it to the user, or name another table in output.to."
_NUMBERS = {Kind.INTEGER: "integers", Kind.NUMBER: "numbers"}
_TAKES = {
    "json": frozenset(Kind), "S": frozenset(Kind), "B": {Kind.BOOLEAN}, "integer": {Kind.INTEGER},
    "float": {Kind.INTEGER, Kind.NUMBER}, "N": {Kind.INTEGER, Kind.NUMBER},
}  # fmt: skip
"""Which kinds of values go into columns of a family as they are. Others take texts: dates, ids of
their own kind."""


def _clash(column: TableColumn, known: sqlite.Known | None) -> str:
    if known is None:
        size = len(column.name.encode())
        if size > MAX_NAME:
            return f"the name {column.name!r} is longer than PostgreSQL's {MAX_NAME} bytes"
        return ""
    if known.computed:
        return f"the column {known.name!r} is computed by PostgreSQL"
    if column.kind is Kind.NOTHING or column.kind in _TAKES.get(known.family, {Kind.TEXT}):
        return ""
    word = {**sqlite.NO_NUMBERS, **_NUMBERS}.get(column.kind, "booleans")
    return f"the column {known.name!r} is {known.type}, but {word} would be written into it"


_UNFIT = re.compile("[\0\ud800-\udfff]")
_UNFIT_JSON = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000|[\ud800-\udfff]")
"""The same in the text of JSON, where backslashes before an escape are characters of their own,
two by two."""

_SCALED = re.compile(r"numeric\(\d+,(-?\d+)\)")


def _changes(value: float, column: sqlite.Known) -> bool:
    """True if a column of numbers would keep another one than `value`: it has fewer digits."""
    if column.family == "N":
        scale = _scale_of(column.type)
        exact = Decimal(encode(value))
        return scale is not None and exact != round(exact, scale)
    if column.family != "float":
        return False
    if column.type == "real":
        return not _is_real(value)
    return isinstance(value, int) and not sqlite.is_double(value)


def _scale_of(type_name: str) -> int | None:
    """Returns the digits of a numeric type that are parts of 1; None: any number."""
    if type_name == "money":
        return 2
    scaled = _SCALED.fullmatch(type_name)
    return int(scaled[1]) if scaled else None


def _is_real(value: float) -> bool:
    """True if a floating point number of 32 bits is shown as `value`: by the fewest digits that
    tell it from others."""
    try:
        (real,) = unpack("f", pack("f", value))
    except OverflowError:
        return False
    if isinstance(value, int):
        return int(real) == value
    return shortest_real(real) == value


class PostgresSink(sqlite.TableSink):
    """The same in a database of a server: rows into a `table`, `NAME` or `SCHEMA.NAME`. A kill, or
    a lost connection, takes everything back. A NUL character, which PostgreSQL refuses, and half
    of a surrogate pair become `\ufffd`."""

    ids = ("text", "bigint")
    place = "${}"

    def __init__(self, server: Server, table: str, layout: TableLayout) -> None:
        """Raises AgacError when the server cannot be used, UsageError when the table cannot take
        rows."""
        self._server = server
        self._table = table
        self._shown = f"{server.shown}: table {table!r}"
        self._begin(server_table(table), layout)

    def finish(self) -> None:
        """Checks what PostgreSQL would otherwise check at the end."""
        if self._connection is not None:
            with self._explained():
                self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _connect(self) -> None:
        self._connection = self._server.connect(f"SET LOCAL lock_timeout = '{LOCK_SECONDS:g}s'")

    def _known(self) -> dict[str, sqlite.Known]:
        return _columns_of(self._connection, server_table(self._table))

    def _check(self, columns: Sequence[TableColumn]) -> None:
        _check_table(self._connection, self._table, columns, self._shown)

    def _definition(self, column: TableColumn) -> str:
        """Returns the definition of a column. A number that no schema declares is `numeric`: it may
        be of another kind next time, and no digit is lost."""
        integer, number = (
            ("bigint", "double precision") if column.declared else ("numeric", "numeric")
        )
        types = {Kind.BOOLEAN: "boolean", Kind.INTEGER: integer, Kind.NUMBER: number}
        types |= {Kind.NESTED: "jsonb", Kind.MIXED: "jsonb"}
        return f"{sqlite.quoted(column.name)} {types.get(column.kind, 'text')}"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        with self._server.explained(f"table {self._table!r}: "):
            yield

    def _storable(self, values: list[JSONValue]) -> list[JSONValue]:
        """Returns the values as texts that the server reads as the types of the columns."""
        if isinstance(values[0], str) and _UNFIT.search(values[0]):
            what = f"the id {values[0]!r} holds a character that PostgreSQL cannot store"
            raise AgacError(f"{self._shown}: {what}", remedy="Give the row another id.")
        return [
            self._text(column, value) for column, value in zip(self._columns, values, strict=True)
        ]

    def _text(self, column: sqlite.Known, value: JSONValue) -> str | None:
        if value is None or (isinstance(value, float) and not isfinite(value)):
            return None
        if isinstance(value, str) and column.family != "json":
            return _UNFIT.sub("\ufffd", value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and _changes(value, column):
            what = (
                f"the column {column.name!r} is {column.type}, which would change {encode(value)}"
            )
            raise AgacError(
                f"{self._shown}: {what}", remedy="Make it numeric, without a number of digits."
            )
        return _UNFIT_JSON.sub(lambda match: f"{match[1] or ''}\ufffd", encode(value))
