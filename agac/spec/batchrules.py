"""`run_mode` and `batch` of a stage: the strongest level's word for each key, and who said it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agac.core.errors import Path_, Problem, Where
from agac.spec.batchmodels import BatchFile
from agac.spec.models import DefaultsFile
from agac.spec.rounds import BatchRules
from agac.spec.workflow import Level, RunMode, WrittenStage
from agac.spec.yamlfile import Document

_DAY = 86_400.0


def batch_rules(
    levels: Mapping[Level, Mapping[str, Any]],
) -> tuple[RunMode, BatchRules, dict[str, Level]]:
    """A stage's run mode, its rules for batches, and the level of each key that is set. `levels`: weakest first."""
    mode: RunMode = "sync"
    rules: dict[str, Any] = {}
    said: dict[str, Level] = {}
    for level, values in levels.items():
        if "run_mode" in values:
            mode, said["run_mode"] = values["run_mode"], level
        for key, value in _written(values.get("batch")):
            rules[key], said[f"batch.{key}"] = value, level
    return mode, BatchRules(**rules), said


def _written(batch: BatchFile | None) -> Iterator[tuple[str, Any]]:
    for key in sorted(batch.model_fields_set) if batch else ():
        yield key, getattr(batch, key)


def places(written: DefaultsFile, document: Document, path: Path_) -> dict[str, Where]:
    """Where each key of the `batch` of one level stands, as `batch.key`."""
    return {f"batch.{key}": document.where((*path, "batch", key)) for key, _ in _written(written.batch)}


def rule_problems(stage: WrittenStage) -> Iterator[Problem]:
    """What in a stage's rules for batches contradicts itself, or has no effect."""
    own = [key for key, level in stage.mode_levels.items() if level == "stage" and key.startswith("batch.")]
    if stage.run_mode == "sync":
        if own and stage.mode_levels.get("run_mode") != "override":
            message = "has no effect: the stage runs in sync mode; add `run_mode: batch`, or remove batch"
            yield Problem(stage.at("batch"), message, stage.key("batch", "stage"), "warning")
        return
    rules = stage.batch
    if rules.deadline is None and "batch.on_deadline" in stage.mode_levels:
        yield said(stage, "on_deadline", "says what happens at the deadline; add deadline, or remove on_deadline")
    if isinstance(rules.deadline, float) and rules.deadline > 30 * _DAY:
        yield said(stage, "deadline", f"{rules.deadline / _DAY:g} days is longer than any provider keeps a batch")
    levels = stage.mode_levels
    if rules.retry != "batch" and rules.max_rounds > 1 and levels.get("batch.max_rounds") == levels["batch.retry"]:
        message = f"has no effect with retry: {rules.retry}, which puts no request into a second batch; remove one"
        yield said(stage, "max_rounds", message, warning=True)


def said(stage: WrittenStage, key: str, message: str, *, warning: bool = False) -> Problem:
    """A problem with a key of a stage's `batch`, at the level that set it."""
    name = f"batch.{key}"
    path = stage.key(name, stage.mode_levels.get(name, "stage"))
    return Problem(stage.at(name), message, path, "warning" if warning else "error")
