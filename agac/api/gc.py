"""`agac gc`: deletes older runs and what only they need, and frees their space."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from agac.api.status import database_bytes, database_path, refuse_unknown, workflow_name
from agac.api.sync import blocking
from agac.core.errors import UsageError
from agac.core.types import Report
from agac.data.remote import forget_contents
from agac.data.sources import forget
from agac.spec.inputs import INPUTS
from agac.spec.paths import project_root
from agac.store.db import Database, open_for_reading
from agac.store.gc import GcCounts, clear, remove_word_indexes
from agac.store.history import RunLine
from agac.store.runs import run_record, run_settings_of
from agac.store.writer import open_database


@dataclass(frozen=True, slots=True)
class GcReport(Report):
    """What was deleted, or with `dry_run` would be."""

    JSON_KEYS = (
        "dry_run",
        "keep_runs",
        "kept",
        "dropped=cleared.dropped",
        "rows_that_left_the_input=cleared.left_rows",
        "rows_no_longer_made=cleared.gone_rows",
        "results=cleared.results",
        "bytes_before",
        "bytes_after",
    )

    cleared: GcCounts
    """The runs that were deleted, those that are kept, and how many rows and results went."""

    keep_runs: int
    """How many runs of each workflow are kept."""

    dry_run: bool
    """True if nothing was deleted."""

    bytes_before: int
    """Size of the database before, with its write-ahead log."""

    bytes_after: int
    """Size of the database afterwards, with its write-ahead log."""

    @property
    def kept(self) -> list[int]:
        """The numbers of the runs that are kept."""
        return [line.id for line in self.cleared.kept]


@blocking
async def gc(
    keep_runs: int,
    workflow: str | None = None,
    *,
    dry_run: bool = False,
    project: Path | str | None = None,
) -> GcReport:
    """Keeps the `keep_runs` most recently used runs of each workflow, or of one.

    Of the other runs it deletes rows, calls and roll-ups, results that no kept row uses, and rows
    that left the input of kept runs. Runs with open batches stay as they are. Index files of words
    that older versions made are deleted, too. Raises LeaseHeld while any workflow is at work."""
    if keep_runs < 1:
        raise UsageError(f"--keep-runs {keep_runs}: keep at least one run of each workflow")
    root = project_root(project)
    workflow = workflow_name(workflow)
    path = database_path(root)
    before = database_bytes(path)
    if not path.exists():
        return GcReport(GcCounts(), keep_runs, dry_run, before, before)
    async with open_for_reading(path) if dry_run else open_database(path) as database:
        assert database is not None
        await refuse_unknown(database, root, workflow)
        cleared = await clear(database, keep_runs, workflow, time.time)
        if not dry_run:
            remove_word_indexes(path)
            await _forget_files(database, root, cleared.kept)
    return GcReport(cleared, keep_runs, dry_run, before, database_bytes(path))


async def _forget_files(database: Database, root: Path, kept: list[RunLine]) -> None:
    """Deletes kept copies of inputs and remote contents, except those that `kept` runs name: such
    a run may still be continued with them."""
    records = [await run_record(database, line.id) for line in kept]
    options = [one.invocation.body.get("given", {}) for one in records if one.invocation]
    forget(root / INPUTS, {Path(given.get("input", "")).name for given in options})
    settings = [await run_settings_of(database, line.id) for line in kept]
    remotes = [remote for each in settings for remote in (each or {}).get("remote", ())]
    forget_contents(root, {remote["hash"] for remote in remotes})
