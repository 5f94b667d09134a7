"""The Python API: what the command line calls and users import. Each name is loaded when it is
first used.

import agac

report = agac.run("product_reviews", project=".") print(report.rows.done, report.exit_code)

Functions that wait are synchronous and work where an event loop runs already, as in a notebook;
each has an async twin whose name begins with `a`: `await agac.arun("product_reviews")`."""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # one line a module, where ruff has one a name; `homes` reads this block
    # isort: off
    # fmt: off
    from agac.api.batches import BatchReport, batch_list, batch_status
    from agac.api.blocks import ray_map
    from agac.api.calibrate import CalibrateReport, calibrate
    from agac.api.card_trial import TrialReport, try_card
    from agac.api.cards import CardReport, LockReport, lock_card, show_card
    from agac.api.compare import ComparisonReport, compare
    from agac.api.database import BackupReport, GcReport, backup, gc, sql
    from agac.api.diff import DiffReport, PlanComparison, diff, plan_against
    from agac.api.editor_schemas import SchemasReport, file_schema, write_schemas
    from agac.api.evaluation import Evaluation, evaluate
    from agac.api.fix import FixReport, fix, reviewer
    from agac.api.graph import GraphReport, graph, save_drawing
    from agac.api.export import export
    from agac.api.inspect import InspectReport, RunsReport, inspect, runs, show
    from agac.api.job_files import read_job, save_job
    from agac.api.map_reduce import amap_reduce, map_reduce
    from agac.api.merge import MergeReport, merge
    from agac.api.new_project import examples, init
    from agac.api.notify import NotifyReport, notify_test
    from agac.api.plan import Quote, plan
    from agac.api.job_options import ProcessOptions
    from agac.api.process import process, process_plan, resume
    from agac.api.project_check import CheckReport, validate
    from agac.api.run_options import RunOptions
    from agac.api.report import RunReport
    from agac.api.result_rows import ResultRow, Sink
    from agac.api.retrieve import (
        CancelReport, DoctorReport, RetrieveReport, WaitReport, batch_cancel, batch_wait, doctor,
        retrieve,
    )
    from agac.api.review import Decision, ReviewItem, ReviewPage, review_item, review_queue
    from agac.api.review_decisions import DecideReport, decide
    from agac.api.review_files import review_export, review_import
    from agac.api.review_report import ReviewReport, review_report
    from agac.api.retries import RetryChoice, retry, retry_choice
    from agac.api.run import Workflow, run_several
    from agac.api.run_compare import RunComparison, compare_runs
    from agac.api.remote_doctor import RemoteReport, remote_doctor
    from agac.api.share import PullReport, PushReport, pull, push
    from agac.api.shard_states import ShardsReport, shard_status
    from agac.api.show_data import DataReport, show_data
    from agac.api.status import StatusReport, row_ids, status
    from agac.api.style import LintReport, lint
    from agac.api.sync import asynchronous
    from agac.api.task_keys import OpenCodeRuntime, Phase, TaskKeys
    from agac.api.task_run import arun, astream, run, stream
    from agac.api.task_workflow import AgentResult, AgentRun
    from agac.api.trial import StageTrial, trial
    from agac.api.why import WhyReport, why
    from agac.api.workflow_tests import WorkflowTestReport, run_tests
    from agac.core.errors import (
        AgacError, ExitCode, LeaseHeld, LeaseLost, Problem, RowError, SpecError, StoreCorrupt,
        StoreError, StoreOutdated, StoreTooNew, UsageError,
    )
    from agac.core.types import WebSource
    from agac.data.frames import GivenRows
    from agac.engine.forecast.forecasts import PlanReport
    from agac.engine.invocation import Retry
    from agac.engine.summary import RowCounts, RunSummary
    from agac.simulator.server import embedded_simulator
    from agac.spec.given_tools import Tool
    from agac.spec.tools import McpServer
    from agac.spec.rules import Budget
    from agac.store.query import QueryAnswer, View, views
    from agac.tools.tool_functions import tool
    # fmt: on
    # isort: on

    abatch_cancel = asynchronous(batch_cancel)
    abatch_list = asynchronous(batch_list)
    abatch_status = asynchronous(batch_status)
    abatch_wait = asynchronous(batch_wait)
    acalibrate = asynchronous(calibrate)
    afix = asynchronous(fix)
    areview_export = asynchronous(review_export)
    areview_import = asynchronous(review_import)
    adoctor = asynchronous(doctor)
    aexport = asynchronous(export)
    agc = asynchronous(gc)
    agraph = asynchronous(graph)
    ainspect = asynchronous(inspect)
    aplan = asynchronous(plan)
    aretrieve = asynchronous(retrieve)
    adecide = asynchronous(decide)
    areview_item = asynchronous(review_item)
    areview_queue = asynchronous(review_queue)
    areview_report = asynchronous(review_report)
    aprocess = asynchronous(process)
    aprocess_plan = asynchronous(process_plan)
    aresume = asynchronous(resume)
    aretry = asynchronous(retry)
    aretry_choice = asynchronous(retry_choice)
    aruns = asynchronous(runs)
    astatus = asynchronous(status)
    awhy = asynchronous(why)
    adiff = asynchronous(diff)
    aplan_against = asynchronous(plan_against)
    acompare_runs = asynchronous(compare_runs)
    aevaluate = asynchronous(evaluate)
    acompare = asynchronous(compare)
    alock_card = asynchronous(lock_card)
    ashow = asynchronous(show)
    anotify_test = asynchronous(notify_test)
    amerge = asynchronous(merge)
    apull = asynchronous(pull)
    apush = asynchronous(push)
    aremote_doctor = asynchronous(remote_doctor)
    ashard_status = asynchronous(shard_status)
    atry_card = asynchronous(try_card)
    arun_tests = asynchronous(run_tests)
    atrial = asynchronous(trial)

__all__ = [
    "AgacError",
    "AgentResult",
    "AgentRun",
    "BackupReport",
    "BatchReport",
    "Budget",
    "CalibrateReport",
    "CancelReport",
    "CardReport",
    "CheckReport",
    "ComparisonReport",
    "DataReport",
    "DecideReport",
    "Decision",
    "DiffReport",
    "DoctorReport",
    "Evaluation",
    "ExitCode",
    "FixReport",
    "GcReport",
    "GivenRows",
    "GraphReport",
    "InspectReport",
    "LeaseHeld",
    "LeaseLost",
    "LintReport",
    "LockReport",
    "McpServer",
    "MergeReport",
    "NotifyReport",
    "OpenCodeRuntime",
    "Phase",
    "PlanComparison",
    "PlanReport",
    "Problem",
    "ProcessOptions",
    "PullReport",
    "PushReport",
    "QueryAnswer",
    "Quote",
    "RemoteReport",
    "ResultRow",
    "RetrieveReport",
    "Retry",
    "RetryChoice",
    "ReviewItem",
    "ReviewPage",
    "ReviewReport",
    "RowCounts",
    "RowError",
    "RunComparison",
    "RunOptions",
    "RunReport",
    "RunSummary",
    "RunsReport",
    "SchemasReport",
    "ShardsReport",
    "Sink",
    "SpecError",
    "StageTrial",
    "StatusReport",
    "StoreCorrupt",
    "StoreError",
    "StoreOutdated",
    "StoreTooNew",
    "TaskKeys",
    "Tool",
    "TrialReport",
    "UsageError",
    "View",
    "WaitReport",
    "WebSource",
    "WhyReport",
    "Workflow",
    "WorkflowTestReport",
    "abatch_cancel",
    "abatch_list",
    "abatch_status",
    "abatch_wait",
    "acalibrate",
    "acompare",
    "acompare_runs",
    "adecide",
    "adiff",
    "adoctor",
    "aevaluate",
    "aexport",
    "afix",
    "agc",
    "agraph",
    "ainspect",
    "alock_card",
    "amap_reduce",
    "amerge",
    "anotify_test",
    "aplan",
    "aplan_against",
    "aprocess",
    "aprocess_plan",
    "apull",
    "apush",
    "aremote_doctor",
    "aresume",
    "aretrieve",
    "aretry",
    "aretry_choice",
    "areview_export",
    "areview_import",
    "areview_item",
    "areview_queue",
    "areview_report",
    "arun",
    "arun_tests",
    "aruns",
    "ashard_status",
    "ashow",
    "astatus",
    "astream",
    "atrial",
    "atry_card",
    "awhy",
    "backup",
    "batch_cancel",
    "batch_list",
    "batch_status",
    "batch_wait",
    "calibrate",
    "compare",
    "compare_runs",
    "decide",
    "diff",
    "doctor",
    "embedded_simulator",
    "evaluate",
    "examples",
    "export",
    "file_schema",
    "fix",
    "gc",
    "graph",
    "init",
    "inspect",
    "lint",
    "lock_card",
    "map_reduce",
    "merge",
    "notify_test",
    "plan",
    "plan_against",
    "process",
    "process_plan",
    "pull",
    "push",
    "ray_map",
    "read_job",
    "remote_doctor",
    "resume",
    "retrieve",
    "retry",
    "retry_choice",
    "review_export",
    "review_import",
    "review_item",
    "review_queue",
    "review_report",
    "reviewer",
    "row_ids",
    "run",
    "run_several",
    "run_tests",
    "runs",
    "save_drawing",
    "save_job",
    "shard_status",
    "show",
    "show_card",
    "show_data",
    "sql",
    "status",
    "stream",
    "tool",
    "trial",
    "try_card",
    "validate",
    "views",
    "why",
    "write_schemas",
]


@cache
def homes() -> dict[str, str]:
    """Lists the public names without async twins, each with the module that has it, as the imports
    above say."""
    source = ast.parse(Path(__file__).read_text("utf-8"))
    block = next(node for node in source.body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in __all__
    }


sys.modules[__name__].__class__ = type(sys.modules["agac"])

if not TYPE_CHECKING:  # a misspelt name is reported by the type checker

    def __getattr__(name: str) -> Any:
        if name in homes():
            return getattr(import_module(homes()[name]), name)
        if name in __all__:  # the async twin of a function
            return import_module("agac.api.sync").asynchronous(__getattr__(name[1:]))
        raise AttributeError(f"module 'agac.api' has no attribute {name!r}")
