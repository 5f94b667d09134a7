"""What the stages of a stored row saw of it: the fields that it had there, and the results upstream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agac.core.keys import definition_hash, local_fingerprint
from agac.core.types import JSONValue, Message, Outcome, RowId
from agac.plan.prepare import Sight
from agac.plan.recorded import RecordedStage
from agac.store.history import TaskRecord


class Rebuilt:
    """One row, stage after stage: `learn` what became of each before the next is asked about. `data` None: the row
    could not be read."""

    def __init__(self, data: dict[str, Any] | None, variables: Mapping[str, JSONValue]) -> None:
        self.is_readable = data is not None
        self._sight = Sight(data or {}, dict(variables))

    def learn(self, stage: RecordedStage, task: TaskRecord | None) -> None:
        """What became of a stage: `task` None when nothing did, or when what did is of an earlier row."""
        if task is None or stage.rows_of not in self._sight.forms:
            return
        if task.outcome == Outcome.SKIPPED:
            self._sight.pass_over(stage)
        elif task.outcome not in (Outcome.DONE, Outcome.REUSED):
            return
        elif stage.asks:
            if task.value is not None:
                self._sight.results[stage.name] = json.loads(task.value)
        elif (form := stage.form(self._sight.data(stage), task.value)) is not None:
            self._sight.become(stage, form)

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Which of these stages have no result that is known."""
        return [name for name in names if name not in self._sight.results]

    def lacking(self, stage: RecordedStage) -> str | None:
        """The first stage upstream of which nothing is known."""
        return next(iter(self.unknown(stage.ancestors)), None)

    def messages(self, stage: RecordedStage) -> tuple[Message, ...]:
        """What the stage asks of the row. Raises MissingField."""
        return stage.messages(self._sight)

    def fingerprint(self, stage: RecordedStage, messages: tuple[Message, ...], row_id: RowId, run: int) -> bytes | None:
        """The fingerprint of a stage that was asked with these messages; None of one that has none."""
        if stage.operation is None:
            return stage.fingerprint(messages, row_id, run)
        return local_fingerprint(definition_hash(stage.operation), self._sight.given(stage)) if stage.is_kept else None
