"""kill -9 amid a vote that is asked in rounds of batches: no replica is paid twice, and the same answers win."""

import random
from pathlib import Path
from typing import Any

import pytest
from support.batchcase import BatchCase
from support.server import Server, simulator
from support.soak import few

VOTE: dict[str, Any] = {
    "name": "classify", "prompt": "Of ${text}", "output_schema": {"label": "a|b|c", "n": "integer"}, "replicas": 60,
    "repair": 0, "vote": {"field": "label", "lead": 2}, "checks": {"classify.n % 3 != 0": "has no vote"},
}  # fmt: skip
MOMENTS = (
    "journal.plan.after", "spool.finish.after", "provider.upload.after", "provider.create.after",
    "journal.submitted.after", "journal.downloaded.after", "results.put.before", "results.put.after",
    "journal.ingested.after", "commit:4", "os.rename:2",
)  # fmt: skip


def voting(folder: Path, server: Server) -> BatchCase:
    server.reset()
    case = BatchCase(folder, server, rows=6)
    case.project.workflow(stages=[VOTE], defaults=case.defaults)
    return case


@pytest.mark.parametrize("seed", few([1, 2], 2))
def test_a_vote_in_batches_survives_being_killed(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    votes = "SELECT row_id, replica, outcome, result, agreement FROM v_results ORDER BY 1, 2"
    with simulator() as server:
        undisturbed = voting(tmp_path / "undisturbed", server)
        undisturbed.finish("run")
        wanted, charged = undisturbed.project.query(votes), undisturbed.account()["charged"]
        assert len(undisturbed.steps()) > 2, "it takes several rounds"
        assert any(outcome == "failed" for _, _, outcome, *_ in wanted), "some replies have no vote"
        case = voting(tmp_path / "disturbed", server)
        kills = 0
        for moment in chance.choices(MOMENTS, k=6):
            kills += case.agac("run", "-a", "reviews", "--wait", kill=moment).code == -9
        case.finish("run")
        assert kills > 2
        assert case.project.query(votes) == wanted
        account = case.account()
        assert (account["charged"], account["duplicates"]) == (charged, 0)
        case.project.assert_sound()
