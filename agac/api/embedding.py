"""The simulator, started for the time of a run where a model needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from agac.core.errors import AgacError
from agac.plan.plan import ResolvedModel
from agac.simulator.embedded import embedded_simulator
from agac.simulator.settings import SimulatorError


@asynccontextmanager
async def embedded(models: Mapping[str, ResolvedModel]) -> AsyncIterator[dict[str, ResolvedModel]]:
    """The models with the simulator's address filled in, if one of them or of their fallbacks needs it."""
    if not any(one.provider.embedded for model in models.values() for one in (model, *model.fallbacks)):
        yield dict(models)
        return
    try:
        async with embedded_simulator() as base_url:
            yield {name: _at(model, base_url) for name, model in models.items()}
    except SimulatorError as error:
        raise AgacError("the simulator did not start: " + "; ".join(error.problems)) from error


def _at(model: ResolvedModel, base_url: str) -> ResolvedModel:
    fallbacks = tuple(_at(other, base_url) for other in model.fallbacks)
    provider = replace(model.provider, base_url=base_url) if model.provider.embedded else model.provider
    return replace(model, provider=provider, fallbacks=fallbacks)
