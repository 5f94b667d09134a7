"""What every output promises: the JSON files, tables and lines, databases. A new one adds one line to `MEMBERS`."""

import csv
import io
import json
import os
import sqlite3
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.postgres import PostgresServer
from support.processes import small_files
from support.services import services
from support.soak import campaign, few

from agac.core.errors import AgacError, UsageError
from agac.data.postgres import PostgresSink, Server
from agac.data.sinks import FILES, TABLES, OutputFolder, file_of
from agac.data.sqlite import FreshDatabase, TableSink
from agac.data.tables import Observed, OutputRow, TableLayout

Values = list[Any]


def layout_of(ids: int = 0) -> TableLayout:
    """Columns `id`, `text`, `error`, as a run with an id field and a result named `text` has them."""
    observed = Observed({"properties": {"text": {"type": "string"}}})
    for number in range(ids):
        observed.row({"id": f"r{number}"})
    return observed.layout("extend", "say", "id")


@dataclass(frozen=True)
class Member:
    """An output: how it is opened at a path, and how its values are read back. Tables hold a value as the text of
    a row; `nulls`: null and the empty text are two things there; `file`: it is one."""

    name: str
    open: Callable[[Path], Any]
    read: Callable[[Path], Values]
    table: bool = True
    nulls: bool = False
    file: bool = True
    clear: Callable[[Path], Any] = lambda path: path.unlink(missing_ok=True)

    @property
    def names(self) -> list[str]:
        """What is in its folder."""
        return [self.name] if self.file else []

    def write(self, sink: Any, values: Values) -> None:
        if not self.table:
            for value in values:
                sink.write(value)
        elif values:
            sink.write([OutputRow(f"r{n}", [f"r{n}", value, None], value) for n, value in enumerate(values)])
        else:
            sink.write([])

    def filled(self, folder: Path, values: Values) -> Any:
        sink = self.open(folder / self.name)
        self.write(sink, values)
        self.write(sink, [])
        return sink

    def done(self, folder: Path, values: Values) -> Values:
        """The values, read back from where they were written."""
        sink = self.filled(folder, values)
        sink.finish()
        sink.commit()
        sink.abort()
        return self.values(folder)

    def values(self, folder: Path) -> Values:
        return self.read(folder / self.name)

    def expected(self, values: Values) -> Values:
        if self.name == "results.txt":
            return [(value or "").replace("\r", "\\r").replace("\n", "\\n") for value in values]
        if not self.file:
            return [value and value.replace("\0", "\ufffd") for value in values]
        return [value or "" for value in values] if self.table and not self.nulls else values

    def some(self, count: int = 5) -> Values:
        return [f"ü🦊 {number}" for number in range(1 if self.name == "summary.json" else count)]


def json_file(name: str, read: Callable[[str], Values]) -> Member:
    return Member(name, FILES[name], lambda path: read(path.read_bytes().decode()), table=False)


def table(name: Any, read: Callable[[Path], Values], **more: bool) -> Member:
    return Member(file_of(name), lambda path: TABLES[name](path, layout_of(5), False, False), read, **more)


def delimited(delimiter: str) -> Callable[[Path], Values]:
    def read(path: Path) -> Values:
        csv.field_size_limit(sys.maxsize)
        text = io.StringIO(path.read_bytes().decode(), newline="")
        return [text for _, text, _ in csv.reader(text, delimiter=delimiter, strict=True)][1:]

    return read


def of_parquet(path: Path) -> Values:
    pattern = "".join(f"[{sign}]" if sign in "*?[" else sign for sign in str(path))
    return [text for _, text, _ in duckdb.read_parquet(pattern).fetchall()]


def of_database(path: Path) -> Values:
    connection = sqlite3.connect(path)
    try:
        return [text for (text,) in connection.execute('SELECT text FROM "re""sults" ORDER BY rowid')]
    finally:
        connection.close()


def server_table(path: Path) -> str:
    return f're"sults % {path.parent.name}'[:40].replace(".", "")


def to_server(server: PostgresServer, path: Path) -> PostgresSink:
    return PostgresSink(Server(server.address, server.env), server_table(path), layout_of(5))


def of_server(server: PostgresServer, path: Path) -> Values:
    table = server_table(path).replace('"', '""')
    return [text for (text,) in server.sql(f'SELECT text FROM "{table}" ORDER BY substr(id, 2)::int')]


def cleared(server: PostgresServer, path: Path) -> None:
    server.sql(f'DROP TABLE IF EXISTS "{server_table(path).replace(chr(34), chr(34) * 2)}"')


MEMBERS = [
    json_file("results.jsonl", lambda text: [json.loads(line) for line in text.split("\n")[:-1]]),
    json_file("results.json", json.loads),
    json_file("summary.json", lambda text: [json.loads(text)] if text else []),
    table("csv", delimited(",")),
    table("tsv", delimited("\t")),
    table("txt", lambda path: path.read_bytes().decode().split("\n")[:-1]),
    table("parquet", of_parquet, nulls=True),
    Member("out.db", lambda path: TableSink(path, 're"sults', layout_of(5), path.name), of_database, nulls=True),
    Member("postgres", to_server, of_server, nulls=True, file=False, clear=cleared),  # type: ignore[arg-type]
    Member("results.db", lambda path: FreshDatabase(path, 're"sults', layout_of(5)), of_database, nulls=True),
]


def with_markers(members: Sequence[Member]) -> list[Any]:
    """The members as parameters: that of the server is marked."""
    return [pytest.param(member, marks=[] if member.file else [services], id=member.name) for member in members]


@pytest.fixture(params=with_markers(MEMBERS))
def member(request: pytest.FixtureRequest) -> Member:
    found: Member = request.param
    if found.file:
        return found
    server = request.getfixturevalue("postgres")
    return replace(found, **{name: partial(getattr(found, name), server) for name in ("open", "read", "clear")})


json_files = pytest.mark.parametrize("member", MEMBERS[:3], ids=lambda member: member.name)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_file_and_every_format_is_in_this_suite() -> None:
    tested: list[Any] = [member.open for member in MEMBERS if not member.table]
    made: list[Any] = list(FILES.values())
    assert all((one.func, one.keywords) in [(other.func, other.keywords) for other in tested] for one in made)
    assert {file_of(name) for name in TABLES} <= {member.name for member in MEMBERS}


def test_values_come_back_in_the_order_of_writing(member: Member, tmp_path: Path) -> None:
    """In a folder of any name; also where there are none."""
    folder = tmp_path / "it's [a-z]* a=b {x} ü ?"
    folder.mkdir()
    assert member.done(folder, member.some()) == member.some()
    assert names(folder) == member.names
    assert member.done(tmp_path, []) == []


texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["", "\0", "\r", "\r\n", '"', "\\n", "\t,"])


@campaign(test=12, soak=400)
@given(st.lists(texts | st.none(), max_size=5))
def test_any_text_comes_back(member: Member, tmp_path: Path, values: Values) -> None:
    values = values[: len(member.some())]
    member.clear(tmp_path / member.name)
    assert member.done(tmp_path, values) == member.expected(values)


@pytest.mark.parametrize("member", with_markers(few(MEMBERS, 3)), indirect=True)
def test_a_text_of_ten_megabytes_comes_back(member: Member, tmp_path: Path) -> None:
    values = ['é said "it broke"\n' * 600_000, "small"][: len(member.some())]
    assert member.done(tmp_path, values) == member.expected(values)


def test_nothing_is_seen_before_the_commit(member: Member, tmp_path: Path) -> None:
    member.done(tmp_path, member.some(2))
    sink = member.filled(tmp_path, member.some(4))
    sink.finish()
    assert member.values(tmp_path) == member.some(2)
    sink.commit()
    assert member.values(tmp_path) == member.some(4)
    assert names(tmp_path) == member.names


def test_what_is_given_up_leaves_the_old_and_nothing_else(member: Member, tmp_path: Path) -> None:
    member.filled(tmp_path, member.some()).abort()
    assert names(tmp_path) == []
    member.done(tmp_path, member.some(2))
    for finished in (False, True):
        sink = member.filled(tmp_path, member.some(4))
        if finished:
            sink.finish()
        sink.abort()
        assert member.values(tmp_path) == member.some(2)
        assert names(tmp_path) == member.names


def test_it_ends_together_with_the_folder(member: Member, tmp_path: Path) -> None:
    def fails_at_the_end() -> None:
        with OutputFolder(tmp_path, tmp_path) as out:
            out.add(member.filled(tmp_path, member.some()))
            out.open("errors.jsonl").write(1 // 0)

    with pytest.raises(ZeroDivisionError):
        fails_at_the_end()
    assert names(tmp_path) == []
    with OutputFolder(tmp_path, tmp_path) as out:
        out.add(member.filled(tmp_path, member.some()))
        out.open("errors.jsonl").write(1)
    assert member.values(tmp_path) == member.some()
    assert names(tmp_path) == sorted([*member.names, "errors.jsonl"])


@pytest.mark.parametrize("size", [150_000, 3_000_000], ids=["met-at-commit", "met-while-writing"])
def test_a_full_disk_keeps_the_old_and_names_the_remedy(member: Member, tmp_path: Path, size: int) -> None:
    if not member.file:
        pytest.skip("the disk is the server's")
    member.done(tmp_path, member.some())
    sink = member.open(tmp_path / member.name)

    def written() -> None:
        member.write(sink, ["x" * size])
        sink.finish()
        sink.commit()

    with small_files(), pytest.raises(AgacError) as caught:
        written()
    sink.abort()
    assert member.name in caught.value.message
    assert "all results are safe in the store" in str(caught.value.remedy)
    if not member.table:
        assert caught.value.message.startswith(f"{tmp_path / member.name}: cannot be written: File too large")
        assert caught.value.remedy == "Free some space, then run `agac export`: all results are safe in the store."
    assert member.values(tmp_path) == member.some()
    assert names(tmp_path) == [member.name]


@pytest.mark.parametrize("member", with_markers(few(MEMBERS[3:], 2)), indirect=True)
def test_memory_does_not_grow_with_the_number_of_rows(member: Member, tmp_path: Path) -> None:
    def peak(count: int) -> int:
        member.clear(tmp_path / member.name)
        tracemalloc.start()
        try:
            sink = member.open(tmp_path / member.name)
            for start in range(0, count, 500):
                rows = [[f"r{number}", "some text", None] for number in range(start, start + 500)]
                sink.write([OutputRow(row[0], list(row), row[1]) for row in rows])
            sink.commit()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2_000)  # what is made once is not counted
    assert peak(6_000) < peak(3_000) * 1.1 + 50_000  # a buffer more of a library's; rows that were held are megabytes


def test_the_same_values_make_the_same_file(member: Member, tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        member.done(folder, member.some(2000))
    assert member.values(first) == member.values(second)
    if member.file and not member.name.endswith(".db"):
        assert (first / member.name).read_bytes() == (second / member.name).read_bytes()


def test_parquet_without_its_library_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(AgacError, match=r"parquet needs duckdb>=2\.0, which is not installed: pip") as caught:
        TABLES["parquet"](tmp_path / "results.parquet", layout_of(), False, False)
    assert caught.value.remedy == "Or remove parquet from output.format."
    assert names(tmp_path) == []


@json_files
def test_text_that_is_json_already_is_the_same_value_however_it_is_written(member: Member, tmp_path: Path) -> None:
    values = [{"number": number, "text": "ü🦊"} for number in range(len(member.some()))]
    member.done(tmp_path, values)
    whole = (tmp_path / member.name).read_bytes()
    lines = [json.dumps(value) for value in values]
    several = [json.dumps(value, indent=2) for value in values]
    for parts in (
        [[text] for text in lines],
        [lines[:1], [], lines[1:]],
        [several],
        [[text.replace("\n", "\r\n")] for text in several],
    ):
        sink = member.open(tmp_path / member.name)
        for part in parts:
            sink.write_texts(part)
        sink.commit()
        assert member.values(tmp_path) == values
    sink = member.open(tmp_path / member.name)
    sink.write_texts([json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values])
    sink.commit()
    assert (tmp_path / member.name).read_bytes() == whole


@json_files
def test_any_value_comes_back_as_text_for_people(member: Member, tmp_path: Path) -> None:
    values = [
        None, "", {}, [], {"a": {"b": [1, 2.5, True, None, 2**70]}}, "ünïcödé 日本語 🦊", 'quotes " and \\',
        "two\nlines\r\nand \u2028 \u2029 \x85 \x00 \x7f", "half a pair \ud83d here", {"\udc00": "\ud800\ud800"},
    ]  # fmt: skip
    for value in values:
        assert member.done(tmp_path, [value]) == [value]
    unfit = {"a": float("nan"), "b": [float("inf"), -float("inf"), 1.0], "c": (float("nan"),)}
    assert member.done(tmp_path, [unfit]) == [{"a": None, "b": [None, None, 1.0], "c": [None]}]
    member.done(tmp_path, member.some())
    content = (tmp_path / member.name).read_bytes()
    assert "ü🦊".encode() in content
    assert b"\\u" not in content
    assert content.endswith(b"\n")
    assert b"\r" not in content


@json_files
@pytest.mark.skipif(sys.platform == "win32", reason="no umask here")
def test_the_file_is_readable_by_whom_the_umask_allows(member: Member, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        member.done(tmp_path, [])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / member.name).stat().st_mode) == 0o640


@json_files
def test_where_no_file_can_be_is_refused(member: Member, tmp_path: Path) -> None:
    target, path = tmp_path / "elsewhere", tmp_path / member.name
    target.write_text("precious")
    path.symlink_to(target)
    with pytest.raises(UsageError, match="is a link; agac does not write through links"):
        member.open(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="is not a file, so it cannot be replaced"):
        member.open(path)
    assert target.read_text() == "precious"
    assert names(tmp_path) == sorted(["elsewhere", member.name])
    with pytest.raises(AgacError, match="cannot be written: No such file or directory"):
        member.open(tmp_path / "missing" / member.name)


WRITER = """
import sys
from pathlib import Path
from agac.data.sinks import FILES

path = Path(sys.argv[1])
sink = FILES[path.name](path)
sink.write({"text": "x" * 500_000})
print("open", flush=True)
if sys.stdin.readline():
    sink.commit()
"""


@contextmanager
def writing(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A real process that has opened a file and filled it, and commits it once it gets a line on its stdin."""
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process


@json_files
def test_a_killed_writer_leaves_the_old_file_and_the_next_commit_cleans_up(member: Member, tmp_path: Path) -> None:
    (tmp_path / member.name).write_text("old")
    with writing(tmp_path / member.name) as process:
        process.kill()
    assert (tmp_path / member.name).read_text() == "old"
    assert [name.startswith(".agac-tmp-") for name in names(tmp_path)] == [True, False]
    assert member.done(tmp_path, member.some()) == member.some()
    assert names(tmp_path) == [member.name]


@json_files
def test_a_writer_that_still_lives_is_not_cleaned_away(member: Member, tmp_path: Path) -> None:
    with writing(tmp_path / member.name) as process:
        assert member.done(tmp_path, member.some()) == member.some()
        process.communicate("go on\n")
    assert member.values(tmp_path) == [{"text": "x" * 500_000}]
    assert names(tmp_path) == [member.name]
