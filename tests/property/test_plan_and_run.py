"""What `agac plan` calls exact is what the next run does, in random workflows with all that decides what is asked.

Reviews and what people say, votes that end once an answer leads, checks that look at the row, answers that grow old,
every policy of repeated ids, equal rows, groups, lists, retries, kills, edits. What rows come to is not worked out here
(`test_random_graphs` does that): each plan is held against what the run after it did, stage by stage (`plans`).
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from typing import Any
from unittest import mock

import pytest
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st
from support.processes import kill_at
from support.soak import campaign

import agac
from agac.core.errors import SpecError, UsageError
from property.answering import Content, Provider
from property.editing import BATCHED, ROWS, Edit, EditedProject, Interrupter, edits, tell
from property.graph_stages import Gene
from property.graphs import WEIGHTS, Drawn, genes
from property.plan_operators import LEADING, further_keys
from property.plans import Plan

NO_TOOLS = [name for name in WEIGHTS if not name.startswith("agent")]
GENES = genes([*NO_TOOLS, "ask_lead", "ask_lead", "review", "review", "review"])
HOUR = 3600.0
planning, running = import_module("agac.api.plan"), import_module("agac.api.run")

ACTIONS = (
    *["run"] * 4, "until", "stage", "from stage", "no retry", "limit", "fresh", "kill", "interrupt",
    "decide", "decide", "decide", "time", "retry", "retry from", "retry rows", "retry discard", "kill retry",
)  # fmt: skip

TIMES = {
    "result": ("created_at",),
    "task": ("settled_at",),
    "decision": ("at",),
    "review": ("at", "due"),
    "run": ("created_at", "fresh_since", "finished_at", "read_at"),
    "event": ("at", "ended_at"),
    "attempt": ("started_at",),
}
"""Columns of the store that say when something was."""


class Undecided(Provider):
    """A provider whose answers to requests that vote until one leads are others each time."""

    def __init__(self) -> None:
        super().__init__()
        self._times: Counter[Content] = Counter()

    def value_of(self, content: Content) -> Any:
        if not content.text.startswith(LEADING):
            return content.value
        self._times[content] += 1
        number = int(blake2b(f"{content.digest} {self._times[content]}".encode(), digest_size=4).hexdigest(), 16)
        return {"mood": ("good", "bad", "good", "unfit")[number % 4], "why": str(number)}


@dataclass(frozen=True)
class Step:
    """What a user does: edits, and then an action."""

    action: str
    edits: list[Edit]
    number: int
    batched: int


STEPS = st.builds(
    Step, action=st.sampled_from(ACTIONS), edits=st.one_of(st.just([]), edits(1, GENES)),
    number=st.integers(0, 60), batched=BATCHED,
)  # fmt: skip


class World(EditedProject):
    """A project whose plans are held against its runs."""

    def __init__(self, genes: list[Gene], rows: list[Any], places: tuple[int, ...], policy: str) -> None:
        super().__init__(Undecided())
        self.on_duplicate_id = policy
        self.define(Drawn(tuple(genes), places))
        self.new_rows(rows)
        self.ran = False

    def stages(self) -> list[dict[str, Any]]:
        stages = self.graph.stages()
        for stage in stages:
            stage |= further_keys(self.graph.all[stage["name"]], stage)
        return stages

    def take(self, step: Step) -> None:
        tell(f"--- {step.action} {step.number} {[(one.what, one.place) for one in step.edits]}")
        self.edit(step.edits)
        self.write(self.project, step.batched)
        match step.action:
            case "run":
                self.run()
            case "limit":
                self.run(limit=1 + step.number % 4)
            case "fresh" if not self.open_batches():
                self.run(fresh=True)
            case "no retry":
                self.run(retry_failed=False)
            case "until" | "stage" | "from stage":
                name = self.graph.order[step.number % len(self.graph.order)]
                self.run(**{step.action.replace(" ", "_"): name})
            case "kill":
                self.kill(step.number)
            case "interrupt":
                self.interrupt(step.number)
            case "time" if self.ran:
                self.pass_time((0.5 + step.number % 3) * HOUR)
            case "decide" if self.ran:
                self.decide(step.number)
            case "retry":
                self.retry(agac.Retry())
            case "retry from":
                self.retry(agac.Retry(from_stage=self.graph.order[step.number % len(self.graph.order)]))
            case "retry rows":
                self.retry(agac.Retry(rows=(self.rows[step.number % len(self.rows)].id,)))
            case "retry discard":
                self.retry(agac.Retry(discard=True))
            case "kill retry":
                self.kill_retry(step.number)

    def run(self, **options: Any) -> None:
        """Plans and runs, and compares."""
        plan = Plan(self.project, self.graph, **options)
        report = self.project.run(wait=True, yes=True, **options)
        self.ran = True
        assert report.exit_code in (0, 3), report.exit_code
        plan.compare(report.summary["run"], self.selected(**options))

    def selected(self, **options: Any) -> list[str] | None:
        order = self.graph.order
        if "stage" in options:
            return [options["stage"]]
        if "until" in options:
            return order[: order.index(options["until"]) + 1]
        if "from_stage" in options:
            return order[order.index(options["from_stage"]) :]
        return None

    def retry(self, choice: agac.Retry) -> None:
        """Takes rows of the last run up again; what would be done is planned when it begins."""
        plans: list[agac.PlanReport] = []

        async def planned(database: Any, work: Any, **options: Any) -> Any:
            plans.append(await planning._expected(database, work))
            return await planning.confirm_store(database, work, **options)

        with suppress(UsageError), mock.patch.object(running, "confirm_store", planned):
            report = agac.retry("last", choice, agac.RunOptions(yes=True), project=self.project.root)
            Plan(self.project, self.graph, plans[0]).compare(report.summary["run"])

    def kill(self, number: int) -> None:
        how = ("commit", "committed", "statement", "os.rename")[number % 4]
        words = ("run", "-a", "reviews", "--wait", "--yes")
        killed = self.project.agac(*words, env=kill_at(f"{how}:{1 + number // 4}"))
        assert killed.code in (0, 3, -9), killed.err

    def kill_retry(self, number: int) -> None:
        self.project.agac("retry", "last", "--yes", env=kill_at(f"commit:{1 + number // 4}"))

    def interrupt(self, number: int) -> None:
        self.provider.when_asked = stopping = Interrupter(1 + number % 8)
        try:
            options = agac.RunOptions(concurrency=2, wait=True, yes=True)
            report = agac.run("reviews", options, project=self.project.root, progress=stopping.watch)
        finally:
            self.provider.when_asked = None
        self.ran = True
        assert report.exit_code in (0, 3, 130)

    def pass_time(self, seconds: float) -> None:
        """All that was happened so long ago."""
        with self.project.changed() as change:
            for table, columns in TIMES.items():
                for column in columns:
                    change(f"UPDATE {table} SET {column} = {column} - ? WHERE {column} IS NOT NULL", seconds)

    def decide(self, number: int) -> None:
        """People say something about some of the answers that wait."""
        items = agac.review_queue(self.project.root, limit=100).items
        decisions = []
        for place, item in enumerate(items):
            if (number + place) % 4 == 3:
                continue
            choice = item.choices[(number // 4 + place) % len(item.choices)]
            value = item.answer
            if choice == "edit":
                value = {**value, "why": "by anna"} if isinstance(value, dict) and "why" in value else value
            decisions.append(
                agac.Decision(item.id, choice, value if choice == "edit" else None, reason="so it is", reviewer="anna")
            )
        agac.decide(self.project.root, decisions)

    def open_batches(self) -> bool:
        closed = "('CLEANED', 'NOT_CREATED', 'REJECTED')"
        return self.ran and bool(self.project.query(f"SELECT * FROM batch WHERE state NOT IN {closed}"))


def follow(stages: list[Gene], rows: list[Any], places: tuple[int, ...], policy: str, steps: list[Step]) -> None:
    """Takes all steps, with a run before and after them."""
    world = World(stages, rows, places, policy)
    try:
        for step in (Step("run", [], 0, 0), *steps, Step("run", [], 0, 0)):
            world.take(step)
    finally:
        world.teardown()


@settings(campaign(test=3, soak=2000), phases=(Phase.generate, Phase.shrink))
@given(
    stages=st.lists(GENES, min_size=1, max_size=6),
    rows=st.lists(ROWS, min_size=1, max_size=5),
    places=st.one_of(st.just(()), st.permutations(range(6)).map(tuple)),
    policy=st.sampled_from(["error", "first", "last", "suffix"]),
    steps=st.lists(STEPS, min_size=2, max_size=8),
)
def test_the_next_run_does_what_its_plan_says(
    stages: list[Gene], rows: list[Any], places: tuple[int, ...], policy: str, steps: list[Step]
) -> None:
    try:
        follow(stages, rows, places, policy, steps)
    except SpecError:
        reject()  # a review of an answer that other rows have


VOTE = Gene("ask_lead", (), (9,), (3, 5), False, True, "judge", 21, None)
ITEMS = Gene("ask_checked", (), (11, 1, 3), None, False, True, "say", 1, 5)
REFUSED = ("c", 1, "unspeakable one", "yes", ("p", "q"))
CHECKED = ("c", 0, "red", "yes", ("p",))


@pytest.mark.parametrize(
    ("stage", "row", "step"),
    [
        pytest.param(VOTE, REFUSED, Step("retry", [], 0, 255), id="votes of a retry are in a batch"),
        pytest.param(ITEMS, CHECKED, Step("kill", [], 20, 255), id="an item failed before a kill"),
    ],
)
def test_worlds_in_which_both_once_differed(stage: Gene, row: Any, step: Step) -> None:
    follow([stage], [row], (), "error", [Step("run", [], 0, 255), step])
