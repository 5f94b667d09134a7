"""Checks of batch stages against the batches of their providers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pydantic_core import PydanticCustomError

from agac.core.errors import Problem, Where, lack_of
from agac.plan.plan import Models
from agac.plan.resolved_models import with_places
from agac.plan.stage import PlannedModel
from agac.providers.provider import BatchTraits, Provider
from agac.spec.stage_checks import batch_problem
from agac.spec.validation import duration
from agac.spec.workflow import Workflow, WrittenStage


def check_batches(workflow: Workflow, models: Models) -> list[Problem]:
    """Finds batch stages whose providers cannot do what they are to do, and keys that have no
    effect on batches."""
    stages = [
        stage
        for stage in workflow.asking
        if stage.settings.run_mode == "batch" and stage.name in models
    ]
    problems: list[Problem] = []
    without_batches: list[tuple[WrittenStage, Provider]] = []
    for stage in stages:
        model = models[stage.name][0]
        if model.provider.batch is None:
            without_batches.append((stage, model.provider))
            continue
        problems += _trait_problems(stage, model.provider.name, model.provider.batch)
        problems += _server_problems(stage)
        problems += _connection_warnings(stage, model)
        for where, one_model in with_places(stage, models[stage.name]):
            problems += _parameter_problems(where, one_model)
    if stages and len(stages) == len(workflow.asking) and workflow.rules.ttft:
        message = "ttft has no effect in batch mode, in which no answer is streamed; remove it"
        problems.append(Problem(workflow.rules.where, message, "warning"))
    problems += _without_batches(without_batches)
    return list(dict.fromkeys(problems))


def _server_problems(stage: WrittenStage) -> Iterator[Problem]:
    """Yields the MCP servers that need a session for longer than a turn."""
    for server in stage.settings.tooling.servers:
        if server.state:
            message = (
                f"batches end a session with each turn, and server {server.name!r} "
                "keeps a state in it; write `run_mode: sync` for the stage"
            )
            yield Problem(stage.at("run_mode"), message)


def _connection_warnings(stage: WrittenStage, model: PlannedModel) -> Iterator[Problem]:
    """Yields keys about connections, if the stage makes no calls outside of batches."""
    rules = stage.settings.batch
    calls_late_rows = rules.deadline is not None and rules.on_deadline == "sync"
    if rules.retry == "sync" or calls_late_rows or stage.levels.get("run_mode") == "override":
        return
    for key in ("transport", "idle_timeout"):
        if getattr(model, key) is not None:
            message = (
                f"{key} has no effect in batch mode, where no connection stays open; leave it out"
            )
            yield Problem(stage.at("model"), message, "warning")


def _without_batches(stages: list[tuple[WrittenStage, Provider]]) -> Iterator[Problem]:
    """Yields one problem for all stages in which the same key names a provider without batches."""
    names_of: dict[tuple[Where, str, str], list[str]] = {}
    for stage, provider in stages:
        shared = (stage.at("run_mode"), provider.name, provider.without_batches)
        names_of.setdefault(shared, []).append(repr(stage.name))
    for (where, provider_name, remedy), names in names_of.items():
        if len(names) == 1:
            listed_stages = f"stage {names[0]}"
        else:
            listed_stages = f"stages {', '.join(names[:-1])} and {names[-1]}"
        message = (
            f"provider {provider_name!r} of {listed_stages} has no batches that agac knows; "
            f"{remedy}"
        )
        yield Problem(where, message)


def _trait_problems(stage: WrittenStage, provider: str, traits: BatchTraits) -> Iterator[Problem]:
    """Yields what a stage's `batch` asks of batches beyond what the provider's can do."""
    rules = stage.settings.batch
    for key in ("max_requests", "max_bytes"):
        wanted = getattr(rules, key)
        most = getattr(traits, key)
        if wanted is not None and wanted > most:
            unit = key.removeprefix("max_")
            message = f"{provider} takes at most {most:,} {unit} in a batch"
            yield batch_problem(stage, key, message)
    window = rules.completion_window
    if window is not None and window not in traits.windows:
        windows = ", ".join(traits.windows)
        message = f"{provider} has no window {window!r}; write {windows}, or leave it out"
        yield batch_problem(stage, "completion_window", message)
        return
    window = window or traits.windows[0]
    if isinstance(rules.deadline, float) and _ends_before(window, rules.deadline, traits):
        message = f"{provider} gives up after {window} by itself, which is sooner"
        yield batch_problem(stage, "deadline", message, warning=True)


def _ends_before(window: str, deadline: float, traits: BatchTraits) -> bool:
    """True if the provider gives up on a batch before the deadline, in seconds."""
    if not traits.expires:
        return False
    with suppress(PydanticCustomError):
        seconds = duration(window)
        return seconds is not None and deadline >= seconds
    return False


def _parameter_problems(where: Where, model: PlannedModel) -> Iterator[Problem]:
    """Yields parameters that batches of a model do not take, and the library that they need."""
    traits = model.provider.batch
    if traits is None:
        return
    for name, remedy in traits.unsupported.items():
        if getattr(model.params, name) is not None:
            provider = model.provider.name
            yield Problem(where, f"{name} cannot be asked for in batches of {provider}: {remedy}")
    if traits.api == "anthropic":
        lack = lack_of(f"batch mode of {model.provider.name}", "anthropic")
        if lack:
            yield Problem(where, lack)
