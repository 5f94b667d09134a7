"""Random runs, edits of prompts and rows, and decisions, on old answers too: each is applied to just what was seen."""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from scripted_server import Step, deciding
from support.project import ProjectFolder
from support.soak import SOAK

import agac

SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}
ROWS, PEOPLE = 4, ("anna", "ben", "cleo")


class Expected:
    """What people said, by what they saw: the row, its text and the answer."""

    def __init__(self) -> None:
        self.said: dict[tuple[str, str, str], dict[str, str]] = {}

    def result(self, row: str, text: str, answer: str) -> str | None:
        """What the row comes to; `-`: it leaves; None: it waits."""
        words = Counter(self.said.get((row, text, answer), {}).values())
        (best, count), *others = words.most_common(2) or [("", 0)]
        return None if not best or (others and others[0][1] == count) else best


def label(version: int, text: str) -> str:
    return f"L{(version * int(text.rpartition('-')[2])) % 3}"


def answer(asked: dict[str, Any]) -> Step:
    version, text = asked["messages"][-1]["content"].split(" ")
    return Step(json.dumps({"label": label(int(version), text)}))


@pytest.mark.parametrize("seed", range(40 if SOAK else 3))
def test_each_decision_is_applied_to_what_was_seen(seed: int, tmp_path: Path) -> None:
    random, expected, project = Random(seed), Expected(), ProjectFolder(tmp_path)
    version, texts = 1, {f"r{number}": f"text-{number}" for number in range(ROWS)}
    known: dict[str, agac.ReviewItem] = {}

    def write() -> None:
        project.rows([{"id": row, "text": text} for row, text in texts.items()])
        classify = {"name": "classify", "prompt": f"{version} ${{text}}", "output_schema": SCHEMA}
        project.workflow(stages=[classify, {"name": "ok", "review": {}}])

    def ran() -> dict[str, Any]:
        write()
        report = project.run()
        assert report.exit_code == 0
        found = project.query(
            "SELECT row.id, row.state, result.value FROM row LEFT JOIN result ON result.id = row.result_id "
            "WHERE run_id = ?", report.summary["run"],
        )  # fmt: skip
        items = agac.review_queue(project.root, limit=1000).items
        items += agac.review_queue(project.root, state="conflict", limit=1000).items
        known.update((one.id, one) for one in items)
        return {row: (state, value) for row, state, value in found}

    def decide() -> None:
        item, person = known[random.choice(sorted(known))], random.choice(PEOPLE)
        choice = random.choice(["approve", "edit", "reject"])
        value = {"label": f"by {random.choice(PEOPLE)}"} if choice == "edit" else None
        if not agac.decide(project.root, [agac.Decision(item.id, choice, value, reviewer=person)]).taken:
            return  # said before: the same line of a file, imported again, changes nothing
        seen = item.row_id, str(item.shown["text"]), item.answer["label"]
        word = {"approve": item.answer["label"], "edit": value and value["label"], "reject": "-"}[choice]
        expected.said.setdefault(seen, {})[person] = str(word)

    with project.asking(deciding(answer)):
        ran()
        for _ in range(9):
            match random.choice(["run", "prompt", "row", *["decide"] * 6]):
                case "run":
                    ran()
                case "prompt":
                    version = random.randint(1, 3)
                case "row":
                    texts[random.choice(sorted(texts))] = f"text-{random.randint(0, 5)}"
                case "decide":
                    decide()
        ended = ran()
    for row, text in texts.items():
        come = expected.result(row, text, label(version, text))
        state, value = ended[row]
        if come is None:
            assert state == 0, (row, come)
        elif come == "-":
            assert state == 4, (row, come)
        else:
            assert (state, json.loads(value)["label"]) == (1, come), row
    project.assert_sound()
