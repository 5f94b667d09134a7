"""How fast each format is read, and how long a large file takes to its first record. Prints one JSON object.

python bench/reading.py FOLDER ROWS MEGABYTES
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from workspace import COLUMNS, cells, write_table

from agac.data.sources import open_source, read_rows


def write_json_lines(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(dict(zip(COLUMNS, cells(row), strict=True))) + "\n" for row in range(rows))


def write_json(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("[")
        for row in range(rows):
            file.write(("," if row else "") + json.dumps(dict(zip(COLUMNS, cells(row), strict=True))))
        file.write("]")


def write_tabs(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("\t".join(COLUMNS) + "\n")
        file.writelines("\t".join(cells(row)) + "\n" for row in range(rows))


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "csv": write_table,
    "tsv": write_tabs,
    "json": write_json,
    "jsonl": write_json_lines,
}


def rate(path: Path) -> float:
    """Rows a second of CPU, from opening to the last one."""
    started = time.process_time()
    count = sum(1 for _ in read_rows(open_source(path, path.suffix[1:], path.name), "id"))
    return count / (time.process_time() - started)


def first_record(path: Path) -> float:
    """Seconds from opening to the first row."""
    started = time.perf_counter()
    next(iter(read_rows(open_source(path, path.suffix[1:], path.name), "id")))
    return time.perf_counter() - started


def main(folder: Path, rows: int, megabytes: int) -> None:
    found = {}
    for name, write in WRITERS.items():
        path = folder / f"in.{name}"
        write(path, rows)
        found[name] = sorted(rate(path) for _ in range(3))[1]
    large = folder / "large.csv"
    write_table(large, megabytes * 1_000_000 // 130)
    found["first_record"] = first_record(large)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
