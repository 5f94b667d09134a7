"""What a person should know before a run, and what ends a run before any call: a plan and a run
say the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agac.api.checked_workflow import CheckedWorkflow
from agac.api.project import Project
from agac.api.status import shard_folders
from agac.core.errors import AgacError, Problem, UsageError, Where
from agac.core.keys import digest, is_job
from agac.core.types import Row, counted, dollars
from agac.engine.forecast.baseline_run import meant_before
from agac.engine.forecast.forecasts import PlanReport
from agac.engine.walk.input_rows import LeftRows, left_rows, moved_rows
from agac.plan.plan import Plan
from agac.plan.run_settings import remote_of
from agac.plan.stage import AnyStage
from agac.spec.paths import STORE, Refused, RemoteContent, home_of
from agac.spec.workflow import Workflow
from agac.store import runs
from agac.store.db import Database

NOT_RECORDED = "answers of {} are reused, and no calls recorded for them; --fresh records them all"

Rows = Callable[[], Iterator[Row]]
"""Reads the selected rows anew."""


async def warnings_before(
    database: Database, opened: Project, checked: CheckedWorkflow, plan: Plan, *, ask: bool = False
) -> list[Problem]:
    """Lists warnings about what runs used before, and where: the remote, and shards. `ask` is as
    in `remote_moves`."""
    warnings = await remote_moves(database, opened, checked.workflow, ask=ask)
    if opened.state == opened.root:
        warnings += await _shards_here(database, opened, plan)
    return warnings


async def _shards_here(database: Database, opened: Project, plan: Plan) -> list[Problem]:
    """A warning before the first whole run of a workflow in a project whose rows may have been
    paid in shards."""
    if plan.selection.shard is not None or is_job(plan.workflow):
        return []
    folders = shard_folders((opened.root / STORE).parent)
    if not folders or await runs.run_ids(database, plan.workflow):
        return []
    what = (
        f"shards of this project have stores of their own ({folders[0].parent}): no answer "
        "of theirs is used here; "
    )
    return [
        Problem(
            plan.input.where,
            f"{what}`agac merge -a {plan.workflow}` writes what they made",
            "warning",
        )
    ]


async def compare_input(
    database: Database | None, plan: Plan, rows: Rows, root: Path
) -> tuple[LeftRows | None, str]:
    """Which rows with results left the input, and what is to be said of it: nothing while half of
    them are there. Raises UsageError where the input has no rows any more, and they may not all
    leave."""
    # a row run keeps the file as it was, whatever left the input
    if plan.output.places is not None:
        told = database is not None and home_of(root) != root
        return None, await moved_rows(database, plan, rows) if told and database else ""
    folder = plan.output.dir.relative_to(root).as_posix()
    try:
        found = await left_rows(database, plan, rows, plan.output.dir)
    except AgacError:  # the run itself meets what cannot be read, and says it
        return None, ""
    if found is not None and found.empty and not plan.input.allow_empty:
        if found.rows:
            held = f"the results of {counted(found.rows, 'row')}"
        else:
            held = "results"
        raise UsageError(
            (
                f"{plan.input.shown}: the input has no rows, and {folder} holds {held}: nothing "
                "is replaced"
            ),
            remedy="Put the rows back, then run again. If the input is meant to be empty, set "
            f"`input: {{allow_empty: true}}` in {plan.input.where.file}.",
        )
    if found is None or not found.most_left:
        return found, ""
    return found, (
        f"{found.left:,} of the {found.rows:,} rows with results in {folder} are no longer in the "
        "input. Those files stay beside the new ones, as results.previous.jsonl and so on, until "
        "a run again has half of the rows"
    )


# Short names of models that moved: what one meant in a run's definition, and what it means now.


async def moved_names(database: Database, workflow: Workflow, plan: Plan) -> list[Problem]:
    """Warns of each short name that the workflow's last run understood otherwise: its rows are
    asked again. A plan says it of each stage."""
    if not any(stage.ref and stage.ref.written for stage in plan.asking):
        return []
    last = next(iter(await runs.run_ids(database, workflow.name)), None)
    if last is None:
        return []
    definition = await runs.definition_of(database, last)
    return [
        Problem(
            spec.at("model"),
            f"{stage.ref.written} meant {meant} in run {last} and means {stage.ref.meaning} now: "
            f"its rows are run again; to keep the answers write {meant}",
            "warning",
        )
        for spec, stage in zip(workflow.asking, plan.asking, strict=True)
        if stage.ref is not None and (meant := meant_before(stage, definition)) is not None
    ]


# Remote content that is not what it was: a prompt, a schema, a card, the rows.


async def remote_moves(
    database: Database, opened: Project, workflow: Workflow, *, ask: bool = False
) -> list[Problem]:
    """Warns of all remote content that is not what the workflow's last run used. Where a run keeps
    to that, it warns of this alone; with `ask` the hosts are asked, and it warns of all that has
    changed there, as far as they can be reached."""
    if not workflow.remote:
        return []
    last = next(iter(await runs.run_ids(database, workflow.name)), None)
    if last is None:
        return []
    used = _versions(remote_of(await runs.run_settings_of(database, last), opened.root))
    now = _versions(workflow.remote)
    goes_on = ""
    if opened.remote.pinned and not ask:
        message = (
            f"run {last} goes on with the remote content that it began with; --refetch "
            "takes it as it is now"
        )
        return [Problem(Where(workflow.file), message, "warning")]
    if opened.remote.pinned:
        fetch = replace(opened.remote, pinned=()).fetch
        for what, reference in now:
            with suppress(Refused):
                now |= _versions([replace(one, what=what) for one in fetch(reference, what)])
        goes_on = (
            f"; run {last} goes on with what it began with, and --refetch takes it as it is now"
        )
    message = f"the remote {{}} changed since run {last}: {{}} ({{}} → {{}}){goes_on}"
    moved = [
        (*key, used[key], version)
        for key, version in now.items()
        if used.get(key, version) != version
    ]
    return [Problem(Where(workflow.file), message.format(*one), "warning") for one in moved]


def _versions(contents: Iterable[RemoteContent]) -> dict[tuple[str, str], str]:
    """What stands for the content of each reference, for people: the beginning of its hash, of
    several files of all."""
    hashes: dict[tuple[str, str], list[str]] = {}
    for one in contents:
        hashes.setdefault((one.what, one.reference), []).append(one.hash)
    return {
        key: (found[0] if len(found) == 1 else digest("".join(found)).hex())[:12]
        for key, found in hashes.items()
    }


# What ends a run before any call. A plan warns of it.


def run_would_end(error: UsageError, where: Where) -> Problem:
    """Returns the warning of a plan about an error with which the run would end."""
    text = f"the run would end with exit code 2: {error.message}. {error.remedy}"
    return Problem(where, text, "warning")


def refusal_of_lost_store(
    what: str, workflow: str, report: PlanReport, *, by_input: bool = True
) -> UsageError | None:
    """Returns the error of a run with a store that is not the one of its results, or None if the
    run makes no call. `what` says what happened to the store. `by_input`: the run takes rows of its
    input."""
    if not report.calls:
        return None
    again = "the same command and" if by_input else f"`agac run -a {workflow}` with"
    about = "" if report.exact else "about "
    calls = counted(report.calls, "call")
    cost = ""
    if report.usd is not None:
        simulated = any(stage.simulated for stage in report.stages if stage.run)
        cost = f", {dollars(report.usd, simulated=simulated)}"
    return UsageError(
        f"no calls were made: {what}. With this store {about}{calls} would be made{cost}",
        remedy="Restore the store: put it, or a copy of it (`agac backup` makes them), in its "
        "place. If you just did (a copy is older by nature), or if it is gone for good, continue "
        f"with {again} --accept-store: those calls are made and paid again. `--fresh` runs "
        "everything again.",
    )


def not_recorded(stages: Iterable[AnyStage], reused: Collection[str]) -> str:
    """Returns a note on stages that record the calls of their tools, where answers are `reused`:
    nothing is recorded for these. Empty if there are none."""
    names = [
        stage.name for stage in stages if stage.settings.tooling.record and stage.name in reused
    ]
    return NOT_RECORDED.format(", ".join(names)) if names else ""
