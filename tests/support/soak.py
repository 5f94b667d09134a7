"""How long campaigns look: `make test` takes a few cells and examples of each, `make soak` all cells and many examples.

What is drawn at random is the same each time in `make test`, and something else each time in `make soak`.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

SOAK = bool(os.environ.get("AGAC_SOAK"))
T = TypeVar("T")
only_in_soak = pytest.mark.skipif(not SOAK, reason="make soak looks at it")


def few(cells: Sequence[T], step: int, first: int = 0) -> list[T]:
    """Every `step`-th of them, from the `first`; all of them in `make soak`."""
    return list(cells if SOAK else cells[first::step])


def campaign(test: int, soak: int, steps: int = 50) -> settings:
    """The settings of a property that takes long: how many examples, and steps of each where it has steps."""
    return settings(
        max_examples=soak if SOAK else test, deadline=None, derandomize=not SOAK, database=None,
        report_multiple_bugs=False, suppress_health_check=list(HealthCheck), stateful_step_count=steps,
    )  # fmt: skip


settings.register_profile("test", deadline=None, max_examples=25, derandomize=True, database=None)
settings.register_profile("soak", deadline=None, max_examples=1000, database=None)
settings.load_profile("soak" if SOAK else "test")
