"""Batches as lines of text: one in full, several a line each, a table of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agac.cli.shown.layout import first_line, money, table
from agac.cli.shown.submitted import Facts, dollars, name_of, sentence
from agac.cli.shown.words import counted, duration, plain
from agac.core.report import iso

if TYPE_CHECKING:
    from agac.api.batches import BatchReport
    from agac.api.batchlines import BatchLine
    from agac.api.doctoring import DoctorReport
    from agac.api.retrieving import CancelReport, WaitReport

ASIDE = {"NEEDS_HUMAN": "needs a decision", "NOT_CREATED": "not created", "REJECTED": "failed"}
"""Where a step says more than what the provider last said."""


def status_word(line: BatchLine) -> str:
    """How a batch stands: the same words for every provider, and others for what no provider has."""
    return ASIDE.get(line.step) or line.status or ("in_progress" if line.provider_id else "not submitted")


def status_lines(report: BatchReport) -> list[str]:
    """How batches stand: one in full, several a line each, with what wants attention below."""
    lines = [f"not asked: {plain(first_line(reason))}" for reason in report.not_asked]
    if len(report.batches) == 1:
        lines += _whole(report.batches[0], report.now)
    else:
        for line in report.batches:
            lines += [_short(line, report.now), *(f"  {note}" for note in _attention(line, short=True))]
        lines.append(_sum(report))
    lines += [_run_cost(report, run) for run in report.calls]
    if report.elsewhere:
        lines.append(f"Open batches of other runs: {report.elsewhere:,}; list them with: agac batch list")
    return lines


def _whole(line: BatchLine, now: float) -> list[str]:
    """One batch, everything that is known of it."""
    found = [f"Batch job status: {status_word(line)}", f"{_name(line)}: {_where(line)}", f"Requests: {_counts(line)}"]
    if line.submitted_at is not None:
        found.append(f"Submitted: {iso(line.submitted_at)}, {_ago(line.submitted_at, now)}{_usually(line)}")
    if line.open and line.expires_at is not None and not line.ready:
        found.append(f"The provider gives up: {_when(line.expires_at, now)}")
    if line.open and line.deadline is not None and not line.ready:
        found.append(f"Deadline: {_when(line.deadline, now)}; what is not finished then is cancelled")
    found.append(f"Cost: {_cost(line)}")
    if line.open and line.provider_id is not None:
        found.append(f"The provider deletes its results and files: {_kept(line, now)}")
    if line.seen_at is not None and line.open:
        found.append(f"Asked: {iso(line.seen_at)}, {_ago(line.seen_at, now)}")
    return [*found, *_attention(line)]


def _short(line: BatchLine, now: float) -> str:
    """One batch on one line."""
    parts = [f"Batch job status: {status_word(line)}", f"{_name(line)}, {line.stage} {line.number} of {line.of}"]
    parts += [line.model, _counts(line)]
    if line.submitted_at is not None:
        parts.append(f"{duration(max(0.0, now - line.submitted_at))} old")
    if line.open and line.deadline is not None and not line.ready:
        parts.append(f"deadline {_when(line.deadline, now)}")
    parts.append(_cost(line))
    if line.open and line.provider_id is not None:
        parts.append(f"results and files deleted {_kept(line, now)}")
    return plain("; ".join(parts))


def _attention(line: BatchLine, *, short: bool = False) -> list[str]:
    """What stands in the way of a batch, and what can be done about it; `short`: only where it is not the usual."""
    found = []
    if line.waits:
        found.append(f"Not submitted: {plain(first_line(line.waits))}{_tried_again(line)}")
    if line.stuck and line.stuck_for_s is not None:
        found.append(f"Stuck: no count has moved for {duration(line.stuck_for_s)}")
    if line.cancelling and not line.ready:
        found.append("Its cancellation was asked for; what is finished is kept")
    if line.note:
        found.append(f"Note: {plain(first_line(line.note))}")
    if line.remedy and not (short and (line.ready or line.waits)):
        found.append(f"Next: {plain(line.remedy)}")
    return found


def _tried_again(line: BatchLine) -> str:
    return f"; tried again from {iso(line.try_at)} on" if line.try_at is not None else ""


def _name(line: BatchLine) -> str:
    """`Batch 4 (batch_abc123)`: both names by which it can be called."""
    return f"Batch {line.id} ({plain(line.provider_id)})" if line.provider_id else f"Batch {line.id}"


def _where(line: BatchLine) -> str:
    return f"{line.workflow}, run {line.run}, {line.stage} {line.number} of {line.of}, {line.model}"


def _counts(line: BatchLine) -> str:
    """`1,204 done, 3 failed of 50,000`; what the provider does not tell is not guessed."""
    total = counted(line.total, "request")
    told = [f"{count:,} {word}" for count, word in ((line.done, "done"), (line.failed, "failed")) if count is not None]
    if told:
        return f"{', '.join(told)} of {line.total:,}"
    return total if line.provider_id else f"{total}, none sent yet"


def _cost(line: BatchLine) -> str:
    """What it cost, or the most that it can cost."""
    if line.cost_usd is None and line.held_usd is not None:
        return f"up to {dollars(line.held_usd, simulated=line.simulated)}"
    return dollars(line.cost_usd, simulated=line.simulated)


def _kept(line: BatchLine, now: float) -> str:
    return _when(line.results_until, now) if line.results_until is not None else "at a time that it does not tell"


def _when(at: float, now: float) -> str:
    """A time, and how far it is away."""
    away = f"in {duration(at - now)}" if at >= now else f"{duration(now - at)} ago"
    return f"{iso(at)} ({away})"


def _ago(at: float, now: float) -> str:
    return f"{duration(max(0.0, now - at))} ago"


def _usually(line: BatchLine) -> str:
    """How long others of its lane took."""
    if line.lane is None or not line.open or line.ready:
        return ""
    half, most = duration(line.lane.p50), duration(line.lane.p95)
    return f"; of {line.lane.batches:,} in this lane half took up to {half}, 95 % up to {most}"


def _sum(report: BatchReport) -> str:
    done, failed = (sum(getattr(line, name) or 0 for line in report.batches) for name in ("done", "failed"))
    total = sum(line.total for line in report.batches)
    ready = sum(line.ready for line in report.batches)
    waiting = sum(line.waits is not None for line in report.batches)
    words = f"{len(report.batches)} batches, {done:,} done, {failed:,} failed of {counted(total, 'request')}"
    next_ = [f"{count:,} {what}" for count, what in ((ready, "ended"), (waiting, "not submitted")) if count]
    return f"{words}; {', '.join(next_)}: agac batch retrieve" if next_ else words


def _run_cost(report: BatchReport, run: int) -> str:
    """What is paid for and in, and the most that open batches can add."""
    own = [line for line in report.batches if line.run == run and line.open]
    so_far = f"Cost of run {run} so far: {money(report.calls[run])}"
    if not own:
        return so_far
    simulated = any(line.simulated for line in own)
    more = dollars(sum(line.held_usd or 0.0 for line in own), simulated=simulated)
    unknown = " and what has no known price" if any(line.held_usd is None for line in own) else ""
    return f"{so_far}; open batches: up to {more}{unknown}"


def list_lines(report: BatchReport, *, closed: bool) -> list[str]:
    """Batches as a table."""
    if not report.batches:
        return ["No batch was submitted yet" if closed else "No open batches. With --all, those that are in, too"]
    header = ["batch", "at the provider", "workflow", "run", "stage", "model", "status", "done", "failed", "of", "cost"]
    rows = [
        [
            line.id, line.provider_id or "-", line.workflow, line.run, line.stage, line.model, status_word(line),
            *("-" if count is None else count for count in (line.done, line.failed)), line.total,
            _cost(line),
        ]
        for line in report.batches
    ]  # fmt: skip
    notes = [
        f"Batch {line.id}: {note}" for line in report.batches if line.open for note in _attention(line, short=True)
    ]
    return [table(header, rows), *(["", *notes] if notes else [])]


def waited_lines(report: WaitReport) -> list[str]:
    """How the batches stood when the wait was over."""
    return [*(_facts_line(batch) for batch in report.batches), sentence(report.message)]


def cancelled_lines(report: CancelReport) -> list[str]:
    """Which batches were asked to end, and which had ended already."""
    lines = [f"Cancelling {name_of(batch)}: {_progress(batch)}; what is finished is kept" for batch in report.asked]
    lines += [f"Left {name_of(batch)}: it had ended already ({batch['status']})" for batch in report.kept]
    return [*lines, sentence(report.message)]


def _facts_line(batch: Facts) -> str:
    return f"Batch job status: {batch['status'] or 'not submitted'}; {name_of(batch)}: {_progress(batch)}"


def _progress(batch: Facts) -> str:
    told = [f"{batch[word]:,} {word}" for word in ("done", "failed") if batch.get(word) is not None]
    return f"{', '.join(told)} of {counted(batch['total'] or batch['requests'], 'request')}"


def doctor_lines(report: DoctorReport) -> list[str]:
    """What was found and set right, and what wants a decision."""
    if not report.findings:
        return ["All is well: the store and the providers agree"]
    lines = []
    for finding in report.findings:
        lines.append(f"{'did' if finding['done'] else 'found'}: {plain(first_line(finding['message']))}")
        lines += [f"  {plain(finding['remedy'])}"] if finding["remedy"] else []
    return lines
