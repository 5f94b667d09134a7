"""Finds what is wrong with the text of a guard, whatever the rows have: text that is no CEL,
unknown functions, dates without quotes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from agac.core.errors import did_you_mean
from agac.spec.cel import (
    MACROS,
    TYPES,
    WORDS,
    CelNode,
    Token,
    Unparsed,
    cel_library,
    parse,
    spot,
    tokens,
)

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

_VALUE_FUNCTIONS = {*_GETTERS, *_CONVERSIONS, "size"} - {"dyn"}
"""Functions whose result is never true or false."""

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


class _Slip(NamedTuple):
    """A mistake in the spelling of a guard."""

    start: int
    """The character, from 0, at which it begins."""
    end: int
    """The character at which reading continues."""
    message: str


def text_faults(text: str) -> Iterator[str]:
    """Yields everything that is wrong with a guard whatever the rows have."""
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
        yield from _tree_faults(tree, text)


def _tree_faults(tree: CelNode, text: str) -> Iterator[str]:
    """Yields what is wrong with an expression that the parser takes."""
    faults = [fault for node in tree.walk() for fault in _node_faults(node, text)]
    if faults:
        yield from faults
        return
    yield from _type_faults(tree, text)
    if _never_bool(tree):
        yield "the guard gives a value, not true or false; compare it with a value"


def _node_faults(node: CelNode, text: str) -> Iterator[str]:
    """Yields words, functions and patterns that CEL does not have."""
    at = spot(text, node.start)
    if node.kind == "name" and node.value in _OTHER_LITERALS:
        yield f"{at}: CEL has no `{node.value}`; write `{_OTHER_LITERALS[node.value]}`"
    if node.kind not in ("call", "method"):
        return
    fault = _call_fault(node)
    if fault is not None:
        yield f"{at}: {fault}"
    is_matches = node.kind == "method" and node.value == "matches"
    if is_matches and node.parts[-1].kind == "literal":
        yield from _pattern_faults(node.parts[-1], text)


def _call_fault(node: CelNode) -> str | None:
    """Returns the fault of a call: an unknown function, or one that is called in another way."""
    name = node.value
    is_method = node.kind == "method"
    arguments = len(node.parts) - is_method
    if name in MACROS:
        return (
            f"`{name}` takes a list, a name for its element and an expression: "
            f"`x.{name}(item, item.ok)`"
        )
    if name == "has":
        return "`has` takes one field: `has(row.name)`"
    if name in METHODS:
        is_right = is_method and arguments == 1
        return None if is_right else f"`{name}` is written after a dot: `x.{name}(…)`"
    if name in _GETTERS:
        is_right = is_method and arguments == 0
        return None if is_right else f"`{name}` is written after a dot: `x.{name}()`"
    if name in _CONVERSIONS:
        is_right = not is_method and arguments == 1
        return None if is_right else f"`{name}` takes one value: `{name}(x)`"
    if name == "size":
        is_right = len(node.parts) == 1
        return None if is_right else "`size` takes one value: `size(x)`"
    if name in _OTHER_FUNCTIONS:
        return f"unknown function `{name}`; write `{_OTHER_FUNCTIONS[name]}`"
    return f"unknown function `{name}`; {did_you_mean(name, FUNCTIONS, 'functions')}"


def _pattern_faults(pattern: CelNode, text: str) -> Iterator[str]:
    """Yields why the library refuses the written regular expression `pattern`."""
    try:
        cel_library().compile(f'"".matches({text[pattern.start : pattern.end]})').execute()
    except RuntimeError as refused:
        error = str(refused)
        reason = re.search(r"\nerror: (.+?)(?:\. Check function arguments|\n|\Z)", error)
        if reason:
            why = reason[1]
        elif "size limit" in error:
            why = "it is too large; repeat less in it"
        else:
            why = "its syntax is not known"
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
    """True if these numbers are a text, not a sum: there are many, one begins with 0, or they come
    to less than 0 or to a fraction, as those of `555-1234` and `1/2`."""
    if len(numbers) > 2 or any(number[0] == "0" for number in numbers):
        return True
    first, second = map(int, numbers)
    return first < second


def date_faults(tree: CelNode, text: str) -> Iterator[str]:
    """Yields dates and other texts of digits without quotes, which CEL computes: `2026-01-31` is
    1994, `007` is 7."""
    literal = text[tree.start : tree.end].strip("()")
    if tree.kind == "op" and tree.value in ("-", "/"):
        fault = _sum_fault(literal, tree.value)
    elif tree.kind == "literal" and _LEADING_ZERO.fullmatch(literal):
        fault = f'`{literal}` is the number {int(literal)}; write a text in quotes: `"{literal}"`'
    else:
        fault = None
    if fault is not None:
        yield f"{spot(text, tree.start)}: {fault}"
        return
    for part in tree.parts:
        yield from date_faults(part, text)


def _sum_fault(literal: str, sign: str) -> str | None:
    """Returns the fault of a subtraction or division that is a date or another text of digits."""
    written = "".join(literal.split())
    operation = "a subtraction" if sign == "-" else "a division"
    is_what = f"`{written}` is {operation} of numbers"
    if _DATE.fullmatch(written):
        return f'{is_what}; write a date in quotes: `"{written}"`'
    numbers = literal.split(sign)
    if _SIGNED_DIGITS.fullmatch(literal) and _is_no_sum(numbers):
        spaced = f" {sign} ".join(numbers)
        return (
            f'{is_what}; write a text in quotes: `"{written}"`, and what is meant so with spaces: '
            f"`{spaced}`"
        )
    return None


def _type_faults(tree: CelNode, text: str) -> Iterator[str]:
    """Yields words such as `string` where no type belongs: somebody has a field of that name."""
    allowed = {
        name.start
        for node in tree.walk()
        if _compares_types(node)
        for name in node.walk()
        if name.kind == "name"
    }
    for node in tree.walk():
        if node.kind == "name" and node.value in TYPES and node.start not in allowed:
            word = node.value
            yield (
                f"{spot(text, node.start)}: `{word}` is a type in CEL; write `row.{word}` "
                "for the field of that name"
            )


def _compares_types(node: CelNode) -> bool:
    """True for an operation such as `type(x) == string`."""
    if node.kind != "op":
        return False
    return any((part.kind, part.value) == ("call", "type") for part in node.parts)


def _never_bool(tree: CelNode) -> bool:
    """True if the expression gives a value that is never true or false."""
    match tree.kind:
        case "literal":
            return type(tree.value) is not bool
        case "op":
            return tree.value in ("+", "-", "*", "/", "%")
        case "call" | "method":
            return tree.value in _VALUE_FUNCTIONS
        case "macro":
            return tree.value in ("map", "filter")
    return tree.kind in ("list", "map")


def refusals(text: str, refused: str) -> list[str]:
    """Explains why the parser refused a text with the words `refused`, by place; at least one
    sentence."""
    slips = [f"{spot(text, slip.start)}: {slip.message}" for slip in sorted(_slips(text))]
    return slips or [_where_it_stopped(text, refused)]


def _slips(text: str) -> Iterator[_Slip]:
    """Yields the spelling mistakes of a text, then a bracket without its other half."""
    pieces = tokens(text)
    previous = [Token("start", "", -1), *pieces]
    following = [*pieces[1:], pieces[-1]]
    end = -1
    for before, piece, after in zip(previous, pieces, following, strict=False):
        if piece.start < end:
            continue
        end = piece.end
        slip = _slip(text, before, piece, after)
        if slip is None:
            continue
        end = slip.end
        yield slip
        # brackets may belong to a text that is never closed
        if piece.kind == "bad" and end == len(text):
            return
    bracket = _unpaired_bracket(pieces)
    if bracket is not None:
        yield bracket


def _unpaired_bracket(pieces: Iterable[Token]) -> _Slip | None:
    """Returns the first bracket that closes nothing, or else the last one that is never closed."""
    opened: list[Token] = []
    for piece in pieces:
        if piece.kind != "sign":
            continue
        if piece.text in _PAIRS.values():
            opened.append(piece)
        elif piece.text in _PAIRS:
            opening = _PAIRS[piece.text]
            if not opened or opened.pop().text != opening:
                message = f"`{piece.text}` closes nothing; remove it, or add the `{opening}`"
                return _Slip(piece.start, piece.end, message)
    if not opened:
        return None
    last = opened[-1]
    closing = next(right for right, left in _PAIRS.items() if left == last.text)
    return _Slip(last.start, last.end, f"`{last.text}` is never closed; add the `{closing}`")


def _slip(text: str, before: Token, piece: Token, after: Token) -> _Slip | None:
    """Returns the mistake in one piece of a text, between the pieces before and after it."""
    match piece.kind:
        case "number":
            return _number_slip(text, before, piece)
        case "name":
            return _name_slip(before, piece, after)
        case "text":
            return _escape_slip(piece)
        case "sign":
            return _sign_slip(before, piece, after)
        case "bad":
            return _character_slip(text, before, piece)
    return None


def _number_slip(text: str, before: Token, number: Token) -> _Slip | None:
    """Returns a time without quotes, or an element of a list written as `.0`."""
    moment = _MOMENT.match(text, number.start)
    if moment:
        message = f'a time is written in quotes: `timestamp("{moment[0]}")`'
        return _Slip(number.start, moment.end(), message)
    if number.text.startswith(".") and before.end == number.start:
        message = f"an element of a list is written `[{number.text[1:]}]`, counted from 0"
        return _Slip(number.start, number.end, message)
    return None


def _name_slip(before: Token, name: Token, after: Token) -> _Slip | None:
    """Returns a word of another language, or a reserved word as the name of a field."""
    word = name.text
    if before.text == ".":
        if word not in ("in", *WORDS):
            return None
        message = f'`{word}` is a word of CEL; write `["{word}"]` for the field'
    elif word in _OTHER_OPERATORS and after.text != "." and before.text != "not":
        message = _OTHER_OPERATORS[word]
    elif word in _RESERVED:
        message = f'`{word}` is a reserved word of CEL; write `row["{word}"]` for the field'
    else:
        return None
    return _Slip(name.start, name.end, message)


def _escape_slip(quoted: Token) -> _Slip | None:
    """Returns a backslash in a text that escapes nothing."""
    if re.match("[bB]?[rR]", quoted.text):
        return None
    at = _ESCAPE.sub("  ", quoted.text).find("\\")
    if at < 0:
        return None
    escape = quoted.text[at : at + 2]
    message = (
        f"a text has `{escape}`, which stands for nothing; write `\\{escape}`, or r before the text"
    )
    return _Slip(quoted.start, quoted.end, message)


def _sign_slip(before: Token, sign: Token, after: Token) -> _Slip | None:
    """Returns an operator of another language: `===`, `<>`, `?.` or `??`."""
    word = sign.text
    is_joined = after.start == sign.end and after.text in (">", "=")
    if word in ("<", "==", "!=") and is_joined:
        message = f"`{word}{after.text}` is written `{word.replace('<', '!=')}`"
    elif word == "?" and (before.text == "." or after.text in (".", "?")):
        message = "`?.` and `??` do not exist here; write `has(x.y) && x.y …`"
    else:
        return None
    return _Slip(sign.start, after.end, message)


def _character_slip(text: str, before: Token, bad: Token) -> _Slip:
    """Returns a character that begins nothing in CEL, with the word that it is part of."""
    start = bad.start
    character = bad.text
    rest = text[start:]
    placeholder = re.match(r"\$\{([^{}\n]*)\}?", rest)
    if placeholder:
        name = placeholder[1].strip() or "x"
        message = f"`{placeholder[0]}` stands in prompts; in a guard write `{name}`"
        return _Slip(start, start + placeholder.end(), message)
    if character in "\"'":
        message = f"a text is never closed: {rest[:24]!r}; add the {character}"
        return _Slip(start, len(text), message)
    letters = re.match(r"\w+", rest)
    if letters:
        return _letters_slip(text, before, bad, start + letters.end())
    quoted = re.match(r"`([^`\n]+)`", rest)
    if quoted:
        message = f'a name in backticks is written `row["{quoted[1]}"]`'
        return _Slip(start, start + quoted.end(), message)
    if character.isspace():
        code = f"U+{ord(character):04X}"
        message = f"the blank {code} is none that CEL knows; write a plain space"
    else:
        message = _OTHER_SIGNS.get(character, f"`{character}` means nothing in CEL; remove it")
    return _Slip(start, bad.end, message)


def _letters_slip(text: str, before: Token, bad: Token, end: int) -> _Slip:
    """Returns a name with letters that names of CEL cannot have, up to `end`."""
    is_within_name = before.kind == "name" and before.end == bad.start and bad.text.isalnum()
    start = before.start if is_within_name else bad.start
    name = text[start:end]
    if text[:start].endswith("."):
        written = f'["{name}"]` for `.{name}'
    else:
        written = f'row["{name}"]'
    message = f"names have the letters A to Z, digits and _; write `{written}`"
    return _Slip(start, end, message)


def _where_it_stopped(text: str, refused: str) -> str:
    """Explains the refusal of the parser by the place that it names."""
    place = re.search(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)", refused)
    if place is None:
        return (
            "the guard is no CEL expression; see the guide's page on operators for how "
            "conditions are written"
        )
    line = int(place[1])
    column = int(place[2])
    reason = place[3]
    characters_before = sum(len(earlier) + 1 for earlier in text.split("\n")[: line - 1])
    offset = min(characters_before + column - 1, len(text))
    return f"{spot(text, offset)}: {_reason_in_words(text, offset, reason)}"


def _reason_in_words(text: str, offset: int, reason: str) -> str:
    """Says in agac's words why the parser stopped at `offset` with `reason`."""
    if "literal" in reason:
        return (
            "the number is larger than 64 bits can hold; compare with a smaller one, or with a "
            "double (1e20)"
        )
    if "has() macro" in reason:
        return '`has` takes a field: `has(row.name)`, or `"odd name" in row`'
    if "simple name" in reason:
        return "the first argument names the element: `x.exists(item, item.ok)`"
    rest = text[offset:].strip()
    if not rest:
        last = [piece.text for piece in tokens(text)][-2:][0]
        return f"the guard ends too early; something is missing after `{last}`"
    before = tokens(text[:offset])[:-1]
    wants_value = not before or before[-1].kind == "sign" or before[-1].text == "in"
    missing = "a value" if wants_value else "`==`, `&&` or `||`"
    return f"`{tokens(rest)[0].text}` is not expected here; {missing} may be missing before it"
