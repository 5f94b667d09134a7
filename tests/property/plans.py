"""What `agac plan` says of a random workflow, held against what the next run does.

Each stage is compared. Where the plan calls it exact and all that is upstream of it is known, the numbers are equal.
Where an answer that is not there yet decides, the plan says the most: no more tasks come to the stage, and no more is
asked. Where a stage is not `exact`, how many rows come to it is a guess, and nothing is compared.

Narrower than one might wish, since stages that run side by side decide by chance, or by what fails: a stage is left out
beside which rows leave (the plan counts it as if they did not), and of one that makes rows only the most is compared
while a stage beside it is open or blocked (a row that fails makes no others; the plan counts them all the same), and
nothing where rows are kept for others that are like them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from support.project import ProjectFolder

import agac
from agac.plan.diff import FAILED, FAILED_IN_BATCH, LEFT, NO_LEAD
from property.editing import tell
from property.graphs import Graph
from property.plan_operators import Review

FAILS_ANEW = (FAILED, FAILED_IN_BATCH, NO_LEAD)
"""Why tasks fail in the next run without being asked in it."""


@dataclass
class StageCame:
    """What became of a stage's tasks. `failed` did in the last invocation, `stood` did before; `asked` counts the
    different questions of the last invocation; one that several stages have counts at the first of them."""

    well: int = 0
    failed: int = 0
    stood: int = 0
    skipped: int = 0
    dropped: int = 0
    asked: int = 0


def asked_of(plan: dict[str, Any]) -> int:
    """How many questions the plan has for a model at a stage."""
    questions: int = plan["run"] - plan["collapsed"] + plan["parts"]
    return questions if plan["run_mode"] else 0


def may_drop(plan: dict[str, Any]) -> bool:
    """Whether rows leave at a stage, or may."""
    not_called = plan["run"] and plan["run_mode"] is None
    return bool(plan["dropped"] or plan["undecided"] or plan["guess"] or not_called)


def is_open(plan: dict[str, Any]) -> bool:
    """Whether rows failed at a stage, or may yet: those make no others."""
    return bool(plan["run"] or plan["in_flight"] or plan["blocked"])


class Plan:
    """What `agac plan` says before a run."""

    def __init__(
        self, project: ProjectFolder, graph: Graph, report: agac.PlanReport | None = None, **options: Any
    ) -> None:
        """A plan of a run with these options; or the `report` of a retry, which counts the rows that it chose."""
        self.project, self.graph = project, graph
        self.of_chosen_rows = report is not None
        report = report or agac.plan("reviews", agac.RunOptions(**options), project=project.root)
        self.stages: list[dict[str, Any]] = report.as_json()["stages"]
        self.further = {one.name: one.further for one in report.stages}

    def became(self, run: int) -> dict[str, StageCame]:
        """What became of each stage's tasks, as the store has it."""
        found = {name: StageCame() for name in self.graph.order}
        [(event, at)] = self.project.query(
            "SELECT id, at FROM event WHERE run_id = ? AND kind = 'invocation' ORDER BY id DESC LIMIT 1", run
        )
        for position, outcome, is_new, count in self.project.query(
            "SELECT t.stage, t.outcome, t.settled_at >= ? AND t.fingerprint IS NOT NULL, count(*) FROM row r "
            "JOIN task t ON t.row_key = r.key WHERE r.run_id = ? AND t.replica = 0 AND (r.ordinal IS NOT NULL OR "
            "r.origin IS NOT NULL AND r.state <> 6 AND r.place >= 0) GROUP BY 1, 2, 3",
            at, run,
        ):  # fmt: skip
            name = {"done": "well", "reused": "well", "failed": "failed" if is_new else "stood"}.get(outcome, outcome)
            own = found[self.graph.order[position]]
            setattr(own, name, getattr(own, name) + count)
        for position, count in self.project.query(
            "SELECT ifnull((SELECT min(t.stage) FROM task t JOIN row r ON r.key = t.row_key WHERE r.run_id = ? "
            "AND t.fingerprint = a.fingerprint AND t.settled_at >= ?), stage) AS first, count(DISTINCT fingerprint) "
            "FROM attempt a WHERE event_id = ? AND purpose IN ('ask', 'turn') GROUP BY first",
            run, at, event,
        ):  # fmt: skip
            found[self.graph.order[position]].asked = count
        return found

    def compare(self, run: int, selected: Sequence[str] | None = None) -> None:
        """Its stages, or those of them that may be asked, each against what became of it in the last invocation of the
        run."""
        came, plan = self.became(run), {stage["name"]: stage for stage in self.stages}
        tell(f"{self.stages}\n{came}")
        assert list(plan) == self.graph.order
        for name, one in plan.items():
            if selected is not None and name not in selected:
                continue
            above = self.above(name)
            beside = [other for other in plan if other != name and other not in above and name not in self.above(other)]
            if any(may_drop(plan[other]) or came[other].dropped for other in beside):
                continue  # whether the stage is run for a row that leaves in another branch depends on which is first
            if any(plan[other]["in_flight"] for other in beside):
                continue  # whether what failed is tried again depends on when the batch is retrieved
            open_above = any(
                plan[other]["run"] or plan[other]["in_flight"] or not plan[other]["exact"] for other in above
            )
            makers = {self.graph.all[other].makes for other in (name, *above)} - {None}
            open_beside = any(is_open(plan[other]) for other in beside)
            if open_beside and "kept" in makers:
                continue  # where a row fails, another one that is like it is kept
            if one["exact"] and not open_above and not (makers and open_beside):
                self.is_known(one, came[name])
            elif one["exact"]:
                self.is_at_most(one, came[name])

    def above(self, name: str) -> set[str]:
        """The stages that a stage needs, and those that these need."""
        needs = self.graph.all[name].needs
        return {*needs, *(further for need in needs for further in self.above(need))}

    def is_known(self, plan: dict[str, Any], came: StageCame) -> None:
        """Nothing that decides is open, but whether a function that was not called yet lets a row leave."""
        taken = sum(one["tasks"] for one in plan["blocked_reasons"] if one["reason"] in FAILS_ANEW)
        says = {
            "well": plan["run"] + plan["reuse"] + plan["in_flight"] + taken,
            "skipped": plan["skipped"],
            "dropped": plan["dropped"],
        }
        is_ = {"well": came.well + came.failed, "skipped": came.skipped, "dropped": came.dropped}
        if plan["guess"] is not None or (plan["run"] and plan["run_mode"] is None):
            says["well"], is_["well"] = says["well"] + says.pop("dropped"), is_["well"] + is_.pop("dropped")
        # what failed too often fails anew, without being asked, for a row that changed elsewhere
        left = sum(one["tasks"] for one in plan["blocked_reasons"] if one["reason"] == LEFT)
        says["well"] += min(max(is_["well"] - says["well"], 0), left)
        assert self.of_chosen_rows or says == is_, (plan["name"], says, is_)
        if self.of_chosen_rows and plan["run_mode"] == "batch":
            return  # a retry does not wait for its batches
        # what is in a batch counts as asked in the invocation that takes its answer
        most = (asked_of(plan) + plan["in_flight"]) * self.graph.all[plan["name"]].replicas
        assert asked_of(plan) <= came.asked <= most, (plan["name"], plan, came)
        if plan["run_mode"] and not (plan["in_flight"] or plan["collapsed"] or plan["parts"]):
            questions = plan["run"] + self.further[plan["name"]]
            assert questions - plan["spared"] <= came.asked <= questions, (plan["name"], questions, plan, came)

    def is_at_most(self, plan: dict[str, Any], came: StageCame) -> None:
        """What comes is no more than what was said."""
        most = (asked_of(plan) + plan["collapsed"] + plan["in_flight"]) * self.graph.all[plan["name"]].replicas
        assert came.asked <= most, (plan["name"], plan, came)
        if self.of_chosen_rows:
            return
        # of rows that fail there may be groups which fail without being asked
        stood = 0 if self.graph.all[plan["name"]].makes == "groups" else came.stood
        total = sum(plan[key] for key in ("run", "reuse", "in_flight", "blocked", "skipped", "dropped"))
        if isinstance(self.graph.all[plan["name"]], Review):
            total += plan["undecided"]  # who has to wait is known once there is an answer
        assert came.well + came.failed + stood + came.skipped + came.dropped <= total, (plan["name"], plan, came)

    def is_nothing_left(self, run: int) -> None:
        """After a run only what failed is asked again."""
        failed = any(one.failed or one.stood for one in self.became(run).values())
        assert failed or all(stage["run"] == 0 and stage["exact"] for stage in self.stages), self.stages
