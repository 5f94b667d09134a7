"""Each file a row: `path` (relative, and the row's id), `name` and `content`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from agac.core.errors import AgacError, ErrorType, RowError
from agac.data.records import BOM, MAX_RECORD_BYTES, Record
from agac.spec.globbing import Unmatchable, matching
from agac.spec.workflow import InputSpec


class WholeFiles:
    """The files that an input's patterns match, found and read one after the other.

    A file that cannot be read is a row with an error that keeps its path, so that it is the same row once it is mended.
    """

    def __init__(self, spec: InputSpec) -> None:
        self._spec = spec

    def columns(self) -> tuple[str, ...]:
        return ("path", "name", "content")

    def describe(self) -> str:
        return self._spec.shown

    def records(self, start: int = 0) -> Iterator[Record]:
        spec = self._spec
        try:
            for ordinal, relative in enumerate(matching(spec.path, spec.patterns, spec.skipped), start=1):
                if ordinal > start:
                    yield _record(ordinal, spec.path, relative)
        except Unmatchable as error:
            raise AgacError(f"{spec.shown}: {error}", remedy="Mend it, then run again.") from error


def _record(ordinal: int, root: Path, relative: str) -> Record:
    content, problem = _text(root / relative)
    shown = relative.encode(errors="surrogateescape").decode(errors="replace")
    if shown != relative:
        content, problem = None, "the file's name is not UTF-8; rename it"
    data = {"path": shown, "name": PurePosixPath(shown).name, "content": content}
    error = RowError(ErrorType.INVALID_ROW, f"{shown}: {problem}") if problem else None
    return Record(ordinal, data, error, None, shown)


def _text(path: Path) -> tuple[str | None, str | None]:
    """The text of a file, or what is wrong with it."""
    try:
        if not path.is_file():
            return None, "is gone, or no regular file"
        with path.open("rb") as file:
            raw = file.read(MAX_RECORD_BYTES + 1)
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    if len(raw) > MAX_RECORD_BYTES:
        return None, f"is larger than {MAX_RECORD_BYTES} bytes"
    try:
        return raw.removeprefix(BOM).decode(), None
    except UnicodeDecodeError as error:
        return None, f"byte 0x{raw[error.start]:02x} at offset {error.start} is not UTF-8; name text files only"
