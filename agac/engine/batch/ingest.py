"""Results of a batch read into the store: every task gets an end, whatever the files hold."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agac.core.errors import REPAIRED, ErrorType, RowError
from agac.core.keys import canonical, read_custom_id
from agac.core.state_files import opener
from agac.core.types import About, Fault, FaultKind, Reply, Row, Usage
from agac.engine.ask.limits import NOTHING, Amount, counted
from agac.engine.ask.validate import ValidReply
from agac.engine.batch.lifecycle import AROUND_A_REPLY, BatchContext, BatchFormat, Intake
from agac.engine.settle import how_answered, record_call, stored_reply
from agac.engine.walk.replay import RowViews
from agac.plan.render import RowView
from agac.providers.batch import BatchState, ResultLine, UnreadableLine, result_lines
from agac.providers.dialect import beginning_of
from agac.providers.prices import BATCH, cost
from agac.spec.workflow import BatchRules
from agac.store.batches import BatchRecord, BatchStep, PlacedTask, TaskState, tasks_at, tasks_left
from agac.store.db import sql
from agac.store.records import (
    FIRST,
    HOW,
    TURN,
    AgentTurn,
    Call,
    EndedTask,
    NewRow,
    Result,
    WriteBatch,
)
from agac.store.rows import LastTurn, State, earlier_results, last_turns

Then = Literal["batch", "repair", "turn", "answer", "fallback", "sync", "run"]
"""What is next for a task: another batch, one that quotes what was wrong, the next turn of its
conversation or the answer that this turn is, the next model, a call, or the user's run."""

MissingAnswer = Literal["expired", "cancelled", "unanswered", "missing", "malformed"]
"""Why there is no answer: the batch ran out of time, was cancelled, the provider failed; no line,
or a wrong one."""

_MISSING: dict[MissingAnswer, tuple[ErrorType, str]] = {
    "expired": (ErrorType.TIMEOUT, "the batch expired before this request was processed"),
    "cancelled": (ErrorType.BATCH_LOST, "the provider cancelled it"),
    "unanswered": (ErrorType.PROVIDER_ERROR, "the provider failed without an answer"),
    "missing": (ErrorType.BATCH_LOST, "the batch results have no line for this request"),
    "malformed": (ErrorType.BATCH_LOST, "its line in the results cannot be read"),
}


class AttemptCounts(NamedTuple):
    """How often a task was asked so far: rounds of its question at this model, re-asks that quoted
    errors; `models` left to ask after this one; `repairs_left`."""

    round: int
    models_left: int
    repairs_left: int


class NextStep(NamedTuple):
    """What is next; or, where `then` is None, the error with which the task fails."""

    then: Then | None
    error: RowError


def next_step(
    error: RowError, attempts: AttemptCounts, rules: BatchRules, *, may_pass: bool = False
) -> NextStep:
    """What follows an error. What may pass, such as an answer that is missing, which is not billed
    unless its line was lost, is asked again; a reply of the wrong form is quoted to its model,
    which has been paid for then."""
    other: Then | None = "fallback" if attempts.models_left > 0 else None
    if rules.retry == "fail":
        return NextStep(other, error)
    if not may_pass:
        quoted = error.type in REPAIRED and attempts.repairs_left > 0
        return NextStep("repair" if quoted else other, error)
    if attempts.round < rules.max_rounds:
        return NextStep(rules.retry, error)
    rounds = f"{attempts.round} rounds" if attempts.round > 1 else "1 round"
    return NextStep(other, RowError(error.type, f"{error.message} (after {rounds})"))


def missing_error(missing: MissingAnswer, said: str = "") -> RowError:
    """The error of a task that was not answered."""
    kind, words = _MISSING[missing]
    return RowError(kind, f"{words}: {said}" if said else words)


# Lines are read some hundred at a time, each chunk one commit. A task that has an end is not looked
# at again, so what a crash interrupts is read again from the files, which are on this machine, and
# nothing is counted twice.

_log = logging.getLogger("agac.batch")

CHUNK_LINES = 512
# the ending of files with lines that are no results of ours: they are kept for debugging
STRANGE = ".strange"

OF_TASKS = ("done", "failed", "again", "cancelled", "expired", "unanswered", "missing")
"""Counts of tasks, which each chunk commits; the others are of lines."""

# of these counts every task that has an end is in one
ENDS = ("done", "failed", "again", "cancelled")
FURTHER_DOWNLOADS = 2  # how often results are downloaded once more of which some lines are missing
_NO_ROW = Row(0, 0, None)


async def ingest(
    context: BatchContext,
    record: BatchRecord,
    form: BatchFormat,
    files: Sequence[Path],
    further: int,
) -> BatchRecord:
    """All of the results; then, once no further download may bring them, all tasks of which they
    do not tell. Killed anywhere: the same again. `further`: how often they are downloaded once
    more where no line is in them."""
    counts = Counter(
        {kind: count for kind, count in (record.counts or {}).items() if kind in OF_TASKS}
    )
    taken = context.intakes.get(record.id, Intake(downloads=1))
    reader = ResultReader(context, record, form, counts, real=taken.real, unpriced=taken.unpriced)
    context.path(record, STRANGE).unlink(missing_ok=True)  # of an earlier download, or of this one
    writing: asyncio.Future[None] | None = None
    for lines in _chunks(files, form.longest_line):
        await reader.lines(lines)
        if writing is not None:
            await writing  # one commit is under way while the next lines are read, not more
        writing = reader.put()
    if writing is not None:
        await writing
    context.intakes[record.id] = Intake(taken.downloads, reader.real, reader.unpriced)
    step = await _incomplete(reader, taken.downloads, further)
    if step is not None:
        return step
    await reader.without_line()
    if context.budget is not None and record.run_id == context.run:
        context.budget.ingested(record.id, reader.real)
    # earlier chunks, perhaps of a killed process
    spent = (record.cost or 0.0) + reader.real.usd - taken.real.usd
    unpriced = reader.unpriced or (counts["done"] and not record.priced)
    cost_usd = None if unpriced and not spent else spent
    shown = ", ".join(f"{count:,} {name}" for name, count in sorted(reader.counts.items()) if count)
    _log.info("batch %d: %s", record.id, shown or "no results")
    ended = await context.journal.write(
        record, "ingested", counts=canonical(dict(reader.counts)), cost=cost_usd
    )
    if reader.refused is not None and not counts["done"] and record.run_id == context.run:
        message = (
            f"batch {record.provider_id} has no answer, and its lines say: {reader.refused.message}"
        )
        raise context.stopped_by(replace(reader.refused, message=message))
    return ended


async def _incomplete(reader: ResultReader, downloads: int, further: int) -> BatchRecord | None:
    """Its step where results are to be downloaded again, or none of them ever came; None: what
    came is all."""
    context = reader.context
    record = reader.record
    ended = sum(reader.counts[kind] for kind in ENDS)
    if not record.outputs or ended >= max(
        expected_lines(record), any(size for _, size, _ in record.outputs)
    ):
        return None
    some = ended + reader.ours > 0
    if downloads <= (min(further, FURTHER_DOWNLOADS) if some else further):
        note = (
            f"{record.tasks - ended:,} of {record.tasks:,} results have not come: they are "
            "downloaded again"
        )
        _log.warning("batch %d: %s", record.id, note)
        return await context.journal.step(record, BatchStep.TERMINAL, note)
    if some:
        return None
    return await context.journal.step(record, BatchStep.NEEDS_HUMAN, _no_results(context, record))


def expected_lines(record: BatchRecord) -> int:
    """How many results a batch that has ended has, as far as its provider tells."""
    counted = min((record.done or 0) + (record.failed or 0), record.tasks)
    if record.status == BatchState.COMPLETED:
        return record.tasks
    return counted


def _no_results(context: BatchContext, record: BatchRecord) -> str:
    """Why a person decides on a batch whose results hold nothing of ours."""
    kept = context.path(record, STRANGE)
    note = (
        f"what {record.provider} sends as its results is none of them, and they may have been paid"
    )
    again = (
        f"`agac doctor --adopt {record.provider_id} --batch-id {record.id}` downloads them again"
    )
    if kept.exists():
        return f"{note} ({kept.name} holds it); {again}"
    return f"{note}; {again}"


async def keep_late(
    context: BatchContext, record: BatchRecord, form: BatchFormat, file: Path
) -> tuple[int, int]:
    """Keeps the good answers in a file for which no result is stored: how many, and how many
    others were there, which were paid for twice. Whoever asks their tasks next finds these. All
    calls are counted: they were paid."""
    reader = ResultReader(context, record, form, late=True)
    kept = 0
    for lines in _chunks([file], form.longest_line):
        await reader.lines(lines)
        results = reader.write.results
        known = await earlier_results(
            context.database, [result.fingerprint for result in results], 0.0, ""
        )
        reader.write.results = [result for result in results if result.fingerprint not in known]
        kept += len(reader.write.results)
        reader.write.ended.clear()
        await reader.put()
    return kept, reader.counts["done"] - kept


@dataclass(slots=True)
class ResultReader:
    """One reading of a batch's results. `counts` by what lines came to; `real` what they cost;
    `ours`: lines that name a task of it and cannot be read. `late`: its tasks went into others.
    `turns` are the last ones of its tasks. `refused`: what a line was refused for that all of them
    share, as long as none was answered."""

    context: BatchContext
    record: BatchRecord
    form: BatchFormat
    counts: Counter[str] = field(default_factory=Counter)
    late: bool = False
    real: Amount = NOTHING
    unpriced: int = 0
    ours: int = 0
    refused: Fault | None = None
    write: WriteBatch = field(default_factory=WriteBatch)
    turns: dict[bytes, LastTurn] = field(default_factory=dict)
    under_way: set[int] = field(default_factory=set)
    """Places whose ends are being committed: the store does not show them yet."""

    def put(self) -> asyncio.Future[None]:
        """Commits what was read, as calls of the invocation that asked them."""
        record = self.record
        write, self.write = self.write, WriteBatch()
        spent = sum((a.call.cost or 0.0) + a.call.held_usd for a in write.attempts)
        if not self.late:
            counts = canonical({kind: self.counts[kind] for kind in OF_TASKS})
        else:
            counts = None

        def further(writer: sqlite3.Connection) -> None:
            writer.execute(sql("batch_chunk"), (spent, counts, record.id))

        return asyncio.ensure_future(
            self.context.ledger.put(write, record.run_id, record.event_id, further)
        )

    async def lines(self, lines: Iterable[bytes]) -> None:
        """A chunk of lines. What is none of our results is kept in a file of its own, and the
        first of it logged."""
        named: dict[int, tuple[str, ResultLine]] = {}
        odd: list[bytes] = []
        for line in lines:
            try:
                result = self.form.result(line)
            except UnreadableLine as why:
                if not odd:
                    begins = beginning_of(line, self.form.redactor)
                    _log.warning(
                        "batch %d: a line cannot be read: %s%s", self.record.id, why, begins
                    )
                self.counts["malformed"] += 1
                self.ours += (
                    line.startswith(b"{") and self.record.intent.encode() in line[:AROUND_A_REPLY]
                )
                odd.append(line)
                continue
            name = read_custom_id(result.custom_id)
            if name is None or name[0] != self.record.intent or name[1] >= self.record.tasks:
                self.counts["unknown"] += 1
                odd.append(line)
                continue
            self.counts["duplicate"] += name[1] in named
            # a second line that tells more of a task than the first counts: an answer where there
            # was none
            if name[1] not in named or (_is_good(result) and not _is_good(named[name[1]][1])):
                named[name[1]] = (name[2], result)
        if odd:
            await asyncio.to_thread(_append, self.context.path(self.record, STRANGE), odd)
        tasks = await tasks_at(self.context.database, self.record.id, list(named))
        if self.form.stage.agent_spec is not None:
            prints = [task.fingerprint for task in tasks.values()]
            self.turns = await last_turns(self.context.database, prints, self.context.workflow)
        views = dict[int, RowView]()
        plan = self.context.plan
        if self.form.stage.checks and plan is not None and self.record.run_id == self.context.run:
            read = RowViews(plan.stages, plan.vars, self.context.database)
            views = await read.ended([task.row_key for task in tasks.values()])
        under_way, self.under_way = self.under_way, set(named)
        for place, (mark, result) in named.items():
            task = tasks.get(place)
            if place in under_way:
                self.counts["duplicate"] += 1
            elif task is None or task.fingerprint[:6].hex() != mark:
                self.counts["unknown"] += 1
            elif task.state == TaskState.ENROLLED or self.late:
                self.take_line(task, result, views.get(task.row_key))

    def take_line(self, task: PlacedTask, line: ResultLine, view: RowView | None) -> None:
        """A line that tells of a task. `view` is its row's, for the checks; None: they are made by
        who takes it up."""
        if line.ended != "answered" and line.ended != "too_large":
            self._not_answered(task, line.ended, line.message)
            return
        form, answer = self.form, self.form.read(line)
        reply = answer if isinstance(answer, Reply) else None
        if isinstance(answer, Fault):
            checked: ValidReply | RowError | None = RowError(answer.type, answer.message)
        else:  # what a turn of a conversation is worth is seen when its row goes on with it
            if form.stage.agent_spec is not None:
                checked = None
            else:
                checked = form.check(answer, view)
        call = self._call(task, line, answer, checked)
        if line.ended == "too_large":
            call = call._replace(body=None, **self._held())
        elif _is_good(line):
            # what an answer cost that tells no counts is unknown: its part stays set aside
            _, unknown = counted(call, self._share())
            call = call._replace(held_usd=unknown.usd, held_tokens=unknown.tokens)
        self._keep(task, call)
        if isinstance(checked, RowError):
            may_pass = isinstance(answer, Fault) and answer.kind in (
                FaultKind.RETRY,
                FaultKind.PAUSE,
            )
            if isinstance(answer, Fault) and self._is_of_all(answer, task):
                self.refused = answer
                self.counts["again"] += 1
                self._ended(task, "run", checked)
            else:
                self._failed(task, checked, may_pass=may_pass)
            return
        self.counts["done"] += 1
        if checked is None:
            assert reply is not None
            self._turn(task, call, reply)
            return
        how = how_answered(call.purpose, task.position, checked)
        now = self.context.clocks.wall()
        sources = reply.sources if reply is not None else ()
        self.write.results.append(
            Result(task.fingerprint, checked.text, call.endpoint, now, how=how, sources=sources)
        )
        if how:
            self.write.tally((form.stage.name, HOW, how, "")).tasks += 1
        self._ended(task, None, None)

    def _is_of_all(self, fault: Fault, task: PlacedTask) -> bool:
        """Whether a line was refused for what all requests share (the model, the schema, the
        account): no line was answered, and no other model is left. Its row stays open, as that of
        a call does that stops its run."""
        is_shared = fault.about in (About.FRAME, About.ACCOUNT)
        return (
            is_shared
            and not self.counts["done"]
            and task.position + 1 >= len(self.form.stage.models)
        )

    def _turn(self, task: PlacedTask, call: Call, reply: Reply) -> None:
        """A reply within a conversation, which its row goes on with, unless it went on without."""
        if self.late:
            return
        number, conversation = self.turns.get(task.fingerprint, (0, 0))
        stage = self.form.stage
        row = NewRow(_NO_ROW, 0, b"", "", State.PENDING, task.row_key)
        where = (
            row,
            stage.index,
            task.fingerprint,
            number + 1,
            conversation if task.repairs else number + 1,
        )
        came = (
            call.number,
            self.context.clocks.wall(),
            call.status or 0,
            stored_reply(call.body) or "",
            None,
        )
        self.write.turns.append(AgentTurn(*where, self.form.model.lane, "", *came))
        self.write.tally((stage.name, TURN, "" if task.repairs else FIRST, "")).tasks += 1
        self._ended(task, "turn" if reply.goes_on else "answer", None)

    async def without_line(self) -> None:
        """The tasks without a line. One that may have been answered, and paid, is kept as a
        call."""
        record = self.record
        form = self.form
        missing = _NO_LINE.get(record.status or "", "missing")
        after = -1
        while left := await tasks_left(self.context.database, record.id, after, CHUNK_LINES):
            after = left[-1].place
            for task in left:
                if missing == "missing":
                    number = task.round + task.repairs
                    began = record.submitted_at or record.planned_at
                    fault = missing_error("missing")
                    lost = Call(
                        number, form.endpoint(None), "ask", began, 0.0, error=fault, **self._held()
                    )
                    self._keep(task, lost)
                self._not_answered(task, missing, "")
            await self.put()

    def _held(self) -> dict[str, Any]:
        """What is set aside for a request that may have been paid for, and of which no costs are
        known."""
        share = self._share()
        return {"ambiguous": True, "held_usd": share.usd, "held_tokens": share.tokens}

    def _share(self) -> Amount:
        """What is set aside for the batch, by its tasks."""
        tasks = max(self.record.tasks, 1)
        return Amount(self.record.held_usd / tasks, self.record.held_tokens // tasks, 1)

    def _not_answered(self, task: PlacedTask, missing: MissingAnswer, said: str) -> None:
        """A task without an answer. What its user ended waits for its user, or goes on as was
        decided then."""
        if self.record.cancel_at is not None:
            self.counts["cancelled"] += 1
            self._ended(task, self.record.then_do or "run", None)
            return
        self.counts[missing] += 1
        self._failed(task, missing_error(missing, said), may_pass=True)

    def _failed(self, task: PlacedTask, error: RowError, *, may_pass: bool = False) -> None:
        stage = self.form.stage
        attempts = AttemptCounts(
            task.round, len(stage.models) - 1 - task.position, stage.repair - task.repairs
        )
        then, error = next_step(error, attempts, stage.batch, may_pass=may_pass)
        self.counts["failed" if then is None else "again"] += 1
        self._ended(task, then, error)

    def _ended(self, task: PlacedTask, then: str | None, error: RowError | None) -> None:
        self.write.ended.append(EndedTask(task, then, error))

    def _keep(self, task: PlacedTask, call: Call) -> None:
        """Stores what a line cost and held."""
        form = self.form
        row = NewRow(_NO_ROW, 0, b"", "", State.PENDING, task.row_key)
        spent = record_call(
            self.write,
            row,
            form.stage,
            task.fingerprint,
            call,
            task.replica,
            keep_all=form.keeps_all,
        )
        tokens = (call.usage.input_tokens or 0) + (call.usage.output_tokens or 0) + call.held_tokens
        self.real = self.real.plus(Amount((spent or 0.0) + call.held_usd, tokens, 1))
        self.unpriced += spent is None
        if self.context.traces is not None:
            self.context.traces.count(form.model.model, call, in_batch=True)
        if self.record.run_id == self.context.run:
            self.context.totals.count_call(call, spent, form.stage)

    def _call(
        self,
        task: PlacedTask,
        line: ResultLine,
        answer: Reply | Fault,
        checked: ValidReply | RowError | None,
    ) -> Call:
        record = self.record
        form = self.form
        reply = answer if isinstance(answer, Reply) else None
        broken_off = isinstance(answer, Fault) and answer.ambiguous and _is_good(line)
        again = "turn" if form.stage.agent_spec else "repair"
        began = record.submitted_at or record.planned_at
        price = form.price(BATCH, began)
        return Call(
            number=task.round + task.repairs,
            endpoint=form.endpoint(reply),
            purpose=(again if task.repairs else "fallback" if task.position else "ask"),
            started_at=began,
            duration=max((record.ended_at or began) - began, 0.0),
            status=line.status if reply is not None or not 200 <= line.status < 300 else None,
            error=checked if isinstance(checked, RowError) else None,
            ambiguous=broken_off,
            usage=answer.usage or Usage(),
            cost=cost(answer.usage or Usage(), price),
            body=line.body,
            again=task.round > 1,
            mended=isinstance(checked, ValidReply) and checked.mended,
            service_tier="batch",
        )


_NO_LINE: dict[str, MissingAnswer] = {
    BatchState.EXPIRED: "expired",
    BatchState.CANCELLED: "cancelled",
    BatchState.FAILED: "unanswered",
}
"""Why a task has no line, by how its batch ended; else its line is missing."""


def _is_good(line: ResultLine) -> bool:
    return line.ended == "answered" and 200 <= line.status < 300


def _chunks(files: Sequence[Path], longest: int) -> Iterator[list[bytes]]:
    """The lines of result files (see `result_lines`), some hundred at a time, fewer of long
    ones."""
    chunk = list[bytes]()
    size = 0
    for line in chain.from_iterable(result_lines(file, longest) for file in files):
        chunk.append(line)
        size += len(line)
        if len(chunk) == CHUNK_LINES or size > 32 << 20:  # bytes
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


def _append(path: Path, lines: Sequence[bytes]) -> None:
    with open(path, "ab", opener=opener) as file:
        file.writelines(line + b"\n" for line in lines)
