"""Rows that are looked at together: groups (`group_by`), called once all members are there, large
ones in parts; and equal rows, of which the first one goes on (`dedupe`). A group that is too large
for one call is reduced as a tree: first members, then results of parts, go into one call."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from sys import maxsize
from typing import Literal, NamedTuple

from agac.core.errors import ErrorType, RowError
from agac.core.keys import canonical, snapshot
from agac.core.types import Row, RowId
from agac.engine.ask.answers import Answer, Parked
from agac.engine.ask.tasks import Tasks
from agac.engine.context import InvocationContext
from agac.engine.decide.dedupe import decide, is_changed
from agac.engine.walk.effects import ActiveRow
from agac.engine.walk.executor import Executor, RowSource, Walk, run_workers
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

WIDTH = 64  # bits of a hash, as `keys.member_hash` gives it


class NodeId(NamedTuple):
    """Names a node within its group, by nothing but what it holds. `low` and `high` are the ends
    of the longest prefix that all its members share: exactly its members have hashes from `low` to
    `high`. But for members of equal hashes that one call does not hold: then `low` equals `high`,
    and `after` counts those in earlier nodes."""

    height: int
    low: int
    high: int
    after: int = 0


class TreeNode(NamedTuple):
    """One call of a reduction: over `rows` members at height 1, over the results of `children`
    above it. Children are in order, at least two, each of a lower height (not always the next
    lower: a node that would have had one child is not made, the child stands in its place)."""

    id: NodeId
    rows: int
    children: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class CallSize:
    """What one call may hold: `max_rows` members or results, `max_tokens` of their text; None: no
    such limit. `result_tokens` is what a node's result is taken to come to. Two results always
    fit: else no tree ends."""

    max_rows: int | None = None
    max_tokens: int | None = None
    result_tokens: int = 0

    @property
    def fan_in(self) -> int:
        """How many results one call holds."""
        if self.max_tokens is None:
            by_tokens = maxsize
        else:
            by_tokens = self.max_tokens // max(self.result_tokens, 1)
        return max(2, min(self.max_rows or maxsize, by_tokens))


class Tree:
    """The nodes of one group, as its members come: in ascending order of hash, ValueError where
    they do not.

    The cuts follow the hashes of the members' ids (docs/guide/groups.md). Think of the hashes as a
    binary trie. A node of height 1 holds the members below a prefix when they fit into one call
    and those below the parent prefix do not; a node of height 2 holds the nodes of height 1 below
    such a prefix, and so on until one node, the whole group, is left. A prefix knows nothing of
    what lies outside it, so one member more or less changes the nodes above it, and where one of
    them parts in two, and no others; cuts by count would move all of them.

    Members stream through: what is held at a time is one call's worth for each height.

    A node comes after its children, the nodes of a height in order, as early as they are known;
    the last one of all is the group itself. No members, no nodes. A member of more than
    `max_tokens` is a node alone."""

    def __init__(self, size: CallSize) -> None:
        max_tokens = maxsize if size.max_tokens is None else size.max_tokens
        self._fan_in = size.fan_in
        self._cuts = [_Cut(size.max_rows or maxsize, max_tokens)]

    def add(self, hash_: int, tokens: int) -> Iterator[TreeNode]:
        """The nodes that are known now that this member is."""
        for piece in self._cuts[0].add(_Piece(hash_, hash_, 1, tokens)):
            yield from self._up(piece, 0)

    def close(self) -> Iterator[TreeNode]:
        """The other nodes: no member comes any more."""
        # which grow meanwhile: what one gives last may begin the next
        for height, cut in enumerate(self._cuts):
            for piece in cut.close():
                yield from self._up(piece, height)

    def _up(self, piece: _Piece, height: int) -> Iterator[TreeNode]:
        """The node that `piece`, given by the cut of this height, makes, and those that it
        completes above."""
        if len(piece.children) == 1:
            (node_id,) = piece.children
        else:
            below = (1 << (piece.low ^ piece.high).bit_length()) - 1
            node_id = NodeId(height + 1, piece.low & ~below, piece.high | below, piece.after)
            yield TreeNode(node_id, piece.count, piece.children)
        if self._cuts[height].whole:
            return
        if height + 1 == len(self._cuts):
            self._cuts.append(_Cut(self._fan_in, maxsize))
        for above in self._cuts[height + 1].add(
            _Piece(piece.low, piece.high, 1, 0, (node_id,), piece.after)
        ):
            yield from self._up(above, height + 1)


def tree(members: Iterable[tuple[int, int]], size: CallSize) -> Iterator[TreeNode]:
    """The nodes of a group of `members`, which are (hash, tokens), as `Tree` gives them."""
    growing = Tree(size)
    for hash_, tokens in members:
        yield from growing.add(hash_, tokens)
    yield from growing.close()


@dataclass(slots=True)
class _Piece:
    """Neighbours that may share a call: `low` and `high` are the least and the greatest hash in
    it."""

    low: int
    high: int
    count: int
    tokens: int
    children: tuple[NodeId, ...] = ()
    after: int = 0

    def take(self, other: _Piece) -> None:
        self.high = other.high
        self.count += other.count
        self.tokens += other.tokens
        self.children += other.children


class _Cut:
    """Cuts one height: takes what lies side by side, gives the pieces that fit into a call, as
    soon as they are known. Held are the complete subtries to the left of the path to the last one
    taken, from the highest down, each with the depth at which it parts from the one before. All of
    them fit into one call: else the first is given away, as the prefix that it shares with the
    rest does not fit. `floor` is the depth of the longest such prefix on the path."""

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._held: deque[tuple[int, _Piece]] = deque()
        self._rows = self._tokens = 0  # of all that is held
        self._floor = self._last = -1
        self._given = 0
        self.whole = False

    def add(self, new: _Piece) -> list[_Piece]:
        """Takes the next in order; gives what is known to be cut now."""
        if new.low < self._last:
            raise ValueError("the members of a group must come in the order of their hashes")
        given: list[_Piece] = []
        held = self._held
        parts = WIDTH - (self._last ^ new.low).bit_length() if held else -1
        self._last = new.high
        if parts <= self._floor:
            given += self._all()
            self._floor = parts
        self._join(parts)
        self._rows += new.count
        self._tokens += new.tokens
        last = held[-1][1] if parts == WIDTH else None
        if last is None:
            held.append((parts, new))
        # equal hashes have no deeper prefix: they are cut by order, each call as full as it can be
        elif (
            last.count + new.count <= self._max_rows
            and last.tokens + new.tokens <= self._max_tokens
        ):
            last.take(new)
        else:
            new.after = new.after or last.after + last.count
            held.append((WIDTH, new))
        while len(held) > 1 and (self._rows > self._max_rows or self._tokens > self._max_tokens):
            _, first = held.popleft()
            self._rows -= first.count
            self._tokens -= first.tokens
            self._floor = min(held[0][0], WIDTH - 1)
            given.append(first)
        self._given += len(given)
        return given

    def close(self) -> list[_Piece]:
        """Nothing comes any more: gives what is held, and `whole` is known."""
        given = self._all()
        self._given += len(given)
        self.whole = self._given == 1
        return given

    def _join(self, depth: int) -> None:
        """Makes one of those held that part from each other below `depth`: all of their prefix has
        come."""
        held = self._held
        while len(held) > 1 and held[-1][0] > depth:
            _, last = held.pop()
            held[-1][1].take(last)

    def _all(self) -> list[_Piece]:
        """Empties the held: one piece, as all of it fits into a call."""
        self._join(-2)
        given = [piece for _, piece in self._held]
        self._held.clear()
        self._rows = self._tokens = 0
        return given


# what a part's result is taken to come to, where the stage's `max_tokens` does not bound it
RESULT_TOKENS = 500

MAX_ROWS = 100_000
"""Members of a group that is not reduced in parts: no model takes as many, and all of them are
held at once."""

_SIGNED = 1 << 63
_SOME = 64


def call_size(stage: PlannedStage) -> CallSize:
    """What one call of a stage holds whose groups may be cut into parts."""
    assert stage.group is not None
    most = stage.group.max_tokens
    result = stage.params.max_tokens or RESULT_TOKENS
    return CallSize(
        stage.group.max_rows, most, result if most is None else max(1, min(result, most // 2))
    )


def part_id(group: RowId, node: NodeId) -> str:
    """The id of a part: the same whenever it holds the same range of the same group."""
    after = f"+{node.after}" if node.after else ""
    return f"{group}/{node.height}.{node.low:016x}.{node.high:016x}{after}"


UnusableGroup = Literal["failed", "incomplete", "large"]
"""Why a group cannot be asked: all its rows failed, some did and it needs all of them, one call
does not hold it."""


def unusable(group: Group, rows: int, failed: int) -> UnusableGroup | None:
    """Why a group cannot be asked that has so many members, and so many more that failed."""
    if not rows:
        return "failed"
    if failed and group.incomplete == "fail":
        return "incomplete"
    if rows > MAX_ROWS and not group.reduces:
        return "large"
    return None


ReadyGroup = tuple[StoredRow, store.GroupSize, TreeNode | None]
"""A group that can be asked, with its node where it was cut."""


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
        """All groups whose members changed, or that failed, some at a time."""
        async for rows in self._pass.rows():
            for start in range(0, len(rows), _SOME):
                await self._walk_some(rows[start : start + _SOME])

    async def _walk_some(self, rows: Sequence[StoredRow]) -> None:
        database = self._context.places.database
        ledger = self._context.ledger
        keys = [row.key for row in rows]
        sizes = await store.group_sizes(database, keys)
        ready = list[ReadyGroup]()
        for row in rows:
            size = sizes.get(row.key)
            if size is None:  # all of its rows are elsewhere now
                ledger.batch.derived.gone.append(row.key)
            elif (one := await self._ready(row, size)) is not None:
                ready.append(one)
        for height in range(1, max((top.id.height for _, _, top in ready if top), default=1)):
            await self._run(self._open_parts(height), self._ask_part)
        await self._run(self._active_rows(ready), self._executor.walk)

    async def _run(self, rows: AsyncGenerator[list[ActiveRow], None], walk: Walk) -> None:
        await self._context.ledger.durable()
        if self._context.stop_signal.stop is None:
            await run_workers(
                [RowSource(rows, walk)], self._context.stop_signal, self._context.workers
            )

    async def _ready(self, row: StoredRow, size: store.GroupSize) -> ReadyGroup | None:
        """The group as it is asked; None where it cannot be."""
        view = self._view(row, size)
        message = None
        match unusable(self._group, size.rows, size.failed):
            case "failed":
                message = f"all {size.failed:,} rows of this group failed"
            case "incomplete":
                message = (
                    f"{size.failed:,} of the {size.rows + size.failed:,} rows of this group failed"
                )
            case "large":
                message = f"this group has {size.rows:,} rows; {self._remedy_if_large()}"
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

    def _remedy_if_large(self) -> str:
        if self._stage.asks:
            return "add `reduce: {max_rows: 50}` to ask them in parts"
        first = "group by one more field first, and group what comes of that again"
        return f"a function is given {MAX_ROWS:,} at most; {first}"

    def _view(self, row: StoredRow, size: store.GroupSize) -> RowView:
        """What a group sees, but for its rows."""
        view = self._context.views.begun(row.data, None, None)
        view.own |= {ROWS_COUNT: size.rows, ROWS_FAILED: size.failed}
        return view

    async def _active_rows(
        self, ready: Sequence[ReadyGroup]
    ) -> AsyncGenerator[list[ActiveRow], None]:
        """The groups at work, with all that their members show."""
        tasks = await self._context.tasks_of([made.key for made, _, _ in ready])
        for made, size, top in ready:
            row = self._pass.active_row(made, tasks, self._view(made, size))
            texts: list[str] | None = []  # of a group that is too large and not asked
            if top is not None:
                parts = [part_id(made.id, child) for child in top.children]
                texts = await self._contents.of_parts(parts)
                if texts is None and await self._contents.waits(parts):
                    self._settler.row_parked(row, self._stage)
                    continue
            elif self._group.fits(size.rows, size.tokens):
                texts = await self._contents.of_members(made.key)
            if texts is None:
                failed = await store.failed_part(self._context.places.database, made.key)
                error = self._unfit("parts of this group have no result")
                if failed is not None:
                    error = RowError(ErrorType(failed[0]), f"in a part of this group: {failed[1]}")
                self._executor.fail(row, self._stage, error)
                continue
            row.view.own[ROWS_JSON] = array(texts)
            yield [row]

    async def _cut(self, group: StoredRow) -> TreeNode:
        """Cuts a group and stores its parts; gives the node that is the group itself."""
        ledger = self._context.ledger

        def put(node: TreeNode) -> None:
            body = {
                "rows": node.rows,
                "low": node.id.low,
                "high": node.id.high,
                "after": node.id.after,
            }
            data = snapshot(
                {**body, "parts": [part_id(group.id, child) for child in node.children]}
            )
            part = Part(
                group.key, self._stage.index, part_id(group.id, node.id), node.id.height, data
            )
            ledger.batch.derived.parts.append(part)

        assert isinstance(self._stage, PlannedStage)
        growing = Tree(call_size(self._stage))
        async for page in self._contents.pages(group.key):
            for one in page:
                for node in growing.add(one.sort + _SIGNED, one.size):
                    put(node)
            await ledger.durable()
        *lower, top = growing.close()
        for node in lower:
            put(node)
        ledger.batch.derived.cut.append(group.key)
        await ledger.durable()
        return top

    async def _open_parts(self, height: int) -> AsyncGenerator[list[ActiveRow], None]:
        """All open parts of a height, at work. They are asked anew as the groups are that a retry
        opened."""
        context = self._context
        (database, run, _), after = context.places, 0
        while parts := await store.open_parts(
            database, run, self._stage.index, height, after, _SOME
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
        """Asks one part."""
        if not row.view.own:
            below = json.loads(row.new.data)["parts"]
            if not below or not await self._contents.waits(below):
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
        return RowError(ErrorType.INVALID_ROW, f"stage {self._stage.name!r}: {message}")

    def _fail(self, row: ActiveRow, error: RowError, fingerprint: bytes | None = None) -> None:
        """Settles a part that fails."""
        self._settler.failed(row, self._stage, fingerprint, error)
        self._settler.row_ended(
            row, State.FAILED, failed=(self._stage, error), settled={self._stage.index}
        )


PAGE = 512


class Deduplicator:
    """Decides for a stage which rows go on, once all are there. What was decided and still holds
    is not written."""

    def __init__(self, context: InvocationContext, stage: AnyStage) -> None:
        assert isinstance(stage, LocalStage)
        assert isinstance(stage.operation, Dedupe)
        self._context = context
        self._stage = stage
        self._db, self._run, _ = context.places
        self._fields = stage.operation.body()["dedupe"]

    async def decide(self) -> None:
        """All rows that came to the stage: those with some hundred values at a time, of these some
        hundred rows."""
        after = b""
        while self._context.stop_signal.stop is None:
            firsts = await store.dedupe_firsts(self._db, self._run, self._stage.index, after, PAGE)
            if not firsts:
                return
            at = (after, 1 << 62)  # beyond every key of the last page
            after = max(firsts)
            while rows := await store.dedupe_page(
                self._db, self._run, self._stage.index, *at, after, PAGE
            ):
                changed = [row for row in rows if is_changed(row, firsts[row.hash])]
                prior = await store.prior_tasks(self._db, [row.key for row in changed])
                settler = self._context.settler
                ledger = self._context.ledger
                for one in changed:
                    first = firsts[one.hash]
                    new = NewRow(
                        Row(one.id, 0, {}), 0, b"", "", State(one.state), one.key, one.origin
                    )
                    row = ActiveRow(
                        new, self._context.preparer.view(None), prior=prior.get(one.key, {})
                    )
                    decided = decide(is_first=one.key == first.key, came_as=State(one.came_as))
                    if decided.goes_on:
                        note = None
                        kept = [Child(one.id, one.content, "{}")]
                    else:
                        note = partial(
                            canonical, {"dedupe": self._fields, "first": first.id, "values": {}}
                        )
                        kept = []
                    settler.not_asked(row, self._stage, decided.outcome, note)
                    ledger.batch.derived.children.append(Children(one.key, self._stage.index, kept))
                    settler.row_moved(row, one.state, decided.state, one.result_id)
                if changed:
                    await ledger.durable()
                at = (rows[-1].hash, rows[-1].key)
