"""Writes plans, versions and changes in words and figures, for text and for comments of pull
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
    name = f"the last commit shared with {version.main}" if version.main else version.ref
    more = ""
    if version.behind:
        more = f"; {version.main} has {counted(version.behind, 'more commit')}"
    return f"{name} ({version.commit[:8]}, {version.as_json()['made_at'][:10]}{more})"


def change_words(
    change: Change,
    differing: Callable[[list[Span]], str],
    shown: Callable[[str], str],
    most: int | None = None,
) -> str:
    """Says a change with what differs of its text, or of an answer's fields and readers. `most`:
    characters of each text."""
    has_values = "→" in change.text  # two values that may look alike
    text = shown(exposed(change.text) if has_values else change.text)
    if change.what == "renamed":
        return f"{text}; its stored results stay valid"
    if change.fields:
        fields = "; ".join(change.fields)
        if change.breaks:
            fields += f"; breaking for {', '.join(change.breaks)}"
        return f"{text}: {shown(fields)}"
    if has_values or change.what in ("new", "gone", "tools", "schema", "vars", "rows"):
        return text
    return f"{text}: {value_diff(change.before, change.now, differing, shown, most)}"


def counts_words(plan: PlanReport | PlanFigures, *, stages: bool = False) -> str:
    """Says what stays valid, what would run (at which `stages`), and at what price."""
    where = ""
    if stages and len(plan.stages) > 1:
        running = [stage for stage in plan.stages if stage.run_mode and stage.most != 0]
        parts = [f"{stage.name} {bounds_words(stage)}" for stage in running]
        where = f" ({', '.join(parts)})" if parts else ""
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
    simulated = any(stage.simulated for stage in plan.stages if stage.run)
    return dollars(plan.usd, simulated=simulated, about="" if plan.exact else "~")


def plan_rows(report: PlanReport) -> tuple[list[str], list[list[object]]]:
    """Returns the names of the columns, and a row for each stage."""
    names = terminal.outcome_names(list(COUNTS), report.stages)
    if not any(stage.in_flight for stage in report.stages):
        names.remove("in_flight")
    has_batches = any(stage.batches for stage in report.stages)
    header = ["stage", "model"]
    if has_batches:
        header.append("mode")
    header += [*(COUNTS[name] for name in names), "calls", "tokens in", "out", "cost"]
    rows = list[list[object]]()
    for stage in report.stages:
        row: list[object] = [stage.name, stage.stage.lane]
        if has_batches:
            row.append(stage.run_mode or "")
        number = int if stage.exact else InexactNumber
        expected = stage.estimate
        row += [number(getattr(stage, name)) for name in names]
        row += map(number, (expected.calls, expected.input_tokens, expected.output_tokens))
        rows.append([*row, _expected_cost(stage)])
    return header, rows


def _expected_cost(stage: StageForecast) -> str:
    """`~$0.40`: what the calls of a stage are expected to cost."""
    usd = stage.estimate.usd
    if usd is None:
        return "price not known"
    about = "~" if usd and not stage.exact else ""
    return dollars(usd, simulated=stage.simulated, about=about)


class SignedNumber(int):
    """A number that is written with its sign."""

    def __format__(self, spec: str) -> str:
        return format(int(self), f"+{spec}")


class InexactNumber(int):
    """A number that is written with a `~`."""

    def __format__(self, spec: str) -> str:
        return f"~{int(self):{spec}}" if self else "0"


TOTALS = ("rows", "reuse", "run", "calls", "tokens in", "out", "cost")


def comparison_rows(report: PlanComparison) -> list[list[object]]:
    """Returns what both versions come to, and the difference."""
    from agac.api.diff import totals

    simulated = any(stage.simulated for stage in report.now.stages)

    def cells(name: str, figures: Mapping[str, Any], *, signed: bool = False) -> list[object]:
        *numbers, usd = figures.values()
        cost = "price not known"
        if usd is not None:
            sign = "-" if usd < 0 else "+"
            cost = dollars(abs(usd), simulated=simulated, about=sign if signed else "")
        return [name, *map(SignedNumber if signed else int, numbers), cost]

    rows = []
    if report.before:
        rows.append(cells("before", totals(report.before)))
    rows.append(cells("now", totals(report.now)))
    rows.append(cells("difference", report.difference, signed=True))
    return rows


WAYS = {"sync": "by calls", "batch": "in batches", "flex": "with service_tier=flex"}


def priced(plan: CostEstimate | PlanReport, *, simulated: bool, basis: str = "") -> str:
    """Says what calls and batches cost side by side, what that rests on, and how long it takes."""
    prices = [
        f"{dollars(usd, simulated=simulated, about='~')} {WAYS[way]}"
        for way, usd in plan.ways.items()
        if usd is not None
    ]
    time = "time unknown"
    if plan.seconds is not None:
        time = f"about {duration(max(plan.seconds, 1))}"
    return f"{', '.join(prices)}{basis}, {time}"
