"""`output.to`: rows put into a table by their id, beside what others have there."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from support.project import ProjectFolder
from support.server import Server

import agac
from agac.data.outputs import database

Faulty = Callable[..., Server]
ECHO = {"model": "local/echo"}
SAY = [{"name": "say", "prompt": "${text}"}]
TO = "sqlite://data/out.db?table=results"
ROWS = [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]


def sql(project: ProjectFolder, *statements: str, path: str = "data/out.db") -> list[tuple[Any, ...]]:
    """Runs statements one after the other; gives what the last one finds."""
    (project.root / path).parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(project.root / path)
    found: list[tuple[Any, ...]] = []
    for statement in statements:
        found = connection.execute(statement).fetchall()
    connection.commit()
    connection.close()
    return found


def run(project: ProjectFolder, rows: list[dict[str, Any]] = ROWS, to: str = TO, **keys: Any) -> agac.RunReport:
    project.rows(rows, "data/rows.jsonl")
    output = {"to": to, **keys.pop("output", {})}
    project.workflow(path="data/rows.jsonl", output=output, **{"defaults": ECHO, "stages": SAY, **keys})
    return project.run()


def refused(project: ProjectFolder, words: str, **keys: Any) -> agac.AgacError:
    with pytest.raises(agac.AgacError, match=words) as caught:
        run(project, **keys)
    return caught.value


def test_the_table_is_made_with_the_id_as_its_key(project: ProjectFolder) -> None:
    run(project)
    assert sql(project, "SELECT * FROM results") == [("a", "one", "one", None), ("b", "two", "two", None)]
    assert sql(project, "SELECT name, type, pk FROM pragma_table_info('results')") == [
        ("id", "TEXT", 1), ("text", "TEXT", 0), ("result", "TEXT", 0), ("error", "TEXT", 0),
    ]  # fmt: skip


def test_rows_are_brought_up_to_date_by_id(project: ProjectFolder) -> None:
    run(project)
    run(project, [{"id": "b", "text": "TWO"}, {"id": "c", "text": "three"}])
    assert sql(project, "SELECT id, result FROM results ORDER BY id") == [("a", "one"), ("b", "TWO"), ("c", "three")]


def test_a_row_that_fails_later_loses_its_result_and_has_the_error(project: ProjectFolder, faulty: Faulty) -> None:
    run(project)
    project.configure(faulty([{"kind": "refusal", "match": "TWO", "message": "no"}]).base_url)
    assert run(project, [{"id": "b", "text": "TWO"}]).exit_code == 3
    assert sql(project, "SELECT id, result, error FROM results ORDER BY id") == [
        ("a", "one", None), ("b", None, "Refused: the model refused: no"),
    ]  # fmt: skip


def test_what_others_have_in_the_database_stays(project: ProjectFolder) -> None:
    run(project)
    sql(
        project,
        "CREATE TABLE theirs (x)",
        "INSERT INTO theirs VALUES (1)",
        "ALTER TABLE results ADD COLUMN reviewed_by TEXT",
        "UPDATE results SET reviewed_by = 'ann'",
        "INSERT INTO results (id, result) VALUES ('hand', 'made')",
        "CREATE INDEX theirs_too ON results (reviewed_by)",
    )
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


def test_a_table_that_the_user_made_takes_rows_whatever_the_case_of_its_columns(project: ProjectFolder) -> None:
    sql(project, "CREATE TABLE results (No INTEGER PRIMARY KEY, ID TEXT UNIQUE, Result VARCHAR(10), n REAL)")
    run(project, [{"id": "a", "text": "one", "n": 1}])
    assert sql(project, "SELECT No, ID, Result, n, text FROM results") == [(1, "a", "one", 1.0, "one")]


def test_whole_numbers_as_ids_meet_whole_numbers(project: ProjectFolder) -> None:
    sql(project, "CREATE TABLE results (id INTEGER PRIMARY KEY, note TEXT)", "INSERT INTO results VALUES (5, 'mine')")
    run(project, [{"id": 5, "text": "five"}, {"id": 2**63 - 1, "text": "last"}])
    assert sql(project, "SELECT id, note, result FROM results") == [(5, "mine", "five"), (2**63 - 1, None, "last")]


def test_numbered_rows_are_found_by_their_number(project: ProjectFolder) -> None:
    keys: dict[str, Any] = {"input": {"id_field": None}}
    run(project, [{"id": "x", "text": "one"}, {"id": "x", "text": "two"}], **keys)
    run(project, [{"id": "x", "text": "ONE"}, {"id": "x", "text": "two"}], **keys)
    assert sql(project, "SELECT row_number, id, result FROM results") == [(1, "x", "ONE"), (2, "x", "two")]


def test_rows_without_an_id_of_their_own_are_left_out(project: ProjectFolder) -> None:
    rows = [{"id": "3", "text": "three"}, {"id": "3", "text": "again"}, {"id": "", "text": "none"}, {"text": "none"}]
    assert run(project, rows, output={"format": "csv"}).exit_code == 3
    assert sql(project, "SELECT id, text FROM results") == [("3", "three")]
    assert len(project.envelopes(file="errors.jsonl")) == 3


def test_ids_that_were_made_unique_stand_in_the_table(project: ProjectFolder) -> None:
    rows = [{"id": "a", "text": "one"}, {"id": "a", "text": "two"}]
    run(project, rows, input={"on_duplicate_id": "suffix"})
    assert sql(project, "SELECT id, result FROM results") == [("a", "one"), ("a#2", "two")]


def test_a_result_that_has_an_id_too_does_not_take_the_rows_place(project: ProjectFolder) -> None:
    stage = {"name": "say", "prompt": "${text}", "output_schema": {"id": "integer", "ID": "boolean"}}
    run(project, stages=[stage], output={"merge": "replace"})
    assert [row[0] for row in sql(project, "SELECT id FROM results")] == ["a", "b"]
    columns = [row[0] for row in sql(project, "SELECT name FROM pragma_table_info('results')")]
    assert columns == ["id", "id_2", "ID_3", "error"]


def test_values_keep_their_type(project: ProjectFolder) -> None:
    values = {"long": 2**63 - 1, "huge": 2**70, "f": 0.1, "t": True, "none": None, "list": [1, "ü"], "zeros": "007"}
    run(project, [{"id": "a", "text": "x", **values}, {"id": "b", "text": "y", "f": "0.10", "long": "12"}])
    assert sql(project, "SELECT long, huge, f, t, none, list, zeros FROM results ORDER BY id") == [
        (2**63 - 1, str(2**70), 0.1, 1, None, '[1,"ü"]', "007"), ("12", None, "0.10", None, None, None, None),
    ]  # fmt: skip


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


REFUSED = [
    ("CREATE TABLE results (x)", r"table 'results' has no column 'id', by which its rows would be found"),
    ("CREATE TABLE results (id TEXT, result)", r"the ids in 'id' are not unique"),
    ("CREATE TABLE results (id TEXT, k INTEGER, PRIMARY KEY (id, k))", r"the ids in 'id' are not unique"),
    ("CREATE VIEW results AS SELECT 1 AS id", r"table 'results' is a view"),
]


@pytest.mark.parametrize(("statement", "words"), REFUSED)
def test_a_table_that_cannot_take_rows_by_id_is_refused_before_anything_is_asked(
    project: ProjectFolder, server: Server, statement: str, words: str
) -> None:
    sql(project, statement)
    error = refused(project, words)
    assert error.message.startswith("data/out.db: table 'results'")
    assert error.remedy is not None
    assert "Name another table in output.to" in error.remedy
    assert server.account()["requests"] == 0


def test_the_remedy_for_ids_that_are_not_unique_works(project: ProjectFolder) -> None:
    sql(project, "CREATE TABLE results (id TEXT)")
    error = refused(project, "not unique")
    assert error.remedy is not None
    sql(project, error.remedy.partition("Or run ")[2])
    assert run(project).exit_code == 0


@pytest.mark.parametrize("declared", ["INTEGER", "BIGINT", "REAL", "NUMERIC", "DATE"])
def test_texts_are_not_turned_into_numbers_but_refused(project: ProjectFolder, server: Server, declared: str) -> None:
    sql(project, f"CREATE TABLE results (id TEXT PRIMARY KEY, text {declared})")
    error = refused(project, f"the column 'text' is {declared}, but text would be written into it")
    assert error.remedy is not None
    assert "turn '007' into 7" in error.remedy
    assert sql(project, "SELECT * FROM results") == []
    assert not (project.root / "output/reviews/results.jsonl").exists()
    sql(project, "DROP TABLE results")
    agac.export("reviews", project=project.root)
    assert len(sql(project, "SELECT * FROM results")) == 2
    assert server.account()["requests"] == 2


def test_a_computed_column_is_refused(project: ProjectFolder) -> None:
    sql(project, "CREATE TABLE results (id TEXT PRIMARY KEY, text AS (id || 'x'))")
    refused(project, "the column 'text' is computed by SQLite")


def test_a_constraint_of_the_table_is_told_and_nothing_is_written(project: ProjectFolder) -> None:
    sql(project, "CREATE TABLE results (id TEXT PRIMARY KEY, must TEXT NOT NULL)")
    error = refused(project, r"data/out\.db: table 'results': NOT NULL constraint failed: results\.must")
    assert error.remedy is not None
    assert "all results are safe in the store" in error.remedy
    assert sql(project, "SELECT * FROM results") == []
    assert sql(project, "SELECT count(*) FROM pragma_table_info('results')") == [(2,)]


def test_a_database_that_is_locked_is_told(project: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run(project)
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    holder = sqlite3.connect(project.root / "data/out.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(agac.AgacError, match="database is locked") as caught:
            agac.export("reviews", project=project.root)
    finally:
        holder.close()
    assert caught.value.remedy == "Another program holds the database: let it end, then run `agac export`."


def test_more_columns_than_sqlite_has_are_told(project: ProjectFolder) -> None:
    row = {"id": "a", "text": "x", **{f"c{i}": i for i in range(2100)}}
    error = refused(project, "too many columns", rows=[row])
    assert error.remedy is not None
    assert "2000 columns" in error.remedy
    assert not (project.root / "data/out.db").exists()


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
    assert error.remedy == "Name a SQLite database in output.to."
    assert server.account()["requests"] == 0


KILL = """
import os, signal, sys
import agac
from agac.data.outputs.database import TableSink

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
    import subprocess

    run(project)
    project.rows([{"id": "a", "text": "ONE"}, {"id": "c", "text": "three"}], "data/rows.jsonl")
    ended = subprocess.run([sys.executable, "-c", KILL, place, str(project.root)], capture_output=True, timeout=60)
    assert ended.returncode == -9, ended.stderr
    assert sql(project, "SELECT id, result FROM results ORDER BY id") == [("a", "one"), ("b", "two")]
    project.run()
    assert sql(project, "SELECT id, result FROM results ORDER BY id") == [("a", "ONE"), ("b", "two"), ("c", "three")]
    assert server.account()["requests"] == 4


def test_a_table_behind_a_view_of_the_input_is_refused_before_any_call(project: ProjectFolder, server: Server) -> None:
    database = project.root / "data/rows.db"
    database.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE source (id TEXT PRIMARY KEY, text TEXT)")
        connection.execute("INSERT INTO source VALUES ('a', 'one')")
        connection.execute("CREATE VIEW seen AS SELECT * FROM source")
        connection.commit()
    project.write(
        "workflows/reviews.yml",
        "input: {path: 'sqlite://data/rows.db?query=SELECT * FROM seen ORDER BY id', id_field: id}\n"
        "stages: [{name: say, prompt: '${row_json}'}]\noutput: {to: 'sqlite://data/rows.db?table=source'}\n",
    )
    ran = project.agac("run", "-a", "reviews")
    assert (ran.code, "the input reads the table 'source'" in ran.err) == (2, True), ran.err
    assert server.account()["requests"] == 0


def test_ids_that_are_surely_text_are_refused_by_a_column_of_numbers_before_any_call(
    project: ProjectFolder, server: Server
) -> None:
    project.write("data/rows.csv", "id,text\n1,one\n")
    with closing(sqlite3.connect(project.root / "data/out.db")) as connection:
        connection.execute("CREATE TABLE results (id INTEGER PRIMARY KEY, text TEXT)")
    project.workflow(output={"to": "sqlite://data/out.db?table=results"})
    ran = project.agac("run", "-a", "reviews")
    assert (ran.code, "text would be written into it" in ran.err) == (2, True), ran.err
    assert server.account()["requests"] == 0
