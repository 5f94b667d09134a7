"""The simulator, started for the time of a run where a model needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from agac.core.errors import AgacError
from agac.plan.plan import ResolvedModel
from agac.simulator.server import embedded_simulator
from agac.simulator.settings import Settings, SimulatorError

STATE = "simulator.db"
"""Beside the project's database: what was submitted in batches, and when. The simulator goes on with it next time."""


@asynccontextmanager
async def embedded(models: Mapping[str, ResolvedModel], root: Path) -> AsyncIterator[dict[str, ResolvedModel]]:
    """The models with the simulator's address filled in, if one of them or of their fallbacks needs it."""
    if not any(one.provider.embedded for model in models.values() for one in (model, *model.fallbacks)):
        yield dict(models)
        return
    async with embedded_address(root) as base_url:
        yield {name: _at(model, base_url) for name, model in models.items()}


@asynccontextmanager
async def embedded_address(root: Path) -> AsyncIterator[str]:
    """The simulator's base URL for the time of the block. Its batches are those of the project at `root`."""
    folder = root / ".agac"
    folder.mkdir(exist_ok=True)
    try:
        async with embedded_simulator(Settings(state=folder / STATE)) as base_url:
            yield base_url
    except SimulatorError as error:
        raise AgacError("the simulator did not start: " + "; ".join(error.problems)) from error


def _at(model: ResolvedModel, base_url: str) -> ResolvedModel:
    fallbacks = tuple(_at(other, base_url) for other in model.fallbacks)
    provider = replace(model.provider, base_url=base_url) if model.provider.embedded else model.provider
    return replace(model, provider=provider, fallbacks=fallbacks)
