"""Sheets of xlsx files, read row by row through openpyxl."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date, datetime, time, timedelta
from math import inf
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError
from zipfile import BadZipFile

from agac.core.errors import (
    AgacError,
    ErrorType,
    RowError,
    UsageError,
    did_you_mean,
    lack_of,
    sentence,
)
from agac.core.types import JSONValue
from agac.data.files import FileSource, Record
from agac.data.json_formats import quoted, refuse_repeated

# A cell is what it holds, not how it is shown: texts, booleans, numbers (a spreadsheet has one
# kind, so 3.0 is 3), dates and times as ISO texts, durations in days, an empty cell null. A formula
# is the value that it had when the file was saved. Of merged cells the first has the value. A cell
# with an error makes its row unusable.

_BROKEN = (
    AttributeError,
    BadZipFile,
    EOFError,
    LookupError,
    NotImplementedError,
    ParseError,
    TypeError,
    ValueError,
)
"""What openpyxl raises for files that are no workbooks, besides zlib's own."""

_EXACT = 1 << 53


class XlsxSource(FileSource):
    """A sheet: by its name, by its number from 1, else the first. `header_row` names the columns,
    counted as the spreadsheet counts rows; else the first row that is not empty. Rows without any
    value are no records. Raises UsageError when the file is no workbook, has no such sheet or no
    usable header, or when openpyxl is missing."""

    def __init__(
        self, path: Path, shown: str, sheet: str | int | None = None, header_row: int | None = None
    ) -> None:
        super().__init__(path, shown)
        lack = lack_of(f"{shown}: reading xlsx", "openpyxl")
        if lack:
            raise UsageError(lack, remedy="Or save the sheet as csv.")
        self._wanted = sheet
        self._header_row = header_row
        with self._sheet() as found:
            self._place = f"{shown}, sheet {quoted(found.title)}"
            self._names, self._begin = self._header(found)
        self._columns = tuple(filter(None, self._names))

    def records(self, start: int = 0) -> Iterator[Record]:
        with self._sheet() as sheet:
            if self._header(sheet) != (self._names, self._begin):
                raise AgacError(
                    f"{self._place}: the header has changed since it was read", remedy="Run again."
                )
            ordinal = 0
            for line, cells in enumerate(
                sheet.iter_rows(min_row=self._begin + 1), start=self._begin + 1
            ):
                ordinal += (any_value := any(cell.value not in (None, "") for cell in cells))
                if any_value and ordinal > start:
                    yield self._record(
                        ordinal, line, [cell for cell in cells if cell.value is not None]
                    )

    def _record(self, ordinal: int, line: int, cells: list[Any]) -> Record:
        from openpyxl.styles.numbers import is_datetime  # type: ignore[import-untyped]

        data: dict[str, JSONValue] = dict.fromkeys(self._columns)
        for cell in cells:
            if cell.column <= len(self._names):
                name = self._names[cell.column - 1]
            else:
                name = ""
            is_error = cell.data_type == "e" or cell.value in (inf, -inf)
            if is_error:
                problem = f"holds the error {cell.value}; correct the cell, or clear it"
            else:
                problem = ""
            # what openpyxl makes of such numbers
            if cell.value == "#VALUE!" and is_datetime(cell.number_format):
                problem = (
                    "holds a date that no calendar has, such as one after 9999-12-31; "
                    "correct it, or clear it"
                )
            if not name and str(cell.value).strip():
                problem = (
                    "has a value, but its column has no name; name it in the header, or "
                    "clear the cell"
                )
            if problem:
                message = f"{self._place}:{line}: the cell {cell.coordinate} {problem}"
                return Record(
                    ordinal, None, RowError(ErrorType.INVALID_ROW, message), line, self._place
                )
            if name:
                data[name] = _value(cell)
        return Record(ordinal, data, None, line, self._place)

    def _header(self, sheet: Any) -> tuple[list[str], int]:
        """Returns the name of each column, empty if it has none, and the row that names them."""
        first = self._header_row or 1
        last = self._header_row
        rows = enumerate(sheet.iter_rows(min_row=first, max_row=last), start=first)
        titles = (([str(_value(cell)).strip() for cell in cells], line) for line, cells in rows)
        names, line = next((found for found in titles if any(found[0])), ([], first))
        if not names:
            remedy = "Write the column names above the rows, or say with header_row where they are."
            raise UsageError(f"{self._place}:{line}: there is no header", remedy=remedy)
        refuse_repeated(f"{self._place}:{line}: the header names", filter(None, names))
        return names, line

    @contextmanager
    def _sheet(self) -> Iterator[Any]:
        """Opens the sheet. Raises UsageError if there is none of that name, AgacError if it cannot
        be read."""
        import openpyxl  # type: ignore[import-untyped]

        # it warns of what it leaves out: styles, charts, rules
        warnings.filterwarnings("ignore", module="openpyxl")
        try:
            with (
                self._opened() as file,
                closing(openpyxl.load_workbook(file, read_only=True, data_only=True)) as book,
            ):
                sheets = {str(sheet.title): sheet for sheet in book.worksheets}
                wanted = 1 if self._wanted is None else self._wanted
                if isinstance(wanted, int):
                    by_number = list(sheets)[wanted - 1 : wanted]
                else:
                    by_number = [wanted]
                sheet = next((sheets[name] for name in by_number if name in sheets), None)
                if sheet is None:
                    remedy = sentence(did_you_mean(str(wanted), sheets, "the sheets"))
                    raise UsageError(f"{self._shown}: there is no sheet {wanted!r}", remedy=remedy)
                sheet.reset_dimensions()  # what a file says of its size may be wrong
                yield sheet
        except (*_BROKEN, zlib.error) as error:
            said = f"cannot be read as xlsx: {str(error) or type(error).__name__}".partition("\n")[
                0
            ]
            remedy = "Open it in a spreadsheet program without a password and save it as xlsx."
            raise AgacError(f"{self._shown}: {said}", remedy=remedy) from error


def _value(cell: Any) -> JSONValue:
    """JSON of a cell; of one that is empty, or has an error, an empty text."""
    from openpyxl.styles.numbers import is_datetime
    from openpyxl.utils.escape import unescape  # type: ignore[import-untyped]

    match value := cell.value:
        case _ if value is None or cell.data_type == "e":
            return ""
        case float() if value.is_integer() and abs(value) < _EXACT:
            return int(value)
        case datetime() if value.time() == time() and is_datetime(cell.number_format) == "date":
            return value.date().isoformat()
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value / timedelta(days=1)
        case bool() | int() | float():
            return value
    return str(unescape(str(value)))  # _x000D_ is a carriage return
