"""`output`: what is asked for beside the JSON files, and every problem with it in words."""

import sqlite3
from typing import Any

import pytest

from agac.spec.workflow import TableTarget

BODY = "input: {path: data/reviews.csv}\nstages:\n  - {name: a, prompt: x}\n"


def problems(tree: Any, output: str) -> list[str]:
    tree.write("workflows/w.yml", f"{BODY}output: {output}\n")
    found: list[str] = tree.problems()
    return found


def output(tree: Any, text: str) -> Any:
    return tree.workflow(f"{BODY}output: {text}\n").output


def test_nothing_is_written_beside_the_json_files_unless_it_is_asked_for(tree: Any) -> None:
    found = output(tree, "{dir: out}")
    assert (found.formats, found.to, found.merge, found.csv_safe) == ((), None, None, False)


def test_one_format_or_a_list(tree: Any) -> None:
    assert output(tree, "{format: csv}").formats == ("csv",)
    assert output(tree, "{format: [tsv, parquet, tsv]}").formats == ("tsv", "parquet")


def test_a_table_of_a_database(tree: Any) -> None:
    to = TableTarget(tree.root.resolve() / "data/out.db", "data/out.db", "my results")
    assert output(tree, "{to: 'sqlite://data/out.db?table=my+results'}").to == to
    assert output(tree, "{to: 'sqlite://data/../data/out.db?table=my%20results'}").to == to


REFUSED = [
    ("{format: cvs}", "w.yml:4:18: output.format[0]: unknown value 'cvs'; did you mean 'csv'?"),
    ("{format: [csv, xlsx]}", "output.format[1]: unknown value 'xlsx'; choose csv, tsv, txt, parquet"),
    ("{format: jsonl}", "output.format: 'jsonl': results.jsonl and results.json are always written; leave it out"),
    ("{format: sqlite}", "'sqlite' goes into a table: write to: sqlite://data/out.db?table=results instead"),
    ("{format: {a: b}}", "output.format"),
    ("{format: 5}", "output.format"),
    ("{merge: join}", "output.merge: unknown value 'join'; choose replace, extend, update, append"),
    ("{csv_safe: true}", "output: csv_safe is for csv and tsv; add format: csv, or remove csv_safe"),
    ("{format: txt, csv_safe: true}", "csv_safe is for csv and tsv"),
    ("{to: out.csv}", "'out.csv' names no table; write it as sqlite://data/out.db?table=results, or format: csv for"),
    ("{to: out.db}", "'out.db' names no table; write it as sqlite://data/out.db?table=results"),
    ("{to: 'postgres://x?table=y'}", "postgres:// cannot be written to; write it as sqlite://"),
    ("{to: 'sqlite://?table=x'}", "names no database; write it as"),
    ("{to: 'sqlite://out.db'}", "names no table; write it as"),
    ("{to: 'sqlite://out.db?table='}", "names no table; write it as"),
    ("{to: 'sqlite://out.db?tabel=x'}", "unknown parameter 'tabel'; did you mean 'table'?"),
    ("{to: 'sqlite://out.db?table=x&table=y'}", "names 2 tables; keep one of them"),
    ("{to: 'sqlite://out.db?table=sqlite_x'}", "'sqlite_x' cannot be the name of a table; SQLite keeps it for itself"),
    ("{to: 'sqlite:///tmp/out.db?table=x'}", "'/tmp/out.db' is not relative; paths are relative to the project's root"),
    ("{to: 'sqlite://../out.db?table=x'}", "'../out.db' leads out of the project; name a path inside it"),
    ("{to: 'sqlite://.agac/agac.db?table=x'}", ".agac/agac.db belongs to agac or git; name a database of your own"),
    ("{to: 'sqlite://data?table=x'}", "output.to: data is a folder; name a database in it"),
    ("{to: 'sqlite://agac.yml/x.db?table=x'}", "agac.yml/x.db: a file is where its folder should be"),
    ("{to: 'sqlite://data/reviews.csv?table=x'}", "data/reviews.csv is no SQLite database; name one, or a file that"),
    ("{to: 'sqlite://output/w/preview/x.db?table=x'}", "output/w/preview/x.db lies in the folder of previews"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), REFUSED)
def test_words_of_what_cannot_be_written(tree: Any, text: str, expected: str) -> None:
    assert any(expected in problem for problem in problems(tree, text)), tree.problems()


def test_a_wrong_folder_and_a_wrong_table_are_told_at_once(tree: Any) -> None:
    found = problems(tree, "{dir: ., to: out.db}")
    assert [problem.split(": ")[1] for problem in found] == ["output.dir", "output.to"]


@pytest.mark.parametrize("query", ["SELECT * FROM reviews", 'SELECT id FROM x JOIN "Reviews" USING (id)'])
def test_the_table_that_rows_come_from_is_no_place_for_results(tree: Any, query: str) -> None:
    connection = sqlite3.connect(tree.root / "data/x.db")
    connection.execute("CREATE TABLE reviews (id)")
    connection.close()
    source = f"input: {{path: 'sqlite://data/x.db?query={query}', id_field: id}}\n"
    for table, wrong in (("reviews", True), ("reviews_out", False)):
        target = f"output: {{to: 'sqlite://data/x.db?table={table}'}}\n"
        tree.write("workflows/w.yml", source + "stages:\n  - {name: a, prompt: x}\n" + target)
        told = [problem for problem in tree.problems() if "output.to: the input reads the table 'reviews'" in problem]
        assert bool(told) is wrong
