"""`agac ci` in the jobs of forges: real repositories, the real command, and events as the forges write them."""

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.events import merge_request, pull_request, push
from support.processes import ended, interrupt, listening, quiet_account, wait_until
from support.project import SENTIMENT, ProjectFolder, Ran
from support.repository import Git, committed
from support.server import Faulty, Server

from agac.api.ci import check_change
from agac.api.ci_events import Event, event_of
from agac.api.findings import Findings, read_findings
from agac.cli.markdown import MAX_COMMENT, comment_text
from agac.core.errors import UsageError

STAGES: list[dict[str, Any]] = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT},
    {"name": "reply", "prompt": "Answer ${text}: ${classify.sentiment}"},
]
CHANGED = [STAGES[0], {**STAGES[1], "prompt": "Answer kindly ${text}: ${classify.sentiment}"}]
TEST = "rows: [{id: a, text: I love it}]\n"


@pytest.fixture
def ran(project: ProjectFolder, server: Server) -> ProjectFolder:
    """Ten rows of main are done; a branch is begun."""
    project.asks(server, prices={"small": {"input": 1, "output": 2}}, batch="openai")
    project.numbered(10)
    project.run(project.workflow(stages=STAGES))
    project.write("tests/workflows/reviews.yml", TEST)
    committed(project)
    return project


def ci(project: ProjectFolder, code: int, *words: str, **env: str) -> Ran:
    return project.agac("ci", *words, env=env, code=code)


def test_a_pull_request_is_told_in_one_comment(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    Git(ran.root).commit()
    summary = ran.root / ".agac/summary.md"
    ended = ci(ran, 0, **pull_request(ran), GITHUB_STEP_SUMMARY=str(summary))
    first, headline, *rest = ended.out.splitlines()
    assert first == "<!-- agac:. -->"
    assert headline == (
        "**1 workflow changed** · 10 stored results stay valid; 10 tasks would run, $0.0005 (+$0.0005) · 1 test passed"
    )
    assert "- prompt of reply: Answer **kindly** " in ended.out
    assert rest[-1].startswith("<sub>Compared with the last commit shared with main (")
    findings = read_findings(ran.root / "agac-pr.json")
    assert comment_text(findings) + "\n" == summary.read_text() == ended.out
    assert (findings.workflows[0].usd_more or 0) > 0


def test_the_markdown_is_written_to_a_file_and_made_once_more_of_the_findings(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    Git(ran.root).commit()
    assert ci(ran, 0, "--markdown", "first.md", **pull_request(ran)).out == ""
    first = (ran.root / "first.md").read_text("utf-8")
    assert first.startswith("<!-- agac:. -->\n**1 workflow changed**")
    elsewhere = ran.root / ".agac/second_job"
    elsewhere.mkdir()
    made = ran.agac("ci", "--from", "../../agac-pr.json", "--markdown", "second.md", cwd=elsewhere, code=0)
    assert (made.out, (elsewhere / "second.md").read_text("utf-8")) == ("", first)
    assert ran.agac("ci", "--from", "../../agac-pr.json", cwd=elsewhere, code=0).out == first


def test_what_would_be_ignored_is_refused(ran: ProjectFolder) -> None:
    for words in (["--against", "main"], ["--event", "merge"], ["--untrusted"], ["--yes"], ["--out", "a.json"]):
        refused = ci(ran, 2, "--from", "agac-pr.json", *words)
        assert refused.err.startswith(f"error: {words[0]} has no meaning with --from")
    assert "there is no change to describe" in ci(ran, 2, "--event", "merge", "--markdown", "a.md").err


def test_nothing_changed_is_a_line(ran: ProjectFolder) -> None:
    marker, line = ci(ran, 0, **pull_request(ran)).out.splitlines()
    assert marker == "<!-- agac:. -->"
    assert line.startswith("No workflow changed. <sub>Compared with")
    assert read_findings(ran.root / "agac-pr.json").quiet


def test_findings_of_others_are_read_within_bounds(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    ci(ran, 0, **pull_request(ran))
    file = ran.root / "agac-pr.json"
    whole = json.loads(file.read_text())
    for keys, said in (
        ({"format": 2}, "format: Input should be 1"),
        ({"workflows": [{}]}, "workflows[0].workflow: Field required"),
        ({"max_usd": float("nan")}, "max_usd: Input should be a finite number"),
        ({"against": {"ref": "a", "behind": 10**4000}}, "behind no count"),
        ({"against": {"ref": "a", "commit": "b"}}, "against: Value error, made_at is no moment"),
        ({"against": {"ref": "a", "commit": "b", "made_at": 1e300}}, "against: Value error, made_at is no moment"),
    ):
        file.write_text(json.dumps(whole | keys))
        with pytest.raises(UsageError, match=said.replace("[", r"\[")):
            read_findings(file)
    file.write_text("{}")  # its comment would be that nothing changed
    with pytest.raises(UsageError, match="format: it is missing"):
        read_findings(file)
    file.write_text("[" * 100_000)
    with pytest.raises(UsageError, match="recursion limit"):
        read_findings(file)
    file.write_bytes(b" " * 10_000_001)
    with pytest.raises(UsageError, match="more than 10,000,000 bytes"):
        read_findings(file)


def test_a_comment_is_cut_where_it_is_too_long(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    ci(ran, 0, **pull_request(ran))
    found = read_findings(ran.root / "agac-pr.json")
    many = [found.workflows[0].model_copy(update={"workflow": f"reviews_{n}"}) for n in range(300)]
    text = comment_text(found.model_copy(update={"workflows": many}))
    assert MAX_COMMENT - 2_000 < len(text) <= MAX_COMMENT
    assert " more are not shown: `agac-pr.json`, which the job keeps, has all.*" in text


def test_a_price_that_is_not_known_is_not_called_above_the_limit(project: ProjectFolder, server: Server) -> None:
    project.asks(server)
    settings = project.root / "agac.yml"
    settings.write_text(settings.read_text() + "ci: {max_usd: 5}\n")
    project.numbered(3)
    project.workflow(stages=STAGES[:1])
    git = committed(project)
    git("branch", "-f", "main", "change")
    project.workflow(stages=[{**STAGES[0], "prompt": "Another: ${text}"}])
    out = ci(project, 4, "--event", "pull-request").out
    assert "price not known · **not known to be within `ci.max_usd` ($5.00)**" in out


def test_a_row_with_the_number_0_is_named(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    ran.write("tests/workflows/reviews.yml", "rows: [{id: 0, text: a}]\nexpect: {each: ['classify.reason == \"\"']}\n")
    assert "| reviews | 0 | classify |" in ci(ran, 3, "--event", "pull-request").out


def test_the_forge_says_what_it_is_for() -> None:
    expected = Event("pull-request", "a" * 40, "b" * 40, "main")
    assert event_of(merge_request()) == expected
    assert event_of(merge_request(fork=True)) == expected._replace(foreign=True)
    of_the_merged_result = merge_request() | {"CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": "c" * 40}
    assert event_of(of_the_merged_result) == expected._replace(head="c" * 40)
    push = {"CI_PIPELINE_SOURCE": "push", "CI_COMMIT_BRANCH": "main", "CI_DEFAULT_BRANCH": "main"}
    assert event_of(push | {"CI_COMMIT_BEFORE_SHA": "a", "CI_COMMIT_SHA": "b"}) == Event("merge", "a", "b", "main")
    with pytest.raises(UsageError, match="nothing is done for 'push'"):
        event_of(push | {"CI_COMMIT_BRANCH": "other"})
    assert event_of({"GITHUB_EVENT_NAME": "schedule"}) == Event("schedule")
    with pytest.raises(UsageError, match="no forge says"):
        event_of({})
    with pytest.raises(UsageError, match="with your secrets"):
        event_of({"GITHUB_EVENT_NAME": "pull_request_target"})


@pytest.fixture
def hostile(ran: ProjectFolder) -> ProjectFolder:
    """A change whose every file would do something if it were believed."""
    touch = "import pathlib\npathlib.Path(__file__).with_name('was_here').touch()\n"
    ran.write("tools/evil.py", f"{touch}def look(word: str) -> str:\n    return word\n")
    ran.write("tools/shapes.py", f"{touch}from pydantic import BaseModel\nclass Shape(BaseModel):\n    text: str\n")
    ran.write(
        "agentcards/helper.md", "---\ninstruction: 'Key: ${MY_SECRET}'\nfunction_tools: [tools/evil.py:look]\n---\n"
    )
    asked = {"name": "asked", "agent": "helper", "prompt": "${text}"}
    ran.workflow("tooled", stages=[asked])
    ran.workflow("shaped", stages=[{"name": "a", "prompt": "${text}", "output_schema": "python:tools.shapes.Shape"}])
    ran.workflow(stages=CHANGED)
    for name in ("tooled", "shaped"):
        ran.write(f"tests/workflows/{name}.yml", TEST)
    ran.write("tests/workflows/reviews.live.yml", f"tools_mode: live\n{TEST}")
    settings = (ran.root / "agac.yml").read_text()
    ran.write("agac.yml", f"{settings}remote: {{url: 'file-of-${{MY_SECRET}}', trust: [me]}}\nci: {{max_usd: 100}}\n")
    Git(ran.root).commit()
    return ran


def test_nothing_of_a_fork_is_believed(hostile: ProjectFolder) -> None:
    env = {"MY_SECRET": "value-of-the-secret", "AGAC_REMOTE": str(hostile.root / "remote")}
    ended = ci(hostile, 0, **pull_request(hostile, fork=True), **env)
    findings = (hostile.root / "agac-pr.json").read_text()
    assert not list(hostile.root.rglob("was_here"))
    assert "value-of-the-secret" not in ended.out + ended.err + findings
    assert "Tests that import its Python or call tools were not run: reviews.live, shaped, tooled." in ended.out
    assert "no Python of it is imported" in ended.out
    assert "ci.max_usd" not in ended.out, "a change does not set its own limit"
    assert not (hostile.root / "remote").exists()
    assert ci(hostile, 0, "--untrusted", "--event", "pull-request").out.count("were not run") == 1


def of_change(project: ProjectFolder, **keys: Any) -> tuple[Findings, str]:
    """What is found in the last commit, which another repository made, and its comment."""
    Git(project.root).commit()
    found = check_change(Event("pull-request"), untrusted=True, project=project.root, **keys)
    return found, comment_text(found)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"providers": {"local": {"base_url": "http://127.0.0.1:9/v1"}}}, "providers.local.base_url: "),
        ({"providers": {"local": {"prices": {"small": {"input": 0}}}}}, "prices.small.input: 1.0 → 0.0"),
        ({"mcp": {"docs": {"target": "server --new"}}}, 'mcp: none → {"docs": {"target": "server --new"}}'),
        ({"remote": {"url": "s3://another/place", "push": "auto"}}, "remote: none → "),
        ({"executor": {"ray": "ray://cluster.example:1"}}, "executor: none → "),
        ({"lint": {"ignore": ["invisible-character"]}}, "lint: none → "),
        ({"ci": {"max_usd": 1000}}, 'ci: none → {"max_usd": 1000.0}'),
    ],
)
def test_a_setting_that_no_workflow_shows_is_told(ran: ProjectFolder, settings: dict[str, Any], said: str) -> None:
    ran.write("agac.yml", yaml.safe_dump(merged(yaml.safe_load((ran.root / "agac.yml").read_text()), settings)))
    found, text = of_change(ran)
    (change,) = found.beside
    assert said in change.text
    assert (found.workflows, found.quiet) == ([], False)
    assert "**1 change outside of workflows**" in text.splitlines()[1]
    assert "- " + change.text.split(".")[0].split(":")[0] in text.split("**Outside of workflows**")[1]
    assert f"  {change.text}" in ran.agac("diff", code=0).out.splitlines()


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A mapping with the keys of another one in it, at any depth."""
    both = dict(one)
    for key, value in other.items():
        inner = both.get(key)
        both[key] = merged(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return both


def test_a_comment_of_the_change_that_silences_lint_is_told(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    path = ran.root / "workflows/reviews.yml"
    text = path.read_text("utf-8")
    path.write_text(f"{text}# a word\u200b in between # agac: ignore[invisible-character]\n", "utf-8")
    line = len(text.splitlines()) + 1
    found, comment = of_change(ran)
    assert found.lint == []
    said = f"tell lint to ignore what it finds: invisible-character (workflows/reviews.yml:{line})."
    assert [said in note for note in found.notes].count(True) == 1
    assert "invisible-character" in comment


def test_a_long_setting_leaves_room_for_the_others(ran: ProjectFolder) -> None:
    servers = {f"s{n}": {"target": f"server {'x' * 9_000}"} for n in range(10)}
    added = {"mcp": servers, "providers": {"local": {"base_url": "http://127.0.0.1:9/v1"}}}
    ran.write("agac.yml", yaml.safe_dump(merged(yaml.safe_load((ran.root / "agac.yml").read_text()), added)))
    assert "127.0.0.1:9/v1" in of_change(ran)[1].replace("\u2060", "")


def test_a_comparison_that_is_cut_says_how_much_is_left(ran: ProjectFolder) -> None:
    for word in ("word", "term"):
        Git(ran.root)("branch", "-f", "main", "HEAD")
        ran.workflow(stages=[STAGES[0], {**STAGES[1], "prompt": f"{f'{word} ' * 3_000}${{text}} the end"}])
        found, text = of_change(ran)
    assert "the end" not in text
    assert re.search(r"\(11,0\d\d more characters are not compared here\\?\)", text.replace("\\", ""))
    assert found.workflows[0].changes[0].what == "prompt"


def test_a_change_takes_no_workflow_out_of_its_own_review(ran: ProjectFolder) -> None:
    ran.workflow("other", stages=STAGES[:1])
    Git(ran.root).commit()
    ran.workflow(stages=CHANGED)
    ran.write("agac.yml", (ran.root / "agac.yml").read_text() + "ci: {workflows: [other]}\n")
    assert {one.workflow for one in of_change(ran)[0].workflows} == {"other", "reviews"}
    Git(ran.root)("branch", "-f", "main", "HEAD")
    ran.workflow(stages=STAGES)
    ran.workflow("other", stages=CHANGED)
    assert [one.workflow for one in of_change(ran)[0].workflows] == ["other"], "main says that no other is looked at"


def test_a_test_that_changed_or_is_gone_is_told(ran: ProjectFolder) -> None:
    ran.write("tests/workflows/reviews.yml", TEST + "expect: {rows: {done: 1}}\n")
    found, text = of_change(ran)
    assert [one.text for one in found.beside] == ["test tests/workflows/reviews.yml"]
    assert "expect: \\{rows" in text
    (ran.root / "tests/workflows/reviews.yml").unlink()
    found, text = of_change(ran)
    assert ([one.text for one in found.beside], found.tests) == (["test tests/workflows/reviews.yml is gone"], [])
    assert "reviews.yml is gone" in text


def test_short_names_that_lead_to_one_another_are_bounded(ran: ProjectFolder) -> None:
    names = {f"name{n}": f"name{n + 1}" for n in range(30)} | {"name30": "local/small", "short": "name12"}
    ran.write("agac.yml", (ran.root / "agac.yml").read_text() + yaml.safe_dump({"aliases": names}))
    found, _ = of_change(ran)
    problems = {one.where.path: one.message for one in found.problems}
    assert problems["aliases.name0"].endswith("more than 20 short names lead to one another; name the model")
    assert "aliases.short" not in problems


def test_answers_that_a_change_brings_are_refused(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    ran.run("reviews")
    ran.write(".gitignore", "/output/\n")
    found, text = of_change(ran)
    assert (found.exit_code, found.workflows) == (2, [])
    assert "the change brings files into the folder in which agac keeps its answers" in text
    assert "git rm -r --cached .agac" in found.problems[0].message


def test_an_environment_file_of_a_change_is_told_without_its_values(ran: ProjectFolder) -> None:
    ran.write(".env", "SOME_NAME=the-value-of-it\n")
    found, text = of_change(ran)
    assert [one.text for one in found.beside] == [".env, with variables for all commands, is new"]
    assert "the-value-of-it" not in text + found.model_dump_json()


def test_one_file_that_cannot_be_used_never_ends_the_others(ran: ProjectFolder, tmp_path: Path) -> None:
    ran.workflow(stages=CHANGED)
    outside = tmp_path / "outside.yml"
    outside.write_text("description: of somebody else\nstages: [{name: x, prompt: hello}]\n")
    (ran.root / "workflows/linked.yml").symlink_to(outside)
    (ran.root / "workflows/wide.yml").write_text("stages: []\n", encoding="utf-16")
    (ran.root / "workflows/large.yml").write_text("#" * 5_000_001)
    ended = ci(ran, 2, **pull_request(ran))
    findings = read_findings(ran.root / "agac-pr.json")
    said = {one.workflow: [problem.message for problem in one.problems] for one in findings.workflows}
    assert said.pop("reviews") == []
    assert "leads out of the project" in said.pop("linked")[0]
    assert "this is UTF-16" in said.pop("wide")[0]
    assert "bytes are more than" in said.pop("large")[0]
    assert not said
    assert [one.result for one in findings.tests] == ["passed"]
    assert "of somebody else" not in ended.out + ended.err + findings.model_dump_json()
    for words, code in ((("lint",), 2), (("diff",), 2), (("validate",), 2), (("run", "-a", "linked"), 2)):
        shown = ran.agac(*words, code=code)
        assert "leads out of the project" in shown.out + shown.err, words
        assert "this is a bug" not in shown.out + shown.err, words


@pytest.mark.parametrize("where", ["diff._workflow_diff", "ci.plan_in", "ci.lint_in"])
def test_findings_are_written_also_of_a_bug(ran: ProjectFolder, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    ran.workflow(stages=CHANGED)

    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("of the test")

    module, _, name = where.partition(".")
    monkeypatch.setattr(import_module(f"agac.api.{module}"), name, fails)
    found = check_change(Event("pull-request"), project=ran.root)
    assert found.exit_code == 2
    assert "this is a bug in agac: ZeroDivisionError. The details are in" in comment_text(found)
    assert "of the test" not in found.model_dump_json()


def test_findings_are_written_where_a_change_cannot_be_looked_at(ran: ProjectFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("of somebody else")
    (ran.root / "agac-pr.json").symlink_to(outside)
    ended = ci(ran, 2, "--event", "pull-request", "--against", "nothing")
    assert "'nothing' is no commit" in ended.err
    assert "'nothing' is no commit" in comment_text(read_findings(ran.root / "agac-pr.json"))
    assert not (ran.root / "agac-pr.json").is_symlink()
    assert outside.read_text() == "of somebody else"


def test_a_secret_in_a_file_is_not_in_the_findings(ran: ProjectFolder) -> None:
    settings = (ran.root / "agac.yml").read_text()
    ran.write("agac.yml", settings.replace("base_url", "api_key: ${MY_KEY}\n    base_url"))
    key = "sk-1234567890-a-key-of-somebody"
    ran.workflow(stages=[STAGES[0], {**STAGES[1], "prompt": f"Answer {key} ${{text}}"}])
    ended = ci(ran, 0, "--event", "pull-request", MY_KEY=key)
    assert "[redacted]" in ended.out.replace("\\", "")
    assert key not in ended.out + ended.err + (ran.root / "agac-pr.json").read_text()


def test_a_secret_of_digits_is_no_part_of_a_number(ran: ProjectFolder) -> None:
    settings = (ran.root / "agac.yml").read_text()
    ran.write("agac.yml", settings.replace("base_url", "api_key: ${MY_KEY}\n    base_url"))
    ran.workflow(stages=[STAGES[0], {**STAGES[1], "prompt": "Answer 323045 ${text}"}])
    made_at = "1767323045"  # of the commit compared with
    ended = ci(ran, 0, "--event", "pull-request", MY_KEY="323045")
    assert "redacted" in ended.out
    assert made_at in (ran.root / "agac-pr.json").read_text()


def test_the_comment_shows_text_and_nothing_else(ran: ProjectFolder) -> None:
    prompt = (
        "@everyone <img src=x> [click](javascript:1) #12 https://evil.example/\n</details>\n```\n| ${text} <!-- x -->"
    )
    ran.workflow(stages=[STAGES[0], {**STAGES[1], "prompt": prompt}])
    ran.write("tests/workflows/reviews.yml", f"{TEST}expect: {{each: ['classify.reason == \"| @you <b> ``` \"']}}\n")
    out = ci(ran, 3, "--event", "pull-request").out
    shown = out.partition("\n")[2]
    assert not re.search(r"[@#]\w|://|<(?!/?details>|/?summary>|br>|/?sub>)", shown)
    assert shown.count("<details>") == shown.count("\n</details>") == 1
    (row,) = [line for line in shown.splitlines() if line.startswith("| reviews |")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 6


def test_no_line_of_a_file_is_a_command_of_the_forge_or_of_a_shell(ran: ProjectFolder) -> None:
    ran.workflow(stages=[STAGES[0], {**STAGES[1], "prompt": "Answer\n::error::wrong\n  ::add-mask::a ${text}"}])
    out = ci(ran, 0, "--event", "pull-request").out
    assert "\\::error::" in out
    assert not [line for line in out.splitlines() if line.strip().startswith("::")]
    found = read_findings(ran.root / "agac-pr.json")
    assert found.against is not None
    other = found.model_copy(update={"against": replace(found.against, commit="$(a b)")})
    assert "--against '$(a b)'`" in comment_text(other)


def test_a_commit_that_the_forge_merged_is_looked_at_beside_what_it_was_merged_into(ran: ProjectFolder) -> None:
    git = Git(ran.root)
    ran.workflow(stages=CHANGED)
    git.commit()
    env = pull_request(ran)  # names main as it was
    git("checkout", "-q", "main")
    ran.workflow("others", stages=STAGES[:1])
    git.commit()
    git("merge", "-q", "--no-ff", "-m", "a merge", "change")
    git("checkout", "-q", "--detach")
    out = ci(ran, 0, **env).out
    assert "**1 workflow changed**" in out
    assert "others" not in out


def test_a_test_of_which_only_a_recorded_file_changed_is_run(ran: ProjectFolder) -> None:
    stored = {"expect": {"snapshot": True}, "replies": "recorded", "rows": [{"id": "a", "text": "I love it"}]}
    ran.write("tests/workflows/reviews.yml", yaml.safe_dump(stored))
    ran.write("tests/workflows/recorded/reviews.jsonl", "")
    git = Git(ran.root)
    git("checkout", "-q", "main")
    git.commit()
    git("checkout", "-q", "-B", "change")
    assert "No workflow changed." in ci(ran, 0, **pull_request(ran)).out
    ran.write("tests/workflows/snapshots/reviews.json", "{}")
    git.commit()
    assert "**1 of 1 test failed**" in ci(ran, 3, **pull_request(ran)).out


def test_a_project_that_cannot_be_read_is_told_in_its_own_comment(ran: ProjectFolder) -> None:
    ran.write("inner/agac.yml", "providers: [\n")
    out = ran.agac("ci", "--event", "pull-request", cwd=ran.root / "inner", code=2).out
    assert out.startswith("<!-- agac:inner -->\n**1 error**")


def test_keys_that_a_review_does_not_need_are_not_missed(ran: ProjectFolder) -> None:
    ran.workflow(stages=[{**one, "max_tokens": 200} for one in CHANGED], defaults={"model": "openai/gpt-5.4-mini"})
    assert "OPENAI_API_KEY" in ran.agac("plan", "-a", "reviews", code=0).err
    ended = ci(ran, 0, "--event", "pull-request")
    assert "API" not in ended.out.replace("\\", "") + ended.err


def test_a_shallow_clone_is_told_what_to_fetch(ran: ProjectFolder, tmp_path: Path) -> None:
    git = Git(ran.root)
    ran.workflow(stages=CHANGED)
    git.commit()
    env = pull_request(ran)
    git("clone", "-q", "--depth", "1", "--branch", "change", f"file://{ran.root}", str(tmp_path / "shallow"))
    ended = ran.agac("ci", env=env, cwd=tmp_path / "shallow", code=2)
    assert "(it is shallow)" in ended.err
    assert "for GitHub's checkout `fetch-depth: 0`" in ended.err


def test_main_moved_on_and_what_others_merged_is_no_change_of_this_one(ran: ProjectFolder) -> None:
    git = Git(ran.root)
    ran.workflow(stages=CHANGED)
    git.commit()
    git("checkout", "-q", "main")
    ran.workflow("others", stages=STAGES[:1])
    git.commit()
    git("checkout", "-q", "change")
    out = ci(ran, 0, **pull_request(ran)).out
    assert "**1 workflow changed**" in out
    assert "; main has 1 more commit)" in out


def test_files_with_errors_are_told_and_the_first_project_is_all_new(ran: ProjectFolder) -> None:
    ran.write("workflows/broken.yml", "stages: [\n")
    assert "**1 error**" in ci(ran, 2, "--event", "pull-request").out
    ran.write("agac.yml", "providers: [\n")
    assert "- **error** `agac.yml:" in ci(ran, 2, "--event", "pull-request").out
    ran.write("inner/agac.yml", "")
    ran.write("inner/data/rows.csv", "id,text\na,b\n")
    stage = {"name": "a", "prompt": "${text}", "model": "simulator/small"}
    ran.write("inner/workflows/w.yml", yaml.safe_dump({"input": {"path": "data/rows.csv"}, "stages": [stage]}))
    ended = ran.agac("ci", "--event", "pull-request", cwd=ran.root / "inner", code=0)
    assert ended.out.startswith("<!-- agac:inner -->\n**1 workflow changed**")
    assert "There is no version to compare with, so that all is new" in ended.out


def test_outside_a_forge_it_says_what_to_add(ran: ProjectFolder) -> None:
    ended = ci(ran, 2)
    assert "no forge says what `agac ci` is run for" in ended.err
    assert "Add --event pull-request" in ended.err


def test_answers_of_the_remote_are_known_on_an_empty_disk(ran: ProjectFolder, tmp_path: Path) -> None:
    settings = (ran.root / "agac.yml").read_text()
    ran.write("agac.yml", f"{settings}remote: {{url: '{tmp_path}/remote', trust: [me]}}\n")
    with ran.changed() as change:
        change("UPDATE endpoint SET simulated = 0")  # or nothing would be pushed
    ran.agac("push", env={"AGAC_REMOTE_WRITER": "me"}, code=0)
    ran.workflow(stages=CHANGED)
    git = Git(ran.root)
    git.commit()
    git("clone", "-q", f"file://{ran.root}", str(tmp_path / "clone"))
    env = pull_request(ran)
    clone = tmp_path / "clone"
    first = ran.agac("ci", env=env, cwd=clone, code=0).out
    assert "· 10 stored results stay valid; 10 tasks would run, $0.000" in first
    assert "(+$0.000" in first
    git("checkout", "-q", "main")
    git("merge", "-q", "change")
    ended = ran.agac("ci", env=push(ran, git("rev-parse", "main~1")), cwd=clone, code=0)
    assert "reviews, run 1: 10 rows, 10 done" in ended.out
    assert re.search(r"classify +local/small +0 +10", ended.out), ended.out


# After a merge, and on a schedule.


def pushed(project: ProjectFolder, before: str) -> dict[str, str]:
    """A push to main, on a machine that keeps its disk."""
    return push(project, before) | {"AGAC_KEEPS_DISK": "1"}


def test_what_was_merged_is_run_and_nothing_else(ran: ProjectFolder) -> None:
    git = Git(ran.root)
    ran.workflow("others", stages=[{**STAGES[0], "prompt": "Other: ${text}"}])
    ran.workflow("unchanged", stages=STAGES[:1])
    ran.run("unchanged")
    before = git.commit()
    assert "others, run 3: 10 rows" in ci(ran, 0, **pushed(ran, before)).out
    ran.workflow(stages=CHANGED)
    git.commit()
    ended = ci(ran, 0, **pushed(ran, before))
    assert "reviews, run 4: 10 rows, 10 done" in ended.out
    assert "others" not in ended.out + ended.err
    assert ci(ran, 0, **pushed(ran, git("rev-parse", "HEAD"))).out == "Nothing to run.\n"
    ran.numbered(12)
    ended = ci(ran, 0, "--json", **pushed(ran, git("rev-parse", "HEAD")))
    assert {one["workflow"]: one["rows"]["done"] for one in ended.json} == {
        "others": 12,
        "reviews": 12,
        "unchanged": 12,
    }


@pytest.mark.parametrize("kind", ["merge", "schedule"])
def test_nothing_is_run_for_files_that_are_not_trusted(project: ProjectFolder, kind: str) -> None:
    project.workflow(rows=1)
    assert "its workflows would be run" in project.agac("ci", "--event", kind, "--untrusted", code=2).err
    assert not (project.root / "output").exists()


def test_the_worst_end_is_the_commands_and_the_others_are_run(ran: ProjectFolder) -> None:
    ran.workflow("aaa", stages=[{**STAGES[0], "prompt": "Other ${text}", "max_tokens": 100}], budget={"usd": 0.000001})
    ran.workflow("bbb", stages=STAGES[:1], input={"path": "data/none.csv"})
    ran.workflow(stages=CHANGED)
    ended = ci(ran, 2, "--event", "merge", **pushed(ran, "0" * 40))
    assert "stopped at a limit" in ended.err, ended.err
    assert "data/none.csv" in ended.err
    assert "reviews, run 3: 10 rows, 10 done" in ended.out


def test_nothing_is_begun_after_an_interruption(project: ProjectFolder, faulty: Faulty) -> None:
    server = faulty([{"kind": "slow_first_byte", "seconds": 3, "at": [1, 2]}])
    project.configure(server.base_url)
    for name in ("first", "second"):
        project.workflow(name, rows=2)
    committed(project)
    process = listening(project.start("ci", "--event", "merge"))
    wait_until(lambda: server.account()["requests"] >= 2, "both calls", process)
    interrupt(process)
    assert ended(process).code == 130
    assert quiet_account(server)["requests"] == 2


def test_nothing_is_paid_on_a_disk_that_is_thrown_away(ran: ProjectFolder) -> None:
    ran.workflow(stages=CHANGED)
    ended = ci(ran, 2, **pushed(ran, "0" * 40) | {"AGAC_KEEPS_DISK": ""})
    assert "the answers that this job pays for would be lost with its machine" in ended.err


def test_batches_are_retrieved_on_a_schedule(ran: ProjectFolder) -> None:
    scheduled = {"GITHUB_EVENT_NAME": "schedule"}
    assert ci(ran, 0, **scheduled).out == "No batch is open.\n"
    ran.workflow(stages=CHANGED, run_mode="batch")
    ended = ci(ran, 0, **pushed(ran, "0" * 40))
    assert "Submitted batch" in ended.out
    for _ in range(10):
        if (ended := ci(ran, 0, **scheduled)).out == "No batch is open.\n":
            break
        assert "reviews" in ended.out + ended.err
    assert ran.agac("status", "-a", "reviews", "--json").json["runs"][0]["complete"]
