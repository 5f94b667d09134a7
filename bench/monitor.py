"""What each page of the monitor reads, timed on a store with millions of tasks; 300 ms are required of each.

python bench/monitor.py                    5,000,000 tasks: about two minutes to make, and 4 GB of disk
python bench/monitor.py --tasks 100000     fewer
python bench/monitor.py --keep FOLDER      makes the store there, or takes the one that is there
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from figures import Figure, machine, machine_line, text_table
from processes import AGAC, measured

from agac.api import monitor, monitored_rows, run_curves
from agac.api.monitored_rows import RowFilters
from agac.store.writer import open_database

MOST_MS = 300.0
STAGES = 2
MINUTES = 2000  # that the run is said to have taken
WORKFLOW = """\
input: {path: in.csv, id_field: id}
stages:
  - {name: classify, prompt: "Review: ${text}", output_schema: {sentiment: string, reason: string}}
  - {name: reply, prompt: "Answer ${classify.sentiment}", output_schema: {answer: string}}
"""
TABLES = ("row", "task", "result", "attempt")

# One row in 40 failed at the first stage, in one of four ways; one in 25 was passed over by the second; 1000 are open.
FILL = """
CREATE TEMP TABLE n AS
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows)
SELECT i, NOT i % 40 AS fails, i > :rows - 1000 AS open FROM n;
INSERT INTO row (key, run_id, id, occurrence, ordinal, hash, data, state, result_id, error_stage, error_type,
    error_message, seen)
SELECT i, 1, 'r-' || i, 0, i, randomblob(16), printf('{"id":"r-%d","text":"Review number %d: light and comfortable, '
    || 'worth the price, though the zip could be stronger: %d"}', i, i, i % 977),
    CASE WHEN fails THEN 2 WHEN open THEN 0 ELSE 1 END, iif(fails OR open, NULL, 2 * i), iif(fails, 'classify', NULL),
    iif(fails, json_extract('["SchemaMismatch","Timeout","Refused","ProviderError"]', '$['||(i / 40 % 4)||']'), NULL),
    iif(fails, 'the reply to row ' || i || ' is not what was asked for', NULL), 1 FROM n;
INSERT INTO task (row_key, stage, replica, fingerprint, outcome, result_id, error_type, failures, settled_at)
SELECT i, s.value, 0, randomblob(16),
    CASE WHEN fails THEN 'failed' WHEN i % 25 = 0 AND s.value THEN 'skipped' ELSE 'done' END,
    2 * i - 1 + s.value, iif(fails, 'Timeout', NULL), 0, :began + i * :pace
FROM n, json_each('[0,1]') s WHERE NOT open AND NOT (fails AND s.value);
INSERT INTO result (id, fingerprint, value, endpoint_id, created_at)
SELECT 2 * i - 1 + s.value, randomblob(16), printf('{"sentiment":"positive","reason":"because it is %d"}', i % 977), 1,
    :began + i * :pace
FROM n, json_each('[0,1]') s WHERE NOT fails AND NOT open;
INSERT INTO attempt (row_key, stage, replica, event_id, number, fingerprint, endpoint_id, purpose, started_at, duration,
    status, error_type, ambiguous, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost)
SELECT i, s.value, 0, 1, 1, randomblob(16), 1, 'ask', :began + i * :pace, 0.5 + (i % 100) / 100.0, 200,
    iif(fails, 'Timeout', NULL), 0, 90 + i % 20, 40, 60, 0, 0.0002
FROM n, json_each('[0,1]') s WHERE NOT open AND NOT (fails AND s.value);
DROP TABLE n;
"""
ROLL_UPS = """
INSERT INTO counter (run_id, stage, outcome, error_type, model, count, input_tokens, cached_tokens, output_tokens,
    reasoning_tokens, cost, unpriced, simulated)
SELECT 1, '', iif(state = 1, 'done', 'failed'), coalesce(error_type, ''), '', count(*), 0, 0, 0, 0, 0, 0, 0
FROM row WHERE state IN (1, 2) GROUP BY 3, 4 UNION ALL
SELECT 1, '', 'present', '', '', count(*), 0, 0, 0, 0, 0, 0, 0 FROM row UNION ALL
SELECT 1, iif(stage, 'reply', 'classify'), outcome, '', '', count(*), 0, 0, 0, 0, 0, 0, 0 FROM task
WHERE outcome <> 'failed' GROUP BY 2, 3 UNION ALL
SELECT 1, 'classify', 'failed', error_type, '', count(*), 0, 0, 0, 0, 0, 0, 0 FROM row
WHERE state = 2 GROUP BY 4 UNION ALL
SELECT 1, iif(stage, 'reply', 'classify'), 'call', coalesce(error_type, ''), 'simulator/small', count(*),
    sum(input_tokens), sum(cached_tokens), sum(output_tokens), 0, sum(cost), 0, 0 FROM attempt GROUP BY 2, 4;
INSERT INTO timing SELECT 1, iif(s.value, 'reply', 'classify'), 'duration', b.value, 1000
FROM json_each('[0,1]') s, json_each('[-10,-5,0,3,6,9,12]') b;
INSERT INTO minute SELECT 1, CAST(settled_at / 60 AS INTEGER), iif(stage, 'reply', 'classify'), '', count(*),
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM task GROUP BY 2, 3;
INSERT INTO minute SELECT 1, CAST(started_at / 60 AS INTEGER), iif(stage, 'reply', 'classify'), 'simulator/small',
    0, 0, 0, 0, 0, count(*), 0, sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(cost)
FROM attempt GROUP BY 2, 3;
INSERT INTO minute SELECT run_id, minute, '', '', sum(done), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM minute GROUP BY 2;
INSERT INTO minute_timing SELECT 1, m.minute, m.stage, b.value, 20
FROM minute m, json_each('[-6,-5,-4,-3,-2,-1,0,1,2,3,4,5,6,7]') b WHERE m.model <> '';
INSERT INTO lane_sample SELECT 1, :began + 2.0 * n.key, 'simulator/small', 8, 16, 32, 4, 'limit', NULL, 1.5, 0
FROM json_each(:samples) n;
"""


def make(root: Path, tasks: int) -> None:
    """A project whose run has so many tasks: a real run of one row, whose tables are filled anew."""
    rows, pace = tasks // STAGES, 60 * MINUTES / (tasks // STAGES)
    (root / "workflows").mkdir(parents=True)
    (root / "agac.yml").write_text("defaults: {model: simulator/small}\n", "utf-8")
    (root / "workflows" / "b.yml").write_text(WORKFLOW, "utf-8")
    (root / "in.csv").write_text("id,text\nr-0,one\n", "utf-8")
    measured([*AGAC, "-q", "run", "-a", "b"], root)
    began = time.time() - 60 * MINUTES
    values = {"rows": rows, "began": began, "pace": pace, "samples": json.dumps([0] * (30 * MINUTES))}
    with closing(sqlite3.connect(root / ".agac" / "agac.db", isolation_level=None)) as store:
        for pragma in ("synchronous = OFF", "cache_size = -1000000", "journal_mode = MEMORY", "temp_store = MEMORY"):
            store.execute(f"PRAGMA {pragma}").fetchall()
        store.execute("BEGIN")
        for table in (*TABLES, "counter", "timing", "minute", "minute_timing"):
            store.execute(f"DELETE FROM {table}")
        indexes = store.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL AND tbl_name IN (?, ?, ?, ?)",
            TABLES,
        ).fetchall()
        for name, _ in indexes:
            store.execute(f"DROP INDEX {name}")
        for statement in filter(str.strip, FILL.split(";\n")):
            store.execute(statement, values)
        for _, text in indexes:
            store.execute(text)
        for statement in filter(str.strip, ROLL_UPS.split(";\n")):
            store.execute(statement, values)
        store.execute("UPDATE run SET created_at = ?, finished_at = NULL", (began,))
        store.execute("UPDATE event SET at = ?", (began,))
        store.execute("COMMIT")
        store.execute("PRAGMA journal_mode = WAL").fetchall()


async def readers(root: Path) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every reader of the API, and every kind of list, also from the middle of the store."""

    async def behind(filters: RowFilters, place: list[object]) -> object:
        return await monitored_rows.arows(1, filters, json.dumps([[], *place]), project=root)

    def rows(**filters: str) -> Callable[[], Awaitable[object]]:
        return lambda: monitored_rows.arows(1, RowFilters(**filters), project=root)

    last = (await monitor.arun(1, project=root)).report["rows"]["total"]
    return {
        "runs": lambda: monitor.aruns(project=root),
        "a run": lambda: monitor.arun(1, project=root),
        "curves": lambda: run_curves.acurves(1, project=root),
        "errors": lambda: monitored_rows.aerrors(1, project=root),
        "rows": rows(),
        "rows, from the middle": lambda: behind(RowFilters(), [last // 2, 0]),
        "rows by id, from the middle": lambda: behind(RowFilters(sort="id"), ["r-5", 0]),
        "rows that failed": rows(state="failed"),
        "rows that failed so": rows(error="Refused", stage="classify"),
        "rows of an id": rows(id=f"r-{last - 7}"),
        "rows that are open": rows(state="open"),
        "rows that a stage passed over": rows(stage="reply", state="skipped"),
        "rows with a text": rows(text="stronger: 976"),
        "rows with a text that none has (bounded)": rows(text="nowhere"),
        "failed rows with a text that none has (bounded)": rows(state="failed", text="nowhere"),
    }


async def measure(root: Path, times: int) -> list[Figure]:
    """Each reader so often, of a store that is first brought up to date."""
    async with open_database(root / ".agac" / "agac.db"):
        figures = []
    for name, read in (await readers(root)).items():
        took = []
        for _ in range(times):
            began = time.perf_counter()
            await read()
            took.append(1000 * (time.perf_counter() - began))
        figures.append(Figure("monitor", f"{name}, p50", median(took), "ms"))
        figures.append(Figure("monitor", f"{name}, longest", max(took), "ms", at_most=MOST_MS))
    return figures


def main() -> None:
    """Makes a store, and measures."""
    parser = argparse.ArgumentParser(description="Measure what the monitor reads.")
    parser.add_argument("--tasks", type=int, default=5_000_000)
    parser.add_argument("--times", type=int, default=7, help="how often each is measured")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the store is, or is to be kept")
    given = parser.parse_args()
    print(machine_line(machine()), flush=True)
    with TemporaryDirectory(prefix="agac-bench-") as folder:
        root = given.keep or Path(folder)
        if not (root / ".agac").exists():
            began = time.perf_counter()
            make(root, given.tasks)
            print(f"{given.tasks:,} tasks made in {time.perf_counter() - began:.0f} s", flush=True)
        size = (root / ".agac" / "agac.db").stat().st_size / 1e9
        figures = asyncio.run(measure(root, given.times))
    print(f"{size:.2f} GB\n{text_table(figures)}")
    missed = [one for one in figures if one.kept is False]
    print(f"{len(missed)} figures missed their bound.")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
