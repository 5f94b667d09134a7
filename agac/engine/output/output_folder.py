"""What an earlier run left in an output folder: whose it is, and whether it was changed since."""

from __future__ import annotations

import json
from pathlib import Path

from agac.core.keys import place_mark
from agac.core.reading import read_as
from agac.data import sinks
from agac.data.files import PREVIOUS, put_aside, stamp
from agac.engine.output.run_outputs import Outputs
from agac.engine.summary import WrittenSummary
from agac.store import runs
from agac.store.batches import project_token
from agac.store.db import Database
from agac.store.runs import WrittenFiles


def edited_files(
    outputs: Outputs, written: list[WrittenFiles], token: str, place: str
) -> list[Path]:
    """Returns the files that are about to be replaced and are not as any run left them. What is
    not known to have been written by a run may be a user's own, or what a store wrote here that is
    lost; but not outputs that came from another place, and no logs of that store."""
    shown = read_summary(outputs.folder)
    mark = None if shown is None else shown.store
    by_lost_store = mark is not None and mark.place == place and mark.id != token
    may_be_foreign = bool(written) or shown is None or by_lost_store
    edited = []
    for file in (outputs.folder / name for name in outputs.names):
        stamps = [run.files[file.name] for run in written if file.name in run.files]
        if not (stamps or may_be_foreign) or not file.is_file():
            continue
        if stamp(file) in stamps or _left_alone(file):
            continue
        if file.stat().st_size:
            edited.append(file)
    return edited


def _left_alone(file: Path) -> bool:
    """Whether this is one of the two logs, both of which agac writes before it renames either, and
    older than that."""
    logs = {"summary.json": "telemetry.jsonl", "telemetry.jsonl": "summary.json"}
    other = file.with_name(logs.get(file.name, file.name))
    return other != file and other.exists() and file.stat().st_mtime_ns <= other.stat().st_ctime_ns


def place_of_project(root: Path) -> str:
    """Tells this project from its copies."""
    real = root.resolve()
    return place_mark(str(real), real.stat().st_ino)


async def lost_store(
    database: Database | None, workflow: str, root: Path, output: str
) -> tuple[str, str] | None:
    """What happened to the store, and the mark under which that is accepted, where the summary in
    the run's own output folder was written here for this workflow by another store, or by this one
    when it was newer; None where it was not, or where that was accepted. Previews, and what
    another project wrote, have no such mark."""
    shown = read_summary(root / output)
    if shown is None or shown.store is None:
        return None
    if (shown.workflow, shown.output) != (workflow, output):
        return None
    if shown.store.place != place_of_project(root):
        return None
    if database is None or shown.store.id != await project_token(database):
        what = f"the store that wrote {output} is not there: it was deleted, emptied or replaced"
    elif await _knows_run(database, shown.run, workflow, shown.store.generation):
        return None
    else:
        what = f"the store is an older copy of the one that wrote {output}"
    if database is not None and await runs.store_accepted(database, shown.mark):
        return None
    return what, shown.mark


async def _knows_run(database: Database, number: int, workflow: str, generation: int) -> bool:
    """True if the store holds this run as new as its summary was, or dropped it."""
    run = await runs.read_run(database, number)
    if run is None:
        return number <= await runs.last_run_number(database)
    return run.workflow == workflow and run.revision >= generation


def read_summary(folder: Path, name: str = "summary.json") -> WrittenSummary | None:
    """Reads the summary in this folder; None where there is none that agac wrote."""
    try:
        return read_as(WrittenSummary, json.loads((folder / name).read_bytes()))
    except (OSError, ValueError, RecursionError):
        return None


def keep_previous(folder: Path) -> None:
    """Keeps the results in this folder beside those that take their place, unless earlier ones are
    kept already."""
    if read_summary(folder, f"summary.{PREVIOUS}.json") is None:
        for file in sinks.result_files(folder):
            if file.is_file() and not file.is_symlink():
                put_aside(file, PREVIOUS, replace=True)
