"""The text of a CEL expression as a tree with places, and the names that it asks for.

The library that evaluates guards tells only first names. What is read here has been accepted by that library before,
so that this reader may be lenient: it has to understand every accepted text, not to refuse every other one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from agac.spec.celtokens import Token, tokens

MAX_DEPTH = 50
"""Brackets in brackets, and steps of one expression (`a.b.c`, `a + b + c`): more is not written by hand."""

TYPES = frozenset({"int", "uint", "double", "string", "bool", "bytes", "list", "map", "null_type", "type"})
"""Words that mean a type, as in `type(x) == string`; a field of that name is read as `row.string`."""

MACROS = {"all": (2,), "exists": (2,), "exists_one": (2,), "existsOne": (2,), "map": (2, 3), "filter": (2,)}
"""Each with the numbers of its arguments; the first names what the others see of each element."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RANK = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "in": 3,
    "+": 4, "-": 4, "*": 5, "/": 5, "%": 5,
}  # fmt: skip

Chain = tuple[str | int, ...]
"""`classify.items[0].name` as ("classify", "items", 0, "name")."""


class Unreadable(Exception):
    """The text is CEL that guards do not know; `offset` counts characters from 0."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Node:
    """A part of an expression, which stands at `text[start:end]`. By `kind`:

    literal (`value`), name (`value`), select (`parts[0]`.`value`), index (`parts[0]`[`parts[1]`]), call (`value`, the
    arguments), method (`value`, what stands before the dot, the arguments), macro (`value`, what stands before the dot,
    the bound name, one or two bodies), has (the select), list, map (keys and values in turn), op (`value`, operands:
    one, two, three for `?:`, any number for `&&` and `||`).
    """

    kind: str
    value: Any
    parts: tuple[Node, ...]
    start: int
    end: int
    depth: int = 1

    def walk(self) -> Iterator[Node]:
        """This node and all below it, in the order of the text."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def chain(self) -> Chain | None:
        """The way that this node is, None when it is none or goes over an index that only a row can tell."""
        if self.kind == "name":
            return (self.value,)
        if self.kind not in ("select", "index") or (before := self.parts[0].chain()) is None:
            return None
        key = self.value if self.kind == "select" else self.parts[1].value
        known = self.kind == "select" or self.parts[1].kind == "literal"
        return (*before, key) if known and (type(key) is str or (type(key) is int and key >= 0)) else None


def parse(text: str, literal: Callable[[str], Any]) -> Node:
    """The tree of an expression that CEL accepts; `literal` gives the value of a text or number as it is written.

    Raises `Unreadable` for what guards do not know: message types, names with a dot before them, deep nesting.
    """
    return _Parser(text, literal).whole()


@dataclass(frozen=True, slots=True)
class Reference:
    """A way into what a row shows. `asked`: only whether its end is there (`has(x.y)`)."""

    chain: Chain
    start: int
    asked: bool = False


def references(node: Node, bound: frozenset[str] = frozenset()) -> Iterator[Reference]:
    """Every way that the expression reads, as far as the text tells it, without the names that macros bind."""
    chain = node.chain()
    if chain is not None:
        if chain[0] not in bound and chain[0] not in TYPES:
            yield Reference(chain, node.start)
        return
    if node.kind == "has":
        for found in references(node.parts[0], bound):
            yield replace(found, asked=found.chain == node.parts[0].chain())
        return
    for place, part in enumerate(node.parts):
        if node.kind != "macro" or place == 0:
            yield from references(part, bound)
        elif place > 1:
            yield from references(part, bound | {node.parts[1].value})


def shown(chain: Chain) -> str:
    """A way as one writes it: `a.b[0]["odd name"]`."""
    text = str(chain[0])
    for part in chain[1:]:
        plain = isinstance(part, str) and _IDENTIFIER.match(part) and part not in ("in", "true", "false", "null")
        text += f".{part}" if plain else f"[{json.dumps(part, ensure_ascii=False)}]"
    return text


class _Parser:
    def __init__(self, text: str, literal: Callable[[str], Any]) -> None:
        self._tokens = list(tokens(text))
        self._at = 0
        self._literal = literal
        self._open = 0

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _is(self, *signs: str) -> bool:
        return self._next.kind in ("sign", "name") and self._next.text in signs

    def _want(self, sign: str) -> Token:
        if not self._is(sign):
            raise self._lost()
        return self._take()

    def _lost(self) -> Unreadable:
        return Unreadable(f"{self._next.text or 'the end'!r} is not expected here", self._next.start)

    def _node(self, kind: str, value: Any, parts: tuple[Node, ...], start: int) -> Node:
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > 2 * MAX_DEPTH:
            raise Unreadable("the expression has too many steps; split it, or compute it in a python stage", start)
        return Node(kind, value, parts, start, self._tokens[self._at - 1].end, depth)

    def whole(self) -> Node:
        node = self._expression()
        if self._next.kind != "end":
            raise self._lost()
        return node

    def _expression(self) -> Node:
        self._open += 1
        if self._open > MAX_DEPTH:
            raise Unreadable("brackets are nested too deeply; split the expression", self._next.start)
        node = self._binary(1)
        if self._is("?"):
            self._take()
            chosen = self._binary(1)
            self._want(":")
            node = self._node("op", "?:", (node, chosen, self._expression()), node.start)
        self._open -= 1
        return node

    def _binary(self, least: int) -> Node:
        left = self._unary()
        while self._next.kind in ("sign", "name") and (rank := _RANK.get(self._next.text, 0)) >= least:
            sign = self._take().text
            right = self._binary(rank + 1)
            many = sign in ("&&", "||") and left.kind == "op" and left.value == sign
            left = self._node("op", sign, (*left.parts, right) if many else (left, right), left.start)
        return left

    def _unary(self) -> Node:
        first, signs = self._next, ""
        while self._is("!", "-"):
            signs += self._take().text
        node = self._member()
        if node.kind == "literal" and signs == "-" and type(node.value) in (int, float):
            return replace(node, value=-node.value, start=first.start)
        for sign in "-!":  # CEL cancels them in pairs
            if signs.count(sign) % 2:
                node = self._node("op", sign, (node,), first.start)
        return node

    def _member(self) -> Node:
        node = self._primary()
        while self._is(".", "[", "{"):
            sign = self._take()
            if sign.text == "{":
                raise Unreadable("message types (`Name{…}`) do not exist in guards; compare fields", node.start)
            if sign.text == "[":
                key = self._expression()
                self._want("]")
                node = self._node("index", None, (node, key), node.start)
                continue
            name = self._take().text
            if self._is("("):
                node = self._method(node, name, self._arguments("(", ")"))
            else:
                node = self._node("select", name, (node,), node.start)
        return node

    def _method(self, target: Node, name: str, arguments: tuple[Node, ...]) -> Node:
        macro = len(arguments) in MACROS.get(name, ()) and arguments[0].kind == "name"
        return self._node("macro" if macro else "method", name, (target, *arguments), target.start)

    def _arguments(self, opening: str, closing: str) -> tuple[Node, ...]:
        """Expressions between brackets, with `,` or `:` between them."""
        self._want(opening)
        found: list[Node] = []
        while not self._is(closing):
            found.append(self._expression())
            if not self._is(closing):
                self._want(":" if self._is(":") else ",")
        self._want(closing)
        return tuple(found)

    def _primary(self) -> Node:
        token = self._next
        if self._is("[", "{"):
            closing = "]" if token.text == "[" else "}"
            parts = self._arguments(token.text, closing)
            return self._node("list" if token.text == "[" else "map", None, parts, token.start)
        self._take()
        if token.text == "(":
            inner = self._expression()
            return replace(inner, start=token.start, end=self._want(")").end)
        if token.text == "." and self._next.kind == "name":
            raise Unreadable("a name starts with a dot; write it without", token.start)
        if token.kind in ("text", "number"):
            return self._node("literal", self._literal(token.text), (), token.start)
        if token.kind != "name":
            self._at -= 1
            raise self._lost()
        if token.text in ("true", "false", "null"):
            return self._node("literal", {"true": True, "false": False, "null": None}[token.text], (), token.start)
        if not self._is("("):
            return self._node("name", token.text, (), token.start)
        arguments = self._arguments("(", ")")
        has = token.text == "has" and len(arguments) == 1
        return self._node("has" if has else "call", token.text, arguments, token.start)
