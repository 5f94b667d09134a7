"""Runs on a Ray cluster of several nodes of which parts die, stop or come, at moments that the provider tells.

Whatever happens: each row has one outcome, no more is paid twice than was in flight, what is booked is what was billed
but for what was lost, no budget is passed, and the files are those of a run on this machine alone.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st
from support.cluster import RayCluster, cluster, cpu_seconds
from support.commands import Forked
from support.processes import ended, is_explained, killed, mounted, quiet_account, stopped, wait_until
from support.project import ProjectFolder, Ran
from support.server import Server, simulator
from support.services import starts_service
from support.soak import SOAK, campaign, only_in_soak

pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(3600 if SOAK else 180)  # of all examples together: a lost head is noticed in 20 s

ROWS, AT_ONCE, NODES = 60, 20, 2
LATENCY = ("--latency", "0.2")
PRICES = {"small": {"input": 1000.0, "output": 0.0}}  # prompts are of one length, so that all calls cost the same
HERE = ("run", "-a", "reviews", "--executor", "local", "--concurrency", str(ROWS))
moments = st.integers(0, ROWS - 1).map(lambda number: (number + 25) % ROWS + 1)
"""Requests that have arrived; the first that is drawn is in the middle."""


def examples(test: int, soak: int) -> settings:
    """A campaign in which what fails is not looked for in a smaller form, which would take hours."""
    return settings(campaign(test, soak), phases=[Phase.explicit, Phase.generate])


class Case:
    """A project of ROWS rows, its provider, and the run of it on a cluster."""

    def __init__(self, folder: Path, server: Server, ray: RayCluster | None = None, **keys: Any) -> None:
        self.project, self.server, self.ray = ProjectFolder(folder), server, ray
        self.drivers: list[Forked] = []
        self.project.asks(server, prices=PRICES)
        self.project.rows({"id": f"r-{i}", "text": f"I love number {i}"} for i in range(10, 10 + ROWS))
        self.project.write("tools/sizes.py", TOOL.format(folder=folder))
        self.project.workflow(**keys)

    def settle(self, **keys: Any) -> None:
        """agac.yml with other keys."""
        file = self.project.root / "agac.yml"
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text("utf-8")), **keys}), encoding="utf-8")

    def start(self, *flags: str, workers: int = 2 * NODES, at_once: int = AT_ONCE, **env: str) -> Forked:
        """The driver, in a process of its own."""
        assert self.ray is not None
        self.settle(executor={"ray": "auto", "workers": workers})
        words = ["run", "-a", "reviews", "--executor", "ray", "--concurrency", str(at_once)]
        self.drivers.append(self.project.start(*flags, *words, env={"RAY_ADDRESS": self.ray.address, **env}))
        return self.drivers[-1]

    def end(self) -> None:
        """No driver stays, whatever happened."""
        for driver in self.drivers:
            driver.kill()

    def reached(self, requests: int, driver: Forked) -> None:
        """Waits until so many requests have arrived."""
        wait_until(lambda: self.server.account()["requests"] >= requests, f"{requests} requests", driver)

    def ran(self, driver: Forked, code: int = 0) -> Ran:
        ran = ended(driver)
        assert ran.code == code, f"ended with {ran.code}: {ran.out}{ran.err}"
        assert "Traceback" not in ran.err
        assert "(raylet)" not in ran.out, "Ray itself printed something"
        return ran

    def assert_booked(self, unknown: int = 0) -> dict[str, Any]:
        """What was billed is booked, but for calls of which no reply came; `unknown` ones at most were under way when a
        driver died. Gives the account."""
        account: dict[str, Any] = quiet_account(self.server)
        counted = "SELECT total(NOT ambiguous), total(ambiguous), total(purpose = 'paid_again') FROM attempt"
        ((answered, lost, late),) = self.project.query(counted)
        assert answered <= account["charged"] <= account["requests"] <= answered + lost - late + unknown
        ((booked,),) = self.project.query("SELECT total(cost) FROM counter WHERE outcome = 'call'")
        assert booked == pytest.approx(answered * each(account))
        assert self.project.query("SELECT count(*) FROM chunk_call") == [(0,)]
        self.project.assert_sound()
        return account

    def assert_whole(self, unknown: int = 0, **keys: Any) -> int:
        """What holds at the end of all. Gives how often a row was paid for that was paid already."""
        account, stages = self.assert_booked(unknown), len(keys.get("stages", "1"))
        tasks = "SELECT outcome, count(*), count(DISTINCT row_key * 9 + stage) FROM task GROUP BY 1"
        assert self.project.query(tasks) == [("done", stages * ROWS, stages * ROWS)]
        again: int = account["requests"] - ROWS
        assert 0 <= again <= AT_ONCE
        assert results(self.project) == results_here(yaml.safe_dump(keys))
        event(f"paid twice: {again}")
        return again


TOOL = """
import os, signal, time
from pathlib import Path

FOLDER = Path("{folder}")

def size(row):
    with (FOLDER / "pids.txt").open("a") as file:
        file.write(f"{{os.getpid()}}\\n")
    while row["id"] >= "r-30" and (FOLDER / "closed").exists():
        time.sleep(0.02)
    return {{**row, "size": len(row["text"])}}

def deadly(row):
    if row["id"] in (FOLDER / "deadly.txt").read_text():
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where a machine has no memory left
    return {{**row, "size": len(row["text"])}}
"""
CLASSIFY = {"name": "classify", "prompt": "Review: ${text}", "output_schema": {"sentiment": "positive|negative"}}


def each(account: dict[str, Any]) -> float:
    """The price of a call, in dollars."""
    return float(PRICES["small"]["input"] * account["prompt_tokens"] / account["charged"] / 1e6)


def results(project: ProjectFolder) -> bytes:
    return (project.root / "output/reviews/results.jsonl").read_bytes()


@cache
def results_here(keys: str = "{}") -> bytes:
    """What a run on this machine alone writes."""
    with TemporaryDirectory() as folder, simulator() as server:
        case = Case(Path(folder), server, **yaml.safe_load(keys))
        assert case.project.run().exit_code == 0
        return results(case.project)


@pytest.fixture(scope="module")
@starts_service
def ray() -> Iterator[RayCluster]:
    """One cluster for all that leave its head alive."""
    with cluster(NODES) as made:
        yield made


@pytest.fixture
def make(ray: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a case for the time of a block; what died of the cluster is replaced in the end."""

    @contextmanager
    def made(*flags: str, own: RayCluster = ray, **keys: Any) -> Iterator[Case]:
        with simulator(*(flags or LATENCY)) as server:
            case = Case(tmp_path_factory.mktemp("case"), server, own, **keys)
            try:
                yield case
            finally:
                case.end()
                while len(own.nodes) > NODES:
                    own.kill_node(own.nodes[-1])
                while own is ray and len(own.nodes) < NODES:
                    own.add_node()

    return made


@examples(test=1, soak=12)
@given(requests=moments, which=st.integers(0, NODES - 1))
def test_a_node_dies_with_its_workers_amid_their_calls(requests: int, which: int, make: Any) -> None:
    with make() as case:
        driver = case.start()
        case.reached(requests, driver)
        case.ray.kill_node(case.ray.busiest()[which])
        case.ran(driver)
        case.assert_whole()


@only_in_soak
@examples(test=1, soak=12)
@given(requests=moments, which=st.integers(0, 2 * NODES - 1), node=st.booleans())
def test_workers_that_stand_still_are_passed_over_and_their_late_replies_are_booked(
    requests: int, which: int, node: bool, make: Any
) -> None:
    with make() as case:
        driver = case.start(AGAC_TEST_SILENT="6")
        case.reached(requests, driver)
        stood = [pid for one in case.ray.nodes for pid in case.ray.workers(one)]
        stood = case.ray.workers(case.ray.nodes[which % NODES]) if node else stood[which % len(stood) :][:1]
        for pid in stood:
            os.kill(pid, signal.SIGSTOP)
        # what they have is asked again by others, if they have any
        wait_until(lambda: case.server.account()["requests"] > ROWS or driver.poll() is not None, "another request")
        for pid in stood:
            case.ray.signal(pid, signal.SIGCONT)
        case.ran(driver)
        case.assert_whole()
        ((late,),) = case.project.query("SELECT count(*) FROM attempt WHERE purpose = 'paid_again'")
        event(f"late: {late}")


@examples(test=1, soak=12)
@given(requests=moments, remote=st.booleans(), again=st.sampled_from(["ray", "local"]))
def test_the_driver_dies_and_is_started_again(requests: int, remote: bool, again: str, make: Any) -> None:
    with make() as case:
        if remote:
            case.settle(remote={"url": "../remote"})
            (case.project.root.parent / "remote").mkdir(exist_ok=True)
        driver = case.start()
        case.reached(requests, driver)
        killed(driver)
        if again == "ray":
            case.ran(case.start())
        else:
            case.project.agac(*HERE, code=0)
        case.assert_whole(unknown=AT_ONCE)


@only_in_soak
@examples(test=1, soak=8)
@given(requests=moments)
def test_a_driver_that_slept_finds_another_one_in_its_place(requests: int, make: Any) -> None:
    with make() as case:
        first = case.start(workers=2)
        case.reached(requests, first)
        aged = "UPDATE lease SET heartbeat_at = heartbeat_at - 3600"
        while True:
            stopped(first)
            try:
                with case.project.changed() as change:
                    change(aged)
                break
            except sqlite3.OperationalError:  # it was stopped amid a commit
                first.send_signal(signal.SIGCONT)
        case.ran(case.start(workers=2))
        before, files = quiet_account(case.server)["requests"], results(case.project)
        first.send_signal(signal.SIGCONT)
        is_explained(case.ran(first, code=1), "another process took over workflow 'reviews'")
        assert case.server.account()["requests"] - before <= AT_ONCE
        assert results(case.project) == files
        case.assert_whole(unknown=AT_ONCE)


@only_in_soak
@examples(test=1, soak=5)
@given(requests=st.integers(1, 2 * AT_ONCE), client=st.booleans())
def test_a_cluster_without_its_head_ends_the_run_which_goes_on_here(requests: int, client: bool, make: Any) -> None:
    # it is known to be gone after 20 s
    with cluster(NODES, client=client) as own, make("--latency", "15", own=own) as case:
        driver = case.start(**({"RAY_ADDRESS": own.client, "RAY_AUTH_MODE": "token"} if client else {}))
        case.reached(requests, driver)
        own.kill_head()
        is_explained(case.ran(driver, code=1), "the Ray cluster is gone", "--executor local")
        assert case.server.account()["requests"] <= ROWS + AT_ONCE
        case.project.agac(*HERE, code=0)
        case.assert_whole()


@only_in_soak
@examples(test=1, soak=6)
@given(deadly=st.lists(st.integers(10, 9 + ROWS).map("r-{}".format), min_size=1, max_size=2, unique=True))
def test_rows_that_kill_their_workers_fail_alone(deadly: list[str], make: Any) -> None:
    with make(stages=[{"name": "size", "python": "tools/sizes.py:deadly"}, CLASSIFY]) as case:
        case.project.write("deadly.txt", " ".join(deadly))
        case.ran(case.start(), code=3)
        rows = case.project.envelopes()
        assert [one["id"] for one in rows if not one["ok"]] == sorted(deadly)
        assert {one["error"]["type"] for one in rows if not one["ok"]} == {"WorkerLost"}
        account = case.assert_booked()
        event(f"paid twice: {account['requests'] - (ROWS - len(deadly))}")
        case.project.write("deadly.txt", "none")
        case.project.agac("retry", "last", "--executor", "local", code=0)
        here = results_here(yaml.safe_dump({"stages": [{"name": "size", "python": "tools/sizes.py:size"}, CLASSIFY]}))
        assert results(case.project) == here


@only_in_soak
@examples(test=1, soak=5)
@given(requests=moments)
def test_a_run_without_workers_waits_and_says_so(requests: int, make: Any) -> None:
    with make() as case:
        driver = case.start("--log-file", "log.txt")
        case.reached(requests, driver)
        for node in [*case.ray.nodes]:
            case.ray.kill_node(node)
        log = case.project.root / "log.txt"
        before = cpu_seconds(driver.pid)
        wait_until(lambda: "calls wait for workers" in log.read_text("utf-8"), "a word of that", driver)
        event(f"CPU: {cpu_seconds(driver.pid) - before:.1f} s")
        assert cpu_seconds(driver.pid) - before < 3.0
        case.ray.add_node()
        case.ran(driver)
        case.assert_whole()


@only_in_soak
@examples(test=1, soak=8)
@given(requests=st.integers(1, 20))
def test_a_node_that_comes_gets_work(requests: int, make: Any) -> None:
    stages = [CLASSIFY, {"name": "size", "python": "tools/sizes.py:size"}]
    with make(stages=stages) as case:
        closed = case.project.write("closed", "")
        driver = case.start(workers=2 * NODES + 2, at_once=12)
        case.reached(requests, driver)
        node = case.ray.add_node()
        wait_until(lambda: len(case.ray.workers(node)) == 2, "workers of the new node", driver)
        new = case.ray.workers(node)
        closed.unlink()
        case.ran(driver)
        pids = {int(line) for line in (case.project.root / "pids.txt").read_text().split()}
        assert pids & {*new}
        assert case.assert_whole(stages=stages) == 0


@only_in_soak
@examples(test=1, soak=6)
@given(requests=moments, kill=st.booleans())
def test_a_remote_that_cannot_be_written_any_more_costs_nothing(
    requests: int, kill: bool, make: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    disk = tmp_path_factory.mktemp("disk")
    if not mounted(disk, "4m"):
        pytest.skip("no file system may be mounted here")
    try:
        with make() as case:
            case.settle(remote={"url": str(disk)})
            driver = case.start()
            case.reached(requests, driver)
            wait_until(lambda: read_only(disk), "a moment at which nobody writes")
            if kill:
                case.ray.kill_node(case.ray.nodes[0])
            ran = case.ran(driver)
            event(f"said: {ran.err.count('replies are not kept in the remote')}")
            assert ran.err.count("replies are not kept in the remote") <= 2 * NODES
            case.assert_whole()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def read_only(disk: Path) -> bool:
    """Whether the disk takes nothing from now on; where somebody writes to it just then it goes on as it is."""
    return subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True).returncode == 0


@only_in_soak
@examples(test=1, soak=10)
@given(requests=moments, more=st.integers(0, 3 * AT_ONCE), die=st.sampled_from(["node", "driver"]))
def test_no_budget_is_passed_whoever_dies(requests: int, more: int, die: str, make: Any) -> None:
    with make() as case:
        case.project.workflow(budget={"calls": ROWS + more})
        driver = case.start()
        wait_until(lambda: case.server.account()["requests"] >= requests or driver.poll() is not None, "requests")
        if die == "node":
            case.ray.kill_node(case.ray.nodes[0])
        elif driver.poll() is None:
            killed(driver)
            driver = case.start()
        ran = ended(driver)
        assert ran.code in (0, 4), ran.out + ran.err
        account = case.assert_booked(unknown=AT_ONCE if die == "driver" else 0)
        assert account["requests"] <= ROWS + more
        event(f"ended with {ran.code}")
        case.project.workflow(budget={"calls": 10 * ROWS})
        case.project.agac(*HERE, code=0)
        assert results(case.project) == results_here()
