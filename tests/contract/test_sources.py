"""What every input promises, whatever it is read from: files, compressed files, several, databases, standard input.

A new source adds one line to `KINDS`; what formats of records in text promise besides is asked of `TEXT_FORMATS`.
"""

import csv
import gzip
import io
import json
import os
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, get_args

import duckdb
import pytest
import zstandard
from support.postgres import PostgresServer
from support.services import services
from support.soak import few, only_in_soak
from support.sources import opened as opened_file
from support.sources import write_sheets

from agac.core.errors import ErrorType, Where
from agac.data.files import Source
from agac.data.sources import FORMATS, keep, open_input, read_rows
from agac.spec.data_specs import InputFormat, InputSpec

Rows = list[dict[str, Any]]


def spec(path: Path, shown: str, found: InputFormat, **more: Any) -> InputSpec:
    return InputSpec(path, shown, found, None, "error", Where("w.yml"), **more)


def delimited(delimiter: str) -> Callable[..., str]:
    def text(rows: Rows, newline: str = "\n") -> str:
        target = io.StringIO()
        # a writer leaves a carriage return unquoted, which reads as a line end
        quoting = csv.QUOTE_ALL if any("\r" in str(row.get("text")) for row in rows) else csv.QUOTE_MINIMAL
        writer = csv.writer(target, delimiter=delimiter, lineterminator=newline, quoting=quoting)
        writer.writerow(rows[0] if rows else ["id", "text"])
        # a value that a format without null cannot write is left out at the end of the record
        writer.writerows([value for value in row.values() if value is not None] for row in rows)
        return target.getvalue()

    return text


csv_text, tsv_text = delimited(","), delimited("\t")


def jsonl_text(rows: Rows, newline: str = "\n") -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + newline for row in rows)


def json_text(rows: Rows, newline: str = "\n") -> str:
    elements = f",{newline}".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f"[{newline}{elements}{newline}]{newline}"


def whole(name: str, found: InputFormat, pack: Callable[[bytes], bytes], text: Callable[[Rows], str]) -> Any:
    def make(folder: Path, rows: Rows) -> InputSpec:
        (folder / name).write_bytes(pack(text(rows).encode()))
        return spec(folder / name, name, found)

    return make


def split(suffix: str, found: InputFormat, text: Callable[[Rows], str]) -> Any:
    """Three files in two folders, matched by one pattern."""

    def make(folder: Path, rows: Rows) -> InputSpec:
        third = -(-len(rows) // 3) or 1
        names = ("a/1", "a/2", "b/1")
        for number, name in enumerate(names):
            part = rows[number * third : (number + 1) * third]
            path = folder / f"{name}{suffix}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text(part) if part else text(rows[:1]).partition("\n")[0] + "\n" if found == "csv" else "")
        return spec(folder, f"**/*{suffix}", found, patterns=(f"**/*{suffix}",))

    return make


def listed(folder: Path, rows: Rows) -> InputSpec:
    half = len(rows) // 2
    (folder / "z.jsonl").write_text(jsonl_text(rows[:half]))
    (folder / "a.jsonl").write_text(jsonl_text(rows[half:]))
    return spec(folder, "z.jsonl, a.jsonl", "jsonl", patterns=("z.jsonl", "a.jsonl"))


def database(folder: Path, rows: Rows) -> InputSpec:
    columns = list(rows[0])
    with sqlite3.connect(folder / "rows.db") as connection:
        connection.execute(f"CREATE TABLE r ({', '.join(columns)})")
        marks = ", ".join("?" for _ in columns)
        connection.executemany(f"INSERT INTO r VALUES ({marks})", [tuple(row.values()) for row in rows])
    connection.close()
    return spec(folder / "rows.db", "sqlite://rows.db", "sqlite", statement="SELECT * FROM r ORDER BY rowid;")


def in_server(server: PostgresServer, folder: Path, rows: Rows) -> InputSpec:
    server.sql(f'CREATE TABLE "{folder.name}" (n bigint GENERATED ALWAYS AS IDENTITY, id text, text text)')
    to = f'COPY "{folder.name}" (id, text) FROM STDIN'
    with server.connect() as connection, connection.cursor() as cursor, cursor.copy(to) as copy:
        for row in rows:
            copy.write_row((row["id"], row.get("text")))
    statement = f'SELECT id, text FROM "{folder.name}" ORDER BY n; -- all'
    return spec(folder, f"{server.address}?query={statement}", "postgres", statement=statement)


def parquet(folder: Path, rows: Rows) -> InputSpec:
    source = folder / "rows.jsonl"
    source.write_text(jsonl_text(rows))
    told = "columns={id: 'VARCHAR', text: 'VARCHAR'}"
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT * FROM read_json('{source}', {told})) TO '{folder / 'rows.parquet'}' (ROW_GROUP_SIZE 2048)"
        )
    source.unlink()
    return spec(folder / "rows.parquet", "rows.parquet", "parquet")


def sheet(folder: Path, rows: Rows) -> InputSpec:
    write_sheets(folder / "rows.xlsx", {"Rows": [list(rows[0]), *(list(row.values()) for row in rows)]})
    return spec(folder / "rows.xlsx", "rows.xlsx", "xlsx")


def over(make: Callable[[Path, Rows], InputSpec]) -> Callable[[Path, Rows], InputSpec]:
    """The same rows by way of a statement."""
    return lambda folder, rows: replace(make(folder, rows), sql="SELECT * FROM input", scratch=folder / "scratch")


def piped(folder: Path, rows: Rows) -> InputSpec:
    return spec(keep(io.BytesIO(jsonl_text(rows).encode()), folder), "-", "jsonl")


def text_file(folder: Path, rows: Rows) -> InputSpec:
    (folder / "rows.txt").write_text("\n".join(row["text"] for row in rows), newline="")
    return spec(folder / "rows.txt", "rows.txt", "txt")


def whole_files(folder: Path, rows: Rows) -> InputSpec:
    for number, row in enumerate(rows, start=1):
        path = folder / f"{number // 1000:03}" / f"{number:06}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(row["text"], newline="")
    return spec(folder, "**/*.md", "files", patterns=("**/*.md",))


def as_lines(rows: Rows) -> Rows:
    return [{"line_number": number, "content": row["text"]} for number, row in enumerate(rows, start=1)]


def as_files(rows: Rows) -> Rows:
    return [
        {"path": f"{n // 1000:03}/{n:06}.md", "name": f"{n:06}.md", "content": row["text"]}
        for n, row in enumerate(rows, start=1)
    ]


def same(rows: Rows) -> Rows:
    return rows


@dataclass(frozen=True)
class Kind:
    """A kind of input, how one is made of rows, and what of them it gives back. `texts`: it
    holds nothing but texts; `lines`: a text is a line; `nul`: it may hold NUL. `most`: rows enough to show what
    grows."""

    name: str
    format: InputFormat
    make: Callable[[Path, Rows], InputSpec]
    gives: Callable[[Rows], Rows] = same
    texts: bool = False
    lines: bool = False
    nul: bool = True
    most: int = 6_000


def plain(content: bytes) -> bytes:
    return content


def in_utf_16(content: bytes) -> bytes:
    return content.decode().encode("utf-16")


KINDS = [
    Kind("csv", "csv", whole("rows.csv", "csv", plain, csv_text), texts=True),
    Kind("tsv", "tsv", whole("rows.tsv", "tsv", plain, tsv_text), texts=True),
    Kind("json", "json", whole("rows.json", "json", plain, json_text)),
    Kind("jsonl", "jsonl", whole("rows.jsonl", "jsonl", plain, jsonl_text)),
    Kind("csv in utf-16", "csv", whole("rows.csv", "csv", in_utf_16, csv_text), texts=True),
    Kind("csv.gz", "csv", whole("rows.csv.gz", "csv", gzip.compress, csv_text), texts=True),
    Kind("jsonl.gz", "jsonl", whole("rows.jsonl.gz", "jsonl", gzip.compress, jsonl_text)),
    Kind("jsonl.zst", "jsonl", whole("rows.jsonl.zst", "jsonl", zstandard.compress, jsonl_text)),
    Kind("pattern of csv", "csv", split(".csv", "csv", csv_text), texts=True),
    Kind("pattern of jsonl", "jsonl", split(".jsonl", "jsonl", jsonl_text)),
    Kind("list", "jsonl", listed),
    Kind("standard input", "jsonl", piped),
    Kind("sqlite", "sqlite", database),
    Kind("postgres", "postgres", in_server, nul=False),  # type: ignore[arg-type]  # the fixture gives the server
    Kind("parquet", "parquet", parquet),
    Kind("xlsx", "xlsx", sheet, most=3_000),
    Kind("sql over jsonl", "jsonl", over(whole("rows.jsonl", "jsonl", plain, jsonl_text))),
    Kind("sql over csv.gz", "csv", over(whole("rows.csv.gz", "csv", gzip.compress, csv_text)), texts=True),
    Kind("sql over parquet", "parquet", over(parquet)),
    Kind("txt", "txt", text_file, as_lines, texts=True, lines=True),
    Kind("files", "files", whole_files, as_files, texts=True, most=1_500),
]  # fmt: skip


def with_markers(kinds: Sequence[Kind]) -> list[Any]:
    """The kinds as parameters: that of the server is marked."""
    return [pytest.param(kind, marks=[services] if kind.format == "postgres" else [], id=kind.name) for kind in kinds]


some_kinds = pytest.mark.parametrize("kind", with_markers(few(KINDS, 3)), indirect=True)


@pytest.fixture(params=with_markers(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    if found.format == "postgres":
        return replace(found, make=partial(found.make, request.getfixturevalue("postgres")))
    return found


def numbered(count: int) -> Rows:
    return [{"id": f"r{number}", "text": f"text {number}"} for number in range(1, count + 1)]


def opened(kind: Kind, folder: Path, rows: Rows) -> Source:
    folder.mkdir(exist_ok=True)
    return open_input(kind.make(folder, rows), os.environ)


def data(source: Source) -> Iterable[Any]:
    return [record.data for record in source.records()]


def test_every_format_is_in_this_suite() -> None:
    assert {kind.format for kind in KINDS} == set(get_args(InputFormat))


def test_rows_come_in_order_and_ordinals_count_from_one(kind: Kind, tmp_path: Path) -> None:
    source = opened(kind, tmp_path, numbered(7))
    records = list(source.records())
    assert [record.ordinal for record in records] == [1, 2, 3, 4, 5, 6, 7]
    assert [record.data for record in records] == kind.gives(numbered(7))
    assert [record.error for record in records] == [None] * 7
    assert all(list(source.records(start)) == records[start:] for start in range(9))
    assert all(left == right for left, right in zip(source.records(), source.records(), strict=True))  # at once


TEXTS = [
    "ünïcödé 日本語 🦊 e\u0301", "line\u2028and\u2029paragraph\x85next\x0bline\x0c", "a NUL \x00 inside",
    'quotes " and "" and \\ and \\n', "two\nlines, and, commas\tand tabs\r\nand CRLF\rand CR", "  spaces around  ",
    "\ufeffa byte order mark inside", "${not.a.placeholder}", "]}],{", "0012", "2024-01-31", "NaN", "1e5",
]  # fmt: skip


def test_texts_arrive_as_they_were_written(kind: Kind, tmp_path: Path) -> None:
    texts = [text for text in TEXTS if not (kind.lines and set("\r\n") & set(text))]  # a line holds no line end
    texts = [text for text in texts if kind.nul or "\0" not in text]
    rows = [{"id": f"{n}{place}", "text": f"{place}{text}"} for n, text in enumerate(texts) for place in ("", "x")]
    if kind.format == "files":  # a mark at the beginning of a file is no part of it
        rows = [row for row in rows if not row["text"].startswith("\ufeff")]
    if not kind.lines and kind.format != "xlsx":  # blank lines are no rows, an empty text is an empty cell
        rows.append({"id": "empty, and no null", "text": ""})
    assert data(opened(kind, tmp_path, rows)) == kind.gives(rows)


def test_one_reading_may_be_gone_on_with_by_other_threads_and_given_up(kind: Kind, tmp_path: Path) -> None:
    """As the engine does: each chunk is read in whatever thread is free."""
    source = opened(kind, tmp_path, numbered(5))
    records = source.records()
    found = []
    for _ in range(4):
        with ThreadPoolExecutor(1) as threads:
            found.append(threads.submit(next, records).result().data)
    records.close()  # type: ignore[attr-defined]  # what a library opens once is open from here on
    assert found == kind.gives(numbered(5))[:4]
    if Path("/proc/self/fd").exists():
        before = sum(1 for _ in Path("/proc/self/fd").iterdir())
        next(records := source.records())
        records.close()  # type: ignore[attr-defined]
        assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


@some_kinds
def test_memory_does_not_grow_with_the_number_of_rows(kind: Kind, tmp_path: Path) -> None:
    def peak(count: int) -> int:
        chance = Random(count)
        rows = [{**row, "text": chance.randbytes(50).hex()} for row in numbered(count)]  # more than buffers hold
        source = opened(kind, tmp_path / str(count), rows)
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_rows(source, None)) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    third = kind.most // 3
    peak(third)  # what is made once (compiled patterns, decoders) is not counted
    # a block more or less of a library's is no growth; rows that were held would be megabytes
    elements = 150 * kind.most if kind.format == "xlsx" else 0  # openpyxl keeps the bare element of each row
    assert peak(kind.most) < peak(third + 1) * 1.1 + 300_000 + elements


@some_kinds
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="bytes read are counted in /proc")
def test_the_first_row_comes_before_the_rest_is_read(kind: Kind, tmp_path: Path) -> None:
    if (kind.name.startswith("sql") and kind.format != "parquet") or kind.format == "xlsx":
        pytest.skip("a statement may need the last row for its first one, a sheet texts that stand apart from its rows")
    chance = Random(1)
    rows = [
        {"id": f"r{n}", "text": chance.randbytes(300).hex()}
        for n in range(1, {"files": 2_000, "parquet": 40_000}.get(kind.format, 8_000))
    ]
    ready = kind.make(tmp_path, rows)
    total = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())

    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    next(opened(kind, tmp_path.with_name("warm"), numbered(2)).records())  # libraries are loaded once
    before = bytes_read()
    assert next(open_input(ready, os.environ).records()).data == kind.gives(rows[:1])[0]
    # duckdb reads some row groups ahead
    at_once = 2_000_000 if kind.format in (*TEXT_FORMATS, "postgres") else total * 0.6
    assert bytes_read() - before < at_once


# Formats of records in text.

BOM = b"\xef\xbb\xbf"
MARK = "THE-BAD-PLACE"
TEXT_FORMATS: dict[str, Callable[..., str]] = {"csv": csv_text, "tsv": tsv_text, "json": json_text, "jsonl": jsonl_text}


@pytest.fixture(params=TEXT_FORMATS)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Writes rows in one of the formats; gives the path."""

    def write(rows: Rows, newline: str = "\n", *, before: bytes = b"") -> Path:
        path = tmp_path / f"rows.{request.param}"
        path.write_bytes(before + TEXT_FORMATS[request.param](rows, newline).encode())
        return path

    return write


def source_of(path: Path, **how: str) -> Source:
    return opened_file(path, f"data/{path.name}", **how)


def test_every_format_of_records_in_text_is_in_this_suite() -> None:
    assert FORMATS.keys() - {"txt", "parquet", "xlsx"} == TEXT_FORMATS.keys()


def test_each_record_knows_the_line_on_which_it_begins(written: Callable[..., Path]) -> None:
    source = source_of(path := written(numbered(3)))
    first = 1 if path.suffix == ".jsonl" else 2
    assert [record.line for record in source.records()] == [first, first + 1, first + 2]
    assert source.columns() == (("id", "text") if path.suffix in (".csv", ".tsv") else None)
    assert source.describe() == f"data/{path.name}"


@only_in_soak
def test_a_value_of_ten_megabytes_is_read(written: Callable[..., Path]) -> None:
    rows = [{"id": "1", "text": "x"}, {"id": "2", "text": 'é said "it broke"\n' * 600_000}, {"id": "3", "text": "y"}]
    assert data(source_of(written(rows))) == rows


@pytest.mark.parametrize("newline", ["\r\n", "\n\n", "\r\n\r\n"])
def test_line_ends_blank_lines_and_a_byte_order_mark_are_not_part_of_the_data(
    written: Callable[..., Path], newline: str
) -> None:
    assert data(source_of(written(numbered(3), newline, before=BOM))) == numbered(3)
    assert data(source_of(written([], newline))) == []


def test_bytes_that_are_not_utf8_cost_the_one_record_that_holds_them(written: Callable[..., Path]) -> None:
    path = written([{**row, "text": f"caf{MARK}"} if row["id"] == "r4" else row for row in numbered(6)])
    path.write_bytes(path.read_bytes().replace(MARK.encode(), b"\xe9"))
    source = source_of(path)
    records = list(source.records())
    assert [record.data for record in records] == [row if row["id"] != "r4" else None for row in numbered(6)]
    bad = records[3]
    assert bad.ordinal == 4
    assert bad.error is not None
    assert bad.error.type is ErrorType.INVALID_ROW
    assert bad.error.message.startswith(f"data/{path.name}:{bad.line}: ")
    assert "byte 0xe9 at offset " in bad.error.message
    assert "is not UTF-8; save the file as UTF-8" in bad.error.message
    assert all(list(source.records(start)) == records[start:] for start in range(8))
    rows = list(read_rows(source, "id"))
    assert [row.id for row in rows] == ["r1", "r2", "r3", 4, "r5", "r6"]
    assert rows[3].error == bad.error


@pytest.mark.parametrize(
    ("encoding", "bad"), [("cp1252", b"\x81"), ("shift_jis", b"\xff"), ("utf-16-le", b"\x01\xdc"), (None, b"\x01\xdc")]
)
def test_bytes_without_a_meaning_in_the_encoding_cost_the_one_record(
    written: Callable[..., Path], encoding: str | None, bad: bytes
) -> None:
    path = written([{**row, "text": f"caf{MARK}"} if row["id"] == "r4" else row for row in numbered(6)])
    before, after = path.read_text("utf-8").split(MARK)
    path.write_bytes(before.encode(encoding or "utf-16") + bad + after.encode(encoding or "utf-16-le"))
    records = list(source_of(path, encoding=encoding).records())
    assert [record.data for record in records] == [row if row["id"] != "r4" else None for row in numbered(6)]
    assert (error := records[3].error) is not None
    assert error.message.startswith(f"data/{path.name}:{records[3].line}: ")
    assert f"byte 0x{bad[-1]:02x} at character " in error.message
    found = f"{encoding}; save the file as UTF-8, or say how it is written: `encoding: cp1252`"
    marked = "UTF-16, as the file's byte order mark says that it is; save the file as UTF-8"
    assert f" is not {found if encoding else marked}" in error.message


def test_a_file_that_is_cut_in_the_middle_of_a_character_says_so(written: Callable[..., Path]) -> None:
    path = written([{"id": "r1", "text": "x"}, {"id": "r2", "text": "🦊"}])
    content = path.read_bytes()
    path.write_bytes(content[: content.index("🦊".encode()) + 2])
    first, second = source_of(path).records()
    assert (first.data, second.ordinal) == ({"id": "r1", "text": "x"}, 2)
    assert second.error is not None


def test_utf16_is_known_by_its_mark(written: Callable[..., Path]) -> None:
    path = written(numbered(2))
    text = path.read_text()
    for encoding in ("utf-16-le", "utf-16-be"):
        path.write_bytes(f"\ufeff{text}".encode(encoding))
        assert [record.data for record in source_of(path).records()] == numbered(2)


def test_ids_are_texts_of_the_id_field_or_numbers_of_rows(written: Callable[..., Path]) -> None:
    source = source_of(written(numbered(4)))
    assert [row.id for row in read_rows(source, "id")] == ["r1", "r2", "r3", "r4"]
    assert [row.id for row in read_rows(source, None)] == [1, 2, 3, 4]
    assert [row.ordinal for row in read_rows(source, "id", 2)] == [3, 4]


def test_a_row_without_its_id_fails_under_its_number_and_keeps_its_data(written: Callable[..., Path]) -> None:
    rows = [{"id": "a", "text": "x"}, {"id": "", "text": "y"}, {"id": " ", "text": "z"}]
    path = written(rows)
    found = list(read_rows(source_of(path), "id"))
    assert [row.id for row in found] == ["a", 2, 3]
    assert [row.data for row in found] == rows
    assert found[0].error is None
    for row in found[1:]:
        assert row.error is not None
        assert row.error.type is ErrorType.MISSING_ID_FIELD
        assert row.error.message.startswith(f"data/{path.name}:")
        assert "is empty" in row.error.message
