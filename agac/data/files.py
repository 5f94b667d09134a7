"""Files of users: read also when compressed, and written so that they appear whole or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from agac.core.errors import AgacError, UsageError

# A crash before the rename leaves the old file and a temporary one, which the next commit in that folder removes; a
# crash after it leaves the new file. Nothing else is ever left behind.

if sys.platform != "win32":
    import fcntl

PREFIX = ".agac-tmp-"
_TEMPORARY = re.compile(re.escape(PREFIX) + r"\d+-\d+-.+")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class AtomicFile:
    """Text on its way to `path`. Nothing of it is visible there until `commit`.

    Text is UTF-8 with `\\n` line ends, whatever the locale says. A lone surrogate is written as its JSON escape, which
    is right because JSON is what is written, and no UTF-8 file can hold it otherwise.
    """

    def __init__(self, path: Path) -> None:
        """Raises UsageError when a folder or a link stands at `path`, AgacError when the folder cannot be written."""
        self._path = path
        self._committed = False
        refuse_what_is_no_file(path)
        with explained(path):
            self._temporary, descriptor = create_temporary(path)
            self._file = os.fdopen(
                descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="\n", buffering=1 << 18
            )

    @property
    def path(self) -> Path:
        """Where the file will be."""
        return self._path

    @property
    def temporary(self) -> Path:
        """Where it is until then: for writers that take a path, which must neither replace nor remove this file."""
        return self._temporary

    def write(self, text: str) -> None:
        """Appends `text`. Raises AgacError, with a remedy, when the disk refuses it."""
        with explained(self._path):
            self._file.write(text)

    def finish(self) -> None:
        """Makes what was written durable, without showing it yet: after this, `commit` needs no more space."""
        with explained(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def commit(self) -> None:
        """Puts the file in its place, in one step and durably, then removes what killed runs left in the folder."""
        self.finish()
        with explained(self._path):
            # renamed while still open: its lock keeps others from taking it for a leftover
            if sys.platform == "win32":
                self._file.close()
            self._temporary.replace(self._path)
            self._committed = True
            self._file.close()
            sync_folder(self._path.parent)
        remove_leftovers(self._path.parent)

    def abort(self) -> None:
        """Forgets what was written; the old file, if there is one, stays. After `commit` it does nothing."""
        if self._committed:
            return
        with suppress(OSError):  # a full disk fails again while its buffer is flushed: that is what is thrown away
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def refuse_what_is_no_file(path: Path) -> None:
    """Raises UsageError unless `path` is free or a regular file that may be replaced."""
    if path.is_symlink():
        raise UsageError(f"{path}: is a link; agac does not write through links", remedy="Remove the link.")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: is not a file, so it cannot be replaced", remedy="Move it away.")


def remove_leftovers(folder: Path) -> None:
    """Deletes the temporary files of runs that were killed. One whose writer still lives is locked, and stays."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                _remove_if_left(Path(entry.path))


def _remove_if_left(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR)
        try:
            left = _lock(descriptor)
        finally:
            os.close(descriptor)
        if left:
            path.unlink()


def create_temporary(path: Path) -> tuple[Path, int]:
    """A new, locked temporary file beside `path`, readable by whom the umask allows, and its descriptor."""
    for number in itertools.count():
        temporary = path.with_name(f"{PREFIX}{os.getpid()}-{number}-{path.name}")
        with suppress(FileExistsError):
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
            # another process may have taken it for a leftover before it was locked
            if _lock_new(descriptor) and temporary.exists():
                return temporary, descriptor
            os.close(descriptor)
    raise AssertionError


def _lock_new(descriptor: int) -> bool:
    try:
        return _lock(descriptor)
    except OSError:  # a file system without locks: then nobody can take it for a leftover either
        return True


def _lock(descriptor: int) -> bool:
    """Whether the open file is now locked by us. A lock ends with its process, however that ends."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Makes a rename in a folder outlive a power cut."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an OSError that concerns `path` into an AgacError that says what to do."""
    try:
        yield
    except OSError as error:
        raise AgacError(f"{path}: cannot be written: {error.strerror or error}", remedy=_remedy(error)) from error


def _remedy(error: OSError) -> str:
    kind = _kind(error)
    if kind == "full":
        return "Free some space, then run `agac export`: all results are safe in the store."
    if kind == "denied":
        return "Make the folder writable or choose another one with output.dir."
    return "Check the output folder, then run `agac export`: all results are safe in the store."


def _kind(error: OSError) -> Literal["full", "denied", "other"]:
    if error.errno in _FULL:
        return "full"
    return "denied" if error.errno in _DENIED else "other"


GZIP = b"\x1f\x8b"
ZSTANDARD = b"\x28\xb5\x2f\xfd"
_BY_SUFFIX = {".gz": GZIP, ".zst": ZSTANDARD}

BUFFER = 128 * 1024
"""Bytes that a reader looks ahead, so that the beginning of a file can be looked at without going back."""

_PIECE = 1024
"""Bytes of a zstandard file that are unpacked at a time: what comes of them has to fit into memory."""


class _Unpacked(Protocol):
    """A stream of unpacked bytes."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, none at the end. Raises EOFError when the file ends too early."""
        ...


def unpacked(file: io.BufferedReader[Any], path: Path, shown: str) -> io.BufferedReader[Any]:
    """The file itself, or what a compressed one holds. What it begins with tells, whatever its name.

    Raises UsageError when the name says that it is compressed and it is not, or when a library is missing.
    """
    head = file.peek(4)[:4]
    expected = _BY_SUFFIX.get(path.suffix.lower())
    if expected is not None and not head.startswith(expected):
        what = "is empty" if not head else "is not what its name says"
        raise UsageError(f"{shown}: {what}, a {path.suffix.lower()} file", remedy="Compress it anew, or rename it.")
    if head.startswith(GZIP):
        return io.BufferedReader(_Stream(gzip.GzipFile(fileobj=file), shown), BUFFER)
    if head.startswith(ZSTANDARD):
        return io.BufferedReader(_Stream(_zstandard(file, shown), shown), BUFFER)
    return file


class _Stream(io.RawIOBase):
    """Unpacked bytes as a raw file, with errors that say which file is torn."""

    def __init__(self, source: _Unpacked, shown: str) -> None:
        self._source, self._shown = source, shown
        self.name = shown

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        filled = 0
        while filled < len(view):  # whoever looks ahead sees as much as there is
            piece = self._read(len(view) - filled)
            if not piece:
                break
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def _read(self, size: int) -> bytes:
        try:
            return self._source.read(size)
        except EOFError:
            problem = "the file is cut off: its compressed data has no end"
        except (zlib.error, gzip.BadGzipFile, _Damaged) as error:
            problem = f"the compressed data is damaged ({error})"
        raise AgacError(f"{self._shown}: {problem}", remedy="Get the file again, then run again.")


class _Damaged(Exception):
    """What zstandard says about data that it cannot read."""


def _zstandard(file: io.BufferedReader, shown: str) -> _Unpacked:
    if find_spec("zstandard") is None:
        raise UsageError(f"{shown}: .zst files want a library: pip install 'agac[data]'", remedy="Or unpack the file.")
    import zstandard

    return _Zstandard(file, lambda: zstandard.ZstdDecompressor().decompressobj(), zstandard.ZstdError)


class _Zstandard:
    """One frame after another. The library's own reader takes a torn file for a finished one."""

    def __init__(self, file: io.BufferedReader, frame: Callable[[], Any], error: type[Exception]) -> None:
        self._file, self._new_frame, self._error = file, frame, error
        self._frame: Any = None
        self._packed = b""
        self._ready = b""

    def read(self, size: int, /) -> bytes:
        while not self._ready:
            packed = self._packed or self._file.read(_PIECE)
            self._packed = b""
            if not packed:
                if self._frame is not None:
                    raise EOFError
                return b""
            self._ready = self._unpack(packed)
        piece, self._ready = self._ready[:size], self._ready[size:]
        return piece

    def _unpack(self, packed: bytes) -> bytes:
        self._frame = self._frame or self._new_frame()
        try:
            ready: bytes = self._frame.decompress(packed)
        except self._error as error:
            raise _Damaged(str(error)) from None
        if self._frame.eof:
            self._packed, self._frame = self._frame.unused_data, None
        return ready
