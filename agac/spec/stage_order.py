"""Puts the stages of a workflow in order by what they need, and finds what is wrong with that:
unknown names, circles, rows that no stage can see together, stages that amend others out of
reach."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import chain, islice
from types import MappingProxyType
from typing import NamedTuple

from agac.core.errors import Problem, did_you_mean
from agac.core.types import first_repeated
from agac.spec.card_types import StagePart
from agac.spec.graph import (
    ESCALATED,
    NameSets,
    RowOrigins,
    StageNode,
    amended_by,
    amended_name,
    homes,
    joined,
    rows_in_words,
    stage_of,
)
from agac.spec.models import StageFile
from agac.spec.yaml import Document

MAX_STAGES = 10_000
"""The most stages of a workflow, those included that cards and `escalate` make of one stage. The
names that each of so many sees take some 500 MB."""

MAX_REVIEWS = 10
"""The most reviews of which each works on the result of the one before: there is one name more for
each of them."""

MAX_PAIRS = 1_000
"""The most pairs of parallel stages that are reported at once: their number grows with the square
of the stages."""

MAX_CIRCLES = 50
"""The most circles that are reported at once: for each of them all stages are visited."""

Parts = Mapping[str, Sequence[StagePart]]
"""The stages that a stage of cards becomes, by its name."""


class _Fault(NamedTuple):
    """What is wrong with the needs of a stage."""

    stage: str
    message: str


def ordered(
    stages: Sequence[StageFile], document: Document, parts: Parts = MappingProxyType({})
) -> tuple[list[StageNode], list[Problem]]:
    """Orders the stages that are enabled: each after all that it needs, otherwise as in the file. A
    stage with `parts` is replaced by these. Returns them with everything that is wrong."""
    names = [stage.name for stage in stages]
    positions = {name: index for index, name in reversed([*enumerate(names)])}
    needs = _needs_of(stages)
    problems = [
        *_repeated_names(names, positions, document),
        *_unusable_needs(stages, names, document),
    ]
    _follow_exploded(stages, needs, positions)
    nodes: list[StageNode] = []
    if not problems:
        nodes, faults = _nodes_of(stages, needs, positions, parts)
        problems = [
            document.problem(("stages", positions[stage_of(fault.stage)], "needs"), fault.message)
            for fault in faults
        ]
    if problems and not nodes:
        nodes = [
            StageNode(name=names[index], index=index, needs=tuple(needed))
            for index, needed in enumerate(needs)
        ]
    return nodes, problems


def _needs_of(stages: Sequence[StageFile]) -> list[list[str]]:
    """Returns the needs of each stage: as written, or else the stage before it."""
    needs: list[list[str]] = []
    before: list[str] = []
    for stage in stages:
        needs.append(before if stage.needs is None else list(stage.needs))
        before = [stage.name]
    return needs


def _repeated_names(
    names: Sequence[str], positions: Mapping[str, int], document: Document
) -> list[Problem]:
    """Returns a problem for each name that an earlier stage has."""
    taken = "stages[{}] is called {!r} already; names are unique"
    return [
        document.problem(("stages", index, "name"), taken.format(positions[name], name))
        for index, name in enumerate(names)
        if positions[name] < index
    ]


def _unusable_needs(
    stages: Sequence[StageFile], names: Sequence[str], document: Document
) -> list[Problem]:
    """Returns a problem for each of the stages' needs that names no other stage, or one twice."""
    known = frozenset(names)
    return [
        document.problem(("stages", index, "needs"), f"stage {stage.name!r} needs {message}")
        for index, stage in enumerate(stages)
        for message in _wrong_needs(stage, names, known)
    ]


def _wrong_needs(stage: StageFile, names: Sequence[str], known: Container[str]) -> list[str]:
    """Returns messages about the needs of a stage; `known` has the `names` of all stages."""
    needs = stage.needs or []
    messages = [
        f"{need!r}, which does not exist; {did_you_mean(need, names, 'stages')}"
        for need in needs
        if need not in known
    ]
    if stage.name in needs:
        messages.append("itself; name the stage before it, or write `needs: []`")
    repeated = first_repeated(needs)
    if repeated is not None:
        messages.append(f"{repeated!r} twice; name it once")
    return messages


def _follow_exploded(
    stages: Sequence[StageFile], needs: list[list[str]], positions: Mapping[str, int]
) -> None:
    """Sets the needs of stages without `needs` that explode the result of a stage. They follow the
    stage before them, as all do, if it works on the rows with that result; otherwise they follow
    the stage whose result they explode."""
    for index, stage in enumerate(stages):
        source = (stage.explode or "").partition(".")[0]
        position = positions.get(source)
        if stage.needs is not None or position is None or position == index:
            continue
        if index == 0 or not _is_on_same_rows(stages, needs, positions, index - 1, position):
            needs[index] = [source]


def _is_on_same_rows(
    stages: Sequence[StageFile],
    needs: Sequence[Sequence[str]],
    positions: Mapping[str, int],
    start: int,
    goal: int,
) -> bool:
    """True if the stage at `start` is that at `goal`, or follows it on the same rows."""
    waiting = [start]
    seen = set[int]()
    while waiting and goal not in seen:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        keeps_rows = stages[index].makes in (None, "rows", "kept") or not stages[index].enabled
        if index == goal or keeps_rows:
            waiting += [positions[need] for need in needs[index] if need in positions]
    return goal in seen


def _nodes_of(
    stages: Sequence[StageFile],
    needs: list[list[str]],
    positions: Mapping[str, int],
    parts: Parts,
) -> tuple[list[StageNode], list[_Fault]]:
    """Orders stages whose needs all exist; without nodes if that is not possible."""
    names = [stage.name for stage in stages]
    circles = _circles(dict(zip(names, needs, strict=True)), positions)
    if circles:
        return [], circles
    nodes = _in_order(stages, needs, positions)
    faults = _too_many(nodes, stages, parts) or _apart(nodes)
    if faults:
        return nodes, faults
    nodes, faults = _with_rows(_expanded(nodes, stages, parts))
    return nodes, [*faults, *_not_to_amend(nodes)]


def _circles(follows: dict[str, list[str]], positions: Mapping[str, int]) -> list[_Fault]:
    """Finds circles of stages that need each other, each with the way around it; at most
    MAX_CIRCLES."""
    faults: list[_Fault] = []
    while len(faults) < MAX_CIRCLES:
        try:
            TopologicalSorter(follows).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][:-1]
        else:
            break
        first = min(circle, key=positions.__getitem__)
        start = circle.index(first)
        shown = " → ".join([*circle[start:], *circle[:start], first])
        message = f"these stages need each other in a circle: {shown}; let one of them start"
        faults.append(_Fault(first, message))
        for name in circle:
            del follows[name]
    return sorted(faults, key=lambda fault: positions[fault.stage])


def _in_order(
    stages: Sequence[StageFile], needs: list[list[str]], positions: Mapping[str, int]
) -> list[StageNode]:
    """Puts each enabled stage after what it needs; among those that could be next the one that is
    first in the file."""
    enabled_needs = _enabled_needs(stages, needs, positions)
    sorter = TopologicalSorter(
        {
            index: map(positions.__getitem__, needed)
            for index, needed in enabled_needs.items()
            if stages[index].enabled
        }
    )
    sorter.prepare()
    ready: list[int] = []
    nodes: dict[str, StageNode] = {}
    sets = NameSets()
    seen = dict[str, int]()  # what a stage sees, and itself: what a stage after it sees
    while sorter.is_active():
        for index in sorter.get_ready():
            heappush(ready, index)
        index = heappop(ready)
        stage = stages[index]
        # a group sees nothing that is upstream of its members
        is_group = stage.group_by is not None
        above = 0 if is_group else joined(seen[need] for need in enabled_needs[index])
        ancestors = sets.names(above)
        seen[stage.name] = above | sets.add(stage.name)
        nodes[stage.name] = StageNode(
            name=stage.name,
            index=index,
            needs=tuple(sorted(enabled_needs[index], key=sets.positions.__getitem__)),
            ancestors=ancestors,
            makes=stage.makes,
            changes_rows=stage.changes_rows,
            amends=_judged(stage, ancestors, enabled_needs[index], nodes),
        )
        sorter.done(index)
    return list(nodes.values())


def _enabled_needs(
    stages: Sequence[StageFile], needs: list[list[str]], positions: Mapping[str, int]
) -> dict[int, dict[str, None]]:
    """Returns the needs of each stage by its position; a disabled one is replaced by what it
    needs itself."""
    follows = {index: [positions[need] for need in needed] for index, needed in enumerate(needs)}
    enabled: dict[int, dict[str, None]] = {}
    for index in TopologicalSorter(follows).static_order():
        enabled[index] = {}
        for need in needs[index]:
            if stages[positions[need]].enabled:
                enabled[index][need] = None
            else:
                enabled[index] |= enabled[positions[need]]
    return enabled


def _judged(
    stage: StageFile, ancestors: Sequence[str], needs: Iterable[str], nodes: Mapping[str, StageNode]
) -> str | None:
    """Returns the stage on whose result people decide at this one, if they do and it exists."""
    if stage.review is None:
        return None
    edit = stage.review.edit
    if edit is not None:
        return edit if edit in ancestors else None
    names = tuple(needs)
    return amended_name(names[0], nodes) if len(names) == 1 else None


def _too_many(
    nodes: Sequence[StageNode], stages: Sequence[StageFile], parts: Parts
) -> list[_Fault]:
    """Finds the stage with which a workflow has too many, or too many reviews one after the
    other."""
    count = 0
    depths = dict[str, int]()
    for node in nodes:
        count += len(parts.get(node.name, ())) or 1
        count += stages[node.index].escalate is not None
        if count > MAX_STAGES:
            message = (
                f"with stage {node.name!r} this has more than {MAX_STAGES:,} stages, with "
                "those of cards and of `escalate`; split it into several workflows"
            )
            return [_Fault(node.name, message)]
        depths[node.name] = depths[node.amends] + 1 if node.amends in depths else 0
        if depths[node.name] > MAX_REVIEWS:
            message = (
                f"stage {node.name!r} is the last of more than {MAX_REVIEWS} that review "
                "one another in a row; name the stage that gave it as `edit`"
            )
            return [_Fault(node.name, message)]
    return []


def _apart(nodes: Sequence[StageNode]) -> list[_Fault]:
    """Finds stages that follow others of which no row has both, and those that make rows of what
    may be dropped."""
    origins = RowOrigins(nodes)
    makes = {node.name: node.makes for node in nodes}
    rows = {
        name: rows_in_words(name if makes[name] == "kept" else home, makes)
        for name, home in origins.home.items()
    }
    if origins.apart:
        apart = (
            "stage {!r} follows {!r}, on {}, and {!r}, on {}; no row has both: let it "
            "follow one of them"
        )
        return [
            _Fault(name, apart.format(name, outside, rows[outside], deepest, rows[deepest]))
            for name, outside, deepest in origins.apart
        ]
    beside = (
        "stage {!r} makes rows of those that {!r} may drop beside it; let one of them "
        "follow the other"
    )
    pairs = islice(origins.beside_dedupe(), MAX_PAIRS)
    return [_Fault(maker, beside.format(maker, keeper)) for maker, keeper in pairs]


def _with_rows(nodes: Sequence[StageNode]) -> tuple[list[StageNode], list[_Fault]]:
    """Sets, for each node, what changed the rows that it sees and which ancestors amend others. A
    stage cannot see a row in two forms."""
    done: dict[str, StageNode] = {}
    faults: list[_Fault] = []
    stand_ins: dict[str, tuple[tuple[str, str], ...]] = {}  # what each amending stage replaces
    for node in nodes:
        last, other = _forms_of_rows(node, done)
        if other is not None:
            message = (
                f"stage {node.name!r} follows {other!r} and {last!r}, which both change the row, "
                "each in its own way; let one of them follow the other"
            )
            faults.append(_Fault(node.name, message))
        upstream = filter(stand_ins.__contains__, node.ancestors if stand_ins else ())
        amended = tuple(chain.from_iterable(map(stand_ins.__getitem__, upstream)))
        rows_of = None if node.makes == "groups" else last
        done[node.name] = replace(node, rows_of=rows_of, amended=amended)
        if node.amends is not None:
            stand_ins[node.name] = amended_by([node.name], done)
    return list(done.values()), faults


def _forms_of_rows(node: StageNode, done: Mapping[str, StageNode]) -> tuple[str | None, str | None]:
    """Returns the stage that changed the rows of this node last, and another one that did so in its
    own way, if there is one."""
    forms = dict.fromkeys(done[need].rows_after for need in node.needs)
    if not forms:
        return None, None
    last, *others = sorted(forms, key=lambda name: -len(done[name].ancestors) if name else 1)
    before = frozenset(done[last].ancestors if last and others else ())
    return last, next((name for name in others if name and name not in before), None)


def _expanded(
    nodes: Sequence[StageNode], stages: Sequence[StageFile], parts: Parts
) -> list[StageNode]:
    """Replaces nodes that become several: whatever needed one needs the last of its parts. A stage
    that asks again (`escalate`) is one of them."""
    if not any(parts.values()) and all(stages[node.index].escalate is None for node in nodes):
        return [*nodes]
    expanded = list[StageNode]()
    last = dict[str, str]()
    sets = NameSets()
    seen = dict[str, int]()  # the visible parts of each node, and all upstream of it
    for node in nodes:
        own = _parts_of(node, stages[node.index], parts.get(node.name, ()))
        needs = tuple(last[name] for name in node.needs)
        # a group sees nothing that is upstream of its members
        above = joined(seen[name] for name in node.needs) if node.ancestors else 0
        inner: dict[str, int] = {}  # the parts upstream of each, and itself
        for part in own:
            before = joined(inner[need] for need in part.needs)
            inner[part.name] = before | sets.add(part.name)
            ancestors = sets.names(above | before)
            expanded.append(replace(part, needs=part.needs or needs, ancestors=ancestors))
        last[node.name] = own[-1].name
        visible = (part for part in own if part.name == node.name or part.amends is not None)
        seen[node.name] = above | joined(sets.only(part.name) for part in visible)
    return expanded


def _parts_of(node: StageNode, stage: StageFile, parts: Sequence[StagePart]) -> list[StageNode]:
    """Returns the nodes that this one becomes; they need only each other. Their index is that of
    the stage with their keys."""
    nodes = []
    for part in parts:
        if part.name == node.name:
            nodes.append(replace(node, needs=part.needs))
        else:
            nodes.append(
                StageNode(name=part.name, index=node.index, needs=part.needs, amends=part.amends)
            )
    nodes = nodes or [replace(node, needs=())]
    if stage.escalate is not None:
        escalation = StageNode(
            name=node.name + ESCALATED,
            index=node.index,
            needs=(nodes[-1].name,),
            amends=node.name,
        )
        nodes.append(escalation)
    return nodes


def _not_to_amend(nodes: Sequence[StageNode]) -> list[_Fault]:
    """Finds stages that amend results that do not reach them, or that a parallel stage amends
    too."""
    faults = list[_Fault]()
    home = homes(nodes)
    by_name = {node.name: node for node in nodes}
    functions = {node.name for node in nodes if node.makes == "rows"}
    earlier: dict[str, StageNode] = {}  # the last stage that amends each
    for node in nodes:
        name = node.amends
        if name is None:
            continue
        is_reached = name in node.ancestors and home[name] == home[node.name]
        if not is_reached or _makes_rows_between(name, node, by_name, functions):
            message = (
                f"stage {node.name!r} works on the result of {name!r}, and other rows may "
                f"come to it; let it follow {name!r}, with no stage between them that "
                "makes rows"
            )
            faults.append(_Fault(node.name, message))
            continue
        first = amended_name(name, by_name)
        if first in earlier and earlier[first].name not in node.ancestors:
            message = (
                f"stages {earlier[first].name!r} and {node.name!r} both stand in for {first!r}; "
                "let one of them follow the other"
            )
            faults.append(_Fault(node.name, message))
        earlier[first] = node
    return faults


def _makes_rows_between(
    first: str, last: StageNode, by_name: Mapping[str, StageNode], functions: Container[str]
) -> bool:
    """True if a function that may give lists follows the stage `first` and is upstream of
    `last`."""
    # everything between them is among these
    after = last.ancestors[last.ancestors.index(first) + 1 :]
    return any(first in by_name[name].ancestors for name in filter(functions.__contains__, after))
