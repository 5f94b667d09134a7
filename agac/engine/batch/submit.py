"""Sends a batch to the provider: uploads and creates it, and looks for it if its creation is in
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

UNSURE = "taken for ours by its time: its results will confirm it"
"""The note of a batch that may be another user's."""

_LOOKS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds between looks at a provider's list; the last one is repeated."""

UPLOAD_AGAIN = 4
"""Refusals after which an input that the provider does not find is uploaded again."""

ESTIMATES_APART = 8
"""How many times as many tokens as our estimate a provider may count."""

AGAIN_AFTER = 900.0
"""Seconds until a batch is tried again that met its account's limit although nothing of ours was
under way."""

_TOO_LARGE = "Shorten the row's fields or the prompt, or run the stage with `run_mode: sync`."

_OF_FILE = (About.SIZE, About.CONTENT)
"""Refusals that a file with fewer requests may not meet."""

_CAP_WORDS = re.compile(
    r"limit:?\s*([\d][\d,_. ]*)\s*enqueued|limit(?: of)?:?\s*([\d][\d,_]*)", re.IGNORECASE
)


# A process that was killed, or cut off, between asking for a batch and learning its name may have a
# batch that costs. It is looked for by what the provider echoes. That it is absent is believed only
# once the provider's list had time to show it (`grace`), and never if the list may be cut or echoes
# nothing.


class Found(NamedTuple):
    """A batch is at its provider."""

    seen: ProviderBatch
    """The batch."""

    sure: bool = True
    """False if it was found by its time alone: a result must confirm it."""

    others: tuple[ProviderBatch, ...] = ()
    """Other batches with its name."""


class Undecided(NamedTuple):
    """It is unknown if a batch was created."""

    reason: str
    """Why."""

    for_good: bool = False
    """True if it cannot be known from here, so that the user decides; else it may show up."""


Verdict = Found | Undecided | None
"""What is known of a batch that may have been created. None: it was not, since the provider had
time enough to show it."""


def order_of(context: BatchContext, record: BatchRecord, form: BatchFormat) -> Order:
    """Returns what the provider is, or was, asked to create."""
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
    """Looks for a batch in CREATE_INTENT, as long as its grace allows. Raises RunStopped."""
    account = context.account(record.provider)
    assert record.created_after is not None
    grace = form.stage.settings.batch.grace
    if grace is None:
        grace = account.traits.grace
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
    reason = await _reason_for_doubt(context, record)
    return Undecided(reason, for_good=True) if reason is not None else None


async def _reason_for_doubt(context: BatchContext, record: BatchRecord) -> str | None:
    """Says why a batch may exist although the provider's list does not show it; None: it does not
    exist."""
    account = context.account(record.provider)
    name = account.provider.name
    if account.provider.account != record.account:
        return (
            "it was asked for with another key, or at another address: its batches may not "
            "be seen from here"
        )
    if not await _echoes(context, record):
        return f"{name} does not tell which batch is which: it echoes neither key nor file"
    if not account.traits.pages:
        return f"the list of {name} may be cut, so what is not in it may still exist"
    return None


async def _echoes(context: BatchContext, record: BatchRecord) -> bool:
    """True if the provider echoes that by which a batch is found. It is taken to do so if no other
    batch is known."""
    account = context.account(record.provider)
    if account.traits.finds_by == "count":
        return True
    other = await newest_at(context.database, record.provider, record.id)
    seen = await account.api.look(other) if other is not None else None
    return not isinstance(seen, ProviderBatch) or seen.key is not None or seen.file_id is not None


async def _look(context: BatchContext, record: BatchRecord, form: BatchFormat) -> Verdict | Fault:
    """Looks for a batch in the provider's list once."""
    account = context.account(record.provider)
    assert record.created_after is not None
    listed: list[ProviderBatch] = []
    async for candidate in account.api.candidates(
        order_of(context, record, form), record.created_after - CLOCKS_APART
    ):
        if isinstance(candidate, Fault):
            return candidate
        listed.append(candidate)
    context.keys.accepted(account.provider)
    known = await known_ids(context.database, [batch.id for batch in listed])
    left_out = {*known, *record.not_ours}
    new = [batch for batch in listed if batch.id not in left_out]
    if account.traits.finds_by != "count":
        by_time = sorted(new, key=lambda batch: batch.created_at or 0.0)
        return Found(by_time[0], others=tuple(by_time[1:])) if by_time else None
    latest = record.created_after + CLOCKS_APART
    of_time = [batch for batch in new if batch.created_at is None or batch.created_at <= latest]
    return await _by_results(context, record, form, of_time)


async def _by_results(
    context: BatchContext, record: BatchRecord, form: BatchFormat, listed: Sequence[ProviderBatch]
) -> Verdict | Fault:
    """Finds out which of these batches is ours by the names in their results, if they have ended.

    The counts of requests may be wrong."""
    unsure = []
    for batch in listed:
        is_ours = None
        if batch.state.is_terminal:
            is_ours = await _is_ours(context, record, form, batch)
        if isinstance(is_ours, Fault):
            return is_ours
        if is_ours:
            return Found(batch)
        if is_ours is None:
            unsure.append(batch)
    likely = [batch for batch in unsure if batch.total == record.tasks] or unsure
    if len(likely) < 2:
        return Found(likely[0], sure=False) if likely else None
    names = ", ".join(batch.id for batch in likely)
    reason = (
        f"{len(likely)} batches of that time are there ({names}), and their results will tell "
        "which is ours"
    )
    return Undecided(reason, for_good=all(batch.state.is_terminal for batch in likely))


async def _is_ours(
    context: BatchContext, record: BatchRecord, form: BatchFormat, seen: ProviderBatch
) -> bool | Fault | None:
    """True if the results of a batch that has ended hold our names; None: it has none that
    tells."""
    path = context.path(record, ".candidate")
    make_folder(path.parent)  # another machine may have submitted it
    for remote in seen.results:
        lines = max(record.tasks, seen.total or 0)  # a batch of another user may be larger
        size = await context.account(record.provider).api.download(
            remote, path, form.longest_line * lines
        )
        if isinstance(size, Fault) and size.kind is FaultKind.TASK:
            continue  # they are not kept any more
        if isinstance(size, Fault):
            return size
        try:
            is_ours = _names_us(form, record, path)
        finally:
            path.unlink(missing_ok=True)
        if is_ours is not None:
            return is_ours
    return None


def names_other(form: BatchFormat, record: BatchRecord, files: Iterable[Path]) -> bool:
    """True if downloaded results are those of another batch."""
    ours = [_names_us(form, record, file) for file in files]
    return False in ours and True not in ours


def _names_us(form: BatchFormat, record: BatchRecord, path: Path) -> bool | None:
    """True if one of the first lines names a task of this batch; None: no line can be read."""
    is_ours = None
    for line in islice(result_lines(path, form.longest_line), 100):
        try:
            name = read_custom_id(form.result(line).custom_id)
        except UnreadableLine:
            continue
        is_ours = name is not None and name[0] == record.intent
        if is_ours:
            break
    return is_ours


# What reaches the provider is preceded by a committed intent. A crash before a request leaves the
# intent alone; a crash after it leaves a file, which is found or uploaded again, or a batch, which
# is found and never created twice. Batches are sent one after the other, so that at most one
# creation is in doubt.


async def send(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Takes a batch from BUILT as far as it goes now: SUBMITTED, or a step before it, with a note
    that says why it waits. Raises RunStopped if the run stops."""
    await context.prove_writable()
    is_new_intent = False
    while True:
        context.stop_signal.check()
        before = record
        if _reads_file(record, is_new_intent=is_new_intent):
            path = context.path(record)
            if not await asyncio.to_thread(is_whole, path, record.bytes, record.sha256):
                note = f"{path.name} is not what was written; its tasks go into another batch"
                return await context.journal.release(record, "batch", note)
        match BatchStep(record.state):
            case BatchStep.BUILT if context.account(record.provider).api.uploads:
                record = await context.journal.step(record, BatchStep.UPLOAD_INTENT)
            case BatchStep.UPLOAD_INTENT:
                record = await _upload(context, record, is_new_intent=is_new_intent)
            case BatchStep.BUILT | BatchStep.UPLOADED:
                record = await _intend(context, record)
            case BatchStep.CREATE_INTENT if is_new_intent:
                record = await _create(context, record)
            case BatchStep.CREATE_INTENT:
                record = await look_for(context, record)
            case _:
                return record
        if record.state == before.state and record.attempt == before.attempt:
            return record  # it waits
        # right after the commit of an intent the provider can have nothing of the batch
        is_new_intent = record.state in (BatchStep.UPLOAD_INTENT, BatchStep.CREATE_INTENT)


def _reads_file(record: BatchRecord, *, is_new_intent: bool) -> bool:
    """True if the next step reads the file of a batch, which was not checked just before."""
    if record.state == BatchStep.UPLOAD_INTENT:
        return not is_new_intent
    return record.state == BatchStep.BUILT


async def _intend(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Commits the intent to create a batch, or the reason why it waits."""
    reason = await _reason_to_wait(context, record)
    if reason is not None:
        return await context.journal.remark(record, reason)
    # the proof may wait for a remote, and a kill meanwhile leaves nothing in doubt
    await _prove(context)
    provider = context.account(record.provider).provider
    base_url = context.redactor.clean(provider.base_url)
    return await context.journal.write(
        record, "intend", account=provider.account, base_url=base_url
    )


async def _upload(
    context: BatchContext, record: BatchRecord, *, is_new_intent: bool
) -> BatchRecord:
    """Uploads the input of a batch.

    Killed after the upload: the file is found by its name and size."""
    account = context.account(record.provider)
    name = f"agac-{record.file}"
    for attempt in count(1):
        file: str | Fault | None = None
        if not is_new_intent or attempt > 1:
            file = await account.api.uploaded(name, record.bytes)
            context.heard(account, file)
        if file is None:
            file = await account.api.upload(context.path(record), name)
        if isinstance(file, str):
            context.keys.accepted(account.provider)
            return await context.journal.write(record, "uploaded", file_id=file)
        fault = await context.keys.judged(account.provider, file, record.tasks)
        if fault.about in _OF_FILE:
            return await halve(context, record, fault)
        record = await context.journal.remark(record, fault.message)
        if fault.kind is FaultKind.TASK:  # the same file would be refused again
            raise context.stopped_by(fault)
        if not await context.wait_and_retry(fault, attempt, f"uploading {name}"):
            return record
    return record


async def _reason_to_wait(context: BatchContext, record: BatchRecord) -> str | None:
    """Says why a batch is not created now; None: it is."""
    account = context.account(record.provider)
    if record.try_at is not None and record.try_at > context.clocks.wall():
        return record.note or "it is tried again later"
    if account.traits.finds_by == "count":
        mark = account.provider.account
        if await others_in_intent(context.database, mark, record.id):
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
    """Proves that a batch is still this process's to create, if others may work on the same
    workflow. Raises AgacError."""
    control = context.batching.control
    if control is not None:
        await control.prove(context.database)
    sharding = context.batching.sharding
    if sharding is not None:
        await sharding.prove(context.stop_signal)


async def _create(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Asks the provider once to create a batch. Killed after that, it is found."""
    form = await context.format(record)
    assert form is not None
    await _prove(context)  # without a request, unless this process slept
    account = context.account(record.provider)
    created = await account.api.create(order_of(context, record, form))
    if isinstance(created, ProviderBatch):
        context.keys.answered(account.provider)
        return await context.journal.submitted(record, created, deadline(context, form), None)
    fault = created
    if fault.ambiguous:
        _log.warning("batch %d may have been created: %s", record.id, fault.message)
        record = await look_for(context, record)
        if record.state != _back(record) or fault.about is not About.UNSURE:
            return record
        # it is not there: created again it would be refused again
    fault = await context.keys.judged(account.provider, fault, record.tasks)
    return await _not_created(context, record, fault)


async def _not_created(context: BatchContext, record: BatchRecord, fault: Fault) -> BatchRecord:
    """Takes a batch whose creation was refused to its next step. Raises RunStopped if the run
    stops."""
    if fault.about is About.QUEUE:
        return await over_cap(context, record, fault.message)
    if fault.about in _OF_FILE:
        return await halve(context, record, fault)
    if fault.about is About.INPUT and record.attempt > UPLOAD_AGAIN:  # its input is gone
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
    """Has a batch created again in a while that was refused after its creation, for a reason that
    may pass."""
    at = context.clocks.wall() + (fault.delay or AGAIN_AFTER)
    return await context.journal.write(
        record, "defer", to=_back(record), try_at=at, note=fault.message
    )


def _back(record: BatchRecord) -> BatchStep:
    """Returns the step from which a batch is created again."""
    if record.file_id is not None:
        return BatchStep.UPLOADED
    return BatchStep.BUILT


async def over_cap(context: BatchContext, record: BatchRecord, message: str) -> BatchRecord:
    """Lets a batch wait, or cuts it if it never fits, since its account takes no more enqueued
    tokens. Nothing of it ran; the limit is stored."""
    now = context.clocks.wall()
    back = _back(record)
    load = await lane_load(context.database, *record.account_lane, now - CAP_KEPT)
    others = load.tokens - (record.tokens if load.batches else 0)
    cap = _cap(record, others, message)
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


def _cap(record: BatchRecord, others: int, message: str) -> int:
    """Returns how many enqueued tokens an account takes that refused a batch.

    `others` are the tokens of other batches, in our estimate; `message` may name the limit."""
    match = _CAP_WORDS.search(message)
    limit = re.sub(r"\D", "", next(filter(None, match.groups()), "")) if match else ""
    too_many = others + record.tokens - 1
    cap = int(limit) if 0 < len(limit) < 16 else max(too_many, 1)
    if others > 0:  # the account takes less than all of them, in our own estimates
        return min(cap, too_many)
    if record.tokens <= cap < ESTIMATES_APART * record.tokens:  # our estimate is too low
        return max(record.tokens // 2, 1)
    return cap


async def _stepped_back(context: BatchContext, record: BatchRecord, note: str) -> BatchRecord:
    """Takes a refused batch to the step from which it can be released: nothing of it exists any
    more."""
    if record.state not in (BatchStep.CREATE_INTENT, BatchStep.SUBMITTED):
        return record
    return await context.journal.write(record, "defer", to=_back(record), try_at=None, note=note)


async def halve(context: BatchContext, record: BatchRecord, fault: Fault) -> BatchRecord:
    """Puts the tasks of a file that was refused, for its size or for what it holds, into files of
    half its size. A single task fails."""
    is_too_large = fault.about is About.SIZE
    if record.tasks > 1:
        note = f"its file of {record.bytes:,} bytes is cut: {fault.message}"
        word = batches.TOO_LARGE if is_too_large else batches.BLOCKED
        halved = await context.journal.halve(await _stepped_back(context, record, note), word, note)
        context.path(record).unlink(missing_ok=True)  # killed before, the next command removes it
        return halved
    form = await context.format(record)
    if is_too_large:
        problem = f"its request of {record.bytes:,} bytes is too large for a batch"
        message = f"{problem}: {with_remedy(fault.message, _TOO_LARGE)}"
    else:
        message = f"its request was refused: {with_remedy(fault.message, '')}"
    error = RowError(fault.type, message)
    stage = form.stage if form is not None else None
    rejected = await context.journal.reject(record, {1: error}, message, stage)
    context.path(record).unlink(missing_ok=True)
    return rejected


async def look_for(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Finds out whether a batch in CREATE_INTENT exists, without creating it.

    If it is found, it is ours; if it is proved absent, the next `send` creates it; else it
    waits."""
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
        case Found():
            return await _take_found(context, record, form, verdict)
        case Undecided(reason, for_good=True):
            return await context.journal.step(record, BatchStep.NEEDS_HUMAN, reason)
        case Undecided(reason):
            return await context.journal.remark(record, reason)
        case _:
            note = "it was not there: it is created again"
            return await context.journal.write(
                record, "defer", to=_back(record), try_at=None, note=note
            )


async def _take_found(
    context: BatchContext, record: BatchRecord, form: BatchFormat, found: Found
) -> BatchRecord:
    """Takes a batch that was found for ours, and ends others with its name."""
    # there should be no others; what they finished is ours already
    for other in found.others:
        await context.account(record.provider).api.cancel(other.id)
    note = None if found.sure else UNSURE
    if found.others:
        ids = ", ".join(other.id for other in found.others)
        note = f"also there under its name, and cancelled: {ids}"
    _log.info("batch %d was found as %s", record.id, found.seen.id)
    return await context.journal.submitted(record, found.seen, deadline(context, form), note)


async def look_once(context: BatchContext, record: BatchRecord) -> BatchRecord:
    """Looks once for a batch that could not be found before, with the key that asked for it."""
    form = await context.format(record)
    verdict = await _look(context, record, form) if form is not None else None
    if form is None or not isinstance(verdict, Found) or not verdict.sure:
        return record
    return await context.journal.submitted(record, verdict.seen, deadline(context, form), None)


def deadline(context: BatchContext, form: BatchFormat, *, day_only: bool = False) -> float | None:
    """Returns when an unfinished batch is cancelled, in seconds since 1970; None: never.

    `day_only`: only a time of day counts."""
    rules = form.stage.settings.batch
    wanted = rules.deadline if rules.on_deadline == "sync" else None
    now = context.clocks.wall()
    if isinstance(wanted, DayTime):
        # the next one in the zone where the program runs, as its author meant it
        here = datetime.fromtimestamp(now)  # noqa: DTZ006
        at = here.replace(hour=wanted.hour, minute=wanted.minute, second=0, microsecond=0)
        return (at if at > here else at + timedelta(days=1)).timestamp()
    return None if wanted is None or day_only else now + wanted


def is_whole(path: Path, size: int, sha256: str | None) -> bool:
    """True if a file is what was written. Reads all of it."""
    try:
        if path.stat().st_size != size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False
