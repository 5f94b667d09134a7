"""The monitor as an application, and the server that it runs in."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from agac.core.errors import AgacError, UsageError
from agac.web import actions, review_page, row_pages, run_pages
from agac.web.rendering import error_page
from agac.web.security import ENTRANCE, AccessCheck, form_token

STATIC = Path(__file__).parent / "static"


class Monitor(Starlette):
    """The pages of the project in a folder, behind an AccessCheck: nothing is answered without it,
    errors and files included. If it allows writing, pages have buttons."""

    def __init__(self, project: Path, access: AccessCheck) -> None:
        files = Mount("/static", StaticFiles(directory=STATIC))
        routes = [
            *run_pages.ROUTES,
            *actions.ROUTES,
            *row_pages.ROUTES,
            *review_page.ROUTES,
            files,
        ]
        errors = (AgacError, 404, 500)
        super().__init__(routes=routes, exception_handlers=dict.fromkeys(errors, error_page))
        self.access = access
        self.state.project = project
        self.state.write = access.write
        self.state.form_token = form_token(access.token)
        self.state.ending = asyncio.Event()  # streams end by it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.access.serve(super().__call__, scope, receive, send)


class MonitorServer(uvicorn.Server):
    """Calls `ready` once it serves. Ends in good order at the first Ctrl-C or SIGTERM."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        yield

    def _end(self) -> None:
        self.should_exit = True
        app = self.config.app
        assert isinstance(app, Monitor)
        app.state.ending.set()


def serve(
    project: Path, ready: Callable[[str], None], *, port: int = 0, write: bool = False
) -> None:
    """Serves the monitor on 127.0.0.1 until Ctrl-C or SIGTERM; `ready` gets its address. Raises
    UsageError for a port that is not free; 0 chooses one that is."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            remedy = "Name another one with --port, or leave it out for one that is free."
            raise UsageError(
                f"port {port} cannot be used: {error.strerror}", remedy=remedy
            ) from error
        listening.listen(128)
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(24)
        # browsers share cookies among ports
        access = AccessCheck(token, write=write, cookie=f"agac_ui_{port}")
        config = uvicorn.Config(
            Monitor(project, access),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        server = MonitorServer(config, lambda: ready(f"http://127.0.0.1:{port}{ENTRANCE}{token}"))
        asyncio.run(server.serve(sockets=[listening]))
