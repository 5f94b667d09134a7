"""The pages of runs: all of them, and one, which follows it while it is at work."""

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
from agac.api import monitor
from agac.api.status import database_files, database_path
from agac.core.errors import AgacError, UsageError
from agac.core.text import LINE_END
from agac.web.rendering import page_text, render, served

RUNS = 50  # of a page of the list


async def runs(request: Request) -> Response:
    """All runs, the one last worked on first."""
    query = f"?{request.url.query}" if request.url.query else ""
    return render(request, "runs.html", title="Runs", live=f"/live{query}", **await _runs(request))


async def _runs(request: Request) -> dict[str, Any]:
    text = request.query_params.get("after", "")
    if text and not (text.isdecimal() and len(text) < 16):
        raise UsageError(
            f"{text!r} is no run", remedy="Give its number, as the list of runs has it."
        )
    after = int(text) if text else None
    return {
        "page": await monitor.aruns(after, RUNS, project=request.app.state.project),
        "after": after,
    }


async def run(request: Request) -> Response:
    """One run: figures, stages, lanes, batches, and what to do next; its curves."""
    address = f"/run/{request.path_params['run']}"
    return render(
        request, "run.html", title=f"Run {request.path_params['run']}", live=f"{address}/live",
        source=f"{address}/curves.json", curves=await _curves(request), **await _run(request),
    )  # fmt: skip


async def live(request: Request) -> Response:
    """The list, or the figures of one run, again, as often as they change."""
    template, context = (
        ("run_live.html", _run) if "run" in request.path_params else ("runs_live.html", _runs)
    )

    async def fragment() -> str:
        return page_text(template, served(request) | await context(request))

    return stream(request, fragment)


async def _run(request: Request) -> dict[str, Any]:
    state = request.app.state
    number = request.path_params["run"]
    found = await monitor.arun(number, project=state.project)
    drawing = await api.agraph(run=number, project=state.project)
    actions = []
    if state.write and found.report["state"] == "running":
        actions.append((f"/run/{number}/stop", "Stop"))
    elif state.write and found.record.errors:
        actions.append((f"/run/{number}/retry", "Retry failed rows"))
    graph = Markup(drawing.svg(styled=False))  # noqa: S704 - it escapes every text
    return {"run": found, "graph": graph, "actions": actions}


async def curves(request: Request) -> Response:
    """What the charts draw."""
    return JSONResponse(await _curves(request))


async def _curves(request: Request) -> dict[str, Any]:
    return curves_of(
        await monitor.acurves(request.path_params["run"], project=request.app.state.project)
    )


def curves_of(found: monitor.RunCurves) -> dict[str, Any]:
    """The beginnings of the steps (seconds since 1970), how long they are, and the lines of the
    whole run by name; and `more` charts by title, each with the same of its own: those of lanes,
    and of what was spent of budgets."""
    steps = {"at": found.at, "step_s": found.step_s}
    more = dict[str, Any]()
    for lane, own in sorted(found.lanes.items()):
        lines = {
            name: [getattr(one, name) for one in own] for name in ("in_flight", "bound", "waiting")
        }
        more[f"Lane {lane}"] = {
            "at": [one.at for one in own],
            "step_s": found.lane_step_s,
            "lines": lines,
        }
    for title, spent in found.budgets.items():
        more[title[:1].upper() + title[1:].replace(", usd", ", USD")] = {**steps, "lines": spent}
    return {**steps, "lines": found.lines, "more": more}


async def shards(request: Request) -> Response:
    """All shards of the newest runs that have any, as the remote has them."""
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


SECONDS = 1.0  # between two looks at the store
# after which a fragment is made again although nobody wrote into the store: times pass, leases end
LONGEST = 5.0
QUIET = 15.0  # without a fragment, after which a line says that the stream still lives


def stream(request: Request, fragment: Callable[[], Awaitable[str]]) -> Response:
    """Server-sent events with what `fragment` gives, again and again. Each has the hash of its
    text for an id: a browser that comes back with it gets what differs."""
    return StreamingResponse(_events(request, fragment), media_type="text/event-stream")


async def _events(request: Request, fragment: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
    app = request.app
    sent = request.headers.get("last-event-id", "")
    stamp: tuple[tuple[int, int], ...] | None = None
    looked = said = -LONGEST
    while not app.state.ending.is_set():
        now = time.monotonic()
        before = stamp
        stamp = written_at(app.state.project)
        if stamp != before or now - looked >= LONGEST:
            looked = now
            try:
                text = await fragment()
            except AgacError as error:
                text = page_text(
                    "problem.html",
                    served(request) | {"message": error.message, "remedy": error.remedy},
                )
            name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
            if name != sent:
                sent = name
                said = now
                yield (
                    f"id: {name}\n"
                    + "".join(f"data: {line}\n" for line in LINE_END.split(text))
                    + "\n"
                )
        if now - said >= QUIET:
            said = now
            yield ":\n\n"
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                await app.state.ending.wait()


def written_at(project: Path) -> tuple[tuple[int, int], ...]:
    """When the files of the store were last written, and how long they are: while it is the same,
    so are its rows."""
    found = []
    for file in database_files(database_path(project))[:2]:
        with suppress(OSError):
            stat = file.stat()
            found.append((stat.st_mtime_ns, stat.st_size))
    return tuple(found)
