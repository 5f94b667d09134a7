"""Commits each step in the life of a batch, and holds what all work on batches shares."""

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
from agac.engine.stop_rules import AcceptedKeys, RunStopped, StopSignal
from agac.engine.totals import Totals
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

AROUND_A_REPLY = 1 << 16
"""Bytes of a line of results besides the reply, at most."""

_NAMED = re.compile(rb'"custom_id"\s*:\s*"([a-z0-9-]{1,64})"')


@dataclass(frozen=True)
class BatchFormat(Route):
    """Writes and reads the batches of a stage and one of its models."""

    position: int
    """The position of the model among those of the stage."""

    traits: BatchTraits
    """What the batch API of the provider can do."""

    lines: type[BatchApi]
    """Writes and reads the lines of files."""

    keeps_all: bool
    """True if replies are stored that were right at once."""

    overhead: int
    """Bytes of a line besides its body, at most."""

    @property
    def address(self) -> str:
        """The address at which each request of a batch is served, as the provider calls it."""
        return self.traits.endpoint_prefix + self.dialect.path

    @property
    def max_bytes(self) -> int:
        """Bytes of a batch."""
        return most_bytes(self.stage.settings.batch, self.traits)

    @property
    def longest_line(self) -> int:
        """Bytes of a line of results, at most."""
        return self.model.provider.limits.reply_bytes + AROUND_A_REPLY

    def read(self, line: ResultLine) -> Reply | Fault:
        """Reads an answered line like the answer to a call."""
        if line.ended == "too_large":
            return too_large(self.model.provider)
        return self.parse(line.status, {}, line.body)

    def result(self, line: bytes) -> ResultLine:
        """Reads a line of results and removes secrets, which a server may quote. Raises
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
    """Makes the format of a stage's batches to one of its models, at `position` among them."""
    traits = model.provider.batch
    path = DIALECTS[model.provider.dialect].path
    assert traits is not None
    longest = custom_id("0" * 16, most_requests(stage.settings.batch, traits), bytes(16))
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
    """Writes the steps of batches under the workflow's lease.

    Each step is committed before anything else is done, so that the store says what a crash
    leaves. Methods return the batch as it is stored."""

    def __init__(
        self, database: Database, ledger: Ledger, now: Callable[[], float], control: Control | None
    ) -> None:
        """`control` takes the steps to a remote, too, if there is one."""
        self._database = database
        self._ledger = ledger
        self._now = now
        self._control = control
        self.notifier: Notifier | None = None
        """Writes messages about some steps."""

    async def plan(self, form: BatchFormat, first: bytes, *, run: int, event: int) -> BatchRecord:
        """Begins a batch that is to be filled. `first` is the fingerprint of its first task."""
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
                "window": form.stage.settings.batch.completion_window or form.traits.windows[0],
                "priced": form.price(BATCH, now) is not None,
                "now": now,
            }
            writer.execute(sql("batch_plan"), values)
            return number

        return await batches.read_batch(self._database, await self._ledger.change(write))

    async def step(
        self, record: BatchRecord, to: BatchStep, note: str | None = None
    ) -> BatchRecord:
        """Takes a batch a step further, or aside."""
        return await self.write(record, "step", to=to, note=note)

    async def remark(self, record: BatchRecord, note: str) -> BatchRecord:
        """Notes why a batch stays at its step."""
        if record.note == note:
            return record
        return await self.write(record, "remark", at=None, note=note)

    async def release(self, record: BatchRecord, then_do: str, note: str) -> BatchRecord:
        """Ends a batch that did not run, NOT_CREATED. Its tasks take the step `then_do`."""
        released = ("tasks_release", {"id": record.id, "then_do": then_do})
        return await self.write(record, "step", [released], to=BatchStep.NOT_CREATED, note=note)

    async def halve(self, record: BatchRecord, word: str, note: str) -> BatchRecord:
        """Ends a batch whose file was refused; `word` says why. Its tasks go into files of half
        its size.

        So do all later ones of its account, or only these (`BatchContext.most_bytes`). Killed
        before, the next upload is refused too; after, the size is known."""
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
        """Ends a batch that was refused as a whole, with the errors of its lines, from 1.

        The tasks of these lines fail. The others of the `stage` are asked again, as often as its
        rules allow. Without errors the run stops, and the round does not count."""
        tasks = await batches.tasks_at(self._database, record.id, [line - 1 for line in errors])
        ended = [
            ("task_ended", ended_task(EndedTask(task, None, errors[position + 1])))
            for position, task in tasks.items()
        ]
        left: tuple[str, Any] = ("tasks_release", {"id": record.id, "then_do": "batch"})
        if errors and stage is not None:
            most = stage.settings.batch.max_rounds
            last = len(stage.models) - 1
            left = ("tasks_refused", {"id": record.id, "note": note, "most": most, "last": last})
        return await self.write(record, "step", [*ended, left], to=BatchStep.REJECTED, note=note)

    async def submitted(
        self, record: BatchRecord, seen: ProviderBatch, deadline: float | None, note: str | None
    ) -> BatchRecord:
        """Notes that the provider has a batch."""
        at = self._now()
        step = ("batch_seen", {**seen.stored(), "id": record.id, "now": at})
        return await self.write(
            record, "submitted", [step], provider_id=seen.id, at=at, deadline=deadline, note=note
        )

    async def seen(self, record: BatchRecord, seen: ProviderBatch) -> BatchRecord:
        """Notes what the provider says of a batch now."""
        return await self.write(record, "seen", **seen.stored())

    async def cancel(self, record: BatchRecord, then_do: str) -> BatchRecord:
        """Decides that a batch is to be ended early. The first decision stays."""
        if record.cancel_at is not None:
            return record
        return await self.write(record, "cancel", then_do=then_do)

    async def cap(self, record: BatchRecord, cap: int) -> None:
        """Notes how many tokens the account takes at most in a lane."""
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
        with their values.

        The statement also gets the batch's id, its present step and the time. Raises AgacError if
        another command changed the batch."""
        to = values.get("to")
        if to is not None:
            assert batches.may_follow(BatchStep(record.state), to), (record.state, to)
        messages: Sequence[tuple[str, tuple[Any, ...]]] = ()
        if self.notifier is not None:
            messages = await self.notifier.batch(record, to)
        values = {"now": self._now(), "before": record.state, **values, "id": record.id}

        def write(writer: sqlite3.Connection) -> int:
            changed = writer.execute(sql(f"batch_{statement}"), values).rowcount
            for name, other in (*others, *messages):
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
    """Returns as JSON the ids that are known not to be this batch, with one more."""
    assert provider_id is not None
    return json.dumps(sorted({*record.not_ours, provider_id}))


class Intake(NamedTuple):
    """Counts of what was taken of a batch in this invocation."""

    downloads: int = 0
    """How often its results were downloaded."""

    spent: Amount = NOTHING
    """What its answers cost."""

    unpriced: int = 0
    """Answers whose price is not known."""


@dataclass(frozen=True, slots=True)
class Account:
    """One account at a provider."""

    provider: Provider
    """The provider."""

    traits: BatchTraits
    """What its batch API can do."""

    api: BatchApi
    """The open batch API."""


_log = logging.getLogger("agac.batch")

CAP_KEPT = 86_400.0
"""Seconds for which a limit that an account showed is believed: others may have used it up that
day."""

MAX_WAIT_S = 60.0
"""Seconds that a command waits for the end of a provider's pause, or for a list that may lag,
unless it was told to wait."""


@dataclass
class BatchContext:
    """Holds what all work on a workflow's batches shares in one invocation. `close` it."""

    database: Database
    """The store."""

    ledger: Ledger
    """Commits what is done."""

    batching: Batching
    """What the invocation does with batches, and the providers."""

    redactor: Redactor
    """Removes secrets."""

    clocks: Clocks
    """The clocks."""

    stop_signal: StopSignal
    """Stops the run."""

    workflow: str
    """The name of the workflow."""

    run: int
    """The number of the run."""

    event: int
    """The number of the invocation."""

    totals: Totals
    """The counts of the invocation; nothing of another run is counted there."""

    keys: AcceptedKeys
    """Which keys providers accepted."""

    plan: Plan | None = None
    """The plan of the run, if there is a run."""

    budget: BudgetLimiter | None = None
    """The budgets of the invocation, if it has any; nothing of another run is counted there."""

    proof: WriteProof | None = None
    """Proves that results can be stored."""

    traces: Traces | None = None
    """Takes what is sent by OpenTelemetry, if anything is."""

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
        """Opens the account at a provider of the project, as the project is now.

        Raises AgacError if the project has no such provider any more, or the provider no batches,
        and UsageError if a key is missing."""
        account = self._accounts.get(name)
        if account is not None:
            return account
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
            raise UsageError(
                f"provider {name!r} needs {names}, which is not set",
                remedy=(
                    f"set {names} in the environment or in .env, then run the same command again"
                ),
            )
        account = Account(provider, provider.batch, open_batch_api(provider, self.redactor))
        self._accounts[name] = account
        return account

    def has_account(self, name: str) -> bool:
        """True if the project still has a provider of this name, with batches."""
        provider = self.batching.providers.get(name)
        return provider is not None and provider.batch is not None

    async def formats(self, run: int) -> BatchFormats:
        """Returns the formats of all stages of a run, even of those that call their models: their
        mode may have been another when their batches were made.

        Models of providers without batches have none."""
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
        """Returns how the batch's lines are read: as those of the model that was asked, whatever
        the stage's fallbacks are now.

        None if none of the stage's providers has batches any more."""
        of_stage = [
            form
            for (stage, _), form in (await self.formats(record.run_id)).items()
            if stage == record.stage
        ]
        if not of_stage:
            return None
        for form in of_stage:
            model = form.model
            if (model.provider.name, model.model) == (record.provider, record.model):
                return form
        first = of_stage[0]
        model = PlannedModel(self.account(record.provider).provider, record.model, Params())
        return _format(
            first.stage, record.position, model, self.redactor, keeps_all=first.keeps_all
        )

    async def lane_load(self, record: BatchRecord) -> batches.LaneLoad:
        """Returns what is under way in a batch's lane, and how many enqueued tokens its account
        takes, as it showed or as the provider says."""
        account = self.account(record.provider)
        lane = (record.provider, account.provider.account, record.model)
        load = await lane_load(self.database, *lane, self.clocks.wall() - CAP_KEPT)
        sharding = self.batching.sharding
        shares = sharding.processes if sharding is not None else 1
        caps = [
            cap // shares
            for cap in (load.cap, account.provider.limits.enqueued_tokens)
            if cap is not None
        ]
        return load._replace(cap=min(caps, default=None))

    def heard(self, account: Account, answer: object) -> None:
        """Notes that a key is accepted, unless the account refused the request."""
        if not isinstance(answer, Fault):
            self.keys.accepted(account.provider)

    async def most_bytes(self, form: BatchFormat, refused_with: int = 0) -> int:
        """Returns how many bytes a new batch may have: half of the smallest file that its account
        refused for its size in the last day.

        `refused_with`: the bytes of the file with which its tasks were refused for what it held;
        0: they were not."""
        provider = form.model.provider
        since = self.clocks.wall() - CAP_KEPT
        refused = await least_refused(self.database, provider.name, provider.account, since)
        bounds = [refused // 2] if refused is not None else []
        bounds += [refused_with // 2] if refused_with else []
        return min([form.max_bytes, *bounds])

    def path(self, record: BatchRecord, suffix: str = "") -> Path:
        """Returns the path of the batch's file, or of another one next to it."""
        return self.batching.folder / (record.file if not suffix else f"{record.intent}{suffix}")

    async def is_due(self, record: BatchRecord) -> bool:
        """True if a batch has met its deadline, at which its stage calls what is not finished."""
        if record.deadline is None or self.clocks.wall() < record.deadline:
            return False
        form = await self.format(record)
        return form is not None and form.stage.settings.batch.on_deadline == "sync"

    async def wait_and_retry(self, fault: Fault, attempt: int, what: str) -> bool:
        """Waits until a request may be repeated, after `attempt` tries; False: it may not.

        Raises RunStopped if the run stops, which it does here for a fault that every further
        request would meet."""
        match decide(fault, attempt, 0, self.clocks.jitter(), has_alternative=True):
            # after a long delay another command goes on
            case RetryAfter(delay, _) if delay <= MAX_WAIT_S or self.batching.wait:
                _log.warning("%s: %s; again in %.1f s", what, fault.message, delay)
                await self.stop_signal.sleep(delay)
                return True
            case RetryAfter() | FailTask():
                return False
            case _:
                raise self.stopped_by(fault)

    def stopped_by(self, fault: Fault) -> RunStopped:
        """Stops the run, since every further request would meet this fault. The caller raises what
        is returned."""
        self.stop_signal.fail(with_end_of_pause(fault, self.clocks.wall()))
        return RunStopped()
