"""What the store keeps of an invocation is written and read by one codec, whatever version wrote it."""

from __future__ import annotations

import json
from typing import Any

from agac.core.keys import canonical
from agac.core.reading import read_as
from agac.engine.stored_invocation import (
    InvocationCounts,
    InvocationStart,
    ServingFacts,
    StoppedInvocation,
    StoredFault,
    StoredInvocation,
    TakenPacks,
)
from agac.engine.totals import Totals

START = {"concurrency": 4, "billed_a_row": 3, "lost_calls": 0, "given": {"first": 5}}


def stored(invocation: StoredInvocation) -> Any:
    """An invocation as the store has it."""
    return json.loads(canonical(invocation.as_json()))


def test_a_stored_invocation_is_read_as_it_was_written() -> None:
    totals = Totals()
    totals.rows.seen, totals.rows.short, totals.calls.count = 7, 1, 5
    totals.spent.usd = 0.25
    serving = ServingFacts(known=(10, 4), slots=8, seconds=(2.5, 1.0), engines={"http://x": (5, 1)})
    stop = StoppedInvocation("limit", "a budget is spent", StoredFault("TimeoutError", "late"))
    written = StoredInvocation(
        InvocationStart(4, 3, given={"first": 5}, retry={"rows": ["a"]}),
        InvocationCounts.of(totals),
        serving,
        wait_for_people=2,
        packs=TakenPacks({"1 2 groups/g": "ab"}),
        stop=stop,
    )
    assert read_as(StoredInvocation, stored(written)) == written


def test_a_stored_invocation_has_the_keys_that_it_needs() -> None:
    none = stored(StoredInvocation())
    assert none.keys().isdisjoint(
        {"retry", "retrieves", "accepted", "rows_short", "serving", "taken", "stop", "stopped"}
    )
    assert stored(StoredInvocation(packs=TakenPacks()))["taken"] == {}, "a shard that took nothing says so"


def test_an_invocation_that_was_killed_has_only_its_start() -> None:
    """And perhaps what the store notes of it: how many calls were lost, until when a lane waits."""
    killed = read_as(StoredInvocation, {**START, "lost": 3, "waits": {"openai/a": 12.5}})
    assert (killed.start.concurrency, killed.start.given) == (4, {"first": 5})
    assert (killed.counts, killed.serving, killed.packs, killed.stop) == (InvocationCounts(), None, None, None)


def test_an_older_agac_wrote_less() -> None:
    old = read_as(InvocationStart, {"concurrency": 4, "lost_calls": 1})
    assert old == InvocationStart(concurrency=4, billed_a_row=None, lost_calls=1)
