"""Sheets: which one, its header, and what the cells are in JSON."""

import zipfile
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from pathlib import Path
from random import Random
from typing import Any

import openpyxl
import pytest
from support.sources import opened, write_sheets

from agac.core.errors import AgacError, ErrorType, UsageError
from agac.data.sources import read_rows

MIDNIGHT = datetime.fromisoformat("2024-02-29")
SHEETS: dict[str, Any] = {
    "Überblick": [["a"], ["x"]],
    "Prices": [["Report 2024"], [], ["id", " price ", None], ["p1", 1], [None, "", None], ["p2", 2.5, "  "]],
}


def values(path: Path, **how: Any) -> list[Any]:
    return [record.data for record in opened(path, **how).records()]


def test_a_sheet_is_named_by_its_name_or_number_and_its_header_by_its_row(tmp_path: Path) -> None:
    write_sheets(path := tmp_path / "b.xlsx", SHEETS)
    rows = [{"id": "p1", "price": 1}, {"id": "p2", "price": 2.5}]
    assert values(path) == values(path, sheet=1) == values(path, sheet="Überblick") == [{"a": "x"}]
    assert values(path, sheet=2, header_row=3) == values(path, sheet="Prices", header_row=3) == rows
    assert opened(path, sheet=2, header_row=3).columns() == ("id", "price")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"sheet": "Price"}, "b.xlsx: there is no sheet 'Price'"),
        ({"sheet": 3}, "b.xlsx: there is no sheet 3"),
        ({"sheet": 2, "header_row": 2}, 'b.xlsx, sheet "Prices":2: there is no header'),
        ({"sheet": "Twice"}, 'b.xlsx, sheet "Twice":2: the header names "a" more than once'),
    ],
)
def test_what_makes_a_sheet_unusable_is_told(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    write_sheets(tmp_path / "b.xlsx", {**SHEETS, "Twice": [[], ["a", "b", "a"]]} if how.get("sheet") != 3 else SHEETS)
    with pytest.raises(UsageError) as raised:
        opened(tmp_path / "b.xlsx", **how)
    assert raised.value.message == message


def test_cells_are_what_they_hold(tmp_path: Path) -> None:
    cells = {
        "whole": (3.0, 3), "part": (0.1, 0.1), "large": (1e300, 1e300), "exact": (2**53 - 1, 2**53 - 1),
        "yes": (True, True), "day": (date(2024, 2, 29), "2024-02-29"), "at": (MIDNIGHT, "2024-02-29T00:00:00"),
        "moment": (MIDNIGHT + timedelta(hours=10.5), "2024-02-29T10:30:00"), "hour": (time(1, 2), "01:02:00"),
        "long": (timedelta(hours=36), 1.5), "text": (" 007 ", " 007 "), "never computed": ("=1+1", None),
        "lines": ("a\r\nb", "a\r\nb"), "none": (None, None),
    }  # fmt: skip
    book = openpyxl.Workbook()
    book.active.append([*cells])
    book.active.append([one for one, _ in cells.values()])
    for cell in book.active[2]:
        if isinstance(cell.value, str) and "\r" in cell.value:
            cell.value = cell.value.replace("\r", "_x000D_")
    book.active.merge_cells("B4:C5")
    book.active["B4"] = "merged"
    book.save(tmp_path / "b.xlsx")
    first, second = values(tmp_path / "b.xlsx")
    assert first == {name: value for name, (_, value) in cells.items()}
    assert [type(value) for value in first.values()][:3] == [int, float, float]
    assert second == {**dict.fromkeys(cells), "part": "merged"}


def test_a_formula_is_the_value_that_was_saved(tmp_path: Path) -> None:
    write_sheets(tmp_path / "a.xlsx", {"S": [["sum"], ["=1+1"], [7]]})
    with zipfile.ZipFile(tmp_path / "a.xlsx") as packed, zipfile.ZipFile(tmp_path / "b.xlsx", "w") as target:
        for name in packed.namelist():
            target.writestr(
                name, packed.read(name).replace(b"<v />", b"<v>2</v>").replace(b"<v>7</v>", b"<v>-1E999</v>")
            )
    first, second = opened(tmp_path / "b.xlsx").records()
    assert first.data == {"sum": 2}
    assert "the cell A3 holds the error -inf; correct the cell" in str(second.error)


def test_a_row_that_cannot_be_used_is_told_with_sheet_row_and_cell(tmp_path: Path) -> None:
    cells = [["id", "n"], [], ["a", "#N/A"], ["b", 1, "note"], ["c", 2], [None, 3]]
    write_sheets(path := tmp_path / "b.xlsx", {"S": cells})
    rows = list(read_rows(opened(path), "id"))
    assert [(row.ordinal, row.id) for row in rows] == [(1, 1), (2, 2), (3, "c"), (4, 4)]
    assert rows[2].data == {"id": "c", "n": 2}
    messages = [row.error.message.removeprefix('b.xlsx, sheet "S":') for row in rows if row.error]
    assert messages == [
        "3: the cell B3 holds the error #N/A; correct the cell, or clear it",
        "4: the cell C4 has a value, but its column has no name; name it in the header, or clear the cell",
        '6: the id field "id" is null; an id is a string that is not empty, or an integer',
    ]
    assert [row.error and row.error.type for row in rows[:2]] == [ErrorType.INVALID_ROW] * 2


def test_a_date_that_no_calendar_has_is_said_to_be_one(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["id", "day"], ["a", 3_000_000], ["b", 45_000], ["c", "#VALUE!"]):
        book.active.append(row)
    for place in ("B2", "B3"):
        book.active[place].number_format = "yyyy-mm-dd"
    book.save(path := tmp_path / "b.xlsx")
    rows = list(opened(path).records())
    assert rows[1].data == {"id": "b", "day": "2023-03-15"}
    words = "the cell B2 holds a date that no calendar has, such as one after 9999-12-31; correct it, or clear it"
    assert words in str(rows[0].error)
    assert "the cell B4 holds the error #VALUE!; correct the cell, or clear it" in str(rows[2].error)


def test_broken_files_are_told_and_never_a_traceback(tmp_path: Path) -> None:
    write_sheets(path := tmp_path / "b.xlsx", SHEETS)
    whole, chance = path.read_bytes(), Random(3)
    for number in range(150):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content[: chance.randrange(len(content))] if number % 3 == 0 else content)
        with suppress(AgacError):
            values(path, sheet=2)
