"""What is said of a run that stopped by a rule of its user's: a budget, `max_errors`, stop-loss."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agac.api.finishing import Finishing
    from agac.api.running import RunReport


def limit_lines(report: RunReport, command: str) -> list[str]:
    """Why it stopped, what finishing needs, the command to go on with."""
    if report.stop == "loss":
        return [
            f"stopped: {report.stopped}",
            "  Nothing further is asked. See a row with `agac inspect`, mend what is wrong, then go on with: "
            + command,
            "  When this is how it should be, set `stop_loss: false` in the workflow.",
        ]
    lines = [f"stopped at a limit: {report.stopped}"]
    lines += [f"  {_spent(budget)}" for budget in report.invocation["budgets"]]
    if report.finishing is not None:
        lines.append(f"  {_needs(report.finishing)}")
    lines.append("  What is finished is stored and written. Go on with: " + _go_on(report.finishing, command))
    return lines


def _spent(budget: dict[str, Any]) -> str:
    units = [
        f"{_number(unit, facts['spent'])} of {_number(unit, facts['limit'])}{'' if unit == 'usd' else f' {unit}'}"
        for unit, facts in budget.items()
        if unit != "name"
    ]
    return f"{budget['name']}: {', '.join(units)} spent"


def _number(unit: str, value: float) -> str:
    return f"${value:,.4f}" if unit == "usd" else f"{value:,.0f}"


def _needs(finishing: Finishing) -> str:
    rows = f"{finishing.rows:,} {'row is' if finishing.rows == 1 else 'rows are'} left"
    if finishing.calls is None:
        return f"{rows}; no row was finished, so nothing can be said of what they need"
    dollars = f"about ${finishing.usd:,.4f}, " if finishing.usd is not None else ""
    return f"{rows}; like those before they need {dollars}{finishing.tokens:,} tokens, {finishing.calls:,} calls"


def _go_on(finishing: Finishing | None, command: str) -> str:
    """The command again; with a budget that should do, where it was a budget of the run that stopped it."""
    if finishing is None or finishing.budget is None:
        return command
    words = shlex.split(re.sub(r" --budget[= ]\S+", "", command))
    return shlex.join([*words, "--budget", finishing.budget])
