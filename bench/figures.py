"""What was measured, and what was asked for beside it."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `at_most` or `at_least` is the requirement; without one it is there to know."""

    scenario: str
    what: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def kept(self) -> bool | None:
        """Whether the requirement is met; None where there is none."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    @property
    def requirement(self) -> str:
        """The requirement in words."""
        if self.at_most is not None:
            return f"<= {number(self.at_most)}"
        return "" if self.at_least is None else f">= {number(self.at_least)}"

    def cells(self) -> tuple[str, str, str, str, str]:
        """The figure as a line of a table."""
        verdict = {True: "kept", False: "MISSED", None: ""}[self.kept]
        return self.scenario, self.what, f"{number(self.value)} {self.unit}".strip(), self.requirement, verdict

    def as_json(self) -> dict[str, Any]:
        """The figure for machines."""
        return {**asdict(self), "kept": self.kept}


HEAD = ("scenario", "what", "measured", "required", "")


def number(value: float) -> str:
    """Three digits that mean something; `20,000` in full."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def text_table(figures: Sequence[Figure]) -> str:
    """For a terminal."""
    lines = [HEAD, *(figure.cells() for figure in figures)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def markdown_table(figures: Sequence[Figure]) -> str:
    """For a page."""
    lines = [HEAD, ("---", "---", "--:", "--:", "---"), *(figure.cells() for figure in figures)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine() -> dict[str, Any]:
    """Where this runs. `load` is the load average of the last minute, before anything was measured."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2),
    }


def machine_line(facts: dict[str, Any]) -> str:
    """The machine in one line."""
    return "{cpu}, {cores} cores, {system}, Python {python}, load average before: {load}".format(**facts)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
