"""`agac run` and `agac retry`: the commands, and the summary of a run with what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli.batch import batch_lines, next_lines, retrieved_line, undecided_lines
from agac.cli.main import (
    Globals,
    budget_option,
    concurrency_option,
    enable_gc,
    json_option,
    max_errors_option,
    read_budget,
    read_variables,
    row_options,
    stage_options,
)
from agac.cli.terminal import (
    TASK_OUTCOMES,
    call_time,
    command_to_resume,
    confirmed,
    cost_of,
    counted,
    first_line,
    from_here,
    outcome_names,
    plain,
    print_json,
    print_lines,
    print_report,
    print_text,
    row_words,
    say,
    say_error,
    sentence,
    table,
    typed_command,
    without,
    without_switch,
)
from agac.core.errors import ErrorType, ExitCode
from agac.core.report import dollars

if TYPE_CHECKING:
    from agac.api.report import Finishing, RunReport
    from agac.api.retrieve import RetrieveReport
    from agac.engine.invocation import Scope

Summary = Mapping[str, Any]
"""The summary of a run, as `summary.json` has it, or one run of `agac status`."""


@click.command(help="Run a workflow. Run it again to resume: only tasks without an answer are run.")
@click.option(
    "-a", "--workflow", "workflows", metavar="NAME", required=True, multiple=True,
    help="The workflow: its name, or its file. Several run one after the other.",
)  # fmt: skip
@row_options
@concurrency_option
@click.option("--output", type=click.Path(), metavar="DIR", help="Folder for the results, relative to the project.")
@click.option("--fresh", is_flag=True, help="Run every task again; do not reuse earlier results.")
@click.option("--stage", metavar="NAME", help="Run only this stage; rows that lack what it needs stay open.")
@stage_options
@budget_option
@max_errors_option
@click.option("--dry-run", is_flag=True, help="Show what would be called and what it costs, as `agac plan` does.")
@click.option("--show", type=click.IntRange(0), default=0, metavar="N", help="With --dry-run: the first N prompts.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation (cost above confirm_above, stale batches).")
@click.option("--wait", is_flag=True, help="Wait for batches and run all stages to the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON; a list for several workflows.")
@click.pass_obj
def run(settings: Globals, /, workflows: tuple[str, ...], as_json: bool, dry_run: bool, show: int, **given: Any) -> int:
    """Exit 0 all rows done, 1 stopped, 2 usage, 3 some rows failed, 4 stopped at a limit, 130 interrupted."""
    from agac.cli.progress import progress

    given |= {"vars": read_variables(given["vars"]), "budget": read_budget(given["budget"])}
    given["retry_failed"] = not given.pop("no_retry_failed")
    options = api.RunOptions(**given)
    if show and not dry_run:
        raise click.UsageError("--show N prints prompts of a dry run: add --dry-run, or use `agac plan`")
    if dry_run:
        from agac.cli.plan import print_plans

        plans = [api.plan_run(name, options, show=show, project=settings.project_dir) for name in workflows]
        print_plans(plans, workflows, as_json=as_json)
        return 0
    call = api.run_several  # loads the engine
    enable_gc()
    ended: list[api.RunReport] = []

    def print_ended(report: api.RunReport) -> None:
        scope = options.scope([stage["name"] for stage in report.summary["stages"]])
        command = command_to_resume(report.summary["workflow"], workflows)
        print_run(report, command, quiet=settings.quiet or as_json, scope=scope)
        ended.append(report)

    raised = True
    try:
        code = call(
            workflows,
            options,
            tell=print_ended,
            project=settings.project_dir,
            watch=progress(settings.quiet),
            confirm=confirmed,
            handle_signals=True,
        )
        raised = False
    finally:
        _print_all(ended, workflows, len(ended) if raised else len(ended) - 1, as_json=as_json)
    return code


def _print_all(ended: list[api.RunReport], workflows: tuple[str, ...], last: int, *, as_json: bool) -> None:
    """Print the reports, also when a later workflow raised an error, and which workflows after the `last` did not
    run."""
    left = workflows[last + 1 :]
    if ended and left:  # else the command was refused as a whole
        words = shlex.split(command_to_resume(left[0], workflows, fresh=True))
        words += [word for name in left[1:] for word in ("-a", name)]
        say(f"Not run, since {workflows[last]} stopped before: {', '.join(left)}\n  Run with: {shlex.join(words)}")
    if as_json and ended:
        found = [report.as_json() for report in ended]
        print_json(found if len(workflows) > 1 else found[0])


@click.command(help="Run failed rows of a run (RUN: its number, or `last`) again, also those that `agac run` leaves.")
@click.argument("run", metavar="RUN")
@click.option("--row", "rows", metavar="ID", multiple=True, help="Only this row; may be given more than once.")
@click.option("--stage", metavar="NAME", help="Only rows that failed at this stage.")
@click.option("--error", metavar="KIND", help="Only rows that failed with this error, such as SchemaMismatch.")
@click.option("--from", "from_stage", metavar="STAGE", help="Rerun this stage and those after it, of done rows too.")
@concurrency_option
@click.option("--run-mode", type=click.Choice(["sync", "batch"]), help="Use this mode, whatever the run started with.")
@budget_option
@max_errors_option
@click.option("--dry-run", is_flag=True, help="Show what would be run again, and make no calls.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation (done rows, cost above confirm_above).")
@json_option
@click.pass_obj
def retry(settings: Globals, /, run: str, dry_run: bool, as_json: bool, **given: Any) -> int:
    """Exit codes as `agac run`."""
    from agac.cli.progress import progress

    filters = {name: given.pop(name) for name in ("stage", "error", "from_stage")}
    selection = api.Retry(rows=api.row_ids(given.pop("rows")), **filters)
    found = api.retry_choice(run, selection, project=settings.project_dir)
    if dry_run:
        print_report(found, lambda: retry_lines(found), as_json=as_json)
        return 0
    if found.done > 1 and not given["yes"]:
        _confirm_done_rows(found)
    options = api.RunOptions(**given | {"budget": read_budget(given["budget"])})
    call = api.retry
    enable_gc()
    report = call(
        found.run,
        selection,
        options,
        project=settings.project_dir,
        watch=progress(settings.quiet),
        confirm=confirmed,
        handle_signals=True,
    )
    print_run(report, typed_command(), quiet=settings.quiet or as_json)
    if as_json:
        print_json(report.as_json())
    return report.exit_code


def _confirm_done_rows(found: api.RetryChoice) -> None:
    """Done rows are paid again: the user must say so."""
    what = f"{found.done:,} done rows of run {found.run} will be rerun"
    answer = confirmed(f"{what}. Continue?")
    if not answer:
        raise api.UsageError(
            "no calls were made" + (f": {what}" if answer is None else ""),
            remedy="Add --yes to continue, or look first with --dry-run.",
        )


def retry_lines(found: api.RetryChoice) -> list[str]:
    """The rows of a retry by stage and error, and the least number of calls."""
    lines = [f"Run {found.run} of {found.workflow}: {counted(found.rows, 'row')} would be run again"]
    lines += [f"  {one['stage']}: {one['type']}, {counted(one['rows'], 'row')}" for one in found.by_error]
    if found.open:
        lines.append(f"  left open when this retry was interrupted: {counted(found.open, 'row')}")
    if found.done:
        lines.append(f"  not failed: {counted(found.done, 'row')}")
    if found.stages:
        lines.append(f"Will be rerun: {', '.join(found.stages)}")
    return [*lines, f"Calls: at least {found.calls_at_least:,}"]


def print_run(report: RunReport, command: str, *, quiet: bool, scope: Scope | None = None) -> None:
    """Print how a run ended: rows, cost, what to do next. `scope`: the stages that were selected."""
    _say_how_it_ended(report, command)
    if not quiet:
        _print_summary(report, command, scope)
    for line in (*undecided_lines(report.invocation), *report.empty):
        say(str(line))
    if report.not_written is not None:
        say_error(report.not_written.message, str(report.not_written.remedy), word="not written")


def print_retrieved(report: RetrieveReport, *, quiet: bool) -> None:
    """Print how the run ended that was resumed after `agac batch retrieve`; or that no batch was ready."""
    run, waits = report.run, report.exit_code is ExitCode.NOT_READY and not report.ready
    if run is not None and not waits:
        from agac.engine.invocation import Scope  # the engine is loaded by now

        print_run(run, report.again, quiet=quiet, scope=Scope())
    if not quiet and (run is None or waits or not (run.summary["complete"] or run.invocation["open_batches"])):
        say(sentence(report.message))
    if run is not None and waits:
        for line in undecided_lines(run.invocation):
            say(line)


def _print_summary(report: RunReport, command: str, scope: Scope | None) -> None:
    summary, invocation, files = report.summary, report.invocation, report.files
    print_lines(map(retrieved_line, invocation.get("ingested") or ()))
    print_text("\n".join(summary_lines(summary, invocation, command, files[2] if files else None, scope)))
    if files:
        names = (file.name if file.parent == files[0].parent else from_here(file) for file in files[1:])
        print_text(f"Results: {from_here(files[0])}   (also: {', '.join(names)})")
    print_lines(guard_lines(summary, files))
    print_lines(replaced_lines(report))
    print_lines(batch_lines(invocation))
    print_lines(next_lines(summary, invocation, command))


def _say_how_it_ended(report: RunReport, command: str) -> None:
    open_rows = report.summary["rows"]["open"]
    if report.stop in ("limit", "loss"):
        for line in limit_lines(report, command):
            say(line)
    elif report.stopped is not None:
        say_error(report.stopped, f"Nothing is lost. Fix the problem, then resume with: {command}", word="stopped")
    elif report.exit_code is ExitCode.INTERRUPTED:
        if cancelled := report.invocation["calls_given_up"]:
            calls, were = counted(cancelled, "call"), "was" if cancelled == 1 else "were"
            they = "It may be billed, and the next run sends it" if cancelled == 1 else (
                "They may be billed, and the next run sends them"
            )  # fmt: skip
            say(f"{calls} in flight {were} cancelled. {they} again.")
        say(f"Interrupted; every answer is stored. Rows read so far and still open: {open_rows:,}")
        if last := report.invocation["waiting_for"]:
            say(f"  The last call brought no answer: {first_line(last['message'])}")
        say(f"  Resume with: {command}")


def summary_lines(
    summary: Summary, invocation: Summary, command: str, errors_file: Path | None, scope: Scope | None
) -> list[str]:
    """The summary of a run as lines of text."""
    rows = summary["rows"]
    lines = [f"{summary['workflow']}, run {summary['run']}: {counted(rows['total'], 'row')}, {row_words(rows)}"]
    lines += [level_line(level) for level in summary["levels"]]
    if invocation["continued"]:
        lines.append(_resumed(invocation))
    names = outcome_names(TASK_OUTCOMES, summary["stages"])
    stages = [[stage["name"], stage["model"], *(stage[name] for name in names)] for stage in summary["stages"]]
    aliases = {alias["written"]: alias for stage in summary["stages"] if (alias := stage.get("alias"))}
    lines += ["", table(["stage", "model", *names], stages), "", *map(short_name_line, aliases.values())]
    lines += [*agreement_lines(summary["stages"]), _calls_line(summary["calls"], invocation)]
    if invocation["calls"] and (timing := timing_line(summary)):
        lines.append(timing)
    if invocation["tasks_collapsed"] > 0.01 * max(1, invocation["rows_read"]):
        same, had = counted(invocation["tasks_collapsed"], "task"), "the same prompt as another task"
        lines.append(f"Deduplicated: {same} had {had} and reused its answer")
    if waiting := _rows_not_selected(summary, invocation, scope):
        lines.append(unselected_line(summary, waiting, command, scope))
    return lines + _error_lines(summary, command, invocation, errors_file)


def level_line(level: Summary) -> str:
    """The rows that a stage made, and their outcomes."""
    what = {"items": "child row", "rows": "listed row", "kept": "kept row", "groups": "group"}[level["makes"]]
    rows = level["rows"]
    counts = f", {row_words(rows)}" if rows["total"] else ""
    return f"  {level['stage']}: {counted(rows['total'], what)}{counts}"


def _resumed(invocation: Summary) -> str:
    unchanged, lost = invocation["rows_unchanged"], invocation["lost_calls_at_most"]
    facts = []
    if unchanged:
        facts.append(f"{counted(unchanged, 'row')} {'was' if unchanged == 1 else 'were'} already finished")
    if not invocation["calls"] and invocation["complete"]:
        facts.append("no calls were needed")
    if lost:
        facts.append(
            f"the previous invocation did not finish: up to {counted(lost, 'call')} may be billed "
            f"and {'is' if lost == 1 else 'are'} sent again"
        )
    return "Resumed" + (": " + "; ".join(facts) if facts else "")


def short_name_line(alias: Mapping[str, str | None]) -> str:
    """`Model sonnet = anthropic/claude-…`: the model of a short name."""
    return f"Model {alias['written']} = {alias['means']}"


def agreement_lines(stages: Iterable[Summary]) -> Iterator[str]:
    """How far the replicas of each stage agreed."""
    for stage in stages:
        found = stage.get("agreement")
        if found and found["rows"]:
            unanimous = f"{found['unanimous']:.0%} of {counted(found['rows'], 'row')} unanimous"
            yield f"Agreement at {stage['name']}: {found['mean']:.2f} on average, {unanimous}"


def _calls_line(calls: Summary, invocation: Summary) -> str:
    words = (("retries", "retry", "retries"), ("repairs", "re-ask", ""), ("fallbacks", "fallback", ""))
    extra = [counted(invocation[key], one, many) for key, one, many in words if invocation[key]]
    notes = ["simulated"] if calls["simulated"] else []
    if extra:
        notes.append(f"{', '.join(extra)} in this invocation")
    note = f" ({'; '.join(notes)})" if notes else ""
    tokens = f"{calls['input_tokens']:,} tokens in, {calls['output_tokens']:,} out"
    return f"Calls: {calls['count']:,}{note}, {tokens}, {cost_of(calls)}"


TIMED_STAGES = 5
"""Stages whose times are shown; of more, the slowest ones."""


def timing_line(summary: Summary) -> str | None:
    """`Time per call: classify 0.41 s (p95 1.2 s), reply 0.9 s (p95 2.3 s)`; None without calls."""
    measured = [stage for stage in summary["stages"] if stage["timing_ms"]["duration"]["count"]]
    if not measured:
        return None
    slowest = sorted(measured, key=lambda stage: -stage["timing_ms"]["duration"]["p95"])[:TIMED_STAGES]
    parts = [f"{stage['name']} {_stage_time(stage['timing_ms'])}" for stage in measured if stage in slowest]
    left_out = len(measured) - len(parts)
    return f"Time per call: {', '.join(parts)}" + (f", and {left_out} faster ones" if left_out else "")


def _stage_time(times: Summary) -> str:
    whole, first = times["duration"], times["ttft"]
    first_token = f"; first token {call_time(first['p50'])}, p95 {call_time(first['p95'])}" if first["count"] else ""
    return f"{call_time(whole['p50'])} (p95 {call_time(whole['p95'])}{first_token})"


def guard_lines(summary: Summary, files: Sequence[Path]) -> Iterator[str]:
    """The stages that dropped rows, with the file that lists them, and those that skipped rows."""
    from agac.data.sinks import FILTERED  # loads the sinks

    listed = "".join(f"; why, for each: {from_here(file)}" for file in files if file.name == FILTERED)
    for name, where in (("dropped", listed), ("skipped", "")):
        counts = [f"{counted(stage[name], 'row')} at {stage['name']}" for stage in summary["stages"] if stage[name]]
        if counts:
            yield f"{name.capitalize()}: {', '.join(counts)}{where}"


def replaced_lines(report: RunReport) -> Iterator[str]:
    """The run whose results were in the files before, and the files that were edited by hand."""
    if before := report.replaced:
        yield (
            f"They replace the results of run {before['run']} ({plain(before['input'])}). "
            f"Restore those with: {before['again']}"
        )
    if report.edited:
        names, one = ", ".join(file.name for file in report.edited), len(report.edited) == 1
        yield f"{names} {'was' if one else 'were'} edited since the last run; the edits were overwritten"


def _rows_not_selected(summary: Summary, invocation: Summary, scope: Scope | None) -> int:
    """How many rows are open because a stage was not selected; others wait for batches."""
    if scope is not None and all(scope.may_ask(stage["name"]) for stage in summary["stages"]):
        return 0
    return max(0, int(invocation["rows_parked"]) - int(invocation.get("rows_in_batches", 0)))


def unselected_line(summary: Summary, rows: int, command: str, scope: Scope | None) -> str:
    """How many rows wait, for which stages, and the command that finishes them."""
    names = list(_unselected_stages(summary, scope)) if scope is not None else []
    stages = f"stage{'' if len(names) == 1 else 's'} {' and '.join(names)}" if names else "a stage"
    many, them = f"{counted(rows, 'row')} {'waits' if rows == 1 else 'wait'}", "it" if rows == 1 else "them"
    whole = without(command, "--stage", "--from", "--until")
    return f"Open: {many} for {stages}, which this command did not select. Finish {them} with: {whole}"


def _unselected_stages(summary: Summary, scope: Scope) -> Iterator[str]:
    """The stages that were not selected and that more rows came to than went through."""
    rows = summary["rows"]
    come = rows["done"] + rows["open"] + sum(stage["failed"] for stage in summary["stages"])
    for stage in summary["stages"]:
        through = stage["done"] + stage["reused"]
        if come > through + stage["failed"] and not scope.may_ask(stage["name"]):
            yield stage["name"]
        come = through


ADVICE: dict[str, str] = {
    ErrorType.RATE_LIMITED: "Give the provider limits in agac.yml, as limits: {rpm: 60}, or lower --concurrency.",
    ErrorType.TRUNCATED: "Raise max_tokens, or ask for a shorter answer.",
    ErrorType.TIMEOUT: "Raise the time limit that the error names, or ask for a shorter answer.",
    ErrorType.REFUSED: "Change the prompt, or take these rows out of the input.",
    ErrorType.FILTERED: "Change the prompt, or take these rows out of the input.",
    ErrorType.EMPTY_RESPONSE: "Run again; with a reasoning model raise max_tokens.",
    ErrorType.INVALID_JSON: "Run again, or use a model with structured answers.",
    ErrorType.SCHEMA_MISMATCH: "Describe the form in the prompt, loosen output_schema, or use a larger model.",
    ErrorType.BUDGET_EXCEEDED: "Raise row_budget, or lower max_tokens.",
}
"""By type of error; the messages of the others say what to do."""

WITH_REPLY = frozenset({ErrorType.SCHEMA_MISMATCH, ErrorType.TRUNCATED, ErrorType.REFUSED, ErrorType.INVALID_JSON})
"""Errors that have a reply to look at."""

LEAVE_FAILED = "--no-retry-failed"


def _error_lines(summary: Summary, command: str, invocation: Summary, errors_file: Path | None) -> list[str]:
    if not summary["errors"]:
        return []
    lines = ["", "Errors:"]
    for error in summary["errors"]:
        example = error["example"]
        lines.append(f"{error_head(error)}, e.g. {example['id']!r} (row {example['row_number']}):")
        lines.append(f"    {first_line(example['message'])}")
        advice = advice_for(error, summary["run"])
        lines += [f"    {advice}"] if advice else []
    if errors_file is not None:
        lines.append(f"  All of them, with their input: {from_here(errors_file)}")
    left, at_limit = invocation["rows_left_failed"], invocation["stopped_at_limit"]
    return [*lines, *remedy_lines(summary, command, left, at_limit=at_limit)]


def error_head(error: Summary) -> str:
    """`  SchemaMismatch in classify: 3 rows`."""
    place = f" in {error['stage']}" if error["stage"] else ""
    return f"  {error['type']}{place}: {counted(error['rows'], 'row')}"


def advice_for(error: Summary, run: int) -> str | None:
    """One line for an error of a summary, None when there is nothing to add."""
    if error["stage"] is None:
        return None  # the input's own error: there was no call
    advice = ADVICE.get(error["type"])
    if advice is None or error["type"] not in WITH_REPLY:
        return advice
    row = shlex.quote(str(error["example"]["id"]))
    return f"{advice} See the reply with: agac inspect {run} {row}"


def remedy_lines(summary: Summary, command: str, left: int, *, at_limit: bool) -> Iterator[str]:
    """What to do about the failed rows of a run, each with its command. The next run does not retry `left` of them.

    `at_limit`: what to do next was printed with the limit.
    """
    errors, by_flag = summary["errors"], LEAVE_FAILED in shlex.split(command)
    again = without_switch(command, LEAVE_FAILED)
    if left:
        yield _not_retried(left, summary["run"], by_flag=by_flag)
    if at_limit:
        return
    if can_be_retried(summary, left, by_flag=by_flag):
        yield f"  Retry the failed rows with: {again}"
    if spent := _by_budget(errors):
        yield f"  {counted(spent, 'row')} spent their row_budget: raise it, then run again: {again}"
    if unusable := _by_input(errors):
        these = "these rows" if len(errors) == 1 else counted(unusable, "row")
        yield f"  Fix {these} in the input, then run: {again}"


def _not_retried(left: int, run: int, *, by_flag: bool) -> str:
    rows, retry_command = counted(left, "row"), f"agac retry {run}"
    if by_flag:
        return f"  {rows} that failed before: not retried because of {LEAVE_FAILED}; retry with: {retry_command}"
    are = "is" if left == 1 else "are"
    return (
        f"  {rows} failed too often and {are} not retried automatically. "
        f"Change the prompt, or force a retry with: {retry_command}"
    )


def can_be_retried(summary: Summary, left: int, *, by_flag: bool = False) -> bool:
    """Whether a further run would retry any failed row: no run can change the input or a budget.

    `by_flag`: whether such rows may be among those that were left.
    """
    errors = summary["errors"]
    others = sum(error["rows"] for error in errors) - _by_input(errors) - _by_budget(errors)
    may_be_left: int = sum(error["rows"] for error in errors if error["stage"]) if by_flag else others
    return others > 0 and may_be_left > left


def status_remedy(run: Summary, left: int) -> str:
    """The same as the end of a sentence that says how many rows failed."""
    again = run["go_on"]
    if can_be_retried(run, left):
        return f", then run: {again}"
    if left:
        return f"; force a retry with: agac retry {run['run']}"
    if _by_budget(run["errors"]):
        return f"; raise row_budget, then run: {again}"
    return f"; fix these rows in the input, then run: {again}"


def _by_input(errors: Iterable[Summary]) -> int:
    """Rows that fail for as long as the input does not change."""
    kinds = (ErrorType.MISSING_TEMPLATE_FIELD, ErrorType.INVALID_ROW)
    return sum(e["rows"] for e in errors if not e["stage"] or e["type"] in kinds)


def _by_budget(errors: Iterable[Summary]) -> int:
    """Rows that may not spend more."""
    return sum(e["rows"] for e in errors if e["type"] == ErrorType.BUDGET_EXCEEDED)


def limit_lines(report: RunReport, command: str) -> list[str]:
    """Why a run stopped at a limit, what finishing needs, the command to resume."""
    if report.stop == "loss":
        look = f"agac inspect {report.summary['run']}"
        return [
            f"stopped: {report.stopped}",
            f"  No more calls are made, and the output files are unchanged. Look at a row with `{look}`.",
            f"  Fix the problem, then resume with: {command}",
            "  If these failures are expected, set `stop_loss: false` in the workflow.",
        ]
    simulated = report.summary["calls"]["cost_is_simulated"]
    lines = [f"stopped at a limit: {report.stopped}"]
    lines += [f"  {spent_line(budget, simulated)}" for budget in report.invocation["budgets"]]
    if report.finishing is not None:
        lines += [f"  {_rest(report.finishing, simulated)}", f"  {_next_step(report.finishing, command)}"]
    rows = report.summary["rows"]
    written = rows["done"] + rows["failed"]
    whole = max(rows["total"] - rows["dropped"], written + (report.finishing.rows if report.finishing else 0))
    if report.files and written < whole:  # the results were replaced
        lines.append(f"  {report.files[0].name} now holds {written:,} of {counted(whole, 'row')}")
    return lines


def spent_line(budget: Summary, simulated: bool) -> str:
    """`budget of the run: $0.0051 of $0.0060 spent; 12 of 40 calls spent`."""
    units = [_spent(unit, facts, simulated) for unit, facts in budget.items() if isinstance(facts, dict)]
    return f"{budget['name']}: {'; '.join(units)}"


def _spent(unit: str, facts: Mapping[str, float], simulated: bool) -> str:
    """`simulated $0.0051 of $0.0060 spent, and at most $0.0002 by calls without an answer`."""
    in_usd = unit == "usd"
    spent, limit, unknown = (
        dollars(facts[key]) if in_usd else f"{facts[key]:,.0f}" for key in ("spent", "limit", "held")
    )
    more = f", and at most {unknown} by calls without an answer" if facts["held"] else ""
    return f"{'simulated ' if simulated and in_usd else ''}{spent} of {limit}{'' if in_usd else f' {unit}'} spent{more}"


def _rest(finishing: Finishing, simulated: bool) -> str:
    if not finishing.rows:
        return "no rows remain"
    rows = f"{counted(finishing.rows, 'row')} {'remains' if finishing.rows == 1 else 'remain'}"
    usd = f"{dollars(finishing.usd, simulated=simulated)}, " if finishing.usd is not None else ""
    needs = f"{usd}{counted(finishing.tokens, 'token')}, {counted(finishing.calls, 'call')}"
    return f"{rows}; finishing {'it' if finishing.rows == 1 else 'them'} needs about {needs}"


def _next_step(finishing: Finishing, command: str) -> str:
    """The command to resume with, with a limit that should be enough."""
    kept = "Finished rows are stored and written"
    if finishing.stage is not None:
        budget = (finishing.budget or "").replace("=", ": ").replace(",", ", ")
        to = f" to {{{budget}}}" if budget else ""
        return f"{kept}. To resume, raise `budget` of stage {finishing.stage!r}{to}, then run: {command}"
    if finishing.max_errors is not None:
        resume = f"{without(command, '--max-errors')} --max-errors {finishing.max_errors}"
        return f"{kept}. Fix the failures (see errors.jsonl), or allow them: {resume}"
    return f"{kept}. Resume with: {without(command, '--budget')} {shlex.join(['--budget', finishing.budget or ''])}"
