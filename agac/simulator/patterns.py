"""Texts that match a regular expression, drawn from its own syntax tree."""

from __future__ import annotations

import importlib
import re
import string
from collections.abc import Callable, Iterable
from typing import Any

from agac.simulator.words import Draft

TRIES = 60
FEW = 4
"""How often something without an upper bound is repeated beyond its lower one."""

CATEGORIES = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_NOT_DIGIT": string.ascii_letters,
    "CATEGORY_WORD": string.ascii_lowercase + string.digits,
    "CATEGORY_NOT_WORD": " -.,",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": string.ascii_lowercase,
}
PRINTABLE = string.ascii_letters + string.digits + " -_.,:/"


class NoMatch(ValueError):
    """No text was found that the pattern and the lengths both allow."""


def parse_pattern(pattern: str) -> tuple[re.Pattern[str], Any]:
    """The compiled pattern and its syntax tree; raises ValueError when it is no regular expression."""
    parser: Any = importlib.import_module("re._parser")  # the tree is nowhere public
    try:
        return re.compile(pattern), parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from error


def matching_text(compiled: re.Pattern[str], tree: Any, draft: Draft, least: int, most: float) -> str:
    """A text that the pattern is found in, within the lengths; raises NoMatch."""
    for extra in range(TRIES):
        text = Writing(draft, FEW + extra * max(1, least // 8)).tree(tree)
        if len(text) < least and compiled.search(text + "x" * (least - len(text))):
            text += "x" * (least - len(text))
        if least <= len(text) <= most and compiled.search(text):
            return text
    raise NoMatch(f"no text found for pattern {compiled.pattern!r} of {least} to {most} characters")


class Writing:
    """One text being written along a pattern's tree."""

    def __init__(self, draft: Draft, few: int) -> None:
        self.draft = draft
        self.few = few
        self.groups: dict[int, str] = {}

    def tree(self, tree: Iterable[tuple[Any, Any]]) -> str:
        """A text for a sequence of parts."""
        return "".join(self.part(str(operation), argument) for operation, argument in tree)

    def part(self, operation: str, argument: Any) -> str:
        """A text for one part; parts that take no room (anchors, look-around) give none and are checked at the end."""
        write = WRITERS.get(operation)
        return "" if write is None else write(self, argument)

    def repeat(self, argument: Any) -> str:
        """Something, so many times."""
        low, high, inner = argument
        ceiling = min(int(high), int(low) + self.few)
        return "".join(self.tree(inner) for _ in range(int(low) + self.draft.below(ceiling - int(low) + 1)))

    def group(self, argument: Any) -> str:
        """What stands in parentheses, kept for references back to it."""
        number, _, _, inner = argument
        text = self.tree(inner)
        if number is not None:
            self.groups[number] = text
        return text

    def among(self, argument: Any) -> str:
        """One character of a class."""
        negated = str(argument[0][0]) == "NEGATE"
        members = [member for member in argument if str(member[0]) != "NEGATE"]
        if negated:
            excluded = set("".join(alphabet(str(kind), value) for kind, value in members))
            allowed = [letter for letter in PRINTABLE if letter not in excluded]
            return str(self.draft.one_of(allowed)) if allowed else "\u00b7"
        kind, value = self.draft.one_of(members)
        if str(kind) == "RANGE":
            return chr(value[0] + self.draft.below(value[1] - value[0] + 1))
        return str(self.draft.one_of(alphabet(str(kind), value)))


def alphabet(kind: str, value: Any) -> str:
    """The characters that a member of a class stands for; a range is cut after 512."""
    if kind == "LITERAL":
        return chr(value)
    if kind == "RANGE":
        return "".join(chr(code) for code in range(value[0], min(value[1], value[0] + 511) + 1))
    return CATEGORIES.get(str(value), PRINTABLE)


WRITERS: dict[str, Callable[[Writing, Any], str]] = {
    "LITERAL": lambda writing, code: chr(code),
    "NOT_LITERAL": lambda writing, code: str(writing.draft.one_of([c for c in PRINTABLE if ord(c) != code])),
    "ANY": lambda writing, _: str(writing.draft.one_of(PRINTABLE)),
    "IN": Writing.among,
    "BRANCH": lambda writing, argument: writing.tree(writing.draft.one_of(argument[1])),
    "SUBPATTERN": Writing.group,
    "ATOMIC_GROUP": Writing.tree,
    "MAX_REPEAT": Writing.repeat,
    "MIN_REPEAT": Writing.repeat,
    "POSSESSIVE_REPEAT": Writing.repeat,
    "GROUPREF": lambda writing, number: writing.groups.get(number, ""),
}
"""How each kind of part is written, by the name the standard library gives it."""
