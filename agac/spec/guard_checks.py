"""What is wrong with guards before a run: text that is no CEL, unknown names, comparisons that are
never true."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from agac.core.errors import Problem, Where, did_you_mean, listed, nearest
from agac.spec.cel import (
    MACROS,
    TYPES,
    WORDS,
    CelNode,
    Chain,
    Token,
    Unparsed,
    cel_library,
    parse,
    shown,
    spot,
    tokens,
)
from agac.spec.json_schema import NUMBERS, TEXT, FieldShape, allows, kinds_in_words, kinds_of
from agac.spec.templates import ROW, VARS

MAX_LENGTH = 10_000  # characters of a guard: a list of a thousand ids fits
METHODS = ("contains", "startsWith", "endsWith", "matches")  # functions of texts
_CONVERSIONS = ("int", "uint", "double", "string", "bytes", "timestamp", "duration", "type", "dyn")
_GETTERS = (
    "getFullYear",
    "getMonth",
    "getDate",
    "getDayOfMonth",
    "getDayOfYear",
    "getDayOfWeek",
    "getHours",
    "getMinutes",
    "getSeconds",
    "getMilliseconds",
)
FUNCTIONS = ("size", "has", *METHODS, *MACROS, *_CONVERSIONS, *_GETTERS)
"""Everything that guards can call: CEL's own functions, as far as the library has them."""

_OTHER_FUNCTIONS = {
    "len": "size(x)",
    "length": "size(x)",
    "str": "string(x)",
    "float": "double(x)",
    "any": "x.exists(item, …)",
    "includes": "x.contains(…)",
    "bool": 'x == "true"',
    **dict.fromkeys(("lower", "upper", "lowerAscii", "upperAscii"), 'x.matches("(?i)^yes$")'),
    **dict.fromkeys(("toLowerCase", "casefold"), 'x.matches("(?i)^yes$")'),
    **dict.fromkeys(("strip", "trim"), r'x.matches("^\\s*yes\\s*$")'),
    **dict.fromkeys(("match", "search", "regex", "fullmatch"), 'x.matches("^[a-z]+$")'),
}
_OTHER_LITERALS = {
    **dict.fromkeys(("None", "nil", "NULL", "Null", "undefined", "NONE"), "null"),
    **dict.fromkeys(("True", "TRUE"), "true"),
    **dict.fromkeys(("False", "FALSE"), "false"),
}
_RESERVED = frozenset(
    {
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "namespace",
        "package",
        "return",
        "var",
        "void",
        "while",
    }
)
_OTHER_OPERATORS = {
    "and": "`and` is written `&&`",
    "or": "`or` is written `||`",
    "not": "`not` is written `!`: `!x`, and `!(x in y)` for `x not in y`",
    "is": "`is` is written `==`: `x == null`",
}
_OTHER_SIGNS = {
    "=": "`=` compares nothing; write `==`",
    "&": "a single `&` means nothing; write `&&`",
    "|": "a single `|` means nothing; write `||`",
    ";": "`;` has no meaning here; remove it",
}
_ESCAPE = re.compile(
    r"\\(?:[abfnrtv\\?\"'`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"
)
_PAIRS = {")": "(", "]": "[", "}": "{"}
# where something wrong begins, where reading goes on after it, and the sentence about it
_Slip = tuple[int, int, str]


def text_faults(text: str) -> Iterator[str]:
    """Everything that is wrong with a guard whatever the rows have."""
    if not text.strip():
        yield 'the guard is empty; write a condition, as `FIELD == "value"`, or leave `when` out'
        return
    if len(text) > MAX_LENGTH:
        yield (
            f"the guard is longer than {MAX_LENGTH:,} characters; compute a field in a "
            "python stage and test that"
        )
        return
    try:
        cel_library().compile(text)
        tree = parse(text)
    except ValueError as refused:
        yield from refusals(text, str(refused))
    except Unparsed as unknown:
        message, offset = unknown.args
        yield f"{spot(text, offset)}: {message}"
    else:
        found = [fault for node in tree.walk() for fault in _node_faults(node, text)]
        yield from found or _type_faults(tree, text)
        if not found and _never_bool(tree):
            yield "the guard gives a value, not true or false; compare it with a value"


def _node_faults(node: CelNode, text: str) -> Iterator[str]:
    """Words, functions and patterns that CEL does not have."""
    at = spot(text, node.start)
    name = node.value
    if node.kind == "name" and (word := _OTHER_LITERALS.get(name)):
        yield f"{at}: CEL has no `{name}`; write `{word}`"
    if node.kind not in ("call", "method"):
        return
    method = node.kind == "method"
    count = len(node.parts) - method
    if name in MACROS:
        yield (
            f"{at}: `{name}` takes a list, a name for its element and an expression: "
            f"`x.{name}(item, item.ok)`"
        )
    elif name == "has":
        yield f"{at}: `has` takes one field: `has(row.name)`"
    elif name in METHODS or name in _GETTERS:
        if not method or count != (name in METHODS):
            yield (
                f"{at}: `{name}` is written after a dot: "
                f"`x.{name}({'…' if name in METHODS else ''})`"
            )
    elif name in _CONVERSIONS or name == "size":
        if count + method != 1 or (method and name != "size"):
            yield f"{at}: `{name}` takes one value: `{name}(x)`"
    elif name in _OTHER_FUNCTIONS:
        yield f"{at}: unknown function `{name}`; write `{_OTHER_FUNCTIONS[name]}`"
    else:
        yield f"{at}: unknown function `{name}`; {did_you_mean(name, FUNCTIONS, 'functions')}"
    if method and name == "matches" and node.parts[-1].kind == "literal":
        pattern = node.parts[-1]
        try:
            cel_library().compile(f'"".matches({text[pattern.start : pattern.end]})').execute()
        except RuntimeError as refused:
            reason = re.search(r"\nerror: (.+?)(?:\. Check function arguments|\n|\Z)", str(refused))
            if "size limit" in str(refused):
                large = "it is too large; repeat less in it"
            else:
                large = "its syntax is not known"
            why = reason[1] if reason else large
            yield f"{spot(text, pattern.start)}: {pattern.value!r} is no regular expression: {why}"


_DAY = "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
_DATE = re.compile(
    rf"{_DAY}|(?:19|20|21)[0-9]{{2}}-(?:0[1-9]|1[0-2])"
    r"|[0-9]{4}/[0-9]{1,2}/[0-9]{1,2}|[0-9]{1,2}(?P<sign>[-/])[0-9]{1,2}(?P=sign)[0-9]{4}"
)
_MOMENT = re.compile(
    rf"{_DAY}[Tt][0-9]{{2}}(?::[0-9]{{2}}){{0,2}}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{{2}}:?[0-9]{{2}})?"
)


_SIGNED_DIGITS = re.compile(r"[0-9]+([-/])[0-9]+(?:\1[0-9]+)*")
_LEADING_ZERO = re.compile(r"-?0[0-9]+")


def _is_no_sum(numbers: Sequence[str]) -> bool:
    """Whether nobody subtracts or divides such numbers: there are many, one begins with 0, or they
    come to less than 0 or to a fraction, as those of `555-1234` and `1/2`."""
    first, second = map(int, numbers[:2])
    return len(numbers) > 2 or first < second or any(number[0] == "0" for number in numbers)


def date_faults(tree: CelNode, text: str) -> Iterator[str]:
    """Dates and other texts of digits without quotes, which CEL computes: `2026-01-31` is 1994,
    `007` is 7."""
    literal = text[tree.start : tree.end].strip("()")
    written = "".join(literal.split())
    if tree.kind == "op" and tree.value in ("-", "/"):
        operation = "a subtraction" if tree.value == "-" else "a division"
        is_what = f"{spot(text, tree.start)}: `{written}` is {operation} of numbers"
        if _DATE.fullmatch(written):
            yield f'{is_what}; write a date in quotes: `"{written}"`'
            return
        if _SIGNED_DIGITS.fullmatch(literal) and _is_no_sum(literal.split(tree.value)):
            spaced = f" {tree.value} ".join(literal.split(tree.value))
            yield (
                f'{is_what}; write a text in quotes: `"{written}"`, and what is meant so '
                f"with spaces: `{spaced}`"
            )
            return
    if tree.kind == "literal" and _LEADING_ZERO.fullmatch(literal):
        is_number = f"{spot(text, tree.start)}: `{literal}` is the number {int(literal)}"
        yield f'{is_number}; write a text in quotes: `"{literal}"`'
        return
    for part in tree.parts:
        yield from date_faults(part, text)


def _type_faults(tree: CelNode, text: str) -> Iterator[str]:
    """`string` where it is no type: somebody has a field of that name."""
    operators = (node for node in tree.walk() if node.kind == "op")
    compared = [
        one
        for one in operators
        if any((part.kind, part.value) == ("call", "type") for part in one.parts)
    ]
    allowed = {name.start for node in compared for name in node.walk() if name.kind == "name"}
    for node in tree.walk():
        if node.kind == "name" and node.value in TYPES and node.start not in allowed:
            word = node.value
            yield (
                f"{spot(text, node.start)}: `{word}` is a type in CEL; write `row.{word}` "
                "for the field of that name"
            )


def _never_bool(tree: CelNode) -> bool:
    match tree.kind:
        case "literal":
            return type(tree.value) is not bool
        case "op":
            return tree.value in ("+", "-", "*", "/", "%")
        case "call" | "method":
            return tree.value in _GETTERS or (
                tree.value in (*_CONVERSIONS, "size") and tree.value != "dyn"
            )
        case "macro":
            return tree.value in ("map", "filter")
    return tree.kind in ("list", "map")


def refusals(text: str, refused: str) -> list[str]:
    """What is wrong with a text that the parser refused with these words, by place; at least one
    sentence."""
    slips = [f"{spot(text, start)}: {message}" for start, _, message in sorted(_slips(text))]
    return slips or [_where_it_stopped(text, refused)]


def _slips(text: str) -> Iterator[_Slip]:
    pieces = tokens(text)
    end = -1
    for before, piece, after in zip(
        [Token("start", "", -1), *pieces], pieces, [*pieces[1:], pieces[-1]], strict=False
    ):
        if piece.start < end:
            continue
        end = piece.end
        slip = _slip(text, before, piece, after)
        if slip:
            end = slip[1]
            yield slip
            # brackets may stand in a text that is never closed
            if piece.kind == "bad" and end == len(text):
                return
    opened: list[Token] = []
    for piece in (one for one in pieces if one.kind == "sign"):
        if piece.text in _PAIRS.values():
            opened.append(piece)
        elif piece.text in _PAIRS and (not opened or opened.pop().text != _PAIRS[piece.text]):
            yield (
                piece.start,
                piece.end,
                f"`{piece.text}` closes nothing; remove it, or add the `{_PAIRS[piece.text]}`",
            )
            return
    if opened:
        last = opened[-1]
        closing = next(right for right, left in _PAIRS.items() if left == last.text)
        yield last.start, last.end, f"`{last.text}` is never closed; add the `{closing}`"


def _slip(text: str, before: Token, piece: Token, after: Token) -> _Slip | None:
    """What is wrong with a piece of this text, after the one before it and before the one after
    it."""
    word = piece.text
    is_member = before.text == "."
    end = piece.end
    if piece.kind == "number" and (moment := _MOMENT.match(text, piece.start)):
        return piece.start, moment.end(), f'a time is written in quotes: `timestamp("{moment[0]}")`'
    match piece.kind:
        case "name" if (
            word in _OTHER_OPERATORS
            and not is_member
            and after.text != "."
            and before.text != "not"
        ):
            message = _OTHER_OPERATORS[word]
        case "name" if is_member and word in ("in", *WORDS):
            message = f'`{word}` is a word of CEL; write `["{word}"]` for the field'
        case "name" if not is_member and word in _RESERVED:
            message = f'`{word}` is a reserved word of CEL; write `row["{word}"]` for the field'
        case "text" if (
            not re.match("[bB]?[rR]", word) and (wrong := _ESCAPE.sub("  ", word).find("\\")) >= 0
        ):
            slip = word[wrong : wrong + 2]
            message = (
                f"a text has `{slip}`, which stands for nothing; write `\\{slip}`, or r "
                "before the text"
            )
        case "number" if word.startswith(".") and before.end == piece.start:
            message = f"an element of a list is written `[{word[1:]}]`, counted from 0"
        case "sign" if (
            word in ("<", "==", "!=") and after.start == end and after.text in (">", "=")
        ):
            message = f"`{word}{after.text}` is written `{word.replace('<', '!=')}`"
            end = after.end
        case "sign" if word == "?" and (is_member or after.text in (".", "?")):
            message = "`?.` and `??` do not exist here; write `has(x.y) && x.y …`"
            end = after.end
        case "bad":
            # a character that begins nothing, and the word that it ends
            at = piece.start
            sign = piece.text
            rest = text[piece.start :]
            placeholder = re.match(r"\$\{([^{}\n]*)\}?", rest)
            if placeholder:
                name = placeholder[1].strip() or "x"
                return (
                    at,
                    at + placeholder.end(),
                    f"`{placeholder[0]}` stands in prompts; in a guard write `{name}`",
                )
            if sign in "\"'":
                return at, len(text), f"a text is never closed: {rest[:24]!r}; add the {sign}"
            letters = re.match(r"\w+", rest)
            if letters:
                if before.kind == "name" and before.end == at and sign.isalnum():
                    start = before.start
                else:
                    start = at
                name = text[start : at + letters.end()]
                if text[:start].endswith("."):
                    written = f'["{name}"]` for `.{name}'
                else:
                    written = f'row["{name}"]'
                return (
                    start,
                    at + letters.end(),
                    f"names have the letters A to Z, digits and _; write `{written}`",
                )
            quoted = re.match(r"`([^`\n]+)`", rest)
            if quoted:
                return at, at + quoted.end(), f'a name in backticks is written `row["{quoted[1]}"]`'
            message = _OTHER_SIGNS.get(sign, f"`{sign}` means nothing in CEL; remove it")
            if sign.isspace():
                message = f"the blank U+{ord(sign):04X} is none that CEL knows; write a plain space"
            return at, piece.end, message
        case _:
            return None
    return piece.start, end, message


def _where_it_stopped(text: str, refused: str) -> str:
    found = re.search(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)", refused)
    if found is None:
        return (
            "the guard is no CEL expression; see the guide's page on operators for how "
            "conditions are written"
        )
    line = int(found[1])
    column = int(found[2])
    reason = found[3]
    offset = min(sum(len(one) + 1 for one in text.split("\n")[: line - 1]) + column - 1, len(text))
    at = spot(text, offset)
    rest = text[offset:].strip()
    if "literal" in reason:
        return (
            f"{at}: the number is larger than 64 bits can hold; compare with a smaller "
            "one, or with a double (1e20)"
        )
    if "has() macro" in reason:
        return f'{at}: `has` takes a field: `has(row.name)`, or `"odd name" in row`'
    if "simple name" in reason:
        return f"{at}: the first argument names the element: `x.exists(item, item.ok)`"
    if not rest:
        last = [piece.text for piece in tokens(text)][-2:][0]
        return f"{at}: the guard ends too early; something is missing after `{last}`"
    before = tokens(text[:offset])[:-1]
    if not before or before[-1].kind == "sign" or before[-1].text == "in":
        what = "a value"
    else:
        what = "`==`, `&&` or `||`"
    return f"{at}: `{tokens(rest)[0].text}` is not expected here; {what} may be missing before it"


# What it reads: the columns, variables and results that it names, and comparisons that no row can
# meet.

_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
_Finding = tuple[str, bool]  # a sentence, and whether it is only a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardScope:
    """The names and fields that a stage's guard, the `text` that stands at `where`, can read.
    `columns`: the input's declared ones; `closed`: rows have no others, else an unknown name is
    only a warning. `fields`: what is known of columns. `stages`: those upstream, each with the
    schema of its result: None for plain text, `{}` when nothing is known of it. `others`: stages
    of the workflow that are not upstream. `extra`: as `rows_count`. `every_stage` has the names of
    both: among the same names at each stage a like one is found fast."""

    text: str
    where: Where
    columns: Collection[str]
    closed: bool
    stages: Mapping[str, Mapping[str, Any] | None]
    variables: Collection[str]
    others: Container[str] = ()
    extra: Collection[str] = ()
    every_stage: Iterable[str] | None = None
    fields: Mapping[str, FieldShape]

    def problems(self) -> list[Problem]:
        """Everything in the guard that no row can satisfy, at the guard's place."""
        found = dict.fromkeys(
            (f"{spot(self.text, node.start)}: {message}", is_warning)
            for node, findings in self._judged(parse(self.text))
            for message, is_warning in findings
        )
        return [
            Problem(self.where, message, "warning" if warn else "error") for message, warn in found
        ]

    def _judged(self, tree: CelNode) -> Iterator[tuple[CelNode, Iterator[_Finding]]]:
        """The parts that may be wrong: names and fields, conditions, then comparisons and elements
        of lists."""
        yield from ((node, self._name(chain)) for chain, node in tree.references().items())
        yield from ((node, self._condition(node)) for node in _conditions(tree))
        for node in tree.computed():
            if node.way is not None and node.way != node.chain:
                yield node, self._element(node.way)
            elif node.kind == "op" and len(node.parts) == 2:
                yield node, self._compared(node)
        yield from ((node, self._computed(node)) for node in _sums(tree))

    def _written(self, node: CelNode) -> str:
        return self.text[node.start : node.end]

    def _name(self, chain: Chain) -> Iterator[_Finding]:
        head = str(chain[0])
        rest = chain[1:]
        if head in self.columns and (head in self.stages or head in (*self.extra, ROW, VARS)):
            if head in self.stages:
                other = f"the result of stage {head!r}"
            else:
                other = f"agac's own {head!r}"
            yield (
                f"`{head}` could be the input's column or {other}; rename the one or the other",
                False,
            )
        elif head in self.stages:
            yield from self._result(head, rest)
        elif head == ROW and rest and isinstance(rest[0], str):
            yield from self._column(rest[0], rest[1:], f"{ROW}.")
        elif head == VARS:
            if rest and isinstance(rest[0], str) and rest[0] not in self.variables:
                yield (
                    (
                        f"`{shown((VARS, rest[0]))}`: no such variable; "
                        f"{did_you_mean(rest[0], self.variables)}"
                    ),
                    False,
                )
        elif head in self.others:
            yield f"stage {head!r} is not upstream of this one; add it to `needs`", False
        elif head not in (*self.extra, ROW, VARS):
            yield from self._column(head, rest, "")

    def _column(self, name: str, rest: Chain, prefix: str) -> Iterator[_Finding]:
        """A field of the row, by its own name or behind `row.`."""
        if name in self.columns:
            if rest and self.fields.get(name) == TEXT:
                yield (
                    (
                        f"`{shown((name, *rest))}`: the column {name!r} holds text, which has no "
                        "fields"
                    ),
                    False,
                )
            elif name in self.fields:
                yield from _inside(self.fields[name], (ROW, name) if prefix else (name,), rest)
            return
        stages = tuple(self.stages if self.every_stage is None else self.every_stage)
        # CEL reads `name` of a name with a blank or a `-`
        odd = next(
            filter(self._is_known, _named_by_part((*self.columns, *stages)).get(name, ())), None
        )
        known = tuple(self.columns)
        among = None
        if not prefix:
            own = (*self.extra, ROW, *([VARS] if self.variables else []))
            known = tuple(dict.fromkeys((*self.columns, *stages, *own)))
            among = _AnyOf(self.columns, self.stages, own)
        written = f"`{shown((ROW, name)) if prefix else name}`"
        if odd in self.stages and not prefix:
            yield (
                f"{written}: a guard reads the `-` of stage {odd!r} as minus; rename the stage",
                False,
            )
        elif odd and not prefix:
            yield (
                f"{written}: no such field; write `{shown((ROW, odd))}` for the column {odd!r}",
                not self.closed,
            )
        elif self.closed:
            yield f"{written}: no such field; {did_you_mean(name, known, among=among)}", False
        elif near := nearest(name, known, cutoff=0.8, among=among):
            yield (
                (
                    f"{written} is no known name, unless rows have such a field; did you mean "
                    f"'{near}'?"
                ),
                True,
            )

    def _is_known(self, name: str) -> bool:
        return name in self.columns or name in self.stages

    def _result(self, stage: str, rest: Chain) -> Iterator[_Finding]:
        body = self.stages[stage]
        if rest and body is None:
            message = (
                f"stage {stage!r} answers with plain text, which has no fields; give it an "
                "output_schema"
            )
            yield f"`{shown((stage, *rest))}`: {message}", False
        elif rest and body is not None:
            yield from _inside(FieldShape(body), (stage,), rest)

    def _element(self, way: Chain) -> Iterator[_Finding]:
        """A way into an element of a list."""
        head = str(way[0])
        if head in self.stages:
            yield from self._result(head, way[1:])
        elif head in self.fields and self.fields[head] != TEXT:
            yield from _inside(self.fields[head], (head,), way[1:])

    def _condition(self, node: CelNode) -> Iterator[_Finding]:
        schemas = self._schemas(node)
        if schemas is not None and not any(
            allows(one, flag) for one in schemas for flag in (True, False)
        ):
            yield (
                f"`{self._written(node).strip()}` is never true or false; compare it with a value",
                False,
            )

    def _compared(self, node: CelNode) -> Iterator[_Finding]:
        """Comparisons with written values that the schemas rule out."""
        (left, right), sign = node.parts, node.value
        if sign == "in" and right.kind == "list":
            pairs = [(left, one) for one in right.parts]
        elif sign in _MIRRORED:
            pairs = [(left, right)]
            if left.kind == "literal":
                pairs = [(right, left)]
                sign = _MIRRORED[sign]
        else:
            return
        for side, written in pairs:
            if (
                written.kind != "literal"
                or written.value is None
                or (schemas := self._schemas(side)) is None
            ):
                continue
            message = _impossible(sign, self._written(side), schemas, written.value)
            if message:
                yield f"`{self._written(node)}` {message}", False

    def _computed(self, node: CelNode) -> Iterator[_Finding]:
        """Arithmetic with a field that may be a whole number or not: CEL computes with numbers of
        one kind only."""
        parts = list(_operands(node))
        either = [part for part in parts if self._is_either_number(part)]
        if not either:
            return
        name = self._written(either[0])
        if node.value == "%":
            remedy = f"int({name})"
            reason = "`%` takes whole numbers"
        else:
            remedy = doubled(node, self.text)
            reason = "CEL computes with two whole numbers or with two that have a point"
        yield (
            (
                f"`{self._written(node)}` fails in some rows: {reason}, and {name} may be either; "
                f"write `{remedy}`"
            ),
            True,
        )

    def _is_either_number(self, node: CelNode) -> bool:
        schemas = self._schemas(node)
        kinds = frozenset().union(*map(kinds_of, schemas or ()))
        return "number" in kinds and kinds <= NUMBERS | {"null"}

    def _schemas(self, node: CelNode) -> Sequence[Mapping[str, Any]] | None:
        """What a way may hold: its alternatives; None when nothing is known of it."""
        if node.way is None:
            return None
        head, *rest = map(str, node.way)
        if head in self.stages:
            body = self.stages[head]
            if body is None:
                return None if rest else [TEXT.body]
            return FieldShape(body).values(rest)
        if head == ROW:
            head, *rest = rest or [""]
        shape = self.fields.get(head) if head in self.columns else None
        return shape.values(rest) if shape else None


class _AnyOf(Collection[str]):
    """What is in one of these, in their order."""

    def __init__(self, *parts: Collection[str]) -> None:
        self._parts = parts

    def __contains__(self, name: object) -> bool:
        return any(name in part for part in self._parts)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(chain.from_iterable(self._parts)))

    def __len__(self) -> int:
        return len([*iter(self)])


@lru_cache(maxsize=4)
def _named_by_part(names: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """The names that consist of several words, by each word of theirs."""
    found: dict[str, list[str]] = {}
    for name in names:
        words = name.replace("-", " ").split()
        for word in dict.fromkeys(words if len(words) > 1 else ()):
            found.setdefault(word, []).append(name)
    return found


def _inside(shape: FieldShape, start: Chain, rest: Chain) -> Iterator[_Finding]:
    """What a way asks for that is not there; `start` is how the place is written at which `shape`
    stands."""
    missing = shape.missing(rest)
    if missing is not None:
        depth, names = missing
        before = shown((*start, *rest[:depth]))
        known = [shown((before, name)) for name in sorted(names)]
        if names:
            hint = did_you_mean(shown((before, rest[depth])), known)
        else:
            hint = f"{before} is a single value"
        yield f"`{shown((*start, *rest[: depth + 1]))}`: no such field; {hint}", False


def _conditions(node: CelNode) -> Iterator[CelNode]:
    """The parts that have to be true or false for the whole to be."""
    if node.kind == "op" and node.value in ("&&", "||", "!", "?:"):
        for part in node.parts:
            yield from _conditions(part)
    else:
        yield node


ARITHMETIC = ("+", "-", "*", "/", "%")


def _sums(node: CelNode) -> Iterator[CelNode]:
    """The arithmetic of an expression, each sum as a whole, also in what macros compute of
    elements."""
    if node.kind == "op" and node.value in ARITHMETIC and len(node.parts) == 2:
        yield node
        for part in _operands(node):
            yield from _sums(part)
        return
    for part in node.parts if node.chain is None else ():
        yield from _sums(part)


def _operands(node: CelNode) -> Iterator[CelNode]:
    """What is added, multiplied and so on, in sums of sums too."""
    for part in node.parts:
        if part.kind == "op" and part.value in ARITHMETIC and len(part.parts) == 2:
            yield from _operands(part)
        else:
            yield part


def doubled(node: CelNode, text: str) -> str:
    """Arithmetic as it is written with numbers that have a point: `double(x) + 1.0`."""
    written = text[node.start : node.end].strip()
    if node.kind == "op" and node.value in ARITHMETIC and len(node.parts) == 2:
        left, right = (doubled(part, text) for part in node.parts)
        between = text[node.parts[0].end : node.parts[1].start]
        before = text[node.start : node.parts[0].start]
        after = text[node.parts[1].end : node.end]
        return f"{before}{left}{between}{right}{after}"
    if node.kind == "literal":
        digits = written.rstrip("uU")
        if type(node.value) is int and digits.lstrip("-").isdecimal():
            return f"{digits}.0"
        return written
    if (node.kind, node.value) == ("call", "double"):
        return written
    return f"double({written})"


def _impossible(
    sign: str, name: str, schemas: Sequence[Mapping[str, Any]], value: Any
) -> str | None:
    """What is wrong with comparing a value of these schemas with `value`, None when it may be
    met."""
    kinds = frozenset().union(*map(kinds_of, schemas))
    number = type(value) in (int, float)
    if number:
        kind = "number"
    elif isinstance(value, str):
        kind = "string"
    else:
        kind = "boolean"
    if sign in ("==", "!=", "in"):
        if any(allows(one, value) for one in schemas):
            return None
        ends = {
            "!=": "is always true",
            "in": "names a value that never comes",
            "==": "is never true",
        }
        end = ends[sign]
    elif kinds & (NUMBERS if number else {kind}):
        return None
    else:
        end = "cannot be compared"
    choices = [one for schema in schemas for one in schema.get("enum", ())]
    if choices and all("enum" in schema for schema in schemas):
        if kind == "string":
            near = nearest(value, [one for one in choices if isinstance(one, str)])
        else:
            near = None
        if near:
            meant = f"; did you mean {json.dumps(near, ensure_ascii=False)}?"
        else:
            meant = ""
        return (
            f"{end}: {name} is one of "
            f"{listed(json.dumps(one, ensure_ascii=False) for one in choices)}{meant}"
        )
    is_text = any("format" in schema for schema in schemas)  # such as a date, which is no number
    remedies = {
        ("string", "number"): "; write the value in quotes"
        if is_text
        else f"; write `double({name})`",
        ("string", "boolean"): f'; write `{name} == "{json.dumps(value)}"`',
        ("boolean", "string"): f"; write `{name}` or `!{name}`",
        ("number", "string"): "; write the number without quotes",
    }
    if kinds <= NUMBERS:
        single = "number"
    elif len(kinds) == 1:
        single = next(iter(kinds))
    else:
        single = ""
    return (
        f"{end}: {name} is "
        f"{kinds_in_words(kinds) or 'something else'}{remedies.get((single, kind), '')}"
    )
