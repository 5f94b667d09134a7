"""What an invocation is about, and where time and chance come from."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agac.core.redact import Redactor
from agac.core.types import Row
from agac.engine.scope import Retry, Scope
from agac.plan.plan import Plan
from agac.providers.batches import BatchApi
from agac.providers.provider import Provider
from agac.store.batches import BatchRecord
from agac.store.db import Database


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where time and chance come from: wall and monotonic seconds, a number in [0, 1)."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    spread: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class Batching:
    """What batches need of whoever makes an invocation. `providers` are the project's as they are now; `open_api` gives
    the batches of an account, `recorded` the plan of a run as it was stored; `folder` holds batches' files. `stays`: it
    waits until all is done. `agree` says whether anything may be submitted beside stale batches. `only` is the one
    batch that is taken in; None: all that have ended. `retrieves`: a run's rows are taken from the store, not from its
    input."""

    providers: Mapping[str, Provider]
    open_api: Callable[[Provider], BatchApi]
    recorded: Callable[[Database, int], Awaitable[Plan]]
    folder: Path
    agree: Callable[[list[tuple[BatchRecord, int]]], Awaitable[bool]]
    stays: bool = False
    only: int | None = None
    retrieves: int | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What an invocation is about. `rows` gives a fresh reading of the selected rows each time it is called; a `retry`
    takes its rows from the store instead, as `batching` may. `place` names a row of the last reading by its ordinal,
    for messages."""

    plan: Plan
    rows: Callable[[], Iterator[Row]]
    place: Callable[[int], str]
    output_dir: str
    fresh: bool
    scope: Scope
    retry: Retry | None
    root: Path
    redactor: Redactor
    clocks: Clocks
    env: Mapping[str, str]
    batching: Batching
