"""What the store alone says of runs: their state, the last invocation, and counts while a run is under way."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agac.core.errors import UsageError, did_you_mean, listed
from agac.core.report import Report, iso, json_form
from agac.core.types import Outcome, RowId
from agac.engine.export import export_run
from agac.engine.telemetry import calls_of, summarise
from agac.spec.paths import PROJECT_FILE, project_root
from agac.store import batches, history, runs
from agac.store.db import Database, open_database, open_for_reading
from agac.store.lease import holder_of
from agac.store.rows import RowRecord

State = Literal["running", "killed", "waiting", "stopped", "finished"]
"""What a run is doing: *running* while its lease is held, *killed* when its last invocation has no end, *waiting* while
it has open batches, *stopped* after an interrupt, a fault or a limit, *finished* when every row of the input is
settled."""

INVOCATIONS = 10
"""The last ones that a full report tells of."""

_NO_IDENTITY = frozenset({"concurrency", "output", "run_mode"})
"""Options that do not make it another run."""


async def run_report(database: Database, record: runs.RunRecord) -> dict[str, Any]:
    """The run's summary with its state, its last invocation and the command that resumes it.

    `shown`: its results are what was last written into its output folder; `not_written` are databases that could not
    be written then.
    """
    summary = await summarise(database, record)
    last = await last_invocation(database, record)
    if last and last["ended_at"] is None and (again := await runs.waiting_for(database, last["number"])):
        last["waiting_for"] = again
    open_batches = (await batches.open_batches(database)).get(record.id)
    return {
        **summary,
        "state": state_of(record, last, open_batches),
        "open_batches": json_form(open_batches),
        "shown": record.exported_revision == record.revision,
        "not_written": [
            name.removeprefix("to:") for name, stamp in record.exported_files.items() if stamp == runs.UNWRITTEN
        ],
        "last_invocation": last,
        "go_on": go_on(record),
    }


async def full_report(database: Database, record: runs.RunRecord) -> dict[str, Any]:
    """The same, with errors and calls by stage, what calls without an answer may have cost, and its invocations."""
    report = await run_report(database, record)
    counts = await runs.counters(database, record.id)
    at_work = report["state"] == "running"
    events = await history.invocations(database, record.id, INVOCATIONS)
    return {
        **report,
        "last_worked_at": iso(_last_worked(record)),
        "stages": [_stage(stage, counts) for stage in report["stages"]],
        "held": {
            "cost_usd": round(sum(c.held_cost for c in counts), 6),
            "tokens": sum(c.held_tokens for c in counts),
        },
        "replaced_by": await replaced_by(database, record),
        "invocations": [invocation_report(event, at_work=at_work) for event in events],
    }


def _last_worked(record: runs.RunRecord) -> float:
    last = record.invocation
    return (last.ended_at or last.at) if last else record.created_at


def _stage(stage: dict[str, Any], counts: list[runs.Count]) -> dict[str, Any]:
    own = [c for c in counts if c.stage == stage["name"]]
    errors = {c.error_type: c.tasks for c in own if c.outcome == Outcome.FAILED}
    return {**stage, "errors": errors, "calls": calls_of(own)}


def state_of(record: runs.RunRecord, last: Mapping[str, Any] | None, open_batches: batches.OpenBatches | None) -> State:
    """The state of a run whose last invocation is `last`."""
    if last and last["state"] == "running":
        return "running"
    if last and last["state"] == "killed":
        return "killed"
    if record.finished_at is not None:
        return "finished"
    return "waiting" if open_batches is not None else "stopped"


def go_on(record: runs.RunRecord) -> str:
    """The command that resumes a run: with the same flags, since they are part of what the run is."""
    words = ["agac", "run", "-a", record.workflow]
    for name, value in _given(record).items():
        if name == "var":
            words += [word for variable, text in value.items() for word in ("--var", f"{variable}={text}")]
        else:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _given(record: runs.RunRecord) -> Mapping[str, Any]:
    given: Mapping[str, Any] = record.invocation.body.get("given", {}) if record.invocation else {}
    return given


async def replaced_by(database: Database, record: runs.RunRecord) -> int | None:
    """The newest run that was made with the same flags after this one: going on would go on with that one."""
    for line in await history.run_lines(database, record.workflow):
        if line.id > record.id:
            other = await runs.read_run(database, line.id)
            if other is not None and _identity(other) == _identity(record):
                return other.id
    return None


def _identity(record: runs.RunRecord) -> dict[str, Any]:
    given = {name: value for name, value in _given(record).items() if name not in _NO_IDENTITY}
    return {**given, "selection": record.selection}


async def last_invocation(database: Database, record: runs.RunRecord) -> dict[str, Any] | None:
    """How the last invocation of a run ended; None when it has none."""
    if record.invocation is None:
        return None
    at_work = record.invocation.ended_at is None and await holder_of(database, record.workflow) is not None
    return invocation_report(record.invocation, at_work=at_work)


def invocation_report(invocation: runs.InvocationRecord, *, at_work: bool = False) -> dict[str, Any]:
    """One invocation: when, how it ended, and what it did. Without an end it is `at_work`, or was killed."""
    state = "killed" if invocation.exit_code == runs.KILLED else "ended"
    if invocation.ended_at is None:
        state = "running" if at_work else "killed"
    return {
        "number": invocation.id,
        "state": state,
        "started_at": iso(invocation.at),
        "ended_at": iso(invocation.ended_at),
        "exit_code": invocation.exit_code,
        **invocation.body,
    }


async def find_run(
    database: Database | None, workflow: str | None = None, run: int | str | None = None
) -> runs.RunRecord:
    """The run numbered `run`, or the one last worked on for `last` and None; of `workflow` where one is named.

    Raises UsageError, naming the runs there are.
    """
    ids = [line.id for line in await history.run_lines(database, workflow)] if database else []
    number = run_number(run)
    if number is None:
        number = next(iter(ids), None)
    record = await runs.read_run(database, number) if database and number is not None and number in ids else None
    if record is None and not ids and workflow is None:
        raise UsageError("nothing was run in this project yet", remedy="Run `agac run -a WORKFLOW` first.")
    if record is None:
        of = f" of workflow {workflow!r}" if workflow else ""
        what = f"no run {run}" if run not in (None, "last") else "no run"
        raise UsageError(f"{what}{of}", remedy=f"Runs{of}: {listed(map(str, ids))}. `agac runs` lists them.")
    return record


def run_number(run: int | str | None) -> int | None:
    """A run as it is named on the command line: a number; None for the one last worked on. Raises UsageError."""
    if run is None or run == "last":
        return None
    if isinstance(run, int) or (run.isascii() and run.isdigit()):
        return int(run)
    raise UsageError(f"{run!r} is not a run", remedy="Give its number, or `last`. `agac runs` lists them.")


async def find_rows(database: Database, run: int, named: Sequence[RowId]) -> list[RowRecord]:
    """The rows of a run that are called so, repeated ids too; a text that reads like a number may be a row number.

    Raises UsageError for names that no row has.
    """
    found = await history.rows_with_ids(database, run, list(row_ids(named)))
    known = {str(row.id) for row in found}
    missing = [name for name in dict.fromkeys(map(str, named)) if name not in known]
    if missing:
        rows = f"row{'' if len(missing) == 1 else 's'} {', '.join(map(repr, missing))}"
        raise UsageError(f"run {run} has no {rows}", remedy=await _row_hint(database, run, missing[0]))
    return found


def row_ids(names: Iterable[RowId]) -> tuple[RowId, ...]:
    """The ids that names on a command line may mean: `7` is the id "7", and row number 7 where rows have no ids."""
    found: dict[RowId, None] = {}
    for name in names:
        found[name] = None
        if isinstance(name, str) and (number := _as_number(name)) is not None:
            found[number] = None
    return tuple(found)


def _as_number(text: str) -> int | None:
    """The row number that a text may mean."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


async def _row_hint(database: Database, run: int, wanted: str) -> str:
    number = _as_number(wanted)
    if number is not None and (at := await history.ids_from(database, run, number, 1)):
        return f"Rows are named by their ids: row {number} of the input has the id {at[0]!r}."
    some = await history.ids_from(database, run, 0, 3)
    return f"Rows are named by their ids: {', '.join(map(repr, some))}, …" if some else "It has no rows yet."


def workflow_name(name: str | None) -> str | None:
    """A workflow's name, where its file was given."""
    return Path(name).stem if name and name.endswith((".yml", ".yaml")) else name


async def refuse_unknown(database: Database | None, root: Path, name: str | None) -> None:
    """Raises UsageError when no workflow is called `name`: it neither has a file nor was ever run."""
    known = await history.workflows_run(database) if database else []
    if name is None or name in known:
        return
    names = sorted({*known, *workflow_files(root)})
    if name not in names:
        near = did_you_mean(name, names, "there is")
        hint = f"; {near}" if near.startswith("did") else ""
        raise UsageError(f"no workflow {name!r}{hint}", remedy=f"Workflows: {listed(names)}.")


def database_path(root: Path) -> Path:
    """Where a project keeps its state."""
    return root / ".agac" / "agac.db"


def database_bytes(path: Path) -> int:
    """The size of a database with what waits beside it to be written into it."""
    return sum(p.stat().st_size for p in (path, path.with_name(path.name + "-wal")) if p.exists())


@dataclass(frozen=True, slots=True)
class StatusReport(Report):
    """The state of a project: its newest runs, what they came to, and how large the store is."""

    project: Path
    database_bytes: int
    runs: list[dict[str, Any]]


def status(
    workflow: str | None = None,
    *,
    run: int | str | None = None,
    project: Path | str | None = None,
    newest: int = 10,
) -> StatusReport:
    """The newest runs, of one workflow or of all; or one run in full: its number, or `last`. Changes nothing.

    Raises UsageError for a workflow that neither has a file nor was ever run, and for a run that does not exist.
    """
    root = project_root(project)
    return asyncio.run(_status(root, workflow_name(workflow), run, newest))


async def _status(root: Path, workflow: str | None, run: int | str | None, newest: int) -> StatusReport:
    path = database_path(root)
    async with open_for_reading(path) as database:
        if run is not None:
            record = await find_run(database, workflow, run)
            assert database is not None
            return StatusReport(root, database_bytes(path), [await full_report(database, record)])
        await refuse_unknown(database, root, workflow)
        if database is None:
            return StatusReport(root, 0, [])
        ids = (await runs.run_ids(database, workflow))[:newest]
        records = [await runs.read_run(database, number) for number in ids]
        reports = [await run_report(database, record) for record in records if record]
    return StatusReport(root, database_bytes(path), reports)


def workflow_files(root: Path) -> list[str]:
    """The names of the workflows that have files; agac.yml is only read when it may name another folder."""
    folder = root / "workflows"
    if b"workflows" in (root / PROJECT_FILE).read_bytes():
        folder = _workflow_folder(root) or folder
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted({file.stem for file in found if file.suffix in (".yml", ".yaml")})


def _workflow_folder(root: Path) -> Path | None:
    """`paths.workflows` of agac.yml, where it can be read."""
    from agac.spec.loader import load_project  # loads pydantic and YAML: most projects do without

    spec, _ = load_project(root, {})
    return spec.paths.workflows if spec else None


def export(
    workflow: str | None = None,
    *,
    run: int | None = None,
    partial: bool = False,
    project: Path | str | None = None,
) -> tuple[dict[str, Any], list[Path]]:
    """Writes a run's output files again, from the store: the newest run of `workflow`, or the one numbered `run`.

    A run with open rows is refused unless `partial`. Gives the summary and the files.
    """
    root = project_root(project)
    return asyncio.run(_export(root, workflow, run, partial))


async def _export(
    root: Path, workflow: str | None, run: int | None, partial: bool
) -> tuple[dict[str, Any], list[Path]]:
    path = database_path(root)
    if not path.exists():
        raise UsageError("nothing was run in this project yet", remedy="Run `agac run -a WORKFLOW` first.")
    async with open_database(path) as database:
        record = await find_run(database, workflow, run)
        if record.finished_at is None and not partial:
            raise UsageError(
                f"run {record.id} of {record.workflow} is not finished",
                remedy=f"Finish it with `{go_on(record)}`, or write what is there with --partial.",
            )
        summary = await summarise(database, record)
        exported = await export_run(database, record, root, summary)
    if exported.not_written is not None:
        raise exported.not_written
    return summary, exported.files
