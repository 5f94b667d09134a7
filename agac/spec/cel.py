"""CEL expressions as text: their tokens, their tree with places, and words for text that the parser refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

RESERVED = frozenset({
    "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop",
    "namespace", "null", "package", "return", "true", "var", "void", "while",
})  # fmt: skip
"""Words that no name may be."""

_EXPONENT = r"(?:[eE][+-]?[0-9]+)"
_TOKEN = re.compile(
    r"(?P<space>(?:[ \t\r\n\f]|//[^\n]*)+)"
    r"|(?P<text>[bB]?(?:"
    r'[rR](?:"""[\s\S]*?"""|' + r"'''[\s\S]*?'''" + r'|"[^"\r\n]*"|' + r"'[^'\r\n]*')"
    r'|"""(?:\\[\s\S]|[^\\])*?"""|' + r"'''(?:\\[\s\S]|[^\\])*?'''"
    r'|"(?:\\.|[^"\\\r\n])*"|' + r"'(?:\\.|[^'\\\r\n])*'))"
    rf"|(?P<number>0[xX][0-9a-fA-F]+[uU]?|[0-9]*\.[0-9]+{_EXPONENT}?|[0-9]+{_EXPONENT}|[0-9]+[uU]?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])"
    r"|(?P<bad>[\s\S])"
)


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of the text: `kind` is text, number, name, sign, bad or end; `start` counts characters from 0."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def tokens(text: str) -> Iterator[Token]:
    """The pieces of any text, without spaces and comments, closed by one of kind `end`."""
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "space":
            yield Token(str(match.lastgroup), match[0], match.start())
    yield Token("end", "", len(text))


# The library that evaluates guards tells only first names. What is read here has been accepted by that library before,
# so that this reader may be lenient: it has to understand every accepted text, not to refuse every other one.

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
class CelNode:
    """A part of an expression, which stands at `text[start:end]`. By `kind`:

    literal (`value`), name (`value`), select (`parts[0]`.`value`), index (`parts[0]`[`parts[1]`]), call (`value`, the
    arguments), method (`value`, what stands before the dot, the arguments), macro (`value`, what stands before the dot,
    the bound name, one or two bodies), has (the select), list, map (keys and values in turn), op (`value`, operands:
    one, two, three for `?:`, any number for `&&` and `||`).
    """

    kind: str
    value: Any
    parts: tuple[CelNode, ...]
    start: int
    end: int
    depth: int = 1

    def walk(self) -> Iterator[CelNode]:
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


def parse(text: str, literal: Callable[[str], Any]) -> CelNode:
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


def references(node: CelNode, bound: frozenset[str] = frozenset()) -> Iterator[Reference]:
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

    def _node(self, kind: str, value: Any, parts: tuple[CelNode, ...], start: int) -> CelNode:
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > 2 * MAX_DEPTH:
            raise Unreadable("the expression has too many steps; split it, or compute it in a python stage", start)
        return CelNode(kind, value, parts, start, self._tokens[self._at - 1].end, depth)

    def whole(self) -> CelNode:
        node = self._expression()
        if self._next.kind != "end":
            raise self._lost()
        return node

    def _expression(self) -> CelNode:
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

    def _binary(self, least: int) -> CelNode:
        left = self._unary()
        while self._next.kind in ("sign", "name") and (rank := _RANK.get(self._next.text, 0)) >= least:
            sign = self._take().text
            right = self._binary(rank + 1)
            many = sign in ("&&", "||") and left.kind == "op" and left.value == sign
            left = self._node("op", sign, (*left.parts, right) if many else (left, right), left.start)
        return left

    def _unary(self) -> CelNode:
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

    def _member(self) -> CelNode:
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

    def _method(self, target: CelNode, name: str, arguments: tuple[CelNode, ...]) -> CelNode:
        macro = len(arguments) in MACROS.get(name, ()) and arguments[0].kind == "name"
        return self._node("macro" if macro else "method", name, (target, *arguments), target.start)

    def _arguments(self, opening: str, closing: str) -> tuple[CelNode, ...]:
        """Expressions between brackets, with `,` or `:` between them."""
        self._want(opening)
        found: list[CelNode] = []
        while not self._is(closing):
            found.append(self._expression())
            if not self._is(closing):
                self._want(":" if self._is(":") else ",")
        self._want(closing)
        return tuple(found)

    def _primary(self) -> CelNode:
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


_FIRST = re.compile(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)")
_WORDS = {
    "and": "`and` is written `&&`",
    "or": "`or` is written `||`",
    "not": "`not` is written `!`: `!x`, and `!(x in y)` for `x not in y`",
    "is": "`is` is written `==`: `x == null`",
}
_SIGNS = {
    "=": "`=` compares nothing; write `==`",
    "&": "a single `&` means nothing; write `&&`",
    "|": "a single `|` means nothing; write `||`",
    ";": "`;` has no meaning here; remove it",
}
_RAW = re.compile(r"[bB]?[rR]")
_ESCAPE = re.compile(r"\\(?:[abfnrtv\\?\"'`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})")
_PAIRS = {")": "(", "]": "[", "}": "{"}


def spot(text: str, offset: int) -> str:
    """The place of a character within the guard: `at column 5`, and the line where there are several."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return f"at line {line}, column {column} of the guard" if "\n" in text.strip() else f"at column {column}"


def refusals(text: str, refused: str) -> list[str]:
    """What is wrong with a text that the parser refused with these words, by place; at least one sentence."""
    slips = [f"{spot(text, offset)}: {message}" for offset, message in sorted(_slips(text))]
    return slips or [_where_it_stopped(text, refused)]


def _slips(text: str) -> Iterator[tuple[int, str]]:
    pieces = list(tokens(text))
    skip = -1
    for before, piece, after in zip([None, *pieces], pieces, [*pieces[1:], pieces[-1]], strict=False):
        if piece.start < skip:
            continue
        skip = piece.end
        if piece.kind == "name":
            yield from _word(piece, before, after)
        elif piece.kind == "text":
            yield from _escapes(piece)
        elif piece.kind == "number" and piece.text.startswith(".") and before and before.end == piece.start:
            yield piece.start, f"an element of a list is written `[{piece.text[1:]}]`, counted from 0"
        elif piece.kind == "bad":
            begun = before and before.kind == "name" and before.end == piece.start and piece.text.isalnum()
            start = before.start if before and begun else piece.start
            skip, message = _bad(text, piece, start)
            yield start, message
            if skip == len(text):
                return
        elif piece.text in ("<", "==", "!=") and after.start == piece.end and after.text in (">", "="):
            skip = after.end
            meant = {"<": "!=", "==": "==", "!=": "!="}[piece.text]
            yield piece.start, f"`{text[piece.start : skip]}` is written `{meant}`"
        elif piece.text == "?" and before is not None and (before.text == "." or after.text in (".", "?")):
            skip = after.end
            yield piece.start, "`?.` and `??` do not exist here; write `has(x.y) && x.y …`"
    yield from _brackets(pieces)


def _word(piece: Token, before: Token | None, after: Token) -> Iterator[tuple[int, str]]:
    member = before is not None and before.text == "."
    if not member and piece.text in _WORDS and after.text != "." and not (before and before.text == "not"):
        yield piece.start, _WORDS[piece.text]
    elif piece.text in RESERVED and member and piece.text in ("in", "true", "false", "null"):
        yield piece.start, f'`{piece.text}` is a word of CEL; write `["{piece.text}"]` for the field'
    elif piece.text in RESERVED and not member and piece.text not in ("in", "true", "false", "null"):
        yield piece.start, f'`{piece.text}` is a reserved word of CEL; write `row["{piece.text}"]` for the field'


def _escapes(piece: Token) -> Iterator[tuple[int, str]]:
    if not _RAW.match(piece.text) and (wrong := _ESCAPE.sub("  ", piece.text).find("\\")) >= 0:
        slip = piece.text[wrong : wrong + 2]
        yield piece.start, f"a text has `{slip}`, which stands for nothing; write `\\{slip}`, or r before the text"


def _bad(text: str, piece: Token, start: int) -> tuple[int, str]:
    """Where to read on after a character that begins nothing, and what to say; a word it ends begins at `start`."""
    rest = text[piece.start :]
    if placeholder := re.match(r"\$\{([^{}\n]*)\}?", rest):
        name = placeholder[1].strip()
        return (
            piece.start + placeholder.end(),
            f"`{placeholder[0]}` stands in prompts; in a guard write `{name or 'x'}`",
        )
    if rest[0] in "\"'":
        return len(text), f"a text is never closed: {rest[:24]!r}; add the {rest[0]}"
    if word := re.match(r"\w+", rest):
        name = text[start : piece.start + word.end()]
        written = f'["{name}"]` for `.{name}' if text[:start].endswith(".") else f'row["{name}"]'
        return start + len(name), f"names have the letters A to Z, digits and _; write `{written}`"
    if rest[0] == "`" and (quoted := re.match(r"`([^`\n]+)`", rest)):
        return piece.start + quoted.end(), f'a name in backticks is written `row["{quoted[1]}"]`'
    if rest[0] in _SIGNS:
        return piece.end, _SIGNS[rest[0]]
    if rest[0].isspace():
        return piece.end, f"the blank U+{ord(rest[0]):04X} is none that CEL knows; write a plain space"
    return piece.end, f"`{rest[0]}` means nothing in CEL; remove it"


def _brackets(pieces: list[Token]) -> Iterator[tuple[int, str]]:
    opened: list[Token] = []
    for piece in pieces:
        if piece.kind != "sign":
            continue
        if piece.text in _PAIRS.values():
            opened.append(piece)
        elif piece.text in _PAIRS and (not opened or opened.pop().text != _PAIRS[piece.text]):
            yield piece.start, f"`{piece.text}` closes nothing; remove it, or add the `{_PAIRS[piece.text]}`"
            return
    if opened:
        closing = {left: right for right, left in _PAIRS.items()}[opened[-1].text]
        yield opened[-1].start, f"`{opened[-1].text}` is never closed; add the `{closing}`"


def _where_it_stopped(text: str, refused: str) -> str:
    found = _FIRST.search(refused)
    if found is None:
        return "the guard is no CEL expression; see the guide's page on operators for how conditions are written"
    lines = text.split("\n")
    line, column, reason = int(found[1]), int(found[2]), found[3]
    offset = min(sum(len(one) + 1 for one in lines[: line - 1]) + column - 1, len(text))
    at, rest = spot(text, offset), text[offset:].strip()
    if "literal" in reason:
        return f"{at}: the number is larger than 64 bits can hold; compare with a smaller one, or with a double (1e20)"
    if "has() macro" in reason:
        return f'{at}: `has` takes a field: `has(row.name)`, or `"odd name" in row`'
    if "simple name" in reason:
        return f"{at}: the first argument names the element: `x.exists(item, item.ok)`"
    if not rest:
        return f"{at}: the guard ends too early; something is missing after {_last(text)}"
    before = [piece for piece in tokens(text[:offset]) if piece.kind != "end"]
    what = "a value" if not before or before[-1].kind == "sign" or before[-1].text == "in" else "`==`, `&&` or `||`"
    return f"{at}: `{next(tokens(rest)).text}` is not expected here; {what} may be missing before it"


def _last(text: str) -> str:
    return f"`{[piece.text for piece in tokens(text)][-2:][0]}`"
