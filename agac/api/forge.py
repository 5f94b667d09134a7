"""`agac ci comment`: one comment of a pull request at GitHub or GitLab, found by its marker and updated in place.

Facts: docs.github.com (REST: issue comments, pulls, rate limits; events) and docs.gitlab.com/api (notes), read November
2026. GitHub tells a job's token by GraphQL alone whose it is, and names no pull request in the event `workflow_run` of
one that comes from a fork."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import aiohttp
from yarl import URL

from agac.api.sync import blocking
from agac.core.errors import AgacError, UsageError
from agac.core.redact import Redactor
from agac.core.text import on_one_line
from agac.core.types import Report
from agac.providers.http import read_body
from agac.providers.transport import is_loopback, proxy_for, reason_of, tls_context

WAITS = (2.0, 5.0, 15.0)
"""Seconds before all is tried once more, where the forge does not say how long."""

LONGEST_WAIT = 120.0  # seconds that a forge may ask for; GitHub wants a minute after some of its limits
TIMEOUT = 30.0  # seconds for one call
MOST_BYTES = 64 << 20  # of one answer: 100 comments of 65,536 characters
MOST_PAGES = 50
CLOSED = "the pull request is closed, or has a newer commit"

ForgeName = Literal["github", "gitlab"]


class _Forge(NamedTuple):
    """What differs between forges: variables of the environment, paths, and what is said to users."""

    name: str
    address: str
    usual_address: str
    token: str
    header: dict[str, str]
    projects: tuple[str, ...]  # the first that is set counts
    comments: str
    comment: str
    update: str
    author: tuple[str, str]
    hint: str
    rights: str


FORGES = {
    "github": _Forge(
        "GitHub", "GITHUB_API_URL", "https://api.github.com", "GITHUB_TOKEN", {"Authorization": "Bearer {}"},
        ("GITHUB_REPOSITORY",), "/repos/{}/issues/{}/comments", "/repos/{}/issues/comments/{}", "PATCH",
        ("user", "login"), "In a job it is `${{ github.token }}`.",
        "Give the job `permissions: {pull-requests: write}`. For a pull request from a fork the token only reads: "
        "comment from a second job, `on: workflow_run`.",
    ),
    "gitlab": _Forge(
        "GitLab", "CI_API_V4_URL", "https://gitlab.com/api/v4", "GITLAB_TOKEN", {"PRIVATE-TOKEN": "{}"},
        ("CI_MERGE_REQUEST_PROJECT_ID", "CI_PROJECT_ID"), "/projects/{}/merge_requests/{}/notes", "", "PUT",
        ("author", "username"), "It is a project access token with the scope `api`: CI_JOB_TOKEN cannot comment.",
        "Make a project access token with the role Reporter and the scope `api`.",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommentReport(Report):
    """What became of a comment, and its number. `none`: nothing was written, for the reason `why`."""

    provider: str
    pull_request: int | None
    action: Literal["created", "updated", "none"]
    comment: int | None = None
    why: str = ""


class _Again(AgacError):
    """What may go well the next time, `after` so many seconds where the forge says it."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message, remedy="Run the same command again later.")
        self.after = after


@blocking
async def post_comment(
    provider: ForgeName, text: str, *, pull_request: int | None = None, create: bool = True
) -> CommentReport:
    """Makes `text`, whose first line is its marker, the comment of a pull request: the one of the same author which
    begins with the marker is updated, else there is a new one if it may `create` that. Without a number the pull
    request is that of the job's event, never one that the text names. The forge's address, the token and the project
    are of the environment. What may pass is tried again. Raises UsageError where the forge refuses the token, the
    project or the number, AgacError where it fails or refuses the text."""
    marker = text.partition("\n")[0]
    if not re.fullmatch("<!-- agac:.* -->", marker):
        what = "the comment does not begin with its marker, <!-- agac:PROJECT -->"
        raise UsageError(what, remedy="`agac ci comment` posts what `agac ci` found.")
    if provider == "gitlab":  # to it a line that begins with a slash is a command, such as /merge
        text = re.sub(r"(?m)^(\s*)/", r"\1\\/", text)
    async with _connected(FORGES[provider], os.environ) as api:
        for wait in (*WAITS, None):
            try:
                number = pull_request or await api.number(os.environ)
                found = await api.own_comment(number, marker) if number else None
                if not number or not (found or create):
                    why = "there is nothing to say, and no earlier comment to update" if number else CLOSED
                    return CommentReport(provider, number, "none", why=why)
                return CommentReport(provider, number, *await api.write(number, found, text))
            except _Again as error:  # from the beginning: the comment may be there, only the answer was lost
                after = wait if error.after is None else error.after
                if wait is None or after is None or after > LONGEST_WAIT:
                    raise
            except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
                what = f"{api.host} does not answer as the API of {api.forge.name} does"
                raise AgacError(what, remedy=f"Check {api.forge.address}.") from None
            await asyncio.sleep(after)
    raise AssertionError


class _Api:
    """Calls of a forge's API, to its address alone; an answer that is not as documented is one of Python's errors."""

    def __init__(self, forge: _Forge, session: aiohttp.ClientSession, base: URL, project: str, token: str) -> None:
        self.forge, self.project, self.host = forge, quote(project, safe="/" if forge.comment else ""), base.host
        self._session, self._base, self._clean = session, base, Redactor([token]).clean

    async def call(self, method: str, path: str, body: Any = None) -> tuple[Any, bool]:
        """The answer's JSON, and whether another page follows. Raises AgacError for any other answer."""
        base = str(self._base).removesuffix("/v3") if path == "/graphql" else str(self._base)
        try:
            url = URL(base + path, encoded=True)
            async with self._session.request(method, url, json=body, allow_redirects=False) as answer:
                content = await read_body(answer, MOST_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            reason = f"no answer in {TIMEOUT:g} s" if isinstance(error, TimeoutError) else reason_of(error)
            raise _Again(f"{self.forge.name} ({self.host}) cannot be reached: {reason}") from None
        if not 200 <= answer.status < 300:
            said = on_one_line(self._clean(content[:500].decode("utf-8", "replace")), "utf-8")
            raise self._failure(answer.status, f"{answer.status}: {said}", answer.headers, path.partition("?")[0])
        return json.loads(content), "next" in answer.links

    def _failure(self, status: int, said: str, headers: Mapping[str, str], path: str) -> AgacError:
        forge = self.forge
        limited = headers.get("X-RateLimit-Remaining") == "0" or "rate limit" in said.lower()
        if status >= 500 or status == 429 or (status == 403 and limited):
            asked = re.fullmatch(r"\d{1,9}", headers.get("Retry-After", ""))
            return _Again(f"{forge.name} takes no call now ({said})", float(asked[0]) if asked else None)
        if status == 401:
            return UsageError(f"{forge.name} does not know {forge.token} ({said})", remedy=forge.hint)
        if status == 403:
            return UsageError(f"{forge.name} does not allow {forge.token} to do this ({said})", remedy=forge.rights)
        if status == 404 or status < 400:
            remedy = f"Check the number, {forge.projects[-1]} and what {forge.token} may read."
            return UsageError(f"{forge.name} has nothing at {path} ({said})", remedy=remedy)
        return AgacError(f"{forge.name} refuses the comment ({said})", remedy="`agac ci` prints the same text.")

    async def own_comment(self, number: int, marker: str) -> int | None:
        """The oldest comment that begins with the marker and is of the token's own user."""
        key, name = self.forge.author
        user, path = None, self.forge.comments.format(self.project, number)
        for page in range(1, MOST_PAGES + 1):
            comments, more = await self.call("GET", f"{path}?per_page=100&page={page}&sort=asc&order_by=created_at")
            for one in comments:
                if (one["body"] or "").startswith(marker):
                    user = user or await self._user()
                    if one[key] and one[key][name] == user:  # GitHub: nobody, where the user is gone
                        return int(one["id"])
            if not more:
                return None
        raise AgacError(f"{MOST_PAGES * 100:,} comments, and none of agac", remedy="Post the text by hand.")

    async def _user(self) -> str:
        if self.forge.name == "GitHub":
            answer, _ = await self.call("POST", "/graphql", {"query": "query { viewer { login } }"})
            return str(answer["data"]["viewer"]["login"])
        return str((await self.call("GET", "/user"))[0]["username"])

    async def write(self, number: int, comment: int | None, text: str) -> tuple[Literal["created", "updated"], int]:
        """Updates a comment, or makes one; its number."""
        path = self.forge.comments.format(self.project, number)
        if comment is None:
            return "created", int((await self.call("POST", path, {"body": text}))[0]["id"])
        own = self.forge.comment.format(self.project, comment) or f"{path}/{comment}"
        await self.call(self.forge.update, own, {"body": text})
        return "updated", comment

    async def number(self, env: Mapping[str, str]) -> int | None:
        """The pull request of this job's event; None: `CLOSED`. Raises UsageError where the job is not for one."""
        gitlab = self.forge.name == "GitLab"
        event: dict[str, Any] = {"number": env.get("CI_MERGE_REQUEST_IID")} if gitlab else github_event(env)
        run = event.get("workflow_run") or {}
        if run.get("event") != "pull_request":
            if not (number := event.get("number")):
                raise UsageError("the event of this job is none of a pull request", remedy="Name it: --pull-request N.")
            return int(number)
        if not run["head_repository"]:  # it is gone
            return None
        source = quote(f"{run['head_repository']['owner']['login']}:{run['head_branch']}", safe="")
        pulls, _ = await self.call("GET", f"/repos/{self.project}/pulls?state=open&per_page=100&head={source}")
        found = [int(one["number"]) for one in pulls if one["head"]["sha"] == run["head_sha"]]
        if len(found) > 1:
            raise UsageError(f"several pull requests have this commit: {found}", remedy="Name one: --pull-request N.")
        return found[0] if found else None


def github_event(env: Mapping[str, str]) -> dict[str, Any]:
    """What GitHub tells a job of its event, in a file; nothing where there is none."""
    file = Path(env.get("GITHUB_EVENT_PATH", ""))
    try:
        return dict(json.loads(file.read_bytes())) if file.is_file() else {}
    except (ValueError, TypeError) as error:
        remedy = "Unset it, and say with --event or --pull-request what is meant."
        raise UsageError(f"GITHUB_EVENT_PATH: {file} is no JSON object: {error}", remedy=remedy) from None


@asynccontextmanager
async def _connected(forge: _Forge, env: Mapping[str, str]) -> AsyncIterator[_Api]:
    """Connections to the forge that the environment names. Raises UsageError where something is missing or wrong."""
    token, project = env.get(forge.token, "").strip(), next(filter(None, map(env.get, forge.projects)), "")
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError(f"{forge.token} is not set, or is no token", remedy=forge.hint)
    if not project:
        raise UsageError(f"{forge.projects[-1]} is not set", remedy="A job has it; elsewhere set it to your project.")
    try:
        base = URL((env.get(forge.address) or forge.usual_address).rstrip("/"))
        unsafe = base.scheme != "https" and not (base.scheme == "http" and is_loopback(base.host or ""))
    except ValueError:
        base, unsafe = URL(), True
    if unsafe or not base.host or base.user or base.password or base.query_string:
        what = f"{forge.address} is no plain https:// address, and the token is sent there"
        raise UsageError(what, remedy=f"Set it as {forge.usual_address}.")
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls_context(env) if base.scheme == "https" else False),
        headers={name: form.format(token) for name, form in forge.header.items()},
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=proxy_for(base, env),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT),
        trust_env=False,
    ) as session:
        yield _Api(forge, session, base, project, token)
