"""Stores that an earlier program left half done, kept as fixtures: what they hold must never be asked again.

`stores/NAME.db.gz` is the database, `stores/NAME.json` what belongs to it: when it was made, the requests that are in
batches at the provider, and how that program itself finished it. They were made by the program before all that is in
plain words now, and stand for the stores that people have: they are not made again.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

from golden.pinning import HERE, Pinned

FOLDER = HERE / "stores"
BATCHED = ("batches", "message_batches", "words", "votes", "schemas", "branches", "functions", "lists", "groups")
"""Workflows all of whose stages are asked in batches in the store `batched`; the first batches of each are open."""

KILLED = ("lists", "groups", "functions", "votes", "words")
"""Workflows of the store `killed`, whose runs were killed."""


class Stored(Pinned):
    """A project whose store is one of the fixtures."""

    @property
    def database(self) -> Path:
        """The store's file."""
        return self.project.root / ".agac/agac.db"

    def restore(self, name: str) -> dict[str, Any]:
        """Puts the fixture in place, as if it had been left just now, and its batches at the server; gives what
        belongs to it."""
        kept: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
        self.database.parent.mkdir(exist_ok=True)
        self.database.write_bytes(gzip.decompress((FOLDER / f"{name}.db.gz").read_bytes()))
        with closing(sqlite3.connect(self.database)) as database, database:
            since = time.time() - kept["made_at"]
            for table, column in _times(database):
                database.execute(f"UPDATE {table} SET {column} = {column} + ?", (since,))
            account = json.dumps(["account", self._server.base_url, None], separators=(",", ":"))
            mark = blake2b(account.encode(), digest_size=16).hexdigest()[:16]
            database.execute("UPDATE batch SET base_url = ?, account = ?", (self._server.base_url, mark))
            for intent, requests in kept["requests"].items():
                batch_id, file_id = self._submit(intent, requests)
                database.execute(
                    "UPDATE batch SET provider_id = ?, file_id = ? WHERE intent = ?", (batch_id, file_id, intent)
                )
        return kept

    def _submit(self, intent: str, requests: list[Any]) -> tuple[str, str | None]:
        """Puts a batch to the server as the earlier program did; gives its id, and that of its file."""
        if "params" in requests[0]:
            return self._post("/messages/batches", {"requests": requests})["id"], None
        lines = b"".join(json.dumps(one).encode() + b"\n" for one in requests)
        form = (
            b'--agac\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--agac\r\ncontent-disposition: '
            b'form-data; name="file"; filename="%s.jsonl"\r\n\r\n%s\r\n--agac--\r\n' % (intent.encode(), lines)
        )
        file_id = self._post("/files", form, "multipart/form-data; boundary=agac")["id"]
        asked = {"input_file_id": file_id, "endpoint": requests[0]["url"], "completion_window": "24h"}
        return self._post("/batches", asked | {"metadata": {"agac_intent": intent}})["id"], file_id

    def _post(self, path: str, body: Any, kind: str = "application/json") -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": kind, "anthropic-version": "2023-06-01"}
        request = urllib.request.Request(self._server.base_url + path, data=data, headers=headers, method="POST")
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def answers(self) -> list[list[Any]]:
        """Every answer that the store has."""
        return [
            list(one) for one in self.project.query("SELECT lower(hex(fingerprint)), value FROM result ORDER BY 1, 2")
        ]

    def asked_again(self) -> list[Any]:
        """Stages that asked a question again that an older call had answered: `reuse: never`, and failed answers."""
        sql = (
            "SELECT DISTINCT a.workflow, a.stage FROM v_attempts a JOIN attempt x ON x.id = a.attempt_id "
            "JOIN attempt y USING (fingerprint) JOIN v_attempts b ON b.attempt_id = y.id AND b.workflow = a.workflow "
            "WHERE x.error_type IS NULL AND y.id > x.id AND x.purpose = 'ask' AND y.purpose = 'ask'"
        )
        return sorted(list(found) for found in self.project.query(sql))

    def results(self, name: str) -> list[Any]:
        """What a workflow wrote, by id."""
        folder = "odd/there" if name == "branches" else name
        return sorted(self.project.envelopes(folder), key=lambda one: str(one["id"]))

    def account(self) -> dict[str, int]:
        """What the server charged: by calls, in batches, and what of both it had charged before."""
        calls = self._server.account()
        batches = calls["batches"]
        return {
            "calls": calls["charged"], "batched": batches["charged"],
            "twice": calls["duplicates"] + batches["duplicates"],
        }  # fmt: skip

    def retrieved(self) -> None:
        """Takes what is ready, of every run, until nothing is open."""
        for _ in range(12):
            waiting = self.project.query(
                "SELECT min(id) FROM batch WHERE state NOT IN ('CLEANED', 'NOT_CREATED', 'REJECTED') "
                "GROUP BY run_id ORDER BY run_id"
            )
            for (batch,) in waiting:
                ran = self.project.agac("batch", "retrieve", str(batch), "--json")
                assert ran.code in (0, 3), ran.out + ran.err
            if not waiting:
                return
        raise AssertionError("batches stay open")

    def finished(self, name: str, how: str, *, but: str = "") -> dict[str, Any]:
        """The store finished, by `batch retrieve` or by `run` (of all workflows but one): what was written and what was
        charged."""
        names = [one for one in (BATCHED if name == "batched" else KILLED) if one != but]
        if how == "retrieve":
            self.retrieved()
        else:
            flags = ("--run-mode", "batch") if name == "batched" else ("--concurrency", "1")
            for one in names:
                ran = self.project.agac("run", "-a", one, "--wait", "--yes", "--json", *flags)
                assert ran.code in (0, 3), ran.out + ran.err
        return {
            "results": {one: self.results(one) for one in names},
            "account": self.account(),
            "answers": self.answers(),
            "asked again": self.asked_again(),
        }

    def looked_at(self) -> dict[str, Any]:
        """What commands say of the store before it is finished."""
        for name in KILLED:
            [(number,)] = self.project.query("SELECT max(id) FROM run WHERE workflow = ?", name)
            run = str(number)
            self.json("plan", "-a", name)
            self.json("inspect", run)
            [(row, stage)] = self.project.query(
                "SELECT row_id, stage FROM v_results WHERE run = ? AND replica = 0 ORDER BY row_number IS NULL DESC, "
                "row_id DESC, stage DESC LIMIT 1", number
            )  # fmt: skip
            self.json("inspect", run, str(row))
            self.json("why", run, str(row), stage)
            self.json("export", "--run", run, "--partial")
        return self.seen


def _times(database: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """The columns that hold moments."""
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for _, column, kind, *_ in database.execute(f"PRAGMA table_info({table})").fetchall():
            if kind == "REAL" and (
                column in ("at", "deadline") or column.endswith(("_at", "_until", "_after", "_since"))
            ):
                yield table, column
