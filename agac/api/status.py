"""Runs as the store alone knows them: found by name, with their rows; the state of a run, its last
invocation, its counts."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

from agac.api.sync import blocking
from agac.core.arguments import typed
from agac.core.errors import ErrorType, UsageError, did_you_mean, listed, sentence
from agac.core.keys import JOB, job_alias
from agac.core.reading import read_as
from agac.core.types import (
    Outcome,
    Report,
    RowId,
    Shard,
    dollars_in_all,
    iso,
    json_form,
    waits_left,
)
from agac.engine.output.run_summary import calls_of, summarise
from agac.engine.stage_summary import StageDetails, StageSummary
from agac.engine.summary import ErrorSummary, RunSummary, WrittenSummary
from agac.spec.paths import PROJECT_FILE, STORE, YAML_SUFFIXES, Unusable, home_of, project_root
from agac.spec.project_files import files_in, read_bytes
from agac.store import batches, history, runs
from agac.store.db import Database, open_for_reading
from agac.store.lease import holder_of
from agac.store.rows import StoredRow


@runtime_checkable
class NamedWorkflow(Protocol):
    """An `agac.Workflow`. Its own class loads pydantic, which `agac status` does not need."""

    name: str
    """The workflow's name."""


# Runs and rows by the names that users give them.


SHARD = "AGAC_SHARD"
"""The variable of the environment that names a shard; `--shard` of the command line sets it."""


SHARDS = STORE.parent / "shards"
MERGED = "merged"
"""The folder with the stores of shards, relative to the project, and the name of the folder in it
for what `agac merge` wrote."""


def this_shard() -> Shard | None:
    """Returns the shard that this process works on, if any. Raises UsageError for a variable that
    names none."""
    text = os.environ.get(SHARD, "")
    shard = Shard.read(text)
    if text and shard is None:
        remedy = f"Write 3/16 for the third of sixteen, from 1/16 on, after --shard or in {SHARD}."
        raise UsageError(f"{text} names no shard", remedy=remedy)
    return shard


def database_path(root: Path) -> Path:
    """Returns the database of a project. Each shard of a run has one of its own."""
    shard = this_shard()
    if shard is None:
        return root / STORE
    return root / SHARDS / shard.name / STORE.name


def database_files(path: Path) -> list[Path]:
    """Returns a database, and the files that SQLite keeps next to it."""
    return [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal")]


def database_bytes(path: Path) -> int:
    """Returns the size of a database with what is still to be written into it."""
    return sum(p.stat().st_size for p in database_files(path)[:2] if p.exists())


def shard_folders(state: Path) -> list[Path]:
    """Returns the folders of shards that have stores in a folder `.agac`, by their names."""
    return sorted((state / SHARDS.name).glob("*-of-*"))


def no_runs_yet(path: Path) -> UsageError:
    """Returns the error for a database without any run. Its remedy names the shards that have
    stores next to it."""
    hint = _shards_hint(path)
    if hint:
        return UsageError("nothing was run in this project, except in shards", remedy=hint)
    return UsageError(
        "nothing was run in this project yet", remedy="Run `agac run -a WORKFLOW` first."
    )


def _shards_hint(path: Path) -> str:
    """Tells how to look into the stores that shards have next to a project's database; empty if
    there are none."""
    if this_shard() is not None:
        return ""
    shards = [Shard.read(folder.name, "-of-") for folder in shard_folders(path.parent)]
    first = next((shard for shard in shards if shard is not None), None)
    if first is None:
        return ""
    into = f"Each shard has a store of its own: add `--shard {first}` to look into one."
    return f"{into} `agac status` lists the runs in shards."


@asynccontextmanager
async def stored_run(
    root: Path, run: int | str | None, workflow: str | None = None, seconds: float | None = None
) -> AsyncIterator[tuple[Database, runs.RunRecord]]:
    """Opens the database for reading, for at most `seconds`, and finds a run. Raises UsageError as
    `find_run`."""
    path = database_path(root)
    async with open_for_reading(path, seconds) as database:
        if database is None:
            raise no_runs_yet(path)
        yield database, await find_run(database, workflow, run)


async def find_run(
    database: Database, workflow: str | None = None, run: int | str | None = None
) -> runs.RunRecord:
    """Returns the run numbered `run`, or the one last worked on for `last` and None; of `workflow`
    if one is named. Raises UsageError, which names the runs there are."""
    numbers = [line.id for line in await history.run_lines(database, workflow)]
    named = "last" if run is None else str(run).removeprefix(JOB)
    if named == "last":
        number = next(iter(numbers), None)
    elif isinstance(run, int):
        number = run
    else:
        number = _run_number(named)
    if number is not None and number in numbers:
        record = await runs.read_run(database, number)
        if record is not None:
            return record
    if not numbers and workflow is None:
        raise no_runs_yet(database.path)
    of = f" of workflow {workflow!r}" if workflow else ""
    what = "no run" if named == "last" else f"no run {named}"
    remedy = f"Runs{of}: {listed(map(str, numbers))}. `agac runs` lists them."
    if not numbers:
        remedy = _shards_hint(database.path) or remedy
    raise UsageError(f"{what}{of}", remedy=remedy)


def _run_number(text: str) -> int:
    """Reads the number of a run. Raises UsageError."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise UsageError(
        f"{text!r} is not a run", remedy="Give its number, or `last`. `agac runs` lists them."
    )


async def find_rows(database: Database, run: int, named: Sequence[RowId]) -> list[StoredRow]:
    """Returns the rows of a run that have these ids, repeated ids too. A text that reads like a
    number may also be a row number. Raises UsageError for names that no row has."""
    rows = await history.rows_with_ids(database, run, list(row_ids(named)))
    ids = {str(row.id) for row in rows}
    missing = [name for name in dict.fromkeys(map(str, named)) if name not in ids]
    if not missing:
        return rows
    what = f"row{'' if len(missing) == 1 else 's'} {', '.join(map(repr, missing))}"
    remedy = await _ids_hint(database, run, missing[0])
    raise UsageError(f"run {run} has no {what}", remedy=remedy)


async def _ids_hint(database: Database, run: int, name: str) -> str:
    """Tells how the rows of a run are named; for a row number which id it has."""
    number = _as_number(name)
    if number is not None:
        at_number = await history.ids_from(database, run, number, 1)
        if at_number:
            named = f"row {number} of the input has the id {at_number[0]!r}"
            return f"Rows are named by their ids: {named}."
    first = await history.ids_from(database, run, 0, 3)
    if first:
        return f"Rows are named by their ids: {', '.join(map(repr, first))}, …"
    return "It has no rows yet."


@typed
def row_ids(names: Iterable[RowId]) -> tuple[RowId, ...]:
    """Returns the ids that names on a command line may mean: `7` is the id "7", and row number 7
    if rows have no ids."""
    ids: dict[RowId, None] = {}
    for name in names:
        ids[name] = None
        number = _as_number(name) if isinstance(name, str) else None
        if number is not None:
            ids[number] = None
    return tuple(ids)


def _as_number(text: str) -> int | None:
    """Returns the row number that a text may be, or None."""
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    return None


def position_of(name: str, known: Sequence[str], flag: str, what: str = "stage") -> int:
    """Returns the position of a name. Raises UsageError, with what was probably meant, if there is
    none of that name."""
    if name in known:
        return known.index(name)
    hint = sentence(did_you_mean(name, known, f"the {what}s are"))
    raise UsageError(f"{flag} {name}: there is no such {what}", remedy=hint)


def workflow_name(workflow: Any) -> str | None:
    """Returns the name of a workflow that is given as its name, its file, or an `agac.Workflow`."""
    name: str | None = getattr(workflow, "name", workflow)
    if name and name.endswith(YAML_SUFFIXES):
        return Path(name).stem
    return name


def root_of(workflow: Any, project: Path | str | None) -> Path:
    """Returns the root for a call about `workflow`. For one made in Python that may be a folder
    without agac.yml. Raises UsageError."""
    in_python = workflow is not None and not isinstance(workflow, str | Path)
    return project_root(project, bare=in_python)


async def refuse_unknown(database: Database | None, root: Path, name: str | None) -> None:
    """Raises UsageError if no workflow is called `name`: it has no file and was never run."""
    with_runs = set[str]()
    if database:
        with_runs = {line.workflow for line in await history.run_lines(database, None)}
    if name is None or name in with_runs:
        return
    names = sorted({*with_runs, *names_of_files(root)})
    if name not in names:
        near = did_you_mean(name, names, "there is")
        hint = f"; {near}" if near.startswith("did") else ""
        raise UsageError(f"no workflow {name!r}{hint}", remedy=f"Workflows: {listed(names)}.")


def names_of_files(root: Path) -> set[str]:
    """Returns the names of the workflows that have files. agac.yml is only read if it may name
    another folder."""
    home = home_of(root)
    text = b""
    folder = home / "workflows"
    with suppress(Unusable):  # commands that need it report it
        text = read_bytes(home / PROJECT_FILE, PROJECT_FILE, home)
    if b"workflows" in text:
        # loads pydantic and YAML, which most projects do not need
        from agac.spec.loader import load_project

        spec, _ = load_project(root, {})
        folder = spec.paths.workflows if spec else folder
    return {file.stem for file in files_in(folder, home, "**/*") if file.suffix in YAML_SUFFIXES}


# The state of a run.

_SHOWN_INVOCATIONS = 10
"""The last invocations that a full report lists."""

State = Literal["running", "killed", "waiting", "stopped", "finished"]
"""The state of a run: *running* while its lease is held, *killed* if its last invocation has no
end, *waiting* while it has open batches, or rows that wait for people, *stopped* after an
interrupt, a fault or a limit, *finished* when every row is settled."""


async def run_report(
    database: Database, record: runs.RunRecord, *, in_full: bool = False
) -> dict[str, Any]:
    """Returns the run's summary with its state, its last invocation and the command that resumes
    it; `in_full` with what `StageDetails` adds to each stage. `shown`: its results are what was
    last written into its output folder; `not_written` are databases that could not be written
    then."""
    open_batches = (await batches.open_batches(database)).get(record.id)
    record, last, state = await state_of(database, record, open_batches)
    summary = await summarise(database, record)
    if in_full:
        counts = await runs.counters(database, record.id)
        stages = tuple(_with_details(stage, counts) for stage in summary.stages)
        summary = replace(summary, stages=stages)
    if last and last["ended_at"] is None:
        fault = await runs.waiting_for(database, last["number"])
        if fault:
            last["waiting_for"] = fault
    not_written = [
        name.removeprefix("to:")
        for name, stamp in record.exported_files.items()
        if stamp == runs.UNWRITTEN
    ]
    return {
        **summary.as_json(),
        "state": state,
        "open_batches": json_form(open_batches),
        "shown": record.exported_revision == record.revision,
        "not_written": not_written,
        "last_invocation": last,
        "go_on": go_on(record),
    }


async def full_report(database: Database, record: runs.RunRecord) -> dict[str, Any]:
    """Returns the same with errors and calls by stage, what calls without an answer may have cost,
    and its last invocations."""
    report = await run_report(database, record, in_full=True)
    counts = await runs.counters(database, record.id)
    last = record.invocation
    is_running = report["state"] == "running"
    events = await history.invocations(database, record.id, _SHOWN_INVOCATIONS)
    return {
        **report,
        "last_worked_at": iso((last.ended_at or last.at) if last else record.created_at),
        "input_read_at": iso(record.read_at),
        "held": {
            "cost_usd": round(dollars_in_all(count.held_cost for count in counts), 6),
            "tokens": sum(count.held_tokens for count in counts),
        },
        "replaced_by": await runs.superseded_by(database, record.id),
        "invocations": [_invocation_report(event, at_work=is_running) for event in events],
    }


def _with_details(stage: StageSummary, counts: Iterable[runs.Count]) -> StageSummary:
    """Adds the errors and the calls of a stage to its summary."""
    of_stage = [count for count in counts if count.stage == stage.name]
    failed = [count for count in of_stage if count.outcome == Outcome.FAILED]
    errors = {count.error_type: count.tasks for count in failed}
    return replace(stage, details=StageDetails(errors, calls_of(of_stage)))


async def state_of(
    database: Database, record: runs.RunRecord, open_batches: batches.OpenBatches | None
) -> tuple[runs.RunRecord, dict[str, Any] | None, State]:
    """Reads a run again, how its last invocation ended (None: it has none yet), and its state. The
    lease is looked at first: an invocation notes its end before it gives the lease back, and would
    else seem killed."""
    held = await holder_of(database, record.workflow) is not None
    record = await runs.run_record(database, record.id)
    last = None
    if record.invocation:
        last = _invocation_report(record.invocation, at_work=held)
    return record, last, _state(record, last, open_batches, held=held)


def _state(
    record: runs.RunRecord,
    last: Mapping[str, Any] | None,
    open_batches: batches.OpenBatches | None,
    *,
    held: bool,
) -> State:
    """Returns the state of a run. `held`: a process holds the lease of its workflow."""
    if last is None:
        if held:  # a run is made before its first invocation
            return "running"
    elif last["state"] == "running":
        return "running"
    elif last["state"] == "killed":
        return "killed"
    if record.finished_at is not None:
        return "finished"
    waits_for_people = last is not None and last.get("wait_for_people")
    if open_batches is not None or waits_for_people:
        return "waiting"
    return "stopped"


def rows_by_remedy(errors: Iterable[ErrorSummary]) -> Counter[str]:
    """Counts failed rows by what they need: another `input`, `schema`, row `budget`, answer on
    `calls` or of `people`, or to be run `again`."""
    rows = Counter[str]()
    for error in errors:
        rows[remedy_of(error.type, error.stage)] += error.rows
    return rows


def remedy_of(error_type: str, stage: str | None) -> str:
    """Names what rows need that failed so. `stage` is None if the input itself was wrong."""
    if stage is None:
        return "input"
    return _REMEDIES.get(error_type, "again")


_REMEDIES: Mapping[str, str] = {
    ErrorType.MISSING_TEMPLATE_FIELD: "input",
    ErrorType.EMPTY_PROMPT: "input",
    ErrorType.INVALID_ROW: "input",
    ErrorType.MISSING_RESULT_FIELD: "schema",
    ErrorType.BUDGET_EXCEEDED: "budget",
    ErrorType.TOOL_OUTCOME_UNKNOWN: "calls",
    ErrorType.REJECTED: "people",
}
"""What failed rows need, by type of error; those of other types are run again."""


def go_on(record: runs.RunRecord, more: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Returns the command that resumes a run: with its flags, since they are part of what the run
    is, and `more`."""
    flags = {**given_flags(record), **more}
    words = ["agac", "run", "-a", record.workflow]
    shard = record.selection.get("shard")
    if shard:
        words += ["--shard", str(Shard(*shard))]
    if "trial" in flags:
        trial = flags["trial"]
        words = ["agac", trial.get("command", "try"), *words[2:]]
        flags = trial | {"command": None}
    if "job" in flags:
        return f"agac resume {job_alias(record.id)}"
    if "task" in flags:
        return str(flags["task"])
    if flags.get("in_python"):
        return f"agac.run(agac.Workflow({record.workflow!r}, …))"
    for name, value in flags.items():
        words += _typed_flag(name, value)
    return shlex.join(words)


def _typed_flag(name: str, value: Any) -> list[str]:
    """Returns the words of a flag on a command line, repeated for each of several values."""
    if value is None:
        return []
    if name == "var":
        texts = [f"{variable}={text}" for variable, text in value.items()]
        return [word for text in texts for word in ("--var", text)]
    if isinstance(value, list):
        return [word for each in value for word in (f"--{name}", str(each))]
    return [f"--{name.replace('_', '-')}", str(value)]


def given_flags(record: runs.RunRecord) -> dict[str, Any]:
    """Returns the flags of a run's last invocation, by name."""
    given: dict[str, Any] = {}
    if record.invocation:
        given = record.invocation.body.get("given", given)
    return given


async def made_in_python(database: Database, workflow: str) -> bool:
    """True if a workflow was made by a program or a command, so that it has no file."""
    last = await runs.last_invocation(database, workflow)
    return bool(last and last.invocation.body.get("given", {}).get("in_python"))


def _invocation_report(invocation: runs.InvocationRecord, *, at_work: bool) -> dict[str, Any]:
    """Describes an invocation. `at_work`: a process works on its run."""
    state = "killed" if invocation.exit_code == runs.KILLED else "ended"
    if invocation.ended_at is None:
        state = "running" if at_work else "killed"
    body = dict(invocation.body)
    waits = waits_left(body.pop("waits", {}), time.time())
    if waits and state == "running":
        body["waits"] = waits
    return {
        "number": invocation.id,
        "state": state,
        "started_at": iso(invocation.at),
        "ended_at": iso(invocation.ended_at),
        "exit_code": invocation.exit_code,
        **body,
    }


@dataclass(frozen=True, slots=True)
class StatusReport(Report):
    """The newest runs of a project."""

    project: Path
    """The project's folder."""
    database_bytes: int
    """The size of its database."""
    runs: list[dict[str, Any]]
    """The runs, as `run_report` or `full_report` describe them."""
    sharded: list[dict[str, Any]] = field(default_factory=list)
    """Runs whose shards have stores in this folder, as `runs_in_shards` returns them."""

    @property
    def rows_by_remedy(self) -> Counter[str]:
        """The failed rows of the first run, counted by what they need."""
        return rows_by_remedy(read_as(RunSummary, self.runs[0]).errors)


@blocking
async def status(
    workflow: str | Path | NamedWorkflow | None = None,
    *,
    run: int | str | None = None,
    project: Path | str | None = None,
    newest: int = 10,
) -> StatusReport:
    """Describes the newest runs, of one workflow or of all; or one run in full: its number, or
    `last`. Changes nothing. Raises UsageError for a workflow that has no file and was never run,
    and for a run that does not exist."""
    root = root_of(workflow, project)
    workflow = workflow_name(workflow)
    path = database_path(root)
    size = database_bytes(path)
    if run is not None:
        async with stored_run(root, run, workflow) as (database, record):
            return StatusReport(root, size, [await full_report(database, record)])
    async with open_for_reading(path) as database:
        await refuse_unknown(database, root, workflow)
        sharded = await runs_in_shards(root, workflow) if this_shard() is None else []
        if database is None:
            return StatusReport(root, 0, [], sharded=sharded)
        reports = []
        for number in (await runs.run_ids(database, workflow))[:newest]:
            record = await runs.run_record(database, number)
            reports.append(await run_report(database, record))
        if reports:
            newer = await runs.superseded_by(database, reports[0]["run"])
            if newer:
                reports[0]["replaced_by"] = newer
        return StatusReport(root, size, reports, sharded)


async def runs_in_shards(root: Path, workflow: str | None) -> list[dict[str, Any]]:
    """Describes the newest run of each workflow, or of one, by the stores that its shards have in
    this folder: the `shards`, of which others may have run elsewhere, and their `rows` together;
    and if it was `merged` here, into which folder, and how many rows were written."""
    rows_of: dict[tuple[str, int], dict[str, dict[str, int]]] = defaultdict(dict)
    merged: dict[str, dict[str, Any]] = {}
    for path in sorted((root / SHARDS).glob(f"*/{STORE.name}")):
        shard = Shard.read(path.parent.name, "-of-")
        async with open_for_reading(path) as database:
            if database is None:
                continue
            for number in reversed(await runs.run_ids(database, workflow)):  # the newest is last
                record = await runs.run_record(database, number)
                if shard is None:
                    merged[record.workflow] = _merged(root, record)
                    continue
                counts = await runs.counters(database, number)
                rows_of[record.workflow, shard.of][str(shard)] = runs.row_counts(counts)
    return [
        {
            "workflow": name,
            "of": of,
            "shards": list(rows),
            "rows": dict(sum(map(Counter, rows.values()), Counter[str]())),
            "merged": merged.get(name),
        }
        for (name, of), rows in rows_of.items()
    ]


def _merged(root: Path, record: runs.RunRecord) -> dict[str, Any]:
    """Returns the folder into which a run was merged, and its rows by the summary there."""
    rows: dict[str, int] = {}
    with suppress(OSError, ValueError, RecursionError):
        text = (root / record.output_dir / "summary.json").read_bytes()
        summary = read_as(WrittenSummary, json.loads(text))
        if summary.workflow == record.workflow and summary.shards:
            rows = summary.rows._asdict()
    return {"output": record.output_dir, "rows": rows}
