"""The Python SDK: what the command line calls and users import. Each name is loaded when it is first used.

import agac

report = agac.run("product_reviews", project=".")
print(report.summary["rows"], report.exit_code)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agac.api.batches import BatchReport, batch_list, batch_status
    from agac.api.checking import CheckReport, validate
    from agac.api.doctoring import DoctorReport, doctor
    from agac.api.editors import SchemasReport, file_schema, write_schemas
    from agac.api.ending import RunReport
    from agac.api.explaining import WhyReport, why
    from agac.api.graphing import GraphReport, graph, save_drawing
    from agac.api.keeping import BackupReport, GcReport, backup, gc
    from agac.api.looking import InspectReport, RunsReport, inspect, runs
    from agac.api.options import RunOptions
    from agac.api.planning import PlanReport, plan_run
    from agac.api.previewing import DataReport, show_data
    from agac.api.querying import sql
    from agac.api.reading import StatusReport, export, status
    from agac.api.reports import row_ids
    from agac.api.retrieving import CancelReport, RetrieveReport, WaitReport, batch_cancel, batch_retrieve, batch_wait
    from agac.api.retrying import RetryChoice, retry, retry_choice
    from agac.api.running import run, run_async
    from agac.api.scaffold import init
    from agac.api.several import run_several
    from agac.api.showing import CardReport, show_card
    from agac.core.errors import AgacError, ExitCode, Problem, RowError, SpecError, UsageError
    from agac.engine.scope import Retry
    from agac.simulator.server import embedded_simulator
    from agac.store.select import QueryAnswer
    from agac.store.views import View, views

_HOMES = {
    "AgacError": "agac.core.errors",
    "BackupReport": "agac.api.keeping",
    "BatchReport": "agac.api.batches",
    "CancelReport": "agac.api.retrieving",
    "CardReport": "agac.api.showing",
    "CheckReport": "agac.api.checking",
    "DataReport": "agac.api.previewing",
    "DoctorReport": "agac.api.doctoring",
    "ExitCode": "agac.core.errors",
    "GcReport": "agac.api.keeping",
    "GraphReport": "agac.api.graphing",
    "InspectReport": "agac.api.looking",
    "PlanReport": "agac.api.planning",
    "Problem": "agac.core.errors",
    "QueryAnswer": "agac.store.select",
    "RetrieveReport": "agac.api.retrieving",
    "Retry": "agac.engine.scope",
    "RetryChoice": "agac.api.retrying",
    "RowError": "agac.core.errors",
    "RunOptions": "agac.api.options",
    "RunReport": "agac.api.ending",
    "RunsReport": "agac.api.looking",
    "SchemasReport": "agac.api.editors",
    "SpecError": "agac.core.errors",
    "StatusReport": "agac.api.reading",
    "UsageError": "agac.core.errors",
    "View": "agac.store.views",
    "WaitReport": "agac.api.retrieving",
    "WhyReport": "agac.api.explaining",
    "backup": "agac.api.keeping",
    "batch_cancel": "agac.api.retrieving",
    "batch_list": "agac.api.batches",
    "batch_retrieve": "agac.api.retrieving",
    "batch_status": "agac.api.batches",
    "batch_wait": "agac.api.retrieving",
    "doctor": "agac.api.doctoring",
    "embedded_simulator": "agac.simulator.server",
    "export": "agac.api.reading",
    "file_schema": "agac.api.editors",
    "gc": "agac.api.keeping",
    "graph": "agac.api.graphing",
    "init": "agac.api.scaffold",
    "inspect": "agac.api.looking",
    "plan_run": "agac.api.planning",
    "retry": "agac.api.retrying",
    "retry_choice": "agac.api.retrying",
    "row_ids": "agac.api.reports",
    "run": "agac.api.running",
    "run_async": "agac.api.running",
    "run_several": "agac.api.several",
    "runs": "agac.api.looking",
    "save_drawing": "agac.api.graphing",
    "show_card": "agac.api.showing",
    "show_data": "agac.api.previewing",
    "sql": "agac.api.querying",
    "status": "agac.api.reading",
    "validate": "agac.api.checking",
    "views": "agac.store.views",
    "why": "agac.api.explaining",
    "write_schemas": "agac.api.editors",
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


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'agac.api' has no attribute {name!r}")
