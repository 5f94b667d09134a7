"""Measures agac against a raw client, and prints what was required beside what was measured.

    python bench/run.py                     everything; half an hour
    python bench/run.py --quick             fewer rows; some minutes
    python bench/run.py --only latency      one scenario; may be given more than once

Each scenario runs three times and gives medians. Nothing else should be going on: a warning says when it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from figures import Figure, machine, machine_line, markdown_table, text_table
from scenarios import SCENARIOS
from sizes import FULL, QUICK, TINY

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures: bench/run.py --write-docs -->", "<!-- end of figures -->"
BUSY = 0.25
"""Load a core above which figures are doubtful."""


def main() -> None:
    """Runs the scenarios that were asked for."""
    asked = _arguments()
    facts = machine()
    print(machine_line(facts), flush=True)
    if facts["load"] > BUSY * facts["cores"]:
        print("Warning: this machine is busy; trust the ratios, not the times.", flush=True)
    sizes = QUICK if asked.quick else TINY if asked.tiny else FULL
    figures: list[Figure] = []
    for name in asked.only or SCENARIOS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        figures += SCENARIOS[name](sizes)
    print(f"\n{text_table(figures)}\n")
    missed = [figure for figure in figures if figure.kept is False]
    asked_for = sum(figure.kept is not None for figure in figures)
    print(f"{asked_for - len(missed)} of {asked_for} requirements kept.")
    if asked.json:
        asked.json.write_text(json.dumps(_as_json(facts, figures), ensure_ascii=False, indent=2) + "\n", "utf-8")
    if asked.write_docs:
        write_page(PAGE, facts, figures)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure agac against a raw client.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="fewer rows")
    size.add_argument("--tiny", action="store_true", help="a few rows: shows that it works, measures nothing")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="one scenario")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON too")
    parser.add_argument("--write-docs", action="store_true", help=f"put the figures into {PAGE.name}")
    asked = parser.parse_args()
    if asked.write_docs and (asked.only or asked.tiny):
        parser.error("--write-docs wants every scenario, with rows enough to mean something")
    return asked


def _as_json(facts: dict[str, Any], figures: list[Figure]) -> dict[str, Any]:
    return {"machine": facts, "figures": [figure.as_json() for figure in figures]}


def write_page(page: Path, facts: dict[str, Any], figures: list[Figure]) -> None:
    """Replaces what stands between the markers of the page."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    when = datetime.now(UTC).date().isoformat()
    body = f"Measured {when}: {machine_line(facts)}.\n\n{markdown_table(figures)}"
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
