"""A run that is asked to stop, or that a fatal fault stops: nothing is lost, nothing is paid twice."""

import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import (
    Process,
    ended,
    go_on_command,
    interrupt,
    listening,
    processes,
    quiet_account,
    row_count,
    wait_until,
)
from support.project import ProjectFolder, clean_environment
from support.server import Faulty, Server, simulator
from support.soak import SOAK

pytestmark = processes

WIDE = 8
"""The concurrency of these runs."""

SLOW = 3
"""Seconds that slow calls take: long enough for a signal to find them in flight on a busy machine."""


def runs(project: ProjectFolder, *flags: str) -> Process:
    return listening(project.start("run", "-a", "reviews", "--concurrency", str(WIDE), *flags))


def asks(project: ProjectFolder, server: Server, rows: int = 40, **provider: Any) -> ProjectFolder:
    """The project with so many rows, all of them asked of `server`."""
    project.configure(server.base_url, **provider)
    project.workflow(rows=rows)
    return project


def in_flight(server: Server, requests: int) -> Callable[[], bool]:
    return lambda: server.account()["requests"] >= requests


def finishes(project: ProjectFolder, command: list[str], rows: int = 40) -> None:
    """The command that was printed goes on, and ends with every row done."""
    project.agac(*command, code=0)
    assert [(e["id"], e["ok"]) for e in project.envelopes()] == [(f"r-{i}", True) for i in range(1, rows + 1)]
    project.assert_sound()


def outputs(project: ProjectFolder) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (project.root / "output").rglob("*") if path.is_file()}


def slow(first: int, count: int = WIDE) -> dict[str, Any]:
    """So many calls from this one on take their time, so that a signal finds all of them in flight."""
    return {"kind": "slow_first_byte", "seconds": SLOW, "at": list(range(first, first + count))}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_finishes_what_is_in_flight_begins_nothing_and_leaves_it_to_be_exported(
    number: signal.Signals, project: ProjectFolder, faulty: Faulty
) -> None:
    """No output is replaced meanwhile."""
    server = faulty([slow(WIDE + 1)])
    asks(project, server, rows=WIDE)
    assert project.run().exit_code == 0
    before = outputs(project)
    assert before
    project.numbered(40)
    process = runs(project)
    wait_until(in_flight(server, 2 * WIDE), "a wave", process)
    interrupt(process, number)
    ran = ended(process)
    assert ran.code == 130
    assert "Interrupted" in ran.err
    assert "Traceback" not in ran.err
    assert "Results:" not in ran.out
    assert outputs(project) == before
    account = quiet_account(server)
    assert account["requests"] == account["charged"] == 2 * WIDE
    assert row_count(project) == 2 * WIDE
    project.assert_sound()
    assert project.agac("export", "-a", "reviews").code == 2
    assert project.agac("export", "-a", "reviews", "--partial").code == 0
    assert len(project.envelopes()) == 2 * WIDE
    summary = project.output(file="summary.json")
    assert (summary["complete"], summary["rows"]["done"]) == (False, 2 * WIDE)
    finishes(project, go_on_command(ran))
    assert server.account()["duplicates"] == 0


def test_a_run_whose_rows_were_all_done_when_it_was_interrupted_is_finished_by_the_next(
    project: ProjectFolder, faulty: Faulty
) -> None:
    """Only the next run knows that there are no more rows, and the outputs have to say so."""
    server = faulty([slow(1)])
    asks(project, server, rows=WIDE)
    process = runs(project)
    wait_until(in_flight(server, WIDE), "all calls", process)
    interrupt(process)
    assert ended(process).code == 130
    assert row_count(project) == WIDE
    assert project.agac("export", "-a", "reviews", "--partial").code == 0
    assert project.output(file="summary.json")["complete"] is False
    assert project.run().exit_code == 0
    assert project.output(file="summary.json")["complete"] is True
    assert server.account()["requests"] == WIDE


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_the_run_at_once(second: signal.Signals, project: ProjectFolder, faulty: Faulty) -> None:
    """Four calls never get an answer: only the second signal can end this."""
    server = faulty([{"kind": "hang", "at": [9, 10, 11, 12]}])
    asks(project, server)
    process = runs(project)
    wait_until(in_flight(server, 12), "calls that hang", process)
    interrupt(process)
    rows = row_count(project)
    wait_until(lambda: server.account()["in_flight"] == 4 and process.poll() is None, "the hanging calls", process)
    assert row_count(project) >= rows
    interrupt(process, second)
    ran = ended(process, 40)  # the first signal alone would wait for a minute
    assert ran.code == 130
    assert "4 calls in flight were cancelled" in ran.err
    project.assert_sound()
    finishes(project, go_on_command(ran))
    assert server.account()["duplicates"] == 0


@pytest.mark.unmeasured
def test_an_interrupt_before_the_first_call_asks_nothing(project: ProjectFolder, server: Server) -> None:
    """Somebody else holds the database, so that the run cannot begin."""
    asks(project, server)
    assert project.run(limit=1).exit_code == 0
    server.reset()
    other = sqlite3.connect(project.root / ".agac/agac.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    process = runs(project)
    interrupt(process)
    other.execute("ROLLBACK")
    other.close()
    ran = ended(process)
    assert ran.code == 130
    assert server.account()["requests"] == 0
    finishes(project, go_on_command(ran))


@pytest.mark.parametrize("fault", [{"kind": "server_error", "status": 503}, {"kind": "rate_limit"}])
def test_an_interrupt_does_not_wait_for_a_back_off(
    fault: dict[str, Any], project: ProjectFolder, faulty: Faulty
) -> None:
    """The first call is to come back in ten minutes: it waits by itself, or the whole lane does."""
    server = faulty([{**fault, "retry_after": 600, "at": [1]}])
    asks(project, server)
    process = runs(project)
    wait_until(in_flight(server, 1), "a call", process)
    stored = "SELECT count(*) FROM attempt WHERE error_type IS NOT NULL"
    wait_until(lambda: project.query(stored) == [(1,)], "a stored refusal", process)
    interrupt(process)
    ran = ended(process, 40)
    assert ran.code == 130
    project.assert_sound()
    finishes(project, go_on_command(ran))
    assert server.account()["duplicates"] == 0


def test_an_interrupted_fresh_run_is_continued_not_begun_anew(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([slow(40 + WIDE)])
    asks(project, server)
    project.run()
    process = runs(project, "--fresh")
    wait_until(in_flight(server, 40 + 2 * WIDE - 1), "fresh calls", process)
    interrupt(process)
    ran = ended(process)
    assert ran.code == 130
    finishes(project, go_on_command(ran))
    assert server.account()["charged"] == 80  # every row asked once more, none a third time


def test_ctrl_c_in_a_terminal_does_not_take_the_simulator_away(tmp_path: Path) -> None:
    """The terminal signals the whole process group; the embedded simulator has to outlive the calls in flight."""
    project = ProjectFolder(tmp_path)
    project.workflow(rows=2500)
    process = listening(project.start("run", "-a", "reviews", "--concurrency", "4"))
    wait_until(lambda: row_count(project) >= 20, "some rows", process)
    os.killpg(process.pid, signal.SIGINT)
    ran = ended(process)
    assert ran.code == 130, ran.err
    assert project.query("SELECT count(*) FROM attempt WHERE error_type IS NOT NULL") == [(0,)]
    project.assert_sound()
    assert project.agac(*go_on_command(ran)).code == 0
    assert project.query("SELECT count(*), count(DISTINCT fingerprint) FROM attempt") == [(2500, 2500)]


@pytest.fixture
def healthy() -> Iterator[Server]:
    with simulator() as server:
        yield server


FATAL = {
    "an expired key": ({"kind": "unauthorized"}, "local"),
    "an unknown model": ({"kind": "not_found"}, "small"),
    "no money left": ({"kind": "quota"}, "quota"),
}


@pytest.mark.parametrize("name", FATAL)
def test_a_fatal_fault_stops_the_run_within_one_wave(
    name: str, project: ProjectFolder, faulty: Faulty, healthy: Server
) -> None:
    fault, word = FATAL[name]
    server = faulty([{**fault, "at": list(range(21, 1000))}])
    asks(project, server, rows=5)
    assert project.run().exit_code == 0
    before = outputs(project)
    project.numbered(200)
    ran = project.agac("run", "-a", "reviews", "--concurrency", str(WIDE), code=1)
    assert ran.err.count("stopped:") == 1
    assert ran.err.count("\n") == 2, ran.err  # said once, and what to do
    assert word in ran.err
    account = quiet_account(server)
    assert account["requests"] <= 20 + WIDE
    assert account["charged"] == row_count(project) == 20
    assert project.query("SELECT count(*) FROM row WHERE state = 2") == [(0,)]
    assert outputs(project) == before
    project.assert_sound()
    ran = project.agac("run", "-a", "reviews", "--json", code=1)
    assert (bool(ran.json["stopped"]), ran.json["exit_code"]) == (True, 1)
    assert go_on_command(ran) == ["run", "-a", "reviews", "--json"]
    project.configure(healthy.base_url)
    finishes(project, go_on_command(ran), rows=200)
    assert healthy.account()["charged"] == 180


def test_a_server_that_cannot_be_reached_is_named_while_it_is_tried_again_and_after_a_ctrl_c(
    project: ProjectFolder,
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        project.configure(url)
        project.workflow(rows=2)
        process = runs(project)
        why = "local (127.0.0.1) cannot be reached: connection refused. Check that the server runs"
        wait_until(lambda: "Run 1 is retrying" in project.agac("status").out, "a call that is tried again", process)
        assert f"Run 1 is retrying: {why}" in project.agac("status", "last").out
        last = project.agac("status", "--json").json["runs"][0]["last_invocation"]
        assert last["waiting_for"]["message"].startswith(why)
        wait_until(lambda: len(project.query("SELECT id FROM attempt")) >= 8, "some seconds of it", process)
        interrupt(process)
        ran = ended(process)
    assert ran.code == 130
    assert f"retrying: {why}" in ran.err
    assert f"  The last call brought no answer: {why} and that its base_url, {url}, is right.\n" in ran.err
    after = project.agac("status")
    assert f"The last call of run 1 brought no answer: {why}" in after.out
    assert "Run 1 is not finished. Resume with: agac run -a reviews" in after.out
    with project.asking(simulator()):
        finishes(project, go_on_command(ran), rows=2)
    assert "brought no answer" not in project.agac("status").out


# The event loop is busy: with guards over long lists, with patterns, with replies that are checked.

HEAVY_ROWS = 16
BUSY = {
    "name": "classify",
    "when": "size(xs) > 1 && xs.filter(x, x >= 0).size() > 2 && text.matches('(?i)(love|like) .*number')",
    "prompt": "${text}",
}
END_SECONDS = 10.0
"""A generous bound of what takes about a second: a machine that is shared may be slow."""


HEAVY = [
    {"id": f"r-{number}", "text": f"I love number {number}", "xs": [*range(1_500)]}
    for number in range(1, HEAVY_ROWS + 1)
]


def heavy(project: ProjectFolder, server: Server) -> None:
    """A project each of whose rows keeps the event loop busy for some 0.05 s, within what a guard may take."""
    project.configure(server.base_url)
    project.workflow(stages=[BUSY], path="data/rows.jsonl", rows=HEAVY)


def seconds_to_end(process: Process, number: signal.Signals) -> tuple[float, Any]:
    begun = time.monotonic()
    interrupt(process, number)
    ran = ended(process)
    return time.monotonic() - begun, ran


@pytest.mark.parametrize("seed", range(20 if SOAK else 2))
def test_a_signal_ends_a_run_over_heavy_rows_at_any_moment(
    seed: int, project: ProjectFolder, faulty: Faulty, record_property: Callable[[str, object], None]
) -> None:
    chosen = random.Random(seed)
    moment = chosen.randrange(HEAVY_ROWS // 2)
    number = chosen.choice([signal.SIGINT, signal.SIGTERM])
    server = faulty([])
    heavy(project, server)
    process = runs(project)
    wait_until(lambda: server.account()["requests"] >= moment, f"{moment} requests", process)
    seconds, ran = seconds_to_end(process, number)
    record_property("seconds_to_end", round(seconds, 2))
    assert ran.code == 130, ran.err
    assert seconds < END_SECONDS
    project.assert_sound()
    assert row_count(project) < HEAVY_ROWS
    assert project.agac(*go_on_command(ran)).code == 0
    assert row_count(project) == HEAVY_ROWS
    assert server.account()["duplicates"] == 0


def test_a_server_that_hangs_holds_up_no_second_signal_over_heavy_rows(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([{"kind": "hang", "at": [3, 4]}])
    heavy(project, server)
    process = runs(project)
    wait_until(in_flight(server, 4), "calls that hang", process)
    interrupt(process)
    wait_until(lambda: server.account()["in_flight"] == 2, "the hanging calls alone", process)
    seconds, ran = seconds_to_end(process, signal.SIGINT)
    assert (ran.code, seconds < END_SECONDS) == (130, True), ran.err
    project.assert_sound()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_plan_over_heavy_rows(number: signal.Signals, project: ProjectFolder, server: Server) -> None:
    heavy(project, server)
    project.rows(({**row, "id": f"{row['id']}-{part}"} for part in range(30) for row in HEAVY), "data/rows.jsonl")
    process = project.start("plan", "-a", "reviews")
    wait_until(lambda: _is_planning(process), "the plan", process)
    seconds, ran = seconds_to_end(process, number)
    assert ran.code in (130, -signal.SIGTERM)
    assert seconds < END_SECONDS
    assert not ran.out


def _is_planning(process: Process) -> bool:
    """Whether the input's file is open, or was read: the walk has begun."""
    files = [link.resolve() for link in Path(f"/proc/{process.pid}/fd").iterdir()]
    return any(file.name == "rows.jsonl" for file in files)


COMPUTES = """
import pathlib, sys

def computes(row):
    pathlib.Path(__file__).with_name("begun").touch()
    while sys.getswitchinterval() > 0.001:
        pass
    return {"made": row["id"]}
"""
"""A function that computes until threads take turns more often than Python's own 5 ms."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_event_loop_have_its_turn_among_functions_that_compute(
    number: signal.Signals, project: ProjectFolder
) -> None:
    project.write("functions.py", COMPUTES)
    project.workflow(stages=[{"name": "made", "python": "functions.py:computes"}], rows=WIDE)
    process = runs(project)
    wait_until((project.root / "begun").exists, "functions that compute", process)
    interrupt(process, number)
    ran = ended(process)
    assert ran.code == 130, ran.err
    assert row_count(project) == WIDE, "their calls have ended, which only a shorter turn can do"
    project.assert_sound()


LOADED = """\
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[0]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
awaited, *sys.argv[1:] = sys.argv[1:]
sys.argv[0] = awaited
runpy.run_module("agac", run_name="__main__")
"""
"""A program that gets a SIGINT when the module is loaded that its first word names; the others are agac's."""


@pytest.mark.parametrize("module", ["agac.cli.main", "click", "agac.cli.terminal", "agac.api.run", "agac.store.db"])
def test_a_ctrl_c_while_modules_are_loaded_ends_a_command_as_any_other(module: str, project: ProjectFolder) -> None:
    project.workflow(rows=1)
    words = [sys.executable, "-c", LOADED, module, "run", "reviews"]
    ended = subprocess.run(words, cwd=project.root, env=clean_environment({}), capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (130, b"")
    assert ended.stderr.startswith(b"Interrupted")
    assert not (project.root / ".agac/agac.db").exists()
