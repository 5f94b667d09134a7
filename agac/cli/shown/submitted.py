"""What is said of batches when a run submitted some: each on a line, those that wait, what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from agac.cli.shown.layout import first_line
from agac.cli.shown.words import counted, plain

Facts = Mapping[str, Any]
"""A batch as `BatchLine.as_json` gives it, or some of that; the facts of an invocation; a summary."""


def dollars(usd: float | None, *, simulated: bool) -> str:
    """`$12.40`, `simulated $0.0103`."""
    if usd is None:
        return "price unknown"
    digits = 2 if usd >= 0.095 or not usd else 4
    return f"{'simulated ' if simulated else ''}${usd:,.{digits}f}"


def submitted_line(batch: Facts) -> str:
    """`Submitted batch batch_abc123: 50,000 requests, 1 of 3, openai/gpt-5.4-mini, up to $12.40 at batch price`."""
    return f"Submitted batch {plain(batch['provider_id'] or str(batch['id']))}: {_what(batch)}"


def _what(batch: Facts) -> str:
    price = dollars(batch["held_usd"], simulated=batch["simulated"])
    most = f"up to {price} at batch price" if batch["held_usd"] is not None else price
    return f"{counted(batch['requests'], 'request')}, {batch['number']} of {batch['of']}, {batch['model']}, {most}"


def waiting_line(batch: Facts) -> str:
    """A batch that the provider has not got yet, why, and when that is tried again."""
    why = plain(first_line(batch["waits"] or batch["note"] or "there is no room"))
    again = f"; tried again from {batch['try_at']} on" if batch.get("try_at") else ""
    return f"Waiting batch {batch['id']}: {_what(batch)}: {why}{again}"


CLOSED = ("INGESTED", "CLEANED", "NOT_CREATED", "REJECTED")
"""Steps after which nothing is to come of a batch any more, as in `store.batchviews`, which is slow to load."""


def batch_lines(invocation: Facts) -> list[str]:
    """The batches that an invocation submitted, and those that wait."""
    submitted, waiting = invocation.get("batches") or (), invocation.get("waiting_batches") or ()
    still = [batch for batch in submitted if batch["step"] not in CLOSED]  # who waited read of the others above
    return [*map(submitted_line, still), *map(waiting_line, waiting)]


def next_lines(summary: Facts, invocation: Facts, command: str) -> list[str]:
    """What is finished by now, and which commands go on. `command` stays to the end with `--wait`."""
    return [*_attention(invocation), *_follow(summary, invocation, command)]


def undecided_lines(invocation: Facts) -> list[str]:
    """Which batches want a decision, with the commands that decide."""
    lines = []
    for batch in invocation.get("undecided_batches") or ():
        said = f": {plain(first_line(batch['note']))}" if batch["note"] else ""
        lines += [f"A decision is needed about {name_of(batch)}{said}", f"  {sentence(batch['remedy'])}"]
    return lines


def _attention(invocation: Facts) -> list[str]:
    """What nobody waits for any more, and what found no room."""
    lines = []
    for one in invocation.get("stale") or ():
        usd = dollars(one["held_usd"], simulated=bool(one.get("simulated")))
        price = usd if one["held_usd"] is None else f"up to {usd}"
        stale = {"id": one["batch"], "provider_id": one["provider_id"]}
        lines.append(
            f"No longer asked: {counted(one['requests'], 'request')} in {name_of(stale)}, {price}; "
            f"end it with: agac batch cancel {one['batch']}"
        )
    held = invocation.get("tasks_held_back")
    if held and not invocation.get("stopped_at_limit"):
        lines.append(
            f"Held back: {counted(held, 'task')} for which the budget has no room beside the open batches; "
            "the next `agac batch retrieve` tries again"
        )
    return lines


def _follow(summary: Facts, invocation: Facts, command: str) -> list[str]:
    awaited = [one["batch"] for one in invocation.get("waits_for") or ()]
    elsewhere = []
    if awaited:
        those = f"batch {awaited[0]}" if len(awaited) == 1 else f"batches {', '.join(map(str, awaited))}"
        asks, ended = ("asks", "it has") if len(awaited) == 1 else ("ask", "they have")
        elsewhere.append(
            f"Rows wait for {those} of an earlier run, which {asks} the same (`agac batch list`); "
            f"when {ended} ended, go on with: {command}"
        )
    if not invocation.get("open_batches"):
        return elsewhere
    wait = shlex.join([*(word for word in shlex.split(command) if word != "--wait"), "--wait"])
    them = "it" if invocation["open_batches"]["batches"] == 1 else "them"
    follow = f"`agac batch status` follows {them}, `agac batch retrieve` takes what is ready; `{wait}` stays."
    return [*elsewhere, f"{_finished(summary)} {follow}"]


def _finished(summary: Facts) -> str:
    rows = summary["rows"]
    ended = rows["total"] - rows["open"]
    if not ended:
        return "Nothing is finished yet."
    return f"{ended:,} of {counted(rows['total'], 'row')} {'is' if ended == 1 else 'are'} finished."


CAME_TO = {
    "done": "done",
    "failed": "failed",
    "missing": "without an answer",
    "expired": "expired",
    "cancelled": "cancelled",
    "duplicate": "answered twice",
    "unknown": "of no request of ours",
    "malformed": "unreadable",
    "again": "asked again",
}
"""What lines of results came to, and how that is said."""


def taken_line(taken: Facts) -> str:
    """What came of a batch that was taken."""
    counts = [f"{taken[key]:,} {word}" for key, word in CAME_TO.items() if taken.get(key) or key == "done"]
    return f"Took {name_of(taken)}: {', '.join(counts)}"


def name_of(batch: Facts) -> str:
    """`batch 4 (batch_abc123)`."""
    return f"batch {batch['id']} ({plain(batch['provider_id'])})" if batch["provider_id"] else f"batch {batch['id']}"


def in_batch_words(task: Facts) -> str:
    """Which batch is to bring the answer of a row's task: `in batch 4 (batch_abc123) of run 1, submitted 2026-…`."""
    replica = f"replica {task['replica']}: " if "replica" in task else ""
    how = "waits for the same question in" if task["waits"] else "in"
    batch = name_of({"id": task["batch"], "provider_id": task["provider_id"]})
    when = f"submitted {task['submitted_at']}" if task["submitted_at"] else "not submitted yet"
    again = f", round {task['round']}" if task["round"] > 1 else ""
    return f"{replica}{how} {batch} of run {task['run']}, {when}{again}; agac batch status {task['batch']}"


def sentence(text: str) -> str:
    """A message with a capital letter, on a line of its own."""
    return plain(text[:1].upper() + text[1:])
