"""What the shards of a run tell each other: a folder of a remote whose objects are created once
and never replaced."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import shlex
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from secrets import token_hex
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from agac.core.errors import AgacError, LeaseHeld, LeaseLost
from agac.core.keys import canonical, digest
from agac.core.reading import read_as
from agac.core.types import CLOCKS_APART, Shard
from agac.data.object_store import ObjectStore
from agac.data.shared_log import (
    MAX_ENTRY,
    MAX_SMALL,
    ContentHash,
    Count,
    Dollars,
    Facts,
    Line,
    Mark,
    Shared,
    SharedObject,
    Text,
    entry_name,
    entry_numbers,
    gap_error,
    in_the_way,
    missing_entry,
    read_record,
)
from agac.engine.stage_summary import CallCounts
from agac.store.db import to_the_end
from agac.store.lease import is_dead_here, shown, this_process
from agac.store.packs import MAX_BYTES, Damaged, unzipped

# v1/shards/WORKFLOW/KEY/… lease/3-of-16/0000000001      who works on a shard: a log, whose numbers
# are the fence minutes/29412345/3-of-16-…    signs of life, by the minute; readers look at the last
# of them alone ended/3-of-16/0000000001      how each invocation ended: a log
# paid/3-of-16/STORE/0000000001 what the calls came to of which a store of the shard knows: a log
# answers/3-of-16/WRITER/PACK   packs of answers that a shard pushed rows/NAME.pack
# final rows, named by the last manifest of their shard

FOLDER = "v1/shards"
STALE_SECONDS = (
    180.0  # without a sign of life for so long a shard's process counts as gone, wherever it is
)
SURE_SECONDS = (
    90.0  # after such a silence a process proves that it was not taken over before it goes on
)
LAST = 99_999_999  # the number of a process's last sign of life, which says how it ended
ITS_BATCHES = "its batches"  # what a shard waits for until they are retrieved

_SMALL = "lease/", "paid/"
"""Logs whose entries are small."""

_BEAT = re.compile(r"minutes/([0-9]{1,9})/([0-9]{1,5}-of-[0-9]{1,5})-([0-9a-f]{1,64})-[0-9]{8}")
"""The name of a sign of life: its minute, its shard and the mark of its process."""

_log = logging.getLogger("agac.shard")


def _calls(calls: dict[str, Any]) -> dict[str, Any]:
    """What calls came to, as `telemetry.calls_of` says it. Raises ValueError."""
    for name, value in calls.items():
        is_flag = name == "cost_is_simulated"
        is_amount = value is None or (isinstance(value, int | float) and value >= 0)
        if not is_amount or isinstance(value, bool) != is_flag:
            raise ValueError(f"{name[:100]} is no amount")
    read_as(CallCounts, calls)
    return calls


def _command(text: str) -> str:
    """A command as `go_on` writes it: people are told to type it."""
    if text and not text.startswith(("agac run ", "agac resume ", "agac try ", "agac.run(")):
        raise ValueError("it is no command of agac")
    if text.startswith("agac ") and shlex.join(shlex.split(text)) != text:
        raise ValueError("it is more than one command of agac")
    return text


ShardNumber = Annotated[int, Field(ge=1, lt=100_000)]
Command = Annotated[str, StringConstraints(max_length=20_000), AfterValidator(_command)]
PackNames = Annotated[tuple[ContentHash, ...], Field(max_length=200_000)]


class LeaseEntry(SharedObject):
    """Who took a shard, or gave it back (`free`). `mark` tells processes apart."""

    free: bool = False


class ShardStatus(SharedObject):
    """How a shard is: its rows by state, what its calls came to in this run, calls in flight by
    lane, the errors that count for `max_errors`; what it `waits` for, and why it stopped.
    `silent`: it should be at work and shows no sign of life. `command` goes on with it, once it is
    at work no more."""

    number: ShardNumber
    of: ShardNumber
    state: Literal["running", "ended", "stopped", "silent"] = "running"
    run: Count = 0
    rows: Mapping[Line, Count] = {}
    calls: Count = 0
    input_tokens: Count = 0
    output_tokens: Count = 0
    usd: Dollars | None = None
    simulated: bool = False
    errors: Count = 0
    lanes: Mapping[Line, Count] = {}
    waits: Text = ""
    why: Text = ""
    command: Command = ""

    @property
    def shard(self) -> Shard:
        """The shard that it is about."""
        return Shard(self.number, self.of)

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if self.number > self.of:
            raise ValueError("its number is larger than how many shards there are")
        return self


Calls = Annotated[Facts, AfterValidator(_calls)]
Taken = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,15} [0-9]{1,5} groups/[^/\s]{1,1000}$")]
"""A run, the shard that gave, and the folder of a stage's groups."""


class PaidCalls(SharedObject):
    """What the `calls` of a run came to, as in its summary, as far as one store knows of them."""

    calls: Calls


class ShardManifest(SharedObject):
    """How an invocation of a shard ended. `complete`: so is the shard; then `packs` name its final
    rows, in order. `input` is the hash of all rows that were read, so many as `input_rows`: empty
    where the input was not read to its end. `summary` is the run's, of this shard."""

    status: ShardStatus
    exit_code: Annotated[int, Field(ge=0, le=255)]
    complete: bool
    input: Line
    input_rows: Count
    summary: Facts
    packs: Mapping[Literal["rows", "failed", "filtered"], PackNames] = {}
    taken: Mapping[Taken, Mark] = {}


Beating = tuple[str, str]
"""Whose sign of life it is: the name of a shard, and the mark of a process."""


def folder_key(definition: bytes, selection: str, of: int) -> str:
    """Names the folder of a run in so many shards: by its definition and its selection, which is
    that of all shards."""
    return digest(canonical(["shards", definition.hex(), selection, of])).hex()


class ShardFolder:
    """The folder of a run. What others than `trust` wrote is not believed."""

    def __init__(self, remote: ObjectStore, workflow: str, key: str, trust: Iterable[str]) -> None:
        self.remote = remote
        self.workflow = workflow
        self.key = key
        self.trust = {*trust} - {""}
        self.path = f"{runs_folder(workflow)}/{key}"
        self._last = dict[str, tuple[int, bytes]]()  # of logs that were read
        self._read = dict[Beating, tuple[str, ShardStatus]]()  # the newest that was read

    async def create(self, name: str, content: bytes) -> bool:
        """Puts an object; False where it is there already."""
        return await self.remote.create(f"{self.path}/{name}", content)

    async def read(self, name: str, most: int = MAX_SMALL) -> bytes | None:
        """The content of an object; None where it is not there, or longer."""
        return await self.remote.read(f"{self.path}/{name}", most)

    async def put_pack(self, folder: str, text: bytes) -> str:
        """Puts a pack into a folder, and gives its name: the hash of the text in it."""
        from zstandard import compress

        name = sha256(text).hexdigest()
        await self.create(f"{folder}/{name}.pack", await asyncio.to_thread(compress, text))
        return name

    async def pack(self, folder: str, name: str, remedy: str) -> bytes:
        """The text in a pack. Raises AgacError with this remedy where it is not what its name
        stands for."""
        path = f"{folder}/{name}.pack"
        why = "it is not the content that its name stands for"
        try:
            text = await asyncio.to_thread(unzipped, await self.read(path, MAX_BYTES) or b"")
            if sha256(text).hexdigest() == name:
                return text
        except Damaged as error:
            why = str(error)
        raise AgacError(
            f"{self.remote.url}/{self.path}/{path} cannot be used: {why}", remedy=remedy
        )

    async def names(self, folder: str, after: str | None = None) -> dict[str, int]:
        """All objects below a folder, each with its bytes; those `after` one of them."""
        start = len(self.path) + 1
        found = await self.remote.sizes(f"{self.path}/{folder}", after and f"{self.path}/{after}")
        return {name[start:]: size for name, size in found.items()}

    async def append(self, log: str, make: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Makes one more entry of a log, of the last one (None: there is none), again where
        another was faster; gives the entry. What `make` gives None for is as it should be: the
        last entry. Raises AgacError for a log with a gap, and where something else has the name of
        the next entry."""
        tried = -1
        while True:
            number, last = await self.last(log)
            if number == tried:
                raise in_the_way(self.remote, f"{self.path}/{log}/{entry_name(number + 1)}")
            content = make(last)
            if content is None:
                return last
            if await self.create(f"{log}/{entry_name(number + 1)}", content):
                self._last[log] = number + 1, content
                return content
            tried = number

    async def newest(self, logs: str) -> dict[str, tuple[int, bytes]]:
        """The number and content of the last entry of each log in a folder; lists them once,
        however many they are. A log that lacks an entry is reported and left out."""
        ends, gaps = await self._ends(logs)
        for log, gap in gaps.items():
            _log.warning(
                "%s is left out", gap_error(self.remote, f"{self.path}/{log}", gap).message
            )
        return await self._contents(ends)

    async def last(self, log: str) -> tuple[int, bytes | None]:
        """The number of a log's last entry, 0 where there is none, and its content. Raises
        AgacError where it lacks one."""
        known = self._last.get(log)
        ends, gaps = await self._ends(log, None if known is None else known[0])
        if log in gaps:
            raise gap_error(self.remote, f"{self.path}/{log}", gaps[log])
        return (await self._contents(ends)).get(log, known or (0, None))

    async def _ends(
        self, logs: str, after: int | None = None
    ) -> tuple[dict[str, int], dict[str, int]]:
        """The numbers of the last entries of the logs in a folder, and the first gaps of those
        that have any; of one log its entries `after` a number."""
        names = defaultdict[str, list[str]](list)
        listed = await self.names(logs, None if after is None else f"{logs}/{entry_name(after)}")
        for log, _, name in (name.rpartition("/") for name in listed):
            names[log].append(name)
        ends = dict[str, int]()
        gaps = dict[str, int]()
        for log in sorted(names):
            numbers = entry_numbers(names[log])
            gap = await missing_entry(self.remote, f"{self.path}/{log}", numbers, after)
            if gap is not None:
                gaps[log] = gap
            elif numbers:
                ends[log] = max(numbers)
        return ends, gaps

    async def _contents(self, ends: Mapping[str, int]) -> dict[str, tuple[int, bytes]]:
        fresh = [log for log, number in ends.items() if self._last.get(log, (0, b""))[0] != number]
        contents = await asyncio.gather(
            *(self.read(f"{log}/{entry_name(ends[log])}", _most(log)) for log in fresh)
        )
        self._last |= {
            log: (ends[log], content or b"") for log, content in zip(fresh, contents, strict=True)
        }
        return {log: self._last[log] for log in ends}

    def believed(self, kind: type[Shared], name: str, content: bytes | None) -> Shared | None:
        """What an object holds; None, and reported, where it cannot be believed."""
        why = "it cannot be read"
        try:
            found = read_record(kind, content or b"")
            if found.writer in self.trust and found.at < time.time() + CLOCKS_APART:
                return found
            why = f"its writer {found.writer!r} is not trusted, or its time is to come"
        except ValueError as error:
            why = f"it cannot be read: {error}"
        _log.warning("%s/%s/%s is left out: %s", self.remote.url, self.path, name, why)
        return None

    def sure(self, kind: type[Shared], log: str, last: bytes | None) -> Shared | None:
        """The last entry of a log; None: it has none. Raises AgacError where it cannot be
        believed."""
        entry = None if last is None else self.believed(kind, log, last)
        if last is not None and entry is None:
            what = f"{self.remote.url}/{self.path}/{log} ends with what cannot be believed"
            raise AgacError(
                what,
                remedy="name its writers at `remote: {trust: […]}` of agac.yml, or move it away",
            )
        return entry

    async def beat(self, status: ShardStatus, count: int) -> None:
        """A sign of life, the `count`th of its process."""
        name = f"{Shard(status.number, status.of).name}-{status.mark}-{count:08d}"
        await self.create(
            f"minutes/{int(status.at / 60)}/{name}", status.model_dump_json().encode()
        )

    async def alive(self, *, in_full: bool = True) -> dict[int, ShardStatus]:
        """The newest sign of life of each shard, of the last minutes. Not `in_full`: of a process
        that did not end the first one that was read, so that many shards that hear each other need
        not read all of them."""
        minute = int(time.time() / 60)
        newest = dict[Beating, tuple[int, str]]()
        of_minutes = (
            self.names(f"minutes/{one}")
            for one in range(minute - int(STALE_SECONDS / 60), minute + 2)
        )
        for name in itertools.chain.from_iterable(await asyncio.gather(*of_minutes)):
            found = _BEAT.fullmatch(name)
            if found:
                beating = found[2], found[3]
                newest[beating] = max(newest.get(beating, (0, "")), (int(found[1]), name))
        names = {beating: name for beating, (_, name) in newest.items()}
        known = self._read
        old = {one for one in known if in_full or names.get(one, "").endswith(str(LAST))}
        fresh = [
            one
            for one in names.items()
            if one[0] not in known or (one[0] in old and known[one[0]][0] != one[1])
        ]
        contents = await asyncio.gather(*(self.read(name) for _, name in fresh))
        for (beating, name), content in zip(fresh, contents, strict=True):
            status = self.believed(ShardStatus, name, content)
            if status is not None and self._is_its(
                status, name, (status.shard.name, status.mark) == beating
            ):
                known[beating] = name, status
        self._read = {beating: known[beating] for beating in names if beating in known}
        return {
            one.number: one for _, one in sorted(self._read.values(), key=lambda told: told[1].at)
        }

    async def manifests(self) -> dict[int, ShardManifest]:
        """How the last invocation of each shard ended."""
        found = await self.newest("ended")
        manifests = dict[int, ShardManifest]()
        for log, (_, content) in found.items():
            manifest = self.believed(ShardManifest, log, content)
            if manifest is not None and self._is_its(
                manifest.status, log, log == f"ended/{manifest.status.shard.name}"
            ):
                manifests[manifest.status.number] = manifest
        return dict(sorted(manifests.items()))

    def _is_its(self, status: ShardStatus, name: str, is_its: bool) -> bool:
        """Reports an object that is not of the shard and the process that its name says."""
        if is_its:
            return True
        what = f"it is about shard {status.shard}, or of another process"
        _log.warning("%s/%s/%s is left out: %s", self.remote.url, self.path, name, what)
        return False

    async def paid(self, log: str) -> list[dict[str, Any]]:
        """What calls of a shard came to by its other stores than the one that writes this log."""
        stores = await self.newest(log.rpartition("/")[0])
        found = [
            self.believed(PaidCalls, one, content)
            for one, (_, content) in stores.items()
            if one != log
        ]
        return [one.calls for one in found if one is not None]

    async def statuses(self) -> dict[int, ShardStatus]:
        """How each shard is that was ever begun."""
        leases = await self.newest("lease")
        alive = await self.alive()
        ended = await self.manifests()
        found = dict[int, ShardStatus]()
        for log, (_, content) in leases.items():
            shard = Shard.read(log.rpartition("/")[2], "-of-")
            entry = self.believed(LeaseEntry, log, content)
            if shard is None or entry is None:
                continue
            beat = alive.get(shard.number)
            end = ended.get(shard.number)
            status = ShardStatus(**entry.model_dump(exclude={"free"}), **shard._asdict())
            known = [one for one in (end and end.status, beat, status) if one]
            status = max(known, key=lambda one: (one.run > 0, one.at))
            # who has, or had, it did not say how it ended
            if status.mark != entry.mark or status.state == "running":
                if self.is_alive(entry, beat):
                    state = "running"
                elif entry.free:
                    state = "stopped"
                else:
                    state = "silent"
                status = status.model_copy(update={"state": state, "holder": entry.holder})
            found[shard.number] = status
        return dict(sorted(found.items()))

    def is_alive(self, entry: LeaseEntry, beat: ShardStatus | None) -> bool:
        """Whether a process still holds what it took, by the last sign of life of its shard."""
        if beat is not None and beat.mark == entry.mark:
            at = max(entry.at, beat.at)
        else:
            at = entry.at
        return not (entry.free or is_dead_here(entry.holder)) and time.time() - at <= STALE_SECONDS


def _most(log: str) -> int:
    """Bytes of the longest entry that counts: thousands of small ones are held at a time."""
    return MAX_SMALL if log.startswith(_SMALL) else MAX_ENTRY


def command_of(shard: Shard, workflow: str, statuses: Mapping[int, ShardStatus]) -> str:
    """What runs a shard: as it was run itself, else as another one of its run, whose flags say
    which rows are meant."""
    if shard.number in statuses and statuses[shard.number].waits == ITS_BATCHES:
        return f"agac batch retrieve --shard {shard}"
    for one in (*filter(None, [statuses.get(shard.number)]), *statuses.values()):
        if one.command:
            return one.command.replace(f"--shard {one.number}/{one.of}", f"--shard {shard}")
    return f"agac run -a {workflow} --shard {shard}"


def other_inputs(manifests: Iterable[ShardManifest]) -> dict[int, str]:
    """Which shards read another input than the one that ended last, and in which words to say
    so."""
    read = sorted((one for one in manifests if one.complete or one.input), key=lambda one: one.at)
    found = dict[int, str]()
    for one in read:
        if one.input != (newest := read[-1]).input:
            last = f"{Shard(newest.status.number, newest.status.of)}, which ended last"
            if one.input:
                rows = (f" ({one.input_rows:,} rows)", f" ({newest.input_rows:,})")
            else:
                rows = ("", "")
            found[one.status.number] = f"read another input{rows[0]} than shard {last}{rows[1]}"
    return found


def runs_folder(workflow: str) -> str:
    """Where the folders of a workflow's runs are."""
    return f"{FOLDER}/{quote(workflow, safe='').replace('%', '=')}"


class ShardLease:
    """A shard as the one process sees it that works on it, among all machines. `clock`: seconds
    since 1970."""

    def __init__(
        self, folder: ShardFolder, shard: Shard, writer: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder
        self.shard = shard
        self.writer = writer
        self.clock = clock
        self.mark = token_hex(8)
        self._log = f"lease/{shard.name}"
        self._number = 0
        self._error: LeaseLost | None = None
        self._sure_at = 0.0
        self._beats = itertools.count(1)
        self._turn = asyncio.Lock()

    def about(self) -> dict[str, Any]:
        """What each object says of its writer."""
        return {
            "writer": self.writer,
            "at": self.clock(),
            "holder": this_process(),
            "mark": self.mark,
        }

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """The shard is this process's for the block. Raises LeaseHeld where it is another's."""
        beat = (await self.folder.alive()).get(self.shard.number)
        await self.folder.append(self._log, lambda last: self._taken(last, beat))
        self._number, _ = await self.folder.last(self._log)
        self._sure_at = self.clock()
        try:
            yield
        finally:
            await to_the_end(self._give_back())

    def _taken(self, last: bytes | None, beat: ShardStatus | None) -> bytes | None:
        entry = self.folder.sure(LeaseEntry, self._log, last)
        # it was made, and we were cut off before we heard of it
        if entry is not None and entry.mark == self.mark:
            return None
        if entry is not None and self.folder.is_alive(entry, beat):
            what = (
                f"shard {self.shard} of workflow {self.folder.workflow!r} is being run by "
                f"{entry.writer}"
            )
            after = f"{STALE_SECONDS / 60:.0f} min after its last sign of life"
            remedy = f"wait for it to end; if it is gone it is taken over {after}"
            raise LeaseHeld(f"{what} ({shown(entry.holder)})", remedy=remedy)
        return LeaseEntry(**self.about()).model_dump_json().encode()

    async def prove(self) -> None:
        """Proves, after a silence, that the shard is still ours. Raises LeaseLost."""
        if self._error is not None or self.clock() - self._sure_at > SURE_SECONDS:
            await self._prove()

    async def _prove(self, *, free: bool = False) -> None:
        """By one more entry of the log, which a process that took it over would have made."""
        async with self._turn:
            if self._error is not None:
                raise self._error
            entry = LeaseEntry(**self.about(), free=free)
            name = f"{self._log}/{entry_name(self._number + 1)}"
            if not await self.folder.create(name, entry.model_dump_json().encode()):
                there = self.folder.believed(LeaseEntry, name, await self.folder.read(name))
                if there is None or there.mark != self.mark:
                    self._lose()  # with our mark in it we were cut off before we heard of it
            self._number = self._number + 1
            self._sure_at = entry.at

    def _lose(self) -> None:
        what = f"another process took over shard {self.shard} of workflow {self.folder.workflow!r}"
        remedy = "the other one goes on with it; run the same command again later"
        self._error = LeaseLost(f"{what} while this one was silent", remedy=remedy)
        raise self._error

    async def beat(self, status: ShardStatus) -> None:
        """Shows a sign of life. Raises LeaseLost where the shard was taken over."""
        await self.prove()
        await self.folder.beat(status, next(self._beats) if status.state == "running" else LAST)
        if await self.folder.read(f"{self._log}/{entry_name(self._number + 1)}") is not None:
            self._lose()
        self._sure_at = status.at

    async def _give_back(self) -> None:
        try:
            if self._error is None:
                await self._prove(free=True)
        except AgacError as error:
            _log.warning("shard %s was not given back: %s", self.shard, error.message)
