"""The pages of rows, of a row and its history, of errors, of two runs side by side, and of
workflows."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agac import api
from agac.api import monitor, monitored_rows
from agac.api.drawing_svg import page_style
from agac.api.monitored_rows import RowFilters, RowPage
from agac.api.row_report import row_page
from agac.api.run_compare import compare_page
from agac.api.sync import asynchronous
from agac.api.workflow_view import workflow_names, workflow_view
from agac.data.text_formats import safe_cell_text
from agac.web.rendering import render

LISTED = 50
"""Rows of a page of a list."""

CSV_PAGE = 1000
"""Rows that a CSV file gets at a time."""

CSV = [
    "id",
    "number",
    "state",
    "stage",
    "error",
    "message",
    "input",
    "result",
    "calls",
    "cost_usd",
    "cost_is_simulated",
    "duration_s",
    "input_tokens",
    "output_tokens",
]
"""Columns of a list as CSV, as `RowPage` has them: long texts are cut."""


def filters_in(request: Request) -> RowFilters:
    """Reads the filters in an address."""
    names = [each.name for each in fields(RowFilters)]
    return RowFilters(**{name: request.query_params.get(name) or None for name in names})


async def rows(request: Request) -> Response:
    """Shows some rows of a run: those that the filters in the address choose."""
    run = request.path_params["run"]
    project = request.app.state.project
    given = request.query_params
    filters = filters_in(request)
    summary = (await monitor.arun(run, project=project)).record
    page = await monitored_rows.arows(run, filters, given.get("after"), LISTED, project=project)
    start = request.url.remove_query_params("after")
    kinds = {error.type for error in summary.errors}
    return render(
        request,
        "rows.html",
        title=f"Rows of run {run}",
        run=run,
        page=page,
        limit=LISTED,
        filters=filters,
        stages=[stage.name for stage in summary.stages],
        errors=sorted(kinds),
        makers=[level.stage for level in summary.levels],
        csv=str(start.replace(path=f"{start.path}.csv")),
        start=str(start) if "after" in given else None,
        next=str(start.include_query_params(after=page.next)) if page.next else None,
    )


async def rows_csv(request: Request) -> Response:
    """Sends the same list as a file, all of it, as a stream; no cell is a formula."""
    run = request.path_params["run"]
    project = request.app.state.project
    filters = filters_in(request)
    first = await monitored_rows.arows(run, filters, None, CSV_PAGE, project=project)

    async def lines() -> AsyncIterator[str]:
        page = first
        yield _csv_text([CSV]) + _csv_text(_cells(page))
        while page.next:
            page = await monitored_rows.arows(run, filters, page.next, CSV_PAGE, project=project)
            yield _csv_text(_cells(page))

    headers = {"Content-Disposition": f'attachment; filename="run-{run}-rows.csv"'}
    return StreamingResponse(lines(), media_type="text/csv; charset=utf-8", headers=headers)


def _cells(page: RowPage) -> list[list[Any]]:
    """Lists the cells of the rows of a page."""
    return [[safe_cell_text(row[name]) for name in CSV] for row in page.rows]


def _csv_text(rows: list[list[Any]]) -> str:
    """Writes rows as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


async def errors(request: Request) -> Response:
    """Shows how the rows of a run failed, and the commands that try them again."""
    run = request.path_params["run"]
    groups = await monitored_rows.aerrors(run, project=request.app.state.project)
    return render(request, "errors.html", title=f"Errors of run {run}", run=run, groups=groups)


async def row(request: Request) -> Response:
    """Shows all that is known of the rows with an id."""
    name = request.query_params.get("id", "")
    run, rows = await asynchronous(row_page)(
        request.path_params["run"], name, project=request.app.state.project
    )
    return render(request, "row.html", title=f"Row {rows[0]['id']}", run=run, rows=rows)


async def why(request: Request) -> Response:
    """Shows what a row was asked with at a stage, and what differs from the last time."""
    run = request.path_params["run"]
    name = request.query_params.get("id", "")
    stage = request.query_params.get("stage", "")
    report = await api.awhy(run, name, stage, project=request.app.state.project)
    context = {"run": run, "row": report.row_id, "why": report.as_json()}
    return render(request, "why.html", title=f"Why {stage} was asked", **context)


async def compare(request: Request) -> Response:
    """Shows two runs side by side, some rows at a time; without two, the choice of them."""
    project = request.app.state.project
    given = request.query_params
    first = given.get("first", "")
    second = given.get("second", "")
    report = None
    following = None
    if first and second:
        report, following = await asynchronous(compare_page)(
            first, second, after=given.get("after"), project=project
        )
    here = request.url.include_query_params
    return render(
        request, "compare.html", title="Compare", first=first, second=second, report=report,
        runs=(await api.astatus(project=project, newest=20)).runs if report is None else [],
        start=str(request.url.remove_query_params("after")) if "after" in given else None,
        next=str(here(after=following)) if following else None,
    )  # fmt: skip


async def workflows(request: Request) -> Response:
    """Shows all workflows."""
    names = await asynchronous(workflow_names)(request.app.state.project)
    return render(request, "workflows.html", title="Workflows", names=names)


async def workflow(request: Request) -> Response:
    """Shows a workflow's files and graph, and on request what a run would cost, which walks all
    rows."""
    project = request.app.state.project
    name = request.query_params.get("name", "")
    view = await asynchronous(workflow_view)(name, project=project)
    plan = None
    if "plan" in request.query_params:
        # in a thread, not in the server's own loop
        report = await asyncio.to_thread(api.plan, view["name"], project=project)
        plan = report.as_json()
    return render(request, "workflow.html", title=view["name"], view=view, plan=plan)


async def graph_style(request: Request) -> Response:
    """Gives the style of drawings, which the pages' policy forbids within them."""
    return Response(page_style(), media_type="text/css")


ROUTES = [
    Route("/run/{run:int}/rows", rows),
    Route("/run/{run:int}/rows.csv", rows_csv),
    Route("/run/{run:int}/row", row),
    Route("/run/{run:int}/why", why),
    Route("/run/{run:int}/errors", errors),
    Route("/compare", compare),
    Route("/workflows", workflows),
    Route("/workflow", workflow),
    Route("/static/graph.css", graph_style),
]
