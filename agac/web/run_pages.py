"""The pages of runs: the list of all, and one, which follows it while it is at work."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agac import api
from agac.api import monitor, run_curves
from agac.api.status import database_files, database_path
from agac.core.errors import AgacError, UsageError
from agac.core.text import LINE_END
from agac.web.rendering import page_text, render, served

RUNS = 50
"""Runs of a page of the list."""

LOOK_SECONDS = 1.0
"""Between two looks at the store."""

REFRESH_SECONDS = 5.0
"""After which a fragment is made again although nothing was written into the store: times pass,
leases end."""

QUIET_SECONDS = 15.0
"""Without a fragment, after which a line shows that the stream is alive."""


async def runs(request: Request) -> Response:
    """Shows all runs, the one last worked on first."""
    query = f"?{request.url.query}" if request.url.query else ""
    return render(request, "runs.html", title="Runs", live=f"/live{query}", **await _runs(request))


async def _runs(request: Request) -> dict[str, Any]:
    """Reads what the template of the list shows."""
    text = request.query_params.get("after", "")
    is_number = text.isdecimal() and len(text) < 16
    if text and not is_number:
        raise UsageError(
            f"{text!r} is no run", remedy="Give its number, as the list of runs has it."
        )
    after = int(text) if text else None
    page = await monitor.aruns(after, RUNS, project=request.app.state.project)
    return {"page": page, "after": after}


async def run(request: Request) -> Response:
    """Shows one run: figures, stages, lanes, batches, and what to do next; its curves."""
    number = request.path_params["run"]
    return render(
        request,
        "run.html",
        title=f"Run {number}",
        live=f"/run/{number}/live",
        source=f"/run/{number}/curves.json",
        curves=await _curves(request),
        **await _run(request),
    )


async def _run(request: Request) -> dict[str, Any]:
    """Reads what the template of a run shows."""
    state = request.app.state
    number = request.path_params["run"]
    about = await monitor.arun(number, project=state.project)
    drawing = await api.agraph(run=number, project=state.project)
    actions = []
    if state.write and about.report["state"] == "running":
        actions.append((f"/run/{number}/stop", "Stop"))
    elif state.write and about.record.errors:
        actions.append((f"/run/{number}/retry", "Retry failed rows"))
    graph = Markup(drawing.svg(styled=False))  # noqa: S704 - it escapes every text
    return {"run": about, "graph": graph, "actions": actions}


async def live(request: Request) -> Response:
    """Sends the list, or the figures of one run, again whenever they change."""
    template = "runs_live.html"
    context = _runs
    if "run" in request.path_params:
        template = "run_live.html"
        context = _run

    async def fragment() -> str:
        return page_text(template, served(request) | await context(request))

    return stream(request, fragment)


async def curves(request: Request) -> Response:
    """Gives what the charts draw."""
    return JSONResponse(await _curves(request))


async def _curves(request: Request) -> dict[str, Any]:
    run = request.path_params["run"]
    return curves_of(await run_curves.acurves(run, project=request.app.state.project))


def curves_of(found: run_curves.RunCurves) -> dict[str, Any]:
    """Makes what the charts draw: the starts of the steps (seconds since 1970), their length, and
    the lines of the whole run by name.

    `more` are charts by title, each with the same of its own: those of lanes, and of what was spent
    of budgets."""
    steps = {"at": found.at, "step_s": found.step_s}
    more = dict[str, Any]()
    for lane, samples in sorted(found.lanes.items()):
        names = ("in_flight", "bound", "waiting")
        more[f"Lane {lane}"] = {
            "at": [sample.at for sample in samples],
            "step_s": found.lane_step_s,
            "lines": {name: [getattr(sample, name) for sample in samples] for name in names},
        }
    for title, spent in found.budgets.items():
        more[title[:1].upper() + title[1:].replace(", usd", ", USD")] = {**steps, "lines": spent}
    return {**steps, "lines": found.lines, "more": more}


async def shards(request: Request) -> Response:
    """Shows all shards of the newest runs that have any, as the remote has them."""
    try:
        found = await api.ashard_status(project=request.app.state.project)
    except UsageError as error:  # the project has no remote
        return render(request, "shards.html", title="Shards", found=None, lack=error)
    return render(request, "shards.html", title="Shards", found=found, lack=None)


ROUTES = [
    Route("/", runs),
    Route("/live", live),
    Route("/run/{run:int}", run),
    Route("/run/{run:int}/live", live),
    Route("/run/{run:int}/curves.json", curves),
    Route("/shards", shards),
]


def stream(request: Request, fragment: Callable[[], Awaitable[str]]) -> Response:
    """Sends what `fragment` gives, again and again, as server-sent events.

    The id of each is the hash of its text: a browser that comes back with it gets what differs."""
    return StreamingResponse(_events(request, fragment), media_type="text/event-stream")


async def _events(request: Request, fragment: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
    """Yields an event whenever the fragment has changed, until the server ends."""
    app = request.app
    sent_id = request.headers.get("last-event-id", "")
    stamp: tuple[tuple[int, int], ...] | None = None
    made_at = -REFRESH_SECONDS
    sent_at = -REFRESH_SECONDS
    while not app.state.ending.is_set():
        now = time.monotonic()
        before = stamp
        stamp = written_at(app.state.project)
        if stamp != before or now - made_at >= REFRESH_SECONDS:
            made_at = now
            text = await _fragment_or_problem(request, fragment)
            event_id = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
            if event_id != sent_id:
                sent_id = event_id
                sent_at = now
                data = "".join(f"data: {line}\n" for line in LINE_END.split(text))
                yield f"id: {event_id}\n{data}\n"
        if now - sent_at >= QUIET_SECONDS:
            sent_at = now
            yield ":\n\n"
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await app.state.ending.wait()


async def _fragment_or_problem(request: Request, fragment: Callable[[], Awaitable[str]]) -> str:
    """Makes a fragment, or says why it cannot be made."""
    try:
        return await fragment()
    except AgacError as error:
        problem = {"message": error.message, "remedy": error.remedy}
        return page_text("problem.html", served(request) | problem)


def written_at(project: Path) -> tuple[tuple[int, int], ...]:
    """Tells when the files of the store were last written, and how long they are: while this is the
    same, so are its rows."""
    stamps = []
    for file in database_files(database_path(project))[:2]:
        with suppress(OSError):
            stat = file.stat()
            stamps.append((stat.st_mtime_ns, stat.st_size))
    return tuple(stamps)
