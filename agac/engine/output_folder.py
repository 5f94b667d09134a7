"""What an earlier run left in an output folder: whose it is, and whether it was changed since."""

from __future__ import annotations

import json
from pathlib import Path

from agac.core.keys import place_mark
from agac.core.reading import read_as
from agac.data import sinks
from agac.data.files import PREVIOUS, put_aside, stamp
from agac.engine.outputs import Outputs
from agac.engine.summary import WrittenSummary
from agac.store import runs
from agac.store.batches import project_token
from agac.store.db import Database
from agac.store.runs import WrittenFiles


def edited_files(
    outputs: Outputs, written: list[WrittenFiles], token: str, place: str
) -> list[Path]:
    """Files that are about to be replaced and are not as any run left them. What is not known to
    have been written by a run may be a user's own, or what a store wrote here that is lost; but
    not outputs that came from another place, and no logs of that store."""
    found = []
    told = read_summary(outputs.folder)
    mark = told.store if told is not None else None
    if mark is not None:
        left_here = mark.place == place and mark.id != token
    else:
        left_here = False
    foreign = written or told is None or left_here
    for file in (outputs.folder / name for name in outputs.names):
        stamps = [one.files[file.name] for one in written if file.name in one.files]
        if (
            not (stamps or foreign)
            or not file.is_file()
            or stamp(file) in stamps
            or _left_alone(file)
        ):
            continue
        found += [file] if file.stat().st_size else []
    return found


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
    told = read_summary(root / output)
    if told is None or told.store is None or (told.workflow, told.output) != (workflow, output):
        return None
    if told.store.place != place_of_project(root):
        return None
    if database is None or told.store.id != await project_token(database):
        what = f"the store that wrote {output} is not there: it was deleted, emptied or replaced"
    else:
        run = await runs.read_run(database, told.run)
        if run is None:
            was_dropped = told.run <= await runs.last_run_number(database)
            if was_dropped:
                return None
        elif run.workflow == workflow and run.revision >= told.store.generation:
            return None
        what = f"the store is an older copy of the one that wrote {output}"
    if database is not None and await runs.store_accepted(database, told.mark):
        return None
    return what, told.mark


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
