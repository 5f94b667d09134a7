"""One invocation of a run while it goes on and after it: what to show, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agac.core.errors import ExitCode
from agac.engine.ask.limits import BudgetLimiter
from agac.engine.batch.coordinator import BatchActivity
from agac.engine.forecast.past_usage import PastUsage
from agac.engine.invocation import Retry
from agac.engine.notify import Notifier
from agac.engine.stop_rules import StopReason, StopSignal
from agac.engine.stored_invocation import InvocationStart, ServingFacts
from agac.engine.totals import Totals
from agac.store.writer import Ledger


@dataclass(slots=True)
class InvocationGoal:
    """What an invocation is to do, beside the plan."""

    given: dict[str, Any] = field(default_factory=dict)
    """What its caller changed, by option: what it takes to ask for the same run again."""
    retry: Retry | None = None
    """The retry that it does or finishes."""
    chosen: list[tuple[str | None, str | None, int]] = field(default_factory=list)
    """The rows of a retry when it began, as `chosen_counts` has them."""
    retrieves: bool = False
    """True if its rows are those of the store for which batches brought something."""
    accepted: str | None = None
    """The mark of another store, or of a newer one, in whose place this one is accepted."""


@dataclass(slots=True)
class KillRisk:
    """What a kill of the invocation may cost, and what one cost before it."""

    concurrency: int = 0
    """How many calls may be in flight at once; 0: it makes none."""
    billed_a_row: int = 0
    """How many calls of one row may be paid for and not stored, at most."""
    lost_calls: int = 0
    """The most calls that a killed invocation before this one may have paid for without a stored
    answer."""


@dataclass(slots=True)
class LeftOver:
    """What the invocation could not do now."""

    held_back: int = 0
    """How many tasks the budget had no room for next to open batches."""
    waits: str = ""
    """Why groups wait for other shards, in words."""


@dataclass(slots=True)
class CallFacts:
    """What is known of the workflow's calls."""

    past: PastUsage = field(default_factory=PastUsage)
    """What calls before the invocation used."""
    serving: ServingFacts | None = None
    """How well caches and slots were used, at first in the last invocation; None: there were no
    calls."""


@dataclass(slots=True)
class Invocation:
    """One invocation while it goes on and after it: what to show, and how it ended."""

    goal: InvocationGoal = field(default_factory=InvocationGoal)
    """What it is to do."""
    run: int = 0
    """The number of its run."""
    continued: bool = False
    """True if an earlier invocation began the run."""
    risk: KillRisk = field(default_factory=KillRisk)
    """What a kill may cost."""
    totals: Totals = field(default_factory=Totals)
    """Its counts of rows, tasks, calls and dollars."""
    stop_signal: StopSignal = field(default_factory=StopSignal)
    """Stops it, and says why."""
    ended: bool = False
    """True once all that it was to do is done."""
    complete: bool = False
    """True once the whole run is done too."""
    budgets: BudgetLimiter | None = None
    """Keeps its budgets; None: it has none."""
    batches: BatchActivity = field(default_factory=BatchActivity)
    """The batches that were submitted and ingested."""
    left_over: LeftOver = field(default_factory=LeftOver)
    """What it could not do now."""
    ledger: Ledger | None = None
    """Commits what it does."""
    notifier: Notifier | None = None
    """Makes messages of what it does."""
    calls: CallFacts = field(default_factory=CallFacts)
    """What is known of the workflow's calls."""
    dropped_messages: list[str] = field(default_factory=list)
    """Which messages are not sent because no file names their target, a sentence for each
    target."""

    @property
    def finished(self) -> bool:
        """True if nothing waits for batches, so that only failures are left to report."""
        return self.complete or not self.batches.touched

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the process, if this is all that happened."""
        if self.ended:
            # a Ctrl-C that came after the last row stopped nothing
            return ExitCode.NOT_READY if self.left_over.waits else ExitCode.DONE
        if self.stop_signal.stop is StopReason.INTERRUPT:
            return ExitCode.INTERRUPTED
        if self.stop_signal.stop is StopReason.LIMIT:
            return ExitCode.LIMIT
        return ExitCode.FAILED


def invocation_start(invocation: Invocation) -> InvocationStart:
    """Returns what is stored of an invocation from its beginning on."""
    risk = invocation.risk
    goal = invocation.goal
    return InvocationStart(
        concurrency=risk.concurrency,
        billed_a_row=risk.billed_a_row,
        lost_calls=risk.lost_calls,
        given=goal.given,
        retry=goal.retry.filters() if goal.retry else None,
        retrieves=goal.retrieves,
        accepted=goal.accepted,
    )
