"""`agac lint`, by the command, and what pre-commit runs."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from support.project import ProjectFolder

import agac
from agac.spec.project_models import RuleName

ROOT = Path(__file__).parents[2]
PAID = {
    "paid": {"dialect": "openai-chat", "base_url": "http://127.0.0.1:9/v1", "prices": {"*": {"input": 1, "output": 9}}}
}


def found(project: ProjectFolder, *names: str) -> list[tuple[str, int]]:
    report = agac.lint(names, project=project.root)
    assert not report.problems
    return [(one.rule, one.where.line or 0) for one in report.findings]


KEY = "sk-proj-" + "a1B2c3D4e5" * 3
WORKFLOW = f"""input: data/rows.csv
vars: {{tone: kind, lost: 1}}
defaults: {{model: paid/m-latest}}
stages:
- name: gate
  prompt: "Is ${{text}} fine?"
  output_schema: {{fine: boolean}}
- name: lost
  needs: gate
  prompt: "Always {KEY}"
  output_schema: schemas/s.json
- name: reply
  needs: gate
  when: gate.fine
  prompt: "A ${{vars.tone}} answer to ${{text}}"
output: {{stages: reply}}
"""
FOUND = [
    ("unused-var", 2), ("expensive-model-on-filter", 3), ("unpinned-model", 3), ("missing-budget", 4),
    ("unused-stage", 8), ("prompt-without-fields", 10), ("secret-in-yaml", 10), ("schema-without-descriptions", 11),
]  # fmt: skip


@pytest.fixture
def linted(project: ProjectFolder) -> Path:
    project.write("data/rows.csv", "text\nx\n")
    project.write("schemas/s.json", '{"type": "object", "properties": {"description": {"type": "string"}}}')
    project.write("agac.yml", yaml.safe_dump({"providers": PAID}))
    return project.write("workflows/w.yml", WORKFLOW)


def test_every_rule_finds_its_mistake_and_no_message_shows_a_key(project: ProjectFolder, linted: Path) -> None:
    assert sorted(found(project), key=lambda one: one[1]) == FOUND
    ran = project.agac("lint", code=1)
    assert KEY not in ran.out + ran.err
    assert "workflows/w.yml:2:20: vars.lost: is used nowhere; remove it, or write ${vars.lost} [unused-var]" in ran.out
    first = project.agac("lint", "-a", "w", "--json", code=1).json["findings"][0]
    assert first | {"message": ""} == {
        "rule": "unused-var", "file": "workflows/w.yml", "line": 2, "column": 20, "path": "vars.lost", "message": "",
    }  # fmt: skip
    github = project.agac("lint", "--format", "github", code=1).out.splitlines()
    assert github[0].startswith(
        "::warning file=workflows/w.yml,line=2,col=20,title=agac unused-var::vars.lost: is used"
    )


def test_comments_and_agac_yml_leave_findings_out_and_unknown_names_are_told(
    project: ProjectFolder, linted: Path
) -> None:
    text = WORKFLOW.replace("stages:\n- name: gate", "# agac: ignore[missing-budget]\n# why\nstages:\n- name: gate")
    linted.write_text(text.replace("lost: 1}", "lost: 1}  # agac: ignore[unused-var, unusd-stage]"), "utf-8")
    off = ["expensive-model-on-filter", "unpinned-model", "secret-in-yaml", "prompt-without-fields"]
    project.write("agac.yml", yaml.safe_dump({"providers": PAID, "lint": {"ignore": off}}))
    assert found(project) == [("unknown-rule", 2), ("unused-stage", 10), ("schema-without-descriptions", 13)]
    assert "there is no rule 'unusd-stage'; did you mean 'unused-stage'?" in project.agac("lint", code=1).out
    project.write("agac.yml", "lint: {ignore: [unusd-stage]}\n")
    assert "did you mean 'unused-stage'?" in project.agac("validate", code=2).out


@pytest.mark.parametrize(
    "change",
    [
        {"output": {}, "stages": [{"name": "a", "prompt": "${text}"}]},
        {"budget": 5, "stages": [{"name": "a", "prompt": "${text}", "model": "paid/m"}]},
        {"stages": [{"name": "a", "prompt": "${text}"}, {"name": "b", "needs": "a", "group_by": []}]},
        {"vars": {"x": 1}, "stages": [{"name": "a", "prompt": "{{vars.x}} {{text}}", "syntax": "mustache"}]},
    ],
)
def test_what_is_meant_is_left_alone(project: ProjectFolder, linted: Path, change: dict[str, Any]) -> None:
    base = {"input": "data/rows.csv", "defaults": {"model": "simulator/small"}}
    if "group_by" in change["stages"][-1]:
        change["stages"][-1]["prompt"] = "Sum up ${rows_json}"
    linted.write_text(yaml.safe_dump(base | change), "utf-8")
    assert found(project) == []


def test_errors_are_told_and_secrets_are_found_all_the_same(project: ProjectFolder, linted: Path) -> None:
    linted.write_text(WORKFLOW.replace("needs: gate", "needs: gat", 1), "utf-8")
    ran = project.agac("lint", "--json", code=2)
    assert [one["path"] for one in ran.json["problems"]] == ["stages[1].needs"]
    assert [one["rule"] for one in ran.json["findings"]] == ["secret-in-yaml"]


def test_a_dated_version_that_the_price_library_knows_is_named(project: ProjectFolder, linted: Path) -> None:
    stages = [{"name": "a", "prompt": "${text}", "model": "openai/gpt-4.1-mini"}]
    keys = {"input": "data/rows.csv", "budget": 5, "defaults": {"max_tokens": 9}, "stages": stages}
    linted.write_text(yaml.safe_dump(keys), "utf-8")
    ran = project.agac("lint", code=1)
    assert "name a dated version, such as openai/gpt-4.1-mini-2025-04-14 [unpinned-model]" in ran.out
    linted.write_text(yaml.safe_dump(keys).replace("4.1-mini", "4.1-mini-2025-04-14"), "utf-8")
    assert found(project) == []


def test_every_rule_is_explained() -> None:
    page = (ROOT / "docs/reference/lint.md").read_text("utf-8")
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(get_args(RuleName))


def test_the_shipped_files_are_clean_for_every_hook() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert [hook["id"] for hook in hooks] == ["agac-validate", "agac-lint"]
    assert agac.lint(project=ROOT).findings == []
    for hook in hooks:
        words = shlex.split(hook["entry"])
        program = str(Path(sys.executable).parent / words[0])
        ran = subprocess.run([program, *words[1:]], cwd=ROOT, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stderr


def invisible(project: ProjectFolder, *names: str) -> list[tuple[str, int, int]]:
    found = [one for one in agac.lint(names, project=project.root).findings if one.rule == "invisible-character"]
    return [(one.where.file, one.where.line or 0, one.where.column or 0) for one in found]


def test_invisible_characters_are_found_in_comments_keys_and_values_with_their_name_and_remedy(
    project: ProjectFolder,
) -> None:
    project.write("data/rows.csv", "text,\u200b\nx\u200b,y\n")
    project.write(
        "workflows/w.yml",
        "input: data/rows.csv  # a\u200bb\ndefaults: {model: simulator/small}\nstages:\n- name: a\n"
        '  prompt: "${text} \U000e0041\U000e0042, \\u200b"\n  output_schema: {"k\\u00ad": string, "l\u00ad": string}\n',
    )
    files = [("workflows/w.yml", line, column) for line, column in ((1, 26), (5, 20), (6, 40))]
    assert invisible(project) == files
    ran = project.agac("lint", code=1)
    said = "U+E0041 TAG LATIN CAPITAL LETTER A with 1 more after it is not seen; remove it, or write it as \\U000e0041"
    assert f"workflows/w.yml:5:20: {said} in double quotes" in ran.out
    assert not {*"\u200b\u00ad\U000e0041"} & {*ran.out}
    assert "U+200B ZERO WIDTH SPACE" in ran.out
    assert "U+00AD SOFT HYPHEN" in ran.out


def test_invisible_characters_are_found_in_every_file_that_a_workflow_or_card_names(project: ProjectFolder) -> None:
    sign = "\u2062"
    project.write("data/rows.csv", "text\nx\n")
    project.write("tools/parts.py", f"def clean(row):\n    return row  # {sign}\n")
    project.write("tools/score.py", "from tools.parts import clean\n\n\ndef score(row):\n    return clean(row)\n")
    project.write("schemas/s.json", f'{{"type": "object", "properties": {{"a": {{"description": "{sign}"}}}}}}')
    project.write("prompts/p.md", f"Say ${{text}}\n{sign}\n")
    project.write("agentcards/helper.md", f"---\nmodel: simulator/small\nskills: skills\n---\nBe kind.{sign}\n")
    project.write("agentcards/helper.lock.json", f'{{"servers": {{}}, "x": "{sign}"}}')
    project.write("skills/read/SKILL.md", f"---\nname: read\ndescription: how\n---\n{sign}\n")
    project.write("skills/read/more.txt", f"a {sign}\n")
    project.write("tests/workflows/w.yml", f"workflow: w  # {sign}\n")
    project.write(
        "workflows/w.yml",
        "input: data/rows.csv\ndefaults: {model: simulator/small}\nstages:\n"
        "- {name: a, python: 'tools/score.py:score'}\n"
        "- {name: b, prompt: prompts/p.md, output_schema: schemas/s.json}\n"
        "- {name: c, agent: helper, prompt: '${text}'}\n",
    )
    assert {file for file, *_ in invisible(project)} >= {
        "tools/parts.py", "schemas/s.json", "prompts/p.md", "agentcards/helper.md", "agentcards/helper.lock.json",
        "skills/read/SKILL.md",
        "skills/read/more.txt", "tests/workflows/w.yml",
    }  # fmt: skip
    assert ("prompts/p.md", 2, 1) in invisible(project)


def test_the_name_of_a_file_is_looked_at_and_a_long_line_has_a_bounded_number_of_findings(
    project: ProjectFolder,
) -> None:
    project.write("data/rows.csv", "text\nx\n")
    project.write("prompts/p\u200b.md", "Say ${text}\n" + "a\u200b" * 500 + "\n")
    project.write(
        "workflows/w.yml",
        "input: data/rows.csv\ndefaults: {model: simulator/small}\n"
        'stages:\n- {name: a, prompt: "prompts/p\\u200b.md"}\n',
    )
    assert invisible(project, "w") == [("prompts/p\u200b.md", 1, 1)] + [
        ("prompts/p\u200b.md", 2, column) for column in range(2, 22, 2)
    ]
    ran = project.agac("lint", code=1)
    assert "prompts/p\\u200b.md:1:1: the name of this file has U+200B ZERO WIDTH SPACE" in ran.out
    assert "(490 more such places on this line)" in ran.out
    assert "\u200b" not in ran.out


def test_invisible_characters_are_found_where_a_file_has_errors_and_are_left_out_by_a_comment(
    project: ProjectFolder,
) -> None:
    project.write("data/rows.csv", "text\nx\n")
    project.write("prompts/p.md", "a\u200bb\n")
    text = "input: data/rows.csv\ndefaults: {model: simulator/small}\nstages:\n- name: a\n  prompt: prompts/p.md\n"
    project.write("workflows/w.yml", f"{text}  neds: b\n")
    assert project.agac("lint", code=2).out.count("[invisible-character]") == 1
    project.write("workflows/w.yml", text.replace("- name: a", "- name: a  # \u200b agac: ignore[invisible-character]"))
    project.write("prompts/p.md", "${text}\n")
    assert len(invisible(project)) == 1, "a comment begins with # and its rule, as it is seen"
    project.write("workflows/w.yml", text.replace("- name: a", "- name: a  # agac: ignore[invisible-character] \u200b"))
    assert invisible(project) == []


def test_emoji_and_scripts_that_need_joiners_are_no_findings(project: ProjectFolder) -> None:
    project.write("data/rows.csv", "text\nx\n")
    kind = "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \u0645\u06cc\u200c\u062e \u0915\u094d\u200d\u0937"
    project.write(
        "workflows/w.yml",
        "input: data/rows.csv\ndefaults: {model: simulator/small}\n"
        f"stages:\n- {{name: a, prompt: '${{text}} {kind}'}}\n",
    )
    assert found(project) == []
