"""Workflows over every kind of input, through the commands: checked, planned, run, run again, retried."""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
import zstandard
from support.project import ProjectFolder
from support.sources import write_sheets

from agac.core.errors import UsageError

ROWS = [{"id": f"r-{n}", "text": f"I love number {n}"} for n in range(1, 7)]
CSV = "id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in ROWS)
PACKED = gzip.compress('id,price,text\n1,"2,50",Grüße\n'.encode("utf-16-le"), mtime=0)
"""Without the moment of packing: every worker has to give its test the same name."""


def write_all(root: Path) -> None:
    data = root / "data"
    (data / "many").mkdir(parents=True)
    (data / "rows.csv").write_text(CSV)
    (data / "rows.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    (data / "rows.jsonl.zst").write_bytes(zstandard.compress("".join(json.dumps(r) + "\n" for r in ROWS).encode()))
    (data / "many/1.csv").write_text("\n".join(CSV.split("\n")[:4]) + "\n")
    (data / "many/2.csv").write_text("id,text\n" + "\n".join(CSV.split("\n")[4:]))
    with closing(sqlite3.connect(data / "rows.db")) as connection:
        connection.execute("CREATE TABLE r (id, text)")
        connection.executemany("INSERT INTO r VALUES (?, ?)", [(row["id"], row["text"]) for row in ROWS])
        connection.commit()
    with duckdb.connect() as base:
        base.execute(f"COPY (SELECT * FROM read_csv('{data / 'rows.csv'}')) TO '{data / 'rows.parquet'}'")
    write_sheets(data / "rows.xlsx", {"Rows": [["id", "text"], *(list(row.values()) for row in ROWS)]})


INPUTS: dict[str, Any] = {
    "gz": "data/rows.csv.gz",
    "zst": "data/rows.jsonl.zst",
    "pattern": "data/many/*.csv",
    "list": ["data/many/1.csv", "data/many/2.csv"],
    "sqlite": "sqlite://data/rows.db?query=SELECT id, text FROM r ORDER BY id",
    "table": "sqlite://data/rows.db?table=r",
    "parquet": "data/rows.parquet",
    "xlsx": "data/rows.xlsx",
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_workflow_over_any_input_is_checked_planned_run_and_gone_on_with(project: ProjectFolder, name: str) -> None:
    write_all(project.root)
    project.workflow(path=INPUTS[name])
    assert project.agac("validate").code == 0
    assert project.agac("plan", "-a", "reviews", "--json").json["stages"][0]["run"] == 6
    report = project.run()
    assert report.summary["rows"] == {"total": 6, "done": 6, "skipped": 0, "failed": 0, "dropped": 0, "open": 0}
    assert [envelope["id"] for envelope in project.envelopes()] == [row["id"] for row in ROWS]
    again = project.run()
    assert again.summary["run"] == report.summary["run"]
    assert (again.invocation["calls"], again.invocation["rows_unchanged"]) == (0, 6)
    assert project.agac("inspect", "last", "r-2").code == 0
    project.assert_sound()


def test_the_same_rows_from_another_input_are_not_asked_again(project: ProjectFolder) -> None:
    write_all(project.root)
    assert project.run(project.workflow()).invocation["calls"] == 6
    for path in INPUTS.values():
        if isinstance(path, str):
            typed = path.replace("sqlite://", f"sqlite://{project.root}/") if "://" in path else project.root / path
            assert project.run(input=typed).invocation["calls"] == 0


def test_a_statement_chooses_the_rows_and_is_part_of_the_run(project: ProjectFolder) -> None:
    write_all(project.root)
    first = "SELECT * FROM input WHERE id > 'r-2' ORDER BY id DESC"
    project.workflow(input={"sql": first})
    run = project.run()
    assert [envelope["id"] for envelope in project.envelopes()] == ["r-6", "r-5", "r-4", "r-3"]
    [(body,)] = project.query("SELECT body FROM definition")
    assert json.loads(body)["input"]["sql"] == first
    assert project.run().summary["run"] == run.summary["run"]
    some = project.run(limit=2, offset=1)
    assert (some.summary["rows"]["total"], some.invocation["calls"]) == (2, 0)
    assert [envelope["id"] for envelope in project.envelopes(file="preview/results.jsonl")] == ["r-5", "r-4"]
    assert project.run(sample=3, seed=1).summary["rows"]["total"] == 3
    project.workflow(input={"sql": first.replace("r-2", "r-1")})
    planned = project.agac("plan", "-a", "reviews")
    assert "compared with run 1; input.sql changed" in planned.out
    assert "1 run: new row (row 'r-2' for example)" in planned.out
    everything = project.agac("plan", "-a", "reviews", "--sql", "SELECT * FROM input", "--json").json
    assert everything["stages"][0]["run"] == 2
    twice = "SELECT id, text FROM input UNION ALL SELECT id, text FROM input ORDER BY ALL"
    report = project.agac("run", "-a", "reviews", "--sql", twice, "--quiet", "--yes")
    assert [bool(envelope["ok"]) for envelope in project.envelopes()] == [True, False] * 6, report.err
    project.assert_sound()


def test_what_is_wrong_with_a_statement_is_a_problem_of_its_place(project: ProjectFolder) -> None:
    write_all(project.root)
    keys = "path: data/rows.csv\n  sql: SELECT nid FROM input"
    project.write("workflows/reviews.yml", f"input:\n  {keys}\nstages: [{{name: a}}]")
    checked = project.agac("validate")
    said = "Referenced column \"nid\" not found in FROM clause, at 'nid'; the columns of input are: id VARCHAR, text"
    assert f"workflows/reviews.yml:3:8: input.sql: {said}" in checked.out
    assert f"--sql: {said}" in project.agac("plan", "-a", "reviews", "--sql", "SELECT nid FROM input").err
    project.write("workflows/reviews.yml", "input: {path: data/rows.csv, sheet: One}\nstages: [{name: a}]")
    assert "input.sheet: sheet is for xlsx; remove it" in project.agac("validate").out
    project.workflow(input={"id_field": None})
    warned = project.agac("plan", "-a", "reviews", "--sql", "SELECT text FROM input GROUP BY text")
    assert "--sql: warning: rows are known by their numbers, and the query does not order them" in warned.err
    shown = project.agac("data", "data/rows.xlsx", "--sheet", "1", "--sql", "SELECT count(*) AS n FROM input", "--json")
    assert shown.json["rows"] == [{"n": 6}]


def test_each_file_is_a_row_under_its_path(project: ProjectFolder) -> None:
    for name, text in {
        "docs/b.md": "two",
        "docs/a.md": "one",
        "docs/sub/c.md": "three",
        "docs/.d.md": "hidden",
    }.items():
        project.write(name, text)
    stage = {"name": "review", "prompt": "Review ${path} (${name}): ${content}"}
    project.run(project.workflow(path="docs", input={"format": "files", "id_field": None}, stages=[stage]))
    assert [envelope["id"] for envelope in project.envelopes()] == ["docs/a.md", "docs/b.md", "docs/sub/c.md"]
    project.write("docs/b.md", "changed")
    project.write("docs/aa.md", "new")
    assert project.run().invocation["calls"] == 2
    assert [envelope["id"] for envelope in project.envelopes()] == [
        "docs/a.md", "docs/aa.md", "docs/b.md", "docs/sub/c.md",
    ]  # fmt: skip


def test_results_and_state_are_never_matched(project: ProjectFolder) -> None:
    project.write("x.json", '[{"id": 1, "text": "one"}]')
    project.workflow(path="**/*.json*")
    assert project.run().summary["rows"]["total"] == 1
    assert project.run().summary["rows"]["total"] == 1
    for _ in range(2):  # nor those that --output puts elsewhere
        assert project.run(output="results").summary["rows"]["total"] == 1


def test_rows_of_a_query_without_an_order_want_ids(project: ProjectFolder) -> None:
    write_all(project.root)
    project.workflow(path="sqlite://data/rows.db?query=SELECT id, text FROM r", input={"id_field": None})
    checked = project.agac("validate", code=0)
    assert "warning: input.path: rows are known by their numbers, and the query does not order them" in checked.out
    project.workflow(path="sqlite://data/rows.db?query=SELECT id, text FROM r")
    assert "warning" not in project.agac("validate").out


@pytest.mark.parametrize(
    ("name", "keys", "content"),
    [
        ("rows.csv", ', delimiter: ";"', "id;price;text\n1;2,50;Grüße\n".encode()),
        ("rows.csv", ', delimiter: ";", encoding: cp1252', 'id;price;text\n1;"2,50";Grüße\n'.encode("cp1252")),
        ("rows.tsv", ", delimiter: '|', encoding: latin-1", "id|price|text\n1|2,50|Grüße\n".encode("latin-1")),
        ("rows.csv", "", 'id,price,text\r\n1,"2,50",Grüße\r\n'.encode("utf-16")),
        ("rows.tsv", "", "\ufeffid\tprice\ttext\n1\t2,50\tGrüße\n".encode("utf-16-be")),
        ("rows.csv.gz", ", encoding: utf-16-le", PACKED),
        ("rows.jsonl", ", encoding: cp1252", '{"id": "1", "price": "2,50", "text": "Grüße"}\n'.encode("cp1252")),
        ("rows.json", "", '[{"id": "1", "price": "2,50", "text": "Grüße"}]'.encode("utf-16")),
        ("rows.csv", ", encoding: cp1252", '\ufeffid,price,text\n1,"2,50",Grüße\n'.encode()),
    ],
)
def test_text_is_read_as_it_was_written(project: ProjectFolder, name: str, keys: str, content: bytes) -> None:
    project.write("workflows/w.yml", f"input: {{path: data/{name}, id_field: id{keys}}}\nstages: [{{name: a}}]\n"
        "output: {format: [csv, tsv], bom: true, include_input: true}\n")  # fmt: skip
    (project.root / "data").mkdir(exist_ok=True)
    (project.root / "data" / name).write_bytes(content)
    assert project.agac("validate", code=0).out == "1 workflow valid: w\n"
    assert "warning" not in project.agac("plan", "w", code=0).err
    project.agac("run", "w", code=0)
    (row,) = map(json.loads, (project.root / "output/w/results.jsonl").read_text("utf-8").splitlines())
    assert row["input"] == {"id": "1", "price": "2,50", "text": "Grüße"}
    for table in ("csv", "tsv"):
        assert (project.root / f"output/w/results.{table}").read_bytes().startswith(b"\xef\xbb\xbfid")
    project.agac("run", "w", code=0)
    assert (project.root / "output/w/results.csv").read_bytes().count(b"\xef\xbb\xbf") == 1


@pytest.mark.parametrize("table", ["id;price\n1;2,50\n2;3\n", '"id";"price"\n"1";"2,50"\n2;3\n'])
def test_a_file_with_semicolons_is_told_how_to_be_read_everywhere(project: ProjectFolder, table: str) -> None:
    project.write("data/rows.csv", table)
    project.write("workflows/w.yml", "input: data/rows.csv\nstages: [{name: a}]\n")
    hint = "is the file separated by ';'? Say `delimiter: \";\"` in the input"
    for words in (["data", "data/rows.csv"], ["validate"], ["plan", "w"], ["run", "w"]):
        ran = project.agac(*words)
        assert hint in ran.out + ran.err, words
    shown = project.agac("data", "data/rows.csv", "--delimiter", ";", "--json", code=0).json
    assert [column["name"] for column in shown["columns"]] == ["id", "price"]
    assert shown["rows"][0] == {"id": "1", "price": "2,50"}
    project.write("workflows/w.yml", "input: {path: data/rows.csv, id_field: id}\nstages: [{name: a}]\n")
    assert hint in project.agac("validate", code=2).out


def test_what_is_said_to_a_wrong_delimiter_or_encoding(project: ProjectFolder) -> None:
    (project.root / "data").mkdir(exist_ok=True)
    (project.root / "data/rows.csv").write_bytes("id,text\n1,Grüße\n".encode("cp1252"))
    project.write("data/rows.jsonl", '{"id": 1}\n')
    for keys, said in (
        ("path: data/rows.csv, delimiter: ';;'", "input.delimiter: ';;' is no delimiter; give one character"),
        ("path: data/rows.csv, encoding: cp125", "input.encoding: unknown encoding 'cp125'; did you mean 'cp1252'?"),
        ("path: data/rows.csv, encoding: idna", "input.encoding: unknown encoding 'idna'; known, among others: utf-8,"),
        ("path: data/rows.jsonl, delimiter: ';'", "input.delimiter: delimiter is for csv, tsv; remove it"),
        ("path: data/rows.csv, encoding: utf-16", "data/rows.csv: cannot be read as utf-16: "),
    ):
        project.write("workflows/w.yml", f"input: {{{keys}}}\nstages: [{{name: a}}]\n")
        assert said in project.agac("validate", code=2).out, keys
    assert "--delimiter: ';;' is no delimiter" in project.agac("data", "data/rows.csv", "--delimiter", ";;", code=2).err
    piped = project.piped(b'{"id": 1}\n', "data", "-", "--delimiter", ";")
    for looked in (project.agac("data", "data/rows.jsonl", "--delimiter", ";"), piped):
        assert looked.code == 2
        assert "--delimiter: delimiter is for csv, tsv; " in looked.err
        assert " is jsonl" in looked.err
    project.workflow(input={"delimiter": ";"})
    shown = project.agac("plan", "-a", "reviews", "--input", "data/rows.jsonl").err
    assert "delimiter is for csv, tsv; what --input names is jsonl, and read without it" in shown


def test_rows_that_are_piped_in_are_kept_and_the_same_rows_go_on_with_the_run(project: ProjectFolder) -> None:
    run = ("run", "-a", "reviews", "--json")
    project.workflow(path="-", input={"format": "csv"})
    assert project.agac("validate").code == 0
    assert project.piped(CSV.encode(), *run).json["rows"]["done"] == 6
    again = project.piped(CSV.encode(), *run).json
    assert (again["run"], again["invocation"]["calls"], again["invocation"]["rows_unchanged"]) == (1, 0, 6)
    more = project.piped((CSV + "r-7,another\n").encode(), *run).json
    assert (more["run"], more["invocation"]["calls"]) == (1, 1)
    assert len(list((project.root / ".agac/inputs").iterdir())) == 2
    kept = project.piped(gzip.compress(CSV.encode()), "plan", "-a", "reviews", "--json")
    assert kept.json["stages"][0]["reuse"] == 6
    stage = {"name": "s", "prompt": "Two: ${text}"}
    project.workflow("two", input={"format": "csv"}, path="-", stages=[stage])
    both = project.piped(CSV.encode(), "run", "-a", "reviews", "-a", "two", "--json").json
    assert [report["rows"]["done"] for report in both] == [6, 6], "several workflows share it"
    project.workflow("own", rows=2)
    ended = project.piped(CSV.encode(), "run", "-a", "own", "--input", "-", "--json")
    assert ended.json["rows"]["done"] == 6, "the workflow's own file tells the format"


def test_without_rows_or_a_format_on_standard_input_it_is_said_how_to_go_on(project: ProjectFolder) -> None:
    project.workflow(path="-")
    refused = project.piped(CSV.encode(), "run", "-a", "reviews")
    assert refused.code == 2
    assert refused.err == (
        "error: standard input: cannot tell the format of what is piped in\n"
        "  Add `format: csv` to the workflow's input (`agac process`: --read format=csv), "
        "or another of csv, tsv, json, jsonl, txt, parquet, xlsx.\n"
    )
    inputs = project.root / ".agac/inputs"
    before = set(inputs.iterdir())
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    assert project.piped(lines.encode(), "run", "-a", "reviews").code == 0
    [kept] = set(inputs.iterdir()) - before
    refused = project.piped(b"", "run", "-a", "reviews")
    assert refused.code == 2
    assert "standard input: nothing came" in refused.err
    assert f"or resume with those of the last time: --input {kept}" in refused.err
    gone_on = project.run(input=str(kept))
    assert (gone_on.summary["run"], gone_on.invocation["calls"]) == (1, 0)


def test_what_was_piped_in_can_be_retried_without_piping_it_again(project: ProjectFolder) -> None:
    project.workflow(stages=[{"name": "one", "prompt": "${text} ${extra}"}], path="data/rows.jsonl")
    project.rows(ROWS, "data/rows.jsonl")
    body = "".join(json.dumps({**row, **({"extra": "x"} if row["id"] != "r-2" else {})}) + "\n" for row in ROWS)
    assert project.piped(body.encode(), "run", "-a", "reviews", "--input", "-").code == 3
    assert project.agac("retry", "last", "--yes", "--json", code=3).json["run"] == 1


def test_gc_drops_what_was_piped_in_for_runs_that_are_not_kept(project: ProjectFolder) -> None:
    project.workflow(path="-", input={"format": "csv"})
    for n in range(3):
        assert project.piped(CSV.encode() + f"x-{n},x\n".encode(), "run", "-a", "reviews").code == 0
    assert len(list((project.root / ".agac/inputs").iterdir())) == 3
    assert project.agac("gc", "--keep-runs", "1").code == 0
    [kept] = (project.root / ".agac/inputs").iterdir()
    assert b"x-2,x" in kept.read_bytes()
    for n in "ab":  # and what no run has read
        assert project.piped(f"id,text\n{n},x\n".encode(), "plan", "-a", "reviews").code == 0
    assert project.agac("gc", "--keep-runs", "1").code == 0
    assert len(list((project.root / ".agac/inputs").iterdir())) == 2
    assert kept.is_file()


def test_a_sample_is_the_same_every_time_and_goes_to_the_preview(project: ProjectFolder) -> None:
    report = project.run(project.workflow(rows=50), sample=5)
    ids = [envelope["id"] for envelope in project.envelopes("reviews", "preview/results.jsonl")]
    assert len(ids) == 5
    assert ids == sorted(ids, key=lambda text: int(text[2:]))
    again = project.run(sample=5)
    assert (again.summary["run"], again.invocation["calls"]) == (report.summary["run"], 0)
    other = project.run(sample=5, seed=1)
    assert other.summary["run"] != report.summary["run"]
    assert other.summary["selection"] == {"limit": None, "offset": 0, "sample": 5, "seed": 1}
    assert "5 rows drawn with seed 1" in project.agac("runs").out
    project.assert_sound()
    project.run(offset=30, sample=8)  # first the offset, then the sample, then the limit
    drawn = [envelope["row_number"] for envelope in project.envelopes("reviews", "preview/results.jsonl")]
    assert len(drawn) == 8
    assert min(drawn) > 30
    project.run(offset=30, sample=8, limit=3)
    assert [e["row_number"] for e in project.envelopes("reviews", "preview/results.jsonl")] == drawn[:3]


def test_a_sample_may_be_all_rows_and_a_seed_without_a_sample_is_refused(project: ProjectFolder) -> None:
    project.workflow(rows=4)
    for options, words in (({"seed": 3}, "--seed 3: nothing is drawn"), ({"sample": 0}, "draw at least one row")):
        with pytest.raises(UsageError, match=words):
            project.run(**options)
    assert project.agac("plan", "-a", "reviews", "--sample", "1", "--json").json["stages"][0]["run"] == 1
    assert project.run(sample=9).summary["rows"]["done"] == 4


@pytest.mark.parametrize("id_field", ["id", None])
def test_a_sample_follows_rows_that_are_added(project: ProjectFolder, id_field: str | None) -> None:
    """What a sample no longer draws leaves the run, also where it stood between two chunks of the reading."""
    project.workflow(input={"id_field": id_field})
    project.numbered(1_500)
    first = project.run(sample=700)
    assert first.summary["rows"]["total"] == 700
    project.numbered(1_800)
    second = project.run(sample=700)
    assert second.summary["run"] == first.summary["run"]
    assert second.summary["rows"] == {"total": 700, "done": 700, "skipped": 0, "failed": 0, "dropped": 0, "open": 0}
    assert len(project.envelopes("reviews", "preview/results.jsonl")) == 700
    project.assert_sound()


SHORT = "id,name,price\n1,cup,3\n2,mug\n3,pot,5\n"
PRICED = [{"name": "ask", "prompt": "What is ${name} at ${price}?"}]


def test_a_short_record_fails_where_a_prompt_needs_what_it_lacks_and_is_counted(project: ProjectFolder) -> None:
    project.write("data/rows.csv", SHORT)
    project.workflow(stages=PRICED)
    said = "1 of 3 records has fewer fields than the header, the first at data/rows.csv:3; a row fails if a prompt"
    checked = project.agac("validate")
    assert (checked.code, said in checked.out + checked.err) == (0, True)
    plan = project.agac("plan", "-a", "reviews", "--json").json
    assert (plan["rows"]["short"], plan["stages"][0]["run"], plan["stages"][0]["blocked"]) == (1, 2, 1)
    ran = project.agac("run", "-a", "reviews")
    assert (ran.code, "  1 record with fewer fields than the header\n" in ran.out) == (3, True)
    error = json.loads((project.root / "output/reviews/errors.jsonl").read_text())
    assert error["error"]["type"] == "MissingTemplateField"
    assert "this row has no ${price}" in error["error"]["message"]
    summary = json.loads((project.root / "output/reviews/summary.json").read_text())
    assert summary["short_records"] == 1


def test_a_short_record_runs_where_no_prompt_needs_what_it_lacks(project: ProjectFolder) -> None:
    project.write("data/rows.csv", SHORT)
    project.workflow(stages=[{"name": "ask", "prompt": "What is ${name}?"}])
    assert project.run().summary["rows"]["done"] == 3


@pytest.mark.parametrize("value", ["null", '"null"'])
def test_what_a_short_record_lacks_is_null_on_request(project: ProjectFolder, value: str) -> None:
    project.write("data/rows.csv", SHORT)
    stages = "stages: [{name: ask, prompt: 'What is ${name} at ${price}?'}]"
    source = f"input: {{path: data/rows.csv, id_field: id, on_short_record: {value}}}"
    project.write("workflows/reviews.yml", f"{source}\n{stages}\n")
    plan = project.agac("plan", "-a", "reviews", "--show", "3")
    assert "What is mug at null?" in plan.out
    assert "their missing fields are null (on_short_record: null)" in plan.err
    summary = project.run().summary
    assert (summary["rows"]["done"], summary["short_records"]) == (3, 1)


def test_once_records_are_mended_none_is_counted_as_short(project: ProjectFolder) -> None:
    project.write("data/rows.csv", SHORT)
    project.workflow(stages=PRICED)
    project.run()
    project.write("data/rows.csv", SHORT.replace("mug", "mug,4"))
    summary = project.run().summary
    assert (summary["rows"]["done"], "short_records" in summary) == (3, False)


def test_short_records_of_several_files_are_named_with_their_file(project: ProjectFolder) -> None:
    project.write("data/many/1.csv", "id,name,price\n1,cup,3\n")
    project.write("data/many/2.csv", "id,name,price\n2,mug\n")
    project.workflow(path="data/many/*.csv", stages=PRICED)
    assert "the first at data/many/2.csv:2;" in project.agac("validate").out
    assert project.run().summary["short_records"] == 1


def test_on_short_record_is_for_files_with_a_header(project: ProjectFolder) -> None:
    project.workflow(path="data/rows.jsonl", rows=1, input={"on_short_record": "fail"})
    project.write("data/rows.jsonl", '{"id": "1", "text": "x"}\n')
    checked = project.agac("validate")
    assert "input.on_short_record: on_short_record is for csv, tsv; remove it" in checked.out + checked.err


LACKING: dict[str, tuple[str, str]] = {
    "json": ("data/rows.json", '[{"id": "1", "name": "cup"}, {"id": "2", "name": "mug"}]'),
    "jsonl": ("data/rows.jsonl", '{"id": "1", "name": "cup"}\n{"id": "2", "name": "mug"}\n'),
    "several": ("data/*.jsonl", '{"id": "1", "name": "cup"}\n{"id": "2", "name": "mug"}\n'),
    "csv": ("data/rows.csv", "id,name,price\n1,cup\n2,mug\n"),
    "tsv": ("data/rows.tsv", "id\tname\tprice\n1\tcup\n2\tmug\n"),
}


@pytest.mark.parametrize("kind", LACKING)
def test_a_placeholder_that_no_row_has_stops_plan_validate_and_run(project: ProjectFolder, kind: str) -> None:
    path, content = LACKING[kind]
    project.write(path.replace("*", "rows"), content)
    project.workflow(path=path, stages=PRICED)
    for command in (("validate",), ("plan", "-a", "reviews"), ("run", "-a", "reviews")):
        ran = project.agac(*command)
        assert ran.code == 2
        assert "stages[0].prompt: ${price}: no row has such a field; known: id, name" in ran.out + ran.err
    assert not (project.root / "output").exists()


def test_a_way_into_a_field_that_no_row_has_is_refused(project: ProjectFolder) -> None:
    project.write("data/rows.jsonl", '{"id": "1", "who": {"name": "Ada"}}\n{"id": "2", "who": {}}\n')
    project.workflow(path="data/rows.jsonl", stages=[{"name": "ask", "prompt": "${who.name}: ${who.age}"}])
    checked = project.agac("validate")
    assert "${who.age}: no row has such a field" in checked.out + checked.err
    assert "${who.name}" not in checked.out + checked.err


def test_a_field_that_one_row_has_or_a_guard_asks_for_is_no_problem(project: ProjectFolder) -> None:
    project.write("data/rows.jsonl", '{"id": "1"}\n{"id": "2", "price": 3}\n')
    project.workflow(path="data/rows.jsonl", stages=[{"name": "ask", "prompt": "${price}"}])
    assert project.agac("validate").code == 0
    guarded = {"name": "ask", "prompt": "${colour}", "when": "has(row.colour)"}
    project.workflow(path="data/rows.jsonl", stages=[guarded])
    assert project.agac("validate").code == 0


def test_only_the_first_rows_are_looked_at_and_the_message_says_so(project: ProjectFolder) -> None:
    project.write("data/rows.jsonl", "".join(f'{{"id": "{n}"}}\n' for n in range(1_200)) + '{"id": "x", "price": 1}\n')
    project.workflow(path="data/rows.jsonl", stages=[{"name": "ask", "prompt": "${price}"}])
    checked = project.agac("validate")
    said = "${price}: none of the first 1,000 rows has such a field; known: id. If later rows have it, guard the stage"
    assert (checked.code, said in checked.out + checked.err) == (2, True)


@pytest.mark.parametrize("key", ["group_by", "explode", "dedupe", "select", "id_field"])
def test_a_key_that_names_a_field_that_no_row_has_is_refused(project: ProjectFolder, key: str) -> None:
    project.write("data/rows.jsonl", '{"id": "1", "name": "cup"}\n{"id": "2", "name": "mug"}\n')
    stage: dict[str, Any] = {"name": "one", "prompt": "${name}"}
    if key in ("dedupe", "select"):
        stage = {"name": "one", key: ["colour"]}
    elif key != "id_field":
        stage = {"name": "one", key: "colour"}
    project.workflow(
        path="data/rows.jsonl",
        stages=[stage, {"name": "two", "prompt": "x"}],
        input={"id_field": "colour"} if key == "id_field" else {},
    )
    checked = project.agac("validate")
    assert (checked.code, "no row" in checked.out + checked.err) == (2, True)


def test_a_plan_of_which_each_row_fails_at_its_guard_is_blocked(project: ProjectFolder) -> None:
    project.write("data/rows.jsonl", '{"id": "1", "name": "cup"}\n{"id": "2", "name": "mug"}\n')
    project.workflow(path="data/rows.jsonl", stages=[{"name": "ask", "prompt": "${name}", "when": "row.price > 3"}])
    plan = project.agac("plan", "-a", "reviews")
    assert plan.code == 2
    assert "Blocked: no row would come to a result, and the run would ask nothing. ask: when cannot be" in plan.out
    planned = project.agac("plan", "-a", "reviews", "--json")
    assert (planned.code, planned.json["blocked"]) == (2, "ask: when cannot be decided (row '1' for example)")
