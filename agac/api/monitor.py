"""What the monitor shows, as values: runs, one run, its curves, its rows, its errors; and what it
asks of a process.

Each reader takes READ_SECONDS at most, whatever the store holds: counts come from roll-ups, lists
go by an index."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

from agac.api.batches import BatchLine, batch_lines
from agac.api.status import (
    database_path,
    find_run,
    full_report,
    go_on,
    position_of,
    remedy_of,
    run_report,
    state_of,
    stored_run,
)
from agac.core.errors import AgacError, UsageError
from agac.core.reading import read_as
from agac.core.types import Moment, Outcome, Report, RowId, counted
from agac.data.sources import estimated_rows
from agac.engine.ask.limits import Amount, BudgetBalance, facts, loaded
from agac.engine.output.histograms import RATIO, quantile
from agac.engine.summary import RunSummary
from agac.plan.plan import Selection
from agac.spec.paths import project_root
from agac.spec.rules import Budget
from agac.store import batches, roll_ups, runs
from agac.store.db import Database, open_for_reading, write
from agac.store.records import LaneSample
from agac.store.roll_ups import IndexedRows
from agac.store.rows import State
from agac.store.writer import open_database

READ_SECONDS = 2.0  # a look that takes longer is cut: it raises TookTooLong
LOOK_SECONDS = 0.15  # for which rows are looked at for one page
LATELY = 5  # minutes of which a rate is told
LANE_SECONDS = 10.0  # a lane whose last sample is older is not at work
POINTS = 240  # on a curve, at most
MOST_BATCHES = 200  # of a run that are shown
ALIKE = 200  # rows that failed in one way whose messages are looked at


class Advice(NamedTuple):
    """A command to copy, and what it does."""

    what: str
    command: str


@dataclass(frozen=True, slots=True)
class RunCards(Report):
    """Runs, the one last worked on first, each as `agac status` has it (`api.status.run_report`)
    with its `pace`: `expected`, how many rows of the input there are to be (None: not known),
    which is `exact` once the input was read; `rate`, rows that ended in a minute of late, while it
    is running; `eta_s`, seconds until its end at that rate. `next`: the `after` of the next page,
    None: there is none."""

    runs: tuple[dict[str, Any], ...]
    total: int
    next: int | None


@dataclass(frozen=True, slots=True)
class BudgetBurn(Report):
    """A budget: `spent` of its `limit` in `unit` (usd, tokens or calls), and `held`, which is
    perhaps spent too. At the pace of late it is spent at `hit_at`; None: its rows end before, or
    nothing is spent now."""

    name: str
    unit: str
    limit: float
    spent: float
    held: float
    an_hour: float
    hit_at: Moment | None


@dataclass(frozen=True, slots=True)
class MonitoredRun(Report):
    """One run: its `report` as `agac status RUN` has it, with its `pace` as in RunCards; `rates`:
    tasks of each stage that ended in a minute of late; `lanes`: the newest samples of those at
    work; the open `batches` and the newest of the others; commands that may be of use now; what
    was lately `asked` of the process at work (id, kind, body, at, applied_at, outcome), and
    `estimated_usd`, what it was expected to cost; None: nobody knew."""

    report: dict[str, Any]
    rates: dict[str, float]
    lanes: tuple[LaneSample, ...]
    budgets: tuple[BudgetBurn, ...]
    batches: tuple[BatchLine, ...]
    advice: tuple[Advice, ...]
    asked: tuple[dict[str, Any], ...]
    estimated_usd: float | None

    @property
    def record(self) -> RunSummary:
        """The summary of the run, out of the `report`."""
        return read_as(RunSummary, self.report)


@dataclass(frozen=True, slots=True)
class RunCurves(Report):
    """A run over time. `at`: the beginnings of steps of `step_s` seconds, in seconds since 1970.
    `lines` have a number for each by name: COLUMNS, which are rows of the input by outcome (who is
    run again counts -1 where it stood before) and calls of all stages; `p50_ms` and `p95_ms` of
    calls that were answered in the last minute with any (None: there is none). `lanes`: samples by
    lane, one in `lane_step_s` seconds at most. `budgets`: by name and unit, what of it was `spent`
    by the end of each step, and its `limit`."""

    run: int
    step_s: int
    at: tuple[float, ...]
    lines: dict[str, list[Any]]
    lane_step_s: float
    lanes: dict[str, list[LaneSample]]
    budgets: dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True)
class RowFilters:
    """Which rows are listed. `state`: open, done, failed, dropped or skipped; with a `stage` what
    became of its task: these, or reused. `error`: a kind of error; `id`: its beginning; `text`: in
    the input, the result or the message. `made_by`: the stage that made the rows, None: those of
    the input. `sort`: one of `RowPage.sorts`; None: the first."""

    state: str | None = None
    stage: str | None = None
    error: str | None = None
    id: str | None = None
    text: str | None = None
    made_by: str | None = None
    sort: str | None = None


@dataclass(frozen=True, slots=True)
class RowPage(Report):
    """Rows, each with key, id, occurrence, number (its place in the input), state, stage (where it
    failed), error, message, input and result (JSON; these three cut after 160 characters), and of
    its calls in this run: calls, cost_usd, cost_is_simulated, duration_s, input_tokens,
    output_tokens. `next`: the `after` of the next page, None: there is none. A page that is not
    full has a next one where only so many rows were `looked` at. `sorts`: place, id or error, as
    far as an index gives that order; open rows by place come last first."""

    run: int
    rows: tuple[dict[str, Any], ...]
    next: str | None
    looked: int
    sorted_by: str
    sorts: tuple[str, ...]


class AlikeErrors(NamedTuple):
    """Messages that differ in numbers and quoted texts alone: one of them, how many rows have it,
    some of their ids."""

    message: str
    rows: int
    examples: tuple[RowId, ...]


@dataclass(frozen=True, slots=True)
class ErrorGroup(Report):
    """Rows that failed at a `stage` (None: before any) with one kind of error: `rows` in all, of
    which `looked` were looked at for the `messages`, the most frequent first; and what tries them
    again."""

    stage: str | None
    type: str
    rows: int
    looked: int
    messages: tuple[AlikeErrors, ...]
    advice: Advice


# Runs, and one run.


async def aruns(
    after: int | None = None, limit: int = 50, *, project: Path | str | None = None
) -> RunCards:
    """The runs of all workflows, from the one behind run `after` on."""
    root = project_root(project)
    async with open_for_reading(database_path(root), READ_SECONDS) as database:
        numbers = await runs.run_ids(database, None) if database else []
        begin = numbers.index(after) + 1 if after in numbers else 0
        cards = []
        page = numbers[begin : begin + limit] if database else []
        for number in page:
            assert database is not None
            record = await runs.run_record(database, number)
            paced, *_ = await _paced(root, database, record, await run_report(database, record))
            cards.append(paced)
        return RunCards(
            tuple(cards), len(numbers), page[-1] if begin + limit < len(numbers) else None
        )


async def _paced(
    root: Path, database: Database, record: runs.RunRecord, report: dict[str, Any]
) -> tuple[dict[str, Any], Mapping[str, roll_ups.Lately], float]:
    """The report with its `pace`; and what the stages came to in so many seconds of late, while
    the run is running."""
    stages = dict[str, roll_ups.Lately]()
    seconds = 1.0
    now = time.time()
    if report["state"] == "running" and record.invocation is not None:
        first = int(now // 60) - LATELY
        stages = await roll_ups.lately(database, record.id, first)
        seconds = max(now - max(60 * first, record.invocation.at), 1.0)
    summary = read_as(RunSummary, report)
    rows = summary.rows
    exact = record.read_at is not None
    expected = None
    if exact:
        expected = rows.total
    elif "sql" not in (await runs.definition_of(database, record.id))["input"]:
        with suppress(OSError, AgacError):  # it is only a guess
            selection = Selection(**record.selection)
            file = root / summary.request.input
            guess = estimated_rows(file) if file.is_file() else None
            expected = guess and max(rows.total, selection.taken(max(0, guess - selection.offset)))
    rate = 60 * stages[""].settled / seconds if "" in stages else None
    eta = None
    if expected is not None and rate is not None and rate > 0:
        eta = 60 * (expected - rows.total + rows.open) / rate
    return (
        report | {"pace": {"expected": expected, "exact": exact, "rate": rate, "eta_s": eta}},
        stages,
        seconds,
    )


async def arun(run: int | str = "last", *, project: Path | str | None = None) -> MonitoredRun:
    """A run by its number, or the one last worked on. Raises UsageError for a run that does not
    exist."""
    root = project_root(project)
    async with stored_run(root, run, seconds=READ_SECONDS) as (database, record):
        report, stages, seconds = await _paced(
            root, database, record, await full_report(database, record)
        )
        since = {"since": time.time() - LANE_SECONDS, "step": LANE_SECONDS, "until": 0}
        lanes = await roll_ups.lanes_of(database, run=record.id, **since)
        stored = await batches.batches(database, run=record.id, closed=True)
        stored.sort(key=lambda one: (not one.open, -one.id))
        known = [one.usd for one in (await runs.estimates(database, record.id)).values()]
        return MonitoredRun(
            report,
            {name: 60 * one.settled / seconds for name, one in stages.items() if name},
            tuple({one.lane: one for one in lanes}.values()),
            tuple(await _burns(database, record, stages, seconds, report["pace"]["eta_s"])),
            tuple(await batch_lines(database, {}, stored[:MOST_BATCHES])),
            tuple(_advice(report, record)),
            tuple(await roll_ups.asked_for(database, record.id)),
            sum(one or 0.0 for one in known) if any(one is not None for one in known) else None,
        )


async def _budgets(database: Database, record: runs.RunRecord) -> list[BudgetBalance]:
    """The budgets of a run and its stages, as yet without what was spent of them."""
    settings = await runs.run_settings_of(database, record.id) or {"rules": {}, "stages": []}
    stages = (await runs.definition_of(database, record.id))["stages"]
    given = [("budget of agac.yml", settings["rules"].get("project"), None)]
    given.append(("budget of the run", settings["rules"].get("workflow"), None))
    for body, own in zip(stages, settings["stages"], strict=False):
        given.append((f"budget of stage {body['name']!r}", own.get("budget"), body["name"]))
    return [BudgetBalance(name, Budget(**budget), stage) for name, budget, stage in given if budget]


async def _burns(
    database: Database,
    record: runs.RunRecord,
    lately: Mapping[str, roll_ups.Lately],
    seconds: float,
    eta: float | None,
) -> list[BudgetBurn]:
    balances = await _budgets(database, record)
    lost = await runs.lost_calls(
        database, record.id, record.invocation.id if record.invocation else 0
    )
    loaded(balances, await runs.counters(database, record.id), lost)
    burns = []
    now = time.time()
    for balance, told in zip(balances, facts(balances), strict=True):
        own = [one for name, one in lately.items() if name and balance.holds_for(name)]
        for unit in told.keys() - {"name"}:
            about: Any = told[unit]
            pace = sum(getattr(one, unit) for one in own) / seconds
            if pace > 0:
                ends = max(about["limit"] - about["spent"] - about["held"], 0) / pace
            else:
                ends = None
            if ends is None or (eta is not None and eta < ends):
                hit = None
            else:
                hit = now + ends
            burns.append(BudgetBurn(balance.name, unit, **about, an_hour=3600 * pace, hit_at=hit))
    return sorted(burns, key=lambda one: (one.name, one.unit), reverse=True)


def _advice(report: Mapping[str, Any], record: runs.RunRecord) -> list[Advice]:
    found = []
    number = record.id
    if report["open_batches"]:
        found.append(
            Advice("takes what ended of its batches", f"agac batch retrieve --run {number}")
        )
    summary = read_as(RunSummary, report)
    waiting = sum(stage.review.waiting for stage in summary.stages if stage.review is not None)
    if waiting:
        rows = f"{counted(waiting, 'row')} {'waits' if waiting == 1 else 'wait'} for a decision"
        found.append(Advice(rows, f"agac review next -a {summary.workflow}"))
    if report["state"] in ("killed", "stopped", "waiting"):
        found.append(Advice("resumes it", report["go_on"]))
    if summary.rows.failed and report["state"] != "running":
        found.append(Advice("tries the failed rows again", f"agac retry {number}"))
    if summary.rows.done:
        partial = "" if record.finished_at is not None else " --partial"
        found.append(
            Advice(
                "writes its results into a file",
                f"agac export --run {number}{partial} --to results.csv",
            )
        )
    return found


# Curves.

COLUMNS = (*Outcome, "calls", "failed_calls", "input_tokens", "output_tokens", "cost_usd")
"""What is counted of each minute, in the order of the statement `minutes_of`."""


async def acurves(run: int | str = "last", *, project: Path | str | None = None) -> RunCurves:
    """A run over time, in POINTS steps at most. Raises UsageError for a run that does not exist."""
    async with stored_run(project_root(project), run, seconds=READ_SECONDS) as (database, record):
        last = record.invocation
        begun = await roll_ups.first_minute(database, record.id)
        first = max(int(record.created_at // 60), begun or 0)
        until = (last.ended_at if last is not None else None) or time.time()
        step = max(1, -(-int(until // 60 + 1 - first) // POINTS))
        asked = {
            "run": record.id,
            "since": first // step * step,
            "step": step,
            "until": until // 60 + 1,
        }
        minutes = await roll_ups.minutes_of(database, **asked)
        times = defaultdict[int, Counter[int]](Counter)
        for point, bucket, count in await roll_ups.minute_timings_of(database, **asked):
            times[point][4 * bucket] += count
        pause = max(2.0, (until - 60 * first) / POINTS)
        lanes = defaultdict(list)
        # calls are counted when they are stored, in the next minute perhaps
        since = 60 * (first - 1)
        for sample in await roll_ups.lanes_of(
            database, run=record.id, since=since, step=pause, until=until
        ):
            lanes[sample.lane].append(sample)
        balances = await _budgets(database, record)
    sums = defaultdict[int, list[Any]](lambda: [0] * len(COLUMNS))
    for point, _, *numbers in minutes:
        sums[point] = list(map(add, sums[point], numbers))
    at = sorted(sums.keys() | times)
    lines = {name: [sums[one][place] for one in at] for place, name in enumerate(COLUMNS)}
    lines |= {f"p{n}_ms": [_ms(quantile(times[one], n / 100)) for one in at] for n in (50, 95)}
    budgets = {title: lines for one in balances for title, lines in _spent(one, minutes, at)}
    return RunCurves(
        record.id,
        60 * step,
        tuple(60.0 * step * one for one in at),
        lines,
        pause,
        dict(lanes),
        budgets,
    )


def _spent(
    balance: BudgetBalance, minutes: Iterable[Any], at: Sequence[int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """How a budget was spent in each of its units, by the steps `at`."""
    steps = defaultdict[int, Amount](Amount)
    for point, stage, *numbers in minutes:
        if balance.holds_for(stage):
            calls, _, given, made, usd = numbers[-5:]
            steps[point] = steps[point].plus(Amount(usd, given + made, calls))
    for unit, *spent in zip(
        Amount._fields, *accumulate((steps[one] for one in at), Amount.plus), strict=True
    ):
        limit = getattr(balance.budget, unit)
        if limit is not None:
            yield (
                f"{balance.name}, {unit}",
                {"spent": [round(one, 6) for one in spent], "limit": [limit] * len(at)},
            )


def _ms(seconds: float | None) -> float | None:
    """Of a quantile of histograms with four buckets in one, told as the first of the four: the
    middle of them."""
    if seconds is None:
        return None
    return round(float(1000 * seconds * RATIO**1.5), 1)


# Rows.

_ANY = 0b111111
_STATES = {
    "open": 1 << State.PENDING,
    "done": 1 << State.DONE,
    "failed": 1 << State.FAILED,
    "skipped": 1 << State.SKIPPED,
    "dropped": 1 << State.DROPPED | 1 << State.FILTERED,
}


async def arows(
    run: int | str = "last",
    filters: RowFilters | None = None,
    after: str | None = None,
    limit: int = 50,
    *,
    project: Path | str | None = None,
) -> RowPage:
    """A page of the rows of a run, from behind the place `after` on. A row that comes while pages
    are read is on one of those that follow, or on none; none is on two. Raises UsageError for
    what is not there, or no index can sort."""
    filters = filters or RowFilters()
    state = filters.state
    stage = filters.stage
    error = filters.error
    text = filters.text
    if state is not None and state not in _STATES and not (stage and state == Outcome.REUSED):
        raise UsageError(
            f"{state!r} is no state of a row", remedy=f"States are: {', '.join(_STATES)}."
        )
    failed = state == "failed" or (error is not None and state is None)
    async with stored_run(project_root(project), run, seconds=READ_SECONDS) as (database, record):
        names = [body["name"] for body in (await runs.definition_of(database, record.id))["stages"]]
        if filters.made_by is not None:
            made_by = position_of(filters.made_by, names, "made_by")
        else:
            made_by = None
        position = position_of(stage, names, "stage") if stage is not None else None
        sorts: tuple[str, ...]
        if filters.id:
            sorts = ("id",)
        elif failed:
            sorts = ("error", "id")
        else:
            sorts = ("place", "id")
        sort = filters.sort or sorts[0]
        if sort not in sorts:
            raise UsageError(
                f"these rows cannot be sorted by {sort}", remedy=f"They can by: {', '.join(sorts)}."
            )
        values = {
            "run": record.id,
            "origin": made_by,
            "error": error or "",
            "text": _like(text),
            "states": _ANY if stage or state is None else _STATES[state],
            "position": position,
            "outcome": "failed" if failed else state or "",
        }
        sources = await _in_order(database, record.id, filters, sort, made_by)
        try:
            keys, following, looked = await roll_ups.page_of(
                database, sources, values, after, limit, LOOK_SECONDS
            )
        except (ValueError, TypeError) as wrong:
            raise UsageError(
                f"{after!r} is no place in this list", remedy="Begin at its first page."
            ) from wrong
        found = await roll_ups.rows_shown(database, keys) if keys else {}
    return RowPage(
        record.id,
        tuple(found[key] for key in keys if key in found),
        following,
        looked,
        sort,
        sorts,
    )


async def _in_order(
    database: Database, run: int, filters: RowFilters, sort: str, made_by: int | None
) -> list[IndexedRows]:
    """The rows of a list by id, by error, or by their place, as an index has them."""
    if sort == "id":
        return roll_ups.in_id_order(filters.id or None)
    if sort == "error":
        statement = "rows_failed_so" if made_by is None else "rows_made_failed_so"
        ways = sorted(way[::-1] for way in await _failures(database, run))
        wanted = (
            (kind, at)
            for kind, at in ways
            if filters.error in (None, kind) and filters.stage in (None, at)
        )
        return [
            IndexedRows(statement, [*way], {"kind": way[0], "failed_at": way[1] or None})
            for way in wanted
        ]
    if filters.state == "open" and filters.stage is None and made_by is None:
        return [roll_ups.FROM_THE_END]
    return [IndexedRows("rows_by_place" if made_by is None else "rows_made_by", [], {})]


def _like(text: str | None) -> str | None:
    """A pattern that finds a text within JSON, where quotes and backslashes are written with a
    backslash."""
    escaped = re.sub(r"([\\%_])", r"\\\1", json.dumps(text or "", ensure_ascii=False)[1:-1])
    return f"%{escaped}%" if escaped else None


# Errors.

_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\d[\d.,:_-]*")


async def _failures(database: Database, run: int) -> Counter[tuple[str, str]]:
    """Failed rows by stage and kind, from roll-ups; those before any stage ('') may have come at a
    stage as well."""
    found = Counter[tuple[str, str]]()
    others = Counter[str]()
    for one in await runs.counters(database, run):
        if one.outcome == Outcome.FAILED:
            found[one.stage, one.error_type] += one.tasks
            others[one.error_type] += one.tasks if one.stage else 0
    for _, stage, kind, rows in await roll_ups.made_failures(database, run):
        found["", kind] += rows
        found[stage, kind] += 0
    for kind, rows in others.items():
        found["", kind] = max(found["", kind] - rows, 0)
    return found


async def aerrors(
    run: int | str = "last", *, project: Path | str | None = None
) -> tuple[ErrorGroup, ...]:
    """How the rows of a run failed, the most frequent way first, with messages, some rows each,
    and what to do. Raises UsageError for a run that does not exist."""
    groups = []
    async with stored_run(project_root(project), run, seconds=READ_SECONDS) as (database, record):
        for (stage, kind), rows in (await _failures(database, record.id)).items():
            some = await roll_ups.failures_like(database, record.id, kind, stage or None, ALIKE)
            alike: dict[str, list[tuple[RowId, str]]] = defaultdict(list)
            for row_id, message in some:
                alike[_VARIES.sub("…", message or "")].append((row_id, message or ""))
            messages = [
                AlikeErrors(own[0][1], len(own), tuple(row_id for row_id, _ in own[:5]))
                for own in sorted(alike.values(), key=len, reverse=True)[:20]
            ]
            advice = _remedy(record, stage or None, kind)
            if some:
                rows = max(rows, len(some))
                groups.append(
                    ErrorGroup(stage or None, kind, rows, len(some), tuple(messages), advice)
                )
    return tuple(sorted(groups, key=lambda one: one.rows, reverse=True))


def _remedy(record: runs.RunRecord, stage: str | None, kind: str) -> Advice:
    needs = remedy_of(kind, stage)
    retry = f"agac retry {record.id} --stage {stage} --error {kind}"
    return {
        "input": Advice("resumes the run, once the input is corrected", go_on(record)),
        "schema": Advice("runs them, once the output_schema requires the field", go_on(record)),
        "budget": Advice("tries them again, once a row may spend more", retry),
        "calls": Advice(
            "tries them again, and makes their calls of tools again", f"{retry} --repeat-calls"
        ),
        "people": Advice(
            "discards what people decided, and asks them again", f"{retry} --discard-decisions"
        ),
        "again": Advice("tries them again", retry),
    }[needs]


# What is asked of the process that works on a run.


async def aask(project: Path | str | None, run: int | str, batch: int | None = None) -> None:
    """Asks the process that works on a run, which looks within seconds, to stop, as Ctrl-C does,
    or to cancel a batch of the run; where there is none, the next one that works on the workflow
    cancels it (`agac run`, `agac batch retrieve`). Raises UsageError where nothing works on the
    run, and for a batch that it cannot cancel."""
    async with open_database(database_path(project_root(project))) as database:
        record = await find_run(database, None, run)
        kind = "cancel_batch"
        event = 0
        if batch is not None:
            lines = await batch_lines(database, {}, await batches.batches(database, run=record.id))
            if batch not in (may := [one.batch.id for one in lines if one.may_cancel]):
                what = f"run {record.id} has no batch {batch} that could be cancelled"
                raise UsageError(
                    what, remedy=f"These can be: {', '.join(map(str, may)) or 'none'}."
                )
        else:
            _, last, _ = await state_of(database, record, None)
            if last is None or last["state"] != "running":
                raise UsageError(
                    f"nothing works on run {record.id}", remedy="There is nothing to stop."
                )
            kind = "stop"
            event = last["number"]
        body = json.dumps({"batch": batch} if batch is not None else {})
        await write(
            database,
            "inbox_put",
            record.workflow,
            record.id,
            event or None,
            kind,
            body,
            time.time(),
        )
