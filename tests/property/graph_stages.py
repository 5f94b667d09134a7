"""Stages of random workflows: what was drawn of one, what it finds upstream, its condition, what all operators have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from property.graph_walk import Eyes, Fails, Fields, Seen

Shape = Mapping[str, str]
"""The names that the row's fields have by now, by what they were at first."""


@dataclass(frozen=True)
class Row:
    id: str
    kind: str
    n: int
    text: str
    opt: str | None = None
    tags: tuple[str, ...] | str | None = None

    def data(self) -> Fields:
        """The row as it is written; it may lack `opt` and `tags`."""
        tags = list(self.tags) if isinstance(self.tags, tuple) else self.tags
        made = {"id": self.id, "kind": self.kind, "n": self.n, "text": self.text, "opt": self.opt, "tags": tags}
        return {name: value for name, value in made.items() if value is not None}


NAMES = ("id", "kind", "n", "text", "opt", "tags")


@dataclass(frozen=True)
class Gene:
    """What was drawn of a stage: numbers that mean something among what the stage finds upstream. `title` ends its
    name, `told` is said in its schema."""

    operator: str
    needs: tuple[int, ...]
    refs: tuple[int, ...]
    guard: tuple[int, int] | None
    drops: bool
    enabled: bool
    word: str
    number: int
    explode: int | None
    model: str = "small"
    title: str = ""
    told: str = ""


class Operator:
    """A stage of a workflow. `needs` are without those that are turned off, `makes` is items, rows, groups or kept, and
    None; `path` leads to the list whose items are taken. `eyes` is how it looks at its rows, `member` how a group looks
    at those that it is made of. `does` says what it makes of a row; rows of which `alike` is the same are kept once, or
    are one group, whose fields are `group` of that; a member is `brought` into its prompt, and it `refuses` to be asked
    where so many members failed. All may raise Fails."""

    kind: ClassVar[str | None] = None
    """What it makes of rows by itself: rows, groups or kept."""
    guarded: ClassVar[bool] = True
    explodes: ClassVar[bool] = True
    replicas: ClassVar[int] = 1
    """How many questions a task has at most."""
    gives: ClassVar[str | None] = None
    """What its result is: `text`, an object with a text (`field`, `A` with `mood` too, `L` with `items`), the row's
    `fields`, or None: nothing that could be named."""

    def __init__(self, gene: Gene, name: str, written: tuple[str, ...], upstream: Upstream) -> None:
        self.gene, self.name, self.written_needs, self.upstream = gene, name, written, upstream
        self.needs, self.ancestors = upstream.needs, upstream.ancestors
        self.drops, self.enabled, self.path = gene.drops, gene.enabled, upstream.path
        self.makes = "items" if upstream.path else self.kind
        self.guard = guard_of(gene.guard, upstream) if gene.guard and self.guarded else None
        self.line, self.gone = upstream.line, upstream.gone
        self.shape: Shape = upstream.shape
        self.resolve()

    @property
    def member(self) -> Eyes:
        return Eyes(self.upstream.ancestors, self.upstream.line[-1] if self.upstream.line else None)

    @property
    def eyes(self) -> Eyes:
        return self.member

    def resolve(self) -> None:
        """Says what the gene means here; may change `shape`."""

    def changes(self, shape: Shape) -> None:
        """The row has other fields from here on."""
        self.shape, self.line = shape, (*self.line, self.name)

    def keys(self) -> dict[str, Any]:
        """What it writes into the file."""
        return {}

    def tool(self) -> str | None:
        """The function of the project that it calls."""
        return None

    def lets_in(self, seen: Seen) -> bool:
        return self.guard is None or self.guard.test(seen)

    def written(self, fields: Fields, result: Any) -> Any:
        """Its result in outputs."""
        return result if self.gives in ANSWERS else fields

    def body(self, before: str | None) -> dict[str, Any]:
        """The stage in the file, where it stands after `before`."""
        body: dict[str, Any] = {"name": self.name}
        if self.written_needs != ((before,) if before else ()):
            body["needs"] = list(self.written_needs)
        if self.guard:
            body["when"] = self.guard.text
            if self.drops:
                body["otherwise"] = "drop"
        if self.path:
            body["explode"] = ".".join(self.path)
        if not self.enabled:
            body["enabled"] = False
        return body | self.keys()


@dataclass(frozen=True)
class Upstream:
    """What a stage finds: its needs and all stages upstream without those that are turned off, in the order in which
    they were drawn, and the row's fields. `line` are the stages that changed those. `path`: the list that it explodes.
    `places` has the order in which rows meet stages, once it is known; `gone` are lists of which the row is an item."""

    stages: Mapping[str, Operator]
    needs: tuple[str, ...]
    ancestors: tuple[str, ...]
    line: tuple[str, ...]
    shape: Shape
    places: Mapping[str, int]
    path: tuple[str, ...] = ()
    gone: frozenset[str] = frozenset()

    def giving(self, *kinds: str) -> list[str]:
        """The stages upstream whose result is one of these."""
        return [name for name in self.ancestors if self.stages[name].gives in kinds]


ANSWERS = ("text", "field", "A", "L")
PARTS = {"A": "why", "L": "why", "field": "word"}

# conditions


class Guard(NamedTuple):
    """A condition in CEL, and what it comes to: a field of the row or, with `part`, a part of a stage's result is
    compared with `want`. `nulls` is what it comes to where there is nothing to compare, None: an error. Without `want`
    the stage must not have been skipped."""

    text: str
    subject: str
    want: Any = None
    part: str | None = None
    nulls: bool | None = None

    def test(self, seen: Seen) -> bool:
        there = seen.results if self.subject in seen.results else seen.fields
        value = there.get(self.subject)
        if value is None:
            if self.nulls is None:
                raise Fails("GuardError")
            return self.nulls
        if self.part:
            value = value[self.part]
        return self.want is None or bool(value >= self.want if isinstance(value, int) else value == self.want)


def guard_of(drawn: tuple[int, int], upstream: Upstream) -> Guard | None:
    """The condition that numbers stand for; None where nothing is there that it could look at."""
    kind, number = drawn
    letter, small, place = "abc"[number % 3], number % 4, number % 3
    about, text, *rest = [
        ("kind", f'{{0}} == "{letter}"', letter),
        ("n", f"{{0}} >= {small}", small),
        ("opt", '{0} == "yes"', "yes"),
        ("opt", 'has(row.{0}) && row.{0} == "yes"', "yes", None, False),
        (ANSWERS, "{0} != null", None, None, False),
        (("A",), '{0}.mood == "good"', "good", "mood"),
        (("A",), '{0} == null || {0}.mood == "bad"', "bad", "mood", True),
        ("index", f"{{0}} >= {place}", place),
        ("item", '{0} == "p"', "p"),
    ][kind]
    found = upstream.giving(*about) if isinstance(about, tuple) else [upstream.shape.get(about, "")]
    name = found[number % len(found)] if found else ""
    return Guard(text.format(name), name, *rest) if name else None
