"""A project whose stages are asked in batches, with the same workflow asked call by call beside it as the measure."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

import agac
from support.batchcase import post
from support.batched import store
from support.project import ProjectFolder
from support.server import Server

DAY = 86_400.0
BATCHES = {"api": "openai", "grace": 0.5}
"""What the server speaks; what is not in its list after half a second is not there."""


def advance(server: Server, seconds: float) -> None:
    """Moves the simulator's clock forward."""
    post(server, "/account/clock", {"advance": seconds})


def outcomes(project: ProjectFolder, name: str = "reviews") -> list[tuple[Any, ...]]:
    """What came of each row, without what it took: id, whether it succeeded, result and the kind of its error."""
    return [
        (one["id"], one["ok"], one.get("result"), (one.get("error") or {}).get("type"))
        for one in project.envelopes(name)
    ]


def failed(project: ProjectFolder) -> dict[str, str]:
    """Rows that failed, with the kinds of their errors."""
    return {id_: kind for id_, ok, _, kind in outcomes(project) if not ok}


class BatchProject(ProjectFolder):
    """A project with one server for everything, which does batches."""

    def __init__(self, root: Path, server: Server, **provider: Any) -> None:
        super().__init__(root)
        self.server = server
        self.provider(**provider)

    def provider(self, **provider: Any) -> None:
        """Writes agac.yml with the server as `local`."""
        self.configure(self.server.base_url, **{"batch": BATCHES, **provider})

    def batched(self, *stages: dict[str, Any], name: str = "reviews", **keys: Any) -> str:
        """Writes a workflow all of whose stages are asked in batches, where they do not say otherwise."""
        defaults = {"run_mode": "batch", **keys.pop("defaults", {})}
        return self.workflow(name, stages=list(stages) or None, defaults=defaults, **keys)

    def submit(self, *stages: dict[str, Any], **keys: Any) -> agac.RunReport:
        """Writes such a workflow and runs it."""
        return self.run(self.batched(*stages, **keys))

    def retrieve(self, batch: str | int | None = None) -> agac.RetrieveReport:
        """Takes what is ready."""
        return agac.retrieve(batch, project=self.root)

    def to_the_end(self, most: int = 12, *, seconds: float = 0.0) -> agac.RetrieveReport:
        """Retrieves until the run is finished; before each time the server's clock goes on by so much."""
        for _ in range(most):
            if seconds:
                advance(self.server, seconds)
            report = self.retrieve()
            if report.run.summary["complete"]:
                return report
        raise AssertionError(f"not finished after {most} times: {report.message}, {self.steps()}")

    @property
    def account(self) -> dict[str, Any]:
        """What the server counted of batches."""
        return dict(self.server.account()["batches"])

    def charged(self) -> tuple[int, int]:
        """Batches that exist, and requests that were charged in all, by calls too."""
        account = self.server.account()
        return account["batches"]["created"], account["batches"]["charged"] + account["charged"]

    def doubles(self) -> int:
        """Requests that were charged more than once."""
        account = self.server.account()
        return int(account["batches"]["duplicates"] + account["duplicates"])

    def steps(self) -> list[str]:
        """The step of life of every batch, oldest first."""
        return [step for (step,) in self.query("SELECT state FROM batch ORDER BY id")]

    def notes(self) -> list[str | None]:
        """What the store notes of every batch, oldest first."""
        return [note for (note,) in self.query("SELECT note FROM batch ORDER BY id")]

    def set_batch(self, **columns: Any) -> None:
        """Changes columns of all batches: how a test makes time go by."""
        with store(self) as database:
            names = ", ".join(f"{name} = ?" for name in columns)
            database.execute(f"UPDATE batch SET {names}", list(columns.values()))

    def twin(self, server: Server, name: str = "reviews") -> ProjectFolder:
        """The same workflow on the same rows, asked call by call at another server with the same seed; run to its
        end."""
        other = ProjectFolder(self.root.with_name(f"{self.root.name}-sync"))
        for path in sorted(self.root.rglob("*")):
            inside = path.relative_to(self.root)
            if path.is_file() and inside.parts[0] not in (".agac", "output"):
                (other.root / inside).parent.mkdir(parents=True, exist_ok=True)
                (other.root / inside).write_bytes(path.read_bytes())
        body = yaml.safe_load((self.root / "agac.yml").read_text("utf-8"))
        body["providers"]["local"]["base_url"] = server.base_url
        other.write("agac.yml", yaml.safe_dump(body))
        ran = other.run(name, run_mode="sync")
        assert ran.summary["complete"], ran.stopped
        return other

    def assert_as_sync(
        self, server: Server, name: str = "reviews", *, charged: tuple[int, int] | None = None, doubles: int = 0
    ) -> None:
        """What the run ended with is what the same workflow ends with call by call. Where told, so many batches and
        requests were charged for it, and so many requests more than once."""
        if charged is not None:
            assert (self.charged(), self.doubles()) == (charged, doubles)
        other = self.twin(server, name)
        assert outcomes(self, name) == outcomes(other, name)
        assert self.output(name) == other.output(name)

    def assert_ends_as_sync(
        self, server: Server, charged: tuple[int, int], *, seconds: float = 0.0, doubles: int = 0
    ) -> None:
        """Retrieves to the end, which is as `assert_as_sync` says."""
        self.to_the_end(seconds=seconds)
        self.assert_as_sync(server, charged=charged, doubles=doubles)

    def assert_sound(self) -> None:
        """The store, where there is one, is whole; nothing is left of batches that are in but what is told of them."""
        if not (self.root / ".agac/agac.db").exists():
            return
        super().assert_sound()
        files = {path.name for path in (self.root / ".agac/batches").glob("*") if path.suffix != ".strange"}
        kept = {
            name
            for (intent,) in self.query("SELECT intent FROM batch WHERE state NOT IN ('CLEANED', 'REJECTED')")
            for name in (f"{intent}.jsonl", f"{intent}.output", f"{intent}.errors")
        }
        assert files <= kept, files - kept
        assert self.query("SELECT count(*) FROM batch_task WHERE batch_id IS NULL AND state = 1") == [(0,)]

    def picture(self) -> dict[str, str]:
        """Every file of the project and its store with the digest of its bytes."""
        return {
            str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }


Make = Callable[..., BatchProject]
"""What makes a project with rows, as the fixture `batches_at` does."""
