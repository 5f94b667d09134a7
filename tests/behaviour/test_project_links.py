"""Links out of a project, pipes and folders in the place of its files: refused wherever one is named or listed."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from support.events import pull_request
from support.project import ProjectFolder, Ran
from support.repository import Git, committed
from support.server import Server
from test_completion import completed

import agac
from agac.api.ci import check_change
from agac.api.ci_events import Event
from agac.api.workflow_view import workflow_view
from agac.core.errors import UsageError
from agac.spec.agent_cards import chosen_card

CANARY = "canary_of_another_project"
ROWS = [{"id": "r-1", "text": "a good tent"}]
TEST = {"rows": ROWS, "replies": "simulator", "expect": {"snapshot": True}}
RECORDED = {"rows": ROWS, "replies": "recorded"}
STUBBED = {"rows": ROWS, "tool_stubs": "stubs.yml"}
SEVERAL = {"input": "data/many/*.csv", "stages": [{"name": "a"}]}
TOOL = 'def look(q: str) -> str:\n    """Looks."""\n    return q\n'
CARD = "---\ndescription: A card.\n---\nAnswer.\n"
CALL = '{"tool": "look", "arguments": {"q": "%s"}, "result": "%s"}\n'
YAML = f"input: data/rows.csv\nstages:\n- name:   {CANARY}\n  prompt: ${{text}}\n"


class Case(NamedTuple):
    """A file of a project, what is in the one that a link in its place leads to, and the command that meets it."""

    place: str
    content: str
    command: Sequence[str]
    stage: dict[str, Any] = {}  # noqa: RUF012 - of a tuple
    files: dict[str, Any] = {}  # noqa: RUF012


CASES = {
    "snapshot": Case("tests/workflows/snapshots/reviews.json", f'{{"r-1": {{"result": "{CANARY}"}}}}', ["test"],
                     files={"tests/workflows/reviews.yml": TEST}),
    "snapshot to be replaced": Case("tests/workflows/snapshots/reviews.json", f'{{"{CANARY}": 1}}',
                                    ["test", "--update"], files={"tests/workflows/reviews.yml": TEST}),
    "recording": Case("tests/workflows/recorded/reviews.jsonl", CANARY, ["test"],
                      files={"tests/workflows/reviews.yml": RECORDED}),
    "recorded results": Case("tests/workflows/recorded/reviews_calls.jsonl", CALL % (CANARY, CANARY), ["test"],
                             {"tools": ["tools/look.py:look"]},
                             {"tests/workflows/reviews.yml": RECORDED, "tools/look.py": TOOL}),
    "test": Case("tests/workflows/reviews.yml", f"{CANARY}: 1", ["test"]),
    "stubs of a test": Case("stubs.yml", f"look: {CANARY}\nlook: {CANARY}", ["test"],
                            files={"tests/workflows/reviews.yml": STUBBED}),
    "workflow": Case("workflows/other.yml", YAML, ["validate", "other"]),
    "workflow by name": Case("workflows/other.yml", YAML, ["plan", "other"]),
    "workflow to be linted": Case("workflows/other.yml", YAML, ["lint"]),
    "workflow as a drawing": Case("workflows/other.yml", YAML, ["graph", "other"]),
    "agac.yml": Case("agac.yml", f"{CANARY}: 1", ["validate"]),
    "variables": Case(".env", f"{CANARY}", ["validate"]),
    "prompt": Case("prompts/ask.md", CANARY, ["validate"], {"prompt": "prompts/ask.md"}),
    "prompt to be linted": Case("prompts/ask.md", CANARY, ["lint"], {"prompt": "prompts/ask.md"}),
    "instructions": Case("prompts/be.md", CANARY, ["plan", "reviews"], {"instructions": "prompts/be.md"}),
    "schema": Case("schemas/s.json", f"{{{CANARY}", ["validate"], {"output_schema": "schemas/s.json"}),
    "card": Case("agentcards/helper.md", f"---\n{CANARY}: 1\n---\nAnswer.", ["validate"], {"agent": "helper"}),
    "card that is shown": Case("agentcards/helper.md", CARD + CANARY, ["card", "show", "helper"]),
    "example of a card": Case("agentcards/turns.md", CANARY, ["validate"], {"agent": "helper"},
                              {"agentcards/helper.md": "---\nmessages: turns.md\n---\nAnswer.\n"}),
    "text of a card": Case("agentcards/more.md", CANARY, ["card", "show", "helper"],
                           files={"agentcards/helper.md": CARD + "{{file:more.md}}\n"}),
    "skill": Case("skills/refund/SKILL.md", f"---\nname: a\ndescription: {CANARY}\n---\n", ["validate"],
                  {"skills": "skills"}),
    "lock": Case("agentcards/web.lock.json", f'{{"{CANARY}', ["validate"], {"tools": ["web"]},
                 {"agac.yml": {"mcp": {"web": {"target": "https://mcp.example/"}}}}),
    "tool": Case("tools/look.py", f"{CANARY} =", ["validate"], {"tools": ["tools/look.py:look"]}),
    "import of a tool": Case("tools/more.py", f"{CANARY} =", ["validate"], {"tools": ["tools/look.py:look"]},
                             {"tools/look.py": f"from tools import more\n{TOOL}"}),
    "recorded results of a tool": Case("calls.jsonl", CALL % (CANARY, CANARY), ["validate"],
                                       {"tools": ["tools/look.py:look"], "tools_mode": "stub",
                                        "tool_stubs": {"look": {"file": "calls.jsonl"}}}, {"tools/look.py": TOOL}),
    "files that tools read": Case("docs/a.md", CANARY, ["validate"],
                                  {"tools": ["tools/look.py:look"], "reads": ["docs/*.md"]}, {"tools/look.py": TOOL}),
    "input": Case("data/other.csv", f"id,text\n1,{CANARY}\n", ["validate", "reads"],
                  files={"workflows/reads.yml": {"input": "data/other.csv", "stages": [{"name": "a"}]}}),
    "one of several inputs": Case("data/many/b.csv", f"id,text\n1,{CANARY}\n", ["validate", "reads"],
                                  files={"data/many/a.csv": "id,text\n1,a\n", "workflows/reads.yml": SEVERAL}),
    "rows of a test": Case("data/other.csv", f"id,text\n1,{CANARY}\n", ["test"],
                           files={"tests/workflows/reviews.yml": {"rows": "data/other.csv"}}),
}  # fmt: skip


def prepared(project: ProjectFolder, case: Case) -> tuple[Path, Path]:
    """A project in which the case's file is not there, and a file outside of it."""
    project.configure()
    stage = {"name": "classify", "prompt": "Is this good? ${text}", "output_schema": {"good": "boolean"}}
    project.workflow(rows=1, stages=[stage | case.stage])
    for name, content in case.files.items():
        project.write(name, content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    if "agac.yml" in case.files:
        project.write("agac.yml", yaml.safe_dump(case.files["agac.yml"] | {"defaults": {"model": "simulator/small"}}))
    outside = project.root.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text(case.content)
    place = project.root / case.place
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    return place, outside / "file"


def unharmed(ran: Ran, outside: Path, case: Case) -> str:
    """What a command said, which neither told what is in a file outside nor changed it."""
    said = f"{ran.out}{ran.err}"
    assert "Traceback" not in said
    assert "internal error" not in said
    assert CANARY not in said
    assert outside.read_text() == case.content
    assert [one.name for one in outside.parent.iterdir()] == ["file"]
    return said


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_link_out_of_the_project_is_refused_with_a_sentence(project: ProjectFolder, case: Case) -> None:
    place, outside = prepared(project, case)
    place.symlink_to(outside)
    ran = project.agac(*case.command)
    said = unharmed(ran, outside, case)
    assert ran.code not in (0, 1), said
    assert "leads out of" in said, said
    assert place.is_symlink()


FOLDERS = {name: case for name, case in CASES.items() if "/" in case.place and name != "one of several inputs"}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_a_link_out_of_the_project_is_not_looked_into(project: ProjectFolder, name: str) -> None:
    case = CASES[name]
    place, outside = prepared(project, case)
    place.parent.rename(outside.parent / "held")
    place.parent.symlink_to(outside.parent / "held")
    outside.rename(outside.parent / "held" / place.name)
    (outside.parent / f"held/{CANARY}{place.suffix}").write_text(case.content)
    before = {one: one.read_bytes() for one in outside.parent.rglob("*") if one.is_file()}
    ran = project.agac(*case.command)
    said = f"{ran.out}{ran.err}"
    assert CANARY not in said
    assert "Traceback" not in said
    assert {one: one.read_bytes() for one in outside.parent.rglob("*") if one.is_file()} == before
    assert "leads out of" in said or "no " in said, said


IGNORED = {"import of a tool", "one of several inputs", "files that tools read"}
"""Cases in which a name may mean a file or something else: what is no file is none of it."""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_not_waited_for(project: ProjectFolder, name: str, kind: str) -> None:
    case = CASES[name]
    place, outside = prepared(project, case)
    os.mkfifo(place) if kind == "pipe" else place.mkdir()
    said = unharmed(project.agac(*case.command), outside, case)
    if kind == "pipe" and name not in IGNORED:
        assert any(words in said for words in ("not a file", "not a Python file", "no agac.yml in")), said


def test_a_new_snapshot_is_not_written_through_a_link(project: ProjectFolder) -> None:
    place, outside = prepared(project, CASES["snapshot"])
    for target in (outside.parent / "new", project.root / ".git/config", project.root / ".env"):
        place.symlink_to(target)
        ran = project.agac("test", "--update")
        assert ran.code != 0
        assert not target.exists()
        place.unlink()
    project.write("kept/reviews.json", "{}")
    place.symlink_to("../../../kept/reviews.json")
    project.agac("test", "--update", code=0)
    assert place.is_symlink()
    assert "r-1" in (project.root / "kept/reviews.json").read_text()
    project.agac("test", code=0)


@pytest.mark.parametrize("name", ["reviews.jsonl", "reviews_calls.jsonl"])
def test_nothing_is_asked_for_a_recording_that_cannot_be_written(
    project: ProjectFolder, server: Server, name: str
) -> None:
    prepared(project, CASES["recording"])
    project.asks(server)
    (project.root / "tests/workflows/recorded" / name).symlink_to("../../../../outside/new")
    (refused,) = agac.run_tests(record=True, project=project.root).tests
    assert "cannot be written: it leads out of the project" in (refused.error or "")
    assert server.account()["requests"] == 0
    assert not (project.root.parent / "outside/new").exists()


@pytest.mark.parametrize("prepare", [lambda at, to: at.symlink_to(to), lambda at, _: os.mkfifo(at)])
def test_a_pull_request_is_told_nothing_of_what_a_link_leads_to(project: ProjectFolder, prepare: Any) -> None:
    project.workflow(rows=1)
    project.write("tests/workflows/reviews.yml", yaml.safe_dump(TEST))
    committed(project)
    outside = project.root.parent / "outside.json"
    outside.write_text(f'{{"r-1": {{"result": "{CANARY}"}}}}')
    (project.root / "tests/workflows/snapshots").mkdir()
    prepare(project.root / "tests/workflows/snapshots/reviews.json", outside)
    Git(project.root).commit()
    findings = project.root.parent / "findings.json"
    ran = project.agac("ci", "--out", str(findings), env=pull_request(project))
    assert ran.code != 0
    said = f"{ran.out}{ran.err}{findings.read_text() if findings.exists() else ''}"
    assert CANARY not in said
    assert "leads out of" in said or "named pipe" in said


def test_names_outside_the_project_are_neither_completed_nor_listed(project: ProjectFolder) -> None:
    outside = project.root.parent / "outside"
    outside.mkdir()
    for name in (f"{CANARY}.yml", f"{CANARY}.md"):
        (outside / name).write_text(CARD)
    for folder, words in (("workflows", ("run", "")), ("agentcards", ("card", "show", ""))):
        (project.root / folder).symlink_to(outside)
        assert completed(project, *words) == []
    for command in (["status"], ["runs"], ["lint"], ["validate"], ["run", "x"], ["schema"], ["card", "show", "x"]):
        ran = project.agac(*command)
        assert CANARY not in ran.out + ran.err


def test_a_page_shows_no_text_of_a_file_outside(project: ProjectFolder) -> None:
    place, outside = prepared(project, CASES["workflow"])
    place.symlink_to(outside)
    for name in ("other", "workflows/other.yml"):
        with pytest.raises(UsageError, match="leads out of the project"):
            workflow_view(name, project=project.root)


def test_a_card_is_not_chosen_through_a_link(tmp_path: Path) -> None:
    cards, outside = tmp_path / "project/agentcards", tmp_path / "outside.md"
    cards.mkdir(parents=True)
    outside.write_text(CARD)
    (cards / "helper.md").symlink_to(outside)
    for root in (tmp_path / "project", tmp_path / "elsewhere"):
        with pytest.raises(UsageError, match="has 0 agent cards called helper"):
            chosen_card(cards, "helper", root)
    assert chosen_card(cards / "helper.md", "helper", tmp_path) == cards / "helper.md"  # which a user typed


def test_a_new_project_is_not_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new/workflows").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="leads out of"):
        agac.init(tmp_path / "new")
    assert [one.name for one in (tmp_path / "new").iterdir()] == ["workflows"]
    assert not list((tmp_path / "outside").iterdir())


def test_a_folder_called_env_is_a_virtual_environment(project: ProjectFolder) -> None:
    project.workflow(rows=1)
    (project.root / ".env").mkdir()
    project.agac("validate", code=0)


@pytest.mark.parametrize("secret", [".env", "team.env", ".git/notes.csv", ".agac/state.csv"])
@pytest.mark.parametrize("named", ["itself", "a link", "a pattern", "a pattern of links", "rows of a test"])
def test_no_rows_are_read_of_what_may_hold_secrets(project: ProjectFolder, secret: str, named: str) -> None:
    committed(project)
    project.write(secret, "id,text\n1,value-of-the-secret\n")
    (project.root / "data").mkdir(exist_ok=True)
    path = secret
    if named in ("a link", "a pattern of links"):
        path = "data/link.csv"
        (project.root / path).symlink_to(f"../{secret}")
    if named.startswith("a pattern"):
        path = f"{path[:-1]}?"
    project.numbered(1)
    if named == "rows of a test":
        project.workflow()
        project.write("tests/workflows/reviews.yml", f"rows: {path}\nexpect: {{each: ['row.text == \"\"']}}\n")
    else:
        project.workflow(path=path, input={"format": "csv"})
    Git(project.root).commit()
    findings = check_change(Event("pull-request"), project=project.root, untrusted=True)
    assert findings.exit_code == 2
    assert "value-of-the-secret" not in findings.model_dump_json()
    said = " ".join(one.message for one in findings.told("error"))
    assert "is not read as rows" in said or "agac's own files" in said
