"""Rows that wait for a stage which was not to be asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agac.cli.shown.words import counted, without

if TYPE_CHECKING:
    from agac.engine.scope import Scope


def parked_line(summary: dict[str, Any], rows: int, command: str, scope: Scope | None) -> str:
    """How many rows wait, for which stages, and the command that finishes them."""
    many = f"{counted(rows, 'row')} {'waits' if rows == 1 else 'wait'}"
    names = list(_waited_for(summary, scope)) if scope is not None else []
    if not names:
        what = "a stage that was not to be asked"
    elif len(names) == 1:
        what = f"stage {names[0]}, which was not to be asked"
    else:
        what = f"stages {' and '.join(names)}, which were not to be asked"
    whole = without(command, "--stage", "--from", "--until")
    return f"Open: {many} for {what}; {'finish it' if rows == 1 else 'finish them'} with: {whole}"


def _waited_for(summary: dict[str, Any], scope: Scope) -> Iterator[str]:
    """The stages that were not to be asked and that more rows came to than went through."""
    rows = summary["rows"]
    come = rows["done"] + rows["open"] + sum(stage["failed"] for stage in summary["stages"])
    for stage in summary["stages"]:
        through = stage["done"] + stage["reused"]
        if come > through + stage["failed"] and not scope.may_ask(stage["name"]):
            yield stage["name"]
        come = through
