"""Rows of a run as they are stored, taken up again: where `agac retry` gets its rows from."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from agac.core.types import Row
from agac.engine.control import Control
from agac.engine.flight import Flight
from agac.engine.repeats import Places
from agac.engine.scope import Retry
from agac.engine.settle import Settler
from agac.engine.totals import Totals
from agac.store.batch import NewRow, RowChange
from agac.store.ledger import Ledger
from agac.store.rows import OUTCOME_OF, ChosenRow, State, chosen_rows, prior_tasks


class Stored:
    """One pass over the rows that a retry chose, in the order of the input."""

    def __init__(
        self,
        places: Places,
        ledger: Ledger,
        settler: Settler,
        control: Control,
        totals: Totals,
        retry: Retry,
        again_from: int | None,
    ) -> None:
        """`again_from`: the position of the stage from which on everything is asked anew."""
        self._db, self._run, _ = places
        self._ledger, self._settler, self._control, self._totals = ledger, settler, control, totals
        self._retry, self._again_from = retry, again_from

    async def flights(self) -> AsyncGenerator[list[Flight], None]:
        """The chosen rows, some hundred at a time, each open in the store before it is given out."""
        async for rows in chosen_rows(self._db, self._run, self._retry):
            if self._control.stop is not None:
                return
            prior = await prior_tasks(self._db, [row.key for row in rows])
            flights = [self._flight(row) for row in rows]
            for flight, row in zip(flights, rows, strict=True):
                flight.prior = prior.get(flight.new.key, {})
                self._settler.take_up(flight, row)
            self._totals.seen += len(rows)
            await self._ledger.durable()
            yield flights
        self._totals.all_read = True

    def _flight(self, old: ChosenRow) -> Flight:
        """Opens the row again; its tasks stay until they are settled anew."""
        outcome = OUTCOME_OF.get(State(old.state))
        batch = self._ledger.batch
        if outcome is not None:
            batch.tally(("", outcome.value, old.error_type or "", "")).count -= 1
        batch.changes.append(RowChange(old.key, old.ordinal, old.hash, old.data, State.PENDING, None))
        row = Row(old.id, old.ordinal, json.loads(old.data))
        new = NewRow(row, old.occurrence, old.hash, old.data, State.PENDING, old.key)
        return Flight(new, known=True, forced=True, again_from=self._again_from, since=self._retry.since)
