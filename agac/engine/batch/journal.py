"""Each step of a batch's life, committed before anything else is done: what a crash finds is what stands here."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agac.core.errors import AgacError, RowError
from agac.core.keys import batch_intent, canonical
from agac.engine.batch.form import Form
from agac.engine.batch.states import BatchStep, may_follow
from agac.engine.budget import Amount
from agac.providers.batches import Seen
from agac.providers.prices import BATCH
from agac.store.batches import BatchRecord, project_token, read_batch, tasks_at
from agac.store.db import Database
from agac.store.ledger import Ledger
from agac.store.sql import sql


@dataclass(frozen=True, slots=True)
class Refused:
    """A task that its provider refused with its line in the input, from 1."""

    line: int
    error: RowError


class Journal:
    """Writes the steps of batches under the workflow's lease. Each method returns what is stored after it."""

    def __init__(self, database: Database, ledger: Ledger, now: Callable[[], float]) -> None:
        self._database, self._ledger, self._now = database, ledger, now

    async def plan(self, form: Form, first: bytes, *, run: int, event: int, account: str, base_url: str) -> BatchRecord:
        """A new batch, to be filled."""
        token, model = await project_token(self._database), form.model

        def write(writer: sqlite3.Connection) -> int:
            number = int(writer.execute(sql("batch_id_max")).fetchone()[0]) + 1
            intent = batch_intent(token, run, number, first)
            values = {
                "id": number, "run": run, "event": event, "stage": form.stage.index, "position": form.position,
                "provider": model.provider.name, "base_url": base_url, "model": model.model, "account": account,
                "intent": intent, "file": f"{intent}.jsonl",
                "window": form.rules.completion_window or form.traits.windows[0],
                "priced": form.price(BATCH) is not None, "now": self._now(),
            }  # fmt: skip
            writer.execute(sql("batch_plan"), values)
            return number

        return await self._read(await self._ledger.change(write))

    async def built(
        self, batch: int, *, tasks: int, size: int, tokens: int, sha256: str, held: Amount, deadline: float | None
    ) -> BatchRecord:
        """Its file is whole, and all its tasks are committed. `deadline`: a time of day that counts from now on."""
        values = {
            "id": batch, "tasks": tasks, "bytes": size, "tokens": tokens, "sha256": sha256, "usd": held.usd,
            "held_tokens": held.tokens, "deadline": deadline,
        }  # fmt: skip
        return await self._write(batch, ("batch_built", values))

    async def step(self, record: BatchRecord, to: BatchStep, note: str | None = None) -> BatchRecord:
        """One step further, or aside."""
        return await self._write(record.id, self._stepping(record, to, note))

    async def release(self, record: BatchRecord, to: BatchStep, then_do: str, note: str | None = None) -> BatchRecord:
        """It comes to its end without having run: its tasks go round again."""
        let_go = {"id": record.id, "then_do": then_do}
        followers = ("followers_release", let_go)
        return await self._write(
            record.id, self._stepping(record, to, note), others=(followers, ("batch_release", let_go))
        )

    async def reject(self, record: BatchRecord, lines: Sequence[Refused], note: str) -> BatchRecord:
        """It was refused as a whole. Tasks at the refused lines have failed; the others go round again, the round not
        counted, since nothing ran."""
        tasks = await tasks_at(self._database, record.id, [one.line - 1 for one in lines])
        ended: list[tuple[str, Any]] = [
            ("task_ended", (None, one.error.type.value, one.error.message, tasks[one.line - 1].id))
            for one in lines
            if one.line - 1 in tasks
        ]
        let_go = {"id": record.id, "then_do": "batch"}
        for one in lines:
            if (task := tasks.get(one.line - 1)) is not None:
                asked = (task.round, task.position, task.repairs, task.fingerprint)
                ended.append(("followers_ended", (None, one.error.type.value, one.error.message, *asked)))
        others = (*ended, ("followers_release", let_go), ("batch_release", let_go))
        return await self._write(record.id, self._stepping(record, BatchStep.REJECTED, note), others=others)

    async def uploaded(self, record: BatchRecord, file_id: str) -> BatchRecord:
        """Its input lies at the provider."""
        return await self._write(record.id, ("batch_uploaded", {"id": record.id, "file_id": file_id}))

    async def intend(self, record: BatchRecord, account: str, base_url: str) -> BatchRecord:
        """It is about to be created."""
        values = {"id": record.id, "now": self._now(), "account": account, "base_url": base_url}
        return await self._write(record.id, ("batch_intend", values))

    async def defer(self, record: BatchRecord, to: BatchStep, try_at: float | None, note: str) -> BatchRecord:
        """It was not created, or ran nothing: it is created later, under its next name."""
        assert may_follow(BatchStep(record.state), to), (record.state, to)
        values = {"id": record.id, "to": to, "from": record.state, "try_at": try_at, "note": note}
        return await self._write(record.id, ("batch_defer", values))

    async def submitted(self, record: BatchRecord, seen: Seen, deadline: float | None, note: str | None) -> BatchRecord:
        """It exists."""
        at = self._now()
        values = {"id": record.id, "provider_id": seen.id, "at": at, "deadline": deadline, "note": note}
        told = ("batch_seen", observation(record, seen, at) | {"moved": True})
        return await self._write(record.id, ("batch_submitted", values), others=(told,))

    async def remark(self, record: BatchRecord, note: str) -> BatchRecord:
        """Why it stays where it is."""
        return await self._write(record.id, ("batch_remark", {"id": record.id, "note": note}))

    async def put_off(self, record: BatchRecord, at: float, note: str) -> BatchRecord:
        """It is not tried before `at`, seconds since 1970."""
        return await self._write(record.id, ("batch_put_off", {"id": record.id, "at": at, "note": note}))

    async def seen(self, record: BatchRecord, seen: Seen) -> BatchRecord:
        """What its provider says of it now."""
        return await self._write(record.id, ("batch_seen", observation(record, seen, self._now())))

    async def not_ours(self, record: BatchRecord, note: str) -> BatchRecord:
        """What was taken for it is somebody else's."""
        assert record.provider_id is not None
        foreign = sorted({*record.not_ours, record.provider_id})
        values = {"id": record.id, "foreign": json.dumps(foreign), "note": note}
        return await self._write(record.id, ("batch_not_ours", values))

    async def cancel(self, record: BatchRecord, then_do: str) -> BatchRecord:
        """It is to be ended before its time. Once decided this stands, also where it is decided again."""
        if record.cancel_at is not None:
            return record
        values = {"id": record.id, "now": self._now(), "then_do": then_do}
        return await self._write(record.id, ("batch_cancel", values))

    async def downloaded(self, record: BatchRecord, files: Sequence[tuple[str, int, str]]) -> BatchRecord:
        """Its results lie on this machine: names, sizes, sha256."""
        return await self._write(record.id, ("batch_downloaded", {"id": record.id, "outputs": json.dumps(files)}))

    async def ingested(self, record: BatchRecord, counts: Mapping[str, int], cost: float | None) -> BatchRecord:
        """Each of its tasks has an end."""
        values = {"id": record.id, "counts": canonical(dict(counts)), "cost": cost, "now": self._now()}
        return await self._write(record.id, ("batch_ingested", values))

    async def cleaned(self, record: BatchRecord) -> BatchRecord:
        """Nothing of it is left."""
        return await self._write(record.id, ("batch_cleaned", {"id": record.id, "now": self._now()}))

    async def tidied(self, record: BatchRecord) -> BatchRecord:
        """It never ran, and its input is deleted at its provider."""
        return await self._write(record.id, ("batch_tidied", {"id": record.id, "now": self._now()}))

    async def late(self, record: BatchRecord, seen: Seen) -> BatchRecord:
        """A creation of it was given up, and its answers were kept all the same."""
        foreign = json.dumps(sorted({*record.not_ours, seen.id}))
        return await self._write(record.id, ("batch_late", {"id": record.id, "foreign": foreign}))

    async def cap(self, record: BatchRecord, cap: int) -> None:
        """What the account takes at most in a lane, as it showed."""
        values = (record.provider, record.account, record.model, cap, self._now())
        await self._ledger.change(lambda writer: writer.execute(sql("lane_cap"), values).rowcount)

    def _stepping(self, record: BatchRecord, to: BatchStep, note: str | None) -> tuple[str, Any]:
        assert may_follow(BatchStep(record.state), to), (record.state, to)
        return "batch_step", {"id": record.id, "to": to, "from": record.state, "note": note}

    async def _write(
        self, batch: int, statement: tuple[str, Any], others: Sequence[tuple[str, Any]] = ()
    ) -> BatchRecord:
        def write(writer: sqlite3.Connection) -> int:
            changed = writer.execute(sql(statement[0]), statement[1]).rowcount
            for name, values in others:
                writer.execute(sql(name), values)
            return changed

        changed = await self._ledger.change(write)
        if changed != 1:
            raise AgacError(
                f"batch {batch} is not where it was: {statement[0]} found nothing to change",
                remedy="another command worked on it; run `agac batch status`, then the same command again",
            )
        return await self._read(batch)

    async def _read(self, batch: int) -> BatchRecord:
        record = await read_batch(self._database, batch)
        assert record is not None
        return record


def observation(record: BatchRecord, seen: Seen, now: float) -> dict[str, Any]:
    """The values of the statement `batch_seen`."""
    before = (record.status, record.word, record.done, record.failed)
    return {
        "id": record.id,
        "provider_id": seen.id,
        "status": seen.state.value,
        "word": seen.word,
        "total": seen.total,
        "done": seen.done,
        "failed": seen.failed,
        "now": now,
        "moved": before != (seen.state.value, seen.word, seen.done, seen.failed),
        "expires_at": seen.expires_at,
        "results_until": seen.results_until,
        "ended_at": seen.ended_at,
    }
