"""Stages whose tasks OpenCode runs as agents: what becomes of sessions, what they are given and what they leave. The
program of these tests says what the real one does; `tests/opencode` has that one."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.opencode import FakeOpenCode
from support.processes import ended, interrupt, killed, wait_until
from support.project import ProjectFolder
from support.services import services, starts_service
from support.soak import few

import agac
from agac.core.redact import Redactor
from agac.core.types import Reply
from agac.providers.bodies import encode
from agac.providers.known_providers import SIMULATOR
from agac.providers.opencode_session import OPENCODE, Transcript

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="OpenCode is run on POSIX systems")
FORM = {"output_schema": {"a": "string"}}


@pytest.fixture
@starts_service
def program(project: ProjectFolder) -> FakeOpenCode:
    project.configure()
    return FakeOpenCode(project.root)


def stage(does: str = "answer", runtime: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {"name": "fix", "prompt": f"Look at ${{text}}. do:{does} now", **keys,
            "runtime": {"command": FakeOpenCode.command, **(runtime or {})}}  # fmt: skip


def outcome(project: ProjectFolder) -> Any:
    (row,) = project.envelopes()
    return row["result"] if row["ok"] else row["error"]["type"]


CASES: list[Any] = [
    # what the program does, keys of the stage and of its runtime; what the row comes to, how often it was started
    ("answer", {}, {}, "the answer", 1),
    ("form", FORM, {}, {"a": "mended"}, 2),
    ("never", FORM, {}, "SchemaMismatch", 2),
    ("never", FORM | {"repair": 0}, {}, "SchemaMismatch", 1),
    ("empty", {}, {}, "EmptyResponse", 1),
    ("cut", {}, {}, "Truncated", 1),
    ("silent", {}, {}, "ProviderError", 2),
    ("crash", {}, {}, "ProviderError", 2),
    ("locked", {"retries": {"delay": 0}}, {}, "the answer", 2),
    ("loops", {"max_turns": 3}, {}, "ToolLoopLimit", 1),
    ("large", {}, {"context": 40_000}, "BudgetExceeded", 1),
    ("hangs", {"timeout": 1}, {}, "Timeout", 1),
    ("refused", {}, {}, "ProviderError", 1),
    ("warned", {}, {}, "the answer", 1),
    ("stays", {"timeout": 60}, {}, "the answer", 1),
    ("deep", {}, {}, "the answer", 1),
    ("endless", {"timeout": 60}, {}, "ReplyTooLarge", 1),
]


@pytest.mark.parametrize(("does", "keys", "runtime", "result", "started"), few(CASES, 2))
def test_a_session_comes_to_its_end(
    project: ProjectFolder, program: FakeOpenCode, does: str, keys: dict[str, Any], runtime: dict[str, Any],
    result: Any, started: int,
) -> None:  # fmt: skip
    keys = {"retries": {"delay": 0}, **keys}
    report = project.run(project.workflow(stages=[stage(does, runtime, **keys)], rows=1))
    assert outcome(project) == result
    assert len(program.starts()) == report.invocation["calls"] == started
    assert program.running() == []
    assert not [one for one in program.starts() if Path(one["folder"]).parent.exists()], "folders are removed"
    project.assert_sound()


def test_usage_is_that_of_all_steps_also_where_the_session_failed(
    project: ProjectFolder, program: FakeOpenCode
) -> None:
    counts = "sum(input_tokens), sum(output_tokens), sum(cached_tokens), sum(reasoning_tokens), min(cost) > 0"
    for does, calls, steps in (("answer", 1, 2), ("crash", 2, 2), ("refused", 1, 1)):
        report = project.run(project.workflow(stages=[stage(does, retries={"delay": 0})], rows=1))
        run = report.summary["run"]
        of_run = "FROM attempt JOIN row ON row.key = row_key WHERE run_id = ?"
        found = project.query(f"SELECT count(*), {counts} {of_run}", run)
        assert found == [(calls, 143 * steps, 15 * steps, 40 * steps, 5 * steps, 1)], does


@pytest.mark.parametrize(
    ("steps", "given", "made"),
    [
        ([(30, 5), (40, 6)], 70, 11),
        ([(30, 5), (0, 6)], None, 11),
        ([(0, 0), (40, 6)], None, None),
    ],
)
def test_what_one_step_did_not_count_is_unknown_for_its_session(
    steps: list[tuple[int, int]], given: int | None, made: int | None
) -> None:
    session = Transcript((9, 1_000), bytes, texts=["<think>Hm.</think>It is."])
    for tokens in steps:
        part = {"tokens": dict(zip(("input", "output"), tokens, strict=True)), "reason": "stop"}
        session.take(json.dumps({"type": "step_finish", "part": part}).encode())
    body = encode({**session.body(0, 0.0)})
    reply = OPENCODE.parse(200, {}, body, SIMULATOR, "small", Redactor())
    assert isinstance(reply, Reply)
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.text) == (given, made, "It is.")


def test_a_session_goes_on_in_its_folder(project: ProjectFolder, program: FakeOpenCode) -> None:
    project.write("given/a.txt", "hello")
    project.write("given/.env", "PASSWORD=x")
    project.write("elsewhere/b.txt", "of no hash")
    (project.root / "given" / "link").symlink_to(project.root / "elsewhere")
    project.run(project.workflow(stages=[stage("form", {"files": "given"}, **FORM)], rows=3))
    first, again = program.starts()[0], [one for one in program.starts() if "--session" in one["words"]]
    assert first["files"] == ["a.txt"]
    assert len(again) == 3
    for one in again:
        (before,) = [old for old in program.starts() if f"ses_{old['pid']}" in one["words"]]
        assert one["folder"] == before["folder"]
        assert one["env"]["HOME"] == before["env"]["HOME"]
        assert one["files"] == ["a.txt", "first"]
        assert one["prompt"].startswith("Your reply does not have the form")


def test_a_program_is_given_the_stages_model_and_no_secret_but_its_own(
    project: ProjectFolder, program: FakeOpenCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_KEY", 'key-"of-the-model')
    monkeypatch.setenv("OTHER_SECRET", "of-somebody-else")
    project.configure("http://127.0.0.1:1/v1", api_key="${LOCAL_KEY}", headers={"x-team": "data"})
    model = "local/m?temperature=0.5&seed=7&max_tokens=300"
    rules = {"permission": {"edit": "allow", "bash": {"*": "deny", "ls": "allow"}}}
    keys = {"model": model, "instructions": "Be kind {env:HOME}", "max_turns": 4, **FORM}
    project.run(project.workflow(stages=[stage("form", rules, **keys)], rows=1))
    env = program.starts()[0]["env"]
    config = json.loads(env["OPENCODE_CONFIG_CONTENT"])
    assert "OTHER_SECRET" not in env
    assert "LOCAL_KEY" not in env
    assert "key-" not in env["OPENCODE_CONFIG_CONTENT"] + str(program.starts()[0]["words"])
    assert json.loads(f'"{env["AGAC_KEY"]}"') == 'key-"of-the-model'
    own = config["provider"]["agac"]
    assert own["npm"] == "@ai-sdk/openai-compatible"
    assert own["options"]["baseURL"] == "http://127.0.0.1:1/v1"
    assert own["options"]["apiKey"] == "{env:AGAC_KEY}"
    assert own["models"]["m"]["id"] == "m"
    assert own["models"]["m"]["options"] == {"seed": 7}
    assert own["models"]["m"]["limit"] == {"context": 128_000, "output": 300}
    assert config["agent"]["build"] == {"steps": 5, "temperature": 0.5}
    assert next(iter(config["permission"])) == "*"
    assert config["permission"]["*"] == "deny"
    assert config["permission"]["bash"] == {"*": "deny", "ls": "allow"}
    assert (config["share"], config["autoupdate"]) == ("disabled", False)
    assert "Be kind" not in env["OPENCODE_CONFIG_CONTENT"], "where {env:…} would be replaced"
    stored = b"".join(path.read_bytes() for path in (project.root / ".agac").rglob("*") if path.is_file())
    assert b"of-the-model" not in stored


def test_no_half_of_a_key_is_kept_where_texts_are_cut(
    project: ProjectFolder, program: FakeOpenCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_KEY", "sk-one-two-three-four-five")
    project.configure("http://127.0.0.1:1/v1", api_key="${LOCAL_KEY}")
    project.run(project.workflow(stages=[stage("tells_its_key", model="local/m")], rows=1))
    (attempt,) = agac.inspect("last", "r-1", project=project.root).rows[0]["stages"][0]["attempts"]  # type: ignore[index]
    assert "redacted" in attempt["reply"]
    assert "sk-o" not in attempt["reply"]
    assert "-five" not in attempt["reply"]


def test_a_card_of_type_agent_says_the_instructions(project: ProjectFolder, program: FakeOpenCode) -> None:
    project.write("agentcards/one.md", "---\nname: one\nrequest_params: {max_iterations: 7}\n---\nBe kind.\n")
    project.run(project.workflow(stages=[stage("tells", agent="one")], rows=1))
    assert outcome(project) == "Be kind."
    config = json.loads(program.starts()[0]["env"]["OPENCODE_CONFIG_CONTENT"])
    assert config["agent"]["build"]["steps"] == 8


def test_a_wrong_key_stops_the_run(project: ProjectFolder, program: FakeOpenCode) -> None:
    report = project.run(project.workflow(stages=[stage("key")], rows=5))
    assert report.exit_code == 1
    assert len(program.starts()) <= 2, "max_agents"


def test_no_more_run_at_a_time_than_max_agents_and_they_share_data_folders(
    project: ProjectFolder, program: FakeOpenCode
) -> None:
    project.run(project.workflow(stages=[stage("answer", {"max_agents": 3})], rows=8))
    homes = {one["env"]["HOME"] for one in program.starts()}
    assert 1 <= len(homes) <= 3
    assert len({one["folder"] for one in program.starts()}) == 8


def test_the_transcript_is_kept_and_shown(project: ProjectFolder, program: FakeOpenCode) -> None:
    project.run(project.workflow(stages=[stage()], rows=1))
    report = agac.inspect("last", "r-1", project=project.root)
    (attempt,) = report.rows[0]["stages"][0]["attempts"]  # type: ignore[index]
    doc = json.loads(attempt["reply"])
    assert (doc["exit"], doc["calls"], doc["session"][:4]) == (0, 2, "ses_")
    assert [one["type"] for one in doc["events"]].count("step_finish") == 2
    assert doc["events"][0]["part"]["state"]["output"].endswith("… (50,000 characters)")


def test_an_unchanged_stage_is_not_run_again_and_another_permission_is(
    project: ProjectFolder, program: FakeOpenCode
) -> None:
    project.write("given/a.txt", "hello")

    def started(**runtime: Any) -> int:
        before = len(program.starts())
        project.run(project.workflow(stages=[stage("answer", {"files": "given", **runtime})], rows=1))
        return len(program.starts()) - before

    assert [started(), started(), started(max_agents=5)] == [1, 0, 0]
    assert started(permission={"edit": "allow"}) == 1
    project.write("given/a.txt", "changed")
    assert [started(), started(version="1.18")] == [1, 1]


@services
def test_a_program_that_is_missing_or_of_another_version_is_said_before_any_row(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.configure()
    name = project.workflow(stages=[stage()], rows=1)
    (problem,) = [one for one in agac.validate(name, project=project.root).problems if "npm" in one.message]
    assert problem.severity == "warning"
    with pytest.raises(agac.UsageError, match="the program 'bin/opencode' of runtime: opencode is not found") as raised:
        project.run(name)
    assert "npm install -g opencode-ai" in str(raised.value.remedy)
    FakeOpenCode(project.root)
    name = project.workflow(stages=[stage(runtime={"version": "1.17"})], rows=1)
    monkeypatch.setenv("OTHER_SECRET", "of-somebody-else")
    with pytest.raises(agac.UsageError, match=r"has the version 1\.18\.33, not 1\.17"):
        project.run(name)
    assert "OTHER_SECRET" not in (project.root / "bin" / "version.json").read_text("utf-8")
    (project.root / "bin" / "opencode").write_text("\0no program", "utf-8")
    with pytest.raises(agac.UsageError, match="has the version unknown"):
        project.run(name)


REFUSED: list[Any] = [
    ({"run_mode": "batch"}, "no batch can hold their requests; write `run_mode: sync`"),
    ({"tools": ["read_file"]}, "tools does not go with runtime: opencode"),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages does not go"),
    ({"runtime": {"permission": {"bash": "ask"}}}, "allow"),
    ({"runtime": {"files": "nowhere"}}, "matches no file"),
    ({"agent": "both"}, "runtime does not go with a card of type chain; give the stage a card of type agent"),
    ({"model": "simulator-anthropic/m?top_k=7"}, "OpenCode cannot ask simulator-anthropic/m with top_k; leave it out"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED)
def test_what_no_session_can_do_is_refused(
    project: ProjectFolder, program: FakeOpenCode, keys: dict[str, Any], message: str
) -> None:
    project.write("agentcards/one.md", "---\nname: one\n---\nBe kind.\n")
    project.write("agentcards/both.md", "---\nname: both\ntype: chain\nsequence: [one, one]\n---\n")
    name = project.workflow(stages=[stage() | keys], rows=1)
    problems = [one.message for one in agac.validate(name, project=project.root).problems]
    assert any(message in one for one in problems), problems


def test_a_budget_reserves_what_a_session_can_cost_at_most(project: ProjectFolder, program: FakeOpenCode) -> None:
    keys = {"max_turns": 3, "model": "simulator/small?max_tokens=1000"}
    tokens = 4 * (9_000 + 1_000)
    for budget, done in ((tokens - 1, 0), (tokens, 1)):
        name = project.workflow(stages=[stage("answer", {"context": 9_000}, **keys)], rows=1, budget={"tokens": budget})
        assert project.run(name).rows.done == done
    name = project.workflow(stages=[stage(**keys)], rows=1, row_budget={"turns": 3})
    with pytest.raises(agac.SpecError, match="bound them by `max_turns`"):
        project.run(name)


def test_plan_says_that_the_calls_of_a_session_are_not_known(project: ProjectFolder, program: FakeOpenCode) -> None:
    project.workflow(stages=[stage(max_turns=5)], rows=2)
    assert "is not known, two calls in each are a guess; 6 at most" in project.agac("plan", "reviews").out
    project.run("reviews", limit=1)
    planned = (
        project.plan_report("reviews")
        if hasattr(project, "plan_report")
        else agac.plan("reviews", project=project.root)
    )
    (one,) = planned.stages
    assert (one.estimate.basis, one.estimate.input_tokens) == ("history", 286)


def test_row_runs_and_tasks_in_python_take_it(
    project: ProjectFolder, program: FakeOpenCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{program.folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(project.root)
    project.rows([{"id": "1", "text": "x"}])
    ran = project.agac(
        "process", "data/rows.csv", "out.jsonl", "--prompt", "See {{text}}", "--runtime", "opencode", "-m",
        "simulator/small", env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "the answer" in (project.root / "out.jsonl").read_text()
    runtime = agac.OpenCodeRuntime(model="simulator/small", permission={"edit": "allow"})
    (found,) = agac.run(task="See {text}", inputs=[{"text": "y"}], runtime=runtime, project=project.root)
    assert found.output == "the answer"
    assert json.loads(program.starts()[-1]["env"]["OPENCODE_CONFIG_CONTENT"])["permission"]["edit"] == "allow"


@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_no_process_outlives_the_run(project: ProjectFolder, program: FakeOpenCode, how: str) -> None:
    project.workflow(stages=[stage("hangs", {"max_agents": 2})], rows=2)
    process = project.start("run", "-a", "reviews")
    wait_until(lambda: len(program.running()) >= 4, "two sessions and their children", process)
    base = Path(program.starts()[0]["folder"]).parent
    if how == "kill":
        killed(process)
    else:
        for _ in range(2):  # the second gives up what is under way
            interrupt(process)
        assert ended(process).code == 130
    wait_until(lambda: not program.running() and not base.exists(), "the end of all processes and folders")
    assert len(program.starts()) == 2
    project.workflow(stages=[stage("answer", {"max_agents": 2})], rows=2)
    report = project.run("reviews")
    assert report.rows.done == 2
    assert report.exit_code == 0


def test_a_killed_session_is_begun_anew_and_a_finished_one_never(project: ProjectFolder, program: FakeOpenCode) -> None:
    project.rows([{"id": "1", "text": "do:answer"}, {"id": "2", "text": "do:hangs"}])
    own = stage() | {"prompt": "${text}"}
    project.workflow(stages=[own | {"concurrency": 1}])
    process = project.start("run", "-a", "reviews")
    wait_until(lambda: len(program.starts()) == 2 and len(program.running()) >= 2, "the second session", process)
    killed(process)
    wait_until(lambda: not program.running(), "the end of its processes")
    report = project.run("reviews", limit=None, input=None) if False else None
    text = (program.folder / "program.py").read_text("utf-8")
    (program.folder / "program.py").write_text(
        text.replace('case "hangs":', 'case "hung":').replace('case "answer":', 'case "answer" | "hangs":'), "utf-8"
    )
    report = project.run("reviews")
    assert report.rows.done == 2
    assert [one["prompt"] for one in program.starts()] == ["do:answer", "do:hangs", "do:hangs"]
    assert report.invocation["lost_calls_at_most"] >= 1
