"""Fills instructions, which are the same for every row. `${vars.x}` is filled in each of them; in a
card's, `{{x}}` too, from the same variables and the card's own facts. What is filled in is never
read again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from agac.core.errors import Problem, Where, any_error, did_you_mean
from agac.core.types import JSONValue
from agac.spec.foreign_placeholders import foreign_placeholders
from agac.spec.templates import (
    VARS,
    MissingField,
    Places,
    Syntax,
    Template,
    as_text,
    compile_template,
    dotted,
    in_syntax,
)
from agac.spec.text_files import PlacedText

_BRACES = re.compile(r"(\\?)\{\{([^{}\n]*)\}\}")

_NO_VALUE = re.compile("env|clientDisplay|executionEnvironment.*|internal:.*")
"""Placeholders that AgentCards may hold elsewhere, and that have no value in a run."""


def braced(text: str, where: Where) -> Iterator[tuple[str, Where]]:
    """Yields the names in double braces of a card's instruction, each with its place."""
    places = Places(text, where)
    for match in _BRACES.finditer(text):
        if not match[1]:
            yield match[2].strip(), places.at(match.start())


def fill(
    source: PlacedText,
    variables: Mapping[str, JSONValue],
    facts: Mapping[str, str] | None = None,
    syntax: Syntax = "dollar",
) -> tuple[str | None, list[Problem]]:
    """Returns the text with every placeholder replaced, or None if one cannot be, and what is
    wrong. `facts` are given for the instruction of a card: they fill double braces."""
    text, where = source
    template, problems = compile_template(text, where, syntax)
    if template is None:
        return None, problems
    for placeholder in template.placeholders:
        message = _cannot_fill(placeholder.name, variables, in_card=facts is not None)
        if message is not None:
            problems.append(Problem(placeholder.where, in_syntax(message, template.syntax)))
    if facts is None:
        problems += foreign_placeholders(template, where, (VARS,), syntax)
    else:
        known = {**variables, **facts}
        problems += _unknown_braces(text, where, known)
        template = _with_braces_filled(template, known)
    if any_error(problems):
        return None, problems
    return template.render({VARS: variables}), problems


def _unknown_braces(text: str, where: Where, known: Mapping[str, JSONValue]) -> Iterator[Problem]:
    """Yields the double braces of a text that name nothing."""
    places = Places(text, where)
    # `${…}` has no braces inside: none of them extends beyond the end of a piece
    for match in _BRACES.finditer(text):
        name = match[2].strip()
        if not match[1] and name not in known:
            yield Problem(places.at(match.start()), _unknown(match[0], name, known))


def _with_braces_filled(template: Template, known: Mapping[str, JSONValue]) -> Template:
    """Replaces the double braces in the literal parts of a template."""

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        return as_text(known.get(match[2].strip()))

    return replace(template, pieces=tuple(_BRACES.sub(value, piece) for piece in template.pieces))


def _cannot_fill(name: str, variables: Mapping[str, JSONValue], *, in_card: bool) -> str | None:
    """Returns the message for a placeholder that has no value in instructions; None if it has
    one."""
    head, *rest = name.split(".")
    if head == VARS:
        with suppress(MissingField):
            if rest:
                dotted({VARS: variables}, name, (head, *rest))
                return None
        known = [f"{VARS}.{key}" for key in variables]
        return f"unknown variable ${{{name}}}; {did_you_mean(name, known, 'variables')}"
    if in_card and name in variables:
        return f"in a card a variable of the workflow is {{{{{name}}}}}"
    if head in variables:
        return f"a variable of the workflow is ${{{VARS}.{name}}}"
    message = f"instructions are the same for every row; move ${{{name}}} into prompt"
    if in_card:
        return f"{message}; in a card a variable of the workflow is {{{{{name}}}}}"
    return message


def _unknown(shown: str, name: str, known: Iterable[str]) -> str:
    """Returns the message for double braces with an unknown name."""
    if _NO_VALUE.fullmatch(name):
        return f"{shown} has no value in a run; remove it, or write \\{shown} to keep the text"
    remedy = did_you_mean(name, known, "known")
    stop = "" if remedy.endswith("?") else "."
    declare = "Declare it in `variables` of the card or `vars` of the workflow"
    return (
        f"unknown placeholder {shown}; {remedy}{stop} {declare}, or write \\{shown} to "
        "keep the text"
    )
