"""The words in the rows of a run as an index: a file beside the database, which may be deleted at
any time. It is a file of its own so that making it never holds up a commit of a run, and costs
none anything."""

from __future__ import annotations

import sqlite3
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from agac.core.errors import UsageError
from agac.core.state_files import make_file
from agac.store.db import (
    Database,
    execute,
    fetch,
    reading_uri,
    split_script,
    sql,
    transaction,
    translated,
)
from agac.store.roll_ups import IndexedRows
from agac.store.runs import RunRecord

AT_ONCE = 10_000  # row keys in one transaction: some tenths of a second

_TYPED = (
    "CREATE VIRTUAL TABLE temp.typed USING fts5 (text, tokenize = 'unicode61 remove_diacritics 0')",
    "CREATE VIRTUAL TABLE temp.typed_words USING fts5vocab (temp, typed, instance)",
)


class _Walks(NamedTuple):
    upto: int  # the last row key that any came to
    mark: str | None  # how the run was when the last one that ended began
    walked: int  # the last row key that the one under way came to


def index_files(path: Path, run: int | str = "*") -> list[Path]:
    """The files of the index of a run, or of all."""
    return [*path.parent.glob(f"words-{run}.db*")]


def drop_index(path: Path, run: int) -> None:
    """Deletes the index of a run, where there is one."""
    for file in index_files(path, run):
        file.unlink(missing_ok=True)


def _attached(
    path: Path, record: RunRecord, reader: sqlite3.Connection, mode: str | None = None
) -> _Walks | None:
    """The index of a run, in reach of this connection. None where there is none, where it is of a
    run in another store, and where it cannot be read: it is as good as none, and made anew."""
    file = path.with_name(f"words-{record.id}.db")
    try:
        if file.exists():
            uri = f"{file.as_uri()}?mode={mode}" if mode else reading_uri(file)
            reader.execute("ATTACH ? AS words", (uri,))
            for walks in fetch(reader, "words_about", _Walks, record.created_at):
                return walks
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "").startswith(
            ("SQLITE_BUSY", "SQLITE_INTERRUPT", "SQLITE_FULL")
        ):
            raise
    if any(name == "words" for _, name, _ in reader.execute("PRAGMA database_list")):
        reader.execute("DETACH words")
    return None


def _typed(text: str, reader: sqlite3.Connection) -> list[tuple[str, bool]]:
    """The words of a text as SQLite sees them, so that no operator is left, and whether each is
    but a beginning (`wor*`). Raises UsageError where SQLite lacks FTS5."""
    try:
        for statement in _TYPED:
            reader.execute(statement)
    except sqlite3.OperationalError as error:
        if "no such module" not in str(error):
            raise
        what = "the SQLite of this Python has no FTS5, which an index of words needs"
        raise UsageError(
            what, remedy="Use another Python, or delete the index: agac index --drop"
        ) from error
    pieces = text.split()
    found = dict[int, list[str]]()
    reader.executemany("INSERT INTO temp.typed (rowid, text) VALUES (?, ?)", enumerate(pieces))
    for word, piece in reader.execute(
        "SELECT term, doc FROM temp.typed_words ORDER BY doc, offset"
    ):
        found.setdefault(piece, []).append(word)
    return [
        (word, place == len(own) and pieces[piece].endswith("*"))
        for piece, own in found.items()
        for place, word in enumerate(own, 1)
    ]


async def word_search(
    database: Database, record: RunRecord, text: str
) -> tuple[list[str], list[IndexedRows], bool] | None:
    """The words of a text; rows that may have them all; and whether the index is whole: else some
    rows came or changed since it was made. None where there is no index, or no word."""

    def look(reader: sqlite3.Connection) -> tuple[list[str], list[IndexedRows], bool] | None:
        walks = _attached(database.path, record, reader)
        typed = _typed(text, reader) if walks else []
        if walks is None or not typed:
            return None
        query = " AND ".join(f'"{word}"{"*" * begins}' for word, begins in typed)
        values: dict[str, Any] = {"text": None, "more": None, "words": query}
        sources = [
            IndexedRows("rows_with_words", [0], values),
            IndexedRows("rows_come_later", [1], {}),
        ]
        whole = walks.mark == _mark(record)
        if not whole:
            (last,) = fetch(reader, "words_last_row", int, run=record.id)
            sources.append(IndexedRows("rows_not_come_to", [2], {"last": last}, (walks.upto, 0)))
        return [word for word, _ in typed], sources, whole

    with translated(database.path):
        return await database.reader.at_once(look)


def _mark(record: RunRecord) -> str:
    return f"{record.revision} {record.finished_at}"


async def make_index(database: Database, record: RunRecord) -> tuple[int, int]:
    """Makes the index of a run, or brings it up to date: a walk over its rows, in slices that are
    each committed. A killed one is gone on with. How many rows are in it, and how many were open.
    Raises UsageError without FTS5."""
    with translated(database.path.with_name(f"words-{record.id}.db")):
        last = await database.reader.at_once(partial(_begin, database.path, record))
        while await database.reader.at_once(partial(_walk, record, last)):
            pass
        return await database.reader.at_once(
            lambda reader: fetch(reader, "words_counts", tuple[int, int])[0]
        )


def _begin(path: Path, record: RunRecord, reader: sqlite3.Connection) -> int:
    """Begins a walk, or finds the one that was killed. Gives the last row key that there is."""
    _typed("", reader)
    if _attached(path, record, reader, "rw") is None:
        drop_index(path, record.id)
        file = path.with_name(f"words-{record.id}.db")
        make_file(file)
        reader.execute("ATTACH ? AS words", (f"{file.as_uri()}?mode=rwc",))
        reader.execute("PRAGMA words.journal_mode = WAL").fetchall()
    ((before, last),) = fetch(reader, "words_range", tuple[int, int], record.id)
    with transaction(reader):
        for statement in split_script((files(__package__) / "words.sql").read_text("utf-8")):
            reader.execute(statement)
        reader.execute(
            sql("words_begin"), {"made": record.created_at, "before": before, "mark": _mark(record)}
        )
    return last


def _walk(record: RunRecord, last: int, reader: sqlite3.Connection) -> bool:
    """One slice. Whether there is another one."""
    with transaction(reader):
        (walks,) = fetch(reader, "words_about", _Walks, record.created_at)
        values = {
            "run": record.id,
            "after": walks.walked,
            "upto": min(walks.walked + AT_ONCE, last),
        }
        execute(reader, "words_slice", [values])
        if values["upto"] == last:
            reader.execute(sql("words_end"))
    return values["upto"] < last
