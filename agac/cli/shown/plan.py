"""A plan in words: a table of the stages, why their tasks are asked, what it takes, rendered prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from agac.cli.shown.layout import outcome_names, table
from agac.cli.shown.limits import spent_line
from agac.cli.shown.words import counted, duration, plain

if TYPE_CHECKING:
    from agac.api.planbatches import PlannedBatches
    from agac.api.planning import PlannedTasks, PlanReport

COUNTS = ("run", "in_flight", "reuse", "skipped", "dropped", "blocked")
MOST_WAYS = 20
"""Lines of a graph's ways that are printed; a wider one is better looked at as a picture."""


def plan_table(report: PlanReport) -> str:
    """A line a stage: what becomes of its tasks, and what that takes."""
    names = outcome_names(COUNTS, [{name: getattr(stage.forecast, name) for name in COUNTS} for stage in report.stages])
    flies = any(stage.forecast.in_flight for stage in report.stages)
    names = [name for name in names if name != "in_flight" or flies]
    modes = any(stage.batches for stage in report.stages)
    rows = []
    for stage in report.stages:
        expected = stage.estimate
        numbers = [getattr(stage.forecast, name) for name in names]
        numbers += [expected.calls, expected.input_tokens, expected.output_tokens]
        shown = numbers if stage.forecast.exact else [About(number) for number in numbers]
        mode = [stage.run_mode or ""] if modes else []
        rows.append([stage.stage.name, stage.stage.lane, *mode, *shown, _dollars(stage)])
    words = [name.replace("_", " ") for name in names]
    return table(["stage", "model", *(["mode"] if modes else []), *words, "calls", "tokens in", "out", "cost"], rows)


class About(int):
    """A number that rests on a guess."""

    def __format__(self, spec: str) -> str:
        return f"~{int(self):{spec}}" if self else "0"


def _dollars(stage: PlannedTasks) -> str:
    usd = stage.estimate.usd
    mark = "simulated " if stage.simulated else ""
    about = "" if stage.forecast.exact or not usd else "~"
    return "price not known" if usd is None else f"{mark}{about}${usd:,.4f}"


def head_line(report: PlanReport) -> str:
    """Which rows, and which run."""
    found = report.forecast
    facts = [counted(found.rows, "row")]
    facts += [f"{found.unusable:,} unusable"] if found.unusable else []
    facts += [f"{found.dropped:,} dropped as repetitions"] if found.dropped else []
    if report.continues is not None:
        run = f"goes on with run {report.continues}"
    elif report.compared_with is not None:
        run = f"a new run, compared with run {report.compared_with}"
    else:
        run = "the first run"
    return "\n".join([f"{report.workflow}: {', '.join(facts)}; {run}", *_way_lines(report)])


def _way_lines(report: PlanReport) -> list[str]:
    """The stages in the order in which a row meets them: a chain on one line, of a graph each way between its forks."""
    ways = ways_of({planned.stage.name: planned.stage.needs for planned in report.stages})
    if len(ways) == 1:
        return [f"Each row walks through: {ways[0]}"]
    more = [f"  and {len(ways) - MOST_WAYS:,} more: agac graph -a {report.workflow}"] if len(ways) > MOST_WAYS else []
    return ["Each row walks through:", *(f"  {way}" for way in ways[:MOST_WAYS]), *more]


def ways_of(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """A graph as its ways: each begins with what its first stage needs, and goes on while one stage follows one.

    `needs`: of each stage, in the order in which a row meets them.
    """
    followers: dict[str, list[str]] = {name: [] for name in needs}
    for name, wanted in needs.items():
        for need in wanted:
            followers[need].append(name)
    goes_on = {name for name, wanted in needs.items() if len(wanted) == 1 and len(followers[wanted[0]]) == 1}
    ways = []
    for first in (name for name in needs if name not in goes_on):
        way = [", ".join(needs[first]), first] if needs[first] else [first]
        while len(next_ones := followers[way[-1]]) == 1 and next_ones[0] in goes_on:
            way.append(next_ones[0])
        ways.append(" → ".join(way))
    return ways


def reason_lines(report: PlanReport) -> list[str]:
    """Why tasks are asked or blocked, with a row for example."""
    lines = []
    for stage in report.stages:
        for kind, reasons in (("run", stage.forecast.reasons), ("blocked", stage.forecast.blocked_reasons)):
            lines += [
                f"  {stage.stage.name}: {reason.count:,} {kind}: {name} (row {reason.example!r} for example)"
                for name, reason in sorted(reasons.items(), key=lambda item: -item[1].count)
            ]
        lines += [f"  {stage.stage.name}: {line}" for line in (*_batch_lines(stage), *_level_lines(stage))]
        if stage.forecast.undecided:
            otherwise = "leave" if stage.stage.otherwise == "drop" else "go on without it"
            lines.append(
                f"  {stage.stage.name}: {stage.forecast.undecided:,} of them may {otherwise}: "
                "its `when` looks at an answer that is not there yet"
            )
        if stage.forecast.collapsed > 0.01 * max(report.forecast.rows, stage.forecast.run):
            lines.append(
                f"  {stage.stage.name}: {stage.forecast.collapsed:,} of them have the very prompt of another row"
            )
    return lines


def _batch_lines(stage: PlannedTasks) -> Iterator[str]:
    """What is in batches already, which batches would be made, and how long they may take."""
    flying, found = stage.forecast.in_flight, stage.batches
    if flying:
        yield f"{flying:,} in batches that are under way: neither asked nor paid again"
    if found is None or not found.cuts.batches:
        return
    count, most = found.cuts
    about = "" if stage.forecast.exact else "~"
    each = counted(most, "request") if count == 1 else f"up to {counted(most, 'request')} each"
    yield f"{about}{count:,} {'batch' if count == 1 else 'batches'} of {each}, at batch price; {_times(found)}"


def _times(found: PlannedBatches) -> str:
    times = found.times
    if times is None:
        return f"none of this model has ended yet, and the provider takes up to {found.window}"
    before = "the one before" if times.batches == 1 else f"of {times.batches:,} before, half"
    last = "" if times.batches == 1 else f", 95 % within {duration(times.p95)}"
    return f"{before} took {duration(times.p50)}{' or less' if last else ''}{last}"


def _level_lines(stage: PlannedTasks) -> list[str]:
    """How groups are cut, and what is taken for what is not known yet of the rows that a stage makes."""
    found = stage.forecast
    lines = []
    if found.parts:
        parts = found.parts if found.exact else About(found.parts)
        lines.append(f"{parts:,} more {'call' if parts == 1 else 'calls'}, for parts of large groups")
    if found.guess is None:
        return lines
    makes, source, number, run = found.guess
    waits = "it was called" if makes == "rows" else f"`{source}` has answered"
    as_before = "is taken, as nothing tells" if run is None else f"as in run {run}"
    match makes:
        case "groups":
            number_of = f"at least {number:,.0f}" if run is None else f"{number:,.0f}"
            lines.append(f"how many groups there are is not known before {waits}; {number_of} {as_before}")
        case "kept":
            lines.append(f"which rows are alike is not known before {waits}; {number:.0%} going on {as_before}")
        case _:
            lines.append(f"how many rows it makes is not known before {waits}; {number:,.4g} of each {as_before}")
    return lines


def alias_lines(report: PlanReport) -> list[str]:
    """What the short names of models stand for, and what they stood for in the run compared with."""
    found = {alias["written"]: alias for stage in report.stages for alias in stage.aliases}
    return [
        f"Model {alias['written']} = {alias['means']}"
        + (f"   (run {report.compared_with}: {alias['meant']})" if alias["meant"] else "")
        for alias in found.values()
    ]


def total_lines(report: PlanReport, command: str) -> list[str]:
    """What all of it takes, how sure that is, and what to do next."""
    if not any(stage.forecast.run for stage in report.stages):
        flies = any(stage.forecast.in_flight for stage in report.stages)
        more = " `agac batch retrieve` takes what is ready." if flies else ""
        return [f"Nothing has to be asked.{more}"]
    simulated = any(stage.simulated and stage.forecast.run for stage in report.stages)
    mark = "simulated " if simulated else ""
    about = "" if report.exact else "~"
    cost = "a cost that is not known (no price)" if report.usd is None else f"{mark}{about}${report.usd:,.4f}"
    most = "" if report.usd_at_most is None else f", {mark}{about}${report.usd_at_most:,.4f} at most"
    tokens_in = sum(stage.estimate.input_tokens for stage in report.stages)
    tokens_out = sum(stage.estimate.output_tokens for stage in report.stages)
    calls = counted(report.calls, "call")
    lines = [f"Expected: {about}{calls}, {about}{tokens_in:,} tokens in, {about}{tokens_out:,} out, {cost}{most}"]
    if not report.exact:
        lines.append("  ~ rests on a guess of how many rows there will be; the most that it may cost does too")
    guessed = [s.stage.name for s in report.stages if s.forecast.run and s.estimate.basis == "guess"]
    if guessed:
        lines.append(f"  Not run before with this model, so the length of answers is a guess: {', '.join(guessed)}")
    return [*lines, *_limit_lines(report, simulated), f"Run it with: {command}"]


def _limit_lines(report: PlanReport, simulated: bool) -> list[str]:
    """The budgets, and what of all limits would stop the run or make it ask."""
    lines = []
    for budget in report.budgets:
        lines.append(f"  {spent_line(budget, simulated)}")
        if not budget["enough"]:
            lines.append("    not enough for what is expected: the run would stop at this limit, with exit code 4")
    if report.wants_yes:
        bound = _bound(report)
        lines.append(f"  above confirm_above ({bound}): the run would ask before its first call, or want --yes")
    return lines


def _bound(report: PlanReport) -> str:
    usd = report.confirm_above or 0.0
    return f"${usd:,.2f}" if round(usd, 2) == usd else f"${usd:,.4f}"


def prompt_lines(report: PlanReport) -> list[str]:
    """The rendered prompts."""
    lines = []
    for number, prompt in enumerate(report.forecast.prompts, 1):
        lines.append(f"--- prompt {number}: row {prompt.row_id!r}, stage {prompt.stage}")
        for message in prompt.request.messages:
            lines += [f"[{message.role}]", plain("".join(part.text for part in message.parts))]
    return lines
