"""Who is served: a page in any tab can reach loopback, and on a shared machine every user can."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Names under which a browser on this machine finds us: another one leads here by DNS rebinding.
Any port: a tunnel's may differ from ours."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Of every response."""

LONGEST_BODY = 1 << 20

ENTRANCE = "/t/"
"""What the address that `agac ui` prints begins with; its token follows."""


def form_token(token: str) -> str:
    """What a form has to bring: only a page of ours knows it, while the cookie comes along by
    itself."""
    return hmac.new(token.encode(), b"forms", hashlib.sha256).hexdigest()


def form_of(request: Request) -> dict[str, str]:
    """The fields of a request's form, as AccessCheck read them: starlette would need a further
    package for it."""
    found: dict[str, str] = request.scope.get("form", {})
    return found


class AccessCheck:
    """Lets requests through to an application. Refused: a Host that is not this machine; what a
    page of elsewhere sends; whoever lacks the cookie, which the address with the token sets; forms
    without their token; and all that is not reading, unless `write`. Forms are read here, up to a
    bound."""

    def __init__(self, token: str, *, write: bool, cookie: str) -> None:
        self.token = token
        self.write = write
        self.cookie = cookie

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, by `app` or with a refusal. Every response gets HEADERS."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if scope["type"] != "http":  # neither websockets nor a lifespan
            return
        entered = _same(scope["path"].removeprefix(ENTRANCE), self.token) and scope[
            "path"
        ].startswith(ENTRANCE)
        refusal = self._refusal(scope, entered=entered)
        if refusal is None and entered:
            # not by a status: coming from elsewhere, browsers would hold the cookie back
            page = (
                '<!doctype html><title>agac</title><link rel="icon" href="data:,"><a '
                'href="/">To the monitor</a>'
            )
            response = HTMLResponse(page, headers={"Refresh": "0; url=/"})
            response.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
            refusal = response
        if refusal is None and scope["method"] not in ("GET", "HEAD"):
            body = await _body(Request(scope, receive))
            scope["form"] = dict(
                parse_qsl((body or b"").decode("utf-8", "replace"), keep_blank_values=True)
            )
            if body is None:
                refusal = PlainTextResponse("the form is too long", 413)
            elif not _same(scope["form"].get("form_token", ""), form_token(self.token)):
                what = "the form lacks its token: load the page again, and send it from there"
                refusal = PlainTextResponse(what, 403)
        await (refusal or app)(scope, receive, sent)

    def _refusal(self, scope: Scope, *, entered: bool) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        origin = headers.get("origin", "null")
        site = headers.get("sec-fetch-site", "none")
        if (
            host.lower().partition("]")[0] + "]"
            if host.startswith("[")
            else host.lower().partition(":")[0]
        ) not in HOSTS:
            return PlainTextResponse(
                f"{host!r} is not a name of this machine: open the monitor as 127.0.0.1 or "
                "localhost, with the address that `agac ui` printed",
                400,
            )
        reads = scope["method"] in ("GET", "HEAD")
        # whoever follows the printed address from a page of elsewhere has the token; to a form
        # without a referrer, browsers give the origin null, and say where it comes from in
        # Sec-Fetch-Site
        foreign = origin not in ("null", f"http://{host}")
        if foreign or (site not in ("same-origin", "none") and not (entered and reads)):
            return PlainTextResponse(
                "a page of elsewhere sent this: type the address into the address bar", 403
            )
        if not entered and not _same(
            cookie_parser(headers.get("cookie", "")).get(self.cookie, ""), self.token
        ):
            return PlainTextResponse(
                "open the whole address that `agac ui` printed: it has a token", 403
            )
        if not reads and not self.write:
            return PlainTextResponse(
                "this monitor only reads: start it with `agac ui --write`", 403
            )
        return None


def _same(given: str, token: str) -> bool:
    """Compares in a time that does not tell how much is right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


async def _body(request: Request) -> bytes | None:
    """The body of a request; None for one that is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            return None
    return body
