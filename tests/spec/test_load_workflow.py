"""Loading: what a workflow becomes, who wins where several say the same, and that all problems come at once."""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tree import GOOD_WORKFLOW, Tree

from agac.core.errors import UsageError, Where
from agac.plan.plan import Selection, make_plan
from agac.plan.resolved_models import resolve_models
from agac.providers.known_providers import SHIPPED
from agac.spec.loader import find_workflow, load_project, load_workflow, workflow_names
from agac.spec.paths import find_project, output_folder
from agac.spec.project import Overrides
from agac.spec.rules import Timeout

INPUT = "input: {path: data/reviews.csv}\n"


def test_a_small_workflow_with_every_default_resolved(tree: Tree) -> None:
    workflow = tree.workflow(GOOD_WORKFLOW)
    assert (workflow.name, workflow.file, workflow.description, workflow.vars) == ("w", "workflows/w.yml", None, {})
    assert workflow.input.path == tree.root / "data/reviews.csv"
    assert (workflow.input.shown, workflow.input.format) == ("data/reviews.csv", "csv")
    assert (workflow.input.id_field, workflow.input.on_duplicate_id) == ("id", "error")
    assert workflow.input.where == Where("workflows/w.yml", 1, 15, "input.path")
    assert (workflow.output.dir, workflow.output.include_input) == (tree.root / "output/w", False)
    [stage] = workflow.stages
    assert (stage.name, stage.index, stage.needs, stage.path) == ("classify", 0, (), "stages[0]")
    assert (stage.model, stage.levels.get("model"), stage.settings.run_mode) == ("simulator/small", "project", "sync")
    assert (stage.system, stage.schema, stage.output_schema, stage.timeout, stage.settings.concurrency) == (None,) * 5
    assert stage.prompt.text == "Review: ${review}"
    assert (str(stage.at("prompt")), str(stage.at("model"))) == ("workflows/w.yml:4:13", "agac.yml:1:19")
    assert str(stage.at("temperature")) == "workflows/w.yml:3:5"


@pytest.mark.parametrize(
    "text",
    [
        "inputs: {path: data/reviews.csv, format: csv, id_field: id, on_duplicate_id: suffix}\nstages: [{name: a}]\n",
        INPUT + "stages:\n  - {name: a}\n  - {name: b}\n  - {name: c, needs: b}\n",
        INPUT + "stages: [{name: a, needs: [], timeout: 2.5}]\n",
        INPUT + "stages: [{name: a, timeout: {connect: 1, first_byte: 2, total: 3}}]\n",
        INPUT + "stages: [{name: a, temperature: 0, max_tokens: 1, concurrency: 1, run_mode: sync}]\n",
        INPUT + "stages: [{name: A_b-9, prompt: 'costs $5 and \"$ref\" and {{x}}'}]\n",
        INPUT + "vars: {a: null, b: [1, {c: d}], c-d: 2024-01-31}\nstages: [{name: a, prompt: '${vars.b.1.c}'}]\n",
        INPUT + "stages: [{name: a}]\noutput: {dir: results/./x/../y, include_input: true}\n",
        INPUT + "stages: [&s {name: a, prompt: &p hello}]\ndescription: *p\n",
        "description: |\n  several\n  lines\n" + INPUT + "defaults: {}\nvars: {}\noutput: {}\nstages: [{name: a}]\n",
        "# comment\n---\n" + INPUT + "stages:\n- name: a\n  prompt: >-\n    folded\n    text\n...\n",
        INPUT + "stages: [{name: a, prompt: no such file.md in here}, {name: b, prompt: 'see ../x.md please'}]\n",
        INPUT + "stages: [{name: a, prompt: data, output_schema: {type: string}}]\n",
    ],
)
def test_workflows_to_accept(tree: Tree, text: str) -> None:
    assert tree.problems(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "", "# all defaults\n", "{}\n", "paths: {workflows: flows, agentcards: cards, schemas: s, output: out}\n",
        "defaults: {model: a/b, run_mode: sync, temperature: 0.5, max_tokens: 5, timeout: 3, concurrency: 8}\n",
        "providers: {local: {base_url: 'http://127.0.0.1:8000/v1', api_key: '${KEY}', dialect: openai-chat}}\n",
        "providers: {local: {api_key: none, structured: none, limits: {rpm: 5, tpm: 5, concurrency: 5}}}\n",
        "providers: {local: {base_url: '${URL}', batch: openai}}\n",
        "providers: {local: {headers: {Authorization: 'Bearer ${KEY}', x-team: data-engineering-2024}}}\n",
        "providers: {local: {prices: {my-model: {input: 0.25, cached_input: 0.025, output: 2, batch: 0.5}}}}\n",
    ],
)  # fmt: skip
def test_projects_to_accept(tree: Tree, text: str) -> None:
    tree.write("agac.yml", text)
    assert tree.problems() == []


def test_variables_fill_models_and_secrets_stay_as_they_are_written(tree: Tree) -> None:
    tree.env = {"KEY": "canary-4711", "MODEL": "openai/x"}
    tree.write("agac.yml", "providers: {local: {api_key: '${KEY}'}}\ndefaults: {model: '${MODEL}'}\n")
    project = tree.project()
    assert project.file.providers["local"].api_key == "${KEY}"
    assert "canary-4711" not in repr(project)
    assert tree.workflow(GOOD_WORKFLOW).stages[0].model == "openai/x"
    tree.write("agac.yml", "")  # a stage without any model is left to the check of models
    [stage] = tree.workflow(GOOD_WORKFLOW).stages
    assert (stage.model, stage.levels.get("model")) == (None, None)


LEVELS = [
    ("project", "agac.yml", "defaults: {model: m/project, temperature: 0.1, timeout: 1, concurrency: 1}\n"),
    ("defaults", "workflow", "defaults: {model: m/defaults, temperature: 0.2, timeout: 2, concurrency: 2}\n"),
    ("card", "agentcards/c.md", "---\nmodel: m/card\nrequest_params: {temperature: 0.3}\n---\nText.\n"),
    ("stage", "stage", "model: m/stage, temperature: 0.4, timeout: 4, concurrency: 4"),
    ("override", "", ""),
]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_strongest_level_wins(tree: Tree, count: int) -> None:
    said = {place: text for _, place, text in LEVELS[:count]}
    tree.write("agac.yml", said["agac.yml"])
    tree.write("agentcards/c.md", said.get("agentcards/c.md", "---\n---\nText.\n"))
    overrides = Overrides(model="m/override", concurrency=5) if count == 5 else Overrides()
    stage = f"  - {{name: a, agent: c, {said.get('stage', 'prompt: x')}}}\n"
    [found] = tree.workflow(said.get("workflow", "") + INPUT + "stages:\n" + stage, overrides).stages
    level = LEVELS[count - 1][0]
    assert (found.model, found.levels.get("model")) == (f"m/{level}", level)
    assert found.timeout == Timeout(total={1: 1, 2: 2, 3: 2, 4: 4, 5: 4}[count])
    assert found.settings.concurrency == {1: 1, 2: 2, 3: 2, 4: 4, 5: 5}[count]
    temperatures = {"project": 0.1, "defaults": 0.2, "card": 0.3, "stage": 0.4}
    known = [name for name, _, _ in LEVELS[:count] if name in temperatures]
    assert list(found.params) == list(temperatures)  # weakest first
    assert {name: found.params[name] for name in known} == {name: {"temperature": temperatures[name]} for name in known}
    files = {1: "agac.yml", 2: "workflows/w.yml", 3: "agentcards/c.md", 4: "workflows/w.yml", 5: "--model"}
    assert found.at("model").file == files[count]


def test_short_forms_mean_what_the_long_ones_do(tree: Tree) -> None:
    stages = "stages: [{name: a, prompt: x, budget: %s}]\nbudget: %s\nrow_budget: %s\n"
    short = tree.workflow("input: data/reviews.csv\nrun_mode: batch\n" + stages % (2, 5, 0.5))
    assert str(short.stages[0].at("run_mode")) == "workflows/w.yml:2:11"
    long = tree.workflow(
        "input: {path: data/reviews.csv}\ndefaults: {run_mode: batch}\n"
        + stages % ("{usd: 2}", "{usd: 5}", "{usd: 0.5}")
    )
    assert (short.rules, short.stages[0].settings.budget) == (long.rules, long.stages[0].settings.budget)
    assert (short.input.path, short.input.patterns) == (long.input.path, long.input.patterns)
    assert short.stages[0].settings.run_mode == long.stages[0].settings.run_mode == "batch"
    models, _ = resolve_models(short, SHIPPED)
    hashes = [make_plan(each, models, tree.root, Selection(), None).hash for each in (short, long)]
    assert hashes[0] == hashes[1]
    tree.write("data/more.csv", "id,review\n2,bad\n")
    several = tree.workflow("input: [data/reviews.csv, data/more.csv]\n" + stages % (1, 1, 1))
    assert several.input.patterns == ("data/reviews.csv", "data/more.csv")


def test_stages_own_instructions_win_over_the_cards(tree: Tree) -> None:
    tree.write("agentcards/c.md", "---\n---\nFrom the card.\n")
    assert tree.stage("{name: a, agent: c}").system == "From the card."
    assert tree.stage("{name: a, agent: c, instructions: Own.}").system == "Own."


@pytest.mark.parametrize("key", ["prompt", "instructions", "template"])
def test_a_text_may_be_a_file_of_the_project(tree: Tree, key: str) -> None:
    tree.write("prompts/p q.md", b"\xef\xbb\xbfFirst\r\n${vars.x} $5\r\n\r\n")
    stage = tree.stage(f"{{name: a, {key}: prompts/p q.md}}", head="vars: {x: y}\n")
    if key == "instructions":
        assert stage.system == "First\ny $5"
    else:
        assert stage.prompt.text == "First\n${vars.x} $5"
        assert str(stage.prompt.placeholders[0].where) == "prompts/p q.md:2:1"


def test_problems_of_a_prompt_file_are_shown_there(tree: Tree) -> None:
    for name, text in (("p", b"one\ntwo ${\n"), ("i", b"one\n${review}\n"), ("empty", b"\n\n"), ("latin", b"caf\xe9")):
        tree.write(f"prompts/{name}.md", text)
    found = tree.stage_problems("{name: a, prompt: prompts/p.md, instructions: prompts/i.md}")
    assert [problem.split(": ")[0] for problem in found] == ["prompts/i.md:2:1", "prompts/p.md:2:5"]
    assert "prompts/empty.md is empty" in tree.stage_problems("{name: a, prompt: prompts/empty.md}")[0]
    assert tree.stage_problems("{name: a, template: prompts/latin.md}") == [
        "prompts/latin.md:1:4: byte 0xe9 is not valid UTF-8; save the file as UTF-8"
    ]
    [problem] = tree.stage_problems("{name: a, prompt: prompts/latn.md}")  # a misspelt file is no prompt
    meant = "no such file: 'prompts/latn.md'; did you mean 'prompts/latin.md'?"
    assert problem.endswith(f"{meant} If it is a text, end it with a full stop")


@pytest.mark.parametrize(
    "text",
    ["my notes.md", "prompts/my notes.txt", "prompts/notes", "notes.prompt", "a/b.j2", "prompts/the notes", "./x"],
)
@pytest.mark.parametrize("key", ["prompt", "instructions"])
def test_what_looks_like_a_path_and_names_nothing_is_not_sent_as_a_text(tree: Tree, key: str, text: str) -> None:
    """With spaces in it, or without a suffix, too."""
    tree.write("prompts/other.md", b"x")
    [problem] = tree.stage_problems(f"{{name: a, {key}: '{text}'}}")
    assert f"stages[0].{key}: no such file: '{text}'" in problem
    assert problem.endswith("If it is a text, end it with a full stop")


@pytest.mark.parametrize(
    "text",
    [
        "Translate",
        "Is it good/bad",
        "Write my notes.md.",
        "Answer yes/no.",
        "Look at https://e.org/a b.md",
        "1.5",
        "v1.2",
    ],
)
def test_a_text_is_no_path(tree: Tree, text: str) -> None:
    assert tree.stage_problems(f"{{name: a, prompt: 'x ${{text}}', instructions: '{text}'}}") == []


def test_a_file_whose_name_has_spaces_is_read(tree: Tree) -> None:
    tree.write("my notes.md", b"Be ${kind}.")
    found = tree.stage_problems("{name: a, prompt: 'x ${text}', instructions: my notes.md}")
    assert len(found) == 1
    assert found[0].startswith("my notes.md:1:4: ")


def test_links_out_of_the_project_are_refused_wherever_a_file_is_named(tree: Tree, tmp_path_factory: Any) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "x.md").write_text("secret")
    (outside / "x.csv").write_text("id\n1\n")
    (tree.root / "link").symlink_to(outside)
    (tree.root / "secret").symlink_to(outside / "x.md")
    text = (
        "input: {path: link/x.csv}\nstages:\n"
        "  - {name: a, prompt: link/x.md, instructions: secret}\n"
        "  - {name: b, template: link/x.md, agent: link/x.md, output_schema: link/x.json}\n"
        "output: {dir: link/out}\n"
    )
    problems = tree.problems(text)
    assert len(problems) == 7
    assert all("leads out of the project" in problem for problem in problems)


def test_the_order_follows_needs_whatever_the_order_of_the_file(tree: Tree) -> None:
    stages = tree.stages("{name: c, needs: b}", "{name: a, needs: []}", "{name: b}")
    assert [(stage.name, stage.index, stage.needs, stage.path) for stage in stages] == [
        ("a", 0, (), "stages[1]"),
        ("b", 1, ("a",), "stages[2]"),
        ("c", 2, ("b",), "stages[0]"),
    ]
    prompts = ["${row_json}", "${row_json}\n\n${a}", "${row_json}\n\n${b}"]
    assert [stage.prompt.text for stage in stages] == prompts, "the row, and what came before"


def test_flags_change_declared_vars_alone_and_name_a_model(tree: Tree) -> None:
    text = "vars: {tone: kind, n: 1}\n" + INPUT + "stages: [{name: a, instructions: 'Be ${vars.tone} ${vars.n}.'}]\n"
    workflow = tree.workflow(text, Overrides(vars={"tone": "curt"}))
    assert (workflow.vars, workflow.stages[0].system) == ({"tone": "curt", "n": 1}, "Be curt 1.")
    with pytest.raises(UsageError, match=r"--var tnoe: .*w.yml declares no such variable; did you mean 'tone'\?"):
        tree.load(text, Overrides(vars={"tnoe": "x"}))
    for model in ("", " "):
        with pytest.raises(UsageError, match="--model is empty; it takes provider/model"):
            tree.load(text, Overrides(model=model))


def test_the_command_lines_input_may_lie_anywhere(tree: Tree, tmp_path_factory: Any) -> None:
    rows = tmp_path_factory.mktemp("elsewhere") / "rows.jsonl"
    rows.write_text("")
    workflow = tree.workflow(GOOD_WORKFLOW, Overrides(input=rows))
    assert (workflow.input.path, workflow.input.format, workflow.input.id_field) == (rows, "jsonl", "id")
    assert workflow.input.shown == str(rows)
    assert tree.workflow("stages: [{name: a}]\n", Overrides(input=rows)).input.path == rows
    with pytest.raises(UsageError, match=r"--input .*nope\.csv: no such file"):
        tree.load(GOOD_WORKFLOW, Overrides(input=rows.parent / "nope.csv"))
    tree.write("rows.txt", "")
    odd = rows.with_suffix(".rows")
    odd.write_text("")
    with pytest.raises(UsageError, match="its name does not tell the format"):
        tree.load(GOOD_WORKFLOW, Overrides(input=odd))
    declared = "input: {path: rows.txt, format: tsv}\nstages: [{name: a}]\n"
    assert tree.workflow(declared, Overrides(input=odd)).input.format == "tsv"
    text = tree.root / "rows.txt"  # which may hold anything
    assert tree.workflow(declared).input.format == "tsv"
    assert tree.workflow(declared, Overrides(input=text)).input.format == "tsv"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("data", r"--input .*/data: is a folder\nName a file in it"),
        ("rows.XLS", r"--input .*/rows\.XLS: xls is not supported yet\nConvert it to csv or jsonl\."),
        ("rows.parquet.gz", r"--input .*/rows\.parquet\.gz: parquet is compressed inside\nUnpack the \.gz around it\."),
        ("rows.db", r"--input .*: a database is named with what to read: sqlite://.*rows\.db\?query=SELECT"),
        ("no/*.csv", r"--input .*/no/\*\.csv: .* matches no file"),
        (".", r"--input '' or \.: is a folder\n"),
    ],
)
def test_a_command_lines_input_that_cannot_be_read_is_told_why(tree: Tree, given: str, expected: str) -> None:
    for name in ("rows.parquet.gz", "rows.XLSX", "rows.db"):
        tree.write(name, "")
    with pytest.raises(UsageError) as caught:
        tree.load(GOOD_WORKFLOW, Overrides(input=Path() if given == "." else tree.root / given))
    assert re.match(expected, f"{caught.value.message}\n{caught.value.remedy}")


def test_results_never_go_where_the_input_or_the_projects_own_files_are(tree: Tree) -> None:
    tree.write("rows/in/r.csv", "id\n")
    own = ("workflows", "agentcards", "schemas", "data", "prompts")
    for folder in (".git", ".git/x", ".agac", *own, "rows", "rows/in"):
        text = f"input: {{path: rows/in/r.csv}}\nstages: [{{name: a}}]\noutput: {{dir: {folder}}}\n"
        [problem] = tree.problems(text)
        held = "the input file" if "rows" in folder else "the project's own files" if folder in own else ""
        assert f"output.dir: {folder} " in problem
        assert held in problem
    source, project = tree.workflow(GOOD_WORKFLOW).input.path, tree.project()
    assert output_folder("elsewhere/x", project.root, project.paths, source) == tree.root / "elsewhere/x"
    for folder in (".", "data", "../x", ".git"):
        with pytest.raises(UsageError, match=r"--output .*: "):
            output_folder(folder, project.root, project.paths, source)


def test_every_problem_of_every_file_comes_at_once_in_file_order(tree: Tree) -> None:
    tree.write("agac.yml", "defalts: {}\ndefaults: {model: m/x}\n")
    tree.write("agentcards/c.md", "---\nshell: true\n---\n${row}\n")
    tree.write("schemas/s.json", '{"type": "objct"}')
    tree.write("prompts/p.md", "a ${\n")
    tree.write("workflows/v.yml", INPUT + "stages:\n  - {name: a, agent: c}\n")
    text = (
        "input: {pth: data/reviews.csv}\nstages:\n"
        "  - {nmae: a, prompt: prompts/p.md, agent: c}\n"
        "  - {name: b, needs: a, output_schema: s.json, temperature: hot}\n"
        "outptu: {}\n"
    )
    assert [line.rpartition(": ")[0] for line in tree.problems(text)] == [
        "agac.yml:1:1: defalts", "agentcards/c.md:2:8: shell: `shell: true` is not supported", "agentcards/c.md:4:1",
        "prompts/p.md:1:3: placeholder is never closed", "schemas/s.json:1:10: type",
        "workflows/w.yml:1:9: input.pth", "workflows/w.yml:3:6: stages[0].nmae",
        "workflows/w.yml:4:61: stages[1].temperature", "workflows/w.yml:5:1: outptu",
    ]  # fmt: skip


def test_one_mistake_hides_no_other(tree: Tree) -> None:
    problems = tree.problems(INPUT + "stages:\n  - {name: a, promt: x}\n  - {name: b, promt: x, needs: c}\n")
    places = [problem.split(": ")[1] for problem in problems]
    assert places == ["stages[0].promt", "stages[1].promt", "stages[1].needs"]
    tree.write("agac.yml", "defalts: {}\n")
    project, found = load_project(tree.root, {})
    assert project is not None, "what could be read of it finds more problems"
    assert len(found) == 1


_ODD = (
    None, True, -1, 1.5, "", "~", "../x", "/etc", "${", "${vars.zz}", "a\0b", "python:a.b", "a|b", "#/x", "(", [], {},
)  # fmt: skip
_ODD += ([1], [{}], [[]], {"a": 1}, {"[key]": 1}, {"$ref": "#"}, {"type": "object", "properties": 5}, {"anyOf": [5]})
_WHOLE: dict[str, Any] = {
    "input": {"path": "data/reviews.csv", "format": "csv"},
    "vars": {"a": 1},
    "defaults": {"timeout": {"total": 3}},
    "stages":
     [{"name": "a", "needs": [], "agent": "c", "prompt": "${x}", "output_schema": {"type": "object", "properties": {}}},
     {"name": "b", "template": "x.md", "output_schema": {"s": "a|b", "t": {"u": "string[]?"}}}],
    "output": {"dir": "out"},
}  # fmt: skip


def _spots(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) within a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [spot for key, inner in items for spot in ((value, key), *_spots(inner))]


@given(st.data())
def test_no_value_anywhere_makes_loading_raise(tmp_path_factory: Any, data: st.DataObject) -> None:
    root = tmp_path_factory.getbasetemp() / "odd"
    for folder in ("workflows", "data", "agentcards"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "agac.yml").write_text("")
    (root / "data/reviews.csv").write_text("id\n")
    (root / "agentcards/c.md").write_text("---\nname: c\n---\n{{agentName}}")
    whole = copy.deepcopy(_WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(_spots(whole)))
        container[key] = copy.deepcopy(data.draw(st.sampled_from(_ODD)))
    (root / "workflows/w.yml").write_text(json.dumps(whole))
    project, problems = load_project(root, {})
    assert project is not None
    workflow, found = load_workflow(project, "w")
    assert workflow or problems or found


def test_what_is_odd_is_a_problem_and_no_crash(tree: Tree) -> None:
    stages = ("[{name: a, needs: '${'}]", "[{name: 5}]", "[5, {name: a}]", "[[]]")
    for text in (
        "[key]: 5\n",
        "vars: {'[key]': }\n",
        "vars: []\n",
        "[]",
        *(f"{INPUT}stages: {one}\n" for one in stages),
    ):
        assert tree.problems(text)


def test_workflows_are_found_by_name_and_by_path(tree: Tree) -> None:
    project = tree.project()
    with pytest.raises(UsageError) as caught:
        find_workflow(project, "x")
    assert caught.value.remedy == "Workflows in workflows/: none."
    for path in ("workflows/reviews.yml", "workflows/b.yaml", "flows/c.yml", "workflows/notes.txt"):
        tree.write(path, GOOD_WORKFLOW)
    assert workflow_names(project) == ["b", "reviews"]
    for name, path in (
        ("reviews", "workflows/reviews.yml"),
        ("b", "workflows/b.yaml"),
        ("reviews.yml", "workflows/reviews.yml"),
        ("workflows/reviews.yml", "workflows/reviews.yml"),
        ("flows/c.yml", "flows/c.yml"),
    ):
        assert find_workflow(project, name) == tree.root / path
    with pytest.raises(UsageError, match=r"no workflow 'reviws'; did you mean 'reviews'\?") as caught:
        find_workflow(project, "reviws")
    assert caught.value.remedy == "Workflows in workflows/: b, reviews."
    with pytest.raises(UsageError, match="leads out of the project"):
        find_workflow(project, "../../etc/x.yml")
    tree.write("workflows/team/deep/below.yml", GOOD_WORKFLOW)
    assert workflow_names(project) == ["b", "below", "reviews"]
    for name in ("below", "team/deep/below", str(tree.root / "workflows/team/deep/below.yml")):
        assert find_workflow(project, name) == tree.root / "workflows/team/deep/below.yml"
    tree.write("workflows/b.yml", GOOD_WORKFLOW)
    with pytest.raises(UsageError, match=r"workflow 'b' is there twice: workflows/b.yml and workflows/b.yaml"):
        find_workflow(project, "b")


def test_the_project_is_found_from_any_folder_below(tree: Tree, tmp_path_factory: Any) -> None:
    deep = tree.root / "a/b"
    deep.mkdir(parents=True)
    assert find_project(deep) == tree.root
    assert find_project(Path("/"), tree.root) == tree.root
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(UsageError, match=r"no agac.yml in") as caught:
        find_project(empty)
    assert "agac init" in str(caught.value.remedy)
    with pytest.raises(UsageError, match=r"has no agac.yml"):
        find_project(tree.root, empty)
    below = empty / "below"
    below.mkdir()
    (empty / ".agac").mkdir()
    (empty / ".agac/agac.db").write_bytes(b"")
    assert (find_project(below), find_project(below, bare=True)) == (empty, below)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o755])
def test_a_project_that_another_user_put_where_all_can_write_is_not_found(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "all/mine").mkdir(parents=True)
    (tmp_path / "all").chmod(mode)
    file = tmp_path / "all/agac.yml"
    file.write_text("")
    assert find_project(tmp_path / "all/mine") == tmp_path / "all"
    os.chown(file, 12345, 12345)
    if mode == 0o755:  # whose folder it is, decides
        assert find_project(tmp_path / "all/mine") == tmp_path / "all"
        return
    assert find_project(tmp_path / "all/mine", bare=True) == tmp_path / "all/mine"
    assert f"agac ignores {file}: another user (12345) put it into a folder that all users can write" in caplog.text
    assert find_project(tmp_path / "all/mine", tmp_path / "all") == tmp_path / "all"


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        ("spec.paths spec.workflow spec.templates", "pydantic yaml jsonschema"),
        ("spec.guards spec.guard_checks", "cel"),
        ("simulator.server", "aiohttp yaml jsonschema"),
        ("providers.batch_apis", "openai anthropic httpx2"),
        ("providers.table providers.model_string providers.provider",
         "aiohttp openai pydantic genai_prices jsonschema jsonschema_rs yaml"),
    ],
)  # fmt: skip
def test_what_every_command_imports_is_light(modules: str, without: str) -> None:
    code = f"import sys, {', '.join(f'agac.{name}' for name in modules.split())}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*done.stdout.split()} & {*without.split()}
