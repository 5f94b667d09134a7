"""PostgreSQL as an input, against a real server."""

import pytest
from support.postgres import PASSWORD, PostgresServer

from agac.core.errors import AgacError
from agac.data.files import Source
from agac.data.postgres import PostgresSource


def opened(postgres: PostgresServer, statement: str) -> Source:
    return PostgresSource(postgres.address, statement, postgres.env)


def test_values_become_those_that_json_has(postgres: PostgresServer) -> None:
    postgres.sql("SET timezone = 'Asia/Tokyo'")
    source = opened(
        postgres,
        """SELECT 9223372036854775807::bigint AS long, 0.1::real AS single, 0.1::float8 AS double, true AS flag,
        12345678901234567890.1234567890::numeric AS decimal, 'NaN'::float8 AS nan, 'NaN'::numeric AS none,
        null AS nothing,
        DATE '2024-02-29' AS date, DATE 'infinity' AS never, DATE '0044-03-15 BC' AS ides,
        TIMESTAMP '2024-02-29 23:59:59.5' AS moment, TIMESTAMPTZ '2024-02-29 12:00:00+02' AS zoned,
        TIME '23:59:59' AS hour, INTERVAL '1 day 2 hours' AS span, 'ü🦊'::bytea AS bytes,
        '{"a": [1, 2.50, null]}'::jsonb AS doc, '{"b": 1e3}'::json AS raw, ARRAY[1, null] AS list,
        ARRAY[[0.5::float8]] AS matrix, ARRAY['{"x": 1}'::jsonb] AS docs,
        '00000000-0000-0000-0000-000000000001'::uuid AS uuid, ROW(1, 'x') AS pair, int4range(1, 5) AS range,
        '10.0.0.1'::inet AS host, 'a''"%s' AS text""",
    )  # fmt: skip
    (record,) = source.records()
    assert record.data == {
        "long": 2**63 - 1, "single": 0.1, "double": 0.1, "flag": True, "decimal": "12345678901234567890.1234567890",
        "nan": None, "none": None, "nothing": None, "date": "2024-02-29", "never": "infinity", "ides": "0044-03-15 BC",
        "moment": "2024-02-29T23:59:59.5", "zoned": "2024-02-29T10:00:00+00:00", "hour": "23:59:59", "span": "P1DT2H",
        "bytes": "ü🦊", "doc": {"a": [1, 2.5, None]}, "raw": {"b": 1000.0}, "list": [1, None], "matrix": [[0.5]],
        "docs": [{"x": 1}], "uuid": "00000000-0000-0000-0000-000000000001", "pair": "(1,x)", "range": "[1,5)",
        "host": "10.0.0.1", "text": "a'\"%s",
    }  # fmt: skip
    assert source.columns() == tuple(record.data)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("'\\xff'::bytea", 'the column "v" holds bytes that are not UTF-8'),
        ("'-Infinity'::float8", 'the column "v" holds an infinity'),
        ("'Infinity'::numeric", 'the column "v" holds an infinity'),
        (
            """'{"a": "\\ud83d"}'::json""",
            'the column "v" holds JSON that cannot be read: the field "a" holds half of a',
        ),
        ("ARRAY['NaN'::float8, 'Infinity']", 'the column "v" holds an infinity'),
    ],
)
def test_a_value_that_json_cannot_hold_costs_its_row(postgres: PostgresServer, value: str, words: str) -> None:
    source = opened(
        postgres, f"SELECT n, CASE WHEN n = 2 THEN {value} END AS v FROM generate_series(1, 3) n ORDER BY n"
    )
    records = list(source.records())
    assert [record.data for record in records] == [{"n": 1, "v": None}, None, {"n": 3, "v": None}]
    assert (error := records[1].error) is not None
    assert error.message.startswith(f"{postgres.address}: row 2: {words}"), error.message


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT 1 AS a; COMMIT; CREATE TABLE owned (x int)", "there is more than one statement"),
        ("WITH made AS (INSERT INTO rows VALUES (1) RETURNING *) SELECT * FROM made", "the query does more than read"),
        ("SELECT * FROM rows FOR UPDATE", "the query does more than read"),
        ("SELECT * INTO owned FROM rows", "the query does more than read"),
        ("SELECT set_config('transaction_read_only', 'off', true), nextval('s')", "read-write mode must be set before"),
        ("SELECT nextval('s')", "the query does more than read"),
        ("SELECT * FROM missing", 'relation "missing" does not exist'),
        ("SELECT idd FROM rows", 'column "idd" does not exist'),
        ("SELECT a AS x, a AS x FROM rows", 'the query gives "x" more than once'),
        ("SELECT a FROM rows WHERE a = $1", "bind message supplies 0 parameters"),
        ("SELECT a FROM secret", "permission denied for table secret"),
    ],
)  # fmt: skip
def test_a_statement_that_is_not_one_select_is_refused(postgres: PostgresServer, statement: str, words: str) -> None:
    postgres.sql(
        "CREATE TABLE rows (a int)", "CREATE SEQUENCE s", "CREATE TABLE secret (a int)",
        "DROP ROLE IF EXISTS reader", f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'",
        "GRANT SELECT ON rows TO reader", "GRANT ALL ON SEQUENCE s TO reader",
    )  # fmt: skip
    try:
        with pytest.raises(AgacError, match=words) as caught:
            list(PostgresSource(postgres.address_of("reader"), statement, postgres.env).records())
        assert PASSWORD not in str(caught.value)
        assert caught.value.remedy
        assert postgres.sql("SELECT count(*) FROM pg_class WHERE relname = 'owned'") == [(0,)]
        assert postgres.sql("SELECT count(*), (SELECT is_called FROM s) FROM rows") == [(0, False)]
    finally:
        postgres.sql("DROP OWNED BY reader", "DROP ROLE reader")
