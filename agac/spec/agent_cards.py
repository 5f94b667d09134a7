"""AgentCards: YAML front matter and an instruction below it, or one YAML mapping. Type `agent` works; a card that asks
for more is refused by naming the field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.core.errors import Path_, Problem, Where, any_error, did_you_mean, nearest
from agac.core.types import JSONValue
from agac.spec.instructions import InstructionValues, card_examples, fill
from agac.spec.models import CardFile
from agac.spec.paths import OutsideProject, files_called, read_text
from agac.spec.validation import described, validate
from agac.spec.value_checks import FIELDS_LATER, TYPES_LATER, hints, param_hints
from agac.spec.workflow import CardInfo, Example, ProjectSpec
from agac.spec.yaml import Document, expand, parse_yaml

SUFFIXES = (".md", ".markdown", ".yaml", ".yml")
_FENCE = "---"
_HISTORY = re.compile(r"(?m)^---(USER|ASSISTANT|RESOURCE)\b.*$")
_SYSTEM = "---SYSTEM"


@dataclass(frozen=True, slots=True)
class Card:
    """A card and where its keys stand: `where` by key, `""` for the card itself."""

    info: CardInfo
    where: Mapping[str, Where]


@dataclass(frozen=True, slots=True)
class _Source:
    """A card's file taken apart: its front matter, and the instruction below with the line where that starts."""

    document: Document
    body: str
    body_line: int


def card_names(project: ProjectSpec) -> list[str]:
    """The names under which the agentcards folder's files are found, sorted."""
    folder = project.paths.agentcards
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted({file.stem for file in found if file.suffix in SUFFIXES and file.name != "SKILL.md"})


def find_card(name: str, project: ProjectSpec) -> tuple[Path | None, str]:
    """The file of the card called `name` (or at that path), or None and a sentence why there is none."""
    try:
        found = files_called(name, project.root, project.paths.agentcards, SUFFIXES)
    except OutsideProject as error:
        return None, str(error)
    if not found:
        folder = project.shown(project.paths.agentcards)
        return None, f"no agent {name!r}; {did_you_mean(name, card_names(project), f'agents in {folder}/')}"
    if found[0].name == "SKILL.md":
        return None, "SKILL.md describes a skill, not an agent"
    return found[0], ""


def load_card(
    path: Path, project: ProjectSpec, variables: Mapping[str, JSONValue]
) -> tuple[Card | None, list[Problem]]:
    """The card in `path`, its instruction filled with `variables`, or None and every problem. Warnings may come with
    a card."""
    shown = project.shown(path)
    text, problem = read_text(path, shown)
    if problem is not None:
        return None, [problem]
    source, problem = _taken_apart(text, shown, yaml_only=path.suffix in (".yaml", ".yml"))
    if source is None:
        return None, [problem] if problem else []
    document, problems = _expanded(source.document, project.env)
    problems += _type_problems(document)
    model, found = validate(CardFile, document, hints={"": hints(), "request_params": param_hints()})
    taken = {problem.path for problem in problems}
    problems += [problem for problem in found if problem.path not in taken]
    instruction, found = _instruction(model, document, source, path, variables)
    problems += found
    names = model.messages or [] if model else []
    messages, found = card_examples(names, path, project, document.where(("messages",)))
    problems += found
    if model is None or any_error(problems):
        return None, problems
    if model.use_history:
        where = document.where(("use_history",), key=True)
        problems.append(Problem(where, "rows share no history; this has no effect", "use_history", "warning"))
    return _card(model, document, shown, path, instruction, messages), problems


def _taken_apart(text: str, shown: str, *, yaml_only: bool) -> tuple[_Source | None, Problem | None]:
    if yaml_only:
        document = parse_yaml(text, shown)
        return _mapping(_Source(document, "", 1), shown, "a card is a mapping with name, instruction, model")
    lines = text.split("\n")
    start = next((index for index, line in enumerate(lines) if line.strip()), 0)
    if lines[start].rstrip() != _FENCE:
        message = "no front matter; a card starts with a line ---, its keys (model: …), and another line ---"
        return None, Problem(Where(shown, start + 1, 1), message)
    end = next((index for index in range(start + 1, len(lines)) if lines[index].rstrip() == _FENCE), None)
    if end is None:
        return None, Problem(Where(shown, start + 1, 1), "the front matter is never closed; write a line --- below it")
    document = parse_yaml("\n".join(lines[start + 1 : end]), shown, first_line=start + 2)
    source = _Source(document, *_body(lines, end + 1))
    return _mapping(source, shown, "the front matter is a mapping with name, model and the like")


def _mapping(source: _Source, shown: str, what: str) -> tuple[_Source | None, Problem | None]:
    document = source.document
    if isinstance(document.data, dict) or document.problems:
        return source, None
    if document.empty:
        return _Source(Document(shown, {}, []), source.body, source.body_line), None
    return None, document.problem((), f"expected a mapping, got {described(document.data)}; {what}")


def _body(lines: list[str], start: int) -> tuple[str, int]:
    """The instruction below the front matter, without blank lines around it, and the line where it starts."""
    while start < len(lines) and not lines[start].strip():
        start += 1
    if start < len(lines) and lines[start].rstrip() == _SYSTEM:
        return _body(lines, start + 1)
    return "\n".join(lines[start:]).rstrip(), start + 1


def _type_problems(document: Document) -> list[Problem]:
    kind = document.data.get("type") if isinstance(document.data, dict) else None
    if not isinstance(kind, str) or kind.lower() == "agent":
        return []
    if kind.lower() in TYPES_LATER:
        return [document.problem(("type",), f"`type: {kind}` is not supported yet; agent is")]
    remedy = "did you mean 'agent'?" if nearest(kind, ["agent"]) else "only 'agent' is supported yet"
    return [document.problem(("type",), f"unknown type {kind!r}; {remedy}")]


def _expanded(document: Document, env: Mapping[str, str]) -> tuple[Document, list[Problem]]:
    """The document with `${NAME}` replaced in every text of it."""
    problems = list(document.problems)

    def walk(value: Any, path: Path_) -> Any:
        if isinstance(value, dict):
            return {key: walk(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner, (*path, index)) for index, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        text, missing = expand(value, _escaped(env) if path == ("instruction",) else env)
        for name in dict.fromkeys(missing):
            message = (
                f"the environment variable {name} is not set; set it, add it to .env, or write ${{{name}:default}}"
            )
            problems.append(document.problem(path, message))
        return text

    data = walk(document.data, ())
    if isinstance(data, dict):  # `shell: false` and `skills: []` ask for nothing
        data = {key: value for key, value in data.items() if key not in FIELDS_LATER or value not in (False, [])}
    return Document(document.shown, data, problems, document.root), problems


def _escaped(env: Mapping[str, str]) -> Mapping[str, str]:
    """So that what a variable holds is never read as a placeholder of the instruction."""
    return {name: value.replace("${", "$${").replace("{{", "\\{{") for name, value in env.items()}


def _instruction(
    model: CardFile | None, document: Document, source: _Source, path: Path, variables: Mapping[str, JSONValue]
) -> tuple[str | None, list[Problem]]:
    written = document.data.get("instruction") if isinstance(document.data, dict) else None
    if written is not None and source.body:
        message = "the instruction is given twice: here and below the front matter; keep one of them"
        return None, [document.problem(("instruction",), message, key=True)]
    text, where = source.body, Where(document.shown, source.body_line, 1)
    if isinstance(written, str):
        text, where = written, document.where(("instruction",))
    if not text:
        return None, []
    if (history := _HISTORY.search(text)) is not None:
        line = (where.line or 1) + text.count("\n", 0, history.start())
        message = (
            f"---{history[1]} blocks in the instruction are not supported; put the messages into a file of their own "
            "and name it as `messages`"
        )
        return None, [Problem(Where(document.shown, line, 1), message)]
    names = {"agentName": _name(model, path), "agentType": "agent"}
    filling = InstructionValues(variables, not isinstance(written, str), names)
    return fill(text, where, filling, "instruction" if isinstance(written, str) else "")


def _name(model: CardFile | None, path: Path) -> str:
    return ((model.name if model else None) or path.stem).replace(" ", "_")


def _card(
    model: CardFile,
    document: Document,
    shown: str,
    path: Path,
    instruction: str | None,
    messages: tuple[Example, ...],
) -> Card:
    params = {key: value for key, value in model.request_params.model_dump().items() if value is not None}
    if (stops := params.pop("stop_sequences", None)) is not None:
        params["stop"] = tuple(stops)
    if params.get("service_tier") == "fast":
        params["service_tier"] = "priority"
    where = {"": Where(shown, 1, 1), "model": document.where(("model",))}
    for key in model.request_params.model_fields_set:
        where["stop" if key == "stop_sequences" else key] = document.where(("request_params", key))
    info = CardInfo(_name(model, path), shown, model.description, instruction, model.model, params, messages)
    return Card(info, where)
