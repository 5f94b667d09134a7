"""Every source with every output: what a row and a result hold arrives, in whatever way each format can hold it.

The model says each row back as its result, so that every value goes both ways: as the row's own and as the result's.
A new source or output adds one entry to `SOURCES` or `SINKS`. What is packed, in several files or piped in gives the
same rows as one file: test_sources.py.
"""

import csv
import io
import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest
from support.canned import Answer, Talk, completion, serving
from support.postgres import PASSWORD, PostgresServer
from support.project import ProjectFolder
from support.services import services
from support.soak import few
from support.sources import write_sheets

from agac.data.sinks import TABLES
from agac.data.sources import FORMATS, open_input, read_rows
from agac.spec.data_specs import InputFormat, OutputFormat
from agac.spec.loader import load_project, load_workflow
from agac.spec.project import Overrides

duckdb = pytest.importorskip("duckdb")

Values = dict[str, Any]

TEXTS = {
    "unicode": "ünïcödé 日本語 🦊 e\u0301 \u2028 \x85 ﷽",
    "punctuation": 'quotes " and "", commas, semicolons; and \\ and \\n and \'',
    "lines": "two\nlines\r\nand three\rand a\ttab",
    "formula": '=HYPERLINK("http://x","y")',
    "zeros": "007",
    "decimal": "19.990",
    "date": "2024-02-29",
    "not a number": "NaN",
    "empty": "",
    'Ünï, column "x"': "  spaces  ",
}  # fmt: skip
TYPED = {
    "null": None,
    "true": True,
    "small": 7,
    "long": 2**63 - 1,
    "longest": -(2**63),
    "exact": 2**53 + 1,
    "double": 0.1,
    "large": 1e300,
    "whole": 3.0,
    "nested": {"list": [1, 2.5, True, None, {"x": []}], "big": 2**62, "ünï": "日本\n"},
    "list": ["a", "b, c", '"'],
}
MIXED: list[Values] = [
    {"mixed": 1, "number": 1, "wide": 2**70, "a": "x", "sometimes": [1]},
    {"mixed": "1", "number": 2.5, "wide": 1, "A": "y"},
    {"mixed": [1, "1"], "number": None, "wide": -(2**64), "": "no name"},
    {"mixed": None, "number": 2**53, "wide": None},
]


def text_rows() -> list[Values]:
    return [{"id": f"r{i}", **TEXTS, "n": str(i)} for i in range(3)]


def typed_rows() -> list[Values]:
    """Rows whose columns have a type each; one of them is all null."""
    rows = [{"id": f"r{i}", **TEXTS, **TYPED} for i in range(2)]
    return [*rows, {"id": "none", **dict.fromkeys([*TEXTS, *TYPED])}]


def loose_rows() -> list[Values]:
    """Rows as JSON lets them be: each with fields and types of its own."""
    return [*typed_rows(), *({"id": f"m{i}", **row} for i, row in enumerate(MIXED))]


def delimited(rows: list[Values], delimiter: str) -> str:
    target = io.StringIO(newline="")
    writer = csv.writer(target, delimiter=delimiter, lineterminator="\r\n")
    writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return target.getvalue()


def json_lines(rows: list[Values]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write(project: ProjectFolder, name: str, text: str) -> Values:
    project.write(f"data/{name}", text)
    return {"path": f"data/{name}", "id_field": "id"}


def plain_lines(project: ProjectFolder) -> Values:
    lines = [value for value in TEXTS.values() if value.strip() and len(value.splitlines()) == 1]
    return {"path": write(project, "rows.txt", "\n".join(lines) + "\n")["path"]}


def whole_files(project: ProjectFolder) -> Values:
    for place, value in enumerate(TEXTS.values()):
        project.write(f"data/files/ü {place}.md", value)
    return {"path": "data/files", "format": "files"}


def parquet(project: ProjectFolder) -> Values:
    """Types that only parquet has, beside those of `TYPED`."""
    (project.root / "data").mkdir(exist_ok=True)
    with duckdb.connect() as connection:
        columns = ", ".join(f'? AS "{name}"' for name in ("unicode", "lines", "empty"))
        connection.execute(
            f"""CREATE TABLE rows AS SELECT 'r1' AS id, {columns}, 9223372036854775807::BIGINT AS long,
            18446744073709551615::UBIGINT AS wider, 170141183460469231731687303715884105727::HUGEINT AS widest,
            12345678901234567890.123456789::DECIMAL(38, 9) AS decimal, DATE '2024-02-29' AS date,
            TIMESTAMP '2024-02-29 23:59:59.123456' AS moment, TIMESTAMPTZ '2024-02-29 12:00:00+02' AS zoned,
            TIME '23:59:59' AS hour, 0.1::FLOAT AS single, 0.1::DOUBLE AS double, 'NaN'::DOUBLE AS nan, true AS flag,
            [1, 2, NULL] AS list, {{'a': 1, 'b': {{'c': 'ü'}}}} AS nested, MAP {{'k': 1.5}} AS map, NULL AS nothing""",
            [TEXTS["unicode"], TEXTS["lines"], TEXTS["empty"]],
        )
        connection.execute("INSERT INTO rows (id) VALUES ('none')")
        connection.execute(f"COPY rows TO '{project.root}/data/rows.parquet' (FORMAT parquet)")
    return {"path": "data/rows.parquet", "id_field": "id"}


def sheet(project: ProjectFolder) -> Values:
    """Dates and times as a spreadsheet has them; it has no 64-bit integers, and no null beside an empty text."""
    (project.root / "data").mkdir(exist_ok=True)
    small = {name: value for name, value in TYPED.items() if name not in ("long", "longest", "exact", "nested", "list")}
    moments = {"day": date(2024, 2, 29), "at": datetime.fromisoformat("2024-02-29T23:59:59"), "hour": time(23, 59, 59)}
    rows = [{"id": "r1", **TEXTS, **small, **moments}, {"id": "r2"}]
    write_sheets(project.root / "data/rows.xlsx", {"Rows": [[*rows[0]], *([*row.values()] for row in rows)]})
    return {"path": "data/rows.xlsx", "id_field": "id"}


def database(project: ProjectFolder) -> Values:
    (project.root / "data").mkdir(exist_ok=True)
    connection = sqlite3.connect(project.root / "data/rows.db")
    connection.execute(
        "CREATE TABLE rows (id INTEGER PRIMARY KEY, u TEXT, l TEXT, e TEXT, long, small, r REAL, nan, n)"
    )
    values = (1, TEXTS["unicode"], TEXTS["lines"], "", 2**63 - 1, -5, 0.1, math.nan, None)
    connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    connection.execute("INSERT INTO rows (id, small) VALUES (2, 'text in a column of numbers')")
    connection.commit()
    connection.close()
    return {"path": "sqlite://data/rows.db?query=SELECT * FROM rows ORDER BY id", "id_field": "id"}


SERVER: list[PostgresServer] = []
"""The server of this module, where there is one."""


def postgres(project: ProjectFolder) -> Values:
    """Types that PostgreSQL has."""
    (server,) = SERVER
    server.sql(
        """CREATE TABLE rows (id int, u text, l text, e text, long bigint, decimal numeric, day date,
        moment timestamptz, double float8, nan float8, flag boolean, doc jsonb, list int[], raw bytea, n text)"""
    )
    values = (TEXTS["unicode"], TEXTS["lines"], "", 2**63 - 1, "19.990", "2024-02-29", "2024-02-29 12:00+02")
    values += (0.1, math.nan, True, json.dumps(TYPED["nested"]), [1, None], b"x", None)
    with server.connect() as connection:
        connection.execute(f"INSERT INTO rows VALUES (1{', %s' * len(values)})", values)
        connection.execute("INSERT INTO rows (id) VALUES (2)")
    return {"path": f"{server.address}?query=SELECT * FROM rows ORDER BY id", "id_field": "id"}


SOURCES: dict[str, Callable[[ProjectFolder], Values]] = {
    "csv": lambda project: write(project, "rows.csv", delimited(text_rows(), ",")),
    "tsv": lambda project: write(project, "rows.tsv", delimited(text_rows(), "\t")),
    "json": lambda project: write(project, "rows.json", json.dumps(loose_rows())),
    "jsonl": lambda project: write(project, "rows.jsonl", json_lines(loose_rows())),
    "txt": plain_lines,
    "parquet": parquet,
    "sqlite": database,
    "postgres": postgres,
    "files": whole_files,
    "xlsx": sheet,
    "sql": lambda project: {
        **write(project, "rows.jsonl", json_lines(loose_rows())),
        "sql": "SELECT * FROM input ORDER BY id DESC",
    },
    "sql over parquet": lambda project: {**parquet(project), "sql": "FROM input"},
    "numbered": lambda project: {"path": write(project, "rows.jsonl", json_lines(loose_rows()))["path"]},
}


@dataclass(frozen=True)
class Ran:
    """A finished run: its project, and its rows as the source gave them."""

    project: ProjectFolder
    rows: list[Values]
    ids: list[str | int]

    @property
    def folder(self) -> Path:
        return self.project.root / "output/reviews"

    @property
    def names(self) -> list[str]:
        """The columns of tables: the rows' fields, then the results', then the error."""
        fields = list(dict.fromkeys(name for row in self.rows for name in row))
        return [*fields, *(f"say.{name}" for name in fields), "error"]

    def cells(self, row: Values) -> list[Any]:
        record = {**row, **{f"say.{name}": value for name, value in row.items()}}
        return [record.get(name) for name in self.names]


STAGES = [{"name": "say", "prompt": "${row_json}", "output_schema": {"type": "object"}}]


def repeated(talk: Talk) -> Answer:
    """What is asked, as the answer: so every value of a result is chosen here."""
    body = json.loads(talk.asked(1 << 30).body)
    answer = completion(body["messages"][-1]["content"], body["model"])
    return Answer(answer, headers={"content-type": "application/json"})


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with serving(repeated) as url:
        yield url


@pytest.fixture(scope="module")
def ran(base_url: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """Runs a source once, with all outputs at a time."""
    finished: dict[str, Ran] = {}

    def run(source: str) -> Ran:
        if source not in finished:
            project = ProjectFolder(tmp_path_factory.mktemp("pairs") / "project")
            project.configure(base_url, structured="none")
            project.write(".env", f"PGSECRET='{PASSWORD}'")
            keys = SOURCES[source](project)
            output = {"format": list(get_args(OutputFormat)), "to": "sqlite://data/out.db?table=results"}
            project.write(
                "workflows/reviews.yml",
                json.dumps({"input": keys, "stages": STAGES, "output": {**output, "include_input": True}}),
            )
            report = project.run()
            assert report.exit_code == 0, report.summary["errors"]
            finished[source] = _ran(project)
        return finished[source]

    return run


def _ran(project: ProjectFolder) -> Ran:
    spec, _ = load_project(project.root, {})
    assert spec is not None
    workflow, _ = load_workflow(spec, "reviews", Overrides())
    assert workflow is not None
    rows = list(read_rows(open_input(workflow.input, {"PGSECRET": PASSWORD}), workflow.input.id_field))
    assert all(row.data is not None for row in rows)
    return Ran(project, [row.data for row in rows if row.data is not None], [row.id for row in rows])


def as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check_delimited(suffix: str, delimiter: str) -> Callable[[Ran], None]:
    def check(ran: Ran) -> None:
        raw = (ran.folder / f"results.{suffix}").read_bytes()
        assert not raw.startswith(b"\xef\xbb\xbf")
        header, *rows = csv.reader(io.StringIO(raw.decode(), newline=""), delimiter=delimiter, strict=True)
        assert header == ran.names
        assert rows == [[as_text(cell) for cell in ran.cells(row)] for row in ran.rows]

    return check


def check_txt(ran: Ran) -> None:
    lines = (ran.folder / "results.txt").read_bytes().decode().split("\n")
    assert lines.pop() == ""
    assert lines == [as_text(row) for row in ran.rows]


def same(stored: Any, value: Any) -> bool:
    """Whether a typed cell holds the value: as it is, or as JSON text where the column has no type for it."""
    if type(stored) is type(value) and stored == value:
        return True
    if isinstance(value, bool) or stored is None or value is None:
        return isinstance(value, bool) and stored == int(value)
    if isinstance(value, int | float) and isinstance(stored, float):
        return stored == value
    return isinstance(stored, str) and json.loads(stored) == value


def check_cells(ran: Ran, rows: list[tuple[Any, ...]], names: list[str], ids: int = 0) -> None:
    """`ids` columns stand before those of the layout."""
    told = [name.lower() for name in names]
    assert len(set(told)) == len(told), "a database tells no upper case from lower"
    assert len(rows) == len(ran.rows)
    for stored, row in zip(rows, ran.rows, strict=True):
        for name, cell, value in zip(ran.names, stored[ids:], ran.cells(row), strict=True):
            assert same(cell, value), (name, cell, value)


def check_parquet(ran: Ran) -> None:
    with duckdb.connect() as connection:
        table = connection.read_parquet(str(ran.folder / "results.parquet"))
        names = [name for name in ran.names if name and name.isidentifier() and name.lower() != "a"]
        assert [name for name in table.columns if name in names] == names
        check_cells(ran, table.fetchall(), table.columns)


def check_table(ran: Ran) -> None:
    connection = sqlite3.connect(ran.project.root / "data/out.db")
    cursor = connection.execute("SELECT * FROM results ORDER BY rowid")
    names, rows = [column[0] for column in cursor.description], cursor.fetchall()
    connection.close()
    if not isinstance(ran.ids[0], str):
        assert names[0] == "row_number"
        assert [row[0] for row in rows] == ran.ids
        check_cells(ran, rows, names, ids=1)
    else:
        assert [str(row[0]) for row in rows] == ran.ids
        check_cells(ran, rows, names)


def check_server(ran: Ran) -> None:
    """The table, written by another run of the workflow, which has nothing left to ask."""
    (server,) = SERVER
    server.sql("DROP TABLE IF EXISTS results")
    written = json.loads((ran.project.root / "workflows/reviews.yml").read_text())
    written["output"]["to"] = f"{server.address}?table=results"
    ran.project.write("workflows/reviews.yml", json.dumps(written))
    report = ran.project.run()
    assert (report.not_written, report.invocation["calls"]) == (None, 0)
    names = [name for (name,) in server.sql(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'results' ORDER BY ordinal_position"
    )]  # fmt: skip
    rows = {str(row[0]): row for row in server.sql("SELECT * FROM results")}
    ids = 0 if isinstance(ran.ids[0], str) else 1
    found = []
    for own, row in zip(ran.ids, ran.rows, strict=True):
        cells = [None] * ids + ran.cells(row)
        stored = [type(v)(c) if isinstance(c, Decimal) else c for c, v in zip(rows[str(own)], cells, strict=True)]
        found.append(tuple(stored))
    check_cells(ran, found, names, ids=ids)


def check_array(ran: Ran) -> None:
    assert ran.project.output() == ran.rows


def check_envelopes(ran: Ran) -> None:
    found = ran.project.envelopes()
    assert [envelope["result"] for envelope in found] == ran.rows
    assert [envelope["input"] for envelope in found] == ran.rows
    assert [envelope["id"] for envelope in found] == ran.ids


SINKS: dict[str, Callable[[Ran], None]] = {
    "csv": check_delimited("csv", ","),
    "tsv": check_delimited("tsv", "\t"),
    "txt": check_txt,
    "parquet": check_parquet,
    "sqlite": check_table,
    "postgres": check_server,
    "json": check_array,
    "jsonl": check_envelopes,
}


def test_every_source_and_every_output_is_in_this_suite() -> None:
    assert {*FORMATS, *get_args(InputFormat)} <= SOURCES.keys()
    assert {*TABLES, *get_args(OutputFormat)} <= SINKS.keys()


@pytest.fixture(scope="module")
def server(_postgres_server: PostgresServer) -> PostgresServer:
    _postgres_server.fresh("pairs")
    SERVER.append(_postgres_server)
    return _postgres_server


PAIRS = [
    pytest.param(source, sink, marks=[services] if "postgres" in (source, sink) else [])
    for source, sink in few([(one, other) for one in SOURCES for other in SINKS], 3)
]


@pytest.mark.parametrize(("source", "sink"), PAIRS)
def test_values_arrive(ran: Callable[[str], Ran], source: str, sink: str, request: pytest.FixtureRequest) -> None:
    if "postgres" in (source, sink):
        request.getfixturevalue("server")
    SINKS[sink](ran(source))
