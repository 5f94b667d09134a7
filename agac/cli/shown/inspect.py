"""`agac inspect` as lines of text: a run with its definition, or a row with everything that was asked of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agac.cli.shown.layout import first_line
from agac.cli.shown.status import call_lines, count_lines, head_lines, invocation_lines
from agac.cli.shown.submitted import in_batch_words
from agac.cli.shown.votes import replicas_words
from agac.cli.shown.words import counted, indented, passed_over_words, plain

if TYPE_CHECKING:
    from agac.api.looking import InspectReport


def inspect_lines(report: InspectReport) -> list[str]:
    """What was found. Text of models and inputs is shown with escapes for what a terminal would obey."""
    lines = _run(report.run) if report.rows is None else _rows(report.run, report.rows)
    return [plain(line) for line in lines]


def _run(run: dict[str, Any]) -> Iterator[str]:
    yield from head_lines(run)
    yield ""
    yield from count_lines(run)
    yield ""
    yield from call_lines(run)
    yield ""
    yield from invocation_lines(run)
    for stage in run["definition"]["stages"]:
        yield from _definition(stage)
    yield from _errors(run)
    yield ""
    yield f"Look at one row with: agac inspect {run['run']} ROW"


def _definition(stage: dict[str, Any]) -> Iterator[str]:
    yield ""
    needs = ", ".join([stage["needs"]] if isinstance(stage["needs"], str) else stage["needs"] or ())
    does = _compact(stage["operation"]) if "operation" in stage else _model(stage)
    yield f"Stage {stage['name']}: {does}" + (f", needs {needs}" if needs else "")
    if stage.get("when"):
        yield from _block(f"when (otherwise: {stage['otherwise']})", stage["when"])
    if "operation" not in stage:
        yield from _asks(stage)


def _asks(stage: dict[str, Any]) -> Iterator[str]:
    yield from _alias(stage)
    if often := replicas_words(stage):
        yield f"  replicas: {often}"
    if stage["schema"]:
        yield f"  schema: {_compact(stage['schema']['body'])}"
    if stage["system"]:
        yield from _block("instructions", stage["system"])
    for message in stage.get("messages", ()):
        yield from _block(f"message, {message['role']}", message["content"])
    yield from _block("prompt", stage["prompt"])


def _alias(stage: dict[str, Any]) -> Iterator[str]:
    if alias := stage.get("alias"):
        yield f"  short name: {alias['written']} = {alias['means']}"


def _model(stage: dict[str, Any]) -> str:
    params = [
        f"{name}={value if isinstance(value, str) else _compact(value)}" for name, value in stage["params"].items()
    ]
    return ", ".join([stage["model"], *params])


def _errors(run: dict[str, Any]) -> Iterator[str]:
    if run["errors"]:
        yield ""
        yield "Errors:"
    for error in run["errors"]:
        example = error["example"]
        place = f" in {error['stage']}" if error["stage"] else ""
        yield f"  {error['type']}{place}: {counted(error['rows'], 'row')}, e.g. {example['id']!r}:"
        yield f"    {first_line(example['message'])}"
        yield f"    {row_command(run['run'], example['id'])}"


def row_command(run: int, row_id: str | int) -> str:
    """The command that shows a row. An id that begins like a flag comes after `--`."""
    words = ["--", str(row_id)] if str(row_id).startswith("-") else [str(row_id)]
    return shlex.join(["agac", "inspect", str(run), *words])


def _rows(run: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        if number:
            yield ""
        yield from _row(run, row)


def _row(run: dict[str, Any], row: dict[str, Any]) -> Iterator[str]:
    repeated = ", its id repeated" if row["occurrence"] else ""
    yield f"{run['workflow']}, run {run['run']}, {row['id']!r} ({_place(row)}{repeated}): {row['state']}"
    if row["error"]:
        yield f"  {_said(row['error'])}"
    yield from _relatives(run["run"], row)
    yield ""
    yield "Fields:"
    if row["fields"] is None:
        yield "  none: the record could not be read"
    if row["fields"] == {}:
        yield "  none of its own"
    for name, value in (row["fields"] or {}).items():
        yield from _block(name, value if isinstance(value, str) else _compact(value))
    for stage in row["stages"]:
        yield ""
        yield from _stage(stage)


def _place(row: dict[str, Any]) -> str:
    """Where a row comes from."""
    stage, parents = row["made_by"], row["parents"]
    if row["relation"] == "input":
        return f"row {row['row_number']:,} of the input" if row["in_input"] else "left the input"
    if row["relation"] == "group":
        return f"group of {stage}"
    if row["relation"] == "part":
        return f"part of the group {parents[0]['id']!r} of {stage}"
    if row["relation"] == "kept":
        return f"kept by {stage}"
    return f"child {row['place']} by {stage}"


def _relatives(run: int, row: dict[str, Any]) -> Iterator[str]:
    """What it was made of and what was made of it, with the commands that show these."""
    for above in row["parents"][:1]:
        command = f": {row_command(run, above['id'])}" if above["id"] != row["id"] else ", of the same id"
        yield f"  made of: {above['id']!r}, {_level(above)}{command}"
    for below in row["children"]:
        states = ", ".join(f"{count:,} {word}" for word, count in below["states"].items())
        if below["relation"] == "kept":
            yield f"  kept by {below['made_by']}: it goes on under the same id ({states})"
            continue
        word = "parts" if below["relation"] == "part" else "children"
        some = _some(run, below["ids"], below["count"])
        yield f"  {word} by {below['made_by']}: {below['count']:,} ({states}): {some}"
    if members := row["members"]:
        yield f"  members: {members['count']:,}: {_some(run, members['ids'], members['count'])}"
        if members["failed"]:
            yield f"  failed members: {members['failed']:,}: {_some(run, members['failed_ids'], members['failed'])}"
    for group in row["groups"]:
        yield f"  in the group {group['id']!r} of {group['made_by']}: {row_command(run, group['id'])}"


def _level(row: dict[str, Any]) -> str:
    if row["made_by"] is None:
        return "a row of the input"
    words = {"group": "a group of", "kept": "kept by"}
    return f"{words.get(row['relation'], 'a child by')} {row['made_by']}"


SHOWN_IDS = 5
"""Ids of children, parts or members that are told before the command that shows the first of them."""


def _some(run: int, ids: list[str | int], count: int) -> str:
    """The first ids, and the command that shows the first row."""
    if not ids:
        return "none"
    more = ", …" if count > SHOWN_IDS else ""
    return f"{', '.join(map(repr, ids[:SHOWN_IDS]))}{more}; {row_command(run, ids[0])}"


def _stage(stage: dict[str, Any]) -> Iterator[str]:
    yield f"Stage {stage['name']}: {stage['outcome']}{' (of earlier content)' if stage['stale'] else ''}"
    if stage["passed_over"]:
        yield f"  {passed_over_words(stage['passed_over'])}"
        yield f"  settled: {stage['settled_at']}"
        yield from (line for attempt in stage["attempts"] for line in _attempt(attempt))
        return
    yield f"  does: {_compact(stage['operation'])}" if stage["operation"] else f"  model: {_model(stage)}"
    yield from _alias(stage)
    if stage["outcome"] != "open":
        yield from _outcome(stage)
    for one in stage["in_batches"]:
        yield f"  {in_batch_words(one)}"
    yield from _replicas(stage)
    for message in stage["prompt"] or ():
        yield from _block(f"prompt, {message['role']}", message["text"])
    if stage["prompt_note"]:
        yield f"  {'not done' if stage['operation'] else 'prompt: not shown'}: {stage['prompt_note']}"
    for attempt in stage["attempts"]:
        yield from _attempt(attempt)


def _replicas(stage: dict[str, Any]) -> Iterator[str]:
    """What each replica came to, and how they voted."""
    for one in stage.get("replicas", ()):
        stale = " (of earlier content)" if one["stale"] else ""
        yield f"  Replica {one['replica']}: {one['outcome']}{stale}"
        if one["outcome"] != "open":
            shown = _said(one["error"]) if one["error"] else _compact(one["result"])
            yield from _block("error" if one["error"] else "answer", shown, "    ")
            if one["reused_from"]:
                yield f"    reused: {_origin(one['reused_from'])}"
    if vote := stage.get("vote"):
        values = ", ".join(f"{_compact(one['value'])} by {_numbers(one['replicas'])}" for one in vote["values"])
        taken = f"the result is that of replica {vote['taken']}"
        yield f"  vote on {vote['field']}: {values}; agreement {vote['agreement']:.2f}, {taken}"


def _numbers(numbers: list[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, numbers[:-1])), str(numbers[-1])]))


def _outcome(stage: dict[str, Any]) -> Iterator[str]:
    does = stage["operation"]
    if does and "python" not in does and not stage["error"]:  # nothing is kept of what can be done again for nothing
        yield f"  settled: {stage['settled_at']}"
        return
    yield f"  fingerprint: {stage['fingerprint'] or 'none'}   settled: {stage['settled_at']}"
    if stage["answered_by"] and not does:
        how = f", by way of {', '.join(stage['how'])}" if stage["how"] else ""
        yield f"  answered by: {_who(stage['answered_by'])}{how}"
    if stage["reused_from"]:
        yield f"  reused: {_origin(stage['reused_from'])}"
    if stage["error"]:
        yield from _block("error", _said(stage["error"]))
        if stage["traceback"]:
            yield from _block("traceback", stage["traceback"].rstrip())
    else:
        yield from _block("result", json.dumps(stage["result"], ensure_ascii=False, indent=2))


def _origin(origin: dict[str, Any]) -> str:
    if origin["run"] is None:
        return f"answered {origin['answered_at']}; the row that asked for it changed since or is gone"
    again = row_command(origin["run"], origin["row"])
    return f"answered {origin['answered_at']} for row {origin['row']!r} of run {origin['run']}: {again}"


def _attempt(attempt: dict[str, Any]) -> Iterator[str]:
    replica = f" for replica {attempt['replica']}" if "replica" in attempt else ""
    asked = f"Attempt {attempt['number']} of invocation {attempt['invocation']}{replica}"
    yield f"  {asked}: {attempt['purpose']}, {_who(attempt)}"
    status = f"HTTP {attempt['http_status']}" if attempt["http_status"] is not None else "no response"
    tier = [f"tier {attempt['service_tier']}"] if attempt["service_tier"] else []
    yield f"    {', '.join([attempt['started_at'], _took(attempt), status, *tier, *_usage(attempt)])}"
    if attempt["of_earlier_content"]:
        yield "    asked with another prompt, before the row or an answer before it changed"
    if attempt["asked_again_with"]:
        yield from _block("asked again, after the prompt and the last reply, with", attempt["asked_again_with"], "    ")
    if attempt["perhaps_billed"]:
        yield "    no answer came, yet it may have been billed"
    if attempt["error"]:
        yield from _block("error", _said(attempt["error"]), "    ")
    if attempt["reply_kept"]:
        yield from _block("reply", attempt["reply"], "    ")
    elif attempt["http_status"] is not None:
        yield "    reply: not kept (keep_replies: failed, or an empty one)"


def _took(attempt: dict[str, Any]) -> str:
    """How long a call took; of a streamed one, until its first token and until the first one of the answer itself."""
    first, answer = attempt["ttft_s"], attempt["time_to_response_s"]
    parts = [f"first token {first * 1000:,.0f} ms"] if first is not None else []
    parts += [f"of the answer {answer * 1000:,.0f} ms"] if answer not in (None, first) else []
    return f"{attempt['duration_s'] * 1000:,.0f} ms" + (f" ({', '.join(parts)})" if parts else "")


def _usage(attempt: dict[str, Any]) -> Iterator[str]:
    if attempt["input_tokens"] is not None:
        cached = f" ({attempt['cached_tokens']:,} cached)" if attempt["cached_tokens"] else ""
        yield f"{attempt['input_tokens']:,} tokens in{cached}"
    if attempt["output_tokens"] is not None:
        thought = f" ({attempt['reasoning_tokens']:,} reasoning)" if attempt["reasoning_tokens"] else ""
        yield f"{attempt['output_tokens']:,} out{thought}"
    if attempt["cost_usd"] is not None:
        yield f"{'simulated ' if attempt['simulated'] else ''}${attempt['cost_usd']:,.6f}"
    elif not attempt["error"]:
        yield "no known price"


def _who(endpoint: dict[str, Any]) -> str:
    return f"{endpoint['provider']}/{endpoint['model']} at {endpoint['base_url']}"


def _said(error: dict[str, Any]) -> str:
    place = f" in {error['stage']}" if error.get("stage") else ""
    return f"{error['type']}{place}: {error['message']}"


def _block(name: str, text: str, by: str = "  ") -> Iterator[str]:
    """`name: text`, or the name and the lines of the text below it."""
    if "\n" in text:
        yield f"{by}{name}:"
        yield indented(text, f"{by}  ")
    else:
        yield f"{by}{name}: {text}"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
