"""The Python SDK: what the command line calls and users import. Each name is loaded when it is first used.

import agac

report = agac.run("product_reviews", project=".")
print(report.summary["rows"], report.exit_code)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agac.api.checking import CheckReport, validate
    from agac.api.reading import StatusReport, export, status
    from agac.api.running import RunOptions, RunReport, run, run_async
    from agac.api.scaffold import init
    from agac.api.showing import CardReport, show_card
    from agac.core.errors import AgacError, ExitCode, Problem, RowError, SpecError, UsageError
    from agac.simulator.embedded import embedded_simulator

_HOMES = {
    "AgacError": "agac.core.errors",
    "CardReport": "agac.api.showing",
    "CheckReport": "agac.api.checking",
    "ExitCode": "agac.core.errors",
    "Problem": "agac.core.errors",
    "RowError": "agac.core.errors",
    "RunOptions": "agac.api.running",
    "RunReport": "agac.api.running",
    "SpecError": "agac.core.errors",
    "StatusReport": "agac.api.reading",
    "UsageError": "agac.core.errors",
    "embedded_simulator": "agac.simulator.embedded",
    "export": "agac.api.reading",
    "init": "agac.api.scaffold",
    "run": "agac.api.running",
    "run_async": "agac.api.running",
    "show_card": "agac.api.showing",
    "status": "agac.api.reading",
    "validate": "agac.api.checking",
}

__all__ = [
    "AgacError",
    "CardReport",
    "CheckReport",
    "ExitCode",
    "Problem",
    "RowError",
    "RunOptions",
    "RunReport",
    "SpecError",
    "StatusReport",
    "UsageError",
    "embedded_simulator",
    "export",
    "init",
    "run",
    "run_async",
    "show_card",
    "status",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'agac.api' has no attribute {name!r}")
