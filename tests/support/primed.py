"""A batch case whose requests begin with enough to be kept in a cache, at a provider like Anthropic."""

from pathlib import Path
from typing import Any

from support.batchcase import BatchCase
from support.server import Server

PRICE = {"input": 1.0, "cached_input": 0.1, "cache_write": 1.25, "cache_write_1h": 2.0, "output": 4.0, "batch": 0.5}
LONG = "Be kind. " * 500
TOKENS = len(LONG) // 4
AFTER, ROWS = 100, 130
MOST_MADE = 20


class PrimedCase(BatchCase):
    """`stage` and `provider` are further keys of these."""

    def __init__(
        self, folder: Path, server: Server, *, rows: int = ROWS, stage: dict[str, Any] | None = None,
        provider: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.keys = {
            "instructions": LONG,
            "prompt": "Say ${text}",
            "max_tokens": MOST_MADE,
            "repair": 0,
            **(stage or {}),
        }
        super().__init__(folder, server, "anthropic", rows=rows, poll_interval=0.02)
        self.connect("anthropic", **{"cache": "anthropic", "prices": {"small": PRICE}, **(provider or {})})

    def write(self, **batch: Any) -> None:
        defaults = {"run_mode": "batch", "batch": {"grace": 0.1, **batch}}
        self.project.workflow(stages=[{"name": "say", **self.keys}], defaults=defaults)

    def batches(self) -> list[tuple[Any, ...]]:
        """Of each batch: its requests, and the one that goes ahead of it."""
        return self.project.query("SELECT tasks, primer FROM batch ORDER BY id")

    def notes(self) -> list[str | None]:
        return [note for (note,) in self.project.query("SELECT note FROM batch ORDER BY id")]

    def cached(self) -> list[tuple[int, ...]]:
        """Of each batch with answers: tokens read from the cache, and written to it."""
        return self.project.query(
            "SELECT sum(a.cached_tokens), sum(a.cache_write_tokens) FROM batch_task t JOIN attempt a USING (row_key) "
            "WHERE t.batch_id IN (SELECT id FROM batch WHERE state <> 'NOT_CREATED') GROUP BY t.batch_id "
            "ORDER BY t.batch_id"
        )

    def undiscounted_at_most(self, tokens: int) -> float:
        """What a run of all rows costs in batches without a cache, where every answer is as long as it may be."""
        return (tokens * PRICE["input"] + self.rows * MOST_MADE * PRICE["output"]) * PRICE["batch"] / 1e6
