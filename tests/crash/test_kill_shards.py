"""kill -9 of a shard at many moments, with its disk or without: run again it loses nothing, and pays for no more than
was in flight and not yet in the remote."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import asleep, asleep_at, ended, kill_at, killed, quiet_account, wait_until
from support.server import Faulty, Server, simulator
from support.services import services, starts_service
from support.shards import Sharded
from support.soak import few

from agac.store.packs import FULL_ANSWERS, unzipped

ROWS, CONCURRENCY = 60, 4
SOON = {"AGAC_TEST_PUSH": "0.02"}
MOMENTS = [
    *(f"commit:{n}" for n in (2, 9, 20)), *(f"committed:{n}" for n in (3, 15)), "os.rename:1",
    *(f"remote.create.{when}:{n}" for n in (1, 2, 3, 4, 5, 6, 9, 14, 20) for when in ("before", "after")),
]  # fmt: skip


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    with simulator("--latency", "0.01") as server:
        yield server


@pytest.fixture
@starts_service
def project(slow: Server, tmp_path: Path) -> Sharded:
    slow.reset()
    found = Sharded(tmp_path / "first", slow, of=2, env=SOON)
    found.workflow(rows=ROWS)
    return found


def pushed(project: Sharded) -> int:
    """The answers that another machine finds."""
    remote = project.root.parent / "remote/v1"
    packs = {one.name for one in remote.glob("shards/*/*/answers/1-of-2/ci/*")}
    found = sum(unzipped((remote / f"ci/{name}.pack").read_bytes()).count(b"\n") for name in packs)
    assert found <= FULL_ANSWERS * len(packs)
    return found


def finish(project: Sharded, slow: Server, most: int) -> None:
    """The shards are run to their end; together they asked no more than so many times twice."""
    project.shards("--concurrency", str(CONCURRENCY), code=0)
    assert quiet_account(slow)["requests"] - ROWS <= most
    project.merge(code=0)
    merged = project.taken()
    assert merged == project.unsharded("--concurrency", str(CONCURRENCY))


@pytest.mark.parametrize("disk", ["kept", "lost"])
@pytest.mark.parametrize("moment", few(MOMENTS, 9))
def test_a_shard_is_killed_and_run_again(moment: str, disk: str, project: Sharded, slow: Server) -> None:
    ran = project.shard(1, "--concurrency", str(CONCURRENCY), env=kill_at(moment))
    assert ran.code in (-9, 0), ran.err
    asked = quiet_account(slow)["requests"]
    most = 2 * CONCURRENCY
    if disk == "lost":
        most = asked - pushed(project)
        shutil.rmtree(project.root / ".agac")
    finish(project, slow, most)


@services
def test_a_machine_that_dies_in_the_middle_costs_what_was_not_pushed(faulty: Faulty, tmp_path: Path) -> None:
    slow = faulty([{"kind": "hang", "at": [*range(13, 13 + CONCURRENCY)]}])  # it is at work for as long as we look
    project = Sharded(tmp_path / "first", slow, of=2, env=SOON)
    project.workflow(rows=ROWS)
    process = project.start(
        "run", "-a", "reviews", "--shard", "1/2", "--concurrency", str(CONCURRENCY), env={**project.env, **kill_at("")}
    )
    wait_until(lambda: slow.account()["faults"].get("hang") == CONCURRENCY, "calls that hang", process)
    wait_until(lambda: pushed(project) >= 8, "pushed answers", process)
    refused = project.shard(1, code=1)
    assert "being run by" in refused.err
    killed(process)
    asked, there = quiet_account(slow)["requests"], pushed(project)
    shutil.rmtree(project.root / ".agac")
    assert there >= 8
    finish(project, slow, asked - there)


def test_who_was_taken_over_while_it_slept_asks_for_nothing_more(
    project: Sharded, slow: Server, tmp_path: Path
) -> None:
    words = ["run", "-a", "reviews", "--shard", "1/2", "--concurrency", str(CONCURRENCY)]
    # Nobody takes a shard over before its process was silent for twice as long as makes it prove that the shard is
    # still its own. This one is taken over at once, so any silence makes it prove that.
    env = {**project.env, **asleep_at("remote.create.after:6"), "AGAC_TEST_SURE": "0"}
    sleeper = asleep(project.start(*words, env=env))
    lease = next((tmp_path / "remote/v1/shards/reviews").glob("*/lease/1-of-2"))
    newest = max(lease.iterdir())
    (lease / f"{int(newest.name) + 1:010d}").write_text("{}", encoding="utf-8")  # as another machine does
    before = quiet_account(slow)["requests"]
    sleeper.send_signal(signal.SIGCONT)
    told = ended(sleeper)
    assert told.code == 1
    assert "another process took over shard 1/2 of workflow 'reviews'" in told.err
    assert quiet_account(slow)["requests"] - before <= CONCURRENCY
    (lease / f"{int(newest.name) + 1:010d}").unlink()
    newest.unlink()
    finish(project, slow, 2 * CONCURRENCY)
