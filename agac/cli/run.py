"""`agac run` and `agac retry`: the commands, and the summary of a run with what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.api.invocation_summary import BatchFacts
from agac.cli import main, terminal
from agac.cli.plan import print_plans
from agac.core.errors import REPAIRED, ErrorType, ExitCode
from agac.core.reading import read_as
from agac.core.text import duration, plain, row_command
from agac.core.types import Shard, counted, dollars

if TYPE_CHECKING:
    from agac.api.invocation_summary import InvocationSummary, StaleBatch
    from agac.api.report import RunReport
    from agac.engine.estimate import Finishing
    from agac.engine.invocation import Scope
    from agac.engine.stage_summary import CallCounts, ConversationCounts, StageSummary
    from agac.engine.summary import ErrorSummary, MadeRows, RunSummary, ServingSummary
    from agac.spec.workflow import Budget


def read_budget(text: str | None) -> Budget | None:
    """`--budget 5` or `--budget usd=5,tokens=100000,calls=2000`."""
    if text is None:
        return None
    from agac.spec.workflow import Budget

    found: dict[str, float] = {}
    for part in text.split(","):
        unit, sign, number = part.partition("=")
        unit, number = (unit.strip(), number) if sign else ("usd", part)
        if unit not in ("usd", "tokens", "calls") or unit in found:
            raise click.UsageError(
                f"--budget {text}: write 5 for dollars, or usd=5,tokens=100000,calls=2000"
            )
        try:
            value = float(number.strip().lstrip("$").replace("_", ""))
        except ValueError:
            value = 0.0
        if not 0 < value < 1e15 or (unit != "usd" and value != int(value)):
            kind = "a number above 0" if unit == "usd" else "a whole number above 0"
            raise click.UsageError(f"--budget {text}: {unit} takes {kind}")
        found[unit] = value
    tokens, calls = (int(found[unit]) if unit in found else None for unit in ("tokens", "calls"))
    return Budget(found.get("usd"), tokens, calls)


@click.command(help="Run a workflow. Run it again to resume: only tasks without an answer are run.")
@main.workflow_options("The workflow: its name, or its file. Several run one after the other.")
@main.row_options
@main.model_option
@main.concurrency_option
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="DIR",
    help="Folder for the results, relative to the project.",
)
@click.option("--fresh", is_flag=True, help="Run every task again; do not reuse earlier results.")
@click.option(
    "--discard-decisions",
    is_flag=True,
    help="With --fresh: what people decided does not count any more.",
)
@click.option(
    "--stage", metavar="NAME", help="Run only this stage; rows that lack what it needs stay open."
)
@main.stage_options
@main.budget_option
@main.max_errors_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be called and what it costs, as `agac plan` does.",
)
@click.option(
    "--show",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="With --dry-run: the first N prompts.",
)
@click.option(
    "--yes",
    is_flag=True,
    help="Do not ask for confirmation (cost above confirm_above, stale batches).",
)
@click.option("--wait", is_flag=True, help="Wait for batches and run all stages to the end.")
@click.option(
    "--stream", is_flag=True, help="Make one call at a time, and show each reply as it is written."
)
@main.traces_option
@main.executor_option
@click.option(
    "--accept-store",
    is_flag=True,
    help="Continue although another or a newer store wrote the results.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the summary as JSON; a list for several workflows.",
)
@click.pass_obj
def run(
    settings: main.Globals,
    /,
    workflows: tuple[str, ...],
    as_json: bool,
    dry_run: bool,
    show: int,
    **given: Any,
) -> int:
    """Exit 0 all rows done, 1 stopped, 2 usage, 3 some rows failed, 4 stopped at a limit, 130
    interrupted."""
    given |= {"vars": main.read_variables(given["vars"]), "budget": read_budget(given["budget"])}
    given["retry_failed"] = not given.pop("no_retry_failed")
    options = api.RunOptions(**given)
    if show and not dry_run:
        raise click.UsageError(
            "--show N prints prompts of a dry run: add --dry-run, or use `agac plan`"
        )
    if dry_run:
        plans = [
            api.plan(name, options, show=show, project=settings.project_dir) for name in workflows
        ]
        return print_plans(plans, workflows, as_json=as_json)
    ended: list[api.RunReport] = []

    def print_ended(report: api.RunReport) -> None:
        scope = options.scope([stage.name for stage in report.record.stages])
        command = terminal.command_to_resume(report.record.workflow, workflows)
        print_run(report, command, quiet=settings.quiet or as_json, scope=scope)
        if options.export_traces:
            terminal.say(f"Traces: {options.export_traces}")
        ended.append(report)

    raised = True
    try:
        code = main.long_running(api.run_several)(
            workflows,
            options,
            tell=print_ended,
            project=settings.project_dir,
            progress=not settings.quiet,
            confirm=terminal.confirmed,
            handle_signals=True,
        )
        raised = False
    finally:  # also when a later workflow raised an error
        begun = len(ended) + raised
        # without an end the command was refused as a whole
        if ended and (left := workflows[begun:]):
            words = shlex.split(terminal.command_to_resume(left[0], workflows, fresh=True))
            words += [word for name in left[1:] for word in ("-a", name)]
            last = workflows[begun - 1]
            terminal.say(
                f"Not run, since {last} stopped before: {', '.join(left)}\n  Run with: "
                f"{shlex.join(words)}"
            )
        if as_json and ended:
            found = [report.as_json() for report in ended]
            terminal.print_json(found if len(workflows) > 1 else found[0])
    return code


calls_options = (
    main.in_order(  # what becomes of calls of tools of which nobody knows whether they happened
        click.option(
            "--repeat-calls",
            "calls",
            flag_value="repeat",
            help="Make calls of tools again of which nobody knows.",
        ),
        click.option(
            "--skip-calls",
            "calls",
            flag_value="skip",
            help="Go on without these calls; the model is told so.",
        ),
    )
)


@click.command(
    help=(
        "Run failed rows of a run (RUN: its number, or `last`) again, also those that "
        "`agac run` leaves."
    )
)
@click.argument("run", metavar="RUN")
@click.option(
    "--row", "rows", metavar="ID", multiple=True, help="Only this row; may be given more than once."
)
@click.option("--stage", metavar="NAME", help="Only rows that failed at this stage.")
@click.option(
    "--error", metavar="KIND", help="Only rows that failed with this error, such as SchemaMismatch."
)
@click.option(
    "--from",
    "from_stage",
    metavar="STAGE",
    help="Rerun this stage and those after it, of done rows too.",
)
@click.option(
    "--discard-decisions",
    "discard",
    is_flag=True,
    help="What people decided about these rows is void.",
)
@calls_options
@main.concurrency_option
@click.option(
    "--run-mode",
    type=click.Choice(["sync", "batch"]),
    help="Use this mode, whatever the run started with.",
)
@main.executor_option
@main.budget_option
@main.max_errors_option
@click.option("--dry-run", is_flag=True, help="Show what would be run again, and make no calls.")
@click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation (done rows, cost above confirm_above)."
)
@main.json_option
@click.pass_obj
def retry(settings: main.Globals, /, run: str, dry_run: bool, as_json: bool, **given: Any) -> int:
    from agac.api.plan import ask  # loads the API

    filters = {name: given.pop(name) for name in ("stage", "error", "from_stage", "discard")}
    selection = api.Retry(
        rows=api.row_ids(given.pop("rows")), calls=given.pop("calls") or "ask", **filters
    )
    found = api.retry_choice(run, selection, project=settings.project_dir)
    if dry_run:
        terminal.print_report(found, retry_lines, as_json=as_json)
        return 0
    if found.done > 1 and not given["yes"]:
        what = f"{found.done:,} done rows of run {found.run} will be rerun"  # and paid again
        remedy = "Add --yes to continue, or look first with --dry-run."
        ask(terminal.confirmed, "no calls were made", what, "Continue?", remedy)
    options = api.RunOptions(**given | {"budget": read_budget(given["budget"])})
    report = main.long_running(api.retry)(
        found.run, selection, options, project=settings.project_dir, progress=not settings.quiet,
        confirm=terminal.confirmed, handle_signals=True,
    )  # fmt: skip
    # for what else failed
    if report.record.rows.open:
        command = terminal.typed_command()
    else:
        command = found.go_on
    print_run(report, command, quiet=settings.quiet or as_json)
    if as_json:
        terminal.print_json(report.as_json())
    return report.exit_code


def retry_lines(found: api.RetryChoice) -> list[str]:
    lines = [
        f"Run {found.run} of {found.workflow}: {counted(found.rows, 'row')} would be run again"
    ]
    lines += [
        f"  {one['stage']}: {one['type']}, {counted(one['rows'], 'row')}" for one in found.by_error
    ]
    if found.open:
        lines.append(f"  left open when this retry was interrupted: {counted(found.open, 'row')}")
    if found.done:
        lines.append(f"  not failed: {counted(found.done, 'row')}")
    if found.stages:
        lines.append(f"Will be rerun: {', '.join(found.stages)}")
    return [*lines, f"Calls: at least {found.calls_at_least:,}"]


def print_run(report: RunReport, command: str, *, quiet: bool, scope: Scope | None = None) -> None:
    """Print how a run ended: rows, cost, what to do next. `scope`: the stages that were
    selected."""
    summary = report.record
    invocation = report.invocation_record
    files = report.files
    say_stop(report, command)
    if not quiet:
        terminal.print_lines(map(retrieved_line, invocation.batches.ingested))
        terminal.print_text("\n".join(summary_lines(report, command, scope)))
        if files:
            names = (
                file.name if file.parent == files[0].parent else terminal.from_here(file)
                for file in files[1:]
            )
            also = f"   (also: {', '.join(names)})" if files[1:] else ""
            terminal.print_text(f"Results: {terminal.from_here(files[0])}{also}")
            terminal.print_lines(held_for_people_lines(report))
        if "shard" in summary.request.selection:
            terminal.print_text(terminal.shard_line(summary.complete, report.go_on))
        terminal.print_lines(guard_lines(summary, files))
        before = report.replaced
        if before:
            which = f"run {before['run']} ({plain(before['input'])})"
            terminal.print_text(
                f"They replace the results of {which}. Restore those with: {before['again']}"
            )
        edited = ", ".join(file.name for file in report.edited)
        if edited:
            one = len(report.edited) == 1
            copies = ", ".join(file.name for file in report.copies)
            was, kept = ("was", "that version is") if one else ("were", "those versions are")
            terminal.print_text(
                f"{edited} {was} not as agac left {'it' if one else 'them'}; {kept} kept as "
                f"{copies}"
            )
        terminal.print_lines(batch_lines(invocation))
        terminal.print_lines(
            next_lines(summary, invocation, command, stopped=report.stopped is not None)
        )
    for note in (*undecided_lines(invocation), *report.empty):
        terminal.say(str(note))
    if report.not_written is not None:
        terminal.say_error(
            report.not_written.message, str(report.not_written.remedy), word="not written"
        )


def say_stop(report: RunReport, command: str) -> None:
    invocation = report.invocation_record
    if report.stop in ("limit", "loss"):
        for line in limit_lines(report, command):
            terminal.say(line)
    elif report.stopped is not None:
        terminal.say_error(
            report.stopped,
            f"Nothing is lost. Fix the problem, then resume with: {command}",
            word="stopped",
        )
    elif report.exit_code is ExitCode.INTERRUPTED:
        cancelled = invocation.unanswered.given_up
        if cancelled:
            one = "call in flight was cancelled. It may be billed, and the next run sends it again."
            many = (
                "calls in flight were cancelled. They may be billed, and the next run "
                "sends them again."
            )
            terminal.say(counted(cancelled, one, many))
        terminal.say(
            f"Interrupted; every answer is stored. {terminal.sentence(finished_words(report))}"
        )
        last = invocation.waiting_for
        if last:
            terminal.say(f"  The last call brought no answer: {terminal.first_line(last.message)}")
        terminal.say(f"  Resume with: {command}")


def finished_words(report: RunReport) -> str:
    """`719 of 2,400 rows are finished, 1,681 are open`: of all that are selected, where that is
    known."""
    rows = report.rows
    selected = report.invocation_record.notes.rows_selected
    ended = rows.total - rows.open
    total = rows.total
    about = ""
    if selected is not None:
        total = selected.rows
        about = "" if selected.exact else "about "
    are = "is" if ended == 1 else "are"
    return (
        f"{ended:,} of {about}{counted(total, 'row')} {are} finished, {about}{total - ended:,} open"
    )


def read_words(report: RunReport) -> str:
    """`2,400 rows`, or `1,024 of 2,400 rows read` where the run stopped before it had read all of
    them."""
    total = report.rows.total
    selected = report.invocation_record.notes.rows_selected
    if selected is None:
        return str(counted(total, "row"))
    about = "" if selected.exact else "about "
    return f"{total:,} of {about}{counted(selected.rows, 'row')} read"


def summary_lines(report: RunReport, command: str, scope: Scope | None) -> Iterator[str]:
    summary = report.record
    invocation = report.invocation_record
    stages = summary.stages
    shard = summary.request.selection.get("shard")
    part = f", shard {Shard(*shard)}" if shard else ""
    if report.job is not None:
        run = report.job.alias
    else:
        run = f"{summary.workflow}{part}, run {summary.run}"
    yield f"{run}: {read_words(report)}, {terminal.row_words(summary.rows)}"
    short = summary.odd.short_records
    if short:
        yield f"  {counted(short, 'record')} with fewer fields than the header"
    yield from map(level_line, summary.levels)
    if invocation.continued:
        yield _resumed_line(invocation)
    names = terminal.outcome_names(terminal.TASK_OUTCOMES, [stage.tasks for stage in stages])
    counts = [
        [stage.name, stage.model, *(getattr(stage.tasks, name) for name in names)]
        for stage in stages
    ]
    yield from ("", terminal.table(["stage", "model", *names], counts), "")
    aliases = [stage.alias for stage in stages if stage.alias is not None]
    yield from map(terminal.short_name_line, {one["written"]: one for one in aliases}.values())
    yield from agreement_lines(stages)
    yield from conversation_lines(summary)
    yield from review_lines(summary)
    if invocation.notes.not_recorded:
        yield terminal.sentence(invocation.notes.not_recorded)
    words = (
        (invocation.calls.retries, "retry", "retries"),
        (invocation.calls.repairs, "re-ask", ""),
        (invocation.calls.fallbacks, "fallback", ""),
    )
    extra = [counted(count, one, many) for count, one, many in words if count]
    yield calls_line(
        summary.calls, after=[f"{', '.join(extra)} in this invocation"] if extra else ()
    )
    timing = timing_line(summary)
    if invocation.calls.count and timing:
        lasted = summary.times.duration_s
        yield f"{timing}; elapsed: {call_time(1000 * lasted) if lasted < 60 else duration(lasted)}"
    yield from serving_lines(summary.serving)
    if invocation.tasks.collapsed > 0.01 * max(1, invocation.rows.read):
        same = counted(invocation.tasks.collapsed, "task")
        had = "the same prompt as another task"
        yield f"Deduplicated: {same} had {had} and reused its answer"
    yield from unselected_lines(summary, invocation, command, scope)
    yield from error_lines(report, command)


def _resumed_line(invocation: InvocationSummary) -> str:
    """`Resumed: 3 rows were already finished; no calls were needed`."""
    calls = invocation.calls.count
    lost = invocation.lost_calls_at_most
    if invocation.complete:
        lost = min(lost, calls)  # the others had an answer
    words = []
    if invocation.rows.unchanged:
        rows = invocation.rows.unchanged
        words.append(counted(rows, "row was already finished", "rows were already finished"))
    if not calls and invocation.complete:
        words.append("no calls were needed")
    if lost:
        again = counted(
            lost, "call may be billed and is sent again", "calls may be billed and are sent again"
        )
        words.append(f"the previous invocation did not finish: up to {again}")
    return f"Resumed{': ' if words else ''}{'; '.join(words)}"


def calls_line(
    calls: CallCounts,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    *,
    details: bool = False,
) -> str:
    """`Calls: 12 (simulated; 2 retries in this invocation), 800 tokens in, 90 out, simulated
    $0.0123`; with `details` also the tokens that were cached, and those of reasoning."""
    notes = [*before, *(["simulated"] if calls.simulated else []), *after]
    tokens = calls.tokens
    cached = f" ({tokens.cached:,} cached)" if details and tokens.cached else ""
    reasoning = f" ({tokens.reasoning:,} reasoning)" if details and tokens.reasoning else ""
    words = f"{tokens.input:,} tokens in{cached}, {tokens.output:,} out{reasoning}"
    if calls.server_tools:
        words += f", {counted(calls.server_tools, 'use')} of providers' tools"
    note = f" ({'; '.join(notes)})" if notes else ""
    return f"Calls: {calls.count:,}{note}, {words}, {terminal.cost_of(calls.cost)}"


_MADE_ROW = {"items": "child row", "rows": "listed row", "kept": "kept row", "groups": "group"}
"""What a row is called that a stage made, by what the stage makes."""


def level_line(level: MadeRows, so_far: bool = False) -> str:
    """The rows that a stage made, or those that it made `so_far`, and their outcomes."""
    rows = level.rows
    counts = f", {terminal.row_words(rows)}" if rows.total else ""
    made = counted(rows.total, _MADE_ROW[level.makes])
    return f"  {level.stage}: {made}{' so far' * so_far}{counts}"


def agreement_lines(stages: Iterable[StageSummary]) -> Iterator[str]:
    for stage in stages:
        votes = stage.agreement
        if votes is None or votes.mean is None or votes.unanimous is None:
            continue
        unanimous = f"{votes.unanimous:.0%} of {counted(votes.rows, 'row')} unanimous"
        asked = ""
        if votes.early is not None and votes.early.asked is not None:
            asked = f"; {votes.early.asked:.3g} asked on average"
        yield f"Agreement at {stage.name}: {votes.mean:.2f} on average, {unanimous}{asked}"


def review_lines(summary: RunSummary) -> Iterator[str]:
    """How rows passed the stages at which people decide, and what to type where some wait."""
    for stage in summary.stages:
        if stage.review is None:
            continue
        ways = {way: count for way, count in stage.review.as_json().items() if count}
        if not ways:
            continue
        waiting = ways.pop("waiting", 0)
        passed = ", ".join(f"{count:,} {way}" for way, count in ways.items()) or "none"
        yield f"Reviewed at {stage.name}: {passed}"
        if waiting:
            wait = counted(waiting, "row waits", "rows wait")
            decide = f"agac review next -a {summary.workflow}"
            yield f"  {wait} for a person; decide with: {decide}"


NEEDS_TOOLS = (
    "If its rows need their tools, write `on_tool_failure: fail` into the stage, and run "
    "it with --fresh"
)
"""What to do about rows that were answered although a tool failed in all of its calls; a plain run
reuses them."""


_SERVED = {
    "coalesced": "coalesced",
    "cached": "cached",
    "stub": "stubbed",
    "replayed": "replayed",
    "error": "failed",
    "refused": "refused",
    "unknown": "skipped",
}
"""How calls of tools ended, in words."""


def conversation_lines(summary: RunSummary) -> Iterator[str]:
    """`Tools at ask: 20 calls, 9 executed, 11 coalesced, 1 failed; 40 turns in 20
    conversations`."""
    rows_failed = {
        error.stage for error in summary.errors if error.type == ErrorType.TOOL_SERVER_ERROR
    }
    for stage in summary.stages:
        agent = stage.agent
        if agent is None or not agent.turns:
            continue
        yield f"Tools at {stage.name}: {_tool_words(agent)}; {_turn_words(agent)}"
        failing = agent.failing_tools or {}
        for name, failed in failing.items():
            calls = "its one call" if failed == 1 else f"all of its {failed:,} calls"
            yield f"  {name} failed in {calls}"
        if failing and stage.name not in rows_failed:
            yield f"  {NEEDS_TOOLS}"


def _tool_words(agent: ConversationCounts) -> str:
    """`20 calls, 9 executed, 11 coalesced, 1 failed`."""
    tools = agent.tool_calls
    counts = tools.as_json()
    kinds = "".join(f", {counts[key]:,} {word}" for key, word in _SERVED.items() if counts[key])
    each = ""
    if agent.dedup is not None and agent.dedup > 1:
        each = f" ({agent.dedup:.1f} calls each)"
    return f"{counted(tools.requested, 'call')}, {tools.executed:,} executed{each}{kinds}"


def _turn_words(agent: ConversationCounts) -> str:
    """`40 turns in 20 conversations`."""
    return f"{counted(agent.turns, 'turn')} in {counted(agent.conversations, 'conversation')}"


def timing_line(summary: RunSummary) -> str | None:
    """`Time per call: classify 0.41 s (p95 1.2 s), reply 0.9 s (p95 2.3 s)`; None without calls."""
    measured = [stage for stage in summary.stages if stage.timing_ms.duration.count]
    # only the slowest five are shown, in the order of the workflow
    slowest = sorted(measured, key=lambda stage: -(stage.timing_ms.duration.p95 or 0.0))[:5]
    parts = [_timing_words(stage) for stage in measured if stage in slowest]
    left_out = len(measured) - len(parts)
    more = f", and {left_out} faster ones" if left_out else ""
    if parts:
        return f"Time per call: {', '.join(parts)}{more}"
    return None


def _timing_words(stage: StageSummary) -> str:
    """`reply 0.9 s (p95 2.3 s; first token 0.2 s, p95 0.4 s)`."""
    whole = stage.timing_ms.duration
    first = stage.timing_ms.ttft
    token = ""
    if first.count:
        token = f"; first token {_known_time(first.p50)}, p95 {_known_time(first.p95)}"
    return f"{stage.name} {_known_time(whole.p50)} (p95 {_known_time(whole.p95)}{token})"


def _known_time(milliseconds: float | None) -> str:
    """The time of a call, or `unknown`: several shards do not tell it."""
    return "unknown" if milliseconds is None else call_time(milliseconds)


def serving_lines(serving: ServingSummary) -> Iterator[str]:
    """`Prefix cache: 93.1% of prompt tokens (94.9% without the first call), 850 computed; slots:
    82% of 8 in use`, and what engines count themselves, which others may use too. Nothing where no
    cache was to be warmed."""
    if serving.first_calls:
        if serving.prefix_hit is None:
            hit = "the provider does not say what it had"
        else:
            hit = f"{serving.prefix_hit:.1%} of prompt tokens"
        if serving.prefix_hit_without_first is not None:
            rest = f"{serving.prefix_hit_without_first:.1%} without the first call"
            hit += f" ({rest}), {serving.prefill_tokens or 0:,} computed"
        yield (
            f"Prefix cache: {hit}; slots: {serving.slot_utilisation or 0:.0%} of "
            f"{serving.slots or 0:,} in use"
        )
    for engine in serving.engines:
        hit = "none" if engine.prefix_hit is None else f"{engine.prefix_hit:.1%}"
        yield (
            f"  {engine.address} counted itself: {hit} of {engine.prompt_tokens:,} prompt "
            "tokens from its cache"
        )


def call_time(milliseconds: float) -> str:
    """The time of a call in two digits: `7 ms`, `0.41 s`, `12 s`, `310 s`."""
    if milliseconds < 100:
        if milliseconds >= 1:
            return f"{milliseconds:.0f} ms"
        return "under 1 ms"
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s"


def guard_lines(summary: RunSummary, files: Sequence[Path]) -> Iterator[str]:
    from agac.data.sinks import FILTERED  # loads the sinks

    listed = "".join(
        f"; why, for each: {terminal.from_here(file)}" for file in files if file.name == FILTERED
    )
    dropped = [(stage.name, stage.tasks.dropped) for stage in summary.stages]
    skipped = [(stage.name, stage.tasks.skipped) for stage in summary.stages]
    repeated = summary.odd.repeated_ids
    words = [f"{counted(rows, 'row')} at {name}" for name, rows in dropped if rows]
    if repeated is not None and repeated.rows:
        by_rule = f"by on_duplicate_id: {repeated.on_duplicate_id}"
        words.insert(0, f"{counted(repeated.rows, 'row')} {by_rule}")
    if words:
        yield f"Dropped: {', '.join(words)}{listed}"
    words = [f"{counted(rows, 'row')} at {name}" for name, rows in skipped if rows]
    if words:
        yield f"Skipped: {', '.join(words)}"


def held_for_people_lines(report: RunReport) -> Iterator[str]:
    """How many rows the results hold that were written while others wait for people."""
    if report.stopped is None and not report.invocation_record.complete and report.files:
        rows = report.rows
        ended = rows.done + rows.skipped + rows.failed
        whole = counted(rows.total - rows.dropped, "row")
        yield (
            f"{report.files[0].name} now holds {ended:,} of {whole}; the others follow "
            "once people have decided"
        )


def unselected_lines(
    summary: RunSummary, invocation: InvocationSummary, command: str, scope: Scope | None
) -> Iterator[str]:
    """How many rows wait, for which stages that were not selected, and the command that finishes
    them."""
    stages = summary.stages
    # other open rows wait for batches
    people = sum(stage.review.waiting for stage in stages if stage.review is not None)
    in_batches = invocation.batches.rows_in_batches
    waiting = max(0, invocation.rows.parked - in_batches - people)
    if not waiting or (scope is not None and all(scope.may_ask(stage.name) for stage in stages)):
        return
    names = _unselected(summary, scope)
    if names:
        where = f"stage{'' if len(names) == 1 else 's'} {' and '.join(names)}"
    else:
        where = "a stage"
    many = counted(waiting, "row waits", "rows wait")
    them = "it" if waiting == 1 else "them"
    whole = terminal.without(command, "--stage", "--from", "--until")
    yield (
        f"Open: {many} for {where}, which this command did not select. Finish {them} with: {whole}"
    )


def _unselected(summary: RunSummary, scope: Scope | None) -> list[str]:
    """Finds the stages that were not selected and to which more rows came than went through."""
    names = []
    come = summary.rows.done + summary.rows.open
    come += sum(stage.tasks.failed for stage in summary.stages)
    for stage in summary.stages:
        through = stage.tasks.done + stage.tasks.reused
        is_short = come > through + stage.tasks.failed
        if scope is not None and is_short and not scope.may_ask(stage.name):
            names.append(stage.name)
        come = through
    return names


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


CLOSED = ("INGESTED", "CLEANED", "NOT_CREATED", "REJECTED")
"""Final steps of a batch, as in `store.batches`, which is slow to load."""

RESULT_WORDS = {
    "done": "done",
    "failed": "failed",
    "missing": "without an answer",
    "expired": "expired",
    "cancelled": "cancelled",
    "duplicate": "answered twice",
    "unknown": "not requested by agac",
    "malformed": "unreadable",
    "again": "sent again",
}


def retrieved_line(ended: Mapping[str, Any]) -> str:
    """`Retrieved batch 4: 12 done, 1 failed`."""
    counts = [
        f"{ended[key]:,} {word}"
        for key, word in RESULT_WORDS.items()
        if ended.get(key) or key == "done"
    ]
    return (
        f"Retrieved {terminal.batch_name(ended['id'], ended['provider_id'])}: {', '.join(counts)}"
    )


def batch_lines(invocation: InvocationSummary) -> Iterator[str]:
    """The batches that an invocation submitted, and those that are not submitted yet, why, and
    when that is retried."""
    waiting = [read_as(BatchFacts, one) for one in invocation.batches.waiting]
    submitted = [read_as(BatchFacts, one) for one in invocation.batches.submitted]
    for batch in submitted:
        if batch.step in CLOSED or batch in waiting:
            continue  # it was reported while it was waited for, or is among the waiting ones
        name = plain(batch.provider_id or str(batch.id))
        yield f"Submitted batch {name}: {_content_words(batch)}"
    for batch in waiting:
        why = plain(terminal.first_line(batch.waits or batch.note or "there is no room"))
        retried = f"; retried from {batch.try_at} on" if batch.try_at else ""
        yield f"Waiting batch {batch.id}: {_content_words(batch)}: {why}{retried}"


def _content_words(batch: BatchFacts) -> str:
    """`12 requests, 1 of 2, openai/gpt, up to $0.02 at batch price`."""
    most = terminal.price(batch.held_usd, simulated=batch.simulated)
    if batch.held_usd is not None:
        most = f"up to {most} at batch price"
    requests = counted(batch.requests, "request")
    return f"{requests}, {batch.number} of {batch.of}, {batch.model}, {most}"


def undecided_lines(invocation: InvocationSummary) -> Iterator[str]:
    for one in invocation.batches.undecided:
        batch = read_as(BatchFacts, one)
        note = f": {plain(terminal.first_line(batch.note))}" if batch.note else ""
        name = terminal.batch_name(batch.id, batch.provider_id)
        yield terminal.sentence(f"{name} needs your decision{note}")
        yield f"  {terminal.sentence(str(batch.remedy))}"


def next_lines(
    summary: RunSummary, invocation: InvocationSummary, command: str, *, stopped: bool = False
) -> Iterator[str]:
    """What is stale, deferred and waited for, and the commands to resume. `command`: that of the
    run. Where it was `stopped` before anything was submitted, there is nothing to retrieve."""
    waits = invocation.waits_for_shards
    if waits:
        yield f"Waiting for {plain(waits)}; once they have come so far, run: {command}"
    yield from map(_stale_line, invocation.batches.stale)
    deferred = invocation.batches.tasks_held_back
    if deferred and not invocation.stopped_at_limit:
        tasks = counted(deferred, "task does", "tasks do")
        yield (
            f"Deferred: {tasks} not fit in the budget until open batches are retrieved; "
            "the next `agac batch retrieve` tries again"
        )
    awaited = [one["batch"] for one in invocation.batches.waits_for]
    if awaited:
        batches, has = ("batch", "has") if len(awaited) == 1 else ("batches", "have")
        yield (
            f"Rows wait for {batches} {', '.join(map(str, awaited))} of an earlier run, which "
            f"{has} the same requests (`agac batch list`). When "
            f"{'it has' if len(awaited) == 1 else 'they have'} ended, resume with: {command}"
        )
    open_batches = invocation.batches.open
    if open_batches and not (stopped and open_batches["waiting"] == open_batches["batches"]):
        # of the input, and what stages made
        rows = [summary.rows, *(level.rows for level in summary.levels)]
        total = sum(counts.total for counts in rows)
        ended = total - sum(counts.open for counts in rows)
        if ended:
            are = f"{ended:,} of {counted(total, 'row')} {'is' if ended == 1 else 'are'}"
        else:
            are = "No row is"
        yield (
            f"{are} finished{'' if ended else ' yet'}. `agac batch status` shows progress, `agac "
            f"batch retrieve` collects results; `{terminal.without(command, '--wait')} --wait` "
            "waits until every stage is done."
        )
    unsent = invocation.notes.notifications
    if unsent is not None:
        messages = counted(unsent.left, "message")
        why = unsent.error or "there was no time"
        yield f"Not sent: {messages} ({plain(why)}). The next run sends what is left."
    yield from (f"{sentence}." for sentence in invocation.notes.dropped_messages)


def _stale_line(stale: StaleBatch) -> str:
    """`Stale: 3 requests in batch 4, up to $0.01, are no longer needed; …`."""
    most = terminal.price(stale.held_usd, simulated=stale.simulated)
    if stale.held_usd is not None:
        most = f"up to {most}"
    requests = counted(stale.requests, "request")
    are = "is" if stale.requests == 1 else "are"
    name = terminal.batch_name(stale.batch, stale.provider_id)
    return (
        f"Stale: {requests} in {name}, {most}, {are} no longer needed; cancel the batch with: "
        f"agac batch cancel {stale.batch}"
    )
