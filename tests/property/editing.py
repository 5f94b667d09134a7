"""A project with a random workflow whose files a user edits: stages, rows, ids."""

import asyncio
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import currently_in_test_context, note
from hypothesis import strategies as st
from support.project import ProjectFolder

from property.answering import Provider, serving
from property.graph_stages import Gene, Row
from property.graphs import KINDS, NUMBERS, OPTIONS, TAGS, TEXTS, Drawn, Graph, genes

ROWS = st.tuples(KINDS, NUMBERS, TEXTS, OPTIONS, TAGS)
CHANGED = ("word", "guard", "enabled", "drops", "refs", "number", "explode")
ROW_EDITS = ("new rows", "one row less", "other places", "another id", "same id", "a row", "a row ")
BATCHED = st.one_of(st.just(0), st.integers(0, 255), st.just(255))
EDITS = (*ROW_EDITS, "another stage", "new stage", "output", "revert", *CHANGED)


def tell(text: str) -> None:
    """Shows the text of an example that fails."""
    if currently_in_test_context():
        note(text)


class Edit(NamedTuple):
    """Something that a user changes between two runs."""

    what: str
    place: int
    rows: list[Any]
    gene: Gene


def edits(least: int, genes: st.SearchStrategy[Gene] = genes()) -> st.SearchStrategy[list[Edit]]:  # noqa: B008
    """Some edits."""
    rows = st.lists(ROWS, min_size=1, max_size=3)
    one = st.builds(Edit, what=st.sampled_from(EDITS), place=st.integers(0, 20), rows=rows, gene=genes)
    return st.lists(one, min_size=least, max_size=3)


@dataclass
class Interrupter:
    """Asks a run to stop when the provider is asked for the n-th time."""

    number: int
    control: Any = None
    loop: Any = None

    async def watch(self, seen: Any) -> None:
        self.control, self.loop = seen.invocation.stop_signal, asyncio.get_running_loop()

    def __call__(self) -> None:
        self.number -= 1
        if self.number == 0 and self.loop is not None:
            self.loop.call_soon_threadsafe(self.control.interrupt)


class EditedProject:
    """A project that asks a provider of its own. `history` has all workflows that it had."""

    on_duplicate_id = "suffix"

    def __init__(self, provider: Provider | None = None) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.provider = self.stack.enter_context(serving(provider))
        self.folder = Path(tempfile.mkdtemp(prefix="agac-graphs-"))
        self.project = self.made("project")
        self.drawn = Drawn(())
        self.graph: Graph = None  # type: ignore[assignment]
        self.rows: list[Row] = []
        self.next = 0
        self.history: list[Drawn] = []

    def made(self, name: str) -> ProjectFolder:
        project = ProjectFolder(self.folder / name)
        project.configure(self.provider.base_url, batch={"api": "openai", "grace": 0.2}, tools_with_schema=True)
        return project

    def teardown(self) -> None:
        self.stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def define(self, drawn: Drawn) -> None:
        self.drawn, self.graph = drawn, Graph(drawn)
        self.history.append(drawn)

    def new_rows(self, rows: list[Any]) -> None:
        for cells in rows:
            self.rows.append(Row(f"r{self.next}", *cells))
            self.next += 1
        self.complete_a_row()

    def complete_a_row(self) -> None:
        """Gives a row what none has: a workflow that names a field which no row has is refused."""
        for name, value in (("opt", "no"), ("tags", ("p",))):
            if all(getattr(row, name) is None for row in self.rows):
                self.rows[0] = replace(self.rows[0], **{name: value})

    def edit(self, edits: list[Edit]) -> None:
        for one in edits:
            if one.what in ROW_EDITS:
                self.edit_rows(one.what, one.place % len(self.rows), one.rows)
            else:
                self.edit_the_workflow(one.what, one.place, one.gene)

    def edit_rows(self, what: str, place: int, rows: list[Any]) -> None:
        match what:
            case "new rows":
                self.new_rows(rows)
            case "one row less" if len(self.rows) > 1:
                self.rows.pop(place)
            case "other places":
                self.rows = self.rows[place:] + self.rows[:place][::-1]
            case "another id":
                self.rows[place] = replace(self.rows[place], id=f"r{self.next}")
                self.next += 1
            case "same id":
                self.rows[place] = replace(self.rows[place], id=self.rows[-1].id)
            case _:
                self.rows[place] = Row(self.rows[place].id, *rows[0])
        self.complete_a_row()

    def edit_the_workflow(self, what: str, place: int, gene: Gene) -> None:
        found = list(self.drawn.genes)
        at = place % len(found)
        match what:
            case "another stage":
                found[at] = gene
            case "new stage" if len(found) < 8:
                found.append(gene)
            case "output":
                self.drawn = replace(self.drawn, output=gene.refs[1:])
            case "revert":
                self.define(self.history[place % len(self.history)])
                return
            case _ if what in CHANGED:
                found[at] = replace(found[at], **{what: getattr(gene, what)})
        self.define(replace(self.drawn, genes=tuple(found)))

    def stages(self) -> list[dict[str, Any]]:
        """The stages as they are written."""
        return self.graph.stages()

    def write(self, project: ProjectFolder, batched: int = 0) -> None:
        """Writes the files; `batched` has a bit for each stage that is asked in batches, of two requests at most."""
        project.rows([row.data() for row in self.rows], "data/rows.jsonl")
        for path, text in self.graph.tools().items():
            project.write(path, text)
        stages = self.stages()
        for place, stage in enumerate(stages):
            if batched >> place & 1 and "prompt" in stage:
                stage["run_mode"] = "batch"
        name = project.workflow(
            path="data/rows.jsonl", input={"on_duplicate_id": self.on_duplicate_id}, stages=stages,
            output=self.graph.output(), stop_loss=False,
            defaults={
                "batch": {"max_requests": 2, "max_rounds": 9, "poll_interval": 0.01},
                "repair": 1 + len(self.history) % 3,  # which decides no answer
            },
        )  # fmt: skip
        tell((project.root / f"workflows/{name}.yml").read_text("utf-8"))
        tell((project.root / "data/rows.jsonl").read_text("utf-8"))
