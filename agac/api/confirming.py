"""What wants a yes before it costs: a run above `confirm_above`, one whose open batches hold what it no longer asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agac.api.checking import Checked
from agac.api.planning import expected_cost
from agac.core.errors import UsageError
from agac.engine.scope import Retry, Scope
from agac.plan.plan import Plan
from agac.store.db import Database

Confirm = Callable[[str], bool | None]
"""Asks the user a question; None: nobody is there to answer. May block: nothing else goes on yet."""


async def confirm_cost(
    checked: Checked,
    plan: Plan,
    database: Database,
    scope: Scope,
    *,
    fresh: bool,
    retry: Retry | None,
    confirm: Confirm | None,
) -> None:
    """Raises UsageError when the run is expected to cost more than `confirm_above` and nobody says yes."""
    bound = plan.rules.confirm_above
    if bound is None:
        return
    usd, unknown = await expected_cost(checked, plan, database, scope, fresh=fresh, retry=retry)
    if usd <= bound and not unknown:
        return
    mark = "simulated " if all(stage.provider.simulated for stage in plan.asking) else ""
    said = f"{plan.workflow} is expected to cost {mark}${usd:,.4f}{_and_more(unknown)}; {bound_words(bound)}"
    answer = confirm(f"{said}. Continue?") if confirm is not None else None
    if not answer:
        raise UsageError(
            f"no calls were made: {said}" if answer is None else "no calls were made",
            remedy=f"Add --yes to continue; `agac plan -a {plan.workflow}` shows what it is made of.",
        )


def confirm_stale(workflow: str, stale: Sequence[Mapping[str, Any]], confirm: Confirm | None) -> None:
    """Raises UsageError when open batches hold requests that the workflow no longer asks, and nobody says yes to
    submitting what it asks now. `stale`: `batch`, `requests`, `held_usd` (None: price unknown), `simulated` of each."""
    if not stale:
        return
    requests, numbers = sum(one["requests"] for one in stale), list(dict.fromkeys(one["batch"] for one in stale))
    held = [one["held_usd"] for one in stale]
    mark = "simulated " if any(one["simulated"] for one in stale) else ""
    price = "price unknown" if None in held else f"up to {mark}{_dollars(sum(held))}"
    batches = "1 open batch" if len(numbers) == 1 else f"{len(numbers):,} open batches"
    said = f"{workflow} no longer asks {requests:,} of the requests in {batches} ({price})"
    cancel = "; ".join(f"agac batch cancel {number}" for number in numbers)
    answer = (
        confirm(f"{said}. They run on, unless you end them with: {cancel}. Submit the others now?") if confirm else None
    )
    if not answer:
        raise UsageError(
            f"nothing was submitted: {said}" if answer is None else "nothing was submitted",
            remedy=f"Add --yes to submit the others beside them, or end them first with: {cancel}",
        )


def _and_more(unknown: Sequence[str]) -> str:
    models = list(dict.fromkeys(unknown))
    if not models:
        return ""
    whose = f"{models[0]} costs" if len(models) == 1 else f"{', '.join(models)} cost"
    return f", and on top what {whose}, whose price is not known"


def bound_words(bound: float) -> str:
    """`confirm_above is $10.00`."""
    return f"confirm_above is {_dollars(bound)}"


def _dollars(usd: float) -> str:
    return f"${usd:,.2f}" if usd >= 0.01 and round(usd, 2) == usd else f"${usd:,.4f}"
