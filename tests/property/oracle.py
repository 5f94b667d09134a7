"""What a run must ask, and what its rows must become: worked out without agac's code."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from property.answering import FIELDS, Content

TRIES = 3
"""Invocations in which an answer that fails as an answer is asked for."""


@dataclass(frozen=True)
class Stage:
    """A stage of the workflow; its prompt names the row's text and the answer of the stage before."""

    name: str
    word: str
    model: str = "small"
    temperature: float | None = None
    schema: str | None = "A"

    def prompt(self, before: Stage | None) -> str:
        upstream = "" if before is None else f" after ${{{before.name}{'.why' if before.schema else ''}}}"
        return f"{self.word}: ${{text}}{upstream}"

    def body(self, before: Stage | None) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "prompt": self.prompt(before), "model": f"local/{self.model}"}
        if self.temperature is not None:
            found["temperature"] = self.temperature
        if self.schema:
            found["output_schema"] = {
                "type": "object", "properties": FIELDS[self.schema], "required": list(FIELDS[self.schema]),
                "additionalProperties": False,
            }  # fmt: skip
        return found

    def content(self, text: str, upstream: Any) -> Content:
        after = "" if upstream is None else f" after {upstream['why'] if isinstance(upstream, dict) else upstream}"
        return Content(self.model, self.temperature, f"{self.word}: {text}{after}", self.schema)


@dataclass(frozen=True)
class Row:
    id: str
    text: str
    other: str = "-"


@dataclass
class Kept:
    """A row as a run keeps it: the content of each task, whether it was answered, and how often it failed in a row."""

    row: Row
    state: str = "open"
    present: bool = True
    tasks: dict[int, tuple[Content, bool, int]] = field(default_factory=dict)

    def is_left(self) -> bool:
        return any(not ok and failures >= TRIES for _, ok, failures in self.tasks.values())


@dataclass
class Run:
    """A run: a definition at work on a selection. Answers older than `since` are not taken."""

    stages: tuple[Stage, ...]
    since: int = 0
    rows: dict[str, Kept] = field(default_factory=dict)


@dataclass
class Oracle:
    """Everything that was answered so far, by when; and the runs by what makes them the same."""

    answered: dict[Content, int] = field(default_factory=dict)
    runs: dict[tuple[tuple[Stage, ...], int | None], Run] = field(default_factory=dict)
    clock: int = 0

    def run(
        self, stages: tuple[Stage, ...], rows: list[Row], *, limit: int | None = None, fresh: bool = False,
        until: int | None = None,
    ) -> tuple[set[Content], Run]:  # fmt: skip
        """What the invocation must ask, and the run as it must be afterwards."""
        self.clock += 1
        key = (stages, limit)
        found = self.runs.get(key)
        if found is None or fresh:
            found = Run(stages, self.clock if fresh else 0)
        self.runs.pop(key, None)
        self.runs[key] = found  # the one last worked on comes last
        taken = rows[:limit]
        for kept in found.rows.values():
            if kept.row.id not in {row.id for row in taken} and kept.present:
                kept.present, kept.state = False, "open"
        asking = Asking(self, found, until)
        for row in taken:
            asking.place(row)
        return asking.asked, found

    def retry(self, run: Run) -> set[Content]:
        """What a retry of all failed rows must ask."""
        self.clock += 1
        asking = Asking(self, run, None, forced=True)
        for kept in run.rows.values():
            if kept.present and kept.state == "failed":
                asking.walk(kept)
        return asking.asked

    def collect(self, run: Run) -> None:
        """All runs but one, and the newest over all rows, go, and what only they needed."""
        whole = [kept for (_, limit), kept in self.runs.items() if limit is None][-1:]
        self.runs = {key: kept for key, kept in self.runs.items() if kept is run or kept in whole}
        for one in self.runs.values():
            one.rows = {row_id: kept for row_id, kept in one.rows.items() if kept.present}
        tasks = [task for one in self.runs.values() for kept in one.rows.values() for task in kept.tasks.values()]
        needed = {content for content, ok, _ in tasks if ok}
        self.answered = {content: when for content, when in self.answered.items() if content in needed}


@dataclass
class Asking:
    """One invocation."""

    oracle: Oracle
    run: Run
    until: int | None
    forced: bool = False
    asked: set[Content] = field(default_factory=set)
    failed: set[Content] = field(default_factory=set)

    def place(self, row: Row) -> None:
        kept = self.run.rows.get(row.id)
        if kept is None:
            kept = self.run.rows[row.id] = Kept(row)
        elif kept.row == row and kept.present and self._stays(kept):
            return
        kept.row, kept.present = row, True
        self.walk(kept)

    def _stays(self, kept: Kept) -> bool:
        """Whether an unchanged row stays as it is: done, failed often enough, or failed at a stage not to be asked."""
        if kept.state != "failed":
            return kept.state == "done"
        return kept.is_left() or (self.until is not None and max(kept.tasks) > self.until)

    def walk(self, kept: Kept) -> None:
        upstream: Any = None
        for index, stage in enumerate(self.run.stages):
            content = stage.content(kept.row.text, upstream)
            prior = kept.tasks.get(index)
            again = prior is not None and prior[0] == content
            tries = prior[2] if prior and again else 0
            if prior and again and not prior[1] and tries >= TRIES and not self.forced:
                self.fail(kept, index, content, tries)
                return
            if content in self.failed:
                self.fail(kept, index, content, tries)
                return
            if self.oracle.answered.get(content, -1) < self.run.since:
                if self.until is not None and index > self.until:
                    kept.state = "open"
                    return
                self.asked.add(content)
                if content.refused:
                    self.failed.add(content)
                    self.fail(kept, index, content, tries)
                    return
                self.oracle.answered[content] = self.oracle.clock
            kept.tasks[index] = (content, True, 0)
            upstream = content.value
        kept.state = "done"

    def fail(self, kept: Kept, index: int, content: Content, tries: int) -> None:
        kept.tasks = {i: task for i, task in kept.tasks.items() if i < index} | {index: (content, False, tries + 1)}
        kept.state = "failed"


def outputs(run: Run, rows: list[Row]) -> list[tuple[str, bool, Any]]:
    """What results.jsonl must hold: as if everything had been run from scratch."""
    found = []
    for row in rows:
        upstream: Any = None
        ok = True
        for stage in run.stages:
            content = stage.content(row.text, upstream)
            if content.refused:
                ok = False
                break
            upstream = content.value
        found.append((row.id, ok, upstream if ok else None))
    return found


def shown(stages: tuple[Stage, ...]) -> str:
    """The stages in a falsifying example."""
    return json.dumps([stage.body(stages[i - 1] if i else None) for i, stage in enumerate(stages)])


__all__ = ["Oracle", "Row", "Run", "Stage", "outputs", "replace", "shown"]
