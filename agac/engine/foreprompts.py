"""The prompts of a forecast: rendered as they would be sent, measured, and some of them kept to be shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agac.core.errors import RowError
from agac.core.types import Request, RowId
from agac.engine.forecast import SAMPLE, Forecast, Prompt
from agac.plan.prepare import Preparer, Sight
from agac.plan.replicas import outcome_of_vote
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.plan.standin import TEXT


class Task(NamedTuple):
    """A task as it would be looked up; `request` None: it asks no model. `replicas` are the fingerprints of those that
    it has, else there are none."""

    fingerprint: bytes
    request: Request | None
    replicas: tuple[bytes, ...] = ()

    @property
    def asked(self) -> tuple[bytes, ...]:
        """What is looked up, and asked where there is no answer."""
        return self.replicas or (self.fingerprint,)


class Prompts:
    """Renders the prompts of a plan's tasks. `show` of them are kept in the forecast."""

    def __init__(self, preparer: Preparer, found: Forecast, show: int) -> None:
        self._preparer, self._found, self._show = preparer, found, show

    def known(self, stage: PlannedStage, sight: Sight, row_id: RowId) -> Task | None:
        """The task of a row that sees this; None when its prompt cannot be rendered."""
        prepared = self._preparer.prepare(stage, sight, row_id)
        return None if isinstance(prepared, RowError) else Task(*prepared)

    def measure(self, stage: PlannedStage, sight: Sight, row_id: RowId, further: int = 0) -> None:
        """Takes a prompt into the sample, with so many characters that are not there yet."""
        found = self._found.stages[stage.index]
        if found.sampled >= SAMPLE:
            return
        prepared = self._preparer.prepare(stage, sight, row_id)
        if isinstance(prepared, RowError):  # it names fields that are not there yet
            blank = len(stage.system or "") + len(stage.prompt.text) + len(TEXT) * len(stage.prompt.placeholders)
            found.sampled += 1
            found.characters += blank + further
        else:
            found.measure(prepared.request, further)

    def show(self, stage: AnyStage, row_id: RowId, request: Request) -> None:
        """A prompt that would be sent."""
        found = self._found.stages[stage.index]
        if found.sampled < SAMPLE:
            found.measure(request)
        if len(self._found.prompts) < self._show:
            self._found.prompts.append(Prompt(row_id, stage.name, request))


def made_of(stage: AnyStage, answers: Sequence[str]) -> str:
    """The result, JSON, of a task with these answers."""
    if stage.replicas == 1 or isinstance(stage, LocalStage):
        return answers[0]
    return outcome_of_vote(answers, stage.vote).text
