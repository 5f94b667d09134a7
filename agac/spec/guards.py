"""Guards (`when:`): compiled once, evaluated for each row, and explained when a row makes them fail."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from types import ModuleType
from typing import Any

from agac.core.errors import Problem, Where, did_you_mean, listed
from agac.spec.cel import MACROS, TYPES, CelNode, Chain, Unreadable, parse, references, refusals, shown, spot

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


def tree_of(text: str) -> CelNode:
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


def _node_faults(node: CelNode, text: str) -> Iterator[str]:
    yield from _word_fault(node, text)
    yield from _call_fault(node, text)
    yield from _pattern_fault(node, text)


def _word_fault(node: CelNode, text: str) -> Iterator[str]:
    if node.kind == "name" and (right := _WORDS.get(node.value)):
        yield f"{spot(text, node.start)}: CEL has no `{node.value}`; write `{right}`"


def _call_fault(node: CelNode, text: str) -> Iterator[str]:
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


def _pattern_fault(node: CelNode, text: str) -> Iterator[str]:
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


def _type_faults(tree: CelNode, text: str) -> Iterator[str]:
    """`string` where it is no type: somebody has a field of that name."""
    allowed: set[int] = set()
    for node in tree.walk():
        if node.kind == "op" and any(part.kind == "call" and part.value == "type" for part in node.parts):
            allowed |= {part.start for part in node.walk() if part.kind == "name"}
    for node in tree.walk():
        if node.kind == "name" and node.value in TYPES and node.start not in allowed:
            word = node.value
            yield f"{spot(text, node.start)}: `{word}` is a type in CEL; write `row.{word}` for the field of that name"


def _never_bool(tree: CelNode) -> bool:
    if tree.kind == "literal":
        return type(tree.value) is not bool
    if tree.kind == "op":
        return tree.value in ("+", "-", "*", "/", "%")
    if tree.kind in ("call", "method"):
        return tree.value in _GETTERS or (tree.value in (*_CONVERSIONS, "size") and tree.value != "dyn")
    return tree.kind in ("list", "map") or (tree.kind == "macro" and tree.value in ("map", "filter"))


FAILURES = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError)
"""What the library raises for a value that does not fit."""

MAX_ELEMENTS = 1000
"""Elements of a list that are looked at for the one that fails: this is for a sentence, not for the result."""

_NUMERIC = {"int": "^-?[0-9]+$", "uint": "^[0-9]+$", "double": "^-?[0-9]+([.][0-9]+)?$"}
_WAY = re.compile(r'[\w.]+(?:\["[^"]*"\])?\Z')


def not_a_flag(guard: Guard, result: Any, stages: frozenset[str]) -> str:
    """The sentence for a guard whose value is neither true nor false."""
    text = guard.text.strip()
    chain = guard.chains[0] if len(guard.chains) == 1 else ()
    if result is None and len(chain) == 1 and chain[0] in stages and text == chain[0]:
        return _skipped(text)
    return f"`{text}` is {_described(result)}, not true or false; {_as_condition(result, text)}"


def explain(guard: Guard, visible: Mapping[str, Any], stages: frozenset[str], error: Exception) -> str:
    """The sentence for a guard that failed with `error` for what is visible."""
    scene = {name: visible[name] for name in guard.names if name in visible}
    parts = _PartEvaluator(guard.text, stages, visible)
    return parts.words(*parts.culprit(tree_of(guard.text), scene, error))


@dataclass(frozen=True, slots=True)
class _PartEvaluator:
    """One guard's text, evaluated part by part."""

    text: str
    stages: frozenset[str]
    visible: Mapping[str, Any]
    programs: dict[str, tuple[Any, set[str]]] = field(default_factory=dict)

    def culprit(
        self, node: CelNode, scene: dict[str, Any], error: Exception
    ) -> tuple[CelNode, dict[str, Any], Exception]:
        """The smallest part of `node` that fails in `scene`, with the scene that it sees and its error."""
        for part, inner in self._needed(node, scene):
            try:
                self._run(part, inner)
            except FAILURES as deeper:
                return self.culprit(part, inner, deeper)
        return node, scene, error

    def _run(self, node: CelNode, scene: dict[str, Any]) -> Any:
        text = self.text[node.start : node.end]
        if text not in self.programs:
            asked = {one.value for one in node.walk() if one.kind == "name"}
            self.programs[text] = cel_library().compile(text), asked
        program, asked = self.programs[text]
        return program.execute({name: scene[name] for name in asked if name in scene})

    def _needed(self, node: CelNode, scene: dict[str, Any]) -> Iterator[tuple[CelNode, dict[str, Any]]]:
        """The parts that CEL evaluates for `node`, as far as they decide."""
        if node.kind == "has":
            yield node.parts[0].parts[0], scene
        elif node.kind == "macro":
            yield node.parts[0], scene
            elements = self._run(node.parts[0], scene)
            for element in islice(elements if isinstance(elements, list | dict) else (), MAX_ELEMENTS):
                yield from ((body, {**scene, node.parts[1].value: element}) for body in node.parts[2:])
        elif node.kind == "op" and node.value == "?:":
            yield node.parts[0], scene
            flag = self._run(node.parts[0], scene)
            if isinstance(flag, bool):
                yield node.parts[1 if flag else 2], scene
        else:
            yield from ((part, scene) for part in node.parts)

    def words(self, node: CelNode, scene: dict[str, Any], error: Exception) -> str:
        """Where, what and remedy for the part that failed by itself."""
        if "onversion" in str(error) and (odd := self._unreadable(scene)):
            return odd
        if node.kind == "name":
            has = listed(name for name in self.visible if name not in ("row", "vars", "row_json"))
            remedy = f"write `has(row.{node.value}) && …` where it may be missing"
            return f"`{node.value}` is missing in this row; it has: {has}; {remedy}"
        if node.kind in ("select", "index", "has"):
            return self._lacking(node.parts[0] if node.kind == "has" else node, scene)
        if node.kind == "macro":
            return self._range(node, scene, error)
        if node.kind not in ("call", "method", "op"):
            return f"`{self._part(node)}` cannot be computed: {_reason(error)}"
        sides = [(part, self._run(part, scene)) for part in node.parts[: 1 if node.value == "?:" else None]]
        for part, value in sides:
            if value is None and node.value not in ("==", "!=") and part.kind != "literal":
                return self._absent(part, f"`{self._part(node)}` cannot be computed")
        values = [f"{self._part(part)} is {_described(value)}" for part, value in sides if part.kind != "literal"]
        what = f"`{self._part(node)}` cannot be computed: {' and '.join(values) or _reason(error)}"
        named = [(self._part(part), value) for part, value in sides]
        if node.kind == "op":
            return _operation(node, self._part(node), named, what, error)
        return _call(node, named, what)

    def _part(self, node: CelNode) -> str:
        return self.text[node.start : node.end].strip()

    def _unreadable(self, scene: dict[str, Any]) -> str | None:
        """A value that the library cannot take at all."""
        for name, value in scene.items():
            kind = _foreign(value)
            if kind:
                return f"`{name}` holds {kind}, which guards cannot read; give it as text or number"
        return None

    def _absent(self, part: CelNode, what: str) -> str:
        name = self._part(part)
        return _skipped(name) if name in self.stages else f"{what}: {name} is null; write `{name} != null && …`"

    def _lacking(self, node: CelNode, scene: dict[str, Any]) -> str:
        """A step into a value that does not have it."""
        before = self._part(node.parts[0])
        value = self._run(node.parts[0], scene)
        key = node.value if node.kind == "select" else self._run(node.parts[1], scene)
        step = json.dumps(key, ensure_ascii=False, default=str)
        if value is None:
            return self._absent(node.parts[0], f"{before} has no {step}")
        if isinstance(value, Mapping):
            chain = node.chain()
            way = shown(chain) if chain else self._part(node)
            check = f"has({way})" if way.endswith(f".{key}") else f"{step} in {before}"
            end = listed((str(name) for name in value), "no fields")
            return f"`{before}` has no field {step}; it has: {end}; write `{check} && …` where it may be missing"
        if isinstance(value, list) and isinstance(key, int):
            check = f"size({before}) > {key}"
            return f"`{before}` has {len(value)} elements, none at {key} (counted from 0); write `{check} && …`"
        if isinstance(value, list):
            return f"`{before}` is a list, which has no field {step}; write `{before}[0]` or `{before}.exists(item, …)`"
        return f"`{before}` is {_described(value)}, which has no field {step}"

    def _range(self, node: CelNode, scene: dict[str, Any], error: Exception) -> str:
        value = self._run(node.parts[0], scene)
        name = self._part(node.parts[0])
        if value is None:
            return self._absent(node.parts[0], f"`{self._part(node)}` cannot be computed")
        if not isinstance(value, list | dict):
            return f"`{self._part(node)}`: {name} is {_described(value)}; `{node.value}` goes over a list"
        return f"`{self._part(node)}` cannot be computed: {_reason(error)}"


def _call(node: CelNode, sides: list[tuple[str, Any]], what: str) -> str:
    """What to write instead of a function's call; `what` says why it fails."""
    name, value = sides[0]
    if node.value in _NUMERIC and isinstance(value, str):
        return f'{what}, which is no number; write `{name}.matches("{_NUMERIC[node.value]}") && …`'
    if node.value in ("timestamp", "duration"):
        form = '"2026-01-31T12:00:00Z"' if node.value == "timestamp" else '"1h30m"'
        return f"{what}; a {node.value} is written as {form}"
    if node.kind == "method" and node.value in METHODS and not isinstance(value, str):
        return f"{what}; `{node.value}` is for texts: write `string({name}).{node.value}(…)`"
    return f"{what}; the pattern is no regular expression" if node.value == "matches" else what


def _operation(node: CelNode, text: str, sides: list[tuple[str, Any]], what: str, error: Exception) -> str:
    """What to write instead of an operation; `what` says why it fails."""
    if node.value in ("&&", "||", "!", "?:"):
        name, value = next((side for side in sides if not isinstance(side[1], bool)), sides[0])
        return f"`{name}` is {_described(value)}, not true or false; {_as_condition(value, name)}"
    if isinstance(error, ArithmeticError):
        return f"{what}; {'division by zero' if isinstance(error, ZeroDivisionError) else 'beyond 64 bits'}"
    if node.value in ("+", "-", "*", "/", "%") and not any(isinstance(value, str) for _, value in sides):
        return f"{what}; `{node.value}` takes numbers of one kind: write `int(x)` or `double(x)`"
    if node.value == "in":
        remedy = f": write `{sides[1][0]}.contains({sides[0][0]})`" if isinstance(sides[1][1], str) else ""
        return f"{what}; `in` looks into lists and objects{remedy}"
    return what + _conversion(text, sides)


def _skipped(name: str) -> str:
    return f"{name} was skipped for this row; write `{name} != null && …`"


def _conversion(text: str, sides: list[tuple[str, Any]]) -> str:
    """The remedy for a text met by a number: values of csv files are texts."""
    texts = [name for name, value in sides if isinstance(value, str)]
    numbers = [name for name, value in sides if type(value) in (int, float)]
    if len(texts) == 1 and numbers and not texts[0].startswith(("'", '"')):
        return f", not a number (values of csv files are text); write `{text.replace(texts[0], f'double({texts[0]})')}`"
    if len(texts) == 1 and numbers:
        return f", not a text; write {texts[0]} without quotes"
    if any(value != value for _, value in sides if isinstance(value, float)):
        return "; what is not a number is neither smaller nor larger"
    return "; values of different kinds can only be told apart with `==` and `!=`" if len(sides) > 1 else ""


def _as_condition(value: Any, name: str) -> str:
    if not _WAY.match(name):
        return "compare it with a value"
    if isinstance(value, str):
        return f"compare it: `{name} == {json.dumps(value if len(value) < 30 else '…', ensure_ascii=False)}`"
    if isinstance(value, int | float):
        return f"compare it: `{name} > 0`"
    return f"write `{name} != null`" if value is None else f"write `size({name}) > 0`"


def _described(value: Any) -> str:
    """A value in a sentence: `the text "12"`, `a list of 3`."""
    if isinstance(value, str):
        return f"the text {json.dumps(value if len(value) <= 40 else value[:39] + '…', ensure_ascii=False)}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return "not a number (NaN)" if value != value else f"the number {value}"
    if isinstance(value, list | Mapping):
        return f"a list of {len(value)}" if isinstance(value, list) else f"an object of {len(value)} fields"
    return f"a value of type {type(value).__name__}"


def _foreign(value: Any) -> str | None:
    """What in a value the library cannot take, None when nothing is known."""
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            return "an object with a key that is no text"
        return next((kind for one in value.values() if (kind := _foreign(one))), None)
    if isinstance(value, list | tuple):
        return next((kind for one in value if (kind := _foreign(one))), None)
    if isinstance(value, str):
        return (
            None
            if value.isascii() or not any("\ud800" <= one <= "\udfff" for one in value)
            else "half a surrogate pair"
        )
    if isinstance(value, int):
        return "a whole number of more than 308 digits" if abs(value) >= 10**308 else None
    return None if value is None or isinstance(value, float) else f"a value of type {type(value).__name__}"


def _reason(error: Exception) -> str:
    """What the library says, where it says more than that something does not fit."""
    fits = isinstance(error, TypeError) or "Undefined variable" in str(error)
    return "its values do not fit together" if fits else str(error).split(". ")[0].splitlines()[0]


# Evaluating a guard for one row. Only what it reads is handed over: converting a row costs more than the rest.

ROW = "row"
"""The name under which a guard sees all fields of the row: for odd names, and to ask whether there is one."""

MAX_SHOWN = 80
"""Characters of a value that stand beside a guard in `filtered.jsonl`."""


class GuardFailed(Exception):
    """The guard is neither true nor false for this row. `message` says why and what to write instead."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Evaluator:
    """A guard made ready for many rows. `stages` are the names that stand for results: null means skipped."""

    def __init__(self, guard: Guard, *, stages: Collection[str] = ()) -> None:
        self._guard = guard
        self._stages = frozenset(stages)
        self._program = cel_library().compile(guard.text)
        self._picked = [(name, _members(guard.chains, name)) for name in guard.names]

    def test(self, visible: Mapping[str, Any]) -> bool:
        """Whether the guard holds for what `visible` shows: fields, results, `vars`, and `row` with all fields.

        Whole numbers beyond 64 bits count as the double nearest to them; a Decimal as a double. Raises `GuardFailed`.
        """
        try:
            result = self._program.execute(self._handed(visible))
        except FAILURES as error:
            raise GuardFailed(explain(self._guard, visible, self._stages, error)) from None
        if isinstance(result, bool):
            return result
        raise GuardFailed(not_a_flag(self._guard, result, self._stages))

    def values(self, visible: Mapping[str, Any]) -> dict[str, Any]:
        """What the guard read, by the way it is written: texts and structures cut to 80 characters, what is not there
        left out."""
        found: dict[str, Any] = {}
        for chain in self._guard.chains:
            try:
                found[shown(chain)] = _cut(_value(visible, chain))
            except (LookupError, TypeError):
                continue
        return found

    def _handed(self, visible: Mapping[str, Any]) -> dict[str, Any]:
        handed: dict[str, Any] = {}
        for name, members in self._picked:
            try:
                value = visible[name]
            except KeyError:
                continue  # the guard may never come to ask for it
            if members is not None and isinstance(value, Mapping):
                value = {member: value[member] for member in members if member in value}
            handed[name] = value
        return handed


def _members(chains: tuple[Chain, ...], name: str) -> tuple[str, ...] | None:
    """The fields that the guard reads of `name`; None when it may read them all."""
    members = [chain[1] if len(chain) > 1 else None for chain in chains if chain[0] == name]
    texts = tuple(member for member in members if isinstance(member, str))
    return tuple(dict.fromkeys(texts)) if len(texts) == len(members) else None


def _value(visible: Mapping[str, Any], chain: Chain) -> Any:
    """Raises LookupError or TypeError where the way ends."""
    value: Any = visible
    for part in chain:
        if isinstance(value, str):
            raise TypeError
        value = value[part]
    return value


def _cut(value: Any) -> Any:
    if isinstance(value, bool | float | None):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > MAX_SHOWN:
        return text[: MAX_SHOWN - 1] + "…"
    return value if isinstance(value, str | int | list | dict) else text
