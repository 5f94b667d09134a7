"""How an invocation ended: its outputs written, its report made, and what finishing the run takes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from agac.api.batches import batch_lines
from agac.core.errors import AgacError, ExitCode, Problem, RowError, StoreError, Where
from agac.core.report import Report, iso, json_form
from agac.core.types import RowId
from agac.engine.batch.coordinator import batch_counts
from agac.engine.budget import Amount, BudgetBalance, BudgetLimiter
from agac.engine.budget import facts as budget_facts
from agac.engine.estimate import CostEstimate
from agac.engine.export import Exported, export_run, files_of, is_shown
from agac.engine.invocation import Retry, StageTotals, Totals
from agac.engine.run import Invocation
from agac.engine.stop_rules import StopReason
from agac.engine.telemetry import cost_of, summarise
from agac.plan.plan import Plan
from agac.providers.provider import Provider
from agac.spec.levels import StageNode, homes
from agac.spec.workflow import Workflow
from agac.store import batches, runs
from agac.store.batches import BatchRecord, BatchStep, batches_alike, read_batch, rows_in_batches
from agac.store.db import Database

MARGIN = 1.2
"""A limit that is proposed has a fifth more than the estimate says: rows differ."""

FURTHER_ERRORS = 10
"""A `max_errors` that is proposed has room for at least so many more."""


@dataclass(frozen=True, slots=True)
class Finishing(Report):
    """Rows without an outcome and, estimated, what they need. `usd` is None when a price is not known.

    What was reached, and what should do in its place: `budget` as `--budget` takes it, which is a stage's own when
    `stage` names it; or `max_errors`.
    """

    rows: int
    usd: float | None
    tokens: int
    calls: int
    budget: str | None = None
    stage: str | None = None
    max_errors: int | None = None


def finishing(
    plan: Plan, needs: Sequence[CostEstimate], rows: int, limiter: BudgetLimiter | None, failed: int
) -> Finishing:
    """The estimate. `rows` are open, `needs` is what is left of each stage; `failed` rows failed in this invocation."""
    whole = _amount(needs)
    usd = None if any(one.usd is None for one in needs) else round(whole.usd, 6)
    reached = limiter.reached if limiter else None
    if limiter is None or reached is None:
        most = failed + max(failed, FURTHER_ERRORS)
        return Finishing(rows, usd, whole.tokens, whole.calls, max_errors=most)
    if reached.stage is None:
        return Finishing(rows, usd, whole.tokens, whole.calls, _enough(limiter.of_run, whole, limiter.missed))
    own = _amount([one for stage, one in zip(plan.stages, needs, strict=True) if stage.name == reached.stage])
    return Finishing(rows, usd, whole.tokens, whole.calls, _enough([reached], own, limiter.missed), reached.stage)


def open_rows(summary: dict[str, Any], rows: int) -> int:
    """How many rows of an input of `rows` have no outcome."""
    settled: dict[str, int] = summary["rows"]
    return max(rows - sum(settled[outcome] for outcome in ("done", "skipped", "failed", "dropped")), 0)


def _amount(needs: Sequence[CostEstimate]) -> Amount:
    total = Amount()
    for one in needs:
        total = total.plus(Amount(one.usd or 0.0, one.input_tokens + one.output_tokens, one.calls))
    return total


def _enough(pots: Sequence[BudgetBalance], need: Amount, last: Amount) -> str:
    """Of each unit that they bound, enough for all of them: `--budget` takes the place of every budget of a run.

    `last` is the worst case of a call: it has to fit before the last one is made.
    """
    parts = []
    for unit, spent in pots[0].spent._asdict().items():
        wanted = spent + MARGIN * getattr(need, unit) + getattr(last, unit)
        caps = [cap for pot in pots if (cap := getattr(pot.budget, unit)) is not None]
        if caps:
            enough = max(min(caps), wanted)
            parts.append(f"{unit}={_rounded_up(enough) if unit == 'usd' else math.ceil(enough)}")
    return ",".join(parts)


def _rounded_up(usd: float) -> str:
    """Two digits that mean something, never less."""
    digits = 1 - math.floor(math.log10(usd))
    step = 10.0**-digits
    text = f"{math.ceil(usd / step - 1e-9) * step:.{max(digits, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def error_of(error: AgacError) -> dict[str, Any]:
    """An error as `--json` prints it."""
    return {"message": error.message, "remedy": error.remedy}


def severities(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """Problems as `--json` prints them where their places do not matter."""
    return [{"severity": problem.severity, "message": problem.message} for problem in problems]


@dataclass(frozen=True, slots=True)
class RunReport(Report):
    """How an invocation ended: `summary` is the run's (what summary.json holds), `invocation` what this one did.

    `stop` says why it ended before its rows did: `interrupt`, `fatal`, `limit` or `loss`; `stopped` is that in words.
    At a limit `finishing` estimates what the open rows need. `not_written` is why a table could not be written beside
    the `files`; `replaced` is the run whose results they replaced, `edited` are those that somebody had changed.
    `empty` are the stages that were to have a result (`on_empty`) and have none.
    """

    JSON_KEYS = (
        "invocation", "exit_code", "files", "stop", "stopped", "finishing", "not_written", "replaced", "edited",
        "empty",
    )  # fmt: skip

    summary: dict[str, Any]
    invocation: dict[str, Any]
    exit_code: ExitCode
    files: list[Path]
    stopped: str | None = None
    warnings: list[Problem] = field(default_factory=list)
    stop: str | None = None
    finishing: Finishing | None = None
    not_written: Annotated[AgacError, error_of] | None = None
    replaced: dict[str, Any] | None = None
    edited: tuple[Path, ...] = ()
    empty: Annotated[list[Problem], severities] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The value that `--json` prints."""
        return {**self.summary, **Report.as_json(self)}


TasksLeft = Callable[[], Awaitable[tuple[int, list[CostEstimate]]]]
"""How many rows a run is about, and what is left to do of them, stage by stage: a dry run."""


async def report_of(
    database: Database,
    root: Path,
    plan: Plan,
    invocation: Invocation,
    *,
    warnings: list[Problem],
    tasks_left: TasksLeft,
    retry: Retry | None = None,
    providers: Mapping[str, Provider],
    workflow: Workflow | None = None,
) -> RunReport:
    """How an invocation ended; writes the run's outputs where they are to be replaced. `workflow` says where its keys
    stand; without it they are named alone."""
    record = await runs.read_run(database, invocation.run)
    assert record is not None
    summary = await summarise(database, record)
    rows = summary["rows"]["total"]
    exported = Exported(files_of(record, root, rows))
    stop = invocation.stop_signal.stop if not invocation.complete else None
    # A finished run replaces outputs, and one that met a limit of its user's: a run that a bad key stopped must not
    # empty the folder of an earlier one.
    replaced = invocation.complete or stop is StopReason.LIMIT
    if replaced and not is_shown(record, root, rows):
        exported = await export_run(database, record, root, summary)
    code = invocation.exit_code
    if exported.not_written is not None:
        code = ExitCode.FAILED
    about = await batch_facts(database, invocation, providers)
    if code is ExitCode.DONE and about["undecided_batches"]:
        code = ExitCode.NOT_READY
    elif code is ExitCode.DONE and invocation.finished and _any_failed(summary):
        code = ExitCode.ROWS_FAILED
    empty = _empty(plan, summary, workflow) if invocation.complete else []
    if code in (ExitCode.DONE, ExitCode.ROWS_FAILED) and any(one.severity == "error" for one in empty):
        code = ExitCode.FAILED
    return RunReport(
        summary,
        _facts(invocation) | about,
        code,
        exported.files if replaced else [],
        invocation.stop_signal.why or None if stop else None,
        warnings,
        stop.value if stop else None,
        await _finishing(plan, retry, summary, invocation, tasks_left) if stop is StopReason.LIMIT else None,
        exported.not_written,
        await _replaced(database, exported),
        exported.edited,
        empty,
    )


def _empty(plan: Plan, summary: dict[str, Any], workflow: Workflow | None) -> list[Problem]:
    """The stages that were to have a result and have none, in a run that had rows."""
    if not summary["rows"]["total"]:
        return []
    found = []
    for stage, count in zip(plan.stages, summary["stages"], strict=True):
        if stage.on_empty is not None and not count["done"] + count["reused"]:
            message = f"no row has a result of stage {stage.name!r}"
            severity: Literal["error", "warning"] = "error" if stage.on_empty == "error" else "warning"
            written = workflow.stages[stage.index] if workflow is not None else None
            where = written.at("on_empty") if written is not None else Where(plan.workflow)
            path = f"{written.path if written is not None else stage.name}.on_empty"
            found.append(Problem(where, message, path, severity))
    return found


async def _replaced(database: Database, exported: Exported) -> dict[str, Any] | None:
    """The run whose results stood in the folder, its input, and the command that writes them there again."""
    before = await runs.read_run(database, exported.replaced) if exported.replaced is not None else None
    if before is None:
        return None
    source = (await runs.definition_of(database, before.id))["input"]["path"]
    flag = "" if before.finished_at is not None else " --partial"
    return {"run": before.id, "input": source, "again": f"agac export --run {before.id}{flag}"}


async def _finishing(
    plan: Plan,
    retry: Retry | None,
    summary: dict[str, Any],
    invocation: Invocation,
    tasks_left: TasksLeft,
) -> Finishing:
    totals = invocation.totals
    whole, left = await tasks_left()
    if retry is None:
        rows = open_rows(summary, whole)
    else:
        chosen = sum(count for _, _, count in invocation.chosen)
        rows = max(chosen - totals.rows_done - totals.rows_failed, 0)
    return finishing(plan, left, rows, invocation.budgets, totals.rows_failed)


def _facts(invocation: Invocation) -> dict[str, Any]:
    totals = invocation.totals
    return {
        "continued": invocation.continued,
        "complete": invocation.complete,
        "lost_calls_at_most": invocation.lost_calls,
        "rows_read": totals.seen,
        "rows_unchanged": totals.unchanged,
        "rows_done": totals.rows_done,
        "rows_failed": totals.rows_failed,
        "rows_skipped": totals.rows_skipped,
        "rows_dropped": totals.rows_filtered + totals.rows_dropped,
        "rows_left_failed": totals.left_failed + totals.failed_for_good,
        "rows_parked": totals.rows_parked,
        "tasks_asked": totals.tasks_done,
        "tasks_reused": totals.tasks_reused,
        "tasks_collapsed": totals.collapsed,
        "calls": totals.calls,
        "retries": totals.retries,
        "repairs": totals.repairs,
        "fallbacks": totals.fallbacks,
        "waiting_for": {"type": again.type, "message": again.message} if (again := totals.waiting_for) else None,
        "calls_given_up": totals.given_up,
        "calls_perhaps_billed_without_answer": totals.ambiguous + totals.given_up,
        "stopped_at_limit": invocation.stop_signal.stop is StopReason.LIMIT and not invocation.ended,
        "cost_usd": cost_of(totals.cost, totals.unpriced),
        "budgets": budget_facts(invocation.budgets.balances) if invocation.budgets else [],
    }


async def batch_facts(database: Database, invocation: Invocation, providers: Mapping[str, Provider]) -> dict[str, Any]:
    """What the invocation did with batches, and which of its run's are open."""
    done, run = invocation.batches, invocation.run
    views = await batches.batches(database, run=run, closed=True) if done.touched else []
    lines = await batch_lines(database, providers, views)
    submitted = [line for line in lines if line.id in done.submitted]
    waiting = [line for line in lines if line.waits is not None and line.open]
    records = [record for number in done.ingested if (record := await read_batch(database, number)) is not None]
    summed = (await batches.open_batches(database)).get(run)
    tries = [line.try_at for line in waiting if line.try_at is not None]
    return {
        "batches": [line.as_json() for line in submitted],
        "waiting_batches": [line.as_json() for line in waiting],
        "undecided_batches": [line.as_json() for line in lines if line.step == BatchStep.NEEDS_HUMAN],
        "stale": [
            {
                "batch": one.id,
                "provider_id": one.provider_id,
                "requests": count,
                "held_usd": _share(one, count),
                "simulated": one.provider in providers and providers[one.provider].simulated,
            }
            for one, count in done.stale
        ],
        "ingested": [batch_counts(record) for record in records],
        "open_batches": json_form(summed),
        "next_try_at": iso(min(tries, default=None)),
        "rows_in_batches": await rows_in_batches(database, run) if done.touched else 0,
        "waits_for": [one._asdict() for one in await batches.awaited(database, run)] if done.touched else [],
        "tasks_held_back": invocation.held_back,
    }


def _any_failed(summary: dict[str, Any]) -> bool:
    """Whether a row failed, of the input or of those that stages made."""
    return any(one["rows"]["failed"] for one in (summary, *summary["levels"]))


def _share(record: BatchRecord, tasks: int) -> float | None:
    """The most that so many tasks of a batch can cost; None where no price is known."""
    return record.held_usd * tasks / max(record.tasks, 1) if record.priced else None


# What whoever shows a run sees of it while it goes on: a snapshot of counts, taken as often as it likes.


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows there are to work on; `exact` when they were counted."""

    rows: int
    exact: bool


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """A stage at a moment. Rows: `settled` need nothing more here, `worked` of them were settled by this invocation,
    of which its guard kept out `skipped` and `dropped`; `total` come here as far as is known.

    `cost` in USD, of the calls whose price is known.
    """

    name: str
    settled: int
    worked: int
    total: RowCount | None
    in_flight: int
    reused: int
    failed: int
    skipped: int
    dropped: int
    last_error: tuple[RowError, RowId] | None
    cost: float
    unpriced: int
    simulated: bool


@dataclass(frozen=True, slots=True)
class BatchCount:
    """The open batches of a stage that stand alike (`status` as `agac batch status` says it), and their requests."""

    stage: str
    status: str
    batches: int
    requests: int
    done: int
    failed: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at a moment. `unusable` rows failed before any stage; `stopping`: nothing new is begun; `waiting_for`: why
    the last call brought no answer; `batches`: those that are open."""

    workflow: str
    stages: tuple[StageSnapshot, ...]
    rows: RowCount | None
    settled: int
    unusable: int
    last_error: tuple[RowError, RowId] | None
    stopping: bool
    waiting_for: RowError | None = None
    batches: tuple[BatchCount, ...] = ()

    @property
    def in_flight(self) -> int:
        """Tasks that are being asked."""
        return sum(stage.in_flight for stage in self.stages)


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """A run while its rows are worked on. `count_rows` reads the input for a moment, or gives None when that would
    take long; it may be called in a thread. `upstream`: the stages that are upstream of each, by name; how many rows
    come to the `uncounted` ones is not known before they are made; `batches` gives the open ones as last seen."""

    workflow: str
    invocation: Invocation
    count_rows: Callable[[], RowCount | None]
    warnings: list[Problem]
    upstream: Mapping[str, Collection[str]]
    uncounted: Collection[str] = ()
    batches: Callable[[], Sequence[BatchCount]] = tuple

    def snapshot(self, counted: RowCount | None = None) -> Snapshot:
        """The run now. `counted` is what `count_rows` gave, once it did."""
        totals, batches = self.invocation.totals, tuple(self.batches())
        rows = row_count(totals, counted)
        stages = [self._stage(name, stage, rows, to_come=bool(batches)) for name, stage in totals.stages.items()]
        return Snapshot(
            self.workflow,
            tuple(stages),
            rows,
            totals.settled,
            totals.unusable,
            totals.last_error,
            stopping=self.invocation.stop_signal.stop is not None,
            waiting_for=totals.waiting_for,
            batches=batches,
        )

    def _stage(self, name: str, stage: StageTotals, rows: RowCount | None, *, to_come: bool) -> StageSnapshot:
        """Rows that came to their end upstream never come here; neither do those that ended in a branch beside it
        without having been here, of which only the number is known, and only roughly while others are under way. Those
        that were parked are `to_come` when it is for batches."""
        totals = self.invocation.totals
        made = name in self.uncounted
        settled = stage.settled if made else totals.unchanged + stage.settled
        ended = [totals.stages[other] for other in self.upstream[name] if other in totals.stages]
        never = totals.unusable + totals.rows_dropped
        never += sum(other.failed + other.dropped for other in ended)
        if not to_come:
            never = max(never + stage.parked + sum(other.parked for other in ended), totals.settled - settled)
        return StageSnapshot(
            name=name,
            settled=settled,
            worked=stage.settled,
            total=RowCount(max(settled, rows.rows - never), rows.exact) if rows and not made else None,
            in_flight=stage.in_flight,
            reused=stage.reused,
            failed=stage.failed,
            skipped=stage.skipped,
            dropped=stage.dropped,
            last_error=stage.last_error,
            cost=stage.cost,
            unpriced=stage.unpriced,
            simulated=stage.simulated > 0,
        )


def uncounted(stages: Sequence[StageNode]) -> frozenset[str]:
    """The stages that are asked of rows which other stages make, or may make: explode, group, or call functions."""
    home = homes(stages)
    functions = {stage.name for stage in stages if stage.makes == "rows"}
    found: set[str] = set()
    for stage in stages:
        if home[stage.name] is not None or stage.makes == "kept" or (functions | found).intersection(stage.needs):
            found.add(stage.name)
    return frozenset(found)


def row_count(totals: Totals, counted: RowCount | None) -> RowCount | None:
    """The best that is known of the number of rows: what was read to the end, was counted, or was there last time."""
    if totals.all_read:
        return RowCount(totals.seen, exact=True)
    if counted is None and totals.expected is not None:
        counted = RowCount(totals.expected, exact=False)
    if counted is not None and counted.rows < totals.seen:
        return None  # there are more than anybody thought
    return counted


Watch = Callable[[WatchedRun], Awaitable[None]]
"""A coroutine that shows progress until it is cancelled."""


# How the open batches of a run stand while an invocation goes on, for whoever shows it.

LOOK_SECONDS = 1.0
"""So often the store is asked; a provider is asked by the engine alone, at its own pace."""


class BatchFollower:
    """The open batches of the invocation's run, as the store had them a moment ago."""

    def __init__(self, database: Database, invocation: Invocation, stages: list[str]) -> None:
        self._database, self._invocation, self._stages = database, invocation, stages
        self._seen: tuple[BatchCount, ...] = ()

    def counts(self) -> tuple[BatchCount, ...]:
        """Those of each stage that stand alike."""
        return self._seen

    async def shown(self, watch: Watch, seen: WatchedRun) -> None:
        """Watches until cancelled, with counts that are kept up to date."""
        follower = asyncio.ensure_future(self._follow())
        try:
            await watch(seen)
        finally:
            follower.cancel()
            await asyncio.wait({follower})

    async def _follow(self) -> None:
        while True:
            if self._invocation.batches.touched:
                with suppress(StoreError):  # whoever works with the store hears of it
                    await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        found = await batches_alike(self._database, self._invocation.run)
        self._seen = tuple(
            BatchCount(self._stages[one.stage], one.status or "not submitted", *one[2:]) for one in found
        )
