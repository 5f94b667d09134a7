"""Every statement of the store against the schema, and what those cost that a run, a look or a drop needs."""

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agac.store import db, writer

PLACEHOLDERS = re.compile(r":\w+|\?")
HOT = [
    "rows_at", "rows_by_id", "tasks_of_rows", "results_by_fingerprint", "rows_export", "rows_leaving", "number_last",
    "row_change", "row_place", "row_settle", "row_leave", "row_key_max", "result_id_max", "task_forget", "counters",
    "run_newest", "run_read", "lease_beat", "timings", "telemetry_upto", "telemetry_attempts",
]  # fmt: skip
LARGE = ("row", "task", "result", "attempt", "counter")


def fresh(path: Path) -> sqlite3.Connection:
    async def make() -> None:
        async with writer.open_database(path):
            pass

    asyncio.run(make())
    return sqlite3.connect(path)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A database for statements that are looked at and change nothing."""
    with closing(fresh(tmp_path_factory.mktemp("store") / "agac.db")) as made:
        made.execute(db.sql("found_make"))
        yield made


def statement_of(name: str) -> str:
    return db.sql_many(name, 8) if "(:many)" in db.sql(name) else db.sql(name)


def plan_of(connection: sqlite3.Connection, name: str) -> list[str]:
    plan = []
    for statement in db.split_script(statement_of(name)):
        named = set(re.findall(r":(\w+)", statement))
        count = len(set(re.findall(r"\?\d+", statement))) or statement.count("?")
        values = dict.fromkeys(named) if named else [None] * count
        plan += [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + statement, values)]
    return plan


@pytest.mark.parametrize("name", sorted(db.statements()))
def test_every_statement_fits_the_schema(connection: sqlite3.Connection, name: str) -> None:
    plan_of(connection, name)


def test_every_statement_has_a_sentence() -> None:
    for name, text in db.statements().items():
        assert re.match(r"-- [A-Z].*[.:]\n", text), name


def test_every_statement_is_used() -> None:
    code = "".join(path.read_text("utf-8") for path in Path(db.__file__).parents[1].rglob("*.py"))
    steps = {name: name.removeprefix("batch_") for name in db.statements()}  # `Journal.write` is told the step alone
    assert [name for name, step in steps.items() if f'"{name}"' not in code and f'"{step}"' not in code] == []


@pytest.mark.parametrize("name", HOT)
def test_hot_statements_use_an_index(connection: sqlite3.Connection, name: str) -> None:
    plan = plan_of(connection, name)
    scans = [line for line in plan if re.match(rf"SCAN ({'|'.join(LARGE)}|[rtva])\b", line)]
    assert not [line for line in scans if not line.endswith("COVERING INDEX row_id")], plan


@pytest.mark.parametrize(
    "name",
    [
        "rows_at", "rows_export", "telemetry_attempts", "gc_roots", "gc_left_rows", "tasks_look", "rows_by_place",
        "rows_by_place_back", "rows_in_id_order", "rows_made_by", "rows_failed_so", "rows_made_failed_so",
    ],
)  # fmt: skip
def test_rows_come_in_order_without_being_sorted(connection: sqlite3.Connection, name: str) -> None:
    assert not [line for line in plan_of(connection, name) if "FOR ORDER BY" in line]


INDEXES = {
    "row_ordinal": "rows_at rows_export rows_leaving ids_from gc_roots gc_left_rows rows_by_place rows_by_place_back",
    "row_id": "rows_by_id number_last rows_look rows_in_id_order",
    "row_origin": "rows_made_by",
    "row_failed": "rows_failed_so rows_made_failed_so",
    "result_fingerprint": "results_by_fingerprint gc_asked_elsewhere",
    "PRIMARY KEY": "tasks_of_rows tasks_look tasks_counted gc_row_drop row_gone gc_run_drop",
    "run_identity": "run_newest",
    "attempt_task": "calls_of_row gc_row_drop",
    "event_run": "invocations_read gc_run_drop",
    "definition": "definitions_read",
    "row_parent": "gc_tree",
    "row_": "gc_row_count",
    "member_row": "memberships",
    "INTEGER PRIMARY KEY": "gc_row_drop gc_result_drop gc_references gc_results gc_attempt_endpoints",
}
"""The statements that go by an index."""


@pytest.mark.parametrize(("name", "index"), [(name, index) for index in INDEXES for name in INDEXES[index].split()])
def test_statements_go_by_the_index_that_was_made_for_them(
    connection: sqlite3.Connection, name: str, index: str
) -> None:
    plan = plan_of(connection, name)
    assert any(index in line and line.startswith("SEARCH") for line in plan), plan
    assert not [line for line in plan if re.match(r"SCAN (row|task|result|attempt|[rtva])\b", line)], plan


def test_only_the_search_for_the_origin_of_an_answer_reads_all_tasks(connection: sqlite3.Connection) -> None:
    assert plan_of(connection, "results_asked") == ["SCAN t", "SEARCH r USING INTEGER PRIMARY KEY (rowid=?)"]


def test_values_are_padded_to_a_few_sizes_by_what_matches_nothing(connection: sqlite3.Connection) -> None:
    assert [len(db.padded(list(range(n)))) for n in (0, 1, 8, 9, 500, 512)] == [8, 8, 8, 16, 512, 512]
    assert db.padded([1, 2])[2:] == [None] * 6
    assert connection.execute(db.sql_many("rows_by_id", 8), (1, *db.padded([]))).fetchall() == []


def test_names_are_not_given_twice() -> None:
    text = (Path(db.__file__).parent / "queries.sql").read_text("utf-8")
    names = re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)
    assert len(names) == len(set(names)) == len(db.statements())


def test_migrations_are_numbered_from_the_baseline_without_gaps() -> None:
    assert [number for number, _ in db.migrations()] == list(range(11, len(db.migrations()) + 11))


def test_a_semicolon_within_a_line_ends_no_statement() -> None:
    script = "-- a; comment\nCREATE TABLE a (b TEXT DEFAULT ';x');\nCREATE TABLE c (d);  \n"
    assert db.split_script(script) == ["CREATE TABLE a (b TEXT DEFAULT ';x')", "CREATE TABLE c (d)"]
