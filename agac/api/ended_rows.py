"""Rows of a job that have ended, written or told while the run continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from agac.api.status import stored_run
from agac.core.errors import ErrorType, RowError
from agac.core.keys import job_alias
from agac.data.files import PREVIOUS, explained, growing_mark
from agac.data.tables import Observed
from agac.engine.output.export import export_file
from agac.engine.output.output_lines import Lines
from agac.engine.output.run_outputs import GROWING, PLAIN_MERGES, Outputs
from agac.engine.walk.replay import FinalRows, sources_of_rows
from agac.plan.stage import recorded_stages
from agac.spec.data_specs import Merge
from agac.store import runs
from agac.store.db import Database, write
from agac.store.records import NewRow
from agac.store.rows import ExportRow, State
from agac.store.write_batch import WriteBatch

STAGE = "result"
"""The name of the one stage of a job."""

Told = Callable[[list[str]], None]
"""Is given the result lines of rows that have ended, once they are durable."""

Began = Callable[[str], None]
"""Is given the alias of a job, by which it is resumed, before its first call."""


class EndedRows:
    """Follows the commits of a job, and writes or tells the rows that have ended.

    The lines of rows are appended to the jsonl file `grows`, or given to `tell`. The file begins
    with all rows that the run settled before; what was in its place is kept. The export at the end
    puts its lines in the order of the rows. A process that is killed leaves whole lines, except
    perhaps the last one, and the same run then writes the file again."""

    def __init__(
        self,
        root: Path,
        grows: Path | None,
        tell: Told | None,
        merge: Merge | None,
        by: str | None,
        *,
        inputs: bool,
        sources: bool,
    ) -> None:
        """`by`: the field with the ids of rows; `inputs` and `sources`: whether lines have the
        fields of rows and the sources of answers."""
        self._root = root
        self._grows = grows
        self._tell = tell
        self._merge = merge
        self._id_field = by
        self._inputs = inputs
        self._sources = sources
        self._database: Database | None = None
        self._file: IO[str] | None = None
        self._told = bytearray()
        """1 for each row that was told, by its key."""
        self.tell_began: Began | None = None
        self.run = 0
        self.kept: Path | None = None
        """The copy of what was in the file's place."""

    async def began(self, database: Database, run: int) -> None:
        """Tells the alias of the run."""
        self._database = database
        self.run = run
        if self.tell_began is not None:
            self.tell_began(job_alias(run))

    async def committed(self, batch: WriteBatch) -> None:
        """Tells or writes the rows that have ended, including records that could not be read."""
        if self._grows is None and self._tell is None:
            return
        rows = _ended_rows(batch)
        if self._sources and rows:
            rows = await self._with_sources(rows)
        lines = self._lines(rows)
        if not lines:
            return
        if self._tell is not None:
            self._mark_told(rows)
            self._tell(lines)
        elif self._file is None:
            await self._begin()
        else:
            self._append(self._file, lines)

    def _mark_told(self, rows: list[ExportRow]) -> None:
        """Marks rows as told, so that the end does not tell them again."""
        needed = max(row.key for row in rows) + 1
        self._told.extend(bytes(max(0, needed - len(self._told))))
        for row in rows:
            self._told[row.key] = 1

    def _append(self, file: IO[str], lines: list[str]) -> None:
        """Appends lines to the growing file."""
        assert self._grows is not None
        with explained(self._grows):
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()

    def close(self) -> None:
        """Closes the growing file."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    async def _with_sources(self, rows: list[ExportRow]) -> list[ExportRow]:
        """Adds the sources of their answers to stored rows."""
        assert self._database is not None
        stages = recorded_stages(await runs.definition_of(self._database, self.run))
        sources = await sources_of_rows(self._database, stages, [row.key for row in rows])
        return [row._replace(sources=sources.get(row.key, {})) for row in rows]

    async def tell_others(self) -> None:
        """Tells the rows that were settled by earlier invocations, in their order."""
        if self._tell is None:
            return
        async with stored_run(self._root, self.run) as (database, record):
            final = FinalRows(await runs.definition_of(database, record.id), sources=self._sources)
            async for rows in final.rows(database, record.id):
                lines = self._lines([row for row in rows if not self._was_told(row)])
                if lines:
                    self._tell(lines)

    def _was_told(self, row: ExportRow) -> bool:
        """True if the row's line was told already."""
        return row.key < len(self._told) and bool(self._told[row.key])

    def _lines(self, rows: list[ExportRow]) -> list[str]:
        """Returns the result lines of rows."""
        layout = None
        if self._merge not in PLAIN_MERGES and rows:
            observed = Observed(None)
            for row in rows:
                observed.row(json.loads(row.data) or {})
                if row.value is not None:
                    observed.result(json.loads(row.value))
            layout = observed.layout(self._merge, STAGE, self._id_field)
        lines = Lines(rows, self._inputs, layout, self._merge).results
        # white space of the model's JSON
        return [line.replace("\n", " ").replace("\r", " ") for line in lines]

    async def _begin(self) -> None:
        """Begins the file with all rows that the run has settled. What was in its place is kept."""
        database = self._database
        path = self._grows
        assert database is not None and path is not None  # noqa: PT018
        record = await runs.run_record(database, self.run)
        outputs = Outputs(record, self._root, 0)
        previous = outputs.previous(record, await runs.files_written(database, record.output_dir))
        notes = dict(record.exported_files)
        for file in previous.files:
            self.kept = previous.kept_as(file)
            if previous.stamp:
                notes[PREVIOUS] = previous.stamp

        async def note(temporary: Path) -> None:
            """Notes the file before it is shown, because an unknown file would be kept as one of
            the user's."""
            marks = notes | {GROWING: growing_mark(temporary)}
            await write(database, "run_exporting", record.id)
            await write(database, "run_exported", None, json.dumps(marks), record.id)

        await export_file(database, record, self._root, path, "jsonl", note)
        with explained(path):
            self._file = path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n")


def _ended_rows(batch: WriteBatch) -> list[ExportRow]:
    """Returns the rows of a commit that have ended and have a line."""
    news = (*batch.rows.inserts, *batch.rows.changes)
    unreadable = [new for new in news if new.state is State.FAILED]
    rows = [_row(new, new.state, new.row.error, None) for new in unreadable]
    for end in batch.rows.ends:
        value = end.result.value if end.result else None
        rows.append(_row(end.new, end.state, end.error, value))
    return [row for row in rows if row.state != State.DONE or row.value]


def _row(new: NewRow, state: State, error: RowError | None, value: str | None) -> ExportRow:
    """Makes a row of an output. The value of a reply that was cut off is what came of it."""
    kind = None
    message = None
    if error:
        kind = error.type.value
        message = error.message
        if error.type is ErrorType.TRUNCATED:
            value = error.detail
    return ExportRow(new.row.ordinal, new.row.id, state, new.data, value, kind, message, new.key)
