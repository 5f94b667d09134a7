"""How an invocation ended: its outputs written, its report made, and an estimate of what finishing
the run takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from agac.api.batches import batch_lines
from agac.api.before_run import not_recorded
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
from agac.api.plan import Quote, planned, quote_of
from agac.api.project import Project
from agac.api.result_rows import ResultRow, Sink, read_results, result_table
from agac.api.share import push_at_end
from agac.api.status import go_on, rows_by_remedy
from agac.api.watched_run import RowCount
from agac.core.errors import AgacError, ExitCode, Problem, Where, any_error
from agac.core.types import Report, iso, json_form
from agac.data.frames import frame
from agac.engine.ask.limits import facts as budget_facts
from agac.engine.batch.coordinator import Stale, batch_counts
from agac.engine.finishing import Finishing, finishing
from agac.engine.forecast.baseline import InvocationChoice
from agac.engine.invocation import Work
from agac.engine.output.export import Exported, export_run
from agac.engine.output.run_outputs import Outputs, is_shown
from agac.engine.output.run_summary import summarise
from agac.engine.run_state import Invocation
from agac.engine.stage_summary import cost_of
from agac.engine.stop_rules import StopReason
from agac.engine.summary import RowCounts, RunSummary
from agac.plan.plan import Plan
from agac.plan.stage import AnyStage, PlannedStage
from agac.providers.provider import Provider
from agac.spec.workflow import Workflow
from agac.store import batches, runs
from agac.store.batches import BatchStep, read_batch, rows_in_batches
from agac.store.db import Database

_ROWS_OF_A_SINK = 1_000
"""Rows that a sink is given at once."""


@dataclass(frozen=True, slots=True)
class WrittenOutputs:
    """Outputs that an invocation wrote, and those that it replaced."""

    files: list[Path] = field(default_factory=list)
    """The files with the results; none if they were not replaced."""
    not_written: (
        Annotated[AgacError, lambda error: {"message": error.message, "remedy": error.remedy}]
        | None
    ) = None
    """Why a table could not be written next to the files."""
    replaced: dict[str, Any] | None = None
    """The other run whose results were replaced, its input, and the command that restores them."""
    edited: tuple[Path, ...] = ()
    """Files that somebody had changed since agac wrote them."""
    copies: tuple[Path, ...] = ()
    """The files that keep those changes, in the same order."""


@dataclass(frozen=True, slots=True)
class RunReport(Report):
    """The end of one invocation of a run.

    Its rows are read with `results`, `write_to`, `to_pandas`, `to_polars` and `to_arrow`; `summary`
    and `invocation` are JSON."""

    JSON_KEYS = (
        "**summary",
        "invocation",
        "exit_code",
        "files",
        "stop",
        "stopped",
        "finishing",
        "not_written=outputs.not_written",
        "replaced",
        "edited",
        "empty",
    )

    record: RunSummary
    """The summary of the run."""
    invocation_record: InvocationSummary
    """What this invocation did."""
    exit_code: ExitCode
    """The exit code of the command."""
    outputs: WrittenOutputs
    """What was written; `files` and others are short for its fields."""
    stopped: str | None = None
    """Why it ended before its rows did, in words."""
    warnings: list[Problem] = field(default_factory=list)
    """What was warned of before the first call."""
    stop: str | None = None
    """Why it ended before its rows did: `interrupt`, `fatal`, `limit` or `loss`."""
    finishing: Finishing | None = None
    """At a limit: an estimate of what the open rows need."""
    empty: Annotated[
        list[Problem],
        lambda problems: [
            {"severity": each.severity, "message": each.message} for each in problems
        ],
    ] = field(default_factory=list)
    """A problem for each stage that was to have a result (`on_empty`) and has none."""
    quote: Quote | None = None
    """What the rest of a row run costs, if its first rows were run to find out."""
    project: Path = field(default=Path(), repr=False)
    """The project's folder."""
    kind: Any = None
    """The type of results, as far as Pydantic models tell it."""
    go_on: str = field(default="", repr=False)
    """The command that continues a shard."""
    job: JobSummary | None = None
    """What the summary of a row run says besides; None for a run of a workflow."""

    def __repr__(self) -> str:
        summary = self.record
        counts = self.rows._asdict() | {"rows": self.rows.total}
        names = [name for name in ("rows", *RowCounts._fields[1:]) if counts[name]]
        facts = [f"{counts[name]:,} {name}" for name in names] or ["no rows"]
        facts.append(f"exit code {self.exit_code:d}")
        if self.stopped:
            facts.append(f"stopped: {self.stopped}")
        if self.files:
            facts.append(f"results in {summary.request.output}")
        return f"<run {summary.run} of {summary.workflow}: {', '.join(facts)}>"

    @property
    def files(self) -> list[Path]:
        """The files with the results; none if they were not replaced."""
        return self.outputs.files

    @property
    def not_written(self) -> AgacError | None:
        """Why a table could not be written next to the files."""
        return self.outputs.not_written

    @property
    def replaced(self) -> dict[str, Any] | None:
        """The other run whose results were replaced, its input, and the command that restores
        them."""
        return self.outputs.replaced

    @property
    def edited(self) -> tuple[Path, ...]:
        """Files that somebody had changed since agac wrote them."""
        return self.outputs.edited

    @property
    def copies(self) -> tuple[Path, ...]:
        """The files that keep the changes of `edited`, in the same order."""
        return self.outputs.copies

    @property
    def invocation(self) -> dict[str, Any]:
        """The `invocation_record` as JSON, made again at each call."""
        return self.invocation_record.as_json()

    @property
    def summary(self) -> dict[str, Any]:
        """The `record` as JSON, which `summary.json` holds; of a row run with what its `job` adds.
        It is made again at each call, so that changes of it change nothing else."""
        whole = self.record.as_json()
        if self.job is None:
            return whole
        job = self.job.as_json()
        return job | {key: value for key, value in whole.items() if key not in job}

    def results(self) -> Iterator[ResultRow]:
        """Reads the rows of the run as the store has them now, finished or not, in the order of its
        outputs and with one at a time in memory. If a Pydantic model is the schema of a result, the
        result is an instance of it. Raises AgacError for a stored result that the model no longer
        takes."""
        return read_results(self.project, self.record.run, self.kind)

    def write_to(self, sink: Sink) -> None:
        """Writes the rows of `results` into a sink and commits it. If anything is raised on the
        way, the sink is aborted first."""
        rows = self.results()
        try:
            while some := list(islice(rows, _ROWS_OF_A_SINK)):
                sink.write(some)
            sink.commit()
        except BaseException:
            sink.abort()
            raise

    def to_pandas(self) -> Any:
        """Returns the table of the run, as `output.format: csv` has it: each row's fields, those of
        its result, and its error."""
        return frame("pandas", *result_table(self.project, self.record.run))

    def to_polars(self) -> Any:
        """Returns the same table as a frame of polars."""
        return frame("polars", *result_table(self.project, self.record.run))

    def to_arrow(self) -> Any:
        """Returns the same table as a table of pyarrow."""
        return frame("pyarrow", *result_table(self.project, self.record.run))

    @property
    def rows(self) -> RowCounts:
        """The rows of the run, those of the input."""
        return self.record.rows

    @property
    def rows_by_remedy(self) -> Counter[str]:
        """The failed rows, counted by what they need."""
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
    """Reports how an invocation ended. Writes the run's outputs first, if the invocation `writes`
    and they are to be replaced. `workflow` tells on which lines its keys are; without it problems
    name the keys only. `count` counts the selected rows, for when not all of them were read."""
    record = await runs.run_record(database, invocation.run)
    summary = await summarise(database, record)
    in_batches = await _batches_of(database, invocation, work.batching.providers)
    stop = None if invocation.complete else invocation.stop_signal.stop
    replaces = writes and _replaces_outputs(work, invocation, in_batches, stop)
    rows = summary.rows.total
    exported = Exported(Outputs(record, work.root, rows).files())
    if replaces and not is_shown(record, work.root, rows):
        exported = await export_run(database, record, work.root, summary, work.env)
    notes = _notes(work.plan, invocation, summary, count)
    if replaces and stop is not None and exported.lines is not None:
        notes = replace(notes, written=WrittenLines(exported.lines))
    empty = _empty(work.plan, summary, workflow) if invocation.complete and rows else []
    finishing_needs = None
    if stop is StopReason.LIMIT:
        finishing_needs = await _finishing(database, work, invocation, summary)
    quote = await quote_of(database, work, summary) if stop is StopReason.QUOTE else None
    return RunReport(
        record=summary,
        invocation_record=replace(_did(invocation), batches=in_batches, notes=notes),
        exit_code=_exit_code(invocation, summary, exported, in_batches, empty),
        outputs=await _written(database, exported, replaces=replaces),
        stopped=(invocation.stop_signal.why or None) if stop else None,
        warnings=warnings,
        stop=stop.value if stop else None,
        finishing=finishing_needs,
        empty=empty,
        quote=quote,
        project=work.root,
        kind=_kind_of(work.plan.ends),
    )


def _replaces_outputs(
    work: Work, invocation: Invocation, in_batches: InvocationBatches, stop: StopReason | None
) -> bool:
    """True if the outputs are to be replaced: by a finished run, by one that only waits for people,
    and by one that met a limit of its user's. A run that a bad key stopped must not empty the
    folder of an earlier one."""
    if invocation.complete or stop is StopReason.LIMIT:
        return True
    return _waits_for_people_alone(work, invocation, in_batches)


def _waits_for_people_alone(
    work: Work, invocation: Invocation, in_batches: InvocationBatches
) -> bool:
    """True if an invocation did all that it could, so that the open rows wait for people and
    nothing else."""
    if invocation.complete or not invocation.ended or work.scope.stages is not None:
        return False
    waits_for_batches = in_batches.open or in_batches.waits_for or invocation.left_over.held_back
    if waits_for_batches or invocation.left_over.waits:
        return False
    return invocation.totals.reviews > 0


def _notes(
    plan: Plan,
    invocation: Invocation,
    summary: RunSummary,
    count: Callable[[], RowCount | None] | None,
) -> InvocationNotes:
    """Notes which calls of tools were not recorded, and how many rows are selected if not all of
    them were read."""
    any_unchanged = bool(invocation.totals.rows.unchanged)
    reused = {each.name for each in summary.stages if any_unchanged or each.tasks.reused}
    notes = InvocationNotes(not_recorded=not_recorded(plan.stages, reused))
    if count is None or invocation.totals.rows.all_read:
        return notes
    selected = count()
    if selected is not None and selected.rows > summary.rows.total:
        notes = replace(notes, rows_selected=SelectedRows(selected.rows, selected.exact))
    return notes


def _exit_code(
    invocation: Invocation,
    summary: RunSummary,
    exported: Exported,
    in_batches: InvocationBatches,
    empty: list[Problem],
) -> ExitCode:
    """Decides the exit code. A table that could not be written comes first, then what stopped the
    invocation, then batches that wait for their user, then failed rows."""
    code = invocation.exit_code
    if exported.not_written is not None:
        code = ExitCode.FAILED
    if code is ExitCode.DONE:  # nothing stopped it
        if in_batches.undecided:
            code = ExitCode.NOT_READY
        elif invocation.finished and summary.any_row_failed:
            code = ExitCode.ROWS_FAILED
    if code in (ExitCode.DONE, ExitCode.ROWS_FAILED) and any_error(empty):
        return ExitCode.FAILED
    return code


def _kind_of(ends: Sequence[AnyStage]) -> Any:
    """Returns the type of results, as far as Pydantic models tell it, or None."""
    kinds = {stage.name: _kind_of_stage(stage) for stage in ends}
    if len(kinds) == 1 or not any(kinds.values()):
        return next(iter(kinds.values()), None)
    # pydantic brings it, and takes no other before Python 3.12
    from typing_extensions import TypedDict

    return TypedDict(
        "Results", {name: kind | None if kind else Any for name, kind in kinds.items()}
    )  # type: ignore[operator]


def _kind_of_stage(stage: AnyStage) -> Any:
    """Returns the type of a stage's results: its model, or a list of it if all replicas answer."""
    model: Any = stage.model if isinstance(stage, PlannedStage) else None
    if model and stage.replicas > 1 and stage.vote is None:
        return list[model]
    return model


async def _finishing(
    database: Database, work: Work, invocation: Invocation, summary: RunSummary
) -> Finishing:
    """Estimates what the open rows need, and proposes a limit in place of the one that was met."""
    retry = work.retry
    totals = invocation.totals
    scope = work.scope if retry else replace(work.scope, retry_failed=False)
    of_input = retry is None and work.batching.resume_run is None
    choice = InvocationChoice(scope=scope, run=invocation.run, retry=retry)
    left = await planned(database, work.plan, choice, work.reading.rows if of_input else None)
    if retry is None:
        counts = summary.rows
        settled = counts.done + counts.skipped + counts.failed + counts.dropped
        rows = left.rows["total"] - settled
    else:
        chosen = sum(count for _, _, count in invocation.goal.chosen)
        rows = chosen - totals.rows.done - totals.rows.failed
    return finishing(left, max(rows, 0), totals.rows.failed, invocation.budgets)


def _empty(plan: Plan, summary: RunSummary, workflow: Workflow | None) -> list[Problem]:
    """Returns a problem for each stage with `on_empty` that has no result."""
    problems = []
    for stage, counts in zip(plan.stages, summary.stages, strict=True):
        if stage.settings.on_empty is None or counts.tasks.done + counts.tasks.reused:
            continue
        written = workflow.stages[stage.index] if workflow is not None else None
        if written:
            where = written.at("on_empty")
        else:
            where = Where(plan.workflow, path=f"{stage.name}.on_empty")
        message = f"no row has a result of stage {stage.name!r}"
        if stage.settings.on_empty == "error":
            problems.append(Problem(where, message))
        else:
            problems.append(Problem(where, message, "warning"))
    return problems


async def _written(database: Database, exported: Exported, *, replaces: bool) -> WrittenOutputs:
    """Returns what was written. The files are left out if none were to be replaced."""
    return WrittenOutputs(
        files=exported.files if replaces else [],
        not_written=exported.not_written,
        replaced=await _replaced_run(database, exported),
        edited=tuple(exported.edited),
        copies=tuple(exported.edited.values()),
    )


async def _replaced_run(database: Database, exported: Exported) -> dict[str, Any] | None:
    """Returns the run whose results were in the folder before, its input, and the command that
    writes them there again."""
    if exported.replaced is None:
        return None
    before = await runs.read_run(database, exported.replaced)
    if before is None:
        return None
    source = (await runs.definition_of(database, before.id))["input"]["path"]
    flag = "" if before.finished_at is not None else " --partial"
    return {"run": before.id, "input": source, "again": f"agac export --run {before.id}{flag}"}


def _did(invocation: Invocation) -> InvocationSummary:
    """Tells what an invocation did, without its batches."""
    totals = invocation.totals
    fault = totals.calls.waiting_for
    at_limit = invocation.stop_signal.stop is StopReason.LIMIT and not invocation.ended
    budgets = invocation.budgets
    return InvocationSummary(
        continued=invocation.continued,
        complete=invocation.complete,
        lost_calls_at_most=invocation.risk.lost_calls,
        rows=InvocationRows(
            read=totals.rows.seen,
            unchanged=totals.rows.unchanged,
            done=totals.rows.done,
            failed=totals.rows.failed,
            skipped=totals.rows.skipped,
            dropped=totals.rows.filtered + totals.rows.dropped,
            left_failed=totals.rows.left_failed + totals.rows.failed_for_good,
            parked=totals.rows.parked,
        ),
        tasks=InvocationTasks(totals.tasks.done, totals.tasks.reused, totals.tasks.collapsed),
        calls=InvocationCalls(
            totals.calls.count, totals.calls.retries, totals.calls.repairs, totals.calls.fallbacks
        ),
        waiting_for=LastFault(fault.type, fault.message) if fault is not None else None,
        unanswered=UnansweredCalls(
            totals.calls.given_up, totals.calls.ambiguous + totals.calls.given_up
        ),
        stopped_at_limit=at_limit,
        cost_usd=cost_of(totals.spent.usd, totals.spent.unpriced),
        budgets=tuple(budget_facts(budgets.balances)) if budgets else (),
        waits_for_shards=invocation.left_over.waits,
    )


async def _batches_of(
    database: Database, invocation: Invocation, providers: Mapping[str, Provider]
) -> InvocationBatches:
    """Tells what the invocation did with batches, and which of its run's are open."""
    done = invocation.batches
    run = invocation.run
    views = await batches.batches(database, run=run, closed=True) if done.touched else []
    lines = await batch_lines(database, providers, views)
    waiting = [line for line in lines if line.waits is not None and line.batch.open]
    undecided = [line for line in lines if line.batch.state == BatchStep.NEEDS_HUMAN]
    submitted = [line for line in lines if line.batch.id in done.submitted]
    records = [await read_batch(database, number) for number in done.ingested]
    try_times = [line.batch.try_at for line in waiting if line.batch.try_at is not None]
    awaited = await batches.awaited(database, run) if done.touched else []
    return InvocationBatches(
        submitted=tuple(line.as_json() for line in submitted),
        waiting=tuple(line.as_json() for line in waiting),
        undecided=tuple(line.as_json() for line in undecided),
        stale=tuple(stale_facts(done.stale, providers)),
        ingested=tuple(map(batch_counts, records)),
        open=json_form((await batches.open_batches(database)).get(run)),
        next_try_at=iso(min(try_times, default=None)),
        rows_in_batches=await rows_in_batches(database, run) if done.touched else 0,
        waits_for=tuple(batch._asdict() for batch in awaited),
        tasks_held_back=invocation.left_over.held_back,
    )


def stale_facts(stale: Stale, providers: Mapping[str, Provider]) -> list[StaleBatch]:
    """Lists batches with requests that are no longer needed."""
    facts = []
    for batch, requests in stale:
        held = batch.held_usd * requests / max(batch.tasks, 1) if batch.priced else None
        simulated = batch.provider in providers and providers[batch.provider].simulated
        facts.append(StaleBatch(batch.id, batch.provider_id, requests, held, simulated))
    return facts


async def leave_in_remote(
    database: Database, opened: Project, work: Work, invocation: Invocation, report: RunReport
) -> RunReport:
    """Leaves in the remote what an invocation did; adds to the report of a shard the command that
    continues it."""
    if work.sharding is None:
        await push_at_end(database, opened)
        return report
    command = go_on(await runs.run_record(database, invocation.run), _raised_limit(report))
    from agac.engine.sharding.shard_run import ShardEnd  # only shards need a remote

    end = ShardEnd(
        run=invocation.run,
        rows_failed=invocation.totals.rows.failed,
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


def _raised_limit(report: RunReport) -> dict[str, Any]:
    """Returns the limit that lets a run continue, as an option; empty if it met none, or that of a
    stage, which the workflow names."""
    needs = report.finishing
    if needs is None or needs.stage is not None:
        return {}
    if needs.max_errors is None:
        return {"budget": needs.budget}
    return {"max_errors": needs.max_errors}
