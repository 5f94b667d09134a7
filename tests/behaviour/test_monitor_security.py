"""Who `agac ui` answers, and what: a page in any tab, and every user of the machine, can reach it."""

import hashlib
import json
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.monitor import Watched, monitor
from support.processes import ended, interrupt
from support.project import ProjectFolder

import agac.web

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
VENDOR = Path(agac.web.__file__).parent / "static/vendor"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with monitor(ProjectFolder(tmp_path_factory.mktemp("monitor"))) as started:
        yield started


@pytest.fixture(scope="module")
def writing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with monitor(ProjectFolder(tmp_path_factory.mktemp("writing")), "--write") as started:
        yield started


def test_every_answer_has_the_same_headers(watched: Watched) -> None:
    answers = [
        watched.get("/"), watched.get("/nowhere"), watched.get("/static/app.css"), watched.get("/", cookie=False),
        watched.get("/", {"Host": "evil.example"}), watched.post("/"), watched.get(f"/t/{watched.token}", cookie=False),
    ]  # fmt: skip
    assert [answer.status for answer in answers] == [200, 404, 200, 403, 400, 403, 200]
    for answer in answers:
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/nowhere", "/t/", "/t/wrong", "/t/../", "//", "/t/%C3%A4"])
def test_nothing_is_answered_without_the_token(path: str, watched: Watched) -> None:
    answer = watched.get(path, cookie=False)
    assert (answer.status, "has a token" in answer.text) == (403, True)


@pytest.mark.parametrize("cookie", ["", "agac_ui=", "wrong=1", "{name}=wrong", "{name}={token}x", "{name}=\u00e9"])
def test_a_wrong_cookie_is_none(cookie: str, watched: Watched) -> None:
    name = watched.cookie["Cookie"].partition("=")[0]
    sent = cookie.format(name=name, token=watched.token).encode().decode("latin-1")
    assert watched.get("/", {"Cookie": sent}, cookie=False).status == 403


def test_the_address_gives_a_cookie_that_scripts_and_other_sites_do_not_get(watched: Watched) -> None:
    answer = watched.get(f"/t/{watched.token}", {"Sec-Fetch-Site": "cross-site"}, cookie=False)
    assert answer.headers["set-cookie"] == f"agac_ui_{watched.port}={watched.token}; HttpOnly; Path=/; SameSite=strict"
    assert answer.headers["refresh"] == "0; url=/"
    assert len(watched.token) >= 32


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]", "0.0.0.0"])
@pytest.mark.parametrize("path", ["/", "/static/app.js", "TOKEN"])
def test_a_host_that_is_not_this_machine_is_refused(host: str, path: str, watched: Watched) -> None:
    answer = watched.get(f"/t/{watched.token}" if path == "TOKEN" else path, {"Host": host})
    assert answer.status == 400
    assert "open the monitor as 127.0.0.1 or localhost" in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:9", "[::1]:80"])
def test_names_of_this_machine_are_served_also_through_a_tunnel(host: str, watched: Watched) -> None:
    assert watched.get("/", {"Host": host}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"}, {"Origin": "https://localhost"}, {"Origin": "http://["},
    ],
)  # fmt: skip
def test_what_other_pages_send_is_refused(headers: dict[str, str], watched: Watched, writing: Watched) -> None:
    assert watched.get("/", headers).status == 403
    assert writing.post("/", headers=headers).status == 403


def test_a_form_needs_its_token_and_a_monitor_that_writes(watched: Watched, writing: Watched) -> None:
    own = {"Sec-Fetch-Site": "same-origin", "Origin": "null"}
    assert "`agac ui --write`" in watched.post("/", headers=own).text
    assert writing.post("/", headers=own).status == 405  # there is no such form, but it was let through
    for refused in (
        writing.post("/", headers=own, token=False),
        writing.post("/", {"form_token": "wrong"}, own),
        writing.post("/", {"form_token": writing.token}, own),
        writing.post("/", headers=own, cookie=False),
        writing.post(f"/t/{writing.token}", headers={"Sec-Fetch-Site": "cross-site"}, cookie=False),
    ):
        assert refused.status == 403
    assert writing.post("/", {"long": "x" * 2_000_000}, own).status == 413


@pytest.mark.parametrize(
    "path",
    ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "vendor/../../app.py", "/etc/passwd", "..\\app.py", "%00", "."],
)
def test_only_the_files_of_the_monitor_are_served(path: str, watched: Watched) -> None:
    answer = watched.get(f"/static/{path}")
    assert answer.status == 404
    assert "starlette" not in answer.text
    assert "root:" not in answer.text


def test_it_listens_on_this_machine_alone(watched: Watched) -> None:
    with socket.socket() as outside, pytest.raises(OSError):
        outside.connect(("127.0.0.2", watched.port))


def test_files_of_others_are_those_that_were_published(watched: Watched) -> None:
    listed = tomllib.loads((VENDOR / "vendor.toml").read_text("utf-8"))["file"]
    assert {one["name"]: one["sha256"] for one in listed} == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in VENDOR.iterdir()
        if file.suffix in (".js", ".css")
    }
    licences = (VENDOR / "LICENSES.txt").read_text("utf-8")
    assert [word for word in ("Zero-Clause BSD", "Leon Sorokin", "Pico") if word not in licences] == []
    for one in listed:
        assert watched.get(f"/static/vendor/{one['name']}").status == 200


def test_forms_need_no_further_package() -> None:
    """Starlette reads forms by python-multipart, which is here for other reasons, and not of the extra."""
    assert [file.name for file in VENDOR.parents[1].glob("*.py") if ".form()" in file.read_text("utf-8")] == []


def test_ctrl_c_ends_it_with_0(project: ProjectFolder) -> None:
    process = project.start("ui", "--no-open")
    line = process.stdout.readline().decode()
    assert line.startswith("Monitor: http://127.0.0.1:")
    assert line.endswith("   (Ctrl-C ends it)\n")
    interrupt(process)
    ran = ended(process)
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_a_port_that_is_taken_is_an_error_with_a_remedy(watched: Watched, project: ProjectFolder) -> None:
    ran = project.agac("ui", "--no-open", "--port", str(watched.port), code=2)
    assert f"port {watched.port} cannot be used: Address already in use" in ran.err
    assert "--port" in ran.err


def test_a_store_that_cannot_be_read_is_a_page_with_the_command(project: ProjectFolder) -> None:
    project.workflow(rows=1)
    project.run()
    with monitor(project) as started:
        with project.changed() as change:
            change("PRAGMA user_version = 1")
        answer = started.get("/")
        assert answer.status == 503
        assert "agac run" in answer.text


def test_json_is_the_address(project: ProjectFolder) -> None:
    process = project.start("ui", "--no-open", "--json")
    assert list(json.loads(process.stdout.readline())) == ["url"]
    process.send_signal(15)
    assert ended(process).code == 0
