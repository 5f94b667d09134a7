"""How good the estimates of `agac plan` are: against what runs cost.

    python bench/estimates.py               every shipped workflow, and 200 draws of each kind of stage; some minutes
    python bench/estimates.py --draws 40    fewer draws

A shipped workflow is run over half of its rows, over the other half, and with `--fresh` over all of them, where a model
answers otherwise (a simulator with another seed). `cold` is the estimate before the first run, `rest` the one before
the second, `again` the one before the third.

A draw is a run over rows, an estimate of as many other rows, and their run. Each is of one of KINDS. All have answers
of heavy-tailed lengths, a beginning that a cache holds, calls that are limited (429) or fail and are repeated, answers
that do not fit and are asked for again, and rows that are refused.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
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
    "classification": "sync", "product_reviews": "sync", "support_triage": "sync, guards", "translation": "sync",
    "extraction": "batch", "summarization": "batch", "contract_risk": "explode, groups",
    "research_survey": "explode, groups", "product_catalog": "lists, dedupe", "repo_questions": "agents",
    "competitor_research": "agents, groups",
}  # fmt: skip
KINDS = ("sync", "batch", "explode", "groups", "agents")
FAULTS = [
    {"kind": "rate_limit", "at": list(range(40, 1_000_000, 120)), "retry_after": 0.001},
    {"kind": "server_error", "rate": 0.03},
    {"kind": "malformed_json", "rate": 0.05},
    {"kind": "refusal", "rate": 0.01},
]
CASES_DRAWN = 400  # answers of different lengths that rows draw from
RULES = "The rules of the house, which all of them begin with. " * 85  # as long as what a hosted provider caches


@dataclass(frozen=True)
class Estimated:
    """An estimate, and what came."""

    usd: float
    came: float

    @property
    def off(self) -> float:
        """By how much of what came the estimate was above it."""
        return self.usd / self.came - 1


def estimated(root: Path, workflow: str, **options: Any) -> Estimated:
    """Plans a run, then makes it."""
    chosen = agac.RunOptions(**options)
    plan = agac.plan(workflow, chosen, project=root)
    before = _spent(root)
    agac.run(workflow, chosen, project=root)
    assert plan.usd, workflow
    return Estimated(plan.usd, _spent(root) - before)


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


def ways(kind: str) -> dict[str, Any]:
    """With what a run of this kind is made."""
    return {"run_mode": "batch", "wait": True} if kind == "batch" else {}


def shipped(folder: Path, workflow: str) -> Iterator[tuple[str, Estimated]]:
    """The estimates of a shipped workflow before its first runs: see above."""
    for name in SHIPPED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    rows = agac.plan(workflow, project=folder).rows["total"]
    mode = ways(CASES[workflow])
    with standing_in(folder):
        yield "cold", estimated(folder, workflow, limit=(rows + 1) // 2, **mode)
        yield "rest", estimated(folder, workflow, **mode)
    with standing_in(folder, "--seed", "1"):
        yield "again", estimated(folder, workflow, fresh=True, **mode)


def write_tail(folder: Path, kind: str) -> tuple[str, ...]:
    """A script of answers with lognormal lengths, and the flags of a simulator with it, with faults and a cache."""
    draw = random.Random(kind)
    rules: list[dict[str, Any]] = []

    def length() -> int:
        return min(max(8, round(draw.lognormvariate(math.log(240), 1.0))), 8000)

    for number in range(CASES_DRAWN):
        case, answer = f"case {number:04}.", {"answer": "a" * length()}
        if kind == "groups":  # what is said of a group is as long as it would be of one of its rows
            answer["answer"] = case + answer["answer"]
        if kind == "explode":  # lists of 0 to some items
            few = [f"{draw.randrange(CASES_DRAWN):04}" for _ in range(min(int(draw.expovariate(0.4)), 12))]
            rules.append({"match": f"Plan {case}", "reply": {"parts": few}})
        if kind == "agents":  # one turn to some, each with a call
            turns = min(int(draw.expovariate(0.8)), 5)
            calls = [{"name": "look", "arguments": {"size": length()}}]
            rules += [{"match": case, "turn": turn + 1, "calls": calls} for turn in range(turns)]
        rules.append({"match": case, "reply": answer})
    (folder / "script.json").write_text(json.dumps(rules), "utf-8")
    (folder / "faults.json").write_text(json.dumps(FAULTS), "utf-8")
    return "--script", str(folder / "script.json"), "--faults", str(folder / "faults.json"), "--serving", "hosted"


LOOK = "def look(size: int) -> str:\n    return 'b' * size\n"


def stages(kind: str) -> list[dict[str, Any]]:
    """The stages of a draw."""
    says = {"answer": "string"}
    answer = {"name": "answer", "instructions": RULES, "prompt": "Row ${id}, case ${case}.", "output_schema": says}
    sort = {"name": "sort", "prompt": "Sort ${id}: ${answer.answer}", "output_schema": {"kind": "a|b|c"}}
    match kind:
        case "explode":
            plan = {"name": "plan", "prompt": "Plan case ${case}. Row ${id}", "output_schema": {"parts": ["string"]}}
            return [plan, answer | {"explode": "plan.parts", "prompt": "Of row ${id}, case ${item}."}]
        case "groups":  # of one to many rows; the large ones are cut
            team = {"name": "sum", "group_by": ["team"], "prompt": "Sum up ${team}: ${rows_json}"}
            return [answer, team | {"reduce": {"max_rows": 6}, "output_schema": says}]
        case "agents":
            return [answer | {"tools": {"tools/look.py:look": {}}, "max_turns": 8}]
    return [answer, sort | {"when": "answer.answer.size() > 120"}]


def draws(folder: Path, kind: str, numbers: Iterable[int], rows: int) -> Iterator[Estimated]:
    """Estimates from the history of one run, of a run of this kind: one for each number."""
    folder.mkdir()
    with standing_in(folder, *write_tail(folder, kind)):
        for number in numbers:
            yield drawn(folder / str(number), kind, random.Random(number), rows)


def drawn_of_all(folder: Path, count: int, rows: int) -> dict[str, list[Estimated]]:
    """So many estimates in all, by the kind of the run."""
    return {
        kind: list(draws(folder / kind, kind, range(place, count, len(KINDS)), rows))
        for place, kind in enumerate(KINDS)
    }


def drawn(root: Path, kind: str, draw: random.Random, rows: int) -> Estimated:
    """A run over rows, and the estimate of a run over as many others."""
    (root / "workflows").mkdir(parents=True)
    (root / "tools").mkdir()
    (root / "tools" / "look.py").write_text(LOOK, "utf-8")
    (root / "agac.yml").write_text("defaults: {model: simulator/small}\n", "utf-8")
    rules = {"retries": {"attempts": 8, "delay": 0}, "repair": 1, "batch": {"poll_interval": 0.01}}
    body = {"input": {"path": "rows.jsonl", "id_field": "id"}, "defaults": rules, "stages": stages(kind)}
    (root / "workflows" / "tail.yml").write_text(yaml.safe_dump(body), "utf-8")
    cases, team = list[dict[str, str]](), ""
    for row in range(2 * rows):
        team = f"{draw.randrange(CASES_DRAWN):04}" if row in (0, rows) or draw.random() < 0.2 else team
        cases.append({"id": f"{root.name}-{row}", "case": f"{draw.randrange(CASES_DRAWN):04}", "team": team})
    (root / "rows.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases), "utf-8")
    mode = ways(kind)
    agac.run("tail", agac.RunOptions(limit=rows, **mode), project=root)
    try:
        return estimated(root, "tail", **mode)
    finally:
        shutil.rmtree(root)


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description="Compare estimates with what runs cost.")
    parser.add_argument("--draws", type=int, default=200, help="runs of each kind of stage")
    parser.add_argument("--rows", type=int, default=100, help="rows of each of their runs")
    given = parser.parse_args()
    print(f"{'workflow':<20} {'':<16} {'':<5} {'estimate':>10} {'came':>10} {'off':>7}")
    for workflow, way in CASES.items():
        with TemporaryDirectory() as folder:
            for name, one in shipped(Path(folder), workflow):
                print(f"{workflow:<20} {way:<16} {name:<5} {one.usd:>10.6f} {one.came:>10.6f} {one.off:>+7.1%}")
    with TemporaryDirectory() as folder:
        found = drawn_of_all(Path(folder), given.draws, given.rows)
    print()
    for kind, some in {**found, "all": [one for own in found.values() for one in own]}.items():
        print(f"{len(some)} draws of {given.rows} rows, {kind}: {summed(some)}")


def summed(found: Sequence[Estimated]) -> str:
    """What they say together."""
    within = sum(abs(one.off) <= 0.15 for one in found) / len(found)
    mean = sum(one.off for one in found) / len(found)
    return f"{within:.1%} within 15 %, {mean:+.1%} in the mean"


if __name__ == "__main__":
    main()
