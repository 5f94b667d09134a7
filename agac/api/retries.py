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
from agac.core.errors import ErrorType, ExitCode, UsageError
from agac.core.text import row_command
from agac.core.types import Report, RowId
from agac.engine.invocation import Retry
from agac.spec.paths import project_root
from agac.store import runs
from agac.store.rows import chosen_counts


@dataclass(frozen=True, slots=True)
class RetryChoice(Report):
    """The rows that a retry would take up."""

    run: int
    """The run's number."""
    workflow: str
    """The workflow's name."""
    rows: int
    """All rows of the retry."""
    done: int
    """Those that are done."""
    open: int
    """Those that the same retry opened before it was interrupted."""
    by_error: list[dict[str, Any]]
    """The failed ones, counted by where and how they failed."""
    stages: list[str]
    """The stages that are run again."""
    calls_at_least: int
    """Calls: one for each row and stage that is certainly asked."""
    go_on: str
    """The command that continues with all rows of the run."""


@blocking
async def retry_choice(
    run: int | str, choice: Retry, *, project: Path | str | None = None
) -> RetryChoice:
    """Counts what `retry` with this choice would take up. Reads only the store."""
    report, _, _ = await _chosen(project_root(project), run, choice)
    return report


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
    `concurrency`) and set its `run_mode`. Raises UsageError if nothing is chosen, and if the
    workflow's files changed since."""
    opened = open_project(project)
    report, record, due = await _chosen(opened.root, run, choice)
    if not report.rows and _begun(record, choice) is None:
        raise UsageError(
            f"nothing of run {report.run} can be retried",
            remedy=(
                f"See what failed with: agac inspect {report.run}. Rerun done rows with "
                "--from STAGE."
            ),
        )
    flags = given_flags(record)
    if flags.get("in_python"):
        maker = "by `agac process`" if "job" in flags else "in Python"
        what = f"the workflow of run {record.id} was made {maker}"
        raise UsageError(
            what, remedy=f"Run it from there, which asks failed rows again: {go_on(record)}"
        )
    merged = _merged(RunOptions.of_given(flags), options or RunOptions())
    ui = RunInterface(confirm=confirm, progress=progress, handle_signals=handle_signals)
    return await invoke(opened, record.workflow, merged, InvocationRequest(retry=due), ui)


def _merged(before: RunOptions, options: RunOptions) -> RunOptions:
    """Returns the options of a run with those that a retry sets."""
    merged = replace(before, budget=options.budget, max_errors=options.max_errors, yes=options.yes)
    if options.concurrency is not None:
        merged = replace(merged, concurrency=options.concurrency)
    if options.run_mode is not None:
        merged = replace(merged, run_mode=options.run_mode)
    return merged


def _begun(record: runs.RunRecord, choice: Retry) -> float | None:
    """Returns when the same retry began, if it was the run's last invocation and did not come to
    its end."""
    last = record.invocation
    if last is None or last.exit_code in (ExitCode.DONE, ExitCode.ROWS_FAILED):
        return None
    earlier = last.body.get("retry")
    if earlier and choice.same_choice(earlier):
        return float(earlier["since"])
    return None


async def _chosen(
    root: Path, run: int | str, choice: Retry
) -> tuple[RetryChoice, runs.RunRecord, Retry]:
    """Returns what the retry takes up, its run, and the retry that the engine is given: it uses
    answers from now on, or from the beginning of the same retry if that did not come to its
    end."""
    async with stored_run(root, run) as (database, record):
        bodies = (await runs.definition_of(database, record.id))["stages"]
        replicas = {str(stage["name"]): int(stage.get("replicas", 1)) for stage in bodies}
        _refuse_unknown_names(choice, list(replicas))
        begun = _begun(record, choice)
        due = replace(choice, run=record.id, since=time.time() if begun is None else begun)
        counts = await chosen_counts(database, record.id, due)
        if choice.rows:
            named = await find_rows(database, record.id, choice.rows)
            if not counts:
                ids = list(dict.fromkeys(row.id for row in named))
                raise _did_not_fail(record.id, ids, choice)
    rows = sum(count for _, _, count in counts)
    done = sum(count for stage, _, count in counts if stage is None)
    stages = list(replicas)
    again = stages[stages.index(choice.from_stage) :] if choice.from_stage else []
    calls = rows * sum(replicas[name] for name in again) if again else rows - done
    report = RetryChoice(
        run=record.id,
        workflow=record.workflow,
        rows=rows,
        done=done,
        open=sum(count for stage, _, count in counts if stage == ""),
        by_error=[
            {"stage": stage, "type": error, "rows": count}
            for stage, error, count in counts
            if stage
        ],
        stages=again,
        calls_at_least=calls,
        go_on=go_on(record),
    )
    return report, record, due


def _refuse_unknown_names(choice: Retry, stages: list[str]) -> None:
    """Raises UsageError for a stage or a kind of error that does not exist."""
    if choice.stage is not None:
        position_of(choice.stage, stages, "--stage")
    if choice.from_stage is not None:
        position_of(choice.from_stage, stages, "--from")
    if choice.error is not None:
        position_of(choice.error, list(map(str, ErrorType)), "--error", "kind")


def _did_not_fail(run: int, ids: list[RowId], choice: Retry) -> UsageError:
    """Returns the error for named rows of which none can be retried."""
    rows = f"row{'' if len(ids) == 1 else 's'} {', '.join(map(repr, ids))}"
    filtered = " in that way" if choice.stage or choice.error else ""
    return UsageError(
        f"{rows} of run {run} did not fail{filtered}",
        remedy=f"Look at it with: {row_command(run, ids[0])}. Rerun done rows with --from STAGE.",
    )
