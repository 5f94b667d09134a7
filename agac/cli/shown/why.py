"""What a task was asked with, and what differs from the last time, in words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agac.cli.shown.words import indented, plain

if TYPE_CHECKING:
    from agac.api.explaining import Asked, WhyReport


def why_lines(report: WhyReport) -> list[str]:
    """The whole report."""
    lines = [f"{report.workflow}, run {report.now.run}, row {report.row_id!r}, stage {report.stage}", ""]
    lines += _task(report.now)
    lines += ["", *_made_of(report.now), ""]
    return [*lines, *_compared(report)]


def _task(asked: Asked) -> list[str]:
    found = asked.as_json()
    lines = [f"fingerprint: {found['fingerprint'] or 'none: nothing could be asked'}"]
    if found["outcome"] is None:
        return [*lines, "outcome: not asked yet"]
    lines.append(f"outcome: {found['outcome']}, {found['settled_at']}")
    if found["error"]:
        lines.append(plain(f"error: {found['error']['type']}: {found['error']['message']}"))
    if found["answered_by"]:
        how = f" ({found['how']})" if found["how"] else ""
        lines.append(f"answered by: {found['answered_by']}{how}, {found['answered_at']}")
    return lines


def _made_of(asked: Asked) -> list[str]:
    parts = asked.components()
    lines = ["The fingerprint is made of:", f"  model: {parts['model']}"]
    lines.append(f"  params: {json.dumps(parts['params']) if parts['params'] else 'none'}")
    schema = parts["schema"]
    lines.append(f"  schema: {schema['name']} ({schema['hash']})" if schema else "  schema: none")
    if parts["salt"]:
        lines.append(f"  reuse: {parts['reuse']}, kept apart by {parts['salt']}")
    if parts["messages"] is None:
        return [*lines, f"  messages: cannot be shown; {asked.missing}"]
    for message in parts["messages"]:
        lines += [f"  {message['role']}:", indented(plain(message["text"]), "    ")]
    return lines


def _compared(report: WhyReport) -> list[str]:
    before = report.before
    if before is None:
        return ["No earlier run has asked this stage of this row."]
    if before.task.fingerprint == report.now.task.fingerprint:
        return [f"Nothing differs from run {before.run}: its answer is this one's too."]
    if not report.differences:
        return [f"The fingerprint differs from run {before.run}'s, but what was asked there cannot be rebuilt."]
    lines = [f"What differs from run {before.run}:"]
    for one in report.differences:
        lines += _difference(one)
    return lines


def _difference(one: dict[str, Any]) -> list[str]:
    if "diff" in one:
        return [f"  {one['what']}:", *(f"    {plain(line)}" for line in one["diff"][2:])]
    before, now = (plain(json.dumps(one[key], ensure_ascii=False)) for key in ("before", "now"))
    return [f"  {one['what']}: {before} → {now}"]
