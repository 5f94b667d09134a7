"""What looking and dropping cost: a way by an index to each row, and no sorting of a million of them."""

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from agac.store import db
from agac.store import db as sql


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    async def make() -> None:
        async with db.open_database(tmp_path / "agac.db"):
            pass

    asyncio.run(make())
    made = sqlite3.connect(tmp_path / "agac.db")
    yield made
    made.close()


def plan_of(connection: sqlite3.Connection, name: str) -> list[str]:
    statement = sql.sql_many(name, 8) if "(:many)" in sql.sql(name) else sql.sql(name)
    named = set(re.findall(r":(\w+)", statement))
    count = len(set(re.findall(r"\?\d+", statement))) or statement.count("?")
    values = dict.fromkeys(named) if named else [None] * count
    return [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + statement, values)]


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("rows_look", "row_id"),
        ("ids_from", "row_ordinal"),
        ("tasks_look", "PRIMARY KEY"),
        ("attempts_look", "attempt_task"),
        ("invocations_read", "event_run"),
        ("definitions_read", "definition"),
        ("gc_roots", "row_ordinal"),
        ("gc_tree", "row_parent"),
        ("gc_left_rows", "row_ordinal"),
        ("gc_row_count", "row_"),
        ("tasks_counted", "PRIMARY KEY"),
        ("memberships", "member_row"),
        ("gc_members_drop", "PRIMARY KEY"),
        ("gc_tasks_drop", "PRIMARY KEY"),
        ("gc_attempts_drop", "attempt_task"),
        ("gc_row_drop", "INTEGER PRIMARY KEY"),
        ("gc_result_drop", "INTEGER PRIMARY KEY"),
        ("gc_references", "INTEGER PRIMARY KEY"),
        ("gc_asked_elsewhere", "result_fingerprint"),
        ("gc_results", "INTEGER PRIMARY KEY"),
        ("gc_attempt_endpoints", "INTEGER PRIMARY KEY"),
        ("gc_run_events_drop", "event_run"),
        ("gc_counters_drop", "PRIMARY KEY"),
    ],
)
def test_statements_go_by_the_index_that_was_made_for_them(
    connection: sqlite3.Connection, name: str, index: str
) -> None:
    plan = plan_of(connection, name)
    assert any(index in line and line.startswith("SEARCH") for line in plan), plan
    assert not [line for line in plan if re.match(r"SCAN (row|task|result|attempt|[rtva])\b", line)], plan


@pytest.mark.parametrize("name", ["gc_roots", "gc_left_rows", "tasks_look"])
def test_rows_come_in_order_without_being_sorted(connection: sqlite3.Connection, name: str) -> None:
    assert not [line for line in plan_of(connection, name) if "FOR ORDER BY" in line]


def test_only_the_search_for_the_origin_of_an_answer_reads_all_tasks(connection: sqlite3.Connection) -> None:
    assert plan_of(connection, "results_asked") == ["SCAN t", "SEARCH r USING INTEGER PRIMARY KEY (rowid=?)"]
