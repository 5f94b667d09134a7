"""Files and batches as they are kept, and how they are read and written: all of it within the caller's transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agac.simulator.batches.state import State

DAY = 86_400.0
RESULTS_KEPT = 29 * DAY
"""How long Anthropic keeps results."""

AT_ONCE = frozenset(
    {"batch_list_lag", "batch_get_404", "batch_no_metadata", "batch_stuck", "batch_unknown_status"},
)
"""Faults that are seen from the creation of a batch on."""


@dataclass(slots=True)
class File:
    """An uploaded or written file. `lag` is how many creates still do not find it."""

    seq: int
    id: str
    name: str
    purpose: str
    bytes: int
    created_at: float
    expires_at: float | None
    lag: int = 0


@dataclass(slots=True)
class Batch:
    """A batch: what was asked for, and how far it is. Times are seconds by the simulator's clock; sizes are bytes.

    `family` is openai, azure or anthropic. `seconds` is how long all of it takes, `faults` the rules that were picked
    for it when it was created, `executed` how many of its `total` requests are done: `good` ones (charged) and `bad`
    ones. `read`, `out_size` and `err_size` say how far its input was read and its results were written by then.
    `ended` is empty until it has ended, then completed, failed, expired or cancelled.
    """

    id: str
    family: str
    endpoint: str
    input_id: str
    created_at: float
    seconds: float
    expires_at: float | None
    window: str = "24h"
    metadata: dict[str, str] | None = None
    kept_seconds: float | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    model: str = ""
    validated: bool = False
    total: int = 0
    enqueued_tokens: int = 0
    executed: int = 0
    read: int = 0
    out_size: int = 0
    err_size: int = 0
    good: int = 0
    bad: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cancel_at: float | None = None
    ended: str = ""
    ended_at: float | None = None
    output_id: str | None = None
    error_id: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    deleted: bool = False
    seq: int = 0

    def fault(self, kind: str) -> dict[str, Any] | None:
        """The first picked rule of a kind."""
        return next((rule for rule in self.faults if rule["kind"] == kind), None)


def add_file(state: State, path: Path, name: str, purpose: str, *, expires_at: float | None, file_id: str = "") -> File:
    """Takes over the bytes at `path` as a file."""
    db, now = state.db(), state.now()
    file_id = file_id or state.new_id("file-", path.name, now)
    kept = file_path(state, file_id)
    size = path.stat().st_size
    if path != kept:
        path.replace(kept)
    row = db.execute(
        "INSERT INTO file (id, name, purpose, bytes, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?) RETURNING seq",
        (file_id, name, purpose, size, now, expires_at),
    ).fetchone()
    return File(row[0], file_id, name, purpose, size, now, expires_at)


def file_path(state: State, name: str) -> Path:
    """Where a file's bytes lie."""
    return state.folder / name


def get_file(state: State, file_id: str) -> File | None:
    """A file that is there and has not expired."""
    return next(files(state, "id = ?", (file_id,), 1), None)


def files(state: State, where: str, values: tuple[Any, ...], limit: int, *, newest: bool = True) -> Iterator[File]:
    """Files that are there and have not expired."""
    order = "DESC" if newest else "ASC"
    rows = state.rows(
        "SELECT seq, id, name, purpose, bytes, created_at, expires_at, lag FROM file "  # noqa: S608 (our own words)
        f"WHERE NOT deleted AND (expires_at IS NULL OR expires_at > ?) AND {where} ORDER BY seq {order} LIMIT ?",
        (state.now(), *values, limit),
    )
    return (File(*row) for row in rows)


def listed_files(
    state: State, purpose: str | None, after: str | None, limit: int, *, newest: bool = True
) -> list[File]:
    """Files of one purpose or of all, those that come after the one named."""
    where, values = "purpose = COALESCE(?, purpose)", [purpose]
    if after is not None:
        where += f" AND seq {'<' if newest else '>'} (SELECT seq FROM file WHERE id = ?)"  # noqa: S608 (our own words)
        values.append(after)
    return list(files(state, where, tuple(values), limit, newest=newest))


def set_lag(state: State, file: File, lag: int) -> None:
    """How many creates are still not to find a file."""
    state.db().execute("UPDATE file SET lag = ? WHERE seq = ?", (lag, file.seq))


def delete_file(state: State, file: File) -> None:
    """Deletes a file; its bytes stay for as long as an open batch reads them."""
    state.db().execute("UPDATE file SET deleted = 1 WHERE id = ?", (file.id,))
    drop_bytes(state, file.id)


def drop_bytes(state: State, file_id: str) -> None:
    """Deletes the bytes of a deleted file that no open batch reads."""
    gone = state.db().execute("SELECT 1 FROM file WHERE id = ? AND NOT deleted", (file_id,)).fetchone() is None
    if gone and not any(batch.input_id == file_id for batch in open_batches(state)):
        file_path(state, file_id).unlink(missing_ok=True)


def sweep(state: State) -> None:
    """Deletes the bytes of files that have expired, of results that are archived, and what broken uploads left."""
    now = state.now()
    expired = state.rows("SELECT id FROM file WHERE NOT deleted AND expires_at <= ?", (now,))
    for (file_id,) in expired:
        state.db().execute("UPDATE file SET deleted = 1 WHERE id = ?", (file_id,))
        drop_bytes(state, file_id)
    for batch in batches(state, ("anthropic",), -1):
        if batch.output_id and now >= batch.created_at + RESULTS_KEPT:
            file_path(state, batch.output_id).unlink(missing_ok=True)
    for path in state.folder.glob(".*-*"):
        if path.stat().st_mtime < time.time() - DAY:
            path.unlink(missing_ok=True)


def add_batch(state: State, batch: Batch) -> Batch:
    """Keeps a new batch, and counts what goes wrong with it from now on."""
    sweep(state)
    state.count("created")
    for rule in batch.faults:
        if rule["kind"] in AT_ONCE:
            state.count(f"fault.{rule['kind']}")
    row = state.db().execute(
        "INSERT INTO batch (id, family, ended, told) VALUES (?, ?, 0, '') RETURNING seq", (batch.id, batch.family)
    )
    batch.seq = row.fetchone()[0]
    save(state, batch)
    return batch


def cancel(state: State, batch: Batch, now: float) -> None:
    """Notes that a batch is to end; once is enough."""
    if batch.cancel_at is None:
        batch.cancel_at = now
        state.count("cancelled")
        save(state, batch)


def delete_batch(state: State, batch: Batch) -> None:
    """Deletes a batch that has ended, with its results."""
    batch.deleted = True
    save(state, batch)
    if batch.output_id:
        file_path(state, batch.output_id).unlink(missing_ok=True)


def save(state: State, batch: Batch) -> None:
    """Writes a batch as it is now."""
    state.db().execute(
        "UPDATE batch SET ended = ?, told = ? WHERE seq = ?",
        (2 if batch.deleted else int(bool(batch.ended)), json.dumps(asdict(batch)), batch.seq),
    )


def get_batch(state: State, batch_id: str, families: tuple[str, ...]) -> Batch | None:
    """A batch of one of the families."""
    found = state.rows("SELECT told, family FROM batch WHERE id = ? AND ended < 2", (batch_id,))
    return read(found[0]) if found and found[0][1] in families else None


def load(state: State, batch_id: str) -> Batch | None:
    """Any batch, as it is now."""
    rows = state.rows("SELECT told FROM batch WHERE id = ?", (batch_id,))
    return read(rows[0]) if rows else None


def batches(
    state: State, families: tuple[str, ...], limit: int, *, before: int | None = None, after: int | None = None
) -> list[Batch]:
    """Batches, the newest first: those older than number `before`; or the ones next newer than number `after`."""
    order = "ASC" if after is not None else "DESC"
    marks = ", ".join("?" * len(families))
    rows = state.rows(
        f"SELECT told FROM batch WHERE ended < 2 AND family IN ({marks}) AND seq < ? AND seq > ? "  # noqa: S608
        f"ORDER BY seq {order} LIMIT ?",
        (*families, before if before is not None else 2**62, after if after is not None else -1, limit),
    )
    found = [read(row) for row in rows]
    return found if after is None else found[::-1]


def open_batches(state: State) -> list[Batch]:
    """Batches that have not ended, the oldest first."""
    return [read(row) for row in state.rows("SELECT told FROM batch WHERE ended = 0 ORDER BY seq")]


def read(row: tuple[Any, ...]) -> Batch:
    """A batch from its row."""
    return Batch(**json.loads(row[0]))
