"""Checks that a database from elsewhere is a snapshot of one workflow's runs, on a connection of
its own, before anything of it comes into the store."""

# ruff: noqa: S608 - statements are put together of the names of our own tables and columns

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from agac.core.errors import ErrorType
from agac.core.json_text import strict_json
from agac.core.keys import DIGEST_BYTES, definition_hash
from agac.core.types import Outcome
from agac.spec.paths import POSTGRES, STATE_FOLDERS
from agac.store.batches import BatchStep, TaskState
from agac.store.packs import HOWS, MAX_VALUES, Damaged, refuse_unsound_sources
from agac.store.records import MANUAL
from agac.store.rows import State

_LONGEST = 64_000_000
"""Bytes of one value."""

_MOST = 1 << 53
"""Of a number, a count or a position."""

_PLAIN_TABLE = re.compile(
    r'CREATE TABLE "?\w+"?\(\s*"?\w+"?(?: \w+)?(?:\s*,\s*"?\w+"?(?: \w+)?)*\s*\)', re.ASCII
)
"""What `CREATE TABLE … AS SELECT` leaves: columns, and nothing that is computed, checked or has a
module of its own."""

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_REMOTE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/=-]{0,499}")

_OBJECTS = {
    ("event", "body"),
    ("definition", "body"),
    ("run", "selection"),
    ("run", "outputs"),
    ("run", "manner"),
    ("task", "note"),
}
"""Columns that hold a JSON object."""

_NOTES = {
    ("row", "data"),
    ("result", "value"),
    ("batch", "outputs"),
    ("batch", "counts"),
    ("batch", "foreign_ids"),
    ("review", "seen"),
    ("review", "why"),
    ("decision", "value"),
}
"""Columns that hold any JSON, or nothing: of members in other shards there may be no data."""

_DEPTH_LEFT = 200
"""Levels by which JSON could be deeper and still be read: who reads it later may stand deeper in
calls."""

_AMOUNTS = re.compile(
    r"(input|cached|output|reasoning|cache_write)_tokens|(held_)?(tokens|cost|usd)|low|high|tasks|bytes"
)
"""Columns that are never below 0, but in `minute`, whose lines take back what earlier ones
counted."""


def _values(kind: type[Enum]) -> set[Any]:
    return {one.value for one in kind}


_CLOSED: Mapping[tuple[str, str], Collection[Any]] = {
    ("task", "outcome"): _values(Outcome),
    ("row", "state"): _values(State),
    ("alike", "state"): _values(State),
    ("batch", "state"): _values(BatchStep),
    ("batch_task", "state"): _values(TaskState),
    ("review", "state"): {"waiting", "conflict", "decided", "applied", "stale"},
    ("decision", "choice"): {"approve", "edit", "reject", "redo", "discard"},
    ("endpoint", "simulated"): {0, 1},
    ("agent_turn", "ended"): {"done", "failed", "lost"},
    ("tool_call", "state"): {"intent", "done", "error", "refused", "unknown", "lost"},
    ("tool_call", "how"): {"", "coalesced", "cached", "stub", "replayed"},
    **{
        (table, "error_type"): _values(ErrorType)
        for table in ("row", "task", "attempt", "batch_task")
    },
}
"""Columns that hold one of few values."""

_REFERENCES = {
    "run_id": "run.id", "event_id": "event.id", "row_key": "row.key", "parent_key": "row.key",
    "group_key": "row.key", "result_id": "result.id", "batch_id": "batch.id", "primer": "batch.id",
    "endpoint_id": "endpoint.id", "pack_id": "pack.id", "definition_hash": "definition.hash",
}  # fmt: skip
"""Columns that name a line of another table of the snapshot: a number that it does not have could
be one of the store that it comes into."""


class StoreColumn(NamedTuple):
    """A column of a table of the store: its declared type, and whether it always has a value."""

    name: str
    type: str
    filled: bool


Tables = Mapping[str, Sequence[StoreColumn]]


def store_tables(
    connection: sqlite3.Connection, names: Collection[str]
) -> dict[str, list[StoreColumn]]:
    """Returns the columns of these tables of a store."""
    return {
        name: [
            StoreColumn(
                name=one[1], type=one[2], filled=bool(one[3] or one[5])
            )  # a key is not declared as NOT NULL
            for one in connection.execute(f"PRAGMA main.table_info({name})")
        ]
        for name in names
    }


def check_snapshot(path: Path, workflow: str, tables: Tables, needed: Mapping[str, str]) -> None:
    """Raises Damaged, and sqlite3.Error for what is no database, unless the file holds runs of one
    workflow and nothing else, each value of the kind that its column has in `tables`.

    `needed` says by table which lines runs can need."""
    with closing(
        sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
    ) as connection:
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON"):
            connection.execute(f"PRAGMA {pragma}")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        known = _known_tables(connection, tables)
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise Damaged(f"its database is damaged: {verdict[:100]}")
        workflows = {name for (name,) in connection.execute("SELECT workflow FROM run")}
        if workflows - {workflow}:
            raise Damaged("it is of another workflow")
        _check_values(connection, known, workflow)
        _check_results(connection, needed["result"])
        check_batches(connection, "SELECT * FROM batch")
        _check_outputs(connection)
        _check_definitions(connection)


def _check_values(
    connection: sqlite3.Connection, known: Mapping[str, Sequence[StoreColumn]], workflow: str
) -> None:
    """Raises Damaged unless each value is of the kind that its column has."""
    connection.create_function("is_text", -1, _is_text, deterministic=True)
    connection.create_function("is_json", 1, _is_json, deterministic=True)
    connection.create_function("is_object", 1, _is_object, deterministic=True)
    connection.create_function("is_sources", 1, _is_sources, deterministic=True)
    for table, columns in known.items():
        _refuse_lines(connection, table, [_wrong(table, column, known) for column in columns])
        if "workflow" in {column.name for column in columns}:
            _refuse_lines(connection, table, [f"workflow <> {_quoted(workflow)}"])


def _check_outputs(connection: sqlite3.Connection) -> None:
    """Raises Damaged unless runs write where a project may."""
    for row in _rows(connection, "SELECT output_dir, outputs, manner FROM run"):
        _check_targets(row["output_dir"], json.loads(row["outputs"]))
        if row["manner"] is not None:
            written = json.loads(row["manner"])["output"]
            _check_targets(written["dir"], written)


def _check_definitions(connection: sqlite3.Connection) -> None:
    """Raises Damaged unless each definition has the hash of its content."""
    for row in _rows(connection, "SELECT hash, body FROM definition"):
        if definition_hash(strict_json(row["body"], MAX_VALUES)) != row["hash"]:
            raise Damaged("a definition is not what its hash stands for")


def _known_tables(connection: sqlite3.Connection, tables: Tables) -> dict[str, list[StoreColumn]]:
    """Returns the tables of a snapshot with its columns. They have to be plain tables of a store,
    of which an older snapshot may lack some."""
    known = dict[str, list[StoreColumn]]()
    for kind, name, statement in connection.execute("SELECT type, name, sql FROM sqlite_schema"):
        if kind != "table" or name not in tables or not _PLAIN_TABLE.fullmatch(statement or ""):
            raise Damaged("it has more than tables of runs")
        own = {one.name: one for one in tables[name]}
        columns = [one[1] for one in connection.execute(f"PRAGMA table_info({name})")]
        if set(columns) - own.keys():
            raise Damaged("a newer agac wrote it: update agac")
        known[name] = [own[column] for column in columns]
    missing = {
        "run",
        "row",
        "task",
        "event",
        "result",
        "definition",
        "endpoint",
        "batch",
    } - known.keys()
    if missing:
        raise Damaged(f"it has no table {min(missing)}")
    return known


def _refuse_lines(connection: sqlite3.Connection, table: str, wrong: Sequence[str]) -> None:
    for condition in filter(None, wrong):
        if connection.execute(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1").fetchone():
            column = condition.split('"')[1] if '"' in condition else "workflow"
            raise Damaged(f"its table {table} has a {column} that no run has")


def _wrong(table: str, column: StoreColumn, known: Mapping[str, object]) -> str:
    """Builds the condition that is true for values which a column cannot have."""
    rules = [
        *_rules_of_type(column),
        *_rules_of_name(table, column),
        *_rules_of_content(table, column.name),
        *_rules_of_reference(column.name, known),
    ]
    is_sound = f"ifnull({' AND '.join(rules)}, 0)"
    if column.filled:
        return f"NOT {is_sound}"
    return f'"{column.name}" IS NOT NULL AND NOT {is_sound}'


def _rules_of_type(column: StoreColumn) -> list[str]:
    """Conditions that the declared type of a column sets."""
    name = f'"{column.name}"'
    readable = f"is_text(CAST({name} AS BLOB))"
    match column.type:
        case "INTEGER" if column.name == "sort":  # a hash of 64 bits
            return [f"typeof({name}) = 'integer'"]
        case "INTEGER":
            return [f"typeof({name}) = 'integer'", f"{name} BETWEEN {-_MOST} AND {_MOST}"]
        case "REAL":
            return [f"typeof({name}) IN ('real', 'integer')", f"{name} BETWEEN -1e13 AND 1e13"]
        case "TEXT":
            return [f"typeof({name}) = 'text'", readable]
        case "BLOB":
            return [f"typeof({name}) IN ('blob', 'text')"]
        case _:
            return [f"typeof({name}) IN ('integer', 'text')", readable]


def _rules_of_name(table: str, column: StoreColumn) -> list[str]:
    """Conditions for columns that have one meaning in all tables: hashes, keys and amounts."""
    name = f'"{column.name}"'
    rules = list[str]()
    if column.name in ("fingerprint", "definition_hash"):
        rules += [f"typeof({name}) = 'blob'", f"length({name}) = {DIGEST_BYTES}"]
    if column.name in ("id", "key") and column.type == "INTEGER":
        rules.append(f"{name} > 0")
    if _AMOUNTS.fullmatch(column.name) and table != "minute":
        rules.append(f"{name} >= 0")
    return rules


def _rules_of_content(table: str, column: str) -> list[str]:
    """Conditions for columns that hold JSON, or one of few values."""
    name = f'"{column}"'
    place = (table, column)
    rules = list[str]()
    if place in _OBJECTS:
        rules.append(f"is_object({name})")
    if place in _NOTES:
        rules.append(f"({name} = '' OR is_json({name}))")
    if place == ("result", "sources"):
        rules.append(f"is_sources({name})")
    if place == ("row", "data"):
        # rows that a stage made may hold any JSON value
        is_empty = f"{name} IN ('', 'null')"
        rules.append(f'({is_empty} OR "origin" IS NOT NULL OR is_object({name}))')
    if place in _CLOSED:
        values = ", ".join(map(_quoted, sorted(_CLOSED[place])))
        rules.append(f"{name} IN ({values})")
    return rules


def _rules_of_reference(column: str, known: Mapping[str, object]) -> list[str]:
    """Returns the condition for a column that refers to another table. It is empty if the snapshot
    lacks that table."""
    if column not in _REFERENCES:
        return []
    table, _, key = _REFERENCES[column].partition(".")
    if table in known:
        return [f'"{column}" IN (SELECT {key} FROM {table})']
    return [f'"{column}" IS NULL']


def _quoted(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    return "'{}'".format(value.replace("'", "''"))


def _is_text(*values: bytes | None) -> bool:
    try:
        for value in values:
            (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_json(text: str, kind: type = object) -> bool:
    """True if a text is JSON of this kind that all of agac can read."""
    try:
        if text.count("[") + text.count("{") > _DEPTH_LEFT:
            strict_json("[" * _DEPTH_LEFT + text + "]" * _DEPTH_LEFT, MAX_VALUES)
        return isinstance(strict_json(text, MAX_VALUES), kind)
    except ValueError:
        return False


def _is_object(text: str) -> bool:
    return _is_json(text, dict)


def _is_sources(text: str) -> bool:
    try:
        refuse_unsound_sources(strict_json(text, MAX_VALUES))
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _check_results(connection: sqlite3.Connection, needed: str) -> None:
    """Raises Damaged for results that no run here needs, and for such as only a person can have
    set where none did."""
    every = {"runs": json.dumps([run for (run,) in connection.execute("SELECT id FROM run")])}
    if connection.execute(
        f"SELECT 1 FROM result WHERE NOT ifnull({needed}, 0) LIMIT 1", every
    ).fetchone():
        raise Damaged("it has results that its runs do not need")
    decided = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'decision'").fetchone()
    if decided:
        by_hand = "fingerprint IN (SELECT key FROM decision WHERE value IS result.value)"
    else:
        by_hand = "false"
    for (how,) in connection.execute(
        f"SELECT DISTINCT how FROM result WHERE NOT (how = '{MANUAL}' AND ifnull({by_hand}, 0))"
    ):
        if how not in ("", "adopted") and not {*how.split(",")} <= HOWS:
            raise Damaged(f"it has a result that came about by {how[:50]!r}, which nobody decided")


def check_batches(
    connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()
) -> None:
    """Raises Damaged for a batch whose columns name anything but its own files and an id at its
    provider."""
    for row in _rows(connection, statement, values):
        outputs = strict_json(row["outputs"] or "[]", MAX_VALUES)
        foreign = strict_json(row["foreign_ids"] or "[]", MAX_VALUES)
        counts = strict_json(row["counts"] or "{}", MAX_VALUES)
        is_sound = [
            _FILE_NAME.fullmatch(row["file"]),
            _FILE_NAME.fullmatch(row["intent"]),
            all(row[one] is None or _is_remote_id(row[one]) for one in ("file_id", "provider_id")),
            row["state"] in _values(BatchStep),
            isinstance(outputs, list) and all(map(_is_output, outputs)),
            isinstance(foreign, list) and all(map(_is_remote_id, foreign)),
            isinstance(counts, dict) and all(type(count) is int for count in counts.values()),
        ]
        if not all(is_sound):
            raise Damaged("a batch has a name or a count that no batch has")


def _is_remote_id(value: Any) -> bool:
    """True if the value may be a provider's id of a batch or a file, which becomes a part of an
    address."""
    return isinstance(value, str) and bool(_REMOTE_ID.fullmatch(value)) and ".." not in value


def _is_output(value: Any) -> bool:
    match value:
        case [str() as name, int() as size, str() as digest]:
            return (
                bool(_FILE_NAME.fullmatch(name))
                and size >= 0
                and bool(re.fullmatch("[0-9a-f]{64}", digest))
            )
    return False


def _check_targets(folder: str, outputs: Any) -> None:
    """Raises Damaged where a run writes elsewhere than into the project."""
    target = outputs.get("to") or {}
    path = target.get("path", "output")
    places = list((outputs.get("places") or {}).values())
    if POSTGRES.match(path):
        paths = [folder, *places]
    else:
        paths = [folder, path, *places]
    if not all(map(_is_inside, paths)):
        raise Damaged("a run writes outside of the project")


def _is_inside(path: Any) -> bool:
    """True if a path leads into a project, and not among its state."""
    if not isinstance(path, str) or any(sign in path for sign in "\0\\:"):
        return False
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        return False
    return not pure.parts or pure.parts[0] not in STATE_FOLDERS


def _rows(
    connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()
) -> list[dict[str, Any]]:
    cursor = connection.execute(statement, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]
