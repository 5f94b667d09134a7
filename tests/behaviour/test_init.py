"""`agac init`: what it makes works at once, and nothing is ever overwritten."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from support.commands import template
from support.project import ProjectFolder, clean_environment
from support.soak import few

import agac

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment in which `agac` is a command."""
    return clean_environment({"PATH": f"{template().typed}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)})


def bash(script: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", ["shop", "my shop's data", "."])
def test_every_step_that_is_printed_works_as_it_is_printed(tmp_path: Path, shell: dict[str, str], name: str) -> None:
    quoted = "'" + name.replace("'", "'\"'\"'") + "'"
    made = bash(f"agac init {quoted}", tmp_path, shell)
    assert (made.returncode, made.stderr) == (0, "")
    files, steps, real = made.stdout.split("\n\n")
    for line in files.split("\n"):
        assert (tmp_path / line.strip()).is_file()
    commands = re.findall(r"^  (.+)$", steps, re.MULTILINE)
    assert commands[-3:] == ["agac validate", "agac run -a reviews", "agac status"]
    done = bash("set -e\n" + "\n".join(commands), tmp_path, shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "reviews, run 1: 5 rows, 5 done" in done.stdout
    (last,) = re.findall(r"^  (agac run .+)$", real, re.MULTILINE)
    refused = bash(last, tmp_path / name, shell)
    assert refused.returncode == 2
    assert "needs the variable OPENAI_API_KEY" in refused.stderr


def test_nothing_is_overwritten_and_nothing_is_written_beside(tmp_path: Path) -> None:
    folder = ProjectFolder(tmp_path / "shop")
    own = folder.write("data/reviews.csv", "id\nmine\n")
    before = sorted(tmp_path.rglob("*"))
    ran = folder.agac("init")
    assert (ran.code, ran.out) == (2, "")
    assert "error: these files are there already: agac.yml, data/reviews.csv\n" in ran.err
    assert "Choose another folder: agac init NAME. Nothing was written." in ran.err
    assert own.read_text("utf-8") == "id\nmine\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_the_new_project_keeps_secrets_out_of_git_and_a_second_one_in_its_folder_is_refused(tmp_path: Path) -> None:
    made = agac.init(tmp_path / "shop")
    assert {path.relative_to(tmp_path / "shop").as_posix() for path in made} == {
        "agac.yml", ".env.example", ".gitignore", "data/reviews.csv", "prompts/classify.md", "workflows/reviews.yml",
    }  # fmt: skip
    ignored = (tmp_path / "shop/.gitignore").read_text("utf-8").split("\n")
    assert {".agac/", "output/", ".env", "agac-pr.json"} <= set(ignored)
    assert "OPENAI_API_KEY=\n" in (tmp_path / "shop/.env.example").read_text("utf-8")
    with pytest.raises(agac.UsageError, match=r"agac\.yml"):
        agac.init(tmp_path / "shop")


def test_a_project_within_a_project_is_its_own(tmp_path: Path) -> None:
    outer = ProjectFolder(tmp_path / "outer")
    made = outer.agac("init", "inner", "--json", code=0).json
    inner = outer.root / "inner"
    assert made["folder"] == "inner"
    assert all((outer.root / path).is_file() for path in made["files"])
    assert outer.agac("status", "--json", cwd=inner / "data").json["project"] == str(inner)
    assert outer.agac("status", "--json").json["project"] == str(outer.root)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(agac.AgacError, match="cannot be written") as caught:
        agac.init(tmp_path / "file/shop")
    assert caught.value.remedy


@pytest.mark.parametrize("example", few([*agac.examples()], 3))
def test_an_example_runs_to_its_end_in_an_empty_folder_without_a_key(tmp_path: Path, example: str) -> None:
    folder = ProjectFolder(tmp_path)
    shop = folder.root / "my shop"
    assert folder.agac("init", "my shop", "--example", example, "--quiet", code=0).out == ""
    assert folder.agac("validate", cwd=shop, code=0).out == f"1 workflow valid: {example}\n"
    fails = example == "contract_risk"  # one clause has no text
    ran = folder.agac("run", example, "--json", cwd=shop, code=3 if fails else 0).json
    assert ran["rows"]["done"] + ran["rows"]["dropped"] == ran["rows"]["total"] > 5
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]
    packed = shipped["wheel"]["force-include"]
    for path in agac.init(tmp_path / "again", example):
        top = path.relative_to(tmp_path / "again").parts[0]
        assert top.startswith(".") or packed[top] == f"agac/api/examples/{top}"
        assert top.startswith(".") or f"/{top}" in shipped["sdist"]["include"]


def test_examples_are_listed_and_are_added_to_a_project_which_stays_as_it_is(tmp_path: Path) -> None:
    folder = ProjectFolder(tmp_path)
    listed = folder.agac("init", "--list", code=0)
    assert re.findall(r"^(\w+) {2,}[A-Z].+\.$", listed.out, re.M) == list(agac.examples())
    assert folder.agac("init", "--list", "--json").json == agac.examples()
    own = folder.write("agac.yml", "defaults: {model: simulator/small, timeout: 5}\n").read_text("utf-8")
    for example in ("support_triage", "product_reviews"):
        made = folder.agac("init", "--example", example, code=0).out
        assert f"  workflows/{example}.yml\n" in made
        assert f"\n  agac run -a {example}\n" in made
    assert "agentcards/support.md" not in made, "the same file is there already"
    assert (tmp_path / "agac.yml").read_text("utf-8") == own
    assert folder.agac("validate", code=0).out == "2 workflows valid: product_reviews, support_triage\n"
    (tmp_path / "prompts/sort.md").write_text("mine", "utf-8")
    refused = folder.agac("init", "--example", "support_triage", code=2)
    assert "prompts/sort.md\n  Choose another folder: agac init --example support_triage NAME." in refused.err
    wrong = folder.agac("init", "--example", "suport_triage", code=2).err
    assert "there is no example 'suport_triage'; did you mean 'support_triage'?" in wrong
