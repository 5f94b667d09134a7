"""The pages of runs: all of them, and one, which follows it while it is at work."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agac import api
from agac.api import monitor
from agac.core.types import iso
from agac.web.live import stream
from agac.web.rendering import number_of, page_text, render, served

RUNS = 50
"""Runs of a page of the list."""

FIGURES = 60
"""The last steps of a chart that the table below it has."""


class Chart(NamedTuple):
    """A chart: the curves that it draws, by the names that `RunCurves` has for them, with their titles."""

    name: str
    title: str
    unit: str
    curves: dict[str, str]


CHARTS = (
    Chart("rows", "Throughput", "a minute", {"done": "Rows done", "calls": "Calls"}),
    Chart("latency", "Time of a call", "ms", {"p50_ms": "Half of them", "p95_ms": "95 of 100"}),
    Chart("tokens", "Tokens", "a minute", {"input_tokens": "In", "output_tokens": "Out"}),
    Chart("cost", "Cost", "USD a minute", {"cost_usd": "Cost"}),
    Chart("errors", "Failures", "a minute", {"failed": "Rows failed", "failed_calls": "Calls failed"}),
)


async def runs(request: Request) -> Response:
    """All runs, the one last worked on first."""
    query = f"?{request.url.query}" if request.url.query else ""
    return render(request, "runs.html", title="Runs", live=f"/live{query}", **await _runs(request))


async def runs_live(request: Request) -> Response:
    """The list again, as often as it changes."""
    return stream(request, lambda: _fragment(request, "runs_live.html", _runs(request)))


async def _runs(request: Request) -> dict[str, Any]:
    text = request.query_params.get("after")
    after = number_of(text, "run") if text is not None else None
    return {"page": await monitor.aruns(after, RUNS, project=request.app.state.project), "after": after}


async def run(request: Request) -> Response:
    """One run: figures, stages, lanes, batches, and what to do next; its curves."""
    number = request.path_params["run"]
    found = await monitor.acurves(number, project=request.app.state.project)
    return render(
        request, "run.html", title=f"Run {number}", live=f"/run/{number}/live", curves=f"/run/{number}/curves.json",
        charts=[(one, table_of(one, found)) for one in CHARTS], **await _run(request),
    )  # fmt: skip


async def run_live(request: Request) -> Response:
    """Its figures again, as often as they change."""
    return stream(request, lambda: _fragment(request, "run_live.html", _run(request)))


async def _run(request: Request) -> dict[str, Any]:
    state, number = request.app.state, request.path_params["run"]
    found = await monitor.arun(number, project=state.project)
    drawing = await api.agraph(run=number, project=state.project)
    actions = []
    if state.write and found.report["state"] == "running":
        actions.append((f"/run/{number}/stop", "Stop"))
    elif state.write and found.report["errors"]:
        actions.append((f"/run/{number}/retry", "Retry failed rows"))
    graph = Markup(drawing.svg(styled=False))  # noqa: S704 - it escapes every text
    return {"run": found, "graph": graph, "actions": actions}


async def curves(request: Request) -> Response:
    """What the charts draw: the times of the steps, and the lines of each chart."""
    found = await monitor.acurves(request.path_params["run"], project=request.app.state.project)
    return JSONResponse(chart_data(found))


def chart_data(found: monitor.RunCurves) -> dict[str, Any]:
    """The times of the steps in seconds since 1970, and of each chart its lines; sums are told a minute."""
    return {
        "at": found.at,
        "charts": {
            one.name: [{"label": title, "values": values(one, name, found)} for name, title in one.curves.items()]
            for one in CHARTS
        },
    }


def values(chart: Chart, name: str, found: monitor.RunCurves) -> Sequence[float | None]:
    """A line of a chart."""
    of = found.series[""][name] if found.at else []
    return of if chart.unit == "ms" else [None if one is None else one * 60 / found.step_s for one in of]


def table_of(chart: Chart, found: monitor.RunCurves) -> list[tuple[str, list[float | None]]]:
    """The last steps of a chart, the newest first: the time, and a figure for each line."""
    lines = [values(chart, name, found) for name in chart.curves]
    last = range(len(found.at) - 1, max(-1, len(found.at) - 1 - FIGURES), -1)
    return [(iso(found.at[step]) or "", [line[step] for line in lines]) for step in last]


async def _fragment(request: Request, template: str, context: Awaitable[dict[str, Any]]) -> str:
    return page_text(template, served(request) | await context)


ROUTES = [
    Route("/", runs), Route("/live", runs_live), Route("/run/{run:int}", run), Route("/run/{run:int}/live", run_live),
    Route("/run/{run:int}/curves.json", curves),
]  # fmt: skip
