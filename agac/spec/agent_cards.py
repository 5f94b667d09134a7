"""AgentCards: YAML front matter and an instruction below it, or one YAML mapping; and examples before a prompt.

Type `agent` works; a card that asks for more is refused by naming the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from agac.core.errors import Path_, Problem, UsageError, Where, any_error, did_you_mean, key_path, listed
from agac.core.keys import snapshot
from agac.core.types import JSONValue, counted
from agac.spec.models import MessageFile
from agac.spec.paths import OutsideProject, RemoteContent, Unusable, existing_file, files_called, home_of, read_text
from agac.spec.project_models import CardFile
from agac.spec.templates import PlacedText, Syntax, compile_template, fill, literal_text, sound_template
from agac.spec.validation import CARD_HINTS, FIELDS_LATER, described, validate
from agac.spec.workflow import Example, ProjectSpec, Speaker
from agac.spec.yaml import Document, expand, parse_yaml

_YAML = (".yaml", ".yml")
SUFFIXES = (".md", ".markdown", *_YAML)
_KEEP_A_COPY = "read the card, and keep a copy of it in the project"
_BRINGS = FIELDS_LATER | {"messages"}
_NOT_FROM_AFAR = f"a remote card brings no tools, hooks, servers or files; {_KEEP_A_COPY}"
_FENCE = "---"
_SYSTEM = "---SYSTEM"


@dataclass(frozen=True, slots=True)
class Card:
    """An AgentCard as a stage uses it. `instruction` is filled: without placeholders. `where`: where its keys stand."""

    name: str
    file: str
    description: str | None
    instruction: str | None
    model: str | None
    params: Mapping[str, Any]
    messages: tuple[Example, ...]
    where: Mapping[str, Where]


def card_names(project: ProjectSpec) -> list[str]:
    """The names under which the agentcards folder's files are found, sorted."""
    folder = project.paths.agentcards
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted({file.stem for file in found if file.suffix in SUFFIXES and file.name != "SKILL.md"})


def find_card(name: str, project: ProjectSpec) -> tuple[Path | None, str]:
    """The file of the card called `name` (or at that path), or None and a sentence why there is none."""
    try:
        found = files_called(name, home_of(project.root), project.paths.agentcards, SUFFIXES)
    except OutsideProject as error:
        return None, str(error)
    if not found:
        folder = project.shown(project.paths.agentcards)
        return None, f"no agent {name!r}; {did_you_mean(name, card_names(project), f'agents in {folder}/')}"
    if found[0].name == "SKILL.md":
        return None, "SKILL.md describes a skill, not an agent"
    return found[0], ""


def chosen_card(place: Path, name: str | None) -> Path:
    """The card that is asked of a file or a folder: the one called `name`, else the only one, else the only `default`.
    What has no keys is no card. Raises UsageError."""
    found: list[tuple[str, Path, bool]] = []
    for path in sorted(place.iterdir()) if place.is_dir() else [place]:
        if path.suffix not in SUFFIXES or path.name == "SKILL.md":
            continue
        with suppress(Unusable):
            keys: Any = _taken_apart(read_text(path, path.name), path.name, yaml_only=path.suffix in _YAML)[0].data
            if isinstance(keys, dict) and keys.get("tool_only") is not True:
                found.append((str(keys.get("name") or path.stem).replace(" ", "_"), path, keys.get("default") is True))
    able = [one for one in found if name in (None, one[0])]
    chosen = able if len(able) == 1 else [one for one in able if one[2]]
    if len(chosen) != 1:
        what = f"has {counted(len(able), 'agent card')}{f' called {name}' if name else ''}"
        raise UsageError(f"{place} {what}", remedy=f"Name one with --agent: {listed(one[0] for one in found)}.")
    return chosen[0][1]


def load_card(
    path: Path, project: ProjectSpec, variables: Mapping[str, JSONValue], *, remote: RemoteContent | None = None
) -> tuple[Card | None, list[Problem]]:
    """The card in `path`, its instruction filled with `variables`, or None and every problem. Warnings may come with
    a card. One that is `remote` gives its instruction, model and parameters: it reads no variables of the environment,
    which it could send away, and no files."""
    shown = remote.reference if remote else project.shown(path)
    try:
        written, below = _taken_apart(read_text(path, shown), shown, yaml_only=path.suffix in _YAML)
    except Unusable as error:
        return None, [error.problem]
    document, problems = _expanded(written, project.env, remote=remote is not None)
    if remote and isinstance(data := document.data, dict):
        problems += [document.problem((key,), _NOT_FROM_AFAR, key=True) for key in data if key in _BRINGS]
        document = replace(document, data={key: value for key, value in data.items() if key not in _BRINGS})
    model, found = validate(CardFile, document, hints=CARD_HINTS)
    problems += found
    name = ((model.name if model else None) or path.stem).replace(" ", "_")
    instruction, found = _instruction(document, below, name, variables)
    problems += found
    names = model.messages or [] if model else []
    messages, found = _card_examples(names, path, project, document.where(("messages",)))
    problems += found
    if model is None or any_error(problems):
        return None, problems
    if model.use_history:
        where = document.where(("use_history",), key=True)
        problems.append(Problem(where, "rows share no history; this has no effect", "warning"))
    params = {key: value for key, value in model.request_params.model_dump().items() if value is not None}
    if (stops := params.pop("stop_sequences", None)) is not None:
        params["stop"] = tuple(stops)
    if params.get("service_tier") == "fast":
        params["service_tier"] = "priority"
    places = {"model": document.where(("model",))} if model.model is not None else {}
    for key in model.request_params.model_fields_set:
        places["stop" if key == "stop_sequences" else key] = document.where(("request_params", key))
    return Card(name, shown, model.description, instruction, model.model, params, messages, places), problems


def _taken_apart(text: str, shown: str, *, yaml_only: bool) -> tuple[Document, PlacedText]:
    """The keys of a card, and the instruction below them, which a card that is all YAML has not. Raises Unusable."""
    below = ("", Where(shown, 1, 1))
    if yaml_only:
        document, what = parse_yaml(text, shown), "a card is a mapping with name, instruction, model"
    else:
        lines = text.split("\n")
        fences = [index for index, line in enumerate(lines) if line.rstrip() == _FENCE]
        start = next((index for index, line in enumerate(lines) if line.strip()), 0)
        if start not in fences:
            message = "no front matter; a card starts with a line ---, its keys (model: …), and another line ---"
            raise Unusable(Problem(Where(shown, start + 1, 1), message))
        if len(fences) < 2:
            message = "the front matter is never closed; write a line --- below it"
            raise Unusable(Problem(Where(shown, start + 1, 1), message))
        document = parse_yaml("\n".join(lines[start + 1 : fences[1]]), shown, first_line=start + 2)
        body = fences[1] + 1
        while body < len(lines) and lines[body].rstrip() in ("", _SYSTEM):
            body += 1
        below = ("\n".join(lines[body:]).rstrip(), Where(shown, body + 1, 1))
        what = "the front matter is a mapping with name, model and the like"
    if document.empty:
        document = Document(shown, {}, [])
    if isinstance(document.data, dict) or document.problems:
        return document, below
    raise Unusable(document.problem((), f"expected a mapping, got {described(document.data)}; {what}"))


def _expanded(document: Document, env: Mapping[str, str], *, remote: bool) -> tuple[Document, list[Problem]]:
    """The document with `${NAME}` replaced in every text of it; refused in one that is `remote`."""
    problems = list(document.problems)
    # so that what a variable holds is never read as a placeholder of the instruction
    escaped = {name: literal_text(value).replace("{{", "\\{{") for name, value in env.items()}

    def walk(value: Any, path: Path_) -> Any:
        if isinstance(value, dict):
            return {key: walk(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner, (*path, index)) for index, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        if remote and path != ("instruction",) and "${" in value:
            problems.append(document.problem(path, f"a remote card reads no environment variables; {_KEEP_A_COPY}"))
        if remote:
            return value
        text, missing = expand(value, escaped if path == ("instruction",) else env)
        for name in dict.fromkeys(missing):
            remedy = f"set it, add it to .env, or write ${{{name}:default}}"
            problems.append(document.problem(path, f"the environment variable {name} is not set; {remedy}"))
        return text

    data = walk(document.data, ())
    if isinstance(data, dict):  # `shell: false` and `skills: []` ask for nothing
        data = {key: value for key, value in data.items() if key not in FIELDS_LATER or value not in (False, [])}
    return Document(document.shown, data, problems, document.root), problems


def _instruction(
    document: Document, below: PlacedText, name: str, variables: Mapping[str, JSONValue]
) -> tuple[str | None, list[Problem]]:
    text, where = below
    written = document.data.get("instruction") if isinstance(document.data, dict) else None
    if written is not None and text:
        message = "the instruction is given twice: here and below the front matter; keep one of them"
        return None, [document.problem(("instruction",), message, key=True)]
    if isinstance(written, str):
        text, where = written, document.where(("instruction",))
    if not text:
        return None, []
    if (history := re.search(r"(?m)^---(USER|ASSISTANT|RESOURCE)\b.*$", text)) is not None:
        line = (where.line or 1) + text.count("\n", 0, history.start())
        message = (
            f"---{history[1]} blocks in the instruction are not supported; put the messages into a file of their own "
            "and name it as `messages`"
        )
        return None, [Problem(Where(document.shown, line, 1), message)]
    return fill((text, where), variables, {"agentName": name, "agentType": "agent"})


# Messages that stand before a prompt as examples: those of a stage, and those of the files that a card names.


class _Turn(NamedTuple):
    """Who speaks, where that stands, and what is said."""

    role: str
    where: Where
    text: str


def stage_examples(
    written: Sequence[MessageFile], document: Document, path: Path_, syntax: Syntax = "dollar"
) -> tuple[tuple[Example, ...], list[Problem]]:
    """The messages of a stage, and what is wrong with them. A mapping or list is JSON, without placeholders."""
    found: list[Example] = []
    problems: list[Problem] = []
    turns: list[_Turn] = []
    for index, message in enumerate(written):
        at, content = (*path, index, "content"), message.content
        said = isinstance(content, str)
        text = content if said else literal_text(snapshot(content))
        template, more = compile_template(text, document.where(at), syntax if said else "dollar")
        problems += more
        turns.append(_Turn(message.role, document.where((*path, index)), text))
        if template is not None:
            found.append(Example(message.role, template, key_path(at)))
    return tuple(found), [*problems, *_order_problems(turns)]


def _order_problems(turns: Sequence[_Turn]) -> list[Problem]:
    """Why these messages cannot stand before a prompt, which is the user's turn."""
    for number, one in enumerate(turns):
        due = "assistant" if number % 2 else "user"
        if one.role != due:  # from here on every message would be out of turn
            before = "begins with what a user says" if not number else f"goes on with the {due} here"
            return [Problem(one.where, f"a dialogue {before}, but this is the {one.role}'s message")]
    if turns and turns[-1].role == "user":
        message = "the last message is the user's, and so is the prompt; end with the assistant's answer"
        return [Problem(turns[-1].where, message)]
    return []


def _card_examples(
    names: Sequence[str], card: Path, project: ProjectSpec, where: Where
) -> tuple[tuple[Example, ...], list[Problem]]:
    """The messages of the files that a card names, one file after the other; paths are relative to the card.

    A file is JSON as `{"messages": [{"role": …, "content": …}]}`, or text with lines `---USER` and `---ASSISTANT`
    between the messages. They are sent as they stand: nothing in them is a placeholder.
    """
    turns: list[_Turn] = []
    problems: list[Problem] = []
    for name in names:
        try:
            path = existing_file(name, home_of(project.root), where, base=card.parent)
            shown = project.shown(path)
            text = read_text(path, shown)
        except Unusable as error:
            problems.append(error.problem)
            continue
        read, found = _json_turns(text, shown) if path.suffix == ".json" else _text_turns(text, shown)
        turns += read
        problems += found
    said = [(cast("Speaker", one.role), literal_text(one.text), one.where) for one in turns]
    examples = tuple(Example(role, sound_template(text, where), where.path) for role, text, where in said)
    return examples, problems or _order_problems(turns)


def _text_turns(text: str, shown: str) -> tuple[list[_Turn], list[Problem]]:
    marks = list(re.finditer(r"(?m)^---(USER|ASSISTANT|RESOURCE)[ \t]*$", text))
    parts = [("user", 0, text[: marks[0].start()] if marks else text)]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    parts += [(mark[1].lower(), mark.start(), text[mark.end() : end]) for mark, end in zip(marks, ends, strict=False)]
    read: list[_Turn] = []
    problems: list[Problem] = []
    for number, (role, start, body) in enumerate(parts):
        where = Where(shown, text.count("\n", 0, start) + 1, 1)
        if role == "resource":
            problems.append(Problem(where, "---RESOURCE blocks are not supported; write their text into a message"))
        elif body.strip():
            read.append(_Turn(role, where, body.strip("\n")))
        elif number:
            problems.append(Problem(where, f"this ---{role.upper()} message is empty; write its text below the line"))
    if not read and not problems:
        problems.append(Problem(Where(shown), "is empty; write messages under lines ---USER and ---ASSISTANT"))
    return read, problems


def _json_turns(text: str, shown: str) -> tuple[list[_Turn], list[Problem]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        line, column = getattr(error, "lineno", None), getattr(error, "colno", None)
        return [], [Problem(Where(shown, line, column), f"is not JSON: {getattr(error, 'msg', error)}")]
    messages = data.get("messages") if isinstance(data, dict) else None
    if not isinstance(messages, list) or not messages:
        form = '{"messages": [{"role": "user", "content": "…"}, …]}'
        return [], [Problem(Where(shown), f"holds no messages; write {form}")]
    read: list[_Turn] = []
    problems: list[Problem] = []
    for index, one in enumerate(messages):
        where, role = Where(shown, path=f"messages[{index}]"), one.get("role") if isinstance(one, dict) else None
        if role not in ("user", "assistant"):
            message = "role is user or assistant; what a system message says is the card's instruction"
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
    """The text of a message's content, empty where it holds anything else."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part["text"] for part in parts if isinstance(part, dict) and part.get("type") == "text" and "text" in part]
    return "".join(texts) if len(texts) == len(parts) and all(isinstance(text, str) for text in texts) else ""
