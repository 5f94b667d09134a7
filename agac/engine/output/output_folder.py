"""Finds out what an earlier run left in an output folder: which store wrote it, and whether it was
changed since."""

from __future__ import annotations

import json
from pathlib import Path

from agac.core.keys import place_mark
from agac.core.reading import read_as
from agac.data import sinks
from agac.data.files import PREVIOUS, put_aside, stamp
from agac.engine.output.run_outputs import Outputs
from agac.engine.summary import StoreMark, WrittenSummary
from agac.store import runs
from agac.store.batches import project_token
from agac.store.db import Database
from agac.store.runs import WrittenFiles


def edited_files(outputs: Outputs, written: list[WrittenFiles], mark: StoreMark) -> list[Path]:
    """Returns the files that are about to be replaced and were changed since a run wrote them.

    A file that no known run wrote may be a user's own, or one that a lost store wrote here. Outputs
    that came from another place are left out, and so are logs of that store. `mark` is that of the
    present store."""
    summary = read_summary(outputs.folder)
    may_be_foreign = bool(written) or summary is None or _is_of_lost_store(summary.store, mark)
    edited = []
    for name in outputs.names:
        file = outputs.folder / name
        stamps = [run.files[name] for run in written if name in run.files]
        if (stamps or may_be_foreign) and file.is_file() and _is_edited(file, stamps):
            edited.append(file)
    return edited


def _is_of_lost_store(store: StoreMark | None, mark: StoreMark) -> bool:
    """True if another store of this project wrote a summary; `mark` is that of the present one."""
    return store is not None and store.place == mark.place and store.id != mark.id


def _is_edited(file: Path, stamps: list[list[int]]) -> bool:
    """True if a file is not empty, and not as runs left it."""
    if stamp(file) in stamps or _is_untouched_log(file):
        return False
    return file.stat().st_size > 0


def _is_untouched_log(file: Path) -> bool:
    """True if a file is one of the two logs, and was not changed since: agac writes both before it
    renames either."""
    logs = {"summary.json": "telemetry.jsonl", "telemetry.jsonl": "summary.json"}
    other = file.with_name(logs.get(file.name, file.name))
    return other != file and other.exists() and file.stat().st_mtime_ns <= other.stat().st_ctime_ns


def place_of_project(root: Path) -> str:
    """Returns a mark that tells this project from its copies."""
    real = root.resolve()
    return place_mark(str(real), real.stat().st_ino)


async def lost_store(
    database: Database | None, workflow: str, root: Path, output: str
) -> tuple[str, str] | None:
    """Says what happened to the store if the summary in the run's output folder was written here,
    for this workflow, by another store, or by this one when it was newer.

    Returns that with the mark under which it is accepted; None if it was accepted. Previews, and
    what another project wrote, have no such mark."""
    summary = read_summary(root / output)
    if summary is None or summary.store is None:
        return None
    if (summary.workflow, summary.output) != (workflow, output):
        return None
    if summary.store.place != place_of_project(root):
        return None
    if database is None or summary.store.id != await project_token(database):
        what = f"the store that wrote {output} is not there: it was deleted, emptied or replaced"
    elif await _knows_run(database, summary.run, workflow, summary.store.generation):
        return None
    else:
        what = f"the store is an older copy of the one that wrote {output}"
    if database is not None and await runs.store_accepted(database, summary.mark):
        return None
    return what, summary.mark


async def _knows_run(database: Database, number: int, workflow: str, generation: int) -> bool:
    """True if the store holds this run as new as its summary was, or dropped it."""
    run = await runs.read_run(database, number)
    if run is None:
        return number <= await runs.last_run_number(database)
    return run.workflow == workflow and run.revision >= generation


def read_summary(folder: Path, name: str = "summary.json") -> WrittenSummary | None:
    """Reads the summary in this folder; None if there is none that agac wrote."""
    try:
        return read_as(WrittenSummary, json.loads((folder / name).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


def keep_previous(folder: Path) -> None:
    """Keeps a copy of the results in this folder, which are about to be replaced, unless earlier
    ones are kept already."""
    if read_summary(folder, f"summary.{PREVIOUS}.json") is None:
        for file in sinks.result_files(folder):
            if file.is_file() and not file.is_symlink():
                put_aside(file, PREVIOUS, replace=True)
