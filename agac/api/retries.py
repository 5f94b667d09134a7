"""`agac retry`: takes rows of a run up again: those that failed, also where an ordinary run leaves
them, or named ones."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agac.api.plan import Confirm
from agac.api.prepare import InvocationRequest
from agac.api.project import open_project
from agac.api.report import RunReport
from agac.api.run import RunInterface, invoke
from agac.api.run_options import RunOptions
from agac.api.status import find_rows, given_flags, go_on, position_of, stored_run
from agac.api.sync import blocking, calling
from agac.api.watched_run import Watch
from agac.core.errors import ErrorType, UsageError
from agac.core.text import row_command
from agac.core.types import Report
from agac.engine.invocation import Retry
from agac.spec.paths import project_root
from agac.store import runs
from agac.store.rows import chosen_counts


@dataclass(frozen=True, slots=True)
class RetryChoice(Report):
    """What a retry would take up. `by_error` counts rows by where and how they failed; `done` are
    done ones, `open` ones the same retry opened before it was broken off. `calls_at_least` counts
    one call for each row and stage that is surely asked. `go_on` is the command that goes on with
    all rows of the run."""

    run: int
    workflow: str
    rows: int
    done: int
    open: int
    by_error: list[dict[str, Any]]
    stages: list[str]
    calls_at_least: int
    go_on: str


@blocking
async def retry_choice(
    run: int | str, choice: Retry, *, project: Path | str | None = None
) -> RetryChoice:
    """What `retry` with this choice would take up. Reads the store only."""
    found, _, _ = await _chosen(project_root(project), run, choice)
    return found


@calling
async def retry(
    run: int | str,
    choice: Retry,
    options: RunOptions | None = None,
    *,
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
) -> RunReport:
    """Takes the chosen rows of a run up again. `options` may bound it (`budget`, `max_errors`,
    `concurrency`) and say its `run_mode`. Raises UsageError when nothing is chosen, and when the
    workflow's files changed since."""
    opened = open_project(project)
    found, record, due = await _chosen(opened.root, run, choice)
    if not found.rows and _begun(record, choice) is None:
        raise UsageError(
            f"nothing of run {found.run} can be retried",
            remedy=(
                f"See what failed with: agac inspect {found.run}. Rerun done rows with "
                "--from STAGE."
            ),
        )
    if given_flags(record).get("in_python"):
        maker = "by `agac process`" if "job" in given_flags(record) else "in Python"
        what = f"the workflow of run {record.id} was made {maker}"
        raise UsageError(
            what, remedy=f"Run it from there, which asks failed rows again: {go_on(record)}"
        )
    options = options or RunOptions()
    before = RunOptions.of_given(given_flags(record))
    merged = replace(
        before, budget=options.budget, max_errors=options.max_errors, yes=options.yes,
        concurrency=before.concurrency if options.concurrency is None else options.concurrency,
        run_mode=before.run_mode if options.run_mode is None else options.run_mode,
    )  # fmt: skip
    ui = RunInterface(confirm=confirm, progress=progress, handle_signals=handle_signals)
    return await invoke(opened, record.workflow, merged, InvocationRequest(retry=due), ui)


def _begun(record: runs.RunRecord, choice: Retry) -> float | None:
    """When the same retry began, if it was the run's last invocation and did not come to its
    end."""
    last = record.invocation
    earlier = last.body.get("retry") if last else None
    if last and earlier and last.exit_code not in (0, 3) and choice.same_choice(earlier):
        return float(earlier["since"])
    return None


async def _chosen(
    root: Path, run: int | str, choice: Retry
) -> tuple[RetryChoice, runs.RunRecord, Retry]:
    """What the retry takes up, its run, and the retry that the engine is given: answers count from
    now on, or from the beginning of the same retry that did not come to its end."""
    async with stored_run(root, run) as (database, record):
        bodies = (await runs.definition_of(database, record.id))["stages"]
        replicas = {str(stage["name"]): int(stage.get("replicas", 1)) for stage in bodies}
        names = list(replicas)
        flags = (
            ("--stage", choice.stage, names, "stage"),
            ("--from", choice.from_stage, names, "stage"),
        )
        for flag, name, known, what in (
            *flags,
            ("--error", choice.error, list(map(str, ErrorType)), "kind"),
        ):
            if name is not None:
                position_of(name, known, flag, what)
        begun = _begun(record, choice)
        due = replace(choice, run=record.id, since=time.time() if begun is None else begun)
        counts = await chosen_counts(database, record.id, due)
        if choice.rows:
            ids = list(
                dict.fromkeys(row.id for row in await find_rows(database, record.id, choice.rows))
            )
            if not counts:
                filtered = " in that way" if choice.stage or choice.error else ""
                raise UsageError(
                    f"row{'' if len(ids) == 1 else 's'} {', '.join(map(repr, ids))} of run "
                    f"{record.id} did not fail{filtered}",
                    remedy=(
                        f"Look at it with: {row_command(record.id, ids[0])}. Rerun done "
                        "rows with --from STAGE."
                    ),
                )
    rows = sum(count for _, _, count in counts)
    done = sum(count for stage, _, count in counts if stage is None)
    again = names[names.index(choice.from_stage) :] if choice.from_stage else []
    found = RetryChoice(
        record.id,
        record.workflow,
        rows,
        done,
        open=sum(count for stage, _, count in counts if stage == ""),
        by_error=[
            {"stage": stage, "type": error, "rows": count}
            for stage, error, count in counts
            if stage
        ],
        stages=again,
        calls_at_least=rows * sum(replicas[name] for name in again) if again else rows - done,
        go_on=go_on(record),
    )
    return found, record, due
