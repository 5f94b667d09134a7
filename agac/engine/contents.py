"""What a call over many rows is given: the texts of a group's members, or of what its parts came to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence

from agac.core.order import IdOrder, id_order
from agac.engine.lineage import Lineage
from agac.engine.making import Member
from agac.engine.repeats import Places
from agac.store.rows import FIRST, LAST, any_open_part, part_values
from agac.store.rows import Member as StoredMember
from agac.store.rows import members as some_members

PAGE = 512


class Contents:
    """Reads what the calls of one stage are given. `member` is how it looks at its rows."""

    def __init__(self, places: Places, lineage: Lineage, member: Member, origin: int) -> None:
        self._db, self._run, _ = places
        self._lineage, self._member, self._origin = lineage, member, origin

    async def of_members(
        self, group: int, *, low: int = FIRST, high: int = LAST, after: int = 0, rows: int | None = None
    ) -> list[str]:
        """The members of a group with hashes from `low` to `high`, less the first `after` of them, `rows` at most, in
        the order of their ids: JSON texts."""
        found: list[tuple[IdOrder, str]] = []
        async for page in self.pages(group, low=low, high=high):
            page, after = page[after:], max(after - len(page), 0)
            if rows is not None:
                page = page[: rows - len(found)]
            sights = await self._lineage.ended([one.key for one in page])
            found += [(id_order(one.id), self._member.text(sights[one.key])) for one in page]
            if rows is not None and len(found) >= rows:
                break
        return [text for _, text in sorted(found)]

    async def pages(self, group: int, *, low: int = FIRST, high: int = LAST) -> AsyncIterator[list[StoredMember]]:
        """The members of a group that did not fail, some hundred at a time, by their hashes."""
        at = (low, 0)
        while page := await some_members(self._db, group, PAGE, after=at, upto=high):
            yield page
            at = (page[-1].sort, page[-1].key)

    async def of_part(self, group: int, data: str) -> list[str] | None:
        """What a part of a group is made of, as its stored `data` says: members, or what lower parts came to; None
        where one of these has no result."""
        body = json.loads(data)
        if body["parts"]:
            return await self.of_parts(body["parts"])
        low, high = body["low"] + FIRST, body["high"] + FIRST
        return await self.of_members(group, low=low, high=high, after=body["after"], rows=body["rows"])

    async def of_parts(self, ids: Sequence[str]) -> list[str] | None:
        """What these parts came to, in their order: JSON texts; None where one of them has no result."""
        values = await part_values(self._db, self._run, self._origin, ids)
        return [values[one] for one in ids] if len(values) == len(ids) else None

    async def waits(self, ids: Sequence[str]) -> bool:
        """Whether one of these parts has no end yet: it waits for a batch."""
        return await any_open_part(self._db, self._run, self._origin, ids)


def array(texts: Sequence[str]) -> str:
    """JSON texts as one array."""
    return f"[{','.join(texts)}]"
