"""The one place where an outcome is decided and written, with the record of every call that led to it."""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from agac.core.errors import ANSWER_FAILURES, ErrorType, RowError, storable
from agac.core.keys import canonical
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, JSONValue, Outcome, Reply, Request, RowId, Usage
from agac.engine.effects import ActiveRow, StoredOutcome, is_leave, operation_text
from agac.engine.invocation import Totals
from agac.engine.retry_policy import FURTHER_RUNS
from agac.engine.routes import CallResult, ModelConnection
from agac.engine.stop_rules import StopRules
from agac.engine.telemetry import bucket_of
from agac.plan.render import VoteResult
from agac.plan.stage import AnyStage
from agac.providers.http import HttpReply
from agac.providers.prices import cost
from agac.spec.workflow import KeepReplies
from agac.store.records import (
    AGREEMENT,
    HOW,
    PART,
    Attempt,
    Call,
    DerivedRows,
    NewRow,
    Result,
    RowEnd,
    TaskEnd,
    TimingKey,
    WriteBatch,
)
from agac.store.rows import OUTCOME_OF, WALKED, PriorTask, State
from agac.store.writer import Ledger

COMPRESS_FROM = 1024
"""Bytes. Shorter replies are stored as they came: deflating them costs time and saves nothing."""


def record_call(
    write: WriteBatch, row: NewRow, stage: AnyStage, fingerprint: bytes, call: Call, replica: int, *, keep_all: bool
) -> float | None:
    """Adds to a commit what one call, or one line of a batch, brought and cost. `keep_all`: whether replies are stored
    that were right at once. Returns what was spent in USD, None where the price is not known."""
    kept = call.body if keep_all or call.error or call.mended else None
    write.attempts.append(Attempt(row, stage.index, fingerprint, call, stored_reply(kept), replica))
    spent = 0.0 if call.free else call.cost
    error = call.error.type.value if call.error else ""
    delta = write.tally((stage.name, "call", error, f"{call.endpoint.provider}/{call.endpoint.model}"))
    delta.add_call(call.usage, spent, call.endpoint.simulated)
    delta.held_cost += call.held_usd
    delta.held_tokens += call.held_tokens
    return spent


class CallRecorder:
    """Puts calls into a run's ledger."""

    def __init__(self, ledger: Ledger, totals: Totals, keep_replies: KeepReplies) -> None:
        self._ledger, self._totals, self._keeps_all = ledger, totals, keep_replies == "all"

    def keep(self, active: ActiveRow, stage: AnyStage, fingerprint: bytes, call: Call, replica: int = 0) -> None:
        """Stores what one call brought and cost, whatever comes of it."""
        batch = self._ledger.batch
        cost = record_call(batch, active.new, stage, fingerprint, call, replica, keep_all=self._keeps_all)
        if call.answered:
            _time(batch.timings, stage.name, call)
        self._ledger.count_call()
        self.count(call, cost, stage)

    def count(self, call: Call, cost: float | None, stage: AnyStage) -> None:
        """Counts a call for this invocation."""
        totals, own = self._totals, self._totals.stage(stage.name)
        own.cost += cost or 0.0
        own.unpriced += cost is None
        own.simulated += call.endpoint.simulated
        if call.status is not None and call.status < 500 and not call.refused:
            totals.waiting_for = None
        totals.calls += 1
        totals.retries += call.again
        totals.repairs += call.purpose == "repair"
        totals.fallbacks += call.purpose == "fallback" and not call.again
        totals.ambiguous += call.ambiguous
        totals.input_tokens += call.usage.input_tokens or 0
        totals.output_tokens += call.usage.output_tokens or 0
        totals.cost += cost or 0.0
        totals.unpriced += cost is None
        totals.simulated += call.endpoint.simulated


def _time(timings: Counter[TimingKey], stage: str, call: Call) -> None:
    """Counts how long an answered call took."""
    timings[stage, "duration", bucket_of(call.duration)] += 1
    if call.ttft is not None:
        timings[stage, "ttft", bucket_of(call.ttft)] += 1
    if call.time_to_response is not None:
        timings[stage, "time_to_response", bucket_of(call.time_to_response)] += 1


def stored_reply(body: bytes | None) -> str | bytes | None:
    """A reply as the store keeps it: text while that is short, deflated when that is smaller."""
    if body is None:
        return None
    if len(body) >= COMPRESS_FROM:
        return zlib.compress(body, 1)
    try:
        return body.decode()
    except UnicodeDecodeError:
        return zlib.compress(body, 1)


class Settler:
    """Writes outcomes of one run into its ledger, and counts them. Nothing here waits: they join the next commit."""

    def __init__(
        self,
        ledger: Ledger,
        totals: Totals,
        stages: tuple[AnyStage, ...],
        clock: Callable[[], float],
        stops: StopRules,
        *,
        keep_replies: KeepReplies = "all",
    ) -> None:
        self._stops = stops
        self._ledger, self._totals, self._stages, self._clock = ledger, totals, stages, clock
        self.book = CallRecorder(ledger, totals, keep_replies)
        """Where calls are stored."""
        self._stood: dict[int, RowEnd] = {}

    def asked_again(self, error: RowError) -> None:
        """The last call brought no answer, and is made again."""
        self._totals.waiting_for = error

    def given_up(self) -> None:
        """A call was cut off before its answer came: nothing is known of it but that it was sent."""
        self._totals.given_up += 1

    def task_done(
        self, active: ActiveRow, stage: AnyStage, result: Result, outcome: Outcome, voted: VoteResult | None = None
    ) -> None:
        """A task has its result: `done` when it was asked for it, `reused` when the answer was there. `voted`: it was
        made of the answers of replicas, and is kept already."""
        batch, prior = self._ledger.batch, active.prior.get(stage.index)
        self._count_done(active, stage, result, outcome, voted)
        agreement = voted.agreement if voted else None
        if outcome is Outcome.REUSED and _is_written(prior, result, agreement):
            return
        self._stood.pop(active.new.key, None)
        self._uncount(active, stage, prior)
        leaves = is_leave(stage, result.value)
        settled_as = Outcome.DROPPED if leaves else outcome
        note = canonical({"python": operation_text(stage), "values": {}}) if leaves else voted.note if voted else None
        batch.tally((stage.name, PART if active.part else settled_as.value, "", "")).count += 1
        if agreement and not active.part:
            batch.tally((stage.name, AGREEMENT, agreement, "")).count += 1
        task = TaskEnd(active.new, stage.index, result.fingerprint, settled_as, result, None, 0, self._clock(), note)
        batch.tasks.append(task)
        if stage.makes == "rows":  # which may turn out to be too many only when they are made
            settled = PriorTask(active.new.key, stage.index, result.fingerprint, settled_as, result.id, None, 0)
            active.prior[stage.index] = settled

    def _count_done(
        self, active: ActiveRow, stage: AnyStage, result: Result, outcome: Outcome, voted: VoteResult | None
    ) -> None:
        """Counts a result for this invocation, and keeps one that was asked for."""
        batch, own = self._ledger.batch, self._totals.stage(stage.name)
        asked, leaves = outcome is Outcome.DONE, is_leave(stage, result.value)
        if asked:
            batch.results += [result] if voted is None and not result.id else []
            self._stops.answered(stage.name)
            if result.how:
                batch.tally((stage.name, HOW, result.how, "")).count += 1
        self._totals.tasks_done += asked
        self._totals.tasks_reused += not asked
        if not active.part:
            own.done += asked and not leaves
            own.reused += not (asked or leaves)
            own.dropped += leaves

    def replica_done(self, active: ActiveRow, stage: AnyStage, replica: int, result: Result, outcome: Outcome) -> None:
        """One of the answers of which the task's is made, from 1: the task alone is counted, once it is settled."""
        batch = self._ledger.batch
        if outcome is Outcome.DONE:
            batch.results += [] if result.id else [result]
            if result.how:
                batch.tally((stage.name, HOW, result.how, "")).count += 1
        end = TaskEnd(active.new, stage.index, result.fingerprint, outcome, result, None, 0, self._clock())
        batch.tasks.append(end._replace(replica=replica))

    def replica_failed(
        self, active: ActiveRow, stage: AnyStage, replica: int, fingerprint: bytes, error: RowError
    ) -> None:
        """One of the answers of which the task's would have been made did not come."""
        end = TaskEnd(active.new, stage.index, fingerprint, Outcome.FAILED, None, error, 0, self._clock())
        self._ledger.batch.tasks.append(end._replace(replica=replica))

    def keep_result(self, result: Result, durable: Callable[[], None]) -> None:
        """Stores a result that no call brought; `durable` is called once it is."""
        result.created_at = self._clock()
        self._ledger.batch.results.append(result)
        self._ledger.batch.on_durable.append(durable)

    def _forget_replicas(self, active: ActiveRow, stage: AnyStage) -> None:
        """The stage is not asked this time: what replicas said to an earlier content of the row tells nothing."""
        if stage.replicas > 1:
            self._ledger.batch.unasked.append((active.new.key, stage.index))

    def task_skipped(self, active: ActiveRow, stage: AnyStage, note: str) -> None:
        """A guard said no: the row goes on without this result. `note` is JSON with the guard and its values."""
        self._not_asked(active, stage, Outcome.SKIPPED, note)
        self._totals.stage(stage.name).skipped += 1

    def task_dropped(self, active: ActiveRow, stage: AnyStage, note: str) -> None:
        """A guard said no, and the row is to leave."""
        self._not_asked(active, stage, Outcome.DROPPED, note)
        self._totals.stage(stage.name).dropped += 1

    def _not_asked(self, active: ActiveRow, stage: AnyStage, outcome: Outcome, note: str | None) -> None:
        batch = self._ledger.batch
        self._uncount(active, stage, active.prior.get(stage.index))
        self._forget_replicas(active, stage)
        batch.tally((stage.name, outcome.value, "", "")).count += 1
        batch.tasks.append(TaskEnd(active.new, stage.index, None, outcome, None, None, 0, self._clock(), note))

    def local_done(self, active: ActiveRow, stage: AnyStage) -> None:
        """A stage that asks nothing and keeps nothing did its work."""
        self._not_asked(active, stage, Outcome.DONE, None)
        self._totals.stage(stage.name).done += 1

    def task_failed(self, active: ActiveRow, stage: AnyStage, fingerprint: bytes | None, error: RowError) -> None:
        """A task failed, and so will its row: the stages that follow have nothing to work on."""
        batch = self._ledger.batch
        prior = active.prior.get(stage.index)
        if prior is None or error is not prior.error:  # else it was left as it is
            self._stops.failed(stage.name, error, active.new.row.id, fingerprint)
        failures = prior.failures if prior and prior.fingerprint == fingerprint else 0
        anew = error.type in ANSWER_FAILURES and (prior is None or error is not prior.error)
        failures += anew
        if not active.part:
            self._totals.failed_for_good += failures == FURTHER_RUNS + 1 and anew
        self._uncount(active, stage, prior)
        counted_as = (PART, "") if active.part else (Outcome.FAILED.value, error.type.value)
        batch.tally((stage.name, *counted_as, "")).count += 1
        if fingerprint is None:
            self._forget_replicas(active, stage)
        note = canonical({"traceback": error.detail}) if error.detail else None
        task = TaskEnd(active.new, stage.index, fingerprint, Outcome.FAILED, None, error, failures, self._clock(), note)
        batch.tasks.append(task)
        self._stood.pop(active.new.key, None)
        own = self._totals.stage(stage.name)
        own.failed += not active.part
        own.last_error = (error, active.new.row.id)

    def row_failed(self, active: ActiveRow, stage: AnyStage, error: RowError, settled: Collection[int]) -> None:
        """A row of which a task failed came to its end. `settled` are the stages that have an outcome now."""
        self._end(active, RowEnd(active.new, State.FAILED, None, stage.name, error), settled)
        self._totals.last_error = (error, active.new.row.id)

    def row_filtered(self, active: ActiveRow, settled: Collection[int]) -> None:
        """A row leaves because of a guard."""
        self._end(active, RowEnd(active.new, State.FILTERED, None, None, None), settled)

    def row_done(self, active: ActiveRow, result: Result | None, settled: Collection[int] | None = None) -> None:
        """A row went through all stages. `result` is the one that is written; None: the results of several are, or
        none of its own."""
        self._end(active, RowEnd(active.new, State.DONE, result, None, None), settled)

    def row_skipped(self, active: ActiveRow, settled: Collection[int] | None = None) -> None:
        """A row went through all stages, of which those whose results are written were all skipped."""
        self._end(active, RowEnd(active.new, State.SKIPPED, None, None, None), settled)

    def row_moved(self, active: ActiveRow, old: int, state: State, result_id: int | None) -> None:
        """A row that had come to its end is in another state, since other rows came or went; it keeps its result."""
        if old == state:
            return
        self._ledger.batch.ends.append(RowEnd(active.new, state, Result(b"", "", id=result_id or 0), None, None))
        if not active.made:
            for one, change in ((State(old), -1), (state, 1)):
                self._ledger.batch.tally(("", OUTCOME_OF[one].value, "", "")).count += change
                self._totals.rows_filtered += change * (one is State.FILTERED)
                self._totals.rows_done += change * (one is State.DONE)
                self._totals.rows_skipped += change * (one is State.SKIPPED)

    def derive_rows(self, making: DerivedRows) -> None:
        """What is made of a row that came to its end."""
        self._ledger.batch.makings.append(making)

    def _end(self, active: ActiveRow, end: RowEnd, settled: Collection[int] | None = None) -> None:
        """Writes a row's end; `settled` None: every stage has an outcome."""
        batch = self._ledger.batch
        self._stood.pop(active.new.key, None)
        if settled is not None:  # what an earlier content of the row reached beyond
            self.delete_tasks(active.new.key, {i: prior for i, prior in active.prior.items() if i not in settled})
        batch.ends.append(end)
        if active.part:
            return
        if active.made:  # the store counts those
            self._totals.made[OUTCOME_OF[end.state]] += 1
            return
        self._count_end(end)
        totals = self._totals
        totals.rows_done += end.state is State.DONE
        totals.rows_failed += end.state is State.FAILED
        totals.rows_skipped += end.state is State.SKIPPED
        totals.rows_filtered += end.state is State.FILTERED

    def _count_end(self, end: RowEnd) -> None:
        error = end.error.type.value if end.error else ""
        self._ledger.batch.tally(("", OUTCOME_OF[end.state].value, error, "")).count += 1

    def mark_batch_answers_used(self, active: ActiveRow, held: Collection[int] = ()) -> None:
        """The row was walked with what came of its tasks in batches; but for those that wait for their user, and those
        at stages that could not be asked (`held`)."""
        for (stage, replica, _), ready in active.ready.items():
            if ready.then_do != "run" and stage not in held:
                self._ledger.batch.told.append((active.new, stage, replica))

    def row_parked(self, active: ActiveRow, stage: AnyStage) -> None:
        """A row waits for a stage that is not asked in this invocation: it stays open."""
        self._stood.pop(active.new.key, None)
        self._totals.rows_parked += not active.made
        self._totals.made_parked += active.made
        self._totals.stage(stage.name).parked += 1

    def reopen_row(self, active: ActiveRow, old: StoredOutcome) -> None:
        """A row that was settled before goes round again with the content that it had then."""
        state = State(old.state)
        if state in WALKED or (state is State.FAILED and old.error_stage is not None):
            result = Result(b"", "", id=old.result_id) if old.result_id else None
            error = RowError(ErrorType(old.error_type), old.error_message or "") if old.error_type else None
            self._stood[active.new.key] = RowEnd(active.new, state, result, old.error_stage, error)

    def restore_outcomes(self) -> None:
        """The run stopped: rows that were taken up, and of which nothing new is known, stand as they stood before."""
        for end in self._stood.values():
            self._ledger.batch.ends.append(end)
            self._count_end(end)
        self._stood.clear()

    def _uncount(self, active: ActiveRow, stage: AnyStage, prior: PriorTask | None) -> None:
        """A task that is settled again is counted once."""
        if prior is not None and active.part:
            self._ledger.batch.tally((stage.name, PART, "", "")).count -= 1
        elif prior is not None:
            self._count(stage, prior, -1)

    def _count(self, stage: AnyStage, prior: PriorTask, by: int) -> None:
        """Counts a task as it stands, or no longer."""
        batch, error = self._ledger.batch, prior.error.type.value if prior.error else ""
        batch.tally((stage.name, prior.outcome.value, error, "")).count += by
        if prior.agreement is not None:
            batch.tally((stage.name, AGREEMENT, prior.agreement, "")).count += by

    def delete_tasks(self, key: int, tasks: Mapping[int, PriorTask]) -> None:
        """These tasks of a row no longer tell of anything, since it changed."""
        for index, prior in tasks.items():
            self._ledger.batch.forgotten.append((key, index))
            self._count(self._stages[index], prior, -1)

    def uncount_tasks(self, tasks: Mapping[int, PriorTask]) -> None:
        """A row left the input: its tasks are kept, but count no more."""
        for index, prior in tasks.items():
            self._count(self._stages[index], prior, -1)

    def recount_tasks(self, tasks: Mapping[int, PriorTask]) -> None:
        """A row that had left is there again: its tasks count as they stand."""
        for index, prior in tasks.items():
            self._count(self._stages[index], prior, 1)


def _is_written(prior: PriorTask | None, result: Result, agreement: str | None) -> bool:
    """Whether the store says this of the task already."""
    if prior is None or not result.id:
        return False
    same = prior.result_id == result.id and prior.fingerprint == result.fingerprint
    return same and prior.agreement == agreement


NO_USAGE = Usage()


class ReplyRecord(NamedTuple):
    """A reply on its way to be checked; `number` counts the task's attempts from 1."""

    reply: Reply
    sent: CallResult
    number: int
    again: bool


def reply_call(connection: ModelConnection, replied: ReplyRecord, purpose: str) -> Call:
    """The attempt that brought a reply, at the price of the tier that served it."""
    reply, sent = replied.reply, replied.sent
    price = connection.price(reply.service_tier)
    return Call(
        number=replied.number,
        endpoint=connection.endpoint(reply),
        purpose=purpose,
        started_at=sent.at,
        duration=sent.duration,
        status=sent.answer.status,
        error=None,
        ambiguous=False,
        usage=reply.usage,
        cost=cost(reply.usage, price) if price else None,
        body=_body(sent),
        again=replied.again,
        ttft=reply.ttft,
        time_to_response=reply.time_to_response,
        service_tier=None if reply.service_tier is None else storable(reply.service_tier),
    )


def fault_call(
    connection: ModelConnection, sent: CallResult, fault: Fault, number: int, purpose: str, *, again: bool
) -> Call:
    """The attempt that brought no reply."""
    return Call(
        number=number,
        endpoint=connection.endpoint(None),
        purpose=purpose,
        started_at=sent.at,
        duration=sent.duration,
        status=fault.status,
        error=RowError(fault.type, fault.message),
        ambiguous=fault.ambiguous,
        usage=NO_USAGE,
        cost=None,
        body=_body(sent),
        again=again,
        refused=fault.kind is FaultKind.PAUSE,
    )


def how_answered(purpose: str, position: int, *, mended: bool) -> str:
    """How an answer came about, as results remember it; `position` counts the stage's models from 0."""
    if purpose == "ask" and not mended:
        return ""
    ways = {"repair": purpose == "repair", "json_repair": mended, "fallback": position > 0}
    return ",".join(way for way, taken in ways.items() if taken)


def _body(sent: CallResult) -> bytes | None:
    return sent.answer.body if isinstance(sent.answer, HttpReply) else None


MOST_CHARACTERS = 20_000
"""Of each message and of each reply. A longer one is cut, and says by how much: `agac inspect` shows it whole."""


def fields(**values: JSONValue) -> dict[str, Any]:
    """The `extra` of a log record next to its message: `--log-format json` shows it."""
    return {"fields": values}


def log_call(
    log: logging.Logger,
    call: Call,
    request: Request,
    reply: Reply | None,
    *,
    run: int,
    row: RowId,
    stage: str,
    model: str,
    redactor: Redactor,
    replica: int = 0,
) -> None:
    """Logs a call that ended, at DEBUG. `model` is the one that was called, as users write it; `replica`, from 1, which
    of several answers it is for. Every text loses its secrets before it is cut: half a key is a secret too."""
    clean = redactor.clean
    took = call.duration * 1000
    log_fields: dict[str, JSONValue] = {
        "run": run,
        "row": clean(row) if isinstance(row, str) else row,
        "stage": stage,
        **({"replica": replica} if replica else {}),
        "attempt": call.number,
        "purpose": call.purpose,
        "model": model,
        "answered_by": clean(call.endpoint.model),
        "simulated": call.endpoint.simulated,
        "status": call.status,
        "error": call.error.type.value if call.error else None,
        "error_message": clean(call.error.message) if call.error else None,
        "duration_ms": round(took, 1),
        "ttft_ms": _ms(call.ttft),
        "time_to_response_ms": _ms(call.time_to_response),
        "input_tokens": call.usage.input_tokens,
        "cached_tokens": call.usage.cached_tokens,
        "output_tokens": call.usage.output_tokens,
        "reasoning_tokens": call.usage.reasoning_tokens,
        "service_tier": call.service_tier and clean(call.service_tier),
        "cost_usd": call.cost,
        "request": _messages(request, clean),
        "reply": _reply(call, reply, clean),
    }
    log.debug(
        "row %r, stage %s, attempt %d (%s) to %s: status %s in %.0f ms, %s tokens in, %s out, %s",
        log_fields["row"], stage, call.number, call.purpose, model, call.status, took, call.usage.input_tokens,
        call.usage.output_tokens, log_fields["error_message"] or "ok", extra=fields(**log_fields),
    )  # fmt: skip


def _messages(request: Request, clean: Callable[[str], str]) -> list[dict[str, Any]]:
    return [
        {"role": message.role, "text": _cut(clean("".join(part.text for part in message.parts)))}
        for message in request.messages
    ]


def _reply(call: Call, reply: Reply | None, clean: Callable[[str], str]) -> str | None:
    """The answer's text; of what is no answer, the body as it came."""
    if reply is not None:
        return _cut(clean(reply.text or reply.refusal or ""))
    return None if call.body is None else _cut(clean(call.body.decode("utf-8", "replace")))


def _cut(text: str) -> str:
    left_out = len(text) - MOST_CHARACTERS
    return text if left_out <= 0 else f"{text[:MOST_CHARACTERS]}… ({left_out:,} more characters)"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
