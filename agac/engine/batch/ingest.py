"""Results of a batch read into the store: every task gets an end, whatever the files hold."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from agac.core.errors import ErrorType, RowError
from agac.core.keys import canonical, read_custom_id
from agac.core.types import Fault, FaultKind, Reply, Row, Usage
from agac.engine.batch.lifecycle import BatchContext, BatchFormat
from agac.engine.budget import NOTHING, Amount, BudgetLimiter
from agac.engine.settle import Totals, how_answered, record_call
from agac.providers.batch import BatchState, ResultLine, UnreadableLine
from agac.providers.prices import BATCH, cost
from agac.spec.workflow import BatchRules
from agac.store.batches import BatchRecord, PlacedTask, TaskState, tasks_at, tasks_left
from agac.store.db import sql
from agac.store.records import HOW, Call, EndedTask, NewRow, Result, WriteBatch
from agac.store.rows import State, earlier_results

Then = Literal["batch", "repair", "fallback", "sync", "run"]
"""What is next for a task: another batch, a batch that quotes what was wrong, the next model, a call, or nothing before
the user runs the workflow again."""

MissingAnswer = Literal["expired", "cancelled", "unanswered", "missing", "malformed"]
"""Why there is no answer: the batch ran out of time; it was cancelled; the provider failed at it; no line told of it;
its line could not be read."""

_MISSING: dict[MissingAnswer, tuple[ErrorType, str]] = {
    "expired": (ErrorType.TIMEOUT, "the batch expired before this request was processed"),
    "cancelled": (ErrorType.BATCH_LOST, "the provider cancelled it"),
    "unanswered": (ErrorType.PROVIDER_ERROR, "the provider failed without an answer"),
    "missing": (ErrorType.BATCH_LOST, "the batch results have no line for this request"),
    "malformed": (ErrorType.BATCH_LOST, "its line in the results cannot be read"),
}


@dataclass(frozen=True, slots=True)
class AttemptCounts:
    """How often a task was asked so far: rounds of its question at this model, re-asks that quoted errors; `models`
    left to ask after this one; `repairs_left`."""

    round: int
    models_left: int
    repairs_left: int


@dataclass(frozen=True, slots=True)
class NextStep:
    """What is next; or, where `then` is None, the error with which the task fails."""

    then: Then | None
    error: RowError


def after_missing_answer(
    missing: MissingAnswer, attempts: AttemptCounts, rules: BatchRules, said: str = ""
) -> NextStep:
    """A task that was not answered, which is not billed unless its line was lost."""
    kind, words = _MISSING[missing]
    return _again(RowError(kind, f"{words}: {said}" if said else words), attempts, rules)


def after_fault(fault: Fault, attempts: AttemptCounts, rules: BatchRules) -> NextStep:
    """A line that holds an error: what may pass is asked again, what may not is not."""
    error = RowError(fault.type, fault.message)
    if fault.kind in (FaultKind.RETRY, FaultKind.PAUSE):
        return _again(error, attempts, rules)
    return _other_model(error, attempts)


def after_check(error: RowError, attempts: AttemptCounts, rules: BatchRules) -> NextStep:
    """A reply that is no result. One of the wrong form is quoted to its model, which has been paid for then."""
    if error.type is ErrorType.SCHEMA_MISMATCH and attempts.repairs_left > 0 and rules.retry != "fail":
        return NextStep("repair", error)
    return _other_model(error, attempts)


def _again(error: RowError, attempts: AttemptCounts, rules: BatchRules) -> NextStep:
    if rules.retry == "fail":
        return _other_model(error, attempts)
    if attempts.round >= rules.max_rounds:
        rounds = f"{attempts.round} rounds" if attempts.round > 1 else "1 round"
        return _other_model(RowError(error.type, f"{error.message} (after {rounds})"), attempts)
    return NextStep(rules.retry, error)


def _other_model(error: RowError, attempts: AttemptCounts) -> NextStep:
    return NextStep("fallback" if attempts.models_left > 0 else None, error)


# Lines are read some hundred at a time, each chunk one commit. A task that has an end is not looked at again, so what a
# crash interrupts is read again from the files, which lie on this machine, and nothing is counted twice.

_log = logging.getLogger("agac.batch")

CHUNK_LINES = 512
STRANGE = ".strange"
"""The ending of files with lines that are no results of ours: they are kept for whoever looks into it."""

BOM = b"\xef\xbb\xbf"


OF_TASKS = ("done", "failed", "again", "cancelled", "expired", "unanswered", "missing")
"""Counts of tasks, which each chunk commits; the others are of lines."""


@dataclass(slots=True)
class ResultReader:
    """What one reading of a batch's results came to so far. `counts` by what lines came to; `real` what they cost."""

    record: BatchRecord
    form: BatchFormat
    counts: Counter[str] = field(default_factory=Counter)
    real: Amount = NOTHING
    unpriced: int = 0
    write: WriteBatch = field(default_factory=WriteBatch)
    under_way: set[int] = field(default_factory=set)
    """Places whose ends are being committed: the store does not show them yet."""


class Ingester:
    """Reads results. `budget` and `totals` are the invocation's: what belongs to another run is not counted there."""

    def __init__(self, context: BatchContext, budget: BudgetLimiter | None, totals: Totals) -> None:
        self._context, self._budget, self._totals = context, budget, totals

    async def ingest(self, record: BatchRecord, form: BatchFormat, files: Sequence[Path]) -> BatchRecord:
        """All of the results, then all tasks of which they do not tell. Killed anywhere: the same again."""
        reading = ResultReader(record, form, Counter({k: n for k, n in counts_of(record).items() if k in OF_TASKS}))
        strange = self._context.path(record, STRANGE)
        writing: asyncio.Future[None] | None = None
        for lines in _chunks(files):
            await self._lines(reading, lines, strange)
            if writing is not None:
                await writing  # one commit is under way while the next lines are read, not more
            writing = self._put(reading)
        if writing is not None:
            await writing
        await self._without_line(reading)
        if self._budget is not None and record.run_id == self._context.run:
            self._budget.ingested(record.id, reading.real)
        cost_usd = None if reading.unpriced and not reading.real.usd else (record.cost or 0.0) + reading.real.usd
        told = ", ".join(f"{count:,} {name}" for name, count in sorted(reading.counts.items()) if count)
        _log.info("batch %d: %s", record.id, told or "no results")
        return await self._context.journal.ingested(record, reading.counts, cost_usd)

    async def late(self, record: BatchRecord, form: BatchFormat, file: Path) -> tuple[int, int]:
        """Keeps the good answers in a file for which no result is stored: how many, and how many others were there,
        which were paid for twice. Whoever asks their tasks next finds these. All calls are counted: they were paid."""
        reading, kept = ResultReader(record, form), 0
        for lines in _chunks([file]):
            named = {}
            for line in lines:
                with suppress(UnreadableLine):
                    result = form.clean(form.lines.result(line))
                    name = read_custom_id(result.custom_id)
                    if name is not None and name[0] == record.intent and result.ended == "answered":
                        named[name[1]] = result
            tasks = await tasks_at(self._context.database, record.id, list(named))
            known = await earlier_results(self._context.database, [task.fingerprint for task in tasks.values()], 0.0)
            for place, task in tasks.items():
                self._take_line(reading, task, named[place])
            fresh = [result for result in reading.write.results if result.fingerprint not in known]
            kept += len(fresh)
            reading.write.results = fresh
            reading.write.ended.clear()
            await self._put(reading, counted=False)
        return kept, reading.counts["done"] - kept

    def _put(self, reading: ResultReader, *, counted: bool = True) -> asyncio.Future[None]:
        """Commits what was read, as calls of the invocation that asked them."""
        record = reading.record
        write, reading.write = reading.write, WriteBatch()
        spent = sum(a.call.cost or 0.0 for a in write.attempts)
        told = canonical({kind: reading.counts[kind] for kind in OF_TASKS}) if counted else record.counts

        def further(writer: sqlite3.Connection) -> None:
            writer.execute(sql("batch_chunk"), (spent, told, record.id))

        return asyncio.ensure_future(self._context.ledger.put(write, record.run_id, record.event_id, further))

    async def _lines(self, reading: ResultReader, lines: Iterable[bytes], strange: Path) -> None:
        """A chunk of lines. What is none of our results is kept beside them, and told."""
        named: dict[int, tuple[str, ResultLine]] = {}
        odd: list[bytes] = []
        for line in lines:
            try:
                result = reading.form.clean(reading.form.lines.result(line))
            except UnreadableLine as why:
                _log.warning("batch %d: a line cannot be read: %s", reading.record.id, why)
                reading.counts["malformed"] += 1
                odd.append(line)
                continue
            name = read_custom_id(result.custom_id)
            if name is None or name[0] != reading.record.intent or name[1] >= reading.record.tasks:
                reading.counts["unknown"] += 1
                odd.append(line)
            elif name[1] in named and not _is_better(result, named[name[1]][1]):
                reading.counts["duplicate"] += 1
            else:
                reading.counts["duplicate"] += name[1] in named
                named[name[1]] = (name[2], result)
        if odd:
            await asyncio.to_thread(_append, strange, odd)
        tasks = await tasks_at(self._context.database, reading.record.id, list(named))
        under_way, reading.under_way = reading.under_way, set(named)
        for place, (mark, result) in named.items():
            task = tasks.get(place)
            if place in under_way:
                reading.counts["duplicate"] += 1
            elif task is None or task.fingerprint[:6].hex() != mark:
                reading.counts["unknown"] += 1
            elif task.state == TaskState.ENROLLED:
                self._take_line(reading, task, result)

    def _take_line(self, reading: ResultReader, task: PlacedTask, line: ResultLine) -> None:
        """A line that tells of a task."""
        if line.ended != "answered":
            self._not_answered(reading, task, line.ended, line.message)
            return
        form = reading.form
        reply = form.read(line)
        if isinstance(reply, Fault):
            error = RowError(reply.type, reply.message)
            self._keep(reading, task, _call(reading, task, line, None, error))
            self._end(reading, task, after_fault(reply, self._attempts(reading, task), form.rules))
            return
        checked = form.checker.check(reply)
        if isinstance(checked, RowError):
            self._keep(reading, task, _call(reading, task, line, reply, checked))
            self._end(reading, task, after_check(checked, self._attempts(reading, task), form.rules))
            return
        call = _call(reading, task, line, reply, None, mended=checked.mended)
        self._keep(reading, task, call)
        how = how_answered(call.purpose, task.position, mended=checked.mended)
        now = self._context.clocks.wall()
        reading.write.results.append(Result(task.fingerprint, checked.text, call.endpoint, now, how=how))
        if how:
            reading.write.tally((form.stage.name, HOW, how, "")).count += 1
        self._ended(reading, task, None, None)
        reading.counts["done"] += 1

    async def _without_line(self, reading: ResultReader) -> None:
        """The tasks of which no line told."""
        missing = _missing_reason(reading.record)
        after = -1
        while left := await tasks_left(self._context.database, reading.record.id, after, CHUNK_LINES):
            after = left[-1].place
            for task in left:
                if missing == "missing":
                    self._keep(reading, task, _lost_call(reading, task))
                self._not_answered(reading, task, missing, "")
            await self._put(reading)

    def _not_answered(self, reading: ResultReader, task: PlacedTask, missing: MissingAnswer, said: str) -> None:
        """A task without an answer. What its user ended waits for its user, or goes on as was decided then."""
        record = reading.record
        if record.cancel_at is not None:
            reading.counts["cancelled"] += 1
            self._ended(reading, task, record.then_do or "run", None)
            return
        reading.counts[missing] += 1
        self._end(reading, task, after_missing_answer(missing, self._attempts(reading, task), reading.form.rules, said))

    def _attempts(self, reading: ResultReader, task: PlacedTask) -> AttemptCounts:
        stage = reading.form.stage
        return AttemptCounts(task.round, len(stage.models) - 1 - task.position, stage.repair - task.repairs)

    def _end(self, reading: ResultReader, task: PlacedTask, following: NextStep) -> None:
        reading.counts["failed" if following.then is None else "again"] += 1
        self._ended(reading, task, following.then, following.error)

    def _ended(self, reading: ResultReader, task: PlacedTask, then: str | None, error: RowError | None) -> None:
        asked = (task.round, task.position, task.repairs)
        reading.write.ended.append(EndedTask(task.id, task.fingerprint, then, error, *asked))

    def _keep(self, reading: ResultReader, task: PlacedTask, call: Call) -> None:
        """Stores what a line cost and held."""
        stage, row = reading.form.stage, NewRow(_NO_ROW, 0, b"", "", State.PENDING, task.row_key)
        keep_all = reading.form.keeps_all
        spent = record_call(reading.write, row, stage, task.fingerprint, call, task.replica, keep_all=keep_all)
        tokens = (call.usage.input_tokens or 0) + (call.usage.output_tokens or 0) + call.held_tokens
        reading.real = reading.real.plus(Amount((spent or 0.0) + call.held_usd, tokens, 1))
        reading.unpriced += spent is None
        if reading.record.run_id == self._context.run:
            self._totals.count_call(call, spent, stage)


_NO_ROW = Row(0, 0, None)


def _missing_reason(record: BatchRecord) -> MissingAnswer:
    match record.status:
        case BatchState.EXPIRED:
            return "expired"
        case BatchState.CANCELLED:
            return "cancelled"
        case BatchState.FAILED:
            return "unanswered"
        case _:
            return "missing"


def _is_better(one: ResultLine, other: ResultLine) -> bool:
    """Whether a second line tells more of a task than the first: an answer where there was none. Else the first
    stays."""
    return (
        one.ended == "answered"
        and 200 <= one.status < 300
        and not (other.ended == "answered" and 200 <= other.status < 300)
    )


def _call(
    reading: ResultReader,
    task: PlacedTask,
    line: ResultLine,
    reply: Reply | None,
    error: RowError | None,
    *,
    mended: bool = False,
) -> Call:
    record, form = reading.record, reading.form
    usage = reply.usage if reply is not None else Usage()
    price = form.price(BATCH)
    began = record.submitted_at or record.planned_at
    return Call(
        number=task.round + task.repairs,
        endpoint=form.endpoint(reply),
        purpose="repair" if task.repairs else "fallback" if task.position else "ask",
        started_at=began,
        duration=max((record.ended_at or began) - began, 0.0),
        status=line.status if reply is not None or not 200 <= line.status < 300 else None,
        error=error,
        ambiguous=False,
        usage=usage,
        cost=cost(usage, price) if reply is not None and price else None,
        body=line.body,
        again=task.round > 1,
        mended=mended,
        service_tier="batch",
    )


def _lost_call(reading: ResultReader, task: PlacedTask) -> Call:
    """A task that may have been answered, and paid, though no line tells of it."""
    record, form = reading.record, reading.form
    share = max(record.tasks, 1)
    began = record.submitted_at or record.planned_at
    return Call(
        number=task.round + task.repairs,
        endpoint=form.endpoint(None),
        purpose="ask",
        started_at=began,
        duration=0.0,
        status=None,
        error=RowError(ErrorType.BATCH_LOST, "the batch results have no line for this request"),
        ambiguous=True,
        usage=Usage(),
        cost=None,
        body=None,
        held_usd=record.held_usd / share,
        held_tokens=record.held_tokens // share,
    )


def _chunks(files: Sequence[Path]) -> Iterator[list[bytes]]:
    """The lines of result files, some hundred at a time, blank ones left out. Only a line feed ends a line."""
    for file in files:
        with file.open("rb") as stream:
            lines = filter(None, (line.rstrip(b"\r\n") for line in _without_mark(stream)))
            yield from iter(partial(lambda taken: list(islice(taken, CHUNK_LINES)), lines), [])


def _without_mark(stream: Iterable[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(stream):
        yield line.removeprefix(BOM) if number == 0 else line


def _append(path: Path, lines: Sequence[bytes]) -> None:
    with path.open("ab") as file:
        file.writelines(line + b"\n" for line in lines)


def counts_of(record: BatchRecord) -> dict[str, int]:
    """What the lines of an ingested batch came to."""
    found: dict[str, int] = json.loads(record.counts or "{}")
    return found
