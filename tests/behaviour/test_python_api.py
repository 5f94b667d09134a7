"""`import agac`: names with and without `await`, in programs and where an event loop runs already, and their types."""

import asyncio
import inspect
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.project import ProjectFolder
from support.server import Faulty, Server

import agac
from agac.api.report import WatchedRun
from agac.core.errors import ExitCode

ROWS = 12


def within_a_loop(call: Callable[[], object]) -> object:
    """What a cell of a notebook gives: a loop runs, and the call does not await."""

    async def cell() -> object:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a kernel has it while a cell runs
        return call()

    return asyncio.run(cell())


def test_each_function_that_waits_has_an_async_twin() -> None:
    functions = {name: getattr(agac, name) for name in agac.api.__all__ if name[0].islower()}
    waiting = {name for name, one in functions.items() if inspect.iscoroutinefunction(getattr(one, "__wrapped__", one))}
    plain = {name for name in waiting if not inspect.iscoroutinefunction(functions[name])}
    assert waiting - plain == {f"a{name}" for name in plain}
    assert {"run", "plan", "retrieve", "status", "inspect", "graph", "why", "runs", "gc", "export", "retry"} <= plain
    for name in plain:
        assert inspect.signature(functions[name]) == inspect.signature(functions[f"a{name}"])


async def test_functions_work_with_and_without_await_where_a_loop_runs(project: ProjectFolder, server: Server) -> None:
    project.workflow(rows=ROWS)
    root = project.root
    assert agac.plan("reviews", project=root).calls == (await agac.aplan("reviews", project=root)).calls == ROWS
    assert agac.run("reviews", project=root).exit_code is ExitCode.DONE
    assert (await agac.arun("reviews", project=root)).invocation["calls"] == 0
    assert agac.status(project=root) == await agac.astatus(project=root)
    assert agac.graph("reviews", project=root).mermaid() == (await agac.agraph("reviews", project=root)).mermaid()
    (row,) = agac.inspect("last", "r-3", project=root).rows or ()
    assert row["state"] == "done"
    assert server.account()["charged"] == ROWS
    with pytest.raises(agac.UsageError, match="no batch was submitted"):  # exceptions come as they are
        agac.retrieve(project=root)
    with pytest.raises(agac.UsageError, match="no batch was submitted"):
        await agac.aretrieve(project=root)


def test_an_embedded_simulator_starts_within_a_loop(tmp_path: Path) -> None:
    project = ProjectFolder(tmp_path)
    project.workflow(rows=2)
    assert isinstance(report := within_a_loop(project.run), agac.RunReport)
    assert report.summary["rows"]["done"] == 2


@pytest.mark.parametrize("around", [lambda call: call(), within_a_loop], ids=["program", "within a loop"])
def test_ctrl_c_finishes_what_is_in_flight_and_comes_out_as_keyboard_interrupt(
    around: Callable[[Callable[[], object]], object], project: ProjectFolder, faulty: Faulty
) -> None:
    server = project.asks(faulty([{"kind": "slow_first_byte", "seconds": 1, "at": [1, 2]}]))
    project.workflow(rows=ROWS)

    async def interrupt(watched: WatchedRun) -> None:
        while server.account()["requests"] < 2:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    options = agac.RunOptions(concurrency=2)
    with pytest.raises(KeyboardInterrupt):
        around(lambda: agac.run("reviews", options, project=project.root, watch=interrupt))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    (run,) = agac.status(project=project.root).runs
    assert run["last_invocation"]["exit_code"] == ExitCode.INTERRUPTED
    account = server.account()
    assert account["requests"] == account["charged"] == run["rows"]["done"] == 2
    assert project.run().summary["rows"]["done"] == ROWS
    assert server.account()["charged"] == ROWS
    project.assert_sound()
