"""GitHub and GitLab on loopback: as much of their APIs as comments of pull requests need, and a `gh` for them."""

import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.services import starts

PROJECT = "team/shop"
LONGEST = {"github": 65_536, "gitlab": 1_000_000}
"""Characters that a comment may have."""

Answer = tuple[int, dict[str, str], Any]


@dataclass
class Fault:
    """What is answered in the place of the truth, to the first `times` calls of a method whose path has `path` in it.
    `done`: the call has its effect all the same. Without a status the connection is closed."""

    method: str
    status: int = 0
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    times: int = 1
    done: bool = False


class FakeForge:
    """A forge with one project and one pull request; `comments` are its comments, oldest first."""

    def __init__(self, kind: str) -> None:
        self.kind, self.token, self.number = kind, "sesame-of-the-test-4711", 7
        self.user = "github-actions[bot]" if kind == "github" else "project_1_bot_2"
        self.read_only = False
        self.comments: list[dict[str, Any]] = []
        self.pulls: list[dict[str, Any]] = []
        self.faults: list[Fault] = []
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.url = ""

    @property
    def bodies(self) -> list[str]:
        return [one["body"] for one in self.comments]

    def comment(self, body: str, by: str | None = None, **more: Any) -> dict[str, Any]:
        """Somebody comments; by default the user of the token."""
        key, name = ("user", "login") if self.kind == "github" else ("author", "username")
        one = {"id": 1000 + len(self.comments), "body": body, key: {name: by or self.user}, **more}
        self.comments.append(one)
        return one

    def environment(self, event: Path | None = None) -> dict[str, str]:
        """What a job has in its environment."""
        if self.kind == "gitlab":
            return {"CI_API_V4_URL": self.url, "GITLAB_TOKEN": self.token, "CI_MERGE_REQUEST_IID": str(self.number),
                    "CI_PROJECT_ID": "99", "CI_MERGE_REQUEST_PROJECT_ID": "99"}  # fmt: skip
        found = {"GH_STUB_URL": self.url, "GITHUB_SERVER_URL": "https://forge.example", "GITHUB_REPOSITORY": PROJECT}
        return found | ({"GITHUB_EVENT_PATH": str(event)} if event else {})

    def writes(self) -> list[str]:
        """The methods of calls that write comments."""
        return [method for method, path, _ in self.seen if method != "GET" and "graphql" not in path]

    def answer(self, method: str, target: str, headers: dict[str, str], body: Any) -> Answer:
        truth = self._truth
        for fault in self.faults:
            if fault.times and fault.method == method and fault.path in target:
                fault.times -= 1
                if fault.done:
                    truth(method, target, headers, body)
                return fault.status, dict(fault.headers), fault.body
        return truth(method, target, headers, body)

    def _truth(self, method: str, target: str, headers: dict[str, str], body: Any) -> Answer:
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        given = headers.get("authorization", "") if self.kind == "github" else headers.get("private-token", "")
        if given != ("Bearer " if self.kind == "github" else "") + self.token:
            return 401, {}, {"message": "Bad credentials" if self.kind == "github" else "401 Unauthorized"}
        if parts.path == "/graphql" and self.kind == "github":
            return 200, {}, {"data": {"viewer": {"login": self.user}}}
        if parts.path == "/user":
            if self.kind == "github":
                return 403, {}, {"message": "Resource not accessible by integration"}
            return 200, {}, {"id": 2, "username": self.user}
        if parts.path == f"/repos/{PROJECT}/pulls" and self.kind == "github":
            owner, _, branch = query["head"].partition(":")
            known = [(one["head"]["user"]["login"], one["head"]["ref"]) for one in self.pulls]
            return 200, {}, [one for one, at in zip(self.pulls, known, strict=True) if at == (owner, branch)]
        if self.kind == "github":
            all_, one_ = f"/repos/{PROJECT}/issues/{self.number}/comments", rf"/repos/{PROJECT}/issues/comments/(\d+)"
        else:
            all_ = f"/projects/99/merge_requests/{self.number}/notes"
            one_ = rf"{all_}/(\d+)"
        if parts.path == all_ and method == "GET":
            return self._page(query)
        found = re.fullmatch(one_, parts.path)
        comment = next((one for one in self.comments if found and one["id"] == int(found[1])), None)
        changes = comment is not None and method == ("PATCH" if self.kind == "github" else "PUT")
        if not changes and (parts.path, method) != (all_, "POST"):
            return 404, {}, {"message": "Not Found" if self.kind == "github" else "404 Not found"}
        if self.read_only:
            said = "Resource not accessible by integration" if self.kind == "github" else "403 Forbidden"
            return 403, {}, {"message": said}
        if len(body["body"]) > LONGEST[self.kind]:
            if self.kind == "github":
                error = {"resource": "IssueComment", "code": "unprocessable", "field": "data",
                         "message": "Body is too long (maximum is 65536 characters)"}  # fmt: skip
                return 422, {}, {"message": "Validation Failed", "errors": [error]}
            return 400, {}, {"message": {"note": ["is too long (maximum is 1000000 characters)"]}}
        if comment is not None:
            comment["body"] = body["body"]
            return 200, {}, comment
        return 201, {}, self.comment(body["body"])

    def _page(self, query: Mapping[str, str]) -> Answer:
        size, page = int(query.get("per_page", 30)), int(query.get("page", 1))
        listed = self.comments
        if self.kind == "gitlab" and query.get("sort") != "asc":
            listed = listed[::-1]
        found = listed[(page - 1) * size : page * size]
        more = {"Link": f'<{self.url}/next?page={page + 1}>; rel="next"'} if len(listed) > page * size else {}
        return 200, more, found


def given(headers: Mapping[str, str], body: bytes) -> Any:
    """What a request says, as JSON or in a form."""
    if "form" in headers.get("content-type", ""):
        return {name: values[0] for name, values in parse_qs(body.decode()).items()}
    return json.loads(body) if body else None


GH = '''#!{python} -I
"""As much of `gh api` as the action needs, for a forge on loopback."""
import argparse, json, os, re, sys, urllib.error, urllib.parse, urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("api", choices=["api"])
parser.add_argument("path")
parser.add_argument("--method")
parser.add_argument("--paginate", action="store_true")
parser.add_argument("--silent", action="store_true")
parser.add_argument("--jq")
parser.add_argument("-f", action="append", default=[])
parser.add_argument("-F", action="append", default=[])
asked = parser.parse_args()
if not os.environ.get("GH_HOST") or os.environ["GH_TOKEN"] != os.environ["GH_ENTERPRISE_TOKEN"]:
    sys.exit("gh: no host, or no token for one of one's own")
fields = dict(one.split("=", 1) for one in asked.f)
for name, value in (one.split("=", 1) for one in asked.F):
    fields[name] = open(value[1:], encoding="utf-8", newline="").read() if value.startswith("@") else value
method = asked.method or ("POST" if fields else "GET")
address = os.environ["GH_STUB_URL"] + "/" + asked.path
if method == "GET" and fields:
    address += "?" + urllib.parse.urlencode(fields)
body = json.dumps(fields).encode() if method != "GET" else None
page = 1
while True:
    headers = {{"Authorization": "Bearer " + os.environ["GH_TOKEN"], "Content-Type": "application/json"}}
    url = address + (f"&page={{page}}" if asked.paginate else "")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method)) as answer:
            text, more = answer.read().decode(), 'rel="next"' in answer.headers.get("Link", "")
    except urllib.error.HTTPError as error:
        sys.exit(f"gh: {{error.read().decode()}} (HTTP {{error.code}})")
    except OSError as error:
        sys.exit(f"gh: {{error}}")
    if asked.jq:
        for key in asked.jq.strip(".").split("."):
            text = json.loads(text)[key] if isinstance(text, str) else text[key]
    if not asked.silent:
        print(text)
    page += 1
    if not (asked.paginate and more):
        break
'''
CURL = """#!/bin/sh
printf '%s\\n' "$*" >> "{log}"
exec /usr/bin/curl "$@"
"""


def programs(folder: Path) -> Path:
    """A folder for PATH: `gh`, a `curl` that writes down its words into `words`, and a `sleep` that does not wait."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "gh": GH.format(python=sys.executable),
        "curl": CURL.format(log=folder / "words"),
        "sleep": "#!/bin/sh\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


@contextmanager
def serving(kind: str) -> Iterator[FakeForge]:
    """A forge, as long as the block lasts."""
    starts("a forge")
    forge = FakeForge(kind)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            forge.seen.append((self.command, unquote(self.path), headers))
            status, more, answer = forge.answer(self.command, self.path, headers, given(headers, body))
            if not status:
                self.close_connection = True
                return
            sent = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": len(sent), **more}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None:
            pass

    for method in ("POST", "PATCH", "PUT"):
        setattr(Handler, f"do_{method}", Handler.do_GET)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    forge.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield forge
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
