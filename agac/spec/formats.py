"""Which format a file has, by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from agac.spec.workflow import InputFormat

SUFFIXES: Mapping[str, InputFormat] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "txt",
    ".parquet": "parquet",
}
"""The format of a file that says none, by its suffix."""

PACKED = (".gz", ".zst")
"""Suffixes of compressed files; the format's own stands before them."""

DATABASES = frozenset({".db", ".sqlite", ".sqlite3"})
TABLES_LATER = frozenset({".xlsx", ".xls", ".ods", ".arrow", ".feather"})
KNOWN_FILES = "csv, tsv, json, jsonl, txt or parquet"


def suffix_of(name: str) -> str:
    """The suffix that tells what a file holds, in small letters: `.csv` of `Rows.CSV.gz`."""
    path = PurePath(name)
    if path.suffix.lower() in PACKED:
        path = path.with_suffix("")
    return path.suffix.lower()


def format_of(name: str) -> InputFormat | None:
    """The format that a file's name tells, if it tells one."""
    return SUFFIXES.get(suffix_of(name))
