"""Has imported all of agac, and forks: each child is a process of its own that runs one `agac` command or a simulator.

Its standard input is a socket. A message there is JSON (program, arguments, folder, env) with four descriptors: the
child's input, output and errors, and a socket on which the child's number is written and, once it has ended, its exit
code, negative for a signal. A fresh interpreter would spend up to a second of CPU time on every command to load it all.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, NoReturn

import agac

BESIDE = (
    "agac.simulator.__main__", "anthropic", "anyio._backends._asyncio", "duckdb", "encodings.idna", "httpcore2",
    "httpx2", "openai", "truststore",
)  # fmt: skip
"""What is imported late, by agac and by the makers' SDKs."""


def load() -> None:
    """Everything that a command could import, so that no child has to."""
    for module in walk_packages(agac.__path__, "agac."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in BESIDE:
        with suppress(ModuleNotFoundError):
            import_module(name)
    gc.freeze()


def child(asked: dict[str, Any], handles: list[int]) -> NoReturn:
    """A child's whole life. Python's own end is left out but where coverage writes what it saw: it would touch, and
    so copy, all that was loaded."""
    import sitecustomize

    from agac.cli.main import main
    from agac.simulator.__main__ import main as simulator

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"], PWD=asked["folder"])
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
    os.closerange(3, 256)
    encoding = os.environ.get("PYTHONIOENCODING") or None
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w", encoding=encoding)
    sys.stderr = os.fdopen(2, "w", encoding=encoding, errors="backslashreplace")
    sys.argv = [asked["program"], *asked["arguments"]]
    sys.path[0] = asked["folder"]
    sitecustomize.begin()
    code: Any = 0
    try:
        code = simulator(asked["arguments"]) if asked["program"] == "simulator" else main()
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


def serve() -> None:
    """Until its input ends; whoever is still there then is ended, too."""
    requests = socket.socket(fileno=os.dup(0))
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    reports: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            end_of_children(reports)
        if requests in ready:
            message, handles, _, _ = socket.recv_fds(requests, 1 << 20, 4)
            if not message:
                break
            report = socket.socket(fileno=handles.pop())
            number = os.fork()
            if not number:
                child(json.loads(message), handles)
            for handle in handles:
                os.close(handle)
            reports[number] = report
            report.send(f"{number}\n".encode())
    for number in reports:
        os.kill(number, signal.SIGKILL)
    os._exit(0)  # without Python's own end, of which extension modules complain


def end_of_children(reports: dict[int, socket.socket]) -> None:
    """Says of each child that has ended how it did."""
    while reports:
        number, status = os.waitpid(-1, os.WNOHANG)
        if not number:
            return
        with reports.pop(number) as report, suppress(BrokenPipeError):  # nobody may wait for it any more
            report.send(f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    load()
    serve()
