"""The options of `agac process`: their names, which of them are refused, how they combine, and what they may name."""

from __future__ import annotations

import itertools
import json
import shlex
from typing import Any

import click
import pytest
from scripted_server import Step, answering
from support.project import ProjectFolder

import agac
from agac.cli.main import cli
from agac.cli.process import process as command
from agac.cli.process import resume
from agac.core.errors import SpecError
from agac.spec.yaml import read_yaml

# The options that tools like this one have, with a value each.
OPTIONS = (
    "-i a.csv -o b.jsonl", "--input a.csv --output b.jsonl", "-p x", "--prompt x", "--template x", "--instruction x",
    "-m a/b", "--model a/b", "--json-schema x", "--schema-model m:C", "--var a=b", "--var-file a=b", "--vars-json x",
    "--limit 1 --offset 0 --sample 1 --seed 0", "--sql x", "--include-input", "--no-include-input", "--id-field x",
    "--error-output x --telemetry-output x --summary-output x", "--final-summary", "--no-final-summary", "--resume",
    "--no-resume", "--overwrite", "--max-errors 0", "--parallel 2", "--export-traces x",
    "--progress-every 2", "--progress", "--no-progress", "--retries 0", "--max-retries 0", "--row-timeout 0.5",
    "--max-cost 3", "--budget 3", "--dry-run",
)  # fmt: skip
PARENT = click.Context(cli, **cli.context_settings)
REFUSED = {
    "failed rows end with exit code 3": ("--fail-on-errors",),
    "`agac gc` removes that": ("--keep-temp", "--no-keep-temp"),
    "a model runs no commands": ("--shell", "-x"),
    "hf upload OWNER/NAME FILE": ("--hf-dataset x", "--hf-dataset-path x"),
    "--summary-output FILE has the figures": (
        "--project x", "--trackio-project x", "--run-name x", "--trackio-name x", "--group x", "--trackio-group x",
        "--trackio-space-id x", "--trackio-server-url x", "--trackio-every 2", "--trackio-config-json x",
        "--no-trackio",
    ),
    "No such option": ("--sell",),
}  # fmt: skip


@pytest.mark.parametrize("words", OPTIONS)
def test_an_option_of_such_tools_is_known_by_its_name(words: str) -> None:
    assert command.make_context("process", words.split(), parent=PARENT).params


@pytest.mark.parametrize(("said", "words"), [(said, one) for said, some in REFUSED.items() for one in some])
def test_or_it_is_refused_with_what_there_is_instead(said: str, words: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        command.make_context("process", words.split(), parent=PARENT)
    assert said in refused.value.format_message()


def test_options_that_bound_a_job_do(project: ProjectFolder) -> None:
    project.numbered(2)
    words = ("process", "data/rows.csv", "o.jsonl", "--prompt", "x {id}", "--max-cost", "5", "--no-progress")
    ran = project.agac(*words, code=2)
    assert "or, to the model, `?max_tokens=1000`" in ran.err
    ran = project.agac(*words, "--model", "simulator/small?max_tokens=1000", "--row-timeout", "0.000001", code=3)
    assert (ran.json["failed_rows"], ran.json["errors"][0]["type"]) == (2, "Timeout")
    assert (ran.json["input_rows"], ran.json["selected_rows"]) == (2, 2)
    project.numbered(1_000)
    ran = project.agac(*words[:5], "--model", "simulator/small", "--budget", "calls=1", code=4)
    assert (ran.json["input_rows"], ran.json["selected_rows"], ran.json["ok_rows"]) == (None, None, 1), "not all read"


# Messages say which option, or which line of which file, is meant.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt": "{txt}"}, "--prompt: {txt}: no such field; did you mean 'text'?"),
        ({"template": "t.md"}, "t.md:2:3: {txt}: no such field; did you mean 'text'?"),
        ({"template": "none.md"}, "--template: no such file: 'none.md'; "),
        ({"template": "../t.md"}, "file://{outside}/t.md:2:3: {txt}: no such field"),
        ({"template": "../none.md"}, "--template: file://{outside}/none.md is no file"),
        ({"instruction": "none.md"}, "--instruction: no such file: 'none.md'; "),
        ({"instruction": "be {vars.x}"}, "--instruction: unknown variable {vars.x}"),
        ({"json_schema": "none.json"}, "--json-schema: no such file: 'none.json'; "),
        ({"json_schema": "s.json"}, "s.json:2:11: type: unknown type 'objct'"),
        ({"json_schema": {"type": "object", "properties": {"a": {"type": "x"}}}}, "--json-schema: properties.a.type: "),
        ({"schema_model": "none:Kind"}, "--schema-model: no module 'none'"),
        ({"agent_card": "none.md"}, "--agent-card: no agent 'none.md'; "),
        ({"agent": "none"}, "--agent: no agent 'none'; "),
        ({"id_field": "ids"}, "INPUT: the input has no column 'ids'; "),
        ({"model": "none/small"}, "--model: unknown provider 'none'"),
    ],
)
def test_a_message_says_what_was_typed(
    options: dict[str, Any], said: str, project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    project.numbered(1)
    for folder in (".", ".."):
        project.write(f"{folder}/t.md", "Hi\nx {txt}")
    project.write("s.json", '{\n  "type": "objct"}')
    with pytest.raises(SpecError) as refused:
        agac.process_plan("data/rows.csv", "o.jsonl", agac.ProcessOptions(**options))
    (problem,) = refused.value.problems
    assert str(problem).startswith(said.replace("{outside}", str(project.root.parent)))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("prompt: '{txt}'", "job.yaml:1:9: prompt: {txt}: no such field"),
        ("prompt: x\noutput:\n  schema: {a: strin}", "job.yaml:3:11: a: unknown type 'strin'"),
    ],
)
def test_a_message_names_the_line_of_a_job_file(
    written: str, said: str, project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    project.numbered(1)
    project.write("job.yaml", written)
    with pytest.raises(SpecError) as refused:
        agac.process_plan("data/rows.csv", "o.jsonl", agac.read_job("job.yaml"))
    assert str(refused.value.problems[0]).startswith(said)


# What a prompt may hold.


@pytest.mark.parametrize(
    ("prompt", "kinds"),
    [
        ("${review} of {{product}}", "{{product}} is a placeholder of another kind than ${review}"),
        ("{{review}} of {product}", "{product} is a placeholder of another kind than {{review}}"),
        ("${review} of {product}", "{product} is a placeholder of another kind than ${review}"),
    ],
)
@pytest.mark.parametrize("name", ["data/rows.jsonl", "data/rows.csv"])
def test_placeholders_of_two_kinds_are_refused_until_the_syntax_is_said(
    name: str, prompt: str, kinds: str, project: ProjectFolder
) -> None:
    """Also where nothing tells the fields of the rows before they are read."""
    project.rows([{"review": "good", "product": "mug"}], name)
    words = ("process", name, "o.jsonl", "--prompt", prompt)
    ran = project.agac(*words, code=2)
    assert f"--prompt: {kinds}; write all placeholders alike, or say by `syntax` which kind counts" in ran.err
    assert not (project.root / "o.jsonl").exists()
    syntax = "mustache" if "{{review" in prompt else "dollar"
    assert "1 done" in project.agac(*words, "--syntax", syntax, code=0).err


@pytest.mark.parametrize(
    ("data", "option"),
    [
        (b"id;text\n1;a\n", "'delimiter=;'"),
        (b"id\ttext\n1\ta\n", "'delimiter=\\t'"),
        (b"id,text\n1,caf\xe9\n", "encoding=cp1252"),
        (b"id,text\n1,a\n2\n", "on_short_record=null"),
        (b"id,text\n1,a\n1,b\n", "on_duplicate_id=last"),
    ],
)
def test_a_hint_about_the_input_can_be_followed_with_read(data: bytes, option: str, project: ProjectFolder) -> None:
    (project.root / "data").mkdir(exist_ok=True)
    (project.root / "data/given.csv").write_bytes(data)
    words = ["process", "data/given.csv", "o.jsonl", "--prompt", "Of {text}", "--id-field", "id"]
    words += ["--model", "simulator/echo"]
    refused = project.agac(*words, "--no-progress", "--no-final-summary")
    assert refused.code in (2, 3)
    assert f"(`agac process`: --read {option})" in refused.err
    project.agac(*words, "--no-progress", "--no-final-summary", "--read", *shlex.split(option), code=0)


@pytest.mark.parametrize("text", ["my notes.md", "notes.txt", "prompts/system", "prompts/my system.md", "a.md "])
def test_a_missing_file_is_not_sent_as_the_instruction(text: str, project: ProjectFolder) -> None:
    project.numbered(1)
    ran = project.agac("process", "data/rows.csv", "o.jsonl", "--prompt", "{text}", "--instruction", text, code=2)
    assert f"--instruction: no such file: '{text}'" in ran.err
    assert "If it is a text, end it with a full stop" in ran.err


@pytest.mark.parametrize("path", ["C:\\prompts\\system", "\\\\host\\system", ".\\system"])
def test_a_path_of_windows_is_not_sent_as_the_instruction(path: str, project: ProjectFolder) -> None:
    project.numbered(1)
    ran = project.agac("process", "data/rows.csv", "o.jsonl", "--prompt", "{text}", "--instruction", path, code=2)
    assert "If it is a text, end it with a full stop" in ran.err


@pytest.mark.parametrize("prompt", ["Classify the review.", "Be {{vars.tone}}."])
def test_a_prompt_that_is_the_same_for_all_rows_is_warned_of(prompt: str, project: ProjectFolder) -> None:
    project.numbered(2)
    words = ("process", "data/rows.csv", "o.jsonl", "--prompt", prompt, "--var", "tone=kind")
    assert "--prompt: warning: names no field: every row asks the same" in project.agac(*words, code=0).err


# AgentCards.

CARDS = {
    "a.md": "---\nname: tagger\nmodel: simulator/large\nrequest_params: {temperature: 0}\n---\nTag as {{tone}}.",
    "b.yaml": "instruction: Grade.\ntool_only: true\n",
    "README.md": "# No card",
    "SKILL.md": "---\nname: tagger\n---\n",
}


@pytest.mark.parametrize(
    ("more", "options", "system"),
    [
        ({}, {"agent_card": "cards/a.md"}, "Tag as kind."),
        ({}, {"agent_card": "cards"}, "Tag as kind."),
        ({}, {"agent_card": "cards", "agent": "tagger"}, "Tag as kind."),
        ({"c.yml": "instruction: Sort.\ndefault: true"}, {"agent_card": "cards"}, "Sort."),
        ({"c.yml": "instruction: Sort."}, {"agent_card": "cards", "agent": "c"}, "Sort."),
        ({"../agentcards/c.yml": "instruction: Sort."}, {"agent": "c"}, "Sort."),
        ({"../../far.md": "---\nname: far\n---\nGo."}, {"agent_card": "../far.md"}, "Go."),
        ({"c.yml": "instruction: Sort."}, {"agent_card": "cards"}, "cards has 2 agent cards"),
        (
            {"c.yml": "name: tagger\ninstruction: x"},
            {"agent_card": "cards", "agent": "tagger"},
            "cards has 2 agent cards called tagger",
        ),
        ({}, {"agent_card": "cards", "agent": "b"}, "cards has 0 agent cards called b"),
        ({}, {"agent_card": "cards/a.md", "agent": "b"}, "has 0 agent cards called b"),
        ({}, {"agent_card": "cards", "instruction": "x"}, "--instruction and --agent-card both say the same"),
        (
            {"c.yml": "shell: true"},
            {"agent_card": "cards/c.yml"},
            "`shell: true` is not supported: no model is given a shell",
        ),
        ({"../../far.md": "---\nshell: true\n---\nGo."}, {"agent_card": "../far.md"}, "no model is given a shell"),
    ],
)
def test_a_card_gives_instruction_model_and_parameters(
    more: dict[str, str], options: dict[str, Any], system: str, project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    (project.root / "agac.yml").unlink()
    project.numbered(1)
    for name, text in (CARDS | more).items():
        project.write(f"cards/{name}", text)
    model = None if "agent_card" in options and system.startswith("Tag") else "simulator/small"
    given = agac.ProcessOptions(prompt="{text}", vars={"tone": "kind"}, model=model, **options)
    if not system.endswith("."):
        with pytest.raises(agac.UsageError) as refused:
            agac.process_plan("data/rows.csv", "o.jsonl", given)
        assert system in "".join(map(str, getattr(refused.value, "problems", [refused.value])))
        return
    planned = agac.process_plan("data/rows.csv", "o.jsonl", given, show=1)
    assert [message.text for message in planned.prompts[0].messages] == [system, "I love number 1"]
    assert planned.stages[0].stage.lane == (model or "simulator/large")


def test_a_job_with_a_card_is_resumed_and_saved(project: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    project.numbered(1)
    project.write("cards/a.md", CARDS["a.md"])
    given = agac.ProcessOptions(prompt="{text}", vars={"tone": "kind"}, agent_card="cards")
    report = agac.process("data/rows.csv", "o.jsonl", given)
    assert [report.summary[key] for key in ("model", "agent_card")] == ["simulator/large?temperature=0", "cards/a.md"]
    monkeypatch.chdir(project.root / "data")
    assert agac.resume("job_1").invocation["calls"] == 0
    monkeypatch.chdir(project.root)
    agac.save_job("data/rows.csv", "o.jsonl", given, "workflows/w.yml")
    assert "agent: cards/a.md" in (project.root / "workflows/w.yml").read_text()
    assert agac.run("w").invocation["calls"] == 0
    project.write("skills/refund/SKILL.md", "---\nname: refund\ndescription: How refunds work.\n---\nRefund.\n")
    able = agac.ProcessOptions(prompt="{text}", skills=str(project.root / "skills"), model="simulator/small")
    report = agac.process("data/rows.csv", "s.jsonl", able)
    assert (report.summary["stages"][0]["agent"]["conversations"], report.rows.done) == (1, 1)
    monkeypatch.chdir(project.root / "data")
    assert agac.resume(report.summary["job"]).invocation["calls"] == 0
    monkeypatch.chdir(project.root)
    instruction = project.write("be", "Be kind.")
    agac.process("data/rows.csv", "be.jsonl", agac.ProcessOptions(instruction="be", model="simulator/small"))
    instruction.unlink()
    with pytest.raises(SpecError, match=r"no such file: '\./be'"):  # and never the text "be"
        agac.resume("job_4")
    provider = {"name": "local", "base_url": "http://u:hidden@127.0.0.1:9/v1"}
    with pytest.raises(agac.UsageError, match="provider local: base_url has a user or a password in it") as refused:
        agac.process("data/rows.csv", "p.jsonl", agac.ProcessOptions(provider=provider))
    assert "hidden" not in str(refused.value)
    outside = agac.ProcessOptions(template=str(project.write("../t.md", "x")))
    with pytest.raises(agac.UsageError, match="outside of the project"):
        agac.save_job("data/rows.csv", "o.jsonl", outside, "workflows/x.yml")


@pytest.mark.parametrize("value", ["1e3", "08", "0o17", "1.5e3", "007", ".inf", "a\u2028b", "two\nlines\x85", "~", ""])
def test_a_saved_job_holds_its_texts_as_they_were_given(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(project.root)
    project.numbered(1)
    given = agac.ProcessOptions(prompt="{text}", vars={"tone": value}, model="simulator/small")
    path = agac.save_job("data/rows.csv", "o.jsonl", given, "workflows/w.yml")
    found = read_yaml(path, "w.yml", project.root)
    assert found.problems == []
    assert found.data["vars"] == {"tone": value}
    project.agac("validate", "-a", "w", code=0)


# Options combine freely.

TOGETHER: dict[str, dict[str, Any]] = {
    "sql": {"sql": "SELECT id, upper(text) AS text FROM input WHERE id <> 'r-2' ORDER BY id DESC"},
    "offset": {"offset": 1},
    "sample": {"sample": 3, "seed": 7},
    "limit": {"limit": 2},
    "bounds": {"parallel": 4, "max_errors": 0, "budget": agac.Budget(calls=50), "row_timeout": 30, "max_retries": 1},
    "batch": {"run_mode": "batch"},
    "merge": {"merge": "update", "include_input": True, "id_field": "id"},
    "table": {"format": "csv", "csv_safe": True},
    "json": {"reply": "json"},
    "schema": {"json_schema": {"label": "string"}},
    "card": {"agent_card": "cards/a.md", "vars": {"tone": "kind"}},
    "files": {"error_output": "e.jsonl", "telemetry_output": "t.jsonl", "summary_output": "s.json"},
    "model": {"model": "simulator/large", "temperature": 0.5, "max_tokens": 50, "fresh": True, "overwrite": True},
}


def test_no_option_excludes_another(project: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    project.configure()
    project.numbered(6)
    project.write("cards/a.md", CARDS["a.md"])
    rows = [f"r-{number}" for number in range(1, 7)]
    for one, other in itertools.product(("sql", "batch", "merge"), TOGETHER):
        left = ["r-6", "r-5", "r-4", "r-3", "r-1"] if "sql" in (one, other) else rows
        left = left["offset" in (one, other) :]
        left = left[: 3 if "sample" in (one, other) else None][: 2 if "limit" in (one, other) else None]
        planned = agac.process_plan("data/rows.csv", "o.csv", agac.ProcessOptions(**(TOGETHER[one] | TOGETHER[other])))
        assert (planned.rows["total"], planned.calls, planned.warnings) == (len(left), len(left), []), (one, other)


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        (("sql", "offset", "limit", "bounds", "merge", "files"), ["r-5", "r-4"]),
        (("sql", "sample", "bounds", "schema", "table", "merge", "model"), 3),
        (("sql", "offset", "sample", "limit", "batch", "merge", "schema", "card"), 2),
    ],
)
def test_many_of_them_at_once(
    names: tuple[str, ...], ids: list[str] | int, project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    project.numbered(6)
    project.write("cards/a.md", CARDS["a.md"])
    given = {key: value for name in names for key, value in TOGETHER[name].items()}
    report = agac.process("data/rows.csv", "o.jsonl", agac.ProcessOptions(**{"format": "jsonl"} | given, wait=True))
    assert report.exit_code == 0
    found = [result.id for result in report.results()]
    assert found == ids if isinstance(ids, list) else len(found) == ids
    assert found == sorted(found, reverse=True)


# A job in a file.


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ("llm: {provider: p, model: m, temperature: 0.5, max_tokens: 9}", {"model": "p/m", "temperature": 0.5}),
        ("llm: {provider: openai, api_key: '${K}'}", {"provider": {"name": "openai", "api_key": "${K}"}}),
        ("mode: sequential\nbatch_size: 5", {"parallel": 1}),
        ("processing: {mode: sequential, batch_size: 5}", {"parallel": 1}),
        (
            "processing: {mode: async, batch_size: 5, max_retries: 2, retry_delay: 1s}",
            {"parallel": 5, "retry_delay": 1},
        ),
        ("batch_size: 3\nmax_retries: 1\nprocessing: {batch_size: 5}", {"parallel": 3, "max_retries": 1}),
        ("output: {format: json, merge_strategy: append}", {"reply": "json", "merge": "append", "json_schema": None}),
        ("output: {format: structured}", {"json_schema": {"type": "object"}, "reply": None}),
        ("output: {format: json, schema: s.json}", {"json_schema": "jobs/s.json", "reply": None}),
        ("output: {schema: 'hf://o/m/s.json'}", {"json_schema": "hf://o/m/s.json"}),
        ("prompt: x\noutput: {format: text}", {"prompt": "x", "json_schema": None, "reply": None}),
    ],
)
def test_every_key_of_a_job_file_is_an_option(
    written: str, options: dict[str, Any], project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    project.write("jobs/job.yaml", written)
    found = agac.read_job("jobs/job.yaml")
    assert {name: getattr(found, name) for name in options} == options


GATEWAY = {
    "api_key": "${KEY_OF_PROJECT}",
    "prices": {"m": {"input": 1e6, "output": 1e6}},
    "limits": {"concurrency": 3},
    "headers": {"x-team": "blue"},
}


@pytest.mark.parametrize(
    ("llm", "key"),
    [
        ("provider: openai, model: m, api_key: '${KEY_OF_JOB}'", "job"),
        ("provider: openai, model: m, api_key: '${KEY_OF_JOB}', base_url: null", "job"),
        ("provider: openai, model: m, base_url: null, api_key: ~, temperature: null", "project"),
        ("provider: local, model: m, base_url: 'ADDRESS'", "project"),
        ("model: local/m, base_url: 'ADDRESS', api_key: '${KEY_OF_JOB}'", "job"),
    ],
)
def test_a_job_file_replaces_only_the_keys_of_a_provider_that_it_gives(
    llm: str, key: str, project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address, key, prices, limits and headers of agac.yml hold where the job says nothing else."""
    monkeypatch.chdir(project.root)
    for name in ("project", "job"):
        monkeypatch.setenv(f"KEY_OF_{name.upper()}", f"sk-{name}")
    project.numbered(2)
    with answering(lambda _: Step("ok")) as server:
        elsewhere = "http://127.0.0.1:9/v1"
        rows = {"openai": GATEWAY | {"base_url": server.base_url}, "local": GATEWAY | {"base_url": elsewhere}}
        rows["local"]["dialect"] = "openai-chat"
        project.write("agac.yml", json.dumps({"providers": rows}))
        project.write("job.yaml", f"llm: {{{llm.replace('ADDRESS', server.base_url)}}}\nprompt: '{{text}}'")
        options = agac.read_job("job.yaml", agac.ProcessOptions(limit=1))
        report = agac.process("data/rows.csv", "o.jsonl", options)
        assert report.summary["calls"]["cost_usd"] > 0
        agac.process("data/rows.csv", "o.jsonl", agac.read_job("job.yaml"))
        assert [one["authorization"] for one in server.headers] == [f"Bearer sk-{key}"] * 2
        assert [one["x-team"] for one in server.headers] == ["blue"] * 2


def test_an_unknown_provider_of_a_job_file_speaks_the_api_of_openai(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    project.numbered(1)
    with answering(lambda _: Step("ok")) as server:
        project.write("job.yaml", f"llm: {{model: mine/m, base_url: '{server.base_url}'}}\nprompt: '{{text}}'")
        assert agac.process("data/rows.csv", "o.jsonl", agac.read_job("job.yaml")).exit_code == 0
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("form", "rows"),
    [
        ("text", ['r-1,I love number 1,"{""a"": 1, ""b"": [true]}",']),
        ("json", ["r-1,I love number 1,1,[true],"]),
        ("structured", ["r-1,I love number 1,1,[true],"]),
    ],
)
def test_what_a_reply_is_by_the_format_of_a_job(
    form: str, rows: list[str], project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    project.numbered(1)
    project.write("job.yaml", f"prompt: x\noutput: {{format: {form}}}")
    with answering(lambda _: Step('{"a": 1, "b": [true]}'), project):
        assert agac.process("data/rows.csv", "o.csv", agac.read_job("job.yaml")).exit_code == 0
    assert (project.root / "o.csv").read_text().splitlines()[1:] == rows
    with answering(lambda _: Step("[1]" if form == "structured" else "none"), project):
        failed = agac.process("data/rows.csv", "o.csv", agac.read_job("job.yaml", agac.ProcessOptions(prompt="y")))
    assert failed.exit_code == (0 if form == "text" else 3)


OF_A_NEW_JOB = {"places", "output", "config", "save_workflow", "overwrite", "resume"}
"""What says which job is begun: INPUT and OUTPUT, a job's file, and what becomes of a file that is there."""


def test_resume_takes_what_process_takes() -> None:
    taken = {one.name: one.opts + one.secondary_opts for one in command.params}
    again = {one.name: one.opts + one.secondary_opts for one in resume.params}
    assert taken.keys() >= OF_A_NEW_JOB
    assert {name: taken[name] for name in taken.keys() - OF_A_NEW_JOB} == {
        name: again[name] for name in again.keys() - {"job"}
    }


def test_a_job_whose_prompt_mixes_placeholders_is_resumed_once_the_syntax_is_said(project: ProjectFolder) -> None:
    project.numbered(2)
    project.write("prompt.txt", "Review: {{text}}")
    project.agac("process", "data/rows.csv", "out.jsonl", "--template", "prompt.txt", "--limit", "1", code=0)
    project.write("prompt.txt", "Review: {{text}}. Write ${id}.")
    refused = project.agac("resume", "job_1", "--limit", "2", code=2)
    assert "say by `syntax` which kind counts" in refused.err
    said = ("resume", "job_1", "--limit", "2", "--syntax", "mustache", "--yes")
    assert "Write ${id}." in project.agac(*said, "--dry-run").out
    assert "2 done" in project.agac(*said, code=0).err


def test_a_job_is_resumed_with_other_options(project: ProjectFolder) -> None:
    project.numbered(4)
    first = ("process", "data/rows.csv", "out.jsonl", "--prompt", "Review: ${text}", "--id-field", "id")
    assert project.agac(*first, "--limit", "1").code == 0
    assert len((project.root / "out.jsonl").read_text().splitlines()) == 1
    assert project.agac("resume", "job_1", "--limit", "3", "--no-progress").code == 0
    assert len((project.root / "out.jsonl").read_text().splitlines()) == 3
    planned = project.agac("resume", "job_1", "--prompt", "Other: ${text}", "--limit", "2", "--dry-run")
    assert (planned.code, "Other: " in planned.out) == (0, True)
    assert "one model" in project.agac("resume", "job_1", "-m", "simulator/small", "-m", "simulator/large", code=2).err
    assert agac.resume("job_1", agac.ProcessOptions(limit=2), project=project.root).rows.total == 2
