"""Groups of rows (`group_by`): each is called once all members are there; large groups are cut into parts."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.keys import snapshot
from agac.core.types import Row, RowId
from agac.engine.caller import Answer
from agac.engine.context import InvocationContext
from agac.engine.effects import ActiveRow
from agac.engine.executor import Executor, run_workers
from agac.engine.replay import GroupContents, array
from agac.engine.settle import Settler
from agac.engine.stored_rows import LevelPass, unfit
from agac.engine.tasks import AnswerSource, Parked, Tasks
from agac.plan.reduce_tree import CallSize, NodeId, Tree, TreeNode
from agac.plan.render import Preparer, RowView
from agac.plan.stage import AnyStage, PlannedStage
from agac.spec.levels import Level
from agac.spec.operations import Group
from agac.spec.templates import ROWS_COUNT, ROWS_FAILED, ROWS_JSON
from agac.store.records import NewRow, Part
from agac.store.rows import (
    GroupSize,
    MadeRow,
    PriorTask,
    State,
    failed_part,
    group_sizes,
    open_parts,
    prior_tasks,
    rows_of_keys,
)

# Groups too large for one call are cut into parts (`plan/tree`), and the parts are asked, the smallest first.

RESULT_TOKENS = 500
"""What a part's result is taken to come to, where the stage's `max_tokens` does not bound it."""

_SIGNED = 1 << 63
_SOME = 64


def call_size(stage: PlannedStage) -> CallSize:
    """What one call of a stage holds whose groups may be cut into parts."""
    assert stage.group is not None
    most = stage.group.max_tokens
    result = stage.params.max_tokens or RESULT_TOKENS
    return CallSize(stage.group.max_rows, most, result if most is None else max(1, min(result, most // 2)))


def part_id(group: RowId, node: NodeId) -> str:
    """The id of a part: the same whenever it holds the same range of the same group."""
    after = f"+{node.after}" if node.after else ""
    return f"{group}/{node.height}.{node.low:016x}.{node.high:016x}{after}"


class GroupCut:
    """Cuts one group as its members come, in the order of their hashes; `store` is given each part, children first."""

    def __init__(self, stage: PlannedStage, store: Callable[[TreeNode], None]) -> None:
        self._tree, self._store = Tree(call_size(stage)), store
        self._last: TreeNode | None = None

    def add(self, sort: int, tokens: int) -> None:
        """One more member; `sort` is 64 bits, unsigned."""
        self._take(self._tree.add(sort, tokens))

    def close(self) -> TreeNode:
        """All members came: the node that is the group itself, which is no part."""
        self._take(self._tree.close())
        assert self._last is not None
        return self._last

    def _take(self, nodes: Iterable[TreeNode]) -> None:
        for node in nodes:
            if self._last is not None:
                self._store(self._last)
            self._last = node


class Parts:
    """The parts of the large groups of one stage."""

    def __init__(
        self,
        context: InvocationContext,
        stage: PlannedStage,
        contents: GroupContents,
        preparer: Preparer,
        asker: AnswerSource,
        tasks: Tasks,
        settler: Settler,
    ) -> None:
        assert stage.group is not None
        self._context, self._stage, self._contents = context, stage, contents
        self._preparer, self._asker, self._tasks, self._settler = preparer, asker, tasks, settler

    async def cut(self, group: MadeRow) -> TreeNode:
        """Cuts a group and stores its parts; gives the node that is the group itself."""
        cut, ledger = GroupCut(self._stage, partial(self._store, group)), self._context.ledger
        async for page in self._contents.pages(group.key):
            for one in page:
                cut.add(one.sort + _SIGNED, one.size)
            await ledger.durable()
        top = cut.close()
        ledger.batch.cut.append(group.key)
        await ledger.durable()
        return top

    def _store(self, group: MadeRow, node: TreeNode) -> None:
        body = {"rows": node.rows, "low": node.id.low, "high": node.id.high, "after": node.id.after}
        part_id = self.name(group, node.id)
        below = [self.name(group, child) for child in node.children]
        part = Part(group.key, self._stage.index, part_id, node.id.height, snapshot({**body, "parts": below}))
        self._context.ledger.batch.parts.append(part)

    def name(self, group: MadeRow, node: NodeId) -> str:
        """The id of a part: the same whenever it holds the same range of the same group."""
        return part_id(group.id, node)

    async def ask(self, height: int) -> None:
        """Asks all open parts of a height."""
        await self._context.ledger.durable()
        if self._context.stop_signal.stop is None:
            await run_workers(self._active_rows(height), self, self._context.stop_signal, self._context.workers)

    async def _active_rows(self, height: int) -> AsyncGenerator[list[ActiveRow], None]:
        (database, run, _), after = self._context.places, 0
        while parts := await open_parts(database, run, self._stage.index, height, after, _SOME):
            after = parts[-1].key
            keys = [part.key for part in parts]
            prior, ready = await prior_tasks(database, keys), await self._context.ready(keys)
            groups = await rows_of_keys(database, sorted({part.group for part in parts}))
            for part in parts:
                view = self._context.views.begun(groups[part.group].data, None, None)
                texts = await self._contents.of_part(part.group, part.data)
                if texts is not None:
                    view.own |= {ROWS_JSON: array(texts), ROWS_COUNT: len(texts), ROWS_FAILED: 0}
                new = NewRow(Row(part.id, 0, {}), 0, b"", part.data, State.PENDING, part.key, self._stage.index)
                again, since = self._again()
                yield [
                    ActiveRow(
                        new, prior.get(part.key, {}), view=view, part=True, forced=self._context.retry is not None,
                        again_from=again, since=since, ready=ready.get(part.key, {}),
                    )
                ]  # fmt: skip

    def _again(self) -> tuple[int | None, float]:
        """From which stage on parts are asked anew, and since when: as the groups are that a retry opened."""
        retry, opened = self._context.retry, self._context.opened
        if retry is not None:
            return self._context.again_from, retry.since
        return (None, 0.0) if opened is None else (opened.again_from, opened.since)

    async def walk(self, active: ActiveRow) -> None:
        """Asks one part."""
        assert active.view is not None
        if not active.view.own:
            below = json.loads(active.new.data)["parts"]
            if below and await self._contents.waits(below):
                return None
            return self._fail(active, None, unfit(self._stage, "a part of it has no result"))
        prepared = self._preparer.prepare(self._stage, active.view, active.new.row.id)
        if isinstance(prepared, RowError):
            return self._fail(active, None, prepared)
        asked = partial(self._asker.ask, active, self._stage, prepared.fingerprint, prepared.request)
        wait = partial(self._asker.wait, active, self._stage, prepared.fingerprint)
        answer = await self._tasks.answer(active, self._stage, prepared.fingerprint, asked, wait=wait)
        if active.ready and answer is not Parked.PARKED:
            self._settler.mark_batch_answers_used(active)
        if isinstance(answer, Answer):
            self._settler.row_done(active, answer.result)
        elif isinstance(answer, RowError):
            self._fail(active, prepared.fingerprint, answer)
        return None

    def _fail(self, active: ActiveRow, fingerprint: bytes | None, error: RowError) -> None:
        self._settler.task_failed(active, self._stage, fingerprint, error)
        self._settler.row_failed(active, self._stage, error, {self._stage.index})


MAX_ROWS = 100_000
"""Members of a group that is not reduced in parts: no model takes as many, and all of them are held at once."""


Unusable = Literal["failed", "incomplete", "large"]
"""Why a group cannot be asked: all its rows failed, some did and it needs all of them, one call does not hold it."""


def unusable(group: Group, rows: int, failed: int) -> Unusable | None:
    """Why a group cannot be asked that has so many members, and so many more that failed."""
    if not rows:
        return "failed"
    if failed and group.incomplete == "fail":
        return "incomplete"
    return "large" if rows > MAX_ROWS and not group.reduces else None


class Ready(NamedTuple):
    """A group that can be asked; `top` is its node where it was cut."""

    row: MadeRow
    prior: dict[int, PriorTask]
    size: GroupSize
    top: TreeNode | None


class Groups:
    """Asks the groups of one level."""

    def __init__(
        self,
        context: InvocationContext,
        level: Level[AnyStage],
        executor: Executor,
        contents: GroupContents,
        parts: Parts,
        settler: Settler,
    ) -> None:
        stage = level.maker
        assert isinstance(stage, PlannedStage)
        assert stage.group is not None
        self._context, self._stage, self._group = context, stage, stage.group
        self._rows = LevelPass(context, level)
        self._executor, self._contents, self._parts, self._settler = executor, contents, parts, settler

    async def walk(self) -> None:
        """All groups whose members changed, or that failed, some at a time."""
        async for rows in self._rows.rows():
            for start in range(0, len(rows), _SOME):
                await self._some(rows[start : start + _SOME])

    async def _some(self, rows: Sequence[MadeRow]) -> None:
        database, keys = self._context.places.database, [row.key for row in rows]
        sizes, prior = await group_sizes(database, keys), await prior_tasks(database, keys)
        ready = []
        for row in rows:
            size = sizes.get(row.key)
            if size is None:  # all of its rows are elsewhere now
                self._context.ledger.batch.gone.append(row.key)
            elif (one := await self._ready(row, size, prior.get(row.key, {}))) is not None:
                ready.append(one)
        for height in range(1, max((one.top.id.height for one in ready if one.top), default=1)):
            await self._parts.ask(height)
        await self._context.ledger.durable()
        if self._context.stop_signal.stop is None:
            await run_workers(
                self._active_rows(ready), self._executor, self._context.stop_signal, self._context.workers
            )

    async def _ready(self, row: MadeRow, size: GroupSize, prior: dict[int, PriorTask]) -> Ready | None:
        """The group as it is asked; None where it cannot be."""
        view, error = self._view(row, size), self._error(size)
        if error is not None:
            self._fail(self._rows.flight(row, prior, view), error)
            return None
        may_ask = self._context.scope.may_ask(self._stage.name)
        if self._fits(size) and self._group.reduces:  # it may have been larger
            self._context.ledger.batch.cut.append(row.key)
        if self._fits(size) or not may_ask or not self._executor.does.lets_in(view, self._stage):
            return Ready(row, prior, size, None)
        return Ready(row, prior, size, await self._parts.cut(row))

    def _view(self, row: MadeRow, size: GroupSize) -> RowView:
        """What a group sees, but for its rows."""
        view = self._context.views.begun(row.data, None, None)
        view.own |= {ROWS_COUNT: size.rows, ROWS_FAILED: size.failed}
        return view

    def _error(self, size: GroupSize) -> RowError | None:
        """Why the group cannot be asked."""
        match unusable(self._group, size.rows, size.failed):
            case "failed":
                return unfit(self._stage, f"all {size.failed:,} rows of this group failed")
            case "incomplete":
                text = f"{size.failed:,} of the {size.rows + size.failed:,} rows of this group failed"
                return unfit(self._stage, text)
            case "large":
                text = f"this group has {size.rows:,} rows; add `reduce: {{max_rows: 50}}` to ask them in parts"
                return unfit(self._stage, text)
        return None

    def _fits(self, size: GroupSize) -> bool:
        """Whether one call holds all of the group."""
        return self._group.fits(size.rows, size.tokens)

    def _fail(self, active: ActiveRow, error: RowError) -> None:
        self._settler.task_failed(active, self._stage, None, error)
        self._settler.row_failed(active, self._stage, error, {self._stage.index})

    async def _active_rows(self, ready: Sequence[Ready]) -> AsyncGenerator[list[ActiveRow], None]:
        ready_tasks = await self._context.ready([one.row.key for one in ready])
        for row, prior, size, top in ready:
            view = self._view(row, size)
            active = self._rows.flight(row, prior, view)
            active.ready = ready_tasks.get(row.key, {})
            texts: list[str] | None = []  # of a group that is too large and not asked
            if top is not None:
                parts = [self._parts.name(row, child) for child in top.children]
                texts = await self._contents.of_parts(parts)
                if texts is None and await self._contents.waits(parts):
                    self._settler.row_parked(active, self._stage)
                    continue
            elif self._fits(size):
                texts = await self._contents.of_members(row.key)
            if texts is None:
                self._fail(active, await self._failed_part(row))
                continue
            view.own[ROWS_JSON] = array(texts)
            yield [active]

    async def _failed_part(self, row: MadeRow) -> RowError:
        failed = await failed_part(self._context.places.database, row.key)
        if failed is None:
            return unfit(self._stage, "parts of this group have no result")
        kind, message, _ = failed
        return RowError(ErrorType(kind), f"in a part of this group: {message}")
