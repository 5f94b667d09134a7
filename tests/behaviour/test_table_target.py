"""`output.to`: rows put into a table by their id, beside what others have there."""

import os
import re
import sqlite3
import sys
from contextlib import closing
from itertools import product
from typing import Any

import pytest
from support.project import ProjectFolder, python
from support.server import Faulty, Server
from support.soak import few

import agac
from agac.data import sqlite

ECHO = {"model": "local/echo"}
SAY = [{"name": "say", "prompt": "${text}"}]
TO = "sqlite://data/out.db?table=results"
ROWS = [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]


def sql(project: ProjectFolder, *statements: str, path: str = "data/out.db") -> list[tuple[Any, ...]]:
    """Runs statements one after the other; gives what the last one finds."""
    (project.root / path).parent.mkdir(parents=True, exist_ok=True)
    found: list[tuple[Any, ...]] = []
    with closing(sqlite3.connect(project.root / path)) as connection, connection:
        for statement in statements:
            found = connection.execute(statement).fetchall()
    return found


def run(project: ProjectFolder, rows: list[dict[str, Any]] = ROWS, to: str = TO, **keys: Any) -> agac.RunReport:
    project.rows(rows, "data/rows.jsonl")
    output = {"to": to, **keys.pop("output", {})}
    project.workflow(path="data/rows.jsonl", output=output, **{"defaults": ECHO, "stages": SAY, **keys})
    return project.run()


def refused(project: ProjectFolder, words: str, **keys: Any) -> str:
    """What `run`, `plan` and `validate` say alike before anything is asked; they leave all files as they are."""
    with pytest.raises(agac.SpecError) as caught:
        run(project, **keys)
    (problem,) = caught.value.problems
    assert (problem.path, problem.where.file) == ("output.to", "workflows/reviews.yml")
    assert re.search(words, problem.message), problem.message
    before = {path: path.stat().st_mtime_ns for path in project.root.rglob("*")}
    assert agac.validate("reviews", project=project.root).problems == [problem]
    with pytest.raises(agac.SpecError) as planned:
        agac.plan("reviews", project=project.root)
    assert planned.value.problems == [problem]
    assert {path: path.stat().st_mtime_ns for path in project.root.rglob("*")} == before
    assert not (project.root / "output/reviews").exists()
    return problem.message


def not_written(project: ProjectFolder, words: str, **keys: Any) -> agac.AgacError:
    """Why the table was not written at the end of a run, whose other files were."""
    report = run(project, **keys)
    error = report.not_written
    assert error is not None
    assert re.search(words, error.message), error.message
    assert report.exit_code == 1
    assert error.remedy is not None
    assert f"Write the table with: agac export --run {report.summary['run']}" in error.remedy
    assert len(project.envelopes()) == report.summary["rows"]["total"]
    assert [file.name for file in report.files][:2] == ["results.jsonl", "results.json"]
    assert project.root / "data/out.db" not in report.files
    return error


def test_the_table_is_made_and_its_rows_are_brought_up_to_date_by_id(project: ProjectFolder, faulty: Faulty) -> None:
    run(project)
    assert sql(project, "SELECT * FROM results") == [("a", "one", "one", None), ("b", "two", "two", None)]
    assert sql(project, "SELECT name, type, pk FROM pragma_table_info('results')") == [
        ("id", "TEXT", 1), ("text", "TEXT", 0), ("result", "TEXT", 0), ("error", "TEXT", 0),
    ]  # fmt: skip
    run(project, [{"id": "b", "text": "TWO"}, {"id": "c", "text": "three"}])
    found = "SELECT id, result, error FROM results ORDER BY id"
    assert sql(project, found) == [("a", "one", None), ("b", "TWO", None), ("c", "three", None)]
    project.configure(faulty([{"kind": "refusal", "match": "2", "message": "no"}]).base_url)
    assert run(project, [{"id": "b", "text": "2"}]).exit_code == 3  # a row that fails later loses its result
    assert sql(project, found) == [
        ("a", "one", None),
        ("b", None, "Refused: the model refused: no"),
        ("c", "three", None),
    ]


def test_what_others_have_in_the_database_stays(project: ProjectFolder) -> None:
    run(project)
    sql(
        project, "CREATE TABLE theirs (x)", "INSERT INTO theirs VALUES (1)",
        "ALTER TABLE results ADD COLUMN reviewed_by TEXT", "UPDATE results SET reviewed_by = 'ann'",
        "INSERT INTO results (id, result) VALUES ('hand', 'made')",
        "CREATE INDEX theirs_too ON results (reviewed_by)",
    )  # fmt: skip
    run(project, [{"id": "a", "text": "ONE"}])
    assert sql(project, "SELECT id, result, reviewed_by FROM results ORDER BY id") == [
        ("a", "ONE", "ann"), ("b", "two", "ann"), ("hand", "made", None),
    ]  # fmt: skip
    assert sql(project, "SELECT * FROM theirs") == [(1,)]
    assert sql(project, "SELECT count(*) FROM sqlite_master WHERE name = 'theirs_too'") == [(1,)]


def test_columns_that_the_table_lacks_are_added(project: ProjectFolder) -> None:
    run(project)
    run(project, [{"id": "a", "text": "one", "more": 5}], output={"merge": "append"})
    assert sql(project, "SELECT id, text, result, error, more, say FROM results ORDER BY id") == [
        ("a", "one", "one", None, 5, "one"), ("b", "two", "two", None, None, None),
    ]  # fmt: skip


ID_STAGE = [{"name": "say", "prompt": "${text}", "output_schema": {"id": "integer", "ID": "boolean"}}]
WIDE = {"long": 2**63 - 1, "huge": 2**70, "f": 0.1, "t": True, "none": None, "list": [1, "ü"], "zeros": "007"}
WRITTEN: dict[str, tuple[list[str], list[dict[str, Any]], dict[str, Any], str, list[tuple[Any, ...]]]] = {
    "a table of the user takes rows whatever the case of its columns": (
        ["CREATE TABLE results (No INTEGER PRIMARY KEY, ID TEXT UNIQUE, Result VARCHAR(10), n REAL)"],
        [{"id": "a", "text": "one", "n": 1}], {},
        "SELECT No, ID, Result, n, text FROM results", [(1, "a", "one", 1.0, "one")],
    ),
    "whole numbers as ids meet whole numbers": (
        ["CREATE TABLE results (id INTEGER PRIMARY KEY, note TEXT)", "INSERT INTO results VALUES (5, 'mine')"],
        [{"id": 5, "text": "five"}, {"id": 2**63 - 1, "text": "last"}], {},
        "SELECT id, note, result FROM results", [(5, "mine", "five"), (2**63 - 1, None, "last")],
    ),
    "rows without an id of their own are left out": (
        [], [{"id": "3", "text": "three"}, {"id": "3", "text": "again"}, {"id": "", "text": "no"}, {"text": "no"}],
        {"output": {"format": "csv"}}, "SELECT id, text FROM results", [("3", "three")],
    ),
    "ids that were made unique stand in the table": (
        [], [{"id": "a", "text": "one"}, {"id": "a", "text": "two"}], {"input": {"on_duplicate_id": "suffix"}},
        "SELECT id, result FROM results", [("a", "one"), ("a#2", "two")],
    ),
    "values keep their type": (
        [], [{"id": "a", "text": "x", **WIDE}, {"id": "b", "text": "y", "f": "0.10", "long": "12"}], {},
        "SELECT long, huge, f, t, none, list, zeros FROM results ORDER BY id",
        [(2**63 - 1, str(2**70), 0.1, 1, None, '[1,"ü"]', "007"), ("12", None, "0.10", None, None, None, None)],
    ),
    "integers beside other ids are texts in the table": (
        [], [{"id": 5, "text": "five"}, {"id": "a", "text": "x"}, {"id": 2**70, "text": "wide"}], {},
        "SELECT id, typeof(id) FROM results ORDER BY rowid", [("5", "text"), ("a", "text"), (str(2**70), "text")],
    ),
    "an unusable row does not make texts of integers": (
        [], [{"id": 5, "text": "five"}, {"id": None, "text": "x"}, {"id": 5, "text": "again"}], {},
        "SELECT id, typeof(id) FROM results", [(5, "integer")],
    ),
    "a result that has an id too does not take the row's place": (
        [], ROWS, {"stages": ID_STAGE, "output": {"merge": "replace"}},
        "SELECT id, (SELECT group_concat(name) FROM pragma_table_info('results')) FROM results",
        [("a", "id,id_2,ID_3,error"), ("b", "id,id_2,ID_3,error")],
    ),
    "the row number is an integer": (
        [], ROWS, {"input": {"id_field": None}},
        "SELECT type, pk FROM pragma_table_info('results') WHERE name = 'row_number'", [("INTEGER", 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITTEN)
def test_what_stands_in_the_table(project: ProjectFolder, case: str) -> None:
    before, rows, keys, query, found = WRITTEN[case]
    sql(project, *before)
    report = run(project, rows, **keys)
    assert sql(project, query) == found
    failed = len(project.envelopes(file="errors.jsonl"))
    assert sql(project, "SELECT count(*) FROM results") == [(len(rows) - failed,)]
    assert report.exit_code == (3 if failed else 0)


def test_numbered_rows_are_found_by_their_number(project: ProjectFolder) -> None:
    keys: dict[str, Any] = {"input": {"id_field": None}}
    run(project, [{"id": "x", "text": "one"}, {"id": "x", "text": "two"}], **keys)
    run(project, [{"id": "x", "text": "ONE"}, {"id": "x", "text": "two"}], **keys)
    assert sql(project, "SELECT row_number, id, result FROM results") == [(1, "x", "ONE"), (2, "x", "two")]


def test_it_may_be_the_database_that_rows_come_from(project: ProjectFolder, server: Server) -> None:
    sql(project, "CREATE TABLE rows (id TEXT, text TEXT)", "INSERT INTO rows VALUES ('a', 'one'), ('b', 'two')")
    source = "sqlite://data/out.db?query=SELECT * FROM rows ORDER BY id"
    project.workflow(path=source, defaults=ECHO, stages=SAY, output={"to": TO})
    for _ in range(2):
        project.run()
    assert sql(project, "SELECT id, result FROM results") == [("a", "one"), ("b", "two")]
    assert sql(project, "SELECT * FROM rows") == [("a", "one"), ("b", "two")]
    assert server.account()["requests"] == 2


def test_a_stop_at_a_limit_writes_into_the_database_that_was_being_read(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "bad"}]).base_url)
    values = ", ".join(f"('r{i:04}', '{'bad' if i > 3 else 'good'}')" for i in range(2000))
    sql(project, "CREATE TABLE rows (id TEXT, text TEXT)", f"INSERT INTO rows VALUES {values}")
    source = "sqlite://data/out.db?query=SELECT * FROM rows ORDER BY id"
    project.workflow(path=source, defaults=ECHO, stages=SAY, output={"to": TO}, max_errors=1, stop_loss=False)
    assert project.run(concurrency=1).exit_code == 4
    assert sql(project, "SELECT count(*) FROM results WHERE result = 'good'") == [(4,)]


SAY_TEAM = [{"name": "say", "prompt": "${text}", "output_schema": {"team": "string"}}]
REFUSED: list[tuple[list[str], str, dict[str, Any]]] = [
    (["CREATE TABLE results (x)"], r"table 'results' has no column 'id', by which its rows would be found", {}),
    (["CREATE TABLE results (id TEXT, result)"], r"the ids in 'id' are not unique", {}),
    (["CREATE TABLE results (id TEXT, k INTEGER, PRIMARY KEY (id, k))"], r"the ids in 'id' are not unique", {}),
    (["CREATE VIEW results AS SELECT 1 AS id"], r"table 'results' is a view", {}),
    (["PRAGMA journal_mode = WAL", "CREATE TABLE results (x)"], "has no column 'id'", {}),
    (
        ["CREATE TABLE results (id TEXT PRIMARY KEY, team INTEGER)"],
        "the column 'team' is INTEGER, but text", {"stages": SAY_TEAM, "output": {"merge": "replace"}},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "words", "keys"), REFUSED, ids=[words for _, words, _ in REFUSED])
def test_a_table_that_cannot_take_rows_by_id_is_refused_before_anything_is_asked(
    project: ProjectFolder, server: Server, statements: list[str], words: str, keys: dict[str, Any]
) -> None:
    sql(project, *statements)
    error = refused(project, words, **keys)
    assert error.startswith("data/out.db: table 'results'")
    assert "Name another table in output.to" in error
    assert server.account()["requests"] == 0
    assert [path.name for path in (project.root / "data").glob("out.db*")] == ["out.db"]  # also with a log
    assert project.run(limit=1).exit_code == 0  # a preview has a table of its own


def test_the_remedy_for_ids_that_are_not_unique_works(project: ProjectFolder) -> None:
    sql(project, "CREATE TABLE results (id TEXT)")
    sql(project, refused(project, "not unique").partition("Or run ")[2])
    assert run(project).exit_code == 0


@pytest.mark.parametrize("declared", ["INTEGER", "BIGINT", "REAL", "NUMERIC", "DATE"])
def test_texts_are_not_turned_into_numbers_but_refused(project: ProjectFolder, server: Server, declared: str) -> None:
    sql(project, f"CREATE TABLE results (id TEXT PRIMARY KEY, text {declared})")
    error = not_written(project, f"the column 'text' is {declared}, but text would be written into it")
    assert error.remedy is not None
    assert "turn '007' into 7" in error.remedy
    assert sql(project, "SELECT * FROM results") == []
    sql(project, "DROP TABLE results")
    agac.export("reviews", project=project.root)
    assert len(sql(project, "SELECT * FROM results")) == 2
    assert server.account()["requests"] == 2


@pytest.mark.parametrize(
    ("declared", "kept", "changed"),
    [
        ("TEXT", [0.30000000000000004, 2**60 + 1, 0.1], []),
        ("REAL", [0.30000000000000004, 2**53, 2**60], [2**53 + 1, 2**62 + 1]),
        ("DOUBLE PRECISION", [0.1], [2**53 + 1]),
        ("NUMERIC", [0.30000000000000004, 2**62 + 1], []),
        ("INTEGER", [0.30000000000000004, 2**62 + 1], []),
    ],
)
def test_a_number_is_stored_with_all_its_digits_or_refused(
    project: ProjectFolder, declared: str, kept: list[float], changed: list[int]
) -> None:
    sql(project, f"CREATE TABLE results (id TEXT PRIMARY KEY, x {declared})")
    for number, value in enumerate(kept):
        assert run(project, rows=[{"id": f"r{number}", "x": value, "text": "t"}]).exit_code == 0
        ((stored,),) = sql(project, f"SELECT x FROM results WHERE id = 'r{number}'")
        assert type(value)(stored) == value
    for value in changed:
        report = run(project, rows=[{"id": "a", "x": value, "text": "t"}])
        assert report.not_written is not None
        assert f"the column 'x' is {declared}, which would change {value}" in report.not_written.message
        assert sql(project, "SELECT count(*) FROM results WHERE id = 'a'") == [(0,)]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("text AS (id || 'x')", "the column 'text' is computed by SQLite"),
        ("must TEXT NOT NULL", r"data/out\.db: table 'results': NOT NULL constraint failed: results\.must"),
    ],
)
def test_a_computed_column_and_a_constraint_are_told_and_nothing_is_written(
    project: ProjectFolder, column: str, words: str
) -> None:
    sql(project, f"CREATE TABLE results (id TEXT PRIMARY KEY, {column})")
    not_written(project, words)
    assert sql(project, "SELECT * FROM results") == []
    assert sql(project, "SELECT count(*) FROM pragma_table_xinfo('results')") == [(2,)]


def test_more_columns_than_sqlite_has_are_told_by_each_run(project: ProjectFolder) -> None:
    error = not_written(
        project, "too many columns", rows=[{"id": "a", "text": "x", **{f"c{i}": i for i in range(2100)}}]
    )
    assert error.remedy is not None
    assert "2000 columns" in error.remedy
    assert not (project.root / "data/out.db").exists()
    report = project.run()
    assert (report.exit_code, report.invocation["calls"]) == (1, 0)
    assert report.not_written is not None


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_database_that_cannot_be_written_is_told_before_anything_is_asked(project: ProjectFolder) -> None:
    sql(project, "CREATE TABLE x (y)")
    (project.root / "data/out.db").chmod(0o444)
    refused(project, "cannot be written")


def test_a_broken_database_is_told_before_anything_is_asked(project: ProjectFolder, server: Server) -> None:
    path = project.root / "data/out.db"
    path.parent.mkdir()
    path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    error = refused(project, r"data/out\.db: file is not a database")
    assert error.endswith("Name a SQLite database in output.to.")
    assert server.account()["requests"] == 0


KILL = """
import os, signal, sys
import agac
from agac.data.sqlite import TableSink

place = sys.argv[1]
if place == "commit":
    TableSink.commit = lambda self: os.kill(os.getpid(), signal.SIGKILL)
else:
    write = TableSink.write
    def writes_and_dies(self, rows):
        write(self, rows)
        os.kill(os.getpid(), signal.SIGKILL)
    TableSink.write = writes_and_dies
agac.run("reviews", project=sys.argv[2])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("place", ["write", "commit"])
def test_a_kill_leaves_the_table_as_it_was_and_the_next_run_mends_it(
    project: ProjectFolder, server: Server, place: str
) -> None:
    run(project)
    project.rows([{"id": "a", "text": "ONE"}, {"id": "c", "text": "three"}], "data/rows.jsonl")
    ended = python(project.root, "-c", KILL, place, str(project.root))
    assert ended.code == -9, ended.err
    assert sql(project, "SELECT id, result FROM results ORDER BY id") == [("a", "one"), ("b", "two")]
    project.run()
    assert sql(project, "SELECT id, result FROM results ORDER BY id") == [("a", "ONE"), ("b", "two"), ("c", "three")]
    assert server.account()["requests"] == 4


def test_a_table_behind_a_view_of_the_input_is_refused_before_any_call(project: ProjectFolder, server: Server) -> None:
    sql(
        project, "CREATE TABLE source (id TEXT PRIMARY KEY, text TEXT)", "INSERT INTO source VALUES ('a', 'one')",
        "CREATE VIEW seen AS SELECT * FROM source",
    )  # fmt: skip
    source = "sqlite://data/out.db?query=SELECT * FROM seen ORDER BY id"
    project.workflow(path=source, stages=SAY, output={"to": "sqlite://data/out.db?table=source"})
    assert "the input reads the table 'source'" in project.agac("run", "-a", "reviews", code=2).err
    assert server.account()["requests"] == 0


def integers(project: ProjectFolder, source: str) -> str:
    """Rows 5 and 6, whose ids are integers, in a file of their own; gives the input's path."""
    (project.root / "data").mkdir(exist_ok=True)
    if source == "jsonl":
        project.rows([{"id": 5, "text": "five"}, {"id": 6, "text": "six"}], "data/n.jsonl")
        return "data/n.jsonl"
    if source == "sqlite":
        made = ("CREATE TABLE n (id INTEGER, text TEXT)", "INSERT INTO n VALUES (5, 'five'), (6, 'six')")
        sql(project, *made, path="data/n.db")
        return "sqlite://data/n.db?table=n"
    duckdb = pytest.importorskip("duckdb")
    rows = "SELECT * FROM (VALUES (5::BIGINT, 'five'), (6, 'six')) r(id, text)"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({rows}) TO '{project.root}/data/n.parquet' (FORMAT parquet)")
    return "data/n.parquet"


INTEGERS = list(product(["jsonl", "sqlite", "parquet"], [None, "replace", "extend", "update", "append"]))


@pytest.mark.parametrize(("source", "merge"), few(INTEGERS, 2))
def test_integers_as_ids_stay_integers_in_a_new_table_and_in_one_of_the_user(
    project: ProjectFolder, source: str, merge: str | None
) -> None:
    path = integers(project, source)
    output = {"merge": merge} if merge else {}
    project.workflow(path=path, defaults=ECHO, stages=SAY, output={"to": TO, **output})
    assert project.run().exit_code == 0
    assert sql(project, "SELECT type, pk FROM pragma_table_info('results') WHERE name = 'id'") == [("INTEGER", 1)]
    assert sql(project, "SELECT id, typeof(id) FROM results") == [(5, "integer"), (6, "integer")]
    mine = ("CREATE TABLE mine (note, id INTEGER PRIMARY KEY)", "INSERT INTO mine VALUES ('x', 5)")
    sql(project, *mine)
    to = "sqlite://data/out.db?table=mine"
    project.workflow(path=path, defaults=ECHO, stages=SAY, output={"to": to, **output})
    for _ in range(2):
        assert project.run().exit_code == 0
    said = "say" if merge == "append" else "result"
    assert sql(project, f"SELECT id, note, {said} FROM mine") == [(5, "x", "five"), (6, None, "six")]


def test_texts_of_a_csv_file_are_refused_in_a_column_of_numbers_before_anything_is_asked(
    project: ProjectFolder, server: Server
) -> None:
    project.rows(ROWS)
    sql(project, "CREATE TABLE results (id INTEGER PRIMARY KEY, text REAL)")
    project.workflow(defaults=ECHO, stages=SAY, output={"to": TO})
    (problem,) = agac.validate("reviews", project=project.root).problems
    assert "the column 'id' is INTEGER, but text would be written into it; the column 'text' is REAL" in problem.message
    for command in ("plan", "run"):
        assert str(problem) in project.agac(command, "-a", "reviews", code=2).err
    assert server.account()["requests"] == 0


def test_a_table_that_is_locked_at_the_end_keeps_no_other_file_from_being_replaced(
    project: ProjectFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(project, output={"format": "csv"})
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    project.rows([{"id": "c", "text": "three"}], "data/rows.jsonl")
    code = "import sys, agac.data.sqlite as d; d.BUSY_SECONDS = 0.05; from agac.cli.main import main; main()"
    with closing(sqlite3.connect(project.root / "data/out.db", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        ended = python(project.root, "-c", code, "run", "-a", "reviews")
        assert ended.code == 1
        assert ended.err.endswith(
            "not written: data/out.db: table 'results': database is locked; nothing of it was written\n"
            "  Another program holds the database: let it end. The results are stored, and all other files are written."
            " Write the table with: agac export --run 1\n"
        )
        assert "out.db" not in ended.out
        assert "Results: output/reviews/results.jsonl" in ended.out
        assert project.output() == ["three"]
        assert (project.root / "output/reviews/results.csv").read_text() == "id,text,result,error\nc,three,three,\n"
        status = project.agac("status")
        assert "Not written: data/out.db. Write it with: agac export --run 1\n" in status.out
        assert "Results of run 1: output/reviews/results.jsonl" in status.out
        assert project.agac("status", "--json").json["runs"][0]["not_written"] == ["data/out.db"]
        with pytest.raises(agac.AgacError, match="database is locked; nothing of it was written"):
            agac.export("reviews", project=project.root)
    assert project.run().exit_code == 0
    assert sql(project, "SELECT id FROM results ORDER BY id") == [("a",), ("b",), ("c",)]
    assert project.agac("status", "--json").json["runs"][0]["not_written"] == []
    assert server.account()["requests"] == 3


@pytest.mark.parametrize("order", [("Name", "name", "NAME"), ("name", "NAME", "Name")])
def test_columns_that_differ_by_case_keep_their_values_apart(project: ProjectFolder, order: tuple[str, ...]) -> None:
    run(project, [{"id": "a", "text": "x", "Name": 1, "name": 2}], output={"format": "csv"})
    run(project, [{"id": "b", "text": "y", **{name: name for name in order}}], output={"format": "csv"})
    assert sql(project, "SELECT id, Name, name_2, NAME_3 FROM results") == [
        ("a", 1, 2, None), ("b", "Name", "name", "NAME"),
    ]  # fmt: skip
    header = (project.root / "output/reviews/results.csv").read_text().partition("\n")[0]
    assert header == ",".join(["id", "text", *order, "result", "error"])
