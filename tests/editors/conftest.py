"""The YAML language server that editors use, from npm: started once a session."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.npm import Npm
from support.project import ProjectFolder

from agac import api

sys.path.insert(0, str(Path(__file__).parent))
from lsp import LanguageServer

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(__file__).with_name("package.json")


@pytest.fixture(scope="session")
def language_server_script(npm: Npm) -> Path:
    """The installed server; skips where npm cannot install it."""
    ((name, _),) = json.loads(PACKAGE.read_text("utf-8"))["dependencies"].items()
    return npm(PACKAGE) / "node_modules" / name / "bin" / name


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> ProjectFolder:
    """The shipped files as a project of their own, with the schemas beside them."""
    folder = ProjectFolder(tmp_path_factory.mktemp("editors") / "shop")
    for name in ("workflows", "agentcards", "schemas", "prompts", "data", "tools"):
        shutil.copytree(ROOT / name, folder.root / name)
    shutil.copy(ROOT / "agac.yml", folder.root)
    return folder


@pytest.fixture(scope="session")
def editor(language_server_script: Path, example: ProjectFolder) -> Iterator[LanguageServer]:
    """An editor with the settings that `agac schema --write` tells people to use."""
    written = api.write_schemas(project=example.root).settings["yaml.schemas"]
    settings = {
        "schemas": written,
        "schemaStore": {"enable": False},
        "validate": True,
        "completion": True,
        "hover": True,
    }
    with LanguageServer(["node", str(language_server_script), "--stdio"], example.root, {"yaml": settings}) as server:
        server.wait_for_problem("workflows/known_to_be_wrong.yml", "nonsense: 1\n")
        yield server
