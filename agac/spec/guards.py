"""Guards (`when:`): expressions in CEL over a row and the results that it has so far, true or false.

guards      what a guard is; whether its text can be read    guardslips   words for what CEL's parser refuses
guardcheck  its names and values against columns and schemas guardvalues  evaluating it for a row
celtext     the text as a tree                               guardfaults  why an evaluation failed
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from agac.core.errors import Problem, Where
from agac.spec.celtext import MACROS, TYPES, Chain, Node, Unreadable, parse, references
from agac.spec.guardslips import refusals, spot
from agac.spec.suggest import did_you_mean

MAX_LENGTH = 10_000
"""Characters of a guard: a list of a thousand ids fits."""

_TIMES = ("FullYear", "Month", "Date", "DayOfMonth", "DayOfYear", "DayOfWeek", "Hours", "Minutes", "Seconds")
_CONVERSIONS = ("int", "uint", "double", "string", "bytes", "timestamp", "duration", "type", "dyn")
METHODS = ("contains", "startsWith", "endsWith", "matches")
"""Functions of texts."""

_GETTERS = tuple(f"get{part}" for part in (*_TIMES, "Milliseconds"))
FUNCTIONS = ("size", "has", *METHODS, *MACROS, *_CONVERSIONS, *_GETTERS)
"""Everything that guards can call: CEL's own functions, as far as the library has them."""

_ELSEWHERE = {
    "len": "size(x)",
    "length": "size(x)",
    "str": "string(x)",
    "float": "double(x)",
    "any": "x.exists(item, …)",
    "includes": "x.contains(…)",
    "bool": 'x == "true"',
    **dict.fromkeys(
        ("lower", "upper", "lowerAscii", "upperAscii", "toLowerCase", "casefold"), 'x.matches("(?i)^yes$")'
    ),
    **dict.fromkeys(("strip", "trim"), r'x.matches("^\\s*yes\\s*$")'),
    **dict.fromkeys(("match", "search", "regex", "fullmatch"), 'x.matches("^[a-z]+$")'),
}
_WORDS = {
    **dict.fromkeys(("None", "nil", "NULL", "Null", "undefined", "NONE"), "null"),
    **dict.fromkeys(("True", "TRUE"), "true"),
    **dict.fromkeys(("False", "FALSE"), "false"),
}


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard that can be read. `names` are the first names of `chains`, the ways that it reads: each once, in the
    order of the text, without what macros bind. `where` is the place of the whole text."""

    text: str
    names: tuple[str, ...]
    where: Where
    chains: tuple[Chain, ...] = ()


def compile_guard(text: str, where: Where, path: str) -> tuple[Guard | None, list[Problem]]:
    """The guard of `text`, or None and everything that is wrong with it. `path` is its key (`stages[1].when`)."""
    faults = list(_faults(text))
    if faults:
        return None, [Problem(where, message, path) for message in dict.fromkeys(faults)]
    chains = tuple(dict.fromkeys(reference.chain for reference in references(tree_of(text))))
    return Guard(text, tuple(dict.fromkeys(str(chain[0]) for chain in chains)), where, chains), []


def tree_of(text: str) -> Node:
    """The tree of an expression that CEL accepts. Raises `Unreadable`."""
    return parse(text, literal)


def literal(text: str) -> Any:
    """The value of a number or a text as CEL reads it, escapes and all."""
    return cel_library().compile(text).execute()


@cache
def cel_library() -> Any:
    """The library that computes CEL, without its command line: the terminal libraries of that take 0.1 to 0.3 s."""
    nothing = ModuleType("cel.cli")
    absent = sys.modules.setdefault(nothing.__name__, nothing) is nothing
    try:
        import cel
    finally:
        if absent:
            del sys.modules[nothing.__name__]
    return cel


def _faults(text: str) -> Iterator[str]:
    if not text.strip():
        yield 'the guard is empty; write a condition, as in `status == "open"`, or leave `when` out'
        return
    if len(text) > MAX_LENGTH:
        yield f"the guard is longer than {MAX_LENGTH:,} characters; compute a field in a python stage and test that"
        return
    try:
        cel_library().compile(text)
        tree = tree_of(text)
    except ValueError as refused:
        yield from refusals(text, str(refused))
    except Unreadable as unreadable:
        yield f"{spot(text, unreadable.offset)}: {unreadable.message}"
    else:
        found = [fault for node in tree.walk() for fault in _node_faults(node, text)]
        yield from found or _type_faults(tree, text)
        if not found and _never_bool(tree):
            yield "the guard gives a value, not true or false; compare it, as in `size(items) > 0`"


def _node_faults(node: Node, text: str) -> Iterator[str]:
    yield from _word_fault(node, text)
    yield from _call_fault(node, text)
    yield from _pattern_fault(node, text)


def _word_fault(node: Node, text: str) -> Iterator[str]:
    if node.kind == "name" and (right := _WORDS.get(node.value)):
        yield f"{spot(text, node.start)}: CEL has no `{node.value}`; write `{right}`"


def _call_fault(node: Node, text: str) -> Iterator[str]:
    if node.kind not in ("call", "method"):
        return
    name, method = node.value, node.kind == "method"
    at, count = spot(text, node.start), len(node.parts) - method
    if name in MACROS:
        yield f"{at}: `{name}` takes a list, a name for its element and an expression: `x.{name}(item, item.ok)`"
    elif name == "has":
        yield f"{at}: `has` takes one field: `has(row.name)`"
    elif name in METHODS or name in _GETTERS:
        wanted = 1 if name in METHODS else 0
        if not method or count != wanted:
            yield f"{at}: `{name}` is written after a dot: `x.{name}({'…' if wanted else ''})`"
    elif name in _CONVERSIONS or name == "size":
        if count + method != 1 or (method and name != "size"):
            yield f"{at}: `{name}` takes one value: `{name}(x)`"
    elif name in _ELSEWHERE:
        yield f"{at}: unknown function `{name}`; write `{_ELSEWHERE[name]}`"
    else:
        yield f"{at}: unknown function `{name}`; {did_you_mean(name, FUNCTIONS, 'functions')}"


def _pattern_fault(node: Node, text: str) -> Iterator[str]:
    if node.kind != "method" or node.value != "matches" or node.parts[-1].kind != "literal":
        return
    pattern = node.parts[-1]
    try:
        cel_library().compile(f'"".matches({text[pattern.start : pattern.end]})').execute()
    except RuntimeError as refused:
        reason = re.search(r"\nerror: (.+?)(?:\. Check function arguments|\n|\Z)", str(refused))
        why = reason[1] if reason else "its syntax is not known"
        at = spot(text, pattern.start)
        yield f"{at}: {pattern.value!r} is no regular expression: {why}"


def _type_faults(tree: Node, text: str) -> Iterator[str]:
    """`string` where it is no type: somebody has a field of that name."""
    allowed: set[int] = set()
    for node in tree.walk():
        if node.kind == "op" and any(part.kind == "call" and part.value == "type" for part in node.parts):
            allowed |= {part.start for part in node.walk() if part.kind == "name"}
    for node in tree.walk():
        if node.kind == "name" and node.value in TYPES and node.start not in allowed:
            word = node.value
            yield f"{spot(text, node.start)}: `{word}` is a type in CEL; write `row.{word}` for the field of that name"


def _never_bool(tree: Node) -> bool:
    if tree.kind == "literal":
        return type(tree.value) is not bool
    if tree.kind == "op":
        return tree.value in ("+", "-", "*", "/", "%")
    if tree.kind in ("call", "method"):
        return tree.value in _GETTERS or (tree.value in (*_CONVERSIONS, "size") and tree.value != "dyn")
    return tree.kind in ("list", "map") or (tree.kind == "macro" and tree.value in ("map", "filter"))
