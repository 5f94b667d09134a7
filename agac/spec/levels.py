"""Levels: sets of rows that walk alike. The input's rows are one; stages make others of rows that are there.

`explode` makes children of the items of a list, a function that gives a list children of its rows, `group_by` groups,
and `dedupe` a child of each row that it keeps. A row of any level walks through the stages of its level.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Literal, TypeVar

Makes = Literal["items", "rows", "groups", "kept"]
"""What a stage makes of rows: a child of each item (`explode`), children of the rows that a function gives in a list,
groups (`group_by`), or one child of each row that goes on (`dedupe`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNode:
    """A stage as a part of the graph, which is all that levels and orders are made of.

    `index` counts stages from 0: in their file, once they are in order as a row meets them. `needs` are the stages that
    it follows, `ancestors` all those upstream whose results it sees: none beyond a group. Both are names in the order
    in which a row meets them. `rows_of` is the ancestor after which the row has the fields that this stage sees, None:
    the input's. `makes` is what it makes of rows; `changes_rows`: they have other fields from this stage on.
    """

    name: str
    index: int
    needs: tuple[str, ...]
    ancestors: tuple[str, ...] = ()
    rows_of: str | None = None
    makes: Makes | None = None
    changes_rows: bool = False


def seen_after(needs: Sequence[StageNode], stages: Mapping[str, StageNode]) -> tuple[tuple[str, ...], str | None]:
    """What is seen after the stages `needs` of one level, by a group of its members too: the stages upstream, in the
    order of `stages` (those that a row meets before, by name), and the one of them that changed the row's fields last.
    """
    upstream = {name for need in needs for name in (*need.ancestors, need.name)}
    forms = {need.name if need.changes_rows else need.rows_of for need in needs}
    last = max(forms, key=lambda name: len(stages[name].ancestors) + 1 if name else 0, default=None)
    return tuple(name for name in stages if name in upstream), last


S = TypeVar("S", bound=StageNode)


@dataclass(frozen=True)
class Level(Generic[S]):
    """Rows that walk alike. `maker` made them; None: they are the input's. `stages` are those they walk through;
    `makers` those that make further rows of them, once they have come to their end.

    Rows that a function gave in a list walk through what follows the function; a row for which it gave a single one
    stays where it is, and walks through the same stages there.
    """

    maker: S | None
    stages: tuple[S, ...]
    makers: tuple[S, ...]

    @property
    def origin(self) -> int | None:
        """The position of the stage that made the rows, as the store has it."""
        return None if self.maker is None else self.maker.index


@dataclass(frozen=True)
class Levels(Generic[S]):
    """All levels of a workflow, each after those of whose rows it is made."""

    stages: tuple[S, ...]
    all: tuple[Level[S], ...]

    @cached_property
    def by_origin(self) -> dict[int | None, Level[S]]:
        """The levels by the position of the stage that made their rows."""
        return {level.origin: level for level in self.all}

    def leads_to(self, function: S, names: Collection[str]) -> bool:
        """Whether the rows that a function gives in a list, or the results of the function itself, come to one of these
        stages: one that they walk through, or that makes further rows of them."""
        level = self.by_origin[function.index]
        return function.name in names or any(stage.name in names for stage in (*level.stages, *level.makers))


@dataclass(frozen=True)
class UnrelatedNeeds:
    """A stage cannot meet its needs in one row: `one` and `other` are needs of it on different lines of descent."""

    stage: str
    one: str
    other: str


def levels_of(stages: Sequence[S]) -> Levels[S]:
    """The levels of stages in the order in which rows meet them; of a sound workflow (see `apart`)."""
    places = _Places(stages)
    made = [stage for stage in stages if stage.makes is not None]
    found = []
    for maker in (None, *made):
        walked = tuple(stage for stage in stages if places.walks(stage, maker))
        makers = tuple(stage for stage in made if stage.makes != "rows" and places.feeds(maker, stage))
        found.append(Level(maker, walked, makers))
    return Levels(tuple(stages), tuple(found))


def beside_dedupe(stages: Sequence[StageNode]) -> list[tuple[str, str]]:
    """Stages that make something of rows which a `dedupe` beside them may drop, each with that stage."""
    return _Places(stages).beside_dedupe()


def apart(stages: Sequence[StageNode]) -> list[UnrelatedNeeds]:
    """The stages whose needs lie on different lines of descent."""
    return _Places(stages).apart


def homes(stages: Sequence[StageNode]) -> dict[str, str | None]:
    """What made the rows that each stage gives results to, by the stage's name; None: they are the input's, or come of
    a function that stands in the place of the row it was given."""
    return _Places(stages).home


def descent(stages: Sequence[S], maker: S | None) -> tuple[S, ...]:
    """The stages that made the rows of this maker, one after the other: of the input's, or of nothing (groups)."""
    by_name = {stage.name: stage for stage in stages}
    return tuple(by_name[name] for name in _Places(stages).line(maker.name if maker else None) if name is not None)


class _Places:
    """On which rows each stage works, as far as it is known before a function is called.

    `home` is what made the rows that a stage gives results to, `after` what made those that stages after it see, `base`
    what made those that the stage begins with. `_lines` is the descent of the rows that something made, the nearest
    last; `_functions` are those upstream of a stage.
    """

    def __init__(self, stages: Sequence[StageNode]) -> None:
        self.apart: list[UnrelatedNeeds] = []
        self.home: dict[str, str | None] = {}
        self._base: dict[str, str | None] = {}
        self._after: dict[str, str | None] = {}
        self._lines: dict[str | None, tuple[str | None, ...]] = {None: (None,)}
        self._functions: dict[str, frozenset[str]] = {}
        self._makes = {stage.name: stage.makes for stage in stages}
        for stage in stages:
            self._place(stage)
            upstream = [self._functions[need] for need in stage.needs]
            called = {need for need in stage.needs if self._makes[need] == "rows"}
            self._functions[stage.name] = frozenset(called).union(*upstream)

    def beside_dedupe(self) -> list[tuple[str, str]]:
        """The makers that begin with the same rows as a stage that keeps some of them, and are not upstream of it."""
        kept = [name for name, makes in self._makes.items() if makes == "kept"]
        makers = [name for name, makes in self._makes.items() if makes is not None]
        return [
            (maker, one)
            for one in kept
            for maker in makers
            if maker != one
            and self._base[maker] == self._base[one]
            and maker not in self._functions[one]
            and not (self._makes[maker] == "kept" and maker < one)
        ]

    def line(self, maker: str | None) -> tuple[str | None, ...]:
        """What made the rows that this maker made, the nearest last."""
        return self._lines[maker]

    def walks(self, stage: StageNode, maker: StageNode | None) -> bool:
        """Whether rows of this maker walk through the stage."""
        if maker is not None and maker.makes == "rows":
            return self.home[stage.name] == self.home[maker.name] and maker.name in self._functions[stage.name]
        return self.home[stage.name] == (maker.name if maker else None)

    def feeds(self, maker: StageNode | None, stage: StageNode) -> bool:
        """Whether the stage makes further rows of those of this maker."""
        if maker is not None and maker.makes == "rows":
            return self._base[stage.name] == self.home[maker.name] and maker.name in self._functions[stage.name]
        return self._base[stage.name] == (maker.name if maker else None)

    def _place(self, stage: StageNode) -> None:
        name, base = stage.name, self._deepest(stage)
        self._base[name] = base
        self.home[name] = name if stage.makes in ("items", "groups") else base
        self._after[name] = name if stage.makes in ("items", "groups", "kept") else base
        if self._after[name] == name:
            self._lines[name] = (name,) if stage.makes == "groups" else (*self._lines[base], name)

    def _deepest(self, stage: StageNode) -> str | None:
        """What made the rows on which all that the stage needs is known."""
        if not stage.needs:
            return None
        deepest = max(stage.needs, key=lambda need: len(self._lines[self._after[need]]))
        line = self._lines[self._after[deepest]]
        for need in stage.needs:
            if self._after[need] not in line:
                self.apart.append(UnrelatedNeeds(stage.name, need, deepest))
                break
        return self._after[deepest]
