"""What the summary of a row run says besides that of its run, as records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agac.core.types import Report


@dataclass(frozen=True, slots=True)
class JobRequest(Report):
    """The request of a row run."""

    model: str
    """The model, with the keys of its requests."""

    input: str
    """The path or the address of the input."""

    output: str
    """The file with the results; `-`: standard output."""

    template: str
    """The file with the prompt; `<inline>`: it was an option; `<default>`: there was none."""

    json_schema: str | dict[str, Any] | None
    """The schema of the answers, or its file."""

    schema_model: str | None
    """The Pydantic model of the answers, as `module:Class`."""

    instruction: str | None
    """The system message, or its file."""

    agent_card: str | None
    """The AgentCard, or the folder of cards."""

    agent: str | None
    """The name of the card."""

    sql: str | None
    """The statement that reads the input."""

    variables: list[str]
    """The names of the variables, sorted."""

    output_mode: str
    """`structured` where answers have a schema, else `text`."""


@dataclass(frozen=True, slots=True)
class JobRows(Report):
    """The rows of a row run."""

    JSON_KEYS = (
        "input_rows=input",
        "selected_rows=selected",
        "processed_rows=processed",
        "skipped_rows=skipped",
        "ok_rows=ok",
        "failed_rows=failed",
        "adopted_rows=adopted",
    )

    input: int | None
    """Rows of the input; None: not all were read, or not all were selected."""

    selected: int | None
    """Rows that were selected; None: not all of them were read."""

    processed: int
    """Rows that ended in this invocation."""

    skipped: int
    """Rows that had ended before, so that they needed no call."""

    ok: int
    """Rows without an error."""

    failed: int
    """Rows with an error."""

    adopted: int
    """Rows whose results came out of OUTPUT as it was."""


@dataclass(frozen=True, slots=True)
class JobUsage(Report):
    """Tokens of a row run, as providers counted them."""

    JSON_KEYS = (
        "prompt_tokens=prompt",
        "completion_tokens=completion",
        "reasoning_tokens=reasoning",
        "total_tokens=total",
    )

    prompt: int
    """Tokens of prompts."""

    completion: int
    """Tokens of replies."""

    reasoning: int
    """Those of them that are reasoning."""

    total: int
    """Tokens of prompts and replies."""


@dataclass(frozen=True, slots=True)
class JobCache(Report):
    """Tokens of prompts and the caches of providers."""

    read_tokens: int
    """Tokens that caches had."""

    write_tokens: int
    """Tokens that were written into caches."""


@dataclass(frozen=True, slots=True)
class JobSummary(Report):
    """Facts that the summary of a row run has besides those of its run."""

    JSON_KEYS = (
        "job=alias",
        "**request",
        "**rows",
        "duration_ms",
        "interrupted",
        "exit_code",
        "exit_reason",
        "usage",
        "cache",
    )

    alias: str
    """The name by which the job is resumed, as `job_3`."""

    request: JobRequest
    """What was asked."""

    rows: JobRows
    """Its rows."""

    duration_ms: float
    """Milliseconds that its invocations took together."""

    interrupted: bool
    """True after Ctrl-C."""

    exit_code: int
    """The exit code of the command."""

    exit_reason: str
    """The exit code in a word; `waiting`: rows wait for batches."""

    usage: JobUsage
    """What its calls took and brought."""

    cache: JobCache
    """What caches had of it."""
