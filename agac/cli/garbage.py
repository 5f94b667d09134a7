"""When to look for garbage. Most of what a start makes is there to stay, and looking through it takes time."""

from __future__ import annotations

import gc
import sys

COLLECT_AFTER = 20_000
"""New objects between two looks for garbage, instead of 700."""


def while_loading() -> None:
    """Do not look while modules are loaded. Short commands end before there is anything worth looking for."""
    gc.disable()


def from_here_on() -> None:
    """Everything is loaded: look for garbage, but not among that. For commands that go on for long."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    gc.enable()


def at_the_end() -> None:
    """The process ends: no use in looking once more. But duckdb, if it was loaded, says what it finds still there."""
    if "_duckdb" in sys.modules:
        gc.unfreeze()
    else:
        gc.freeze()
