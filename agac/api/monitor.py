"""What the monitor shows of runs, as values: all of them, and one with its pace, budgets, batches
and advice; and what it asks of a process at work.

Each reader takes READ_SECONDS at most, whatever the store holds: counts come from roll-ups, lists
use an index."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.batches import BatchLine, batch_lines
from agac.api.status import database_path, find_run, full_report, run_report, state_of, stored_run
from agac.core.errors import AgacError, UsageError
from agac.core.reading import read_as
from agac.core.types import Moment, Report, counted
from agac.data.sources import estimated_rows
from agac.engine.ask.limits import BudgetBalance, facts, loaded
from agac.engine.summary import RunSummary
from agac.plan.plan import Selection
from agac.spec.paths import project_root
from agac.spec.rules import Budget
from agac.store import batches, roll_ups, runs
from agac.store.db import Database, open_for_reading, write
from agac.store.records import LaneSample
from agac.store.writer import open_database

READ_SECONDS = 2.0
"""Seconds after which a reading of the store is cut off, and raises TookTooLong."""

RECENT_MINUTES = 5
"""Minutes over which a present rate is measured."""

LANE_SECONDS = 10.0
"""Seconds after its last sample from which on a lane is not at work."""

MAX_BATCHES = 200
"""Batches of a run that are shown."""


class Advice(NamedTuple):
    """A command to copy."""

    what: str
    """What it does, or why it is of use."""
    command: str
    """The command."""


@dataclass(frozen=True, slots=True)
class RunCards(Report):
    """A page of runs, the one last worked on first."""

    runs: tuple[dict[str, Any], ...]
    """Each run as `agac status` reports it (`api.status.run_report`), with its `pace`: `expected`,
    the number of rows that the input has (None: unknown), which is `exact` once the input was
    read; `rate`, rows that ended per minute (recent), while it is running; `eta_s`, seconds until
    its end at that rate."""
    total: int
    """The number of all runs."""
    next: int | None
    """The `after` of the next page; None: there is none."""


@dataclass(frozen=True, slots=True)
class BudgetBurn(Report):
    """The speed at which one unit of a budget is spent."""

    name: str
    """The budget's name."""
    unit: str
    """usd, tokens or calls."""
    limit: float
    """How much may be spent."""
    spent: float
    """How much was spent."""
    held: float
    """What is set aside for open calls, and perhaps spent too."""
    an_hour: float
    """What is spent per hour (recent)."""
    hit_at: Moment | None
    """When it is spent at that pace; None: its rows end before, or nothing is spent now."""


@dataclass(frozen=True, slots=True)
class MonitoredRun(Report):
    """One run, with what happens in it now."""

    report: dict[str, Any]
    """The run as `agac status RUN` reports it, with its `pace` as in RunCards."""
    rates: dict[str, float]
    """Tasks of each stage that ended per minute (recent)."""
    lanes: tuple[LaneSample, ...]
    """The newest sample of each lane at work."""
    budgets: tuple[BudgetBurn, ...]
    """Its budgets and those of its stages."""
    batches: tuple[BatchLine, ...]
    """Its open batches, then the newest of the others."""
    advice: tuple[Advice, ...]
    """Commands that may be of use now."""
    asked: tuple[dict[str, Any], ...]
    """What was asked of the process at work: id, kind, body, at, applied_at, outcome."""
    estimated_usd: float | None
    """What it was expected to cost, in US dollars; None: unknown."""

    @property
    def record(self) -> RunSummary:
        """The summary of the run, out of the `report`."""
        return read_as(RunSummary, self.report)


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of a run."""

    report: dict[str, Any]
    """The report of the run, with its `pace`."""
    stages: Mapping[str, roll_ups.Lately]
    """What ended in each stage during `seconds`; none unless the run is running."""
    seconds: float
    """The recent seconds that are looked at."""

    def per_minute(self) -> dict[str, float]:
        """Returns tasks per minute of each stage."""
        return {
            name: 60 * each.settled / self.seconds for name, each in self.stages.items() if name
        }


async def aruns(
    after: int | None = None, limit: int = 50, *, project: Path | str | None = None
) -> RunCards:
    """Reads a page of the runs of all workflows, beginning behind run `after`."""
    root = project_root(project)
    async with open_for_reading(database_path(root), READ_SECONDS) as database:
        if database is None:
            return RunCards((), 0, None)
        numbers = await runs.run_ids(database, None)
        begin = numbers.index(after) + 1 if after in numbers else 0
        page = numbers[begin : begin + limit]
        cards = []
        for number in page:
            record = await runs.run_record(database, number)
            pace = await _pace(root, database, record, await run_report(database, record))
            cards.append(pace.report)
        following = page[-1] if begin + limit < len(numbers) else None
        return RunCards(tuple(cards), len(numbers), following)


async def _pace(
    root: Path, database: Database, record: runs.RunRecord, report: dict[str, Any]
) -> Pace:
    """Measures the pace of a run over the recent minutes, and adds it to its report."""
    stages = dict[str, roll_ups.Lately]()
    seconds = 1.0
    if report["state"] == "running" and record.invocation is not None:
        now = time.time()
        first = int(now // 60) - RECENT_MINUTES
        stages = await roll_ups.lately(database, record.id, first)
        seconds = max(now - max(60 * first, record.invocation.at), 1.0)
    summary = read_as(RunSummary, report)
    expected = await _expected_rows(root, database, record, summary)
    rate = 60 * stages[""].settled / seconds if "" in stages else None
    eta = None
    if expected is not None and rate is not None and rate > 0:
        eta = 60 * (expected - summary.rows.total + summary.rows.open) / rate
    is_exact = record.read_at is not None
    pace = {"expected": expected, "exact": is_exact, "rate": rate, "eta_s": eta}
    return Pace(report | {"pace": pace}, stages, seconds)


async def _expected_rows(
    root: Path, database: Database, record: runs.RunRecord, summary: RunSummary
) -> int | None:
    """Returns the number of rows that the run has in the end, or an estimate by the size of its
    input. None if that is unknown."""
    total = summary.rows.total
    if record.read_at is not None:
        return total
    if "sql" in (await runs.definition_of(database, record.id))["input"]:
        return None
    with suppress(OSError, AgacError):  # without the file there is no estimate
        selection = Selection(**record.selection)
        file = root / summary.request.input
        rows = estimated_rows(file) if file.is_file() else None
        return rows and max(total, selection.taken(max(0, rows - selection.offset)))
    return None


async def arun(run: int | str = "last", *, project: Path | str | None = None) -> MonitoredRun:
    """Reads a run by its number, or the one last worked on. Raises UsageError for a run that does
    not exist."""
    root = project_root(project)
    async with stored_run(root, run, seconds=READ_SECONDS) as (database, record):
        pace = await _pace(root, database, record, await full_report(database, record))
        since = {"since": time.time() - LANE_SECONDS, "step": LANE_SECONDS, "until": 0}
        samples = await roll_ups.lanes_of(database, run=record.id, **since)
        stored = await batches.batches(database, run=record.id, closed=True)
        stored.sort(key=lambda batch: (not batch.open, -batch.id))
        return MonitoredRun(
            report=pace.report,
            rates=pace.per_minute(),
            lanes=tuple({sample.lane: sample for sample in samples}.values()),
            budgets=tuple(await _burns(database, record, pace)),
            batches=tuple(await batch_lines(database, {}, stored[:MAX_BATCHES])),
            advice=tuple(_advice(pace.report, record)),
            asked=tuple(await roll_ups.asked_for(database, record.id)),
            estimated_usd=await _estimated_usd(database, record.id),
        )


async def _estimated_usd(database: Database, run: int) -> float | None:
    """Returns what a run was expected to cost; None if that was unknown for all stages."""
    estimates = [each.usd for each in (await runs.estimates(database, run)).values()]
    known = [usd for usd in estimates if usd is not None]
    return sum(known) if known else None


async def run_budgets(database: Database, record: runs.RunRecord) -> list[BudgetBalance]:
    """Returns the budgets of a run and its stages, without what was spent of them."""
    settings = await runs.run_settings_of(database, record.id) or {"rules": {}, "stages": []}
    stages = (await runs.definition_of(database, record.id))["stages"]
    rules = settings["rules"]
    written = [
        ("budget of agac.yml", rules.get("project"), None),
        ("budget of the run", rules.get("workflow"), None),
    ]
    for body, kept in zip(stages, settings["stages"], strict=False):
        written.append((f"budget of stage {body['name']!r}", kept.get("budget"), body["name"]))
    return [
        BudgetBalance(name, Budget(**budget), stage) for name, budget, stage in written if budget
    ]


async def _burns(database: Database, record: runs.RunRecord, pace: Pace) -> list[BudgetBurn]:
    """Returns how fast the budgets of a run are spent."""
    balances = await run_budgets(database, record)
    invocation = record.invocation.id if record.invocation else 0
    lost = await runs.lost_calls(database, record.id, invocation)
    loaded(balances, await runs.counters(database, record.id), lost)
    eta = pace.report["pace"]["eta_s"]
    burns = []
    for balance, spent_by_unit in zip(balances, facts(balances), strict=True):
        stages = [each for name, each in pace.stages.items() if name and balance.holds_for(name)]
        for unit in spent_by_unit.keys() - {"name"}:
            amounts: Any = spent_by_unit[unit]
            a_second = sum(getattr(each, unit) for each in stages) / pace.seconds
            left = max(amounts["limit"] - amounts["spent"] - amounts["held"], 0)
            burns.append(
                BudgetBurn(
                    balance.name,
                    unit,
                    **amounts,
                    an_hour=3600 * a_second,
                    hit_at=_hit_at(left, a_second, eta),
                )
            )
    return sorted(burns, key=lambda burn: (burn.name, burn.unit), reverse=True)


def _hit_at(left: float, a_second: float, eta: float | None) -> Moment | None:
    """Returns when what is `left` of a budget is spent; None if nothing is spent now, or the run
    ends before."""
    if a_second <= 0:
        return None
    seconds = left / a_second
    if eta is not None and eta < seconds:
        return None
    return time.time() + seconds


def _advice(report: Mapping[str, Any], record: runs.RunRecord) -> list[Advice]:
    """Returns commands that may be of use for a run in its present state."""
    advice = []
    number = record.id
    if report["open_batches"]:
        retrieve = f"agac batch retrieve --run {number}"
        advice.append(Advice("takes what ended of its batches", retrieve))
    summary = read_as(RunSummary, report)
    waiting = sum(stage.review.waiting for stage in summary.stages if stage.review is not None)
    if waiting:
        rows = f"{counted(waiting, 'row')} {'waits' if waiting == 1 else 'wait'} for a decision"
        advice.append(Advice(rows, f"agac review next -a {summary.workflow}"))
    if report["state"] in ("killed", "stopped", "waiting"):
        advice.append(Advice("resumes it", report["go_on"]))
    if summary.rows.failed and report["state"] != "running":
        advice.append(Advice("tries the failed rows again", f"agac retry {number}"))
    if summary.rows.done:
        partial = "" if record.finished_at is not None else " --partial"
        export = f"agac export --run {number}{partial} --to results.csv"
        advice.append(Advice("writes its results into a file", export))
    return advice


async def aask(project: Path | str | None, run: int | str, batch: int | None = None) -> None:
    """Asks the process that works on a run, which looks every few seconds, to stop as Ctrl-C does,
    or to cancel a batch of the run. If no process works on it, the next one that works on the
    workflow cancels the batch (`agac run`, `agac batch retrieve`). Raises UsageError if nothing
    works on a run that is to stop, and for a batch that cannot be cancelled."""
    async with open_database(database_path(project_root(project))) as database:
        record = await find_run(database, None, run)
        if batch is None:
            kind = "stop"
            event = await _running_invocation(database, record)
        else:
            kind = "cancel_batch"
            event = None
            await _refuse_uncancellable(database, record, batch)
        body = json.dumps({"batch": batch} if batch is not None else {})
        await write(
            database, "inbox_put", record.workflow, record.id, event, kind, body, time.time()
        )


async def _running_invocation(database: Database, record: runs.RunRecord) -> int | None:
    """Returns the number of the invocation that works on a run. Raises UsageError if none does."""
    _, last, _ = await state_of(database, record, None)
    if last is None or last["state"] != "running":
        raise UsageError(f"nothing works on run {record.id}", remedy="There is nothing to stop.")
    return last["number"] or None


async def _refuse_uncancellable(database: Database, record: runs.RunRecord, batch: int) -> None:
    """Raises UsageError for a batch that the run does not have, or that cannot be cancelled."""
    lines = await batch_lines(database, {}, await batches.batches(database, run=record.id))
    cancellable = [line.batch.id for line in lines if line.may_cancel]
    if batch not in cancellable:
        what = f"run {record.id} has no batch {batch} that could be cancelled"
        numbers = ", ".join(map(str, cancellable)) or "none"
        raise UsageError(what, remedy=f"These can be: {numbers}.")
