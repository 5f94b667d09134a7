"""Adoption (`agac process --resume`): results of an OUTPUT that the store does not know become answers of a job, by the
ids of its rows. They are marked for ever, and answers for this job alone."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agac.api.plan import Confirm, ask
from agac.api.project import project_of, ready_workflow, selected_rows
from agac.api.status import database_path
from agac.core.errors import RowError, UsageError
from agac.core.text import cropped
from agac.core.types import Finish, Reply, Usage, counted
from agac.engine.validate import Checker
from agac.plan.plan import Selection, make_plan
from agac.plan.render import Preparer
from agac.plan.stage import PlannedStage
from agac.store.scratch import FoundAnswers
from agac.store.writer import keep_adopted, open_database

if TYPE_CHECKING:
    from agac.api.process import Job

RANGE = 4096
"""Answers in one transaction."""


async def adopt(job: Job, confirm: Confirm | None, *, dry: bool = False) -> str:
    """Adopts what fits the job: results that are not empty and pass its schema or format. Says how many there are, and
    shows some; asks first, and with `dry` keeps nothing. Raises UsageError for a line that is damaged, but for a torn
    last one, and where nobody says yes.
    """
    assert job.file is not None
    opened = project_of(job, job.root)
    checked, _ = ready_workflow(opened, job, job.of_run())
    plan = make_plan(checked.workflow, checked.models, opened.root, Selection(), None)
    (stage,), preparer, found = plan.asking, Preparer(plan.stages, plan.vars, 0), FoundAnswers()
    torn = _read(job.file, stage, found)
    for row in selected_rows(checked, Selection()):
        task = preparer.prepare(stage, preparer.view(row.data), row.id) if row.error is None else row.error
        if not isinstance(task, RowError):
            found.match(row.id, task.fingerprint)
    said = _said(found, torn=torn)
    foreign = f"{job.file.name} was not written by this job; it has {said}"
    if not found.counts()[2]:
        raise UsageError(f"nothing was adopted: {foreign}", remedy="Replace the file with --overwrite; a copy is kept.")
    if dry:
        return said
    if not job.options.yes:
        remedy = "Add --yes to adopt them, or replace the file with --overwrite."
        ask(confirm, "nothing was adopted", foreign, "Adopt them as the answers of these rows?", remedy)
    async with open_database(database_path(job.root)) as database:
        for some in found.of_rows(RANGE):
            answers = [(fingerprint, value) for _, value, fingerprint in some]
            await keep_adopted(database, job.name, job.output, answers, time.time())
    return said


def _read(file: Path, stage: PlannedStage, found: FoundAnswers) -> bool:
    """Whether the last line is torn. Raises UsageError."""
    checker = Checker(stage)
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.isspace():
                continue
            try:
                envelope = json.loads(line)
                if isinstance(row_id := envelope["id"], bool) or not isinstance(row_id, int | str):
                    raise TypeError("its `id` is no id")
                value = envelope["result"] if envelope["ok"] is True else None
                found.put(row_id, _answer(value, stage, checker))
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return True
                why = f"it has no {error}" if isinstance(error, KeyError) else error
                what = f"{file}, line {number} is not the result of a row: {why}. Nothing was adopted"
                raise UsageError(
                    what, remedy="Mend or remove the line, or replace the file with --overwrite."
                ) from None
    return False


def _answer(value: object, stage: PlannedStage, checker: Checker) -> str | None:
    """A result as the store has it, JSON; None where it is empty, or not one of the stage."""
    if value in (None, "", [], {}) or not (stage.wants_json or isinstance(value, str)):
        return None
    text = value if isinstance(value, str) and not stage.wants_json else json.dumps(value, ensure_ascii=False)
    checked = checker.check(Reply(text, Finish.STOP, Usage(), ""))
    return None if isinstance(checked, RowError) else checked.text


def _said(found: FoundAnswers, *, torn: bool) -> str:
    ids, answers, rows = found.counts()
    said = f"results of {counted(rows, 'row')} of the input that fit the job"
    more = {
        "empty, failed or unfit": ids - answers,
        "of other rows": answers - rows,
        "repeated further down, where the last line counts": found.lines - ids,
    }
    said += "".join(f"; {count:,} {what}" for what, count in more.items() if count)
    said += "; its torn last line is left out" if torn else ""
    if rows:
        common = ", ".join(f"{count:,} × {cropped(value, 60)}" for value, count in found.commonest())
        examples = next(found.of_rows(3), [])
        shown = ", ".join(f"{row_id!r}: {cropped(value, 60)}" for row_id, value, _ in examples)
        said += f". The commonest: {common}. For example {shown}"
    return said
