"""Adoption (`agac process --resume`): results of an OUTPUT that the store does not know become answers of a job, by the
ids of its rows. They are marked for ever, and answers for this job alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from agac.api.job import Job
from agac.api.plan import Confirm, ask
from agac.api.project import project_of, ready_workflow
from agac.api.status import database_path
from agac.core.errors import Problem, RowError, UsageError, Where
from agac.core.text import cropped, plain
from agac.core.types import RowId, counted
from agac.engine.export import PLAIN_MERGES
from agac.engine.validate import Checker
from agac.plan.plan import Selection, make_plan
from agac.plan.render import Preparer
from agac.plan.stage import PlannedStage
from agac.store.writer import found_answers, keep_found, open_database

_OVERWRITE = "replace the file with --overwrite, which keeps a copy."


async def adopt(job: Job, confirm: Confirm | None, *, dry: bool = False) -> None:
    """Adopts the results in OUTPUT that are not empty and pass the job's schema or format. Says how many there are and
    shows some, and asks first; with `dry` it only says so. Raises UsageError for damaged lines, and without a yes."""
    options, name = job.options, job.output
    if options.fresh or options.merge not in PLAIN_MERGES or job.format != "jsonl":
        what = f"{name}: --resume adopts a jsonl file that was written without --merge, and not with --fresh"
        raise UsageError(what, remedy=f"Leave them out, or {_OVERWRITE}")
    opened, torn = project_of(job, job.root), list[bytes]()
    checked, _ = ready_workflow(opened, job, job.of_run())
    plan = make_plan(checked.workflow, checked.models, opened.root, Selection(), None)
    (stage,), preparer, rows = plan.asking, Preparer(plan.stages, plan.vars, 0), checked.rows(Selection())
    if stage.reuse == "never":
        raise UsageError(f"{name}: `reuse: never` of agac.yml adopts nothing either", remedy="Remove it.")
    tasks = ((preparer.prepare(stage, preparer.view(row.data), row.id), row.id) for row in rows if row.error is None)
    prints = ((task.fingerprint, row_id) for task, row_id in tasks if not isinstance(task, RowError))
    async with open_database(database_path(job.root)) as database:
        (ids, fit, of_rows, repeated), common, first = await found_answers(database, _lines(job, stage, torn), prints)
        told = {
            "empty, failed or unfit": ids - fit, "of other rows": fit - of_rows,
            "repeated further down, where the last line counts": repeated, "torn at the end": len(torn),
        }  # fmt: skip
        said = f"{name} has {counted(of_rows, 'result')} for rows of the input"
        said += "".join(f"; {count:,} {what}" for what, count in told.items() if count)
        often = ", ".join(f"{count:,} × {cropped(plain(value), 60)}" for value, count in common)
        shown = ", ".join(f"{row_id!r}: {cropped(plain(value), 60)}" for row_id, value in first)
        said += f"; the commonest: {often}; for example {shown}" if first else ""
        if not of_rows:
            remedy = f"Check --id-field and the schema, or {_OVERWRITE}"
            raise UsageError(f"nothing was adopted: {said}", remedy=remedy)
        if not (dry or options.yes):
            remedy = f"Add --yes to adopt them, or {_OVERWRITE}"
            ask(confirm, "nothing was adopted", said, "Adopt these as answers?", remedy)
        if not dry:
            await keep_found(database, job.name, name, time.time())
    file, document, problems = job.read
    text = f"this plan is without what --resume adopts: {said}" if dry else f"adopted: {said}"
    job.read = file, document, [*problems, Problem(Where(name), text, "warning")]


def _lines(job: Job, stage: PlannedStage, torn: list[bytes]) -> Iterator[tuple[RowId, str | None]]:
    """The id and the answer of each line, but for a last one that is `torn`. Raises UsageError for others."""
    checker = Checker(stage)
    with (job.root / job.output).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                envelope = json.loads(line)
                row_id = envelope["id"]
                fits = row_id.encode() if isinstance(row_id, str) else type(row_id) is int and row_id.bit_length() < 64
                if not fits:
                    raise TypeError("its `id` is no id")
                empty = envelope["result"] in (None, "", [], {}) or envelope["ok"] is not True
                answer = None if empty else checker.kept(envelope["result"])
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return torn.append(line)
                why = f"it has no {error}" if isinstance(error, KeyError) else error
                what = f"{job.output}, line {number} is not the result of a row: {why}. Nothing was adopted"
                raise UsageError(what, remedy=f"Mend or remove the line, or {_OVERWRITE}") from None
            yield row_id, answer
