"""Guards checked before a run: the columns, variables and results that they name, and impossible comparisons."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agac.core.errors import Problem, did_you_mean
from agac.spec.cel import CelNode, Chain, references, shown, spot
from agac.spec.guards import ROW, Guard, tree_of
from agac.spec.json_schema import TEXT, FieldShape, allows, verdict
from agac.spec.templates import VARS

_TEXT: dict[str, Any] = {"type": "string"}
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}
Finding = tuple[str, bool]
"""A sentence, and whether it is only a warning."""

_Bound = Mapping[str, Chain | None]
"""The names that macros bind, each with the way to its first element where that is known."""


def check_guard(
    guard: Guard,
    *,
    columns: tuple[str, ...] | None,
    open_columns: bool,
    stages: Mapping[str, Mapping[str, Any] | None],
    variables: Collection[str],
    path: str,
    others: Collection[str] = (),
    extra: Collection[str] = (),
    fields: Mapping[str, FieldShape] | None = None,
) -> list[Problem]:
    """Everything in a guard that no row can satisfy, at the guard's place.

    `columns`: the input's declared ones, None when rows bring theirs; `open_columns`: rows may have more, so that an
    unknown name is a warning. `fields`: what is known of columns. `stages`: those upstream, each with the schema of its
    result: None for plain text, `{}` when nothing is known of it. `others`: stages of the workflow that are not
    upstream. `extra`: further names that the stage sees, such as `rows_count`.
    """
    closed = columns is not None and not open_columns
    scope = _GuardScope(columns or (), closed, dict(stages), variables, others, (*extra, ROW, VARS), fields or {})
    tree = tree_of(guard.text)
    found = [*scope.names(guard), *scope.comparisons(tree, guard.text)]
    unique = dict.fromkeys(found)
    return [Problem(guard.where, message, path, "warning" if warn else "error") for message, warn in unique]


@dataclass(frozen=True, slots=True)
class _GuardScope:
    """The names and fields that a stage's guard can read."""

    columns: tuple[str, ...]
    closed: bool
    stages: Mapping[str, Mapping[str, Any] | None]
    variables: Collection[str]
    others: Collection[str]
    extra: tuple[str, ...]
    fields: Mapping[str, FieldShape]

    def names(self, guard: Guard) -> Iterator[Finding]:
        """Names and fields that do not exist, each with its place in the guard."""
        seen: set[Chain] = set()
        for reference in references(tree_of(guard.text)):
            if reference.chain not in seen:
                seen.add(reference.chain)
                at = spot(guard.text, reference.start)
                yield from ((f"{at}: {message}", warn) for message, warn in self._name(reference.chain))

    def _name(self, chain: Chain) -> Iterator[Finding]:
        head, rest = str(chain[0]), chain[1:]
        if head in self.columns and (head in self.stages or head in self.extra):
            other = f"the result of stage {head!r}" if head in self.stages else f"agac's own {head!r}"
            yield f"`{head}` could be the input's column or {other}; rename the one or the other", False
        elif head in self.stages:
            yield from self._result(head, rest)
        elif head == ROW and rest and isinstance(rest[0], str):
            yield from self._column(rest[0], rest[1:], f"{ROW}.")
        elif head == VARS:
            yield from self._variable(rest)
        elif head in self.others:
            yield f"stage {head!r} is not upstream of this one; add it to `needs`", False
        elif head not in self.extra:
            yield from self._column(head, rest, "")

    def _variable(self, rest: Chain) -> Iterator[Finding]:
        if rest and isinstance(rest[0], str) and rest[0] not in self.variables:
            yield f"`{shown((VARS, rest[0]))}`: no such variable; {did_you_mean(rest[0], self.variables)}", False

    def _column(self, name: str, rest: Chain, prefix: str) -> Iterator[Finding]:
        """A field of the row, by its own name or behind `row.`."""
        if name in self.columns:
            if rest and self.fields.get(name) == TEXT:
                yield f"`{shown((name, *rest))}`: the column {name!r} holds text, which has no fields", False
            elif name in self.fields:
                yield from _inside(self.fields[name], (ROW, name) if prefix else (name,), rest)
            return
        odd = next((one for one in (*self.columns, *self.stages) if _holds(one, name)), None)
        written = f"`{shown((ROW, name)) if prefix else name}`"
        if odd in self.stages and not prefix:
            yield f"{written}: a guard reads the `-` of stage {odd!r} as minus; rename the stage", False
        elif odd and not prefix:
            yield f"{written}: no such field; write `{shown((ROW, odd))}` for the column {odd!r}", not self.closed
        elif self.closed:
            known = self.columns if prefix else self._all()
            yield f"{written}: no such field; {did_you_mean(name, known)}", False
        else:
            near = difflib.get_close_matches(name, self.columns if prefix else self._all(), 1, cutoff=0.8)
            if near:
                message = f"{written} is no known name, unless rows have such a field; did you mean '{near[0]}'?"
                yield message, True

    def _all(self) -> list[str]:
        own = [name for name in self.extra if name != VARS or self.variables]
        return [*self.columns, *self.stages, *own]

    def _result(self, stage: str, rest: Chain) -> Iterator[Finding]:
        body = self.stages[stage]
        if not rest:
            return
        if body is None:
            message = f"stage {stage!r} answers with plain text, which has no fields; give it an output_schema"
            yield f"`{shown((stage, *rest))}`: {message}", False
            return
        yield from _inside(FieldShape(body), (stage,), rest)

    def _element(self, head: str, rest: Chain) -> Iterator[Finding]:
        """A way into an element of a list, which a macro binds to a name."""
        if head in self.stages:
            yield from self._result(head, rest)
        elif head in self.fields and self.fields[head] != TEXT:
            yield from _inside(self.fields[head], (head,), rest)

    # values that can never be met

    def comparisons(self, tree: CelNode, text: str) -> Iterator[Finding]:
        """Comparisons with written values that the schemas rule out, and conditions that are no true or false."""
        for node in _conditions(tree):
            schemas = self._schemas(node, {})
            if schemas is not None and not any(allows(one, flag) for one in schemas for flag in (True, False)):
                name = text[node.start : node.end].strip()
                yield f"{spot(text, node.start)}: `{name}` is never true or false; compare it with a value", False
        yield from self._within(tree, text, {})

    def _within(self, node: CelNode, text: str, bound: _Bound) -> Iterator[Finding]:
        chain = node.chain()
        if chain is not None and (element := bound.get(str(chain[0]))):
            at = spot(text, node.start)
            found = self._element(str(element[0]), (*element[1:], *chain[1:]))
            yield from ((f"{at}: {message}", warn) for message, warn in found)
        elif node.kind == "op" and len(node.parts) == 2:
            yield from self._pair(node, text, bound)
        inner = bound
        if node.kind == "macro":
            over = _resolved(node.parts[0].chain(), bound)
            inner = {**bound, node.parts[1].value: (*over, 0) if over else None}
        for place, part in enumerate(node.parts if chain is None else ()):
            if node.kind != "macro" or place != 1:
                yield from self._within(part, text, inner if place else bound)

    def _pair(self, node: CelNode, text: str, bound: _Bound) -> Iterator[Finding]:
        left, right = node.parts
        sign = node.value
        if sign == "in" and right.kind == "list":
            pairs = [(left, one) for one in right.parts]
        elif sign in _MIRRORED:
            pairs = [(left, right)]
            if left.kind == "literal":
                pairs, sign = [(right, left)], _MIRRORED[sign]
        else:
            return
        for asked, written in pairs:
            schemas = self._schemas(asked, bound)
            if schemas is None or written.kind != "literal" or written.value is None:
                continue
            at = f"{spot(text, node.start)}: `{text[node.start : node.end]}`"
            name = text[asked.start : asked.end]
            if message := verdict(sign, name, schemas, written.value):
                yield f"{at} {message}", False

    def _schemas(self, node: CelNode, bound: _Bound) -> list[Mapping[str, Any]] | None:
        """What a way may hold: its alternatives; None when nothing is known of it."""
        chain = _resolved(node.chain(), bound)
        if chain is None:
            return None
        head, rest = str(chain[0]), chain[1:]
        if head in self.stages:
            body = self.stages[head]
            if body is None:
                return None if rest else [_TEXT]
            return FieldShape(body).values([str(part) for part in rest])
        name, *inner = rest if head == ROW else chain
        shape = self.fields.get(str(name)) if name in self.columns else None
        return shape.values([str(part) for part in inner]) if shape else None


def _inside(shape: FieldShape, start: Chain, rest: Chain) -> Iterator[Finding]:
    """What a way asks for that is not there; `start` is how the place is written at which `shape` stands."""
    if (missing := shape.missing(rest)) is not None:
        depth, names = missing
        before = shown((*start, *rest[:depth]))
        known = [shown((before, name)) for name in sorted(names)]
        hint = did_you_mean(shown((before, rest[depth])), known) if names else f"{before} is a single value"
        yield f"`{shown((*start, *rest[: depth + 1]))}`: no such field; {hint}", False


def _resolved(chain: Chain | None, bound: _Bound) -> Chain | None:
    """A way from what the row shows, None where it begins at an element of something unknown."""
    if chain is None or chain[0] not in bound:
        return chain
    element = bound[str(chain[0])]
    return (*element, *chain[1:]) if element else None


def _holds(odd: str, name: str) -> bool:
    """Whether `name` is what CEL reads of a name with a blank or a `-`."""
    words = odd.replace("-", " ").split()
    return len(words) > 1 and name in words


def _conditions(node: CelNode) -> Iterator[CelNode]:
    """The parts that have to be true or false for the whole to be."""
    if node.kind == "op" and node.value in ("&&", "||", "!", "?:"):
        for part in node.parts:
            yield from _conditions(part)
    else:
        yield node
