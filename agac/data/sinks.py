"""The files that agac writes, the folder they are in, the envelope of one row, and the tables by
their format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

from agac.core.errors import AgacError, RowError, UsageError
from agac.core.types import JSONValue, RowId
from agac.data.files import PREVIOUS, AtomicFile, explained, put_aside, refuse_what_is_no_file
from agac.data.json_formats import decode, encode
from agac.data.parquet import ParquetSink
from agac.data.tables import OutputRow, TableLayout
from agac.data.text_formats import DelimitedSink, TextSink


class Ending(Protocol):
    """What is written and shown together with the files of a folder, as a whole or not at all."""

    def finish(self) -> None:
        """Makes what was written durable, but does not show it yet. Nothing can be written after
        it."""

    def commit(self) -> None:
        """Finishes if that was not done, and shows what was written in the place of what was
        there."""

    def abort(self) -> None:
        """Forgets everything; what was there stays as it was. After `commit` it does nothing."""


@dataclass(frozen=True, slots=True)
class Framing:
    """The text around and between the values of a file."""

    opening: str
    between: str
    closing: str
    empty: str
    """The whole file if there are no values."""
    indent: bool = False
    """True if values are indented."""


LINES = Framing(opening="", between="\n", closing="\n", empty="")
ARRAY = Framing(opening="[\n", between=",\n", closing="\n]\n", empty="[]\n")
ONE_VALUE = Framing(opening="", between="", closing="\n", empty="[]\n")
DOCUMENT = Framing(opening="", between="", closing="\n", empty="", indent=True)


class JsonSink(AtomicFile):
    """JSON in one file: lines, an array (one element a line), or a document: a second value raises
    ValueError."""

    def __init__(self, path: Path, framing: Framing) -> None:
        super().__init__(path)
        self._framing = framing
        self._count = 0

    def write(self, value: JSONValue) -> None:
        """Appends one value. Raises AgacError, with a remedy, when the disk refuses it."""
        self._add([encode(value, indent=self._framing.indent)])

    def write_texts(self, json_texts: Sequence[str]) -> None:
        """Appends values that are already JSON text, as they are: many at a time cost a third of
        one by one."""
        self._add(list(map(self._framed, json_texts)))

    def _framed(self, json_text: str) -> str:
        """Returns the text as one value of this file: indented in a document, otherwise on a line
        of its own."""
        if self._framing.indent:
            return encode(decode(json_text), indent=True)
        if "\n" in json_text or "\r" in json_text:
            return encode(decode(json_text))
        return json_text

    def _add(self, texts: list[str]) -> None:
        framing = self._framing
        if not framing.between and self._count + len(texts) > 1:
            raise ValueError(f"{self.path.name} holds one value")
        if texts:
            self.append(
                (framing.between if self._count else framing.opening) + framing.between.join(texts)
            )
            self._count += len(texts)

    def finish(self) -> None:
        if not self._finished:
            self.append(self._framing.closing if self._count else self._framing.empty)
            super().finish()


TELEMETRY = "telemetry.jsonl"
FILTERED = "filtered.jsonl"  # rows that a guard made leave; only of workflows in which one can
OPTIONAL = (TELEMETRY, FILTERED)  # those of `FILES` that a workflow may do without

FILES: dict[str, Callable[[Path], JsonSink]] = {
    "results.jsonl": partial(JsonSink, framing=LINES),
    "results.json": partial(JsonSink, framing=ARRAY),
    "errors.jsonl": partial(JsonSink, framing=LINES),
    "summary.json": partial(JsonSink, framing=DOCUMENT),
    TELEMETRY: partial(JsonSink, framing=LINES),
    FILTERED: partial(JsonSink, framing=LINES),
}
"""The files that agac always writes into an output folder, in place of what has their names (see
`TABLES`, too)."""

Joined = TypeVar("Joined", bound=Ending)


class OutputFolder:
    """A folder for results, inside `root`. As a context manager it replaces the files opened in it
    together. Leaving it normally makes all of them durable first and renames them after that, in
    the order in which they were opened, so that a full disk, or an exception, replaces none; what
    a crash between two renames leaves, the next export replaces. Of the files in `edited` that
    would change, `keep` makes copies: `kept` has them by the files' paths."""

    def __init__(
        self,
        folder: Path,
        root: Path,
        edited: Collection[Path] = (),
        *,
        places: Mapping[str, Path] | None = None,
        keep: Callable[[Path], Path] | None = None,
    ) -> None:
        """Creates the folder. Raises UsageError when it leaves `root`, links followed, or when a
        file is in the way. With `places` there is none: files by these names are written there,
        and no others."""
        self.path = folder
        self._edited = edited
        self._places = places
        self._keep = keep or partial(put_aside, word="edited")
        self.kept: dict[Path, Path] = {}
        self._open: list[Ending] = []
        if places is not None:
            return
        check_folder(folder, root)
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def open(self, name: str, *, one_value: bool = False) -> JsonSink:
        """A sink for one of `FILES`, that of `one_value` and no list; raises KeyError for any
        other name."""
        path = self.path / name if self._places is None else self._places[name]
        return self.add(JsonSink(path, ONE_VALUE) if one_value else FILES[name](path))

    def add(self, sink: Joined) -> Joined:
        """Something else that is shown, or forgotten, together with the folder's files; gives it
        back."""
        self._open.append(sink)
        return sink

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                for sink in self._open:
                    sink.finish()
                for sink in self._open:
                    if (
                        isinstance(sink, AtomicFile)
                        and sink.path in self._edited
                        and sink.changes_anything
                    ):
                        self.kept[sink.path] = self._keep(sink.path)
                for sink in self._open:
                    sink.commit()
        finally:
            for sink in self._open:
                sink.abort()
            self._open.clear()


def check_folder(folder: Path, root: Path, names: Iterable[str] = ()) -> None:
    """Raises UsageError when results cannot be written: it leaves `root`, or something is in the
    way of `names`."""
    real = folder.resolve()
    inside = root.resolve()
    if real != inside and inside not in real.parents:
        remedy = "Choose a folder inside the project with output.dir."
        raise UsageError(f"{folder}: leads outside of {root}", remedy=remedy)
    for part in (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            remedy = "Move the file away or choose another folder with output.dir."
            raise UsageError(f"{folder}: cannot be made a folder, {part} is a file", remedy=remedy)
    for name in (*FILES, *names):
        refuse_what_is_no_file(folder / name)


def envelope(
    row_id: RowId,
    row_number: int | None,
    result_json: str | None,
    error: RowError | None,
    input_json: str | None = None,
    include_input: bool = False,
    about: Mapping[str, object] | None = None,
) -> str:
    """Returns one row's line, without its line end: `{"id","row_number","ok","result","error"}`,
    then what else is known `about` it (`how` people were involved, `sources`), and `input`, if they
    are wanted.

    `result_json` and `input_json` are JSON texts and are put in as they are; None becomes null."""
    if error is not None and error.detail:
        partial = {"partial": error.detail}
    else:
        partial = {}
    if error is None:
        failure = "null"
    else:
        failure = encode({"type": error.type, "message": error.message, **partial})
    told = (about or {}).items()
    tail = "".join(f',"{name}":{encode(value)}' for name, value in told if value is not None)
    tail += f',"input":{"null" if input_json is None else input_json}' if include_input else ""
    number = "null" if row_number is None else row_number
    ok = "true" if error is None else "false"
    return (
        f'{{"id":{encode(row_id)},"row_number":{number},"ok":{ok},'
        f'"result":{"null" if result_json is None else result_json},"error":{failure}{tail}}}'
    )


class RowSink(Ending, Protocol):
    """Settled rows on their way into an output."""

    def write(self, rows: Sequence[OutputRow]) -> None:
        """Appends rows. Raises AgacError, with a remedy, when they cannot be written."""


class IsolatedSink:
    """A sink that may fail alone: what is written together with it is shown nevertheless.
    `failure` says why."""

    def __init__(self, make: Callable[[], RowSink]) -> None:
        self.failure: AgacError | None = None
        self._sink: RowSink | None = None
        try:
            self._sink = make()
        except AgacError as error:
            self.failure = error

    def write(self, rows: Sequence[OutputRow]) -> None:
        self._try(lambda sink: sink.write(rows))

    def finish(self) -> None:
        self._try(lambda sink: sink.finish())

    def commit(self) -> None:
        self._try(lambda sink: sink.commit())

    def abort(self) -> None:
        sink = self._sink
        self._sink = None
        if sink is not None:
            sink.abort()

    def _try(self, step: Callable[[RowSink], None]) -> None:
        try:
            if self._sink is not None:
                step(self._sink)
        except AgacError as error:
            self.failure = error
            self.abort()


TABLES: dict[str, Callable[[Path, TableLayout, bool, bool], RowSink]] = {
    "csv": lambda path, layout, safe, bom: DelimitedSink(path, layout, ",", safe=safe, bom=bom),
    "tsv": lambda path, layout, safe, bom: DelimitedSink(path, layout, "\t", safe=safe, bom=bom),
    "txt": lambda path, layout, safe, bom: TextSink(path),
    "parquet": lambda path, layout, safe, bom: ParquetSink(path, layout),
}
"""What `output.format` takes: called with path, columns, whether cells must be safe, whether to
begin with a mark."""

# the formats of one file with results; the suffix of a file's name tells which
FORMATS = ("jsonl", "json", *TABLES)
PREVIEW_DATABASE = (
    "results.db"  # stands in a preview's folder in the place of the one that `output.to` names
)


def file_of(format: str) -> str:  # noqa: A002 - it is the key's name
    """Returns the name of a format's file in the output folder."""
    return f"results.{format}"


def result_files(folder: Path) -> list[Path]:
    """Returns the files in an output folder: the summary, which names the others, last."""
    return [
        folder / name for name in sorted({*FILES, *map(file_of, TABLES)}, key="summary.json".__eq__)
    ]


def drop_previous(folder: Path) -> None:
    """Removes the results that were kept."""
    for file in result_files(folder):
        file.with_stem(f"{file.stem}.{PREVIOUS}").unlink(missing_ok=True)
