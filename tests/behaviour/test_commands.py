"""The command line as a process: what it says, where it says it, and how it ends."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.batchclient import BatchClient, rows
from support.project import ProjectFolder, clean_environment
from support.server import Server
from support.terminals import on_pty

from agac.cli.commands import COMMANDS
from agac.cli.main import cli, is_interrupt
from agac.simulator.faults import FAULTS

HEAVY = ("openai", "aiohttp", "duckdb", "pydantic", "jsonschema", "jsonschema_rs", "yaml")
HEAVY_FOR_NAMES = (*HEAVY[:-1], "aiosqlite", "rich", "asyncio", "agac.engine")
PLAIN_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}


@pytest.fixture
def finished(project: ProjectFolder) -> ProjectFolder:
    """A project with a card and one finished run."""
    project.numbered(3)
    project.write("agentcards/support.md", "---\nmodel: local/large\n---\nBe kind.\n")
    project.run(project.workflow(stages=[{"name": "reply", "agent": "support", "prompt": "${text}"}]))
    return project


def test_agac_and_its_commands_have_help(project: ProjectFolder) -> None:
    ran = project.agac("--help")
    assert (ran.code, ran.err) == (0, "")
    names = "init validate run status runs inspect export gc backup card simulate version"
    for name in names.split():
        assert f"\n  {name} " in ran.out
    assert re.findall(r"^(\w+):\n  (\w+)", ran.out, re.MULTILINE)[-5:] == [
        ("Run", "validate"), ("Look", "status"), ("Batch", "batch"), ("Share", "push"), ("Project", "init"),
    ]  # fmt: skip
    assert project.agac("help", code=0) == project.agac(code=0) == ran
    asked = (["run", "-h"], ["card", "show", "--help"], ["card"], ["batch"], ["help", "run"], ["help", "batch", "list"])
    for words in asked:
        command = " ".join(word for word in words if word not in ("-h", "--help", "help"))
        assert project.agac(*words, code=0).out.startswith(f"Usage: agac {command} [OPTIONS]"), words


@pytest.mark.parametrize("columns", [60, 110])
def test_help_wraps_at_the_width_of_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    widest = 0
    for words in ([], *([name] for name in COMMANDS)):
        cli.main([*words, "--help"], standalone_mode=False)
        widest = max(widest, *map(len, capsys.readouterr().out.splitlines()))
    assert columns - 12 < widest <= columns


def test_short_forms_do_what_the_long_ones_do(finished: ProjectFolder) -> None:
    ran = finished.agac("run", "-a", "reviews", "-n", "2", "-o", "output/some", "-v", code=0)
    assert "INFO agac.run: " in ran.err
    assert " 2 done" in ran.out
    assert "output/some/preview/results.jsonl" in ran.out
    assert "DEBUG" in finished.agac("-qvv", "run", "-a", "reviews", "--fresh", code=0).err
    assert finished.agac("sql", "SELECT * FROM v_results", "-n", "1", "--csv", code=0).out.count("\n") == 2


def test_what_was_never_run_is_named_in_what_proposes_it(project: ProjectFolder) -> None:
    project.workflow("summaries", rows=1)
    assert "Start with: agac run -a summaries\n" in project.agac("status").out
    for words in (["batch", "status"], ["inspect", "last"], ["backup", "copy.db"]):
        assert "`agac run -a summaries" in project.agac(*words, code=2).err, words


def test_quiet_leaves_results_and_errors(finished: ProjectFolder) -> None:
    for arguments in (["--quiet", "run", "-a", "reviews"], ["run", "-a", "reviews", "-q"]):
        ran = finished.agac(*arguments)
        assert (ran.code, ran.out, ran.err) == (0, "", "")
        ran = finished.agac(*arguments, "--json")
        assert (ran.json["rows"]["done"], ran.err) == (3, "")
    assert finished.agac("-q", "run", "-a", "nothing").err.startswith("error: no workflow 'nothing'")


def test_the_project_is_found_from_every_folder_in_it_or_named(finished: ProjectFolder, tmp_path: Path) -> None:
    deep = finished.root / "a/b/c"
    deep.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(finished.root / "a")
    for folder in (finished.root, deep.parents[1], deep.parent, deep, link, link / "b"):
        assert finished.agac("status", "--json", cwd=folder).json["project"] == str(finished.root), folder
    place = ["--project-dir", str(finished.root)]
    for words in ([*place, "status"], ["status", *place, "--log-file=log.txt", "--log-level", "info"]):
        assert finished.agac(*words, "--json", cwd=tmp_path).json["project"] == str(finished.root)
    ran = finished.agac("--project-dir", str(tmp_path), "status", cwd=tmp_path, code=2)
    assert ran.err == f"error: {tmp_path} has no agac.yml\n  Run `agac init {tmp_path}` to make a project.\n"
    ran = finished.agac("status", cwd=tmp_path, code=2)
    assert "no agac.yml in" in ran.err
    assert "agac init" in ran.err


MISSPELT = [
    (["xyz"], "no such command 'xyz'. Commands: validate, plan, test, lint, run,"),
    (["fmt", "--check"], "no such command 'fmt'. Format YAML files with Prettier"),
    (["index", "--run", "1"], "no such command 'index'. Search rows in the monitor (`agac ui`);"),
    (["run", "-a", "reviews", "--limitt", "2"], "no such option '--limitt'. Did you mean '--limit'?"),
    (["run", "-a", "reviews", "--var", "shop"], "--var shop: write NAME=VALUE"),
    (["run", "-a", "reviews", "--var", "shop=x"], "error: --var shop: workflows/reviews.yml declares no such var"),
    (["run", "-a", "reviews", "--model", "lcal/small"], "--model: unknown provider 'lcal'; did you mean 'local'?"),
    (["process", "a.csv", "b.csv", "--parallel", "0"], "--parallel: takes 1 to 10000, not 0"),
    (["run", "-a", "reviews", "--limit", "0"], "--limit: takes 1 or more, not 0"),
    (["run", "-a", "reviews", "--output", "workflows"], "error: --output workflows: "),
    (["card", "show", "suport"], "error: no agent 'suport'; did you mean 'support'?"),
    (["completion"], "error: one of bash, zsh, fish is missing\n  For example: `agac completion bash`."),
    (["completion", "tcsh"], "error: 'tcsh' is not one of 'bash', 'zsh', 'fish'\n"),
    (["schema", "foo"], "error: 'foo' is not one of 'workflow', 'project', 'card', 'test'\n"),
    (["retry"], "error: RUN is missing\n  For example: `agac retry last`."),
    (["why", "last", "r-1", "repyl"], "Did you mean 'reply'"),
    (["why", "last", "r-1"], "error: STAGE is missing\n  For example: `agac why last ROW reply`."),
    (["card", "show"], "error: NAME is missing\n  For example: `agac card show support`."),
    (["data"], "For example: `agac data data/rows.csv`."),
    (["graph"], "as in `agac graph -a reviews`"),
    (["run", "-a", "reviews", "--frehs"], "error: no such option '--frehs'\n  `agac run --help` lists"),
    (["retry", "last", "--force"], "'--force'\n  The same command goes on, without it: `agac retry last`."),
    (["run", "--resume", "reviews"], "'--resume'\n  The same command goes on, without it: `agac run reviews`."),
    (["run", "--force"], "'--force'\n  The same command goes on, without it: `agac run -a reviews`."),
    (["retrieve"], "no such command 'retrieve'. Did you mean 'agac batch retrieve'?"),
    (["restart"], "no such command 'restart'. `agac run -a reviews` goes on where the last one ended\n"),
    (["resume"], "error: JOB is missing\n  For example: `agac resume job_1`."),
    (["help", "rnu"], "Did you mean 'agac run'?"),
    (["run", "-a", "reviews", "--model", "local"], "'local' names a provider and no model; write local/<model>\n"),
    (["data", "agac.yml"], "error: agac.yml: its name does not tell the format\n  Add --format csv, or another"),
    (["data", "sqlite://x.db?qery=SELECT 1"], ": unknown parameter 'qery'\n  Did you mean 'query'?\n"),
]


def test_what_is_misspelt_is_said_with_what_was_meant(finished: ProjectFolder) -> None:
    for arguments, said in MISSPELT:
        ran = finished.agac(*arguments)
        assert (ran.code, ran.out) == (2, ""), arguments
        assert said in ran.err


def test_a_card_that_needs_variables_says_how_to_give_them(finished: ProjectFolder) -> None:
    finished.write("agentcards/greet.md", "---\n---\nYou write for {{shop}}.\n")
    ran = finished.agac("card", "show", "support")
    assert (ran.out, "model: local/large" in ran.err) == ("Be kind.\n", True), "only the result is on standard output"
    ran = finished.agac("card", "show", "greet", code=2)
    assert (
        "agentcards/greet.md:3:15: unknown placeholder {{shop}}; known: agentName, agentType, agentCardPath, "
        in ran.err
    )
    assert "give them here with --var NAME=VALUE" in ran.err
    assert finished.agac("card", "show", "greet", "--var", "shop=Northwind").out == "You write for Northwind.\n"


def test_validate_says_every_problem_of_every_file(project: ProjectFolder) -> None:
    project.rows([{"id": "r-1", "text": "fine"}])
    project.write("agentcards/support.md", "---\nmodle: local/small\n---\nBe kind.\n")
    stages = "stages:\n  - name: classify\n    prompt: ${text}\n    output_schema: {sentiment: string}\n"
    stages += "  -       name: reply\n          agent: support\n          promt: x\n"
    head = "description: Two stages.\ninput:\n  path: data/rows.csv\n  id_field: id\nvars:\n  shop: Northwind\n"
    project.write("workflows/reviews.yml", head + stages)
    project.write("workflows/other.yml", "input: {path: data/row.csv}\nstages:\n  - name: one\n    prompt: ${text}\n")
    ran = project.agac("validate", code=2)
    assert ran.out.split("\n") == [
        "agentcards/support.md:2:1: modle: unknown key; did you mean 'model'?",
        "workflows/other.yml:1:15: input.path: no such file: 'data/row.csv'; did you mean 'data/rows.csv'?",
        "workflows/reviews.yml:13:11: stages[1].promt: unknown key; did you mean 'prompt'?",
        "",
    ]
    assert ran.err == "3 problems found\n"
    ran = project.agac("validate", "-a", "other", "--json", code=2)
    assert [(p["file"], p["line"], p["column"], p["path"]) for p in ran.json["problems"]] == [
        ("workflows/other.yml", 1, 15, "input.path")
    ]


def test_status_names_every_flag_that_makes_the_run_what_it_is(project: ProjectFolder, server: Server) -> None:
    project.workflow(rows=9, vars={"shop": "Northwind"})
    flags = ["--limit", "2", "--offset", "3", "--model", "local/large?seed=7", "--var", "shop=My shop"]
    assert project.agac("run", "-a", "reviews", *flags).code == 0
    found = project.agac("status", "--json").json["runs"][0]
    again = "agac run -a reviews --limit 2 --model 'local/large?seed=7' --offset 3 --var 'shop=My shop'"
    assert found["go_on"] == again


def test_rows_with_emoji_pass_through_a_plain_locale(project: ProjectFolder) -> None:
    project.rows([{"id": "r-1", "text": "naïve 👍 …"}])
    project.write("agentcards/support.md", "---\n---\nBe kind 🙂.\n")
    project.workflow(stages=[{"name": "reply", "prompt": "${text}"}], output={"include_input": True})
    assert project.fresh_agac("run", "-a", "reviews", "--model", "local/echo", env=PLAIN_LOCALE).code == 0
    (envelope,) = project.envelopes()
    assert envelope["result"] == "naïve 👍 …"
    assert envelope["input"]["text"] == "naïve 👍 …"
    ran = project.fresh_agac("card", "show", "support", env=PLAIN_LOCALE)
    assert (ran.code, ran.out) == (0, "Be kind \\U0001f642.\n")


@pytest.mark.parametrize(
    ("flags", "env", "coloured"), [([], {}, True), (["--no-color"], {}, False), ([], {"NO_COLOR": "1"}, False)]
)
def test_colour_is_for_terminals_and_can_be_turned_off(
    project: ProjectFolder, flags: list[str], env: dict[str, str], coloured: bool
) -> None:
    ran = project.agac("run", "-a", project.workflow(rows=2))
    assert not {"\x1b", "\r"} & set(ran.out + ran.err), "nor a progress line in a file"
    with on_pty(project.root, *flags, "run", "-a", "nothing", env=env) as terminal:
        assert terminal.ended() == 2
    assert "no workflow 'nothing'" in terminal.seen
    assert ("\x1b[" in terminal.seen) is coloured


def test_simulate_keeps_batches_for_the_next_time(project: ProjectFolder) -> None:
    flags = ["--port", "0", "--json", "--state", "kept/simulated.db", "--batch-seconds", "60"]
    counts = []
    for lines in (rows(3), None):
        process = project.start("simulate", *flags)
        assert process.stdout is not None
        root = json.loads(process.stdout.readline())["base_url"].removesuffix("/v1")
        counts.append(asyncio.run(one_batch(root, lines)))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[1] == b""
        assert process.returncode == 0
    assert counts == [1, 3]
    assert (project.root / "kept/simulated.db").is_file()


async def one_batch(root: str, lines: list[dict[str, Any]] | None) -> int:
    """How many requests of the only batch, made now of these lines, are done 20 seconds later."""
    async with aiohttp.ClientSession() as session:
        api = BatchClient(session, root)
        if lines is not None:
            await api.create(lines)
        await api.advance(20 if lines is not None else 60)
        (batch,) = (await api.ok("GET", "/batches"))["data"]
        return int(batch["request_counts"]["completed"])


def test_simulate_names_every_kind_of_fault_and_says_what_is_wrong_with_its_flags(project: ProjectFolder) -> None:
    said = " ".join(project.agac("simulate", "--help").out.split())
    assert [kind for kind in FAULTS if f" {kind}" not in said] == []
    ran = project.agac("simulate", "--port", "0", "--latency", "soon", "--faults", "none.yml", code=2)
    assert ran.out == ""
    assert "latency 'soon' is none that the simulator knows" in ran.err
    assert "no such file: none.yml" in ran.err


def test_light_commands_and_completion_load_nothing_heavy(finished: ProjectFolder) -> None:
    names = {"_AGAC_COMPLETE": "bash_complete", "COMP_WORDS": "agac run -a ", "COMP_CWORD": "3"}
    light = ("--help", "version", "status", "status 1", "status -a reviews", "runs", "run --help")
    cases = [*((words, None, HEAVY) for words in light), ("", names, HEAVY_FOR_NAMES)]
    for words, asked, heavy in cases:
        program = (
            "import sys\n"
            f"sys.argv = ['agac', *{words.split()!r}]\n"
            "from agac.cli.main import main\n"
            "try:\n    main()\n"
            "except SystemExit as end:\n    assert not end.code, end.code\n"
            f"print('loaded:', [name for name in {heavy!r} if name in sys.modules])\n"
        )
        env = clean_environment(asked)
        ran = subprocess.run(
            [sys.executable, "-c", program], cwd=finished.root, env=env, capture_output=True, check=True
        )
        assert ran.stdout.decode().endswith("loaded: []\n"), words
        assert not asked or b"plain,reviews\n" in ran.stdout


def test_a_run_loads_nothing_of_shards_and_workers(finished: ProjectFolder) -> None:
    program = (
        "import sys, agac\n"
        "assert not agac.run('reviews', agac.RunOptions(fresh=True)).exit_code\n"
        "print([name for name in sys.modules if name == 'ray' or 'sharding' in name or 'workers' in name])\n"
    )
    done = [sys.executable, "-c", program]
    ran = subprocess.run(done, cwd=finished.root, env=clean_environment(None), stdout=subprocess.PIPE, check=True)
    assert ran.stdout == b"[]\n"


@pytest.mark.parametrize(
    ("error", "interrupted"),
    [
        (RuntimeError("Query interrupted"), True),  # duckdb
        (ValueError('Error building "model" validator:\n  KeyboardInterrupt: '), True),  # pydantic
        (RuntimeError("coroutine raised StopIteration"), False),
        (KeyError("row"), False),
    ],
)
def test_a_ctrl_c_that_a_library_reports_as_its_own_error_is_no_bug(error: Exception, interrupted: bool) -> None:
    assert is_interrupt(error) is interrupted


def test_problems_of_agac_yml_of_keys_and_of_placeholders_come_together(project: ProjectFolder) -> None:
    project.numbered(2)
    project.write("agac.yml", "providers:\n  own: {dialect: gemini, base_url: 'http://127.0.0.1:1/v1'}\n")
    project.write(
        "workflows/w.yml",
        "input: {path: data/rows.csv, id_field: idd}\nstages:\n"
        "  - {name: a, promptt: x, prompt: '${txt} ${text.x}', model: foo/bar, output_schema: {s: string}}\n"
        "  - {name: b, prompt: '${a.s.x}', model: simulator/small}\n",
    )
    checked, ran = project.agac("validate"), project.agac("run", "-a", "w")
    assert (checked.code, ran.code) == (2, 2)
    for said in (
        "providers.own.dialect: dialect 'gemini' is not supported yet",
        "stages[0].promptt: unknown key; did you mean 'prompt'?",
        "input.id_field: the input has no column 'idd'; did you mean 'id'?",
        "${txt}: no such field; did you mean 'text'?",
        "${text.x}: the column 'text' holds text, which has no field 'x'; write ${text}",
        "unknown provider 'foo'",
        "${a.s.x}: no such field",
    ):
        assert said in checked.out, said
        assert said in ran.err, said
    assert "dialect is missing" not in checked.out
    broken = "stages: [{name: a, prompt: x, when: 'a ===', output_schema: {s: strng}}]\n"
    project.write("workflows/w.yml", "input: {path: data/rows.csv, id_field: idd}\n" + broken)
    for said in ("unknown type 'strng'", "`===` is written `==`", "the input has no column 'idd'"):
        assert said in project.agac("validate").out, said


def test_what_is_wrong_in_an_env_file_is_told_among_the_other_problems(project: ProjectFolder) -> None:
    project.workflow(rows=1)
    project.write("workflows/w.yml", "input: data/gone.csv\nstages: [{name: a, promptt: x}]\n")
    (project.root / ".env").write_bytes(b"A=1\n\nB=\xff\n\nMY_KEY sk-canary\nB='x\ny'\nC=\"never closed\n")
    for words in (["validate"], ["run", "-a", "w"], ["plan", "w"]):
        ran = project.agac(*words, code=2)
        said = (ran.out + ran.err).splitlines()
        remedy = "write each line as NAME=value, a value of several lines in quotes, and comments with #"
        for line, wrong in ((3, "the line is not UTF-8; save the file as UTF-8"), (5, remedy), (8, remedy)):
            assert any(f".env:{line}: " in one and wrong in one for one in said), said
        assert any("data/gone.csv" in one for one in said)
        assert any("promptt: unknown key; did you mean 'prompt'?" in one for one in said)
        assert "canary" not in ran.out + ran.err
    kept = (project.root / "agac.yml").read_text("utf-8")
    project.write("agac.yml", "limit: [\n")
    assert ".env:5: the line cannot be read" in project.agac("validate", code=2).out
    project.write("agac.yml", kept)
    project.write(".env", "A=1\nB='x\ny'\nexport C=\"z\"\n\n")
    project.agac("validate", "reviews", code=0)


@pytest.mark.parametrize(
    ("name", "folder", "warned"),
    [
        ("aux", None, "workflows/aux.yml: Windows has no files or folders called 'aux.yml'"),
        ("fine", "results/con", "results/con: Windows has no files or folders called 'con'"),
        ("fine", "results/a:b", "results/a:b: Windows has no files or folders called 'a:b'"),
        ("fine", "results/Lpt1.old/x", "results/Lpt1.old/x: Windows has no files or folders called 'Lpt1.old'"),
        ("fine", "results/what?", "results/what?: Windows has no files or folders called 'what?'"),
        ("fine", "results/end.", "results/end.: Windows has no files or folders called 'end.'"),
        ("console", "results/com/auxiliary.nul", None),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="these names cannot be made there")
def test_names_that_windows_cannot_hold_are_warned_of(
    project: ProjectFolder, name: str, folder: str | None, warned: str | None
) -> None:
    project.workflow(name, rows=1, output={"dir": folder} if folder else {})
    checked = project.agac("validate", code=0)
    assert checked.out.count("Windows") == (warned is not None)
    assert warned is None or f"workflows/{name}.yml: warning: {warned}; rename it" in checked.out
    assert "Windows" not in project.agac("run", name, code=0).err


def test_the_workflow_may_be_an_argument(finished: ProjectFolder) -> None:
    finished.workflow("other", rows=2)
    for words in (["run", "reviews"], ["plan", "reviews"], ["validate", "reviews"], ["graph", "reviews", "--mermaid"]):
        flagged = [*words[:1], "-a", *words[1:]]
        assert finished.agac(*words, code=0).out.replace(" -a", "") == finished.agac(*flagged, code=0).out.replace(
            " -a", ""
        ), words
    assert [one["workflow"] for one in finished.agac("run", "reviews", "other", "--json", code=0).json] == [
        "reviews",
        "other",
    ]
    path = finished.root / "workflows/reviews.yml"
    assert finished.agac("run", "-a", str(path), "--json", code=0).json["workflow"] == "reviews"
    assert "`agac run -a other`" in finished.agac("run", code=2).err
    assert "no workflow 'nothing'" in finished.agac("run", "nothing", "other", "--until", "nowhere", code=2).err
    assert "takes one workflow" in finished.agac("graph", "reviews", "other", code=2).err


def test_validate_reports_in_one_pass_what_does_not_hang_on_another(project: ProjectFolder) -> None:
    project.numbered(2)
    broken = (
        "input: {path: data/none.csv}\nstages:\n  - {name: a, vote: x, replicas: 2}\n  - {name: b, model: foo/bar}\n"
    )
    project.write("workflows/deep/down/w.yml", broken + "output: {dir: /tmp/x}\n")
    for folder in ("one", "two"):
        project.write(f"workflows/{folder}/twice.yml", "input: data/rows.csv\nstages: [{name: a}]\n")
    said = project.agac("validate", code=2).out
    for part in (
        "workflows/deep/down/w.yml:1:15: input.path: no such file: 'data/none.csv'",
        "stages[1].model: unknown provider 'foo'",
        "stages[0].vote: vote names a field of the results",
        "output.dir: '/tmp/x' is not relative",
        "workflow 'twice' is there twice: workflows/one/twice.yml and workflows/two/twice.yml. Rename one of the files",
    ):
        assert part in said
    project.write("agac.yml", "defaults: {model: [}\n")
    project.write("workflows/deep/down/w.yml", "inptu: {path: data/none.csv}\nstages: [{nme: a}]\n")
    said = project.agac("validate", code=2).out
    assert "agac.yml:1:" in said
    assert "workflows/deep/down/w.yml:1:1: inptu: unknown key; did you mean 'input'?" in said
    assert "stages[0].nme" in said


def test_status_speaks_of_the_run_that_was_last_at_work_and_paths_can_be_typed_here(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=2))
    project.run(limit=1)
    (project.root / "deep").mkdir()
    ran = project.agac("run", "-a", "reviews", cwd=project.root / "deep")
    assert "Results: ../output/reviews/results.jsonl " in ran.out
    assert "Results of run 1: output/reviews/results.jsonl" in project.agac("status").out


def test_a_project_without_workflows_is_not_valid(project: ProjectFolder) -> None:
    assert project.agac("validate", code=2).out.startswith("workflows/: no workflow is here; ")
