"""A workflow as a drawing, as Mermaid text or SVG, with the outcomes of its last run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agac.api.drawing import COUNT_WORDS, DrawnEdge, DrawnNode, mermaid
from agac.api.drawing_svg import svg
from agac.api.project import Project, project_of
from agac.api.status import database_path, root_of, stored_run, workflow_name
from agac.api.sync import blocking
from agac.core.arguments import typed
from agac.core.errors import SpecError, UsageError, any_error
from agac.core.types import Report
from agac.data.files import write_whole
from agac.plan.resolved_models import resolve_models
from agac.plan.stage import ends_of, recorded_stages, stage_body, written_of
from agac.spec.graph import StageNode, giving
from agac.spec.loader import WorkflowSource, in_order, load_workflow
from agac.spec.project import Overrides
from agac.spec.project_files import open_file
from agac.spec.workflow import Workflow, read_needs
from agac.store.db import Database, open_for_reading
from agac.store.history import run_lines
from agac.store.rows import made_counts, present
from agac.store.runs import RunRecord, counters, definition_of, read_run, row_counts

DRAWING_STARTS = ("<svg ", "flowchart ")
"""How drawings begin: no other file is replaced by one."""


@dataclass(frozen=True, slots=True)
class DrawnStage(DrawnNode, Report):
    """A stage as it is drawn.

    Its `counts` are the outcomes of its rows in the run, and in a run with open rows how many are
    `waiting`. They are None without a run, and if the run did not have the stage."""

    JSON_KEYS = ("name", "kind", "does", "needs", "when", "otherwise", "makes", "level", "counts")

    does: str = ""
    """Its model, or what it does instead of asking one."""

    needs: tuple[str, ...] = ()
    """The stages that it follows."""

    when: str | None = None
    """Its guard."""

    otherwise: str | None = None
    """What happens to rows that the guard does not let through."""

    makes: str | None = None
    """What it makes of rows, as `explode plan.questions`."""


@dataclass(frozen=True, slots=True)
class GraphReport(Report):
    """A workflow's stages between its input and the folder of its results."""

    workflow: str
    """The name of the workflow."""

    run: int | None
    """The run whose counts are shown; None if there is none."""

    input: str
    """The path of the input."""

    stages: tuple[DrawnStage, ...]
    """The stages in the order in which a row meets them."""

    results: tuple[str, ...]
    """The stages whose results are written."""

    output: str
    """The folder of the results."""

    rows: Mapping[str, int] | None
    """How many rows of the input ended in which way; None without a run."""

    written: Mapping[str, int] | None = None
    """The same of the rows that are written, if a stage made them."""

    @property
    def title(self) -> str:
        """What is drawn, as `reviews, run 3`."""
        if self.run is None:
            return self.workflow
        return f"{self.workflow}, run {self.run}"

    def nodes(self) -> list[DrawnNode]:
        """Lists the boxes: the input, the stages, the results."""
        first, last = self._ends()
        total = None
        if self.rows is not None:
            total = {"rows": self.rows["total"]}
        ended = None
        written = self.written or self.rows
        if written is not None:
            ended = {name: n for name, n in written.items() if name != "total"}
        return [
            DrawnNode(first, "input", counts=total),
            *self.stages,
            DrawnNode(last, "output", counts=ended),
        ]

    def edges(self) -> list[DrawnEdge]:
        """Lists the lines: from each stage to those that need it."""
        first, last = self._ends()
        inner = [
            DrawnEdge(need, stage.name) for stage in self.stages for need in stage.needs or (first,)
        ]
        return [*inner, *(DrawnEdge(name, last) for name in self.results)]

    def _ends(self) -> tuple[str, str]:
        """Names the first and the last box so that no two boxes have one name."""
        names = {stage.name for stage in self.stages}
        ends = []
        for name in (self.input, self.output):
            while name in names:
                name += " "
            ends.append(name)
            names.add(name)
        return ends[0], ends[1]

    def svg(self, *, styled: bool = True) -> str:
        """Draws it as an SVG document; without `styled` as part of a page that has the style rules
        elsewhere."""
        return svg(self.nodes(), self.edges(), title=self.title, styled=styled)

    def mermaid(self) -> str:
        """Draws it as Mermaid text."""
        return mermaid(self.nodes(), self.edges())


@blocking
async def graph(
    workflow: WorkflowSource | None = None,
    *,
    run: int | str | None = None,
    project: Path | str | None = None,
) -> GraphReport:
    """Describes a workflow as its file is now, with the counts of the run last worked on, by the
    names of its stages; with `run` as it was in that run.

    Changes nothing, needs no provider's key, and imports no code of the user. Raises SpecError for
    problems in the file, UsageError for a run that does not exist."""
    if run is not None:
        root = root_of(workflow, project)
        async with stored_run(root, run, workflow_name(workflow)) as (database, record):
            return await _graph_of_run(database, record)
    if workflow is None:
        hint = "Name it, as in `agac graph -a WORKFLOW`, or a run with --run last."
        raise UsageError("no workflow is named", remedy=hint)
    return await _graph_of_file(workflow, project)


async def _graph_of_file(workflow: WorkflowSource, project: Path | str | None) -> GraphReport:
    """Describes a workflow as its file is now, with the counts of the run last worked on."""
    opened = project_of(workflow, project)
    loaded, problems = load_workflow(opened.spec, workflow, Overrides())
    if loaded is None or any_error(problems):
        raise SpecError(in_order(problems))
    run, counts = await _last_counts(opened.root, loaded.name)
    levels = _levels(loaded.stages)
    return GraphReport(
        loaded.name,
        run,
        loaded.input.shown,
        tuple(_drawn_stages(_bodies_with_models(opened, loaded), counts.stages, levels)),
        _results(loaded.output.stages, loaded.stages),
        opened.spec.shown(loaded.output.dir),
        counts.rows,
        counts.written,
    )


def _bodies_with_models(opened: Project, workflow: Workflow) -> list[dict[str, Any]]:
    """Writes the stages as a definition has them; those that ask name their model."""
    models, _ = resolve_models(workflow, opened.providers, opened.spec.file.aliases)
    bodies = []
    for stage in workflow.stages:
        body = stage_body(stage)
        if stage.asks and stage.name in models:
            body["model"] = models[stage.name][0].lane
        elif stage.asks:
            body["model"] = stage.model or "no model"
        bodies.append(body)
    return bodies


async def _graph_of_run(database: Database, record: RunRecord) -> GraphReport:
    """Describes a workflow as it was in a run. A stage without outcomes has counts of 0, and a run
    with open rows tells how many wait for each stage."""
    definition = await definition_of(database, record.id)
    counts = await _counts(database, record)
    bodies = definition["stages"]
    stages = recorded_stages(definition)
    levels = _levels(stages)
    for body in bodies:
        counts.stages.setdefault(body["name"], dict.fromkeys(COUNT_WORDS, 0))
    if counts.rows is not None and counts.rows["open"]:
        for stage in stages:
            counts.stages[stage.name]["waiting"] = _waiting(stage, levels, counts, counts.rows)
    ends = tuple(bodies[position]["name"] for position in ends_of(definition))
    return GraphReport(
        record.workflow,
        record.id,
        definition["input"]["path"],
        tuple(_drawn_stages(bodies, counts.stages, levels)),
        _results(ends, stages),
        record.output_dir,
        counts.rows,
        counts.written,
    )


@dataclass(frozen=True, slots=True)
class _Counts:
    """The counts of a run."""

    stages: dict[str, dict[str, int]] = field(default_factory=dict)
    """By the name of a stage, how many of its rows ended in which way."""

    rows: dict[str, int] | None = None
    """The same of the input's rows; None without a run."""

    written: dict[str, int] | None = None
    """The same of the rows that are written, if a stage made them."""


async def _last_counts(root: Path, workflow: str) -> tuple[int | None, _Counts]:
    """Reads the counts of the run of a workflow that was last worked on, and its number; None if
    there is no run."""
    async with open_for_reading(database_path(root)) as database:
        lines = await run_lines(database, workflow) if database else []
        if database is None or not lines:
            return None, _Counts()
        record = await read_run(database, lines[0].id)
        if record is None:
            return None, _Counts()
        return record.id, await _counts(database, record)


async def _counts(database: Database, record: RunRecord) -> _Counts:
    """Reads the counts of a run."""
    counts = await counters(database, record.id)
    stages = dict[str, dict[str, int]]()
    for count in counts:
        outcomes = stages.setdefault(count.stage, dict.fromkeys(COUNT_WORDS, 0))
        if count.outcome in outcomes:
            outcomes[count.outcome] += count.tasks
    written = None
    position = written_of(await definition_of(database, record.id))
    if position is not None:
        written = present(await made_counts(database, record.id), position)
    return _Counts(stages, row_counts(counts), written)


def _waiting(
    stage: StageNode, levels: Mapping[str, int], counts: _Counts, rows: Mapping[str, int]
) -> int:
    """Estimates how many rows of the input wait for a stage: those that passed all stages that it
    needs, without those that it has settled. 0 if other rows than the input's come to it."""
    if levels[stage.name]:
        return 0
    passed = [
        sum(counts.stages[need][word] for word in ("done", "reused", "skipped"))
        for need in stage.needs
    ]
    came = min(passed, default=rows["total"])
    settled = sum(counts.stages[stage.name].values())
    return max(0, min(came - settled, rows["open"]))


def _results(names: Sequence[str], stages: Sequence[StageNode]) -> tuple[str, ...]:
    """Names the stages whose results are written: instead of one that others amend, the last of
    those."""
    return tuple(giving(name, stages)[0].name for name in names)


def _levels(stages: Sequence[StageNode]) -> dict[str, int]:
    """Counts how many stages, one after the other, made the rows that each stage is asked of; 0:
    they are the input's."""
    levels: dict[str, int] = {}
    after: dict[str, int] = {}
    for stage in stages:
        above = max((after[need] for need in stage.needs), default=0)
        levels[stage.name] = above + (stage.makes in ("items", "groups"))
        after[stage.name] = levels[stage.name] + (stage.makes == "kept")
    return levels


def _drawn_stages(
    bodies: Sequence[Mapping[str, Any]],
    outcomes: Mapping[str, Mapping[str, int]],
    levels: Mapping[str, int],
) -> Iterator[DrawnStage]:
    """Yields stages of a definition as they are drawn."""
    for body in bodies:
        name = body["name"]
        yield _drawn(body, outcomes.get(name), levels[name])


def _drawn(body: Mapping[str, Any], outcomes: Mapping[str, int] | None, level: int) -> DrawnStage:
    """Describes a stage of a definition."""
    guard = body.get("when")
    kind = "ask"
    does = [str(body["model"])] if not body.get("operation") else []
    if body.get("operation"):
        kind, value = next(iter(body["operation"].items()))
        does = _review_lines(value) if kind == "review" else [_operation_text(value)]
    makes = _made_rows(body)
    otherwise = body.get("otherwise", "skip") if guard else None
    lines = [*does, *([makes] if makes else [])]
    if guard is not None:
        lines += [f"when {guard}", "else dropped" if otherwise == "drop" else "else skipped"]
    return DrawnStage(
        body["name"],
        kind,
        lines,
        outcomes,
        level,
        ", ".join(does),
        read_needs(body["needs"]),
        guard,
        otherwise,
        makes,
    )


def _operation_text(value: Any) -> str:
    """Writes what an operation is about: a function, fields, or old and new names of fields."""
    if isinstance(value, dict):
        return ", ".join(f"{old} → {new}" for old, new in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    return str(value)


def _review_lines(review: Mapping[str, Any]) -> list[str]:
    """Describes a stage at which people decide."""
    return [
        f"people decide on {review['edit']}",
        *(f"{name} {review[name]}" for name in ("when", "reviewers") if name in review),
        *(f"{name} {100 * review[name]:g} %" for name in ("sample", "blind") if name in review),
    ]


def _made_rows(body: Mapping[str, Any]) -> str | None:
    """Describes the rows that a stage makes, if it makes any."""
    if "explode" in body:
        return f"explode {body['explode']}"
    if "group_by" in body:
        return f"group_by {', '.join(body['group_by']) or 'nothing'}"
    return None


@typed
def save_drawing(text: str, file: Path | str) -> None:
    """Writes a drawing, whole or not at all; it may replace an older drawing, and no other file.

    Raises UsageError if there is no such folder or the file is something else, AgacError if the
    disk refuses it."""
    file = Path(file)
    if not file.absolute().parent.is_dir():
        raise UsageError(
            f"{file}: there is no such folder", remedy=f"mkdir -p {shlex.quote(str(file.parent))}"
        )
    if file.is_file():
        with open_file(file, str(file), None) as opened:
            start = opened.read(max(map(len, DRAWING_STARTS)))
        if start and not start.decode("utf-8", "replace").startswith(DRAWING_STARTS):
            raise UsageError(
                f"{file}: is there already, and is no drawing",
                remedy="Name another file, or remove it.",
            )
    write_whole(file, text, "Name a file elsewhere, or make room there.")
