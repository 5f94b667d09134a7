"""Defines the summary of a run as records, which are written as JSON, read and added up here:
`summary.json`, what `--json` prints, and what shards say of their runs.

A record is written by `as_json`, in the order of its JSON_KEYS, and read by
`core.reading.read_as`. What an older version of agac did not write reads as the default
value of its field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from agac.core.reading import read_as
from agac.core.types import Report, RowId, dollars_in_all, json_form
from agac.engine.stage_summary import CallCounts, CallTimes, StageSummary

Record = TypeVar("Record")


class RowCounts(NamedTuple):
    """The rows of a run by outcome; `open` have none yet."""

    total: int = 0
    """All rows: the sum of the others."""

    done: int = 0
    """Rows with a result."""

    skipped: int = 0
    """Rows that went through without a result: guards skipped their stages."""

    failed: int = 0
    """Rows that ended with an error."""

    dropped: int = 0
    """Rows that left because of a guard, or because another row has their id."""

    open: int = 0
    """Rows without an outcome."""


@dataclass(frozen=True, slots=True)
class RunTimes(Report):
    """The time in which a run worked."""

    started_at: str | None = None
    """UTC, in ISO 8601."""

    finished_at: str | None = None
    """UTC, in ISO 8601; None while rows are open."""

    duration_s: float = 0.0
    """Seconds that its invocations took together; 0 in summaries that did not have it yet."""


@dataclass(frozen=True, slots=True)
class TaskSums(Report):
    """The tasks of all stages of a run."""

    processed: int = 0
    """Tasks that were run, with an answer or a failure."""

    reused: int = 0
    """Tasks whose answer was stored already."""


@dataclass(frozen=True, slots=True)
class RunRequest(Report):
    """The input, the rows and the output of a run."""

    input: str = ""
    """The path or the address of the input, as the workflow writes it."""

    selection: Mapping[str, Any] = field(default_factory=dict)
    """The rows that were selected, by the names of the options; empty: all of them."""

    output: str | None = None
    """The folder or file with the results, `-` for standard output; None: there is none."""


@dataclass(frozen=True, slots=True)
class RepeatedIds(Report):
    """Rows that left because another row has their id."""

    on_duplicate_id: str = ""
    """The rule of the input: `first` or `last`."""

    rows: int = 0
    """Rows that left."""


@dataclass(frozen=True, slots=True)
class OddRecords(Report):
    """Counts of what was odd in the input. The JSON has the keys only where something was."""

    JSON_KEYS = ("repeated_ids?", "short_records?")

    repeated_ids: RepeatedIds | None = None
    """Rows whose id another row has; None: no rule, or no such row."""

    short_records: int = 0
    """Records with fewer fields than the header."""


@dataclass(frozen=True, slots=True)
class MadeRows(Report):
    """The rows that a stage made."""

    stage: str
    """The name of the stage."""

    makes: str
    """What it makes: `items`, `rows`, `kept` or `groups`."""

    rows: RowCounts
    """The rows by outcome."""


@dataclass(frozen=True, slots=True)
class EngineCache(Report):
    """The counts of a model server's own cache. Others may have used it too."""

    address: str
    """The address of the server."""

    prompt_tokens: int = 0
    """Tokens of prompts."""

    cached_tokens: int = 0
    """Those of them that its cache had."""

    prefix_hit: float | None = None
    """The part of them; None without prompts, and of several shards."""


@dataclass(frozen=True, slots=True)
class ServingSummary(Report):
    """The use of prefix caches and slots. None: unknown, as where no provider says what
    its cache had, and of several shards. All are 0 or None in summaries that did not have it."""

    prefix_hit: float | None = None
    """The part of the tokens of prompts that caches had."""

    prefix_hit_without_first: float | None = None
    """The same without the first calls."""

    prefill_tokens: float | None = None
    """Tokens of prompts that were computed."""

    first_calls: int = 0
    """Calls that went alone to warm a cache."""

    slots: int | None = None
    """Calls that could be in flight at once, in the last invocation; None: no call was made."""

    slot_utilisation: float | None = None
    """The part of the slots' time in which calls were in flight."""

    engines: tuple[EngineCache, ...] = ()
    """What servers counted themselves."""


@dataclass(frozen=True, slots=True)
class FailedRow(Report):
    """The first row that failed in some way."""

    id: RowId
    """Its id."""

    row_number: int | None
    """Its number in the input, from 1; None of a row that a stage made."""

    message: str
    """What failed."""


@dataclass(frozen=True, slots=True)
class ErrorSummary(Report):
    """Rows that failed at the same stage with the same type of error."""

    type: str
    """The type of error, as `core.errors.ErrorType` names it."""

    stage: str | None
    """The name of the stage; None: the input itself."""

    rows: int
    """Rows that failed so."""

    example: FailedRow
    """The first of them."""


@dataclass(frozen=True, slots=True)
class RunSummary(Report):
    """The summary of a run, over all its invocations."""

    JSON_KEYS = (
        "workflow",
        "run",
        "complete",
        "**times",
        "tasks",
        "**request",
        "rows",
        "**odd",
        "levels",
        "stages",
        "calls",
        "timing_ms",
        "serving",
        "errors",
        "shards?",
    )

    workflow: str
    """The name of the workflow."""

    run: int
    """The number of the run in its store."""

    rows: RowCounts
    """The rows of the input by outcome."""

    complete: bool = False
    """True if every row has an outcome."""

    times: RunTimes = RunTimes()
    """When it worked."""

    tasks: TaskSums = TaskSums()
    """The tasks of all stages; 0 in summaries that did not have it yet."""

    request: RunRequest = RunRequest()
    """What it was asked to work on."""

    odd: OddRecords = OddRecords()
    """What was odd in the input."""

    levels: tuple[MadeRows, ...] = ()
    """The rows that stages made, stage by stage."""

    stages: tuple[StageSummary, ...] = ()
    """What each stage did, in the order of the workflow."""

    calls: CallCounts = field(default_factory=CallCounts)
    """The calls of all stages."""

    timing_ms: CallTimes = field(default_factory=CallTimes)
    """How long they took, in milliseconds."""

    serving: ServingSummary = ServingSummary()
    """How well prefix caches and slots were used."""

    errors: tuple[ErrorSummary, ...] = ()
    """How rows failed, most frequent first."""

    shards: int = 0
    """Of how many shards this is the sum; 0, and no key in the JSON: the run had none, or it is
    the summary of one of them."""

    @property
    def any_row_failed(self) -> bool:
        """True if a row of the input failed, or one that a stage made."""
        return self.failed_rows > 0

    @property
    def failed_rows(self) -> int:
        """The failed rows of the input, and those that stages made."""
        return self.rows.failed + sum(level.rows.failed for level in self.levels)


@dataclass(frozen=True, slots=True)
class StoreMark(Report):
    """The mark of the store that wrote results, so that its loss is noticed."""

    id: str
    """The token of the store."""

    generation: int = 0
    """The revision of the run when they were written."""

    place: str | None = None
    """The mark of the project's place; None where an older agac wrote them."""


@dataclass(frozen=True, slots=True)
class SummaryFile(Report):
    """The content of `summary.json`."""

    JSON_KEYS = ("**summary", "store?")

    summary: RunSummary
    """The summary of the run."""

    store: StoreMark | None = None
    """Which store wrote it; None for a preview, for merged shards, and of an older agac."""


@dataclass(frozen=True, slots=True)
class WrittenSummary(Report):
    """The part of a summary in an output folder that agac reads, whatever version wrote it."""

    JSON_KEYS = ("workflow", "run", "output", "rows", "store?", "shards?")

    workflow: str
    """The name of the workflow."""

    run: int
    """The number of the run in the store that wrote it."""

    output: str | None
    """The folder or file with the results."""

    rows: RowCounts
    """The rows of the input by outcome."""

    store: StoreMark | None = None
    """Which store wrote it; None for a preview, for merged shards, and of an older agac."""

    shards: int = 0
    """Of how many shards it is the sum; 0: of none."""

    @property
    def rows_with_result(self) -> int:
        """The rows of the input that ended without an error."""
        return self.rows.done + self.rows.skipped

    @property
    def mark(self) -> str:
        """Names the store that wrote the summary, for an invocation that accepts another one, or
        an older one, in its place."""
        if self.store is None:
            return f"None {self.run} 0"
        return f"{self.store.id} {self.run} {self.store.generation}"


# Adding up.


def added_records(records: Sequence[Record]) -> Record:
    """Adds up records of one kind, as `added` does. Raises ValueError."""
    return read_as(type(records[0]), added([json_form(record) for record in records]))


_NOT_ADDED = {
    "p50",
    "p95",
    "mean",
    "unanimous",
    "asked",
    "dedup",
    "prefix_hit",
    "prefix_hit_without_first",
    "slot_utilisation",
}
"""Facts of a summary that those of its parts do not tell."""

_NAMES = ("name", "stage", "type", "address")
"""Keys that tell the parts of a list apart."""


def added(parts: Sequence[Any], name: str = "") -> Any:
    """Adds up several summaries in JSON, or the same parts of them. Raises ValueError if they are
    of different kinds.

    A fact that the parts do not tell, such as a median, is None if several have it. Of texts, such
    as names, the first counts."""
    known = [part for part in parts if part is not None]
    if len({_kind(part) for part in known}) > 1:
        raise ValueError(f"{name or 'a part'} is not the same kind of fact in all summaries")
    if not known or (name in _NOT_ADDED and len(known) > 1):
        return None
    first = known[0]
    if isinstance(first, dict):
        return _objects_added(known)
    if isinstance(first, list):
        return _lists_added(known, name)
    if isinstance(first, bool):
        return any(known) if name == "cost_is_simulated" else all(known)
    if isinstance(first, int | float):
        return _numbers_added(known, name)
    return _texts_added(known, name)


def _texts_added(texts: Sequence[str], name: str) -> str:
    """Returns the first text; of times, the end of the last part or the beginning of the first."""
    if name == "finished_at":
        return max(texts)
    if name == "started_at":
        return min(texts)
    return texts[0]


def _objects_added(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Adds up objects key by key. The example is that of the first one."""
    whole = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        if key != "example":
            whole[key] = added([part[key] for part in parts if key in part], key)
    if "example" in parts[0]:
        whole["example"] = parts[0]["example"]
    return whole


def _lists_added(lists: Sequence[list[Any]], name: str) -> list[Any]:
    """Adds up the objects of the same names in lists; other lists become one without repeats."""
    entries = [entry for entries in lists for entry in entries]
    kinds = {_kind(entry) for entry in entries}
    if len(kinds) > 1 or list in kinds:
        raise ValueError(f"{name} lists several kinds of facts")
    if dict not in kinds:
        return sorted(set(entries))
    by_name = dict[tuple[str, ...], list[Any]]()
    for entry in entries:
        names = tuple(str(entry.get(key)) for key in _NAMES)
        by_name.setdefault(names, []).append(entry)
    return [added(same) for same in by_name.values()]


def _numbers_added(numbers: Sequence[float], name: str) -> float:
    """Adds up numbers. Shards work at the same time, so that the longest time is that of all."""
    if name == "duration_s":
        return max(numbers)
    if name.endswith("usd"):
        return dollars_in_all(numbers)
    return sum(numbers)


def _kind(value: Any) -> type:
    """Returns the type of a value; whole numbers are numbers like others."""
    return float if type(value) is int else type(value)
