"""The order of stages: `needs` makes a graph without circles, and each stage has the rows of one before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from pathlib import Path

from agac.core.errors import Path_, Problem, did_you_mean, key_path
from agac.spec.guards import compile_guard
from agac.spec.levels import Makes, StageNode, apart, beside_dedupe, homes
from agac.spec.models import DefaultsFile, StageFile
from agac.spec.operations import CHANGING, OPERATIONS, Dedupe, Filter, Group, Operation, Python, Rename, Select, made_by
from agac.spec.python_code import parse_reference
from agac.spec.yaml import Document

_ASKING = DefaultsFile.model_fields.keys() | {
    "agent", "instructions", "prompt", "template", "messages", "output_schema", "output_field", "visible", "budget",
    "group_by", "reduce", "incomplete", "replicas", "vote",
}  # fmt: skip
"""Keys that only mean something where a model is asked."""


def operations_of(written: StageFile) -> list[str]:
    """The keys of a stage that say what it does in the place of asking a model."""
    return [key for key in OPERATIONS if getattr(written, key) is not None]


def makes_of(written: StageFile) -> Makes | None:
    """What a stage makes of rows."""
    return made_by(written.explode, written.group_by, next(iter(operations_of(written)), None))


def misplaced(written: StageFile, document: Document, path: Path_) -> list[Problem]:
    """Keys that do not go with what the stage does."""
    does = operations_of(written)
    found: list[tuple[str, str]] = []
    if len(does) > 1:
        found.append((does[1], f"a stage does one thing; this one has {' and '.join(does)}: make a stage of each"))
    if does:
        message = f"a stage with {does[0]} asks no model; remove {{0}}, or make a stage of its own of it"
        found += [(key, message.format(key)) for key in sorted(_ASKING & written.model_fields_set)]
    if written.explode is not None and written.dedupe is not None:
        found.append(("explode", "explode makes rows and dedupe drops some of them; make a stage of each"))
    if written.when is not None and written.dedupe is not None:
        found.append(("when", "dedupe looks at all rows that come to it; put the condition into a filter before it"))
    if written.processes is not None and written.python is None:
        found.append(("processes", "processes says where a function runs; add python, or remove processes"))
    return [document.problem((*path, key), message, key=True) for key, message in found]


def ways(fields: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Fields as they are written, each by its parts."""
    return tuple(tuple(field.split(".")) for field in fields)


def exploded(written: StageFile) -> tuple[str, ...] | None:
    """The way to the list of whose items a stage makes rows, by its parts; None: it makes none."""
    return None if written.explode is None else tuple(written.explode.split("."))


def grouping(written: StageFile) -> Group | None:
    """How a stage makes groups; None: it makes none."""
    if written.group_by is None:
        return None
    fields, bounds = ways(written.group_by), written.reduce
    max_rows, max_tokens = (bounds.max_rows, bounds.max_tokens) if bounds else (None, None)
    return Group(fields, max_rows, max_tokens, written.incomplete)


def operation(
    written: StageFile, document: Document, path: Path_, root: Path
) -> tuple[Operation | None, list[Problem]]:
    """What a stage does in the place of asking a model; None for one that asks, or when something is wrong with it."""
    if written.python is not None:
        at = (*path, "python")
        function, problems = parse_reference(written.python, document.where(at), key_path(at), root)
        return (Python(function, written.processes) if function else None), problems
    if written.filter is not None:
        at = (*path, "filter")
        guard, problems = compile_guard(written.filter, document.where(at), key_path(at))
        return (Filter(guard) if guard else None), problems
    if written.select is not None:
        return Select(tuple(written.select)), []
    if written.rename is not None:
        return Rename(written.rename), []
    if written.dedupe is not None:
        return Dedupe(ways(written.dedupe)), []
    return None, []


def graph(stages: Sequence[StageFile], document: Document) -> tuple[list[StageNode], list[Problem]]:
    """The stages that are enabled, each after all that it needs, otherwise in the file's order; with what is wrong."""
    problems = _repeated(stages, document)
    needs: list[list[str]] = []
    for index in range(len(stages)):
        wanted, found = _needs(index, stages, document)
        needs.append(wanted)
        problems += found
    _follow_what_they_explode(stages, needs)
    if not problems:
        problems = _circles(stages, needs, document)
    if problems:
        links = [
            StageNode(name=stages[index].name, index=index, needs=tuple(wanted)) for index, wanted in enumerate(needs)
        ]
        return links, problems
    links = _in_order(stages, needs)
    problems = _apart(links, document)
    return (links, problems) if problems else _with_rows(links, document)


def _repeated(stages: Sequence[StageFile], document: Document) -> list[Problem]:
    first: dict[str, int] = {}
    problems: list[Problem] = []
    for index, stage in enumerate(stages):
        if stage.name in first:
            message = f"stages[{first[stage.name]}] is called {stage.name!r} already; names are unique"
            problems.append(_problem(document, index, message, "name"))
        first.setdefault(stage.name, index)
    return problems


def _needs(index: int, stages: Sequence[StageFile], document: Document) -> tuple[list[str], list[Problem]]:
    """What a stage needs as its author wrote it; the stage before it where nothing is written."""
    stage = stages[index]
    if stage.needs is None:
        return ([stages[index - 1].name] if index else []), []
    names = [other.name for other in stages]
    problems = [
        _problem(
            document,
            index,
            f"stage {stage.name!r} needs {need!r}, which does not exist; {did_you_mean(need, names, 'stages')}",
        )
        for need in stage.needs
        if need not in names
    ]
    if stage.name in stage.needs:
        problems.append(_problem(document, index, f"stage {stage.name!r} needs itself; name the stage before it"))
    if len(set(stage.needs)) < len(stage.needs):
        twice = next(need for place, need in enumerate(stage.needs) if need in stage.needs[:place])
        problems.append(_problem(document, index, f"stage {stage.name!r} needs {twice!r} twice; name it once"))
    return list(stage.needs), problems


def _follow_what_they_explode(stages: Sequence[StageFile], needs: list[list[str]]) -> None:
    """A stage without `needs` that explodes the result of a stage follows the stage before it, as all do, where this
    works on the rows that have the result; else it follows the stage whose result it explodes."""
    places = {stage.name: index for index, stage in enumerate(stages)}
    for index, stage in enumerate(stages):
        source = exploded(stage)
        if source is None or stage.needs is not None or (place := places.get(source[0])) in (None, index):
            continue
        left, seen = [index - 1] if index else [], set[int]()
        while left and place not in seen:
            at = left.pop()
            if at not in seen:
                seen.add(at)
                if at == place or makes_of(stages[at]) in (None, "rows", "kept") or not stages[at].enabled:
                    left += [places[need] for need in needs[at] if need in places]
        if place not in seen:
            needs[index] = [source[0]]


def _circles(stages: Sequence[StageFile], needs: Sequence[Sequence[str]], document: Document) -> list[Problem]:
    """One problem for each circle of stages that need each other, with the way around it."""
    follows = {stage.name: list(wanted) for stage, wanted in zip(stages, needs, strict=True)}
    place = {stage.name: index for index, stage in enumerate(stages)}
    problems = []
    while circle := _circle(follows):
        first = min(circle, key=place.__getitem__)
        at = circle.index(first)
        shown = " → ".join([*circle[at:], *circle[:at], first])
        message = f"these stages need each other in a circle: {shown}; let one of them start"
        problems.append((place[first], message))
        for name in circle:
            del follows[name]
    return [_problem(document, index, message) for index, message in sorted(problems)]


def _circle(follows: Mapping[str, Sequence[str]]) -> list[str] | None:
    """Stages that need each other, each of them followed by one that needs it; None where none do."""
    try:
        TopologicalSorter(follows).prepare()
    except CycleError as error:
        return list(error.args[1][:-1])
    return None


def _in_order(stages: Sequence[StageFile], needs: Sequence[Sequence[str]]) -> list[StageNode]:
    """Each stage after what it needs; among those that could be next the one that stands first in the file."""
    place = {stage.name: index for index, stage in enumerate(stages)}
    real = _without_disabled(stages, needs)
    sorter = TopologicalSorter({index: [place[need] for need in wanted] for index, wanted in real.items()})
    sorter.prepare()
    ready: list[int] = []
    order: list[int] = []
    upstream: dict[int, int] = {}  # the stages upstream of each, as bits by their places in `order`
    position: dict[str, int] = {}
    while sorter.is_active():
        for index in sorter.get_ready():
            heappush(ready, index)
        index = heappop(ready)
        bits = 0
        for need in real[index] if stages[index].group_by is None else ():
            bits |= upstream[place[need]] | 1 << position[need]
        upstream[index], position[stages[index].name] = bits, len(order)
        order.append(index)
        sorter.done(index)
    names = [stages[index].name for index in order]
    return [
        StageNode(
            name=stages[index].name,
            index=index,
            needs=tuple(sorted(real[index], key=position.__getitem__)),
            ancestors=_named(upstream[index], names),
            makes=makes_of(stages[index]),
            changes_rows=any(getattr(stages[index], key) is not None for key in CHANGING),
        )
        for index in order
    ]


def _apart(links: Sequence[StageNode], document: Document) -> list[Problem]:
    """Stages that follow others of which no row has both, and those that make rows of what may be dropped."""
    index = {link.name: link.index for link in links}
    if found := apart(links):
        makes, home = {link.name: link.makes for link in links}, homes(links)
        rows = {name: rows_in_words(name if makes[name] == "kept" else home[name], makes) for name in makes}
        return [
            _problem(
                document,
                index[one.stage],
                f"stage {one.stage!r} follows {one.one!r}, on {rows[one.one]}, and {one.other!r}, on "
                f"{rows[one.other]}; no row has both: let it follow one of them",
            )
            for one in found
        ]
    return [
        _problem(
            document,
            index[maker],
            f"stage {maker!r} makes rows of those that {kept!r} may drop beside it; let one of them follow the other",
        )
        for maker, kept in beside_dedupe(links)
    ]


def rows_in_words(maker: str | None, makes: Mapping[str, Makes | None]) -> str:
    """The rows that a stage made; None: the input's."""
    if maker is None:
        return "the input's rows"
    words = {"items": "the rows that {!r} makes of items", "groups": "the groups of {!r}"}
    return words.get(str(makes[maker]), "the rows that {!r} keeps").format(maker)


def _with_rows(links: Sequence[StageNode], document: Document) -> tuple[list[StageNode], list[Problem]]:
    """The links with what changed the rows that each stage sees; a stage cannot see a row in two forms."""
    found: dict[str, StageNode] = {}
    problems = []
    for link in links:
        forms = dict.fromkeys(_changed_by(found[need]) for need in link.needs)
        last, *others = sorted(forms, key=lambda name: -len(found[name].ancestors) if name else 1) or [None]
        others = [name for name in others if name and last and name not in found[last].ancestors]
        if others:
            message = (
                f"stage {link.name!r} follows {others[0]!r} and {last!r}, which both change the row, each in its own "
                "way; let one of them follow the other"
            )
            problems.append(_problem(document, link.index, message))
        found[link.name] = replace(link, rows_of=None if link.makes == "groups" else last)
    return list(found.values()), problems


def _changed_by(link: StageNode) -> str | None:
    return link.name if link.changes_rows else link.rows_of


def _named(bits: int, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name, bit in zip(names, reversed(f"{bits:b}"), strict=False) if bit == "1")


def _without_disabled(stages: Sequence[StageFile], needs: Sequence[Sequence[str]]) -> dict[int, list[str]]:
    """What each enabled stage needs: in the place of a disabled one what that needs."""
    place = {stage.name: index for index, stage in enumerate(stages)}
    disabled = {stage.name for stage in stages if not stage.enabled}
    real: dict[int, list[str]] = {}
    for index, stage in enumerate(stages):
        if not stage.enabled:
            continue
        found: dict[str, None] = {}
        left = list(reversed(needs[index]))
        seen: set[str] = set()
        while left:
            need = left.pop()
            if need in disabled:
                if need not in seen:
                    seen.add(need)
                    left += reversed(needs[place[need]])
            else:
                found[need] = None
        real[index] = list(found)
    return real


def _problem(document: Document, index: int, message: str, key: str = "needs") -> Problem:
    return document.problem(("stages", index, key), message)
