"""Checks who may use the monitor: a page in any tab can reach loopback, and on a shared machine
every user can."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Names under which a browser on this machine finds the monitor; any other leads here by DNS
rebinding. The port does not matter: a tunnel's may differ."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of every response."""

LONGEST_BODY = 1 << 20
"""Bytes of a form, at most."""

ENTRANCE = "/t/"
"""The path of the address that `agac ui` prints; its token follows."""


def form_token(token: str) -> str:
    """Makes the token that a form has to bring: only a page of the monitor knows it, while browsers
    send the cookie by themselves."""
    return hmac.new(token.encode(), b"forms", hashlib.sha256).hexdigest()


def form_of(request: Request) -> dict[str, str]:
    """Gives the fields of a request's form, as AccessCheck read them: starlette would need a
    further package for it."""
    form: dict[str, str] = request.scope.get("form", {})
    return form


class AccessCheck:
    """Lets requests through to an application.

    It refuses: a Host that is not this machine; what a page of elsewhere sends; requests without
    the cookie, which the address with the token sets; forms without their token; and all that is
    not reading, unless `write`. Forms are read here, up to a bound."""

    def __init__(self, token: str, *, write: bool, cookie: str) -> None:
        self.token = token
        self.write = write
        self.cookie = cookie

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, by `app` or with a refusal. Every response gets HEADERS."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["type"] != "http":  # neither websockets nor a lifespan
            return
        enters = self._enters(scope["path"])
        answer = self._refusal(scope, enters=enters)
        if answer is None and enters:
            answer = self._entrance()
        if answer is None and not _is_reading(scope):
            answer = await self._read_form(scope, receive)
        await (answer or app)(scope, receive, send_with_headers)

    def _enters(self, path: str) -> bool:
        """True for the address that `agac ui` printed."""
        is_token = _same(path.removeprefix(ENTRANCE), self.token)
        return is_token and path.startswith(ENTRANCE)

    def _entrance(self) -> Response:
        """Makes the response that sets the cookie and leads to the monitor."""
        # not by a status: coming from elsewhere, browsers would hold the cookie back
        page = (
            '<!doctype html><title>agac</title><link rel="icon" href="data:,"><a '
            'href="/">To the monitor</a>'
        )
        response = HTMLResponse(page, headers={"Refresh": "0; url=/"})
        response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
        return response

    async def _read_form(self, scope: Scope, receive: Receive) -> Response | None:
        """Reads a form into the scope. Gives a refusal for one that is too long or lacks its
        token."""
        body = await _body(Request(scope, receive))
        text = (body or b"").decode("utf-8", "replace")
        scope["form"] = dict(parse_qsl(text, keep_blank_values=True))
        if body is None:
            return PlainTextResponse("the form is too long", 413)
        if not _same(scope["form"].get("form_token", ""), form_token(self.token)):
            what = "the form lacks its token: load the page again, and send it from there"
            return PlainTextResponse(what, 403)
        return None

    def _refusal(self, scope: Scope, *, enters: bool) -> Response | None:
        """Refuses a request that may not be answered; gives None for the others."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if _host_name(host) not in HOSTS:
            return PlainTextResponse(
                f"{host!r} is not a name of this machine: open the monitor as 127.0.0.1 or "
                "localhost, with the address that `agac ui` printed",
                400,
            )
        # the link that `agac ui` printed may be on a page of elsewhere: it has the token
        is_link = enters and _is_reading(scope)
        if _is_from_elsewhere(headers, is_link=is_link):
            return PlainTextResponse(
                "a page of elsewhere sent this: type the address into the address bar", 403
            )
        if not enters and not self._has_cookie(headers):
            return PlainTextResponse(
                "open the whole address that `agac ui` printed: it has a token", 403
            )
        if not self.write and not _is_reading(scope):
            return PlainTextResponse(
                "this monitor only reads: start it with `agac ui --write`", 403
            )
        return None

    def _has_cookie(self, headers: Headers) -> bool:
        cookies = cookie_parser(headers.get("cookie", ""))
        return _same(cookies.get(self.cookie, ""), self.token)


def _is_reading(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD")


def _host_name(host: str) -> str:
    """Gives the name in a Host header, without the port."""
    host = host.lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _is_from_elsewhere(headers: Headers, *, is_link: bool) -> bool:
    """True if a page of another origin sent a request; a link may be followed from there.

    For a form without a referrer browsers give the origin null, and say where it comes from in
    Sec-Fetch-Site."""
    origin = headers.get("origin", "null")
    if origin not in ("null", f"http://{headers.get('host', '')}"):
        return True
    site = headers.get("sec-fetch-site", "none")
    return site not in ("same-origin", "none") and not is_link


def _same(given: str, token: str) -> bool:
    """Compares in a time that does not tell how much is right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


async def _body(request: Request) -> bytes | None:
    """Reads the body of a request; None for one that is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            return None
    return body
