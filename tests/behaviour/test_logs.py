"""The log: what it says of a call, for people and for machines, and that it costs nothing where nobody reads it."""

import json
from datetime import datetime
from typing import Any

import pytest
from behaviour.scripted_server import Step, scripted
from support.project import SENTIMENT, ProjectFolder, Ran

from agac.core.redact import Redactor
from agac.engine.ask import attempts, caller

GOOD = '{"sentiment":"positive","reason":"it is"}'
BAD = '{"sentiment":"excellent","reason":"r"}'


def logged(project: ProjectFolder, *flags: str) -> tuple[Ran, str]:
    ran = project.agac("--log-file", "run.log", *flags, "run", "-a", "reviews")
    return ran, (project.root / "run.log").read_text("utf-8")


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def calls(text: str) -> list[dict[str, Any]]:
    return [line for line in objects(text) if "request" in line]


@pytest.fixture
def asked(project: ProjectFolder) -> ProjectFolder:
    """One row, asked twice: the first answer misses its schema."""
    project.rows([{"id": "r-1", "text": "größer\nals"}])
    project.workflow(
        stages=[{"name": "one", "instructions": "Be brief.", "prompt": "${text}", "output_schema": SENTIMENT}]
    )
    return project


def test_json_tells_each_call_whole(asked: ProjectFolder) -> None:
    with asked.asking(scripted(Step(BAD), Step(GOOD))):
        ran, text = logged(asked, "--log-level", "debug", "--log-format", "json")
    assert ran.code == 0
    assert ran.err == ""
    for line in objects(text):
        assert list(line)[:4] == ["time", "level", "logger", "message"]
        assert datetime.fromisoformat(line["time"]).utcoffset() is not None
        assert line["logger"].startswith("agac.")
    first, second = calls(text)
    told = {
        "run": 1, "row": "r-1", "stage": "one", "attempt": 1, "purpose": "ask", "model": "local/small",
        "answered_by": "small-2", "status": 200, "error": "SchemaMismatch", "input_tokens": 10, "output_tokens": 5,
        "cost_usd": None, "reply": BAD,
    }  # fmt: skip
    assert first.items() >= told.items()
    assert first["duration_ms"] > 0
    assert first["request"][-1] == {"role": "user", "text": "größer\nals"}
    assert first["request"][0]["role"] == "system"
    assert first["request"][0]["text"].startswith("Be brief.")
    assert (second["attempt"], second["purpose"], second["error"], second["reply"]) == (2, "repair", None, GOOD)
    assert any(message["text"] == BAD for message in second["request"])  # a re-ask quotes what it is about
    began, *_, ended = objects(text)
    assert (began["level"], began["run"], began["workflow"]) == ("info", 1, "reviews")
    assert (ended["level"], ended["run"], ended["rows_failed"]) == ("info", 1, 0)


def test_text_tells_the_same_for_people(asked: ProjectFolder) -> None:
    with asked.asking(scripted(Step(GOOD))):
        _, text = logged(asked, "--log-level", "debug")
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if "attempt 1 (ask) to local/small: status 200" in line)
    assert "10 tokens in, 5 out, ok" in lines[at]
    assert lines[at + 1].startswith("    system: Be brief.")
    rest = "\n".join(lines[at:])
    assert "\n    user: größer\n    als\n" in rest
    assert f"\n    reply: {GOOD}\n" in rest


def test_what_is_waited_for_is_told_at_info(project: ProjectFolder) -> None:
    project.workflow(rows=1)
    with project.asking(scripted(Step(status=500, headers={"retry-after-ms": "1"}, body="{}"), Step(GOOD))):
        _, text = logged(project, "--log-level", "info", "--log-format", "json")
    assert calls(text) == []
    (waited,) = [line for line in objects(text) if "wait_s" in line]
    told = {"row": "r-1", "stage": "classify", "attempt": 1, "status": 500, "error": "ProviderError"}
    assert waited.items() >= told.items()


def test_the_flags_may_stand_after_the_command_and_warning_is_the_default(asked: ProjectFolder) -> None:
    with asked.asking(scripted(Step(GOOD))):
        assert logged(asked)[1] == ""
        ran = asked.agac("run", "-a", "reviews", "-q", "--fresh", "--log-level", "debug", "--log-format=json")
    assert calls(ran.err)
    refused = asked.agac("run", "-a", "reviews", "--log-format", "yaml", code=2)
    assert "'yaml' is not one of 'text', 'json'" in refused.err


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_long_text_is_cut_and_says_by_how_much(form: str, project: ProjectFolder) -> None:
    length = attempts.MOST_CHARACTERS
    project.rows([{"id": "r-1", "text": "a" * (length + 1234)}])
    project.workflow(stages=[{"name": "one", "prompt": "${text}"}])
    with project.asking(scripted(Step("b" * length))):
        _, text = logged(project, "--log-level", "debug", "--log-format", form)
    assert "a" * length + "… (1,234 more characters)" in text
    assert "a" * (length + 1) not in text
    assert "b" * length in text
    assert text.count("more characters") == 1


def test_odd_characters_stop_no_log(project: ProjectFolder) -> None:
    """A lone surrogate, which UTF-8 cannot hold, comes as JSON escape from a server."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "x \ud800 y\x00\u2028"}, "finish_reason": "stop"}
    project.workflow(rows=1, stages=[{"name": "one", "prompt": "${text}"}])
    with project.asking(scripted(Step(body=json.dumps({"model": "m", "choices": [choice]})))):
        ran, text = logged(project, "--log-level", "debug", "--log-format", "json")
    assert "Logging error" not in ran.err
    lines = [json.loads(line) for line in text.split("\n") if line]
    assert any(line.get("reply", "").startswith("x ") for line in lines)


def test_nothing_is_made_for_a_log_that_nobody_keeps_and_secrets_are_taken_out_before_a_text_is_cut(
    asked: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller, "log_call", None)
    with asked.asking(scripted(Step(BAD), Step(GOOD))):
        assert asked.run().exit_code == 0
    secret = "s3cret-value-0123456789"
    text = "a" * (attempts.MOST_CHARACTERS - 5) + secret
    assert "s3cre" not in attempts._cut(text, Redactor([secret]).clean)
