"""Questions to the store in SQL, which change nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agac.api.reading import database_path
from agac.core.errors import UsageError
from agac.spec.root import find_project
from agac.store.select import QueryAnswer, answered, refuse_at_once


@contextmanager
def sql(query: str, *, project: Path | str | None = None) -> Iterator[QueryAnswer]:
    """The answer to one statement that reads, for use in `with`: `columns`, and the rows as tuples when iterated over.

    Rows are read as they are wanted, so that memory stays flat. `-` reads the query from standard input. Raises
    UsageError for a query that is wrong or would do more than read, and where nothing was run yet.
    """
    root = find_project(Path.cwd(), Path(project) if project is not None else None)
    text = _piped_in() if query == "-" else query
    refuse_at_once(text)
    path = database_path(root)
    if not path.exists() or not path.stat().st_size:
        raise UsageError("nothing was run in this project yet", remedy="Run `agac run -a WORKFLOW` first.")
    with answered(path, text) as answer:
        yield answer


def _piped_in() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("-: nothing is piped in", remedy="Pipe the query in, as in `agac sql - < query.sql`.")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"-: byte {error.start:,} is not UTF-8", remedy="Save the query as UTF-8.") from error
