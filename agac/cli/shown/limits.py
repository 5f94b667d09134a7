"""What is said of a run that stopped by a rule of its user's: a budget, `max_errors`, stop-loss."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from agac.cli.shown.words import counted, without

if TYPE_CHECKING:
    from agac.api.ending import RunReport
    from agac.api.finishing import Finishing


def limit_lines(report: RunReport, command: str) -> list[str]:
    """Why it stopped, what finishing needs, the command to go on with."""
    if report.stop == "loss":
        look = f"agac inspect {report.summary['run']}"
        return [
            f"stopped: {report.stopped}",
            f"  Nothing further is asked, and no output is replaced. Look at a row with `{look}`.",
            f"  Mend what is wrong, then go on with: {command}",
            "  When this is how it should be, set `stop_loss: false` in the workflow.",
        ]
    simulated = report.summary["calls"]["cost_is_simulated"]
    lines = [f"stopped at a limit: {report.stopped}"]
    lines += [f"  {spent_line(budget, simulated)}" for budget in report.invocation["budgets"]]
    if report.finishing is not None:
        lines += [f"  {_needs(report.finishing, simulated)}", f"  {_next(report.finishing, command)}"]
    return lines + _held(report)


def _held(report: RunReport) -> list[str]:
    """How much of the input the results hold now that they were replaced."""
    rows = report.summary["rows"]
    written = rows["done"] + rows["failed"]
    whole = max(rows["total"] - rows["dropped"], written + (report.finishing.rows if report.finishing else 0))
    if not report.files or written >= whole:
        return []
    return [f"  {report.files[0].name} now holds {written:,} of {counted(whole, 'row')}"]


def spent_line(budget: dict[str, Any], simulated: bool) -> str:
    """`budget of the run: $0.0051 of $0.0060 spent; 12 of 40 calls spent`."""
    units = [_unit(unit, facts, simulated) for unit, facts in budget.items() if isinstance(facts, dict)]
    return f"{budget['name']}: {'; '.join(units)}"


def _unit(unit: str, facts: dict[str, float], simulated: bool) -> str:
    """`simulated $0.0051 of $0.0060 spent, $0.0002 more by calls that left no answer, at most`."""
    word = "" if unit == "usd" else f" {unit}"
    mark = "simulated " if simulated and unit == "usd" else ""
    spent, limit, held = (_number(unit, facts[key]) for key in ("spent", "limit", "held"))
    perhaps = f", and at most {held} by calls that left no answer" if facts["held"] else ""
    return f"{mark}{spent} of {limit}{word} spent{perhaps}"


def _number(unit: str, value: float) -> str:
    return f"${value:,.4f}" if unit == "usd" else f"{value:,.0f}"


def _needs(finishing: Finishing, simulated: bool) -> str:
    rows = f"{finishing.rows:,} {'row is' if finishing.rows == 1 else 'rows are'} left"
    if not finishing.rows:
        return "no row is left"
    dollars = f"{'simulated ' if simulated else ''}${finishing.usd:,.4f}, " if finishing.usd is not None else ""
    needed = f"{dollars}{finishing.tokens:,} tokens, {finishing.calls:,} calls"
    return f"{rows}; estimated, {'it needs' if finishing.rows == 1 else 'they need'} {needed}"


def _next(finishing: Finishing, command: str) -> str:
    """The command again, with a limit that should do."""
    kept = "What is finished is stored and written"
    if finishing.stage is not None:
        change = f"raise `budget` of stage {finishing.stage!r}"
        return f"{kept}. To go on, {change}{_to(finishing.budget)}, then: {command}"
    if finishing.max_errors is not None:
        return f"{kept}. Mend what fails (see errors.jsonl), or allow it: " + _with(
            command, "--max-errors", str(finishing.max_errors)
        )
    return f"{kept}. Go on with: " + _with(command, "--budget", finishing.budget or "")


def _to(budget: str | None) -> str:
    return f" to {{{budget.replace('=', ': ').replace(',', ', ')}}}" if budget else ""


def _with(command: str, flag: str, value: str) -> str:
    """The command with this value of the flag, whatever it said before."""
    return f"{without(command, flag)} {shlex.join([flag, value])}"
