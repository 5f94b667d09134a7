"""The rows of a job (`agac process`) as they end: lines of an OUTPUT that grows, or given to the caller."""

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
from agac.engine.export import GROWING, PLAIN_MERGES, Lines, Outputs, export_file
from agac.engine.replay import FinalRows
from agac.spec.workflow import Merge
from agac.store import runs
from agac.store.db import Database, write
from agac.store.records import NewRow, WriteBatch
from agac.store.rows import ExportRow, State

STAGE = "result"  # the name of the one stage of a job

Told = Callable[[list[str]], None]  # is given the envelopes of rows that have ended, when they are durable
Began = Callable[[str], None]  # is told the alias of a job, by which it is resumed, before its first call


class EndedRows:
    """Follows the commits of a job: `began` is told its alias; the lines of rows that ended are appended to the jsonl
    file `grows`, or go to `tell`. The file begins with all rows that the run settled before, and is put in their order
    by the export at the end; what was in its place is kept. Killed at any point it has whole lines, but perhaps for the
    last one, and the same run begins it anew."""

    def __init__(
        self, root: Path, grows: Path | None, tell: Told | None, merge: Merge | None, by: str | None, *, inputs: bool
    ) -> None:
        self._root, self._grows, self._tell = root, grows, tell
        self._merge, self._id_field, self._inputs = merge, by, inputs
        self._database: Database | None = None
        self._file: IO[str] | None = None
        self._told = bytearray()
        self.tell_began: Began | None = None
        self.run = 0
        self.kept: Path | None = None

    async def began(self, database: Database, run: int) -> None:
        """Tells the alias of the run."""
        self._database, self.run = database, run
        if self.tell_began is not None:
            self.tell_began(job_alias(run))

    async def committed(self, batch: WriteBatch) -> None:
        """Tells or writes the rows that have ended, those too of which the input made none."""
        if self._grows is None and self._tell is None:
            return
        unusable = [new for new in (*batch.inserts, *batch.changes) if new.state is State.FAILED]
        rows = [_row(new, new.state, new.row.error, None) for new in unusable]
        rows += [_row(end.new, end.state, end.error, end.result.value if end.result else None) for end in batch.ends]
        rows = [row for row in rows if row.state != State.DONE or row.value]
        if not (lines := self._lines(rows)):
            return
        if self._tell is not None:
            self._told.extend(bytes(max(0, max(row.key for row in rows) + 1 - len(self._told))))
            for row in rows:
                self._told[row.key] = 1
            self._tell(lines)
        elif self._file is None:
            await self._begin()
        else:
            assert self._grows is not None
            with explained(self._grows):
                self._file.write("".join(f"{line}\n" for line in lines))
                self._file.flush()

    def close(self) -> None:
        """Ends what is appended."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    async def tell_others(self) -> None:
        """Tells the rows that were settled before, and whose lines are therefore not told yet, in their order."""
        if self._tell is None:
            return
        async with stored_run(self._root, self.run) as (database, record):
            final = FinalRows(await runs.definition_of(database, record.id))
            async for rows in final.rows(database, record.id):
                left = [row for row in rows if row.key >= len(self._told) or not self._told[row.key]]
                if lines := self._lines(left):
                    self._tell(lines)

    def _lines(self, rows: list[ExportRow]) -> list[str]:
        layout = None
        if self._merge not in PLAIN_MERGES and rows:
            observed = Observed(None)
            for row in rows:
                observed.row(json.loads(row.data) or {})
                observed.result(json.loads(row.value or "null"))
            layout = observed.layout(self._merge, STAGE, self._id_field)
        lines = Lines(rows, self._inputs, layout, self._merge).results
        return [line.replace("\n", " ").replace("\r", " ") for line in lines]  # white space of the model's JSON

    async def _begin(self) -> None:
        """The file with all that the run has come to, in the place of what was there."""
        database, path = self._database, self._grows
        assert database is not None and path is not None  # noqa: PT018
        record = await runs.run_record(database, self.run)
        outputs = Outputs(record, self._root, 0)
        previous = outputs.previous(record, await runs.files_written(database, record.output_dir))
        notes = dict(record.exported_files)
        for file in previous.files:
            self.kept = previous.kept_as(file)
            notes |= {PREVIOUS: previous.stamp} if previous.stamp else {}

        async def note(temporary: Path) -> None:
            """Before it is shown: a file that is not known as ours would be kept as one of the user's."""
            marks = notes | {GROWING: growing_mark(temporary)}
            await write(database, "run_exporting", record.id)
            await write(database, "run_exported", None, json.dumps(marks), record.id)

        await export_file(database, record, self._root, path, "jsonl", note)
        with explained(path):
            self._file = path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n")


def _row(new: NewRow, state: State, error: RowError | None, value: str | None) -> ExportRow:
    kind, message = (error.type.value, error.message) if error else (None, None)
    value = error.detail if error and error.type is ErrorType.TRUNCATED else value
    return ExportRow(new.row.ordinal, new.row.id, state, new.data, value, kind, message, new.key)
