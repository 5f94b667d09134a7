"""Outputs beside the JSON files: tables and lines, what is merged into them, and when they come and go."""

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scripted_server import scripted
from support.project import ProjectFolder
from support.server import Faulty, Server

import agac

ECHO = {"model": "local/echo"}
SAY = [{"name": "say", "prompt": "${text}"}]
EVERY = ["csv", "tsv", "txt", "parquet"]


def raw(project: ProjectFolder, file: str, folder: str = "reviews") -> str:
    return (project.root / "output" / folder / file).read_bytes().decode()


def table(project: ProjectFolder, file: str = "results.csv", folder: str = "reviews") -> list[list[str]]:
    return list(csv.reader(io.StringIO(raw(project, file, folder), newline=""), strict=True))


def names(project: ProjectFolder, folder: str = "reviews") -> set[str]:
    """The files beside the ones that are always there."""
    always = {"results.jsonl", "results.json", "errors.jsonl", "summary.json", "telemetry.jsonl", "preview"}
    return {path.name for path in (project.root / "output" / folder).iterdir()} - always


def stored(project: ProjectFolder, query: str = "SELECT * FROM results", path: str = "data/out.db") -> list[Any]:
    with closing(sqlite3.connect(project.root / path)) as connection:
        return connection.execute(query).fetchall()


def mixed(project: ProjectFolder, faulty: Faulty, **output: Any) -> None:
    """Three rows: done, refused, done."""
    project.configure(faulty([{"kind": "refusal", "match": "two", "message": 'no, "never"'}]).base_url)
    project.rows([{"id": "a", "text": "one"}, {"id": "b", "text": "two"}, {"id": "c", "text": "thrée"}])
    project.workflow(defaults=ECHO, stages=SAY, output=output)
    assert project.run().exit_code == 3


def simple(project: ProjectFolder, **output: Any) -> agac.RunReport:
    """Two rows, echoed."""
    project.rows([{"id": "a", "text": "one"}, {"id": "b", "text": "two"}])
    project.workflow(defaults=ECHO, stages=SAY, output=output)
    return project.run()


def test_a_table_has_the_rows_columns_the_result_and_the_error(project: ProjectFolder, faulty: Faulty) -> None:
    mixed(project, faulty, format=["csv", "tsv", "txt"])
    assert raw(project, "results.csv") == (
        'id,text,result,error\na,one,one,\nb,two,,"Refused: the model refused: no, ""never"""\nc,thrée,thrée,\n'
    )
    assert raw(project, "results.tsv") == (
        'id\ttext\tresult\terror\na\tone\tone\t\nb\ttwo\t\t"Refused: the model refused: no, ""never"""\n'
        "c\tthrée\tthrée\t\n"
    )
    assert raw(project, "results.txt") == 'one\n[failed] Refused: the model refused: no, "never"\nthrée\n'


def test_the_columns_of_a_schema_stand_in_its_order_without_a_single_result_too(
    project: ProjectFolder, faulty: Faulty
) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "one"}]))
    project.rows([{"id": "a", "text": "one"}])
    schema = {"zeal": "integer", "alpha": "string", "m": "number"}
    stage = {"name": "rate", "prompt": "${text}", "output_schema": schema}
    project.workflow(stages=[stage], output={"format": ["csv", "parquet"]})
    assert project.run().exit_code == 3
    header, (*cells, error) = table(project)
    assert header == ["id", "text", "zeal", "alpha", "m", "error"]
    assert cells == ["a", "one", "", "", ""]
    assert error.startswith("Refused: ")
    found = pytest.importorskip("duckdb").read_parquet(str(project.root / "output/reviews/results.parquet"))
    assert [str(kind) for kind in found.types] == ["VARCHAR", "VARCHAR", "BIGINT", "VARCHAR", "DOUBLE", "VARCHAR"]


MERGED = {
    "replace": (["note", "text", "error"], {"text": "T", "note": "N"}),
    "extend": (["id", "text", "note", "say.text", "error"], {"id": "a", "text": "one", "note": "N", "say.text": "T"}),
    "update": (["id", "text", "note", "error"], {"id": "a", "text": "T", "note": "N"}),
    "append": (["id", "text", "say", "error"], {"id": "a", "text": "one", "say": {"text": "T", "note": "N"}}),
}


@pytest.mark.parametrize("merge", MERGED)
def test_each_way_of_merging_in_each_format(project: ProjectFolder, merge: str) -> None:
    header, record = MERGED[merge]
    project.rows([{"id": "a", "text": "one"}])
    stage = {"name": "say", "prompt": "${text}", "output_schema": {"note": "string", "text": "string"}}
    to = "sqlite://data/out.db?table=results"
    project.workflow(stages=[stage], output={"format": EVERY, "merge": merge, "to": to})
    with project.asking(scripted(json.dumps({"text": "T", "note": "N"}))):
        assert project.run().exit_code == 0
    cells = [json.dumps(v, separators=(",", ":")) if isinstance(v, dict) else v for v in record.values()]
    by_name = dict(zip(record, cells, strict=True))
    expected = [by_name.get(name) for name in header]
    assert table(project) == [header, [cell or "" for cell in expected]]
    assert json.loads(raw(project, "results.txt")) == record
    assert project.output() == [record]
    assert project.envelopes()[0]["result"] == record
    key = [] if "id" in header else ["a"]
    assert stored(project) == [(*key, *expected)]
    found = pytest.importorskip("duckdb").read_parquet(str(project.root / "output/reviews/results.parquet"))
    assert (found.columns, found.fetchall()) == (header, [tuple(expected)])


SKIPPED = {
    "extend": {"id": "b", "text": "two", "note": None, "say.text": None},
    "update": {"id": "b", "text": "two", "note": None},
    "append": {"id": "b", "text": "two", "say": None},
}


@pytest.mark.parametrize("merge", SKIPPED)
def test_a_row_whose_last_stage_was_skipped_has_the_fields_of_the_others_as_null(
    project: ProjectFolder, merge: str
) -> None:
    project.rows([{"id": "a", "text": "one"}, {"id": "b", "text": "two"}])
    schema = {"note": "string", "text": "string"}
    stage = {"name": "say", "prompt": "${text}", "output_schema": schema, "when": 'text == "one"'}
    project.workflow(stages=[stage], output={"format": EVERY, "merge": merge})
    with project.asking(scripted(json.dumps({"text": "T", "note": "N"}))):
        assert project.run().exit_code == 0
    done, skipped = project.output()
    assert (skipped, set(done)) == (SKIPPED[merge], set(skipped))
    assert [one["result"] for one in project.envelopes()] == [done, skipped]
    assert json.loads(raw(project, "results.txt").split("\n")[1]) == skipped
    header, _, cells = table(project)
    assert dict(zip(header, cells, strict=True)) == {
        **{name: value or "" for name, value in skipped.items()}, "error": "",
    }  # fmt: skip


def test_lines_of_a_text_file_keep_their_numbers(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "two", "message": "no\nnever"}]).base_url)
    project.root.joinpath("data").mkdir()
    project.root.joinpath("data/in.txt").write_bytes(b"one\n\n \ntwo\n\xff\n\nleft\n\nthree\n")
    stages = [{**SAY[0], "prompt": "${content}", "when": 'content != "left"', "otherwise": "drop"}]
    project.workflow(
        path="data/in.txt", defaults=ECHO, stages=stages, input={"id_field": None}, output={"format": "txt"}
    )
    assert project.run().exit_code == 3
    lines = raw(project, "results.txt").split("\n")
    assert (lines[0], lines[1:3], lines[3]) == ("one", ["", ""], "[failed] Refused: the model refused: no\\nnever")
    assert lines[4].startswith("[failed] InvalidRow: data/in.txt:5: ")
    assert lines[5:] == ["", "", "", "three", ""]


def test_lines_of_several_text_files_follow_one_another(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([]).base_url)
    project.write("data/a.txt", "one\n\ntwo\n")
    project.write("data/b.txt", "\nthree\n")
    stages = [{**SAY[0], "prompt": "${content}"}]
    project.workflow(
        path="data/*.txt", defaults=ECHO, stages=stages, input={"id_field": None}, output={"format": "txt"}
    )
    project.run()
    assert raw(project, "results.txt") == "one\n\ntwo\n\nthree\n"


def test_the_fields_of_replies_in_json_are_columns(project: ProjectFolder) -> None:
    project.workflow(rows=3, stages=[{"name": "say", "prompt": "${text}", "reply": "json"}], output={"format": "csv"})
    with project.asking(scripted('{"b": 1, "a": {"c": [2]}}', '{"a": null, "d": "x"}', "[1, 2]")):
        assert project.run(concurrency=1).exit_code == 0
    assert table(project) == [
        ["id", "text", "b", "a", "d", "result", "error"],
        ["r-1", "I love number 1", "1", '{"c":[2]}', "", "", ""],
        ["r-2", "I love number 2", "", "", "x", "", ""],
        ["r-3", "I love number 3", "", "", "", "[1,2]", ""],
    ]


def test_names_clash_for_the_whole_table_or_not_at_all(project: ProjectFolder) -> None:
    mine = {"result": "mine", "error": "mine", "n": -5, "f": -0.5, "l": ["=1"]}
    project.rows([{"id": "a", "text": "x"}, {"id": "b", "text": "y", **mine}], "data/rows.jsonl")
    output = {"format": "csv", "csv_safe": True, "merge": "extend"}
    project.run(project.workflow(path="data/rows.jsonl", defaults=ECHO, stages=SAY, output=output))
    assert table(project) == [
        ["id", "text", "result", "error", "n", "f", "l", "say.result", "say.error"],
        ["a", "x", "", "", "", "", "", "x", ""],
        ["b", "y", "mine", "mine", "-5", "-0.5", '["=1"]', "y", ""],
    ]
    assert project.output() == [
        {"id": "a", "text": "x", "say.result": "x"}, {"id": "b", "text": "y", **mine, "say.result": "y"},
    ]  # fmt: skip


def test_another_format_is_written_without_a_call_and_without_a_new_run(project: ProjectFolder, server: Server) -> None:
    first = simple(project)
    assert names(project) == set()
    second = simple(project, format="csv")
    assert (second.summary["run"], second.invocation["calls"]) == (first.summary["run"], 0)
    assert [path.name for path in second.files][-1] == "results.csv"
    assert table(project)[1:] == [["a", "one", "one", ""], ["b", "two", "two", ""]]
    third = simple(project, format="csv", merge="replace")
    assert table(project) == [["result", "error"], ["one", ""], ["two", ""]]
    assert (third.summary["run"], server.account()["requests"]) == (first.summary["run"], 2)


def test_an_unchanged_run_leaves_its_tables_as_they_are_and_makes_again_what_was_deleted(
    project: ProjectFolder, server: Server
) -> None:
    output = {"format": EVERY, "to": "sqlite://data/out.db?table=results"}
    simple(project, **output)
    folder = project.root / "output/reviews"
    before = {path: path.stat().st_mtime_ns for path in [*folder.iterdir(), project.root / "data/out.db"]}
    simple(project, **output)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for lost in (folder / "results.csv", folder / "results.parquet", project.root / "data/out.db"):
        lost.unlink()
        simple(project, **output)
        assert lost.exists()
    assert server.account()["requests"] == 2


def test_a_format_that_is_not_wanted_any_more_leaves_no_file_but_one_of_the_user_stays(project: ProjectFolder) -> None:
    simple(project, format=EVERY)
    assert names(project) == {f"results.{name}" for name in EVERY}
    simple(project, format="tsv")
    assert names(project) == {"results.tsv"}
    simple(project, format=EVERY)
    project.run(project.workflow(defaults=ECHO, stages=[{"name": "say", "prompt": "again ${text}"}]))
    assert names(project) == set()
    simple(project, format=["csv", "tsv"])
    mine = {project.root / "output/reviews" / name: name for name in ("results.csv", "results.txt")}
    for path, text in mine.items():
        path.write_text(text)
    simple(project)
    assert names(project) == set(mine.values())
    assert {path: path.read_text() for path in mine} == mine


def test_export_makes_everything_again_to_the_byte(project: ProjectFolder) -> None:
    simple(project, format=["csv", "tsv", "txt"], to="sqlite://data/out.db?table=results", merge="append")
    folder = project.root / "output/reviews"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    rows = stored(project)
    for path in [*folder.iterdir(), project.root / "data/out.db"]:
        path.unlink()
    shown = project.agac("export", "-a", "reviews", code=0)
    names = ["results.csv", "results.tsv", "results.txt", "out.db"]
    assert [Path(line).name for line in shown.out.splitlines()][-4:] == names
    _, files = agac.export("reviews", project=project.root)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert stored(project) == rows
    assert {folder / name for name in before} | {project.root / "data/out.db"} == set(files)


def test_a_preview_writes_tables_of_its_own(project: ProjectFolder) -> None:
    output = {"format": EVERY, "to": "sqlite://data/out.db?table=results"}
    simple(project, **output)
    for limit in (2, 1):
        assert project.run(limit=limit).files[-1] == project.root / "output/reviews/preview/results.db"
    assert names(project, "reviews/preview") == {"results.db", *(f"results.{name}" for name in EVERY)}
    assert len(table(project, folder="reviews/preview")) == 2
    assert len(table(project)) == 3
    assert len(stored(project)) == 2
    assert stored(project, path="output/reviews/preview/results.db") == [("a", "one", "one", None)]
    project.run(project.workflow(defaults=ECHO, stages=SAY), limit=1)
    assert names(project, "reviews/preview") == set()


def test_partial_tables_hold_the_rows_that_are_settled(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "unauthorized", "at": [3]}]).base_url)
    project.numbered(5)
    to = "sqlite://data/out.db?table=results"
    project.workflow(defaults=ECHO, stages=SAY, output={"format": ["csv", "txt"], "to": to})
    assert project.run(concurrency=1).exit_code == 1
    agac.export("reviews", partial=True, project=project.root)
    assert [row[0] for row in table(project)] == ["id", "r-1", "r-2"]
    assert len(stored(project)) == 2


def test_a_dropped_row_is_in_no_table_and_one_that_cannot_be_read_has_its_error(project: ProjectFolder) -> None:
    project.write("data/rows.jsonl", '{"id": "a", "text": "one"}\n{"id": "a", "text": "two"}\n{"id": \n')
    output = {"format": ["csv", "txt"], "to": "sqlite://data/out.db?table=results"}
    project.workflow(
        path="data/rows.jsonl", defaults=ECHO, stages=SAY, input={"on_duplicate_id": "last"}, output=output
    )
    assert project.run().exit_code == 3
    header, first, second = table(project)
    assert (header, first) == (["id", "text", "result", "error"], ["a", "two", "two", ""])
    assert second[:3] == ["", "", ""]
    assert second[3].startswith("InvalidJSON: data/rows.jsonl:3: ")
    assert raw(project, "results.txt").startswith("two\n[failed] InvalidJSON: data/rows.jsonl:3: ")
    assert stored(project) == [("a", "two", "two", None)]


def test_cells_that_a_spreadsheet_would_run_are_texts_where_that_is_wanted(project: ProjectFolder) -> None:
    cells = ["=1+1", "+49 30 123", "-5", "@SUM(A1)", "\tx", "\rx", "-1.5e3", "- no", "1=1", "+7", ""]
    expected = ["'=1+1", "'+49 30 123", "-5", "'@SUM(A1)", "'\tx", "'\rx", "-1.5e3", "'- no", "1=1", "+7", ""]
    rows = [{"id": str(i), "text": "x", "=cell": cell} for i, cell in enumerate(cells)]
    project.rows(rows, "data/rows.jsonl")
    keys: dict[str, Any] = {"path": "data/rows.jsonl", "defaults": ECHO, "stages": SAY}
    project.run(project.workflow(**keys, output={"format": ["csv", "tsv"]}))
    assert [row[2] for row in table(project)] == ["=cell", *cells]
    project.workflow(**keys, output={"format": ["csv", "tsv"], "csv_safe": True})
    assert project.run().invocation["calls"] == 0
    assert [row[2] for row in table(project)] == ["'=cell", *expected]
    safe = list(csv.reader(io.StringIO(raw(project, "results.tsv"), newline=""), delimiter="\t", strict=True))
    assert [row[2] for row in safe] == ["'=cell", *expected]
    assert [row["result"] for row in project.envelopes()] == ["x"] * len(cells)


def test_a_link_in_the_place_of_a_table_is_refused_before_anything_is_asked(
    project: ProjectFolder, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("precious")
    folder = project.root / "output/reviews"
    folder.mkdir(parents=True)
    (folder / "results.csv").symlink_to(tmp_path / "precious")
    with pytest.raises(agac.SpecError) as caught:
        simple(project, format="csv")
    (problem,) = caught.value.problems
    assert "results.csv: is a link" in problem.message
    assert problem.path == "output.dir"
    assert server.account()["requests"] == 0
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("id_field", ["id", None])
@pytest.mark.parametrize(
    ("merge", "columns"),
    [("extend", "topic result error"), ("append", "topic sum error"), ("update", "topic result error"),
     ("replace", "result error")],
)  # fmt: skip
def test_a_table_of_groups_has_the_fields_of_groups_and_no_id_of_rows(
    project: ProjectFolder, merge: str, columns: str, id_field: str | None
) -> None:
    project.rows({"id": name, "topic": topic} for name, topic in zip("abc", "xyx", strict=True))
    stage = {"name": "sum", "group_by": "topic", "prompt": "${topic}"}
    output = {"format": "csv", "merge": merge, "to": "sqlite://data/out.db?table=results"}
    project.workflow(stages=[stage], defaults=ECHO, input={"id_field": id_field}, output=output)
    assert project.run().exit_code == 0
    header, *rows = table(project)
    assert header == columns.split()
    assert [row[0] for row in rows] == ["x", "y"]
    with closing(sqlite3.connect(project.root / "data/out.db")) as opened:
        found = opened.execute("SELECT * FROM results ORDER BY id")
        assert [column[0] for column in found.description] == ["id", *header]
        assert [row[0] for row in found] == ["x", "y"]
    for words in (["export", "--run", "last"], ["graph", "--run", "last", "--mermaid"]):
        assert project.agac(*words, code=0).out == project.agac(*words[:2], "1", *words[3:], code=0).out
