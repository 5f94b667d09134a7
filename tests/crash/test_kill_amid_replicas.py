"""kill -9 amid the replicas of rows: what one answered is never asked again, and the votes come out the same."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import quiet_account
from support.project import ProjectFolder
from support.server import Server, simulator
from test_kill import Watch, disturb, written

ROWS, REPLICAS, CONCURRENCY = 60, 4, 8
VOTE = {
    "name": "classify",
    "prompt": "Of ${text}",
    "output_schema": {"label": "a|b|c"},
    "replicas": REPLICAS,
    "vote": "label",
}
LIST = {"name": "say", "prompt": "${text} is ${classify.label}", "replicas": 2}


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    with simulator("--latency", "0.01") as server:
        yield server


def prepared(root: Path, server: Server, stages: list[dict[str, Any]]) -> ProjectFolder:
    project = ProjectFolder(root)
    project.configure(server.base_url)
    project.rows({"id": f"r-{i}", "text": f"thing {i % (ROWS - 6)}"} for i in range(ROWS))  # six are asked twice
    project.workflow(stages=stages, defaults={"concurrency": CONCURRENCY})
    return project


def test_a_run_with_replicas_survives_being_killed_at_any_moment(slow: Server, tmp_path: Path) -> None:
    chance = random.Random(7)
    undisturbed = prepared(tmp_path / "undisturbed", slow, [VOTE, LIST])
    disturbed = prepared(tmp_path / "disturbed", slow, [VOTE, LIST])
    assert undisturbed.run().exit_code == 0
    slow.reset()
    watch = Watch(disturbed, slow, CONCURRENCY)
    for kind in ("requests", "commit", "requests", "committed", "statement", "requests", "os.rename"):
        disturb(kind, chance, watch)
        watch.killed()
    watch.finished()
    for file in ("results.jsonl", "results.json", "errors.jsonl"):
        assert written(disturbed, file) == written(undisturbed, file)
    votes = "SELECT row_id, stage, replica, result, agreement FROM v_results ORDER BY 1, 2, 3"
    assert disturbed.query(votes) == undisturbed.query(votes)
    assert disturbed.query("SELECT row_key FROM task GROUP BY row_key, stage, replica HAVING count(*) > 1") == []
    assert disturbed.query("SELECT fingerprint FROM result GROUP BY fingerprint HAVING count(*) > 1") == []
    rolled = "SELECT error_type, count FROM counter WHERE outcome = 'agreement' AND count <> 0"
    counted = "SELECT agreement, count(*) FROM v_results WHERE agreement IS NOT NULL GROUP BY 1"
    assert dict(disturbed.query(rolled)) == dict(disturbed.query(counted))
    account = quiet_account(slow)
    assert account["charged"] - account["distinct"] == account["duplicates"] <= watch.lost_in_all
