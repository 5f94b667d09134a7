"""What a stage does in the place of asking a model, and how one makes groups: both as a definition
stores them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from agac.core.types import JSONValue
from agac.spec.guards import STORED, Guard
from agac.spec.python_code import FunctionRef
from agac.spec.templates import SKIPPED, as_text

Makes = Literal["items", "rows", "groups", "kept"]
"""What a stage makes of rows: a child of each item (`explode`), children of the rows that a
function gives in a list, groups (`group_by`), or one child of each row that goes on (`dedupe`)."""

Fields = dict[str, JSONValue]
# a field by its parts: a field of the row, or a stage upstream and fields of its result
Way = tuple[str, ...]


def ways(fields: Iterable[str]) -> tuple[Way, ...]:
    """Fields as they are written, each by its parts."""
    return tuple(tuple(field.split(".")) for field in fields)


@dataclass(frozen=True, slots=True)
class Operation:
    """What a stage does instead of asking a model."""

    key: ClassVar[str]
    """The key of the stage's file."""
    is_kept: ClassVar[bool] = False
    """True if its results are stored."""
    gives_answer: ClassVar[bool] = False
    """True if its results are answers, and not what the row is from there on."""

    @property
    def may_drop(self) -> bool:
        """True if rows can leave there."""
        return self.key in ("filter", "python", "dedupe")

    def body(self) -> dict[str, JSONValue]:
        """Returns what decides its results, for the definition."""
        return {self.key: _STORED[self.key][0](self)}


@dataclass(frozen=True, slots=True)
class Python(Operation):
    """Gives the row to a function of the project. Its result is the row from there on; None: the
    row leaves."""

    key = "python"
    is_kept = True
    function: FunctionRef
    processes: int | None
    """The number of processes that run calls; None: this one does."""
    timeout: float | None = None
    """Seconds that a call may take in such a process."""

    def body(self) -> dict[str, JSONValue]:
        return {"python": str(self.function), "source": self.function.source_hash.hex()}


@dataclass(frozen=True, slots=True)
class Filter(Operation):
    """Rows for which the condition is not true leave."""

    key = "filter"
    guard: Guard


@dataclass(frozen=True, slots=True)
class Select(Operation):
    """The row goes on with these fields, in this order."""

    key = "select"
    fields: tuple[str, ...]

    def apply(self, data: Fields) -> Fields:
        """Returns the row with these fields. Raises UnfitRow when it lacks one."""
        _has(data, self.fields)
        return {field: data[field] for field in self.fields}


@dataclass(frozen=True, slots=True)
class Rename(Operation):
    """Fields get other names, at their places: old name → new one."""

    key = "rename"
    names: Mapping[str, str]

    def apply(self, data: Fields) -> Fields:
        """Returns the row with the new names. Raises UnfitRow when it lacks a field, or has a new
        name already."""
        _has(data, self.names)
        renamed = {self.names.get(name, name): value for name, value in data.items()}
        if len(renamed) < len(data):
            taken = next(
                new for new in self.names.values() if new in data and new not in self.names
            )
            raise UnfitRow(f"the row has a field {taken!r} already")
        return renamed


@dataclass(frozen=True, slots=True)
class Dedupe(Operation):
    """Of rows with the same values of these fields the first goes on, the others leave."""

    key = "dedupe"
    fields: tuple[Way, ...]


Match = Literal["exact", "normalized", "structured"]


@dataclass(frozen=True, slots=True)
class Vote:
    """Which of several answers is taken: the first with the most frequent value."""

    field: str | None = None
    """The field (`a.b`: the field b of a) whose values are counted; None: the whole answer."""
    lead: int = 0
    """The votes by which a value has to lead every other one; once it does, no more are asked."""
    match: Match = "exact"
    """Which values are the same."""
    max_length: int | None = None
    """Longer answers, in characters, have no vote."""

    def body(self) -> JSONValue:
        """Returns it as JSON: the name of the field alone if the rest is at its default."""
        said = {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default
        }
        return self.field if said.keys() == {"field"} else said

    @staticmethod
    def of(body: Any) -> Vote:
        """Returns the vote that has this body."""
        return Vote(**body if isinstance(body, dict) else {"field": body})


Choice = Literal["approve", "edit", "reject", "redo"]
OnReject = Literal["drop", "fail", "skip"]
OnTimeout = Literal["wait", "approve", "reject"]
CHOICES: tuple[Choice, ...] = ("approve", "edit", "reject")


@dataclass(frozen=True, slots=True)
class Review(Operation):
    """People decide on results of another stage."""

    key = "review"
    is_kept = True
    gives_answer = True
    edit: str
    """The stage whose results are decided on."""
    when: Guard | None = None
    """The condition for rows that wait; None without a `sample`: all rows."""
    sample: float = 0.0
    """The share of the other rows that waits too, by the hash of the row's id."""
    blind: float = 0.0
    """The share of these rows for which the answer is not shown."""
    show: tuple[Way, ...] = ()
    """What is shown next to the answer."""
    choices: tuple[Choice, ...] = CHOICES
    on_reject: OnReject = "drop"
    reviewers: int = 1
    agree: str | None = None
    """The field in which two `reviewers` have to agree; None: the whole value."""
    timeout: float | None = None
    """Seconds after which `on_timeout` counts as the decision."""
    on_timeout: OnTimeout = "wait"
    redo: int = 0
    """How often an answer may be asked for again."""

    @property
    def may_drop(self) -> bool:
        """True if rows can leave there."""
        return self.on_reject == "drop"

    def said(self) -> dict[str, JSONValue]:
        """Returns the fields that differ from the defaults."""
        said = {
            one.name: value
            for one in fields(self)
            if (value := getattr(self, one.name)) != one.default
        }
        said["choices"] = list(self.choices)
        said |= {"show": [".".join(way) for way in self.show], "when": self.when and self.when.text}
        return {key: value for key, value in said.items() if value not in (None, [], list(CHOICES))}

    @staticmethod
    def of(body: Mapping[str, Any]) -> Review:
        """Returns the review of a stored definition."""
        own = {**body, "show": ways(body.get("show", ()))}
        if "when" in body:
            own["when"] = Guard(body["when"], (), STORED)
        return Review(**own | ({"choices": tuple(body["choices"])} if "choices" in body else {}))


@dataclass(frozen=True, slots=True)
class Join(Operation):
    """The results of these stages are put together as a text, each under its label: pairs of a
    label and a stage."""

    key = "join"
    gives_answer = True
    results: tuple[tuple[str, str], ...]

    def text(self, known: Mapping[str, JSONValue]) -> str:
        """Their text, of what is `known` by the names of stages."""
        return "\n\n".join(
            f"{label}:\n{as_text(known.get(stage, SKIPPED))}" for label, stage in self.results
        )


class UnfitRow(Exception):
    """The row is not as a stage needs it: `str()` says why."""


def _has(data: Fields, fields: Iterable[str]) -> None:
    missing = next((field for field in fields if field not in data), None)
    if missing is not None:
        raise UnfitRow(f"the row has no field {missing!r}; it has {', '.join(data) or 'none'}")


def changed_row(operation: Operation | None, data: Fields, value: str | None) -> Fields | None:
    """Returns the row after an operation that gives it other fields; `value` is its stored result
    (JSON). None: not known, or the row is not fit for it, or a function gave a list, of which each
    row is one of its own."""
    if isinstance(operation, Select | Rename):
        try:
            return operation.apply(data)
        except UnfitRow:
            return None
    given = json.loads(value) if value is not None else None
    return given if isinstance(given, dict) else None


OPERATIONS = ("python", "filter", "select", "rename", "dedupe", "review")
"""The keys of which a stage that asks no model has one."""

CHANGING = ("python", "select", "rename")
"""Those after which a row has other fields: their result is the row from there on."""


def made_by(explode: object | None, group: object | None, operation: str | None) -> Makes | None:
    """Returns what a stage makes of rows: one that explodes, one that groups, or one with this
    operation, by its key."""
    if explode is not None:
        return "items"
    if group is not None:
        return "groups"
    if operation == "python":
        return "rows"
    if operation == "dedupe":
        return "kept"
    return None


_STORED: dict[str, tuple[Callable[[Any], JSONValue], Callable[[Any], Operation]]] = {
    "filter": (lambda does: does.guard.text, lambda body: Filter(Guard(body, (), STORED))),
    "select": (lambda does: list(does.fields), lambda body: Select(tuple(body))),
    "rename": (lambda does: dict(does.names), Rename),
    "dedupe": (
        lambda does: [".".join(way) for way in does.fields],
        lambda body: Dedupe(ways(body)),
    ),
    "review": (Review.said, Review.of),
    "join": (
        lambda does: [f"{stage}: {label}" for label, stage in does.results],
        lambda body: Join(
            tuple((label, stage) for stage, _, label in (one.partition(": ") for one in body))
        ),
    ),
}
"""What writes an operation under its key in a definition, and what reads it back."""


def read_operation(body: Mapping[str, Any]) -> Operation:
    """Returns the operation of a stored definition. Functions and conditions are named, not read:
    nothing can be run."""
    if "python" in body:
        shown, _, name = body["python"].rpartition(":")
        function = FunctionRef(
            Path(shown), shown, name, is_async=False, source_hash=bytes.fromhex(body["source"])
        )
        return Python(function, None)
    ((key, written),) = body.items()
    return _STORED[key][1](written)


Incomplete = Literal["use", "fail"]


@dataclass(frozen=True, slots=True)
class Group:
    """How rows become groups."""

    fields: tuple[Way, ...]
    """Rows with the same values of these are one group; without fields all rows are."""
    max_rows: int | None = None
    """The most members of one call. A larger group is asked in parts, and then of the parts'
    results; None: no limit."""
    max_tokens: int | None = None
    """The most tokens of these members; None: no limit."""
    incomplete: Incomplete = "use"
    """What happens to a group with failed members."""

    @property
    def reduces(self) -> bool:
        """True if groups may be cut into parts."""
        return self.max_rows is not None or self.max_tokens is not None

    def fits(self, rows: int, tokens: int) -> bool:
        """True if one call holds so many members, of so many tokens."""
        fits = self.max_rows is None or rows <= self.max_rows
        return fits and (self.max_tokens is None or tokens <= self.max_tokens or rows == 1)

    def body(self) -> dict[str, Any]:
        """Returns what decides its results, for the definition."""
        bounds = {"max_rows": self.max_rows, "max_tokens": self.max_tokens}
        reduce = {key: value for key, value in bounds.items() if value is not None}
        return {
            "group_by": [".".join(field) for field in self.fields],
            **({"reduce": reduce} if reduce else {}),
            **({"incomplete": self.incomplete} if self.incomplete != "use" else {}),
        }

    @staticmethod
    def of(body: Mapping[str, Any]) -> Group | None:
        """Returns the groups of a stage of a stored definition; None: it makes none."""
        if "group_by" not in body:
            return None
        return Group(
            ways(body["group_by"]),
            **body.get("reduce", {}),
            incomplete=body.get("incomplete", "use"),
        )
