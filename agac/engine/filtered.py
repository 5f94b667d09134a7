"""filtered.jsonl: a line for each row that a guard made leave, with the guard and the values that it looked at."""

from __future__ import annotations

import json

from agac.data.jsontext import encode
from agac.data.sinks import Sink
from agac.store.db import Database
from agac.store.rows import filtered_rows
from agac.store.runs import RunRecord, definition_of


async def write_filtered(database: Database, run: RunRecord, sink: Sink) -> None:
    """Writes the whole of filtered.jsonl: `{"id","row_number","stage","when","values"}`, then `input` if included."""
    names = [stage["name"] for stage in (await definition_of(database, run.id))["stages"]]
    async for rows in filtered_rows(database, run.id):
        for row in rows:
            about = {"id": row.id, "row_number": row.ordinal, "stage": names[row.stage], **json.loads(row.note)}
            tail = f',"input":{row.data}' if run.include_input else ""
            sink.write_text(f"{encode(about)[:-1]}{tail}}}")
