"""Templates become pages: what all of them may use, and the page that says what is wrong."""

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
"""The pages that every page leads to: path and title. A monitor that is served has one of the
remote too."""


@cache
def environment() -> Environment:
    """All templates. What is written into them is text: it is escaped, whatever it is, and each
    character in it that people would not see is shown as an escape."""
    made = Environment(
        loader=PackageLoader("agac.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_as_seen,
    )
    made.filters.update(
        counted=counted,
        dollars=dollars,
        number=lambda value: f"{value:,}",
        clip=clip,
        cell=cell,
        words=words,
        exact=lambda value: Markup(escape(value)),  # noqa: S704 - it is escaped
        most=most,
        usd=lambda amount, simulated=False: (
            "" if amount is None else dollars(amount, None, simulated=simulated)
        ),
        json=lambda value: json.dumps(value, indent=1, ensure_ascii=False),
        numbered=lambda title: f"#{title}",
        moment=lambda seconds: iso(seconds) or "",
        lasting=lambda seconds: "" if seconds is None else duration(seconds),
    )
    made.globals |= {
        "fits": fits,
        "hides": lambda text: plain(text) != text,
        "is_web_address": is_web_address,
    }
    made.globals |= {name: made.get_template(f"{name}.html").module for name in ("parts", "values")}
    return made


def _as_seen(value: Any) -> Any:
    """What a template writes: a text has escapes for what is not seen, HTML that agac made stays
    as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return plain(value)
    return value


LONGEST_ADDRESS = 2000
"""Characters of an address from elsewhere that a page makes a link."""

LONGEST_TEXT = 100_000
LONGEST_CELL = 160
"""Characters of one value that a page shows, and a list; a command beside it prints all of it."""

MOST_TEXT = 1_000_000
MOST_ITEMS = 200
"""Characters of all values of a page together, of all fields of its forms, and items of a list in
it, such as the fields of a row."""

_room: ContextVar[int] = ContextVar("characters that the page may still show", default=MOST_TEXT)
_form_room: ContextVar[int] = ContextVar(
    "characters that its forms may still hold", default=MOST_TEXT
)


def clip(text: str | None, most: int = LONGEST_TEXT) -> str:
    """As much of a text as is shown, and how much was left out; a few words where the page is
    full."""
    text = text or ""
    shown = min(len(text), most, max(_room.get(), LONGEST_CELL))
    _room.set(_room.get() - shown)
    return beginning(text, shown)


def fits(text: str) -> bool:
    """Whether a form can hold a text as a whole; then it takes that room."""
    if len(text) > LONGEST_TEXT or len(text) > _form_room.get():
        return False
    _form_room.set(_form_room.get() - len(text))
    return True


_WEB_ADDRESS = re.compile(r"https?://[^\s\\]+", re.IGNORECASE)


def is_web_address(text: str) -> bool:
    """Whether a text from elsewhere may be a link: to a page of the web, without a character that
    nobody sees."""
    return (
        len(text) <= LONGEST_ADDRESS
        and _WEB_ADDRESS.fullmatch(text) is not None
        and plain(text) == text
    )


def most(items: Any) -> list[Any]:
    """As many items of a list as a page shows; `values.more` says how many there are besides."""
    return list(islice(items, MOST_ITEMS))


def cell(value: Any) -> str:
    """A value in a list: a text, or JSON, in one line and cut."""
    if isinstance(value, str):
        text = value
    elif value is None:
        text = ""
    else:
        text = json.dumps(value, ensure_ascii=False)
    line = squeezed(text[: 2 * LONGEST_CELL])
    if len(line) <= LONGEST_CELL and len(text) <= 2 * LONGEST_CELL:
        return line
    return f"{line[: LONGEST_CELL - 1]}…"


def words(command: Sequence[str], *named: object, **options: object) -> str:
    """A command to type; what is `named` comes last, after `--` from where it may be taken for a
    flag."""
    given = [
        text
        for name, value in options.items()
        if value is not None
        for text in (f"--{name}", str(value))
    ]
    last = [str(one) for one in named]
    flags = next((place for place, one in enumerate(last) if one.startswith("-")), None)
    return shlex.join(
        [*command, *given, *last[:flags], *([] if flags is None else ["--", *last[flags:]])]
    )


def page_text(template: str, context: Mapping[str, Any]) -> str:
    """A page, or a fragment of one, as HTML. `context` has `project` (its name), `path` (of the
    page) and what the template wants; for served pages `write` and `form_token`, for others
    `link`, which gives the file of a path."""
    given = {
        "navigation": NAVIGATION,
        "link": str,
        "form_token": "",
        "write": False,
        "static": False,
        **context,
    }
    _room.set(MOST_TEXT)
    _form_room.set(MOST_TEXT)
    return environment().get_template(template).render(given)


def render(request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """The response with a page."""
    return HTMLResponse(page_text(template, served(request) | context), status)


def served(request: Request) -> dict[str, Any]:
    """What all pages that are served get."""
    state = request.app.state
    return {
        "project": state.project.name,
        "path": request.url.path,
        "write": state.write,
        "form_token": state.form_token,
        "navigation": [*NAVIGATION, ("/shards", "Shards")],
    }


async def said(request: Request, error: Exception) -> Response:
    """What is wrong, and what to do, as a page: 404 for what is not there, 503 where the store
    cannot be read."""
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
