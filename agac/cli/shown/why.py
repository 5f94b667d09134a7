"""What a task was asked with, and what differs from the last time, in words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agac.cli.shown.submitted import in_batch_words
from agac.cli.shown.votes import replicas_words
from agac.cli.shown.words import indented, passed_over_words, plain

if TYPE_CHECKING:
    from agac.api.explaining import Asked, WhyReport


def why_lines(report: WhyReport) -> list[str]:
    """The whole report."""
    lines = [f"{report.workflow}, run {report.now.run}, row {report.row_id!r}, stage {report.stage}", ""]
    lines += _task(report.now)
    if report.now.passed_over is None:
        lines += ["", *_made_of(report.now)]
    return [*lines, "", *_compared(report)]


def _task(asked: Asked) -> list[str]:
    found = asked.as_json()
    if found["passed_over"]:
        return [f"outcome: {found['outcome']}, {found['settled_at']}", plain(passed_over_words(found["passed_over"]))]
    lines = [f"fingerprint: {found['fingerprint'] or 'none: nothing could be asked'}"]
    if asked.stage.operation is not None and not found["fingerprint"]:
        lines = []
    if found["in_batch"]:
        lines.append(in_batch_words(found["in_batch"]))
    if found["outcome"] is None:
        return [*lines, "outcome: none yet" if found["in_batch"] else "outcome: not asked yet"]
    lines.append(f"outcome: {found['outcome']}, {found['settled_at']}")
    if found["error"]:
        lines.append(plain(f"error: {found['error']['type']}: {found['error']['message']}"))
    if found["answered_by"] and asked.stage.operation is None:
        how = f" ({found['how']})" if found["how"] else ""
        lines.append(f"answered by: {found['answered_by']}{how}, {found['answered_at']}")
    return lines


def _passed_over(asked: Asked) -> str:
    return f"{asked.task.outcome}: {plain(passed_over_words(asked.passed_over or {}))}"


def _made_of(asked: Asked) -> list[str]:
    if asked.stage.operation is not None:
        return [
            f"This stage asks no model. It does: {plain(json.dumps(asked.stage.operation.body(), ensure_ascii=False))}"
        ]
    parts = asked.components()
    lines = ["The fingerprint is made of:", f"  model: {parts['model']}"]
    lines.append(f"  params: {json.dumps(parts['params']) if parts['params'] else 'none'}")
    schema = parts["schema"]
    lines.append(f"  schema: {schema['name']} ({schema['hash']})" if schema else "  schema: none")
    if often := replicas_words(parts):
        lines.append(f"  replicas: {often}")
    if parts["salt"]:
        lines.append(f"  reuse: {parts['reuse']}, kept apart by {parts['salt']}")
    if parts["messages"] is None:
        return [*lines, f"  messages: {'none' if asked.task.outcome is None else 'cannot be shown'}: {asked.missing}"]
    for message in parts["messages"]:
        lines += [f"  {message['role']}:", indented(plain(message["text"]), "    ")]
    return lines


def _compared(report: WhyReport) -> list[str]:
    before, lines = report.before, _in_this_run(report)
    if before is None:
        return lines or ["No earlier run has asked this stage of this row."]
    run = f"run {before.run}"
    if report.now.passed_over is not None or before.passed_over is not None:
        said = f"{_passed_over(before)}" if before.passed_over else "it was asked"
        differing = [f"What differs from {run}:"] if report.differences else []
        return [*lines, f"In {run}: {said}", *differing, *_all_differences(report)]
    now = report.now.task
    if now.fingerprint is not None and now.fingerprint == before.task.fingerprint:
        if report.anew is not None:
            return [*lines, f"Nothing differs from {run}, and it was asked all the same: {report.anew}."]
        return [*lines, f"Nothing differs from {run}: its answer is this one's too."]
    if report.differences:
        return [*lines, f"What differs from {run}:", *_all_differences(report)]
    if report.now.stage.operation is not None:
        return [*lines, f"Nothing of the stage and of the row's own fields differs from {run}."]
    if now.fingerprint is None:
        return [*lines, f"It was asked in {run}."]
    return [*lines, f"The fingerprint differs from {run}'s, but what was asked there cannot be rebuilt."]


def _all_differences(report: WhyReport) -> list[str]:
    return [line for one in report.differences for line in _difference(one)]


def _in_this_run(report: WhyReport) -> list[str]:
    again = report.again
    if again is None:
        return []
    when, because = f"This run asked it before, {again.as_json()['asked_at']}", ", ".join(again.because)
    if report.now.passed_over is not None:
        return [f"{when}; since then: {because}."]
    if again.same:
        return [f"{when}, with the same question; asked again because {because}."]
    return [f"{when}, with another question; since then: {because}.", "  What was asked then is not kept."]


def _difference(one: dict[str, Any]) -> list[str]:
    if "diff" in one:
        return [f"  {one['what']}:", *(f"    {plain(line)}" for line in one["diff"][2:])]
    before, now = (plain(json.dumps(one[key], ensure_ascii=False)) for key in ("before", "now"))
    return [f"  {one['what']}: {before} → {now}"]
