"""What many stages, and rows that stages make, cost: loading, walking, reducing."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from figures import Figure
from processes import stub
from sizes import Sizes
from workspace import SCHEMA, WORKFLOW, workspace

CONCURRENCY = 64

MANY_STAGES = """\
  - name: s{index}
    needs: {needs}
    when: size(review) > {index} - 10000
    prompt: "Stage {index}: ${{review}}{upstream}"
    output_schema: {schema}
"""
REDUCE = """\
  - name: overview
    group_by: []
    reduce: {max_rows: 100}
    prompt: "What do these ${rows_count} say? ${rows_json}"
"""


def operators(sizes: Sizes) -> Iterator[Figure]:
    """Workflows of many stages, and one that reduces all of its rows."""
    yield from _many_stages(sizes)
    yield from _walking(sizes)
    yield from _reducing(sizes)


def _many_stages(sizes: Sizes) -> Iterator[Figure]:
    """A graph in which each stage follows two others, has a guard and names a result."""
    stages = sizes.stages
    with stub() as server, workspace(server, 1) as space:
        texts = [
            MANY_STAGES.format(
                index=index,
                needs=[f"s{near}" for near in {index - 1, index // 2} if 0 <= near < index],
                upstream=f" ${{s{index - 1}.reason}}" if index else "",
                schema=SCHEMA,
            )
            for index in range(stages)
        ]
        (space.root / "workflows" / "b.yml").write_text(WORKFLOW + "".join(texts), encoding="utf-8")
        used = [space.agac("validate") for _ in range(sizes.runs)]
    name = f"graph of {stages:,} stages"
    yield Figure(name, "agac validate, whole command", median(one.wall for one in used), "s", at_most=2)


def _walking(sizes: Sizes) -> Iterator[Figure]:
    """Tasks a second of a row that goes through many stages, beside one that goes through one."""
    rows, stages = sizes.walked
    rates = []
    for count, times in ((1, stages), (stages, 1)):
        with stub() as server, workspace(server, rows * times, stages=count, concurrency=CONCURRENCY) as space:
            found = []
            for _ in range(sizes.runs):
                space.forget()
                space.agac("run", "-a", "b")
                found.append(server.account().rate)
        rates.append(median(found))
    name = f"{rows * stages:,} tasks"
    yield Figure(name, "of one stage, first to last request", rates[0], "tasks/s")
    yield Figure(name, f"of {stages} stages, first to last request", rates[1], "tasks/s")
    yield Figure(name, f"{stages} stages / one", rates[1] / rates[0], "", at_least=0.8)


def _reducing(sizes: Sizes) -> Iterator[Figure]:
    """All rows in one group, asked as a tree."""
    peaks = []
    for rows in sizes.reduced:
        with stub() as server, workspace(server, rows) as space:
            (space.root / "workflows" / "b.yml").write_text(WORKFLOW + REDUCE, encoding="utf-8")
            used, calls = space.agac("run", "-a", "b"), server.account().requests
            again, more = space.agac("run", "-a", "b"), server.account().requests
        peaks.append(used.memory)
        name = f"reduce, {rows:,} rows, 100 a call"
        yield Figure(name, "whole command", used.wall, "s")
        yield Figure(name, "CPU", used.cpu, "s CPU")
        yield Figure(name, "calls", calls, "")
        yield Figure(name, "peak memory", used.memory, "MB", at_most=150)
        yield Figure(name, "run again, whole command", again.cpu, "s CPU")
        yield Figure(name, "calls of that", more, "", at_most=0)
    few, many = sizes.reduced
    yield Figure(f"reduce, {many:,} rows / {few:,} rows", "peak memory", peaks[1] / peaks[0], "", at_most=1.2)
