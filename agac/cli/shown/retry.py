"""What a retry would take up, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agac.api.retrying import RetryChoice


def choice_lines(found: RetryChoice) -> list[str]:
    """The rows by where and how they failed, and what is asked of them at least."""
    lines = [f"Run {found.run} of {found.workflow}: {_rows(found.rows)} would be tried again"]
    lines += [f"  {one['stage']}: {one['type']}, {_rows(one['rows'])}" for one in found.by_error]
    if found.open:
        lines.append(f"  left open by this retry when it was broken off: {_rows(found.open)}")
    if found.done:
        lines.append(f"  not failed: {_rows(found.done)}")
    if found.stages:
        lines.append(f"Asked anew: {', '.join(found.stages)}")
    lines.append(f"Calls: at least {found.calls_at_least:,}")
    return lines


def _rows(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"
