"""Says what became of one row: its fields, its stages and every attempt of these."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agac.cli import terminal
from agac.cli.batch import in_batch_words
from agac.cli.inspect_words import (
    alias_lines,
    block_lines,
    compact_json,
    error_text,
    model_words,
    skip_words,
)
from agac.core.text import row_command
from agac.core.types import counted, dollars

SHOWN_IDS = 5
"""The most ids of related rows that one line lists."""

MOST_SHOWN = 500
"""The most characters of a call's arguments, and of its result; `--json` has all."""


def row_lines(run: dict[str, Any], row: dict[str, Any]) -> Iterator[str]:
    """Yields all about one row of a run: its origin, its relatives, its fields, its stages."""
    repeated = ", its id repeated" if row["occurrence"] else ""
    name = terminal.run_name(run["workflow"], run["run"])
    yield f"{name}, {row['id']!r} ({_origin(row)}{repeated}): {row['state']}"
    if row["error"]:
        yield f"  {error_text(row['error'])}"
    if "kept_row" in row:
        yield (
            f"  left before any stage: its id is that of row {row['kept_row']}, which is "
            "kept (on_duplicate_id)"
        )
    yield from _parent_lines(run["run"], row)
    yield from _child_lines(run["run"], row)
    yield from _group_lines(run["run"], row)
    yield from ("", "Fields:")
    if row["fields"] is None:
        yield "  none: the record could not be read"
    if row["fields"] == {}:
        yield "  none of its own"
    for field, value in (row["fields"] or {}).items():
        yield from block_lines(field, terminal.value_text(value))
    for stage in row["stages"]:
        yield ""
        yield from _stage_lines(stage)


def _origin(row: dict[str, Any]) -> str:
    """`row 3 of the input`, or how a stage made it: `child 2 by split`."""
    match row["relation"]:
        case "input" if row["in_input"]:
            return f"row {row['row_number']:,} of the input"
        case "input":
            return "left the input"
        case "group":
            return f"group of {row['made_by']}"
        case "part":
            return f"part of the group {row['parents'][0]['id']!r} of {row['made_by']}"
        case "kept":
            return f"kept by {row['made_by']}"
        case _:
            return f"child {row['place']} by {row['made_by']}"


def _parent_lines(run: int, row: dict[str, Any]) -> Iterator[str]:
    """Yields the row that this one was made of, with the command that shows it."""
    for parent in row["parents"][:1]:
        command = ", of the same id"
        if parent["id"] != row["id"]:
            command = f": {row_command(run, parent['id'])}"
        level = "a row of the input"
        if parent["made_by"]:
            words = {"group": "a group of", "kept": "kept by"}
            level = f"{words.get(parent['relation'], 'a child by')} {parent['made_by']}"
        yield f"  made of: {parent['id']!r}, {level}{command}"


def _child_lines(run: int, row: dict[str, Any]) -> Iterator[str]:
    """Yields the rows that stages made of this one, by stage, with a command that shows one."""
    for children in row["children"]:
        stage = children["made_by"]
        states = ", ".join(f"{count:,} {word}" for word, count in children["states"].items())
        if children["relation"] == "kept":
            yield f"  kept by {stage}: it continues under the same id ({states})"
            continue
        word = "parts" if children["relation"] == "part" else "children"
        ids = _first_ids(run, children["ids"], children["count"])
        yield f"  {word} by {stage}: {children['count']:,} ({states}): {ids}"


def _group_lines(run: int, row: dict[str, Any]) -> Iterator[str]:
    """Yields the members of a group, and the groups of which the row is a member."""
    members = row["members"]
    if members:
        ids = _first_ids(run, members["ids"], members["count"])
        yield f"  members: {members['count']:,}: {ids}"
        if members["failed"]:
            ids = _first_ids(run, members["failed_ids"], members["failed"])
            yield f"  failed members: {members['failed']:,}: {ids}"
    for group in row["groups"]:
        command = row_command(run, group["id"])
        yield f"  in the group {group['id']!r} of {group['made_by']}: {command}"


def _first_ids(run: int, ids: list[str | int], count: int) -> str:
    """`'a', 'b', …; agac inspect 3 a`: the first of `count` ids, and how to see one of them."""
    if not ids:
        return "none"
    more = ", …" if count > SHOWN_IDS else ""
    return f"{', '.join(map(repr, ids[:SHOWN_IDS]))}{more}; {row_command(run, ids[0])}"


def _stage_lines(stage: dict[str, Any]) -> Iterator[str]:
    """Yields how a stage ended for the row, its request, and its attempts."""
    yield f"Stage {stage['name']}: {stage['outcome']}{_stale_words(stage)}"
    if stage["passed_over"]:
        yield f"  {skip_words(stage['passed_over'])}"
        yield f"  finished: {stage['settled_at']}"
        for attempt in stage["attempts"]:
            yield from _attempt_lines(attempt)
        return
    if stage["operation"]:
        yield f"  does: {compact_json(stage['operation'])}"
    else:
        yield f"  model: {model_words(stage)}"
    yield from alias_lines(stage)
    if stage["outcome"] != "open":
        yield from _outcome_lines(stage)
    for task in stage["in_batches"]:
        yield f"  {in_batch_words(task)}"
    for replica in stage.get("replicas", ()):
        yield from _replica_lines(replica)
    vote = stage.get("vote")
    if vote:
        yield f"  {_vote_words(vote)}"
    yield from _prompt_lines(stage)
    yield from _attempts_with_turns(stage)


def _prompt_lines(stage: dict[str, Any]) -> Iterator[str]:
    """Yields the prompt of a stage, or why it is not shown."""
    for message in stage["prompt"] or ():
        yield from block_lines(f"prompt, {message['role']}", message["text"])
    if stage["prompt_note"]:
        what = "not done" if stage["operation"] else "prompt: not shown"
        yield f"  {what}: {stage['prompt_note']}"


def _stale_words(outcome: dict[str, Any]) -> str:
    return " (of earlier content)" if outcome["stale"] else ""


def _replica_lines(replica: dict[str, Any]) -> Iterator[str]:
    """Yields how a replica ended for the row."""
    yield f"  Replica {replica['replica']}: {replica['outcome']}{_stale_words(replica)}"
    if replica["outcome"] == "open":
        return
    if replica["error"]:
        yield from block_lines("error", error_text(replica["error"]), "    ")
    else:
        yield from block_lines("answer", compact_json(replica["result"]), "    ")
    if replica["reused_from"]:
        yield f"    reused: {_reused_words(replica['reused_from'])}"


def _vote_words(vote: dict[str, Any]) -> str:
    """`vote on label: "good" by 1, 2 and 4, "bad" by 3; agreement 0.75, …`."""
    values = ", ".join(
        f"{compact_json(answer['value'])} by {_listed(answer['replicas'])}"
        for answer in vote["values"]
    )
    agreed = f"agreement {vote['agreement']:.2f}, the result is that of replica {vote['taken']}"
    if "lead" in vote:
        counts = [len(answer["replicas"]) for answer in vote["values"]]
        asked = sum(counts) + len(vote["without"])
        agreed = f"votes {':'.join(map(str, counts))} of {asked} asked; {agreed}"
    return f"vote on {vote['field'] or 'the answer'}: {values}; {agreed}"


def _listed(numbers: list[int]) -> str:
    """`1, 2 and 4`."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def _attempts_with_turns(stage: dict[str, Any]) -> Iterator[str]:
    """Yields every attempt, each with the turn of the conversation that it belongs to."""
    turns = {
        (turn["invocation"], turn["attempt"], turn["fingerprint"]): turn
        for turn in stage.get("turns", ())
    }
    for attempt in stage["attempts"]:
        yield from _attempt_lines(attempt)
        turn = turns.get((attempt["invocation"], attempt["number"], attempt["fingerprint"]))
        if turn:
            yield from _turn_lines(turn)


def _turn_lines(turn: dict[str, Any]) -> Iterator[str]:
    """Yields one turn of a conversation, with the calls of tools that the model asked for."""
    agent = f" of {turn['agent']}" if turn["agent"] else ""
    ended = f", the conversation ended: {turn['ended']}" if turn["ended"] else ""
    calls = counted(len(turn["calls"]), "call")
    yield f"    turn {turn['number']}{agent}: {calls} of tools{ended}"
    for call in turn["calls"]:
        state = call["state"]
        if state == "intent":
            state = "begun, its end is not known"
        how = f", {call['how']}" if call["how"] else ""
        took = ""
        if call["duration_s"] is not None:
            took = f" in {call['duration_s'] * 1000:,.0f} ms"
        head = f"{call['name']}({call['arguments'][:MOST_SHOWN]}): {state}{how}{took}"
        yield from block_lines(head, (call["result"] or "")[:MOST_SHOWN], "      ")


def _outcome_lines(stage: dict[str, Any]) -> Iterator[str]:
    """Yields where the answer of a stage comes from, and its result or its error."""
    operation = stage["operation"]
    is_stored = not operation or "python" in operation or "review" in operation
    if not is_stored and not stage["error"]:  # its result costs nothing
        yield f"  finished: {stage['settled_at']}"
        return
    yield f"  fingerprint: {stage['fingerprint'] or 'none'}   finished: {stage['settled_at']}"
    yield from _answered_lines(stage)
    if stage["reused_from"]:
        yield f"  reused: {_reused_words(stage['reused_from'])}"
    if stage["error"]:
        yield from block_lines("error", error_text(stage["error"]))
        if stage["traceback"]:
            yield from block_lines("traceback", stage["traceback"].rstrip())
    else:
        yield from block_lines("result", json.dumps(stage["result"], ensure_ascii=False, indent=2))
    sources = stage.get("sources")
    if sources:
        yield from block_lines("sources", "\n".join(map(_source_words, sources)))


def _answered_lines(stage: dict[str, Any]) -> Iterator[str]:
    """Yields who answered: a person, an earlier file, or a model and after what."""
    endpoint = stage["answered_by"]
    ways = stage["how"]
    if "reviewed" in stage:
        by = f", by {endpoint['model']}" if endpoint["provider"] == "people" else ""
        yield f"  reviewed: {stage['reviewed']}{by}"
    if ways == ["adopted"]:
        yield f"  adopted: it stood in {endpoint['model']}; nothing was asked"
    elif "manual" in ways:
        yield f"  set by hand, by {endpoint['model']}"
    elif endpoint and not stage["operation"]:
        after = [way for way in ways if way != "misformatted"]
        how = f", after {', '.join(after)}" if after else ""
        if after != ways:
            how += ", with a text that lacks its `format`"
        yield f"  answered by: {_endpoint(endpoint)}{how}"


def _source_words(source: dict[str, Any]) -> str:
    """`cited: https://example.com   Its title`: a page that a provider's search found."""
    used = "cited" if source["cited"] else "found"
    return f"{used}: {source['url']}   {source['title']}".rstrip()


def _reused_words(origin: dict[str, Any]) -> str:
    """Says for which row of which run a reused answer was given first."""
    if origin["run"] is None:
        return (
            f"answered {origin['answered_at']}; the row of that request has changed since "
            "or is gone"
        )
    command = row_command(origin["run"], origin["row"])
    return (
        f"answered {origin['answered_at']} for row {origin['row']!r} of run "
        f"{origin['run']}: {command}"
    )


def _attempt_lines(attempt: dict[str, Any]) -> Iterator[str]:
    """Yields one request: to whom, how long it took, what it cost, and the reply."""
    replica = f" for replica {attempt['replica']}" if "replica" in attempt else ""
    head = f"Attempt {attempt['number']} of invocation {attempt['invocation']}{replica}"
    yield f"  {head}: {attempt['purpose']}, {_endpoint(attempt)}"
    facts = [*_time_facts(attempt), *_token_facts(attempt), *_cost_facts(attempt)]
    yield f"    {', '.join(facts)}"
    if attempt["of_earlier_content"]:
        yield (
            "    sent with another prompt, before the row or an answer before it changed, "
            "or was to be given again"
        )
    if attempt["asked_again_with"]:
        name = "re-asked, after the prompt and the last reply, with"
        yield from block_lines(name, attempt["asked_again_with"], "    ")
    if attempt["perhaps_billed"]:
        yield "    no answer came, yet it may have been billed"
    if attempt["error"]:
        yield from block_lines("error", error_text(attempt["error"]), "    ")
    if attempt["reply_kept"]:
        yield from block_lines("reply", attempt["reply"], "    ")
    elif attempt["http_status"] is not None:
        yield "    reply: not stored (keep_replies: failed, or an empty one)"


def _time_facts(attempt: dict[str, Any]) -> Iterator[str]:
    """Yields when it was sent, how long it took, and the status of the response."""
    first = attempt["ttft_s"]  # of a streamed reply
    answer = attempt["time_to_response_s"]  # the first token after those of reasoning
    times = []
    if first is not None:
        times.append(f"first token {first * 1000:,.0f} ms")
    if answer is not None and answer != first:
        times.append(f"of the answer {answer * 1000:,.0f} ms")
    yield attempt["started_at"]
    parts = f" ({', '.join(times)})" if times else ""
    yield f"{attempt['duration_s'] * 1000:,.0f} ms{parts}"
    if attempt["http_status"] is None:
        yield "no response"
    else:
        yield f"HTTP {attempt['http_status']}"
    if attempt["service_tier"]:
        yield f"tier {attempt['service_tier']}"


def _token_facts(attempt: dict[str, Any]) -> Iterator[str]:
    """Yields `800 tokens in (700 cached)` and `90 out (40 reasoning)`, as far as they are known."""
    for key, part, word in (("input", "cached", "tokens in"), ("output", "reasoning", "out")):
        tokens = attempt[f"{key}_tokens"]
        if tokens is None:
            continue
        part_tokens = attempt[f"{part}_tokens"]
        of_these = f" ({part_tokens:,} {part})" if part_tokens else ""
        yield f"{tokens:,} {word}{of_these}"


def _cost_facts(attempt: dict[str, Any]) -> Iterator[str]:
    if attempt["cost_usd"] is not None:
        yield dollars(attempt["cost_usd"], 6, simulated=attempt["simulated"])
    elif not attempt["error"]:
        yield "no known price"


def _endpoint(endpoint: dict[str, Any]) -> str:
    return f"{endpoint['provider']}/{endpoint['model']} at {endpoint['base_url']}"
