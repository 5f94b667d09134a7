"""What a change does to workflows: `agac-pr.json`, of which the comment is made, also by a job that
has none of the code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from agac import __version__
from agac.api.versions import Version
from agac.api.workflow_tests import CaseResult
from agac.core.errors import ExitCode, Problem, UsageError, key_path
from agac.engine.forecast.estimate import CostEstimate, summed
from agac.engine.forecast.forecasts import PlanTotals
from agac.plan.changes import Change
from agac.spec.lint import LintFinding

MAX_BYTES = 10_000_000  # of a file with findings
_Count = Annotated[int, Field(ge=-(10**15), le=10**15)]


class Figures(BaseModel):
    """Of what a report prints as JSON, what a comment says. Read back, its numbers are finite."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class StageFigures(Figures):
    """A stage of a plan, as `StageForecast` has it."""

    name: str
    run_mode: str | None
    run: _Count
    reuse: _Count
    least: _Count
    most: _Count | None
    exact: bool
    simulated: bool
    estimate: CostEstimate


class PlanFigures(Figures, PlanTotals):
    """A plan, as `PlanReport` has it."""

    stages: list[StageFigures]


class WorkflowFindings(Figures):
    """A workflow that changed, or has `problems`. `plan` is that of the present version, and
    `usd_more` what it costs more than that of the version before, where there was one; None: a
    price is not known."""

    workflow: str
    how: str
    changes: list[Change]
    problems: list[Problem]
    plan: PlanFigures | None = None
    usd_more: float | None = None


def _bounded(version: Version | None) -> Version | None:
    if version is not None:
        made_at = version.made_at if version.commit else 0  # a folder has none
        if made_at is None or not (0 <= made_at < 1e11 and 0 <= (version.behind or 0) < 1e11):
            raise ValueError("made_at is no moment, or behind no count")
    return version


class Findings(Figures):
    """What a change does to the workflows of a `project` (its folder in the repository), `against`
    a version before: `agac-pr.json`. `beside` is what it changes outside of workflows. `notes` say
    what was left out and why; `max_usd` is the cap of the version before."""

    format: Literal[1] = 1
    agac: str = __version__
    project: str = "."
    head: str | None = None
    against: Annotated[Version | None, AfterValidator(_bounded)] = None
    untrusted: bool = False
    workflows: list[WorkflowFindings] = []
    problems: list[Problem] = []
    lint: list[LintFinding] = []
    tests: list[CaseResult] = []
    beside: list[Change] = []
    notes: list[str] = []
    max_usd: float | None = None

    @property
    def all(self) -> PlanFigures:
        """All plans as one."""
        return PlanFigures(
            stages=[stage for one in self.workflows if one.plan for stage in one.plan.stages]
        )

    @property
    def usd(self) -> float | None:
        """What is not simulated is expected to cost; None: a price is not known."""
        return summed(one.estimate.usd for one in self.all.stages if one.run and not one.simulated)

    @property
    def over(self) -> bool:
        """Whether that is more than `max_usd`, or nobody knows."""
        return self.max_usd is not None and (self.usd is None or self.usd > self.max_usd)

    def told(self, severity: str) -> list[Problem]:
        """The errors, or the warnings, of agac.yml, of workflows and of tests."""
        found = [*self.problems, *(problem for one in self.workflows for problem in one.problems)]
        return [one for one in found if one.severity == severity]

    @property
    def quiet(self) -> bool:
        """Whether there is nothing that a reviewer has to know."""
        return not (self.workflows or self.beside or self.tests or self.told("error"))

    @property
    def exit_code(self) -> ExitCode:
        """0 fine, 2 files have errors, 3 a test failed, 4 above `max_usd`."""
        if self.told("error"):
            return ExitCode.USAGE
        failed = any(one.result != "passed" for one in self.tests)
        if failed:
            return ExitCode.ROWS_FAILED
        if self.over:
            return ExitCode.LIMIT
        return ExitCode.DONE


def read_findings(path: Path) -> Findings:
    """What another job wrote, who may be anybody. Raises UsageError where it is no such file."""
    remedy = "Name the file that `agac ci` of the same version wrote (--out)."
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path} has more than {MAX_BYTES:,} bytes", remedy=remedy)
        found = Findings.model_validate_json(path.read_bytes())
        # as in `{}`, which would say that nothing changed
        if "format" not in found.model_fields_set:
            raise UsageError(f"{path}: format: it is missing", remedy=remedy)
        return found
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", remedy=remedy) from None
    except ValidationError as error:
        (wrong, *_) = error.errors(include_url=False)
        at = key_path(wrong["loc"])
        raise UsageError(
            f"{path}: {f'{at}: ' if at else ''}{wrong['msg']}", remedy=remedy
        ) from None
