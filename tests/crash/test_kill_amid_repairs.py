"""kill -9 while answers are asked again and other models are asked: the bound of what it can cost stays true."""

import json
import sqlite3
from typing import Any

import pytest
import yaml
from support.processes import killed, listening, quiet_account, wait_until
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server
from test_kill import Watch

MODELS = ["one/a", "two/b", "two/c"]
STAGE = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT, "model": MODELS, "repair": 3}
CONCURRENCY = 8
KILLS = 6


def prepared(project: ProjectFolder, server: Server, rows: int, **keys: Any) -> None:
    row = {"dialect": "openai-chat", "base_url": server.base_url, "structured": "json_schema"}
    project.write("agac.yml", yaml.safe_dump({"providers": {"one": row, "two": row}}))
    project.numbered(rows)
    project.workflow(stages=[STAGE], **keys)


def test_kills_amid_repairs_and_fallbacks_lose_no_more_than_what_was_in_flight(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = faulty([{"kind": "wrong_schema", "rate": 0.5}], "--latency", "0.01")
    prepared(project, server, 120, defaults={"concurrency": CONCURRENCY}, stop_loss=False)
    watch = Watch(project, server, CONCURRENCY)
    for kill in range(KILLS):
        before = server.account()["requests"]
        process = project.start("run", "-a", "reviews")
        wait_until(lambda: server.account()["requests"] >= before + 17 + 5 * kill, "requests", process)  # noqa: B023
        killed(process)
        watch.killed()
    assert watch.kills == KILLS
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
    prepared(project, server, 1)
    process = listening(project.start("run", "-a", "reviews", "--concurrency", str(concurrency)))
    wait_until(lambda: server.account()["requests"] >= 1, "the first call", process)
    other = sqlite3.connect(project.root / ".agac/agac.db", isolation_level=None, timeout=60)
    other.execute("BEGIN IMMEDIATE")
    (stored,) = other.execute("SELECT count(*) FROM attempt").fetchone()
    wait_until(lambda: server.account()["charged"] >= min(calls + stored, 12), "all that is allowed", process)
    lost = quiet_account(server)["charged"] - stored
    killed(process)
    other.execute("ROLLBACK")
    other.close()
    assert lost <= calls
    again = project.agac("run", "-a", "reviews", "--json", "--concurrency", str(concurrency), code=3)
    assert lost <= again.json["invocation"]["lost_calls_at_most"] <= said
    project.assert_sound()
