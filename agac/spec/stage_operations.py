"""What a stage does in the place of asking a model, read from its keys: operations, reviews and
groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agac.core.errors import Path_, Problem, did_you_mean
from agac.spec.graph import StageNode
from agac.spec.guards import compile_guard
from agac.spec.models import StageFile
from agac.spec.operations import (
    Dedupe,
    Filter,
    Group,
    Operation,
    Python,
    Rename,
    Review,
    Select,
    ways,
)
from agac.spec.python_code import parse_reference
from agac.spec.stage_models import RedoFile, ReviewFile
from agac.spec.yaml import Document


def group_of(written: StageFile) -> Group | None:
    """Returns how the stage makes groups; None if it makes none."""
    if written.group_by is None:
        return None
    bounds = dict(written.reduce) if written.reduce else {}
    return Group(ways(written.group_by), **bounds, incomplete=written.incomplete)


def operation_of(
    written: StageFile, node: StageNode, document: Document, at: Path_, root: Path
) -> tuple[Operation | None, list[Problem]]:
    """Reads what a stage does in the place of asking a model; None when something is wrong with
    it."""
    if written.review is not None:
        return _review(written.review, node, document, (*at, "review"))
    where = document.where((*at, written.operations[0]))
    if written.python is not None:
        function, problems = parse_reference(written.python, where, root)
        timeout = written.timeout.total if written.timeout else None
        return (Python(function, written.processes, timeout) if function else None), problems
    if written.filter is not None:
        guard, problems = compile_guard(written.filter, where)
        return (Filter(guard) if guard else None), problems
    if written.select is not None:
        return Select(tuple(written.select)), []
    if written.rename is not None:
        return Rename(written.rename), []
    return Dedupe(ways(written.dedupe or ())), []


def _review(
    written: ReviewFile, node: StageNode, document: Document, at: Path_
) -> tuple[Review | None, list[Problem]]:
    """Reads what people are asked at a stage."""
    guard = None
    problems = list[Problem]()
    if written.when is not None:
        guard, problems = compile_guard(written.when, document.where((*at, "when")))
    problems += _review_problems(written, node, document, at)
    if problems or node.amends is None:
        return None, problems
    same_keys = ReviewFile.model_fields.keys() - {"when", "edit", "show", "choices", "redo"}
    values: dict[str, Any] = {name: getattr(written, name) for name in same_keys}
    choices = dict.fromkeys([*written.choices, *(["redo"] if written.redo else [])])
    redo = written.redo or RedoFile()
    values["choices"] = tuple(choices)
    values["redo"] = redo.max if "redo" in choices else 0
    return Review(node.amends, guard, show=ways(written.show), **values), []


def _review_problems(
    written: ReviewFile, node: StageNode, document: Document, at: Path_
) -> list[Problem]:
    """Finds stages that a review names and cannot decide on, or that it has to name."""
    if node.amends is not None:
        redo = written.redo
        if redo is None or redo.stage in (None, node.amends):
            return []
        message = (
            f"the stage that is asked again is {node.amends!r}, on whose result people "
            "decide; write that"
        )
        return [document.problem((*at, "redo", "stage"), message)]
    if written.edit is not None:
        if node.ancestors:
            hint = did_you_mean(written.edit, node.ancestors, "stages")
        else:
            hint = "add a stage before it, which asks a model"
        message = f"names {written.edit!r}, which is not upstream of this stage; {hint}"
        return [document.problem((*at, "edit"), message)]
    remedy = "add a stage before it, which asks a model"
    if node.ancestors:
        remedy = "name it: `edit: STAGE`"
    needed = len(node.needs) or "none"
    message = (
        f"people decide on the result of one stage, and {node.name!r} needs {needed}; {remedy}"
    )
    return [document.problem(at, message, key=True)]
