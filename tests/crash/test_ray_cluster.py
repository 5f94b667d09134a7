"""Runs on a Ray cluster of several nodes of which parts die, stop or come, at moments that the provider tells.

Whatever happens: each row has one outcome, no more is paid twice than was in flight, what is booked is what was billed
but for what was lost, no budget is passed, and the files are those of a run on this machine alone.
"""

from __future__ import annotations

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
from support.cluster import RayCluster, cluster
from support.commands import Forked
from support.processes import ended, killed, quiet_account, wait_until
from support.project import ProjectFolder, Ran
from support.server import Server, simulator
from support.soak import campaign

pytest.importorskip("ray")

ROWS, AT_ONCE, NODES = 60, 20, 2
LATENCY = ("--latency", "0.2")
PRICES = {"small": {"input": 1000.0, "output": 0.0}}  # prompts are of one length, so that all calls cost the same
HERE = ("run", "-a", "reviews", "--executor", "local")
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
        return ran

    def assert_booked(self, unknown: int = 0) -> dict[str, Any]:
        """What was billed is booked, but for calls of which no reply came; `unknown` ones at most were under way when a
        driver died. Gives the account."""
        account: dict[str, Any] = quiet_account(self.server)
        counted = "SELECT sum(NOT ambiguous), sum(ambiguous), sum(purpose = 'paid_again') FROM attempt"
        ((answered, lost, late),) = self.project.query(counted)
        assert answered <= account["charged"] <= account["requests"] <= answered + lost - late + unknown
        ((booked,),) = self.project.query("SELECT sum(cost) FROM counter WHERE outcome = 'call'")
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
import os, time
from pathlib import Path

FOLDER = Path("{folder}")

def size(row):
    with (FOLDER / "pids.txt").open("a") as file:
        file.write(f"{{os.getpid()}}\\n")
    while row["id"] >= "r-30" and (FOLDER / "closed").exists():
        time.sleep(0.02)
    return {{"size": len(row["text"])}}
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
