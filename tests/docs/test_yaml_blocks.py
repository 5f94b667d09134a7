"""Every YAML block of every page is a file, or keys of a stage, that loads and that the JSON Schema of editors takes;
or says that it is broken, and is."""

import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
from consoles import file_of
from jsonschema import Draft7Validator
from pages import ROOT, Block, blocks, pages

from agac import api
from agac.api import validate
from agac.api.project import open_project
from agac.simulator.fault_files import load_rules, parse_rules, parse_script
from agac.spec.test_files import find_cases
from agac.spec.yaml import parse_yaml

WITH_YAML = [page for page in pages() if any(block.language == "yaml" for block in blocks(page))]
SCHEMAS = {kind: Draft7Validator(api.file_schema(kind)) for kind in ("workflow", "project", "card", "test")}
FRAGMENT = "input: {path: data/product_reviews.csv}\nstages:\n  - name: classify\n"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    for name in ("workflows", "agentcards", "schemas", "prompts", "data", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "agac.yml", tmp_path)
    shutil.copytree(ROOT / "agac/api/template/data", tmp_path / "data", dirs_exist_ok=True)
    return tmp_path


OTHERS = (".github", ".gitlab", "kubernetes-")
"""Files that are not agac's."""
SIMULATED = {"faults.yml": parse_rules, "script.yml": parse_script}
"""Files of the simulator's."""


def write(folder: Path, path: str, text: str) -> Path:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text + "\n", encoding="utf-8")
    return target


def problems(workflow: str | None, folder: Path) -> list[str]:
    return [str(problem) for problem in validate(workflow, project=folder).problems]


def check(block: Block, path: str, folder: Path) -> None:
    target = write(folder, path, block.text)
    if path.startswith(OTHERS):
        return  # test_batch_page.py, tests/forges, test_sharding_files.py
    if path.startswith("tests/workflows/"):
        assert find_cases(open_project(folder).spec, (), target.stem)[1] == [], block.where
    elif path in SIMULATED:
        assert load_rules(target, SIMULATED[path]), block.where
    elif target.stem == "broken":
        assert problems(target.stem, folder), f"{block.where}: is not broken"
        target.unlink()
    else:
        found = problems(None if path == "agac.yml" else target.stem, folder)
        assert [one for one in found if "is not held to this schema" not in one] == [], block.where


@pytest.mark.parametrize("page", WITH_YAML, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_yaml_block_loads(page: Path, example: Path) -> None:
    found = blocks(page)
    for block in found:
        if block.language != "yaml" and (path := file_of(block)):
            write(example, path, block.text)
    for block in (block for block in found if block.language == "yaml"):
        path = file_of(block)
        if path is not None:
            check(block, path, example)
            continue
        assert block.text.startswith("# keys of a stage\n"), f"{block.where}: which file is it?"
        write(example, "workflows/fragment.yml", FRAGMENT + textwrap.indent(block.text, "    "))
        found_here = [one for one in problems("fragment", example) if "npm install" not in one]  # where it is missing
        assert found_here == [], block.where


def judged(block: Block) -> tuple[str, object] | None:
    """The kind of file that a block shows, and what stands in it; None where agac's files are not meant."""
    path = Path(file_of(block) or "")
    data: Any = parse_yaml(block.text, "block").data  # as editors read it: `on` is a text
    if path == Path():
        return "workflow", {"stages": [{"name": "classify", **data}]}
    if path.stem == "broken" or path.name in SIMULATED or path.parts[0].startswith(OTHERS):
        return None
    kinds = {"agac.yml": "project", "agentcards": "card", "tests": "test"}
    return kinds.get(path.parts[0], "workflow"), data


@pytest.mark.parametrize("page", WITH_YAML, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_yaml_block_is_taken_by_its_schema(page: Path) -> None:
    for block in blocks(page):
        if block.language == "yaml" and (found := judged(block)) is not None:
            assert [error.message for error in SCHEMAS[found[0]].iter_errors(found[1])] == [], block.where


def test_the_workflow_of_the_readme_is_the_file_uses_a_card_and_is_short_and_valid() -> None:
    (block,) = [block for block in blocks(ROOT / "README.md") if block.language == "yaml"]
    text = (ROOT / "workflows/product_reviews.yml").read_text("utf-8")
    assert block.text == "# workflows/product_reviews.yml\n" + text.rstrip("\n")
    assert len(text.rstrip("\n").split("\n")) <= 21
    assert "agent: support" in text
    assert problems(None, ROOT) == []
