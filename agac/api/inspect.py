"""`agac runs`, `agac inspect`, `agac show` and `agac export`: runs; one row of a run with every
task, its prompts, its parents and children; results read from the store, and files written from
it."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.status import (
    database_bytes,
    database_files,
    database_path,
    find_rows,
    find_run,
    full_report,
    go_on,
    no_runs_yet,
    position_of,
    refuse_unknown,
    runs_in_shards,
    state_of,
    stored_run,
    this_shard,
    workflow_name,
)
from agac.api.sync import blocking
from agac.core.errors import REPAIRED, RowError, UsageError
from agac.core.keys import canonical, digest
from agac.core.types import Message, Outcome, Report, RowId, iso, json_form
from agac.data.files import PREFIX, AtomicFile, refuse_target, write_whole
from agac.data.sinks import FORMATS
from agac.engine.ask.validate import complaint, stored_failure
from agac.engine.decide.votes import votes
from agac.engine.output.export import export_file, export_run
from agac.engine.output.output_lines import Lines
from agac.engine.output.run_outputs import Outputs
from agac.engine.output.telemetry import calls_of, output_of, share, summarise
from agac.engine.walk.replay import FinalRows, RowHistory
from agac.plan.changes import changes_of
from agac.plan.stage import RecordedStage, recorded_stages
from agac.spec.operations import Vote
from agac.spec.paths import project_root
from agac.spec.templates import MissingField
from agac.store import history
from agac.store.batches import OpenBatches, RowTask, open_batches
from agac.store.db import Database, grouped, open_for_reading
from agac.store.history import CallRecord, Origin, TaskRecord
from agac.store.rows import State, StoredRow, all_rows, group_sizes, kept_rows
from agac.store.runs import (
    RunRecord,
    counters,
    definition_of,
    row_counts,
    run_record,
    run_settings_of,
)
from agac.store.writer import open_database


@dataclass(frozen=True, slots=True)
class RunsReport(Report):
    """Runs, the one last worked on first. `total` counts those too that were left out; `sharded`
    are the runs whose shards have stores in this folder, as `runs_in_shards` has them."""

    project: Path
    database_bytes: int
    total: int
    runs: list[dict[str, Any]]
    sharded: list[dict[str, Any]] = field(default_factory=list)


@blocking
async def runs(
    workflow: str | None = None, *, newest: int | None = None, project: Path | str | None = None
) -> RunsReport:
    """Runs of one workflow or all, with what changed between them. Raises UsageError for no such
    workflow."""
    root = project_root(project)
    workflow = workflow_name(workflow)
    path = database_path(root)
    async with open_for_reading(path) as database:
        await refuse_unknown(database, root, workflow)
        if this_shard() is None:
            sharded = await runs_in_shards(root, workflow)
        else:
            sharded = []
        if database is None:
            return RunsReport(root, database_bytes(path), 0, [], sharded)
        lines = await history.run_lines(database, None)
        batches = await open_batches(database)
        wanted = [line for line in lines if workflow in (None, line.workflow)]
        before = dict[int, history.RunLine | None]()
        last = dict[str, history.RunLine]()
        for line in sorted(lines):
            before[line.id], last[line.workflow] = last.get(line.workflow), line
        found = [
            await _line_report(database, line, before[line.id], batches.get(line.id))
            for line in wanted[:newest]
        ]
    return RunsReport(root, database_bytes(path), len(wanted), found, sharded)


async def _line_report(
    database: Database,
    line: history.RunLine,
    before: history.RunLine | None,
    batches: OpenBatches | None,
) -> dict[str, Any]:
    record, _, state = await state_of(database, await run_record(database, line.id), batches)
    counts = await counters(database, line.id)
    changes = list[str]()
    if before is not None and before.definition_hash != line.definition_hash:
        bodies = await history.definitions(database, [before.definition_hash, line.definition_hash])
        changes = [
            one.text
            for one in changes_of(bodies[before.definition_hash], bodies[line.definition_hash])
        ]
    return {
        "run": line.id,
        "workflow": line.workflow,
        "state": state,
        "open_batches": json_form(batches),
        "selection": record.selection,
        "rows": row_counts(counts),
        "calls": calls_of(counts).as_json(),
        "started_at": iso(record.created_at),
        "last_worked_at": iso(line.last_at),
        "output": output_of(record),
        "compared_with": before.id if before else None,
        "changes": [*changes, *(["--fresh"] if before and line.fresh_since is not None else [])],
    }


@dataclass(frozen=True, slots=True)
class InspectReport(Report):
    """A run (as `status` gives it, with its definition) and, when a row was named, the rows that
    have its id."""

    project: Path
    run: dict[str, Any]
    rows: list[dict[str, Any]] | None

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        if self.rows is None:
            return {"project": str(self.project), **self.run}
        about = {key: self.run[key] for key in ("workflow", "run", "state")}
        return {"project": str(self.project), **about, "rows": self.rows}


@blocking
async def inspect(
    run: int | str = "last",
    row: int | str | None = None,
    *,
    stage: str | None = None,
    project: Path | str | None = None,
) -> InspectReport:
    """A run by its number, or the one last worked on; with `row` every stage, attempt, prompt and
    reply of that row. A `row` that reads like a number finds the row numbers of an input without
    `id_field`, too. Changes nothing. Raises UsageError for a run, a row or a stage that does not
    exist."""
    root = project_root(project)
    async with stored_run(root, run) as (database, record):
        definition = await definition_of(database, record.id)
        if stage is not None:
            position_of(stage, [body["name"] for body in definition["stages"]], "--stage")
        report = {**await full_report(database, record), "definition": definition}
        remote = (await run_settings_of(database, record.id) or {}).get("remote")
        if remote:
            report["remote"] = remote
        if row is not None:
            stages = recorded_stages(definition)
            named = await find_rows(database, record.id, [row])
            rows = [await row_report(database, record.id, stages, one, stage) for one in named]
            # they came to the stage
            met = rows if stage is None else [one for one in rows if one["stages"]]
            return InspectReport(root, report, met or rows)
    if stage is not None:
        report["stages"] = [body for body in report["stages"] if body["name"] == stage]
        report["errors"] = [error for error in report["errors"] if error["stage"] == stage]
        report["definition"] = {
            **definition,
            "stages": [one for one in definition["stages"] if one["name"] == stage],
        }
    return InspectReport(root, report, None)


@blocking
async def show(
    run: int | str = "last",
    workflow: str | None = None,
    *,
    row: int | str | None = None,
    head: int = 20,
    project: Path | str | None = None,
) -> InspectReport:
    """The first `head` results of a run in the order of its outputs, whether it is finished or
    not, as `results.jsonl` has them; with `row` those of the row with this id, or of the rows that
    were made of it, with their input and the sources of their answers. Changes nothing. Of the
    store no more is read than is shown, and open rows before that. Raises UsageError for a run or
    a row that does not exist."""
    root = project_root(project)
    async with stored_run(root, run, workflow) as (database, record):
        report = await full_report(database, record)
        full = row is not None
        sources = full or bool(record.outputs.get("sources"))
        final = FinalRows(await definition_of(database, record.id), inputs=full, sources=sources)
        if row is not None:
            named = await find_rows(database, record.id, [row])
        else:
            named = []
        shown = {one.key for one in named}
        found = list[str]()
        tops = [(await history.rows_above(database, one) or [one])[-1].key for one in named]
        for top in dict.fromkeys(tops) if full else [None]:
            async for rows in final.rows(database, record.id, top=top):
                rows = [one for one in rows if not full or top in shown or one.key in shown]
                if full:
                    rows = [one._replace(sources=one.sources or None) for one in rows]
                else:
                    rows = rows
                found += Lines(rows, full).results
                if len(found) >= head:
                    break
    return InspectReport(root, report, [json.loads(line) for line in found[:head]])


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
    """Writes a run's output files again, from the store: the newest run of `workflow`, or the one
    numbered `run`. With `to` only its results, into this file; its `format` is one of `FORMATS`;
    None: what its suffix says. The run's own outputs and the store are left as they are, and an
    existing file is only replaced with `force`. A run with open rows is refused unless `partial`,
    and without `to` one that writes no files, as that of a task. Gives the summary and the files.
    """
    root = project_root(project)
    path = database_path(root)
    file = Path(to) if to is not None else None
    if str(file) == "-":
        raise UsageError("to='-': only the command line prints results", remedy="Name a file.")
    kind = format or (file.suffix[1:].lower() if file is not None else "")
    if file is not None and kind not in FORMATS:
        what = f"{kind!r} is not a format" if kind else "its name tells no format"
        raise UsageError(
            f"--to {file}: {what}", remedy=f"Choose one with --format: {', '.join(FORMATS)}."
        )
    if not path.exists():
        raise no_runs_yet(path)
    async with open_database(path) if file is None else open_for_reading(path) as database:
        if database is None:
            raise no_runs_yet(path)
        record = await find_run(database, workflow, run)
        if record.finished_at is None and not partial:
            raise UsageError(
                f"run {record.id} of {record.workflow} is not finished",
                remedy=f"Finish it with `{go_on(record)}`, or write what is there with --partial.",
            )
        if file is None and record.outputs.get("places") == {}:
            what = f"run {record.id} of {record.workflow} writes no files"
            either = (
                f"agac export --run {record.id} --to FILE, or agac.export(run={record.id}, to=FILE)"
            )
            raise UsageError(what, remedy=f"Name one for its results: {either}.")
        summary = await summarise(database, record)
        if file is not None:
            files = Outputs(record, root, 0).files()
            theirs = "an output of the run, which `agac export` writes"
            own = dict.fromkeys(database_files(path), "the database itself") | dict.fromkeys(
                files, theirs
            )
            refuse_target(file, own, f"{record.workflow}.{kind}", force=force)
            await export_file(database, record, root, file, kind)
            return summary.as_json(), [file]
        # with what reads a project's files: other commands need none of it
        from agac.api.project import environment

        exported = await export_run(database, record, root, summary, environment(root)[0])
    if exported.not_written is not None:
        raise exported.not_written
    return summary.as_json(), exported.files


# One row of a run.

STATES = {
    State.PENDING: "open", State.DONE: "done", State.FAILED: "failed", State.DROPPED: "dropped",
    State.FILTERED: "dropped", State.SKIPPED: "skipped",
}  # fmt: skip

MAX_IDS = 1000  # ids of children, parts or members that are listed for each stage
STALE = "the row, or an answer before this one, changed since; the next run runs it again"

_CHILDREN = {"items": "child", "rows": "child", "kept": "kept", "groups": "group"}


class ShownPrompt(NamedTuple):
    """A stage's prompt for a row, or a `note` why it has none, and the fingerprints: the task's,
    then its replicas'."""

    messages: tuple[Message, ...] | None
    note: str | None
    prints: tuple[bytes | None, ...] = (None,)

    def print_of(self, replica: int) -> bytes | None:
        """The fingerprint of a replica, counted from 1; of 0 the task's own."""
        return self.prints[replica if replica < len(self.prints) else 0]


async def row_report(
    database: Database,
    run: int,
    stages: Sequence[RecordedStage],
    row: StoredRow,
    only: str | None,
    *,
    asked: bool = True,
) -> dict[str, Any]:
    """The row with its stages, or `only` one; `asked`: also where a reused answer was asked for: a
    pass over all."""
    known = await RowHistory.read(database, run, stages, row)
    attempts = grouped(
        await history.calls_of_row(database, row.key), lambda record: record.call.attempt.stage
    )
    turns: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for position, turn in await history.turns_of_row(database, row.key):
        turns[position].append(turn)
    tasks = [*known.tasks.values(), *known.replicas.values()]
    reused = [
        task.result_id
        for task in tasks
        if task.outcome == Outcome.REUSED and task.result_id is not None
    ]
    origins = await history.origins(database, reused if asked else [])
    found: list[dict[str, Any]] = []
    for stage in known.stages_met():
        prompt = _prompt(known, stage)
        task = known.tasks.get(stage.index)
        if only in (None, stage.name):
            report = _stage_report(known, stage, prompt, attempts.get(stage.index, ()), origins)
            found.append(report | ({"turns": turns[stage.index]} if stage.index in turns else {}))
        known.learn(stage, task if task and task.fingerprint in (None, prompt.prints[0]) else None)
    return {
        "id": row.id,
        "occurrence": max(row.occurrence, 0),
        "row_number": row.ordinal,
        "in_input": row.ordinal is not None,
        "state": STATES[State(row.state)],
        **(
            {"kept_row": (await kept_rows(database, run, [row.id]))[row.id]}
            if row.state == State.DROPPED
            else {}
        ),
        "error": error_of(row),
        "fields": json.loads(row.data),
        "stages": found,
        **await _relatives(database, stages, row),
    }


MAX_SPANS = 1000  # calls of a row that are shown by their times
MAX_SAME = 20  # rows of one id that are shown on a page


@blocking
async def row_page(
    run: int | str, row: RowId, *, project: Path | str | None = None
) -> tuple[RunRecord, list[dict[str, Any]]]:
    """A run, and the rows with an id, MAX_SAME at most: each as `inspect` has it, but for where
    reused answers were asked, and as its `trace` the first MAX_SPANS calls of models and tools by
    their time. Raises UsageError."""
    async with stored_run(project_root(project), run) as (database, record):
        stages = recorded_stages(await definition_of(database, record.id))
        found = []
        for one in (await find_rows(database, record.id, [row]))[:MAX_SAME]:
            report = await row_report(database, record.id, stages, one, None, asked=False)
            found.append(
                {**report, "trace": await history.spans_of_row(database, one.key, MAX_SPANS)}
            )
        return record, found


_TRACE = re.compile(rf"[A-Za-z0-9._-]+-[0-9a-f]{{8}}\.json|{re.escape(PREFIX)}.*")


def refuse_foreign(folder: Path) -> None:
    """Traces are replaced: raises UsageError where a folder holds what no export made, or its list
    without any."""
    if folder.is_dir():
        names = sorted(path.name for path in folder.iterdir())
    else:
        names = ["a file"] * folder.exists()
    own = list(filter(_TRACE.fullmatch, names))
    others = [name for name in names if name not in own and (name != "manifest.jsonl" or not own)]
    if others:
        what = f"--export-traces {folder}: {others[0]} was made by no export"
        raise UsageError(what, remedy="Name an empty folder, or a new one.")


async def write_traces(
    database: Database, run: int, folder: Path, clean: Callable[[str], str]
) -> None:
    """Writes a file for each row of a run into a folder, with all that `inspect` knows of it, and
    `manifest.jsonl` with the file of each. `clean` takes secrets out."""
    stages = recorded_stages(await definition_of(database, run))
    folder.mkdir(parents=True, exist_ok=True)
    manifest = AtomicFile(folder / "manifest.jsonl", "")
    try:
        async for row in (row async for rows in all_rows(database, run) for row in rows):
            shown = re.sub(r"[^A-Za-z0-9._-]+", "_", str(row.id))[:60].strip("._") or "row"
            about = {"run": run, **await row_report(database, run, stages, row, None)}
            name = f"{shown}-{digest(canonical([row.id, row.occurrence])).hex()[:8]}.json"
            write_whole(
                folder / name, clean(f"{json.dumps(about, indent=1, ensure_ascii=False)}\n")
            )
            line = {
                "id": row.id,
                "row_number": about["row_number"],
                "state": about["state"],
                "file": name,
            }
            manifest.append(f"{clean(json.dumps(line, ensure_ascii=False))}\n")
        manifest.commit()
    finally:
        manifest.abort()


async def _relatives(
    database: Database, stages: Sequence[RecordedStage], row: StoredRow
) -> dict[str, Any]:
    """How the row came to be: `relation` is input, child, kept, group or part, `made_by` the
    stage; `parents` are the nearest first. `children` and `groups` are what was made of it.
    `members` is None unless it is a group: of how many rows that is made, and how many it lacks,
    since they failed before they came to it."""

    def made(one: StoredRow) -> dict[str, Any]:
        if one.origin is None:
            return {"relation": "input", "made_by": None}
        maker = stages[one.origin]
        is_part = one.place is not None and one.place < 0
        return {
            "relation": "part" if is_part else _CHILDREN[maker.makes or "items"],
            "made_by": maker.name,
        }

    how = made(row)
    members = None
    children = []
    above = await history.rows_above(database, row)
    for below in await history.rows_below(database, row.key, MAX_IDS):
        maker = stages[below.origin]
        words: Counter[str] = Counter()
        for state, count in below.states.items():
            words[STATES[State(state)]] += count
        relation = "part" if below.parts else _CHILDREN[maker.makes or "items"]
        states = {"count": words.total(), "states": dict(words), "ids": below.ids}
        children.append({"made_by": maker.name, "relation": relation, **states})
    if how["relation"] == "group":
        size = (await group_sizes(database, [row.key])).get(row.key)
        members = {
            "count": size.rows if size else 0,
            "failed": size.failed if size else 0,
            "ids": await history.member_ids(database, row.key, False, MAX_IDS),
            "failed_ids": await history.member_ids(database, row.key, True, MAX_IDS),
        }
    groups = await history.groups_of_row(database, row.key)
    return {
        **how,
        "row_number": (above[-1] if above else row).ordinal,
        "place": row.place if how["relation"] == "child" else None,
        "parents": [{"id": one.id, **made(one)} for one in above],
        "children": children,
        "members": members,
        "groups": [{"id": name, "made_by": stages[origin].name} for origin, name in groups],
    }


def _prompt(known: RowHistory, stage: RecordedStage) -> ShownPrompt:
    if known.row.origin is None and json.loads(known.row.data) is None:
        return ShownPrompt(None, "this record of the input could not be read")
    lacking = known.unknown(stage.ancestors)
    if lacking:
        left = any(
            one.name == lacking[0] and known.outcome(one) == Outcome.DROPPED for one in known.stages
        )
        why = "made the row leave" if left else "has no answer"
        return ShownPrompt(None, f"stage {lacking[0]!r}, upstream of this one, {why}")
    try:
        if stage.operation is not None:
            return ShownPrompt((), None, (known.fingerprint(stage),))
        messages, (own, replicas) = known.asked(stage)
    except MissingField as missing:
        return ShownPrompt(None, str(missing))
    return ShownPrompt(messages, None, (own, *replicas))


def _stage_report(
    known: RowHistory,
    stage: RecordedStage,
    rebuilt: ShownPrompt,
    attempts: Sequence[CallRecord],
    origins: Mapping[int, Origin],
) -> dict[str, Any]:
    """A stage with its attempts; where it has replicas with the answer of each, and the vote on
    them."""
    task = known.tasks.get(stage.index)
    stale = bool(task and task.fingerprint and task.fingerprint != rebuilt.prints[0])
    note = json.loads(task.note) if task and task.note else {}
    passed_over = note if "values" in note else None
    prompt = None if stale or passed_over else rebuilt.messages
    replicated = {}
    if stage.replicas > 1:
        replicas = {
            number: known.replicas.get((stage.index, number))
            for number in range(1, stage.replicas + 1)
        }
        if stage.vote is not None and stage.vote.lead:  # those that were asked
            replicas = {number: one for number, one in replicas.items() if one is not None}
        reports = [
            {
                "replica": number,
                "outcome": one.outcome if one else "open",
                "stale": bool(one and one.fingerprint != rebuilt.print_of(number)),
                **(_task_report(one, origins) if one else {}),
            }
            for number, one in replicas.items()
        ]
        voting = [replicas[one["replica"]] for one in reports if one["stale"] == stale]
        replicated = {"vote": _vote(stage.vote, note, voting), "replicas": reports}
    return {
        "name": stage.name,
        "model": stage.model,
        "alias": dict(stage.alias) if stage.alias else None,
        "params": dict(stage.params),
        "outcome": task.outcome if task else "open",
        "stale": stale,
        "passed_over": passed_over,
        "operation": stage.operation.body() if stage.operation else None,
        "traceback": note.get("traceback"),
        **(_task_report(task, origins) if task else {}),
        **(
            {"decided": note.get("review")}
            if stage.operation and stage.operation.key == "review"
            else {}
        ),
        "in_batches": [in_batch(one) for one in known.in_batches if one.stage == stage.index],
        **replicated,
        **({"reviewed": note["review"]} if "review" in note else {}),
        "prompt": json_form(prompt) if prompt else None,
        "prompt_note": STALE if stale else None if passed_over else rebuilt.note,
        "attempts": _attempts(stage, rebuilt, attempts),
    }


def in_batch(task: RowTask) -> dict[str, Any]:
    """The batch that a task is in, or (`waits`) that an equal one is in whose answer it takes."""
    return {
        **({"replica": task.replica} if task.replica else {}),
        "fingerprint": task.fingerprint.hex(),
        **{
            name: getattr(task, name)
            for name in ("waits", "round", "batch", "run", "provider_id", "step")
        },
        "submitted_at": iso(task.submitted_at) if task.provider_id is not None else None,
    }


def _vote(
    vote: Vote | None, note: Mapping[str, Any], replicas: Sequence[TaskRecord | None]
) -> dict[str, Any] | None:
    """How replicas voted, as the task's note says, and which have no vote; None: they did not, or
    in vain."""
    if vote is None or "agreement" not in note or not all(replicas):
        return None
    numbers: dict[str | None, list[int]] = defaultdict(list)
    for number, value in enumerate(votes([one and one.value for one in replicas], vote), 1):
        numbers[value].append(number)
    without = numbers.pop(None, [])
    ordered = sorted(numbers.items(), key=lambda one: -len(one[1]))
    return {
        "field": vote.field,
        "agreement": round(share(note["agreement"]), 4),
        "taken": note["replica"],
        **({"lead": vote.lead, "without": without} if vote.lead else {}),
        "values": [{"value": json.loads(value or ""), "replicas": own} for value, own in ordered],
    }


def _attempts(
    stage: RecordedStage, rebuilt: ShownPrompt, records: Sequence[CallRecord]
) -> list[dict[str, Any]]:
    """Reports each attempt, replica by replica; a re-ask with what it said of the last reply,
    which it quoted."""
    reports: list[dict[str, Any]] = []
    wrong: RowError | None = None
    wrong_in: tuple[int, int] | None = None
    for record in sorted(records, key=lambda record: record.call.attempt.replica):
        call = record.call
        attempt = call.attempt
        said = None
        asked_in = (record.invocation, attempt.replica)
        if attempt.purpose == "repair" and wrong is not None and wrong_in == asked_in:
            error = stored_failure(wrong.type, wrong.message, stage.checks)
            said = complaint(error, wants_json=stage.wants_json)
        is_of_earlier_content = attempt.purpose != "child" and (
            attempt.fingerprint != rebuilt.print_of(attempt.replica)
        )
        reports.append(
            {
                **({"replica": attempt.replica} if attempt.replica else {}),
                "number": attempt.number,
                "invocation": record.invocation,
                "purpose": attempt.purpose,
                "asked_again_with": said,
                "of_earlier_content": is_of_earlier_content,
                **record.as_json(),
                "error": _call_error(call.error),
                "reply": history.reply_text(call.reply),
                "reply_kept": call.reply is not None,
            }
        )
        if call.error is not None and call.error.type in REPAIRED:
            wrong = call.error
            wrong_in = asked_in
    return reports


def _call_error(error: RowError | None) -> dict[str, str] | None:
    """Reports the error of a call; None: it has none."""
    if error is None:
        return None
    return {"type": error.type.value, "message": error.message}


def _task_report(task: TaskRecord, origins: Mapping[int, Origin]) -> dict[str, Any]:
    """What a task came to. A reused result has no run where the row that asked it changed since or
    is gone."""
    origin = origins.get(task.result_id or 0)
    run, row = (origin.run, origin.row_id) if origin else (None, None)
    reused_from = {"run": run, "row": row, "answered_at": iso(task.created_at)}
    answered_by = {
        key: getattr(task, key) for key in ("provider", "model", "base_url", "simulated")
    }
    return {
        "fingerprint": task.fingerprint.hex() if task.fingerprint else None,
        "settled_at": iso(task.settled_at),
        "result": json.loads(task.value) if task.value is not None else None,
        "error": error_of(task),
        "failures": task.failures,
        "answered_by": answered_by if task.provider is not None else None,
        "how": task.how.split(",") if task.how else [],
        **({"sources": json.loads(task.sources)} if task.sources else {}),
        "reused_from": reused_from
        if task.outcome == Outcome.REUSED and task.how != "adopted"
        else None,
    }


def error_of(record: TaskRecord | StoredRow) -> dict[str, Any] | None:
    """Returns the error of a task or a row, or None if it has none."""
    if record.error_type is None:
        return None
    stage = record.error_stage if isinstance(record, StoredRow) else None
    return {
        "type": record.error_type,
        "message": record.error_message,
        **({"stage": stage} if stage else {}),
    }
