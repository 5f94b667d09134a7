"""Everything that must not change between versions, read from outside: what is stored, and what commands print as JSON.

A workflow of the repository, or an odd one of `project/`, is run against the simulator in a project of its own. Nothing
here imports a module of agac: values come from commands and from tables.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from support.project import ProjectFolder
from support.server import Server
from support.shipped import ROOT, shipped_project

HERE = Path(__file__).parent
SHIPPED = sorted(path.stem for path in (ROOT / "workflows").glob("*.yml"))
ODD = sorted(path.stem for path in (HERE / "project/workflows").glob("*.yml"))
BATCHED = {"batches", "message_batches"}
GENERAL = "general"
"""Commands that are about no workflow."""

PROVIDERS = """\
providers:
  simulator: {base_url: "ADDRESS"}
  simulator-anthropic: {base_url: "ADDRESS"}
  simulator-responses: {base_url: "ADDRESS"}
aliases: {quick: "simulator/small?reasoning=low"}
defaults: {model: simulator/small, timeout: 120}
"""
TOKEN = "0123456789abcdef0123456789abcdef"
"""In the place of the random token of which names of batches are made."""

SCOPES = {
    "research_survey": ("--until", "answer"),
    "support_triage": ("--from", "facts"),
    "branches": ("--stage", "mood"),
}
"""Flags of a further plan."""

VOLATILE = re.compile(
    r"(_at|_ms|_bytes|_until|_s|_seconds|^bytes|^at|^since|^duration|^ttft|^time_to_response|^elapsed|^p50|^p95|^age|"
    r"^size|^ended_before|^python|^agac|^mtime|^holder|^expires|^deadline|^planned|^created|^moved|"
    r"^package|^interpreter|^on_path)$"
)
"""Keys whose values are times, durations or sizes, or name this machine."""

TABLES = {
    "runs": "SELECT id, workflow, lower(hex(definition_hash)), json(selection), output_dir, include_input, "
    "json(outputs) FROM run ORDER BY id",
    "rows": "SELECT run_id, id, occurrence, ordinal, origin, place, state, lower(hex(hash)), error_stage, error_type "
    "FROM row ORDER BY run_id, origin, ordinal, typeof(id), id, occurrence, hash",
    "tasks": "SELECT row.run_id, stage, row.id, row.occurrence, replica, outcome, lower(hex(task.fingerprint)), "
    "task.error_type, failures, note FROM task JOIN row ON row.key = row_key "
    "ORDER BY row.run_id, stage, typeof(row.id), row.id, row.occurrence, replica",
    "results": "SELECT lower(hex(fingerprint)), value, how FROM result ORDER BY fingerprint, value",
    "batches": "SELECT id, run_id, stage, position, model, state, intent, attempt, tasks, bytes, tokens, sha256, "
    "window, held_tokens, priced, counts FROM batch ORDER BY id",
    "batch_tasks": "SELECT run_id, batch_id, place, stage, replica, lower(hex(fingerprint)), state, round, position, "
    "repairs, then_do, error_type FROM batch_task ORDER BY run_id, stage, batch_id, place, fingerprint",
    "counters": "SELECT run_id, stage, outcome, error_type, model, count, input_tokens, output_tokens, "
    "round(cost, 12), unpriced, simulated FROM counter ORDER BY run_id, stage, outcome, error_type, model",
}
"""What is compared of tables."""


class Pinned:
    """One project, and what was seen of it: a name and a value each."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.project: ProjectFolder = shipped_project(folder)
        shutil.copytree(HERE / "project", folder, dirs_exist_ok=True)
        self.project.write("agac.yml", PROVIDERS.replace("ADDRESS", server.base_url))
        with closing(sqlite3.connect(folder / "data/in.db")) as database:
            database.executescript(
                "CREATE TABLE t (id TEXT, text TEXT, kind TEXT); INSERT INTO t VALUES ('1', 'red', 'a'), "
                "('2', 'red', 'b'), ('3', 'green', 'b')"
            )
        self._server = server
        self.seen: dict[str, Any] = {}

    def json(self, *arguments: str) -> Any:
        """One command with --json, which is kept: what it printed, and its exit code where that is not 0."""
        ran = self.project.agac(*arguments, "--json")
        assert ran.out, f"{arguments}: {ran.err}"
        printed = json.loads(ran.out)
        name = " ".join(arguments)
        while name in self.seen:
            name += " (again)"
        self.seen[name] = (
            self.steady(printed) if not ran.code else {"exit code": ran.code, "told": self.steady(printed)}
        )
        return printed

    def steady(self, value: Any, key: str = "") -> Any:
        """A value without what differs from one run to the next, or from one machine to another."""
        if isinstance(value, dict):
            timed = {"batches": "…"} if key == "lane" else {}  # how many of its batches took any time
            return {name: self.steady(inner, name) for name, inner in (value | timed).items()}
        if isinstance(value, list):
            return [self.steady(inner, key) for inner in value]
        if value is not None and not isinstance(value, bool) and VOLATILE.search(key):
            return "…"
        if isinstance(value, float):
            return float(f"{value:.9g}")
        if isinstance(value, str):
            for root in (self.project.root, self.project.root.resolve()):
                value = value.replace(str(root), "PROJECT")
            value = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", value)
            value = re.sub(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?", "TIME", value)
            value = re.sub(r"\b(file|batch|msgbatch|chatcmpl|resp|msg)[-_][0-9a-zA-Z_]{6,}", r"\1-ID", value)
        return value

    def stored(self, *, full: bool) -> None:
        """Keeps what the tables hold; the values of results only where `full`."""
        definitions = "SELECT lower(hex(hash)), body FROM definition JOIN run ON definition_hash = hash ORDER BY run.id"
        for number, (mark, body) in enumerate(self.project.query(definitions), 1):
            self.seen[f"definition {number}"] = {"hash": mark, "body": body}
        for number, manner in self.project.query("SELECT id, manner FROM run ORDER BY id"):
            self.seen[f"stored run settings {number}"] = json.loads(manner) if manner else manner
        for name, sql in TABLES.items():
            if name == "results" and not full:
                continue  # their fingerprints are those of tasks
            found = [self.steady(list(row)) for row in self.project.query(sql)]
            if found:
                self.seen[f"table {name}"] = found

    def remember_token(self) -> None:
        """Makes the store, and its token a known one."""
        self.project.workflow("empty", stages=[{"name": "none", "filter": "false"}], path="data/odd.csv")
        assert self.project.agac("run", "-a", "empty").code == 0
        with closing(sqlite3.connect(self.project.root / ".agac/agac.db")) as database, database:
            database.execute("UPDATE project SET token = ?", (TOKEN,))
        shutil.rmtree(self.project.root / "output/empty")  # it tells of the store by its own token

    def workflow(self, name: str) -> None:
        """A workflow's whole life: planned, run, looked at, planned again, and with another model."""
        one = ("-a", name)
        if name in BATCHED:
            self.remember_token()
        self.json("validate", *one)
        self.json("plan", *one, "--show", "1")
        if name in BATCHED:
            self._batched(one)
        else:
            self.json("run", *one, "--concurrency", "1", "--yes")
        self.stored(full=name in ODD)
        self.json("plan", *one)
        self.json("inspect", "last")
        for row, stage in self.examples():
            self.json("inspect", "last", row)
            self.json("why", "last", row, stage)
        self.json("graph", *one)
        self.json("plan", *one, "--model", "simulator/large?temperature=1", *SCOPES.get(name, ()))
        self.json("retry", "last", "--dry-run", "--from", self.stages()[-1])
        if name in ODD:
            self._edited(name, one)

    def _batched(self, one: tuple[str, ...]) -> None:
        self.json("run", *one, "--concurrency", "1", "--yes")
        self.json("batch", "list")
        self.json("batch", "status")
        self.json("plan", *one)
        self.json("status", "last")
        self.json("batch", "retrieve")
        self.json("run", *one, "--wait", "--yes", "--concurrency", "1")
        self.json("batch", "list", "--all")
        self.json("doctor")

    def _edited(self, name: str, one: tuple[str, ...]) -> None:
        """The last prompt is another one, and two rows are enough."""
        flags = "--limit 2 --model simulator/large --run-mode sync --yes --concurrency 1"
        self.json("run", *one, *flags.split())
        self.json("why", "last", *self.examples()[0])
        self.json("runs")
        self.json("status")
        self.json("gc", "--keep-runs", "1", "--dry-run")
        self.json("sql", "SELECT * FROM v_costs ORDER BY run, stage, model")
        self.json("export", *one, "--partial")

    def examples(self) -> list[tuple[str, str]]:
        """Rows of the last run to look at: one for each kind that there is, with the last stage that it came to."""
        sql = (
            "SELECT row.origin, max(task.stage), row.id FROM row JOIN task ON row_key = row.key "
            "WHERE run_id = (SELECT max(id) FROM run) AND coalesce(row.place, 0) >= 0 GROUP BY row.key "
            "ORDER BY row.origin, max(task.stage), typeof(row.id), row.id"
        )
        first: dict[tuple[int, int], str] = {}
        for origin, stage, row in self.project.query(sql):
            first.setdefault((origin, stage), str(row))
        names = self.stages()
        return [(row, names[stage]) for (_, stage), row in first.items()]

    def stages(self) -> list[str]:
        """The names of the stages of the last run."""
        sql = "SELECT stage FROM v_stages JOIN run USING (definition_hash) WHERE run.id = (SELECT max(id) FROM run) "
        return [str(name) for (name,) in self.project.query(sql + "ORDER BY position")]

    def general(self) -> None:
        """What is about no workflow, and what is wrong with workflows."""
        self.json("validate")
        self.json("version")
        self.json("card", "show", "judge", "--var", "shop=Odd")
        for source in ("data/odd.csv", "data/odd.jsonl", "sqlite://data/in.db?table=t"):
            self.json("data", source)
        self.json("data", "prompts/*.md", "--format", "files")
        for kind in ("workflow", "project", "card"):
            schema = json.loads(self.project.agac("schema", kind).out)
            self.seen[f"keys of {kind}"] = sorted(set(keys_of(schema, schema)))
        self.json("run", "-a", "translation", "--sample", "5", "--seed", "2", "--offset", "3", "--concurrency", "1")
        self.json("run", "-a", "translation", "--limit", "3", "--var", "language=French", "--concurrency", "1")
        self.json("run", "-a", "translation", "--limit", "2", "--dry-run")
        self.json("status", "-a", "translation")
        self.json("sql", "SELECT run, row_id, stage, outcome, fingerprint FROM v_results ORDER BY 1, 2, 3")
        self.json("gc", "--keep-runs", "1")
        self.json("doctor")
        self.json("backup", "copy.db")
        self.project.workflow("wrong", path="data/none.csv", stages=[{"name": "a", "promt": "${x}", "needs": "b"}])
        self.json("validate", "-a", "wrong")
        self.stored(full=True)


def keys_of(schema: dict[str, Any], whole: dict[str, Any], path: str = "", depth: int = 0) -> Iterator[str]:
    """Every key that a JSON Schema knows, with its type; words and names of definitions are left out."""
    if "$ref" in schema:
        target = whole
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        yield from keys_of(target, whole, path, depth + 1) if depth < 20 else ()
    kind = schema.get("type") or schema.get("const") or ("enum" if "enum" in schema else None)
    if kind:
        values = f" {json.dumps(schema['enum'])}" if "enum" in schema else ""
        yield f"{path or '.'}: {json.dumps(kind)}{values}"
    for word in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(word, ()):
            yield from keys_of(inner, whole, path, depth + 1)
    for name, inner in schema.get("properties", {}).items():
        yield from keys_of(inner, whole, f"{path}.{name}", depth + 1)
    if isinstance(schema.get("items"), dict):
        yield from keys_of(schema["items"], whole, f"{path}[]", depth + 1)


def pin(name: str, folder: Path, server: Server) -> dict[str, Any]:
    """What is seen of one workflow, or (GENERAL) of everything else."""
    pinned = Pinned(folder, server)
    if name == GENERAL:
        pinned.general()
    else:
        pinned.workflow(name)
    return pinned.seen


def written(seen: dict[str, Any]) -> str:
    """As a golden file: a line each."""
    return "".join(json.dumps({name: value}, ensure_ascii=False) + "\n" for name, value in seen.items())


def golden(name: str) -> Path:
    """The golden file of a workflow."""
    return HERE / "pins" / f"{name}.jsonl"
