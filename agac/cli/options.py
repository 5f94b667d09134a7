"""Reading flags that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from agac.spec.workflow import Budget


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


def _positive(text: str, unit: str, number: str) -> float:
    try:
        value = float(number.strip().lstrip("$").replace("_", ""))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e15 or (unit != "usd" and value != int(value)):
        kind = "a number above 0" if unit == "usd" else "a whole number above 0"
        raise click.UsageError(f"--budget {text}: {unit} takes {kind}")
    return value


def read_run(text: str) -> int | str:
    """A run's number, or `last`."""
    if text == "last":
        return text
    if not text.isdecimal():
        raise click.UsageError(f"{text}: give a run's number, or `last`; `agac runs` lists them")
    return int(text)
