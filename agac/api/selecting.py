"""Which rows a workflow reads, after the command line had its say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from agac.api.checking import Checked
from agac.core.types import Row
from agac.data.sampling import sampled
from agac.data.sources import read_rows
from agac.plan.plan import Selection


def selected_rows(checked: Checked, selection: Selection) -> Iterator[Row]:
    """The selected rows, streamed; every call reads the input anew. A sample reads all of it once more, first."""
    rows = read_rows(checked.source, checked.workflow.input.id_field, selection.offset)
    if selection.sample is not None:
        rows = _drawn(checked, selection, rows)
    return rows if selection.limit is None else itertools.islice(rows, selection.limit)


def _drawn(checked: Checked, selection: Selection, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of the sample, in the order of the input."""
    ordinals = (record.ordinal for record in checked.source.records(selection.offset))
    wanted = iter(sampled(ordinals, selection.sample or 0, selection.seed))
    following = next(wanted, None)
    for row in rows:
        if following is None:
            return
        if row.ordinal == following:
            yield row
            following = next(wanted, None)


def count_rows(checked: Checked, selection: Selection) -> int:
    """How many rows are selected; reads the input, as far as it must."""
    records = checked.source.records(selection.offset)
    most = min((bound for bound in (selection.limit, selection.sample) if bound is not None), default=None)
    return sum(1 for _ in (records if most is None else itertools.islice(records, most)))
