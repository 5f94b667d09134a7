"""Looking at an input without a workflow: what it is, what its columns hold, its first rows."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import get_args

from agac.core.errors import SpecError, UsageError
from agac.core.report import Report
from agac.core.types import JSONValue
from agac.data.columns import Column, Columns
from agac.data.piped import STANDARD_INPUT, keep
from agac.data.sources import Source, open_input
from agac.spec.formats import format_of
from agac.spec.globbing import matching
from agac.spec.inputs import free_input
from agac.spec.load import load_project
from agac.spec.models import DefaultsFile, RunRulesFile
from agac.spec.root import find_project
from agac.spec.suggest import did_you_mean, sentence
from agac.spec.workflow import InputFormat, InputSpec, ProjectPaths, ProjectSpec

SHOWN_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class DataReport(Report):
    """What was seen of an input. `looked_at` rows were read, which is all of them when `complete`; of those `unusable`
    cannot be used, and `problems` says why of the first. `size` is in bytes; `files` how many there are."""

    JSON_KEYS = (
        "input", "format", "bytes=size", "files", "rows_looked_at=looked_at", "complete", "unusable", "problems",
        "columns", "rows",
    )  # fmt: skip

    input: str
    format: str
    size: int
    files: int
    looked_at: int
    complete: bool
    unusable: int
    problems: list[str]
    columns: list[Column]
    rows: list[dict[str, JSONValue]]


def show_data(
    inputs: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,  # noqa: A002 - it is the key's name
    rows: int = 5,
    look_at: int = 1_000,
    project: Path | str | None = None,
) -> DataReport:
    """Looks at an input: a path, several, a pattern, a database, or `-`; a project is not needed.

    The first `rows` rows are in the report, columns are told from the first `look_at`. `format` says what the name does
    not. Raises UsageError when the input cannot be read.
    """
    texts = [str(one) for one in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    if not texts:
        raise UsageError("no input is named", remedy="Name a file, a pattern, a database, or - for standard input.")
    spec = free_input(texts, _project(project), _known(format))
    with _at_hand(spec) as (ready, shown):
        source = open_input(ready)
        columns, first, problems, counts = _looked_at(source, rows, look_at)
        files = list(_files(ready))
        size = sum(path.stat().st_size for path in files if path.is_file())
    looked_at, unusable, complete = counts
    return DataReport(
        shown, str(ready.format), size, len(files), looked_at, complete, unusable, problems, columns.all(), first
    )


def _known(name: str | None) -> InputFormat | None:
    found = next((known for known in get_args(InputFormat) if known == name), None)
    if name is not None and found is None:
        remedy = sentence(did_you_mean(name, get_args(InputFormat)))
        raise UsageError(f"--format {name}: unknown format", remedy=remedy)
    return found


def _project(project: Path | str | None) -> ProjectSpec:
    """The project around, whose paths and folders hold; else the current folder as if it were one."""
    try:
        root = find_project(Path.cwd(), Path(project) if project is not None else None)
        spec, _ = load_project(root, {})
    except SpecError:
        spec = None
    except UsageError:
        if project is not None:
            raise
        spec = None
    if spec is not None:
        return spec
    root = Path.cwd().resolve()
    folders = ProjectPaths(*(root / name for name in ("workflows", "agentcards", "schemas", "output")))
    return ProjectSpec(root, "", {}, DefaultsFile(), RunRulesFile(), folders, {}, {})


@contextmanager
def _at_hand(spec: InputSpec) -> Iterator[tuple[InputSpec, str]]:
    """The input as it can be opened, and its name; standard input lies in a file for as long."""
    if not spec.piped:
        yield spec, spec.shown
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            f"{STANDARD_INPUT}: nothing is piped in", remedy="Pipe rows in, as `cat rows.csv | agac data -`."
        )
    with tempfile.TemporaryDirectory(prefix="agac-data-") as folder:
        path = keep(sys.stdin.buffer, Path(folder))
        found = spec.format or format_of(path.name)
        if found is None:
            raise UsageError(
                f"{STANDARD_INPUT}: cannot tell the format of what is piped in",
                remedy="Add --format csv, or another of csv, tsv, json, jsonl, txt, parquet.",
            )
        yield replace(spec, path=path, format=found, piped=False), STANDARD_INPUT


def _files(spec: InputSpec) -> Iterable[Path]:
    if not spec.patterns:
        return [spec.path]
    return (spec.path / relative for relative in matching(spec.path, spec.patterns, spec.skipped))


def _looked_at(
    source: Source, rows: int, look_at: int
) -> tuple[Columns, list[dict[str, JSONValue]], list[str], tuple[int, int, bool]]:
    """The columns, the first rows, the first problems; how many rows were read, how many are unusable, whether all."""
    columns = Columns(source.columns())
    first: list[dict[str, JSONValue]] = []
    problems: list[str] = []
    looked_at = unusable = 0
    records = source.records()
    for record in islice(records, look_at):
        looked_at += 1
        if record.error is not None:
            unusable += 1
            if len(problems) < SHOWN_PROBLEMS:
                problems.append(record.error.message)
        elif record.data is not None:
            columns.see(record.data)
            if len(first) < rows:
                first.append(record.data)
    complete = looked_at < look_at or next(records, None) is None
    return columns, first, problems, (looked_at, unusable, complete)
