"""A batch whose creation was begun and of which nothing is known: is it there, or is it not? It never guesses.

Whoever was killed, or cut off, between asking for a batch and learning its name has perhaps a batch that costs. It is
looked for by what the provider echoes; that it is absent is believed only once the provider's list had time to show it
(`grace`), and never where the list may be cut or echoes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agac.core.keys import read_custom_id
from agac.core.types import Fault
from agac.engine.batch.form import Form
from agac.engine.batch.scene import PATIENCE, Scene
from agac.providers.batches import Order, Seen, UnreadableLine
from agac.store.batches import BatchRecord, known_ids, newest_at

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

    seen: Seen
    sure: bool = True
    others: tuple[Seen, ...] = ()


@dataclass(frozen=True, slots=True)
class Absent:
    """It was never created: the provider had time enough to show it."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """Not yet: `until` seconds since 1970 it may still show up, None: nobody can say when it is known."""

    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Unprovable:
    """It cannot be known from here: a human looks."""

    reason: str


Verdict = Found | Absent | Undecided | Unprovable


def order_of(scene: Scene, record: BatchRecord, endpoint: str) -> Order:
    """What is, or was, asked for."""
    return Order(
        key=record.key,
        path=scene.path(record),
        endpoint=endpoint,
        model=record.model,
        requests=record.tasks,
        file_id=record.file_id,
        window=record.window,
    )


async def find(scene: Scene, record: BatchRecord, order: Order) -> Verdict | Fault:
    """What is known of a batch in CREATE_INTENT, after as many looks as its grace allows. Raises Halted when the run
    stops meanwhile."""
    account = scene.account(record)
    assert record.created_after is not None
    grace = await _grace(scene, record)
    ends = record.created_after + grace
    for turn in range(1_000_000):
        verdict = await look(scene, record, order)
        if not isinstance(verdict, Absent):
            return verdict
        left = ends - scene.clocks.wall()
        if left <= 0:
            break
        if left > PATIENCE and not scene.stays:
            return Undecided(f"whether {account.provider.name} has it is known in {left:.0f} s", ends)
        await scene.control.sleep(min(_LOOKS[min(turn, len(_LOOKS) - 1)], left))
    if account.mark != record.account:
        return Unprovable(
            "it was asked for with another key, or at another address: its batches may not be seen from here"
        )
    if not await _echoes(scene, record):
        return Unprovable(f"{account.provider.name} does not tell which batch is which: it echoes neither key nor file")
    if not account.traits.pages:
        return Unprovable(f"the list of {account.provider.name} may be cut, so what is not in it may still exist")
    return Absent()


async def _echoes(scene: Scene, record: BatchRecord) -> bool:
    """Whether the provider tells of a batch by what it is found; where no other batch is known it is taken to do so."""
    if scene.account(record).traits.finds_by == "count":
        return True
    other = await newest_at(scene.database, record.provider, record.id)
    seen = await scene.account(record).api.look(other) if other is not None else None
    return not isinstance(seen, Seen) or seen.key is not None or seen.file_id is not None


async def _grace(scene: Scene, record: BatchRecord) -> float:
    form = await scene.form(record)
    wished = form.rules.grace if form is not None else None
    return scene.account(record).traits.grace if wished is None else wished


async def look(scene: Scene, record: BatchRecord, order: Order) -> Verdict | Fault:
    """What the provider's list says now."""
    api, traits = scene.account(record).api, scene.account(record).traits
    assert record.created_after is not None
    listed: list[Seen] = []
    async for one in api.candidates(order, record.created_after - CLOCKS_APART):
        if isinstance(one, Fault):
            return one
        listed.append(one)
    known = await known_ids(scene.database, [one.id for one in listed])
    fresh = [one for one in listed if one.id not in known and one.id not in record.not_ours]
    if traits.finds_by == "count":
        return await _by_size(scene, record, fresh)
    sure = sorted(fresh, key=lambda one: one.created_at or 0.0)
    return Found(sure[0], others=tuple(sure[1:])) if sure else Absent()


async def _by_size(scene: Scene, record: BatchRecord, fresh: Iterable[Seen]) -> Verdict | Fault:
    """Nothing but size and time tells such batches apart, and the names in their results once they have ended."""
    unsure = []
    for one in fresh:
        if not one.state.is_terminal:
            unsure.append(one)
            continue
        mine = await is_ours(scene, record, one)
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


async def is_ours(scene: Scene, record: BatchRecord, seen: Seen) -> bool | Fault | None:
    """Whether the results of a batch that has ended hold our names; None: it has none by which to tell."""
    form = await scene.form(record)
    path = scene.path(record, ".candidate")
    assert form is not None
    for remote in seen.results:
        size = await scene.account(record).api.download(remote, path)
        if isinstance(size, Fault):
            return size
        try:
            mine = _names_us(form, record, path)
        finally:
            path.unlink(missing_ok=True)
        if mine is not None:
            return mine
    return None


def names_other(form: Form, record: BatchRecord, files: Iterable[Path]) -> bool:
    """Whether downloaded results are those of another batch."""
    told = [_names_us(form, record, file) for file in files]
    return False in told and True not in told


def _names_us(form: Form, record: BatchRecord, path: Path) -> bool | None:
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
