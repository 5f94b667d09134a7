"""Words for guards: what is wrong with a text that is no CEL, and why a guard fails for a row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from agac.core.errors import listed
from agac.spec.cel import WORDS, CelNode, Token, cel_library, parse, shown, spot, tokens

METHODS = ("contains", "startsWith", "endsWith", "matches")
"""Functions of texts."""

_RESERVED = frozenset({
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "namespace",
    "package", "return", "var", "void", "while",
})  # fmt: skip
_OTHER_WORDS = {
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
_ESCAPE = re.compile(r"\\(?:[abfnrtv\\?\"'`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})")
_PAIRS = {")": "(", "]": "[", "}": "{"}

_Slip = tuple[int, int, str]
"""Where something wrong begins, where reading goes on after it, and the sentence about it."""


def refusals(text: str, refused: str) -> list[str]:
    """What is wrong with a text that the parser refused with these words, by place; at least one sentence."""
    slips = [f"{spot(text, start)}: {message}" for start, _, message in sorted(_slips(text))]
    return slips or [_where_it_stopped(text, refused)]


def _slips(text: str) -> Iterator[_Slip]:
    pieces = tokens(text)
    end = -1
    for before, piece, after in zip([Token("start", "", -1), *pieces], pieces, [*pieces[1:], pieces[-1]], strict=False):
        if piece.start < end:
            continue
        end = piece.end
        if slip := _slip(text, before, piece, after):
            end = slip[1]
            yield slip
            if piece.kind == "bad" and end == len(text):  # brackets may stand in a text that is never closed
                return
    opened: list[Token] = []
    for piece in (one for one in pieces if one.kind == "sign"):
        if piece.text in _PAIRS.values():
            opened.append(piece)
        elif piece.text in _PAIRS and (not opened or opened.pop().text != _PAIRS[piece.text]):
            yield piece.start, piece.end, f"`{piece.text}` closes nothing; remove it, or add the `{_PAIRS[piece.text]}`"
            return
    if opened:
        last = opened[-1]
        closing = next(right for right, left in _PAIRS.items() if left == last.text)
        yield last.start, last.end, f"`{last.text}` is never closed; add the `{closing}`"


def _slip(text: str, before: Token, piece: Token, after: Token) -> _Slip | None:
    """What is wrong with a piece of this text, after the one before it and before the one after it."""
    word, is_member, end = piece.text, before.text == ".", piece.end
    match piece.kind:
        case "name" if word in _OTHER_WORDS and not is_member and after.text != "." and before.text != "not":
            message = _OTHER_WORDS[word]
        case "name" if is_member and word in ("in", *WORDS):
            message = f'`{word}` is a word of CEL; write `["{word}"]` for the field'
        case "name" if not is_member and word in _RESERVED:
            message = f'`{word}` is a reserved word of CEL; write `row["{word}"]` for the field'
        case "text" if not re.match("[bB]?[rR]", word) and (wrong := _ESCAPE.sub("  ", word).find("\\")) >= 0:
            slip = word[wrong : wrong + 2]
            message = f"a text has `{slip}`, which stands for nothing; write `\\{slip}`, or r before the text"
        case "number" if word.startswith(".") and before.end == piece.start:
            message = f"an element of a list is written `[{word[1:]}]`, counted from 0"
        case "sign" if word in ("<", "==", "!=") and after.start == end and after.text in (">", "="):
            message = f"`{word}{after.text}` is written `{word.replace('<', '!=')}`"
            end = after.end
        case "sign" if word == "?" and (is_member or after.text in (".", "?")):
            message, end = "`?.` and `??` do not exist here; write `has(x.y) && x.y …`", after.end
        case "bad":
            return _bad_slip(text, before, piece)
        case _:
            return None
    return piece.start, end, message


def _bad_slip(text: str, before: Token, piece: Token) -> _Slip:
    """A character that begins nothing, and the word that it ends."""
    at, sign, rest = piece.start, piece.text, text[piece.start :]
    if placeholder := re.match(r"\$\{([^{}\n]*)\}?", rest):
        name = placeholder[1].strip() or "x"
        return at, at + placeholder.end(), f"`{placeholder[0]}` stands in prompts; in a guard write `{name}`"
    if sign in "\"'":
        return at, len(text), f"a text is never closed: {rest[:24]!r}; add the {sign}"
    if word := re.match(r"\w+", rest):
        start = before.start if before.kind == "name" and before.end == at and sign.isalnum() else at
        name = text[start : at + word.end()]
        written = f'["{name}"]` for `.{name}' if text[:start].endswith(".") else f'row["{name}"]'
        return start, at + word.end(), f"names have the letters A to Z, digits and _; write `{written}`"
    if quoted := re.match(r"`([^`\n]+)`", rest):
        return at, at + quoted.end(), f'a name in backticks is written `row["{quoted[1]}"]`'
    message = _OTHER_SIGNS.get(sign, f"`{sign}` means nothing in CEL; remove it")
    if sign.isspace():
        message = f"the blank U+{ord(sign):04X} is none that CEL knows; write a plain space"
    return at, piece.end, message


def _where_it_stopped(text: str, refused: str) -> str:
    found = re.search(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)", refused)
    if found is None:
        return "the guard is no CEL expression; see the guide's page on operators for how conditions are written"
    line, column, reason = int(found[1]), int(found[2]), found[3]
    offset = min(sum(len(one) + 1 for one in text.split("\n")[: line - 1]) + column - 1, len(text))
    at, rest = spot(text, offset), text[offset:].strip()
    if "literal" in reason:
        return f"{at}: the number is larger than 64 bits can hold; compare with a smaller one, or with a double (1e20)"
    if "has() macro" in reason:
        return f'{at}: `has` takes a field: `has(row.name)`, or `"odd name" in row`'
    if "simple name" in reason:
        return f"{at}: the first argument names the element: `x.exists(item, item.ok)`"
    if not rest:
        last = [piece.text for piece in tokens(text)][-2:][0]
        return f"{at}: the guard ends too early; something is missing after `{last}`"
    before = tokens(text[:offset])[:-1]
    what = "a value" if not before or before[-1].kind == "sign" or before[-1].text == "in" else "`==`, `&&` or `||`"
    return f"{at}: `{tokens(rest)[0].text}` is not expected here; {what} may be missing before it"


FAILURES = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError)
"""What the library raises for a value that does not fit."""

MAX_ELEMENTS = 1000
"""Elements of a list that are looked at for the one that fails: this is for a sentence, not for the result."""

_NUMERIC = {"int": "^-?[0-9]+$", "uint": "^[0-9]+$", "double": "^-?[0-9]+([.][0-9]+)?$"}
_FORMS = {"timestamp": '"2026-01-31T12:00:00Z"', "duration": '"1h30m"'}

Values = dict[str, Any]
"""What a part of a guard sees: what the row shows, and the names that macros bind."""


def not_a_flag(text: str, result: Any, skipped: bool) -> str:
    """The sentence for a guard whose value is neither true nor false. `skipped`: it is that of a skipped stage."""
    text = text.strip()
    if skipped:
        return _skipped(text)
    return f"`{text}` is {_described(result)}, not true or false; {_as_condition(result, text)}"


def explain(text: str, values: Values, visible: Mapping[str, Any], stages: frozenset[str], error: Exception) -> str:
    """The sentence for a guard that failed with `error` for these values. `visible` is all that the row shows,
    `stages` what in it are results of stages."""
    return _Explainer(text, visible, stages).sentence(parse(text), values, error)


class _Explainer:
    """One guard's text, evaluated part by part for one row."""

    def __init__(self, text: str, visible: Mapping[str, Any], stages: frozenset[str]) -> None:
        self._text = text
        self._visible = visible
        self._stages = stages
        self._programs: dict[str, Any] = {}

    def sentence(self, node: CelNode, values: Values, error: Exception) -> str:
        """Where, what and remedy for the smallest part of `node` that fails; `error` is that of the node."""
        for part, inner in self._needed(node, values):
            try:
                self._run(part, inner)
            except FAILURES as deeper:
                return self.sentence(part, inner, deeper)
        if "onversion" in str(error):
            for name, value in values.items():
                if kind := _foreign(value):
                    return f"`{name}` holds {kind}, which guards cannot read; give it as text or number"
        if node.kind == "name":
            has = listed(name for name in self._visible if name not in ("row", "vars", "row_json"))
            remedy = f"write `has(row.{node.value}) && …` where it may be missing"
            return f"`{node.value}` is missing in this row; it has: {has}; {remedy}"
        if node.kind in ("select", "index", "has"):
            return self._missing_step(node.parts[0] if node.kind == "has" else node, values)
        return self._cannot_be_computed(node, values, error)

    def _shown(self, node: CelNode) -> str:
        return self._text[node.start : node.end].strip()

    def _run(self, node: CelNode, values: Values) -> Any:
        text = self._text[node.start : node.end]
        if text not in self._programs:
            self._programs[text] = cel_library().compile(text)
        used = {one.value for one in node.walk() if one.kind == "name"}
        return self._programs[text].execute({name: values[name] for name in used if name in values})

    def _needed(self, node: CelNode, values: Values) -> Iterator[tuple[CelNode, Values]]:
        """The parts that CEL evaluates for `node`, as far as they decide, each with what it sees."""
        if node.kind == "has":
            yield node.parts[0].parts[0], values
        elif node.kind == "macro":
            yield node.parts[0], values
            elements = self._run(node.parts[0], values)
            for element in islice(elements if isinstance(elements, list | dict) else (), MAX_ELEMENTS):
                yield from ((body, {**values, node.parts[1].value: element}) for body in node.parts[2:])
        elif node.kind == "op" and node.value == "?:":
            yield node.parts[0], values
            flag = self._run(node.parts[0], values)
            if isinstance(flag, bool):
                yield node.parts[1 if flag else 2], values
        else:
            yield from ((part, values) for part in node.parts)

    def _null(self, part: CelNode, what: str) -> str:
        name = self._shown(part)
        return _skipped(name) if name in self._stages else f"{what}: {name} is null; write `{name} != null && …`"

    def _missing_step(self, node: CelNode, values: Values) -> str:
        """A step into a value that does not have it."""
        before = self._shown(node.parts[0])
        value = self._run(node.parts[0], values)
        key = node.value if node.kind == "select" else self._run(node.parts[1], values)
        step = json.dumps(key, ensure_ascii=False, default=str)
        if value is None:
            return self._null(node.parts[0], f"{before} has no {step}")
        if isinstance(value, Mapping):
            way = shown(node.chain) if node.chain else self._shown(node)
            check = f"has({way})" if way.endswith(f".{key}") else f"{step} in {before}"
            there = listed((str(name) for name in value), "no fields")
            return f"`{before}` has no field {step}; it has: {there}; write `{check} && …` where it may be missing"
        if isinstance(value, list) and isinstance(key, int):
            check = f"size({before}) > {key}"
            return f"`{before}` has {len(value)} elements, none at {key} (counted from 0); write `{check} && …`"
        if isinstance(value, list):
            return f"`{before}` is a list, which has no field {step}; write `{before}[0]` or `{before}.exists(item, …)`"
        return f"`{before}` is {_described(value)}, which has no field {step}"

    def _cannot_be_computed(self, node: CelNode, values: Values, error: Exception) -> str:
        """A function, an operation or a macro that its values do not fit."""
        text = self._shown(node)
        what = f"`{text}` cannot be computed"
        if node.kind not in ("call", "method", "op", "macro"):
            return f"{what}: {_reason(error)}"
        deciding = node.parts[:1] if node.kind == "macro" or node.value == "?:" else node.parts
        sides = [(part, self._run(part, values)) for part in deciding]
        for part, value in sides:
            if value is None and node.value not in ("==", "!=") and part.kind != "literal":
                return self._null(part, what)
        named = [(self._shown(part), value) for part, value in sides]
        if node.kind == "macro":
            name, value = named[0]
            if isinstance(value, list | dict):
                return f"{what}: {_reason(error)}"
            return f"`{text}`: {name} is {_described(value)}; `{node.value}` goes over a list"
        given = [f"{self._shown(part)} is {_described(value)}" for part, value in sides if part.kind != "literal"]
        what += f": {' and '.join(given) or _reason(error)}"
        return (
            _failed_operation(node, text, named, what, error) if node.kind == "op" else _failed_call(node, named, what)
        )


def _failed_call(node: CelNode, sides: list[tuple[str, Any]], what: str) -> str:
    """What to write instead of a function's call; `what` says why it fails."""
    function, (name, value) = node.value, sides[0]
    if function in _NUMERIC and isinstance(value, str):
        return f'{what}, which is no number; write `{name}.matches("{_NUMERIC[function]}") && …`'
    if function in _FORMS:
        return f"{what}; a {function} is written as {_FORMS[function]}"
    if node.kind == "method" and function in METHODS and not isinstance(value, str):
        return f"{what}; `{function}` is for texts: write `string({name}).{function}(…)`"
    return f"{what}; the pattern is no regular expression" if function == "matches" else what


def _failed_operation(node: CelNode, text: str, sides: list[tuple[str, Any]], what: str, error: Exception) -> str:
    """What to write instead of an operation; `what` says why it fails."""
    texts = [name for name, value in sides if isinstance(value, str)]
    if node.value in ("&&", "||", "!", "?:"):
        name, value = next((side for side in sides if not isinstance(side[1], bool)), sides[0])
        return f"`{name}` is {_described(value)}, not true or false; {_as_condition(value, name)}"
    if isinstance(error, ArithmeticError):
        return f"{what}; {'division by zero' if isinstance(error, ZeroDivisionError) else 'beyond 64 bits'}"
    if node.value in ("+", "-", "*", "/", "%") and not texts:
        return f"{what}; `{node.value}` takes numbers of one kind: write `int(x)` or `double(x)`"
    if node.value == "in":
        remedy = f": write `{sides[1][0]}.contains({sides[0][0]})`" if isinstance(sides[1][1], str) else ""
        return f"{what}; `in` looks into lists and objects{remedy}"
    if len(texts) == 1 and any(type(value) in (int, float) for _, value in sides):  # values of csv files are texts
        if texts[0].startswith(("'", '"')):
            return f"{what}, not a text; write {texts[0]} without quotes"
        remedy = text.replace(texts[0], f"double({texts[0]})")
        return f"{what}, not a number (values of csv files are text); write `{remedy}`"
    if any(value != value for _, value in sides if isinstance(value, float)):
        return f"{what}; what is not a number is neither smaller nor larger"
    if len(sides) > 1:
        return f"{what}; values of different kinds can only be told apart with `==` and `!=`"
    return what


def _skipped(name: str) -> str:
    return f"{name} was skipped for this row; write `{name} != null && …`"


def _as_condition(value: Any, name: str) -> str:
    if not re.match(r'[\w.]+(?:\["[^"]*"\])?\Z', name):
        return "compare it with a value"
    if isinstance(value, str):
        return f"compare it: `{name} == {json.dumps(value if len(value) < 30 else '…', ensure_ascii=False)}`"
    if isinstance(value, int | float):
        return f"compare it: `{name} > 0`"
    return f"write `{name} != null`" if value is None else f"write `size({name}) > 0`"


def _described(value: Any) -> str:
    """A value in a sentence: `the text "12"`, `a list of 3`."""
    match value:
        case str():
            return f"the text {json.dumps(value if len(value) <= 40 else value[:39] + '…', ensure_ascii=False)}"
        case None | True | False:
            return json.dumps(value)
        case int() | float():
            return "not a number (NaN)" if value != value else f"the number {value}"
        case list():
            return f"a list of {len(value)}"
        case Mapping():
            return f"an object of {len(value)} fields"
    return f"a value of type {type(value).__name__}"


def _foreign(value: Any) -> str | None:
    """What in a value the library cannot take, None when nothing is known."""
    match value:
        case Mapping() if any(not isinstance(key, str) for key in value):
            return "an object with a key that is no text"
        case Mapping() | list() | tuple():
            inner = value.values() if isinstance(value, Mapping) else value
            return next((kind for one in inner if (kind := _foreign(one))), None)
        case str():
            half = not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value)
            return "half a surrogate pair" if half else None
        case int():
            return "a whole number of more than 308 digits" if abs(value) >= 10**308 else None
        case None | float():
            return None
    return f"a value of type {type(value).__name__}"


def _reason(error: Exception) -> str:
    """What the library says, where it says more than that something does not fit."""
    fits = isinstance(error, TypeError) or "Undefined variable" in str(error)
    return "its values do not fit together" if fits else str(error).split(". ")[0].splitlines()[0]
