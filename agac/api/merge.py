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
    ShardStatus,
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
from agac.store.packs import KnownAnswers, PackedAnswer, endpoint_mark
from agac.store.writer import open_database

_log = logging.getLogger("agac.shard")


def shard_folder(opened: Project, plan: Plan, of: int) -> ShardFolder:
    """Returns the folder of a plan's run in so many shards. Raises UsageError if the project has no
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
    """Pushes the answers of a shard while it works, and takes them back if its disk was lost."""

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
        """Takes in the packs that the shard pushed and this store does not know: the answers that a
        stage of today would take."""
        pattern = re.compile(rf"{re.escape(self._marks)}/([^/]+)/([0-9a-f]{{64}})")
        marks = filter(None, map(pattern.fullmatch, await self._folder.names(self._marks)))
        pushed = [(mark[1], mark[2]) for mark in marks if mark[1] in self._folder.trust]
        await self._shared.know(pushed)
        taken = await select(self._database, "packs_known", tuple[str, str])
        checkers = [*map(Checker, plan.asking)]
        for writer, pack in pushed:
            name = f"{FOLDER}/{writer}/{pack}.pack"
            with self._shared.noting(name):
                if (writer, pack) in taken:
                    continue
                content = await self._shared.remote.read(name, packs.MAX_BYTES)
                answers = packs.unpacked(writer, pack, content, time.time())
                fit = [answer for answer in answers if self._fits(answer, checkers)]
                await packs.keep_pulled(self._database, fit, 0.0)

    def _fits(self, answer: PackedAnswer, checkers: Sequence[Checker]) -> bool:
        """True for an answer of an endpoint that the project's files name, which some stage
        takes."""
        if endpoint_mark(answer.provider, answer.base_url) not in self._shared.committed:
            return False
        return any(checker.kept(json.loads(answer.value)) is not None for checker in checkers)

    async def push(self) -> None:
        """Pushes the answers since the last time; the first time all that are not in the remote."""
        pushed = await push_since(self._database, self._opened, self._shared, self._mark)
        if pushed.kept and not self._said:
            why = (
                "they hold a secret, are over 8 MB, or came from an address that only the "
                "environment has"
            )
            _log.warning(
                "answers stay on this machine, and are paid again if its disk is lost: %s", why
            )
            self._said = True

    async def _mark(self, pack: str) -> None:
        """Notes in the remote and in the store that the shard pushed a pack."""
        await self._folder.create(f"{self._marks}/{self._writer}/{pack}", b"")
        await write(self._database, "pack_put", writer=self._writer, pack=pack)


# Merging.


@dataclass(frozen=True, slots=True)
class MergeReport(Report):
    """The outputs of a run in shards."""

    JSON_KEYS = ("**summary", "exit_code", "files", "not_written")

    record: RunSummary
    """The summary of the run, which adds up those of its shards."""
    shards: int
    """The number of its shards."""
    exit_code: ExitCode
    """The exit code of the command."""
    files: list[Path]
    """The files that were written."""
    not_written: (
        Annotated[AgacError, lambda error: {"message": error.message, "remedy": error.remedy}]
        | None
    ) = None
    """Why a table could not be written next to them."""

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
    written them; `of`: how many there are, if there are several runs of today's files. Raises
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
    """Adds up the summaries of all shards. Raises AgacError if one of them is no summary."""
    try:
        return read_as(RunSummary, added([manifest.summary for manifest in manifests]))
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
    """Returns the folder of the run, and how each of its shards ended. Raises AgacError if they
    cannot be merged."""
    folders, of_other_versions = await _folders(opened, plan)
    if of is None and len(folders) > 1:
        raise UsageError(
            f"{plan.workflow} was run in {', '.join(map(str, sorted(folders)))} shards",
            remedy="Add --of N.",
        )
    largest_other = max((shard.of for shard in of_other_versions), default=0)
    number = of or next(iter(folders), None) or largest_other
    if not number:
        remedy = f"Begin with: agac run -a {plan.workflow} --shard 1/4"
        raise UsageError(f"{plan.workflow} was never run in shards", remedy=remedy)
    folder = folders.get(number) or shard_folder(opened, plan, number)
    problems, manifests = await _problems(folder, number, of_other_versions)
    if not problems:
        return folder, manifests
    commands = [command for command, _ in problems if command]
    what = "; ".join(text for _, text in problems)
    remedy = "Wait for them: agac status --shards"
    if commands:
        remedy = f"Run what is left, as: {commands[0]}"
    error = AgacError(f"{plan.workflow} cannot be merged: {what}", remedy=remedy)
    error.exit_code = ExitCode.NOT_READY
    raise error


async def _folders(opened: Project, plan: Plan) -> tuple[dict[int, ShardFolder], set[Shard]]:
    """Returns the folders of the plan's runs, by the number of their shards; and the shards of
    other versions of the workflow."""
    remote = remote_of(opened)
    folders = dict[int, ShardFolder]()
    of_other_versions = set[Shard]()
    root = runs_folder(plan.workflow)
    for key in await remote.folders(root):
        names = await remote.sizes(f"{root}/{key}/lease")
        read = [Shard.read(name.split("/")[-2], "-of-") for name in names]
        shards = {shard for shard in read if shard}
        for number in {shard.of for shard in shards}:
            folder = shard_folder(opened, plan, number)
            if folder.key == key:
                folders[number] = folder
            else:
                of_other_versions |= shards
    return folders, of_other_versions


async def _problems(
    folder: ShardFolder, of: int, of_other_versions: set[Shard]
) -> tuple[list[tuple[str, str]], list[ShardManifest]]:
    """Returns what is in the way of merging, each after a command that solves it (empty: to wait);
    and how each shard ended."""
    states = await folder.statuses()
    manifests = await folder.manifests()
    outdated_by = await outdated(folder, manifests.values())
    problems = list[tuple[str, str]]()
    for number in range(1, of + 1):
        shard = Shard(number, of)
        state = states.get(number)
        if state is None:
            is_other = shard in of_other_versions
            why = "ran another version of the workflow" if is_other else "has not been run"
        else:
            why = _why_unfinished(state, manifests.get(number)) or outdated_by.get(number, "")
        if not why:
            continue
        command = command_of(shard, folder.workflow, states)
        if state is not None and state.state == "running":
            command = ""
        problems.append((command, f"shard {shard} {why}"))
    return problems, [manifests[number] for number in sorted(manifests)]


def _why_unfinished(state: ShardStatus, end: ShardManifest | None) -> str:
    """Tells why a shard has not finished; empty if it has."""
    if state.state == "running":
        return "is at work"
    if state.state == "silent":
        return "shows no sign of life"
    if end is not None and end.complete:
        return ""
    if state.waits:
        return f"waits for {state.waits}"
    return f"stopped: {state.why or 'it was interrupted'}"
