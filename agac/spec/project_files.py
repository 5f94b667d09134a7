"""The files that a project's own files name or its folders hold: found, opened and written by
these functions alone. No link leads out of the project, only regular files are opened, and no more
than a bound of bytes is read."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path

from agac.core.errors import Problem, SpecError, Where
from agac.core.keys import bytes_digest, canonical, digest
from agac.core.types import JSONValue
from agac.spec.paths import Refused, Unusable, matching, secret_kind

MAX_BYTES = 5_000_000
"""Bytes of a text file that are read: a larger file is data in the wrong place."""

MAX_RECORDED = 100_000_000
"""Bytes that are read of a file that agac wrote for a test: replies, results of tools, a snapshot.
"""

_PIECE = 1 << 20  # bytes of a file that is hashed, of whatever size

# A pipe without a writer would be waited for without O_NONBLOCK. Windows has none of the flags but
# O_BINARY.
_FILE = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")
)
_TYPED_FILE = _FILE & ~getattr(os, "O_NOFOLLOW", 0)
_FOLDER = (
    getattr(os, "O_PATH", os.O_RDONLY)
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
)
_STEPWISE = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")

_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


def _refuse_kind(mode: int) -> None:
    """Raises Refused unless this is the mode of a regular file."""
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise Refused(f"is {kind}, not a file; put a regular file in its place")


def real_path(path: Path, root: Path) -> Path:
    """`path` with all links followed; it need not exist. Raises Refused where it ends outside
    `root`."""
    try:
        real = path.resolve()
        real_root = root.resolve()
    except (OSError, RuntimeError):
        raise Refused(
            "cannot be followed: its links lead in a circle; put a file in its place"
        ) from None
    except ValueError:
        raise Refused("is not a path") from None
    if not real.is_relative_to(real_root):
        raise Refused(
            "leads out of the project, by its path or by a link; name a file inside it, "
            "or put a copy in the link's place"
        )
    return real


def descriptor_of(path: Path, root: Path | None, *, may_be_secret: bool = True) -> int:
    """Returns the descriptor of a regular file, for reading. `root` is the folder that it must not
    leave by a link; None is for a file that a user typed, which may be anywhere. Unless it
    `may_be_secret`, it is no environment file of the project and none that agac or git keeps.
    Raises Refused, and OSError where it cannot be opened."""
    if root is None:
        descriptor = os.open(path, _TYPED_FILE)
    else:
        real = real_path(path, root)
        if not may_be_secret:
            _refuse_secret(real, root)
        descriptor = _opened_below(real, root.resolve())
    try:
        _refuse_kind(os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _opened_below(real: Path, real_root: Path) -> int:
    """Opens a resolved path folder by folder, so that a link that was put there meanwhile is not
    followed."""
    if not _STEPWISE or real == real_root:
        return os.open(real, _FILE)
    *folders, name = real.relative_to(real_root).parts
    above = os.open(real_root, _FOLDER)
    try:
        for folder in folders:
            below = os.open(folder, _FOLDER, dir_fd=above)
            os.close(above)
            above = below
        return os.open(name, _FILE, dir_fd=above)
    finally:
        os.close(above)


def open_file(
    path: Path, shown: str, root: Path | None, *, may_be_secret: bool = True
) -> BufferedReader:
    """Returns a file for reading bytes, of whatever size; `shown` is its name in messages, the
    rest as `descriptor_of` has it. Raises Unusable."""
    try:
        return os.fdopen(descriptor_of(path, root, may_be_secret=may_be_secret), "rb")
    except Refused as error:
        reason = str(error)
    except OSError as error:
        reason = _reason(error, path)
    raise Unusable(Problem(Where(shown), reason)) from None


def _reason(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENXIO, errno.EOPNOTSUPP):
        return "is a socket, not a file; put a regular file in its place"
    if path.is_dir():  # Windows opens no folder
        return "is a folder, not a file; put a regular file in its place"
    return f"cannot be read: {error.strerror or error}"


def read_bytes(
    path: Path, shown: str, root: Path | None, *, most: int = MAX_BYTES, may_be_secret: bool = False
) -> bytes:
    """Returns the bytes of a file, at most `most`. Of a project's files none is read that is
    agac's or git's own or an environment file, unless it `may_be_secret`. Raises Unusable."""
    with open_file(path, shown, root, may_be_secret=may_be_secret) as file:
        try:
            raw = file.read(most + 1)
            size = max(len(raw), os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise Unusable(
                Problem(Where(shown), f"cannot be read: {error.strerror or error}")
            ) from None
    if size > most:
        message = (
            f"{size:,} bytes are more than the {most:,} that are read; put data into an input file"
        )
        raise Unusable(Problem(Where(shown), message))
    return raw


def _refuse_secret(real: Path, root: Path) -> None:
    """Raises Refused for what a link inside the project must not lead to."""
    why = secret_kind(real, root)
    if why is not None:
        raise Refused(
            f"{why}, and is not read here; name another file, or put a copy in the place of a link"
        )


def read_text(path: Path, shown: str, root: Path | None, *, most: int = MAX_BYTES) -> str:
    """Returns the text of a UTF-8 file with `\n` line ends and without a byte order mark. Raises
    Unusable."""
    raw = read_bytes(path, shown, root, most=most)
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Unusable(Problem(Where(shown, 1, 1), "this is UTF-16; save the file as UTF-8"))
    body = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return _line_ends(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        *above, last = _line_ends(body[: error.start].decode("utf-8", "replace")).split("\n")
        message = f"byte 0x{body[error.start]:02x} is not valid UTF-8; save the file as UTF-8"
        raise Unusable(Problem(Where(shown, len(above) + 1, len(last) + 1), message)) from None


def _line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def required_text(path: Path, shown: str, root: Path | None, *, most: int = MAX_BYTES) -> str:
    """Reads a file as `read_text` does, for a file without which nothing can be done. Raises
    SpecError."""
    try:
        return read_text(path, shown, root, most=most)
    except Unusable as error:
        raise SpecError([error.problem]) from None


def files_in(folder: Path, root: Path, pattern: str = "*") -> list[Path]:
    """Lists what matches a pattern in a folder of the project, sorted. Links are included: they are
    refused when they are read. Empty if there is no such folder, or if it is a link that leads
    out."""
    try:
        real_path(folder, root)
        return sorted(folder.glob(pattern)) if folder.is_dir() else []
    except Refused:
        return []


def place_to_write(path: Path, shown: str, root: Path) -> Path:
    """Where a file of the project is written: its path with all links followed. Raises Unusable
    where that is outside `root`, is agac's or git's own or an environment file, or is there and is
    no regular file."""
    try:
        real = real_path(path, root)
        _refuse_secret(real, root)
        if os.path.lexists(real):
            _refuse_kind(real.lstat().st_mode)
    except Refused as error:
        raise Unusable(Problem(Where(shown), f"cannot be written: it {error}")) from None
    return real


def copy_file(source: str, target: str, *, root: Path) -> str:
    """Copies a file of the project at `root`, with its mode, for `shutil.copytree`. Raises
    OSError, also for a file that is none of the project or may hold secrets."""
    path = Path(source)
    try:
        with (
            os.fdopen(descriptor_of(path, root, may_be_secret=False), "rb") as read,
            Path(target).open("xb") as written,
        ):
            shutil.copyfileobj(read, written, _PIECE)
            Path(target).chmod(stat.S_IMODE(os.fstat(read.fileno()).st_mode) | stat.S_IWUSR)
    except Refused as error:
        raise OSError(f"{path.name} {error}") from None
    return target


def files_hash(home: Path, patterns: Sequence[str]) -> str:
    """Stands for what the files of the project at `home` that match hold, and for their names.
    Raises Refused."""
    texts = dict[str, JSONValue]()
    for name in matching(home, patterns):
        try:
            with os.fdopen(descriptor_of(home / name, home), "rb") as file:
                texts[name] = bytes_digest(iter(partial(file.read, _PIECE), b"")).hex()
        except Refused as error:
            raise Refused(f"{name} {error}") from None
        except OSError as error:
            raise Refused(
                f"{name} cannot be read: {error.strerror or error}; name files that can be"
            ) from None
    if not texts:
        raise Refused("matches no file of the project")
    return digest(canonical(texts)).hex()
