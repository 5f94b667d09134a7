"""Files and batches at a provider as values: orders, states, results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal


class BatchState(StrEnum):
    """The state of a batch at its provider: the same words for all of them."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True if nothing will happen to it any more. An unknown state is read as `in_progress`."""
        return self in _TERMINAL


_TERMINAL = frozenset(
    (BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED)
)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be created."""

    key: str
    """Names it at the provider where it can (`metadata.agac_intent`)."""
    path: Path
    """The requests; the last line ends with a line break too."""
    endpoint: str
    """The dialect's path with the prefix."""
    model: str
    """The model that is asked."""
    requests: int
    """How many requests there are."""
    file_id: str | None = None
    """The uploaded input; None where requests are sent inline from `path`."""
    window: str | None = None
    """The completion window; None: the provider's first."""


@dataclass(frozen=True, slots=True)
class BatchError:
    """Why a provider refused a batch as a whole."""

    code: str
    """The provider's code; empty where there is none."""
    message: str
    """The provider's own words."""
    line: int | None = None
    """The line of the input that it is about, counted from 1."""

    @property
    def words(self) -> str:
        """The message, with the code where there is one."""
        if self.code:
            return f"{self.message} ({self.code})"
        return self.message

    def __str__(self) -> str:
        if self.line is None:
            return self.words
        return f"line {self.line}: {self.words}"


@dataclass(frozen=True, slots=True)
class Remote:
    """A file with results at the provider."""

    ref: str
    """Its id or its address."""
    kind: Literal["output", "errors"]
    """Which lines it holds."""


MOST_REASONS = 100
"""Errors of a refused batch that are quoted; each that names a line fails its task."""


@dataclass(frozen=True, slots=True)
class ProviderBatch:
    """A batch as its provider reports it. Times are seconds since 1970; counts None where it
    reports none."""

    id: str
    """Its id at the provider."""
    state: BatchState
    """Its state."""
    word: str
    """The provider's own word for its state."""
    known: bool = True
    """True if that word is known here."""
    total: int | None = None
    """The number of its requests."""
    done: int | None = None
    """Requests that were answered."""
    failed: int | None = None
    """Requests that failed."""
    created_at: float | None = None
    """When it was created."""
    expires_at: float | None = None
    """When the provider gives up."""
    ended_at: float | None = None
    """When it ended."""
    results_until: float | None = None
    """When its results are deleted."""
    key: str | None = None
    """The key of its `Order`, which it echoes."""
    file_id: str | None = None
    """The file of its `Order`, which it echoes."""
    results: tuple[Remote, ...] = ()
    """Its results, once it is terminal; there may be none."""
    errors: tuple[BatchError, ...] = ()
    """Why it was refused as a whole."""

    @property
    def reasons(self) -> str:
        """Why it was refused: the first hundred errors."""
        quoted = [error.words for error in self.errors[:MOST_REASONS]]
        more = len(self.errors) - MOST_REASONS
        if more > 0:
            quoted.append(f"and {more:,} more")
        return "; ".join(quoted)

    def stored(self) -> dict[str, Any]:
        """Returns what is kept of it with our batch: the values of the statement `batch_seen`, but
        our number and the time."""
        same = ("word", "total", "done", "failed", "expires_at", "results_until", "ended_at")
        return {
            "provider_id": self.id,
            "status": self.state.value,
            **{name: getattr(self, name) for name in same},
        }


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """An input or output file at the provider."""

    id: str
    """Its id."""
    name: str
    """Its name."""
    size: int | None
    """Its size in bytes; None: unknown."""
    key: str | None = None
    """The key of the batch that it belongs to, where that is known."""


EndedBatch = Literal["answered", "expired", "cancelled", "unanswered", "too_large"]
"""What a result's line says became of a request. `answered`: an HTTP status and a body, good or
bad; `unanswered`: it failed at the provider without either, which is not billed; `too_large`: its
line is longer than is read."""


@dataclass(frozen=True, slots=True)
class ResultLine:
    """A line of results."""

    custom_id: str
    """Which request it answers."""
    ended: EndedBatch
    """What became of the request."""
    status: int = 0
    """The HTTP status."""
    body: bytes = b""
    """The payload's bytes, for a dialect's `parse`."""
    message: str = ""
    """What is said where there is no body."""


BOM = b"\xef\xbb\xbf"


def result_lines(path: Path, longest: int) -> Iterator[bytes]:
    """Yields the lines of a file of results but blank ones; of a line above `longest` bytes one
    byte more. LF alone ends a line."""
    with path.open("rb") as file:
        if file.read(len(BOM)) != BOM:
            file.seek(0)
        while line := file.readline(longest + 1):
            rest = line
            while len(rest) > longest and not rest.endswith(b"\n"):
                rest = file.readline(longest + 1)
            bare = line.rstrip(b"\r\n")
            if bare:
                yield bare


class UnreadableLine(ValueError):
    """A line of results that is no result: not UTF-8, not JSON, no object, no custom_id. The
    message says which."""


STATES: Mapping[str, tuple[BatchState, bool]] = {
    **{state.value: (state, True) for state in BatchState},
    "canceling": (BatchState.CANCELLING, True),
    "canceled": (BatchState.CANCELLED, True),
}
"""What the words of providers mean, in lower case, and whether they are known."""

UNKNOWN = (BatchState.IN_PROGRESS, False)
