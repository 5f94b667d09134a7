"""A canary key wherever a key can be: after a failing run that logs everything it is nowhere to be found, not in the
store, a log, an output or a message."""

import base64
import json
import zlib
from collections.abc import Mapping
from urllib.parse import quote

import pytest
import yaml
from behaviour.scripted_server import Step, scripted
from support.project import ProjectFolder, Ran
from support.soak import few

CANARY = 'canary-7f/3a+91=Zq"c0ffee'
FORMS = {
    "plain": CANARY.encode(),
    "JSON": json.dumps(CANARY)[1:-1].encode(),
    "JSON with escaped slashes": json.dumps(CANARY)[1:-1].replace("/", "\\/").encode(),
    "JSON in JSON in JSON": json.dumps(json.dumps(json.dumps(CANARY)[1:-1])[1:-1])[1:-1].encode(),
    "page": CANARY.replace('"', "\\u0022").encode(),
    "URL": quote(CANARY, safe="").encode(),
    "base64": base64.b64encode(CANARY.encode()),
}


def is_nowhere(project: ProjectFolder, *runs: Ran, forms: Mapping[str, bytes] = FORMS) -> None:
    files = {path: path.read_bytes() for path in sorted(project.root.rglob("*")) if path.is_file()}
    replies = project.query("SELECT reply FROM attempt WHERE typeof(reply) = 'blob'")
    for name, form in forms.items():
        for path, content in files.items():
            assert path.name == ".env" or form not in content, f"{name} in {path.name}"
        for (reply,) in replies:
            assert form not in zlib.decompress(reply), f"{name} in a reply"
        for ran in runs:
            assert form.decode() not in ran.out, name
            assert form.decode() not in ran.err, name
            assert "Traceback" not in ran.err


def prepared(project: ProjectFolder, base_url: str, **provider: object) -> None:
    row = {"dialect": "openai-chat", "base_url": base_url, "structured": "json_schema", **provider}
    project.write("agac.yml", yaml.safe_dump({"providers": {"local": row}, "defaults": {"model": "local/small"}}))
    project.workflow(rows=3, stop_loss=False)


def debugged(project: ProjectFolder, *words: str, env: dict[str, str], form: str = "text") -> Ran:
    log = str(project.root / "debug.log")
    return project.agac("--log-level", "debug", "--log-format", form, "--log-file", log, *words, env=env)


ECHOES = {
    "unauthorized": lambda text: Step(status=401, body=json.dumps({"error": {"message": f"bad key {text}"}})),
    "bad request": lambda text: Step(
        status=400, body=json.dumps({"error": {"message": f"header {text}", "code": text, "param": f"Bearer {text}"}})
    ),
    "JSON in JSON in JSON": lambda text: Step(
        status=400, body=json.dumps({"error": {"message": json.dumps({"body": json.dumps({"key": text})})}})
    ),
    "escaped for a page": lambda text: Step(
        status=400, body=json.dumps({"error": {"message": "key " + text.replace('"', "\\u0022")}})
    ),
    "escaped slashes": lambda text: Step(
        status=400, body=json.dumps({"error": {"message": f"header {text}"}}).replace("/", "\\/")
    ),
    "a text that is cut, and a header": lambda text: Step(
        status=400, headers={"x-request-id": text}, body=json.dumps({"error": {"message": "x" * 3000 + text}})
    ),
    "server error": lambda text: Step(status=500, headers={"retry-after-ms": "1"}, body=f"<html>{text}</html>"),
    "answer": lambda text: Step(json.dumps({"sentiment": "positive", "reason": f"the key is {text}"})),
    "refused answer": lambda text: Step(f"I was called with {text}"),
    "header": lambda text: Step(status=500, headers={"x-echo": quote(text), "retry-after-ms": "1"}, body="{}"),
    "redirect": lambda text: Step(status=302, headers={"location": f"http://127.0.0.1:9/{quote(text)}"}, body=""),
}


LOOKS = (("export", "-a", "reviews", "--partial"), ("status", "--json"), ("inspect", "last", "r-1"), ("runs",))


CAME_BACK = [
    (source, form, place)
    for source, form in (("environment", "text"), (".env", "text"), ("header", "text"), ("environment", "json"))
    for place in ECHOES
]


@pytest.mark.parametrize(("source", "form", "place"), few(CAME_BACK, 5))
def test_a_key_that_comes_back_is_hidden(source: str, form: str, place: str, project: ProjectFolder) -> None:
    with scripted(ECHOES[place](CANARY)) as server:
        if source == "header":
            prepared(project, server.base_url, headers={"x-team": "${CANARY_KEY}"})
        else:
            prepared(project, server.base_url, api_key="${CANARY_KEY}")
        env = {} if source == ".env" else {"CANARY_KEY": CANARY}
        if source == ".env":
            project.write(".env", f"CANARY_KEY='{CANARY}'\n")
        ran = debugged(project, "run", "-a", "reviews", env=env, form=form)
        sent = server.headers[0]
        assert CANARY in (sent.get("authorization", "") + sent.get("x-team", ""))  # it was really used
    # what is shown is what is stored, which is looked through each time: each place and each source is shown once
    shown = LOOKS if source == "environment" or place == "answer" else ()
    is_nowhere(project, ran, *(project.agac(*words, env=env) for words in shown))
    logged = (project.root / "debug.log").read_text("utf-8").splitlines()
    assert any("request" in json.loads(line) for line in logged) if form == "json" else logged


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_key_within_a_prompt_is_in_no_log(form: str, project: ProjectFolder) -> None:
    """The row holds it, so the store does too; a log is what people paste into issues."""
    with scripted(Step(f"you said {CANARY}"), Step(json.dumps({"sentiment": "positive", "reason": CANARY}))) as server:
        prepared(project, server.base_url, api_key="${CANARY_KEY}")
        project.rows([{"id": f"r {CANARY}", "text": f"my key is {CANARY}, {json.dumps(CANARY)}"}])
        ran = debugged(project, "run", "-a", "reviews", "--quiet", env={"CANARY_KEY": CANARY}, form=form)
        assert CANARY in server.asked[0]["messages"][-1]["content"]
    log = (project.root / "debug.log").read_text("utf-8")
    assert "my key is [redacted]" in log
    for name, secret in FORMS.items():
        assert secret.decode() not in log, name
        assert secret.decode() not in ran.err, name


def test_a_key_in_an_address_is_hidden_also_where_nobody_answers(project: ProjectFolder) -> None:
    env = {"CANARY_KEY": CANARY.replace("/", "").replace('"', "")}
    said = json.dumps({"error": {"message": f"no such path /{env['CANARY_KEY']}/v1"}})
    with scripted(Step(status=404, body=said)) as server:
        prepared(project, server.base_url.replace("/v1", "/${CANARY_KEY}/v1"))
        ran = debugged(project, "run", "-a", "reviews", env=env)
    prepared(project, "http://127.0.0.1:9/${CANARY_KEY}/v1", api_key="${CANARY_KEY}")
    project.workflow(stop_loss=False, row_timeout=0.3)
    unanswered = debugged(project, "run", "-a", "reviews", "--fresh", env=env)
    assert unanswered.code == 3
    is_nowhere(project, ran, unanswered, forms={"in an address": env["CANARY_KEY"].encode()})


def test_a_bug_report_holds_no_key(project: ProjectFolder) -> None:
    """A Python schema that fails in a way that nobody expects."""
    with scripted("{}") as server:
        prepared(project, server.base_url, api_key="${CANARY_KEY}")
        project.write(
            "odd.py",
            "import os\nfrom pydantic import BaseModel, model_validator\n\n\nclass Odd(BaseModel):\n    a: int = 0\n\n"
            "    @model_validator(mode='after')\n    def fail(self):\n        key = os.environ['CANARY_KEY']\n"
            "        raise RuntimeError('odd')\n",
        )
        project.workflow(stages=[{"name": "one", "prompt": "${text}", "output_schema": "python:odd.Odd"}])
        ran = debugged(project, "run", "-a", "reviews", env={"CANARY_KEY": CANARY, "TMPDIR": str(project.root)})
    is_nowhere(project, ran)


def test_a_key_written_into_agac_yml_is_refused_without_being_shown(project: ProjectFolder) -> None:
    key = "sk-canary-0123456789"
    prepared(project, "http://127.0.0.1:9/v1", api_key=key, headers={"x-team": key})
    ended = project.agac("run", "-a", "reviews", code=2)
    assert ended.err.count("looks like a secret") == 2
    assert "canary" not in ended.out + ended.err


def test_the_dummy_key_of_a_local_server_is_a_word_that_answers_may_hold(project: ProjectFolder) -> None:
    with scripted("I run on ollama, and the token of the day is tok-abcdef987654") as server:
        prepared(project, server.base_url, api_key="${LOCAL_KEY}", headers={"x-token": "${DAY_TOKEN}"})
        project.write(".env", "LOCAL_KEY=ollama\nDAY_TOKEN=tok-abcdef987654\n")
        project.run(project.workflow(rows=1, stages=[{"name": "say", "prompt": "${text}"}]))
    assert project.output() == ["I run on ollama, and the token of the day is [redacted]"]


def test_a_header_as_it_is_written_is_in_no_message_but_may_be_in_an_answer(project: ProjectFolder) -> None:
    headers = {"x-team": "green-kangaroos", "x-auth-user": "blue-kangaroos"}
    echo = json.dumps({"error": {"message": "no green-kangaroos or blue-kangaroos here"}})
    with scripted("green-kangaroos and blue-kangaroos", Step(status=400, body=echo)) as server:
        prepared(project, server.base_url, headers=headers)
        project.workflow(rows=2, stages=[{"name": "say", "prompt": "${text}"}])
        ran = debugged(project, "run", "-a", "reviews", "--concurrency", "1", env={})
    assert project.output() == ["green-kangaroos and [redacted]"]
    (failed,) = project.envelopes(file="errors.jsonl")
    assert "no [redacted] or [redacted] here" in failed["error"]["message"]
    logged = (project.root / "debug.log").read_text("utf-8")
    for text in (ran.out, ran.err, logged, str(project.query("SELECT error_message FROM attempt"))):
        assert "kangaroos" not in text
