"""Says which rows of a run failed and why, or which limit stopped it, with the command to type."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agac.cli import terminal
from agac.core.errors import REPAIRED, ErrorType
from agac.core.text import row_command
from agac.core.types import counted, dollars

if TYPE_CHECKING:
    from agac.api.report import RunReport
    from agac.engine.finishing import Finishing
    from agac.engine.summary import ErrorSummary


ADVICE: dict[str, str] = {
    ErrorType.RATE_LIMITED: (
        "Give the provider limits in agac.yml, as limits: {rpm: 60}, or lower --concurrency."
    ),
    ErrorType.TRUNCATED: "Raise max_tokens, or ask for a shorter answer.",
    ErrorType.TIMEOUT: "Raise the time limit that the error names, or ask for a shorter answer.",
    ErrorType.REFUSED: "Change the prompt, or take these rows out of the input.",
    ErrorType.FILTERED: "Change the prompt, or take these rows out of the input.",
    ErrorType.EMPTY_RESPONSE: "Run again; with a reasoning model raise max_tokens.",
    ErrorType.REPLY_TOO_LARGE: (
        "Ask for a shorter answer, or raise the provider's limits: {reply_mb} in agac.yml."
    ),
    ErrorType.INVALID_JSON: "Run again, or use a model with structured answers.",
    ErrorType.SCHEMA_MISMATCH: (
        "Describe the form in the prompt, loosen output_schema, or use a larger model."
    ),
    ErrorType.NO_CONSENSUS: (
        "Raise replicas (max_samples of a MAKER card): what is answered is not asked again."
    ),
    ErrorType.CHECK_FAILED: "Say it in the prompt, mend the check, or use a larger model.",
    ErrorType.BUDGET_EXCEEDED: "Raise row_budget, or lower max_tokens.",
}
"""What to do about an error, by its type; the messages of other types say it themselves."""

WITH_REPLY = REPAIRED | {ErrorType.TRUNCATED, ErrorType.REFUSED, ErrorType.INVALID_JSON}
"""Types of errors whose reply shows what went wrong."""

LEAVE_FAILED = "--no-retry-failed"


def error_lines(report: RunReport, command: str) -> Iterator[str]:
    """Yields the errors of a run with examples and advice, then what to do about the failed rows.

    `command` is that of the run.
    """
    errors = report.record.errors
    if not errors:
        return
    yield from ("", "Errors:")
    for error in errors:
        yield from _example_lines(error, report.record.run)
    for file in report.files:
        if file.name == "errors.jsonl":
            yield f"  All of them, with their input: {terminal.from_here(file)}"
    yield from _left_failed_lines(report, command)
    # at a limit, what to do next was printed with it
    if not report.invocation_record.stopped_at_limit:
        yield from _remedy_lines(report, command)


def _example_lines(error: ErrorSummary, run: int) -> Iterator[str]:
    """Yields how many rows have an error, the message of one of them, and advice."""
    example = error.example
    number = example.row_number  # rows that stages made have none
    place = "" if number is None else f" (row {number})"
    yield f"{error_head(error)}, e.g. {example.id!r}{place}:"
    yield f"    {terminal.first_line(example.message)}"
    # the input's own errors have no stage: there was no call
    advice = ADVICE.get(error.type)
    if advice and error.stage is not None:
        look = ""
        if error.type in WITH_REPLY:
            look = f" See the reply with: {row_command(run, example.id)}"
        yield f"    {advice}{look}"


def _left_failed_lines(report: RunReport, command: str) -> Iterator[str]:
    """Yields how many failed rows the run left as they were, why, and how to retry them."""
    left = report.invocation_record.rows.left_failed
    if not left:
        return
    rows = counted(left, "row")
    retry = f"agac retry {report.record.run}"
    if _leaves_failed(command):
        yield (
            f"  {rows} that failed before: not retried because of {LEAVE_FAILED}; retry "
            f"with: {retry}"
        )
    else:
        are = "is" if left == 1 else "are"
        yield (
            f"  {rows} failed too often and {are} not retried automatically. Change the "
            f"prompt, or force a retry with: {retry}"
        )


def _leaves_failed(command: str) -> bool:
    return LEAVE_FAILED in shlex.split(command)


def _remedy_lines(report: RunReport, command: str) -> Iterator[str]:
    """Yields how many failed rows each remedy is for, with the command to type after it."""
    errors = report.record.errors
    by_remedy = report.rows_by_remedy
    again = terminal.without(command, LEAVE_FAILED)
    may_be_left = by_remedy["again"]
    if _leaves_failed(command):
        may_be_left = sum(error.rows for error in errors if error.stage)
    # the next run does not retry those that are left
    if by_remedy["again"] and may_be_left > report.invocation_record.rows.left_failed:
        yield f"  Retry the failed rows with: {again}"
    over_budget = by_remedy["budget"]
    if over_budget:
        rows = counted(over_budget, "row")
        yield f"  {rows} spent their row_budget: raise it, then run again: {again}"
    with_calls = by_remedy["calls"]
    if with_calls:
        remedy = terminal.calls_remedy(report.record.run, report.record.workflow)
        yield f"  {counted(with_calls, 'row')}: {remedy}"
    lacking = by_remedy["schema"]
    if lacking:
        yield (
            f"  {counted(lacking, 'row')} lack a field of an earlier answer: make it required in "
            f"the output_schema that the message names, then run: {again}"
        )
    unusable = by_remedy["input"]
    if unusable:
        these = "these rows" if len(errors) == 1 else counted(unusable, "row")
        yield f"  Fix {these} in the input, then run: {again}"


def error_head(error: ErrorSummary) -> str:
    """`  SchemaMismatch in classify: 3 rows`."""
    place = f" in {error.stage}" if error.stage else ""
    return f"  {error.type}{place}: {counted(error.rows, 'row')}"


def limit_lines(report: RunReport, command: str) -> Iterator[str]:
    """Yields which limit stopped a run, what the rest needs, and how to resume with `command`."""
    if report.stop == "loss":
        yield from _loss_lines(report, command)
        return
    yield f"stopped at a limit: {report.stopped}"
    simulated = report.record.calls.cost.is_simulated
    for budget in report.invocation_record.budgets:
        yield f"  {terminal.spent_line(budget, simulated)}"
    finishing = report.finishing
    if finishing is not None:
        yield f"  {_rest_words(finishing, simulated=simulated)}"
        written = "" if "shard" in report.record.request.selection else " and written"
        step = _resume_step(report, finishing, command)
        yield f"  Finished rows are stored{written}. {step}"
    yield from _held_lines(report)


def _loss_lines(report: RunReport, command: str) -> Iterator[str]:
    """Yields that a run stopped since nearly all of its rows failed."""
    of_job = report.job is not None  # its file has the rows that ended, and it has no keys
    unchanged = "" if of_job else ", and the output files are unchanged"
    yield f"stopped: {report.stopped}"
    yield (
        f"  No more calls are made{unchanged}. Look at a row with "
        f"`agac inspect {report.record.run}`."
    )
    yield f"  Fix the problem, then resume with: {command}"
    if not of_job:
        yield "  If these failures are expected, set `stop_loss: false` in the workflow."


def _rest_words(finishing: Finishing, *, simulated: bool) -> str:
    """`12 rows remain; finishing them needs about $0.02, 9,000 tokens, 12 calls`."""
    if not finishing.rows:
        return "no rows remain"
    usd = ""
    if finishing.usd is not None:
        usd = f"{dollars(finishing.usd, simulated=simulated)}, "
    needs = f"{usd}{counted(finishing.tokens, 'token')}, {counted(finishing.calls, 'call')}"
    held = _held_words(finishing, simulated=simulated)
    rest = counted(finishing.rows, "row remains; finishing it", "rows remain; finishing them")
    return f"{rest} needs about {needs}{held}"


def _resume_step(report: RunReport, finishing: Finishing, command: str) -> str:
    """Says how to resume, with a limit that should be enough."""
    if finishing.stage is not None:
        budget = (finishing.budget or "").replace("=", ": ").replace(",", ", ")
        to = f" to {{{budget}}}" if budget else ""
        return f"To resume, raise `budget` of stage {finishing.stage!r}{to}, then run: {command}"
    if finishing.max_errors is not None:
        see = "see errors.jsonl"
        if "shard" in report.record.request.selection or report.job is not None:
            see = f"`agac inspect {report.record.run}`"
        without = terminal.without(command, "--max-errors")
        return (
            f"Fix the failures ({see}), or allow them: "
            f"{without} --max-errors {finishing.max_errors}"
        )
    budget_words = shlex.join(["--budget", finishing.budget or ""])
    return f"Resume with: {terminal.without(command, '--budget')} {budget_words}"


def _held_words(finishing: Finishing, *, simulated: bool) -> str:
    """`, and at most $0.0098 (2,560 tokens) more for calls of unknown cost`; empty without such
    calls."""
    tokens = counted(finishing.held_tokens, "token")
    if finishing.held_usd is not None:
        most = f"{dollars(finishing.held_usd, simulated=simulated)} ({tokens})"
    elif finishing.held_tokens:
        most = str(tokens)
    else:
        return ""
    return f", and at most {most} more for calls of unknown cost"


def _held_lines(report: RunReport) -> Iterator[str]:
    """Yields how many rows the results hold that were written at a limit.

    Rows that left the workflow have no line in them.
    """
    if not report.files:
        return
    rows = report.rows
    ended = rows.done + rows.skipped + rows.failed
    written = ended
    if report.invocation_record.notes.written is not None:
        written = report.invocation_record.notes.written.lines_written
    remaining = report.finishing.rows if report.finishing else 0
    whole = max(rows.total - rows.dropped, ended + remaining)
    if ended >= whole:
        return
    name = report.files[0].name
    if written == ended:
        yield f"  {name} now holds {written:,} of {counted(whole, 'row')}"
    else:  # of rows that stages made
        of_input = f"{ended:,} of the input's {counted(whole, 'row')} are finished"
        yield f"  {name} now holds {counted(written, 'row')}; {of_input}"
