"""Guards (`when:`, `filter:`): compiled once, evaluated for each row, with the reason where a row
makes one fail."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from agac.core.errors import Problem, Where, listed
from agac.spec.cel import CelNode, CelProgram, Chain, parse, shown, spot
from agac.spec.field_shapes import WholeNumbers
from agac.spec.guard_checks import doubled
from agac.spec.guard_cost import MAX_STEPS, CostMeter, TooManySteps, plain_room, weight_of
from agac.spec.guard_text import date_faults, text_faults
from agac.spec.guard_words import (
    as_condition,
    described,
    failed_call,
    failed_operation,
    foreign_kind,
    reason_of,
    skipped,
)

MAX_SHOWN = 80  # characters of a value that is shown with a guard in `filtered.jsonl`

STORED = Where("the stored definition")  # the place of what a run stored

FAILURES = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError)
"""What the library raises for a value that does not fit."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard that can be read."""

    text: str
    names: tuple[str, ...]
    """The first names of `chains`: each once, in the order of the text, without what macros
    bind."""
    where: Where
    """The place of the whole text."""
    chains: tuple[Chain, ...] = ()
    """The ways that it reads."""


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on a result."""

    guard: Guard
    message: str
    """What is wrong with a result for which the condition does not hold."""

    @staticmethod
    def bodies(checks: Iterable[Check]) -> list[dict[str, str]]:
        """Converts checks to what a definition stores of them."""
        return [{"check": check.guard.text, "message": check.message} for check in checks]

    @staticmethod
    def of(bodies: Iterable[Mapping[str, str]]) -> tuple[Check, ...]:
        """Makes the checks of a stored definition, whose conditions are named, not read."""
        return tuple(Check(Guard(body["check"], (), STORED), body["message"]) for body in bodies)


def compile_guard(text: str, where: Where) -> tuple[Guard | None, list[Problem]]:
    """Compiles the guard of `text`, or returns None and everything that is wrong with it."""
    faults = list(text_faults(text))
    if faults:
        return None, [Problem(where, message) for message in dict.fromkeys(faults)]
    tree = parse(text)
    if where is not STORED:
        faults = list(date_faults(tree, text))
        if not faults:
            faults = list(_cost_faults(text, tree))
        if faults:
            return None, [Problem(where, message) for message in faults]
    chains = tuple(tree.references())
    names = tuple(dict.fromkeys(str(chain[0]) for chain in chains))
    return Guard(text, names, where, chains), []


_REMEDY = (
    "test fewer elements, with fewer macros inside one another, or compute it in a python stage"
)


def _cost_faults(text: str, tree: CelNode) -> Iterator[str]:
    """Yields the part of a guard that takes too long for any row, if there is one."""
    try:
        CostMeter({}).count(tree)
    except TooManySteps as refused:
        part = _part(text, refused.node)
        yield (
            f"{spot(text, refused.node.start)}: `{part}` takes more than {MAX_STEPS:,} "
            f"steps for each row; {_REMEDY}"
        )


def _part(text: str, node: CelNode) -> str:
    """Returns the text of a part, cut to 80 characters."""
    written = " ".join(text[node.start : node.end].split())
    if len(written) <= MAX_SHOWN:
        return written
    return f"{written[: MAX_SHOWN - 1]}…"


class GuardFailed(Exception):
    """The guard is neither true nor false for this row; the text says why and what to write
    instead."""


class Evaluator:
    """A guard made ready for many rows. Only what the guard reads is handed over for a row:
    converting the row costs more than the rest."""

    def __init__(
        self,
        guard: Guard,
        *,
        stages: Collection[str] = (),
        integers: Mapping[str, WholeNumbers] = MappingProxyType({}),
    ) -> None:
        """`stages` are the names that mean results, of which null is one that was skipped.
        `integers` has, by the names of stages, where the schemas of their results have integers."""
        self._guard = guard
        self._stages = frozenset(stages)
        self._integers = integers
        self._program = CelProgram(guard.text)
        self._picked = [(name, _members(guard.chains, name)) for name in guard.names]
        self._tree = parse(guard.text)
        macros = {node.value for node in self._tree.walk() if node.kind == "macro"}
        self._has_deciding_elements = not macros.isdisjoint(("exists", "all"))
        try:
            self._room = plain_room(self._tree)
        except TooManySteps:  # in a run that was recorded before such guards were refused
            self._room = -1

    def test(self, visible: Mapping[str, Any]) -> bool:
        """True if the guard holds for what `visible` shows: fields, results, `vars`, and `row`
        with all fields. Whole numbers beyond 64 bits count as the double nearest to them; a
        Decimal as a double. Raises `GuardFailed`, also where the guard would take more than
        MAX_STEPS steps for what is shown."""
        guard = self._guard
        handed = self._handed(visible)
        try:
            result = self._value_of_integers(handed)
        except FAILURES as error:
            values = {name: visible[name] for name in guard.names if name in visible}
            explainer = _Explainer(guard.text, visible, self._stages)
            raise GuardFailed(explainer.sentence(self._tree, values, error)) from None
        if isinstance(result, bool):
            return result
        text = guard.text.strip()
        if result is None and text in self._stages and guard.chains == ((text,),):
            raise GuardFailed(skipped(text))
        raise GuardFailed(
            f"`{text}` is {described(result)}, not true or false; {as_condition(result, text)}"
        )

    def _value_of_integers(self, handed: Mapping[str, Any]) -> Any:
        """Computes the guard as `_value` does. Where that fails, computes it with whole numbers for
        what the schemas of results call integers: an agac before 2.0 was written as 2 may have
        stored it."""
        try:
            return self._value(handed)
        except FAILURES:
            integers = self._integers
            whole = {
                name: integers[name].of(value) if name in integers else value
                for name, value in handed.items()
            }
            if all(whole[name] is value for name, value in handed.items()):
                raise
            return self._value(whole)

    def _value(self, handed: Mapping[str, Any]) -> Any:
        """Computes the guard. Raises GuardFailed, and FAILURES where no part decides it."""
        try:
            if self._is_small(handed):
                return self._program.execute(handed)
            return self._measured(handed)
        except FAILURES as error:
            if not self._has_deciding_elements:
                raise
            try:
                parts = _Parts(self._guard.text, MAX_STEPS, _EACH_ELEMENT)
                return parts.decided(self._tree, handed, elements=True)
            except (*FAILURES, TooManySteps):
                raise error from None

    def _is_small(self, handed: Mapping[str, Any]) -> bool:
        """True if values are so small that the guard cannot take long, whatever they hold."""
        room = self._room
        for value in handed.values():
            if room < 0:
                return False
            room -= weight_of(value, room)
        return room >= 0

    def _measured(self, handed: Mapping[str, Any]) -> Any:
        """Computes the guard, if it takes no more steps than it may; of `a && b` and `a || b` the
        first parts may decide before the part that would take too many. Raises GuardFailed."""
        try:
            CostMeter(handed).count(self._tree)
        except TooManySteps:
            parts = _Parts(self._guard.text, MAX_STEPS)
            try:
                return parts.decided(self._tree, handed)
            except TooManySteps as refused:
                raise GuardFailed(_too_long(self._guard.text, refused.node, handed)) from None
        return self._program.execute(handed)

    def values(self, visible: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values that the guard read and the row has, by the ways as they are written:
        texts and structures cut to 80 characters."""
        values: dict[str, Any] = {}
        for chain in self._guard.chains:
            value: Any = visible
            try:
                for part in chain:
                    if isinstance(value, str):  # whose characters are no fields
                        raise TypeError
                    value = value[part]
            except (LookupError, TypeError):
                continue
            values[shown(chain)] = _cut(value)
        return values

    def _handed(self, visible: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values that the library is given: the names that the guard reads, of each
        only the fields that it reads."""
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
    """Returns the fields that the guard reads of `name`; None when it may read them all."""
    members = dict.fromkeys(
        chain[1] if len(chain) > 1 else None for chain in chains if chain[0] == name
    )
    texts = tuple(member for member in members if isinstance(member, str))
    return texts if len(texts) == len(members) else None


_pieces = json.JSONEncoder(ensure_ascii=False, default=str).iterencode


def _cut(value: Any) -> Any:
    """Cuts texts, and the JSON of structures, to 80 characters; gives short values as they are."""
    if isinstance(value, bool | float | None):
        return value
    text = value
    if not isinstance(value, str):
        text = ""
        for piece in _pieces(value):  # a list may be large, and only its beginning is shown
            text += piece
            if len(text) > MAX_SHOWN:
                break
    if len(text) > MAX_SHOWN:
        return text[: MAX_SHOWN - 1] + "…"
    if isinstance(value, str | int | list | dict):
        return value
    return text


# Why a guard fails for a row, in words.

_EACH_ELEMENT = 1000
"""Steps for an element that is evaluated by itself, so that at most 10,000 are."""

MAX_ELEMENTS = 1000
"""Elements of a list that are looked at for the one that fails: this is for a sentence, not for
the result."""

# what a part of a guard sees: what the row shows, and the names that macros bind
Values = Mapping[str, Any]


class _Parts:
    """The parts of a guard's text, evaluated one by one."""

    def __init__(self, text: str, steps: int, each: int = 0) -> None:
        """Allows all parts `steps` steps together. `each` is the least that a part counts as:
        evaluating many small ones takes longer than the library takes for all together."""
        self._text = text
        self._left = steps
        self._each = each
        self._programs: dict[str, CelProgram] = {}

    def value(self, node: CelNode, values: Values) -> Any:
        """Computes a part. Raises TooManySteps before it would take more steps than are left."""
        return self._computed(node, values, self._text[node.start : node.end])

    def _computed(self, node: CelNode, values: Values, text: str) -> Any:
        """Computes `text`, which takes no more steps than `node`. Raises as `value` does."""
        used = {part.value for part in node.walk() if part.kind == "name"}
        seen = {name: values[name] for name in used if name in values}
        self._left -= max(CostMeter(seen, self._left).count(node), self._each)
        if self._left < 0:
            raise TooManySteps(node)
        if text not in self._programs:
            self._programs[text] = CelProgram(text)
        return self._programs[text].execute(seen)

    def decided(self, node: CelNode, values: Values, *, elements: bool = False) -> Any:
        """Computes a whole guard, part by part from the left until one decides; with `elements`,
        element by element for `exists` and `all` too. As CEL says, a part that fails counts only
        where no other one decides."""
        match node.kind, node.value:
            case "op", "&&" | "||":
                parts = ((part, values) for part in node.parts)
                return self._first_deciding(parts, decides=node.value == "||", elements=elements)
            case "op", "!":
                return not self._flag(node.parts[0], values, elements=elements)
            case "op", "?:":
                test, chosen, other = node.parts
                holds = self._flag(test, values, elements=elements)
                return self.decided(chosen if holds else other, values, elements=elements)
        if not elements:
            return self.value(node, values)
        if _is_over_elements(node):
            return self._over_elements(node, values)
        return self._with_verdicts(node, values)

    def _over_elements(self, node: CelNode, values: Values) -> Any:
        """Computes an `exists` or `all` element by element, until one decides."""
        over, name, body = node.parts
        elements = self.value(over, values)
        if not isinstance(elements, list | dict):
            return self.value(node, values)
        parts = ((body, {**values, name.value: element}) for element in elements)
        return self._first_deciding(parts, decides=node.value == "exists", elements=True)

    def _with_verdicts(self, node: CelNode, values: Values) -> Any:
        """Computes a part, with the verdict of each `exists` and `all` in it in its place."""
        pieces = list[str]()
        at = node.start
        for macro in _over_elements(node):
            with suppress(*FAILURES):
                verdict = self._flag(macro, values, elements=True)
                pieces += [self._text[at : macro.start], "true" if verdict else "false"]
                at = macro.end
        return self._computed(node, values, "".join(pieces) + self._text[at : node.end])

    def _first_deciding(
        self, parts: Iterable[tuple[CelNode, Values]], *, decides: bool, elements: bool
    ) -> bool:
        """Returns `decides` if one of the parts comes to it. Raises what the first part raised that
        fails, if none does."""
        failure: Exception | None = None
        for part, values in parts:
            try:
                if self._flag(part, values, elements=elements) is decides:
                    return decides
            except FAILURES as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return not decides

    def _flag(self, node: CelNode, values: Values, *, elements: bool) -> bool:
        """Computes a part that has to be true or false. Raises ValueError where it is not."""
        result = self.decided(node, values, elements=elements)
        if not isinstance(result, bool):
            raise ValueError(f"{self._text[node.start : node.end]} is not true or false")
        return result


def _is_over_elements(node: CelNode) -> bool:
    """True for the macros `exists` and `all`."""
    return node.kind == "macro" and node.value in ("exists", "all")


def _over_elements(node: CelNode) -> Iterator[CelNode]:
    """Yields the `exists` and `all` in a part, the outermost, that see no name of another macro."""
    if _is_over_elements(node):
        yield node
        return
    for part in node.parts[:1] if node.kind == "macro" else node.parts:
        yield from _over_elements(part)


def _too_long(text: str, node: CelNode, values: Values) -> str:
    """Returns the sentence for a row for which a part of the guard takes too many steps."""
    part = _part(text, node)
    over = node.parts[0] if node.kind == "macro" else node
    sizes = []
    for way in over.references():
        value = _followed(values, way)
        if isinstance(value, str | list | Mapping):
            sizes.append(f"{shown(way)} is {described(value)}")
    reason = f": {', '.join(sizes[:3])}" if sizes else ""
    return f"`{part}` takes more than {MAX_STEPS:,} steps{reason}; {_REMEDY}"


def _followed(values: Values, way: Chain) -> Any:
    """Returns the value at a way, None where there is none."""
    value: Any = values
    try:
        for part in way:
            value = value[part]
    except (LookupError, TypeError):
        return None
    return value


class _Explainer:
    """Explains why a guard fails for one row, by evaluating its text part by part. It may take as
    many steps as the guard: a failure that takes longer to find is told of the part in which it
    is."""

    def __init__(self, text: str, visible: Mapping[str, Any], stages: frozenset[str]) -> None:
        """`visible` is what the row shows; the names `stages` in it are results."""
        self._text = text
        self._visible = visible
        self._stages = stages
        self._parts = _Parts(text, MAX_STEPS)

    def sentence(self, node: CelNode, values: Values, error: Exception) -> str:
        """Says where, what and remedy for the smallest part of `node` that fails; `error` is that
        of the node."""
        try:
            return self._sentence(node, values, error)
        except TooManySteps:
            return f"`{_part(self._text, node)}` cannot be computed: {reason_of(error)}"

    def _sentence(self, node: CelNode, values: Values, error: Exception) -> str:
        """Explains the first part that fails; `node` itself if all its parts can be computed."""
        for part, inner in self._needed(node, values):
            try:
                self._run(part, inner)
            except FAILURES as deeper:
                return self.sentence(part, inner, deeper)
        if "onversion" in str(error):
            unreadable = _unreadable(values)
            if unreadable is not None:
                return unreadable
        if node.kind == "name":
            return self._missing_name(node.value)
        if node.kind in ("select", "index"):
            return self._missing_step(node, values)
        if node.kind == "has":
            return self._missing_step(node.parts[0], values)
        if node.kind in ("call", "method", "op", "macro"):
            return self._failed(node, values, error)
        return f"`{self._shown(node)}` cannot be computed: {reason_of(error)}"

    def _failed(self, node: CelNode, values: Values, error: Exception) -> str:
        """Explains a call, operation or macro by the values that it is given."""
        text = self._shown(node)
        what = f"`{text}` cannot be computed"
        decides_alone = node.kind == "macro" or node.value == "?:"
        deciding = node.parts[:1] if decides_alone else node.parts
        computed = [(part, self._run(part, values)) for part in deciding]
        for part, value in computed:
            if value is None and node.value not in ("==", "!=") and part.kind != "literal":
                return self._null(part, what)
        sides = [(self._shown(part), value) for part, value in computed]
        if node.kind == "macro":
            name, value = sides[0]
            if isinstance(value, list | dict):
                return f"{what}: {reason_of(error)}"
            return f"`{text}`: {name} is {described(value)}; `{node.value}` goes over a list"
        values_in_words = [
            f"{self._shown(part)} is {described(value)}"
            for part, value in computed
            if part.kind != "literal"
        ]
        what = f"{what}: {' and '.join(values_in_words) or reason_of(error)}"
        if node.kind != "op":
            return failed_call(node, sides, what)
        return failed_operation(node, text, sides, what, error, doubled(node, self._text))

    def _missing_name(self, name: str) -> str:
        """Returns the sentence for a name that the row does not have."""
        names = listed(name for name in self._visible if name not in ("row", "vars", "row_json"))
        remedy = f"write `has(row.{name}) && …` where it may be missing"
        return f"`{name}` is missing in this row; it has: {names}; {remedy}"

    def _shown(self, node: CelNode) -> str:
        """Returns a part as it is written."""
        return self._text[node.start : node.end].strip()

    def _run(self, node: CelNode, values: Values) -> Any:
        """Computes a part."""
        return self._parts.value(node, values)

    def _needed(self, node: CelNode, values: Values) -> Iterator[tuple[CelNode, Values]]:
        """Yields the parts that CEL evaluates for `node`, as far as they decide, each with the
        values that it sees."""
        if node.kind == "has":
            yield node.parts[0].parts[0], values
        elif node.kind == "macro":
            yield from self._needed_of_macro(node, values)
        elif node.kind == "op" and node.value == "?:":
            yield node.parts[0], values
            flag = self._run(node.parts[0], values)
            if isinstance(flag, bool):
                yield node.parts[1 if flag else 2], values
        else:
            yield from ((part, values) for part in node.parts)

    def _needed_of_macro(self, node: CelNode, values: Values) -> Iterator[tuple[CelNode, Values]]:
        """Yields the list of a macro, then what it computes of each of the first elements."""
        over, name, *bodies = node.parts
        yield over, values
        elements = self._run(over, values)
        if not isinstance(elements, list | dict):
            return
        for element in islice(elements, MAX_ELEMENTS):
            for body in bodies:
                yield body, {**values, name.value: element}

    def _null(self, part: CelNode, what: str) -> str:
        """Returns the sentence for a part that is null."""
        name = self._shown(part)
        if name in self._stages:
            return skipped(name)
        return f"{what}: {name} is null; write `{name} != null && …`"

    def _missing_step(self, node: CelNode, values: Values) -> str:
        """Returns the sentence for a step into a value that does not have it."""
        before = self._shown(node.parts[0])
        value = self._run(node.parts[0], values)
        key = node.value if node.kind == "select" else self._run(node.parts[1], values)
        step = json.dumps(key, ensure_ascii=False, default=str)
        if value is None:
            return self._null(node.parts[0], f"{before} has no {step}")
        if isinstance(value, Mapping):
            way = shown(node.chain) if node.chain else self._shown(node)
            check = f"has({way})" if way.endswith(f".{key}") else f"{step} in {before}"
            fields = listed((str(name) for name in value), "no fields")
            return (
                f"`{before}` has no field {step}; it has: {fields}; write `{check} && …` "
                "where it may be missing"
            )
        if not isinstance(value, list):
            return f"`{before}` is {described(value)}, which has no field {step}"
        if isinstance(key, int):
            check = f"size({before}) > {key}"
            return (
                f"`{before}` has {len(value)} elements, none at {key} (counted from 0); "
                f"write `{check} && …`"
            )
        return (
            f"`{before}` is a list, which has no field {step}; write `{before}[0]` or "
            f"`{before}.exists(item, …)`"
        )


def _unreadable(values: Values) -> str | None:
    """Returns the sentence for the first value that the library cannot take; None if there is
    none."""
    for name, value in values.items():
        kind = foreign_kind(value)
        if kind:
            return f"`{name}` holds {kind}, which guards cannot read; give it as text or number"
    return None
