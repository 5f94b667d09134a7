"""The file of a batch while it is being filled: one line a task, in memory nothing but a buffer."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from agac.core.errors import StoreError

BUFFER = 1 << 20


class Spool:
    """A file that grows by lines. Until `finish` it has another name, so that a whole one is known by its name alone:
    a crash leaves a `.part`, which nobody reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = 0
        self.lines = 0
        self._part = path.with_name(path.name + ".part")
        self._hash = hashlib.sha256()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._part.open("wb", buffering=BUFFER)
        except OSError as error:
            raise full_or_forbidden(error, self._part) from error

    def add(self, line: bytes) -> None:
        """One more line, without its line break. Raises StoreError when the disk does not take it."""
        data = line + b"\n"
        try:
            self._file.write(data)
        except OSError as error:
            raise full_or_forbidden(error, self._part) from error
        self._hash.update(data)
        self.bytes += len(data)
        self.lines += 1

    def finish(self) -> str:
        """Brings the file to the disk under its own name; gives its sha256. Runs in a thread: it waits for the disk."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise full_or_forbidden(error, self._part) from error
        return self._hash.hexdigest()

    def drop(self) -> None:
        """The file is not wanted any more."""
        with suppress(OSError):  # what a full disk did not take is not missed here
            self._file.close()
        self._part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes a rename in a folder outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def full_or_forbidden(error: OSError, path: Path) -> StoreError:
    """What a disk's refusal means for a user."""
    return StoreError(
        f"{path} cannot be written: {error.strerror or error}",
        remedy="free some space (or mend the folder's rights), then run the same command again: nothing is lost",
    )
