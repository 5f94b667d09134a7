"""The end of a batch: what was not done is told, the results become files."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO

from agac.simulator.batches.lines import Lines
from agac.simulator.batches.records import DAY, Batch, add_file, delete_file, drop_bytes, file_path, get_file, save
from agac.simulator.batches.state import State

KEPT = 30 * DAY
BOM = b"\xef\xbb\xbf"
COPIED = 2**20

FOREIGN = {
    "null": b"null\n",
    "list": b"[1, 2]\n",
    "no_custom_id": b'{"id":"batch_req_0","response":{"status_code":200,"body":{}},"error":null}\n',
    "not_utf8": b'{"custom_id":"\xff\xfe"}\n',
}
"""Lines that are no result, by the `form` of `batch_foreign_line`; that of a request that nobody made is another."""


def close_off(state: State, batch: Batch, ended: str, when: float, lines: Lines) -> None:
    """Writes what is left and turns results into files; a kill before the commit leaves it to be done again."""
    output, errors = parts(state, batch)
    left = errors if not lines.one_file else output
    if ended != "completed":
        tell_unfinished(state, batch, ended, lines, left, batch.out_size if lines.one_file else batch.err_size)
    shaped = shape(batch, output, lines.unknown)
    with state.write():
        batch.ended, batch.ended_at = ended, when
        if lines.one_file:
            batch.output_id = shaped.name
            errors.unlink()
        else:
            batch.output_id = output_file(state, batch, shaped, when)
            batch.error_id = error_file(state, batch, errors, when)
        for rule in batch.faults:
            if rule["kind"] in CLOSING:
                state.count(f"fault.{rule['kind']}")
        save(state, batch)
        drop_bytes(state, batch.input_id)
    if shaped != output:
        output.unlink(missing_ok=True)


CLOSING = frozenset(
    {
        "batch_expire",
        "batch_counts_lie",
        "batch_null_output",
        "batch_empty_output_id",
        "batch_zero_error_file",
        "batch_gone",
        "batch_shuffle",
        "batch_bom",
        "batch_blank_lines",
        "batch_foreign_line",
    }
)
"""Faults that come to pass when a batch ends."""


def parts(state: State, batch: Batch) -> tuple[Path, Path]:
    """Where its good and its other lines are gathered. What a kill left of an uncommitted chunk is cut off, and what it
    left as a file that nobody was told of is taken back."""
    found = []
    for kind, name, size in (
        ("output", output_part(batch), batch.out_size),
        ("error", errors_part(batch), batch.err_size),
    ):
        path, made = file_path(state, name), file_path(state, result_id(state, batch, kind))
        if made.exists() and not path.exists():
            made.replace(path)
        with opened(state, name, size):
            found.append(path)
    return found[0], found[1]


def result_id(state: State, batch: Batch, kind: str) -> str:
    """The id of a file of its results: the same however often it is made."""
    return state.new_id("file-", batch.id, kind)


def tell_unfinished(state: State, batch: Batch, ended: str, lines: Lines, path: Path, size: int) -> None:
    """A line for every request that was not done."""
    with file_path(state, batch.input_id).open("rb") as asked, path.open("r+b") as told:
        asked.seek(batch.read)
        told.seek(size)
        for number in range(batch.executed + 1, batch.total + 1):
            custom_id, _ = lines.read(json.loads(asked.readline()))
            told.write(lines.unfinished(batch.id, number, custom_id, ended))


def output_file(state: State, batch: Batch, path: Path, when: float) -> str | None:
    """The file of good lines, None when there are none; or what a fault says of it."""
    empty = path.stat().st_size == 0
    if batch.fault("batch_empty_output_id"):
        return ""
    if empty or batch.fault("batch_null_output"):
        path.unlink()
        return None
    return result_file(state, batch, path, "output", when)


def error_file(state: State, batch: Batch, path: Path, when: float) -> str | None:
    """The file of other lines, None when there are none; Azure's is there even then."""
    empty = path.stat().st_size == 0
    if empty and batch.family != "azure" and not batch.fault("batch_zero_error_file"):
        path.unlink()
        return None
    return result_file(state, batch, path, "error", when)


def result_file(state: State, batch: Batch, path: Path, kind: str, when: float) -> str:
    """Makes a file of results; of one that is gone only the name is left."""
    file_id = result_id(state, batch, kind)
    kept = KEPT if batch.kept_seconds is None else batch.kept_seconds
    if get_file(state, file_id) is None:
        name = f"{batch.id}_{kind}.jsonl"
        file = add_file(state, path, name, "batch_output", expires_at=when + kept, file_id=file_id)
        if batch.fault("batch_gone"):
            delete_file(state, file)
    return file_id


def shape(batch: Batch, path: Path, unknown: bytes) -> Path:
    """The results as faults leave them: in another order, with lines that do not belong, with marks before them."""
    kinds = {rule["kind"] for rule in batch.faults}
    if not kinds & {"batch_shuffle", "batch_bom", "batch_blank_lines", "batch_foreign_line"}:
        return path
    shaped = path.with_suffix(".shaped")
    with path.open("rb") as lines, shaped.open("wb") as told:
        told.write(BOM if "batch_bom" in kinds else b"")
        for rule in batch.faults:
            if rule["kind"] == "batch_foreign_line":
                told.write(FOREIGN.get(rule["form"], unknown))
        for line in shuffled(lines, batch.number) if "batch_shuffle" in kinds else lines:
            told.write(line)
            told.write(b"\n" if "batch_blank_lines" in kinds else b"")
    return shaped


def shuffled(lines: IO[bytes], seed: int) -> Iterator[bytes]:
    """The lines in another order, with no more of them in memory than where each begins."""
    starts = array("Q", [0])
    for line in lines:
        starts.append(starts[-1] + len(line))
    starts.pop()
    Random(seed).shuffle(starts)  # noqa: S311 (nothing to guess)
    for start in starts:
        lines.seek(start)
        yield lines.readline()


def output_part(batch: Batch) -> str:
    """The name under which good lines are gathered."""
    return f"{batch.id}.output"


def errors_part(batch: Batch) -> str:
    """The name under which other lines are gathered."""
    return f"{batch.id}.errors"


def opened(state: State, name: str, size: int) -> IO[bytes]:
    """A file to append to, with no more in it than was committed."""
    path = file_path(state, name)
    path.touch()
    file = path.open("r+b")
    file.truncate(size)
    file.seek(size)
    return file
