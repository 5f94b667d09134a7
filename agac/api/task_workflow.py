"""A task from Python as the workflow that it is: a text that is asked of each of some rows, its
run, and its typed results, as they settle or all at once."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from agac.api.cards import lock_given
from agac.api.ended_rows import STAGE
from agac.api.project import project_of
from agac.api.report import RunReport
from agac.api.result_rows import result_reader
from agac.api.run import run as run_workflow
from agac.api.run_options import RunOptions
from agac.api.status import stored_run
from agac.api.sync import asynchronous
from agac.api.task_keys import NOT_OF_TASKS, OF_RUNS, OpenCodeRuntime, RunKeys, refuse_keys
from agac.core.arguments import refuse_keys_of
from agac.core.errors import AgacError, RowError, UsageError, Where
from agac.core.keys import job_name
from agac.core.types import RowId, Usage, WebSource
from agac.data.frames import GivenRows
from agac.data.sources import keep_rows
from agac.engine.stop_rules import StopReason
from agac.engine.walk.replay import FinalRows
from agac.spec.data_specs import OutputSpec
from agac.spec.inputs import INPUTS
from agac.spec.loader import BuiltWorkflow
from agac.spec.paths import project_root
from agac.store import runs
from agac.store.db import Database
from agac.store.rows import EXPORT_RANGE as PAGE
from agac.store.rows import ExportRow, State, row_usages, rows_of_results, rows_sources
from agac.store.write_batch import WriteBatch

Inputs = (
    GivenRows
    | Iterable[str]
    | AsyncIterable[str]
    | Iterable[BaseModel]
    | AsyncIterable[BaseModel]
    | str
    | Path
)
"""Rows for a task: as `RunOptions.input` takes them, or Pydantic models, or texts, each of which
is a row with the field `input`."""

_ENDED = (State.DONE, State.SKIPPED, State.FAILED)


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What came of one row.

    Its figures are those of all calls that its run made for it: zero if they were made for another
    row, or in another run."""

    row_id: RowId
    """The id of the row."""

    output: Any
    """The result: an instance of the model if the schema is a Pydantic model; None if it failed."""

    error: RowError | None
    """Why it failed."""

    usage: Usage
    """Tokens of its calls."""

    cost: float | None
    """What they cost in US dollars; None: unknown."""

    turns: int
    """How many model calls were answered."""

    input: dict[str, Any]
    """The fields of the row."""

    sources: tuple[WebSource, ...] = ()
    """Pages that searches of its provider found for the answer."""

    @property
    def job_id(self) -> RowId:
        """`row_id`."""
        return self.row_id

    @property
    def ok(self) -> bool:
        """True if it has no error."""
        return self.error is None


class AgentRun(list[AgentResult]):
    """The results of a task, in the order of its rows; those of rows that have no outcome yet are
    missing. `report` is that of its run."""

    report: RunReport
    """The report of its run."""


class BuiltTask(BuiltWorkflow):
    """A task as a workflow that writes no files.

    It follows the commits of its run: `settled` are the keys of the rows that ended, in that order,
    and the event `news` is set when there are more."""

    form = "{key}={value}"

    def __init__(
        self, name: str, kind: Any, keys: Mapping[str, Any], places: Mapping[str, str]
    ) -> None:
        """Makes it of the `keys` of a workflow. `kind` is the type of its results; `places` are by
        key the arguments that messages name. Raises SpecError."""
        if len(keys["stages"]) == 1:
            function = "agac.run"
            call = "agac.run(task=…, inputs=…)"
        else:
            function = "agac.map_reduce"
            call = "agac.map_reduce(…)"
        self.places = {
            "": Where(function),
            **{key: Where(f"{function}: {argument}") for key, argument in places.items()},
            "input": Where(f"{function}: inputs"),
        }
        self.given = {"in_python": True, "task": f"{call} as before"}
        super().__init__(name, **keys)
        self.kind = kind
        self.watcher = self
        self.run = 0
        self.settled = array("q")
        self.news = asyncio.Event()
        self._has_ended = bytearray()
        """By the key of a row, 1 if it was in `settled`."""

    def placed(self, output: OutputSpec) -> OutputSpec:
        """Removes the places of all outputs."""
        return replace(output, dir=output.dir.parent / "-", places={})

    async def began(self, database: Database, run: int) -> None:
        """Notes the run."""
        self.run = run

    async def committed(self, batch: WriteBatch) -> None:
        """Notes the rows that have ended."""
        rows = (*batch.rows.inserts, *batch.rows.changes)
        self._note(new.key for new in rows if new.state is State.FAILED)
        self._note(end.new.key for end in batch.rows.ends)

    def _note(self, keys: Iterable[int]) -> None:
        """Adds rows to `settled`, each once."""
        for key in keys:
            self._has_ended.extend(bytes(max(0, key + 1 - len(self._has_ended))))
            if not self._has_ended[key]:
                self._has_ended[key] = 1
                self.settled.append(key)
                self.news.set()

    async def followed(self, root: Path) -> AsyncGenerator[list[AgentResult]]:
        """Yields the results of rows that ended since the last call."""
        if not self.settled:
            return
        async with stored_run(root, self.run) as (database, _):
            while self.settled:
                page = self.settled[:PAGE]
                self.settled = self.settled[PAGE:]
                async for rows in rows_of_results(database, page):
                    yield await _results_of(database, rows, self.kind)

    async def results(
        self, root: Path, *, unfollowed: bool = False, stage: str | None = None
    ) -> AsyncGenerator[list[AgentResult]]:
        """Yields the results of all rows in their order, some hundred at a time.

        `unfollowed`: only of rows that `followed` never yields. `stage`: the results of this
        one."""
        async with stored_run(root, self.run) as (database, record):
            definition = await runs.definition_of(database, record.id)
            final = FinalRows(definition, inputs=True, stage=stage)
            async for rows in final.rows(database, record.id):
                if unfollowed:
                    rows = [row for row in rows if not self._was_followed(row.key)]
                yield await _results_of(database, rows, self.kind)

    def _was_followed(self, key: int) -> bool:
        return key < len(self._has_ended) and bool(self._has_ended[key])


async def _results_of(
    database: Database, rows: Sequence[ExportRow], kind: Any
) -> list[AgentResult]:
    """Reads the results of those rows that ended."""
    keys = [row.key for row in rows]
    read = result_reader(kind)
    usages = await row_usages(database, keys)
    sources: dict[int, tuple[WebSource, ...]] = {}
    for key, _, text in await rows_sources(database, keys):
        pages = [WebSource(**page) for page in json.loads(text)]
        sources[key] = (*sources.get(key, ()), *pages)
    results = []
    for row in rows:
        if row.state not in _ENDED:
            continue
        output = None
        if not row.error and row.value is not None:
            output = read(row.id, json.loads(row.value))
        calls, *tokens, cost = usages.get(row.key, (0, 0, 0, 0, 0, 0.0))
        result = AgentResult(
            row.id,
            output,
            row.error,
            Usage(*tokens),
            cost,
            calls,
            json.loads(row.data) or {},
            sources.get(row.key, ()),
        )
        results.append(result)
    return results


class PreparedTask(NamedTuple):
    """A task that can be run."""

    task: BuiltTask
    """The task as a workflow."""

    options: RunOptions
    """The options of its run, with its rows."""

    run_keys: dict[str, Any]
    """Further arguments of the run: `project`, `progress`, `confirm`."""

    @property
    def root(self) -> Path:
        """The folder of the project."""
        root: Path = self.run_keys["project"]
        return root

    async def run(self) -> RunReport:
        """Runs it. Raises AgacError if the run had to stop."""
        report = await asynchronous(run_workflow)(self.task, self.options, **self.run_keys)
        if report.stop in (StopReason.FATAL, StopReason.LOSS):
            raise AgacError(
                f"the task was stopped: {report.stopped}",
                remedy="Mend that; the same call resumes it.",
            )
        return report


async def prompt_task(task: str, inputs: Any, keys: Mapping[str, Any]) -> PreparedTask:
    """Prepares a task of one stage, from the arguments of `agac.run`. Raises SpecError and
    UsageError."""
    refuse_keys("agac.run", keys, NOT_OF_TASKS)
    run_keys, stage_keys = split_keys(keys)
    stage = stage_of_keys(STAGE, {"prompt": task, "syntax": "auto", **stage_keys})
    places = {"prompt": "task", **{key: key for key in stage if key != "prompt"}}
    return await prepare_task([stage], inputs, run_keys, stage_keys.get("output_schema"), places)


async def prepare_task(
    stages: list[dict[str, Any]],
    inputs: Any,
    run_keys: Mapping[str, Any],
    schema: Any,
    places: Mapping[str, str],
) -> PreparedTask:
    """Prepares the task of these stages.

    Its name is made of all that it is: the same task resumes its run, and others have runs of their
    own. `schema` is that of its results; `places` are by key the arguments that messages name.
    Raises SpecError and UsageError."""
    refuse_keys_of("agac.run" if len(stages) == 1 else "agac.map_reduce", run_keys, RunKeys)
    root = project_root(run_keys.get("project"), bare=True)
    options = run_keys.get("options") or RunOptions()
    if options.input is not None:
        raise UsageError(
            "options.input: a task's rows are its `inputs`",
            remedy="Give the rows in one place: inputs=…",
        )
    source = inputs
    if not isinstance(inputs, str | Path):
        source = await keep_rows(_input_rows(inputs), root / INPUTS)
    keys = _workflow_keys(stages, options, run_keys.get("id_field"))
    identity = json.dumps([keys, str(source)], default=_python_name)
    name = job_name(str(stages[0].get("prompt", "")), identity, "task")
    task = BuiltTask(name, model_of_schema(schema), keys, places)
    if not _has_stubs_only(stages, options):
        for server in task.tools.servers:
            await lock_given(server, project_of(task, root))
    max_inflight = run_keys.get("max_inflight")
    options = replace(options, input=source)
    if max_inflight is not None:
        options = replace(options, concurrency=max_inflight)
    shown = {name: run_keys[name] for name in ("progress", "confirm") if name in run_keys}
    return PreparedTask(task, options, {"project": root, **shown})


def _workflow_keys(
    stages: list[dict[str, Any]], options: RunOptions, id_field: str | None
) -> dict[str, Any]:
    """Makes the keys of the workflow that a task is."""
    keys: dict[str, Any] = {"input": {}, "stages": stages}
    if id_field is not None:
        keys["input"] = {"id_field": id_field}
    if options.vars:
        keys["vars"] = dict(options.vars)
    return keys


def _has_stubs_only(stages: Sequence[Mapping[str, Any]], options: RunOptions) -> bool:
    """True if no MCP server is started, since stubs answer for all tools."""
    if options.tools_mode == "stub" or options.tool_stubs:
        return True
    return all(stage.get("tools_mode", options.tools_mode) == "stub" for stage in stages)


def split_keys(keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits arguments into those of a run and those of a stage."""
    run_keys = {key: value for key, value in keys.items() if key in OF_RUNS}
    stage_keys = {key: value for key, value in keys.items() if key not in OF_RUNS}
    return run_keys, stage_keys


def stage_of_keys(name: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Makes a stage of keys as a workflow has it.

    Keys that are None are left out; a runtime brings a model if they have none."""
    runtime = keys.get("runtime")
    if isinstance(runtime, OpenCodeRuntime):
        keys = {**runtime.task_keys, **keys, "runtime": runtime.task_keys["runtime"]}
    return {"name": name, **{key: value for key, value in keys.items() if value is not None}}


def model_of_schema(schema: Any) -> Any:
    """Gives the type of which results are instances; None if the schema is not a type."""
    return schema if isinstance(schema, type) else None


def fields_of_row(value: Any) -> Any:
    """Gives the fields of a row that is a text or a Pydantic model; other rows are their own."""
    if isinstance(value, str):
        return {"input": value}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return value


def _input_rows(inputs: Any) -> GivenRows:
    """Gives the rows of all kinds of inputs. What are no rows is refused later."""
    rows: Any = inputs
    if _is_frame(inputs):
        return rows  # type: ignore[no-any-return]
    if isinstance(inputs, AsyncIterable):
        return (fields_of_row(row) async for row in inputs)
    if isinstance(inputs, Sequence):
        return list(map(fields_of_row, inputs))
    if isinstance(inputs, Iterable) and not isinstance(inputs, Mapping):
        return map(fields_of_row, inputs)
    return rows  # type: ignore[no-any-return]


def _is_frame(inputs: Any) -> bool:
    """True for a table of pandas, Arrow or the like, but not for one of its columns."""
    if hasattr(inputs, "to_list"):
        return False
    return hasattr(inputs, "columns") or hasattr(inputs, "__arrow_c_stream__")


def _python_name(value: Any) -> str:
    """Names a function, a class or another object for the name of a task."""
    return str(getattr(value, "__qualname__", getattr(value, "name", type(value).__name__)))
