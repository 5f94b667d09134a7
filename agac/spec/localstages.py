"""Stages that ask no model, as they are written: which of their keys go together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agac.core.errors import Path_, Problem, key_path
from agac.spec.functions import parse_reference
from agac.spec.grouping import Group
from agac.spec.guards import compile_guard
from agac.spec.levels import Makes
from agac.spec.models import DefaultsFile, StageFile
from agac.spec.operations import OPERATIONS, Dedupe, Filter, Operation, Python, Rename, Select, made_by
from agac.spec.yamlfile import Document

_ASKING = frozenset(
    {
        "agent",
        "instructions",
        "prompt",
        "template",
        "messages",
        "output_schema",
        "output_field",
        "visible",
        "budget",
        "group_by",
        "reduce",
        "incomplete",
        "replicas",
        "vote",
    }
    | DefaultsFile.model_fields.keys()
)
"""Keys that only mean something where a model is asked."""


def operations_of(written: StageFile) -> list[str]:
    """The keys of a stage that say what it does in the place of asking a model."""
    return [key for key in OPERATIONS if getattr(written, key) is not None]


def makes_of(written: StageFile) -> Makes | None:
    """What a stage makes of rows."""
    return made_by(written.explode, written.group_by, next(iter(operations_of(written)), None))


def misplaced(written: StageFile, document: Document, path: Path_) -> list[Problem]:
    """Keys that do not go with what the stage does."""
    does = operations_of(written)
    problems = []
    if len(does) > 1:
        message = f"a stage does one thing; this one has {' and '.join(does)}: make a stage of each"
        problems.append(Problem(document.where((*path, does[1]), key=True), message, key_path((*path, does[1]))))
    for key in sorted(_ASKING & written.model_fields_set) if does else ():
        message = f"a stage with {does[0]} asks no model; remove {key}, or make a stage of its own of it"
        problems.append(Problem(document.where((*path, key), key=True), message, key_path((*path, key))))
    if written.explode is not None and written.dedupe is not None:
        at = (*path, "explode")
        message = "explode makes rows and dedupe drops some of them; make a stage of each"
        problems.append(Problem(document.where(at, key=True), message, key_path(at)))
    if written.when is not None and written.dedupe is not None:
        at = (*path, "when")
        message = "dedupe looks at all rows that come to it; put the condition into a filter before it"
        problems.append(Problem(document.where(at, key=True), message, key_path(at)))
    if written.processes is not None and written.python is None:
        at = (*path, "processes")
        message = "processes says where a function runs; add python, or remove processes"
        problems.append(Problem(document.where(at, key=True), message, key_path(at)))
    return problems


def ways(fields: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Fields as they are written, each by its parts."""
    return tuple(tuple(field.split(".")) for field in fields)


def exploded(written: StageFile) -> tuple[str, ...] | None:
    """The way to the list of whose items a stage makes rows, by its parts; None: it makes none."""
    return None if written.explode is None else tuple(written.explode.split("."))


def grouping(written: StageFile) -> Group | None:
    """How a stage makes groups; None: it makes none."""
    if written.group_by is None:
        return None
    fields, bounds = ways(written.group_by), written.reduce
    max_rows, max_tokens = (bounds.max_rows, bounds.max_tokens) if bounds else (None, None)
    return Group(fields, max_rows, max_tokens, written.incomplete or "use")


def operation(
    written: StageFile, document: Document, path: Path_, root: Path
) -> tuple[Operation | None, list[Problem]]:
    """What a stage does in the place of asking a model; None for one that asks, or when something is wrong with it."""
    if written.python is not None:
        at = (*path, "python")
        function, problems = parse_reference(written.python, document.where(at), key_path(at), root)
        return (Python(function, written.processes) if function else None), problems
    if written.filter is not None:
        at = (*path, "filter")
        guard, problems = compile_guard(written.filter, document.where(at), key_path(at))
        return (Filter(guard) if guard else None), problems
    if written.select is not None:
        return Select(tuple(written.select)), []
    if written.rename is not None:
        return Rename(written.rename), []
    if written.dedupe is not None:
        return Dedupe(ways(written.dedupe)), []
    return None, []
