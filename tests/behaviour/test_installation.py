"""How agac is installed: which agac runs, what it needs, and what is said where a package is missing."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.project import ProjectFolder, clean_environment

ROOT = Path(__file__).resolve().parents[2]
NEEDS = ("aiosqlite>=0.22.1", "click<9,>=8", "nowhere<3,>=2; (platform_system != 'Windows') and extra == 'data'")


def installed(folder: Path, name: str, version: str, *needs: str) -> None:
    """What an installer leaves of a package beside its modules."""
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    (folder / f"{name}-{version}.dist-info").mkdir()
    (folder / f"{name}-{version}.dist-info/METADATA").write_text("\n".join(lines) + "\n", "utf-8")


def test_doctor_says_what_is_missing_and_what_installs_it(project: ProjectFolder, tmp_path: Path) -> None:
    installed(tmp_path, "agac", "0.1.0", *NEEDS, "nothing; extra == 'dev'")
    installed(tmp_path, "aiosqlite", "0.22.0")
    ran = project.fresh_agac("doctor", "--install", env={"PYTHONPATH": str(tmp_path)})
    assert (ran.code, ran.err) == (1, "")
    cells = [line.split() for line in ran.out.split("\n")]
    assert ["aiosqlite", ">=0.22.1", "0.22.0", "all"] in cells
    assert ["nowhere", "<3,>=2", "none", "all"] in cells
    assert any(one[:2] == ["click", "<9,>=8"] and one[-1] == "all" for one in cells)
    assert "nothing" not in ran.out
    assert ran.out.endswith("\nMissing, or of another version: pip install 'aiosqlite>=0.22.1' 'nowhere<3,>=2'\n")


def test_doctor_finds_here_what_agac_needs(project: ProjectFolder) -> None:
    found = json.loads(project.agac("doctor", "--install", "--json", code=0).out)
    needed = {one["package"]: one for one in found["packages"]}
    assert (needed["duckdb"]["extra"], needed["duckdb"]["bounds"], needed["duckdb"]["ok"]) == ("data", ">=2.0", True)
    assert needed["openai"]["extra"] is None
    assert "parquet" in project.agac("doctor", "--install", code=0).out
    assert not {"pytest", "mkdocs-material"} & needed.keys()


def test_version_says_which_agac_runs_and_which_a_shell_finds(project: ProjectFolder, tmp_path: Path) -> None:
    command = tmp_path / "agac"
    for text, ours in ((f"#!{sys.executable}\nfrom agac.cli.main import main\n", True), ("#!/bin/sh\n", False)):
        command.write_text(text, "utf-8")
        command.chmod(0o755)
        ran = project.agac("version", "--json", env={"PATH": str(tmp_path)}, code=0)
        found = json.loads(ran.out)
        assert found["package"] == str(ROOT / "agac")
        assert (found["on_path"], found["on_path_is_this"]) == (str(command), ours)
        shown = project.agac("version", env={"PATH": str(tmp_path)}, code=0).out
        assert ("`python -m agac` is this one" in shown) is not ours
    assert "  agac on PATH: none; " in project.agac("version", env={"PATH": "/"}, code=0).out


@pytest.mark.parametrize("flags", [(), ("-P",)])
def test_python_m_agac_is_agac_in_any_folder(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "agac").write_text("another program\n", "utf-8")
    for name in ("click.py", "yaml.py", "platform.py", *(["agac.py"] if flags else [])):
        (tmp_path / name).write_text("raise SystemExit(9)\n", "utf-8")
    words = [sys.executable, *flags, "-m", "agac", "version", "--json"]
    ran = subprocess.run(words, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["package"] == str(ROOT / "agac")


def test_nobody_is_told_to_install_what_an_index_has_under_our_name() -> None:
    tool = r"\b(?:pip3?|pipx|uv|uvx|poetry|conda)\b[^\n`]*?\b"
    wanted = tool + r"(?:install|from|with|inject|add|uvx|run)\s+(?:-\S+\s+)*['\"]?agac(?:\[|['\"`\s]|$)(?!@)"
    places = ("agac", "docs", "changelog.d", "README.md", "CONTRIBUTING.md", "Makefile", ".github")
    files = [path for place in places for path in (ROOT / place, *(ROOT / place).rglob("*")) if path.is_file()]
    texts = [path for path in files if path.suffix in (".py", ".md", ".yml", ".svg", ".sql", "")]
    assert len(texts) > 250
    for path in texts:
        text = path.read_text("utf-8")
        assert not re.search(wanted, text, re.MULTILINE), path
        assert "agac[" not in text, path
        assert not re.search(r"\bpypi\.(org|python)|pythonhosted", text), path
