"""What shards leave in a remote, without running any."""

import time
from pathlib import Path
from typing import Any

from agac.api.sync import blocking
from agac.core.types import Shard
from agac.data.object_store import ObjectStore
from agac.engine.sharding.folder import LeaseEntry, ShardFolder, ShardManifest, ShardStatus
from agac.engine.sharding.shard_lease import ShardLease
from support.project import ProjectFolder


async def leave(
    root: Path, shard: Shard, key: str = "k", *, ago: float = 0.0, dies: bool = False, complete: bool = True,
    **about: Any,
) -> None:  # fmt: skip
    """A shard of workflow `reviews` is begun, says how it is, and ends, or is never heard of again."""
    folder = ShardFolder(ObjectStore("../remote", root), "reviews", key, {"ci"})
    lease = ShardLease(folder, shard, "ci", lambda: time.time() - ago)
    rows = {"total": 10, "done": 9, "failed": 1, "open": 0, "skipped": 0, "dropped": 0}
    told: dict[str, Any] = {**lease.about(), **shard._asdict(), "run": 1, "rows": rows, "calls": 11, "usd": 0.5}
    if dies:
        await folder.append(f"lease/{shard.name}", lambda _: LeaseEntry(**lease.about()).model_dump_json().encode())
        return
    async with lease.held():
        status = ShardStatus(**told | {"state": "ended"} | about)
        manifest = ShardManifest(
            **lease.about(), status=status, exit_code=0, complete=complete, input="i", input_rows=40,
            summary={},
        )  # fmt: skip
        await folder.append(f"ended/{shard.name}", lambda _: manifest.model_dump_json().encode())


def four_shards(project: ProjectFolder) -> None:
    """A project whose remote knows of four shards: one has finished, one waits, one stopped, one was never begun; and
    of an older run of two."""
    project.write("agac.yml", "remote: {url: ../remote, trust: [ci]}\n")

    async def leave_all() -> None:
        await leave(project.root, Shard(1, 4))
        await leave(project.root, Shard(2, 4), complete=False, waits="its batches")
        await leave(project.root, Shard(3, 4), complete=False, state="stopped", why="the budget <b>is</b> used up")
        await leave(project.root, Shard(1, 2), "old", ago=600)

    blocking(leave_all)()
