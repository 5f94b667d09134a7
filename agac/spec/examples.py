"""Examples for the model: `messages` before the prompt, written in a stage or kept in files that a card names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agac.core.errors import Path_, Problem, Where, key_path
from agac.core.keys import snapshot
from agac.core.types import JSONValue
from agac.spec.models import MessageFile
from agac.spec.template import compile_template
from agac.spec.workflow import Example
from agac.spec.yamlfile import Document


@dataclass(frozen=True, slots=True)
class Spoken:
    """Who speaks, and where that stands: what the order of messages is judged by."""

    role: str
    where: Where
    path: str


def stage_examples(
    written: Sequence[MessageFile], document: Document, path: Path_
) -> tuple[tuple[Example, ...], list[Problem]]:
    """The messages of a stage, and what is wrong with them."""
    found: list[Example] = []
    problems: list[Problem] = []
    for index, message in enumerate(written):
        at = (*path, index, "content")
        template, more = compile_template(content_text(message.content), document.where(at), path=key_path(at))
        problems += more
        if template is not None:
            found.append(Example(message.role, template, key_path(at)))
    spoken = [Spoken(m.role, document.where((*path, i)), key_path((*path, i))) for i, m in enumerate(written)]
    return tuple(found), [*problems, *order_problems(spoken)]


def content_text(content: JSONValue) -> str:
    """A message's text; a mapping or a list is the JSON of a result, in which nothing is a placeholder."""
    return content if isinstance(content, str) else snapshot(content).replace("${", "$${")


def order_problems(spoken: Sequence[Spoken]) -> list[Problem]:
    """Why these messages cannot stand before a prompt, which is the user's turn."""
    problems: list[Problem] = []
    for number, one in enumerate(spoken):
        due = "assistant" if number % 2 else "user"
        if one.role == due:
            continue
        before = "begins with what a user says" if not number else f"goes on with the {due} here"
        problems.append(Problem(one.where, f"a dialogue {before}, but this is the {one.role}'s message", one.path))
        return problems  # from here on every message would be out of turn
    if spoken and spoken[-1].role == "user":
        last = spoken[-1]
        message = "the last message is the user's, and so is the prompt; end with the assistant's answer"
        problems.append(Problem(last.where, message, last.path))
    return problems
