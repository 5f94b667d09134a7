"""The keys of `agac.yml` that workflow files do not have too: see `models`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from agac.spec import modelchecks as check
from agac.spec.filemodel import FileModel, NonEmpty
from agac.spec.models import DefaultsFile, RunRulesFile

ApiKey = Annotated[NonEmpty, AfterValidator(check.api_key), Field(json_schema_extra=check.API_KEY_FORM)]
HeaderValue = Annotated[NonEmpty, AfterValidator(check.header_value)]


class LimitsFile(FileModel):
    """What a provider lets an account do."""

    concurrency: int | None = Field(default=None, ge=1, le=10_000, description="The most calls in flight at a time.")
    rpm: int | None = Field(default=None, ge=1, description="Requests a minute.")
    tpm: int | None = Field(default=None, ge=1, description="Tokens a minute.")


class PriceFile(FileModel):
    """US dollars for a million tokens."""

    input: float = Field(ge=0, description="$ per million input tokens.")
    cached_input: float | None = Field(default=None, ge=0, description="$ per million input tokens that were cached.")
    output: float = Field(ge=0, description="$ per million output tokens.")
    batch: float | None = Field(default=None, gt=0, le=1, description="Factor on all prices in batch mode.")
    flex: float | None = Field(default=None, gt=0, description="Factor on all prices of the service tier flex.")
    priority: float | None = Field(default=None, gt=0, description="Factor on all prices of the tier priority.")


class ProviderSpec(FileModel):
    """A provider as agac.yml tells it. `${VAR}` in texts is looked up in the environment by whoever uses them."""

    dialect: Annotated[Literal["openai-chat", "openai-responses"], BeforeValidator(check.dialect)] | None = Field(
        default=None, description="The API that it speaks."
    )
    base_url: Annotated[str, AfterValidator(check.base_url)] | None = Field(
        default=None, description="Address up to and with the version, as `http://127.0.0.1:8000/v1`."
    )
    api_key: ApiKey | None = Field(default=None, description="The key as `${VARIABLE}` of the environment or .env.")
    batch: Literal["openai"] | None = Field(
        default=None, description="Batch API that it offers; sync only when left out."
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
