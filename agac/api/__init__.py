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
        examples,
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
    from agac.api.plan import plan_run
    from agac.api.project import CheckReport, RunOptions, validate
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
    from agac.engine.estimate import PlanReport
    from agac.engine.invocation import Retry
    from agac.simulator.server import embedded_simulator
    from agac.store.query import QueryAnswer, View, views

_HOMES = {
    name: module
    for module, names in {
        "agac.api.batches": ("BatchReport", "batch_list", "batch_status"),
        "agac.api.extras": (
            "BackupReport", "CardReport", "DataReport", "GcReport", "SchemasReport", "backup", "examples",
            "file_schema", "gc", "init", "show_card", "show_data", "sql", "write_schemas",
        ),
        "agac.api.graph": ("GraphReport", "graph", "save_drawing"),
        "agac.api.inspect": ("InspectReport", "RunsReport", "inspect", "runs"),
        "agac.api.plan": ("plan_run",),
        "agac.api.project": ("CheckReport", "RunOptions", "validate"),
        "agac.api.report": ("RunReport",),
        "agac.api.retrieve": (
            "CancelReport", "DoctorReport", "RetrieveReport", "WaitReport", "batch_cancel", "batch_retrieve",
            "batch_wait", "doctor",
        ),
        "agac.api.run": ("RetryChoice", "retry", "retry_choice", "run", "run_async", "run_several"),
        "agac.api.status": ("StatusReport", "export", "row_ids", "status"),
        "agac.api.why": ("WhyReport", "why"),
        "agac.core.errors": ("AgacError", "ExitCode", "Problem", "RowError", "SpecError", "UsageError"),
        "agac.engine.estimate": ("PlanReport",),
        "agac.engine.invocation": ("Retry",),
        "agac.simulator.server": ("embedded_simulator",),
        "agac.store.query": ("QueryAnswer", "View", "views"),
    }.items()
    for name in names
}  # fmt: skip
"""The public names, each with the module that has it."""

__all__ = [
    "AgacError", "BackupReport", "BatchReport", "CancelReport", "CardReport", "CheckReport", "DataReport",
    "DoctorReport", "ExitCode", "GcReport", "GraphReport", "InspectReport", "PlanReport", "Problem",
    "QueryAnswer", "RetrieveReport", "Retry", "RetryChoice", "RowError", "RunOptions", "RunReport", "RunsReport",
    "SchemasReport", "SpecError", "StatusReport", "UsageError", "View", "WaitReport", "WhyReport", "backup",
    "batch_cancel", "batch_list", "batch_retrieve", "batch_status", "batch_wait", "doctor", "embedded_simulator",
    "examples", "export", "file_schema", "gc", "graph", "init", "inspect", "plan_run", "retry", "retry_choice",
    "row_ids", "run", "run_async", "run_several", "runs", "save_drawing", "show_card", "show_data", "sql", "status",
    "validate", "views", "why", "write_schemas",
]  # fmt: skip


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
