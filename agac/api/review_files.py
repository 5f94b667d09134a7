"""What people decide elsewhere: reviews in files, results set by hand (`agac fix`), and who it is
that decides."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

from agac.api.inspect import STATES
from agac.api.project import environment, open_project
from agac.api.review import Decision, ReviewItem, ReviewPage, review_queue
from agac.api.review_decisions import DecideReport, decide
from agac.api.status import database_files, database_path, find_rows, find_run, go_on, position_of
from agac.api.stored_plan import recorded_plan
from agac.api.sync import asynchronous, blocking
from agac.core.arguments import typed
from agac.core.errors import ErrorType, RowError, UsageError, lack_of
from agac.core.keys import canonical, review_key, snapshot
from agac.core.text import json_shown, plain
from agac.core.types import Finish, JSONValue, Reply, Report, RowId, Usage
from agac.data.files import AtomicFile, refuse_target
from agac.data.sources import open_source
from agac.data.text_formats import safe_cell_text
from agac.engine.ask.validate import Checker, ResultChecks, ValidReply, parsed
from agac.engine.walk.replay import RowHistory
from agac.plan.render import RowView
from agac.plan.stage import AnyStage, PlannedStage, recorded_stages
from agac.spec.data_specs import InputFormat
from agac.spec.git import user_name
from agac.spec.paths import project_root
from agac.store.db import change
from agac.store.decisions import FIX, StoredDecision, put_decision
from agac.store.lease import holder_of
from agac.store.rows import State
from agac.store.runs import definition_of
from agac.store.writer import open_database


@typed
def reviewer(named: str | None = None, *, project: Path | str | None = None) -> str:
    """Who decides: who is named, else AGAC_REVIEWER, else git's user.name. Raises UsageError where
    nobody is."""
    root = project_root(project)
    env = environment(root)[0]
    found = " ".join((named or env.get("AGAC_REVIEWER") or user_name(root, env) or "").split())
    if not found:
        raise UsageError(
            "it is not known who decides",
            remedy="Name yourself: --reviewer NAME, or set AGAC_REVIEWER.",
        )
    return found


# Reviews in files: a line each, with columns that people fill in; of the others `review_id` and
# `seen` are read back.

FILLED = ("decision", "value", "comment", "reviewer")
_FORMATS: Mapping[str, InputFormat] = {".csv": "csv", ".xlsx": "xlsx", ".jsonl": "jsonl"}


def _cell(value: JSONValue) -> str:
    """A cell of a sheet, with an escape for what no sheet can hold and for what nobody would see;
    that of JSON is JSON's own, so that a proposal which is copied means the same."""
    if isinstance(value, str):
        return plain(safe_cell_text(value))
    return json_shown(safe_cell_text(value))


def _format(file: Path) -> InputFormat:
    kind = _FORMATS.get(file.suffix.lower())
    lack = f"{file}: no format has this ending" if kind is None else None
    lack = lack or (lack_of(f"{file}: a sheet", "openpyxl") if kind == "xlsx" else None)
    if lack:
        raise UsageError(lack, remedy=f"Name a file that ends in {', '.join(_FORMATS)}.")
    return kind or "csv"


async def _queue(root: Path, **which: str | None) -> AsyncIterator[ReviewItem]:
    """All that waits for people or is in dispute."""
    for state in ("waiting", "conflict"):
        page = ReviewPage([], "", 0)
        while page.next is not None:
            page = await asynchronous(review_queue)(
                root, state=state, limit=500, after=page.next or None, **which
            )
            for item in page.items:
                yield item


@blocking
async def review_export(
    file: Path | str, *, workflow: str | None = None, stage: str | None = None, force: bool = False,
    project: Path | str | None = None,
) -> int:  # fmt: skip
    """Writes a line for each review that waits into a csv, xlsx or jsonl file, as its ending says,
    and gives how many. No cell is a formula. Raises UsageError as `refuse_target` does."""
    root = project_root(project)
    path = Path(file)
    written = 0
    kind = _format(path)
    queue = partial(_queue, root, workflow=workflow, stage=stage)
    own = dict.fromkeys(database_files(database_path(root)), "the database itself")
    refuse_target(path, own, "decisions.csv", force=force)
    names = dict.fromkeys([name async for item in queue() for name in item.shown])
    header = [
        "review_id",
        "seen",
        "workflow",
        "stage",
        "row_id",
        "why",
        *(f"shown.{name}" for name in names),
    ]
    header += ["proposal", *FILLED]
    made = AtomicFile(path, "Name another file, or make room.")
    book = None
    try:
        # the line end of the module's own makes it quote every line end in a cell
        add: Callable[[list[str]], object] = csv.writer(SimpleNamespace(write=made.append)).writerow
        if kind == "xlsx":
            import openpyxl  # type: ignore[import-untyped]

            book = openpyxl.Workbook(write_only=True)
            add = book.create_sheet("rows").append
        if kind != "jsonl":
            made.append("\ufeff" * (kind == "csv"))
            add([_cell(name) for name in header])
        async for item in queue():
            written += 1
            about = (
                f"r-{item.id}",
                f"r-{item.seen}",
                item.workflow,
                item.stage,
                item.row_id,
                canonical(item.why),
            )
            shown = (item.shown.get(name) for name in names)
            cells: list[JSONValue] = [*about, *shown, item.answer, *[""] * len(FILLED)]
            if kind == "jsonl":
                made.append(snapshot(dict(zip(header, cells, strict=True))) + "\n")
            else:
                add([_cell(cell) for cell in cells])
        if book is not None:
            book.save(made.temporary)
        made.commit()
    finally:
        made.abort()
    return written


@blocking
async def review_import(
    file: Path | str, *, who: str | None = None, some: bool = False, force: bool = False,
    project: Path | str | None = None,
) -> tuple[DecideReport, list[str]]:  # fmt: skip
    """Takes the decisions of a file that `review_export` wrote and people filled in; lines without
    one stay open. Gives what became of them, and what is wrong, each with its line: then nothing
    was taken, unless `some`, which takes the others. The same file again changes nothing."""
    path = Path(file)
    root = project_root(project)
    usual = cache(partial(reviewer, who, project=root))  # of lines that name nobody
    source = open_source(path, _format(path), str(file))
    lacking = [
        name for name in ("review_id", "decision") if name not in (source.columns() or (name,))
    ]
    if lacking:
        raise UsageError(
            f"{file}: there is no column {lacking[0]!r}",
            remedy="`agac review export` writes such files.",
        )
    found = list[tuple[int, str, Decision]]()
    wrong = dict[int, str]()
    for number, record in enumerate(source.records()):
        try:
            if record.error is not None:
                wrong[number] = record.error.message
            elif record.data is not None and (one := _read(record.data, usual)) is not None:
                found.append((number, record.place(str(file)), one))
        except ValueError as problem:
            wrong[number] = f"{record.place(str(file))}: {problem}"
    take = partial(asynchronous(decide), root, force=force)
    report = await take([one for *_, one in found], check=True)
    wrong |= {
        found[one.place][0]: f"{found[one.place][1]}: {one.message}" for one in report.problems
    }
    if some or not wrong:
        report = await take([one for number, _, one in found if number not in wrong])
    return report, [wrong[number] for number in sorted(wrong)]


def _read(line: Mapping[str, JSONValue], usual: Callable[[], str]) -> Decision | None:
    """The decision of a line; None: it has none yet. Raises ValueError, which says what is
    wrong."""
    cells = {
        name: "" if line.get(name) is None else line[name]
        for name in ("review_id", "seen", *FILLED)
    }
    item, seen, choice, reason, named = (str(cells[k]).strip() for k in cells if k != "value")
    value = cells["value"]
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "[", '"'):
        with suppress(ValueError):  # else it is a text
            value = json.loads(value)
    if (choice.lower() == "edit") != (value != ""):
        raise ValueError("a decision edit and a value go together; one of the two is missing")
    given = (
        None if value == "" else value,
        reason,
        named or usual(),
        "file",
        seen.removeprefix("r-") or None,
    )
    if choice:
        return Decision(item.removeprefix("r-"), choice.lower(), *given)
    return None


# Results set by hand.


@dataclass(frozen=True, slots=True)
class FixReport(Report):
    """A result that was set by hand. The row has it after the next run: `go_on`."""

    workflow: str
    run: int
    row: RowId
    stage: str
    value: JSONValue
    reviewer: str
    go_on: str


@blocking
async def fix(
    run: int | str,
    row: int | str,
    stage: str,
    value: str,
    *,
    reason: str = "",
    who: str | None = None,
    project: Path | str | None = None,
) -> FixReport:
    """Sets the result that a stage has for a row, from the text that a model would have answered
    (JSON where the stage has a schema). It holds for this row and this question of the stage.
    Raises UsageError for what the stage would not take as an answer, and while a process or a
    batch works on the row."""
    opened = open_project(project_root(project), bare=True)
    who = reviewer(who, project=opened.root)
    async with open_database(database_path(opened.root)) as database:
        record = await find_run(database, None, run)
        stages = recorded_stages(await definition_of(database, record.id))
        place = position_of(stage, [one.name for one in stages], "--stage")
        (found,) = (await find_rows(database, record.id, [row]))[:1]
        known = await RowHistory.read(database, record.id, stages, found)
        task = known.tasks.get(place)
        shown = f"row {found.id!r} of run {record.id}"
        if task is None or task.fingerprint is None or stage in known.lists:
            what = (
                f"{shown} has no result of stage {stage!r} that could be set: it is "
                f"{STATES[State(found.state)]}"
            )
            raise UsageError(
                what, remedy=f"`agac inspect {record.id} {found.id}` shows what it came to."
            )
        if known.in_batches:
            remedy = (
                "Take them in with `agac batch retrieve`, or cancel them with `agac batch cancel`."
            )
            raise UsageError(f"{shown} has requests in a batch", remedy=remedy)
        if found.state == State.PENDING:
            holder = await holder_of(database, record.workflow)
        else:
            holder = None
        if holder is not None:
            raise UsageError(
                f"{shown} is at work: {holder} has the workflow",
                remedy="Wait until that run has ended.",
            )
        plan = await recorded_plan(opened, opened.providers, database, record.id, functions=False)
        for one in stages[:place]:  # what the stage's checks see of the row
            known.learn(one, known.tasks.get(one.index))
        checked = _checked(plan.stages[place], value, known.view)
        key = review_key(record.workflow, stage, found.id, task.fingerprint, FIX)
        said = "edit", checked.text, reason, who, time.time(), FIX
        decision = StoredDecision(key, 0, record.workflow, stage, found.id, *said)
        await change(database, lambda writer: put_decision(writer, decision))
    return FixReport(record.workflow, record.id, found.id, stage, checked.value, who, go_on(record))


def _checked(stage: AnyStage, text: str, view: RowView) -> ValidReply:
    """A result, held to the schema and the checks of its stage. Raises UsageError."""
    found: ValidReply | RowError = RowError(
        ErrorType.INVALID_ROW, "it is no row: give its fields as a JSON object"
    )
    if isinstance(stage, PlannedStage):
        reply = text if stage.wants_json else text.removesuffix("\n")
        found = Checker(stage).check(Reply(reply, Finish.STOP, Usage(), ""), view=view)
    else:
        with suppress(ValueError):
            encoded, value = parsed(text)
            found = ValidReply(encoded, value) if isinstance(value, dict) else found
            found = (
                isinstance(found, ValidReply) and ResultChecks(stage).error(view, value)
            ) or found
    if isinstance(found, RowError):
        raise UsageError(f"--value: {found.message}", remedy="Correct it; nothing was set.")
    return found
