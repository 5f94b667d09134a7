"""The page on which people decide about results: the queue, one answer beside what it is about,
and what is decided."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agac import api
from agac.api.fix import reviewer
from agac.api.review import Decision, ReviewItem
from agac.core.errors import UsageError
from agac.core.types import JSONValue
from agac.web.rendering import render
from agac.web.security import form_of

FILTERS = ("workflow", "stage", "state", "after")


async def reviews(request: Request) -> Response:
    """What waits for people, and one answer of it."""
    return await _page(request, dict(request.query_params))


async def _page(
    request: Request,
    query: Mapping[str, str],
    status: int = 200,
    item: ReviewItem | None = None,
    problem: str = "",
) -> Response:
    """`query` are the filters, which row is shown (`at`), and, where there is a `problem`, what
    was typed."""
    project = request.app.state.project
    kept = {name: query[name] for name in FILTERS if query.get(name)}
    try:
        who = query.get("reviewer") or reviewer(project=project)
    except UsageError:
        who = ""
    # whoever decided is not asked again
    asked = who if kept.get("state", "waiting") == "waiting" else None
    page = await api.areview_queue(project, **dict[str, Any](kept), reviewer=asked)
    at = next((place for place, one in enumerate(page.items) if one.id == query.get("at")), 0)
    item = item or (page.items[at] if page.items else None)
    around = {"prev": at - 1, "next": at + 1}
    links = kept | ({"reviewer": who} if query.get("reviewer") else {})
    response = render(
        request,
        "review.html",
        status,
        title="Reviews",
        page=page,
        item=item,
        kept=kept,
        who=who,
        problem=problem,
        ways={name: page.items[to].id for name, to in around.items() if 0 <= to < len(page.items)},
        typed=query if problem else {},
        mark=_mark(item),
        address=lambda **new: f"/review?{urlencode(links | new)}",
    )
    response.headers["ETag"] = f'"{_mark(item)}"'
    return response


def _mark(item: ReviewItem | None) -> str:
    """Tells a review from what it is once somebody has decided on it."""
    if item:
        return f"{item.seen}-{len(item.decisions)}-{item.state}"
    return ""


def _value(item: ReviewItem, given: Mapping[str, str]) -> JSONValue:
    """The value in a form, whose parts are `text.NAME` or `json.NAME`; one that is no object has a
    part without a name. Parts that the form has no field for, because they are too long for the
    page, stay as they are. Raises ValueError for what is no JSON, and where there is no field at
    all."""
    before = item.answer if isinstance(item.answer, dict) else {}
    parts = [key.partition(".") for key in given if key.startswith(("text.", "json."))]
    if not parts:
        raise ValueError(
            "The answer is too long to be edited here; use `agac review export` and `agac "
            "review import`."
        )
    in_form = {name for _, _, name in parts}
    found = {
        name: value for name, value in before.items() if name not in in_form and "" not in in_form
    }
    for key, text in given.items():
        kind, _, name = key.partition(".")
        if kind == "text" and (text or not name or name in before):
            found[name] = text.replace("\r\n", "\n")
        elif kind == "json" and text.strip():
            try:
                found[name] = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{name or 'the value'} is no JSON: {error}") from None
    return found.get("", found)


async def decide(request: Request) -> Response:
    """Takes a decision of a form; one about what was decided on meanwhile is not taken: the page
    shows both."""
    given = form_of(request)
    project = request.app.state.project
    problem = ""
    status = 422
    item = await api.areview_item(given.get("id", ""), project)
    if item is None:
        raise UsageError("there is no such review", remedy="Begin with the queue.")
    choice, forced, _ = given.get("choice", "").partition("!")
    if given.get("mark") != _mark(item) and not forced:
        problem = "Somebody decided on this in the meantime. Nothing was taken."
        status = 412
    else:
        try:
            value = _value(item, given) if choice == "edit" else None
            about = given.get("reason", ""), given.get("reviewer", "").strip(), "monitor", item.seen
            report = await api.adecide(
                project, [Decision(item.id, choice, value, *about)], force=bool(forced)
            )
            problem = "; ".join(found.message for found in report.problems)
        except ValueError as error:
            problem = str(error)
    if problem:
        return await _page(request, given, status, item, problem)
    kept = {name: given[name] for name in (*FILTERS, "at", "reviewer") if given.get(name)}
    return RedirectResponse(f"/review?{urlencode(kept)}", 303)


ROUTES = [Route("/review", reviews), Route("/review", decide, methods=["POST"])]
