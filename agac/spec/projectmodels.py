"""The keys of `agac.yml` that workflow files do not have too: see `models`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from agac.spec import modelchecks as check
from agac.spec.batchmodels import Size
from agac.spec.filemodel import Duration, FileModel, NonEmpty
from agac.spec.models import DefaultsFile, RunRulesFile

ApiKey = Annotated[NonEmpty, AfterValidator(check.api_key), Field(json_schema_extra=check.API_KEY_FORM)]
HeaderValue = Annotated[NonEmpty, AfterValidator(check.header_value)]


class LimitsFile(FileModel):
    """What a provider lets an account do."""

    concurrency: int | None = Field(default=None, ge=1, le=10_000, description="The most calls in flight at a time.")
    rpm: int | None = Field(default=None, ge=1, description="Requests a minute.")
    tpm: int | None = Field(default=None, ge=1, description="Tokens a minute.")
    enqueued_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Prompt tokens that may wait in batches of one model at once; learned from refusals when left out.",
    )


class PriceFile(FileModel):
    """US dollars for a million tokens."""

    input: float = Field(ge=0, description="$ per million input tokens.")
    cached_input: float | None = Field(default=None, ge=0, description="$ per million input tokens that were cached.")
    output: float = Field(ge=0, description="$ per million output tokens.")
    batch: float | None = Field(
        default=None, gt=0, le=1, description="Factor on all prices in batches; the provider's when left out."
    )
    flex: float | None = Field(default=None, gt=0, description="Factor on all prices of the service tier flex.")
    priority: float | None = Field(default=None, gt=0, description="Factor on all prices of the tier priority.")


BatchApiName = Literal["openai", "anthropic", "none"]


class BatchApiFile(FileModel):
    """The batch API that a provider offers, and where it differs from the one that it is like."""

    api: BatchApiName = Field(description="Whose batch API it speaks; `none`: it has no batches.")
    max_requests: int | None = Field(default=None, ge=1, description="The most requests in a batch.")
    max_bytes: Size | None = Field(
        default=None, ge=1, description="The most bytes of a batch's input: a number, or a text as `100MB`."
    )
    windows: Annotated[list[NonEmpty], Field(min_length=1)] | None = Field(
        default=None,
        description="The completion windows that may be asked for, the usual one first.",
        examples=[["24h"]],
    )
    endpoint_prefix: Annotated[str, AfterValidator(check.endpoint_prefix)] | None = Field(
        default=None, description="What stands before the dialect's path in a request's `url`; `/v1` when left out."
    )
    finds_by: Literal["key", "file", "count"] | None = Field(
        default=None,
        description="How a batch is found whose creation was cut off: by our `key`, which the list echoes as "
        "`metadata.agac_intent`, by its input `file`, or by the `count` of its requests.",
    )
    filters: NonEmpty | None = Field(
        default=None,
        description="The parameter by which the list is asked for our key alone, as `metadata[agac_intent]`.",
    )
    pages: bool | None = Field(default=None, description="Whether its lists have pages; true when left out.")
    grace: Duration | None = Field(
        default=None, ge=0, le=86_400, description="How long a new batch may take to show up in the list: `20s`, `10m`."
    )
    results_kept: Duration | None = Field(
        default=None, gt=0, description="How long results can be fetched from the creation of a batch: `30d`."
    )


class ProviderSpec(FileModel):
    """A provider as agac.yml tells it. `${VAR}` in texts is looked up in the environment by whoever uses them."""

    dialect: (
        Annotated[Literal["openai-chat", "openai-responses", "anthropic"], BeforeValidator(check.dialect)] | None
    ) = Field(default=None, description="The API that it speaks.")
    base_url: Annotated[str, AfterValidator(check.base_url)] | None = Field(
        default=None, description="Address up to and with the version, as `http://127.0.0.1:8000/v1`."
    )
    api_key: ApiKey | None = Field(default=None, description="The key as `${VARIABLE}` of the environment or .env.")
    batch: (
        Annotated[BatchApiFile, BeforeValidator(check.batch_api, json_schema_input_type=BatchApiName | BatchApiFile)]
        | None
    ) = Field(
        default=None,
        description="Batch API that it offers: `openai`, `anthropic`, `none`, or a mapping that says where it differs; "
        "when left out what agac knows of it, else sync only.",
    )
    structured: Literal["json_schema", "json_object", "none"] | None = Field(
        default=None, description="What it can be told about the form of an answer."
    )
    seeds: bool | None = Field(
        default=None, description="Whether it can be told a seed, as `replicas` does; true when left out."
    )
    limits: LimitsFile = Field(default=LimitsFile(), description="What the account may do.")
    prices: dict[NonEmpty, PriceFile] = Field(default={}, description="Prices by model.")
    headers: dict[Annotated[str, AfterValidator(check.header_name)], HeaderValue] = Field(
        default={}, description="Headers to send with every request."
    )


class PathsFile(FileModel):
    """The project's folders, relative to its root."""

    workflows: NonEmpty = Field(default="workflows", description="Workflow files.")
    agentcards: NonEmpty = Field(default="agentcards", description="AgentCards.")
    schemas: NonEmpty = Field(default="schemas", description="JSON Schemas.")
    output: NonEmpty = Field(default="output", description="Results of workflows that name no folder.")


class ProjectFile(RunRulesFile):
    """agac.yml; nothing in it is required."""

    providers: dict[Annotated[str, AfterValidator(check.provider_name)], ProviderSpec] = Field(
        default={}, description="Providers on top of the ones that agac knows."
    )
    aliases: dict[NonEmpty, NonEmpty] = Field(
        default={}, description="Short names of models, as `fast: openai/gpt-5.4-mini?reasoning=low`."
    )
    defaults: DefaultsFile = Field(default=DefaultsFile(), description="What holds for all workflows.")
    paths: PathsFile = Field(default=PathsFile(), description="The project's folders.")
