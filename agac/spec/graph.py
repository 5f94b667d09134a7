"""The graph of stages: their order by `needs`, and the levels of rows that walk through them. A
level is a set of rows that walk alike. The input's rows are one; stages make others of rows that
are there: `explode` makes children of the items of a list, a function that gives a list children
of its rows, `group_by` groups, and `dedupe` a child of each row that it keeps. A row of any level
walks through the stages of its level."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import chain, compress, islice, repeat
from operator import contains, or_
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

from agac.core.errors import Problem, did_you_mean
from agac.core.types import first_repeated
from agac.spec.operations import Makes

if TYPE_CHECKING:
    from agac.spec.models import StageFile
    from agac.spec.yaml import Document

ESCALATED = "/escalate"
"""What follows a stage's name in that of the stage which asks a stronger model about some of its
rows."""

MAX_STAGES = 10_000
"""The most stages that a workflow may have, with those that cards and `escalate` make of one
stage. What each of so many sees takes some 500 MB."""

# of which each works on the result of the one before it: there is one name more for each of them
MOST_REVIEWS = 10

PARTS = "parts"  # the name under which the guard of a part sees the results of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePart:
    """One of several stages that a stage becomes; one has its name, and the others add to that.
    `needs` are parts before it; without any it follows what the stage needs. `amends` is as that
    of a StageNode."""

    name: str
    needs: tuple[str, ...] = ()
    amends: str | None = None


def stage_of(name: str) -> str:
    """The stage in the file that became the stage `name`, perhaps beside others."""
    return name.partition("/")[0]


def is_hidden(name: str, viewer: str) -> bool:
    """Whether the stage `viewer` has no name for the result of another: parts are seen by parts of
    the same stage."""
    return "/" in name and (name.endswith(ESCALATED) or stage_of(name) != stage_of(viewer))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNode:
    """A stage as a part of the graph, which is all that levels and orders are made of.

    `index` counts stages from 0: in their file, once they are in order as a row meets them.
    `needs` are the stages that it follows, `ancestors` all those upstream whose results it sees:
    none beyond a group. Both are names in the order in which a row meets them. `rows_of` is the
    ancestor after which the row has the fields that this stage sees, None: the input's. `makes` is
    what it makes of rows; `changes_rows`: they have other fields from this stage on.

    `amends` names an ancestor on the same rows: where this stage is not skipped, its result takes
    the place of that one's for all that is downstream of both, and where results are written.
    `amended` are the ancestors that do so, each with the name under which its result is seen; the
    last one counts."""

    name: str
    index: int
    needs: tuple[str, ...]
    ancestors: tuple[str, ...] = ()
    rows_of: str | None = None
    makes: Makes | None = None
    changes_rows: bool = False
    amends: str | None = None
    amended: tuple[tuple[str, str], ...] = ()

    @property
    def is_escalation(self) -> bool:
        """Whether it asks once more what the stage that it amends asked."""
        return self.name.endswith(ESCALATED)

    @property
    def parts(self) -> tuple[str, ...]:
        """The stages that its guard sees as `parts`: those that became of the same stage of the
        file as itself."""
        own = () if self.is_escalation else self.ancestors
        return tuple(name for name in own if stage_of(name) == stage_of(self.name))

    @property
    def rows_after(self) -> str | None:
        """The stage that changed the row's fields last, this one included."""
        return self.name if self.changes_rows else self.rows_of


S = TypeVar("S", bound=StageNode)


def seen_after(
    needs: Sequence[StageNode], stages: Mapping[str, StageNode], viewer: str
) -> tuple[tuple[str, ...], str | None]:
    """What `viewer` sees after the stages `needs` of one level, by a group of its members too: the
    stages upstream, in the order of `stages` (those that a row meets before, by name), and the one
    that changed the row's fields last."""
    upstream = {need.name for need in needs}.union(*(need.ancestors for need in needs))
    forms = {need.rows_after for need in needs}
    last = max(forms, key=lambda name: len(stages[name].ancestors) + 1 if name else 0, default=None)
    seen = tuple(filter(upstream.__contains__, stages))
    # only these may be hidden, and most workflows have none
    if any(map(contains, seen, repeat("/"))):
        seen = tuple(name for name in seen if stages[name].amends or not is_hidden(name, viewer))
    return seen, last


def amended_name(name: str, stages: Mapping[str, StageNode]) -> str:
    """The stage in whose place the result of the stage `name` stands; its own name where it amends
    none."""
    while (first := stages[name].amends) is not None and first in stages:
        name = first
    return name


def giving(name: str, stages: Sequence[S]) -> list[S]:
    """The stages that may give what the stage `name` comes to: the last one that amends it first,
    itself last."""
    by_name = {stage.name: stage for stage in stages}
    return [stage for stage in reversed(stages) if amended_name(stage.name, by_name) == name]


def amended_by(
    names: Iterable[str], stages: Mapping[str, StageNode]
) -> tuple[tuple[str, str], ...]:
    """Of these stages, as a row meets them, those that amend others, each with one that it stands
    for."""
    found = []
    for name in names:
        first = stages[name].amends
        while first is not None and first in stages:
            found.append((name, first))
            first = stages[first].amends
    return tuple(found)


@dataclass(frozen=True)
class Level(Generic[S]):
    """Rows that walk alike. `maker` made them; None: they are the input's. `stages` are those they
    walk through; `makers` those that make further rows of them, once they have come to their end.
    Rows that a function gave in a list walk through what follows the function, as does a row for
    which it gave a single one, where it is."""

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
        """Whether the rows that a function gives in a list, or the results of the function itself,
        come to one of these stages: one that they walk through, or that makes further rows of
        them."""
        level = self.by_origin[function.index]
        return function.name in names or any(
            stage.name in names for stage in (*level.stages, *level.makers)
        )


def levels_of(stages: Sequence[S]) -> Levels[S]:
    """The levels of stages in the order in which rows meet them; of a workflow without problems."""
    places = _Places(stages)
    made = [stage for stage in stages if stage.makes is not None]
    walking = dict[str | None, list[S]]()  # by what made the rows that they are on
    making = dict[str | None, list[S]]()
    for stage in stages:
        walking.setdefault(places.home[stage.name], []).append(stage)
    for stage in made:
        if stage.makes != "rows":
            making.setdefault(places.base[stage.name], []).append(stage)
    found = [
        Level(maker, tuple(places.on(walking, maker)), tuple(places.on(making, maker)))
        for maker in (None, *made)
    ]
    return Levels(tuple(stages), tuple(found))


def homes(stages: Sequence[StageNode]) -> dict[str, str | None]:
    """What made the rows that each stage gives results to, by the stage's name; None: they are the
    input's, or come of a function that stands in the place of the row it was given."""
    return _Places(stages).home


def descent(stages: Sequence[S], maker: S | None) -> tuple[S, ...]:
    """The stages that made the rows of this maker, one after the other: of the input's, or of
    nothing (groups)."""
    by_name = {stage.name: stage for stage in stages}
    return tuple(
        by_name[name]
        for name in _Places(stages).lines[maker.name if maker else None]
        if name is not None
    )


class _Places:
    """On which rows each stage works, as far as it is known before a function is called. `home` is
    what made the rows that a stage gives results to, `_after` what made those that stages after it
    see, `base` what made those that the stage begins with. `lines` is the descent of the rows that
    something made, the nearest last; `_functions` are those upstream of a stage, and in
    `_functions_until` the stage is one of them. `apart` are stages that cannot meet their needs in
    one row, each with two such needs."""

    def __init__(self, stages: Sequence[StageNode]) -> None:
        self.home: dict[str, str | None] = {}
        self.base: dict[str, str | None] = {}
        self.lines: dict[str | None, tuple[str | None, ...]] = {None: (None,)}
        self.apart: list[tuple[str, str, str]] = []
        self._after: dict[str, str | None] = {}
        self._sets = NameSets()
        self._functions: dict[str, int] = {}
        self._functions_until: dict[str, int] = {}
        self._makes = {stage.name: stage.makes for stage in stages}
        for stage in stages:
            name = stage.name
            makes = stage.makes
            base = self.base[name] = self._deepest(stage)
            self.home[name] = name if makes in ("items", "groups") else base
            self._after[name] = name if makes in ("items", "groups", "kept") else base
            if self._after[name] == name:
                self.lines[name] = (name,) if makes == "groups" else (*self.lines[base], name)
            own = self._sets.add(name)
            self._functions[name] = joined(self._functions_until[need] for need in stage.needs)
            self._functions_until[name] = self._functions[name] | (own if makes == "rows" else 0)

    def _deepest(self, stage: StageNode) -> str | None:
        """What made the rows on which all that the stage needs is known."""
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
        """The stages on rows of this maker; `by_maker` has them by what made their rows before any
        function did."""
        if maker is None or maker.makes != "rows":
            yield from by_maker.get(maker.name if maker else None, ())
            return
        for stage in by_maker.get(self.home[maker.name], ()):
            if self._follows(stage.name, maker.name):
                yield stage

    def _follows(self, name: str, function: str) -> bool:
        """Whether the function is upstream of the stage `name`."""
        return bool(self._functions[name] >> self._sets.positions[function] & 1)

    def beside_dedupe(self) -> Iterator[tuple[str, str]]:
        """The makers that begin with the rows of which a stage keeps some, not upstream of it;
        each with that stage."""
        makers: dict[str | None, list[str]] = {}  # by what made the rows that they begin with
        for maker in (name for name, makes in self._makes.items() if makes is not None):
            makers.setdefault(self.base[maker], []).append(maker)
        for kept in (name for name, makes in self._makes.items() if makes == "kept"):
            for maker in makers[self.base[kept]]:
                # of two that keep rows, one pair says it
                said = self._makes[maker] == "kept" and maker <= kept
                if not said and not self._follows(kept, maker):
                    yield maker, kept


def graph(
    stages: Sequence[StageFile],
    document: Document,
    parts: Mapping[str, Sequence[StagePart]] = MappingProxyType({}),
) -> tuple[list[StageNode], list[Problem]]:
    """The stages that are enabled, each after all that it needs, otherwise in the file's order;
    with what is wrong. In the place of a stage that has `parts`, by its name, stand these."""
    names = [stage.name for stage in stages]
    place = {name: index for index, name in reversed([*enumerate(names)])}
    before = [[], *([name] for name in names)]
    both = zip(stages, before, strict=False)
    needs = [list(stage.needs) if stage.needs is not None else near for stage, near in both]
    taken = "stages[{}] is called {!r} already; names are unique"
    problems = [
        document.problem(("stages", index, "name"), taken.format(place[name], name))
        for index, name in enumerate(names)
        if place[name] < index
    ]
    problems += [
        document.problem(("stages", index, "needs"), f"stage {stage.name!r} needs {message}")
        for index, stage in enumerate(stages)
        for message in _wrong_needs(stage, names, place)
    ]
    _follow_what_they_explode(stages, needs, place)
    if problems:
        found = []
    else:
        found = _circles(dict(zip(names, needs, strict=True)), place)
    nodes: list[StageNode] = []
    if not (problems or found):
        nodes = _in_order(stages, needs, place)
        found = _too_many(nodes, stages, parts) or _apart(nodes)
        if not found:
            nodes, found = _with_rows(_expanded(nodes, stages, parts))
            found += _not_to_amend(nodes)
    problems += [
        document.problem(("stages", place[stage_of(name)], "needs"), message)
        for name, message in found
    ]
    if problems and not nodes:
        nodes = [
            StageNode(name=names[index], index=index, needs=tuple(wanted))
            for index, wanted in enumerate(needs)
        ]
    return nodes, problems


def _wrong_needs(stage: StageFile, names: Sequence[str], known: Container[str]) -> list[str]:
    """What is wrong with the needs of a stage; `known` has the `names` of all stages."""
    needs = stage.needs or []
    unknown = [need for need in needs if need not in known]
    found = [
        f"{need!r}, which does not exist; {did_you_mean(need, names, 'stages')}" for need in unknown
    ]
    if stage.name in needs:
        found.append("itself; name the stage before it, or write `needs: []`")
    twice = first_repeated(needs)
    if twice is not None:
        return [*found, f"{twice!r} twice; name it once"]
    return found


def _follow_what_they_explode(
    stages: Sequence[StageFile], needs: list[list[str]], places: Mapping[str, int]
) -> None:
    """A stage without `needs` that explodes the result of a stage follows the stage before it, as
    all do, where this works on the rows that have the result; else it follows the stage whose
    result it explodes."""
    for index, stage in enumerate(stages):
        source = (stage.explode or "").partition(".")[0]
        if stage.needs is not None or (place := places.get(source)) in (None, index):
            continue
        left = [index - 1] if index else []
        seen = set[int]()
        while left and place not in seen:
            at = left.pop()
            if at not in seen:
                seen.add(at)
                if (
                    at == place
                    or stages[at].makes in (None, "rows", "kept")
                    or not stages[at].enabled
                ):
                    left += [places[need] for need in needs[at] if need in places]
        if place not in seen:
            needs[index] = [source]


_Finding = tuple[str, str]  # a stage, and what is wrong with what it needs
# of stages beside each other that are reported at once: there are as many as squares of stages
MAX_PAIRS = 1_000
MAX_CIRCLES = 50  # that are reported at once: for each of them all stages are gone through


def _circles(follows: dict[str, list[str]], place: Mapping[str, int]) -> list[_Finding]:
    """One problem for each circle of stages that need each other, with the way around it; at most
    MAX_CIRCLES."""
    found: list[_Finding] = []
    while len(found) < MAX_CIRCLES:
        try:
            TopologicalSorter(follows).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][:-1]
        else:
            break
        first = min(circle, key=place.__getitem__)
        at = circle.index(first)
        shown = " → ".join([*circle[at:], *circle[:at], first])
        found.append(
            (first, f"these stages need each other in a circle: {shown}; let one of them start")
        )
        for name in circle:
            del follows[name]
    return sorted(found, key=lambda one: place[one[0]])


def _in_order(
    stages: Sequence[StageFile], needs: list[list[str]], place: Mapping[str, int]
) -> list[StageNode]:
    """Each stage after what it needs; among those that could be next the one that stands first in
    the file."""
    follows = {index: [place[need] for need in wanted] for index, wanted in enumerate(needs)}
    real: dict[
        int, dict[str, None]
    ] = {}  # what each stage needs: in the place of a disabled one what that needs
    for index in TopologicalSorter(follows).static_order():
        real[index] = {}
        for need in needs[index]:
            real[index] |= {need: None} if stages[place[need]].enabled else real[place[need]]
    sorter = TopologicalSorter(
        {index: map(place.__getitem__, real[index]) for index in real if stages[index].enabled}
    )
    sorter.prepare()
    ready: list[int] = []
    found: dict[str, StageNode] = {}
    sets = NameSets()  # what sees each stage sees: the stage, and all upstream of it
    seen = dict[str, int]()
    while sorter.is_active():
        for index in sorter.get_ready():
            heappush(ready, index)
        index = heappop(ready)
        stage = stages[index]
        if stage.group_by is None:
            above = joined(seen[need] for need in real[index])
        else:
            above = 0
        ancestors = sets.names(above)
        seen[stage.name] = above | sets.add(stage.name)
        found[stage.name] = StageNode(
            name=stage.name,
            index=index,
            needs=tuple(sorted(real[index], key=sets.positions.__getitem__)),
            ancestors=ancestors,
            makes=stage.makes,
            changes_rows=stage.changes_rows,
            amends=_judged(stage, ancestors, real[index], found),
        )
        sorter.done(index)
    return list(found.values())


class NameSets:
    """Sets of names of stages, each as a number that has one bit for each name, in the order in
    which a row meets them. What is upstream of each of thousands of stages takes hundreds of
    megabytes as sets of names."""

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}

    def add(self, name: str) -> int:
        """Adds the next name. Returns the set of it alone."""
        self.positions[name] = len(self.positions)
        return self.only(name)

    def only(self, name: str) -> int:
        """The set of one name."""
        return 1 << self.positions[name]

    def names(self, members: int) -> tuple[str, ...]:
        """The names in a set, in order."""
        if members:
            return tuple(compress(self.positions, map(int, f"{members:b}"[::-1])))
        return ()


def joined(sets: Iterable[int]) -> int:
    """All that is in one of these sets."""
    return reduce(or_, sets, 0)


def _judged(
    stage: StageFile, ancestors: Sequence[str], needs: Iterable[str], found: Mapping[str, StageNode]
) -> str | None:
    """The stage on whose result people decide at this one; None where there is no such stage, or
    nobody does."""
    if stage.review is None:
        return None
    edit = stage.review.edit
    if edit is not None:
        return edit if edit in ancestors else None
    only = tuple(needs)
    return amended_name(only[0], found) if len(only) == 1 else None


def _too_many(
    nodes: Sequence[StageNode],
    stages: Sequence[StageFile],
    parts: Mapping[str, Sequence[StagePart]],
) -> list[_Finding]:
    """The stage with which a workflow has too many, and reviews in too long a row."""
    count = 0
    depths = dict[str, int]()
    for node in nodes:
        count += len(parts.get(node.name, ())) or 1
        count += stages[node.index].escalate is not None
        if count > MAX_STAGES:
            message = (
                f"with stage {node.name!r} this has more than {MAX_STAGES:,} stages, with "
                "those of cards"
            )
            return [(node.name, f"{message} and of `escalate`; split it into several workflows")]
        depths[node.name] = depths[node.amends] + 1 if node.amends in depths else 0
        if depths[node.name] > MOST_REVIEWS:
            message = (
                f"stage {node.name!r} is the last of more than {MOST_REVIEWS} that review "
                "one another in a row"
            )
            return [(node.name, f"{message}; name the stage that gave it as `edit`")]
    return []


def _apart(nodes: Sequence[StageNode]) -> list[_Finding]:
    """Stages that follow others of which no row has both, and those that make rows of what may be
    dropped."""
    places = _Places(nodes)
    makes = {node.name: node.makes for node in nodes}
    rows = {
        name: rows_in_words(name if makes[name] == "kept" else home, makes)
        for name, home in places.home.items()
    }
    if places.apart:
        apart = (
            "stage {!r} follows {!r}, on {}, and {!r}, on {}; no row has both: let it "
            "follow one of them"
        )
        return [
            (name, apart.format(name, one, rows[one], other, rows[other]))
            for name, one, other in places.apart
        ]
    beside = (
        "stage {!r} makes rows of those that {!r} may drop beside it; let one of them "
        "follow the other"
    )
    pairs = islice(places.beside_dedupe(), MAX_PAIRS)
    return [(maker, beside.format(maker, kept)) for maker, kept in pairs]


def rows_in_words(maker: str | None, makes: Mapping[str, Makes | None]) -> str:
    """The rows that a stage made; None: the input's."""
    if maker is None:
        return "the input's rows"
    words = {"items": "the rows that {!r} makes of items", "groups": "the groups of {!r}"}
    return words.get(str(makes[maker]), "the rows that {!r} keeps").format(maker)


def _with_rows(nodes: Sequence[StageNode]) -> tuple[list[StageNode], list[_Finding]]:
    """The nodes with what changed the rows that each stage sees; a stage cannot see a row in two
    forms."""
    found: dict[str, StageNode] = {}
    wrong: list[_Finding] = []
    stand_ins: dict[
        str, tuple[tuple[str, str], ...]
    ] = {}  # those that amend others, with all that each stands for
    for node in nodes:
        forms = dict.fromkeys(found[need].rows_after for need in node.needs)
        last, *others = sorted(
            forms, key=lambda name: -len(found[name].ancestors) if name else 1
        ) or [None]
        before = frozenset(found[last].ancestors if last and others else ())
        other = next((name for name in others if name and name not in before), None)
        if other is not None:
            message = (
                f"stage {node.name!r} follows {other!r} and {last!r}, which both change the row"
            )
            wrong.append(
                (node.name, f"{message}, each in its own way; let one of them follow the other")
            )
        upstream = filter(stand_ins.__contains__, node.ancestors if stand_ins else ())
        amended = tuple(chain.from_iterable(map(stand_ins.__getitem__, upstream)))
        found[node.name] = replace(
            node, rows_of=None if node.makes == "groups" else last, amended=amended
        )
        if node.amends is not None:
            stand_ins[node.name] = amended_by([node.name], found)
    return list(found.values()), wrong


def _expanded(
    nodes: Sequence[StageNode],
    stages: Sequence[StageFile],
    parts: Mapping[str, Sequence[StagePart]],
) -> list[StageNode]:
    """The nodes, those that become several in the place of theirs: all that needed one needs the
    last of them. What asks once more (`escalate`) is one of them, too."""
    if not any(parts.values()) and all(stages[node.index].escalate is None for node in nodes):
        return [*nodes]
    found = list[StageNode]()
    last = dict[str, str]()
    sets = NameSets()
    seen: dict[
        str, int
    ] = {}  # what sees each node sees: those of its parts that can be seen, and all upstream of it
    for node in nodes:
        own = [*(parts.get(node.name) or [StagePart(name=node.name)])]
        if stages[node.index].escalate is not None:
            own.append(
                StagePart(name=node.name + ESCALATED, needs=(own[-1].name,), amends=node.name)
            )
        needs = tuple(last[name] for name in node.needs)
        # a group sees nothing that is upstream of its members
        above = joined(seen[name] for name in node.needs) if node.ancestors else 0
        bits = {part.name: sets.add(part.name) for part in own}
        inner: dict[str, int] = {}  # the parts upstream of each, and itself
        for part in own:
            before = joined(inner[need] for need in part.needs)
            inner[part.name] = before | bits[part.name]
            # the index is that of the stage in whose keys it stands
            if part.name == node.name:
                one = node
            else:
                one = StageNode(name=part.name, index=node.index, needs=())
            amends = node.amends if one is node else part.amends
            ancestors = sets.names(above | before)
            found.append(
                replace(one, needs=part.needs or needs, ancestors=ancestors, amends=amends)
            )
        last[node.name] = own[-1].name
        shown = (
            bits[part.name] for part in own if part.name == node.name or part.amends is not None
        )
        seen[node.name] = above | joined(shown)
    return found


def _not_to_amend(nodes: Sequence[StageNode]) -> list[_Finding]:
    """Stages that amend what does not come to them, or what another stage amends beside them."""
    found = list[_Finding]()
    home = homes(nodes)
    by_name = {node.name: node for node in nodes}
    functions = {node.name for node in nodes if node.makes == "rows"}

    def makes_rows_between(first: str, last: StageNode) -> bool:
        # all that follow it are among these
        after = last.ancestors[last.ancestors.index(first) + 1 :]
        return any(
            first in by_name[name].ancestors for name in filter(functions.__contains__, after)
        )

    earlier: dict[str, StageNode] = {}  # the last stage that amends each
    for node in nodes:
        name = node.amends
        if name is None:
            continue
        if (
            name not in node.ancestors
            or home[name] != home[node.name]
            or makes_rows_between(name, node)
        ):
            message = (
                f"stage {node.name!r} works on the result of {name!r}, and other rows may "
                "come to it"
            )
            found.append(
                (
                    node.name,
                    (
                        f"{message}; let it follow {name!r}, with no stage between them that "
                        "makes rows"
                    ),
                )
            )
            continue
        first = amended_name(name, by_name)
        if first in earlier and earlier[first].name not in node.ancestors:
            message = (
                f"stages {earlier[first].name!r} and {node.name!r} both stand in for {first!r}"
            )
            found.append((node.name, f"{message}; let one of them follow the other"))
        earlier[first] = node
    return found
