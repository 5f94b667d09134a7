"""Results of a run as typed rows, as the table of its output, and in sinks of a program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

from agac.api.status import database_path, stored_run
from agac.api.sync import blocking
from agac.core.errors import AgacError, ErrorType, RowError
from agac.core.types import JSONValue, RowId, WebSource
from agac.data.tables import TableColumn
from agac.engine.output.export import table_of
from agac.engine.output.output_lines import Lines
from agac.engine.walk.replay import FinalRows
from agac.store import runs


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A row of a run, with its result or its error."""

    id: RowId
    """The row's id."""
    row_number: int | None
    """Its number in the input, from 1 on; None if a stage made the row."""
    ok: bool
    """True if no stage failed."""
    result: Any
    """Its result; None if it failed, or was skipped everywhere."""
    error: RowError | None
    """Why it failed."""
    input: dict[str, JSONValue] | None
    """The fields that it came with."""
    sources: Mapping[str, Sequence[WebSource]] = field(default_factory=dict)
    """Pages that searches of providers found for its answers, by stage."""


class Sink(Protocol):
    """Takes results elsewhere (`RunReport.write_to`). Rows come again when a program is started
    again; their ids tell which."""

    def write(self, rows: Sequence[ResultRow]) -> None:
        """Takes some rows, a thousand at most, in the order of the outputs."""

    def commit(self) -> None:
        """Shows what was written, once all rows are."""

    def abort(self) -> None:
        """Takes back what was written, as far as it can: a row, or the sink itself, failed on the
        way."""


def result_reader(kind: Any) -> Callable[[RowId, JSONValue], Any]:
    """Returns a function that makes an instance of the type `kind` from a row's id and its stored
    result. It raises AgacError if the type no longer takes that result. If `kind` is None, results
    stay as they are in JSON."""
    if kind is None:
        return lambda _, value: value
    from pydantic import TypeAdapter, ValidationError  # heavy

    adapter = TypeAdapter[Any](kind)

    def read(row_id: RowId, value: JSONValue) -> Any:
        try:
            return adapter.validate_json(json.dumps(value))
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_input=False)[0]["msg"]
            what = f"row {row_id!r}: the stored result is not what its model takes: {wrong}"
            raise AgacError(
                what, remedy="Take the model as it was, or run again with fresh=True."
            ) from error

    return read


def read_results(project: Path, run: int, kind: Any) -> Iterator[ResultRow]:
    """Reads the rows of a run in the order of its outputs, with one at a time in memory. Results
    are instances of `kind`, as `result_reader` makes them."""
    read = result_reader(kind)
    with _spooled(project, run) as lines:
        for row in map(json.loads, lines):
            if row["error"]:
                row["error"] = RowError(ErrorType(row["error"]["type"]), row["error"]["message"])
            elif row["result"] is not None:
                row["result"] = read(row["id"], row["result"])
            sources = {
                stage: [WebSource(**page) for page in pages]
                for stage, pages in row.pop("sources").items()
            }
            yield ResultRow(**row, sources=sources)


@blocking
async def _spooled(root: Path, run: int) -> IO[str]:
    """Writes the results of a run with their input, one per line, to a file that the end of this
    process removes."""
    async with stored_run(root, run) as (database, record):
        folder = database_path(root).parent
        file = TemporaryFile(  # noqa: SIM115
            "w+", dir=folder, encoding="utf-8", errors="backslashreplace", newline="\n"
        )
        final = FinalRows(await runs.definition_of(database, run), inputs=True, sources=True)
        async for rows in final.rows(database, record.id):
            file.writelines(
                line.replace("\n", " ") + "\n" for line in Lines(rows, include_input=True).results
            )
    file.seek(0)
    return file


@blocking
async def result_table(root: Path, run: int) -> tuple[Sequence[TableColumn], list[list[JSONValue]]]:
    """Reads the columns and rows of the table that a run has as `output.format: csv`."""
    async with stored_run(root, run) as (database, record):
        return await table_of(database, record, root)
