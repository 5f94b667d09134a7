"""What every output beside the JSON files promises. A new one adds one line to `MEMBERS`."""

import csv
import io
import json
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.soak import campaign

from agac.core.errors import AgacError
from agac.data.sinks import TABLES, OutputFolder, RowSink, file_of
from agac.data.sqlite import FreshDatabase, TableSink
from agac.data.tables import Observed, OutputRow, TableLayout

Cells = list[list[Any]]


def delimited(delimiter: str) -> Callable[[Path], Cells]:
    def read(path: Path) -> Cells:
        text = io.StringIO(path.read_bytes().decode(), newline="")
        csv.field_size_limit(sys.maxsize)
        return list(csv.reader(text, delimiter=delimiter, strict=True))[1:]

    return read


def lines(path: Path) -> Cells:
    return [[line] for line in path.read_bytes().decode().split("\n")[:-1]]


def parquet(path: Path) -> Cells:
    duckdb = pytest.importorskip("duckdb")
    pattern = "".join(f"[{sign}]" if sign in "*?[" else sign for sign in str(path))
    return [list(row) for row in duckdb.read_parquet(pattern).fetchall()]


def table(path: Path) -> Cells:
    connection = sqlite3.connect(path)
    try:
        return [list(row) for row in connection.execute('SELECT * FROM "re""sults" ORDER BY rowid')]
    finally:
        connection.close()


@dataclass(frozen=True)
class Member:
    """An output, and how its cells are read back. `typed`: null and the empty text are two things."""

    name: str
    open: Callable[[Path, TableLayout], RowSink]
    read: Callable[[Path], Cells]
    typed: bool
    single: bool = False

    def path(self, folder: Path) -> Path:
        return folder / self.name

    def expected(self, rows: Cells) -> Cells:
        if self.single:
            return [[(row[1] or "").replace("\r", "\\r").replace("\n", "\\n")] for row in rows]
        return rows if self.typed else [["" if cell is None else cell for cell in row] for row in rows]


def of_format(name: Any, read: Callable[[Path], Cells], **more: bool) -> Member:
    return Member(file_of(name), lambda path, layout: TABLES[name](path, layout, False), read, **more)


MEMBERS = [
    of_format("csv", delimited(","), typed=False),
    of_format("tsv", delimited("\t"), typed=False),
    of_format("txt", lines, typed=False, single=True),
    of_format("parquet", parquet, typed=True),
    Member("out.db", lambda path, layout: TableSink(path, 're"sults', layout, path.name), table, typed=True),
    Member("results.db", lambda path, layout: FreshDatabase(path, 're"sults', layout), table, typed=True),
]


@pytest.fixture(params=MEMBERS, ids=lambda member: member.name)
def member(request: pytest.FixtureRequest) -> Member:
    found: Member = request.param
    if found.name.endswith("parquet"):
        pytest.importorskip("duckdb")
    return found


def layout_of(rows: Cells) -> TableLayout:
    """Columns `id`, `text`, `error`, as a run with an id field and a result named `text` has them."""
    observed = Observed({"properties": {"text": {"type": "string"}}})
    for row in rows:
        observed.row({"id": row[0]})
    return observed.layout("extend", "say", "id")


def output(rows: Cells) -> list[OutputRow]:
    return [OutputRow(row[0], list(row), row[1]) for row in rows]


def some(count: int = 5) -> Cells:
    return [[f"r{number}", f"ü🦊 {number}", None] for number in range(count)]


def fill(member: Member, folder: Path, rows: Cells) -> RowSink:
    sink = member.open(member.path(folder), layout_of(rows))
    sink.write(output(rows[:2]))
    sink.write([])
    sink.write(output(rows[2:]))
    return sink


def done(member: Member, folder: Path, rows: Cells) -> Cells:
    sink = fill(member, folder, rows)
    sink.finish()
    sink.commit()
    sink.abort()
    return member.read(member.path(folder))


def test_every_format_is_in_this_suite() -> None:
    assert {file_of(name) for name in TABLES} <= {member.name for member in MEMBERS}


def test_rows_come_back_in_the_order_of_writing(member: Member, tmp_path: Path) -> None:
    assert done(member, tmp_path, some()) == member.expected(some())
    assert [path.name for path in tmp_path.iterdir()] == [member.name]


def test_no_rows_are_a_table_too(member: Member, tmp_path: Path) -> None:
    assert done(member, tmp_path, []) == []


def test_a_folder_may_have_any_name(member: Member, tmp_path: Path) -> None:
    folder = tmp_path / "it's [a-z]* a=b {x} ü ?"
    folder.mkdir()
    assert done(member, folder, some()) == member.expected(some())


texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["", "\0", "\r", "\r\n", '"', "\\n", "\t,"])


@campaign(test=12, soak=400)
@given(st.lists(st.tuples(texts | st.none(), texts | st.none()), max_size=5))
def test_any_text_comes_back(member: Member, tmp_path: Path, cells: list[tuple[Any, Any]]) -> None:
    rows: Cells = [[f"r{place}", *pair] for place, pair in enumerate(cells)]
    member.path(tmp_path).unlink(missing_ok=True)
    assert done(member, tmp_path, rows) == member.expected(rows)


def test_a_text_of_ten_megabytes_comes_back(member: Member, tmp_path: Path) -> None:
    rows = [["a", 'é said "it broke"\n' * 600_000, None], ["b", "small", None]]
    assert done(member, tmp_path, rows) == member.expected(rows)


def test_nothing_is_seen_before_the_commit(member: Member, tmp_path: Path) -> None:
    done(member, tmp_path, some(2))
    sink = fill(member, tmp_path, some(4))
    sink.finish()
    assert member.read(member.path(tmp_path)) == member.expected(some(2))
    sink.commit()
    assert member.read(member.path(tmp_path)) == member.expected(some(4))


def test_what_is_given_up_leaves_the_old_and_nothing_else(member: Member, tmp_path: Path) -> None:
    done(member, tmp_path, some(2))
    for finished in (False, True):
        sink = fill(member, tmp_path, some(4))
        if finished:
            sink.finish()
        sink.abort()
        assert member.read(member.path(tmp_path)) == member.expected(some(2))
        assert [path.name for path in tmp_path.iterdir()] == [member.name]


def test_what_is_given_up_at_the_first_time_leaves_nothing(member: Member, tmp_path: Path) -> None:
    fill(member, tmp_path, some()).abort()
    assert list(tmp_path.iterdir()) == []


def test_it_ends_together_with_the_folder(member: Member, tmp_path: Path) -> None:
    def fails_at_the_end() -> None:
        with OutputFolder(tmp_path, tmp_path) as out:
            out.add(fill(member, tmp_path, some()))
            out.open("results.json").write(1 // 0)

    with pytest.raises(ZeroDivisionError):
        fails_at_the_end()
    assert list(tmp_path.iterdir()) == []
    with OutputFolder(tmp_path, tmp_path) as out:
        out.add(fill(member, tmp_path, some()))
        out.open("results.json").write(1)
    assert member.read(member.path(tmp_path)) == member.expected(some())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([member.name, "results.json"])


FULL = """
import resource, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
from test_row_sinks import MEMBERS, layout_of, output
from agac.core.errors import AgacError

member = next(member for member in MEMBERS if member.name == sys.argv[2])
folder = Path(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
rows = [[f"r{n}", f"{n * 7919 % 1_000_003} é " * 40, None] for n in range(5_000)]
sink = None
try:
    sink = member.open(folder / member.name, layout_of(rows))
    sink.write(output(rows))
    sink.finish()
    sink.commit()
except AgacError as error:
    if sink is not None:
        sink.abort()
    print(error.message, error.remedy, sep="\\n")
"""


@pytest.mark.unmeasured
@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes here")
def test_a_full_disk_keeps_the_old_table_and_names_the_remedy(member: Member, tmp_path: Path) -> None:
    done(member, tmp_path, some())
    here = str(Path(__file__).parent)
    process = subprocess.run(
        [sys.executable, "-c", FULL, here, member.name, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    message, remedy = process.stdout.splitlines()
    assert member.name in message
    assert "all results are safe in the store" in remedy
    assert member.read(member.path(tmp_path)) == member.expected(some())
    assert [path.name for path in tmp_path.iterdir()] == [member.name]


def test_memory_does_not_grow_with_the_number_of_rows(member: Member, tmp_path: Path) -> None:
    def peak(count: int) -> int:
        member.path(tmp_path).unlink(missing_ok=True)
        layout = layout_of(some())
        tracemalloc.start()
        try:
            sink = member.open(member.path(tmp_path), layout)
            for start in range(0, count, 500):
                rows = [[f"r{number}", "some text", None] for number in range(start, start + 500)]
                sink.write(output(rows))
            sink.commit()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2_000)  # what is made once is not counted
    assert peak(12_000) < peak(6_000) * 1.1


def test_parquet_without_its_library_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(AgacError, match="needs duckdb, which is not installed") as caught:
        TABLES["parquet"](tmp_path / "results.parquet", layout_of([]), False)
    assert caught.value.remedy == "Run pip install 'agac[data]'."
    assert list(tmp_path.iterdir()) == []


def test_the_same_rows_make_the_same_file(member: Member, tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        done(member, folder, some(2000))
    assert member.read(member.path(first)) == member.read(member.path(second))
    if not member.name.endswith(".db"):
        assert member.path(first).read_bytes() == member.path(second).read_bytes()


def test_a_line_holds_the_record_as_json(tmp_path: Path) -> None:
    sink = TABLES["txt"](tmp_path / "results.txt", layout_of([]), False)
    sink.write([OutputRow("a", [], {"a": ["ü\n", 2**63 - 1]}), OutputRow("b", [], 0.5)])
    sink.commit()
    first, second = lines(tmp_path / "results.txt")
    assert json.loads(first[0]) == {"a": ["ü\n", 2**63 - 1]}
    assert second == ["0.5"]
