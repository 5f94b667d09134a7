"""The pages of rows, of a row and its history, of errors, of two runs side by side, and of workflows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agac import api
from agac.api.drawing import page_style
from agac.api.graph import workflow_names, workflow_view
from agac.api.inspect import TraceSpan, row_page
from agac.api.run_compare import Agreement, compare_page
from agac.api.sync import asynchronous
from agac.core.errors import UsageError
from agac.core.types import RowId
from agac.web.rendering import number_of, render

COMPARED = 200
"""Rows of a page of a comparison."""


class Bar(NamedTuple):
    """A call in a waterfall: where it begins and how wide it is, in hundredths of all that its invocation took."""

    span: TraceSpan
    left: float
    width: float


def waterfall(spans: Sequence[TraceSpan]) -> list[list[Bar]]:
    """The calls of a row, invocation by invocation: each on a scale of its own."""
    found = []
    for _, some in groupby(spans, key=lambda one: one.invocation):
        own = list(some)
        whole = max(one.start + (one.seconds or 0.0) for one in own) or 1.0
        places = [(min(99.0, 100 * one.start / whole), 100 * (one.seconds or 0.0) / whole) for one in own]
        bars = [(round(left, 2), round(max(1.0, min(width, 100 - left)), 2)) for left, width in places]
        found.append([Bar(one, *bar) for one, bar in zip(own, bars, strict=True)])
    return found


async def row(request: Request) -> Response:
    """All that is known of the rows with an id."""
    name = request.query_params.get("id", "")
    run, rows = await asynchronous(row_page)(request.path_params["run"], name, project=request.app.state.project)
    return render(request, "row.html", title=f"Row {rows[0]['id']}", run=run, rows=rows, waterfall=waterfall)


async def why(request: Request) -> Response:
    """What a row was asked with at a stage, and what differs from the last time."""
    run, name, stage = request.path_params["run"], *(request.query_params.get(key, "") for key in ("id", "stage"))
    report = await api.awhy(run, name, stage, project=request.app.state.project)
    context = {"run": run, "row": report.row_id, "why": report.as_json()}
    return render(request, "why.html", title=f"Why {stage} was asked", **context)


def place_of(text: str | None) -> tuple[RowId, int] | None:
    """Where a page of rows begins, as an address has it: JSON of an id and its repetition. Raises UsageError."""
    if text is None:
        return None
    try:
        match json.loads(text):
            case [str() | int() as row_id, int(repetition)]:
                return row_id, repetition
    except ValueError:
        pass
    raise UsageError(f"{text!r} is no place in a list", remedy="Begin with the first page.")


async def compare(request: Request) -> Response:
    """Two runs side by side, some rows at a time; without two, the choice of them."""
    project, given = request.app.state.project, request.query_params
    first, second = given.get("first", ""), given.get("second", "")
    report, following = None, None
    if first and second:
        numbers = number_of(first, "run"), number_of(second, "run")
        page = asynchronous(compare_page)
        report, following = await page(*numbers, after=place_of(given.get("after")), limit=COMPARED, project=project)
    agreements = list[tuple[str, Agreement]]()
    for stage in report.stages if report else []:
        fields = stage.agreement.fields.items()
        agreements += [(stage.name, stage.agreement), *((f"{stage.name}.{name}", of) for name, of in fields)]
    here = request.url.include_query_params
    return render(
        request, "compare.html", title="Compare", first=first, second=second, report=report, agreements=agreements,
        runs=(await api.astatus(project=project, newest=50)).runs if report is None else [],
        start=str(request.url.remove_query_params("after")) if "after" in given else None,
        next=str(here(after=json.dumps(following))) if following else None,
    )  # fmt: skip


async def workflows(request: Request) -> Response:
    """All workflows."""
    names = await asynchronous(workflow_names)(request.app.state.project)
    return render(request, "workflows.html", title="Workflows", names=names)


async def workflow(request: Request) -> Response:
    """A workflow's files and graph; what a run would cost where that is asked for, since it walks all rows."""
    project, name = request.app.state.project, request.query_params.get("name", "")
    view = await asynchronous(workflow_view)(name, project=project)
    plan = None
    if "plan" in request.query_params:
        plan = (await asyncio.to_thread(api.plan, view.name, project=project)).as_json()  # not in the server's own loop
    return render(request, "workflow.html", title=view.name, view=view, plan=plan)


async def graph_style(request: Request) -> Response:
    """The looks of drawings, which the pages' policy forbids within them."""
    return Response(page_style(), media_type="text/css")


ROUTES = [
    Route("/run/{run:int}/row", row), Route("/run/{run:int}/why", why), Route("/compare", compare),
    Route("/workflows", workflows), Route("/workflow", workflow), Route("/static/graph.css", graph_style),
]  # fmt: skip
