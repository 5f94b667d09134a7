"""What `run_mode: batch` asks of a stage's models: that their providers have batches, and take them so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from pydantic_core import PydanticCustomError

from agac.core.errors import Problem, Where
from agac.plan.plan import ResolvedModel
from agac.providers.batches import BatchTraits
from agac.spec.batchrules import said
from agac.spec.modelchecks import duration
from agac.spec.workflow import Workflow, WrittenStage

_EXTRAS = {"anthropic": "anthropic"}
"""The libraries that a batch API needs beyond agac's own; the extras have their names."""


def check_batches(workflow: Workflow, models: Mapping[str, ResolvedModel]) -> list[Problem]:
    """Batch stages whose providers cannot do what they are to do, and keys that have no effect on batches. Fallbacks
    without batches are asked by calls."""
    problems: list[Problem] = []
    without: dict[tuple[Where, str, str], list[str]] = {}
    stages = [stage for stage in workflow.asking if stage.run_mode == "batch" and stage.name in models]
    for stage in stages:
        model = models[stage.name]
        if model.provider.batch is None:
            path = stage.key("run_mode", stage.mode_levels.get("run_mode", "stage"))
            without.setdefault((stage.at("run_mode"), path, model.provider.name), []).append(repr(stage.name))
            continue
        problems += _beyond(stage, model, model.provider.batch)
        problems += _unheard(stage, model)
        places = [("model", stage.key("model", stage.model_level))]
        places += [("fallback", f"{stage.path}.fallback")] * len(model.fallbacks)
        for (key, path), one in zip(places, (model, *model.fallbacks), strict=True):
            problems += _unfit(stage.at(key), path, one)
    if stages and len(stages) == len(workflow.asking) and workflow.rules.ttft:
        problems.append(_no_first_token(workflow))
    problems += [_no_batches(*place, names) for place, names in without.items()]
    return list(dict.fromkeys(problems))


def _no_batches(where: Where, path: str, provider: str, stages: list[str]) -> Problem:
    asked = f"stage {stages[0]}" if len(stages) == 1 else f"stages {', '.join(stages[:-1])} and {stages[-1]}"
    message = (
        f"provider {provider!r} of {asked} has no batches that agac knows; write `run_mode: sync` there, or, if the "
        f"endpoint speaks OpenAI's Batch API, `providers: {{{provider}: {{batch: openai}}}}` in agac.yml"
    )
    return Problem(where, message, path)


def _beyond(stage: WrittenStage, model: ResolvedModel, traits: BatchTraits) -> Iterator[Problem]:
    """More than the provider takes."""
    rules, name = stage.batch, model.provider.name
    if rules.max_requests is not None and rules.max_requests > traits.max_requests:
        yield said(stage, "max_requests", f"{name} takes at most {traits.max_requests:,} requests in a batch")
    if rules.max_bytes is not None and rules.max_bytes > traits.max_bytes:
        yield said(stage, "max_bytes", f"{name} takes at most {traits.max_bytes:,} bytes in a batch")
    window = rules.completion_window
    if window is not None and window not in traits.windows:
        known = ", ".join(traits.windows)
        yield said(stage, "completion_window", f"{name} has no window {window!r}; write {known}, or leave it out")
        return
    ends = _seconds(window or traits.windows[0])
    if isinstance(rules.deadline, float) and traits.expires and ends is not None and rules.deadline >= ends:
        message = f"{name} gives up after {window or traits.windows[0]} by itself, which is sooner"
        yield said(stage, "deadline", message, warning=True)


def _seconds(window: str) -> float | None:
    try:
        found: float = duration(window)
    except PydanticCustomError:
        return None
    return found


def _unheard(stage: WrittenStage, model: ResolvedModel) -> Iterator[Problem]:
    """What the model's string says of calls, where no call will be made."""
    rules, ref = stage.batch, model.ref
    calls = rules.retry == "sync" or (rules.deadline is not None and rules.on_deadline == "sync")
    if calls or stage.mode_levels.get("run_mode") == "override":
        return
    for key in ("transport", "idle_timeout"):
        if getattr(ref, key) is not None:
            message = f"{key} has no effect in batch mode, where no connection stays open; leave it out"
            yield Problem(stage.at("model"), message, stage.key("model", stage.model_level), "warning")


def _unfit(where: Where, path: str, model: ResolvedModel) -> Iterator[Problem]:
    """Parameters that batches of a model do not take, and the library that they need."""
    traits = model.provider.batch
    if traits is None:
        return
    for name, remedy in traits.unsupported.items():
        if getattr(model.params, name) is not None:
            yield Problem(where, f"{name} cannot be asked for in batches of {model.provider.name}: {remedy}", path)
    library = _EXTRAS.get(traits.api)
    if library is not None and find_spec(library) is None:
        message = (
            f"batches of {model.provider.name} want a library that is not installed: pip install 'agac[{library}]'"
        )
        yield Problem(where, message, path)


def _no_first_token(workflow: Workflow) -> Problem:
    key = "telemetry" if "telemetry" in workflow.rules.where else "project.telemetry"
    place = workflow.rules.where.get(key, Where(workflow.file))
    message = "ttft has no effect in batch mode, in which no answer is streamed; remove it"
    return Problem(place, message, "telemetry.ttft", "warning")
