"""What tests of `agac.tools` share."""

from pathlib import Path

import pytest
from support.functions import Tools


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path)
