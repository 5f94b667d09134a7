"""`agac.map_reduce`: makes a plan, does something with each of its items, and makes one answer of
what came of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any, Unpack

from agac.api.sync import calling
from agac.api.task_keys import (
    NOT_OF_PHASES,
    NOT_SHARED,
    Phase,
    SharedKeys,
    refuse_keys,
    with_shared,
)
from agac.api.task_workflow import (
    AgentResult,
    AgentRun,
    PreparedTask,
    fields_of_row,
    model_of_schema,
    prepare_task,
    split_keys,
    stage_of_keys,
)
from agac.core.arguments import typed
from agac.core.errors import ErrorType, RowError, Where
from agac.core.types import Usage
from agac.data.frames import each_row
from agac.spec.templates import ROWS_JSON, compile_template, in_syntax


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
    of them. Returns the results of the items, in their order, and that answer.

    A phase is a prompt, an `agac.Phase`, or the keys of a stage (`prompt`, `output_schema`,
    `model`, `tools`, …). `plan` sees the fields of `inputs`, one row; `map` sees `{item}` and its
    number `{index}`, from 0; `reduce` gets the items and their results as `{rows_json}`, which is
    put below a prompt that does not name it, with `{rows_count}` and `{rows_failed}`; a function of
    the project (`python`) gets them as a list, and its dict is the answer. Without a plan `inputs`
    are the items, and `id_field` may be a field of them.

    Other keys hold for all phases that ask a model and do not say otherwise; an `output_schema` for
    `map` and `reduce`, as a plan has `items`. All of it is one run in the store: the same call
    again pays nothing. Errors are those of `arun`."""
    refuse_keys("agac.map_reduce", keys, NOT_SHARED)
    run_keys, shared = split_keys(keys)
    phases = {
        name: _keys_of_phase(name, phase)
        for name, phase in (("plan", plan), ("map", map), ("reduce", reduce))
        if phase is not None
    }
    stages = [_stage_of_phase(name, phase, shared) for name, phase in phases.items()]
    mapping, reducing = stages[-2:]
    reducing["group_by"] = []
    if plan is None:
        inputs = await _item_rows(inputs, run_keys.get("id_field"))
    else:
        mapping["explode"] = "plan.items"
        if inputs is None or isinstance(inputs, Mapping | str):
            inputs = [inputs or {}]
    places = _places(phases, shared)
    prepared = await prepare_task(stages, inputs, run_keys, reducing.get("output_schema"), places)
    return await _run(prepared, mapping.get("output_schema"))


map_reduce = calling(amap_reduce)


async def _run(prepared: PreparedTask, item_schema: Any) -> tuple[AgentRun, AgentResult]:
    """Runs the phases, and reads the results of the items and the answer."""
    report = await prepared.run()
    task = prepared.task
    answers = [answer async for page in task.results(prepared.root) for answer in page]
    task.kind = model_of_schema(item_schema)
    results = AgentRun()
    results.report = report
    async for page in task.results(prepared.root, stage="map"):
        results += page
    if not answers:  # no item came to the last phase
        reason = report.stopped or "there is no item of which an answer could be made"
        error = next(
            (result.error for result in results if result.error is not None),
            RowError(ErrorType.INVALID_ROW, reason),
        )
        answers.append(AgentResult("all", None, error, Usage(), 0.0, 0, {}))
    # the row of a plan that failed is no item
    results[:] = [result for result in results if "item" in result.input]
    return results, answers[0]


async def _item_rows(inputs: Any, id_field: str | None) -> list[dict[str, Any]]:
    """Makes rows of items: each with its number, and with the field of its id if it has one."""
    items = inputs.to_list() if hasattr(inputs, "to_list") else inputs  # a column of a frame
    if isinstance(items, AsyncIterable):
        items = [item async for item in items]
    else:
        items = each_row(items)
    rows = [{"item": item, "index": index} for index, item in enumerate(items)]
    if id_field is None or id_field in ("item", "index"):
        return rows
    for row in rows:
        fields = fields_of_row(row["item"])
        if isinstance(fields, Mapping) and id_field in fields:
            row[id_field] = fields[id_field]
    return rows


def _keys_of_phase(name: str, phase: str | Mapping[str, Any]) -> dict[str, Any]:
    """Gives the keys of a phase. Raises UsageError for one that a phase does not have."""
    keys = {"prompt": phase} if isinstance(phase, str) else dict(phase)
    refuse_keys(f"agac.map_reduce: {name}", keys, NOT_OF_PHASES)
    return keys


def _places(phases: Mapping[str, Mapping[str, Any]], shared: Iterable[str]) -> dict[str, str]:
    """Gives by the key of a stage the argument that messages name: the phase, or a shared key."""
    places = dict[str, str]()
    for number, (name, phase) in enumerate(phases.items()):
        places[f"stages[{number}]"] = name
        for key in shared:
            if key not in phase:
                places[f"stages[{number}].{key}"] = key
    return places


def _stage_of_phase(
    name: str, keys: Mapping[str, Any], shared: Mapping[str, Any]
) -> dict[str, Any]:
    """Makes the stage of a phase. One without a model, as of a function, has its own keys alone."""
    if keys.get("python") is not None:
        return stage_of_keys(name, keys)
    own = {"output_schema": {"items": "string[]"}} if name == "plan" else {}
    stage = stage_of_keys(name, {"syntax": "auto", **own, **with_shared(keys, shared, own)})
    prompt = stage.get("prompt")
    if name == "reduce" and isinstance(prompt, str) and _lacks_rows(prompt):
        template, _ = compile_template(prompt, Where("reduce"), stage["syntax"])
        rows = in_syntax(f"${{{ROWS_JSON}}}", template.syntax if template else "dollar")
        stage["prompt"] = f"{prompt}\n\n{rows}"
    return stage


def _lacks_rows(prompt: str) -> bool:
    """True if a prompt, and not the name of a prompt's file, does not name the rows."""
    return ROWS_JSON not in prompt and re.search(r"\s", prompt) is not None
