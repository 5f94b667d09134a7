"""`agac status --shards`: how the shards of a run are, by what they left in the remote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from agac.api.project import open_project
from agac.api.share import remote_of
from agac.api.sync import blocking
from agac.core.errors import UsageError, listed
from agac.core.text import merge_command
from agac.core.types import Report, Shard, dollars_in_all, iso
from agac.engine.sharding.folder import (
    FOLDER,
    ShardFolder,
    ShardManifest,
    ShardStatus,
    command_of,
    runs_folder,
)
from agac.engine.sharding.group_packs import outdated
from agac.store.lease import shown


@dataclass(frozen=True, slots=True)
class ShardsReport(Report):
    """What a remote says of runs in shards: the newest of each workflow, with its `shards`, how
    many are in which of the `states`, what they came to together, and the `next` command once all
    have finished. A shard is `running`, `finished`, `waiting` for batches, people or others,
    `stopped` by an interrupt, a fault or a limit, `dead` where it should be at work and shows no
    sign of life, or `missing`; `why` says more, and `next` what to type."""

    remote: str
    runs: list[dict[str, Any]]


@blocking
async def shard_status(
    workflow: str | None = None, *, project: Path | str | None = None
) -> ShardsReport:
    """How the shards of the newest run of each workflow, or of one, are. Reads the remote only.
    Raises UsageError where the project has none, and for a workflow that has no shards there."""
    opened = open_project(project)
    runs = list[dict[str, Any]]()
    remote, trust = (
        remote_of(opened),
        [*opened.spec.file.remote.trust, opened.env.get("AGAC_REMOTE_WRITER", "")],
    )
    named = (
        (unquote(one.replace("=", "%")), f"{FOLDER}/{one}") for one in await remote.folders(FOLDER)
    )
    # others are of no workflow
    names = sorted(name for name, folder in named if runs_folder(name) == folder)
    if workflow is not None and workflow not in names:
        known = f"Workflows with shards: {listed(names)}. " if names else ""
        remedy = f"{known}Begin one with: agac run -a {workflow} --shard 1/4"
        raise UsageError(
            f"no run of workflow {workflow!r} has shards in {remote.url}", remedy=remedy
        )
    for name in names if workflow is None else [workflow]:
        folders = [
            ShardFolder(remote, name, key, trust) for key in await remote.folders(runs_folder(name))
        ]
        found = [
            (max(one.at for one in all_.values()), all_, one)
            for one in folders
            if (all_ := await one.statuses())
        ]
        if found:
            _, statuses, folder = max(found, key=lambda one: one[0])
            runs.append(await _run(folder, statuses))
    return ShardsReport(remote.url, runs)


async def _run(folder: ShardFolder, statuses: Mapping[int, ShardStatus]) -> dict[str, Any]:
    ends = await folder.manifests()
    of = next(iter(statuses.values())).of
    workflow = folder.workflow
    old = await outdated(folder, ends.values())
    again = partial(command_of, workflow=workflow, statuses=statuses)
    shards = [
        _shard(part := Shard(n, of), again(part), statuses.get(n), ends.get(n), old)
        for n in range(1, of + 1)
    ]
    states = Counter(one["state"] for one in shards)
    rows = Counter[str]()
    costs = [one["usd"] for one in shards]
    for one in shards:
        rows.update(one["rows"])
    return {
        "workflow": workflow,
        "states": dict(states),
        "rows": dict(rows),
        "calls": sum(one["calls"] for one in shards),
        "usd": None if None in costs else dollars_in_all(costs),
        "simulated": any(one["simulated"] for one in shards),
        "next": merge_command(again(Shard(1, of))) if states["finished"] == of else None,
        "shards": shards,
    }


def _shard(
    shard: Shard,
    again: str,
    status: ShardStatus | None,
    end: ShardManifest | None,
    old: Mapping[int, str],
) -> dict[str, Any]:
    if status is None:
        none = {
            "rows": {},
            "calls": 0,
            "usd": 0.0,
            "simulated": False,
            "seen_at": None,
            "by": "",
            "why": "",
        }
        return {"shard": str(shard), "state": "missing", **none, "next": again}
    state = {"running": "running", "silent": "dead"}.get(status.state, "stopped")
    if state == "stopped" and (status.waits or status.state == "ended"):
        is_done = end is not None and end.complete and not status.waits and shard.number not in old
        state = "finished" if is_done else "waiting"
    why = status.waits or status.why or (state == "waiting" and old.get(shard.number)) or ""
    return {
        "shard": str(shard),
        "state": state,
        "rows": dict(status.rows),
        "calls": status.calls,
        "usd": status.usd,
        "simulated": status.simulated,
        "seen_at": iso(status.at),
        "by": f"{status.writer}, {shown(status.holder)}",
        "why": why,
        "next": None if state in ("running", "finished") else again,
    }
