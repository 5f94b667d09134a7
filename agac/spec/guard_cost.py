"""The steps that a CEL expression takes at most, counted before the library evaluates it. The
library cannot be stopped and holds the interpreter's lock meanwhile, so an expression that could
take long is refused instead of begun."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from agac.spec.cel import CelNode, is_plain_way

MAX_STEPS = 10_000_000
"""Steps that one evaluation may take. A step is some 25 ns of the library, so all of them are
about 0.25 s. Steps are counted, not timed: a plan and a run on another machine come to the same
verdict."""

# What the library was measured to take, in steps. Counts err on the side of too many.
_EACH_PART = 4
_EACH_ELEMENT = 4
_HANDED = 3  # for a value that is given to the library, for one in which it is copied
_SCALAR = 2
_SCALARS = frozenset({int, float, bool, type(None)})
_REWRITTEN = {"size": 50, "string": 50, "timestamp": 200}
"""For a call that `CelProgram` writes in other words, with a function of Python in it."""

_TEXT = 3
_CHARACTERS_COPIED = 64  # by one step
_READ_AS_COPIED = (
    4  # steps in which a text is read for `contains` or a comparison, for one in which it is copied
)
_ENTRY = 6  # of an object, besides its key and value
_PATTERN_CHARACTER_MEASURED = 16  # by `pattern_size`, for each character
_PATTERN_PART_COMPILED = 40
_PATTERN_PARTS_READ = 8  # parts of a pattern times characters of the text, by one step
_UNKNOWN_PATTERN = (
    2_000_000  # a pattern that the text of the guard does not hold: the library refuses larger ones
)

_LISTS = (list, tuple, Mapping)  # what macros walk
_TEXT_METHODS = ("contains", "startsWith", "endsWith")
_COLLECTING = ("map", "filter")
"""Macros that make a list. The library copies what it has for each further element: the square of
the list's length."""


class TooManySteps(Exception):
    """The expression could take more steps than it may. `node` is the part at which they are used
    up."""

    def __init__(self, node: CelNode) -> None:
        super().__init__(node)
        self.node = node


# The values that a part of an expression has, in all its evaluations.


@dataclass(slots=True)
class _Values:
    """Values of a row, and what they weigh once that was counted."""

    items: Sequence[Any]
    total: int | None = None
    largest: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """One of these values at each evaluation. `aligned`: each of them at one evaluation only, so
    that what all evaluations take is their sum."""

    values: _Values
    aligned: bool

    @staticmethod
    def of(items: Sequence[Any], *, aligned: bool) -> _Known:
        return _Known(_Values(items), aligned)


@dataclass(frozen=True, slots=True)
class _Made:
    """A value that the expression computes."""

    weight: int
    """Its largest weight."""
    length: int = 0
    """Of a list: the most elements."""
    elements: _Value | None = None
    """Of a list: its elements; None: they may be as heavy and as long as the whole."""


_Value = _Known | _Made
_PLAIN = _Made(_SCALAR)
_UNKNOWN = _Made(1, 1)


def _opaque(weight: int) -> _Made:
    """Returns a value of which only the largest weight is known."""
    return _Made(weight, weight // _SCALAR)


@dataclass(frozen=True, slots=True)
class _Loop:
    """The evaluations of a macro's body."""

    times: int = 1
    """Their number in all; 1 outside of macros."""
    names: Mapping[str, tuple[_Value, int]] = field(default_factory=dict)
    """The names that macros bind, each with the loop that binds it."""
    depth: int = 0


def weight_of(value: Any, most: int) -> int:
    """Returns the steps in which the library copies a value: about 1 for 64 characters, 2 for a
    number, 8 for a field. Stops counting above `most`."""
    if isinstance(value, str):
        return _TEXT + len(value) // _CHARACTERS_COPIED
    if not isinstance(value, _LISTS):
        return _SCALAR
    total = 0
    waiting: list[Any] = [value]
    while waiting and total <= most:
        outer = waiting.pop()
        total += _SCALAR + _SCALAR * len(outer)
        if total > most:
            break
        parts: Iterable[Any] = outer
        if isinstance(outer, Mapping):
            parts = outer.values()
            total += (
                sum(len(key) if isinstance(key, str) else 0 for key in outer) // _CHARACTERS_COPIED
            )
            total += _ENTRY * len(outer)
        for part in parts:
            if isinstance(part, str):
                total += _TEXT - _SCALAR + len(part) // _CHARACTERS_COPIED
            elif type(part) not in _SCALARS and isinstance(part, _LISTS):
                waiting.append(part)
    return total


class CostMeter:
    """Counts the steps of one expression over what it sees. `values` has the names that are known;
    a list that is not known counts as one that has one small element: with a row that has more,
    the expression only takes more steps."""

    def __init__(self, values: Mapping[str, Any], most: int = MAX_STEPS) -> None:
        self.steps = 0
        self._values = values
        self._most = most
        self._weights: dict[int, int] = {}
        self._outermost: CelNode | None = (
            None  # the macro that is being counted, which a message can name
        )

    def count(self, node: CelNode) -> int:
        """Returns the steps of `node`, and of giving its values to the library. Raises
        TooManySteps as soon as they are too many."""
        for value in self._values.values():
            self._charge(node, _HANDED * weight_of(value, self._most))
        self._value(node, _Loop())
        return self.steps

    def _charge(self, node: CelNode, steps: int) -> None:
        self.steps += steps
        if self.steps > self._most:
            raise TooManySteps(self._outermost or node)

    def _weigh(self, node: CelNode, values: _Values) -> None:
        """Counts what values weigh, unless that was done; counting takes steps as well."""
        if values.total is not None:
            return
        self._charge(node, len(values.items))
        weights = [
            _SCALAR if type(value) in _SCALARS else self._weight(value) for value in values.items
        ]
        values.total = sum(weights)
        values.largest = max(weights, default=0)

    def _weight(self, value: Any) -> int:
        if isinstance(value, str):
            return weight_of(value, self._most)
        # values outlive the count, so that an id is that of one value
        known = self._weights.get(id(value))
        if known is None:
            known = self._weights[id(value)] = weight_of(value, self._most)
        return known

    def _total(self, node: CelNode, value: _Value, loop: _Loop) -> int:
        """Returns the weight of the value of `node` in all evaluations of the loop."""
        if isinstance(value, _Known) and value.aligned:
            self._weigh(node, value.values)
            return value.values.total or 0
        return self._largest(node, value) * loop.times

    def _largest(self, node: CelNode, value: _Value) -> int:
        if isinstance(value, _Made):
            return value.weight
        self._weigh(node, value.values)
        return value.values.largest

    def _value(self, node: CelNode, loop: _Loop) -> _Value:
        """Charges a part with all below it, and gives the values that it has."""
        self._charge(node, _EACH_PART * loop.times)
        match node.kind:
            case "literal":
                return _Known.of((node.value,), aligned=loop.depth == 0)
            case "name":
                return self._named(node.value, loop)
            case "select" | "index":
                return self._step(node, loop)
            case "has":
                self._value(node.parts[0], loop)
                return _PLAIN
            case "macro":
                return self._macro(node, loop)
            case "list" | "map":
                return self._literal(node, loop)
            case "op":
                return self._operation(node, loop)
        return self._call(node, loop)

    def _named(self, name: str, loop: _Loop) -> _Value:
        if name in loop.names:
            value, depth = loop.names[name]
            if isinstance(value, _Known) and depth != loop.depth:
                return _Known(value.values, aligned=False)
            return value
        if name in self._values:
            return _Known.of((self._values[name],), aligned=loop.depth == 0)
        return _UNKNOWN

    def _step(self, node: CelNode, loop: _Loop) -> _Value:
        """Returns a field or an element, which the library copies."""
        before = self._value(node.parts[0], loop)
        key = node.value
        if node.kind == "index":
            self._value(node.parts[1], loop)
            key = node.parts[1].value if node.parts[1].kind == "literal" else None
        if isinstance(before, _Made):
            self._charge(node, before.weight * loop.times)
            return before if before is _UNKNOWN else _opaque(before.weight)
        items = before.values.items
        if key is None:
            self._charge(node, sum(map(_length, items)))
            inner = [value for outer in items for value in _inner(outer)]
            value = _Known.of(inner, aligned=False)
        else:
            self._charge(node, len(items))
            value = _Known.of(_members(items, key), aligned=before.aligned)
        self._charge(node, self._total(node, value, loop))
        return value

    def _literal(self, node: CelNode, loop: _Loop) -> _Value:
        parts = [self._value(part, loop) for part in node.parts]
        weight = _SCALAR + _ENTRY * len(parts) + sum(self._largest(node, part) for part in parts)
        self._charge(node, weight * loop.times)
        known = [part.values.items for part in parts if isinstance(part, _Known)]
        if node.kind == "list" and len(known) == len(parts):
            self._charge(node, sum(map(len, known)))
            return _Made(
                weight, len(parts), _Known.of([*chain.from_iterable(known)], aligned=False)
            )
        return _Made(weight, len(parts), _opaque(weight))

    def _operation(self, node: CelNode, loop: _Loop) -> _Value:
        sides = [self._value(part, loop) for part in node.parts]
        if node.value == "?:":
            return self._either(node, sides[1], sides[2])
        if node.value == "+":
            self._charge(node, sum(self._total(node, side, loop) for side in sides))
            return _opaque(sum(self._largest(node, side) for side in sides))
        if node.value == "in":
            self._charge(node, self._looked_through(node, sides[1], loop))
        elif node.value in ("==", "!=", "<", "<=", ">", ">="):
            self._charge(
                node, _READ_AS_COPIED * min(self._total(node, side, loop) for side in sides)
            )
        return _PLAIN

    def _either(self, node: CelNode, first: _Value, second: _Value) -> _Value:
        """Returns a value that is the one or the other."""
        if not isinstance(first, _Known) or not isinstance(second, _Known):
            return _opaque(max(self._largest(node, first), self._largest(node, second)))
        self._charge(node, len(first.values.items) + len(second.values.items))
        items = [*first.values.items, *second.values.items]
        return _Known.of(items, aligned=first.aligned and second.aligned)

    def _looked_through(self, node: CelNode, value: _Value, loop: _Loop) -> int:
        """Returns the steps of `in`: it reads lists to their end, and finds the fields of objects
        at once."""
        if isinstance(value, _Known) and all(
            isinstance(one, Mapping) for one in value.values.items
        ):
            return _EACH_PART * loop.times
        return self._total(node, value, loop)

    def _call(self, node: CelNode, loop: _Loop) -> _Value:
        parts = [self._value(part, loop) for part in node.parts]
        if node.value == "matches":
            self._charge(node, self._matching(node, parts, loop))
            return _PLAIN
        if node.value in _REWRITTEN:
            self._charge(node, _REWRITTEN[node.value] * loop.times)
            if not is_plain_way(node.parts[0]):
                self._charge(node, _READ_AS_COPIED * self._total(node, parts[0], loop))
        if node.value == "size" and _has_no_text(parts[0]):
            return _PLAIN  # a list knows its length
        read = sum(self._total(node, part, loop) for part in parts)
        self._charge(node, read * _READ_AS_COPIED if node.value in _TEXT_METHODS else read)
        if node.value == "dyn" and len(parts) == 1:
            return parts[0]
        if node.value in ("string", "bytes"):
            return _Made(_TEXT + sum(self._largest(node, part) for part in parts))
        return _PLAIN

    def _matching(self, node: CelNode, parts: Sequence[_Value], loop: _Loop) -> int:
        """Returns the steps of `matches`: the pattern is compiled each time, and the text read
        once."""
        text = parts[0]
        pattern = parts[-1]
        characters = self._total(node, text, loop) * _CHARACTERS_COPIED
        if not isinstance(pattern, _Known):
            return _UNKNOWN_PATTERN * loop.times + characters
        texts = [one for one in pattern.values.items if isinstance(one, str)]
        self._charge(node, _PATTERN_CHARACTER_MEASURED * sum(map(len, texts)))
        sizes = [pattern_size(one) for one in texts]
        compiled = max((size.compiled for size in sizes), default=0)
        read = max((size.parts for size in sizes), default=0)
        return (
            compiled * _PATTERN_PART_COMPILED * loop.times
            + characters * read // _PATTERN_PARTS_READ
        )

    def _macro(self, node: CelNode, loop: _Loop) -> _Value:
        is_outermost = self._outermost is None
        if is_outermost:
            self._outermost = node
        source = self._value(node.parts[0], loop)
        longest, turns, elements = self._elements(node, source, loop)
        names = {**loop.names, str(node.parts[1].value): (elements, loop.depth + 1)}
        inside = _Loop(turns, names, loop.depth + 1)
        bodies = [self._value(body, inside) if turns else _PLAIN for body in node.parts[2:]]
        made: _Value = _PLAIN
        if node.value in _COLLECTING:
            kept = elements if node.value == "filter" else bodies[-1]
            self._charge(node, longest * self._total(node, kept, inside) // 2)
            made = _Made(_SCALAR + longest * self._largest(node, kept), longest, _loose(kept))
            if node.value == "filter" and isinstance(source, _Known):
                made = source  # no element is in it that is not in the source
        if is_outermost:
            self._outermost = None
        return made

    def _elements(self, node: CelNode, source: _Value, loop: _Loop) -> tuple[int, int, _Value]:
        """Charges a macro's turns. Gives the most elements of one evaluation, those of all, and
        what they are."""
        if isinstance(source, _Made):
            turns = source.length * loop.times
            self._charge(node, _EACH_ELEMENT * turns)
            return source.length, turns, source.elements or source
        lists = [one for one in source.values.items if isinstance(one, _LISTS)]
        longest = max(map(len, lists), default=0)
        all_of_them = sum(map(len, lists))
        turns = all_of_them if source.aligned else longest * loop.times
        self._charge(node, _EACH_ELEMENT * turns + all_of_them + len(source.values.items))
        return longest, turns, _Known.of([*chain.from_iterable(lists)], aligned=source.aligned)


def _has_no_text(value: _Value) -> bool:
    if not isinstance(value, _Known):
        return False
    return not any(isinstance(item, str) for item in value.values.items)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, _LISTS) else 0


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _members(values: Iterable[Any], key: Any) -> list[Any]:
    """Returns the field or the element of each value that has it."""
    found = []
    for value in values:
        try:
            if not isinstance(value, str):
                found.append(value[key])
        except (LookupError, TypeError):
            continue
    return found


def _loose(value: _Value) -> _Value:
    if isinstance(value, _Known):
        return _Known(value.values, aligned=False)
    return value


# How large a regular expression becomes once its repetitions are written out.


@dataclass(frozen=True, slots=True)
class PatternSize:
    """`parts`: characters and classes that a match may have to look at; `compiled`: states, of
    which a class of letters has many."""

    parts: int
    compiled: int


_CLASS_STATES = 10
_LETTER_CLASS_STATES = 200
_STATES_OF_KIND = {"large": _LETTER_CLASS_STATES, "any": _CLASS_STATES}
_PATTERN_PART = re.compile(
    r"(?P<large>\\[wWdDsS]|\\[pP](?:\{[^}]*\}|.))|(?P<any>\.)|(?P<escape>\\.)|(?P<open>\((?:\?[^:)<>=!]*:|\?P?<\w+>|\?)?)"
    r"|(?P<close>\))|\{(?P<least>[0-9]+)(?P<comma>,(?P<most>[0-9]*))?\}|(?P<either>\|)|(?P<class>\[)|(?P<other>.)",
    re.DOTALL,
)
_CLASS_PART = re.compile(r"\\(?P<large>[wWdDsSpP])|\\.|(?P<open>\[)|(?P<close>\])|.", re.DOTALL)


def pattern_size(pattern: str) -> PatternSize:
    """Returns the size of a regular expression of Rust's engine, at least about what it is. Never
    raises: what is no regular expression has some size, too."""
    # a letter stands for itself in other cases as well
    folds = 3 if re.search(r"\(\?[a-zA-Z]*i", pattern) else 1
    groups = [(0, 0)]  # open groups: what was read of each
    last = (0, 0)  # the part that a repetition is about
    place = 0
    while match := _PATTERN_PART.match(pattern, place):
        place = match.end()
        kind = match.lastgroup
        if kind == "open":
            groups.append((0, 0))
            continue
        if kind in ("least", "comma", "most"):
            times = max(int(match["least"]), int(match["most"] or 0)) - 1
            last = (last[0] * max(times, 0), last[1] * max(times, 0))
        elif kind == "close" and len(groups) > 1:
            last = groups.pop()
        elif kind == "class":
            place, states = _class_end(pattern, place)
            last = (1, states * folds)
        else:
            last = (1, _STATES_OF_KIND.get(str(kind), folds))
        groups[-1] = (groups[-1][0] + last[0], groups[-1][1] + last[1])
    return PatternSize(1 + sum(one[0] for one in groups), 1 + sum(one[1] for one in groups))


def _class_end(pattern: str, place: int) -> tuple[int, int]:
    """Finds the end of a class that was opened before `place`, and counts its states."""
    states = _CLASS_STATES
    depth = 1
    place += len(re.compile(r"\^?\]?").match(pattern, place)[0])  # type: ignore[index]  # matches nothing, too
    while depth and (match := _CLASS_PART.match(pattern, place)):
        place = match.end()
        if match["large"]:
            states = max(states, _LETTER_CLASS_STATES)
        depth += bool(match["open"]) - bool(match["close"])
        states += 1
    return place, states


# The same in the small: whether a row needs a count at all.

_MOST_ROOM = 2**22


def plain_room(tree: CelNode) -> int:
    """Returns the weight up to which values can be given to an expression without a count, since
    no shape of them would take more than MAX_STEPS; -1: none can. Raises TooManySteps for an
    expression that takes more whatever it is given."""
    least = CostMeter({}).count(tree)
    nodes = list(tree.walk())
    patterns = [
        node.parts[-1] for node in nodes if node.kind == "method" and node.value == "matches"
    ]
    if any(pattern.kind != "literal" for pattern in patterns):
        return -1
    parts_read = sum(pattern_size(str(pattern.value)).parts for pattern in patterns)
    each_weight = len(nodes) * _READ_AS_COPIED
    each_weight += parts_read * _CHARACTERS_COPIED // _PATTERN_PARTS_READ
    if any(map(_grows, nodes)):
        each_weight *= len(nodes)
    loops = _loops(tree)
    return bisect_right(
        range(1, _MOST_ROOM),
        MAX_STEPS,
        key=lambda weight: (least + each_weight * weight) * weight**loops + _HANDED * weight,
    )


def _grows(node: CelNode) -> bool:
    """True if a part may weigh more than the values that are given."""
    if node.kind in ("list", "map"):
        return any(part.kind != "literal" for part in node.parts)
    return (node.kind, node.value) == ("op", "+") or (node.kind == "macro" and node.value == "map")


def _loops(node: CelNode) -> int:
    """Counts how often macros walk a list for each element of another one, at most."""
    inner = max(map(_loops, node.parts), default=0)
    if node.kind != "macro":
        return inner
    return inner + (2 if node.value in _COLLECTING else 1)
