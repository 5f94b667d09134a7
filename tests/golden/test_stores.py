"""A store that an earlier program left half done is finished by this one, without one call that it did not need."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.processes import processes
from support.server import Server
from support.soak import few

from agac.store.writer import open_database
from golden.stores import Stored
from golden.test_pins import differences, without_added

pytestmark = processes


@pytest.mark.parametrize(("name", "how"), few([("batched", "retrieve"), ("batched", "run"), ("killed", "run")], 2))
def test_it_is_finished_as_the_earlier_program_finished_it(name: str, how: str, tmp_path: Path, server: Server) -> None:
    """The same results, the same answers under the same fingerprints, and the same calls and batches."""
    store = Stored(tmp_path / name, server)
    expected = store.restore(name)["ended"][how]
    assert list(differences(expected, store.finished(name, how))) == []
    store.project.assert_sound(minutes=False)  # the earlier program kept none
    before = store.account()
    again = store.finished(name, "run", but="schemas")  # which has rows that fail, and are tried again
    assert list(differences(expected["answers"], again["answers"])) == []
    assert store.account() == before


async def brought_up_to_date(database: Path) -> None:
    async with open_database(database):
        pass


def test_a_half_finished_store_is_looked_at(tmp_path: Path, server: Server) -> None:
    store = Stored(tmp_path / "killed", server)
    expected = store.restore("killed")["ended"]["looked at"]
    asyncio.run(brought_up_to_date(store.database))  # as the first command that writes does it
    expected, found = (without_added(seen, listed=False) for seen in (expected, store.looked_at()))
    assert list(differences(expected, found)) == []
    assert store.account() == {"calls": 0, "batched": 0, "twice": 0}
