"""Sites and a hub on loopback: what remote content is fetched from."""

import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

CERTIFICATES = Path(__file__).parents[1] / "providers/certificates"
AUTHORITY = str(CERTIFICATES / "authority.pem")

Answer = bytes | Callable[[BaseHTTPRequestHandler], None]


class Site:
    """Answers what stands in `pages` by path: bytes, or a function that writes. `seen`: method, path and headers."""

    def __init__(self, *, tls: bool = False) -> None:
        self.pages: dict[str, Answer] = {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.over = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                site.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
                site.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        for method in ("HEAD", "POST", "CONNECT"):
            setattr(Handler, f"do_{method}", Handler.do_GET)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATES / "server.pem")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        page = self.pages.get(urlsplit(request.path).path)
        if callable(page):
            page(request)
        else:
            reply(request, page or b"", 404 if page is None else 200)


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """The site, reachable for the block."""
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.over.set()
        site.server.shutdown()
        thread.join()
        site.server.server_close()


def reply(request: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    """Answers with a body of known length, which a HEAD does not get."""
    request.send_response(status)
    for name, value in {"Content_Length": str(len(body)), **headers}.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def tunnel(port: int) -> Answer:
    """What a proxy answers to CONNECT: a way to this port of loopback."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(65536):
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def page(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.close_connection = True
        with socket.create_connection(("127.0.0.1", port)) as there:
            back = threading.Thread(target=copy, args=(there, request.connection))
            back.start()
            copy(request.connection, there)
            back.join()

    return page


def redirect(to: str) -> Answer:
    return lambda request: reply(request, b"", 302, Location=to)


class Hub(Site):
    """Data sets and models as the Hugging Face Hub serves them to `huggingface_hub` (its HTTP API at
    huggingface.co/docs/hub/api, read November 2026): `files` by (kind, repository, revision); `token`: who may read;
    `stored_at`: where all files are, elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[tuple[str, str, str], dict[str, bytes]] = {}
        self.token: str | None = None
        self.stored_at: str | None = None

    def commit(self, kind: str, repo: str, revision: str) -> str | None:
        """The commit that a revision means: of all that is there."""
        for (its_kind, name, branch), files in self.files.items():
            sha = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
            if (its_kind, name) == (kind, repo) and revision in (branch, sha):
                return sha
        return None

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            reply(request, b"{}", 401, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
            return
        path = urlsplit(request.path).path.strip("/").split("/")
        is_api = path[0] == "api"
        path = path[is_api:]
        kind = path.pop(0) if path[0] in ("datasets", "models") else "models"
        repo, (verb, revision) = (
            f"{path[0]}/{path[1]}",
            (path[2], unquote(path[3])) if path[2:] else ("revision", "main"),
        )
        sha = self.commit(kind, repo, revision)
        if sha is None:
            known = any(key[:2] == (kind, repo) for key in self.files)
            code = "RevisionNotFound" if known else "RepoNotFound"
            reply(request, b"{}", 404, X_Error_Code=code, X_Error_Message=code)
            return
        files = next(f for key, f in self.files.items() if key[:2] == (kind, repo) and self.commit(*key) == sha)

        def entry(name: str) -> dict[str, Any]:
            return {"type": "file", "path": name, "size": len(files[name]), "oid": git_oid(files[name])}

        if not is_api:
            name = unquote("/".join(path[4:]))
            if name not in files:
                reply(request, b"", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
                return
            if self.stored_at:
                about = {"X_Linked_Size": str(len(files[name])), "X_Linked_ETag": f'"{git_oid(files[name])}"'}
                reply(request, b"", 302, Location=self.stored_at, X_Repo_Commit=sha, **about)
                return
            reply(request, files[name], ETag=f'"{git_oid(files[name])}"', X_Repo_Commit=sha)
        elif verb == "revision":
            reply(request, json.dumps({"id": repo, "sha": sha, "siblings": [], "tags": []}).encode())
        elif verb == "paths-info":
            sent = request.rfile.read(int(request.headers["Content-Length"])).decode()
            wanted = parse_qs(sent).get("paths") or json.loads(sent)["paths"]
            reply(request, json.dumps([entry(name) for name in wanted if name in files]).encode())
        else:
            assert verb == "tree", request.path
            reply(request, json.dumps([entry(name) for name in files]).encode())


def git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
