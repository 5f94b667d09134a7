"""Statements over inputs: what they can reach, what they give, what is said of wrong ones."""

import gc
import json
import os
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.soak import few

from agac.core.errors import AgacError, ErrorType, SpecError, Where
from agac.data import sql as statements
from agac.data.files import Source
from agac.data.sources import open_input
from agac.spec.data_specs import InputFormat, InputSpec

AT = Where("workflows/w.yml", 3, 8, "input.sql")


def asked(
    folder: Path, sql: str, rows: list[Any] | None = None, text: str | None = None, kind: InputFormat = "jsonl"
) -> Source:
    name = f"rows.{kind}"
    if kind == "parquet":
        duckdb.sql(f"COPY (SELECT 'a' AS id, 1 AS n) TO '{folder / name}'")
    else:
        (folder / name).write_text(text or "".join(f"{json.dumps(row)}\n" for row in rows or [{"id": "a", "n": 1}]))
    spec = InputSpec(folder / name, name, kind, None, "error", AT, sql=sql, sql_at=AT, scratch=folder / "scratch")
    return open_input(spec)


def gives(folder: Path, sql: str, rows: list[Any]) -> list[Any]:
    return [record.data for record in asked(folder, sql, rows).records()]


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """What a statement must neither read nor change."""
    (tmp_path / "secret.csv").write_text("secret\n42\n")
    with duckdb.connect(str(tmp_path / "other.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT 42 AS secret")
    return tmp_path


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{at}/secret.csv')", "SELECT * FROM '{at}/secret.csv'",
        "SELECT * FROM read_text('{at}/secret.csv')", "SELECT * FROM read_blob('{at}/*')",
        "SELECT * FROM glob('{at}/*')",
        "SELECT * FROM sniff_csv('{at}/secret.csv')", "SELECT * FROM query('FROM ''{at}/secret.csv''')",
        "SELECT * FROM read_parquet('https://127.0.0.1:1/x.parquet')", "SELECT * FROM 's3://bucket/x.csv'",
        "SELECT * FROM read_json('{at}/rows.jsonl') UNION ALL FROM read_text('{at}/secret.csv')",
        "ATTACH '{at}/other.duckdb'", "SELECT * FROM other.t", "COPY input TO '{at}/out.csv'",
        "EXPORT DATABASE '{at}/out'",
        "COPY (SELECT 1) TO '{at}/rows.jsonl'", "INSTALL httpfs", "LOAD httpfs", "SET enable_external_access = true",
        "RESET lock_configuration", "PRAGMA enable_external_access", "CALL pragma_version()", "CREATE TABLE t (a INT)",
        "DROP VIEW input", "INSERT INTO input VALUES ('x', 1)", "DELETE FROM input", "CHECKPOINT", "BEGIN",
        "SELECT * FROM read_json('{at}/rows.jsonl')", "FROM query_table('rows')",
        "SELECT * FROM held", "SELECT * FROM duckdb_secrets()", "SELECT * FROM sqlite_scan('{at}/x.db', 't')",
        "SELECT * FROM input; COPY input TO '{at}/out.csv'", "SELECT getenv('HOME')", "EXECUTE x", "",
        "SELECT * FROM input) TO '{at}/out.csv' --", "WITH x AS (DELETE FROM input RETURNING *) SELECT * FROM x",
    ],
)  # fmt: skip
def test_a_statement_reaches_nothing_but_the_rows(beside: Path, sql: str) -> None:
    import pandas as pd

    held = pd.DataFrame({"secret": [42]})  # what duckdb's own connections would find by its name
    before = {path.name: path.read_bytes() for path in beside.glob("*.*")}
    with pytest.raises(AgacError) as raised:
        list(asked(beside, sql.replace("{at}", str(beside))).records())
    said = raised.value.problems[0] if isinstance(raised.value, SpecError) else raised.value.message
    assert str(said).startswith("workflows/w.yml:3:8: input.sql: ")
    after = {path.name: path.read_bytes() for path in beside.glob("*.*") if path.name != "rows.jsonl"}
    assert before == after
    assert not (beside / "out").exists()
    assert len(held) == 1


COLUMNS = "the columns of input are: id VARCHAR, n BIGINT"


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("SELECT nn FROM input", f"Referenced column \"nn\" not found in FROM clause, at 'nn'; {COLUMNS}"),
        ("SELECT id\nFROM inptu", f"Table with name inptu does not exist, at 'inptu'; {COLUMNS}"),
        ("SELECT FROM WHERE", "syntax error at or near \"WHERE\", at 'WHERE'"),
        ("SELECT ? FROM input", f"Values were not provided for the following parameters: 1; {COLUMNS}"),
        ("SELECT 1; SELECT 2", "is 2 statements; write one SELECT: it reads the table input and changes nothing"),
        ("DROP TABLE input", "is DROP; write one SELECT: it reads the table input and changes nothing"),
        ("SELECT id, n AS ID FROM input", 'it gives "id", "ID" in two columns; give each its own name, with AS'),
    ],
)
def test_what_is_wrong_with_a_statement_is_told_with_its_place(tmp_path: Path, sql: str, problem: str) -> None:
    with pytest.raises(SpecError) as raised:
        asked(tmp_path, sql)
    assert str(raised.value.problems[0]) == f"workflows/w.yml:3:8: input.sql: {problem}"
    if "Values" not in problem:
        with pytest.raises(SpecError):
            list(asked(tmp_path, f"\n-- why\n{sql} -- end\n;").records())


def test_what_fails_for_a_row_is_told_when_it_is_met(tmp_path: Path) -> None:
    source = asked(tmp_path, "SELECT CAST(id AS INTEGER) AS i FROM input")
    with pytest.raises(AgacError, match=r"^workflows/w.yml:3:8: input.sql: Could not convert string 'a' to INT32") as e:
        list(source.records())
    assert "TRY_CAST" in str(e.value.remedy)


VALUES = {
    "text": "7", "int": 2**63 - 1, "big": 2**100, "huge": 10**50, "flag": True, "half": 0.1, "none": None,
    "list": [1, "2", None, {"a": []}], "nested": {"b": {"c": 2.5, "d": 2**53 + 1}}, 'ünï "x"': "日本\x00\n",
}  # fmt: skip
MIXED = [{"m": 3, "n": 3}, {"m": 0.5, "n": "3"}, {"m": -7, "n": [3]}, {"m": None, "n": None, "N": 1}]


def test_values_come_out_as_they_came_in(tmp_path: Path) -> None:
    assert gives(tmp_path, "SELECT * FROM input;", [VALUES]) == [VALUES]
    found = gives(tmp_path, "FROM input", MIXED)
    assert found == [{"N_2": None, **row} if "N" not in row else {"m": None, "n": None, "N_2": 1} for row in MIXED]
    assert [type(row["m"]) for row in found[:3]] == [int, float, int]
    twice = gives(tmp_path, "SELECT m * 2 AS twice FROM input WHERE m > 0 ORDER BY m", MIXED)
    assert twice == [{"twice": 1}, {"twice": 6}]
    made = "SELECT DATE '2024-02-29' AS d, 1.50::DECIMAL(9, 2) AS c, 'nan'::DOUBLE AS nan, nested->'b'->>'c' AS c2, "
    made += "TIMESTAMP '2024-02-29 10:00:00' AS t, [nested] AS l, {'k': list} AS s FROM input"
    assert gives(tmp_path, made, [VALUES]) == [
        {"d": "2024-02-29", "c": "1.50", "nan": None, "c2": "2.5", "t": "2024-02-29T10:00:00", "l": [VALUES["nested"]],
         "s": {"k": VALUES["list"]}}
    ]  # fmt: skip
    for text in ("nan", "NaN", "[1,]"):
        [record] = asked(tmp_path, f"SELECT TRY_CAST('{text}' AS JSON) AS x").records()
        assert record.data in (None, {"x": None})
    [record] = asked(tmp_path, "SELECT 1e308 * 10 AS x").records()
    assert record.error is not None
    assert record.error.message.startswith("rows.jsonl: row 1 of the statement: the column 'x' holds an infinity")


def test_records_that_cannot_be_used_are_rows_that_fail_after_the_others(tmp_path: Path) -> None:
    text = '{"n": 1}\nbroken\n{"n": 2}\n[]\n{"n": 3}\n'
    source = asked(tmp_path, "SELECT n FROM input WHERE n <> 2 ORDER BY n DESC", text=text)
    records = list(source.records())
    assert [(record.ordinal, record.data) for record in records] == [(1, {"n": 3}), (2, {"n": 1}), (3, None), (4, None)]
    problems = [record.error and record.error.type for record in records[2:]]
    assert problems == [ErrorType.INVALID_JSON, ErrorType.INVALID_ROW]
    assert [record.line for record in records[2:]] == [2, 4]
    assert all(list(source.records(start)) == records[start:] for start in range(6))
    assert list(asked(tmp_path, "SELECT n FROM input", text="\n").records()) == []


@pytest.mark.parametrize("kind", few(["jsonl", "parquet"], 2))
def test_what_sorts_more_than_fits_in_memory_goes_to_the_disk_and_leaves_nothing(
    kind: InputFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, total = tmp_path / "scratch", 300_000
    low = [one.replace(f"'{statements.MEMORY}'", "'150MB'") for one in statements._LOCKED]
    monkeypatch.setattr(statements, "_LOCKED", low)
    wide = f"SELECT (i * 7919) % {total} AS k, repeat('x', 500) || i AS text FROM input, range({total}) r(i) ORDER BY k"
    source = asked(tmp_path, wide, kind=kind)
    records = source.records()
    assert next(records).data == {"k": 0, "text": "x" * 500 + "0"}
    spilled = [path for path in scratch.rglob("*") if "spill" in str(path.parent)]
    assert sum(path.stat().st_size for path in spilled) > 10_000_000
    assert [next(records).data["k"] for _ in range(5_000)] == list(range(1, 5_001))  # type: ignore[index]
    records.close()  # type: ignore[attr-defined]
    assert len(list(scratch.iterdir())) == 1
    del source, records
    gc.collect()
    assert list(scratch.iterdir()) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    (scratch / ".agac-tmp-1-0-rows").write_text("{}")  # whose lock ended with its process
    (scratch / ".agac-tmp-1-0-rows.spill-3").mkdir()
    (scratch / ".agac-tmp-1-0-rows.spill-3/part.tmp").write_text("x")
    source = asked(tmp_path, "SELECT * FROM input")
    assert [path.name for path in scratch.iterdir()] == [f".agac-tmp-{os.getpid()}-0-rows"]
    other = asked(tmp_path, "SELECT id FROM input")
    assert [next(one.records()).data for one in (source, other)] == [{"id": "a", "n": 1}, {"id": "a"}]
