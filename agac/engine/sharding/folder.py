"""Holds what the shards of a run tell each other: a folder of a remote whose objects are created
once and never replaced."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from agac.core.errors import AgacError
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
from agac.store.lease import is_dead_here
from agac.store.packs import MAX_BYTES, Damaged, unzipped

# v1/shards/WORKFLOW/KEY/…
#
# lease/3-of-16/0000000001       which process works on a shard: a log, whose numbers are the fence
# minutes/29412345/3-of-16-…     signs of life, by the minute; readers look only at the last ones
# ended/3-of-16/0000000001       how each invocation ended: a log paid/3-of-16/STORE/0000000001  the
# calls that a store of the shard knows of: a log answers/3-of-16/WRITER/PACK    packs of answers
# that a shard pushed rows/NAME.pack                 final rows, named by the last manifest of their
# shard

FOLDER = "v1/shards"

STALE_SECONDS = 180.0
"""Seconds without a sign of life after which a shard's process counts as gone, wherever it is."""

LAST = 99_999_999
"""The number of a process's last sign of life, which says how it ended."""

ITS_BATCHES = "its batches"
"""What a shard waits for until its batches are retrieved."""

_SMALL = "lease/", "paid/"
"""Logs whose entries are small."""

_BEAT = re.compile(r"minutes/([0-9]{1,9})/([0-9]{1,5}-of-[0-9]{1,5})-([0-9a-f]{1,64})-[0-9]{8}")
"""The name of a sign of life: its minute, its shard and the mark of its process."""

_log = logging.getLogger("agac.shard")


def _calls(calls: dict[str, Any]) -> dict[str, Any]:
    """Checks the counts of calls, as `run_summary.calls_of` makes them. Raises ValueError."""
    for name, value in calls.items():
        is_flag = name == "cost_is_simulated"
        is_amount = value is None or (isinstance(value, int | float) and value >= 0)
        if not is_amount or isinstance(value, bool) != is_flag:
            raise ValueError(f"{name[:100]} is no amount")
    read_as(CallCounts, calls)
    return calls


def _command(text: str) -> str:
    """Checks a command that people are told to type. Raises ValueError."""
    if text and not text.startswith(("agac run ", "agac resume ", "agac try ", "agac.run(")):
        raise ValueError("it is no command of agac")
    if text.startswith("agac ") and shlex.join(shlex.split(text)) != text:
        raise ValueError("it is more than one command of agac")
    return text


ShardNumber = Annotated[int, Field(ge=1, lt=100_000)]
Command = Annotated[str, StringConstraints(max_length=20_000), AfterValidator(_command)]
PackNames = Annotated[tuple[ContentHash, ...], Field(max_length=200_000)]


class LeaseEntry(SharedObject):
    """The process that took a shard. Its `mark` tells it from others."""

    free: bool = False
    """True if the process gave the shard back."""


class ShardStatus(SharedObject):
    """The status of a shard."""

    number: ShardNumber
    """The number of the shard, from 1."""
    of: ShardNumber
    """How many shards the run has."""
    state: Literal["running", "ended", "stopped", "silent"] = "running"
    """`silent`: it should be at work, and shows no sign of life."""
    run: Count = 0
    """The number of the run in the shard's store."""
    rows: Mapping[Line, Count] = {}
    """Its rows by state."""
    calls: Count = 0
    """Its calls in this run."""
    input_tokens: Count = 0
    """Tokens of their prompts."""
    output_tokens: Count = 0
    """Tokens of their replies."""
    usd: Dollars | None = None
    """US dollars of those with a known price."""
    simulated: bool = False
    """True if the simulator answered one of them."""
    errors: Count = 0
    """Failed rows that count for `max_errors`."""
    lanes: Mapping[Line, Count] = {}
    """Calls in flight by lane."""
    waits: Text = ""
    """What it waits for, if anything."""
    why: Text = ""
    """Why it stopped."""
    command: Command = ""
    """The command that continues it, once it is at work no more."""

    @property
    def shard(self) -> Shard:
        """The shard that this is about."""
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
    """The calls of a run that one store of a shard knows of."""

    calls: Calls
    """Their counts, as in a summary."""


class ShardManifest(SharedObject):
    """The end of an invocation of a shard."""

    status: ShardStatus
    """How the shard was at the end."""
    exit_code: Annotated[int, Field(ge=0, le=255)]
    """The exit code of the process."""
    complete: bool
    """True if the shard is complete."""
    input: Line
    """The hash of all rows that were read; empty if the input was not read to its end."""
    input_rows: Count
    """How many rows were read."""
    summary: Facts
    """The summary of this shard's run."""
    packs: Mapping[Literal["rows", "failed", "filtered"], PackNames] = {}
    """The packs with the final rows of a complete shard, in their order."""
    taken: Mapping[Taken, Mark] = {}
    """The marks of the members of groups that it took from other shards."""


Beating = tuple[str, str]
"""Which process shows signs of life: the name of its shard, and its mark."""


def folder_key(definition: bytes, selection: str, of: int) -> str:
    """Makes the name of the folder of a run in so many shards, from its definition and the
    selection of all shards."""
    return digest(canonical(["shards", definition.hex(), selection, of])).hex()


class ShardFolder:
    """The folder of a run in a remote."""

    def __init__(self, remote: ObjectStore, workflow: str, key: str, trust: Iterable[str]) -> None:
        """`trust` are the writers whose objects are believed."""
        self.remote = remote
        self.workflow = workflow
        self.key = key
        self.trust = {*trust} - {""}
        self.path = f"{runs_folder(workflow)}/{key}"
        self._last = dict[str, tuple[int, bytes]]()
        """The numbers and contents of the last entries of logs that were read."""
        self._read = dict[Beating, tuple[str, ShardStatus]]()
        """The newest signs of life that were read, with their names."""

    async def create(self, name: str, content: bytes) -> bool:
        """Creates an object; False: it exists already."""
        return await self.remote.create(f"{self.path}/{name}", content)

    async def read(self, name: str, most: int = MAX_SMALL) -> bytes | None:
        """Reads an object; None if it does not exist or has more than `most` bytes."""
        return await self.remote.read(f"{self.path}/{name}", most)

    async def put_pack(self, folder: str, text: bytes) -> str:
        """Puts a pack into a folder. Returns its name: the hash of the text in it."""
        from zstandard import compress

        name = sha256(text).hexdigest()
        await self.create(f"{folder}/{name}.pack", await asyncio.to_thread(compress, text))
        return name

    async def pack(self, folder: str, name: str, remedy: str) -> bytes:
        """Reads the text in a pack. Raises AgacError with this remedy if it is not what its name
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
        """Returns the objects below a folder with their bytes; only those `after` one of them."""
        start = len(self.path) + 1
        sizes = await self.remote.sizes(f"{self.path}/{folder}", after and f"{self.path}/{after}")
        return {name[start:]: size for name, size in sizes.items()}

    async def append(self, log: str, make: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Appends an entry to a log, and returns it.

        `make` makes it from the last entry (None: there is none), again if another process was
        faster. If it makes None, nothing is appended, and the last entry is returned. Raises
        AgacError for a log with a gap, and if something else has the name of the next entry."""
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
        """Returns the number and content of the last entry of each log in a folder, listing them
        once.

        A log that lacks an entry is logged and left out."""
        ends, gaps = await self._ends(logs)
        for log, gap in gaps.items():
            _log.warning(
                "%s is left out", gap_error(self.remote, f"{self.path}/{log}", gap).message
            )
        return await self._contents(ends)

    async def last(self, log: str) -> tuple[int, bytes | None]:
        """Returns the number of a log's last entry, 0 if there is none, and its content. Raises
        AgacError if the log lacks an entry."""
        known = self._last.get(log)
        ends, gaps = await self._ends(log, None if known is None else known[0])
        if log in gaps:
            raise gap_error(self.remote, f"{self.path}/{log}", gaps[log])
        return (await self._contents(ends)).get(log, known or (0, None))

    async def _ends(
        self, logs: str, after: int | None = None
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Returns the numbers of the last entries of the logs in a folder, and the first gaps of
        those that have any.

        `after`: of a single log, only the entries after this number are listed."""
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
        """Reads the last entries of logs, if they were not read before."""
        fresh = [log for log, number in ends.items() if self._last.get(log, (0, b""))[0] != number]
        contents = await asyncio.gather(
            *(self.read(f"{log}/{entry_name(ends[log])}", _most(log)) for log in fresh)
        )
        self._last |= {
            log: (ends[log], content or b"") for log, content in zip(fresh, contents, strict=True)
        }
        return {log: self._last[log] for log in ends}

    def believed(self, kind: type[Shared], name: str, content: bytes | None) -> Shared | None:
        """Reads the record in an object; None, which is logged, if it cannot be believed."""
        try:
            record = read_record(kind, content or b"")
        except ValueError as error:
            why = f"it cannot be read: {error}"
        else:
            if record.writer in self.trust and record.at < time.time() + CLOCKS_APART:
                return record
            why = f"its writer {record.writer!r} is not trusted, or its time is to come"
        _log.warning("%s/%s/%s is left out: %s", self.remote.url, self.path, name, why)
        return None

    def sure(self, kind: type[Shared], log: str, last: bytes | None) -> Shared | None:
        """Reads the last entry of a log; None: it has none. Raises AgacError if it cannot be
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
        """Shows a sign of life, the `count`th of its process."""
        name = f"{Shard(status.number, status.of).name}-{status.mark}-{count:08d}"
        await self.create(
            f"minutes/{int(status.at / 60)}/{name}", status.model_dump_json().encode()
        )

    async def alive(self, *, in_full: bool = True) -> dict[int, ShardStatus]:
        """Reads the newest sign of life of each shard, of the last minutes.

        Unless `in_full`, only the first one and the last one of a process are read, so that many
        shards that hear each other need not read all of them."""
        names = await self._newest_beats()
        known = self._read

        def is_read(beating: Beating, name: str) -> bool:
            if beating not in known:
                return True
            return known[beating][0] != name and (in_full or name.endswith(str(LAST)))

        fresh = [(beating, name) for beating, name in names.items() if is_read(beating, name)]
        contents = await asyncio.gather(*(self.read(name) for _, name in fresh))
        for (beating, name), content in zip(fresh, contents, strict=True):
            status = self.believed(ShardStatus, name, content)
            if status is not None and self._is_its(
                status, name, (status.shard.name, status.mark) == beating
            ):
                known[beating] = name, status
        self._read = {beating: known[beating] for beating in names if beating in known}
        statuses = sorted((status for _, status in self._read.values()), key=lambda one: one.at)
        return {status.number: status for status in statuses}

    async def _newest_beats(self) -> dict[Beating, str]:
        """Returns the names of the newest signs of life of all processes."""
        minute = int(time.time() / 60)
        first = minute - int(STALE_SECONDS / 60)
        of_minutes = (self.names(f"minutes/{number}") for number in range(first, minute + 2))
        newest = dict[Beating, tuple[int, str]]()
        for name in itertools.chain.from_iterable(await asyncio.gather(*of_minutes)):
            match = _BEAT.fullmatch(name)
            if match:
                beating = match[2], match[3]
                newest[beating] = max(newest.get(beating, (0, "")), (int(match[1]), name))
        return {beating: name for beating, (_, name) in newest.items()}

    async def manifests(self) -> dict[int, ShardManifest]:
        """Reads how the last invocation of each shard ended."""
        manifests = dict[int, ShardManifest]()
        for log, (_, content) in (await self.newest("ended")).items():
            manifest = self.believed(ShardManifest, log, content)
            if manifest is not None and self._is_its(
                manifest.status, log, log == f"ended/{manifest.status.shard.name}"
            ):
                manifests[manifest.status.number] = manifest
        return dict(sorted(manifests.items()))

    def _is_its(self, status: ShardStatus, name: str, is_its: bool) -> bool:
        """True if an object is of the shard and the process that its name says; else that is
        logged."""
        if is_its:
            return True
        what = f"it is about shard {status.shard}, or of another process"
        _log.warning("%s/%s/%s is left out: %s", self.remote.url, self.path, name, what)
        return False

    async def paid(self, log: str) -> list[dict[str, Any]]:
        """Reads the calls of a shard that its other stores know of: other ones than the one that
        writes this log."""
        stores = await self.newest(log.rpartition("/")[0])
        records = [
            self.believed(PaidCalls, name, content)
            for name, (_, content) in stores.items()
            if name != log
        ]
        return [record.calls for record in records if record is not None]

    async def statuses(self) -> dict[int, ShardStatus]:
        """Returns the status of each shard that was ever begun."""
        leases = await self.newest("lease")
        alive = await self.alive()
        ended = await self.manifests()
        statuses = dict[int, ShardStatus]()
        for log, (_, content) in leases.items():
            shard = Shard.read(log.rpartition("/")[2], "-of-")
            entry = self.believed(LeaseEntry, log, content)
            if shard is not None and entry is not None:
                beat = alive.get(shard.number)
                end = ended.get(shard.number)
                statuses[shard.number] = self._status(shard, entry, beat, end)
        return dict(sorted(statuses.items()))

    def _status(
        self, shard: Shard, entry: LeaseEntry, beat: ShardStatus | None, end: ShardManifest | None
    ) -> ShardStatus:
        """Returns the newest status of a shard, whose lease has this last entry."""
        begun = ShardStatus(**entry.model_dump(exclude={"free"}), **shard._asdict())
        known = [status for status in (end and end.status, beat, begun) if status]
        newest = max(known, key=lambda status: (status.run > 0, status.at))
        if newest.mark == entry.mark and newest.state != "running":
            return newest
        # the process that has it, or had it, did not say how it ended
        if self.is_alive(entry, beat):
            state = "running"
        else:
            state = "stopped" if entry.free else "silent"
        return newest.model_copy(update={"state": state, "holder": entry.holder})

    def is_alive(self, entry: LeaseEntry, beat: ShardStatus | None) -> bool:
        """True if a process still holds what it took, by the last sign of life of its shard."""
        if entry.free or is_dead_here(entry.holder):
            return False
        at = entry.at
        if beat is not None and beat.mark == entry.mark:
            at = max(at, beat.at)
        return time.time() - at <= STALE_SECONDS


def _most(log: str) -> int:
    """Returns the bytes of the longest entry that counts: thousands of small ones are held at a
    time."""
    return MAX_SMALL if log.startswith(_SMALL) else MAX_ENTRY


def command_of(shard: Shard, workflow: str, statuses: Mapping[int, ShardStatus]) -> str:
    """Returns the command that runs a shard: as it was run before, else as another one of its run,
    whose flags say which rows are meant."""
    own = statuses.get(shard.number)
    if own is not None and own.waits == ITS_BATCHES:
        return f"agac batch retrieve --shard {shard}"
    for status in (own, *statuses.values()):
        if status is not None and status.command:
            flag = f"--shard {status.number}/{status.of}"
            return status.command.replace(flag, f"--shard {shard}")
    return f"agac run -a {workflow} --shard {shard}"


def other_inputs(manifests: Iterable[ShardManifest]) -> dict[int, str]:
    """Says of each shard that read another input than the one that ended last, that it did."""
    read = sorted((one for one in manifests if one.complete or one.input), key=lambda one: one.at)
    texts = dict[int, str]()
    for manifest in read:
        newest = read[-1]
        if manifest.input != newest.input:
            last = f"{Shard(newest.status.number, newest.status.of)}, which ended last"
            rows = ""
            rows_of_last = ""
            if manifest.input:
                rows = f" ({manifest.input_rows:,} rows)"
                rows_of_last = f" ({newest.input_rows:,})"
            texts[manifest.status.number] = (
                f"read another input{rows} than shard {last}{rows_of_last}"
            )
    return texts


def runs_folder(workflow: str) -> str:
    """Returns the folder with the folders of a workflow's runs."""
    return f"{FOLDER}/{quote(workflow, safe='').replace('%', '=')}"
