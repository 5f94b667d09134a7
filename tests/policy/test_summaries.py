"""Summaries are records: written as JSON, read, and added up by one module."""

import json
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.reading import read_as
from agac.core.types import Report
from agac.engine.stage_summary import CallCounts, EarlyVotes
from agac.engine.summary import (
    RowCounts,
    RunSummary,
    SummaryFile,
    added,
    added_records,
)

GOLDEN = Path(__file__).parent.parent / "golden"
ANY = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.booleans(), max_size=2)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type that a record has."""
    if get_origin(hint) in (Union, UnionType):
        kinds = [one for one in get_args(hint) if one is not NoneType]
        optional = st.none() if NoneType in get_args(hint) else st.nothing()
        return st.one_of(optional, *map(values_of, kinds))
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), max_size=2).map(tuple)
    if get_args(hint):
        inner = get_args(hint)[1]
        return ANY if inner is Any else st.dictionaries(st.text(max_size=5), values_of(inner), max_size=2)
    if hint is float:
        return st.floats(0, 1e9) | st.integers(0, 1 << 40)
    if hint in (int, str, bool):
        return {int: st.integers(0, 1 << 40), str: st.text(max_size=8), bool: st.booleans()}[hint]
    return records(hint)


@cache
def records(kind: Any) -> st.SearchStrategy[Any]:
    """Records with values in all of their fields."""
    return st.builds(
        kind, **{name: values_of(hint) for name, hint in get_type_hints(kind).items() if name != "JSON_KEYS"}
    )


@given(records(SummaryFile))
def test_what_is_written_reads_as_it_was(file: SummaryFile) -> None:
    written = json.dumps(file.as_json())
    again = read_as(SummaryFile, json.loads(written))
    assert json.dumps(again.as_json()) == written
    assert again.summary.rows == file.summary.rows
    assert again.summary.calls == file.summary.calls
    assert again.summary.serving == file.summary.serving


def stored(value: Any) -> Iterator[dict[str, Any]]:
    """The summaries in a value, of whatever depth."""
    if isinstance(value, dict):
        if {"workflow", "run", "rows", "stages", "timing_ms"} <= value.keys():
            yield value
        for inner in value.values():
            yield from stored(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from stored(inner)


def measured(value: Any, key: str = "") -> Any:
    """The value with a number where golden files leave out a time."""
    if isinstance(value, dict):
        return {name: measured(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [measured(inner) for inner in value]
    return 12.5 if value == "…" and key in ("p50", "p95", "duration_s") else value


def common(value: Any, other: Any) -> Any:
    """What `value` has of the keys of `other`, in its own order."""
    if isinstance(value, dict) and isinstance(other, dict):
        return {key: common(inner, other[key]) for key, inner in value.items() if key in other}
    if isinstance(value, list) and isinstance(other, list):
        return [common(*both) for both in zip(value, other, strict=True)]
    return value


def golden_files() -> list[Path]:
    return sorted([*GOLDEN.glob("pins/*.jsonl"), *GOLDEN.glob("stores/*.json")])


def golden_values(file: Path) -> list[Any]:
    text = file.read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else [json.loads(text)]


STATUS = {
    "project", "files", "state", "open_batches", "shown", "not_written", "last_invocation", "go_on", "last_worked_at",
    "input_read_at", "held", "replaced_by", "invocations", "definition", "invocation", "exit_code", "stop", "stopped",
    "finishing", "replaced", "edited", "empty", "store", "hint",
}  # fmt: skip
"""What commands print beside the summary."""


@pytest.mark.parametrize("file", golden_files(), ids=lambda file: file.stem)
def test_a_stored_summary_is_written_with_the_same_bytes(file: Path) -> None:
    """But for keys that summaries got since, which have their defaults."""
    for value in map(measured, stored(golden_values(file))):
        again = read_as(RunSummary, value).as_json()
        assert value.keys() - again.keys() <= STATUS
        assert json.dumps(common(again, value)) == json.dumps(common(value, again))


def test_golden_files_have_summaries() -> None:
    assert sum(1 for file in golden_files() for _ in stored(golden_values(file))) > 50


def test_what_an_older_version_did_not_write_has_its_default() -> None:
    old = read_as(RunSummary, {"workflow": "w", "run": 3, "rows": {"total": 2, "done": 2}})
    assert old == RunSummary("w", 3, RowCounts(2, 2))
    assert (old.times.duration_s, old.serving.slots, old.calls.tokens.cache_write) == (0.0, None, 0)
    assert json.loads(json.dumps(old.as_json()))["selection"] == {}


@pytest.mark.parametrize(
    "wrong",
    [
        None, [], {}, {"workflow": "w", "run": "3", "rows": {}}, {"workflow": "w", "run": True, "rows": {}},
        {"workflow": "w", "run": 3}, {"workflow": "w", "run": 3, "rows": {"done": "7"}},
        {"workflow": "w", "run": 3, "rows": {}, "stages": {}}, {"workflow": "w", "run": 3, "rows": {}, "levels": [1]},
        {"workflow": "w", "run": 3, "rows": {}, "errors": [{"type": "x"}]},
    ],
)  # fmt: skip
def test_what_is_no_summary_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"is no|is missing|is not the kind"):
        read_as(RunSummary, wrong)


def test_a_vote_that_ends_early_says_so_before_a_row_has_voted() -> None:
    """`asked` is null then; without such a vote there is no such key."""
    stage = {"name": "a", "agreement": {"rows": 0, "mean": None, "unanimous": None, "asked": None}}
    summary = read_as(RunSummary, {"workflow": "w", "run": 1, "rows": {}, "stages": [stage]})
    assert summary.stages[0].agreement is not None
    assert summary.stages[0].agreement.early == EarlyVotes(None)
    assert summary.as_json()["stages"][0]["agreement"] == stage["agreement"]


@given(st.lists(records(CallCounts), min_size=1, max_size=3))
def test_calls_are_added_up(calls: list[CallCounts]) -> None:
    whole = added_records(calls)
    assert whole.as_json() == added([one.as_json() for one in calls])
    assert whole.count == sum(one.count for one in calls)
    assert whole.cost.is_simulated == any(one.cost.is_simulated for one in calls)


def parts_of(kind: Any) -> Iterator[Any]:
    """A record and those in it."""
    yield kind
    for hint in get_type_hints(kind).values():
        for part in (hint, *get_args(hint)):
            if isinstance(part, type) and issubclass(part, Report):
                yield from parts_of(part)


def test_a_record_has_fifteen_fields_at_most() -> None:
    assert {kind.__name__: len(fields(kind)) for kind in parts_of(SummaryFile) if len(fields(kind)) > 15} == {}
