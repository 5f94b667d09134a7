"""Reads the messages before a prompt that are examples: those of a stage, and those of the files
that a card names."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from agac.core.errors import Path_, Problem, Where, key_path
from agac.core.keys import snapshot
from agac.spec import paths
from agac.spec.paths import Unusable, home_of
from agac.spec.project_files import read_text
from agac.spec.templates import Syntax, Template, compile_template, literal_text, sound_template

if TYPE_CHECKING:
    from agac.spec.project import ProjectSpec
    from agac.spec.stage_models import MessageFile
    from agac.spec.yaml import Document

Speaker = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class Example:
    """A message before the prompt."""

    role: Speaker
    content: Template
    path: str
    """Its place among the keys of its file; empty in a file of its own."""


class _Turn(NamedTuple):
    """Who speaks, where that stands, and what is said."""

    role: str
    where: Where
    text: str


def stage_examples(
    written: Sequence[MessageFile], document: Document, path: Path_, syntax: Syntax = "dollar"
) -> tuple[tuple[Example, ...], list[Problem]]:
    """Returns the messages of a stage, and what is wrong with them. A mapping or list is JSON,
    without placeholders."""
    found: list[Example] = []
    problems: list[Problem] = []
    turns: list[_Turn] = []
    for index, message in enumerate(written):
        at = (*path, index, "content")
        content = message.content
        said = isinstance(content, str)
        text = content if said else literal_text(snapshot(content))
        template, more = compile_template(text, document.where(at), syntax if said else "dollar")
        problems += more
        turns.append(_Turn(message.role, document.where((*path, index)), text))
        if template is not None:
            found.append(Example(message.role, template, key_path(at)))
    return tuple(found), [*problems, *_order_problems(turns)]


def _order_problems(turns: Sequence[_Turn]) -> list[Problem]:
    """Finds why these messages cannot precede a prompt, which is the user's turn."""
    for number, one in enumerate(turns):
        due = "assistant" if number % 2 else "user"
        if one.role != due:  # from here on every message would be out of turn
            if not number:
                before = "begins with what a user says"
            else:
                before = f"goes on with the {due} here"
            return [
                Problem(one.where, f"a dialogue {before}, but this is the {one.role}'s message")
            ]
    if turns and turns[-1].role == "user":
        message = (
            "the last message is the user's, and so is the prompt; end with the assistant's answer"
        )
        return [Problem(turns[-1].where, message)]
    return []


def card_examples(
    names: Sequence[str], card: Path, project: ProjectSpec, where: Where
) -> tuple[tuple[Example, ...], list[Problem]]:
    """Returns the messages of the files that a card names, one file after the other; paths are
    relative to the card. A file is JSON as `{"messages": [{"role": …, "content": …}]}`, or text
    with lines `---USER` and `---ASSISTANT` between the messages. They are sent as they stand:
    nothing in them is a placeholder."""
    turns: list[_Turn] = []
    problems: list[Problem] = []
    for name in names:
        try:
            path = paths.existing_file(name, home_of(project.root), where, base=card.parent)
            shown = project.shown(path)
            text = read_text(path, shown, home_of(project.root))
        except Unusable as error:
            problems.append(error.problem)
            continue
        read, found = (
            _json_turns(text, shown) if path.suffix == ".json" else _text_turns(text, shown)
        )
        turns += read
        problems += found
    said = [(cast("Speaker", one.role), literal_text(one.text), one.where) for one in turns]
    examples = tuple(
        Example(role, sound_template(text, where), where.path) for role, text, where in said
    )
    return examples, problems or _order_problems(turns)


def _text_turns(text: str, shown: str) -> tuple[list[_Turn], list[Problem]]:
    marks = list(re.finditer(r"(?m)^---(USER|ASSISTANT|RESOURCE)[ \t]*$", text))
    parts = [("user", 0, text[: marks[0].start()] if marks else text)]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    parts += [
        (mark[1].lower(), mark.start(), text[mark.end() : end])
        for mark, end in zip(marks, ends, strict=False)
    ]
    read: list[_Turn] = []
    problems: list[Problem] = []
    for number, (role, start, body) in enumerate(parts):
        where = Where(shown, text.count("\n", 0, start) + 1, 1)
        if role == "resource":
            problems.append(
                Problem(
                    where, "---RESOURCE blocks are not supported; write their text into a message"
                )
            )
        elif body.strip():
            read.append(_Turn(role, where, body.strip("\n")))
        elif number:
            problems.append(
                Problem(
                    where, f"this ---{role.upper()} message is empty; write its text below the line"
                )
            )
    if not read and not problems:
        problems.append(
            Problem(Where(shown), "is empty; write messages under lines ---USER and ---ASSISTANT")
        )
    return read, problems


def _json_turns(text: str, shown: str) -> tuple[list[_Turn], list[Problem]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        column = getattr(error, "colno", None)
        return [], [
            Problem(Where(shown, line, column), f"is not JSON: {getattr(error, 'msg', error)}")
        ]
    messages = data.get("messages") if isinstance(data, dict) else None
    if not isinstance(messages, list) or not messages:
        form = '{"messages": [{"role": "user", "content": "…"}, …]}'
        return [], [Problem(Where(shown), f"holds no messages; write {form}")]
    read: list[_Turn] = []
    problems: list[Problem] = []
    for index, one in enumerate(messages):
        where = Where(shown, path=f"messages[{index}]")
        role = one.get("role") if isinstance(one, dict) else None
        if role not in ("user", "assistant"):
            message = (
                "role is user or assistant; what a system message says is the card's instruction"
            )
        elif any(one.get(key) for key in ("tool_calls", "tool_results")):
            message = "holds calls of tools, which are not supported; write what was said"
        elif (said := _said(one.get("content"))).strip():
            read.append(_Turn(role, where, said))
            continue
        else:
            message = "content is text, or a list of parts of type text, and not empty"
        problems.append(Problem(where, message))
    return read, problems


def _said(content: Any) -> str:
    """Returns the text of a message's content, empty where it holds anything else."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, dict) and part.get("type") == "text" and "text" in part
    ]
    if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
        return "".join(texts)
    return ""
