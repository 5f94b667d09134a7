"""The life of a batch: its steps as a table, each step as one commit, and what all work on batches shares."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agac.core.errors import AgacError, RowError, UsageError
from agac.core.keys import account_mark, batch_intent, canonical
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind, Params, Reply
from agac.engine.budget import Amount, WorstCase
from agac.engine.estimate import most_bytes, most_requests
from agac.engine.invocation import Batching, Clocks
from agac.engine.retry_policy import MAX_RETRY_DELAY_S, FailTask, RetryAfter, decide
from agac.engine.routes import CHARACTERS_A_TOKEN, Route, price_by_tier
from agac.engine.stop_rules import RunStopped, StopSignal
from agac.engine.validate import Checker
from agac.plan.plan import Plan
from agac.plan.stage import PlannedModel, PlannedStage
from agac.providers.batch import BatchApi, BatchLines, BatchTraits, ProviderBatch, ResultLine
from agac.providers.batch_apis import LINES
from agac.providers.dialects import DIALECTS
from agac.providers.prices import BATCH
from agac.providers.provider import Provider
from agac.spec.workflow import BatchRules
from agac.store.batches import BatchRecord, BatchStep, may_follow, project_token, read_batch, tasks_at
from agac.store.db import Database, sql
from agac.store.writer import Ledger


@dataclass(frozen=True, slots=True)
class BatchFormat(Route):
    """A stage and one of its models, `position` among them, as far as its batches go."""

    position: int
    traits: BatchTraits
    lines: BatchLines
    keeps_all: bool

    @property
    def rules(self) -> BatchRules:
        """What the workflow says of the stage's batches."""
        return self.stage.batch

    @property
    def address(self) -> str:
        """The address at which each request of a batch is served, as the provider calls it."""
        return self.traits.endpoint_prefix + self.dialect.path

    @property
    def max_requests(self) -> int:
        """Requests in a batch."""
        return most_requests(self.rules, self.traits)

    @property
    def max_bytes(self) -> int:
        """Bytes of a batch."""
        return most_bytes(self.rules, self.traits)

    def enqueued(self, body: bytes) -> int:
        """The tokens for which a request counts against the account's limit."""
        return len(body) // CHARACTERS_A_TOKEN

    def read(self, line: ResultLine) -> Reply | Fault:
        """What an answered line means: the same as an answer to a call."""
        return self.parse(line.status, {}, line.body)

    def clean(self, line: ResultLine) -> ResultLine:
        """The line without secrets: a server may quote what we sent."""
        body, message = self.redactor.clean_bytes(line.body), self.redactor.clean(line.message)
        return line if body is line.body and message == line.message else replace(line, body=body, message=message)


def batch_format(like: BatchFormat, position: int, provider: Provider, model: str) -> BatchFormat:
    """The format of a model that the stage of another format used before, and does not use any more."""
    planned = PlannedModel(provider, model, Params())
    return _format(like.stage, position, planned, like.checker, like.redactor, keeps_all=like.keeps_all)


def _format(
    stage: PlannedStage, position: int, model: PlannedModel, checker: Checker, redactor: Redactor, *, keeps_all: bool
) -> BatchFormat:
    traits = model.provider.batch
    assert traits is not None
    return BatchFormat(
        stage=stage,
        position=position,
        model=model,
        traits=traits,
        dialect=DIALECTS[model.provider.dialect],
        lines=LINES[traits.api],
        checker=checker,
        most=WorstCase(model, in_dollars=True, batch=True),
        price=price_by_tier(model),
        redactor=redactor,
        base_url=redactor.clean(model.provider.base_url),
        keeps_all=keeps_all,
    )


BatchFormats = Mapping[tuple[int, int], BatchFormat]
"""Formats by the stage's position in the run and the model's position among the stage's."""


def batch_formats(plan: Plan, redactor: Redactor) -> BatchFormats:
    """The formats of all stages of a plan, batch stages or not: a stage's mode may have been another when its batches
    were made. Models of providers without batches have none."""
    keeps_all = plan.rules.keep_replies == "all"
    found: dict[tuple[int, int], BatchFormat] = {}
    for stage in plan.asking:
        checker = Checker(stage)
        for position, model in enumerate(stage.models):
            if model.provider.batch is not None:
                found[stage.index, position] = _format(stage, position, model, checker, redactor, keeps_all=keeps_all)
    return found


# Each step of a batch's life, committed before anything else is done: what a crash finds is what stands here.


@dataclass(frozen=True, slots=True)
class StepRefused:
    """A task that its provider refused with its line in the input, from 1."""

    line: int
    error: RowError


class Journal:
    """Writes the steps of batches under the workflow's lease. Each method returns what is stored after it."""

    def __init__(self, database: Database, ledger: Ledger, now: Callable[[], float]) -> None:
        self._database, self._ledger, self._now = database, ledger, now

    async def plan(
        self, form: BatchFormat, first: bytes, *, run: int, event: int, account: str, base_url: str
    ) -> BatchRecord:
        """A new batch, to be filled."""
        token, model = await project_token(self._database), form.model

        def write(writer: sqlite3.Connection) -> int:
            number = int(writer.execute(sql("batch_id_max")).fetchone()[0]) + 1
            intent = batch_intent(token, run, number, first)
            values = {
                "id": number, "run": run, "event": event, "stage": form.stage.index, "position": form.position,
                "provider": model.provider.name, "base_url": base_url, "model": model.model, "account": account,
                "intent": intent, "file": f"{intent}.jsonl",
                "window": form.rules.completion_window or form.traits.windows[0],
                "priced": form.price(BATCH) is not None, "now": self._now(),
            }  # fmt: skip
            writer.execute(sql("batch_plan"), values)
            return number

        return await self._read(await self._ledger.change(write))

    async def built(
        self, batch: int, *, tasks: int, size: int, tokens: int, sha256: str, held: Amount, deadline: float | None
    ) -> BatchRecord:
        """Its file is whole, and all its tasks are committed. `deadline`: a time of day that counts from now on."""
        values = {
            "id": batch, "tasks": tasks, "bytes": size, "tokens": tokens, "sha256": sha256, "usd": held.usd,
            "held_tokens": held.tokens, "deadline": deadline,
        }  # fmt: skip
        return await self._write(batch, ("batch_built", values))

    async def step(self, record: BatchRecord, to: BatchStep, note: str | None = None) -> BatchRecord:
        """One step further, or aside."""
        return await self._write(record.id, self._stepping(record, to, note))

    async def release(self, record: BatchRecord, to: BatchStep, then_do: str, note: str | None = None) -> BatchRecord:
        """It comes to its end without having run: its tasks go round again."""
        let_go = {"id": record.id, "then_do": then_do}
        followers = ("followers_release", let_go)
        return await self._write(
            record.id, self._stepping(record, to, note), others=(followers, ("batch_release", let_go))
        )

    async def reject(self, record: BatchRecord, lines: Sequence[StepRefused], note: str) -> BatchRecord:
        """It was refused as a whole. Tasks at the refused lines have failed; the others go round again, the round not
        counted, since nothing ran."""
        tasks = await tasks_at(self._database, record.id, [one.line - 1 for one in lines])
        ended: list[tuple[str, Any]] = [
            ("task_ended", (None, one.error.type.value, one.error.message, tasks[one.line - 1].id))
            for one in lines
            if one.line - 1 in tasks
        ]
        let_go = {"id": record.id, "then_do": "batch"}
        for one in lines:
            if (task := tasks.get(one.line - 1)) is not None:
                asked = (task.round, task.position, task.repairs, task.fingerprint)
                ended.append(("followers_ended", (None, one.error.type.value, one.error.message, *asked)))
        others = (*ended, ("followers_release", let_go), ("batch_release", let_go))
        return await self._write(record.id, self._stepping(record, BatchStep.REJECTED, note), others=others)

    async def uploaded(self, record: BatchRecord, file_id: str) -> BatchRecord:
        """Its input lies at the provider."""
        return await self._write(record.id, ("batch_uploaded", {"id": record.id, "file_id": file_id}))

    async def intend(self, record: BatchRecord, account: str, base_url: str) -> BatchRecord:
        """It is about to be created."""
        values = {"id": record.id, "now": self._now(), "account": account, "base_url": base_url}
        return await self._write(record.id, ("batch_intend", values))

    async def defer(self, record: BatchRecord, to: BatchStep, try_at: float | None, note: str) -> BatchRecord:
        """It was not created, or ran nothing: it is created later, under its next name."""
        assert may_follow(BatchStep(record.state), to), (record.state, to)
        values = {"id": record.id, "to": to, "from": record.state, "try_at": try_at, "note": note}
        return await self._write(record.id, ("batch_defer", values))

    async def submitted(
        self, record: BatchRecord, seen: ProviderBatch, deadline: float | None, note: str | None
    ) -> BatchRecord:
        """It exists."""
        at = self._now()
        values = {"id": record.id, "provider_id": seen.id, "at": at, "deadline": deadline, "note": note}
        told = ("batch_seen", observation(record, seen, at) | {"moved": True})
        return await self._write(record.id, ("batch_submitted", values), others=(told,))

    async def remark(self, record: BatchRecord, note: str) -> BatchRecord:
        """Why it stays where it is."""
        return await self._write(record.id, ("batch_remark", {"id": record.id, "note": note}))

    async def put_off(self, record: BatchRecord, at: float, note: str) -> BatchRecord:
        """It is not tried before `at`, seconds since 1970."""
        return await self._write(record.id, ("batch_put_off", {"id": record.id, "at": at, "note": note}))

    async def seen(self, record: BatchRecord, seen: ProviderBatch) -> BatchRecord:
        """What its provider says of it now."""
        return await self._write(record.id, ("batch_seen", observation(record, seen, self._now())))

    async def not_ours(self, record: BatchRecord, note: str) -> BatchRecord:
        """What was taken for it is somebody else's."""
        assert record.provider_id is not None
        foreign = sorted({*record.not_ours, record.provider_id})
        values = {"id": record.id, "foreign": json.dumps(foreign), "note": note}
        return await self._write(record.id, ("batch_not_ours", values))

    async def cancel(self, record: BatchRecord, then_do: str) -> BatchRecord:
        """It is to be ended before its time. Once decided this stands, also where it is decided again."""
        if record.cancel_at is not None:
            return record
        values = {"id": record.id, "now": self._now(), "then_do": then_do}
        return await self._write(record.id, ("batch_cancel", values))

    async def downloaded(self, record: BatchRecord, files: Sequence[tuple[str, int, str]]) -> BatchRecord:
        """Its results lie on this machine: names, sizes, sha256."""
        return await self._write(record.id, ("batch_downloaded", {"id": record.id, "outputs": json.dumps(files)}))

    async def ingested(self, record: BatchRecord, counts: Mapping[str, int], cost: float | None) -> BatchRecord:
        """Each of its tasks has an end."""
        values = {"id": record.id, "counts": canonical(dict(counts)), "cost": cost, "now": self._now()}
        return await self._write(record.id, ("batch_ingested", values))

    async def cleaned(self, record: BatchRecord) -> BatchRecord:
        """Nothing of it is left."""
        return await self._write(record.id, ("batch_cleaned", {"id": record.id, "now": self._now()}))

    async def tidied(self, record: BatchRecord) -> BatchRecord:
        """It never ran, and its input is deleted at its provider."""
        return await self._write(record.id, ("batch_tidied", {"id": record.id, "now": self._now()}))

    async def late(self, record: BatchRecord, seen: ProviderBatch) -> BatchRecord:
        """A creation of it was given up, and its answers were kept all the same."""
        foreign = json.dumps(sorted({*record.not_ours, seen.id}))
        return await self._write(record.id, ("batch_late", {"id": record.id, "foreign": foreign}))

    async def cap(self, record: BatchRecord, cap: int) -> None:
        """What the account takes at most in a lane, as it showed."""
        values = (record.provider, record.account, record.model, cap, self._now())
        await self._ledger.change(lambda writer: writer.execute(sql("lane_cap"), values).rowcount)

    def _stepping(self, record: BatchRecord, to: BatchStep, note: str | None) -> tuple[str, Any]:
        assert may_follow(BatchStep(record.state), to), (record.state, to)
        return "batch_step", {"id": record.id, "to": to, "from": record.state, "note": note}

    async def _write(
        self, batch: int, statement: tuple[str, Any], others: Sequence[tuple[str, Any]] = ()
    ) -> BatchRecord:
        def write(writer: sqlite3.Connection) -> int:
            changed = writer.execute(sql(statement[0]), statement[1]).rowcount
            for name, values in others:
                writer.execute(sql(name), values)
            return changed

        changed = await self._ledger.change(write)
        if changed != 1:
            raise AgacError(
                f"batch {batch} is not where it was: {statement[0]} found nothing to change",
                remedy="another command worked on it; run `agac batch status`, then the same command again",
            )
        return await self._read(batch)

    async def _read(self, batch: int) -> BatchRecord:
        record = await read_batch(self._database, batch)
        assert record is not None
        return record


def observation(record: BatchRecord, seen: ProviderBatch, now: float) -> dict[str, Any]:
    """The values of the statement `batch_seen`."""
    before = (record.status, record.word, record.done, record.failed)
    return {
        "id": record.id,
        "provider_id": seen.id,
        "status": seen.state.value,
        "word": seen.word,
        "total": seen.total,
        "done": seen.done,
        "failed": seen.failed,
        "now": now,
        "moved": before != (seen.state.value, seen.word, seen.done, seen.failed),
        "expires_at": seen.expires_at,
        "results_until": seen.results_until,
        "ended_at": seen.ended_at,
    }


@dataclass(frozen=True, slots=True)
class Account:
    """One account at a provider. `mark` tells it from others and holds nothing secret; `base_url` as it may be
    shown."""

    provider: Provider
    traits: BatchTraits
    api: BatchApi
    mark: str
    base_url: str


class Accounts:
    """Accounts by the provider's name. `providers` are the project's as they are now, keys included."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        open_api: Callable[[Provider], BatchApi],
        clean: Callable[[str], str],
    ) -> None:
        self._providers, self._open, self._clean = providers, open_api, clean
        self._accounts: dict[str, Account] = {}

    def of(self, name: str) -> Account:
        """The account. Raises AgacError for a provider that the project does not have any more, or without batches, and
        UsageError where a key of it is missing."""
        found = self._accounts.get(name)
        if found is not None:
            return found
        provider = self._providers.get(name)
        if provider is None or provider.batch is None:
            raise AgacError(
                f"a batch is open at provider {name!r}, "
                + ("which agac.yml does not have any more" if provider is None else "which has no batch API here"),
                remedy=f"put {name} back under `providers` in agac.yml, then run the same command again",
            )
        if provider.missing_variables:
            names = ", ".join(provider.missing_variables)
            raise UsageError(
                f"provider {name!r} needs {names}, which is not set",
                remedy=f"set {names} in the environment or in .env, then run the same command again",
            )
        shown = self._clean(provider.base_url)
        place = "" if provider.embedded else provider.base_url  # whose port is another each time
        made = Account(provider, provider.batch, self._open(provider), account_mark(place, provider.api_key), shown)
        self._accounts[name] = made
        return made

    async def close(self) -> None:
        """Closes every connection."""
        for account in self._accounts.values():
            await account.api.close()


_log = logging.getLogger("agac.batch")

MAX_WAIT_S = 60.0
"""Seconds that a command stays for a provider that asks to be left alone, or for a list that may lag, unless it was
told to wait."""


@dataclass(frozen=True, slots=True)
class BatchContext:
    """One invocation's work on batches. `folder` holds their files; `forms` gives those of a run; `stays`: it was told
    to wait for what takes longer than `PATIENCE`."""

    database: Database
    ledger: Ledger
    journal: Journal
    stop_signal: StopSignal
    accounts: Accounts
    clocks: Clocks
    folder: Path
    workflow: str
    run: int
    event: int
    forms: Callable[[int], Awaitable[BatchFormats]]
    wait: bool

    def account(self, record: BatchRecord) -> Account:
        """The account at which a batch is, or will be."""
        return self.accounts.of(record.provider)

    async def form(self, record: BatchRecord) -> BatchFormat | None:
        """How the batch's lines are read: as those of the model that was asked, whatever the stage's fallbacks are by
        now. None where the stage's own provider does no batches any more."""
        forms = await self.forms(record.run_id)
        own = [form for (stage, _), form in forms.items() if stage == record.stage]
        asked = (record.provider, record.model)
        found = next((form for form in own if (form.model.provider.name, form.model.model) == asked), None)
        if found is not None or not own:
            return found
        return batch_format(own[0], record.position, self.account(record).provider, record.model)

    def path(self, record: BatchRecord, suffix: str = "") -> Path:
        """The batch's file, or another beside it."""
        return self.folder / (record.file if not suffix else f"{record.intent}{suffix}")

    async def wait_and_retry(self, fault: Fault, attempt: int, what: str) -> bool:
        """Whether it was waited for another try, after `attempt` of them. Raises Halted when the run stops, which it
        does here for a fault that every further request would meet."""
        if fault.kind is FaultKind.PAUSE and (fault.delay or 0.0) > MAX_RETRY_DELAY_S:  # another command may come then
            return False
        match decide(fault, attempt, 0, self.clocks.jitter()):
            case RetryAfter(delay, _) if delay <= MAX_WAIT_S or self.wait:
                _log.warning("%s: %s; again in %.1f s", what, fault.message, delay)
                await self.stop_signal.sleep(delay)
                return True
            case RetryAfter() | FailTask():
                return False
            case _:
                self.stop_signal.fail(fault)
                raise RunStopped


@asynccontextmanager
async def batch_context(
    database: Database, ledger: Ledger, batching: Batching, redactor: Redactor, clocks: Clocks, control: StopSignal,
    *, workflow: str, run: int, event: int, formats: dict[int, BatchFormats],
) -> AsyncIterator[BatchContext]:  # fmt: skip
    """The shared part of work on batches; its connections are closed when the block ends. `formats`: those known
    already, by run."""

    async def forms(of_run: int) -> BatchFormats:
        if of_run not in formats:
            formats[of_run] = batch_formats(await batching.recorded(database, of_run), redactor)
        return formats[of_run]

    accounts = Accounts(batching.providers, batching.open_api, redactor.clean)
    try:
        yield BatchContext(
            database=database,
            ledger=ledger,
            journal=Journal(database, ledger, clocks.wall),
            stop_signal=control,
            accounts=accounts,
            clocks=clocks,
            folder=batching.folder,
            workflow=workflow,
            run=run,
            event=event,
            forms=forms,
            wait=batching.wait,
        )
    finally:
        await accounts.close()
