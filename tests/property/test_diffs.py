"""A random workflow that was run, then edited: `agac diff` says how many tasks would run, and the run asks just so many
where it says that this is exact, else no fewer and no more than its range. It says the same as `agac plan`, which is
held against the run as `plans` does it."""

from collections import Counter
from dataclasses import replace

from hypothesis import assume, given, note
from hypothesis import strategies as st
from support.repository import committed
from support.soak import SOAK, campaign

import agac
from property.editing import BATCHED, EDITS, ROWS, Edit
from property.graph_stages import Gene
from property.graphs import Drawn, genes
from property.plans import Plan
from property.test_random_graphs import GraphMachine

OF_FILES = ("model", "rename", "schema", "batched", "word", "guard", "explode", "number", "refs")
SAME = ("name", "run", "reuse", "blocked", "skipped", "dropped", "undecided", "collapsed", "parts", "exact", "least",
        "most")  # fmt: skip


def edits() -> st.SearchStrategy[list[Edit]]:
    """One to three edits; what a reviewer sees comes more often than other rows."""
    what = st.one_of(st.sampled_from(OF_FILES), st.sampled_from((*OF_FILES, *EDITS)))
    rows = st.lists(ROWS, min_size=1, max_size=3)
    one = st.builds(Edit, what=what, place=st.integers(0, 20), rows=rows, gene=genes())
    return st.lists(one, min_size=1, max_size=3)


class Edited(GraphMachine):
    """A project that is run, committed, edited, compared and run again. `seen` counts what came of it."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen
        self.batched = 0

    def begin_with(self, drawn: Drawn, rows: list[object], batched: int) -> None:
        self.batched = batched
        self.define(drawn)
        self.new_rows(rows)
        self.write(self.project, batched)
        self.project.run(concurrency=4, wait=True)
        committed(self.project)

    def edit_the_workflow(self, what: str, place: int, gene: Gene) -> None:
        found = list(self.drawn.genes)
        at = place % len(found)
        match what:
            case "model":
                found[at] = replace(found[at], model="large" if found[at].model == "small" else "small")
            case "rename":
                found[at] = replace(found[at], title="" if found[at].title else "_b")
            case "schema":
                found[at] = replace(found[at], told=f"{found[at].told}." if found[at].told else "What it is")
            case "batched":
                self.batched ^= 1 << at
            case _:
                super().edit_the_workflow(what, place, gene)
                return
        self.define(replace(self.drawn, genes=tuple(found)))

    def compare(self, what: list[str]) -> None:
        """The diff, and the run after it."""
        found = agac.diff("main", project=self.project.root).workflows
        assume(found)
        (diff,) = found
        note("\n".join(change.text for change in diff.changes))
        assert diff.plan is not None, diff.problems
        plan = Plan(self.project, self.graph, None)
        says = diff.plan.as_json()
        assert [{key: one[key] for key in SAME} for one in says["stages"]] == [
            {key: one[key] for key in SAME} for one in plan.stages
        ]
        report = self.project.run(concurrency=4, wait=True, yes=True)
        came = plan.became(report.summary["run"])
        note(f"{says}\n{came}")
        for one in diff.plan.stages:
            own = came[one.name].asked
            assert one.least <= own, one
            assert one.most is None or own <= one.most, one
            self.seen["exactly"] += one.least == one.most == own > 0
            self.seen["between"] += one.least < own < (one.most or own + 1)
            self.seen["reused"] += one.reuse > 0 and one.run_mode is not None
            self.seen["batches"] += one.run_mode == "batch" and own > 0
            self.seen[one.stage.makes or "rows"] += own > 0
        asked = sum(one.asked for one in came.values())
        assert says["least"] <= asked <= (asked if says["most"] is None else says["most"])
        plan.compare(report.summary["run"])
        self.seen.update(what)


GENES = st.lists(genes(), min_size=1, max_size=6).map(tuple)


def test_a_run_asks_as_many_tasks_as_the_diff_says() -> None:
    seen = Counter[str]()

    @campaign(test=12, soak=300)
    @given(
        drawn=st.builds(Drawn, GENES, st.one_of(st.just(()), st.permutations(range(6)).map(tuple))),
        rows=st.lists(ROWS, min_size=1, max_size=6), changes=edits(), batched=BATCHED,
    )  # fmt: skip
    def check(drawn: Drawn, rows: list[object], changes: list[Edit], batched: int) -> None:
        project = Edited(seen)
        try:
            project.begin_with(drawn, rows, batched)
            project.edit(changes)
            project.write(project.project, project.batched)
            project.compare([change.what for change in changes])
        finally:
            project.teardown()

    check()
    wanted = {"exactly", "reused", *(("between", "batches", "groups", "items", *OF_FILES) if SOAK else ())}
    assert all(seen[one] for one in wanted), seen
