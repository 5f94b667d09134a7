"""Fetching within bounds: who may be reached, how much may come, how long it may take, and who gets credentials."""

import gzip
import json
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from support.remote import AUTHORITY, Site, redirect, reply, serving, tunnel

from agac.api.project import remote_contents
from agac.data.hub import parse_hub
from agac.spec.loader import load_project
from agac.spec.paths import Refused, RemoteContent


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site()) as site:
        yield site


def fetched(
    root: Path, reference: str, what: str = "prompt of one", *, env: dict[str, str] | None = None, **rules: Any
) -> RemoteContent:
    """What a project with these rules gets."""
    root.mkdir(exist_ok=True)
    (root / "agac.yml").write_text(str({"remote": rules}).replace("True", "true"))
    spec, problems = load_project(root, {"NO_PROXY": "", **(env or {})})
    assert spec is not None, problems
    assert not problems
    return remote_contents(spec).fetch(reference, what)[0]


LOCAL = {"http": True, "allow": ["127.0.0.1"]}


def refused(root: Path, reference: str, what: str = "prompt of one", **more: Any) -> str:
    with pytest.raises(Refused) as error:
        fetched(root, reference, what, **more)
    assert not list((root / ".agac/remote").rglob(".agac-tmp*"))
    return str(error.value)


def test_content_is_kept_by_its_hash_and_not_sent_again_while_it_is_the_same(tmp_path: Path, site: Site) -> None:
    body = b"Say yes."

    def page(request: BaseHTTPRequestHandler) -> None:
        same = request.headers.get("If-None-Match") == f'"{len(body)}"'
        reply(request, b"" if same else body, 304 if same else 200, ETag=f'"{len(body)}"')

    site.pages["/a%20%C3%BC/p.md"] = page
    first = fetched(tmp_path, f"{site.url}/a%20ü/p.md?x=1", **LOCAL)
    assert first.path == tmp_path / ".agac/remote" / first.hash / "p.md"
    assert first.path.read_bytes() == b"Say yes."
    assert fetched(tmp_path, f"{site.url}/a%20ü/p.md?x=1", **LOCAL) == first
    body = b"Say no, please."
    second = fetched(tmp_path, f"{site.url}/a%20ü/p.md?x=1", **LOCAL)
    assert (second.path.read_bytes(), first.path.read_bytes()) == (b"Say no, please.", b"Say yes.")
    assert [headers.get("if-none-match") for _, _, headers in site.seen] == [None, '"8"', '"8"']


POISONED: dict[str, Callable[[dict[str, Any], Path], Any]] = {
    "no object": lambda known, _: [known],
    "a way out": lambda known, _: {**known, "name": "../../../agac.yml"},
    "another hash": lambda known, _: {**known, "hash": "0" * 32},
    "a hash that is a way": lambda known, _: {**known, "hash": ".."},
    "another header": lambda known, _: {**known, "sent": {"Host": "elsewhere.example"}},
    "a header of two lines": lambda known, _: {**known, "sent": {"If-None-Match": "x\r\nHost: elsewhere.example"}},
    "a number": lambda known, _: {**known, "sent": {"If-None-Match": 7}},
    "more": lambda known, _: {**known, "more": 1},
    "another content": lambda known, path: path.write_text("Say no.", "utf-8") and known,
}


@pytest.mark.parametrize("poison", POISONED)
def test_what_is_kept_of_a_reference_is_believed_only_as_agac_wrote_it(poison: str, tmp_path: Path, site: Site) -> None:
    def page(request: BaseHTTPRequestHandler) -> None:
        same = request.headers.get("If-None-Match") == '"1"'
        reply(request, b"" if same else b"Say yes.", 304 if same else 200, ETag='"1"')

    site.pages["/p.md"] = page
    first = fetched(tmp_path, f"{site.url}/p.md", **LOCAL)
    (index,) = (tmp_path / ".agac/remote").glob("*.json")
    known = POISONED[poison](json.loads(index.read_text("utf-8")), first.path)
    index.write_text(json.dumps(known), "utf-8")
    again = fetched(tmp_path, f"{site.url}/p.md", **LOCAL)
    assert again.path.read_bytes() == b"Say yes."
    assert again == first
    assert [headers.get("if-none-match") for _, _, headers in site.seen] == [None, None]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]",
        "169.254.169.254", "[::ffff:169.254.169.254]", "10.1.2.3", "192.168.0.1", "172.16.0.1", "100.64.0.1",
        "[fe80::1]", "[fd00::1]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]", "224.0.0.1", "localhost.",
        "[::7f00:1]", "[fec0::1]", "[64:ff9b:1::7f00:1]", "[ff0e::1]", "192.0.0.192", "168.63.129.16",
    ],
)  # fmt: skip
def test_what_is_no_public_address_is_refused_directly_and_after_a_redirect(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: reached.append(address))
    assert "is no public address; add" in refused(tmp_path, f"https://{host}:9/secret")
    assert reached == []
    monkeypatch.undo()
    with serving(Site()) as site:
        site.pages["/"] = redirect(f"http://{host}:{site.port}/secret")
        # its own name alone is allowed, which no other way to the same place is
        monkeypatch.setattr(socket, "getaddrinfo", _named("site.test", "127.0.0.1"))
        said = refused(tmp_path, f"http://site.test:{site.port}/", http=True, allow=["site.test"])
    assert "is no public address; add" in said
    assert [path for _, path, _ in site.seen] == ["/"]


def test_a_host_is_reached_at_another_address_of_it(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.pages["/p.md"] = b"text"
    known = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, site.port)) for address in ("127.0.0.9", "127.0.0.1")
    ]
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *a, **k: known if host == "two.test" else real(host, *a, **k)
    )
    found = fetched(tmp_path, f"http://two.test:{site.port}/p.md", http=True, allow=["127.0.0.0/8"])
    assert found.path.read_bytes() == b"text"


def _named(name: str, *addresses: str) -> Any:
    """A resolver that gives these addresses for a name, one at each question."""
    real, answers = socket.getaddrinfo, iter(addresses)
    return lambda host, *more, **how: real(next(answers) if host == name else host, *more, **how)


def test_the_address_that_was_checked_is_the_one_that_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = []

    def connect(_: socket.socket, address: Any) -> None:
        reached.append(address[0])
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", _named("rebinds.test", "93.184.215.14", "127.0.0.1"))
    assert "cannot be fetched: Connection refused" in refused(tmp_path, "https://rebinds.test/")
    assert reached == ["93.184.215.14"]
    monkeypatch.setattr(socket, "getaddrinfo", _named("inside.test", "10.0.0.7"))
    assert refused(tmp_path, "https://inside.test/p.md") == (
        "https://inside.test/p.md is at 10.0.0.7, which is no public address; add inside.test to `allow` in `remote` "
        "of agac.yml if it is meant"
    )


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("http://example.com/p.md", "can be read and changed by anybody on the way; write https://, or"),
        ("https://me:secret@example.com/p.md", "has a user or a password in it; put them into `headers`"),
        ("https:///p.md", "is no https:// address"),
        ("https://a:99999/p", "is no https:// address"),
        ("file:///etc/passwd", "leads out of the project; copy it into the project, or name its folder in `allow`"),
        ("file://../outside.md", "names the machine .."),
        ("file:///HERE/../../etc/passwd", "leads out of the project"),
        ("file:///HERE/link", "leads out of the project"),
        ("file:///HERE/none.md", "is no file"),
    ],
)  # fmt: skip
def test_what_may_not_be_fetched_at_all_is_said_with_the_remedy(reference: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    message = refused(tmp_path, reference.replace("/HERE", str(tmp_path)))
    assert said in message
    assert "secret" not in message
    assert not (tmp_path / ".agac").exists()


def test_a_file_of_the_project_or_of_an_allowed_folder_is_read_where_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "p.md").write_text("x")
    for root, rules in ((tmp_path, {}), (tmp_path / "project", {"allow": [str(shared)]})):
        assert fetched(root, f"file://{shared}/p.md", **rules).path == shared / "p.md"


def endless(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b"x" * 65536)


def much(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(400 << 16))
    request.end_headers()
    for _ in range(400):
        request.wfile.write(b"x" * 65536)


def test_what_is_fetched_is_never_in_memory_as_a_whole(tmp_path: Path, site: Site) -> None:
    site.pages["/rows.csv"] = much
    tracemalloc.start()
    try:
        found = fetched(tmp_path, f"{site.url}/rows.csv", "input", **LOCAL)
        assert found.path.stat().st_size == 400 << 16 > 5 * tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def torn(request: BaseHTTPRequestHandler) -> None:
    reply(request, b"half", Content_Length="100")
    request.close_connection = True


def sending(body: bytes = b"", status: int = 200, **headers: str) -> Any:
    return lambda request: reply(request, body, status, **headers)


@pytest.mark.parametrize(
    ("page", "what", "said"),
    [
        (endless, "prompt of one", "has more than 5,000,000 bytes; put data into an input"),
        (endless, "input", "has more than 20,000,000 bytes; raise max_mb in `remote` of agac.yml"),
        (sending(gzip.compress(b"\n" * 30_000_000)), "input", "unpacked, has more than 20,000,000 bytes; raise max_mb"),
        (torn, "input", "cannot be fetched: the connection was lost before all of it came; try again"),
        (sending(gzip.compress(b"x"), Content_Encoding="gzip"), "prompt of one", "was sent as gzip, which nobody"),
        (redirect("/rows.csv"), "input", "redirects more than 5 times"),
        (redirect("https://[x"), "input", "cannot be fetched: ValueError; check the address"),
        (redirect("file:///etc/passwd"), "input", "file:///etc/passwd is no https:// address; check it"),
        (sending(status=403), "input", "answered 403; give what logs in as `headers`"),
        (sending(status=503), "input", "answered 503; check the address, or try again later"),
    ],
    ids=["long text", "long input", "bomb", "torn", "packed", "loop", "to nothing", "to a file", "forbidden", "down"],
)  # fmt: skip
def test_what_a_server_does_wrong_ends_with_a_sentence(
    page: Any, what: str, said: str, tmp_path: Path, site: Site
) -> None:
    site.pages["/rows.csv"] = page
    assert said in refused(tmp_path, f"{site.url}/rows.csv", what, max_mb=20, **LOCAL)


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b""])
def test_a_server_that_takes_its_time_is_left(start: bytes, tmp_path: Path, site: Site) -> None:
    """With its headers, with its body, or before it says anything."""

    def page(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(start)
        while not site.over.wait(0.02):
            request.wfile.write(b"x" if start else b"")

    site.pages["/p.md"] = page
    said = refused(tmp_path, f"{site.url}/p.md", timeout=0.3, **LOCAL)
    assert said.endswith(
        "/p.md cannot be fetched: it took more than 0.3 s; try again, or raise timeout in `remote` of agac.yml"
    )


def test_credentials_are_sent_by_tls_to_their_own_host_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"DATA_TOKEN": "canary-1", "SSL_CERT_FILE": AUTHORITY}
    with serving(Site(tls=True)) as mine, serving(Site(tls=True)) as other, serving(Site()) as plain:
        rules: dict[str, Any] = {"headers": {f"localhost:{mine.port}": {"Authorization": "Bearer ${DATA_TOKEN}"}}}
        rules["headers"][f"localhost:{plain.port}"] = {"Authorization": "in plain text"}
        rules |= {"allow": ["127.0.0.0/8", "::1"], "http": True}
        mine.pages |= {"/": redirect(f"https://localhost:{other.port}/"), "/p": b"mine"}
        other.pages["/"] = redirect(f"https://localhost:{mine.port}/down")
        mine.pages["/down"] = redirect(f"http://localhost:{plain.port}/")
        plain.pages["/"] = b"text"
        monkeypatch.setattr(socket, "getaddrinfo", _named("localhost", *["127.0.0.1"] * 9))
        assert fetched(tmp_path, f"https://localhost:{mine.port}/", env=env, **rules).path.read_bytes() == b"text"
        logins = [[headers.get("authorization") for *_, headers in site.seen] for site in (mine, other, plain)]
        assert logins == [["Bearer canary-1", "Bearer canary-1"], [None], [None]]
        fetched(tmp_path, f"http://localhost:{plain.port}/", env=env, **rules)
        assert "authorization" not in plain.seen[-1][2]
        said = refused(tmp_path, f"https://localhost:{mine.port}/p", **rules, env={"SSL_CERT_FILE": AUTHORITY})
        assert "the header Authorization needs the environment variable DATA_TOKEN; set it" in said
        said = refused(tmp_path, f"https://127.0.0.1:{mine.port}/p", **rules)
        assert "is not trusted: " in said
        assert "set SSL_CERT_FILE" in said


def test_proxies_are_those_of_the_environment(tmp_path: Path, site: Site) -> None:
    site.pages["/p.md"] = b"through the proxy"
    env = {"HTTP_PROXY": f"http://me:pass@127.0.0.1:{site.port}"}
    found = fetched(tmp_path, "http://nowhere.example.test/p.md", http=True, env=env)
    assert found.path.read_bytes() == b"through the proxy"
    _, path, headers = site.seen[0]
    assert (path, headers["proxy-authorization"]) == ("http://nowhere.example.test/p.md", "Basic bWU6cGFzcw==")
    assert "is no public address" in refused(tmp_path, "http://169.254.169.254/p.md", http=True, env=env)
    assert "no http:// proxy" in refused(tmp_path, "https://nowhere.test/", env={"ALL_PROXY": "https://127.0.0.1:1"})
    assert "goes through http proxies only; Set" in refused(
        tmp_path, "https://nowhere.test/", env={"ALL_PROXY": "socks5://127.0.0.1:1"}
    )
    with serving(Site(tls=True)) as far:
        far.pages["/p.md"], site.pages["443"] = b"through the tunnel", tunnel(far.port)
        env = {"HTTPS_PROXY": env["HTTP_PROXY"], "SSL_CERT_FILE": AUTHORITY, "TOKEN": "canary-1"}
        headers = {"api.example.test": {"Authorization": "Bearer ${TOKEN}"}}
        found = fetched(tmp_path, "https://api.example.test/p.md", env=env, headers=headers)
        assert found.path.read_bytes() == b"through the tunnel"
        method, path, asked = site.seen[-1]
        assert (method, path, asked.get("authorization")) == ("CONNECT", "api.example.test:443", None)
        assert asked["proxy-authorization"] == "Basic bWU6cGFzcw=="
        assert far.seen[0][2]["authorization"] == "Bearer canary-1"
        assert "proxy-authorization" not in far.seen[0][2]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("hf://datasets/o/n/data/a.csv", ("dataset", "o/n", "data/a.csv", None, None, None)),
        ("hf://datasets/o/n/a.csv@v1", ("dataset", "o/n", "a.csv", "v1", None, None)),
        ("hf://datasets/o/n@refs%2Fpr%2F3/a.csv", ("dataset", "o/n", "a.csv", "refs/pr/3", None, None)),
        ("hf://datasets/o/n@refs/pr/3/a.csv", ("dataset", "o/n", "a.csv", "refs/pr/3", None, None)),
        ("hf://datasets/o/n@refs/pr/3/b/a.csv", ("dataset", "o/n", "b/a.csv", "refs/pr/3", None, None)),
        ("hf://datasets/o/n/b/a.csv@refs/pr/3", ("dataset", "o/n", "b/a.csv", "refs/pr/3", None, None)),
        (
            "hf://datasets/o/n@refs/convert/parquet/c/train/0.parquet",
            ("dataset", "o/n", "c/train/0.parquet", "refs/convert/parquet", None, None),
        ),
        ("hf://datasets/o/n@refs/convert/parquet", ("dataset", "o/n", "", "refs/convert/parquet", None, None)),
        ("hf://datasets/o/n@refs/other/a.csv", ("dataset", "o/n", "other/a.csv", "refs", None, None)),
        ("hf://o/n/p.md", ("model", "o/n", "p.md", None, None, None)),
        ("hf://models/o/n/p.md@main", ("model", "o/n", "p.md", "main", None, None)),
        ("hf://datasets/o/n?config=c&split=s", ("dataset", "o/n", "", None, "c", "s")),
        ("hf://datasets/o", "names nothing on the hub; write hf://datasets/OWNER/NAME/PATH@REVISION"),
        ("hf://datasets/o/n/../x", "names nothing on the hub"),
        ("hf://datasets/o/n/%2e%2e/x", "names nothing on the hub"),
        ("hf://o/n", "names no file"),
        ("hf://datasets/o/n?split=", "stand config=NAME and split=NAME"),
        ("hf://datasets/o/n?split=a&split=b", "stand config=NAME and split=NAME"),
        ("hf://datasets/o/n?part=a", "stand config=NAME and split=NAME"),
        ("hf://datasets/o/n@c0ffee?split=s", ("dataset", "o/n", "", "c0ffee", None, "s")),
        ("hf://datasets/o/n/a.csv?split=a", "leave out the path, or config and split"),
    ],
)
def test_references_to_the_hub(text: str, parsed: Any) -> None:
    if isinstance(parsed, tuple):
        assert tuple(parse_hub(text)) == parsed
    else:
        with pytest.raises(Refused, match=parsed.replace("?", r"\?")):
            parse_hub(text)
