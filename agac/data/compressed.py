"""Files in gzip or zstandard, read as if they were not: a bounded piece at a time, and torn ones say so."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from agac.core.errors import AgacError, UsageError

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
