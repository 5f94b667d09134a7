"""Taking rows of a run up again: those that failed, also where an ordinary run leaves them, or named ones."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from agac.api.confirming import Confirm
from agac.api.ending import RunReport
from agac.api.options import RunOptions, position_of
from agac.api.project import open_project
from agac.api.reading import database_path
from agac.api.reports import find_rows, find_run
from agac.api.running import invoke
from agac.api.watching import Watch
from agac.core.errors import ErrorType, UsageError
from agac.core.keys import canonical
from agac.core.report import Report
from agac.engine.scope import Retry
from agac.plan.plan import Plan
from agac.spec.root import find_project
from agac.store import runs
from agac.store.db import Database, open_for_reading
from agac.store.history import RowRecord
from agac.store.rows import chosen_counts


@dataclass(frozen=True, slots=True)
class RetryChoice(Report):
    """What a retry would take up. `by_error` counts rows by where and how they failed; `done` are done ones, `open`
    ones the same retry opened before it was broken off.

    `calls_at_least` counts one call for each row and stage that is surely asked.
    """

    run: int
    workflow: str
    rows: int
    done: int
    open: int
    by_error: list[dict[str, Any]]
    stages: list[str]
    calls_at_least: int


def retry_choice(run: int | str, choice: Retry, *, project: Path | str | None = None) -> RetryChoice:
    """What `retry` with this choice would take up. Reads the store only."""
    root = find_project(Path.cwd(), Path(project) if project is not None else None)
    return asyncio.run(_chosen(root, run, choice))[0]


def retry(
    run: int | str,
    choice: Retry,
    options: RunOptions | None = None,
    *,
    project: Path | str | None = None,
    watch: Watch | None = None,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """Takes the chosen rows of a run up again. `options` may bound it (`budget`, `max_errors`, `concurrency`)
    and say its `run_mode`.

    Raises UsageError when nothing is chosen, and when the workflow's files no longer are what the run was made from.
    """
    return asyncio.run(_retry(run, choice, options or RunOptions(), project, watch, confirm, handle_signals))


async def _retry(
    run: int | str,
    choice: Retry,
    options: RunOptions,
    project: Path | str | None,
    watch: Watch | None,
    confirm: Confirm | None,
    handle_signals: bool,
) -> RunReport:
    opened = open_project(project)
    found, record, due = await _chosen(opened.root, run, choice)
    if not found.rows and not _goes_on(record, choice):
        raise UsageError(
            f"nothing of run {found.run} is to be tried again",
            remedy=f"See what failed with: agac inspect {found.run}. Ask done rows anew with --from STAGE.",
        )
    given: dict[str, Any] = record.invocation.body.get("given", {}) if record.invocation else {}
    merged = replace(RunOptions.of_given(given), budget=options.budget, max_errors=options.max_errors, yes=options.yes)
    if options.concurrency is not None:
        merged = replace(merged, concurrency=options.concurrency)
    if options.run_mode is not None:
        merged = replace(merged, run_mode=options.run_mode)

    async def agree(database: Database, plan: Plan) -> None:
        if canonical(await runs.definition_of(database, record.id)) != canonical(plan.body):
            raise UsageError(
                f"run {record.id} was made from another version of workflow {record.workflow!r}",
                remedy=f"`agac run -a {record.workflow}` runs the present one and reuses what still holds.",
            )

    return await invoke(
        opened,
        record.workflow,
        merged,
        retry=due,
        chosen=found.rows,
        agree=agree,
        confirm=confirm,
        watch=watch,
        handle_signals=handle_signals,
    )


def _since(record: runs.RunRecord, choice: Retry) -> float:
    """From when on answers count: from now, or from the beginning of the same retry that did not come to its end."""
    if _goes_on(record, choice) and record.invocation:
        return float(record.invocation.body["retry"]["since"])
    return time.time()


def _goes_on(record: runs.RunRecord, choice: Retry) -> bool:
    """Whether the run's last invocation was the same retry, and did not come to its end."""
    last = record.invocation
    earlier = last.body.get("retry") if last else None
    return bool(last and earlier and last.exit_code not in (0, 3) and choice.same_choice(earlier))


async def _chosen(root: Path, run: int | str, choice: Retry) -> tuple[RetryChoice, runs.RunRecord, Retry]:
    async with open_for_reading(database_path(root)) as database:
        record = await find_run(database, None, run)
        assert database is not None
        bodies = (await runs.definition_of(database, record.id))["stages"]
        stages = {stage["name"]: int(stage.get("replicas", 1)) for stage in bodies}
        _check(choice, list(stages))
        due = replace(choice, run=record.id, since=_since(record, choice))
        counts = await chosen_counts(database, record.id, due)
        if choice.rows:
            found = await find_rows(database, record.id, choice.rows)
            if not counts:
                _refuse_rows(record, choice, found)
    return _as_choice(record, choice, stages, counts), record, due


def _refuse_rows(record: runs.RunRecord, choice: Retry, found: Sequence[RowRecord]) -> None:
    """Says that the named rows are there, and that none of them failed so."""
    ids = list(dict.fromkeys(row.id for row in found))
    filtered = " in that way" if choice.stage or choice.error else ""
    first = shlex.join(["--", str(ids[0])] if str(ids[0]).startswith("-") else [str(ids[0])])
    raise UsageError(
        f"row{'' if len(ids) == 1 else 's'} {', '.join(map(repr, ids))} of run {record.id} did not fail{filtered}",
        remedy=f"Look at it with: agac inspect {record.id} {first}. Ask done rows anew with --from STAGE.",
    )


def _as_choice(
    record: runs.RunRecord,
    choice: Retry,
    stages: Mapping[str, int],
    counts: Sequence[tuple[str | None, str | None, int]],
) -> RetryChoice:
    """`stages`: how often each is asked of a row, by name."""
    rows = sum(count for _, _, count in counts)
    done = sum(count for stage, _, count in counts if stage is None)
    names = list(stages)
    again = names[names.index(choice.from_stage) :] if choice.from_stage else []
    at_least = rows * sum(stages[name] for name in again) if again else rows - done
    opened = sum(count for stage, _, count in counts if stage == "")
    by_error = [{"stage": s, "type": e, "rows": n} for s, e, n in counts if s]
    return RetryChoice(record.id, record.workflow, rows, done, opened, by_error, again, at_least)


def _check(choice: Retry, stages: list[str]) -> None:
    if choice.stage is not None:
        position_of(choice.stage, stages, "--stage")
    if choice.from_stage is not None:
        position_of(choice.from_stage, stages, "--from")
    if choice.error is not None and choice.error not in set(ErrorType):
        near = get_close_matches(choice.error, list(ErrorType), 1)
        hint = f"Did you mean {near[0]!s}?" if near else f"The kinds are: {', '.join(ErrorType)}."
        raise UsageError(f"--error {choice.error}: there is no such kind of error", remedy=hint)
