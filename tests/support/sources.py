"""Files as sources of rows, without a project."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import openpyxl
from openpyxl.utils.escape import escape

from agac.data.files import Source
from agac.data.sources import open_source
from agac.spec.inputs import format_of


def opened(path: Path, shown: str = "", **how: str) -> Source:
    """A file, read as its name tells; `shown` is its name in messages, by default its own."""
    found = format_of(path.name)
    assert found is not None
    return open_source(path, found, shown or path.name, **how)


def write_sheets(path: Path, sheets: Mapping[str, Iterable[Iterable[Any]]]) -> None:
    """An xlsx file with these sheets, in which control characters are written as spreadsheets write them."""
    book = openpyxl.Workbook(write_only=True)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            values = [escape(cell).replace("\0", "_x0000_") if isinstance(cell, str) else cell for cell in row]
            sheet.append(values)
    book.save(path)
