"""How many rows a run will meet, without reading its input for long: counted in small files, else estimated."""

from __future__ import annotations

from pathlib import Path

from agac.api.checking import Checked
from agac.api.selecting import count_rows
from agac.api.watching import RowCount
from agac.core.errors import AgacError
from agac.plan.plan import Selection

COUNTED_BYTES = 8 * 1024 * 1024
"""A file up to this size is read for its count: a tenth of a second beside the first calls."""

SAMPLE_BYTES = 4 * 1024 * 1024
"""Of a larger one so much of its beginning is read, and its rows are taken to be of even length."""

QUOTING = frozenset({".csv", ".tsv"})
LINES = QUOTING | {".jsonl", ".ndjson", ".txt"}
"""Files in which a line end ends a row, unless it is quoted in those that quote."""


def estimated_rows(checked: Checked, selection: Selection) -> RowCount | None:
    """How many rows are selected; None when only reading all of a large input, or a stream, would tell."""
    path = Path(checked.workflow.input.path)
    try:
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            return None
        if size <= COUNTED_BYTES:
            return RowCount(count_rows(checked, selection), exact=True)
        if path.suffix.lower() not in LINES:
            return None
        with path.open("rb") as file:
            sample = file.read(SAMPLE_BYTES)
    except (OSError, AgacError):  # whoever reads the rows meets it too, and says it
        return None
    lines = lines_outside_quotes(sample) if path.suffix.lower() in QUOTING else sample.count(b"\n")
    rows = max(0, round(lines * size / len(sample)) - selection.offset)
    return RowCount(selection.taken(rows), exact=False)


def lines_outside_quotes(text: bytes) -> int:
    """Line ends that are not within double quotes: csv records may go on over several lines."""
    return sum(part.count(b"\n") for part in text.split(b'"')[::2])
