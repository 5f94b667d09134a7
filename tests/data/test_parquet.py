"""What becomes of the kinds of values that parquet has and JSON has not, and files that are no parquet."""

import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.sources import opened

from agac.core.errors import ErrorType, SpecError, UsageError, Where
from agac.data.sources import open_input
from agac.spec.data_specs import InputSpec


def written(path: Path, select: str) -> Path:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'Europe/Paris'; SET threads = 1")
        connection.sql(select).write_parquet(str(path))
    return path


def values(tmp_path: Path, select: str) -> list[dict[str, Any] | None]:
    path = written(tmp_path / "rows.parquet", f"SELECT {select}")
    return [record.data for record in opened(path, "data/rows.parquet").records()]


VALUES = [
    ("true", True),
    ("9223372036854775807::BIGINT", 2**63 - 1),
    ("18446744073709551615::UBIGINT", 2**64 - 1),
    ("(-128)::TINYINT", -128),
    ("12345678901234567890.123456789::DECIMAL(38, 9)", "12345678901234567890.123456789"),
    ("1.50::DECIMAL(9, 2)", "1.50"),
    ("0.1::DOUBLE", 0.1),
    ("0.1::FLOAT", 0.1),
    ("'NaN'::DOUBLE", None),
    ("'NaN'::FLOAT", None),
    ("DATE '2024-02-29'", "2024-02-29"),
    ("TIMESTAMP '2024-02-29 12:30:00'", "2024-02-29T12:30:00"),
    ("TIMESTAMP '2024-02-29 12:30:00.000125'", "2024-02-29T12:30:00.000125"),
    ("TIMESTAMP_NS '2024-02-29 12:30:00.000000125'", "2024-02-29T12:30:00.000000125"),
    ("TIMESTAMPTZ '2024-02-29 12:30:00+02'", "2024-02-29T10:30:00+00:00"),
    ("TIME '12:30:01'", "12:30:01"),
    ("UUID '00000000-0000-0000-0000-0000000000ff'", "00000000-0000-0000-0000-0000000000ff"),
    ("encode('grün')", "grün"),
    ("'\\xFF'::BLOB", "\ufffd"),
    ("[1, 2, NULL]", [1, 2, None]),
    ("[DATE '2024-01-01', NULL]", ["2024-01-01", None]),
    ("[0.5::FLOAT, 'NaN'::FLOAT]", [0.5, None]),
    ("{'a': 1.10::DECIMAL(4, 2), 'b': {'c': TIMESTAMP '2024-01-01 00:00:00'}}",
     {"a": "1.10", "b": {"c": "2024-01-01T00:00:00"}}),
    ("[{'x y': 1}, NULL]", [{"x y": 1}, None]),
    ("MAP {'k': DATE '2024-01-01'}", {"k": "2024-01-01"}),
    ("MAP {7: [1]}", {"7": [1]}),
    ("NULL::VARCHAR", None),
    ("NULL::STRUCT(a DATE)", None),
    ("'a NUL ' || chr(0) || ' inside'", "a NUL \x00 inside"),
]  # fmt: skip
"""Expressions of DuckDB, each a column, and the JSON that it becomes."""


def test_values_of_parquet_as_json(tmp_path: Path) -> None:
    [row] = values(tmp_path, ", ".join(f"{expression} AS v{at}" for at, (expression, _) in enumerate(VALUES)))
    assert row is not None
    assert row.keys() == {f"v{at}" for at in range(len(VALUES))}
    for at, (expression, expected) in enumerate(VALUES):
        assert (row[f"v{at}"], type(row[f"v{at}"])) == (expected, type(expected)), expression


def test_an_infinity_costs_its_row_and_says_which(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", "SELECT * FROM (VALUES (1.0::DOUBLE), ('inf'::DOUBLE), (2.0)) AS t(x)")
    records = list(opened(path, "data/rows.parquet").records())
    assert [record.data for record in records] == [{"x": 1.0}, None, {"x": 2.0}]
    assert records[1].error is not None
    assert records[1].error.type is ErrorType.INVALID_ROW
    assert records[1].error.message == (
        "data/rows.parquet: row 2: the column 'x' holds an infinity, which JSON cannot hold; write null"
    )


def test_names_of_columns_and_files_are_taken_as_they_are_also_without_rows(tmp_path: Path) -> None:
    columns = """1 AS "a b", 2 AS "q""uote", 3 AS "select" """
    path = written(tmp_path / "it's [1] * ?.parquet", f"SELECT {columns}")
    written(tmp_path / "it's 1 * ?.parquet", "SELECT 0 AS other")
    source, empty = opened(path), opened(written(tmp_path / "rows.parquet", f"SELECT {columns} WHERE false"))
    assert source.columns() == empty.columns() == ("a b", 'q"uote', "select")
    assert [record.data for record in source.records()] == [{"a b": 1, 'q"uote': 2, "select": 3}]
    assert list(empty.records()) == []


def test_a_key_that_comes_twice_in_a_map_costs_its_row_alone(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kind = arrow.map_(arrow.string(), arrow.int64())
    plain = arrow.array([[("a", 1), ("b", None)], [("a", 1), ("a", 2)], None, []], kind)
    inner = arrow.array([[{"x": [("k", 1)]}, None], [], [{"x": None}], [{"x": [("k", 1), ("k", 1)]}]],
                        arrow.list_(arrow.struct([("x", kind)])))  # fmt: skip
    parquet.write_table(arrow.table({"m": plain, "n": inner}), tmp_path / "rows.parquet")
    records = list(opened(tmp_path / "rows.parquet", "data/rows.parquet").records())
    assert [record.data for record in records] == [
        {"m": {"a": 1, "b": None}, "n": [{"x": {"k": 1}}, None]}, None, {"m": None, "n": [{"x": None}]}, None,
    ]  # fmt: skip
    assert [str(record.error and record.error.message) for record in records[1::2]] == [
        "data/rows.parquet: row 2: the column 'm' holds a map with the key 'a' twice",
        "data/rows.parquet: row 4: the column 'n' holds a map with the key 'k' twice",
    ]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_duration_is_an_iso_text_and_no_bare_integer(tmp_path: Path, unit: str) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parts = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    values = [90 * parts, None, -parts, 0, parts // 2, 1]
    columns = {"n": arrow.array(values), "took": arrow.array(values, arrow.duration(unit)), "t": arrow.array(["x"] * 6)}
    parquet.write_table(arrow.table(columns), tmp_path / "rows.parquet")
    rows = [record.data or {} for record in opened(tmp_path / "rows.parquet").records()]
    assert [row["n"] for row in rows] == values
    half, least = {"s": ("PT0S", "PT1S"), "ms": ("PT0.5S", "PT0.001S"), "us": ("PT0.5S", "PT0.000001S"),
                   "ns": ("PT0.5S", "PT0.000000001S")}[unit]  # fmt: skip
    assert [row["took"] for row in rows] == ["PT90S", None, "-PT1S", "PT0S", half, least]


def test_durations_in_lists_structures_and_maps_are_iso_texts_too(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    took = arrow.duration("ms")
    of_struct = arrow.struct([("n", arrow.int64()), ("took", took)])
    columns = {
        "each": arrow.array([[1500, None]], arrow.list_(took)),
        "parts": arrow.array([[{"n": 1500, "took": 1500}]], arrow.list_(of_struct)),
        "named": arrow.array([[("a", 1500)]], arrow.map_(arrow.string(), took)),
        "ns": arrow.array([[1500]], arrow.list_(arrow.int64())),
    }
    parquet.write_table(arrow.table(columns), tmp_path / "rows.parquet")
    assert rows_of(tmp_path / "rows.parquet") == [
        {"each": ["PT1.5S", None], "parts": [{"n": 1500, "took": "PT1.5S"}], "named": {"a": "PT1.5S"}, "ns": [1500]}
    ]


def test_a_duration_of_pandas_is_one_too(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"took": pandas.to_timedelta(["1 days 00:00:01.5", None])})
    frame.to_parquet(tmp_path / "rows.parquet")
    assert rows_of(tmp_path / "rows.parquet") == [{"took": "PT86401.5S"}, {"took": None}]


def test_columns_that_differ_by_case_keep_their_names(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    inner = {"a": 1, "b": {"c": [2]}}
    table = {"Name": [1], "inner": [inner], "name": [2], "NAME": [3], "name_1": [4], "m": [{"x": 5}]}
    parquet.write_table(arrow.table(table), tmp_path / "rows.parquet")
    source = opened(tmp_path / "rows.parquet")
    assert source.columns() == tuple(table)
    assert [record.data for record in source.records()] == [{name: value for name, (value,) in table.items()}]


def test_decimals_that_duckdb_would_round_are_refused_by_name(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kept = arrow.array([Decimal("12345678901234567890123456789012345678")], arrow.decimal256(38, 0))
    wide = arrow.array([Decimal("1.5")], arrow.decimal256(39, 2))
    inner = arrow.array([{"deep": Decimal("1")}], arrow.struct([("deep", arrow.decimal256(60, 1))]))
    path = tmp_path / "rows.parquet"
    parquet.write_table(arrow.table({"a": kept}), path)
    assert rows_of(path) == [{"a": "12345678901234567890123456789012345678"}]
    parquet.write_table(arrow.table({"a": kept, "b": wide, "c": inner}), path)
    words = "decimals of more than 38 digits cannot be read exactly: 'b' of up to 39 digits, 'deep' of up to 60 digits"
    with pytest.raises(UsageError, match=f"^data/rows.parquet: {words}\n"):
        opened(path, "data/rows.parquet")
    spec = InputSpec(path, "data/rows.parquet", "parquet", None, "error", Where("w.yml"))
    stated = replace(spec, sql="SELECT a FROM input", sql_at=Where("w.yml"), scratch=tmp_path / ".scratch")
    with pytest.raises(UsageError, match=words):
        open_input(stated)


def frame_file(path: Path, **how: Any) -> Path:
    """A frame of four rows with this index, as pandas writes it; without some rows, where `keeps` names the others."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    keeps = how.pop("keeps", [0, 1, 2, 3])
    frame = pandas.DataFrame({"text": ["a", "b", "c", "d"]}, index=how.get("index"))
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.iloc[keeps].to_parquet(path)
    return path


def rows_of(path: Path) -> list[dict[str, Any] | None]:
    source = opened(path, "data/rows.parquet")
    rows = [record.data for record in source.records()]
    assert all(row is not None and tuple(row) == source.columns() for row in rows)
    assert [record.data for record in source.records(1)] == rows[1:]
    return rows


def test_an_index_without_a_name_is_no_field(tmp_path: Path) -> None:
    whole, filtered = frame_file(tmp_path / "a.parquet"), frame_file(tmp_path / "b.parquet", keeps=[0, 2, 3])
    assert rows_of(whole) == [{"text": "a"}, {"text": "b"}, {"text": "c"}, {"text": "d"}]
    assert rows_of(filtered) == [{"text": "a"}, {"text": "c"}, {"text": "d"}]


def test_an_index_with_a_name_is_a_field_whether_the_file_holds_or_describes_it(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    ids = [{"text": "a", "id": 10}, {"text": "b", "id": 20}, {"text": "c", "id": 30}, {"text": "d", "id": 40}]
    described, held = pandas.RangeIndex(10, 50, 10, name="id"), pandas.Index([10, 20, 30, 40], name="id")
    assert rows_of(frame_file(tmp_path / "a.parquet", index=described)) == ids
    assert rows_of(frame_file(tmp_path / "b.parquet", index=held)) == ids
    assert rows_of(frame_file(tmp_path / "c.parquet", index=described, keeps=[0, 1, 3])) == [*ids[:2], ids[3]]
    numbered = pandas.RangeIndex(1, 5, name=0)
    assert rows_of(frame_file(tmp_path / "f.parquet", index=numbered))[0] == {"text": "a", "0": 1}
    two = pandas.MultiIndex.from_tuples([(1, "x"), (1, "y"), (2, "x"), (2, "y")], names=["k", None])
    assert rows_of(frame_file(tmp_path / "d.parquet", index=two))[0] == {"text": "a", "k": 1}
    own = pandas.RangeIndex(4, name="text")  # the column of this name is the field
    assert rows_of(frame_file(tmp_path / "e.parquet", index=own))[0] == {"text": "a"}


def test_a_described_index_that_does_not_fit_the_rows_is_none(tmp_path: Path) -> None:
    pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    path = frame_file(tmp_path / "a.parquet", index=pandas.RangeIndex(4, name="id"))
    parquet.write_table(parquet.read_table(path).slice(1), path)  # the metadata stays as it was
    assert rows_of(path) == [{"text": "b"}, {"text": "c"}, {"text": "d"}]


def test_a_column_that_only_looks_like_an_index_stays_a_field(tmp_path: Path) -> None:
    [row] = values(tmp_path, "1 AS __index_level_0__")
    assert row == {"__index_level_0__": 1}


def test_a_statement_and_several_files_see_the_same_fields(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame_file(tmp_path / "a.parquet", index=pandas.RangeIndex(0, 4, name="id"))
    frame_file(tmp_path / "b.parquet", index=pandas.Index([4, 6, 7, 9], name="id"))
    frame_file(tmp_path / "c.parquet", index=pandas.RangeIndex(20, 24, name="id"), keeps=[1, 3])
    frame_file(tmp_path / "gaps" / "d.parquet", keeps=[1, 3])
    for path, ids in (("*.parquet", [0, 1, 2, 3, 4, 6, 7, 9, 21, 23]), ("gaps/*.parquet", None)):
        spec = InputSpec(tmp_path, path, "parquet", None, "error", Where("w.yml"), patterns=(path,))
        rows = [record.data for record in open_input(spec).records()]
        assert [row and row.get("id") for row in rows] == (ids or [None, None])
        sql = "SELECT * FROM input ORDER BY 1" if ids is None else "SELECT text, id FROM input ORDER BY id"
        stated = replace(spec, sql=sql, sql_at=Where("w.yml"), scratch=tmp_path / ".scratch")
        assert [record.data for record in open_input(stated).records()] == rows


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.parquet", "SELECT i FROM range(1000) t(i)")
    torn = path.read_bytes()[:-20]
    for content in (b"", b"id,text\n1,x\n", b"PAR1", b"PAR1" + b"\0" * 100 + b"PAR1", torn):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"^data/rows\.parquet: cannot be read as parquet: ") as caught:
            opened(path, "data/rows.parquet")
        assert caught.value.remedy
        assert str(tmp_path) not in caught.value.message


def test_without_duckdb_the_command_that_installs_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "rows.parquet", "SELECT 1 AS id")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UsageError, match=r"rows\.parquet: reading parquet needs duckdb>=2.0, which is not installed"):
        opened(path, "rows.parquet")


# Folders named such as `year=2024`, of which duckdb makes columns by itself.

FOLDERS = "lr=0.1/year=2024/lang=de/a%2Fb=__HIVE_DEFAULT_PARTITION__"


def in_folders(root: Path, select: str, folders: str = FOLDERS, name: str = "rows.parquet") -> Path:
    path = root / folders / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return written(path, select)


@pytest.mark.parametrize("pattern", [(), (f"{FOLDERS}/*.parquet",), ("**/*.parquet",)])
@pytest.mark.parametrize("sql", [None, "SELECT * FROM input"])
def test_a_file_has_its_own_columns_and_values_whatever_its_folders_are_called(
    tmp_path: Path, pattern: tuple[str, ...], sql: str | None
) -> None:
    path = in_folders(tmp_path, "SELECT 1999 AS year, 7 AS lang, 'x' AS t")
    spec = InputSpec(
        tmp_path if pattern else path, "in", "parquet", None, "error", Where("w.yml"), pattern,
        sql=sql, scratch=tmp_path / "scratch",
    )  # fmt: skip
    source = open_input(spec)
    assert source.columns() == ("year", "lang", "t")
    assert [record.data for record in source.records()] == [{"year": 1999, "lang": 7, "t": "x"}]


@pytest.mark.parametrize("pattern", [(), ("**/*.parquet",)])
@pytest.mark.parametrize("sql", [None, "SELECT * FROM input"])
def test_folders_are_fields_where_the_input_says_so_and_the_file_has_none_of_that_name(
    tmp_path: Path, pattern: tuple[str, ...], sql: str | None
) -> None:
    path = in_folders(tmp_path, "SELECT 1999 AS year")
    shown = path.relative_to(tmp_path).as_posix()
    spec = InputSpec(
        tmp_path if pattern else path, shown, "parquet", None, "error", Where("w.yml"), pattern,
        sql=sql, scratch=tmp_path / "scratch", hive=True,
    )  # fmt: skip
    [record] = open_input(spec).records()
    assert record.data == {"year": 1999, "lr": "0.1", "lang": "de", "a/b": None}


@pytest.mark.parametrize("source", ["read_parquet('{file}')", "parquet_scan('{file}')", "'{file}'"])
def test_a_statement_reads_the_rows_as_the_input_has_them_and_no_file_by_itself(tmp_path: Path, source: str) -> None:
    path = in_folders(tmp_path, "SELECT 1999 AS year")
    spec = InputSpec(
        path, "in", "parquet", None, "error", Where("w.yml"),
        sql=f"WITH found AS (FROM {source.replace('{file}', str(path))}) FROM found", scratch=tmp_path / "scratch",
    )  # fmt: skip
    with pytest.raises(SpecError, match="write FROM input"):
        open_input(spec)


def test_a_statement_over_files_of_other_types_changes_no_value(tmp_path: Path) -> None:
    in_folders(tmp_path, "SELECT 9007199254740993 AS n, 1 AS t", ".", "1.parquet")
    in_folders(tmp_path, "SELECT 0.5::DOUBLE AS n, '1' AS t", ".", "2.parquet")
    spec = InputSpec(
        tmp_path, "*.parquet", "parquet", None, "error", Where("w.yml"), ("*.parquet",),
        sql="SELECT * FROM input", scratch=tmp_path / "scratch",
    )  # fmt: skip
    found = [record.data for record in open_input(spec).records()]
    assert found == [{"n": 9007199254740993, "t": 1}, {"n": 0.5, "t": "1"}]


def test_columns_called_as_duckdb_calls_its_own_are_the_files(tmp_path: Path) -> None:
    names = ("filename", "file_row_number", "file_index", "rowid")
    row = dict(zip(names, ("x", 7, 8, 9), strict=True))
    select = "'x' AS filename, 7 AS file_row_number, 8 AS file_index, 9 AS rowid"
    assert values(tmp_path, select) == [row]
    spec = InputSpec(
        tmp_path / "rows.parquet", "in", "parquet", None, "error", Where("w.yml"),
        sql="SELECT filename, file_row_number, file_index, rowid FROM input", scratch=tmp_path / "scratch",
    )  # fmt: skip
    assert [record.data for record in open_input(spec).records()] == [row]
