"""filtered.jsonl: a line for each row that a stage made leave, with the guard and the values that it looked at."""

from __future__ import annotations

import json

from agac.core.keys import snapshot
from agac.data.jsontext import encode
from agac.data.sinks import Sink
from agac.engine.lineage import Lineage
from agac.engine.written import Written
from agac.plan.definition import RecordedStage, recorded_stages
from agac.spec.levels import descent
from agac.store.db import Database
from agac.store.rows import ExportRow, State, why_filtered
from agac.store.runs import RunRecord, definition_of


async def write_filtered(database: Database, run: RunRecord, sink: Sink) -> None:
    """Writes the whole of filtered.jsonl: `{"id","row_number","stage","when","values"}`, then `input` if included.

    Rows of the input come first, in order, those that a function gave in the place of one where it stands; then level
    by level those that stages made, in the order of the rows that they come from, and groups by their ids.
    """
    definition = await definition_of(database, run.id)
    stages = recorded_stages(definition)
    lineage = Lineage(stages, definition["vars"], database)
    for maker in (None, *(stage for stage in stages if stage.makes not in (None, "rows"))):
        async for rows in Written(database, run.id, stages, descent(stages, maker)).rows():
            if left := [row for row in rows if row.state == State.FILTERED]:
                await _write(database, left, stages, lineage if run.include_input else None, sink)


async def _write(
    database: Database, rows: list[ExportRow], stages: tuple[RecordedStage, ...], lineage: Lineage | None, sink: Sink
) -> None:
    """Some rows that left; without `lineage` their fields are not told. Of a row that a stage made they are those with
    which it left."""
    why = await why_filtered(database, [row.key for row in rows])
    sights = await lineage.ended([row.key for row in rows if row.made]) if lineage is not None else {}
    for row in rows:
        position, note = why[row.key]
        about = {"id": row.id, "row_number": row.ordinal, "stage": stages[position].name, **json.loads(note)}
        data = snapshot(sights[row.key].data(stages[position])) if row.key in sights else row.data
        tail = f',"input":{data}' if lineage is not None else ""
        sink.write_text(f"{encode(about)[:-1]}{tail}}}")
