"""The Python SDK: what the command line calls and users import. Each name is loaded when it is first used.

import agac

report = agac.run("product_reviews", project=".")
print(report.summary["rows"], report.exit_code)
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agac.api.batches import BatchReport, batch_list, batch_status
    from agac.api.extras import (
        BackupReport,
        CardReport,
        DataReport,
        GcReport,
        SchemasReport,
        backup,
        file_schema,
        gc,
        init,
        show_card,
        show_data,
        sql,
        write_schemas,
    )
    from agac.api.graph import GraphReport, graph, save_drawing
    from agac.api.inspect import InspectReport, RunsReport, inspect, runs
    from agac.api.options import RunOptions
    from agac.api.plan import PlanReport, plan_run
    from agac.api.project import CheckReport, validate
    from agac.api.report import RunReport
    from agac.api.retrieve import (
        CancelReport,
        DoctorReport,
        RetrieveReport,
        WaitReport,
        batch_cancel,
        batch_retrieve,
        batch_wait,
        doctor,
    )
    from agac.api.run import RetryChoice, retry, retry_choice, run, run_async, run_several
    from agac.api.status import StatusReport, export, row_ids, status
    from agac.api.why import WhyReport, why
    from agac.core.errors import AgacError, ExitCode, Problem, RowError, SpecError, UsageError
    from agac.engine.invocation import Retry
    from agac.simulator.server import embedded_simulator
    from agac.store.query import QueryAnswer, View, views

_HOMES = {
    "AgacError": "agac.core.errors",
    "BackupReport": "agac.api.extras",
    "BatchReport": "agac.api.batches",
    "CancelReport": "agac.api.retrieve",
    "CardReport": "agac.api.extras",
    "CheckReport": "agac.api.project",
    "DataReport": "agac.api.extras",
    "DoctorReport": "agac.api.retrieve",
    "ExitCode": "agac.core.errors",
    "GcReport": "agac.api.extras",
    "GraphReport": "agac.api.graph",
    "InspectReport": "agac.api.inspect",
    "PlanReport": "agac.api.plan",
    "Problem": "agac.core.errors",
    "QueryAnswer": "agac.store.query",
    "RetrieveReport": "agac.api.retrieve",
    "Retry": "agac.engine.invocation",
    "RetryChoice": "agac.api.run",
    "RowError": "agac.core.errors",
    "RunOptions": "agac.api.options",
    "RunReport": "agac.api.report",
    "RunsReport": "agac.api.inspect",
    "SchemasReport": "agac.api.extras",
    "SpecError": "agac.core.errors",
    "StatusReport": "agac.api.status",
    "UsageError": "agac.core.errors",
    "View": "agac.store.query",
    "WaitReport": "agac.api.retrieve",
    "WhyReport": "agac.api.why",
    "backup": "agac.api.extras",
    "batch_cancel": "agac.api.retrieve",
    "batch_list": "agac.api.batches",
    "batch_retrieve": "agac.api.retrieve",
    "batch_status": "agac.api.batches",
    "batch_wait": "agac.api.retrieve",
    "doctor": "agac.api.retrieve",
    "embedded_simulator": "agac.simulator.server",
    "export": "agac.api.status",
    "file_schema": "agac.api.extras",
    "gc": "agac.api.extras",
    "graph": "agac.api.graph",
    "init": "agac.api.extras",
    "inspect": "agac.api.inspect",
    "plan_run": "agac.api.plan",
    "retry": "agac.api.run",
    "retry_choice": "agac.api.run",
    "row_ids": "agac.api.status",
    "run": "agac.api.run",
    "run_async": "agac.api.run",
    "run_several": "agac.api.run",
    "runs": "agac.api.inspect",
    "save_drawing": "agac.api.graph",
    "show_card": "agac.api.extras",
    "show_data": "agac.api.extras",
    "sql": "agac.api.extras",
    "status": "agac.api.status",
    "validate": "agac.api.project",
    "views": "agac.store.query",
    "why": "agac.api.why",
    "write_schemas": "agac.api.extras",
}

__all__ = [
    "AgacError",
    "BackupReport",
    "BatchReport",
    "CancelReport",
    "CardReport",
    "CheckReport",
    "DataReport",
    "DoctorReport",
    "ExitCode",
    "GcReport",
    "GraphReport",
    "InspectReport",
    "PlanReport",
    "Problem",
    "QueryAnswer",
    "RetrieveReport",
    "Retry",
    "RetryChoice",
    "RowError",
    "RunOptions",
    "RunReport",
    "RunsReport",
    "SchemasReport",
    "SpecError",
    "StatusReport",
    "UsageError",
    "View",
    "WaitReport",
    "WhyReport",
    "backup",
    "batch_cancel",
    "batch_list",
    "batch_retrieve",
    "batch_status",
    "batch_wait",
    "doctor",
    "embedded_simulator",
    "export",
    "file_schema",
    "gc",
    "graph",
    "init",
    "inspect",
    "plan_run",
    "retry",
    "retry_choice",
    "row_ids",
    "run",
    "run_async",
    "run_several",
    "runs",
    "save_drawing",
    "show_card",
    "show_data",
    "sql",
    "status",
    "validate",
    "views",
    "why",
    "write_schemas",
]


class _PublicFace(ModuleType):
    """The package. A function that has the name of its module stays the function when the module is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        is_home = isinstance(value, ModuleType) and _HOMES.get(name) == value.__name__
        super().__setattr__(name, getattr(value, name) if is_home else value)


sys.modules[__name__].__class__ = _PublicFace


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'agac.api' has no attribute {name!r}")
