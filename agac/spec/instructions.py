"""Texts that are the same for every row: instructions, and the example messages of stages and cards."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from agac.core.errors import Path_, Problem, Where, did_you_mean, key_path
from agac.core.keys import snapshot
from agac.core.types import JSONValue
from agac.spec.models import MessageFile
from agac.spec.paths import read_text
from agac.spec.templates import VARS, MissingField, Placeholder, as_text, compile_template, existing_file, spot_of
from agac.spec.value_checks import PLACEHOLDER_PREFIXES_LATER, PLACEHOLDERS_LATER
from agac.spec.workflow import Example, ProjectSpec, Speaker
from agac.spec.yaml import Document

# `${vars.x}` is filled in every instruction; in a card's, `{{x}}` too, from the same variables and the card's own
# facts. What is filled in is never read again.

_BRACES = re.compile(r"(\\?)\{\{([^{}\n]*)\}\}")


@dataclass(frozen=True, slots=True)
class InstructionValues:
    """What an instruction is filled with. `positions`: the text is a file's. `names` are a card's own facts, None
    where double braces mean nothing."""

    variables: Mapping[str, JSONValue]
    positions: bool = False
    names: Mapping[str, str] | None = None


def fill(text: str, where: Where, filling: InstructionValues, path: str) -> tuple[str | None, list[Problem]]:
    """The text with every placeholder replaced, or None and what cannot be."""
    template, problems = compile_template(text, where, positions=filling.positions, path=path)
    if template is None:
        return None, problems
    for placeholder in template.placeholders:
        if (message := _refusal(placeholder, filling)) is not None:
            problems.append(Problem(placeholder.where, message, path))
    if filling.names is not None:
        known = {**filling.variables, **filling.names}
        problems += _unknown_braces(text, where, filling, path)
        template = template.with_pieces(lambda piece: _filled_braces(piece, known))
    if problems:
        return None, problems
    return template.render({VARS: filling.variables}), []


def _refusal(placeholder: Placeholder, filling: InstructionValues) -> str | None:
    name, variables = placeholder.name, filling.variables
    head, _, rest = name.partition(".")
    if head != VARS:
        return _no_variable(name, filling)
    known = [f"{VARS}.{key}" for key in variables]
    template, _ = compile_template(f"${{{name}}}", placeholder.where)
    try:
        if rest and template is not None:
            template.render({VARS: variables})
            return None
    except MissingField:
        pass
    return f"unknown variable ${{{name}}}; {did_you_mean(name, known, 'variables')}"


def _no_variable(name: str, filling: InstructionValues) -> str:
    in_card = filling.names is not None
    if in_card and name in filling.variables:
        return f"in a card a variable of the workflow is {{{{{name}}}}}"
    if name.partition(".")[0] in filling.variables:
        return f"a variable of the workflow is ${{{VARS}.{name}}}"
    message = f"instructions are the same for every row; move ${{{name}}} into prompt"
    return f"{message}; in a card a variable of the workflow is {{{{{name}}}}}" if in_card else message


def _filled_braces(piece: str, known: Mapping[str, JSONValue]) -> str:
    def value(match: re.Match[str]) -> str:
        return match[0][1:] if match[1] else as_text(known.get(match[2].strip()))

    return _BRACES.sub(value, piece)


def _unknown_braces(text: str, where: Where, filling: InstructionValues, path: str) -> list[Problem]:
    """What the double braces of a whole text cannot be filled with: `${…}` has no braces inside, so that none of them
    reaches over the end of a template's piece."""
    known = [*filling.variables, *(filling.names or {})]
    return [
        Problem(
            spot_of(text, match.start(), where) if filling.positions else where,
            _unknown(match[0], match[2].strip(), known),
            path,
        )
        for match in _BRACES.finditer(text)
        if not match[1] and match[2].strip() not in known
    ]


def _unknown(shown: str, name: str, known: list[str]) -> str:
    if name in PLACEHOLDERS_LATER or name.startswith(PLACEHOLDER_PREFIXES_LATER):
        return f"{shown} is not supported yet; write \\{shown} to keep the text"
    remedy = did_you_mean(name, known, "known")
    stop = "" if remedy.endswith("?") else "."
    return f"unknown placeholder {shown}; {remedy}{stop} Declare it in vars, or write \\{shown} to keep the text"


@dataclass(frozen=True, slots=True)
class ExampleMessages:
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
    spoken = [ExampleMessages(m.role, document.where((*path, i)), key_path((*path, i))) for i, m in enumerate(written)]
    return tuple(found), [*problems, *order_problems(spoken)]


def content_text(content: JSONValue) -> str:
    """A message's text; a mapping or a list is the JSON of a result, in which nothing is a placeholder."""
    return content if isinstance(content, str) else snapshot(content).replace("${", "$${")


def order_problems(spoken: Sequence[ExampleMessages]) -> list[Problem]:
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


# Files of messages that a card names: JSON as `{"messages": [{"role": …, "content": …}]}`, or text with lines
# `---USER` and `---ASSISTANT` between the messages. They are sent as they stand: nothing in them is a placeholder.

_MARK = re.compile(r"(?m)^---(USER|ASSISTANT|RESOURCE)[ \t]*$")
_ROLES = ("user", "assistant")
_FORM = '{"messages": [{"role": "user", "content": "…"}, …]}'

_Read = list[tuple[ExampleMessages, str]]
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


def _example(spoken: ExampleMessages, text: str) -> Example:
    template, _ = compile_template(text.replace("${", "$${"), spoken.where)
    assert template is not None, "a text without placeholders is a template"
    return Example(cast("Speaker", spoken.role), template, spoken.path)


def _file(name: str, card: Path, project: ProjectSpec, where: Where) -> tuple[_Read, list[Problem]]:
    path = existing_file(name, project.root, where, "messages", base=card.parent)
    if isinstance(path, Problem):
        return [], [path]
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
            read.append((ExampleMessages(role, where, ""), body.strip("\n")))
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


def _message(one: Any, where: Where, path: str) -> tuple[ExampleMessages, str, str | None]:
    """Who speaks, what is said, and why it cannot be used."""
    role = one.get("role") if isinstance(one, dict) else None
    spoken = ExampleMessages(str(role), where, path)
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
