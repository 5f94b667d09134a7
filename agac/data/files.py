"""Files of users: read as records, also when compressed, and written so that they appear whole or
not at all."""

from __future__ import annotations

import codecs
import errno
import filecmp
import itertools
import os
import re
import shlex
import shutil
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from io import BufferedReader, FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple, Protocol

from agac.core.errors import (
    AgacError,
    ErrorType,
    RowError,
    SpecError,
    UsageError,
    sentence,
)
from agac.core.state_files import opener, private_opener
from agac.core.types import JSONValue
from agac.data.compression import BUFFER, Pieces, unpacked
from agac.spec.paths import Refused, Unusable
from agac.spec.project_files import descriptor_of, place_to_write

if sys.platform != "win32":
    import fcntl

MAX_RECORD_BYTES = 64 * 1024 * 1024
"""The most bytes of a record: otherwise one missing quote or bracket pulls a whole file into
memory."""
BOM = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Record(NamedTuple):
    """One record of a source, before it has an id. A tuple costs a third of a dataclass."""

    ordinal: int
    """The number of the record, from 1."""
    data: dict[str, JSONValue] | None
    """Its fields; of a record that cannot be used those that are known, mostly None."""
    error: RowError | None = None
    """Why it cannot be used."""
    line: int | None = None
    """The physical line on which it begins; None: the format has no lines."""
    file: str | None = None
    """The name of its file, if the source has several."""
    short: bool = False
    """True if it has fewer fields than the header."""

    def place(self, shown: str) -> str:
        """Returns the record's place, as messages begin; `shown` is the source's name."""
        where = self.file or shown
        if self.line is None:
            return f"{where}: row {self.ordinal}"
        return f"{where}:{self.line}"


class Source(Protocol):
    """A source of rows. Opening it has already refused what makes all records unusable."""

    def columns(self) -> tuple[str, ...] | None:
        """Returns the declared fields, in order; None if each record brings its own."""

    def records(self, start: int = 0) -> Iterator[Record]:
        """Yields every record after the first `start`, in order; each call reads from the
        beginning again.

        Faults inside the data are records with an error, never a gap. Raises AgacError if the
        file cannot be read."""

    def describe(self) -> str:
        """Returns the input as messages name it: its path as the user wrote it."""


@contextmanager
def opened(path: Path, shown: str, encoding: str | None = None) -> Iterator[BufferedReader]:
    """Opens a file for reading bytes, unpacked if it is compressed, after a UTF-8 byte order mark.

    Text in another `encoding`, or with the mark of UTF-16, is read as if it were UTF-8. The next
    64 KB can be peeked at. Raises UsageError if there is no such file (any more) or it is not
    readable; AgacError if reading fails later."""
    try:
        if not path.exists():
            raise UsageError(f"{shown}: no such file", remedy="Check the path of the input.")
        with (
            BufferedReader(FileIO(descriptor_of(path, None)), BUFFER) as packed,
            unpacked(packed, path, shown) as file,
        ):
            head = file.peek(4)[:4]
            if head.startswith(BOM):
                file.read(len(BOM))
            other_encoding = encoding_of(head, encoding)
            if other_encoding is None:
                yield file
            else:
                pieces = _as_utf_8(file, other_encoding, shown)
                yield BufferedReader(Pieces(pieces, shown, other_encoding), BUFFER)
    except Refused as error:
        raise UsageError(f"{shown} {error}", remedy="Check the path of the input.") from None
    except PermissionError as error:
        raise UsageError(
            f"{shown}: permission denied", remedy="Give the file read permission."
        ) from error
    except OSError as error:
        problem = f"{shown}: reading failed: {error.strerror or error}"
        raise AgacError(problem, remedy="Check the disk, then run again.") from error


def encoding_of(head: bytes, named: str | None) -> str | None:
    """Returns the encoding of a text that begins with `head`; None: UTF-8. A byte order mark comes
    before the encoding that is `named`."""
    if head[:2] in UTF_16 and head[2:4] != b"\0\0":  # otherwise it is UTF-32's
        return "utf-16"
    if named is None or head.startswith(BOM):
        return None
    return None if codecs.lookup(named).name in ("utf-8", "utf-8-sig") else named


def _kept(error: UnicodeError) -> tuple[str, int]:
    """Keeps bytes that cannot be read in a text as one lone surrogate: the first of them that is
    not ASCII."""
    assert isinstance(error, UnicodeDecodeError)
    unreadable_bytes = error.object[error.start : error.end]
    byte = next((byte for byte in unreadable_bytes if byte >= 0x80), 0xFF)
    return chr(0xDC00 + byte), error.end


KEPT = "agac.kept"
codecs.register_error(KEPT, _kept)

OTHER_ENCODING = (
    "save the file as UTF-8, or say how it is written: `encoding: cp1252` (latin-1, utf-16-le, "
    "…) in the input (`agac process`: --read encoding=cp1252)"
)


def unreadable(text: str, what: str, encoding: str | None) -> str | None:
    """Says which byte of `text` is not of its encoding (None: UTF-8), which is a lone surrogate in
    it, and what to do about it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        before = text[: error.start]
        byte = ord(text[error.start]) & 0xFF
        if encoding:
            place = f"character {len(before) + 1}"
        else:
            place = f"offset {len(before.encode())}"
        if encoding == "utf-16":
            named = "UTF-16, as the file's byte order mark says that it is; save the file as UTF-8"
        else:
            named = f"{encoding or 'UTF-8'}; {OTHER_ENCODING}"
        return f"byte 0x{byte:02x} at {place} of the {what} is not {named}"
    return None


def _as_utf_8(file: BufferedReader, encoding: str, shown: str) -> Iterator[bytes]:
    """Yields the pieces of a text in another encoding as UTF-8. Bytes without a meaning in it cost
    their record alone. Raises AgacError."""
    decoder = codecs.getincrementaldecoder(encoding)(KEPT)
    try:
        for piece in itertools.chain(iter(partial(file.read, BUFFER), b""), [b""]):
            yield decoder.decode(piece, not piece).encode(errors="surrogateescape")
    except UnicodeError as error:
        problem = f"{shown}: cannot be read as {encoding}: {getattr(error, 'reason', error)}"
        raise AgacError(problem, remedy=sentence(OTHER_ENCODING)) from error


class FileSource:
    """A source that is one file."""

    _columns: tuple[str, ...] = ()

    def __init__(self, path: Path, shown: str, encoding: str | None = None) -> None:
        """Refuses what is no readable file; `shown` is its name in messages."""
        self._path = path
        self._shown = shown
        self._encoding = encoding
        with self._opened() as file:
            self._read_as: str | None = getattr(file.raw, "encoding", None)

    def columns(self) -> tuple[str, ...] | None:
        return self._columns or None

    def describe(self) -> str:
        return self._shown

    def _opened(self) -> AbstractContextManager[BufferedReader]:
        return opened(self._path, self._shown, self._encoding)

    def _refused(
        self, ordinal: int, line: int | None, problem: str, kind: ErrorType = ErrorType.INVALID_ROW
    ) -> Record:
        """Makes a record that cannot be used; its message begins with file and line, or with file
        and row."""
        place = Record(ordinal, None, None, line).place(self._shown)
        return Record(ordinal, None, RowError(kind, f"{place}: {problem}"), line)


class LineSource(FileSource, ABC):
    """A source with one record per line, which ends at `\\n` alone (U+2028 stays inside). Lines of
    white space are no records."""

    def records(self, start: int = 0) -> Iterator[Record]:
        with self._opened() as file:
            ordinal = 0
            for line, raw in enumerate(iter(partial(next_line, file), b""), start=1):
                if raw.isspace():
                    continue
                ordinal += 1
                if ordinal <= start:
                    continue
                if len(raw) > MAX_RECORD_BYTES:
                    too_long = f"the line is longer than {MAX_RECORD_BYTES} bytes"
                    yield self._refused(ordinal, line, too_long)._replace(data=self.known(line))
                    continue
                try:
                    yield self.record(ordinal, line, raw.decode())
                except UnicodeDecodeError:
                    why = unreadable(raw.decode(errors="surrogateescape"), "line", self._read_as)
                    yield self._refused(ordinal, line, str(why))._replace(data=self.known(line))

    def known(self, line: int) -> dict[str, JSONValue] | None:
        """Returns what is known of a line that cannot be read."""
        return None

    @abstractmethod
    def record(self, ordinal: int, line: int, text: str) -> Record:
        """Returns the record in a line, or what is wrong with it."""


def next_line(file: BufferedReader) -> bytes:
    """Returns the next line; of one that is too long only the beginning, which is still too
    long."""
    raw = file.readline(MAX_RECORD_BYTES + 1)
    if len(raw) > MAX_RECORD_BYTES:
        rest = raw
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(1 << 20)
    return raw


# Writing. A crash before the rename leaves the old file and a temporary one, which the next commit
# in that folder removes; a crash after it leaves the new file. Nothing else is ever left behind.

PREFIX = ".agac-tmp-"
_TEMPORARY = re.compile(re.escape(PREFIX) + r"\d+-\d+-.+")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class AtomicFile:
    """Text on its way to `path`. Nothing of it is visible there until `commit`.

    Sinks that are one file inherit it. Text is UTF-8 with `\\n` line ends, whatever the locale
    says. A lone surrogate is written as its JSON escape, which is right because JSON is what is
    written, and no UTF-8 file can hold it otherwise."""

    remedy = ""
    """What to do if it cannot be written; empty: what is done about an output."""

    def __init__(self, path: Path, remedy: str = "") -> None:
        """Raises UsageError if a folder or a link is at `path`, AgacError if the folder cannot be
        written."""
        self.path = path
        self.remedy = remedy or self.remedy
        self._finished = False
        self._committed = False
        refuse_what_is_no_file(path)
        with explained(path, self.remedy):
            # for writers that take a path, which must neither replace nor remove this file
            self.temporary, descriptor = create_temporary(path)
            self._file = os.fdopen(
                descriptor, "w", 1 << 18, encoding="utf-8", errors="backslashreplace", newline="\n"
            )

    def append(self, text: str) -> None:
        """Appends `text`. Raises AgacError, with a remedy, if the disk refuses it."""
        with explained(self.path, self.remedy):
            self._file.write(text)

    def finish(self) -> None:
        """Makes what was written durable, without showing it yet: after this, `commit` needs no
        more space."""
        with explained(self.path, self.remedy):
            self._file.flush()
            os.fsync(self._file.fileno())
        self._finished = True

    @property
    def changes_anything(self) -> bool:
        """True if what was finished differs from what is in its place."""
        return not filecmp.cmp(self.path, self.temporary, shallow=False)

    def commit(self) -> None:
        """Puts the file in its place, in one step and durably, then removes what killed runs left
        in the folder."""
        self.finish()
        with explained(self.path, self.remedy):
            # renamed while still open: its lock keeps others from taking it for a leftover
            if sys.platform == "win32":
                self._file.close()
            self.temporary.replace(self.path)
            self._committed = True
            self._file.close()
            sync_folder(self.path.parent)
        remove_leftovers(self.path.parent)

    def abort(self) -> None:
        """Forgets what was written; the old file, if there is one, stays. After `commit` it does
        nothing."""
        if self._committed:
            return
        # a full disk fails again while its buffer is flushed: that is what is thrown away
        with suppress(OSError):
            self._file.close()
        self.temporary.unlink(missing_ok=True)


def prove_writable(folder: Path, remedy: str) -> None:
    """Raises AgacError if the folder, or the nearest one above it that exists, takes no file (the
    one that is tried has no name)."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    with explained(existing, remedy), TemporaryFile(dir=existing) as file:
        file.write(bytes(1 << 16))  # so much has to fit before anything is paid for what goes there
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, text: str, remedy: str = "") -> None:
    """Writes a file with this text, or nothing. Raises as `AtomicFile` does."""
    file = AtomicFile(path, remedy)
    try:
        file.append(text)
        file.commit()
    finally:
        file.abort()


def writable_place(path: Path, shown: str, root: Path) -> Path:
    """Returns where `write_in_project` would write. Raises SpecError if it would not."""
    try:
        return place_to_write(path, shown, root)
    except Unusable as error:
        raise SpecError([error.problem]) from None


def write_in_project(path: Path, text: str, shown: str, root: Path, remedy: str = "") -> None:
    """Writes a file that the project at `root` names, `shown` in messages, or nothing; folders on
    its way are made. A link is followed inside the project alone.

    Raises SpecError if it leads out or there can be no file, and as `AtomicFile` does."""
    real = writable_place(path, shown, root)
    with explained(path, remedy):
        real.parent.mkdir(parents=True, exist_ok=True)
    write_whole(real, text, remedy)


def put_aside(path: Path, word: str, *, replace: bool = False) -> Path:
    """Copies a file that is about to be replaced next to it: `results.csv` as
    `results.WORD.csv`, or if that is taken as `results.WORD-2.csv`; with `replace` in its place.
    The file itself stays."""
    target = path.with_name(f"{path.stem}.{word}{path.suffix}")
    numbers = itertools.count(2)
    while target.exists() and not replace:
        target = path.with_name(f"{path.stem}.{word}-{next(numbers)}{path.suffix}")
    return keep_as(path, target)


def keep_as(path: Path, target: Path) -> Path:
    """Gives a file's content another name too, in the place of what has that name. Returns the
    name."""
    with explained(target):
        target.unlink(missing_ok=True)
        try:
            os.link(path, target)
        except OSError:  # a file system without links
            shutil.copy2(path, target)
    return target


PREVIOUS = "previous"
"""`results.previous.jsonl`: the results until most rows left the input; `FILE.previous`: what a
row run had written."""


def stamp(file: Path) -> list[int]:
    """Returns what identifies a file's content now: bytes, mtime in ns."""
    stat = file.lstat()
    return [stat.st_size, stat.st_mtime_ns]


def growing_mark(file: Path, head: int = 512) -> list[int]:
    """Returns what tells a file to which lines are appended from others that come to its place.

    That is its beginning, of `head` bytes, too: file systems give the number of a file that is
    gone to the next one. No stamp has this form."""
    with file.open("rb") as opened:
        begin = opened.read(head)
    return [file.stat().st_ino, len(begin), zlib.crc32(begin)]


def has_mark(file: Path, mark: Sequence[int]) -> bool:
    """True if this is the file that was marked."""
    return len(mark) == 3 and growing_mark(file, mark[1]) == mark


class PreviousFile:
    """Keeps a file as `FILE.previous` next to the one that takes its place: over an earlier copy
    only if agac wrote that."""

    def __init__(
        self, path: Path | None, known: Iterable[list[int]], own: list[int] | None
    ) -> None:
        """`known` are stamps and marks of what agac wrote; `own` is the mark of a growing file,
        which is not kept."""
        self._known = list(known)
        self.stamp = list[int]()
        """The stamp of the copy."""
        self.files = list[Path]()
        """The file to keep, if there is one."""
        if path is not None and path.is_file():
            is_growing = own is not None and has_mark(path, own)
            if not is_growing:
                self.files.append(path)

    def kept_as(self, path: Path) -> Path:
        """Copies the file. Returns the copy."""
        target = path.with_name(f"{path.name}.{PREVIOUS}")
        number = 1
        while not self._may_write(target):
            number += 1
            target = path.with_name(f"{path.name}.{PREVIOUS}-{number}")
        self.stamp = stamp(path) if self._is_known(path) else []
        return keep_as(path, target)

    def _may_write(self, target: Path) -> bool:
        """True if the name is free, or is that of a file which agac wrote."""
        if not os.path.lexists(target):
            return True
        return target.is_file() and self._is_known(target)

    def _is_known(self, file: Path) -> bool:
        return stamp(file) in self._known or any(has_mark(file, mark) for mark in self._known)


def refuse_what_is_no_file(path: Path) -> None:
    """Raises UsageError unless `path` is free or a regular file that may be replaced."""
    if path.is_symlink():
        raise UsageError(
            f"{path}: is a link; agac does not write through links", remedy="Remove the link."
        )
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: is not a file, so it cannot be replaced", remedy="Move it away.")


def refuse_target(target: Path, own: Mapping[Path, str], example: str, *, force: bool) -> None:
    """Raises UsageError if a file that a user names cannot be written: `target` is a folder, or in
    none, or one of agac's `own` files, or exists and is not to be replaced (`force`)."""
    if target.is_dir():
        raise UsageError(f"{target} is a folder", remedy=f"Name a file in it: {target / example}")
    if not target.parent.is_dir():
        raise UsageError(
            f"there is no folder {target.parent}",
            remedy=f"mkdir -p {shlex.quote(str(target.parent))}",
        )
    refuse_what_is_no_file(target)
    for path, what in own.items():
        if _is_same_file(target, path):
            raise UsageError(f"{target} is {what}", remedy="Name another file.")
    if target.exists() and not force:
        raise UsageError(
            f"{target} exists", remedy="Name another file, or replace it with --force."
        )


def _is_same_file(path: Path, other: Path) -> bool:
    if path.resolve() == other.resolve():
        return True
    return path.exists() and other.exists() and path.samefile(other)


def remove_leftovers(folder: Path) -> None:
    """Deletes the temporary files of runs that were killed. A file whose writer is still running
    is locked, and stays."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    """Deletes a temporary file unless its writer is still running."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        is_left = _lock(descriptor)
    finally:
        os.close(descriptor)
    if is_left:
        Path(path).unlink()


def create_temporary(path: Path, *, private: bool = False) -> tuple[Path, int]:
    """Makes a locked temporary file next to `path`, and returns it with its descriptor. It is
    readable as the umask allows or, if it is `private` or among the state, by its owner."""
    opens = private_opener if private else opener
    for number in itertools.count():
        temporary = path.with_name(f"{PREFIX}{os.getpid()}-{number}-{path.name}")
        with suppress(FileExistsError):
            descriptor = opens(
                str(temporary), os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
            )
            try:
                locked = _lock(descriptor)
            except OSError:  # a file system without locks: no process takes it for a leftover then
                locked = True
            # another process may have taken it for a leftover before it was locked
            if locked and temporary.exists():
                return temporary, descriptor
            os.close(descriptor)
    raise AssertionError


def _lock(descriptor: int) -> bool:
    """Locks an open file. Returns True if it is ours now. A lock ends with its process, however
    that ends."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Makes a rename in a folder survive a power cut."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def explained(path: Path, remedy: str = "", kind: type[AgacError] = AgacError) -> Iterator[None]:
    """Turns an OSError that concerns `path`, an output if there is no `remedy`, into such an
    error, with what to do."""
    try:
        yield
    except OSError as error:
        raise kind(
            f"{path}: cannot be written: {error.strerror or error}", remedy=remedy or _remedy(error)
        ) from error


def _remedy(error: OSError) -> str:
    if error.errno in _FULL:
        return "Free some space, then run `agac export`: all results are safe in the store."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Make the folder writable or choose another one with output.dir."
    return "Check the output folder, then run `agac export`: all results are safe in the store."
