"""The keys of a stage as its levels (project, defaults, card, stage, flag) set them, merged and
turned into values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from agac.core.errors import Path_, Where
from agac.spec import default_models, rules, stage_models, workflow
from agac.spec.default_models import DefaultsFile
from agac.spec.file_model import FileModel
from agac.spec.models import StageFile
from agac.spec.notify import NotifyTarget
from agac.spec.operations import Vote
from agac.spec.project import Overrides, ProjectSpec
from agac.spec.rule_models import BudgetFile, RowBudgetFile, RunRulesFile
from agac.spec.yaml import Document

Keys = TypeVar("Keys", bound=FileModel)

# what one level says of a stage, and where each of its keys stands
LevelKeys = tuple[FileModel, Mapping[str, Where]]

_VALUE_TYPES: dict[type[FileModel], type] = {
    BudgetFile: rules.Budget,
    RowBudgetFile: rules.RowBudget,
    default_models.TimeoutFile: rules.Timeout,
    default_models.BatchFile: rules.BatchRules,
    default_models.RetriesFile: rules.RetryRules,
    stage_models.VoteFile: Vote,
}
"""The types that mappings of files have in a Stage: the same keys, without how they were written.
"""

_COMPILED = {"needs", "prompt", "explode", "checks"}  # keys that a Stage has in another form
_SETTINGS = frozenset(item.name for item in fields(workflow.StageSettings))
_FIELDS = frozenset(item.name for item in fields(workflow.Stage)) | _SETTINGS
SAME = StageFile.model_fields.keys() & _FIELDS - _COMPILED
"""The keys of files that are fields of a Stage, or of its settings, as they stand."""


def merged(kind: type[Keys], *levels: FileModel) -> Keys:
    """Merges the keys of `kind` as these levels set them, weakest first; a key that none of them
    sets is at its default."""
    values: dict[str, Any] = {}
    for level in levels:
        for name in level.model_fields_set & kind.model_fields.keys():
            value = getattr(level, name)
            weaker = values.get(name)
            if isinstance(value, FileModel) and value.merges and isinstance(weaker, FileModel):
                value = merged(type(value), weaker, value)
            values[name] = value
    return with_defaults(kind, values)


def with_defaults(kind: type[Keys], values: Mapping[str, Any]) -> Keys:
    """Returns the mapping `kind` with these keys set, all others at their defaults."""
    return kind.model_construct(set(values), **{**_defaults(kind), **values})


@cache
def _defaults(kind: type[FileModel]) -> dict[str, Any]:
    """Returns the keys of `kind` at their defaults. Pydantic copies each default for each value: a
    third of a stage's time."""
    return dict(kind.model_construct())


def set_keys(level: FileModel) -> Iterator[str]:
    """Yields the keys that a level sets; those of a mapping that merges as `batch.deadline` too."""
    for name in sorted(level.model_fields_set):
        yield name
        value = getattr(level, name)
        if isinstance(value, FileModel) and value.merges:
            yield from (f"{name}.{inner}" for inner in set_keys(value))


def places_of(keys: FileModel, document: Document, path: Path_) -> dict[str, Where]:
    """Returns the place of each key that a mapping at `path` sets; keys of a mapping in it that
    merges are named as `batch.deadline`."""
    return {key: document.where((*path, *key.split("."))) for key in set_keys(keys)}


def run_rules(
    file: RunRulesFile, document: Document, project: ProjectSpec, overrides: Overrides
) -> rules.RunRules:
    """Merges the rules of a workflow: the command line's, then the workflow's, the project's; both
    files' budgets hold."""
    keys = merged(RunRulesFile, project.file, file)
    values = {
        key: getattr(keys, key)
        for key in RunRulesFile.model_fields
        if key in rules.RunRules.__slots__
    }
    values["confirm_above"] = keys.confirm_above.usd if keys.confirm_above else None
    notifying = document if "notify" in file.model_fields_set else project.document
    values["notify"] = _notify_targets(keys, notifying)
    if overrides.max_errors is not None:
        values["max_errors"] = overrides.max_errors
    typed_budget = overrides.budget
    timing = document if "ttft" in file.telemetry.model_fields_set else project.document
    return rules.RunRules(
        project=None if typed_budget else value_of(project.file.budget),
        workflow=typed_budget or value_of(file.budget),
        row=value_of(keys.row_budget),
        **values,
        telemetry_file=keys.telemetry.file,
        ttft=keys.telemetry.ttft,
        otel=keys.telemetry.otel,
        otel_sample=keys.telemetry.sample,
        otel_prompts=keys.telemetry.prompts,
        where=timing.where(("telemetry", "ttft")),
    )


def _notify_targets(rules: RunRulesFile, document: Document) -> tuple[NotifyTarget, ...]:
    """Returns the targets of `notify`, each with its place in `document`."""
    targets = []
    for index, target in enumerate(rules.notify):
        keys: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in target
        }
        targets.append(NotifyTarget(**keys, where=document.where(("notify", index))))
    return tuple(targets)


def value_of(written: Any) -> Any:
    """Converts a key's value to the form that a Stage has."""
    kind = _VALUE_TYPES.get(type(written))
    return written if kind is None else kind(**dict(written))


def same_fields(written: StageFile, keys: DefaultsFile) -> dict[str, Any]:
    """Returns the fields of a Stage that are keys of files: `keys` has those that several levels
    may give."""
    return {
        name: value_of(getattr(keys if name in DefaultsFile.model_fields else written, name))
        for name in SAME
    }


def with_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Puts those of these values that are settings into the field `settings` of a Stage."""
    settings = {name: value for name, value in values.items() if name in _SETTINGS}
    others = {name: value for name, value in values.items() if name not in _SETTINGS}
    return {**others, "settings": workflow.StageSettings(**settings)}
