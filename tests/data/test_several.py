"""Several files as one input: numbers that run on, headers that have to agree, messages that name the file."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from agac.core.errors import AgacError, UsageError, Where
from agac.data.files import Source
from agac.data.sources import open_input, read_rows
from agac.spec.data_specs import InputSpec


def opened(root: Path, *patterns: str, found: Any = "csv", id_field: str | None = None) -> Source:
    spec = InputSpec(root, ", ".join(patterns), found, id_field, "error", Where("w.yml"), patterns=patterns)
    return open_input(spec)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(name: str, content: str | bytes) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def test_columns_may_stand_in_any_order_and_a_file_may_come_later(tmp_path: Path, write: Any) -> None:
    write("1.csv", "id,text\na,x\n")
    write("2.csv", "text,id\ny,b\n")
    source = opened(tmp_path, "*.csv")
    assert source.columns() == ("id", "text")
    assert [record.data for record in source.records()] == [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}]
    write("0.csv", "id,text\nz,\n")
    found = [(record.ordinal, record.data and record.data["id"]) for record in source.records()]
    assert found == [(1, "z"), (2, "a"), (3, "b")]


def test_headers_that_differ_are_refused_all_at_once(tmp_path: Path, write: Any) -> None:
    write("1.csv", "id,text\n")
    write("2.csv", "id,txt\n")
    write("3.csv", "")
    write("4.csv", "id,text,more\n")
    with pytest.raises(UsageError) as caught:
        opened(tmp_path, "*.csv")
    assert caught.value.message.split("\n") == [
        '2.csv: its header lacks "text" and has "txt" besides, compared with 1.csv',
        "3.csv:1: there is no header",
        '4.csv: its header has "more" besides, compared with 1.csv',
    ]
    assert caught.value.remedy


def test_messages_name_the_file_and_the_line(tmp_path: Path, write: Any) -> None:
    write("a/1.csv", "id,text\na,x\n")
    write("a/2.csv", "id,text\n,x\nb,caf\xe9\n".encode("latin-1"))
    rows = list(read_rows(opened(tmp_path, "a/*.csv", id_field="id"), "id"))
    assert [(row.id, row.ordinal) for row in rows] == [("a", 1), (2, 2), (3, 3)]
    messages = [row.error.message if row.error else None for row in rows]
    assert messages[1] == 'a/2.csv:2: the id field "id" is empty; an id is a string that is not empty, or an integer'
    assert messages[2] is not None
    assert messages[2].startswith('a/2.csv:3: column "text": byte 0xe9 at offset 3')


def test_files_without_headers_may_hold_different_fields(tmp_path: Path, write: Any) -> None:
    write("1.jsonl", '{"id": 1}\n')
    write("2.jsonl.gz", gzip.compress(b'{"other": 2}\n'))
    source = opened(tmp_path, "*.jsonl*", found="jsonl")
    assert source.columns() is None
    assert [record.data for record in source.records()] == [{"id": 1}, {"other": 2}]


def test_a_header_that_changes_after_the_check_stops_the_reading(tmp_path: Path, write: Any) -> None:
    write("1.csv", "id\na\n")
    write("2.csv", "id\nb\n")
    source = opened(tmp_path, "*.csv")
    write("2.csv", "name\nb\n")
    records = source.records()
    assert next(records).data == {"id": "a"}
    with pytest.raises(AgacError, match=r"2\.csv: its header lacks"):
        list(records)


def test_a_file_that_cannot_be_read_is_a_row_under_its_path(tmp_path: Path, write: Any) -> None:
    write("d/a.md", "fine")
    write("d/b.md", b"caf\xe9")
    write("d/c.md", b"\xef\xbb\xbfwith a mark")
    write("d/d.md", "")
    rows = list(read_rows(opened(tmp_path, "d/**", found="files"), "path"))
    assert [row.id for row in rows] == ["d/a.md", "d/b.md", "d/c.md", "d/d.md"]
    assert rows[1].error is not None
    assert rows[1].error.message.startswith("d/b.md: byte 0xe9 at offset 3 of the file is not UTF-8; save the file as ")
    remedy = " in the input (`agac process`: --read encoding=cp1252), or name text files only"
    assert rows[1].error.message.endswith(remedy)
    assert rows[1].data == {"path": "d/b.md", "name": "b.md", "content": None}
    assert rows[2].data == {"path": "d/c.md", "name": "c.md", "content": "with a mark"}
    assert rows[3].data == {"path": "d/d.md", "name": "d.md", "content": ""}
