"""When a run stops by itself and what it keeps: the workflow's word over agac.yml's."""

from __future__ import annotations

from typing import Any

from agac.spec.models import BudgetFile, RunRulesFile, TelemetryFile
from agac.spec.workflow import Budget, Overrides, ProjectSpec, RunRules
from agac.spec.yamlfile import Document


def run_rules(file: RunRulesFile, document: Document, project: ProjectSpec, overrides: Overrides) -> RunRules:
    """The rules of a workflow. Budgets of both files hold together; of everything else the workflow's comes first.

    What the command line says takes the place of both files'.
    """
    where = {key: place for key, place in project.where.items() if key.startswith("project.")}
    where |= {key: document.where((key,)) for key in RunRulesFile.model_fields.keys() & file.model_fields_set}

    def strongest(key: str) -> Any:
        own = getattr(file, key)
        return getattr(project.rules, key) if own is None else own

    confirm = strongest("confirm_above")
    stop_loss = strongest("stop_loss")
    telemetry_file, ttft = _telemetry(file.telemetry, project.rules.telemetry)
    typed = overrides.budget
    return RunRules(
        project=None if typed else budget(project.rules.budget),
        workflow=typed or budget(file.budget),
        row=budget(strongest("row_budget")),
        confirm_above=confirm.usd if confirm else None,
        stop_loss=True if stop_loss is None else stop_loss,
        max_errors=strongest("max_errors") if overrides.max_errors is None else overrides.max_errors,
        row_timeout=strongest("row_timeout"),
        keep_replies=strongest("keep_replies") or "all",
        telemetry_file=telemetry_file,
        ttft=ttft,
        where=where,
    )


def _telemetry(own: TelemetryFile | None, project: TelemetryFile | None) -> tuple[bool | None, bool]:
    """Whether the file is written, and whether calls are streamed: by both files, key by key."""
    own, project = own or TelemetryFile(), project or TelemetryFile()
    file = project.file if own.file is None else own.file
    ttft = project.ttft if own.ttft is None else own.ttft
    return file, bool(ttft)


def budget(file: BudgetFile | None) -> Budget | None:
    """A budget as it was written."""
    return Budget(file.usd, file.tokens, file.calls) if file else None
