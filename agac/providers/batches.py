"""What a provider's batch API is: the few hooks in which providers differ, around one life cycle (`engine.batch`).

An implementation never sleeps, retries or logs, and sends every request once: what it could not do comes back as a
`Fault`, and the engine decides. `Fault.ambiguous` on a create says that the batch may exist: it is looked for then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

from agac.core.types import Fault


class BatchState(StrEnum):
    """How a batch stands at its provider: the same words for all of them."""

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
        """Whether nothing will happen to it any more. A state that nobody knows is read as `in_progress`."""
        return self in (BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED)


FindsBy = Literal["key", "file", "count"]
"""How a batch is found of which we never learned the id: by our own key, which it echoes; by its input file, which is
its alone; by nothing but the number of its requests and the time (Anthropic), to be confirmed by a result's id."""


@dataclass(frozen=True, slots=True)
class BatchTraits:
    """The batch API of a provider, as data: the column `batch` of the provider table. Sizes in bytes, times in seconds.

    `api` is the key of its implementation in `batchapis.BATCH_APIS`. Every number has its source where it is set.
    """

    api: str
    max_requests: int = 50_000
    """Requests in a batch."""
    max_bytes: int = 200_000_000
    """Bytes of the input, of the file or of the body."""
    max_line_bytes: int | None = None
    """Bytes of one request; None: only the input is bounded."""
    max_open: int | None = None
    """Batches (or their files) that may be open at once; None: not known."""
    windows: tuple[str, ...] = ("24h",)
    """The completion windows that may be asked for, the default first."""
    endpoint_prefix: str = "/v1"
    """What stands before a dialect's path in a line's `url` and a batch's `endpoint`."""
    finds_by: FindsBy = "key"
    filters: str | None = None
    """The parameter by which the list is asked for our key alone (`metadata[agac_intent]`); None: it is paged through.
    What comes is compared all the same."""
    pages: bool = True
    """The list has pages; else its end may be missing, and what is absent from it may still exist."""
    grace: float = 600.0
    """How long a batch may take to show up in the list after it was created."""
    expires: bool = True
    """What is not done in the window is given up by the provider."""
    results_kept: float | None = 30 * 86_400.0
    """How long results can be fetched, from the creation of the batch; None: not known."""
    price_factor: float = 0.5
    """What its prices are multiplied by where agac.yml names no other factor."""
    unsupported: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Parameters (fields of `Params`) that batches do not take, each with what to do instead."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be created. `key` names it at the provider where it can (`metadata.agac_intent`); `file_id` is its
    uploaded input, None where requests are sent inline from `path`, whose last line ends with a line break too.
    `endpoint` is the dialect's path with the prefix."""

    key: str
    path: Path
    endpoint: str
    model: str
    requests: int
    file_id: str | None = None
    window: str | None = None


@dataclass(frozen=True, slots=True)
class BatchError:
    """Why a provider refused a batch as a whole. `line` counts the lines of the input from 1."""

    code: str
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Remote:
    """A file with results at the provider: `ref` is its id or its address; `kind` says which lines it holds."""

    ref: str
    kind: Literal["output", "errors"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A batch as its provider tells it. Times are seconds since 1970; counts None where they are not told.

    `word` is the provider's own for its state, `known` False when it is one that this program has never heard of.
    `key` and `file_id` are what it echoes of its `Order`. `results` are there once it is terminal, and may be none.
    `expires_at`: when the provider gives up; `results_until`: when its results are deleted.
    """

    id: str
    state: BatchState
    word: str
    known: bool = True
    total: int | None = None
    done: int | None = None
    failed: int | None = None
    created_at: float | None = None
    expires_at: float | None = None
    ended_at: float | None = None
    results_until: float | None = None
    key: str | None = None
    file_id: str | None = None
    results: tuple[Remote, ...] = ()
    errors: tuple[BatchError, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """An input or output file that lies at the provider. `key`: of the batch that it belongs to, where that is told."""

    id: str
    name: str
    size: int | None
    created_at: float | None
    key: str | None = None


Ended = Literal["answered", "expired", "cancelled", "unanswered"]
"""What a result's line says became of a request. `answered`: an HTTP status and a body, good or bad; `unanswered`: it
failed at the provider without either, which is not billed."""


@dataclass(frozen=True, slots=True)
class ResultLine:
    """One line of results. `body` is the endpoint's payload as bytes, as a dialect's `parse` reads it; `message` what
    is said where there is none."""

    custom_id: str
    ended: Ended
    status: int = 0
    body: bytes = b""
    message: str = ""
    request_id: str = ""


class UnreadableLine(ValueError):
    """A line of results that is no result: not UTF-8, not JSON, no object, no custom_id. The message says which."""


class BatchLines(Protocol):
    """How one request is written into a batch, and how one result is read. Pure, a module without state."""

    def line(self, custom_id: str, body: bytes, endpoint: str) -> bytes:
        """One line of the input, without its line break; `body` is the encoded JSON that the dialect built."""

    def result(self, line: bytes) -> ResultLine:
        """One line of the results. Raises UnreadableLine."""


class BatchApi(Protocol):
    """The batches of one account. Made by `batchapis.open_batch_api`; every method sends its request once."""

    @property
    def uploads(self) -> bool:
        """Whether the input is a file that is uploaded first; else `create` sends the requests themselves."""

    async def upload(self, path: Path, name: str) -> str | Fault:
        """Uploads an input file and gives its id. Killed or failing, it may leave a file behind, which costs nothing;
        `uploaded` finds it."""

    async def uploaded(self, name: str, size: int) -> str | Fault | None:
        """The id of an input file with this name and size that lies at the provider."""

    async def create(self, order: Order) -> Seen | Fault:
        """Creates a batch: this is what costs money. A Fault that is not `ambiguous` proves that there is none."""

    def candidates(self, order: Order, since: float) -> AsyncIterator[Seen | Fault]:
        """Batches that may be what `order` created: those that echo its key or its file, or (`finds_by: count`) those
        created at or after `since` with as many requests. The list is read to its end, or well past `since`; a Fault
        ends it. How they stand may lag behind what `look` says."""

    async def look(self, batch: str) -> Seen | Fault:
        """How a batch stands. A batch that is not found is a Fault of the kind RETRY: it may show up yet."""

    async def download(self, result: Remote, path: Path) -> int | Fault:
        """Writes a file of results to `path`, replacing it, syncs it to the disk and gives its size. A body that ends
        before it should is a Fault of the kind RETRY; so is one that is not there (yet); one that is said to be gone
        for good is of the kind TASK. Raises OSError when `path` cannot be written."""

    async def cancel(self, batch: str) -> Fault | None:
        """Asks for the end of a batch. One that has ended already is no fault."""

    async def delete(self, *, batch: str | None = None, file: str | None = None) -> Fault | None:
        """Deletes a file, or a batch with its results where the provider can (else nothing is done). What is gone
        already is no fault."""

    def stale(self, prefix: str) -> AsyncIterator[RemoteFile | Fault]:
        """Our input files (whose names begin with `prefix`) and result files that still lie at the provider."""

    async def close(self) -> None:
        """Closes every connection."""
