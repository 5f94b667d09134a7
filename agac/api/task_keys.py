"""What a task from Python may be given: its keys, typed; a phase of `map_reduce`; and what other
programs call them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict, Unpack

from agac.api.plan import Confirm
from agac.api.run_options import RunOptions
from agac.api.watched_run import Watch
from agac.core.arguments import refuse_types
from agac.core.errors import UsageError
from agac.spec.models import StageFile
from agac.spec.operations import OPERATIONS, Incomplete
from agac.spec.rules import OnEmpty, Otherwise, ReplyForm, ReusePolicy, RunMode
from agac.spec.stage_tools import FOR_TOOLS
from agac.spec.templates import Syntax
from agac.spec.tools import OnToolFailure, ToolsMode


class OpenCodeRuntime:
    """Runs each row of a task as an agent of OpenCode's command line, as the `runtime` of a task.
    `backend` and `model` are those of a task; all others are keys of a stage's `runtime`."""

    def __init__(
        self, *, backend: str | None = None, model: str | None = None, **keys: Any
    ) -> None:
        texts = {"backend": backend, "model": model}
        refuse_types("agac.OpenCodeRuntime", texts, dict.fromkeys(texts, str | None))
        of_task = {
            name: one for name, one in (("backend", backend), ("model", model)) if one is not None
        }
        self.task_keys: dict[str, Any] = {**of_task, "runtime": {"name": "opencode", **keys}}


class StageKeys(TypedDict, total=False):
    """The keys of a stage that asks a model, as its file has them; None is the same as leaving a
    key out. `tools` are functions, `agac.tool`s, `agac.Tool.…`, MCP servers, or what a stage's key
    takes; `output_schema` is a Pydantic model, a JSON Schema, the short form, or a file; `runtime`
    may be an `OpenCodeRuntime`. `max_turns` bounds the model calls of a row. Times are seconds, or
    texts such as `12h`."""

    model: str | Sequence[str] | None
    backend: str | None
    fallback: str | Sequence[str] | None
    run_mode: RunMode | None
    batch: Mapping[str, Any] | None
    temperature: float | None
    max_tokens: int | None
    timeout: float | Mapping[str, float] | None
    concurrency: int | None
    retries: Mapping[str, Any] | None
    repair: int | None
    json_repair: bool | None
    reuse: ReusePolicy | None
    warm_prefix: bool | None
    max_age: float | str | None
    syntax: Syntax | None
    agent: str | None
    instructions: str | None
    messages: Sequence[Mapping[str, Any]] | None
    skills: str | Sequence[str] | None
    runtime: OpenCodeRuntime | Mapping[str, Any] | str | None
    tools: Sequence[Any] | Mapping[str, Any] | None
    max_turns: int | None
    tools_mode: ToolsMode | None
    tool_stubs: Mapping[str, Any] | None
    on_tool_failure: OnToolFailure | None
    reads: Sequence[str] | None
    output_schema: type | Mapping[str, Any] | str | None
    output_field: str | None
    reply: ReplyForm | None
    checks: Sequence[Mapping[str, str]] | Mapping[str, str] | None
    replicas: int | None
    vote: str | Mapping[str, Any] | None
    escalate: Mapping[str, Any] | None
    visible: Mapping[str, Sequence[str]] | None
    when: str | None
    otherwise: Otherwise | None
    on_empty: OnEmpty | None
    budget: Mapping[str, float] | None
    expect: Mapping[str, Any] | None


class GroupKeys(TypedDict, total=False):
    """How a stage that asks about groups of rows cuts those that are too large, and what becomes
    of incomplete ones."""

    reduce: Mapping[str, int] | None
    incomplete: Incomplete | None


class RunKeys(TypedDict, total=False):
    """What holds for the run of a task. `max_inflight` bounds the calls at a time, `id_field`
    names the field with each row's id. `options`, `project`, `progress` and `confirm` are those of
    a workflow."""

    max_inflight: int | None
    id_field: str | None
    options: RunOptions | None
    project: Path | str | None
    progress: Watch | bool
    confirm: Confirm | None


class TaskKeys(StageKeys, GroupKeys, RunKeys, total=False):
    """What a task may say besides its text and its rows: how its run is made, and the keys of a
    stage. With `group_by` it is asked once for all rows with the same values of these fields, with
    `explode` for each item of a list."""

    group_by: str | Sequence[str] | None
    explode: str | None


class SharedKeys(StageKeys, RunKeys, total=False):
    """What holds for all phases of `map_reduce` that ask a model, where a phase does not say
    otherwise."""


class PhaseKeys(StageKeys, GroupKeys, total=False):
    """What a phase may say besides its prompt: the keys of a stage. One with `python`, a function
    of the project, asks no model: that of `reduce` is given the list of all items. `template` is a
    file with the prompt."""

    python: str | None
    processes: int | None
    template: str | None


class Phase(dict[str, Any]):
    """A phase of `map_reduce`: its prompt, and its keys. They win over those of all phases; None
    takes one away."""

    def __init__(self, prompt: str | None = None, **keys: Unpack[PhaseKeys]) -> None:
        super().__init__(keys if prompt is None else {"prompt": prompt, **keys})


OF_RUNS = tuple(RunKeys.__annotations__)
_ONE_STAGE = {"name", "needs", "enabled", "processes"}
NOT_OF_TASKS = {*_ONE_STAGE, "prompt", "template", *OPERATIONS}
NOT_OF_PHASES = {*_ONE_STAGE, "group_by", "explode", *OPERATIONS} - {"python", "processes"}
NOT_SHARED = NOT_OF_TASKS | NOT_OF_PHASES
"""Keys of a stage that a task does not have, which is one stage and asks a model; nor a phase; nor
all phases."""

RUN_OPTIONS = {
    "budget",
    *(one.name for one in fields(RunOptions) if one.name not in StageFile.model_fields),
}
_OTHER_NAMES = {
    "inputs=…": ("input", "rows", "data", "items", "jobs", "dataset", "records"),
    "instructions=…": (
        "system_prompt",
        "system",
        "system_message",
        "system_instruction",
        "instruction",
    ),
    "output_schema=…": (
        "schema",
        "json_schema",
        "response_format",
        "response_model",
        "response_schema",
        "result_type",
        "output_type",
    ),
    "max_inflight=…": (
        "max_agents",
        "max_concurrency",
        "max_concurrent",
        "max_workers",
        "max_parallel",
        "parallel",
        "workers",
    ),
    "max_turns=…": ("max_iterations", "max_steps", "max_rounds"),
    "model=…": ("llm", "engine", "model_name"),
    "backend=…": ("base_url", "api_base", "endpoint", "url"),
    "agent=…": ("agent_card", "card"),
    "tools=…": ("functions", "function_tools", "mcp_servers", "servers"),
    "tools=[agac.McpServer(…)]": ("mcp",),
    "retries={'attempts': …}": ("max_retries", "retry"),
    "id_field=…": ("id", "id_column", "key", "row_id"),
    "agac.stream(…)": ("streaming", "on_result", "callback"),
    "options=agac.RunOptions(export_traces='FOLDER')": (
        "telemetry",
        "traces",
        "tracing",
        "telemetry_output",
        "trace",
    ),
    "a `.env` file, or `providers` in agac.yml": ("api_key",),
    "model='PROVIDER/MODEL?seed=…'": ("seed",),
    "model='PROVIDER/MODEL?top_p=…'": ("top_p",),
    "model='PROVIDER/MODEL?reasoning=…'": ("reasoning", "reasoning_effort"),
}
"""What is written here for what other programs call it."""

_WRITTEN = {other: here for here, others in _OTHER_NAMES.items() for other in others}


_OF_WORKFLOWS = ("input", "project", "progress", "confirm", "handle_signals")


def refuse_for_workflow(keys: Iterable[str]) -> None:
    """Raises UsageError for an argument that a run of a workflow does not have, and names what is
    written instead."""
    for key in keys:
        if key in _OF_WORKFLOWS:
            continue
        remedy = (
            "What a stage is asked with stands in the workflow: agac.Workflow('NAME', "
            "stages=[…]), or its file."
        )
        if key == "inputs":
            remedy = "Write it as input=…."
        elif key in {one.name for one in fields(RunOptions)}:
            remedy = f"Give it in the options: agac.run(WORKFLOW, agac.RunOptions({key}=…))."
        raise UsageError(f"agac.run of a workflow has no argument {key!r}", remedy=remedy)


def refuse_keys(door: str, keys: Mapping[str, Any], refused: Collection[str]) -> None:
    """Raises UsageError for a key that `door` cannot have, as the `refused` ones, and names what
    is written instead."""
    for key, value in keys.items():
        if key in _WRITTEN:
            remedy = f"Write it as {_WRITTEN[key]}."
        elif key in RUN_OPTIONS and not (key == "budget" and isinstance(value, Mapping | None)):
            remedy = f"Give it in the options: options=agac.RunOptions({key}=…)."
        elif key in ("prompt", "template") and key in refused:
            remedy = "Give the text as task=…."
        elif key in refused:
            remedy = (
                "Make a workflow of stages with keys of their own: agac.Workflow('NAME', "
                "stages=[…])."
            )
        else:
            continue
        raise UsageError(f"{door} has no argument {key!r}", remedy=remedy)


_EXCLUDE = (
    ({"runtime"}, {"tools", "skills", "messages", *FOR_TOOLS} - {"max_turns"}),
    ({"output_schema"}, {"output_field", "reply"}),
)
"""Keys of a stage that do not go together."""


def with_shared(
    phase: Mapping[str, Any], shared: Mapping[str, Any], own: Collection[str]
) -> dict[str, Any]:
    """The keys of a phase, and those of all phases that go with them: what it says itself, or has
    as its `own`, wins. What is for tools holds where a phase has some."""
    said = {key for key in phase if phase[key] is not None}.union(own)
    without = {key for some, others in _EXCLUDE for key in others if said & some}
    without |= {key for some, others in _EXCLUDE for key in some if said & others}
    found = {
        key: value for key, value in shared.items() if key not in without and key not in own
    } | dict(phase)
    if not any(found.get(key) for key in ("tools", "agent", "skills", "runtime")):
        found = {key: value for key, value in found.items() if key not in FOR_TOOLS or key in phase}
    return found
