"""What the stages of a stored row saw of it: the fields that it had there, and the results upstream."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from agac.core.keys import definition_hash, local_fingerprint
from agac.core.types import Message, Outcome, RowId
from agac.plan.recorded import RecordedStage
from agac.spec.template import SKIPPED
from agac.store.history import TaskRecord


class Rebuilt:
    """One row, stage after stage: `learn` what became of each before the next is asked about."""

    def __init__(self, data: dict[str, Any] | None) -> None:
        self._forms: dict[str | None, dict[str, Any]] = {} if data is None else {None: data}
        self._results: dict[str, Any] = {}

    @property
    def is_readable(self) -> bool:
        """Whether the row could be read at all."""
        return None in self._forms

    def learn(self, stage: RecordedStage, task: TaskRecord | None) -> None:
        """What became of a stage: `task` None when nothing did, or when what did is of an earlier row."""
        if task is None or stage.rows_of not in self._forms:
            return
        before = self._forms[stage.rows_of]
        if task.outcome == Outcome.SKIPPED:
            self._results[stage.name] = SKIPPED
            self._forms[stage.name] = before
        elif task.outcome not in (Outcome.DONE, Outcome.REUSED):
            return
        elif stage.operation is None:
            if task.value is not None:
                self._results[stage.name] = json.loads(task.value)
        elif (form := stage.form(before, task.value)) is not None:
            self._forms[stage.name] = self._results[stage.name] = form

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Which of these stages have no result that is known."""
        return [name for name in names if name not in self._results]

    def lacking(self, stage: RecordedStage) -> str | None:
        """The first stage upstream of which nothing is known. One that only filters gives nothing to know."""
        return next(iter(self.unknown(stage.ancestors)), None)

    def messages(self, stage: RecordedStage) -> tuple[Message, ...]:
        """What the stage asks of the row. Raises MissingField."""
        results = {name: self._results[name] for name in stage.ancestors if name in self._results}
        return stage.messages(self._forms[stage.rows_of], results)

    def fingerprint(self, stage: RecordedStage, messages: tuple[Message, ...], row_id: RowId, run: int) -> bytes | None:
        """The fingerprint of a stage that was asked with these messages; None of one that has none."""
        if stage.operation is None:
            return stage.fingerprint(messages, row_id, run)
        return local_fingerprint(definition_hash(stage.operation), self.given(stage)) if stage.is_kept else None

    def given(self, stage: RecordedStage) -> dict[str, Any]:
        """What a function was given."""
        known = {name: self._results[name] for name in stage.ancestors if name in self._results}
        plain = {name: None if value is SKIPPED else value for name, value in known.items()}
        return {**self._forms[stage.rows_of], **{n: value for n, value in plain.items() if n not in self._forms}}
