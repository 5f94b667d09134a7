"""Why a task has to be asked: what differs from the last time its row's stage was asked."""

from __future__ import annotations

FRESH = "--fresh"
NEW_ROW = "new row"
ROW_CHANGED = "row changed"
NEW_STAGE = "new stage"
NOT_YET = "not asked yet"
FAILED = "failed before"
TOO_OLD = "too old"
DROPPED = "answer no longer stored"
MEMBERS_CHANGED = "rows of the group changed"

NOT_IN_SCOPE = "not selected"
LEFT = "failed too often"
NOT_RETRIED = "failed before, not tried again (--no-retry-failed)"
MISSING_FIELD = "field missing"
GUARD_FAILS = "when cannot be decided"
UNFIT = "the row lacks a field"
NOT_MADE = "list missing or not a list"
NOT_WHOLE = "rows of the group failed"
WAITS = "rows of the group are not to be asked"
TOO_LARGE = "too many rows for one call; add `reduce`"


def passed_on(reason: str, name: str) -> str:
    """Why what follows the stage `name` is asked, which is asked for this reason."""
    return reason if reason in (NEW_ROW, FRESH, NOT_YET) else upstream_changed(name)


def upstream_changed(name: str) -> str:
    """The stage before gave, or will give, another answer."""
    return f"upstream {name} changed"


def upstream_blocked(name: str) -> str:
    """The stage before cannot be asked, so that this one has nothing to follow."""
    return f"upstream {name} blocked"
