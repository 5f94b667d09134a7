"""Words for guards that CEL's parser refuses: the slips that everybody makes, else the place where reading stopped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agac.spec.celtokens import RESERVED, Token, tokens

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
