"""A snapshot of a run as lines, one a stage, as wide as the terminal allows.

classify ████████░░ 1,247/10,000 (12.5%) | 45/s | ETA 3m 12s | $0.84 | errors 3 (last: SchemaMismatch, row r-1089)
"""

from __future__ import annotations

from dataclasses import dataclass

from agac.api.watching import Snapshot, StageSnapshot
from agac.cli.live.text import cells, cropped, is_unicode, on_one_line, padded
from agac.cli.shown.words import duration

BAR = 10
WIDE_BAR = 20
WIDE = 140
"""From so many columns on the bar is longer."""

LEAST_DETAIL = 8
"""Cells of an error below which its row is left out rather than cut."""

STOPPING = "stopping: {calls} in flight may finish (Ctrl-C again gives them up)"


@dataclass(frozen=True, slots=True)
class Paper:
    """What lines are written on: `width` in cells, None when it has no end; `encoding` of the stream; with bars?"""

    width: int | None
    encoding: str | None
    bars: bool = True

    @property
    def mark(self) -> str:
        """What stands where something was cut off."""
        return "…" if is_unicode(self.encoding) else "~"

    def bar(self, share: float) -> str:
        """A bar of which this share is full."""
        length = WIDE_BAR if self.width is not None and self.width >= WIDE else BAR
        full = int(min(1.0, share) * length)
        on, off = ("█", "░") if is_unicode(self.encoding) else ("#", "-")
        return on * full + off * (length - full)


def run_lines(snapshot: Snapshot, rates: dict[str, float], paper: Paper, most: int | None = None) -> list[str]:
    """A line a stage, then what belongs to no stage. At most `most` lines: then stages that rest are told together."""
    notes = _notes(snapshot, paper)
    room = None if most is None else max(1, most - len(notes))
    shown = list(snapshot.stages)
    if room is not None and len(shown) > room:
        moving = [stage for stage in shown if stage.in_flight or not _finished(stage)]
        shown = (moving or shown)[: max(0, room - 1)]
        notes.insert(0, f"+ {len(snapshot.stages) - len(shown)} more stages")
    names = [on_one_line(stage.name, paper.encoding) for stage in shown]
    widest = max((cells(name) for name in names), default=0)
    if paper.width is not None:
        widest = min(widest, max(6, paper.width // 4))
    lines = [
        stage_line(padded(cropped(name, widest, paper.mark), widest), stage, rates.get(stage.name, 0.0), paper)
        for name, stage in zip(names, shown, strict=True)
    ]
    notes = notes if paper.width is None else [cropped(note, paper.width, paper.mark) for note in notes]
    return [*lines, *notes] if most is None else [*lines, *notes][:most]


def stage_line(name: str, stage: StageSnapshot, rate: float, paper: Paper) -> str:
    """One stage. Where it is too long, first the last error is cut, then the least telling parts go."""
    head, head_bare = _share(name, stage, paper)
    parts = {"rate": f"{rate:,.0f}/s" if rate >= 10 else f"{rate:,.1f}/s"}
    if stage.total is not None and rate > 0 and not _finished(stage):
        parts["eta"] = f"ETA {duration((stage.total.rows - stage.settled) / rate)}"
    if kept_out := _kept_out(stage):
        parts["guard"] = kept_out
    parts["cost"] = _cost(stage)
    if stage.failed:
        parts["errors"] = f"errors {stage.failed:,}"
    detail = _last_error(stage, paper)
    if paper.width is None:
        return " | ".join([head, *parts.values()]) + detail
    for start, kept in ((head, parts), (head_bare, parts), *_fewer(head_bare, parts)):
        line = " | ".join([start, *kept.values()])
        if cells(line) <= paper.width:
            room = paper.width - cells(line)
            # what names the error goes with a count of errors only
            return line + _cut_detail(detail, room, paper) if "errors" in kept else line
    return cropped(head_bare, paper.width, paper.mark)


def _fewer(head: str, parts: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """The parts with one less each time: the rate says least beside the ETA, errors say most."""
    found = []
    for name in ("guard", "rate", "cost", "eta", "errors"):
        parts = {key: text for key, text in parts.items() if key != name}
        found.append((head, parts))
    return found


def _share(name: str, stage: StageSnapshot, paper: Paper) -> tuple[str, str]:
    """How far a stage is, with a bar and without."""
    if stage.total is None:
        text = f"{name} {stage.settled:,} rows"
        return text, text
    share = stage.settled / stage.total.rows if stage.total.rows else 1.0
    about = "" if stage.total.exact else "~"
    counts = f"{stage.settled:,}/{about}{stage.total.rows:,} ({share:.1%})"
    return f"{name} {paper.bar(share)} {counts}" if paper.bars else f"{name} {counts}", f"{name} {counts}"


def _finished(stage: StageSnapshot) -> bool:
    return stage.total is not None and stage.total.exact and stage.settled >= stage.total.rows


def _kept_out(stage: StageSnapshot) -> str:
    """What a guard kept out of a stage in this invocation."""
    counts = {"skipped": stage.skipped, "dropped": stage.dropped}
    return ", ".join(f"{word} {count:,}" for word, count in counts.items() if count)


def _cost(stage: StageSnapshot) -> str:
    digits = 2 if stage.cost >= 0.095 or not stage.cost else 4
    if stage.unpriced and not stage.cost:
        return "price unknown"
    text = ("simulated " if stage.simulated else "") + f"${stage.cost:,.{digits}f}"
    return f"{text} + unknown prices" if stage.unpriced else text


def _last_error(stage: StageSnapshot, paper: Paper) -> str:
    if stage.last_error is None:
        return ""
    error, row = stage.last_error
    return f" (last: {error.type}, row {on_one_line(str(row), paper.encoding)})"


def _cut_detail(detail: str, room: int, paper: Paper) -> str:
    """The last error in so many cells: without its row when little is left of it, and not at all without its type."""
    if cells(detail) <= room:
        return detail
    kind = detail.partition(", row ")[0]
    if cells(kind) + len(", row ") + LEAST_DETAIL <= room:
        return cropped(detail, room - 1, paper.mark) + ")"
    return f"{kind})" if cells(kind) < room else ""


def _notes(snapshot: Snapshot, paper: Paper) -> list[str]:
    notes = []
    for batch in snapshot.batches:
        what = "1 batch" if batch.batches == 1 else f"{batch.batches:,} batches"
        counts = f"{batch.done:,}/{batch.requests:,} done" + (f", {batch.failed:,} failed" if batch.failed else "")
        notes.append(f"{on_one_line(batch.stage, paper.encoding)}: {what} {batch.status}, {counts}")
    if snapshot.unusable and snapshot.last_error is not None:
        error, row = snapshot.last_error
        last = f" (last: {error.type}, row {on_one_line(str(row), paper.encoding)})"
        staged = any(stage.failed for stage in snapshot.stages)
        notes.append(f"unusable rows {snapshot.unusable:,}{'' if staged else last}")
    if snapshot.waiting_for is not None and not snapshot.stopping:
        notes.append(f"trying again: {on_one_line(snapshot.waiting_for.message, paper.encoding)}")
    if snapshot.stopping:
        calls = "1 call" if snapshot.in_flight == 1 else f"{snapshot.in_flight:,} calls"
        notes.append(STOPPING.format(calls=calls))
    return notes
