"""The page on which people decide about results: the queue, one answer with what it is about, and
the form of a decision."""

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
    """Shows what waits for people, and one answer of it."""
    return await _page(request, dict(request.query_params))


async def _page(
    request: Request,
    query: Mapping[str, str],
    status: int = 200,
    item: ReviewItem | None = None,
    problem: str = "",
) -> Response:
    """Renders the page of an `item`, or of the one that the query names.

    `query` has the filters, the review that is shown (`at`), and, if there is a `problem`, what was
    typed."""
    project = request.app.state.project
    kept = {name: query[name] for name in FILTERS if query.get(name)}
    who = query.get("reviewer") or _usual_reviewer(request)
    # a person who has decided is not asked again
    asked = who if kept.get("state", "waiting") == "waiting" else None
    page = await api.areview_queue(project, **dict[str, Any](kept), reviewer=asked)
    ids = [each.id for each in page.items]
    at = query.get("at")
    position = ids.index(at) if at in ids else 0
    if item is None and page.items:
        item = page.items[position]
    around = {"prev": position - 1, "next": position + 1}
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
        ways={name: ids[other] for name, other in around.items() if 0 <= other < len(ids)},
        typed=query if problem else {},
        mark=_mark(item),
        address=lambda **new: f"/review?{urlencode(links | new)}",
    )
    response.headers["ETag"] = f'"{_mark(item)}"'
    return response


def _usual_reviewer(request: Request) -> str:
    """Names the person at this machine; nothing if that is unknown."""
    try:
        return reviewer(project=request.app.state.project)
    except UsageError:
        return ""


def _mark(item: ReviewItem | None) -> str:
    """Gives what changes when somebody decides on a review."""
    if item:
        return f"{item.seen}-{len(item.decisions)}-{item.state}"
    return ""


def _value(item: ReviewItem, form: Mapping[str, str]) -> JSONValue:
    """Reads the value in a form, whose parts are `text.NAME` or `json.NAME`; one that is no object
    has a part without a name.

    Parts that the form has no field for, because they are too long for the page, stay as they are.
    Raises ValueError for what is no JSON, and if there is no field at all."""
    fields = {key: text for key, text in form.items() if key.startswith(("text.", "json."))}
    if not fields:
        raise ValueError(
            "The answer is too long to be edited here; use `agac review export` and `agac "
            "review import`."
        )
    before = item.answer if isinstance(item.answer, dict) else {}
    names = {key.partition(".")[2] for key in fields}
    value: dict[str, JSONValue] = {}
    if "" not in names:
        value = {name: part for name, part in before.items() if name not in names}
    for key, text in fields.items():
        kind, _, name = key.partition(".")
        if kind == "json":
            if text.strip():
                value[name] = _json_of(text, name)
        elif text or not name or name in before:
            value[name] = text.replace("\r\n", "\n")
    return value.get("", value)


def _json_of(text: str, name: str) -> JSONValue:
    """Reads a field with JSON. Raises ValueError."""
    try:
        value: JSONValue = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name or 'the value'} is no JSON: {error}") from None
    return value


async def decide(request: Request) -> Response:
    """Stores the decision of a form, unless somebody has decided on the same review since the page
    was shown: then the page shows both."""
    form = form_of(request)
    item = await api.areview_item(form.get("id", ""), request.app.state.project)
    if item is None:
        raise UsageError("there is no such review", remedy="Begin with the queue.")
    choice, forced, _ = form.get("choice", "").partition("!")
    if form.get("mark") != _mark(item) and not forced:
        problem = "Somebody decided on this in the meantime. Nothing was taken."
        return await _page(request, form, 412, item, problem)
    try:
        decision = Decision(
            item.id,
            choice,
            _value(item, form) if choice == "edit" else None,
            form.get("reason", ""),
            form.get("reviewer", "").strip(),
            "monitor",
            item.seen,
        )
        report = await api.adecide(request.app.state.project, [decision], force=bool(forced))
        problem = "; ".join(each.message for each in report.problems)
    except ValueError as error:
        problem = str(error)
    if problem:
        return await _page(request, form, 422, item, problem)
    kept = {name: form[name] for name in (*FILTERS, "at", "reviewer") if form.get(name)}
    return RedirectResponse(f"/review?{urlencode(kept)}", 303)


ROUTES = [Route("/review", reviews), Route("/review", decide, methods=["POST"])]
