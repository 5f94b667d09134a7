"""Tasks from Python: a text asked of each of some rows, as a workflow made in memory; their typed
results, as they settle or all at once; and a plan, what is done with each of its items, and what
is made of that."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from array import array
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from contextlib import aclosing
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Unpack, overload

from pydantic import BaseModel

from agac.api.cards import lock_given
from agac.api.inspect import inspect
from agac.api.job import STAGE
from agac.api.plan import Confirm
from agac.api.project import RunOptions, project_of
from agac.api.report import RunReport, Watch, result_reader
from agac.api.run import run as run_workflow
from agac.api.status import stored_run
from agac.api.sync import INTERRUPTS, Interrupts, asynchronous, calling, iterating
from agac.api.task_keys import (
    NOT_OF_PHASES,
    NOT_OF_TASKS,
    NOT_SHARED,
    OF_RUNS,
    OpenCodeRuntime,
    Phase,
    RunKeys,
    SharedKeys,
    TaskKeys,
    refuse_for_workflow,
    refuse_keys,
    with_shared,
)
from agac.core.arguments import refuse_keys_of, typed
from agac.core.errors import AgacError, ErrorType, RowError, UsageError, Where
from agac.core.keys import job_name
from agac.core.types import Report, RowId, Usage, WebSource, counted, usd
from agac.data.frames import GivenRows, each_row
from agac.data.sources import keep_rows
from agac.engine.stop_rules import StopReason
from agac.engine.walk.replay import FinalRows
from agac.spec.inputs import INPUTS
from agac.spec.loader import BuiltWorkflow, WorkflowSource
from agac.spec.paths import project_root
from agac.spec.templates import ROWS_JSON, compile_template, in_syntax
from agac.spec.workflow import OutputSpec
from agac.store import runs
from agac.store.db import Database
from agac.store.records import WriteBatch
from agac.store.rows import EXPORT_RANGE as PAGE
from agac.store.rows import ExportRow, State, row_usages, rows_of_results, rows_sources

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


@dataclass(frozen=True, slots=True)
class AgentResult:
    """What came of one row: its `output`, an instance of the model where a Pydantic model is the
    schema, or its `error`. `input` has its fields. `usage`, `cost` (US dollars; None: unknown) and
    `turns` (model calls that were answered) are those of all calls that its run made for it: zero
    where another row or run has it. `sources` are the pages that searches of its provider found
    for the answer."""

    row_id: RowId
    output: Any
    error: RowError | None
    usage: Usage
    cost: float | None
    turns: int
    input: dict[str, Any]
    sources: tuple[WebSource, ...] = ()

    @property
    def job_id(self) -> RowId:
        """`row_id`."""
        return self.row_id

    @property
    def ok(self) -> bool:
        """Whether it has no error."""
        return self.error is None


class AgentRun(list[AgentResult]):
    """The results of a task, in the order of its rows; those of rows that have no outcome yet are
    missing. `report` is that of its run."""

    report: RunReport


class BuiltTask(BuiltWorkflow):
    """A task as the workflow that it is. It writes no files; it follows its rows: `settled` are
    the keys of those that ended, in that order, and `news` tells that there are more."""

    def __init__(
        self, name: str, kind: Any, keys: Mapping[str, Any], places: Mapping[str, str]
    ) -> None:
        """`kind` is the type of its results; `places` are the arguments of its keys. Raises
        SpecError."""
        door = "agac.run" if len(keys["stages"]) == 1 else "agac.map_reduce"
        self.places = {
            key: Where(f"{door}: {place}") for key, place in {**places, "input": "inputs"}.items()
        }
        self.places[""] = Where(door)
        if door == "agac.run":
            call = "agac.run(task=…, inputs=…)"
        else:
            call = "agac.map_reduce(…)"
        self.given = {"in_python": True, "task": f"{call} as before"}
        super().__init__(name, **keys)
        self.kind = kind
        self.watcher = self
        self.run = 0
        self.settled = array("q")
        self.news = asyncio.Event()
        self._told = bytearray()

    form = "{key}={value}"

    def placed(self, output: OutputSpec) -> OutputSpec:
        """Nowhere."""
        return replace(output, dir=output.dir.parent / "-", places={})

    async def began(self, database: Database, run: int) -> None:
        """Notes the run."""
        self.run = run

    async def committed(self, batch: WriteBatch) -> None:
        """Notes the rows that have ended."""
        self._note(new.key for new in (*batch.inserts, *batch.changes) if new.state is State.FAILED)
        self._note(end.new.key for end in batch.ends)

    def _note(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._told.extend(bytes(max(0, key + 1 - len(self._told))))
            if not self._told[key]:
                self._told[key] = 1
                self.settled.append(key)
                self.news.set()

    async def followed(self, root: Path) -> AsyncGenerator[list[AgentResult]]:
        """Those of the rows that ended since it was last asked."""
        if not self.settled:
            return
        async with stored_run(root, self.run) as (database, _):
            while self.settled:
                some = self.settled[:PAGE]
                self.settled = self.settled[PAGE:]
                async for rows in rows_of_results(database, some):
                    yield await _results_of(database, rows, self.kind)

    async def results(
        self, root: Path, *, untold: bool = False, stage: str | None = None
    ) -> AsyncGenerator[list[AgentResult]]:
        """Those of all rows in their order, some hundred at a time; `untold`: not followed;
        `stage`: of this one."""
        async with stored_run(root, self.run) as (database, record):
            final = FinalRows(
                await runs.definition_of(database, record.id), inputs=True, stage=stage
            )
            async for rows in final.rows(database, record.id):
                some = [
                    row
                    for row in rows
                    if not (untold and row.key < len(self._told) and self._told[row.key])
                ]
                yield await _results_of(database, some, self.kind)


async def _results_of(
    database: Database, rows: Sequence[ExportRow], kind: Any
) -> list[AgentResult]:
    keys = [row.key for row in rows]
    read = result_reader(kind)
    used = await row_usages(database, keys)
    sources: dict[int, tuple[WebSource, ...]] = {}
    for key, _, text in await rows_sources(database, keys):
        sources[key] = (*sources.get(key, ()), *(WebSource(**one) for one in json.loads(text)))
    found = []
    for row in rows:
        if row.state not in (State.DONE, State.SKIPPED, State.FAILED):
            continue
        if row.error or row.value is None:
            output = None
        else:
            output = read(row.id, json.loads(row.value))
        calls, *tokens, cost = used.get(row.key, (0, 0, 0, 0, 0, 0.0))
        told = Usage(*tokens), cost, calls, json.loads(row.data) or {}, sources.get(row.key, ())
        found.append(AgentResult(row.id, output, row.error, *told))
    return found


# A task as a workflow.


def _row(value: Any) -> Any:
    if isinstance(value, str):
        return {"input": value}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return value


def _rows(inputs: Any) -> GivenRows:
    if not hasattr(inputs, "to_list") and (
        hasattr(inputs, "columns") or hasattr(inputs, "__arrow_c_stream__")
    ):
        return inputs  # type: ignore[no-any-return]  # a frame, and no column of one
    if isinstance(inputs, AsyncIterable):
        return (_row(one) async for one in inputs)
    if isinstance(inputs, Sequence):
        return list(map(_row, inputs))
    if isinstance(inputs, Iterable) and not isinstance(inputs, Mapping):
        return map(_row, inputs)
    return inputs  # type: ignore[no-any-return]  # no rows: it is refused later


def _known(value: Any) -> str:
    return str(getattr(value, "__qualname__", getattr(value, "name", type(value).__name__)))


class _Asked(NamedTuple):
    task: BuiltTask
    options: RunOptions
    more: dict[str, Any]


async def _asked(
    stages: list[dict[str, Any]],
    inputs: Any,
    of_run: Mapping[str, Any],
    kind: Any,
    places: Mapping[str, str],
) -> _Asked:
    """The task of these stages. Its name stands for all that it is: the same task resumes its run,
    and others run beside it. Raises SpecError and UsageError."""
    refuse_keys_of("agac.run" if len(stages) == 1 else "agac.map_reduce", of_run, RunKeys)
    root = project_root(of_run.get("project"), bare=True)
    options = of_run.get("options") or RunOptions()
    more = {"project": root} | {
        one: of_run[one] for one in ("progress", "confirm") if one in of_run
    }
    if options.input is not None:
        raise UsageError(
            "options.input: a task's rows are its `inputs`",
            remedy="Give the rows in one place: inputs=…",
        )
    if isinstance(inputs, str | Path):
        source = inputs
    else:
        source = await keep_rows(_rows(inputs), root / INPUTS)
    id_field = of_run.get("id_field")
    most = of_run.get("max_inflight")
    whole: dict[str, Any] = {
        "input": {} if id_field is None else {"id_field": id_field},
        "stages": stages,
    }
    whole |= {"vars": dict(options.vars)} if options.vars else {}
    name = job_name(
        str(stages[0].get("prompt", "")), json.dumps([whole, str(source)], default=_known), "task"
    )
    task = BuiltTask(name, kind, whole, places)
    stubbed = all(one.get("tools_mode", options.tools_mode) == "stub" for one in stages)
    for server in (
        () if stubbed or options.tools_mode == "stub" or options.tool_stubs else task.tools.servers
    ):
        await lock_given(server, project_of(task, root))
    concurrency = options.concurrency if most is None else most
    return _Asked(task, replace(options, input=source, concurrency=concurrency), more)


def _model(schema: Any) -> Any:
    return schema if isinstance(schema, type) else None


async def _one(task: str, inputs: Any, keys: Mapping[str, Any]) -> _Asked:
    refuse_keys("agac.run", keys, NOT_OF_TASKS)
    of_run, of_stage = _parted(keys)
    stage = _stage(STAGE, {"prompt": task, "syntax": "auto", **of_stage})
    places = {"prompt": "task", **{key: key for key in stage if key != "prompt"}}
    return await _asked([stage], inputs, of_run, _model(of_stage.get("output_schema")), places)


def _parted(keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of a run, and those of a stage."""
    of_stage = {key: value for key, value in keys.items() if key not in OF_RUNS}
    return {key: value for key, value in keys.items() if key in OF_RUNS}, of_stage


def _stage(name: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys as a workflow has them. What is None is left out; a runtime brings a model where
    they have none."""
    runtime = keys.get("runtime")
    if isinstance(runtime, OpenCodeRuntime):
        keys = {**runtime.task_keys, **keys, "runtime": runtime.task_keys["runtime"]}
    return {"name": name, **{key: value for key, value in keys.items() if value is not None}}


async def _run(asked: _Asked) -> RunReport:
    """The task's run. Raises AgacError where it had to stop."""
    report = await asynchronous(run_workflow)(asked.task, asked.options, **asked.more)
    if report.stop in (StopReason.FATAL, StopReason.LOSS):
        raise AgacError(
            f"the task was stopped: {report.stopped}", remedy="Mend that; the same call resumes it."
        )
    return report


# The public functions.


@overload
async def arun(
    workflow: WorkflowSource,
    options: RunOptions | None = None,
    *,
    input: Path | str | GivenRows | None = None,
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """A workflow."""


@overload
async def arun(*, task: str, inputs: Inputs, **keys: Unpack[TaskKeys]) -> AgentRun:
    """A task."""


async def arun(
    workflow: Any = None, options: Any = None, *, task: Any = None, inputs: Any = None, **keys: Any
) -> Any:
    """Runs what is left of a workflow's rows and writes its outputs; or asks a `task` of each of
    the rows `inputs`.

    Killed at any point, the same call goes on; Ctrl-C stops it in good order, then
    KeyboardInterrupt comes out. Of a workflow, `input` takes the place of its own input and of the
    options': rows, or where they are. `progress`: whether to show it on standard error as the
    command does, or below a notebook's cell; or what shows it. `confirm` is asked whether to go on
    above `confirm_above`; without it such a run is refused unless `options.yes`. `handle_signals`:
    SIGINT and SIGTERM stop it in good order, and a report comes out (main thread only).

    A `task` is a prompt with the rows' fields as `{field}`, `${field}` or `{{field}}`; `TaskKeys`
    says what it may have besides. The same call again pays nothing.

    Raises SpecError for problems in files and keys, UsageError for wrong options, AgacError for
    everything else that a user can mend; failed rows are no exception: they are counted in the
    report, or have an `error`."""
    if (workflow is None) == (task is None):
        remedy = "Give a workflow, or a task with its rows: agac.run(task='…', inputs=rows)."
        raise UsageError("agac.run takes either a workflow or a task", remedy=remedy)
    if task is None:
        refuse_for_workflow(keys if inputs is None else {"inputs": inputs})
        return await asynchronous(run_workflow)(workflow, options, **keys)
    asked = await _one(task, inputs, keys | ({} if options is None else {"options": options}))
    found = AgentRun()
    found.report = await _run(asked)
    async for some in asked.task.results(asked.more["project"]):
        found += some
    return found


run = calling(arun)


async def astream(
    task: str, inputs: Inputs, **keys: Unpack[TaskKeys]
) -> AsyncGenerator[AgentResult]:
    """The results of a task as its rows end; those of rows that ended in an earlier run of it come
    last. Arguments and errors are those of `arun`; where rows are left, as at a budget, an
    AgacError that says why follows the results. Who leaves it early begins no new call: those in
    flight are finished and stored, and the same call resumes. Of the awaited form
    `contextlib.aclosing` makes that happen at once."""
    asked = await _one(task, inputs, dict(keys))
    built = asked.task
    root = asked.more["project"]
    interrupts = INTERRUPTS.get(None) or Interrupts()
    context = copy_context()
    context.run(INTERRUPTS.set, interrupts)
    work = interrupts.task = asyncio.create_task(_run(asked), context=context)
    work.add_done_callback(lambda _: built.news.set())
    try:
        ended = False
        while not ended:
            await built.news.wait()
            built.news.clear()
            ended = work.done()
            async with aclosing(built.followed(root)) as pages:
                async for some in pages:
                    for one in some:
                        yield one
        report = await work
        async with aclosing(built.results(root, untold=True)) as pages:
            async for some in pages:
                for one in some:
                    yield one
        if report.rows.open and not interrupts.count:  # a part is not to be taken for the whole
            why = report.stopped or "their batches are open"
            message = f"{counted(report.rows.open, 'row')} of the task did not end: {why}"
            raise AgacError(message, remedy="Raise the limit, or wait; the same call resumes it.")
    except GeneratorExit:
        if not interrupts.count:
            interrupts.interrupt()
        raise
    finally:
        if isinstance(sys.exception(), asyncio.CancelledError):
            work.cancel()
        await asyncio.wait({work})


stream = iterating(astream)


@typed
async def amap_reduce(
    *,
    map: str | Phase | Mapping[str, Any],  # noqa: A002 - the phase's name
    reduce: str | Phase | Mapping[str, Any],
    plan: str | Phase | Mapping[str, Any] | None = None,
    inputs: Any = None,
    **keys: Unpack[SharedKeys],
) -> tuple[AgentRun, AgentResult]:
    """Asks for a plan, does something with each of its `items`, and makes one answer of what came
    of them: gives the results of the items, in their order, and that answer. A phase is a prompt,
    an `agac.Phase`, or the keys of a stage (`prompt`, `output_schema`, `model`, `tools`, …).
    `plan` sees the fields of `inputs`, one row; `map` sees `{item}` and its place `{index}`, from
    0; `reduce` gets the items and their results as `{rows_json}`, which is put below a prompt that
    does not name it, with `{rows_count}` and `{rows_failed}`; a function of the project (`python`)
    is given them as a list, and its dict is the answer. Without a plan `inputs` are the items, and
    `id_field` may be a field of them. Other keys hold for all phases that ask a model and do not
    say otherwise; an `output_schema` for `map` and `reduce`, as a plan has `items`. All of it is
    one run in the store: the same call again pays nothing. Errors are those of `arun`."""
    refuse_keys("agac.map_reduce", keys, NOT_SHARED)
    of_run, shared = _parted(keys)
    given = {"plan": plan, "map": map, "reduce": reduce}
    phases = {
        name: _keys_of_phase(name, phase) for name, phase in given.items() if phase is not None
    }
    stages = [_phase(name, phase, shared) for name, phase in phases.items()]
    *before, mapping, reducing = stages
    reducing |= {"group_by": []}
    if before:
        mapping["explode"] = "plan.items"
        if inputs is None or isinstance(inputs, Mapping | str):
            inputs = [inputs or {}]
        else:
            inputs = inputs
    else:
        inputs = await _items(inputs, of_run.get("id_field"))
    places = dict[str, str]()
    for at, name in enumerate(phases):
        places |= {f"stages[{at}]": name} | {
            f"stages[{at}].{key}": key for key in shared.keys() - phases[name].keys()
        }
    asked = await _asked(stages, inputs, of_run, _model(reducing.get("output_schema")), places)
    report = await _run(asked)
    root = asked.more["project"]
    built = asked.task
    answers = [one async for some in built.results(root) for one in some]
    built.kind = _model(mapping.get("output_schema"))
    found = AgentRun()
    found.report = report
    async for some in built.results(root, stage="map"):
        found += some
    if not answers:  # no item came to the last phase
        what = report.stopped or "there is no item of which an answer could be made"
        why = next(
            (one.error for one in found if one.error is not None),
            RowError(ErrorType.INVALID_ROW, what),
        )
        answers.append(AgentResult("all", None, why, Usage(), 0.0, 0, {}))
    found[:] = [one for one in found if "item" in one.input]  # a plan that failed is none
    return found, answers[0]


map_reduce = calling(amap_reduce)


async def _items(inputs: Any, id_field: str | None) -> list[dict[str, Any]]:
    """The rows of items: each with its place, and with the field of its id where it has one."""
    items = inputs.to_list() if hasattr(inputs, "to_list") else inputs  # a column
    if isinstance(items, AsyncIterable):
        items = [one async for one in items]
    else:
        items = each_row(items)
    rows = [{"item": item, "index": index} for index, item in enumerate(items)]
    if id_field is None or id_field in ("item", "index"):
        return rows
    for row in rows:
        item = _row(row["item"])
        row |= {id_field: item[id_field]} if isinstance(item, Mapping) and id_field in item else {}
    return rows


def _keys_of_phase(name: str, phase: str | Mapping[str, Any]) -> dict[str, Any]:
    keys = {"prompt": phase} if isinstance(phase, str) else dict(phase)
    refuse_keys(f"agac.map_reduce: {name}", keys, NOT_OF_PHASES)
    return keys


def _phase(name: str, keys: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """The stage of a phase. Without a model, as of a function, it has its own keys alone."""
    if keys.get("python") is not None:
        return _stage(name, keys)
    own = {"output_schema": {"items": "string[]"}} if name == "plan" else {}
    stage = _stage(name, {"syntax": "auto", **own, **with_shared(keys, shared, own)})
    prompt = stage.get("prompt")
    if (
        name == "reduce"
        and isinstance(prompt, str)
        and ROWS_JSON not in prompt
        and re.search(r"\s", prompt)
    ):
        template, _ = compile_template(prompt, Where("reduce"), stage["syntax"])
        rows = in_syntax(f"${{{ROWS_JSON}}}", template.syntax if template else "dollar")
        stage["prompt"] = f"{prompt}\n\n{rows}"
    return stage


# One row, to see what an AgentCard does.


@dataclass(frozen=True, slots=True)
class TrialReport(Report):
    """One row asked of an AgentCard: what came of it in which run, its `turns` with their calls of
    tools as `inspect` has them, how many calls of the model were answered, their tokens, and what
    they cost."""

    card: str
    run: int
    row: RowId
    output: Any
    error: RowError | None
    turns: list[dict[str, Any]]
    replies: int
    usage: Usage
    cost_usd: Annotated[float | None, usd]
    simulated: bool


@calling
async def try_card(
    name: str,
    message: str | None = None,
    *,
    row: str | None = None,
    options: RunOptions | None = None,
    project: Path | str | None = None,
) -> TrialReport:
    """Asks an AgentCard about a `message`, or about a `row`, as `FILE:N`, from 1, which it gets as
    JSON. With `options.tools_mode` or `tool_stubs` its tools are stand-ins. Errors are those of
    `arun`."""
    file, _, number = (row or "").rpartition(":")
    if (message is None) == (row is None) or (
        row is not None and not (file and number.isdigit() and int(number))
    ):
        remedy = "Write the message in quotes, or --row FILE:N with the number of a row from 1."
        raise UsageError(f"card {name}: one message or one row is asked", remedy=remedy)
    keys: dict[str, Any] = {"agent": name, "project": project, "options": options or RunOptions()}
    if message is None:
        keys["options"] = replace(keys["options"], limit=1, offset=int(number) - 1)
    asked = await _one("{{row_json}}" if message is None else "{input}", file or [message], keys)
    asked.task.places["input"] = Where("--row")  # type: ignore[index]  # of a task they are a dict
    report = await _run(asked)
    root = asked.more["project"]
    run = asked.task.run
    found = [one async for some in asked.task.results(root) for one in some]
    if not found:
        raise UsageError(
            f"{row} is not there", remedy="The file has fewer rows; count them from 1."
        )
    (one,) = found
    (seen, *_) = (await asynchronous(inspect)(run, one.row_id, project=root)).rows or [
        {"stages": [{}]}
    ]
    turns = seen["stages"][0].get("turns", [])
    simulated = report.record.calls.cost.is_simulated
    return TrialReport(
        name,
        run,
        one.row_id,
        one.output,
        one.error,
        turns,
        one.turns,
        one.usage,
        one.cost,
        simulated,
    )
