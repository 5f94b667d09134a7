"""`agac gc` and `agac backup` as lines of text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from agac.cli.shown.layout import from_here
from agac.cli.shown.words import counted, megabytes

if TYPE_CHECKING:
    from agac.api.keeping import BackupReport, GcReport


def gc_lines(report: GcReport) -> list[str]:
    """What was dropped, what is kept, and what it made of the store."""
    cleared, would = report.cleared, report.dry_run
    verb = "Would drop" if would else "Dropped"
    lines = [f"{verb} run {d.line.id} of {d.line.workflow}: {counted(d.rows, 'row')}" for d in cleared.dropped]
    parts = [
        (cleared.left_rows, "row", "left the input"),
        (cleared.gone_rows, "row", "stages no longer make"),
        (cleared.results, "answer", "no kept run uses"),
    ]
    for count, what, why in parts:
        lines += [f"{verb} {counted(count, what)} that {why}"] if count else []
    lines = lines or ["Nothing to drop"]
    if cleared.kept:
        lines.append(f"Kept: {', '.join(f'run {line.id} of {line.workflow}' for line in cleared.kept)}")
    before, after = megabytes(report.bytes_before), megabytes(report.bytes_after)
    return [*lines, f"Store: {before}" if would else f"Store: {after}, before: {before}"]


def backup_lines(report: BackupReport) -> list[str]:
    """Where the copy is, and how to put it back."""
    database = from_here(report.database)
    old = shlex.join([f"{database}-wal", f"{database}-shm"])
    back = shlex.join(["cp", from_here(report.file), database])
    return [
        f"{from_here(report.file)}: {megabytes(report.bytes)}",
        f"Put it back, while no run is at work, with: rm -f {old} && {back}",
    ]
