"""Work that is finished although its caller was cancelled: it is short, and half of it would stand in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits `work` even when cancelled meanwhile; the cancellation is raised after it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
