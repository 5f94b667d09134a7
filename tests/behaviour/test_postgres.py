"""Workflows with a PostgreSQL server: rows read from it, and results put into a table of it by their id."""

import json
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.postgres import PASSWORD, PostgresServer
from support.project import ProjectFolder, python
from support.server import Faulty, Server

import agac
from agac.data import postgres as driver

ECHO = {"model": "local/echo"}
SAY = [{"name": "say", "prompt": "${text}"}]
ROWS = [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]


def run(
    project: ProjectFolder,
    server: PostgresServer,
    rows: list[dict[str, Any]] = ROWS,
    table: str = "results",
    **keys: Any,
) -> agac.RunReport:
    project.rows(rows, "data/rows.jsonl")
    output = {"to": f"{server.address}?table={table}", **keys.pop("output", {})}
    project.workflow(path="data/rows.jsonl", output=output, **{"defaults": ECHO, "stages": SAY, **keys})
    return project.run()


def types(server: PostgresServer, table: str = "results") -> dict[str, str]:
    query = f"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{table}'"
    return dict(server.sql(f"{query} ORDER BY ordinal_position"))


def test_the_table_is_made_and_its_rows_are_brought_up_to_date_by_id(
    project: ProjectFolder, postgres: PostgresServer, faulty: Faulty
) -> None:
    assert run(project, postgres).exit_code == 0
    assert postgres.sql("SELECT * FROM results ORDER BY id") == [("a", "one", "one", None), ("b", "two", "two", None)]
    assert list(types(postgres).values()) == ["text"] * 4
    postgres.sql("ALTER TABLE results ADD COLUMN mine text DEFAULT 'x'", "INSERT INTO results (id) VALUES ('hand')")
    run(project, postgres, [{"id": "b", "text": "TWO"}, {"id": "c", "text": "three", "more": 5}])
    found = "SELECT id, result, more, mine FROM results ORDER BY id"
    assert postgres.sql(found) == [
        ("a", "one", None, "x"), ("b", "TWO", None, "x"), ("c", "three", 5, "x"), ("hand", None, None, "x"),
    ]  # fmt: skip
    project.configure(faulty([{"kind": "refusal", "match": "2", "message": "no"}]).base_url)
    assert run(project, postgres, [{"id": "b", "text": "2"}]).exit_code == 3  # a row that fails later loses its result
    assert postgres.sql("SELECT result, error FROM results WHERE id = 'b'") == [
        (None, "Refused: the model refused: no")
    ]


SCHEMA = {"n": "integer", "x": "number", "ok": "boolean", "tags": ["string"]}
VALUES = {
    "long": 2**63 - 1, "huge": 2**70, "f": 0.1, "t": True, "none": None, "list": [1, "ü\0"], "zeros": "007",
    "text": 'a NUL \0, "%s"', "mixed": 1, "Text": "case", "50%": 1,
}  # fmt: skip


def test_every_kind_of_value_has_its_type(project: ProjectFolder, postgres: PostgresServer) -> None:
    rows = [{"id": 5, **VALUES}, {"id": 2**63 - 1, "mixed": "1", "f": 1, "long": 2.5}]
    stages = [{"name": "say", "prompt": "${id}", "output_schema": SCHEMA}]
    assert run(project, postgres, rows, stages=stages, defaults={}).exit_code == 0
    assert types(postgres) == {
        "id": "bigint", "long": "jsonb", "huge": "jsonb", "f": "numeric", "t": "boolean", "none": "text",
        "list": "jsonb", "zeros": "text", "text": "text", "mixed": "jsonb", "Text_2": "text", "50%": "numeric",
        "n": "bigint", "x": "double precision", "ok": "boolean", "tags": "jsonb", "error": "text",
    }  # fmt: skip
    row = 'SELECT id, long, huge, f::text, t, "none", list, zeros, text, mixed, "Text_2", "50%"::int FROM results'
    assert postgres.sql(f"{row} ORDER BY id") == [
        (5, 2**63 - 1, 2**70, "0.1", True, None, [1, "ü\ufffd"], "007", 'a NUL \ufffd, "%s"', 1,
         "case", 1),
        (2**63 - 1, 2.5, None, "1", None, None, None, None, None, "1", None, None),
    ]  # fmt: skip
    kinds = "long text, huge numeric, f float8, t text, day date, u uuid, Zeros varchar"
    postgres.sql(f"CREATE TABLE mine (ID bigint PRIMARY KEY, {kinds})")
    uuid = "00000000-0000-0000-0000-000000000001"
    more = {"id": 1, "text": "x", **{key: VALUES[key] for key in ("long", "f", "t", "zeros")}}
    assert run(project, postgres, [{**more, "day": "2024-02-29", "u": uuid}], table="public.mine").exit_code == 0
    found = "SELECT id, long, f, t, day::text, u::text, zeros, result FROM mine"
    assert postgres.sql(found) == [(1, str(2**63 - 1), 0.1, "true", "2024-02-29", uuid, "007", "x")]


REFUSED: list[tuple[list[str], str, dict[str, Any]]] = [
    (["CREATE TABLE results (x int)"], "table 'results' has no column 'id', by which its rows would be found", {}),
    (["CREATE TABLE results (id text, result text)"], "the ids in 'id' are not unique", {}),
    (["CREATE TABLE results (id text)", "CREATE UNIQUE INDEX ON results (id) WHERE id > 'a'"], "are not unique", {}),
    (["CREATE VIEW results AS SELECT 1 AS id"], "table 'results' is a view", {}),
    (["CREATE TABLE results (id text PRIMARY KEY, error int)"], "'error' is integer, but text would be written", {
        "output": {"merge": "replace"}, "stages": [{**SAY[0], "output_schema": {"error": "string"}}],
    }),
    ([], "there is no schema 'away'", {"table": "away.results"}),
    (["CREATE TABLE results (id text GENERATED ALWAYS AS ('x') STORED PRIMARY KEY)"], "is computed by PostgreSQL", {}),
    ([], "'a.b.c' cannot be the name of a table; write NAME or SCHEMA.NAME", {"table": "a.b.c"}),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "words", "keys"), REFUSED, ids=[words for _, words, _ in REFUSED])
def test_a_table_that_cannot_take_rows_by_id_is_refused_before_anything_is_asked(
    project: ProjectFolder,
    postgres: PostgresServer,
    server: Server,
    statements: list[str],
    words: str,
    keys: dict[str, Any],
) -> None:
    postgres.sql(*statements)
    with pytest.raises(agac.SpecError) as caught:
        run(project, postgres, **keys)
    (problem,) = caught.value.problems
    assert words in problem.message
    assert (problem.path, agac.validate("reviews", project=project.root).problems) == ("output.to", [problem])
    assert server.account()["requests"] == 0
    if "Or run " in problem.message:
        if "WHERE" not in statements[-1]:
            postgres.sql(problem.message.partition("Or run ")[2])
            assert project.run().exit_code == 0
    elif "name of a table" not in words:
        assert project.run(limit=1).exit_code == 0  # a preview has a table of its own
        assert (project.root / "output/reviews/preview/results.db").exists()


def test_what_only_the_results_tell_keeps_no_other_file_from_being_written(
    project: ProjectFolder, postgres: PostgresServer, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LOCK_SECONDS", 0.05)
    postgres.sql("CREATE TABLE results (id text PRIMARY KEY, text int CHECK (text < 5), x float8)")
    for rows, words in [
        (ROWS, "the column 'text' is integer, but text would be written into it"),
        ([{"id": "a", "text": 7}], 'violates check constraint "results_text_check"'),
        ([{"id": "a", "text": 2**40}], "out of range for type integer"),
        (
            [{"id": "a", "text": 1, "x": 2**53 + 1}],
            f"the column 'x' is double precision, which would change {2**53 + 1}",
        ),
        ([{"id": "a\0", "text": 1}], "the id 'a\\x00' holds a character that PostgreSQL cannot store"),
        ([{"id": "a", "text": 1, "x" * 64: 1}], "is longer than PostgreSQL's 63 bytes"),
        ([{"id": "a", "text": 1, **{f"c{i}": i for i in range(1700)}}], "tables can have at most 1600 columns"),
    ]:
        report = run(project, postgres, rows)
        assert (report.exit_code, len(project.envelopes())) == (1, len(rows))
        assert report.not_written is not None
        assert words in report.not_written.message
        assert "Write the table with: agac export --run" in str(report.not_written.remedy)
    assert (postgres.sql("SELECT * FROM results"), len(types(postgres))) == ([], 3)
    with postgres.connect() as holder:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE results")
        report = run(project, postgres, [{"id": "a", "text": 1}])
        assert "another program holds the table" in str(report.not_written)
        assert project.agac("status", "--json").json["runs"][0]["not_written"] == [postgres.address]
    agac.export("reviews", project=project.root)
    assert postgres.sql("SELECT id, text FROM results") == [("a", 1)]


@pytest.mark.parametrize(
    ("declared", "kept", "changed"),
    [
        ("real", [0.1, -2.5, 3, 16777216, 1e30, 0.0], [0.123456789, 16777217, 1e300, 3.14159265358979]),
        ("double precision", [0.1, 0.30000000000000004, 2**53], [2**53 + 1]),
        ("numeric(10,2)", [0.25, 7, -1.5, 1e3], [0.125, 0.30000000000000004]),
        ("numeric", [0.30000000000000004, 2**62 + 1, 1e300], []),
        ("text", [0.30000000000000004, 2**62 + 1], []),
    ],
)
def test_a_number_is_stored_with_all_its_digits_or_refused(
    project: ProjectFolder, postgres: PostgresServer, declared: str, kept: list[float], changed: list[float]
) -> None:
    postgres.sql(f"CREATE TABLE results (id text PRIMARY KEY, x {declared})")
    for value in kept:
        assert run(project, postgres, [{"id": "a", "x": value, "text": "t"}]).exit_code == 0
        ((stored,),) = postgres.sql("SELECT x::text FROM results")
        assert type(value)(Decimal(stored)) == value
    for value in changed:
        report = run(project, postgres, [{"id": "a", "x": value, "text": "t"}])
        assert report.not_written is not None
        assert f"the column 'x' is {declared}, which would change {json.dumps(value)}" in report.not_written.message
        ((unchanged,),) = postgres.sql("SELECT x::text FROM results")
        assert unchanged == stored


def test_a_domain_keeps_what_its_own_type_keeps(project: ProjectFolder, postgres: PostgresServer) -> None:
    postgres.sql("CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE >= 0)")
    postgres.sql("CREATE DOMAIN pieces AS integer")
    postgres.sql("CREATE TABLE results (id text PRIMARY KEY, x price)")
    assert run(project, postgres, [{"id": "a", "x": 0.25, "text": "t"}]).exit_code == 0
    report = run(project, postgres, [{"id": "a", "x": 0.125, "text": "t"}])
    assert "the column 'x' is numeric(10,2), which would change 0.125" in str(report.not_written)
    postgres.sql("ALTER TABLE results ALTER COLUMN x TYPE pieces USING 1")
    report = run(project, postgres, [{"id": "a", "x": 1.5, "text": "t"}])
    assert "the column 'x' is integer, but numbers would be written into it" in str(report.not_written)
    assert postgres.sql("SELECT x FROM results") == [(1,)]


@pytest.mark.parametrize(("declared", "value"), [("smallint", 70_000), ("integer", 2**31), ("numeric(4,2)", 1000)])
def test_a_number_beyond_its_column_is_refused(
    project: ProjectFolder, postgres: PostgresServer, declared: str, value: int
) -> None:
    postgres.sql(f"CREATE TABLE results (id text PRIMARY KEY, x {declared})")
    report = run(project, postgres, [{"id": "a", "x": value, "text": "t"}])
    assert "nothing of it was written" in str(report.not_written)
    assert postgres.sql("SELECT * FROM results") == []


KILL = """
import os, signal, sys
import agac
from agac.data.postgres import PostgresSink

def dies(self, *rows):
    before(self, *rows)
    os.kill(os.getpid(), signal.SIGKILL)

before = getattr(PostgresSink, sys.argv[1])
setattr(PostgresSink, sys.argv[1], dies)
agac.run("reviews", project=sys.argv[2])
"""


@pytest.mark.parametrize("place", ["write", "finish"])
def test_a_kill_leaves_the_table_as_it_was_and_the_next_run_mends_it(
    project: ProjectFolder, postgres: PostgresServer, server: Server, place: str
) -> None:
    run(project, postgres)
    project.rows([{"id": "a", "text": "ONE"}, {"id": "c", "text": "three", "n": 1}], "data/rows.jsonl")
    ended = python(project.root, "-c", KILL, place, str(project.root))
    assert ended.code == -9, ended.err
    assert postgres.sql("SELECT id, result FROM results ORDER BY id") == [("a", "one"), ("b", "two")]
    assert "n" not in types(postgres)
    project.run()
    found = postgres.sql("SELECT id, result, n FROM results ORDER BY id")
    assert found == [("a", "ONE", None), ("b", "two", None), ("c", "three", 1)]
    assert server.account()["requests"] == 4


def test_rows_come_from_a_server_and_go_into_another_table_of_it(
    project: ProjectFolder, postgres: PostgresServer, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password is in .env, and nowhere else."""
    monkeypatch.delenv("PGSECRET")
    project.write(".env", f"PGSECRET='{PASSWORD}'")
    postgres.sql("CREATE TABLE shop (id text, text text)", "INSERT INTO shop VALUES ('a', 'one'), ('b', '100 % & ?')")
    postgres.sql("CREATE VIEW seen AS SELECT * FROM shop WHERE text LIKE '%o%' OR text LIKE '100 %'")
    query = "SELECT * FROM seen WHERE text NOT LIKE '%&x=%' ORDER BY id"
    project.workflow(path=f"{postgres.address}?query={query}", defaults=ECHO, stages=SAY)
    for to in ("results", "public.results"):
        keys = {"path": f"{postgres.address}?query={query}", "output": {"to": f"{postgres.address}?table={to}"}}
        project.workflow(defaults=ECHO, stages=SAY, **keys)
        assert project.run().exit_code == 0
    assert postgres.sql("SELECT id, result FROM results ORDER BY id") == [("a", "one"), ("b", "100 % & ?")]
    assert server.account()["requests"] == 2
    shown = project.agac("data", f"{postgres.address}?table=shop", code=0).out
    assert "postgres, 0 bytes, 2 rows" in shown
    warned = project.agac("run", "-a", "reviews", "--input", f"{postgres.address}?table=shop", code=0).err
    assert "add ORDER BY, or name an id_field" not in warned  # it has one
    project.workflow(**{**keys, "output": {"to": f"{postgres.address}?table=shop"}}, defaults=ECHO, stages=SAY)
    assert "the input reads the table 'shop'" in project.agac("run", "-a", "reviews", code=2).err
    assert PASSWORD not in shown
    files = [path for path in project.root.rglob("*") if path.is_file() and path.name != ".env"]
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes() or b"w%C3%B6rd" in path.read_bytes()]


def test_a_variable_may_hold_the_whole_address(
    project: ProjectFolder, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.sql("CREATE TABLE shop (id text, text text)", "INSERT INTO shop VALUES ('a', 'one')")
    password = quote(PASSWORD, safe="")
    project.write(".env", f"DATABASE_URL='{postgres.address.replace('${PGSECRET}', password)}?application_name=x'")
    output = {"to": "${DATABASE_URL}?table=results"}
    project.workflow(path="${DATABASE_URL}&query=SELECT * FROM shop ORDER BY id", output=output, stages=SAY)
    assert project.run().exit_code == 0
    assert postgres.sql("SELECT id FROM results") == [("a",)]
    assert "${DATABASE_URL}?table=shop: postgres, " in project.agac("data", "${DATABASE_URL}?table=shop", code=0).out
    (below := project.root / "below").mkdir()
    monkeypatch.chdir(below)
    job = agac.ProcessOptions(prompt="{{text}}", model="local/echo")
    report = agac.process(
        "${DATABASE_URL}&query=SELECT text FROM shop WHERE text <> '../x' ORDER BY id", "o.jsonl", job
    )
    assert (report.exit_code, json.loads((below / "o.jsonl").read_text())["result"]) == (0, "one")
    assert agac.resume(report.summary["job"]).invocation["calls"] == 0
    job = agac.ProcessOptions(prompt="{{id}}", model="local/echo", id_field="id", to="${DATABASE_URL}&table=said")
    report = agac.process("${DATABASE_URL}&table=shop", "p.jsonl", job)
    agac.resume(report.summary["job"], project=project.root)
    assert postgres.sql("SELECT id, result FROM said") == [("a", "a")]
    files = [path for path in project.root.rglob("*") if path.is_file() and path.name != ".env"]
    assert not [path for path in files if password.encode() in path.read_bytes()]


def test_an_address_that_cannot_be_used_says_why_and_never_the_password(
    project: ProjectFolder, postgres: PostgresServer, tmp_path: Path
) -> None:
    address, host = postgres.address, postgres.host
    for path, words in [
        (f"postgres://tester:s3cr&t/@{host}/shop?table=t", "a password is written in it; write ${PGPASSWORD}"),
        (f"postgres://tester@{host}/shop?password=s3cr&table=t", "a password is written in it"),
        (f"{address}", "does not say what to read; write postgres://USER:${PGPASSWORD}@HOST/DATABASE?query="),
        (f"{address}?query=DELETE FROM t", "the query is no SELECT"),
        (f"{address.replace('PGSECRET', 'UNSET_ONE')}?table=t", "the environment variable UNSET_ONE is not set"),
        (f"{address.replace('PGSECRET', 'WRONG')}?table=t", "the server refuses to connect: "),
        ("postgres://tester@127.0.0.1:1/shop?table=t", "the server cannot be reached"),
        (f"{address}?tabel=t&table=t", 'invalid URI query parameter: "tabel"'),
        (f"{address}?table=missing", 'relation "missing" does not exist'),
        ("${SHOP}", "does not say what to read"),
        ("${SHOP}?table=t", "the server refuses to connect: "),
        ("${BROKEN}?table=t", "the server cannot be reached, or ended the connection: "),
        ("${OTHER}?table=t", "${OTHER}: the environment variable holds no address of a PostgreSQL server"),
        ("${UNSET_ONE}?table=t", "the environment variable UNSET_ONE is not set"),
    ]:  # fmt: skip
        shop = f"postgres://tester:s3cret@{host}/postgres"
        texts = {"WRONG": "s3cret!", "SHOP": shop, "BROKEN": "postgres://me:s3cr[t@h", "OTHER": "mysql://me:s3cr@h/db"}
        project.write(".env", "".join(f"{name}='{text}'\n" for name, text in texts.items()))
        project.workflow(path=path, stages=SAY)
        (problem,) = agac.validate("reviews", project=project.root).problems
        typed = project.agac("data", path, code=2).err
        for said in (str(problem), typed):
            assert words.partition(";")[0] in said
            assert not re.search(f"s3cr|{re.escape(PASSWORD)}", said), said
    project.workflow(path="data/rows.csv", stages=SAY, rows=1, output={"to": f"postgres://me:s3cr@{host}/shop?table=t"})
    (problem,) = agac.validate("reviews", project=project.root).problems
    assert "a password is written in it" in problem.message
    assert "s3cr" not in problem.message


def test_without_its_library_it_says_what_installs_it(project: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    project.workflow(path="postgres://me@host/shop?table=t", stages=SAY)
    (problem,) = agac.validate("reviews", project=project.root).problems
    assert re.search(r"PostgreSQL needs psycopg\S*, which is not installed: pip install 'psycopg", problem.message)
