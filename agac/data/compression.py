"""Compressed files, unpacked as they are read."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from agac.core.errors import AgacError, UsageError, lack_of

BUFFER = 128 * 1024
"""Bytes that a reader looks ahead, so that a beginning can be looked at without going back."""

GZIP = b"\x1f\x8b"
ZSTANDARD = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""A frame without content: `pzstd` writes one before each other frame."""
_OTHERS = {
    "bzip2": re.compile(rb"BZh[1-9]1AY&SY"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
    "lz4": re.compile(rb"\x04\x22M\x18"),
}
"""How files begin that other programs compressed, by the names of these."""
_BY_SUFFIX = {".gz": GZIP, ".zst": ZSTANDARD}
_PIECE = 1024
"""Bytes of a zstandard file that are unpacked at a time: the result has to fit into memory."""


def unpacked(file: io.BufferedReader[Any], path: Path, shown: str) -> io.BufferedReader[Any]:
    """Returns the file itself, or the content of a compressed one. Its beginning tells which it
    is, whatever its name.

    Raises UsageError if the name says that it is compressed and it is not, if it is compressed in
    another way, or if a library is missing."""
    head = file.peek(10)[:10]
    if _SKIPPABLE.match(head):
        head = ZSTANDARD
    _refuse_other_forms(head, path, shown)
    if head.startswith(GZIP):
        pieces = iter(partial(gzip.GzipFile(fileobj=file).read, BUFFER), b"")
    elif head.startswith(ZSTANDARD):
        lack = lack_of(f"{shown}: unpacking", "zstandard")
        if lack:
            raise UsageError(lack, remedy="Or unpack the file.")
        pieces = _zstandard_pieces(file, shown)
    else:
        return file
    return io.BufferedReader(Pieces(pieces, shown), BUFFER)


def _refuse_other_forms(head: bytes, path: Path, shown: str) -> None:
    """Raises UsageError for a file that is not what its name says, or compressed by a program whose
    files agac does not read."""
    suffix = path.suffix.lower()
    expected = _BY_SUFFIX.get(suffix)
    if expected is not None and not head.startswith(expected):
        fault = "is not what its name says" if head else "is empty"
        raise UsageError(
            f"{shown}: {fault}, a {suffix} file", remedy="Compress it anew, or rename it."
        )
    for program, beginning in _OTHERS.items():
        if beginning.match(head):
            raise UsageError(
                f"{shown}: it is compressed by {program}, which agac does not read",
                remedy="Unpack the file, or compress it with gzip or zstd.",
            )


class Pieces(io.RawIOBase):
    """Pieces of a file as a raw file, with errors that say which file is torn."""

    def __init__(self, pieces: Iterator[bytes], shown: str, encoding: str | None = None) -> None:
        """`encoding`: the one in which the text was written, if the pieces are converted."""
        self._pieces = pieces
        self._ready = memoryview(b"")
        self.name = shown
        self.encoding = encoding

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        filled = 0
        while filled < len(view):  # a reader that looks ahead sees as much as there is
            if not self._ready:
                piece = self._next()
                if piece is None:
                    break
                self._ready = memoryview(piece)
            size = min(len(self._ready), len(view) - filled)
            view[filled : filled + size] = self._ready[:size]
            self._ready = self._ready[size:]
            filled += size
        return filled

    def _next(self) -> bytes | None:
        try:
            return next(self._pieces, None)
        except EOFError:
            problem = "the file is cut off: its compressed data has no end"
        except (zlib.error, gzip.BadGzipFile) as error:
            problem = f"the compressed data is damaged ({error})"
        raise AgacError(f"{self.name}: {problem}", remedy="Get the file again, then run again.")


_LONGEST_HEADER = 18
"""The most bytes of a zstandard frame before its first block."""
_WINDOW = 1 << 27
"""The most bytes that the library keeps of what it unpacked: as `zstd` without an option."""


def _zstandard_pieces(file: io.BufferedReader, shown: str) -> Iterator[bytes]:
    """Yields the content of a zstandard file. The library's own reader takes a torn file for a
    finished one.

    Raises as gzip does, and AgacError for a frame that takes more memory than `_WINDOW`."""
    import zstandard

    frame = None
    packed = b""
    header = b""
    while packed := packed or file.read(_PIECE):
        if frame is None:
            frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
            header = b""
        header = (header + packed)[:_LONGEST_HEADER]
        try:
            yield frame.decompress(packed)
        except zstandard.ZstdError as error:
            _refuse_frame(header, shown)
            raise zlib.error(str(error)) from None
        packed = b""
        if frame.eof:
            packed = frame.unused_data
            frame = None
    if frame is not None:
        raise EOFError


def _refuse_frame(header: bytes, shown: str) -> None:
    """Raises AgacError if a zstandard frame with this header needs a dictionary, or more memory
    than agac gives it."""
    import zstandard

    try:
        frame = zstandard.get_frame_parameters(header)
    except zstandard.ZstdError:
        return
    if frame.dict_id:
        problem = f"{shown}: it was compressed with a dictionary, number {frame.dict_id}"
        raise AgacError(
            problem, remedy="Unpack it first (zstd -d -D DICTIONARY), or compress it without."
        )
    if frame.window_size > _WINDOW:
        option = f"--long={frame.window_size.bit_length() - 1}"
        memory = (
            f"unpacking it needs {frame.window_size >> 20:,} MiB of memory, and agac gives "
            f"it {_WINDOW >> 20}"
        )
        remedy = f"Unpack it first (zstd -d {option}), or compress it again with at most --long=27."
        raise AgacError(f"{shown}: it was compressed with `zstd {option}`; {memory}", remedy=remedy)
