"""How agac is installed: which agac runs, what it needs, what is said where a package is missing; and what a release
holds: CI, the hook, the container, the source archive."""

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, files, requires
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from support.project import ProjectFolder, clean_environment

import agac

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
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
    assert any(one[:3] == ["nowhere", "<3,>=2", "none"] and one[3] == "parquet," for one in cells)
    assert any(one[:2] == ["click", "<9,>=8"] and one[-1] == "all" for one in cells)
    assert "nothing" not in ran.out
    missing = "Missing, or of another version: pip install 'aiosqlite>=0.22.1'"
    assert ran.out.endswith(f"\n{missing}\nOnly for what is said beside it: pip install 'nowhere<3,>=2'\n")


def test_a_command_whose_package_is_missing_names_it(project: ProjectFolder, tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("raise ModuleNotFoundError('No', name='pydantic')\n", "utf-8")
    ran = project.fresh_agac("validate", env={"PYTHONPATH": str(tmp_path)})
    assert (ran.code, ran.out) == (1, "")
    assert f"pydantic is not installed for {sys.executable}\n  `agac doctor --install`" in ran.err
    installed(tmp_path, "agac", "0.1.0")
    ran = project.fresh_agac("doctor", "--install", env={"PYTHONPATH": str(tmp_path)})
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"error: agac runs from {ROOT} and is not installed\n  pip install {ROOT}\n"


def test_doctor_finds_here_what_agac_needs(project: ProjectFolder) -> None:
    found = json.loads(project.agac("doctor", "--install", "--json", code=0).out)
    needed = {one["package"]: one for one in found["packages"]}
    assert (needed["duckdb"]["extra"], needed["duckdb"]["bounds"], needed["duckdb"]["ok"]) == ("data", ">=2.0", True)
    assert needed["openai"]["extra"] is None
    told = project.agac("doctor", "--install", code=0).out
    assert "parquet" in told
    uses = {line.split()[0]: line.split("  ")[-1].strip() for line in told.split("\n") if line.count("  ") > 2}
    optional = {one["package"] for one in found["packages"] if one["extra"] is not None}
    assert {package for package in optional if uses[package].startswith(("all", "the extra"))} == set()
    assert {uses[package] for package in needed.keys() - optional} == {"all"}
    assert not {"pytest", "mkdocs-material", "batch-agent"} & needed.keys()


def test_version_says_which_agac_runs_and_which_a_shell_finds(project: ProjectFolder, tmp_path: Path) -> None:
    command = tmp_path / "agac"
    for text, ours in ((f"#!{sys.executable}\nfrom agac.__main__ import main\n", True), ("#!/bin/sh\n", False)):
        command.write_text(text, "utf-8")
        command.chmod(0o755 if ours else 0o311)  # the other may be run, and not read
        found = json.loads(project.agac("version", "--json", env={"PATH": str(tmp_path)}, code=0).out)
        assert found["package"] == str(ROOT / "agac")
        assert (found["on_path"], found["on_path_is_this"]) == (str(command), ours)
        shown = project.agac("version", env={"PATH": str(tmp_path)}, code=0).out
        assert (f"; `{sys.executable} -m agac` is this one" in shown) is not ours
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
    places = ("agac", "docs", "changelog.d", "CHANGELOG.md", "README.md", "CONTRIBUTING.md", "Makefile", ".github")
    files = [path for place in places for path in (ROOT / place, *(ROOT / place).rglob("*")) if path.is_file()]
    texts = [path for path in files if path.suffix in (".py", ".md", ".yml", ".svg", ".sql", "")]
    assert len(texts) > 150
    for path in texts:
        text = path.read_text("utf-8")
        assert not re.search(wanted, text, re.MULTILINE), path
        assert "agac[" not in text, path
        assert not re.search(r"\bpypi\.(org|python)|pythonhosted", text), path


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_ci_may_read_only_pins_its_actions_and_makes_what_the_makefile_has() -> None:
    text, targets = text_of(".github/workflows/ci.yml"), set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.M))
    ci = yaml.safe_load(text)
    jobs = ci["jobs"]
    assert ci["permissions"] == {}
    assert all(job["permissions"] == {"contents": "read"} and job["timeout-minutes"] for job in jobs.values())
    assert all(re.search(r"@[0-9a-f]{40}  # v\d", line) for line in text.split("\n") if "uses:" in line)
    assert "secrets." not in text
    made = {*jobs["check"]["strategy"]["matrix"]["target"], *re.findall(r"run: make ([a-z-]+)", text)}
    tests = {"unit", "test-processes", "test-services", "lowest"}
    checks = {"lint", "types", "imports", "pyright", "actions", "docs", "package", *tests}
    assert made == checks
    assert made <= targets
    assert re.findall(r"^make ([a-z-]+)$", text_of(".ci/run"), re.M) == ["test", "test-processes", "test-services"]
    expressions = re.findall(r"pytest -n .* -m (.*)$", text_of("Makefile"), re.M)
    whole = ['"not services and not processes"', '"processes and not services"', "services"]
    assert expressions[:3] == whole, "each test is in one of the three targets"
    pythons = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", one)]
    assert jobs["test"]["strategy"]["matrix"]["python"] == pythons == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == ">=3.11"


def test_the_hooks_of_pre_commit_look_at_the_project(project: ProjectFolder) -> None:
    hooks = yaml.safe_load(text_of(".pre-commit-hooks.yaml"))
    said = {"agac-validate": (0, 2), "agac-lint": (0, 2)}  # for a sound project, and a broken one
    guide = text_of("docs/guide/installing.md")
    assert [hook["id"] for hook in hooks] == [*said]
    for hook in hooks:
        assert (hook["language"], hook["pass_filenames"]) == ("python", False)
        program, *words = hook["entry"].split()
        assert program in PROJECT["scripts"]
        sound, broken = said[hook["id"]]
        project.workflow(rows=1)
        project.agac(*words, code=sound)
        assert hook["always_run"]  # a prompt may have any ending, inputs are looked at, and a file may be deleted
        project.workflow(promt="x")
        project.agac(*words, code=broken)
        assert f"id: {hook['id']}" in guide


def test_the_container_runs_without_rights_and_keeps_its_state_in_a_volume() -> None:
    lines = text_of("Containerfile").split("\n")
    last = {words[0]: words[1] for line in lines if len(words := line.split(maxsplit=1)) == 2}
    assert (last["USER"], last["VOLUME"], last["WORKDIR"]) == ("1000", "/project/.agac", "/project")
    assert last["ENTRYPOINT"] == '["agac"]'
    image, lowest = re.findall(r"'\.\[(.*,.*)\]'", "\n".join(lines) + text_of("Makefile"))
    extras = PROJECT["optional-dependencies"].keys() - {"dev", "docs", "bench"}
    assert set(image.split(",")) == set(lowest.split(",")) == extras
    assert {".env", ".agac", "output"} <= set(text_of(".dockerignore").split("\n"))
    words = json.loads(text_of(".devcontainer/devcontainer.json"))["postCreateCommand"].split()
    assert (words[0], f"$(VENV)/{words[1].removeprefix('.venv/')}:" in text_of("Makefile")) == ("make", True)


def test_the_page_of_a_package_has_no_link_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimpleNamespace(MetadataHookInterface=object)  # the build backend is where a package is built, not here
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", backend)  # type: ignore[arg-type]
    hook = runpy.run_path(str(ROOT / "docs/package_page.py"))["PackagePage"]()
    for home in ("", "https://forge.example/us/agac"):
        monkeypatch.setenv("AGAC_REPOSITORY", f"{home}/")
        hook.update(made := {"version": agac.__version__})
        links = re.findall(r"\[[^\]]+\]\((\S+)\)", made["readme"]["text"])
        assert ("urls" in made, len(links) > 12, PROJECT["version"]) == (bool(home), bool(home), agac.__version__)
        assert all(link.startswith(home) for link in links)
    tag = f"v{agac.__version__}"
    assert {f"{home}/raw/{tag}/docs/assets/run.svg", f"{home}/blob/{tag}/LICENSE"} < {*links}


def test_make_takes_a_python_that_can_make_environments(tmp_path: Path) -> None:
    debian = tmp_path / "python3.11"  # where python3-venv is not installed
    debian.write_text(f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1; esac\nexec {sys.executable} "$@"\n', "utf-8")
    debian.chmod(0o755)
    (tmp_path / "python3.12").symlink_to(sys.executable)
    words, path = ["make", "-n", "VENV=nowhere", "nowhere/.installed"], f"{tmp_path}:{os.environ['PATH']}"
    assert "python3.12 -m venv" in subprocess.check_output(words, cwd=ROOT, env={"PATH": path}, text=True)


def test_the_core_is_at_most_80_mb() -> None:
    sizes = {"agac": sum(path.stat().st_size for path in (ROOT / "agac").rglob("*.py"))}
    for need in (wanted := [*PROJECT["dependencies"]]):
        name = re.split(r"[^\w.-]", need)[0].lower().replace("_", "-")
        if name not in sizes and "extra ==" not in need and any(distributions(name=name)):
            sizes[name] = sum(file.size or 0 for file in files(name) or ())  # bytecode has no size there
            wanted += requires(name) or ()
    assert 60e6 < sum(sizes.values()) < 80e6, sizes


def test_the_source_archive_holds_the_tests_and_what_they_need() -> None:
    named = [name.removeprefix("/") for name in tomllib.loads(text_of("pyproject.toml"))["tool"]["hatch"]["build"]
             ["targets"]["sdist"]["include"]]  # fmt: skip
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    tops = {line.partition("/")[0] for line in listed.stdout.split("\n")} - {"", "pyproject.toml"}
    assert [top for top in tops if top not in named and not ("*.md" in named and top.endswith(".md"))] == []
    assert "tests" in named
