"""A row and a stage become a request and its fingerprint: the same for asking, for looking up and for showing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.types import JSONValue, Message, Request, RowId, Visible
from agac.plan.plan import PlannedStage
from agac.spec.template import MissingField, VisibleRow, visible_row
from agac.spec.workflow import Example, ReusePolicy


class Prepared(NamedTuple):
    """A task that is ready to be looked up or asked."""

    fingerprint: bytes
    request: Request


class Preparer:
    """Renders the messages of one run's tasks. `run` is its number: part of the fingerprint under `reuse: never`."""

    def __init__(self, stages: tuple[PlannedStage, ...], variables: Mapping[str, JSONValue], run: int) -> None:
        self._vars, self._run = dict(variables), run
        self._systems = tuple(Message.of("system", s.system) if s.system else None for s in stages)
        self._fixed = tuple(_same_for_all(s.messages) for s in stages)

    def visible(self, data: dict[str, JSONValue] | None, results: dict[str, JSONValue]) -> VisibleRow:
        """What a row's templates see; results that are added later are seen too."""
        return visible_row(data or {}, results, self._vars)

    def prepare(self, stage: PlannedStage, visible: VisibleRow, row_id: RowId) -> Prepared | RowError:
        """The stage's request for a row, and what stands for it; or why none can be made."""
        try:
            text = stage.prompt.render(visible)
            examples = self._fixed[stage.index]
            if examples is None:
                examples = rendered(stage.messages, visible)
        except MissingField as missing:
            return RowError(
                ErrorType.MISSING_TEMPLATE_FIELD,
                f"stage {stage.name!r}: this row has no ${{{missing.name}}}; "
                f"visible are: {', '.join(missing.visible) or 'nothing'}",
            )
        system, user = self._systems[stage.index], Message.of("user", text)
        messages = (system, *examples, user) if system else (*examples, user)
        salt = "" if stage.reuse == "content" else reuse_salt(stage.reuse, row_id, self._run)
        return Prepared(stage.prints.fingerprint(messages, salt=salt), Request(messages, stage.schema, stage.params))


def rendered(examples: tuple[Example, ...], visible: Visible) -> tuple[Message, ...]:
    """The examples as messages. Raises MissingField."""
    return tuple(Message.of(one.role, one.content.render(visible)) for one in examples)


def _same_for_all(examples: tuple[Example, ...]) -> tuple[Message, ...] | None:
    """The messages of examples without placeholders, made once; None when each row has its own."""
    return None if any(one.content.placeholders for one in examples) else rendered(examples, {})


def reuse_salt(reuse: ReusePolicy, row_id: RowId, run: int) -> str:
    """What keeps equal requests apart: nothing for `content`, the row for `row`, the row in this run for `never`."""
    match reuse:
        case "content":
            return ""
        case "row":
            return json.dumps(row_id)
        case "never":
            return json.dumps([row_id, run])
