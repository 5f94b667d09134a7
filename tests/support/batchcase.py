"""A project whose rows are asked in batches, and what must be true of it however often it was disturbed."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from support.project import SENTIMENT, ProjectFolder, Ran
from support.server import Server

ROWS = 10
STAGE = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT}

APIS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1", {"dialect": "openai-chat", "structured": "json_schema", "batch": "openai"}),
    "azure": ("/openai/v1", {"dialect": "openai-chat", "structured": "json_schema", "batch": "openai"}),
    "anthropic": ("/v1", {"dialect": "anthropic", "structured": "json_schema", "batch": "anthropic"}),
}
"""Where a simulator speaks for a provider with batches, and its row in agac.yml."""

FINISHED = {"CLEANED", "NOT_CREATED", "REJECTED"}


class BatchCase:
    """`rows` rows, one stage, batches at `server`. `batch` are keys of the workflow's `batch`."""

    def __init__(self, folder: Path, server: Server, api: str = "openai", *, rows: int = ROWS, **batch: Any) -> None:
        self.project, self.server, self.rows = ProjectFolder(folder), server, rows
        self.connect(api)
        self.project.numbered(rows)
        self.write(**batch)

    def connect(self, api: str, **more: Any) -> None:
        """Writes agac.yml; `more` are keys of the provider."""
        path, row = APIS[api]
        address = self.server.base_url.removesuffix("/v1") + path
        told = {"providers": {"local": {**row, "base_url": address, **more}}, "defaults": {"model": "local/small"}}
        self.project.write("agac.yml", yaml.safe_dump(told))

    def write(self, **batch: Any) -> None:
        """Writes the workflow. Whoever was cut off while it created a batch looks for it for a tenth of a second."""
        self.defaults = {"run_mode": "batch", "batch": {"grace": 0.1, "poll_interval": 0.05, **batch}}
        self.project.workflow(stages=[STAGE], defaults=self.defaults)

    def agac(self, *arguments: str, **more: Any) -> Ran:
        """One command, as a process of its own."""
        return self.project.agac(*arguments, **more)

    def run(self, *flags: str, **more: Any) -> Ran:
        return self.agac("run", "-a", "reviews", *flags, **more)

    def retrieve(self, **more: Any) -> Ran:
        return self.agac("batch", "retrieve", **more)

    def submit(self) -> None:
        """A run that nobody disturbs: its batches are at the provider then."""
        assert_ended(self.run())

    def killed(self, moment: str, *arguments: str) -> None:
        """A command that is killed at a moment."""
        ran = self.agac(*arguments, kill=moment)
        assert ran.code == -9, f"it was never {moment}: {ran.code} {ran.out}{ran.err}"

    def advance(self, seconds: float) -> None:
        """Moves the provider's clock."""
        post(self.server, "/account/clock", {"advance": seconds})

    def finish(self, command: str) -> Ran:
        """One command that stays until all is done; or as many `retrieve`s as it takes, each of which goes on."""
        if command == "run":
            return assert_ended(self.run("--wait"))
        for _ in range(3):
            ran = assert_ended(self.retrieve())
            if self.is_whole():
                break
        return ran

    def is_whole(self) -> bool:
        """Whether the run is finished, as the store says."""
        return self.project.query("SELECT finished_at IS NOT NULL FROM run ORDER BY id DESC LIMIT 1") == [(1,)]

    def is_begun(self) -> bool:
        """Whether there is a batch, so that `batch retrieve` has something to go on with."""
        made = (self.project.root / ".agac/agac.db").exists()
        return made and bool(self.project.query("SELECT 1 FROM sqlite_master WHERE name = 'batch'") and self.steps())

    def account(self) -> dict[str, Any]:
        """What the provider charged and was asked for its batches."""
        found: dict[str, Any] = self.server.account()["batches"]
        return found

    def steps(self) -> list[str]:
        """Where the batches are in their lives."""
        return [state for (state,) in self.project.query("SELECT state FROM batch ORDER BY id")]

    def assert_whole(
        self, expected: list[Any] | None = None, *, creates: int = 1, posts: int | None = None, twice: int = 0
    ) -> None:
        """Every row is done, once, as if nothing had happened; nothing was paid twice but so many, and nothing is left
        anywhere. `expected`: the results of a run that nobody disturbed, or of more rows."""
        account = self.account()
        assert self.is_whole()
        if expected is not None:
            assert self.project.envelopes() == expected[: self.rows]
        assert [one["id"] for one in self.project.envelopes()] == [f"r-{n}" for n in range(1, self.rows + 1)]
        assert all(one["ok"] for one in self.project.envelopes())
        charged = self.rows + twice
        told = {name: account[name] for name in ("created", "posts", "charged", "duplicates", "open", "kept")}
        assert told == {
            "created": creates, "posts": creates if posts is None else posts, "charged": charged,
            "duplicates": twice, "open": 0, "kept": 0,
        }  # fmt: skip
        assert self.server.account()["charged"] == 0, "something was called"
        self.assert_clean()

    def assert_clean(self) -> None:
        """The store is whole and says the same everywhere; no batch is open and no file of one is left."""
        query = self.project.query
        assert set(self.steps()) <= FINISHED
        assert query("SELECT count(*) FROM batch_task WHERE state <> 3") == [(0,)]
        assert query("SELECT count(*) FROM (SELECT 1 FROM task GROUP BY row_key, stage HAVING count(*) > 1)") == [(0,)]
        folder = self.project.root / ".agac/batches"
        assert not folder.exists() or sorted(folder.iterdir()) == []
        self.project.assert_sound()


Start = Callable[..., BatchCase]
"""What makes a case at a simulator with faults, as the fixture `case_at` does."""


def assert_ended(ran: Ran) -> Ran:
    """A command that did what it was to do."""
    assert ran.code == 0, f"{ran.code}: {ran.out}{ran.err}"
    return ran


def post(server: Server, path: str, body: Any) -> None:
    """Tells a simulator something."""
    data = json.dumps(body).encode()
    address = server.base_url.removesuffix("/v1") + path
    urllib.request.urlopen(urllib.request.Request(address, data=data, method="POST"), timeout=30).close()
