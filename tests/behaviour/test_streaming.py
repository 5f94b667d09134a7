"""`--stream`: one row at a time, and its reply on standard error while it is written."""

import json
from typing import Any

import pytest
from scripted_server import Step, scripted
from support.project import ProjectFolder
from support.server import Faulty, Server

import agac
from agac.api.progress import show_reply
from agac.core.errors import ErrorType, RowError
from agac.core.redact import Redactor
from agac.engine.invocation import ShownReplies

PROMPT = "Review: ${text}"
WAYS = [("openai-chat", ""), ("openai-responses", ""), ("openai-responses", "?transport=ws"), ("anthropic", "")]


def streamed(project: ProjectFolder, output: str = "out.jsonl", **options: Any) -> agac.RunReport:
    given = agac.ProcessOptions(**{"prompt": PROMPT, "parallel": 8, "stream": True, **options})
    return agac.process(project.root / "data/rows.csv", project.root / output, given, project=project.root)


def results(project: ProjectFolder) -> list[str]:
    return [json.loads(line)["result"] for line in (project.root / "out.jsonl").read_text("utf-8").split("\n") if line]


@pytest.mark.parametrize(("dialect", "transport"), WAYS)
def test_each_reply_is_shown_as_it_is_written_one_row_after_the_other(
    project: ProjectFolder, server: Server, capsys: pytest.CaptureFixture[str], dialect: str, transport: str
) -> None:
    project.configure(server.base_url, dialect=dialect)
    project.numbered(3)
    assert streamed(project, model=f"local/small{transport}").exit_code == 0
    shown = "".join(f"--- row {number}\n{text}\n" for number, text in enumerate(results(project), 1))
    assert capsys.readouterr() == ("", shown)
    assert [count for (count,) in project.query("SELECT count(ttft) FROM attempt")] == [3]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"kind": "cut", "after_bytes": 700}, "[ProviderError: "),
        ({"kind": "stream_error"}, "[ProviderError: "),
        ({"kind": "server_error", "status": 503, "retry_after": 0.01}, "[ProviderError: "),
        ({"kind": "wrong_schema"}, "[SchemaMismatch: "),
    ],
)
def test_what_is_no_result_says_so_and_is_asked_again(
    project: ProjectFolder, faulty: Faulty, capsys: pytest.CaptureFixture[str], fault: dict[str, Any], said: str
) -> None:
    project.configure(faulty([{**fault, "at": [1]}]).base_url)
    project.numbered(1)
    report = streamed(project, json_schema={"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]})
    first, again = capsys.readouterr().err.split("--- row 1, attempt 2\n")
    assert first.startswith("--- row 1\n")
    assert said in first
    assert json.loads(again) == results(project)[0] == {"a": "x"}
    assert (report.exit_code, report.summary["calls"]["count"]) == (0, 2)


def test_stages_and_replicas_are_shown_one_after_the_other(
    project: ProjectFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Branches of one row, too, and a reply that came whole."""
    stages = [
        {"name": "a", "prompt": "${text}"},
        {"name": "b", "prompt": "so: ${text}", "needs": [], "replicas": 2},
    ]
    project.workflow(rows=1, stages=stages)
    with project.asking(scripted(Step("it came whole"))):
        agac.run("reviews", agac.RunOptions(stream=True), project=project.root)
    shown = capsys.readouterr().err.split("--- ")
    assert sorted(shown) == [
        "",
        *(f"row r-1, {one}\nit came whole\n" for one in ("stage a", "stage b, replica 1", "stage b, replica 2")),
    ]


def test_what_is_shown_controls_no_terminal_and_holds_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    replies = ShownReplies(show_reply, Redactor(["sk-of-the-tester-12345"]))
    replies.begin("row a\x07\nb, attempt 2")
    for piece in ("be\x1b[2J", "fore sk-of", "-the-tester-123", "45 and sk-of", " no\r\n", "\ud83d"):
        replies.piece(piece)
    replies.ended("all of it", str(RowError(ErrorType.TRUNCATED, "cut\x1b")))
    replies.begin("row 2")
    replies.piece("half of sk-o")
    replies.ended("", "broken off")
    replies.begin("row 3")
    assert capsys.readouterr().err == (
        "--- row a\\x07\\nb, attempt 2\nbe\\x1b[2Jfore [redacted] and sk-of no\\x0d\n\\ud83d\n[Truncated: cut\\x1b]\n"
        "--- row 2\nhalf of sk-o\n[broken off]\n"
    )


def test_batches_are_not_streamed(project: ProjectFolder) -> None:
    project.configure()
    project.workflow(rows=1, defaults={"run_mode": "batch"})
    words = ("data/rows.csv", "out.jsonl", "--prompt", PROMPT, "--run-mode", "batch")
    for command in (("run", "-a", "reviews"), ("process", *words)):
        ran = project.agac(*command, "--stream", code=2)
        assert "is asked in batches, whose replies come whole" in ran.err
    ran = project.agac("run", "-a", "reviews", "--stream", "--run-mode", "sync", "-q", code=0)
    assert ran.err.startswith("--- row r-1\n{")
    ran = project.agac("process", "data/rows.csv", "-", "--prompt", PROMPT, "--stream", code=0)
    assert f"--- row 1\n{json.loads(ran.out)['result']}\n" in ran.err
