"""Options of a row run (`agac process`)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from agac.api.run_options import CommonOptions
from agac.core.errors import Where
from agac.core.types import json_form
from agac.spec.data_specs import Merge
from agac.spec.rules import ReplyForm
from agac.spec.templates import Syntax

_NOT_STORED = {
    "fresh",
    "refetch",
    "refresh_tools",
    "work_dir",
    "overwrite",
    "resume",
    "stream",
    "wait",
    "yes",
    "calls",
    "places",
    "export_traces",
}
"""Options of one invocation, which resuming the job does not take again."""


@dataclass(frozen=True, slots=True)
class PromptOptions(CommonOptions):
    """Options that say what is asked of a model, and what form its answers have."""

    prompt: str | None = None
    """The prompt. Without it and `template`, the prompt is the row as JSON."""
    template: str | None = None
    """A file with the prompt."""
    instruction: str | None = None
    """The system message, or a file with it."""
    agent_card: str | None = None
    """An AgentCard in place of `instruction`: a file, or a folder of cards."""
    agent: str | None = None
    """The name of a card of that folder, or without `agent_card` of the project."""
    skills: str | None = None
    """A folder of skills that the model may read."""
    runtime: str | dict[str, Any] | None = None
    """`opencode`, or a mapping as a stage has it."""
    syntax: Syntax = "auto"
    """How prompts name fields."""
    reply: ReplyForm | None = None
    """The form of replies: `json` or `text`."""
    json_schema: str | dict[str, Any] | None = None
    """The schema of answers, or a file with it."""
    schema_model: str | None = None
    """The schema of answers as a Pydantic model, `module:Class`."""


@dataclass(frozen=True, slots=True)
class JobRowOptions(PromptOptions):
    """Options of how a row run reads its rows and writes their results."""

    parallel: int | None = None
    """The most calls in flight: `concurrency` of a workflow."""
    id_field: str | None = None
    """The field with the ids of rows."""
    read: dict[str, str] = field(default_factory=dict)
    """Further keys of a workflow's `input`."""
    include_input: bool = False
    """Write the fields of each row with its result."""
    merge: Merge | None = None
    """How results and fields of rows are put together."""
    format: str | None = None
    """The format of OUTPUT; None: its name tells it."""
    csv_safe: bool = False
    """Write no values that a spreadsheet would take for a formula."""
    sources: bool = False
    """Write the sources of answers."""
    to: str | None = None
    """A table of a database that gets the results too."""


@dataclass(frozen=True, slots=True)
class ProcessOptions(JobRowOptions):
    """Options of a row run, named like the flags of `agac process`. Paths are relative to the
    current folder.

    Of `prompt` (text) and `template` (a file) one says what is asked; without both it is the row
    as JSON. `instruction` is the system message, or a file with it; an AgentCard may replace it:
    `agent_card` is a file or a folder of cards, `agent` the name of a card. Answers are held to
    `json_schema` (a file) or `schema_model` (`module:Class`). These files may be `https://` and
    other addresses. `error_output`, `telemetry_output` and `summary_output` are further files,
    `to` is a table. `overwrite` replaces an OUTPUT that this job did not write; `resume` adopts its
    results instead, after `confirm` or `yes`, and if it is False an OUTPUT that exists is refused.
    With `quote`, as above `confirm_above`, 20 rows are run, and `confirm` is asked with a `Quote`
    of the rest. All others are those of `agac.RunOptions` and of a workflow's keys; times are
    seconds."""

    temperature: float | None = None
    """The model's temperature."""
    max_tokens: int | None = None
    """The most tokens of a reply."""
    max_retries: int | None = None
    """How often a call is sent again: `retries` of a stage."""
    retry_delay: float | None = None
    """Seconds before the first time."""
    row_timeout: float | None = None
    """Seconds that a row may take."""
    error_output: str | None = None
    """A file for failed rows."""
    telemetry_output: str | None = None
    """A file for the calls."""
    summary_output: str | None = None
    """A file for the summary."""
    provider: dict[str, str] = field(default_factory=dict)
    """Keys of a provider of agac.yml, with its `name`."""
    quote: bool = False
    """Run 20 rows first, and quote the rest."""
    work_dir: str | None = None
    """A folder for the job's state, which is a project itself."""
    overwrite: bool = False
    """Replace an OUTPUT that this job did not write."""
    resume: bool | None = None
    """Adopt the results of such an OUTPUT; False: refuse an OUTPUT that exists."""
    places: dict[str, Where] = field(default_factory=dict)
    """For messages: on which line of a job's file a key of its workflow is."""

    def given(self) -> dict[str, Any]:
        """Returns as JSON the options that are not at their defaults and that resuming the job
        takes again."""
        default = ProcessOptions()
        names = [each.name for each in fields(self) if each.name not in _NOT_STORED]
        return {
            name: json_form(getattr(self, name))
            for name in names
            if getattr(self, name) != getattr(default, name)
        }
