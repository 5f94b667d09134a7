"""`agac export`: the output files of a run, written again from the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agac.api.status import database_files, database_path, find_run, go_on, no_runs_yet
from agac.api.sync import blocking
from agac.core.errors import UsageError
from agac.data.files import refuse_target
from agac.data.sinks import FORMATS
from agac.engine.output.export import export_file, export_run
from agac.engine.output.run_outputs import Outputs
from agac.engine.output.run_summary import summarise
from agac.spec.paths import project_root
from agac.store.db import open_for_reading
from agac.store.runs import RunRecord
from agac.store.writer import open_database


@blocking
async def export(
    workflow: str | None = None,
    *,
    run: int | str | None = None,
    partial: bool = False,
    to: Path | str | None = None,
    format: str | None = None,  # noqa: A002 - the name of the flag
    force: bool = False,
    project: Path | str | None = None,
) -> tuple[dict[str, Any], list[Path]]:
    """Writes a run's output files again, from the store: those of the newest run of `workflow`, or
    of the one numbered `run`. With `to` it writes only the results, into this file; its `format`
    is one of `FORMATS`, or None for what its suffix says. The run's own outputs and the store then
    stay as they are, and an existing file is only replaced with `force`. Refuses a run with open
    rows unless `partial`, and without `to` a run that writes no files, as that of a task. Returns
    the summary and the files."""
    root = project_root(project)
    path = database_path(root)
    file = Path(to) if to is not None else None
    kind = _format_of(file, format)
    if not path.exists():
        raise no_runs_yet(path)
    async with open_database(path) if file is None else open_for_reading(path) as database:
        if database is None:
            raise no_runs_yet(path)
        record = await find_run(database, workflow, run)
        _refuse_record(record, file, partial=partial)
        summary = await summarise(database, record)
        if file is not None:
            refuse_target(
                file, _own_files(path, root, record), f"{record.workflow}.{kind}", force=force
            )
            await export_file(database, record, root, file, kind)
            return summary.as_json(), [file]
        # brings what reads a project's files, which commands of this module else do without
        from agac.api.project import environment

        env, _ = environment(root)
        exported = await export_run(database, record, root, summary, env)
    if exported.not_written is not None:
        raise exported.not_written
    return summary.as_json(), exported.files


def _format_of(file: Path | None, chosen: str | None) -> str:
    """Returns the format of a file, as `chosen` or by its suffix. Raises UsageError if there is
    none."""
    if file is None:
        return chosen or ""
    if str(file) == "-":
        raise UsageError("to='-': only the command line prints results", remedy="Name a file.")
    kind = chosen or file.suffix[1:].lower()
    if kind in FORMATS:
        return kind
    what = f"{kind!r} is not a format" if kind else "its name tells no format"
    remedy = f"Choose one with --format: {', '.join(FORMATS)}."
    raise UsageError(f"--to {file}: {what}", remedy=remedy)


def _refuse_record(record: RunRecord, file: Path | None, *, partial: bool) -> None:
    """Raises UsageError for a run that is not finished, or has no outputs to be written."""
    if record.finished_at is None and not partial:
        raise UsageError(
            f"run {record.id} of {record.workflow} is not finished",
            remedy=f"Finish it with `{go_on(record)}`, or write what is there with --partial.",
        )
    if file is None and record.outputs.get("places") == {}:
        what = f"run {record.id} of {record.workflow} writes no files"
        commands = (
            f"agac export --run {record.id} --to FILE, or agac.export(run={record.id}, to=FILE)"
        )
        raise UsageError(what, remedy=f"Name one for its results: {commands}.")


def _own_files(database: Path, root: Path, record: RunRecord) -> dict[Path, str]:
    """Returns the files that must not be replaced by results, and what each of them is."""
    of_database = dict.fromkeys(database_files(database), "the database itself")
    outputs = Outputs(record, root, 0).files()
    return of_database | dict.fromkeys(outputs, "an output of the run, which `agac export` writes")
