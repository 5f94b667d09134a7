"""Completion as a shell asks for it: names of the project, quickly, and no word about trouble."""

import shutil
import subprocess
from pathlib import Path

import click
import pytest
from support.batched import put_batch, unsent
from support.commands import template
from support.processes import wait_until
from support.project import ProjectFolder, clean_environment
from support.terminals import PseudoTerminal
from test_pipes import COMMANDS

from agac.cli.completion import COMPLETIONS
from agac.core.errors import ErrorType


def completed(project: ProjectFolder, *words: str, cwd: Path | None = None) -> list[str]:
    """What bash is offered for the last word."""
    asked = {"_AGAC_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["agac", *words]), "COMP_CWORD": str(len(words))}
    ran = project.agac(env=asked, cwd=cwd)
    assert (ran.code, ran.err) == (0, "")
    return [line.partition(",")[2] for line in ran.out.splitlines() if line]


@pytest.fixture
def stocked(project: ProjectFolder) -> ProjectFolder:
    """Three workflows, one of them run twice."""
    stages = [{"name": name, "prompt": "${text}"} for name in ("classify", "reply")]
    project.numbered(2)
    project.workflow("translations")
    project.workflow("returns")
    project.run(project.workflow(stages=stages))
    project.run(project.workflow(stages=[*stages, {"name": "check", "prompt": "${reply}"}]))
    project.write("agentcards/support.md", "---\nmodel: local/large\n---\nBe kind.\n")
    project.write("agentcards/sales.md", "---\nmodel: local/large\n---\nBe brief.\n")
    return project


def test_names_are_offered_wherever_one_is_asked_for(stocked: ProjectFolder) -> None:
    put_batch(stocked)
    put_batch(stocked, **unsent())
    put_batch(stocked, state="CLEANED")
    folders = stocked.root / "workflows/shop/orders"
    folders.mkdir(parents=True)
    (stocked.root / "workflows/translations.yml").rename(folders / "translations.yml")
    for typed, offered in {
        "run -a ": "returns reviews translations",
        "run --workflow re": "returns reviews",
        "--quiet plan --limit 3 -a t": "translations",
        "status -a x": "",
        "run -a reviews --stage ": "classify reply check",
        "run -a reviews --from c": "classify check",
        "run -a translations --until ": "classify",
        "retry last --stage r": "reply",
        "why 1 r-1 ": "classify reply check",
        "run --stage ": "",
        "status ": "last 2 1",  # runs, the newest first
        "inspect l": "last",
        "export --run ": "last 2 1",
        "batch status ": "2 1 batch_0001",  # open batches by both names
        "batch cancel b": "batch_0001",
        "batch retrieve --batch-id ": "2 1 batch_0001",
        "doctor --resubmit --batch-id 1": "1",
        "card show ": "sales support",
        "retry 1 --error ": " ".join(ErrorType),
        "ru": "run runs",
        "run --lim": "--limit",
        "completion ": "bash zsh fish",
    }.items():
        assert completed(stocked, *typed.split(" ")) == offered.split(), typed


def test_every_option_that_takes_a_name_of_the_project_is_completed() -> None:
    for path, command in COMMANDS.items():
        for parameter in command.params:
            if not isinstance(parameter.type, click.Path) and parameter.opts[0] in (
                "-a",
                "--stage",
                "--from",
                "--until",
                "--run",
                "--error",
            ):
                assert parameter.name in COMPLETIONS, f"agac {path} {parameter.opts[0]}"


def test_folders_of_agac_yml_and_the_flag_are_honoured(stocked: ProjectFolder, tmp_path: Path) -> None:
    other = ProjectFolder(tmp_path / "other")
    other.write("agac.yml", "paths: {workflows: flows}\n")
    other.write("flows/summaries.yaml", "stages: [broken\n")
    below = other.root / "deep/down"
    below.mkdir(parents=True)
    assert completed(other, "run", "-a", "", cwd=below) == ["summaries"]
    assert completed(other, "run", "-a", "summaries", "--stage", "") == []
    assert completed(stocked, "--project-dir", str(other.root), "run", "-a", "") == ["summaries"]


def test_trouble_is_met_with_silence(project: ProjectFolder, tmp_path: Path) -> None:
    assert completed(project, "run", "-a", "", cwd=tmp_path) == []
    project.write("agac.yml", "paths: [\n")
    assert completed(project, "run", "-a", "") == []
    project.write(".agac/agac.db", "this is no database, whatever its name may say, and never was one")
    assert completed(project, "inspect", "") == ["last"]
    assert completed(project, "batch", "status", "") == []
    assert "run" in completed(project, "nothing", "")


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds agac, and has a home of its own."""
    path = f"{template().typed}:/usr/local/bin:/usr/bin:/bin"
    return {"PATH": path, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}


def installed(name: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed, so that its completion cannot be tried")
    return name


def test_bash_completes_what_is_typed(stocked: ProjectFolder, shell: dict[str, str]) -> None:
    script = (
        'eval "$(agac completion bash)"\n'
        "COMP_WORDS=(agac run -a re); COMP_CWORD=3; _agac_completion agac re -a; printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    ran = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=stocked.root, env=clean_environment(shell), capture_output=True
    )
    assert ran.stdout.decode().split() == ["returns", "reviews"], ran.stderr.decode()
    for name in ("zsh", "fish"):  # which may not be installed
        assert "_AGAC_COMPLETE" in stocked.agac("completion", name, code=0).out


def test_fish_completes_what_is_typed(stocked: ProjectFolder, shell: dict[str, str]) -> None:
    below = stocked.root / "deep/down"
    below.mkdir(parents=True)
    for typed, offered in (
        ("agac va", ["validate\tCheck workflows without running them."]),
        ("agac backu", ["backup\tCopy the database, also while a run is at work."]),
        ("agac run --concurr", ["--concurrency\tMaximum number of concurrent calls; 1 runs them one at a time."]),
        ("agac run -a re", ["returns", "reviews"]),
        ("agac run --workflow=re", ["--workflow=returns", "--workflow=reviews"]),
        ("agac retry last --stage c", ["check", "classify"]),
        ("agac data ../../age", ["../../agentcards/"]),
    ):
        words = [installed("fish"), "-c", f"agac completion fish | source; complete -C '{typed}'"]
        ran = subprocess.run(words, cwd=below, env=clean_environment(shell), capture_output=True)
        assert ran.stdout.decode().splitlines() == offered, ran.stderr.decode()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("agac vali", "agac validate "),
        ("agac run --concurr", "agac run --concurrency "),
        ("agac run -a tr", "agac run -a translations "),
        ("agac run --workflow=tr", "agac run --workflow=translations "),
        ("agac run -a re", "agac run -a re"),  # two begin so
        ("agac data ../../age", "agac data ../../agentcards/"),
    ],
)
def test_zsh_completes_what_is_typed(
    typed: str, completed: str, stocked: ProjectFolder, shell: dict[str, str], tmp_path: Path
) -> None:
    """In a shell with a terminal: only there it completes. Ctrl-G writes the line into a file."""
    below = stocked.root / "deep/down"
    below.mkdir(parents=True)
    line = tmp_path / "line"
    (tmp_path / ".zshrc").write_text(
        'eval "$(agac completion zsh)"\nPS1="READY> "\n'
        f'tell() {{ print -rn -- "$BUFFER" > {line}.new && mv {line}.new {line} }}; zle -N tell; bindkey "^G" tell\n'
    )
    terminal = PseudoTerminal([installed("zsh"), "-d", "-i"], below, shell, 120, 24)
    try:
        terminal.until("READY> ")
        terminal.press(f"{typed}\t\a".encode())
        wait_until(line.exists, "the line", terminal.process)
        assert line.read_text() == completed, terminal.seen
    finally:
        terminal.close()
