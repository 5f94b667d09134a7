"""Keys and header values never leave memory: not into the store, a log, an output or a message."""

import json
import zlib
from pathlib import Path

import pytest
from scripted_server import Step, scripted
from support.project import ProjectFolder
from support.server import Server

KEY = "sk-canary-0123456789"
HEADER = "hdr-canary-9876543210"
SAY = [{"name": "say", "prompt": "${text}"}]


def found_in(folder: Path, *secrets: str) -> list[str]:
    """Files below `folder` that hold a secret, as bytes; the files that may hold it are left out."""
    own = {".env", "agac.yml"}
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in own]
    assert files
    return [str(path) for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]


def assert_hidden(project: ProjectFolder, *secrets: str) -> None:
    assert found_in(project.root, *secrets) == []
    for (reply,) in project.query("SELECT reply FROM attempt WHERE typeof(reply) = 'blob'"):
        assert not any(secret.encode() in zlib.decompress(reply) for secret in secrets)


@pytest.mark.parametrize("place", ["env", ".env"])
def test_a_key_that_a_server_echoes_is_hidden_everywhere(project: ProjectFolder, place: str) -> None:
    error = {"error": {"message": f"Incorrect API key provided: {KEY}.", "code": "weird", "param": f"Bearer {KEY}"}}
    steps = [
        Step(status=400, body=json.dumps(error)),
        Step(status=500, body=f"<html>{KEY}</html>", headers={"retry-after": "0", "x-request-id": KEY}),
        Step(status=400, body=json.dumps({"error": {"message": "x" * 3000 + KEY}})),
        Step(status=401, body=json.dumps(error)),
    ]
    with project.asking(scripted(*steps), api_key="${CANARY_KEY}") as server:
        if place == ".env":
            project.write(".env", f"CANARY_KEY={KEY}\n")
        project.workflow(rows=6, stages=SAY)
        arguments = ["--log-level", "debug", "--log-file", "agac.log", "run", "-a", "reviews", "--concurrency", "1"]
        ended = project.agac(*arguments, env={"CANARY_KEY": KEY} if place == "env" else None)
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert ended.code == 1
    assert KEY not in ended.out + ended.err
    assert "[redacted]" in ended.err
    assert (project.root / "agac.log").stat().st_size > 0
    assert_hidden(project, KEY)
    assert project.agac("export", "-a", "reviews", "--partial").code == 0
    assert_hidden(project, KEY)


def test_a_key_written_into_agac_yml_is_refused_without_being_shown(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, api_key=KEY, headers={"x-team": KEY})
    project.workflow(rows=1, stages=SAY)
    ended = project.agac("run", "-a", "reviews", code=2)
    assert ended.err.count("looks like a secret") == 2
    assert KEY not in ended.out + ended.err
    assert server.account()["requests"] == 0


def test_header_values_from_the_environment_are_hidden(project: ProjectFolder) -> None:
    with project.asking(
        scripted(Step(status=400, body=json.dumps({"error": {"message": f"what is {HEADER}?"}}))),
        headers={"x-team": "${TEAM_HEADER}"},
    ) as server:
        project.write(".env", f"TEAM_HEADER={HEADER}\n")
        project.workflow(rows=2, stages=SAY)
        ended = project.agac("--log-level", "debug", "run", "-a", "reviews")
        assert server.headers[0]["x-team"] == HEADER
    assert ended.code == 3
    assert HEADER not in ended.out + ended.err
    assert project.envelopes()[0]["error"]["message"].count("[redacted]") == 1
    assert_hidden(project, HEADER)


@pytest.mark.parametrize("slash", ["/", "\\/"])
def test_a_key_with_characters_that_json_escapes_is_hidden(project: ProjectFolder, slash: str) -> None:
    key = 'sk-"canary"\\0123/456'
    echoed = json.dumps({"error": {"message": f"bad key {key}"}}).replace("/", slash)
    with project.asking(scripted(Step(status=400, body=echoed)), api_key="${CANARY_KEY}"):
        project.workflow(rows=1, stages=SAY)
        ended = project.agac("run", "-a", "reviews", env={"CANARY_KEY": key})
    assert ended.code == 3
    assert key not in ended.out + ended.err
    escaped = json.dumps(key)[1:-1]
    assert_hidden(project, key, escaped, escaped.replace("/", slash))


def test_an_address_from_the_environment_is_hidden_too(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url.replace("/v1", "/${CANARY_PATH}"))
    project.workflow(rows=1, stages=SAY)
    project.agac("run", "-a", "reviews", env={"CANARY_PATH": KEY})
    assert_hidden(project, KEY)


def test_a_key_in_the_project_environment_is_not_in_status_or_json(project: ProjectFolder, server: Server) -> None:
    project.write(".env", f"LOCAL_KEY={KEY}\n")
    project.configure(server.base_url, api_key="${LOCAL_KEY}", headers={"x-team": "${LOCAL_KEY}"})
    project.workflow(rows=2, stages=SAY)
    said = [project.agac("--log-level", "debug", "run", "-a", "reviews", "--json"), project.agac("status", "--json")]
    assert [ran.code for ran in said] == [0, 0]
    assert not any(KEY in ran.out + ran.err for ran in said)
    assert_hidden(project, KEY)


def test_the_dummy_key_of_a_local_server_is_a_word_that_answers_may_hold(project: ProjectFolder) -> None:
    with project.asking(
        scripted("I run on ollama, and the token of the day is tok-abcdef987654"),
        api_key="${LOCAL_KEY}",
        headers={"x-token": "${DAY_TOKEN}"},
    ):
        project.write(".env", "LOCAL_KEY=ollama\nDAY_TOKEN=tok-abcdef987654\n")
        project.run(project.workflow(rows=1, stages=SAY))
    assert project.output() == ["I run on ollama, and the token of the day is [redacted]"]
