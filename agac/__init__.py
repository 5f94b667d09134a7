"""agac: declarative LLM pipelines. Everything public is a name of `agac.api`, loaded when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Loading the API pulls in asyncio and SQLite: `agac --help` must not pay for that.
    api = import_module("agac.api")
    if name == "api":
        return api
    if name in api.__all__:
        return api.__getattr__(name)  # `api.run` is the module, once it is loaded
    raise AttributeError(f"module 'agac' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*import_module("agac.api").__all__, "__version__"])
