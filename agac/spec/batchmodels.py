"""The keys of `batch:`, which stands among the defaults of both files and in stages: see `models`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from agac.spec import modelchecks as check
from agac.spec.filemodel import Duration, FileModel, NonEmpty
from agac.spec.rounds import AtDeadline, BatchRetry

SizeText = Annotated[str, Field(json_schema_extra=check.SIZE_FORM)]
Size = Annotated[int, BeforeValidator(check.size, json_schema_input_type=SizeText | int)]
Deadline = Annotated[Any, AfterValidator(check.deadline), Field(json_schema_extra={"type": ["string", "number"]})]


class BatchFile(FileModel):
    """How batches are cut, waited for and ended. Each key that is given takes the place of the same key of the defaults
    above it; what is left out stays as they say."""

    max_requests: int | None = Field(
        default=None, ge=1, description="The most requests in a batch; as many as the provider takes when left out."
    )
    max_bytes: Size | None = Field(
        default=None,
        ge=1,
        description="The most bytes of a batch's input: a number, or a text as `500kB`, `100MB`; as many as the "
        "provider takes when left out.",
        examples=["100MB"],
    )
    completion_window: NonEmpty | None = Field(
        default=None,
        description="The time that the provider is given, in its own words (`24h`); its own choice when left out.",
    )
    poll_interval: Duration | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="How often a waiting command asks the provider: seconds, or a text as `30s`. When left out, after "
        "15 s at first, and up to 5 min while nothing moves.",
    )
    grace: Duration | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="How long a batch whose creation was cut off is looked for at the provider before it is created "
        "again; as the provider's list needs when left out.",
    )
    retry: BatchRetry | None = Field(
        default=None,
        description="Where a request is asked again that a batch left without a good answer: in the next `batch` (when "
        "left out), at once by a call (`sync`), or nowhere (`fail`).",
    )
    max_rounds: int | None = Field(
        default=None, ge=1, le=100, description="In how many batches one request may be; 3 when left out."
    )
    deadline: Deadline | None = Field(
        default=None,
        description="When a batch that is not finished is cancelled: a time from its submission as `8h`, or a time of "
        "day as `07:30`, the next one after it; what was finished is kept.",
        examples=["8h", "07:30"],
    )
    on_deadline: AtDeadline | None = Field(
        default=None,
        description="What becomes of the requests that the deadline left over: calls at full price (`sync`, when left "
        "out), or none: it only is said, and the batch goes on (`wait`).",
    )
    stuck_after: Duration | None = Field(
        default=None,
        gt=0,
        description="How long a batch may stand still until it is said to be stuck: seconds, or a text; 6h when left "
        "out.",
    )
