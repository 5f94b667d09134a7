"""A batch on its way to the provider: uploaded, created, and looked for when its creation is in
doubt."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import NamedTuple

from agac.core.errors import RowError
from agac.core.keys import read_custom_id
from agac.core.state_files import make_folder
from agac.core.types import CLOCKS_APART, About, DayTime, Fault, FaultKind
from agac.engine.batch.lifecycle import CAP_KEPT, MAX_WAIT_S, BatchContext, BatchFormat
from agac.providers.batch import Order, ProviderBatch, UnreadableLine, result_lines
from agac.providers.error_tables import with_remedy
from agac.store import batches
from agac.store.batches import (
    BatchRecord,
    BatchStep,
    known_ids,
    lane_load,
    newest_at,
    others_in_intent,
)

_log = logging.getLogger("agac.batch")

# the note of a batch that may be another user's
UNSURE = "taken for ours by its time: its results will confirm it"

_LOOKS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds between looks at a provider's list; the last one again and again."""

UPLOAD_AGAIN = 4
"""Refusals after which an input that is not there (yet) is uploaded again."""

ESTIMATES_APART = 8  # a provider may count so many times as many tokens as our estimate, not more

AGAIN_AFTER = 900.0
"""Seconds until a batch is tried again that met its account's limit while nothing of ours was
under way."""

_TOO_LARGE = "Shorten the row's fields or the prompt, or run the stage with `run_mode: sync`."

_OF_FILE = (About.SIZE, About.CONTENT)
"""What a file of fewer requests may not meet."""

_CAP_WORDS = re.compile(
    r"limit:?\s*([\d][\d,_. ]*)\s*enqueued|limit(?: of)?:?\s*([\d][\d,_]*)", re.IGNORECASE
)


# Whoever was killed, or cut off, between asking for a batch and learning its name has perhaps a
# batch that costs. It is looked for by what the provider echoes; that it is absent is believed only
# once the provider's list had time to show it (`grace`), and never where the list may be cut or
# echoes nothing.


class Found(NamedTuple):
    """It is there. `sure` False: by its time alone, until a result confirms it. `others` have its
    name too."""

    seen: ProviderBatch
    sure: bool = True
    others: tuple[ProviderBatch, ...] = ()


class Undecided(NamedTuple):
    """It may still show up; or, `for_good`, it cannot be known from here: the user decides."""

    reason: str
    for_good: bool = False


Verdict = Found | Undecided | None
"""What is known of a batch that may have been created; None: it was not, the provider had time
enough to show it."""


def order_of(context: BatchContext, record: BatchRecord, form: BatchFormat) -> Order:
    """What is, or was, asked for."""
    return Order(
        key=record.key,
        path=context.path(record),
        endpoint=form.address,
        model=record.model,
        requests=record.tasks,
        file_id=record.file_id,
        window=record.window,
    )


async def _find(context: BatchContext, record: BatchRecord, form: BatchFormat) -> Verdict | Fault:
    """What is known of a batch in CREATE_INTENT, after as many looks as its grace allows. Raises
    RunStopped."""
    account = context.account(record.provider)
    assert record.created_after is not None
    if form.stage.batch.grace is None:
        grace = account.traits.grace
    else:
        grace = form.stage.batch.grace
    for pause in chain(_LOOKS, repeat(_LOOKS[-1])):
        verdict = await _look(context, record, form)
        if verdict is not None:
            return verdict
        left = record.created_after + grace - context.clocks.wall()
        if left <= 0:
            break
        if left > MAX_WAIT_S and not context.batching.wait:
            return Undecided(f"whether {account.provider.name} has it is known in {left:.0f} s")
        await context.stop_signal.sleep(min(pause, left))
    if account.provider.account != record.account:
        why = (
            "it was asked for with another key, or at another address: its batches may not "
            "be seen from here"
        )
    elif not await _echoes(context, record):
        why = (
            f"{account.provider.name} does not tell which batch is which: it echoes "
            "neither key nor file"
        )
    elif not account.traits.pages:
        why = (
            f"the list of {account.provider.name} may be cut, so what is not in it may still exist"
        )
    else:
        return None
    return Undecided(why, for_good=True)


async def _echoes(context: BatchContext, record: BatchRecord) -> bool:
    """Whether the provider tells of a batch by what it is found; where no other batch is known it
    is taken to do so."""
    account = context.account(record.provider)
    if account.traits.finds_by == "count":
        return True
    other = await newest_at(context.database, record.provider, record.id)
    seen = await account.api.look(other) if other is not None else None
    return not isinstance(seen, ProviderBatch) or seen.key is not None or seen.file_id is not None


async def _look(context: BatchContext, record: BatchRecord, form: BatchFormat) -> Verdict | Fault:
    """What the provider's list says now."""
    account = context.account(record.provider)
    assert record.created_after is not None
    listed: list[ProviderBatch] = []
    async for one in account.api.candidates(
        order_of(context, record, form), record.created_after - CLOCKS_APART
    ):
        if isinstance(one, Fault):
            return one
        listed.append(one)
    context.keys.accepted(account.provider)
    known = await known_ids(context.database, [one.id for one in listed])
    fresh = [one for one in listed if one.id not in known and one.id not in record.not_ours]
    if account.traits.finds_by != "count":
        sure = sorted(fresh, key=lambda one: one.created_at or 0.0)
        return Found(sure[0], others=tuple(sure[1:])) if sure else None
    latest = record.created_after + CLOCKS_APART
    return await _by_results(
        context,
        record,
        form,
        [one for one in fresh if one.created_at is None or one.created_at <= latest],
    )


async def _by_results(
    context: BatchContext, record: BatchRecord, form: BatchFormat, listed: Sequence[ProviderBatch]
) -> Verdict | Fault:
    """Which of these batches is ours, by the names in their results once they ended; counts may be
    wrong."""
    unsure = []
    for one in listed:
        if one.state.is_terminal:
            mine = await _is_ours(context, record, form, one)
        else:
            mine = None
        if isinstance(mine, Fault):
            return mine
        if mine:
            return Found(one)
        if mine is None:
            unsure.append(one)
    likely = [one for one in unsure if one.total == record.tasks] or unsure
    if len(likely) < 2:
        return Found(likely[0], sure=False) if likely else None
    names = ", ".join(one.id for one in likely)
    return Undecided(
        (
            f"{len(likely)} batches of that time are there ({names}), and their results will tell "
            "which is ours"
        ),
        for_good=all(one.state.is_terminal for one in likely),
    )


async def _is_ours(
    context: BatchContext, record: BatchRecord, form: BatchFormat, seen: ProviderBatch
) -> bool | Fault | None:
    """Whether the results of a batch that has ended hold our names; None: it has none by which to
    tell."""
    path = context.path(record, ".candidate")
    make_folder(path.parent)  # another machine may have submitted it
    for remote in seen.results:
        lines = max(record.tasks, seen.total or 0)  # another's may be larger
        size = await context.account(record.provider).api.download(
            remote, path, form.longest_line * lines
        )
        if isinstance(size, Fault) and size.kind is FaultKind.TASK:
            continue  # they are not to be had any more
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
    ours = [_names_us(form, record, file) for file in files]
    return False in ours and True not in ours


def _names_us(form: BatchFormat, record: BatchRecord, path: Path) -> bool | None:
    """Whether any of the first lines tells of a task of this batch, though others may not; None:
    none can be read."""
    mine = None
    for line in islice(result_lines(path, form.longest_line), 100):
        try:
            name = read_custom_id(form.result(line).custom_id)
        except UnreadableLine:
            continue
        mine = name is not None and name[0] == record.intent
        if mine:
            break
    return mine


# What reaches the provider is preceded by a committed intent. A crash before a request leaves the
# intent alone; a crash after it leaves a file, which is found or uploaded again, or a batch, which
# is found and never created twice. Batches are sent one after the other, so that at most one
# creation is in doubt.


async def send(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Takes a batch from BUILT as far as it goes now: SUBMITTED, or a step before it, whose note
    says why it waits. Raises RunStopped when the run stops."""
    await context.prove_writable()
    fresh = False  # whether the intent was committed just now: then nothing can be there yet
    while True:
        context.stop_signal.check()
        before = record
        if record.state == BatchStep.BUILT or (
            record.state == BatchStep.UPLOAD_INTENT and not fresh
        ):
            path = context.path(record)
            if not await asyncio.to_thread(is_whole, path, record.bytes, record.sha256):
                note = f"{path.name} is not what was written; its tasks go into another batch"
                return await context.journal.release(record, "batch", note)
        match BatchStep(record.state):
            case BatchStep.BUILT if context.account(record.provider).api.uploads:
                record = await context.journal.step(record, BatchStep.UPLOAD_INTENT)
            case BatchStep.UPLOAD_INTENT:
                record = await _upload(context, record, fresh=fresh)
            case BatchStep.BUILT | BatchStep.UPLOADED:
                why = await _waits_for(context, record)
                if why is not None:
                    return await context.journal.remark(record, why)
                # it may wait for a remote, and a kill meanwhile leaves nothing in doubt
                await _prove(context)
                mine = context.account(record.provider).provider
                base_url = context.redactor.clean(mine.base_url)
                record = await context.journal.write(
                    record, "intend", account=mine.account, base_url=base_url
                )
            case BatchStep.CREATE_INTENT:
                record = await (_create(context, record) if fresh else look_for(context, record))
            case _:
                return record
        if record.state == before.state and record.attempt == before.attempt:
            return record  # it waits
        fresh = record.state in (BatchStep.UPLOAD_INTENT, BatchStep.CREATE_INTENT)


async def _upload(context: BatchContext, record: BatchRecord, *, fresh: bool) -> BatchRecord:
    """Its input goes to the provider. Killed after the upload: the file is found by its name and
    size."""
    account = context.account(record.provider)
    name = f"agac-{record.file}"
    for attempt in count(1):
        given = None
        if not fresh or attempt > 1:
            given = await account.api.uploaded(name, record.bytes)
            context.heard(account, given)
        if given is None:
            given = await account.api.upload(context.path(record), name)
        if isinstance(given, str):
            context.keys.accepted(account.provider)
            return await context.journal.write(record, "uploaded", file_id=given)
        given = await context.keys.judged(account.provider, given, record.tasks)
        if given.about in _OF_FILE:
            return await halve(context, record, given)
        record = await context.journal.remark(record, given.message)
        if given.kind is FaultKind.TASK:  # the same file would be refused again
            raise context.stopped_by(given)
        if not await context.wait_and_retry(given, attempt, f"uploading {name}"):
            return record
    return record


async def _waits_for(context: BatchContext, record: BatchRecord) -> str | None:
    """Why a batch is not created now."""
    account = context.account(record.provider)
    if record.try_at is not None and record.try_at > context.clocks.wall():
        return record.note or "it is tried again later"
    mark = account.provider.account
    if account.traits.finds_by == "count" and await others_in_intent(
        context.database, mark, record.id
    ):
        return "another batch of the account may have been created: run `agac doctor` first"
    load = await context.lane_load(record)
    if load.cap is not None and load.batches and load.tokens + record.tokens > load.cap:
        return (
            f"{load.tokens:,} tokens are enqueued in {record.lane} and it would add "
            f"{record.tokens:,}: the account takes about {load.cap:,}"
        )
    if account.traits.max_open is not None and load.of_account >= account.traits.max_open:
        return f"{load.of_account} batches are open, and the account takes no more"
    return None


async def _prove(context: BatchContext) -> None:
    """Proves, where others may work on the same, that a batch is still this process's to create.
    Raises AgacError."""
    control = context.batching.control
    if control is not None:
        await control.prove(context.database)
    sharding = context.batching.sharding
    if sharding is not None:
        await sharding.prove(context.stop_signal)


async def _create(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Asks for it, once. Killed after that: it is found."""
    form = await context.format(record)
    assert form is not None
    await _prove(context)  # at once, unless this process slept
    account = context.account(record.provider)
    fault = await account.api.create(order_of(context, record, form))
    if isinstance(fault, ProviderBatch):
        context.keys.answered(account.provider)
        return await context.journal.submitted(record, fault, deadline(context, form), None)
    if fault.ambiguous:
        _log.warning("batch %d may have been created: %s", record.id, fault.message)
        record = await look_for(context, record)
        if record.state != _back(record) or fault.about is not About.UNSURE:
            return record
        # it is not there: created again it would be refused again
    fault = await context.keys.judged(account.provider, fault, record.tasks)
    return await _not_created(context, record, fault)


async def _not_created(context: BatchContext, record: BatchRecord, fault: Fault) -> BatchRecord:
    """What becomes of a batch whose creation was refused. Raises RunStopped when the run stops."""
    if fault.about is About.QUEUE:
        return await over_cap(context, record, fault.message)
    if fault.about in _OF_FILE:
        return await halve(context, record, fault)
    if fault.about is About.INPUT and record.attempt > UPLOAD_AGAIN:  # it is not late, it is gone
        return await context.journal.write(
            record, "defer", to=BatchStep.BUILT, try_at=None, note=fault.message
        )
    again = await _stepped_back(context, record, fault.message)
    if fault.kind not in (FaultKind.RETRY, FaultKind.PAUSE):
        raise context.stopped_by(fault)
    if await context.wait_and_retry(fault, record.attempt, f"creating batch {record.id}"):
        return again
    at = context.clocks.wall() + (fault.delay or AGAIN_AFTER)
    return await context.journal.write(again, "remark", at=at, note=fault.message)


async def create_later(context: BatchContext, record: BatchRecord, fault: Fault) -> BatchRecord:
    """A batch that was refused after its creation for what may pass: it is created again in a
    while."""
    at = context.clocks.wall() + (fault.delay or AGAIN_AFTER)
    return await context.journal.write(
        record, "defer", to=_back(record), try_at=at, note=fault.message
    )


def _back(record: BatchRecord) -> BatchStep:
    """The step from which a batch is created once more."""
    if record.file_id is not None:
        return BatchStep.UPLOADED
    return BatchStep.BUILT


async def over_cap(context: BatchContext, record: BatchRecord, message: str) -> BatchRecord:
    """Too many tokens are enqueued: nothing ran. The limit is learned; the batch waits, or is cut
    if it never fits."""
    now = context.clocks.wall()
    back = _back(record)
    load = await lane_load(context.database, *record.account_lane, now - CAP_KEPT)
    others = load.tokens - (record.tokens if load.batches else 0)
    found = _CAP_WORDS.search(message)
    # the limit that it names
    if found:
        limit = re.sub(r"\D", "", next(filter(None, found.groups()), ""))
    else:
        limit = ""
    if 0 < len(limit) < 16:
        cap = int(limit)
    else:
        cap = max(others + record.tokens - 1, 1)
    if others > 0:  # what was refused is more than it takes, in our own estimates
        cap = min(cap, others + record.tokens - 1)
    elif record.tokens <= cap < ESTIMATES_APART * record.tokens:  # the estimate is too low
        cap = max(record.tokens // 2, 1)
    await context.journal.cap(record, cap)
    if record.tokens > cap and record.tasks > 1 and others <= 0:
        note = (
            f"the account takes about {cap:,} enqueued tokens, and it had "
            f"{record.tokens:,}: it is cut"
        )
        record = await _stepped_back(context, record, note)
        return await context.journal.release(record, "batch", note)
    at = None if others > 0 else now + AGAIN_AFTER
    return await context.journal.write(record, "defer", to=back, try_at=at, note=message)


async def _stepped_back(context: BatchContext, record: BatchRecord, note: str) -> BatchRecord:
    """A batch that was refused, at the step from which it can be given up: nothing of it exists
    any more."""
    if record.state not in (BatchStep.CREATE_INTENT, BatchStep.SUBMITTED):
        return record
    return await context.journal.write(record, "defer", to=_back(record), try_at=None, note=note)


async def halve(context: BatchContext, record: BatchRecord, fault: Fault) -> BatchRecord:
    """What was refused for its size or for what it holds: its tasks go into files of half the
    size, and a task alone has failed."""
    of_size = fault.about is About.SIZE
    if record.tasks > 1:
        note = f"its file of {record.bytes:,} bytes is cut: {fault.message}"
        word = batches.TOO_LARGE if of_size else batches.BLOCKED
        halved = await context.journal.halve(await _stepped_back(context, record, note), word, note)
        context.path(record).unlink(missing_ok=True)  # killed before, the next command removes it
        return halved
    form = await context.format(record)
    what = f"its request of {record.bytes:,} bytes is too large for a batch"
    remedy = _TOO_LARGE
    if not of_size:
        what = "its request was refused"
        remedy = ""
    message = f"{what}: {with_remedy(fault.message, remedy)}"
    error = RowError(fault.type, message)
    rejected = await context.journal.reject(
        record, {1: error}, message, form.stage if form is not None else None
    )
    context.path(record).unlink(missing_ok=True)
    return rejected


async def look_for(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Finds out whether a batch in CREATE_INTENT exists; nothing is created. Found: it is ours, as
    it is; proved absent: it is created by the next `send`; else it waits."""
    form = await context.format(record)
    if form is None:
        return record
    for attempt in count(1):
        verdict = await _find(context, record, form)
        if not isinstance(verdict, Fault):
            break
        if not await context.wait_and_retry(verdict, attempt, f"looking for batch {record.id}"):
            return await context.journal.remark(record, verdict.message)
    match verdict:
        case Found(seen, sure, others):
            # which should not be: they are ended, and what they finished is ours already
            for one in others:
                await context.account(record.provider).api.cancel(one.id)
            note = None if sure else UNSURE
            if others:
                note = (
                    "also there under its name, and cancelled: "
                    f"{', '.join(one.id for one in others)}"
                )
            _log.info("batch %d was found as %s", record.id, seen.id)
            return await context.journal.submitted(record, seen, deadline(context, form), note)
        case Undecided(reason, for_good=True):
            return await context.journal.step(record, BatchStep.NEEDS_HUMAN, reason)
        case Undecided(reason):
            return await context.journal.remark(record, reason)
        case _:
            note = "it was not there: it is created again"
            return await context.journal.write(
                record, "defer", to=_back(record), try_at=None, note=note
            )


async def look_once(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Looks once more for a batch that could not be found, with the key that asked for it."""
    form = await context.format(record)
    verdict = await _look(context, record, form) if form is not None else None
    if form is None or not isinstance(verdict, Found) or not verdict.sure:
        return record
    return await context.journal.submitted(record, verdict.seen, deadline(context, form), None)


def deadline(context: BatchContext, form: BatchFormat, *, day_only: bool = False) -> float | None:
    """When what is not finished is cancelled, in seconds since 1970; `day_only`: where it is a
    time of day."""
    if form.stage.batch.on_deadline == "sync":
        wish = form.stage.batch.deadline
    else:
        wish = None
    now = context.clocks.wall()
    if isinstance(wish, DayTime):  # the next one where the program runs
        here = datetime.fromtimestamp(now)  # noqa: DTZ006 (a time of day is meant where its author lives)
        at = here.replace(hour=wish.hour, minute=wish.minute, second=0, microsecond=0)
        return (at if at > here else at + timedelta(days=1)).timestamp()
    return None if wish is None or day_only else now + wish


def is_whole(path: Path, size: int, sha256: str | None) -> bool:
    """Whether a file is what was written. Reads all of it."""
    try:
        if path.stat().st_size != size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False
