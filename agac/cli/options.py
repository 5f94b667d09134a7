"""Flags that several commands share, and how they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from agac.spec.workflow import Budget

Command = TypeVar("Command", bound=Callable[..., Any])

_ROWS = (
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Only so many rows."),
    click.option("--offset", type=click.IntRange(0), default=0, metavar="N", help="Skip so many rows first."),
    click.option("--sample", type=click.IntRange(1), metavar="N", help="Only so many rows, drawn by chance."),
    click.option("--seed", type=int, metavar="N", help="Draws another sample; 0 when left out."),
    click.option(
        "--input",
        type=click.Path(),
        metavar="INPUT",
        help="Read the rows from here: a file, a pattern in quotes, - for stdin.",
    ),
    click.option("--model", metavar="MODEL", help="Use this model for every stage: provider/model?key=value."),
    click.option(
        "--run-mode",
        type=click.Choice(["sync", "batch"]),
        help="Ask every stage so: a call for each row, or the provider's Batch API.",
    ),
    click.option("--var", "vars", metavar="NAME=VALUE", multiple=True, help="Change one of the workflow's vars."),
)
_STAGES = (
    click.option("--from", "from_stage", metavar="STAGE", help="Ask this stage and those after it only."),
    click.option("--until", metavar="STAGE", help="Ask no stage after this one."),
    click.option("--no-retry-failed", is_flag=True, help="Leave failed rows as they are."),
)


def choosing_rows(command: Command) -> Command:
    """Which rows, and what is asked of them otherwise than the workflow says."""
    return _with(_ROWS, command)


def choosing_stages(command: Command) -> Command:
    """Which stages are asked, from one and up to one, and whether failed rows are."""
    return _with(_STAGES, command)


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def read_variables(pairs: tuple[str, ...]) -> dict[str, str]:
    """`--var NAME=VALUE`, any number of times."""
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--var {pair}: write NAME=VALUE")
        found[name] = value
    return found


def read_budget(text: str | None) -> Budget | None:
    """`--budget 5` or `--budget usd=5,tokens=100000,calls=2000`."""
    if text is None:
        return None
    from agac.spec.workflow import Budget

    found: dict[str, float] = {}
    for part in text.split(","):
        unit, _, number = part.partition("=") if "=" in part else ("usd", "=", part)
        unit = unit.strip()
        if unit not in ("usd", "tokens", "calls") or unit in found:
            raise click.UsageError(f"--budget {text}: write 5 for dollars, or usd=5,tokens=100000,calls=2000")
        found[unit] = _positive(text, unit, number)
    tokens, calls = (int(found[unit]) if unit in found else None for unit in ("tokens", "calls"))
    return Budget(found.get("usd"), tokens, calls)


def read_seconds(flag: str, text: str | None) -> float | None:
    """`90`, `30m`, `12h`: a time as files say it."""
    if text is None:
        return None
    from agac.spec.modelchecks import duration  # loads pydantic

    try:
        value = float(text) if text.replace(".", "", 1).isdigit() else float(duration(text))
    except ValueError as error:
        raise click.UsageError(f"{flag} {text}: {error}") from None
    return value


def _positive(text: str, unit: str, number: str) -> float:
    try:
        value = float(number.strip().lstrip("$").replace("_", ""))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e15 or (unit != "usd" and value != int(value)):
        kind = "a number above 0" if unit == "usd" else "a whole number above 0"
        raise click.UsageError(f"--budget {text}: {unit} takes {kind}")
    return value
