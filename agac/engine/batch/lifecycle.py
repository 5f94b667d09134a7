"""The life of a batch: its steps as a table, each step as one commit, and what all work on batches
shares."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agac.core.errors import AgacError, RowError, UsageError
from agac.core.keys import batch_intent, custom_id
from agac.core.redact import Redactor
from agac.core.types import Fault, Params, Reply
from agac.engine.ask.connections import Route
from agac.engine.ask.limits import NOTHING, Amount, BudgetLimiter, WorstCase
from agac.engine.ask.retry_policy import FailTask, RetryAfter, decide, with_end_of_pause
from agac.engine.ask.validate import Checker
from agac.engine.context import WriteProof
from agac.engine.forecast.planned_batches import most_bytes, most_requests
from agac.engine.invocation import Batching, Clocks
from agac.engine.notify import Notifier
from agac.engine.settle import Totals
from agac.engine.stop_rules import AcceptedKeys, RunStopped, StopSignal
from agac.plan.plan import Plan
from agac.plan.stage import PlannedModel, PlannedStage
from agac.providers.batch import ProviderBatch, ResultLine, UnreadableLine
from agac.providers.batch_apis import BATCH_APIS, open_batch_api
from agac.providers.batch_calls import BatchApi
from agac.providers.dialect import too_large
from agac.providers.prices import BATCH
from agac.providers.provider import BatchTraits, Provider
from agac.providers.table import DIALECTS
from agac.store import batches
from agac.store.batches import BatchRecord, BatchStep, lane_load, least_refused
from agac.store.commit_values import ended_task
from agac.store.db import Database, execute, sql
from agac.store.records import EndedTask
from agac.store.writer import Ledger

if TYPE_CHECKING:
    from agac.engine.batch.control import Control
    from agac.engine.output.otlp import Traces

AROUND_A_REPLY = 1 << 16  # bytes of a line of results besides the reply, at most
_NAMED = re.compile(rb'"custom_id"\s*:\s*"([a-z0-9-]{1,64})"')


@dataclass(frozen=True)
class BatchFormat(Route):
    """A stage and one of its models, `position` among them, as far as its batches go."""

    position: int
    traits: BatchTraits
    lines: type[BatchApi]
    keeps_all: bool
    overhead: int  # bytes of a line beyond its body, at most

    @property
    def address(self) -> str:
        """The address at which each request of a batch is served, as the provider calls it."""
        return self.traits.endpoint_prefix + self.dialect.path

    @property
    def max_bytes(self) -> int:
        """Bytes of a batch."""
        return most_bytes(self.stage.batch, self.traits)

    @property
    def longest_line(self) -> int:
        """Bytes of a line of results, at most."""
        return self.model.provider.limits.reply_bytes + AROUND_A_REPLY

    def read(self, line: ResultLine) -> Reply | Fault:
        """What an answered line means: the same as an answer to a call."""
        if line.ended == "too_large":
            return too_large(self.model.provider)
        return self.parse(line.status, {}, line.body)

    def result(self, line: bytes) -> ResultLine:
        """A line of results without secrets: a server may quote what we sent. Raises
        UnreadableLine."""
        if len(line) > self.longest_line:
            named = _NAMED.search(line[:AROUND_A_REPLY])
            if named is None:
                raise UnreadableLine(f"it has more than {self.longest_line:,} bytes")
            return ResultLine(named[1].decode(), "too_large", 200)
        read = self.lines.result(line)
        return replace(
            read,
            body=self.redactor.clean_bytes(read.body),
            message=self.redactor.clean(read.message),
        )


def _format(
    stage: PlannedStage, position: int, model: PlannedModel, redactor: Redactor, *, keeps_all: bool
) -> BatchFormat:
    traits = model.provider.batch
    path = DIALECTS[model.provider.dialect].path
    assert traits is not None
    longest = custom_id("0" * 16, most_requests(stage.batch, traits), bytes(16))
    lines = BATCH_APIS[traits.api]
    return BatchFormat(
        stage=stage,
        position=position,
        model=model,
        traits=traits,
        lines=lines,
        overhead=len(lines.line(longest, b"{}", traits.endpoint_prefix + path)),
        checker=Checker(stage),
        most=WorstCase(model, in_dollars=True, batch=True),
        redactor=redactor,
        keeps_all=keeps_all,
    )


BatchFormats = Mapping[tuple[int, int], BatchFormat]
"""Formats by the stage's position in the run and the model's position among the stage's."""


class Journal:
    """Writes the steps of batches under the workflow's lease. Each step is committed before
    anything else is done: what a crash finds is what the store says; with a `control` state the
    remote says it, too. What is stored is returned."""

    def __init__(
        self, database: Database, ledger: Ledger, now: Callable[[], float], control: Control | None
    ) -> None:
        self._database = database
        self._ledger = ledger
        self._now = now
        self._control = control
        self.notifier: Notifier | None = None  # which tells of some steps

    async def plan(self, form: BatchFormat, first: bytes, *, run: int, event: int) -> BatchRecord:
        """Adds a new batch, to be filled. `first` is the fingerprint of its first task."""
        token = await batches.project_token(self._database)
        model = form.model
        now = self._now()

        def write(writer: sqlite3.Connection) -> int:
            number = int(writer.execute(sql("batch_id_max")).fetchone()[0]) + 1
            intent = batch_intent(token, run, number, first)
            values = {
                "id": number,
                "run": run,
                "event": event,
                "stage": form.stage.index,
                "position": form.position,
                "provider": model.provider.name,
                "base_url": form.base_url,
                "model": model.model,
                "account": model.provider.account,
                "intent": intent,
                "file": f"{intent}.jsonl",
                "window": form.stage.batch.completion_window or form.traits.windows[0],
                "priced": form.price(BATCH, now) is not None,
                "now": now,
            }
            writer.execute(sql("batch_plan"), values)
            return number

        return await batches.read_batch(self._database, await self._ledger.change(write))

    async def step(
        self, record: BatchRecord, to: BatchStep, note: str | None = None
    ) -> BatchRecord:
        """One step further, or aside."""
        return await self.write(record, "step", to=to, note=note)

    async def remark(self, record: BatchRecord, note: str) -> BatchRecord:
        """Why it stays where it is."""
        if record.note == note:
            return record
        return await self.write(record, "remark", at=None, note=note)

    async def release(self, record: BatchRecord, then_do: str, note: str) -> BatchRecord:
        """It comes to its end without having run, NOT_CREATED: its tasks go round again."""
        released = ("tasks_release", {"id": record.id, "then_do": then_do})
        return await self.write(record, "step", [released], to=BatchStep.NOT_CREATED, note=note)

    async def halve(self, record: BatchRecord, word: str, note: str) -> BatchRecord:
        """Its file was refused, `word` says why: it comes to its end without having run, and its
        tasks go into files of half its size (all tasks of its account, or these:
        `BatchContext.most_bytes`). Killed before, the next upload is refused alike; after, the
        size is known."""
        released = ("tasks_release", {"id": record.id, "then_do": "batch"})
        return await self.write(
            record, "halve", [released], to=BatchStep.NOT_CREATED, word=word, note=note
        )

    async def reject(
        self,
        record: BatchRecord,
        errors: Mapping[int, RowError],
        note: str,
        stage: PlannedStage | None,
    ) -> BatchRecord:
        """It was refused as a whole. Tasks at the refused lines (from 1) have failed, and the
        others of the `stage` go round again, as often as it may be; where no line was to blame the
        run stops, and the round does not count."""
        tasks = await batches.tasks_at(self._database, record.id, [line - 1 for line in errors])
        ends = (EndedTask(task, None, errors[place + 1]) for place, task in tasks.items())
        ended = [("task_ended", ended_task(one)) for one in ends]
        left: tuple[str, Any] = ("tasks_release", {"id": record.id, "then_do": "batch"})
        if errors and stage is not None:
            most = stage.batch.max_rounds
            last = len(stage.models) - 1
            left = ("tasks_refused", {"id": record.id, "note": note, "most": most, "last": last})
        return await self.write(record, "step", [*ended, left], to=BatchStep.REJECTED, note=note)

    async def submitted(
        self, record: BatchRecord, seen: ProviderBatch, deadline: float | None, note: str | None
    ) -> BatchRecord:
        """It exists."""
        at = self._now()
        step = ("batch_seen", {**seen.stored(), "id": record.id, "now": at})
        return await self.write(
            record, "submitted", [step], provider_id=seen.id, at=at, deadline=deadline, note=note
        )

    async def seen(self, record: BatchRecord, seen: ProviderBatch) -> BatchRecord:
        """What its provider says of it now."""
        return await self.write(record, "seen", **seen.stored())

    async def cancel(self, record: BatchRecord, then_do: str) -> BatchRecord:
        """It is to be ended before its time. The first decision stays, also where it is decided
        again."""
        if record.cancel_at is not None:
            return record
        return await self.write(record, "cancel", then_do=then_do)

    async def cap(self, record: BatchRecord, cap: int) -> None:
        """What the account takes at most in a lane, as it showed."""
        values = (record.provider, record.account, record.model, cap, self._now())
        await self._ledger.change(lambda writer: writer.execute(sql("lane_cap"), values).rowcount)

    async def write(
        self,
        record: BatchRecord,
        statement: str,
        others: Sequence[tuple[str, Any]] = (),
        **values: Any,
    ) -> BatchRecord:
        """Commits the statement `batch_…` of this name, which must change the batch, and `others`
        with their values. It is given the batch's id and the time too, and for a step aside or
        back (`to`) the step before."""
        to = values.get("to")
        if to is not None:
            assert batches.may_follow(BatchStep(record.state), to), (record.state, to)
        told: Sequence[tuple[str, tuple[Any, ...]]]
        if self.notifier is not None:
            told = await self.notifier.batch(record, to)
        else:
            told = ()
        values = {"now": self._now(), "before": record.state, **values, "id": record.id}

        def write(writer: sqlite3.Connection) -> int:
            changed = writer.execute(sql(f"batch_{statement}"), values).rowcount
            for name, other in (*others, *told):
                execute(writer, name, [other])
            return changed

        if await self._ledger.change(write) != 1:
            raise AgacError(
                f"batch {record.id} is not where it was: batch_{statement} found nothing to change",
                remedy=(
                    "another command worked on it; run `agac batch status`, then the same "
                    "command again"
                ),
            )
        after = await batches.read_batch(self._database, record.id)
        if self._control is not None and statement not in ("seen", "remark"):
            await self._control.wrote(self._database, after)
        return after


def foreign(record: BatchRecord, provider_id: str | None) -> str:
    """The ids that are known not to be this batch, with one more."""
    assert provider_id is not None
    return json.dumps(sorted({*record.not_ours, provider_id}))


class Intake(NamedTuple):
    """What was taken of a batch in this invocation: downloads, the answers' cost, and how many
    have no price."""

    downloads: int = 0
    real: Amount = NOTHING
    unpriced: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """One account at a provider."""

    provider: Provider
    traits: BatchTraits
    api: BatchApi


_log = logging.getLogger("agac.batch")

# seconds for which a limit that an account showed is believed: others may have used it up that day
CAP_KEPT = 86_400.0

MAX_WAIT_S = 60.0
"""Seconds that a command stays for a provider's pause, or for a list that may lag, unless it was
to wait."""


@dataclass
class BatchContext:
    """What all work on a workflow's batches shares in one invocation. `plan` is that of its run,
    where it has one; `totals` and `budget` are the invocation's: what belongs to another run is
    not counted there. `close` it."""

    database: Database
    ledger: Ledger
    batching: Batching
    redactor: Redactor
    clocks: Clocks
    stop_signal: StopSignal
    workflow: str
    run: int
    event: int
    totals: Totals
    keys: AcceptedKeys
    plan: Plan | None = None
    budget: BudgetLimiter | None = None
    proof: WriteProof | None = None
    traces: Traces | None = None

    def __post_init__(self) -> None:
        self.journal = Journal(self.database, self.ledger, self.clocks.wall, self.batching.control)
        if self.batching.control is not None:
            self.batching.control.lost = self.stop_signal.lose_input
        self.intakes: dict[int, Intake] = {}
        self._accounts: dict[str, Account] = {}
        self._formats: dict[int, BatchFormats] = {}

    async def prove_writable(self) -> None:
        """Proves that what a batch brings can be kept, before it is filled or sent. Raises
        AgacError."""
        if self.proof is not None:
            await self.proof.make()

    async def close(self) -> None:
        """Closes every connection."""
        for account in self._accounts.values():
            await account.api.close()

    def account(self, name: str) -> Account:
        """The account at a provider of the project as it is now. Raises AgacError for a provider
        that the project does not have any more, or without batches, and UsageError where a key of
        it is missing."""
        found = self._accounts.get(name)
        if found is not None:
            return found
        provider = self.batching.providers.get(name)
        if provider is None or provider.batch is None:
            lost = "which agac.yml does not have any more"
            key = f"{name} back under `providers`"
            if provider is not None:
                lost = "which has no batch API any more"
                key = f"its `batch` back at `providers: {name}`"
            remedy = f"put {key} in agac.yml, then run the same command again"
            raise AgacError(f"a batch is open at provider {name!r}, {lost}", remedy=remedy)
        if provider.missing_variables:
            names = ", ".join(provider.missing_variables)
            what = f"provider {name!r} needs {names}, which is not set"
            raise UsageError(
                what,
                remedy=(
                    f"set {names} in the environment or in .env, then run the same command again"
                ),
            )
        made = self._accounts[name] = Account(
            provider, provider.batch, open_batch_api(provider, self.redactor)
        )
        return made

    def has_account(self, name: str) -> bool:
        """Whether the project still has a provider of this name, with batches."""
        provider = self.batching.providers.get(name)
        return provider is not None and provider.batch is not None

    async def formats(self, run: int) -> BatchFormats:
        """The formats of all stages of a run, batch stages or not: a stage's mode may have been
        another when its batches were made. Models of providers without batches have none."""
        if run not in self._formats:
            plan = (self.plan if run == self.run else None) or await self.batching.recorded(
                self.database, run
            )
            keeps_all = plan.rules.keep_replies == "all"
            self._formats[run] = {
                (stage.index, position): _format(
                    stage, position, model, self.redactor, keeps_all=keeps_all
                )
                for stage in plan.asking
                for position, model in enumerate(stage.models)
                if model.provider.batch is not None
            }
        return self._formats[run]

    async def format(self, record: BatchRecord) -> BatchFormat | None:
        """How the batch's lines are read: as those of the model that was asked, whatever the
        stage's fallbacks are by now. None where the stage's own provider does no batches any more.
        """
        own = [
            form
            for (stage, _), form in (await self.formats(record.run_id)).items()
            if stage == record.stage
        ]
        asked = (record.provider, record.model)
        found = next(
            (form for form in own if (form.model.provider.name, form.model.model) == asked), None
        )
        if found is not None or not own:
            return found
        model = PlannedModel(self.account(record.provider).provider, record.model, Params())
        return _format(
            own[0].stage, record.position, model, self.redactor, keeps_all=own[0].keeps_all
        )

    async def lane_load(self, record: BatchRecord) -> batches.LaneLoad:
        """What is under way in a batch's lane, and how many enqueued tokens its account takes, or
        is said to take."""
        account = self.account(record.provider)
        lane = (record.provider, account.provider.account, record.model)
        load = await lane_load(self.database, *lane, self.clocks.wall() - CAP_KEPT)
        if self.batching.sharding is not None:
            shares = self.batching.sharding.processes
        else:
            shares = 1
        caps = [
            cap // shares
            for cap in (load.cap, account.provider.limits.enqueued_tokens)
            if cap is not None
        ]
        return load._replace(cap=min(caps, default=None))

    def heard(self, account: Account, answer: object) -> None:
        """An account answered a question: unless it was refused, its key is accepted."""
        if not isinstance(answer, Fault):
            self.keys.accepted(account.provider)

    async def most_bytes(self, form: BatchFormat, refused_with: int = 0) -> int:
        """Bytes of a new batch: half of the smallest file that its account refused for its size in
        the last day. `refused_with`: the bytes of the file with which its tasks were refused for
        what it held; 0, they were not."""
        provider = form.model.provider
        since = self.clocks.wall() - CAP_KEPT
        refused = await least_refused(self.database, provider.name, provider.account, since)
        bounds = [refused // 2] if refused is not None else []
        bounds += [refused_with // 2] if refused_with else []
        return min([form.max_bytes, *bounds])

    def path(self, record: BatchRecord, suffix: str = "") -> Path:
        """The batch's file, or another beside it."""
        return self.batching.folder / (record.file if not suffix else f"{record.intent}{suffix}")

    async def is_due(self, record: BatchRecord) -> bool:
        """Whether a batch has met its deadline, at which its stage calls what is not finished."""
        if record.deadline is None or self.clocks.wall() < record.deadline:
            return False
        form = await self.format(record)
        return form is not None and form.stage.batch.on_deadline == "sync"

    async def wait_and_retry(self, fault: Fault, attempt: int, what: str) -> bool:
        """Whether it was waited for another try, after `attempt` of them. Raises RunStopped when
        the run stops, which it does here for a fault that every further request would meet."""
        match decide(fault, attempt, 0, self.clocks.jitter(), has_alternative=True):
            # another command may come later
            case RetryAfter(delay, _) if delay <= MAX_WAIT_S or self.batching.wait:
                _log.warning("%s: %s; again in %.1f s", what, fault.message, delay)
                await self.stop_signal.sleep(delay)
                return True
            case RetryAfter() | FailTask():
                return False
            case _:
                raise self.stopped_by(fault)

    def stopped_by(self, fault: Fault) -> RunStopped:
        """Stops the run, since every further request would meet this fault; the caller raises what
        it returns."""
        self.stop_signal.fail(with_end_of_pause(fault, self.clocks.wall()))
        return RunStopped()
