"""What the texts of a workflow name with `${…}`: placeholders that nothing can satisfy, and those of other tools."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass

from agac.core.errors import Problem, Where
from agac.plan.fieldchecks import check_fields
from agac.plan.fields import Eyes, Sees, input_fields
from agac.spec.fieldshapes import SINGLE, TEXT, FieldShape
from agac.spec.guardcheck import check_guard
from agac.spec.guards import Guard
from agac.spec.operations import Filter
from agac.spec.suggest import did_you_mean
from agac.spec.template import ROW_JSON, ROWS_COUNT, ROWS_FAILED, ROWS_JSON, VARS, Placeholder, Template
from agac.spec.workflow import Workflow, WrittenStage

_FOREIGN = re.compile(r"\{\{\s*([\w.]+)\s*\}\}|(?<!\{)\{([\w.]+)\}(?!\})")
"""`{{review}}` and `{review}`, as other tools write it: agac sends them as they stand."""

_OF_GROUPS = (ROWS_JSON, ROWS_COUNT, ROWS_FAILED)


@dataclass(frozen=True, slots=True)
class _Visible:
    """What a stage's texts may name. `own` are agac's own names. `rows` is what the rows show that come to it: those of
    the members, for a stage that is asked once a group."""

    workflow: Workflow
    stage: WrittenStage
    sees: Sees

    @property
    def own(self) -> tuple[str, ...]:
        return (ROW_JSON,) if self.stage.group is None else _OF_GROUPS

    @property
    def rows(self) -> Sees:
        return self.sees.incoming if self.stage.group and self.sees.incoming else self.sees

    @property
    def is_open(self) -> bool:
        return self.sees.fields.open

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.sees.fields.shapes)


def check_placeholders(workflow: Workflow, columns: tuple[str, ...] | None) -> list[Problem]:
    """Every placeholder that nothing can satisfy. `columns` are the input's declared ones, None when rows bring theirs:
    then an unknown name is a warning, since some rows may have it."""
    problems: list[Problem] = []
    eyes = Eyes(input_fields(workflow, columns))
    for stage in workflow.stages:
        visible = _Visible(workflow, stage, eyes.of(stage))
        problems += check_fields(workflow, stage, visible.sees)
        known = {*visible.columns, *visible.sees.earlier, *visible.own}
        seen: set[str] = set()
        texts = [(f"{stage.path}.prompt", stage.prompt), *((one.path, one.content) for one in stage.examples)]
        for path, template in texts:
            for placeholder in template.placeholders:
                if placeholder.name not in seen:
                    seen.add(placeholder.name)
                    problems += _check(placeholder, visible, path)
            problems += _foreign(template, stage.at("prompt"), path, known)
        problems += _hidden_names(visible)
        problems += _guard(visible)
    return problems


def _guard(visible: _Visible) -> list[Problem]:
    """Names in the stage's conditions that are none, and comparisons that are never true."""
    guard, does = visible.stage.guard, visible.stage.operation
    found = _condition(visible, guard, "when") if guard else []
    return found + (_condition(visible, does.guard, "filter") if isinstance(does, Filter) else [])


def _condition(visible: _Visible, guard: Guard, key: str) -> list[Problem]:
    stage, workflow = visible.stage, visible.workflow
    if stage.group is not None:
        many = [name for name in guard.names if name not in visible.columns and _of_members(name, visible.rows)]
        if many:
            words = f"a group has many rows, each with its own {many[0]!r}"
            message = f"`{many[0]}`: {words}; a guard of groups sees {_listed(visible)} and {ROWS_FAILED}"
            return [Problem(guard.where, message, f"{stage.path}.{key}")]
    fields = visible.sees.fields
    stages = [other.name for other in workflow.stages if other.name not in fields.shapes]
    return check_guard(
        guard,
        columns=None if fields.open and not fields.shapes else visible.columns,
        open_columns=fields.open,
        stages={name: other.shape for name, other in visible.sees.earlier.items()},
        variables=list(workflow.vars),
        path=f"{stage.path}.{key}",
        others=[*(name for name in stages if name not in visible.sees.earlier), *workflow.disabled],
        extra=_OF_GROUPS if stage.group is not None else (),
        fields={name: shape for name, shape in fields.shapes.items() if shape != SINGLE},
    )


def _listed(visible: _Visible) -> str:
    """What a guard of groups sees, but for the last of it."""
    return ", ".join([*visible.columns, ROWS_COUNT])


def _of_members(name: str, members: Sees) -> bool:
    return name in members.earlier or name in members.fields.shapes


def _hidden_names(visible: _Visible) -> list[Problem]:
    """Names of `visible` that are none: a slip there would send what was to stay."""
    limits, stage, rows = visible.stage.visibility, visible.stage, visible.rows
    if limits is None or rows.fields.open:
        return []
    fields = [*rows.fields.shapes, *(name for name in visible.columns if name not in rows.fields.shapes)]
    known = {"only": fields, "never": [*fields, *(name for name in rows.earlier if name not in fields)]}
    return [
        Problem(
            stage.at("visible"),
            f"names {name!r}, which does not exist; {did_you_mean(name, known[key])}",
            f"{stage.path}.visible.{key}",
        )
        for key, names in (("only", limits.only or ()), ("never", limits.never))
        for name in sorted(names)
        if name not in known[key]
    ]


def _check(placeholder: Placeholder, visible: _Visible, path: str) -> list[Problem]:
    """What is wrong with one placeholder: nothing, as soon as something is known by its name."""
    name = placeholder.name
    head, _, rest = name.partition(".")
    if _is_hidden(name, head, visible):
        message = f"${{{name}}} is hidden from this stage by `visible`; leave it out of the prompt, or make it visible"
        return [Problem(placeholder.where, message, path)]
    if name in visible.columns:
        return _clash(placeholder, visible, path)
    if head in visible.sees.earlier:
        return _result_field(placeholder, visible.sees.earlier[head], rest, path)
    if head == VARS and rest:
        return _known(placeholder, rest.split(".")[0], list(visible.workflow.vars), "variable", path, prefix="vars.")
    if name in visible.own:
        return []
    if head in visible.columns:
        return _field(placeholder, head, visible.sees.fields.shapes[head], tuple(rest.split(".")), path)
    if visible.stage.group is not None:
        return _not_of_groups(placeholder, visible, head, path)
    return _nowhere(placeholder, visible, head, path)


def _is_hidden(name: str, head: str, visible: _Visible) -> bool:
    limits = visible.stage.visibility
    if limits is None or name in visible.own or head == VARS:
        return False
    return head in limits.never if head in visible.sees.earlier else limits.hides(head)


def _clash(placeholder: Placeholder, visible: _Visible, path: str) -> list[Problem]:
    """A column of the input that has the name of something else."""
    name = placeholder.name
    by_name = name in visible.sees.earlier
    if not by_name and name not in (VARS, ROW_JSON):
        return []
    other = f"the result of stage {name!r}" if by_name else f"agac's own {name!r}"
    message = f"${{{name}}} could be the input's column or {other}; rename the one or the other"
    return [Problem(placeholder.where, message, path)]


def _field(placeholder: Placeholder, head: str, shape: FieldShape, rest: tuple[str, ...], path: str) -> list[Problem]:
    if shape in (TEXT, SINGLE):
        way = ".".join(rest)
        message = f"${{{placeholder.name}}}: the column {head!r} holds text, which has no field {way!r}"
        return [Problem(placeholder.where, f"{message}; write ${{{head}}}", path)]
    return _inside(placeholder, head, shape, rest, path)


def _inside(placeholder: Placeholder, head: str, shape: FieldShape, rest: tuple[str, ...], path: str) -> list[Problem]:
    """A way into a field or a result, as far as it is known."""
    for depth, part in enumerate(rest):
        names = shape.names(rest[:depth])
        if names is None:
            return []
        before = ".".join([head, *rest[:depth]])
        if not names:
            message = f"${{{placeholder.name}}}: no such field; {before} is a single value; write ${{{before}}}"
            return [Problem(placeholder.where, message, path)]
        if part not in names:
            return _known(placeholder, part, sorted(names), "field", path, prefix=f"{before}.")
    return []


def _result_field(placeholder: Placeholder, stage: WrittenStage, rest: str, path: str) -> list[Problem]:
    shape = stage.shape
    if not rest:
        return []
    if shape is None:
        message = f"stage {stage.name!r} answers with plain text, which has no field {rest!r}; give it an output_schema"
        return [Problem(placeholder.where, f"${{{placeholder.name}}}: {message}", path)]
    return _inside(placeholder, stage.name, FieldShape(shape), tuple(rest.split(".")), path)


def _not_of_groups(placeholder: Placeholder, visible: _Visible, head: str, path: str) -> list[Problem]:
    """A name that only a group's rows have, or nobody."""
    names = [*visible.columns, *_OF_GROUPS, *(f"vars.{name}" for name in visible.workflow.vars)]
    if head == ROW_JSON or _of_members(head, visible.rows):
        what = "what they have is" if head == ROW_JSON else f"{head!r} is"
        message = f"${{{placeholder.name}}}: a group has many rows; {what} in ${{{ROWS_JSON}}}, for each of them"
        return [Problem(placeholder.where, message, path)]
    return _known(placeholder, placeholder.name, names, "field of a group", path)


def _nowhere(placeholder: Placeholder, visible: _Visible, head: str, path: str) -> list[Problem]:
    """A name that nothing is known by; a row may still have it."""
    if any(stage.name == head for stage in visible.workflow.stages):
        message = (
            f"${{{placeholder.name}}} names a stage that is not upstream of {visible.stage.name!r}; "
            "stages see only those that they need, and what those need"
        )
        return [Problem(placeholder.where, message, path)]
    if head in visible.workflow.disabled:
        message = f"${{{placeholder.name}}} names the stage {head!r}, which is not enabled"
        return [Problem(placeholder.where, message, path)]
    variables = [f"vars.{name}" for name in visible.workflow.vars]
    names = [*visible.columns, *visible.sees.earlier, ROW_JSON, *variables]
    if visible.is_open:
        return _perhaps(placeholder, names, path)
    return _known(placeholder, placeholder.name, names, "field", path)


def _perhaps(placeholder: Placeholder, names: list[str], path: str) -> list[Problem]:
    """Rows may have any field: only a near miss of a name that surely exists is worth a word."""
    near = difflib.get_close_matches(placeholder.name, [n for n in names if n != ROW_JSON], 1, cutoff=0.8)
    if not near:
        return []
    message = f"${{{placeholder.name}}} is no known name, unless rows have such a field; did you mean '{near[0]}'?"
    return [Problem(placeholder.where, message, path, "warning")]


def _known(
    placeholder: Placeholder, name: str, names: list[str], what: str, path: str, *, prefix: str = ""
) -> list[Problem]:
    if name in names:
        return []
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean '{prefix}{near[0]}'?" if near else f"known are: {', '.join(names) or 'none'}"
    return [Problem(placeholder.where, f"${{{placeholder.name}}}: no such {what}; {hint}", path)]


def _foreign(template: Template, where: Where, path: str, names: Collection[str]) -> list[Problem]:
    """A warning for each that would name a field or a result, were it written in agac's way. Others may be meant."""
    found = {}
    for before, piece in zip(("", *template.pieces), template.pieces, strict=False):
        for match in _FOREIGN.finditer(piece):
            if before == "$" and match.start() == 0:
                continue  # $${name}, which says that it is meant as it stands
            name = match[1] or match[2]
            if name.partition(".")[0] in names or name in names:
                found[match[0]] = name
    return [
        Problem(where, f"{text} is sent as it stands; write ${{{name}}} for its value", path, "warning")
        for text, name in found.items()
    ]
