"""A folder or a bucket in which several machines keep objects: they are created once, and read
within bounds."""

from __future__ import annotations

import asyncio
import atexit
import errno
import logging
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from secrets import randbelow
from typing import Any

from agac.core.errors import AgacError, UsageError, lack_of
from agac.core.text import plain

MAX_OBJECTS = 1_000_000
"""Below one folder of the remote: a longer list is refused, as it would fill the memory."""

_NO_NAME = re.compile(r'[\0-\x1f\x7f\\:*?"<>|\ud800-\udfff]')
"""What no system takes in a name, or no agac writes into one."""

_log = logging.getLogger("agac.remote")


class ObjectStore:
    """The objects at an address: a folder, relative to `root`, or a bucket as
    `s3://BUCKET/PREFIX`, whose login and endpoint the environment tells (`AWS_…`). Their names are
    like `v1/ci/abc.pack`. Raises UsageError for an address that is none, and where a package is
    missing; all else AgacError where it cannot be reached, or refuses."""

    def __init__(self, url: str, root: Path) -> None:
        is_folder = "://" not in url
        for package in ("zstandard",) if is_folder else ("obstore", "zstandard"):
            lack = lack_of(f"the remote {url}", package)
            if lack:
                raise UsageError(lack)
        self.url = url
        self._reported = set[str]()
        self._folder: _Folder | None = None
        self._bucket: Any = None
        try:
            if is_folder:
                self._folder = _Folder(root / url)
            else:
                self._bucket = _bucket(url)
        except (OSError, ValueError) as error:
            remedy = "Write a folder, or s3://BUCKET/PREFIX."
            raise UsageError(
                f"the remote {url} cannot be opened: {_first_line(error)}", remedy=remedy
            ) from error

    async def create(self, name: str, content: bytes) -> bool:
        """Puts an object whole or not at all; False where it is there: of several who create one,
        one is told True."""
        with self._explained(f"{name} cannot be written"):
            if self._folder is not None:
                return await asyncio.to_thread(self._create, name, content)
            from obstore import exceptions, put_async

            try:
                await put_async(self._bucket, name, content, mode="create")
            except exceptions.AlreadyExistsError:
                return False
        return True

    def _create(self, name: str, content: bytes) -> bool:
        assert self._folder is not None
        try:
            return self._folder.create(_parts(name), content)
        except NoObject as problem:
            remedy = "move it away; a folder remote holds no links"
            raise AgacError(
                f"the remote {self.url}: {name} cannot be written: {problem}", remedy=remedy
            ) from None

    async def read(self, name: str, most: int) -> bytes | None:
        """Returns the content of an object. Returns None if it does not exist and, with a report,
        if it is longer than `most` bytes or no file."""
        with self._explained(f"{name} cannot be read"):
            try:
                if self._folder is not None:
                    return await asyncio.to_thread(self._folder.read, _parts(name), most)
                return await self._of_bucket(name, most)
            except FileNotFoundError:
                return None
            except NoObject as problem:
                self._report(name, str(problem))
                return None

    async def _of_bucket(self, name: str, most: int) -> bytes:
        from obstore import get_async

        found = await get_async(self._bucket, name)
        content = bytearray()
        if found.meta["size"] <= most:
            async for piece in found.stream():  # a server may send more than it says
                content += piece
                if len(content) > most:
                    break
            else:
                return bytes(content)
        raise NoObject(f"it has more than {most:,} bytes")

    async def sizes(self, folder: str, after: str | None = None) -> dict[str, int]:
        """Returns all objects below a folder (`v1/ci`) by their names, each with its bytes; those
        `after` a name.

        What no agac can have written is reported and left out. Raises AgacError for more than
        MAX_OBJECTS."""
        with self._explained(f"{folder} cannot be listed"):
            if self._folder is not None:
                return await asyncio.to_thread(self._listed, folder, after)
            import obstore

            sizes = dict[str, int]()
            async for page in obstore.list(self._bucket, folder, offset=after):
                sizes |= {one["path"]: one["size"] for one in page if self._is_named(one["path"])}
                _refuse_many(len(sizes), folder)
            return sizes

    def _listed(self, folder: str, after: str | None) -> dict[str, int]:
        assert self._folder is not None
        sizes = dict[str, int]()
        for name, size, problem in self._folder.files(_parts(folder)):
            if problem:
                self._report(name, problem)
            elif (after is None or name > after) and self._is_named(name):
                sizes[name] = size
        return sizes

    def _is_named(self, name: str) -> bool:
        if all(map(_is_part, name.split("/"))):
            return True
        self._report(name, "no object has such a name")
        return False

    def _report(self, name: str, why: str) -> None:
        """Once for each name: the same folder is listed again and again."""
        if name not in self._reported:
            self._reported.add(name)
            _log.warning("%s/%s is left out: %s", self.url, plain(name), why)

    async def folders(self, folder: str) -> list[str]:
        """Returns the names of the folders in a folder."""
        with self._explained(f"{folder} cannot be listed"):
            if self._folder is not None:
                found = await asyncio.to_thread(self._folder.folders, _parts(folder))
                return list(filter(_is_part, found))
            import obstore

            listed = await obstore.list_with_delimiter_async(self._bucket, folder)
            return list(
                filter(_is_part, (one.rpartition("/")[2] for one in listed["common_prefixes"]))
            )

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        refused: tuple[type[Exception], ...] = (OSError,)
        if self._bucket is not None:
            from obstore.exceptions import BaseError

            refused = (OSError, BaseError)
        try:
            yield
        except refused as error:
            remedy = "check its address, the login, and what that may do: agac remote doctor"
            raise AgacError(
                f"the remote {self.url}: {what}: {_first_line(error)}", remedy=remedy
            ) from error


class NoObject(Exception):
    """What has the name of an object is none; the message says why."""


def _parts(name: str) -> list[str]:
    """Returns the folders and the file that a name consists of. Raises AgacError for one that leads
    elsewhere."""
    parts = name.split("/")
    if not all(map(_is_part, parts)):
        raise AgacError(
            f"{name!r} is not a name of an object", remedy="move away what names it in the remote"
        )
    return parts


def _is_part(part: str) -> bool:
    return part not in ("", ".", "..") and len(part) <= 255 and not _NO_NAME.search(part)


def _refuse_many(count: int, folder: str) -> None:
    if count > MAX_OBJECTS:
        raise OSError(
            errno.EFBIG,
            f"{folder} has more than {MAX_OBJECTS:,} objects: move away what agac did not write",
        )


# A folder of this machine, into which others write too. Links in it are not followed, and what is
# no regular file is no object: to open a named pipe would wait for its other end, and a link may
# lead anywhere.

_STAGED = re.compile(r".*#[0-9]+")
"""The name of a file that is being written."""

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class _Folder:
    """The objects in a folder, which is made where it is not there. Raises OSError."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._root = path.resolve()

    def create(self, parts: list[str], content: bytes) -> bool:
        """Creates an object. A kill leaves a staged file at most, which is no object."""
        path = self._path(parts, make=True)
        if os.path.lexists(path):
            return False
        while True:
            staged = path.with_name(f"{path.name}#{randbelow(1 << 62)}")
            with suppress(FileExistsError):
                descriptor = os.open(
                    staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666
                )
                break
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - of a descriptor
                file.write(content)
            os.link(staged, path)
        except FileExistsError:
            return False
        finally:
            staged.unlink(missing_ok=True)
        return True

    def read(self, parts: list[str], most: int) -> bytes:
        """Raises FileNotFoundError, NoObject."""
        path = self._path(parts)
        _refuse_special(path.lstat().st_mode)
        # it may have been replaced since: a pipe is opened without waiting for its other end, and a
        # link not at all
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
            _refuse_special(os.fstat(descriptor).st_mode)
            content = file.read(most + 1)
        if len(content) > most:
            raise NoObject(f"it has more than {most:,} bytes")
        return content

    def files(self, parts: list[str]) -> Iterator[tuple[str, int, str]]:
        """Yields the names of all objects below a folder, each with its bytes, or with why it is
        none."""
        waiting = [parts]
        count = 0
        while waiting:
            folder = waiting.pop()
            for entry in self._entries(folder):
                _refuse_many(count := count + 1, "/".join(parts))
                name = "/".join([*folder, entry.name])
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed meanwhile
                    continue
                if stat.S_ISDIR(status.st_mode):
                    waiting.append([*folder, entry.name])
                elif not stat.S_ISREG(status.st_mode):
                    yield name, 0, f"it is {_kind(status.st_mode)}"
                elif not _STAGED.fullmatch(entry.name):
                    yield name, status.st_size, ""

    def folders(self, parts: list[str]) -> list[str]:
        """Returns the names of the folders in a folder."""
        return sorted(
            entry.name for entry in self._entries(parts) if entry.is_dir(follow_symlinks=False)
        )

    def _entries(self, parts: list[str]) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._below(parts)) as entries:
                yield from entries
        except (FileNotFoundError, NoObject):  # what is no folder was reported where it was listed
            return

    def _path(self, parts: list[str], *, make: bool = False) -> Path:
        """Returns the path of an object. Raises NoObject."""
        return self._below(parts[:-1], make=make) / parts[-1]

    def _below(self, parts: list[str], *, make: bool = False) -> Path:
        """Returns a folder below folders that are no links, and makes it if it does not exist.
        Raises NoObject."""
        path = self._root
        for part in parts:
            path /= part
            if make:
                with suppress(FileExistsError):
                    path.mkdir()
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if not stat.S_ISDIR(mode):
                    raise NoObject(f"{path} is {_kind(mode)}")
        return path


def _refuse_special(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise NoObject(f"it is {_kind(mode)}")


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


# A bucket, by obstore.


def _bucket(url: str) -> Any:
    """Raises ValueError for an address that is none."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    atexit.unregister(_wait)
    atexit.register(_wait)
    again: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
    try:
        return from_url(url, retry_config=again)
    except BaseError as error:
        raise ValueError(_first_line(error)) from error


def _wait() -> None:
    """Waits until no thread of obstore is in Python, for a second at most. One that comes back
    from handing over a result while the interpreter ends aborts the process: seen with obstore
    0.12, in one of three short commands."""
    until = time.monotonic() + 1.0
    while len(sys._current_frames()) > threading.active_count() and time.monotonic() < until:
        time.sleep(0.001)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
