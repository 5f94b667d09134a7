"""Groups across shards: each shard gives the members that it has of groups in other shards, waits
until all have given theirs, and takes those of its own groups."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Annotated, get_args
from urllib.parse import quote

from pydantic import Field, StringConstraints, TypeAdapter

from agac.core.errors import AgacError
from agac.core.keys import canonical, digest, member_hash, shard_of
from agac.core.types import Shard, strict_json
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

HELD_BYTES = 32_000_000  # of members that wait to become packs, for all shards together
MOST_MEMBERS = 500_000  # of a pack, which is in memory as a whole
POLL_SECONDS = 5.0

_log = logging.getLogger("agac.shard")

_Number = Annotated[int, Field(ge=-(1 << 62), le=1 << 62)]
_Member = tuple[_Number | str, str, _Number | str, _Number, _Number, str]
"""A group and its fields; the id of a row, the position of the stage that made it (-1: none), its
size, its text."""

_MEMBER = TypeAdapter[_Member](_Member)


ShardName = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,5}-of-[0-9]{1,5}$")]


class GivenMembers(SharedObject):
    """What a shard gave to groups of a stage: the names of its packs by the shard that they are
    for, as `5-of-16`. `store` is the token of its store, `input` stands for all rows that there
    were."""

    store: Line
    input: Line
    packs: Mapping[ShardName, PackNames]


def _listed(shards: Sequence[Shard]) -> str:
    return (
        f"shard{'s' * (len(shards) > 1)} "
        f"{', '.join(map(str, shards[:10]))}{' …' * (len(shards) > 10)}"
    )


def _mark(packs: Sequence[str]) -> str:
    return digest(canonical(packs)).hex()


async def outdated(folder: ShardFolder, manifests: Collection[ShardManifest]) -> dict[int, str]:
    """Which complete shards have to be run again, and why: they read another input than the one
    that ended last, or made groups of rows that others changed since."""
    known = dict[str, dict[Shard, tuple[int, GivenMembers]]]()
    changed = defaultdict[int, set[Shard]](set)
    for manifest in manifests:
        own = Shard(manifest.status.number, manifest.status.of)
        for key, mark in manifest.taken.items():
            run, number, path = key.split(" ")
            giver = Shard(int(number), own.of)
            if path not in known:
                known[path] = await _all_given(folder, path)
            if giver in known[path]:
                packs = known[path][giver][1].packs.get(own.name, ())
            else:
                packs = ()
            if int(run) == manifest.status.run and _mark(packs) != mark:
                changed[own.number].add(giver)
    made = "made groups of rows that shard {} changed since"
    found = {
        number: made.format(", ".join(map(str, sorted(givers))))
        for number, givers in changed.items()
    }
    return found | other_inputs(manifests)


async def _all_given(folder: ShardFolder, path: str) -> dict[Shard, tuple[int, GivenMembers]]:
    """What each shard gave last to the groups at this path, after the number of the entry that
    says so."""
    found = dict[Shard, tuple[int, GivenMembers]]()
    for log, (entry, content) in (await folder.newest(f"{path}/from")).items():
        shard = Shard.read(log.rpartition("/")[2], "-of-")
        given = folder.believed(GivenMembers, log, content)
        if shard is not None and given is not None:
            found[shard] = entry, given
    return found


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
        """Whether the groups have to wait for other shards. Else all members that these have are
        in the store. Raises AgacError where the remote cannot be used, or what is in it."""
        sharding = self._sharding
        stop_signal = self._context.stop_signal
        said = ""
        if sharding.waits:  # those of an earlier stage do
            return True
        if not self._input:  # a retry takes its rows from the store
            _, content = await self._folder.last(f"ended/{self._shard.name}")
            manifest = content and self._folder.believed(ShardManifest, "ended", content)
            self._input = manifest.input if manifest else ""
        await self._give()
        others = [
            one
            for n in range(1, self._shard.of + 1)
            if (one := Shard(n, self._shard.of)) != self._shard
        ]
        while True:
            told = await _all_given(self._folder, self._path)
            late = [one for one in others if one not in told or told[one][1].input != self._input]
            if not late:
                break
            sharding.waits = f"rows of {_listed(late)} for the groups of stage {self._stage.name!r}"
            other = [one for one in late if one in told]
            if other:
                sharding.waits += f"; another input was read by {_listed(other)}"
            if not self._context.work.batching.wait or stop_signal.stop is not None:
                return True
            if said != sharding.waits:
                _log.warning("waiting for %s", said := sharding.waits)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await stop_signal.stopped.wait()
        sharding.waits = ""
        for one in others:
            await self._take(one.number, told[one][0], told[one][1].packs.get(self._shard.name, ()))
        return False

    async def _give(self) -> None:
        """Tells the other shards of the members of their groups, where they do not know them."""
        (database, run, _), stage = self._context.places, self._stage.index
        _, before = (await _all_given(self._folder, self._path)).get(self._shard, (0, None))
        token = await project_token(database)
        if (
            before is None
            or before.store != token
            or await store.any_changed_away(database, run, stage)
        ):
            packs = await self._packs()
        else:
            packs = dict(before.packs)
        if before is None or (before.store, before.input, before.packs) != (
            token,
            self._input,
            packs,
        ):
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
        """Makes packs of all members that are in groups of other shards. The same members make the
        same packs."""
        held = defaultdict[str, list[bytes]](list)
        sizes = Counter[str]()
        packs = dict[str, tuple[str, ...]]()

        async def put(target: str) -> None:
            name = await self._folder.put_pack(
                f"{self._path}/{target}", b"[" + b",\n".join(held.pop(target)) + b"]"
            )
            packs[target], sizes[target] = (*packs.get(target, ()), name), 0

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
        """All members that are in groups of other shards, in the order of these."""
        (database, run, _), stage = self._context.places, self._stage.index
        contents = GroupContents(
            database, run, self._context.views, self._context.deriver.members[stage]
        )
        async for groups in store.group_rows(database, run, stage, "groups_away"):
            for group in groups:
                async for page in contents.pages(group.key, failed_too=True):
                    for one, text in zip(page, await contents.texts(page), strict=True):
                        yield group.id, group.data, one.id, one.maker, one.size, text

    async def _take(self, number: int, entry: int, packs: Sequence[str]) -> None:
        """Takes the members that a shard gave, in the place of those that it gave before."""
        ledger, (database, run, _), stage = (
            self._context.ledger,
            self._context.places,
            self._stage.index,
        )
        taken = self._sharding.taken
        key = f"{run} {number} {self._path}"
        mark = _mark(packs)
        if taken.pop(key, None) != mark:
            for name in packs:
                for some in slices(await self._read(name)):
                    for group, data, row_id, maker, size, text in some:
                        place = Membership(group, data, member_hash(row_id), size, not text)
                        ledger.batch.distant.append(
                            DistantMember(stage, number, row_id, maker, text, entry, place)
                        )
                    await ledger.durable()
            while left := await store.distant_left(
                database, run, stage, store.AWAY - number, entry
            ):
                ledger.batch.gone += left
                await ledger.durable()
        taken[key] = mark

    async def _read(self, name: str) -> list[_Member]:
        """The members in a pack that is for this shard."""
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
    """The members in a JSON list that has each on a line of its own. Raises ValueError."""
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
