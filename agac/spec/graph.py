"""Stages as nodes of a graph, and the levels of rows that walk through them. A level is a set of
rows that walk alike. The input's rows are one; stages make others of existing rows: `explode` makes
children of the items of a list, a function that gives a list children of its rows, `group_by`
groups, and `dedupe` a child of each row that it keeps. A row of any level walks through the stages
of its level. `stage_order` makes the nodes of a file's stages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import compress, repeat
from operator import contains, or_
from typing import Generic, TypeVar

from agac.spec.operations import Makes

ESCALATED = "/escalate"
"""The end of the name of a stage that asks a stronger model about some rows of another one."""

PARTS = "parts"  # the name under which the guard of a part sees the results of the others


def stage_of(name: str) -> str:
    """Returns the stage of the file that became the stage `name`, perhaps among others."""
    return name.partition("/")[0]


def is_hidden(name: str, viewer: str) -> bool:
    """True if the stage `viewer` has no name for the result of the stage `name`: parts are seen
    only by parts of the same stage."""
    return "/" in name and (name.endswith(ESCALATED) or stage_of(name) != stage_of(viewer))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNode:
    """A stage as a node of the graph: all that orders and levels are made of. Names are in the
    order in which a row meets the stages."""

    name: str
    index: int
    """Its position from 0: in the file, and in the order of the graph once that is known."""
    needs: tuple[str, ...]
    """The stages that it follows."""
    ancestors: tuple[str, ...] = ()
    """The stages upstream whose results it sees: none beyond a group."""
    rows_of: str | None = None
    """The ancestor after which the row has the fields that this stage sees; None: the input's."""
    makes: Makes | None = None
    """What it makes of rows."""
    changes_rows: bool = False
    """True if the row has other fields after this stage."""
    amends: str | None = None
    """An ancestor on the same rows. Unless this stage is skipped, its result takes the place of
    that one's for everything downstream of both, and in the output."""
    amended: tuple[tuple[str, str], ...] = ()
    """The ancestors that amend others, each with the name under which its result is seen; the last
    one counts."""

    @property
    def is_escalation(self) -> bool:
        """True if it asks again what the stage that it amends asked."""
        return self.name.endswith(ESCALATED)

    @property
    def parts(self) -> tuple[str, ...]:
        """The stages that its guard sees as `parts`: those that became of the same stage."""
        if self.is_escalation:
            return ()
        return tuple(name for name in self.ancestors if stage_of(name) == stage_of(self.name))

    @property
    def rows_after(self) -> str | None:
        """The stage that changed the row's fields last, this one included."""
        return self.name if self.changes_rows else self.rows_of


S = TypeVar("S", bound=StageNode)


def seen_after(
    needs: Sequence[StageNode], stages: Mapping[str, StageNode], viewer: str
) -> tuple[tuple[str, ...], str | None]:
    """Returns what `viewer` sees after the stages `needs` of one level (a group: of its members):
    the stages upstream, and the one that changed the row's fields last. `stages` are those that a
    row meets before, by name."""
    upstream = {need.name for need in needs}.union(*(need.ancestors for need in needs))
    forms = {need.rows_after for need in needs}
    last = max(forms, key=lambda name: len(stages[name].ancestors) + 1 if name else 0, default=None)
    seen = tuple(filter(upstream.__contains__, stages))
    # only names with a slash may be hidden, and most workflows have none
    if any(map(contains, seen, repeat("/"))):
        seen = tuple(name for name in seen if stages[name].amends or not is_hidden(name, viewer))
    return seen, last


def amended_name(name: str, stages: Mapping[str, StageNode]) -> str:
    """Returns the stage in whose place the result of the stage `name` is seen; `name` itself if
    the stage amends none."""
    while (amended := stages[name].amends) is not None and amended in stages:
        name = amended
    return name


def giving(name: str, stages: Sequence[S]) -> list[S]:
    """Returns the stages that may give the result of the stage `name`: the last one that amends it
    first, itself last."""
    by_name = {stage.name: stage for stage in stages}
    return [stage for stage in reversed(stages) if amended_name(stage.name, by_name) == name]


def amended_by(
    names: Iterable[str], stages: Mapping[str, StageNode]
) -> tuple[tuple[str, str], ...]:
    """Returns those of these stages that amend others, each with every stage that it replaces."""
    pairs = []
    for name in names:
        amended = stages[name].amends
        while amended is not None and amended in stages:
            pairs.append((name, amended))
            amended = stages[amended].amends
    return tuple(pairs)


@dataclass(frozen=True)
class Level(Generic[S]):
    """Rows that walk alike. Rows that a function gave in a list walk through what follows the
    function; a row for which it gave a single one stays on its level."""

    maker: S | None
    """The stage that made the rows; None: they are the input's."""
    stages: tuple[S, ...]
    """The stages that the rows walk through."""
    makers: tuple[S, ...]
    """The stages that make further rows of them at their end."""

    @property
    def origin(self) -> int | None:
        """The position of the stage that made the rows, as the store has it."""
        return None if self.maker is None else self.maker.index


@dataclass(frozen=True)
class Levels(Generic[S]):
    """The levels of a workflow, each after those of whose rows it is made."""

    stages: tuple[S, ...]
    all: tuple[Level[S], ...]

    @cached_property
    def by_origin(self) -> dict[int | None, Level[S]]:
        """The levels by the position of the stage that made their rows."""
        return {level.origin: level for level in self.all}

    def leads_to(self, function: S, names: Collection[str]) -> bool:
        """True if one of these stages is the function itself, or works on the rows that the
        function gives in a list, or makes further rows of them."""
        level = self.by_origin[function.index]
        return function.name in names or any(
            stage.name in names for stage in (*level.stages, *level.makers)
        )


class NameSets:
    """Sets of names of stages, each as a number with one bit for each name, in the order in which
    a row meets them. As sets of names, what is upstream of each of thousands of stages takes
    hundreds of megabytes."""

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}

    def add(self, name: str) -> int:
        """Adds the next name. Returns the set of it alone."""
        self.positions[name] = len(self.positions)
        return self.only(name)

    def only(self, name: str) -> int:
        """Returns the set of one name."""
        return 1 << self.positions[name]

    def names(self, members: int) -> tuple[str, ...]:
        """Returns the names in a set, in order."""
        if members:
            return tuple(compress(self.positions, map(int, f"{members:b}"[::-1])))
        return ()


def joined(sets: Iterable[int]) -> int:
    """Returns the union of these sets."""
    return reduce(or_, sets, 0)


def levels_of(stages: Sequence[S]) -> Levels[S]:
    """Returns the levels of stages in the order in which rows meet them; the workflow has no
    problems."""
    origins = RowOrigins(stages)
    makers = [stage for stage in stages if stage.makes is not None]
    walking = dict[str | None, list[S]]()  # by the maker of the rows that they work on
    making = dict[str | None, list[S]]()
    for stage in stages:
        walking.setdefault(origins.home[stage.name], []).append(stage)
    for stage in makers:
        if stage.makes != "rows":
            making.setdefault(origins.base[stage.name], []).append(stage)
    levels = [
        Level(maker, tuple(origins.on(walking, maker)), tuple(origins.on(making, maker)))
        for maker in (None, *makers)
    ]
    return Levels(tuple(stages), tuple(levels))


def homes(stages: Sequence[StageNode]) -> dict[str, str | None]:
    """Returns, by the name of each stage, the maker of the rows that it gives results to; None: the
    rows are the input's, or a function's that take the place of the row it was given."""
    return RowOrigins(stages).home


def descent(stages: Sequence[S], maker: S | None) -> tuple[S, ...]:
    """Returns the stages that made the rows of this maker, one after the other: of the input's
    rows, or of nothing (groups)."""
    by_name = {stage.name: stage for stage in stages}
    line = RowOrigins(stages).lines[maker.name if maker else None]
    return tuple(by_name[name] for name in line if name is not None)


class RowOrigins:
    """The rows on which each stage works, by the stage that made them (None: the input's), as far
    as it is known before a function is called. The stages are in the order in which a row meets
    them."""

    home: dict[str, str | None]
    """The maker of the rows that a stage gives results to, by the stage's name."""
    base: dict[str, str | None]
    """The maker of the rows that a stage begins with."""
    lines: dict[str | None, tuple[str | None, ...]]
    """The makers of the rows of a maker, itself last."""
    apart: list[tuple[str, str, str]]
    """The stages that cannot meet their needs in one row, each with two such needs."""

    def __init__(self, stages: Sequence[StageNode]) -> None:
        self.home = {}
        self.base = {}
        self.lines = {None: (None,)}
        self.apart = []
        self._after: dict[str, str | None] = {}  # the maker of the rows that stages after it see
        self._sets = NameSets()
        self._functions: dict[str, int] = {}  # the functions upstream of a stage
        self._functions_until: dict[str, int] = {}  # the same with the stage, if it is one
        self._makes = {stage.name: stage.makes for stage in stages}
        for stage in stages:
            self._add(stage)

    def _add(self, stage: StageNode) -> None:
        """Adds a stage; those that it needs were added before."""
        name = stage.name
        makes = stage.makes
        base = self._deepest(stage)
        self.base[name] = base
        self.home[name] = name if makes in ("items", "groups") else base
        self._after[name] = name if makes in ("items", "groups", "kept") else base
        if self._after[name] == name:
            self.lines[name] = (name,) if makes == "groups" else (*self.lines[base], name)
        itself = self._sets.add(name)
        functions = joined(self._functions_until[need] for need in stage.needs)
        self._functions[name] = functions
        self._functions_until[name] = functions | itself if makes == "rows" else functions

    def _deepest(self, stage: StageNode) -> str | None:
        """Returns the maker of the rows for which everything that the stage needs is known."""
        if not stage.needs:
            return None
        deepest = max(stage.needs, key=lambda need: len(self.lines[self._after[need]]))
        line = frozenset(self.lines[self._after[deepest]])
        outside = next((need for need in stage.needs if self._after[need] not in line), None)
        if outside is not None:
            self.apart.append((stage.name, outside, deepest))
        return self._after[deepest]

    def on(
        self, by_maker: Mapping[str | None, Sequence[S]], maker: StageNode | None
    ) -> Iterator[S]:
        """Yields the stages on rows of this maker. `by_maker` has them by the maker of their rows
        before any function did."""
        if maker is None or maker.makes != "rows":
            yield from by_maker.get(maker.name if maker else None, ())
            return
        for stage in by_maker.get(self.home[maker.name], ()):
            if self._follows(stage.name, maker.name):
                yield stage

    def _follows(self, name: str, function: str) -> bool:
        """True if the function is upstream of the stage `name`."""
        return bool(self._functions[name] >> self._sets.positions[function] & 1)

    def beside_dedupe(self) -> Iterator[tuple[str, str]]:
        """Yields the makers that begin with rows of which another stage keeps only some and that
        are not upstream of it; each with that stage."""
        by_base: dict[str | None, list[str]] = {}
        for maker, makes in self._makes.items():
            if makes is not None:
                by_base.setdefault(self.base[maker], []).append(maker)
        for keeper, makes in self._makes.items():
            if makes != "kept":
                continue
            for maker in by_base[self.base[keeper]]:
                # two that keep rows are a pair once only
                is_repeated = self._makes[maker] == "kept" and maker <= keeper
                if not is_repeated and not self._follows(keeper, maker):
                    yield maker, keeper


def rows_in_words(maker: str | None, makes: Mapping[str, Makes | None]) -> str:
    """Describes the rows that a stage made; None: the input's."""
    if maker is None:
        return "the input's rows"
    words = {"items": "the rows that {!r} makes of items", "groups": "the groups of {!r}"}
    return words.get(str(makes[maker]), "the rows that {!r} keeps").format(maker)
