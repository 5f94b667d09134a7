"""Tests that start something large beside agac: a cluster or machines that share a run, a browser, another's server, a
forge, a program of npm, a kernel.

`make test` leaves them to `make test-services`, by the marker `services`. A fixture that starts such a thing is
decorated with `starts_service`, which marks every test that uses it. What such fixtures call says `starts(...)`: it
refuses to start anything for a test that lacks the marker, so that no test can come into `make test` by mistake.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

Function = TypeVar("Function", bound=Callable[..., Any])

services = pytest.mark.services
_running: list[pytest.Item] = []
"""The test that runs in this process, if one does."""


def starts_service(fixture: Function) -> Function:
    """Marks every test that uses this fixture; stands below `pytest.fixture`."""
    fixture.starts_service = True  # type: ignore[attr-defined]
    return fixture


def mark_users(items: Iterable[pytest.Item]) -> None:
    """Gives the marker to each test among whose fixtures one starts a service."""
    for item in items:
        fixtures = getattr(item, "_fixtureinfo", None)
        used = fixtures.name2fixturedefs.values() if fixtures else ()
        if any(hasattr(definitions[-1].func, "starts_service") for definitions in used):
            item.add_marker(services)


def runs(item: pytest.Item) -> None:
    """Called before the fixtures of a test are set up."""
    _running[:] = [item]


def starts(service: str) -> None:
    """Called before a service starts: fails if the test that wants it has no marker."""
    if _running and _running[0].get_closest_marker("services") is None:
        name = _running[0].nodeid
        pytest.fail(f"{name} starts {service}: it needs the marker `services`, or a fixture of support.services")
