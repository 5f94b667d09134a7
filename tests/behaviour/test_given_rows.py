"""Rows that a program gives: the same as those of a file, whatever they come in."""

import asyncio
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.processes import kill_at
from support.project import ProjectFolder, python
from support.server import Server
from support.soak import only_in_soak

import agac
from agac.data.sources import keep_rows

ROWS = [
    {"id": f"r-{n}", "text": f"I love {n}", "stars": n, "at": None if n == 2 else f"2026-05-0{n}"} for n in (1, 2, 3)
]


async def each(rows: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    for row in rows:
        await asyncio.sleep(0)
        yield row


def of(library: str, make: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: make(pytest.importorskip(library))


DATED = [{**row, "at": row["at"] and date.fromisoformat(row["at"])} for row in ROWS]
WAYS: dict[str, Callable[[], Any]] = {
    "list": lambda: ROWS,
    "generator": lambda: (dict(row) for row in ROWS),
    "async generator": lambda: each(ROWS),
    "pandas": of("pandas", lambda pandas: pandas.DataFrame(DATED)),
    "pandas with NaT": of("pandas", lambda pandas: pandas.DataFrame(ROWS).assign(
        at=lambda frame: pandas.to_datetime(frame["at"]).dt.date)),
    "polars": of("polars", lambda polars: polars.DataFrame(DATED)),
    "arrow": of("pyarrow", lambda pyarrow: pyarrow.Table.from_pylist(DATED)),
    "arrow reader": of("pyarrow", lambda pyarrow: pyarrow.Table.from_pylist(DATED).to_reader(2)),
    "duckdb": of("pyarrow", lambda pyarrow: duckdb.from_arrow(pyarrow.Table.from_pylist(DATED))),  # only speaks Arrow
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_program_are_those_of_a_file_and_pay_for_nothing_again(
    way: str, project: ProjectFolder, server: Server
) -> None:
    project.rows(ROWS, "data/rows.jsonl")
    project.run(project.workflow(path="data/rows.jsonl"))
    before, calls = project.output(), server.account()["requests"]
    assert calls == 3
    plan = agac.plan("reviews", input=WAYS[way](), project=project.root)
    assert (plan.calls, plan.rows["total"]) == (0, 3)
    report = project.run(input=WAYS[way]())
    assert (report.exit_code, report.invocation["tasks_reused"], server.account()["requests"]) == (0, 3, calls)
    assert project.output() == before
    stored = project.query("SELECT run_id, hash, data FROM row ORDER BY run_id, ordinal")
    assert [row[1:] for row in stored[:3]] == [row[1:] for row in stored[3:]]
    again = agac.run("reviews", agac.RunOptions(retry_failed=False), input=WAYS[way](), project=project.root)
    assert (again.summary["run"], again.invocation["rows_unchanged"]) == (report.summary["run"], 3)


def test_the_index_of_a_frame_is_a_field_only_where_it_has_a_name(tmp_path: Path) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")

    def given(rows: Any) -> list[dict[str, Any]]:
        kept = asyncio.run(keep_rows(rows, tmp_path))
        return [json.loads(line) for line in kept.read_text("utf-8").split("\n")[:-1]]

    frame = pandas.DataFrame({"text": ["a", "b", "c"]})
    gaps, named = frame[frame["text"] != "b"], frame.rename_axis("id")
    for made in (
        lambda rows: rows,
        pyarrow.Table.from_pandas,
        lambda rows: pyarrow.Table.from_pandas(rows).to_reader(),
    ):
        assert given(made(frame)) == [{"text": "a"}, {"text": "b"}, {"text": "c"}]
        assert given(made(gaps)) == [{"text": "a"}, {"text": "c"}]
        assert given(made(named.iloc[[2, 0, 1]]))[:2] == [{"text": "c", "id": 2}, {"text": "a", "id": 0}]
    assert given(pyarrow.Table.from_pandas(named))[2] == given(named)[2] == {"text": "c", "id": 2}
    assert given(frame.rename_axis("text"))[0] == {"text": "a"}  # the column of this name is the field


def test_rows_of_a_program_may_be_those_of_a_row_run(
    project: ProjectFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    job = agac.ProcessOptions(prompt="{{text}}", model="local/echo", id_field="id")
    assert agac.process_plan(iter(ROWS), "out.jsonl", job).calls == 3
    report = agac.process(iter(ROWS), "out.jsonl", job)
    assert (report.exit_code, report.invocation["calls"]) == (0, 3)
    assert [json.loads(line)["id"] for line in Path("out.jsonl").read_text().split("\n") if line] == [
        "r-1",
        "r-2",
        "r-3",
    ]
    assert agac.process([*ROWS, {"id": "r-4", "text": "x"}], "out.jsonl", job).invocation["calls"] == 1
    again = agac.resume("last")
    assert (again.invocation["calls"], again.summary["rows"]["done"]) == (0, 4)


PROGRAM = """
import agac
report = agac.run("reviews", agac.RunOptions(input=({"id": str(n), "text": f"I love {n}"} for n in range(40))))
print(report.invocation["calls"], report.summary["rows"]["done"])
"""


def test_a_program_that_was_killed_goes_on_with_the_same_rows(project: ProjectFolder, server: Server) -> None:
    project.workflow(path="-", defaults={"concurrency": 1})
    killed = python(project.root, "-c", PROGRAM, env=kill_at("committed:12"))
    done = project.query("SELECT count(*) FROM task WHERE outcome = 'done'")[0][0]
    assert (killed.code, 0 < done < 40) == (-9, True)
    ran = python(project.root, "-c", PROGRAM)
    assert (ran.code, ran.out) == (0, f"{40 - done} 40\n"), ran.err
    assert server.account()["requests"] <= 41
    assert (
        project.agac("run", "-a", "reviews", "--input", str(next((project.root / ".agac/inputs").iterdir()))).code == 0
    )
    assert server.account()["requests"] <= 41


@only_in_soak
def test_rows_that_can_be_read_once_are_kept_in_flat_memory(tmp_path: Path) -> None:
    def rows(size: int) -> Iterator[dict[str, str]]:
        return ({"id": str(n), "text": "x" * 200} for n in range(size))

    def peak(size: int) -> int:
        tracemalloc.start()
        path = asyncio.run(keep_rows(rows(size), tmp_path))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert path.stat().st_size > size * 200
        return found

    assert peak(20_000) < peak(4_000) + 1_000_000  # the rows more are 8 MB; garbage that waits is some 100 kB
    assert asyncio.run(keep_rows(rows(3), tmp_path)) == asyncio.run(keep_rows(each(list(rows(3))), tmp_path))
    assert len(list(tmp_path.iterdir())) == 3


def test_durations_are_iso_texts_as_those_of_a_parquet_file(tmp_path: Path) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    took = [timedelta(seconds=90.5), timedelta(days=-1)]
    frame = pandas.DataFrame({"took": pandas.to_timedelta(took)})
    for rows in ([{"took": one} for one in took], frame, pyarrow.table({"took": took})):
        kept = asyncio.run(keep_rows(rows, tmp_path))
        found = [json.loads(line)["took"] for line in kept.read_text("utf-8").split("\n")[:-1]]
        assert found == ["PT90.5S", "-PT86400S"]


def test_numbers_of_32_bits_have_the_digits_that_they_have_in_a_parquet_file(tmp_path: Path) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    reals = pyarrow.table({"n": pyarrow.array([0.1, None, 1e-7, 3.0], pyarrow.float32())})
    frame = pandas.DataFrame({"n": pandas.array([0.1, None, 1e-7, 3.0], "Float32")})
    for rows in (reals, reals.to_pandas(), frame):
        kept = asyncio.run(keep_rows(rows, tmp_path))
        found = [json.loads(line)["n"] for line in kept.read_text("utf-8").split("\n")[:-1]]
        assert found == [0.1, None, 1e-7, 3.0]


def test_values_are_what_a_parquet_file_would_give(tmp_path: Path) -> None:
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    frame = pandas.DataFrame({
        "n": pandas.array([1, None], "Int64"), "f": [0.5, float("nan")], "b": pandas.array([True, None], "boolean"),
        "t": pandas.to_datetime(["2026-05-01 10:00", None]), "c": pandas.Categorical(["x", None]),
        "l": [numpy.array([1, 2]), numpy.datetime64("NaT", "ns")], "d": [Decimal("1.50"), Decimal("NaN")],
        "o": [({"a": float("nan")},), None], "s": [numpy.array(["2026-05-01"], "datetime64[ns]"), None],
    })  # fmt: skip
    lines = asyncio.run(keep_rows(frame, tmp_path)).read_text().splitlines()
    assert json.loads(lines[0]) == {
        "n": 1, "f": 0.5, "b": True, "t": "2026-05-01T10:00:00", "c": "x", "l": [1, 2], "d": "1.50", "o": [{"a": None}],
        "s": ["2026-05-01T00:00:00"],
    }  # fmt: skip
    assert json.loads(lines[1]) == dict.fromkeys("nfbtcldos")
    twice = pandas.DataFrame([[1, 2]], columns=["a", "a"])
    for rows, message in (twice, "two columns have the same name"), (twice.loc[0], "no rows, but of type Series"):
        with pytest.raises(agac.UsageError, match=message):
            asyncio.run(keep_rows(rows, tmp_path))


async def test_a_slow_iterator_lets_others_have_their_turn_and_leaves_no_file_when_it_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows() -> Iterator[dict[str, str]]:
        asyncio.get_running_loop().call_soon(reading.cancel)
        yield from ({"id": str(n)} for n in range(10))

    monkeypatch.setattr("agac.data.frames.monotonic", count().__next__)  # a row takes a second
    reading = asyncio.ensure_future(keep_rows(rows(), tmp_path))
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not list(tmp_path.iterdir())


REFUSED: list[tuple[Any, str]] = [
    ({"id": "1"}, "the input is no rows, but of type dict"),
    (7, "input is 7, of type int"),
    (iter([]), "rows from Python: the iterator has nothing left; it was read before"),
    (each([]), "rows from Python: the iterator has nothing left; it was read"),
    ([{"id": "1", "n": 10**5000}], "rows from Python: row 1: Exceeds the limit (4300 digits)"),
    ([{"id": "1"}, "text"], "rows from Python: row 2 is of type str"),
    ([{"id": {3}}], "rows from Python: row 1: JSON cannot hold {3}, a set"),
    ([{0: "a"}], "rows from Python: row 1: the name 0 of a field is no text"),
]


@pytest.mark.parametrize(("rows", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_no_row_is_refused_before_anything_is_asked(rows: Any, message: str, project: ProjectFolder) -> None:
    project.workflow(rows=1)
    with pytest.raises(agac.UsageError, match=re.escape(message)):
        project.run(input=rows)


def test_rows_are_held_to_the_rules_of_files(project: ProjectFolder, server: Server) -> None:
    project.workflow(path="-", input={"encoding": "utf-16", "format": "jsonl"})
    report = project.run(input=[{"id": "a", "text": "x"}, {"id": "a", "text": "y"}, {"text": "z"}, {"n": float("inf")}])
    assert report.exit_code == 3
    errors = {one["row_number"]: one["error"] for one in project.envelopes(file="errors.jsonl")}
    assert [errors[n]["type"] for n in (2, 3, 4)] == ["DuplicateId", "MissingIdField", "InvalidRow"]
    assert errors[3]["message"].startswith('rows from Python:3: the id field "id" is missing')
    assert "rows from Python:4: Infinity is not a JSON value" in errors[4]["message"]
    with pytest.raises(agac.UsageError, match="rows from Python: the input has no rows, and output/reviews holds"):
        project.run(input=[])
    assert project.agac("gc", "--keep-runs", "1").code == 0
