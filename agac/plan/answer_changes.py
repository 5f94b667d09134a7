"""How the answers of two schemas differ, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from agac.plan.diff import shown_value
from agac.spec.field_shapes import FieldShape, kinds_in_words

Way = tuple[str, ...]
"""The names that lead into an answer; none for the answer itself."""

_MAX_FIELDS = 200
"""The most fields of two schemas that are compared, those on top first: a schema may contain
itself."""


class AnswerFieldChange(NamedTuple):
    """How one field of answers differs."""

    way: Way
    text: str
    """What is different, in words: `is gone`."""
    breaks: bool
    """True if who reads the field may not find what was there before."""


def field_changes(old: FieldShape, new: FieldShape) -> Iterator[AnswerFieldChange]:
    """Yields how the fields of answers differ, from the top down."""
    ways: list[Way] = [()]
    for way in ways:  # which grow meanwhile
        yield from _kind_changes(old, new, way)
        yield from _choice_changes(old, new, way)
        old_names = old.names(way)
        new_names = new.names(way)
        if old_names is None or new_names is None:
            continue
        for name in sorted(old_names - new_names):
            yield AnswerFieldChange((*way, name), "is gone", breaks=True)
        for name in sorted(new_names - old_names):
            yield AnswerFieldChange((*way, name), "is new", breaks=False)
        kept = old_names & new_names
        for name in sorted(kept & (_required(old, way) - _required(new, way))):
            yield AnswerFieldChange((*way, name), "may be missing", breaks=True)
        if len(ways) < _MAX_FIELDS:
            ways += [(*way, name) for name in sorted(kept)]


def _kind_changes(old: FieldShape, new: FieldShape, way: Way) -> Iterator[AnswerFieldChange]:
    before = old.kinds(way)
    now = new.kinds(way)
    if before is None or now is None or before == now:
        return
    text = f"was {kinds_in_words(before)}, is {kinds_in_words(now)}"
    yield AnswerFieldChange(way, text, breaks=not now <= before)


def _choice_changes(old: FieldShape, new: FieldShape, way: Way) -> Iterator[AnswerFieldChange]:
    before = _choices(old, way)
    now = _choices(new, way)
    if before is None or now is None or before == now:
        return
    parts = []
    if before - now:
        parts.append(f"is no longer {', '.join(sorted(before - now))}")
    if now - before:
        parts.append(f"may be {', '.join(sorted(now - before))}")
    yield AnswerFieldChange(way, "; ".join(parts), breaks=False)


def _choices(shape: FieldShape, way: Way) -> set[str] | None:
    """Returns the values that a field may have, as they are shown; None: any."""
    schemas = shape.values(way) or ()
    if not schemas or not all("enum" in schema for schema in schemas):
        return None
    return {shown_value(value) for schema in schemas for value in schema["enum"]}


def _required(shape: FieldShape, way: Way) -> set[str]:
    """Returns the fields that every answer has there."""
    schemas = shape.values(way)
    if not schemas:
        return set()
    return set[str].intersection(*(set(schema.get("required", ())) for schema in schemas))
