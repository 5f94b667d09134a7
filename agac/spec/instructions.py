"""Instructions are the same for every row: they are filled once, when the files are loaded.

`${vars.x}` is filled in every instruction; in a card's, `{{x}}` too, from the same variables and the card's own facts.
What is filled in is never read again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agac.core.errors import Problem, Where
from agac.core.types import JSONValue
from agac.spec.cardwords import PLACEHOLDER_PREFIXES_LATER, PLACEHOLDERS_LATER
from agac.spec.suggest import did_you_mean
from agac.spec.template import VARS, MissingField, Placeholder, as_text, compile_template

_BRACES = re.compile(r"(\\?)\{\{([^{}\n]*)\}\}")


@dataclass(frozen=True, slots=True)
class Filling:
    """What an instruction is filled with. `positions`: the text is a file's. `names` are a card's own facts, None
    where double braces mean nothing."""

    variables: Mapping[str, JSONValue]
    positions: bool = False
    names: Mapping[str, str] | None = None


def fill(text: str, where: Where, filling: Filling, path: str) -> tuple[str | None, list[Problem]]:
    """The text with every placeholder replaced, or None and what cannot be."""
    template, problems = compile_template(text, where, positions=filling.positions, path=path)
    if template is None:
        return None, problems
    for placeholder in template.placeholders:
        if (message := _refusal(placeholder, filling.variables)) is not None:
            problems.append(Problem(placeholder.where, message, path))
    if filling.names is not None:
        template, found = template.with_pieces(lambda piece: _braces(piece, where, filling, path))
        problems += found
    if problems:
        return None, problems
    return template.render({VARS: filling.variables}), []


def _refusal(placeholder: Placeholder, variables: Mapping[str, JSONValue]) -> str | None:
    name = placeholder.name
    head, _, rest = name.partition(".")
    if head != VARS:
        return f"instructions are the same for every row; move ${{{name}}} into prompt"
    known = [f"{VARS}.{key}" for key in variables]
    template, _ = compile_template(f"${{{name}}}", placeholder.where)
    try:
        if rest and template is not None:
            template.render({VARS: variables})
            return None
    except MissingField:
        pass
    return f"unknown variable ${{{name}}}; {did_you_mean(name, known, 'variables')}"


def _braces(piece: str, where: Where, filling: Filling, path: str) -> tuple[str, list[Problem]]:
    problems: list[Problem] = []
    known = {**filling.variables, **(filling.names or {})}

    def value(match: re.Match[str]) -> str:
        escaped, name = match[1], match[2].strip()
        if escaped:
            return match[0][1:]
        if name in known:
            return as_text(known[name])
        problems.append(Problem(where, _unknown(match[0], name, list(known)), path))
        return match[0]

    return _BRACES.sub(value, piece), problems


def _unknown(shown: str, name: str, known: list[str]) -> str:
    if name in PLACEHOLDERS_LATER or name.startswith(PLACEHOLDER_PREFIXES_LATER):
        return f"{shown} is not supported yet; write \\{shown} to keep the text"
    remedy = did_you_mean(name, known, "known")
    stop = "" if remedy.endswith("?") else "."
    return f"unknown placeholder {shown}; {remedy}{stop} Declare it in vars, or write \\{shown} to keep the text"
