"""Reading a database: what is read, what is refused, and that nothing can be written."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agac.core.errors import AgacError, ErrorType, UsageError
from agac.data.sqlite import SqliteSource
from agac.spec.database_urls import DatabaseUrl, parse_database
from agac.spec.paths import Refused

SHOWN = "sqlite://data/shop.db"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop #1?.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE r (id TEXT, n INT); INSERT INTO r VALUES ('a', 1), ('b', 2), ('c', NULL);"
            "CREATE VIEW big AS SELECT * FROM r WHERE n > 1;"
            "CREATE TABLE log (x); CREATE TRIGGER t AFTER INSERT ON r BEGIN INSERT INTO log VALUES (1); END;"
        )
    return path


def rows(path: Path, statement: str) -> list[object]:
    return [record.data for record in SqliteSource(path, statement, SHOWN).records()]


@pytest.mark.parametrize(
    ("statement", "ids"),
    [
        ("SELECT id FROM r ORDER BY id DESC", ["c", "b", "a"]),
        ("SELECT id FROM big", ["b"]),
        ("WITH x AS (SELECT * FROM r) SELECT id FROM x WHERE n IS NULL", ["c"]),
        ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i id FROM n", [1, 2, 3]),
        ("-- first a word\nSELECT upper(id) AS id FROM r WHERE id LIKE '%a%' AND n & 1 -- and a last one", ["A"]),
        ("SELECT id FROM r WHERE id = 'a';  ", ["a"]),
        ("SELECT id FROM r LIMIT 0", []),
    ],
)  # fmt: skip
def test_one_statement_that_reads(shop: Path, statement: str, ids: list[object]) -> None:
    assert rows(shop, statement) == [{"id": value} for value in ids]


@pytest.mark.parametrize(
    "statement",
    [
        "WITH x AS (SELECT 1) INSERT INTO r SELECT 'z', 1", "WITH x AS (SELECT 1) DELETE FROM r",
        "WITH x AS (SELECT 1) UPDATE r SET n = 0 RETURNING id", "SELECT load_extension('/tmp/x')",
        "SELECT * FROM pragma_journal_mode('DELETE')", "SELECT 1; DELETE FROM r", "SELECT 1) UNION SELECT (2",
    ],
)  # fmt: skip
def test_nothing_can_be_written_or_changed(shop: Path, statement: str) -> None:
    before = shop.read_bytes()
    with pytest.raises(UsageError, match=r"^sqlite://data/shop\.db: ") as caught:
        rows(shop, statement)
    assert caught.value.remedy
    assert shop.read_bytes() == before
    assert not list(shop.parent.glob("*-journal"))


@pytest.mark.parametrize(
    ("statement", "words", "remedy"),
    [
        ("SELECT * FROM rr", "SQLite says: no such table: rr", "Did you mean 'r'?"),
        ("SELECT * FROM zzz", "SQLite says: no such table: zzz", "Its tables: "),
        ("SELECT idd FROM r", "SQLite says: no such column: idd", "Did you mean 'id'?"),
        ("SELECT x.zzz FROM r x", "SQLite says: no such column: x.zzz", "The columns: id, n"),
        ("SELECT", "SQLite says: incomplete input", "Correct the query."),
        ("SELECT id, n AS id FROM r", 'the query gives "id" more than once', "Give every column its own name"),
        ("SELECT 1; SELECT 2", "there is more than one statement", "Write one SELECT."),
        ("WITH x AS (SELECT 1) DELETE FROM r", "the query does more than read", "Write one SELECT: "),
    ],
)  # fmt: skip
def test_words_of_a_statement_that_cannot_be_used(shop: Path, statement: str, words: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        rows(shop, statement)
    assert caught.value.message == f"{SHOWN}: {words}"
    assert str(caught.value.remedy).startswith(remedy)


def test_a_file_that_is_no_database_is_refused_and_a_missing_one_not_made(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with pytest.raises(UsageError, match="no such file"):
        rows(path, "SELECT 1")
    assert not list(tmp_path.iterdir())
    path.write_text("id,text\n" * 200)
    with pytest.raises(UsageError, match="the file is no SQLite database, or it is encrypted"):
        rows(path, "SELECT * FROM r")


def test_kinds_of_values(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (i, f, s, b, z)")
        connection.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?)", (2**63 - 1, 0.1, "ü\x00🦊", "grün".encode(), None))
        connection.execute("INSERT INTO t VALUES (1, 9e999, 'x', x'00', 1)")
        connection.execute("INSERT INTO t VALUES (2, 1.5, 'x', x'ff', 1)")
        connection.execute("INSERT INTO t VALUES (3, 1.5, CAST(x'c3' AS TEXT), x'', 1)")
        connection.commit()
    records = list(SqliteSource(path, "SELECT * FROM t", SHOWN).records())
    assert records[0].data == {"i": 2**63 - 1, "f": 0.1, "s": "ü\x00🦊", "b": "grün", "z": None}
    errors = [record.error for record in records[1:]]
    assert [error and error.type for error in errors] == [ErrorType.INVALID_ROW] * 3
    assert [error and error.message for error in errors] == [
        f'{SHOWN}: row 2: the column "f" holds an infinity, which JSON cannot hold; select null instead',
        f'{SHOWN}: row 3: the column "b" holds bytes that are not UTF-8; leave it out, or take hex()',
        f'{SHOWN}: row 4: the column "s" holds bytes that are not UTF-8; leave it out, or take hex()',
    ]


def test_a_database_that_others_write_to_is_read_as_it_stood(shop: Path) -> None:
    with closing(sqlite3.connect(shop)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        records = SqliteSource(shop, "SELECT id FROM r ORDER BY id", SHOWN).records()
        source = SqliteSource(shop, "SELECT id FROM r", SHOWN)
        assert next(records).data == {"id": "a"}
        other.execute("DELETE FROM r")
        other.commit()
        assert [record.data for record in records] == [{"id": "b"}, {"id": "c"}]
        other.execute("DROP TABLE r")
        other.commit()
    with pytest.raises(AgacError, match="no such table: r"):
        list(source.records())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sqlite://a/b.db?table=r", DatabaseUrl("a/b.db", 'SELECT * FROM "r"', ordered=True)),
        ('sqlite://b.db?table=my "r"', DatabaseUrl("b.db", 'SELECT * FROM "my ""r"""', ordered=True)),
        ("sqlite://b.db?table=my%20r", DatabaseUrl("b.db", 'SELECT * FROM "my r"', ordered=True)),
        ("sqlite://b.db?query=SELECT%20id%20FROM%20r", DatabaseUrl("b.db", "SELECT id FROM r", ordered=False)),
        ("sqlite://b.db?query=SELECT a||'%20' AS x FROM r WHERE b LIKE '%a+b&c=?%' order  by 1",
         DatabaseUrl("b.db", "SELECT a||'%20' AS x FROM r WHERE b LIKE '%a+b&c=?%' order  by 1", ordered=True)),
        ("sqlite:///abs/b.db?query=/* x */ with y as (select 1) select * from y",
         DatabaseUrl("/abs/b.db", "/* x */ with y as (select 1) select * from y", ordered=False)),
    ],
)  # fmt: skip
def test_the_parts_of_an_address(text: str, expected: DatabaseUrl) -> None:
    assert parse_database(text) == expected
    for other in ("sqlite://", "sqlite://x", "sqlite://x?query", "sqlite://x?query= ", "sqlite://x?q=1"):
        with pytest.raises(Refused):
            parse_database(other)
