"""Trace files: one per row of a run, with its calls, turns and tools (`--export-traces`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agac.api.row_report import row_report
from agac.core.errors import UsageError
from agac.core.keys import canonical, digest
from agac.data.files import PREFIX, AtomicFile, write_whole
from agac.plan.stage import recorded_stages
from agac.store.db import Database
from agac.store.rows import StoredRow, all_rows
from agac.store.runs import definition_of

_MANIFEST = "manifest.jsonl"
"""The list of the files."""

_TRACE = re.compile(rf"[A-Za-z0-9._-]+-[0-9a-f]{{8}}\.json|{re.escape(PREFIX)}.*")
"""Names of trace files, and of those that are being written."""


def refuse_foreign(folder: Path) -> None:
    """Raises UsageError if a folder holds files that are no traces, or a list without traces:
    writing traces replaces what is there."""
    if folder.is_dir():
        names = sorted(path.name for path in folder.iterdir())
    else:
        names = ["a file"] * folder.exists()
    traces = set(filter(_TRACE.fullmatch, names))
    allowed = traces | {_MANIFEST} if traces else traces
    foreign = [name for name in names if name not in allowed]
    if foreign:
        what = f"--export-traces {folder}: {foreign[0]} was made by no export"
        raise UsageError(what, remedy="Name an empty folder, or a new one.")


async def write_traces(
    database: Database, run: int, folder: Path, clean: Callable[[str], str]
) -> None:
    """Writes a file for each row of a run into a folder, with all that `inspect` tells of it, and
    a list of the files. `clean` removes secrets."""
    stages = recorded_stages(await definition_of(database, run))
    folder.mkdir(parents=True, exist_ok=True)
    manifest = AtomicFile(folder / _MANIFEST, "")
    try:
        async for row in (row async for rows in all_rows(database, run) for row in rows):
            report: dict[str, Any] = {
                "run": run,
                **await row_report(database, run, stages, row, None),
            }
            name = _file_name(row)
            text = json.dumps(report, indent=1, ensure_ascii=False)
            write_whole(folder / name, clean(f"{text}\n"))
            line = {
                "id": row.id,
                "row_number": report["row_number"],
                "state": report["state"],
                "file": name,
            }
            manifest.append(f"{clean(json.dumps(line, ensure_ascii=False))}\n")
        manifest.commit()
    finally:
        manifest.abort()


def _file_name(row: StoredRow) -> str:
    """Returns the name of a row's file: as much of its id as a name may have, and a hash."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", str(row.id))[:60].strip("._") or "row"
    return f"{readable}-{digest(canonical([row.id, row.occurrence])).hex()[:8]}.json"
