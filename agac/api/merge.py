"""Runs in shards: what an invocation of one takes from the remote and leaves there, and `agac
merge` of all."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from agac.api.project import Project, project_of
from agac.api.ready_workflow import made_ready
from agac.api.run_options import RunOptions
from agac.api.share import FOLDER, SharedAnswers, push_since, remote_of, writer_of
from agac.api.status import MERGED, SHARDS, go_on
from agac.api.sync import blocking
from agac.core.errors import AgacError, ExitCode, Problem, UsageError
from agac.core.keys import canonical, is_job
from agac.core.reading import read_as
from agac.core.types import Report, Shard
from agac.data.sources import InputDigest
from agac.engine.ask.validate import Checker
from agac.engine.invocation import Clocks
from agac.engine.output.export import export_run
from agac.engine.output.run_outputs import outputs_text, target_of
from agac.engine.sharding.folder import (
    ShardFolder,
    ShardManifest,
    command_of,
    folder_key,
    runs_folder,
)
from agac.engine.sharding.group_packs import outdated
from agac.engine.sharding.row_packs import ShardRows
from agac.engine.sharding.shard_lease import ShardLease
from agac.engine.sharding.shard_run import ShardRun
from agac.engine.summary import RunRequest, RunSummary, added
from agac.plan.plan import Plan, make_plan
from agac.spec.loader import WorkflowSource
from agac.spec.paths import STORE
from agac.store import packs, runs
from agac.store.db import Database, select, write
from agac.store.lease import lease_held
from agac.store.packs import KnownAnswers, endpoint_mark
from agac.store.writer import open_database

_log = logging.getLogger("agac.shard")


def shard_folder(opened: Project, plan: Plan, of: int) -> ShardFolder:
    """The folder of a plan's run in so many shards. Raises UsageError where the project has no
    remote."""
    key = folder_key(plan.hash, replace(plan.selection, shard=None).text(), of)
    trust = [*opened.spec.file.remote.trust, opened.env.get("AGAC_REMOTE_WRITER", "")]
    return ShardFolder(remote_of(opened), plan.workflow, key, trust)


@asynccontextmanager
async def sharded(
    opened: Project, database: Database, plan: Plan, *, fresh: bool = False
) -> AsyncIterator[ShardRun]:
    """Holds the shard that the selection of a plan names, for the block. Raises UsageError for
    what no shard can do, LeaseHeld if another process works on it."""
    shard = plan.selection.shard
    assert shard is not None
    refused = {
        f"stage {stage.name!r} compares all rows (dedupe)": stage.makes == "kept"
        for stage in plan.stages
    }
    refused |= {
        "--fresh would ask again what other shards have": fresh,
        "row runs have none": is_job(plan.workflow),
    }
    wrong = [what for what, is_so in refused.items() if is_so]
    if wrong:
        raise UsageError(f"--shard {shard}: {'; '.join(wrong)}", remedy="Run it without --shard.")
    lease = ShardLease(
        shard_folder(opened, plan, shard.of), shard, writer_of(opened), Clocks().wall
    )
    async with lease.held():
        with closing(KnownAnswers()) as known:
            problems = list[Problem]()
            read = InputDigest()
            answers = ShardAnswers(opened, database, lease, SharedAnswers(opened, known, problems))
            await answers.take(plan)
            for problem in problems:
                _log.warning("%s: %s", problem.where, problem.message)
            yield ShardRun(lease, read, answers.push, go_on)


class ShardAnswers:
    """The answers of a shard: pushed while it works, and taken back where its disk is lost."""

    def __init__(
        self, opened: Project, database: Database, lease: ShardLease, shared: SharedAnswers
    ) -> None:
        self._opened = opened
        self._database = database
        self._folder = lease.folder
        self._shared = shared
        self._writer = lease.writer
        self._marks = f"answers/{lease.shard.name}"
        self._said = False

    async def take(self, plan: Plan) -> None:
        """Takes in the packs that the shard pushed and this store does not know: what a stage of
        today would take."""
        pattern = re.compile(rf"{re.escape(self._marks)}/([^/]+)/([0-9a-f]{{64}})")
        marks = filter(None, map(pattern.fullmatch, await self._folder.names(self._marks)))
        found = [(one[1], one[2]) for one in marks if one[1] in self._folder.trust]
        await self._shared.know(found)
        there = await select(self._database, "packs_known", tuple[str, str])
        checkers = [*map(Checker, plan.asking)]
        for writer, pack in found:
            name = f"{FOLDER}/{writer}/{pack}.pack"
            with self._shared.noting(name):
                if (writer, pack) in there:
                    continue
                content = await self._shared.remote.read(name, packs.MAX_BYTES)
                answers = list(packs.unpacked(writer, pack, content, time.time()))
                known = [
                    one
                    for one in answers
                    if endpoint_mark(one.provider, one.base_url) in self._shared.committed
                ]
                fit = [
                    one
                    for one in known
                    if any(check.kept(json.loads(one.value)) is not None for check in checkers)
                ]
                await packs.keep_pulled(self._database, fit, 0.0)

    async def push(self) -> None:
        """Pushes what came since the last time; the first time all that is not in the remote."""
        pushed = await push_since(self._database, self._opened, self._shared, self._mark)
        if pushed.kept and not self._said:
            why = (
                "they hold a secret, are over 8 MB, or came from an address that stands in "
                "the environment alone"
            )
            _log.warning(
                "answers stay on this machine, and are paid again if its disk is lost: %s", why
            )
            self._said = True

    async def _mark(self, pack: str) -> None:
        await self._folder.create(f"{self._marks}/{self._writer}/{pack}", b"")
        await write(self._database, "pack_put", writer=self._writer, pack=pack)


# Merging.


@dataclass(frozen=True, slots=True)
class MergeReport(Report):
    """The outputs of a run in `shards`: its summary as a `record`, which adds up theirs, and the
    `files`. `not_written` is why a table could not be written with them."""

    JSON_KEYS = ("**summary", "exit_code", "files", "not_written")

    record: RunSummary
    shards: int
    exit_code: ExitCode
    files: list[Path]
    not_written: (
        Annotated[AgacError, lambda one: {"message": one.message, "remedy": one.remedy}] | None
    ) = None

    @property
    def summary(self) -> dict[str, Any]:
        """The record as JSON, which `summary.json` holds."""
        return self.record.as_json()


@blocking
async def merge(
    workflow: WorkflowSource, options: RunOptions | None = None, *, of: int | None = None,
    project: Path | str | None = None,
) -> MergeReport:  # fmt: skip
    """Writes the outputs of a run whose shards are complete, as one run of all rows would have
    written them; `of`: how many there are, where there are several runs of today's files. Raises
    AgacError, with all that is in the way, while a shard is missing, at work or waiting (exit code
    75), or read another input than the others."""
    opened, checked, options = await made_ready(
        project_of(workflow, project), workflow, options or RunOptions()
    )
    selection = replace(options.selection(), shard=None)
    plan = make_plan(checked.workflow, checked.models, opened.root, selection, None)
    folder, manifests = await _complete(opened, plan, of)
    path = opened.root / SHARDS / MERGED / STORE.name  # knows the files that it wrote
    async with open_database(path) as database, lease_held(database, plan.workflow, time.time):
        identity = (plan.workflow, plan.hash, selection.text())
        now = time.time()
        await write(
            database, "definition_keep", plan.hash, plan.workflow, canonical(plan.body), now
        )
        where = opened.spec.shown(target_of(plan)), plan.output.include_input, outputs_text(plan)
        run = await runs.newest_run(database, *identity) or await write(
            database, "run_make", *identity, *where, None, now
        )
        await write(database, "run_retarget", *where, run)
        await write(database, "run_finish", now, run)
        record = await runs.run_record(database, run)
        summary = _added(folder, manifests)
        request = RunRequest(summary.request.input, record.selection, record.output_dir)
        summary = replace(summary, run=run, request=request, shards=len(manifests))
        exported = await export_run(
            database, record, opened.root, summary, opened.env, ShardRows(folder, manifests)
        )
    if exported.not_written:
        code = ExitCode.FAILED
    elif summary.any_row_failed:
        code = ExitCode.ROWS_FAILED
    else:
        code = ExitCode.DONE
    return MergeReport(summary, len(manifests), code, exported.files, exported.not_written)


def _added(folder: ShardFolder, manifests: Sequence[ShardManifest]) -> RunSummary:
    """Adds up the summaries of all shards. Raises AgacError where they are none."""
    try:
        return read_as(RunSummary, added([one.summary for one in manifests]))
    except (ValueError, LookupError, TypeError) as error:
        what = (
            f"{folder.remote.url}/{folder.path}/ended: the summaries of the shards cannot "
            f"be added up: {error}"
        )
        remedy = "run the shard again whose last entry there is wrong, which costs nothing"
        raise AgacError(what, remedy=remedy) from None


async def _complete(
    opened: Project, plan: Plan, of: int | None
) -> tuple[ShardFolder, list[ShardManifest]]:
    """The folder of the run, and how each of its shards ended. Raises AgacError where they cannot
    be merged."""
    remote = remote_of(opened)
    told = dict[int, ShardFolder]()
    other = set[Shard]()
    for key in await remote.folders(runs_folder(plan.workflow)):
        names = await remote.sizes(f"{runs_folder(plan.workflow)}/{key}/lease")
        shards = {one for name in names if (one := Shard.read(name.split("/")[-2], "-of-"))}
        for number in {one.of for one in shards}:
            folder = shard_folder(opened, plan, number)
            if folder.key == key:
                told[number] = folder
            else:
                other |= shards
    if of is None and len(told) > 1:
        raise UsageError(
            f"{plan.workflow} was run in {', '.join(map(str, sorted(told)))} shards",
            remedy="Add --of N.",
        )
    number = of or next(iter(told), None) or max((one.of for one in other), default=0)
    if not number:
        remedy = f"Begin with: agac run -a {plan.workflow} --shard 1/4"
        raise UsageError(f"{plan.workflow} was never run in shards", remedy=remedy)
    folder = told.get(number) or shard_folder(opened, plan, number)
    problems, manifests = await _problems(folder, number, other)
    if problems:
        again = [command for command, _ in problems if command]
        what = "; ".join(text for _, text in problems)
        if again:
            remedy = f"Run what is left, as: {again[0]}"
        else:
            remedy = "Wait for them: agac status --shards"
        error = AgacError(f"{plan.workflow} cannot be merged: {what}", remedy=remedy)
        error.exit_code = ExitCode.NOT_READY
        raise error
    return folder, manifests


async def _problems(
    folder: ShardFolder, of: int, other: set[Shard]
) -> tuple[list[tuple[str, str]], list[ShardManifest]]:
    """What is in the way of merging, each after a command that mends it (none: to wait); and how
    each shard ended."""
    states = await folder.statuses()
    manifests = await folder.manifests()
    found = list[tuple[str, str]]()
    old = await outdated(folder, manifests.values())
    for shard in (Shard(number, of) for number in range(1, of + 1)):
        state = states.get(shard.number)
        end = manifests.get(shard.number)
        why = ""
        if state is None:
            if shard in other:
                why = "ran another version of the workflow"
            else:
                why = "has not been run"
        elif state.state in ("running", "silent"):
            why = "is at work" if state.state == "running" else "shows no sign of life"
        elif end is None or not end.complete:
            if state.waits:
                why = f"waits for {state.waits}"
            else:
                why = f"stopped: {state.why or 'it was interrupted'}"
        else:
            why = old.get(shard.number, "")
        if state and state.state == "running":
            again = ""
        else:
            again = command_of(shard, folder.workflow, states)
        found += [(again, f"shard {shard} {why}")] if why else []
    return found, [manifests[number] for number in sorted(manifests)]
