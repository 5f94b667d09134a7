"""What the monitor asks of the process that works on a run is done once, by that process or the next one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.batchcase import BatchCase, Start, assert_ended
from support.project import ProjectFolder
from support.server import Faulty, Server, simulator
from support.soak import few

import agac
from agac.api import monitor, run_curves
from agac.core.errors import UsageError
from agac.engine import heartbeat

SLOW = {"kind": "slow_first_byte", "seconds": 0.3}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 0.02)


def inbox(project: ProjectFolder) -> list[tuple[Any, ...]]:
    return project.query("SELECT kind, applied_at IS NOT NULL, substr(outcome, 1, 7) FROM inbox ORDER BY id")


async def meanwhile(
    project: ProjectFolder, does: Callable[[asyncio.Future[Any]], Awaitable[object]], **options: Any
) -> agac.RunReport:
    """A run in which something is done as soon as it can be."""
    run = asyncio.ensure_future(agac.arun("reviews", agac.RunOptions(**options), project=project.root))
    while not run.done():
        try:
            await does(run)
            break
        except UsageError:
            await asyncio.sleep(0.01)
    return await run


async def test_a_run_is_stopped_and_goes_on_when_it_is_run_again(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([SLOW]))
    project.workflow(rows=60)
    seen: list[monitor.MonitoredRun] = []

    async def stop(_: object) -> None:
        seen.append(await monitor.arun(1, project=project.root))
        if seen[-1].report["state"] != "running":
            raise UsageError("it is about to begin")
        await monitor.aask(project.root, 1)

    report = await meanwhile(project, stop, concurrency=2)
    assert (report.exit_code, report.stop) == (130, "interrupt")
    assert seen[-1].report["pace"]["expected"] in (60, 61)  # by the file's size while it is read
    assert inbox(project) == [("stop", 1, "applied")]
    assert (await monitor.arun(1, project=project.root)).asked[0]["outcome"].startswith("applied")
    project.configure(project.asks(faulty([])).base_url)
    again = await agac.arun("reviews", project=project.root)
    assert (again.exit_code, again.summary["rows"]["done"]) == (0, 60)
    assert inbox(project) == [("stop", 1, "applied")]
    project.assert_sound()


async def test_who_was_killed_before_it_looked_stops_nobody_else(project: ProjectFolder) -> None:
    project.workflow(rows=3)
    project.agac("run", "-a", "reviews", kill="committed:6")
    with pytest.raises(UsageError, match="nothing works on run 1"):
        await monitor.aask(project.root, 1)
    with project.changed() as change:
        change(
            "INSERT INTO inbox (workflow, run_id, event_id, kind, body, at) VALUES ('reviews', 1, 1, 'stop', '{}', 1)"
        )
    assert (await agac.arun("reviews", project=project.root)).exit_code == 0
    assert inbox(project) == [("stop", 1, "void: w")]


async def test_lanes_are_sampled_while_calls_are_made_and_wait(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([SLOW]), limits={"concurrency": 2})
    project.workflow(rows=6)
    await agac.arun("reviews", agac.RunOptions(concurrency=6), project=project.root)
    samples = project.query("SELECT lane, in_flight, most, waiting, held_by, waited FROM lane_sample ORDER BY at")
    assert {one[0] for one in samples} == {"local/small"}
    assert max(one[1] for one in samples) == 2
    assert (max(one[3] for one in samples), samples[0][2]) == (4, 2)
    assert "limit" in {one[4] for one in samples}
    assert 0.5 < sum(one[5] for one in samples) < 60
    curves = await run_curves.acurves(1, project=project.root)
    assert list(curves.lanes) == ["local/small"]


# Batches.

DAY_LONG, FOUR_DONE = 80_000.0, 36_000.0


@pytest.fixture(scope="module")
def _day_long() -> Iterator[Server]:
    with simulator("--batch-seconds", str(DAY_LONG)) as server:
        yield server


@pytest.fixture
def case(_day_long: Server, tmp_path: Path) -> BatchCase:
    """Ten rows whose batch takes a day."""
    _day_long.reset()
    return BatchCase(tmp_path / "project", _day_long)


async def ends_batch(case: BatchCase, number: int = 1) -> None:
    await monitor.aask(case.project.root, 1, number)


async def test_a_batch_is_cancelled_by_the_process_that_waits_for_it(case: BatchCase) -> None:
    case.submit()
    case.advance(FOUR_DONE)

    async def cancel(run: asyncio.Future[Any]) -> None:
        while case.account()["calls"].get("poll", 0) < 3 and not run.done():  # it waits, and has walked its rows
            await asyncio.sleep(0.01)
        await ends_batch(case)
        while not case.account()["cancelled"] and not run.done():
            await asyncio.sleep(0.01)
        case.advance(60)

    report = await meanwhile(case.project, cancel, wait=True)
    assert case.account()["cancelled"] == 1
    assert inbox(case.project) == [("cancel_batch", 1, "decided")]
    assert (report.exit_code, report.summary["rows"]["open"]) == (0, 6)
    assert_ended(case.run())
    case.advance(DAY_LONG)
    case.finish("retrieve")
    case.assert_whole(creates=2)


MOMENTS = [f"{event}:{n}" for n in range(2, 8) for event in ("commit", "committed")]


@pytest.mark.parametrize("moment", few(MOMENTS, 4))
async def test_the_next_process_cancels_it_once_whenever_it_is_killed(case: BatchCase, moment: str) -> None:
    case.submit()
    case.advance(FOUR_DONE)
    await ends_batch(case)
    case.killed(moment, "batch", "retrieve", "--no-submit")
    assert case.retrieve().code in (0, 75)  # it may take the provider a moment
    assert case.account()["cancelled"] == 1
    assert inbox(case.project) == [("cancel_batch", 1, "decided")]
    assert_ended(case.run())
    case.advance(DAY_LONG)
    case.finish("retrieve")
    case.assert_whole(creates=2)


async def test_what_cannot_be_cancelled_is_refused_or_void(case: BatchCase) -> None:
    case.submit()
    with pytest.raises(UsageError, match="run 1 has no batch 7 that could be cancelled"):
        await ends_batch(case, 7)
    await ends_batch(case)
    case.advance(DAY_LONG)
    with case.project.changed() as change:
        change("UPDATE batch SET state = 'NEEDS_HUMAN'")
    case.agac("batch", "retrieve")
    assert inbox(case.project) == [("cancel_batch", 1, "void: i")]


async def test_one_that_was_not_submitted_never_is(case_at: Start) -> None:
    case = case_at("openai")  # whose provider keeps nothing of others
    case.killed("journal.intend.before", "run", "-a", "reviews")
    await ends_batch(case)
    assert case.retrieve().code == 75
    assert (case.steps(), case.account()["posts"]) == (["NOT_CREATED"], 0)
    assert inbox(case.project) == [("cancel_batch", 1, "decided")]
    case.finish("run")
    case.assert_whole()
