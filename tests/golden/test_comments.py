"""Comments of pull requests, to the letter: each was read as a forge shows it. AGAC_WRITE_GOLDEN=1 writes them."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.events import pull_request
from support.project import SENTIMENT, ProjectFolder
from support.repository import committed
from support.server import Server
from support.soak import few

from agac.cli.markdown import MAX_COMMENT

FOLDER = Path(__file__).parent / "comments"
CLASSIFY: dict[str, Any] = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT}
ANSWER = "You write for a shop.\nAnswer the review: ${text}\n"
ANSWER += "Its mood is ${classify.sentiment}, because ${classify.reason}."
REPLY: dict[str, Any] = {"name": "reply", "prompt": ANSWER}
STAGES = [CLASSIFY, REPLY]
TEST = """
rows: [{id: a, text: I love it}]
expect: {each: ['classify.sentiment != "neutral"']}
replies:
  - {stage: classify, reply: {sentiment: SENTIMENT, reason: it says so}}
  - {stage: reply, reply: Thank you.}
"""
POSITIVE, NEUTRAL = (TEST.replace("SENTIMENT", one) for one in ("positive", "neutral"))


def nothing_changed(project: ProjectFolder) -> None:
    project.write("README.md", "Another text.\n")


def one_prompt_changed(project: ProjectFolder) -> None:
    prompt = "You write for a small shop.\nAnswer the review kindly: ${text}\nIts mood is ${classify.sentiment}."
    project.workflow(stages=[CLASSIFY, {**REPLY, "prompt": prompt}])


def breaking_schema(project: ProjectFolder) -> None:
    project.workflow(stages=[{**CLASSIFY, "output_schema": {"sentiment": "number", "reason": "string"}}, REPLY])
    project.write("tests/workflows/reviews.yml", TEST.replace("SENTIMENT", "0.5"))


def tests_failed(project: ProjectFolder) -> None:
    one_prompt_changed(project)
    project.write("tests/workflows/reviews.yml", NEUTRAL)
    project.write("tests/workflows/reviews.second.yml", POSITIVE)
    project.write("tests/workflows/reviews.third.yml", f"vars: {{nothing: x}}\n{POSITIVE}")


def invalid_yaml(project: ProjectFolder) -> None:
    one_prompt_changed(project)
    project.write("workflows/others.yml", "stages:\n  - name: a\n    promt: ${text}\n  - name: [\n")
    project.write("workflows/third.yml", "input: {path: data/rows.csv}\nstages: [{name: a, promt: '${text}'}]\n")


def over_the_cap(project: ProjectFolder) -> None:
    one_prompt_changed(project)


def many_workflows(project: ProjectFolder, words: str = "kindly") -> None:
    for number in range(60):
        prompt = "\n".join(f"{line}. Answer {words}, and not {words[::-1]}: ${{text}}" for line in range(9))
        project.workflow(f"reviews_{number:02}", stages=[{**CLASSIFY, "prompt": prompt}, REPLY])


def from_a_fork(project: ProjectFolder) -> None:
    project.write("tools/evil.py", "def change(row):\n    return row\n")
    project.workflow(stages=[{"name": "before", "python": "tools/evil.py:change"}, *STAGES])
    project.write("agentcards/x.md", "Hello @everyone\n")
    project.workflow("mentions", stages=[{"name": "a", "prompt": "@everyone <img src=x> https://evil.example ${text}"}])
    project.write("tests/workflows/mentions.yml", "rows: [{id: a, text: 'Hi'}]\n")


CASES: list[tuple[Callable[[ProjectFolder], None], int, bool]] = [
    (nothing_changed, 0, False), (one_prompt_changed, 0, False), (breaking_schema, 0, False), (tests_failed, 3, False),
    (invalid_yaml, 2, False), (over_the_cap, 4, False), (many_workflows, 0, False), (from_a_fork, 0, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code", "fork"), few(CASES, 2), ids=[change.__name__ for change, _, _ in few(CASES, 2)]
)
def test_a_comment_says_this(
    change: Callable[[ProjectFolder], None], code: int, fork: bool, project: ProjectFolder, server: Server
) -> None:
    cap = 0.0001 if change is over_the_cap else 5
    project.asks(server, prices={"small": {"input": 1, "output": 2}}, batch="openai")
    settings = project.root / "agac.yml"
    settings.write_text(settings.read_text() + f"ci: {{max_usd: {cap}}}\n")
    project.numbered(12)
    project.run(project.workflow(stages=STAGES))
    project.write("tests/workflows/reviews.yml", POSITIVE)
    if change is many_workflows:
        many_workflows(project, "in few words")
    git = committed(project)
    change(project)
    git.commit()
    text = project.agac("ci", env=pull_request(project, fork=fork), code=code).out
    assert len(text) <= MAX_COMMENT
    text = re.sub(r"\b[0-9a-f]{8}(?=[,`. ])", lambda sha: re.sub("[0-9a-f]", "0", sha[0]), text)
    text = re.sub(r"\d+s \|$", "1s |", text, flags=re.MULTILINE)  # as fast as this machine is
    file = FOLDER / f"{change.__name__}.md"
    if os.environ.get("AGAC_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text("utf-8")
