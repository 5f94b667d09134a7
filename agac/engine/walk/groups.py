"""Asks groups of rows (`group_by`) once all their members are there, and decides which of equal
rows continues (`dedupe`).

A group that is too large for one call is reduced as a tree: a call gets members first, then results
of parts."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Literal

from agac.core.errors import ErrorType, RowError
from agac.core.keys import canonical, snapshot
from agac.core.types import Row, RowId
from agac.engine.ask.answers import Answer, Parked
from agac.engine.ask.tasks import Tasks
from agac.engine.context import InvocationContext
from agac.engine.decide.dedupe import decide, is_changed
from agac.engine.walk.effects import ActiveRow
from agac.engine.walk.executor import Executor, RowSource, Walk, run_workers
from agac.engine.walk.reduction_tree import CallSize, NodeId, Tree, TreeNode
from agac.engine.walk.replay import GroupContents, array
from agac.engine.walk.stored_rows import LevelPass
from agac.plan.render import RowView
from agac.plan.stage import AnyStage, LocalStage, PlannedStage
from agac.spec.graph import Level
from agac.spec.operations import Dedupe, Group
from agac.spec.templates import ROWS_COUNT, ROWS_FAILED, ROWS_JSON
from agac.store import rows as store
from agac.store.records import Child, Children, NewRow, Part
from agac.store.rows import State, StoredRow

RESULT_TOKENS = 500
"""Tokens that a part's result is taken to have, if the stage's `max_tokens` does not bound it."""

MAX_ROWS = 100_000
"""Members of a group that is not reduced in parts: no model takes as many, and all of them are
held at once."""

_SIGNED = 1 << 63
"""What is added to a hash in the store, which is signed."""

_PAGE = 64
"""Groups that are asked at a time."""


def call_size(stage: PlannedStage) -> CallSize:
    """Returns what one call of a stage holds whose groups may be cut into parts."""
    assert stage.group is not None
    most = stage.group.max_tokens
    result = stage.params.max_tokens or RESULT_TOKENS
    return CallSize(
        stage.group.max_rows, most, result if most is None else max(1, min(result, most // 2))
    )


def part_id(group: RowId, node: NodeId) -> str:
    """Returns the id of a part: the same for the same range of the same group."""
    after = f"+{node.after}" if node.after else ""
    return f"{group}/{node.height}.{node.low:016x}.{node.high:016x}{after}"


UnusableGroup = Literal["failed", "incomplete", "large"]
"""Why a group cannot be asked: all its rows failed, some failed and it needs all of them, or one
call does not hold it."""


def unusable(group: Group, rows: int, failed: int) -> UnusableGroup | None:
    """Returns why a group cannot be asked that has so many members, and so many more that failed;
    None: it can."""
    if not rows:
        return "failed"
    if failed and group.incomplete == "fail":
        return "incomplete"
    if rows > MAX_ROWS and not group.reduces:
        return "large"
    return None


ReadyGroup = tuple[StoredRow, store.GroupSize, TreeNode | None]
"""A group that can be asked, with its node if it was cut."""


class Groups:
    """Asks the groups of one level, and the parts of large ones, the smallest first."""

    def __init__(
        self, context: InvocationContext, level: Level[AnyStage], executor: Executor, tasks: Tasks
    ) -> None:
        stage = level.maker
        assert stage is not None
        assert stage.group is not None
        self._context = context
        self._stage = stage
        self._group = stage.group
        self._settler = context.settler
        self._executor = executor
        self._tasks = tasks
        self._pass = LevelPass(context, level)
        database, run, _ = context.places
        self._contents = GroupContents(
            database, run, context.views, context.deriver.members[stage.index]
        )

    async def walk(self) -> None:
        """Asks all groups whose members changed, or that failed, some at a time."""
        async for rows in self._pass.rows():
            for start in range(0, len(rows), _PAGE):
                await self._walk_page(rows[start : start + _PAGE])

    async def _walk_page(self, rows: Sequence[StoredRow]) -> None:
        """Asks some groups: first their parts, from the lowest height up, then the groups."""
        database = self._context.places.database
        sizes = await store.group_sizes(database, [row.key for row in rows])
        ready = list[ReadyGroup]()
        for row in rows:
            size = sizes.get(row.key)
            if size is None:  # all of its rows are in other groups now
                self._context.ledger.batch.derived.gone.append(row.key)
                continue
            group = await self._ready(row, size)
            if group is not None:
                ready.append(group)
        for height in range(1, max((top.id.height for _, _, top in ready if top), default=1)):
            await self._run(self._open_parts(height), self._ask_part)
        await self._run(self._active_rows(ready), self._executor.walk)

    async def _run(self, rows: AsyncGenerator[list[ActiveRow], None], walk: Walk) -> None:
        """Walks rows once all that was written before is stored, unless the run stops."""
        await self._context.ledger.durable()
        if self._context.stop_signal.stop is None:
            await run_workers(
                [RowSource(rows, walk)], self._context.stop_signal, self._context.workers
            )

    async def _ready(self, row: StoredRow, size: store.GroupSize) -> ReadyGroup | None:
        """Prepares a group, and cuts it if it is too large; None: it cannot be asked, and
        failed."""
        view = self._view(row, size)
        message = self._problem(size)
        if message is not None:
            tasks = await self._context.tasks_of([row.key])
            self._executor.fail(
                self._pass.active_row(row, tasks, view), self._stage, self._unfit(message)
            )
            return None
        fits = self._group.fits(size.rows, size.tokens)
        if fits and self._group.reduces:  # it may have been larger
            self._context.ledger.batch.derived.cut.append(row.key)
        may_ask = self._context.work.scope.may_ask(self._stage.name)
        if fits or not may_ask or not self._executor.does.lets_in(view, self._stage):
            return row, size, None
        return row, size, await self._cut(row)

    def _problem(self, size: store.GroupSize) -> str | None:
        """Says why a group of this size cannot be asked; None: it can."""
        match unusable(self._group, size.rows, size.failed):
            case "failed":
                return f"all {size.failed:,} rows of this group failed"
            case "incomplete":
                rows = size.rows + size.failed
                return f"{size.failed:,} of the {rows:,} rows of this group failed"
            case "large":
                return f"this group has {size.rows:,} rows; {self._remedy_if_large()}"
            case None:
                return None

    def _remedy_if_large(self) -> str:
        """Says what to do about a group that one call does not hold."""
        if self._stage.asks:
            return "add `reduce: {max_rows: 50}` to ask them in parts"
        first = "group by one more field first, and group what comes of that again"
        return f"a function is given {MAX_ROWS:,} at most; {first}"

    def _view(self, row: StoredRow, size: store.GroupSize) -> RowView:
        """Returns what a group sees, without its rows."""
        view = self._context.views.begun(row.data, None, None)
        view.own |= {ROWS_COUNT: size.rows, ROWS_FAILED: size.failed}
        return view

    async def _active_rows(
        self, ready: Sequence[ReadyGroup]
    ) -> AsyncGenerator[list[ActiveRow], None]:
        """Yields the groups as rows at work, with what their members show; those that wait for
        parts, or whose parts failed, are settled."""
        tasks = await self._context.tasks_of([group.key for group, _, _ in ready])
        for group, size, top in ready:
            row = self._pass.active_row(group, tasks, self._view(group, size))
            texts: list[str] | None = []  # of a group that is too large and not asked
            if top is not None:
                parts = [part_id(group.id, child) for child in top.children]
                texts = await self._contents.of_parts(parts)
                if texts is None and await self._contents.waits(parts):
                    self._settler.row_parked(row, self._stage)
                    continue
            elif self._group.fits(size.rows, size.tokens):
                texts = await self._contents.of_members(group.key)
            if texts is None:
                self._executor.fail(row, self._stage, await self._error_of_parts(group.key))
                continue
            row.view.own[ROWS_JSON] = array(texts)
            yield [row]

    async def _error_of_parts(self, group: int) -> RowError:
        """Makes the error of a group whose parts have no results."""
        failed = await store.failed_part(self._context.places.database, group)
        if failed is None:
            return self._unfit("parts of this group have no result")
        error_type, message, _ = failed
        return RowError(ErrorType(error_type), f"in a part of this group: {message}")

    async def _cut(self, group: StoredRow) -> TreeNode:
        """Cuts a group and stores its parts. Returns the node that is the group itself."""
        ledger = self._context.ledger
        assert isinstance(self._stage, PlannedStage)
        growing = Tree(call_size(self._stage))
        async for page in self._contents.pages(group.key):
            for member in page:
                for node in growing.add(member.sort + _SIGNED, member.size):
                    self._put_part(group, node)
            await ledger.durable()
        *lower, top = growing.close()
        for node in lower:
            self._put_part(group, node)
        ledger.batch.derived.cut.append(group.key)
        await ledger.durable()
        return top

    def _put_part(self, group: StoredRow, node: TreeNode) -> None:
        """Adds a part of a group to the next commit."""
        body = {
            "rows": node.rows,
            "low": node.id.low,
            "high": node.id.high,
            "after": node.id.after,
            "parts": [part_id(group.id, child) for child in node.children],
        }
        name = part_id(group.id, node.id)
        part = Part(group.key, self._stage.index, name, node.id.height, snapshot(body))
        self._context.ledger.batch.derived.parts.append(part)

    async def _open_parts(self, height: int) -> AsyncGenerator[list[ActiveRow], None]:
        """Yields all open parts of a height as rows at work. They are asked again like the groups
        that a retry opened."""
        context = self._context
        database, run, _ = context.places
        after = 0
        while parts := await store.open_parts(
            database, run, self._stage.index, height, after, _PAGE
        ):
            after = parts[-1].key
            tasks = await context.tasks_of([part.key for part in parts])
            groups = await store.rows_of_keys(database, sorted({part.group for part in parts}))
            for part in parts:
                view = context.views.begun(groups[part.group].data, None, None)
                texts = await self._contents.of_part(part.group, part.data)
                if texts is not None:
                    view.own |= {ROWS_JSON: array(texts), ROWS_COUNT: len(texts), ROWS_FAILED: 0}
                new = NewRow(
                    Row(part.id, 0, {}),
                    0,
                    b"",
                    part.data,
                    State.PENDING,
                    part.key,
                    self._stage.index,
                )
                row = context.taken_up(new, view, tasks)
                context.go_on_as_retry(row, None)
                row.part = True
                row.forced = context.work.retry is not None
                yield [row]

    async def _ask_part(self, row: ActiveRow) -> None:
        """Asks a part, unless it waits for lower ones."""
        if not row.view.own:
            lower = json.loads(row.new.data)["parts"]
            if not lower or not await self._contents.waits(lower):
                self._fail(row, self._unfit("a part of it has no result"))
            return
        assert isinstance(self._stage, PlannedStage)
        prepared = self._context.preparer.prepare(self._stage, row.view, row.new.row.id)
        if isinstance(prepared, RowError):
            self._fail(row, prepared)
            return
        answer = await self._tasks.answer(row, self._stage, prepared)
        if row.ready and answer is not Parked.PARKED:
            self._settler.mark_batch_answers_used(row)
        if isinstance(answer, Answer):
            self._settler.row_ended(row, State.DONE, answer.result)
        elif isinstance(answer, RowError):
            self._fail(row, answer, prepared.fingerprint)

    def _unfit(self, message: str) -> RowError:
        """Makes the error of a group or a part that cannot be asked."""
        return RowError(ErrorType.INVALID_ROW, f"stage {self._stage.name!r}: {message}")

    def _fail(self, row: ActiveRow, error: RowError, fingerprint: bytes | None = None) -> None:
        """Settles a part that fails."""
        self._settler.failed(row, self._stage, fingerprint, error)
        self._settler.row_ended(
            row, State.FAILED, failed=(self._stage, error), settled={self._stage.index}
        )


PAGE = 512
"""Values, and rows, that are read at a time."""


class Deduplicator:
    """Decides for a stage which rows continue, once all are there.

    A decision that was made before, and still holds, is not written again."""

    def __init__(self, context: InvocationContext, stage: AnyStage) -> None:
        assert isinstance(stage, LocalStage)
        assert isinstance(stage.operation, Dedupe)
        self._context = context
        self._stage = stage
        self._db, self._run, _ = context.places
        self._fields = stage.operation.body()["dedupe"]

    async def decide(self) -> None:
        """Decides about all rows that came to the stage: those with some hundred values at a time,
        and of these some hundred rows."""
        after = b""
        while self._context.stop_signal.stop is None:
            firsts = await store.dedupe_firsts(self._db, self._run, self._stage.index, after, PAGE)
            if not firsts:
                return
            begin = (after, 1 << 62)  # beyond every key of the last page
            after = max(firsts)
            while rows := await store.dedupe_page(
                self._db, self._run, self._stage.index, *begin, after, PAGE
            ):
                changed = [row for row in rows if is_changed(row, firsts[row.hash])]
                prior = await store.prior_tasks(self._db, [row.key for row in changed])
                for row in changed:
                    self._decide(row, firsts[row.hash], prior.get(row.key, {}))
                if changed:
                    await self._context.ledger.durable()
                begin = (rows[-1].hash, rows[-1].key)

    def _decide(
        self, came: store.DedupeRow, first: store.DedupeRow, prior: dict[int, store.PriorTask]
    ) -> None:
        """Settles a row that came to the stage; `first` is the first one with its value."""
        settler = self._context.settler
        new = NewRow(Row(came.id, 0, {}), 0, b"", "", State(came.state), came.key, came.origin)
        row = ActiveRow(new, self._context.preparer.view(None), prior=prior)
        decided = decide(is_first=came.key == first.key, came_as=State(came.came_as))
        note = None
        kept = []
        if decided.goes_on:
            kept = [Child(came.id, came.content, "{}")]
        else:
            body = {"dedupe": self._fields, "first": first.id, "values": {}}
            note = partial(canonical, body)
        settler.not_asked(row, self._stage, decided.outcome, note)
        children = Children(came.key, self._stage.index, kept)
        self._context.ledger.batch.derived.children.append(children)
        settler.row_moved(row, came.state, decided.state, came.result_id)
