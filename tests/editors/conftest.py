"""The YAML language server that editors use, from npm: installed once into pytest's cache, started once a session."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.project import ProjectFolder

from agac import api

sys.path.insert(0, str(Path(__file__).parent))
from lsp import LanguageServer

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(__file__).with_name("package.json")
ENVIRONMENT = dict(os.environ)
"""As it was before the tests: npm may need a proxy that they must not see."""


def installed(folder: Path) -> str:
    """Installs the package into `folder`; gives what went wrong. One worker tries, the others believe it."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    failed = folder / f"failed-{session}"
    if failed.exists():
        return failed.read_text("utf-8")
    shutil.copy(PACKAGE, folder)
    flags = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0"]
    try:
        ran = subprocess.run(
            ["npm", "install", *flags], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=100
        )
        said = [line for line in ran.stderr.splitlines() if line.startswith("npm error")]
        reason = " ".join([f"exit code {ran.returncode}", *said[:3]]) if ran.returncode else ""
    except subprocess.TimeoutExpired:
        reason = "it took more than 100 seconds"
    if reason:
        failed.write_text(reason, encoding="utf-8")
    else:
        (folder / "complete").touch()
    return reason


@pytest.fixture(scope="session")
def language_server_script(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed server; skips where npm cannot install it."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("node and npm are not here, so the YAML language server cannot be installed")
    ((name, version),) = json.loads(PACKAGE.read_text("utf-8"))["dependencies"].items()
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir(f"{name}-{version}") if cache else tmp_path_factory.mktemp("npm")
    script = folder / "node_modules" / name / "bin" / name
    with (folder / "lock").open("w") as lock:  # several workers of one session, or two sessions
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists() and (reason := installed(folder)):
            pytest.skip(f"npm could not install {name} {version}: {reason}")
    return script


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> ProjectFolder:
    """The shipped files as a project of their own, with the schemas beside them."""
    folder = ProjectFolder(tmp_path_factory.mktemp("editors") / "shop")
    for name in ("workflows", "agentcards", "schemas", "prompts", "data"):
        shutil.copytree(ROOT / name, folder.root / name)
    shutil.copy(ROOT / "agac.yml", folder.root)
    return folder


@pytest.fixture(scope="session")
def editor(language_server_script: Path, example: ProjectFolder) -> Iterator[LanguageServer]:
    """An editor with the settings that `agac schema --write` tells people to use."""
    told = api.write_schemas(project=example.root).settings["yaml.schemas"]
    settings = {"schemas": told, "schemaStore": {"enable": False}, "validate": True, "completion": True, "hover": True}
    with LanguageServer(["node", str(language_server_script), "--stdio"], example.root, {"yaml": settings}) as server:
        server.wait_for_problem("workflows/known_to_be_wrong.yml", "nonsense: 1\n")
        yield server
