"""Batches that are ended before their time: by a deadline, by their user; and those that do not move."""

import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from support.batchrun import BatchProject, Make, advance
from support.server import Server

import agac

SECONDS = 100
HOUR = 3600.0
SAY: dict[str, Any] = {"name": "say", "prompt": "Tell of ${text}", "model": "local/echo"}
MORE: dict[str, Any] = {"name": "more", "prompt": "More of ${say}", "model": "local/echo"}


@pytest.fixture
def make(batches_at: Make) -> Make:
    """Makes a project with ten rows whose batch takes a while, and submits it."""

    def start(*faults: dict[str, Any], stages: Any = None, **batch: Any) -> BatchProject:
        project = batches_at(*faults, seconds=SECONDS)
        project.batched(*(stages or [SAY]), defaults={"batch": batch})
        assert project.run().exit_code == 0
        return project

    return start


STUCK = {"kind": "batch_stuck", "word": "finalizing"}


@pytest.mark.parametrize(("done", "faults"), [(0, []), (4, []), (9, []), (10, [STUCK])])
def test_at_its_deadline_the_rest_is_called(make: Make, server: Server, done: int, faults: list[Any]) -> None:
    """Case 37, where all of it is done and the provider does not say so: there is no rest."""
    project = make(*faults, deadline="8h")
    [(deadline,)] = project.query("SELECT deadline - submitted_at FROM batch")
    assert deadline == pytest.approx(8 * HOUR, abs=5)
    advance(project.server, SECONDS * done / 10)
    assert project.retrieve().exit_code == 75
    project.set_batch(deadline=1.0)
    assert project.to_the_end().exit_code == 0
    assert (project.account["charged"], project.server.account()["charged"]) == (done, 10 - done)
    assert (project.account["cancelled"], project.account["posts"], project.doubles()) == (1, 1, 0)
    project.assert_as_sync(server)


def test_a_time_of_day_is_the_next_one(make: Make) -> None:
    soon = datetime.now() + timedelta(hours=2)  # noqa: DTZ005 (as its author reads the clock)
    project = make(deadline=soon.strftime("%H:%M"))
    [(deadline,)] = project.query("SELECT deadline FROM batch")
    assert deadline == soon.replace(second=0, microsecond=0).timestamp()
    earlier = datetime.now() - timedelta(hours=2)  # noqa: DTZ005
    project.batched(SAY | {"prompt": "Else ${text}"}, defaults={"batch": {"deadline": earlier.strftime("%H:%M")}})
    project.run(yes=True)
    [(later,)] = project.query("SELECT deadline FROM batch WHERE id = 2")
    assert later > time.time() + 20 * HOUR


@pytest.mark.parametrize("on_deadline", ["wait", "sync"])
def test_a_deadline_that_cancels_nothing(make: Make, server: Server, on_deadline: str) -> None:
    """It is only said, or comes while all is done."""
    project = make(deadline="8h", on_deadline=on_deadline)
    project.set_batch(deadline=1.0)
    if on_deadline == "wait":
        assert project.retrieve().exit_code == 75
        assert "eadline" in project.agac("batch", "status").out
    advance(project.server, SECONDS)
    assert project.retrieve().exit_code == 0
    assert project.account["cancelled"] == 0
    project.assert_as_sync(server, charged=(1, 10))


def test_after_the_deadline_the_stages_that_follow_go_on_as_they_are(make: Make, server: Server) -> None:
    """Each batch has its own: from its own submission."""
    project = make(stages=[SAY, MORE], deadline="8h")
    advance(project.server, SECONDS / 2)
    project.set_batch(deadline=1.0)
    project.retrieve()
    project.retrieve()
    [(first, second)] = project.query("SELECT min(deadline), max(deadline) FROM batch")
    assert first == 1.0
    assert second > time.time() + 7 * HOUR
    project.to_the_end(seconds=SECONDS)
    assert project.account["cancelled"] == 1
    project.assert_as_sync(server)
    assert project.doubles() == 0


def test_cancelling_keeps_what_is_finished(make: Make, server: Server) -> None:
    """Case 28."""
    project = make()
    advance(project.server, SECONDS * 0.4)
    cancelled = project.agac("batch", "cancel")
    assert (cancelled.code, cancelled.err) == (0, "")
    assert cancelled.out.startswith("Cancelling batch 1 (")
    assert project.account["cancelled"] == 1
    project.agac("batch", "cancel", "1", code=0)
    assert project.account["cancelled"] == 1
    assert "4 done" in project.agac("batch", "retrieve", code=0).out
    assert project.account["posts"] == 1, "what its user ended is not begun again by `retrieve`"
    assert project.query("SELECT count(*) FROM row WHERE state = 0") == [(6,)]
    assert not (project.root / "output").exists()
    assert ": 6 requests, 1 of 1" in project.agac("run", "-a", "reviews").out
    project.assert_ends_as_sync(server, (2, 10), seconds=SECONDS)


def test_cancelling_what_has_ended_keeps_all_of_it(make: Make, server: Server) -> None:
    """Case 29: the provider says that it is over."""
    project = make()
    advance(project.server, SECONDS)
    assert agac.batch_cancel(1, project=project.root).exit_code == 0
    assert project.to_the_end().exit_code == 0
    assert (project.charged(), project.account["cancelled"]) == ((1, 10), 0)
    project.assert_as_sync(server)


def test_one_of_several_is_ended(make: Make, server: Server) -> None:
    project = make(max_requests=5)
    [(named,)] = project.query("SELECT provider_id FROM batch WHERE id = 2")
    project.agac("batch", "cancel", named, code=0)
    advance(project.server, SECONDS)
    project.retrieve()
    assert project.query("SELECT state, count(*) FROM row GROUP BY 1 ORDER BY 1") == [(0, 5), (1, 5)]
    project.run()
    project.assert_ends_as_sync(server, (3, 10), seconds=SECONDS)


def test_what_waits_to_be_submitted_is_ended_without_a_word_to_the_provider(batches_at: Make) -> None:
    project = batches_at(seconds=SECONDS, limits={"enqueued_tokens": 150})
    project.submit(SAY, defaults={"batch": {"max_requests": 5}})
    [(waiting,)] = project.query("SELECT id FROM batch WHERE submitted_at IS NULL")
    ended = project.agac("batch", "cancel", str(waiting), code=0)
    assert f"Dropped batch {waiting}: 5 requests, none sent\n" in ended.out
    assert project.account["cancelled"] == 0
    advance(project.server, SECONDS)
    project.retrieve()
    assert project.charged() == (1, 5)
    assert project.run().exit_code == 0
    project.to_the_end(seconds=SECONDS)
    assert (project.charged(), project.doubles()) == ((2, 10), 0)


def test_a_batch_that_does_not_move_is_reported(make: Make) -> None:
    project = make({"kind": "batch_stuck", "word": "in_progress", "after": 3}, stuck_after="1h")
    project.set_batch(moved_at=time.time() - 2 * HOUR)
    advance(project.server, SECONDS)
    [one] = project.agac("batch", "status", "--json").json["batches"]
    assert one["stuck"] is False, "its count moved"
    project.agac("doctor", code=0)
    project.set_batch(moved_at=time.time() - 2 * HOUR)
    (found,) = agac.doctor(project=project.root).findings
    assert found.kind == "stuck"
    assert "has not moved for 2.0 h" in found.message
    assert "agac batch cancel 1" in str(found.remedy)
