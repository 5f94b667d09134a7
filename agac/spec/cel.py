"""CEL expressions as text and as a tree with places; the library that computes them gives first
names only. It accepted what is parsed here, so that this parser may be lenient."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

# brackets in brackets, and steps of one expression (`a.b.c`, `a + b + c`): more is not written by
# hand
MAX_DEPTH = 50

TYPES = frozenset(
    {"int", "uint", "double", "string", "bool", "bytes", "list", "map", "null_type", "type"}
)
"""Words that mean a type, as in `type(x) == string`; a field of that name is read as `row.string`.
"""

MACROS = {
    "all": (2,),
    "exists": (2,),
    "exists_one": (2,),
    "existsOne": (2,),
    "map": (2, 3),
    "filter": (2,),
}
"""Each with the numbers of its arguments; the first names what the others see of each element."""

WORDS = {"true": True, "false": False, "null": None}

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
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RANK = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "in": 3,
    "+": 4, "-": 4, "*": 5, "/": 5, "%": 5,
}  # fmt: skip

Chain = tuple[str | int, ...]  # `classify.items[0].name` as ("classify", "items", 0, "name")


@cache
def cel_library() -> Any:
    """Returns the library that computes CEL, without its command line: the terminal libraries of
    that take
    0.1 to 0.3 s."""
    nothing = ModuleType("cel.cli")
    absent = sys.modules.setdefault(nothing.__name__, nothing) is nothing
    try:
        import cel
    finally:
        if absent:
            del sys.modules[nothing.__name__]
    return cel


class Token(NamedTuple):
    """One piece of the text."""

    kind: str
    """text, number, name, sign, bad or end."""
    text: str
    start: int
    """The position of its first character, from 0."""

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def tokens(text: str) -> list[Token]:
    """Returns the pieces of any text, without spaces and comments, closed by one of kind `end`."""
    found = [
        Token(str(match.lastgroup), match[0], match.start()) for match in _TOKEN.finditer(text)
    ]
    return [*(token for token in found if token.kind != "space"), Token("end", "", len(text))]


class Unparsed(Exception):
    """The text is CEL that guards do not know: a sentence, and its place in characters from 0."""


@dataclass(frozen=True, slots=True)
class CelNode:
    """A part of an expression, which stands at `text[start:end]`. By `kind`:

    literal (`value`), name (`value`), select (`parts[0]`.`value`), index (`parts[0]`[`parts[1]`]),
    call (`value`, the arguments), method (`value`, what stands before the dot, the arguments),
    macro (`value`, what stands before the dot, the bound name, one or two bodies), has (the
    select), list, map (keys and values in turn), op (`value`, operands: one, two, three for `?:`,
    any number for `&&` and `||`).

    `chain`: the way that it is, None when it is none or goes over an index that only a row can
    tell. `way`: the same from what the row shows, where a macro's bound name is the first element
    of its list; None where that is not known.
    """

    kind: str
    value: Any
    parts: tuple[CelNode, ...]
    start: int
    end: int
    depth: int = 1
    chain: Chain | None = None
    way: Chain | None = None

    def walk(self) -> Iterator[CelNode]:
        """This node and all below it, in the order of the text."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def computed(self) -> Iterator[CelNode]:
        """This node and the parts that are computed for it: none of a way, and no name that a
        macro binds."""
        yield self
        for place, part in enumerate(self.parts if self.chain is None else ()):
            if self.kind != "macro" or place != 1:
                yield from part.computed()

    def references(self) -> dict[Chain, CelNode]:
        """Returns every way that is read, as far as the text says it, and where it is first;
        without macros' own names."""
        found: dict[Chain, CelNode] = {}
        for node in self.computed():
            if node.chain is not None and node.chain == node.way and node.chain[0] not in TYPES:
                found.setdefault(node.chain, node)
        return found


def shown(chain: Chain) -> str:
    """Returns a way as one writes it: `a.b[0]["odd name"]`."""
    text = str(chain[0])
    for part in chain[1:]:
        plain = isinstance(part, str) and _IDENTIFIER.match(part) and part not in ("in", *WORDS)
        text += f".{part}" if plain else f"[{json.dumps(part, ensure_ascii=False)}]"
    return text


def spot(text: str, offset: int) -> str:
    """Returns the place of a character within the guard: `at column 5`, and the line where there
    are several."""
    line = text.count("\n", 0, offset) + 1
    column = offset - text.rfind("\n", 0, offset)
    if "\n" in text.strip():
        return f"at line {line}, column {column} of the guard"
    return f"at column {column}"


def parse(text: str) -> CelNode:
    """Returns the tree of an expression that CEL accepts. Raises `Unparsed` for what guards do not
    know, and deep nesting."""
    parser = _Parser(text)
    node = parser.expression()
    if parser.next.kind != "end":
        raise parser.unexpected()
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._at = 0
        self._open = 0
        self._bound: dict[
            str, Chain | None
        ] = {}  # by macros, each with the way to its first element

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _is(self, *signs: str) -> bool:
        return self.next.kind in ("sign", "name") and self.next.text in signs

    def _want(self, sign: str) -> Token:
        if not self._is(sign):
            raise self.unexpected()
        return self._take()

    def unexpected(self) -> Unparsed:
        return Unparsed(f"{self.next.text or 'the end'!r} is not expected here", self.next.start)

    def _node(self, kind: str, value: Any, parts: tuple[CelNode, ...], start: int) -> CelNode:
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > 2 * MAX_DEPTH:
            raise Unparsed(
                "the expression has too many steps; split it, or compute it in a python stage",
                start,
            )
        chain, way = self._ways(kind, value, parts)
        return CelNode(kind, value, parts, start, self._tokens[self._at - 1].end, depth, chain, way)

    def _ways(
        self, kind: str, value: Any, parts: tuple[CelNode, ...]
    ) -> tuple[Chain | None, Chain | None]:
        if kind == "name":
            return (value,), self._bound.get(value, (value,))
        if kind not in ("select", "index") or (before := parts[0].chain) is None:
            return None, None
        if kind == "select":
            key = value
        elif parts[1].kind == "literal":
            key = parts[1].value
        else:
            key = None
        if type(key) is not str and (type(key) is not int or key < 0):
            return None, None
        return (*before, key), (*parts[0].way, key) if parts[0].way else None

    def expression(self) -> CelNode:
        self._open += 1
        if self._open > MAX_DEPTH:
            raise Unparsed("brackets are nested too deeply; split the expression", self.next.start)
        node = self._binary(1)
        if self._is("?"):
            self._take()
            chosen = self._binary(1)
            self._want(":")
            node = self._node("op", "?:", (node, chosen, self.expression()), node.start)
        self._open -= 1
        return node

    def _binary(self, least: int) -> CelNode:
        left = self._unary()
        while (
            self.next.kind in ("sign", "name") and (rank := _RANK.get(self.next.text, 0)) >= least
        ):
            sign = self._take().text
            right = self._binary(rank + 1)
            many = sign in ("&&", "||") and left.kind == "op" and left.value == sign
            left = self._node(
                "op", sign, (*left.parts, right) if many else (left, right), left.start
            )
        return left

    def _unary(self) -> CelNode:
        first = self.next
        signs = ""
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
                raise Unparsed(
                    "message types (`Name{…}`) do not exist in guards; compare fields", node.start
                )
            if sign.text == "[":
                key = self.expression()
                self._want("]")
                node = self._node("index", None, (node, key), node.start)
                continue
            name = self._take().text
            if self._is("("):
                arguments = self._arguments("(", ")", node if name in MACROS else None)
                macro = len(arguments) in MACROS.get(name, ()) and arguments[0].kind == "name"
                node = self._node(
                    "macro" if macro else "method", name, (node, *arguments), node.start
                )
            else:
                node = self._node("select", name, (node,), node.start)
        return node

    def _arguments(
        self, opening: str, closing: str, over: CelNode | None = None
    ) -> tuple[CelNode, ...]:
        """Expressions between brackets, with `,` or `:` between them. `over`: the first is the
        name of its elements."""
        self._want(opening)
        outer = self._bound
        found = list[CelNode]()
        while not self._is(closing):
            found.append(self.expression())
            if over is not None and len(found) == 1:
                self._bound = {**outer, found[0].value: (*over.way, 0) if over.way else None}
            if not self._is(closing):
                self._want(":" if self._is(":") else ",")
        self._bound = outer
        self._want(closing)
        return tuple(found)

    def _primary(self) -> CelNode:
        token = self.next
        if self._is("["):
            return self._node("list", None, self._arguments("[", "]"), token.start)
        if self._is("{"):
            return self._node("map", None, self._arguments("{", "}"), token.start)
        if token.text != "(" and token.text != "." and token.kind not in ("text", "number", "name"):
            raise self.unexpected()
        self._take()
        if token.text == "(":
            return replace(self.expression(), start=token.start, end=self._want(")").end)
        if token.text == ".":
            raise Unparsed("a name starts with a dot; write it without", token.start)
        # the library knows the escapes of texts and the forms of numbers
        if token.kind in ("text", "number"):
            # the smallest whole number has no positive one
            if token.text == str(2**63):
                value = 2**63
            else:
                value = cel_library().compile(token.text).execute()
            return self._node("literal", value, (), token.start)
        if token.text in WORDS:
            return self._node("literal", WORDS[token.text], (), token.start)
        if not self._is("("):
            return self._node("name", token.text, (), token.start)
        arguments = self._arguments("(", ")")
        has = token.text == "has" and len(arguments) == 1
        return self._node("has" if has else "call", token.text, arguments, token.start)


# Where the library differs from CEL, functions of ours take the place of its own. A function of
# ours cannot have the name of one of the library's, so calls are written in other words before they
# are compiled.

_BOUND = "agac_value"
_REWRITTEN = frozenset({"size", "string", "timestamp"})
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt "
    r"][0-9]{2}:[0-9]{2}:[0-9]{2})([.][0-9]+)?([+-][0-9]{2}:[0-9]{2})"
)


class CelProgram:
    """An expression that the library accepts, ready to be computed as CEL says. Raises ValueError
    for a text that it does not accept, and Unparsed."""

    def __init__(self, text: str) -> None:
        self._program = cel_library().compile(text)
        tree = parse(text)
        self._calls_ours = any(
            node.kind in ("call", "method") and node.value in _REWRITTEN for node in tree.walk()
        )
        if self._calls_ours:
            self._program = cel_library().compile(_in_other_words(tree, text))

    def execute(self, values: Mapping[str, Any]) -> Any:
        """Evaluates the expression for these values. Raises what the library raises."""
        if not self._calls_ours:
            return self._program.execute(values)
        context = cel_library().Context(variables=values, functions=_FUNCTIONS)
        return self._program.execute(context)


def _in_other_words(tree: CelNode, text: str) -> str:
    """Returns the text of an expression, with calls of ours in place of what the library computes
    otherwise than CEL says."""
    has_times = any(
        node.kind == "call" and node.value in ("timestamp", "duration") for node in tree.walk()
    )

    def written(node: CelNode) -> str:
        if node.kind in ("call", "method") and node.value in _REWRITTEN and len(node.parts) == 1:
            argument = written(node.parts[0])
            if node.value == "timestamp":
                return f"timestamp(agac_in_utc({argument}))"
            if is_plain_way(node.parts[0]):
                return _by_kind(node.value, argument, has_times)
            # computed once
            return f"[{argument}].map({_BOUND}, {_by_kind(node.value, _BOUND, has_times)})[0]"
        pieces = list[str]()
        at = node.start
        for part in node.parts:
            pieces += [text[at : part.start], written(part)]
            at = part.end
        return "".join((*pieces, text[at : node.end]))

    return written(tree)


def is_plain_way(node: CelNode) -> bool:
    """True if a part only names a value, so that it can be written twice: that takes less than to
    copy the value."""
    if node.kind == "index":
        key = node.parts[1]
        return is_plain_way(node.parts[0]) and (key.kind == "literal" or is_plain_way(key))
    return node.kind == "name" or (node.kind == "select" and is_plain_way(node.parts[0]))


def _by_kind(function: str, value: str, has_times: bool) -> str:
    """Returns a call of `size` or `string` on a value, by the kind of the value."""
    if function == "size":
        return f'(type({value}) == type("") ? agac_size({value}) : size({value}))'
    text = f"string({value})"
    if has_times:
        is_duration = f'type({value}) == type(duration("0s"))'
        is_time = f'type({value}) == type(timestamp("1970-01-01T00:00:00Z"))'
        text = (
            f"({is_duration} ? agac_seconds({value}) : {is_time} ? agac_time_text({text}) : {text})"
        )
    return f'(type({value}) == type(true) ? ({value} ? "true" : "false") : {text})'


def _in_utc(value: Any) -> Any:
    """Returns a time with an offset as the same time in UTC, in which CEL's functions read it.
    What is none is left as it is, for the library to refuse: it writes a line to a log where a
    function raises."""
    moment = _INSTANT.fullmatch(value) if isinstance(value, str) else None
    if moment is None:
        return value
    seconds, fraction, offset = moment.groups()
    try:
        shifted = datetime.fromisoformat(seconds.upper() + offset).astimezone(UTC)
    except (ValueError, OverflowError):
        return value
    return f"{shifted.replace(tzinfo=None).isoformat()}{fraction or ''}Z"


def _time_text(text: str) -> str:
    """Returns a time in UTC as CEL writes it, `2026-01-31T12:00:00.5Z`; `text` is what the library
    writes."""
    moment, point, fraction = text.removesuffix("+00:00").partition(".")
    fraction = fraction.rstrip("0")
    return f"{moment}{point if fraction else ''}{fraction}Z"


def _seconds(value: timedelta) -> str:
    """Returns a duration as CEL writes it: `5400s`, `-1.5s`."""
    seconds = format(Decimal(value // timedelta(microseconds=1)) / 1_000_000, "f")
    return f"{seconds.rstrip('0').rstrip('.') if '.' in seconds else seconds}s"


_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "agac_size": len,  # of a text in characters: the library counts bytes
    "agac_in_utc": _in_utc,
    "agac_seconds": _seconds,
    "agac_time_text": _time_text,
}
