"""Guards (`when:`, `filter:`): compiled once, evaluated for each row, with the reason where a row
makes one fail."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from agac.core.errors import Problem, Where, listed
from agac.spec.cel import CelNode, CelProgram, Chain, parse, shown, spot
from agac.spec.guard_checks import ARITHMETIC, doubled
from agac.spec.guard_cost import MAX_STEPS, CostMeter, TooManySteps, plain_room, weight_of
from agac.spec.guard_text import METHODS, date_faults, text_faults
from agac.spec.json_schema import WholeNumbers

MAX_SHOWN = 80  # characters of a value that stand beside a guard in `filtered.jsonl`

STORED = Where("the stored definition")  # the place of what a run stored

FAILURES = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError)
"""What the library raises for a value that does not fit."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard that can be read. `names` are the first names of `chains`, the ways that it reads:
    each once, in the order of the text, without what macros bind. `where` is the place of the
    whole text."""

    text: str
    names: tuple[str, ...]
    where: Where
    chains: tuple[Chain, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on a result, and what is said of one for which it does not hold."""

    guard: Guard
    message: str

    @staticmethod
    def bodies(checks: Iterable[Check]) -> list[dict[str, str]]:
        """Checks as a definition stores them."""
        return [{"check": one.guard.text, "message": one.message} for one in checks]

    @staticmethod
    def of(bodies: Iterable[Mapping[str, str]]) -> tuple[Check, ...]:
        """Those of a stored definition, whose conditions are named, not read."""
        return tuple(Check(Guard(one["check"], (), STORED), one["message"]) for one in bodies)


def compile_guard(text: str, where: Where) -> tuple[Guard | None, list[Problem]]:
    """The guard of `text`, or None and everything that is wrong with it."""
    faults = list(text_faults(text))
    if faults:
        return None, [Problem(where, message) for message in dict.fromkeys(faults)]
    tree = parse(text)
    if where is not STORED and (faults := [*date_faults(tree, text)]):
        return None, [Problem(where, message) for message in faults]
    if where is not STORED and (fault := _cost_fault(text, tree)) is not None:
        return None, [Problem(where, fault)]
    chains = tuple(tree.references())
    return Guard(text, tuple(dict.fromkeys(str(chain[0]) for chain in chains)), where, chains), []


_REMEDY = (
    "test fewer elements, with fewer macros inside one another, or compute it in a python stage"
)


def _cost_fault(text: str, tree: CelNode) -> str | None:
    """Why a guard takes too long for any row; None for one that can be evaluated for small rows."""
    try:
        CostMeter({}).count(tree)
    except TooManySteps as refused:
        part = _part(text, refused.node)
        return (
            f"{spot(text, refused.node.start)}: `{part}` takes more than {MAX_STEPS:,} "
            f"steps for each row; {_REMEDY}"
        )
    return None


def _part(text: str, node: CelNode) -> str:
    """The text of a part, cut to 80 characters."""
    written = " ".join(text[node.start : node.end].split())
    if len(written) <= MAX_SHOWN:
        return written
    return f"{written[: MAX_SHOWN - 1]}…"


class GuardFailed(Exception):
    """The guard is neither true nor false for this row; the text says why and what to write
    instead."""


class Evaluator:
    """A guard made ready for many rows. `stages` are the names that stand for results: null means
    skipped. `integers` say of results, by the names of their stages, where their schemas have
    integers. Only what the guard reads is handed over for a row: converting the row costs more
    than the rest."""

    def __init__(
        self,
        guard: Guard,
        *,
        stages: Collection[str] = (),
        integers: Mapping[str, WholeNumbers] = MappingProxyType({}),
    ) -> None:
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
        """Whether the guard holds for what `visible` shows: fields, results, `vars`, and `row`
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
            raise GuardFailed(_skipped(text))
        raise GuardFailed(
            f"`{text}` is {_described(result)}, not true or false; {_as_condition(result, text)}"
        )

    def _value_of_integers(self, handed: Mapping[str, Any]) -> Any:
        """The same as `_value`, where that fails also with whole numbers for what the schemas of
        results call integers: an agac before 2.0 was written as 2 may have stored it."""
        try:
            return self._value(handed)
        except FAILURES:
            known = self._integers
            whole = {
                name: known[name].of(value) if name in known else value
                for name, value in handed.items()
            }
            if all(whole[name] is value for name, value in handed.items()):
                raise
            return self._value(whole)

    def _value(self, handed: Mapping[str, Any]) -> Any:
        """What the guard comes to. Raises GuardFailed, and FAILURES where no part decides it."""
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
        """Whether values are so small that the guard cannot take long, whatever they hold."""
        room = self._room
        for value in handed.values():
            if room < 0:
                return False
            room -= weight_of(value, room)
        return room >= 0

    def _measured(self, handed: Mapping[str, Any]) -> Any:
        """The guard's value, if it takes no more steps than it may; of `a && b` and `a || b` the
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
        """What the guard read and is there, by the way it is written: texts and structures cut to
        80 characters."""
        found: dict[str, Any] = {}
        for chain in self._guard.chains:
            value: Any = visible
            try:
                for part in chain:
                    if isinstance(value, str):  # whose characters are no fields
                        raise TypeError
                    value = value[part]
            except (LookupError, TypeError):
                continue
            found[shown(chain)] = _cut(value)
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
    members = dict.fromkeys(
        chain[1] if len(chain) > 1 else None for chain in chains if chain[0] == name
    )
    texts = tuple(member for member in members if isinstance(member, str))
    return texts if len(texts) == len(members) else None


_pieces = json.JSONEncoder(ensure_ascii=False, default=str).iterencode


def _cut(value: Any) -> Any:
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

_NUMERIC = {"int": "^-?[0-9]+$", "uint": "^[0-9]+$", "double": "^-?[0-9]+([.][0-9]+)?$"}
_FORMS = {"timestamp": '"2026-01-31T12:00:00Z"', "duration": '"1h30m"'}
# what a part of a guard sees: what the row shows, and the names that macros bind
Values = Mapping[str, Any]


class _Parts:
    """The parts of a guard's text, evaluated one by one with no more than `steps` steps in all.
    `each`: the steps that a part takes at least, as to evaluate many small ones takes longer than
    the library takes for all together."""

    def __init__(self, text: str, steps: int, each: int = 0) -> None:
        self._text = text
        self._left = steps
        self._each = each
        self._programs: dict[str, CelProgram] = {}

    def value(self, node: CelNode, values: Values) -> Any:
        """What a part comes to. Raises TooManySteps before it would take more steps than are
        left."""
        return self._computed(node, values, self._text[node.start : node.end])

    def _computed(self, node: CelNode, values: Values, text: str) -> Any:
        """What `text` comes to, which takes no more steps than `node`. Raises as `value` does."""
        used = {part.value for part in node.walk() if part.kind == "name"}
        seen = {name: values[name] for name in used if name in values}
        self._left -= max(CostMeter(seen, self._left).count(node), self._each)
        if self._left < 0:
            raise TooManySteps(node)
        if text not in self._programs:
            self._programs[text] = CelProgram(text)
        return self._programs[text].execute(seen)

    def decided(self, node: CelNode, values: Values, *, elements: bool = False) -> Any:
        """The same of a whole guard, part by part from the left until one decides; with
        `elements`, element by element for `exists` and `all` too. As CEL says, a part that fails
        counts only where no other one decides."""
        if node.kind == "op" and node.value in ("&&", "||"):
            parts = ((part, values) for part in node.parts)
            return self._first_deciding(parts, decides=node.value == "||", elements=elements)
        if node.kind == "op" and node.value == "!":
            return not self._flag(node.parts[0], values, elements=elements)
        if node.kind == "op" and node.value == "?:":
            test, chosen, other = node.parts
            holds = self._flag(test, values, elements=elements)
            return self.decided(chosen if holds else other, values, elements=elements)
        if not elements:
            return self.value(node, values)
        if _is_over_elements(node):
            over, name, body = node.parts
            several = self.value(over, values)
            if isinstance(several, list | dict):
                parts = ((body, {**values, name.value: element}) for element in several)
                return self._first_deciding(parts, decides=node.value == "exists", elements=True)
            return self.value(node, values)
        return self._with_verdicts(node, values)

    def _with_verdicts(self, node: CelNode, values: Values) -> Any:
        """What a part comes to, with the verdict of each `exists` and `all` in it in its place."""
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
        """`decides` if one of the parts comes to it. Raises what the first part raised that fails,
        if none does."""
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
        result = self.decided(node, values, elements=elements)
        if not isinstance(result, bool):
            raise ValueError(f"{self._text[node.start : node.end]} is not true or false")
        return result


def _is_over_elements(node: CelNode) -> bool:
    return node.kind == "macro" and node.value in ("exists", "all")


def _over_elements(node: CelNode) -> Iterator[CelNode]:
    """The `exists` and `all` in a part, the outermost, that see no name of another macro."""
    if _is_over_elements(node):
        yield node
        return
    for part in node.parts[:1] if node.kind == "macro" else node.parts:
        yield from _over_elements(part)


def _too_long(text: str, node: CelNode, values: Values) -> str:
    """What is said of a row for which a part of the guard takes too many steps."""
    part = _part(text, node)
    over = node.parts[0] if node.kind == "macro" else node
    sizes = [
        f"{shown(way)} is {_described(value)}"
        for way in over.references()
        if isinstance(value := _followed(values, way), str | list | Mapping)
    ]
    reason = f": {', '.join(sizes[:3])}" if sizes else ""
    return f"`{part}` takes more than {MAX_STEPS:,} steps{reason}; {_REMEDY}"


def _followed(values: Values, way: Chain) -> Any:
    """The value at a way, None where there is none."""
    value: Any = values
    try:
        for part in way:
            value = value[part]
    except (LookupError, TypeError):
        return None
    return value


class _Explainer:
    """One guard's text, evaluated part by part for one row, which shows `visible`; `stages` in it
    are results. It may take as many steps as the guard: a failure that takes longer to find is
    told of the part in which it is."""

    def __init__(self, text: str, visible: Mapping[str, Any], stages: frozenset[str]) -> None:
        self._text = text
        self._visible = visible
        self._stages = stages
        self._parts = _Parts(text, MAX_STEPS)

    def sentence(self, node: CelNode, values: Values, error: Exception) -> str:
        """Where, what and remedy for the smallest part of `node` that fails; `error` is that of
        the node."""
        try:
            return self._sentence(node, values, error)
        except TooManySteps:
            return f"`{_part(self._text, node)}` cannot be computed: {_reason(error)}"

    def _sentence(self, node: CelNode, values: Values, error: Exception) -> str:
        for part, inner in self._needed(node, values):
            try:
                self._run(part, inner)
            except FAILURES as deeper:
                return self.sentence(part, inner, deeper)
        if "onversion" in str(error):
            for name, value in values.items():
                kind = _foreign(value)
                if kind:
                    return (
                        f"`{name}` holds {kind}, which guards cannot read; give it as text "
                        "or number"
                    )
        if node.kind == "name":
            has = listed(name for name in self._visible if name not in ("row", "vars", "row_json"))
            remedy = f"write `has(row.{node.value}) && …` where it may be missing"
            return f"`{node.value}` is missing in this row; it has: {has}; {remedy}"
        if node.kind in ("select", "index", "has"):
            return self._missing_step(node.parts[0] if node.kind == "has" else node, values)
        text = self._shown(node)
        what = f"`{text}` cannot be computed"
        if node.kind not in ("call", "method", "op", "macro"):
            return f"{what}: {_reason(error)}"
        if node.kind == "macro" or node.value == "?:":
            deciding = node.parts[:1]
        else:
            deciding = node.parts
        sides = [(part, self._run(part, values)) for part in deciding]
        for part, value in sides:
            if value is None and node.value not in ("==", "!=") and part.kind != "literal":
                return self._null(part, what)
        said = [(self._shown(part), value) for part, value in sides]
        if node.kind == "macro":
            name, value = said[0]
            if isinstance(value, list | dict):
                return f"{what}: {_reason(error)}"
            return f"`{text}`: {name} is {_described(value)}; `{node.value}` goes over a list"
        given = [
            f"{self._shown(part)} is {_described(value)}"
            for part, value in sides
            if part.kind != "literal"
        ]
        what += f": {' and '.join(given) or _reason(error)}"
        if node.kind != "op":
            return _failed_call(node, said, what)
        return _failed_operation(node, text, said, what, error, doubled(node, self._text))

    def _shown(self, node: CelNode) -> str:
        return self._text[node.start : node.end].strip()

    def _run(self, node: CelNode, values: Values) -> Any:
        return self._parts.value(node, values)

    def _needed(self, node: CelNode, values: Values) -> Iterator[tuple[CelNode, Values]]:
        """The parts that CEL evaluates for `node`, as far as they decide, each with what it
        sees."""
        if node.kind == "has":
            yield node.parts[0].parts[0], values
        elif node.kind == "macro":
            yield node.parts[0], values
            elements = self._run(node.parts[0], values)
            for element in islice(
                elements if isinstance(elements, list | dict) else (), MAX_ELEMENTS
            ):
                yield from (
                    (body, {**values, node.parts[1].value: element}) for body in node.parts[2:]
                )
        elif node.kind == "op" and node.value == "?:":
            yield node.parts[0], values
            flag = self._run(node.parts[0], values)
            if isinstance(flag, bool):
                yield node.parts[1 if flag else 2], values
        else:
            yield from ((part, values) for part in node.parts)

    def _null(self, part: CelNode, what: str) -> str:
        name = self._shown(part)
        if name in self._stages:
            return _skipped(name)
        return f"{what}: {name} is null; write `{name} != null && …`"

    def _missing_step(self, node: CelNode, values: Values) -> str:
        """A step into a value that does not have it."""
        before = self._shown(node.parts[0])
        value = self._run(node.parts[0], values)
        if node.kind == "select":
            key = node.value
        else:
            key = self._run(node.parts[1], values)
        step = json.dumps(key, ensure_ascii=False, default=str)
        if value is None:
            return self._null(node.parts[0], f"{before} has no {step}")
        if isinstance(value, Mapping):
            way = shown(node.chain) if node.chain else self._shown(node)
            check = f"has({way})" if way.endswith(f".{key}") else f"{step} in {before}"
            there = listed((str(name) for name in value), "no fields")
            return (
                f"`{before}` has no field {step}; it has: {there}; write `{check} && …` "
                "where it may be missing"
            )
        if isinstance(value, list) and isinstance(key, int):
            check = f"size({before}) > {key}"
            return (
                f"`{before}` has {len(value)} elements, none at {key} (counted from 0); "
                f"write `{check} && …`"
            )
        if isinstance(value, list):
            return (
                f"`{before}` is a list, which has no field {step}; write `{before}[0]` or "
                f"`{before}.exists(item, …)`"
            )
        return f"`{before}` is {_described(value)}, which has no field {step}"


def _failed_call(node: CelNode, sides: list[tuple[str, Any]], what: str) -> str:
    """What to write instead of a function's call; `what` says why it fails."""
    function, (name, value) = node.value, sides[0]
    if function in _NUMERIC and isinstance(value, str):
        if function != "double" and _A_NUMBER.fullmatch(value):
            return f"{what}, which is no whole number of 64 bits; write `double({name})`"
        return f'{what}, which is no number; write `{name}.matches("{_NUMERIC[function]}") && …`'
    if function in _NUMERIC and isinstance(value, bool):
        return f"{what}; write `{name} ? 1 : 0`"
    if function in _FORMS:
        return f"{what}; a {function} is written as {_FORMS[function]}"
    if node.kind == "method" and function in METHODS and not isinstance(value, str):
        remedy = ""
        if isinstance(value, bool | int | float):
            remedy = f": write `string({name}).{function}(…)`"
        elif isinstance(value, list):
            remedy = f": write `{name}.exists(item, item.{function}(…))`"
        return f"{what}; `{function}` is for texts{remedy}"
    if function == "matches":
        return f"{what}; the pattern is no regular expression"
    return what


def _failed_operation(
    node: CelNode,
    text: str,
    sides: list[tuple[str, Any]],
    what: str,
    error: Exception,
    as_doubles: str,
) -> str:
    """What to write instead of an operation; `what` says why it fails, `as_doubles` is the same
    with numbers that have a point."""
    texts = [name for name, value in sides if isinstance(value, str)]
    if node.value in ("&&", "||", "!", "?:"):
        name, value = next((side for side in sides if not isinstance(side[1], bool)), sides[0])
        return f"`{name}` is {_described(value)}, not true or false; {_as_condition(value, name)}"
    if isinstance(error, ArithmeticError):
        return (
            f"{what}; "
            f"{'division by zero' if isinstance(error, ZeroDivisionError) else 'beyond 64 bits'}"
        )
    if node.value in ARITHMETIC:
        return f"{what}; {_arithmetic_remedy(node.value, sides, as_doubles)}"
    if node.value == "in":
        if isinstance(sides[1][1], str):
            remedy = f": write `{sides[1][0]}.contains({sides[0][0]})`"
        else:
            remedy = ""
        return f"{what}; `in` looks into lists and objects{remedy}"
    # values of csv files are texts
    if len(texts) == 1 and any(type(value) in (int, float) for _, value in sides):
        if texts[0].startswith(("'", '"')):
            return f"{what}, not a text; write {texts[0]} without quotes"
        if not _A_NUMBER.fullmatch(next(value for _, value in sides if isinstance(value, str))):
            return f"{what}, which is no number; compare it with a text in quotes"
        remedy = text.replace(texts[0], f"double({texts[0]})")
        return f"{what}, not a number (values of csv files are text); write `{remedy}`"
    if any(value != value for _, value in sides if isinstance(value, float)):
        return f"{what}; what is not a number is neither smaller nor larger"
    if len(sides) > 1:
        return f"{what}; values of different kinds can only be told apart with `==` and `!=`"
    return what


_A_NUMBER = re.compile(r"[+-]?[0-9]+(?:[.][0-9]*)?(?:[eE][+-]?[0-9]+)?")


def _arithmetic_remedy(sign: str, sides: list[tuple[str, Any]], as_doubles: str) -> str:
    """What to write instead of arithmetic, after the values of its sides are said."""
    if len(sides) == 1:
        return f"`{sign}` takes a number: write `{sign}double({sides[0][0]})` of a text that is one"
    if any(not _is_number(value) for _, value in sides):
        others = ", two texts or two lists" if sign == "+" else ""
        return f"`{sign}` takes two numbers{others}"
    if sign == "%":
        name = next((name for name, value in sides if not isinstance(value, int)), sides[0][0])
        return f"`%` takes whole numbers: write `int({name})`"
    return f"`{sign}` takes two whole numbers or two with a point: write `{as_doubles}`"


def _is_number(value: Any) -> bool:
    """Whether it is a number, or a text that `double` reads as one."""
    if isinstance(value, str):
        return _A_NUMBER.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def _skipped(name: str) -> str:
    return f"{name} was skipped for this row; write `{name} != null && …`"


def _as_condition(value: Any, name: str) -> str:
    if not re.match(r'[\w.]+(?:\["[^"]*"\])?\Z', name):
        return "compare it with a value"
    if isinstance(value, str):
        return (
            f"compare it: `{name} == "
            f"{json.dumps(value if len(value) < 30 else '…', ensure_ascii=False)}`"
        )
    if isinstance(value, int | float):
        return f"compare it: `{name} > 0`"
    if value is None:
        return f"write `{name} != null`"
    return f"write `size({name}) > 0`"


def _described(value: Any) -> str:
    """A value in a sentence: `the text "12"`, `a list of 3`."""
    match value:
        case str():
            return (
                "the text "
                f"{json.dumps(value if len(value) <= 40 else value[:39] + '…', ensure_ascii=False)}"
            )
        case None | True | False:
            return json.dumps(value)
        case int() | float():
            if value != value:
                return "not a number (NaN)"
            return f"the number {value}"
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
            if abs(value) >= 10**308:
                return "a whole number of more than 308 digits"
            return None
        case None | float():
            return None
    return f"a value of type {type(value).__name__}"


def _reason(error: Exception) -> str:
    """What the library says, where it says more than that something does not fit."""
    fits = isinstance(error, TypeError) or "Undefined variable" in str(error)
    if fits:
        return "its values do not fit together"
    return str(error).split(". ")[0].partition("\n")[0]
