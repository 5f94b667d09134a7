"""Three jobs from an empty folder to the results, by the commands that a reader of the guide types: run, look, change
something, break something, mend it. Nothing of it is asked twice, whatever the way."""

import csv
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
        assert "cd job\n  agac validate\n" in ProjectFolder(folder).agac("init", "job", code=0).out
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
        assert (account["duplicates"], account["batches"]["duplicates"]) == (0, 0)
        return int(account["charged"] + account["batches"]["charged"])

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
    mail, flow, results = job.root / "data/tickets.csv", "workflows/tickets.yml", "output/tickets/results.csv"
    mail.write_bytes(MAIL)
    assert 'customer: Ada "the tent" Byron' in job.types("data data/tickets.csv").out
    job.write(flow, TICKETS)
    assert job.types("validate").out == "2 workflows valid: reviews, tickets\n"
    plan = job.types("plan -a tickets")
    assert "tickets: 5 rows, 1 unusable; the first run" in plan.out
    assert "row 3 cannot be used: an earlier row has its id 'T-1'" in plan.err
    ran = job.types("run -a tickets", code=3)
    assert "tickets, run 1: 5 rows, 4 done, 1 failed" in ran.out
    assert "set input.on_duplicate_id: first | last | suffix" in ran.out
    # the remedy that was proposed asks for the row that changed alone
    job.edit(flow, "id_field: ticket", "id_field: ticket, on_duplicate_id: last")
    assert "classify: 1 run: row changed (row 'T-1' for example)" in job.types("plan -a tickets").out
    assert "Dropped: 1 row by on_duplicate_id: last" in job.types("run -a tickets").out
    assert job.asked() == 5
    job.edit(flow, "format: csv", "format: csv, csv_safe: true")
    assert "no calls were needed" in job.types("run -a tickets").out
    rows = job.table(results)
    assert [(row["ticket"], row["text"]) for row in rows] == [
        ("T-2", "Where is my parcel?\nIt was due on Monday."), ("T-1", "Found it, thanks."),
        ("T-3", "'=SUM(A1) is \"broken\"; terrible"), ("T-4", ""),
    ]  # fmt: skip
    # a new prompt is tried on two rows first (of which T-1 is another one); earlier results come back
    job.edit(flow, "} wrote: ", "} wrote to us: ")
    assert "4 run: prompt changed" in job.types("plan -a tickets").out
    assert "output/tickets/preview/results.jsonl" in job.types("run -a tickets --limit 2").out
    job.types("run -a tickets")
    assert job.asked() == 5 + 2 + 3
    job.types("export -a tickets --run 2")
    assert job.table(results) == rows
    # a file from another program: bytes that are no UTF-8, a comma without quotes, a quote that is never closed
    mail.write_bytes(MAIL + b"T-5,Gil,Caf\xe9\r\nT-6,one,two,three\r\n" + b'T-7,Eve,"open\r\nT-8,Fay,ok\r\n')
    assert "8 rows, 4 done, 3 failed, 1 dropped" in job.types("run -a tickets", code=3).out
    why = [one["error"]["message"] for one in job.envelopes("tickets", "errors.jsonl")]
    assert [f"data/tickets.csv:{line}: " in text for line, text in zip((8, 9, 10), why, strict=True)] == [True] * 3
    mail.write_bytes(MAIL + 'T-5,Gil,Café\r\nT-6,one,"two,three"\r\nT-7,Eve,open\r\nT-8,Fay,ok\r\n'.encode())
    job.types("run -a tickets")
    assert (job.asked(), job.envelopes("tickets", "errors.jsonl"), len(job.table(results))) == (14, [], 8)


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


def in_batches(job: Job) -> None:
    """A batch for each stage, each with its own command; between them the machine may be switched off."""
    ran = job.types("run -a findings --run-mode batch")
    assert "No row is finished yet. `agac batch status` shows progress" in ran.out
    assert "Next: take it with: agac batch retrieve" in job.types("batch status").out
    assert re.search(r"\n4 of \d+ rows are finished\. `agac batch status` shows", job.types("batch retrieve").out)
    job.types("batch retrieve")
    assert "4 rows, 4 done" in job.types("batch retrieve").out
    assert "No open batches" in job.types("batch list").out


def test_extract_explode_judge_and_report(tmp_path: Path, faulty: Faulty) -> None:
    """Call by call and in batches: the same results, figures and requests, also of a changed prompt and a new row."""
    sync, batch = jobs = [Job(tmp_path / name, faulty([], "--batch-seconds", "0")) for name in ("sync", "batch")]

    def same() -> tuple[int, ...]:
        """How many answers each stage came to, which is the same in both ways as are the results."""
        told = [job.output("findings", "summary.json") for job in jobs]
        assert sync.envelopes("findings") == batch.envelopes("findings")
        assert [one["rows"] for one in told[0]["levels"]] == [one["rows"] for one in told[1]["levels"]]
        return tuple(stage["done"] for stage in told[0]["stages"])

    for job in jobs:
        job.rows(INTERVIEWS, "data/interviews.jsonl")
        job.write("workflows/findings.yml", FINDINGS)
        assert "Stages: extract → judge → report" in job.types("plan -a findings").out
    sync.types("run -a findings")
    in_batches(batch)
    texts, claims, reports = same()  # equal claims are asked once
    assert sync.asked() == batch.asked() == texts + claims + reports
    # a better prompt for the claims; of the batch it is improved once more while that is under way, and put back
    for job in jobs:
        job.edit("workflows/findings.yml", "Is this about a product?", "What is this about?")
    sync.types("run -a findings")
    batch.types("run -a findings --run-mode batch")
    batch.edit("workflows/findings.yml", "What is this about?", "What is it about?")
    batch.types("run -a findings --run-mode batch --wait --yes")
    batch.edit("workflows/findings.yml", "What is it about?", "What is this about?")
    batch.types("run -a findings --run-mode batch --wait")
    assert same()[1] == claims
    assert sync.asked() == texts + 2 * claims + reports + same()[2]
    assert "No calls are needed." in batch.types("plan -a findings").out
    for job in jobs:  # one more interview, which lacks its text at first
        job.rows([*INTERVIEWS, {"id": "i-5", "who": "Eve"}], "data/interviews.jsonl")
        assert "this row has no ${text}; visible are: id, who" in job.types("run -a findings", code=3).out
        job.rows([*INTERVIEWS, {"id": "i-5", "who": "Eve", "text": "Good. Very good."}], "data/interviews.jsonl")
        job.types("run -a findings")
        asked = job.asked()
        assert "no calls were needed" in job.types("run -a findings").out
        assert job.asked() == asked
    same()


NOTES = """\
input: {path: "data/notes/**/*", format: files}
stages: [{name: tag, prompt: "Tag: ${content}", output_schema: {topic: "tent|other", name: string}}]
output: {format: csv, to: "sqlite://data/out.db?table=tags"}
"""


def test_a_folder_of_texts_into_a_database_and_a_csv(job: Job) -> None:
    names = ["data/notes/a.txt", "data/notes/b.md", "data/notes/old/a.txt"]
    for name, text in zip(names, ("The tent leaked.\n", "Größe passt.", "The tent was fine."), strict=True):
        job.write(name, text)
    (job.root / "data/notes/c.png").write_bytes(b"\xff\xd8\xff\x00")
    job.write("workflows/notes.yml", NOTES)
    assert "data/notes/c.png: byte 0xff at offset 0" in job.types("plan -a notes").err
    assert "name text files only" in job.types("run -a notes", code=3).out
    job.edit("workflows/notes.yml", "data/notes/**/*", "data/notes/**/*.[tm][xd]*")
    job.types("run -a notes")
    assert job.asked() == 3
    rows = {row["path"]: row["topic"] for row in job.table("output/notes/results.csv")}
    assert list(rows) == [one["id"] for one in job.envelopes("notes")] == names
    assert rows.items() <= {row["path"]: row["topic"] for row in job.stored("data/out.db", "tags")}.items()
    # one changed text is one call; a text that left leaves the files, and stays in the database
    job.write(names[1], "Größe passt nicht.")
    (job.root / names[0]).unlink()
    job.types("run -a notes")
    assert (job.asked(), [row["path"] for row in job.table("output/notes/results.csv")]) == (4, names[1:])
    after = {row["path"]: row["content"] for row in job.stored("data/out.db", "tags")}
    assert (after[names[1]], after[names[0]]) == ("Größe passt nicht.", "The tent leaked.\n")


ORDERS = """\
input: {path: "sqlite://data/shop.db?table=orders", id_field: no}
stages: [{name: tag, prompt: "Order of ${customer}: ${note}", output_schema: {mood: "good|bad", customer: string}}]
output: {merge: MERGE, format: csv, to: "sqlite://data/shop.db?table=moods"}
"""
ORDERED = [(1, "Ada", 19.99, "late"), (2, "Ben", None, 'a "b"'), (90_071_992_547_409_931, "Größe", 0.1, None)]
MERGED = {
    "replace": ["mood", "customer"],
    "extend": ["no", "customer", "total", "note", "mood", "tag.customer"],
    "update": ["no", "customer", "total", "note", "mood"],
    "append": ["no", "customer", "total", "note", "tag"],
}


@pytest.mark.parametrize("merge", MERGED)
def test_a_table_of_a_database_beside_what_is_made_of_it(job: Job, merge: str) -> None:
    with closing(sqlite3.connect(job.root / "data/shop.db")) as connection:
        connection.execute("CREATE TABLE orders (no INTEGER PRIMARY KEY, customer TEXT, total REAL, note TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", ORDERED)
        connection.commit()
    job.write("workflows/orders.yml", ORDERS.replace("MERGE", merge))
    job.types("run -a orders")
    written, stored = job.table("output/orders/results.csv"), job.stored("data/shop.db", "moods")
    key = ["id"] if merge == "replace" else []
    assert (list(written[0]), list(stored[0])) == ([*MERGED[merge], "error"], [*key, *MERGED[merge], "error"])
    for order, envelope, line, row in zip(ORDERED, job.envelopes("orders"), written, stored, strict=True):
        assert envelope["id"] == str(row[(key or ["no"])[0]]) == str(order[0]), "integers keep all their digits"
        texts = {name: value for name, value in envelope["result"].items() if isinstance(value, str)}
        assert texts.items() <= line.items()
        assert texts.items() <= row.items()
        if merge != "replace":
            assert (row["no"], row["total"], row["note"]) == (order[0], *order[2:])
            assert (row["customer"] == order[1]) is (merge != "update"), "its value wins under update alone"
    # another merge costs nothing, and may want another table, which is said
    job.edit("workflows/orders.yml", merge, "extend" if merge == "replace" else "replace")
    assert "Name another table in output.to" in job.types("run -a orders", code=2).err
    job.edit("workflows/orders.yml", "table=moods", "table=others")
    job.types("run -a orders")
    assert (len(job.stored("data/shop.db", "others")), job.asked()) == (3, 3)
