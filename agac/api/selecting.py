"""Which rows a workflow reads, and where its results go, after the command line had its say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from agac.api.checking import Checked
from agac.api.project import Project
from agac.core.types import Row
from agac.data.sources import read_rows
from agac.plan.plan import Selection
from agac.spec.inout import output_folder
from agac.spec.workflow import Workflow


def selected_rows(checked: Checked, selection: Selection) -> Iterator[Row]:
    """The selected rows, streamed; every call reads the input anew."""
    rows = read_rows(checked.source, checked.workflow.input.id_field, selection.offset)
    return rows if selection.limit is None else itertools.islice(rows, selection.limit)


def count_rows(checked: Checked, selection: Selection) -> int:
    """How many rows are selected; reads the input."""
    records = checked.source.records(selection.offset)
    return sum(1 for _ in (records if selection.limit is None else itertools.islice(records, selection.limit)))


def with_output(checked: Checked, project: Project, text: str) -> Workflow:
    """The workflow with the folder that `--output` names. Raises UsageError when it cannot be one."""
    folder = output_folder(text, project.spec, checked.workflow.input)
    return replace(checked.workflow, output=replace(checked.workflow.output, dir=folder))
