"""A project in a folder of its own, driven through the Python API or as a real process."""

import csv
import io
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml

import agac
from agac.api.project import open_project
from agac.api.ready_workflow import ready_workflow
from agac.plan.plan import Plan, make_plan
from agac.spec.loader import WorkflowSource
from support.commands import Forked, clean_environment, may_run_here, run_forked, run_here, start_forked, template
from support.recount import assert_recounted


class Served(Protocol):
    @property
    def base_url(self) -> str: ...


S = TypeVar("S", bound=Served)


@dataclass(frozen=True)
class Ran:
    """A process that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


SENTIMENT = {"sentiment": "positive|neutral|negative", "reason": "string"}


class ProjectFolder:
    """A project whose default model is `simulator/small`, or the provider `local` once `serve` told its address."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.configure()

    def configure(self, base_url: str | None = None, **provider: Any) -> None:
        """Writes agac.yml: with `base_url` all stages ask that server, as the provider `local`."""
        if base_url is None:
            self.write("agac.yml", yaml.safe_dump({"defaults": {"model": "simulator/small"}}))
            return
        row = {"dialect": "openai-chat", "base_url": base_url, "structured": "json_schema", **provider}
        self.write("agac.yml", yaml.safe_dump({"providers": {"local": row}, "defaults": {"model": "local/small"}}))

    def asks(self, server: S, **provider: Any) -> S:
        """The same for a server that runs; gives it."""
        self.configure(server.base_url, **provider)
        return server

    @contextmanager
    def asking(self, serving: AbstractContextManager[S], **provider: Any) -> Iterator[S]:
        """All stages ask what serves for the block."""
        with serving as server:
            yield self.asks(server, **provider)

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="")
        return target

    def rows(self, rows: Iterable[Mapping[str, Any]], path: str = "data/rows.csv") -> Path:
        """Writes rows as csv, or as jsonl by the suffix."""
        rows = list(rows)
        if path.endswith(".jsonl"):
            return self.write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return self.write(path, text.getvalue())

    def numbered(self, count: int, **columns: str) -> Path:
        """`count` rows with `id` r-1, r-2, … and a `text` of their own."""
        return self.rows({"id": f"r-{i}", "text": f"I love number {i}", **columns} for i in range(1, count + 1))

    def workflow(
        self,
        name: str = "reviews",
        *,
        stages: list[dict[str, Any]] | None = None,
        path: str = "data/rows.csv",
        rows: int | Iterable[Mapping[str, Any]] = (),
        **keys: Any,
    ) -> str:
        """Writes a workflow; without stages one that classifies `${text}`. Gives its name. With `rows` it writes its
        input, too: these, or so many `numbered` ones."""
        if isinstance(rows, int):
            self.numbered(rows)
        elif rows:
            self.rows(rows, path)
        one = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT}
        source = {"path": path, "id_field": "id", **keys.pop("input", {})}
        source = {key: value for key, value in source.items() if value is not None}
        body = {"input": source, **keys, "stages": stages or [one]}
        self.write(f"workflows/{name}.yml", yaml.safe_dump(body, sort_keys=False, allow_unicode=True))
        return name

    def run(self, name: str = "reviews", **options: Any) -> agac.RunReport:
        """Runs in this process, through the Python API."""
        return agac.run(name, agac.RunOptions(**options), project=self.root)

    def plan(self, name: WorkflowSource = "reviews", **options: Any) -> Plan:
        """The plan of a run, as the engine gets it."""
        opened = open_project(self.root)
        checked, ready = ready_workflow(opened, name, agac.RunOptions(**options))
        return make_plan(checked.workflow, checked.models, opened.root, ready.selection(), ready.concurrency)

    def agac(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        kill: str = "",
        code: int | None = None,
    ) -> Ran:
        """Runs the command to its end, in this process; or, in a process of its own that is forked from one which has
        loaded everything, to the moment at which it kills itself (see killed/sitecustomize.py). `code` is the exit code
        that it has to end with. In `make soak` every command is a process of its own.
        """
        if kill:
            env = {**(env or {}), "AGAC_TEST_KILL": kill if ":" in kill else f"{kill}:1"}
        environment = clean_environment(env)
        run = run_here if may_run_here(environment) else run_forked
        ran = Ran(*run(arguments, cwd or self.root, environment))
        assert code in (None, ran.code), f"ended with {ran.code}: {ran.out}{ran.err}"
        return ran

    def piped(self, text: bytes, *arguments: str) -> Ran:
        """Runs the command with this on its standard input."""
        return to_its_end(command(arguments), self.root, input=text)

    def fresh_agac(self, *arguments: str, env: Mapping[str, str] | None = None) -> Ran:
        """Runs the command in an interpreter of its own: for tests of how it starts, and how it ends."""
        return to_its_end(fresh_command(arguments), self.root, env)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> Forked:
        """Starts the command in a session of its own, to be signalled or killed."""
        return start_forked(arguments, self.root, clean_environment(env))

    def envelopes(self, name: str = "reviews", file: str = "results.jsonl") -> list[dict[str, Any]]:
        """The lines of an output file."""
        text = (self.root / "output" / name / file).read_text("utf-8")
        return [json.loads(line) for line in text.split("\n") if line]

    def output(self, name: str = "reviews", file: str = "results.json") -> Any:
        return json.loads((self.root / "output" / name / file).read_text("utf-8"))

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Asks the database directly."""
        with self.connected() as ask:
            return ask(sql, *values)

    @contextmanager
    def connected(self) -> Iterator[Callable[..., list[tuple[Any, ...]]]]:
        """What `query` does, through one connection: opening one takes longer than asking it."""
        with closing(sqlite3.connect(f"file:{self.root}/.agac/agac.db?mode=ro", uri=True)) as connection:
            yield lambda sql, *values: connection.execute(sql, values).fetchall()

    @contextmanager
    def changed(self) -> Iterator[Callable[..., object]]:
        """The database for statements that change it, which no command would."""
        with closing(sqlite3.connect(self.root / ".agac/agac.db")) as connection, connection:
            yield lambda sql, *values: connection.execute(sql, values)

    def assert_sound(self, *, minutes: bool = True) -> None:
        """The database is whole, and its roll-ups say what a count of the rows says, those by minute too."""
        with self.connected() as ask:
            assert_recounted(ask, minutes=minutes)


def to_its_end(words: list[str], folder: Path, env: Mapping[str, str] | None = None, **more: Any) -> Ran:
    """Runs a program as a process of its own, without the keys of the machine."""
    ended = subprocess.run(words, cwd=folder, env=clean_environment(env), capture_output=True, timeout=120, **more)
    return Ran(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def python(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> Ran:
    """Runs a program that uses agac, `-c TEXT` or a file, and arguments: as a process of its own, forked as commands
    are from one that has imported all of agac."""
    return Ran(*run_forked(words, folder, clean_environment(env), "script"))


def command(arguments: Iterable[str]) -> list[str]:
    """The words with which a test starts the command by itself; it is forked all the same."""
    return [str(template().typed / "agac"), *arguments]


def fresh_command(arguments: Iterable[str]) -> list[str]:
    """The words that start it in an interpreter of its own."""
    return [sys.executable, "-m", "agac", *arguments]


def kill(process: subprocess.Popen[bytes] | Forked) -> None:
    """SIGKILL, to the process alone: what it started has to notice by itself."""
    process.send_signal(signal.SIGKILL)
    process.communicate()
