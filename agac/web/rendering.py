"""Renders templates as pages: what all of them may use, and the page that says what is wrong."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from itertools import islice
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from agac.core.errors import AgacError, UsageError
from agac.core.text import beginning, duration, plain, squeezed
from agac.core.types import counted, dollars, iso

NAVIGATION = [
    ("/", "Runs"),
    ("/workflows", "Workflows"),
    ("/compare", "Compare"),
    ("/review", "Reviews"),
]
"""The pages that every page links to: path and title. A monitor that is served has one of the
remote, too."""


@cache
def environment() -> Environment:
    """Loads all templates.

    What is written into them is text: it is escaped, whatever it is, and each character in it that
    people would not see is shown as an escape."""
    templates = Environment(
        loader=PackageLoader("agac.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_as_seen,
    )
    templates.filters.update(
        counted=counted,
        dollars=dollars,
        number=lambda value: f"{value:,}",
        clip=clip,
        cell=cell,
        words=command_text,
        exact=lambda value: Markup(escape(value)),  # noqa: S704 - it is escaped
        most=first_items,
        usd=_usd,
        json=lambda value: json.dumps(value, indent=1, ensure_ascii=False),
        numbered=lambda title: f"#{title}",
        moment=lambda seconds: iso(seconds) or "",
        lasting=_lasting,
    )
    templates.globals |= {
        "fits": fits,
        "hides": lambda text: plain(text) != text,
        "is_web_address": is_web_address,
    }
    templates.globals |= {
        name: templates.get_template(f"{name}.html").module for name in ("parts", "values")
    }
    return templates


def _usd(amount: float | None, simulated: bool = False) -> str:
    """Writes an amount; nothing for an unknown one."""
    if amount is None:
        return ""
    return dollars(amount, None, simulated=simulated)


def _lasting(seconds: float | None) -> str:
    """Writes a duration; nothing for an unknown one."""
    if seconds is None:
        return ""
    return duration(seconds)


def _as_seen(value: Any) -> Any:
    """Makes what a template writes: a text gets escapes for what is not seen, HTML that agac made
    stays as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return plain(value)
    return value


LONGEST_ADDRESS = 2000
"""Characters of an address from elsewhere that a page makes a link, at most."""

LONGEST_TEXT = 100_000
"""Characters of one value that a page shows, at most; a command next to it prints all of it."""

LONGEST_CELL = 160
"""Characters of one value in a list, at most."""

MAX_PAGE_TEXT = 1_000_000
"""Characters of all values of a page together, and of all fields of its forms, at most."""

MAX_ITEMS = 200
"""Items of a list that a page shows, such as the fields of a row, at most."""

_room: ContextVar[int] = ContextVar(
    "characters that the page may still show", default=MAX_PAGE_TEXT
)
_form_room: ContextVar[int] = ContextVar(
    "characters that its forms may still hold", default=MAX_PAGE_TEXT
)


def clip(text: str | None, most: int = LONGEST_TEXT) -> str:
    """Cuts a text to what a page shows, and says how much was left out; a few words once the page
    is full."""
    text = text or ""
    shown = min(len(text), most, max(_room.get(), LONGEST_CELL))
    _room.set(_room.get() - shown)
    return beginning(text, shown)


def fits(text: str) -> bool:
    """True if a form can hold a text as a whole; then it takes that room."""
    if len(text) > LONGEST_TEXT or len(text) > _form_room.get():
        return False
    _form_room.set(_form_room.get() - len(text))
    return True


_WEB_ADDRESS = re.compile(r"https?://[^\s\\]+", re.IGNORECASE)


def is_web_address(text: str) -> bool:
    """True if a text from elsewhere may be a link: to a page of the web, without a character that
    is not shown."""
    if len(text) > LONGEST_ADDRESS or plain(text) != text:
        return False
    return _WEB_ADDRESS.fullmatch(text) is not None


def first_items(items: Any) -> list[Any]:
    """Gives as many items of a list as a page shows; `values.more` says how many more there are."""
    return list(islice(items, MAX_ITEMS))


def cell(value: Any) -> str:
    """Writes a value in a list: a text, or JSON, in one line and cut."""
    text = ""
    if isinstance(value, str):
        text = value
    elif value is not None:
        text = json.dumps(value, ensure_ascii=False)
    line = squeezed(text[: 2 * LONGEST_CELL])
    if len(line) <= LONGEST_CELL and len(text) <= 2 * LONGEST_CELL:
        return line
    return f"{line[: LONGEST_CELL - 1]}…"


def command_text(command: Sequence[str], *arguments: object, **options: object) -> str:
    """Writes a command to type. Its arguments come last, after `--` from the first one that may be
    taken for a flag."""
    words = list(command)
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    has_dashes = False
    for argument in map(str, arguments):
        if argument.startswith("-") and not has_dashes:
            words.append("--")
            has_dashes = True
        words.append(argument)
    return shlex.join(words)


def page_text(template: str, context: Mapping[str, Any]) -> str:
    """Renders a page, or a fragment of one, as HTML.

    `context` has `project` (its name), `path` (of the page) and what the template needs; for served
    pages `write` and `form_token`, for others `link`, which gives the file of a path."""
    given = {
        "navigation": NAVIGATION,
        "link": str,
        "form_token": "",
        "write": False,
        "static": False,
        **context,
    }
    _room.set(MAX_PAGE_TEXT)
    _form_room.set(MAX_PAGE_TEXT)
    return environment().get_template(template).render(given)


def render(request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """Makes the response with a page."""
    return HTMLResponse(page_text(template, served(request) | context), status)


def served(request: Request) -> dict[str, Any]:
    """Gives what all pages that are served need."""
    state = request.app.state
    return {
        "project": state.project.name,
        "path": request.url.path,
        "write": state.write,
        "form_token": state.form_token,
        "navigation": [*NAVIGATION, ("/shards", "Shards")],
    }


async def error_page(request: Request, error: Exception) -> Response:
    """Shows what is wrong, and what to do: 404 for what does not exist, 503 if the store cannot be
    read."""
    if isinstance(error, HTTPException):
        status = error.status_code
        message = error.detail
        remedy = None
        if status == 404 and message == "Not Found":
            message = "There is no such page."
            remedy = "Begin with the list of runs."
    elif isinstance(error, AgacError):
        status = 404 if isinstance(error, UsageError) else 503
        message = error.message
        remedy = error.remedy
    else:
        status = 500
        message = f"This is a bug in agac: {type(error).__name__}: {error}"
        remedy = "The details are where `agac ui` runs; please report them."
    return render(
        request, "error.html", status, title=f"Error {status}", message=message, remedy=remedy
    )
