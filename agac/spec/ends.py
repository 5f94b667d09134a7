"""What a workflow comes to: the stages whose results are written, and the rows that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agac.core.errors import Problem, key_path
from agac.spec.graph import rows_in_words
from agac.spec.levels import StageNode, homes
from agac.spec.models import StageFile, WorkflowFile
from agac.spec.suggest import did_you_mean
from agac.spec.yamlfile import Document

_PATH = ("output", "stages")


class Ends(NamedTuple):
    """`stages` are those whose results are written, in the order in which a row meets them; `rows` is the stage that
    made the rows that are written, None: they are the input's."""

    stages: tuple[str, ...]
    rows: str | None


def output_stages(
    file: WorkflowFile, document: Document, links: Sequence[StageNode], *, sound: bool = True
) -> tuple[Ends, list[Problem]]:
    """What is written: what `output.stages` names, else the results of the stages that nobody needs. `sound`: nothing
    is wrong with what stages need, so that it is known which rows they give."""
    order = [link.name for link in links]
    written = file.output.stages
    if written is None:
        needed = {need for link in links for need in link.needs}
        chosen = [name for name in order if name not in needed]
    else:
        if problems := _unknown(written, order, file.stages, document):
            return Ends((), None), problems
        chosen = [name for name in order if name in written]
    found = _resolved(chosen, links, file.stages, filters=written is None)
    stages = tuple(name for name in order if name in found)
    if not sound:
        return Ends(stages, None), []
    levels = _levels(chosen, links)
    problems = [_different(levels, links, document, written is not None)] if len(set(levels.values())) > 1 else []
    return Ends(stages, next(iter(levels.values()), None)), problems


def _unknown(
    written: Sequence[str], order: Sequence[str], stages: Sequence[StageFile], document: Document
) -> list[Problem]:
    disabled = {stage.name for stage in stages if not stage.enabled}
    problems = []
    for name in written:
        if name not in order:
            near = did_you_mean(name, list(order), "stages")
            why = "which is not enabled" if name in disabled else f"which does not exist; {near}"
            problems.append(Problem(document.where(_PATH), f"names the stage {name!r}, {why}", key_path(_PATH)))
    return problems


def _resolved(
    chosen: Sequence[str], links: Sequence[StageNode], stages: Sequence[StageFile], *, filters: bool
) -> set[str]:
    """The stages whose results these come to: what only lets rows through has none, so it ends in what it follows;
    a filter that is named stands for the rows that pass it."""
    by_name = {link.name: link for link in links}
    left, found = list(chosen), set()
    while left:
        name = left.pop()
        needs, written = by_name[name].needs, stages[by_name[name].index]
        if needs and (written.dedupe is not None or (written.filter is not None and filters)):
            left += needs
        else:
            found.add(name)
    return found


def _levels(chosen: Sequence[str], links: Sequence[StageNode]) -> Mapping[str, str | None]:
    """What made the rows that come out of each stage."""
    home = homes(links)
    by_name = {link.name: link for link in links}
    # a stage that filters what another one keeps stands on its rows: `homes` says so
    return {name: name if by_name[name].makes == "kept" else home[name] for name in chosen}


def _different(
    levels: Mapping[str, str | None], links: Sequence[StageNode], document: Document, chosen: bool
) -> Problem:
    """Results of rows of several kinds cannot stand in one file."""
    makes = {link.name: link.makes for link in links}
    found: dict[str | None, list[str]] = {}
    for name, level in levels.items():
        found.setdefault(level, []).append(name)
    shown = "; ".join(
        f"{' and '.join(map(repr, names))} of {rows_in_words(level, makes)}" for level, names in found.items()
    )
    last = ", ".join(list(found.values())[-1])
    if chosen:
        message = f"names results of different rows: {shown}; name those of the same rows, as [{last}]"
        return Problem(document.where(_PATH), message, key_path(_PATH))
    message = (
        f"the results that no stage needs are of different rows: {shown}; choose with `output: {{stages: [{last}]}}`"
    )
    return Problem(document.where(_PATH), message, key_path(_PATH))
