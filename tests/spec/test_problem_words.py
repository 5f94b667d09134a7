"""The words of each kind of Problem that reading files can find. They are product text: change them on purpose.

The cases are in problems.txt: below the name of what is written (one of FORMS) each with what is written, `=>`, here or
on the next line, and what one of the problems says.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.tree import Tree

from agac.spec.card_checks import FIELDS_LATER, PARAMS_NEVER
from agac.spec.yaml import LOADER, parse_yaml

HEAD = "input: {path: data/reviews.csv}\n"
SHAPE = '{label: "a|b", inner: {deep: string}, list: "string[]"}'
FORMS = {
    "workflow": ("workflows/w.yml", "@\n"),
    "workflow with an input": ("workflows/w.yml", HEAD + "@\n"),
    "input": ("workflows/w.yml", "input: @\nstages: [{name: a}]\n"),
    "output": ("workflows/w.yml", HEAD + "stages: [{name: a}]\n\noutput: @\n"),
    "stages": ("workflows/w.yml", HEAD + "stages:\n  - @\n"),
    "stage": ("workflows/w.yml", HEAD + "stages:\n  - {name: a, @}\n"),
    "stage with tools": ("workflows/w.yml", HEAD + "stages:\n  - {name: a, @}\n"),
    "stage with a schema": ("workflows/w.yml", HEAD + f"stages:\n  - {{name: a, @, output_schema: {SHAPE}}}\n"),
    "messages": ("workflows/w.yml", HEAD + "stages:\n  - {name: a, messages: @}\n"),
    "project": ("agac.yml", "@\n"),
    "card": ("agentcards/c.md", "@"),
    "front matter": ("agentcards/c.md", "---\n@\n---\n"),
    "instruction": ("agentcards/c.md", "---\n---\n@"),
    "text file of a card": ("agentcards/shots.txt", "@"),
    "JSON file of a card": ("agentcards/shots.json", "@"),
    "YAML": ("", "@\n"),
}
ESCAPES = {"n": "\n", "t": "\t", "a": "\a", "0": "\0", "9": "9" * 5000, "L": "\u2028", "N": "\x85"}


def cases() -> Iterator[tuple[str, str, str]]:
    """The file of each case, its text, and what is said of it."""
    lines = iter(Path(__file__).with_name("problems.txt").read_text("utf-8").splitlines())
    for line in lines:
        if line.startswith("## "):
            path, form = FORMS[line.removeprefix("## ")]
        elif line:
            written, arrow, said = line.partition("=> ")
            written = re.sub(r"\\([nta09LN])", lambda match: ESCAPES[match[1]], written.strip(" "))
            yield path, form.replace("@", written), said if arrow else next(lines).strip()


CASES = list(cases())


@pytest.mark.parametrize(("path", "text", "said"), [case for case in CASES if case[0]])
def test_words_of_a_problem(tree: Tree, path: str, text: str, said: str) -> None:
    if path.startswith("agentcards/"):
        tree.write("agentcards/c.md", f"---\nmessages: {Path(path).name}\n---\nText.\n")
        tree.write("workflows/w.yml", "vars: {tone: x}\n" + HEAD + "stages: [{name: a, agent: c}]\n")
    tree.write(path, text)
    assert any(said in problem for problem in tree.problems()), tree.problems()


def test_a_tool_that_is_not_there_is_one_problem_beside_its_turns(tree: Tree) -> None:
    tree.write("workflows/w.yml", HEAD + "stages: [{name: a, prompt: x, tools: [serch], max_turns: 3}]\n")
    (problem,) = tree.problems()
    assert "no tool 'serch'; did you mean 'web_search'? A function is" in problem


@pytest.mark.parametrize("loader", [LOADER, yaml.SafeLoader], ids=["libyaml", "pure"])
@pytest.mark.parametrize(("path", "text", "said"), [case for case in CASES if not case[0]])
def test_every_trap_of_yaml_is_refused_at_its_place(loader: Any, path: str, text: str, said: str) -> None:
    assert any(str(problem).startswith(said) for problem in parse_yaml(text, "f", loader=loader).problems)


@pytest.mark.parametrize(
    "text",
    [
        *(f"{field}: [x]" for field in sorted(FIELDS_LATER)),
        *(f"request_params: {{{field}: 1}}" for field in sorted(PARAMS_NEVER)),
    ],
)  # fmt: skip
def test_a_card_that_asks_for_more_is_refused_by_the_name_of_its_field(tree: Tree, text: str) -> None:
    tree.write("agentcards/c.md", f"---\n{text}\n---\nText.")
    tree.write("workflows/w.yml", HEAD + "stages: [{name: a, agent: c}]\n")
    [problem] = tree.problems()
    name = re.sub(r"request_params: \{(\w+).*|(\w+): \[x\]", r"\1\2", text)
    assert f"`{name}` is not supported yet; " in problem or "belongs to a program, not to a card" in problem


def test_a_secret_is_never_repeated(tree: Tree) -> None:
    tree.write("agac.yml", "providers: {x: {api_key: sk-canary-4711, headers: {Authorization: Bearer canary-4711}}}\n")
    assert len(tree.problems()) == 2
    assert not [problem for problem in tree.problems() if "4711" in problem]
