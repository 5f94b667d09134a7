"""Results from elsewhere (`agac process --resume`): lines of an OUTPUT that the store does not
know become answers of the job, if it is certain which row each belongs to."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
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
from agac.store.found_answers import FoundCounts, FoundLine, MatchingRow, found_answers, keep_found
from agac.store.writer import open_database

_COPIED = "replace the file with --overwrite, which keeps a copy."

_SHOWN_CHARACTERS = 60
"""Characters of a result that are shown."""


async def adopt(job: Job, confirm: Confirm | None, *, dry: bool = False) -> None:
    """Adopts the results in OUTPUT that are not empty and pass the job's schema or format. Says
    how many there are, shows some of them, and asks first; `dry`: it only says so. Raises
    UsageError for damaged lines, for rows that have no ids but their numbers, and without a yes."""
    _refuse_unfit_options(job)
    opened = project_of(job, job.root)
    checked, _ = ready_workflow(opened, job, job.of_run())
    plan = make_plan(checked.workflow, checked.models, opened.root, Selection(), None)
    stage = _adopting_stage(job, plan)
    torn = list[bytes]()
    rows = _matching_rows(plan, stage, checked.rows(Selection()))
    async with open_database(database_path(job.root)) as database:
        counts, most_common, first = await found_answers(database, _lines(job, stage, torn), rows)
        description = _description(job, plan, counts, len(torn))
        if first:
            description += _examples(most_common, first)
        if not counts.of_rows:
            remedy = f"Check --id-field and the schema, or {_COPIED}"
            raise UsageError(f"nothing was adopted: {description}", remedy=remedy)
        if not (dry or job.options.yes):
            remedy = f"Add --yes to adopt them, or {_COPIED}"
            ask(confirm, "nothing was adopted", description, "Adopt these as answers?", remedy)
        if not dry:
            await keep_found(database, job.name, job.output, time.time())
    file, document, problems = job.read
    if dry:
        text = f"this plan is without what --resume adopts: {description}"
    else:
        text = f"adopted: {description}"
    job.read = file, document, [*problems, Problem(Where(job.output), text, "warning")]


def _refuse_unfit_options(job: Job) -> None:
    """Raises UsageError for a job whose OUTPUT does not have results as they are stored."""
    options = job.options
    if options.fresh or options.merge not in PLAIN_MERGES or job.format != "jsonl":
        what = (
            f"{job.output}: --resume adopts a jsonl file that was written without --merge, and "
            "not with --fresh"
        )
        raise UsageError(what, remedy=f"Leave them out, or {_COPIED}")


def _adopting_stage(job: Job, plan: Plan) -> PlannedStage:
    """Returns the stage whose answers the results become. Raises UsageError if it cannot have
    any."""
    if plan.input.id_field is None:
        what = (
            f"{job.output}: --resume finds the row of a result by its id, and these rows only "
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
            f"{job.output}: `reuse: never` of agac.yml adopts nothing either", remedy="Remove it."
        )
    return stage


def _description(job: Job, plan: Plan, counts: FoundCounts, torn: int) -> str:
    """Describes how many results are adopted, and how many lines are not, for which reasons."""
    refused = counts.other_input + counts.row_numbers
    not_adopted = {
        "empty, failed or unfit": counts.ids - counts.answers,
        "of other rows": counts.answers - counts.of_rows - refused,
        "with an `input` that is not the row's": counts.other_input,
        f"with row numbers for ids, which are not values of {plan.input.id_field!r}": (
            counts.row_numbers
        ),
        "repeated further down, where the last line counts": counts.repeated,
        "torn at the end": torn,
    }
    text = f"{job.output} has {counted(counts.of_rows, 'result')} for rows of the input"
    return text + "".join(f"; {count:,} {why}" for why, count in not_adopted.items() if count)


def _examples(most_common: Sequence[tuple[str, int]], first: Sequence[tuple[str, str]]) -> str:
    """Describes the most common results, and shows the first ones with their rows."""
    often = ", ".join(
        f"{count:,} × {cropped(plain(value), _SHOWN_CHARACTERS)}" for value, count in most_common
    )
    shown = ", ".join(
        f"{row_id!r}: {cropped(plain(value), _SHOWN_CHARACTERS)}" for row_id, value in first
    )
    return f"; the commonest: {often}; for example {shown}"


def _lines(job: Job, stage: PlannedStage, torn: list[bytes]) -> Iterator[FoundLine]:
    """Reads the lines of OUTPUT. A last line that was not written to its end goes to `torn`. Raises
    UsageError for other damage."""
    checker = Checker(stage)
    with (job.root / job.output).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                answer = _line(json.loads(line), checker)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    return torn.append(line)
                why = f"it has no {error}" if isinstance(error, KeyError) else error
                what = (
                    f"{job.output}, line {number} is not the result of a row: {why}. "
                    "Nothing was adopted"
                )
                raise UsageError(what, remedy=f"Mend or remove the line, or {_COPIED}") from None
            yield answer


def _line(envelope: Any, checker: Checker) -> FoundLine:
    """Reads one line. Raises ValueError, TypeError or KeyError if it is not the result of a row."""
    row_id = envelope["id"]
    row_number = envelope.get("row_number")
    if not _is_id(row_id):
        raise TypeError("its `id` is no id")
    result = envelope["result"]
    is_empty = result in (None, "", [], {}) or envelope["ok"] is not True
    answer = None if is_empty else checker.kept(result)
    about = envelope.get("input")
    return FoundLine(
        str(row_id),
        answer,
        number=row_id if isinstance(row_id, int) else None,
        row_number=row_number if _is_integer(row_number) else None,
        input=None if about is None else json.dumps(about),
    )


def _is_id(value: object) -> bool:
    """True for a text that is not empty, or a whole number. Raises ValueError for a text that the
    store cannot hold."""
    if isinstance(value, str):
        return bool(value.encode())
    return _is_integer(value)


def _is_integer(value: object) -> bool:
    """True for a whole number that the store can hold."""
    return type(value) is int and value.bit_length() < 64


def _matching_rows(plan: Plan, stage: PlannedStage, rows: Iterator[Any]) -> Iterator[MatchingRow]:
    """Yields the rows of the input that can be asked, with the fingerprints of what they are asked
    now."""
    preparer = Preparer(plan.stages, plan.vars, 0)
    for row in rows:
        if row.error is not None:
            continue
        task = preparer.prepare(stage, preparer.view(row.data), row.id)
        if not isinstance(task, RowError):
            confirms = partial(_confirms, row.data or {}, task.messages)
            yield MatchingRow(row.id, row.ordinal, task.fingerprint, confirms)


# Does the `input` of a line belong to the row with the same id?


def _confirms(
    row: Mapping[str, JSONValue], messages: tuple[Message, ...], text: str
) -> bool | None:
    """True if the `input` of a line, as JSON, is this row: the fields that both have are equal, or
    it is a text that is the value of a field or the prompt. None if nothing can be compared."""
    about: JSONValue = json.loads(text)
    if isinstance(about, dict):
        shared = about.keys() & row.keys()
        if not shared:
            return None
        return all(_is_same(about[name], row[name]) for name in shared)
    texts = [message.text for message in messages]
    return any(_is_same(about, value) for value in (*row.values(), *texts))


def _is_same(value: JSONValue, other: JSONValue) -> bool:
    """True if both are the same value, whatever type a program gave to the text of a field: `3`,
    `3.0` and `"3"`."""
    if value in (None, "") or other in (None, ""):
        return value in (None, "") and other in (None, "")
    return value == other or _as_read(value) == _as_read(other)


def _as_read(value: JSONValue) -> str:
    """Returns the value as JSON. A text that is JSON is read first."""
    if isinstance(value, str):
        word = value.strip().lower()
        try:
            value = json.loads(word if word in ("true", "false") else value)
        except (ValueError, RecursionError):
            return encode(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return encode(value)
