"""Every mapping of agac.yml as one frozen model, as `spec/models` has those of workflow files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from agac.spec import validation as check
from agac.spec.default_models import DefaultsFile
from agac.spec.file_model import Duration, FileModel, NonEmpty, Size, key
from agac.spec.rule_models import RunRulesFile
from agac.spec.stage_models import ToolFile
from agac.spec.tools import ToolScope

ApiKey = Annotated[
    NonEmpty, AfterValidator(check.api_key), Field(json_schema_extra=check.API_KEY_FORM)
]
HeaderValue = Annotated[NonEmpty, AfterValidator(check.header_value)]
Headers = dict[Annotated[str, AfterValidator(check.header_name)], HeaderValue]
ServerName = Annotated[str, AfterValidator(check.server_name)]
Target = Annotated[NonEmpty, AfterValidator(check.mcp_target)]
TARGET = "A URL, `@scope/package`, or the command that starts it with its arguments."


class LimitsFile(FileModel):
    """What a provider lets an account do."""

    concurrency: int | None = key("The most calls in flight at a time.", ge=1, le=10_000)
    rpm: int | None = key("Requests a minute.", ge=1)
    tpm: int | None = key("Tokens a minute.", ge=1)
    enqueued_tokens: int | None = key(
        "Prompt tokens that may wait in batches of a model; else learned.", ge=1
    )
    reply_mb: int = key(
        "The most megabytes of one decoded reply; more fails its row.", default=16, ge=1, le=1000
    )


class PriceFile(FileModel):
    """US dollars for a million tokens."""

    input: float = Field(ge=0, description="$ per million input tokens.")
    cached_input: float | None = key("$ per million input tokens that were cached.", ge=0)
    cache_write: float | None = key(
        "$ per million input tokens that were written to a cache.", ge=0
    )
    cache_write_1h: float | None = key(
        "The same where they stay there for an hour (Anthropic).", ge=0
    )
    output: float = Field(ge=0, description="$ per million output tokens.")
    batch: float | None = key(
        "Factor on all prices in batches; the provider's when left out.", gt=0, le=1
    )
    flex: float | None = key("Factor on all prices of the service tier flex.", gt=0)
    priority: float | None = key("Factor on all prices of the tier priority.", gt=0)


BatchApiName = Literal["openai", "anthropic", "none"]


class BatchApiFile(FileModel):
    """The batch API that a provider offers, and where it differs from the one that it is like."""

    api: BatchApiName = Field(description="Whose batch API it speaks; `none`: it has no batches.")
    max_requests: int | None = key("The most requests in a batch.", ge=1)
    max_bytes: Size | None = key(
        "The most bytes of a batch's input: a number, or a text as `100MB`.", ge=1
    )
    windows: Annotated[list[NonEmpty], Field(min_length=1)] | None = key(
        "The completion windows that may be asked for, the usual one first.", examples=[["24h"]]
    )
    endpoint_prefix: Annotated[str, AfterValidator(check.endpoint_prefix)] | None = key(
        "What stands before the dialect's path in a request's `url`; `/v1` when left out."
    )
    finds_by: Literal["key", "file", "count"] | None = key(
        "How a batch is found whose creation was cut off: by our `key`, its input `file`, or "
        "the `count` of requests."
    )
    filters: NonEmpty | None = key(
        "The parameter by which its list tells our key, as `metadata[agac_intent]`."
    )
    pages: bool | None = key("Whether its lists have pages; true when left out.")
    grace: Duration | None = key(
        "How long a new batch may take to show up in the list: `20s`, `10m`.", ge=0, le=86_400
    )
    results_kept: Duration | None = key(
        "How long results can be fetched from the creation of a batch: `30d`.", gt=0
    )


DialectName = Annotated[
    Literal["openai-chat", "openai-responses", "anthropic"], BeforeValidator(check.dialect)
]
BatchApi = Annotated[
    BatchApiFile,
    BeforeValidator(check.batch_api, json_schema_input_type=BatchApiName | BatchApiFile),
]


class ProviderSpec(FileModel):
    """A provider as agac.yml tells it. `${VAR}` in texts is looked up in the environment by
    whoever uses them."""

    dialect: DialectName | None = key("The API that it speaks.")
    base_url: Annotated[str, AfterValidator(check.base_url)] | None = key(
        "Address up to and with the version, as `http://127.0.0.1:8000/v1`."
    )
    api_key: ApiKey | None = key("The key as `${VARIABLE}` of the environment or .env.")
    batch: BatchApi | None = key(
        "Batch API: `openai`, `anthropic`, `none`, or a mapping that says where it differs."
    )
    structured: Literal["json_schema", "json_object", "none"] | None = key(
        "How it is told an answer's form."
    )
    seeds: bool | None = key(
        "Whether it can be told a seed, as `replicas` does; true when left out."
    )
    tools: bool | None = key("Whether its models can be offered tools; true when left out.")
    tools_with_schema: bool | None = key(
        "Whether a request may hold tools and a response format; else the instructions say it."
    )
    cache: Literal["none", "automatic", "openai", "anthropic"] | None = key(
        "How it keeps the beginning of prompts: without being asked, or by the marks of "
        "OpenAI's or Anthropic's API."
    )
    cache_min_tokens: int | None = key(
        "Tokens from which a beginning is kept; 1024 when left out.", ge=1
    )
    limits: LimitsFile = key("What the account may do.", default=LimitsFile())
    prices: dict[NonEmpty, PriceFile] = key("Prices by model.", default={})
    tool_prices: dict[NonEmpty, Annotated[float, Field(ge=0)]] = key(
        "$ for 1,000 uses of its own tools.", default={}
    )
    headers: Headers = key("Headers to send with every request.", default={})


class PathsFile(FileModel):
    """The project's folders, relative to its root."""

    workflows: NonEmpty = key("Workflow files.", default="workflows")
    agentcards: NonEmpty = key("AgentCards.", default="agentcards")
    schemas: NonEmpty = key("JSON Schemas.", default="schemas")
    output: NonEmpty = key("Results of workflows that name no folder.", default="output")


class RemoteContentFile(FileModel):
    """Where answers are shared; what may be fetched from elsewhere (`https://`, `hf://`,
    `file://`), and how much."""

    url: NonEmpty | None = key(
        (
            "A folder or `s3://BUCKET/PREFIX` in which a team shares answers; AGAC_REMOTE "
            "overrides it."
        ),
        examples=["s3://team-agac/answers"],
    )
    trust: list[Annotated[str, AfterValidator(check.writer_name)]] = key(
        "Whose answers `agac pull` takes: their names (AGAC_REMOTE_WRITER).",
        default=[],
        examples=[["ci", "alice"]],
    )
    push: Literal["manual", "auto"] = key(
        "Whether runs push their answers at their end (`auto`), or `agac push` alone does.",
        default="manual",
    )
    control: bool = key(
        (
            "Whether the state of batches is in the remote, too, so that another machine goes on "
            "with them."
        ),
        default=False,
    )
    allow: list[NonEmpty] = key(
        (
            "Loopback or private hosts and networks (`10.0.0.0/8`), and folders of which "
            "`file://` may name files."
        ),
        default=[],
        examples=[["intranet.example.com"]],
    )
    http: bool = key(
        "Whether `http://` may be fetched too, which others can read and change.", default=False
    )
    max_mb: int = key(
        "The most megabytes of an input, sent and unpacked; a text may have 5.",
        default=20_000,
        ge=1,
    )
    timeout: Duration = key(
        (
            "How long a server may be silent, and a transfer take beside a second for every 10 "
            "kB: seconds, or a text."
        ),
        default=60.0,
        gt=0,
        le=86_400,
        json_schema_extra={"default": "60s"},
    )
    headers: dict[NonEmpty, Headers] = key(
        "Headers by host, which no other is sent: `example.com: {Authorization: Bearer ${TOKEN}}`.",
        default={},
    )


class McpServerFile(FileModel):
    """An MCP server that stages and cards may name."""

    target: Target = Field(description=TARGET)
    headers: Headers = key("Headers for its URL; secrets as `${VARIABLE}`.", default={})
    scope: ToolScope = key(
        "One session for all rows of a run (`run`), or one for each row (`row`).", default="run"
    )
    pool: int = key("How many sessions rows share.", default=1, ge=1, le=64)
    timeout: Duration = key(
        "How long connecting may take, and a call.", default=30.0, gt=0, le=86_400
    )
    state: bool = key(
        "It remembers between calls: a session that is lost is not replaced silently.",
        default=False,
    )
    cwd: NonEmpty | None = key("The folder of the project in which its command runs.")
    env: dict[NonEmpty, HeaderValue] = key(
        "Variables for its command; secrets as `${VARIABLE}`.", default={}
    )

    def faults(self) -> Iterator[str]:
        at_url = self.target.startswith(("https://", "http://"))
        if at_url and (self.env or self.cwd):
            yield "env and cwd are for a command, and target is a URL; remove them"
        if self.headers and not at_url and not self.target.startswith("${"):
            yield "headers are for a URL, and target is a command; remove them"


RuleName = Literal[
    "unused-var",
    "unused-stage",
    "schema-without-descriptions",
    "prompt-without-fields",
    "expensive-model-on-filter",
    "unpinned-model",
    "secret-in-yaml",
    "invisible-character",
    "missing-budget",
    "unknown-rule",
]


class LintFile(FileModel):
    """What `agac lint` looks for; `spec.lint` has what each rule means."""

    ignore: list[RuleName] = key(
        "Rules that this project leaves out.", default=[], examples=[["unpinned-model"]]
    )


class CiFile(FileModel):
    """What `agac ci` does in a forge's jobs."""

    workflows: list[NonEmpty] = key(
        "The workflows that it looks at and runs; all when left out.", default=[]
    )
    max_usd: float | None = key(
        "The most dollars that the runs after a change may be expected to cost: above it `agac "
        "ci` ends with exit code 4. What the version before says holds.",
        ge=0,
    )


class ExecutorFile(FileModel):
    """Where calls and functions of runs are carried out, where that is not this process."""

    ray: Annotated[str, AfterValidator(check.ray_address)] = key(
        (
            "`auto` (the cluster of RAY_ADDRESS or of this machine, else one started for the run) "
            "or `ray://host:port`."
        ),
        default="auto",
    )
    workers: int | None = key(
        "Processes that work for a run; one for each CPU when left out.", ge=1, le=10_000
    )
    chunk: int = key(
        "The most calls or functions that are given to one of them at a time.",
        default=50,
        ge=1,
        le=1000,
    )


class ProjectFile(RunRulesFile):
    """agac.yml; nothing in it is required."""

    providers: dict[Annotated[str, AfterValidator(check.provider_name)], ProviderSpec] = key(
        "Providers on top of the ones that agac knows.", default={}
    )
    aliases: dict[NonEmpty, NonEmpty] = key(
        "Short names of models, as `fast: openai/gpt-5.4-mini`.", default={}
    )
    defaults: DefaultsFile = key("What holds for all workflows.", default=DefaultsFile())
    paths: PathsFile = key("The project's folders.", default=PathsFile())
    tools: dict[NonEmpty, ToolFile] = key(
        "How tools are run: by name, a function's `file.py:function`, a server's `docs:search`.",
        default={},
    )
    mcp: dict[ServerName, McpServerFile] = key("MCP servers by name.", default={})
    remote: RemoteContentFile = key(
        "Where answers are shared, and what may be fetched from elsewhere.",
        default=RemoteContentFile(),
    )
    executor: ExecutorFile | None = key(
        "Where runs work: on a Ray cluster. Left out: in this process alone."
    )
    lint: LintFile = key("What `agac lint` looks for.", default=LintFile())
    ci: CiFile = key("What `agac ci` does.", default=CiFile())
