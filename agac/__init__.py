"""agac: declarative LLM pipelines. Everything public is a name of `agac.api`, loaded when it is
first used, or of `agac.testing`, for tests."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agac import testing as testing
    from agac.api import *  # noqa: F403

__version__ = "0.1.0"


class _LazyPackage(ModuleType):
    """A package, this one or `agac.api`: a public name stays the function when a module of that
    name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(value, ModuleType) or name not in import_module("agac.api").__all__:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _LazyPackage

if not TYPE_CHECKING:  # who misspells a name is told

    def __getattr__(name: str) -> Any:
        if name == "testing":
            return import_module("agac.testing")
        # with asyncio and SQLite, for which `agac --help` must not pay
        api = import_module("agac.api")
        if name in ("api", *api.__all__):
            return api if name == "api" else getattr(api, name)
        raise AttributeError(f"module 'agac' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*import_module("agac.api").__all__, "__version__"])
