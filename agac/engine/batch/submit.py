"""A batch on its way to the provider: uploaded, created, and looked for when its creation is in doubt."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from agac.core.keys import read_custom_id
from agac.core.types import Fault, FaultKind
from agac.engine.batch.lifecycle import MAX_WAIT_S, Account, BatchContext, BatchFormat
from agac.engine.stop_rules import RunStopped
from agac.providers.batch import BatchError, Order, ProviderBatch, UnreadableLine
from agac.spec.workflow import DayTime
from agac.store.batches import BatchRecord, BatchStep, known_ids, lane_load, newest_at, others_in_intent

# Whoever was killed, or cut off, between asking for a batch and learning its name has perhaps a batch that costs. It
# is looked for by what the provider echoes; that it is absent is believed only once the provider's list had time to
# show it (`grace`), and never where the list may be cut or echoes nothing.

_log = logging.getLogger("agac.batch")

UNSURE = "taken for ours by its size and time: its results will confirm it"
"""The note of a batch that may be somebody else's."""

CLOCKS_APART = 3600.0
"""Seconds by which the provider's clock may be behind ours."""

_LOOKS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds between looks at a provider's list."""


@dataclass(frozen=True, slots=True)
class Found:
    """It is there. `sure` False: by its size alone, to be confirmed by a result. `others` are further batches under its
    name, which should not exist."""

    seen: ProviderBatch
    sure: bool = True
    others: tuple[ProviderBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """It was never created: the provider had time enough to show it."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """Not yet: `until` seconds since 1970 it may still show up, None: nobody can say when it is known."""

    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class NeedsDecision:
    """It cannot be known from here: a human looks."""

    reason: str


Verdict = Found | Absent | Undecided | NeedsDecision


def order_of(context: BatchContext, record: BatchRecord, endpoint: str) -> Order:
    """What is, or was, asked for."""
    return Order(
        key=record.key,
        path=context.path(record),
        endpoint=endpoint,
        model=record.model,
        requests=record.tasks,
        file_id=record.file_id,
        window=record.window,
    )


async def find(context: BatchContext, record: BatchRecord, order: Order) -> Verdict | Fault:
    """What is known of a batch in CREATE_INTENT, after as many looks as its grace allows. Raises Halted when the run
    stops meanwhile."""
    account = context.account(record)
    assert record.created_after is not None
    grace = await _grace(context, record)
    ends = record.created_after + grace
    for turn in range(1_000_000):
        verdict = await look(context, record, order)
        if not isinstance(verdict, Absent):
            return verdict
        left = ends - context.clocks.wall()
        if left <= 0:
            break
        if left > MAX_WAIT_S and not context.wait:
            return Undecided(f"whether {account.provider.name} has it is known in {left:.0f} s", ends)
        await context.stop_signal.sleep(min(_LOOKS[min(turn, len(_LOOKS) - 1)], left))
    if account.mark != record.account:
        return NeedsDecision(
            "it was asked for with another key, or at another address: its batches may not be seen from here"
        )
    if not await _echoes(context, record):
        return NeedsDecision(
            f"{account.provider.name} does not tell which batch is which: it echoes neither key nor file"
        )
    if not account.traits.pages:
        return NeedsDecision(f"the list of {account.provider.name} may be cut, so what is not in it may still exist")
    return Absent()


async def _echoes(context: BatchContext, record: BatchRecord) -> bool:
    """Whether the provider tells of a batch by what it is found; where no other batch is known it is taken to do so."""
    if context.account(record).traits.finds_by == "count":
        return True
    other = await newest_at(context.database, record.provider, record.id)
    seen = await context.account(record).api.look(other) if other is not None else None
    return not isinstance(seen, ProviderBatch) or seen.key is not None or seen.file_id is not None


async def _grace(context: BatchContext, record: BatchRecord) -> float:
    form = await context.form(record)
    wished = form.rules.grace if form is not None else None
    return context.account(record).traits.grace if wished is None else wished


async def look(context: BatchContext, record: BatchRecord, order: Order) -> Verdict | Fault:
    """What the provider's list says now."""
    api, traits = context.account(record).api, context.account(record).traits
    assert record.created_after is not None
    listed: list[ProviderBatch] = []
    async for one in api.candidates(order, record.created_after - CLOCKS_APART):
        if isinstance(one, Fault):
            return one
        listed.append(one)
    known = await known_ids(context.database, [one.id for one in listed])
    fresh = [one for one in listed if one.id not in known and one.id not in record.not_ours]
    if traits.finds_by == "count":
        return await _by_size(context, record, fresh)
    sure = sorted(fresh, key=lambda one: one.created_at or 0.0)
    return Found(sure[0], others=tuple(sure[1:])) if sure else Absent()


async def _by_size(context: BatchContext, record: BatchRecord, fresh: Iterable[ProviderBatch]) -> Verdict | Fault:
    """Nothing but size and time tells such batches apart, and the names in their results once they have ended."""
    unsure = []
    for one in fresh:
        if not one.state.is_terminal:
            unsure.append(one)
            continue
        mine = await is_ours(context, record, one)
        if isinstance(mine, Fault):
            return mine
        if mine is None:
            unsure.append(one)
        elif mine:
            return Found(one)
    if not unsure:
        return Absent()
    if len(unsure) == 1:
        return Found(unsure[0], sure=False)
    names = ", ".join(one.id for one in unsure)
    return Undecided(f"{len(unsure)} batches of its size are there ({names}); their results will tell which is ours")


async def is_ours(context: BatchContext, record: BatchRecord, seen: ProviderBatch) -> bool | Fault | None:
    """Whether the results of a batch that has ended hold our names; None: it has none by which to tell."""
    form = await context.form(record)
    path = context.path(record, ".candidate")
    assert form is not None
    for remote in seen.results:
        size = await context.account(record).api.download(remote, path)
        if isinstance(size, Fault):
            return size
        try:
            mine = _names_us(form, record, path)
        finally:
            path.unlink(missing_ok=True)
        if mine is not None:
            return mine
    return None


def names_other(form: BatchFormat, record: BatchRecord, files: Iterable[Path]) -> bool:
    """Whether downloaded results are those of another batch."""
    told = [_names_us(form, record, file) for file in files]
    return False in told and True not in told


def _names_us(form: BatchFormat, record: BatchRecord, path: Path) -> bool | None:
    """Whether any of the first lines tells of a task of this batch, though others may not; None: none can be read."""
    mine = None
    with path.open("rb") as file:
        for _, line in zip(range(100), file, strict=False):
            try:
                name = read_custom_id(form.lines.result(line.rstrip(b"\n")).custom_id)
            except UnreadableLine:
                continue
            mine = name is not None and name[0] == record.intent
            if mine:
                break
    return mine


# What reaches the provider is preceded by a committed intent. A crash before a request leaves the intent alone; a crash
# after it leaves a file, which is found or uploaded again, or a batch, which is found (`find`) and never created twice.

CAP_CODES = frozenset({"token_limit_exceeded", "enqueued_token_limit_exceeded", "batch_token_limit_exceeded"})
"""How providers say that an account has too many tokens enqueued: nothing ran."""

NO_INPUT, UPLOAD_AGAIN = "input_file_not_found", 4
"""The code of a refusal whose input is not there (yet), and after how many of them it is uploaded again."""

CAP_KEPT = 86_400.0
"""Seconds for which a limit that an account showed is believed: others may have used it up that day."""

ESTIMATES_APART = 8
"""A provider may count so many times as many tokens as our estimate, not more."""

AGAIN_AFTER = 900.0
"""Seconds until a batch is tried again that met its account's limit while nothing of ours was under way."""

_CAP_WORDS = re.compile(r"limit:?\s*([\d][\d,_. ]*)\s*enqueued|limit(?: of)?:?\s*([\d][\d,_]*)", re.IGNORECASE)


class Submitter:
    """Takes batches from BUILT to SUBMITTED. One after the other, so that at most one creation is in doubt."""

    def __init__(self, context: BatchContext) -> None:
        self._context, self._journal = context, context.journal

    async def send(self, record: BatchRecord) -> BatchRecord:
        """As far as it goes now: SUBMITTED, or a step before it, whose note says why it waits. Raises Halted when the
        run stops."""
        fresh = False  # whether the intent was committed just now: then nothing can be there yet
        while True:
            self._context.stop_signal.check()
            before = record
            match BatchStep(record.state):
                case BatchStep.BUILT:
                    record = await self._from_built(record)
                case BatchStep.UPLOAD_INTENT:
                    record = await self._upload(record, fresh=fresh)
                case BatchStep.UPLOADED:
                    record = await self._intend(record)
                case BatchStep.CREATE_INTENT:
                    record = await (self._create(record) if fresh else self._find(record))
                case _:
                    return record
            if record.state == before.state and record.attempt == before.attempt:
                return record  # it waits
            fresh = record.state in (BatchStep.UPLOAD_INTENT, BatchStep.CREATE_INTENT)

    async def _from_built(self, record: BatchRecord) -> BatchRecord:
        if (let_go := await self._if_spoiled(record)) is not None:
            return let_go
        if self._context.account(record).api.uploads:
            return await self._journal.step(record, BatchStep.UPLOAD_INTENT)
        return await self._intend(record)

    async def _if_spoiled(self, record: BatchRecord) -> BatchRecord | None:
        """The batch without its tasks where its file is not what was written; None: it is."""
        path = self._context.path(record)
        if await asyncio.to_thread(is_whole, path, record.bytes, record.sha256):
            return None
        note = f"{path.name} is not what was written; its tasks go into another batch"
        return await self._journal.release(record, BatchStep.NOT_CREATED, "batch", note)

    async def look_for(self, record: BatchRecord) -> BatchRecord:
        """Finds out whether a batch in CREATE_INTENT exists; nothing is created."""
        return await self._find(record)

    async def look_once(self, record: BatchRecord) -> BatchRecord:
        """Looks once more for a batch that nobody could find, with the key that asked for it."""
        form = await self._context.form(record)
        if form is None:
            return record
        verdict = await look(self._context, record, order_of(self._context, record, form.address))
        if isinstance(verdict, Found) and verdict.sure:
            return await self._journal.submitted(record, verdict.seen, self.deadline(form), None)
        return record

    async def _upload(self, record: BatchRecord, *, fresh: bool) -> BatchRecord:
        """Its input goes to the provider. Killed after the upload: the file is found by its name and size."""
        api, name = self._context.account(record).api, f"agac-{record.file}"
        if not fresh and (let_go := await self._if_spoiled(record)) is not None:
            return let_go
        for attempt in range(1, 100):
            given = None if fresh else await api.uploaded(name, record.bytes)
            if given is None:
                given = await api.upload(self._context.path(record), name)
            if isinstance(given, str):
                return await self._journal.uploaded(record, given)
            fresh = False
            if not await self._context.wait_and_retry(given, attempt, f"uploading {name}"):
                return await self._waits(record, given.message)
        return record

    async def _intend(self, record: BatchRecord) -> BatchRecord:
        """Commits that it is about to be created, once there is room for it."""
        account = self._context.account(record)
        why = await self._no_room(record, account)
        if why is not None:
            return await self._waits(record, why)
        return await self._journal.intend(record, account.mark, account.base_url)

    async def _no_room(self, record: BatchRecord, account: Account) -> str | None:
        """Why it has to wait; None: it may go."""
        now = self._context.clocks.wall()
        if record.try_at is not None and record.try_at > now:
            return record.note or "it is tried again later"
        if account.traits.finds_by == "count" and await others_in_intent(
            self._context.database, account.mark, record.id
        ):
            return "another batch of the account may have been created: run `agac doctor` first"
        load = await lane_load(self._context.database, record, account.mark, now - CAP_KEPT)
        caps = [cap for cap in (load.cap, account.provider.limits.enqueued_tokens) if cap is not None]
        if caps and load.batches and load.tokens + record.tokens > min(caps):
            return (
                f"{load.tokens:,} tokens are enqueued in {record.lane} and it would add {record.tokens:,}: "
                f"the account takes about {min(caps):,}"
            )
        if account.traits.max_open is not None and load.of_account >= account.traits.max_open:
            return f"{load.of_account} batches are open, and the account takes no more"
        return None

    async def _waits(self, record: BatchRecord, why: str) -> BatchRecord:
        """Notes why it stays where it is."""
        return record if record.note == why else await self._journal.remark(record, why)

    async def _create(self, record: BatchRecord) -> BatchRecord:
        """Asks for it, once. Killed after that: it is found."""
        form = await self._context.form(record)
        account = self._context.account(record)
        assert form is not None
        made = await account.api.create(order_of(self._context, record, form.address))
        if isinstance(made, ProviderBatch):
            return await self._journal.submitted(record, made, self.deadline(form), None)
        if made.ambiguous:
            _log.warning("batch %d may have been created: %s", record.id, made.message)
            return await self._find(record)
        return await self._not_created(record, made)

    async def _not_created(self, record: BatchRecord, fault: Fault) -> BatchRecord:
        """The provider said no, and there is no batch."""
        back = BatchStep.UPLOADED if record.file_id is not None else BatchStep.BUILT
        if is_cap(fault.code, fault.message):
            return await self.over_cap(record, back, fault.message)
        if fault.code == NO_INPUT and record.attempt > UPLOAD_AGAIN:  # it is not late, it is gone
            return await self._journal.defer(record, BatchStep.BUILT, None, fault.message)
        if fault.kind in (FaultKind.RETRY, FaultKind.PAUSE):
            again = await self._journal.defer(record, back, None, fault.message)
            if await self._context.wait_and_retry(fault, record.attempt, f"creating batch {record.id}"):
                return again
            at = self._context.clocks.wall() + (fault.delay or AGAIN_AFTER)
            return await self._journal.put_off(again, at, fault.message)
        await self._journal.defer(record, back, None, fault.message)
        self._context.stop_signal.fail(fault)
        raise RunStopped

    async def over_cap(self, record: BatchRecord, back: BatchStep, message: str) -> BatchRecord:
        """The account has too many tokens enqueued: nothing ran. What it takes is learned; the batch waits until there
        is room, or is cut into smaller ones where it can never have any."""
        now = self._context.clocks.wall()
        load = await lane_load(self._context.database, record, record.account, now - CAP_KEPT)
        others = load.tokens - (record.tokens if load.batches else 0)
        told = _cap_of(message)
        cap = told if told is not None else max(others + record.tokens - 1, 1)
        if others > 0:  # what was refused is more than it takes, in our own estimates
            cap = min(cap, others + record.tokens - 1)
        elif record.tokens <= cap < ESTIMATES_APART * record.tokens:  # the estimate is too low
            cap = max(record.tokens // 2, 1)
        await self._journal.cap(record, cap)
        if record.tokens > cap and record.tasks > 1 and others <= 0:
            note = f"the account takes about {cap:,} enqueued tokens, and it had {record.tokens:,}: it is cut"
            if back is BatchStep.UPLOADED:
                record = await self._journal.defer(record, back, None, note)
            return await self._journal.release(record, BatchStep.NOT_CREATED, "batch", note)
        at = None if others > 0 else now + AGAIN_AFTER
        return await self._journal.defer(record, back, at, message)

    async def _find(self, record: BatchRecord) -> BatchRecord:
        """It may exist. Found: it is ours, as it is; proved absent: it is asked for again; else it waits."""
        form, account = await self._context.form(record), self._context.account(record)
        if form is None:
            return record
        for attempt in range(1, 100):
            verdict = await find(self._context, record, order_of(self._context, record, form.address))
            if not isinstance(verdict, Fault):
                break
            if not await self._context.wait_and_retry(verdict, attempt, f"looking for batch {record.id}"):
                return await self._waits(record, verdict.message)
        match verdict:
            case Found(seen, sure, others):
                for one in others:  # which should not be: they are ended, and what they finished is ours already
                    await account.api.cancel(one.id)
                note = None if sure else UNSURE
                if others:
                    note = f"also there under its name, and cancelled: {', '.join(one.id for one in others)}"
                _log.info("batch %d was found as %s", record.id, seen.id)
                return await self._journal.submitted(record, seen, self.deadline(form), note)
            case Absent():
                back = BatchStep.UPLOADED if record.file_id is not None else BatchStep.BUILT
                return await self._journal.defer(record, back, None, "it was not there: it is created again")
            case Undecided(reason, _):
                return await self._waits(record, reason)
            case NeedsDecision(reason):
                return await self._journal.step(record, BatchStep.NEEDS_HUMAN, reason)
            case _:
                return record

    def day_deadline(self, form: BatchFormat) -> float | None:
        """A deadline that is a time of day, which counts for what waits for room, too; seconds since 1970."""
        wish = _deadline_of(form)
        return next_of_day(wish, self._context.clocks.wall()) if isinstance(wish, DayTime) else None

    def deadline(self, form: BatchFormat) -> float | None:
        """When what is not finished is cancelled, in seconds since 1970."""
        wish, now = _deadline_of(form), self._context.clocks.wall()
        if isinstance(wish, DayTime):
            return next_of_day(wish, now)
        return None if wish is None else now + wish


def _deadline_of(form: BatchFormat) -> float | DayTime | None:
    """The deadline of a stage at which something is done."""
    return form.rules.deadline if form.rules.on_deadline == "sync" else None


def next_of_day(wish: DayTime, now: float) -> float:
    """The next such time of day after `now`, where the program runs; seconds since 1970."""
    here = datetime.fromtimestamp(now)  # noqa: DTZ006 (a time of day is meant where its author lives)
    at = here.replace(hour=wish.hour, minute=wish.minute, second=0, microsecond=0)
    return (at if at > here else at + timedelta(days=1)).timestamp()


def is_cap(code: str, message: str) -> bool:
    """Whether a refusal says that too many tokens are enqueued."""
    return code in CAP_CODES or ("enqueued" in message.lower() and "limit" in message.lower())


def capped(errors: tuple[BatchError, ...]) -> str | None:
    """The message of a batch that was refused because too many tokens are enqueued."""
    return next((one.message for one in errors if is_cap(one.code, one.message)), None)


def _cap_of(message: str) -> int | None:
    """The limit that a refusal names."""
    found = _CAP_WORDS.search(message)
    digits = re.sub(r"\D", "", next(filter(None, found.groups()), "")) if found else ""
    return int(digits) if digits else None


def is_whole(path: Path, size: int, sha256: str | None) -> bool:
    """Whether a file is what was written. Reads all of it."""
    try:
        if path.stat().st_size != size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False
