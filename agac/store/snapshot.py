"""Runs as they travel to another machine: a small database with all that the store knows of them,
which takes the place of what it knew. It is somebody else's data: a wrong one is refused as a
whole."""

# ruff: noqa: S608 - statements are put together of the names of our own tables and columns

from __future__ import annotations

import json
import sqlite3
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agac.core.errors import StoreError
from agac.store.db import execute, sql, transaction, translated
from agac.store.packs import Damaged, unzipped_pieces
from agac.store.snapshot_check import check_batches, check_snapshot, store_tables

MAX_BYTES = 1 << 29  # of a snapshot, packed
State = Mapping[str, int | float | str | None]
"""Columns of a batch."""

_RUNS = "(SELECT value FROM json_each(:runs))"
_ROWS = f"(SELECT key FROM row WHERE run_id IN {_RUNS})"
_BY_RUN = (
    "event",
    "counter",
    "timing",
    "minute",
    "minute_timing",
    "estimate",
    "alike",
    "batch",
    "batch_task",
    "review",
    "row",
)
_OF_RUNS = {
    **dict.fromkeys(
        ("task", "attempt", "agent_turn", "tool_call", "member"), f"row_key IN {_ROWS}"
    ),
    **dict.fromkeys(_BY_RUN, f"run_id IN {_RUNS}"),
    "run": f"id IN {_RUNS}",
}
"""The lines of runs in the tables that hold any: what belongs to a row before it."""

_WHICH = {
    "definition": f"hash IN (SELECT definition_hash FROM run WHERE id IN {_RUNS})",
    "endpoint": "true",
    "pack": "true",
    "result": f"""id IN (SELECT result_id FROM task WHERE row_key IN {_ROWS} UNION SELECT result_id FROM row
        WHERE run_id IN {_RUNS}) OR fingerprint IN (SELECT fingerprint FROM batch_task WHERE run_id IN {_RUNS})""",  # noqa: E501
    **_OF_RUNS,
    "decision": f"workflow IN (SELECT workflow FROM run WHERE id IN {_RUNS})",
}

_NUMBERED = dict.fromkeys(("run", "event", "result", "attempt", "batch", "batch_task"), "id") | {
    "row": "key"
}
_NAMES = {
    "run_id": "run",
    "event_id": "event",
    "seen": "event",
    "row_key": "row",
    "parent_key": "row",
    "group_key": "row",
    "result_id": "result",
    "batch_id": "batch",
    "primer": "batch",
}
"""Columns that name a line of another table by its number, which is another one in every store."""

_JSON = "review", "seen"  # which names no line, and is what people see

_SHARED = {
    "endpoint": ("endpoint_id", "provider, base_url, model, simulated"),
    "pack": ("pack_id", "writer, name"),
}
"""Tables of which each line is in a store once, with the column that names it."""


_NEW_DECISIONS = """WHERE NOT EXISTS (
    SELECT 1 FROM main.decision AS o WHERE o.key IS t.key AND o.workflow = t.workflow AND o.at = t.at
        AND o.reviewer = t.reviewer AND o.choice = t.choice AND o.value IS t.value)"""  # noqa: E501

_LOOK_AGAIN = """UPDATE main.review SET state = 'decided' WHERE state IN ('waiting', 'conflict', 'applied') AND key IN (
    SELECT key FROM (SELECT key, at, reviewer, choice, value FROM main.decision
                     EXCEPT SELECT key, at, reviewer, choice, value FROM f.decision))
    AND workflow = :workflow"""  # noqa: E501
"""What was decided here alone is looked at by the next run."""


_REVIEW_OF_OTHERS = (
    "SELECT 1 FROM main.review AS m JOIN f.review USING (key) WHERE m.workflow <> :workflow LIMIT 1"
)
_OWN_BATCH = "WHERE intent = ? AND run_id IN (SELECT id FROM main.run WHERE workflow = ?)"


_WRONG = (
    sqlite3.Error,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""What is raised for a database in which something is not as agac stores it."""


def _most_unpacked(packed: int) -> int:
    """Bytes of a database that was compressed to so many."""
    return min(16 * MAX_BYTES, (1 << 26) + 200 * packed)


def batch_states(
    workflow: str, intents: Container[str], reader: sqlite3.Connection
) -> dict[str, dict[str, Any]]:
    """Returns the columns of these batches of a workflow that have not come to their end, except
    numbers of this store."""
    found = reader.execute(sql("batches_unfinished"), (workflow,))
    columns = [column[0] for column in found.description]
    own = {"id", *_NAMES}
    lines = (
        {name: value for name, value in zip(columns, line, strict=True) if name not in own}
        for line in found
    )
    return {line["intent"]: line for line in lines if line["intent"] in intents}


def make_snapshot(store: Path, runs: Sequence[int]) -> tuple[str, bytes]:
    """These runs at one moment: the hash of their content is the name. Raises StoreError where it
    is too long."""
    from zstandard import ZstdCompressor

    packed = BytesIO()
    opened = closing(sqlite3.connect(store, isolation_level=None))
    with TemporaryDirectory() as folder, translated(store), opened as reader:
        reader.execute("ATTACH ? AS f", (f"{folder}/f",))
        reader.execute("BEGIN")
        for name, which in _WHICH.items():
            reader.execute(
                f"CREATE TABLE f.{name} AS SELECT * FROM {name} WHERE {which}",
                {"runs": json.dumps(runs)},
            )
        reader.execute("COMMIT")
        with Path(folder, "f").open("rb") as file:
            ZstdCompressor().copy_stream(file, packed)
    if packed.tell() > MAX_BYTES:
        what = (
            f"what the store has of a run is longer than {MAX_BYTES:,} bytes, packed: the "
            "remote does not take it"
        )
        raise StoreError(
            what, remedy="run fewer rows at a time (--limit), or set `remote: {control: false}`"
        )
    return sha256(packed.getbuffer()).hexdigest(), packed.getvalue()


def take_snapshot(
    content: bytes | None,
    workflow: str,
    number: int,
    name: str,
    states: Mapping[str, State],
    writer: sqlite3.Connection,
) -> None:
    """Replaces the runs of a workflow here by those of a snapshot, with the `states` that batches
    have had since: what the entry `number` of the control state holds. Other batches were brought
    to their end elsewhere. Raises Damaged."""
    if content is None or sha256(content).hexdigest() != name:
        raise Damaged("it is not the content that its name stands for")
    with TemporaryDirectory() as folder:
        try:
            with Path(folder, "f").open("wb") as file:
                for piece in unzipped_pieces(content, _most_unpacked(len(content))):
                    file.write(piece)
            tables = store_tables(writer, _WHICH)
            check_snapshot(Path(folder, "f"), workflow, tables, _WHICH)
            writer.execute("ATTACH ? AS f", (f"{Path(folder, 'f').as_uri()}?mode=ro&immutable=1",))
            try:
                with transaction(writer):
                    _take(writer, workflow, states)
                    writer.execute(sql("control_keep"), (workflow, number))
            finally:
                writer.execute("DETACH f")
        except _WRONG as error:
            raise Damaged(str(error)) from None


def _take(writer: sqlite3.Connection, workflow: str, states: Mapping[str, State]) -> None:
    """Replaces the runs of a workflow by those of the attached snapshot. Raises Damaged."""
    if writer.execute(_REVIEW_OF_OTHERS, {"workflow": workflow}).fetchone():
        raise Damaged("it has a review of another workflow")
    (known,) = writer.execute(sql("control_read"), (workflow,)).fetchone() or (None,)
    execute(writer, "control_forget", [{"workflow": workflow, "known": known}])
    _drop_same_runs(writer)
    last_numbers = {
        name: int(writer.execute(f"SELECT ifnull(max({key}), 0) FROM main.{name}").fetchone()[0])
        for name, key in _NUMBERED.items()
    }
    for name in _WHICH:
        is_there = _copy_table(writer, name, last_numbers)
        if is_there and name == "decision":
            writer.execute(_LOOK_AGAIN, {"workflow": workflow})
    for intent, state in states.items():
        _set_batch_state(writer, workflow, intent, state)


def _drop_same_runs(writer: sqlite3.Connection) -> None:
    """Deletes what the store has of the runs that are in the snapshot."""
    same = writer.execute(
        "SELECT m.id FROM main.run AS m JOIN f.run USING (workflow, created_at)"
    ).fetchall()
    runs = json.dumps([run for (run,) in same])
    for name, condition in _OF_RUNS.items():
        writer.execute(f"DELETE FROM main.{name} WHERE {condition}", {"runs": runs})


def _copy_table(writer: sqlite3.Connection, name: str, last_numbers: Mapping[str, int]) -> bool:
    """Copies the lines of a table of the snapshot, with numbers after the last ones here. Returns
    False if the snapshot has no such table, as an older agac had fewer."""
    info = writer.execute(f"PRAGMA f.table_info({name})")
    columns = _known(writer, name, [column[1] for column in info])
    if not columns:
        return False
    values = ", ".join(_value(name, column, last_numbers) for column in columns)
    conflict = "IGNORE" if name in ("definition", *_SHARED) else "REPLACE"
    target = f"main.{name} ({', '.join(columns)})"
    condition = _NEW_DECISIONS if name == "decision" else ""
    writer.execute(
        f"INSERT OR {conflict} INTO {target} SELECT {values} FROM f.{name} AS t {condition}"
    )
    return True


def _set_batch_state(writer: sqlite3.Connection, workflow: str, intent: str, state: State) -> None:
    """Writes the state that a batch has had since. Raises Damaged."""
    if {"id", *_NAMES} & state.keys() or state.get("intent", intent) != intent:
        raise Damaged("a state of a batch says that it is another one")
    changes = ", ".join(f"{column} = ?" for column in _known(writer, "batch", state))
    if changes:
        writer.execute(
            f"UPDATE main.batch SET {changes} {_OWN_BATCH}", (*state.values(), intent, workflow)
        )
        check_batches(writer, f"SELECT * FROM main.batch {_OWN_BATCH}", (intent, workflow))


def _value(name: str, column: str, past: Mapping[str, int]) -> str:
    """Returns the value of a line's column in this store. `past` are the last numbers of the
    tables."""
    table = name if _NUMBERED.get(name) == column else _NAMES.get(column)
    if table is not None and (name, column) != _JSON:
        return f"t.{column} + {past[table]}"
    for shared, (names, alike) in _SHARED.items():
        if column == names:
            return (
                f"(SELECT o.id FROM main.{shared} AS o JOIN f.{shared} AS g USING "
                f"({alike}) WHERE g.id = t.{column})"
            )
    # the files are not here
    if column.startswith("exported_"):
        return "NULL"
    return f"t.{column}"


def _known(writer: sqlite3.Connection, name: str, columns: Iterable[str]) -> list[str]:
    """Returns the columns that are copied into a table. Raises Damaged if it lacks one of them."""
    without_id = name in ("decision", *_SHARED)
    copied = [column for column in columns if not (without_id and column == "id")]
    existing = {column[1] for column in writer.execute(f"PRAGMA main.table_info({name})")}
    if set(copied) - existing:
        raise Damaged("a newer agac wrote it: update agac")
    return copied
