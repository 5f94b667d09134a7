"""What one invocation may ask, beyond what the run is: which stages, which rows, and what is asked anew."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from agac.core.types import RowId


@dataclass(frozen=True, slots=True)
class Scope:
    """`stages` are the names of those that may be asked, None: all. What others lack keeps a row open.

    Without `retry_failed` rows that failed at a stage stay as they are.
    """

    stages: frozenset[str] | None = None
    retry_failed: bool = True

    def may_ask(self, stage: str) -> bool:
        """Whether the stage's tasks may be asked."""
        return self.stages is None or stage in self.stages

    def tries_again(self, stage: str) -> bool:
        """Whether rows that failed at the stage are tried again."""
        return self.retry_failed and self.may_ask(stage)


@dataclass(frozen=True, slots=True)
class Retry:
    """Rows of a run that are taken up again, from the store: those that failed, also where that is left alone else.

    `rows`, `stage`, `error` choose among them. With `from_stage` that stage and those after it are asked anew, of done
    rows too: only answers made at or after `since`, seconds since 1970, are taken.
    """

    rows: tuple[RowId, ...] = ()
    stage: str | None = None
    error: str | None = None
    from_stage: str | None = None
    since: float = 0.0
    run: int = 0

    def filters(self) -> dict[str, Any]:
        """What was chosen, as an invocation remembers it."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @staticmethod
    def of_filters(filters: dict[str, Any]) -> Retry:
        """The retry that `filters` was made of."""
        return Retry(**{**filters, "rows": tuple(filters["rows"])})

    def same_choice(self, filters: dict[str, Any]) -> bool:
        """Whether an earlier retry chose the same rows and stages."""
        own = self.filters()
        return all(filters.get(key) == own[key] for key in own if key not in ("since", "run"))


class Opened(NamedTuple):
    """Rows that a retry opened before it was broken off: those placed from the invocation `first` on. From the stage at
    `again_from` on they take only answers made at or after `since`."""

    first: int
    again_from: int | None
    since: float
