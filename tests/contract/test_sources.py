"""What formats of records in text promise beside what every source does (test_every_source.py). A new format adds one
line to `SOURCES`."""

import csv
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agac.core.errors import ErrorType, UsageError
from agac.data.files import Source
from agac.data.sources import FORMATS, open_source, read_rows

Rows = list[dict[str, Any]]
BOM = b"\xef\xbb\xbf"
LONG = 'é said "it broke"\n' * 600_000  # more than ten megabytes
MARK = "THE-BAD-PLACE"


def delimited(delimiter: str) -> Callable[[Rows, str], str]:
    def text(rows: Rows, newline: str) -> str:
        target = io.StringIO()
        writer = csv.writer(target, delimiter=delimiter, lineterminator=newline)
        writer.writerow(rows[0] if rows else ["id", "text"])
        # a value that a format without null cannot write is left out at the end of the record
        writer.writerows([value for value in row.values() if value is not None] for row in rows)
        return target.getvalue()

    return text


def json_lines(rows: Rows, newline: str) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + newline for row in rows)


def json_array(rows: Rows, newline: str) -> str:
    return (
        f"[{newline}" + f",{newline}".join(json.dumps(row, ensure_ascii=False) for row in rows) + f"{newline}]{newline}"
    )


@dataclass(frozen=True)
class Member:
    """A format, how its text is made from rows, and what it can hold."""

    format: str
    text: Callable[[Rows, str], str]
    nested: bool
    header: bool

    def write(self, folder: Path, rows: Rows, *, newline: str = "\n", bom: bool = False) -> Path:
        path = folder / f"rows.{self.format}"
        path.write_bytes((BOM if bom else b"") + self.text(rows, newline).encode())
        return path


SOURCES = [
    Member("csv", delimited(","), nested=False, header=True),
    Member("tsv", delimited("\t"), nested=False, header=True),
    Member("json", json_array, nested=True, header=False),
    Member("jsonl", json_lines, nested=True, header=False),
]


@pytest.fixture(params=SOURCES, ids=lambda member: member.format)
def member(request: pytest.FixtureRequest) -> Member:
    found: Member = request.param
    return found


def opened(path: Path) -> Source:
    return open_source(path, None, f"data/{path.name}")


def data(path: Path) -> list[dict[str, Any] | None]:
    return [record.data for record in opened(path).records()]


def numbered(count: int) -> Rows:
    return [{"id": f"r{number}", "text": f"text {number}"} for number in range(1, count + 1)]


def test_every_format_of_records_in_text_is_in_this_suite() -> None:
    """Lines of text and parquet promise less: test_every_source.py."""
    assert sorted(FORMATS.keys() - {"txt", "parquet"}) == sorted(member.format for member in SOURCES)


def test_each_record_knows_the_line_on_which_it_begins(member: Member, tmp_path: Path) -> None:
    first = 1 if member.format == "jsonl" else 2
    lines = [record.line for record in opened(member.write(tmp_path, numbered(3))).records()]
    assert lines == [first, first + 1, first + 2]


def test_a_value_of_ten_megabytes_is_read(member: Member, tmp_path: Path) -> None:
    rows = [
        {"id": "small", "text": "x"},
        {"id": "large", "text": LONG},
        {"id": "last", "text": "y"},
    ]
    assert data(member.write(tmp_path, rows)) == rows


def test_a_null_is_a_null(member: Member, tmp_path: Path) -> None:
    rows = [{"id": "full", "text": "x"}, {"id": "short", "text": None}]
    assert data(member.write(tmp_path, rows)) == rows


@pytest.mark.parametrize("member", [member for member in SOURCES if member.nested], ids=lambda member: member.format)
def test_nested_values_keep_their_shape(member: Member, tmp_path: Path) -> None:
    rows = [{"id": 1, "deep": {"list": [1, 2.5, True, None, {"x": []}], "empty": {}}, "big": 2**70, "": "no name"}]
    assert data(member.write(tmp_path, rows)) == rows


def test_a_byte_order_mark_is_not_part_of_the_data(member: Member, tmp_path: Path) -> None:
    assert data(member.write(tmp_path, numbered(2), bom=True)) == numbered(2)


@pytest.mark.parametrize("newline", ["\r\n", "\n\n", "\r\n\r\n"])
def test_line_ends_and_blank_lines_are_not_part_of_the_data(member: Member, tmp_path: Path, newline: str) -> None:
    assert data(member.write(tmp_path, numbered(3), newline=newline)) == numbered(3)


def test_a_file_without_rows_gives_none(member: Member, tmp_path: Path) -> None:
    assert data(member.write(tmp_path, [])) == []


def test_columns_are_declared_where_there_is_a_header(member: Member, tmp_path: Path) -> None:
    columns = opened(member.write(tmp_path, numbered(1))).columns()
    assert columns == (("id", "text") if member.header else None)


def test_the_source_is_named_as_the_user_wrote_it(member: Member, tmp_path: Path) -> None:
    assert opened(member.write(tmp_path, [])).describe() == f"data/rows.{member.format}"


def test_starting_later_gives_the_same_records_without_the_first(member: Member, tmp_path: Path) -> None:
    source = opened(with_one_bad_row(member, tmp_path))
    every = list(source.records())
    for start in range(len(every) + 2):
        assert list(source.records(start)) == every[start:]


def with_one_bad_row(member: Member, folder: Path) -> Path:
    """Six rows; a byte of the fourth is not UTF-8."""
    rows = numbered(6)
    rows[3]["text"] = f"caf{MARK}"
    path = member.write(folder, rows)
    path.write_bytes(path.read_bytes().replace(MARK.encode(), b"\xe9"))
    return path


def test_bytes_that_are_not_utf8_cost_the_one_record_that_holds_them(member: Member, tmp_path: Path) -> None:
    records = list(opened(with_one_bad_row(member, tmp_path)).records())
    bad = records[3]
    assert [record.data for record in records if record.ordinal != 4] == [
        row for row in numbered(6) if row["id"] != "r4"
    ]
    assert bad.ordinal == 4
    assert bad.data is None
    assert bad.error is not None
    assert bad.error.type is ErrorType.INVALID_ROW
    assert bad.error.message.startswith(f"data/rows.{member.format}:{bad.line}: ")
    assert "byte 0xe9 at offset " in bad.error.message
    assert "is not UTF-8; save the file as UTF-8" in bad.error.message


def test_a_file_that_is_cut_in_the_middle_of_a_character_says_so(member: Member, tmp_path: Path) -> None:
    path = member.write(tmp_path, [{"id": "r1", "text": "x"}, {"id": "r2", "text": "🦊"}])
    content = path.read_bytes()
    path.write_bytes(content[: content.index("🦊".encode()) + 2])
    records = list(opened(path).records())
    assert [record.ordinal for record in records] == [1, 2]
    assert records[0].data == {"id": "r1", "text": "x"}
    assert records[1].error is not None


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_refused_with_the_remedy(member: Member, tmp_path: Path, encoding: str) -> None:
    path = tmp_path / f"rows.{member.format}"
    path.write_bytes(("\ufeff" + member.text(numbered(2), "\n")).encode(encoding))
    with pytest.raises(UsageError, match=r"rows\.\w+: the file is UTF-16, agac reads UTF-8") as caught:
        opened(path)
    assert caught.value.remedy == "Save the file as UTF-8."


def test_a_missing_file_is_refused_and_a_near_name_proposed(member: Member, tmp_path: Path) -> None:
    member.write(tmp_path, [])
    with pytest.raises(UsageError, match=r"^data/rowz\.\w+: no such file$") as caught:
        open_source(tmp_path / f"rowz.{member.format}", None, f"data/rowz.{member.format}")
    assert caught.value.remedy == f"Did you mean data/rows.{member.format}?"


def test_a_folder_is_refused(member: Member, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder, not a file"):
        open_source(tmp_path, member.format, "data")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_because_runs_read_their_input_again(member: Member, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="is not a regular file") as caught:
        open_source(path, member.format, "pipe")
    assert caught.value.remedy is not None
    assert "a run reads its input again" in caught.value.remedy


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="bytes read are counted in /proc")
def test_the_first_row_comes_before_the_rest_of_the_file_is_read(member: Member, tmp_path: Path) -> None:
    path = member.write(tmp_path, numbered(50_000))
    os.truncate(path, 1 << 30)  # sparse: it takes no room

    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = bytes_read()
    records = opened(path).records()
    assert next(records).data == numbered(1)[0]
    assert bytes_read() - before < 2_000_000


@pytest.fixture
def ids(member: Member, tmp_path: Path) -> Callable[[Rows, str | None], list[Any]]:
    def read(rows: Rows, id_field: str | None) -> list[Any]:
        return [row.id for row in read_rows(opened(member.write(tmp_path, rows)), id_field)]

    return read


def test_the_id_field_gives_string_ids(ids: Callable[[Rows, str | None], list[Any]]) -> None:
    assert ids(numbered(3), "id") == ["r1", "r2", "r3"]


def test_without_an_id_field_the_ordinal_is_the_id(ids: Callable[[Rows, str | None], list[Any]]) -> None:
    assert ids(numbered(3), None) == [1, 2, 3]


def test_a_row_without_its_id_fails_under_its_number_and_keeps_its_data(member: Member, tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "x"}, {"id": "", "text": "y"}, {"id": " ", "text": "z"}]
    found = list(read_rows(opened(member.write(tmp_path, rows)), "id"))
    assert [row.id for row in found] == ["a", 2, 3]
    assert [row.data for row in found] == rows
    assert found[0].error is None
    for row in found[1:]:
        assert row.error is not None
        assert row.error.type is ErrorType.MISSING_ID_FIELD
        assert row.error.message.startswith(f"data/rows.{member.format}:")
        assert "is empty" in row.error.message


def test_a_bad_record_is_a_row_under_its_number(member: Member, tmp_path: Path) -> None:
    path = with_one_bad_row(member, tmp_path)
    found = list(read_rows(opened(path), "id"))
    assert [row.id for row in found] == ["r1", "r2", "r3", 4, "r5", "r6"]
    assert found[3].error is not None
    assert found[3].error.type is ErrorType.INVALID_ROW


def test_rows_can_start_later(member: Member, tmp_path: Path) -> None:
    source = opened(member.write(tmp_path, numbered(4)))
    assert [row.ordinal for row in read_rows(source, "id", 2)] == [3, 4]
