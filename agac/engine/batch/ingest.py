"""Reads results of a batch into the store: every task gets an end, whatever the files hold."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from agac.core.errors import RowError
from agac.core.keys import canonical, read_custom_id
from agac.core.state_files import opener
from agac.core.types import About, Fault, FaultKind, Reply, Row, Usage
from agac.engine.ask.limits import NOTHING, Amount, counted
from agac.engine.ask.validate import ValidReply
from agac.engine.batch.lifecycle import AROUND_A_REPLY, BatchContext, BatchFormat, Intake
from agac.engine.batch.rounds import AttemptCounts, MissingAnswer, Then, missing_error, next_step
from agac.engine.settle import count_way, how_answered, record_call, stored_reply
from agac.engine.walk.replay import RowViews
from agac.plan.render import RowView
from agac.providers.batch import BatchState, ResultLine, UnreadableLine, result_lines
from agac.providers.dialect import beginning_of
from agac.providers.prices import BATCH, cost
from agac.store.batches import BatchRecord, BatchStep, PlacedTask, TaskState, tasks_at, tasks_left
from agac.store.conversations import LastTurn, last_turns
from agac.store.db import sql
from agac.store.records import (
    FIRST,
    TURN,
    AgentTurn,
    Attempt,
    Call,
    CallTiming,
    EndedTask,
    HeldAmount,
    NewRow,
    Result,
)
from agac.store.rows import State, earlier_results
from agac.store.write_batch import WriteBatch

# Lines are read some hundred at a time, each chunk one commit. A task that has an end is not looked
# at again, so what a crash interrupts is read again from the files, which are on this machine, and
# nothing is counted twice.

_log = logging.getLogger("agac.batch")

CHUNK_LINES = 512
CHUNK_BYTES = 32 << 20

STRANGE = ".strange"
"""The ending of files with lines that are no results of ours; they are kept for debugging."""

OF_TASKS = ("done", "failed", "again", "cancelled", "expired", "unanswered", "missing")
"""Counts of tasks, which each chunk commits; the others are of lines."""

ENDS = ("done", "failed", "again", "cancelled")
"""Every task that has an end is in one of these counts."""

FURTHER_DOWNLOADS = 2
"""How often results are downloaded again if some of their lines are missing."""

_NO_ROW = Row(0, 0, None)


async def ingest(
    context: BatchContext,
    record: BatchRecord,
    form: BatchFormat,
    files: Sequence[Path],
    further: int,
) -> BatchRecord:
    """Reads all results of a batch; then ends the tasks without one, unless another download may
    bring it.

    `further` is how often results without any line are downloaded again. Killed anywhere, it does
    the same when it is repeated. Raises RunStopped if the provider refused what all lines
    share."""
    counts = Counter(
        {kind: count for kind, count in (record.counts or {}).items() if kind in OF_TASKS}
    )
    taken = context.intakes.get(record.id, Intake(downloads=1))
    reader = ResultReader(context, record, form, counts, spent=taken.spent, unpriced=taken.unpriced)
    context.path(record, STRANGE).unlink(missing_ok=True)  # of an earlier download, or of this one
    await _read_files(reader, files)
    context.intakes[record.id] = Intake(taken.downloads, reader.spent, reader.unpriced)
    step = await _incomplete(reader, taken.downloads, further)
    if step is not None:
        return step
    await reader.without_line()
    is_of_this_run = record.run_id == context.run
    if context.budget is not None and is_of_this_run:
        context.budget.ingested(record.id, reader.spent)
    shown = ", ".join(f"{count:,} {name}" for name, count in sorted(reader.counts.items()) if count)
    _log.info("batch %d: %s", record.id, shown or "no results")
    ended = await context.journal.write(
        record,
        "ingested",
        counts=canonical(dict(reader.counts)),
        cost=_cost_of(reader, taken.spent.usd),
    )
    if reader.refused is not None and not counts["done"] and is_of_this_run:
        message = (
            f"batch {record.provider_id} has no answer, and its lines say: {reader.refused.message}"
        )
        raise context.stopped_by(replace(reader.refused, message=message))
    return ended


def _cost_of(reader: ResultReader, earlier_usd: float) -> float | None:
    """Returns what a batch cost in US dollars; None: no price is known.

    Its record has the cost of earlier chunks, perhaps of a killed process; `earlier_usd` of it
    were counted by this reader, too."""
    record = reader.record
    spent = (record.cost or 0.0) + reader.spent.usd - earlier_usd
    is_unpriced = reader.unpriced or (reader.counts["done"] and not record.priced)
    return None if is_unpriced and not spent else spent


async def _read_files(reader: ResultReader, files: Sequence[Path]) -> None:
    """Reads the lines of result files and commits them, a chunk while the next one is read."""
    writing: asyncio.Future[None] | None = None
    for lines in _chunks(files, reader.form.longest_line):
        await reader.lines(lines)
        if writing is not None:
            await writing
        writing = reader.put()
    if writing is not None:
        await writing


async def _incomplete(reader: ResultReader, downloads: int, further: int) -> BatchRecord | None:
    """Takes the batch a step back if its results are to be downloaded again, or aside if none of
    them ever came. None: what came is all."""
    context = reader.context
    record = reader.record
    ended = sum(reader.counts[kind] for kind in ENDS)
    if not record.outputs:
        return None
    # files that are not empty have a line at least
    expected = max(expected_lines(record), any(size for _, size, _ in record.outputs))
    if ended >= expected:
        return None
    any_came = ended + reader.unreadable > 0
    if downloads <= (min(further, FURTHER_DOWNLOADS) if any_came else further):
        note = (
            f"{record.tasks - ended:,} of {record.tasks:,} results have not come: they are "
            "downloaded again"
        )
        _log.warning("batch %d: %s", record.id, note)
        return await context.journal.step(record, BatchStep.TERMINAL, note)
    if any_came:
        return None
    return await context.journal.step(record, BatchStep.NEEDS_HUMAN, _no_results(context, record))


def expected_lines(record: BatchRecord) -> int:
    """Returns how many results a batch that has ended should have, as far as its provider tells."""
    if record.status == BatchState.COMPLETED:
        return record.tasks
    return min((record.done or 0) + (record.failed or 0), record.tasks)


def _no_results(context: BatchContext, record: BatchRecord) -> str:
    """Says why a person decides on a batch whose results hold none of ours."""
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
    """Stores the good answers of a file for tasks without a stored result, which then find them.

    All calls are counted, since they were paid. Returns how many answers were stored, and how many
    others there were, which were paid for twice."""
    reader = ResultReader(context, record, form, late=True)
    kept = 0
    for lines in _chunks([file], form.longest_line):
        await reader.lines(lines)
        results = reader.write.tasks.results
        known = await earlier_results(
            context.database, [result.fingerprint for result in results], 0.0, ""
        )
        reader.write.tasks.results = [
            result for result in results if result.fingerprint not in known
        ]
        kept += len(reader.write.tasks.results)
        reader.write.batched.ended.clear()
        await reader.put()
    return kept, reader.counts["done"] - kept


NamedLines = Mapping[int, tuple[str, ResultLine]]
"""Lines by the position of their task in the batch, with the mark of the task in their ids."""


@dataclass(slots=True)
class ResultReader:
    """Reads the results of a batch, a chunk of lines at a time."""

    context: BatchContext
    """What all work on batches shares."""

    record: BatchRecord
    """The batch."""

    form: BatchFormat
    """How its lines are read."""

    counts: Counter[str] = field(default_factory=Counter)
    """Lines and tasks by what they came to."""

    late: bool = False
    """True if the tasks of the batch went into others."""

    spent: Amount = NOTHING
    """What the answers cost, and what is set aside for those of unknown cost."""

    unpriced: int = 0
    """Answers without a known price."""

    unreadable: int = 0
    """Lines that name a task of the batch and cannot be read."""

    refused: Fault | None = None
    """What a line was refused for that all of them share; none of them was answered then."""

    write: WriteBatch = field(default_factory=WriteBatch)
    """What waits for the next commit."""

    turns: dict[bytes, LastTurn] = field(default_factory=dict)
    """The last turns of the conversations of the tasks in the chunk."""

    committing: set[int] = field(default_factory=set)
    """Positions of tasks whose ends are being committed: the store does not show them yet."""

    def put(self) -> asyncio.Future[None]:
        """Commits what was read, as calls of the invocation that asked them."""
        record = self.record
        write = self.write
        self.write = WriteBatch()
        spent = sum((call.cost or 0.0) + call.held.usd for _, call in write.calls.attempts)
        counts = None if self.late else canonical({kind: self.counts[kind] for kind in OF_TASKS})

        def further(writer: sqlite3.Connection) -> None:
            writer.execute(sql("batch_chunk"), (spent, counts, record.id))

        return asyncio.ensure_future(
            self.context.ledger.put(write, record.run_id, record.event_id, further)
        )

    async def lines(self, lines: Iterable[bytes]) -> None:
        """Reads a chunk of lines. Those that are no results of ours are kept in a file of their
        own."""
        named, strange = self._sorted(lines)
        if strange:
            await asyncio.to_thread(_append, self.context.path(self.record, STRANGE), strange)
        tasks = await tasks_at(self.context.database, self.record.id, list(named))
        if self.form.stage.agent_spec is not None:
            prints = [task.fingerprint for task in tasks.values()]
            self.turns = await last_turns(self.context.database, prints, self.context.workflow)
        views = await self._views(tasks)
        committing = self.committing
        self.committing = set(named)
        for position, (mark, line) in named.items():
            task = tasks.get(position)
            if position in committing:
                self.counts["duplicate"] += 1
            elif task is None or task.fingerprint[:6].hex() != mark:
                self.counts["unknown"] += 1
            elif task.state == TaskState.ENROLLED or self.late:
                self.take_line(task, line, views.get(task.row_key))

    def _sorted(self, lines: Iterable[bytes]) -> tuple[NamedLines, list[bytes]]:
        """Splits lines into those that name a task of the batch, and strange ones."""
        named: dict[int, tuple[str, ResultLine]] = {}
        strange: list[bytes] = []
        for line in lines:
            result = self._read(line, is_first=not strange)
            if result is None:
                strange.append(line)
                continue
            name = read_custom_id(result.custom_id)
            if name is None or name[0] != self.record.intent or name[1] >= self.record.tasks:
                self.counts["unknown"] += 1
                strange.append(line)
                continue
            _, position, mark = name
            is_repeated = position in named
            self.counts["duplicate"] += is_repeated
            # the second line counts only if it has an answer and the first has none
            if not is_repeated or (_is_good(result) and not _is_good(named[position][1])):
                named[position] = (mark, result)
        return named, strange

    def _read(self, line: bytes, *, is_first: bool) -> ResultLine | None:
        """Reads a line; None if that is not possible, which is logged for the first one."""
        try:
            return self.form.result(line)
        except UnreadableLine as why:
            if is_first:
                begins = beginning_of(line, self.form.redactor)
                _log.warning("batch %d: a line cannot be read: %s%s", self.record.id, why, begins)
        self.counts["malformed"] += 1
        if line.startswith(b"{") and self.record.intent.encode() in line[:AROUND_A_REPLY]:
            self.unreadable += 1
        return None

    async def _views(self, tasks: Mapping[int, PlacedTask]) -> dict[int, RowView]:
        """Reads the views of the tasks' rows, by row key, if the stage's checks need them here."""
        plan = self.context.plan
        if plan is None or not self.form.stage.checks or self.record.run_id != self.context.run:
            return {}
        reader = RowViews(plan.stages, plan.vars, self.context.database)
        return await reader.ended([task.row_key for task in tasks.values()])

    def take_line(self, task: PlacedTask, line: ResultLine, view: RowView | None) -> None:
        """Takes in a line of a task.

        `view` is its row's, for the checks; None: they are made when the row is walked again."""
        if line.ended != "answered" and line.ended != "too_large":
            self._not_answered(task, line.ended, line.message)
            return
        answer = self.form.read(line)
        checked = self._checked(answer, view)
        call = self._call(task, line, answer, checked)
        if line.ended == "too_large":
            call = call._replace(body=None, **self._held())
        elif _is_good(line):
            # the cost of an answer without counts is unknown: its share stays set aside
            _, unknown = counted(call, self._share())
            call = call._replace(held=HeldAmount(unknown.usd, unknown.tokens))
        self._keep(task, call)
        if isinstance(checked, RowError):
            self._take_error(task, answer, checked)
            return
        self.counts["done"] += 1
        assert isinstance(answer, Reply)
        if checked is None:
            self._turn(task, call, answer)
        else:
            self._take_result(task, call, answer, checked)

    def _checked(self, answer: Reply | Fault, view: RowView | None) -> ValidReply | RowError | None:
        """Checks an answer. None: it is a turn of a conversation, whose row decides."""
        if isinstance(answer, Fault):
            return RowError(answer.type, answer.message)
        if self.form.stage.agent_spec is not None:
            return None
        return self.form.check(answer, view)

    def _take_error(self, task: PlacedTask, answer: Reply | Fault, error: RowError) -> None:
        """Ends a task whose line was refused, or whose answer is wrong."""
        if not isinstance(answer, Fault):
            self._failed(task, error)
        elif self._is_of_all(answer, task):
            self.refused = answer
            self.counts["again"] += 1
            self._ended(task, "run", error)
        else:
            may_pass = answer.kind in (FaultKind.RETRY, FaultKind.PAUSE)
            self._failed(task, error, may_pass=may_pass)

    def _take_result(self, task: PlacedTask, call: Call, reply: Reply, checked: ValidReply) -> None:
        """Stores the result of a task."""
        how = how_answered(call.attempt.purpose, task.position, checked)
        result = Result(
            task.fingerprint,
            checked.text,
            call.endpoint,
            self.context.clocks.wall(),
            how=how,
            sources=reply.sources,
        )
        self.write.tasks.results.append(result)
        count_way(self.write, self.form.stage, result)
        self._ended(task, None, None)

    def _is_of_all(self, fault: Fault, task: PlacedTask) -> bool:
        """True if a line was refused for what all requests share: the model, the schema, or the
        account.

        No line was answered then, and no other model is left. The row stays open, like that of a
        call that stops its run."""
        is_shared = fault.about in (About.FRAME, About.ACCOUNT)
        is_last_model = task.position + 1 >= len(self.form.stage.models)
        return is_shared and is_last_model and not self.counts["done"]

    def _turn(self, task: PlacedTask, call: Call, reply: Reply) -> None:
        """Stores a reply of a conversation, which its row continues, unless its task went into
        another batch."""
        if self.late:
            return
        last, conversation = self.turns.get(task.fingerprint, (0, 0))
        number = last + 1
        stage = self.form.stage
        self.write.calls.turns.append(
            AgentTurn(
                new=_row_of(task),
                stage=stage.index,
                fingerprint=task.fingerprint,
                number=number,
                conversation=conversation if task.repairs else number,
                model=self.form.model.lane,
                agent="",
                attempt=call.attempt.number,
                at=self.context.clocks.wall(),
                status=call.status or 0,
                reply="" if call.body is None else stored_reply(call.body),
                ended=None,
            )
        )
        self.write.tally((stage.name, TURN, "" if task.repairs else FIRST, "")).tasks += 1
        self._ended(task, "turn" if reply.goes_on else "answer", None)

    async def without_line(self) -> None:
        """Ends the tasks without a line. One that may have been answered, and paid, is kept as a
        call."""
        missing = _NO_LINE.get(self.record.status or "", "missing")
        after = -1
        while left := await tasks_left(self.context.database, self.record.id, after, CHUNK_LINES):
            after = left[-1].place
            for task in left:
                if missing == "missing":
                    self._keep(task, self._lost_call(task))
                self._not_answered(task, missing, "")
            await self.put()

    def _lost_call(self, task: PlacedTask) -> Call:
        """Makes the call of a task whose line was lost."""
        return Call(
            self._attempt(task, "ask"),
            self.form.endpoint(None),
            CallTiming(self._began(), 0.0),
            error=missing_error("missing"),
            **self._held(),
        )

    def _began(self) -> float:
        """Returns when the batch was submitted, as far as it is known."""
        return self.record.submitted_at or self.record.planned_at

    def _held(self) -> dict[str, Any]:
        """Returns what is set aside for a request of unknown cost that may have been paid for."""
        share = self._share()
        return {"ambiguous": True, "held": HeldAmount(share.usd, share.tokens)}

    def _share(self) -> Amount:
        """Returns a task's share of what is set aside for the batch."""
        tasks = max(self.record.tasks, 1)
        return Amount(self.record.held_usd / tasks, self.record.held_tokens // tasks, 1)

    def _not_answered(self, task: PlacedTask, missing: MissingAnswer, message: str) -> None:
        """Ends a task without an answer. If the user ended the batch, the user decided what is
        next."""
        if self.record.cancel_at is not None:
            self.counts["cancelled"] += 1
            self._ended(task, self.record.then_do or "run", None)
            return
        self.counts[missing] += 1
        self._failed(task, missing_error(missing, message), may_pass=True)

    def _failed(self, task: PlacedTask, error: RowError, *, may_pass: bool = False) -> None:
        """Ends a task with an error, or sends it to its next step."""
        stage = self.form.stage
        models_left = len(stage.models) - 1 - task.position
        attempts = AttemptCounts(task.round, models_left, stage.settings.repair - task.repairs)
        then, error = next_step(error, attempts, stage.settings.batch, may_pass=may_pass)
        self.counts["failed" if then is None else "again"] += 1
        self._ended(task, then, error)

    def _ended(self, task: PlacedTask, then: Then | str | None, error: RowError | None) -> None:
        """Writes the end of a task."""
        self.write.batched.ended.append(EndedTask(task, then, error))

    def _keep(self, task: PlacedTask, call: Call) -> None:
        """Stores what a line cost and what it held."""
        form = self.form
        spent = record_call(self.write, _row_of(task), form.stage, call, keep_all=form.keeps_all)
        tokens = (call.usage.input_tokens or 0) + (call.usage.output_tokens or 0) + call.held.tokens
        self.spent = self.spent.plus(Amount((spent or 0.0) + call.held.usd, tokens, 1))
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
        """Makes the call that a line stands for."""
        reply = answer if isinstance(answer, Reply) else None
        was_cut = isinstance(answer, Fault) and answer.ambiguous and _is_good(line)
        began = self._began()
        usage = answer.usage or Usage()
        return Call(
            self._attempt(task, self._purpose(task), again=task.round > 1),
            self.form.endpoint(reply),
            CallTiming(began, max((self.record.ended_at or began) - began, 0.0)),
            status=line.status if reply is not None or not 200 <= line.status < 300 else None,
            error=checked if isinstance(checked, RowError) else None,
            ambiguous=was_cut,
            usage=usage,
            cost=cost(usage, self.form.price(BATCH, began)),
            body=line.body,
            mended=isinstance(checked, ValidReply) and checked.mended,
            service_tier="batch",
        )

    def _attempt(self, task: PlacedTask, purpose: str, *, again: bool = False) -> Attempt:
        """Says which attempt at its task a line is."""
        number = task.round + task.repairs
        stage = self.form.stage.index
        return Attempt(stage, task.fingerprint, task.replica, number, purpose, again)

    def _purpose(self, task: PlacedTask) -> str:
        """Returns what the request of a task was made for, as calls name it."""
        if task.repairs:
            return "turn" if self.form.stage.agent_spec else "repair"
        return "fallback" if task.position else "ask"


_NO_LINE: dict[str, MissingAnswer] = {
    BatchState.EXPIRED: "expired",
    BatchState.CANCELLED: "cancelled",
    BatchState.FAILED: "unanswered",
}
"""Why a task has no line, by how its batch ended; else its line is missing."""


def _row_of(task: PlacedTask) -> NewRow:
    """Makes a reference to the stored row of a task."""
    return NewRow(_NO_ROW, 0, b"", "", State.PENDING, task.row_key)


def _is_good(line: ResultLine) -> bool:
    """True if a line has an answer."""
    return line.ended == "answered" and 200 <= line.status < 300


def _chunks(files: Sequence[Path], longest: int) -> Iterator[list[bytes]]:
    """Reads the lines of result files (see `result_lines`), some hundred at a time, fewer of long
    ones."""
    chunk = list[bytes]()
    size = 0
    for line in chain.from_iterable(result_lines(file, longest) for file in files):
        chunk.append(line)
        size += len(line)
        if len(chunk) == CHUNK_LINES or size > CHUNK_BYTES:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


def _append(path: Path, lines: Sequence[bytes]) -> None:
    """Appends lines to a file."""
    with open(path, "ab", opener=opener) as file:
        file.writelines(line + b"\n" for line in lines)
