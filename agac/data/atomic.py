"""A file that appears whole or not at all: written beside its place, made durable, renamed into it.

A crash before the rename leaves the old file and a temporary one, which the next commit in that folder removes; a
crash after it leaves the new file. Nothing else is ever left behind.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from agac.core.errors import AgacError, UsageError

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
            _sync_folder(self._path.parent)
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


def _sync_folder(folder: Path) -> None:
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
