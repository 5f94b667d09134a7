"""Standard input: kept in a file before anything reads it, because a run reads its input more than once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from agac.core.errors import AgacError, UsageError
from agac.core.keys import DIGEST_BYTES
from agac.data.atomic import create_temporary, remove_leftovers
from agac.data.compressed import BUFFER
from agac.data.records import Record, opened

STANDARD_INPUT = "standard input"
_PIECE = 1 << 20


class Piped:
    """Standard input before it was read: all that can be checked without it is checked."""

    def columns(self) -> None:
        return None

    def describe(self) -> str:
        return STANDARD_INPUT

    def records(self, start: int = 0) -> Iterator[Record]:
        raise AgacError(f"{STANDARD_INPUT}: was not read", remedy="Pipe rows into agac run, or into agac plan.")


def keep(stream: BinaryIO, folder: Path) -> Path:
    """Writes all that comes into a file of `folder`, durably, named by its content: the same content is one file.

    Killed before its end it leaves a temporary file, which the next call removes. Raises UsageError when nothing comes,
    AgacError when the file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        temporary, descriptor = create_temporary(folder / "piped")
        try:
            with os.fdopen(descriptor, "wb") as file:
                digest = _copied(stream, file)
                os.fsync(file.fileno())
            path = folder / f"{digest}{_suffix(temporary)}"
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise AgacError(
            f"{STANDARD_INPUT}: cannot be kept in {folder}: {error.strerror or error}",
            remedy="Make room, or write the rows to a file and name it with --input.",
        ) from error
    return path


def forget(folder: Path, but: int = 1) -> None:
    """Removes what was piped in before the last `but` times."""
    if folder.is_dir():
        kept = sorted((path for path in folder.iterdir() if path.is_file()), key=lambda path: path.stat().st_mtime)
        for path in kept[: len(kept) - but]:
            path.unlink(missing_ok=True)


def _copied(stream: BinaryIO, file: BinaryIO) -> str:
    """Copies everything; gives the hash of it in hex."""
    hasher, size = blake2b(digest_size=DIGEST_BYTES), 0
    while piece := stream.read(_PIECE):
        hasher.update(piece)
        file.write(piece)
        size += len(piece)
    file.flush()
    if not size:
        raise UsageError(
            f"{STANDARD_INPUT}: nothing came", remedy="Pipe the rows in, as `cat rows.csv | agac … --input -`."
        )
    return hasher.hexdigest()


def _suffix(path: Path) -> str:
    """The suffix of the format that the content begins with, where that can be told."""
    with opened(path, STANDARD_INPUT) as file:
        head = file.peek(BUFFER).lstrip()[:4]
    if head == b"PAR1":
        return ".parquet"
    return {b"{": ".jsonl", b"[": ".json"}.get(head[:1], "")
