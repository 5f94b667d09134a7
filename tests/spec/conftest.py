"""What tests of `agac.spec` share."""

from pathlib import Path

import pytest
from support.tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)
