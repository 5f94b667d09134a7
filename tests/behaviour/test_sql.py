"""`agac sql`: the views say what the run did, nothing can be changed, and millions of rows take no memory."""

import csv
import io
import json
import re
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.batched import store
from support.project import ProjectFolder
from support.server import Faulty, Server
from support.terminals import on_pty

import agac
from agac.cli.store_query import csv_lines, json_lines, text_lines

STAGES: list[dict[str, Any]] = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": {"sentiment": "positive|neutral|negative"}},
    {"name": "reply", "prompt": "Answer ${text}, found ${classify.sentiment}", "model": "local/large"},
]
ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
    "SELECT 'begun' UNION ALL SELECT 'and read ahead' UNION ALL SELECT count(*) FROM n"
)
MANY = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) "
    "SELECT i, 'a text of ' || i AS text FROM n"
)
LARGE = re.compile(r"SCAN (row|task|result|attempt|parent|other|member|a)\b")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, _shared_server: Server) -> ProjectFolder:
    """A project with one finished run of three rows and two stages; it is looked at only."""
    project = ProjectFolder(tmp_path_factory.mktemp("finished"))
    project.configure(_shared_server.base_url)
    project.numbered(3)
    project.run(project.workflow(stages=STAGES))
    return project


def asked(project: ProjectFolder, query: str, *flags: str) -> list[dict[str, Any]]:
    ran = project.agac("sql", query, "--json", *flags, code=0)
    found: list[dict[str, Any]] = ran.json
    return found


def test_results_have_names_in_place_of_numbers(finished: ProjectFolder) -> None:
    found = asked(finished, "SELECT * FROM v_results WHERE run = 1 ORDER BY row_number, stage")
    assert [(row["row_id"], row["stage"], row["outcome"]) for row in found] == [
        (f"r-{i}", stage, "done") for i in (1, 2, 3) for stage in ("classify", "reply")
    ]
    envelopes = {envelope["id"]: envelope for envelope in finished.envelopes()}
    for row in found:
        assert (row["workflow"], row["run"], row["replica"], row["error_type"]) == ("reviews", 1, 0, None)
        assert row["model"] == {"classify": "local/small", "reply": "local/large"}[row["stage"]]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["settled_at"])
        assert row["calls"] == 1
        if row["stage"] == "reply":
            assert json.loads(row["result"]) == envelopes[row["row_id"]]["result"]
        else:
            assert json.loads(row["result"])["sentiment"] in ("positive", "neutral", "negative")
    settled = (
        "SELECT count(*) AS n FROM v_results WHERE strftime('%s', settled_at) = '' || CAST(settled_seconds AS INTEGER)"
    )
    assert asked(finished, settled) == [{"n": 6}]


def test_attempts_tell_of_every_call_and_costs_add_them_up(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(
        faulty([{"kind": "server_error", "at": [1]}, {"kind": "bad_request", "match": "number 2", "always": True}]),
        prices={"small": {"input": 2.0, "output": 8.0}},
    )
    project.numbered(3)
    project.run(project.workflow(stages=STAGES[:1]))
    status = project.agac("status", "1", "--json").json
    attempts = asked(project, "SELECT * FROM v_attempts WHERE run = 1 ORDER BY attempt_id")
    assert {row["stage"] for row in attempts} == {"classify"}
    assert sum(row["error_type"] is not None for row in attempts) >= 1
    assert {row["invocation"] for row in attempts} == {status["runs"][0]["invocations"][0]["number"]}
    (costs,) = asked(project, "SELECT * FROM v_costs WHERE run = 1")
    calls = status["runs"][0]["calls"]
    assert costs["calls"] == len(attempts) == calls["count"]
    assert (costs["stage"], costs["model"]) == ("classify", "local/small")
    assert costs["unpriced"] == calls["calls_without_price"]
    assert costs["input_tokens"] == sum(row["input_tokens"] or 0 for row in attempts) == calls["input_tokens"]
    assert costs["cost_usd"] > 0
    assert costs["cost_usd"] == pytest.approx(sum(row["cost_usd"] or 0 for row in attempts))
    by_task = asked(project, "SELECT sum(calls) AS calls, sum(cost_usd) AS cost FROM v_results WHERE run = 1")
    assert by_task == [{"calls": len(attempts), "cost": pytest.approx(costs["cost_usd"])}]


def test_lineage_has_rows_of_the_input_and_joins_children_to_parents_and_groups_to_members(
    project: ProjectFolder,
) -> None:
    project.numbered(3)
    project.run(project.workflow(stages=STAGES))
    with store(project) as database:
        database.executescript(
            "INSERT INTO row (key, run_id, id, occurrence, hash, data, state, seen, origin, parent_key, place) VALUES "
            "(100, 1, 'r-1/0', 0, x'', '{}', 1, 1, 0, 1, 0), (101, 1, 'r-1/1', 0, x'', '{}', 4, 1, 0, 1, 1), "
            "(102, 1, 'group', 0, x'', '{}', 5, 1, 1, NULL, NULL);"
            "INSERT INTO member (group_key, sort, row_key, size) VALUES (102, 1, 100, 1), (102, 2, 2, 1);"
        )
    query = "SELECT row_id, relation, stage, from_id, place, state FROM v_lineage WHERE run = 1 AND stage IS NOT NULL"
    found = asked(project, f"{query} ORDER BY 1, 2, 4")
    assert [tuple(row.values()) for row in found] == [
        ("group", "group", "reply", None, None, "skipped"),
        ("group", "member", "reply", "r-1/0", None, "skipped"),
        ("group", "member", "reply", "r-2", None, "skipped"),
        ("r-1/0", "child", "classify", "r-1", 0, "done"),
        ("r-1/1", "child", "classify", "r-1", 1, "filtered"),
    ]
    one_each = "SELECT count(*) AS n FROM v_lineage WHERE run = 1 AND relation <> 'member'"
    assert asked(project, one_each) == [{"n": 6}]
    project.write("data/rows.csv", "id,text\nr-1,fine\nr-2,too,many\n")
    project.run(project.workflow("torn", stages=STAGES[:1]))
    found = asked(project, "SELECT * FROM v_lineage WHERE run = 2 ORDER BY row_number")
    told = [(row["relation"], row["from_id"], row["stage"], row["state"], row["error_type"]) for row in found]
    assert told == [("input", None, None, "done", None), ("input", None, None, "failed", "InvalidRow")]
    assert {row["error_stage"] for row in found} == {None}
    assert json.loads(found[0]["data"])["text"] == "fine"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM v_results WHERE run = 1",
        "SELECT * FROM v_results WHERE run = 1 AND row_id = 'r-1'",
        "SELECT stage, outcome, count(*) AS n FROM v_results WHERE run = 1 GROUP BY 1, 2",
        "SELECT * FROM v_attempts WHERE run = 1 AND row_id = 'r-1' AND stage = 'reply'",
        "SELECT * FROM v_attempts WHERE run = (SELECT max(id) FROM run)",
        "SELECT * FROM v_lineage WHERE run = 1 AND row_id = 'r-1/1'",
        "SELECT * FROM v_lineage WHERE run = 1 AND from_id = 'r-1'",
        "SELECT * FROM v_results JOIN v_attempts USING (run, row_id, stage) WHERE run = 1 AND row_id = 'r-1'",
        "SELECT * FROM v_costs WHERE run = 1",
    ],
)
def test_views_of_one_run_go_by_indexes(query: str, finished: ProjectFolder) -> None:
    plan = [row["detail"] for row in asked(finished, f"EXPLAIN QUERY PLAN {query}")]
    assert plan
    assert not [line for line in plan if LARGE.match(line)], plan
    if "row_id = " in query:
        rows = [line for line in plan if line.startswith("SEARCH row ")]
        assert rows
        assert all("row_id (run_id=? AND id=?)" in line for line in rows), plan


def test_every_column_of_every_view_is_documented_and_listed(finished: ProjectFolder) -> None:
    names = [name for (name,) in finished.query("SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY rowid")]
    assert {"v_results", "v_attempts", "v_lineage", "v_costs"} <= set(names)
    views = agac.views()
    assert [view.name for view in views] == names
    listed = finished.agac("sql")
    as_json = finished.agac("sql", "--json").json
    for view, told in zip(views, as_json, strict=True):
        assert list(view.columns) == [row[1] for row in finished.query(f"PRAGMA table_info({view.name})")]
        assert f"{view.name}: {view.meaning}" in listed.out
        assert told == {"name": view.name, "meaning": view.meaning, "columns": view.columns}
        for column, meaning in view.columns.items():
            assert re.search(rf"^  {column} +{re.escape(meaning)}$", listed.out, re.MULTILINE)


def test_json_csv_tables_and_python_say_the_same(finished: ProjectFolder) -> None:
    query = "SELECT 1 AS n, NULL AS none, 'a,\"b\"\n' AS text, x'00ff' AS bytes, 0.000025 AS cost, char(13) AS cr"
    assert asked(finished, query) == [
        {"n": 1, "none": None, "text": 'a,"b"\n', "bytes": "00ff", "cost": 2.5e-05, "cr": "\r"}
    ]
    lines = list(csv.reader(io.StringIO(finished.agac("sql", query, "--csv").out, newline="")))
    assert lines == [
        ["n", "none", "text", "bytes", "cost", "cr"], ["1", "", 'a,"b"\n', "00ff", "2.5e-05", "\r"],
    ]  # fmt: skip
    assert finished.agac("sql", query).out.splitlines() == [
        "n  none  text     bytes      cost  cr",
        '1        a,"b"\\n  00ff   0.000025  \\r',
    ]
    (row,) = asked(finished, "SELECT 9223372036854775807 AS i, 9e999 AS inf, CAST(x'ff41' AS TEXT) AS torn, 1e300 AS f")
    assert row == {"i": 9223372036854775807, "inf": "inf", "torn": "\\xffA", "f": 1e300}
    assert finished.agac("sql", "SELECT 1234567 AS n").out == "      n\n1234567\n"
    none = "SELECT run, stage FROM v_costs WHERE run = 99"
    for flags, out in ((["--json"], "[]\n"), (["--csv"], "run,stage\n"), ([], "run  stage\n")):
        assert finished.agac("sql", none, *flags).out == out
    assert [row["name"] for row in asked(finished, "PRAGMA table_info(v_stages)")] == list(agac.views()[0].columns)
    assert asked(finished, "SELECT name FROM pragma_table_info('member') LIMIT 1") == [{"name": "group_key"}]
    pairs = "SELECT e.key AS key FROM v_results, json_each(result) AS e WHERE run = 1 AND stage = 'classify' GROUP BY 1"
    assert asked(finished, pairs) == [{"key": "sentiment"}]
    assert asked(finished, "VALUES (1), (2);") == [{"column1": 1}, {"column1": 2}]
    with agac.sql(query, project=finished.root) as answer:
        assert answer.columns == ["n", "none", "text", "bytes", "cost", "cr"]
        assert list(answer) == [(1, None, 'a,"b"\n', b"\x00\xff", 2.5e-05, "\r")]


def test_limit_ends_the_answer_and_says_that_there_is_more_and_so_does_ctrl_c(finished: ProjectFolder) -> None:
    for limit, out, err in ((2, "r-1\nr-2\n", "Only the first 2: there are more.\n"), (3, "r-1\nr-2\nr-3\n", "")):
        ran = finished.agac("sql", "SELECT row_id FROM v_lineage ORDER BY 1", "--limit", str(limit), "--csv")
        assert (ran.code, ran.out, ran.err) == (0, f"row_id\n{out}", err)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    assert asked(finished, endless, "--limit", "1")
    with on_pty(finished.root, "sql", ENDLESS, "--csv") as terminal:  # which Ctrl-C ends
        terminal.until("begun\r\n")
        terminal.press(b"\x03")
        assert terminal.ended() == 130
    assert "Interrupted" in terminal.seen
    assert "Traceback" not in terminal.seen


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("DELETE FROM row", "DELETE"),
        ("  -- a word before\n/* and another */ insert into run values (1)", "INSERT"),
        ("UPDATE sqlite_master SET name = 'x'", "UPDATE"),
        ("WITH x AS (SELECT 1) DELETE FROM row", "DELETE row"),
        ("EXPLAIN INSERT INTO member VALUES (1, 1, 1, 1)", "INSERT member"),
        ("ATTACH 'other.db' AS other", "ATTACH"),
        ("VACUUM INTO 'other.db'", "VACUUM"),
        ("BEGIN IMMEDIATE", "BEGIN"),
        ("DROP VIEW v_costs", "DROP"),
        ("CREATE TEMP TABLE x (y)", "CREATE"),
        ("PRAGMA journal_mode = DELETE", "PRAGMA journal_mode"),
        ("PRAGMA writable_schema = 1", "PRAGMA writable_schema"),
        ("SELECT * FROM pragma_wal_checkpoint", "PRAGMA wal_checkpoint"),
        ("SELECT load_extension('x')", "load_extension"),
    ],
)
def test_what_does_more_than_read_is_refused(query: str, what: str, finished: ProjectFolder) -> None:
    path = finished.root / ".agac/agac.db"
    before = path.read_bytes()
    ran = finished.agac("sql", query)
    assert (ran.code, ran.out) == (2, "")
    if "pragma_wal" not in query:  # which some builds of SQLite do not have
        assert ran.err.splitlines() == [
            f"error: {what} is refused: `agac sql` only reads",
            "  Write one statement that begins with SELECT, WITH, VALUES or EXPLAIN.",
        ]
    assert path.read_bytes() == before
    assert not (finished.root / "other.db").exists()


def test_what_only_sqlite_notices_and_a_command_line_that_says_two_things_are_refused(finished: ProjectFolder) -> None:
    for words, said in (
        (("WITH x AS (SELECT 1) UPDATE sqlite_master SET name = 'x'",), "may not be modified"),
        (("SELECT", "1"), "put the query in quotes"),
        (("SELECT 1", "--json", "--csv"), "--json and --csv exclude one another"),
        (("SELECT 1 AS a, 2 AS a", "--json"), "several columns are called a"),
    ):
        ran = finished.agac("sql", *words)
        assert (ran.code, ran.out, said in ran.err) == (2, "", True), ran.err
    assert finished.agac("sql", "SELECT 1 AS a, 2 AS a", "--csv").out == "a,a\n1,2\n"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", ["the query is empty", "Write one, as in"]),
        (" ; -- nothing", ["the query is empty"]),
        ("SELECT * FORM v_costs", ['wrong query: near "FORM": syntax error', "Did you mean FROM?"]),
        ("SELECT (", ["wrong query: incomplete input", "A query looks like this"]),
        ("SELECT * FROM v_result", ["no such table: v_result", "Did you mean 'v_results'?", "lists the views"]),
        ("SELECT * FROM nothing_alike", ["Tables and views: v_attempts, v_costs, v_lineage, v_results"]),
        ("SELECT outcom FROM v_results", ["no such column: outcom", "Did you mean 'outcome'?"]),
        ("SELECT r.outcom FROM v_results r", ["no such column: r.outcom", "Did you mean 'outcome'?"]),
        ("SELECT sentiment FROM v_results", ["A field of a result is json_extract(result, '$.sentiment')."]),
        ("SELECT run FROM v_results, v_costs", ["ambiguous column name: run", "as in v_results.run"]),
        ("SELECT grouped(1)", ["no such function: grouped", f"those of SQLite {sqlite3.sqlite_version}"]),
        ("SELECT 1; SELECT 2", ["several statements are refused"]),
        ("SELECT * FROM run WHERE id = ?", ["the query has a placeholder", "Write the value itself"]),
        ("SELECT abs(-9223372036854775807 - 1)", ["integer overflow"]),
    ],
)
def test_a_wrong_query_says_what_was_meant(query: str, said: list[str], finished: ProjectFolder) -> None:
    ran = finished.agac("sql", query)
    assert (ran.code, ran.out) == (2, "")
    for words in said:
        assert words in ran.err


def test_a_query_comes_through_standard_input_and_needs_a_store(finished: ProjectFolder, tmp_path: Path) -> None:
    assert finished.piped("-- größer\nSELECT 'ü' AS ü;\n".encode(), "sql", "-", "--csv").out == "ü\nü\n"
    assert "the query is empty" in finished.piped(b"", "sql", "-").err
    assert "-: byte 8 is not UTF-8" in finished.piped(b"SELECT '\xff'", "sql", "-").err
    with on_pty(finished.root, "sql", "-") as terminal:
        assert terminal.ended() == 2
    assert "nothing is piped in" in terminal.seen
    new = ProjectFolder(tmp_path)  # without a store there is nothing to ask, but views to list
    assert new.agac("sql", "SELECT 1", code=2).err.startswith("error: nothing was run in this project yet\n")
    assert new.agac("sql", code=0).out
    assert not (new.root / ".agac").exists()


@pytest.mark.parametrize("lines", [json_lines, csv_lines, text_lines], ids=["json", "csv", "table"])
def test_rows_without_end_take_no_memory(lines: Callable[..., Any], finished: ProjectFolder) -> None:
    more: dict[str, Any] = {json_lines: {"only_ascii": False}, text_lines: {"width": None}}.get(lines, {})
    with agac.sql(MANY, project=finished.root) as answer:
        tracemalloc.start()
        size = sum(len(line) for line in lines(answer.columns, answer, **more))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert size > 300_000
    assert peak < 900_000  # all rows together: 4,000,000


def test_a_terminal_too_narrow_for_the_table_shows_values_below_one_another(finished: ProjectFolder) -> None:
    query = f"SELECT 7 AS n, '{'a' * 500}' AS long, 'x' || char(27) || '[2J' AS evil"
    with on_pty(finished.root, "sql", query, columns=60) as terminal:
        assert terminal.ended() == 0
    shown = terminal.seen.replace("\r\n", "\n")
    assert shown == f"row 1\n  n: 7\n  long: {'a' * 34}… (500 characters)\n  evil: x\\x1b[2J\n"
    with on_pty(finished.root, "sql", "SELECT 7 AS n", columns=60) as terminal:
        assert terminal.ended() == 0
    assert terminal.seen == "n\r\n7\r\n"
    assert "a" * 500 in finished.agac("sql", query).out
