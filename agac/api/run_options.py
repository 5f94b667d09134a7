"""Options of one invocation: what workflows and row runs share, and `RunOptions`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeGuard

from agac.api.status import position_of, this_shard
from agac.core.arguments import refuse_fields
from agac.core.errors import UsageError
from agac.data.frames import GivenRows
from agac.engine.invocation import Scope, UnknownCalls
from agac.plan.plan import Selection
from agac.spec.project import Overrides, StageChange
from agac.spec.rules import Budget, RunMode
from agac.spec.tools import ToolsMode

_FLAGS_OF_A_RUN = (
    "limit",
    "offset",
    "sample",
    "seed",
    "input",
    "sql",
    "model",
    "var",
    "concurrency",
    "output",
    "run_mode",
    "backend",
    "tools_mode",
    "tool_stubs",
    "replay",
    "max_turns",
)
"""Flags that a run keeps: repeating or retrying it takes them again."""

_SMALLEST = {
    "limit": (1, "take at least one row"),
    "concurrency": (1, "at least one call has to be in flight"),
    "offset": (0, "skip no fewer than zero rows"),
    "sample": (1, "draw at least one row"),
    "max_errors": (0, "give 0 or more"),
}
"""The smallest number that an option takes, and what to do about a smaller one."""


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Options that choose rows of the input: skip, then draw, then take the first."""

    limit: int | None = None
    """Take the first rows, of those that `sample` drew."""
    offset: int = 0
    """Skip so many rows first."""
    sample: int | None = None
    """Draw so many of the other rows."""
    seed: int | None = None
    """The seed of the sample."""
    sql: str | None = None
    """One SELECT over the table `input`."""


@dataclass(frozen=True, slots=True)
class AskingOptions(InputOptions):
    """Options of how models and tools are asked, and what that may cost."""

    model: str | None = None
    """The model of every stage: `provider/model?key=value`."""
    vars: dict[str, str] = field(default_factory=dict)
    """Values of the workflow's variables."""
    fresh: bool = False
    """Use no answer of an earlier run."""
    budget: Budget | float | None = None
    """Replaces the budgets of the project and of the workflow. A number is US dollars."""
    max_errors: int | None = None
    """Stop when so many rows failed."""
    yes: bool = False
    """Answer every question of whether to continue with yes."""
    run_mode: RunMode | None = None
    """`sync` or `batch`, for all stages that ask."""
    tools_mode: ToolsMode | None = None
    """Where results of tools come from: calls, stand-ins, noted calls or an earlier run."""
    tool_stubs: Mapping[str, Any] | str | None = None
    """Stand-ins by the name of the tool, or a file with them."""
    replay: int | None = None
    """The run whose recorded results of tools are used."""
    max_turns: int | None = None
    """The most replies of a model with tools."""
    trust_card: bool = False
    """Let a remote AgentCard bring tools."""
    backend: str | None = None
    """The server that all stages ask, as in `vllm://HOST:PORT`."""


@dataclass(frozen=True, slots=True)
class CommonOptions(AskingOptions):
    """Options that workflows and row runs share."""

    wait: bool = False
    """Stay until all batches are in and all stages are done."""
    refetch: bool = False
    """Fetch remote content again, even if the run began with another version of it."""
    refresh_tools: bool = False
    """Call tools again even if earlier runs kept their results."""
    calls: UnknownCalls = "ask"
    """What to do about tool calls whose outcome is unknown: `ask`, `repeat` or `skip`."""
    stream: bool = False
    """Make one call at a time, and show its reply on standard error while it is written."""
    export_traces: str | None = None
    """A folder, relative to the current one, for a file per row with its calls, turns and tools."""
    executor: Literal["ray", "local"] | None = None
    """Who carries out calls and functions, in place of agac.yml's `executor`."""

    def __post_init__(self) -> None:
        """Turns a number of dollars into a Budget. Raises UsageError for values of wrong types."""
        if _is_dollars(self.budget):
            object.__setattr__(self, "budget", Budget(usd=self.budget))
        elif self.budget is not None and not isinstance(self.budget, Budget):
            remedy = "Give US dollars above 0, or agac.Budget(usd=5, tokens=100_000, calls=2_000)."
            raise UsageError(f"budget={self.budget!r} is no budget", remedy=remedy)
        refuse_fields(self)


def _is_dollars(budget: Any) -> TypeGuard[float]:
    """True if a budget was given as a number of dollars that can be spent."""
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        return False
    return 0 < budget < math.inf


@dataclass(frozen=True, slots=True)
class RunOptions(CommonOptions):
    """Options of one invocation of a workflow, named like the flags of `agac run`.

    `offset` skips rows, `sample` draws some of the others with `seed`, `limit` takes the first of
    those. `stage`, or `from_stage` and `until`, name the stages that may be asked. A `budget` that
    is a number is US dollars; it replaces the budgets of the project and the workflow. `yes`
    answers every question of whether to continue. `run_mode` and `backend` hold for all stages
    that ask. `wait` stays until all batches are in and all stages are done. `refetch` takes remote
    content as it is now, even if the run began with another. `refresh_tools` calls tools again
    whose results earlier runs kept; `calls` says what to do about tool calls whose outcome is
    unknown. `stream` makes one call at a time and shows its reply on standard error while it is
    written. `export_traces` is a folder, relative to the current one, for a file with the calls,
    turns and tools of each row. `executor` replaces who carries out calls and functions."""

    input: Path | str | GivenRows | None = None
    """A path, a pattern, a database, or `-`; or the rows: dicts from an iterable, which may be
    async, or a frame of pandas, polars or Arrow."""
    concurrency: int | None = None
    """The most calls in flight."""
    output: str | None = None
    """A folder that replaces the workflow's."""
    stage: str | None = None
    """The only stage that may be asked."""
    from_stage: str | None = None
    """The first stage that may be asked."""
    until: str | None = None
    """The last stage that may be asked."""
    retry_failed: bool = True
    """Try rows again that failed in an earlier invocation."""
    accept_store: bool = False
    """Continue although the results in the output folder came from another or a newer store."""
    discard_decisions: bool = False
    """With `fresh`: decisions that people made before no longer count."""
    change: StageChange | None = None
    """A change of one stage, for a trial."""

    def given(self) -> dict[str, Any]:
        """Returns the options that a run keeps, by flag, without those at their defaults."""
        values = {flag: getattr(self, _field_of(flag)) for flag in _FLAGS_OF_A_RUN}
        values["input"] = str(self.input) if self.input is not None else None
        return {flag: value for flag, value in values.items() if value}

    @staticmethod
    def of_given(given: Mapping[str, Any]) -> RunOptions:
        """Returns the options of an earlier invocation, from what `given` returned."""
        kept = {_field_of(flag): given[flag] for flag in _FLAGS_OF_A_RUN if flag in given}
        return RunOptions(**kept)

    def selection(self) -> Selection:
        """Returns which rows of the input take part."""
        return Selection(self.limit, self.offset, self.sample, self.seed or 0, this_shard())

    def overrides(self) -> Overrides:
        """Returns what changes while the workflow is loaded. Raises UsageError for numbers and
        flags that mean nothing, alone or together."""
        self._refuse_numbers()
        self._refuse_contradictions()
        names = [each.name for each in fields(Overrides) if each.name != "dry"]
        return Overrides(**{name: getattr(self, name) for name in names})

    def _refuse_numbers(self) -> None:
        """Raises UsageError for a number that is too small."""
        for name, (smallest, remedy) in _SMALLEST.items():
            number = getattr(self, name)
            if number is not None and number < smallest:
                raise UsageError(f"--{name.replace('_', '-')} {number}: {remedy}")

    def _refuse_contradictions(self) -> None:
        """Raises UsageError for flags that need or exclude another one."""
        if self.seed is not None and self.sample is None:
            raise UsageError(
                f"--seed {self.seed}: nothing is drawn", remedy="Say how many rows with --sample N."
            )
        if self.discard_decisions and not self.fresh:
            raise UsageError(
                "--discard-decisions goes with --fresh",
                remedy="Of some rows: agac retry has it, too.",
            )
        if self.run_mode not in (None, "sync", "batch"):
            raise UsageError(f"--run-mode {self.run_mode}: there are sync and batch")
        if self.replay is not None and self.tools_mode not in (None, "replay"):
            raise UsageError(f"--run {self.replay} is for --tools-mode replay")
        if self.max_turns is not None and self.max_turns < 1:
            raise UsageError(f"--max-turns {self.max_turns}: give 1 or more")

    def scope(self, stages: Sequence[str]) -> Scope:
        """Returns which of the workflow's stages, in walking order, may be asked. Raises UsageError
        for unknown stages and flags that contradict each other."""
        named = {"--stage": self.stage, "--from": self.from_stage, "--until": self.until}
        positions = {
            flag: position_of(name, stages, flag)
            for flag, name in named.items()
            if name is not None
        }
        if not positions:
            return Scope(None, self.retry_failed)
        if "--stage" in positions and len(positions) > 1:
            raise UsageError(
                "--stage names the only stage to run",
                remedy="Leave out --from and --until, or --stage.",
            )
        if self.fresh:
            what = "--fresh runs all stages again and cannot be limited to some of them"
            raise UsageError(
                what, remedy="Rerun stages of a finished run with: agac retry last --from STAGE"
            )
        first = positions.get("--from", positions.get("--stage", 0))
        last = positions.get("--until", positions.get("--stage", len(stages) - 1))
        if last < first:
            raise UsageError(
                f"--from {self.from_stage} comes after --until {self.until}",
                remedy="Exchange the two.",
            )
        return Scope(frozenset(stages[first : last + 1]), self.retry_failed)


def _field_of(flag: str) -> str:
    """Returns the field of `RunOptions` for a flag; only `--var` differs from its field."""
    return "vars" if flag == "var" else flag
