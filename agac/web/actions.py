"""The actions that `agac ui --write` allows: stop, retry and cancel. Each has a page that says what
would happen, with a form that does it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agac import api
from agac.api import monitor
from agac.core.errors import UsageError
from agac.core.state_files import make_folder, opener
from agac.web.rendering import render
from agac.web.security import form_of

LOGS = Path(".agac/ui")
"""Folder of the output of commands that the monitor starts, below the project's folder."""

TAIL = 64 << 10
"""Bytes of such a file that are shown."""

STOPS = (
    "The process that works on it stops as at Ctrl-C: calls under way are awaited, and "
    "everything is stored."
)
CANCELS = (
    "Requests that were answered are kept, and paid for. The others are asked again by the "
    "next `agac run`."
)

CHOICES = ("stage", "error", "budget")
"""The options of `agac retry` that the form has."""


async def ask(request: Request) -> Response:
    """Shows what would be asked of the process that works on a run, and on POST asks for it."""
    run = request.path_params["run"]
    batch = request.path_params.get("batch")
    if request.method == "POST":
        await monitor.aask(request.app.state.project, run, batch)
        return RedirectResponse(f"/run/{run}", 303)
    title = f"Stop run {run}"
    effect = STOPS
    if batch is not None:
        title = f"Cancel batch {batch}"
        effect = CANCELS
    return render(request, "ask.html", title=title, run=run, what=effect)


async def retry(request: Request) -> Response:
    """Shows what `agac retry` would run again, and on POST starts it as a process of its own."""
    project = request.app.state.project
    run = request.path_params["run"]
    fields = {**request.query_params, **form_of(request)}
    given = {name: fields.get(name, "") for name in CHOICES}
    if given["budget"] and not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", given["budget"]):
        what = f"{given['budget']!r} is not a number of dollars"
        raise UsageError(what, remedy="Go back, and write one such as 5 or 0.50.")
    words = ["retry", str(run), *(f"--{name}={value}" for name, value in given.items() if value)]
    if request.method == "POST":
        name = f"retry-{run}-{time.time_ns() // 1_000_000}.log"
        start([*words, "--yes"], project, name)
        return RedirectResponse(f"/log/{name}", 303)
    choice = api.Retry(stage=given["stage"] or None, error=given["error"] or None)
    return render(
        request,
        "retry.html",
        title=f"Retry run {run}",
        run=run,
        given=given,
        found=await api.aretry_choice(run, choice, project=project),
        command=shlex.join(["agac", *words]),
    )


def start(words: list[str], project: Path, log_name: str) -> None:
    """Runs an agac command as a process of its own, which outlives the monitor; its output goes
    into a file."""
    folder = project / LOGS
    make_folder(folder)
    with open(folder / log_name, "wb", opener=opener) as output:
        process = subprocess.Popen(  # noqa: S603 - agac's own command, no shell
            [sys.executable, "-m", "agac", *words],
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    Thread(target=process.wait, daemon=True).start()  # its end is noticed while the monitor lives


async def log(request: Request) -> Response:
    """Shows the output so far of a command that the monitor started; of a long one the end."""
    name = request.path_params["name"]
    file = request.app.state.project / LOGS / name
    match = re.fullmatch(r"retry-(\d+)-\d+\.log", name)
    if match is None or not file.is_file():
        raise HTTPException(404)
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - TAIL))
        text = opened.read().decode("utf-8", "replace")
    return render(request, "log.html", title="Output", file=LOGS / name, text=text, run=match[1])


ROUTES = [
    Route("/run/{run:int}/stop", ask, methods=["GET", "POST"]),
    Route("/run/{run:int}/cancel/{batch:int}", ask, methods=["GET", "POST"]),
    Route("/run/{run:int}/retry", retry, methods=["GET", "POST"]),
    Route("/log/{name}", log),
]
