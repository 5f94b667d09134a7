"""What a stored row came to, read back: what each stage saw of it, what became of it there, the
requests that were sent for it, and the rows that are written. Used by inspect and why, by outputs,
and wherever a run takes up stored rows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from agac.core.errors import ErrorType
from agac.core.keys import IdOrder, definition_hash, id_order, local_fingerprint, snapshot
from agac.core.types import JSONValue, Outcome
from agac.engine.walk.derived_rows import MemberView
from agac.engine.walk.effects import descended, plain, replay
from agac.plan.render import Messages, Prints, RowView, asked_again, followed
from agac.plan.stage import RecordedStage, ends_of, recorded_stages, written_of
from agac.spec.graph import descent, giving, homes, levels_of
from agac.spec.templates import ROWS_COUNT, ROWS_FAILED, ROWS_JSON, SKIPPED
from agac.spec.workflow import Stage
from agac.store import rows as store
from agac.store.batches import RowTask
from agac.store.batches import tasks_of_row as batched_tasks
from agac.store.db import Database, nested
from agac.store.decisions import Fixes, redos_of
from agac.store.history import TaskRecord, parts_of, rows_above, tasks_of_row
from agac.store.rows import ExportRow, SourcesByStage, StageResult, State, StoredRow
from agac.store.runs import run_record


class RowViews:
    """Puts row views together, for rows that came to their end, and for those made of them. Of
    results those are read that some stage can see, and the `wanted` ones. `given` are the run's
    variables."""

    def __init__(
        self,
        stages: Sequence[Stage],
        given: Mapping[str, JSONValue],
        database: Database,
        wanted: Collection[str] = (),
    ) -> None:
        self._stages = stages
        self._vars = dict(given)
        self._db = database
        self._followed = followed(stages).union(wanted)

    async def ended(self, keys: Sequence[int]) -> dict[int, RowView]:
        """What is seen of these rows after all of their stages, by key; of one that failed as far
        as it came."""
        rows = await store.rows_of_keys(self._db, keys)
        above = {row.parent_key for row in rows.values() if row.parent_key is not None}
        parents = await self.ended(sorted(above)) if above else {}
        results = await store.results_of_rows(self._db, keys)
        by_row = nested((key, stage, result) for (key, stage), result in results.items())
        found = {}
        for key, row in rows.items():
            parent = parents[row.parent_key] if row.parent_key is not None else None
            view = self.begun(row.data, row.origin, parent)
            for stage, result in sorted(by_row.get(key, {}).items()):
                replay(view, self._stages[stage], result, self._followed)
            found[key] = view
        return found

    def begun(self, data: str, origin: int | None, parent: RowView | None) -> RowView:
        """What a row sees before its own stages: it was made at `origin` of one that saw `parent`;
        `data` is JSON."""
        fields: dict[str, JSONValue] = json.loads(data) or {}
        if parent is None or origin is None:
            return RowView(fields, self._vars)
        return descended(parent, self._stages[origin], fields)


class GroupContents:
    """Reads what the calls of one stage are given. `member` is how it looks at its rows."""

    def __init__(self, database: Database, run: int, views: RowViews, member: MemberView) -> None:
        self._db = database
        self._run = run
        self._views = views
        self._member = member

    async def of_members(
        self,
        group: int,
        *,
        low: int = store.FIRST,
        high: int = store.LAST,
        after: int = 0,
        rows: int | None = None,
    ) -> list[str]:
        """JSON texts of a group's members with hashes `low` to `high`, by id: `rows` after the
        first `after`."""
        found: list[tuple[IdOrder, str]] = []
        async for page in self.pages(group, low=low, high=high):
            page, after = page[after:], max(after - len(page), 0)
            if rows is not None:
                page = page[: rows - len(found)]
            texts = await self.texts(page)
            found += [(id_order(one.id), text) for one, text in zip(page, texts, strict=True)]
            if rows is not None and len(found) >= rows:
                break
        return [text for _, text in sorted(found)]

    async def texts(self, members: Sequence[store.MemberRow]) -> list[str]:
        """What stands for each of these members in a call; "" for one that failed."""
        views = await self._views.ended([one.key for one in members if one.text is None])
        return [
            self._member.text(views[one.key]) if one.text is None else one.text for one in members
        ]

    async def pages(
        self,
        group: int,
        *,
        low: int = store.FIRST,
        high: int = store.LAST,
        failed_too: bool = False,
    ) -> AsyncIterator[list[store.MemberRow]]:
        """The members of a group, failed ones only where they are wanted, some hundred at a time,
        by their hashes."""
        at = (low, 0)
        while page := await store.members(
            self._db, group, *at, high, failed_too, store.EXPORT_RANGE
        ):
            yield page
            at = (page[-1].sort, page[-1].key)

    async def of_part(self, group: int, data: str) -> list[str] | None:
        """What a part of a group is made of, by its stored `data`: members, or lower parts; None:
        one has no result."""
        body = json.loads(data)
        if body["parts"]:
            return await self.of_parts(body["parts"])
        low = body["low"] + store.FIRST
        high = body["high"] + store.FIRST
        return await self.of_members(
            group, low=low, high=high, after=body["after"], rows=body["rows"]
        )

    async def of_parts(self, ids: Sequence[str]) -> list[str] | None:
        """What these parts came to, in their order: JSON texts; None where one of them has no
        result."""
        values = await store.part_values(self._db, self._run, self._member.index, ids)
        if len(values) == len(ids):
            return [values[one] for one in ids]
        return None

    async def waits(self, ids: Sequence[str]) -> bool:
        """Whether one of these parts has no end yet: it waits for a batch."""
        return await store.any_open_part(self._db, self._run, self._member.index, ids)


def array(texts: Sequence[str]) -> str:
    """JSON texts as one array."""
    return f"[{','.join(texts)}]"


@dataclass(slots=True)
class RowHistory:
    """A stored row and what a run did for it: its tasks by stage, those of replicas by stage and
    number, and those that are in batches. `view` is the row as its first stage saw it: `learn`
    what became of each stage before the next."""

    run: int
    stages: Sequence[RecordedStage]
    row: StoredRow
    tasks: Mapping[int, TaskRecord]
    replicas: Mapping[tuple[int, int], TaskRecord]
    in_batches: Sequence[RowTask]
    view: RowView
    redos: Fixes
    followed: frozenset[str]
    """The stages whose results others look at."""
    passed: set[str] = field(default_factory=set)

    @staticmethod
    async def read(
        database: Database, run: int, stages: Sequence[RecordedStage], row: StoredRow
    ) -> RowHistory:
        """The history of a row."""
        found = await tasks_of_row(database, row.key)
        tasks = {task.stage: task for task in found if not task.replica}
        replicas = {(task.stage, task.replica): task for task in found if task.replica}
        in_batches = await batched_tasks(database, row.key)
        redos = await redos_of(database, (await run_record(database, run)).workflow)
        view = await _first_view(database, run, stages, row)
        return RowHistory(
            run, stages, row, tasks, replicas, in_batches, view, redos, followed(stages)
        )

    @property
    def own(self) -> frozenset[str]:
        """The names of the stages that the row goes through: of others upstream it was made."""
        return frozenset(
            stage.name for stage in levels_of(self.stages).by_origin[self.row.origin].stages
        )

    @property
    def lists(self) -> list[str]:
        """The stages whose functions gave a list of rows in the place of this one."""
        gave = ((self.stages[index], task.value) for index, task in self.tasks.items())
        return [
            one.name
            for one, text in gave
            if one.makes == "rows" and text and isinstance(json.loads(text), list)
        ]

    def outcome(self, stage: RecordedStage) -> str | None:
        """What became of the row at a stage; None: nothing yet."""
        task = self.tasks.get(stage.index)
        return task.outcome if task else None

    def stages_met(self) -> list[RecordedStage]:
        """The stages that the row goes through, and those at which it turned out that nothing can
        be made of it. Where a function gave a list, its rows go through those that follow, not
        this one; one that repeats an id, none."""
        if self.row.place is not None and self.row.place < 0 and self.row.origin is not None:
            return [self.stages[self.row.origin]]
        repeats = self.row.state == State.DROPPED or self.row.error_type == ErrorType.DUPLICATE_ID
        own = frozenset[str]() if repeats else self.own
        lists = set(self.lists)
        return [
            stage
            for stage in self.stages
            if stage.index in self.tasks
            or (stage.name in own and not lists.intersection(stage.ancestors))
        ]

    def learn(self, stage: RecordedStage, task: TaskRecord | None) -> None:
        """What became of a stage: `task` None when nothing did, or when what did is of an earlier
        row."""
        if task is not None and task.outcome in (Outcome.SKIPPED, Outcome.DONE, Outcome.REUSED):
            self.passed.add(stage.name)
            result = StageResult(task.value, task.outcome == Outcome.SKIPPED)
            replay(self.view, stage, result, self.followed)

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Which of these stages did not let the row through, as far as it is known."""
        own = self.own
        return [name for name in names if name in own and name not in self.passed]

    def asked(self, stage: RecordedStage) -> tuple[Messages, Prints]:
        """What a stage that asks was asked, and the fingerprints of that. Raises MissingField."""
        prints = partial(stage.task_prints, row_id=self.row.id, run=self.run)
        messages = stage.messages(self.view.prompt_values(stage))
        return asked_again(stage, messages, self.row.id, self.redos, prints)[:2]

    def fingerprint(self, stage: RecordedStage) -> bytes | None:
        """The fingerprint of a stage that asks no model; None of one that has none."""
        assert stage.operation is not None
        if stage.operation.gives_answer:  # what people decide on stands under what they saw
            task = self.tasks.get(stage.index)
            return task.fingerprint if task else None
        if not stage.is_kept:
            return None
        return local_fingerprint(
            definition_hash(stage.operation.body()), self.view.function_input(stage)
        )


async def _first_view(
    database: Database, run: int, stages: Sequence[RecordedStage], row: StoredRow
) -> RowView:
    views = RowViews(stages, stages[0].variables, database)
    if row.origin is None:
        return views.begun(row.data, None, None)
    maker = stages[row.origin]
    if maker.group is None:
        assert row.parent_key is not None
        return views.begun(
            row.data, row.origin, (await views.ended([row.parent_key]))[row.parent_key]
        )
    contents = GroupContents(
        database, run, views, MemberView.of(maker, {stage.name: stage for stage in stages})
    )
    group = row
    size = store.GroupSize(0, 0, 0)
    if row.parent_key is not None:
        (group,) = await rows_above(database, row)
        texts = await contents.of_part(group.key, row.data)
        size = store.GroupSize(len(texts or ()), 0, 0)
    else:
        size = (await store.group_sizes(database, [row.key])).get(row.key, size)
        if maker.group.fits(size.rows, size.tokens):
            texts = await contents.of_members(row.key)
        else:  # its parts that are parts of no other one, in the order of what they hold
            bodies = {
                str(part.id): json.loads(part.data) for part in await parts_of(database, row.key)
            }
            below = {name for body in bodies.values() for name in body["parts"]}
            highest = [
                (body["low"], body["after"], name)
                for name, body in bodies.items()
                if name not in below
            ]
            texts = await contents.of_parts([name for _, _, name in sorted(highest)])
    view = views.begun(group.data, None, None)
    view.own |= {ROWS_COUNT: size.rows, ROWS_FAILED: size.failed}
    if texts is not None:
        view.own[ROWS_JSON] = array(texts)
    return view


async def sources_of_rows(
    database: Database, stages: Sequence[Stage], keys: Sequence[int]
) -> dict[int, SourcesByStage]:
    """The sources of these rows' own answers, by the keys of the rows and the names of the
    stages."""
    found: dict[int, SourcesByStage] = {}
    for key, stage, text in await store.rows_sources(database, keys):
        found.setdefault(key, {})[stages[stage].name] = json.loads(text)
    return found


class FinalRows:
    """Reads the rows of a run for its outputs, as the run's definition says what they come to.
    `formed`: with the fields that they had in the end, where these are not their own; `inputs`:
    all that rows which stages made have, and not only where they failed; `stage`: the results of
    this one, in the place of those that are written; `hows`: how people had to do with results;
    `sources`: those of the answers."""

    def __init__(
        self,
        definition: Mapping[str, Any],
        *,
        formed: bool = False,
        inputs: bool = False,
        stage: str | None = None,
        hows: bool = False,
        sources: bool = False,
    ) -> None:
        self._stages = recorded_stages(definition)
        self._hows = hows
        self._sources = sources
        stages = self._stages
        if stage is not None:
            definition = {**definition, "results": [stage], "rows": homes(stages)[stage]}
        self._rows_of = {stage.name: stage.rows_of for stage in stages}
        self._vars = definition["vars"]
        self._ends = [stages[position] for position in ends_of(definition)]
        self._giving = {end.name: giving(end.name, stages) for end in self._ends}
        position = written_of(definition)
        first = self._ends[0]
        self._path = descent(stages, None if position is None else stages[position])
        self._last = first.name if first.changes_rows else first.rows_of
        self._made_again = any(not end.is_kept for end in self._ends)
        own = levels_of(stages).by_origin[position].stages
        elsewhere = any(end not in own or end.makes == "rows" for end in self._ends)
        self._joins = len(self._ends) > 1 or self._made_again or elsewhere or stage is not None
        self._formed = formed and self._last is not None
        self._inputs = inputs or formed

    async def rows(
        self, database: Database, run: int, *, top: int | None = None
    ) -> AsyncIterator[list[ExportRow]]:
        """All rows that are written, in order, some hundred at a time, and those that failed
        before they came to be; `top`: those only that were made of the row with this key, of the
        input or a group, or the row itself."""
        views = self._views(database)
        async for rows in self._written(database, run).rows(top):
            yield await self._with_results(database, views, rows)

    async def failed(
        self, database: Database, run: int
    ) -> AsyncIterator[tuple[int, list[ExportRow]]]:
        """The failed rows that `rows` does not come to, on levels beside and before, each by its
        number (0: input)."""
        views = self._views(database)
        met = self._written(database, run).met
        failed = {
            count.origin
            for count in await store.made_counts(database, run)
            if count.state == State.FAILED
        }
        for number, level in enumerate(levels_of(self._stages).all):
            if level.origin not in met and (level.origin is None or level.origin in failed):
                async for rows in store.failed_rows(database, run, level.origin):
                    yield number, await self._with_results(database, views, rows)

    def _written(self, database: Database, run: int) -> WrittenRows:
        return WrittenRows(
            database, run, self._stages, self._path, [end.name for end in self._ends]
        )

    def _views(self, database: Database) -> RowViews:
        wanted = [one.name for stages in self._giving.values() for one in stages]
        return RowViews(self._stages, self._vars, database, wanted)

    async def _with_results(
        self, database: Database, views: RowViews, rows: list[ExportRow]
    ) -> list[ExportRow]:
        """The rows with the results of their ends and, where that is wanted, their fields in the
        end. Results of several stages are joined in one object; one that was skipped is null in
        it."""
        wanted = self._inputs or self._joins
        made = [row.key for row in rows if row.made and (wanted or row.state == State.FAILED)]
        cut = [row.key for row in rows if row.error_type == ErrorType.TRUNCATED]
        if cut:
            came = await store.partial_replies(database, cut)
            rows = [row._replace(value=came.get(row.key, row.value)) for row in rows]
        if self._hows:
            hows = await store.rows_how(database, [row.key for row in rows])
            names = {
                key: {self._stages[stage].name: how for stage, how in own.items()}
                for key, own in hows.items()
            }
            rows = [row._replace(how=names.get(row.key, {})) for row in rows]
        if self._sources:
            found = await sources_of_rows(database, self._stages, [row.key for row in rows])
            rows = [row._replace(sources=found.get(row.key, {})) for row in rows]
        if not (self._joins or self._formed or made):
            return rows
        keys = [row.key for row in rows]
        results = await store.results_of_rows(database, keys) if self._joins else {}
        row_views = await views.ended(keys if self._formed or self._made_again else made)
        return [self._final(row, row_views.get(row.key), results) for row in rows]

    def _final(
        self, row: ExportRow, view: RowView | None, results: Mapping[tuple[int, int], StageResult]
    ) -> ExportRow:
        value = row.value
        form = row.form
        data = row.data
        if self._joins and row.state == State.DONE:
            texts = [self._text(end, row.key, results, view) for end in self._ends]
            named = (
                f"{snapshot(end.name)}:{text}" for end, text in zip(self._ends, texts, strict=True)
            )
            value = texts[0] if len(texts) == 1 else f"{{{','.join(named)}}}"
        if view is not None and (self._formed or row.made):
            form = self._nearest(view, self._last)
            if row.made and (self._inputs or row.state == State.FAILED):
                data = snapshot(form)
        return row._replace(value=value, form=form, data=data)

    def _text(
        self,
        end: RecordedStage,
        row: int,
        results: Mapping[tuple[int, int], StageResult],
        view: RowView | None,
    ) -> str:
        """What a stage, or the last that amends it, gave for the row with this key, JSON."""
        for stage in self._giving[end.name]:
            value, skipped = results.get((row, stage.index)) or (None, False)
            if not (stage.is_kept or stage.gives_answer or skipped) and view is not None:
                return snapshot(
                    self._nearest(view, stage.name if stage.changes_rows else stage.rows_of)
                )
            # of the row that this one was made of
            if value is None and not skipped and view is not None:
                found = view.results.get(stage.name, SKIPPED)
                value = None if found is SKIPPED else snapshot(plain(found))
            if value is not None:
                return value
        return "null"

    def _nearest(self, view: RowView, name: str | None) -> dict[str, JSONValue]:
        """The row's fields after a stage; as far as it came, of one that did not come that far."""
        while name is not None and name not in view.forms:
            name = self._rows_of[name]
        return view.forms[name]


MAX_KEYS = 4096  # children that are read at once


class At(NamedTuple):
    """A row on the way down to those that are written; `depth` counts the levels of the way that
    are above it."""

    row: ExportRow
    depth: int


class WrittenRows:
    """Goes from rows down to what was made of them, along the stages `path`. In the place of a row
    for which a function gave a list stand the rows of that, where the function leads to the stages
    `ends` (None: wherever it leads). `met` are the positions of those whose rows are on the way;
    None: the input's."""

    def __init__(
        self,
        database: Database,
        run: int,
        stages: Sequence[RecordedStage],
        path: Sequence[RecordedStage],
        ends: Collection[str] | None = None,
    ) -> None:
        self._db = database
        self._run = run
        levels = levels_of(stages)
        self._groups = path[0] if path and path[0].makes == "groups" else None
        self._makers = path[1:] if self._groups else path
        origins = [
            self._groups.index if self._groups else None,
            *(maker.index for maker in self._makers),
        ]
        every = frozenset(stage.name for stage in stages)
        wanted = [
            *({maker.name} for maker in self._makers),
            every if ends is None else frozenset(ends),
        ]
        self._functions = [
            [
                one.index
                for one in levels.by_origin[at].stages
                if one.makes == "rows" and levels.leads_to(one, names)
            ]
            for at, names in zip(origins, wanted, strict=True)
        ]
        self.met = {
            *origins,
            *(position for functions in self._functions for position in functions),
        }

    async def rows(self, top: int | None = None) -> AsyncIterator[list[ExportRow]]:
        """All, and those of which nothing was made since they failed, some hundred at a time;
        `top`: of that row."""
        origin = self._groups.index if self._groups is not None else None
        if top is not None:
            first = store.rows_of_results(self._db, [top], -1 if origin is None else origin)
        elif origin is not None:
            first = store.group_rows(self._db, self._run, origin)
        else:
            first = store.export_rows(self._db, self._run)
        async for rows in first:
            if not self._makers and not self._functions[0] and self._groups is None:
                yield rows
                continue
            async for found in self._below([At(row, 0) for row in rows]):
                yield found

    async def _below(self, rows: list[At]) -> AsyncIterator[list[ExportRow]]:
        """What is written of these rows, in their order."""
        wanted = await self._wanted(rows)
        if not wanted:
            yield [
                at.row
                for at in rows
                if at.depth == len(self._makers) or at.row.state == State.FAILED
            ]
            return
        counts = await store.child_counts(self._db, list(wanted))
        pairs = [(key, origin) for key, (origins, _) in wanted.items() for origin in origins]
        if sum(counts.get(pair, 0) for pair in pairs) <= MAX_KEYS:
            children = await self._children(pairs)
            with_children: list[At] = []
            for at in rows:
                if at.row.key in wanted:
                    made = children.get(at.row.key, ())
                    depth = wanted[at.row.key][1]
                    with_children += [
                        At(child._replace(ordinal=at.row.ordinal), depth) for child in made
                    ]
                else:
                    with_children.append(at)
            async for found in self._below(with_children):
                yield found
        elif len(rows) > 1:
            for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                async for found in self._below(half):
                    yield found
        else:
            for key, origin in pairs:
                async for found in self._paged(rows[0], key, origin, wanted[key][1]):
                    yield found

    async def _children(self, pairs: list[tuple[int, int]]) -> dict[int, list[ExportRow]]:
        """The children of rows, by these: of each pair of a row and a stage that made them."""
        children: dict[int, list[ExportRow]] = {}
        for origin in sorted({origin for _, origin in pairs}):
            keys = [key for key, one in pairs if one == origin]
            for parent, _, child in await store.children_export(self._db, keys, origin=origin):
                children.setdefault(parent, []).append(child)
        return children

    async def _paged(
        self, at: At, key: int, origin: int, depth: int
    ) -> AsyncIterator[list[ExportRow]]:
        """What is written of the many children of one row."""
        after = -1
        while page := await store.children_export(
            self._db, [key], origin=origin, after=after, limit=store.EXPORT_RANGE
        ):
            after = page[-1][1]
            children = [At(child._replace(ordinal=at.row.ordinal), depth) for _, _, child in page]
            async for found in self._below(children):
                yield found

    async def _wanted(self, rows: list[At]) -> dict[int, tuple[tuple[int, ...], int]]:
        """For which rows others are written: by their keys, the positions of the stages that made
        those, and depth."""
        through = [at for at in rows if at.row.state in (State.DONE, State.SKIPPED)]
        asked = sorted({at.row.key for at in through if self._functions[at.depth]})
        results = await store.results_of_rows(self._db, asked) if asked else {}
        found: dict[int, tuple[tuple[int, ...], int]] = {}
        for at in through:
            lists = []  # the positions of functions that gave lists
            for position in self._functions[at.depth]:
                result = results.get((at.row.key, position))
                if result is not None and result.value is not None and result.value.startswith("["):
                    lists.append(position)
            if lists:
                found[at.row.key] = (tuple(lists), at.depth)
            elif at.depth < len(self._makers):
                found[at.row.key] = ((self._makers[at.depth].index,), at.depth + 1)
        return found
