"""What rows see, put together from the store: their own fields, and those and the results of what they were made of."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from agac.core.types import JSONValue
from agac.engine.effects import descended, replay
from agac.plan.prepare import Sight, followed
from agac.spec.workflow import Stage
from agac.store.db import Database
from agac.store.rows import StageResult, results_of_rows, rows_of_keys


class Lineage:
    """Puts sights together, for rows that came to their end, and for those made of them. Of results those are read
    that some stage can see, and the `wanted` ones."""

    def __init__(
        self,
        stages: Sequence[Stage],
        variables: Mapping[str, JSONValue],
        database: Database,
        *,
        wanted: Collection[str] = (),
    ) -> None:
        self._stages, self._vars, self._db = stages, dict(variables), database
        self._followed = followed(stages).union(wanted)

    async def ended(self, keys: Sequence[int]) -> dict[int, Sight]:
        """What is seen of these rows after all of their stages, by key; of one that failed as far as it came."""
        rows = await rows_of_keys(self._db, keys)
        above = {row.parent_key for row in rows.values() if row.parent_key is not None}
        parents = await self.ended(sorted(above)) if above else {}
        stages: dict[int, list[tuple[int, StageResult]]] = {}
        for (key, stage), result in (await results_of_rows(self._db, keys)).items():
            stages.setdefault(key, []).append((stage, result))
        found = {}
        for key, row in rows.items():
            parent = parents[row.parent_key] if row.parent_key is not None else None
            sight = self.begun(row.data, row.origin, parent)
            for stage, result in sorted(stages.get(key, ())):
                self.replay(sight, self._stages[stage], result)
            found[key] = sight
        return found

    def begun(self, data: str, origin: int | None, parent: Sight | None) -> Sight:
        """What a row sees before its own stages: the stage at `origin` made it of the row that saw `parent`; `data` is
        JSON."""
        fields: dict[str, JSONValue] = json.loads(data) or {}
        if parent is None or origin is None:
            return Sight(fields, self._vars)
        return descended(parent, self._stages[origin], fields)

    def replay(self, sight: Sight, stage: Stage, result: StageResult) -> None:
        """Does to a sight what the stage did when the row came through it."""
        replay(sight, stage, result, self._followed)


def inner(value: JSONValue | Mapping[str, JSONValue], path: Sequence[str]) -> JSONValue:
    """What stands in `value` at the end of a path of keys. Raises KeyError with the key that is not there."""
    found: object = value
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            raise KeyError(key)
        found = found[key]
    return found
