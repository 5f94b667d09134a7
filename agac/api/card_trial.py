"""`agac card try`: asks an AgentCard about one row, to see what it does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from agac.api.inspect import inspect
from agac.api.run_options import RunOptions
from agac.api.sync import asynchronous, calling
from agac.api.task_workflow import prompt_task
from agac.core.errors import RowError, UsageError, Where
from agac.core.types import Report, RowId, Usage, usd


@dataclass(frozen=True, slots=True)
class TrialReport(Report):
    """One row asked of an AgentCard."""

    card: str
    """The name of the card."""

    run: int
    """The run that it was asked in."""

    row: RowId
    """The id of the row."""

    output: Any
    """The result; None if it failed."""

    error: RowError | None
    """Why it failed."""

    turns: list[dict[str, Any]]
    """The turns with their tool calls, as `inspect` has them."""

    replies: int
    """How many calls of the model were answered."""

    usage: Usage
    """Their tokens."""

    cost_usd: Annotated[float | None, usd]
    """What they cost; None: unknown."""

    simulated: bool
    """True if the simulator answered."""


@calling
async def try_card(
    name: str,
    message: str | None = None,
    *,
    row: str | None = None,
    options: RunOptions | None = None,
    project: Path | str | None = None,
) -> TrialReport:
    """Asks an AgentCard about a `message`, or about a `row`, as `FILE:N`, from 1, which it gets as
    JSON.

    With `options.tools_mode` or `tool_stubs` its tools are stand-ins. Errors are those of
    `arun`."""
    options = options or RunOptions()
    inputs: str | list[str | None] = [message]
    prompt = "{input}"
    if row is not None or message is None:
        inputs, number = _row_of_file(name, message, row)
        prompt = "{{row_json}}"
        options = replace(options, limit=1, offset=number - 1)
    keys = {"agent": name, "project": project, "options": options}
    prepared = await prompt_task(prompt, inputs, keys)
    prepared.task.places["input"] = Where("--row")  # type: ignore[index]  # of a task: a dict
    report = await prepared.run()
    results = [result async for page in prepared.task.results(prepared.root) for result in page]
    if not results:
        raise UsageError(
            f"{row} is not there", remedy="The file has fewer rows; count them from 1."
        )
    (result,) = results
    run = prepared.task.run
    inspected = await asynchronous(inspect)(run, result.row_id, project=prepared.root)
    turns = []
    if inspected.rows:
        turns = inspected.rows[0]["stages"][0].get("turns", [])
    return TrialReport(
        name,
        run,
        result.row_id,
        result.output,
        result.error,
        turns,
        result.turns,
        result.usage,
        result.cost,
        report.record.calls.cost.is_simulated,
    )


def _row_of_file(card: str, message: str | None, row: str | None) -> tuple[str, int]:
    """Splits `FILE:N`. Raises UsageError if it is something else, or if there is a message,
    too."""
    file, _, number = (row or "").rpartition(":")
    is_row = bool(file) and number.isdigit() and int(number) > 0
    if message is not None or not is_row:
        raise UsageError(
            f"card {card}: one message or one row is asked",
            remedy="Write the message in quotes, or --row FILE:N with the number of a row from 1.",
        )
    return file, int(number)
