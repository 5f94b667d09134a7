"""What the store alone says of runs: runs and rows found by name, the state of a run, its last
invocation, counts."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections import Counter
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
    """An `agac.Workflow`, whose own class comes with pydantic, without which `agac status` does."""

    name: str


# Runs and rows by the names that users give them.


SHARD = "AGAC_SHARD"
"""The variable of the environment that names a shard; `--shard` of the command line sets it."""


SHARDS = STORE.parent / "shards"
MERGED = "merged"
"""Where the stores of shards are, relative to the project; and that of what `agac merge` wrote,
among them."""


def this_shard() -> Shard | None:
    """The shard at which this process works. Raises UsageError for a variable that names none."""
    text = os.environ.get(SHARD, "")
    shard = Shard.read(text)
    if text and shard is None:
        remedy = f"Write 3/16 for the third of sixteen, from 1/16 on, after --shard or in {SHARD}."
        raise UsageError(f"{text} names no shard", remedy=remedy)
    return shard


def database_path(root: Path) -> Path:
    """Where a project keeps its state: each shard of a run has a store of its own."""
    shard = this_shard()
    if shard is None:
        return root / STORE
    return root / SHARDS / shard.name / STORE.name


def database_files(path: Path) -> list[Path]:
    """A database, and what SQLite keeps beside it."""
    return [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal")]


def database_bytes(path: Path) -> int:
    """The size of a database with what waits beside it to be written into it."""
    return sum(p.stat().st_size for p in database_files(path)[:2] if p.exists())


def shard_folders(state: Path) -> list[Path]:
    """Returns the folders of shards that have stores in a folder `.agac`, by their names."""
    return sorted((state / SHARDS.name).glob("*-of-*"))


def no_runs_yet(path: Path) -> UsageError:
    """The error for a database without any run; its remedy names the shards that have stores
    beside it."""
    hint = _shards_hint(path)
    if hint:
        return UsageError("nothing was run in this project, except in shards", remedy=hint)
    return UsageError(
        "nothing was run in this project yet", remedy="Run `agac run -a WORKFLOW` first."
    )


def _shards_hint(path: Path) -> str:
    """How to look into the stores that shards have beside a project's database; empty if there are
    none."""
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
    """The database, opened for reading, for so many seconds if named, and a run. Raises UsageError
    as `find_run`."""
    path = database_path(root)
    async with open_for_reading(path, seconds) as database:
        if database is None:
            raise no_runs_yet(path)
        yield database, await find_run(database, workflow, run)


async def find_run(
    database: Database, workflow: str | None = None, run: int | str | None = None
) -> runs.RunRecord:
    """The run numbered `run`, or the one last worked on for `last` and None; of `workflow` where
    one is named. Raises UsageError, naming the runs there are."""
    run = run.removeprefix(JOB) if isinstance(run, str) else run
    ids = [line.id for line in await history.run_lines(database, workflow)]
    if run is None or run == "last":
        number = next(iter(ids), None)
    elif isinstance(run, int) or (run.isascii() and run.isdigit()):
        number = int(run)
    else:
        raise UsageError(
            f"{run!r} is not a run", remedy="Give its number, or `last`. `agac runs` lists them."
        )
    if number is not None and number in ids:
        record = await runs.read_run(database, number)
    else:
        record = None
    if record is None and not ids and workflow is None:
        raise no_runs_yet(database.path)
    if record is None:
        of = f" of workflow {workflow!r}" if workflow else ""
        what = f"no run {run}" if run not in (None, "last") else "no run"
        remedy = f"Runs{of}: {listed(map(str, ids))}. `agac runs` lists them."
        hint = "" if ids else _shards_hint(database.path)
        raise UsageError(f"{what}{of}", remedy=hint or remedy)
    return record


async def find_rows(database: Database, run: int, named: Sequence[RowId]) -> list[StoredRow]:
    """The rows of a run that are called so, repeated ids too; a text that reads like a number may
    be a row number. Raises UsageError for names that no row has."""
    found = await history.rows_with_ids(database, run, list(row_ids(named)))
    known = {str(row.id) for row in found}
    missing = [name for name in dict.fromkeys(map(str, named)) if name not in known]
    if not missing:
        return found
    number = _as_number(missing[0])
    if number is not None and (at := await history.ids_from(database, run, number, 1)):
        hint = f"Rows are named by their ids: row {number} of the input has the id {at[0]!r}."
    elif some := await history.ids_from(database, run, 0, 3):
        hint = f"Rows are named by their ids: {', '.join(map(repr, some))}, …"
    else:
        hint = "It has no rows yet."
    rows = f"row{'' if len(missing) == 1 else 's'} {', '.join(map(repr, missing))}"
    raise UsageError(f"run {run} has no {rows}", remedy=hint)


@typed
def row_ids(names: Iterable[RowId]) -> tuple[RowId, ...]:
    """The ids that names on a command line may mean: `7` is the id "7", and row number 7 where
    rows have no ids."""
    found: dict[RowId, None] = {}
    for name in names:
        found[name] = None
        if isinstance(name, str) and (number := _as_number(name)) is not None:
            found[number] = None
    return tuple(found)


def _as_number(text: str) -> int | None:
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    return None


def position_of(name: str, known: Sequence[str], flag: str, what: str = "stage") -> int:
    """The position of a name. Raises UsageError, with what was probably meant, when there is none
    of that name."""
    if name in known:
        return known.index(name)
    hint = sentence(did_you_mean(name, known, f"the {what}s are"))
    raise UsageError(f"{flag} {name}: there is no such {what}", remedy=hint)


def workflow_name(workflow: Any) -> str | None:
    """A workflow's name, where its file was given, or what was made in Python."""
    name: str | None = getattr(workflow, "name", workflow)
    if name and name.endswith(YAML_SUFFIXES):
        return Path(name).stem
    return name


def root_of(workflow: Any, project: Path | str | None) -> Path:
    """The root for a call about `workflow`: of one made in Python also the current folder. Raises
    UsageError."""
    in_python = workflow is not None and not isinstance(workflow, str | Path)
    return project_root(project, bare=in_python)


async def refuse_unknown(database: Database | None, root: Path, name: str | None) -> None:
    """Raises UsageError when no workflow is called `name`: it neither has a file nor was ever
    run."""
    if database:
        known = {line.workflow for line in await history.run_lines(database, None)}
    else:
        known = set()
    if name is None or name in known:
        return
    names = sorted({*known, *names_of_files(root)})
    if name not in names:
        near = did_you_mean(name, names, "there is")
        hint = f"; {near}" if near.startswith("did") else ""
        raise UsageError(f"no workflow {name!r}{hint}", remedy=f"Workflows: {listed(names)}.")


def names_of_files(root: Path) -> set[str]:
    """The names of the workflows that have files; agac.yml is only read when it may name another
    folder."""
    home = home_of(root)
    text = b""
    folder = home / "workflows"
    with suppress(Unusable):  # said by commands that need it
        text = read_bytes(home / PROJECT_FILE, PROJECT_FILE, home)
    if b"workflows" in text:
        # loads pydantic and YAML: most projects do without
        from agac.spec.loader import load_project

        spec, _ = load_project(root, {})
        folder = spec.paths.workflows if spec else folder
    return {file.stem for file in files_in(folder, home, "**/*") if file.suffix in YAML_SUFFIXES}


# The state of a run.

State = Literal["running", "killed", "waiting", "stopped", "finished"]
"""What a run is doing: *running* while its lease is held, *killed* when its last invocation has no
end, *waiting* while it has open batches, or rows that wait for people, *stopped* after an
interrupt, a fault or a limit, *finished* when every row is settled."""


async def run_report(
    database: Database, record: runs.RunRecord, *, in_full: bool = False
) -> dict[str, Any]:
    """Makes the run's summary with its state, its last invocation and the command that resumes it;
    `in_full` with what `StageDetails` adds to each stage. `shown`: its results are what was last
    written into its output folder; `not_written` are databases that could not be written then."""
    open_batches = (await batches.open_batches(database)).get(record.id)
    record, last, state = await state_of(database, record, open_batches)
    summary = await summarise(database, record)
    if in_full:
        counts = await runs.counters(database, record.id)
        stages = tuple(_with_details(stage, counts) for stage in summary.stages)
        summary = replace(summary, stages=stages)
    if (
        last
        and last["ended_at"] is None
        and (again := await runs.waiting_for(database, last["number"]))
    ):
        last["waiting_for"] = again
    return {
        **summary.as_json(),
        "state": state,
        "open_batches": json_form(open_batches),
        "shown": record.exported_revision == record.revision,
        "not_written": [
            name.removeprefix("to:")
            for name, stamp in record.exported_files.items()
            if stamp == runs.UNWRITTEN
        ],
        "last_invocation": last,
        "go_on": go_on(record),
    }


async def full_report(database: Database, record: runs.RunRecord) -> dict[str, Any]:
    """The same, with errors and calls by stage, what calls without an answer may have cost, and
    its invocations."""
    report = await run_report(database, record, in_full=True)
    counts = await runs.counters(database, record.id)
    last = record.invocation
    events = await history.invocations(database, record.id, 10)  # the last ones
    return {
        **report,
        "last_worked_at": iso((last.ended_at or last.at) if last else record.created_at),
        "input_read_at": iso(record.read_at),
        "held": {
            "cost_usd": round(dollars_in_all(c.held_cost for c in counts), 6),
            "tokens": sum(c.held_tokens for c in counts),
        },
        "replaced_by": await runs.superseded_by(database, record.id),
        "invocations": [
            _invocation_report(event, at_work=report["state"] == "running") for event in events
        ],
    }


def _with_details(stage: StageSummary, counts: Iterable[runs.Count]) -> StageSummary:
    """Adds the errors and the calls of a stage to its summary."""
    own = [count for count in counts if count.stage == stage.name]
    errors = {count.error_type: count.tasks for count in own if count.outcome == Outcome.FAILED}
    return replace(stage, details=StageDetails(errors, calls_of(own)))


async def state_of(
    database: Database, record: runs.RunRecord, open_batches: batches.OpenBatches | None
) -> tuple[runs.RunRecord, dict[str, Any] | None, State]:
    """A run read anew, how its last invocation ended (None: it has none yet), and its state.
    Whether a process works on it is looked at first: who comes to the end says so before the lease
    is given back, and would else seem killed."""
    held = await holder_of(database, record.workflow) is not None
    record = await runs.run_record(database, record.id)
    if record.invocation:
        last = _invocation_report(record.invocation, at_work=held)
    else:
        last = None
    # a run is made before its first invocation
    if held if last is None else last["state"] == "running":
        return record, last, "running"
    if last and last["state"] == "killed":
        return record, last, "killed"
    waits = open_batches is not None or (last and last.get("wait_for_people"))
    return (
        record,
        last,
        "finished" if record.finished_at is not None else "waiting" if waits else "stopped",
    )


def rows_by_remedy(errors: Iterable[ErrorSummary]) -> Counter[str]:
    """How many failed rows need another `input`, `schema`, row `budget`, answer on `calls`, of
    `people`, or to go `again`."""
    found = Counter[str]()
    for error in errors:
        found[remedy_of(error.type, error.stage)] += error.rows
    return found


def remedy_of(error_type: str, stage: str | None) -> str:
    """Names what rows need that failed so; `stage` is None where the input itself was wrong."""
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


def go_on(record: runs.RunRecord, more: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The command that resumes a run: with the same flags, since they are part of what the run is,
    or `more`."""
    words = ["agac", "run", "-a", record.workflow]
    given = {**given_flags(record), **more}
    words += ["--shard", str(Shard(*shard))] if (shard := record.selection.get("shard")) else []
    if "trial" in given:
        words = ["agac", given["trial"].get("command", "try"), *words[2:]]
        given = given["trial"] | {"command": None}
    if "job" in given:
        return f"agac resume {job_alias(record.id)}"
    if "task" in given:
        return str(given["task"])
    if given.get("in_python"):
        return f"agac.run(agac.Workflow({record.workflow!r}, …))"
    for name, value in given.items():
        if name == "var":
            words += [
                word for variable, text in value.items() for word in ("--var", f"{variable}={text}")
            ]
        elif isinstance(value, list):
            words += [word for one in value for word in (f"--{name}", str(one))]
        elif value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def given_flags(record: runs.RunRecord) -> dict[str, Any]:
    """The flags of a run's last invocation, by name."""
    given: dict[str, Any] = {}
    if record.invocation:
        given = record.invocation.body.get("given", given)
    return given


async def made_in_python(database: Database, workflow: str) -> bool:
    """Whether the keys of a workflow are those of a program or of a command, so that no file has
    them."""
    last = await runs.last_invocation(database, workflow)
    return bool(last and last.invocation.body.get("given", {}).get("in_python"))


def _invocation_report(invocation: runs.InvocationRecord, *, at_work: bool) -> dict[str, Any]:
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
    """The state of a project: its newest runs, what they came to, and how large the store is.
    `sharded` are the runs whose shards have stores in this folder, as `runs_in_shards` has them."""

    project: Path
    database_bytes: int
    runs: list[dict[str, Any]]
    sharded: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rows_by_remedy(self) -> Counter[str]:
        """What the failed rows of the first of the runs need."""
        return rows_by_remedy(read_as(RunSummary, self.runs[0]).errors)


@blocking
async def status(
    workflow: str | Path | NamedWorkflow | None = None,
    *,
    run: int | str | None = None,
    project: Path | str | None = None,
    newest: int = 10,
) -> StatusReport:
    """The newest runs, of one workflow or of all; or one run in full: its number, or `last`.
    Changes nothing. Raises UsageError for a workflow that neither has a file nor was ever run, and
    for a run that does not exist."""
    root = root_of(workflow, project)
    workflow = workflow_name(workflow)
    path = database_path(root)
    size = database_bytes(path)
    if run is not None:
        async with stored_run(root, run, workflow) as (database, record):
            return StatusReport(root, size, [await full_report(database, record)])
    async with open_for_reading(database_path(root)) as found:
        await refuse_unknown(found, root, workflow)
        if this_shard() is None:
            sharded = await runs_in_shards(root, workflow)
        else:
            sharded = []
        if found is None:
            return StatusReport(root, 0, [], sharded=sharded)
        numbers = (await runs.run_ids(found, workflow))[:newest]
        listed = [
            await run_report(found, await runs.run_record(found, number)) for number in numbers
        ]
        if listed and (newer := await runs.superseded_by(found, listed[0]["run"])):
            listed[0]["replaced_by"] = newer
        return StatusReport(root, size, listed, sharded)


async def runs_in_shards(root: Path, workflow: str | None) -> list[dict[str, Any]]:
    """What the stores of shards in this folder hold of the newest run of each workflow, or of one:
    its `shards`, of which others may have run elsewhere, and their `rows` together; `merged`,
    where that was done here: into which folder, and how many rows it wrote."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    merged: dict[str, dict[str, Any]] = {}
    for path in sorted((root / SHARDS).glob(f"*/{STORE.name}")):
        shard = Shard.read(path.parent.name, "-of-")
        async with open_for_reading(path) as database:
            if database is not None:
                numbers = await runs.run_ids(database, workflow)
            else:
                numbers = []
            for number in reversed(numbers):  # the newest one comes last
                assert database is not None
                record = await runs.run_record(database, number)
                if shard is None:
                    merged[record.workflow] = _merged(root, record)
                    continue
                key = record.workflow, shard.of
                one = found.setdefault(
                    key, {"workflow": record.workflow, "of": shard.of, "shards": {}}
                )
                one["shards"][str(shard)] = runs.row_counts(await runs.counters(database, number))
    return [
        {
            "workflow": name,
            "of": of,
            "shards": list(one["shards"]),
            "rows": dict(sum(map(Counter, one["shards"].values()), Counter[str]())),
            "merged": merged.get(name),
        }
        for (name, of), one in found.items()
    ]


def _merged(root: Path, record: runs.RunRecord) -> dict[str, Any]:
    """Into which folder a run was merged, and its rows as the summary there tells them."""
    rows: dict[str, int] = {}
    with suppress(OSError, ValueError, RecursionError):
        text = (root / record.output_dir / "summary.json").read_bytes()
        told = read_as(WrittenSummary, json.loads(text))
        if told.workflow == record.workflow and told.shards:
            rows = told.rows._asdict()
    return {"output": record.output_dir, "rows": rows}
