"""Finds names and comparisons of guards that no row can meet: unknown columns and results, values
that the schemas rule out."""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

from agac.core.errors import Problem, Where, did_you_mean, listed, nearest
from agac.spec.cel import CelNode, Chain, parse, shown, spot
from agac.spec.field_shapes import NUMBERS, TEXT, FieldShape, allows, kinds_in_words, kinds_of
from agac.spec.templates import ROW, VARS

_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
_Finding = tuple[str, bool]  # a sentence, and whether it is only a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardScope:
    """The names and fields that a stage's guard can read."""

    text: str
    """The guard."""
    where: Where
    """The place of the guard in its file."""
    columns: Collection[str]
    """The input's declared columns."""
    closed: bool
    """True if rows have no other columns; else an unknown name is only a warning."""
    stages: Mapping[str, Mapping[str, Any] | None]
    """The stages upstream, each with the schema of its result: None for plain text, `{}` when
    nothing is known of it."""
    variables: Collection[str]
    """The names of the workflow's `vars`."""
    others: Container[str] = ()
    """Stages of the workflow that are not upstream."""
    extra: Collection[str] = ()
    """Names of the engine's own values, such as `rows_count`."""
    every_stage: Iterable[str] | None = None
    """The names of `stages` and `others`; being the same at each stage, they make the search for a
    similar name fast. None: only `stages`."""
    fields: Mapping[str, FieldShape]
    """What is known of the values of columns."""

    def problems(self) -> list[Problem]:
        """Returns everything in the guard that no row can satisfy, at the guard's place."""
        findings = dict.fromkeys(
            (f"{spot(self.text, node.start)}: {message}", is_warning)
            for node, findings in self._judged(parse(self.text))
            for message, is_warning in findings
        )
        return [
            Problem(self.where, message, "warning" if is_warning else "error")
            for message, is_warning in findings
        ]

    def _judged(self, tree: CelNode) -> Iterator[tuple[CelNode, Iterator[_Finding]]]:
        """Yields each part that may be wrong with its findings: names and fields, conditions, then
        comparisons and elements of lists, then arithmetic."""
        for way, node in tree.references().items():
            yield node, self._name_findings(way)
        for node in _conditions(tree):
            yield node, self._condition_findings(node)
        for node in tree.computed():
            if node.way is not None and node.way != node.chain:
                yield node, self._element_findings(node.way)
            elif node.kind == "op" and len(node.parts) == 2:
                yield node, self._comparison_findings(node)
        for node in _sums(tree):
            yield node, self._arithmetic_findings(node)

    def _written(self, node: CelNode) -> str:
        """Returns the text of a part of the guard."""
        return self.text[node.start : node.end]

    def _name_findings(self, way: Chain) -> Iterator[_Finding]:
        """Yields what is wrong with a way such as `classify.topic`, by what its first name is."""
        head = str(way[0])
        rest = way[1:]
        is_reserved = head in (*self.extra, ROW, VARS)
        if head in self.columns and (is_reserved or head in self.stages):
            yield self._ambiguous(head)
        elif head in self.stages:
            yield from self._result_findings(head, rest)
        elif head == ROW and rest and isinstance(rest[0], str):
            yield from self._field_of_row(rest[0], rest[1:])
        elif head == VARS:
            yield from self._variable_findings(rest)
        elif head in self.others:
            yield f"stage {head!r} is not upstream of this one; add it to `needs`", False
        elif not is_reserved:
            yield from self._bare_name(head, rest)

    def _ambiguous(self, name: str) -> _Finding:
        """Returns the finding for a name of a column that is a stage's or agac's own, too."""
        other = f"the result of stage {name!r}" if name in self.stages else f"agac's own {name!r}"
        message = f"`{name}` could be the input's column or {other}; rename the one or the other"
        return message, False

    def _variable_findings(self, rest: Chain) -> Iterator[_Finding]:
        """Yields a variable that the workflow does not have."""
        if not rest or not isinstance(rest[0], str) or rest[0] in self.variables:
            return
        name = rest[0]
        hint = did_you_mean(name, self.variables)
        yield f"`{shown((VARS, name))}`: no such variable; {hint}", False

    def _field_of_row(self, name: str, rest: Chain) -> Iterator[_Finding]:
        """Yields what is wrong with a field that is written behind `row.`."""
        if name in self.columns:
            yield from self._column_findings(name, (ROW, name), rest)
            return
        written = f"`{shown((ROW, name))}`"
        yield from self._unknown(written, name, tuple(self.columns), None)

    def _bare_name(self, name: str, rest: Chain) -> Iterator[_Finding]:
        """Yields what is wrong with a field of the row that is written by its own name."""
        if name in self.columns:
            yield from self._column_findings(name, (name,), rest)
            return
        stages = tuple(self.stages if self.every_stage is None else self.every_stage)
        # CEL reads `name` of a name with a blank or a `-`
        longer = _named_by_part((*self.columns, *stages)).get(name, ())
        odd = next(filter(self._is_column_or_stage, longer), None)
        if odd in self.stages:
            message = f"a guard reads the `-` of stage {odd!r} as minus; rename the stage"
            yield f"`{name}`: {message}", False
        elif odd:
            message = f"no such field; write `{shown((ROW, odd))}` for the column {odd!r}"
            yield f"`{name}`: {message}", not self.closed
        else:
            builtin = (*self.extra, ROW, *([VARS] if self.variables else []))
            names = tuple(dict.fromkeys((*self.columns, *stages, *builtin)))
            among = _AnyOf(self.columns, self.stages, builtin)
            yield from self._unknown(f"`{name}`", name, names, among)

    def _column_findings(self, name: str, start: Chain, rest: Chain) -> Iterator[_Finding]:
        """Yields what is wrong with the way `rest` into a column, which is written as `start`."""
        if rest and self.fields.get(name) == TEXT:
            way = shown((name, *rest))
            yield f"`{way}`: the column {name!r} holds text, which has no fields", False
        elif name in self.fields:
            yield from _inside(self.fields[name], start, rest)

    def _unknown(
        self, written: str, name: str, names: tuple[str, ...], among: _AnyOf | None
    ) -> Iterator[_Finding]:
        """Yields the finding for an unknown name: an error if rows have no other columns, else a
        warning where a similar name is known."""
        if self.closed:
            yield f"{written}: no such field; {did_you_mean(name, names, among=among)}", False
            return
        near = nearest(name, names, cutoff=0.8, among=among)
        if near:
            message = f"is no known name, unless rows have such a field; did you mean '{near}'?"
            yield f"{written} {message}", True

    def _is_column_or_stage(self, name: str) -> bool:
        return name in self.columns or name in self.stages

    def _result_findings(self, stage: str, rest: Chain) -> Iterator[_Finding]:
        """Yields what is wrong with the way `rest` into the result of a stage."""
        schema = self.stages[stage]
        if not rest:
            return
        if schema is None:
            message = (
                f"stage {stage!r} answers with plain text, which has no fields; give it an "
                "output_schema"
            )
            yield f"`{shown((stage, *rest))}`: {message}", False
        else:
            yield from _inside(FieldShape(schema), (stage,), rest)

    def _element_findings(self, way: Chain) -> Iterator[_Finding]:
        """Yields what is wrong with a way into an element of a list."""
        head = str(way[0])
        if head in self.stages:
            yield from self._result_findings(head, way[1:])
        elif head in self.fields and self.fields[head] != TEXT:
            yield from _inside(self.fields[head], (head,), way[1:])

    def _condition_findings(self, node: CelNode) -> Iterator[_Finding]:
        """Yields a condition whose value is never true or false."""
        schemas = self._schemas(node)
        if schemas is None:
            return
        if not any(allows(schema, flag) for schema in schemas for flag in (True, False)):
            written = self._written(node).strip()
            yield f"`{written}` is never true or false; compare it with a value", False

    def _comparison_findings(self, node: CelNode) -> Iterator[_Finding]:
        """Yields comparisons with written values that the schemas rule out."""
        sign, pairs = _comparisons(node)
        for side, written in pairs:
            if written.kind != "literal" or written.value is None:
                continue
            schemas = self._schemas(side)
            if schemas is None:
                continue
            message = _impossible(sign, self._written(side), schemas, written.value)
            if message:
                yield f"`{self._written(node)}` {message}", False

    def _arithmetic_findings(self, node: CelNode) -> Iterator[_Finding]:
        """Yields arithmetic with a field that may be a whole number or not: CEL computes with
        numbers of one kind only."""
        either = [part for part in _operands(node) if self._is_either_number(part)]
        if not either:
            return
        name = self._written(either[0])
        if node.value == "%":
            remedy = f"int({name})"
            reason = "`%` takes whole numbers"
        else:
            remedy = doubled(node, self.text)
            reason = "CEL computes with two whole numbers or with two that have a point"
        message = (
            f"`{self._written(node)}` fails in some rows: {reason}, and {name} may be either; "
            f"write `{remedy}`"
        )
        yield message, True

    def _is_either_number(self, node: CelNode) -> bool:
        """True if the values are numbers, whole ones or not."""
        schemas = self._schemas(node)
        kinds = frozenset().union(*map(kinds_of, schemas or ()))
        return "number" in kinds and kinds <= NUMBERS | {"null"}

    def _schemas(self, node: CelNode) -> Sequence[Mapping[str, Any]] | None:
        """Returns the alternative schemas of the values of a way; None when nothing is known of
        them."""
        if node.way is None:
            return None
        head, *rest = map(str, node.way)
        if head in self.stages:
            schema = self.stages[head]
            if schema is None:
                return None if rest else [TEXT.body]
            return FieldShape(schema).values(rest)
        if head == ROW:
            head, *rest = rest or [""]
        shape = self.fields.get(head) if head in self.columns else None
        return shape.values(rest) if shape else None


class _AnyOf(Collection[str]):
    """The members of several collections, in their order."""

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
    """Returns the names that consist of several words, by each of their words."""
    named: dict[str, list[str]] = {}
    for name in names:
        words = name.replace("-", " ").split()
        if len(words) < 2:
            continue
        for word in dict.fromkeys(words):
            named.setdefault(word, []).append(name)
    return named


def _inside(shape: FieldShape, start: Chain, rest: Chain) -> Iterator[_Finding]:
    """Yields the first field of the way `rest` that values of this shape, which are written as
    `start`, do not have."""
    missing = shape.missing(rest)
    if missing is None:
        return
    depth, names = missing
    before = shown((*start, *rest[:depth]))
    if names:
        alternatives = [shown((before, name)) for name in sorted(names)]
        hint = did_you_mean(shown((before, rest[depth])), alternatives)
    else:
        hint = f"{before} is a single value"
    yield f"`{shown((*start, *rest[: depth + 1]))}`: no such field; {hint}", False


def _conditions(node: CelNode) -> Iterator[CelNode]:
    """Yields the parts that have to be true or false for the whole to be."""
    if node.kind == "op" and node.value in ("&&", "||", "!", "?:"):
        for part in node.parts:
            yield from _conditions(part)
    else:
        yield node


def _comparisons(node: CelNode) -> tuple[str, list[tuple[CelNode, CelNode]]]:
    """Returns the sign of a comparison, and the pairs that it compares, a written value on the
    right."""
    left, right = node.parts
    sign = node.value
    if sign == "in" and right.kind == "list":
        return sign, [(left, element) for element in right.parts]
    if sign not in _MIRRORED:
        return sign, []
    if left.kind == "literal":
        return _MIRRORED[sign], [(right, left)]
    return sign, [(left, right)]


ARITHMETIC = ("+", "-", "*", "/", "%")


def _is_sum(node: CelNode) -> bool:
    """True for arithmetic with two operands."""
    return node.kind == "op" and node.value in ARITHMETIC and len(node.parts) == 2


def _sums(node: CelNode) -> Iterator[CelNode]:
    """Yields the arithmetic of an expression, each sum as a whole, also in what macros compute of
    elements."""
    if _is_sum(node):
        yield node
        for part in _operands(node):
            yield from _sums(part)
        return
    for part in node.parts if node.chain is None else ():
        yield from _sums(part)


def _operands(node: CelNode) -> Iterator[CelNode]:
    """Yields what is added, multiplied and so on, in sums of sums too."""
    for part in node.parts:
        if _is_sum(part):
            yield from _operands(part)
        else:
            yield part


def doubled(node: CelNode, text: str) -> str:
    """Writes arithmetic with numbers that have a point: `double(x) + 1.0`."""
    written = text[node.start : node.end].strip()
    if _is_sum(node):
        left, right = node.parts
        before = text[node.start : left.start]
        between = text[left.end : right.start]
        after = text[right.end : node.end]
        return f"{before}{doubled(left, text)}{between}{doubled(right, text)}{after}"
    if node.kind == "literal":
        digits = written.rstrip("uU")
        is_whole = type(node.value) is int and digits.lstrip("-").isdecimal()
        return f"{digits}.0" if is_whole else written
    if (node.kind, node.value) == ("call", "double"):
        return written
    return f"double({written})"


_NEVER_MET = {
    "!=": "is always true",
    "in": "names a value that never comes",
    "==": "is never true",
}


def _impossible(
    sign: str, name: str, schemas: Sequence[Mapping[str, Any]], value: Any
) -> str | None:
    """Says why no value of these schemas meets a comparison with `value`; None if one may."""
    kinds = frozenset().union(*map(kinds_of, schemas))
    kind = _kind_of(value)
    if sign in _NEVER_MET:
        if any(allows(schema, value) for schema in schemas):
            return None
        verdict = _NEVER_MET[sign]
    else:
        if kinds & (NUMBERS if kind == "number" else {kind}):
            return None
        verdict = "cannot be compared"
    choices = [choice for schema in schemas for choice in schema.get("enum", ())]
    if choices and all("enum" in schema for schema in schemas):
        named = listed(json.dumps(choice, ensure_ascii=False) for choice in choices)
        return f"{verdict}: {name} is one of {named}{_similar_choice(value, choices)}"
    is_formatted = any("format" in schema for schema in schemas)  # as a date, which is no number
    remedy = _remedy(name, kinds, value, is_formatted=is_formatted)
    return f"{verdict}: {name} is {kinds_in_words(kinds) or 'something else'}{remedy}"


def _kind_of(value: Any) -> str:
    """Returns the kind of a written value."""
    if type(value) in (int, float):
        return "number"
    return "string" if isinstance(value, str) else "boolean"


def _similar_choice(value: Any, choices: Sequence[Any]) -> str:
    """Returns a question whether the text among the choices was meant that is most like this
    one."""
    if not isinstance(value, str):
        return ""
    near = nearest(value, [choice for choice in choices if isinstance(choice, str)])
    return f"; did you mean {json.dumps(near, ensure_ascii=False)}?" if near else ""


def _remedy(name: str, kinds: frozenset[str], value: Any, *, is_formatted: bool) -> str:
    """Says how to compare values of these kinds with `value`, if there is a way."""
    if kinds <= NUMBERS:
        field_kind = "number"
    elif len(kinds) == 1:
        field_kind = next(iter(kinds))
    else:
        return ""
    match field_kind, _kind_of(value):
        case "string", "number":
            return "; write the value in quotes" if is_formatted else f"; write `double({name})`"
        case "string", "boolean":
            return f'; write `{name} == "{json.dumps(value)}"`'
        case "boolean", "string":
            return f"; write `{name}` or `!{name}`"
        case "number", "string":
            return "; write the number without quotes"
    return ""
