"""The order in which a row walks through the stages: `needs` makes one chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agac.core.errors import Problem
from agac.spec.models import StageFile
from agac.spec.suggest import did_you_mean
from agac.spec.yamlfile import Document, Path_, key_path

_ONLY_CHAINS = "stages form one chain for now"


@dataclass(frozen=True, slots=True)
class Link:
    """A stage by its index in the file, and the name of the stage that it follows."""

    index: int
    upstream: str | None


def chain(stages: Sequence[StageFile], document: Document) -> tuple[list[Link], list[Problem]]:
    """The stages in walking order; with what keeps them from being one chain, in the file's order."""
    problems = _repeated(stages, document)
    links: list[Link] = []
    for index in range(len(stages)):
        upstream, found = _upstream(index, stages, document)
        problems += found
        links.append(Link(index, upstream))
    return (links, problems) if problems else _ordered(links, stages, document)


def _repeated(stages: Sequence[StageFile], document: Document) -> list[Problem]:
    first: dict[str, int] = {}
    problems: list[Problem] = []
    for index, stage in enumerate(stages):
        if stage.name in first:
            message = f"stages[{first[stage.name]}] is called {stage.name!r} already; names are unique"
            problems.append(_problem(document, ("stages", index, "name"), message))
        first.setdefault(stage.name, index)
    return problems


def _upstream(index: int, stages: Sequence[StageFile], document: Document) -> tuple[str | None, list[Problem]]:
    stage, path = stages[index], ("stages", index, "needs")
    if stage.needs is None:
        return (stages[index - 1].name if index else None), []
    names = [known.name for known in stages]
    problems = [
        _problem(document, path, f"stage {stage.name!r} needs {need!r}, which does not exist; {_remedy(need, names)}")
        for need in stage.needs
        if need not in names
    ]
    if len(stage.needs) > 1:
        message = f"stage {stage.name!r} needs {len(stage.needs)} stages; {_ONLY_CHAINS}, so name one"
        problems.append(_problem(document, path, message))
    elif stage.needs == [stage.name]:
        problems.append(_problem(document, path, f"stage {stage.name!r} needs itself; name the stage before it"))
    return next((need for need in stage.needs if need in names), None), problems


def _remedy(need: str, names: list[str]) -> str:
    return did_you_mean(need, names, "stages")


def _ordered(links: list[Link], stages: Sequence[StageFile], document: Document) -> tuple[list[Link], list[Problem]]:
    followers: dict[str | None, Link] = {}
    problems: list[Problem] = []
    for link in links:
        other = followers.setdefault(link.upstream, link)
        if other is not link:
            first, second = stages[other.index].name, stages[link.index].name
            what = f"need {link.upstream!r}" if link.upstream else "need no stage"
            message = f"stages {first!r} and {second!r} both {what}; {_ONLY_CHAINS}, so let one follow the other"
            path: Path_ = ("stages", link.index, "needs") if link.upstream else ("stages", link.index)
            problems.append(_problem(document, path, message))
    if problems:
        return links, problems
    ordered: list[Link] = []
    name: str | None = None
    while (link_after := followers.pop(name, None)) is not None:
        ordered.append(link_after)
        name = stages[link_after.index].name
    if followers:
        rest = " → ".join(stages[link.index].name for link in followers.values())
        index = min(link.index for link in followers.values())
        message = f"these stages need each other in a circle: {rest}; {_ONLY_CHAINS}, so let one of them start"
        return links, [_problem(document, ("stages", index, "needs"), message)]
    return ordered, []


def _problem(document: Document, path: Path_, message: str) -> Problem:
    return Problem(document.where(path), message, key_path(path))
