"""`agac sql`: questions to the store in SQL, which change nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agac.api.status import database_path, no_runs_yet
from agac.core.arguments import typed
from agac.core.errors import UsageError
from agac.spec.paths import project_root
from agac.store.query import QueryAnswer, answered, refuse_at_once


@typed
@contextmanager
def sql(query: str, *, project: Path | str | None = None) -> Iterator[QueryAnswer]:
    """Answers one statement that reads, for use in `with`: `columns`, and when iterated over the
    rows as tuples.

    Rows are read as they are wanted, so that memory stays flat. `-` reads the query from standard
    input. Raises UsageError for a query that is wrong or would do more than read, and where
    nothing was run yet."""
    root = project_root(project)
    if query == "-":
        query = _piped_query()
    refuse_at_once(query)
    path = database_path(root)
    if not path.exists() or not path.stat().st_size:
        raise no_runs_yet(path)
    with answered(path, query) as answer:
        yield answer


def _piped_query() -> str:
    """Reads the query from standard input."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "-: nothing is piped in",
            remedy="Pipe the query in, as in `agac sql - < query.sql`.",
        )
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"-: byte {error.start:,} is not UTF-8", remedy="Save the query as UTF-8."
        ) from error
