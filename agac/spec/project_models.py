"""Every mapping of agac.yml and of AgentCards as one frozen model, as `spec/models` has those of workflow files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from agac.spec import validation as check
from agac.spec.models import DefaultsFile, Duration, FileModel, NonEmpty, Paths, RunRulesFile, Size, key


class RequestParamsFile(FileModel):
    """Sampling and service parameters of a card."""

    max_tokens: int | None = key("The most tokens that a reply may have.", ge=1)
    temperature: float | None = key("Sampling temperature.", ge=0, le=2)
    top_p: float | None = key("Nucleus sampling; also written topP.", ge=0, le=1)
    top_k: int | None = key("Of how many tokens one is chosen; also written topK.", ge=1)
    min_p: float | None = key("How likely a token must be beside the likeliest; also written minP.", ge=0, le=1)
    repetition_penalty: float | None = key("Also written repetitionPenalty.", gt=0)
    presence_penalty: float | None = key("Also written presencePenalty.", ge=-2, le=2)
    frequency_penalty: float | None = key("Also written frequencyPenalty.", ge=-2, le=2)
    stop_sequences: list[NonEmpty] | None = key("Texts that end a reply.", min_length=1)
    service_tier: Literal["auto", "default", "flex", "priority", "standard_only", "fast"] | None = key(
        "Service tier; `fast` means priority."
    )


_AnyCase = Literal["agent"] | Annotated[str, Field(pattern="^[Aa][Gg][Ee][Nn][Tt]$")]


class CardFile(FileModel):
    """The front matter of an AgentCard of type agent."""

    type: Annotated[Literal["agent"], BeforeValidator(check.card_type, json_schema_input_type=_AnyCase)] = key(
        "Kind of the card.", default="agent"
    )
    name: NonEmpty | None = key("Name; the file's name when left out.")
    description: NonEmpty | None = key("What the agent is for.")
    instruction: NonEmpty | None = key("System message; instead of the text below.")
    model: NonEmpty | None = key("Model as `provider/model?key=value`.")
    request_params: Annotated[RequestParamsFile, BeforeValidator(check.camel_case)] = key(
        "Sampling and service parameters.", default=RequestParamsFile()
    )
    messages: Paths | None = key("Files of messages that stand before the prompt.", min_length=1)
    schema_version: int = key("Version of the card format.", default=1, ge=1, le=1)
    default: bool = key("No meaning in a workflow: the stage names its card.", default=False)
    tool_only: Annotated[bool, AfterValidator(check.not_tool_only)] = key("Must be false.", default=False)
    use_history: bool = key("Rows share no history; true only warns.", default=False)
    human_input: Annotated[bool, AfterValidator(check.nobody_there)] = key("Must be false.", default=False)


ApiKey = Annotated[NonEmpty, AfterValidator(check.api_key), Field(json_schema_extra=check.API_KEY_FORM)]
HeaderValue = Annotated[NonEmpty, AfterValidator(check.header_value)]


class LimitsFile(FileModel):
    """What a provider lets an account do."""

    concurrency: int | None = key("The most calls in flight at a time.", ge=1, le=10_000)
    rpm: int | None = key("Requests a minute.", ge=1)
    tpm: int | None = key("Tokens a minute.", ge=1)
    enqueued_tokens: int | None = key(
        "Prompt tokens that may wait in batches of one model at once; learned from refusals when left out.", ge=1
    )
    reply_mb: int = key("The most megabytes of one decoded reply; more fails its row.", default=16, ge=1, le=1000)


class PriceFile(FileModel):
    """US dollars for a million tokens."""

    input: float = Field(ge=0, description="$ per million input tokens.")
    cached_input: float | None = key("$ per million input tokens that were cached.", ge=0)
    output: float = Field(ge=0, description="$ per million output tokens.")
    batch: float | None = key("Factor on all prices in batches; the provider's when left out.", gt=0, le=1)
    flex: float | None = key("Factor on all prices of the service tier flex.", gt=0)
    priority: float | None = key("Factor on all prices of the tier priority.", gt=0)


BatchApiName = Literal["openai", "anthropic", "none"]


class BatchApiFile(FileModel):
    """The batch API that a provider offers, and where it differs from the one that it is like."""

    api: BatchApiName = Field(description="Whose batch API it speaks; `none`: it has no batches.")
    max_requests: int | None = key("The most requests in a batch.", ge=1)
    max_bytes: Size | None = key("The most bytes of a batch's input: a number, or a text as `100MB`.", ge=1)
    windows: Annotated[list[NonEmpty], Field(min_length=1)] | None = key(
        "The completion windows that may be asked for, the usual one first.", examples=[["24h"]]
    )
    endpoint_prefix: Annotated[str, AfterValidator(check.endpoint_prefix)] | None = key(
        "What stands before the dialect's path in a request's `url`; `/v1` when left out."
    )
    finds_by: Literal["key", "file", "count"] | None = key(
        "How a batch is found whose creation was cut off: by our `key`, which the list echoes as "
        "`metadata.agac_intent`, by its input `file`, or by the `count` of its requests."
    )
    filters: NonEmpty | None = key(
        "The parameter by which the list is asked for our key alone, as `metadata[agac_intent]`."
    )
    pages: bool | None = key("Whether its lists have pages; true when left out.")
    grace: Duration | None = key("How long a new batch may take to show up in the list: `20s`, `10m`.", ge=0, le=86_400)
    results_kept: Duration | None = key("How long results can be fetched from the creation of a batch: `30d`.", gt=0)


DialectName = Annotated[Literal["openai-chat", "openai-responses", "anthropic"], BeforeValidator(check.dialect)]
BatchApi = Annotated[BatchApiFile, BeforeValidator(check.batch_api, json_schema_input_type=BatchApiName | BatchApiFile)]


class ProviderSpec(FileModel):
    """A provider as agac.yml tells it. `${VAR}` in texts is looked up in the environment by whoever uses them."""

    dialect: DialectName | None = key("The API that it speaks.")
    base_url: Annotated[str, AfterValidator(check.base_url)] | None = key(
        "Address up to and with the version, as `http://127.0.0.1:8000/v1`."
    )
    api_key: ApiKey | None = key("The key as `${VARIABLE}` of the environment or .env.")
    batch: BatchApi | None = key(
        "Batch API that it offers: `openai`, `anthropic`, `none`, or a mapping that says where it differs; when left "
        "out what agac knows of it, else sync only."
    )
    structured: Literal["json_schema", "json_object", "none"] | None = key(
        "What it can be told about the form of an answer."
    )
    seeds: bool | None = key("Whether it can be told a seed, as `replicas` does; true when left out.")
    limits: LimitsFile = key("What the account may do.", default=LimitsFile())
    prices: dict[NonEmpty, PriceFile] = key("Prices by model.", default={})
    headers: dict[Annotated[str, AfterValidator(check.header_name)], HeaderValue] = key(
        "Headers to send with every request.", default={}
    )


class PathsFile(FileModel):
    """The project's folders, relative to its root."""

    workflows: NonEmpty = key("Workflow files.", default="workflows")
    agentcards: NonEmpty = key("AgentCards.", default="agentcards")
    schemas: NonEmpty = key("JSON Schemas.", default="schemas")
    output: NonEmpty = key("Results of workflows that name no folder.", default="output")


class RemoteContentFile(FileModel):
    """What may be fetched from elsewhere (`https://`, `hf://`, `file://`), and how much of it."""

    allow: list[NonEmpty] = key(
        "Hosts, addresses and networks (`10.0.0.0/8`) that may be reached although they are loopback or private, and "
        "folders outside of the project whose files `file://` may name.",
        default=[],
        examples=[["intranet.example.com"]],
    )
    http: bool = key(
        "Whether `http://` may be fetched too, which anybody on the way can read and change.", default=False
    )
    max_mb: int = key(
        "The most megabytes of an input, as it is sent and unpacked; a text may have 5.", default=20_000, ge=1
    )
    timeout: Duration = key(
        "How long a server may be silent, and a transfer take beside a second for every 10 kB: seconds, or a text.",
        default=60.0,
        gt=0,
        le=86_400,
        json_schema_extra={"default": "60s"},
    )
    headers: dict[NonEmpty, dict[Annotated[str, AfterValidator(check.header_name)], HeaderValue]] = key(
        "Headers by host, which no other host is sent: `data.example.com: {Authorization: Bearer ${DATA_TOKEN}}`.",
        default={},
    )


class ProjectFile(RunRulesFile):
    """agac.yml; nothing in it is required."""

    providers: dict[Annotated[str, AfterValidator(check.provider_name)], ProviderSpec] = key(
        "Providers on top of the ones that agac knows.", default={}
    )
    aliases: dict[NonEmpty, NonEmpty] = key(
        "Short names of models, as `fast: openai/gpt-5.4-mini?reasoning=low`.", default={}
    )
    defaults: DefaultsFile = key("What holds for all workflows.", default=DefaultsFile())
    paths: PathsFile = key("The project's folders.", default=PathsFile())
    remote: RemoteContentFile = key("What may be fetched from elsewhere.", default=RemoteContentFile())
