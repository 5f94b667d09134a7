"""kill -9 again and again, anywhere, with several batches of two stages: the results of a run that nobody disturbed."""

import random
from pathlib import Path
from typing import Any

import pytest
from support.batchcase import FINISHED, STAGE, BatchCase, assert_ended
from support.server import Faulty, Server
from support.soak import few

APIS = ("openai", "anthropic")
ANSWER = {"name": "answer", "prompt": "Answer ${text}, found ${classify.sentiment}: ${classify.reason}"}
KILLS = 12
FURTHEST = 40
"""Steps after which a command is killed at the latest: it has about a hundred to do in all."""


def two_stages(folder: Path, server: Server, api: str, mode: str, **batch: Any) -> BatchCase:
    """Ten rows, four at a time, through two stages; the second one in batches, too, or called."""
    case = BatchCase(folder, server, api)
    rules = {"grace": 0.1, "poll_interval": 0.05, "max_requests": 4, **batch}
    stages: list[dict[str, Any]] = [{**STAGE, "run_mode": "batch", "batch": rules}, {**ANSWER, "run_mode": mode}]
    if mode == "batch":
        stages[1]["batch"] = rules
    case.project.workflow(stages=stages)
    return case


OPERATIONS = ("create", "upload", "poll", "download", "cancel", "list", "delete", "files")


def failing(seed: int) -> list[dict[str, Any]]:
    """Answers that are lost before or after their effect."""
    return [
        {"kind": kind, "op": op, "at": [2 + seed, 5, 9 + seed]}
        for kind, ops in (("batch_drop_after", OPERATIONS[::2]), ("batch_drop_before", OPERATIONS[1::2]))
        for op in (ops if seed % 2 else reversed(ops))
    ]


def killed_all_the_time(case: BatchCase, chance: random.Random, *, faults: bool = False) -> None:
    """Commands that die after some steps, until the run is whole or enough of them have died."""
    kills = 0
    while kills < KILLS and not (case.is_begun() and case.is_whole()):
        command = ["batch", "retrieve"] if case.is_begun() and chance.random() < 0.5 else ["run", "-a", "reviews"]
        ran = case.agac(*command, kill=f"any:{chance.randint(1, FURTHEST)}")
        assert faults or ran.code in (-9, 0, 75), f"{command}: {ran.out}{ran.err}"
        kills += ran.code == -9
    assert kills >= 5


@pytest.mark.parametrize(
    ("api", "mode", "seed", "fails"),
    few([(api, mode, seed, False) for seed in range(1, 11) for api in APIS for mode in ("batch", "sync")], 23)
    + few([(api, "batch", seed, True) for seed in range(10) for api in APIS], 23),
)
def test_a_run_survives_being_killed_all_the_time(
    api: str, mode: str, seed: int, fails: bool, faulty: Faulty, tmp_path: Path
) -> None:
    """Case 43; also at a provider that fails."""
    undisturbed = two_stages(tmp_path / "called", faulty([]), api, "sync")
    assert_ended(undisturbed.run("--run-mode", "sync"))
    server = faulty(failing(seed) if fails else [])
    case = two_stages(tmp_path / "project", server, api, mode)
    killed_all_the_time(case, random.Random(seed), faults=fails)
    if not fails:
        case.finish("run")
    while not case.is_whole() or not set(case.steps()) <= FINISHED:
        case.run("--wait")
    account, called = case.account(), server.account()
    assert case.project.envelopes() == undisturbed.project.envelopes()
    is_batch = mode == "batch"
    assert (account["created"], account["duplicates"]) == (6 if is_batch else 3, 0)  # a create that was cut off is none
    assert (account["charged"], account["open"], account["kept"]) == (20 if is_batch else 10, 0, 0)
    assert called["charged"] - called["duplicates"] == (0 if is_batch else 10)
    case.assert_clean()
