"""The outputs beside the JSON files, by the name that `output.format` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from agac.core.errors import AgacError
from agac.data.outputs.layout import Layout
from agac.data.outputs.lines import DelimitedSink, TextSink
from agac.data.outputs.parquet import ParquetSink
from agac.data.outputs.records import OutputRow
from agac.spec.workflow import OutputFormat


class RowSink(Protocol):
    """Settled rows on their way into an output, which is replaced or brought up to date as a whole or not at all."""

    def write(self, rows: Sequence[OutputRow]) -> None:
        """Appends rows. Raises AgacError, with a remedy, when they cannot be written."""
        ...

    def finish(self) -> None:
        """Makes what was written durable, but does not show it yet. Nothing can be written after it."""
        ...

    def commit(self) -> None:
        """Finishes if that was not done, and shows what was written."""
        ...

    def abort(self) -> None:
        """Forgets everything; what was there stays as it was. After `commit` it does nothing."""
        ...


class Apart:
    """A sink that may fail alone: what is written together with it is shown all the same. `failure` says why."""

    def __init__(self, make: Callable[[], RowSink]) -> None:
        self.failure: AgacError | None = None
        self._sink: RowSink | None = None
        with self._kept():
            self._sink = make()

    def write(self, rows: Sequence[OutputRow]) -> None:
        """As `RowSink.write`, but for what is raised."""
        with self._kept():
            if self._sink is not None:
                self._sink.write(rows)

    def finish(self) -> None:
        """As `RowSink.finish`."""
        with self._kept():
            if self._sink is not None:
                self._sink.finish()

    def commit(self) -> None:
        """As `RowSink.commit`."""
        with self._kept():
            if self._sink is not None:
                self._sink.commit()

    def abort(self) -> None:
        """As `RowSink.abort`."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.abort()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except AgacError as error:
            self.failure = error
            self.abort()


TABLES: dict[OutputFormat, Callable[[Path, Layout, bool], RowSink]] = {
    "csv": lambda path, layout, safe: DelimitedSink(path, layout, ",", safe=safe),
    "tsv": lambda path, layout, safe: DelimitedSink(path, layout, "\t", safe=safe),
    "txt": lambda path, layout, safe: TextSink(path),
    "parquet": lambda path, layout, safe: ParquetSink(path, layout),
}
"""Every format that `output.format` takes. Called with the path, the columns and whether cells must be safe."""

PREVIEW_DATABASE = "results.db"
"""The database that stands in a preview's folder in the place of the one that `output.to` names."""


def file_of(format: OutputFormat) -> str:  # noqa: A002 - it is the key's name
    """The name of a format's file in the output folder."""
    return f"results.{format}"
