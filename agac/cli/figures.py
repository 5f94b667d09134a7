"""What plans, versions and changes say, in words and figures: for text, and for comments of pull
requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agac.cli import terminal
from agac.core.text import duration, exposed
from agac.core.types import counted, dollars
from agac.core.word_diff import Span, value_diff

if TYPE_CHECKING:
    from agac.api.diff import PlanComparison
    from agac.api.findings import PlanFigures, StageFigures
    from agac.api.versions import Version
    from agac.engine.forecast.estimate import CostEstimate
    from agac.engine.forecast.forecasts import PlanReport, StageForecast
    from agac.plan.changes import Change

COUNTS = {
    "run": "run",
    "in_flight": "in batch",
    "reuse": "reuse",
    "skipped": "skipped",
    "dropped": "dropped",
    "blocked": "blocked",
}


def version_words(version: Version) -> str:
    """`v1 (1a2b3c4d, 2026-01-02)`, `the last commit shared with main (1a2b3c4d, 2026-01-02; main
    has 3 more)`."""
    if version.commit is None:
        return version.ref
    if version.main:
        name = f"the last commit shared with {version.main}"
    else:
        name = version.ref
    if version.behind:
        more = f"; {version.main} has {counted(version.behind, 'more commit')}"
    else:
        more = ""
    return f"{name} ({version.commit[:8]}, {version.as_json()['made_at'][:10]}{more})"


def change_words(
    change: Change,
    differing: Callable[[list[Span]], str],
    shown: Callable[[str], str],
    most: int | None = None,
) -> str:
    """Says a change with what differs of its text, or of an answer's fields and readers. `most`:
    characters of each text."""
    before = change.before
    now = change.now
    # two values that may look alike
    text = shown(exposed(change.text) if "→" in change.text else change.text)
    if change.what == "renamed":
        return f"{text}; its stored results stay valid"
    if change.fields:
        if change.breaks:
            broken = f"; breaking for {', '.join(change.breaks)}"
        else:
            broken = ""
        return f"{text}: {shown('; '.join(change.fields) + broken)}"
    if "→" in change.text or change.what in ("new", "gone", "tools", "schema", "vars", "rows"):
        return text
    return f"{text}: {value_diff(before, now, differing, shown, most)}"


def counts_words(plan: PlanReport | PlanFigures, *, stages: bool = False) -> str:
    """Says what stays valid, what would run (at which `stages`), and at what price."""
    parts = [
        f"{one.name} {bounds_words(one)}" for one in plan.stages if one.run_mode and one.most != 0
    ]
    if stages and len(plan.stages) > 1 and parts:
        where = f" ({', '.join(parts)})"
    else:
        where = ""
    valid = counted(plan.valid, "stored result stays valid", "stored results stay valid")
    task = "task" if plan.least == plan.most == 1 else "tasks"
    return f"{valid}; {bounds_words(plan)} {task} would run{where}, {cost_words(plan)}"


def bounds_words(found: StageForecast | PlanReport | PlanFigures | StageFigures) -> str:
    """`10`, `10 to 20`, `at least 10`."""
    least = found.least
    most = found.most
    if most is None:
        return f"at least {least:,}"
    if most == least:
        return f"{least:,}"
    return f"{least:,} to {most:,}"


def cost_words(plan: PlanReport | PlanFigures) -> str:
    """Says what a plan is expected to cost."""
    if plan.usd is None:
        return "price not known"
    simulated = any(one.simulated for one in plan.stages if one.run)
    return dollars(plan.usd, simulated=simulated, about="" if plan.exact else "~")


def plan_rows(report: PlanReport) -> tuple[list[str], list[list[object]]]:
    """Returns the names of the columns, and a row for each stage."""
    names = terminal.outcome_names(list(COUNTS), report.stages)
    if not any(stage.in_flight for stage in report.stages):
        names.remove("in_flight")
    modes = ["mode"] if any(stage.batches for stage in report.stages) else []
    rows = list[list[object]]()
    for stage in report.stages:
        expected = stage.estimate
        number = int if stage.exact else InexactNumber
        numbers = [getattr(stage, name) for name in names]
        numbers += [expected.calls, expected.input_tokens, expected.output_tokens]
        cost = "price not known"
        if expected.usd is not None:
            about = "" if stage.exact or not expected.usd else "~"
            cost = dollars(expected.usd, simulated=stage.simulated, about=about)
        rows.append(
            [
                stage.name,
                stage.stage.lane,
                *(stage.run_mode or "" for _ in modes),
                *map(number, numbers),
                cost,
            ]
        )
    words = [COUNTS[name] for name in names]
    return ["stage", "model", *modes, *words, "calls", "tokens in", "out", "cost"], rows


class SignedNumber(int):
    def __format__(self, spec: str) -> str:
        return format(int(self), f"+{spec}")


class InexactNumber(int):
    def __format__(self, spec: str) -> str:
        return f"~{int(self):{spec}}" if self else "0"


TOTALS = ("rows", "reuse", "run", "calls", "tokens in", "out", "cost")


def comparison_rows(report: PlanComparison) -> list[list[object]]:
    """Returns what both versions come to, and the difference."""
    from agac.api.diff import totals

    simulated = any(one.simulated for one in report.now.stages)

    def shown(name: str, found: Mapping[str, Any], number: type[int] = int) -> list[object]:
        *numbers, usd = found.values()
        if number is int:
            sign = ""
        elif (usd or 0) < 0:
            sign = "-"
        else:
            sign = "+"
        if usd is None:
            cost = "price not known"
        else:
            cost = dollars(abs(usd), simulated=simulated, about=sign)
        return [name, *map(number, numbers), cost]

    before = [shown("before", totals(report.before))] if report.before else []
    return [
        *before,
        shown("now", totals(report.now)),
        shown("difference", report.difference, SignedNumber),
    ]


WAYS = {"sync": "by calls", "batch": "in batches", "flex": "with service_tier=flex"}


def priced(found: CostEstimate | PlanReport, *, simulated: bool, basis: str = "") -> str:
    """Says what calls and batches cost side by side, what that rests on, and how long it takes."""
    ways = ((usd, WAYS[way]) for way, usd in found.ways.items() if usd is not None)
    said = [f"{dollars(usd, simulated=simulated, about='~')} {words}" for usd, words in ways]
    if found.seconds is None:
        time = "time unknown"
    else:
        time = f"about {duration(max(found.seconds, 1))}"
    return f"{', '.join(said)}{basis}, {time}"
