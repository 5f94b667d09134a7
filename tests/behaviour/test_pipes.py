"""What a pipe gets: whole tables, JSON from every command, and no complaint when it is closed."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import click
import pytest
from support.commands import run_here
from support.project import ProjectFolder, clean_environment, fresh_command, to_its_end
from support.terminals import on_pty

from agac.cli.main import cli
from agac.cli.terminal import table

ASCII = {"PYTHONIOENCODING": "ascii"}
PLAIN_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
LONG = "a_stage_with_a_name_that_is_much_longer_than_anybody_would_want_it_to_be_on_a_terminal_of_eighty_columns"

EXCEPT = {
    "calibrate": "it needs decisions of people; test_calibrate.py reads what it prints",
    "review next": "it asks at a terminal; test_review_files.py has one",
    "completion": "its output is a script for a shell",
    "card lock": "it needs a server; test_mcp_runs.py reads what it prints",
    **dict.fromkeys(("push", "pull", "remote doctor"), "it needs a remote; test_share.py reads what it prints"),
    "merge": "it needs runs in shards; test_shards.py reads what it prints",
    "ci": "it needs a repository and a forge's event; test_ci.py reads what it prints",
    "notify": "it needs targets; test_notify.py has some",
    "ui": "serves until it is ended; test_monitor_security.py reads its line of JSON",
    "simulate": "serves until it is ended; test_commands.py reads the line of JSON that it begins with",
}
"""Commands that are not run here, and why."""

WORDS: dict[str, list[list[str]]] = {
    "init": [["elsewhere"]],
    "validate": [[], ["-a", "reviews"]],
    "lint": [["-a", "reviews"], ["-a", "reviews", "--format", "github"]],
    "plan": [["-a", "reviews"], ["-a", "reviews", "--against", "../before"]],
    "compare": [["1", "2", "--key", "text"]],
    "diff": [["../before"], ["../before", "-a", "reviews"]],
    "test": [[], ["-k", "rev"]],
    "try": [["-a", "reviews", "--stage", LONG, "--model", "local/small", "--yes"]],
    "eval": [["-a", "labelled", "--model", "local/small", "--model", "local/large", "--yes"]],
    "run": [["-a", "reviews"], ["-a", "reviews", "--dry-run"], ["-a", "reviews", "-a", "others"]],
    "process": [["data/rows.csv", "job.jsonl", "--model", "local/large"], ["data/rows.csv", "job.jsonl", "--dry-run"]],
    "resume": [["job_2"]],
    "status": [[], ["last"], ["-a", "reviews"]],
    "runs": [[]],
    "data": [["data/rows.csv"]],
    "review status": [[]],
    "review export": [["reviews.csv", "--force"]],
    "review import": [["decided.csv"]],
    "fix": [["1", "größe-1", "--stage", LONG, "--value", "agac.yml", "--reason", "x", "--reviewer", "Ada"]],
    "inspect": [["last"], ["1", "größe-1"]],
    "show": [[], ["1", "--head", "2"], ["1", "--row", "größe-1"]],
    "retry": [["1", "--dry-run"], ["1", "--from", LONG, "--yes"]],
    "batch status": [["1"], ["--batch-id", "1"]],
    "batch list": [["--all"], []],
    "batch wait": [["1"]],
    "batch cancel": [["1"]],
    "batch retrieve": [["1"], []],
    "doctor": [[]],
    "why": [["1", "größe-1", LONG]],
    "graph": [["-a", "reviews"], ["--run", "1"]],
    "sql": [["SELECT * FROM v_results"], []],
    "export": [["-a", "reviews"], ["--run", "1", "--to", "copy.csv", "--force"]],
    "gc": [["--keep-runs", "5"], ["--keep-runs", "5", "--dry-run"]],
    "backup": [["copy.db", "--force"]],
    "card show": [["support"]],
    "card try": [["support", "Hello"]],
    "schema": [["workflow"], ["project"], ["card"], ["--write"]],
    "version": [[]],
}
"""What each command needs, so that it has something to say."""


def commands() -> dict[str, click.Command]:
    """Every command that does something, by the words that call it."""

    def below(group: click.Group, words: str) -> Iterator[tuple[str, click.Command]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            path = f"{words} {name}".strip()
            yield from below(found, path) if isinstance(found, click.Group) else ()
            if not isinstance(found, click.Group) or found.invoke_without_command:
                yield path, found

    return dict(below(cli, ""))


COMMANDS = commands()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, _shared_server: Any) -> ProjectFolder:
    """A project with a card, two workflows, a finished run, a job, and a run in a batch; its stage has a long name."""
    project = ProjectFolder(tmp_path_factory.mktemp("pipes") / "project")
    project.configure(_shared_server.base_url, batch="openai")
    project.rows({"id": f"größe-{i}", "text": f"I love number {i}"} for i in range(3))
    project.write("agentcards/support.md", "---\nmodel: local/large\n---\nBe kind.\n")
    stage = {"name": LONG, "agent": "support", "prompt": "${text}"}
    project.run(project.workflow(stages=[stage]))
    project.agac("process", *WORDS["process"][0])
    project.run(project.workflow("others", stages=[stage]), fresh=True, run_mode="batch")
    project.write("decided.csv", "review_id,seen,decision,value,comment,reviewer\n")
    project.write("tests/workflows/reviews.yml", "rows: data/rows.csv\n")
    hidden = shutil.ignore_patterns(".agac", "output")
    shutil.copytree(project.root, project.root.parent / "before", ignore=hidden)  # another version
    project.workflow("labelled", stages=[{"name": "short", "prompt": "${id}", "expect": {"label": "text"}}])
    return project


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in EXCEPT])
def test_every_command_prints_json_and_nothing_else(name: str, finished: ProjectFolder) -> None:
    assert any("--json" in parameter.opts for parameter in COMMANDS[name].params), f"agac {name} has no --json"
    assert name in WORDS, f"agac {name}: say here what it needs"
    for words in WORDS[name]:
        for env in ({}, ASCII):
            if env and any(not word.isascii() for word in words):
                continue  # such a word cannot be typed there
            ran = finished.agac(*name.split(), *words, "--json", env=env)
            if name == "init":
                (finished.root / "elsewhere/agac.yml").exists()
                words = [words[0] + "2"]
            assert ran.code == 0 or name == "init", ran.err
            if ran.code == 0:
                assert json.loads(ran.out) is not None


def test_what_is_left_out_has_a_reason_and_exists() -> None:
    assert EXCEPT.keys() <= COMMANDS.keys()
    assert WORDS.keys() | EXCEPT.keys() == COMMANDS.keys()


def test_json_is_json_where_the_stream_has_no_umlauts(finished: ProjectFolder) -> None:
    ran = finished.fresh_agac("inspect", "last", "--json", env=PLAIN_LOCALE)
    assert ran.out.isascii()
    assert ran.json == finished.agac("inspect", "last", "--json").json


def unread(words: list[str], project: ProjectFolder, where: str) -> tuple[int, str]:
    """The exit code of a command whose output nobody reads, and what it says as errors if those are read."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        return written_to(words, project, output, output if where == "both" else None)


def written_to(
    words: list[str], project: ProjectFolder, output: IO[bytes] | None, errors: IO[bytes] | None
) -> tuple[int, str]:
    """The exit code of a command with these streams, and what it says as errors if those are read."""
    with Path(os.devnull).open("r+b", 0) as nothing, TemporaryFile() as said:
        handles = [one.fileno() for one in (nothing, output or nothing, errors or said)]
        code, _, _ = run_here(words, project.root, clean_environment({}), handles)
        said.seek(0)
        return code, said.read().decode()


@pytest.mark.parametrize("where", ["out", "both"])
def test_a_process_whose_output_nobody_reads_ends_in_silence(where: str, finished: ProjectFolder) -> None:
    """The same with Python's own start and end around it."""
    reader, writer = os.pipe()
    os.close(reader)
    errors = writer if where == "both" else subprocess.PIPE
    process = subprocess.Popen(
        fresh_command(["status"]), cwd=finished.root, env=clean_environment({}), stdout=writer, stderr=errors
    )
    os.close(writer)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"" if where == "out" else None)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in {*EXCEPT, "init", "backup", "run", "retry"}])
@pytest.mark.parametrize("where", ["out", "both"])
def test_a_reader_that_has_seen_enough_hears_no_complaint(name: str, where: str, finished: ProjectFolder) -> None:
    """As in `agac runs | head -1`, at its worst: nothing is read at all."""
    code, said = unread([*name.split(), *WORDS[name][0]], finished, where)
    assert code == 0
    assert "Traceback" not in said
    assert "Broken" not in said


@pytest.mark.parametrize("words", [["run", "-a", "nothing"], ["nothing"], ["run", "-a", "reviews", "--fresh"]])
def test_errors_keep_their_exit_code_when_nobody_reads_them(words: list[str], finished: ProjectFolder) -> None:
    assert unread(words, finished, "both")[0] in (0, 2)


@pytest.mark.parametrize(
    ("words", "where", "code", "said"),
    [
        ("status", ">&-", 1, "Bad file descriptor\n  Whatever was run is stored."),
        ("run -a reviews --fresh", ">&-", 1, "error: standard output cannot be written: Bad file descriptor\n"),
        ("-q run -a reviews", ">&-", 0, None),  # nothing was to be printed
        ("--help", ">/dev/full", 1, "error: standard output cannot be written: No space left on device\n"),
        ("-vv run -a reviews --fresh", "2>&-", 0, None),
        ("nothing", "2>&- >&- <&-", 2, None),
        ("-vv --log-file /dev/full run -a reviews", "", 0, "warning: --log-file /dev/full: [Errno 28]"),
    ],
)  # fmt: skip
def test_a_stream_that_cannot_be_written_is_told_where_it_can_be(
    words: str, where: str, code: int, said: str | None, finished: ProjectFolder
) -> None:
    line = f"{shlex.join(fresh_command(()))} {words} {where}"
    ended = to_its_end(["sh", "-c", line], finished.root)
    assert ended.code == code, ended.err
    assert ended.err.count(said or "\0") == (said is not None)
    assert "Traceback" not in ended.err
    assert said is not None or not ended.err


def test_a_full_disk_behind_a_stream_is_told_where_it_can_be(finished: ProjectFolder) -> None:
    """The same in the process of the tests, which starts sooner."""
    with Path("/dev/full").open("wb", 0) as full:
        code, said = written_to(["sql", "--json", "SELECT 1"], finished, full, None)
        assert (code, said.count("output cannot be written: No space left on device\n")) == (1, 1)
        assert written_to(["run", "-a", "reviews", "--fresh"], finished, None, full) == (0, "")


def test_a_table_is_whole_in_a_pipe_and_on_a_narrow_terminal(finished: ProjectFolder) -> None:
    (row,) = [line for line in finished.agac("status", "1").out.splitlines() if line.startswith(LONG)]
    assert "local/large" in row
    for words in (["status", "1"], ["runs"]):  # what is too wide for the terminal stands below one another there
        with on_pty(finished.root, *words, columns=40, fresh=words == ["runs"]) as terminal:
            assert terminal.ended() == 0
        lines = terminal.seen.replace("\r\n", "\n").split("\n")
        assert "row 1" in lines
        assert any(re.fullmatch(r"  calls: \d+", line) for line in lines)
        assert all(len(line) <= 40 for line in lines if line.startswith("  "))


def test_a_terminal_gets_states_in_colour_and_only_the_beginning_of_long_texts(project: ProjectFolder) -> None:
    project.rows([{"id": "a", "text": "long " * 100_000}])
    project.run(project.workflow(stages=[{"name": "keep", "select": ["text"]}]))
    with on_pty(project.root, "runs") as terminal:
        assert terminal.ended() == 0
    assert "\x1b[32mfinished" in terminal.seen
    with on_pty(project.root, "inspect", "last", "a") as terminal:
        assert terminal.ended() == 0
    assert len(terminal.seen) < 10_000
    assert "… (500,000 characters: all of them with --json, or in a pipe)" in terminal.seen
    assert len(project.agac("inspect", "last", "a").out) > 500_000


def test_no_look_floods_a_terminal_whatever_the_values(project: ProjectFolder) -> None:
    """A prompt of many lines and its difference to the one before, a long value, a column with a long name."""
    row = {"id": "a", "text": "long " * 100_000, "lines": "line\n" * 10_000, "long name " * 100: ""}
    project.rows([row], "data/rows.jsonl")
    for prompt in ("${lines}", "${text}\n${lines}"):
        project.run(project.workflow(path="data/rows.jsonl", stages=[{"name": "say", "prompt": prompt}]))
    for words in ("inspect last a", "why last a say", "data data/rows.jsonl"):
        with on_pty(project.root, *words.split(), columns=60) as terminal:
            assert terminal.ended() == 0
        assert len(terminal.seen) < 20_000, words
        assert terminal.seen.count("\n") < 400, words
        assert len(project.agac(*words.split()).out) > 50_000


def test_columns_are_as_wide_as_their_cells_and_a_line_is_a_row() -> None:
    assert table(["a", "n"], [["行列", 1], ["x\ny", 20_000]]).split("\n") == [
        "a          n",
        "行列       1",
        "x\\ny  20,000",
    ]


def test_what_a_row_says_cannot_command_a_terminal_and_a_pipe_shows_it_and_json_has_it_as_it_is(
    project: ProjectFolder,
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m"
    project.write("agentcards/support.md", f"---\nmodel: local/large\n---\nBe kind. {evil}\n")
    words = ["card", "show", "support"]
    project.write("data/rows.jsonl", json.dumps({"id": "a", "text": evil}) + "\n")
    project.workflow(path="data/rows.jsonl", stages=[{"name": evil, "prompt": "x"}])
    looks = (["validate"], ["data", "data/rows.jsonl"], ["validate", "--json"])
    for one in (words, *looks):
        with on_pty(project.root, *one, env={"NO_COLOR": "1"}) as terminal:
            assert terminal.ended() == (2 if "validate" in one else 0)
        assert not {"\x1b", "\x9b"}.intersection(re.sub(r"\x1b\[[01]m", "", terminal.seen)), one  # a bold header
        assert "]0;owned" in terminal.seen
    shown = "\\x1b]0;owned\\x07\\x1b[2J\\x1b[31mred\\x9b1m"
    assert project.agac(*words).out == f"Be kind. {shown}\n", "a job's log is read by people, too"
    assert project.agac(*words, "--json").json["system"] == f"Be kind. {evil}"
