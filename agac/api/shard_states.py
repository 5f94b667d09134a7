"""`agac status --shards`: how the shards of a run are, by what they left in the remote."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
from agac.data.object_store import ObjectStore
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
    """Runs in shards, as a remote knows them."""

    remote: str
    """The remote's address."""
    runs: list[dict[str, Any]]
    """The newest run of each workflow, with its `shards`, how many are in which of the `states`,
    their rows and cost together, and the `next` command once all have finished. A shard is
    `running`, `finished`, `waiting` for batches, people or others, `stopped` by an interrupt, a
    fault or a limit, `dead` if it should be at work and shows no sign of life, or `missing`; `why`
    says more, and `next` what to type."""


@blocking
async def shard_status(
    workflow: str | None = None, *, project: Path | str | None = None
) -> ShardsReport:
    """Reads how the shards of the newest run of each workflow, or of one, are. Reads only the
    remote. Raises UsageError if the project has none, and for a workflow that has no shards
    there."""
    opened = open_project(project)
    remote = remote_of(opened)
    trust = [*opened.spec.file.remote.trust, opened.env.get("AGAC_REMOTE_WRITER", "")]
    names = await _workflows(remote)
    if workflow is not None and workflow not in names:
        known = f"Workflows with shards: {listed(names)}. " if names else ""
        remedy = f"{known}Begin one with: agac run -a {workflow} --shard 1/4"
        raise UsageError(
            f"no run of workflow {workflow!r} has shards in {remote.url}", remedy=remedy
        )
    runs = list[dict[str, Any]]()
    for name in names if workflow is None else [workflow]:
        keys = await remote.folders(runs_folder(name))
        newest = await _newest([ShardFolder(remote, name, key, trust) for key in keys])
        if newest is not None:
            runs.append(await _run(*newest))
    return ShardsReport(remote.url, runs)


async def _workflows(remote: ObjectStore) -> list[str]:
    """Returns the workflows that have shards in a remote."""
    names = {folder: unquote(folder.replace("=", "%")) for folder in await remote.folders(FOLDER)}
    # other folders are of no workflow
    return sorted(
        name for folder, name in names.items() if runs_folder(name) == f"{FOLDER}/{folder}"
    )


async def _newest(
    folders: Sequence[ShardFolder],
) -> tuple[ShardFolder, Mapping[int, ShardStatus]] | None:
    """Returns the run of which a shard was seen last, with the status of each of its shards."""
    newest = None
    newest_at = -math.inf
    for folder in folders:
        statuses = await folder.statuses()
        seen_at = max((status.at for status in statuses.values()), default=-math.inf)
        if statuses and seen_at > newest_at:
            newest = folder, statuses
            newest_at = seen_at
    return newest


async def _run(folder: ShardFolder, statuses: Mapping[int, ShardStatus]) -> dict[str, Any]:
    """Describes a run and its shards."""
    ends = await folder.manifests()
    of = next(iter(statuses.values())).of
    workflow = folder.workflow
    old = await outdated(folder, ends.values())
    again = partial(command_of, workflow=workflow, statuses=statuses)
    shards = []
    for number in range(1, of + 1):
        shard = Shard(number, of)
        shards.append(_shard(shard, again(shard), statuses.get(number), ends.get(number), old))
    states = Counter(shard["state"] for shard in shards)
    rows = Counter[str]()
    for facts in shards:
        rows.update(facts["rows"])
    costs = [shard["usd"] for shard in shards]
    return {
        "workflow": workflow,
        "states": dict(states),
        "rows": dict(rows),
        "calls": sum(shard["calls"] for shard in shards),
        "usd": None if None in costs else dollars_in_all(costs),
        "simulated": any(shard["simulated"] for shard in shards),
        "next": merge_command(again(Shard(1, of))) if states["finished"] == of else None,
        "shards": shards,
    }


def _shard(
    shard: Shard,
    again: str,
    status: ShardStatus | None,
    end: ShardManifest | None,
    outdated_by: Mapping[int, str],
) -> dict[str, Any]:
    """Describes one shard. `again` is the command that continues it, `outdated_by` says why shards
    have to run again, by number."""
    if status is None:
        return {
            "shard": str(shard),
            "state": "missing",
            "rows": {},
            "calls": 0,
            "usd": 0.0,
            "simulated": False,
            "seen_at": None,
            "by": "",
            "why": "",
            "next": again,
        }
    state = _state(status, end, is_outdated=shard.number in outdated_by)
    why = status.waits or status.why
    if not why and state == "waiting":
        why = outdated_by.get(shard.number, "")
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


def _state(status: ShardStatus, end: ShardManifest | None, *, is_outdated: bool) -> str:
    """Returns the word for a shard's state."""
    if status.state == "running":
        return "running"
    if status.state == "silent":
        return "dead"
    if not status.waits and status.state != "ended":
        return "stopped"
    is_complete = end is not None and end.complete
    if is_complete and not status.waits and not is_outdated:
        return "finished"
    return "waiting"
