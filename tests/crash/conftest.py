"""Campaigns of kills start processes one after the other: all of this folder has the marker `processes`."""

from pathlib import Path

import pytest
from support.processes import processes

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before tests are chosen by their markers."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(processes)
