"""Templates become pages: what all of them may use, and the page that says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from agac.core.errors import AgacError, UsageError
from agac.core.types import counted, dollars

NAVIGATION = [("/", "Runs")]
"""The pages that every page leads to: path and title."""


@cache
def environment() -> Environment:
    """All templates. What is written into them is text: it is escaped, whatever it is."""
    made = Environment(loader=PackageLoader("agac.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.filters.update(counted=counted, dollars=dollars, number=lambda value: f"{value:,}", part=part)
    return made


def part(value: object) -> str:
    """A name, such as a row's id, as one part of a path."""
    return quote(str(value), safe="")


def link(path: str) -> str:
    """The address of a path of the monitor. Static pages have another function for it."""
    return path


def page_text(template: str, context: Mapping[str, Any]) -> str:
    """A page, or a fragment of one, as HTML. `context` has `project` (its name), `path` (of the page) and what the
    template wants; for served pages `write` and `form_token`, for others `link`."""
    given = {"navigation": NAVIGATION, "link": link, "form_token": "", "write": False, **context}
    return environment().get_template(template).render(given)


def render(request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """The response with a page."""
    return HTMLResponse(page_text(template, served(request) | context), status)


def served(request: Request) -> dict[str, Any]:
    """What all pages that are served get."""
    state = request.app.state
    return {
        "project": state.project.name, "path": request.url.path, "write": state.write, "form_token": state.form_token,
    }  # fmt: skip


async def said(request: Request, error: Exception) -> Response:
    """What is wrong, and what to do, as a page: 404 for what is not there, 503 where the store cannot be read."""
    if isinstance(error, HTTPException):
        status, message, remedy = error.status_code, error.detail, None
        if status == 404 and message == "Not Found":
            message, remedy = "There is no such page.", "Begin with the list of runs."
    elif isinstance(error, AgacError):
        status = 404 if isinstance(error, UsageError) else 503
        message, remedy = error.message, error.remedy
    else:
        status, message = 500, f"This is a bug in agac: {type(error).__name__}: {error}"
        remedy = "The details are where `agac ui` runs; please report them."
    return render(request, "error.html", status, title=f"Error {status}", message=message, remedy=remedy)
