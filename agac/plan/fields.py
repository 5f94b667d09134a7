"""Checks that all names in a workflow's stages exist: in texts, keys and conditions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from agac.core.errors import Problem, did_you_mean
from agac.data.sources import FirstRows
from agac.plan.conditions import condition_problems
from agac.plan.field_paths import (
    inner_fault,
    no_list_fault,
    optional_fault,
    path_fault,
    problem_of,
)
from agac.plan.placeholders import text_problems
from agac.plan.scopes import GROUP_NAMES, Named, StageScope, input_fields, stage_scopes
from agac.spec.graph import stage_of
from agac.spec.operations import Dedupe, Group, Rename, Review, Select
from agac.spec.templates import INDEX, ITEM, VARS
from agac.spec.workflow import Workflow

Fault = tuple[str, str | None]
"""A key of a stage, and what is wrong with what it names; None: nothing."""


def check_placeholders(
    workflow: Workflow, columns: tuple[str, ...] | None, first: FirstRows | None = None
) -> list[Problem]:
    """Finds every placeholder that nothing can satisfy, and every key that names a field that rows
    do not have.

    `columns` are the input's declared ones, None if rows bring theirs: then a name that none of
    the `first` rows has is an error, and another unknown one a warning, as some may have it."""
    problems = list[Problem]()
    read = set[str]()
    for scope in stage_scopes(workflow, input_fields(workflow, columns, first)):
        stage = scope.stage
        written_stage = stage_of(stage.name)
        problems += [
            problem_of(stage.at(key), message) for key, message in _key_faults(scope) if message
        ]
        if written_stage not in read:  # the parts of a stage have the same texts
            problems += text_problems(scope)
        read.add(written_stage)
        problems += _visible_problems(scope)
        problems += condition_problems(scope)
    return problems


def _key_faults(scope: StageScope) -> Iterator[Fault]:
    """Yields what is wrong with each field that a key of the stage names."""
    stage = scope.stage
    rows = scope.incoming or scope
    if stage.explode is not None:
        yield from _explode_faults(stage.explode, rows)
    if stage.group is not None:
        yield from _group_faults(stage.group, rows)
    match stage.operation:
        case Dedupe(fields):
            for path in fields:
                yield "dedupe", path_fault(path, rows) or optional_fault(path, rows)
        case Review() as review:
            yield from (("review", message) for message in _review_faults(review, scope))
        case Select(names):
            yield from (("select", message) for message in _lacking_faults(names, scope))
        case Rename(new_names):
            yield from (("rename", message) for message in _lacking_faults(new_names, scope))
            yield from (("rename", message) for message in _taken_faults(new_names, scope))


def _explode_faults(path: tuple[str, ...], rows: StageScope) -> Iterator[Fault]:
    fault = path_fault(path, rows) or no_list_fault(path, rows) or optional_fault(path, rows)
    yield "explode", fault
    for name in (ITEM, INDEX):
        if name in rows.fields.shapes and name not in rows.fields.made:
            message = (
                f"rows have a field {name!r}, and those that are made of items get agac's own "
                f"{name!r}; rename the field first"
            )
            yield "explode", message


def _group_faults(group: Group, rows: StageScope) -> Iterator[Fault]:
    for path in group.fields:
        yield "group_by", path_fault(path, rows) or optional_fault(path, rows)
    for name in dict.fromkeys(path[0] for path in group.fields):
        if name in (*GROUP_NAMES, VARS):
            message = (
                f"{name!r} is a name of agac's own in the prompt of a group; rename the field first"
            )
            yield "group_by", message


def _lacking_faults(names: Collection[str], scope: StageScope) -> Iterator[str]:
    """Yields the fields that are to be kept or renamed and are not there."""
    shapes = scope.fields.shapes
    for name in names:
        label_fault = scope.label_fault(name)
        if label_fault:
            yield label_fault
        elif name in shapes:
            continue
        elif not scope.fields.open:
            hint = did_you_mean(name, shapes)
            yield f"names the field {name!r}, which rows do not have; {hint}"
        else:
            first = scope.first_lacking((name,))
            if first is not None:
                hint = did_you_mean(name, first.names())
                yield f"names the field {name!r}, which {first.words()} has; {hint}"


def _taken_faults(new_names: Mapping[str, str], scope: StageScope) -> Iterator[str]:
    """Yields the fields that cannot have their new names."""
    if scope.fields.open:
        return
    kept = scope.fields.shapes.keys() - new_names.keys()
    for old, new in new_names.items():
        if new in kept:
            yield f"{old!r} cannot become {new!r}: rows have that field already"


def _review_faults(review: Review, scope: StageScope) -> Iterator[str | None]:
    """Yields what people cannot be asked or shown."""
    judged = scope.earlier[review.edit]
    without_schema = judged.shape == {} and judged.output_schema is None
    if judged.operation is not None:
        yield (
            f"{review.edit!r} asks no model, so that there is no answer to decide on; "
            "name a stage that asks one as `edit`, or add one before this stage"
        )
    elif without_schema and "edit" in review.choices:
        yield (
            f"{review.edit!r} has no output_schema, by which an edited value could be checked; "
            "give it one, or write `choices: [approve, reject]`"
        )
    for path in review.show:
        yield path_fault(path, scope)
    if review.blind and any(path[0] == review.edit for path in review.show):
        yield (
            f"`blind` rows come without the answer, and `show` has {review.edit!r}; remove "
            "the one or the other"
        )
    if review.agree is not None:
        yield inner_fault((review.edit, *review.agree.split(".")), scope)


def _visible_problems(scope: StageScope) -> list[Problem]:
    """Returns the names of `visible` that are none: a slip there would send what was to stay."""
    stage = scope.stage
    limits = stage.visibility
    rows = scope.rows
    if limits is None or rows.fields.open:
        return []
    fields = dict.fromkeys((*rows.fields.shapes, *scope.fields.shapes))
    names = tuple(dict.fromkeys((*fields, *scope.every_stage)))
    usable: Collection[str]
    problems = []
    for key, named, usable in (
        ("only", limits.only or (), fields),
        ("never", limits.never, Named(rows, fields)),
    ):
        where = replace(stage.at("visible"), path=f"{stage.path}.visible.{key}")
        for name in sorted(named):
            if name not in usable:
                hint = did_you_mean(name, names, among=usable)
                problems.append(Problem(where, f"names {name!r}, which does not exist; {hint}"))
    return problems
