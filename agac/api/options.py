"""What one invocation changes of a workflow, and what it asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from agac.core.errors import UsageError
from agac.engine.invocation import Scope
from agac.plan.plan import Selection
from agac.spec.workflow import Budget, Overrides, RunMode


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What one invocation changes. `offset` skips rows, `sample` draws some of the others with `seed`, `limit` takes
    the first of those; `output` replaces the workflow's folder. `input` is a path, a pattern, a database, or `-`.

    `stage`, or `from_stage` and `until`, name the stages that may be asked; `budget` takes the place of the project's
    and the workflow's; `yes` answers every question of whether to go on; `run_mode` holds for all stages that ask;
    `wait` stays until all batches are in and all stages are done.
    """

    limit: int | None = None
    offset: int = 0
    sample: int | None = None
    seed: int | None = None
    input: Path | str | None = None
    model: str | None = None
    vars: dict[str, str] = field(default_factory=dict)
    concurrency: int | None = None
    output: str | None = None
    fresh: bool = False
    budget: Budget | None = None
    max_errors: int | None = None
    stage: str | None = None
    from_stage: str | None = None
    until: str | None = None
    retry_failed: bool = True
    yes: bool = False
    run_mode: RunMode | None = None
    wait: bool = False

    def given(self) -> dict[str, Any]:
        """What makes the run another one, by the name of its flag. What holds for one invocation alone is not in it."""
        given = {
            "limit": self.limit,
            "offset": self.offset,
            "sample": self.sample,
            "seed": self.seed,
            "input": str(self.input) if self.input is not None else None,
            "model": self.model,
            "var": self.vars,
            "concurrency": self.concurrency,
            "output": self.output,
            "run_mode": self.run_mode,
        }
        return {name: value for name, value in given.items() if value}

    @staticmethod
    def of_given(given: Mapping[str, Any]) -> RunOptions:
        """The options of an earlier invocation."""
        names = ("limit", "offset", "sample", "seed", "input", "model", "concurrency", "output", "run_mode")
        known = {name: given[name] for name in names if name in given}
        return RunOptions(**known, vars=dict(given.get("var", {})))

    def selection(self) -> Selection:
        """Which rows are meant."""
        return Selection(self.limit, self.offset, self.sample, self.seed or 0)

    def overrides(self) -> Overrides:
        """What changes while the workflow is loaded. Raises UsageError for numbers that mean nothing."""
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit {self.limit}: take at least one row")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"--concurrency {self.concurrency}: at least one call has to be in flight")
        if self.offset < 0:
            raise UsageError(f"--offset {self.offset}: skip no fewer than zero rows")
        if self.sample is not None and self.sample < 1:
            raise UsageError(f"--sample {self.sample}: draw at least one row")
        if self.seed is not None and self.sample is None:
            raise UsageError(f"--seed {self.seed}: nothing is drawn", remedy="Say how many rows with --sample N.")
        if self.max_errors is not None and self.max_errors < 0:
            raise UsageError(f"--max-errors {self.max_errors}: give 0 or more")
        if self.run_mode not in (None, "sync", "batch"):
            raise UsageError(f"--run-mode {self.run_mode}: there are sync and batch")
        return Overrides(
            vars=self.vars,
            model=self.model,
            concurrency=self.concurrency,
            input=self.input,
            output=self.output,
            budget=self.budget,
            max_errors=self.max_errors,
            run_mode=self.run_mode,
        )

    def scope(self, stages: Sequence[str]) -> Scope:
        """Which of the workflow's stages, in walking order, may be asked. Raises UsageError for unknown ones."""
        named = {"--stage": self.stage, "--from": self.from_stage, "--until": self.until}
        for flag, name in named.items():
            if name is not None:
                position_of(name, stages, flag)
        if not any(named.values()):
            return Scope(None, self.retry_failed)
        if self.stage is not None and (self.from_stage is not None or self.until is not None):
            raise UsageError("--stage names the only stage to run", remedy="Leave out --from and --until, or --stage.")
        if self.fresh:
            raise UsageError(
                "--fresh runs all stages again and cannot be limited to some of them",
                remedy="Rerun stages of a finished run with: agac retry last --from STAGE",
            )
        first = position_of(self.from_stage or self.stage or stages[0], stages, "--from")
        last = position_of(self.until or self.stage or stages[-1], stages, "--until")
        if last < first:
            raise UsageError(f"--from {self.from_stage} comes after --until {self.until}", remedy="Exchange the two.")
        return Scope(frozenset(stages[first : last + 1]), self.retry_failed)


def position_of(name: str, stages: Sequence[str], flag: str) -> int:
    """The position of a stage. Raises UsageError, with what was probably meant, when there is none of that name."""
    if name in stages:
        return stages.index(name)
    near = get_close_matches(name, stages, 1)
    hint = f"Did you mean {near[0]!r}?" if near else f"The stages are: {', '.join(stages)}."
    raise UsageError(f"{flag} {name}: there is no such stage", remedy=hint)
