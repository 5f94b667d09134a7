"""Exchanges members of groups across shards.

Each shard gives the members that it has of groups in other shards, waits until all have given
theirs, and takes those of its own groups."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Annotated, NamedTuple, get_args
from urllib.parse import quote

from pydantic import Field, StringConstraints, TypeAdapter

from agac.core.errors import AgacError
from agac.core.json_text import strict_json
from agac.core.keys import canonical, digest, member_hash, shard_of
from agac.core.types import Shard
from agac.data.shared_log import Line, SharedObject
from agac.engine.context import InvocationContext
from agac.engine.sharding.folder import PackNames, ShardFolder, ShardManifest, other_inputs
from agac.engine.sharding.shard_run import ShardRun
from agac.engine.walk.replay import GroupContents
from agac.plan.stage import AnyStage
from agac.store import rows as store
from agac.store.batches import project_token
from agac.store.db import slices, sql
from agac.store.records import DistantMember, Membership

# Below groups/STAGE/ of the folder of a run:
#   from/3-of-16/0000000001   what a shard gave: a log, as a retry or another input may change it
#   5-of-16/NAME.pack         members of groups that are in that shard; named by their content

HELD_BYTES = 32_000_000
"""Bytes of members that wait to become packs, for all shards together."""

MOST_MEMBERS = 500_000
"""Members of a pack, which is in memory as a whole."""

POLL_SECONDS = 5.0

_log = logging.getLogger("agac.shard")

_Number = Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]
_Member = tuple[_Number | str, str, _Number | str, _Number, _Number, str]
"""A group and its fields; the id of a row, the position of the stage that made it (-1: none), its
size, its text."""

_MEMBER = TypeAdapter[_Member](_Member)


ShardName = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,5}-of-[0-9]{1,5}$")]


class GivenMembers(SharedObject):
    """The members that a shard gave to groups of a stage."""

    store: Line
    """The token of its store."""

    input: Line
    """The hash of all rows that were read."""

    packs: Mapping[ShardName, PackNames]
    """The names of its packs by the shard that they are for, as `5-of-16`."""


class Gift(NamedTuple):
    """The last entry in which a shard says what it gave."""

    entry: int
    """The number of the entry."""

    members: GivenMembers
    """The entry."""

    def packs_for(self, shard: Shard) -> Sequence[str]:
        """Returns the names of the packs for a shard."""
        return self.members.packs.get(shard.name, ())


def _listed(shards: Sequence[Shard]) -> str:
    """Lists shards for a message, the first ten of them."""
    word = "shard" if len(shards) == 1 else "shards"
    more = " …" if len(shards) > 10 else ""
    return f"{word} {', '.join(map(str, shards[:10]))}{more}"


def _mark(packs: Sequence[str]) -> str:
    """Returns the mark of the members in packs."""
    return digest(canonical(packs)).hex()


async def outdated(folder: ShardFolder, manifests: Collection[ShardManifest]) -> dict[int, str]:
    """Says of each complete shard that has to be run again, why: it read another input than the
    one that ended last, or made groups of rows that others changed since."""
    gifts = dict[str, dict[Shard, Gift]]()
    changed = defaultdict[int, set[Shard]](set)
    for manifest in manifests:
        taker = Shard(manifest.status.number, manifest.status.of)
        for key, mark in manifest.taken.items():
            run, number, path = key.split(" ")
            giver = Shard(int(number), taker.of)
            if path not in gifts:
                gifts[path] = await _all_given(folder, path)
            gift = gifts[path].get(giver)
            packs = gift.packs_for(taker) if gift is not None else ()
            if int(run) == manifest.status.run and _mark(packs) != mark:
                changed[taker.number].add(giver)
    texts = dict[int, str]()
    for shard, givers in changed.items():
        names = ", ".join(map(str, sorted(givers)))
        texts[shard] = f"made groups of rows that shard {names} changed since"
    return texts | other_inputs(manifests)


async def _all_given(folder: ShardFolder, path: str) -> dict[Shard, Gift]:
    """Reads what each shard gave last to the groups at this path."""
    gifts = dict[Shard, Gift]()
    for log, (entry, content) in (await folder.newest(f"{path}/from")).items():
        shard = Shard.read(log.rpartition("/")[2], "-of-")
        given = folder.believed(GivenMembers, log, content)
        if shard is not None and given is not None:
            gifts[shard] = Gift(entry, given)
    return gifts


class GroupExchange:
    """Gives and takes the members of the groups of a stage."""

    def __init__(self, context: InvocationContext, sharding: ShardRun, stage: AnyStage) -> None:
        self._context = context
        self._sharding = sharding
        self._stage = stage
        self._shard = sharding.shard
        self._folder = sharding.folder
        self._input = sharding.read.text
        self._path = f"groups/{quote(stage.name, safe='').replace('%', '=')}"

    async def waits(self) -> bool:
        """Gives and takes members; True: the groups have to wait for other shards.

        Else all members that these have are in the store. Raises AgacError if the remote cannot be
        used, or an object in it."""
        if self._sharding.waits:  # those of an earlier stage wait
            return True
        if not self._input:  # a retry takes its rows from the store
            self._input = await self._input_before()
        await self._give()
        gifts = await self._gifts_of_others()
        if gifts is None:
            return True
        self._sharding.waits = ""
        for shard, gift in gifts.items():
            await self._take(shard.number, gift.entry, gift.packs_for(self._shard))
        return False

    async def _input_before(self) -> str:
        """Returns the hash of the input that the last invocation of the shard read, if known."""
        _, content = await self._folder.last(f"ended/{self._shard.name}")
        if not content:
            return ""
        manifest = self._folder.believed(ShardManifest, "ended", content)
        return manifest.input if manifest is not None else ""

    async def _gifts_of_others(self) -> dict[Shard, Gift] | None:
        """Waits until all other shards gave their members of this input, and returns what they
        gave; None: the invocation does not wait."""
        sharding = self._sharding
        stop_signal = self._context.stop_signal
        of = self._shard.of
        numbers = [number for number in range(1, of + 1) if number != self._shard.number]
        others = [Shard(number, of) for number in numbers]
        logged = ""
        while True:
            gifts = await _all_given(self._folder, self._path)
            late = [
                shard
                for shard in others
                if shard not in gifts or gifts[shard].members.input != self._input
            ]
            if not late:
                return {shard: gifts[shard] for shard in others}
            sharding.waits = f"rows of {_listed(late)} for the groups of stage {self._stage.name!r}"
            with_other_input = [shard for shard in late if shard in gifts]
            if with_other_input:
                sharding.waits += f"; another input was read by {_listed(with_other_input)}"
            if not self._context.work.batching.wait or stop_signal.stop is not None:
                return None
            if logged != sharding.waits:
                logged = sharding.waits
                _log.warning("waiting for %s", logged)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await stop_signal.stopped.wait()

    async def _give(self) -> None:
        """Gives the other shards the members of their groups, if they do not have them."""
        (database, run, _), stage = self._context.places, self._stage.index
        gift = (await _all_given(self._folder, self._path)).get(self._shard)
        before = gift.members if gift is not None else None
        token = await project_token(database)
        is_of_this_store = before is not None and before.store == token
        if (
            before is None
            or not is_of_this_store
            or await store.any_changed_away(database, run, stage)
        ):
            packs = await self._packs()
        else:
            packs = dict(before.packs)
        is_given = (
            before is not None
            and is_of_this_store
            and (before.input, before.packs) == (self._input, packs)
        )
        if not is_given:
            await self._sharding.lease.prove()
            given = GivenMembers(
                **self._sharding.lease.about(), store=token, input=self._input, packs=packs
            )
            await self._folder.append(
                f"{self._path}/from/{self._shard.name}", lambda _: given.model_dump_json().encode()
            )
        await self._context.ledger.change(
            lambda writer: writer.execute(sql("away_told"), (run, stage))
        )

    async def _packs(self) -> dict[str, tuple[str, ...]]:
        """Makes packs of all members that are in groups of other shards, and returns their names
        by shard. The same members make the same packs."""
        held = defaultdict[str, list[bytes]](list)
        sizes = Counter[str]()
        packs = dict[str, tuple[str, ...]]()

        async def put(target: str) -> None:
            text = b"[" + b",\n".join(held.pop(target)) + b"]"
            name = await self._folder.put_pack(f"{self._path}/{target}", text)
            packs[target] = (*packs.get(target, ()), name)
            sizes[target] = 0

        async for member in self._members():
            target = Shard(shard_of(member[0], self._shard.of), self._shard.of).name
            held[target].append(json.dumps(member, ensure_ascii=False).encode())
            sizes[target] += len(held[target][-1])
            if sizes[target] > HELD_BYTES / (self._shard.of + 3):
                await put(target)
        for target in sorted(held):
            await put(target)
        return dict(sorted(packs.items()))

    async def _members(self) -> AsyncIterator[_Member]:
        """Reads all members that are in groups of other shards, in the order of these."""
        (database, run, _), stage = self._context.places, self._stage.index
        contents = GroupContents(
            database, run, self._context.views, self._context.deriver.members[stage]
        )
        async for groups in store.group_rows(database, run, stage, "groups_away"):
            for group in groups:
                async for page in contents.pages(group.key, failed_too=True):
                    texts = await contents.texts(page)
                    for member, text in zip(page, texts, strict=True):
                        yield group.id, group.data, member.id, member.maker, member.size, text

    async def _take(self, number: int, entry: int, packs: Sequence[str]) -> None:
        """Takes the members that a shard gave, in the place of those that it gave before.

        `entry` is the number of the entry that says what it gave."""
        taken = self._sharding.taken
        key = f"{self._context.places.run} {number} {self._path}"
        mark = _mark(packs)
        if taken.pop(key, None) != mark:
            await self._store(number, entry, packs)
        taken[key] = mark

    async def _store(self, number: int, entry: int, packs: Sequence[str]) -> None:
        """Stores the members in packs of a shard, and removes those that it gave before."""
        ledger = self._context.ledger
        database, run, _ = self._context.places
        stage = self._stage.index
        for name in packs:
            for members in slices(await self._read(name)):
                for group, data, row_id, maker, size, text in members:
                    place = Membership(group, data, member_hash(row_id), size, not text)
                    ledger.batch.derived.distant.append(
                        DistantMember(stage, number, row_id, maker, text, entry, place)
                    )
                await ledger.durable()
        while left := await store.distant_left(database, run, stage, store.AWAY - number, entry):
            ledger.batch.derived.gone += left
            await ledger.durable()

    async def _read(self, name: str) -> list[_Member]:
        """Reads the members in a pack for this shard. Raises AgacError if they are none."""
        text = await self._folder.pack(
            f"{self._path}/{self._shard.name}", name, "restore it; nothing was asked"
        )
        try:
            return await asyncio.to_thread(_members_in, text)
        except ValueError as error:
            folder = f"{self._folder.remote.url}/{self._folder.path}/{self._path}"
            what = f"{folder}/{self._shard.name}/{name}.pack"
            why = str(error).partition("\n")[0]
            raise AgacError(
                f"{what} holds no members of groups: {why}",
                remedy="update agac, if a newer one wrote it",
            ) from None


def _members_in(text: bytes) -> list[_Member]:
    """Reads the members in a JSON list that has each on a line of its own. Raises ValueError."""
    if not (text.startswith(b"[") and text.endswith(b"]")):
        raise ValueError("it is not a list")
    if text.count(b"\n") >= MOST_MEMBERS:
        raise ValueError(f"it has more than {MOST_MEMBERS:,} members")
    members = []
    for line in BytesIO(text[1:-1]):
        member = line.rstrip(b"\n").removesuffix(b",")
        strict_json(member, len(get_args(_Member)))
        members.append(_MEMBER.validate_json(member, strict=True))
    return members
