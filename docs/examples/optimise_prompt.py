# ruff: noqa: INP001, T201
"""Improve the prompt of a stage by what it gets wrong, for a sum that you name.

    python optimise_prompt.py --usd 2

A candidate is a prompt. In each round one of them is chosen that answers some rows better than all others do; a model
is shown rows that it got wrong, and writes another; that is tried on a few rows, and, if it does better there, on all.
The best one is written as a diff. It is GEPA's way (Agrawal and others, 2025) without the merging of two prompts.

What is asked is kept in the store: killed at any moment, the same command goes on, and pays nothing twice. Copy this
file beside your agac.yml, and change what stands in capitals, and `judged`.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from contextlib import nullcontext
from dataclasses import dataclass
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import yaml

import agac
from agac import testing

WORKFLOW, STAGE, PROMPT = "mails", "route", Path("prompts/route.txt")
LABELLED, UNSEEN = Path("data/mails.csv"), Path("data/unseen.csv")  # rows to learn from, and rows for the last word
ID, LABEL = "mail", "team_by_hand"
STUBS = "stubs.yml"  # what stands in for tools: nothing real is called, and each candidate meets the same
WRITER = "simulator/large"  # the model that writes prompts
CANDIDATES, DIFF = Path("candidates"), Path("winner.diff")
FEW = 5  # rows on which a candidate is tried first

WRITE = """A prompt was asked of many rows:
<prompt>
{prompt}
</prompt>
Some answers were wrong:
{wrong}
Write a better prompt. Keep its placeholders as they are: the row is put there. Say rules, no single rows."""

Scores = dict[str, float]  # by the id of a row, from 0 to 1


def judged(answer: Any, row: dict[str, str]) -> tuple[float, str]:
    """The metric: how good an answer is, and what is to be learned from that."""
    if answer is None:
        return 0.0, "no answer came"
    return float(answer["team"] == row[LABEL]), f"the answer was {answer['team']}, and right is {row[LABEL]}"


@dataclass
class Candidate:
    """A prompt, in the file that agac tries, with what came of each row."""

    file: Path
    scores: Scores
    lessons: dict[str, str]

    @property
    def mean(self) -> float:
        return sum(self.scores.values()) / len(self.scores)


class Spent(Exception):
    """The loop ends here: a run may go no further."""


class Cap:
    """The sum for the whole loop, also when it is begun again: agac knows what each run has spent."""

    def __init__(self, usd: float) -> None:
        self.usd, self.spent = usd, dict[int, float]()

    @property
    def left(self) -> float:
        return self.usd - sum(self.spent.values())

    def options(self) -> dict[str, Any]:
        """For a run, or a trial, that may spend what is left, and does not ask whether to begin."""
        if self.left <= 0:
            raise Spent(f"${self.usd} are spent")
        return {"budget": self.left, "yes": True}

    def note(self, run: dict[str, Any], stopped: str | None) -> int:
        """Takes off what a run has cost, and gives its number."""
        self.spent[run["run"]] = run["calls"]["cost_usd"] or 0.0
        if stopped:
            raise Spent(stopped)
        return int(run["run"])


def rows_of(file: Path) -> dict[str, dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return {row[ID]: row for row in csv.DictReader(lines)}


def judge(run: int, rows: dict[str, dict[str, str]]) -> tuple[Scores, dict[str, str]]:
    """Scores and lessons of the rows that a run has asked."""
    query = f"SELECT row_id, result FROM v_results WHERE run = {run} AND stage = '{STAGE}' AND replica = 0"  # noqa: S608
    with agac.sql(query) as found:
        told = {one: judged(text and json.loads(text), rows[one]) for one, text in found if one in rows}
    return {one: score for one, (score, _) in told.items()}, {one: lesson for one, (_, lesson) in told.items()}


def tried(file: Path, cap: Cap, rows: dict[str, dict[str, str]], *, sample: int, seed: int) -> Candidate:
    """A prompt on some rows: `agac try`. Its answers are kept, and the workflow's when that gets the prompt."""
    report = agac.trial(WORKFLOW, STAGE, prompt=file, tool_stubs=STUBS, sample=sample, seed=seed, **cap.options())
    return Candidate(file, *judge(cap.note(report.comparison.second, report.stopped), rows))


def chosen(pool: list[Candidate], chance: Random) -> Candidate:
    """One that is the best of all at some row, the likelier the more such rows it has: so one that is good at what
    others fail at is not lost because its mean is lower."""
    best = {row: max(one.scores[row] for one in pool) for row in pool[0].scores}
    return chance.choices(pool, [sum(one.scores[row] == top for row, top in best.items()) for one in pool])[0]


def written(parent: Candidate, cap: Cap, rows: dict[str, dict[str, str]], chance: Random) -> str | None:
    """What a model makes of a prompt and of rows that it got wrong; None: nothing that can be tried."""
    wrong = [row for row, score in parent.scores.items() if score < 1]
    told = [f"- {rows[row]['text']}: {parent.lessons[row]}" for row in chance.sample(wrong, min(2, len(wrong)))]
    before = parent.file.read_text("utf-8")
    found = agac.run(
        task=WRITE, inputs=[{"prompt": before, "wrong": "\n".join(told)}], model=WRITER, max_tokens=800,
        output_schema={"why": "string", "prompt": "string"}, options=agac.RunOptions(**cap.options()),
    )  # fmt: skip
    cap.note(found.report.summary, found.report.stopped)
    if not found[0].ok:
        print(f"  {found[0].error}")
        return None
    print(f"  {found[0].output['why']}")
    text = found[0].output["prompt"].strip() + "\n"
    same = set(re.findall(r"\$\{.*?\}", text)) == set(re.findall(r"\$\{.*?\}", before))
    return text if same else None


def on_unseen(candidate: Candidate, cap: Cap) -> float:
    """How good it is at rows that had no part in choosing it: those praise it too much."""
    keys = yaml.safe_load(Path(f"workflows/{WORKFLOW}.yml").read_text("utf-8"))
    next(one for one in keys["stages"] if one["name"] == STAGE)["prompt"] = candidate.file.as_posix()
    workflow, options = agac.Workflow(f"{WORKFLOW}_unseen", **keys), agac.RunOptions(tool_stubs=STUBS, **cap.options())
    report = agac.run(workflow, options, input=UNSEEN)
    return Candidate(candidate.file, *judge(cap.note(report.summary, report.stopped), rows_of(UNSEEN))).mean


def optimise(rounds: int, cap: Cap) -> Candidate:
    """The best prompt that is found until the rounds are over, the sum is spent, or nothing is wrong any more."""
    rows, chance = rows_of(LABELLED), Random(3)  # noqa: S311 - chance, not secrecy
    CANDIDATES.mkdir(exist_ok=True)
    first = agac.run(WORKFLOW, agac.RunOptions(tool_stubs=STUBS, **cap.options()))
    pool = [Candidate(PROMPT, *judge(cap.note(first.summary, first.stopped), rows))]
    print(f"{PROMPT}: {pool[0].mean:.0%} of {len(rows)} rows")
    try:
        for number in range(1, rounds + 1):
            if max(one.mean for one in pool) == 1:
                break
            parent = chosen(pool, chance)
            print(f"round {number}, from {parent.file}")
            text = written(parent, cap, rows, chance)
            if text is None or text in [one.file.read_text("utf-8") for one in pool]:
                print("  nothing new")
                continue
            file = CANDIDATES / f"{sha256(text.encode()).hexdigest()[:8]}.txt"  # its name is its content
            file.write_text(text, "utf-8")
            few = tried(file, cap, rows, sample=FEW, seed=number)
            gain = sum(score - parent.scores[row] for row, score in few.scores.items())
            print(f"  {file}: {gain:+g} on {FEW} rows")
            if gain > 0:
                pool.append(tried(file, cap, rows, sample=len(rows), seed=number))
                print(f"  {file}: {pool[-1].mean:.0%} of {len(rows)} rows")
    except Spent as reason:
        print(f"stopped: {reason}")
    return max(pool, key=lambda one: one.mean)


def main() -> None:
    """Optimises, writes the diff, and says what it came to."""
    parser = argparse.ArgumentParser(description="Improve a prompt by what it gets wrong.")
    parser.add_argument("--usd", type=float, default=1.0, help="The most that the whole loop may spend.")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--script", help="What simulated models say: the loop without a key.")
    given = parser.parse_args()
    cap = Cap(given.usd)
    with testing.simulator(script=given.script) if given.script else nullcontext():
        try:
            best, first = optimise(given.rounds, cap), Candidate(PROMPT, {}, {})
            if best.file == PROMPT:
                print("no candidate is better")
            else:
                before, after = (one.file.read_text("utf-8").splitlines(keepends=True) for one in (first, best))
                DIFF.write_text("".join(unified_diff(before, after, f"a/{PROMPT}", f"b/{PROMPT}")), "utf-8")
                print(f"{best.file} is the best; {DIFF} puts it in place: git apply {DIFF}")
                print(f"on unseen rows: {on_unseen(first, cap):.0%} before, {on_unseen(best, cap):.0%} after")
        except Spent as reason:
            print(f"not tried any further: {reason}")
    print(f"spent: ${sum(cap.spent.values()):.4f} of ${cap.usd:g}, in {len(cap.spent)} runs")


if __name__ == "__main__":
    main()
