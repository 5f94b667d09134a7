"""How good the estimates of `agac plan` are: against what runs cost, and how often their range holds.

    python bench/estimates.py               every shipped workflow, cold and warm, and 200 draws; some minutes
    python bench/estimates.py --draws 40    fewer draws

A shipped workflow is run over half of its rows, then over all of them: `cold` is the estimate before the first run,
`warm` the one before the second. A draw is a run over rows whose answers have heavy-tailed lengths, an estimate of as
many other rows, and their run, with requests that fail, answers that do not fit, and a cache.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from processes import simulator

import agac
from agac.simulator.server import STAND_INS

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("agac.yml", "workflows", "agentcards", "schemas", "prompts", "data", "tools")
CASES = {
    "classification": "sync", "product_reviews": "sync", "support_triage": "sync, guards", "extraction": "batch",
    "summarization": "batch", "research_survey": "explode, groups", "repo_questions": "agents",
}  # fmt: skip
FAULTS = [
    {"kind": "server_error", "rate": 0.03},
    {"kind": "malformed_json", "rate": 0.05},
]
LENGTHS = 1000  # answers of different lengths that rows draw from


@dataclass(frozen=True)
class Estimated:
    """An estimate, and what came."""

    usd: float
    low: float
    high: float
    came: float

    @property
    def off(self) -> float:
        """By how much of what came the estimate was above it."""
        return self.usd / self.came - 1

    @property
    def held(self) -> bool:
        """Whether what came lies in the range."""
        return self.low <= self.came <= self.high


def estimated(root: Path, workflow: str, **options: Any) -> Estimated:
    """Plans a run, then makes it."""
    chosen = agac.RunOptions(**options, wait=options.get("run_mode") == "batch" or None)
    plan = agac.plan(workflow, chosen, project=root)
    before = _spent(root)
    agac.run(workflow, chosen, project=root)
    assert plan.usd, workflow
    assert plan.usd_range, workflow
    return Estimated(plan.usd, *plan.usd_range, _spent(root) - before)


def _spent(root: Path) -> float:
    import sqlite3

    file = root / ".agac" / "agac.db"
    if not file.exists():
        return 0.0
    with sqlite3.connect(file) as connection:
        [(usd,)] = connection.execute("SELECT coalesce(sum(cost), 0.0) FROM attempt")
    connection.close()
    return float(usd)


@contextmanager
def standing_in(folder: Path, *flags: str) -> Iterator[None]:
    """A simulator that every simulated model asks."""
    with simulator(folder, *flags) as server:
        STAND_INS.append(server.base_url)
        try:
            yield
        finally:
            STAND_INS.pop()


def shipped(folder: Path, workflow: str, way: str) -> tuple[Estimated, Estimated]:
    """The estimates of a shipped workflow before its first run, and before its second."""
    for name in SHIPPED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    rows = agac.plan(workflow, project=folder).rows["total"]
    mode = {"run_mode": "batch"} if way == "batch" else {}
    cold = estimated(folder, workflow, limit=(rows + 1) // 2, **mode)
    return cold, estimated(folder, workflow, **mode)


def write_tail(folder: Path, seed: int = 0) -> tuple[str, ...]:
    """A script of answers with lognormal lengths, and the flags of a simulator with it, with faults and a cache."""
    draw = random.Random(seed)
    lengths = [min(max(8, round(draw.lognormvariate(math.log(240), 1.0))), 8000) for _ in range(LENGTHS)]
    rules = [{"match": f"case {number:04}.", "reply": {"answer": "a" * size}} for number, size in enumerate(lengths)]
    (folder / "script.json").write_text(json.dumps(rules), "utf-8")
    (folder / "faults.json").write_text(json.dumps(FAULTS), "utf-8")
    cached = "hosted"
    return "--script", str(folder / "script.json"), "--faults", str(folder / "faults.json"), "--serving", cached


def draws(folder: Path, count: int, rows: int) -> Iterator[Estimated]:
    """So many estimates from the history of one run. Two stages; the second one's guard passes most rows."""
    for number in range(count):
        root = folder / str(number)
        draw = random.Random(number)
        (root / "workflows").mkdir(parents=True)
        (root / "agac.yml").write_text("defaults: {model: simulator/small}\n", "utf-8")
        prompt = f"{'Answer the case below, as the rules of the house say. ' * 4}Row ${{id}}, case ${{case}}."
        stages = [
            {"name": "answer", "prompt": prompt, "output_schema": {"answer": "string"}},
            {"name": "sort", "prompt": "Sort ${id}: ${answer.answer}", "output_schema": {"kind": "a|b|c"}},
        ]
        source = {"path": "rows.jsonl", "id_field": "id"}
        retries = {"attempts": 6, "delay": 0}
        body = {"input": source, "defaults": {"retries": retries, "repair": 1}, "stages": stages}
        (root / "workflows" / "tail.yml").write_text(yaml.safe_dump(body), "utf-8")
        cases = [{"id": f"{number}-{row}", "case": f"{draw.randrange(LENGTHS):04}"} for row in range(2 * rows)]
        (root / "rows.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases), "utf-8")
        agac.run("tail", agac.RunOptions(limit=rows), project=root)
        yield estimated(root, "tail")
        shutil.rmtree(root)


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description="Compare estimates with what runs cost.")
    parser.add_argument("--draws", type=int, default=200, help="runs whose range is tested")
    parser.add_argument("--rows", type=int, default=100, help="rows of each of their runs")
    given = parser.parse_args()
    print(f"{'workflow':<18} {'':<16} {'':<5} {'estimate':>10} {'came':>10} {'off':>7}  80 % range")
    for workflow, way in CASES.items():
        with TemporaryDirectory() as folder, standing_in(Path(folder)):
            root = Path(folder) / "project"
            root.mkdir()
            for name, one in zip(("cold", "warm"), shipped(root, workflow, way), strict=True):
                held = f"{one.low:.6f} to {one.high:.6f}{'' if one.held else ' (missed)'}"
                print(f"{workflow:<18} {way:<16} {name:<5} {one.usd:>10.6f} {one.came:>10.6f} {one.off:>+7.1%}  {held}")
    with TemporaryDirectory() as folder, standing_in(Path(folder), *write_tail(Path(folder))):
        found = list(draws(Path(folder), given.draws, given.rows))
    held = sum(one.held for one in found) / len(found)
    within = sum(abs(one.off) <= 0.15 for one in found) / len(found)
    print(f"\n{len(found)} draws of {given.rows} rows: the range held in {held:.1%}; {within:.1%} within 15 %")


if __name__ == "__main__":
    main()
