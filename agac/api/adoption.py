"""Results from elsewhere (`agac process --resume`): lines of an OUTPUT that the store does not
know become answers of the job, if it is sure which row each is of."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from agac.api.job import Job
from agac.api.plan import Confirm, ask
from agac.api.project import project_of
from agac.api.ready_workflow import ready_workflow
from agac.api.status import database_path
from agac.core.errors import Problem, RowError, UsageError, Where
from agac.core.text import cropped, plain
from agac.core.types import JSONValue, Message, counted
from agac.data.json_formats import encode
from agac.engine.ask.validate import Checker
from agac.engine.output.run_outputs import PLAIN_MERGES
from agac.plan.plan import Plan, Selection, make_plan
from agac.plan.render import Preparer
from agac.plan.stage import PlannedStage
from agac.store.found_answers import FoundLine, MatchingRow, found_answers, keep_found
from agac.store.writer import open_database

_COPIED = "replace the file with --overwrite, which keeps a copy."


async def adopt(job: Job, confirm: Confirm | None, *, dry: bool = False) -> None:
    """Adopts the results in OUTPUT that are not empty and pass the job's schema or format. Says
    how many there are and shows some, and asks first; with `dry` it only says so. Raises
    UsageError for damaged lines, where rows have no ids but their numbers, and without a yes."""
    options = job.options
    name = job.output
    if options.fresh or options.merge not in PLAIN_MERGES or job.format != "jsonl":
        what = (
            f"{name}: --resume adopts a jsonl file that was written without --merge, and "
            "not with --fresh"
        )
        raise UsageError(what, remedy=f"Leave them out, or {_COPIED}")
    opened = project_of(job, job.root)
    torn = list[bytes]()
    checked, _ = ready_workflow(opened, job, job.of_run())
    plan = make_plan(checked.workflow, checked.models, opened.root, Selection(), None)
    if plan.input.id_field is None:
        what = (
            f"{name}: --resume finds the row of a result by its id, and these rows only "
            "have numbers"
        )
        remedy = (
            "Programs count rows in different ways: name the field with the ids with "
            f"--id-field, or {_COPIED}"
        )
        raise UsageError(f"nothing was adopted. {what}", remedy=remedy)
    (stage,) = plan.asking
    if stage.reuse == "never":
        raise UsageError(
            f"{name}: `reuse: never` of agac.yml adopts nothing either", remedy="Remove it."
        )
    rows = _matching_rows(plan, stage, checked.rows(Selection()))
    async with open_database(database_path(job.root)) as database:
        found, common, first = await found_answers(database, _lines(job, stage, torn), rows)
        refused = found.other_input + found.row_numbers
        numbered = f"with row numbers for ids, which are not values of {plan.input.id_field!r}"
        told = {
            "empty, failed or unfit": found.ids - found.answers,
            "of other rows": found.answers - found.of_rows - refused,
            "with an `input` that is not the row's": found.other_input,
            numbered: found.row_numbers,
            "repeated further down, where the last line counts": found.repeated,
            "torn at the end": len(torn),
        }
        said = f"{name} has {counted(found.of_rows, 'result')} for rows of the input"
        said += "".join(f"; {count:,} {what}" for what, count in told.items() if count)
        often = ", ".join(f"{count:,} × {cropped(plain(value), 60)}" for value, count in common)
        shown = ", ".join(f"{row_id!r}: {cropped(plain(value), 60)}" for row_id, value in first)
        said += f"; the commonest: {often}; for example {shown}" if first else ""
        if not found.of_rows:
            remedy = f"Check --id-field and the schema, or {_COPIED}"
            raise UsageError(f"nothing was adopted: {said}", remedy=remedy)
        if not (dry or options.yes):
            remedy = f"Add --yes to adopt them, or {_COPIED}"
            ask(confirm, "nothing was adopted", said, "Adopt these as answers?", remedy)
        if not dry:
            await keep_found(database, job.name, name, time.time())
    file, document, problems = job.read
    if dry:
        text = f"this plan is without what --resume adopts: {said}"
    else:
        text = f"adopted: {said}"
    job.read = file, document, [*problems, Problem(Where(name), text, "warning")]


def _lines(job: Job, stage: PlannedStage, torn: list[bytes]) -> Iterator[FoundLine]:
    """The lines of OUTPUT, without a last one that is `torn`. Raises UsageError for other
    damage."""
    checker = Checker(stage)
    with (job.root / job.output).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                found = _line(json.loads(line), checker)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return torn.append(line)
                why = f"it has no {error}" if isinstance(error, KeyError) else error
                what = (
                    f"{job.output}, line {number} is not the result of a row: {why}. "
                    "Nothing was adopted"
                )
                raise UsageError(what, remedy=f"Mend or remove the line, or {_COPIED}") from None
            yield found


def _line(envelope: Any, checker: Checker) -> FoundLine:
    """One line. Raises ValueError, TypeError or KeyError where it is not the result of a row."""
    row_id = envelope["id"]
    row_number = envelope.get("row_number")
    fits = row_id.encode() if isinstance(row_id, str) else _is_integer(row_id)
    if not fits:
        raise TypeError("its `id` is no id")
    empty = envelope["result"] in (None, "", [], {}) or envelope["ok"] is not True
    answer = None if empty else checker.kept(envelope["result"])
    about = envelope.get("input")
    return FoundLine(
        str(row_id),
        answer,
        number=row_id if isinstance(row_id, int) else None,
        row_number=row_number if _is_integer(row_number) else None,
        input=None if about is None else json.dumps(about),
    )


def _is_integer(value: object) -> bool:
    """True for a whole number that the store can hold."""
    return type(value) is int and value.bit_length() < 64


def _matching_rows(plan: Plan, stage: PlannedStage, rows: Iterator[Any]) -> Iterator[MatchingRow]:
    """The rows of the input that can be asked, with the fingerprints of what they are asked now."""
    preparer = Preparer(plan.stages, plan.vars, 0)
    for row in rows:
        if row.error is not None:
            continue
        task = preparer.prepare(stage, preparer.view(row.data), row.id)
        if not isinstance(task, RowError):
            confirms = partial(_confirms, row.data or {}, task.messages)
            yield MatchingRow(row.id, row.ordinal, task.fingerprint, confirms)


# Whether the `input` of a line is the row of the input with the same id.


def _confirms(
    row: Mapping[str, JSONValue], messages: tuple[Message, ...], text: str
) -> bool | None:
    """Whether the `input` of a line, as JSON, is this row: the fields that both have are equal, or
    it is a text that is the value of a field or the prompt. None where nothing can be compared."""
    about: JSONValue = json.loads(text)
    if isinstance(about, dict):
        both = about.keys() & row.keys()
        if both:
            return all(_is_same(about[name], row[name]) for name in both)
        return None
    texts = [message.text for message in messages]
    return any(_is_same(about, value) for value in (*row.values(), *texts))


def _is_same(value: JSONValue, other: JSONValue) -> bool:
    """True if both are the same value, whatever type a program gave to the text of a field: `3`,
    `3.0` and `"3"`."""
    if value in (None, "") or other in (None, ""):
        return value in (None, "") and other in (None, "")
    return value == other or _as_read(value) == _as_read(other)


def _as_read(value: JSONValue) -> str:
    """The value as JSON, with texts that are JSON read first."""
    if isinstance(value, str):
        try:
            value = json.loads(
                value.strip().lower() if value.strip().lower() in ("true", "false") else value
            )
        except (ValueError, RecursionError):
            return encode(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return encode(value)
