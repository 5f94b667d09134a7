"""Groups too large for one call are cut into parts (`plan/tree`), and the parts are asked, the smallest first."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial

from agac.core.errors import RowError
from agac.core.keys import snapshot
from agac.core.types import Row, RowId
from agac.engine.asking import Asker
from agac.engine.call import Answer
from agac.engine.contents import Contents, array
from agac.engine.flight import Flight
from agac.engine.levels import Passing, unfit
from agac.engine.settle import Settler
from agac.engine.tasks import Parked, Tasks
from agac.engine.window import walk_all
from agac.plan.prepare import Preparer
from agac.plan.stage import PlannedStage
from agac.plan.tree import CallSize, Node, NodeId, Tree
from agac.spec.template import ROWS_COUNT, ROWS_FAILED, ROWS_JSON
from agac.store.batch import NewRow, Part
from agac.store.rows import MadeRow, State, open_parts, prior_tasks, rows_of_keys

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

    def __init__(self, stage: PlannedStage, store: Callable[[Node], None]) -> None:
        self._tree, self._store = Tree(call_size(stage)), store
        self._last: Node | None = None

    def add(self, sort: int, tokens: int) -> None:
        """One more member; `sort` is 64 bits, unsigned."""
        self._take(self._tree.add(sort, tokens))

    def close(self) -> Node:
        """All members came: the node that is the group itself, which is no part."""
        self._take(self._tree.close())
        assert self._last is not None
        return self._last

    def _take(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if self._last is not None:
                self._store(self._last)
            self._last = node


class Parts:
    """The parts of the large groups of one stage."""

    def __init__(
        self,
        passing: Passing,
        stage: PlannedStage,
        contents: Contents,
        preparer: Preparer,
        asker: Asker,
        tasks: Tasks,
        settler: Settler,
    ) -> None:
        assert stage.group is not None
        self._passing, self._stage, self._contents = passing, stage, contents
        self._preparer, self._asker, self._tasks, self._settler = preparer, asker, tasks, settler

    async def cut(self, group: MadeRow) -> Node:
        """Cuts a group and stores its parts; gives the node that is the group itself."""
        cut, ledger = GroupCut(self._stage, partial(self._store, group)), self._passing.ledger
        async for page in self._contents.pages(group.key):
            for one in page:
                cut.add(one.sort + _SIGNED, one.size)
            await ledger.durable()
        top = cut.close()
        ledger.batch.cut.append(group.key)
        await ledger.durable()
        return top

    def _store(self, group: MadeRow, node: Node) -> None:
        body = {"rows": node.rows, "low": node.id.low, "high": node.id.high, "after": node.id.after}
        part_id = self.name(group, node.id)
        below = [self.name(group, child) for child in node.children]
        part = Part(group.key, self._stage.index, part_id, node.id.height, snapshot({**body, "parts": below}))
        self._passing.ledger.batch.parts.append(part)

    def name(self, group: MadeRow, node: NodeId) -> str:
        """The id of a part: the same whenever it holds the same range of the same group."""
        return part_id(group.id, node)

    async def ask(self, height: int) -> None:
        """Asks all open parts of a height."""
        await self._passing.ledger.durable()
        if self._passing.control.stop is None:
            await walk_all(self._flights(height), self, self._passing.control, self._passing.workers)

    async def _flights(self, height: int) -> AsyncGenerator[list[Flight], None]:
        (database, run, _), after = self._passing.places, 0
        while parts := await open_parts(database, run, self._stage.index, height, after, _SOME):
            after = parts[-1].key
            keys = [part.key for part in parts]
            prior, ready = await prior_tasks(database, keys), await self._passing.ready(keys)
            groups = await rows_of_keys(database, sorted({part.group for part in parts}))
            for part in parts:
                sight = self._passing.lineage.begun(groups[part.group].data, None, None)
                texts = await self._contents.of_part(part.group, part.data)
                if texts is not None:
                    sight.own |= {ROWS_JSON: array(texts), ROWS_COUNT: len(texts), ROWS_FAILED: 0}
                new = NewRow(Row(part.id, 0, {}), 0, b"", part.data, State.PENDING, part.key, self._stage.index)
                again, since = self._again()
                yield [
                    Flight(
                        new, prior.get(part.key, {}), sight=sight, part=True, forced=self._passing.retry is not None,
                        again_from=again, since=since, ready=ready.get(part.key, {}),
                    )
                ]  # fmt: skip

    def _again(self) -> tuple[int | None, float]:
        """From which stage on parts are asked anew, and since when: as the groups are that a retry opened."""
        retry, opened = self._passing.retry, self._passing.opened
        if retry is not None:
            return self._passing.again_from, retry.since
        return (None, 0.0) if opened is None else (opened.again_from, opened.since)

    async def walk(self, flight: Flight) -> None:
        """Asks one part."""
        assert flight.sight is not None
        if not flight.sight.own:
            below = json.loads(flight.new.data)["parts"]
            if below and await self._contents.waits(below):
                return None
            return self._fail(flight, None, unfit(self._stage, "a part of it has no result"))
        prepared = self._preparer.prepare(self._stage, flight.sight, flight.new.row.id)
        if isinstance(prepared, RowError):
            return self._fail(flight, None, prepared)
        asked = partial(self._asker.ask, flight, self._stage, prepared.fingerprint, prepared.request)
        wait = partial(self._asker.wait, flight, self._stage, prepared.fingerprint)
        answer = await self._tasks.answer(flight, self._stage, prepared.fingerprint, asked, wait=wait)
        if flight.ready and answer is not Parked.PARKED:
            self._settler.told(flight)
        if isinstance(answer, Answer):
            self._settler.row_done(flight, answer.result)
        elif isinstance(answer, RowError):
            self._fail(flight, prepared.fingerprint, answer)
        return None

    def _fail(self, flight: Flight, fingerprint: bytes | None, error: RowError) -> None:
        self._settler.task_failed(flight, self._stage, fingerprint, error)
        self._settler.row_failed(flight, self._stage, error, {self._stage.index})
