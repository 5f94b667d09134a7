"""`agac data`: what is shown of an input, whatever it is."""

import contextlib
import gzip
import json
import sqlite3
from pathlib import Path

import duckdb
import pytest
from support.project import ProjectFolder, Ran, command, to_its_end

import agac
from agac.core.errors import UsageError


def data(folder: Path, *arguments: str, content: bytes = b"") -> Ran:
    return to_its_end(command(["data", *arguments]), folder, input=content)


def test_columns_types_and_first_rows(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("id,stars,when,text\n1,4.5,2024-01-01,fine\n2,,2024-01-02,a|b\n3,2\n")
    assert data(tmp_path, "r.csv", "--rows", "2").out.split("\n") == [
        "r.csv: csv, 63 bytes, 3 rows",
        "",
        "Columns:",
        "column  type             null  empty  missing",
        "id      integer as text     0      0        0",
        "stars   number as text      0      1        0",
        "when    date as text        0      0        1",
        "text    string              0      0        1",
        "",
        "First 2 rows:",
        "id  stars  when        text",
        "1   4.5    2024-01-01  fine",
        "2          2024-01-02  a|b",
        "",
    ]


def test_json_holds_all_of_it(tmp_path: Path) -> None:
    rows = [{"id": 2**63, "x": None}, {"id": 1.5, "x": [1]}, {"id": "7", "x": {"y": 1}, "more": True}]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    found = data(tmp_path, "r.jsonl", "--json").json
    assert found["rows"] == rows
    assert (found["rows_looked_at"], found["unusable"], found["complete"], found["format"]) == (4, 1, True, "jsonl")
    assert found["problems"][0].startswith("r.jsonl:4: not valid JSON")
    assert [(c["name"], c["type"], c["nulls"], c["missing"]) for c in found["columns"]] == [
        ("id", "number or integer as text", 0, 0), ("x", "list or object", 1, 0), ("more", "boolean", 0, 2),
    ]  # fmt: skip


def test_wide_rows_are_below_each_other_and_of_a_large_file_the_beginning_is_read(tmp_path: Path) -> None:
    long = "word " * 2_000
    (tmp_path / "r.jsonl").write_text(json.dumps({"id": 1, "text": long + "\nsecond line\x1b[31m"}) + "\n")
    (tmp_path / "r.txt").write_text("line\n" * 5_000)
    assert data(tmp_path, "r.txt", "--scan-rows", "100").out.startswith("r.txt: txt, 25 kB, more than 100 rows\n")
    assert f"row 1\n  id: 1\n  text: {long}\n    second line\\x1b[31m\n" in data(tmp_path, "r.jsonl").out


def test_standard_input_files_and_several(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("1.csv", "2.csv"):
        (tmp_path / "a" / name).write_text("id\nx\n")
    assert data(tmp_path, "-", content=b'[{"id": 1}]').out.startswith("standard input: json, 11 bytes, 1 row\n")
    packed = data(tmp_path, "-", "--format", "csv", content=gzip.compress(b"id\n1\n"))
    assert packed.out.startswith("standard input: csv, ")
    assert data(tmp_path, "a/*.csv").out.startswith("a/*.csv: csv, 2 files, 10 bytes, 2 rows\n")
    assert data(tmp_path, "a/2.csv", "a/1.csv").out.startswith("a/2.csv, a/1.csv: csv, 2 files, 10 bytes, 2 rows\n")
    assert data(tmp_path, "a", "--format", "files", "--json").json["rows"][0]["path"] == "a/1.csv"
    with contextlib.closing(sqlite3.connect(tmp_path / "it's.db")) as connection:
        connection.executescript("".join(f"CREATE TABLE t{n} (id);" for n in range(9)))
    for name in ("it's.db", "sqlite://it's.db"):
        assert data(tmp_path, name).out.endswith("\nt8     sqlite://it's.db?table=t8\n")
    assert not (tmp_path / ".agac").exists()


def test_folders_of_parquet_files_are_fields_on_request(tmp_path: Path) -> None:
    (tmp_path / "year=2024").mkdir()
    duckdb.sql("SELECT 'x' AS t").write_parquet(str(tmp_path / "year=2024/rows.parquet"))
    shown = data(tmp_path, "*/*.parquet", "--hive", "--json").json
    assert [column["name"] for column in shown["columns"]] == ["t", "year"]
    assert [column["name"] for column in data(tmp_path, "*/*.parquet", "--json").json["columns"]] == ["t"]
    (tmp_path / "r.csv").write_text("id\n1\n")
    refused = data(tmp_path, "r.csv", "--hive")
    assert (refused.code, "--hive: hive is for parquet; r.csv is csv" in refused.err) == (2, True), refused.err


def test_what_cannot_be_shown_is_said(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("id\n")
    for arguments, words in (
        (["nope.csv"], "nope.csv: no such file"),
        (["-"], "standard input: nothing came"),
        (["r.csv", "--format", "cvs"], "--format cvs: unknown format"),
        (["hf://datasets/x"], "hf://datasets/x: names nothing on the hub"),
        (["."], "error: .: is a folder\n  Name a file in it, or several as './*.csv'"),
    ):
        ended = data(tmp_path, *arguments)
        assert ended.code == 2, arguments
        assert words in ended.err


def test_it_is_a_function_too_and_paths_are_those_that_a_run_would_give(tmp_path: Path, project: ProjectFolder) -> None:
    project.write("docs/a.md", "x")
    ended = data(project.root / "docs", "*.md", "--format", "files", "--json")
    assert [row["path"] for row in ended.json["rows"]] == ["docs/a.md"]
    (tmp_path / "r.csv").write_text("id\n1\n")
    report = agac.show_data(tmp_path / "r.csv")
    assert isinstance(report, agac.DataReport)
    assert report.rows == [{"id": "1"}]
    with pytest.raises(UsageError, match="no input is named"):
        agac.show_data([])
