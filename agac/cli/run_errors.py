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
    from agac.engine.estimate import Finishing
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
"""By type of error; the messages of the others say what to do."""

WITH_REPLY = REPAIRED | {ErrorType.TRUNCATED, ErrorType.REFUSED, ErrorType.INVALID_JSON}

LEAVE_FAILED = "--no-retry-failed"


def error_lines(report: RunReport, command: str) -> Iterator[str]:
    """The errors of a run with examples and advice, and what to do about the failed rows, each
    with its command."""
    errors = report.record.errors
    run = report.record.run
    invocation = report.invocation_record
    if not errors:
        return
    yield from ("", "Errors:")
    for error in errors:
        example = error.example
        number = example.row_number  # rows that stages made have none
        place = "" if number is None else f" (row {number})"
        yield f"{error_head(error)}, e.g. {example.id!r}{place}:"
        yield f"    {terminal.first_line(example.message)}"
        # the input's own errors have no stage: there was no call
        advice = ADVICE.get(error.type)
        if advice and error.stage is not None:
            look = f" See the reply with: {row_command(run, example.id)}"
            yield f"    {advice}{look if error.type in WITH_REPLY else ''}"
    for file in report.files:
        if file.name == "errors.jsonl":
            yield f"  All of them, with their input: {terminal.from_here(file)}"
    # the next run does not retry those that are left
    left = invocation.rows.left_failed
    by_flag = LEAVE_FAILED in shlex.split(command)
    rows = counted(left, "row")
    again = terminal.without(command, LEAVE_FAILED)
    if left and by_flag:
        yield (
            f"  {rows} that failed before: not retried because of {LEAVE_FAILED}; retry "
            f"with: agac retry {run}"
        )
    elif left:
        yield (
            f"  {rows} failed too often and {'is' if left == 1 else 'are'} not retried "
            f"automatically. Change the prompt, or force a retry with: agac retry {run}"
        )
    if invocation.stopped_at_limit:
        return  # what to do next was printed with the limit
    by_remedy = report.rows_by_remedy
    if by_flag:
        may_be_left = sum(error.rows for error in errors if error.stage)
    else:
        may_be_left = by_remedy["again"]
    if by_remedy["again"] and may_be_left > left:
        yield f"  Retry the failed rows with: {again}"
    spent = by_remedy["budget"]
    if spent:
        yield f"  {counted(spent, 'row')} spent their row_budget: raise it, then run again: {again}"
    asked = by_remedy["calls"]
    if asked:
        yield f"  {counted(asked, 'row')}: {terminal.calls_remedy(run, report.record.workflow)}"
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


def limit_lines(report: RunReport, command: str) -> list[str]:
    if report.stop == "loss":
        look = f"agac inspect {report.record.run}"
        of_job = report.job is not None  # its file has the rows that ended, and it has no keys
        unchanged = "" if of_job else ", and the output files are unchanged"
        return [
            f"stopped: {report.stopped}",
            f"  No more calls are made{unchanged}. Look at a row with `{look}`.",
            f"  Fix the problem, then resume with: {command}",
            *(
                []
                if of_job
                else ["  If these failures are expected, set `stop_loss: false` in the workflow."]
            ),
        ]
    simulated = report.record.calls.cost.is_simulated
    finishing = report.finishing
    is_shard = "shard" in report.record.request.selection
    number = report.record.run
    lines = [f"stopped at a limit: {report.stopped}"]
    lines += [
        f"  {terminal.spent_line(budget, simulated)}" for budget in report.invocation_record.budgets
    ]
    if finishing is not None:
        if finishing.usd is not None:
            usd = f"{dollars(finishing.usd, simulated=simulated)}, "
        else:
            usd = ""
        needs = f"{usd}{counted(finishing.tokens, 'token')}, {counted(finishing.calls, 'call')}"
        needs += _held_words(finishing, simulated=simulated)
        rest = counted(finishing.rows, "row remains; finishing it", "rows remain; finishing them")
        lines.append(f"  {rest} needs about {needs}" if finishing.rows else "  no rows remain")
        # the command to resume with, with a limit that should be enough
        step = (
            f"Resume with: {terminal.without(command, '--budget')} "
            f"{shlex.join(['--budget', finishing.budget or ''])}"
        )
        if finishing.stage is not None:
            budget = (finishing.budget or "").replace("=", ": ").replace(",", ", ")
            to = f" to {{{budget}}}" if budget else ""
            step = (
                f"To resume, raise `budget` of stage {finishing.stage!r}{to}, then run: {command}"
            )
        elif finishing.max_errors is not None:
            resume = (
                f"{terminal.without(command, '--max-errors')} --max-errors {finishing.max_errors}"
            )
            if is_shard or report.job is not None:
                see = f"`agac inspect {number}`"
            else:
                see = "see errors.jsonl"
            step = f"Fix the failures ({see}), or allow them: {resume}"
        lines.append(f"  Finished rows are stored{'' if is_shard else ' and written'}. {step}")
    return [*lines, *_held_lines(report)]


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
    """How many of the rows the results hold that were written at a limit; those that left have no
    line."""
    rows = report.rows
    finishing = report.finishing
    ended = rows.done + rows.skipped + rows.failed
    lines = report.invocation_record.notes.written
    written = lines.lines_written if lines is not None else ended
    whole = max(rows.total - rows.dropped, ended + (finishing.rows if finishing else 0))
    if not report.files or ended >= whole:
        return
    name = report.files[0].name
    if written == ended:
        yield f"  {name} now holds {written:,} of {counted(whole, 'row')}"
    else:  # of rows that stages made
        of_input = f"{ended:,} of the input's {counted(whole, 'row')} are finished"
        yield f"  {name} now holds {counted(written, 'row')}; {of_input}"
