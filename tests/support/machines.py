"""Machines that are thrown away: projects with the same files, one remote, and nothing else in common."""

import json
from pathlib import Path
from typing import Any

import yaml

from support.batchcase import BatchCase, assert_ended
from support.project import SENTIMENT, Ran
from support.server import Server

CI = {"CI": "true", "AGAC_REMOTE_WRITER": "ci"}
STAGES = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT},
    {"name": "reply", "needs": "classify", "prompt": "Reply, ${classify.reason}: ${text}"},
]  # fmt: skip


class Machine(BatchCase):
    """A workflow of two stages that are asked in batches, checked out into a folder of its own. `env` leads to another
    remote than the folder `remote` beside it."""

    def __init__(
        self, folder: Path, server: Server, api: str = "openai", *, rows: int = 6, env: dict[str, str] | None = None,
        **batch: Any,
    ) -> None:  # fmt: skip
        self.env, self.before = {**CI, **(env or {})}, server.account()["batches"]["kept"]
        super().__init__(folder, server, api, rows=rows, **batch)

    def connect(self, api: str, **more: Any) -> None:
        super().connect(api, **more)
        keys = yaml.safe_load((self.project.root / "agac.yml").read_text("utf-8"))
        keys["remote"] = {"url": "../remote", "control": True}
        self.project.write("agac.yml", yaml.safe_dump(keys))

    def write(self, **batch: Any) -> None:
        super().write(**batch)
        self.project.workflow(stages=STAGES, defaults=self.defaults)

    def agac(self, *arguments: str, **more: Any) -> Ran:
        return super().agac(*arguments, **{**more, "env": {**self.env, **more.pop("env", {})}})

    def finish(self, command: str) -> Ran:
        """As many commands as it takes, of which each has a job's time."""
        for _ in range(4):
            ran = assert_ended(self.run() if command == "run" else self.retrieve())
            if self.is_whole():
                break
        return ran

    def assert_whole(self, *_: Any, creates: int = 2, kept: int = 0, **__: Any) -> None:
        """Every row went through both stages, and was paid once at each. `kept`: files that are left at the provider,
        of machines that vanished before they asked for anything."""
        account = self.account()
        assert self.is_whole()
        assert [one["id"] for one in self.project.envelopes()] == [f"r-{n}" for n in range(1, self.rows + 1)]
        assert all(one["ok"] for one in self.project.envelopes())
        told = {name: account[name] for name in ("created", "posts", "charged", "duplicates", "open")}
        expected = {"created": creates, "posts": creates, "charged": 2 * self.rows, "duplicates": 0, "open": 0}
        assert told == expected | ({} if creates else {"created": told["created"], "posts": told["posts"]})
        assert account["kept"] <= kept, account
        assert self.server.account()["charged"] == 0, "something was called"
        self.assert_clean()

    @property
    def log(self) -> list[Path]:
        """The entries of the log."""
        return sorted((self.project.root.parent / "remote/v1/control/reviews").iterdir())


def edit(entry: Path, **keys: Any) -> None:
    """Changes an entry of a log."""
    entry.write_text(json.dumps({**json.loads(entry.read_text("utf-8")), **keys}), encoding="utf-8")
