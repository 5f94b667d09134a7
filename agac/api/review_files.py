"""Reviews in files: `agac review export` writes a line for each, with columns that people fill in,
and `agac review import` reads their decisions back."""

from __future__ import annotations

import csv
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from agac.api.fix import reviewer
from agac.api.review import Decision, ReviewItem, ReviewPage, review_queue
from agac.api.review_decisions import DecideReport, decide
from agac.api.status import database_files, database_path
from agac.api.sync import asynchronous, blocking
from agac.core.errors import UsageError, lack_of
from agac.core.keys import canonical, snapshot
from agac.core.text import json_shown, plain
from agac.core.types import JSONValue
from agac.data.files import AtomicFile, Record, Source, refuse_target
from agac.data.sources import open_source
from agac.data.text_formats import safe_cell_text
from agac.spec.data_specs import InputFormat
from agac.spec.paths import project_root

FILLED = ("decision", "value", "comment", "reviewer")
"""The columns that people fill in. Of the others `review_id` and `seen` are read back."""

PAGE = 500
"""Reviews that are read at a time."""

_FORMATS: Mapping[str, InputFormat] = {".csv": "csv", ".xlsx": "xlsx", ".jsonl": "jsonl"}


def _format(file: Path) -> InputFormat:
    """Chooses the format by the ending of a file. Raises UsageError for an unknown one, and if
    what it needs is not installed."""
    kind = _FORMATS.get(file.suffix.lower())
    if kind is None:
        lack: str | None = f"{file}: no format has this ending"
    elif kind == "xlsx":
        lack = lack_of(f"{file}: a sheet", "openpyxl")
    else:
        lack = None
    if kind is None or lack:
        raise UsageError(lack or "", remedy=f"Name a file that ends in {', '.join(_FORMATS)}.")
    return kind


async def _queue(root: Path, **which: str | None) -> AsyncIterator[ReviewItem]:
    """Yields all reviews that wait for people or have different decisions."""
    for state in ("waiting", "conflict"):
        page = ReviewPage([], "", 0)
        while page.next is not None:
            page = await asynchronous(review_queue)(
                root, state=state, limit=PAGE, after=page.next or None, **which
            )
            for item in page.items:
                yield item


@blocking
async def review_export(
    file: Path | str, *, workflow: str | None = None, stage: str | None = None, force: bool = False,
    project: Path | str | None = None,
) -> int:  # fmt: skip
    """Writes a line for each review that waits into a csv, xlsx or jsonl file, as its ending says,
    and returns how many. No cell is a formula. Raises UsageError as `refuse_target` does."""
    root = project_root(project)
    path = Path(file)
    kind = _format(path)
    queue = partial(_queue, root, workflow=workflow, stage=stage)
    protected = dict.fromkeys(database_files(database_path(root)), "the database itself")
    refuse_target(path, protected, "decisions.csv", force=force)
    shown_names = list(dict.fromkeys([name async for item in queue() for name in item.shown]))
    header = [
        "review_id",
        "seen",
        "workflow",
        "stage",
        "row_id",
        "why",
        *(f"shown.{name}" for name in shown_names),
        "proposal",
        *FILLED,
    ]
    written = 0
    output = AtomicFile(path, "Name another file, or make room.")
    try:
        lines = _LINES[kind](output, header)
        async for item in queue():
            written += 1
            lines.add(_values(item, shown_names))
        lines.finish()
        output.commit()
    finally:
        output.abort()
    return written


def _values(item: ReviewItem, shown_names: Iterable[str]) -> list[JSONValue]:
    """Lists the values of a review in the order of the columns."""
    return [
        f"r-{item.id}",
        f"r-{item.seen}",
        item.workflow,
        item.stage,
        item.row_id,
        canonical(item.why),
        *(item.shown.get(name) for name in shown_names),
        item.answer,
        *[""] * len(FILLED),
    ]


class _JsonLines:
    """Writes reviews as JSON lines."""

    def __init__(self, file: AtomicFile, header: Sequence[str]) -> None:
        self._file = file
        self._header = header

    def add(self, values: list[JSONValue]) -> None:
        """Writes a line."""
        self._file.append(snapshot(dict(zip(self._header, values, strict=True))) + "\n")

    def finish(self) -> None:
        """Does nothing: all lines are written."""


class _CsvLines:
    """Writes reviews as CSV, with a mark from which spreadsheets tell that it is UTF-8."""

    def __init__(self, file: AtomicFile, header: Sequence[str]) -> None:
        # the line end of the module's own makes it quote every line end in a cell
        self._writer: Any = csv.writer(SimpleNamespace(write=file.append))
        file.append("\ufeff")
        self.add(list(header))

    def add(self, values: list[JSONValue]) -> None:
        """Writes a line."""
        self._writer.writerow([_cell(value) for value in values])

    def finish(self) -> None:
        """Does nothing: all lines are written."""


class _XlsxLines:
    """Writes reviews as a sheet."""

    def __init__(self, file: AtomicFile, header: Sequence[str]) -> None:
        import openpyxl  # type: ignore[import-untyped]

        self._file = file
        self._book: Any = openpyxl.Workbook(write_only=True)
        self._sheet: Any = self._book.create_sheet("rows")
        self.add(list(header))

    def add(self, values: list[JSONValue]) -> None:
        """Adds a line."""
        self._sheet.append([_cell(value) for value in values])

    def finish(self) -> None:
        """Writes the sheet."""
        self._book.save(self._file.temporary)


_LINES: Mapping[str, type[_JsonLines | _CsvLines | _XlsxLines]] = {
    "csv": _CsvLines,
    "xlsx": _XlsxLines,
    "jsonl": _JsonLines,
}


def _cell(value: JSONValue) -> str:
    """Writes a cell of a sheet, with an escape for what no sheet can hold and for what people would
    not see. JSON keeps JSON's own escapes, so that a proposal which is copied means the same."""
    if isinstance(value, str):
        return plain(safe_cell_text(value))
    return json_shown(safe_cell_text(value))


class _FileDecision(NamedTuple):
    """A decision of a file."""

    number: int
    """The number of its line, from 0."""

    where: str
    """Its line as messages name it."""

    decision: Decision
    """The decision."""


@blocking
async def review_import(
    file: Path | str, *, who: str | None = None, some: bool = False, force: bool = False,
    project: Path | str | None = None,
) -> tuple[DecideReport, list[str]]:  # fmt: skip
    """Stores the decisions of a file that `review_export` wrote and people filled in; lines without
    one stay open.

    Returns what became of them, and what is wrong, each with its line: then nothing was stored,
    unless `some`, which stores the others. The same file again changes nothing."""
    path = Path(file)
    root = project_root(project)
    usual_reviewer = cache(partial(reviewer, who, project=root))  # of lines that name nobody
    source = open_source(path, _format(path), str(file))
    _refuse_other_files(source, str(file))
    decisions, problems = _read_lines(source.records(), str(file), usual_reviewer)
    store = partial(asynchronous(decide), root, force=force)
    report = await store([each.decision for each in decisions], check=True)
    for problem in report.problems:
        line = decisions[problem.place]
        problems[line.number] = f"{line.where}: {problem.message}"
    if some or not problems:
        report = await store([each.decision for each in decisions if each.number not in problems])
    return report, [problems[number] for number in sorted(problems)]


def _refuse_other_files(source: Source, file: str) -> None:
    """Raises UsageError for a file without the columns of an export."""
    columns = source.columns()
    if columns is None:
        return
    for name in ("review_id", "decision"):
        if name not in columns:
            raise UsageError(
                f"{file}: there is no column {name!r}",
                remedy="`agac review export` writes such files.",
            )


def _read_lines(
    records: Iterable[Record], file: str, usual_reviewer: Callable[[], str]
) -> tuple[list[_FileDecision], dict[int, str]]:
    """Reads the decisions of a file, and what is wrong with lines, by their numbers."""
    decisions = list[_FileDecision]()
    problems = dict[int, str]()
    for number, record in enumerate(records):
        if record.error is not None:
            problems[number] = record.error.message
        elif record.data is not None:
            where = record.place(file)
            try:
                decision = _read(record.data, usual_reviewer)
            except ValueError as problem:
                problems[number] = f"{where}: {problem}"
                continue
            if decision is not None:
                decisions.append(_FileDecision(number, where, decision))
    return decisions, problems


def _read(line: Mapping[str, JSONValue], usual_reviewer: Callable[[], str]) -> Decision | None:
    """Reads the decision of a line; None if it has none yet. Raises ValueError, which says what is
    wrong."""
    value = _present(line, "value")
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "[", '"'):
        with suppress(ValueError):  # else it is a text
            value = json.loads(value)
    choice = _text(line, "decision").lower()
    has_value = value != ""
    if (choice == "edit") != has_value:
        raise ValueError("a decision edit and a value go together; one of the two is missing")
    named = _text(line, "reviewer") or usual_reviewer()
    if not choice:
        return None
    return Decision(
        item=_text(line, "review_id").removeprefix("r-"),
        choice=choice,
        value=value if has_value else None,
        reason=_text(line, "comment"),
        reviewer=named,
        source="file",
        seen=_text(line, "seen").removeprefix("r-") or None,
    )


def _present(line: Mapping[str, JSONValue], column: str) -> JSONValue:
    """Gives the value of a column; "" if it is missing or null."""
    value = line.get(column)
    return "" if value is None else value


def _text(line: Mapping[str, JSONValue], column: str) -> str:
    return str(_present(line, column)).strip()
