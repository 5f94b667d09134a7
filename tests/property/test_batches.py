"""Random faults, random crashes, random splits: what is asked in batches ends in exactly what calls would have brought.

The oracle is the same workflow with `run_mode: sync` in a project of its own, at a provider without faults of batches.
Nothing is charged twice but what got lost after it was charged. `make soak` looks for long, with other examples
each time.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, note
from support.made import assert_all_sound
from support.project import ProjectFolder, Ran
from support.soak import campaign

from property.batch_cases import PREVIEW, RETRIEVE, RUN, SHAKY, WAIT, Case, Step, cases, providers, rows_of, stages_of
from property.simulating import Loop, Running, simulating

CONCURRENCY = 2
ENDS = (0, 1, 2, 3, 75)
MOST_RUNS = 6
"""Commands after which all must be done: a batch that was refused as a whole stops one."""


@pytest.fixture(scope="module")
def loop() -> Loop:
    return Loop()


class User:
    """Runs commands in a project, all of which end as agac says that commands end."""

    def __init__(self, root: Path, case: Case, address: str, *, sync: bool) -> None:
        self.project, self.killed = ProjectFolder(root), 0
        body = {"providers": {"local": providers(case.protocol, address)}, "defaults": {"model": "local/small"}}
        self.project.write("agac.yml", yaml.safe_dump(body))
        self.project.rows(rows_of(case), "data/rows.jsonl")
        rules = {
            "grace": f"{case.grace}s", "poll_interval": "0.01s", "max_requests": case.max_requests,
            "retry": case.retry, "max_rounds": 20,
        }  # fmt: skip
        self.project.workflow(
            path="data/rows.jsonl", stages=stages_of(case, sync=sync), stop_loss=False,
            defaults={"concurrency": CONCURRENCY, **({} if sync else {"batch": rules})},
        )  # fmt: skip

    def does(self, step: Step) -> Ran:
        ran = self.project.agac(*step.words, kill=step.kill)
        note(f"{' '.join(step.words)} [{step.kill or 'not killed'}]: {ran.code}\n{ran.out}{ran.err}")
        self.killed += ran.code == -9
        assert ran.code in ((*ENDS, -9) if step.kill else ENDS), ran.err
        for word in ("Traceback", "Timeout (", "bug in agac"):
            assert word not in ran.err, ran.err
        if self.has_store():
            assert_all_sound(self.project)
        return ran

    def has_store(self) -> bool:
        path = self.project.root / ".agac/agac.db"
        return path.exists() and self.project.query("PRAGMA user_version") != [(0,)]

    def results(self) -> list[Any]:
        """What came of the rows."""
        found = [
            [(one["id"], one["ok"], one["result"]) for one in self.project.envelopes()],
            sorted((one["id"], one["error"]["type"]) for one in self.project.envelopes(file="errors.jsonl")),
        ]
        path = self.project.root / "output/reviews/filtered.jsonl"
        left = self.project.envelopes(file="filtered.jsonl") if path.exists() else []
        summary = self.project.output(file="summary.json")
        return [*found, sorted(one["id"] for one in left), summary["rows"], summary.get("levels")]


def lost_after(case: Case, running: Running) -> int:
    """Answers that were charged and of which no result tells."""
    if case.lost is None:
        return 0
    kind = case.lost["kind"]
    if case.lost.get("match") == SHAKY:
        return int(running.account()["batches"]["faults"].get(kind, 0))
    return sum(batch.good for batch in running.batches() if batch.fault(kind) and batch.ended)


def undisturbed(loop: Loop, root: Path, case: Case) -> tuple[list[Any], dict[str, Any]]:
    """What calls bring, and what they cost."""
    with simulating(loop, case.always) as running:
        user = User(root, case, running.address, sync=True)
        user.does(Step(RUN))
        return user.results(), running.account()


def goes_to_its_end(user: User, running: Running, steps: Sequence[Step]) -> None:
    """Everything is let happen; then one command does what is left, and one more where somebody had to decide, or where
    a batch was refused."""
    running.hurry()
    if any(step.words == (*RUN, *PREVIEW) for step in steps):
        user.does(Step((*WAIT, *PREVIEW, "--yes")))
    seen: Any = [(0,)]  # the rows that were refused stay to be run
    for _ in range(MOST_RUNS):
        ran = user.does(Step(WAIT))
        rejected = user.project.query("SELECT count(*) FROM batch WHERE state = 'REJECTED'")
        if ran.code in (0, 3) and not user.project.query(OPEN) and rejected == seen:
            return
        seen = rejected
        for (batch,) in user.project.query("SELECT id FROM batch WHERE state = 'NEEDS_HUMAN'"):
            user.does(Step(("doctor", "--resubmit", "--batch-id", str(batch))))
    raise AssertionError(f"not done after {MOST_RUNS} commands: {user.project.query(OPEN)} {ran.err}")


OPEN = "SELECT state, note FROM batch WHERE state NOT IN ('CLEANED', 'INGESTED', 'NOT_CREATED', 'REJECTED')"
LIVE = "SELECT * FROM batch_task WHERE state < 3"
COUNTED = "SELECT tasks, counts, cancel_at IS NOT NULL FROM batch WHERE state = 'CLEANED'"
UNCLEAN = "SELECT id, state, note FROM batch WHERE state NOT IN ('CLEANED', 'NOT_CREATED', 'REJECTED')"


def leaves_nothing(user: User, running: Running) -> None:
    """Further commands ask nothing, and nothing of any batch is left, here or at the provider."""
    before = running.account()
    left = (*RUN, "--no-retry-failed")
    for words in (left, RETRIEVE, ("doctor", "--clean"), left):
        user.does(Step(words))
    after = running.account()
    for name in ("charged", "duplicates"):
        assert after[name] == before[name]
    assert after["batches"]["posts"] == before["batches"]["posts"]
    assert not user.project.query(LIVE)
    assert not user.project.query(UNCLEAN)
    for tasks, body, ended in user.project.query(COUNTED):
        counts = json.loads(body)
        came = counts.get("done", 0) + counts.get("failed", 0) + counts.get("again", 0)
        assert came + (counts.get("cancelled", 0) if ended else 0) == tasks, f"{counts} of {tasks}"
    folder = user.project.root / ".agac/batches"
    left = [path.name for path in folder.iterdir()] if folder.exists() else []
    assert not [name for name in left if not name.endswith(".strange")]
    assert after["batches"]["kept"] == 0


def whatever(loop: Loop, case: Case, folder: Path) -> None:
    """One example."""
    expected, cost = undisturbed(loop, folder / "sync", case)
    with simulating(loop, case.all_rules, case.seconds) as running:
        user = User(folder / "batch", case, running.address, sync=False)
        for step in case.steps:
            if step.words == ("advance",):
                running.advance(40)
            else:
                user.does(step)
        goes_to_its_end(user, running, case.steps)
        note(json.dumps(running.account()["batches"]))
        assert user.results() == expected
        account, lost = running.account(), lost_after(case, running)
        calls = 0 if account["calls"] == 0 else 2 * CONCURRENCY * user.killed
        for name in ("charged", "duplicates"):
            more = account[name] - cost[name] - lost
            assert 0 <= more <= calls, f"{name}: {account[name]}, not {cost[name]} and {lost} that were lost"
        leaves_nothing(user, running)
        assert user.results() == expected


@campaign(test=5, soak=1500)
@given(case=cases())
def test_whatever_happens_batches_end_as_calls_would(loop: Loop, case: Case) -> None:
    with TemporaryDirectory(prefix="agac-batches-") as folder:
        whatever(loop, case, Path(folder))
