"""Every YAML block of every page is taken by the JSON Schema that editors have; one that is broken need not be."""

from pathlib import Path

import pytest
import yaml
from consoles import file_of
from jsonschema import Draft7Validator
from pages import ROOT, Block, blocks, pages

from agac import api

SCHEMAS = {kind: Draft7Validator(api.file_schema(kind)) for kind in ("workflow", "project", "card")}
WITH_YAML = [page for page in pages() if any(block.language == "yaml" for block in blocks(page))]


def judged(block: Block) -> tuple[str, object] | None:
    """The kind of file that a block shows, and what stands in it; None where agac's files are not meant."""
    path = Path(file_of(block) or "")
    data = yaml.safe_load(block.text)
    if path == Path():
        return "workflow", {"stages": [{"name": "classify", **data}]}
    if path.stem == "broken" or path.name == "faults.yml" or path.parts[0] == ".github":
        return None
    return ("project" if path.name == "agac.yml" else "card" if path.parts[0] == "agentcards" else "workflow"), data


@pytest.mark.parametrize("page", WITH_YAML, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_yaml_block_is_taken(page: Path) -> None:
    for block in blocks(page):
        if block.language == "yaml" and (found := judged(block)) is not None:
            assert [error.message for error in SCHEMAS[found[0]].iter_errors(found[1])] == [], block.where
