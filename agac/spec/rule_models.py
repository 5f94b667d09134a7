"""The mappings that bound a run and say who is told of it, in workflow files and in agac.yml: one
frozen model each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field

from agac.spec import rules
from agac.spec import validation as check
from agac.spec.file_model import (
    Duration,
    FileModel,
    NonEmpty,
    Share,
    TextOrList,
    Variable,
    WebAddress,
    key,
)
from agac.spec.notify import KINDS, WAYS, NotifyKind

Dollars = Annotated[float, Field(gt=0)]


class BudgetFile(FileModel):
    """What may be spent at most. Each bound that is given holds; nothing is begun that could go
    beyond one."""

    may_be_empty = False

    usd: float | None = key("US dollars.", gt=0)
    tokens: int | None = key("Tokens, of requests and replies together.", ge=1)
    calls: int | None = key("Calls, retries and re-asks included.", ge=1)


Budget = Annotated[
    BudgetFile, BeforeValidator(check.budget, json_schema_input_type=Dollars | BudgetFile)
]


class RowBudgetFile(BudgetFile):
    """What one row may spend at most. Each bound that is given holds; its agents' and theirs count
    together."""

    turns: int | None = key("Replies of models in conversations with tools.", ge=1)
    tool_calls: int | None = key("Calls of tools.", ge=1)


RowBudget = Annotated[
    RowBudgetFile, BeforeValidator(check.budget, json_schema_input_type=Dollars | RowBudgetFile)
]


class ConfirmFile(FileModel):
    """From which estimated cost on a run asks before it begins."""

    usd: float = Field(ge=0, description="US dollars.")


class TelemetryFile(FileModel):
    """What is measured of each call, and told."""

    merges = True

    file: bool | None = key(
        "Write telemetry.jsonl, a line a row with its calls; left out: up to 100,000 rows."
    )
    ttft: bool = key(
        "Stream calls, to learn how long the first token takes, and the answer's.", default=False
    )
    otel: bool | None = key(
        "Send traces and metrics by OpenTelemetry's protocol; left out: where "
        "OTEL_EXPORTER_OTLP_ENDPOINT is set."
    )
    sample: Share = key(
        "The share of rows that did not fail that have a trace, as `10%`.", default=0.01
    )
    prompts: bool = key("Send prompts, replies and results of tools with traces.", default=False)


class NotifyFile(FileModel):
    """Somebody who is told how runs stand: by a webhook, through apprise, or by a command; or a
    heartbeat."""

    on: Annotated[
        list[NotifyKind],
        Field(min_length=1),
        BeforeValidator(check.kinds, json_schema_input_type=TextOrList),
    ] = key("Of what is told; of everything when left out.", default=list(KINDS))
    webhook: WebAddress | None = key(
        "An address that gets each message as JSON, by POST.", examples=["${HOOK_URL}"]
    )
    secret: Variable | None = key(
        "What the webhook's messages are signed with (Standard Webhooks): `whsec_…`."
    )
    apprise: Variable | None = key("A chat or mail service, as an address of the package apprise.")
    command: Annotated[list[NonEmpty], Field(min_length=1)] | None = key(
        (
            "A program and its arguments; it is run in the project's folder without a shell, and "
            "reads the JSON."
        ),
        examples=[["python", "tools/tell.py"]],
    )
    heartbeat: WebAddress | None = key(
        "An address that is called (GET) each minute of a run; no message is sent."
    )

    def faults(self) -> Iterator[str]:
        if len(self.model_fields_set & {*WAYS}) != 1:
            yield f"needs one of {', '.join(WAYS)}, and no two of them"
        if {"secret", "webhook"} & self.model_fields_set == {"secret"}:
            yield "secret is for a webhook; remove it"
        if {"on", "heartbeat"} <= self.model_fields_set:
            yield "a heartbeat tells of nothing; remove `on`"


Targets = Annotated[
    list[NotifyFile],
    BeforeValidator(check.targets, json_schema_input_type=NotifyFile | list[NotifyFile]),
]


class RunRulesFile(FileModel):
    """When a run stops by itself, and what it keeps. In agac.yml: for every workflow that does not
    say otherwise."""

    budget: Budget | None = key(
        "What a run may spend at most, over all its invocations; a number is US dollars."
    )
    row_budget: RowBudget | None = key("What one row may spend at most in an invocation.")
    confirm_above: ConfirmFile | None = key("Ask before a run that is estimated to cost more.")
    stop_loss: bool = key(
        (
            "Stop when over 80 % of a stage's first 20 outcomes fail alike, or of a tool's first "
            "20 calls."
        ),
        default=True,
    )
    max_errors: int | None = key(
        "Stop when so many rows failed; 0 stops at the first, as 1 does.", ge=0
    )
    max_open_rows: int | None = key(
        (
            "The most rows under way at a time where stages have tools; left out: four times the "
            "calls."
        ),
        ge=1,
        le=100_000,
    )
    row_timeout: Duration | None = key(
        "What a row may take from its first call, as `2m`.", gt=0, le=86_400
    )
    keep_replies: rules.KeepReplies = key("Which raw replies stay in the store.", default="all")
    telemetry: TelemetryFile = key(
        "What is measured of each call, and told.", default=TelemetryFile()
    )
    notify: Targets = key(
        "Whom a run tells that it ended, or needs somebody; a mapping, or a list of them.",
        default=[],
    )
