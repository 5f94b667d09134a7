"""What the texts of a workflow name with `${…}`: placeholders that nothing can satisfy, and those of other tools."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass

from agac.core.errors import Problem, Where
from agac.spec.guardcheck import check_guard
from agac.spec.guards import Guard
from agac.spec.operations import Filter, Python, Rename, Select
from agac.spec.schemaplaces import property_names
from agac.spec.suggest import did_you_mean
from agac.spec.template import ROW_JSON, VARS, Placeholder, Template
from agac.spec.workflow import Stage, Workflow

_FOREIGN = re.compile(r"\{\{\s*([\w.]+)\s*\}\}|(?<!\{)\{([\w.]+)\}(?!\})")
"""`{{review}}` and `{review}`, as other tools write it: agac sends them as they stand."""


TEXT_FORMATS = ("csv", "tsv", "txt", "files")
"""Formats of inputs in which every field is text."""


@dataclass(frozen=True, slots=True)
class _Visible:
    """What a stage's texts may name. `columns` are the input's declared ones; `open`: rows may have any other field.
    `earlier` are the stages upstream.
    """

    workflow: Workflow
    stage: Stage
    earlier: dict[str, Stage]
    columns: tuple[str, ...]
    open: bool


def check_placeholders(workflow: Workflow, columns: tuple[str, ...] | None) -> list[Problem]:
    """Every placeholder that nothing can satisfy. `columns` are the input's declared ones, None when rows bring theirs:
    then an unknown name is a warning, since some rows may have it."""
    problems: list[Problem] = []
    by_name = {stage.name: stage for stage in workflow.stages}
    forms: dict[str | None, tuple[str, ...] | None] = {None: columns}
    for stage in workflow.stages:
        earlier = {name: by_name[name] for name in stage.ancestors}
        own = forms[stage.rows_of]
        visible = _Visible(workflow, stage, earlier, own or (), open=own is None)
        if isinstance(stage.operation, Select | Rename):
            problems += _fields(visible, stage.operation)
            forms[stage.name] = _after(own, stage.operation)
        elif isinstance(stage.operation, Python):
            forms[stage.name] = None
        known = {*visible.columns, *earlier, ROW_JSON}
        seen: set[str] = set()
        texts = [(f"{stage.path}.prompt", stage.prompt), *((one.path, one.content) for one in stage.messages)]
        for path, template in texts:
            for placeholder in template.placeholders:
                if placeholder.name not in seen:
                    seen.add(placeholder.name)
                    problems += _check(placeholder, visible, path)
            problems += _foreign(template, stage.at("prompt"), path, known)
        problems += _hidden_names(visible)
        problems += _guard(visible)
    return problems


def _after(columns: tuple[str, ...] | None, does: Select | Rename) -> tuple[str, ...] | None:
    """The columns that rows have after a stage."""
    if isinstance(does, Select):
        return does.fields
    return None if columns is None else tuple(does.names.get(column, column) for column in columns)


def _fields(visible: _Visible, does: Select | Rename) -> list[Problem]:
    """Fields that a stage takes, or renames, and that no row has; new names that rows have already."""
    key, wanted = ("select", does.fields) if isinstance(does, Select) else ("rename", tuple(does.names))
    where, path = visible.stage.at(key), f"{visible.stage.path}.{key}"
    if visible.open:
        return []
    messages = [
        f"names the field {name!r}, which rows do not have; {did_you_mean(name, visible.columns)}"
        for name in wanted
        if name not in visible.columns
    ]
    if isinstance(does, Rename):
        kept = set(visible.columns) - does.names.keys()
        taken = [(old, new) for old, new in does.names.items() if new in kept]
        messages += [f"{old!r} cannot become {new!r}: rows have that field already" for old, new in taken]
    return [Problem(where, message, path) for message in messages]


def _guard(visible: _Visible) -> list[Problem]:
    """Names in the stage's conditions that are none, and comparisons that are never true."""
    guard, does = visible.stage.guard, visible.stage.operation
    found = _condition(visible, guard, "when") if guard else []
    return found + (_condition(visible, does.guard, "filter") if isinstance(does, Filter) else [])


def _condition(visible: _Visible, guard: Guard, key: str) -> list[Problem]:
    stage, workflow = visible.stage, visible.workflow
    shapes = {s.name: s.shape for s in visible.earlier.values()}
    return check_guard(
        guard,
        columns=None if visible.open else visible.columns,
        open_columns=visible.open,
        stages=shapes,
        variables=list(workflow.vars),
        path=f"{stage.path}.{key}",
        others=[*(o.name for o in workflow.stages if o.name not in visible.earlier), *workflow.disabled],
        text_columns=workflow.input.format in TEXT_FORMATS and stage.rows_of is None,
    )


def _hidden_names(visible: _Visible) -> list[Problem]:
    """Names of `visible` that are none: a slip there would send what was to stay."""
    limits, stage = visible.stage.visibility, visible.stage
    if limits is None or visible.open:
        return []
    known = {"only": list(visible.columns), "never": [*visible.columns, *visible.earlier]}
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
    if head in visible.earlier:
        return _result_field(placeholder, visible.earlier[head], rest, path)
    if head == VARS and rest:
        return _known(placeholder, rest.split(".")[0], list(visible.workflow.vars), "variable", path, prefix="vars.")
    if name == ROW_JSON:
        return []
    if head in visible.columns:
        return _column_field(placeholder, visible.workflow, head, rest, path)
    return _nowhere(placeholder, visible, head, path)


def _is_hidden(name: str, head: str, visible: _Visible) -> bool:
    limits = visible.stage.visibility
    if limits is None or name == ROW_JSON or head == VARS:
        return False
    return head in limits.never if head in visible.earlier else limits.hides(head)


def _clash(placeholder: Placeholder, visible: _Visible, path: str) -> list[Problem]:
    """A column of the input that has the name of something else."""
    name = placeholder.name
    by_name = name in visible.earlier
    if not by_name and name not in (VARS, ROW_JSON):
        return []
    other = f"the result of stage {name!r}" if by_name else f"agac's own {name!r}"
    message = f"${{{name}}} could be the input's column or {other}; rename the one or the other"
    return [Problem(placeholder.where, message, path)]


def _column_field(placeholder: Placeholder, workflow: Workflow, head: str, rest: str, path: str) -> list[Problem]:
    if workflow.input.format == "parquet":
        return []  # a column may hold structures: rows say whether they have the field
    message = f"${{{placeholder.name}}}: the column {head!r} holds text, which has no field {rest!r}; write ${{{head}}}"
    return [Problem(placeholder.where, message, path)]


def _result_field(placeholder: Placeholder, stage: Stage, rest: str, path: str) -> list[Problem]:
    shape = stage.shape
    if not rest:
        return []
    if shape is None:
        message = f"stage {stage.name!r} answers with plain text, which has no field {rest!r}; give it an output_schema"
        return [Problem(placeholder.where, f"${{{placeholder.name}}}: {message}", path)]
    way = rest.split(".")
    for depth, part in enumerate(way):
        names = property_names(shape, way[:depth])
        if names is None:
            return []
        prefix = ".".join([stage.name, *way[:depth]]) + "."
        if part not in names:
            return _known(placeholder, part, sorted(names), "field", path, prefix=prefix)
    return []


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
    names = [*visible.columns, *visible.earlier, ROW_JSON, *variables]
    if visible.open:
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
