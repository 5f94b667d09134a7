"""Reads back what a stored row came to: what each stage saw of it, what it came to there, the
requests that were sent for it, and its results in outputs.

Used by inspect and why, by outputs, and wherever a run takes up stored rows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agac.core.errors import ErrorType
from agac.core.keys import IdOrder, definition_hash, id_order, local_fingerprint, snapshot
from agac.core.types import JSONValue, Outcome
from agac.engine.walk.derived_rows import MemberView
from agac.engine.walk.effects import descended, plain, replay
from agac.engine.walk.written_rows import WrittenRows
from agac.plan.render import Messages, Prints, RowView, asked_again, followed
from agac.plan.stage import RecordedStage, ends_of, recorded_stages, written_of
from agac.spec.graph import descent, giving, homes, levels_of
from agac.spec.operations import Group
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
    """Puts row views together, for rows that came to their end, and for those made of them."""

    def __init__(
        self,
        stages: Sequence[Stage],
        variables: Mapping[str, JSONValue],
        database: Database,
        wanted: Collection[str] = (),
    ) -> None:
        """`variables` are the run's. `wanted` are stages whose results are read, even if no other
        stage can see them."""
        self._stages = stages
        self._vars = dict(variables)
        self._db = database
        self._followed = followed(stages).union(wanted)

    async def ended(self, keys: Sequence[int]) -> dict[int, RowView]:
        """Returns by key what is seen of these rows after all of their stages; of a failed row, as
        far as it came."""
        rows = await store.rows_of_keys(self._db, keys)
        above = {row.parent_key for row in rows.values() if row.parent_key is not None}
        parents = await self.ended(sorted(above)) if above else {}
        results = await store.results_of_rows(self._db, keys)
        by_row = nested((key, stage, result) for (key, stage), result in results.items())
        views = {}
        for key, row in rows.items():
            parent = parents[row.parent_key] if row.parent_key is not None else None
            view = self.begun(row.data, row.origin, parent)
            for stage, result in sorted(by_row.get(key, {}).items()):
                replay(view, self._stages[stage], result, self._followed)
            views[key] = view
        return views

    def begun(self, data: str, origin: int | None, parent: RowView | None) -> RowView:
        """Returns what a row sees before its own stages.

        `data` is its content as JSON. It was made by the stage `origin` of a row that saw
        `parent`."""
        fields: dict[str, JSONValue] = json.loads(data) or {}
        if parent is None or origin is None:
            return RowView(fields, self._vars)
        return descended(parent, self._stages[origin], fields)


class GroupContents:
    """Reads what the calls of one stage with groups are given."""

    def __init__(self, database: Database, run: int, views: RowViews, member: MemberView) -> None:
        """`member` is what the stage sees of each member."""
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
        """Returns the JSON texts of a group's members with hashes `low` to `high`, ordered by id.

        The first `after` of them are left out, and those after `rows` more."""
        texts_by_id: list[tuple[IdOrder, str]] = []
        async for page in self.pages(group, low=low, high=high):
            members = page[after:]
            after = max(after - len(page), 0)
            if rows is not None:
                members = members[: rows - len(texts_by_id)]
            texts = await self.texts(members)
            ids = [id_order(member.id) for member in members]
            texts_by_id += zip(ids, texts, strict=True)
            if rows is not None and len(texts_by_id) >= rows:
                break
        return [text for _, text in sorted(texts_by_id)]

    async def texts(self, members: Sequence[store.MemberRow]) -> list[str]:
        """Returns the text of each of these members in a call; "" for one that failed."""
        views = await self._views.ended([member.key for member in members if member.text is None])
        return [
            self._member.text(views[member.key]) if member.text is None else member.text
            for member in members
        ]

    async def pages(
        self,
        group: int,
        *,
        low: int = store.FIRST,
        high: int = store.LAST,
        failed_too: bool = False,
    ) -> AsyncIterator[list[store.MemberRow]]:
        """Reads the members of a group in the order of their hashes, some hundred at a time.

        Failed ones are left out unless `failed_too`."""
        begin = (low, 0)
        while page := await store.members(
            self._db, group, *begin, high, failed_too, store.EXPORT_RANGE
        ):
            yield page
            begin = (page[-1].sort, page[-1].key)

    async def of_part(self, group: int, data: str) -> list[str] | None:
        """Returns what a part of a group is made of: members, or lower parts.

        `data` is its stored content. None: a lower part has no result."""
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
        values = await store.part_values(self._db, self._run, self._member.stage.index, ids)
        if len(values) == len(ids):
            return [values[part] for part in ids]
        return None

    async def waits(self, ids: Sequence[str]) -> bool:
        """Whether one of these parts has no end yet: it waits for a batch."""
        return await store.any_open_part(self._db, self._run, self._member.stage.index, ids)


def array(texts: Sequence[str]) -> str:
    """Joins JSON texts to one array."""
    return f"[{','.join(texts)}]"


@dataclass(slots=True)
class RowHistory:
    """A stored row and what a run did for it."""

    run: int
    """The number of the run."""

    stages: Sequence[RecordedStage]
    """The stages of the run."""

    row: StoredRow
    """The row."""

    tasks: Mapping[int, TaskRecord]
    """Its tasks, by the index of the stage."""

    replicas: Mapping[tuple[int, int], TaskRecord]
    """The tasks of replicas, by the index of the stage and the number of the replica."""

    in_batches: Sequence[RowTask]
    """Its tasks that are in batches."""

    view: RowView
    """The row, at first as its first stage saw it: `learn` the outcome of each stage before the
    next."""

    redos: Fixes
    """The answers that people want asked again."""

    followed: frozenset[str]
    """The stages whose results others look at."""

    passed: set[str] = field(default_factory=set)
    """The stages that let the row through, as far as `learn` was told."""

    @staticmethod
    async def read(
        database: Database, run: int, stages: Sequence[RecordedStage], row: StoredRow
    ) -> RowHistory:
        """Reads the history of a row."""
        records = await tasks_of_row(database, row.key)
        tasks = {task.stage: task for task in records if not task.replica}
        replicas = {(task.stage, task.replica): task for task in records if task.replica}
        in_batches = await batched_tasks(database, row.key)
        redos = await redos_of(database, (await run_record(database, run)).workflow)
        view = await _first_view(database, run, stages, row)
        return RowHistory(
            run, stages, row, tasks, replicas, in_batches, view, redos, followed(stages)
        )

    @property
    def own(self) -> frozenset[str]:
        """The names of the stages of the row's level. The stages before them made it."""
        return frozenset(
            stage.name for stage in levels_of(self.stages).by_origin[self.row.origin].stages
        )

    @property
    def lists(self) -> list[str]:
        """The stages whose functions gave a list of rows in the place of this one."""
        values = [(self.stages[index], task.value) for index, task in self.tasks.items()]
        return [
            stage.name
            for stage, value in values
            if stage.makes == "rows" and value and isinstance(json.loads(value), list)
        ]

    def outcome(self, stage: RecordedStage) -> str | None:
        """Returns the outcome of the row at a stage; None: it has none yet."""
        task = self.tasks.get(stage.index)
        return task.outcome if task else None

    def stages_met(self) -> list[RecordedStage]:
        """Returns the stages that the row goes through, and those at which it turned out that
        nothing can be made of it.

        If a function gave a list, the rows of the list go through the stages that follow, and this
        row does not. A row that repeats an id goes through none."""
        if self.row.place is not None and self.row.place < 0 and self.row.origin is not None:
            return [self.stages[self.row.origin]]
        repeats = self.row.state == State.DROPPED or self.row.error_type == ErrorType.DUPLICATE_ID
        names = frozenset[str]() if repeats else self.own
        lists = set(self.lists)

        def is_met(stage: RecordedStage) -> bool:
            if stage.index in self.tasks:
                return True
            return stage.name in names and not lists.intersection(stage.ancestors)

        return [stage for stage in self.stages if is_met(stage)]

    def learn(self, stage: RecordedStage, task: TaskRecord | None) -> None:
        """Does to `view` what a stage did.

        `task` is None if it did nothing yet, or only to an earlier content of the row."""
        if task is not None and task.outcome in (Outcome.SKIPPED, Outcome.DONE, Outcome.REUSED):
            self.passed.add(stage.name)
            result = StageResult(task.value, task.outcome == Outcome.SKIPPED)
            replay(self.view, stage, result, self.followed)

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Returns which of these stages did not let the row through, as far as it is known."""
        own = self.own
        return [name for name in names if name in own and name not in self.passed]

    def asked(self, stage: RecordedStage) -> tuple[Messages, Prints]:
        """Makes the messages of a stage that asks again, and their fingerprints. Raises
        MissingField."""
        prints = partial(stage.task_prints, row_id=self.row.id, run=self.run)
        messages = stage.messages(self.view.prompt_values(stage))
        return asked_again(stage, messages, self.row.id, self.redos, prints)[:2]

    def fingerprint(self, stage: RecordedStage) -> bytes | None:
        """Returns the fingerprint of a stage that asks no model; None if it has none."""
        assert stage.operation is not None
        if stage.operation.gives_answer:  # decisions are stored under what people saw
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
    """Returns what the first stage of a row saw of it."""
    views = RowViews(stages, stages[0].variables, database)
    if row.origin is None:
        return views.begun(row.data, None, None)
    maker = stages[row.origin]
    if maker.group is not None:
        contents = GroupContents(
            database, run, views, MemberView.of(maker, {stage.name: stage for stage in stages})
        )
        return await _group_view(database, contents, views, maker.group, row)
    assert row.parent_key is not None
    parents = await views.ended([row.parent_key])
    return views.begun(row.data, row.origin, parents[row.parent_key])


async def _group_view(
    database: Database, contents: GroupContents, views: RowViews, rules: Group, row: StoredRow
) -> RowView:
    """Returns what the stage of a group, or of a part of a large one, saw of it."""
    if row.parent_key is not None:
        (group,) = await rows_above(database, row)
        texts = await contents.of_part(group.key, row.data)
        size = store.GroupSize(len(texts or ()), 0, 0)
    else:
        group = row
        sizes = await store.group_sizes(database, [row.key])
        size = sizes.get(row.key, store.GroupSize(0, 0, 0))
        if rules.fits(size.rows, size.tokens):
            texts = await contents.of_members(row.key)
        else:
            texts = await contents.of_parts(await _highest_parts(database, row.key))
    view = views.begun(group.data, None, None)
    view.own |= {ROWS_COUNT: size.rows, ROWS_FAILED: size.failed}
    if texts is not None:
        view.own[ROWS_JSON] = array(texts)
    return view


async def _highest_parts(database: Database, group: int) -> list[str]:
    """Returns the parts of a group that are parts of no other one, in the order of what they
    hold."""
    bodies = {str(part.id): json.loads(part.data) for part in await parts_of(database, group)}
    lower = {name for body in bodies.values() for name in body["parts"]}
    highest = [
        (body["low"], body["after"], name) for name, body in bodies.items() if name not in lower
    ]
    return [name for _, _, name in sorted(highest)]


async def sources_of_rows(
    database: Database, stages: Sequence[Stage], keys: Sequence[int]
) -> dict[int, SourcesByStage]:
    """Returns the sources of these rows' own answers, by row key and the name of the stage."""
    sources: dict[int, SourcesByStage] = {}
    for key, stage, text in await store.rows_sources(database, keys):
        sources.setdefault(key, {})[stages[stage].name] = json.loads(text)
    return sources


class FinalRows:
    """Reads the rows of a run for its outputs, with the results that its definition says."""

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
        """`formed`: rows have the fields that they had in the end, if these are not their own.
        `inputs`: rows that stages made have all their fields, not only those that failed. `stage`:
        the results are those of this stage. `hows`: rows have what people did to their results.
        `sources`: rows have the sources of their answers."""
        stages = recorded_stages(definition)
        if stage is not None:
            definition = {**definition, "results": [stage], "rows": homes(stages)[stage]}
        self._stages = stages
        self._vars = definition["vars"]
        self._rows_of = {stage.name: stage.rows_of for stage in stages}
        self._hows = hows
        self._sources = sources
        self._ends = [stages[position] for position in ends_of(definition)]
        self._giving = {end.name: giving(end.name, stages) for end in self._ends}
        written = written_of(definition)
        self._path = descent(stages, None if written is None else stages[written])
        first = self._ends[0]
        self._last = first.name if first.changes_rows else first.rows_of
        self._formed = formed and self._last is not None
        self._inputs = inputs or formed
        self._made_again = any(not end.is_kept for end in self._ends)
        """True if results are made again from the row, since they are not stored."""
        level = levels_of(stages).by_origin[written].stages
        is_of_level = all(end in level and end.makes != "rows" for end in self._ends)
        is_one_stored = len(self._ends) == 1 and not self._made_again
        self._joins = stage is not None or not (is_of_level and is_one_stored)
        """True if the stored result of the row is not simply what is written."""

    async def rows(
        self, database: Database, run: int, *, top: int | None = None
    ) -> AsyncIterator[list[ExportRow]]:
        """Reads all rows that are written, and those that failed before they were made, in their
        order, some hundred at a time.

        `top`: only those made of the row with this key, which is of the input or a group, or the
        row itself."""
        views = self._views(database)
        async for rows in self._written(database, run).rows(top):
            yield await self._with_results(database, views, rows)

    async def failed(
        self, database: Database, run: int
    ) -> AsyncIterator[tuple[int, list[ExportRow]]]:
        """Reads the failed rows that `rows` does not reach, on other levels, each with the number
        of the level (0: the input)."""
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
        """Returns what goes down to the written rows."""
        return WrittenRows(
            database, run, self._stages, self._path, [end.name for end in self._ends]
        )

    def _views(self, database: Database) -> RowViews:
        """Returns what makes views of rows with the results that are written."""
        wanted = [stage.name for stages in self._giving.values() for stage in stages]
        return RowViews(self._stages, self._vars, database, wanted)

    async def _with_results(
        self, database: Database, views: RowViews, rows: list[ExportRow]
    ) -> list[ExportRow]:
        """Returns the rows with their results and, if they are wanted, their fields in the end.

        Results of several stages are joined in one object, in which a skipped one is null."""
        rows = await self._with_facts(database, rows)
        all_made = self._inputs or self._joins
        made = [row.key for row in rows if row.made and (all_made or row.state == State.FAILED)]
        if not (self._joins or self._formed or made):
            return rows
        keys = [row.key for row in rows]
        results = await store.results_of_rows(database, keys) if self._joins else {}
        row_views = await views.ended(keys if self._formed or self._made_again else made)
        return [self._final(row, row_views.get(row.key), results) for row in rows]

    async def _with_facts(self, database: Database, rows: list[ExportRow]) -> list[ExportRow]:
        """Returns the rows with what came of replies that were cut and, if they are wanted, with
        what people did and the sources."""
        keys = [row.key for row in rows]
        cut = [row.key for row in rows if row.error_type == ErrorType.TRUNCATED]
        if cut:
            replies = await store.partial_replies(database, cut)
            rows = [row._replace(value=replies.get(row.key, row.value)) for row in rows]
        if self._hows:
            hows = await store.rows_how(database, keys)
            rows = [row._replace(how=self._by_name(hows.get(row.key, {}))) for row in rows]
        if self._sources:
            sources = await sources_of_rows(database, self._stages, keys)
            rows = [row._replace(sources=sources.get(row.key, {})) for row in rows]
        return rows

    def _by_name(self, hows: Mapping[int, str]) -> dict[str, str]:
        """Returns what people did to results by the names of the stages."""
        return {self._stages[stage].name: how for stage, how in hows.items()}

    def _final(
        self, row: ExportRow, view: RowView | None, results: Mapping[tuple[int, int], StageResult]
    ) -> ExportRow:
        """Returns a row with its results, and with its fields in the end if they are wanted."""
        if self._joins and row.state == State.DONE:
            row = row._replace(value=self._joined(row.key, view, results))
        if view is None or not (self._formed or row.made):
            return row
        form = self._nearest(view, self._last)
        if row.made and (self._inputs or row.state == State.FAILED):
            row = row._replace(data=snapshot(form))
        return row._replace(form=form)

    def _joined(
        self, key: int, view: RowView | None, results: Mapping[tuple[int, int], StageResult]
    ) -> str:
        """Returns the result of a row as JSON: of several stages, an object by their names."""
        texts = [self._text(end, key, results, view) for end in self._ends]
        if len(texts) == 1:
            return texts[0]
        members = [
            f"{snapshot(end.name)}:{text}" for end, text in zip(self._ends, texts, strict=True)
        ]
        return f"{{{','.join(members)}}}"

    def _text(
        self,
        end: RecordedStage,
        row: int,
        results: Mapping[tuple[int, int], StageResult],
        view: RowView | None,
    ) -> str:
        """Returns as JSON what a stage, or the last that amends it, gave for the row with this
        key."""
        for stage in self._giving[end.name]:
            value, skipped = results.get((row, stage.index)) or (None, False)
            if view is not None and not skipped:
                if not stage.is_kept and not stage.gives_answer:
                    return snapshot(
                        self._nearest(view, stage.name if stage.changes_rows else stage.rows_of)
                    )
                if value is None:
                    value = _text_above(view, stage)
            if value is not None:
                return value
        return "null"

    def _nearest(self, view: RowView, name: str | None) -> dict[str, JSONValue]:
        """Returns the row's fields after a stage; of a row that did not come that far, the last
        ones."""
        while name is not None and name not in view.forms:
            name = self._rows_of[name]
        return view.forms[name]


def _text_above(view: RowView, stage: RecordedStage) -> str | None:
    """Returns as JSON what a stage gave for the row that this one was made of; None: nothing."""
    result = view.results.get(stage.name, SKIPPED)
    return None if result is SKIPPED else snapshot(plain(result))
