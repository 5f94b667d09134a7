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
from agac.spec.template import VARS, MissingField, Placeholder, as_text, compile_template, spot_of

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
        if (message := _refusal(placeholder, filling)) is not None:
            problems.append(Problem(placeholder.where, message, path))
    if filling.names is not None:
        known = {**filling.variables, **filling.names}
        problems += _unknown_braces(text, where, filling, path)
        template = template.with_pieces(lambda piece: _filled_braces(piece, known))
    if problems:
        return None, problems
    return template.render({VARS: filling.variables}), []


def _refusal(placeholder: Placeholder, filling: Filling) -> str | None:
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


def _no_variable(name: str, filling: Filling) -> str:
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


def _unknown_braces(text: str, where: Where, filling: Filling, path: str) -> list[Problem]:
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
