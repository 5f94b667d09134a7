"""`agac plan`: a table of the stages, why their tasks run, the expected cost, rendered prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import main, terminal
from agac.cli.figures import (
    TOTALS,
    InexactNumber,
    comparison_rows,
    plan_rows,
    priced,
    version_words,
)
from agac.core.errors import ExitCode
from agac.core.text import duration, plain
from agac.core.types import counted, dollars

if TYPE_CHECKING:
    from agac.engine.forecast.forecasts import Guess, PlanReport, StageForecast
    from agac.engine.forecast.planned_batches import PlannedBatches, PlannedRounds

MAX_PATHS = (
    20  # lines of a graph's paths that are printed; a wider graph is better looked at as a picture
)


@click.command(help="Show what a run would call, reuse and cost, and why. Makes no calls.")
@main.workflow_options("The workflow: its name, or its file; may be given more than once.")
@main.row_options
@main.model_option
@click.option("--fresh", is_flag=True, help="As if no earlier result were reused.")
@click.option("--stage", metavar="NAME", help="Run only this stage.")
@main.stage_options
@click.option(
    "--show",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Print the first N rendered prompts.",
)
@click.option(
    "--against", metavar="REF", help="Plan the files of this branch, tag, commit or folder too."
)
@click.option("--markdown", is_flag=True, help="Print Markdown, for comments of pull requests.")
@main.json_option
@click.pass_obj
def plan(
    settings: main.Globals,
    /,
    workflows: tuple[str, ...],
    show: int,
    against: str | None,
    markdown: bool,
    as_json: bool,
    **given: Any,
) -> int:
    given |= {
        "vars": main.read_variables(given["vars"]),
        "retry_failed": not given.pop("no_retry_failed"),
    }
    call = api.plan if against is None else partial(api.plan_against, against)
    options = api.RunOptions(**given)
    root = settings.project_dir
    found = [call(name, options, show=show, project=root) for name in workflows]
    return print_plans(found, workflows, as_json=as_json, markdown=markdown)


def print_plans(
    reports: Sequence[Any], workflows: Sequence[str], *, as_json: bool, markdown: bool = False
) -> ExitCode:
    """Prints plans, or comparisons of two: all of one kind. Returns USAGE where no row of a plan
    may come to a result."""
    if any(getattr(one, "now", one).blocked for one in reports):
        code = ExitCode.USAGE
    else:
        code = ExitCode.DONE
    for report in reports:
        for warning in getattr(report, "now", report).warnings:
            terminal.say(str(warning))
    if as_json:
        found = [report.as_json() for report in reports]
        terminal.print_json(found if len(found) > 1 else found[0])
        return code
    lines: Callable[[Any], Iterator[str]] = partial(_lines, workflows)
    if markdown:
        from agac.cli.markdown import plan_lines as lines
    show = terminal.print_markdown if markdown else terminal.print_text
    show("\n\n".join("\n".join(lines(report)) for report in reports))
    return code


def _lines(workflows: Sequence[str], report: Any) -> Iterator[str]:
    yield from plan_lines(getattr(report, "now", report), workflows)
    against = getattr(report, "against", None)
    if against:
        yield from (
            "",
            f"Beside {version_words(against)}:",
            terminal.table(["", *TOTALS], comparison_rows(report)),
        )


def plan_lines(report: PlanReport, workflows: Sequence[str]) -> Iterator[str]:
    """Yields one plan: its rows, its run, the stages, why their tasks run, the cost, prompts."""
    yield f"{report.workflow}: {', '.join(_row_facts(report.rows))}; {_run_words(report)}"
    yield from _path_lines(report)
    yield from ("", terminal.table(*plan_rows(report)), "")
    aliases = {alias["written"]: alias for stage in report.stages for alias in stage.aliases}
    for alias in aliases.values():
        before = ""
        if alias["meant"]:
            before = f"   (run {report.compared_with}: {alias['meant']})"
        yield terminal.short_name_line(alias) + before
    for stage in report.stages:
        for line in reason_lines(stage, report.rows["total"]):
            yield f"  {stage.name}: {line}"
    yield from total_lines(report, terminal.command_to_run(report.workflow, workflows))
    for number, prompt in enumerate(report.prompts, 1):
        yield f"--- prompt {number}: row {prompt.row!r}, stage {prompt.stage}"
        for message in prompt.messages:
            yield f"[{message.role}]"
            yield plain(message.text)


def _row_facts(rows: Mapping[str, Any]) -> Iterator[str]:
    """Yields how many rows the input has, and how many of them are odd."""
    yield counted(rows["total"], "row")
    if rows["unusable"]:
        yield f"{rows['unusable']:,} unusable"
    if rows.get("short", 0):
        yield f"{rows['short']:,} with fewer fields than the header"
    if rows["dropped"]:
        yield f"{rows['dropped']:,} dropped by on_duplicate_id"


def _run_words(report: PlanReport) -> str:
    """`resumes run 3`, `a new run, compared with run 2`, or `the first run`."""
    if report.continues is not None:
        return f"resumes run {report.continues}"
    if report.compared_with is not None:
        changed = "".join(f"; input.{key} changed" for key in report.input_changes)
        return f"a new run, compared with run {report.compared_with}{changed}"
    return "the first run"


def _path_lines(report: PlanReport) -> Iterator[str]:
    """Yields the graph of the stages as its paths."""
    paths = paths_of({forecast.name: forecast.stage.needs for forecast in report.stages})
    if len(paths) == 1:
        yield f"Stages: {paths[0]}"
        return
    yield "Stages:"
    yield from (f"  {path}" for path in paths[:MAX_PATHS])
    if len(paths) > MAX_PATHS:
        yield f"  and {len(paths) - MAX_PATHS:,} more: agac graph -a {report.workflow}"


def paths_of(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Writes a graph as its paths, from needs to forks and joins. `needs`: of each stage, in the
    order a row meets them."""
    followers: dict[str, list[str]] = {name: [] for name in needs}
    for name, needed in needs.items():
        for need in needed:
            followers[need].append(name)
    inner = {
        name
        for name, needed in needs.items()
        if len(needed) == 1 and len(followers[needed[0]]) == 1
    }
    paths = []
    for first in (name for name in needs if name not in inner):
        path = [", ".join(needs[first]), first] if needs[first] else [first]
        while len(following := followers[path[-1]]) == 1 and following[0] in inner:
            path.append(following[0])
        paths.append(" → ".join(path))
    return paths


def reason_lines(forecast: StageForecast, rows: int) -> Iterator[str]:
    """Yields all about a stage of a plan below its line in the table, of `rows` rows in all: where
    it is asked, why its tasks run, their cost, batches and groups, and what may change."""
    yield from _backend_lines(forecast)
    for kind, reasons in (("run", forecast.reasons), ("blocked", forecast.blocked_reasons)):
        for name, reason in sorted(reasons.items(), key=lambda item: -item[1].count):
            yield f"{reason.count:,} {kind}: {name} (row {reason.example!r} for example)"
    yield from _price_lines(forecast)
    if forecast.in_flight:
        yield f"{forecast.in_flight:,} in open batches: not sent or paid again"
    if forecast.remote:
        yield (
            f"{forecast.remote:,} of them are answered in the remote: after `agac pull` they "
            "are not asked"
        )
    yield from _volume_lines(forecast)
    operation = forecast.stage.operation
    if operation is not None and operation.key == "review":
        yield from _review_lines(operation, forecast)
    elif forecast.undecided:
        otherwise = "leave" if forecast.stage.otherwise == "drop" else "skip it"
        yield (
            f"{forecast.undecided:,} of them may {otherwise}: its `when` needs an answer that "
            "is not known yet"
        )
    if forecast.collapsed > 0.01 * max(rows, forecast.run):
        yield f"{forecast.collapsed:,} of them have the same prompt as another task"


def _backend_lines(forecast: StageForecast) -> Iterator[str]:
    """Yields where a stage is asked whose service keeps prompts in a cache of its own."""
    models = getattr(forecast.stage, "models", None)
    if not models or not models[0].backend:
        return
    if models[0].provider.engine:
        cache = "an engine of your own: its prefix cache is read before and after the run"
    else:
        cache = (
            "its KV cache is the service's own: nothing controls it but a prefix that "
            "stays the same"
        )
    yield f"asked at {models[0].backend}, {cache}"


def _price_lines(forecast: StageForecast) -> Iterator[str]:
    """Yields the expected cost of a stage, on what it is based, and the price at other hours."""
    estimate = forecast.estimate
    simulated = forecast.simulated
    if estimate.usd:
        past = "a guess of lengths"
        if estimate.past_tasks:
            past = counted(estimate.past_tasks, "earlier task")
        basis = f" (from {counted(forecast.sampled, 'prompt')} and {past})"
        yield priced(estimate, simulated=simulated, basis=basis)
    if estimate.usd_off_peak is not None:
        cheapest = dollars(estimate.usd_off_peak, simulated=simulated, about="~")
        yield (
            "the price depends on the hour (UTC): costs are those of the dearest, "
            f"{cheapest} at the cheapest"
        )


def _volume_lines(forecast: StageForecast) -> Iterator[str]:
    """Yields how many batches, rounds and calls a stage takes, and how many rows it makes."""
    if forecast.batches is not None and forecast.batches.count:
        about = "" if forecast.exact else "~"
        yield f"{about}{_batches(forecast.batches)}"
    if forecast.rounds is not None:
        yield _rounds(forecast.rounds)
    if forecast.parts:
        parts = forecast.parts if forecast.exact else InexactNumber(forecast.parts)
        yield f"{counted(parts, 'more call')}, for parts of large groups"
    vote = getattr(forecast.stage, "vote", None)
    if forecast.spared and vote:
        fewest = forecast.questions - forecast.spared
        calls = counted(forecast.questions, "call")
        yield f"{fewest:,} to {calls}: no more for a row once an answer leads by {vote.lead}"
    if forecast.guess is not None:
        yield _guessed(forecast.guess)


def _review_lines(does: Any, found: StageForecast) -> Iterator[str]:
    """Yields which rows wait for people, of those whose answers are not there yet, and how often
    they may be given again."""
    if found.undecided:
        drawn = f"a sample of {100 * does.sample:.4g} %" if does.sample else "each"
        unknown = "its `when` says who waits for a decision, by an answer that is not known yet"
        others = f"; {drawn} of the others too" if does.sample else ""
        who = unknown + others if does.when else f"{drawn} waits for a decision"
        yield f"{counted(found.undecided, 'row')}: {who}"
    if does.redo:
        yield (
            f"{does.edit} may be asked up to {counted(does.redo, 'time')} again for a row, "
            "which is not in the costs"
        )


def _batches(batches: PlannedBatches) -> str:
    count = batches.count
    most = batches.requests_at_most
    times = (
        "no batch of this model has ended yet, and the provider takes up to "
        f"{batches.completion_window}"
    )
    if batches.p50_s is not None and batches.p95_s is not None:
        half = duration(batches.p50_s)
        all_but_few = duration(batches.p95_s)
        times = (
            f"of {batches.ended_before:,} earlier ones, half took {half} or less, 95 % "
            f"within {all_but_few}"
        )
        if batches.ended_before == 1:
            times = f"the previous one took {half}"
    if count == 1:
        each = counted(most, "request")
    else:
        each = f"up to {counted(most, 'request')} each"
    return f"{counted(count, 'batch', 'batches')} of {each}, at batch price; {times}"


def _rounds(rounds: PlannedRounds) -> str:
    """Says how many rounds of batches conversations take."""
    wait = "each waits in the provider's queue"
    if rounds.wait_s is not None:
        wait = f"together {duration(rounds.wait_s)}, as batches took before"
    return (
        f"about {rounds.expected:.2g} rounds of batches, one a turn, {rounds.at_most} at "
        f"most: {wait}"
    )


def _guessed(guess: Guess) -> str:
    """Says how many rows a stage is assumed to make, and on what that rests."""
    makes, source, number, run = guess
    after = "it was called" if makes == "rows" else f"`{source}` has answered"
    if run is None:
        basis = "is assumed; there is no earlier run to compare with"
    else:
        basis = f"as in run {run}"
    match makes:
        case "groups":
            number_of = f"at least {number:,.0f}" if run is None else f"{number:,.0f}"
            return f"the number of groups is not known before {after}; {number_of} {basis}"
        case "kept":
            return f"which rows are alike is not known before {after}; {number:.0%} kept {basis}"
    return f"the number of rows it makes is not known before {after}; {number:,.4g} of each {basis}"


def total_lines(report: PlanReport, command: str) -> Iterator[str]:
    """Yields the expected cost of the whole run, how exact that is, and what to do next."""
    running = [stage for stage in report.stages if stage.run]
    if report.blocked is not None:
        yield (
            "Blocked: no row would come to a result, and the run would ask nothing. "
            f"{report.blocked}"
        )
        return
    if not running:
        in_batch = any(stage.in_flight for stage in report.stages)
        retrieve = " `agac batch retrieve` collects results." if in_batch else ""
        yield f"No calls are needed.{retrieve}"
        return
    simulated = any(stage.simulated for stage in running)
    yield _expected_line(report, simulated=simulated)
    if not report.exact:
        yield (
            "  ~ is an estimate: the number of rows is not known yet. The maximum cost is "
            "not known either."
        )
    if report.usd:
        yield f"  {priced(report, simulated=simulated)}"
    yield from _guesses(running)
    for budget in report.budgets:
        yield f"  {terminal.spent_line(budget, simulated)}"
        if not budget["enough"]:
            yield (
                "    less than the expected cost: the run would stop at this limit, with "
                "exit code 4"
            )
    if report.wants_yes:
        usd = report.confirm_above or 0.0
        bound = dollars(usd, 2 if round(usd, 2) == usd else 4)
        yield f"  above confirm_above ({bound}): the run would ask for confirmation, or needs --yes"
    yield f"Run it with: {command}"


def _expected_line(report: PlanReport, *, simulated: bool) -> str:
    """`Expected: 12 calls, 800 tokens in, 90 out, $0.02, $0.05 at most`."""
    about = "" if report.exact else "~"
    cost = "a cost that is not known (no price)"
    if report.usd is not None:
        cost = dollars(report.usd, simulated=simulated, about=about)
    if report.usd_at_most is not None:
        cost += f", {dollars(report.usd_at_most, simulated=simulated, about=about)} at most"
    calls = counted(report.calls, "call")
    tokens = f"{about}{report.input_tokens:,} tokens in, {about}{report.output_tokens:,} out"
    return f"Expected: {about}{calls}, {tokens}, {cost}"


def _guesses(running: Sequence[StageForecast]) -> Iterator[str]:
    """Yields what is unknown before these stages run: how long answers are, and how many turns and
    searches they take."""
    guessed = [stage.name for stage in running if stage.estimate.basis == "guess"]
    if guessed:
        yield (
            "  Not run before with this model, so the length of answers is a guess: "
            f"{', '.join(guessed)}"
        )
    for stage in running:
        yield from _turn_guesses(stage)
    models = (
        (stage.name, model) for stage in running for model in getattr(stage.stage, "models", ())
    )
    searching = dict.fromkeys(name for name, model in models if model.server_tools)
    if searching:
        yield f"  What tools that providers run find and cost comes on top: {', '.join(searching)}"


def _turn_guesses(stage: StageForecast) -> Iterator[str]:
    """Yields how many turns the conversations of a stage take, as far as that is known."""
    agent = stage.stage
    is_guess = stage.estimate.basis == "guess"
    if agent.asks and agent.agent_spec is not None:
        often = "as many turns as before"
        if is_guess:
            often = f"{'three' if agent.defers_form else 'two'} turns each are a guess"
        bound = f"{agent.most_turns} at most, with one call of a tool in each but the last"
        yield f"  Conversations at {stage.name}: {often}; {bound}"
    elif agent.asks and agent.runtime is not None:
        often = "two calls in each are a guess" if is_guess else "with as much as before"
        most = agent.settings.tooling.max_turns + 1
        yield (
            f"  Sessions of OpenCode at {stage.name}: how often each asks is not "
            f"known, {often}; {most} at most"
        )
