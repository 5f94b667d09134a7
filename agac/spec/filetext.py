"""Text files of a project: UTF-8, with or without a byte order mark, bounded in size before a byte is read."""

from __future__ import annotations

import stat
from pathlib import Path

from agac.core.errors import Problem, Where

MAX_BYTES = 5_000_000
"""A larger file is data that stands in the wrong place."""

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_text(path: Path, shown: str, *, max_bytes: int = MAX_BYTES) -> tuple[str, Problem | None]:
    """The text with `\\n` line ends and without a byte order mark, or `""` and the Problem."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            return "", Problem(Where(shown), "not a regular file")
        if info.st_size > max_bytes:
            message = (
                f"{info.st_size:,} bytes are more than the {max_bytes:,} that are read; put data into an input file"
            )
            return "", Problem(Where(shown), message)
        raw = path.read_bytes()
    except OSError as error:
        return "", Problem(Where(shown), f"cannot be read: {error.strerror or error}")
    return _decode(raw, shown)


def _decode(raw: bytes, shown: str) -> tuple[str, Problem | None]:
    if raw.startswith(_UTF16):
        return "", Problem(Where(shown, 1, 1), "this is UTF-16; save the file as UTF-8")
    body = raw.removeprefix(_BOM)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        before = body[: error.start].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        message = f"byte 0x{body[error.start]:02x} is not valid UTF-8; save the file as UTF-8"
        return "", Problem(Where(shown, line, column), message)
    return text.replace("\r\n", "\n").replace("\r", "\n"), None
