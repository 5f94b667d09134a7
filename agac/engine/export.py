"""Output files, made from the store: streamed in row order, written aside, renamed. They can be made again any time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agac.core.errors import ErrorType, RowError
from agac.data.sinks import FILES, OutputFolder, envelope
from agac.store.db import Database
from agac.store.rows import ExportRow, State, export_rows
from agac.store.runs import RunRecord, write


async def export_run(database: Database, run: RunRecord, root: Path, summary: Mapping[str, Any]) -> list[Path]:
    """Writes results.jsonl, results.json, errors.jsonl and summary.json into the run's output folder.

    A row without an outcome has no envelope; `results.json` holds the ok results; `errors.jsonl` always has the input.
    A crash leaves the old files or the new ones, and no run that claims to be shown there: the next one writes them
    again. Returns their paths.
    """
    folder = root / run.output_dir
    await write(database, "run_exporting", (run.id,))
    with OutputFolder(folder, root) as out:
        results, array = out.open("results.jsonl"), out.open("results.json")
        errors, document = out.open("errors.jsonl"), out.open("summary.json")
        async for rows in export_rows(database, run.id):
            lines = Lines(run.include_input)
            for row in rows:
                lines.add(row)
            results.write_texts(lines.results)
            array.write_texts(lines.values)
            errors.write_texts(lines.errors)
        document.write(dict(summary))
    files = files_of(run, root)
    await write(database, "run_exported", (run.revision, json.dumps(_stamps(files)), run.id))
    return files


class Lines:
    """Some rows as the lines of the output files."""

    def __init__(self, include_input: bool) -> None:
        self._include_input = include_input
        self.results: list[str] = []
        self.values: list[str] = []
        self.errors: list[str] = []

    def add(self, row: ExportRow) -> None:
        """Adds a row; one without an outcome, or dropped, has no line."""
        if row.state == State.DONE and row.value is not None:
            self.results.append(envelope(row.id, row.ordinal, True, row.value, None, row.data, self._include_input))
            self.values.append(row.value)
        elif row.state == State.FAILED:
            failed = _error(row)
            self.results.append(envelope(row.id, row.ordinal, False, None, failed, row.data, self._include_input))
            self.errors.append(envelope(row.id, row.ordinal, False, None, failed, row.data, True))


def files_of(run: RunRecord, root: Path) -> list[Path]:
    """The files that a finished run's users expect."""
    return [root / run.output_dir / name for name in FILES]


def is_shown(run: RunRecord, root: Path) -> bool:
    """Whether the files in the output folder are what an export would write: none is missing, cut or another's."""
    return run.exported_revision == run.revision and run.exported_files == _stamps(files_of(run, root))


def _stamps(files: list[Path]) -> dict[str, list[int]]:
    found = [(file.name, file.lstat()) for file in files if file.exists()]
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in found}


def _error(row: ExportRow) -> RowError:
    return RowError(ErrorType(row.error_type or ErrorType.INVALID_ROW), row.error_message or "")
