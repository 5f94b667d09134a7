"""Failed rows: which of them a further run would ask again, and what the others want first."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from agac.cli.shown.words import counted, without_switch
from agac.core.errors import ErrorType

LEAVE_FAILED = "--no-retry-failed"


def remedy_lines(summary: dict[str, Any], command: str, left: int, *, at_limit: bool) -> list[str]:
    """What to do about the failed rows of a run, each with its command. `left` of them the next run leaves as they are.

    `at_limit`: what to do next was said with the limit.
    """
    errors, by_flag = summary["errors"], LEAVE_FAILED in shlex.split(command)
    again = without_switch(command, LEAVE_FAILED)
    lines = [_left(left, summary["run"], by_flag=by_flag)] if left else []
    if at_limit:
        return lines
    if can_be_retried(summary, left, by_flag=by_flag):
        lines.append(f"  Try the failed rows again with: {again}")
    if spent := _of_budget(errors):
        lines.append(f"  {counted(spent, 'row')} spent their row_budget: raise it, then run again: {again}")
    if lacking := _of_input(errors):
        these = "these rows" if len(errors) == 1 else counted(lacking, "row")
        lines.append(f"  Mend {these} in the input, then run again: {again}")
    return lines


def _left(left: int, run: int, *, by_flag: bool) -> str:
    rows, retry = counted(left, "row"), f"agac retry {run}"
    if by_flag:
        return f"  {rows} that failed before: not tried again, as {LEAVE_FAILED} says; try again with: {retry}"
    return (
        f"  {rows} failed too often to be tried again by itself: change the prompt, or try all the same with: {retry}"
    )


def can_be_retried(summary: dict[str, Any], left: int, *, by_flag: bool = False) -> bool:
    """Whether a further run would ask any failed row again: what the input or a budget lacks no run can mend.

    `by_flag`: among the rows that were left there may be such ones, too.
    """
    errors = summary["errors"]
    others = sum(error["rows"] for error in errors) - _of_input(errors) - _of_budget(errors)
    may_be_left: int = sum(error["rows"] for error in errors if error["stage"]) if by_flag else others
    return others > 0 and may_be_left > left


def status_remedy(run: dict[str, Any], left: int) -> str:
    """The same as the end of a sentence that says how many rows failed."""
    again, errors = run["go_on"], run["errors"]
    if can_be_retried(run, left):
        return f", then: {again}"
    if left:
        return f"; try them again all the same with: agac retry {run['run']}"
    if _of_budget(errors):
        return f"; raise row_budget, then: {again}"
    return f"; mend these rows in the input, then: {again}"


def _of_input(errors: Iterable[dict[str, Any]]) -> int:
    """Rows that fail for as long as the input is what it is."""
    lacks = (ErrorType.MISSING_TEMPLATE_FIELD, ErrorType.INVALID_ROW)
    return sum(e["rows"] for e in errors if not e["stage"] or e["type"] in lacks)


def _of_budget(errors: Iterable[dict[str, Any]]) -> int:
    """Rows that may not spend more."""
    return sum(e["rows"] for e in errors if e["type"] == ErrorType.BUDGET_EXCEEDED)
