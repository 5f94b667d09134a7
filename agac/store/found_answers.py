"""Answers in a file of results, matched with the rows of the input and stored for them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from agac.core.types import RowId
from agac.store import db
from agac.store.db import Database, change, sql


class FoundLine(NamedTuple):
    """The result of a row as a file has it."""

    id: str
    """The row's id; for a whole number its digits."""

    value: str | None
    """The answer as the store has it, or None if there is none."""

    number: int | None
    """The id where the file has a whole number."""

    row_number: int | None
    """The line's `row_number`, where it has one."""

    input: str | None
    """The line's `input`, as JSON."""


class MatchingRow(NamedTuple):
    """A row of the input, for the line with its id."""

    id: RowId
    """The row's id."""

    ordinal: int
    """The row's position in the input."""

    fingerprint: bytes
    """The fingerprint of the task whose answer the line may have."""

    confirms: Callable[[str], bool | None]
    """Compares the row with a line's `input`: True if it agrees, False if it contradicts, None if
    it does not tell."""


class FoundCounts(NamedTuple):
    """How many ids, answers and repetitions a file has."""

    ids: int
    """Different ids."""

    answers: int
    """Ids with an answer."""

    of_rows: int
    """Ids with an answer that rows of the input have."""

    repeated: int
    """Lines whose id comes again further down."""

    other_input: int
    """Answers that are refused because the line's `input` contradicts the row."""

    row_numbers: int
    """Answers that are refused because the ids seem to be row numbers."""


class FoundNumbers(NamedTuple):
    """Figures that show whether the ids of a file are row numbers."""

    ids: int
    """Different ids."""

    numbers: int
    """Ids that are whole numbers."""

    row_numbers: int
    """Ids whose line has a `row_number`."""

    equal: int
    """Ids that equal the `row_number` of their line."""

    least: int | None
    """The lowest id that is a number."""

    most: int | None
    """The highest id that is a number."""

    elsewhere: int
    """Ids that rows have at another position than the id says."""

    @property
    def are_row_numbers(self) -> bool:
        """True if the ids seem to count rows in another way than the ids of the input. Programs
        count from 0, from 1, or by the lines of a csv file, so that a number names another row
        than the id with its digits."""
        if self.ids == 0 or self.numbers < self.ids:
            return False
        if self.least is None or self.most is None:
            return False
        if self.row_numbers:
            counts_rows = self.equal == self.row_numbers
        else:
            counts_rows = self.least <= 2 and self.most - self.least + 1 == self.ids
        return counts_rows and (self.least != 1 or self.elsewhere > 0)


async def found_answers(
    database: Database, lines: Iterable[FoundLine], rows: Iterable[MatchingRow]
) -> tuple[FoundCounts, list[tuple[str, int]], list[tuple[str, str]]]:
    """Notes the answers in a file for the rows with the same ids; the last line of an id counts.
    Answers that belong to other rows, by what the file says, are refused. Returns the counts, the
    most frequent answers and the first ones."""

    def note(writer: sqlite3.Connection) -> Any:
        writer.execute(sql("found_make"))
        writer.executemany(sql("found_put"), lines)
        for row in rows:
            _match(writer, row)
        writer.execute(sql("found_refuse_inputs"))
        numbers = FoundNumbers(*writer.execute(sql("found_numbers")).fetchone())
        if numbers.are_row_numbers:
            writer.execute(sql("found_refuse_numbers"))
        return [
            writer.execute(sql(name)).fetchall()
            for name in ("found_counts", "found_common", "found_first")
        ]

    assert database.writer is not None
    (counts,), common, first = await database.writer.at_once(note)
    return FoundCounts(*counts), common, first


def _match(writer: sqlite3.Connection, row: MatchingRow) -> None:
    """Notes which row the line with its id belongs to, if there is such a line."""
    line = writer.execute(sql("found_input"), (row.id,)).fetchone()
    if line is None:
        return
    (line_input,) = line
    is_confirmed = None if line_input is None else row.confirms(line_input)
    values = (row.fingerprint, row.ordinal, is_confirmed, row.id)
    writer.execute(sql("found_match"), values)


async def keep_found(database: Database, workflow: str, file: str, at: float) -> None:
    """Stores the answers that were noted, as answers of one workflow."""
    values = {"workflow": workflow, "file": file, "at": at}
    await change(database, lambda writer: db.execute(writer, "results_adopt", [values]))
