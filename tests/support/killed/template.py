"""Has imported all of agac, and forks: each child is a process of its own that runs one `agac` command or a simulator.

    python template.py SOCKET PYTHON LISTENING

listens on SOCKET, by the descriptor LISTENING, until its standard input ends. Whoever connects sends what to run
(program, arguments, folder, env; by `marshal`, which takes no time to import) with three descriptors, the child's
input, output and errors; back come the child's number and, once it has ended, its exit code, negative for a signal. A
child that is `tied` is killed when whoever asked is gone.
The program PYTHON asks so: the simulators that children start are forked, too. A fresh interpreter would spend up to a
second of CPU time on every command to load it all.
"""

import asyncio
import ctypes
import gc
import marshal
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import agac

BESIDE = (
    "agac.simulator.__main__", "anthropic", "anyio._backends._asyncio", "duckdb", "encodings.ascii", "encodings.idna",
    "encodings.utf_8_sig", "genai_prices", "httpcore2", "httpx2", "jsonschema_rs", "openai", "truststore", "uvloop",
)  # fmt: skip
"""What is imported late, by agac and by the makers' SDKs."""

PROVIDERS = """\
providers:
  chat: {{dialect: openai-chat, base_url: "{0}", structured: json_schema, batch: openai}}
  messages: {{dialect: anthropic, base_url: "{0}", structured: json_schema, batch: anthropic}}
defaults: {{model: chat/small}}
"""
WORKFLOW = """\
input: {path: rows.csv, id_field: id}
defaults: {batch: {grace: 0.1, poll_interval: 0.05}}
stages:
  - {name: called, prompt: "Review: ${text}", output_schema: {sentiment: "positive|negative", reason: string}}
  - {name: sent, run_mode: batch, prompt: "${called.reason}"}
  - {name: told, model: messages/small, run_mode: batch, prompt: "${sent}", when: 'text == "good"'}
"""


def load(python: str) -> None:
    """Everything that a command could import, so that no child has to; what lacks an optional package is left out, and
    so is Ray, which few want: without it a fork takes two thirds of the time."""
    for module in walk_packages(agac.__path__, "agac."):
        if not module.name.endswith(("__main__", "workers.ray")):
            import_module(module.name)
    for name in BESIDE:
        with suppress(ModuleNotFoundError):
            import_module(name)
    import_module("ready_stores")
    os.fsync = lambda _: None  # as in conftest.py
    db = sys.modules["agac.store.db"]
    db._PRAGMAS = ("PRAGMA synchronous = OFF", *db._PRAGMAS[1:])  # type: ignore[attr-defined]
    sys.modules["agac.simulator.server"].sys = SimpleNamespace(executable=python)  # type: ignore[attr-defined]


def warm() -> None:
    """A run with calls and batches: what is compiled, cached or looked up at its first use, all children have."""
    from agac import run
    from agac.api.run_options import RunOptions

    with TemporaryDirectory() as name, simulated() as base_url:
        Path(name, "workflows").mkdir()
        Path(name, "agac.yml").write_text(PROVIDERS.format(base_url), "utf-8")
        Path(name, "workflows/one.yml").write_text(WORKFLOW, "utf-8")
        Path(name, "rows.csv").write_text("id,text\n1,good\n", "utf-8")
        report = run("one", RunOptions(wait=True), project=name)
    assert report.summary["complete"], report


@contextmanager
def simulated() -> Iterator[str]:
    """A simulator in a thread; its address."""
    from aiohttp import web

    from agac.simulator.app import Simulator
    from agac.simulator.server import listen
    from agac.simulator.settings import Settings

    async def serve_calls() -> None:
        runner = web.AppRunner(Simulator(Settings()).app())
        await runner.setup()
        begun.put((asyncio.get_running_loop(), await listen(runner, Settings())))
        await stop.wait()
        await runner.cleanup()

    begun: SimpleQueue[tuple[asyncio.AbstractEventLoop, str]] = SimpleQueue()
    stop = asyncio.Event()
    thread = threading.Thread(target=asyncio.run, args=(serve_calls(),))
    thread.start()
    loop, base_url = begun.get()
    try:
        yield base_url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


LARGE_PAGE = 1 << 21
COLLECT = (20_000, 20, 20)
"""How much a child makes until Python looks for what nobody uses any more; as in conftest.py."""
COLLAPSE = 25
"""MADV_COLLAPSE of Linux since 6.1 (asm-generic/mman-common.h, checked 2026-11-23), which Python has no name for."""


def in_large_pages() -> None:
    """Has all that was loaded lie in pages of 2 MB, where the kernel can: half of what a child takes is the copying of
    tables of pages. What a child writes to is split again."""
    maps = Path("/proc/self/maps")
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in maps.read_text().splitlines() if maps.exists() else ():
        where, rights, _, _, file, *_ = line.split()
        if rights == "rw-p" and file == "0":  # of no file
            start, end = (int(address, 16) for address in where.split("-"))
            start = -(-start // LARGE_PAGE) * LARGE_PAGE
            if start < end - end % LARGE_PAGE:
                madvise(start, end - end % LARGE_PAGE - start, COLLAPSE)


def child(asked: dict[str, Any], handles: list[int], ours: list[int]) -> NoReturn:
    """A child's whole life; `ours` are descriptors that are none of its business. Python's own end is left out but
    where coverage writes what it saw: it would touch, and so copy, all that was loaded."""
    import sitecustomize

    from agac.cli.main import main
    from agac.simulator.__main__ import main as simulator

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"], PWD=asked["folder"], AGAC_TEST_FORKS=sys.argv[1])
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
    for handle in (*handles, *ours):
        os.close(handle)
    encoding = os.environ.get("PYTHONIOENCODING") or None
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", 1 if os.isatty(1) else -1, encoding=encoding)
    sys.stderr = os.fdopen(2, "w", 1, encoding=encoding, errors="backslashreplace")
    sys.argv = [asked["program"], *asked["arguments"]]
    sys.path[0] = asked["folder"]
    sitecustomize.begin()
    programs: dict[str, Callable[[], Any]] = {
        "simulator": lambda: simulator(*asked["arguments"]), "script": lambda: script(*asked["arguments"])
    }  # fmt: skip
    code: Any = 0
    try:
        code = programs.get(asked["program"], main)()
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    if "coverage" in sys.modules:
        sys.exit(code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else int(code is not None))


def script(name: str, *words: str) -> None:
    """A program of Python: the file of this name, what is on the standard input for `-`, or what follows `-c`."""
    arguments = list(words)
    if name == "-c":
        text, *arguments = arguments
    else:
        text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
    sys.argv = [name, *arguments]
    sys.modules["__main__"] = made = ModuleType("__main__")
    exec(compile(text, {"-": "<stdin>", "-c": "<string>"}.get(name, name), "exec"), vars(made))


def serve(listening: socket.socket) -> None:
    """Until its input ends; whoever is still there then is ended, too."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    reports: dict[int, socket.socket] = {}
    tied: dict[socket.socket, int] = {}
    while True:
        ready, _, _ = select.select([0, listening, woken, *tied], [], [])
        if 0 in ready:
            break
        if woken in ready:
            os.read(woken, 4096)
            for report in ended(reports):
                tied.pop(report, None)
        for report in tied.keys() & ready:
            os.kill(tied.pop(report), signal.SIGKILL)
        if listening in ready:
            report, _ = listening.accept()
            message, handles, _, _ = socket.recv_fds(report, 1 << 20, 3)
            if not message:  # whoever asked was killed before it said for what
                report.close()
                continue
            asked = marshal.loads(message)
            number = os.fork()
            if not number:
                sockets = [listening, report, *reports.values()]
                child(asked, handles, [woken, wakes, *(one.fileno() for one in sockets)])
            for handle in handles:
                os.close(handle)
            reports[number] = report
            if asked.get("tied"):
                tied[report] = number
            with suppress(ConnectionError):  # whoever asked is gone: a child that is tied ends with the next look
                report.send(f"{number}\n".encode())
    for number in reports:
        os.kill(number, signal.SIGKILL)
    os._exit(0)  # without Python's own end, of which extension modules complain


def ended(reports: dict[int, socket.socket]) -> list[socket.socket]:
    """Says of each child that has ended how it did; gives who asked for them."""
    told = []
    while reports:
        number, status = os.waitpid(-1, os.WNOHANG)
        if not number:
            break
        told.append(reports.pop(number))
        with told[-1] as report, suppress(ConnectionError):  # nobody may wait for it any more
            report.send(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    return told


if __name__ == "__main__":
    load(sys.argv[2])
    warm()
    gc.freeze()
    gc.set_threshold(*COLLECT)
    in_large_pages()
    serve(socket.socket(fileno=int(sys.argv[3])))
