"""The tools that agac brings: what they give, and what they refuse."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from support.remote import AUTHORITY, Site, redirect, reply, serving

from agac.api.project import remote_contents
from agac.core.errors import UsageError
from agac.data.remote import RemoteContents
from agac.spec.loader import load_project
from agac.spec.tools import ToolSpec
from agac.tools import builtin as module
from agac.tools.builtin import Builtins, builtin, describe_builtin
from agac.tools.tool_functions import ToolFailed


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site()) as site:
        yield site


def web(root: Path, allow: list[str], headers: Any = None, **env: str) -> RemoteContents:
    """What reaches the web for a project that lets these private hosts be reached, also without TLS."""
    (root / "agac.yml").write_text(json.dumps({"remote": {"http": True, "allow": allow, "headers": headers or {}}}))
    spec, problems = load_project(root, {"NO_PROXY": "", **env})
    assert spec is not None, problems
    return remote_contents(spec)


def tried(root: Path, settings: dict[str, Any], name: str, *given: Any, reach: RemoteContents | None = None) -> str:
    """The result, or after `failed: ` what the model is told."""
    try:
        text: str = getattr(Builtins(settings, root.resolve(), reach), name)(*given)
    except ToolFailed as failed:
        return f"failed: {failed}"
    return text


def test_models_are_told_of_them_by_their_docstrings(tmp_path: Path) -> None:
    spec = describe_builtin("web_search", {"url": "https://x.example"}, tmp_path)
    assert spec.description == "Searches the web. Gives title, address and a short text of each page found."
    assert (spec.kind, spec.source, spec.parameters["required"]) == ("builtin", "web_search", ["query"])
    assert describe_builtin("read_skill", {"skills": {}}, tmp_path).kind == "skill"


def test_files_are_read_within_a_folder_alone(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (docs / "a.md").write_text("Ä")
    (docs / ".env").write_text("KEY=x")
    (docs / "image.png").write_bytes(b"\x89PNG\0")
    (docs / "out").symlink_to(tmp_path / "secret.txt")
    (docs / "hidden").symlink_to(docs / ".env")
    (tmp_path / "secret.txt").write_text("no")
    os.mkfifo(docs / "sub" / "pipe")
    outside = ("../secret.txt", "/etc/passwd", "out", "hidden", ".env", "~/x", "a\0")
    paths = ("a.md", ".", "sub", "b.md", "image.png", "sub/pipe", *outside)
    read = {path: tried(tmp_path, {"root": "docs"}, "read_file", path) for path in paths}
    assert read["a.md"] == "Ä"
    assert (read["."], read["sub"]) == ("a.md\nhidden\nimage.png\nout\nsub/", "pipe")
    assert read["sub/pipe"] == "failed: 'sub/pipe' is no file"
    assert read["b.md"] == "failed: 'b.md' cannot be read: No such file or directory"
    assert read["image.png"] == "failed: 'image.png' is no text"
    for path in outside:
        assert read[path].startswith("failed: "), path
    one = Builtins({"root": "docs"}, tmp_path, None)
    before = one.changes({"path": "a.md"})
    (docs / "a.md").write_text("longer")
    assert before != one.changes({"path": "a.md"})
    assert one.changes({"path": "b.md"}) is None
    assert Builtins({}, tmp_path, None).changes({"path": "docs/a.md"}) == one.changes({"path": "a.md"})


def test_skills_are_read_on_demand(tmp_path: Path) -> None:
    folder = tmp_path / "skills/brand"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("Be kind.")
    (folder / "words.txt").write_text("hello")
    settings = {"skills": {"brand": "skills/brand"}}
    asked = [("brand",), ("brand", "words.txt"), ("brand", "../../agac.yml"), ("brnd",)]
    assert [tried(tmp_path, settings, "read_skill", *one)[:40] for one in asked] == [
        "Be kind.",
        "hello",
        "failed: '../../agac.yml' leads out of th",
        "failed: there is no skill 'brnd'; did yo",
    ]


def test_a_database_is_read_alone_and_within_bounds(tmp_path: Path, monkeypatch: Any) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as made, made:
        made.execute("CREATE TABLE item (name TEXT, price REAL, image BLOB)")
        made.execute(f"CREATE TABLE wide ({', '.join(f'c{n}' for n in range(700))})")
        made.executemany("INSERT INTO item VALUES (?, ?, ?)", [(f"n{n}", n / 2, b"xx") for n in range(300)])

    def query(text: str) -> str:
        return tried(tmp_path, {"database": "shop.db"}, "run_sql", text)

    assert query("SELECT * FROM item LIMIT 1") == '{"columns":["name","price","image"],"rows":[["n0",0.0,"2 bytes"]]}'
    many = json.loads(query("SELECT name FROM item"))
    assert (len(many["rows"]), many["more"]) == (200, True)
    for text in ("DELETE FROM item", "ATTACH 'x.db' AS x", "SELECT 1; SELECT 2", "PRAGMA journal_mode = WAL",
                 "SELECT load_extension('x')", "CREATE TABLE x (y)", "SELECT nope FROM item"):  # fmt: skip
        assert query(text).startswith("failed: "), text
    assert "too big" in query("SELECT hex(zeroblob(100000000))")
    assert "too many columns" in query(f"SELECT {', '.join(['hex(zeroblob(900000))'] * 300)}")
    assert query("SELECT c1 FROM wide") == '{"columns":["c1"],"rows":[]}'
    assert len(query("SELECT hex(zeroblob(400000)) FROM item")) < 2_500_000
    monkeypatch.setattr(module, "QUERY_S", 0.0)
    endless = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    assert query(endless) == "failed: the query took longer than 0 s; ask for less"
    assert tried(tmp_path, {"database": "../x.db"}, "run_sql", "SELECT 1").startswith("failed: ")


def test_pages_are_fetched_from_allowed_hosts_alone(tmp_path: Path, site: Site) -> None:
    site.pages["/a"] = b"plain & text"
    page = b"<html><head><title>T</title><style>p{}</style></head><body><p>One &amp; <b>two</b>\n x"
    page += b"<script>a<b;</script><li>3"

    def html(request: BaseHTTPRequestHandler) -> None:
        reply(request, page, **{"Content-Type": "text/html; charset=utf-8"})

    site.pages |= {"/b": html, "/big": b"x" * 3_000_000}
    site.pages |= {"/to": redirect("http://other.example/x"), "/in": redirect("http://10.0.0.1/")}
    local = web(tmp_path, ["127.0.0.1"])

    def get(url: str, allow: tuple[str, ...] = ("127.0.0.1", "10.*"), reach: RemoteContents = local) -> str:
        return tried(tmp_path, {"allow": list(allow)}, "http_get", url, reach=reach)

    assert get(f"{site.url}/a") == "plain & text"
    assert get(f"{site.url}/b") == "T\nOne & two x\n3"
    assert len(get(f"{site.url}/big")) == module.MOST_BYTES
    assert get(f"{site.url}/none").endswith("/none answered 404")
    assert "the host other.example is none that may be reached" in get(f"{site.url}/to")
    assert "which is no public address" in get(f"{site.url}/in")
    said = get(f"{site.url}/a", ("example.com",))
    assert said == "failed: the host 127.0.0.1 is none that may be reached; those are example.com"
    assert "which is no public address" in get(f"{site.url}/a", reach=web(tmp_path, []))
    assert get("file:///etc/passwd").startswith("failed: ")
    assert get("http://[::1").startswith("failed: ")
    # what somebody else was shown is another result
    headers = {"headers": {"127.0.0.1": {"X-Key": "${KEY}"}}}
    asking = [web(tmp_path, ["127.0.0.1"], **headers, KEY=key) for key in ("a", "b", "b")]
    first, other, again = (Builtins({"allow": []}, tmp_path, one).changes({"url": "x"}) for one in asking)
    assert first != other == again


def test_a_hostile_page_takes_no_time() -> None:
    for text in (
        "<" * 500_000,
        "<script>" * 60_000,
        "<a " * 200_000,
        "<!--" * 100_000,
        "&" * 500_000,
        "<" + "a" * 500_000,
    ):
        module._plain_text(text)


BRAVE = {"web": {"results": [{"title": "A", "url": "https://a", "description": "text", "more": 1}, {"title": "B"}]}}
SERP = {"organic_results": [{"title": "A", "link": "https://a", "snippet": "text"}, {"title": "B"}]}
PLAIN = {"data": [{"name": "A", "url": "https://a", "content": "text"}, {"name": "B"}]}


@pytest.mark.parametrize(
    ("answer", "shape", "asks"),
    [
        (
            BRAVE,
            module.SHAPES["api.search.brave.com"],
            ("GET", "/search?x=1&q=two%20words&count=1", "x-subscription-token"),
        ),
        (SERP, module.SHAPES["serpapi.com"], ("GET", "/search?x=1&q=two%20words&num=1&api_key=k3y", None)),
        (PLAIN, {"method": "post", "results": "data", "title": "name"}, ("POST", "/search?x=1", "authorization")),
    ],
    ids=["brave", "serpapi", "own"],
)
def test_a_web_search_asks_and_reads_in_the_shape_of_its_service(
    answer: Any, shape: dict[str, str], asks: tuple[str, str, str | None], tmp_path: Path
) -> None:
    with serving(Site(tls=True)) as site:
        site.pages["/search"] = json.dumps(answer).encode()
        settings = {"url": f"{site.url}/search?x=1", "api_key": "${SEARCH_KEY}", "shape": shape}
        reach = web(tmp_path, [], SEARCH_KEY="k3y", SSL_CERT_FILE=AUTHORITY)
        found = tried(tmp_path, settings, "web_search", "two words", 1, reach=reach)
    assert json.loads(found) == [{"title": "A", "url": "https://a", "text": "text"}]
    method, path, headers = site.seen[0]
    assert (method, path) == asks[:2]
    if asks[2] is not None:
        assert headers[asks[2]] == ("Bearer k3y" if asks[2] == "authorization" else "k3y")


def test_what_logs_in_is_in_no_page(tmp_path: Path) -> None:
    key = "k3y-of-a-service"
    with serving(Site(tls=True)) as site:
        site.pages["/"] = lambda asked: reply(asked, f"you sent {asked.headers['authorization']}".encode())
        host = site.url.partition("//")[2]
        headers = {"headers": {host: {"Authorization": "Bearer ${KEY}"}}}
        reach = web(tmp_path, ["127.0.0.1"], **headers, KEY=key, SSL_CERT_FILE=AUTHORITY)
        found = tried(tmp_path, {"allow": ["127.0.0.1"]}, "http_get", f"{site.url}/", reach=reach)
    assert site.seen[0][2]["authorization"] == f"Bearer {key}"
    assert found == "you sent Bearer [redacted]"


def test_a_web_search_fails_in_words(tmp_path: Path, site: Site) -> None:
    site.pages["/search"] = b"<html>"
    reach = web(tmp_path, [])

    def search(**more: Any) -> str:
        return tried(tmp_path, {"url": f"{site.url}/search", **more}, "web_search", "x", reach=reach)

    assert search() == "failed: the search gave an answer that cannot be read"
    assert "answered 404" in search(url=f"{site.url}/nothing")
    for url, said in (("https://x", "needs the variable SEARCH_KEY"), ("http://x", "over https:// alone")):
        told = {"url": url, "api_key": "${SEARCH_KEY}" if "https" in url else "${USER:me}"}
        with pytest.raises(UsageError, match=said):
            builtin(ToolSpec("web_search", "", {}, "builtin", "web_search", settings=told), tmp_path, reach)
