"""Files of messages that a card names: JSON as `{"messages": [{"role": …, "content": …}]}`, or text with lines
`---USER` and `---ASSISTANT` between the messages. They are sent as they stand: nothing in them is a placeholder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

from agac.core.errors import Problem, Where
from agac.spec.examples import Spoken, order_problems
from agac.spec.filetext import read_text
from agac.spec.paths import OutsideProject, inside
from agac.spec.template import compile_template
from agac.spec.texts import near_files
from agac.spec.workflow import Example, ProjectSpec, Speaker

_MARK = re.compile(r"(?m)^---(USER|ASSISTANT|RESOURCE)[ \t]*$")
_ROLES = ("user", "assistant")
_FORM = '{"messages": [{"role": "user", "content": "…"}, …]}'

_Read = list[tuple[Spoken, str]]
"""Who speaks where, and what is said."""


def card_examples(
    names: list[str], card: Path, project: ProjectSpec, where: Where
) -> tuple[tuple[Example, ...], list[Problem]]:
    """The messages of the files that a card names, one file after the other; paths are relative to the card."""
    read: _Read = []
    problems: list[Problem] = []
    for name in names:
        messages, found = _file(name, card, project, where)
        read += messages
        problems += found
    if not problems:
        problems = order_problems([spoken for spoken, _ in read])
    return tuple(_example(spoken, text) for spoken, text in read), problems


def _example(spoken: Spoken, text: str) -> Example:
    template, _ = compile_template(text.replace("${", "$${"), spoken.where)
    assert template is not None, "a text without placeholders is a template"
    return Example(cast("Speaker", spoken.role), template, spoken.path)


def _file(name: str, card: Path, project: ProjectSpec, where: Where) -> tuple[_Read, list[Problem]]:
    try:
        path = inside(project.root, name, base=card.parent)
    except OutsideProject as error:
        return [], [Problem(where, str(error), "messages")]
    if not path.is_file():
        message = f"no such file: {name!r}; {near_files(path, project.root)}"
        return [], [Problem(where, message, "messages")]
    shown = project.shown(path)
    text, problem = read_text(path, shown)
    if problem is not None:
        return [], [problem]
    return _json(text, shown) if path.suffix == ".json" else _text(text, shown)


def _text(text: str, shown: str) -> tuple[_Read, list[Problem]]:
    marks = list(_MARK.finditer(text))
    parts = [("user", 0, text[: marks[0].start()] if marks else text)]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    parts += [(mark[1].lower(), mark.start(), text[mark.end() : end]) for mark, end in zip(marks, ends, strict=False)]
    read: _Read = []
    problems: list[Problem] = []
    for number, (role, start, body) in enumerate(parts):
        where = Where(shown, text.count("\n", 0, start) + 1, 1)
        if role == "resource":
            problems.append(Problem(where, "---RESOURCE blocks are not supported; write their text into a message"))
        elif body.strip():
            read.append((Spoken(role, where, ""), body.strip("\n")))
        elif number:
            problems.append(Problem(where, f"this ---{role.upper()} message is empty; write its text below the line"))
    if not read and not problems:
        problems.append(Problem(Where(shown), "is empty; write messages under lines ---USER and ---ASSISTANT"))
    return read, problems


def _json(text: str, shown: str) -> tuple[_Read, list[Problem]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        line, column = getattr(error, "lineno", None), getattr(error, "colno", None)
        return [], [Problem(Where(shown, line, column), f"is not JSON: {getattr(error, 'msg', error)}")]
    listed = data.get("messages") if isinstance(data, dict) else None
    if not isinstance(listed, list) or not listed:
        return [], [Problem(Where(shown), f"holds no messages; write {_FORM}")]
    read: _Read = []
    problems: list[Problem] = []
    for index, one in enumerate(listed):
        spoken, said, trouble = _message(one, Where(shown), f"messages[{index}]")
        if trouble is not None:
            problems.append(Problem(Where(shown), trouble, f"messages[{index}]"))
        else:
            read.append((spoken, said))
    return read, problems


def _message(one: Any, where: Where, path: str) -> tuple[Spoken, str, str | None]:
    """Who speaks, what is said, and why it cannot be used."""
    role = one.get("role") if isinstance(one, dict) else None
    spoken = Spoken(str(role), where, path)
    if role not in _ROLES:
        return spoken, "", "role is user or assistant; what a system message says is the card's instruction"
    if any(one.get(key) for key in ("tool_calls", "tool_results")):
        return spoken, "", "holds calls of tools, which are not supported; write what was said"
    said = _said(one.get("content"))
    if not said or not said.strip():
        return spoken, "", "content is text, or a list of parts of type text, and not empty"
    return spoken, said, None


def _said(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts)
