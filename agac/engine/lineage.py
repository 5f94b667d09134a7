"""What rows see, put together from the store: their own fields, and those and the results of what they were made of."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from agac.core.types import JSONValue
from agac.plan.prepare import Sight, followed
from agac.spec.template import SKIPPED
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
        if stage.rows_of not in sight.forms:
            return
        if result.skipped:
            sight.pass_over(stage)
        elif stage.asks:
            if result.value is not None and stage.name in self._followed:
                sight.results[stage.name] = json.loads(result.value)
        elif stage.changes_rows and (form := stage.form(sight.data(stage), result.value)) is not None:
            sight.become(stage, form)


def descended(parent: Sight, maker: Stage, fields: dict[str, JSONValue]) -> Sight:
    """What a row sees before its own stages that `maker` made of one that saw `parent`; `fields` are its own."""
    if maker.makes != "rows":
        return parent.child(fields, without=_exploded_field(maker))
    sight = parent.child({})
    sight.become(maker, fields)
    return sight


def _exploded_field(maker: Stage) -> str | None:
    """The field of a row whose list was made children of: they have an item of it in its place. A long list would
    else be in each of them."""
    path = maker.explode
    return path[0] if path is not None and len(path) == 1 and path[0] not in maker.ancestors else None


def plain(value: object) -> JSONValue:
    """A result as JSON has it: one that was skipped is null."""
    return None if value is SKIPPED else value


def inner(value: JSONValue | Mapping[str, JSONValue], path: Sequence[str]) -> JSONValue:
    """What stands in `value` at the end of a path of keys. Raises KeyError with the key that is not there."""
    found: object = value
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            raise KeyError(key)
        found = found[key]
    return found
