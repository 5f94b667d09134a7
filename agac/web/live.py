"""Pages that follow a run: a stream of fragments, each sent only where it differs from the one before."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agac.api.status import database_files, database_path
from agac.core.errors import AgacError
from agac.web.rendering import page_text, served

SECONDS = 1.0  # between two looks at the store
LONGEST = 5.0  # after which a fragment is made again although nobody wrote into the store: times pass, leases end
QUIET = 15.0  # without a fragment, after which a line says that the stream still lives


def stream(request: Request, fragment: Callable[[], Awaitable[str]]) -> Response:
    """Server-sent events with what `fragment` gives, again and again. Each has the hash of its text for an id: a
    browser that comes back with it gets what differs."""
    return StreamingResponse(_events(request, fragment), media_type="text/event-stream")


async def _events(request: Request, fragment: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
    app, sent = request.app, request.headers.get("last-event-id", "")
    stamp: tuple[tuple[int, int], ...] | None = None
    looked = said = -LONGEST
    while not app.state.ending.is_set():
        now, before = time.monotonic(), stamp
        stamp = written_at(app.state.project)
        if stamp != before or now - looked >= LONGEST:
            looked = now
            try:
                text = await fragment()
            except AgacError as error:
                text = page_text("problem.html", served(request) | {"message": error.message, "remedy": error.remedy})
            name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
            if name != sent:
                sent, said = name, now
                yield f"id: {name}\n" + "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
        if now - said >= QUIET:
            said = now
            yield ":\n\n"
        with suppress(TimeoutError):
            await asyncio.wait_for(app.state.ending.wait(), SECONDS)


def written_at(project: Path) -> tuple[tuple[int, int], ...]:
    """When the files of the store were last written, and how long they are: while it is the same, so are its rows."""
    found = []
    for file in database_files(database_path(project))[:2]:
        with suppress(OSError):
            stat = file.stat()
            found.append((stat.st_mtime_ns, stat.st_size))
    return tuple(found)
