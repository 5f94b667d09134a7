"""Checks of the placeholders in the texts of a stage: `${name}`, `${stage.field}`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from agac.core.errors import Problem, did_you_mean, listed, nearest
from agac.plan.field_paths import Doubt, is_asked_for, optional_part, problem_of
from agac.plan.scopes import GROUP_NAMES, Named, StageScope
from agac.spec import templates
from agac.spec.field_shapes import SINGLE, TEXT, FieldShape
from agac.spec.foreign_placeholders import foreign_placeholders
from agac.spec.templates import ROW_JSON, ROWS_JSON, VARS, Template


def text_problems(scope: StageScope) -> list[Problem]:
    """Returns what is wrong with the placeholders of the prompt and of the messages before it."""
    stage = scope.stage
    problems = list[Problem]()
    foreign = list[Problem]()
    checked = set[str]()
    for path, template in _texts_by_path(scope):
        for placeholder in template.placeholders:
            message = None
            if placeholder.name not in checked:
                message = _certain_fault(placeholder.name, scope)
            checked.add(placeholder.name)
            if message:
                problem = problem_of(replace(placeholder.where, path=path), message)
                text = templates.in_syntax(message, template.syntax)
                problems.append(replace(problem, message=text))
        in_other_syntax = _foreign_placeholders(template, path, scope)
        problems += in_other_syntax
        foreign += in_other_syntax
    if stage.asks_all_alike and not foreign:
        message = templates.in_syntax(templates.ALL_ALIKE, stage.prompt.syntax)
        problems.append(Problem(stage.at("prompt"), message, "warning"))
    return problems


def _texts_by_path(scope: StageScope) -> Iterator[tuple[str, Template]]:
    """Yields the prompt and the messages before it, each with its path for messages."""
    stage = scope.stage
    path = stage.at("prompt").path
    if path.startswith(stage.path):  # otherwise it was typed on the command line
        path = f"{stage.path}.prompt"
    yield path, stage.prompt
    yield from ((example.path, example.content) for example in stage.examples)


def _foreign_placeholders(template: Template, path: str, scope: StageScope) -> list[Problem]:
    """Returns warnings of texts that look like placeholders of another syntax."""
    stage = scope.stage
    where = replace(stage.at("prompt"), path=path)
    any_field = scope.fields.open and stage.group is None
    known = Named(scope, scope.own_names)
    return foreign_placeholders(template, where, known, stage.syntax, any_field=any_field)


def _certain_fault(name: str, scope: StageScope) -> str | None:
    """Returns what is wrong with one placeholder, unless it is doubtful and the stage's guard lets
    no row through that lacks it."""
    message = _placeholder_fault(name, scope)
    guard = scope.stage.guard
    if guard and isinstance(message, Doubt) and is_asked_for(name.split("."), guard.text):
        return None
    return message


def _placeholder_fault(name: str, scope: StageScope) -> str | None:
    """Returns what is wrong with one placeholder; None as soon as something is known by its
    name."""
    head, _, rest = name.partition(".")
    if _is_hidden(name, head, scope):
        return (
            f"${{{name}}} is hidden from this stage by `visible`; leave it out of the "
            "prompt, or make it visible"
        )
    if name in scope.fields.shapes:
        return _column_fault(name, scope)
    if head in scope.earlier:
        return _result_fault(name, scope)
    if head == VARS and rest:
        variables = list(scope.workflow.vars)
        return _no_such("variable", name, rest.split(".")[0], variables, prefix="vars.")
    if name in scope.own_names:
        return None
    label_fault = scope.label_fault(head)
    if label_fault:
        return f"${{{name}}}: {label_fault}"
    if head in scope.fields.shapes:
        return _field_fault(name, scope)
    return _unknown_fault(name, head, scope)


def _is_hidden(name: str, head: str, scope: StageScope) -> bool:
    """True if `visible` keeps the value from the stage."""
    limits = scope.stage.visibility
    if limits is None or name in scope.own_names or head == VARS:
        return False
    return head in limits.never if head in scope.earlier else limits.hides(head)


def _column_fault(name: str, scope: StageScope) -> str | None:
    """Returns what is wrong with a placeholder that is the whole name of a field."""
    if name in scope.earlier:
        other = f"the result of stage {name!r}"
    elif name in (VARS, ROW_JSON):
        other = f"agac's own {name!r}"
    else:
        return _lacking_fault(name, scope)
    return f"${{{name}}} could be the input's column or {other}; rename the one or the other"


def _result_fault(name: str, scope: StageScope) -> str | None:
    """Returns what is wrong with a placeholder of a result, or of a field of it."""
    head, _, rest = name.partition(".")
    if not rest:
        return None
    shape = scope.earlier[head].shape
    if shape is not None:
        return _inner_fault(name, FieldShape(shape))
    return (
        f"${{{name}}}: stage {head!r} answers with plain text, which has no field {rest!r}; "
        "give it an output_schema"
    )


def _field_fault(name: str, scope: StageScope) -> str | None:
    """Returns what is wrong with a placeholder of a part of a known field."""
    head, _, rest = name.partition(".")
    shape = scope.fields.shapes[head]
    if shape in (TEXT, SINGLE):
        return (
            f"${{{name}}}: the column {head!r} holds text, which has no field {rest!r}; "
            f"write ${{{head}}}"
        )
    return _inner_fault(name, shape) or _lacking_fault(name, scope)


def _inner_fault(name: str, shape: FieldShape) -> str | None:
    """Returns what is wrong with a path into a field or a result of this shape."""
    head, *rest = name.split(".")
    missing = shape.missing(tuple(rest))
    if missing is None:
        return _optional_fault(name, shape)
    depth, names = missing
    before = ".".join([head, *rest[:depth]])
    if not names:
        return f"${{{name}}}: no such field; {before} is a single value; write ${{{before}}}"
    return _no_such("field", name, rest[depth], sorted(names), prefix=f"{before}.")


def _optional_fault(name: str, shape: FieldShape) -> str | None:
    """Returns the warning that answers may lack what a placeholder names."""
    head, *rest = name.split(".")
    lack = optional_part(head, rest, shape)
    if lack is None:
        return None
    return Doubt(
        f"${{{name}}}: {lack}, and a row fails here without it; make it required in the "
        "output_schema, or take the placeholder out"
    )


def _lacking_fault(name: str, scope: StageScope) -> str | None:
    """Returns the message for a field of the input that none of its first rows has."""
    if scope.stage.group is not None:  # the fields of groups may be of results
        return None
    if name.partition(".")[0] in scope.fields.made:
        return None
    first = scope.first_lacking(name.split("."), same_names=True)
    if first is None:
        return None
    head = name.partition(".")[0]
    hint = did_you_mean(name, first.names())
    message = f"${{{name}}}: {first.words()} has such a field; {hint}"
    if first.complete:
        return message
    return f"{message}. If later rows have it, guard the stage: when: has(row.{head})"


def _unknown_fault(name: str, head: str, scope: StageScope) -> str | None:
    """Returns the message for a placeholder by which nothing is known; None if a row may have
    it."""
    if scope.stage.group is not None:
        return _unknown_in_group(name, head, scope)
    if head in scope.every_stage:
        return (
            f"${{{name}}} names a stage that is not upstream of {scope.stage.name!r}; "
            "stages see only those that they need, and what those need"
        )
    if head in scope.workflow.disabled:
        return f"${{{name}}} names the stage {head!r}, which is not enabled"
    variables = _dotted_variables(tuple(scope.workflow.vars))
    if not scope.fields.open:
        more = (ROW_JSON, *variables)
        usable = Named(scope, dict.fromkeys(more))
        return _no_such("field", name, name, scope.names(*more), usable=usable)
    message = _lacking_fault(name, scope)
    if message is not None:
        return message
    # rows may have any field: only a near miss of a name that surely exists is worth a word
    usable = Named(scope, dict.fromkeys(variables))
    near = nearest(name, scope.names(*variables), cutoff=0.8, among=usable)
    if near is None:
        return None
    return Doubt(
        f"${{{name}}} is no known name, unless rows have such a field; did you mean '{near}'?"
    )


def _unknown_in_group(name: str, head: str, scope: StageScope) -> str | None:
    """Returns the message for a placeholder by which nothing is known of a group."""
    if head == ROW_JSON or scope.rows.has(head):
        place = "what they have is" if head == ROW_JSON else f"{head!r} is"
        return f"${{{name}}}: a group has many rows; {place} in ${{{ROWS_JSON}}}, for each of them"
    variables = _dotted_variables(tuple(scope.workflow.vars))
    names = (*scope.fields.shapes, *GROUP_NAMES, *variables)
    return _no_such("field of a group", name, name, names)


@lru_cache(maxsize=4)
def _dotted_variables(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the workflow's variables as placeholders name them."""
    return tuple(f"{VARS}.{name}" for name in names)


def _no_such(
    kind: str,
    placeholder: str,
    name: str,
    names: Sequence[str],
    prefix: str = "",
    usable: Collection[str] | None = None,
) -> str | None:
    """Returns the message for a name that is none of `names`, or None if it is one.

    `usable` are those of `names` that the stage may use; None: all. `prefix` comes before a name
    in a placeholder."""
    offered = names if usable is None else usable
    if name in offered:
        return None
    near = nearest(name, names, among=usable)
    if near:
        hint = f"did you mean '{prefix}{near}'?"
    else:
        hint = f"known are: {listed(offered)}"
    return f"${{{placeholder}}}: no such {kind}; {hint}"
