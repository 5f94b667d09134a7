"""Three jobs from an empty folder to the results, by the commands that a reader of the guide types: run, look, change
something, break something, mend it. Nothing of it is asked twice, whatever the way."""

import csv
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.project import ProjectFolder, Ran
from support.server import Faulty, Server


class Job(ProjectFolder):
    """A project that `agac init` made, with a server that counts what is asked of it."""

    def __init__(self, folder: Path, server: Server) -> None:
        parent = ProjectFolder(folder)
        assert "cd job\n  agac validate\n" in parent.agac("init", "job", code=0).out
        super().__init__(folder / "job")
        self.server = server
        self.configure(server.base_url, batch={"api": "openai", "grace": 0.5})

    def types(self, line: str, code: int = 0) -> Ran:
        """Types `agac` with these words, which end with this exit code."""
        return self.agac(*line.split(), code=code)

    def edit(self, path: str, old: str, new: str) -> None:
        """Replaces a text that is there once."""
        text = (self.root / path).read_text("utf-8")
        assert text.count(old) == 1, f"{text.count(old)} times in {path}: {old}"
        self.write(path, text.replace(old, new))

    def asked(self) -> int:
        """Requests that were paid, by calls and in batches; none of them twice."""
        account = self.server.account()
        batches = account["batches"]
        assert (account["duplicates"], batches["duplicates"]) == (0, 0)
        return int(account["charged"] + batches["charged"])

    def table(self, path: str) -> list[dict[str, str]]:
        """A csv file as a spreadsheet reads it."""
        with (self.root / path).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def stored(self, database: str, table: str) -> list[dict[str, Any]]:
        """A table of a database, by its key."""
        with closing(sqlite3.connect(self.root / database)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1")]


@pytest.fixture
def job(tmp_path: Path, server: Server) -> Job:
    return Job(tmp_path, server)


MAIL = (
    b'\xef\xbb\xbf"ticket","customer","text"\r\n'
    b'T-1,"Ada ""the tent"" Byron","I was charged twice, again."\r\n'
    b'T-2,Ben,"Where is my parcel?\nIt was due on Monday."\r\n'
    b'T-1,Ada,"Found it, thanks."\r\n'
    b'T-3,Gr\xc3\xb6\xc3\x9fe & S\xc3\xb6hne,"=SUM(A1) is ""broken""; terrible"\r\n'
    b'T-4,,""\r\n'
)
TICKETS = """\
input: {path: data/tickets.csv, id_field: ticket}
stages:
  - name: classify
    prompt: "${customer} wrote: ${text}"
    output_schema: {team: "billing|delivery|other", urgent: boolean}
output: {format: csv}
"""


def test_classify_the_rows_of_a_spreadsheet(job: Job) -> None:
    """With quotes, line ends in cells, a byte order mark, and an id that is there twice."""
    mail = job.root / "data/tickets.csv"
    mail.write_bytes(MAIL)
    seen = job.types("data data/tickets.csv").out
    assert "data/tickets.csv: csv, 239 bytes, 5 rows" in seen
    assert 'customer: Ada "the tent" Byron' in seen

    job.write("workflows/tickets.yml", TICKETS)
    assert job.types("validate").out == "2 workflows valid: reviews, tickets\n"
    plan = job.types("plan -a tickets")
    assert "tickets: 5 rows, 1 unusable; the first run" in plan.out
    assert "row 3 cannot be used: an earlier row has its id 'T-1'" in plan.err
    ran = job.types("run -a tickets", code=3)
    assert "tickets, run 1: 5 rows, 4 done, 1 failed" in ran.out
    assert "DuplicateId: 1 row, e.g. 'T-1' (row 3)" in ran.out
    assert job.asked() == 4
    (failed,) = job.envelopes("tickets", "errors.jsonl")
    assert "set input.on_duplicate_id: first | last | suffix" in failed["error"]["message"]

    job.edit("workflows/tickets.yml", "id_field: ticket", "id_field: ticket, on_duplicate_id: last")
    assert "classify: 1 run: row changed (row 'T-1' for example)" in job.types("plan -a tickets").out
    ran = job.types("run -a tickets")
    assert "tickets, run 2: 5 rows, 4 done, 1 dropped" in ran.out
    assert "Dropped: 1 row by on_duplicate_id: last" in ran.out
    assert job.asked() == 5, "the other three are reused"
    told = {"id": "T-1", "row_number": 1, "stage": None, "on_duplicate_id": "last", "kept_row": 3}
    assert job.envelopes("tickets", "filtered.jsonl") == [told]

    job.edit("workflows/tickets.yml", "format: csv", "format: csv, csv_safe: true")
    assert "no calls were needed" in job.types("run -a tickets").out
    rows = job.table("output/tickets/results.csv")
    assert [row["ticket"] for row in rows] == ["T-2", "T-1", "T-3", "T-4"]
    assert [row["text"] for row in rows[:3]] == [
        "Where is my parcel?\nIt was due on Monday.", "Found it, thanks.", "'=SUM(A1) is \"broken\"; terrible",
    ]  # fmt: skip
    assert {row["team"] for row in rows} <= {"billing", "delivery", "other"}
    answers = {row["ticket"]: row["team"] for row in rows}

    # a new prompt is tried on some rows first, whose answers the whole run reuses
    job.edit("workflows/tickets.yml", "} wrote: ", "} wrote to us: ")
    assert "4 run: prompt changed" in job.types("plan -a tickets").out
    assert "output/tickets/preview/results.jsonl" in job.types("run -a tickets --limit 2").out
    job.types("run -a tickets")
    # row 1 is the last with its id among the first two, so that it was asked for the preview
    assert job.asked() == 10
    job.types("export -a tickets --run 2")
    assert {row["ticket"]: row["team"] for row in job.table("output/tickets/results.csv")} == answers

    # a file from another program: bytes that are no UTF-8, a comma without quotes, a quote that is never closed
    mail.write_bytes(MAIL + b"T-5,Gil,Caf\xe9\r\nT-6,one,two,three\r\n" + b'T-7,Eve,"open\r\nT-8,Fay,ok\r\n')
    ran = job.types("run -a tickets", code=3)
    assert "8 rows, 4 done, 3 failed, 1 dropped" in ran.out
    assert job.asked() == 10
    why = [one["error"]["message"] for one in job.envelopes("tickets", "errors.jsonl")]
    assert 'data/tickets.csv:8: column "text": byte 0xe9' in why[0]
    assert "data/tickets.csv:9: the record has 4 fields, the header 3; put quotes around a value" in why[1]
    assert "data/tickets.csv:10: a quote that is opened in the record on line 10 is never closed" in why[2]
    mail.write_bytes(MAIL + 'T-5,Gil,Café\r\nT-6,one,"two,three"\r\nT-7,Eve,open\r\nT-8,Fay,ok\r\n'.encode())
    assert "9 rows, 8 done, 1 dropped" in job.types("run -a tickets").out
    assert job.asked() == 14
    assert job.envelopes("tickets", "errors.jsonl") == []

    # slips of the keyboard cost nothing
    job.edit("workflows/tickets.yml", "${customer}", "${costumer}")
    assert "${costumer}: no such field; did you mean 'customer'?" in job.types("run -a tickets", code=2).err
    job.edit("workflows/tickets.yml", "${costumer}", "${customer}")
    assert "no calls were needed" in job.types("run -a tickets").out
    assert "team" in job.types("inspect last T-8").out
    assert job.asked() == 14


INTERVIEWS = [
    {"id": "i-1", "who": "Ada", "text": "The tent leaked. The poles were light. The shop answered fast."},
    {"id": "i-2", "who": "Ben", "text": "I like the headlamp. Its battery ends after two hours."},
    {"id": "i-3", "who": "Cleo", "text": "Nothing to say."},
    {"id": "i-4", "who": "Dan", "text": "The stove smells of gas. The tent leaked, too."},
]
FINDINGS = """\
input: {path: data/interviews.jsonl, id_field: id}
stages:
  - name: extract
    prompt: "List the claims that ${who} makes: ${text}"
    output_schema: {claims: "string[]"}
  - name: judge
    explode: extract.claims
    prompt: "Is this about a product? ${item}"
    output_schema: {about: "product|service|other", weight: number}
  - name: report
    group_by: judge.about
    prompt: "Sum up ${rows_count} claims about ${judge.about}: ${rows_json}"
    output_field: summary
"""


def found(job: Job) -> tuple[Any, Any]:
    """The results, and what came of each row and stage: nothing that depends on the way of asking."""
    summary = job.output("findings", "summary.json")
    counts = [{key: one[key] for key in ("name", "done", "reused", "failed")} for one in summary["stages"]]
    return job.envelopes("findings"), [summary["rows"], [one["rows"] for one in summary["levels"]], counts]


def in_sync(job: Job) -> None:
    """All in one command."""
    job.types("run -a findings")


def in_batches(job: Job) -> None:
    """A batch for each stage, each with its own command; between them the machine may be switched off."""
    ran = job.types("run -a findings --run-mode batch")
    assert "No row is finished yet. `agac batch status` shows progress" in ran.out
    assert "Next: take it with: agac batch retrieve" in job.types("batch status").out
    assert re.search(r"\n4 of \d+ rows are finished\. `agac batch status` shows", job.types("batch retrieve").out)
    job.types("batch retrieve")
    ran = job.types("batch retrieve")
    assert ("4 rows, 4 done" in ran.out, "Submitted" in ran.out) == (True, False)
    assert "No open batches" in job.types("batch list").out


def test_extract_explode_judge_and_report(tmp_path: Path, faulty: Faulty) -> None:
    """Call by call and in batches: the same results, figures and requests, also of a changed prompt."""
    jobs = []
    for name, way in {"sync": in_sync, "batch": in_batches}.items():
        job = Job(tmp_path / name, faulty([], "--batch-seconds", "0"))
        job.configure(job.server.base_url, batch={"api": "openai"}, prices={"small": {"input": 1.0, "output": 2.0}})
        job.rows(INTERVIEWS, "data/interviews.jsonl")
        job.write("workflows/findings.yml", FINDINGS)
        job.types("validate")
        assert "Stages: extract → judge → report" in job.types("plan -a findings").out
        way(job)
        jobs.append(job)
    sync, batch = jobs
    assert found(sync) == found(batch)
    calls = [job.output("findings", "summary.json")["calls"] for job in jobs]
    texts, claims, reports = (stage["done"] for stage in found(sync)[1][2])  # equal claims are asked once
    assert [one["count"] for one in calls] == [sync.asked(), batch.asked()] == [texts + claims + reports] * 2
    assert calls[0]["cost_usd"] == pytest.approx(calls[1]["cost_usd"]), "a server of one's own has one price"
    # the claims are asked again with a better prompt, which is improved once more while the batch is under way
    for job in jobs:
        job.edit("workflows/findings.yml", "Is this about a product?", "What is this about?")
    asked = sync.asked()
    in_sync(sync)
    assert sync.asked() - asked == claims + len(found(sync)[0])
    batch.types("run -a findings --run-mode batch")
    batch.edit("workflows/findings.yml", "What is this about?", "What is it about?")
    batch.types("run -a findings --run-mode batch --wait --yes")
    batch.edit("workflows/findings.yml", "What is it about?", "What is this about?")
    batch.types("run -a findings --run-mode batch --wait")
    assert found(sync)[0] == found(batch)[0]
    assert "No calls are needed." in batch.types("plan -a findings").out
    # one more interview, which says nothing at first
    for job in jobs:
        job.rows([*INTERVIEWS, {"id": "i-5", "who": "Eve"}], "data/interviews.jsonl")
        ran = job.types("run -a findings", code=3)
        assert "this row has no ${text}; visible are: id, who, row_json" in ran.out
        job.rows([*INTERVIEWS, {"id": "i-5", "who": "Eve", "text": "Good. Very good."}], "data/interviews.jsonl")
        ran = job.types("run -a findings")
        assert "findings, run" in ran.out
        asked = job.asked()
        assert "no calls were needed" in job.types("run -a findings").out
        assert job.asked() == asked
    assert found(sync)[0] == found(batch)[0]


NOTES = """\
input: {path: "data/notes/**/*", format: files}
stages:
  - name: tag
    prompt: "Tag: ${content}"
    output_schema: {topic: "tent|other", name: string}
output: {format: csv, to: "sqlite://data/out.db?table=tags"}
"""
ORDERS = """\
input: {path: "sqlite://data/shop.db?table=orders", id_field: no}
stages:
  - name: tag
    prompt: "Order of ${customer}: ${note}"
    output_schema: {mood: "good|bad", customer: string}
output: {format: csv, to: "sqlite://data/shop.db?table=moods"}
"""
BIG = 90_071_992_547_409_931
"""More digits than a float has."""
ORDERED = [(1, "Ada", 19.99, "late"), (2, "Ben", None, 'fine, "thanks"'), (BIG, "Größe", 0.1, None)]
MERGED = {
    "replace": ["mood", "customer"],
    "extend": ["no", "customer", "total", "note", "mood", "tag.customer"],
    "update": ["no", "customer", "total", "note", "mood"],
    "append": ["no", "customer", "total", "note", "tag"],
}


def test_a_folder_of_texts_into_a_database_and_a_csv(job: Job) -> None:
    job.write("data/notes/a.txt", "The tent leaked.\n")
    job.write("data/notes/b.md", "Größe passt.")
    job.write("data/notes/old/a.txt", "The tent was fine.")
    picture = job.root / "data/notes/c.png"
    picture.write_bytes(b"\xff\xd8\xff\x00")
    job.write("workflows/notes.yml", NOTES)
    assert "data/notes/c.png: byte 0xff at offset 0" in job.types("plan -a notes").err
    ran = job.types("run -a notes", code=3)
    assert "notes, run 1: 4 rows, 3 done, 1 failed" in ran.out
    assert "name text files only" in ran.out
    job.edit("workflows/notes.yml", "data/notes/**/*", "data/notes/**/*.[tm][xd]*")
    job.types("run -a notes")
    assert job.asked() == 3
    names = ["data/notes/a.txt", "data/notes/b.md", "data/notes/old/a.txt"]
    rows = job.table("output/notes/results.csv")
    assert [row["path"] for row in rows] == names
    assert [row["content"] for row in rows] == ["The tent leaked.\n", "Größe passt.", "The tent was fine."]
    assert [one["id"] for one in job.envelopes("notes")] == names
    stored = {row["path"]: row for row in job.stored("data/out.db", "tags")}
    assert {name: stored[name]["topic"] for name in names} == {row["path"]: row["topic"] for row in rows}
    # one changed text is one call; a text that left leaves the files, and stays in the database
    job.write("data/notes/b.md", "Größe passt nicht.")
    (job.root / "data/notes/a.txt").unlink()
    job.types("run -a notes")
    assert job.asked() == 4
    assert [row["path"] for row in job.table("output/notes/results.csv")] == names[1:]
    after = {row["path"]: row for row in job.stored("data/out.db", "tags")}
    assert (after["data/notes/b.md"]["content"], "data/notes/a.txt" in after) == ("Größe passt nicht.", True)


@pytest.mark.parametrize("merge", MERGED)
def test_a_table_of_a_database_beside_what_is_made_of_it(job: Job, merge: str) -> None:
    with closing(sqlite3.connect(job.root / "data/shop.db")) as connection:
        connection.execute("CREATE TABLE orders (no INTEGER PRIMARY KEY, customer TEXT, total REAL, note TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", ORDERED)
        connection.commit()
    job.write("workflows/orders.yml", ORDERS.replace("output: {", f"output: {{merge: {merge}, "))
    job.types("validate")
    job.types("run -a orders")
    results = {one["id"]: one["result"] for one in job.envelopes("orders")}
    assert list(results) == ["1", "2", str(BIG)]
    key = ["id"] if merge == "replace" else []
    written = job.table("output/orders/results.csv")
    assert list(written[0]) == [*MERGED[merge], "error"]
    stored = job.stored("data/shop.db", "moods")
    assert list(stored[0]) == [*key, *MERGED[merge], "error"]
    for (number, customer, total, note), line, row in zip(ORDERED, written, stored, strict=True):
        result = results[str(number)]
        assert list(result) == MERGED[merge]
        assert row[(key or ["no"])[0]] == number
        as_text = {name: value for name, value in result.items() if isinstance(value, str)}
        assert as_text.items() <= line.items()
        assert as_text.items() <= row.items()
        if merge != "replace":
            assert (row["no"], row["total"], row["note"]) == (number, total, note)
            assert (row["customer"] == customer) is (merge != "update"), "its value wins under update alone"
        if merge == "append":
            assert json.loads(line["tag"]) == json.loads(row["tag"]) == result["tag"]
    # what is made of a table comes back as it was, and costs nothing; another merge needs a table of its own
    (job.root / "output/orders/results.csv").unlink()
    job.types("export -a orders")
    assert job.table("output/orders/results.csv") == written
    other = "extend" if merge == "replace" else "replace"
    job.edit("workflows/orders.yml", f"merge: {merge}", f"merge: {other}")
    refused = job.types("run -a orders", code=2).err
    assert "Name another table in output.to" in refused
    job.edit("workflows/orders.yml", "table=moods", "table=others")
    job.types("run -a orders")
    assert len(job.stored("data/shop.db", "others")) == 3
    assert job.asked() == 3
