"""Runs in shards: projects whose shards share the folder `remote` beside them."""

import shutil
from pathlib import Path
from typing import Any

import yaml

from support.project import ProjectFolder, Ran
from support.server import Server
from support.services import starts

WRITER = {"AGAC_REMOTE_WRITER": "ci", "AGAC_TEST_REAL": "1"}
FILES = ("results.jsonl", "results.json", "errors.jsonl")


class Sharded(ProjectFolder):
    """A project whose answers travel as those of a real provider do."""

    def __init__(self, root: Path, server: Server, *, of: int = 3, env: dict[str, str] | None = None) -> None:
        starts("machines that share a run")
        self.of, self.env = of, {**WRITER, **(env or {})}
        super().__init__(root)
        prices = {"small": {"input": 1000.0, "output": 1000.0}}
        self.configure(server.base_url, prices=prices)
        keys = yaml.safe_load((root / "agac.yml").read_text("utf-8"))
        self.write("agac.yml", yaml.safe_dump({**keys, "remote": {"url": "../remote", "trust": ["ci"]}}))

    def shard(self, number: int, *arguments: str, command: str = "run", **more: Any) -> Ran:
        """Runs one shard."""
        words = [command, "-a", "reviews"] if command == "run" else command.split()
        env = {**self.env, **more.pop("env", {})}
        return self.agac(*words, "--shard", f"{number}/{self.of}", *arguments, env=env, **more)

    def shards(self, *arguments: str, code: int | None = None) -> None:
        """Runs all shards."""
        for number in range(1, self.of + 1):
            ran = self.shard(number, *arguments)
            assert ran.code in ((0, 3) if code is None else (code,)), f"{ran.out}{ran.err}"

    def rounds(self, *arguments: str) -> list[list[int]]:
        """Runs all shards, round by round, until none waits for others any more; gives their exit codes."""
        codes: list[list[int]] = []
        while not codes or 75 in codes[-1]:
            ran = [self.shard(number, *arguments) for number in range(1, self.of + 1)]
            codes.append([one.code for one in ran])
            assert {0, 3, 75}.issuperset(codes[-1]), "".join(one.out + one.err for one in ran)
            assert len(codes) < 6
        return codes

    def merge(self, *arguments: str, **more: Any) -> Ran:
        return self.agac("merge", "-a", "reviews", *arguments, env=self.env, **more)

    def taken(self, *names: str) -> dict[str, bytes]:
        """The output files, which are gone after it."""
        folder = self.root / "output/reviews"
        found = {name: (folder / name).read_bytes() for name in (names or FILES)}
        shutil.rmtree(folder)
        return found

    def unsharded(self, *arguments: str, names: tuple[str, ...] = ()) -> dict[str, bytes]:
        """The output files of an ordinary run."""
        ran = self.agac("run", "-a", "reviews", "--yes", *arguments)
        assert ran.code in (0, 3), f"{ran.out}{ran.err}"
        return self.taken(*names)
