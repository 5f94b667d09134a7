"""A random workflow that was run, then edited: `agac diff` says how many tasks would run, and the run asks just so many
where it says that this is exact, else no fewer and no more than its range."""

from hypothesis import assume, given, note
from hypothesis import strategies as st
from support.repository import committed
from support.soak import campaign

import agac
from property.graphs import Drawn, genes
from property.plans import Plan
from property.test_random_graphs import ROWS, GraphMachine, edits


class Edited(GraphMachine):
    """A project that is run, committed, edited, compared and run again."""

    def begin_with(self, drawn: Drawn, rows: list[object]) -> None:
        self.define(drawn)
        self.new_rows(rows)
        self.write(self.project)
        self.project.run(concurrency=4)
        committed(self.project)

    def compare(self) -> None:
        """The diff, and the run after it."""
        found = agac.diff("main", project=self.project.root).workflows
        assume(found)
        (diff,) = found
        note("\n".join(change.text for change in diff.changes))
        assert diff.plan is not None, diff.problems
        plan = Plan(self.project, self.graph, None)
        report = self.project.run(concurrency=4, yes=True)
        came = plan.became(report.summary["run"])
        note(f"{diff.plan.as_json()}\n{came}")
        for one in diff.plan.stages:
            own = came[one.name].asked
            assert one.least <= own, one
            assert one.most is None or own <= one.most, one


GENES = st.lists(genes(), min_size=1, max_size=6).map(tuple)


@campaign(test=8, soak=300)
@given(
    drawn=st.builds(Drawn, GENES, st.one_of(st.just(()), st.permutations(range(6)).map(tuple))),
    rows=st.lists(ROWS, min_size=1, max_size=6),
    changes=edits(1),
)
def test_a_run_asks_as_many_tasks_as_the_diff_says(drawn: Drawn, rows: list[object], changes: list[object]) -> None:
    project = Edited()
    try:
        project.begin_with(drawn, rows)
        project.edit(changes)
        project.write(project.project)
        project.compare()
    finally:
        project.teardown()
