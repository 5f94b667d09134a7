"""Random workflows, edited, killed, interrupted, retried: rows come to what they would in a run that nobody disturbed.

Any of their stages may be asked in batches. What rows come to says a model that shares no code with agac (`graph_walk`,
`graphs`), and a run of the same files in an empty project besides, by calls alone. Nothing is asked that was had, but
by a run that was begun with `--fresh`, and what `agac gc` let go. What `agac plan` says is what the next run does
(`plans`). `make soak` looks for long, with other examples each time.
"""

import shutil
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.made import assert_all_sound
from support.processes import kill_at
from support.project import ProjectFolder, Ran
from support.soak import SOAK, campaign

import agac
from property.answering import Content
from property.editing import BATCHED, ROWS, Edit, EditedProject, Interrupter, edits
from property.graph_stages import Gene
from property.graph_walk import Outcome
from property.graphs import Drawn, genes
from property.plans import Plan

FILES = ("results.jsonl", "errors.jsonl", "filtered.jsonl")


def counted(came: Outcome, origin: str | None) -> dict[str, int]:
    """The rows that a stage made, or those of the input, as the summary counts them."""
    states = Counter(row.state for row in came.rows if row.origin == origin)
    found = {state: states[state] for state in ("done", "skipped", "failed", "dropped")}
    return {"total": states.total(), **found, "open": 0}


TRIES = 3
"""Invocations in which an answer that fails as an answer is asked for."""


class GraphMachine(EditedProject, RuleBasedStateMachine):
    """`had` is what was answered and stored, and at which step, `begun` counts turns of what has no answer yet;
    `refused` what was refused, ever. What is older than `since` says of a run, by its number, is not taken."""

    def __init__(self) -> None:
        super().__init__()
        self.projects = 0
        self.had: dict[Content, int] = {}
        self.begun: Counter[Content] = Counter()
        self.since: dict[int, int] = {}
        self.clock = 0
        self.refused: set[Content] = set()
        self.ran: Any = None
        self.came = Outcome([], [])
        self.number = 0

    # what a user edits

    @initialize(
        genes=st.lists(genes(), min_size=1, max_size=8),
        rows=st.lists(ROWS, min_size=1, max_size=6),
        places=st.one_of(st.just(()), st.permutations(range(8)).map(tuple)),
        output=st.one_of(st.just(()), st.lists(st.integers(0, 7), min_size=1, max_size=2).map(tuple)),
        batched=BATCHED,
    )
    def begin(
        self, genes: list[Gene], rows: list[Any], places: tuple[int, ...], output: tuple[int, ...], batched: int
    ) -> None:
        """Draws a workflow, and runs it."""
        self.define(Drawn(tuple(genes), places, output))
        self.new_rows(rows)
        self.run([], concurrency=4, limit=None, trouble=False, compare=True, batched=batched, fresh=False)

    # what a user runs

    @rule(
        edits=edits(1), concurrency=st.integers(1, 8), limit=st.one_of(st.none(), st.none(), st.integers(1, 5)),
        trouble=st.booleans(), compare=st.booleans(), batched=BATCHED,
        fresh=st.sampled_from([False, False, False, True]),
    )  # fmt: skip
    def run(
        self, edits: list[Edit], concurrency: int, limit: int | None, trouble: bool, compare: bool, batched: int,
        fresh: bool,
    ) -> None:  # fmt: skip
        self.edit(edits)
        self.write(self.project, batched)
        self.provider.trouble = trouble
        fresh = fresh and not self.open_batches()  # it is refused while a Ctrl-C left any
        plan = Plan(self.project, self.graph, limit=limit)
        report = self.project.run(concurrency=concurrency, limit=limit, wait=True, yes=True, fresh=fresh)
        if fresh:
            self.since[report.summary["run"]] = self.clock
        else:
            plan.compare(report.summary["run"])
        came = self.graph.walk(self.rows[:limit])
        self.were_asked(came, report)
        self.came_to(came, report, "reviews/preview" if limit else "reviews")
        if compare and limit is None:
            self.as_in_an_empty_project(came, concurrency)
        self.asks_nothing_again(came, limit)
        if limit is None:
            self.ran, self.came, self.number = (self.drawn, list(self.rows)), came, report.summary["run"]

    @rule(
        how=st.sampled_from([*["request"] * 4, "commit", "committed", "statement", "os.rename"]),
        number=st.integers(1, 8), concurrency=st.integers(1, 4), edits=edits(2),
        rows=st.lists(ROWS, min_size=1, max_size=3), batched=BATCHED,
    )  # fmt: skip
    def run_disturbed(
        self, how: str, number: int, concurrency: int, edits: list[Edit], rows: list[Any], batched: int
    ) -> None:
        """A Ctrl-C while the provider is asked, or a kill -9."""
        self.edit(edits)
        self.new_rows(rows)
        self.write(self.project, batched)
        came = self.graph.walk(self.rows)
        if how == "request":
            self.interrupt(came, number, concurrency)
        else:
            self.kill(came, f"{how}:{number * 2}", concurrency)

    def interrupt(self, came: Outcome, number: int, concurrency: int) -> None:
        self.provider.when_asked = stopping = Interrupter(number)
        try:
            options = agac.RunOptions(concurrency=concurrency, wait=True, yes=True)
            report = agac.run("reviews", options, project=self.project.root, progress=stopping.watch)
        finally:
            self.provider.when_asked = None
        assert report.exit_code in (0, 3, 130)
        self.were_asked(came, report, all_of_it=report.exit_code != 130)
        self.is_whole()

    def kill(self, came: Outcome, moment: str, concurrency: int) -> None:
        words = ("run", "-a", "reviews", "--concurrency", str(concurrency), "--wait", "--yes")
        killed: Ran = self.project.agac(*words, env=kill_at(moment))
        assert killed.code in (0, 3, -9), killed.err
        self.is_whole()
        before, plan = self.provider.take(), Plan(self.project, self.graph)
        report = self.project.run(concurrency=concurrency, wait=True, yes=True)
        if self.project.query("SELECT 1 FROM task WHERE error_type = 'ToolOutcomeUnknown'"):
            choice = agac.Retry(error="ToolOutcomeUnknown", calls="repeat")
            report = agac.retry("last", choice, project=self.project.root)
        else:
            plan.compare(report.summary["run"])
        self.were_asked(came, report, before=before, twice=2 * concurrency if killed.code == -9 else 0)
        self.came_to(came, report, "reviews")

    @precondition(lambda self: self.ran == (self.drawn, self.rows) and bool(self.came.failed))
    @rule()
    def retry(self) -> None:
        """Takes rows as they are stored; so there is nothing to retry but what the last run left."""
        report = agac.retry(self.number, agac.Retry(), project=self.project.root)
        while not report.summary["complete"]:  # what it submitted is taken
            retrieved = agac.retrieve(project=self.project.root)
            assert retrieved.ready
            assert retrieved.run is not None
            report = retrieved.run
        assert self.provider.answered.keys() >= {c for row in self.came.failed for c in row.must if c.fails}
        self.were_asked(self.came, report)
        self.came_to(self.came, report, "reviews")

    @rule(place=st.integers(0, 7), edits=edits(1), batched=BATCHED)
    def run_some_stages(self, place: int, edits: list[Edit], batched: int) -> None:
        """Only the first stages, up to one of them."""
        self.edit(edits)
        self.write(self.project, batched)
        selected = self.graph.order[: place % len(self.graph.order) + 1]
        in_batches = self.open_batches()
        plan = Plan(self.project, self.graph, until=selected[-1])
        report = self.project.run(until=selected[-1], wait=True, yes=True)
        assert report.exit_code in (0, 3)
        came = self.graph.walk(self.rows)
        may = {content for row in came.rows for stage, content in row.asked if stage in selected}
        assert in_batches or self.provider.answered.keys() <= may  # what a batch holds already is taken
        if not in_batches:
            plan.compare(report.summary["run"], selected)
        self.were_asked(came, report, all_of_it=False)
        self.is_whole()

    def open_batches(self) -> list[Any]:
        return self.project.query("SELECT * FROM batch WHERE state NOT IN ('CLEANED', 'NOT_CREATED', 'REJECTED')")

    @precondition(
        lambda self: self.ran == (self.drawn, self.rows) and all(row.must == row.may for row in self.came.rows)
    )
    @rule()
    def collect(self) -> None:
        """The last run stays, over all rows, and what it needs."""
        agac.gc(1, project=self.project.root)
        needed = {content for row in self.came.rows for content in row.must}
        self.had = {content: when for content, when in self.had.items() if content in needed}
        self.begun.clear()
        self.is_whole()

    # what must hold

    def were_asked(
        self, came: Outcome, report: agac.RunReport, *, all_of_it: bool = True,
        before: Counter[Content] | None = None, twice: int = 0,
    ) -> None:  # fmt: skip
        """Everything that has to be asked was, nothing else, and each once but for `twice` calls at most. Replies of
        the wrong form are asked once more. What is refused may be tried again by each run."""
        took, since = self.provider.take() + (before or Counter()), self.since.get(report.summary["run"], 0)
        had = {content for content, when in self.had.items() if when >= since}
        must = {content for row in came.rows for content in row.must}
        may = {content for row in came.rows for content in row.may}
        assert set(took) <= may, f"asked for nothing: {set(took) - may}"
        if all_of_it:
            lacking = must - had - self.refused - set(took)
            assert not lacking, f"not asked: {lacking}"
        begun = self.begun if not self.since.get(report.summary["run"]) else Counter[Content]()
        left = {c: c.calls - (begun[c] if c.tools or c.replicas > 1 else 0) for c in took if not c.fails}
        wanted = Counter({c: 0 if c in had else calls for c, calls in left.items()})
        again = Counter({c: n for c, n in took.items() if not c.fails}) - wanted
        assert again.total() <= twice, f"asked twice: {again}"
        assert all(n <= (2 if before is not None else 1) * c.replicas for c, n in took.items() if c.fails)
        whole = {c for c, n in took.items() if not c.fails and (all_of_it or n + begun[c] >= c.calls)}
        self.had |= dict.fromkeys(whole, self.clock)
        self.begun = Counter({c: n for c, n in (begun + took).items() if c not in whole and not c.fails})
        self.clock += 1
        self.refused |= {c for c in took if c.fails}

    def came_to(self, came: Outcome, report: agac.RunReport, folder: str) -> None:
        """The files, the counts and the store say what the model says."""
        found = {file: self.project.envelopes(folder, file) for file in FILES if self.is_there(folder, file)}
        assert [(e["id"], e["ok"], e["result"]) for e in found["results.jsonl"]] == [
            (row.id, row.state != "failed", row.result) for row in came.lines
        ]
        failed = [(e["id"], e["error"]["type"]) for e in found["errors.jsonl"]]
        written = [(row.id, row.error) for row in came.lines if row.state == "failed"]
        assert failed[: len(written)] == written
        assert Counter(failed) == Counter((row.id, row.error) for row in came.rows if row.state == "failed")
        left = [(e["id"], e["stage"]) for e in found.get("filtered.jsonl", [])]
        dropped = [row for row in came.rows if row.state == "dropped"]
        assert Counter(one for one, _ in left) == Counter(row.id for row in dropped)
        assert all(any(row.id == one and stage in row.at for row in dropped) for one, stage in left)
        summary = report.summary
        assert summary["rows"] == counted(came, None)
        makers = [name for name in self.graph.order if self.graph.all[name].makes]
        assert {one["stage"]: one["rows"] for one in summary.get("levels", []) if one["rows"]["total"]} == {
            name: counted(came, name) for name in makers if counted(came, name)["total"]
        }
        assert report.exit_code == (3 if failed else 0)
        self.is_whole()
        self.is_stored(came, summary["run"])

    def is_there(self, folder: str, file: str) -> bool:
        return (self.project.root / "output" / folder / file).exists()

    def is_stored(self, came: Outcome, run: int) -> None:
        """Every stage of every row has the outcome that it must have; of rows that left, others may lack."""
        found: dict[Any, dict[str, str]] = {(row.id, row.origin): {} for row in came.rows}
        for row_id, origin, stage, outcome in self.project.query(
            "SELECT r.id, r.origin, t.stage, t.outcome FROM row r JOIN task t ON t.row_key = r.key WHERE r.run_id = ? "
            "AND t.replica = 0 AND (r.ordinal IS NOT NULL OR r.origin IS NOT NULL AND r.state <> 6 AND r.place >= 0)",
            run,
        ):
            names = self.graph.order
            own = found[row_id, None if origin is None else names[origin]]
            own[names[stage]] = "done" if outcome == "reused" else outcome
        for row in came.rows:
            own = found[row.id, row.origin]
            if row.state == "dropped":
                assert own.items() <= dict(row.states).items(), row
                assert any(own.get(stage) == "dropped" for stage in row.at)
            else:
                assert own == dict(row.states), row

    def is_whole(self) -> None:
        made = self.project.root.joinpath(".agac/agac.db").exists()
        if made and self.project.query("PRAGMA user_version") != [(0,)]:
            assert_all_sound(self.project)

    def asks_nothing_again(self, came: Outcome, limit: int | None) -> None:
        """Only what is refused is tried again, and not forever."""
        for _ in range(TRIES):
            report = self.project.run(limit=limit, wait=True)
            took = self.provider.take()
            assert set(took) <= self.refused
            self.came_to(came, report, "reviews/preview" if limit else "reviews")
            if not took:
                Plan(self.project, self.graph, limit=limit).is_nothing_left(report.summary["run"])
                return
        raise AssertionError(f"still asked: {took}")

    def as_in_an_empty_project(self, came: Outcome, concurrency: int) -> None:
        """A run of the same files that knows nothing of all that was before writes the same."""
        self.projects += 1
        empty = self.made(f"empty-{self.projects}")
        self.write(empty)
        empty.run(concurrency=concurrency)
        took = self.provider.take()
        assert {c for r in came.rows for c in r.must} <= set(took) <= {c for r in came.rows for c in r.may}
        assert all(n == (one.replicas if one.fails else one.calls) for one, n in took.items())
        chance = {row.id for row in came.rows if len(row.at) > 1}  # which of several branches let it go first
        for file in FILES:
            assert self.lines(empty, file, chance) == self.lines(self.project, file, chance), file
        shutil.rmtree(empty.root)

    @staticmethod
    def lines(project: ProjectFolder, file: str, but: set[str]) -> list[str]:
        path = project.root / "output/reviews" / file
        if not path.exists():
            return []
        found = path.read_text("utf-8").split("\n")
        found = [line for line in found if not any(f'"id":"{one}"' in line for one in but)]
        return found if file == "results.jsonl" else sorted(found)  # rows of several levels are in those


GraphMachine.TestCase.settings = campaign(test=6, soak=2000, steps=12 if SOAK else 4)
TestRandomGraphs = GraphMachine.TestCase
