"""Several files of one format as one source: the rows of the first, then those of the next; numbers run on.

Where files have headers, all name the same columns, in any order: a file that lacks one is refused, for a column that
is null in half of the rows is hardly ever what was meant.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import islice

from agac.core.errors import AgacError, UsageError
from agac.data.jsontext import quoted
from agac.data.records import Record, Source
from agac.spec.globbing import Unmatchable, matching
from agac.spec.inputs import LOOKED_AT
from agac.spec.workflow import InputSpec

Open = Callable[[str], Source]
"""Opens a file by its path relative to the input's folder."""


class SeveralFiles:
    """The files that an input's patterns match. Raises UsageError for the first files that cannot be read together."""

    def __init__(self, spec: InputSpec, open_file: Open) -> None:
        self._spec = spec
        self._open = open_file
        self._first: str | None = None
        self._columns: tuple[str, ...] | None = None
        self._begun: tuple[list[int], list[str]] = ([], [])
        refused = []
        for relative in islice(self._files(), LOOKED_AT):
            try:
                self._opened(relative)
            except UsageError as error:
                refused.append(error)
        if refused:
            more = f"\nand {len(refused) - 5} more files" if len(refused) > 5 else ""
            raise UsageError("\n".join(error.message for error in refused[:5]) + more, remedy=refused[0].remedy)

    def columns(self) -> tuple[str, ...] | None:
        return self._columns

    def describe(self) -> str:
        return self._spec.shown

    def place(self, ordinal: int) -> str:
        """The file of a row that the last reading met, and its number there."""
        befores, files = self._begun
        found = bisect_left(befores, ordinal) - 1
        return f"{files[found]}: row {ordinal - befores[found]}"

    def records(self, start: int = 0) -> Iterator[Record]:
        before = 0
        befores, files = self._begun = ([], [])
        for relative in self._files():
            ordinal = 0
            befores.append(before)
            files.append(relative)
            for ordinal, data, error, line, _ in self._opened(relative).records():
                if before + ordinal > start:
                    yield Record(before + ordinal, data, error, line, relative)
            before += ordinal

    def _files(self) -> Iterator[str]:
        try:
            yield from matching(self._spec.path, self._spec.patterns, self._spec.skipped)
        except Unmatchable as error:
            raise AgacError(f"{self._spec.shown}: {error}", remedy="Mend it, then run again.") from error

    def _opened(self, relative: str) -> Source:
        source = self._open(relative)
        columns = source.columns()
        if self._first is None:
            self._first, self._columns = relative, columns
        elif columns is not None and set(columns) != set(self._columns or ()):
            raise UsageError(
                f"{relative}: {_difference(self._columns or (), columns)} {self._first}",
                remedy="Give all files the same columns, or read them with workflows of their own.",
            )
        return source


def _difference(expected: tuple[str, ...], columns: tuple[str, ...]) -> str:
    missing = [quoted(name) for name in expected if name not in columns]
    added = [quoted(name) for name in columns if name not in expected]
    parts = [f"lacks {', '.join(missing)}"] if missing else []
    parts += [f"has {', '.join(added)} besides"] if added else []
    return f"its header {' and '.join(parts)}, compared with"
