"""Finds keys of a stage that do not go together, or that have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from agac.core.errors import Path_, Problem
from agac.spec.default_models import DefaultsFile
from agac.spec.models import StageFile
from agac.spec.workflow import WrittenStage
from agac.spec.yaml import Document

_DAY = 86_400.0

_ASKING = DefaultsFile.model_fields.keys() | {
    "agent",
    "instructions",
    "prompt",
    "template",
    "messages",
    "output_schema",
    "output_field",
    "reply",
    "visible",
    "budget",
    "group_by",
    "reduce",
    "incomplete",
    "replicas",
    "vote",
    "tools",
    "max_turns",
    "tools_mode",
    "tool_stubs",
    "on_tool_failure",
    "reads",
    "skills",
    "expect",
    "escalate",
    "runtime",
}
"""Keys that only mean something where a model is asked."""

_OF_FUNCTIONS = {"timeout", "checks", "group_by", "incomplete"}
"""Keys of stages that ask a model or call a function, and of no others."""


def misplaced_keys(written: StageFile, document: Document, path: Path_) -> list[Problem]:
    """Finds keys that do not go with what the stage does."""
    faults = [
        *_operation_faults(written),
        *_combination_faults(written),
        *_function_faults(written),
    ]
    return [document.problem((*path, key), message, key=True) for key, message in faults]


def _operation_faults(written: StageFile) -> Iterator[tuple[str, str]]:
    """Yields a second operation, and keys that the first one does not know; each key with its
    message."""
    operations = written.operations
    if not operations:
        return
    if len(operations) > 1:
        several = " and ".join(operations)
        message = f"a stage does one thing; this one has {several}: make a stage of each"
        yield operations[1], message
    if operations[0] == "python":
        misplaced = _ASKING - _OF_FUNCTIONS
    else:
        misplaced = _ASKING | _OF_FUNCTIONS
    for key in sorted(misplaced & written.model_fields_set):
        yield key, _of_other_stages(key, operations[0])


def _combination_faults(written: StageFile) -> Iterator[tuple[str, str]]:
    """Yields keys that one stage cannot have together, each with its message."""
    if written.explode is not None and written.dedupe is not None:
        yield "explode", "explode makes rows and dedupe drops some of them; make a stage of each"
    if written.explode is not None and written.review is not None:
        yield (
            "explode",
            "explode makes rows and review decides on results of others; make a stage of each",
        )
    if written.when is not None and written.dedupe is not None:
        yield (
            "when",
            "dedupe looks at all rows that come to it; put the condition into a filter before it",
        )


def _function_faults(written: StageFile) -> Iterator[tuple[str, str]]:
    """Yields `processes` and `timeout` where a function cannot have them, each with its message."""
    if written.python is None:
        if written.processes is not None:
            yield (
                "processes",
                "processes says where a function runs; add python, or remove processes",
            )
        return
    if written.timeout is None:
        return
    if written.processes is None:
        yield (
            "timeout",
            "a function can only be ended with its process; add processes, such as `processes: 4`",
        )
    elif written.timeout.model_fields_set != {"total"}:
        yield "timeout", "for a function write the seconds of a whole call, such as `timeout: 30`"


def _of_other_stages(key: str, operation: str) -> str:
    """Returns the message for a key that a stage with `operation` cannot have."""
    if key == "reduce" and operation == "python":
        return "a function is given all rows of a group at once, so that none is cut; remove reduce"
    if key == "group_by":
        groups = "add a stage with group_by before or after it, which asks a model or has `python`"
        return f"a stage with {operation} works on single rows; remove group_by, or {groups}"
    return (
        f"a stage with {operation} asks no model; remove {key}, or move it to a stage that asks one"
    )


def rule_problems(stage: WrittenStage) -> Iterator[Problem]:
    """Yields rules for retries and batches that contradict themselves, or have no effect."""
    yield from _retry_problems(stage)
    if stage.settings.run_mode == "sync":
        yield from _unused_batch(stage)
        return
    yield from _deadline_problems(stage)
    yield from _round_problems(stage)


def _retry_problems(stage: WrittenStage) -> Iterator[Problem]:
    """Yields a first wait that is longer than the longest one."""
    retries = stage.settings.retries
    if retries.delay <= retries.max_delay:
        return
    message = (
        f"{retries.delay:g} s is longer than max_delay, {retries.max_delay:g} s; raise "
        "max_delay too"
    )
    key = "retries.delay" if "retries.delay" in stage.levels else "retries.max_delay"
    yield Problem(stage.at(key), message)


def _unused_batch(stage: WrittenStage) -> Iterator[Problem]:
    """Yields a warning for rules of batches that the stage itself has, though it runs without."""
    levels = stage.levels
    has_rules = any(level == "stage" and key.startswith("batch.") for key, level in levels.items())
    if has_rules and levels.get("run_mode") != "override":
        message = (
            "has no effect: the stage runs in sync mode; add `run_mode: batch`, or remove batch"
        )
        yield Problem(stage.at("batch"), message, "warning")


def _deadline_problems(stage: WrittenStage) -> Iterator[Problem]:
    """Yields a deadline that no batch reaches, or what happens at one that there is not."""
    deadline = stage.settings.batch.deadline
    if deadline is None and "batch.on_deadline" in stage.levels:
        message = "says what happens at the deadline; add deadline, or remove on_deadline"
        yield batch_problem(stage, "on_deadline", message)
    if isinstance(deadline, float) and deadline > 30 * _DAY:
        days = f"{deadline / _DAY:g} days"
        message = f"{days} is longer than any provider keeps a batch; write 30d or less"
        yield batch_problem(stage, "deadline", message)


def _round_problems(stage: WrittenStage) -> Iterator[Problem]:
    """Yields a warning for `max_rounds` where no request comes into a second batch."""
    rules = stage.settings.batch
    if rules.retry == "batch" or rules.max_rounds <= 1:
        return
    if stage.levels.get("batch.max_rounds") == stage.levels["batch.retry"]:
        message = (
            f"has no effect with retry: {rules.retry}, which puts no request into a second "
            "batch; remove one"
        )
        yield batch_problem(stage, "max_rounds", message, warning=True)


def batch_problem(stage: WrittenStage, key: str, message: str, *, warning: bool = False) -> Problem:
    """Returns a problem with a key of a stage's `batch`, at the level that set it."""
    return Problem(stage.at(f"batch.{key}"), message, "warning" if warning else "error")
