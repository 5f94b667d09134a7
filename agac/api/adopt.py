"""Adoption (`agac process --resume`): results of an OUTPUT that the store does not know become answers of a job, by the
ids of its rows. They are marked for ever, and answers for this job alone."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from agac.api.plan import Confirm, ask
from agac.api.project import project_of, ready_workflow, selected_rows
from agac.api.status import database_path
from agac.core.errors import Problem, RowError, UsageError, Where
from agac.core.text import cropped
from agac.core.types import Finish, Reply, Usage, counted
from agac.engine.export import PLAIN_MERGES
from agac.engine.validate import Checker
from agac.plan.plan import Selection, make_plan
from agac.plan.render import Preparer
from agac.plan.stage import PlannedStage
from agac.store.scratch import FoundAnswers
from agac.store.writer import keep_adopted, open_database

if TYPE_CHECKING:
    from agac.api.process import Job

_OVERWRITE = "replace the file with --overwrite, which keeps a copy."


async def adopt(job: Job, confirm: Confirm | None, *, dry: bool = False) -> None:
    """Adopts the results in OUTPUT that are not empty and pass the job's schema or format. Says how many there are and
    shows some, and asks first; with `dry` it only says so. Raises UsageError for a damaged line, but for a torn last
    one, and where nobody says yes."""
    options, name = job.options, job.output
    if options.fresh or options.merge not in PLAIN_MERGES or job.format != "jsonl":
        what = f"{name}: --resume adopts a jsonl file that was written without --merge, and not with --fresh"
        raise UsageError(what, remedy=f"Leave them out, or {_OVERWRITE}")
    opened = project_of(job, job.root)
    checked, _ = ready_workflow(opened, job, job.of_run())
    plan = make_plan(checked.workflow, checked.models, opened.root, Selection(), None)
    (stage,), preparer, found = plan.asking, Preparer(plan.stages, plan.vars, 0), FoundAnswers()
    torn = _read(job, stage, found)
    for row in selected_rows(checked, Selection()):
        task = preparer.prepare(stage, preparer.view(row.data), row.id) if row.error is None else row.error
        if not isinstance(task, RowError):
            found.match(row.id, task.fingerprint)
    (ids, answers, rows), common = found.told()
    told = {
        "empty, failed or unfit": ids - answers, "of other rows": answers - rows,
        "repeated further down, where the last line counts": found.lines - ids, "torn at the end": torn,
    }  # fmt: skip
    said = f"{name} has {counted(rows, 'result')} for rows of the input"
    said += "".join(f"; {count:,} {what}" for what, count in told.items() if count)
    said += "".join(f"; {count:,} × {cropped(value, 60)}" for value, count in common)
    said += "".join(f"; {row_id!r}: {cropped(value, 60)}" for row_id, _, value in next(found.of_rows(3), ()))
    if not rows:
        raise UsageError(f"nothing was adopted: {said}", remedy=f"Check --id-field and the schema, or {_OVERWRITE}")
    if not (dry or options.yes):
        ask(
            confirm, "nothing was adopted", said, "Adopt these as answers?", f"Add --yes to adopt them, or {_OVERWRITE}"
        )
    file, document, problems = job.read
    text = f"this plan is without what --resume adopts: {said}" if dry else f"adopted: {said}"
    job.read = file, document, [*problems, Problem(Where(name), text, "warning")]
    if not dry:
        async with open_database(database_path(job.root)) as database:
            for some in found.of_rows(4096):
                await keep_adopted(database, (job.name, name), [one[1:] for one in some], time.time())


def _read(job: Job, stage: PlannedStage, found: FoundAnswers) -> bool:
    """Whether the last line is torn. Raises UsageError."""
    checker = Checker(stage)
    with (job.root / job.output).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                envelope = json.loads(line)
                row_id = envelope["id"]
                if isinstance(row_id, bool) or not isinstance(row_id, int | str):
                    raise TypeError("its `id` is no id")
                found.put(row_id, _answer(envelope["result"], stage, checker) if envelope["ok"] is True else None)
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return True
                why = f"it has no {error}" if isinstance(error, KeyError) else error
                what = f"{job.output}, line {number} is not the result of a row: {why}. Nothing was adopted"
                raise UsageError(what, remedy=f"Mend or remove the line, or {_OVERWRITE}") from None
    return False


def _answer(value: object, stage: PlannedStage, checker: Checker) -> str | None:
    """A result as the store has it, JSON; None where it is empty, or not one of the stage."""
    if value in (None, "", [], {}) or not (stage.wants_json or isinstance(value, str)):
        return None
    text = value if isinstance(value, str) and not stage.wants_json else json.dumps(value, ensure_ascii=False)
    checked = checker.check(Reply(text, Finish.STOP, Usage(), ""))
    return None if isinstance(checked, RowError) else checked.text
