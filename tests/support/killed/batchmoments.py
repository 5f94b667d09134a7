"""The moments of a batch's life at which a process can be ended: before and after each step towards a provider, each
commit in the store and each file on the disk.

A moment is `WHERE.METHOD.before`, `.after`, or (downloads) `.amid`: what is there is cut in half then, as a kill in the
middle of it leaves it. `provider` is whichever batch API is spoken, `journal` the steps in the store, `spool` the file
that is submitted, `results` what is read into the store, `tool` what a conversation calls, `remote` an object that
other machines read.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

PROVIDER = ("upload", "uploaded", "create", "look", "download", "cancel", "delete")
JOURNAL = (
    "plan", "built", "step", "release", "halve", "reject", "uploaded", "intend", "defer", "submitted", "remark",
    "seen", "not_ours", "cancel", "downloaded", "ingested", "cleaned",
)  # fmt: skip
"""Methods of `Journal`, and statements that it writes by their names."""

METHODS = {
    "provider": PROVIDER, "journal": JOURNAL, "spool": ("finish",), "results": ("lines", "put"), "tool": ("call",),
    "remote": ("create",),
}  # fmt: skip

Happens = Callable[[str], None]


def is_moment(event: str) -> bool:
    """Whether an event is one of these."""
    return event.partition(".")[0] in METHODS


def tell(happens: Happens) -> None:
    """Has every moment told to `happens`."""
    from agac.data.object_store import ObjectStore
    from agac.engine.batch.enrol import Spool
    from agac.engine.batch.ingest import ResultReader
    from agac.engine.batch.lifecycle import Journal
    from agac.providers.batch_apis import AnthropicBatches, OpenAIBatches
    from agac.tools.pool import ToolPool

    classes: dict[str, list[type]] = {
        "provider": [OpenAIBatches, AnthropicBatches], "journal": [Journal], "spool": [Spool],
        "results": [ResultReader], "tool": [ToolPool], "remote": [ObjectStore],
    }  # fmt: skip
    for owner, methods in METHODS.items():
        for made in classes[owner]:
            for method in (*methods, "write") if made is Journal else methods:
                if hasattr(made, method):
                    setattr(made, method, _telling(getattr(made, method), f"{owner}.{method}", happens))


def _telling(method: Any, name: str, happens: Happens) -> Any:
    if not inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        def plain(*arguments: Any, **options: Any) -> Any:
            happens(f"{name}.before")
            done = method(*arguments, **options)
            happens(f"{name}.after")
            return done

        return plain

    @functools.wraps(method)
    async def waited(*arguments: Any, **options: Any) -> Any:
        moment = f"journal.{arguments[2]}" if name == "journal.write" else name  # which statement it writes
        happens(f"{moment}.before")
        done = await method(*arguments, **options)
        if name == "provider.download":
            _halving(arguments[2], lambda: happens(f"{name}.amid"))
        happens(f"{moment}.after")
        return done

    return waited


def _halving(path: Any, happens: Callable[[], None]) -> None:
    """Tells of a moment at which only half of a file had come: if nobody dies of it, the file is whole again."""
    whole = path.read_bytes() if path.exists() else b""
    if not whole:
        return
    os.truncate(path, len(whole) // 2)
    happens()
    path.write_bytes(whole)
