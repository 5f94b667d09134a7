"""The arguments of a task from Python, typed; a phase of `map_reduce`; and other programs' names of
these arguments."""

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
        task_keys = {name: text for name, text in texts.items() if text is not None}
        self.task_keys: dict[str, Any] = {**task_keys, "runtime": {"name": "opencode", **keys}}


class StageKeys(TypedDict, total=False):
    """The keys of a stage that asks a model, as its file has them.

    None is the same as leaving a key out. Times are seconds, or texts such as `12h`."""

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
    """An `OpenCodeRuntime`, or what the key of a stage takes."""
    tools: Sequence[Any] | Mapping[str, Any] | None
    """Functions, `agac.tool`s, `agac.Tool.…`, MCP servers, or what the key of a stage takes."""
    max_turns: int | None
    """The most model calls for a row."""
    tools_mode: ToolsMode | None
    tool_stubs: Mapping[str, Any] | None
    on_tool_failure: OnToolFailure | None
    reads: Sequence[str] | None
    output_schema: type | Mapping[str, Any] | str | None
    """A Pydantic model, a JSON Schema, the short form, or a file."""
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
    """The keys of a stage that asks about groups of rows."""

    reduce: Mapping[str, int] | None
    """How groups that are too large are cut."""
    incomplete: Incomplete | None
    """What happens to a group that lacks rows."""


class RunKeys(TypedDict, total=False):
    """Arguments for the run of a task. `options`, `project`, `progress` and `confirm` are those of
    a workflow's run."""

    max_inflight: int | None
    """The most calls at a time."""
    id_field: str | None
    """The field with each row's id."""
    options: RunOptions | None
    project: Path | str | None
    progress: Watch | bool
    confirm: Confirm | None


class TaskKeys(StageKeys, GroupKeys, RunKeys, total=False):
    """The arguments of a task besides its text and its rows: those of its run, and the keys of a
    stage."""

    group_by: str | Sequence[str] | None
    """The task is asked once for all rows with the same values of these fields."""
    explode: str | None
    """The task is asked for each item of this list."""


class SharedKeys(StageKeys, RunKeys, total=False):
    """Arguments for all phases of `map_reduce` that ask a model; a phase may say otherwise."""


class PhaseKeys(StageKeys, GroupKeys, total=False):
    """The arguments of a phase besides its prompt: the keys of a stage."""

    python: str | None
    """A function of the project, which is called instead of a model; that of `reduce` gets the
    list of all items."""
    processes: int | None
    """In so many processes."""
    template: str | None
    """A file with the prompt."""


class Phase(dict[str, Any]):
    """A phase of `map_reduce`: its prompt, and its keys.

    They override those of all phases; None takes one away."""

    def __init__(self, prompt: str | None = None, **keys: Unpack[PhaseKeys]) -> None:
        super().__init__(keys if prompt is None else {"prompt": prompt, **keys})


OF_RUNS = tuple(RunKeys.__annotations__)
_ONE_STAGE = {"name", "needs", "enabled", "processes"}
NOT_OF_TASKS = {*_ONE_STAGE, "prompt", "template", *OPERATIONS}
NOT_OF_PHASES = {*_ONE_STAGE, "group_by", "explode", *OPERATIONS} - {"python", "processes"}
NOT_SHARED = NOT_OF_TASKS | NOT_OF_PHASES
"""Keys of a stage that neither all phases nor a single phase nor a task has: a task is one stage
that asks a model."""

RUN_OPTIONS = {
    "budget",
    *(each.name for each in fields(RunOptions) if each.name not in StageFile.model_fields),
}
"""Arguments that belong into `options`."""

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
"""By agac's name of an argument, the names that other programs have for it."""

_NAME_HERE = {other: here for here, others in _OTHER_NAMES.items() for other in others}


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
        elif key in {each.name for each in fields(RunOptions)}:
            remedy = f"Give it in the options: agac.run(WORKFLOW, agac.RunOptions({key}=…))."
        raise UsageError(f"agac.run of a workflow has no argument {key!r}", remedy=remedy)


def refuse_keys(function: str, keys: Mapping[str, Any], refused: Collection[str]) -> None:
    """Raises UsageError for a key that `function` cannot have, such as the `refused` ones, and
    names what is written instead."""
    for key, value in keys.items():
        remedy = _remedy(key, value, refused)
        if remedy is not None:
            raise UsageError(f"{function} has no argument {key!r}", remedy=remedy)


def _remedy(key: str, value: Any, refused: Collection[str]) -> str | None:
    """Says what is written instead of a key; None if the key is fine."""
    if key in _NAME_HERE:
        return f"Write it as {_NAME_HERE[key]}."
    is_limit_of_rows = key == "budget" and isinstance(value, Mapping | None)
    if key in RUN_OPTIONS and not is_limit_of_rows:
        return f"Give it in the options: options=agac.RunOptions({key}=…)."
    if key not in refused:
        return None
    if key in ("prompt", "template"):
        return "Give the text as task=…."
    return "Make a workflow of stages with keys of their own: agac.Workflow('NAME', stages=[…])."


_EXCLUDE = (
    ({"runtime"}, {"tools", "skills", "messages", *FOR_TOOLS} - {"max_turns"}),
    ({"output_schema"}, {"output_field", "reply"}),
)
"""Keys of a stage that exclude each other."""


def with_shared(
    phase: Mapping[str, Any], shared: Mapping[str, Any], own: Collection[str]
) -> dict[str, Any]:
    """Adds to the keys of a phase those of all phases that fit: what it says itself, or has as its
    `own`, wins. Keys for tools are only for a phase that has some."""
    fixed = {key for key in phase if phase[key] is not None}.union(own)
    excluded = set(own)
    for first, second in _EXCLUDE:
        if fixed & first:
            excluded |= second
        if fixed & second:
            excluded |= first
    keys = {key: value for key, value in shared.items() if key not in excluded} | dict(phase)
    if any(keys.get(key) for key in ("tools", "agent", "skills", "runtime")):
        return keys
    return {key: value for key, value in keys.items() if key not in FOR_TOOLS or key in phase}
