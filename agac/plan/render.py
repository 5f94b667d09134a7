"""A row and a stage become a request and its fingerprint: the same for calling, for looking up and
for showing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.types import JSONValue, Message, Request, RowId
from agac.plan.stage import AnyStage, PlannedStage, opening, task_prints
from agac.spec.graph import PARTS, StageNode, is_hidden
from agac.spec.python_code import FunctionInput
from agac.spec.templates import (
    AGREEMENT,
    REJECTED,
    ROW,
    ROWS_JSON,
    SKIPPED,
    VARS,
    MissingField,
    VisibleRow,
    in_syntax,
)
from agac.spec.workflow import Stage
from agac.store.decisions import Fixes


class Prepared(NamedTuple):
    """A task that is ready to be looked up or sent."""

    fingerprint: bytes
    stage: PlannedStage
    messages: tuple[Message, ...]
    replicas: tuple[bytes, ...] = ()
    """The fingerprints of its replicas; empty if it has none."""

    @property
    def request(self) -> Request:
        """What is sent. Made when it is asked for: tasks of a plan are only looked up."""
        return Request(self.messages, self.stage.schema, self.stage.params)

    @property
    def refusal(self) -> RowError | None:
        """Why the task may not be sent: a text of it says nothing. An answer that is stored may be
        taken."""
        if all(message.text and not message.text.isspace() for message in self.messages):
            return None
        message = (
            f"stage {self.stage.name!r}: the prompt, or a message before it, is empty or only "
            "white space for this row; nothing was sent"
        )
        return RowError(ErrorType.EMPTY_PROMPT, message)


class RowView:
    """One row as its stages see it.

    A stage sees the results of the stages upstream of it, whichever others exist. What settles a
    stage adds its result."""

    __slots__ = (
        "_all",
        "_sees_all",
        "_vars",
        "agreement",
        "forms",
        "own",
        "redone",
        "results",
        "unknown",
    )

    def __init__(
        self,
        data: dict[str, JSONValue],
        variables: dict[str, JSONValue],
        sees_all: Collection[str] = (),
    ) -> None:
        """`sees_all` are the stages to which every result and all fields are visible."""
        self.forms: dict[str | None, dict[str, JSONValue]] = {None: data}
        """The row's fields after each stage that changed them, and at first by None."""
        self.results: dict[str, JSONValue] = {}
        """The results of its stages so far, by name."""
        self.own: dict[str, JSONValue] = {}
        """Names that only this kind of row has."""
        self.unknown: dict[str, str] = {}
        """The stages whose answers do not exist yet, and the names that depend on those, by why
        the first of them has to be run: only `agac plan` has such."""
        self.agreement: dict[str | None, float] = {}
        """The share of a stage's replicas that agree, by its name, if they voted."""
        self.redone: dict[str, list[JSONValue]] = {}
        """The earlier answers of a stage that people wanted to have given again, each with why."""
        self._vars = variables
        self._sees_all = sees_all
        self._all = VisibleRow(data, self.results, variables)

    def child(self, further: Mapping[str, JSONValue], without: str | None = None) -> RowView:
        """Returns a row made of this one: it sees what this one does, has the `further` fields, and
        lacks the field `without`."""
        child = RowView({}, self._vars)
        for form, fields in self.forms.items():
            child.forms[form] = {**fields, **further}
            if without is not None:
                child.forms[form].pop(without, None)
        child.results = dict(self.results)
        if self.unknown:
            child.unknown = dict(self.unknown)
        return child

    def unknown_need(self, stage: Stage) -> str | None:
        """Returns the first name that the stage needs and that is not known yet: of another stage,
        or of its group's rows."""
        if not self.unknown:
            return None
        return next((name for name in (*stage.needs, ROWS_JSON) if name in self.unknown), None)

    def is_decided(self, stage: Stage, names: Iterable[str]) -> bool:
        """True if a condition of the stage that reads these names looks at nothing that is not
        known yet."""
        if not self.unknown:
            return True
        if stage.rows_of in self.unknown:
            return False
        return self.unknown_of(stage, names) is None

    def unknown_of(self, stage: StageNode, names: Iterable[str]) -> str | None:
        """Returns the first of these names that the stage cannot look up yet: its result, or that
        of a stage that amends it."""
        wanted = dict.fromkeys(names)
        if stage.amends is not None and AGREEMENT in wanted:
            wanted[stage.amends] = None
        if PARTS in wanted:
            wanted |= dict.fromkeys(stage.parts)
        wanted |= dict.fromkeys(later for later, first in stage.amended if first in wanted)
        return next((name for name in wanted if name in self.unknown), None)

    def set_fields(self, stage: Stage, fields: dict[str, JSONValue]) -> None:
        """Gives the row these fields from the stage on."""
        self.forms[stage.name] = self.results[stage.name] = fields

    def mark_skipped(self, stage: Stage) -> None:
        """Notes that the stage was skipped: it has no result, and leaves the row as it is."""
        if not stage.gives_answer:
            self.forms[stage.name] = self.data(stage)
        self.results[stage.name] = SKIPPED

    def data(self, stage: Stage) -> dict[str, JSONValue]:
        """Returns the row's fields as the stage sees them."""
        return self.forms[stage.rows_of]

    def prompt_values(self, stage: Stage) -> VisibleRow:
        """Returns what the stage may put into a prompt."""
        limits = stage.visibility
        if limits is None:
            if stage.name in self._sees_all:
                return self._all
            return VisibleRow(self.data(stage), {**self._sent(stage), **self.own}, self._vars)
        data = {name: value for name, value in self.data(stage).items() if not limits.hides(name)}
        results = {
            name: value for name, value in self._sent(stage).items() if name not in limits.never
        }
        return VisibleRow(data, {**results, **self.own}, self._vars)

    def _sent(self, stage: Stage) -> dict[str, JSONValue]:
        """Returns the results that a prompt of the stage may have. A stage that asks once more does
        not have the first answer."""
        known = self.known(stage)
        if stage.is_escalation and stage.amends is not None:
            del known[stage.amends]
        return known

    def guard_values(self, stage: Stage) -> dict[str, JSONValue]:
        """Returns what the stage's guard looks at: everything, skipped results as null; `row` holds
        the fields once more."""
        known = {
            name: None if value is SKIPPED else value for name, value in self.known(stage).items()
        }
        data = self.data(stage)
        own_names: dict[str, JSONValue] = {}
        if stage.guard is not None and PARTS in stage.guard.names and stage.parts:
            own_names[PARTS] = {name: known[name] for name in stage.parts if name in known}
        if stage.amends in self.agreement:
            own_names[AGREEMENT] = self.agreement[stage.amends]
        return {**data, **known, **own_names, **self.own, VARS: self._vars, ROW: data}

    def function_input(self, stage: Stage) -> FunctionInput:
        """Returns what a function of the user's is called with: the row's fields, and the results
        upstream by their stages' names. Of a group it is the list of its rows, each with these."""
        if stage.group is not None:
            rows: list[dict[str, JSONValue]] = json.loads(str(self.own[ROWS_JSON]))
            return rows
        known = {
            name: None if value is SKIPPED else value for name, value in self.known(stage).items()
        }
        return {
            **self.data(stage),
            **{name: value for name, value in known.items() if name not in self.forms},
        }

    def known(self, stage: StageNode) -> dict[str, JSONValue]:
        """Returns the results upstream of the stage that exist; an amended one as it is after the
        stages before this one."""
        results = {name: self.results[name] for name in stage.ancestors if name in self.results}
        if not stage.amended:
            return results
        for later, first in stage.amended:
            if results.get(later, SKIPPED) is not SKIPPED:
                results[first] = results[later]
        return {
            name: SKIPPED if result is REJECTED else result
            for name, result in results.items()
            if not is_hidden(name, stage.name)
        }


def followed(stages: Iterable[StageNode]) -> frozenset[str]:
    """Returns the stages whose results others look at: those that see them, and groups that take
    them from their members."""
    return frozenset(name for stage in stages for name in (*stage.ancestors, *stage.needs))


Messages = tuple[Message, ...]
Prints = tuple[bytes, tuple[bytes, ...]]


def asked_again(
    stage: Stage,
    messages: Messages,
    row_id: RowId,
    redos: Fixes,
    prints: Callable[[Messages], Prints],
) -> tuple[Messages, Prints, list[JSONValue]]:
    """Returns the request of a task with all that people wrote about its answers who wanted another
    one; its `prints`, and what they wrote.

    Each answer that is to be given again makes another task of it, whose answer may in turn be one
    that is to be given again."""
    fingerprints = prints(messages)
    wishes = list[JSONValue]()
    while (redo := redos.of(stage.name, row_id, fingerprints[0])) is not None:
        reply = redo.value or "null"
        answer = json.loads(reply)
        text = answer if isinstance(answer, str) and not stage.wants_json else reply
        wish = f"A person read your reply and wants another one:\n{redo.reason}\nReply again"
        wish += " with the corrected JSON only." if stage.wants_json else "."
        messages = (*messages, Message("assistant", text), Message("user", wish))
        fingerprints = prints(messages)
        wishes.append({"answer": answer, "comment": redo.reason})
    return messages, fingerprints, wishes


def _missing(stage: Stage, missing: MissingField) -> RowError:
    """Returns the error of a prompt that cannot be rendered: the row lacks a field, or the answer
    of a stage upstream does."""
    head, _, field = missing.name.partition(".")
    written = in_syntax(f"${{{missing.name}}}", stage.prompt.syntax)
    if field and head in stage.ancestors and head in missing.visible:
        lacks = (
            f"stage {stage.name!r}: the answer of stage {head!r} to this row has no "
            f"{field!r} for {written}"
        )
        remedy = (
            f"make the field required in the output_schema of {head!r}, or take it out of "
            "the prompt"
        )
        return RowError(ErrorType.MISSING_RESULT_FIELD, f"{lacks}; {remedy}")
    visible = ", ".join(missing.visible) or "nothing"
    lacks = f"stage {stage.name!r}: this row has no {written}"
    return RowError(ErrorType.MISSING_TEMPLATE_FIELD, f"{lacks}; visible are: {visible}")


def _sees_all(stages: tuple[AnyStage, ...]) -> frozenset[str]:
    """Returns the stages that see the row as it came, with no other stage apart from those
    upstream: every result that exists by then is upstream."""
    followers = Counter(name for stage in stages for name in stage.ancestors)
    names = set[str]()
    for stage in stages:
        is_alone = len(stage.ancestors) + followers[stage.name] == len(stages) - 1
        is_amended = stage.amended or stage.amends
        if is_alone and stage.rows_of is None and not is_amended:
            names.add(stage.name)
    return frozenset(names)


def _shared_opening(stage: PlannedStage) -> Messages | None:
    """Returns what comes before the prompt, if it is the same for all rows; None: its examples have
    placeholders."""
    if any(example.content.placeholders for example in stage.examples):
        return None
    return opening(stage, {})


class Preparer:
    """Renders the messages of one run's tasks."""

    def __init__(
        self,
        stages: tuple[AnyStage, ...],
        variables: Mapping[str, JSONValue],
        run: int,
        redos: Fixes | None = None,
    ) -> None:
        """`run` is the number of the run, a part of fingerprints under `reuse: never`; `redos` are
        answers that people wanted to have given again."""
        self._vars = dict(variables)
        self._run = run
        self.redos = redos or Fixes()
        self._sees_all = _sees_all(stages)
        asking = {stage.index: stage for stage in stages if isinstance(stage, PlannedStage)}
        self._openings = {index: _shared_opening(stage) for index, stage in asking.items()}
        """What comes before the prompt of each stage; None if each row has its own."""

    def view(self, data: dict[str, JSONValue] | None) -> RowView:
        """Returns the view of a row before any stage has answered."""
        return RowView(data or {}, self._vars, self._sees_all)

    def prepare(self, stage: PlannedStage, view: RowView, row_id: RowId) -> Prepared | RowError:
        """Returns the stage's request for a row, and its fingerprint; or why there can be none."""
        visible = view.prompt_values(stage)
        try:
            text = stage.prompt.render(visible)
            before = self._openings[stage.index]
            if before is None:
                before = opening(stage, visible)
            messages = (*before, Message("user", text))
        except MissingField as missing:
            return _missing(stage, missing)
        prints = partial(task_prints, stage, stage.prints, row_id=row_id, run=self._run)
        messages, (fingerprint, replicas), redone = asked_again(
            stage, messages, row_id, self.redos, prints
        )
        if redone:
            view.redone[stage.name] = redone
        return Prepared(fingerprint, stage, messages, replicas)
