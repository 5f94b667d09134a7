"""Functions in processes of their own: each may die, hang or be interrupted without harm to any other row."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.processes import processes, wait_until

from agac.core.errors import ErrorType, RowError
from agac.tools.processes import open_function

pytestmark = processes

DYING = """\
import os, signal
def f(row):
    if row["n"] == 3:
        row_dies(row)
    return {"n": row["n"], "pid": os.getpid()}
def row_dies(row):
    HOW
"""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("os._exit(7)", "the process ended with exit status 7"),
        ("os._exit(0)", "the process ended with exit status 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process was killed by SIGKILL; the machine may be out of memory"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process was killed by SIGSEGV"),
        ("os.abort()", "the process was killed by SIGABRT"),
    ],
)
def test_a_process_that_dies_fails_the_row_that_it_had_and_no_other(tools: Any, how: str, message: str) -> None:
    tools.write("tools/clean.py", DYING.replace("HOW", how))
    outcomes = tools.calls([{"n": n} for n in range(8)], processes=2)
    assert outcomes.pop(3) == RowError(ErrorType.PYTHON_ERROR, f"{message} (tools/clean.py:f)")
    assert [one["n"] for one in outcomes] == [0, 1, 2, 4, 5, 6, 7]
    pids = {one["pid"] for one in outcomes}
    assert os.getpid() not in pids
    assert not any(map(is_alive, pids))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_process_that_died_while_it_was_idle_is_replaced(tools: Any) -> None:
    tools.write("tools/clean.py", "import os\ndef f(row): return {'pid': os.getpid()}\n")
    before = threading.enumerate()

    def is_watched() -> bool:
        """Whether a thread waits for its end, or has not told the event loop of it; before Python 3.12 one does."""
        return any("waitpid" in one.name and one not in before for one in threading.enumerate())

    async with open_function(tools.ref(), tools.root, 1) as call:
        first: Any = await call({})
        os.kill(first["pid"], signal.SIGKILL)
        while is_alive(first["pid"]) or is_watched():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        assert await call({}) != first


def test_as_many_processes_work_at_once_as_are_wanted(tools: Any) -> None:
    # each waits for the other's file: one process would never get the first row done
    tools.write(
        "tools/clean.py",
        "from pathlib import Path\nimport time\ndef f(row):\n    Path(row['mine']).touch()\n"
        "    while not Path(row['other']).exists(): time.sleep(0.005)\n    return row\n",
    )
    one, two = str(tools.root / "one"), str(tools.root / "two")
    rows = [{"mine": one, "other": two}, {"mine": two, "other": one}]
    assert tools.calls(rows, processes=2) == rows


def test_large_rows_go_through(tools: Any) -> None:
    tools.write("tools/clean.py", "def f(row): return [row, row]\n")
    row = {"text": "ä" * 3_000_000, "list": list(range(10_000))}
    assert tools.gives(row, processes=1) == [row, row]


async def test_a_cancelled_call_ends_its_process_and_what_that_started(tools: Any) -> None:
    tools.write(
        "tools/clean.py",
        "import os, subprocess\nfrom pathlib import Path\ndef f(row):\n    if row['hang']:\n"
        "        child = subprocess.Popen(['sleep', '1000'])\n"
        "        Path(row['file'] + '.new').write_text(f'{os.getpid()} {child.pid}')\n"
        "        os.rename(row['file'] + '.new', row['file'])\n"
        "        while True: pass\n    return {'pid': os.getpid()}\n",
    )
    file: Path = tools.root / "pids"

    async with open_function(tools.ref(), tools.root, 1) as call:
        hanging = asyncio.create_task(call({"hang": True, "file": str(file)}))
        while not file.exists():
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(call({"hang": False}))
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert "pid" in await waiting
    for pid in map(int, file.read_text().split()):
        wait_until(lambda pid=pid: not is_running(pid), f"{pid} ends")


def is_running(pid: int) -> bool:
    """Whether a process does more than wait to be reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def test_a_module_that_kills_its_process_when_imported_is_an_error(tools: Any) -> None:
    tools.write("tools/clean.py", "import os\nos._exit(5)\ndef f(row): return row\n")
    error = await tools.refuses(processes=2)
    assert error.message == "tools/clean.py:f cannot be imported: the process ended with exit status 5"


def test_a_process_has_no_input_one_event_loop_for_all_rows_and_the_time_to_end(tools: Any) -> None:
    tools.write(
        "tools/clean.py",
        "import asyncio, atexit, sys\nfrom pathlib import Path\n"
        "atexit.register(Path(__file__).with_name('ended').touch)\nlock = asyncio.Event()\nloops = set()\n"
        "async def f(row):\n    loops.add(asyncio.get_running_loop())\n    await asyncio.sleep(0)\n"
        "    return {'loops': len(loops), 'read': sys.stdin.read()}\n",
    )
    assert tools.calls([{}, {}, {}], processes=1) == [{"loops": 1, "read": ""}] * 3
    assert (tools.root / "tools/ended").exists()


SCRIPT = """\
import asyncio, sys
from pathlib import Path
from agac.core.errors import Where
from agac.spec.python_code import parse_reference
from agac.tools.processes import open_function

async def main():
    root = Path(sys.argv[1])
    ref, _ = parse_reference("tools/clean.py:f", Where("w"), root)
    async with open_function(ref, root, 1) as call:
        print("result", (await call({}))["done"], flush=True)

asyncio.run(main())
"""


def start(tools: Any) -> subprocess.Popen[bytes]:
    """A program that uses agac without `if __name__ == "__main__"`; its function waits for the file `go`."""
    tools.write(
        "tools/clean.py",
        "import os, time\nfrom pathlib import Path\ndef f(row):\n    home = Path(__file__).parent\n"
        "    (home / 'new').write_text(str(os.getpid()))\n    os.rename(home / 'new', home / 'pid')\n"
        "    while not (home / 'go').exists(): time.sleep(0.01)\n    return {'done': True}\n",
    )
    script = tools.write("script.py", SCRIPT)
    return subprocess.Popen(
        [sys.executable, script, tools.root], stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
    )


def test_an_interrupt_that_reaches_a_worker_is_not_for_it(tools: Any) -> None:
    pid = tools.root / "tools/pid"
    with start(tools) as program:
        wait_until(pid.exists, "a call", program)
        os.kill(int(pid.read_text()), signal.SIGINT)
        (tools.root / "tools/go").touch()
        out, err = program.communicate()
    assert (out, err, program.returncode) == (b"result True\n", b"", 0)


def test_workers_end_when_agac_is_interrupted_or_killed(tools: Any) -> None:
    pid = tools.root / "tools/pid"
    for ending in (signal.SIGINT, signal.SIGKILL):
        with start(tools) as program:
            wait_until(pid.exists, "a call", program)
            worker = int(pid.read_text())
            pid.unlink()
            os.killpg(program.pid, ending)
            program.communicate()
        wait_until(lambda worker=worker: not is_running(worker), "the worker ends")
