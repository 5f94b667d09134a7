"""kill -9 at fifty moments: start-up, amid the work, commits, exports, replicas, repairs and fallbacks. Nothing is
lost, nothing comes twice, and what it can cost stays within its bound."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.processes import kill_at, killed, listening, quiet_account, row_count, wait_until
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server, simulator
from support.soak import few

ROWS = 240
KILLS = 10
"""In each group. The first two fall into start-up, the last two into the export, after all that was left is done."""

ONE = [{"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT}]
TWO = [*ONE, {"name": "reply", "prompt": "Answer ${text}, found ${classify.sentiment}: ${classify.reason}"}]

VOTE = {
    "name": "classify", "prompt": "Of ${text}", "output_schema": {"label": "a|b|c"}, "replicas": 4, "vote": "label",
}  # fmt: skip
LIST = {"name": "say", "prompt": "${text} is ${classify.label}", "replicas": 2}
LEAD = {
    "name": "classify", "prompt": "Of ${text}", "output_schema": {"label": "a|b|c", "n": "integer"}, "replicas": 99,
    "repair": 0, "vote": {"field": "label", "lead": 2}, "checks": {"classify.n % 3 != 0": "has no vote"},
}  # fmt: skip
SEVERAL = {"replicas": [VOTE, LIST], "votes until one leads": [LEAD]}

GROUPS = {
    "one stage": (ONE, 8),
    "one stage, wider": (ONE, 16),
    "two stages": (TWO, 8),
    "two stages, wider": (TWO, 16),
    "two stages over an input that was changed": (TWO, 8),
}
FILES = ("results.jsonl", "results.json", "errors.jsonl")
REPLICAS = ("requests", "commit", "requests", "committed", "statement", "requests", "os.rename")


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    with simulator("--latency", "0.01") as server:
        yield server


CELLS = few([(group, seed) for seed in range(5) for group in GROUPS], 23, first=1)


@pytest.mark.parametrize(("group", "seed"), [*CELLS, *((name, 7) for name in SEVERAL)])
def test_a_run_survives_being_killed_at_any_moment(group: str, seed: int, slow: Server, tmp_path: Path) -> None:
    """What one replica answered, or failed to, is never asked again, and the votes come out the same."""
    stages, concurrency = GROUPS.get(group) or (SEVERAL[group], 8)
    chance = random.Random(seed)
    undisturbed = prepared(tmp_path / "undisturbed", slow, stages, concurrency)
    disturbed = prepared(tmp_path / "disturbed", slow, stages, concurrency)
    if "changed" in group:
        assert disturbed.run().exit_code == 0
        for project in (undisturbed, disturbed):
            change_input(project)
    if group in SEVERAL:
        for project in (undisturbed, disturbed):
            project.rows({"id": f"r-{i}", "text": f"thing {i % 54}"} for i in range(60))  # six are asked twice
    assert undisturbed.run().exit_code == 0
    slow.reset()

    watch = Watch(disturbed, slow, concurrency)
    for kind in kinds(chance) if group in GROUPS else REPLICAS:
        disturb(kind, chance, watch)
        watch.killed()
    watch.finished()

    assert watch.kills == (KILLS if group in GROUPS else len(REPLICAS))
    for file in FILES:
        assert written(disturbed, file) == written(undisturbed, file)
    votes = "SELECT row_id, stage, replica, result, agreement FROM v_results ORDER BY 1, 2, 3"
    assert group in GROUPS or disturbed.query(votes) == undisturbed.query(votes)
    rolled = "SELECT error_type, count FROM counter WHERE outcome = 'agreement' AND count <> 0"
    counted = "SELECT agreement, count(*) FROM v_results WHERE agreement IS NOT NULL GROUP BY 1"
    assert dict(disturbed.query(rolled)) == dict(disturbed.query(counted))
    nothing_twice(disturbed)
    assert disturbed.query("SELECT count(*) FROM row WHERE ordinal IS NOT NULL AND state <> 1") == [(0,)]
    account = quiet_account(slow)
    assert account["charged"] - account["distinct"] == account["duplicates"] <= watch.lost_in_all


@pytest.mark.parametrize("concurrency", [4, 16])
def test_calls_that_are_not_durable_yet_hold_back_further_ones(
    concurrency: int, project: ProjectFolder, faulty: Faulty
) -> None:
    """The store cannot keep up: somebody else holds the database. What a kill can cost stays bounded all the same."""
    server = faulty([], "--latency", "0.1")
    project.configure(server.base_url)
    project.numbered(100)
    project.workflow()
    process = listening(project.start("run", "-a", "reviews", "--concurrency", str(concurrency)))
    wait_until(lambda: row_count(project) > 0, "the first rows", process)
    with held(project) as stored:
        wait_until(lambda: server.account()["charged"] >= stored + 2 * concurrency, "as many as are allowed", process)
        lost = quiet_account(server)["charged"] - stored
        killed(process)
    assert lost == 2 * concurrency
    again = project.agac("run", "-a", "reviews", "--json")
    assert (again.json["rows"]["done"], again.json["invocation"]["lost_calls_at_most"]) == (100, lost)
    assert server.account()["duplicates"] == lost
    project.assert_sound()


@contextmanager
def held(project: ProjectFolder) -> Iterator[int]:
    """Somebody else holds the database; gives how many calls are stored in it."""
    with closing(sqlite3.connect(project.root / ".agac/agac.db", isolation_level=None, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield int(other.execute("SELECT count(*) FROM attempt").fetchone()[0])
        other.execute("ROLLBACK")


MODELS = ["one/a", "two/b", "two/c"]
REPAIRED = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT, "model": MODELS, "repair": 3}


def with_models(project: ProjectFolder, server: Server, rows: int, **keys: Any) -> None:
    row = {"dialect": "openai-chat", "base_url": server.base_url, "structured": "json_schema"}
    project.write("agac.yml", yaml.safe_dump({"providers": {"one": row, "two": row}}))
    project.numbered(rows)
    project.workflow(stages=[REPAIRED], **keys)


def test_kills_amid_repairs_and_fallbacks_lose_no_more_than_what_was_in_flight(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = faulty([{"kind": "wrong_schema", "rate": 0.5}], "--latency", "0.01")
    with_models(project, server, 120, defaults={"concurrency": 8}, stop_loss=False)
    watch = Watch(project, server, 8)
    for kill in range(6):
        before = server.account()["requests"]
        process = project.start("run", "-a", "reviews")
        wait_until(lambda: server.account()["requests"] >= before + 17 + 5 * kill, "requests", process)  # noqa: B023
        killed(process)
        watch.killed()
    assert watch.kills == 6
    watch.finished()
    assert {purpose for (purpose,) in project.query("SELECT purpose FROM attempt")} == {"ask", "repair", "fallback"}
    assert project.query("SELECT count(*) FROM row WHERE state = 1") == [(120,)]
    assert project.query("SELECT max(number) FROM attempt")[0][0] <= 3 * (1 + 3)
    for (value,) in project.query("SELECT value FROM result"):
        assert json.loads(value)["sentiment"] in ("positive", "neutral", "negative")


@pytest.mark.parametrize(("concurrency", "calls", "said"), [(32, 12, 3 * (1 + 3 + 3)), (2, 2 * 2, 2 * 2)])
def test_the_bound_on_lost_calls_knows_of_repairs_and_fallbacks(
    project: ProjectFolder, faulty: Faulty, concurrency: int, calls: int, said: int
) -> None:
    """One row, answered wrongly for ever, and a store that somebody else holds: every call is lost with the kill."""
    server = faulty([{"kind": "wrong_schema"}], "--latency", "0.2")
    with_models(project, server, 1)
    process = listening(project.start("run", "-a", "reviews", "--concurrency", str(concurrency)))
    wait_until(lambda: server.account()["requests"] >= 1, "the first call", process)
    with held(project) as stored:
        wait_until(lambda: server.account()["charged"] >= min(calls + stored, 12), "all that is allowed", process)
        lost = quiet_account(server)["charged"] - stored
        killed(process)
    assert lost <= calls
    again = project.agac("run", "-a", "reviews", "--json", "--concurrency", str(concurrency), code=3)
    assert lost <= again.json["invocation"]["lost_calls_at_most"] <= said
    project.assert_sound()


def prepared(root: Path, server: Server, stages: list[dict[str, Any]], concurrency: int) -> ProjectFolder:
    project = ProjectFolder(root)
    project.configure(server.base_url)
    project.numbered(ROWS)
    project.workflow(stages=stages, defaults={"concurrency": concurrency})
    return project


def change_input(project: ProjectFolder) -> None:
    """Other rows at other places: reversed, every tenth gone, every seventh with another text, some new ones."""
    kept = [i for i in range(ROWS, 0, -1) if i % 10]
    rows = [{"id": f"r-{i}", "text": f"I hate number {i}" if i % 7 == 0 else f"I love number {i}"} for i in kept]
    new = [{"id": f"n-{i}", "text": f"number {i} is new"} for i in range(140)]
    project.rows(rows[:60] + new + rows[60:])


def kinds(chance: random.Random) -> list[str]:
    middle = ["requests", "rows", "statement", "commit", "committed", chance.choice(["requests", "commit"])]
    chance.shuffle(middle)
    return ["import", "statement", *middle, "os.rename", "os.scandir"]


def disturb(kind: str, chance: random.Random, watch: Watch) -> None:
    """One invocation that is killed at a random moment of a kind."""
    project, server = watch.project, watch.server
    ranges = {
        "import": (50, 400), "statement": (1, 60), "commit": (2, 8), "committed": (2, 8),
        "os.rename": (1, 4), "os.scandir": (1, 4), "requests": (1, 36), "rows": (1, 24),
    }  # fmt: skip
    number = chance.randint(*ranges[kind])
    if kind not in ("requests", "rows"):
        start = project.fresh_agac if kind == "import" else project.agac  # a forked process has imported everything
        ran = start("run", "-a", "reviews", env=kill_at(f"{kind}:{number}"))
        assert ran.code == -9, f"no {kind}:{number} before its end: {ran.out}{ran.err}"
    else:
        requests, rows = server.account()["requests"], row_count(project)
        process = project.start("run", "-a", "reviews")
        if kind == "requests":
            wait_until(lambda: server.account()["requests"] >= requests + number, f"{number} requests", process)
        else:
            wait_until(lambda: row_count(project) >= rows + number, f"{number} rows", process)
        killed(process)
        assert process.returncode == -9


class Watch:
    """Looks at database and account after every process: what was paid, what was stored, what was said."""

    def __init__(self, project: ProjectFolder, server: Server, concurrency: int) -> None:
        self.project, self.server, self.bound = project, server, 2 * concurrency
        self.kills = 0
        self.lost_in_all = 0
        self._charged = 0
        self._stored = self._answers()
        self._lost_unsaid = 0
        self._kills_unsaid = 0
        self._event = self._newest_event()[0]

    def killed(self) -> None:
        """After a kill: the database is whole, and no more was lost than what was in flight or not yet durable."""
        lost = self._look()
        assert lost <= self.bound
        self.kills += 1
        self.lost_in_all += lost
        self._lost_unsaid += lost
        self._kills_unsaid += 1

    def finished(self) -> None:
        """One invocation that nobody disturbs."""
        ran = self.project.agac("run", "-a", "reviews", "--json", code=0)
        self._said(ran.json["invocation"]["lost_calls_at_most"])
        assert self._look() == 0

    def _look(self) -> int:
        """How many answers were paid and not stored since the last look."""
        if not self._is_made():
            return 0
        assert self.project.query("PRAGMA integrity_check") == [("ok",)]
        self.project.assert_sound()
        charged, stored = quiet_account(self.server)["charged"], self._answers()
        lost = (charged - self._charged) - (stored - self._stored)
        assert lost >= 0
        self._charged, self._stored = charged, stored
        event, at_most, ended = self._newest_event()
        if event != self._event:
            self._event = event
            self._said(at_most)
            if ended:
                self._lost_unsaid = self._kills_unsaid = 0
        return lost

    def _said(self, at_most: int) -> None:
        """What an invocation says that may have been lost before it is enough, and no more than it can have been."""
        assert self._lost_unsaid <= at_most <= self.bound * self._kills_unsaid

    def _is_made(self) -> bool:
        if not (self.project.root / ".agac/agac.db").exists():
            return False
        return self.project.query("PRAGMA user_version") != [(0,)]

    def _answers(self) -> int:
        if not self._is_made():
            return 0
        return int(self.project.query("SELECT count(*) FROM attempt")[0][0])

    def _newest_event(self) -> tuple[int, int, bool]:
        """Its number, what it recorded that may have been lost before it, and whether it came to its end."""
        found = self._is_made() and self.project.query(
            "SELECT id, body, ended_at FROM event WHERE kind = 'invocation' ORDER BY id DESC LIMIT 1"
        )
        if not found:
            return 0, 0, False
        number, body, ended_at = found[0]
        return number, json.loads(body)["lost_calls"], ended_at is not None


def nothing_twice(project: ProjectFolder) -> None:
    """No row and no answer is in the store twice."""
    assert project.query("SELECT id FROM row GROUP BY run_id, id HAVING count(*) > 1") == []
    assert project.query("SELECT ordinal FROM row WHERE ordinal > 0 GROUP BY run_id, ordinal HAVING count(*) > 1") == []
    assert project.query("SELECT row_key FROM task GROUP BY row_key, stage, replica HAVING count(*) > 1") == []
    assert project.query("SELECT fingerprint FROM result GROUP BY fingerprint HAVING count(*) > 1") == []
    ids = [envelope["id"] for envelope in project.envelopes()]
    assert len(ids) == len(set(ids))


def written(project: ProjectFolder, file: str) -> bytes:
    return (project.root / "output/reviews" / file).read_bytes()
