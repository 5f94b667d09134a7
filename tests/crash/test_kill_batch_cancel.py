"""kill -9 while a batch is ended: it is ended once, what it finished is kept, what it did not is asked once more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.batchcase import BatchCase, assert_ended
from support.server import Server, simulator
from support.soak import few

DAY_LONG = 80_000.0
"""Seconds that a batch takes by the simulator's clock, which runs as fast as any: nothing depends on how fast."""

FOUR_DONE = 36_000.0
KINDS = ["openai", "anthropic"]


@pytest.fixture(scope="module")
def _shared() -> Iterator[Server]:
    with simulator("--batch-seconds", str(DAY_LONG)) as server:
        yield server


@pytest.fixture
def server(_shared: Server) -> Server:
    """Its clock goes on from test to test, which is all the same to batches that have ended."""
    _shared.reset()
    return _shared


@pytest.fixture
def case(api: str, server: Server, tmp_path: Path) -> BatchCase:
    """Ten rows in a batch that has done four."""
    case = BatchCase(tmp_path / "project", server, api)
    case.submit()
    case.advance(FOUR_DONE)
    return case


@pytest.fixture(scope="module")
def undisturbed(_shared: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The results of calls, which are the same."""
    found = {}
    for api in KINDS:
        called = BatchCase(tmp_path_factory.mktemp(api), _shared, api)
        assert_ended(called.run("--run-mode", "sync"))
        found[api] = called.project.envelopes()
    return found


def asked_again(case: BatchCase) -> None:
    """The user runs the workflow again, until what the batch had not finished is in another one; then that ends."""
    for _ in range(3):
        assert_ended(case.run())
        if case.account()["created"] == 2:
            break
    case.advance(DAY_LONG)
    case.finish("retrieve")


MOMENTS = [
    "journal.cancel.after", "provider.cancel.before", "provider.cancel.after", "provider.look.after",
    "journal.seen.before", "journal.seen.after",
]  # fmt: skip


MET = ["journal.cancel.before", *MOMENTS[:3]]


def cells(api: str, shift: int) -> list[tuple[str, str, str]]:
    """Every moment, with what the user does then."""
    return [(api, moment, "cancel" if (number // 2 + shift) % 2 else "run") for number, moment in enumerate(MOMENTS)]


@pytest.mark.parametrize(
    ("api", "moment", "again"), few(cells("openai", 0), 2) + few(cells("anthropic", 1), 2, first=1)
)
def test_a_cancel_that_is_killed_has_ended_the_batch_once(
    api: str, moment: str, again: str, undisturbed: dict[str, list[Any]], case: BatchCase
) -> None:
    """Case 28, with a kill. Whether it was asked is not known after it: it is asked again, and that harms nothing."""
    case.killed(moment, "batch", "cancel")
    if again == "cancel":
        assert_ended(case.agac("batch", "cancel"))
    asked_again(case)
    assert case.account()["cancelled"] == 1
    case.assert_whole(undisturbed[api], creates=2)


@pytest.mark.parametrize("api", KINDS)
def test_a_cancel_that_is_killed_before_it_was_decided_has_ended_nothing(
    api: str, undisturbed: dict[str, list[Any]], server: Server, tmp_path: Path
) -> None:
    """What was killed before its creation went out is ended where it is: it is looked for, is not there, and never will
    be."""
    case = BatchCase(tmp_path / "project", server, api)
    case.killed("provider.create.before", "run", "-a", "reviews")
    assert_ended(case.agac("batch", "cancel"))
    assert (case.account()["posts"], case.steps()) == (0, ["NOT_CREATED"])
    assert_ended(case.run())
    case.advance(FOUR_DONE)
    case.killed("journal.cancel.before", "batch", "cancel")
    assert_ended(case.run())
    case.advance(DAY_LONG)
    case.finish("run")
    assert case.account()["cancelled"] == 0
    case.assert_whole(undisturbed[api])


@pytest.mark.parametrize(("api", "moment"), few([(api, one) for one in MET for api in KINDS], 3))
def test_a_deadline_that_is_met_by_a_kill_ends_the_batch_once_and_calls_the_rest(
    api: str, moment: str, server: Server, tmp_path: Path
) -> None:
    """What it had finished is kept, the others are called: nothing is asked in both ways."""
    case = BatchCase(tmp_path / "project", server, api, deadline=0.001)
    case.submit()
    case.advance(FOUR_DONE)
    case.killed(moment, "batch", "retrieve")
    case.finish("run")
    account, called = case.account(), server.account()
    assert (account["created"], account["cancelled"], account["charged"], account["duplicates"]) == (1, 1, 4, 0)
    assert (called["charged"], called["duplicates"]) == (6, 0)
    assert [one["ok"] for one in case.project.envelopes()] == [True] * case.rows
    case.assert_clean()
