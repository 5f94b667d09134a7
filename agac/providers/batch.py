"""Batches at providers as values, and what is known of each provider's batch API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
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
        """Whether nothing will happen to it any more. An unknown state is read as `in_progress`."""
        return self in (BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED)


FindsBy = Literal["key", "file", "count"]
"""How a batch is found of which we never learned the id: by our own key, which it echoes; by its input file, which is
its alone; by nothing but the number of its requests and the time (Anthropic), to be confirmed by a result's id."""


@dataclass(frozen=True, slots=True)
class BatchTraits:
    """The batch API of a provider, as data: the column `batch` of the provider table. Sizes in bytes, times in seconds.

    `api` is the key of its implementation in `batch_apis.BATCH_APIS`. Every number has its source where it is set.
    """

    api: str
    max_requests: int = 50_000
    """Requests in a batch."""
    max_bytes: int = 200_000_000
    """Bytes of the input, of the file or of the body."""
    max_open: int | None = None
    """Batches (or their files) that may be open at once; None: not known."""
    windows: tuple[str, ...] = ("24h",)
    """The completion windows that may be asked for, the default first."""
    endpoint_prefix: str = "/v1"
    """The prefix of a dialect's path in a line's `url` and a batch's `endpoint`."""
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

    @property
    def words(self) -> str:
        """The message, with the code where there is one."""
        return f"{self.message} ({self.code})" if self.code else self.message


@dataclass(frozen=True, slots=True)
class Remote:
    """A file with results at the provider: `ref` is its id or its address; `kind` says which lines it holds."""

    ref: str
    kind: Literal["output", "errors"]


@dataclass(frozen=True, slots=True)
class ProviderBatch:
    """A batch as its provider reports it. Times are seconds since 1970; counts None where it reports none.

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

    def stored(self) -> dict[str, Any]:
        """What is kept of it with our batch: the values of the statement `batch_seen`, but our number and the time."""
        return {
            "provider_id": self.id,
            "status": self.state.value,
            "word": self.word,
            "total": self.total,
            "done": self.done,
            "failed": self.failed,
            "expires_at": self.expires_at,
            "results_until": self.results_until,
            "ended_at": self.ended_at,
        }


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """An input or output file at the provider. `key`: of the batch that it belongs to, where that is known."""

    id: str
    name: str
    size: int | None
    key: str | None = None


EndedBatch = Literal["answered", "expired", "cancelled", "unanswered"]
"""What a result's line says became of a request. `answered`: an HTTP status and a body, good or bad; `unanswered`: it
failed at the provider without either, which is not billed."""


@dataclass(frozen=True, slots=True)
class ResultLine:
    """One line of results. `body` is the endpoint's payload as bytes, as a dialect's `parse` reads it; `message` what
    is said where there is none."""

    custom_id: str
    ended: EndedBatch
    status: int = 0
    body: bytes = b""
    message: str = ""


class UnreadableLine(ValueError):
    """A line of results that is no result: not UTF-8, not JSON, no object, no custom_id. The message says which."""


STATES: Mapping[str, tuple[BatchState, bool]] = {
    **{state.value: (state, True) for state in BatchState},
    "canceling": (BatchState.CANCELLING, True),
    "canceled": (BatchState.CANCELLED, True),
}
"""What the words of providers mean, in lower case, and whether they are known."""

UNKNOWN = (BatchState.IN_PROGRESS, False)
"""An unknown word is not an end: the batch is asked for again."""


# What is known about the batches of each provider, as data: numbers with their sources, read November 2026.

DAY = 86_400.0

_OWN_TIER = MappingProxyType({"service_tier": "a batch is a service tier of its own, with its own price; leave it out"})
"""openai.com/api/pricing and platform.claude.com/docs/en/api/service-tiers list batches beside the other tiers."""

ANTHROPIC = BatchTraits(
    # platform.claude.com/docs/en/build-with-claude/batch-processing: 100,000 requests or 256 MB, results
    # for 29 days; the object has no field for anything of ours. Grace: retrieving a batch answered
    # 404 for minutes after its creation (github.com/anthropics/anthropic-sdk-python/issues/1432)
    api="anthropic",
    max_requests=100_000,
    max_bytes=256_000_000,
    finds_by="count",
    grace=1800.0,
    results_kept=29 * DAY,
    unsupported=_OWN_TIER,
)

GENERIC: dict[str, BatchTraits] = {
    # look-alikes: it is not promised that metadata is echoed, how long files are kept, or that batches are cheaper
    "openai": BatchTraits(api="openai", grace=600.0, results_kept=None, price_factor=1.0),
    "anthropic": replace(ANTHROPIC, price_factor=1.0),
}
"""What agac.yml's `batch: NAME` stands for where the provider has no row of its own that says more."""

OPENAI = replace(
    # the openai SDK 3.52, batches.create and files.create: 50,000 requests, 200 MB, 24h, 16 pairs of metadata, which
    # the list echoes; input files are kept for 30 days, and nothing else is said of results
    GENERIC["openai"],
    grace=20.0,
    results_kept=30 * DAY,
    price_factor=0.5,
    unsupported=_OWN_TIER,
)

AZURE = replace(
    # learn.microsoft.com/azure/ai-foundry/openai/how-to/batch: 100,000 requests, 200 MB, 500 files in a resource;
    # what takes longer than 24 hours goes on. Whether the list echoes metadata is not said: by the input file then
    GENERIC["openai"],
    max_requests=100_000,
    max_open=500,
    expires=False,
    price_factor=0.5,
    unsupported=_OWN_TIER,
)

SIMULATOR = replace(OPENAI, unsupported={})
