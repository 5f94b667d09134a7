"""The pages of runs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agac import api
from agac.web.rendering import render


async def runs(request: Request) -> Response:
    """All runs, the one last worked on first."""
    report = await api.astatus(project=request.app.state.project, newest=50)
    return render(request, "runs.html", title="Runs", report=report)


ROUTES = [Route("/", runs)]
