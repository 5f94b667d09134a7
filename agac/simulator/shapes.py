"""What a schema was compiled to: shapes that write values. A shape's height is how deep its smallest value nests."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agac.simulator.patterns import matching_text
from agac.simulator.words import Draft

ENDLESS = math.inf
"""The height of what has no finite value."""

FLAT = 4
"""Below this depth only what must be is written."""

SHORT_NAMES = re.compile(r"(name|title|label|tag|topic|keyword|categor|product|city|country|type|key|code)", re.I)


class Shape(Protocol):
    """Something that values can be made of. `name` is the property that the value is for, "" for none."""

    def height(self) -> float:
        """How deep the smallest value nests; `ENDLESS` when there is none."""
        ...

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        """A value; only called when the height is finite."""
        ...


@dataclass(slots=True)
class Link:
    """A place for a shape, so that schemas can refer to themselves. `known` is its height as far as known."""

    target: Shape | None = None
    known: float = ENDLESS

    def height(self) -> float:
        return self.known

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        assert self.target is not None
        draft.left -= 1
        return self.target.write(draft, depth, name)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some fixed values; without any, there is no value at all."""

    values: tuple[Any, ...]

    def height(self) -> float:
        return 0 if self.values else ENDLESS

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        return draft.choose(self.values)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of some shapes; `null` is taken seldom when there is anything else."""

    branches: tuple[Link, ...]

    def height(self) -> float:
        return min((branch.height() for branch in self.branches), default=ENDLESS)

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        possible = [branch for branch in self.branches if branch.height() < ENDLESS]
        if depth >= FLAT or draft.left <= 0:
            return min(possible, key=Link.height).write(draft, depth, name)
        telling = [branch for branch in possible if not is_null(branch)]
        if telling and draft.random.random() < 0.9:
            possible = telling
        return draft.one_of(possible).write(draft, depth, name)


def is_null(link: Link) -> bool:
    """Whether nothing but null comes from there."""
    return isinstance(link.target, OneOf) and link.target.values == (None,)


@dataclass(frozen=True, slots=True)
class Truth:
    """True or false."""

    def height(self) -> float:
        return 0

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        return draft.random.random() < 0.5


@dataclass(frozen=True, slots=True)
class Words:
    """A text of the prompt's words, of `least` to `most` characters."""

    least: int = 0
    most: float = math.inf

    def height(self) -> float:
        return 0 if self.least <= self.most else ENDLESS

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        text = draft.phrase(1, 3) if name and SHORT_NAMES.search(name) else draft.sentence()
        while len(text) < self.least:
            text = f"{text} {draft.sentence()}"
        if len(text) <= self.most:
            return text
        cut = text[: int(self.most)]
        trimmed = cut.rstrip()
        return trimmed if len(trimmed) >= self.least else cut


@dataclass(frozen=True, slots=True)
class Patterned:
    """A text that a regular expression is found in."""

    compiled: re.Pattern[str]
    tree: Any
    least: int = 0
    most: float = math.inf

    def height(self) -> float:
        return 0 if self.least <= self.most else ENDLESS

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        return matching_text(self.compiled, self.tree, draft, self.least, self.most)


@dataclass(frozen=True, slots=True)
class Formatted:
    """A text in one of the formats of JSON Schema."""

    make: Callable[[Draft], str]

    def height(self) -> float:
        return 0

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        return self.make(draft)


@dataclass(frozen=True, slots=True)
class Items:
    """A list: `first` by place, then `rest` for every further one."""

    first: tuple[Link, ...]
    rest: Link
    least: float
    most: float
    unique: bool

    def longest(self) -> float:
        """How many items can be had at most."""
        for place, link in enumerate(self.first):
            if link.height() == ENDLESS:
                return min(self.most, place)
        return min(self.most, len(self.first)) if self.rest.height() == ENDLESS else self.most

    def height(self) -> float:
        if self.least > self.longest():
            return ENDLESS
        links = [*self.first[: int(self.least)]]
        if self.least > len(self.first):
            links.append(self.rest)
        return 1 + max((link.height() for link in links), default=0)

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        wanted = self.least
        if depth < FLAT and draft.left > 0:
            wanted = max(wanted, len(self.first), 1 + draft.below(max(1, 3 - depth)))
        values: list[Any] = []
        seen: set[str] = set()
        for place in range(int(min(wanted, self.longest()))):
            link = self.first[place] if place < len(self.first) else self.rest
            for _ in range(20 if self.unique else 1):
                value = link.write(draft, depth + 1, name)
                key = json.dumps(value, sort_keys=True) if self.unique else ""
                if not self.unique or key not in seen:
                    seen.add(key)
                    values.append(value)
                    break
        return values


@dataclass(frozen=True, slots=True)
class Properties:
    """An object: its named properties, and `others` for every further key. `invents`: a map, so have some keys."""

    named: dict[str, Link]
    required: tuple[str, ...]
    others: Link
    least: float = 0
    most: float = math.inf
    invents: bool = False

    def possible(self) -> list[str]:
        """Named properties that can have a value at all."""
        return [key for key, link in self.named.items() if link.height() < ENDLESS]

    def height(self) -> float:
        needed = [self.named.get(key, self.others).height() for key in self.required]
        missing = int(self.least) - len(needed)
        if len(needed) > self.most or self.least > self.most:
            return ENDLESS
        spare = sorted(link.height() for key, link in self.named.items() if key not in self.required)
        if missing > 0 and self.others.height() < ENDLESS:
            spare = sorted([*spare, *[self.others.height()] * missing])
        if len(spare) < missing:
            return ENDLESS
        return 1 + max((*needed, *spare[: max(0, missing)]), default=0)

    def write(self, draft: Draft, depth: int, name: str) -> Any:
        return {key: self.named.get(key, self.others).write(draft, depth + 1, key) for key in self.keys(draft, depth)}

    def keys(self, draft: Draft, depth: int) -> list[str]:
        """The keys of one object, named ones in the schema's order."""
        chosen = set(self.required)
        generous = depth < FLAT and draft.left > 0
        optional = [key for key in self.possible() if key not in chosen]
        optional.sort(key=lambda key: self.named[key].height())
        for key in optional:
            if len(chosen) < self.most and (len(chosen) < self.least or (generous and draft.random.random() < 0.8)):
                chosen.add(key)
        keys = [key for key in self.named if key in chosen] + [key for key in self.required if key not in self.named]
        few = 2 if generous and self.invents and not self.named else 0
        return keys + self.invented(draft, keys, max(int(self.least) - len(keys), few))

    def invented(self, draft: Draft, keys: list[str], wanted: int) -> list[str]:
        """Keys that the schema does not name."""
        if self.others.height() == ENDLESS:
            return []
        made: list[str] = []
        while len(made) < min(wanted, self.most - len(keys)):
            word = draft.one_of(draft.words).lower()
            taken = word in keys or word in made or word in self.named
            made.append(f"{word}_{len(made) + 1}" if taken else word)
        return made
