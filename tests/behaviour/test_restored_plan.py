"""A Plan made again of what the store keeps of a run: the same in everything that a run does with it."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import MISSING, fields, is_dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.project import ProjectFolder
from support.shipped import ROOT, shipped_project
from support.sources import write_sheets

from agac.api.job import Job
from agac.api.job_options import ProcessOptions
from agac.api.project import open_project
from agac.core.errors import SpecError, UsageError
from agac.core.keys import Fingerprinter, canonical, snapshot
from agac.core.types import Message, Request
from agac.plan.plan import Plan, Selection
from agac.plan.render import Prepared, Preparer
from agac.plan.restored_plan import restored_plan
from agac.plan.run_settings import run_settings
from agac.plan.stage import LocalStage, PlannedModel, PlannedStage
from agac.providers.model_string import ModelRef
from agac.providers.provider import Provider
from agac.spec.card_examples import Example
from agac.spec.data_specs import InputSpec, OutputSpec, TableTarget
from agac.spec.operations import Group, Python, Rename
from agac.spec.python_code import FunctionRef
from agac.spec.rules import BatchRules, Budget, RunRules, Timeout
from agac.spec.templates import Template
from agac.spec.workflow import PythonSchema, Stage, StageSettings, Visibility

SHIPPED = sorted(path.stem for path in (ROOT / "workflows").glob("*.yml"))

PROJECT = """\
providers:
  local: {dialect: openai-chat, base_url: "http://127.0.0.1:1/v1", structured: json_object, batch: openai,
          prices: {small: {input: 1, output: 2}}}
  other: {dialect: openai-chat, base_url: "http://127.0.0.1:2/v1", batch: openai, prices: {big: {input: 1, output: 2}}}
  hf: {prices: {"o/m:fast": {input: 1, output: 2}}}
  vllm: {prices: {o/m: {input: 1, output: 2}}}
aliases: {quick: "local/small?reasoning=low"}
budget: {usd: 9}
defaults: {run_mode: batch, batch: {poll_interval: 5s}, max_tokens: 100}
"""
EVERYTHING = """\
input:
  {path: data/rows.csv, id_field: id, on_duplicate_id: suffix, delimiter: ",", encoding: cp1252, on_short_record: null}
vars: {tone: {zeta: 1, alpha: [2, {y: 3, x: 4}]}, name: n}
budget: {usd: 3, tokens: 100000, calls: 900}
row_budget: {usd: 0.5}
confirm_above: {usd: 2}
stop_loss: false
max_errors: 7
row_timeout: 9m
max_open_rows: 70
keep_replies: failed
telemetry: {file: true, ttft: true, otel: false, sample: 50%, prompts: true}
notify:
  - {webhook: "${HOOK}", secret: "${KEY}", on: [failed, limit]}
  - {apprise: "${CHAT}"}
  - {command: [say, hello]}
  - {heartbeat: "https://example.com/alive"}
stages:
  - {name: clean, python: "tools/clean.py:clean", processes: 2, timeout: 30, on_empty: warn}
  - {name: slow, python: "tools/clean.py:wait"}
  - {name: old, filter: 'text != "x"', on_empty: error}
  - {name: pick, select: [id, text, list]}
  - {name: call, rename: {text: body, list: many}}
  - {name: once, dedupe: [body, id]}
  - name: classify
    model:
      - quick?max_tokens=50&idle_timeout=9&transport=sse&schema_mode=none
      - other/big?temperature=0.1&transport=sse&idle_timeout=5
    agent: card
    timeout: {connect: 1, first_byte: 2, total: 3}
    concurrency: 4
    repair: 3
    retries: {attempts: 2, delay: 1s}
    json_repair: false
    reuse: row
    max_age: 7d
    when: 'body != ""'
    otherwise: drop
    instructions: "Be ${vars.tone}. $${no}"
    prompt: "${vars.tone} $${a} ${body} ${vars.name}"
    messages: [{role: user, content: "like ${body}"}, {role: assistant, content: {b: 1, a: 2}}]
    output_schema: {zeta: "yes|no", alpha: "string?", middle: {b: integer, a: [number]}}
    visible: {never: [id]}
    replicas: 3
    vote: zeta
    budget: {calls: 500}
    on_empty: error
    checks: {'classify.middle.b > 0 && body != vars.name': "b is too small"}
    escalate: {when: "agreement < 0.9 && classify.zeta != vars.name", model: "other/big?max_tokens=70"}
    batch: {max_requests: 10, max_bytes: 1MB, completion_window: 24h, grace: 3, retry: sync, max_rounds: 2,
            deadline: "07:30", on_deadline: wait, stuck_after: 1h}
  - name: approve
    review: {when: "agreement < 0.9 || classify.middle.b > 1", sample: 2%, blind: 0.05, show: [body],
             edit: classify, choices: [edit, reject, redo], redo: {stage: classify, max: 3},
             on_reject: skip, reviewers: 2, agree: zeta, timeout: 5d,
             on_timeout: reject}
  - {name: each, explode: many, model: other/big, prompt: "${item} ${index}", output_field: said, run_mode: sync,
     visible: {only: [item, index]}}
  - {name: checked, model: "local/small?idle_timeout=none&reasoning=auto", prompt: "${item}",
     output_schema: "python:tools.models.Review", batch: {deadline: 8h}, needs: each}
  - {name: talk, model: other/big, agent: talker, needs: classify, prompt: "${body}", batch: {linger: 3, tail: 0.5},
     tools: {find: {cacheable: true, timeout: 5s}, "tools/helper.py:count": {side_effects: true}}, max_turns: 4}
  - {name: all, model: other/big, reply: json, group_by: [each.said], reduce: {max_rows: 9, max_tokens: 900},
     incomplete: fail, needs: [each, checked, talk]}
output: {dir: output/there, include_input: true, format: [csv, parquet], to: "sqlite://data/out.db?table=t",
         merge: update, csv_safe: true, bom: true, how: true, sources: true, stages: [all]}
"""
PIPED = """\
input: {path: "data/*.csv"}
stages:
  - {name: o, python: "tools/clean.py:clean"}
  - {name: p, python: "tools/clean.py:clean", explode: list, when: 'text != ""', otherwise: drop}
  - {name: a, model: other/big, json_repair: true, reuse: never}
  - {name: b, model: "hf/o/m:fast", needs: [], run_mode: sync}
  - {name: c, model: o/m, backend: "vllm://127.0.0.1:9", warm_prefix: false, needs: [], run_mode: sync}
output: {stages: [b]}
"""
FROM_DATABASE = """\
input: {path: "sqlite://data/in.db?query=SELECT 1 AS id, 'x' AS text", id_field: id}
stages: [{name: a, model: "other/big", prompt: "${text}"}]
"""
FROM_SHEET = """\
input: {path: data/in.xlsx, sheet: 1, header_row: 2, sql: "SELECT id, text FROM input ORDER BY id", id_field: id}
stages: [{name: a, model: other/big, prompt: "${text}"}]
"""
IN_FOLDERS = """\
input: {path: data/year=2024/in.parquet, hive: true, id_field: id}
stages: [{name: a, model: other/big, prompt: "${text} of ${year}"}]
"""
CARD = """\
---
name: card
request_params: {stop_sequences: [END, HALT]}
---
Be kind.
"""
TALKER = """\
---
name: talker
function_tools: tools/helper.py:find
agents: [second]
---
Talk.
"""
SECOND = """\
---
name: second
model: other/big
tool_only: true
function_tools: tools/helper.py:find
request_params: {max_iterations: 3}
---
Help.
"""
HELPER = """\
HELP = 1


def find(what: str, most: int = 3) -> str:
    return what


def count(things: list[str]) -> int:
    return len(things)
"""
TOOLS = """\
from tools.helper import HELP


def clean(row):
    return {**row, "list": [1, 2]}


async def wait(row):
    return row
"""
MODELS = """\
from pydantic import BaseModel, field_validator


class Review(BaseModel):
    zeta: str
    alpha: int

    @field_validator("zeta")
    @classmethod
    def _short(cls, value: str) -> str:
        if len(value) > 3:
            raise ValueError("too long")
        return value
"""


STUBBED = """\
input: {path: data/rows.csv}
stages:
  - {name: a, model: other/big, prompt: "${text}", tools: ["tools/helper.py:count"], tools_mode: stub, skills: skills,
     tool_stubs: {count: {file: docs/calls.jsonl}}, reads: [docs/a.txt]}
"""
PROGRAM = """\
input: {path: data/rows.csv}
stages:
  - {name: a, model: other/big, prompt: "${text}", max_turns: 3, run_mode: sync,
     runtime: {command: bin/other, version: "1.18", max_agents: 3, files: docs, context: 9000,
               permission: {edit: allow, bash: {"*": deny, "a *": allow}}}}
"""
FILES = {
    "docs/calls.jsonl": '{"tool": "count", "arguments": {"things": []}, "result": 0}\n',
    "docs/a.txt": "A note.\n",
    "skills/refund/SKILL.md": "---\nname: refund\ndescription: How refunds work.\n---\nRefund.\n",
}

WORKFLOWS = {
    "everything": EVERYTHING, "piped": PIPED, "database": FROM_DATABASE, "sheet": FROM_SHEET, "stubbed": STUBBED,
    "program": PROGRAM, "folders": IN_FOLDERS,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> ProjectFolder:
    """A project whose workflows use every key."""
    made = ProjectFolder(tmp_path / "project")
    made.write("agac.yml", PROJECT)
    made.rows([{"id": "1", "text": "fine", "list": "x"}])
    made.write("data/one.json", '{"id": "1", "text": "fine"}')
    with closing(sqlite3.connect(made.root / "data/in.db")) as database:
        database.execute("CREATE TABLE t (id)")
    for name, text in {"card": CARD, "talker": TALKER, "second": SECOND}.items():
        made.write(f"agentcards/{name}.md", text)
    for name, text in {"clean": TOOLS, "helper": HELPER, "models": MODELS, "__init__": ""}.items():
        made.write(f"tools/{name}.py", text)
    (made.root / "data/year=2024").mkdir()
    duckdb.sql("SELECT '1' AS id, 'fine' AS text").write_parquet(str(made.root / "data/year=2024/in.parquet"))
    write_sheets(made.root / "data/in.xlsx", {"One": [["rows"], ["id", "text"], ["1", "fine"]]})
    for name, text in FILES.items():
        made.write(name, text)
    for name, text in WORKFLOWS.items():
        made.write(f"workflows/{name}.yml", text)
    return made


def planned(folder: ProjectFolder, name: str = "everything", **options: Any) -> tuple[Plan, Mapping[str, Provider]]:
    paths = ("data/one.json", "out.json")
    source = name if name != "job" else Job(folder.root, *paths, ProcessOptions(model="local/small"), None)
    try:
        return folder.plan(source, **options), open_project(folder.root).providers
    except SpecError as error:
        raise AssertionError([str(problem) for problem in error.problems]) from error


def again(
    plan: Plan, providers: Mapping[str, Provider], root: Path, write: Callable[[Any], str] = snapshot,
    to: Path | None = None,
) -> Plan:  # fmt: skip
    """The plan by way of the store."""
    definition, settings = json.loads(canonical(plan.body)), json.loads(write(run_settings(plan, root)))
    return restored_plan(plan.workflow, definition, settings, providers, to or root)


LEFT = {
    Example: {"path"}, FunctionRef: {"gives_lists"}, InputSpec: {"sql_at", "scratch"}, ModelRef: {"warnings"},
    Template: {"syntax"},
}  # fmt: skip
"""What no run notices, as one that goes on from the store reads no input; nor where things stand in files, nor how a
prompt was written there: it is stored with dollars; nor what a function's annotation says, of which a plan guesses."""


def comparable(value: Any) -> Any:
    """Everything of a value that a run could notice, in its order."""
    if isinstance(value, Fingerprinter):
        return value.fingerprint((Message("user", "x"),)).hex()
    if isinstance(value, Rename):
        return dict(value.names)
    if is_dataclass(value):
        left = LEFT.get(type(value), set()) | {"where"}  # type: ignore[arg-type]
        found = {f.name: comparable(getattr(value, f.name)) for f in fields(value) if f.name not in left}
        if isinstance(value, Plan):
            found["body"] = canonical(value.body)
        return found | {"params": dict(value.params)} if isinstance(value, ModelRef) else found
    if isinstance(value, Mapping):
        return [(comparable(key), comparable(inner)) for key, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return [comparable(inner) for inner in value]
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return callable(value) if callable(value) else value


class Anything(dict[str, Any]):
    """A result that has every field."""

    def __missing__(self, name: str) -> Anything:
        return Anything()


def prints(plan: Plan) -> list[tuple[bytes, Request, tuple[bytes, ...]]]:
    """Each stage's request for a row, with its fingerprints."""
    preparer = Preparer(plan.stages, plan.vars, 7)
    found = []
    for stage in plan.asking:
        texts = [*(example.content for example in stage.examples), stage.prompt]
        names = [placeholder.name.partition(".")[0] for text in texts for placeholder in text.placeholders]
        view = preparer.view({name: Anything({"id": name}) for name in names})
        view.results |= {name: Anything({"id": name}) for name in stage.ancestors}
        view.forms[stage.rows_of] = view.forms[None]
        made = preparer.prepare(stage, view, "r-1")
        assert isinstance(made, Prepared), made
        found.append((made.fingerprint, made.request, made.replicas))
    return found


def assert_same(made: Plan, plan: Plan) -> None:
    assert comparable(made) == comparable(plan)
    assert (made.hash, canonical(made.body)) == (plan.hash, canonical(plan.body))
    assert prints(made) == prints(plan)


@pytest.mark.parametrize("name", [*WORKFLOWS, "job"])
def test_a_plan_with_every_key_is_the_same_again(
    folder: ProjectFolder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.root)
    monkeypatch.setenv("AGAC_SHARD", "3/16")
    more = {"model": "local/small"} if name == "job" else {}
    plan, providers = planned(folder, name, limit=5, sample=9, seed=3, offset=1, concurrency=3, **more)
    for write in (snapshot, canonical):
        assert_same(again(plan, providers, folder.root, write), plan)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_workflow_is_the_same_again(tmp_path: Path, name: str) -> None:
    shipped = shipped_project(tmp_path / "shipped")
    for mode in ("sync", "batch"):
        plan, providers = planned(shipped, name, run_mode=mode)
        made = again(plan, providers, shipped.root)
        assert_same(made, plan)
        assert {stage.settings.run_mode for stage in made.asking} == {mode}


def test_a_project_may_be_moved_its_files_changed_and_the_provider_of_today_is_asked(
    folder: ProjectFolder, tmp_path: Path
) -> None:
    plan, providers = planned(folder)
    made = again(plan, providers, folder.root)
    check = next(stage.extra_check for stage in made.asking if stage.name == "checked")
    assert check is not None
    assert check({"zeta": "abc", "alpha": 1}) == []
    assert check({"zeta": "abcd", "alpha": 1}) == ["zeta: Value error, too long"]
    silences = [stage.models[0].idle_timeout for stage in made.asking]
    assert silences == [9.0, None, None, inf, None, None], "an endless time-out is kept"
    moved = tmp_path / "moved"
    shutil.copytree(folder.root, moved)
    made = again(plan, providers, folder.root, to=moved)
    [clean, *_] = made.stages
    assert made.output.to is not None
    assert isinstance(clean, LocalStage)
    assert isinstance(clean.operation, Python)
    paths = (made.output.dir, made.output.to.path, made.input.path, clean.operation.function.file)
    assert paths == tuple(moved / path for path in ("output/there", "data/out.db", "data/rows.csv", "tools/clean.py"))
    folder.write("workflows/everything.yml", PIPED)
    (folder.root / "data/rows.csv").unlink()
    assert comparable(again(plan, providers, folder.root)) == comparable(plan)
    today = {**providers, "local": replace(providers["local"], base_url="http://127.0.0.1:9/v1")}
    first = again(plan, today, folder.root).asking[0]
    assert (first.provider.base_url, first.provider.structured) == ("http://127.0.0.1:9/v1", "none")


def test_an_edited_function_or_schema_is_refused(folder: ProjectFolder) -> None:
    plan, providers = planned(folder)
    for file, named in (
        ("clean", "tools/clean.py:clean"),
        ("helper", "tools/clean.py:clean"),
        ("models", "python:tools.models.Review"),
    ):
        path = folder.root / f"tools/{file}.py"
        text = path.read_text("utf-8")
        for spoil in (lambda path=path, text=text: path.write_text(f"{text}\n# edited\n", "utf-8"), path.unlink):
            spoil()
            with pytest.raises(UsageError, match=f"{named}, or a file that it imports, was edited") as raised:
                again(plan, providers, folder.root)
            assert raised.value.remedy is not None
            assert "Put the text back as it was" in raised.value.remedy
            path.write_text(text, "utf-8")
            assert comparable(again(plan, providers, folder.root)) == comparable(plan)


@pytest.mark.parametrize(
    ("file", "named"),
    [*zip(FILES, ("docs/calls.jsonl", "docs/a.txt", "skills/refund/**"), strict=True)],
)
def test_an_edited_file_of_an_agent_is_refused(folder: ProjectFolder, file: str, named: str) -> None:
    plan, providers = planned(folder, "stubbed")
    path = folder.root / file
    for spoil in (lambda: path.write_text(f"{FILES[file]}\n", "utf-8"), path.unlink):
        spoil()
        with pytest.raises(
            UsageError, match=re.escape(f"{named} of stage 'a': what it holds is not what it")
        ) as raised:
            again(plan, providers, folder.root)
        assert "Put the text back as it was" in (raised.value.remedy or "")
        definition, settings = json.loads(canonical(plan.body)), json.loads(snapshot(run_settings(plan, folder.root)))
        restored_plan(plan.workflow, definition, settings, providers, folder.root, functions=False)
    path.write_text(FILES[file], "utf-8")
    assert_same(again(plan, providers, folder.root), plan)


def test_a_provider_that_is_gone_or_another_one_is_refused(folder: ProjectFolder) -> None:
    plan, providers = planned(folder)
    without = {name: row for name, row in providers.items() if name != "other"}
    with pytest.raises(UsageError, match="asks other/big, and there is no provider 'other' any more") as raised:
        again(plan, without, folder.root)
    assert raised.value.remedy == "Put `providers: {other: …}` back into agac.yml."
    changed = {**providers, "local": replace(providers["local"], dialect="openai-responses")}
    with pytest.raises(UsageError, match="in the dialect openai-chat, and the provider's is openai-responses now"):
        again(plan, changed, folder.root)


HELD = (
    *(Plan, Stage, StageSettings, PlannedStage, LocalStage, PlannedModel, ModelRef, Selection),
    *(Timeout, Budget, BatchRules, RunRules),
    *(InputSpec, OutputSpec, TableTarget, Python, FunctionRef, Group, PythonSchema, Visibility),
)
"""What a Plan is made of. (A provider is that of today; guards and templates are read again from their texts.)"""

NOT_HELD = {
    ("ModelRef", "warnings"), ("InputSpec", "piped"), ("InputSpec", "allow_empty"), ("PlannedStage", "judge"),
    ("Plan", "remote"), ("FunctionRef", "gives_lists"),
}  # fmt: skip
"""Warnings were shown when the string was read. Standard input is a file by the time that a plan is made. Whether the
input may be empty matters to who reads it. What judges in place of a broken schema is of today's files, and so is what
a function's annotation says.
What was fetched is held: test_remote_content restores it."""


def _parts(value: Any) -> Iterator[Any]:
    """Every dataclass in a value."""
    if is_dataclass(value):
        yield value
        value = [getattr(value, f.name) for f in fields(value) if f.name != "where"]
    if isinstance(value, Mapping):
        value = list(value.values())
    for inner in value if isinstance(value, (list, tuple)) else ():
        yield from _parts(inner)


def test_the_workflows_of_this_test_use_every_field_there_is(
    folder: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who adds a field to a part of a Plan has to use it in `EVERYTHING` above; then the tests above fail until the
    definition or the settings holds it."""
    monkeypatch.chdir(folder.root)
    monkeypatch.setenv("AGAC_SHARD", "3/16")
    options = {"limit": 5, "sample": 9, "seed": 3, "offset": 1, "concurrency": 3}
    model = {"job": {"model": "local/small"}}
    plans = [planned(folder, name, **options, **model.get(name, {}))[0] for name in (*WORKFLOWS, "job")]
    parts = [part for plan in plans for part in _parts(plan)]
    unused = []
    for kind in HELD:
        found = [part for part in parts if isinstance(part, kind)]
        assert found, kind
        inherited = {one.name for base in kind.__mro__[1:-1] for one in fields(base) if base in HELD}
        for one in [one for one in fields(kind) if one.name not in inherited]:
            default = one.default if one.default_factory is MISSING else one.default_factory()
            values = {repr(getattr(part, one.name)) for part in found}
            if default is not MISSING and values == {repr(default)} and one.name != "where":
                unused.append((kind.__name__, one.name))
    assert set(unused) == NOT_HELD
