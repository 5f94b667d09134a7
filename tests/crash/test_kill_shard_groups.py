"""kill -9 of a shard while it gives rows to groups of other shards, waits for theirs, or takes them: run again, all is
as in one run, and nothing was paid for twice but what was in flight."""

import shutil
from pathlib import Path

import pytest
from support.processes import kill_at, quiet_account
from support.server import Server
from support.services import services
from support.shards import Sharded
from support.soak import few

CONCURRENCY = 2
STAGES = [
    {"name": "read", "prompt": "read ${text}", "output_field": "short"},
    {"name": "sum", "group_by": ["topic"], "reduce": {"max_rows": 3}, "prompt": "${topic} ${rows_count}: ${rows_json}"},
    {"name": "all", "group_by": [], "prompt": "all ${rows_count}: ${rows_json}"},
]
MOMENTS = [
    *(f"commit:{n}" for n in (8, 12, 16, 20, 24)), *(f"committed:{n}" for n in (10, 14, 18, 22)),
    *(f"remote.create.{when}:{n}" for n in range(2, 9) for when in ("before", "after")),
]  # fmt: skip


@services
@pytest.mark.parametrize("disk", ["kept", "lost"])
@pytest.mark.parametrize("others", ["before", "after"])
@pytest.mark.parametrize("moment", few(MOMENTS, 19, first=2))
def test_a_shard_is_killed_while_groups_meet(
    moment: str, others: str, disk: str, server: Server, tmp_path: Path
) -> None:
    server.reset()
    project = Sharded(tmp_path / "first", server)
    project.rows({"id": f"r{n}", "topic": f"t{n % 5}", "text": f"x{n}"} for n in range(24))
    project.workflow(stages=STAGES, defaults={"model": "local/echo", "concurrency": CONCURRENCY}, stop_loss=False)
    whole = project.unsharded()
    paid = server.account()["requests"]
    for number in (1, 2, 3) if others == "before" else ():  # the killed one takes what they gave
        project.shard(number, code=75)
    ran = project.shard(1, env=kill_at(moment))
    assert ran.code in (-9, 0, 75), ran.err
    if disk == "lost":
        shutil.rmtree(project.root / ".agac/shards/1-of-3", ignore_errors=True)
    project.rounds()
    project.merge(code=0)
    assert project.taken() == whole
    most = 2 * CONCURRENCY if disk == "kept" else 8 + 2 * CONCURRENCY  # rows of the shard that were not pushed yet
    assert quiet_account(server)["requests"] - 2 * paid <= most
