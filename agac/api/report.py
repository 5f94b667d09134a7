"""What is shown of a run: snapshots of its counts while it is at work, and how many rows there are
to work on; then how the invocation ended: its outputs written, its report made, and what finishing
the run takes."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, Literal, Protocol

from agac.api.batches import batch_lines
from agac.api.checked_workflow import CheckedWorkflow
from agac.api.invocation_summary import (
    InvocationBatches,
    InvocationCalls,
    InvocationNotes,
    InvocationRows,
    InvocationSummary,
    InvocationTasks,
    LastFault,
    SelectedRows,
    StaleBatch,
    UnansweredCalls,
    WrittenLines,
)
from agac.api.job_summary import JobSummary
from agac.api.plan import NOT_RECORDED, Quote, planned, quote_of
from agac.api.project import Project
from agac.api.share import push_at_end
from agac.api.status import database_path, go_on, rows_by_remedy, stored_run
from agac.api.sync import blocking
from agac.core.errors import (
    AgacError,
    ErrorType,
    ExitCode,
    Problem,
    RowError,
    StoreError,
    Where,
    any_error,
)
from agac.core.types import JSONValue, Outcome, Report, RowId, WebSource, iso, json_form, waits_left
from agac.data.frames import frame
from agac.data.sources import estimated_rows
from agac.data.tables import TableColumn
from agac.engine.ask.limits import facts as budget_facts
from agac.engine.batch.coordinator import Stale, batch_counts
from agac.engine.finishing import Finishing, finishing
from agac.engine.invocation import Work
from agac.engine.output.export import Exported, export_run, table_of
from agac.engine.output.output_lines import Lines
from agac.engine.output.run_outputs import Outputs, is_shown
from agac.engine.output.telemetry import cost_of, summarise
from agac.engine.run_state import Invocation
from agac.engine.settle import StageTotals, Totals
from agac.engine.stop_rules import StopReason
from agac.engine.summary import RowCounts, RunSummary
from agac.engine.walk.replay import FinalRows
from agac.plan.plan import Plan, Selection
from agac.plan.stage import AnyStage, PlannedStage
from agac.providers.provider import Provider
from agac.spec.graph import StageNode, descent, homes, levels_of
from agac.spec.workflow import Workflow
from agac.store import batches, runs
from agac.store.batches import BatchCount, BatchStep, batches_alike, read_batch, rows_in_batches
from agac.store.db import Database
from agac.store.rows import made_counts, present


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows there are to work on; `exact` when they were counted."""

    rows: int
    exact: bool


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """A stage at a moment: rows that are `settled` need nothing more here, `total` come here as
    far as is known; `counts` are those of this invocation. It `waits_for_batches` where its rate
    says nothing of its end."""

    name: str
    settled: int
    total: RowCount | None
    counts: StageTotals
    waits_for_batches: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at a moment. `unusable` rows failed before any stage; `stopping`: nothing new is
    begun; `waiting_for`: why the last call brought no answer; `waits`: until when no call goes to
    a model, by lane; `batches`: those that are open; `elapsed`: seconds since it is shown."""

    workflow: str
    stages: tuple[StageSnapshot, ...]
    rows: RowCount | None
    settled: int
    unusable: int
    last_error: tuple[RowError, RowId] | None
    stopping: bool
    waiting_for: RowError | None = None
    waits: Mapping[str, str] = field(default_factory=dict)
    batches: tuple[BatchCount, ...] = ()
    elapsed: float | None = None

    @property
    def in_flight(self) -> int:
        """Tasks that are being asked."""
        return sum(stage.counts.in_flight for stage in self.stages)


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run while its rows are worked on. `count_rows` reads the input for a moment, or gives None
    when that would take long; it may be called in a thread. `upstream`: the stages that are
    upstream of each, by name; how many rows come to the `uncounted` ones is not known before they
    are made; those `in_batches` are asked so; `batches` are the open ones as last seen. `exploded`
    are stages that children of lists come to, with the positions of the stages that made those and
    their parents, and `children` what `count_children` last gave."""

    workflow: str
    invocation: Invocation
    count_rows: Callable[[], RowCount | None]
    warnings: list[Problem]
    upstream: Mapping[str, Collection[str]]
    uncounted: Collection[str] = ()
    in_batches: Collection[str] = ()
    batches: list[BatchCount] = field(default_factory=list)
    exploded: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    children: dict[str, tuple[int, int]] = field(default_factory=dict)

    def snapshot(self, counted: RowCount | None = None) -> Snapshot:
        """The run now. `counted` is what `count_rows` gave, once it did."""
        totals = self.invocation.totals
        batches = tuple(self.batches)
        rows = row_count(totals, counted)
        stages = [
            self._stage(name, stage, rows, to_come=bool(batches))
            for name, stage in totals.stages.items()
        ]
        return Snapshot(
            self.workflow,
            tuple(stages),
            rows,
            totals.settled,
            totals.unusable,
            totals.last_error,
            stopping=self.invocation.stop_signal.stop not in (None, StopReason.QUOTE),
            waiting_for=totals.waiting_for,
            waits=waits_left(totals.waits, time.time()),
            batches=batches,
        )

    def _stage(
        self, name: str, stage: StageTotals, rows: RowCount | None, *, to_come: bool
    ) -> StageSnapshot:
        """Rows that came to their end upstream never come here; neither do those that ended in a
        branch beside it without having been here, of which only the number is known, and only
        roughly while others are under way. Those that were parked are `to_come` when it is for
        batches."""
        totals = self.invocation.totals
        made = name in self.uncounted
        settled = stage.settled if made else totals.unchanged + stage.settled
        ended = [totals.stages[other] for other in self.upstream[name] if other in totals.stages]
        never = totals.unusable + totals.rows_dropped
        never += sum(other.failed + other.dropped for other in ended)
        if not to_come:
            never = max(
                never + stage.parked + sum(other.parked for other in ended),
                totals.settled - settled,
            )
        if name in self.in_batches:  # a guard is no progress of what is asked in batches
            settled = settled - stage.skipped - stage.dropped
            never = never + stage.skipped + stage.dropped
        if rows and not made:
            total = RowCount(max(settled, rows.rows - never), rows.exact)
        else:
            total = None
        if name in self.children:
            settled += self.children[name][0]
            total = RowCount(max(settled, self.children[name][1]), exact=True)
        waits = not {name, *self.upstream[name]}.isdisjoint(self.in_batches)
        return StageSnapshot(name, settled, total, stage, waits)


def uncounted(stages: Sequence[StageNode]) -> frozenset[str]:
    """The stages that are asked of rows which other stages make, or may make: explode, group, or
    call functions."""
    home = homes(stages)
    functions = {stage.name for stage in stages if stage.makes == "rows"}
    made = (
        one
        for one in stages
        if one.makes == "kept" or functions.intersection(one.ancestors) or home[one.name]
    )
    return frozenset(one.name for one in made)


def exploded(stages: Sequence[StageNode]) -> dict[str, tuple[int, int | None]]:
    """The stages that children of lists come to, with the positions of the stages that made those
    and their parents (None: they are the input's); none where a function may give other rows."""
    levels = levels_of(stages)
    known = all(stage.makes != "rows" for stage in stages)
    above = {
        one.index: level.origin
        for level in levels.all
        for one in level.makers
        if one.makes == "items" and known
    }
    lists = [
        origin
        for origin in above
        if {level.index for level in descent(stages, stages[origin])} <= above.keys()
    ]
    return {
        stage.name: (origin, above[origin])
        for origin in lists
        for stage in levels.by_origin[origin].stages
    }


async def count_children(run: WatchedRun, database: Database) -> None:
    """Once no row is open of which they are made, so that all children are there: of each stage
    that they come to, how many were settled there before this invocation, and how many come to it
    in all."""
    invocation, totals, tasks = run.invocation, run.invocation.totals, Counter[tuple[str, str]]()
    if (
        invocation.ledger is None
        or not totals.all_read
        or totals.settled < totals.seen
        or totals.rows_parked
    ):
        return
    await invocation.ledger.durable()
    made = await made_counts(database, invocation.run)
    counts = await runs.counters(database, invocation.run)
    for one in counts:
        tasks[one.stage, one.outcome] += one.tasks
    growing: set[int | None] = {None} if runs.row_counts(counts)["open"] else set()
    for name, (origin, above) in run.exploded.items():
        rows = present(made, origin)
        level = [one for one, (other, _) in run.exploded.items() if other == origin]
        # in an earlier invocation
        retried = rows["failed"] > sum(totals.stages[one].failed for one in level)
        if rows["open"] or retried or above in growing:
            growing.add(origin)
        if retried or above in growing:
            continue
        before = [one for one in level if one in run.upstream[name]]
        never = sum(
            tasks[one, outcome] for one in before for outcome in (Outcome.FAILED, Outcome.DROPPED)
        )
        settled = sum(tasks[name, outcome] for outcome in Outcome)
        total = settled + min(rows["open"], rows["total"] - never - settled)
        run.children[name] = settled - totals.stages[name].settled, total


def row_count(totals: Totals, counted: RowCount | None) -> RowCount | None:
    """The best that is known of the number of rows: what was read to the end, was counted, or was
    there last time."""
    if totals.all_read:
        return RowCount(totals.seen, exact=True)
    if counted is None and totals.expected is not None:
        counted = RowCount(totals.expected, exact=False)
    if counted is not None and counted.rows < totals.seen:
        return None  # there are more than anybody thought
    return counted


# a coroutine that shows progress until it is cancelled
Watch = Callable[[WatchedRun], Awaitable[None]]

LOOK_SECONDS = 1.0
"""So often the store is asked for open batches; a provider is asked by the engine alone, at its
own pace."""


async def show_progress(
    watch: Watch,
    plan: Plan,
    invocation: Invocation,
    count: Callable[[], RowCount | None],
    warnings: list[Problem],
    database: Database,
) -> None:
    """Shows a run until cancelled, with its open batches as the store had them a moment ago."""
    upstream = {stage.name: stage.ancestors for stage in plan.stages}
    in_batches = [stage.name for stage in plan.asking if stage.run_mode == "batch"]
    of_lists = exploded(plan.stages)
    beyond = uncounted(plan.stages)
    run = WatchedRun(
        plan.workflow, invocation, count, warnings, upstream, beyond, in_batches, exploded=of_lists
    )

    async def follow() -> None:
        while True:
            with suppress(StoreError):  # whoever works with the store hears of it
                if run.invocation.batches.touched:
                    run.batches[:] = await batches_alike(database, run.invocation.run)
                if run.exploded:
                    await count_children(run, database)
            await asyncio.sleep(LOOK_SECONDS)

    follower = asyncio.ensure_future(follow())
    try:
        await watch(run)
    finally:
        follower.cancel()
        await asyncio.wait({follower})


def counted_or_estimated(checked: CheckedWorkflow, selection: Selection) -> RowCount | None:
    """How many rows are selected; None when only reading all of a large input, or a stream, would
    tell."""
    path = Path(checked.workflow.input.path)
    try:
        if not path.is_file():
            return None
        if path.stat().st_size <= 8 << 20:  # counted in a tenth of a second, beside the first calls
            return RowCount(checked.count(selection), exact=True)
        rows = estimated_rows(path) if checked.workflow.input.sql is None else None
    except (OSError, AgacError):  # whoever reads the rows meets it too, and says it
        return None
    if rows is None:
        return None
    return RowCount(selection.taken(max(0, rows - selection.offset)), exact=False)


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A row of a run: its `result` where it is `ok`, None where all of it was skipped; else its
    `error`. `row_number` counts rows of the input from 1, None of one that stages made; `input`
    has the fields that it came with. `sources` are the pages that searches of providers found for
    its answers, by stage."""

    id: RowId
    row_number: int | None
    ok: bool
    result: Any
    error: RowError | None
    input: dict[str, JSONValue] | None
    sources: Mapping[str, Sequence[WebSource]] = field(default_factory=dict)


def result_reader(kind: Any) -> Callable[[RowId, JSONValue], Any]:
    """Makes of a row's stored result, by the row's id, an instance of the type `kind`; None: what
    JSON says. Raises AgacError where the type no longer takes it."""
    if kind is None:
        return lambda _, value: value
    from pydantic import TypeAdapter, ValidationError  # heavy

    adapter = TypeAdapter[Any](kind)

    def read(row_id: RowId, value: JSONValue) -> Any:
        try:
            return adapter.validate_json(json.dumps(value))
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]["msg"]
            what = f"row {row_id!r}: the stored result is not what its model takes: {wrong}"
            raise AgacError(
                what, remedy="Take the model as it was, or run again with fresh=True."
            ) from error

    return read


class Sink(Protocol):
    """What takes results elsewhere (`RunReport.write_to`), by ids: they come again when a program
    is started again."""

    def write(self, rows: Sequence[ResultRow]) -> None:
        """Takes some rows, a thousand at most, in the order of the outputs."""

    def commit(self) -> None:
        """Shows what was written, once all rows are."""

    def abort(self) -> None:
        """Takes back what was written, as far as it can: a row, or the sink itself, failed on the
        way."""


@blocking
async def _spooled(root: Path, run: int) -> IO[str]:
    """The lines of a run's results with their input, in a file that ends with this process."""
    async with stored_run(root, run) as (database, record):
        folder = database_path(root).parent
        file = TemporaryFile(  # noqa: SIM115
            "w+", dir=folder, encoding="utf-8", errors="backslashreplace", newline="\n"
        )
        final = FinalRows(await runs.definition_of(database, run), inputs=True, sources=True)
        async for rows in final.rows(database, record.id):
            file.writelines(
                line.replace("\n", " ") + "\n" for line in Lines(rows, include_input=True).results
            )
    file.seek(0)
    return file


@blocking
async def _table(root: Path, run: int) -> tuple[Sequence[TableColumn], list[list[JSONValue]]]:
    async with stored_run(root, run) as (database, record):
        return await table_of(database, record, root)


@dataclass(frozen=True, slots=True)
class RunReport(Report):
    """How an invocation ended: `record` is the run's summary, `invocation_record` what this one
    did.
    `stop` says why it ended before its rows did: `interrupt`, `fatal`, `limit` or `loss`;
    `stopped` is that in words. At a limit `finishing` estimates what the open rows need.
    `not_written` is why a table could not be written beside the `files`; `replaced` is the run
    whose results they replaced, `edited` are those that somebody had changed, and `copies` the
    files that keep the changes, in the same order. `quote` is what the rest of a row run costs,
    where its first rows were run to find out. `empty` are the stages that were to have a result
    (`on_empty`) and have none. `project` is the project's folder, `kind` the type of results as
    far as Pydantic models tell it. `go_on` is the command that goes on with a shard."""

    JSON_KEYS = (
        "**summary",
        "invocation",
        "exit_code",
        "files",
        "stop",
        "stopped",
        "finishing",
        "not_written",
        "replaced",
        "edited",
        "empty",
    )

    record: RunSummary
    invocation_record: InvocationSummary
    exit_code: ExitCode
    files: list[Path]
    stopped: str | None = None
    warnings: list[Problem] = field(default_factory=list)
    stop: str | None = None
    finishing: Finishing | None = None
    not_written: (
        Annotated[AgacError, lambda one: {"message": one.message, "remedy": one.remedy}] | None
    ) = None
    replaced: dict[str, Any] | None = None
    edited: tuple[Path, ...] = ()
    copies: tuple[Path, ...] = ()
    empty: Annotated[
        list[Problem],
        lambda found: [{"severity": one.severity, "message": one.message} for one in found],
    ] = field(default_factory=list)
    quote: Quote | None = None
    project: Path = field(default=Path(), repr=False)
    kind: Any = None
    go_on: str = field(default="", repr=False)
    job: JobSummary | None = None
    """What the summary of a row run says besides; None for a run of a workflow."""

    def __repr__(self) -> str:
        of = self.record
        counts = self.rows._asdict() | {"rows": self.rows.total}
        facts = [
            f"{counts[name]:,} {name}" for name in ("rows", *RowCounts._fields[1:]) if counts[name]
        ] or ["no rows"]
        facts += [f"exit code {self.exit_code:d}"] + (
            [f"stopped: {self.stopped}"] if self.stopped else []
        )
        facts += [f"results in {of.request.output}"] if self.files else []
        return f"<run {of.run} of {of.workflow}: {', '.join(facts)}>"

    @property
    def invocation(self) -> dict[str, Any]:
        """The `invocation_record` as JSON, made anew at each call."""
        return self.invocation_record.as_json()

    @property
    def summary(self) -> dict[str, Any]:
        """The `record` as JSON, which `summary.json` holds; of a row run with what its `job` adds.
        Made anew at each call: what is changed in it changes nothing."""
        whole = self.record.as_json()
        if self.job is None:
            return whole
        job = self.job.as_json()
        return job | {key: value for key, value in whole.items() if key not in job}

    def results(self) -> Iterator[ResultRow]:
        """The rows of the run as the store has them now, finished or not, in the order of its
        outputs and with no more in memory than one. Where a Pydantic model is the schema of a
        result, that is an instance of it. Raises AgacError for a stored result that the model no
        longer takes."""
        read = result_reader(self.kind)
        with _spooled(self.project, self.record.run) as lines:
            for row in map(json.loads, lines):
                if row["error"]:
                    row["error"] = RowError(
                        ErrorType(row["error"]["type"]), row["error"]["message"]
                    )
                elif row["result"] is not None:
                    row["result"] = read(row["id"], row["result"])
                sources = {
                    stage: [WebSource(**one) for one in found]
                    for stage, found in row.pop("sources").items()
                }
                yield ResultRow(**row, sources=sources)

    def write_to(self, sink: Sink) -> None:
        """Writes the rows of `results` into a sink and commits it. Whatever is raised on the way
        aborts it first."""
        rows = self.results()
        try:
            while some := list(islice(rows, 1_000)):
                sink.write(some)
            sink.commit()
        except BaseException:
            sink.abort()
            raise

    def to_pandas(self) -> Any:
        """The table of the run, as `output.format: csv` has it: each row's fields, its result's,
        and its error."""
        return frame("pandas", *_table(self.project, self.record.run))

    def to_polars(self) -> Any:
        """The same for polars."""
        return frame("polars", *_table(self.project, self.record.run))

    def to_arrow(self) -> Any:
        """The same as a table of pyarrow."""
        return frame("pyarrow", *_table(self.project, self.record.run))

    @property
    def rows(self) -> RowCounts:
        """The rows of the run, those of the input."""
        return self.record.rows

    @property
    def rows_by_remedy(self) -> Counter[str]:
        """What the failed rows of the run need."""
        return rows_by_remedy(self.record.errors)


async def report_of(
    database: Database,
    work: Work,
    invocation: Invocation,
    warnings: list[Problem],
    workflow: Workflow | None = None,
    *,
    writes: bool = True,
    count: Callable[[], RowCount | None] | None = None,
) -> RunReport:
    """How an invocation ended; writes the run's outputs where they are to be replaced, and the
    invocation `writes`. `workflow` says where its keys stand; without it they are named alone.
    `count` tells how many rows are selected, where not all of them were read."""
    record = await runs.run_record(database, invocation.run)
    summary = await summarise(database, record)
    rows = summary.rows.total
    exported = Exported(Outputs(record, work.root, rows).files())
    stop = invocation.stop_signal.stop if not invocation.complete else None
    in_batches = await _batches_of(database, invocation, work.batching.providers)
    # A finished run replaces outputs, one that only waits for people, and one that met a limit of
    # its user's: a run that a bad key stopped must not empty the folder of an earlier one.
    for_people = _waits_for_people_alone(work, invocation, in_batches)
    replaced = writes and (invocation.complete or for_people or stop is StopReason.LIMIT)
    if replaced and not is_shown(record, work.root, rows):
        exported = await export_run(database, record, work.root, summary, work.env)
    reused = {one.name for one in summary.stages if one.tasks.reused or invocation.totals.unchanged}
    names = [
        stage.name for stage in work.plan.stages if stage.tooling.record and stage.name in reused
    ]
    notes = InvocationNotes()
    if names:
        notes = replace(notes, not_recorded=NOT_RECORDED.format(", ".join(names)))
    if count is not None and not invocation.totals.all_read:
        selected = count()
    else:
        selected = None
    if selected is not None and selected.rows > rows:
        notes = replace(notes, rows_selected=SelectedRows(selected.rows, selected.exact))
    if replaced and stop is not None and exported.lines is not None:
        notes = replace(notes, written=WrittenLines(exported.lines))
    if invocation.complete and rows:
        empty = _empty(work.plan, summary, workflow)
    else:
        empty = []
    if exported.not_written is not None:
        code = ExitCode.FAILED
    else:
        code = invocation.exit_code
    if code is ExitCode.DONE:  # nothing stopped it
        if in_batches.undecided:  # a batch waits for its user
            code = ExitCode.NOT_READY
        elif invocation.finished and summary.any_row_failed:
            code = ExitCode.ROWS_FAILED
    if code in (ExitCode.DONE, ExitCode.ROWS_FAILED) and any_error(empty):
        code = ExitCode.FAILED
    return RunReport(
        summary,
        replace(_did(invocation), batches=in_batches, notes=notes),
        code,
        exported.files if replaced else [],
        invocation.stop_signal.why or None if stop else None,
        warnings,
        stop.value if stop else None,
        await _finishing(database, work, invocation, summary) if stop is StopReason.LIMIT else None,
        exported.not_written,
        await _replaced(database, exported),
        tuple(exported.edited),
        tuple(exported.edited.values()),
        empty,
        await quote_of(database, work, summary) if stop is StopReason.QUOTE else None,
        work.root,
        _kind_of(work.plan.ends),
    )


def _waits_for_people_alone(
    work: Work, invocation: Invocation, in_batches: InvocationBatches
) -> bool:
    """Whether an invocation did all that it could, so that what is left waits for people and
    nothing else."""
    waits = invocation.ended and not invocation.complete and invocation.totals.reviews > 0
    for_batches = in_batches.open or in_batches.waits_for or invocation.held_back
    others = for_batches or invocation.waits
    return bool(waits and work.scope.stages is None and not others)


def _kind_of(ends: Sequence[AnyStage]) -> Any:
    """The type of results, as far as Pydantic models tell it; None where none does."""
    kinds: dict[str, Any] = {}
    for stage in ends:
        model: Any = stage.model if isinstance(stage, PlannedStage) else None
        kinds[stage.name] = (
            list[model] if model and stage.replicas > 1 and stage.vote is None else model
        )
    if len(kinds) == 1 or not any(kinds.values()):
        return next(iter(kinds.values()), None)
    # pydantic brings it, and takes no other before Python 3.12
    from typing_extensions import TypedDict

    return TypedDict(
        "Results", {name: kind | None if kind else Any for name, kind in kinds.items()}
    )  # type: ignore[operator]


async def _finishing(
    database: Database, work: Work, invocation: Invocation, summary: RunSummary
) -> Finishing:
    """The estimate of what the open rows need, and a limit in place of the one that was reached."""
    retry = work.retry
    totals = invocation.totals
    scope = work.scope if retry else replace(work.scope, retry_failed=False)
    of_input = retry is None and work.batching.resume_run is None
    left = await planned(
        database, work.plan, scope, work.rows if of_input else None, run=invocation.run, retry=retry
    )  # fmt: skip
    if retry is None:
        counts = summary.rows
        settled = counts.done + counts.skipped + counts.failed + counts.dropped
        rows = left.rows["total"] - settled
    else:
        rows = (
            sum(count for _, _, count in invocation.chosen) - totals.rows_done - totals.rows_failed
        )
    return finishing(left, max(rows, 0), totals.rows_failed, invocation.budgets)


def _empty(plan: Plan, summary: RunSummary, workflow: Workflow | None) -> list[Problem]:
    found = []
    for stage, count in zip(plan.stages, summary.stages, strict=True):
        if stage.on_empty is not None and not count.tasks.done + count.tasks.reused:
            message = f"no row has a result of stage {stage.name!r}"
            severity: Literal["error", "warning"] = (
                "error" if stage.on_empty == "error" else "warning"
            )
            written = workflow.stages[stage.index] if workflow is not None else None
            if written:
                where = written.at("on_empty")
            else:
                where = Where(plan.workflow, path=f"{stage.name}.on_empty")
            found.append(Problem(where, message, severity))
    return found


async def _replaced(database: Database, exported: Exported) -> dict[str, Any] | None:
    """The run whose results stood in the folder, its input, and the command that writes them there
    again."""
    if exported.replaced is not None:
        before = await runs.read_run(database, exported.replaced)
    else:
        before = None
    if before is None:
        return None
    source = (await runs.definition_of(database, before.id))["input"]["path"]
    flag = "" if before.finished_at is not None else " --partial"
    return {"run": before.id, "input": source, "again": f"agac export --run {before.id}{flag}"}


def _did(invocation: Invocation) -> InvocationSummary:
    """Tells what an invocation did, without its batches."""
    totals = invocation.totals
    fault = totals.waiting_for
    at_limit = invocation.stop_signal.stop is StopReason.LIMIT and not invocation.ended
    budgets = invocation.budgets
    return InvocationSummary(
        continued=invocation.continued,
        complete=invocation.complete,
        lost_calls_at_most=invocation.lost_calls,
        rows=InvocationRows(
            read=totals.seen,
            unchanged=totals.unchanged,
            done=totals.rows_done,
            failed=totals.rows_failed,
            skipped=totals.rows_skipped,
            dropped=totals.rows_filtered + totals.rows_dropped,
            left_failed=totals.left_failed + totals.failed_for_good,
            parked=totals.rows_parked,
        ),
        tasks=InvocationTasks(totals.tasks_done, totals.tasks_reused, totals.collapsed),
        calls=InvocationCalls(totals.calls, totals.retries, totals.repairs, totals.fallbacks),
        waiting_for=LastFault(fault.type, fault.message) if fault is not None else None,
        unanswered=UnansweredCalls(totals.given_up, totals.ambiguous + totals.given_up),
        stopped_at_limit=at_limit,
        cost_usd=cost_of(totals.cost, totals.unpriced),
        budgets=tuple(budget_facts(budgets.balances)) if budgets else (),
        waits_for_shards=invocation.waits,
    )


async def _batches_of(
    database: Database, invocation: Invocation, providers: Mapping[str, Provider]
) -> InvocationBatches:
    """Tells what the invocation did with batches, and which of its run's are open."""
    done = invocation.batches
    run = invocation.run
    if done.touched:
        views = await batches.batches(database, run=run, closed=True)
    else:
        views = []
    lines = await batch_lines(database, providers, views)
    waiting = [line for line in lines if line.waits is not None and line.batch.open]
    records = [await read_batch(database, number) for number in done.ingested]
    tries = [line.batch.try_at for line in waiting if line.batch.try_at is not None]
    undecided = [line for line in lines if line.batch.state == BatchStep.NEEDS_HUMAN]
    awaited = await batches.awaited(database, run) if done.touched else []
    return InvocationBatches(
        submitted=tuple(line.as_json() for line in lines if line.batch.id in done.submitted),
        waiting=tuple(line.as_json() for line in waiting),
        undecided=tuple(line.as_json() for line in undecided),
        stale=tuple(stale_facts(done.stale, providers)),
        ingested=tuple(batch_counts(record) for record in records),
        open=json_form((await batches.open_batches(database)).get(run)),
        next_try_at=iso(min(tries, default=None)),
        rows_in_batches=await rows_in_batches(database, run) if done.touched else 0,
        waits_for=tuple(one._asdict() for one in awaited),
        tasks_held_back=invocation.held_back,
    )


def stale_facts(stale: Stale, providers: Mapping[str, Provider]) -> list[StaleBatch]:
    """Lists batches with requests that are no longer needed."""
    found = []
    for one, count in stale:
        held = one.held_usd * count / max(one.tasks, 1) if one.priced else None
        simulated = one.provider in providers and providers[one.provider].simulated
        found.append(StaleBatch(one.id, one.provider_id, count, held, simulated))
    return found


async def leave_in_remote(
    database: Database, opened: Project, work: Work, invocation: Invocation, report: RunReport
) -> RunReport:
    """Leaves in the remote what an invocation did; adds to the report of a shard the command that
    continues it."""
    if work.sharding is None:
        await push_at_end(database, opened)
        return report
    needs = report.finishing
    more = dict[str, Any]()
    if needs is not None and needs.stage is None:
        if needs.max_errors is None:
            more = {"budget": needs.budget}
        else:
            more = {"max_errors": needs.max_errors}
    command = go_on(await runs.run_record(database, invocation.run), more)
    from agac.engine.sharding.shard_run import ShardEnd  # only shards need a remote

    end = ShardEnd(
        run=invocation.run,
        rows_failed=invocation.totals.rows_failed,
        ended=invocation.ended,
        complete=invocation.complete,
        has_batches=invocation.batches.touched,
        why=invocation.stop_signal.why,
        exit_code=report.exit_code,
        summary=report.record,
        command=command,
    )
    await work.sharding.end(database, opened.root, end)
    return replace(report, go_on=command)
