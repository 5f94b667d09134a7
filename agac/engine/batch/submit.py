"""A batch on its way to the provider: uploaded, created, and looked for where nobody knows whether it was created.

What reaches the provider is preceded by a committed intent. A crash before a request leaves the intent alone; a crash
after it leaves a file, which is found or uploaded again, or a batch, which is found (`find`) and never created twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from datetime import datetime, timedelta
from pathlib import Path

from agac.core.types import Fault, FaultKind
from agac.engine.batch.accounts import Account
from agac.engine.batch.find import UNSURE, Absent, Found, Undecided, Unprovable, find, look, order_of
from agac.engine.batch.form import Form
from agac.engine.batch.scene import Scene
from agac.engine.batch.states import BatchStep
from agac.engine.control import Halted
from agac.providers.batches import BatchError, Seen
from agac.spec.rounds import DayTime
from agac.store.batches import BatchRecord, lane_load, others_in_intent

_log = logging.getLogger("agac.batch")

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

    def __init__(self, scene: Scene) -> None:
        self._scene, self._journal = scene, scene.journal

    async def send(self, record: BatchRecord) -> BatchRecord:
        """As far as it goes now: SUBMITTED, or a step before it, whose note says why it waits. Raises Halted when the
        run stops."""
        fresh = False  # whether the intent was committed just now: then nothing can be there yet
        while True:
            self._scene.control.check()
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
        if self._scene.account(record).api.uploads:
            return await self._journal.step(record, BatchStep.UPLOAD_INTENT)
        return await self._intend(record)

    async def _if_spoiled(self, record: BatchRecord) -> BatchRecord | None:
        """The batch without its tasks where its file is not what was written; None: it is."""
        path = self._scene.path(record)
        if await asyncio.to_thread(is_whole, path, record.bytes, record.sha256):
            return None
        note = f"{path.name} is not what was written; its tasks go into another batch"
        return await self._journal.release(record, BatchStep.NOT_CREATED, "batch", note)

    async def look_for(self, record: BatchRecord) -> BatchRecord:
        """Finds out whether a batch in CREATE_INTENT exists; nothing is created."""
        return await self._find(record)

    async def look_once(self, record: BatchRecord) -> BatchRecord:
        """Looks once more for a batch that nobody could find, with the key that asked for it."""
        form = await self._scene.form(record)
        if form is None:
            return record
        verdict = await look(self._scene, record, order_of(self._scene, record, form.address))
        if isinstance(verdict, Found) and verdict.sure:
            return await self._journal.submitted(record, verdict.seen, self.deadline(form), None)
        return record

    async def _upload(self, record: BatchRecord, *, fresh: bool) -> BatchRecord:
        """Its input goes to the provider. Killed after the upload: the file is found by its name and size."""
        api, name = self._scene.account(record).api, f"agac-{record.file}"
        if not fresh and (let_go := await self._if_spoiled(record)) is not None:
            return let_go
        for attempt in range(1, 100):
            given = None if fresh else await api.uploaded(name, record.bytes)
            if given is None:
                given = await api.upload(self._scene.path(record), name)
            if isinstance(given, str):
                return await self._journal.uploaded(record, given)
            fresh = False
            if not await self._scene.patient(given, attempt, f"uploading {name}"):
                return await self._waits(record, given.message)
        return record

    async def _intend(self, record: BatchRecord) -> BatchRecord:
        """Commits that it is about to be created, once there is room for it."""
        account = self._scene.account(record)
        why = await self._no_room(record, account)
        if why is not None:
            return await self._waits(record, why)
        return await self._journal.intend(record, account.mark, account.base_url)

    async def _no_room(self, record: BatchRecord, account: Account) -> str | None:
        """Why it has to wait; None: it may go."""
        now = self._scene.clocks.wall()
        if record.try_at is not None and record.try_at > now:
            return record.note or "it is tried again later"
        if account.traits.finds_by == "count" and await others_in_intent(self._scene.database, account.mark, record.id):
            return "another batch of the account may have been created: `agac doctor` settles first which is which"
        load = await lane_load(self._scene.database, record, account.mark, now - CAP_KEPT)
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
        form = await self._scene.form(record)
        account = self._scene.account(record)
        assert form is not None
        made = await account.api.create(order_of(self._scene, record, form.address))
        if isinstance(made, Seen):
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
            if await self._scene.patient(fault, record.attempt, f"creating batch {record.id}"):
                return again
            at = self._scene.clocks.wall() + (fault.delay or AGAIN_AFTER)
            return await self._journal.put_off(again, at, fault.message)
        await self._journal.defer(record, back, None, fault.message)
        self._scene.control.fail(fault)
        raise Halted

    async def over_cap(self, record: BatchRecord, back: BatchStep, message: str) -> BatchRecord:
        """The account has too many tokens enqueued: nothing ran. What it takes is learned; the batch waits until there
        is room, or is cut into smaller ones where it can never have any."""
        now = self._scene.clocks.wall()
        load = await lane_load(self._scene.database, record, record.account, now - CAP_KEPT)
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
        form, account = await self._scene.form(record), self._scene.account(record)
        if form is None:
            return record
        for attempt in range(1, 100):
            verdict = await find(self._scene, record, order_of(self._scene, record, form.address))
            if not isinstance(verdict, Fault):
                break
            if not await self._scene.patient(verdict, attempt, f"looking for batch {record.id}"):
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
            case Unprovable(reason):
                return await self._journal.step(record, BatchStep.NEEDS_HUMAN, reason)
            case _:
                return record

    def day_deadline(self, form: Form) -> float | None:
        """A deadline that is a time of day, which counts for what waits for room, too; seconds since 1970."""
        wish = _deadline_of(form)
        return next_of_day(wish, self._scene.clocks.wall()) if isinstance(wish, DayTime) else None

    def deadline(self, form: Form) -> float | None:
        """When what is not finished is cancelled, in seconds since 1970."""
        wish, now = _deadline_of(form), self._scene.clocks.wall()
        if isinstance(wish, DayTime):
            return next_of_day(wish, now)
        return None if wish is None else now + wish


def _deadline_of(form: Form) -> float | DayTime | None:
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
