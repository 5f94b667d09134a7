"""A workflow as a picture, as Mermaid text or SVG, with what became of the rows of its last run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agac.api.drawing import WORDS, DrawnEdge, DrawnNode, mermaid, svg
from agac.api.project import project_of
from agac.api.status import database_path, names_of_files, root_of, stored_run, workflow_name
from agac.api.sync import asynchronous, blocking
from agac.core.arguments import typed
from agac.core.errors import SpecError, UsageError, any_error
from agac.core.types import Report
from agac.data.files import write_whole
from agac.plan.checks import resolve_models
from agac.plan.stage import ends_of, recorded_stages, stage_body, written_of
from agac.spec.agent_cards import find_card
from agac.spec.graph import StageNode, giving
from agac.spec.loader import WorkflowSource, find_workflow, in_order, load_workflow, read_workflow
from agac.spec.paths import Unusable, home_of, project_root
from agac.spec.project_files import open_file, read_bytes
from agac.spec.workflow import Overrides, read_needs
from agac.store.db import Database, open_for_reading
from agac.store.history import RunLine, run_lines
from agac.store.rows import made_counts, present
from agac.store.runs import RunRecord, counters, definition_of, read_run, row_counts

OURS = ("<svg ", "flowchart ")  # how drawings begin: no other file is replaced by one


@dataclass(frozen=True, slots=True)
class DrawnStage(DrawnNode, Report):
    """A stage as it is drawn. `does`: its model, or what it does in the place of asking one.
    `counts`: what became of its rows in the run, and of a run with open rows how many are
    `waiting`; None without a run, and of a stage that the run did not have. `makes`: what it makes
    of rows, as `explode plan.questions`; `level` counts the stages that made its rows.
    `otherwise`: what its guard does else."""

    JSON_KEYS = ("name", "kind", "does", "needs", "when", "otherwise", "makes", "level", "counts")

    does: str = ""
    needs: tuple[str, ...] = ()
    when: str | None = None
    otherwise: str | None = None
    makes: str | None = None


@dataclass(frozen=True, slots=True)
class GraphReport(Report):
    """A workflow's stages in the order in which a row meets them, between its input and the folder
    of its results. `run` is the one whose counts are shown, `rows` what became of its rows,
    `written` of those that are written, where stages made them; they are None when there is none.
    """

    workflow: str
    run: int | None
    input: str
    stages: tuple[DrawnStage, ...]
    results: tuple[str, ...]
    output: str
    rows: Mapping[str, int] | None
    written: Mapping[str, int] | None = None

    @property
    def title(self) -> str:
        """What is seen: `reviews, run 3`."""
        if self.run is None:
            return self.workflow
        return f"{self.workflow}, run {self.run}"

    def nodes(self) -> list[DrawnNode]:
        """The boxes: the input, the stages, the results."""
        rows, first, last = self.rows, *self._ends()
        total = {"rows": rows["total"]} if rows is not None else None
        written = self.written or rows
        if written is not None:
            ended = {name: n for name, n in written.items() if name != "total"}
        else:
            ended = None
        return [
            DrawnNode(first, "input", counts=total),
            *self.stages,
            DrawnNode(last, "output", counts=ended),
        ]

    def edges(self) -> list[DrawnEdge]:
        """The lines: from each stage to those that need it."""
        first, last = self._ends()
        inner = [
            DrawnEdge(need, stage.name) for stage in self.stages for need in stage.needs or (first,)
        ]
        return [*inner, *(DrawnEdge(name, last) for name in self.results)]

    def _ends(self) -> tuple[str, str]:
        """The names of the first and the last box: no box is called like another."""
        names = {stage.name for stage in self.stages}
        ends = []
        for name in (self.input, self.output):
            while name in names:
                name += " "
            ends.append(name)
            names.add(name)
        return ends[0], ends[1]

    def svg(self, *, styled: bool = True) -> str:
        """The drawing as an SVG document; not `styled`: as part of a page that has the rules of
        its looks elsewhere."""
        return svg(self.nodes(), self.edges(), title=self.title, styled=styled)

    def mermaid(self) -> str:
        """The drawing as Mermaid text."""
        return mermaid(self.nodes(), self.edges())


@blocking
async def graph(
    workflow: WorkflowSource | None = None,
    *,
    run: int | str | None = None,
    project: Path | str | None = None,
) -> GraphReport:
    """A workflow as its file is now, with the counts of the run last worked on, by the names of
    its stages; with `run` as it was in that run. Changes nothing, and needs no provider's key.
    Imports nothing of the user's. Raises SpecError for problems in the file, UsageError for a run
    that does not exist."""
    nodes: Sequence[StageNode]
    record: RunRecord | None
    if run is not None:
        async with stored_run(root_of(workflow, project), run, workflow_name(workflow)) as (
            database,
            stored,
        ):
            definition = await definition_of(database, stored.id)
            outcomes, rows, written = await _counts(database, stored)
        name = stored.workflow
        shown = definition["input"]["path"]
        output = stored.output_dir
        record = stored
        bodies = definition["stages"]
        nodes = recorded_stages(definition)
        levels = _levels(nodes)
        ends = tuple(bodies[position]["name"] for position in ends_of(definition))
        outcomes = {
            body["name"]: outcomes.get(body["name"], dict.fromkeys(WORDS, 0)) for body in bodies
        }
        if rows is not None and rows["open"]:
            for one in nodes:  # where they are the input's: those that may still come to it
                passed = (
                    sum(outcomes[need][word] for word in ("done", "reused", "skipped"))
                    for need in one.needs
                )
                left = min(passed, default=rows["total"]) - sum(outcomes[one.name].values())
                outcomes[one.name]["waiting"] = (
                    0 if levels[one.name] else max(0, min(left, rows["open"]))
                )
    else:
        if workflow is None:
            hint = "Name it, as in `agac graph -a WORKFLOW`, or a run with --run last."
            raise UsageError("no workflow is named", remedy=hint)
        opened = project_of(workflow, project)
        loaded, problems = load_workflow(opened.spec, workflow, Overrides())
        if loaded is None or any_error(problems):
            raise SpecError(in_order(problems))
        async with open_for_reading(database_path(opened.root)) as found:
            lines = await run_lines(found, loaded.name) if found else []
            record = await read_run(found, lines[0].id) if found and lines else None
            outcomes, rows, written = await _counts(found, record)
        name, shown, output = loaded.name, loaded.input.shown, opened.spec.shown(loaded.output.dir)
        models, _ = resolve_models(loaded, opened.providers, opened.spec.file.aliases)
        bodies = [stage_body(stage) for stage in loaded.stages]
        nodes = loaded.stages
        ends = loaded.output.stages
        for stage, body in zip(loaded.stages, bodies, strict=True):
            if stage.asks:
                body["model"] = (
                    models[stage.name][0].lane
                    if stage.name in models
                    else stage.model or "no model"
                )
    levels = _levels(nodes)
    ends = tuple(giving(end, nodes)[0].name for end in ends)
    stages = tuple(
        _drawn(body, outcomes.get(body["name"]), levels[body["name"]]) for body in bodies
    )
    return GraphReport(
        name, record.id if record else None, shown, stages, ends, output, rows, written
    )


async def _counts(
    database: Database | None, record: RunRecord | None
) -> tuple[dict[str, dict[str, int]], dict[str, int] | None, dict[str, int] | None]:
    """What became of each stage's rows, of the input's, and of those written if a stage made them
    (else None)."""
    if database is None or record is None:
        return {}, None, None
    counts = await counters(database, record.id)
    outcomes = dict[str, dict[str, int]]()
    for count in counts:
        own = outcomes.setdefault(count.stage, dict.fromkeys(WORDS, 0))
        if count.outcome in own:
            own[count.outcome] += count.tasks
    position = written_of(await definition_of(database, record.id))
    if position is None:
        written = None
    else:
        written = present(await made_counts(database, record.id), position)
    return outcomes, row_counts(counts), written


def _levels(stages: Sequence[StageNode]) -> dict[str, int]:
    """How many stages, one after the other, made the rows that each stage is asked of; 0: they are
    the input's."""
    found: dict[str, int] = {}
    after: dict[str, int] = {}
    for stage in stages:
        above = max((after[need] for need in stage.needs), default=0)
        found[stage.name] = above + (stage.makes in ("items", "groups"))
        after[stage.name] = found[stage.name] + (stage.makes == "kept")
    return found


def _drawn(body: Mapping[str, Any], outcomes: Mapping[str, int] | None, level: int) -> DrawnStage:
    operation = body.get("operation")
    guard = body.get("when")
    kind, what = next(iter(operation.items())) if operation else ("ask", body["model"])
    named: Any
    if isinstance(what, dict):
        named = [f"{old} → {new}" for old, new in what.items()]
    else:
        named = what
    does = [", ".join(named) if isinstance(named, list) else str(named)]
    if kind == "review":
        shares = {name: f"{100 * what[name]:g} %" for name in ("sample", "blind") if name in what}
        told = [f"{name} {what[name]}" for name in ("when", "reviewers") if name in what]
        does = [
            f"people decide on {what['edit']}",
            *told,
            *(f"{name} {share}" for name, share in shares.items()),
        ]
    makes = f"explode {body['explode']}" if "explode" in body else None
    if "group_by" in body and makes is None:
        makes = f"group_by {', '.join(body['group_by']) or 'nothing'}"
    otherwise = body.get("otherwise", "skip") if guard else None
    lines = [*does, *([makes] if makes else [])]
    if guard is not None:
        lines += [f"when {guard}", "else dropped" if otherwise == "drop" else "else skipped"]
    needs = read_needs(body["needs"])
    return DrawnStage(
        body["name"], kind, lines, outcomes, level, ", ".join(does), needs, guard, otherwise, makes
    )


# A workflow as a page shows it.


@blocking
async def workflow_view(name: str, *, project: Path | str | None = None) -> dict[str, Any]:
    """A workflow as its file is now: its `name`, the `path` and `text` of the file, its `cards` by
    name, its `graph` with the counts of its last run, its `stages` as runs keep them, `problems`
    and its newest `runs`. With an error among the problems there is no graph and no stage. Changes
    nothing. Raises UsageError for one without a file."""
    opened = project_of(name, project)
    path = find_workflow(opened.spec, name)
    home = home_of(opened.root)
    file, _, _ = read_workflow(path, opened.spec.shown(path), home)
    found = {
        stage.agent: find_card(stage.agent, opened.spec)[0]
        for stage in (file.stages if file else ())
        if stage.agent
    }
    loaded, problems = load_workflow(opened.spec, name, Overrides())
    sound = loaded is not None and not any_error(problems)
    async with open_for_reading(database_path(opened.root)) as database:
        lines = await run_lines(database, path.stem) if database else []
    return {
        "name": path.stem,
        "path": opened.spec.shown(path),
        "text": _shown_text(path, home),
        "cards": {
            agent: _shown_text(card, home) for agent, card in found.items() if card is not None
        },
        "graph": await asynchronous(graph)(name, project=project) if sound else None,
        "stages": [stage_body(stage) for stage in loaded.stages]
        if loaded is not None and sound
        else [],
        "problems": [str(problem) for problem in in_order(problems)],
        "runs": lines[:20],
    }


@blocking
async def workflow_names(
    project: Path | str | None = None,
) -> dict[str, tuple[bool, RunLine | None]]:
    """Every workflow that has a file or was ever run: whether it has one, and its run last worked
    on."""
    root = project_root(project)
    async with open_for_reading(database_path(root)) as database:
        last = {
            line.workflow: line
            for line in reversed(await run_lines(database, None) if database else [])
        }
    files = names_of_files(root)
    return {name: (name in files, last.get(name)) for name in sorted({*files, *last})}


def _shown_text(file: Path, home: Path) -> str:
    """What a page shows of a file of the project: its text, or why it cannot be read."""
    try:
        return read_bytes(file, file.name, home).decode("utf-8", "replace")
    except Unusable as error:
        return str(error.problem)


@typed
def save_drawing(text: str, file: Path | str) -> None:
    """Writes a drawing, whole or not at all; an older one is replaced, and no other file. Raises
    UsageError for a place where none can be, AgacError when the disk refuses it."""
    file = Path(file)
    if not file.absolute().parent.is_dir():
        raise UsageError(
            f"{file}: there is no such folder", remedy=f"mkdir -p {shlex.quote(str(file.parent))}"
        )
    if file.is_file():
        with open_file(file, str(file), None) as opened:
            start = opened.read(max(map(len, OURS)))
        if start and not start.decode("utf-8", "replace").startswith(OURS):
            raise UsageError(
                f"{file}: is there already, and is no drawing",
                remedy="Name another file, or remove it.",
            )
    write_whole(file, text, "Name a file elsewhere, or make room there.")
